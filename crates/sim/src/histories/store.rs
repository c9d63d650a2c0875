//! The store of a history: objects in memory. Requests and answers are lost, late, refused or damaged on the way. A
//! request that was sent is carried out, whether or not the sender lives to see the answer.

use crate::rng::Rng;
use crate::sync::lock;
use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use holdfast_store::{
    At, BoxFuture, Cause, Head, ListPage, Listed, Memory, Object, ObjectStore, Op, StoreError, Version,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::sleep;

/// Most times that reads of an object are damaged or do not find it: readers retry a bounded number of times, and no
/// history may fail by chance.
const SPOILT_MAX: u8 = 2;

/// Most reads of a key that show what [`Server::keep_for_stale_reads`] kept.
const OLD_READS_MAX: u8 = 3;

/// Faults, in thousandths of the requests that each can hit.
#[derive(Clone, Copy, Debug, Default)]
pub struct Weather {
    /// Refused before anything happened.
    pub refused: u64,
    /// Done, and the answer is lost.
    pub unanswered: u64,
    /// A write succeeds, but is answered as if other content were there.
    pub conflict: u64,
    /// An existing object is not found.
    pub missing: u64,
    /// A read returns one flipped bit.
    pub spoilt: u64,
    /// A listing shows an earlier state, and a read what was kept for it.
    pub stale: u64,
    /// A listing leaves out each entry.
    pub lacking: u64,
    /// Under way for up to `slow_ms`, both ways.
    pub slow: u64,
    pub slow_ms: u64,
    /// Nothing is done at all.
    pub down: bool,
    /// Refused until somebody acts.
    pub denied: bool,
    /// Of several stores, the one that is down or refuses.
    pub at: u64,
}

impl Weather {
    /// Faults at random, with this percentage of their usual rates.
    pub fn drawn(rng: &mut Rng, percent: u64) -> Self {
        let mut weather = Self::default();
        let mut some = |most: u64| if rng.chance(500) { (rng.below(most) * percent / 100).min(999) } else { 0 };
        (weather.refused, weather.unanswered, weather.conflict) = (some(200), some(200), some(150));
        (weather.missing, weather.spoilt, weather.stale) = (some(100), some(100), some(800));
        (weather.lacking, weather.slow, weather.slow_ms) = (some(500), some(1000), 1 + some(400));
        weather.down = rng.chance(120);
        weather.denied = rng.chance(60);
        weather
    }
}

struct State {
    rng: Rng,
    weather: Weather,
    /// How often a key was spoilt or not found.
    spoilt: BTreeMap<String, u8>,
    /// Existing keys.
    present: BTreeSet<String>,
    /// Keys in stale listings.
    old: BTreeSet<String>,
    /// What stale reads show, and how many may still.
    kept: BTreeMap<String, (u8, Object)>,
    played: [u64; 8],
}

struct Inner {
    memory: Memory,
    state: Mutex<State>,
}

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct Server(Arc<Inner>);

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("store of a history")
    }
}

struct Plan {
    there: Duration,
    back: Duration,
    refused: bool,
    denied: bool,
    unanswered: bool,
    conflict: bool,
}

fn at(op: Op, key: &str) -> Box<At> {
    Box::new(At { store: "history".into(), op, key: key.to_string() })
}

fn cause(text: &str) -> Box<Cause> {
    let mut cause = Cause::default();
    cause.message = format!("played: {text}");
    Box::new(cause)
}

impl Server {
    /// Store number `at` of a history.
    pub fn new(seed: u64, at: u64) -> Self {
        let state = State {
            rng: Rng::new(seed, if at == 0 { 3 } else { 40 + at }),
            weather: Weather::default(),
            spoilt: BTreeMap::new(),
            present: BTreeSet::new(),
            old: BTreeSet::new(),
            kept: BTreeMap::new(),
            played: [0; 8],
        };
        Self(Arc::new(Inner { memory: Memory::new(), state: Mutex::new(state) }))
    }

    /// Sets the faults from now on.
    pub fn set(&self, weather: Weather) {
        lock(&self.0.state).weather = weather;
    }

    /// The keys of all existing objects.
    pub fn present(&self) -> BTreeSet<String> {
        lock(&self.0.state).present.clone()
    }

    /// Whether this object is there.
    pub fn has(&self, key: &str) -> bool {
        lock(&self.0.state).present.contains(key)
    }

