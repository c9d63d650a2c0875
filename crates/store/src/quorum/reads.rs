//! Decides which store a read asks first, when it asks the next one, and what counts as an answer.
//!
//! While a set is used, the head is read from every store every few seconds (ADR 0013). This measures the stores that
//! answer before the read ends; the others are known to be no faster. Only the repair's reads wait for all.
//!
//! - **READ-E1** After an error or "not here", the next store is asked at once.
//! - **READ-E2** A store that has not answered within the read's patience counts as failed, and the next one is asked
//!   beside it. The first answer counts, and ends the other requests.
//! - **READ-E3** A read asks each store once.

use super::state::{Quorum, Replica, worst};
use crate::error::{Op, StoreError};
use crate::object_store::{BoxFuture, ObjectStore};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use holdfast_types::ObjectId;
use holdfast_types::sync::LockExt;
use std::time::Duration;
use tokio::time::Instant;

/// How many objects with doubts are remembered.
const DOUBTS_MAX: usize = 1000;
/// Patience for a part of an object, or its length (READ-E2).
const PART_PATIENCE: Duration = Duration::from_secs(1);
/// Patience for a whole object, which may have 16 MiB (READ-E2).
const WHOLE_PATIENCE: Duration = Duration::from_secs(3);

fn patience(op: Op) -> Duration {
    if op == Op::Get { WHOLE_PATIENCE } else { PART_PATIENCE }
}

/// The object's own part of a key.
fn object_of(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(_, object)| object)
}

impl Quorum {
    /// All stores, in the order in which they are asked for this object.
    pub(super) fn order(&self, key: &str) -> Vec<&Replica> {
        let now = Instant::now();
        let mut order: Vec<&Replica> = self.replicas.iter().map(AsRef::as_ref).collect();
        order.sort_by_key(|replica| (replica.speed.rank(now), replica.index));
        let doubts = self.doubts.locked();
        let doubt = if doubts.is_empty() { None } else { doubts.get(object_of(key)).copied() };
        order.rotate_left(doubt.unwrap_or(0) % self.replicas.len());
        order
    }

    /// Bytes of this object did not open (R9): the next read of it begins with another store.
    pub fn doubt(&self, object: ObjectId) {
        let mut doubts = self.doubts.locked();
        if doubts.len() >= DOUBTS_MAX {
            doubts.clear();
        }
        *doubts.entry(object.to_string()).or_default() += 1;
    }

    /// One answer from any store that has the object. The layer above authenticates contents: a store that delivered
    /// wrong bytes has failed (R9), and the caller may get another store's bytes when it asks again.
    pub(super) async fn read<'a, T, F>(&'a self, op: Op, key: &'a str, ask: F) -> Result<T, StoreError>
    where
        F: Fn(&'a dyn ObjectStore) -> BoxFuture<'a, Result<T, StoreError>>,
    {
        let mut left = self.order(key).into_iter();
        let (mut asked, mut errors) = (FuturesUnordered::new(), Vec::new());
        let one = |replica: &'a Replica| {
            let answer = ask(&*replica.store);
            async move { (replica, answer.await) }
        };
        let mut newest = left.next().map(|first| (first, Instant::now()));
        asked.extend(newest.map(|(first, _)| one(first)));
        loop {
            let impatient = newest.filter(|_| left.len() > 0).map(|(silent, since)| (silent, since + patience(op)));
            let silent = tokio::select! {
                Some((replica, answer)) = asked.next() => match answer {
                    Ok(value) => {
                        replica.speed.answered(None);
                        return Ok(value);
                    }
                    Err(error) => {
                        // "Not here" is an answer, not a failure.
                        let failed = error.kind().is_some();
                        errors.push(error);
                        failed.then_some(replica)
                    }
                },
                silent = at(impatient) => Some(silent),
            };
            silent.iter().for_each(|replica| replica.speed.failed());
            let next = left.next();
            if let Some(next) = next {
                newest = Some((next, Instant::now()));
                asked.push(one(next));
                metrics::counter!("holdfast_store_failovers_total").increment(1);
            } else if asked.is_empty() {
                return Err(worst(errors).unwrap_or(StoreError::NotFound { at: self.at(op, key) }));
            }
        }
    }
}

/// Waits until the given time, and returns the store that belongs to it; waits for ever if there is none.
async fn at(impatient: Option<(&Replica, Instant)>) -> &Replica {
    match impatient {
        Some((silent, until)) => {
            tokio::time::sleep_until(until).await;
            silent
        }
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "reads_tests.rs"]
mod tests;
