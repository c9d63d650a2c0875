//! Deletes a set from its store (ADR 0029): a tombstone replaces its head, then all of its objects are deleted.
//!
//! TOMB-T1  Objects of a set are deleted only while its tombstone is in place, and this is checked after the listing:
//!     another cluster's objects stay. With several stores, deletion begins once each has the tombstone in its part of
//!     the head (ADR 0018). Each store is listed separately, and its objects are deleted from that store.
//! TOMB-T2  The tombstone stays for ever: it keeps a gateway of an ended life from writing a head, and a key, again.

use super::head;
use super::mapping::SetKey;
use futures_util::StreamExt;
use futures_util::stream;
use holdfast_store::{Disposition, ObjectStore, StoreError, keys};
use holdfast_types::{Name, ObjectId, SetId};
use holdfast_volume::head::{HeadError, SetLife, Standing, is_tombstone, seal_tombstone};
use std::time::Duration;

/// Maximum number of objects that one call deletes.
const DELETIONS_PER_LOOK: usize = 512;
/// Maximum number of concurrent deletions.
const DELETIONS_AT_ONCE: usize = 8;
/// Time limit of one request; afterwards it is repeated.
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of listing pages that one call reads.
const LIST_PAGES_MAX: usize = 64;
/// Number of read-and-swap attempts in one call: each failed attempt means that another writer was faster, or that the
/// head did not open.
const SWAPS_MAX: u32 = 8;

/// The deletion is not finished and will be retried.
#[derive(Debug, thiserror::Error)]
pub enum BurialError {
    /// The store failed.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// The store did not answer.
    #[error("{key}: the store did not answer within {REQUEST_LIMIT:?}")]
    Late {
        /// The requested key.
        key: String,
    },
    /// The object there may be another cluster's.
    #[error(
        "{key} in the store is no head of this set, or a damaged one: {error}; nothing is deleted there. If no other cluster keeps a set under that key, \
         remove that one object, and the deletion goes on"
    )]
    Foreign {
        /// Its key.
        key: String,
        /// The reason.
        error: HeadError,
    },
    /// TOMB-T1.
    #[error(
        "{key} in the store is no longer the tombstone: another cluster may keep a set there; nothing more is deleted"
    )]
    NotOurs {
        /// The head's key.
        key: String,
    },
    /// Some of several stores do not have it yet.
    #[error("not every store has the tombstone in its part of {key} yet: all of them must answer")]
    Unlike {
        /// The head's key.
        key: String,
    },
    /// Other writers were faster every time.
    #[error("the head in the store was replaced by another writer {SWAPS_MAX} times")]
    Contended,
}

async fn within<T>(key: &str, request: impl Future<Output = Result<T, StoreError>>) -> Result<T, BurialError> {
    match tokio::time::timeout(REQUEST_LIMIT, request).await {
        Ok(outcome) => Ok(outcome?),
        Err(_) => Err(BurialError::Late { key: key.to_string() }),
    }
}

fn not_found(error: &BurialError) -> bool {
    matches!(error, BurialError::Store(e) if e.disposition() == Disposition::NotFound)
}

