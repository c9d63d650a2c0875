//! Moves data from the journal to the store. Runs only at the set's leader.
//!
//! One checkpoint (design, "Snapshots of the Raft state"):
//! ```text
//!   1  CheckpointBegin is applied at X: every replica seals its journal index
//!   2  the sealed extents are read from the journal, compressed, sealed and packed into segments; several PUTs run at once
//!   3  an entry notes each segment once it is durable in the store
//!   4  changed pages are written to new page packs, then the root with its leaves; then the head names the root (HEAD-H1)
//!   5  CheckpointEnd{X, root} is applied: lookups use the map, the Raft snapshot covers X, the journal is purged
//! ```
//! A crash or a new leader at any step leaves orphans, never a map that names missing objects. A new leader starts
//! again at step 1 with the journal only (R7). A leader's own sweep deletes what it gave up (SPACE-G4).

use crate::head::{KeepError, content_at};
use crate::host::SetHost;
use crate::mapping::{MapError, Mapping};
use crate::reader::{ReadError, Reader};
use crate::server::{SetError, SetServer};
use crate::set_key::SealingKey;
use crate::wall_clock::unix_ms;
use futures_util::stream::{self, FuturesUnordered};
use futures_util::{StreamExt, TryStreamExt};
use holdfast_control::set::{RootRef, SetAnswer, SetCommand, SetState, StoredKind};
use holdfast_store::{ObjectStore, StoreError};
use holdfast_types::{LogId, ObjectId, SECTOR_BYTES, Sectors, Term, VolumeId, sync::LockExt};
use holdfast_volume::head::Covered;
use holdfast_volume::index::{Memtable, Source};
use holdfast_volume::map::{
    LeafShape, Live, LiveError, MapExtent, PackBuilder, Page, PartialRoot, Root, page_numbers, seal_partial,
    split_by_page,
};
use holdfast_volume::plan::{batches, unmaps};
use holdfast_volume::segment::{Codec, SegmentBuilder};
use holdfast_volume::space::{MoveBudget, MoveLimits, Spared, fold_page};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

mod collect;
mod leaves;
mod objects;
#[cfg(test)]
mod tests;

use leaves::{OldPage, bad_leaf};
use objects::seal_batch;

/// Raw bytes that are compressed and sealed in one call outside of the runtime's threads.
const BATCH_BYTES: u64 = 1 << 20;

/// Batches that are read from the journal ahead of the one being sealed.
const BATCHES_AHEAD: usize = 2;

/// Map pages that are read from the store concurrently.
const PAGES_AHEAD: usize = 32;

/// Leaves that are read concurrently when a caller goes through all of them in order.
const LEAVES_AHEAD: usize = 16;

/// Maximum pause between two attempts after the store or the group did not answer.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(5);

/// … and after errors that a retry is unlikely to fix: each attempt writes all pending data again (SPACE-G4).
const LASTING_PAUSE_MAX: Duration = Duration::from_secs(120);

/// How often a waiting task checks whether an attempt is requested.
const LOOK: Duration = Duration::from_millis(250);

/// When and how to upload.
#[derive(Clone, Copy, Debug)]
pub struct UploadSettings {
    /// A checkpoint begins when the journal holds this many bytes of the set.
    pub bytes: u64,
    /// … or when the oldest of them reaches this age.
    pub interval: Duration,
    /// Number of segments written concurrently.
    pub parallel: usize,
    /// How extents are compressed.
    pub codec: Codec,
    /// Stored bytes for each 100 bytes in use; above this, segments are emptied.
    pub target_percent: u32,
    /// Limits for the store traffic of emptying segments.
    pub moves: MoveLimits,
    /// Whether uploaded data also goes into the disk cache.
    pub keep_uploaded: bool,
}

