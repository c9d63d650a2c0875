//! The object store: one, shared by all gateways, behind a network of its own. What was sent to it is carried out whether or not the sender
//! lives to see the answer.

use bytes::Bytes;
use futures_util::FutureExt;
use holdfast_store::{BoxFuture, Faulty, Head, ListPage, Memory, Object, ObjectStore, StoreError, Version};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

use crate::rng::Rng;

type Work = Box<dyn FnOnce(&Memory) + Send>;

struct Queue {
    now: u64,
    sequence: u64,
    rng: Rng,
    /// How long a request is under way, in nanoseconds, from and to.
    delay: (u64, u64),
    waiting: BTreeMap<(u64, u64), Work>,
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
    /// An empty one.
    pub fn new(seed: u64) -> Self {
        let (rng, delay, waiting) = (Rng::new(seed, 3), (1_000_000, 8_000_000), BTreeMap::new());
        let queue = Arc::new(Mutex::new(Queue { now: 0, sequence: 0, rng, delay, waiting }));
        Self { queue, memory: Arc::new(Memory::new()) }
    }

    /// Carries out what has arrived by `now`.
    pub fn advance(&self, now: u64) {
        loop {
            let work = {
                let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
                queue.now = now;
                match queue.waiting.first_entry().filter(|entry| entry.key().0 <= now) {
                    Some(entry) => entry.remove(),
                    None => return,
                }
            };
            work(&self.memory);
        }
    }

    /// How many objects there are.
    pub fn objects(&self) -> usize {
        self.memory.len()
    }

    /// A bit of every object whose key has `part` in it is another one from now on; how many that were.
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
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let (low, high) = queue.delay;
            let at = queue.now + queue.rng.range(low, high);
            queue.sequence += 1;
            let key = (at, queue.sequence);
            let work: Work = Box::new(move |memory| {
                if let Some(answer) = ask(memory).now_or_never() {
                    // Whoever asked may be gone: it happened all the same (R12).
                    drop(tx.send(answer));
                }
            });
            queue.waiting.insert(key, work);
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
        Box::pin(self.call(move |memory| Box::pin(async move { memory.swap(&key, expected.as_ref(), body).await })))
    }
}

/// One gateway's way to the store, and what goes wrong on it. It outlives the gateway's process.
#[derive(Clone, Debug)]
pub struct Way(pub Arc<Faulty<Server>>);

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
