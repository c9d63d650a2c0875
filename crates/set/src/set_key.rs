//! The data keys of one set, as this gateway knows them: keys that open its objects, and the key that seals new ones
//! (ADR 0023).
//!
//! ```text
//!   group 0's ring of wrapped keys ─▶ opened here ─▶ opens: any of them, newest first      seals: group 0's choice, or the highest seen in use (DATAKEY-Z2)
//! ```
//! Shared by all tasks of the set at this gateway, and replaced while they run.

use holdfast_control::keys::data::{Needs, Ring};
use holdfast_seal::{DataKey, ObjectOpener, ObjectSealer};
use holdfast_types::sync::{LockExt, RwLockExt};
use holdfast_types::{ObjectId, RequestId, SetId, Token};
use holdfast_volume::map::KeyUse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// A removed key stays in memory for this long: a running read may still hold an object under it, and must not report
/// it as damaged.
const LINGERS: Duration = Duration::from_secs(300);

/// One data key, which seals everything in one checkpoint.
#[derive(Clone)]
pub struct SealingKey {
    set: SetId,
    /// The key's number.
    pub key_id: u32,
    key: DataKey,
}

impl SealingKey {
    /// Seals parts of a new `object`.
    pub fn sealer(&self, object: ObjectId) -> ObjectSealer {
        ObjectSealer::new(&self.key, self.key_id, self.set, object)
    }
}

/// A set leader's findings about its keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyReport {
    /// For group 0's leader.
    pub needs: Needs,
    /// How much of the current root is under which key.
    pub uses: BTreeMap<u32, KeyUse>,
    /// What else needs keys older than the newest, as text for users: the key, and its user.
    pub held: Vec<(u32, String)>,
}

struct Held {
    keys: BTreeMap<u32, DataKey>,
    seals: u32,
    /// The wrapped keys that [`SetKey::follow`] was given last, with the number of the one that seals.
    followed: Option<(Vec<u8>, u32)>,
    /// Removed keys: number, key, time.
    gone: Vec<(u32, DataKey, Instant)>,
}

/// The keys under which a set's objects are sealed. Clones share them.
#[derive(Clone)]
pub struct SetKey {
    /// The set.
    pub set: SetId,
    held: Arc<RwLock<Held>>,
    changed: Arc<watch::Sender<()>>,
    report: Arc<Mutex<Option<KeyReport>>>,
}

impl fmt::Debug for SetKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SetKey({}, {:?})", self.set, self.ring())
    }
}

impl SetKey {
    /// For a set with one key.
    pub fn of(set: SetId, key_id: u32, key: DataKey) -> Self {
        let held = Held { keys: BTreeMap::from([(key_id, key)]), seals: key_id, followed: None, gone: Vec::new() };
        Self {
            set,
            held: Arc::new(RwLock::new(held)),
            changed: Arc::new(watch::Sender::new(())),
            report: Arc::default(),
        }
    }

    /// For a set with several keys, of which `seals` seals; `None` if it is not among them.
    pub fn of_ring(set: SetId, keys: BTreeMap<u32, DataKey>, seals: u32) -> Option<Self> {
        let first = Self::of(set, seals, keys.get(&seals)?.clone());
        first.replace(keys, seals);
        Some(first)
    }

    fn held<T>(&self, look: impl FnOnce(&Held) -> T) -> T {
        look(&self.held.reading())
    }

    /// Follows group 0, where the keys are `wrapped` and `seals` is chosen: see [`SetKey::replace`]. `open` unwraps
    /// them, and is called only if group 0 has changed them since the last call, because each gateway asks for each of
    /// its sets twice a second. Returns whether it was called.
    ///
    /// # Errors
    /// That of `open`, once: the same keys would not open later either, since a process never changes its cluster keys.
    pub fn follow<E>(
        &self,
        wrapped: &[u8],
        seals: u32,
        open: impl FnOnce() -> Result<BTreeMap<u32, DataKey>, E>,
    ) -> Result<bool, E> {
        self.follow_at(wrapped, seals, open, Instant::now())
    }

    fn follow_at<E>(
        &self,
        wrapped: &[u8],
        seals: u32,
        open: impl FnOnce() -> Result<BTreeMap<u32, DataKey>, E>,
        now: Instant,
    ) -> Result<bool, E> {
        let is_known = |held: &Held| held.followed.as_ref().is_some_and(|(known, by)| known == wrapped && *by == seals);
        if self.held(is_known) {
            self.forget(now);
            return Ok(false);
        }
        let opened = open();
        self.held.writing().followed = Some((wrapped.to_vec(), seals));
        self.replace_at(opened?, seals, now);
        Ok(true)
    }

    /// Forgets removed keys whose time is over.
    fn forget(&self, now: Instant) {
        let is_over = |since: &Instant| now.saturating_duration_since(*since) >= LINGERS;
        if self.held(|held| held.gone.iter().any(|(_, _, since)| is_over(since))) {
            self.held.writing().gone.retain(|(_, _, since)| !is_over(since));
        }
    }

