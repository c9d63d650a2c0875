//! The owners of the set: each is a host that acquires the lease, reads everything first, and then writes and reads,
//! many requests at a time.
//!
//! A client talks to a gateway through tasks in the gateway's process, in place of NBD and gRPC: they die with it,
//! unanswered. A client that gives up on a gateway leaves its requests there: they may still be carried out, but not
//! after a later epoch was granted (R6).

use crate::host::Process;
use crate::model::{self, BLOCK_BYTES, BLOCKS, Id, Model, VOLUMES};
use crate::rng::Rng;
use crate::shape::Load;
use crate::sync::lock;
use bytes::Bytes;
use holdfast_front::device::{ConnInfo, Device, Exports, Peer};
use holdfast_nbd::{ExportName, Session};
use holdfast_set::device::NodeExports;
use holdfast_set::server::SetError;
use holdfast_types::{Name, Owner, RequestId, Token};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The set.
pub const SET: &str = "sim";
/// Its volumes.
pub const VOLUME_NAMES: [&str; VOLUMES] = ["a", "b"];

const MS: u64 = 1_000_000;
/// A request without an answer is given up after this time; some clients give up sooner, so that another gateway serves
/// while the first sleeps.
const PATIENCE: [u64; 2] = [1_200 * MS, 5_000 * MS];
const RENEW_EVERY: u64 = 700 * MS;
const TTL: Duration = Duration::from_secs(2);

type Devices = Vec<Arc<dyn Device>>;

/// Content of a grant.
pub struct Grant {
    epoch: u64,
    token: u128,
    devices: Devices,
    closed: Vec<CancellationToken>,
}

/// Something came back.
pub enum Done {
    Granted { client: usize, attempt: u64, outcome: Result<Grant, Denied> },
    Wrote { client: usize, session: u64, id: Id, fine: bool },
    Read { client: usize, session: u64, asked: u64, volume: usize, first: usize, data: Option<Vec<u8>> },
}

/// Why there is no grant.
pub struct Denied {
    /// The token is good for nothing any more.
    stale: bool,
    why: String,
}

/// Where answers are put until the world looks.
pub type Answers = Arc<Mutex<Vec<Done>>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Away,
    Asking { since: u64 },
    Reading { since: u64 },
    Open,
}

/// See the module.
pub struct Client {
    index: usize,
    owner: Owner,
    patience: u64,
    rng: Rng,
    state: State,
    token: Option<u128>,
    request: u128,
    attempt: u64,
    session: u64,
    epoch: u64,
    host: usize,
    life: u64,
    devices: Devices,
    closed: Vec<CancellationToken>,
    found: BTreeMap<(usize, usize), Id>,
    missing: usize,
    under_way: BTreeMap<Id, u64>,
    reads_under_way: usize,
    renewed_at: u64,
    next_at: u64,
    /// Takes the lease from any holder.
    pub force: bool,
    /// Sessions that reached their first write.
    pub opened: u64,
    /// Counts a write as answered when it is submitted: `Broken::AnsweredEarly`.
    early: bool,
    load: Load,
}

fn owner(index: usize) -> Owner {
    let name = ["alpha", "beta", "gamma"][index % 3];
    match Owner::new(name) {
        Ok(owner) => owner,
        Err(e) => unreachable!("a plain word is an owner: {e}"),
    }
}

fn name_of(text: &str) -> Name {
    match Name::new(text) {
        Ok(name) => name,
        Err(e) => unreachable!("a plain word is a name: {e}"),
    }
}

impl Client {
    pub fn new(index: usize, seed: u64, early: bool, load: Load) -> Self {
        let mut rng = Rng::new(seed, 200 + index as u64);
        Self {
            index,
            owner: owner(index),
            patience: rng.pick(&PATIENCE),
            rng,
            state: State::Away,
            token: None,
            request: 0,
            attempt: 0,
            session: 0,
            epoch: 0,
            host: 0,
            life: 0,
            devices: Vec::new(),
            closed: Vec::new(),
            found: BTreeMap::new(),
            missing: 0,
            under_way: BTreeMap::new(),
            reads_under_way: 0,
            renewed_at: 0,
            next_at: 0,
            force: false,
            opened: 0,
            early,
            load,
        }
    }

    /// Whether it has read everything and may write.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// The gateway that was asked last.
    pub fn asked(&self) -> usize {
        self.host
    }

