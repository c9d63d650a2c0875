//! Which data key the objects that a root names are sealed under, while a set's data key is changed (ADR 0023).
//!
//! ```text
//!   root made for key 2:   not listed ─▶ key 2      listed ─▶ the older key that stands there
//! ```
//! UNDER-U1  An object that a root names and does not list is under the root's own key; a listed one under a lower one. So which keys a root needs is known from
//!     the root alone, authentically, and one that lists nothing needs its own.
//! UNDER-U2  The key of a root is never lower than that of the root that it was built on.
//! UNDER-U3  A root's leaves are under its own key: one that was written under an older key is written anew. So what a leaf does not list is under the root's.
//!
//! Encoded at the end of a root of version 4, only where something is listed (of a root in leaves each leaf lists what is its own, see `leaf`):
//!
//! ```text
//!   count, then each, sorted:  id (steps)  key
//! ```

use super::objects::Objects;
use super::root::read_next_object;
use super::{NO_OBJECT, OBJECT_WIRE_BYTES_MIN, Root, put_object};
use crate::wire::{self, Reader, WireError};
use holdfast_types::{ObjectId, SECTOR_BYTES};
use imbl::OrdMap;
use std::collections::{BTreeMap, BTreeSet};

/// The keys of what a root names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Under {
    /// The root's own; 0 where nothing was said of it yet.
    key: u32,
    older: OrdMap<ObjectId, u32>,
}

/// How much of a root is under one data key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyUse {
    /// Segments and page packs.
    pub objects: u64,
    /// Their bytes in the store, as far as they are known.
    pub stored_bytes: u64,
    /// Bytes of them that volumes still show, before compression: what is still to be written anew.
    pub live_bytes: u64,
}

impl Under {
    pub(super) fn lists_any(&self) -> bool {
        !self.older.is_empty()
    }

    /// The key of an object that is listed.
    pub(super) fn older_of(&self, object: ObjectId) -> Option<u32> {
        self.older.get(&object).copied()
    }

    /// Lists an object.
    pub(super) fn list(&mut self, object: ObjectId, key: u32) {
        self.older.insert(object, key);
    }

    /// Every key that something listed is under.
    pub(super) fn keys(&self) -> BTreeSet<u32> {
        self.older.values().copied().collect()
    }

    /// About how much memory what is listed takes in bytes: after a change of the key that is everything which the root names.
    pub(super) fn memory_bytes(&self) -> u64 {
        // Tree nodes are about two thirds full.
        (self.older.len() * size_of::<(ObjectId, u32)>() * 3 / 2) as u64
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        wire::put(out, self.older.len() as u64);
        let mut before = NO_OBJECT;
        for (object, key) in &self.older {
            put_object(out, before, *object);
            wire::put(out, (*key).into());
            before = *object;
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let count = reader.count("objects under older keys", OBJECT_WIRE_BYTES_MIN + 1, u64::MAX)?;
        let (mut older, mut before) = (OrdMap::new(), NO_OBJECT);
        for place in 0..count {
            before = read_next_object(reader, before, place)?;
            older.insert(before, reader.number("data key of an object", 1, u32::MAX.into())? as u32);
        }
        Ok(Self { key: 0, older })
    }
}

impl Root {
    /// What is built on it is sealed under `key_id`: everything that it names by now is under older keys, where that is another one (UNDER-U1).
    ///
    /// # Panics
    /// UNDER-U2: when the key is a lower one.
    pub fn seal_under(&mut self, key_id: u32) {
        self.objects.seal_under(key_id);
    }
}

impl Objects {
    /// The data key that the root is, or is to be, sealed under; 0 where nothing was said of it yet.
    pub fn key_id(&self) -> u32 {
        self.under.key
    }

    /// It was found sealed under this key.
    ///
    /// # Errors
    /// [`WireError::Range`] where it lists an object under a key that is no older one (UNDER-U1).
    pub(super) fn opened_under(&mut self, key_id: u32) -> Result<(), WireError> {
        if let Some(found) = self.under.older.values().copied().find(|older| *older >= key_id) {
            let most = u64::from(key_id.saturating_sub(1));
            return Err(WireError::Range {
                field: "data key of an object",
                at: 0,
                found: found.into(),
                least: 1,
                most,
            });
        }
        self.under.key = key_id;
        Ok(())
    }

    /// As [`Root::seal_under`].
    fn seal_under(&mut self, key_id: u32) {
        let before = std::mem::replace(&mut self.under.key, key_id);
        assert!(before <= key_id, "UNDER-U2: a root under data key {key_id} on one under {before}");
        if before == 0 || before == key_id {
            return;
        }
        let named: Vec<ObjectId> = self.names().map(|named| named.object).collect();
        for object in named {
            self.under.older.entry(object).or_insert(before);
        }
    }

    /// Of what is named no more nothing need be known.
    pub(super) fn forget_keys_of_others(&mut self) {
        if self.under.lists_any() {
            let named: BTreeSet<ObjectId> = self.names().map(|named| named.object).collect();
            let left = self.under.older.iter().filter(|(object, _)| named.contains(*object));
            self.under.older = left.map(|(object, key)| (*object, *key)).collect();
        }
    }

    /// What is listed but for its own leaves' packs, of which nothing is written.
    pub(super) fn older_without_leaves(&self) -> BTreeMap<ObjectId, u32> {
        let left = self.under.older.iter().filter(|(object, _)| !self.leaf_packs.contains_key(*object));
        left.map(|(object, key)| (*object, *key)).collect()
    }

    /// The data key that an object which the root names is under (UNDER-U1).
    pub fn key_of(&self, object: ObjectId) -> u32 {
        self.under.older.get(&object).copied().unwrap_or(self.under.key)
    }

    /// Whether the object is under an older key than the root.
    pub fn is_under_older(&self, object: ObjectId) -> bool {
        self.under.older.contains_key(&object)
    }

    /// Every data key that the root and what it names are under.
    pub fn keys_needed(&self) -> BTreeSet<u32> {
        self.under.older.values().copied().chain([self.under.key]).collect()
    }

    /// How much of it is under which data key; the root itself counts for nothing.
    pub fn key_uses(&self) -> BTreeMap<u32, KeyUse> {
        let mut uses: BTreeMap<u32, KeyUse> = BTreeMap::new();
        for (object, usage) in self.segments() {
            let sum = uses.entry(self.key_of(object)).or_default();
            sum.objects += 1;
            sum.stored_bytes += usage.stored_bytes;
            sum.live_bytes += usage.live_sectors.0 * SECTOR_BYTES;
        }
        for (object, stored_bytes) in self.packs() {
            let sum = uses.entry(self.key_of(object)).or_default();
            sum.objects += 1;
            sum.stored_bytes += stored_bytes;
        }
        uses
    }
}

#[cfg(test)]
mod tests;
