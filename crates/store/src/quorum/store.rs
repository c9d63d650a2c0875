//! [`ObjectStore`] over several stores, and the state of each store.

use super::missing::Backlog;
use super::register;
use super::state::{Part, Quorum, Register, Replica};
use crate::error::{At, Cause, Disposition, Op, StoreError};
use crate::health::{Kind, Standing};
use crate::keys;
use crate::object_store::{BoxFuture, Head, ListPage, Listed, Object, ObjectStore};
use crate::version::Version;
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use holdfast_types::SetId;
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// How long a listing waits for a store after enough others have answered.
pub(super) const LIST_STRAGGLERS: Duration = Duration::from_secs(2);

/// State of one of the stores, for people.
#[derive(Clone, Debug)]
pub struct ReplicaStanding {
    /// [`ObjectStore::place`].
    pub place: String,
    /// Its part in a change.
    pub part: Part,
    /// Its health.
    pub standing: Standing,
    /// The objects that it lacks.
    pub backlog: Backlog,
}

/// What one of the stores holds for a set, for people.
#[derive(Clone, Debug)]
pub enum SeatSeen {
    /// Its part of the head.
    Here,
    /// No head: it was emptied, or is another place than the set's store.
    Nothing,
    /// It does not answer, or another object is in the head's place.
    Unread(StoreError),
}

impl dyn ObjectStore + '_ {
    /// The present several stores; `None` if there is one.
    pub fn several(&self) -> Option<Arc<Quorum>> {
        self.concrete()?.downcast().ok().map(|all: Box<Arc<Quorum>>| *all)
    }
}

impl Quorum {
    /// Health of each store, without the backlog, which takes longer to count the larger it is.
    pub fn healths(&self, now_unix_ms: u64) -> impl Iterator<Item = Standing> + '_ {
        let health = move |replica: &Arc<Replica>| replica.health.as_ref().map(|health| health.standing(now_unix_ms));
        self.replicas.iter().map(move |replica| health(replica).unwrap_or_default())
    }

    /// Health and backlog of each store.
    pub fn standings(&self, now_unix_ms: u64) -> Vec<ReplicaStanding> {
        let standing = |replica: &Arc<Replica>| ReplicaStanding {
            place: replica.store.place().to_owned(),
            part: self.part(replica),
            standing: replica.health.as_ref().map_or_else(Standing::default, |health| health.standing(now_unix_ms)),
            backlog: replica.backlog(),
        };
        self.replicas.iter().map(standing).collect()
    }

    /// The part of the set's head that each store holds, in the order of the list that counts. Waits a while for each.
    ///
    /// # Errors
    /// It cannot be determined which list counts.
    pub async fn seats(&self, set: SetId) -> Result<Vec<(String, SeatSeen)>, StoreError> {
        let ended = self.registers.len() > 1 && self.list_ended(set).await?;
        let Some(register) = self.registers.get(usize::from(ended)) else { return Ok(Vec::new()) };
        let key = register.key(set);
        if let [one] = register.replicas.as_slice() {
            let seen = match one.store.head(&key).await {
                Ok(_) => SeatSeen::Here,
                Err(error) if error.disposition() == Disposition::NotFound => SeatSeen::Nothing,
                Err(error) => SeatSeen::Unread(error),
            };
            return Ok(vec![(one.store.place().to_owned(), seen)]);
        }
        let answers = register.ask_all(&key, true).await;
        let seats = register.replicas.iter().zip(answers).map(|(replica, answer)| {
            let seen = match (answer.seen, answer.error) {
                (register::Seen::Entry(_) | register::Seen::Marked(_), _) => SeatSeen::Here,
                (register::Seen::Empty, _) => SeatSeen::Nothing,
                (register::Seen::Silent, Some(error)) => SeatSeen::Unread(error),
                (register::Seen::Silent, None) => {
                    let at = At::new(&Arc::from(replica.store.place()), Op::Get, &key);
                    let cause = Cause::of_kind(Kind::NoAnswer, "no answer in time");
                    SeatSeen::Unread(StoreError::Unavailable { at, attempts: 1, cause })
                }
            };
            (replica.store.place().to_owned(), seen)
        });
        Ok(seats.collect())
    }

    async fn put_at_quorum(&self, key: &str, body: Bytes) -> Result<(), StoreError> {
        let mut puts = FuturesUnordered::new();
        for replica in &self.replicas {
            let put = replica.clone().put(key.to_owned(), body.clone());
            puts.push(async move { (replica.index, put.await) });
        }
        let (mut done, mut errors) = (vec![false; self.replicas.len()], Vec::new());
        while let Some((index, put)) = puts.next().await {
            match put {
                Ok(()) => done[index] = true,
                Err(error) => errors.push(error),
            }
            // LIST-L4.
            if self.enough(&done) {
                return Ok(());
            }
        }
        Err(self.too_few(Op::Put, key, &done, &errors))
    }

    /// Error of a write that too few stores have done.
    fn too_few(&self, op: Op, key: &str, done: &[bool], errors: &[StoreError]) -> StoreError {
        if let Some(error) = errors.iter().find(|_| errors.iter().all(|e| !e.may_pass())) {
            return error.clone();
        }
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let of = |register: &Register| format!("done at {} of {} needed stores", register.count(done), register.w);
        let lists: Vec<String> = self.counting().iter().map(of).collect();
        let text = format!("{}: {}", lists.join(", and in the new list "), texts.join("; "));
        let cause = Box::new(Cause { kind: errors.iter().find_map(StoreError::kind), ..*Cause::text(text) });
        StoreError::Unknown { at: self.at(op, key), attempts: 1, cause }
    }

    async fn delete_at_all(&self, key: &str) -> Result<(), StoreError> {
        let kept = |replica: &&Arc<Replica>| self.counting().iter().any(|list| list.has(replica));
        let deletions = self.replicas.iter().filter(kept).map(|replica| async {
            replica.forget(key);
            replica.store.delete(key).await
        });
        let failed: Vec<StoreError> = join_all(deletions).await.into_iter().filter_map(Result::err).collect();
        failed.into_iter().next().map_or(Ok(()), Err)
    }

    /// The objects that any store lists. A store that does not answer is left out. A slow one is not waited for long
    /// once so many have answered that every object at w stores is listed: a listing is a hint.
    async fn list_any(&self, prefix: &str, after: Option<&str>) -> Result<ListPage, StoreError> {
        let mut asked: FuturesUnordered<_> = self
            .replicas
            .iter()
            .map(|replica| async { (replica.index, replica.store.list(prefix, after).await) })
            .collect();
        let (mut pages, mut listed) = (Vec::new(), vec![false; self.replicas.len()]);
        loop {
            let meets = self.counting().iter().all(|list| list.count(&listed) > list.replicas.len() - list.w);
            let next = async {
                match meets {
                    true => tokio::time::timeout(LIST_STRAGGLERS, asked.next()).await.unwrap_or(None),
                    false => asked.next().await,
                }
            };
            let Some((index, page)) = next.await else { break };
            listed[index] = page.is_ok();
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
                    // The store has not reported anything beyond its `more` yet.
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
    /// Writes to this store. Continues when the caller stops waiting, unless [`BEHIND_MAX`](super::state::BEHIND_MAX)
    /// others do so already. An object that is not written is noted as missing.
    async fn put(self: Arc<Self>, key: String, body: Bytes) -> Result<(), StoreError> {
        let bytes = body.len() as u64;
        let Ok(place) = self.behind.clone().try_acquire_owned() else {
            // Too many continue here already. The caller may still need this store; if it stops waiting, this PUT ends
            // with it.
            let noted = NoteUnlessDone { replica: &self, key: &key, bytes, done: false };
            let mut task = JoinSet::new();
            let (replica, name) = (self.clone(), key.clone());
            // In a task of its own: the semaphore gives its permit to the longest waiter, whether it is polled or not.
            // A caller with several PUTs that polls another one meanwhile would keep the permit for ever.
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
            // The quorum was reached: nobody waits any more.
            let _ = tell.send(put);
        });
        told.await.unwrap_or_else(|_| Err(self.abandoned(&key)))
    }

    fn abandoned(&self, key: &str) -> StoreError {
        let cause = Cause::text("the work was abandoned while the process stops");
        StoreError::Unknown { at: At::new(&Arc::from(self.store.place()), Op::Put, key), attempts: 1, cause }
    }
}