    /// Whether it would ask for the lease now.
    pub fn wants_to_ask(&self, now: u64, wanted: bool) -> bool {
        self.state == State::Away && wanted && now >= self.next_at
    }

    /// Whether all its requests are answered.
    pub fn is_quiet(&self) -> bool {
        self.under_way.is_empty() && self.reads_under_way == 0
    }

    fn leave(&mut self, now: u64) {
        self.state = State::Away;
        self.under_way.clear();
        self.reads_under_way = 0;
        self.next_at = now + self.rng.range(5 * MS, 200 * MS);
    }

    /// Asks `process` at `host` for the lease, or to continue it.
    pub fn ask(&mut self, now: u64, host: usize, process: &Process, answers: &Answers, log: &mut Vec<String>) {
        let Some(node) = process.node() else { return };
        self.attempt += 1;
        self.state = State::Asking { since: now };
        (self.host, self.life) = (host, process.life);
        // Asked again after no answer: mostly with the same request (R12).
        if self.request == 0 || self.rng.chance(300) {
            self.request = u128::from(self.rng.draw()) << 64 | u128::from(self.rng.draw()) | 1;
        }
        let (client, attempt, owner, token, force) =
            (self.index, self.attempt, self.owner.clone(), self.token, self.force);
        // A gateway draws the token of a grant, so a copy of a request comes with another one.
        let new = Token(u128::from(self.rng.draw()) << 64 | u128::from(self.rng.draw()) | 1);
        let request = RequestId(self.request);
        log.push(format!("{owner} asks {} (force {force}, continues {})", host + 1, token.is_some()));
        let answers = answers.clone();
        process.spawn(async move {
            let outcome = async {
                let set = node.set(&name_of(SET)).ok_or(Denied { stale: false, why: "no set yet".into() })?;
                let granted = match token {
                    Some(token) => set.continue_lease(owner, Token(token), new, request).await,
                    None => set.acquire(owner, new, TTL, request, force, false).await,
                };
                let lease = granted.map_err(|e| Denied { stale: stale(&e), why: e.to_string() })?;
                let (cluster, sets) = (node.cluster.clone(), node.sets.clone());
                let exports = NodeExports { cluster, sets, plain_exports: false, open_snapshots: false };
                let (mut devices, mut closed) = (Vec::new(), Vec::new());
                for volume in VOLUME_NAMES {
                    let session = Some(Session { token: lease.token, slot: 0, incarnation: attempt });
                    let name = ExportName { set: name_of(SET), volume: name_of(volume), snapshot: None, session };
                    let opened = exports.open(&name, ConnInfo { id: attempt, peer: Peer::Unix }).await;
                    let opened = opened.map_err(|e| Denied { stale: false, why: e.to_string() })?;
                    devices.push(opened.device);
                    closed.push(opened.closed);
                }
                Ok(Grant { epoch: lease.epoch.0, token: lease.token.0, devices, closed })
            };
            let outcome = outcome.await;
            lock(&answers).push(Done::Granted { client, attempt, outcome });
        });
    }

    fn write(&mut self, now: u64, model: &mut Model, process: &Process, answers: &Answers) {
        let volume = self.rng.below(VOLUMES as u64) as usize;
        let blocks = self.rng.range(1, self.load.blocks()) as usize;
        let first = self.rng.below((BLOCKS - blocks + 1) as u64) as usize;
        let id = model.hand_in(self.epoch, volume, first, blocks);
        let mut data = Vec::with_capacity(blocks * BLOCK_BYTES);
        for block in first..first + blocks {
            model::fill(&mut data, id, volume, block);
        }
        let (device, answers, client, session) =
            (self.devices[volume].clone(), answers.clone(), self.index, self.session);
        self.under_way.insert(id, now);
        if self.early {
            lock(&answers).push(Done::Wrote { client, session, id, fine: true });
        }
        process.spawn(async move {
            let fine = device.write((first * BLOCK_BYTES) as u64, Bytes::from(data), false).await.is_ok();
            lock(&answers).push(Done::Wrote { client, session, id, fine });
        });
    }

