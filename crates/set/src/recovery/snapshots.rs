//! Which of the snapshots that a set's head lists come back: those of which everything is in the store (ADR 0035).
//!
//! Whoever deletes keeps what a head lists (S15). But a store may have lost something, somebody may have deleted it by hand, and a head may have been read that is an
//! old one: a snapshot of which something is gone would come back as one that cannot be read, and that garbage collection waits for.

use super::{Found, Leaves, READS, RecoveryError, SPOILT_COPIES_MAX, look_at_root};
use crate::references::{KINDS, LIST_PAGES_MAX, Piece, named};
use futures_util::{StreamExt, stream};
use holdfast_control::set::RootRef;
use holdfast_store::{Disposition, StoreError, keys};
use holdfast_types::{Name, ObjectId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often an object that is not there is asked for again, and after what pause.
const MISSING_TRIES: u32 = 3;
const MISSING_PAUSE: Duration = Duration::from_millis(200);

/// A snapshot that does not come back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    /// Its name.
    pub name: Name,
    /// What is missing of it.
    pub reason: String,
}

/// Objects of one kind that the store's listing shows, and their lengths. A hint (R7): of what it does not show the store is asked by key.
type Shown = BTreeMap<ObjectId, u64>;

/// What earlier looks at a set found missing of each root, if anything: one that is listed still has what it had (S15).
#[derive(Debug, Default)]
pub struct Looked(BTreeMap<ObjectId, Option<String>>);

/// Takes those snapshots out of what was found, before it is raised, of which something is not there; and says which and what. Roots are read with all of their leaves;
/// of what they name it is looked only whether it is there, and as long as it should be; a root that is in `looked` is not looked at again. In memory are one root at
/// a time, and what the listing shows.
///
/// # Errors
/// [`RecoveryError`] where the store does not say what it has: then nothing is known of what is missing.
pub async fn leave_out(found: &mut Found, looked: &mut Looked) -> Result<Vec<LeftOut>, RecoveryError> {
    let left_out = lacking(found, looked).await?;
    let names: BTreeSet<Name> = left_out.iter().map(|one| one.name.clone()).collect();
    found.head.links.snapshots = found.head.links.snapshots.without(&names);
    Ok(left_out)
}

async fn lacking(found: &Found, looked: &mut Looked) -> Result<Vec<LeftOut>, RecoveryError> {
    let (mut shown, mut left_out) = (Vec::new(), Vec::new());
    for (name, snapshot) in found.head.links.snapshots.snapshots.iter() {
        // Several may be of one checkpoint.
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

/// What of a root, or of what it names, is not there; `None` where all of it is.
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

/// What is wrong with an object of this length (0: not known), by its own key.
///
/// That it is not there decides that a snapshot does not come back, and then what only that one has is swept: so it is asked more than once, and by a GET in the
/// end, since a HEAD's answer has no words and anybody between may have made it.
async fn ask(found: &Found, kind: keys::Kind, object: ObjectId, bytes: u64) -> Result<Option<String>, StoreError> {
    let (key, several) = (keys::object(found.set, kind, object), found.store.several());
    let (mut tries, mut missed) = (0, 0);
    loop {
        let wrong = match found.store.head(&key).await {
            Ok(head) if bytes == 0 || head.bytes == bytes => return Ok(None),
            Ok(head) => format!("{key}: found {} bytes, expected {bytes}", head.bytes),
            // Each of several stores was asked for that.
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
            // One copy may be spoilt: another one is asked first from now on.
            Some(several) if tries < SPOILT_COPIES_MAX => several.doubt(object),
            _ => return Ok(Some(wrong)),
        }
    }
}
