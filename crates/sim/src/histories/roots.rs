//! Roots that a history has seen in the store.

use bytes::Bytes;
use holdfast_control::set::RootRef;
use holdfast_types::{ObjectId, Term};
use holdfast_volume::head::Head;
use std::collections::BTreeMap;

/// Objects opened once: roots, and the present head.
#[derive(Default)]
pub struct Roots {
    pub named: BTreeMap<ObjectId, Vec<String>>,
    pub heads: Vec<(Bytes, Head)>,
    /// The last term in which a dropped root was damaged.
    pub rotten_in: Option<Term>,
}

/// Roots that a recovery from this head would retain: its checkpoint, its pins, and its snapshots.
pub fn roots_of(head: &Head) -> Vec<RootRef> {
    let links = &head.links;
    let pinned = links.pins.values().map(|pin| pin.root);
    let listed = links.snapshots.snapshots.values().map(|snapshot| snapshot.root);
    head.content.root.into_iter().chain(pinned).chain(listed).collect()
}
