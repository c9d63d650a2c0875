//! Where the background reading of a set is, what it found, and when it is due. Plain data: kept on disk, told the time, asks nobody.
//!
//! B1  A place that is in the set from the begin of a round to its end is read in that round, whatever comes and goes beside it; or it is told as damaged, with the
//!     leaf or the root that it cannot be found without.
//! B2  Damage that the last complete round found stays known until the next one is complete; what a round finds is known at once.

use holdfast_types::{Name, SetId, VolumeId};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Damaged places that are kept; more are counted.
pub const DAMAGED_KEPT: usize = 100;

/// Where a target begins.
pub const BEGIN: (VolumeId, u32) = (VolumeId(0), 0);

/// A round that was begun so long ago is begun anew: what it read first says little of today.
const STALE_INTERVALS: u32 = 2;

/// What is read, in this order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Target {
    /// The set as it is.
    Now,
    /// What only this snapshot shows.
    Snapshot(Name),
    /// What only this clone shows of the set: the snapshot that it was made of is gone.
    Clone(SetId),
}

impl Target {
    /// What comes next, where all of these are there.
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
    /// The snapshot that shows it; `None`: the set as it is.
    pub snapshot: Option<Name>,
    /// The clone that shows it, of a snapshot of that name which is gone.
    #[serde(default)]
    pub clone: Option<SetId>,
    /// The volume; empty where it is all of them.
    pub volume: String,
    /// First sector that cannot be read.
    pub lba: u64,
    /// Sectors that cannot be read; 0 where it is all.
    pub sectors: u64,
    /// Why.
    pub reason: String,
    /// Which of several stores has this copy; the others may be whole.
    #[serde(default)]
    pub store: Option<String>,
}

/// What was found, bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finds {
    /// In all.
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

/// One reading of everything.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// When it began, in Unix milliseconds.
    pub begun_unix_ms: u64,
    /// What is being read.
    pub target: Target,
    /// Whose copies, of several stores: this, modulo their number.
    #[serde(default)]
    pub copy: usize,
    /// It has read the copies of several: of none of them all.
    #[serde(default)]
    pub mixed: bool,
    /// The first page of it that is not done yet.
    pub next: (VolumeId, u32),
    /// Pages that are done.
    pub pages: u64,
    /// Extents that were opened.
    pub extents: u64,
    /// Bytes that were read.
    pub bytes: u64,
    /// What it found.
    pub found: Finds,
}

/// Everything that is known of a set's rounds at this gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    /// Since when this gateway keeps it, in Unix milliseconds: the first round is due an interval later.
    pub since_unix_ms: u64,
    /// When the last round came to its end; 0: none did.
    pub complete_unix_ms: u64,
    /// What that one found.
    pub found: Finds,
    /// The one under way.
    pub round: Option<Round>,
    /// Whose copies the next one reads: the stores take turns.
    #[serde(default)]
    pub next_copy: usize,
}

impl Book {
    /// Begins a round where none is under way.
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

    /// Begins what is due at `now`, and lets go what is too old to be gone on with.
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

    /// A page is done, read or not needed.
    pub fn page_done(&mut self, at: (VolumeId, u32), extents: u64, bytes: u64, damaged: Vec<Place>) {
        let Some(round) = &mut self.round else { return };
        round.pages += 1;
        round.extents += extents;
        round.bytes += bytes;
        damaged.into_iter().for_each(|place| round.found.note(place));
        // A page number has room above it: a page covers 32 MiB, and volumes end at 64 TiB.
        round.next = (at.0, at.1.saturating_add(1));
    }

    /// A leaf of the root does not open, so it is not known which pages it has: what lies `behind` them is next.
    pub fn leaf_passed(&mut self, behind: (VolumeId, u32), damaged: Vec<Place>) {
        let Some(round) = &mut self.round else { return };
        damaged.into_iter().for_each(|place| round.found.note(place));
        round.next = behind;
    }

    /// A root that does not open: nothing below it can be read. Or what of it no page is found by.
    pub fn note(&mut self, place: Place) {
        if let Some(round) = &mut self.round {
            round.found.note(place);
        }
    }

    /// The copies of another store are read from here on: the one whose turn it was does not answer.
    pub fn read_copy(&mut self, copy: usize) {
        if let Some(round) = &mut self.round {
            round.mixed |= round.copy != copy && (round.pages > 0 || round.next != BEGIN);
            round.copy = copy;
        }
    }

    /// All pages of a target are done; the round ends after the last. `store`: whose copies it has read, of several.
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
                // Of other stores' copies this round says nothing, and where it changed over, of this one's not all.
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

    /// Damage that is known now (B2).
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
