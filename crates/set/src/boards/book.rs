//! Position, findings and schedule of a set's scrub. Plain data: kept on disk; gets the time as an argument and does no
//! I/O.
//!
//! SCRUB-B1  A place that is in the set during a whole round is read in that round, whatever else changes; or it is
//!     reported as damaged, with the leaf or root without which it cannot be found.
//! SCRUB-B2  Damage that the last complete round found stays known until the next round is complete; damage that a
//!     running round finds is known at once.

use holdfast_types::{Name, SetId, VolumeId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Maximum number of damaged places that are kept; further ones are only counted.
pub const DAMAGED_KEPT: usize = 100;

/// The first position of a target.
pub const BEGIN: (VolumeId, u32) = (VolumeId(0), 0);

/// After this many intervals a running round starts again: its first results are outdated.
const STALE_INTERVALS: u32 = 2;

/// What is read, in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Target {
    /// The set's current state.
    Now,
    /// Data that only this snapshot has.
    Snapshot(Name),
    /// Data of the set that only this clone has: its snapshot is deleted.
    Clone(SetId),
}

impl Target {
    /// The next target, if all of these exist.
    pub fn next(&self, there: impl IntoIterator<Item = Target>) -> Option<Target> {
        there.into_iter().filter(|target| target > self).min()
    }
}

/// A damaged place, as `verify` names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// `root`, `leaf`, `page` or `extent`.
    pub part: String,
    /// Key of the object.
    pub key: String,
    /// The snapshot that has it; `None` for the set's current state.
    pub snapshot: Option<Name>,
    /// The clone that has it, from a deleted snapshot of that name.
    pub clone: Option<SetId>,
    /// The volume; empty if all volumes are affected.
    pub volume: String,
    /// First sector that cannot be read.
    pub lba: u64,
    /// Number of sectors that cannot be read; 0 if all are affected.
    pub sectors: u64,
    /// The reason.
    pub reason: String,
    /// With several stores, the store of this copy; the other copies may be good.
    pub store: Option<String>,
}

/// Findings, limited in number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finds {
    /// Total number.
    pub total: u64,
    /// The first of them.
    pub places: Vec<Place>,
}

impl Finds {
    fn note(&mut self, place: Place) {
        self.total += 1;
        if self.places.len() < DAMAGED_KEPT {
            self.places.push(place);
        }
    }
}

/// One round: a reading of everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// When it began, in Unix milliseconds.
    pub begun_unix_ms: u64,
    /// The current target.
    pub target: Target,
    /// With several stores, the one whose copies are read: this number modulo their count.
    pub copy: usize,
    /// The round has read copies of several stores, so none of them completely.
    pub mixed: bool,
    /// The first page of it that is not finished.
    pub next: (VolumeId, u32),
    /// Number of finished pages.
    pub pages: u64,
    /// Number of opened extents.
    pub extents: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// Its findings.
    pub found: Finds,
}

/// Everything known of a set's rounds at this gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    /// When this gateway began to keep it, in Unix milliseconds: the first round is due one interval later.
    pub since_unix_ms: u64,
    /// End of the last complete round; 0 if there was none.
    pub complete_unix_ms: u64,
    /// Findings of that round.
    pub found: Finds,
    /// The current round.
    pub round: Option<Round>,
    /// The store whose copies the next round reads: the stores take turns.
    pub next_copy: usize,
}

impl Book {
    /// Begins a round if none is running.
    pub fn begin(&mut self, now_unix_ms: u64) {
        self.round.get_or_insert_with(|| Round {
            begun_unix_ms: now_unix_ms,
            target: Target::Now,
            copy: self.next_copy,
            mixed: false,
            next: BEGIN,
            pages: 0,
            extents: 0,
            bytes: 0,
            found: Finds::default(),
        });
    }

    /// Begins a round if one is due at `now`, and drops one that is too old to continue.
    pub fn keep_time(&mut self, now_unix_ms: u64, interval: Duration) {
        if self.since_unix_ms == 0 {
            self.since_unix_ms = now_unix_ms;
        }
        let age = |since: u64| Duration::from_millis(now_unix_ms.saturating_sub(since));
        if self.round.as_ref().is_some_and(|round| age(round.begun_unix_ms) > interval * STALE_INTERVALS) {
            self.round = None;
        }
        if age(self.complete_unix_ms.max(self.since_unix_ms)) >= interval {
            self.begin(now_unix_ms);
        }
    }

    /// Finishes a page, whether it was read or not needed.
    pub fn page_done(&mut self, at: (VolumeId, u32), extents: u64, bytes: u64, damaged: Vec<Place>) {
        let Some(round) = &mut self.round else { return };
        round.pages += 1;
        round.extents += extents;
        round.bytes += bytes;
        damaged.into_iter().for_each(|place| round.found.note(place));
        // Page numbers have room above: a page covers 32 MiB, and volumes end at 64 TiB.
        round.next = (at.0, at.1.saturating_add(1));
    }

    /// Skips a leaf that does not open, so that its pages are unknown; `behind` is the next position.
    pub fn leaf_passed(&mut self, behind: (VolumeId, u32), damaged: Vec<Place>) {
        let Some(round) = &mut self.round else { return };
        damaged.into_iter().for_each(|place| round.found.note(place));
        round.next = behind;
    }

    /// Records a root that does not open, so that nothing below it can be read; or a part of it that locates no pages.
    pub fn note(&mut self, place: Place) {
        if let Some(round) = &mut self.round {
            round.found.note(place);
        }
    }

    /// Switches to the copies of another store: the one in turn does not answer.
    pub fn read_copy(&mut self, copy: usize) {
        if let Some(round) = &mut self.round {
            round.mixed |= round.copy != copy && (round.pages > 0 || round.next != BEGIN);
            round.copy = copy;
        }
    }

    /// Finishes a target; the round ends after the last. `store`: with several, the one whose copies were read.
    pub fn target_done(&mut self, next: Option<Target>, store: Option<&str>, now_unix_ms: u64) {
        let Some(mut round) = self.round.take() else { return };
        match next {
            Some(target) => {
                round.target = target;
                round.next = BEGIN;
                self.round = Some(round);
            }
            None => {
                self.complete_unix_ms = now_unix_ms;
                self.next_copy = round.copy.wrapping_add(1);
                // This round says nothing about other stores' copies; if it switched stores, it covers this store's
                // copies only in part.
                let others = |place: &&Place| place.store.is_some() && (round.mixed || place.store.as_deref() != store);
                let kept: Vec<Place> = self.found.places.iter().filter(others).cloned().collect();
                self.found = round.found;
                for old in kept {
                    if !self.found.places.iter().any(|new| same(new, &old)) {
                        self.found.note(old);
                    }
                }
            }
        }
    }

    /// Damage known now (SCRUB-B2).
    pub fn known(&self) -> Finds {
        let Some(round) = self.round.as_ref().filter(|round| round.found.total > 0) else { return self.found.clone() };
        let mut all = round.found.clone();
        for old in &self.found.places {
            if !round.found.places.iter().any(|new| same(new, old)) {
                all.note(old.clone());
            }
        }
        all
    }
}

fn same(a: &Place, b: &Place) -> bool {
    (&a.store, &a.key, &a.volume, a.lba, a.sectors) == (&b.store, &b.key, &b.volume, b.lba, b.sectors)
}

#[cfg(test)]
mod tests;
