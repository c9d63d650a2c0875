//! Hosts of PostgreSQL, each with the code of agent and attach. They compete for the set by themselves; the simulation
//! never tells one to be primary. Faults hit gateways, agents, databases and whole hosts; an operator moves the
//! primary, planned and by force.
//!
//! Checked besides the rules of the [model](crate::model), of the [ledger] and of attached sets (R8):
//!
//! - AGENT-A3: by a host's own clock no database outlives the lease that it runs under. If its agent hangs or is gone,
//!   at most by the watchdog's interval (WATCHDOG-W1), and not longer than the watchdog waits for an agent
//!   (WATCHDOG-W2).
//! - The same by the simulation's clock: when gateways grant the set to another host unforced, the former host's
//!   database has ended already, if an agent was there to end it. (`lease.stop_margin_ms` covers the drift of clocks.)
//! - HOSTS-T1  An agent takes a lease by force only if ordered to, once per order ([asked]).
//! - At the end there is one primary, which takes commits, and after a planned move another one.

mod agent;
mod asked;
mod attaching;
mod bug;
mod database;
mod fake_drivers;
mod ledger;
mod lent;
mod pool;
mod station;

use crate::broken::Broken;
use crate::client::SET;
use crate::host::{self, lock};
use crate::libc;
use crate::net::{CutOff, Link, Net};
use crate::rng::Rng;
use crate::slices::Slices;
use crate::world::{MS, World};
use agent::{Plan, TOKEN};
use anyhow::{Result, anyhow};
use asked::{Freed, came_to_no_force};
use bug::Bug;
use holdfast_agent::client::ask_over;
use holdfast_agent::seams::Dial;
use holdfast_api::v1::{self, admin_server::Admin as _};
use holdfast_gateway::admin::AdminDoor;
use ledger::Ledger;
use lent::Lent;
use serde_json::json;
use station::Station;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Most hosts.
pub const HOSTS_MAX: usize = 3;
/// Places in the network besides the gateways: the hosts and the operator.
pub const PLACES: usize = HOSTS_MAX + 1;
/// How long the operator waits for an answer.
const ASK_LIMIT: Duration = Duration::from_secs(8);
/// Time between two requests for a planned move that was not made yet.
const MOVE_EVERY: u64 = 2_000 * MS;

/// Faults of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    KillAgent,
    /// It is told to end: it releases everything first.
    EndAgent,
    HangAgent,
    CrashDatabase,
    HangDatabase,
    KillAttach,
    Power,
    Stop,
    Suspend,
    /// From all gateways, or from some.
    Cut,
    CutOneWay,
    Lossy,
    /// From the other hosts and the operator.
    CutPeers,
    /// Somebody ends the lease at a gateway's door.
    Freed,
}

const ALL: &[Fault] = &[
    Fault::KillAgent,
    Fault::EndAgent,
    Fault::HangAgent,
    Fault::CrashDatabase,
    Fault::HangDatabase,
    Fault::KillAttach,
    Fault::Power,
    Fault::Stop,
    Fault::Suspend,
    Fault::Cut,
    Fault::CutOneWay,
    Fault::Lossy,
    Fault::CutPeers,
    Fault::Freed,
];

/// Mean time between two faults of a narrowed mix, in milliseconds: most faults end before the next one.
const SELDOM: u64 = 2_500;
/// Longer than a lease, and than an agent may be silent for.
const LONG: u64 = 4_000;

/// For bugs that only few and lasting faults show: the faults of hosts, at least [`LONG`] each. In a full mix too many
/// faults would have to coincide, and any change of the code would need another seed.
fn narrowed(broken: Option<Broken>) -> Option<&'static [Fault]> {
    match broken {
        Some(Broken::NoWatchdog) => Some(&[Fault::KillAgent, Fault::HangAgent]),
        Some(Broken::SlowHosts) => Some(&[Fault::Cut]),
        _ => None,
    }
}

/// Duration of a fault in milliseconds: one of these, or one of the long ones.
fn lasts(rng: &mut Rng, of: &[u64], long: bool) -> u64 {
    let fitting: Vec<u64> = of.iter().copied().filter(|ms| !long || *ms >= LONG).collect();
    rng.pick(&fitting)
}

