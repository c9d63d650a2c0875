//! The object stores, one or several, shared by all gateways, each behind its own network. A request that was sent is
//! carried out, whether or not the sender lives to see the answer.

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use holdfast_store::{
    BoxFuture, Faults, Faulty, Head, Health, ListPage, Memory, Object, ObjectStore, Quorum, RetryPolicy, Retrying,
    StoreError, Stores, Version,
};
use holdfast_types::Placement;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::broken::Broken;
use crate::rng::Rng;
use crate::sync::lock;

type Work = Box<dyn FnOnce(&Server) + Send>;

/// Late requests and answers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Late {
    /// Probability in thousandths.
    pub rate: u64,
    /// Largest delay, in nanoseconds.
    pub most: u64,
}

struct Queue {
    now: u64,
    sequence: u64,
    rng: Rng,
    /// Shortest and longest time of a request, in nanoseconds.
    delay: (u64, u64),
    late: Late,
    waiting: BTreeMap<(u64, u64), Work>,
    /// First value of each swapped object, by key: `Broken::SlotForgotten`.
    first: BTreeMap<String, Bytes>,
}

impl Queue {
    fn put(&mut self, at: u64, work: Work) {
        self.sequence += 1;
        self.waiting.insert((at, self.sequence), work);
    }
}

/// The server's side. Clones are the same.
#[derive(Clone)]
pub struct Server {
    queue: Arc<Mutex<Queue>>,
    memory: Arc<Memory>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated store")
    }
}

impl Server {
    /// The `at`th store, empty.
    pub fn new(seed: u64, at: usize) -> Self {
        let rng = Rng::new(seed, if at == 0 { 3 } else { 300 + at as u64 });
        let (delay, waiting, first) = ((1_000_000, 8_000_000), BTreeMap::new(), BTreeMap::new());
        let queue = Queue { now: 0, sequence: 0, rng, delay, late: Late::default(), waiting, first };
        Self { queue: Arc::new(Mutex::new(queue)), memory: Arc::new(Memory::new()) }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        lock(&self.queue)
    }

    /// Sets the shortest and longest time of a request, in nanoseconds.
    pub fn set_delay(&self, delay: (u64, u64)) {
        self.queue().delay = delay;
    }

    /// Sets the delays from now on.
    pub fn set_late(&self, late: Late) {
        self.queue().late = late;
    }

    /// Carries out everything that has arrived by `now`.
    pub fn advance(&self, now: u64) {
        loop {
            let work = {
                let mut queue = self.queue();
                queue.now = now;
                match queue.waiting.first_entry().filter(|entry| entry.key().0 <= now) {
                    Some(entry) => entry.remove(),
                    None => return,
                }
            };
            work(self);
        }
    }

    /// How many objects there are.
    pub fn objects(&self) -> usize {
        self.memory.len()
    }

    /// The keys of all objects.
    pub fn keys(&self) -> BTreeSet<String> {
        let (mut keys, mut after) = (BTreeSet::new(), None);
        while let Some(Ok(page)) = self.memory.list("", after.as_deref()).now_or_never() {
            keys.extend(page.objects.into_iter().map(|listed| listed.key));
            after = page.more;
            if after.is_none() {
                break;
            }
        }
        keys
    }

    /// An object as stored.
    pub fn object(&self, key: &str) -> Option<Bytes> {
        self.memory.get(key).now_or_never()?.ok()
    }

    /// Removes an object, as somebody with access to the store could, and returns it.
    pub fn take(&self, key: &str) -> Option<Bytes> {
        let body = self.object(key)?;
        drop(self.memory.delete(key).now_or_never());
        Some(body)
    }

    /// Puts an object where none is.
    pub fn put_back(&self, key: &str, body: Bytes) {
        drop(self.memory.put_new(key, body).now_or_never());
    }

    /// Whether this object is there.
    pub fn has(&self, key: &str) -> bool {
        matches!(self.memory.head(key).now_or_never(), Some(Ok(_)))
    }

    /// Deletes everything, like a lost bucket that was created again; returns the number of objects. `forgets`: swapped
    /// objects get their first value instead.
    pub fn empty(&self, forgets: bool) -> usize {
        let keys = self.keys();
        for key in &keys {
            drop(self.memory.delete(key).now_or_never());
        }
        if forgets {
            for (key, body) in self.queue().first.clone() {
                drop(self.memory.put_new(&key, body).now_or_never());
            }
        }
        keys.len()
    }

    /// Flips a bit of every object with `part` in its key; returns their number.
    pub fn rot(&self, part: &str) -> usize {
        let page = self.memory.list("", None).now_or_never().and_then(Result::ok).map(|page| page.objects);
        let keys: Vec<String> = page.into_iter().flatten().map(|o| o.key).filter(|key| key.contains(part)).collect();
        for key in &keys {
            let Some(Ok(found)) = self.memory.get_object(key).now_or_never() else { continue };
            let mut body = found.body.to_vec();
            let at = body.len() / 2;
            body[at] ^= 1;
            // Immutable to everybody else.
            drop(self.memory.delete(key).now_or_never());
            drop(self.memory.put_new(key, body.into()).now_or_never());
        }
        keys.len()
    }

