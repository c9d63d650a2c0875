//! Takes, reads and deletes snapshots of a world.

use super::{Asked, Heard, Keeper, KnownSnapshot, Wish};
use crate::broken::Broken;
use crate::client::{SET, VOLUME_NAMES};
use crate::libc;
use crate::model::{self, BLOCK_BYTES, BLOCKS, id_of};
use crate::rng::Rng;
use crate::sync::lock;
use crate::world::{MS, World};
use anyhow::{Result, anyhow};
use holdfast_api::v1;
use holdfast_api::v1::admin_server::Admin as _;
use holdfast_api::{Refusal, RefusalCode};
use holdfast_control::set::taken;
use holdfast_front::device::{ConnInfo, Device, Exports, Peer};
use holdfast_gateway::admin::AdminDoor;
use holdfast_nbd::{ExportName, SnapshotExport};
use holdfast_set::device::NodeExports;
use holdfast_types::Name;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Time until an unanswered request is repeated: the asked gateway may be gone.
const PATIENCE: u64 = 6_000 * MS;

/// Time between two tries after a temporary refusal.
const AGAIN: u64 = 300 * MS;

/// After this time of refusals a request is given up.
const GIVES_UP: u64 = 20_000 * MS;

/// Interval between two reads of a snapshot.
const SHOW_EVERY: u64 = 500 * MS;

/// Snapshots kept at most: more only take longer to read.
const KEPT_MAX: usize = 6;

/// Periods of a minute, the shortest, and of an hour: a clock step of one skips many of the other.
const SCHEDULE: &str = "1mx3,1hx2";

impl Keeper {
    fn wish(&mut self, world: &mut World, rng: &mut Rng, wish: Wish) {
        if self.current.is_some() {
            return;
        }
        world.note(format!("wanted: {wish:?}"));
        let request = u128::from(rng.draw()) << 64 | u128::from(rng.draw()) | 1;
        let (now, least) = (world.now, world.model.last_answered());
        self.current = Some(Asked { wish, request, attempt: 0, due: now, until: now + GIVES_UP, least });
    }

    fn tick(&mut self, world: &mut World) -> Result<()> {
        self.hear(world)?;
        if self.current.as_ref().is_some_and(|asked| asked.due <= world.now) {
            self.ask(world);
        }
        if self.showing.is_some_and(|(_, since)| world.now >= since + PATIENCE) {
            self.showing = None;
        }
        if world.now >= self.show_at && !self.kept.is_empty() && self.showing.is_none() {
            self.show_at = world.now + SHOW_EVERY;
            let names: Vec<String> = self.kept.keys().cloned().collect();
            let name = self.rng.pick(&names);
            let at = self.rng.below(world.hosts.len() as u64) as usize;
            self.show(world, at, name);
        }
        Ok(())
    }

    fn hear(&mut self, world: &mut World) -> Result<()> {
        let heard = std::mem::take(&mut *lock(&self.heard));
        for heard in heard {
            match heard {
                Heard::Answer { attempt, answer } => self.answered(world, attempt, answer),
                Heard::Shown { attempt, name, data } => {
                    if self.showing.is_some_and(|(shown, _)| shown == attempt) {
                        self.showing = None;
                    }
                    if let (Some(data), Some(kept)) = (data, self.kept.get(&name)) {
                        compare(world, &name, kept, &data).map_err(|broken| anyhow!(broken))?;
                        world.stats.shown += 1;
                        self.seen.insert(name);
                    }
                }
            }
        }
        Ok(())
    }