    /// Replaces the keys; `seals` seals from now on, or a higher one seen in use.
    pub fn replace(&self, keys: BTreeMap<u32, DataKey>, seals: u32) {
        self.replace_at(keys, seals, Instant::now());
    }

    fn replace_at(&self, keys: BTreeMap<u32, DataKey>, seals: u32, now: Instant) {
        let mut held = self.held.writing();
        held.gone.retain(|(_, _, since)| now.saturating_duration_since(*since) < LINGERS);
        if held.keys.keys().eq(keys.keys()) && held.seals >= seals {
            return;
        }
        let before = std::mem::replace(&mut held.keys, keys);
        let gone: Vec<_> = before.into_iter().filter(|(id, _)| !held.keys.contains_key(id)).collect();
        held.gone.extend(gone.into_iter().map(|(id, key)| (id, key, now)));
        if held.keys.contains_key(&seals) {
            held.seals = held.seals.max(seals);
        }
        drop(held);
        self.changed.send_replace(());
    }

    /// Reports that an object under this key was opened: no lower key seals any more (DATAKEY-Z2).
    pub fn seen(&self, key_id: u32) {
        if self.held(|held| held.seals < key_id && held.keys.contains_key(&key_id)) {
            let mut held = self.held.writing();
            held.seals = held.seals.max(key_id);
        }
    }

    /// The keys as last known from group 0, and the one that seals here.
    pub fn ring(&self) -> Ring {
        self.held(|held| Ring { keys: held.keys.keys().copied().collect(), seals: held.seals })
    }

    /// Whether the set has this key.
    pub fn has(&self, key_id: u32) -> bool {
        self.held(|held| held.keys.contains_key(&key_id) || held.gone.iter().any(|(id, ..)| *id == key_id))
    }

    /// Whether this number is higher than all known keys: then group 0 lags behind at this gateway.
    pub fn is_behind(&self, key_id: u32) -> bool {
        self.held(|held| held.keys.keys().next_back().is_none_or(|newest| *newest < key_id))
    }

