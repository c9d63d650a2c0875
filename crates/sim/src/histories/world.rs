//! A history: the steps of a set, drawn from its seed, and the comparisons meanwhile.

mod former;
mod held;
mod late;

use super::gateway::{Common, Gateway, TIMING, name};
use super::model::{Counts, SIZE_MAX, Stats, Volumes, WINDOW, WINDOWS, content};
use super::roots::Roots;
use super::shape::{Shape, Step};
use super::store::Weather;
use super::stores::STORES;
use super::units::GATEWAYS;
use crate::rng::Rng;
use futures_util::future::join_all;
use holdfast_control::set::{SetAnswer, SetCommand, SetState, SnapshotId, VolumeChange};
use holdfast_front::device::{Device, DeviceError, OpenedExport};
use holdfast_log::NodeLog;
use holdfast_raft::ProposeError;
use holdfast_set::server::SetError;
use holdfast_types::{MemberId, Name, RequestId, SECTOR_BYTES, Sectors, Term, VolumeId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Limit by the simulated clock: longer than any operation takes while the store answers.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Volumes at once at most.
const VOLUMES_MAX: u64 = 4;
/// Most snapshots at once, besides those of rollbacks.
const SNAPSHOTS_MAX: usize = 5;
/// Takeovers in thousandths of which the former leader's group stops under its clients.
const STOPPED: u64 = 150;

/// One history.
pub struct World {
    pub common: Common,
    pub rng: Rng,
    pub gateway: Gateway,
    /// The former leader, cut off, which may not know it yet.
    pub ghost: Option<Gateway>,
    boots: Vec<u64>,
    term: u64,
    pub tag: u32,
    /// A separate generator, so that a seed's steps do not depend on it.
    pub rot: Rng,
    open: BTreeMap<VolumeId, OpenedExport>,
    /// Requests that may arrive again.
    late: Vec<SetCommand>,
    pub weather: Weather,
    /// Whether to log each step.
    loud: bool,
    pub stats: Stats,
    pub roots: Roots,
    /// Initial volumes of its log.
    pub first: Volumes,
}

type Done = Result<(), String>;

impl World {
    /// A new set, led by the first gateway.
    pub async fn new(seed: u64, log: NodeLog, several: bool, shape: Shape, loud: bool) -> Self {
        let mut rng = Rng::new(seed, 1);
        let common = Common::new(seed, &mut rng, log, several, shape);
        Self::begin(common, [rng, Rng::new(seed, 7)], Term(1), loud).await
    }

    /// A set, or a life of one, at its log's first entry; `rngs`: for its steps, and for damage.
    pub async fn begin(common: Common, [rng, rot]: [Rng; 2], term: Term, loud: bool) -> Self {
        let gateway = Gateway::start(&common, MemberId(1), 1, None).await;
        let first = common.journal.order().model.now.clone();
        gateway.seat.lead(term);
        let mut boots = vec![0; GATEWAYS as usize];
        boots[0] = 1;
        Self {
            common,
            rng,
            gateway,
            ghost: None,
            boots,
            term: term.0,
            tag: 0,
            rot,
            open: BTreeMap::new(),
            late: Vec::new(),
            weather: Weather::default(),
            loud,
            stats: Stats::default(),
            roots: Roots::default(),
            first,
        }
    }

    pub fn say(&self, text: impl FnOnce() -> String) {
        if self.loud {
            println!("{:>9.3} {}", crate::libc::now() as f64 / 1e9, text());
        }
    }

    pub fn state(&self) -> SetState {
        self.gateway.server.host.with(|machine| machine.state().clone())
    }

    pub fn term(&self) -> Term {
        Term(self.term)
    }

    pub fn counts(&self) -> Counts {
        self.common.journal.order().model.counts
    }

    fn volumes(&self) -> Volumes {
        self.common.journal.order().model.now.clone()
    }

    pub fn request(&mut self) -> RequestId {
        RequestId(u128::from(self.rng.draw()) << 64 | u128::from(self.rng.draw()))
    }

    /// Sends a command to the leader, again while the outcome is unknown (R12). `None`: refused. Fails without an
    /// answer for too long.
    pub async fn command(&self, command: &SetCommand) -> Result<Option<SetAnswer>, String> {
        let asked = async {
            loop {
                match self.gateway.server.command("a step", command).await {
                    Ok(answer) => return Ok(Some(answer)),
                    Err(SetError::Refused(_)) => return Ok(None),
                    Err(SetError::Propose(ProposeError::Unknown { .. })) => sleep(Duration::from_millis(10)).await,
                    Err(e) => return Err(format!("{command:?}: {e}")),
                }
            }
        };
        timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(format!("{command:?}: no word in {PATIENCE:?}")))
    }

    /// One step.
    pub async fn step(&mut self) -> Done {
        self.stats.steps += 1;
        match self.common.shape.step(self.rng.below(100)) {
            Step::Write => self.write().await?,
            Step::Clear => self.clear().await?,
            Step::Read => self.read().await?,
            Step::ReadSnapshot => self.read_snapshot().await?,
            Step::ChangeVolume => self.change_volume().await?,
            Step::Snapshot => self.snapshot().await?,
            Step::DeleteSnapshot => self.delete_snapshot().await?,
            Step::RollBack => self.roll_back().await?,
            Step::Checkpoint => self.checkpoint().await?,
            Step::Weather => self.turn_weather(),
            Step::TakeOver => self.take_over().await?,
            Step::LateCopy => self.late_copy().await?,
            Step::Release => self.release().await?,
            Step::Pause => {
                let pause = self.rng.range(50, 1500);
                self.say(|| format!("{pause} ms pass"));
                sleep(Duration::from_millis(pause)).await;
            }
        }
        sleep(Duration::from_millis(self.rng.pick(&[0, 5, 20, 60]))).await;
        if self.rot.chance(40) {
            self.spoil_a_dropped_root()?;
        }
        self.begin_anew();
        self.check_named()?;
        self.turn_keys()
    }

    fn turn_weather(&mut self) {
        let mut weather = Weather::default();
        if self.rng.chance(800) {
            weather = Weather::drawn(&mut self.rng, self.common.shape.weather);
            if self.common.store.several() {
                weather.at = self.rot.below(STORES);
            }
        }
        self.set_weather(weather);
        let mut order = self.common.journal.order();
        order.lost = if self.rng.chance(400) { self.rng.below(60) } else { 0 };
        order.late = self.rng.pick(&[0, 0, 300, 900]);
    }

    pub fn set_weather(&mut self, weather: Weather) {
        self.say(|| format!("{weather:?}"));
        self.weather = weather;
        self.common.store.set(weather);
    }

    /// A range within a window; sometimes one across the volume's end or beyond.
    fn range(&mut self, size: u64) -> (u64, u64) {
        let start = self.rng.pick(&WINDOWS);
        let (from, most) = (self.rng.below(WINDOW), self.rng.pick(&[1, 8, 8, 64, 300]));
        let most = self.common.shape.sectors(most);
        let sectors = self.rng.range(1, most).min(WINDOW - from);
        let lba = start + from;
        if lba + sectors <= size || self.rng.chance(30) {
            return (lba, sectors);
        }
        let lba = self.rng.below(size.min(WINDOW));
        (lba, sectors.min(size.min(WINDOW) - lba))
    }

    fn some_volume(&mut self) -> Option<(VolumeId, u64)> {
        let volumes = self.volumes();
        if volumes.is_empty() {
            return None;
        }
        let at = self.rng.below(volumes.len() as u64) as usize;
        volumes.iter().nth(at).map(|(id, volume)| (*id, volume.size))
    }

    /// A connection to the volume, retried like a client until it is accepted.
    pub async fn device(&mut self, id: VolumeId) -> Result<Arc<dyn Device>, String> {
        if let Some(open) = self.open.get(&id).filter(|open| !open.closed.is_cancelled()) {
            return Ok(open.device.clone());
        }
        self.open.remove(&id);
        let Some(name) = self.volumes().get(&id).map(|volume| volume.name.clone()) else {
            return Err(format!("{id} is not there"));
        };
        let opened = async {
            loop {
                match self.gateway.open(&name, None).await {
                    Ok(open) => return open,
                    Err(why) => {
                        self.say(|| format!("not let in to {name}: {why}"));
                        sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        };
        match timeout(PATIENCE, opened).await {
            Ok(open) => {
                let device = open.device.clone();
                self.open.insert(id, open);
                Ok(device)
            }
            Err(_) => Err(format!("R8: nobody is let in to {name} for {PATIENCE:?}")),
        }
    }

    /// Several clients write at once.
    async fn write(&mut self) -> Done {
        let (mut under_way, apart) = (Vec::new(), self.apart());
        for number in 0..self.rng.pick(&[1_u64, 1, 2, 4]) {
            let Some((id, size)) = self.some_volume() else { return Ok(()) };
            let (lba, sectors) = self.range(size);
            let device = self.device(id).await?;
            self.tag += 1;
            let tag = self.tag;
            self.say(|| format!("write {tag}: {sectors} sectors at {lba} of {id}"));
            let write = held::write(device, lba * SECTOR_BYTES, content(tag, lba, sectors), tag.is_multiple_of(2));
            under_way.push(Self::behind(number * apart, async move { (tag, id, write.await) }));
        }
        let Ok(done) = timeout(PATIENCE, join_all(under_way)).await else {
            return Err(format!("R8: a write is not answered in {PATIENCE:?}"));
        };
        for (tag, id, outcome) in done {
            self.say(|| format!("write {tag}: {outcome:?}"));
            let there = self.common.journal.order().model.applied.contains(&tag);
            match outcome {
                Ok(()) if !there => return Err(format!("R1: write {tag} was acknowledged and is in no entry")),
                Err(DeviceError::OutOfRange) if there => {
                    return Err(format!("MACHINE-M2: write {tag} was refused as outside, and took effect"));
                }
                Ok(()) | Err(DeviceError::OutOfRange) => {}
                Err(_) => drop(self.open.remove(&id)),
            }
        }
        Ok(())
    }

    async fn clear(&mut self) -> Done {
        let Some((id, size)) = self.some_volume() else { return Ok(()) };
        let (mut lba, mut sectors) = self.range(size);
        if self.rng.chance(200) {
            (lba, sectors) = (0, size);
        }
        let device = self.device(id).await?;
        let (offset, len) = (lba * SECTOR_BYTES, (sectors * SECTOR_BYTES) as u32);
        let cleared =
            if self.rng.chance(500) { device.trim(offset, len, false) } else { device.zero(offset, len, true, false) };
        let Ok(outcome) = timeout(PATIENCE, cleared).await else {
            return Err(format!("R8: a trim is not answered in {PATIENCE:?}"));
        };
        self.say(|| format!("trim of {sectors} sectors at {lba} of {id}: {outcome:?}"));
        if matches!(outcome, Err(DeviceError::Disconnect | DeviceError::Fenced)) {
            self.open.remove(&id);
        }
        Ok(())
    }

    async fn read(&mut self) -> Done {
        let Some((id, size)) = self.some_volume() else { return Ok(()) };
        let (lba, sectors) = match self.rng.below(3) {
            0 => self.range(size),
            _ => (0, size.min(WINDOW)),
        };
        self.read_range(id, lba, sectors).await.map(|read| {
            if !read {
                self.stats.unread += 1
            }
        })
    }

    /// Reads and compares. `false`: the gateway has closed the connection, since its store gives no valid answer.
    /// Fails when the content differs.
    pub async fn read_range(&mut self, id: VolumeId, lba: u64, sectors: u64) -> Result<bool, String> {
        let device = self.device(id).await?;
        let inside = self.volumes().get(&id).is_some_and(|volume| lba + sectors <= volume.size);
        let read = device.read(lba * SECTOR_BYTES, (sectors * SECTOR_BYTES) as u32);
        // R8: a store that does not answer is waited for.
        let outcome = timeout(Duration::from_secs(5), read).await;
        self.say(|| {
            format!(
                "read of {sectors} sectors at {lba} of {id}: {:?}",
                outcome.as_ref().map(|o| o.as_ref().map(Vec::len))
            )
        });
        match outcome {
            Ok(Ok(parts)) => {
                self.stats.reads += 1;
                let order = self.common.journal.order();
                let Some(volume) = order.model.now.get(&id).filter(|_| inside) else {
                    return Err(format!("MACHINE-M2: read of {sectors} sectors at {lba} of {id}, which are not there"));
                };
                volume.compare(lba, sectors, &parts).map_err(|e| format!("R3: {id}: {e}"))?;
                Ok(true)
            }
            Ok(Err(DeviceError::OutOfRange)) if !inside => Ok(true),
            Ok(Err(_)) | Err(_) => {
                self.open.remove(&id);
                Ok(false)
            }
        }
    }

    async fn read_snapshot(&mut self) -> Done {
        let names: Vec<Name> = self.state().snapshots.keys().cloned().collect();
        if names.is_empty() {
            return Ok(());
        }
        let (name, other) = (self.rng.pick(&names), self.rng.pick(&names));
        let read = self.read_whole_snapshot(&name, false).await? & self.compare_snapshots(&other, &name).await?;
        self.stats.unread += u64::from(!read);
        Ok(())
    }

    /// Reads one window, or all, of each volume of a snapshot. `false`: some could not be read now. Fails when the
    /// content differs.
    pub async fn read_whole_snapshot(&mut self, snapshot: &Name, all: bool) -> Result<bool, String> {
        let Some(found) = self.state().snapshots.get(snapshot).cloned() else { return Ok(true) };
        let then = self.common.journal.order().model.shown(found.request, found.upto.index.0);
        for (id, volume) in &then {
            let Ok(open) = self.gateway.open(&volume.name, Some(snapshot)).await else {
                return Err(format!("SET-S6: {} is not in snapshot {snapshot}, which shows it", volume.name));
            };
            if open.device.size() != volume.size * SECTOR_BYTES {
                return Err(format!(
                    "SET-S6: {id} in {snapshot}: found {} bytes, expected {} sectors",
                    open.device.size(),
                    volume.size
                ));
            }
            for (number, start) in (0..).zip(WINDOWS) {
                let sectors = WINDOW.min(volume.size.saturating_sub(start));
                if sectors == 0 || !all && number != self.rng.below(3) {
                    continue;
                }
                let read = open.device.clone().read(start * SECTOR_BYTES, (sectors * SECTOR_BYTES) as u32);
                match timeout(Duration::from_secs(5), read).await {
                    Ok(Ok(parts)) => {
                        self.stats.snapshot_reads += 1;
                        volume.compare(start, sectors, &parts).map_err(|e| format!("R4: {id} in {snapshot}: {e}"))?;
                    }
                    _ => return Ok(false),
                }
            }
        }
        if found.volumes.len() != then.len() {
            return Err(format!("SET-S6: {snapshot}: found {} volumes, expected {}", found.volumes.len(), then.len()));
        }
        Ok(true)
    }

    async fn change_volume(&mut self) -> Done {
        let (volumes, request) = (self.volumes(), self.request());
        let epoch = self.state().epoch;
        let pages = self.rng.below(3);
        // Anywhere in a window: in the middle of an extent, at the boundary of a page, at a window's end.
        let any = 1 + self.rng.below(WINDOW);
        let size = WINDOWS[pages as usize] + self.rng.pick(&[any, WINDOW / 2, WINDOW]);
        let new = name(format!("v{}", self.rng.below(6)));
        let at = self.rng.below(VOLUMES_MAX) as usize;
        let change = match volumes.iter().nth(at) {
            None => VolumeChange::Create { name: new, size: Sectors(size) },
            Some((id, found)) => match self.rng.below(8) {
                0 | 1 if size <= found.size => {
                    VolumeChange::Shrink { volume: *id, from: Sectors(found.size), to: Sectors(size), epoch }
                }
                0..=3 => VolumeChange::Grow { volume: *id, size: Sectors(size.max(found.size).min(SIZE_MAX)) },
                4 => {
                    // RESIZE-U1: a connected client would have a name that is gone.
                    self.open.remove(id);
                    VolumeChange::Rename { volume: *id, from: found.name.clone(), to: new, epoch }
                }
                5 if volumes.len() > 1 => VolumeChange::Delete { volume: *id, name: found.name.clone(), epoch },
                _ => VolumeChange::Create { name: new, size: Sectors(size) },
            },
        };
        self.outdated_change(&change).await?;
        let command = SetCommand::ChangeVolume { change, request };
        let answer = self.command(&command).await?;
        self.say(|| format!("{command:?}: {answer:?}"));
        if answer.is_some() {
            self.gateway.server.head.want_checkpoint();
            self.late.push(command);
        }
        // Clients of a deleted volume disconnect.
        let there = self.volumes();
        self.open.retain(|id, _| there.contains_key(id));
        Ok(())
    }

    async fn snapshot(&mut self) -> Done {
        let state = self.state();
        if state.snapshots.len() + state.pending.len() >= SNAPSHOTS_MAX {
            return self.delete_snapshot().await;
        }
        let (taken, request) = (name(format!("s{}", self.rng.below(8))), self.request());
        let command = SetCommand::SnapshotCreate { name: taken, request, at_unix_ms: 0, scheduled: false };
        let answer = self.command(&command).await?;
        self.say(|| format!("{command:?}: {answer:?}"));
        if answer.is_some() {
            self.late.push(command);
        }
        Ok(())
    }

    async fn delete_snapshot(&mut self) -> Done {
        let state = self.state();
        let finished = state.snapshots.iter().map(|(name, found)| (name.clone(), found.request));
        let mut all: Vec<(Name, RequestId)> = finished.collect();
        all.extend(state.pending.iter().map(|(name, found)| (name.clone(), found.request)));
        if all.is_empty() {
            return Ok(());
        }
        let (name, made_by) = self.rng.pick(&all);
        let command = SetCommand::SnapshotDelete { name, made_by };
        let answer = self.command(&command).await?;
        self.say(|| format!("{command:?}: {answer:?}"));
        self.late.push(command);
        Ok(())
    }

    async fn release(&mut self) -> Done {
        self.open.clear();
        self.free().await
    }

    /// Nobody holds the set.
    async fn free(&mut self) -> Done {
        if let Some(lease) = self.state().lease {
            let answer = self.command(&SetCommand::Release { epoch: lease.epoch, token: None }).await?;
            self.say(|| format!("release: {answer:?}"));
        }
        Ok(())
    }

    /// As the admin API does it: end of the lease, safety snapshot, the entry. Sometimes a write comes in between.
    async fn roll_back(&mut self) -> Done {
        let state = self.state();
        let finished: Vec<(Name, RequestId)> =
            state.snapshots.iter().map(|(name, found)| (name.clone(), found.request)).collect();
        if finished.is_empty() {
            return Ok(());
        }
        let (to, made_by) = self.rng.pick(&finished);
        let to = SnapshotId { name: to, made_by };
        let careless = self.rng.chance(200);
        let held = self.gateway.server.hold_off().await;
        self.open.clear();
        self.free().await?;
        self.roll_back_with_a_former_life(&to).await?;
        let request = self.request();
        let safety = SnapshotId { name: name(format!("safe-{}", self.stats.steps)), made_by: self.request() };
        let create = SetCommand::SnapshotCreate {
            name: safety.name.clone(),
            request: safety.made_by,
            at_unix_ms: 0,
            scheduled: false,
        };
        self.command(&create).await?;
        // The store may be unavailable: a rollback without safety snapshot is rightly refused.
        for _ in 0..40 {
            if self.state().snapshots.contains_key(&safety.name) {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        drop(held);
        if careless {
            self.write().await?;
            self.open.clear();
            self.free().await?;
        }
        self.checkpoint_before_a_rollback().await?;
        let command = SetCommand::Rollback { to, safety: safety.clone(), request };
        let answer = self.command(&command).await?;
        self.say(|| format!("{command:?}: {answer:?}"));
        self.late.push(command);
        if answer.is_none() || self.rng.chance(600) {
            let gone = SetCommand::SnapshotDelete { name: safety.name, made_by: safety.made_by };
            self.command(&gone).await?;
        }
        Ok(())
    }

    /// Another gateway, or the same one restarted, leads from now on. The former leader has ended, or is cut off
    /// without knowing.
    pub async fn take_over(&mut self) -> Done {
        self.stats.takeovers += 1;
        if self.rot.chance(STOPPED) {
            self.group_stops().await?;
        }
        self.open.clear();
        self.ghost = None;
        let truth = self.state();
        let lives = self.rng.chance(400);
        let me = self.gateway.server.me();
        let to = match (lives, self.rng.below(GATEWAYS) + 1) {
            (true, same) if same == me.0 => MemberId(same % GATEWAYS + 1),
            (_, any) => MemberId(any),
        };
        // Its local state: the newest one ever saved, an older one, or none.
        let base = {
            let order = self.common.journal.order();
            let saved = &order.saved;
            match self.rng.below(4) {
                0 => None,
                1 if !saved.is_empty() => saved.get(self.rng.below(saved.len() as u64) as usize).cloned(),
                _ => saved.last().cloned(),
            }
        };
        self.say(|| {
            format!(
                "{to} takes over from {me}, which {}; begins with {:?}",
                if lives { "is cut off" } else { "ended" },
                base.as_ref().map(|b| b.0)
            )
        });
        // From here on nothing of it is committed.
        self.gateway.seat.cut_off();
        let boot = &mut self.boots[to.0 as usize - 1];
        *boot += 1;
        let new = Gateway::start(&self.common, to, *boot, base).await;
        let old = std::mem::replace(&mut self.gateway, new);
        if lives {
            // No gateway votes before the lease of the last heard leader has expired.
            sleep(TIMING.leader_lease()).await;
            self.stats.ghosts += 1;
            self.ghost = Some(old);
        } else {
            drop(old);
        }
        sleep(Duration::from_millis(self.rng.range(0, 300))).await;
        let found = self.state();
        if found != truth {
            return Err(format!(
                "MACHINE-M4: {to} has another state than the leader before it: found {found:?}, expected {truth:?}"
            ));
        }
        self.term += 1;
        self.gateway.seat.lead(Term(self.term));
        self.ghost_is_elected_untold()?;
        if lives && self.rng.chance(300) {
            self.forget_ghost();
        }
        Ok(())
    }

    /// The former leader is deposed, and ends.
    pub fn forget_ghost(&mut self) {
        self.ghost = None;
    }
}
