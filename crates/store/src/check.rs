//! Checks that a store does what sets rely on. It runs before a set is placed there: at the leader of group 0 when a
//! set is created or its stores change, in a recovery before it restores anything, and when a person runs `holdfast
//! store check` (ADR 0008).
//!
//! ```text
//!   large     put, as long as the longest segment ─▶ its end read ─────────────────────┐
//!   order-…   put, in another order than that of their names ──────────────────────────┤
//!   once      put ─▶ something else put there: refused? ─▶ read ───────────────────────┤
//!   swapped   made ─▶ swapped ─▶ swapped from the version before: refused? ─▶ read ────┴─▶ all listed, and again from the middle on ─▶ all deleted
//! ```
//! CHECK-F1  Only observed facts count against a store: a conditional write that was reported as done, or whose bytes
//!     are there, although other content had to stay. If an outcome is unknown (R12), the check reads what is there and
//!     tries again. Transient errors are retried until the time is up.
//! CHECK-F2  The check deletes what it has written, whatever happens in between, under names that nobody else uses. A
//!     PUT that was given up may arrive after that, and its object stays.
//! CHECK-F3  Everything ends: the check within its limit, the deletion a few seconds later.

use crate::error::{At, Cause, Disorder, Disposition, Op, StoreError};
use crate::health::Kind;
use crate::{BoxFuture, ObjectStore, Version, page};
use bytes::Bytes;
use futures_util::future::join_all;
use holdfast_types::limits::{EXTENT_BYTES_MAX, SEGMENT_BYTES_TARGET};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Default limit for one store: 13 requests of 700 ms one after the other, and a segment over a link of some 14 Mbit/s.
pub const CHECK_LIMIT: Duration = Duration::from_secs(20);

/// Limit for the deletion after the check.
const CLEAN_LIMIT: Duration = Duration::from_secs(3);

/// Pause between two attempts of one step.
const PAUSE: Duration = Duration::from_millis(200);

/// An impossible result counts after so many in a row (two seconds): a single answer may be damaged in transit.
const ODD_MAX: u32 = 10;

/// Result of [`check`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckReport {
    /// The store.
    pub place: String,
    /// Duration of a small write.
    pub put: Duration,
    /// Duration of a small read.
    pub get: Duration,
    /// [`ObjectStore::credentials`].
    pub credentials: Option<String>,
}

/// Reason why a store did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// It does not do what sets rely on: this was observed, not assumed (CHECK-F1).
    #[error("{place} does not do what sets rely on: found {found}, expected {expected}; {next}")]
    Unfit {
        /// [`ObjectStore::place`].
        place: String,
        /// What it did.
        found: &'static str,
        /// What it has to do.
        expected: &'static str,
        /// Why this matters, and what to do about it.
        next: &'static str,
    },
    /// It refuses a request, or its behaviour could not be determined in time.
    #[error("not checked: {0}")]
    Store(#[from] StoreError),
}

impl CheckError {
    /// Whether nothing is known about the store: it does not answer, or answers badly. If false, the store has shown
    /// that it is unsuitable.
    pub fn is_undecided(&self) -> bool {
        matches!(self, CheckError::Store(error) if is_open(error))
    }
}

/// Whether another attempt may succeed without a change by anyone.
fn is_open(error: &StoreError) -> bool {
    use Disposition::{Corrupt, NotFound, Retry, Unknown};
    matches!(error.disposition(), Retry | Unknown | NotFound | Corrupt)
}

/// Something that a store must not do.
struct Rule {
    found: &'static str,
    expected: &'static str,
    next: &'static str,
}

const IF_NONE_MATCH: Rule = Rule {
    found: "a PUT with If-None-Match: * that replaced an object",
    expected: "412 and the object as it was",
    next: "two gateways could overwrite one another's objects: use a store that honours If-None-Match on PUT, or a version of it that does",
};

const IF_MATCH: Rule = Rule {
    found: "a PUT with If-Match that replaced an object of another ETag",
    expected: "412 and the object as it was",
    next: "a cluster that was given up could go on in the place of the one that took over: use a store that honours If-Match on PUT, or a version of it that does",
};