/// Replaces the head of `life` with the tombstone; returns `true` if another cluster has taken over the set since. `id`
/// gives each version its own id. Safe to repeat.
///
/// # Errors
/// [`BurialError`]; the tombstone may have been written all the same (R12).
pub async fn bury(
    store: &dyn ObjectStore,
    key: &SetKey,
    life: SetLife,
    name: &Name,
    mut id: impl FnMut() -> ObjectId,
) -> Result<bool, BurialError> {
    let at = keys::head(key.set);
    let mut last = BurialError::Contended;
    for _ in 0..SWAPS_MAX {
        let found = match within(&at, store.get_object(&at)).await {
            Ok(object) => Some(object),
            Err(e) if not_found(&e) => None,
            Err(e) => return Err(e),
        };
        if let Some(object) = &found {
            if is_tombstone(&object.body) {
                holdfast_reached::reached!("tombstone: it is there already");
                return Ok(false);
            }
            match head::open(key, &object.body).map(|head| head.standing(life)) {
                Ok(Standing::Taken) => return Ok(true),
                Ok(Standing::Ours | Standing::Older) => {}
                // The bytes may be damaged in transit.
                Err(error) => {
                    holdfast_reached::reached!("tombstone: the head there does not open");
                    last = BurialError::Foreign { key: at.clone(), error };
                    continue;
                }
            }
        }
        let body = seal_tombstone(life.cluster, name.clone(), key.sealer(id()));
        let version = found.map(|object| object.version);
        match within(&at, store.swap(&at, version.as_ref(), body)).await {
            Ok(_) => return Ok(false),
            Err(BurialError::Store(e)) if e.disposition() == Disposition::Conflict => {}
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

/// Deletes the listed objects of a deleted set, at most `per_second`; calls `each` for each object. Returns `true` if
/// the listing was empty; with several stores, if all listings were empty.
///
/// # Errors
/// [`BurialError`]; with several stores also if one of them does not answer.
pub async fn empty(
    store: &dyn ObjectStore,
    set: SetId,
    per_second: u32,
    mut each: impl FnMut(),
) -> Result<bool, BurialError> {
    let Some(several) = store.several() else {
        return empty_one(store, store, set, &[keys::head(set)], per_second, &mut each).await;
    };
    let at = keys::head(set);
    // During a change of stores, the old list's part of the head is deleted first (LIST-L3).
    within(&at, several.let_go_of_head(set)).await?;
    if !within(&at, several.mend_heads(set)).await? || !within(&at, several.mend_left_heads(set)).await? {
        holdfast_reached::reached!("tombstone: not every store has it yet");
        return Err(BurialError::Unlike { key: at });
    }
    let lists = several.head_keys(set);
    let mut nothing = true;
    for copy in (0..several.copies()).filter_map(|at| several.copy_at(at)) {
        nothing &= empty_one(&*copy, store, set, &lists, per_second, &mut each).await?;
    }
    Ok(nothing)
}

/// Empties one store, with the tombstone in `heads`. Also deletes the heads of lists of stores other than `heads_kept`:
/// such a head has the set's wrapped keys, if its store was unavailable when the list was left.
async fn empty_one(
    store: &dyn ObjectStore,
    heads: &dyn ObjectStore,
    set: SetId,
    heads_kept: &[String],
    per_second: u32,
    each: &mut impl FnMut(),
) -> Result<bool, BurialError> {
    let prefix = keys::of_set(set);
    let left = |key: &str| keys::is_head(set, key) && !heads_kept.iter().any(|kept| kept == key);
    let (mut shown, mut after) = (Vec::new(), None);
    for _ in 0..LIST_PAGES_MAX {
        let page = within(&prefix, store.list(&prefix, after.as_deref())).await?;
        let ours = page.objects.into_iter().map(|listed| listed.key).filter(|key| keys::is_of(set, key) || left(key));
        shown.extend(ours.take(DELETIONS_PER_LOOK - shown.len()));
        after = page.more;
        if after.is_none() || shown.len() >= DELETIONS_PER_LOOK {
            break;
        }
    }
    if shown.is_empty() {
        return Ok(after.is_none());
    }
    // TOMB-T1.
    let at = keys::head(set);
    let stands = match within(&at, heads.get_object(&at)).await {
        Ok(object) => is_tombstone(&object.body),
        Err(e) if not_found(&e) => false,
        Err(e) => return Err(e),
    };
    if !stands {
        holdfast_reached::reached!("tombstone: it is gone, and nothing more is deleted");
        return Err(BurialError::NotOurs { key: at });
    }
    let mut pace = tokio::time::interval(Duration::from_secs(1) / per_second.max(1));
    pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let pace = tokio::sync::Mutex::new(pace);
    let delete = |key: String| {
        let pace = &pace;
        async move {
            pace.lock().await.tick().await;
            within(&key, store.delete(&key)).await
        }
    };
    let mut done = stream::iter(shown).map(delete).buffer_unordered(DELETIONS_AT_ONCE);
    while let Some(outcome) = done.next().await {
        outcome?;
        each();
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use holdfast_control::set::Restored;
    use holdfast_seal::DataKey;
    use holdfast_store::{Faults, Faulty, Memory, Quorum, RetryPolicy, Retrying};
    use holdfast_types::{Epoch, GroupId, MemberId, Placement, Term};
    use holdfast_volume::head::{Argon2id, Head, Keyring, seal_head};
    use std::sync::Arc;

    const LIFE: SetLife = SetLife { cluster: 77, generation: 1 };

    fn key(byte: u8) -> SetKey {
        SetKey::of(GroupId(4), 1, DataKey::from_bytes([byte; 32]))
    }

    fn id(random: u128) -> ObjectId {
        ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }
    }

    fn head_of(life: SetLife, key: &SetKey) -> Bytes {
        let (name, content) = (Name::new("demo").unwrap(), Restored::default());
        let links = Default::default();
        let head = Head { life, raised_for: 0, name, epoch: Epoch(0), covered: None, content, links };
        let keyring = Keyring { wrapped_key: vec![7; 90], passphrase: Argon2id::ours([1; 16]) };
        seal_head(&head, &keyring, key.sealer(id(u128::from(life.generation))))
    }

    async fn buried(store: &Memory, key: &SetKey) -> Result<bool, BurialError> {
        let mut next = 1000;
        let name = Name::new("demo").unwrap();
        bury(store, key, LIFE, &name, || {
            next += 1;
            id(next)
        })
        .await
    }

    async fn furnished(head: Option<Bytes>) -> Memory {
        let store = Memory::new();
        for n in 0..5 {
            store.put_new(&keys::segment(GroupId(4), id(n)), Bytes::from_static(b"s")).await.unwrap();
            store.put_new(&keys::root(GroupId(4), id(n)), Bytes::from_static(b"r")).await.unwrap();
            store.put_new(&keys::segment(GroupId(41), id(n)), Bytes::from_static(b"another's")).await.unwrap();
        }
        store.put_new("sets/4/readme.txt", Bytes::from_static(b"a person's")).await.unwrap();
        if let Some(head) = head {
            store.put_new("sets/4/head", head).await.unwrap();
        }
        store
    }

    async fn shown(store: &Memory) -> Vec<String> {
        let (mut keys, mut after) = (Vec::new(), None);
        loop {
            let page = store.list("", after.as_deref()).await.unwrap();
            keys.extend(page.objects.into_iter().map(|listed| listed.key));
            after = page.more;
            if after.is_none() {
                return keys;
            }
        }
    }

    #[tokio::test]
    async fn beneath_a_tombstone_everything_of_the_set_goes_and_nothing_else() {
        for head in [None, Some(head_of(LIFE, &key(1)))] {
            let store = furnished(head).await;
            assert!(!buried(&store, &key(1)).await.unwrap());
            assert!(!buried(&store, &key(1)).await.unwrap(), "R12");
            let tombstone = store.get("sets/4/head").await.unwrap();
            assert!(is_tombstone(&tombstone) && !tombstone.windows(8).any(|part| part == [7; 8]), "contains no key");
            // A gateway that still has this life can verify the tombstone.
            assert_eq!(head::open(&key(1), &tombstone).unwrap().standing(LIFE), Standing::Taken, "HEAD-H4");
            let mut deleted = 0;
            while !empty(&store, GroupId(4), 1_000_000, || deleted += 1).await.unwrap() {}
            assert_eq!(deleted, 10);
            let left = shown(&store).await;
            assert_eq!(left.len(), 7, "{left:?}");
            assert!(
                left.iter()
                    .all(|key| key == "sets/4/head" || key == "sets/4/readme.txt" || key.starts_with("sets/41/"))
            );
        }
    }

    #[tokio::test]
    async fn t1_without_its_tombstone_nothing_is_deleted() {
        let taken = SetLife { cluster: 78, generation: 2 };
        let store = furnished(Some(head_of(taken, &key(1)))).await;
        assert!(buried(&store, &key(1)).await.unwrap(), "another cluster has recovered it");
        let before = shown(&store).await;
        assert!(matches!(empty(&store, GroupId(4), 1000, || ()).await, Err(BurialError::NotOurs { .. })));
        assert_eq!(shown(&store).await, before);
        let store = furnished(Some(head_of(LIFE, &key(2)))).await;
        let refused = buried(&store, &key(1)).await;
        assert!(matches!(refused, Err(BurialError::Foreign { .. })), "a head that does not open: {refused:?}");
        assert!(empty(&store, GroupId(4), 1000, || ()).await.is_err());
        let store = furnished(None).await;
        assert!(empty(&store, GroupId(4), 1000, || ()).await.is_err(), "no head at all");
        assert_eq!(shown(&store).await.len(), before.len() - 1);
    }

    /// TOMB-T1: each store separately, and none before all have the tombstone.
    #[tokio::test]
    async fn of_several_stores_each_has_its_tombstone_before_anything_goes_in_any() {
        let policy = RetryPolicy { attempts_max: 1, ..RetryPolicy::default() };
        let one = |n| Arc::new(Retrying::new(Faulty::new(Memory::new(), n, Faults::default()), policy.clone()));
        let stores = [one(1), one(2), one(3)];
        let all = Quorum::new(stores.iter().map(|store| (store.clone() as Arc<dyn ObjectStore>, None)).collect(), 2);
        let (key, at, name) = (key(1), "sets/4/head", Name::new("demo").unwrap());
        let first = all.swap(at, None, head_of(LIFE, &key)).await.unwrap();
        all.swap(at, Some(&first), head_of(LIFE, &key)).await.unwrap();
        let objects: Vec<String> = (0..6).map(|n| keys::segment(GroupId(4), id(n))).collect();
        for (n, object) in objects.iter().enumerate() {
            // Some objects are in one store only: they are left from a failed checkpoint.
            for store in stores.iter().take(1 + n % 3) {
                store.put_new(object, Bytes::from_static(b"s")).await.unwrap();
            }
        }
        let down = |at: usize, down| stores[at].within().set(Faults { down, ..Faults::default() });
        down(2, true);
        let mut next = 2000;
        let buried = bury(&all, &key, LIFE, &name, || {
            next += 1;
            id(next)
        });
        assert!(!buried.await.unwrap(), "two of three are a fence");
        let refused = empty(&all, GroupId(4), 1_000_000, || ()).await;
        assert!(matches!(refused, Err(BurialError::Unlike { .. } | BurialError::Store(_))), "{refused:?}");
        down(2, false);
        for object in &objects {
            assert!(stores[0].get(object).await.is_ok(), "{object} is gone, and the third store has the key still");
        }
        // The first call writes it there, the next one sees it.
        let mended = empty(&all, GroupId(4), 1_000_000, || ()).await;
        assert!(matches!(mended, Err(BurialError::Unlike { .. })), "{mended:?}");
        let mut deleted = 0;
        while !empty(&all, GroupId(4), 1_000_000, || deleted += 1).await.unwrap() {}
        assert_eq!(deleted, 2 * (1 + 2 + 3));
        for store in &stores {
            let page = store.list("sets/4/", None).await.unwrap();
            let left: Vec<String> = page.objects.into_iter().map(|listed| listed.key).collect();
            assert_eq!(left, [at]);
            let slot = store.get(at).await.unwrap();
            assert!(!slot.windows(8).any(|part| part == [7; 8]), "contains no wrapped key");
        }
        assert!(is_tombstone(&all.get(at).await.unwrap()));
    }

    /// TOMB-T1 for a set whose stores were being changed: those that it leaves have its wrapped key as well.
    #[tokio::test]
    async fn nothing_goes_before_the_stores_that_a_set_has_left_have_no_key_either() {
        let policy = RetryPolicy { attempts_max: 1, ..RetryPolicy::default() };
        let one = |n| Arc::new(Retrying::new(Faulty::new(Memory::new(), n, Faults::default()), policy.clone()));
        let stores = [0, 1, 2, 3, 4].map(one);
        let over = |text: &str| {
            let open = |url: &str| {
                let at: usize = url.rsplit('/').next().and_then(|at| at.parse().ok()).unwrap();
                Ok((stores[at].clone() as Arc<dyn ObjectStore>, None))
            };
            Arc::new(Quorum::over(&Placement::parse(text), open).unwrap())
        };
        let (left, next) = ("w=2 file:///0 file:///1 file:///2", "c=2 w=2 file:///2 file:///3 file:///4");
        let (key, name, object) = (key(1), Name::new("demo").unwrap(), keys::segment(GroupId(4), id(5)));
        let version = over(left).swap("sets/4/head", None, head_of(LIFE, &key)).await.unwrap();
        let both = over(&format!("{left} => {next}"));
        both.end_list(GroupId(4), &version).await.unwrap();
        for store in &stores {
            store.put_new(&object, Bytes::from_static(b"s")).await.unwrap();
        }
        let down = |down| stores[1].within().set(Faults { down, ..Faults::default() });
        down(true);
        assert!(!bury(&both, &key, LIFE, &name, || id(3000)).await.unwrap());
        let refused = empty(&both, GroupId(4), 1_000_000, || ()).await;
        assert!(matches!(refused, Err(BurialError::Unlike { .. } | BurialError::Store(_))), "{refused:?}");
        down(false);
        for (at, store) in stores.iter().enumerate() {
            assert!(store.get(&object).await.is_ok(), "gone from store {at}, and store 1 has the key still");
        }
        let mut turns = 0;
        while !matches!(empty(&both, GroupId(4), 1_000_000, || ()).await, Ok(true)) {
            turns += 1;
            assert!(turns < 20, "it comes to no end");
        }
        for (at, store) in stores.iter().enumerate() {
            assert!(store.get(&object).await.is_err(), "store {at} has it still");
            for listed in store.list("sets/4/", None).await.unwrap().objects {
                let body = store.get(&listed.key).await.unwrap();
                let has_key = body.windows(8).any(|part| part == [7; 8]);
                assert!(!has_key, "store {at} has the wrapped key in {}", listed.key);
            }
        }
    }
}
