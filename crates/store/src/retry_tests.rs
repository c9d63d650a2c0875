use super::*;
use crate::Memory;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::Mutex;

/// What the store does with the next attempt.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// It is done and answered.
    Pass,
    /// 503: not done.
    Refuse,
    /// Done; the answer is lost.
    Lose,
    /// Not done, and the outcome is unknown.
    Swallow,
    /// 403.
    Deny,
    /// Never answers, but is done.
    Hang,
    /// 404.
    Miss,
    /// A conditional write finds another object, whatever is there.
    Conflict,
    /// A range is too short.
    Short,
}

/// A store in memory that follows a script; after its end, everything succeeds. Like S3, and unlike [`Memory`], it
/// answers 412 without comparing the content.
#[derive(Debug, Default)]
struct Scripted {
    memory: Memory,
    script: Mutex<VecDeque<Step>>,
    asked: Mutex<Vec<Op>>,
}

impl Scripted {
    fn at(&self, op: Op, key: &str) -> Box<At> {
        At::new(&Arc::from("script"), op, key)
    }

    async fn play<T>(
        &self,
        op: Op,
        key: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.asked.lock().expect("lock").push(op);
        let step = self.script.lock().expect("lock").pop_front().unwrap_or(Step::Pass);
        let (at, attempts, cause) = (self.at(op, key), 1, Cause::text(format!("{step:?}")));
        match step {
            Step::Pass | Step::Short => request.await,
            Step::Refuse => Err(StoreError::Unavailable { at, attempts, cause }),
            Step::Swallow => Err(StoreError::Unknown { at, attempts, cause }),
            Step::Lose => {
                let _ = request.await;
                if op.writes() {
                    return Err(StoreError::Unknown { at, attempts, cause });
                }
                Err(StoreError::Unavailable { at, attempts, cause })
            }
            Step::Deny => Err(StoreError::Denied { at, cause, hint: "hint" }),
            Step::Hang => {
                let _ = request.await;
                std::future::pending().await
            }
            Step::Miss => Err(StoreError::NotFound { at }),
            Step::Conflict => Err(StoreError::Exists { at, found_bytes: 0, expected_bytes: 0 }),
        }
    }
}

impl ObjectStore for Scripted {
    fn place(&self) -> &str {
        "script"
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.play(Op::Put, key, async move {
            if self.memory.head(key).await.is_ok() {
                return Err(StoreError::Exists { at: self.at(Op::Put, key), found_bytes: 0, expected_bytes: 0 });
            }
            self.memory.put_new(key, body).await
        }))
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        Box::pin(self.play(Op::Get, key, self.memory.get_object(key)))
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        let short = matches!(self.script.lock().expect("lock").front(), Some(Step::Short));
        let range = if short { range.start..range.end - 1 } else { range };
        Box::pin(self.play(Op::Range, key, self.memory.get_range(key, range)))
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        Box::pin(self.play(Op::Head, key, self.memory.head(key)))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.play(Op::Delete, key, self.memory.delete(key)))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        Box::pin(self.play(Op::List, prefix, self.memory.list(prefix, after)))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        Box::pin(self.play(Op::Swap, key, async move {
            let found = self.memory.head(key).await.ok().map(|head| head.version);
            if found.as_ref() != expected {
                let at = self.at(Op::Swap, key);
                return Err(StoreError::Changed { at, found: None, expected: expected.cloned() });
            }
            self.memory.swap(key, expected, body).await
        }))
    }
}

fn store(script: impl IntoIterator<Item = Step>) -> Retrying<Scripted> {
    let scripted = Scripted { script: Mutex::new(script.into_iter().collect()), ..Scripted::default() };
    let policy = RetryPolicy {
        attempts_max: 4,
        backoff_first_ms: 1,
        backoff_max_ms: 2,
        read_timeout_ms: 30,
        write_timeout_ms: 30,
        operation_timeout_ms: 60_000,
    };
    Retrying::new(scripted, policy)
}