/// An operator with `holdfast agent` on a machine of its own.
struct Operator {
    at: usize,
    slices: Slices,
    dial: Dial,
    said: Arc<Mutex<Vec<String>>>,
    /// Hosts, once for each forced order that is known to have had no effect.
    settled: Arc<Mutex<Vec<usize>>>,
}

impl Operator {
    /// `order`: to this host, to take the lease by force.
    fn ask(&self, station: &Station, path: &'static str, body: serde_json::Value, order: Option<usize>) {
        let (dial, said, settled) = (self.dial.clone(), self.said.clone(), self.settled.clone());
        let (name, address) = (station.name.clone(), agent::agent_address(station.at));
        self.slices.spawn(async move {
            let answer = ask_over(&dial, &address, path, Some(&body), Some(TOKEN), ASK_LIMIT).await;
            if let Some(host) = order.filter(|_| came_to_no_force(&answer)) {
                lock(&settled).push(host);
            }
            let words = match answer {
                Ok(answer) => format!("{} {}", answer.code, answer.words()),
                Err(error) => error.to_string(),
            };
            lock(&said).push(format!("{path} of {name}: {words}"));
        });
    }
}

/// See the module.
pub struct Agents {
    stations: Vec<Station>,
    ledger: Ledger,
    /// Owner of each granted epoch, as far as gateways showed it; and leases that may have been ended by hand.
    grants: BTreeMap<u64, String>,
    freed: Freed,
    /// A broken rule, found at a grant.
    broken: Option<String>,
    operator: Operator,
    rng: Rng,
    mix: Vec<Fault>,
    pause: u64,
    /// Only lasting faults: see [`narrowed`].
    long: bool,
    next_at: u64,
    /// When the links of a host are calm again.
    calm_at: BTreeMap<usize, u64>,
    gateways: usize,
}

impl Agents {
    /// # Errors
    /// No runtime.
    pub fn new(seed: u64, gateways: usize, net: &Net, dir: &Path, broken: Option<Broken>) -> Result<Self> {
        let mut rng = Rng::new(seed, 8);
        let bug = match broken {
            Some(Broken::NeverStops) => Some(Bug::NeverStops),
            Some(Broken::TakesUnasked) => Some(Bug::TakesUnasked),
            Some(Broken::NoWatchdog) => Some(Bug::NoWatchdog),
            Some(Broken::SkipsCommits) => Some(Bug::SkipsCommits),
            Some(Broken::ToldUnflushed) => Some(Bug::ToldUnflushed),
            _ => None,
        };
        let count = rng.pick(&[2, 2, 3]);
        // Either clocks that differ much and a margin for it, or clocks that differ less: gateways' may be 8 % off,
        // whatever those of hosts.
        let (stop_margin_ms, drift_ppm) = rng.pick(&[(300, 20_000), (500, 80_000)]);
        let plan = Plan {
            hosts: (0..count).map(|index| (format!("db{}", index + 1), gateways + index)).collect(),
            stop_margin_ms,
            drift_ppm,
            slow: broken == Some(Broken::SlowHosts),
            // A host with a slow clock that waits for better hosts would come after the others have stopped.
            priority_step_ms: if broken == Some(Broken::SlowHosts) { 0 } else { Rng::new(seed, 9).pick(&[0, 20]) },
            suspends: rng.chance(500),
            timeout_ms: rng.pick(&[2_000, 4_000]),
            bug,
        };
        let station = |index: usize| Station::new(index, seed, &plan, net, dir.join(format!("host-{index}")));
        let stations = (0..count).map(station).collect();
        let at = gateways + HOSTS_MAX;
        libc::set_now(0);
        let (dial, said, settled) = (agent::dial(at, net), Arc::default(), Arc::default());
        let operator = Operator { at, slices: Slices::new(0)?, dial, said, settled };
        let mix: Vec<Fault> = ALL.iter().copied().filter(|_| rng.chance(400)).collect();
        let pause = rng.pick(&[400, 1_000, 2_500]);
        let narrow = narrowed(broken);
        let (mix, pause, long) = narrow.map_or((mix, pause, false), |faults| (faults.to_vec(), SELDOM, true));
        Ok(Self {
            stations,
            ledger: Ledger::default(),
            grants: BTreeMap::new(),
            freed: Freed::default(),
            broken: None,
            operator,
            rng,
            mix,
            pause,
            long,
            next_at: 0,
            calm_at: BTreeMap::new(),
            gateways,
        })
    }

