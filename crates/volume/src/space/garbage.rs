//! Finds objects that no kept root names.

use super::given_up::Lapsed;
use crate::map::{Names, Objects};
use holdfast_control::set::{RetireOf, StoredKind, StoredObject};
use holdfast_types::{ObjectId, Term};
use std::collections::{BTreeMap, BTreeSet};

/// Objects of a dropped root that no kept root names. Memory is limited by the size of the dropped root, not by the
/// number of kept roots. Shared leaves are skipped: comparing a root with its successor costs the number of leaves, and
/// the content of the changed ones.
#[derive(Debug)]
pub struct Garbage {
    root: ObjectId,
    left: Names,
    /// Packs of its leaves. They are retired last, with the root: a leader that starts over must be able to read it.
    leaves: BTreeSet<ObjectId>,
}

impl Garbage {
    /// Everything that the dropped root in object `root` names.
    pub fn of(root: ObjectId, names: &Objects) -> Self {
        let leaves: BTreeSet<ObjectId> = names.leaf_packs().keys().copied().collect();
        Self { root, left: Names::of(names), leaves }
    }

    /// Removes what a kept root names. Must be called for every kept root.
    pub fn keep(&mut self, names: &Objects) {
        self.left.take_out(names);
        for object in names.leaf_packs().keys() {
            self.leaves.remove(object);
        }
    }

    /// Entries of at most `max` objects each, after the object `after`. The last entry contains the root and the packs
    /// of its leaves.
    pub fn entries(self, max: usize, after: Option<StoredObject>) -> Vec<(RetireOf, Vec<StoredObject>)> {
        let left = self.left.objects();
        let objects: Vec<StoredObject> = left.filter(|object| after.is_none_or(|after| *object > after)).collect();
        let max = max.max(1);
        let mut chunks: Vec<Vec<StoredObject>> = objects.chunks(max).map(<[StoredObject]>::to_vec).collect();
        // All in the entry that takes the root, unless that exceeds an entry's limit.
        let leaves: Vec<StoredObject> =
            self.leaves.into_iter().map(|object| StoredObject { kind: StoredKind::Pages, object }).collect();
        match chunks.last_mut() {
            Some(last) if last.len() + leaves.len() <= max => last.extend(leaves),
            _ => chunks.extend(leaves.chunks(max).map(<[StoredObject]>::to_vec)),
        }
        if chunks.is_empty() {
            chunks.push(Vec::new());
        }
        let count = chunks.len();
        let entry = |(at, chunk)| (RetireOf::Root { root: self.root, last: at + 1 == count }, chunk);
        chunks.into_iter().enumerate().map(entry).collect()
    }
}

/// Progress in each dropped root: it may name more objects than can be retired at once. Kept for one term. The next
/// leader starts over and retires and deletes some objects twice, which has no effect.
#[derive(Debug, Default)]
pub struct RetireProgress {
    term: Term,
    upto: BTreeMap<ObjectId, StoredObject>,
}

impl RetireProgress {
    /// Starts a round of `term` with these dropped roots; forgets all others.
    pub fn begin<'a>(&mut self, term: Term, dropped: impl Iterator<Item = &'a ObjectId>) {
        if std::mem::replace(&mut self.term, term) != term {
            self.upto.clear();
        }
        if !self.upto.is_empty() {
            let dropped: BTreeSet<ObjectId> = dropped.copied().collect();
            self.upto.retain(|root, _| dropped.contains(root));
        }
    }

    /// The last retired object of the root, in the order of [`Garbage::entries`]. All objects before it were retired
    /// too, or were named by a kept root, which has its own turn after it is dropped.
    pub fn after(&self, root: ObjectId) -> Option<StoredObject> {
        self.upto.get(&root).copied()
    }

    /// An entry of the root was committed and applied; `last` is its last object.
    pub fn retired(&mut self, root: ObjectId, last: Option<StoredObject>) {
        self.upto.extend(last.map(|last| (root, last)));
    }
}

/// Decides which listed objects are orphans.
#[derive(Debug)]
pub struct Orphans {
    term: Term,
    named: BTreeSet<ObjectId>,
    spared: BTreeSet<ObjectId>,
    given_up: Lapsed,
}

impl Orphans {
    /// `term`: this leader's, of which it has applied an entry: no checkpoint of an earlier term can end any more.
    /// `spared`: objects that the state knows otherwise (dropped roots, retired objects, segments of the checkpoint in
    /// progress). `given_up`: of its own term, by the same state as the retained roots passed to `keep` (SPACE-G4).
    pub fn new(term: Term, spared: impl Iterator<Item = ObjectId>, given_up: Lapsed) -> Self {
        Self { term, named: BTreeSet::new(), spared: spared.collect(), given_up }
    }

    /// Excludes what the kept root in `object` names. Must be called for every kept root.
    pub fn keep(&mut self, object: ObjectId, names: &Objects) {
        self.named.insert(object);
        self.named.extend(names.names().map(|named| named.object));
    }

    /// Whether an object found in the store is an orphan. An object of this term is one only if it was given up: a
    /// checkpoint in progress may name it. An object of a later term never is: it belongs to another leader.
    pub fn is_orphan(&self, object: ObjectId) -> bool {
        let over = object.term < self.term || self.given_up.objects.contains(&object);
        over && !self.named.contains(&object) && !self.spared.contains(&object)
    }

    /// Objects that were given up but that a retained root names: their checkpoint did end, unnoticed. Call it after
    /// `keep` for all retained roots.
    pub fn named_after_all(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.given_up.objects.intersection(&self.named).copied()
    }

    /// Entries of at most `max` objects each.
    pub fn entries(&self, objects: &[(StoredKind, ObjectId)], max: usize) -> Vec<(RetireOf, Vec<StoredObject>)> {
        let stored = |(kind, object): &(StoredKind, ObjectId)| StoredObject { kind: *kind, object: *object };
        let own = |one: &StoredObject| self.given_up.objects.contains(&one.object);
        let (given_up, older): (Vec<StoredObject>, Vec<StoredObject>) = objects.iter().map(stored).partition(own);
        let of = [(RetireOf::Orphans, older), (RetireOf::GivenUp { ended: self.given_up.ended }, given_up)];
        let chunks = |(of, all): &(RetireOf, Vec<StoredObject>)| -> Vec<(RetireOf, Vec<StoredObject>)> {
            all.chunks(max.max(1)).map(|chunk| (*of, chunk.to_vec())).collect()
        };
        of.iter().flat_map(chunks).collect()
    }
}
