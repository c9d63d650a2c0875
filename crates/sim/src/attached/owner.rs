//! An owner's host: a process with the code of `attach`, over simulated TCP to the gateways' NBD and admin ports, and
//! the user of its devices.
//!
//! Requests go through the device as NBD, over pipes in place of Unix sockets. Overlapping places use one connection,
//! since a file system never has overlapping requests under way on several.

mod scratch;

use super::bugs::{self, Bug};
use super::kernel::{Habits, User, VolumeDoor};
use super::wires::{Said, USERS, options, use_devices, way};
use crate::libc;
use crate::model::{self, BLOCK_BYTES, BLOCKS, Id, Model, Place, VOLUMES};
use crate::net::Net;
use crate::rng::Rng;
use crate::shape::{Load, Shape};
use crate::slices::Slices;
use crate::sync::lock;
use crate::time::{Clock, MachineTime};
use crate::world::MS;
use bytes::Bytes;
use holdfast_attach::requests::{Errno, RequestError};
use holdfast_attach::{AttachError, Ended, Seams};
use holdfast_types::Name;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// A fenced device has answered everything after this many milliseconds of its process, which ends within as many when
/// told to.
const FENCED_LIMIT: u64 = 2_000;

/// How long requests may wait before the device gives their connection up.
const PATIENCE: [Option<u64>; 5] = [None, None, Some(60 * MS), Some(250 * MS), Some(1_000 * MS)];

/// An answer of the device.
pub struct Done {
    life: u64,
    /// Model stamp of the request.
    asked: u64,
    what: What,
}

enum What {
    Wrote { id: Id, outcome: Result<(), RequestError> },
    Read { volume: usize, first: usize, outcome: Result<Vec<u8>, RequestError>, sweeps: bool },
    Scratch { volume: usize, step: Step, outcome: Result<Vec<u8>, RequestError> },
}

/// A request to a block of [`scratch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The first read of this life.
    First,
    Read,
    Change {
        serial: u64,
    },
}

/// What is under way at such a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Block {
    /// This life has not read it, or does not know what became of a request.
    #[default]
    Unread,
    Idle,
    Busy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// No process.
    Away,
    /// It acquires the lease and its devices.
    Starting,
    /// It reads everything for the first time.
    Reading,
    Open,
    /// Its device has answered with an error, since then (`ran`).
    Failed {
        since: u64,
    },
    /// It was told to end, after a fence or not.
    Leaving {
        since: u64,
        fenced: bool,
    },
}

/// Parts of the world for an owner's step.
pub struct Lent<'a> {
    pub now: u64,
    pub model: &'a mut Model,
    /// It is its turn to have the set.
    pub wanted: bool,
    /// Another owner takes it by force.
    pub forced: bool,
    /// Writes and reads are wanted.
    pub busy: bool,
    /// How many machines may be gateways.
    pub gateways: usize,
    pub log: &'a mut Vec<String>,
}

/// See the module.
pub struct Owner {
    pub name: String,
    /// Its place in the network.
    pub at: usize,
    pub time: MachineTime,
    /// Takes the lease from any holder.
    pub force: bool,
    /// Number of first full readings, and of later ones.
    pub opened: u64,
    pub swept: u64,
    pub sweep: bool,
    /// Requests that its fenced device answered with an error.
    pub errors: u64,
    /// Requests that its device sent again on another connection.
    pub resent: u64,
    dir: PathBuf,
    net: Net,
    rng: Rng,
    bug: Option<Bug>,
    ends_unseen: bool,
    slices: Option<Slices>,
    life: u64,
    /// Milliseconds of running processes.
    ran: u64,
    stop: CancellationToken,
    said: Arc<Mutex<Said>>,
    done: Arc<Mutex<Vec<Done>>>,
    state: State,
    devices: Vec<Vec<User>>,
    epoch: u64,
    found: BTreeMap<Place, Id>,
    missing: usize,
    /// By number, and since when (`ran`).
    writes: BTreeMap<Id, u64>,
    reads: usize,
    sweeping: usize,
    scratch: [Block; VOLUMES],
    /// The model's stamp of the first error.
    failed_at: Option<u64>,
    next_at: u64,
    leave_at: Option<u64>,
    pub load: Load,
}