    /// Waits until this key is known; returns false after `limit`.
    pub async fn wait_for(&self, key_id: u32, limit: Duration) -> bool {
        let mut changed = self.changed.subscribe();
        let waited = async {
            while !self.has(key_id) {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(limit, waited).await.is_ok()
    }

    /// Opens parts of `object`.
    pub fn opener(&self, object: ObjectId) -> ObjectOpener {
        self.held(|held| {
            let gone = held.gone.iter().map(|(id, key, _)| (id, key));
            let mut all = held.keys.iter().rev().chain(gone);
            let Some((id, key)) = all.next() else { panic!("R10: set {} has no data key", self.set) };
            all.fold(ObjectOpener::new(key, *id, self.set, object), |opener, (id, key)| opener.or(key, *id))
        })
    }

    /// The key that seals now.
    pub fn sealing(&self) -> SealingKey {
        self.held(|held| {
            let Some(key) = held.keys.get(&held.seals) else {
                panic!("R10: set {} has no data key {}", self.set, held.seals)
            };
            SealingKey { set: self.set, key_id: held.seals, key: key.clone() }
        })
    }

    /// Seals parts of a new `object`.
    pub fn sealer(&self, object: ObjectId) -> ObjectSealer {
        self.sealing().sealer(object)
    }

    /// The token for exports of the snapshot made by request `made_by`.
    pub fn snapshot_token(&self, made_by: RequestId) -> Token {
        self.sealing().key.snapshot_token(self.set, made_by)
    }

    /// Whether `token` opens exports of that snapshot. A token of any data key that the set still has is accepted: a
    /// change of the key disconnects no reader.
    pub fn opens_snapshot(&self, made_by: RequestId, token: Token) -> bool {
        self.held(|held| held.keys.values().any(|key| key.snapshot_token(self.set, made_by) == token))
    }

    /// This gateway's findings about the keys, as the set's leader; `None` if it does not lead, or has none yet.
    pub fn report(&self) -> Option<KeyReport> {
        self.report.locked().clone()
    }

    /// Sets the findings.
    pub fn tell(&self, report: Option<KeyReport>) {
        *self.report.locked() = report;
    }

    /// The key numbers.
    pub fn ids(&self) -> BTreeSet<u32> {
        self.ring().keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_seal::Part;
    use holdfast_types::{GroupId, MemberId, Term};

    const OBJECT: ObjectId = ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: 1 };

    fn keys(ids: &[u32]) -> BTreeMap<u32, DataKey> {
        ids.iter().map(|id| (*id, DataKey::from_bytes([*id as u8; 32]))).collect()
    }

    fn sealed(key: &SetKey) -> Vec<u8> {
        key.sealer(OBJECT).seal_part(Part::Root, b"plain")
    }

    fn opens(key: &SetKey, sealed: &[u8]) -> bool {
        key.opener(OBJECT).open_part(Part::Root, sealed).is_ok_and(|plain| plain == b"plain")
    }

    #[test]
    fn the_new_key_opens_before_it_seals_and_the_old_one_lingers_for_reads() {
        let key = SetKey::of(GroupId(3), 1, keys(&[1])[&1].clone());
        let shared = key.clone();
        let first = sealed(&key);
        key.replace(keys(&[1, 2]), 1);
        assert_eq!((shared.ring().keys, shared.sealing().key_id), ([1, 2].into(), 1));
        key.replace(keys(&[1, 2]), 2);
        let second = sealed(&shared);
        assert!(opens(&shared, &first) && opens(&shared, &second));
        key.replace(keys(&[2]), 2);
        assert_eq!(shared.ids(), [2].into());
        assert!(opens(&shared, &first), "a running read may still use it");
        key.replace_at(keys(&[2]), 2, Instant::now() + LINGERS);
        assert!(!opens(&shared, &first) && opens(&shared, &second));
    }

    /// Each set's keys were opened twice a second, for as long as a gateway ran.
    #[test]
    fn keys_that_have_not_changed_are_not_opened_again() {
        let key = SetKey::of(GroupId(3), 1, keys(&[1])[&1].clone());
        let (start, mut opened) = (Instant::now(), 0);
        let mut follow = |wrapped: &[u8], seals, has: Result<&[u32], &'static str>, at| {
            let open = || {
                opened += 1;
                has.map(keys)
            };
            (key.follow_at(wrapped, seals, open, at), opened)
        };
        assert_eq!(follow(b"one and two", 1, Ok(&[1, 2]), start), (Ok(true), 1));
        assert_eq!(follow(b"one and two", 1, Ok(&[1, 2]), start), (Ok(false), 1));
        assert_eq!(follow(b"one and two", 2, Ok(&[1, 2]), start), (Ok(true), 2), "another one seals");
        assert_eq!(key.sealing().key_id, 2);
        let first = sealed(&SetKey::of(GroupId(3), 1, keys(&[1])[&1].clone()));
        assert_eq!(follow(b"two", 2, Ok(&[2]), start), (Ok(true), 3));
        assert!(opens(&key, &first), "a running read may still use it");
        assert_eq!(follow(b"two", 2, Ok(&[2]), start + LINGERS), (Ok(false), 3));
        assert!(!opens(&key, &first), "it is forgotten although nothing has changed");
        assert_eq!(follow(b"strange", 2, Err("another cluster key"), start), (Err("another cluster key"), 4));
        assert_eq!(follow(b"strange", 2, Err("another cluster key"), start), (Ok(false), 4), "it is told once");
        assert_eq!(key.ids(), [2].into(), "it keeps what it has");
        assert_eq!(follow(b"two", 2, Ok(&[2]), start), (Ok(true), 5));
    }

    #[test]
    fn what_was_seen_in_use_is_sealed_under_even_where_group_0_is_behind() {
        let key = SetKey::of_ring(GroupId(3), keys(&[1, 2]), 1).unwrap();
        key.seen(3);
        assert_eq!(key.sealing().key_id, 1, "it has no such key");
        key.seen(2);
        assert_eq!(key.sealing().key_id, 2);
        key.replace(keys(&[1, 2]), 1);
        assert_eq!(key.sealing().key_id, 2, "DATAKEY-Z2");
        assert!(SetKey::of_ring(GroupId(3), keys(&[1]), 2).is_none());
    }

    #[test]
    fn a_snapshot_token_outlives_a_change_of_the_data_key_and_not_the_key() {
        let key = SetKey::of(GroupId(3), 1, keys(&[1])[&1].clone());
        let (monday, tuesday) = (RequestId(1), RequestId(2));
        let before = key.snapshot_token(monday);
        assert!(key.opens_snapshot(monday, before) && !key.opens_snapshot(tuesday, before));
        key.replace(keys(&[1, 2]), 2);
        let after = key.snapshot_token(monday);
        assert!(before != after && key.opens_snapshot(monday, before) && key.opens_snapshot(monday, after));
        key.replace(keys(&[2]), 2);
        assert!(!key.opens_snapshot(monday, before) && key.opens_snapshot(monday, after));
    }

    #[tokio::test]
    async fn who_is_behind_waits_for_the_key() {
        let key = SetKey::of(GroupId(3), 1, keys(&[1])[&1].clone());
        assert!(key.is_behind(2) && !key.is_behind(1));
        assert!(!key.wait_for(2, Duration::from_millis(1)).await);
        let (waiter, replaced) = (key.clone(), key.clone());
        let waits = tokio::spawn(async move { waiter.wait_for(2, Duration::from_secs(60)).await });
        replaced.replace(keys(&[1, 2]), 1);
        assert!(waits.await.unwrap());
    }
}
