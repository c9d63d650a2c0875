//! Courses of things that chance plays too seldom: a cluster, then the same faults in the same order with every seed; the seed still decides
//! everything else (clocks, network, which member).

use crate::client::{Client, SET, VOLUME_NAMES};
use crate::host::name;
use crate::members::Wish;
use crate::net::Link;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result};
use holdfast_api::v1::{self, admin_server::Admin as _};
use holdfast_gateway::admin::AdminDoor;
use holdfast_types::{GroupId, MemberId, Name};

/// A course of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scene {
    /// A gateway whose group 0 is damaged is removed while it hears nobody; it is told when it can be, and ends.
    RemovedWhileDamaged,
    /// A volume whose map page is damaged in the store is deleted; checkpoints go on.
    DamagedPage,
    /// The set is deleted while gateways die, stand still and are cut off, and PUTs arrive late; nothing of it is left.
    DeletedSet,
}

impl Scene {
    /// As the command line has it.
    pub fn word(self) -> &'static str {
        match self {
            Scene::RemovedWhileDamaged => "removed-while-damaged",
            Scene::DamagedPage => "damaged-page",
            Scene::DeletedSet => "deleted-set",
        }
    }
}

impl World {
    /// Plays one scene.
    ///
    /// # Errors
    /// A broken rule; that it does not come to its end.
    pub fn play(&mut self, scene: Scene) -> Result<()> {
        self.bootstrap()?;
        match scene {
            Scene::RemovedWhileDamaged => self.removed_while_damaged(),
            Scene::DamagedPage => self.damaged_page(),
            Scene::DeletedSet => self.deleted_set(),
        }
    }

    fn removed_while_damaged(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 5);
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let members: Vec<usize> = (0..self.hosts.len()).filter(|host| self.places[*host].is_some()).collect();
        let host = rng.pick(&members);
        let member = self.places[host].context("a member")?;
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[host].kill(now);
        self.hosts[host].quarantine_group_0()?;
        self.cut_off(host, true);
        self.hosts[host].start(now, rtt)?;
        self.note(format!("{} starts with a damaged group 0, and hears nobody", name(host)));
        let damaged =
            |w: &World| w.node(host).and_then(|node| node.raft()).is_some_and(|raft| !raft.healing().is_empty());
        self.until(30_000, "the damage is found", |w| damaged(w))?;
        // Asked again until it is granted: who leads may be elected anew first.
        self.until(60_000, "the member is removed", |w| {
            w.want(&mut rng, Wish::Leave { member, force: true });
            w.cluster().is_some_and(|state| !state.members.is_empty() && !state.members.contains_key(&MemberId(member)))
        })?;
        anyhow::ensure!(damaged(self), "it is to be damaged still");
        anyhow::ensure!(self.group(host, GroupId::CLUSTER).is_none(), "group 0 is not to run there");
        self.cut_off(host, false);
        self.note(format!("m{member} is removed, and hears the others again"));
        self.until(60_000, "the removed gateway ends", |w| w.places[host].is_none())
    }

    fn damaged_page(&mut self) -> Result<()> {
        let all_in_the_store = |w: &mut World| {
            let leader = w.leader().and_then(|at| w.set(at));
            leader.is_some_and(|set| set.host.with(|m| m.data_bytes() == 0 && m.sealed().is_none()))
        };
        self.busy = true;
        self.works("the first writes")?;
        self.busy = false;
        self.until(60_000, "every answer", |w| w.clients.iter().all(Client::is_quiet))?;
        self.until(60_000, "a checkpoint of everything", all_in_the_store)?;
        // From here on there are no clients: reading would find what is damaged, and say so.
        self.clients.clear();
        let rotten: usize = self.stores.servers.iter().map(|server| server.rot("/map/")).sum();
        anyhow::ensure!(rotten > 0, "no pack of map pages is there");
        // Nobody has the pages in memory.
        for host in &mut self.hosts {
            host.kill(self.now);
            host.start(self.now, self.rtt_ms)?;
        }
        self.until(60_000, "a leader", |w| w.leader().is_some())?;
        self.note(format!("{rotten} packs of map pages are damaged"));
        let name = VOLUME_NAMES[0];
        let deadline = self.now + 60_000 * MS;
        loop {
            anyhow::ensure!(self.now < deadline, "no progress: the volume is not deleted");
            self.until(10_000, "a leader", |w| w.leader().is_some())?;
            let leader = self.leader().context("no leader")?;
            let (node, set) = (self.node(leader).context("no node")?, self.set(leader).context("no set")?);
            let found = set.host.with(|m| m.state().volume_named(&Name::new(name).ok()?).map(|(id, _)| id));
            let Some(volume) = found else { break };
            let request = v1::ChangeVolumeRequest {
                set: SET.into(),
                request_id: holdfast_api::hex128(4000),
                volume: volume.0,
                force: true,
                change: Some(v1::change_volume_request::Change::Delete(v1::DeleteVolume { name: name.into() })),
            };
            let door = AdminDoor::new(node);
            let done =
                self.call(leader, 20_000, async move { door.change_volume(tonic::Request::new(request)).await })?;
            let next = self.now + 500 * MS;
            self.note(format!("deleted: {:?}", done.map(|reply| reply.into_inner().already)));
            self.until(10_000, "a moment", |w| w.now >= next)?;
        }
        self.until(60_000, "a checkpoint of the deletion", all_in_the_store)
    }

    fn cut_off(&mut self, host: usize, cut: bool) {
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            for (from, to) in [(host, other), (other, host)] {
                self.net.set(from, to, Link { cut, ..Link::CALM });
            }
        }
    }
}