    fn primary(&self) -> Option<usize> {
        self.stations.iter().position(Station::is_primary)
    }

    /// One primary, and no other database.
    fn is_settled(&self, now: u64) -> bool {
        let primaries = self.stations.iter().filter(|station| station.is_primary()).count();
        let serving = self.stations.iter().filter(|station| station.serves(now)).count();
        (primaries, serving) == (1, 1)
    }

    fn swept(&self) -> u64 {
        self.stations.iter().map(Station::swept).sum()
    }

    fn links(&self, station: usize, link: impl Fn(usize, bool) -> Link, net: &Net) {
        net.set_around(self.stations[station].at, self.gateways, link);
    }

    fn peer_links(&self, station: usize, cut: bool, net: &Net) {
        let at = self.stations[station].at;
        let others = self.stations.iter().map(|other| other.at).chain([self.operator.at]);
        for other in others.filter(|other| *other != at) {
            for (from, to) in [(at, other), (other, at)] {
                net.set(from, to, Link { cut, ..Link::CALM });
            }
        }
    }

    fn calm(&mut self, station: usize, world: &mut World) {
        self.calm_at.remove(&station);
        self.links(station, |_, _| Link::CALM, &world.net);
        self.peer_links(station, false, &world.net);
    }

    fn trouble(&mut self, world: &mut World) {
        let due: Vec<usize> = self.calm_at.iter().filter(|(_, at)| **at <= world.now).map(|(at, _)| *at).collect();
        for station in due {
            self.calm(station, world);
            world.note(format!("links of {} are calm again", self.stations[station].name));
        }
        if self.mix.is_empty() || world.now < self.next_at {
            return;
        }
        self.next_at = world.now + self.rng.range(self.pause / 4, self.pause * 2) * MS;
        let fault = self.rng.pick(&self.mix);
        // Mostly the primary.
        let any = self.rng.below(self.stations.len() as u64) as usize;
        let station = self.primary().filter(|_| self.rng.chance(750)).unwrap_or(any);
        world.stats.agent_faults += 1;
        self.play(world, fault, station);
    }

    fn play(&mut self, world: &mut World, fault: Fault, at: usize) {
        let (now, long, rng) = (world.now, self.long, &mut self.rng);
        let station = &mut self.stations[at];
        let name = station.name.clone();
        if !station.runs(now) {
            return;
        }
        match fault {
            Fault::KillAgent => {
                let ms = lasts(rng, &[20, 300, 1_500, 5_000], long);
                world.note(format!("the agent of {name} is killed, for {ms} ms"));
                station.kill_agent(now, ms);
            }
            Fault::EndAgent => {
                world.note(format!("the agent of {name} is told to end"));
                station.end_agent();
            }
            Fault::HangAgent => {
                let ms = lasts(rng, &[100, 800, 2_500, 6_000], long);
                world.note(format!("the agent of {name} hangs for {ms} ms"));
                station.hang_agent(now, ms);
            }
            Fault::CrashDatabase => {
                world.note(format!("the database of {name} crashes"));
                station.crash_database();
            }
            Fault::HangDatabase => {
                let ms = rng.pick(&[300, 1_500, 5_000]);
                world.note(format!("the database of {name} hangs for {ms} ms"));
                station.hang_database(now + ms * MS);
            }
            Fault::KillAttach => {
                world.note(format!("attach of {name} is killed"));
                station.kill_attach(now);
            }
            Fault::Power => {
                let ms = rng.range(100, 4_000);
                world.note(format!("{name} loses its power for {ms} ms"));
                station.cut_power(now, ms);
            }
            Fault::Stop => {
                let ms = rng.pick(&[20, 150, 900, 3_000, 6_000]);
                world.note(format!("{name} is stopped for {ms} ms"));
                station.stop(now + ms * MS);
            }
            Fault::Suspend => {
                let ms = rng.pick(&[200, 1_500, 4_000]);
                world.note(format!("{name} sleeps for {ms} ms"));
                station.suspend(now, now + ms * MS);
            }
            Fault::Cut | Fault::CutOneWay => {
                // Mostly from all, and mostly for longer than a lease: the others take over while this host has to
                // notice that by itself.
                let all = rng.chance(750) || long;
                let cut = CutOff::drawn(rng, self.gateways, all, fault == Fault::CutOneWay);
                let until = now + lasts(rng, &[300, 2_500, 4_000, 8_000], long) * MS;
                world.note(format!("{name} is cut off: {cut}"));
                self.links(at, |gateway, there| cut.link(gateway, there), &world.net);
                self.calm_at.insert(at, until);
            }
            Fault::Lossy => {
                let (link, words) = Link::lossy(rng);
                let until = now + rng.range(500, 6_000) * MS;
                world.note(format!("links of {name}: {words}"));
                self.links(at, |_, _| link, &world.net);
                self.calm_at.insert(at, until);
            }
            Fault::CutPeers => {
                let until = now + rng.range(500, 6_000) * MS;
                world.note(format!("{name} is cut off from the other hosts"));
                self.peer_links(at, true, &world.net);
                self.calm_at.insert(at, until);
            }
            Fault::Freed => self.free(world),
        }
    }

