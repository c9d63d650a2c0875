//! Decides which snapshots in a set's head are restored: those whose objects are all in the store (ADR 0035).
//!
//! Gateways never delete what a head lists (SET-S15). But a store may lose objects, a person may delete them, and an
//! outdated head may have been read. A restored snapshot with missing objects would be unreadable, and garbage
//! collection would wait for it.

use super::{Found, Leaves, READS, RecoveryError, SPOILT_COPIES_MAX, look_at_root};
use crate::references::{KINDS, LIST_PAGES_MAX, Piece, named};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use holdfast_control::set::RootRef;
use holdfast_store::{Disposition, StoreError, keys};
use holdfast_types::{Name, ObjectId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Number of requests for a missing object, and the pause between them.
const MISSING_TRIES: u32 = 3;
const MISSING_PAUSE: Duration = Duration::from_millis(200);

/// A snapshot that is not restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Its name.
    pub name: Name,
    /// What is missing.
    pub reason: String,
}

/// Objects of one kind in the store's listing, with their lengths. A hint (R7): objects that are not listed are
/// requested by key.
type Shown = BTreeMap<ObjectId, u64>;

/// Results of earlier checks of a set's roots: a root that is still listed has what it had then (SET-S15).
#[derive(Debug, Default)]
pub struct CheckedRoots(BTreeMap<ObjectId, Option<String>>);

/// Removes the snapshots with missing objects from `found`, before the set is raised; returns them with the reasons.
/// Roots are read with all of their leaves. The objects that they name are only checked for existence and length. Roots
/// in `looked` are not checked again. Memory holds one root at a time, and the listing.
///
/// # Errors
/// [`RecoveryError`] if the store does not answer: then it is unknown what is missing.
pub fn leave_out<'a>(
    found: &'a mut Found,
    looked: &'a mut CheckedRoots,
) -> BoxFuture<'a, Result<Vec<LeftOut>, RecoveryError>> {
    Box::pin(async move {
        let left_out = lacking(found, looked).await?;
        let names: BTreeSet<Name> = left_out.iter().map(|one| one.name.clone()).collect();
        found.head.links.snapshots = found.head.links.snapshots.without(&names);
        Ok(left_out)
    })
}

async fn lacking(found: &Found, looked: &mut CheckedRoots) -> Result<Vec<LeftOut>, RecoveryError> {
    let (mut shown, mut left_out) = (Vec::new(), Vec::new());
    for (name, snapshot) in found.head.links.snapshots.snapshots.iter() {
        // Several snapshots may be of one checkpoint.
        let reason = match looked.0.get(&snapshot.root.object) {
            Some(reason) => reason.clone(),
            None => {
                if shown.is_empty() {
                    for (_, kind) in KINDS {
                        shown.push(list(found, kind).await?);
                    }
                }
                missing(found, snapshot.root, &shown).await?
            }
        };
        looked.0.insert(snapshot.root.object, reason.clone());
        left_out.extend(reason.map(|reason| LeftOut { name: name.clone(), reason }));
    }
    Ok(left_out)
}

async fn list(found: &Found, kind: keys::Kind) -> Result<Shown, StoreError> {
    let mut shown = Shown::new();
    let mut after: Option<String> = None;
    for _ in 0..LIST_PAGES_MAX {
        let piece = Piece::list(&*found.store, found.set, kind, after.as_deref(), 0).await?;
        shown.extend(piece.shown);
        after = piece.more;
        if after.is_none() {
            break;
        }
    }
    Ok(shown)
}

/// The missing part of a root or of the objects that it names; `None` if all is there.
async fn missing(found: &Found, at: RootRef, shown: &[Shown]) -> Result<Option<String>, RecoveryError> {
    let root = match look_at_root(found, at, Leaves::Read).await? {
        Ok(Some(root)) => root,
        Ok(None) => return Ok(None),
        Err(damage) => return Ok(Some(format!("{} {}: {}", damage.part, damage.key, damage.reason))),
    };
    let has = found.key.ids();
    if let Some(lost) = root.keys_needed().into_iter().find(|id| !has.contains(id)) {
        return Ok(Some(format!(
            "root {} needs data key {lost}, the head has {has:?}",
            keys::root(found.set, at.object)
        )));
    }
    for ((kind, key_kind), shown) in KINDS.into_iter().zip(shown) {
        let here = |(object, bytes): &(ObjectId, u64)| shown.get(object).is_some_and(|f| *bytes == 0 || f == bytes);
        let unseen: Vec<(ObjectId, u64)> = named(kind, at, &root).into_iter().filter(|named| !here(named)).collect();
        let asked = stream::iter(unseen).map(|(object, bytes)| ask(found, key_kind, object, bytes));
        let mut asked = std::pin::pin!(asked.buffered(READS));
        while let Some(answer) = asked.next().await {
            if let Some(reason) = answer? {
                return Ok(Some(reason));
            }
        }
    }
    Ok(None)
}

/// Checks an object by its own key, with its expected length (0: not known).
///
/// A missing object means that the snapshot is not restored and that its own objects are swept. So it is requested more
/// than once, the last time by a GET: the answer to a HEAD has no body, and a proxy may have produced it.
async fn ask(found: &Found, kind: keys::Kind, object: ObjectId, bytes: u64) -> Result<Option<String>, StoreError> {
    let (key, several) = (keys::object(found.set, kind, object), found.store.several());
    let (mut tries, mut missed) = (0, 0);
    loop {
        let wrong = match found.store.head(&key).await {
            Ok(head) if bytes == 0 || head.bytes == bytes => return Ok(None),
            Ok(head) => format!("{key}: found {} bytes, expected {bytes}", head.bytes),
            // Each of several stores was asked for that answer.
            Err(e) if e.disposition() == Disposition::NotFound && missed < MISSING_TRIES => {
                missed += 1;
                tokio::time::sleep(MISSING_PAUSE).await;
                continue;
            }
            Err(e) if e.disposition() == Disposition::NotFound => match found.store.get(&key).await {
                Ok(body) if bytes == 0 || body.len() as u64 == bytes => return Ok(None),
                Ok(body) => format!("{key}: found {} bytes, expected {bytes}", body.len()),
                Err(e) if e.disposition() == Disposition::NotFound => return Ok(Some(e.to_string())),
                Err(e) if e.disposition() == Disposition::Corrupt => e.to_string(),
                Err(e) => return Err(e),
            },
            Err(e) if e.disposition() == Disposition::Corrupt => e.to_string(),
            Err(e) => return Err(e),
        };
        tries += 1;
        match &several {
            // One copy may be damaged: another store is asked first from now on.
            Some(several) if tries < SPOILT_COPIES_MAX => several.doubt(object),
            _ => return Ok(Some(wrong)),
        }
    }
}
