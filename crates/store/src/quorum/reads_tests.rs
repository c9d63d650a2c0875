//! Stores that answer, have nothing, fail, or never answer.

use super::*;
use crate::error::{At, Cause};
use crate::health::Kind;
use crate::{Disposition, Head, ListPage, Object, Version};
use bytes::Bytes;
use std::future::pending;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

const KEY: &str = "sets/1/seg/x";

#[derive(Clone, Copy, Debug)]
enum Answers {
    Here,
    Missing,
    Fails,
    Never,
}

#[derive(Debug)]
struct Script {
    answers: Answers,
    asked: AtomicUsize,
    given_up: AtomicUsize,
}

/// A request that never ends, but can be dropped.
struct GivenUp<'a>(&'a AtomicUsize);

impl Drop for GivenUp<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

/// This test needs no result.
fn no<'a, T: 'a>() -> BoxFuture<'a, Result<T, StoreError>> {
    Box::pin(pending())
}

impl ObjectStore for Script {
    fn place(&self) -> &str {
        "script"
    }
    fn put_new<'a>(&'a self, _: &'a str, _: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        no()
    }
    fn get_object<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        no()
    }
    fn get_range<'a>(&'a self, key: &'a str, _: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.asked.fetch_add(1, SeqCst);
        let at = At::new(&Arc::from(self.place()), Op::Range, key);
        Box::pin(async move {
            match self.answers {
                Answers::Here => Ok(Bytes::from_static(b"here")),
                Answers::Missing => Err(StoreError::NotFound { at }),
                Answers::Fails => {
                    let cause = Cause::of_kind(Kind::NoAnswer, "played");
                    Err(StoreError::Unavailable { at, attempts: 1, cause })
                }
                Answers::Never => {
                    let _given_up = GivenUp(&self.given_up);
                    pending().await
                }
            }
        })
    }
    fn head<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        no()
    }
    fn delete<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        no()
    }
    fn list<'a>(&'a self, _: &'a str, _: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        no()
    }
    fn swap<'a>(&'a self, _: &'a str, _: Option<&'a Version>, _: Bytes) -> BoxFuture<'a, Result<Version, StoreError>> {
        no()
    }
}

fn three(answers: [Answers; 3]) -> (Vec<Arc<Script>>, Arc<Quorum>) {
    let script = |answers| Arc::new(Script { answers, asked: AtomicUsize::new(0), given_up: AtomicUsize::new(0) });
    let scripts: Vec<Arc<Script>> = answers.into_iter().map(script).collect();
    let all = Quorum::new(scripts.iter().map(|script| (script.clone() as Arc<dyn ObjectStore>, None)).collect(), 2);
    (scripts, all)
}

/// A read that waits for ever fails its test.
async fn get(all: &Arc<Quorum>) -> Result<Bytes, StoreError> {
    tokio::time::timeout(Duration::from_secs(30), all.get_range(KEY, 0..4)).await.expect("a read ends")
}

fn asked(scripts: &[Arc<Script>]) -> Vec<usize> {
    scripts.iter().map(|script| script.asked.load(SeqCst)).collect()
}

/// READ-E2: the next read asks this store last.
#[tokio::test]
async fn a_silent_store_is_given_up_once_another_has_answered() {
    let (scripts, all) = three([Answers::Never, Answers::Here, Answers::Here]);
    assert_eq!(get(&all).await, Ok(Bytes::from_static(b"here")));
    assert_eq!(asked(&scripts)[..2], [1, 1]);
    assert_eq!(scripts[0].given_up.load(SeqCst), 1);
    assert_eq!(get(&all).await, Ok(Bytes::from_static(b"here")));
    assert_eq!(asked(&scripts), [1, 2, 0], "it was asked again");
}

/// READ-E1, READ-E2: the second store has nothing, the third has it; a silent store before them does not change what
/// counts as an answer.
#[tokio::test]
async fn not_here_is_no_answer_while_another_store_is_silent() {
    let (scripts, all) = three([Answers::Never, Answers::Missing, Answers::Here]);
    assert_eq!(get(&all).await, Ok(Bytes::from_static(b"here")));
    assert_eq!(asked(&scripts), [1, 1, 1]);
}

#[tokio::test]
async fn when_all_fail_each_was_asked_once() {
    let (scripts, all) = three([Answers::Fails; 3]);
    assert!(get(&all).await.expect_err("none answers").may_pass());
    assert_eq!(asked(&scripts), [1, 1, 1]);
    let (scripts, all) = three([Answers::Missing, Answers::Fails, Answers::Missing]);
    assert!(get(&all).await.expect_err("one does not say").may_pass(), "R7: it may have it");
    assert_eq!(asked(&scripts), [1, 1, 1]);
    let (_, all) = three([Answers::Missing; 3]);
    let nowhere = get(&all).await.expect_err("nowhere");
    assert_eq!(nowhere.disposition(), Disposition::NotFound);
}