    /// The operator ends the lease at the leader's admin API.
    fn free(&mut self, world: &mut World) {
        let Some(leader) = world.leader() else { return };
        let Some(lease) = world.set(leader).and_then(|set| set.lease()) else { return };
        let (Some(node), Some(process)) = (world.node(leader), &world.hosts[leader].process) else { return };
        let request = v1::FailoverRequest {
            set: SET.into(),
            request_id: holdfast_api::hex128(u128::from(self.rng.draw()) | 1),
            seen_epoch: Some(lease.epoch.0),
            ..Default::default()
        };
        let call = self.freed.asked(lease.epoch.0);
        process.spawn(async move {
            // If it comes too late it is refused, and nothing happens.
            call.answered(AdminDoor::new(node).failover(tonic::Request::new(request)).await);
        });
        world.note(format!("the lease of e{} is ended by hand", lease.epoch.0));
    }

    /// Asks for another primary: planned, or by force.
    fn want_other(&mut self, world: &mut World, force: bool) {
        let primary = self.primary();
        let others: Vec<usize> = (0..self.stations.len()).filter(|at| Some(*at) != primary).collect();
        let to = self.rng.pick(&others);
        let name = self.stations[to].name.clone();
        match primary.filter(|_| !force) {
            Some(primary) => {
                world.note(format!("{name} is to take over from {}", self.stations[primary].name));
                self.operator.ask(&self.stations[primary], "/switchover", json!({ "candidate": name }), None);
            }
            None => {
                world.note(format!("{name} is to take over by force"));
                self.stations[to].orders.sent(world.now);
                let body = json!({ "reason": "simulated", "allow_data_loss": true });
                self.operator.ask(&self.stations[to], "/failover", body, Some(to));
            }
        }
    }

    /// Notes a grant as a gateway knows it.
    fn see(&mut self, now: u64, epoch: u64, owner: String) {
        self.freed.hear();
        let newest = self.grants.last_key_value().map(|(epoch, owner)| (*epoch, owner.clone()));
        self.grants.entry(epoch).or_insert_with(|| owner.clone());
        let Some((before, _)) = newest.filter(|(before, had)| *before < epoch && *had != owner) else { return };
        let forced = self.stations.iter().any(|station| station.name == owner && station.is_forcing());
        if forced || self.freed.any(before..epoch) {
            return;
        }
        let late = self.stations.iter().find(|at| at.name != owner && at.is_attended(now) && at.serves(now));
        if let Some(late) = late {
            self.broken = Some(format!(
                "AGENT-A3: {owner} was granted the set under e{epoch}, unforced, and the database of {} still runs",
                late.name
            ));
        }
    }

