//! Which segments and page packs are worth to be emptied.

use crate::map::{Objects, SegmentUse, pack_bytes_max};
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
    /// Of a root. Costs what there are leaves.
    pub fn of(root: &Objects) -> Self {
        let (stored_bytes, live_bytes) = root.segment_bytes();
        Self { stored_bytes, live_bytes }
    }

    /// Without a segment that was counted.
    fn without(self, usage: &SegmentUse) -> Self {
        let live_bytes = share(usage.stored_bytes, usage.live_sectors, usage.raw_sectors);
        Self {
            stored_bytes: self.stored_bytes.saturating_sub(usage.stored_bytes),
            live_bytes: self.live_bytes.saturating_sub(live_bytes),
        }
    }

    /// Whether there is more than `percent` hundredths of what is in use.
    pub fn above(&self, percent: u32) -> bool {
        u128::from(self.stored_bytes) * 100 > u128::from(self.live_bytes) * u128::from(percent)
    }
}

/// What to empty segments down to where `percent` is to hold when the checkpoint at hand ends: it stores `coming_bytes` beside, in the place of as many that go out of
/// use. At most half of what `percent` lets lie unused is given for that. A small set, of which each checkpoint rewrites much, would have all of it moved each time:
/// there the rest comes on top.
pub fn percent_before(sums: Amplification, percent: u32, coming_bytes: u64) -> u32 {
    let coming = (u128::from(coming_bytes) * 100).div_ceil(u128::from(sums.live_bytes.max(1)));
    percent - u32::try_from(coming).unwrap_or(u32::MAX).min(percent.saturating_sub(100) / 2)
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
    pub fn begin(&mut self, term: Term, root: &Objects) {
        if std::mem::replace(&mut self.term, term) != term {
            self.at.clear();
        }
        if !self.at.is_empty() {
            self.at.retain(|object, live| root.segment(*object).is_some_and(|usage| usage.live_sectors == *live));
        }
    }

    /// A victim out of which nothing came.
    pub fn note(&mut self, root: &Objects, victim: ObjectId) {
        self.at.extend(root.segment(victim).map(|usage| (victim, usage.live_sectors)));
    }

    /// All may be worth another look: what stood in their way is gone.
    pub fn clear(&mut self) {
        self.at.clear();
    }

    pub(super) fn has(&self, object: ObjectId, usage: &SegmentUse) -> bool {
        self.at.get(&object) == Some(&usage.live_sectors)
    }

    /// Those of a root's segments that are left out.
    fn of(&self, root: &Objects) -> impl Iterator<Item = SegmentUse> {
        let known = self.at.keys().filter_map(move |object| Some((*object, root.segment(*object)?)));
        known.filter(move |(object, usage)| self.has(*object, usage)).map(|(_, usage)| usage)
    }
}

/// The segments to empty so that no more than `target_percent` hundredths of the live bytes are stored: those with the lowest live
/// share first, for they give back the most for what is copied. Not more than `budget_bytes` of raw data is copied, but one
/// segment at least, so that a small budget still gets on. What is `spared` counts for nothing: neither is it chosen, nor are others emptied in its
/// place to meet the target. Costs what there are leaves of segments, and what is in those of which one is chosen.
pub fn segments_to_collect(root: &Objects, target_percent: u32, budget_bytes: u64, spared: &Spared) -> Vec<ObjectId> {
    let mut sums = spared.of(root).fold(Amplification::of(root), |sums, usage| sums.without(&usage));
    let mut by_use = root.segments_by_use().filter(|(object, usage)| !spared.has(*object, usage));
    let (mut chosen, mut copied) = (Vec::new(), 0);
    while sums.above(target_percent)
        && let Some((object, usage)) = by_use.next()
    {
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
/// what frames it, and would be written anew for ever. Costs as choosing segments does.
pub fn packs_to_collect(root: &Objects, target_percent: u32) -> BTreeSet<ObjectId> {
    let (stored_bytes, live_bytes) = root.pack_bytes();
    let mut sums = Amplification { stored_bytes, live_bytes };
    // Emptying those of which all is in use would not help: without the others no more is stored than is in use.
    let mut by_use = root.packs_by_use();
    let mut chosen = BTreeSet::new();
    let (mut before, mut pages, mut live) = (0, 0, 0);
    while sums.above(target_percent)
        && let Some((object, usage)) = by_use.next()
    {
        sums.stored_bytes -= usage.stored_bytes - usage.live_bytes.min(usage.stored_bytes);
        (before, pages, live) = (before + usage.stored_bytes, pages + usage.live_pages, live + usage.live_bytes);
        chosen.insert(object);
    }
    if pack_bytes_max(pages, live) < before { chosen } else { BTreeSet::new() }
}

#[cfg(test)]
mod tests;
