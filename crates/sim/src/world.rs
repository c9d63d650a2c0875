//! The scheduler. Its clock advances by milliseconds; in each run network, stores, gateways in random order, clients,
//! faults, checks.

use crate::agents::{self, Agents};
use crate::attached::Attached;
use crate::broken::Broken;
use crate::client::{Answers, Client, Done, SET, VOLUME_NAMES};
use crate::full::Full;
use crate::host::{self, Host};
use crate::libc;
use crate::members::Administrator;
use crate::model::{BLOCK_BYTES, BLOCKS, Model};
use crate::modes::Modes;
use crate::net::Net;
use crate::placing::Placing;
use crate::replicas::Replicas;
use crate::rng::Rng;
use crate::shape::Shape;
use crate::snapshots::Keeper;
use crate::stats::Stats;
use crate::stores::Depot;
use crate::sync::lock;
use crate::time::Clock;
pub use crate::units::{CLUSTER, MS, TICK};
use anyhow::{Result, anyhow, bail};
use holdfast_api::v1;
use holdfast_api::v1::admin_server::Admin;
use holdfast_gateway::admin::AdminDoor;
use holdfast_gateway::node::Node;
use holdfast_set::server::SetServer;
use holdfast_types::{GroupId, MemberId, Name};
use std::cell::OnceCell;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// Clients; one at a time is wanted.
const CLIENTS: usize = 2;

/// How far a clock drifts, in millionths: somewhat below the product's limit of a tenth (DRIFT_PERCENT_MAX).
const DRIFT_PPM_MAX: u64 = 80_000;

/// Interval at which the log records the numbers of draws and network events.
const FINGERPRINT_EVERY: u64 = 500 * MS;

/// A run's state, and its result.
pub struct World {
    pub seed: u64,
    pub now: u64,
    pub shape: Shape,
    pub hosts: Vec<Host>,
    pub net: Net,
    pub stores: Depot,
    pub rng: Rng,
    pub rtt_ms: u32,
    pub log: Vec<String>,
    pub loud: bool,
    pub clients: Vec<Client>,
    /// The owners' hosts, where the set is attached instead.
    pub attached: Option<Attached>,
    /// The same, decided by agents.
    pub agents: Option<Agents>,
    /// Disks that are full for a while.
    pub full: Option<Full>,
    /// Sets that are moved.
    pub placing: Option<Placing>,
    pub active: usize,
    pub model: Model,
    dir: std::path::PathBuf,
    answers: Answers,
    pub replicas: Replicas,
    set_name: Name,
    pub groups: OnceCell<Vec<GroupId>>,
    pub keeper: Keeper,
    /// The member of each machine; none for an empty machine.
    pub places: Vec<Option<u64>>,
    pub administrator: Administrator,
    pub busy: bool,
    pub broken: Option<Broken>,
    /// Writes and read blocks after which everything counts as working.
    pub enough: u64,
    /// Few seconds of faults, and content sooner.
    pub short: bool,
    /// This gateway's disk was put back: it is to be refused.
    pub restored: Option<usize>,
    /// How often it was told so.
    pub told: u64,
    /// This gateway's disk says that it syncs, and does not.
    pub liar: Option<usize>,
    /// The set is being deleted: clients, stores and replicas are no longer compared.
    pub set_goes: bool,
    pub stats: Stats,
}

/// The clock of a gateway's machine.
fn clock(rng: &mut Rng, gateway: usize, broken: Option<Broken>, shape: Shape) -> Clock {
    let drift_ppm = if rng.chance(600) { rng.range(0, 2 * DRIFT_PPM_MAX) as i64 - DRIFT_PPM_MAX as i64 } else { 0 };
    let drift_ppm = shape.drift_ppm(drift_ppm, DRIFT_PPM_MAX as i64, gateway);
    let drift_ppm = if broken == Some(Broken::DriftBeyond) { drift_ppm * 4 } else { drift_ppm };
    Clock::new(rng.range(0, 3_600) * 1000 * MS, drift_ppm)
}

