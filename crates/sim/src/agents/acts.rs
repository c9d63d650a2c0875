//! Runs the hosts with agents of a world, and injects their faults.

use super::lent::Lent;
use super::station::Station;
use super::{Agents, Fault, LONG};
use crate::client::SET;
use crate::net::{CutOff, Link};
use crate::rng::Rng;
use crate::sync::lock;
use crate::world::{MS, World};
use crate::{host, libc};
use anyhow::{Result, anyhow};
use holdfast_api::v1;
use holdfast_api::v1::admin_server::Admin as _;
use holdfast_gateway::admin::AdminDoor;
use serde_json::json;

/// Time between two requests for a planned move that was not made yet.
const MOVE_EVERY: u64 = 2_000 * MS;

/// Duration of a fault in milliseconds: one of these, or one of the long ones.
fn lasts(rng: &mut Rng, of: &[u64], long: bool) -> u64 {
    let fitting: Vec<u64> = of.iter().copied().filter(|ms| !long || *ms >= LONG).collect();
    rng.pick(&fitting)
}

impl Agents {
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
        if !self.stations[at].runs(world.now) {
            return;
        }
        match fault {
            Fault::Freed => self.free(world),
            Fault::Cut | Fault::CutOneWay | Fault::Lossy | Fault::CutPeers => self.spoil_links(world, fault, at),
            Fault::Power | Fault::Stop | Fault::Suspend => self.spoil_machine(world, fault, at),
            _ => self.spoil_process(world, fault, at),
        }
    }

    /// A fault of the agent, of the database, or of attach.
    fn spoil_process(&mut self, world: &mut World, fault: Fault, at: usize) {
        let (now, long, rng) = (world.now, self.long, &mut self.rng);
        let station = &mut self.stations[at];
        let name = station.name.clone();
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
            _ => {
                world.note(format!("attach of {name} is killed"));
                station.kill_attach(now);
            }
        }
    }

    fn spoil_machine(&mut self, world: &mut World, fault: Fault, at: usize) {
        let (now, rng) = (world.now, &mut self.rng);
        let station = &mut self.stations[at];
        let name = station.name.clone();
        match fault {
            Fault::Power => {
                let ms = rng.range(100, 4_000);
                world.note(format!("{name} loses its power for {ms} ms"));
                station.cut_power(now, ms);
            }
            Fault::Stop => {
                let ms = rng.pick(&[20, 150, 900, 3_000, 6_000]);
                world.note(format!("{name} is stopped for {ms} ms"));
                station.time.stop(now + ms * MS);
            }
            _ => {
                let ms = rng.pick(&[200, 1_500, 4_000]);
                world.note(format!("{name} sleeps for {ms} ms"));
                station.time.suspend(now, now + ms * MS);
            }
        }
    }

    fn spoil_links(&mut self, world: &mut World, fault: Fault, at: usize) {
        let (now, long, rng) = (world.now, self.long, &mut self.rng);
        let name = self.stations[at].name.clone();
        let until = match fault {
            Fault::Lossy => {
                let (link, words) = Link::lossy(rng);
                let until = now + rng.range(500, 6_000) * MS;
                world.note(format!("links of {name}: {words}"));
                self.links(at, |_, _| link, &world.net);
                until
            }
            Fault::CutPeers => {
                let until = now + rng.range(500, 6_000) * MS;
                world.note(format!("{name} is cut off from the other hosts"));
                self.peer_links(at, true, &world.net);
                until
            }
            _ => {
                // Mostly from all, and mostly for longer than a lease: the others take over while this host has to
                // notice that by itself.
                let all = rng.chance(750) || long;
                let cut = CutOff::drawn(rng, self.gateways, all, fault == Fault::CutOneWay);
                let until = now + lasts(rng, &[300, 2_500, 4_000, 8_000], long) * MS;
                world.note(format!("{name} is cut off: {cut}"));
                self.links(at, |gateway, there| cut.link(gateway, there), &world.net);
                until
            }
        };
        self.calm_at.insert(at, until);
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
        libc::set_apart(0, 0, 0);
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
    pub fn read_back_at_primary(&mut self) -> Result<()> {
        let swept = |w: &World| w.agents.as_ref().map_or(0, Agents::swept);
        let before = swept(self);
        if let Some(agents) = &self.agents {
            agents.stations.iter().for_each(Station::sweep);
        }
        self.until(120_000, "everything read back by the primary", |w| swept(w) > before && w.has_one_primary())
    }

    /// A planned move, requested until it is made; the other host then takes commits.
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
