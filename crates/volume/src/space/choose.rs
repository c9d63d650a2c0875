//! Which segments and page packs are worth to be emptied.

use crate::map::{Root, pack_bytes_max};
use holdfast_types::{ObjectId, SECTOR_BYTES, Sectors};
use std::collections::BTreeSet;

/// Bytes in the store against those of them that are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amplification {
    /// Bytes of all segments that the root names.
    pub stored_bytes: u64,
    /// Part of them that volumes still show, each segment's sealed bytes taken in proportion.
    pub live_bytes: u64,
}

impl Amplification {
    /// Of a root.
    pub fn of(root: &Root) -> Self {
        root.segments().fold(Self::default(), |sum, (_, usage)| Self {
            stored_bytes: sum.stored_bytes + usage.stored_bytes,
            live_bytes: sum.live_bytes + share(usage.stored_bytes, usage.live_sectors, usage.raw_sectors),
        })
    }

    /// Whether there is more than `percent` hundredths of what is in use.
    pub fn above(&self, percent: u32) -> bool {
        u128::from(self.stored_bytes) * 100 > u128::from(self.live_bytes) * u128::from(percent)
    }
}

/// `bytes` × `part` / `whole`.
fn share(bytes: u64, part: Sectors, whole: Sectors) -> u64 {
    (u128::from(bytes) * u128::from(part.0) / u128::from(whole.0.max(1))) as u64
}

/// The segments to empty so that no more than `target_percent` hundredths of the live bytes are stored: those with the lowest live
/// share first, for they give back the most for what is copied. Not more than `budget_bytes` of raw data is copied, but one
/// segment at least, so that a small budget still gets on.
pub fn segments_to_collect(root: &Root, target_percent: u32, budget_bytes: u64) -> Vec<ObjectId> {
    let mut sums = Amplification::of(root);
    let mut by_share: Vec<_> = root
        .segments()
        .filter(|(_, usage)| usage.live_sectors < usage.raw_sectors)
        // In parts of 2^32: whole numbers, so that every run chooses alike.
        .map(|(object, usage)| (share(1 << 32, usage.live_sectors, usage.raw_sectors), object, usage))
        .collect();
    by_share.sort_unstable_by_key(|(share, object, _)| (*share, *object));
    let (mut chosen, mut copied) = (Vec::new(), 0);
    for (_, object, usage) in by_share {
        if !sums.above(target_percent) {
            break;
        }
        copied += usage.live_sectors.0 * SECTOR_BYTES;
        if copied > budget_bytes && !chosen.is_empty() {
            break;
        }
        let live = share(usage.stored_bytes, usage.live_sectors, usage.raw_sectors);
        sums.stored_bytes -= usage.stored_bytes - live.min(usage.stored_bytes);
        chosen.push(object);
    }
    chosen
}

/// The page packs whose remaining pages are to be written anew, so that no more than `target_percent` hundredths of the bytes of all
/// pages are stored in packs of known length. None where one pack of them would not be smaller than they are together: a small page is less than
/// what frames it, and would be written anew for ever.
pub fn packs_to_collect(root: &Root, target_percent: u32) -> BTreeSet<ObjectId> {
    let mut uses: Vec<_> = root.pack_uses().into_iter().filter(|(_, usage)| usage.stored_bytes > 0).collect();
    let mut sums = uses.iter().fold(Amplification::default(), |sum, (_, usage)| Amplification {
        stored_bytes: sum.stored_bytes + usage.stored_bytes,
        live_bytes: sum.live_bytes + usage.live_bytes,
    });
    uses.sort_unstable_by_key(|(object, usage)| {
        (share(1 << 32, Sectors(usage.live_bytes), Sectors(usage.stored_bytes)), *object)
    });
    let mut chosen = BTreeSet::new();
    let (mut before, mut pages, mut live) = (0, 0, 0);
    for (object, usage) in uses {
        if !sums.above(target_percent) {
            break;
        }
        sums.stored_bytes -= usage.stored_bytes - usage.live_bytes.min(usage.stored_bytes);
        (before, pages, live) = (before + usage.stored_bytes, pages + usage.live_pages, live + usage.live_bytes);
        chosen.insert(object);
    }
    if pack_bytes_max(pages, live) < before { chosen } else { BTreeSet::new() }
}
