//! The head of a set in its store, as its gateways keep it: replaced with every checkpoint, and looked at while the set is served.
//!
//! ```text
//!   start, and while leading: before an answer leaves that ─▶ look ─▶ ours: go on     another life's: fenced, for good (H1)
//!   no look of the last seconds covers (`looks`)                └──▶ no answer: go on (R8)
//!   a checkpoint, before its end is proposed ──▶ commit: swapped only if it is still what was read, and still ours
//! ```
//! The swap is what fences: a gateway that was cut off, paused or restored from a copy cannot put its checkpoint in place of what a
//! recovery raised, whatever it last saw. The look makes it stop answering clients.

use crate::authority::Authority;
use crate::mapping::SetKey;
use crate::server::SetServer;
use crate::wall_clock::unix_ms;
pub use freshness::NOTICED_AFTER;
use holdfast_types::sync::LockExt;

use bytes::Bytes;
use freshness::{LOOK_LIMIT, Looks, Word};
use holdfast_control::set::{CloneOf, Links, Listing, Restored, RootRef, SetState};
use holdfast_raft::boot_now;
use holdfast_store::{Disposition, Health, ObjectStore, Op, StoreError, Version, keys, moved_to};
use holdfast_types::{Epoch, LogId, MemberId, Name, ObjectId, Term};
use holdfast_volume::head::{
    Covered, DELETED_GENERATION, Head, HeadError, Keyring, SetLife, Standing, open_head, read_keyring, seal_head,
};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// After a start, the first grant waits so long for the store's word; a store that is away must not stop serving (R8).
const FIRST_LOOK_LIMIT: Duration = LOOK_LIMIT;
/// How often an answer waits for the end of a look: one wait may have been slept through.
const LOOK_WAITS_MAX: u32 = 3;

/// How often a gateway that does not lead sees whether it does.
const IDLE_LOOK: Duration = Duration::from_millis(200);

/// Between two tries to replace the keys in the head.
const REPLACE_EVERY: Duration = Duration::from_secs(1);

/// A head that does not open is read so often before it counts as damaged.
const READS_MAX: u32 = 3;

/// See [`HeadParts::by_own_keyring`].
pub type ByOwnKeyring = Arc<dyn Fn(&Bytes) -> Option<Head> + Send + Sync>;

/// What a head is read from and written with.
pub struct HeadParts {
    /// The set's name.
    pub name: Name,
    /// Which life of the set this cluster has.
    pub life: SetLife,
    /// What opens the set's data, as group 0 has it; see [`HeadKeeper::set_keyring`].
    pub keyring: Mutex<Keyring>,
    /// The set's keys.
    pub key: SetKey,
    /// Its store.
    pub store: Arc<dyn ObjectStore>,
    /// This member.
    pub member: MemberId,
    /// This start.
    pub boot: u64,
    /// Where it is noted that this life has ended.
    pub note: PathBuf,
    /// What the set is a clone of.
    pub clone_of: Option<CloneOf>,
    /// Opens a head by the keyring that it has itself, and this gateway's cluster keys: whose it is can be told then, whatever data keys are known here.
    pub by_own_keyring: Option<ByOwnKeyring>,
    /// The tenure under which answers leave, in a gateway pair (ADR 0031).
    pub pair: Option<Arc<Authority>>,
}

