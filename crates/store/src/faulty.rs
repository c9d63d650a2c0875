//! A store that fails on purpose. The same seed and order of calls cause the same faults.
//!
//! Below [`crate::Retrying`] it shows that retries and the resolution of unknown outcomes work; above it, with
//! [`Faults::flip_bit`], that readers detect damage (R9).

use crate::error::{At, Cause, Disposition, Op, StoreError};
use crate::{BoxFuture, Head, ListPage, Object, ObjectStore, Version};
use bytes::{Bytes, BytesMut};
use holdfast_types::sync::LockExt;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Faults, each in thousandths of the requests that can have it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Refused before anything happened (503).
    pub fail_before: u16,
    /// Done, but the answer is lost: unknown for a write.
    pub fail_after: u16,
    /// Answered only after `slow_by`.
    pub slow: u16,
    /// See `slow`.
    pub slow_by: Duration,
    /// The body of a read ends early, and the reader can see that.
    pub truncate: u16,
    /// An existing object is not found, once per key.
    pub missing_once: u16,
    /// Like `missing_once`, for a HEAD, whose answer has no body: it may come from any proxy on the way.
    pub head_missing_once: u16,
    /// A listing shows the state of some writes ago: new objects are missing, deleted ones still shown.
    pub stale_list: u16,
    /// A read returns data with one bit flipped and reports success: no store may do that, and readers must notice
    /// (R9).
    pub flip_bit: u16,
    /// A write is done, and answered as if another writer's content were there (412): it is our own.
    pub own_conflict: u16,
    /// Refused before anything happened, until a person acts (403, expired credentials).
    pub deny: u16,
    /// A write is refused before anything happened: no space (507).
    pub full: u16,
    /// Nothing answers at all.
    pub down: bool,
    /// Ignores If-None-Match: replaces the object and reports success. No store of a set may do that, and
    /// [`crate::check()`] must notice.
    pub ignores_if_none_match: bool,
    /// Like `ignores_if_none_match`, for If-Match.
    pub ignores_if_match: bool,
    /// A listing ignores its marker and begins at the first object each time. No store of a set may do that either.
    pub ignores_start_after: bool,
    /// The keys of a listing's page come in another order. No store of a set may do that either.
    pub unsorted_list: bool,
    /// Reads of this one key are refused: it is in a storage class that cannot be read (403 InvalidObjectState).
    pub archived: Option<String>,
    /// A PUT with more bytes is refused, as by a proxy (413).
    pub refuses_above: Option<usize>,
    /// Not a fault: the first page of a listing is empty, and says that there is more.
    pub empty_first_page: bool,
    /// Not a fault: each request yields once before anything happens, so that requests of one task at the same time
    /// really run concurrently.
    pub gives_way: bool,
}

/// How often each fault occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// [`Faults::fail_before`] and [`Faults::down`]
    pub failed_before: u64,
    /// [`Faults::fail_after`]
    pub failed_after: u64,
    /// [`Faults::slow`]
    pub slowed: u64,
    /// [`Faults::truncate`]
    pub truncated: u64,
    /// [`Faults::missing_once`]
    pub missed: u64,
    /// [`Faults::stale_list`]
    pub stale: u64,
    /// [`Faults::flip_bit`]
    pub flipped: u64,
    /// [`Faults::own_conflict`]
    pub own_conflicts: u64,
    /// [`Faults::deny`], [`Faults::full`], [`Faults::archived`] and [`Faults::refuses_above`]
    pub refused: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Faulty<S> {
    within: S,
    place: Arc<str>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    faults: Faults,
    counts: FaultCounts,
    dice: u64,
    missed: BTreeSet<String>,
    /// The content of outdated listings: the objects as of some earlier write.
    old: BTreeMap<String, u64>,
    new: BTreeMap<String, u64>,
}

impl State {
    /// SplitMix64: small, and the same on every machine and in every version.
    fn draw(&mut self) -> u64 {
        self.dice = self.dice.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.dice;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn hit(&mut self, thousandths: u16) -> bool {
        self.draw() % 1000 < u64::from(thousandths)
    }

    /// Whether a conditional write is done whatever is there; `expected` as in [`ObjectStore::swap`].
    fn ignores(&self, expected: Option<&Version>) -> bool {
        if expected.is_some() { self.faults.ignores_if_match } else { self.faults.ignores_if_none_match }
    }
}

/// The faults of one request, drawn before it starts.
struct Plan {
    gives_way: bool,
    slow_by: Option<Duration>,
    before: bool,
    after: bool,
    deny: bool,
    full: bool,
    own_conflict: bool,
}

impl<S: ObjectStore> Faulty<S> {
    /// Wraps `within`. Equal seeds, faults and calls fail in the same way.
    pub fn new(within: S, seed: u64, faults: Faults) -> Self {
        let place = Arc::from(format!("faulty {}", within.place()));
        let (old, new) = Default::default();
        let state = State { faults, counts: FaultCounts::default(), dice: seed, missed: BTreeSet::new(), old, new };
        Self { within, place, state: Mutex::new(state) }
    }

