//! What a store lacks of the objects that kept roots name, and how it gets them. The names come from whoever knows the roots: nothing else is copied.

use super::{Quorum, Replica, lock};
use crate::error::{Disposition, StoreError};
use crate::keys;
use holdfast_types::SetId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Keys that are noted for one store. More are found by comparing.
const NOTED_MAX: usize = 50_000;
/// A note whose object no root came to name within this time is dropped: its checkpoint did not end.
const UNNAMED_FOR: Duration = Duration::from_secs(900);
/// Pages of one listing at most.
const LIST_PAGES_MAX: usize = 10_000;

/// What one store is known to lack.
#[derive(Debug, Default)]
pub(super) struct Missing {
    keys: BTreeMap<String, Note>,
    overflowed: bool,
    head_behind: bool,
    compared: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Note {
    bytes: u64,
    since: Instant,
}

/// What one store lacks, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Its head is not the decided one.
    pub head: bool,
    /// Whether it was compared with the kept roots since this gateway leads the set. Before, there may be more than is shown.
    pub compared: bool,
}

/// A repair did not get on.
#[derive(Clone, Debug, thiserror::Error)]
pub enum RepairError {
    /// A store.
    #[error("store: {0}")]
    Store(#[from] StoreError),
    /// No store has it.
    #[error("{key}: no store that answers has this object, which a kept root names")]
    Nowhere {
        /// Its key.
        key: String,
    },
}

impl Replica {
    pub(super) fn note_missing(&self, key: &str, bytes: u64) {
        let mut missing = lock(&self.missing);
        if missing.keys.len() >= NOTED_MAX {
            missing.overflowed = true;
            return;
        }
        missing.keys.entry(key.to_owned()).or_insert(Note { bytes, since: Instant::now() });
    }

    pub(super) fn forget(&self, key: &str) {
        lock(&self.missing).keys.remove(key);
    }

    pub(super) fn backlog(&self) -> Backlog {
        let missing = lock(&self.missing);
        Backlog {
            objects: missing.keys.len() as u64,
            bytes: missing.keys.values().map(|note| note.bytes).sum(),
            head: missing.head_behind,
            compared: missing.compared.is_some() && !missing.overflowed,
        }
    }

    /// Lists the store, and notes what of `names` it does not show.
    async fn compare(&self, set: SetId, names: &BTreeMap<String, u64>) -> Result<(), StoreError> {
        let mut shown = BTreeSet::new();
        for kind in keys::Kind::ALL {
            let prefix = keys::objects(set, kind);
            let mut after = None;
            for _ in 0..LIST_PAGES_MAX {
                let page = self.store.list(&prefix, after.as_deref()).await?;
                shown.extend(page.objects.into_iter().map(|listed| listed.key));
                after = page.more;
                if after.is_none() {
                    break;
                }
            }
        }
        lock(&self.missing).overflowed = false;
        for (key, bytes) in names.iter().filter(|(key, _)| !shown.contains(*key)) {
            self.note_missing(key, *bytes);
        }
        lock(&self.missing).compared = Some(Instant::now());
        Ok(())
    }

    /// What is noted and named; drops notes that nothing came to name.
    fn wanted(&self, names: &BTreeMap<String, u64>, most: usize) -> Vec<(String, u64)> {
        let mut missing = lock(&self.missing);
        missing.keys.retain(|key, note| names.contains_key(key) || note.since.elapsed() < UNNAMED_FOR);
        let named = missing.keys.keys().filter_map(|key| Some((key.clone(), *names.get(key)?)));
        named.take(most).collect()
    }
}

impl Quorum {
    /// Whether some store is known to lack something, the heads were not alike when last looked at, or a store was not compared yet.
    pub fn lags(&self) -> bool {
        self.replicas.iter().any(|replica| {
            let missing = lock(&replica.missing);
            !missing.keys.is_empty() || missing.overflowed || missing.head_behind || missing.compared.is_none()
        })
    }

    /// Lets each store be compared with the names anew: another leader may have written since, or somebody deleted.
    pub fn compare_anew(&self) {
        for replica in &self.replicas {
            lock(&replica.missing).compared = None;
        }
    }

    /// One turn of the repair: lists each store that was not compared yet; then copies at most `most` objects to each store that lacks them. `names`: the keys and lengths of everything that kept roots name, and nothing else.
    ///
    /// Every store is tried, whatever the others do.
    ///
    /// # Errors
    /// The first that did not work; its store's objects stay noted.
    pub async fn repair(&self, set: SetId, names: &BTreeMap<String, u64>, most: usize) -> Result<u64, RepairError> {
        let turns = self.replicas.iter().map(|replica| self.repair_one(replica, set, names, most));
        let (mut copied, mut failed) = (0, None);
        for turn in futures_util::future::join_all(turns).await {
            match turn {
                Ok(count) => copied += count,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let head = self.mend_head(&keys::head(set)).await;
        let behind = !matches!(head, Ok(true));
        for replica in &self.replicas {
            lock(&replica.missing).head_behind = behind;
        }
        head?;
        failed.map_or(Ok(copied), Err)
    }

    async fn repair_one(
        &self,
        replica: &Arc<Replica>,
        set: SetId,
        names: &BTreeMap<String, u64>,
        most: usize,
    ) -> Result<u64, RepairError> {
        let due = {
            let missing = lock(&replica.missing);
            missing.overflowed || missing.compared.is_none()
        };
        if due {
            replica.compare(set, names).await?;
        }
        let mut copied = 0;
        for (key, bytes) in replica.wanted(names, most) {
            // A listing is a hint, and a PUT whose answer was lost may have been done.
            match replica.store.head(&key).await {
                Ok(head) if bytes == 0 || head.bytes == bytes => {
                    replica.forget(&key);
                    continue;
                }
                Err(error) if error.disposition() != Disposition::NotFound => return Err(error.into()),
                Ok(_) | Err(_) => {}
            }
            let body = self.read_elsewhere(replica, &key).await?;
            replica.store.put_new(&key, body).await?;
            replica.forget(&key);
            copied += 1;
        }
        Ok(copied)
    }

    /// The object from any other store.
    async fn read_elsewhere(&self, but: &Replica, key: &str) -> Result<bytes::Bytes, RepairError> {
        let mut failed = None;
        for other in self.replicas.iter().filter(|other| other.index != but.index) {
            match other.store.get(key).await {
                Ok(body) => return Ok(body),
                Err(error) if error.disposition() == Disposition::NotFound => {}
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.map_or_else(|| RepairError::Nowhere { key: key.to_owned() }, RepairError::Store))
    }
}