    fn answered(&mut self, world: &mut World, attempt: u64, answer: Result<(), tonic::Status>) {
        let Some(asked) = self.current.take_if(|asked| asked.attempt == attempt) else { return };
        match (answer, asked.wish.clone()) {
            (Ok(()), Wish::Take { name }) => {
                let (made_by, most) = (holdfast_api::hex128(asked.request), world.model.last_handed_in());
                world.note(format!("snapshot {name} is there: all up to write {}, none after {most}", asked.least));
                world.stats.taken += 1;
                self.kept.insert(name, KnownSnapshot { made_by, least: asked.least, most });
            }
            (Ok(()), Wish::Drop { name, .. }) => {
                world.note(format!("snapshot {name} is gone"));
                world.stats.dropped += 1;
            }
            (Ok(()), Wish::Schedule) => self.scheduled = true,
            (Err(status), wish) => {
                let code = Refusal::from_status(&status).map(|refusal| refusal.code);
                let never = [RefusalCode::Precondition, RefusalCode::Exists, RefusalCode::Invalid];
                if code.is_none_or(|code| !never.contains(&code)) && world.now < asked.until {
                    self.current = Some(Asked { due: world.now + AGAIN, ..asked });
                } else {
                    world.note(format!("refused: {wish:?}: {}", status.message()));
                }
            }
        }
    }

    fn ask(&mut self, world: &mut World) {
        let Some(asked) = self.current.as_mut() else { return };
        self.attempts += 1;
        (asked.attempt, asked.due) = (self.attempts, world.now + PATIENCE);
        if world.now >= asked.until {
            // No gateway was there to refuse it.
            self.current = None;
            return;
        }
        let Some((node, process)) =
            world.leader().and_then(|at| Some((world.node(at)?, world.hosts[at].process.as_ref()?)))
        else {
            asked.due = world.now + AGAIN;
            return;
        };
        let (attempt, wish, request_id) = (asked.attempt, asked.wish.clone(), holdfast_api::hex128(asked.request));
        let heard = self.heard.clone();
        process.spawn(async move {
            let (door, set) = (AdminDoor::new(node), SET.to_string());
            let answer = match wish {
                Wish::Take { name } => {
                    let request = v1::CreateSnapshotRequest { set, name, request_id };
                    door.create_snapshot(tonic::Request::new(request)).await.map(|_| ())
                }
                Wish::Drop { name, made_by } => {
                    let request = v1::DeleteSnapshotRequest { set, name, request_id, id: made_by };
                    door.delete_snapshot(tonic::Request::new(request)).await.map(|_| ())
                }
                Wish::Schedule => {
                    let request = v1::SetScheduleRequest { set, schedule: SCHEDULE.into(), request_id };
                    door.set_schedule(tonic::Request::new(request)).await.map(|_| ())
                }
            };
            lock(&heard).push(Heard::Answer { attempt, answer });
        });
    }

    /// Reads a whole snapshot at a gateway, if that has it.
    fn show(&mut self, world: &World, at: usize, name: String) {
        let (Some(node), Some(process)) = (world.node(at), world.hosts[at].process.as_ref()) else { return };
        self.attempts += 1;
        self.showing = Some((self.attempts, world.now));
        let (attempt, heard) = (self.attempts, self.heard.clone());
        let other = self.kept.keys().next().filter(|_| world.broken == Some(Broken::OtherSnapshot)).cloned();
        process.spawn(async move {
            let (cluster, sets) = (node.cluster.clone(), node.sets.clone());
            let exports = NodeExports { cluster, sets, plain_exports: false, open_snapshots: true };
            let mut data = Some(Vec::new());
            for volume in VOLUME_NAMES {
                let read = read(&exports, attempt, volume, other.as_ref().unwrap_or(&name)).await;
                data = data.zip(read).map(|(mut data, read)| {
                    data.push(read);
                    data
                });
            }
            lock(&heard).push(Heard::Shown { attempt, name, data });
        });
    }
}