    /// An object as stored.
    pub fn object(&self, key: &str) -> Option<Bytes> {
        self.0.memory.get(key).now_or_never()?.ok()
    }

    /// Some later reads of this object may show what it is now.
    pub fn keep_for_stale_reads(&self, key: &str) {
        if let Some(Ok(object)) = self.0.memory.get_object(key).now_or_never() {
            lock(&self.0.state).kept.insert(key.to_string(), (OLD_READS_MAX, object));
        }
    }

    /// Flips one bit of an object; false if there is none.
    pub fn damage(&self, key: &str) -> bool {
        let Some(bytes) = self.object(key).filter(|bytes| !bytes.is_empty()) else { return false };
        let mut bytes = bytes.to_vec();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        let memory = &self.0.memory;
        let gone = memory.delete(key).now_or_never();
        let put = memory.put_new(key, bytes.into()).now_or_never();
        matches!((gone, put), (Some(Ok(_)), Some(Ok(()))))
    }

    /// Count of each injected fault: refused, unanswered, conflict, missing, spoilt, stale, lacking, slow.
    pub fn played(&self) -> [u64; 8] {
        lock(&self.0.state).played
    }

    fn plan(&self, op: Op) -> Plan {
        let mut state = lock(&self.0.state);
        let weather = state.weather;
        let slow = state.rng.chance(weather.slow);
        let way = |state: &mut State| match slow {
            true => Duration::from_millis(state.rng.range(1, weather.slow_ms.max(1))),
            false => Duration::ZERO,
        };
        let (there, back) = (way(&mut state), way(&mut state));
        let refused = state.rng.chance(weather.refused) || weather.down;
        let denied = weather.denied && !refused;
        let reached = !refused && !denied;
        let unanswered = state.rng.chance(weather.unanswered) && reached;
        let puts = matches!(op, Op::Put | Op::Swap);
        let conflict = state.rng.chance(weather.conflict) && puts && reached && !unanswered;
        for (count, hit) in [refused || denied, unanswered, conflict].into_iter().enumerate() {
            state.played[count] += u64::from(hit);
        }
        state.played[7] += u64::from(slow);
        Plan { there, back, refused, denied, unanswered, conflict }
    }

    /// Sends a request and waits for its answer. Memory answers at once.
    async fn call<T: Send + 'static>(
        &self,
        op: Op,
        key: &str,
        ask: impl FnOnce(&Inner) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let plan = self.plan(op);
        let answered = if plan.there.is_zero() && plan.back.is_zero() {
            (!plan.refused && !plan.denied).then(|| ask(&self.0))
        } else {
            let (tx, rx) = oneshot::channel();
            let inner = self.0.clone();
            let (there, back, reached) = (plan.there, plan.back, !plan.refused && !plan.denied);
            tokio::spawn(async move {
                sleep(there).await;
                let answer = reached.then(|| ask(&inner));
                sleep(back).await;
                drop(tx.send(answer));
            });
            rx.await.unwrap_or(None)
        };
        let Some(answer) = answered else {
            return Err(match plan.denied {
                true => StoreError::Denied { at: at(op, key), cause: cause("denied"), hint: "played" },
                false => StoreError::Unavailable { at: at(op, key), attempts: 1, cause: cause("refused") },
            });
        };
        if plan.unanswered {
            let (at, attempts, cause) = (at(op, key), 1, cause("the answer is lost"));
            return Err(match op.writes() {
                true => StoreError::Unknown { at, attempts, cause },
                false => StoreError::Unavailable { at, attempts, cause },
            });
        }
        match (plan.conflict, op, answer.is_ok()) {
            (true, Op::Swap, true) => Err(StoreError::Changed { at: at(op, key), found: None, expected: None }),
            (true, Op::Put, true) => Err(StoreError::Exists { at: at(op, key), found_bytes: 0, expected_bytes: 0 }),
            _ => answer,
        }
    }
}

/// Memory answers at once.
fn at_once<T>(answer: BoxFuture<'_, Result<T, StoreError>>) -> Result<T, StoreError> {
    match answer.now_or_never() {
        Some(answer) => answer,
        None => panic!("memory waits"),
    }
}

impl Inner {
    fn note(&self, key: &str, there: bool) {
        let mut state = lock(&self.state);
        if state.rng.chance(200) {
            state.old = state.present.clone();
        }
        match there {
            true => drop(state.present.insert(key.to_string())),
            false => drop(state.present.remove(key)),
        }
    }

