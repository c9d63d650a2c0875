//! Cache of map roots: the current one, the previous one for running reads, and some for exports of snapshots.
//!
//! Readers need only a root's top, and one leaf for each place ([`Known`]); checkpoints, collection and similar tasks
//! need all of it. After a takeover every read wants the root at once, so later callers wait for the load in progress.
//! Recently used roots stay: exports of many snapshots must not push out the root that every read of the set needs.
//! Unused roots are dropped: after random writes over a large volume, a root shares hardly any leaf with the next one,
//! so each kept root costs its full memory.

use holdfast_cache::BlockKey;
use holdfast_cache::Flights;
use holdfast_control::set::{CLONE_DEPTH_MAX, RootRef};
use holdfast_types::sync::LockExt;
use holdfast_types::{Lba, Sectors, VolumeId};
use holdfast_volume::map::{Base, LeafRef, MapPiece, Page, PageAt, PartialRoot, Root, Top};
use holdfast_volume::space::Amplification;
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of cached roots: the set's, and for a clone those of its origins that its reads go through.
const ROOTS_MAX: usize = 6 + CLONE_DEPTH_MAX as usize;

/// Maximum memory of cached roots; above it only the protected ones stay. Enough for two whole roots of some 3 TiB of
/// random extents.
const ROOTS_BYTES_MAX: u64 = 15 << 20;

/// Roots that were not used for this long are dropped.
const UNUSED_MAX: Duration = Duration::from_secs(30);

/// Roots that stay whatever their size and last use: the current one, and the previous one for running reads. Two roots
/// being compared stay in addition: otherwise, above some 3 TiB, each part of a comparison would push out what the next
/// one needs.
const ROOTS_MIN: usize = 2;

/// A cacheable form of a root: all of it, or its top.
pub(super) trait Rooted {
    /// Approximate memory use.
    fn bytes(&self) -> u64;
    /// Whether a base is visible where the root has no entry.
    fn is_over(&self) -> bool;
}

impl Rooted for Root {
    fn bytes(&self) -> u64 {
        self.memory_bytes()
    }

    fn is_over(&self) -> bool {
        self.base().is_some()
    }
}

impl Rooted for PartialRoot {
    fn bytes(&self) -> u64 {
        self.memory_bytes()
    }

    /// Only a set's own roots are kept in part, so that a clone's need no room for those of its origins.
    fn is_over(&self) -> bool {
        false
    }
}

impl Rooted for Top {
    fn bytes(&self) -> u64 {
        self.memory_bytes()
    }

    fn is_over(&self) -> bool {
        self.base().is_some()
    }
}

/// A root as known to a reader.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// All of it.
    All(Arc<Root>),
    /// All of it except leaves of pages that are in the store only.
    Part(Arc<PartialRoot>),
    /// The top, which names its leaves.
    Top(Arc<Top>),
}

impl Known {
    /// A page's place, or the leaf that has it.
    pub(super) fn page(&self, volume: VolumeId, number: u32) -> PageAt {
        match self {
            Known::All(root) => root.page(volume, number).map_or(PageAt::Nowhere, PageAt::Page),
            Known::Part(root) => root.page(volume, number),
            Known::Top(top) => top.page(volume, number),
        }
    }

    /// Whether it has leaves and this same one is among them. Takes time proportional to the number of leaves.
    pub(super) fn has_leaf(&self, leaf: &LeafRef) -> bool {
        let written = (leaf.at.object, leaf.at.number);
        match self {
            Known::All(root) => root.written().contains_key(&written),
            Known::Part(root) => root.written().contains_key(&written) || root.away().any(|away| away.at == leaf.at),
            Known::Top(top) => top.leaves().any(|named| named.at == leaf.at),
        }
    }

    /// The base that is visible where it has no entry.
    pub(super) fn base(&self) -> Option<&Base> {
        match self {
            Known::All(root) => root.base(),
            Known::Part(root) => root.base(),
            Known::Top(top) => top.base(),
        }
    }

