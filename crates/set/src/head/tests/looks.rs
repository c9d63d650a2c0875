//! When a read of the head, or a commit, counts as sent.

use super::super::freshness::FRESH_FOR;
use super::*;
use futures_util::future::BoxFuture;
use holdfast_store::{ListPage, Object, StoreError, Version};
use holdfast_types::MonoTime;
use std::ops::Range;

/// Notes when it was asked last, and answers only once that moment is over.
#[derive(Debug)]
struct Noting {
    inner: Memory,
    asked: Mutex<MonoTime>,
}

impl Noting {
    async fn note(&self) {
        let now = boot_now();
        *self.asked.locked() = now;
        while boot_now() <= now {
            tokio::task::yield_now().await;
        }
    }
}

impl ObjectStore for Noting {
    fn place(&self) -> &str {
        self.inner.place()
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.put_new(key, body)
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        Box::pin(async move {
            self.note().await;
            self.inner.get_object(key).await
        })
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.inner.get_range(key, range)
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<holdfast_store::Head, StoreError>> {
        self.inner.head(key)
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        self.inner.delete(key)
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        self.inner.list(prefix, after)
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        Box::pin(async move {
            self.note().await;
            self.inner.swap(key, expected, body).await
        })
    }
}

/// HEAD-H1: what an answer says was so when it was asked for. Another life may have begun since, while the answer was
/// on its way.
#[tokio::test]
async fn a_look_and_a_commit_count_from_the_moment_in_which_they_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Noting { inner: Memory::new(), asked: Mutex::default() });
    let keeper = keeper(store.clone(), FIRST, dir.path());
    // The first moment in which what was asked for last counts no more.
    let over = || MonoTime(store.asked.locked().0 + 1).saturating_add(FRESH_FOR);
    commit(&keeper, 10).await.unwrap();
    assert!(!keeper.looks.may_answer(over()), "a commit counts from its answer");
    look_is_old(&keeper);
    assert!(matches!(keeper.look().await, Some(Ok(Some(_)))));
    assert!(keeper.looks.may_answer(boot_now()));
    assert!(!keeper.looks.may_answer(over()), "a look counts from its answer");
}
