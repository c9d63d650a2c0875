//! Several stores as one: an object counts once `w` of `n` have it, and the head is one register over all of them (ADR 0018).
//!
//! ```text
//!   put_new   to all at once; Ok once w have it. The others go on behind, a few at a time; what one did not take is noted for the repair
//!   get       from one, the next one when it fails, has it not, or takes long (`reads`)
//!   delete    at all: Ok once all have answered
//!   list      what any of them shows
//!   head      `head`: rules in `register`
//! ```
//! A 404 at one store means "not here" (R7): "not found" is said only where all n say it.

mod head;
mod head_errors;
mod reads;
mod register;
mod repair;

use crate::error::{At, Cause, Disposition, Op, StoreError};
use crate::health::{Health, Kind, Standing};
use crate::{BoxFuture, Head, ListPage, Listed, Object, ObjectStore, Version, keys};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use reads::Speed;
pub use repair::{Backlog, RepairError, Wanted};

/// PUTs to one store that may go on behind callers who have their quorum already. Each holds an object: a store that hangs keeps so many.
const BEHIND_MAX: usize = 4;
/// How long a listing waits for a store after enough others have answered.
const LIST_STRAGGLERS: Duration = Duration::from_secs(2);
/// Steps of the register at one store that may be under way at once.
const HEADS_MAX: usize = 4;

/// A store, and who is told of its attempts.
pub type Observed = (Arc<dyn ObjectStore>, Option<Arc<Health>>);

/// One of the stores.
pub(crate) struct Replica {
    index: usize,
    store: Arc<dyn ObjectStore>,
    health: Option<Arc<Health>>,
    speed: Speed,
    missing: Mutex<repair::Missing>,
    behind: Arc<Semaphore>,
    heads: Arc<Semaphore>,
}

/// How one of the stores does, for people.
#[derive(Clone, Debug)]
pub struct ReplicaStanding {
    /// [`ObjectStore::place`].
    pub place: String,
    /// How it has answered.
    pub standing: Standing,
    /// What it lacks.
    pub backlog: Backlog,
}

/// What one of the stores has of a set, for people.
#[derive(Clone, Debug)]
pub enum SeatSeen {
    /// Its part of the head.
    Here,
    /// No head: it was emptied, or is another place than the set's.
    Nothing,
    /// It does not answer, or something else lies there.
    Unread(StoreError),
}

/// See the module.
pub struct Quorum {
    replicas: Vec<Arc<Replica>>,
    w: usize,
    place: Arc<str>,
    hedges: reads::Hedges,
}

impl std::fmt::Debug for Quorum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Quorum({})", self.place)
    }
}

impl Quorum {
    /// Over `stores`, in the set's order, of which `w` must have an object. Each has a health of its own, told by whoever made it.
    pub fn new(stores: Vec<Observed>, w: usize) -> Self {
        assert!(2 * w > stores.len() && w <= stores.len(), "w = {w} of {}: two quorums must meet (Q1)", stores.len());
        let places: Vec<&str> = stores.iter().map(|(store, _)| store.place()).collect();
        let place = Arc::from(format!("{w} of [{}]", places.join(", ")));
        let replica = |(index, (store, health))| {
            Arc::new(Replica {
                index,
                store,
                health,
                speed: Speed::default(),
                missing: Mutex::default(),
                behind: Arc::new(Semaphore::new(BEHIND_MAX)),
                heads: Arc::new(Semaphore::new(HEADS_MAX)),
            })
        };
        let replicas = stores.into_iter().enumerate().map(replica).collect();
        Self { replicas, w, place, hedges: reads::Hedges::default() }
    }

    /// How each store does.
    pub fn standings(&self, now_unix_ms: u64) -> Vec<ReplicaStanding> {
        let standing = |replica: &Arc<Replica>| ReplicaStanding {
            place: replica.store.place().to_owned(),
            standing: replica.health.as_ref().map_or_else(Standing::default, |health| health.standing(now_unix_ms)),
            backlog: replica.backlog(),
        };
        self.replicas.iter().map(standing).collect()
    }