impl Owner {
    pub fn new(
        index: usize,
        seed: u64,
        at: usize,
        net: &Net,
        dir: PathBuf,
        bug: Option<Bug>,
        ends_unseen: bool,
    ) -> Self {
        let mut rng = Rng::new(seed, 300 + index as u64);
        let drift_ppm = if rng.chance(600) { rng.range(0, 160_000) as i64 - 80_000 } else { 0 };
        let clock = Clock::new(rng.range(0, 3_600) * 1000 * MS, drift_ppm);
        Self {
            name: ["alpha", "beta", "gamma"][index % 3].to_string(),
            at,
            time: MachineTime::new(clock),
            force: false,
            opened: 0,
            swept: 0,
            sweep: false,
            errors: 0,
            resent: 0,
            dir,
            net: net.clone(),
            rng,
            bug,
            ends_unseen,
            slices: None,
            life: 0,
            ran: 0,
            stop: CancellationToken::new(),
            said: Arc::default(),
            done: Arc::default(),
            state: State::Away,
            devices: Vec::new(),
            epoch: 0,
            found: BTreeMap::new(),
            missing: 0,
            writes: BTreeMap::new(),
            reads: 0,
            sweeping: 0,
            scratch: Default::default(),
            failed_at: None,
            next_at: 0,
            leave_at: None,
            load: Shape::USUAL.load,
        }
    }

    /// Its device was read, and may be written to.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether all its requests are answered.
    pub fn is_quiet(&self) -> bool {
        let scratch = self.scratch.contains(&Block::Busy);
        self.writes.is_empty() && self.reads == 0 && !scratch && self.state != State::Reading
    }

    /// Whether the process is there and not stopped.
    pub fn runs(&self, now: u64) -> bool {
        self.slices.is_some() && !self.time.is_stopped(now)
    }

    /// Whether it has a process.
    pub fn is_up(&self) -> bool {
        self.slices.is_some()
    }

    /// The process is gone, with its devices. If the machine lost power, no peer is told.
    pub fn kill(&mut self, now: u64, power: bool, log: &mut Vec<String>) {
        if self.slices.is_none() {
            return;
        }
        log.push(format!("attach of {} is killed (power {power})", self.name));
        if power {
            self.net.power(self.at, false);
        }
        let after = self.rng.range(10, 3_000) * MS;
        self.gone(now, after);
    }

    fn gone(&mut self, now: u64, after: u64) {
        self.time.enter(now);
        self.slices = None;
        self.done = Arc::default();
        self.devices.clear();
        self.writes.clear();
        self.sweep |= self.sweeping > 0;
        (self.reads, self.sweeping, self.scratch) = (0, 0, Default::default());
        (self.state, self.next_at, self.leave_at, self.failed_at) = (State::Away, now + after, None, None);
        self.time.wake(now);
    }

    fn start(&mut self, now: u64, gateways: usize, log: &mut Vec<String>) -> Result<(), String> {
        self.time.enter(now);
        self.net.power(self.at, true);
        let place = (self.name.as_str(), self.at);
        let options = options(&mut self.rng, place, &self.net, self.dir.clone(), self.force, gateways);
        let options = options.map_err(|e| e.to_string())?;
        let patience = self.rng.pick(&PATIENCE);
        let habits = Habits { patience, ends_unseen: self.ends_unseen, seed: self.rng.below(u64::MAX) };
        log.push(format!(
            "{} attaches: {} connections, {:?}, force {}, its device gives a connection up after {:?} ms",
            self.name,
            options.connections,
            options.bounds,
            self.force,
            patience.map(|patience| patience / MS)
        ));
        let slices = Slices::new(now).map_err(|e| format!("no runtime: {e}"))?;
        (self.said, self.done, self.stop) = (Arc::default(), Arc::default(), CancellationToken::new());
        self.life += 1;
        let doors: Arc<Mutex<BTreeMap<Name, VolumeDoor>>> = Arc::default();
        let (listened, said, stop) = (doors.clone(), self.said.clone(), self.stop.clone());
        let clients = move |volume: &Name| {
            let (tx, rx) = mpsc::unbounded_channel();
            lock(&listened).insert(volume.clone(), tx);
            rx
        };
        let bug = self.bug.map(bugs::Memory::new);
        let seams =
            Seams { connect: way(self.at, &self.net, bug), clients: Some(Arc::new(clients)), boot_ns: libc::boot };
        slices.spawn(async move {
            let ready = said.clone();
            let ended = holdfast_attach::run_over(options, seams, stop, move |status| {
                lock(&ready).ready = Some(status.epoch);
                let doors = std::mem::take(&mut *lock(&doors));
                tokio::spawn(use_devices(doors, ready, habits));
            });
            let ended = ended.await;
            lock(&said).ended = Some(ended);
        });
        (self.slices, self.state) = (Some(slices), State::Starting);
        Ok(())
    }

