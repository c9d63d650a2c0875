//! Reads a root from its store: the object, and for a top the leaves that it names (ADR 0034).

use super::report::{Damage, bounds};
use super::subject::Subject;
use crate::mapping::{span, together};
use futures_util::{StreamExt, stream};
use holdfast_control::set::RootRef;
use holdfast_store::{Disposition, StoreError, keys};
use holdfast_types::ObjectId;
use holdfast_volume::map::{Leaf, LeafOf, LeafRef, Opened, PAGE_SECTORS, Remains, Root, Top, open_leaf, open_top};
use std::collections::BTreeMap;

/// Concurrent requests for leaves; all their results are in memory.
const RUNS: usize = 16;

/// Concurrent requests for packs of leaves of which only the length is needed.
const PACKS: usize = 64;

/// The result or the damage, and the number of bytes read.
type ReadResult<T> = (Result<T, Damage>, u64);

/// A root as read.
pub(crate) struct RootRead {
    /// The part that opens; `None` if the root's object does not open.
    pub root: Option<Remains>,
    /// Damage, for each leaf separately.
    pub damaged: Vec<Damage>,
    /// Number of bytes read.
    pub bytes: u64,
}

/// Leaves as read.
#[derive(Default)]
pub(crate) struct LeavesRead {
    /// Good leaves that match their top, by object and number.
    pub leaves: BTreeMap<(ObjectId, u32), Leaf>,
    /// The others.
    pub damaged: Vec<(LeafRef, Damage)>,
    /// Number of bytes read.
    pub bytes: u64,
}

impl Subject {
    /// Reads and opens a root with all of its leaves. Memory holds the root and the results of a few requests.
    ///
    /// # Errors
    /// The store did not answer. Damage is not an error.
    pub async fn read_root(&self, at: RootRef) -> Result<RootRead, StoreError> {
        let (opened, mut bytes) = self.open_root(at).await?;
        let top = match opened {
            Ok(Opened::Leaves(top)) => top,
            Ok(Opened::Whole(root)) => return Ok(RootRead { root: Some(root.into()), damaged: Vec::new(), bytes }),
            Err(damage) => return Ok(RootRead { root: None, damaged: vec![damage], bytes }),
        };
        let read = self.check_leaves(&top, top.leaves().collect()).await?;
        bytes += read.bytes;
        let mut damaged: Vec<Damage> = read.damaged.into_iter().map(|(_, damage)| damage).collect();
        let leaf = |leaf: &LeafRef| read.leaves.get(&(leaf.at.object, leaf.at.number)).cloned();
        // Facts that span leaves are compared only if all leaves are good.
        let root = if damaged.is_empty() {
            match top.complete(leaf) {
                Ok(root) => Remains::from(root),
                Err(e) => {
                    damaged.push(self.root_damage(at, e.to_string()));
                    top.remains(leaf)
                }
            }
        } else {
            top.remains(leaf)
        };
        Ok(RootRead { root: Some(root), damaged, bytes })
    }