impl World {
    /// Machines that have never run, and nothing else.
    pub fn new(seed: u64, dir: &Path, loud: bool, broken: Option<Broken>, modes: Modes, shape: Shape) -> Result<Self> {
        let Modes { several, attach, full, agents, placing, .. } = modes;
        let mut rng = Rng::new(seed, 1);
        // First members, and machines that may become members later.
        let first = if rng.chance(750) { 3 } else { 5 };
        let count = first + if first == 3 { rng.pick(&[0, 1, 1, 2]) } else { rng.pick(&[0, 0, 1]) };
        let (net, stores) = (Net::new(seed, count + CLIENTS.max(agents::PLACES)), Depot::new(seed, several));
        let attached = attach.then(|| Attached::new(seed, CLIENTS, count, &net, dir, broken, shape));
        let agents = agents.then(|| Agents::new(seed, count, &net, dir, broken, shape)).transpose()?;
        let with_nbd = attach || agents.is_some();
        let mut hosts = Vec::new();
        for index in 0..count {
            let clock = clock(&mut rng, index, broken, shape);
            let mut host = Host::new(index, seed, dir.join(host::name(index)), net.clone(), &stores.servers, clock)?;
            (host.broken, host.nbd, host.shape) = (broken, with_nbd, shape);
            host.syncs_ignored = broken == Some(Broken::SyncsIgnored);
            hosts.push(host);
        }
        for host in &mut hosts[first..] {
            host.witness = rng.chance(250);
        }
        let (rtt_ms, early) = (rng.pick(&[1, 2, 10]), broken == Some(Broken::AnsweredEarly));
        let clients = (0..CLIENTS).map(|index| Client::new(index, seed, early, shape.load)).collect();
        Ok(Self {
            seed,
            now: 0,
            shape,
            replicas: Replicas::default(),
            set_name: Name::new(SET)?,
            groups: OnceCell::new(),
            keeper: Keeper::new(seed),
            enough: 100,
            short: false,
            restored: None,
            told: 0,
            liar: None,
            set_goes: false,
            broken,
            places: (0..count).map(|index| (index < first).then_some(index as u64 + 1)).collect(),
            administrator: Administrator::default(),
            hosts,
            net,
            stores,
            rng,
            rtt_ms,
            log: Vec::new(),
            loud,
            clients,
            active: 0,
            model: Model::new(with_nbd),
            attached,
            agents,
            full: full.then(|| Full::new(seed, shape)),
            placing: placing.then(|| Placing::new(seed, shape)),
            dir: dir.to_path_buf(),
            answers: Answers::default(),
            busy: false,
            stats: Stats::default(),
        })
    }

