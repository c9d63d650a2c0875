//! The root on which a checkpoint is based, and the root that it makes. If all leaves would take more than their memory
//! limit, some are "away": in the store only (LEAF-L4 to LEAF-L6 in `holdfast_volume::map::PartialRoot`).

use super::opened::{RUNS_AT_ONCE, aside, together};
use super::{MapError, Mapping, Node, Pay};
use crate::roots::Known;
use futures_util::{StreamExt, TryStreamExt, stream};
use holdfast_cache::BlockKey;
use holdfast_control::set::RootRef;
use holdfast_types::{ObjectId, VolumeId};
use holdfast_volume::map::{Leaf, LeafRef, Objects, Page, PageAt, PartialRoot, Root, Top};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Mapping {
    /// The root as checkpoints need it, from memory or the store; it is kept. All of it is in memory if it fits the
    /// limit for leaves.
    ///
    /// # Errors
    /// [`MapError`].
    pub async fn base(&self, at: RootRef) -> Result<PartialRoot, MapError> {
        // Checked first: a root being compared is also in memory as a whole.
        if let Some(root) = self.partials.get(at) {
            return Ok(PartialRoot::clone(&root));
        }
        match self.known(&self.key, at).await? {
            Known::Part(root) => Ok(PartialRoot::clone(&root)),
            Known::Top(top) if top.leaf_bytes_most() > self.leaf_bytes => {
                let root = Arc::new(self.compare(at.object, top).await?);
                self.partials.keep(at, root.clone());
                self.tops.forget(at);
                Ok(PartialRoot::clone(&root))
            }
            Known::All(_) | Known::Top(_) => Ok(PartialRoot::from(Root::clone(&*self.root(at).await?))),
        }
    }

    /// Whether the root is in memory as checkpoints need it.
    pub(crate) fn has_base(&self, at: RootRef) -> bool {
        self.roots.get(at).is_some() || self.partials.get(at).is_some()
    }

    /// A root with possibly missing leaves, if it is in memory.
    pub fn in_part(&self, at: RootRef) -> Option<Arc<PartialRoot>> {
        self.partials.get(at)
    }

    /// The objects named by a root with possibly missing leaves, if it is in memory.
    pub(crate) fn objects_here(&self, at: RootRef) -> Option<Arc<Objects>> {
        self.partials.get(at).map(|root| Arc::new(Objects::clone(&root)))
    }

    /// The objects that a root names, if it is in memory as checkpoints need it.
    pub(crate) fn names_here(&self, at: RootRef) -> Option<Objects> {
        let whole = || self.roots.get(at).map(|root| root.objects().clone());
        self.partials.get(at).map(|root| Objects::clone(&root)).or_else(whole)
    }

    /// The objects that a root names; without its leaves of pages if it is in memory in part. Does not keep the root.
    ///
    /// # Errors
    /// [`MapError`].
    pub(crate) async fn names_of(&self, at: RootRef) -> Result<Arc<Objects>, MapError> {
        if let Some(objects) = self.objects_here(at) {
            return Ok(objects);
        }
        let root = self.root_once(at).await?;
        Ok(Arc::new(root.objects().clone()))
    }

    /// Keeps a root that a checkpoint made; if no leaf is away, also as a whole root for callers that need one.
    pub(crate) fn adopt_base(&self, at: RootRef, root: &Arc<PartialRoot>) {
        if let Some(whole) = root.whole() {
            self.adopt_root(at, Arc::new(whole.clone()));
            self.partials.forget_unused();
        } else {
            self.partials.keep(at, root.clone());
            self.tops.forget(at);
            self.roots.forget_unused();
        }
    }

    /// Memory limit for one root's leaves of pages.
    pub(crate) fn leaf_bytes(&self) -> u64 {
        self.leaf_bytes
    }

    /// Reads one of the set's own leaves from memory, disk or the store.
    pub(crate) async fn own_leaf(&self, leaf: &LeafRef) -> Result<Leaf, MapError> {
        self.leaf(&self.key, leaf).await
    }

    /// Reads one of the set's own pages according to `root`.
    pub(crate) async fn page_in(
        &self,
        root: &PartialRoot,
        volume: VolumeId,
        number: u32,
        pay: Pay<'_>,
    ) -> Result<Option<Arc<Page>>, MapError> {
        let place = match root.page(volume, number) {
            PageAt::Nowhere => None,
            PageAt::Page(place) => Some(place),
            PageAt::Leaf(leaf) => self.leaf_for(&self.key, &leaf, pay).await?.page(number),
        };
        match place {
            Some(place) => self.page_for(None, &place, volume, number, pay).await.map(Some),
            None => Ok(None),
        }
    }

    /// Keeps leaves that left a root, while there is room: lookups of their pages need them again.
    pub(crate) fn adopt_leaves(&self, leaves: impl IntoIterator<Item = (LeafRef, Leaf)>) {
        for (leaf, found) in leaves {
            self.pages.insert(BlockKey::first(leaf.at.object, leaf.at.number), Node::Leaf(found));
        }
    }

    /// Reads all leaves of a root (LEAF-L6), and keeps as many as fit. Each is requested separately, so that those that
    /// are away are on local disk (R8).
    async fn compare(&self, object: ObjectId, top: Arc<Top>) -> Result<PartialRoot, MapError> {
        let bad =
            move |e: holdfast_volume::map::MapError| MapError::Bad { what: "root", object, reason: e.to_string() };
        let mut known = BTreeMap::new();
        for run in together(top.object_leaves().collect()) {
            known.extend(self.unspoilt(|| self.leaves(&self.key, &run, true)).await?);
        }
        let compare = move || top.compare(|leaf| known.get(&(leaf.at.object, leaf.at.number)).cloned()).map_err(bad);
        let mut comparing = aside(compare).await??;
        let left: Vec<LeafRef> = comparing.left().collect();
        let mut fetched = stream::iter(left)
            .map(|leaf| async move { self.own_leaf(&leaf).await.map(|found| (leaf, found)) })
            .buffered(RUNS_AT_ONCE);
        let (mut kept, mut bytes) = (Vec::new(), 0);
        while let Some((leaf, found)) = fetched.try_next().await? {
            let more = found.memory_bytes() as u64;
            if bytes + more <= self.leaf_bytes {
                bytes += more;
                kept.push((leaf, found.clone()));
            }
            comparing.take(&leaf, found).map_err(bad)?;
        }
        let mut root = comparing.finish().map_err(bad)?;
        for (leaf, found) in kept {
            root.bring(&leaf, found).map_err(bad)?;
        }
        Ok(root)
    }

    /// Loads all of a root that has leaves away.
    pub(super) async fn whole(&self, object: ObjectId, root: &PartialRoot) -> Result<Arc<Root>, MapError> {
        let bad = |reason: String| MapError::Bad { what: "root", object, reason };
        let mut root = root.clone();
        let (away, mut missing): (Vec<LeafRef>, Vec<LeafRef>) = (root.away().collect(), Vec::new());
        for leaf in away {
            match self.pages.get(&BlockKey::first(leaf.at.object, leaf.at.number)) {
                Some(Node::Leaf(found)) => root.bring(&leaf, found).map_err(|e| bad(e.to_string()))?,
                _ => missing.push(leaf),
            }
        }
        let runs = together(missing);
        let mut fetched = stream::iter(runs)
            .map(|run| async move {
                let leaves = self.unspoilt(|| self.leaves(&self.key, &run, true)).await?;
                Ok::<_, MapError>((run, leaves))
            })
            .buffered(RUNS_AT_ONCE);
        while let Some((run, leaves)) = fetched.try_next().await? {
            for (leaf, (_, found)) in run.iter().zip(leaves) {
                root.bring(leaf, found).map_err(|e| bad(e.to_string()))?;
            }
        }
        let whole = root.into_whole().map(Arc::new);
        whole.map_err(|root| bad(format!("found {} leaves away, expected all here", root.away().count())))
    }
}
