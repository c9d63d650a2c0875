//! What a head says beside the checkpoint: the keyring, how the set hangs together with others (ADR 0028), and its snapshots (ADR 0035). It is replaced as
//! soon as it differs from what this gateway knows, without a checkpoint.

use super::freshness::{LOOK_LIMIT, Word};
use super::{HeadKeeper, KeepError};
use crate::server::SetServer;
use holdfast_control::set::{Links, Listing, Pin, RootRef, SetState};
use holdfast_raft::boot_now;
use holdfast_store::Disposition;
use holdfast_types::sync::LockExt;
use holdfast_types::{LogId, LogIndex, RequestId, Term};
use holdfast_volume::head::Head;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

impl HeadKeeper {
    /// How many stores a look asks.
    pub(super) fn stores(&self) -> u32 {
        self.parts.store.several().map_or(1, |several| u32::try_from(several.copies()).unwrap_or(u32::MAX))
    }

    /// What is applied at this gateway, of the set's pins and snapshots. `led`: the term that it led in before.
    pub fn note_here(&self, server: &SetServer, led: Option<Term>) {
        let (state, applied) = server.host.with(|m| (m.state().clone(), m.applied()));
        // Leading still, it led when it read that: a term has one leader.
        self.note(&state, applied, led.filter(|_| server.leading_ready() == led));
    }

    /// The set's pins and snapshots as they are here: in a state that was applied up to `applied`, at the leader of term `led`, if this was one after it had read that.
    /// Heads are written with them from now on, whatever checkpoint they name.
    pub fn note(&self, state: &SetState, applied: Option<LogId>, led: Option<Term>) {
        self.note_pins(state);
        let applied = applied.map_or(LogIndex(0), |applied| applied.index);
        let more = self.listing().note(state, applied, led);
        if let Some(more) = more {
            tracing::warn!(set = %self.parts.name, snapshots = more, "so many snapshots, the oldest, do not fit the set's head: a recovery would not find them");
        }
    }

    /// The head is about to name this root, of the checkpoint that began at `begin`: it lists what waits for just that.
    pub fn note_root(&self, begin: LogId, root: RootRef) {
        self.listing().note_root(begin, root);
    }

    fn listing(&self) -> MutexGuard<'_, Listing> {
        self.listing.locked()
    }

    /// A recovery must find every pin that a clone may rest on (ADR 0028).
    fn note_pins(&self, state: &SetState) {
        let mut known = self.known.locked();
        if known.as_ref().is_none_or(|known| known.pins_at.index < state.pins_at.index) {
            let (pins, pins_at) = (state.pins.clone(), state.pins_at);
            *known = Some(Links { pins, pins_at, clone_of: self.parts.clone_of.clone(), ..Links::default() });
        }
    }

    /// What the head is to say where it says `stored` now, and whether it is written for a checkpoint. Before anything is known here, that.
    pub(super) fn links(&self, stored: &Links, commits: bool) -> Links {
        let known = self.known.locked();
        let links = match &*known {
            Some(known) => Links::for_head(stored, known),
            None => Links { clone_of: self.parts.clone_of.clone(), ..stored.clone() },
        };
        Links { snapshots: self.listing().for_head(&stored.snapshots, commits), ..links }
    }

    /// Whether the head in the store names none of the pins and snapshots that this set had let go of by `state`, and never will again: it was seen with those
    /// of `state` or newer ones, and is replaced by newer ones only. Before that, what only such a pin or snapshot kept stays: a recovery would keep that root,
    /// and must find it. Asked by the leader of `term`.
    pub fn links_settled(&self, state: &SetState, term: Term) -> bool {
        self.stored().is_some_and(|(_, stored)| {
            stored.pins_at.index >= state.pins_at.index && self.listing().settled(state, term, &stored.snapshots)
        })
    }

    /// Asks the store itself whether the head names this pin: a recovery would find it from now on.
    ///
    /// # Errors
    /// [`KeepError`].
    pub async fn names_pin(&self, request: RequestId, pin: &Pin) -> Result<bool, KeepError> {
        let Some((head, _)) = self.read().await? else { return Ok(false) };
        self.judge(&head)?;
        Ok(head.links.pins.get(&request).is_some_and(|found| found.clone == pin.clone && found.root == pin.root))
    }

    /// Somebody waits for the head to say what is known here.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Whether the head in the store is known to have another keyring, or other links, than it should.
    pub(super) fn behind(&self) -> bool {
        self.stored().is_some_and(|(keyring, links)| keyring != self.keyring() || self.links(&links, false) != links)
    }

    /// Whether it is to be replaced for that alone. Not while a checkpoint is being committed here: its head says all of it, and of two that replace the same head one
    /// is refused.
    pub(super) fn to_replace(&self) -> bool {
        !self.committing.load(Ordering::Acquire) && self.behind()
    }

    /// The head in the store as it is, with the keyring that group 0 has and the links that the set has. What another gateway wrote meanwhile stays: it
    /// is looked at again.
    pub(super) async fn replace_around(&self, term: Term) {
        if !self.to_replace() {
            return;
        }
        let replace = async {
            let sent = boot_now();
            let Some((head, version)) = self.read().await? else { return Ok(false) };
            self.judge(&head)?;
            // As good as a look, as in a commit; what it replaces is this life's.
            self.looks.told(sent, Word::Ours);
            if !self.to_replace() {
                return Ok(false);
            }
            let (keyring, links) = (self.keyring(), self.links(&head.links, false));
            let head = Head { links, ..head };
            let body = self.seal(&head, &keyring, term);
            let sent = boot_now();
            self.parts.store.swap(&self.key(), Some(&version), body).await?;
            self.looks.told(sent, Word::Ours);
            self.note_stored(keyring, head.links);
            Ok::<bool, KeepError>(true)
        };
        match tokio::time::timeout(LOOK_LIMIT, replace).await {
            Ok(Ok(true)) => {
                tracing::info!(set = %self.parts.name, "the head in the store has the keys, the pins and the snapshots that the cluster has")
            }
            Ok(Ok(false)) => {}
            // Somebody was quicker, a checkpoint for instance: the next look says what is there.
            Ok(Err(KeepError::Store(error))) if error.disposition() == Disposition::Conflict => {
                tracing::debug!(set = %self.parts.name, %error, "the head was replaced by another one meanwhile")
            }
            // R12: the next look says what is there.
            Ok(Err(error)) => {
                tracing::warn!(set = %self.parts.name, %error, "keys, pins or snapshots in the head are not replaced yet; tried again")
            }
            Err(_) => {}
        }
    }
}
