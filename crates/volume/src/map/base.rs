//! Base of a clone: a root of another set, its origin. It shows wherever the clone itself has nothing (ADR 0028).
//!
//! ```text
//!   own page has an extent ─▶ that      own page hides it, or the root hides the page ─▶ zeroes      neither ─▶ the base, as long as the
//!                                                                                                volume was there; zeroes beyond
//! ```
//! BASE-O1  A range that a clone wrote or unmapped is never read from the base again: an extent or a hidden range
//!     covers it for good.
//! BASE-O2  A root names the objects of its own set and its base's root, no other object of the base. The origin's pin
//!     retains those.
//! BASE-O3  A volume of the base is visible up to its size in the base. A volume that the base lacks is not visible.
//!
//! Encoded behind the volumes of a root, only where there is a base:
//!
//! ```text
//!   set  id of the root's object (from nothing)  its bytes  term and index that it covers
//!   count of volumes, then each, sorted:  id (step from the one before)  sectors  ranges of pages that are hidden (see `ranges`)
//! ```

use super::ranges::Ranges;
use super::{NO_OBJECT, PAGE_NUMBER_MAX, PAGE_SECTORS, put_object, read_object};
use crate::wire::{self, Reader, WireError};
use holdfast_control::set::RootRef;
use holdfast_types::limits::{VOLUME_SECTORS_MAX, VOLUMES_PER_SET_MAX};
use holdfast_types::{GroupId, Lba, LogId, LogIndex, Sectors, SetId, Term, VolumeId};
use std::collections::BTreeMap;

/// Id, sectors, count of ranges.
const VOLUME_WIRE_BYTES_MIN: usize = 3;

/// Most bases on top of one another: a clone of a clone and so on. Each takes a root in memory, and a lookup for ranges
/// that no root above it covers.
pub const BASE_DEPTH_MAX: u32 = 8;

/// A volume in the base.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shown {
    sectors: Sectors,
    /// Pages that are never read from the base any more.
    hidden: Ranges,
}

/// The visible root of another set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// The origin.
    pub set: SetId,
    /// Its root.
    pub root: RootRef,
    /// The root contains every entry up to this one.
    pub upto: LogId,
    volumes: BTreeMap<VolumeId, Shown>,
}

impl Base {
    /// A base without hidden pages: `volumes` with their sizes in it.
    pub fn new(set: SetId, root: RootRef, upto: LogId, volumes: impl Iterator<Item = (VolumeId, Sectors)>) -> Self {
        let shown = |(id, sectors): (VolumeId, Sectors)| {
            let sectors = Sectors(sectors.0.min(VOLUME_SECTORS_MAX));
            (id, Shown { sectors, hidden: Ranges::default() })
        };
        Self { set, root, upto, volumes: volumes.map(shown).collect() }
    }

    /// End of the visible part of a page (the first sector behind it); `None` if nothing of the page is visible.
    pub(super) fn shows(&self, volume: VolumeId, number: u32) -> Option<Lba> {
        let shown = self.volumes.get(&volume)?;
        let start = u64::from(number) * PAGE_SECTORS;
        let end = shown.sectors.0.min(start + PAGE_SECTORS);
        (start < end && !shown.hidden.contains(number)).then_some(Lba(end))
    }

    /// Hides the pages whose visible part the range covers entirely. Returns the partly covered ones: they need a page
    /// of their own that hides the rest. The cost depends on the range's ends and the hidden ranges in it, not on its
    /// length.
    pub(super) fn hide(&mut self, volume: VolumeId, lba: Lba, sectors: Sectors) -> Vec<u32> {
        let Some(shown) = self.volumes.get_mut(&volume) else { return Vec::new() };
        let end = lba.0.saturating_add(sectors.0).min(shown.sectors.0);
        if lba.0 >= end {
            return Vec::new();
        }
        // Whole pages, and the last page of the volume up to the visible end.
        let (first, last) = (lba.0 / PAGE_SECTORS, (end - 1) / PAGE_SECTORS);
        let from = lba.0.div_ceil(PAGE_SECTORS);
        let to = if end == shown.sectors.0 { last + 1 } else { end / PAGE_SECTORS };
        // Below the number of pages that a volume has.
        shown.hidden.insert(from as u32, to.max(from) as u32);
        let mut parts = vec![first as u32, last as u32];
        parts.dedup();
        parts.retain(|number| !shown.hidden.contains(*number));
        parts
    }

    /// Pages of the volume in the base.
    pub(super) fn pages(&self, volume: VolumeId) -> u32 {
        // A size was bounded by the largest volume's.
        self.volumes.get(&volume).map_or(0, |shown| shown.sectors.0.div_ceil(PAGE_SECTORS) as u32)
    }

    /// Hidden ranges of pages, to compare two roots: first page, first page behind.
    pub(super) fn hidden(&self, volume: VolumeId) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.volumes.get(&volume).into_iter().flat_map(|shown| shown.hidden.iter())
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        wire::put(out, self.set.0);
        put_object(out, NO_OBJECT, self.root.object);
        wire::put(out, self.root.bytes);
        wire::put(out, self.upto.term.0);
        wire::put(out, self.upto.index.0);
        wire::put(out, self.volumes.len() as u64);
        let mut before = 0;
        for (volume, shown) in &self.volumes {
            wire::put_step(out, before, volume.0.into());
            before = volume.0.into();
            wire::put(out, shown.sectors.0);
            shown.hidden.put(out);
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let set = GroupId(reader.number("set of the base", 1, u64::MAX)?);
        let object = read_object(reader, NO_OBJECT)?;
        let bytes = reader.number("bytes of the base's root", 0, i64::MAX as u64)?;
        let term = Term(reader.number("term of the base", 0, u64::MAX)?);
        let index = LogIndex(reader.number("index of the base", 0, u64::MAX)?);
        let count = reader.count("volumes of the base", VOLUME_WIRE_BYTES_MIN, VOLUMES_PER_SET_MAX as u64)?;
        let (mut volumes, mut volume) = (BTreeMap::new(), 0);
        for place in 0..count {
            let least = if place == 0 { 0 } else { volume + 1 };
            volume = reader.step("volume of the base", volume, least, u32::MAX.into())?;
            let sectors = Sectors(reader.number("sectors in the base", 0, VOLUME_SECTORS_MAX)?);
            let hidden = Ranges::read(reader, PAGE_NUMBER_MAX + 1)?;
            volumes.insert(VolumeId(volume as u32), Shown { sectors, hidden });
        }
        Ok(Self { set, root: RootRef { object, bytes }, upto: LogId { term, index }, volumes })
    }
}

#[cfg(test)]
mod tests;