    /// The data key under which it is sealed.
    pub(super) fn key_id(&self) -> u32 {
        match self {
            Known::All(root) => root.key_id(),
            Known::Part(root) => root.key_id(),
            Known::Top(top) => top.key_id(),
        }
    }

    /// Every data key of it and of the objects that it names.
    pub(super) fn keys_needed(&self) -> BTreeSet<u32> {
        match self {
            Known::All(root) => root.keys_needed(),
            Known::Part(root) => root.keys_needed(),
            Known::Top(top) => top.keys_needed(),
        }
    }

    /// Bytes of its segments, and the part in use.
    pub(super) fn segments(&self) -> Amplification {
        match self {
            Known::All(root) => Amplification::of(root),
            Known::Part(root) => Amplification::of(root),
            Known::Top(top) => {
                let (stored_bytes, live_bytes) = top.segment_bytes();
                Amplification { stored_bytes, live_bytes }
            }
        }
    }

    /// The parts of a range within one page; `page` is the root's page there, opened.
    pub(super) fn lookup(&self, page: Option<&Page>, volume: VolumeId, lba: Lba, sectors: Sectors) -> Vec<MapPiece> {
        match self {
            Known::All(root) => root.lookup(page, volume, lba, sectors),
            Known::Part(root) => root.lookup(page, volume, lba, sectors),
            Known::Top(top) => top.lookup(page, volume, lba, sectors),
        }
    }
}

struct CachedRoot<V> {
    at: RootRef,
    root: Arc<V>,
    bytes: u64,
    used: Instant,
}

pub(super) struct Roots<V> {
    /// Ordered by last use; the most recent is last.
    kept: Mutex<VecDeque<CachedRoot<V>>>,
    /// The root that reads of the set use; never dropped. While the store is unavailable, it could not be read again
    /// (R8).
    current: Mutex<Option<RootRef>>,
    /// Two roots that are compared part by part, and when the last part began.
    compared: Mutex<Option<([RootRef; 2], Instant)>>,
    loads: Flights<Arc<V>>,
}

impl<V> Default for Roots<V> {
    fn default() -> Self {
        let (kept, current, compared) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { kept, current, compared, loads: Flights::default() }
    }
}

