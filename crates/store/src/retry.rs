//! When a request is repeated, and how the outcome of a write is found out (R12). All rules about this are here.
//!
//! ```text
//!   attempt --ok----------------------------------------------> Ok
//!      |-----retry: not done -------------- wait, again
//!      |-----unknown: perhaps done -------- remember that, wait, again (the same bytes)
//!      |-----conflict: something is there -- read it: ours ---> Ok
//!      |                                            not ours --> Conflict, but Unknown if `swap` ever was unknown
//!      '-----denied, corrupt, not found ----------------------> as it is, but Unknown if ever unknown
//! ```
//!
//! RETRY-T1  A write that ends in anything but `Unknown` and `Ok` has not happened: no attempt of it was ever unknown,
//!     or the store's content proves it.
//! RETRY-T2  The number of attempts, each attempt, and all of them together are bounded.

use crate::error::{At, Cause, Disposition, Op, StoreError};
use crate::health::{Health, Kind};
use crate::url_error::StoreUrlError;
use crate::{BoxFuture, Head, ListPage, Object, ObjectStore, Version, page};
use bytes::Bytes;
use holdfast_host::unix_ms;
use serde::{Deserialize, Serialize};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

/// How often and how patiently. The defaults suit a store some tens of milliseconds away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// Attempts per call, 1 to 100. More attempts survive longer interruptions; callers queue behind them.
    pub attempts_max: u32,
    /// Pause after the first failed attempt in milliseconds; it doubles with each, and half of it is random.
    pub backoff_first_ms: u64,
    /// Longest pause between attempts in milliseconds.
    pub backoff_max_ms: u64,
    /// Limit for one attempt of a read, listing or deletion in milliseconds, with its body.
    pub read_timeout_ms: u64,
    /// Limit for one attempt of a write in milliseconds: the upload of a whole segment on the slowest link must fit.
    pub write_timeout_ms: u64,
    /// Limit for one call in milliseconds, with all attempts and pauses.
    pub operation_timeout_ms: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts_max: 6,
            backoff_first_ms: 100,
            backoff_max_ms: 5_000,
            read_timeout_ms: 10_000,
            write_timeout_ms: 60_000,
            operation_timeout_ms: 120_000,
        }
    }
}

impl RetryPolicy {
    /// Checks the ranges and relations.
    ///
    /// # Errors
    /// The field, what was found and what was expected.
    pub fn validate(&self) -> Result<(), StoreUrlError> {
        let bad = |name, found: u64, expected| Err(StoreUrlError::Option { name, found: found.to_string(), expected });
        if !(1..=100).contains(&self.attempts_max) {
            return bad("retry.attempts_max", self.attempts_max.into(), "1 to 100");
        }
        if self.backoff_first_ms == 0 || self.backoff_first_ms > self.backoff_max_ms {
            return bad("retry.backoff_first_ms", self.backoff_first_ms, "1 up to retry.backoff_max_ms");
        }
        if self.read_timeout_ms == 0 || self.read_timeout_ms > self.operation_timeout_ms {
            return bad("retry.read_timeout_ms", self.read_timeout_ms, "1 up to retry.operation_timeout_ms");
        }
        if self.write_timeout_ms == 0 || self.write_timeout_ms > self.operation_timeout_ms {
            return bad("retry.write_timeout_ms", self.write_timeout_ms, "1 up to retry.operation_timeout_ms");
        }
        Ok(())
    }

    /// The pause after `failed` attempts (at least 1). `chance` is uniform; half of the pause is random, so that many
    /// callers do not retry at the same time.
    pub fn wait(&self, failed: u32, chance: u32) -> Duration {
        let doubled =
            self.backoff_first_ms.saturating_mul(1_u64.checked_shl(failed.saturating_sub(1)).unwrap_or(u64::MAX));
        let whole = Duration::from_millis(doubled.min(self.backoff_max_ms));
        let half = whole / 2;
        half + half.mul_f64(f64::from(chance) / f64::from(u32::MAX))
    }

    fn attempt_timeout(&self, op: Op) -> Duration {
        Duration::from_millis(if matches!(op, Op::Put | Op::Swap) {
            self.write_timeout_ms
        } else {
            self.read_timeout_ms
        })
    }

    /// The longest time after which a single attempt is given up; a store may still execute it a little later.
    pub fn longest_attempt(&self) -> Duration {
        Duration::from_millis(self.read_timeout_ms.max(self.write_timeout_ms))
    }
}

