//! Brings what the leader uploads into the disk cache of a gateway that follows, so that reads after a takeover find it there (ADR 0033). What is read, and what of
//! it is kept, is decided by `volume::warm`; here is the task that reads.
//!
//! ```text
//!   a checkpoint's end is applied here ─▶ the new root ─▶ what it names and the last one did not:
//!       whole segments and page packs, one GET each, one at a time over all sets, at so many bytes a second ─▶ the cache's disk, still sealed
//! ```
//! A hint from end to end: it ends at once where this gateway leads or stops, what fails is left out without a word, and nobody waits for it. Where nothing is
//! uploaded, nothing is asked of the store.

use crate::mapping::{MapError, Mapping, aside};
use crate::server::SetServer;
use bytes::Bytes;
use holdfast_control::set::{RootRef, StoredKind};
use holdfast_store::keys;
use holdfast_types::{LogId, ObjectId};
use holdfast_volume::map::{Root, read_any_pack};
use holdfast_volume::segment::read_table;
use holdfast_volume::warm::{Begun, Keep, Plan, Since, Wanted, keep, since};
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Bytes that are handed to the cache's disk in one go: what it does not take in time of one is lost, not what comes after.
const HAND_BYTES: u64 = 2 << 20;

/// Between two looks at a store that is in trouble.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);

/// Part of the cache's disk that one new root may fill: what comes after it must not push it out at once.
const DISK_SHARE: u64 = 2;

/// What all sets of a gateway share: one reads at a time, so that memory is bounded by one segment.
#[derive(Debug)]
pub struct Warmth {
    bytes_per_second: u64,
    most: u64,
    turn: tokio::sync::Mutex<()>,
}

impl Warmth {
    /// So many bytes a second for a cache of `disk_bytes` on disk. 0 of either: nothing is read.
    pub fn new(bytes_per_second: u64, disk_bytes: u64) -> Self {
        let bytes_per_second = if disk_bytes > 0 { bytes_per_second } else { 0 };
        Self { bytes_per_second, most: disk_bytes / DISK_SHARE, turn: tokio::sync::Mutex::default() }
    }

    /// Whether anything is to be read at all.
    pub fn is_wanted(&self) -> bool {
        self.bytes_per_second > 0
    }

    /// How long so many bytes may take.
    fn time_for(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.max(1) as f64)
    }
}

/// What is remembered from one checkpoint to the next.
#[derive(Debug, Default)]
struct Past {
    last: Option<RootRef>,
    begun: Option<Begun>,
}

/// What one new root leads to.
struct Step {
    old: Arc<Root>,
    last: Option<RootRef>,
    begun: Option<Begun>,
    upto: LogId,
}

/// What of a step is not brought in yet; counted when the step ends, however it does.
struct LeftOut {
    set: String,
    bytes: u64,
}

impl Drop for LeftOut {
    fn drop(&mut self) {
        metrics::counter!("holdfast_warm_left_out_bytes_total", "set" => self.set.clone()).increment(self.bytes);
    }
}

/// See the module.
pub struct Warmer {
    server: Arc<SetServer>,
    mapping: Arc<Mapping>,
    warmth: Arc<Warmth>,
    stop: CancellationToken,
}

impl Warmer {
    /// For `server`'s set.
    pub fn new(server: Arc<SetServer>, mapping: Arc<Mapping>, warmth: Arc<Warmth>, stop: CancellationToken) -> Self {
        Self { server, mapping, warmth, stop }
    }

    /// Runs until told to stop.
    pub async fn run(self) {
        let host = self.server.host.clone();
        let mut leadership = self.server.group.leadership();
        let (root, _) = self.roots();
        let mut past = Past { last: root, begun: None };
        loop {
            // Before the look: what changes after it is not missed.
            let changed = host.checkpoint().notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            leadership.borrow_and_update();
            let look = async {
                self.look(&mut past).await;
                changed.await;
            };
            tokio::select! {
                () = self.stop.cancelled() => return,
                led = leadership.changed() => if led.is_err() { return },
                () = look => {}
            }
        }
    }

    /// The current root, and the checkpoint that is under way over it, as of one moment.
    fn roots(&self) -> (Option<RootRef>, Option<Begun>) {
        self.server.host.with(|m| {
            let root = m.state().checkpoint.as_ref().map(|checkpoint| checkpoint.root);
            let begun = m.sealed().map(|(at, memtable)| Begun { at, over: root, memtable });
            (root, begun)
        })
    }

