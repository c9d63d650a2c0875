//! Finds the objects that each store lacks and that kept roots name, and copies them. The caller knows the roots and
//! the key, and checks names and contents: an object is copied only if a root names it and it opens.

use super::missing::{Backlog, NOTED_MAX, Note, Wanted};
use super::state::{Quorum, Replica};
use crate::error::{Disposition, StoreError};
use crate::object_store::ObjectStore;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use holdfast_types::ObjectId;
use holdfast_types::sync::LockExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A note is dropped if no root names its object within this time: the checkpoint did not end, or the root that named
/// it is gone. The store is then compared again, because another kept root may name the object; not more often than
/// this.
const UNNAMED_FOR: Duration = Duration::from_secs(900);
/// If a root could not be read, so that a store was not compared with all kept roots, it is compared again after this
/// time.
const UNREAD_AGAIN: Duration = Duration::from_secs(120);
/// An object that could not be copied is retried after this time.
const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Time after which the next store is asked for a copy as well: a segment has up to 16 MiB.
const COPY_PATIENCE: Duration = Duration::from_secs(3);
/// Time limit for a store that failed recently and has not answered since.
const SUSPECT_LIMIT: Duration = Duration::from_secs(5);

/// An object was not copied.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RepairError {
    /// The store that lacks it did not answer, or refused: the next object would fail in the same way.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// None of the other stores that answer has a copy that opens. Other objects may be copied.
    #[error("{key}: no other store has a copy that opens: {why}")]
    Nowhere {
        /// Its key.
        key: String,
        /// The answer of each store.
        why: String,
    },
}

impl Replica {
    pub(super) fn note_missing(&self, key: &str, bytes: u64) {
        self.note(key, bytes, None, false);
    }

    fn note(&self, key: &str, bytes: u64, by: Option<ObjectId>, damaged: bool) {
        let mut missing = self.missing.locked();
        if missing.keys.len() >= NOTED_MAX && !missing.keys.contains_key(key) {
            missing.overflowed = true;
            return;
        }
        let new = Note { bytes, since: Instant::now(), by, damaged, failed: None };
        let note = missing.keys.entry(key.to_owned()).or_insert(new);
        note.by = by.or(note.by);
        note.damaged |= damaged;
    }

    /// Its part of the head is missing. `compare`: the other objects must be compared as well.
    pub(super) fn head_lost(&self, compare: bool) {
        let mut missing = self.missing.locked();
        missing.head_behind = true;
        if compare {
            missing.lost = true;
            missing.compare_anew();
        }
    }

    /// Notes that its entry in the `configuration`th list of stores had this restart. If that one is later than the
    /// last one seen, the entry was lost meanwhile and another gateway mended it: this one has not seen it missing.
    pub(super) fn restarts(&self, configuration: u32, restart: u32) {
        let mut missing = self.missing.locked();
        let seen = missing.restart.filter(|(of, _)| *of == configuration).map(|(_, restart)| restart);
        missing.restart = Some((configuration, seen.unwrap_or(0).max(restart)));
        drop(missing);
        if seen.is_some_and(|seen| seen < restart) {
            self.head_lost(true);
        }
    }

    pub(super) fn head_is_behind(&self, behind: bool) {
        self.missing.locked().head_behind = behind;
    }

    pub(super) fn forget(&self, key: &str) {
        self.missing.locked().keys.remove(key);
    }

    pub(super) fn backlog(&self) -> Backlog {
        let missing = self.missing.locked();
        Backlog {
            objects: missing.keys.len() as u64,
            bytes: missing.keys.values().map(|note| note.bytes).sum(),
            named: missing.keys.values().filter(|note| note.by.is_some()).count() as u64,
            stuck: missing.keys.values().filter(|note| note.failed.is_some()).count() as u64,
            head: missing.head_behind,
            compared: missing.compared.is_some()
                && !missing.overflowed
                && missing.doubtful.is_none()
                && !missing.waits(),
        }
    }
}

