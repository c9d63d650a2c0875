//! Copies newly uploaded data into the disk cache of a follower, so that reads after a takeover find it there (ADR
//! 0033). `volume::warm` decides what is read and what is kept; this task reads.
//!
//! ```text
//!   a checkpoint's end is applied here ─▶ the new root ─▶ objects that it names and the last one did not:
//!       whole segments and page packs, one GET each, one at a time over all sets, limited in bytes per second ─▶ the disk cache, still sealed
//! ```
//! All of this is a hint: it ends at once if this gateway leads or stops, failures are skipped silently, and nothing
//! waits for it. Without uploads, it sends no requests to the store.

use crate::mapping::{MapError, Mapping, aside};
use crate::server::SetServer;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_control::set::{RootRef, StoredKind};
use holdfast_store::keys;
use holdfast_types::{LogId, ObjectId};
use holdfast_volume::map::{Root, read_any_pack};
use holdfast_volume::segment::{Stretch, read_table, stretches};
use holdfast_volume::warm::{Begun, Keep, Plan, Since, Wanted, keep, since};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Bytes passed to the disk cache in one call: what it does not accept in time is lost, but not the next piece.
const HAND_BYTES: u64 = 2 << 20;

/// Time between two checks of a store with problems.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);

/// A new root may fill this part (1/n) of the disk cache: the next one must not push it out at once.
const DISK_SHARE: u64 = 2;

/// State shared by all sets of a gateway: one of them reads at a time, so that memory is limited to one segment.
#[derive(Debug)]
pub struct Warmth {
    bytes_per_second: u64,
    most: u64,
    turn: tokio::sync::Mutex<()>,
}

impl Warmth {
    /// The limit in bytes per second, for a cache of `disk_bytes` on disk. If either is 0, nothing is read.
    pub fn new(bytes_per_second: u64, disk_bytes: u64) -> Self {
        let bytes_per_second = if disk_bytes > 0 { bytes_per_second } else { 0 };
        Self { bytes_per_second, most: disk_bytes / DISK_SHARE, turn: tokio::sync::Mutex::default() }
    }

    /// Whether anything should be read.
    pub fn is_wanted(&self) -> bool {
        self.bytes_per_second > 0
    }

    /// The time that this many bytes should take.
    fn time_for(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.max(1) as f64)
    }
}

/// State from one checkpoint to the next.
#[derive(Debug, Default)]
struct Past {
    last: Option<RootRef>,
    begun: Option<Begun>,
}

/// The work for one new root.
struct Step {
    old: Arc<Root>,
    last: Option<RootRef>,
    begun: Option<Begun>,
    upto: LogId,
}