    fn run(&mut self, world: &mut World) -> Result<(), String> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        let now = world.now;
        let mut log = Vec::new();
        let mut outcome = Ok(());
        self.freed.hear();
        let (grants, freed) = (&self.grants, &self.freed);
        for station in &mut self.stations {
            let name = station.name.clone();
            let taken = |epoch: u64| grants.range(epoch + 1..).any(|(_, to)| *to != name) || freed.any(epoch..);
            let mut lent = Lent {
                now,
                model: &mut world.model,
                ledger: &mut self.ledger,
                stats: &mut world.stats,
                busy: world.busy,
                gateways: self.gateways,
                log: &mut log,
            };
            outcome = station.tick(&mut lent, taken);
            if outcome.is_err() {
                break;
            }
        }
        libc::set_now(now);
        libc::set_apart(0, 0);
        self.operator.slices.run(now, false);
        let settled = std::mem::take(&mut *lock(&self.operator.settled));
        for host in settled {
            self.stations[host].orders.settled(now);
        }
        log.append(&mut lock(&self.operator.said));
        (world.stats.commits, world.stats.recoveries) = (self.ledger.commits, self.ledger.recoveries);
        log.iter().for_each(|line| world.note(line));
        outcome
    }
}

impl World {
    fn with_agents<T>(&mut self, work: impl FnOnce(&mut Agents, &mut World) -> T) -> Option<T> {
        let mut agents = self.agents.take()?;
        let outcome = work(&mut agents, self);
        self.agents = Some(agents);
        Some(outcome)
    }

    /// Runs the hosts with agents up to now.
    ///
    /// # Errors
    /// A broken rule.
    pub fn run_agents(&mut self) -> Result<()> {
        let outcome = self.with_agents(Agents::run).unwrap_or(Ok(()));
        let fatal = host::take_fatal();
        anyhow::ensure!(fatal.is_empty(), "on a host with an agent: {}", fatal.join("; "));
        outcome.map_err(|broken| anyhow!(broken))
    }

    /// May inject a fault at one of the hosts.
    pub fn trouble_agents(&mut self) {
        self.with_agents(Agents::trouble);
    }

    /// They all go on, with power, over calm links.
    pub fn calm_agents(&mut self) {
        self.with_agents(|agents, world| {
            for station in 0..agents.stations.len() {
                agents.calm(station, world);
                agents.stations[station].wake(world.now);
            }
        });
    }

    /// Notes the lease that gateway `index` knows of.
    pub fn agents_see_grants(&mut self, index: usize) {
        let lease = self.set(index).and_then(|set| set.lease());
        if let (Some(lease), Some(agents)) = (lease, &mut self.agents) {
            agents.see(self.now, lease.epoch.0, lease.owner.to_string());
        }
    }

    /// The primary is to be another host.
    pub fn want_other_primary(&mut self, force: bool) {
        self.with_agents(|agents, world| agents.want_other(world, force));
    }

    /// One host is primary, and no other one has a database.
    pub fn has_one_primary(&self) -> bool {
        self.agents.as_ref().is_some_and(|agents| agents.is_settled(self.now))
    }

    /// Nothing of any database is unanswered.
    pub fn databases_are_quiet(&self) -> bool {
        self.agents.as_ref().is_none_or(|agents| agents.stations.iter().all(Station::is_quiet))
    }

    /// The primary reads all blocks.
    ///
    /// # Errors
    /// A broken rule, or no progress.
    pub fn read_back_at_primary(&mut self) -> Result<()> {
        let swept = |w: &World| w.agents.as_ref().map_or(0, Agents::swept);
        let before = swept(self);
        if let Some(agents) = &self.agents {
            agents.stations.iter().for_each(Station::sweep);
        }
        self.until(120_000, "everything read back by the primary", |w| swept(w) > before && w.has_one_primary())
    }

    /// A planned move, requested until it is made; the other host then takes commits.
    ///
    /// # Errors
    /// A broken rule, or no progress.
    pub fn other_becomes_primary(&mut self) -> Result<()> {
        self.busy = true;
        let primary = |w: &World| w.agents.as_ref().and_then(Agents::primary);
        self.until(60_000, "one primary", |w| w.has_one_primary())?;
        let (first, mut ask_at) = (primary(self), 0);
        self.until(60_000, "a planned move to another host", |w| {
            if primary(w) == first && w.now >= ask_at {
                ask_at = w.now + MOVE_EVERY;
                w.want_other_primary(false);
            }
            w.has_one_primary() && primary(w) != first
        })?;
        self.works("commits and reads at the other host")
    }
}
