//! Roots, opened: for readers the top and single leaves, as they need them; for checkpoints, collection and their like all of it.

use super::{MapError, Mapping, Node, Pay};
use crate::roots::Known;
use crate::set_key::SetKey;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use holdfast_cache::BlockKey;
use holdfast_control::set::RootRef;
use holdfast_store::keys;
use holdfast_types::{ObjectId, VolumeId};
use holdfast_volume::map::{Leaf, LeafRef, Opened, PageAt, PageRef, Root, Top, open_leaf, open_top};
use holdfast_volume::object::ObjectHeader;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// So long a data key is waited for that this gateway has not heard of; then the root counts as what it cannot open.
const KEY_LIMIT: Duration = Duration::from_secs(60);

/// Requests for leaves that are under way at once, where all of a root is wanted.
pub(super) const RUNS_AT_ONCE: usize = 16;

/// Leaves of one pack are fetched together up to so many bytes …
const RUN_BYTES_MAX: u64 = 1 << 20;

/// … with what lies between them, where that is no more than this.
const GAP_BYTES_MAX: u64 = 32 << 10;

impl Mapping {
    /// The root, from memory or the store.
    ///
    /// # Errors
    /// [`MapError`].
    pub async fn root(&self, at: RootRef) -> Result<Arc<Root>, MapError> {
        let root = self.root_once(at).await?;
        // Of one that is kept in part not all may stay: the current one would for as long as it is that. Of two that are compared all does, or each part would read
        // it anew.
        if self.partials.get(at).is_none() || self.roots.is_compared(at) {
            self.adopt_root(at, root.clone());
        }
        Ok(root)
    }

    /// Keeps a root that was made here.
    pub fn adopt_root(&self, at: RootRef, root: Arc<Root>) {
        self.roots.keep(at, root);
        self.tops.forget(at);
    }

    /// The root as [`Mapping::root`] gives it, without a place among those that are kept: for one who goes through many.
    ///
    /// # Errors
    /// [`MapError`].
    pub async fn root_once(&self, at: RootRef) -> Result<Arc<Root>, MapError> {
        let load = || async {
            match self.known(&self.key, at).await? {
                Known::All(root) => Ok(root),
                Known::Part(root) => self.whole(at.object, &root).await,
                Known::Top(top) => self.complete(&self.key, at.object, top, true).await,
            }
        };
        self.roots.get_or_load(at, load).await
    }

    /// The root as readers need it, without a place among those that are kept.
    pub(crate) async fn known_once(&self, at: RootRef) -> Result<Known, MapError> {
        self.known(&self.key, at).await
    }

    /// The root as its object says, from memory or the store; of one in leaves the top, unless more of it is here. Not kept by this: for who goes from leaf to leaf.
    ///
    /// # Errors
    /// [`MapError`].
    pub(crate) async fn opened_once(&self, at: RootRef) -> Result<Opened, MapError> {
        match self.known(&self.key, at).await? {
            Known::All(root) => Ok(Opened::Whole(Root::clone(&root))),
            Known::Part(root) => Ok(Opened::Whole(Root::clone(&*self.whole(at.object, &root).await?))),
            Known::Top(top) => Ok(Opened::Leaves(Top::clone(&top))),
        }
    }

    /// The root as readers need it, from memory or the store.
    pub(crate) async fn shown(&self, at: RootRef) -> Result<Known, MapError> {
        self.shown_of(&self.key, at).await
    }

    /// An origin's root as readers need it, from memory or the store.
    pub(crate) async fn shown_of(&self, of: &SetKey, at: RootRef) -> Result<Known, MapError> {
        let known = self.known(of, at).await?;
        match &known {
            Known::All(root) => self.adopt_root(at, root.clone()),
            // It is in memory, or it would not have been found.
            Known::Part(_) => {}
            Known::Top(top) => self.tops.keep(at, top.clone()),
        }
        Ok(known)
    }

    /// The root as [`Mapping::root_once`] gives it, asked for once and without patience: for who can do without it.
    ///
    /// # Errors
    /// [`MapError`], also where the store only fails to answer.
    pub(crate) async fn root_if_easy(&self, at: RootRef) -> Result<Arc<Root>, MapError> {
        let load = || async {
            let bytes = self.store.get(&keys::root(self.key.set, at.object)).await?;
            match self.open(&self.key, at, bytes).await? {
                Known::All(root) => Ok(root),
                Known::Part(root) => self.whole(at.object, &root).await,
                Known::Top(top) => self.complete(&self.key, at.object, top, false).await,
            }
        };
        self.roots.get_or_load(at, load).await
    }

    /// Keeps this root, and no longer the one that it replaced: while another gateway leads, nobody reads by that one here.
    pub(crate) fn follow_root(&self, before: Option<RootRef>, at: RootRef, root: Arc<Root>) {
        if let Some(before) = before {
            self.roots.forget(before);
            self.partials.forget(before);
            self.tops.forget(before);
        }
        self.note_current(at);
        self.adopt_root(at, root);
    }

