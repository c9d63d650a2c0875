//! What a check is asked for, and what it finds.

use crate::found::Found;
use holdfast_types::{SECTOR_BYTES, VolumeId};
use holdfast_volume::head::Covered;
use serde::Serialize;
use std::collections::BTreeSet;
use std::ops::Range;

/// Default limit of listed damaged places of a set; further ones are only counted. A report of this size takes a few
/// MiB.
pub const LISTED: u32 = 10_000;

/// … and the highest allowed limit: some hundreds of MiB.
pub const LISTED_MAX: u32 = 1_000_000;

/// What to check.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Share of the pages to check, in millionths.
    pub millionths: u32,
    /// Seed of the selection: the same seed selects the same pages.
    pub seed: u64,
}

impl Sample {
    /// All pages.
    pub const ALL: Sample = Sample { millionths: 1_000_000, seed: 0 };

    pub(super) fn takes(&self, volume: VolumeId, number: u32) -> bool {
        // splitmix64: spreads evenly over seeds and places.
        let mut z = self.seed ^ (u64::from(volume.0) << 32 | u64::from(number));
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % 1_000_000 < u64::from(self.millionths)
    }

    /// Whether every page is checked.
    pub fn is_all(&self) -> bool {
        self.millionths >= 1_000_000
    }
}

/// One damaged place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// `root`, `leaf` (of a root; its pages are unknown, so this stands for all that it may list), `page`, `extent`,
    /// `map`, or `base` if the origin of a clone is missing.
    pub part: &'static str,
    /// Key of the object.
    pub key: String,
    /// Bad bytes of the object; absent if the whole object is bad.
    pub object_bytes: Option<[u64; 2]>,
    /// The volume; empty if all volumes are affected.
    pub volume: String,
    /// First sector of 512 bytes that cannot be read.
    pub lba: u64,
    /// Number of sectors that cannot be read; 0 if the whole set is affected.
    pub sectors: u64,
    /// The reason.
    pub reason: String,
    /// The store of this copy, if the copies of several stores are read separately; other copies may be good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The newest snapshot that has it, if the set's current state does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
}

/// Result of a check.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The set.
    pub set: String,
    /// Its number.
    pub id: u64,
    /// Its generation.
    pub generation: u64,
    /// The store whose copies were read, if those of several stores are read separately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
    /// The state covered by the store; absent before the first checkpoint.
    pub covered: Option<Covered>,
    /// Number of objects that the checkpoint names: its root, page packs and segments.
    pub objects: u64,
    /// Whether its root is divided into leaves (ADR 0034).
    pub in_leaves: bool,
    /// Number of snapshots that the head lists.
    pub snapshots: u64,
    /// Number of pages of the map, including those that only snapshots have.
    pub pages: u64,
    /// Number of pages that were checked.
    pub pages_checked: u64,
    /// Number of sealed extents that were opened.
    pub extents: u64,
    /// Bytes that were read from the store.
    pub bytes: u64,
    /// Seed of the sample; absent when everything was checked.
    pub seed: Option<u64>,
    /// The first damaged places, up to the requested limit.
    pub damaged: Vec<Damage>,
    /// Total number of damaged places.
    pub damaged_total: u64,
    /// Segments for which the root counts more sectors in use than the pages refer to. This happens after a damaged map
    /// page was given up. It is no damage, but the space stays in use: nothing that the root counts is deleted.
    pub overcounted_segments: u64,
    /// Sectors of 512 bytes that are counted too much in these segments.
    pub overcounted_sectors: u64,
    /// The comparison of the root's counts with its pages was skipped, because not all pages can be read. Absent if it
    /// was done or not wanted.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sums_skipped: bool,
    /// Maximum number of listed damaged places.
    #[serde(skip)]
    listed_max: u32,
    /// Damaged leaves: key, and byte range.
    #[serde(skip)]
    leaves: BTreeSet<(String, Option<[u64; 2]>)>,
}

impl Report {
    /// The report of a check that begins. `store`: see its field.
    pub(super) fn of(found: &Found, store: Option<String>, sample: Sample, listed_max: u32) -> Self {
        Self {
            set: found.head.name.to_string(),
            id: found.set.0,
            generation: found.head.life.generation,
            store,
            covered: found.head.covered,
            seed: (!sample.is_all()).then_some(sample.seed),
            listed_max,
            ..Self::default()
        }
    }

    pub(super) fn note(&mut self, damage: Damage) {
        // Roots share leaves as they share pages: a damaged leaf is reported for the first root only.
        if damage.part == "leaf" && !self.leaves.insert((damage.key.clone(), damage.object_bytes)) {
            return;
        }
        self.damaged_total += 1;
        if self.damaged.len() < self.listed_max as usize {
            self.damaged.push(damage);
        }
    }
}

impl Damage {
    /// The damaged byte range of the volume.
    pub fn volume_bytes(&self) -> Range<u64> {
        let start = self.lba.saturating_mul(SECTOR_BYTES);
        start..start.saturating_add(self.sectors.saturating_mul(SECTOR_BYTES))
    }
}

/// A byte range as a report has it.
pub(super) fn bounds(range: &Range<u64>) -> Option<[u64; 2]> {
    Some([range.start, range.end])
}
