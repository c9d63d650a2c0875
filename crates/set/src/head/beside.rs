//! What the head has beside the checkpoint, in the store and as known here: keyring, pins and snapshots.

use holdfast_control::set::{CloneOf, Links, Listing, RootRef, SetState};
use holdfast_types::sync::LockExt;
use holdfast_types::{LogId, LogIndex, Term};
use holdfast_volume::head::Keyring;
use std::sync::Mutex;

pub(super) struct Beside {
    clone_of: Option<CloneOf>,
    /// Keyring and links of the head in the store, as last read or written here.
    stored: Mutex<Option<(Keyring, Links)>>,
    /// The set's pins as applied here.
    known: Mutex<Option<Links>>,
    /// The set's snapshots as applied here.
    listing: Mutex<Listing>,
}

impl Beside {
    pub(super) fn new(clone_of: Option<CloneOf>) -> Self {
        Self { clone_of, stored: Mutex::default(), known: Mutex::default(), listing: Mutex::default() }
    }

    /// Keyring and links of the head in the store, as last read or written here.
    pub(super) fn stored(&self) -> Option<(Keyring, Links)> {
        self.stored.locked().clone()
    }

    pub(super) fn note_stored(&self, keyring: Keyring, links: Links) {
        *self.stored.locked() = Some((keyring, links));
    }

    /// Records pins and snapshots as of `state`, applied up to `applied`. Returns the number of snapshots that no
    /// longer fit the head, if that is news. `led`: as for `HeadKeeper::note`.
    pub(super) fn note(&self, state: &SetState, applied: LogIndex, led: Option<Term>) -> Option<usize> {
        self.note_pins(state);
        self.listing.locked().note(state, applied, led)
    }

    /// A recovery must find every pin that a clone may depend on (ADR 0028).
    fn note_pins(&self, state: &SetState) {
        let mut known = self.known.locked();
        if known.as_ref().is_none_or(|known| known.pins_at.index < state.pins_at.index) {
            let (pins, pins_at) = (state.pins.clone(), state.pins_at);
            *known = Some(Links { pins, pins_at, clone_of: self.clone_of.clone(), ..Links::default() });
        }
    }

    /// The head is about to name this root, of the checkpoint that began at `begin`.
    pub(super) fn note_root(&self, begin: LogId, root: RootRef) {
        self.listing.locked().note_root(begin, root);
    }

    /// The links to write into a head that now has `stored`; `commits` says whether a checkpoint is written. Returns
    /// `stored` until anything is known here.
    pub(super) fn links(&self, stored: &Links, commits: bool) -> Links {
        let known = self.known.locked();
        let links = match &*known {
            Some(known) => Links::for_head(stored, known),
            None => Links { clone_of: self.clone_of.clone(), ..stored.clone() },
        };
        Links { snapshots: self.listing.locked().for_head(&stored.snapshots, commits), ..links }
    }

    /// As `HeadKeeper::links_settled`.
    pub(super) fn settled(&self, state: &SetState, term: Term) -> bool {
        self.stored().is_some_and(|(_, stored)| {
            stored.pins_at.index >= state.pins_at.index && self.listing.locked().settled(state, term, &stored.snapshots)
        })
    }
}