/// Why a head was not read or not replaced.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The store.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// Another life has taken the set over (H1).
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
        /// Why not.
        #[source]
        error: HeadError,
    },
    /// A newer checkpoint is named already (H2), or others were quicker again and again.
    #[error("another checkpoint was committed to the store meanwhile")]
    Superseded,
    /// The set's stores were changed, and this gateway has not heard of it (L1).
    #[error("the set's stores were changed to {to}, and this gateway has not heard of that from group 0 yet")]
    Moved {
        /// The stores that are to be.
        to: String,
    },
    /// A tombstone that the keys of this gateway do not open: perhaps of another life of the set, under a key of its own.
    #[error(
        "a tombstone stands in the place of {key}, under a data key that this gateway has not got: the set was deleted, perhaps by another cluster"
    )]
    Buried {
        /// Its key.
        key: String,
    },
    /// It is this life's, under a data key that this gateway has not heard of yet, or that is gone.
    #[error(
        "the head is under data key {key_id}, expected one of {has:?}: group 0 is behind on this gateway, or the store answered with an older head"
    )]
    OtherKey {
        /// The key.
        key_id: u32,
        /// Those that are here.
        has: BTreeSet<u32>,
    },
    /// An older life's head was read.
    #[error("the store answered with the head of an older generation ({found}, expected {expected}): a stale read")]
    Stale {
        /// As read.
        found: u64,
        /// Ours.
        expected: u64,
    },
}

