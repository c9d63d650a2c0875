//! Rebuilds a cluster after the loss of all its gateways, from the heads of its sets in a store and the cluster key.
//!
//! A listing is only a hint (R7): each set's head is read by its own key, and the numbers around each listed set are
//! tried as well. A set whose head is not found that way is not restored and not changed; a later run may find it.

use crate::head::open;
use crate::keyring::{ClusterKeys, KeyError, KeySource};
use crate::random::random_u128;
use crate::verify::{Damage, Subject};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use holdfast_control::set::{GENERATION_MAX, RootRef};
use holdfast_store::{Disposition, ObjectStore, SeatSeen, StoreError, StoreOptions, keys};

pub use holdfast_store::Stores;
use holdfast_types::{GroupId, MemberId, ObjectId, SetId, Term};
use holdfast_volume::head::{is_tombstone, read_keyring, seal_head};
use holdfast_volume::map::Root;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

pub mod snapshots;

pub use crate::found::Found;

/// Set numbers below and above the listed ones that are tried by key: a stale listing may lack the newest sets.
const NUMBERS_PROBED: u64 = 32;

/// Maximum number of sets in a listing: as many as a cluster may have, plus some deleted ones.
const SETS_LISTED_MAX: usize = 65_536;

/// Heads that are read concurrently: all numbers around one set. If one of several stores does not answer, each read
/// waits for it for a while.
const READS: usize = 64;

/// Why a recovery cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The store failed.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// The cluster key failed.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Another writer replaced the head between read and raise.
    #[error(
        "set {name}: its head in the store changed while this ran: another recovery or its own gateways are active; check, then run it again"
    )]
    Changed {
        /// The set.
        name: String,
    },
    /// More sets than a cluster can have.
    #[error("the store lists more than {max} sets; found {found} so far")]
    TooMany {
        /// Number found.
        found: usize,
        /// The maximum.
        max: usize,
    },
    /// No higher generation exists.
    #[error("set {name}: found generation {found}, which is the last one")]
    LastGeneration {
        /// The set.
        name: String,
        /// Its generation.
        found: u64,
    },
}

impl RecoveryError {
    /// Whether a retry may succeed.
    pub fn may_pass(&self) -> bool {
        match self {
            RecoveryError::Store(e) => matches!(e.disposition(), Disposition::Retry | Disposition::Unknown),
            _ => false,
        }
    }
}

/// Result of a search in a store.
#[derive(Debug, Default)]
pub struct Survey {
    /// By number.
    pub sets: Vec<Found>,
    /// Sets that exist but cannot be opened: another cluster key, or damage.
    pub bad: Vec<(SetId, String)>,
    /// Deleted sets, with tombstones in their places (ADR 0029).
    pub deleted: Vec<SetId>,
}

/// Loads the cluster key from the source in `config`. Each head says how the key is derived from a passphrase.
/// `previous`: the key that some heads are still under, in the middle of a change of keys; without a source: none.
///
/// # Errors
/// [`KeyError`].
pub async fn cluster_key(config: &KeySource, previous: &KeySource) -> Result<ClusterKeys, KeyError> {
    ClusterKeys::of_store(config, previous).await
}

/// Opens the store at `url`, which must exist. Endpoint, region and profile come from its query, missing ones from the
/// environment, and the keys from `credentials_file` if given.
///
/// # Errors
/// [`StoreError`].
pub fn open_store(url: &str, credentials_file: Option<&Path>) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let credentials_file = credentials_file.map(Path::to_path_buf);
    holdfast_store::open(url, &StoreOptions { existing: true, credentials_file, ..StoreOptions::default() })
}

