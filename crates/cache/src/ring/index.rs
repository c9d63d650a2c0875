//! Which records are in the ring, and where. Pure: nothing is read or written here.
//!
//! Regions are filled one after the other, round and round. The region that is filled next loses its records before the
//! first byte of it is written. Each filling of a region has a number of its own, its round. A reader that found a
//! record notes the round, and compares it after it has read: if it is another one, the bytes may be of other records.

use super::table::{self, Place, Shape, Table, record_bytes};
use crate::key::BlockKey;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Parts of the index. Each grows alone: while one is copied to a larger place, readers wait.
const SHARDS: usize = 64;

/// A record that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// Where it is.
    pub(crate) place: Place,
    /// It is in the older half of the disk.
    pub(crate) older: bool,
    round: u64,
}

#[derive(Clone, Debug, Default)]
struct Region {
    /// 0: never filled.
    round: u64,
    /// Of the records that were put there.
    marks: Vec<u64>,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Index {
    shape: Shape,
    shards: Vec<HashMap<u64, Place>>,
    regions: Vec<Region>,
    /// The region that is being filled …
    filling: u32,
    /// … where its next record begins, how many it has room for yet, and those that were written.
    end: usize,
    left: usize,
    names: Vec<(BlockKey, Place)>,
    round: u64,
}

/// Stands for a key in the index. The keys of one object have different marks. If keys of two objects have the same
/// one, the later record replaces the earlier, and a reader of that finds another key and fetches.
pub(crate) fn mark(key: &BlockKey) -> u64 {
    let random = key.object.random;
    let within = u64::from(key.number) << 32 | u64::from(key.block);
    random as u64 ^ (random >> 64) as u64 ^ within.wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn shard_of(mark: u64) -> usize {
    (mark >> 32) as usize % SHARDS
}

impl Index {
    /// The index of these tables, which come in the order of their rounds. The region behind the latest is filled next.
    /// They are taken one by one: all of them are several times as large as the index.
    pub(crate) fn new(shape: Shape, tables: impl IntoIterator<Item = Table>) -> Self {
        let mut index = Self {
            shape,
            shards: vec![HashMap::new(); SHARDS],
            regions: vec![Region::default(); shape.regions as usize],
            filling: shape.regions - 1,
            end: shape.region_bytes as usize,
            left: 0,
            names: Vec::new(),
            round: 0,
        };
        for Table { region, round, names } in tables {
            // Not in order: the file was changed while it was read. What is not taken is fetched.
            if round <= index.round {
                continue;
            }
            (index.filling, index.round) = (region, round);
            index.regions[region as usize].round = round;
            for (key, place) in names {
                index.insert(&key, place);
            }
        }
        index
    }

    /// Where the key's record is. It may be another key's with the same mark.
    pub(crate) fn find(&self, key: &BlockKey) -> Option<Spot> {
        let mark = mark(key);
        let place = *self.shards[shard_of(mark)].get(&mark)?;
        let round = self.regions[place.region as usize].round;
        let older = self.round - round >= u64::from(self.shape.regions / 2);
        Some(Spot { place, older, round })
    }

    /// Whether the region still has what it had when the record was found.
    pub(crate) fn is_still(&self, spot: &Spot) -> bool {
        self.regions[spot.place.region as usize].round == spot.round
    }

    /// Whether the region that is being filled has room for a record with `len` sealed bytes.
    pub(crate) fn fits(&self, len: usize) -> bool {
        self.left > 0 && self.end + record_bytes(len) <= self.shape.region_bytes as usize
    }

    /// Takes room for a record that fits. Readers do not find it before [`Index::add`].
    pub(crate) fn take(&mut self, len: usize) -> Place {
        let place = Place { region: self.filling, offset: self.end as u32, len: len as u32 };
        self.end += record_bytes(len);
        self.left -= 1;
        place
    }

    /// The record was written.
    pub(crate) fn add(&mut self, key: BlockKey, place: Place) {
        self.insert(&key, place);
        self.names.push((key, place));
    }

    fn insert(&mut self, key: &BlockKey, place: Place) {
        let mark = mark(key);
        self.shards[shard_of(mark)].insert(mark, place);
        self.regions[place.region as usize].marks.push(mark);
    }

    /// Drops a key's record.
    pub(crate) fn forget(&mut self, key: &BlockKey) {
        let mark = mark(key);
        self.shards[shard_of(mark)].remove(&mark);
    }

    /// Drops a key's record, unless there is another one meanwhile.
    pub(crate) fn forget_at(&mut self, key: &BlockKey, place: Place) {
        self.drop_if(mark(key), |found| *found == place);
    }

    fn drop_if(&mut self, mark: u64, goes: impl FnOnce(&Place) -> bool) {
        if let Entry::Occupied(entry) = self.shards[shard_of(mark)].entry(mark)
            && goes(entry.get())
        {
            entry.remove();
        }
    }

    /// The region that is filled next, from now on. What it had is dropped.
    pub(crate) fn turn(&mut self) -> u32 {
        // A list that grew has room for twice as many.
        self.regions[self.filling as usize].marks.shrink_to_fit();
        let next = (self.filling + 1) % self.shape.regions;
        self.round += 1;
        self.regions[next as usize].round = self.round;
        for mark in std::mem::take(&mut self.regions[next as usize].marks) {
            self.drop_if(mark, |place| place.region == next);
        }
        (self.filling, self.end, self.left) = (next, self.shape.records_at(), self.shape.records_max());
        self.names.clear();
        next
    }

    /// The table of the region that is being filled, as bytes. `None` if it has no records.
    pub(crate) fn table(&self) -> Option<(u32, Vec<u8>)> {
        (!self.names.is_empty()).then(|| (self.filling, table::encode(self.round, &self.names)))
    }

    /// Number of records.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.shards.iter().map(HashMap::len).sum()
    }
}