    /// Runs everything ready.
    pub fn slice(&mut self, now: u64) {
        self.time.goes_on(now);
        if self.runs(now) {
            self.time.enter(now);
            if let Some(slices) = &mut self.slices {
                slices.run(now, false);
            }
        }
    }

    /// Runs it up to now.
    pub fn tick(&mut self, lent: &mut Lent<'_>) -> Result<(), String> {
        let now = lent.now;
        if !self.is_up() {
            if lent.wanted && now >= self.next_at {
                return self.start(now, lent.gateways, lent.log);
            }
            return Ok(());
        }
        // The kernel goes on while the process is stopped.
        self.resent += self.devices.iter().filter_map(|users| users.first()).map(|user| user.tick(now)).sum::<u64>();
        if !self.runs(now) {
            return Ok(());
        }
        self.ran += 1;
        let ended = lock(&self.said).ended.take();
        if let Some(ended) = ended {
            return self.ended(now, ended, lent.log);
        }
        let zombie = lent.model.latest_epoch() > self.epoch;
        match self.state {
            State::Away => {}
            State::Starting => self.begin(lent)?,
            State::Failed { since } => {
                self.ask(lent, zombie);
                if self.ran >= since + 300 && self.rng.chance(10) {
                    self.leave(true, lent.log);
                }
            }
            State::Leaving { since, fenced: true } if self.ran >= since + FENCED_LIMIT => {
                return Err(format!("R8: {}'s attach is fenced, was told to end, and does not", self.name));
            }
            State::Reading | State::Leaving { .. } => {}
            State::Open if !lent.wanted && !zombie && !lent.forced => {
                // With a detach, or without.
                let at = *self.leave_at.get_or_insert_with(|| now + self.rng.range(0, 500) * MS);
                if now >= at && self.rng.chance(300) {
                    self.kill(now, false, lent.log);
                } else if now >= at {
                    self.leave(false, lent.log);
                } else {
                    self.ask(lent, zombie);
                }
            }
            State::Open => {
                self.leave_at = None;
                self.ask(lent, zombie);
            }
        }
        Ok(())
    }

    fn leave(&mut self, fenced: bool, log: &mut Vec<String>) {
        log.push(format!("{} detaches", self.name));
        self.stop.cancel();
        self.state = State::Leaving { since: self.ran, fenced };
    }

    fn ended(&mut self, now: u64, ended: Result<Ended, AttachError>, log: &mut Vec<String>) -> Result<(), String> {
        let said = match &ended {
            Ok(ended) => format!("{ended:?}"),
            Err(error) => error.to_string(),
        };
        log.push(format!("attach of {} ended: {said}", self.name));
        match (self.state, &ended) {
            (State::Starting, Err(AttachError::Refused(_) | AttachError::Unreachable { .. }))
            | (State::Leaving { .. }, Ok(Ended::Fenced { .. }))
            | (State::Leaving { fenced: false, .. }, Ok(_) | Err(_)) => {}
            (state, _) => {
                return Err(format!("R8: {}'s attach ended by itself while it was {state:?}: {said}", self.name));
            }
        }
        let after = self.rng.range(5, 300) * MS;
        self.gone(now, after);
        Ok(())
    }

