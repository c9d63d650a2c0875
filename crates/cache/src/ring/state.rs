//! What waits to be written, and what the writer does next. Pure: nothing is read or written here.
//!
//! Data that waits is found by readers, until it is written and the index has it. If it comes faster than the disk
//! takes it, it is dropped.

use super::index::{Index, Spot, mark};
use super::table::{Place, Shape, Table, record_bytes};
use crate::key::BlockKey;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};

/// Maximum size of what waits, in bytes, with [`WAITING_OVERHEAD_BYTES`] for each.
pub(crate) const QUEUE_BYTES: usize = 8 << 20;
const WAITING_OVERHEAD_BYTES: usize = 256;
/// Maximum length of the queue. It may have places of what was forgotten or replaced.
const QUEUE_PLACES: usize = 2 * QUEUE_BYTES / WAITING_OVERHEAD_BYTES;

/// Records are written together up to this size in bytes, and up to this number: two pieces each, and the kernel takes
/// 1024 at a time.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_RECORDS: usize = 256;

/// After this many bytes the table is written, so that a restart without an orderly end loses no more, and the file is
/// synced. Nobody relies on the sync. Without it the kernel would gather dirty pages for seconds and then write all of
/// them beside the journal's syncs; and an error of the disk would be noticed by nobody.
const SAVE_BYTES: u64 = 4 << 20;

/// What the writer does.
#[derive(Debug)]
pub(crate) enum Job {
    /// Write the table of a region.
    Save {
        /// The region.
        region: u32,
        /// Its table.
        table: Vec<u8>,
        /// Sync the file behind it.
        sync: bool,
    },
    /// Take away the table of a region, which is filled from now on.
    Begin {
        /// The region.
        region: u32,
    },
    /// Write these records. They lie one behind the other.
    Write(Vec<Taken>),
}

/// A record that has a place.
#[derive(Debug)]
pub(crate) struct Taken {
    number: u64,
    /// Its key.
    pub(crate) key: BlockKey,
    /// Its sealed bytes.
    pub(crate) sealed: Bytes,
    /// Its place.
    pub(crate) place: Place,
}

/// Where a reader finds a key's bytes.
#[derive(Clone, Debug)]
pub(crate) enum At {
    /// They wait to be written.
    Waiting(Bytes),
    /// In the file.
    Written(Spot),
}

#[derive(Debug)]
struct Waiting {
    number: u64,
    key: BlockKey,
    sealed: Bytes,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct State {
    shape: Shape,
    index: Index,
    /// By mark.
    waiting: HashMap<u64, Waiting>,
    waiting_bytes: usize,
    /// Numbers, which ascend, and marks. One whose number is not in `waiting` was forgotten or replaced.
    queue: VecDeque<(u64, u64)>,
    /// Number of what was put last …
    last: u64,
    /// … and up to which nothing waits any more.
    done: u64,
    /// There is a writer.
    writing: bool,
    /// The disk has failed.
    off: bool,
    /// Bytes that were written since the last table …
    unsaved: u64,
    /// … and since the last sync.
    unsynced: u64,
}

impl State {
    /// With the records of these tables, as [`Index::new`] takes them.
    pub(crate) fn new(shape: Shape, tables: impl IntoIterator<Item = Table>) -> Self {
        Self {
            shape,
            index: Index::new(shape, tables),
            waiting: HashMap::new(),
            waiting_bytes: 0,
            queue: VecDeque::new(),
            last: 0,
            done: 0,
            writing: false,
            off: false,
            unsaved: 0,
            unsynced: 0,
        }
    }

    /// Where the key's bytes are.
    pub(crate) fn find(&self, key: &BlockKey) -> Option<At> {
        match self.waiting.get(&mark(key)) {
            Some(waiting) if waiting.key == *key => Some(At::Waiting(waiting.sealed.clone())),
            _ => self.index.find(key).map(At::Written),
        }
    }

    /// Whether the key's bytes are probably here.
    pub(crate) fn has(&self, key: &BlockKey) -> bool {
        self.waiting.contains_key(&mark(key)) || self.index.find(key).is_some()
    }

    /// As [`Index::is_still`].
    pub(crate) fn is_still(&self, spot: &Spot) -> bool {
        self.index.is_still(spot)
    }