impl Retrying<Scripted> {
    fn asked(&self) -> Vec<Op> {
        self.within.asked.lock().expect("lock").clone()
    }

    fn then(&self, script: impl IntoIterator<Item = Step>) {
        self.within.script.lock().expect("lock").extend(script);
        self.within.asked.lock().expect("lock").clear();
    }
}

const OURS: Bytes = Bytes::from_static(b"ours");
const THEIRS: Bytes = Bytes::from_static(b"theirs");

fn disposition<T: std::fmt::Debug>(result: Result<T, StoreError>) -> Disposition {
    result.expect_err("must fail").disposition()
}

#[tokio::test]
async fn a_lost_answer_is_found_out_by_content() {
    for lost in [Step::Lose, Step::Hang, Step::Swallow] {
        let store = store([lost]);
        store.put_new("k", OURS).await.expect("ours");
        assert_eq!(store.get("k").await, Ok(OURS));
        let store = self::store([lost]);
        let version = store.swap("k", None, OURS).await.expect("ours");
        assert_eq!(store.head("k").await.map(|head| head.version), Ok(version));
    }
}

#[tokio::test]
async fn another_content_is_a_conflict() {
    let store = store([]);
    store.put_new("k", THEIRS).await.expect("put");
    let error = store.put_new("k", OURS).await.expect_err("taken");
    assert!(matches!(error, StoreError::Exists { found_bytes: 6, expected_bytes: 4, .. }), "{error}");
    // A proof even after an unknown attempt: objects are never replaced.
    store.then([Step::Swallow]);
    assert_eq!(disposition(store.put_new("k", OURS).await), Disposition::Conflict);
}

/// A length proves nothing: an object counts as ours only if every byte of it is equal (R12).
#[tokio::test]
async fn a_content_of_the_same_length_or_less_is_a_conflict_too() {
    for theirs in [Bytes::from_static(b"our"), Bytes::from_static(b"Ours"), Bytes::new()] {
        assert!(theirs.len() <= OURS.len() && theirs != OURS);
        let store = store([]);
        store.put_new("k", theirs.clone()).await.expect("put");
        assert_eq!(disposition(store.put_new("k", OURS).await), Disposition::Conflict, "{theirs:?}");
    }
}

#[tokio::test]
async fn a_swap_that_may_have_been_overtaken_stays_unknown() {
    let store = store([]);
    let theirs = store.swap("k", None, THEIRS).await.expect("swap");
    let error = store.swap("k", None, OURS).await.expect_err("changed");
    let StoreError::Changed { found, expected, .. } = error else { panic!("{error}") };
    assert_eq!((found, expected), (Some(theirs), None), "no attempt was unknown: a conflict for certain");
    store.then([Step::Swallow]);
    assert_eq!(disposition(store.swap("k", None, OURS).await), Disposition::Unknown, "RETRY-T1");
}

#[tokio::test]
async fn what_was_never_done_is_no_unknown() {
    let store = store([Step::Refuse; 4]);
    let error = store.put_new("k", OURS).await.expect_err("down");
    assert!(matches!(error, StoreError::Unavailable { attempts: 4, .. }), "{error}");
    assert_eq!(store.asked().len(), 4, "RETRY-T2");
    assert_eq!(disposition(store.head("k").await), Disposition::NotFound);
}

#[tokio::test]
async fn one_unknown_attempt_makes_the_end_unknown() {
    use Step::*;
    for script in [[Swallow, Refuse, Refuse, Refuse], [Refuse, Swallow, Deny, Pass], [Refuse, Refuse, Refuse, Hang]] {
        for op in [Op::Put, Op::Swap, Op::Delete] {
            let store = store(script);
            let error = match op {
                Op::Put => store.put_new("k", OURS).await.expect_err("unknown"),
                Op::Swap => store.swap("k", None, OURS).await.map(|_| ()).expect_err("unknown"),
                _ => store.delete("k").await.expect_err("unknown"),
            };
            assert_eq!(error.disposition(), Disposition::Unknown, "{op:?} {script:?}: {error}");
        }
    }
    let store = store([Step::Deny]);
    assert_eq!(disposition(store.put_new("k", OURS).await), Disposition::Denied, "denied at once: not done");
}