impl<V: Rooted> Roots<V> {
    fn kept(&self) -> MutexGuard<'_, VecDeque<CachedRoot<V>>> {
        self.kept.locked()
    }

    fn current(&self) -> MutexGuard<'_, Option<RootRef>> {
        self.current.locked()
    }

    /// Sets the root that reads of the set use.
    pub(super) fn note_current(&self, at: RootRef) {
        *self.current() = Some(at);
    }

    /// Reports that a part of these two is being compared: for a while their size does not cause a drop. Only one
    /// comparison at a time.
    pub(super) fn note_compared(&self, roots: [RootRef; 2]) {
        self.note_compared_at(roots, Instant::now());
    }

    fn note_compared_at(&self, roots: [RootRef; 2], now: Instant) {
        *self.compared.locked() = Some((roots, now));
    }

    fn compared_at(&self, now: Instant) -> Option<[RootRef; 2]> {
        let noted = *self.compared.locked();
        noted.filter(|(_, at)| now.saturating_duration_since(*at) <= UNUSED_MAX).map(|(roots, _)| roots)
    }

    /// Whether this root is being compared with another one.
    pub(super) fn is_compared(&self, at: RootRef) -> bool {
        self.compared_at(Instant::now()).is_some_and(|two| two.contains(&at))
    }

    /// Drops large roots that were not used for long. Called when the set's roots are kept in another form from now on,
    /// so that no new root pushes these out.
    pub(super) fn forget_unused(&self) {
        self.forget_unused_at(Instant::now());
    }

    fn forget_unused_at(&self, now: Instant) {
        let mut kept = self.kept();
        let (current, compared) = (*self.current(), self.compared_at(now));
        let mut bytes: u64 = kept.iter().map(|one| one.bytes).sum();
        kept.retain(|one| {
            let stays = bytes <= ROOTS_BYTES_MAX
                || Some(one.at) == current
                || compared.is_some_and(|two| two.contains(&one.at))
                || now.saturating_duration_since(one.used) <= UNUSED_MAX;
            if !stays {
                bytes -= one.bytes;
            }
            stays
        });
    }

    /// All roots in memory.
    pub(super) fn all(&self) -> Vec<Arc<V>> {
        self.kept().iter().map(|kept| kept.root.clone()).collect()
    }

    /// The root, if it is in memory.
    pub(super) fn get(&self, at: RootRef) -> Option<Arc<V>> {
        used(&mut self.kept(), at, Instant::now())
    }

    /// Caches a root; the least recently used ones are dropped.
    pub(super) fn keep(&self, at: RootRef, root: Arc<V>) {
        self.keep_at(at, root, Instant::now());
    }

    fn keep_at(&self, at: RootRef, root: Arc<V>, now: Instant) {
        let mut kept = self.kept();
        // All callers that waited for one load cache the same root.
        if used(&mut kept, at, now).is_some() {
            return;
        }
        let bytes = at.bytes.max(root.bytes());
        kept.push_back(CachedRoot { at, root, bytes, used: now });
        // Every read of a clone goes through the roots of all its origins.
        let origins = if kept.iter().any(|one| one.root.is_over()) { CLONE_DEPTH_MAX as usize } else { 0 };
        let mut bytes: u64 = kept.iter().map(|one| one.bytes).sum();
        let (current, compared) = (*self.current(), self.compared_at(now));
        let is_current = |one: &CachedRoot<V>| Some(one.at) == current;
        let is_compared = |one: &CachedRoot<V>| compared.is_some_and(|two| two.contains(&one.at));
        let beside = kept.iter().filter(|one| is_compared(one) && !is_current(one)).count();
        while kept.len() > ROOTS_MIN + origins + beside
            && let Some(place) = kept.iter().position(|one| !is_current(one) && !is_compared(one))
            && let Some(oldest) = kept.get(place)
            && (kept.len() > ROOTS_MAX
                || bytes > ROOTS_BYTES_MAX
                || now.saturating_duration_since(oldest.used) > UNUSED_MAX)
        {
            bytes -= oldest.bytes;
            kept.remove(place);
        }
    }

    /// Drops a root.
    pub(super) fn forget(&self, at: RootRef) {
        self.kept().retain(|known| known.at != at);
    }

    /// The root from memory, from a load in progress, or by `load`. Does not cache it. A failure is not shared: the
    /// next waiting caller tries again.
    pub(super) async fn get_or_load<E, F>(&self, at: RootRef, load: impl FnOnce() -> F) -> Result<Arc<V>, E>
    where
        F: Future<Output = Result<Arc<V>, E>>,
    {
        if let Some(root) = self.get(at) {
            return Ok(root);
        }
        let flight = self.loads.join(BlockKey::first(at.object, 0));
        flight
            .cell()
            .get_or_try_init(|| async {
                // A load may have ended between check and join.
                match self.get(at) {
                    Some(root) => Ok(root),
                    None => load().await,
                }
            })
            .await
            .cloned()
    }
}