    /// Lets data wait to be written, or drops it if too much waits. Returns whether the caller has to start the writer.
    pub(crate) fn put(&mut self, key: BlockKey, sealed: Bytes) -> bool {
        let cost = sealed.len() + WAITING_OVERHEAD_BYTES;
        let full = self.waiting_bytes + cost > QUEUE_BYTES || self.queue.len() >= QUEUE_PLACES;
        if self.off || full || !self.shape.holds(sealed.len()) {
            return false;
        }
        let mark = mark(&key);
        self.stop_waiting(mark);
        self.last += 1;
        self.waiting_bytes += cost;
        self.queue.push_back((self.last, mark));
        self.waiting.insert(mark, Waiting { number: self.last, key, sealed });
        !std::mem::replace(&mut self.writing, true)
    }

    fn stop_waiting(&mut self, mark: u64) {
        if let Some(gone) = self.waiting.remove(&mark) {
            self.waiting_bytes -= gone.sealed.len() + WAITING_OVERHEAD_BYTES;
        }
    }

    /// Drops the key's bytes.
    pub(crate) fn forget(&mut self, key: &BlockKey) {
        self.stop_waiting(mark(key));
        self.index.forget(key);
    }

    /// As [`Index::forget_at`].
    pub(crate) fn forget_at(&mut self, key: &BlockKey, spot: &Spot) {
        self.index.forget_at(key, spot.place);
    }

    /// Length of what is written next.
    fn next_len(&mut self) -> Option<usize> {
        while let Some((number, mark)) = self.queue.front() {
            match self.waiting.get(mark) {
                Some(waiting) if waiting.number == *number => return Some(waiting.sealed.len()),
                _ => {
                    self.queue.pop_front();
                }
            }
        }
        None
    }

    /// What the writer does next. `None`: nothing, and the writer ends.
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        let next = self.next_len();
        let full = next.is_some_and(|len| !self.index.fits(len));
        if full || self.unsaved >= SAVE_BYTES {
            let save = self.save();
            if save.is_some() {
                return save;
            }
        }
        if next.is_none() {
            self.done = self.last;
            self.writing = false;
            return None;
        }
        if full {
            return Some(Job::Begin { region: self.index.turn() });
        }
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_RECORDS
            && bytes < BATCH_BYTES
            && let Some(len) = self.next_len()
            && self.index.fits(len)
            && let Some((number, mark)) = self.queue.pop_front()
            && let Some(waiting) = self.waiting.get(&mark)
        {
            let place = self.index.take(len);
            bytes += record_bytes(len);
            batch.push(Taken { number, key: waiting.key, sealed: waiting.sealed.clone(), place });
        }
        Some(Job::Write(batch))
    }

    /// The table of the region that is being filled, if it has records that were not saved.
    pub(crate) fn save(&mut self) -> Option<Job> {
        if std::mem::take(&mut self.unsaved) == 0 {
            return None;
        }
        let sync = self.unsynced >= SAVE_BYTES;
        if sync {
            self.unsynced = 0;
        }
        self.index.table().map(|(region, table)| Job::Save { region, table, sync })
    }

    /// The records were written: readers find them in the file.
    pub(crate) fn written(&mut self, batch: Vec<Taken>) {
        if self.off {
            return;
        }
        for Taken { number, key, sealed, place } in batch {
            self.done = number;
            let bytes = record_bytes(sealed.len()) as u64;
            (self.unsaved, self.unsynced) = (self.unsaved + bytes, self.unsynced + bytes);
            let mark = mark(&key);
            // Unless it was forgotten or replaced meanwhile.
            if self.waiting.get(&mark).is_some_and(|waiting| waiting.number == number) {
                self.stop_waiting(mark);
                self.index.add(key, place);
            }
        }
    }

    /// The number of what was put last.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// Nothing up to this number waits to be written any more.
    pub(crate) fn done(&self) -> u64 {
        self.done
    }

    /// Whether the disk is in use.
    pub(crate) fn is_on(&self) -> bool {
        !self.off
    }