    /// Its devices are there: everything is read.
    fn begin(&mut self, lent: &mut Lent<'_>) -> Result<(), String> {
        let (ready, devices) = {
            let mut said = lock(&self.said);
            if said.devices.is_empty() {
                return Ok(());
            }
            (said.ready, std::mem::take(&mut said.devices))
        };
        let epoch = ready.ok_or("devices before they are ready")?;
        lent.log.push(format!("{} is attached with epoch {epoch}", self.name));
        (self.epoch, self.devices, self.force) = (epoch, devices, false);
        // Another owner was attached and reported meanwhile: this one continues without knowing.
        if epoch > lent.model.latest_epoch() {
            lent.model.granted(epoch)?;
        }
        (self.found, self.missing, self.state) = (BTreeMap::new(), VOLUMES, State::Reading);
        for volume in 0..VOLUMES {
            self.read(lent.model, volume, 0, BLOCKS, false);
        }
        self.begin_scratch(lent.model);
        Ok(())
    }

    /// Hands requests in, perhaps.
    fn ask(&mut self, lent: &mut Lent<'_>, zombie: bool) {
        let (now, model) = (lent.now, &mut *lent.model);
        // Between a later owner's grant and its first reading no write is submitted: its order would be undefined.
        let decided = model.is_current(self.epoch) || zombie && model.is_current(model.latest_epoch());
        if self.sweep && self.sweeping == 0 {
            (self.sweep, self.sweeping) = (false, VOLUMES);
            for volume in 0..VOLUMES {
                self.read(model, volume, 0, BLOCKS, true);
            }
        }
        if !lent.busy || now < self.next_at {
            return;
        }
        if self.state == State::Open && model.is_current(self.epoch) {
            self.play_scratch(model);
        }
        if decided && self.writes.len() < self.load.writes(12) && self.rng.chance(500) {
            self.write(model);
        }
        if self.reads < 4 && self.rng.chance(400) {
            let blocks = self.rng.range(1, 6) as usize;
            let first = self.rng.below((BLOCKS - blocks + 1) as u64) as usize;
            let volume = self.rng.below(VOLUMES as u64) as usize;
            self.read(model, volume, first, blocks, false);
        }
        self.next_at = now + self.rng.range(0, 12 * MS);
    }

    fn write(&mut self, model: &mut Model) {
        let volume = self.rng.below(VOLUMES as u64) as usize;
        let user = self.rng.below(USERS as u64) as usize;
        let part = BLOCKS / USERS;
        let blocks = self.rng.range(1, self.load.blocks().min(part as u64)) as usize;
        let first = user * part + self.rng.below((part - blocks + 1) as u64) as usize;
        let id = model.hand_in(self.epoch, volume, first, blocks);
        let mut data = Vec::with_capacity(blocks * BLOCK_BYTES);
        for block in first..first + blocks {
            model::fill(&mut data, id, volume, block);
        }
        self.writes.insert(id, self.ran);
        let (device, done, life, asked) =
            (self.devices[volume][user].clone(), self.done.clone(), self.life, model.stamp());
        let flush = self.rng.chance(100);
        self.spawn(async move {
            let mut outcome = device.write((first * BLOCK_BYTES) as u64, Bytes::from(data)).await;
            if flush && outcome.is_ok() {
                outcome = device.flush().await;
            }
            lock(&done).push(Done { life, asked, what: What::Wrote { id, outcome } });
        });
    }

    fn read(&mut self, model: &mut Model, volume: usize, first: usize, blocks: usize, sweeps: bool) {
        let user = self.rng.below(USERS as u64) as usize;
        let (device, done, life, asked) =
            (self.devices[volume][user].clone(), self.done.clone(), self.life, model.stamp());
        self.reads += 1;
        self.spawn(async move {
            let read = device.read((first * BLOCK_BYTES) as u64, (blocks * BLOCK_BYTES) as u32).await;
            let outcome = read.map(model::bytes_of);
            lock(&done).push(Done { life, asked, what: What::Read { volume, first, outcome, sweeps } });
        });
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        if let Some(slices) = &self.slices {
            slices.spawn(work);
        }
    }