/// Why a checkpoint failed. It is started again.
#[derive(Debug, thiserror::Error)]
enum UploadError {
    #[error(transparent)]
    Set(#[from] SetError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("store: {0}")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Head(#[from] KeepError),
    #[error(transparent)]
    Live(#[from] LiveError),
    #[error("another leader has begun anew")]
    Superseded,
    #[error("stopping")]
    Stopping,
    #[error("the store does not answer in time")]
    Late,
}

impl From<tokio::task::JoinError> for UploadError {
    /// A panic is passed on: a broken invariant must not be retried for ever as if the store were slow.
    fn from(ended: tokio::task::JoinError) -> Self {
        match ended.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Self::Stopping,
        }
    }
}

/// Shape of the leaves of a new root; `None` to write it whole, for gateways whose build reads no leaves.
pub type InLeaves = Arc<dyn Fn() -> Option<LeafShape> + Send + Sync>;

/// Uploads one set while this gateway leads it.
pub struct Uploader {
    server: Arc<SetServer>,
    host: Arc<SetHost>,
    reader: Reader,
    mapping: Arc<Mapping>,
    settings: UploadSettings,
    boot: u64,
    /// The last checkpoint, perhaps an earlier leader's, left more garbage than the target allows.
    collection_due: AtomicBool,
    /// Segments that could not be emptied usefully.
    spared: Mutex<Spared>,
    /// Budget of the store traffic for moves, in time since `begun`.
    budget: Mutex<MoveBudget>,
    begun: Instant,
    /// The budget made the last checkpoint move less than necessary.
    held: AtomicBool,
    /// The root's key for which collection was started, to move what earlier leaders left under older keys.
    resealing: Mutex<Option<(u32, Instant)>>,
    /// The key of everything in the current checkpoint. Its root claims it for objects that it does not list (UNDER-U1).
    sealing: Mutex<Option<SealingKey>>,
    /// The target of the current checkpoint, with its head: the set's stores as of its begin.
    place: Mutex<Option<Arc<dyn ObjectStore>>>,
    /// How roots are divided, if every gateway can read divided ones.
    in_leaves: InLeaves,
    /// Buffers of uploaded segments, reused in the same checkpoint; as many as are written concurrently.
    bodies: Mutex<Vec<Vec<u8>>>,
    stop: CancellationToken,
}

#[derive(Default)]
struct Changes {
    extents: BTreeMap<(VolumeId, u32), Vec<MapExtent>>,
    segments: Vec<(ObjectId, u64, Sectors)>,
}

impl Uploader {
    /// `boot`: this disk's start counter, part of every object's name.
    pub fn new(
        server: Arc<SetServer>,
        mapping: Arc<Mapping>,
        settings: UploadSettings,
        boot: u64,
        stop: CancellationToken,
    ) -> Self {
        let (host, reader) = (server.host.clone(), server.reader.clone());
        let (collection_due, spared) = (AtomicBool::new(false), Mutex::default());
        let (budget, begun, held) =
            (Mutex::new(MoveBudget::new(settings.moves)), Instant::now(), AtomicBool::new(false));
        let (bodies, sealing, place) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self {
            server,
            host,
            reader,
            mapping,
            settings,
            boot,
            collection_due,
            spared,
            budget,
            begun,
            held,
            resealing: Mutex::default(),
            sealing,
            place,
            in_leaves: Arc::new(|| None),
            bodies,
            stop,
        }
    }

    /// Sets the callback that is asked for the shape of each root.
    #[must_use]
    pub fn in_leaves(self, in_leaves: InLeaves) -> Self {
        Self { in_leaves, ..self }
    }