    /// The wrapped store.
    pub fn within(&self) -> &S {
        &self.within
    }

    /// Changes the faults from now on.
    pub fn set(&self, faults: Faults) {
        self.state.locked().faults = faults;
    }

    /// How often each fault occurred.
    pub fn counts(&self) -> FaultCounts {
        self.state.locked().counts.clone()
    }

    fn plan(&self, op: Op) -> Plan {
        let mut state = self.state.locked();
        let faults = state.faults.clone();
        // Always the same number of draws, so that the rate of one fault does not shift the times of another.
        let slow = state.hit(faults.slow);
        let before = state.hit(faults.fail_before) || faults.down;
        let puts = matches!(op, Op::Put | Op::Swap);
        let deny = state.hit(faults.deny) && !before;
        let full = state.hit(faults.full) && puts && !before && !deny;
        let refused = before || deny || full;
        let after = state.hit(faults.fail_after) && !refused;
        let own_conflict = state.hit(faults.own_conflict) && puts && !refused && !after;
        state.counts.refused += u64::from(deny || full);
        state.counts.own_conflicts += u64::from(own_conflict);
        state.counts.slowed += u64::from(slow);
        state.counts.failed_before += u64::from(before);
        state.counts.failed_after += u64::from(after);
        let (gives_way, slow_by) = (faults.gives_way, slow.then_some(faults.slow_by));
        Plan { gives_way, slow_by, before, after, deny, full, own_conflict }
    }

    fn failed(&self, op: Op, key: &str, unknown: bool, text: &str) -> StoreError {
        let (at, attempts, cause) = (At::new(&self.place, op, key), 1, Cause::text(text));
        if unknown {
            StoreError::Unknown { at, attempts, cause }
        } else {
            StoreError::Unavailable { at, attempts, cause }
        }
    }

    async fn play<T>(
        &self,
        op: Op,
        key: &str,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let plan = self.plan(op);
        if plan.gives_way {
            tokio::task::yield_now().await;
        }
        if let Some(wait) = plan.slow_by {
            tokio::time::sleep(wait).await;
        }
        if plan.before {
            return Err(self.failed(op, key, false, "played: refused"));
        }
        if plan.deny {
            let cause = Box::new(Cause { status: Some(403), code: Some("ExpiredToken".into()), ..Cause::default() });
            return Err(StoreError::Denied {
                at: At::new(&self.place, op, key),
                cause,
                hint: "played: new credentials",
            });
        }
        if plan.full {
            let cause = Box::new(Cause { status: Some(507), ..*Cause::text("played: no room") });
            return Err(StoreError::Unavailable { at: At::new(&self.place, op, key), attempts: 1, cause });
        }
        let result = request.await;
        // A request that is refused without asking the store has no answer that could be lost.
        let asked = !matches!(&result, Err(error) if error.disposition() == Disposition::Denied);
        if plan.after && asked {
            return Err(self.failed(op, key, op.writes(), "played: the answer was lost"));
        }
        if plan.own_conflict && asked {
            let at = At::new(&self.place, op, key);
            return Err(match op {
                Op::Swap => StoreError::Changed { at, found: None, expected: None },
                _ => StoreError::Exists { at, found_bytes: 0, expected_bytes: 0 },
            });
        }
        result
    }

    fn refused(&self, op: Op, key: &str, status: u16, code: Option<&str>) -> StoreError {
        self.state.locked().counts.refused += 1;
        let cause = Box::new(Cause { status: Some(status), code: code.map(str::to_owned), ..Cause::default() });
        StoreError::Denied { at: At::new(&self.place, op, key), cause, hint: "played: refused" }
    }

    /// Faults of a read that found something.
    fn spoil(&self, op: Op, key: &str, body: Bytes) -> Result<Bytes, StoreError> {
        let mut state = self.state.locked();
        if state.faults.archived.as_deref() == Some(key) {
            drop(state);
            return Err(self.refused(op, key, 403, Some("InvalidObjectState")));
        }
        let (truncate, flip) = (state.faults.truncate, state.faults.flip_bit);
        let (truncate, flip, at) = (state.hit(truncate), state.hit(flip), state.draw());
        if truncate {
            state.counts.truncated += 1;
            drop(state);
            return Err(self.failed(op, key, false, "played: the body ended early"));
        }
        if flip && !body.is_empty() {
            state.counts.flipped += 1;
            let mut spoilt = BytesMut::from(&body[..]);
            let place = (at % spoilt.len() as u64) as usize;
            spoilt[place] ^= 1 << (at >> 61);
            return Ok(spoilt.freeze());
        }
        Ok(body)
    }