/// Repeats requests to the wrapped store, and finds out unknown outcomes.
#[derive(Debug)]
pub struct Retrying<S> {
    within: S,
    policy: RetryPolicy,
    place: Arc<str>,
    health: Option<Arc<Health>>,
}

/// One call: its attempts so far.
struct Call<'a> {
    policy: &'a RetryPolicy,
    health: Option<&'a Health>,
    at: Box<At>,
    started: Instant,
    made: u32,
    /// Why the outcome of some attempt is unknown (RETRY-T1).
    unknown: Option<Box<Cause>>,
}

impl Call<'_> {
    /// Makes one attempt, with a time limit (RETRY-T2).
    async fn attempt<T>(&mut self, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        self.made += 1;
        let left = Duration::from_millis(self.policy.operation_timeout_ms).saturating_sub(self.started.elapsed());
        let limit = self.policy.attempt_timeout(self.at.op).min(left);
        let began = Instant::now();
        let result = match timeout(limit, request).await {
            Ok(result) => result,
            Err(_) => {
                let cause = Cause::of_kind(Kind::NoAnswer, format!("no answer within {} ms", limit.as_millis()));
                Err(self.failed(cause, self.at.op.writes()))
            }
        };
        if let Some(health) = self.health {
            health.attempt(unix_ms(), self.at.op, result.as_ref().err());
        }
        let outcome = result.as_ref().map_or_else(|e| outcome_name(e.disposition()), |_| "ok");
        let op = self.at.op.name();
        metrics::counter!("holdfast_store_attempts_total", "op" => op, "outcome" => outcome).increment(1);
        metrics::histogram!("holdfast_store_attempt_seconds", "op" => op).record(began.elapsed().as_secs_f64());
        result
    }

    fn failed(&self, cause: Box<Cause>, unknown: bool) -> StoreError {
        let (at, attempts) = (self.at.clone(), self.made);
        if unknown {
            StoreError::Unknown { at, attempts, cause }
        } else {
            StoreError::Unavailable { at, attempts, cause }
        }
    }

    /// After a failed attempt: if another one is allowed, waits and returns `Ok`.
    async fn again(&mut self, error: StoreError) -> Result<(), StoreError> {
        let disposition = error.disposition();
        if disposition == Disposition::Unknown {
            self.unknown = Some(error.cause());
        }
        if !matches!(disposition, Disposition::Retry | Disposition::Unknown) {
            return Err(self.last_word(error));
        }
        let wait = self.policy.wait(self.made, rand::random());
        let out_of_time = self.started.elapsed() + wait >= Duration::from_millis(self.policy.operation_timeout_ms);
        if self.made >= self.policy.attempts_max || out_of_time {
            return Err(self.failed(error.cause(), self.unknown.is_some()));
        }
        debug!(at = %self.at, attempt = self.made, wait_ms = wait.as_millis() as u64, cause = %error.cause(), "asking again");
        sleep(wait).await;
        Ok(())
    }

    /// RETRY-T1: after an unknown attempt, only a proof may show that nothing happened.
    fn last_word(&self, error: StoreError) -> StoreError {
        match &self.unknown {
            None => error,
            Some(first) => {
                let cause = Cause::text(format!("{first}; then: {error}"));
                self.failed(Box::new(Cause { kind: error.kind(), ..*cause }), true)
            }
        }
    }
}

fn outcome_name(disposition: Disposition) -> &'static str {
    match disposition {
        Disposition::Retry => "retry",
        Disposition::NotFound => "not_found",
        Disposition::Conflict => "conflict",
        Disposition::Unknown => "unknown",
        Disposition::Denied => "denied",
        Disposition::Corrupt => "corrupt",
    }
}

impl<S: ObjectStore> Retrying<S> {
    /// Wraps `within`.
    pub fn new(within: S, policy: RetryPolicy) -> Self {
        let place = Arc::from(within.place());
        Self { within, policy, place, health: None }
    }

    /// The same; `health` records every attempt.
    #[must_use]
    pub fn observed(self, health: Arc<Health>) -> Self {
        Self { health: Some(health), ..self }
    }

    /// The wrapped store.
    pub fn within(&self) -> &S {
        &self.within
    }