impl Quorum {
    /// Only the `at`th store, in the set's order. Its part of the head is a part of the register, not the head.
    pub fn copy_at(&self, at: usize) -> Option<Arc<dyn ObjectStore>> {
        self.replicas.get(at).map(|replica| replica.store.clone())
    }

    /// Number of stores.
    pub fn copies(&self) -> usize {
        self.replicas.len()
    }

    /// Whether some store's head was not the decided one at the last check.
    pub fn heads_differ(&self) -> bool {
        self.replicas.iter().any(|replica| replica.missing.locked().head_behind)
    }

    /// Requests a new comparison of each store: another leader may have written since, or somebody may have deleted
    /// objects.
    pub fn compare_anew(&self) {
        for replica in &self.replicas {
            replica.missing.locked().compare_anew();
        }
    }

    /// Notes the current root, and whether a checkpoint is under way. A store that lost its entry meanwhile is complete
    /// only after a comparison with that checkpoint's root: objects that were put there earlier counted for their
    /// uploader and may be gone.
    pub fn root_is(&self, current: Option<ObjectId>, under_way: bool) {
        for replica in &self.replicas {
            let mut missing = replica.missing.locked();
            if std::mem::take(&mut missing.lost) {
                missing.lost_at = Some(current);
            }
            if missing.lost_at.is_some_and(|at| at != current || !under_way) {
                missing.lost_at = None;
                missing.compare_anew();
            }
        }
    }

    /// Whether store `at` must be compared with the kept roots.
    pub fn must_compare(&self, at: usize) -> bool {
        self.replicas.get(at).is_some_and(|replica| replica.missing.locked().must_compare())
    }

    /// A comparison of store `at` begins. Until it ends, the store counts as not compared: what the last one left open
    /// may still be missing. If it does not end because the store fails, another one is due.
    pub fn compare_begins(&self, at: usize) {
        if let Some(replica) = self.replicas.get(at) {
            let mut missing = replica.missing.locked();
            missing.compared = None;
            (missing.overflowed, missing.doubtful, missing.began) = (false, None, missing.asked_anew);
        }
    }

    /// Notes that store `at` lacks an object that root `by` names, or (`damaged`) has one that does not open or has
    /// another length. Returns whether there was space for the note.
    pub fn lacks(&self, at: usize, key: &str, bytes: u64, by: ObjectId, damaged: bool) -> bool {
        let Some(replica) = self.replicas.get(at) else { return false };
        replica.note(key, bytes, Some(by), damaged);
        !replica.missing.locked().overflowed
    }

    /// Store `at` was compared since [`Self::compare_begins`]; `all`: completely. A new comparison that was requested
    /// meanwhile is still due.
    pub fn compared(&self, at: usize, all: bool) {
        if let Some(replica) = self.replicas.get(at) {
            let mut missing = replica.missing.locked();
            missing.compared = (missing.began == missing.asked_anew).then(Instant::now);
            missing.overflowed |= !all;
        }
    }

    /// Like `compared`, but some kept root could not be read: it is compared again later, and not complete until then.
    pub fn compared_in_part(&self, at: usize) {
        self.compared(at, true);
        if let Some(replica) = self.replicas.get(at) {
            replica.missing.locked().doubtful = Some(UNREAD_AGAIN);
        }
    }

    /// From now on, objects that are named only by roots that are no longer kept wait until another root names them.
    pub fn let_go(&self, kept: impl Fn(ObjectId) -> bool) {
        for replica in &self.replicas {
            for note in replica.missing.locked().keys.values_mut() {
                note.release(&kept);
            }
        }
    }