    /// What each store has in the place of the head at `key`, in the set's order; waits for each a while.
    pub async fn seats(&self, key: &str) -> Vec<(String, SeatSeen)> {
        let answers = self.ask_all(key, true).await;
        let seats = self.replicas.iter().zip(answers).map(|(replica, answer)| {
            let seen = match (answer.seen, answer.error) {
                (register::Seen::Slot(_) | register::Seen::Marked(_), _) => SeatSeen::Here,
                (register::Seen::Empty, _) => SeatSeen::Nothing,
                (register::Seen::Silent, Some(error)) => SeatSeen::Unread(error),
                (register::Seen::Silent, None) => {
                    let at = At::new(&Arc::from(replica.store.place()), Op::Get, key);
                    let cause = Cause::of_kind(Kind::NoAnswer, "no answer in time");
                    SeatSeen::Unread(StoreError::Unavailable { at, attempts: 1, cause })
                }
            };
            (replica.store.place().to_owned(), seen)
        });
        seats.collect()
    }

    /// How many stores must have an object.
    pub fn write_quorum(&self) -> usize {
        self.w
    }

    fn at(&self, op: Op, key: &str) -> Box<At> {
        At::new(&self.place, op, key)
    }

    async fn put_at_quorum(&self, key: &str, body: Bytes) -> Result<(), StoreError> {
        let mut puts = FuturesUnordered::new();
        for replica in &self.replicas {
            puts.push(replica.clone().put(key.to_owned(), body.clone()));
        }
        let (mut done, mut errors) = (0, Vec::new());
        while let Some(put) = puts.next().await {
            match put {
                Ok(()) => done += 1,
                Err(error) => errors.push(error),
            }
            if done >= self.w {
                return Ok(());
            }
        }
        Err(self.too_few(Op::Put, key, done, &errors))
    }

    /// Of a write: not enough stores have done it.
    fn too_few(&self, op: Op, key: &str, done: usize, errors: &[StoreError]) -> StoreError {
        if let Some(error) = errors.iter().find(|_| errors.iter().all(|e| !e.may_pass())) {
            return error.clone();
        }
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let text = format!("done at {done} of the {} stores that it takes: {}", self.w, texts.join("; "));
        let cause = Box::new(Cause { kind: errors.iter().find_map(StoreError::kind), ..*Cause::text(text) });
        StoreError::Unknown { at: self.at(op, key), attempts: 1, cause }
    }

    async fn delete_at_all(&self, key: &str) -> Result<(), StoreError> {
        let deletions = self.replicas.iter().map(|replica| async {
            replica.forget(key);
            replica.store.delete(key).await
        });
        let failed: Vec<StoreError> = join_all(deletions).await.into_iter().filter_map(Result::err).collect();
        failed.into_iter().next().map_or(Ok(()), Err)
    }

    /// What any store shows. A store that does not answer is left out, and none is waited for long once so many have answered that whatever w of them have is
    /// shown: a listing is a hint.
    async fn list_any(&self, prefix: &str, after: Option<&str>) -> Result<ListPage, StoreError> {
        let mut asked: FuturesUnordered<_> =
            self.replicas.iter().map(|replica| replica.store.list(prefix, after)).collect();
        let (mut pages, mut listed) = (Vec::new(), 0);
        loop {
            let meets = listed > self.replicas.len() - self.w;
            let next = async {
                match meets {
                    true => tokio::time::timeout(LIST_STRAGGLERS, asked.next()).await.unwrap_or(None),
                    false => asked.next().await,
                }
            };
            let Some(page) = next.await else { break };
            listed += usize::from(page.is_ok());
            pages.push(page);
        }
        drop(asked);
        let mut shown: BTreeMap<String, u64> = BTreeMap::new();
        let (mut until, mut error): (Option<String>, Option<StoreError>) = (None, None);
        let mut answered = false;
        for page in pages {
            match page {
                Ok(page) => {
                    answered = true;
                    // Beyond its `more` a store has not spoken yet.
                    if let Some(more) = page.more {
                        until = Some(match until {
                            Some(until) => until.min(more),
                            None => more,
                        });
                    }
                    shown.extend(page.objects.into_iter().map(|listed| (listed.key, listed.bytes)));
                }
                Err(e) => error = Some(e),
            }
        }
        if let (false, Some(error)) = (answered, error) {
            return Err(error);
        }
        if let Some(until) = &until {
            shown.retain(|key, _| key <= until);
        }
        let objects = shown.into_iter().map(|(key, bytes)| Listed { key, bytes }).collect();
        Ok(ListPage { objects, more: until })
    }
}

