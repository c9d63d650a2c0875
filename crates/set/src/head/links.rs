//! The head's content beside the checkpoint: the keyring, the links to other sets (ADR 0028), and the snapshots (ADR
//! 0035). The head is replaced as soon as these differ from what this gateway knows, without a checkpoint.

use super::freshness::{LOOK_LIMIT, Word};
use super::{HeadKeeper, KeepError};
use crate::host::SetHost;
use holdfast_control::set::{Pin, RootRef, SetState};
use holdfast_raft::{Group, boot_now};
use holdfast_store::Disposition;
use holdfast_types::{LogId, LogIndex, RequestId, Term};
use holdfast_volume::head::Head;
use std::sync::atomic::Ordering;

impl HeadKeeper {
    /// Number of stores that a read of the head asks.
    pub(super) fn stores(&self) -> u32 {
        self.parts.store.several().map_or(1, |several| u32::try_from(several.copies()).unwrap_or(u32::MAX))
    }

    /// Notes the set's pins and snapshots as applied here. `led`: the term in which this gateway led before.
    pub fn note_here(&self, group: &Group, host: &SetHost, led: Option<Term>) {
        let (state, applied) = host.with(|m| (m.state().clone(), m.applied()));
        // Still leading means that it led when it read the state: a term has one leader.
        self.note(&state, applied, led.filter(|_| group.ready_term() == led));
    }

    /// Records the set's pins and snapshots as of `state`, applied up to `applied`. `led` is the term if this gateway
    /// still led after reading the state. Heads are written with them from now on, whichever checkpoint they name.
    pub fn note(&self, state: &SetState, applied: Option<LogId>, led: Option<Term>) {
        let applied = applied.map_or(LogIndex(0), |applied| applied.index);
        if let Some(more) = self.beside.note(state, applied, led) {
            tracing::warn!(set = %self.parts.name, snapshots = more, "the oldest snapshots do not fit the set's head: a recovery would not find them");
        }
    }

    /// The head is about to name this root, of the checkpoint that began at `begin`: snapshots that wait for this root
    /// are listed with it.
    pub fn note_root(&self, begin: LogId, root: RootRef) {
        self.beside.note_root(begin, root);
    }

    /// Whether the head in the store no longer names any pin or snapshot that the set had released by `state`, and
    /// never will again: it was seen with those of `state` or newer ones, and only newer heads replace it. Until then,
    /// objects that only such a pin or snapshot references stay: a recovery would keep that root and needs them. Called
    /// by the leader of `term`.
    pub fn links_settled(&self, state: &SetState, term: Term) -> bool {
        self.beside.settled(state, term)
    }

    /// Reads from the store whether the head names this pin, so that a recovery would find it.
    ///
    /// # Errors
    /// [`KeepError`].
    pub async fn names_pin(&self, request: RequestId, pin: &Pin) -> Result<bool, KeepError> {
        let Some((head, _)) = self.read().await? else { return Ok(false) };
        self.judge(&head)?;
        Ok(head.links.pins.get(&request).is_some_and(|found| found.clone == pin.clone && found.root == pin.root))
    }

    /// Wakes the watcher: a caller waits until the head has the links known here.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Whether the head in the store is known to have an outdated keyring or outdated links.
    pub(super) fn behind(&self) -> bool {
        let stored = self.beside.stored();
        stored.is_some_and(|(keyring, links)| keyring != self.keyring() || self.beside.links(&links, false) != links)
    }

    /// Whether the head should be replaced only for that. Not while a checkpoint is being committed here: its head
    /// contains all of it, and of two swaps of the same head one is refused.
    pub(super) fn to_replace(&self) -> bool {
        !self.committing.load(Ordering::Acquire) && self.behind()
    }

    /// Replaces the head in the store with its own content, group 0's keyring and the set's links. If another gateway
    /// wrote it meanwhile, its version stays and is read again.
    pub(super) async fn replace_around(&self, term: Term) {
        if !self.to_replace() {
            return;
        }
        let replace = async {
            let sent = boot_now();
            let Some((head, version)) = self.read().await? else { return Ok(false) };
            self.judge(&head)?;
            // Counts as a read, as in a commit; the replaced head is this life's.
            self.looks.told(sent, Word::Ours);
            if !self.to_replace() {
                return Ok(false);
            }
            let (keyring, links) = (self.keyring(), self.beside.links(&head.links, false));
            let head = Head { links, ..head };
            let body = self.seal(&head, &keyring, term);
            let sent = boot_now();
            self.parts.store.swap(&self.key(), Some(&version), body).await?;
            self.looks.told(sent, Word::Ours);
            self.beside.note_stored(keyring, head.links);
            Ok::<bool, KeepError>(true)
        };
        match tokio::time::timeout(LOOK_LIMIT, replace).await {
            Ok(Ok(true)) => {
                tracing::info!(set = %self.parts.name, "the head in the store now has the cluster's keys, pins and snapshots")
            }
            Ok(Ok(false)) => {}
            // Another writer was faster, for instance a checkpoint: the next read shows the result.
            Ok(Err(KeepError::Store(error))) if error.disposition() == Disposition::Conflict => {
                tracing::debug!(set = %self.parts.name, %error, "another gateway replaced the head meanwhile")
            }
            // R12: the next read shows the result.
            Ok(Err(error)) => {
                tracing::warn!(set = %self.parts.name, %error, "keys, pins or snapshots in the head are not replaced yet; will retry")
            }
            Err(_) => {}
        }
    }
}