const HOLDS: Rule = Rule {
    found: "a refusal of a conditional PUT whose condition holds",
    expected: "200 and the new object",
    next: "no checkpoint could be made: look for a proxy that changes ETags on the way, else use a store that compares them as it gave them",
};

const READ: Rule = Rule {
    found: "other bytes than were written last",
    expected: "those",
    next: "use a store that shows what it has acknowledged, and look for a proxy or cache in front of it",
};

const RANGE: Rule =
    Rule { found: "other bytes than that part of the object", expected: "those", next: "use a store with range reads" };

const MARKER: Rule = Rule {
    found: "a listing that ignores start-after and begins at the first key again",
    expected: "only keys after the marker",
    next: "a recovery could not go through the store, and garbage would not be found: use a store that lists as Amazon S3 does in its general purpose buckets",
};

const SORTED: Rule = Rule {
    found: "a listing whose keys do not ascend",
    expected: "keys in ascending byte order",
    next: "a recovery could pass over sets without a word: use a store that lists as Amazon S3 does in its general purpose buckets",
};

/// The names of one check. They have no folder of their own, because a directory store would keep it.
struct Names {
    prefix: String,
    once: String,
    swapped: String,
    large: String,
    /// Further objects, for the listing. With eight objects, a listing in random order is sorted once in 40,320 cases.
    others: [String; 5],
}

impl Names {
    fn of(nonce: u128) -> Self {
        let prefix = format!("check/{nonce:032x}-");
        let name = |name: &str| format!("{prefix}{name}");
        let others = ["order-d", "order-a", "order-e", "order-c", "order-b"].map(name);
        Self { once: name("once"), swapped: name("swapped"), large: name("large"), others, prefix }
    }

    /// All objects, in the order of a listing.
    fn all(&self) -> Vec<&str> {
        let ours = [&self.once, &self.swapped, &self.large];
        let all: BTreeSet<&str> = ours.into_iter().chain(&self.others).map(String::as_str).collect();
        all.into_iter().collect()
    }
}

/// A segment is closed once it has [`SEGMENT_BYTES_TARGET`] or more: the last extent and the table of all come on top.
/// A proxy that lets exactly 16 MiB through would refuse each of them.
const LARGE_BYTES: usize = SEGMENT_BYTES_TARGET + (2 << 20);

const _: () = assert!(LARGE_BYTES > SEGMENT_BYTES_TARGET + 2 * EXTENT_BYTES_MAX);
const _: () = assert!(LARGE_BYTES.is_multiple_of(PART_BYTES));

/// As long as the longest segment; each part of it has its own number.
fn large() -> Bytes {
    let mut body = vec![0x5a; LARGE_BYTES];
    for (number, part) in body.chunks_exact_mut(PART_BYTES).enumerate() {
        part[..8].copy_from_slice(&(number as u64).to_le_bytes());
    }
    body.into()
}

/// Bytes at the end of the large object that are read.
const PART_BYTES: usize = 4096;

/// Pages of one listing: there are eight objects.
const LIST_PAGES_MAX: usize = 16;

/// Writes, conditionally overwrites, reads, lists and deletes eight objects below `check/`, one of them as long as a
/// segment. `nonce` is part of their names and must be new each time. Takes some 26 requests, and at most `limit` plus
/// three seconds. Finds a store that ignores If-None-Match or If-Match, refuses large objects, or lists in another
/// order.
///
/// Several stores are checked one by one: together they have another kind of head.
///
/// # Errors
/// The first failure, in words for a person.
pub async fn check(store: &dyn ObjectStore, nonce: u128, limit: Duration) -> Result<CheckReport, CheckError> {
    let names = Names::of(nonce);
    let mut probe = Probe { store, place: Arc::from(store.place()), wrote: false, last: None };
    let ended = timeout(limit, probe.run(&names)).await;
    let outcome = match ended {
        Ok(outcome) => outcome,
        Err(_) => Err(probe.last_word(&names, limit).into()),
    };
    if !probe.wrote {
        return outcome;
    }
    match (clean(store, &names).await, outcome) {
        (Ok(()), outcome) => outcome,
        (Err(error), Ok(_)) => Err(error.into()),
        // The error of the check itself is more useful.
        (Err(error), outcome) => {
            tracing::info!(store = store.place(), %error, "a check of this store may have left objects below {:?}: nothing reads them, they can be deleted", names.prefix);
            outcome
        }
    }
}