impl KeepError {
    /// Whether the same may succeed later.
    pub fn may_pass(&self) -> bool {
        match self {
            KeepError::Store(e) => e.may_pass(),
            KeepError::Stale { .. } | KeepError::OtherKey { .. } => true,
            // What was put for it lies where the head is no more: all of it is done anew.
            KeepError::Moved { .. }
            | KeepError::Buried { .. }
            | KeepError::Taken(_)
            | KeepError::Unreadable { .. }
            | KeepError::Superseded => false,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    NotYet,
    /// Ours, or not answered: serve.
    Go,
    Fenced(String),
}

/// One set's head, at one gateway.
pub struct HeadKeeper {
    parts: HeadParts,
    opened: Instant,
    seen: watch::Sender<Seen>,
    /// Why the head is not what it should be, for people.
    trouble: Mutex<Option<String>>,
    /// What looks came to, where the set has several stores: each of them may answer well, and they have no head together.
    together: Health,
    /// Somebody waits for a checkpoint.
    wanted: AtomicBool,
    asked: Notify,
    covered: watch::Sender<Option<Covered>>,
    /// Which keyring and which links the head in the store has, as last read or written here.
    stored: Mutex<Option<(Keyring, Links)>>,
    /// The set's pins, and its snapshots, as of what is applied here; see [`HeadKeeper::note`].
    known: Mutex<Option<Links>>,
    listing: Mutex<Listing>,
    /// The last term whose checkpoint the head was made to name here; and whether one is being committed now.
    committed: Mutex<Option<Term>>,
    committing: AtomicBool,
    looks: Looks,
    /// Somebody waits for a look.
    wake: Notify,
    /// Counts the looks that have ended.
    looked: watch::Sender<u64>,
    /// One checkpoint at a time, and none while the set's stores are being changed for good (V2).
    turn: tokio::sync::Mutex<()>,
}

impl HeadKeeper {
    /// Remembers what an earlier start noted.
    pub fn new(parts: HeadParts) -> Arc<Self> {
        let seen = match std::fs::read_to_string(&parts.note) {
            Ok(why) => Seen::Fenced(why.trim_end().to_string()),
            Err(_) => Seen::NotYet,
        };
        let together = Health::new(parts.name.to_string());
        Arc::new(Self {
            parts,
            opened: Instant::now(),
            seen: watch::channel(seen).0,
            trouble: Mutex::new(None),
            together,
            wanted: AtomicBool::new(false),
            asked: Notify::new(),
            covered: watch::channel(None).0,
            stored: Mutex::new(None),
            known: Mutex::new(None),
            listing: Mutex::default(),
            committed: Mutex::new(None),
            committing: AtomicBool::new(false),
            looks: Looks::default(),
            wake: Notify::new(),
            looked: watch::channel(0).0,
            turn: tokio::sync::Mutex::default(),
        })
    }

    /// Why this gateway must never serve the set again; `None` while it may.
    pub fn fenced(&self) -> Option<String> {
        match &*self.seen.borrow() {
            Seen::Fenced(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Of several stores, what keeps the head from being read: no checkpoint is made while it lasts. Writes go on (R8).
    pub fn store_standing(&self) -> holdfast_store::Standing {
        self.together.standing(unix_ms())
    }

    /// What a person should look at.
    pub fn trouble(&self) -> Option<String> {
        self.fenced().or_else(|| self.trouble.locked().clone())
    }

    /// Waits for the store's first word since the start, but not for long.
    pub async fn first_look(&self) {
        let mut seen = self.seen.subscribe();
        let _ = tokio::time::timeout_at(self.opened + FIRST_LOOK_LIMIT, seen.wait_for(|s| *s != Seen::NotYet)).await;
    }

    /// Waits until an answer may leave as far as the store is concerned: a look of the last seconds found the set to be this life's, or the store said
    /// nothing (R8). While a set is used the looks are ahead of this, and it does not wait; nor for longer than a few looks may take.
    ///
    /// # Errors
    /// The set is fenced, or no look ended while this waited: nothing may be answered. Each look ends within a limit, with a word or without
    /// one; where none did, this process stood still, and another life may have begun meanwhile.
    pub async fn before_answer(&self) -> Result<(), String> {
        self.before_answer_within(LOOK_LIMIT * 2).await?;
        // P1: last, and without a wait behind it.
        self.seat_allows()
    }

    async fn before_answer_within(&self, wait: Duration) -> Result<(), String> {
        // The end of a wait says nothing by itself: a process that was stopped finds it over when it goes on.
        for _ in 0..LOOK_WAITS_MAX {
            if self.looks.may_answer(boot_now()) {
                return self.fenced().map_or(Ok(()), Err);
            }
            let mut looked = self.looked.subscribe();
            self.wake.notify_one();
            let answered = async {
                while !self.looks.may_answer(boot_now()) && self.fenced().is_none() && looked.changed().await.is_ok() {}
            };
            let _ = tokio::time::timeout(wait, answered).await;
            if let Some(why) = self.fenced() {
                return Err(why);
            }
        }
        if self.looks.may_answer(boot_now()) {
            return self.fenced().map_or(Ok(()), Err);
        }
        Err("no look at the set's head in its store ended in time: nothing is answered before one does".into())
    }

    /// Asks the uploader for a checkpoint soon.
    pub fn want_checkpoint(&self) {
        self.wanted.store(true, Ordering::Release);
        self.asked.notify_one();
    }

    /// Whether somebody asks now. Whoever goes by it leaves the question open for [`HeadKeeper::take_wanted`].
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Whether somebody asked since.
    pub fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::AcqRel)
    }

    /// The last checkpoint that was seen in the store or committed here.
    pub fn covered(&self) -> Option<Covered> {
        *self.covered.borrow()
    }

    /// Whether the head names a checkpoint that this gateway made as the leader of `term`. Until then it may name one of an earlier leader that
    /// never came to be told to the group: to the Raft state alone its objects look like orphans, and a recovery needs them.
    pub fn committed_in(&self, term: Term) -> bool {
        *self.committed.locked() == Some(term)
    }

    fn note_committed(&self, term: Term, covered: Covered) {
        self.covered.send_replace(Some(covered));
        *self.committed.locked() = Some(term);
    }

    /// While this is held no checkpoint is under way here, or it is the holder's.
    pub async fn checkpoint_turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Whether this is a head of ours that names `root`.
    pub fn names_current(&self, head: &Bytes, root: Option<RootRef>) -> bool {
        open(&self.parts.key, head).is_ok_and(|head| head.life == self.parts.life && head.content.root == root)
    }

    /// Where the head lies, with everything else of the set.
    pub fn store(&self) -> &dyn ObjectStore {
        &*self.parts.store
    }

    /// Which life of the set this is.
    pub fn life(&self) -> SetLife {
        self.parts.life
    }

    fn key(&self) -> String {
        keys::head(self.parts.key.set)
    }

    /// Heads are written with this keyring from now on. Where this gateway leads, the one in the store is replaced if it has another.
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
        self.stored().map(|(keyring, _)| keyring)
    }

    fn stored(&self) -> Option<(Keyring, Links)> {
        self.stored.locked().clone()
    }

    fn note_stored(&self, keyring: Keyring, links: Links) {
        *self.stored.locked() = Some((keyring, links));
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
                return Err(KeepError::Moved { to });
            }
            match open_all(&self.parts.key, &object.body) {
                Ok((head, keyring)) => {
                    // A stale read of an earlier life counts its pins otherwise.
                    if head.life == self.parts.life {
                        self.note_stored(keyring, head.links.clone());
                    }
                    return Ok(Some((head, object.version)));
                }
                // Bytes may be spoilt on their way; what is bad in the store stays bad.
                Err(_) if tries < READS_MAX => tries += 1,
                Err(error) => return Err(self.unopened(&object.body, key, error)),
            }
        }
    }

