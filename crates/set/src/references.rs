//! What the set's state names in the store, and what a store shows of it: for who deletes what nothing names, and for who copies what something does.
//!
//! Roots are read one after the other, and listings piece by piece: neither is in memory as a whole.

use crate::mapping::{MapError, Mapping, SetKey};
use bytes::Bytes;
use holdfast_control::set::{RootRef, StoredKind};
use holdfast_store::{ObjectStore, StoreError, keys};
use holdfast_types::{ObjectId, SetId};
use holdfast_volume::map::{Objects, PackTable, Root, open_leaf, open_page, open_top, read_any_pack};
use holdfast_volume::segment::{open_extent, read_table};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of what kept roots name, as it is in memory, that are remembered between turns: of some 80 TiB of random extents together.
const ROOTS_BYTES_MAX: u64 = 32 << 20;
/// Pages of a listing, each of some 1000 keys, of one kind of object at most.
pub const LIST_PAGES_MAX: usize = 10_000;

/// Kinds of objects, as the state and as keys have them.
pub const KINDS: [(StoredKind, keys::Kind); 3] = [
    (StoredKind::Root, keys::Kind::Root),
    (StoredKind::Pages, keys::Kind::MapPack),
    (StoredKind::Segment, keys::Kind::Segment),
];

/// The key's part for a kind of object.
pub fn key_kind(kind: StoredKind) -> keys::Kind {
    match kind {
        StoredKind::Root => keys::Kind::Root,
        StoredKind::Pages => keys::Kind::MapPack,
        StoredKind::Segment => keys::Kind::Segment,
    }
}

/// What kept roots name, as they are read. Their pages nobody asks for here: a root was compared with all of them when it was read.
pub struct Shelf {
    mapping: Arc<Mapping>,
    roots: BTreeMap<ObjectId, (u64, Arc<Objects>)>,
}

impl Shelf {
    /// An empty one.
    pub fn new(mapping: Arc<Mapping>) -> Self {
        Self { mapping, roots: BTreeMap::new() }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.roots.clear();
    }

    /// Forgets those that are not kept any more.
    pub fn retain(&mut self, kept: &[RootRef]) {
        self.roots.retain(|known, _| kept.iter().any(|root| root.object == *known));
    }

    /// What a kept root names. As many as there is room for are remembered.
    ///
    /// # Errors
    /// [`MapError`].
    pub async fn root(&mut self, at: RootRef) -> Result<Arc<Objects>, MapError> {
        if let Some(objects) = self.known(at) {
            return Ok(objects);
        }
        // Of one that is in memory in part all of that is.
        if let Some(objects) = self.mapping.objects_here(at) {
            return Ok(objects);
        }
        let root = self.mapping.root_once(at).await?;
        Ok(self.remember(at, &root))
    }

    /// What a kept root names, if it is remembered.
    pub fn known(&self, at: RootRef) -> Option<Arc<Objects>> {
        self.roots.get(&at.object).map(|(_, objects)| objects.clone())
    }

    /// What this root names; remembered, if there is room. One that is in memory all the same takes none: the current one would be the first, after each checkpoint.
    pub fn remember(&mut self, at: RootRef, root: &Root) -> Arc<Objects> {
        let objects = Arc::new(root.objects().clone());
        if !self.mapping.has_root(at) {
            let known: u64 = self.roots.values().map(|(bytes, _)| bytes).sum();
            let bytes = objects.memory_bytes();
            if known + bytes <= ROOTS_BYTES_MAX {
                self.roots.insert(at.object, (bytes, objects.clone()));
            }
        }
        objects
    }
}

/// The objects of one kind that a root names, itself included, in their order, with their lengths (0: not known).
pub fn named(kind: StoredKind, at: RootRef, root: &Objects) -> Vec<(ObjectId, u64)> {
    match kind {
        StoredKind::Root => vec![(at.object, at.bytes)],
        StoredKind::Pages => root.packs().into_iter().collect(),
        StoredKind::Segment => root.segments().map(|(object, usage)| (object, usage.stored_bytes)).collect(),
    }
}

/// The length of one object as [`named`] has it, without going through the others; `None` where the root does not name it.
pub fn length_of(kind: StoredKind, object: ObjectId, at: RootRef, root: &Objects) -> Option<u64> {
    match kind {
        StoredKind::Root => (object == at.object).then_some(at.bytes),
        StoredKind::Pages => root.pack_length(object),
        StoredKind::Segment => root.segment(object).map(|usage| usage.stored_bytes),
    }
}