    /// The kept object, for a stale read.
    fn stale_read(&self, key: &str) -> Option<Object> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let (left, object) = state.kept.get_mut(key).filter(|(left, _)| *left > 0)?;
        if !state.rng.chance(state.weather.stale) {
            return None;
        }
        *left -= 1;
        state.played[5] += 1;
        Some(object.clone())
    }

    /// `body` as its reader gets it.
    fn spoil(&self, op: Op, key: &str, body: Bytes) -> Result<Bytes, StoreError> {
        let mut state = lock(&self.state);
        let weather = state.weather;
        let (missing, spoilt, place) =
            (state.rng.chance(weather.missing), state.rng.chance(weather.spoilt), state.rng.draw());
        if !missing && !spoilt || body.is_empty() {
            return Ok(body);
        }
        let times = state.spoilt.entry(key.to_string()).or_default();
        if *times >= SPOILT_MAX {
            return Ok(body);
        }
        *times += 1;
        if missing {
            state.played[3] += 1;
            return Err(StoreError::NotFound { at: at(op, key) });
        }
        state.played[4] += 1;
        let mut body = BytesMut::from(&body[..]);
        let byte = (place % body.len() as u64) as usize;
        body[byte] ^= 1 << (place >> 61);
        Ok(body.freeze())
    }

    fn list(&self, prefix: &str, after: Option<&str>) -> Result<ListPage, StoreError> {
        let mut state = lock(&self.state);
        let weather = state.weather;
        if state.rng.chance(weather.stale) {
            state.played[5] += 1;
            let shown = state
                .old
                .iter()
                .filter(|key| key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after));
            return Ok(ListPage {
                objects: shown.map(|key| Listed { key: key.clone(), bytes: 1 }).collect(),
                more: None,
            });
        }
        drop(state);
        let mut page = at_once(self.memory.list(prefix, after))?;
        let mut state = lock(&self.state);
        let before = page.objects.len();
        page.objects.retain(|_| !state.rng.chance(weather.lacking));
        state.played[6] += (before - page.objects.len()) as u64;
        Ok(page)
    }
}

impl ObjectStore for Server {
    fn place(&self) -> &str {
        "history"
    }

    fn put_new<'a>(&'a self, key: &'a str, body: Bytes) -> BoxFuture<'a, Result<(), StoreError>> {
        let name = key.to_string();
        Box::pin(self.call(Op::Put, key, move |inner| {
            at_once(inner.memory.put_new(&name, body))?;
            inner.note(&name, true);
            Ok(())
        }))
    }

    fn get_object<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Object, StoreError>> {
        let name = key.to_string();
        Box::pin(self.call(Op::Get, key, move |inner| {
            if let Some(old) = inner.stale_read(&name) {
                return Ok(old);
            }
            let Object { body, version } = at_once(inner.memory.get_object(&name))?;
            Ok(Object { body: inner.spoil(Op::Get, &name, body)?, version })
        }))
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        let name = key.to_string();
        Box::pin(self.call(Op::Range, key, move |inner| {
            let body = at_once(inner.memory.get_range(&name, range))?;
            inner.spoil(Op::Range, &name, body)
        }))
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Head, StoreError>> {
        let name = key.to_string();
        Box::pin(self.call(Op::Head, key, move |inner| at_once(inner.memory.head(&name))))
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        let name = key.to_string();
        Box::pin(self.call(Op::Delete, key, move |inner| {
            at_once(inner.memory.delete(&name))?;
            inner.note(&name, false);
            Ok(())
        }))
    }

    fn list<'a>(&'a self, prefix: &'a str, after: Option<&'a str>) -> BoxFuture<'a, Result<ListPage, StoreError>> {
        let (from, after) = (prefix.to_string(), after.map(str::to_string));
        Box::pin(self.call(Op::List, prefix, move |inner| inner.list(&from, after.as_deref())))
    }

    fn swap<'a>(
        &'a self,
        key: &'a str,
        expected: Option<&'a Version>,
        body: Bytes,
    ) -> BoxFuture<'a, Result<Version, StoreError>> {
        let (name, expected) = (key.to_string(), expected.cloned());
        Box::pin(self.call(Op::Swap, key, move |inner| {
            let version = at_once(inner.memory.swap(&name, expected.as_ref(), body))?;
            inner.note(&name, true);
            Ok(version)
        }))
    }
}
