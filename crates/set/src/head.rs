//! The head of a set in its store, as its gateways maintain it: replaced with every checkpoint, and read while the set
//! is served.
//!
//! ```text
//!   start; while leading: before an answer that no ──▶ read ─▶ ours: continue      another life's: fenced, for good (HEAD-H1)
//!   recent read of the head covers (`freshness`)       └──▶ no answer: continue (R8)
//!   a checkpoint, before its end is proposed ──▶ commit: swapped only if it is still the version read, and still ours
//! ```
//! The swap is the fence: a gateway that was cut off, paused or restored from a copy cannot put its checkpoint in place
//! of the head that a recovery wrote, whatever it read last. The periodic reads ("looks") make such a gateway stop
//! answering clients.

use crate::authority::Authority;
use crate::mapping::SetKey;
use beside::Beside;
pub use commit::content_at;
pub use freshness::NOTICED_AFTER;
use holdfast_host::unix_ms;

use bytes::Bytes;
use freshness::{LOOK_LIMIT, Looks, Word};
use holdfast_control::set::{CloneOf, Links, Restored, RootRef};
use holdfast_raft::{boot_now, boot_reading};
use holdfast_store::{Disposition, Health, ObjectStore, Op, StoreError, Version, keys, moved_to};
use holdfast_types::{Epoch, MemberId, Name, ObjectId, Term, sync::LockExt};
use holdfast_volume::head::{
    Covered, DELETED_GENERATION, Head, HeadError, Keyring, SetLife, Standing, open_head, read_keyring, seal_head,
};
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// After a start, the first grant waits this long for the store. A store that is down must not stop serving (R8).
const FIRST_LOOK_LIMIT: Duration = LOOK_LIMIT;
/// How often an answer waits for the end of a head read: the process may have been paused during one wait.
const LOOK_WAITS_MAX: u32 = 3;

/// Number of reads before a head that does not open counts as damaged.
const READS_MAX: u32 = 3;

/// See [`HeadParts::by_own_keyring`].
pub type ByOwnKeyring = Arc<dyn Fn(&Bytes) -> Option<Head> + Send + Sync>;

/// Parameters for reading and writing a head.
pub struct HeadParts {
    /// The set's name.
    pub name: Name,
    /// The life of the set that this cluster has.
    pub life: SetLife,
    /// Opens the set's data, as group 0 has it; see [`HeadKeeper::set_keyring`].
    pub keyring: Mutex<Keyring>,
    /// The set's keys.
    pub key: SetKey,
    /// Its store.
    pub store: Arc<dyn ObjectStore>,
    /// This member.
    pub member: MemberId,
    /// This start's number.
    pub boot: u64,
    /// The file that records the end of this life.
    pub note: PathBuf,
    /// The origin of the set, if it is a clone.
    pub clone_of: Option<CloneOf>,
    /// Opens a head by its own keyring and this gateway's cluster keys, to find its owner without its data keys.
    pub by_own_keyring: Option<ByOwnKeyring>,
    /// In a gateway pair: the tenure under which answers leave (ADR 0031).
    pub pair: Option<Arc<Authority>>,
}

