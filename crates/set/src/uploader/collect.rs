//! Collection within a checkpoint: copies the segments with the least data in use into new ones (ADR 0012).
//!
//! Copied are the parts of a victim that the pages of the last checkpoint name and the sealed memtable does not
//! replace. The new pages accept a move only if they still name the copied place (`volume::space`, SPACE-G2). Writes
//! after the begin are in the journal index, above any map. So a copy never overwrites a newer write.

use super::state::{LEAVES_AHEAD, PAGES_AHEAD, UploadError, Uploader};
use crate::mapping::{DAMAGED_TRIES, MapError, Pay};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use holdfast_seal::ObjectOpener;
use holdfast_types::sync::LockExt;
use holdfast_types::{Lba, ObjectId, SECTOR_BYTES, Sectors, Term, VolumeId};
use holdfast_volume::index::Memtable;
use holdfast_volume::map::{LeafOf, MapExtent, Objects, PageRef, PartialRoot, page_number};
use holdfast_volume::segment::{ExtentPlace, SegmentBuilder, SegmentError, Stretch, read_table};
use holdfast_volume::space::{
    Amplification, Move, MoveBudget, Run, Spared, open_run, packs_to_collect, packs_to_reseal, pages_of,
    percent_before, pieces_to_move, runs, segments_to_collect, segments_to_reseal,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

/// Bytes, before compression, that a checkpoint may copy even if little was written: an idle set also loses its
/// garbage.
const BUDGET_FLOOR: u64 = 64 << 20;

/// Time before another attempt to move data under an older key after one that found nothing to move: perhaps no store
/// answered then.
const RESEAL_AGAIN: Duration = Duration::from_secs(300);
/// Bytes that may be copied for each byte written. Enough to hold any target of 1.5 and above under uniform
/// overwriting, and usually a lower one.
const BUDGET_SHARE: u64 = 2;
/// Page packs may hold twice the bytes of their live pages: pages are small, and most checkpoints rewrite them anyway.
const PACKS_PERCENT: u32 = 200;

/// Maximum number of pages that one checkpoint rewrites because their packs are under an older data key.
const RESEALED_PAGES_MAX: u64 = 1024;

/// Time limit of one store answer that a move needs: a segment to move, the next page that may name it, or a leaf that
/// is to move or lists what moves.
pub(super) const SURVIVORS_LIMIT: Duration = Duration::from_secs(10);

/// Time limit of all pages that may name a segment: the limit above, plus this for each page. 16 MiB written in
/// scattered pieces of 8 KiB are in 2,000 pages. As [`PAGES_AHEAD`] are read concurrently, each page may take 0.6 s.
const PAGE_LIMIT: Duration = Duration::from_millis(20);

/// After this many timeouts one checkpoint moves nothing more.
pub(super) const UNREAD_MAX: u32 = 3;

/// Maximum number of moves in one checkpoint, exceeded at most by one segment's moves. Limits their memory until the
/// pages are written.
const MOVES_MAX: usize = 1 << 17;

/// The moves of a checkpoint.
#[derive(Default)]
pub(super) struct Collected {
    pub moves: BTreeMap<(VolumeId, u32), Vec<Move>>,
    pub segments: Vec<(ObjectId, u64, Sectors)>,
    /// Pages that are rewritten to empty their packs.
    pub pages: BTreeSet<(VolumeId, u32)>,
}

/// The open segment, and the runs that go into it next.
#[derive(Default)]
struct Filling {
    builder: Option<SegmentBuilder>,
    /// The stretches of its extents that go into the disk cache.
    keep: Vec<Stretch>,
}

/// Result of filling a segment: it is full, or the input ended.
struct Filled {
    open: SegmentBuilder,
    copied: Vec<(Run, Lba, ExtentPlace)>,
    left: std::vec::IntoIter<Run>,
    /// Runs that did not open.
    unopened: Vec<(Run, SegmentError)>,
}

/// Copies until the segment is full or the input ends.
fn fill(mut open: SegmentBuilder, opener: &ObjectOpener, segment: &[u8], mut left: std::vec::IntoIter<Run>) -> Filled {
    let (mut copied, mut unopened) = (Vec::new(), Vec::new());
    while !open.is_full()
        && let Some(run) = left.next()
    {
        match open_run(opener, segment, &run) {
            Ok(raw) => {
                let lba = run.lba();
                let place = open.push(run.volume, lba, &raw);
                copied.push((run, lba, place));
            }
            Err(e) => unopened.push((run, e)),
        }
    }
    Filled { open, copied, left, unopened }
}

impl Uploader {
    /// Copies the live data of the segments that are emptiest according to `base`. `coming`: the segments that this
    /// checkpoint has already written.
    pub(super) async fn collect(
        &self,
        term: Term,
        base: &PartialRoot,
        memtable: &Memtable,
        coming: &[(ObjectId, u64, Sectors)],
    ) -> Result<Collected, UploadError> {
        let mut collected = Collected::default();
        // After a rollback nothing is retired before a checkpoint has ended. That checkpoint comes first and needs no
        // extra space.
        if self.host.with(|m| m.state().rolled_back.is_some()) {
            // The next one collects, even if nobody writes: the snapshot's root may name garbage, and data under older
            // keys. Counts of spared segments are those of another root.
            self.collection.held.store(true, Ordering::Relaxed);
            self.spared().clear();
            return Ok(collected);
        }
        let written = memtable.data_bytes();
        // While writers wait for the journal, they also wait for this: copy only as much as they write.
        let pressed = self.server.journal_pressed();
        let budget = if pressed { written } else { BUDGET_FLOOR + BUDGET_SHARE * written };
        self.pages_to_rewrite(base, &mut collected).await?;
        let victims = self.victims(term, base, budget, coming);
        let copied_bytes = self.empty(term, base, memtable, &victims, &mut collected).await?;
        if !victims.is_empty() {
            let set = self.server.name.to_string();
            metrics::counter!("holdfast_space_moved_bytes_total", "set" => set).increment(copied_bytes);
            tracing::info!(set = %self.server.name, segments = victims.len(), copied_bytes, "collected");
        }
        Ok(collected)
    }

    /// Collects the pages whose packs are to be emptied: packs with much garbage, or under an older data key.
    async fn pages_to_rewrite(&self, base: &PartialRoot, collected: &mut Collected) -> Result<(), UploadError> {
        let key_id = self.sealing().key_id;
        // Cloning a root is cheap; going through its pages is not.
        let root = base.clone();
        let (packs, mut left, resealed) = holdfast_log::spawn_blocking(move || {
            let mut packs = packs_to_collect(&root, PACKS_PERCENT);
            let resealed = packs_to_reseal(&root, key_id, RESEALED_PAGES_MAX);
            packs.extend(&resealed);
            let left: Vec<_> = root.pages_here_in_packs(&packs).collect();
            (packs, left, resealed)
        })
        .await?;
        // Each pack has a page (MAP-M3), in a leaf in memory or in the store. Leaves in the store are not read for
        // moves that are not allowed yet.
        if !packs.is_empty() && !self.may_move() {
            self.collection.held.store(true, Ordering::Relaxed);
            return Ok(());
        }
        left.extend(self.pages_away_in(base, &packs).await?);
        for (volume, number, place) in left {
            collected.pages.insert((volume, number));
            if resealed.contains(&place.object) {
                // Charged for read and write, as for segments.
                self.budget().took(self.collection.begun.elapsed(), 2 * u64::from(place.sealed_len), 0);
            }
        }
        Ok(())
    }

    /// The segments to empty, within `budget` bytes. `coming`: as for [`Uploader::collect`].
    fn victims(
        &self,
        term: Term,
        base: &PartialRoot,
        budget: u64,
        coming: &[(ObjectId, u64, Sectors)],
    ) -> Vec<ObjectId> {
        let mut spared = self.spared();
        spared.begin(term, base);
        let coming_bytes = coming.iter().map(|(_, stored_bytes, _)| stored_bytes).sum();
        let percent = percent_before(Amplification::of(base), self.settings.target_percent, coming_bytes);
        let mut victims = segments_to_collect(base, percent, budget, &spared);
        // Adds segments under an older data key, even without garbage (ADR 0023).
        victims.extend(segments_to_reseal(base, self.sealing().key_id, budget, &victims, &spared));
        victims
    }

    /// Copies the live data of the victims, as far as the limits allow, and returns how many bytes that were.
    async fn empty(
        &self,
        term: Term,
        base: &PartialRoot,
        memtable: &Memtable,
        victims: &[ObjectId],
        collected: &mut Collected,
    ) -> Result<u64, UploadError> {
        let (mut filling, mut copied_bytes, mut moves, mut unread) = (Filling::default(), 0, 0, 0);
        for victim in victims {
            // Fetching pages may have taken long: writers that wait for the journal by now wait for this.
            let enough = moves > 0 && copied_bytes >= memtable.data_bytes();
            if moves >= MOVES_MAX || !self.may_empty_another(enough) {
                break;
            }
            // Reads wait for a store that refuses until an operator acts (R8). Moves must not: one object that cannot
            // be read (archived, denied) would block this and every later checkpoint.
            let emptied = match self.survivors(*victim, base, memtable, SURVIVORS_LIMIT).await {
                Ok(Some((segment, found))) => {
                    moves += found.len();
                    copied_bytes += found.iter().map(|run| run.sectors().0 * SECTOR_BYTES).sum::<u64>();
                    self.copy(term, *victim, segment, found, &mut filling, collected).await
                }
                // What the root counts was named by a page that was given up; or this checkpoint replaces all of it.
                Ok(None) => {
                    self.spared().note(base, *victim);
                    Ok(())
                }
                Err(e) => Err(e),
            };
            match emptied {
                Ok(()) => {}
                Err(e) if damaged(&e) => {
                    // R9: it stays where it is. A checkpoint must not fail for it, or the journal would fill up. If
                    // some of it moved, its count differs at the next checkpoint.
                    tracing::error!(
                        set = %self.server.name, segment = %victim, error = %e, "R9: a segment cannot be collected"
                    );
                    self.count_damaged();
                    self.spared().note(base, *victim);
                }
                Err(UploadError::Late) => {
                    tracing::warn!(
                        set = %self.server.name, segment = %victim, limit = ?SURVIVORS_LIMIT,
                        "cannot read a segment that should be moved, or the pages that may name it, from the store; \
                         it stays where it is"
                    );
                    unread += 1;
                    if unread == UNREAD_MAX {
                        break;
                    }
                }
                Err(e) => return Err(e),
            }
        }
        if let Some(open) = filling.builder.take() {
            self.close(term, open, std::mem::take(&mut filling.keep), collected).await?;
        }
        Ok(copied_bytes)
    }

    /// Whether the limits allow to empty another segment now. `enough`: as much is copied as was written.
    fn may_empty_another(&self, enough: bool) -> bool {
        if !self.may_move() {
            self.collection.held.store(true, Ordering::Relaxed);
            metrics::counter!("holdfast_space_held_total", "set" => self.server.name.to_string()).increment(1);
            tracing::debug!(
                set = %self.server.name,
                "the rest is moved later; \
                 limited by space.move_bytes_per_second and space.move_requests_per_second"
            );
            return false;
        }
        if enough && self.server.journal_pressed() {
            self.collection.held.store(true, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// R9: counts data that cannot be collected because of damage.
    pub(super) fn count_damaged(&self) {
        metrics::counter!("holdfast_space_damaged_total", "set" => self.server.name.to_string()).increment(1);
    }

    /// The pages in any of these packs whose leaves are not in memory. Reads each such leaf without keeping it. Reads
    /// nothing if there are no packs to empty. As with segments, an unreadable leaf does not block the checkpoint: what
    /// it lists stays where it is, and counted (MAP-M3).
    async fn pages_away_in(
        &self,
        base: &PartialRoot,
        packs: &BTreeSet<ObjectId>,
    ) -> Result<Vec<(VolumeId, u32, PageRef)>, UploadError> {
        let away: Vec<_> = if packs.is_empty() { Vec::new() } else { base.away().collect() };
        let mut leaves =
            stream::iter(away).map(|leaf| async move { (leaf, self.leaf_soon(&leaf).await) }).buffered(LEAVES_AHEAD);
        let (mut pages, mut unread) = (Vec::new(), 0);
        while let Some((leaf, found)) = leaves.next().await {
            tokio::task::consume_budget().await;
            let LeafOf::Pages { volume, .. } = leaf.of else { continue };
            match found {
                Ok(Ok(found)) => {
                    let found = found.pages_in_packs(packs).into_iter();
                    pages.extend(found.map(|(number, place)| (volume, number, place)));
                }
                Ok(Err(e)) if damaged(&e) => {
                    tracing::error!(
                        set = %self.server.name, %volume, error = %e,
                        "R9: what a leaf of the map lists cannot be collected"
                    );
                    self.count_damaged();
                }
                Ok(Err(e)) => return Err(e),
                Err(_) => {
                    tracing::warn!(
                        set = %self.server.name, pack = %leaf.at.object, limit = ?SURVIVORS_LIMIT,
                        "cannot read a leaf of the map from the store; its pages stay where they are"
                    );
                    unread += 1;
                    if unread == UNREAD_MAX {
                        break;
                    }
                }
            }
        }
        Ok(pages)
    }

    /// The live extents of `victim`, with the whole segment. Returns [`UploadError::Late`] if an object, with all
    /// attempts at it, takes longer than `limit`, or all together take longer than allowed. Holds at most
    /// [`PAGES_AHEAD`] pages in memory.
    async fn survivors(
        &self,
        victim: ObjectId,
        base: &PartialRoot,
        memtable: &Memtable,
        limit: Duration,
    ) -> Result<Option<(Bytes, Vec<Run>)>, UploadError> {
        let read = || async {
            let segment = self.mapping.segment(victim).await?;
            self.moved(segment.len() as u64);
            match read_table(&self.mapping.key.opener(victim), &segment) {
                Ok(table) => Ok((segment, table)),
                Err(e) => Err(bad(victim, &e)),
            }
        };
        let (segment, table) = within(limit, self.mapping.unspoilt(read)).await?;
        let pages = pages_of(&table);
        let end = Instant::now() + limit + PAGE_LIMIT * u32::try_from(pages.len()).unwrap_or(u32::MAX);
        let pay = |bytes| self.moved(bytes);
        let pay: Pay<'_> = &pay;
        let mut pages = stream::iter(pages)
            .map(|(volume, number)| async move {
                let page = self.mapping.page_in(base, volume, number, pay).await?;
                Ok::<_, MapError>((volume, page))
            })
            .buffered(PAGES_AHEAD);
        let wait = || limit.min(end.saturating_duration_since(Instant::now()));
        let mut found = Vec::new();
        while let Some((volume, page)) = within(wait(), pages.try_next()).await? {
            // As in the map's own loop: all pages may be in memory, and the loop would never yield.
            tokio::task::consume_budget().await;
            let Some(page) = page else { continue };
            found.extend(runs(volume, pieces_to_move(&page, victim, memtable)));
        }
        Ok((!found.is_empty()).then_some((segment, found)))
    }

    /// Opens and seals outside of the runtime's threads, and closes each full segment. What does not open is fetched
    /// again, like all wrong bytes. Otherwise one bit flipped in transit would spare the segment for the term, and the
    /// set would keep its garbage and its data key (DATAKEY-Z3). After an error, the rest has moved all the same.
    async fn copy(
        &self,
        term: Term,
        victim: ObjectId,
        mut segment: Bytes,
        found: Vec<Run>,
        filling: &mut Filling,
        collected: &mut Collected,
    ) -> Result<(), UploadError> {
        let (mut left, mut tries) = (found.into_iter(), 1);
        let mut unopened: Vec<(Run, SegmentError)> = Vec::new();
        loop {
            let open = filling.builder.take().unwrap_or_else(|| self.new_segment(term));
            let (opener, bytes) = (self.mapping.key.opener(victim), segment.clone());
            let done = holdfast_log::spawn_blocking(move || fill(open, &opener, &bytes, left)).await?;
            let object = done.open.object();
            for (run, lba, place) in done.copied {
                // Data cached under its old name must not be fetched again under the new one. Data that is not cached
                // was not read for long: it would push out useful data.
                if self.settings.keep_uploaded && run.from.iter().any(|piece| self.mapping.is_at_hand(piece)) {
                    filling.keep.extend_from_slice(done.open.stretches_of(place.number));
                }
                let to = MapExtent::whole(object, lba, place);
                // A run never crosses a page boundary (PLAN-P3).
                let key = (run.volume, page_number(lba));
                collected.moves.entry(key).or_default().push(Move { from: run.from, to });
            }
            unopened.extend(done.unopened);
            if done.open.is_full() {
                self.close(term, done.open, std::mem::take(&mut filling.keep), collected).await?;
                left = done.left;
                continue;
            }
            filling.builder = Some(done.open);
            let Some((_, e)) = unopened.first() else { return Ok(()) };
            if tries == DAMAGED_TRIES {
                return Err(bad(victim, e).into());
            }
            self.mapping.note_spoilt("segment", victim, &e.to_string());
            tries += 1;
            segment = within(SURVIVORS_LIMIT, self.mapping.segment(victim)).await?;
            self.moved(segment.len() as u64);
            let again: Vec<Run> = std::mem::take(&mut unopened).into_iter().map(|(run, _)| run).collect();
            left = again.into_iter();
        }
    }

    async fn close(
        &self,
        term: Term,
        open: SegmentBuilder,
        keep: Vec<Stretch>,
        collected: &mut Collected,
    ) -> Result<(), UploadError> {
        if open.extents() == 0 {
            return Ok(());
        }
        let (object, raw_bytes) = (open.object(), open.raw_bytes());
        let body = open.finish();
        collected.segments.push((object, body.len() as u64, Sectors(raw_bytes / SECTOR_BYTES)));
        self.moved(body.len() as u64);
        self.put_segment(term, object, body, raw_bytes, keep).await
    }

    pub(super) fn spared(&self) -> MutexGuard<'_, Spared> {
        self.collection.spared.locked()
    }

    fn budget(&self) -> MutexGuard<'_, MoveBudget> {
        self.collection.budget.locked()
    }

    /// Whether the budget allows another move.
    fn may_move(&self) -> bool {
        self.budget().allows(self.collection.begun.elapsed())
    }

    /// Charges `bytes` that collection read or will write, or a part of the map fetched for it.
    fn moved(&self, bytes: u64) {
        self.budget().took(self.collection.begun.elapsed(), bytes, 1);
    }

    /// Whether a checkpoint is needed without writes: a snapshot waits for one, or the store's head does not include a
    /// rollback.
    pub(super) fn state_waits(&self) -> bool {
        self.host.with(|m| !m.state().pending.is_empty() || m.state().rolled_back.is_some())
    }

    /// Whether the data key requires a checkpoint: the current root is under another key, or data under older keys was
    /// not yet looked for in this process.
    pub(super) async fn key_waits(&self) -> bool {
        let ring = self.mapping.key.ring();
        if !ring.is_changing() {
            return false;
        }
        let current = self.host.with(|m| m.state().current_root());
        // A set without a root gets one as soon as the new key seals, so that every later root is under that key or a
        // newer one (DATAKEY-Z2).
        let Some(current) = current else { return ring.seals == ring.newest() };
        match self.mapping.shown(current).await {
            Ok(root) if root.key_id() < ring.seals => true,
            Ok(root) => {
                let mut looked = self.collection.resealing.locked();
                let again = looked.is_none_or(|(key, at)| key != root.key_id() || at.elapsed() >= RESEAL_AGAIN);
                if root.keys_needed().len() > 1 && again {
                    *looked = Some((root.key_id(), Instant::now()));
                    self.collection.due.store(true, Ordering::Relaxed);
                }
                false
            }
            Err(_) => false,
        }
    }

    /// Whether there was too much garbage after the last checkpoint and the budget allows moves.
    pub(super) fn collection_waits(&self) -> bool {
        self.collection.due.load(Ordering::Relaxed) && self.may_move()
    }

    /// Called after a checkpoint. `idle` means that nothing was written or moved in it, so that another one would not
    /// help.
    pub(super) async fn note_garbage(&self, root: Arc<PartialRoot>, idle: bool) -> Result<(), UploadError> {
        let more = self.has_garbage(Objects::clone(&root)).await?;
        let held = self.collection.held.swap(false, Ordering::Relaxed);
        self.collection.due.store(more && (!idle || held), Ordering::Relaxed);
        Ok(())
    }

    /// Checks once in each term, without a checkpoint, whether the previous leader left more garbage than the target
    /// allows. Without further writes, no checkpoint would find it. If so, one checkpoint follows, and
    /// [`Uploader::note_garbage`] decides as usual; if that one could do nothing, no other follows.
    ///
    /// Never reads the store: waits until the root is in memory. `SpaceKeeper` loads it at the beginning of each
    /// leadership, outside of the runtime's threads. If the root cannot be read, nothing is done.
    pub(super) async fn judge_once(&self, term: Term, judged: &mut Option<Term>) {
        if *judged == Some(term) {
            return;
        }
        let current = self.host.with(|m| m.state().current_root());
        let Some(objects) = current.and_then(|current| self.mapping.names_here(current)) else { return };
        *judged = Some(term);
        self.spared().begin(term, &objects);
        match self.has_garbage(objects).await {
            Ok(true) => self.collection.due.store(true, Ordering::Relaxed),
            Ok(false) => {}
            Err(error) => tracing::debug!(set = %self.server.name, %error, "could not check for garbage"),
        }
    }

    /// Whether a root names more garbage than the target allows, or data under an older key, apart from segments that
    /// emptying did not help.
    async fn has_garbage(&self, root: Objects) -> Result<bool, UploadError> {
        let key_id = self.mapping.key.sealing().key_id;
        let of_segments = {
            let spared = self.spared();
            !segments_to_collect(&root, self.settings.target_percent, 1, &spared).is_empty()
                || !segments_to_reseal(&root, key_id, 1, &[], &spared).is_empty()
        };
        let of_packs =
            move || !packs_to_reseal(&root, key_id, 1).is_empty() || !packs_to_collect(&root, PACKS_PERCENT).is_empty();
        Ok(of_segments || holdfast_log::spawn_blocking(of_packs).await?)
    }
}

/// The store's answer, or [`UploadError::Late`] after `limit`.
async fn within<T>(limit: Duration, asked: impl Future<Output = Result<T, MapError>>) -> Result<T, UploadError> {
    match tokio::time::timeout(limit, asked).await {
        Ok(answer) => Ok(answer?),
        Err(_) => Err(UploadError::Late),
    }
}

fn bad(object: ObjectId, error: &SegmentError) -> MapError {
    MapError::Bad { what: "segment", object, reason: error.to_string() }
}

/// Another request would give the same result.
pub(super) fn damaged(error: &UploadError) -> bool {
    match error {
        UploadError::Map(MapError::Bad { .. }) => true,
        UploadError::Map(MapError::Store(e)) => !e.may_pass(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