    fn read(&mut self, model: &mut Model, process: &Process, answers: &Answers, place: Option<usize>) {
        let (volume, first, blocks) = match place {
            Some(volume) => (volume, 0, BLOCKS),
            None => {
                let blocks = self.rng.range(1, 6) as usize;
                let first = self.rng.below((BLOCKS - blocks + 1) as u64) as usize;
                (self.rng.below(VOLUMES as u64) as usize, first, blocks)
            }
        };
        let asked = model.stamp();
        let (device, answers, client, session) =
            (self.devices[volume].clone(), answers.clone(), self.index, self.session);
        self.reads_under_way += 1;
        process.spawn(async move {
            let read = device.read((first * BLOCK_BYTES) as u64, (blocks * BLOCK_BYTES) as u32).await;
            let data = read.ok().map(model::bytes_of);
            lock(&answers).push(Done::Read { client, session, asked, volume, first, data });
        });
    }

    /// Releases the lease without waiting for the answer.
    fn release(&mut self, now: u64, process: &Process, log: &mut Vec<String>) {
        log.push(format!("{} releases epoch {} at {}", self.owner, self.epoch, self.host + 1));
        let (epoch, token) = (holdfast_types::Epoch(self.epoch), self.token.take().map(Token));
        if let Some(node) = process.node() {
            process.spawn(async move {
                if let Some(set) = node.set(&name_of(SET)) {
                    // If it is lost, the lease expires.
                    drop(set.release(epoch, token).await);
                }
            });
        }
        self.leave(now);
    }

    fn renew(&mut self, now: u64, process: &Process) {
        self.renewed_at = now;
        let Some(node) = process.node() else { return };
        let epoch = holdfast_types::Epoch(self.epoch);
        process.spawn(async move {
            if let Some(set) = node.set(&name_of(SET)) {
                // The next renewal repeats a failed one.
                drop(set.renew(epoch).await);
            }
        });
    }

    /// Runs it up to now. `wanted`: it is its turn to have the lease; `where_to`: the gateway to ask; `busy`: writes
    /// and reads are wanted.
    #[allow(clippy::too_many_arguments)]
    pub fn tick(
        &mut self,
        now: u64,
        model: &mut Model,
        wanted: bool,
        busy: bool,
        ask: Option<(usize, &Process)>,
        mine: Option<&Process>,
        answers: &Answers,
        log: &mut Vec<String>,
    ) {
        let mine = mine.filter(|process| process.life == self.life);
        let gone = mine.is_none() || self.closed.iter().any(CancellationToken::is_cancelled);
        match self.state {
            State::Away => {
                // Only if it wants to: `wants_to_ask`.
                if let Some((host, process)) = ask {
                    self.ask(now, host, process, answers, log);
                }
            }
            State::Asking { since } => {
                if mine.is_none() || now >= since + self.patience {
                    self.leave(now);
                }
            }
            State::Reading { since } => {
                if gone || now >= since + self.patience {
                    self.leave(now);
                }
            }
            State::Open => self.go_on(now, model, (wanted, busy), gone, mine, answers, log),
        }
    }

    /// Writes and reads, renews the lease, or leaves its gateway. `gone`: the gateway has closed its connections.
    #[allow(clippy::too_many_arguments)]
    fn go_on(
        &mut self,
        now: u64,
        model: &mut Model,
        (wanted, busy): (bool, bool),
        gone: bool,
        mine: Option<&Process>,
        answers: &Answers,
        log: &mut Vec<String>,
    ) {
        let stuck = self.under_way.values().next().is_some_and(|since| now >= since + self.patience);
        // A host that was not told continues with an ended epoch for a while: a zombie.
        let zombie = model.latest_epoch() > self.epoch;
        if gone && !(zombie && mine.is_some()) || stuck || zombie && self.rng.chance(2) {
            log.push(format!("{} leaves {} (epoch {})", self.owner, self.host + 1, self.epoch));
            return self.leave(now);
        }
        let Some(process) = mine else { return };
        if !wanted && !zombie && self.is_quiet() {
            // With a release, or without.
            return match self.rng.chance(700) {
                true => self.release(now, process, log),
                false => self.leave(now),
            };
        }
        let busy = busy && (wanted || zombie);
        if now >= self.renewed_at + RENEW_EVERY && busy {
            self.renew(now, process);
        }
        // Between the grant of a later epoch and its first reading nothing is submitted: its order would be undefined.
        let decided = model.is_current(self.epoch) || zombie && model.is_current(model.latest_epoch());
        if !busy || now < self.next_at || !decided {
            return;
        }
        if self.under_way.len() < self.load.writes(8) && self.rng.chance(500) {
            self.write(now, model, process, answers);
        }
        if self.reads_under_way < 4 && self.rng.chance(400) {
            self.read(model, process, answers, None);
        }
        self.next_at = now + self.rng.range(0, 12 * MS);
    }