    /// Where a page is, as a root has it: of the set itself, or of an origin, whose key this is.
    pub(crate) async fn place_of(
        &self,
        of: Option<&SetKey>,
        root: &Known,
        volume: VolumeId,
        number: u32,
    ) -> Result<Option<PageRef>, MapError> {
        match root.page(volume, number) {
            PageAt::Nowhere => Ok(None),
            PageAt::Page(place) => Ok(Some(place)),
            PageAt::Leaf(leaf) => Ok(self.leaf(of.unwrap_or(&self.key), &leaf).await?.page(number)),
        }
    }

    /// One leaf, from memory, disk or the store.
    pub(super) async fn leaf(&self, of: &SetKey, leaf: &LeafRef) -> Result<Leaf, MapError> {
        self.leaf_for(of, leaf, &|_| ()).await
    }

    /// The same, where somebody pays for it.
    pub(super) async fn leaf_for(&self, of: &SetKey, leaf: &LeafRef, pay: Pay<'_>) -> Result<Leaf, MapError> {
        let at = leaf.at;
        let key = BlockKey { object: at.object, number: at.number };
        let bad = |reason| MapError::Bad { what: "leaf", object: at.object, reason };
        let open = |sealed: &Bytes| {
            open_leaf(&of.opener(at.object), leaf, sealed).map(Node::Leaf).map_err(|e| bad(e.to_string()))
        };
        let fetch = || async {
            let object_key = keys::map_pack(of.set, at.object);
            let ask = || {
                pay(u64::from(at.sealed_len));
                self.store.get_range(&object_key, at.range())
            };
            self.patient(ask).await
        };
        match self.unspoilt(|| self.pages.get_or_open(key, fetch, open)).await? {
            Node::Leaf(leaf) => Ok(leaf),
            Node::Page(_) => Err(bad(format!("found a page as number {}, expected a leaf", at.number))),
        }
    }

    /// What is in memory of the root, or else what its object says.
    pub(super) async fn known(&self, of: &SetKey, at: RootRef) -> Result<Known, MapError> {
        let partly = || self.partials.get(at).map(Known::Part).or_else(|| self.tops.get(at).map(Known::Top));
        let in_memory = || self.roots.get(at).map(Known::All).or_else(partly);
        if let Some(known) = in_memory() {
            return Ok(known);
        }
        let flight = self.opening.join(BlockKey { object: at.object, number: 0 });
        let known = flight.cell().get_or_try_init(|| async {
            // A load that ended between our look and our joining.
            match in_memory() {
                Some(known) => Ok(known),
                None => self.fetch(of, at).await,
            }
        });
        known.await.cloned()
    }

    async fn fetch(&self, of: &SetKey, at: RootRef) -> Result<Known, MapError> {
        let key = keys::root(of.set, at.object);
        let waited = AtomicBool::new(false);
        let load = || async {
            let mut bytes = self.patient(|| self.store.get(&key)).await?;
            let behind = |bytes: &Bytes| {
                let key_id = ObjectHeader::decode(bytes).ok().map(|header| header.key_id);
                key_id.filter(|key_id| of.is_behind(*key_id))
            };
            // Nothing vouches for the number: one copy may be spoilt, or one reading of it. An origin's keys nobody replaces here.
            let seen = behind(&bytes).filter(|_| of.set == self.key.set && !waited.load(Ordering::Relaxed));
            if seen.is_some() {
                if let Some(several) = self.store.several() {
                    several.doubt(at.object);
                }
                bytes = self.patient(|| self.store.get(&key)).await?;
            }
            // All that a root names is under keys that were there before its own. Where group 0 is behind on this gateway, that is waited for: it is no damage.
            if let Ok(header) = ObjectHeader::decode(&bytes)
                && seen == Some(header.key_id)
                && !waited.swap(true, Ordering::Relaxed)
            {
                tracing::warn!(set = %of.set, root = %at.object, key = header.key_id, "the root is under a data key that this gateway has not heard of; waiting for it");
                tokio::select! {
                    _ = of.wait_for(header.key_id, KEY_LIMIT) => {}
                    () = self.stop.cancelled() => return Err(MapError::Stopping),
                }
            }
            self.open(of, at, bytes).await
        };
        self.unspoilt(load).await
    }

    /// Opens what a root's object says, off the runtime's threads: one of many TiB that is written whole takes longer than heartbeats may wait. Where nobody
    /// waits for that one any more in the end, it is kept for the next who asks: a reader whose connection closes must not have the next one begin again.
    async fn open(&self, of: &SetKey, at: RootRef, bytes: Bytes) -> Result<Known, MapError> {
        let (opener, of, roots) = (of.opener(at.object), of.clone(), self.roots.clone());
        let (tell, told) = tokio::sync::oneshot::channel();
        let opening = aside(move || {
            let known = match open_top(&opener, &bytes) {
                Ok(opened) => {
                    of.seen(opened.key_id());
                    Ok(match opened {
                        Opened::Whole(root) => Known::All(Arc::new(root)),
                        Opened::Leaves(top) => Known::Top(Arc::new(top)),
                    })
                }
                Err(e) => Err(MapError::Bad { what: "root", object: at.object, reason: e.to_string() }),
            };
            if let Err(Ok(Known::All(root))) = tell.send(known) {
                roots.keep(at, root);
            }
        });
        // `told` goes with us where we are dropped.
        opening.await?;
        told.await.map_err(|_| MapError::Stopping)?
    }