    /// Like `read_root`, for callers that need all of it: the complete root, or the first damage.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn check_root(&self, at: RootRef) -> Result<Result<Root, Damage>, StoreError> {
        let read = self.read_root(at).await?;
        if let Some(damage) = read.damaged.into_iter().next() {
            return Ok(Err(damage));
        }
        let whole = read.root.and_then(Remains::into_whole);
        Ok(whole.ok_or_else(|| self.root_damage(at, "found a part of its leaves, expected all".to_string())))
    }

    /// A faster check with few small requests: reads the root's object, and checks for each pack of its leaves only
    /// that it exists and is long enough for the leaves in it. Returns damage, if any; cannot find damage inside a
    /// leaf.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn glance_at_root(&self, at: RootRef) -> Result<Option<Damage>, StoreError> {
        let (opened, _) = self.open_root(at).await?;
        let opened = match opened {
            Ok(opened) => opened,
            Err(damage) => return Ok(Some(damage)),
        };
        // For each pack, the leaf that ends last.
        let mut last: BTreeMap<ObjectId, LeafRef> = BTreeMap::new();
        for leaf in opened.leaves() {
            let known = last.entry(leaf.at.object).or_insert(leaf);
            if known.at.range().end < leaf.at.range().end {
                *known = leaf;
            }
        }
        let packs = stream::iter(last.into_values()).map(|last| self.glance_at_pack(last));
        let mut packs = std::pin::pin!(packs.buffered(PACKS));
        while let Some(looked) = packs.next().await {
            if let Some(damage) = looked? {
                return Ok(Some(damage));
            }
        }
        Ok(None)
    }

    /// Reads and opens a root's object.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn open_root(&self, at: RootRef) -> Result<ReadResult<Opened>, StoreError> {
        let read = self.store.get(&keys::root(self.set, at.object)).await;
        let opened = match &read {
            Ok(bytes) => open_top(&self.key.opener(at.object), bytes).map_err(|e| e.to_string()),
            Err(e) if self.is_damage(e) => Err(e.to_string()),
            Err(e) => return Err(e.clone()),
        };
        let bytes = read.map_or(0, |bytes| bytes.len() as u64);
        self.spent(bytes).await;
        Ok((opened.map_err(|reason| self.root_damage(at, reason)), bytes))
    }

    /// Reads and opens leaves that a top names, and compares each with the top; a damaged leaf does not stop the
    /// others.
    ///
    /// # Errors
    /// The store did not answer.
    pub async fn check_leaves(&self, top: &Top, leaves: Vec<LeafRef>) -> Result<LeavesRead, StoreError> {
        let mut all = LeavesRead::default();
        let runs = stream::iter(together(leaves)).map(|run| self.check_run(top, run));
        let mut runs = std::pin::pin!(runs.buffered(RUNS));
        while let Some(read) = runs.next().await {
            let read = read?;
            all.leaves.extend(read.leaves);
            all.damaged.extend(read.damaged);
            all.bytes += read.bytes;
        }
        Ok(all)
    }

    /// Like `check_leaves`, for leaves of one pack, in one request if all are present.
    async fn check_run(&self, top: &Top, run: Vec<LeafRef>) -> Result<LeavesRead, StoreError> {
        let mut read = LeavesRead::default();
        let Some(first) = run.first() else { return Ok(read) };
        let (object, range) = (first.at.object, span(&run));
        let (key, opener) = (keys::map_pack(self.set, object), self.key.opener(object));
        let all = match self.store.get_range(&key, range.clone()).await {
            Ok(bytes) => {
                read.bytes += bytes.len() as u64;
                self.spent(bytes.len() as u64).await;
                Some(bytes)
            }
            // The object ends early: read one by one to find those that are still good.
            Err(e) if run.len() > 1 && e.disposition() == Disposition::Corrupt => None,
            Err(e) if self.is_damage(&e) => {
                let damaged = run.iter().map(|leaf| (*leaf, self.leaf_damage(leaf, e.to_string())));
                read.damaged.extend(damaged);
                return Ok(read);
            }
            Err(e) => return Err(e),
        };
        for leaf in &run {
            let at = leaf.at.range();
            let sealed = match &all {
                Some(all) => Ok(all.slice((at.start - range.start) as usize..(at.end - range.start) as usize)),
                None => match self.store.get_range(&key, at).await {
                    Ok(bytes) => {
                        read.bytes += bytes.len() as u64;
                        self.spent(bytes.len() as u64).await;
                        Ok(bytes)
                    }
                    Err(e) if self.is_damage(&e) => Err(e.to_string()),
                    Err(e) => return Err(e),
                },
            };
            let opened = sealed.and_then(|sealed| {
                let found = open_leaf(&opener, leaf, &sealed).map_err(|e| e.to_string())?;
                top.check_leaf(leaf, &found).map_err(|e| e.to_string())?;
                Ok(found)
            });
            match opened {
                Ok(found) => {
                    read.leaves.insert((object, leaf.at.number), found);
                }
                Err(reason) => read.damaged.push((*leaf, self.leaf_damage(leaf, reason))),
            }
            // A run is up to 1 MiB of decryption: let other tasks use the thread.
            tokio::task::yield_now().await;
        }
        Ok(read)
    }

    /// `last`: the leaf that ends last in the pack.
    async fn glance_at_pack(&self, last: LeafRef) -> Result<Option<Damage>, StoreError> {
        let expected = last.at.range().end;
        let reason = match self.store.head(&keys::map_pack(self.set, last.at.object)).await {
            Ok(head) if head.bytes >= expected => return Ok(None),
            Ok(head) => format!("found {} bytes, expected at least {expected}", head.bytes),
            Err(e) if self.is_damage(&e) => e.to_string(),
            Err(e) => return Err(e),
        };
        Ok(Some(self.leaf_damage(&last, reason)))
    }

    fn root_damage(&self, at: RootRef, reason: String) -> Damage {
        let (key, volume, store) = (keys::root(self.set, at.object), String::new(), self.copy.clone());
        let snapshot = self.snapshot_name();
        Damage { part: "root", key, object_bytes: None, volume, lba: 0, sectors: 0, reason, store, snapshot }
    }

    fn leaf_damage(&self, leaf: &LeafRef, reason: String) -> Damage {
        // No data depends on the other leaves, but no checkpoint can be made on top of a damaged one.
        let (volume, lba, sectors) = match leaf.of {
            LeafOf::Pages { volume, first, width } => {
                (self.volume_name(volume), u64::from(first) * PAGE_SECTORS, u64::from(width) * PAGE_SECTORS)
            }
            LeafOf::Segments | LeafOf::Packs => (String::new(), 0, 0),
        };
        let (key, object_bytes) = (keys::map_pack(self.set, leaf.at.object), bounds(&leaf.at.range()));
        let (store, snapshot) = (self.copy.clone(), self.snapshot_name());
        Damage { part: "leaf", key, object_bytes, volume, lba, sectors, reason, store, snapshot }
    }
}