/// Part of what a store shows of one kind of object.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Objects and their lengths.
    pub shown: BTreeMap<ObjectId, u64>,
    /// Where the next piece begins; `None` at the end.
    pub more: Option<String>,
}

impl Piece {
    /// Lists from `after` on, until there are `most` objects.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn list(
        store: &dyn ObjectStore,
        set: SetId,
        kind: keys::Kind,
        after: Option<&str>,
        most: usize,
    ) -> Result<Self, StoreError> {
        let prefix = keys::objects(set, kind);
        let mut piece = Self { shown: BTreeMap::new(), more: after.map(str::to_owned) };
        for _ in 0..LIST_PAGES_MAX {
            let page = store.list(&prefix, piece.more.as_deref()).await?;
            let ours = |key: &str| keys::parse(key).filter(|(of, found, _)| *of == set && *found == kind);
            let objects = page.objects.iter();
            piece.shown.extend(objects.filter_map(|listed| ours(&listed.key).map(|(_, _, id)| (id, listed.bytes))));
            piece.more = page.more;
            // Where a piece ends must be an object, so that one can say on which side of it another is.
            let ends = piece.more.as_deref().is_none_or(|more| piece.shown.len() >= most && ours(more).is_some());
            if ends {
                break;
            }
        }
        Ok(piece)
    }

    /// Those of `named` that lie between `after` and this piece's end and are not shown, or with another length; `true` for those.
    pub fn lacking(&self, after: Option<&str>, named: &[(ObjectId, u64)]) -> Vec<(ObjectId, u64, bool)> {
        let object = |key: Option<&str>| key.and_then(keys::parse).map(|(_, _, object)| object);
        let (first, last) = (object(after), object(self.more.as_deref()));
        let begin = first.map_or(0, |first| named.partition_point(|(object, _)| *object <= first));
        let end = last.map_or(named.len(), |last| named.partition_point(|(object, _)| *object <= last));
        let lacks = |(object, bytes): &(ObjectId, u64)| match self.shown.get(object) {
            None => Some((*object, *bytes, false)),
            Some(found) if *bytes != 0 && found != bytes => Some((*object, *bytes, true)),
            Some(_) => None,
        };
        named[begin..end.max(begin)].iter().filter_map(lacks).collect()
    }
}

/// Opens a whole object, every part of it (R9).
///
/// # Errors
/// Why it is not what was written.
pub fn check_object(key: &SetKey, object_key: &str, bytes: &Bytes) -> Result<(), String> {
    let parsed = keys::parse(object_key).filter(|(set, _, _)| *set == key.set);
    let Some((_, kind, object)) = parsed else { return Err(format!("found {object_key}, expected a key of this set")) };
    let opener = key.opener(object);
    let part = |range: Range<u64>| {
        let range =
            usize::try_from(range.start).unwrap_or(usize::MAX)..usize::try_from(range.end).unwrap_or(usize::MAX);
        bytes.get(range).ok_or_else(|| "it ends before its last part does".to_string())
    };
    match kind {
        keys::Kind::Root => open_top(&opener, bytes).map(|_| ()).map_err(|e| e.to_string()),
        keys::Kind::MapPack => match read_any_pack(&opener, bytes).map_err(|e| e.to_string())? {
            PackTable::Pages(pages) => pages.iter().try_for_each(|entry| {
                let sealed = part(entry.place.range())?;
                let page = open_page(&opener, &entry.place, entry.volume, entry.page, sealed);
                page.map(|_| ()).map_err(|e| e.to_string())
            }),
            PackTable::Leaves(leaves) => leaves.iter().try_for_each(|leaf| {
                let opened = open_leaf(&opener, leaf, part(leaf.at.range())?);
                opened.map(|_| ()).map_err(|e| e.to_string())
            }),
        },
        keys::Kind::Segment => {
            for entry in read_table(&opener, bytes).map_err(|e| e.to_string())? {
                let sealed = part(entry.place.range())?;
                open_extent(&opener, &entry.place, entry.volume, entry.lba, sealed).map_err(|e| e.to_string())?;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests;
