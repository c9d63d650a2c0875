//! Scene: a set is deleted while gateways die, lose power, are stopped and are cut off, and while PUTs arrive late.
//! Checks rules at every moment, and that nothing remains at the end.

mod cut_short;
mod ended_group;
mod refused_snapshot;

use crate::host::name;
use crate::net::Link;
use crate::rng::Rng;
use crate::store::Late;
use crate::world::{MS, World};
use anyhow::{Context, Result, bail, ensure};
use holdfast_api::v1::{self, admin_server::Admin as _};
use holdfast_control::cluster::DeletionStage;
use holdfast_gateway::admin::AdminDoor;
use holdfast_types::{GroupId, SetId};
use std::collections::BTreeSet;

use crate::client::SET;

/// Milliseconds of faults, from just before the deletion on.
const FAULTS: u64 = 25_000;
/// Until everything is gone, once everything has healed.
const ENDS: u64 = 120_000;
/// How long after a key is destroyed an uninformed leader may have an older read lease.
const LEASE: u64 = 5_000;
/// Largest delay of a PUT: longer than any caller waits for its answer.
const LATE: u64 = 12_000 * MS;

impl World {
    /// A set with data, deleted under faults.
    pub fn deleted_set(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 6);
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let id = self.cluster().and_then(|state| state.sets.keys().next().copied()).context("no set")?;
        // Connected clients are closed and reconnect all the time; their answers are no longer checked.
        self.model_ends();
        self.stores.servers.iter().for_each(|server| server.set_late(Late { rate: 150, most: LATE }));
        let mut since = None;
        let (until, mut next, mut asked) = (self.now + FAULTS * MS, self.now, self.now + rng.range(0, 2_000) * MS);
        while self.now < until {
            if self.now >= next {
                next = self.now + rng.range(100, 1_500) * MS;
                self.disturb(&mut rng)?;
            }
            if self.now >= asked && self.cluster().is_some_and(|state| state.sets.contains_key(&id)) {
                asked = self.now + rng.range(200, 1_000) * MS;
                self.ask_to_delete(id);
            }
            self.tick()?;
            self.check_fence(id, &mut since)?;
        }
        self.calm()?;
        let deadline = self.now + ENDS * MS;
        while let Some(left) = self.left_of(id) {
            ensure!(
                self.now < deadline,
                "no progress: {} s after every fault, of the deleted set there is: {left}",
                ENDS / 1000
            );
            if self.cluster().is_some_and(|state| state.sets.contains_key(&id)) && self.now >= asked {
                asked = self.now + 500 * MS;
                self.ask_to_delete(id);
            }
            self.tick()?;
            self.check_fence(id, &mut since)?;
        }
        self.nothing_comes_back(id, &mut since)
    }

    /// Nothing is left, nor after all have lost power and start from their disks and logs.
    fn nothing_comes_back(&mut self, id: SetId, since: &mut Option<u64>) -> Result<()> {
        self.note("nothing is left of the deleted set");
        for index in 0..self.hosts.len() {
            let (now, rtt) = (self.now, self.rtt_ms);
            self.hosts[index].cut_power(now);
            self.hosts[index].start(now, rtt)?;
        }
        let settled = self.now + 10_000 * MS;
        while self.now < settled {
            self.tick()?;
            self.check_fence(id, since)?;
        }
        self.until(30_000, "group 0 after a power cut", |w| w.cluster().is_some_and(|state| state.was_deleted(id)))?;
        let left = self.left_of(id);
        ensure!(left.is_none(), "after a power cut there is of the deleted set: {left:?}");
        Ok(())
    }

    fn disturb(&mut self, rng: &mut Rng) -> Result<()> {
        let members: Vec<usize> = (0..self.hosts.len()).filter(|host| self.places[*host].is_some()).collect();
        let host = rng.pick(&members);
        if self.stores.several() && rng.chance(250) {
            let at = rng.below(self.stores.servers.len() as u64) as usize;
            self.calm_stores();
            let away = rng.chance(600);
            if away {
                self.lose_store(at);
            }
            self.note(format!(
                "store {} is {}",
                at + 1,
                if away { "away, the others are there" } else { "there, as are the others" }
            ));
        }
        self.disturb_gateway(rng, host, 6)
    }

    /// Starts the gateway at `host`, or kills it, cuts it off or has it stand still. The fourth of `kinds` and each
    /// further one ends a cut.
    pub fn disturb_gateway(&mut self, rng: &mut Rng, host: usize, kinds: u64) -> Result<()> {
        let (now, rtt) = (self.now, self.rtt_ms);
        match rng.below(kinds) {
            _ if self.hosts[host].process.is_none() => {
                self.note(format!("{} starts", name(host)));
                self.hosts[host].start(now, rtt)?;
            }
            0 => {
                self.note(format!("{} is killed", name(host)));
                self.hosts[host].kill(now);
            }
            1 => {
                self.note(format!("{} loses power", name(host)));
                self.hosts[host].cut_power(now);
            }
            2 if self.hosts[host].runs(now) => {
                self.note(format!("{} stands still", name(host)));
                self.hosts[host].time.suspend(now, now + rng.range(50, 6_000) * MS);
            }
            3 => {
                self.note(format!("{} hears nobody", name(host)));
                self.cut(host, true);
            }
            _ => {
                self.note(format!("{} hears the others", name(host)));
                self.cut(host, false);
            }
        }
        Ok(())
    }

    /// Cuts the gateway at `host` off from all others, in both directions, or ends that.
    pub fn cut(&mut self, host: usize, cut: bool) {
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            for (from, to) in [(host, other), (other, host)] {
                self.net.set(from, to, Link { cut, ..Link::CALM });
            }
        }
    }

    /// Everything runs, all links work, and every store answers in time.
    pub fn calm(&mut self) -> Result<()> {
        for host in 0..self.hosts.len() {
            self.cut(host, false);
            let (now, rtt) = (self.now, self.rtt_ms);
            self.hosts[host].time.wake(now);
            if self.hosts[host].process.is_none() {
                self.hosts[host].start(now, rtt)?;
            }
        }
        self.stores.servers.iter().for_each(|server| server.set_late(Late::default()));
        self.calm_stores();
        self.note("healed");
        Ok(())
    }

    /// Sent to the leader of group 0; the effect is seen in group 0.
    fn ask_to_delete(&mut self, id: SetId) {
        let Some((node, process)) =
            self.leader_of(GroupId::CLUSTER).and_then(|at| Some((self.node(at)?, self.hosts[at].process.as_ref()?)))
        else {
            return;
        };
        let request = v1::DeleteSetRequest {
            set: SET.into(),
            id: id.0,
            request_id: holdfast_api::hex128(5000),
            force: true,
            with_snapshots: true,
            looked: false,
        };
        let door = AdminDoor::new(node);
        process.spawn(async move { drop(door.delete_set(tonic::Request::new(request)).await) });
    }

    /// DELETE-D1, DELETE-D2: once the key is destroyed and the last read lease over, no gateway that reads its clock
    /// serves the set.
    fn check_fence(&mut self, id: SetId, since: &mut Option<u64>) -> Result<()> {
        let forgotten = (0..self.hosts.len()).filter_map(|host| self.node(host)).any(|node| {
            let state = node.cluster.state();
            let far = state.deletions.under_way.get(&id).is_none_or(|found| found.stage > DeletionStage::Ending);
            state.was_deleted(id) && far
        });
        if !forgotten || self.now < *since.get_or_insert(self.now) + LEASE * MS {
            return Ok(());
        }
        for host in (0..self.hosts.len()).filter(|host| self.hosts[*host].runs(self.now)).collect::<Vec<_>>() {
            let Some(set) = self.set(host).filter(|set| set.id == id) else { continue };
            self.hosts[host].enter(self.now);
            if let Ok(epoch) = set.may_write() {
                bail!(
                    "DELETE-D2: gateway {} takes writes of the deleted set under epoch {epoch}, and its key is forgotten",
                    host + 1
                );
            }
        }
        Ok(())
    }

    /// Remains of the set, anywhere.
    fn left_of(&self, id: SetId) -> Option<String> {
        let state = self.cluster()?;
        if !state.was_deleted(id) || state.deletions.under_way.contains_key(&id) {
            return Some(format!(
                "group 0: {:?}",
                state.deletions.under_way.get(&id).map(|found| (found.stage, &found.ended))
            ));
        }
        for host in (0..self.hosts.len()).filter(|host| self.places[*host].is_some()) {
            let Some(adopted) = self.node(host).and_then(|node| node.adopted()) else {
                return Some(format!("gateway {} is not open", host + 1));
            };
            if !self.node(host).is_some_and(|node| node.cluster.state().was_deleted(id)) {
                return Some(format!("gateway {} has not heard of it", host + 1));
            }
            if adopted.raft.group(id).is_some() || self.set(host).is_some() {
                return Some(format!("gateway {} runs it", host + 1));
            }
            let log = adopted.raft.log().group(id).state();
            if log.last.is_some() || log.vote.is_some() || log.purged.is_some() {
                return Some(format!("gateway {} has its log: {log:?}", host + 1));
            }
        }
        for (at, server) in self.stores.servers.iter().enumerate() {
            let keys: BTreeSet<String> = server.keys();
            let head = format!("sets/{}/head", id.0);
            let rest: Vec<&String> = keys.iter().filter(|key| **key != head).collect();
            if !rest.is_empty() {
                return Some(format!("store {}: {rest:?}", at + 1));
            }
            if !keys.contains(&head) {
                return Some(format!("store {} has no tombstone", at + 1));
            }
        }
        None
    }
}