    /// Does what a new root leads to. Dropped at any point where leadership changes: the next look goes on from the root that was gone through last.
    async fn look(&self, past: &mut Past) {
        loop {
            let (root, under_way) = self.roots();
            let leads = self.server.group.leadership().borrow().mine;
            let Some(at) = root.filter(|at| Some(*at) != past.last && !leads) else {
                // What is uploaded here is kept here.
                past.last = root;
                // Of a leader only its uploader holds on to the index.
                past.begun = under_way.filter(|_| !leads);
                return;
            };
            let step = self.follow(at, past.last, past.begun.clone());
            match tokio::time::timeout(self.limit(), step).await {
                Ok(Ok(true)) => {
                    metrics::counter!("holdfast_warm_checkpoints_total", "set" => self.name()).increment(1);
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::debug!(set = %self.server.name, %error, "a checkpoint is not brought in"),
                Err(_) => tracing::debug!(set = %self.server.name, "a checkpoint is not brought in: too slow"),
            }
            // Only now: what was begun and is dropped is gone through again, and most of it is here then.
            *past = Past { last: Some(at), begun: None };
        }
    }

    /// One root may take twice the time of the most that is read for it, and a minute: a store that hangs must not hold up all that comes after.
    fn limit(&self) -> Duration {
        self.warmth.time_for(self.warmth.most) * 2 + Duration::from_secs(60)
    }

    fn name(&self) -> String {
        self.server.name.to_string()
    }

    /// Whether it was compared with the one before, and gone through.
    async fn follow(&self, at: RootRef, last: Option<RootRef>, begun: Option<Begun>) -> Result<bool, MapError> {
        self.well().await;
        // Before its successor is kept in its place.
        let before = match last {
            Some(last) => self.root(last).await.ok(),
            None => None,
        };
        let new = self.root(at).await?;
        let upto = new.upto;
        let old = match since(last, begun.as_ref(), upto) {
            Since::Root(_) => before,
            Since::Nothing => Some(Arc::new(Root::default())),
            Since::Unknown => None,
        };
        self.mapping.follow_root(last, at, new.clone());
        let Some(old) = old else { return Ok(false) };
        let (earlier, most) = (old.clone(), self.warmth.most);
        // It goes through all pages of both, and heartbeats do not wait.
        let plan = aside(move || Plan::between(&earlier, &new, most)).await?;
        let mut left = LeftOut { set: self.name(), bytes: plan.left_out_bytes };
        left.bytes += plan.objects.iter().map(|wanted| wanted.bytes).sum::<u64>();
        let step = Step { old, last, begun, upto };
        for wanted in plan.objects {
            if wanted.object.kind == StoredKind::Segment && self.mapping.has_begin_of(wanted.object.object) {
                left.bytes -= wanted.bytes;
                continue;
            }
            // Each request would take as long as a store that is away lets it.
            self.well().await;
            match self.bring(wanted, &step).await {
                Ok(()) => left.bytes -= wanted.bytes,
                Err(error) => {
                    tracing::debug!(set = %self.server.name, object = %wanted.object.object, %error, "not brought in");
                }
            }
        }
        Ok(true)
    }

    /// Waits until the store answers; how long, is its caller's business.
    async fn well(&self) {
        while self.mapping.in_trouble() {
            tokio::time::sleep(TROUBLE_PAUSE).await;
        }
    }

    /// From memory, or paid for.
    async fn root(&self, at: RootRef) -> Result<Arc<Root>, MapError> {
        if self.mapping.has_root(at) {
            return self.mapping.root_if_easy(at).await;
        }
        self.paid(at.bytes, self.mapping.root_if_easy(at)).await
    }

    /// In turn with all sets of the gateway, and at their pace.
    async fn paid<T>(&self, bytes: u64, read: impl Future<Output = Result<T, MapError>>) -> Result<T, MapError> {
        let _turn = self.warmth.turn.lock().await;
        metrics::counter!("holdfast_warm_requests_total", "set" => self.name()).increment(1);
        let done = read.await?;
        metrics::counter!("holdfast_warm_bytes_total", "set" => self.name()).increment(bytes);
        tokio::time::sleep(self.warmth.time_for(bytes)).await;
        Ok(done)
    }

    async fn bring(&self, wanted: Wanted, step: &Step) -> Result<(), MapError> {
        let (set, object) = (self.mapping.key.set, wanted.object.object);
        let key = match wanted.object.kind {
            StoredKind::Segment => keys::segment(set, object),
            StoredKind::Pages => keys::map_pack(set, object),
            StoredKind::Root => return Ok(()),
        };
        let read = async {
            let body = self.mapping.store.get(&key).await?;
            let parts = match wanted.object.kind {
                StoredKind::Segment => extents(&self.mapping, object, &body, step).await?,
                _ => pages(&self.mapping, object, &body)?,
            };
            for hand in hands(parts) {
                self.mapping.keep_sealed(object, &body, hand).await;
            }
            Ok(())
        };
        self.paid(wanted.bytes, read).await
    }
}

/// The table is opened, that is authenticated; the extents are when they are read (C2).
async fn extents(
    mapping: &Mapping,
    object: ObjectId,
    body: &Bytes,
    step: &Step,
) -> Result<Vec<(u32, Range<u64>)>, MapError> {
    let bad = |reason| MapError::Bad { what: "segment", object, reason };
    let table = read_table(&mapping.key.opener(object), body).map_err(|e| bad(e.to_string()))?;
    let keep = keep(step.begun.as_ref(), step.last, step.upto, &table);
    let mut parts = Vec::with_capacity(table.len());
    for entry in table {
        let place = entry.place;
        let wanted = match keep {
            Keep::All => true,
            Keep::AtHand => mapping.was_at_hand(&step.old, entry.volume, entry.lba, place.sectors()).await,
        };
        if wanted {
            parts.push((place.number, place.range()));
        }
    }
    Ok(parts)
}

fn pages(mapping: &Mapping, object: ObjectId, body: &Bytes) -> Result<Vec<(u32, Range<u64>)>, MapError> {
    let bad = |reason| MapError::Bad { what: "page pack", object, reason };
    let table = read_any_pack(&mapping.key.opener(object), body).map_err(|e| bad(e.to_string()))?;
    Ok(table.places())
}

/// In pieces of [`HAND_BYTES`], or of one part.
fn hands(parts: Vec<(u32, Range<u64>)>) -> Vec<Vec<(u32, Range<u64>)>> {
    let mut hands: Vec<Vec<_>> = Vec::new();
    let mut bytes = HAND_BYTES;
    for (number, range) in parts {
        let more = range.end - range.start;
        if bytes + more > HAND_BYTES {
            hands.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(hand) = hands.last_mut() {
            hand.push((number, range));
        }
    }
    hands
}

#[cfg(test)]
mod tests;
