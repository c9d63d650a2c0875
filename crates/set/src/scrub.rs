//! Reads all objects of a set slowly in the background, at the gateway that leads it, with the checks of `holdfast
//! verify` (R9).
//!
//! ```text
//!   due or requested ─▶ root ─▶ page after page: its extents, each opened and authenticated
//!                          ▲                                      │ ─▶ data of snapshots, then of clones ─▶ complete
//!                          └── the newest root for every few pages ┘   (a page replaced meanwhile is read in its new version)
//! ```
//! A large root is read one leaf at a time (`leaves`). An object that does not open is reported with everything that
//! depends on it, and the round continues after it. Only a root whose object does not open ends the reading of its
//! target.
//!
//! With several stores, one round reads the copies in one of them, and the next round those in the next. While that
//! store has problems, another one's copies are read. Bad copies are reported to the repair (ADR 0018).
//!
//! The bytes per second are limited. The scrub pauses while the store has problems or writers are slowed down, and
//! continues in small steps while the set is busy. Its position is in a file of the data directory: a restart continues
//! there, another gateway begins with its own.

mod brake;
mod leaves;
mod state;

pub use crate::boards::{ScrubBoard, Shown, book};
pub use state::{ScrubSettings, Scrubber};

use crate::mapping::in_trouble;
use crate::roots::Known;
use crate::verify::{Checked, Damage, Subject, Throttle, check_page, copy_of};
use book::{Place, Target};
use futures_util::future::BoxFuture;
use holdfast_control::set::{Pin, RootRef, SetState};
use holdfast_host::unix_ms;
use holdfast_store::StoreError;
use holdfast_types::sync::LockExt;
use holdfast_types::{Name, SetId, VolumeId};
use holdfast_volume::map::PageRef;
use leaves::{Look, Next, Reads};
use state::{AGAIN, DAMAGED_TRIES};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Time between two checks for work.
const TURN: Duration = Duration::from_secs(1);
/// Time between two writes of the position to disk: a restart reads this much twice.
const NOTE_EVERY: Duration = Duration::from_secs(30);

/// Result of a turn that was not finished.
enum Turn {
    /// Continue immediately.
    On,
    /// The store failed, or a place moved: try later.
    Later,
}