    /// All of a root, of which the top is known. What another root in memory has alike is not read again.
    async fn complete(
        &self,
        of: &SetKey,
        object: ObjectId,
        top: Arc<Top>,
        patient: bool,
    ) -> Result<Arc<Root>, MapError> {
        // Off the runtime's threads, as all that is done with each leaf of a large root.
        let (roots, partials) = (self.roots.all(), self.partials.all());
        let (pages, names) = (self.pages.clone(), top.clone());
        let (mut known, runs) = aside(move || {
            let mut known: BTreeMap<(ObjectId, u32), Leaf> = BTreeMap::new();
            for root in roots {
                known.extend(root.written());
            }
            for root in partials {
                known.extend(root.written());
            }
            let mut missing = Vec::new();
            for leaf in names.leaves() {
                let key = (leaf.at.object, leaf.at.number);
                if known.contains_key(&key) {
                    continue;
                }
                match pages.get(&BlockKey { object: key.0, number: key.1 }) {
                    Some(Node::Leaf(found)) => {
                        known.insert(key, found);
                    }
                    _ => missing.push(leaf),
                }
            }
            (known, together(missing))
        })
        .await?;
        let mut fetched = stream::iter(runs)
            .map(|run| async move {
                if patient {
                    self.unspoilt(|| self.leaves(of, &run, true)).await
                } else {
                    self.leaves(of, &run, false).await
                }
            })
            .buffer_unordered(RUNS_AT_ONCE);
        while let Some(leaves) = fetched.try_next().await? {
            for (key, leaf) in leaves {
                // Who gives up before the end, and begins again, goes on from here.
                self.pages.insert(BlockKey { object: key.0, number: key.1 }, Node::Leaf(leaf.clone()));
                known.insert(key, leaf);
            }
        }
        let bad = |reason: String| MapError::Bad { what: "root", object, reason };
        let leaf = move |leaf: &LeafRef| known.get(&(leaf.at.object, leaf.at.number)).cloned();
        let whole = aside(move || top.complete(leaf).map_err(|e| e.to_string())).await?;
        whole.map(Arc::new).map_err(bad)
    }

    /// Leaves of one pack, in one request.
    pub(super) async fn leaves(
        &self,
        of: &SetKey,
        run: &[LeafRef],
        patient: bool,
    ) -> Result<Vec<((ObjectId, u32), Leaf)>, MapError> {
        let Some(first) = run.first() else { return Ok(Vec::new()) };
        let object = first.at.object;
        let key = keys::map_pack(of.set, object);
        let range = span(run);
        let bytes = if patient {
            self.patient(|| self.store.get_range(&key, range.clone())).await?
        } else {
            self.store.get_range(&key, range.clone()).await?
        };
        let (opener, run) = (of.opener(object), run.to_vec());
        let open = move || {
            let mut leaves = Vec::with_capacity(run.len());
            for leaf in run {
                let at = leaf.at.range();
                let sealed = bytes.get((at.start - range.start) as usize..(at.end - range.start) as usize);
                let opened = open_leaf(&opener, &leaf, sealed.unwrap_or(&[])).map_err(|e| e.to_string())?;
                leaves.push(((object, leaf.at.number), opened));
            }
            Ok(leaves)
        };
        let opened: Result<_, String> = aside(open).await?;
        opened.map_err(|reason| MapError::Bad { what: "leaf", object, reason })
    }
}

/// The bytes of a pack from its first leaf to its last.
pub(crate) fn span(run: &[LeafRef]) -> Range<u64> {
    let begin = run.iter().map(|leaf| leaf.at.range().start).min().unwrap_or(0);
    begin..run.iter().map(|leaf| leaf.at.range().end).max().unwrap_or(begin)
}

/// Leaves that are fetched in one request each: neighbours of one pack.
pub(crate) fn together(mut leaves: Vec<LeafRef>) -> Vec<Vec<LeafRef>> {
    leaves.sort_unstable_by_key(|leaf| (leaf.at.object, leaf.at.offset));
    let mut runs: Vec<Vec<LeafRef>> = Vec::new();
    for leaf in leaves {
        // In order, so the last one ends it; leaves of one pack do not overlap.
        let joins = |run: &Vec<LeafRef>| {
            let next = leaf.at.range();
            let Some((first, last)) = run.first().zip(run.last()) else { return false };
            first.at.object == leaf.at.object
                && next.start.saturating_sub(last.at.range().end) <= GAP_BYTES_MAX
                && next.end.saturating_sub(first.at.range().start) <= RUN_BYTES_MAX
        };
        match runs.last_mut() {
            Some(run) if joins(run) => run.push(leaf),
            _ => runs.push(vec![leaf]),
        }
    }
    runs
}

/// Work off the runtime's threads.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, MapError> {
    match holdfast_log::spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
        Err(_) => Err(MapError::Stopping),
    }
}

#[cfg(test)]
mod tests;
