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

use crate::head::content_at;
use crate::reader::ReadError;
use crate::server::SetError;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, FuturesUnordered};
use futures_util::{StreamExt, TryStreamExt};
use holdfast_control::set::{RootRef, SetAnswer, SetCommand};
use holdfast_host::unix_ms;
use holdfast_types::{LogId, ObjectId, SECTOR_BYTES, Sectors, Term, VolumeId, sync::LockExt};
use holdfast_volume::head::Covered;
use holdfast_volume::index::Memtable;
use holdfast_volume::map::{MapExtent, page_numbers, split_by_page};
use holdfast_volume::plan::batches;
use holdfast_volume::segment::SegmentBuilder;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

mod collect;
mod leaves;
mod map;
mod objects;
mod state;
#[cfg(test)]
mod tests;

use objects::seal_batch;
use state::{Changes, RETRY_PAUSE_MAX, UploadError, Written};
pub use state::{InLeaves, UploadSettings, Uploader};

/// Raw bytes that are opened, compressed and sealed in one call outside of the runtime's threads.
const BATCH_BYTES: u64 = 1 << 20;

/// Batches that are read from the journal ahead of the one being sealed.
const BATCHES_AHEAD: usize = 2;

/// Pause after a checkpoint that succeeded, and the first one after a failure, before it is doubled.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Maximum pause after errors that a retry is unlikely to fix: each attempt writes all pending data again (SPACE-G4).
/// After others it is [`RETRY_PAUSE_MAX`].
const LASTING_PAUSE_MAX: Duration = Duration::from_secs(120);

/// How often a waiting task checks whether an attempt is due or requested.
const LOOK: Duration = Duration::from_millis(250);

/// How long the buffers of segments stay after a checkpoint. While much is written, the next one begins sooner, and
/// fresh memory of their size would be mapped and cleared page by page.
const BODIES_KEPT: Duration = Duration::from_secs(5);

/// Frees the buffers of a checkpoint that fails, or is given up in the middle: dropped, because the set's stores were
/// changed. They would stay until the next one, which may be minutes away.
struct FreedUnlessDone<'a> {
    bodies: &'a Mutex<Vec<Vec<u8>>>,
    done: bool,
}

impl Drop for FreedUnlessDone<'_> {
    fn drop(&mut self) {
        if !self.done {
            self.bodies.locked().clear();
        }
    }
}