    /// The objects noted as missing after `since` that no known root names yet. Drops notes for objects that no root
    /// has named in time.
    pub fn unnamed(&self, since: Option<Instant>) -> Vec<String> {
        let mut unnamed = Vec::new();
        for replica in &self.replicas {
            let mut missing = replica.missing.locked();
            let before = missing.keys.len();
            missing.keys.retain(|_, note| note.by.is_some() || note.since.elapsed() < UNNAMED_FOR);
            if missing.keys.len() < before {
                missing.doubtful = missing.doubtful.or(Some(UNNAMED_FOR));
            }
            let new = |note: &Note| note.by.is_none() && since.is_none_or(|since| note.since >= since);
            unnamed.extend(missing.keys.iter().filter(|(_, note)| new(note)).map(|(key, _)| key.clone()));
        }
        unnamed
    }

    /// Root `by` names the object, which has this length.
    pub fn named(&self, key: &str, bytes: u64, by: ObjectId) {
        for replica in &self.replicas {
            if let Some(note) = replica.missing.locked().keys.get_mut(key) {
                (note.bytes, note.by) = (bytes.max(note.bytes), Some(by));
            }
        }
    }

    /// At most `most` objects to copy to store `at`. `kept`: whether that root is still kept; an object whose roots are
    /// all gone waits until another root names it.
    pub fn wanted(&self, at: usize, kept: impl Fn(ObjectId) -> bool, most: usize) -> Vec<Wanted> {
        let Some(replica) = self.replicas.get(at) else { return Vec::new() };
        let mut missing = replica.missing.locked();
        let (mut wanted, mut again) = (Vec::new(), Vec::new());
        for (key, note) in &mut missing.keys {
            note.release(&kept);
            let Some(by) = note.by else { continue };
            let one = || Wanted { key: key.clone(), bytes: note.bytes, by, damaged: note.damaged };
            match note.failed {
                None if wanted.len() < most => wanted.push(one()),
                Some(at) if at.elapsed() >= AGAIN_AFTER => again.push((at, one())),
                _ => {}
            }
        }
        // Objects that were found in no store come last, longest wait first: they must not delay the others.
        again.sort_by_key(|(at, _)| *at);
        wanted.extend(again.into_iter().map(|(_, one)| one).take(most - wanted.len()));
        wanted
    }