/// Objects of a step that are not cached yet; counted at any end of the step.
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
    /// Creates the warmer for `server`'s set.
    pub fn new(server: Arc<SetServer>, mapping: Arc<Mapping>, warmth: Arc<Warmth>, stop: CancellationToken) -> Self {
        Self { server, mapping, warmth, stop }
    }

    /// Runs until stopped.
    pub fn run(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let host = self.server.host.clone();
            let mut leadership = self.server.group.leadership();
            let (root, _) = self.roots();
            let mut past = Past { last: root, begun: None };
            loop {
                // Registered before the check, so that no later change is missed.
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
        })
    }

    /// The current root and the running checkpoint, as of one moment.
    fn roots(&self) -> (Option<RootRef>, Option<Begun>) {
        self.server.host.with(|m| {
            let root = m.state().checkpoint.as_ref().map(|checkpoint| checkpoint.root);
            let begun = m.sealed().map(|(at, memtable)| Begun { at, over: root, memtable });
            (root, begun)
        })
    }

    /// Does the work for a new root. Dropped at any point when leadership changes: the next call continues from the
    /// last finished root.
    async fn look(&self, past: &mut Past) {
        loop {
            let (root, under_way) = self.roots();
            let leads = self.server.group.leadership().borrow().mine;
            let Some(at) = root.filter(|at| Some(*at) != past.last && !leads) else {
                // The leader's own uploads are already cached here.
                past.last = root;
                // At the leader, only the uploader keeps a reference to the index.
                past.begun = under_way.filter(|_| !leads);
                return;
            };
            let step = self.follow(at, past.last, past.begun.clone());
            match tokio::time::timeout(self.limit(), step).await {
                Ok(Ok(true)) => {
                    metrics::counter!("holdfast_warm_checkpoints_total", "set" => self.name()).increment(1);
                }
                Ok(Ok(false)) => {}
                Ok(Err(error)) => tracing::debug!(set = %self.server.name, %error, "a checkpoint was not cached"),
                Err(_) => tracing::debug!(set = %self.server.name, "a checkpoint was not cached: too slow"),
            }
            // Only now: work that was dropped is repeated, and most of the data is cached by then.
            *past = Past { last: Some(at), begun: None };
        }
    }

    /// One root may take twice the time of its largest allowed amount, plus a minute: a hanging store must not block
    /// all later roots.
    fn limit(&self) -> Duration {
        self.warmth.time_for(self.warmth.most) * 2 + Duration::from_secs(60)
    }

    fn name(&self) -> String {
        self.server.name.to_string()
    }

    /// Compares the root with the previous one and reads the difference. Returns whether it finished.
    async fn follow(&self, at: RootRef, last: Option<RootRef>, begun: Option<Begun>) -> Result<bool, MapError> {
        self.well().await;
        // Read before its successor replaces it in memory.
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
        // Goes through all pages of both, which takes longer than heartbeats may wait.
        let plan = aside(move || Plan::between(&earlier, &new, most)).await?;
        let mut left = LeftOut { set: self.name(), bytes: plan.left_out_bytes };
        left.bytes += plan.objects.iter().map(|wanted| wanted.bytes).sum::<u64>();
        let step = Step { old, last, begun, upto };
        for wanted in plan.objects {
            if wanted.object.kind == StoredKind::Segment && self.mapping.has_begin_of(wanted.object.object) {
                left.bytes -= wanted.bytes;
                continue;
            }
            // With an unavailable store, each request would run into its timeout.
            self.well().await;
            match self.bring(wanted, &step).await {
                Ok(()) => left.bytes -= wanted.bytes,
                Err(error) => {
                    tracing::debug!(set = %self.server.name, object = %wanted.object.object, %error, "not cached");
                }
            }
        }
        Ok(true)
    }

    /// Waits until the store answers; the caller limits the time.
    async fn well(&self) {
        while self.mapping.in_trouble() {
            tokio::time::sleep(TROUBLE_PAUSE).await;
        }
    }

    /// From memory, or charged.
    async fn root(&self, at: RootRef) -> Result<Arc<Root>, MapError> {
        if self.mapping.has_root(at) {
            return self.mapping.root_if_easy(at).await;
        }
        self.paid(at.bytes, self.mapping.root_if_easy(at)).await
    }

    /// Waits for its turn among the gateway's sets, and for the limit of bytes per second.
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

/// The table is opened, which authenticates it, and so are the lengths of each extent's blocks; the blocks are
/// authenticated when they are read (CACHE-C2).
async fn extents(mapping: &Mapping, object: ObjectId, body: &Bytes, step: &Step) -> Result<Vec<Stretch>, MapError> {
    let bad = |reason| MapError::Bad { what: "segment", object, reason };
    let opener = mapping.key.opener(object);
    let table = read_table(&opener, body).map_err(|e| bad(e.to_string()))?;
    let keep = keep(step.begun.as_ref(), step.last, step.upto, &table);
    let mut parts = Vec::with_capacity(table.len());
    for entry in table {
        let place = entry.place;
        let wanted = match keep {
            Keep::All => true,
            Keep::AtHand => mapping.was_at_hand(&step.old, entry.volume, entry.lba, place.sectors()).await,
        };
        if wanted {
            let range = place.range();
            // The table says that its extents lie before it.
            let sealed = &body[range.start as usize..range.end as usize];
            parts.extend(stretches(&opener, &entry, sealed).map_err(|e| bad(e.to_string()))?);
        }
    }
    Ok(parts)
}

fn pages(mapping: &Mapping, object: ObjectId, body: &Bytes) -> Result<Vec<Stretch>, MapError> {
    let bad = |reason| MapError::Bad { what: "page pack", object, reason };
    let table = read_any_pack(&mapping.key.opener(object), body).map_err(|e| bad(e.to_string()))?;
    Ok(table.places().into_iter().map(Stretch::from).collect())
}

/// Groups parts into pieces of [`HAND_BYTES`], or of one part.
fn hands(parts: Vec<Stretch>) -> Vec<Vec<Stretch>> {
    let mut hands: Vec<Vec<_>> = Vec::new();
    let mut bytes = HAND_BYTES;
    for part in parts {
        let more = part.bytes();
        if bytes + more > HAND_BYTES {
            hands.push(Vec::new());
            bytes = 0;
        }
        bytes += more;
        if let Some(hand) = hands.last_mut() {
            hand.push(part);
        }
    }
    hands
}

#[cfg(test)]
mod tests;