    /// The set is attached by its owners' hosts, before any gateway is started.
    pub fn attach_owners(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.nbd = true);
        self.model = Model::new(true);
        let (gateways, shape) = (self.hosts.len(), self.shape);
        self.attached = Some(Attached::new(self.seed, CLIENTS, gateways, &self.net, &self.dir, self.broken, shape));
    }

    /// A line of the log.
    pub fn note(&mut self, text: impl AsRef<str>) {
        let line = format!("{:>10.3} {}", self.now as f64 / 1e9, text.as_ref());
        if self.loud {
            println!("{line}");
        }
        self.log.push(line);
    }

    /// One millisecond.
    pub fn tick(&mut self) -> Result<()> {
        self.now += TICK;
        self.net.advance(self.now);
        self.stores.advance(self.now);
        let mut order: Vec<usize> = (0..self.hosts.len()).collect();
        self.rng.shuffle(&mut order);
        for index in order {
            if self.hosts[index].goes_on(self.now) {
                // Before it receives anything: the answer that a read with ready data would get now (R3).
                self.hosts[index].enter(self.now);
                self.check(index)?;
            }
            if self.hosts[index].runs(self.now) && self.hosts[index].slice(self.now) {
                self.after_slice(index)?;
            }
        }
        self.run_clients()?;
        self.tend_members()?;
        self.tend_snapshots()?;
        self.tend_stores()?;
        if self.now.is_multiple_of(FINGERPRINT_EVERY) {
            let (events, bytes) = self.net.fingerprint();
            self.note(format!("= draws {} events {events} bytes {bytes}", libc::draws()));
        }
        Ok(())
    }

    fn after_slice(&mut self, index: usize) -> Result<()> {
        let fatal = host::take_fatal();
        if !fatal.is_empty() && !self.went_backwards(index, &fatal)? {
            bail!("R11: {}", fatal.join("; "));
        }
        if let Some(why) = self.hosts[index].process.as_ref().and_then(|process| lock(&process.ended).take()) {
            self.ended(index, &why)?;
        }
        self.take_answers()?;
        self.see_grants(index);
        self.check(index)
    }

    /// The set at gateway `index`, if it runs.
    pub fn set(&self, index: usize) -> Option<Arc<SetServer>> {
        self.node(index)?.set(&self.set_name)
    }

    /// The node at gateway `index`, if it is open.
    pub fn node(&self, index: usize) -> Option<Arc<Node>> {
        self.hosts[index].process.as_ref()?.node()
    }

    /// The gateway that leads the set's group, by its own view.
    pub fn leader(&self) -> Option<usize> {
        (0..self.hosts.len()).find(|index| self.set(*index).is_some_and(|set| set.leading_ready().is_some()))
    }

    fn take_answers(&mut self) -> Result<()> {
        let mut answers = std::mem::take(&mut *lock(&self.answers));
        // A scene may go on without them.
        answers.retain(|_| !self.clients.is_empty());
        let mut lines = Vec::new();
        for done in answers {
            let now = self.now;
            let (model, all) = (&mut self.model, &self.answers);
            let outcome = match done {
                Done::Granted { client, attempt, outcome } => {
                    let asked = self.clients[client].asked();
                    let process = self.hosts[asked].process.as_ref();
                    self.clients[client].granted(now, model, attempt, outcome, process, all, &mut lines)
                }
                Done::Wrote { client, session, id, fine } => {
                    self.clients[client].wrote(now, model, session, id, fine, &mut lines)
                }
                Done::Read { client, session, asked, volume, first, data } => {
                    self.clients[client].was_read(now, model, session, asked, volume, first, data, &mut lines)
                }
            };
            for line in std::mem::take(&mut lines) {
                self.note(line);
            }
            outcome.map_err(|broken| anyhow!(broken))?;
        }
        Ok(())
    }

    /// Mostly the leader; sometimes, and without a leader, any running gateway.
    fn whom_to_ask(&mut self) -> Option<usize> {
        if let Some(leader) = self.leader().filter(|_| self.rng.chance(800)) {
            return Some(leader);
        }
        let up: Vec<usize> = (0..self.hosts.len()).filter(|at| self.hosts[*at].process.is_some()).collect();
        (!up.is_empty()).then(|| self.rng.pick(&up))
    }

    fn run_clients(&mut self) -> Result<()> {
        if self.model.latest_epoch() == 0 && !self.busy {
            return Ok(());
        }
        if self.agents.is_some() {
            return self.run_agents();
        }
        if self.attached.is_some() {
            return self.run_attached();
        }
        let mut lines = Vec::new();
        for index in 0..self.clients.len() {
            let to = match self.clients[index].wants_to_ask(self.now, index == self.active) {
                true => self.whom_to_ask(),
                false => None,
            };
            let ask = to.and_then(|at| self.hosts[at].process.as_ref().map(|process| (at, process)));
            let mine = self.hosts[self.clients[index].asked()].process.as_ref();
            let (wanted, busy) = (index == self.active, self.busy);
            self.clients[index].tick(self.now, &mut self.model, wanted, busy, ask, mine, &self.answers, &mut lines);
        }
        for line in lines {
            self.note(line);
        }
        Ok(())
    }

    /// Runs until `done`, at most for `limit` milliseconds.
    pub fn until(&mut self, limit: u64, what: &str, mut done: impl FnMut(&mut World) -> bool) -> Result<()> {
        let begun = self.now;
        while !done(self) {
            if self.now >= begun + limit * MS {
                bail!("no progress: {what} not within {} s with every fault gone. {}", limit / 1000, self.picture());
            }
            self.tick()?;
        }
        Ok(())
    }

    /// State of each gateway, for the text of a failure.
    pub fn picture(&self) -> String {
        let of = |index: usize| {
            let Some(node) = self.node(index) else { return format!("[{}: not open]", index + 1) };
            let groups = node.adopted().map(|adopted| adopted.raft.groups()).unwrap_or_default();
            let groups: Vec<String> = groups
                .iter()
                .map(|group| {
                    let l = *group.leadership().borrow();
                    let snapshot = group.snapshot_last().map_or(0, |id| id.index.0);
                    let status = group.status();
                    let members: Vec<_> = status.members.iter().map(|m| (m.member.0, m.voter)).collect();
                    format!(
                        "group {}: {members:?} next {:?} term {} leader {:?} stopped {} applied {} snapshot {snapshot}",
                        group.id(),
                        status.next,
                        l.term,
                        l.leader.map(|m| m.0),
                        l.stopped,
                        group.applied()
                    )
                })
                .collect();
            let serve = self.set(index).map(|set| {
                format!(
                    "{:?}, lease {:?}",
                    set.may_read(),
                    set.lease().map(|l| (l.owner.to_string(), l.epoch, l.gateway))
                )
            });
            let place = self.places[index];
            format!("[{} ({place:?}): {} {serve:?} {:?}]", index + 1, groups.join(", "), node.not_ready())
        };
        (0..self.hosts.len()).map(of).collect::<Vec<_>>().join(" ")
    }

    /// Runs `work` in gateway `index`, and waits at most `limit` milliseconds for it.
    pub fn call<T: Send + 'static>(
        &mut self,
        index: usize,
        limit: u64,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let slot: Arc<Mutex<Option<T>>> = Arc::default();
        let to = slot.clone();
        let process = self.hosts[index].process.as_ref().ok_or_else(|| anyhow!("gateway {} is down", index + 1))?;
        process.spawn(async move {
            let found = work.await;
            *lock(&to) = Some(found);
        });
        self.until(limit, "an answer of the admin API", |_| lock(&slot).is_some())?;
        lock(&slot).take().ok_or_else(|| anyhow!("no answer"))
    }

    /// The gateway of a machine, as the admin API describes it.
    pub fn member(&self, index: usize, disk: u128) -> v1::Member {
        let addresses = v1::Addresses {
            nbd: if self.hosts[index].nbd { host::nbd_address(index) } else { String::new() },
            peer: host::address(index),
            api: format!("10.0.0.{}:7400", index + 1),
            ..v1::Addresses::default()
        };
        v1::Member {
            id: index as u64 + 1,
            name: host::name(index),
            region: "local".into(),
            locality: self.hosts[index].locality.as_ref().map(ToString::to_string).unwrap_or_default(),
            disk: holdfast_api::hex128(disk),
            addresses: Some(addresses),
            ..v1::Member::default()
        }
    }

    /// A cluster with a set and its volumes, before any fault.
    pub fn bootstrap(&mut self) -> Result<()> {
        for index in 0..self.hosts.len() {
            let (now, rtt) = (self.now, self.rtt_ms);
            self.hosts[index].start(now, rtt)?;
        }
        self.until(10_000, "every gateway open", |w| (0..w.hosts.len()).all(|at| w.node(at).is_some()))?;
        let mut members = Vec::new();
        for index in (0..self.hosts.len()).filter(|index| self.places[*index].is_some()).collect::<Vec<_>>() {
            let Some(node) = self.node(index) else { bail!("gateway {} is gone", index + 1) };
            members.push(self.member(index, node.identity().disk()));
            let member = MemberId(index as u64 + 1);
            self.call(index, 10_000, async move { node.adopt(CLUSTER, member).await })??;
        }
        let members_count = members.len();
        let init = v1::InitClusterRequest {
            cluster_id: holdfast_api::hex128(CLUSTER),
            members,
            request_id: holdfast_api::hex128(1000),
        };
        self.anywhere("the cluster", init, |door, request| async move { Admin::init_cluster(&door, request).await })?;
        for (at, name) in (0u128..).zip(self.sets()).collect::<Vec<_>>() {
            let create = v1::CreateSetRequest {
                name,
                // Checked and created, but not used: the gateways' way to the store is simulated.
                store: self.stores.text(&self.dir),
                request_id: holdfast_api::hex128(2000 + at),
                policy: None,
            };
            self.anywhere("the set", create, |door, request| async move { door.create_set(request).await })?;
        }
        for (at, name) in VOLUME_NAMES.iter().enumerate() {
            let create = v1::CreateVolumeRequest {
                set: SET.into(),
                name: (*name).into(),
                size_bytes: ((BLOCKS + 1) * BLOCK_BYTES) as u64,
                request_id: holdfast_api::hex128(3000 + at as u128),
            };
            self.anywhere("a volume", create, |door, request| async move { door.create_volume(request).await })?;
        }
        let (all, rtt) = (self.hosts.len(), self.rtt_ms);
        self.note(format!(
            "{} gateways and {} empty machines, round trip {rtt} ms: the set is there",
            members_count,
            all - members_count
        ));
        Ok(())
    }

    /// The names of all sets. That of the clients is the first one; nobody uses the others.
    fn sets(&self) -> impl Iterator<Item = String> + use<> {
        let more = (1..=self.shape.sets).map(|number| format!("more{number}"));
        std::iter::once(SET.to_string()).chain(more)
    }

    /// Asks one gateway after the other until one succeeds.
    pub fn anywhere<Q, F, T>(
        &mut self,
        what: &str,
        request: Q,
        ask: impl Fn(AdminDoor, tonic::Request<Q>) -> F,
    ) -> Result<()>
    where
        Q: Clone,
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send + 'static,
        T: Send + 'static,
    {
        let mut last = String::new();
        for round in 0..200 {
            let index = round % self.hosts.len();
            let Some(node) = self.node(index) else { continue };
            let work = ask(AdminDoor::new(node), tonic::Request::new(request.clone()));
            match self.call(index, 60_000, async move { work.await.map(|_| ()) })? {
                Ok(()) => return Ok(()),
                Err(status) if last != status.message() => {
                    last = status.message().to_string();
                    self.note(format!("{what} at {}: {last}", index + 1));
                }
                Err(_) => {}
            }
            let until = self.now + 100 * MS;
            while self.now < until {
                self.tick()?;
            }
        }
        bail!("no progress: {what} was not made: {last}")
    }

    /// Waits until a client has read everything, and has written and read many times.
    pub fn works(&mut self, what: &str) -> Result<()> {
        let (answered, reads) = (self.model.answered + self.enough, self.model.reads + self.enough);
        self.until(120_000, what, |w| w.owner_is_open() && w.model.answered >= answered && w.model.reads >= reads)
    }

    /// Cuts the power of all machines at once; everything is read back.
    pub fn power_and_read_back(&mut self) -> Result<()> {
        for index in 0..self.hosts.len() {
            let now = self.now;
            self.hosts[index].cut_power(now);
        }
        for index in 0..self.hosts.len() {
            let (now, rtt) = (self.now, self.rtt_ms);
            self.hosts[index].start(now, rtt)?;
        }
        self.note("all machines lost power and were started");
        self.busy = true;
        if self.agents.is_some() {
            return self.read_back_at_primary();
        }
        if self.attached.is_some() {
            return self.read_back_attached();
        }
        let opened = self.clients[self.active].opened;
        self.until(120_000, "everything read back", |w| w.clients[w.active].opened > opened)
    }

    /// From here on the set is not checked any more: it is to be deleted.
    pub fn model_ends(&mut self) {
        self.busy = false;
        self.set_goes = true;
        self.clients.clear();
    }

    /// Where the machines' directories are.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Stops writes, and waits until everything written is in the store.
    pub fn all_in_the_store(&mut self) -> Result<()> {
        self.busy = false;
        self.until(60_000, "every answer", World::owners_are_quiet)?;
        self.until(120_000, "a checkpoint of everything", |w| {
            let leader = w.leader().and_then(|at| w.set(at));
            leader.is_some_and(|set| set.host.with(|m| m.data_bytes() == 0 && m.sealed().is_none()))
        })
    }
}