/// Notes that a store lacks an object unless the write succeeded; also if it is dropped before its end.
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

/// Describes the part of a head that one of several stores holds; `None` for other bytes. For a person who named only
/// one store.
pub fn head_of_several(object: &[u8]) -> Option<String> {
    register::seat_of(object).map(|seat| format!("store {} of {} with write quorum {}", seat.index + 1, seat.n, seat.w))
}

/// The set whose head the key names: the only object of a set that is swapped.
fn head_at(key: &str) -> Option<SetId> {
    keys::set_of(key).filter(|set| keys::head(*set) == key)
}

impl ObjectStore for Arc<Quorum> {
    fn place(&self) -> &str {
        &self.place
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.put_at_quorum(key, body))
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        if let Some(set) = head_at(key) {
            return Box::pin(self.look_head(set));
        }
        Box::pin(self.read(Op::Get, key, move |store| store.get_object(key)))
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(self.read(Op::Range, key, move |store| store.get_range(key, range.clone())))
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        if let Some(set) = head_at(key) {
            return Box::pin(async move {
                let object = self.look_head(set).await?;
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
        let Some(set) = head_at(key) else {
            let cause = Cause::text("only a set's head is swapped over several stores");
            let hint = "use a single store for this";
            return Box::pin(async move { Err(StoreError::Denied { at: self.at(Op::Swap, key), cause, hint }) });
        };
        Box::pin(self.swap_head(set, expected, body))
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        if let Some(set) = head_at(key) {
            return Box::pin(async move { Ok(self.look_head(set).await?.body) });
        }
        Box::pin(self.read(Op::Get, key, move |store| store.get(key)))
    }

    fn concrete(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(self.clone()))
    }
}