/// Finds the sets of a store.
///
/// # Errors
/// [`RecoveryError`]. Sets that do not open are part of the result.
pub fn survey<'a>(
    url: &'a str,
    store: Arc<dyn ObjectStore>,
    key: &'a ClusterKeys,
) -> BoxFuture<'a, Result<Survey, RecoveryError>> {
    Box::pin(async move {
        let mut numbers = listed(&*store).await?;
        // Numbers around each listed set, not all between the lowest and the highest: anybody may have written a key
        // with any number.
        let around = |at: u64| at.saturating_sub(NUMBERS_PROBED).max(1)..=at.saturating_add(NUMBERS_PROBED);
        let probed: Vec<u64> = numbers.iter().copied().chain([1]).flat_map(around).collect();
        numbers.extend(probed);
        let read = stream::iter(numbers).map(|number| {
            let store = store.clone();
            async move { (GroupId(number), read(url, store, key, GroupId(number)).await) }
        });
        let mut read = read.buffered(READS);
        let mut survey = Survey::default();
        while let Some((set, outcome)) = read.next().await {
            match outcome {
                Ok(None) => {}
                Ok(Some(found)) => survey.sets.push(found),
                Err(ReadError::Store(e)) => return Err(e.into()),
                Err(ReadError::Deleted) => survey.deleted.push(set),
                Err(ReadError::Bad(why)) => survey.bad.push((set, why)),
            }
        }
        Ok(survey)
    })
}

/// The set numbers in a listing, with one request for each.
async fn listed(store: &dyn ObjectStore) -> Result<BTreeSet<u64>, RecoveryError> {
    let mut numbers = BTreeSet::new();
    let mut after: Option<String> = None;
    loop {
        let page = store.list("sets/", after.as_deref()).await?;
        let key = page.objects.first().map(|object| object.key.clone());
        after = match (key.as_deref().map(keys::set_of), page.more) {
            // Each key below `sets/N/` sorts before this, whatever others keep there; no other set's key does, since
            // `0` is the byte after the slash.
            (Some(Some(set)), _) => {
                numbers.insert(set.0);
                Some(format!("sets/{}0", set.0))
            }
            (Some(None), _) => key,
            (None, Some(more)) => Some(more),
            (None, None) => return Ok(numbers),
        };
        if numbers.len() > SETS_LISTED_MAX {
            return Err(RecoveryError::TooMany { found: numbers.len(), max: SETS_LISTED_MAX });
        }
    }
}

/// A set's head cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The store failed.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// It does not open.
    #[error("{0}")]
    Bad(String),
    /// The set was deleted, and its key was destroyed.
    #[error("the set was deleted: a tombstone stands in the place of its head, and its key is destroyed")]
    Deleted,
}

/// Reads and opens one set's head; `None` if there is none.
///
/// # Errors
/// [`ReadError`].
pub fn read<'a>(
    url: &'a str,
    store: Arc<dyn ObjectStore>,
    cluster_keys: &'a ClusterKeys,
    set: SetId,
) -> BoxFuture<'a, Result<Option<Found>, ReadError>> {
    Box::pin(async move {
        let object = match store.get_object(&keys::head(set)).await {
            Ok(object) => object,
            Err(e) if e.disposition() == Disposition::NotFound => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let bad = |e: &dyn std::fmt::Display| ReadError::Bad(format!("{}: {e}", keys::head(set)));
        if let Some(to) = holdfast_store::moved_to(&object.body) {
            return Err(bad(&format!(
                "the set's stores were changed: name these instead: --from-store {to:?}; if they have no head yet, name both: --from-store \"{url} => {to}\""
            )));
        }
        if let Some(seat) = holdfast_store::head_of_several(&object.body) {
            return Err(bad(&format!(
                "found the head of {seat}; name all stores of the set as `holdfast set list` showed them: \"w=QUORUM URL URL URL\""
            )));
        }
        let (header, keyring) = read_keyring(&object.body).map_err(|e| bad(&e))?;
        if is_tombstone(&object.body) {
            return Err(ReadError::Deleted);
        }
        let key = cluster_keys.open_keyring(&keyring, set, header.key_id).map_err(|e| bad(&e))?;
        let head = open(&key, &object.body).map_err(|e| bad(&e))?;
        Ok(Some(Found { set, url: url.to_string(), head, keyring, key, store, version: object.version }))
    })
}

/// Why a set cannot be restored as found; checked before anything is changed.
#[derive(Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// The root that its head names, or one of its leaves, cannot be read: nothing else can be found, or no checkpoint
    /// can be made.
    Root(String),
    /// These stores have nothing of the set: emptied, or not the set's stores.
    Nothing(Vec<String>),
}

/// Number of reads of a root before it counts as damaged.
const DAMAGED_TRIES: u32 = 3;