    /// An answer for the session or attempt in it.
    #[expect(clippy::too_many_arguments, reason = "what the world lends for one step, as to its neighbours here")]
    pub fn granted(
        &mut self,
        now: u64,
        model: &mut Model,
        attempt: u64,
        outcome: Result<Grant, Denied>,
        process: Option<&Process>,
        answers: &Answers,
        log: &mut Vec<String>,
    ) -> Result<(), String> {
        let waited = matches!(self.state, State::Asking { .. }) && attempt == self.attempt;
        match outcome {
            Err(_) if !waited => Ok(()),
            Err(Denied { stale, why }) => {
                log.push(format!("{} is denied by {}: {why}", self.owner, self.host + 1));
                if stale {
                    (self.token, self.request) = (None, 0);
                }
                self.leave(now);
                Ok(())
            }
            // Given up meanwhile, or asked twice: as far as this client knows, another owner has it now.
            Ok(_) if !waited => Ok(()),
            Ok(grant) => {
                log.push(format!("{} has epoch {} at {}", self.owner, grant.epoch, self.host + 1));
                if grant.epoch < model.latest_epoch() {
                    // The answer was long under way; another lease was granted and reported since.
                    self.token = None;
                    self.leave(now);
                    return Ok(());
                }
                model.granted(grant.epoch)?;
                let Some(process) = process else { return Ok(()) };
                self.session += 1;
                (self.epoch, self.token, self.request) = (grant.epoch, Some(grant.token), 0);
                (self.devices, self.closed) = (grant.devices, grant.closed);
                (self.found, self.missing) = (BTreeMap::new(), VOLUMES);
                (self.under_way, self.reads_under_way) = (BTreeMap::new(), 0);
                self.state = State::Reading { since: now };
                self.force = false;
                for volume in 0..VOLUMES {
                    self.read(model, process, answers, Some(volume));
                }
                Ok(())
            }
        }
    }

    /// A write was answered.
    pub fn wrote(
        &mut self,
        now: u64,
        model: &mut Model,
        session: u64,
        id: Id,
        fine: bool,
        log: &mut Vec<String>,
    ) -> Result<(), String> {
        let known = session == self.session && self.under_way.remove(&id).is_some();
        if fine {
            return model.answered(id);
        }
        if known && self.state == State::Open && model.latest_epoch() == self.epoch {
            log.push(format!(
                "{} leaves {} (epoch {}): a write was not answered",
                self.owner,
                self.host + 1,
                self.epoch
            ));
            self.leave(now);
        }
        Ok(())
    }

    /// A read was answered.
    #[allow(clippy::too_many_arguments)]
    pub fn was_read(
        &mut self,
        now: u64,
        model: &mut Model,
        session: u64,
        asked: u64,
        volume: usize,
        first: usize,
        data: Option<Vec<u8>>,
        log: &mut Vec<String>,
    ) -> Result<(), String> {
        let this = session == self.session;
        if this {
            self.reads_under_way = self.reads_under_way.saturating_sub(1);
        }
        let reading = this && matches!(self.state, State::Reading { .. });
        let Some(data) = data else {
            if this && (reading || self.state == State::Open) && model.latest_epoch() == self.epoch {
                self.leave(now);
            }
            return Ok(());
        };
        let current = reading && model.latest_epoch() == self.epoch;
        for (at, bytes) in data.chunks(BLOCK_BYTES).enumerate() {
            let block = first + at;
            let id = model::id_of(bytes, volume, block)?;
            if !current {
                model.read(asked, volume, block, id)?;
            } else {
                self.found.insert((volume, block), id);
            }
        }
        if current {
            self.missing -= 1;
            if self.missing == 0 {
                model.resolve(self.epoch, &std::mem::take(&mut self.found))?;
                self.state = State::Open;
                self.opened += 1;
                (self.renewed_at, self.next_at) = (now, now);
                log.push(format!("{} has read everything in epoch {}", self.owner, self.epoch));
            }
        }
        Ok(())
    }
}

/// Whether an answer means that the token is invalid.
fn stale(error: &SetError) -> bool {
    matches!(error, SetError::Refused(_))
}
