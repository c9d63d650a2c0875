//! Data keys of a root and of the objects that it names, while a set's data key is changed: see `under`.

use super::objects::Objects;
use super::root::Root;
use crate::wire::WireError;
use holdfast_types::{ObjectId, SECTOR_BYTES};
use std::collections::{BTreeMap, BTreeSet};

/// The amount of a root under one data key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyUse {
    /// Segments and page packs.
    pub objects: u64,
    /// Their bytes in the store, as far as they are known.
    pub stored_bytes: u64,
    /// Bytes of them that volumes still use, before compression: they are still to be written again.
    pub live_bytes: u64,
}

impl Root {
    /// The next root is sealed under `key_id`: if that differs, all objects named so far are now under older keys
    /// (UNDER-U1).
    ///
    /// # Panics
    /// UNDER-U2: when the key is lower than the present one.
    pub fn seal_under(&mut self, key_id: u32) {
        self.objects.seal_under(key_id);
    }
}

impl Objects {
    /// The data key that the root is or will be sealed under; 0 if none was set yet.
    pub fn key_id(&self) -> u32 {
        self.under.key
    }

    /// Sets the key that the root was sealed under.
    ///
    /// # Errors
    /// [`WireError::Range`] where it lists an object under a key that is not older (UNDER-U1).
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
        assert!(
            before <= key_id,
            "UNDER-U2: found a root under data key {key_id}, expected at least {before} as of the root before"
        );
        if before == 0 || before == key_id {
            return;
        }
        let named: Vec<ObjectId> = self.names().map(|named| named.object).collect();
        for object in named {
            self.under.older.entry(object).or_insert(before);
        }
    }

    /// Removes objects from the list that are no longer named.
    pub(super) fn forget_keys_of_others(&mut self) {
        if self.under.lists_any() {
            let named: BTreeSet<ObjectId> = self.names().map(|named| named.object).collect();
            let left = self.under.older.iter().filter(|(object, _)| named.contains(*object));
            self.under.older = left.map(|(object, key)| (*object, *key)).collect();
        }
    }

    /// The list without the packs of the root's own leaves, which are not encoded.
    pub(super) fn older_without_leaves(&self) -> BTreeMap<ObjectId, u32> {
        let left = self.under.older.iter().filter(|(object, _)| !self.leaf_packs.contains_key(*object));
        left.map(|(object, key)| (*object, *key)).collect()
    }

    /// The data key of an object that the root names (UNDER-U1).
    pub fn key_of(&self, object: ObjectId) -> u32 {
        self.under.older.get(&object).copied().unwrap_or(self.under.key)
    }

    /// Whether the object is under an older key than the root.
    pub fn is_under_older(&self, object: ObjectId) -> bool {
        self.under.older.contains_key(&object)
    }

    /// Every data key of the root and of the objects that it names.
    pub fn keys_needed(&self) -> BTreeSet<u32> {
        self.under.older.values().copied().chain([self.under.key]).collect()
    }

    /// The amount under each data key; the root itself does not count.
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