    /// Runs until stopped.
    pub async fn run(self) {
        let mut pause = Duration::from_millis(100);
        let (mut dirty_since, mut judged): (Option<Instant>, Option<Term>) = (None, None);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.server.head.asked() => {}
                () = tokio::time::sleep(pause.min(Duration::from_millis(250))) => {}
            }
            let Some(term) = self.server.leads() else {
                dirty_since = None;
                pause = Duration::from_millis(100);
                self.host.note_unfinished(None);
                continue;
            };
            self.judge_once(term, &mut judged).await;
            let (bytes, unfinished) = self.host.with(|m| (m.data_bytes(), m.sealed().is_some()));
            let due = bytes > 0 || self.collection_waits();
            if due {
                dirty_since.get_or_insert_with(Instant::now);
            }
            let old = dirty_since.is_some_and(|since| since.elapsed() >= self.settings.interval);
            // A checkpoint also frees a journal full of data that no lookup needs any more.
            let pressed = self.server.journal_pressed();
            // Always cleared: a request that stays would end each pause after a failure immediately.
            let wanted = self.server.head.take_wanted();
            let asked = wanted || unfinished || self.state_waits() || self.key_waits().await;
            if !(asked || bytes >= self.settings.bytes || old && due || pressed) {
                continue;
            }
            let _turn = tokio::select! {
                turn = self.server.head.checkpoint_turn() => turn,
                () = self.stop.cancelled() => return,
            };
            let mut moves = self.server.switch.changes();
            moves.borrow_and_update();
            *self.place.locked() = Some(self.server.switch.pinned());
            // Stops any wait: for a deleted set's note that is never answered, or for stores no longer in use.
            let done = tokio::select! {
                done = self.checkpoint(term) => done,
                Ok(()) = moves.changed() => Err(UploadError::Superseded),
                () = self.stop.cancelled() => return,
            };
            match done {
                Ok(()) => {
                    (dirty_since, judged) = (None, Some(term));
                    pause = Duration::from_millis(100);
                    self.host.note_unfinished(None);
                }
                Err(UploadError::Stopping) => return,
                Err(e) => {
                    if let UploadError::Map(e) | UploadError::Read(ReadError::Map(e)) = &e {
                        self.mapping.note_object_trouble(e);
                    }
                    tracing::warn!(set = %self.server.name, error = %e, "checkpoint not finished; starting again");
                    self.host.note_unfinished(Some(e.to_string()));
                    pause = next_pause(pause, &e);
                    tokio::select! {
                        () = self.stop.cancelled() => return,
                        () = self.rest(term, pause) => {}
                    }
                }
            }
        }
    }

    /// Waits for `pause`, until a checkpoint is requested, or until this gateway no longer leads.
    async fn rest(&self, term: Term, pause: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < pause {
            tokio::time::sleep(LOOK.min(pause)).await;
            if self.server.head.is_wanted() || self.server.leading_ready() != Some(term) {
                return;
            }
        }
    }

    fn new_object(&self, term: Term) -> ObjectId {
        ObjectId { term, member: self.server.me(), boot: self.boot, random: crate::random::random_u128() }
    }

    async fn checkpoint(&self, term: Term) -> Result<(), UploadError> {
        let (started, at_unix_ms) = (Instant::now(), unix_ms());
        let begun = self.server.command("a checkpoint's begin", &SetCommand::CheckpointBegin { term }).await?;
        let SetAnswer::CheckpointBegun { at } = begun else {
            let found = format!("{begun:?}");
            return Err(SetError::Answer { what: "a checkpoint's begin", found }.into());
        };
        let (sealed_at, generation) = self.host.sealed().ok_or(UploadError::Superseded)?;
        if sealed_at != at {
            return Err(UploadError::Superseded);
        }
        self.server.given_up().begin(at);
        let uploaded = async {
            // DATAKEY-Z2: a checkpoint must not seal under a lower key than its base root. Opening the root shows that key.
            if let Some(base) = self.host.with(|m| m.state().checkpoint.as_ref().map(|c| c.root)) {
                self.mapping.key.seen(self.mapping.shown(base).await?.key_id());
            }
            *self.sealing.locked() = Some(self.mapping.key.sealing());
            let changes = self.upload_segments(term, &generation).await?;
            let segments_took = started.elapsed();
            Ok::<_, UploadError>((segments_took, self.upload_map(term, at, &generation, changes).await?))
        };
        let uploaded = uploaded.await;
        self.bodies().clear();
        let (segments_took, (root_ref, root, moved)) = uploaded?;
        self.mapping.adopt_base(root_ref, &root);
        self.commit_head(term, at, at_unix_ms, root_ref).await?;
        let end = SetCommand::CheckpointEnd { term, begin: at, root: root_ref };
        self.server.command("a checkpoint's end", &end).await?;
        self.server.given_up().ended(at);
        self.note_garbage(root, generation.is_empty() && !moved).await?;
        let (extents, bytes) = (generation.extents(), generation.data_bytes());
        metrics::counter!("holdfast_checkpoints_total", "set" => self.server.name.to_string()).increment(1);
        tracing::info!(set = %self.server.name, upto = %at, extents, bytes, ?segments_took, took = ?started.elapsed(), "checkpoint");
        Ok(())
    }

    /// Steps 2 and 3. Reads the journal ahead of the sealing, and uploads sealed segments meanwhile.
    async fn upload_segments(&self, term: Term, generation: &Arc<Memtable>) -> Result<Changes, UploadError> {
        let mut changes = Changes::default();
        let mut puts = FuturesUnordered::new();
        let mut builder: Option<SegmentBuilder> = None;
        let mut raw = stream::iter(batches(generation, BATCH_BYTES))
            .map(|batch| self.reader.read_batch(batch))
            .buffered(BATCHES_AHEAD);
        while let Some(batch) = driving(&mut puts, raw.try_next()).await?? {
            let open = builder.take().unwrap_or_else(|| self.new_segment(term));
            let sealing = holdfast_log::spawn_blocking(move || seal_batch(open, batch));
            let (open, placed) = driving(&mut puts, sealing).await??;
            let object = open.object();
            for (volume, lba, place) in placed {
                note_extent(&mut changes, volume, MapExtent::whole(object, lba, place));
            }
            if !open.is_full() {
                builder = Some(open);
                continue;
            }
            // Limited, because each PUT holds a segment in memory.
            while puts.len() >= self.settings.parallel {
                puts.next().await.transpose()?;
            }
            puts.push(self.close_segment(term, open, &mut changes));
        }
        if let Some(last) = builder {
            puts.push(self.close_segment(term, last, &mut changes));
        }
        while puts.next().await.transpose()?.is_some() {}
        Ok(changes)
    }

    fn close_segment(
        &self,
        term: Term,
        open: SegmentBuilder,
        changes: &mut Changes,
    ) -> impl Future<Output = Result<(), UploadError>> + use<'_> {
        let (object, raw_bytes, keep) = (open.object(), open.raw_bytes(), self.kept(open.places()));
        let body = open.finish();
        changes.segments.push((object, body.len() as u64, Sectors(raw_bytes / SECTOR_BYTES)));
        self.put_segment(term, object, body, raw_bytes, keep)
    }

    /// Step 4.
    async fn upload_map(
        &self,
        term: Term,
        upto: LogId,
        generation: &Arc<Memtable>,
        changes: Changes,
    ) -> Result<(RootRef, Arc<PartialRoot>, bool), UploadError> {
        let shape = (self.in_leaves)();
        let base = match self.host.with(|m| m.state().checkpoint.as_ref().map(|c| c.root)) {
            Some(root) => self.base(root, shape).await?,
            None => PartialRoot::from(Root::new(upto)),
        };
        // Sizes as of the begin: data beyond a volume's end, or of a deleted volume, is never read.
        let sizes: BTreeMap<VolumeId, Sectors> = self
            .host
            .with(|m| m.begun().filter(|(at, _)| *at == upto).map(|(_, state)| volume_sizes(state)))
            .ok_or(UploadError::Superseded)?;
        let collected = self.collect(term, &base, generation, &changes.segments).await?;
        let mut moved = !collected.moves.is_empty();
        let mut root = base;
        root.begin(upto, self.sealing().key_id);
        for (object, stored, raw) in changes.segments.iter().chain(&collected.segments) {
            root.add_segment(*object, *stored, *raw);
        }
        let mut touched = changes.extents;
        for page in collected.moves.keys().chain(&collected.pages) {
            touched.entry(*page).or_default();
        }
        // A large unmapping visits only existing pages, not all possible ones.
        for unmap in unmaps(generation) {
            let here = root.pages_here_in(unmap.volume, unmap.lba, unmap.sectors);
            let mut numbers: Vec<u32> = here.map(|(number, _)| number).collect();
            let mut away = stream::iter(root.away_in(unmap.volume, unmap.lba, unmap.sectors))
                .map(|leaf| async move { self.mapping.own_leaf(&leaf).await })
                .buffered(LEAVES_AHEAD);
            while let Some(found) = away.try_next().await? {
                tokio::task::consume_budget().await;
                numbers.extend(found.pages_in(unmap.lba, unmap.sectors).into_iter().map(|(number, _)| number));
            }
            // In a clone the unmapping also hides the base: in the root, except for the pages at its two ends.
            let ends = root.hide(unmap.volume, unmap.lba, unmap.sectors);
            for number in numbers.into_iter().chain(ends) {
                touched.entry((unmap.volume, number)).or_default();
            }
        }
        let mut pack: Option<PackBuilder> = None;
        // Random writes touch one page each, so the old pages and their leaves are fetched ahead, in order.
        let base = root.clone();
        let mut leaves = self.begin_leaves(term, &mut root, shape);
        let mut pages = stream::iter(touched)
            .map(|((volume, number), extents)| {
                let at = base.page(volume, number);
                async move { self.old_page(at, volume, number).await.map(|old| (volume, number, extents, old)) }
            })
            .buffered(PAGES_AHEAD);
        // An unreadable leaf is worse than a damaged page: none of its pages can be located, so the checkpoint fails.
        while let Some((volume, number, extents, OldPage { leaf, place, page: old })) = pages.try_next().await? {
            tokio::task::consume_budget().await; // With all pages in the cache, this loop would never yield and would delay heartbeats.
            let moves = collected.moves.get(&(volume, number)).map_or(&[][..], Vec::as_slice);
            let old = match old.map_err(UploadError::from) {
                Ok(old) => old,
                // R9: no write or move concerns this page, so it stays. The checkpoint must not fail for it.
                Err(e)
                    if collect::damaged(&e)
                        && moves.is_empty()
                        && extents.is_empty()
                        && untouched(generation, volume, number) =>
                {
                    tracing::error!(set = %self.server.name, %volume, page = number, error = %e, "R9: a map page cannot be collected");
                    metrics::counter!("holdfast_space_damaged_total", "set" => self.server.name.to_string())
                        .increment(1);
                    continue;
                }
                // R9: all of its range was replaced: give it up. Its extents stay counted and are never deleted.
                Err(e)
                    if collect::damaged(&e)
                        && moves.is_empty()
                        && covered(generation, volume, number, sizes.get(&volume).copied()) =>
                {
                    tracing::error!(set = %self.server.name, %volume, page = number, error = %e, "R9: a damaged map page that is no longer needed is given up");
                    metrics::counter!("holdfast_map_pages_given_up_total", "set" => self.server.name.to_string())
                        .increment(1);
                    // It prevented segments that it shares with other pages from being emptied.
                    self.spared().clear();
                    None
                }
                Err(e) => return Err(e),
            };
            moved |= collected.pages.contains(&(volume, number));
            let before = old.as_ref().map_or_else(Live::new, |page| page.live());
            let below = root.below(volume, number);
            let given_up = old.is_none() && place.is_some();
            let mut old = old.map_or_else(|| Page::new(volume, number), |page| Page::clone(&page));
            if given_up && below.is_some() {
                // Its hidden ranges are lost; the base must not become visible there.
                old.hide(old.lba(), Sectors(old.end().0 - old.lba().0));
            }
            let page = fold_page(old, generation, &extents, moves, below);
            let after = page.live();
            if let Some(leaves) = &mut leaves {
                self.pass_leaves(term, &mut root, (volume, number), leaves).await?;
            }
            if let Some((leaf, found)) = leaf {
                root.bring(&leaf, found).map_err(|e| bad_leaf(&leaf, &e))?;
            }
            let place = if page.is_empty() {
                None
            } else if below.is_some_and(|end| page.only_hides(end)) {
                root.hide(volume, page.lba(), Sectors(page.end().0 - page.lba().0));
                None
            } else {
                let open = pack.get_or_insert_with(|| PackBuilder::new(self.sealing().sealer(self.new_object(term))));
                let place = open.push(&page);
                self.mapping.adopt_page(&place, Arc::new(page));
                Some(place)
            };
            root.replace_page(volume, number, place, &before, &after)?;
            if let Some(full) = pack.take_if(|pack| pack.is_full()) {
                self.put_pack(term, &mut root, full).await?;
            }
        }
        if let Some(last) = pack {
            self.put_pack(term, &mut root, last).await?;
        }
        let (mut root, leaves) = match leaves {
            Some(leaves) => self.end_leaves(term, root, leaves).await?,
            None => self.divide(term, root).await?,
        };
        // They are not in the store yet: until then, page lookups use the previous root.
        self.mapping.adopt_leaves(root.let_go(self.mapping.leaf_bytes()));
        let object = self.new_object(term);
        let sealer = self.sealing().sealer(object);
        // Sealing a root of many TiB that is written whole takes longer than heartbeats may wait.
        let sealing = holdfast_log::spawn_blocking(move || {
            let body = seal_partial(&root, sealer);
            (Arc::new(root), body)
        });
        let (root, body) = sealing.await?;
        let root_ref = RootRef { object, bytes: body.len() as u64 };
        // Concurrently: no head names this root, so nobody reads it, before all of it is stored (HEAD-H2).
        tokio::try_join!(self.put_leaves(term, leaves), self.put(term, StoredKind::Root, object, body))?;
        Ok((root_ref, root, moved))
    }

    /// Makes a recovery start from this checkpoint. Before its end, because the journal is purged only up to there.
    async fn commit_head(&self, term: Term, at: LogId, at_unix_ms: u64, root: RootRef) -> Result<(), UploadError> {
        let content = self.host.with(|m| content_at(m.begun(), at, root));
        let (epoch, content) = content.ok_or(UploadError::Superseded)?;
        let covered = Covered { upto: at, generation: self.server.head.life().generation, at_unix_ms };
        let place = self.place();
        let mut pause = Duration::from_millis(100);
        self.server.head.note_root(at, root);
        loop {
            self.server.head.note_here(&self.server, Some(term));
            let outcome = tokio::select! {
                outcome = self.server.head.commit(&*place, term, covered, epoch, content.clone()) => outcome,
                () = self.stop.cancelled() => return Err(UploadError::Stopping),
            };
            match outcome {
                Ok(()) => return Ok(()),
                Err(e) if e.may_pass() && self.server.leading_ready() == Some(term) => {
                    tracing::warn!(set = %self.server.name, error = %e, "the head was not replaced; retrying");
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.stop.cancelled() => return Err(UploadError::Stopping),
                    }
                    pause = (pause * 2).min(RETRY_PAUSE_MAX);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Doubles the pause each time, so that after a repair the next attempt comes within the duration of the outage.
fn next_pause(pause: Duration, e: &UploadError) -> Duration {
    (pause * 2).min(if lasts(e) { LASTING_PAUSE_MAX } else { RETRY_PAUSE_MAX })
}

/// Whether a retry is unlikely to help: damage and refusals last.
fn lasts(e: &UploadError) -> bool {
    match e {
        UploadError::Read(ReadError::Journal(_) | ReadError::Operation { .. }) | UploadError::Live(_) => true,
        UploadError::Set(SetError::Refused(_)) => true,
        e => collect::damaged(e),
    }
}

/// Whether the generation changes nothing in the page's range.
fn untouched(generation: &Memtable, volume: VolumeId, number: u32) -> bool {
    let page = Page::new(volume, number);
    let sectors = Sectors(page.end().0 - page.lba().0);
    generation.pieces(volume, page.lba(), sectors).all(|piece| piece.source == Source::Map)
}

/// Whether the generation covers the page's range up to `size`, the volume's end; `None` if it is deleted.
fn covered(generation: &Memtable, volume: VolumeId, number: u32, size: Option<Sectors>) -> bool {
    let page = Page::new(volume, number);
    let end = page.end().0.min(size.map_or(0, |size| size.0));
    let sectors = Sectors(end.saturating_sub(page.lba().0));
    sectors.0 == 0 || generation.pieces(volume, page.lba(), sectors).all(|piece| piece.source != Source::Map)
}

fn volume_sizes(state: &SetState) -> BTreeMap<VolumeId, Sectors> {
    state.volumes.iter().map(|(id, volume)| (*id, volume.size)).collect()
}

/// Awaits `work` while the PUTs continue. The first failed PUT ends it.
async fn driving<P, W>(puts: &mut FuturesUnordered<P>, work: W) -> Result<W::Output, UploadError>
where
    P: Future<Output = Result<(), UploadError>>,
    W: Future,
{
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = &mut work => return Ok(done),
            Some(put) = puts.next(), if !puts.is_empty() => put?,
        }
    }
}

/// An extent is recorded for every page that it touches; each page takes its own part.
fn note_extent(changes: &mut Changes, volume: VolumeId, extent: MapExtent) {
    for number in page_numbers(extent.lba, extent.sectors) {
        changes.extents.entry((volume, number)).or_default().push(extent);
    }
    debug_assert_eq!(
        split_by_page(extent.lba, extent.sectors).count(),
        page_numbers(extent.lba, extent.sectors).count()
    );
}