    /// Drops everything, for good. Returns whether the disk was in use until now.
    pub(crate) fn turn_off(&mut self) -> bool {
        let was_on = self.is_on();
        *self = Self { last: self.last, done: self.last, off: true, ..Self::new(self.shape, Vec::new()) };
        was_on
    }

    /// Number of records in the file.
    #[cfg(test)]
    pub(crate) fn records(&self) -> usize {
        self.index.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::{MemberId, ObjectId, Term};

    const SHAPE: Shape = Shape { region_bytes: 64 << 10, regions: 4 };

    fn key(number: u32) -> BlockKey {
        BlockKey::first(ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: 77 }, number)
    }

    /// The keys that are written, until nothing waits.
    fn write_out(state: &mut State) -> Vec<u32> {
        let mut keys = Vec::new();
        while let Some(job) = state.next_job() {
            if let Job::Write(batch) = job {
                keys.extend(batch.iter().map(|taken| taken.key.number));
                state.written(batch);
            }
        }
        keys
    }

    #[test]
    fn what_waits_is_bounded_in_bytes_and_in_number() {
        for len in [0, 1, 1000, 40_000] {
            let (mut state, sealed) = (State::new(SHAPE, Vec::new()), Bytes::from(vec![0; len]));
            for number in 0..100_000 {
                state.put(key(number), sealed.clone());
                assert!(state.waiting_bytes <= QUEUE_BYTES);
            }
            assert!(state.waiting.len() * (len + WAITING_OVERHEAD_BYTES) > QUEUE_BYTES - 50_000);
            // The same key again and again, forgotten each time.
            for _ in 0..100_000 {
                state.forget(&key(5));
                state.put(key(5), sealed.clone());
            }
            assert!(state.queue.len() <= QUEUE_PLACES);
            write_out(&mut state);
            assert_eq!((state.waiting_bytes, state.waiting.len(), state.queue.len()), (0, 0, 0));
            assert_eq!(state.done(), state.last());
            assert!(state.records() <= SHAPE.records_max() * SHAPE.regions as usize);
        }
    }

    #[test]
    fn what_was_replaced_or_forgotten_is_not_written() {
        let mut state = State::new(SHAPE, Vec::new());
        let starts: Vec<bool> = [1, 2, 1, 3].map(|number| state.put(key(number), Bytes::from_static(b"x"))).into();
        assert_eq!(starts, [true, false, false, false], "one writer");
        state.forget(&key(2));
        assert!(!state.has(&key(2)) && state.has(&key(1)));
        assert_eq!(write_out(&mut state), [1, 3]);
        assert!(state.put(key(4), Bytes::from_static(b"x")), "the writer had ended");
        assert!(matches!(state.next_job(), Some(Job::Write(_))), "the region has room");
    }

    #[test]
    fn what_is_forgotten_while_it_is_written_stays_forgotten() {
        let mut state = State::new(SHAPE, Vec::new());
        state.put(key(1), Bytes::from_static(b"damaged"));
        assert!(matches!(state.next_job(), Some(Job::Begin { region: 0 })));
        let Some(Job::Write(batch)) = state.next_job() else { panic!("nothing to write") };
        state.forget(&key(1));
        state.put(key(1), Bytes::from_static(b"good"));
        state.written(batch);
        assert!(matches!(state.find(&key(1)), Some(At::Waiting(good)) if good == "good"));
        assert_eq!(write_out(&mut state), [1]);
        assert!(matches!(state.find(&key(1)), Some(At::Written(spot)) if spot.place.len == 4));
    }

    #[test]
    fn a_disk_that_was_turned_off_holds_nothing_and_nobody_waits_for_it() {
        let mut state = State::new(SHAPE, Vec::new());
        state.put(key(1), Bytes::from_static(b"x"));
        write_out(&mut state);
        state.put(key(2), Bytes::from_static(b"x"));
        let Some(Job::Write(batch)) = state.next_job() else { panic!("nothing to write") };
        assert!(state.turn_off() && !state.turn_off());
        state.written(batch);
        assert!(!state.put(key(3), Bytes::from_static(b"x")));
        assert!([1, 2, 3].iter().all(|number| !state.has(&key(*number))));
        assert_eq!((state.done(), state.waiting_bytes), (state.last(), 0));
        assert!(state.next_job().is_none());
    }
}