/// Marks the root as the most recently used one.
fn used<V>(kept: &mut VecDeque<CachedRoot<V>>, at: RootRef, now: Instant) -> Option<Arc<V>> {
    let place = kept.iter().position(|known| known.at == at)?;
    let found = kept.remove(place)?;
    let root = found.root.clone();
    kept.push_back(CachedRoot { used: now, ..found });
    Some(root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::{GroupId, LogId, MemberId, ObjectId, Term};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn at(random: u128) -> RootRef {
        RootRef { object: ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }, bytes: 1 }
    }

    fn root() -> Arc<Root> {
        Arc::new(Root::default())
    }

    /// R8: the set is not read for a while, and two snapshots are.
    #[test]
    fn the_current_one_stays_however_long_nobody_asks() {
        let (roots, begun) = (Roots::default(), Instant::now());
        roots.note_current(at(0));
        roots.keep_at(at(0), root(), begun);
        let later = begun + 10 * UNUSED_MAX;
        for n in 1..100 {
            roots.keep_at(RootRef { bytes: ROOTS_BYTES_MAX, ..at(n) }, root(), later);
        }
        assert!(roots.get(at(0)).is_some());
        assert_eq!(roots.kept().len(), ROOTS_MIN);
        // Once replaced as the current root, it is dropped like any other.
        roots.note_current(at(99));
        roots.keep_at(at(100), root(), later + 20 * UNUSED_MAX);
        roots.keep_at(at(101), root(), later + 20 * UNUSED_MAX);
        assert!(roots.get(at(0)).is_none());
    }

    #[test]
    fn what_is_used_stays() {
        let roots = Roots::default();
        for n in 0..100 {
            roots.keep(at(n), root());
            assert!(roots.get(at(0)).is_some(), "in constant use, but pushed out by {n}");
            assert!(roots.kept().len() <= ROOTS_MAX);
        }
        assert!(roots.get(at(50)).is_none() && roots.get(at(99)).is_some());
        roots.forget(at(99));
        assert!(roots.get(at(99)).is_none() && roots.get(at(0)).is_some());
    }

    #[test]
    fn large_roots_are_few() {
        let roots = Roots::default();
        let large = |random| RootRef { bytes: ROOTS_BYTES_MAX / 3, ..at(random) };
        for n in 0..10 {
            roots.keep(large(n), root());
        }
        assert_eq!(roots.kept().len(), 3, "{ROOTS_BYTES_MAX} bytes");
        assert!(roots.get(large(7)).is_some() && roots.get(large(9)).is_some());
        let huge = |random| RootRef { bytes: ROOTS_BYTES_MAX * 2, ..at(random) };
        for n in 10..20 {
            roots.keep(huge(n), root());
        }
        assert_eq!(roots.kept().len(), ROOTS_MIN, "the current one, and the one before");
        assert!(roots.get(huge(18)).is_some() && roots.get(huge(19)).is_some());
    }

    #[test]
    fn those_of_a_clones_origins_stay_however_large() {
        let roots = Roots::default();
        let large = |random| RootRef { bytes: ROOTS_BYTES_MAX, ..at(random) };
        let base = Base::new(GroupId(1), large(0), LogId::default(), std::iter::empty());
        roots.keep(large(100), Arc::new(Root::over(LogId::default(), base)));
        let chain = u128::from(CLONE_DEPTH_MAX);
        for n in 0..chain {
            roots.keep(large(n), root());
        }
        assert!(roots.get(large(100)).is_some());
        assert!((0..chain).all(|n| roots.get(large(n)).is_some()), "one of the origins has to be read again");
    }

    #[test]
    fn what_nobody_uses_goes() {
        let (roots, begun) = (Roots::default(), Instant::now());
        for n in 0..5 {
            roots.keep_at(at(n), root(), begun);
        }
        let later = begun + UNUSED_MAX / 2;
        roots.keep_at(at(1), root(), later);
        roots.keep_at(at(5), root(), later + UNUSED_MAX);
        let left: Vec<u128> = roots.kept().iter().map(|kept| kept.at.object.random).collect();
        assert_eq!(left, [1, 5], "the one before, and the new one");
    }

    /// Two snapshots of many TiB are compared part by part while the set continues: no part reads again what the
    /// previous one had.
    #[test]
    fn two_that_are_compared_stay_for_as_long_as_they_are() {
        let (roots, mut now) = (Roots::default(), Instant::now());
        let huge = |random| RootRef { bytes: ROOTS_BYTES_MAX, ..at(random) };
        for checkpoint in 10..20 {
            now += UNUSED_MAX / 2;
            roots.note_current(huge(checkpoint));
            roots.keep_at(huge(checkpoint), root(), now);
            roots.note_compared_at([huge(1), huge(2)], now);
            for one in [huge(2), huge(1)] {
                let has_gone = used(&mut roots.kept(), one, now).is_none();
                assert_eq!(has_gone, checkpoint == 10, "{one:?} beside the checkpoint {checkpoint}");
                roots.keep_at(one, root(), now);
            }
        }
        assert_eq!(roots.kept().len(), ROOTS_MIN + 2, "the current one, the one before, and these");
        roots.keep_at(huge(30), root(), now + 2 * UNUSED_MAX);
        let left: Vec<u128> = roots.kept().iter().map(|kept| kept.at.object.random).collect();
        assert_eq!(left, [19, 30], "nobody compares them any more");
    }

    /// The number of cached roots of a set depends on their size.
    #[test]
    fn what_is_large_goes_although_nothing_comes_after_it() {
        let (roots, begun) = (Roots::default(), Instant::now());
        let huge = |random| RootRef { bytes: ROOTS_BYTES_MAX + 1, ..at(random) };
        let left = |roots: &Roots<Root>| roots.kept().iter().map(|kept| kept.at.object.random).collect::<Vec<_>>();
        roots.note_current(huge(1));
        roots.keep_at(huge(0), root(), begun);
        roots.keep_at(huge(1), root(), begun);
        roots.forget_unused_at(begun + UNUSED_MAX);
        assert_eq!(left(&roots), [0, 1], "the one before is for reads under way");
        let later = begun + 2 * UNUSED_MAX;
        roots.forget_unused_at(later);
        assert_eq!(left(&roots), [1], "the current one stays");
        roots.note_current(huge(2));
        roots.note_compared_at([huge(1), huge(3)], later);
        roots.forget_unused_at(later);
        assert_eq!(left(&roots), [1], "it is compared");
        roots.forget_unused_at(later + 2 * UNUSED_MAX);
        assert!(left(&roots).is_empty());
        // A small root is worth its memory.
        roots.keep_at(at(4), root(), begun);
        roots.forget_unused_at(later);
        assert_eq!(left(&roots), [4]);
    }

    /// Every form of a clone's root, except the partial one, is cached beside its origins' roots.
    #[test]
    fn a_clones_roots_in_part_are_few() {
        let roots = Roots::default();
        let huge = |random| RootRef { bytes: ROOTS_BYTES_MAX, ..at(random) };
        for n in 0..10 {
            let base = Base::new(GroupId(1), at(99), LogId::default(), std::iter::empty());
            roots.keep(huge(n), Arc::new(PartialRoot::from(Root::over(LogId::default(), base))));
        }
        assert_eq!(roots.kept().len(), ROOTS_MIN);
    }

    #[tokio::test]
    async fn whoever_comes_while_a_root_is_loaded_waits_for_that_load() {
        let roots = Roots::default();
        let (loads, gate) = (AtomicUsize::new(0), tokio::sync::Semaphore::new(0));
        let one = || async {
            let load = || async {
                loads.fetch_add(1, Ordering::Relaxed);
                drop(gate.acquire().await);
                Ok::<_, ()>(root())
            };
            let root = roots.get_or_load(at(1), load).await.unwrap();
            roots.keep(at(1), root);
        };
        let open = async {
            tokio::task::yield_now().await;
            gate.add_permits(1);
        };
        tokio::join!(one(), one(), one(), open);
        assert_eq!(loads.load(Ordering::Relaxed), 1);
        let failed = roots.get_or_load(at(2), || async { Err::<Arc<Root>, _>("no") }).await;
        assert!(failed.is_err());
        assert!(roots.get_or_load(at(2), || async { Ok::<_, ()>(root()) }).await.is_ok(), "the next one tries");
    }
}