    /// Compares what was read with this life; fences where another one is found (H1).
    fn judge(&self, head: &Head) -> Result<(), KeepError> {
        let ours = self.parts.life;
        match head.standing(ours) {
            Standing::Ours => {
                self.covered.send_replace(head.covered);
                Ok(())
            }
            Standing::Older => Err(KeepError::Stale { found: head.life.generation, expected: ours.generation }),
            // H4.
            Standing::Taken if head.life.generation == DELETED_GENERATION => {
                let why = format!(
                    "set {} is deleted: a tombstone stands in the place of its head in its store. It is never served again; this gateway \
                     removes what it has of it as soon as it hears of the deletion from the others",
                    self.parts.name
                );
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
                self.fence(&why);
                Err(KeepError::Taken(why))
            }
        }
    }

    fn fence(&self, why: &str) {
        let first = self.seen.send_if_modified(|seen| {
            let first = !matches!(seen, Seen::Fenced(_));
            *seen = Seen::Fenced(why.to_string());
            first
        });
        if !first {
            return;
        }
        tracing::error!(set = %self.parts.name, "{why}");
        metrics::counter!("holdfast_sets_fenced_total").increment(1);
        // For the next start, should the store not answer then.
        if let Err(error) = holdfast_folder::write(&self.parts.note, format!("{why}\n").as_bytes()) {
            tracing::error!(note = %self.parts.note.display(), %error, "the fence is not noted on disk; the store has it");
        }
    }

    /// Whether the store says, in answer to this question, that the set is this life's. No answer in time, no head, or one that cannot be read
    /// are no yes: who asks is about to delete.
    pub async fn still_ours(&self) -> bool {
        match tokio::time::timeout(LOOK_LIMIT, self.read()).await {
            Ok(Ok(Some((head, _)))) => self.judge(&head).is_ok(),
            _ => false,
        }
    }