impl Uploader {
    /// Runs until stopped.
    pub fn run(mut self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut pause = FIRST_PAUSE;
            let (mut dirty_since, mut judged): (Option<Instant>, Option<Term>) = (None, None);
            let mut ended: Option<Instant> = None;
            loop {
                tokio::select! {
                    () = self.stop.cancelled() => return,
                    () = self.server.head.asked() => {}
                    () = tokio::time::sleep(pause.min(LOOK)) => {}
                }
                self.refresh();
                if ended.is_some_and(|ended| ended.elapsed() >= BODIES_KEPT) {
                    self.bodies().clear();
                    ended = None;
                }
                let Some(term) = self.server.leads() else {
                    (dirty_since, pause) = (None, FIRST_PAUSE);
                    self.host.note_unfinished(None);
                    continue;
                };
                self.judge_once(term, &mut judged).await;
                if !self.is_due(&mut dirty_since).await {
                    continue;
                }
                let _turn = tokio::select! {
                    turn = self.server.head.checkpoint_turn() => turn,
                    () = self.stop.cancelled() => return,
                };
                match self.attempt(term).await {
                    Ok(()) => {
                        (dirty_since, judged, pause) = (None, Some(term), FIRST_PAUSE);
                        ended = Some(Instant::now());
                        self.host.note_unfinished(None);
                    }
                    Err(UploadError::Stopping) => return,
                    Err(e) => {
                        self.note_failure(&e);
                        pause = next_pause(pause, &e);
                        tokio::select! {
                            () = self.stop.cancelled() => return,
                            () = self.rest(term, pause) => {}
                        }
                    }
                }
            }
        })
    }

    /// Whether a checkpoint should begin now. `dirty_since`: since when there is something to do.
    async fn is_due(&self, dirty_since: &mut Option<Instant>) -> bool {
        let (written, unfinished) = self.host.with(|m| {
            let (live, extents) = m.to_upload();
            (Written { bytes: m.data_bytes(), live, extents: extents as u64 }, m.sealed().is_some())
        });
        let due = written.bytes > 0 || self.collection_waits();
        if due {
            dirty_since.get_or_insert_with(Instant::now);
        }
        let old = dirty_since.is_some_and(|since| since.elapsed() >= self.settings.interval);
        // A checkpoint also frees a journal full of data that no lookup needs any more.
        let pressed = self.server.journal_pressed();
        // Always cleared: a request that stays would end each pause after a failure immediately.
        let wanted = self.server.head.take_wanted();
        let asked = wanted || unfinished || self.state_waits() || self.key_waits().await;
        asked || self.settings.is_enough(written) || old && due || pressed
    }

    /// One checkpoint, with the set's stores as they are now.
    async fn attempt(&self, term: Term) -> Result<(), UploadError> {
        let mut moves = self.server.switch.changes();
        moves.borrow_and_update();
        *self.current.place.locked() = Some(self.server.switch.pinned());
        // Stops any wait: for a deleted set's note that is never answered, or for stores no longer in use.
        tokio::select! {
            done = self.checkpoint(term) => done,
            Ok(()) = moves.changed() => Err(UploadError::Superseded),
            () = self.stop.cancelled() => Err(UploadError::Stopping),
        }
    }

    fn note_failure(&self, e: &UploadError) {
        if let UploadError::Map(e) | UploadError::Read(ReadError::Map(e)) = e {
            self.mapping.note_object_trouble(e);
        }
        holdfast_reached::reached!("upload: a checkpoint is not finished");
        tracing::warn!(set = %self.server.name, error = %e, "checkpoint not finished; starting again");
        self.host.note_unfinished(Some(e.to_string()));
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
        let mut freed = FreedUnlessDone { bodies: &self.current.bodies, done: false };
        let begun = self.server.command("a checkpoint's begin", &SetCommand::CheckpointBegin { term }).await?;
        let SetAnswer::CheckpointBegun { at } = begun else {
            let found = format!("{begun:?}");
            return Err(SetError::Answer { what: "a checkpoint's begin", found }.into());
        };
        let (sealed_at, memtable) = self.host.sealed().ok_or(UploadError::Superseded)?;
        if sealed_at != at {
            holdfast_reached::reached!("upload: another checkpoint has begun");
            return Err(UploadError::Superseded);
        }
        self.server.given_up().begin(at);
        let uploaded = async {
            // DATAKEY-Z2: a checkpoint must not seal under a lower key than its base root. Opening the root shows that
            //     key.
            if let Some(base) = self.host.with(|m| m.state().checkpoint.as_ref().map(|c| c.root)) {
                self.mapping.key.seen(self.mapping.shown(base).await?.key_id());
            }
            *self.current.sealing.locked() = Some(self.mapping.key.sealing());
            let changes = self.upload_segments(term, &memtable).await?;
            let segments_took = started.elapsed();
            Ok::<_, UploadError>((segments_took, self.upload_map(term, at, &memtable, changes).await?))
        };
        let (segments_took, (root_ref, root, moved)) = uploaded.await?;
        self.mapping.adopt_base(root_ref, &root);
        self.commit_head(term, at, at_unix_ms, root_ref).await?;
        let end = SetCommand::CheckpointEnd { term, begin: at, root: root_ref };
        self.server.command("a checkpoint's end", &end).await?;
        self.server.given_up().ended(at);
        self.note_garbage(root, memtable.is_empty() && !moved).await?;
        let (extents, bytes) = (memtable.extents(), memtable.data_bytes());
        metrics::counter!("holdfast_checkpoints_total", "set" => self.server.name.to_string()).increment(1);
        tracing::info!(set = %self.server.name, upto = %at, extents, bytes, ?segments_took, took = ?started.elapsed(), "checkpoint");
        freed.done = true;
        Ok(())
    }

    /// Steps 2 and 3. Reads the journal ahead of the sealing, and uploads sealed segments meanwhile. What is read is
    /// still sealed for the journal: a thread that may block opens it, not one that serves.
    async fn upload_segments(&self, term: Term, memtable: &Arc<Memtable>) -> Result<Changes, UploadError> {
        let mut changes = Changes::default();
        let mut puts = FuturesUnordered::new();
        let mut builder: Option<SegmentBuilder> = None;
        let mut fetched = stream::iter(batches(memtable, BATCH_BYTES))
            .map(|batch| self.reader.fetch_batch(batch))
            .buffered(BATCHES_AHEAD);
        while let Some(batch) = driving(&mut puts, fetched.try_next()).await?? {
            let open = builder.take().unwrap_or_else(|| self.new_segment(term));
            let sealing = holdfast_log::spawn_blocking(move || seal_batch(open, batch));
            let sealed = driving(&mut puts, sealing).await??;
            let (open, placed) = sealed.map_err(|odd| self.reader.odd_in_batch(&odd))?;
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
        let (object, raw_bytes, keep) = (open.object(), open.raw_bytes(), self.kept(open.stretches().iter().cloned()));
        let body = open.finish();
        changes.segments.push((object, body.len() as u64, Sectors(raw_bytes / SECTOR_BYTES)));
        self.put_segment(term, object, body, raw_bytes, keep)
    }

    /// Makes a recovery start from this checkpoint. Before its end, because the journal is purged only up to there.
    async fn commit_head(&self, term: Term, at: LogId, at_unix_ms: u64, root: RootRef) -> Result<(), UploadError> {
        let content = self.host.with(|m| content_at(m.begun(), at, root));
        let (epoch, content) = content.ok_or(UploadError::Superseded)?;
        let covered = Covered { upto: at, generation: self.server.head.life().generation, at_unix_ms };
        let place = self.place();
        let mut pause = FIRST_PAUSE;
        self.server.head.note_root(at, root);
        loop {
            self.server.head.note_here(&self.server.group, &self.server.host, Some(term));
            let outcome = tokio::select! {
                outcome = self.server.head.commit(&*place, term, covered, epoch, content.clone()) => outcome,
                () = self.stop.cancelled() => return Err(UploadError::Stopping),
            };
            match outcome {
                Ok(()) => return Ok(()),
                Err(e) if e.may_pass() && self.server.leading_ready() == Some(term) => {
                    holdfast_reached::reached!("upload: the head was not replaced at once");
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