    fn call(&self, op: Op, key: &str) -> Call<'_> {
        Call {
            policy: &self.policy,
            health: self.health.as_deref(),
            at: At::new(&self.place, op, key),
            started: Instant::now(),
            made: 0,
            unknown: None,
        }
    }

    /// Repeats a request that changes nothing, or whose repetition has no further effect.
    async fn repeat<T, F>(&self, op: Op, key: &str, request: impl Fn() -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut call = self.call(op, key);
        // If a store says once that a key of the replicated state does not exist, the object may be about to appear; if
        // it says so twice, the object is not here.
        let mut missing_before = !matches!(op, Op::Get | Op::Range);
        loop {
            match call.attempt(request()).await {
                Ok(value) => return Ok(value),
                Err(StoreError::NotFound { at }) if !missing_before && call.made < self.policy.attempts_max => {
                    missing_before = true;
                    debug!(%at, "not found, asking once more");
                    sleep(self.policy.wait(1, rand::random())).await;
                }
                Err(error) => call.again(error).await?,
            }
        }
    }

    /// The present object under `key`, for judging a conflict.
    async fn present(&self, key: &str) -> Result<Option<Object>, StoreError> {
        match self.get_object(key).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.disposition() == Disposition::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn put_new_resolved(&self, key: &str, body: Bytes) -> Result<(), StoreError> {
        let mut call = self.call(Op::Put, key);
        loop {
            let Err(error) = call.attempt(self.within.put_new(key, body.clone())).await else { return Ok(()) };
            if error.disposition() != Disposition::Conflict {
                call.again(error).await?;
                continue;
            }
            match self.present(key).await {
                // Our own, from an attempt of this call or an earlier one whose answer was lost.
                Ok(Some(object)) if object.body == body => return Ok(()),
                // Keys are never drawn twice and objects never replaced, so our object was not here in between: a proof
                // (RETRY-T1).
                Ok(Some(object)) => {
                    return Err(StoreError::Exists {
                        at: call.at,
                        found_bytes: object.body.len() as u64,
                        expected_bytes: body.len() as u64,
                    });
                }
                Ok(None) => {
                    let cause =
                        Cause::text("the store says that the key is taken, and then that there is no such object");
                    call.again(call.failed(cause, false)).await?;
                }
                Err(error) => {
                    let cause = Cause::text(format!("the key is taken, by an object that could not be read: {error}"));
                    return Err(call.failed(cause, true));
                }
            }
        }
    }

    async fn swap_resolved(&self, key: &str, expected: Option<&Version>, body: Bytes) -> Result<Version, StoreError> {
        let mut call = self.call(Op::Swap, key);
        loop {
            let error = match call.attempt(self.within.swap(key, expected, body.clone())).await {
                Ok(version) => return Ok(version),
                Err(error) => error,
            };
            if error.disposition() != Disposition::Conflict {
                call.again(error).await?;
                continue;
            }
            return match self.present(key).await {
                // `body` contains a token of its own, so this is our write.
                Ok(Some(object)) if object.body == body => Ok(object.version),
                // Our value may have been there and been replaced since: no proof, unless no attempt was unknown
                // (RETRY-T1).
                Ok(found) => Err(call.last_word(StoreError::Changed {
                    at: call.at.clone(),
                    found: found.map(|object| object.version),
                    expected: expected.cloned(),
                })),
                Err(error) => {
                    let cause = Cause::text(format!("another version is there, which could not be read: {error}"));
                    Err(call.failed(cause, true))
                }
            };
        }
    }

    async fn get_range_whole(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let expected = range.end.saturating_sub(range.start);
        self.repeat(Op::Range, key, || {
            let range = range.clone();
            async move {
                let body = self.within.get_range(key, range).await?;
                if body.len() as u64 == expected {
                    return Ok(body);
                }
                let cause = Cause::text(format!("found {} bytes of the range, expected {expected}", body.len()));
                Err(StoreError::Unavailable { at: At::new(&self.place, Op::Range, key), attempts: 1, cause })
            }
        })
        .await
    }
}

impl<S: ObjectStore> ObjectStore for Retrying<S> {
    fn place(&self) -> &str {
        &self.place
    }

    fn credentials(&self) -> Option<String> {
        self.within.credentials()
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.put_new_resolved(key, body))
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        Box::pin(self.repeat(Op::Get, key, || self.within.get_object(key)))
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(self.get_range_whole(key, range))
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        Box::pin(self.repeat(Op::Head, key, || self.within.head(key)))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.repeat(Op::Delete, key, || self.within.delete(key)))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        // PAGE-O1, for any wrapped store.
        Box::pin(self.repeat(Op::List, prefix, move || async move {
            page::admit(&self.place, prefix, after, self.within.list(prefix, after).await?)
        }))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        Box::pin(self.swap_resolved(key, expected, body))
    }
}

#[cfg(test)]
#[path = "retry_tests.rs"]
mod tests;