    /// Whether this is the one time when the key is not found.
    fn misses(&self, op: Op, key: &str) -> bool {
        let mut state = self.state.locked();
        let rate = match op {
            // Draws no random number: a history without this fault keeps its random numbers.
            Op::Head if state.faults.head_missing_once == 0 => return false,
            Op::Head => state.faults.head_missing_once,
            _ => state.faults.missing_once,
        };
        let missed = state.hit(rate) && state.missed.insert(key.to_owned());
        state.counts.missed += u64::from(missed);
        missed
    }

    /// Keeps the state of outdated listings one or more steps behind.
    fn note(&self, key: &str, bytes: Option<u64>) {
        let mut state = self.state.locked();
        if state.hit(300) {
            state.old = state.new.clone();
        }
        match bytes {
            Some(bytes) => state.new.insert(key.to_owned(), bytes),
            None => state.new.remove(key),
        };
    }

    fn stale_page(&self, prefix: &str, after: Option<&str>) -> Option<ListPage> {
        let mut state = self.state.locked();
        let rate = state.faults.stale_list;
        if !state.hit(rate) {
            return None;
        }
        state.counts.stale += 1;
        let shown =
            state.old.iter().filter(|(key, _)| key.starts_with(prefix) && after.is_none_or(|a| key.as_str() > a));
        let objects = shown.map(|(key, bytes)| crate::Listed { key: key.clone(), bytes: *bytes }).collect();
        Some(ListPage { objects, more: None })
    }
}

impl<S: ObjectStore> ObjectStore for Faulty<S> {
    fn place(&self) -> &str {
        &self.place
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.play(Op::Put, key, async move {
            let bytes = body.len() as u64;
            let most = self.state.locked().faults.refuses_above;
            if most.is_some_and(|most| body.len() > most) {
                return Err(self.refused(Op::Put, key, 413, None));
            }
            let ignores = self.state.locked().ignores(None);
            if ignores {
                self.within.delete(key).await?;
            }
            self.within.put_new(key, body).await?;
            self.note(key, Some(bytes));
            Ok(())
        }))
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        Box::pin(self.play(Op::Get, key, async move {
            let Object { body, version } = self.within.get_object(key).await?;
            if self.misses(Op::Get, key) {
                return Err(StoreError::NotFound { at: At::new(&self.place, Op::Get, key) });
            }
            Ok(Object { body: self.spoil(Op::Get, key, body)?, version })
        }))
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        Box::pin(self.play(Op::Range, key, async move {
            let body = self.within.get_range(key, range).await?;
            if self.misses(Op::Range, key) {
                return Err(StoreError::NotFound { at: At::new(&self.place, Op::Range, key) });
            }
            self.spoil(Op::Range, key, body)
        }))
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        Box::pin(self.play(Op::Head, key, async move {
            let found = self.within.head(key).await?;
            if self.misses(Op::Head, key) {
                return Err(StoreError::NotFound { at: At::new(&self.place, Op::Head, key) });
            }
            Ok(found)
        }))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(self.play(Op::Delete, key, async move {
            self.within.delete(key).await?;
            self.note(key, None);
            Ok(())
        }))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        Box::pin(self.play(Op::List, prefix, async move {
            let (ignores, unsorted, empty) = {
                let faults = &self.state.locked().faults;
                (faults.ignores_start_after, faults.unsorted_list, faults.empty_first_page)
            };
            if empty && after.is_none() {
                return Ok(ListPage { objects: Vec::new(), more: Some(prefix.to_owned()) });
            }
            let mut page = match self.stale_page(prefix, after) {
                Some(page) => page,
                None => self.within.list(prefix, after.filter(|_| !ignores)).await?,
            };
            if unsorted {
                page.objects.reverse();
            }
            Ok(page)
        }))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        Box::pin(self.play(Op::Swap, key, async move {
            let bytes = body.len() as u64;
            let ignores = self.state.locked().ignores(expected);
            let there = if ignores { self.within.head(key).await.ok().map(|head| head.version) } else { None };
            let version = self.within.swap(key, if ignores { there.as_ref() } else { expected }, body).await?;
            self.note(key, Some(bytes));
            Ok(version)
        }))
    }
}
