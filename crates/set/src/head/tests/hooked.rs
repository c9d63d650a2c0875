//! A store that does something before it reads, swaps or lists objects.

use bytes::Bytes;
use holdfast_store::{BoxFuture, Head, ListPage, Object, ObjectStore, StoreError, Version};
use std::fmt::Debug;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

/// What comes first.
pub(crate) trait Hook: Debug + Send + Sync {
    /// Before the object is read.
    fn before_get(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Before the object is replaced.
    fn before_swap(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Before objects are listed.
    fn before_list(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// A store with such a hook.
#[derive(Debug)]
pub(crate) struct Hooked<H> {
    pub(crate) within: Arc<dyn ObjectStore>,
    pub(crate) hook: H,
}

impl<H: Hook> ObjectStore for Hooked<H> {
    fn place(&self) -> &str {
        self.within.place()
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        self.within.put_new(key, body)
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        Box::pin(async move {
            self.hook.before_get().await;
            self.within.get_object(key).await
        })
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.within.get_range(key, range)
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        self.within.head(key)
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.within.delete(key)
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        Box::pin(async move {
            self.hook.before_list().await;
            self.within.list(prefix, after).await
        })
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        Box::pin(async move {
            self.hook.before_swap().await;
            self.within.swap(key, expected, body).await
        })
    }
}