impl Scrubber {
    /// Runs until stopped.
    pub fn run(mut self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let stop = self.stop.clone();
            let mut pause = TURN;
            loop {
                tokio::select! {
                    () = stop.cancelled() => return,
                    () = self.server.scrub.wake.notified() => {}
                    () = tokio::time::sleep(pause) => {}
                }
                pause = TURN;
                self.refresh();
                if self.settings.bytes_per_second == 0 || self.server.leads().is_none() {
                    self.root = None;
                    continue;
                }
                let now = unix_ms();
                if self.server.scrub.wanted.swap(false, Ordering::AcqRel) {
                    self.book.begin(now);
                }
                self.book.keep_time(now, self.settings.interval);
                if self.book.round.is_some() {
                    let turn = tokio::select! {
                        () = stop.cancelled() => { self.note(true); return }
                        turn = self.turn() => turn,
                    };
                    pause = if matches!(turn, Turn::On) { Duration::ZERO } else { AGAIN };
                } else {
                    self.root = None;
                }
                self.publish();
                self.note(false);
            }
        })
    }

    fn publish(&self) {
        let mut shown = self.server.scrub.shown.locked();
        shown.book = self.book.clone();
        shown.pages = self.pages;
        shown.store = self.copy_read();
        drop(shown);
        let set = self.server.name.to_string();
        metrics::gauge!("holdfast_scrub_running", "set" => set.clone())
            .set(f64::from(u8::from(self.book.round.is_some())));
        metrics::gauge!("holdfast_scrub_damaged", "set" => set.clone()).set(self.book.known().total as f64);
        metrics::gauge!("holdfast_scrub_complete_timestamp_seconds", "set" => set)
            .set(self.book.complete_unix_ms as f64 / 1e3);
    }

    /// Saves the position. If it is lost or not written, a part is read twice.
    fn note(&mut self, now: bool) {
        if !now && self.noted.is_some_and(|at| at.elapsed() < NOTE_EVERY) {
            return;
        }
        self.noted = Some(Instant::now());
        let beside = self.file.with_extension("new");
        let write = || -> std::io::Result<()> {
            std::fs::write(&beside, serde_json::to_vec(&self.book)?)?;
            std::fs::rename(&beside, &self.file)
        };
        if let Err(error) = write() {
            tracing::debug!(file = %self.file.display(), %error, "could not save the position of the scrub");
        }
    }

    /// Root and volumes of a target as the set has them now; `None` if the target does not exist or is empty.
    fn place_of(&self, target: &Target) -> Option<(RootRef, Vec<(VolumeId, Name)>)> {
        self.server.host.with(|m| {
            let state = m.state();
            let (root, volumes) = match target {
                Target::Now => (state.current_root()?, &state.volumes),
                Target::Snapshot(name) => state.snapshots.get(name).map(|s| (s.root, &s.volumes))?,
                // Volumes are known by id, whatever their names were then; a volume deleted since is reported by its
                // number.
                Target::Clone(clone) => (pinned_alone(state).find(|pin| pin.clone == *clone)?.root, &state.volumes),
            };
            Some((root, volumes.iter().map(|(id, volume)| (*id, volume.name.clone())).collect()))
        })
    }

    fn subject(&self, volumes: Vec<(VolumeId, Name)>) -> Subject {
        let (set, key) = (self.server.id, self.mapping.key.clone());
        let at = self.throttle.copy.load(Ordering::Relaxed);
        let (store, copy) = copy_of(&self.mapping.store, Some(at));
        let throttle: Option<Arc<dyn Throttle>> = Some(self.throttle.clone());
        Subject { set, key, store, copy, volumes, snapshot: None, throttle, reports_refusals: false }
    }

    /// With several stores, the place of the one whose copies are read.
    fn copy_read(&self) -> Option<String> {
        copy_of(&self.mapping.store, Some(self.throttle.copy.load(Ordering::Relaxed))).1
    }

    /// Chooses the store whose copies are read: the one in turn, or the next healthy one.
    fn choose_copy(&mut self) {
        let (Some(several), Some(round)) = (self.mapping.store.several(), &self.book.round) else { return };
        let (copies, now) = (several.copies(), unix_ms());
        let standings = several.standings(now);
        let well = |at: usize| standings.get(at).is_none_or(|one| !in_trouble(&one.standing, now));
        let copy = pick_copy(round.copy, copies, well);
        if self.throttle.copy.swap(copy, Ordering::Relaxed) != copy {
            self.root = None;
        }
        self.book.read_copy(copy);
    }

    async fn turn(&mut self) -> Turn {
        self.choose_copy();
        let Some(round) = &self.book.round else { return Turn::On };
        let target = round.target.clone();
        let Some((at, volumes)) = self.place_of(&target) else { return self.target_done(&target) };
        let subject = self.subject(volumes);
        let (at, root) = match self.root_of(&subject, &target, at).await {
            Ok(Look::Opens(at, root)) => (at, root),
            Ok(Look::Nothing) => return self.target_done(&target),
            Ok(Look::Moved) => return Turn::Later,
            Err(e) => return self.later(&e),
        };
        // What a snapshot shares with the set's current state was read with that.
        let now = match &target {
            Target::Now => None,
            Target::Snapshot(_) | Target::Clone(_) => self.place_of(&Target::Now).map(|(at, _)| at),
        };
        // A root in memory in part is read one leaf at a time: otherwise all of it would be read again for every few
        // pages.
        let now = match now {
            Some(at) => self.mapping.shown(at).await.ok(),
            None => None,
        };
        let reads = Reads { subject: &subject, target: &target, at, now: now.as_ref() };
        let pages = match self.next_of(reads, &root).await {
            Ok(Next::Pages(pages)) => pages,
            Ok(Next::Again) => return Turn::On,
            Ok(Next::End) => return self.target_done(&target),
            Err(e) => return self.later(&e),
        };
        for (volume, number, place) in pages {
            if self.shows(now.as_ref(), volume, number, place).await {
                self.book.page_done((volume, number), 0, 0, Vec::new());
                continue;
            }
            let checked = match self.checked(&subject, &target, volume, number, place).await {
                Ok(Some(checked)) => checked,
                // The page was replaced.
                Ok(None) => return Turn::On,
                Err(e) => return self.later(&e),
            };
            let damaged: Vec<Place> = checked.damaged.into_iter().map(|d| self.told(&target, at, d)).collect();
            let any = !damaged.is_empty();
            self.book.page_done((volume, number), checked.extents, checked.bytes, damaged);
            metrics::counter!("holdfast_scrub_bytes_total", "set" => self.server.name.to_string())
                .increment(checked.bytes);
            self.publish();
            self.note(any);
            if self.server.leading_ready().is_none() {
                return Turn::On;
            }
        }
        Turn::On
    }

    /// Whether the set's current state has this same page. If that cannot be determined, the page is read.
    async fn shows(&self, now: Option<&Known>, volume: VolumeId, number: u32, place: PageRef) -> bool {
        let Some(now) = now else { return false };
        let found = self.mapping.place_of(None, now, volume, number).await;
        found.is_ok_and(|found| found == Some(place))
    }

    fn later(&self, error: &StoreError) -> Turn {
        tracing::debug!(set = %self.server.name, %error, "the store does not answer the scrub; will retry later");
        Turn::Later
    }

    fn target_done(&mut self, target: &Target) -> Turn {
        let next = self.server.host.with(|m| target.next(targets(m.state())));
        let store = self.copy_read();
        self.book.target_done(next, store.as_deref(), unix_ms());
        self.root = None;
        if self.book.round.is_none() {
            let damaged = self.book.found.total;
            tracing::info!(set = %self.server.name, damaged, "scrub complete");
        }
        self.note(true);
        Turn::On
    }

    /// Reads a page from the store; reports damage only if it is lasting and the set still has this same page. `None`
    /// if it was replaced.
    async fn checked(
        &self,
        subject: &Subject,
        target: &Target,
        volume: VolumeId,
        number: u32,
        place: PageRef,
    ) -> Result<Option<Checked>, StoreError> {
        let mut tries = 1;
        loop {
            let checked = check_page(subject, volume, number, place).await?;
            if checked.damaged.is_empty() {
                return Ok(Some(checked));
            }
            // A replaced page may be deleted: it is not needed any more.
            let Some((at, _)) = self.place_of(target) else { return Ok(None) };
            let same = match self.mapping.known_once(at).await {
                Ok(root) => match self.mapping.place_of(None, &root, volume, number).await {
                    Ok(found) => found == Some(place),
                    // Its leaf is lost too: the damage stands.
                    Err(_) => true,
                },
                // Its root is lost.
                Err(_) => true,
            };
            if !same {
                return Ok(None);
            }
            if tries == DAMAGED_TRIES {
                return Ok(Some(checked));
            }
            tries += 1;
            tokio::time::sleep(self.again).await;
        }
    }

    /// The former name of the snapshot from which a clone was made.
    fn pinned_snapshot(&self, clone: SetId) -> Option<Name> {
        self.server.host.with(|m| {
            let pin = m.state().pins().map(|(_, pin)| pin).find(|pin| pin.clone == clone);
            pin.map(|pin| pin.snapshot.clone())
        })
    }

    fn told(&self, target: &Target, at: RootRef, damage: Damage) -> Place {
        if let Some(several) = self.mapping.store.several() {
            several.lacks(self.throttle.copy.load(Ordering::Relaxed), &damage.key, 0, at.object, true);
        }
        let (snapshot, clone) = match target {
            Target::Now => (None, None),
            Target::Snapshot(name) => (Some(name.clone()), None),
            Target::Clone(clone) => (self.pinned_snapshot(*clone), Some(*clone)),
        };
        tracing::error!(
            set = %self.server.name, ?snapshot, ?clone, part = damage.part, key = %damage.key, volume = %damage.volume, lba = damage.lba,
            sectors = damage.sectors, reason = %damage.reason, store = damage.store, "R9: the scrub found damage"
        );
        metrics::counter!("holdfast_scrub_damage_found_total", "set" => self.server.name.to_string()).increment(1);
        let Damage { part, key, volume, lba, sectors, reason, store, .. } = damage;
        Place { part: part.to_string(), key, snapshot, clone, volume, lba, sectors, reason, store }
    }
}

/// All targets except the set's current state.
fn targets(state: &SetState) -> Vec<Target> {
    let snapshots = state.snapshots.keys().cloned().map(Target::Snapshot);
    snapshots.chain(pinned_alone(state).map(|pin| Target::Clone(pin.clone))).collect()
}

/// Pins of roots that no snapshot has any more, one for each root: the others are read with their snapshots.
fn pinned_alone(state: &SetState) -> impl Iterator<Item = &Pin> {
    let first = |root: RootRef| state.pins().filter(|(_, pin)| pin.root == root).map(|(_, pin)| pin.clone).min();
    let shown = |root: RootRef| state.snapshots.values().any(|snapshot| snapshot.root == root);
    state.pins().map(|(_, pin)| pin).filter(move |pin| !shown(pin.root) && first(pin.root) == Some(pin.clone))
}

/// Of `copies`, the one in turn, or the next healthy one; the one in turn if none is healthy.
fn pick_copy(turn: usize, copies: usize, well: impl Fn(usize) -> bool) -> usize {
    let order = || (0..copies).map(|step| turn.wrapping_add(step) % copies.max(1));
    order().find(|at| well(*at)).or_else(|| order().next()).unwrap_or(0)
}

#[cfg(test)]
mod tests;