/// … with several stores, where each read may find another object's copy damaged.
const SPOILT_COPIES_MAX: u32 = 16;

/// How thoroughly the leaves of a root are checked before its set is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// Each is read and opened: all that the first checkpoint of the new life needs. Some 10 MiB for 10 TiB.
    Read,
    /// Only that their packs exist and are long enough: a small request for each of up to some 1,000.
    There,
}

/// Checks whether a set that was found can be restored: its root opens, its leaves pass the check `leaves`, and each
/// store belongs to it. `silent` lists stores that do not answer.
///
/// # Errors
/// [`RecoveryError`] if the store does not answer.
pub async fn obstacle(
    found: &Found,
    leaves: Leaves,
    silent: &mut Vec<String>,
) -> Result<Option<Obstacle>, RecoveryError> {
    if let Some(several) = found.store.several() {
        let mut nothing = Vec::new();
        for (place, seen) in several.seats(found.set).await? {
            match seen {
                SeatSeen::Here => {}
                SeatSeen::Nothing => nothing.push(place),
                SeatSeen::Unread(error) => silent.push(format!("{place}: {error}")),
            }
        }
        if !nothing.is_empty() {
            return Ok(Some(Obstacle::Nothing(nothing)));
        }
    }
    let Some(root) = found.head.content.root else { return Ok(None) };
    match look_at_root(found, root, leaves).await {
        Ok(Ok(_)) => Ok(None),
        Ok(Err(Damage { part, key, reason, .. })) => Ok(Some(Obstacle::Root(format!("{part} {key}: {reason}")))),
        Err(e) if e.may_pass() => Err(e.into()),
        Err(e) => Ok(Some(Obstacle::Root(e.to_string()))),
    }
}

/// Reads a root until it is good, or until it counts as damaged. Returns the root if all of it was read.
async fn look_at_root(found: &Found, at: RootRef, leaves: Leaves) -> Result<Result<Option<Root>, Damage>, StoreError> {
    let subject = Subject::of(found, None);
    let several = found.store.several();
    let most = if several.is_some() { SPOILT_COPIES_MAX } else { DAMAGED_TRIES };
    let mut tries = 0;
    loop {
        let looked = match leaves {
            Leaves::Read => subject.check_root(at).await?.map(Some),
            Leaves::There => subject.glance_at_root(at).await?.map_or(Ok(None), Err),
        };
        tries += 1;
        match looked {
            // One copy, or one read of it, may be damaged: with several stores another one is asked first from now on.
            Err(damage) if tries < most => {
                if let (Some(several), Some((_, _, object))) = (&several, keys::parse(&damage.key)) {
                    several.doubt(object);
                }
            }
            looked => return Ok(looked),
        }
    }
}

/// Begins the next life of a set, in `cluster`, for the gateway with `disk`: from then on every older life is fenced
/// (HEAD-H1).
///
/// # Errors
/// [`RecoveryError::Changed`] if the head is no longer the one found; then nothing was changed.
pub fn raise(found: &Found, cluster: u128, disk: u128) -> BoxFuture<'_, Result<Found, RecoveryError>> {
    Box::pin(async move {
        let name = found.head.name.to_string();
        let head = found.head.raised(cluster, disk);
        if head.life.generation > GENERATION_MAX {
            return Err(RecoveryError::LastGeneration { name, found: found.head.life.generation });
        }
        let id = ObjectId { term: Term(0), member: MemberId(0), boot: 0, random: random_u128() };
        let body = seal_head(&head, &found.keyring, found.key.sealer(id));
        // R12: the store's retries resolve an unknown outcome. If it stays unknown, the next run finds its own disk in
        // the head.
        match found.store.swap(&keys::head(found.set), Some(&found.version), body).await {
            Ok(version) => Ok(Found {
                set: found.set,
                url: found.url.clone(),
                head,
                keyring: found.keyring.clone(),
                key: found.key.clone(),
                store: found.store.clone(),
                version,
            }),
            Err(e) if e.disposition() == Disposition::Conflict => Err(RecoveryError::Changed { name }),
            Err(e) => Err(e.into()),
        }
    })
}

#[cfg(test)]
mod tests;