    /// Answers since the last call; `taken`: gateways know that another owner was granted the set after this one.
    pub fn answers(&mut self, lent: &mut Lent<'_>, taken: impl Fn(u64) -> bool) -> Result<(), String> {
        let done = std::mem::take(&mut *lock(&self.done));
        let life = self.life;
        for Done { asked, what, .. } in done.into_iter().filter(|done| done.life == life) {
            let error = match &what {
                What::Wrote { outcome, .. } => outcome.as_ref().err().cloned(),
                What::Read { outcome, .. } | What::Scratch { outcome, .. } => outcome.as_ref().err().cloned(),
            };
            match error {
                None if self.failed_at.is_some_and(|failed| failed < asked) => {
                    return Err(format!("R8, ATTACH-M5: {}'s device answered again after it had failed", self.name));
                }
                None => {}
                Some(RequestError::Refused(Errno::Io)) if taken(self.epoch) => self.fenced(lent),
                Some(RequestError::Refused(errno)) => {
                    return Err(format!(
                        "R8: {}'s device (epoch {}) answered {errno:?}, and nobody took the set",
                        self.name, self.epoch
                    ));
                }
                // It ends with the process.
                Some(RequestError::Lost(_)) if matches!(self.state, State::Leaving { .. }) => {}
                Some(RequestError::Lost(why)) => {
                    return Err(format!("R8: {}'s device was closed: {why}", self.name));
                }
            }
            match what {
                What::Wrote { id, outcome } => {
                    self.writes.remove(&id);
                    if outcome.is_ok() {
                        lent.model.answered(id)?;
                    }
                }
                What::Scratch { volume, step, outcome } => self.scratch_answered(lent, volume, step, outcome)?,
                What::Read { volume, first, outcome, sweeps } => {
                    self.reads -= 1;
                    if let Ok(data) = outcome {
                        self.was_read(lent, asked, (volume, first), &data, sweeps)?;
                    }
                }
            }
        }
        let oldest = self.writes.values().next().copied();
        if let State::Failed { since } = self.state
            && self.ran >= since + FENCED_LIMIT
            && oldest.is_some_and(|at| at < since)
        {
            return Err(format!("R8: {}'s device has failed, and leaves a request unanswered", self.name));
        }
        Ok(())
    }

    fn fenced(&mut self, lent: &mut Lent<'_>) {
        self.errors += 1;
        if self.failed_at.is_none() {
            self.failed_at = Some(lent.model.stamp());
            lent.log.push(format!("{}'s device fails (epoch {})", self.name, self.epoch));
            if !matches!(self.state, State::Leaving { .. }) {
                self.state = State::Failed { since: self.ran };
            }
        }
    }

    fn was_read(
        &mut self,
        lent: &mut Lent<'_>,
        asked: u64,
        (volume, first): Place,
        data: &[u8],
        sweeps: bool,
    ) -> Result<(), String> {
        let model = &mut *lent.model;
        let reading = self.state == State::Reading;
        let current = reading && model.latest_epoch() == self.epoch;
        for (at, bytes) in data.chunks(BLOCK_BYTES).enumerate() {
            let id = model::id_of(bytes, volume, first + at)?;
            if current {
                self.found.insert((volume, first + at), id);
            } else {
                model.read(asked, volume, first + at, id)?;
            }
        }
        if sweeps {
            self.sweeping -= 1;
            self.swept += u64::from(self.sweeping == 0);
        }
        if reading {
            self.missing -= 1;
            if self.missing == 0 {
                if current {
                    model.resolve(self.epoch, &std::mem::take(&mut self.found))?;
                    self.opened += 1;
                    lent.log.push(format!("{} has read everything in epoch {}", self.name, self.epoch));
                }
                (self.state, self.next_at) = (State::Open, lent.now);
            }
        }
        Ok(())
    }
}