    /// Copies an object to store `at` from another store whose copy `check` opens. Returns the bytes written; 0 if the
    /// store has the object: a listing is only a hint, and a PUT without an answer may have been done. An object that
    /// does not open is replaced once a good copy is available.
    ///
    /// # Errors
    /// [`RepairError`]; the object stays noted.
    pub async fn copy(
        &self,
        at: usize,
        wanted: &Wanted,
        check: &(dyn Fn(&str, &Bytes) -> Result<(), String> + Sync),
    ) -> Result<u64, RepairError> {
        let Some(replica) = self.replicas.get(at) else { return Ok(0) };
        let (key, bytes) = (wanted.key.as_str(), wanted.bytes);
        let right = |len: u64| bytes == 0 || len == bytes;
        let mut there = match replica.store.head(key).await {
            Ok(head) if right(head.bytes) && !wanted.damaged => {
                replica.forget(key);
                return Ok(0);
            }
            Ok(head) => Some(head.version),
            Err(error) if error.disposition() == Disposition::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        if there.is_some() {
            // An object that was damaged in transit, or judged by a listing alone, may be intact in the store.
            match replica.store.get_object(key).await {
                Ok(found) if right(found.body.len() as u64) && check(key, &found.body).is_ok() => {
                    replica.forget(key);
                    return Ok(0);
                }
                Ok(found) => there = Some(found.version),
                Err(error) if matches!(error.disposition(), Disposition::NotFound | Disposition::Corrupt) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let body = match self.read_elsewhere(replica, wanted, check).await {
            Ok(body) => body,
            Err(error) => {
                if let Some(note) = replica.missing.locked().keys.get_mut(key) {
                    note.failed = Some(Instant::now());
                }
                return Err(error);
            }
        };
        loop {
            let put = match &there {
                None => replica.store.put_new(key, body.clone()).await,
                // Without a DELETE before it: a DELETE without an answer is repeated, and a late copy of it would
                // delete what is written here (R12). `swap` requires bytes that were never there before. That does not
                // matter here: these bytes are right, whoever wrote them.
                Some(version) => replica.store.swap(key, Some(version), body.clone()).await.map(drop),
            };
            match put {
                Ok(()) => break,
                // A HEAD that was outdated: another object is there.
                Err(error) if error.disposition() == Disposition::Conflict && there.is_none() => {
                    there = Some(replica.store.head(key).await?.version);
                }
                Err(error) => return Err(error.into()),
            }
        }
        replica.forget(key);
        Ok(body.len() as u64)
    }

    /// An intact copy of the object from any other store.
    async fn read_elsewhere<'a>(
        &'a self,
        but: &Replica,
        wanted: &'a Wanted,
        check: &(dyn Fn(&str, &Bytes) -> Result<(), String> + Sync),
    ) -> Result<Bytes, RepairError> {
        let key = wanted.key.as_str();
        let mut order = self.order(key);
        order.retain(|other| other.index != but.index);
        let mut waiting = order.into_iter();
        let ask = |other: &'a Replica| async move {
            let get = other.store.get(key);
            // Do not wait for a store that hangs with each object that the others lack.
            match other.speed.suspect() {
                true => (other, tokio::time::timeout(SUSPECT_LIMIT, get).await.ok()),
                false => (other, Some(get.await)),
            }
        };
        let mut asked = FuturesUnordered::new();
        let mut silent: Vec<(&Replica, Instant)> = Vec::new();
        let (mut why, mut next_at) = (Vec::new(), Instant::now());
        loop {
            if asked.is_empty() || Instant::now() >= next_at {
                silent
                    .iter()
                    .filter(|(_, at)| at.elapsed() >= COPY_PATIENCE)
                    .for_each(|(other, _)| other.speed.failed());
                match waiting.next() {
                    Some(other) => {
                        asked.push(ask(other));
                        silent.push((other, Instant::now()));
                        next_at = Instant::now() + COPY_PATIENCE;
                    }
                    None if asked.is_empty() => break,
                    None => {}
                }
            }
            let more = waiting.len() > 0;
            let (other, answer) = tokio::select! {
                Some(answer) = asked.next() => answer,
                () = tokio::time::sleep_until(next_at), if more => continue,
            };
            silent.retain(|(asked, _)| asked.index != other.index);
            next_at = Instant::now();
            match Self::judge_copy(other, wanted, answer, check) {
                Ok(body) => return Ok(body),
                Err(reason) => why.push(reason),
            }
        }
        Err(RepairError::Nowhere { key: key.to_owned(), why: why.join("; ") })
    }

    /// The answer of another store that was asked for a copy; `None`: none within [`SUSPECT_LIMIT`]. Returns the copy
    /// if it opens, otherwise the error.
    fn judge_copy(
        other: &Replica,
        wanted: &Wanted,
        answer: Option<Result<Bytes, StoreError>>,
        check: &(dyn Fn(&str, &Bytes) -> Result<(), String> + Sync),
    ) -> Result<Bytes, String> {
        let (key, store) = (wanted.key.as_str(), other.store.place());
        match answer {
            Some(Ok(body)) => {
                other.speed.answered(None);
                let Err(reason) = check(key, &body) else { return Ok(body) };
                tracing::error!(key, store, reason, "R9: a copy does not open; not copied");
                other.note(key, wanted.bytes, Some(wanted.by), true);
                Err(format!("{store}: {reason}"))
            }
            Some(Err(error)) => {
                if error.kind().is_some() {
                    other.speed.failed();
                }
                Err(error.to_string())
            }
            None => {
                other.speed.failed();
                Err(format!("{store}: no answer within {} s", SUSPECT_LIMIT.as_secs()))
            }
        }
    }
}

#[cfg(test)]
#[path = "repair_tests.rs"]
mod tests;