#[tokio::test]
async fn a_conflict_that_cannot_be_looked_at_is_unknown() {
    let store = store([Step::Conflict, Step::Refuse, Step::Refuse, Step::Refuse, Step::Refuse]);
    assert_eq!(disposition(store.put_new("k", OURS).await), Disposition::Unknown);
    // The key is taken, but nothing is there (it was deleted, or the store contradicts itself): the write is repeated.
    let store = self::store([Step::Conflict]);
    store.put_new("k", OURS).await.expect("put");
}

#[tokio::test]
async fn reads_are_repeated_and_bounded() {
    use Step::*;
    let store = store([]);
    store.put_new("k", OURS).await.expect("put");
    for script in [[Refuse, Refuse, Refuse], [Hang, Lose, Refuse], [Lose, Hang, Hang]] {
        store.then(script);
        assert_eq!(store.get("k").await, Ok(OURS));
        store.then(script);
        assert_eq!(store.get_range("k", 1..3).await, Ok(OURS.slice(1..3)));
        store.then(script);
        assert_eq!(store.list("", None).await.map(|page| page.objects.len()), Ok(1));
    }
    store.then([Hang; 4]);
    let error = store.get("k").await.expect_err("hangs");
    assert_eq!(error.disposition(), Disposition::Retry, "a read has no unknown outcome");
    assert!(error.to_string().contains("no answer within 30 ms"), "{error}");
    store.then([Short, Short]);
    assert_eq!(store.get_range("k", 0..4).await, Ok(OURS), "STORE-S4: a short range is asked for again");
    store.then([Short; 4]);
    assert_eq!(disposition(store.get_range("k", 0..4).await), Disposition::Retry);
}

#[tokio::test]
async fn not_found_is_asked_twice_when_the_object_is_named() {
    let store = store([]);
    store.put_new("k", OURS).await.expect("put");
    store.then([Step::Miss]);
    assert_eq!(store.get("k").await, Ok(OURS));
    store.then([Step::Miss, Step::Refuse, Step::Miss]);
    assert_eq!(disposition(store.get_range("k", 0..1).await), Disposition::NotFound);
    assert_eq!(store.asked(), [Op::Range; 3]);
    store.then([Step::Miss]);
    assert_eq!(disposition(store.head("k").await), Disposition::NotFound);
    assert_eq!(store.asked(), [Op::Head]);
}

#[tokio::test]
async fn the_whole_call_is_bounded_in_time() {
    let mut store = store([Step::Hang; 100]);
    store.policy.attempts_max = 100;
    store.policy.operation_timeout_ms = 100;
    assert_eq!(disposition(store.put_new("k", OURS).await), Disposition::Unknown);
    let asked = store.asked().len();
    // Without the limit all hundred are made.
    assert!((1..=4).contains(&asked), "{asked} attempts of 30 ms in 100 ms");
}

proptest! {
    #[test]
    fn waits_grow_are_spread_and_bounded(failed in 1_u32..200, chance: u32, first in 1_u64..1000, times in 1_u64..100) {
        let max = first * times;
        let policy = RetryPolicy { backoff_first_ms: first, backoff_max_ms: max, ..RetryPolicy::default() };
        let wait = policy.wait(failed, chance);
        let whole = Duration::from_millis((first as u128 * 2_u128.pow(failed.min(64) - 1)).min(max.into()) as u64);
        prop_assert!(wait >= whole / 2 && wait <= whole, "{wait:?} of {whole:?}");
        prop_assert_eq!(policy.wait(failed, u32::MAX), whole / 2 + whole / 2);
        prop_assert_eq!(policy.wait(failed, 0), whole / 2);
    }
}