/// CHECK-F2.
async fn clean(store: &dyn ObjectStore, names: &Names) -> Result<(), StoreError> {
    let all = join_all(names.all().into_iter().map(|key| deleted(store, key)));
    match timeout(CLEAN_LIMIT, all).await {
        Ok(ended) => ended.into_iter().collect(),
        Err(_) => {
            let text = format!("not within {} ms", CLEAN_LIMIT.as_millis());
            let at = At::new(&Arc::from(store.place()), Op::Delete, &names.prefix);
            Err(StoreError::Unknown { at, attempts: 1, cause: Cause::of_kind(Kind::NoAnswer, text) })
        }
    }
}

async fn deleted(store: &dyn ObjectStore, key: &str) -> Result<(), StoreError> {
    loop {
        match store.delete(key).await {
            Err(error) if matches!(error.disposition(), Disposition::Retry | Disposition::Unknown) => {
                sleep(PAUSE).await;
            }
            ended => return ended,
        }
    }
}

/// A check under way. Its caller limits the time.
struct Probe<'a> {
    store: &'a dyn ObjectStore,
    place: Arc<str>,
    /// Some of its objects may be there.
    wrote: bool,
    /// The last transient error.
    last: Option<StoreError>,
}

impl Probe<'_> {
    async fn run(&mut self, names: &Names) -> Result<CheckReport, CheckError> {
        let (once, swapped) = (names.once.as_str(), names.swapped.as_str());
        let body = Bytes::from(format!("holdfast store check {once}"));
        let other = Bytes::from(format!("holdfast store check {once}, another"));
        let late = Bytes::from(format!("holdfast store check {once}, late"));
        // The small object first: its errors do not depend on the length.
        let put = self.put(once, &body).await?;
        let segment = large();
        self.put_all(names, &segment, &body).await?;
        self.must_refuse_to_put(once, &other).await?;
        let get = self.must_read(once, &body, &other, &IF_NONE_MATCH).await?;
        self.must_read_part(&names.large, &segment).await?;
        let first = self.swap(swapped, None, &body).await?;
        self.swap(swapped, Some(&first), &other).await?;
        self.must_refuse_to_swap(swapped, &first, &late).await?;
        self.must_read(swapped, &other, &late, &IF_MATCH).await?;
        self.must_list(names).await?;
        Ok(CheckReport { place: self.store.place().to_owned(), put, get, credentials: self.store.credentials() })
    }

    /// Writes; returns the duration of the successful attempt.
    async fn put(&mut self, key: &str, body: &Bytes) -> Result<Duration, CheckError> {
        let store = self.store;
        loop {
            let began = Instant::now();
            match self.writing(store.put_new(key, body.clone())).await {
                Ok(()) => return Ok(began.elapsed()),
                Err(error) => self.again(self.ours(key, error)).await?,
            }
        }
    }

    /// Nobody else uses our names, so an object there is ours, from an attempt whose answer was lost: when repeated,
    /// the attempt succeeds.
    fn ours(&self, key: &str, error: StoreError) -> StoreError {
        if error.disposition() != Disposition::Conflict {
            return error;
        }
        let cause = Cause::text(format!("a name that was never used is taken: {error}"));
        StoreError::Unknown { at: At::new(&self.place, Op::Put, key), attempts: 1, cause }
    }

    /// Writes the object that is as long as a segment, and those that the listing must sort, all at once.
    async fn put_all(&mut self, names: &Names, segment: &Bytes, body: &Bytes) -> Result<(), CheckError> {
        let small = names.others.iter().map(|key| (key.as_str(), body));
        let mut left: Vec<(&str, &Bytes)> = std::iter::once((names.large.as_str(), segment)).chain(small).collect();
        loop {
            let store = self.store;
            let puts = left.iter().map(|(key, body)| store.put_new(key, Bytes::clone(body)));
            let ended = join_all(puts).await;
            let failed: Vec<_> =
                left.into_iter().zip(ended).filter_map(|(one, put)| put.err().map(|error| (one, error))).collect();
            left = failed.iter().map(|(one, _)| *one).collect();
            // If one of them is refused, the check fails, whatever the errors of the others.
            let errors = failed.into_iter().map(|((key, _), error)| self.ours(key, error));
            match errors.min_by_key(is_open) {
                Some(error) => self.again(error).await?,
                None => return Ok(()),
            }
        }
    }

    async fn must_refuse_to_put(&mut self, key: &str, other: &Bytes) -> Result<(), CheckError> {
        let store = self.store;
        loop {
            let Err(error) = self.writing(store.put_new(key, other.clone())).await else {
                return Err(self.unfit(&IF_NONE_MATCH));
            };
            if self.is_refused(key, other, &IF_NONE_MATCH, error).await? {
                return Ok(());
            }
        }
    }

    async fn must_refuse_to_swap(&mut self, key: &str, old: &Version, late: &Bytes) -> Result<(), CheckError> {
        let store = self.store;
        loop {
            let Err(error) = self.writing(store.swap(key, Some(old), late.clone())).await else {
                return Err(self.unfit(&IF_MATCH));
            };
            if self.is_refused(key, late, &IF_MATCH, error).await? {
                return Ok(());
            }
        }
    }

    /// Whether a write that must be refused was refused, by its result; otherwise it must be repeated.
    async fn is_refused(
        &mut self,
        key: &str,
        body: &Bytes,
        rule: &Rule,
        error: StoreError,
    ) -> Result<bool, CheckError> {
        match error.disposition() {
            Disposition::Conflict => return Ok(true),
            // R12: the content decides. If it is not there, the write may still be under way.
            Disposition::Unknown if self.there(key).await?.0 == *body => return Err(self.unfit(rule)),
            _ => {}
        }
        self.again(error).await?;
        Ok(false)
    }

    /// Swaps, and resolves unknown outcomes; returns the version after that.
    async fn swap(&mut self, key: &str, expected: Option<&Version>, body: &Bytes) -> Result<Version, CheckError> {
        let (store, mut odd) = (self.store, 0);
        loop {
            let error = match self.writing(store.swap(key, expected, body.clone())).await {
                Ok(version) => return Ok(version),
                Err(error) => error,
            };
            let refused = error.disposition() == Disposition::Conflict;
            if !refused && error.disposition() != Disposition::Unknown {
                self.again(error).await?;
                continue;
            }
            match store.get_object(key).await {
                // Our own write, from an attempt whose answer was lost (R12).
                Ok(object) if object.body == *body => return Ok(object.version),
                Ok(_) | Err(StoreError::NotFound { .. }) if refused => {
                    odd += 1;
                    if odd >= ODD_MAX {
                        return Err(self.unfit(&HOLDS));
                    }
                    self.last = Some(error);
                    sleep(PAUSE).await;
                }
                Ok(_) => self.again(error).await?,
                Err(unread) => self.again(unread).await?,
            }
        }
    }

    /// Reads, and expects what was written last, not what `rule` had to refuse; returns the duration of the read.
    async fn must_read(
        &mut self,
        key: &str,
        expected: &Bytes,
        refused: &Bytes,
        rule: &Rule,
    ) -> Result<Duration, CheckError> {
        for _ in 0..ODD_MAX {
            let (found, took) = self.there(key).await?;
            if found == *expected {
                return Ok(took);
            }
            // The store refused the write in its answer only.
            if found == *refused {
                return Err(self.unfit(rule));
            }
            sleep(PAUSE).await;
        }
        Err(self.unfit(&READ))
    }

    async fn must_read_part(&mut self, key: &str, body: &Bytes) -> Result<(), CheckError> {
        let (store, mut odd) = (self.store, 0);
        let from = body.len().saturating_sub(PART_BYTES);
        loop {
            match store.get_range(key, from as u64..body.len() as u64).await {
                Ok(found) if found == body.slice(from..) => return Ok(()),
                Ok(_) => {
                    odd += 1;
                    if odd >= ODD_MAX {
                        return Err(self.unfit(&RANGE));
                    }
                    sleep(PAUSE).await;
                }
                Err(error) => self.again(error).await?,
            }
        }
    }

    /// Lists from the beginning, and after a marker in the middle, as a loop over many pages does.
    async fn must_list(&mut self, names: &Names) -> Result<(), CheckError> {
        let all = names.all();
        let middle = all.len() / 2;
        self.must_list_after(&names.prefix, None, &all).await?;
        self.must_list_after(&names.prefix, Some(all[middle - 1]), &all[middle..]).await
    }

    async fn must_list_after(
        &mut self,
        prefix: &str,
        after: Option<&str>,
        expected: &[&str],
    ) -> Result<(), CheckError> {
        loop {
            let error = match self.listed(prefix, after).await {
                Ok(shown) if expected.iter().all(|key| shown.contains(*key)) => return Ok(()),
                Ok(_) => {
                    // R7: a listing may be outdated. If it stays so, that does no harm, but it is reported.
                    let cause = Cause::text("the listing lacks what was just written");
                    StoreError::Unavailable { at: At::new(&self.place, Op::List, prefix), attempts: 1, cause }
                }
                Err(StoreError::Listing { of: Disorder::IgnoresMarker, .. }) => return Err(self.unfit(&MARKER)),
                Err(StoreError::Listing { of: Disorder::Unsorted, .. }) => return Err(self.unfit(&SORTED)),
                Err(error) => error,
            };
            self.again(error).await?;
        }
    }

    /// The listing of the store after the marker, to the end.
    async fn listed(&self, prefix: &str, after: Option<&str>) -> Result<BTreeSet<String>, StoreError> {
        let (mut shown, mut after) = (BTreeSet::new(), after.map(str::to_owned));
        for _ in 0..LIST_PAGES_MAX {
            let found = self.store.list(prefix, after.as_deref()).await?;
            let found = page::admit(&self.place, prefix, after.as_deref(), found)?;
            shown.extend(found.objects.into_iter().map(|listed| listed.key));
            after = found.more;
            if after.is_none() {
                break;
            }
        }
        Ok(shown)
    }

    /// The content, and the duration of the read.
    async fn there(&mut self, key: &str) -> Result<(Bytes, Duration), CheckError> {
        let store = self.store;
        loop {
            let began = Instant::now();
            match store.get(key).await {
                Ok(found) => return Ok((found, began.elapsed())),
                Err(error) => self.again(error).await?,
            }
        }
    }

    /// Makes a write, and notes that its object may be there (CHECK-F2), even if nobody waits for its end any more.
    async fn writing<T>(&mut self, request: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
        let before = std::mem::replace(&mut self.wrote, true);
        let result = request.await;
        if let Err(error) = &result
            && matches!(error.disposition(), Disposition::Retry | Disposition::Denied)
        {
            self.wrote = before;
        }
        result
    }

    /// After a transient error: waits a little.
    async fn again(&mut self, error: StoreError) -> Result<(), CheckError> {
        if !is_open(&error) {
            return Err(error.into());
        }
        // Nobody listens there, as several attempts have shown: more attempts would only make the caller wait.
        if !self.wrote && error.kind() == Some(Kind::Unreachable) {
            return Err(error.into());
        }
        self.last = Some(error);
        sleep(PAUSE).await;
        Ok(())
    }

    fn unfit(&self, rule: &Rule) -> CheckError {
        let Rule { found, expected, next } = *rule;
        CheckError::Unfit { place: self.place.to_string(), found, expected, next }
    }

    /// The error when the time is up.
    fn last_word(&mut self, names: &Names, limit: Duration) -> StoreError {
        self.last.take().unwrap_or_else(|| {
            let cause = Cause::of_kind(Kind::NoAnswer, format!("no answer within {} ms", limit.as_millis()));
            StoreError::Unavailable { at: At::new(&self.place, Op::Put, &names.once), attempts: 1, cause }
        })
    }
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