/// Why a head was not read or not replaced.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The store failed.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// Another life has taken over the set (HEAD-H1).
    #[error("{0}")]
    Taken(String),
    /// It does not open.
    #[error(
        "{key} in the store is no head of this set, or a damaged one: {error}; if another cluster keeps a set there, give this one \
         another prefix"
    )]
    Unreadable {
        /// Its key.
        key: String,
        /// The reason.
        #[source]
        error: HeadError,
    },
    /// The head already names a newer checkpoint (HEAD-H2), or other writers won several times in a row.
    #[error("another checkpoint was committed to the store meanwhile")]
    Superseded,
    /// The set's stores were changed, and this gateway does not know it yet (LIST-L1).
    #[error("the set's stores were changed to {to}, and this gateway has not learned that from group 0 yet")]
    Moved {
        /// The new stores.
        to: String,
    },
    /// The keys of this gateway do not open the tombstone: perhaps another life's, with its own key.
    #[error(
        "a tombstone is in the place of {key}, under a data key that this gateway does not have: the set was deleted, perhaps by another cluster"
    )]
    Buried {
        /// Its key.
        key: String,
    },
    /// The head is this life's, but under a data key that this gateway does not know yet, or that was removed.
    #[error(
        "the head is under data key {key_id}, expected one of {has:?}: group 0 is behind on this gateway, or the store answered with an older head"
    )]
    OtherKey {
        /// The key of the head.
        key_id: u32,
        /// The keys known here.
        has: BTreeSet<u32>,
    },
    /// The head of an older life was read.
    #[error("the store answered with the head of an older generation ({found}, expected {expected}): a stale read")]
    Stale {
        /// The generation read.
        found: u64,
        /// Our generation.
        expected: u64,
    },
}

