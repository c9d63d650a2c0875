//! Chooses segments and page packs to rewrite.

use crate::map::{Objects, SegmentUse, pack_bytes_max};
use holdfast_types::{ObjectId, SECTOR_BYTES, Sectors, Term};
use std::collections::{BTreeMap, BTreeSet};

/// Stored bytes and used bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amplification {
    /// Bytes of all segments that the root names.
    pub stored_bytes: u64,
    /// The part that volumes still use, estimated for each segment by its share of live sectors.
    pub live_bytes: u64,
}

impl Amplification {
    /// Usage of a root. Cost: number of leaves.
    pub fn of(root: &Objects) -> Self {
        let (stored_bytes, live_bytes) = root.segment_bytes();
        Self { stored_bytes, live_bytes }
    }

    /// Removes a segment that was counted.
    fn without(self, usage: &SegmentUse) -> Self {
        let live_bytes = share(usage.stored_bytes, usage.live_sectors, usage.raw_sectors);
        Self {
            stored_bytes: self.stored_bytes.saturating_sub(usage.stored_bytes),
            live_bytes: self.live_bytes.saturating_sub(live_bytes),
        }
    }

    /// Whether stored bytes exceed `percent` percent of used bytes.
    pub fn above(&self, percent: u32) -> bool {
        u128::from(self.stored_bytes) * 100 > u128::from(self.live_bytes) * u128::from(percent)
    }
}

/// The target for this collection, so that `percent` holds when the present checkpoint ends. The checkpoint adds
/// `coming_bytes`, which replace as many used bytes. At most half of the allowed unused bytes are reserved for it.
/// Otherwise a small set, of which each checkpoint rewrites a large part, would be moved completely each time; for such
/// a set `percent` may be exceeded.
pub fn percent_before(sums: Amplification, percent: u32, coming_bytes: u64) -> u32 {
    let coming = (u128::from(coming_bytes) * 100).div_ceil(u128::from(sums.live_bytes.max(1)));
    percent - u32::try_from(coming).unwrap_or(u32::MAX).min(percent.saturating_sub(100) / 2)
}

/// `bytes` × `part` / `whole`.
fn share(bytes: u64, part: Sectors, whole: Sectors) -> u64 {
    (u128::from(bytes) * u128::from(part.0) / u128::from(whole.0.max(1))) as u64
}

/// Segments that cannot be emptied: their live data cannot be read, or no page names it. Each is skipped until its
/// count changes, the set is rolled back, or another term begins. In memory only: it affects nothing but space, and how
/// long an old data key is needed.
#[derive(Debug, Default)]
pub struct Spared {
    term: Term,
    at: BTreeMap<ObjectId, Sectors>,
}

impl Spared {
    /// A checkpoint on `root` begins: forgets segments that the root does not name, and those of an earlier term.
    pub fn begin(&mut self, term: Term, root: &Objects) {
        if std::mem::replace(&mut self.term, term) != term {
            self.at.clear();
        }
        if !self.at.is_empty() {
            self.at.retain(|object, live| root.segment(*object).is_some_and(|usage| usage.live_sectors == *live));
        }
    }

    /// Notes a segment that could not be emptied.
    pub fn note(&mut self, root: &Objects, victim: ObjectId) {
        self.at.extend(root.segment(victim).map(|usage| (victim, usage.live_sectors)));
    }

    /// Forgets all: the obstacle is gone, or the root is not one that was built on those before.
    pub fn clear(&mut self) {
        self.at.clear();
    }

    pub(super) fn has(&self, object: ObjectId, usage: &SegmentUse) -> bool {
        self.at.get(&object) == Some(&usage.live_sectors)
    }

    /// Segments of a root that are skipped.
    fn of(&self, root: &Objects) -> impl Iterator<Item = SegmentUse> {
        let known = self.at.keys().filter_map(move |object| Some((*object, root.segment(*object)?)));
        known.filter(move |(object, usage)| self.has(*object, usage)).map(|(_, usage)| usage)
    }
}

/// The segments to empty so that stored bytes are at most `target_percent` percent of live bytes. Segments with the
/// lowest live share come first: they free the most for what is copied. At most `budget_bytes` of raw data is copied,
/// but always at least one segment, so that a small budget makes progress. `spared` segments are not chosen, and no
/// others are emptied instead. Cost: the leaves of segments, and the content of those with a chosen one.
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

/// The page packs whose remaining pages are to be rewritten, so that packs of known length store at most
/// `target_percent` percent of the bytes of all pages. None if a new pack would not be smaller than the old ones
/// together: small pages are smaller than a pack's overhead and would be rewritten again and again. Cost: as for
/// segments.
pub fn packs_to_collect(root: &Objects, target_percent: u32) -> BTreeSet<ObjectId> {
    let (stored_bytes, live_bytes) = root.pack_bytes();
    let mut sums = Amplification { stored_bytes, live_bytes };
    // Excludes fully used packs: emptying them frees nothing.
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