/// All blocks of a volume of a snapshot, if this gateway knows it and the store answers.
async fn read(exports: &NodeExports, id: u64, volume: &str, snapshot: &str) -> Option<Vec<u8>> {
    let (set, volume) = (Name::new(SET).ok()?, Name::new(volume).ok()?);
    let snapshot = Some(SnapshotExport { name: Name::new(snapshot).ok()?, token: None });
    let name = ExportName { set, volume, snapshot, session: None };
    let device: Arc<dyn Device> = exports.open(&name, ConnInfo { id, peer: Peer::Unix }).await.ok()?.device;
    let parts = device.read(0, (BLOCKS * BLOCK_BYTES) as u32).await.ok()?;
    Some(model::bytes_of(parts))
}

/// Checks that a snapshot is a prefix of the set's order of writes (R4).
fn compare(world: &World, name: &str, kept: &KnownSnapshot, data: &[Vec<u8>]) -> Result<(), String> {
    let mut found = BTreeMap::new();
    for (volume, bytes) in data.iter().enumerate() {
        for (block, bytes) in bytes.chunks(BLOCK_BYTES).enumerate() {
            found.insert((volume, block), id_of(bytes, volume, block).map_err(|e| format!("snapshot {name}: {e}"))?);
        }
    }
    world.model.snapshot(kept.least, kept.most, &found).map_err(|e| format!("snapshot {name}: {e}"))
}

impl World {
    /// Runs the snapshots' keeper up to now.
    pub fn tend_snapshots(&mut self) -> Result<()> {
        self.with_keeper(|keeper, world| keeper.tick(world))
    }

    fn with_keeper<T>(&mut self, work: impl FnOnce(&mut Keeper, &mut World) -> T) -> T {
        let mut keeper = std::mem::take(&mut self.keeper);
        let outcome = work(&mut keeper, self);
        self.keeper = keeper;
        outcome
    }

    /// A snapshot is wanted, where there are not too many.
    pub fn take_snapshot(&mut self, rng: &mut Rng) {
        self.with_keeper(|keeper, world| {
            if keeper.kept.len() < KEPT_MAX {
                keeper.names += 1;
                let name = format!("s{}", keeper.names);
                keeper.wish(world, rng, Wish::Take { name });
            }
        });
    }

    /// Deletes one of the snapshots, if there is one.
    pub fn drop_snapshot(&mut self, rng: &mut Rng) {
        self.with_keeper(|keeper, world| {
            let names: Vec<String> = keeper.kept.keys().cloned().collect();
            if keeper.current.is_some() || names.is_empty() {
                return;
            }
            let name = rng.pick(&names);
            // From now on it may be gone.
            if let Some(KnownSnapshot { made_by, .. }) = keeper.kept.remove(&name) {
                keeper.wish(world, rng, Wish::Drop { name, made_by });
            }
        });
    }

    /// A schedule is wanted.
    pub fn keep_schedule(&mut self, rng: &mut Rng) {
        self.with_keeper(|keeper, world| keeper.wish(world, rng, Wish::Schedule));
    }

    /// After everything has healed: every snapshot has its content, and the schedule has one for the present periods.
    pub fn settle_snapshots(&mut self) -> Result<()> {
        self.until(60_000, "the snapshot that is asked for", |w| w.keeper.current.is_none())?;
        let names: Vec<String> = self.keeper.kept.keys().cloned().collect();
        self.keeper.seen.clear();
        for name in names {
            self.until(60_000, "a snapshot read back", |w| {
                if w.keeper.seen.contains(&name) {
                    return true;
                }
                if let Some(at) = w.leader().filter(|_| w.keeper.showing.is_none()) {
                    w.with_keeper(|keeper, world| keeper.show(world, at, name.clone()));
                }
                false
            })?;
        }
        if self.keeper.scheduled {
            self.until(60_000, "a snapshot for every slot of the schedule", |w| {
                let Some((at, set)) = w.leader().and_then(|at| Some((at, w.set(at)?))) else { return false };
                w.hosts[at].enter(w.now);
                let now = libc::wall() / MS;
                set.host.with(|m| !m.state().schedule.is_due(&taken(m.state()), now))
            })?;
        }
        Ok(())
    }
}