impl KeepError {
    /// Whether a retry may succeed.
    pub fn may_pass(&self) -> bool {
        match self {
            KeepError::Store(e) => e.may_pass(),
            KeepError::Stale { .. } | KeepError::OtherKey { .. } => true,
            // The objects written for it are where the head no longer is: everything is done again.
            KeepError::Moved { .. }
            | KeepError::Buried { .. }
            | KeepError::Taken(_)
            | KeepError::Unreadable { .. }
            | KeepError::Superseded => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum HeadState {
    NotYet,
    /// Ours, or no answer: serve.
    Go,
    Fenced(String),
}

/// One set's head at one gateway.
pub struct HeadKeeper {
    parts: HeadParts,
    opened: Instant,
    seen: watch::Sender<HeadState>,
    /// Why the head is not as it should be, as text for users.
    trouble: Mutex<Option<String>>,
    /// Result of reading the head from several stores; each may be healthy without a quorum agreeing.
    together: Health,
    /// A caller waits for a checkpoint.
    wanted: AtomicBool,
    asked: Notify,
    covered: watch::Sender<Option<Covered>>,
    beside: Beside,
    /// The last term whose checkpoint this gateway wrote into the head; and whether a commit is in progress.
    committed: Mutex<Option<Term>>,
    committing: AtomicBool,
    looks: Looks,
    /// Notified when a caller waits for a head read.
    wake: Notify,
    /// Number of finished head reads.
    looked: watch::Sender<u64>,
    /// One checkpoint at a time, and none during the last step of a change of the set's stores (MOVE-V2).
    turn: tokio::sync::Mutex<()>,
}

impl HeadKeeper {
    /// Reads the fence that an earlier start recorded.
    ///
    /// # Errors
    /// The note cannot be read. Only a note that is not there means that no start was fenced.
    pub fn new(parts: HeadParts) -> io::Result<Arc<Self>> {
        let seen = match std::fs::read(&parts.note) {
            Ok(why) => HeadState::Fenced(String::from_utf8_lossy(&why).trim_end().to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => HeadState::NotYet,
            Err(error) => return Err(error),
        };
        holdfast_reached::reached!("head: an earlier start was fenced", matches!(seen, HeadState::Fenced(_)));
        let together = Health::new(parts.name.to_string());
        let beside = Beside::new(parts.clone_of.clone());
        Ok(Arc::new(Self {
            parts,
            opened: Instant::now(),
            seen: watch::channel(seen).0,
            trouble: Mutex::new(None),
            together,
            wanted: AtomicBool::new(false),
            asked: Notify::new(),
            covered: watch::channel(None).0,
            beside,
            committed: Mutex::new(None),
            committing: AtomicBool::new(false),
            looks: Looks::default(),
            wake: Notify::new(),
            looked: watch::channel(0).0,
            turn: tokio::sync::Mutex::default(),
        }))
    }

    /// Reason why this gateway must never serve the set again; `None` while it may.
    pub fn fenced(&self) -> Option<String> {
        match &*self.seen.borrow() {
            HeadState::Fenced(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// With several stores: what prevents a read of the head. No checkpoint is made meanwhile; writes continue (R8).
    pub fn store_standing(&self) -> holdfast_store::Standing {
        self.together.standing(unix_ms())
    }

    /// A problem that an operator should look at.
    pub fn trouble(&self) -> Option<String> {
        self.fenced().or_else(|| self.trouble.locked().clone())
    }

    /// Waits, with a limit, for the store's first answer since the start.
    pub async fn first_look(&self) {
        let mut seen = self.seen.subscribe();
        let looked = seen.wait_for(|s| *s != HeadState::NotYet);
        let _ = tokio::time::timeout_at(self.opened + FIRST_LOOK_LIMIT, looked).await;
    }

    /// Waits until the store allows an answer: a recent read found the head to be this life's, or the store did not
    /// answer (R8). While a set is in use, reads of the head run ahead of this, so it does not wait; it never waits
    /// longer than a few reads may take.
    ///
    /// # Errors
    /// The set is fenced, or no read of the head finished meanwhile: nothing may be answered. Each read ends within a
    /// limit, with or without a result. If none did, this process was paused, and another life may have begun.
    pub async fn before_answer(&self) -> Result<(), String> {
        self.before_answer_within(LOOK_LIMIT * 2).await?;
        // PAIR-P1: checked last, without a wait afterwards.
        self.seat_allows()
    }

    async fn before_answer_within(&self, wait: Duration) -> Result<(), String> {
        // A timeout alone proves nothing: it has always passed when a paused process resumes.
        for _ in 0..LOOK_WAITS_MAX {
            if self.looks.may_answer(boot_reading()) {
                return self.fenced().map_or(Ok(()), Err);
            }
            holdfast_reached::reached!("head: an answer waits for a look");
            let mut looked = self.looked.subscribe();
            self.wake.notify_one();
            let answered = async {
                while !self.looks.may_answer(boot_reading())
                    && self.fenced().is_none()
                    && looked.changed().await.is_ok()
                {}
            };
            let _ = tokio::time::timeout(wait, answered).await;
            if let Some(why) = self.fenced() {
                return Err(why);
            }
        }
        if self.looks.may_answer(boot_reading()) {
            return self.fenced().map_or(Ok(()), Err);
        }
        holdfast_reached::reached!("head: no look finished in time");
        Err("no read of the set's head in its store finished in time: nothing is answered before one does".into())
    }

    /// Asks the uploader for a checkpoint soon.
    pub fn want_checkpoint(&self) {
        self.wanted.store(true, Ordering::Release);
        self.asked.notify_one();
    }

    /// Whether a checkpoint is requested. The request stays until [`HeadKeeper::take_wanted`].
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Whether a checkpoint was requested; clears the request.
    pub fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }

    /// The last checkpoint seen in the store or committed here.
    pub fn covered(&self) -> Option<Covered> {
        *self.covered.borrow()
    }

    /// Whether the head names a checkpoint that this gateway made as the leader of `term`. Until then it may name one
    /// of an earlier leader that was never reported to the group. From the Raft state alone, that checkpoint's objects
    /// look like orphans, but a recovery needs them.
    pub fn committed_in(&self, term: Term) -> bool {
        *self.committed.locked() == Some(term)
    }

    fn note_committed(&self, term: Term, covered: Covered) {
        self.covered.send_replace(Some(covered));
        *self.committed.locked() = Some(term);
    }

    /// While this is held, no checkpoint runs here except the holder's.
    pub async fn checkpoint_turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Whether this is a head of ours that names `root`.
    pub fn names_current(&self, head: &Bytes, root: Option<RootRef>) -> bool {
        open(&self.parts.key, head).is_ok_and(|head| head.life == self.parts.life && head.content.root == root)
    }

    /// The store of the head and of everything else of the set.
    pub fn store(&self) -> &dyn ObjectStore {
        &*self.parts.store
    }

    /// The life of the set.
    pub fn life(&self) -> SetLife {
        self.parts.life
    }

    fn key(&self) -> String {
        keys::head(self.parts.key.set)
    }

    /// Heads are written with this keyring from now on. If this gateway leads, a head with another keyring is replaced.
    pub fn set_keyring(&self, keyring: Keyring) {
        let mut known = self.parts.keyring.locked();
        if *known != keyring {
            *known = keyring;
            drop(known);
            self.wake.notify_one();
        }
    }

    fn keyring(&self) -> Keyring {
        self.parts.keyring.locked().clone()
    }

    /// The keyring of the head in the store, as last read or written here.
    pub fn stored_keyring(&self) -> Option<Keyring> {
        self.beside.stored().map(|(keyring, _)| keyring)
    }

    async fn read(&self) -> Result<Option<(Head, Version)>, KeepError> {
        self.read_in(&*self.parts.store).await
    }

    async fn read_in(&self, store: &dyn ObjectStore) -> Result<Option<(Head, Version)>, KeepError> {
        let key = self.key();
        let mut tries = 1;
        loop {
            let object = match store.get_object(&key).await {
                Ok(object) => object,
                Err(e) if e.disposition() == Disposition::NotFound => return Ok(None),
                Err(e) => return Err(e.into()),
            };
            if let Some(to) = moved_to(&object.body) {
                holdfast_reached::reached!("head: it was moved to other stores");
                return Err(KeepError::Moved { to });
            }
            match open_all(&self.parts.key, &object.body) {
                Ok((head, keyring)) => {
                    // An older life's head, from a stale read, has other pins.
                    if head.life == self.parts.life {
                        self.beside.note_stored(keyring, head.links.clone());
                    }
                    return Ok(Some((head, object.version)));
                }
                // Data may be damaged in transit; a head that is bad in the store stays bad.
                Err(_) if tries < READS_MAX => tries += 1,
                Err(error) => return Err(self.unopened(&object.body, key, error)),
            }
        }
    }

    /// Compares a head with this life; fences if it is another life's (HEAD-H1).
    fn judge(&self, head: &Head) -> Result<(), KeepError> {
        let ours = self.parts.life;
        holdfast_reached::reached!(
            "head: a stale read shows an older life",
            matches!(head.standing(ours), Standing::Older)
        );
        match head.standing(ours) {
            Standing::Ours => {
                self.covered.send_replace(head.covered);
                Ok(())
            }
            Standing::Older => Err(KeepError::Stale { found: head.life.generation, expected: ours.generation }),
            // HEAD-H4.
            Standing::Taken if head.life.generation == DELETED_GENERATION => {
                let why = format!(
                    "set {} is deleted: a tombstone is in the place of its head in its store. It is never served again; this gateway \
                     removes its copy as soon as it learns of the deletion from the others",
                    self.parts.name
                );
                holdfast_reached::reached!("head: a tombstone is in its place");
                self.fence(&why);
                Err(KeepError::Taken(why))
            }
            Standing::Taken => {
                let why = format!(
                    "set {} is fenced in its store: found generation {} of cluster {:032x}, expected generation {} of cluster {:032x}. It \
                     was recovered elsewhere, and this cluster never serves it again. Stop this gateway, and wipe its data directory \
                     before it joins another cluster",
                    self.parts.name, head.life.generation, head.life.cluster, ours.generation, ours.cluster
                );
                holdfast_reached::reached!("head: another life has taken over the set");
                self.fence(&why);
                Err(KeepError::Taken(why))
            }
        }
    }

    fn fence(&self, why: &str) {
        let first = self.seen.send_if_modified(|seen| {
            let first = !matches!(seen, HeadState::Fenced(_));
            *seen = HeadState::Fenced(why.to_string());
            first
        });
        if !first {
            return;
        }
        tracing::error!(set = %self.parts.name, "{why}");
        metrics::counter!("holdfast_sets_fenced_total").increment(1);
        // For the next start, in case the store does not answer then.
        if let Err(error) = holdfast_folder::write(&self.parts.note, format!("{why}\n").as_bytes()) {
            tracing::error!(note = %self.parts.note.display(), %error, "the fence could not be written to disk; the store has it");
        }
    }

    /// Whether the store confirms, in answer to this call, that the set is this life's. A timeout, no head, or an
    /// unreadable head count as no: the caller is about to delete.
    pub async fn still_ours(&self) -> bool {
        match tokio::time::timeout(LOOK_LIMIT, self.read()).await {
            Ok(Ok(Some((head, _)))) => self.judge(&head).is_ok(),
            _ => false,
        }
    }

    /// Reads the head once and acts on the result. `None` if the store did not answer.
    async fn look(&self) -> Option<Result<Option<Head>, KeepError>> {
        let sent = boot_now();
        self.looks.send(sent);
        let looked = self.look_once().await;
        match looked {
            Some(Ok(Some(_))) => self.looks.told(sent, Word::Ours),
            // HEAD-H1: nothing is answered until group 0 has the new stores.
            Some(Err(KeepError::Moved { .. } | KeepError::Buried { .. })) => self.looks.told(sent, Word::Elsewhere),
            // The read still showed the owner.
            Some(Err(KeepError::OtherKey { .. })) => self.looks.told(sent, Word::Ours),
            _ => self.looks.told(sent, Word::None),
        }
        self.looked.send_modify(|count| *count += 1);
        looked
    }

    async fn look_once(&self) -> Option<Result<Option<Head>, KeepError>> {
        let read = tokio::time::timeout(LOOK_LIMIT, self.read()).await.ok()?;
        if self.parts.store.several().is_some() {
            let failure = if let Err(KeepError::Store(error)) = &read { Some(error) } else { None };
            self.together.attempt(unix_ms(), Op::Get, failure);
        }
        let judged = read.and_then(|found| match found {
            None => Ok(None),
            Some((head, _)) => self.judge(&head).map(|()| Some(head)),
        });
        let trouble = match &judged {
            Err(e @ (KeepError::Unreadable { .. } | KeepError::Moved { .. } | KeepError::Buried { .. })) => {
                Some(format!("set {}: {e}", self.parts.name))
            }
            _ => None,
        };
        if let Some(trouble) = &trouble {
            tracing::error!("{trouble}");
        }
        *self.trouble.locked() = trouble;
        Some(judged)
    }

    fn head(&self, epoch: Epoch, covered: Option<Covered>, content: Restored, links: Links) -> Head {
        Head { life: self.parts.life, raised_for: 0, name: self.parts.name.clone(), epoch, covered, content, links }
    }

    /// Seals a version of the head under its own id: no two versions have the same bytes (R12).
    fn seal(&self, head: &Head, keyring: &Keyring, term: Term) -> Bytes {
        let random = crate::random::random_u128();
        let id = ObjectId { term, member: self.parts.member, boot: self.parts.boot, random };
        seal_head(head, keyring, self.parts.key.sealer(id))
    }
}

/// Opens a head under the id in its header.
///
/// # Errors
/// [`HeadError`].
pub fn open(key: &SetKey, bytes: &[u8]) -> Result<Head, HeadError> {
    open_all(key, bytes).map(|(head, _)| head)
}

fn open_all(key: &SetKey, bytes: &[u8]) -> Result<(Head, Keyring), HeadError> {
    let (header, keyring) = read_keyring(bytes)?;
    let head = open_head(&key.opener(header.object), bytes)?;
    // DATAKEY-Z2: the next head may not use a lower one either.
    key.seen(header.key_id);
    Ok((head, keyring))
}

mod beside;
mod commit;
mod durable;
mod foreign;
mod freshness;
mod links;
mod task;
#[cfg(any(test, feature = "testing"))]
#[allow(missing_docs, dead_code, unused_imports)]
pub mod tests;