impl Replica {
    /// Writes here. Goes on when the caller does not wait any more, if there is a place among those that do; what is not written is noted.
    async fn put(self: Arc<Self>, key: String, body: Bytes) -> Result<(), StoreError> {
        let bytes = body.len() as u64;
        let Ok(place) = self.behind.clone().try_acquire_owned() else {
            // Too much is under way here already. The caller may still need this store; when it does not, this ends with it.
            let noted = NoteUnlessDone { replica: &self, key: &key, bytes, done: false };
            let mut task = JoinSet::new();
            let (replica, name) = (self.clone(), key.clone());
            // In a task of its own: a place is given to whoever waits longest, looked at or not, and one of several PUTs of a caller that looks at
            // another one meanwhile would keep it for ever.
            task.spawn(async move {
                let _place = replica.behind.acquire().await;
                replica.store.put_new(&name, body).await
            });
            let put = task.join_next().await.and_then(Result::ok).unwrap_or_else(|| Err(self.abandoned(&key)));
            return noted.ends(put);
        };
        let (tell, told) = oneshot::channel();
        let replica = self.clone();
        let name = key.clone();
        tokio::spawn(async move {
            let noted = NoteUnlessDone { replica: &replica, key: &name, bytes, done: false };
            let put = noted.ends(replica.store.put_new(&name, body).await);
            drop(place);
            // Nobody waits any more: the quorum was met.
            let _ = tell.send(put);
        });
        told.await.unwrap_or_else(|_| Err(self.abandoned(&key)))
    }

    fn abandoned(&self, key: &str) -> StoreError {
        let cause = Cause::text("the work was abandoned while the process stops");
        StoreError::Unknown { at: At::new(&Arc::from(self.store.place()), Op::Put, key), attempts: 1, cause }
    }
}

/// Notes that a store lacks an object, unless it was told that it has it; also when it is dropped on the way.
struct NoteUnlessDone<'a> {
    replica: &'a Replica,
    key: &'a str,
    bytes: u64,
    done: bool,
}

impl NoteUnlessDone<'_> {
    fn ends(mut self, put: Result<(), StoreError>) -> Result<(), StoreError> {
        self.done = put.is_ok();
        if self.done {
            // An earlier attempt may have noted it.
            self.replica.forget(self.key);
        }
        put
    }
}

impl Drop for NoteUnlessDone<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.replica.note_missing(self.key, self.bytes);
        }
    }
}

/// What one store has in place of a head where it is one of several; `None` for other bytes. For people who named one store only.
pub fn head_of_several(object: &[u8]) -> Option<String> {
    register::seat_of(object).map(|seat| format!("store {} of {} with write quorum {}", seat.index + 1, seat.n, seat.w))
}

/// Whether the key is a register's: the one object of a set that is swapped.
fn is_register(key: &str) -> bool {
    keys::set_of(key).is_some_and(|set| keys::head(set) == key)
}

impl ObjectStore for Quorum {
    fn place(&self) -> &str {
        &self.place
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.put_at_quorum(key, body))
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        if is_register(key) {
            return Box::pin(self.look(key));
        }
        Box::pin(self.read(Op::Get, key, move |store| store.get_object(key)))
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(self.read(Op::Range, key, move |store| store.get_range(key, range.clone())))
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        if is_register(key) {
            return Box::pin(async move {
                let object = self.look(key).await?;
                Ok(Head { bytes: object.body.len() as u64, version: object.version })
            });
        }
        Box::pin(self.read(Op::Head, key, move |store| store.head(key)))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.delete_at_all(key))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        Box::pin(self.list_any(prefix, after))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        if !is_register(key) {
            let cause = Cause::text("only a set's head is swapped over several stores");
            let hint = "use a single store for this";
            return Box::pin(async move { Err(StoreError::Denied { at: self.at(Op::Swap, key), cause, hint }) });
        }
        Box::pin(self.swap_register(key, expected, body))
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        if is_register(key) {
            return Box::pin(async move { Ok(self.look(key).await?.body) });
        }
        Box::pin(self.read(Op::Get, key, move |store| store.get(key)))
    }

    fn several(&self) -> Option<&Quorum> {
        Some(self)
    }
}

/// What several failed answers to one question come to: the one that may pass, else one that says more than "not here".
fn worst(errors: Vec<StoreError>) -> Option<StoreError> {
    let weight = |error: &StoreError| match error.disposition() {
        _ if error.may_pass() => 3,
        Disposition::NotFound => 0,
        Disposition::Corrupt => 2,
        _ => 1,
    };
    errors.into_iter().max_by_key(weight)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "quorum_tests.rs"]
mod tests;