    /// Sends a request and waits for its answer. Memory answers at once, so `ask`'s future never waits.
    async fn call<T: Send + 'static>(
        &self,
        ask: impl for<'a> FnOnce(&'a Memory) -> BoxFuture<'a, Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (tx, rx) = oneshot::channel();
        {
            let mut queue = self.queue();
            let (low, high) = queue.delay;
            let mut at = queue.now + queue.rng.range(low, high);
            let late = queue.late;
            let (mut back, most) = (0, late.most.max(1));
            if late.rate > 0 && queue.rng.chance(late.rate) {
                let by = queue.rng.range(1, most);
                let answer = queue.rng.chance(500);
                if answer { back = by } else { at += by }
            }
            let work: Work = Box::new(move |server| {
                let Some(answer) = ask(&server.memory).now_or_never() else { return };
                // The caller may be gone: the request took effect all the same (R12).
                let tell = move || drop(tx.send(answer));
                if back == 0 {
                    return tell();
                }
                let mut queue = server.queue();
                let at = queue.now + back;
                queue.put(at, Box::new(move |_| tell()));
            });
            queue.put(at, work);
        }
        match rx.await {
            Ok(answer) => answer,
            // Only at the end of the world.
            Err(_) => std::future::pending().await,
        }
    }
}

impl ObjectStore for Server {
    fn place(&self) -> &str {
        "simulated store"
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        let key = key.to_string();
        Box::pin(self.call(move |memory| Box::pin(async move { memory.put_new(&key, body).await })))
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        let key = key.to_string();
        Box::pin(self.call(move |memory| Box::pin(async move { memory.get_object(&key).await })))
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        let key = key.to_string();
        Box::pin(self.call(move |memory| Box::pin(async move { memory.get_range(&key, range).await })))
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        let key = key.to_string();
        Box::pin(self.call(move |memory| Box::pin(async move { memory.head(&key).await })))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        let key = key.to_string();
        Box::pin(self.call(move |memory| Box::pin(async move { memory.delete(&key).await })))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        let (prefix, after) = (prefix.to_string(), after.map(str::to_string));
        Box::pin(self.call(move |memory| Box::pin(async move { memory.list(&prefix, after.as_deref()).await })))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        let (key, expected) = (key.to_string(), expected.cloned());
        if expected.is_none() {
            self.queue().first.entry(key.clone()).or_insert_with(|| body.clone());
        }
        Box::pin(self.call(move |memory| Box::pin(async move { memory.swap(&key, expected.as_ref(), body).await })))
    }
}

/// One gateway's way to the store, with its faults. It outlives the gateway's process.
#[derive(Clone, Debug)]
pub struct Way(pub Arc<Faulty<Server>>);

impl Way {
    /// Calm, for now.
    pub fn new(server: Server, seed: u64) -> Self {
        Self(Arc::new(Faulty::new(server, seed, Faults::default())))
    }
}

/// The store of a set for a gateway: one, or several as one.
pub fn open(
    ways: &[Way],
    stores: &str,
    policy: &RetryPolicy,
    health: &Health,
    broken: Option<Broken>,
) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let placement = Placement::parse(stores);
    let list = Stores::parse(&placement.stores).map_err(StoreError::Url)?;
    if let Some(one) = list.single().filter(|_| placement.next.is_none()) {
        return Ok(Arc::new(Retrying::new(ways[place_of(one)].clone(), policy.clone())));
    }
    let one = |url: &str| {
        let (own, way) = (Arc::new(Health::new(health.label())), ways[place_of(url)].clone());
        let store: Arc<dyn ObjectStore> = Arc::new(Retrying::new(way, policy.clone()).observed(own.clone()));
        Ok((store, Some(own)))
    };
    let quorum = Arc::new(Quorum::over(&placement, one)?);
    Ok(match broken {
        Some(broken @ (Broken::CountedAtOne | Broken::NoRepair)) => Arc::new(Amiss { quorum, broken }),
        _ => Arc::new(quorum),
    })
}

/// Several stores as one, with a bug.
#[derive(Debug)]
struct Amiss {
    quorum: Arc<Quorum>,
    broken: Broken,
}

impl Amiss {
    /// Counts an object as stored once one store has it, and skips the others.
    async fn put_at_one(&self, key: &str, body: Bytes) -> Result<(), StoreError> {
        let copies: Vec<_> = (0..self.quorum.copies()).filter_map(|at| self.quorum.copy_at(at)).collect();
        let mut puts: FuturesUnordered<_> = copies.iter().map(|copy| copy.put_new(key, body.clone())).collect();
        let mut last = Ok(());
        while let Some(put) = puts.next().await {
            last = put;
            if last.is_ok() {
                break;
            }
        }
        last
    }
}

impl ObjectStore for Amiss {
    fn place(&self) -> &str {
        self.quorum.place()
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        match self.broken {
            Broken::CountedAtOne => Box::pin(self.put_at_one(key, body)),
            _ => self.quorum.put_new(key, body),
        }
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        self.quorum.get_object(key)
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.quorum.get_range(key, range)
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        ObjectStore::head(&self.quorum, key)
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.quorum.delete(key)
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        self.quorum.list(prefix, after)
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        self.quorum.swap(key, expected, body)
    }

    fn concrete(&self) -> Option<Box<dyn Any>> {
        (self.broken != Broken::NoRepair).then(|| Box::new(self.quorum.clone()) as Box<dyn Any>)
    }
}

impl ObjectStore for Way {
    fn place(&self) -> &str {
        self.0.place()
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        self.0.put_new(key, body)
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        self.0.get_object(key)
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.0.get_range(key, range)
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        self.0.head(key)
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.0.delete(key)
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        self.0.list(prefix, after)
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        self.0.swap(key, expected, body)
    }
}

/// The store of one of our URLs.
pub fn place_of(url: &str) -> usize {
    let digits = url.rsplit("store").next().unwrap_or_default();
    digits.parse::<usize>().map_or(0, |at| at.saturating_sub(1))
}
