//! Opened roots: readers need the top and single leaves; checkpoints, collection and similar tasks need all of a root.

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

/// How long to wait for a data key that this gateway does not know yet; after that the root counts as unreadable.
const KEY_LIMIT: Duration = Duration::from_secs(60);

/// Concurrent requests for leaves when all of a root is needed.
pub(super) const RUNS_AT_ONCE: usize = 16;

/// Leaves of one pack are fetched in one request of up to this many bytes …
const RUN_BYTES_MAX: u64 = 1 << 20;

/// … including the gaps between them, if these are no larger than this.
const GAP_BYTES_MAX: u64 = 32 << 10;

impl Mapping {
    /// Reads the root, from memory or the store.
    ///
    /// # Errors
    /// [`MapError`].
    pub async fn root(&self, at: RootRef) -> Result<Arc<Root>, MapError> {
        let root = self.root_once(at).await?;
        // A root that is held in part must not stay in memory as a whole: the current one would stay for as long as it
        // is current. Roots that are being compared do stay, or each step would read them again.
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

    /// As [`Mapping::root`], but does not keep the root: for callers that go through many roots.
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

    /// The root as readers need it; does not keep it.
    pub(crate) async fn known_once(&self, at: RootRef) -> Result<Known, MapError> {
        self.known(&self.key, at).await
    }

    /// The root as stored, from memory or the store: only the top of one with leaves, unless more is in memory. Does
    /// not keep it: for callers that read one leaf after another.
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
            // Already in memory, or it would not have been found.
            Known::Part(_) => {}
            Known::Top(top) => self.tops.keep(at, top.clone()),
        }
        Ok(known)
    }

    /// As [`Mapping::root_once`], but without retries: for callers that can do without it.
    ///
    /// # Errors
    /// [`MapError`], also if the store only fails to answer.
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

    /// Keeps this root, and drops the one that it replaced: while another gateway leads, the old one has no reader.
    pub(crate) fn follow_root(&self, before: Option<RootRef>, at: RootRef, root: Arc<Root>) {
        if let Some(before) = before {
            self.roots.forget(before);
            self.partials.forget(before);
            self.tops.forget(before);
        }
        self.note_current(at);
        self.adopt_root(at, root);
    }

    /// The place of a page according to a root of `of`: the set itself or an origin.
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

    /// Reads one leaf from memory, disk or the store.
    pub(super) async fn leaf(&self, of: &SetKey, leaf: &LeafRef) -> Result<Leaf, MapError> {
        self.leaf_for(of, leaf, &|_| ()).await
    }

    /// Like `leaf`, charged to `pay`.
    pub(super) async fn leaf_for(&self, of: &SetKey, leaf: &LeafRef, pay: Pay<'_>) -> Result<Leaf, MapError> {
        let at = leaf.at;
        let key = BlockKey::first(at.object, at.number);
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

    /// The root as far as it is in memory, or as its object says.
    pub(super) async fn known(&self, of: &SetKey, at: RootRef) -> Result<Known, MapError> {
        let partly = || self.partials.get(at).map(Known::Part).or_else(|| self.tops.get(at).map(Known::Top));
        let in_memory = || self.roots.get(at).map(Known::All).or_else(partly);
        if let Some(known) = in_memory() {
            return Ok(known);
        }
        let flight = self.opening.join(BlockKey::first(at.object, 0));
        let known = flight.cell().get_or_try_init(|| async {
            // Another load may have ended between the check and the join.
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
            // The key number is not authenticated: one copy, or one read of it, may be damaged. An origin's keys are
            // never replaced here.
            let seen = behind(&bytes).filter(|_| of.set == self.key.set && !waited.load(Ordering::Relaxed));
            if seen.is_some() {
                if let Some(several) = self.store.several() {
                    several.doubt(at.object);
                }
                bytes = self.patient(|| self.store.get(&key)).await?;
            }
            // All objects that a root names use keys that existed before its own. If group 0 lags behind on this
            // gateway, wait for it: this is no damage.
            if let Ok(header) = ObjectHeader::decode(&bytes)
                && seen == Some(header.key_id)
                && !waited.swap(true, Ordering::Relaxed)
            {
                tracing::warn!(set = %of.set, root = %at.object, key = header.key_id, "the root is under a data key that this gateway does not know yet; waiting for it");
                tokio::select! {
                    _ = of.wait_for(header.key_id, KEY_LIMIT) => {}
                    () = self.stop.cancelled() => return Err(MapError::Stopping),
                }
            }
            self.open(of, at, bytes).await
        };
        self.unspoilt(load).await
    }

    /// Opens a root's object outside of the runtime's threads: a root of many TiB that is written whole takes longer
    /// than heartbeats may wait. If the caller is gone at the end, the result is kept for the next one: a closed
    /// connection must not make the next reader start again.
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
        // `told` is dropped if this future is dropped.
        opening.await?;
        told.await.map_err(|_| MapError::Stopping)?
    }

    /// Loads all of a root whose top is known. Parts that it shares with another root in memory are not read again.
    async fn complete(
        &self,
        of: &SetKey,
        object: ObjectId,
        top: Arc<Top>,
        patient: bool,
    ) -> Result<Arc<Root>, MapError> {
        // Outside of the runtime's threads, like all work on each leaf of a large root.
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
                match pages.get(&BlockKey::first(key.0, key.1)) {
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
                // If the caller gives up and starts again, it continues from here.
                self.pages.insert(BlockKey::first(key.0, key.1), Node::Leaf(leaf.clone()));
                known.insert(key, leaf);
            }
        }
        let bad = |reason: String| MapError::Bad { what: "root", object, reason };
        let leaf = move |leaf: &LeafRef| known.get(&(leaf.at.object, leaf.at.number)).cloned();
        let whole = aside(move || top.complete(leaf).map_err(|e| e.to_string())).await?;
        whole.map(Arc::new).map_err(bad)
    }

    /// Reads leaves of one pack in one request.
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

/// The byte range of a pack from its first to its last leaf.
pub(crate) fn span(run: &[LeafRef]) -> Range<u64> {
    let begin = run.iter().map(|leaf| leaf.at.range().start).min().unwrap_or(0);
    begin..run.iter().map(|leaf| leaf.at.range().end).max().unwrap_or(begin)
}

/// Groups leaves into requests: neighbours in one pack.
pub(crate) fn together(mut leaves: Vec<LeafRef>) -> Vec<Vec<LeafRef>> {
    leaves.sort_unstable_by_key(|leaf| (leaf.at.object, leaf.at.offset));
    let mut runs: Vec<Vec<LeafRef>> = Vec::new();
    for leaf in leaves {
        // In order, so the last one has the end of the range; leaves of one pack do not overlap.
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

/// Runs work outside of the runtime's threads.
pub(crate) async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, MapError> {
    match holdfast_log::spawn_blocking(work).await {
        Ok(done) => Ok(done),
        Err(e) if e.is_panic() => std::panic::resume_unwind(e.into_panic()),
        Err(_) => Err(MapError::Stopping),
    }
}

#[cfg(test)]
mod tests;
