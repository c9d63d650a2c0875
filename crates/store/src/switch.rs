//! A set's store, which may be replaced while it is in use. Each request goes to the store that is in place when the
//! request is made.

use crate::{BoxFuture, Head, ListPage, Object, ObjectStore, Quorum, StoreError, Version};
use bytes::Bytes;
use holdfast_types::sync::RwLockExt;
use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, RwLock};
use tokio::sync::watch;

/// See the module. A request that began before a change continues at the old store: it may be a write that the new one
/// has not received.
pub struct Switch {
    /// The place for messages: always the first one. A store names its own place in its errors.
    place: String,
    now: RwLock<(String, Arc<dyn ObjectStore>)>,
    /// Counts the changes.
    changed: watch::Sender<u64>,
}

impl std::fmt::Debug for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Switch({:?})", self.now())
    }
}

impl Switch {
    /// Begins with this store and its text.
    pub fn new(text: &str, store: Arc<dyn ObjectStore>) -> Self {
        let place = store.place().to_owned();
        Self { place, now: RwLock::new((text.to_owned(), store)), changed: watch::channel(0).0 }
    }

    fn now(&self) -> Arc<dyn ObjectStore> {
        self.now.reading().1.clone()
    }

    /// The present store, which stays the same: for work of several steps that must all be done in the same place.
    pub fn pinned(&self) -> Arc<dyn ObjectStore> {
        self.now()
    }

    /// The text of the present store.
    pub fn text(&self) -> String {
        self.now.reading().0.clone()
    }

    /// Replaces the store.
    pub fn set(&self, text: &str, store: Arc<dyn ObjectStore>) {
        *self.now.writing() = (text.to_owned(), store);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Notified of each change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

impl Switch {
    /// The present several stores; `None` if there is one.
    pub fn several(&self) -> Option<Arc<Quorum>> {
        self.now().several()
    }
}

impl ObjectStore for Switch {
    fn place(&self) -> &str {
        &self.place
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        let now = self.now();
        Box::pin(async move { now.put_new(key, body).await })
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        let now = self.now();
        Box::pin(async move { now.get_object(key).await })
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        let now = self.now();
        Box::pin(async move { now.get_range(key, range).await })
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        let now = self.now();
        Box::pin(async move { now.head(key).await })
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        let now = self.now();
        Box::pin(async move { now.delete(key).await })
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        let now = self.now();
        Box::pin(async move { now.list(prefix, after).await })
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        let now = self.now();
        Box::pin(async move { now.swap(key, expected, body).await })
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        let now = self.now();
        Box::pin(async move { now.get(key).await })
    }

    fn concrete(&self) -> Option<Box<dyn Any>> {
        self.now().concrete()
    }
}
