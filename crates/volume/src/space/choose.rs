//! Which segments and page packs are worth to be emptied.

use crate::map::{Root, SegmentUse, pack_bytes_max};
use holdfast_types::{ObjectId, SECTOR_BYTES, Sectors, Term};
use std::collections::{BTreeMap, BTreeSet};

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
        Self::of_all(root.segments())
    }

    fn of_all(segments: impl Iterator<Item = (ObjectId, SegmentUse)>) -> Self {
        segments.fold(Self::default(), |sum, (_, usage)| Self {
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

/// Segments that emptying does not help: what is counted as in use of them cannot be read, or no page names it (of a page that was given up). Each is
/// left out until its count changes, or another term begins. To be kept in memory only: nothing but space depends on it.
#[derive(Debug, Default)]
pub struct Spared {
    term: Term,
    at: BTreeMap<ObjectId, Sectors>,
}

impl Spared {
    /// A checkpoint on `root` begins: forgets what that does not name, and what an earlier term found.
    pub fn begin(&mut self, term: Term, root: &Root) {
        if std::mem::replace(&mut self.term, term) != term {
            self.at.clear();
        }
        if !self.at.is_empty() {
            self.at.retain(|object, live| root.segment(*object).is_some_and(|usage| usage.live_sectors == *live));
        }
    }

    /// A victim out of which nothing came.
    pub fn note(&mut self, root: &Root, victim: ObjectId) {
        self.at.extend(root.segment(victim).map(|usage| (victim, usage.live_sectors)));
    }

    /// All may be worth another look: what stood in their way is gone.
    pub fn clear(&mut self) {
        self.at.clear();
    }

    pub(super) fn has(&self, object: ObjectId, usage: &SegmentUse) -> bool {
        self.at.get(&object) == Some(&usage.live_sectors)
    }
}

/// The segments to empty so that no more than `target_percent` hundredths of the live bytes are stored: those with the lowest live
/// share first, for they give back the most for what is copied. Not more than `budget_bytes` of raw data is copied, but one
/// segment at least, so that a small budget still gets on. What is `spared` counts for nothing: neither is it chosen, nor are others emptied in its
/// place to meet the target.
pub fn segments_to_collect(root: &Root, target_percent: u32, budget_bytes: u64, spared: &Spared) -> Vec<ObjectId> {
    let candidates = || root.segments().filter(|(object, usage)| !spared.has(*object, usage));
    let mut sums = Amplification::of_all(candidates());
    let mut by_share: Vec<_> = candidates()
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