    /// Reads the head once, and draws the conclusions. `None` where the store has no head, or did not answer.
    async fn look(&self) -> Option<Result<Option<Head>, KeepError>> {
        let sent = boot_now();
        self.looks.send(sent);
        let looked = self.look_once().await;
        match looked {
            Some(Ok(Some(_))) => self.looks.told(sent, Word::Ours),
            // H1: nothing is answered until group 0 has told.
            Some(Err(KeepError::Moved { .. } | KeepError::Buried { .. })) => self.looks.told(sent, Word::Elsewhere),
            // Whose it is was told all the same.
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

    /// Looks at the start; at the begin of each leadership; and while this gateway leads, as often as `looks` says or somebody waits for it.
    pub async fn watch(self: Arc<Self>, server: Arc<SetServer>, stop: CancellationToken) {
        let (mut chance, mut led_in, mut waited_for) = (rand::random::<f64>(), None, false);
        let mut tried = None;
        while self.fenced().is_none() {
            let led = server.leading_ready();
            self.note_here(&server, led);
            let begins = led.is_some() && led != led_in;
            led_in = led.or(led_in);
            let due = led.is_some() && self.looks.due(boot_now(), chance, self.stores());
            if begins || due || waited_for || *self.seen.borrow() == Seen::NotYet {
                let looked = self.look().await;
                self.seen.send_if_modified(|seen| {
                    let first = *seen == Seen::NotYet;
                    if first {
                        *seen = Seen::Go;
                    }
                    first
                });
                if let (Some(Ok(None)), Some(term)) = (&looked, server.leading_ready()) {
                    self.begin(&server, term).await;
                }
                if let (Some(Ok(Some(_))), Some(term)) = (&looked, server.leading_ready()) {
                    // The look took its time.
                    self.note_here(&server, Some(term));
                    self.replace_around(term).await;
                }
                chance = rand::random::<f64>();
            }
            waited_for = tokio::select! {
                () = stop.cancelled() => return,
                () = self.wake.notified() => !self.looks.may_answer(boot_now()),
                () = tokio::time::sleep(IDLE_LOOK) => false,
            };
            let waits = tried.is_none_or(|at: Instant| at.elapsed() >= REPLACE_EVERY);
            if waits && self.to_replace() && server.leading_ready().is_some() {
                tried = Some(Instant::now());
                waited_for = true;
            }
        }
    }

    /// There is no head: a new set's leader makes the first. Where a checkpoint exists, the next one writes it.
    async fn begin(&self, server: &SetServer, term: Term) {
        if server.host.with(|m| m.state().checkpoint.is_some()) {
            self.want_checkpoint();
            return;
        }
        let head = self.head(Epoch(0), None, Restored::default(), self.links(&Links::default(), true));
        let body = self.seal(&head, &self.keyring(), term);
        let key = self.key();
        match tokio::time::timeout(LOOK_LIMIT, self.parts.store.swap(&key, None, body)).await {
            Ok(Ok(_)) => {
                tracing::info!(set = %self.parts.name, generation = self.parts.life.generation, "first head written")
            }
            // R12: the next look says what is there.
            Ok(Err(error)) => tracing::debug!(set = %self.parts.name, %error, "first head not written yet"),
            Err(_) => {}
        }
    }

    fn head(&self, epoch: Epoch, covered: Option<Covered>, content: Restored, links: Links) -> Head {
        Head { life: self.parts.life, raised_for: 0, name: self.parts.name.clone(), epoch, covered, content, links }
    }

    /// A version of the head under an id of its own: no two versions have the same bytes (R12).
    fn seal(&self, head: &Head, keyring: &Keyring, term: Term) -> Bytes {
        let random = crate::random::random_u128();
        let id = ObjectId { term, member: self.parts.member, boot: self.parts.boot, random };
        seal_head(head, keyring, self.parts.key.sealer(id))
    }
}

/// Opens a head under the id that its own header names.
///
/// # Errors
/// [`HeadError`].
pub fn open(key: &SetKey, bytes: &[u8]) -> Result<Head, HeadError> {
    open_all(key, bytes).map(|(head, _)| head)
}

fn open_all(key: &SetKey, bytes: &[u8]) -> Result<(Head, Keyring), HeadError> {
    let (header, keyring) = read_keyring(bytes)?;
    let head = open_head(&key.opener(header.object), bytes)?;
    // Z2: nor is the next head under a lower one.
    key.seen(header.key_id);
    Ok((head, keyring))
}

/// What a checkpoint at `at` will say of the set; `None` where another one has begun since.
pub fn content_at(
    begun: Option<(LogId, &SetState)>,
    at: LogId,
    root: holdfast_control::set::RootRef,
) -> Option<(Epoch, Restored)> {
    let (_, state) = begun.filter(|(begin, _)| *begin == at)?;
    Some((state.epoch, Restored::of(state, Some(root))))
}

mod commit;
mod durable;
mod foreign;
mod freshness;
mod links;
#[cfg(any(test, feature = "testing"))]
#[allow(missing_docs, dead_code, unused_imports)]
pub mod tests;
