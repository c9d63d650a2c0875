//! List of the objects that are under an older data key than their root, while a set's data key is changed (ADR 0023).
//!
//! ```text
//!   root made for key 2:   object not listed ─▶ key 2      object listed ─▶ the older key of its entry
//! ```
//! UNDER-U1  A named object that the root does not list is under the root's own key; a listed one is under a lower key.
//!     So the root alone tells, authenticated, which keys it needs.
//! UNDER-U2  The key of a root is never lower than that of the root that it was built on.
//! UNDER-U3  A root's leaves are under its own key: a leaf under an older key is written again. So an object that a
//!     leaf does not list is under the root's key.
//!
//! Encoded at the end of a root of version 4, only if something is listed (in a root in leaves, each leaf has its own
//! list, see `leaf`):
//!
//! ```text
//!   count, then each, sorted:  id (steps)  key
//! ```

use super::places::read_next_object;
use super::{NO_OBJECT, OBJECT_WIRE_BYTES_MIN, put_object};
use crate::wire::{self, Reader, WireError};
use holdfast_types::ObjectId;
use imbl::OrdMap;
use std::collections::BTreeSet;

/// The data keys of a root and its objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Under {
    /// The root's own key; 0 if none was set yet.
    pub(super) key: u32,
    /// Listed objects, with their keys.
    pub(super) older: OrdMap<ObjectId, u32>,
}

impl Under {
    pub(super) fn lists_any(&self) -> bool {
        !self.older.is_empty()
    }

    /// The key of a listed object.
    pub(super) fn older_of(&self, object: ObjectId) -> Option<u32> {
        self.older.get(&object).copied()
    }

    /// Lists an object.
    pub(super) fn list(&mut self, object: ObjectId, key: u32) {
        self.older.insert(object, key);
    }

    /// Every key in the list.
    pub(super) fn keys(&self) -> BTreeSet<u32> {
        self.older.values().copied().collect()
    }

    /// Approximate memory of the list in bytes. After a key change the list holds every object of the root.
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
