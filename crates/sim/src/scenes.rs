//! Scenes: courses that random faults produce too seldom. The same faults in the same order with every seed; the seed
//! still decides everything else (clocks, network, which member).

mod alone;
mod bad_record;
mod between_voters;
mod changed_times;
mod clock_ahead;
mod clock_back;
mod closed_full;
mod damaged_disks;
mod damaged_on_the_way;
mod followed_owner;
mod last_gateway;
mod late_commands;
mod late_store;
mod lying_disk;
mod moved_voters;
mod old_leader;
mod other_cluster;
mod other_disk;
mod purged_full;
mod stalled_client;
mod stopped_leader;
mod torn_marker;

use crate::client::{Client, SET, VOLUME_NAMES};
use crate::host::name;
use crate::members::Wish;
use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result};
use holdfast_api::v1::{self, admin_server::Admin as _};
use holdfast_control::cluster::{ClusterCommand, ClusterRefusal, Member};
use holdfast_gateway::admin::AdminDoor;
use holdfast_types::{GroupId, MemberId, Name, RequestId};

/// A course of things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Scene {
    /// A gateway whose group 0 is damaged is removed while it hears nobody; it is told when it can be, and ends.
    RemovedWhileDamaged,
    /// A volume whose map page is damaged in the store is deleted; checkpoints go on.
    DamagedPage,
    /// Two members are told to leave in the same moment: one of them is refused.
    TwoLeave,
    /// A forced failover is asked for again after another owner took the set: that one keeps it (R12).
    FailoverAgain,
    /// A call that creates a set is given up at any moment, and the next one creates another: both open.
    SetsGivenUp,
    /// The set is deleted while gateways die, stand still and are cut off, and PUTs arrive late; nothing of it is left.
    DeletedSet,
    /// The set's stores are changed while gateways die and stores are away; what was left is emptied.
    MovedStores,
    /// A machine goes back to an older copy of its disk, and is started again and again: it counts for nobody.
    RestoredDisk,
    /// Commands that were right when they were checked come too late when they are applied: all are refused.
    LateCommands,
    /// A deletion is cut short at each of its steps: it is done again from there, and nothing is left.
    DeletionCutShort,
    /// Files of one gateway after the other are gone, unreadable or rotten: each is found and healed.
    DamagedDisks,
    /// A gateway is killed between the steps of its readmission to a group: it asks again, and is healed.
    HealingCutShort,
    /// A witness is to replace the last gateway that is not drained: it is refused.
    LastGateway,
    /// A member that is being healed hears only a leader of before its removal: it follows it in nothing.
    OldLeader,
    /// A copy of a member's disk is started on another machine while the member runs: the copy is refused.
    CopiedDisk,
    /// A gateway does not hear that the set's stores were changed: it answers nothing once it has looked at the old
    /// ones.
    LeftStores,
    /// All gateways but one leave, and others join it: alone it serves, and in company only with a quorum.
    Alone,
    /// A gateway of another cluster takes one of this cluster for its member: it gets no answer.
    OtherCluster,
    /// A disk says that it has synced and loses everything: its log went backwards, which is noticed and healed.
    LyingDisk,
    /// A change of voters stops between its two entries, with a leader that is to go, or without the newer voters.
    BetweenVoters,
    /// The set's voters are moved while gateways die, stand still and are cut off: only those have it then, and those
    /// that come back begin with nothing.
    MovedVoters,
    /// A gateway has no room for a state snapshot, until a newer one comes, and until its set is deleted.
    RefusedSnapshot,
    /// A machine with an empty disk takes itself for a member that runs elsewhere: it gets no vote.
    OtherDisk,
    /// A record that the journal has to carry forward rots while its gateway runs: its file is kept.
    BadRecord,
    /// A gateway starts from a journal of before the deletion of a set that it has begun to end: the set does not run.
    EndedGroup,
    /// Another gateway makes a checkpoint while the one that changes the set's stores believes that it leads.
    OvertakenMover,
    /// An NBD client sends the head of a write and not its data: it is given up.
    StalledClient,
    /// Attach is fenced by an answer and reads the end of its connection in the same breath: it is fenced, not lost.
    LateLoss,
    /// A gateway is told to stop while its disk is full and entries wait: it acknowledges nothing of them.
    ClosedFull,
    /// The boot clock of a leader's machine goes back: its read lease gets no longer, and it serves on soon.
    ClockBack,
    /// A follower's disk is full until a checkpoint ends: its purge stands behind what waits, and makes room.
    PurgedFull,
    /// A state snapshot is damaged on its way to a member that is healed: it is sent again.
    DamagedOnTheWay,
    /// Power fails behind an idle marker that no sync has covered: the tail has a gap, and nothing that was synced is
    /// lost.
    TornMarker,
    /// Owners say where they stand: leadership goes there, not sooner than it may, and stays.
    FollowedOwner,
    /// The leader dies while the store answers late: the owner's lease continues at the next one, which has not looked.
    LateStore,
    /// The boot clocks of followers leap ahead: they keep what they promised to their leader.
    ClockAhead,
    /// The leader is asked to stop: another leads before it is gone.
    StoppedLeader,
    /// Lines between gateways get long and short, and the set's times follow: nobody forgets a promise.
    ChangedTimes,
}

impl Scene {
    /// Its name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Scene::RemovedWhileDamaged => "removed-while-damaged",
            Scene::DamagedPage => "damaged-page",
            Scene::TwoLeave => "two-leave",
            Scene::FailoverAgain => "failover-again",
            Scene::SetsGivenUp => "sets-given-up",
            Scene::DeletedSet => "deleted-set",
            Scene::MovedStores => "moved-stores",
            Scene::RestoredDisk => "restored-disk",
            Scene::LateCommands => "late-commands",
            Scene::DeletionCutShort => "deletion-cut-short",
            Scene::DamagedDisks => "damaged-disks",
            Scene::HealingCutShort => "healing-cut-short",
            Scene::LastGateway => "last-gateway",
            Scene::OldLeader => "old-leader",
            Scene::CopiedDisk => "copied-disk",
            Scene::LeftStores => "left-stores",
            Scene::Alone => "alone",
            Scene::OtherCluster => "other-cluster",
            Scene::LyingDisk => "lying-disk",
            Scene::BetweenVoters => "between-voters",
            Scene::MovedVoters => "moved-voters",
            Scene::RefusedSnapshot => "refused-snapshot",
            Scene::OtherDisk => "other-disk",
            Scene::BadRecord => "bad-record",
            Scene::ClosedFull => "closed-full",
            Scene::ClockBack => "clock-back",
            Scene::ClockAhead => "clock-ahead",
            Scene::LateLoss => "late-loss",
            Scene::EndedGroup => "ended-group",
            Scene::OvertakenMover => "overtaken-mover",
            Scene::StalledClient => "stalled-client",
            Scene::PurgedFull => "purged-full",
            Scene::DamagedOnTheWay => "damaged-on-the-way",
            Scene::TornMarker => "torn-marker",
            Scene::LateStore => "late-store",
            Scene::FollowedOwner => "followed-owner",
            Scene::StoppedLeader => "stopped-leader",
            Scene::ChangedTimes => "changed-times",
        }
    }
}

impl World {
    /// Plays one scene.
    pub fn play(&mut self, scene: Scene) -> Result<()> {
        match scene {
            Scene::MovedStores | Scene::LeftStores | Scene::OvertakenMover => self.more_stores(),
            Scene::StalledClient => self.open_nbd_doors(),
            Scene::LateLoss => self.attach_owners(),
            Scene::FollowedOwner => self.stand_apart()?,
            Scene::ChangedTimes => self.expect_far_gateways(),
            _ => {}
        }
        self.bootstrap()?;
        match scene {
            Scene::RemovedWhileDamaged => self.removed_while_damaged(),
            Scene::DamagedPage => self.damaged_page(),
            Scene::TwoLeave => self.two_leave(),
            Scene::FailoverAgain => self.failover_again(),
            Scene::SetsGivenUp => self.sets_given_up(),
            Scene::DeletedSet => self.deleted_set(),
            Scene::MovedStores => self.moved_stores(),
            Scene::RestoredDisk => self.restored_disk(),
            Scene::LateCommands => self.late_commands(),
            Scene::DeletionCutShort => self.deletion_cut_short(),
            Scene::DamagedDisks => self.damaged_disks(),
            Scene::HealingCutShort => self.healing_cut_short(),
            Scene::LastGateway => self.last_gateway(),
            Scene::OldLeader => self.old_leader(),
            Scene::CopiedDisk => self.copied_disk(),
            Scene::LeftStores => self.left_stores(),
            Scene::Alone => self.alone(),
            Scene::OtherCluster => self.other_cluster(),
            Scene::LyingDisk => self.lying_disk(),
            Scene::BetweenVoters => self.between_voters(),
            Scene::MovedVoters => self.moved_voters(),
            Scene::RefusedSnapshot => self.refused_snapshot(),
            Scene::OtherDisk => self.other_disk(),
            Scene::BadRecord => self.bad_record(),
            Scene::ClosedFull => self.closed_full(),
            Scene::ClockBack => self.clock_back(),
            Scene::ClockAhead => self.clock_ahead(),
            Scene::LateLoss => self.late_loss(),
            Scene::EndedGroup => self.ended_group(),
            Scene::OvertakenMover => self.overtaken_mover(),
            Scene::StalledClient => self.stalled_client(),
            Scene::PurgedFull => self.purged_full(),
            Scene::DamagedOnTheWay => self.damaged_on_the_way(),
            Scene::TornMarker => self.torn_marker(),
            Scene::LateStore => self.late_store(),
            Scene::FollowedOwner => self.followed_owner(),
            Scene::StoppedLeader => self.stopped_leader(),
            Scene::ChangedTimes => self.changed_times(),
        }
    }

    /// Where the other members are.
    fn members_but(&self, one: usize) -> Vec<usize> {
        (0..self.hosts.len()).filter(|host| self.places[*host].is_some() && *host != one).collect()
    }

    /// Any follower of the first set, once every member is whole.
    fn whole_follower(&mut self, rng: &mut Rng) -> Result<usize> {
        self.until(180_000, "every member whole", |w| w.is_whole())?;
        let id = self.cluster().and_then(|state| state.sets.keys().next().copied()).context("no set")?;
        let leader = self.leader_of(id).context("no leader")?;
        Ok(rng.pick(&self.members_but(leader)))
    }

    fn removed_while_damaged(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 5);
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let members: Vec<usize> = (0..self.hosts.len()).filter(|host| self.places[*host].is_some()).collect();
        let host = rng.pick(&members);
        let member = self.places[host].context("a member")?;
        let known = self.cluster().and_then(|state| state.members.get(&MemberId(member)).cloned());
        let known = known.context("group 0 does not know it")?;
        let (now, rtt) = (self.now, self.rtt_ms);
        self.hosts[host].kill(now);
        self.hosts[host].quarantine_group_0()?;
        self.cut(host, true);
        self.hosts[host].start(now, rtt)?;
        self.note(format!("{} starts with a damaged group 0, and hears nobody", name(host)));
        let damaged =
            |w: &World| w.node(host).and_then(|node| node.raft()).is_some_and(|raft| !raft.healing().is_empty());
        self.until(30_000, "the damage is found", |w| damaged(w))?;
        // Repeated until it is granted: a new leader may have to be elected first.
        self.until(60_000, "the member is removed", |w| {
            w.want(&mut rng, Wish::Leave { member, force: true });
            w.cluster().is_some_and(|state| !state.members.is_empty() && !state.members.contains_key(&MemberId(member)))
        })?;
        anyhow::ensure!(damaged(self), "it is to be damaged still");
        anyhow::ensure!(self.group(host, GroupId::CLUSTER).is_none(), "group 0 is not to run there");
        self.cut(host, false);
        self.note(format!("m{member} is removed, and hears the others again"));
        self.until(60_000, "the removed gateway ends", |w| w.places[host].is_none())?;
        // CLUSTER-C2: nor does its disk come back as another member.
        let at = self.leader_of(GroupId::CLUSTER).context("no leader of group 0")?;
        let node = self.node(at).context("no node")?;
        let member = Member { id: MemberId(0), ..known };
        let join = ClusterCommand::AddMember { member, replaces: None, request: RequestId(5100) };
        let retired = |why: &ClusterRefusal| matches!(why, ClusterRefusal::DiskRetired { .. });
        self.call(at, 30_000, async move { late_commands::cluster_refuses(&node, join, retired).await })?
    }

    fn damaged_page(&mut self) -> Result<()> {
        let all_in_the_store = |w: &mut World| {
            let leader = w.leader().and_then(|at| w.set(at));
            leader.is_some_and(|set| set.host.with(|m| m.data_bytes() == 0 && m.sealed().is_none()))
        };
        // This scene is about pages: without a leaf there is no checkpoint (ADR 0034), and a leaf's pack looks like any
        // other.
        for host in &mut self.hosts {
            host.in_leaves = false;
            host.kill(self.now);
            host.start(self.now, self.rtt_ms)?;
        }
        self.until(60_000, "a leader", |w| w.leader().is_some())?;
        self.busy = true;
        self.works("the first writes")?;
        self.busy = false;
        self.until(60_000, "every answer", |w| w.clients.iter().all(Client::is_quiet))?;
        self.until(60_000, "a checkpoint of everything", all_in_the_store)?;
        // From here on there are no clients: their reads would find the damage, and report it.
        self.clients.clear();
        let rotten: usize = self.stores.servers.iter().map(|server| server.rot("/map/")).sum();
        anyhow::ensure!(rotten > 0, "no pack of map pages is there");
        // Restarted, so that no gateway has the pages in memory.
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

    fn two_leave(&mut self) -> Result<()> {
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let at = self.leader_of(GroupId::CLUSTER).context("no leader of group 0")?;
        let door = AdminDoor::new(self.node(at).context("no node")?);
        let leads = self.places[at].context("a member")?;
        let others: Vec<u64> = self.places.iter().flatten().copied().filter(|id| *id != leads).take(2).collect();
        let [one, two] = others[..] else { anyhow::bail!("found members {others:?} beside m{leads}, expected two") };
        let leave = async move |member: u64| {
            let request_id = holdfast_api::hex128(5000 + u128::from(member));
            // With force: else neither may go, of three.
            let request = v1::RemoveMemberRequest { member, request_id, force: true };
            door.remove_member(tonic::Request::new(request)).await.map_err(|refused| refused.message().to_string())
        };
        let said = self.call(at, 30_000, async move { futures_util::join!(leave(one), leave(two)) })?;
        self.note(format!("m{one} and m{two} are to leave: {said:?}"));
        let done = usize::from(said.0.is_ok()) + usize::from(said.1.is_ok());
        anyhow::ensure!(done == 1, "{done} of two members may leave at once, expected one: {said:?}");
        Ok(())
    }

    fn failover_again(&mut self) -> Result<()> {
        // No client takes the set meanwhile.
        self.clients.clear();
        let free = |w: &mut World| w.leader().and_then(|at| w.set(at)).is_some_and(|set| set.lease().is_none());
        self.until(60_000, "a set that nobody holds", free)?;
        let at = self.leader().context("no leader")?;
        let door = AdminDoor::new(self.node(at).context("no node")?);
        let course = async move {
            let take = async |owner: &str, id: u128| {
                let request = v1::AcquireLeaseRequest {
                    set: SET.into(),
                    owner: owner.into(),
                    ttl_ms: 60_000,
                    request_id: holdfast_api::hex128(id),
                    ..Default::default()
                };
                let granted = door.acquire_lease(tonic::Request::new(request)).await?.into_inner();
                granted.lease.map(|lease| lease.epoch).ok_or_else(|| tonic::Status::internal("a grant without a lease"))
            };
            let first = take("db1", 6001).await?;
            let failover = v1::FailoverRequest {
                set: SET.into(),
                request_id: holdfast_api::hex128(6002),
                seen_epoch: Some(first),
                ..Default::default()
            };
            door.failover(tonic::Request::new(failover.clone())).await?;
            let second = take("db2", 6003).await?;
            let again = door.failover(tonic::Request::new(failover)).await.map(|_| ());
            Ok::<_, tonic::Status>((second, again))
        };
        let (second, again) = self.call(at, 30_000, course)??;
        let held = self.set(at).and_then(|set| set.lease()).map(|lease| lease.epoch.0);
        self.note(format!("the second copy: {again:?}; held with epoch {held:?}"));
        anyhow::ensure!(again.is_err(), "R12: a failover was carried out twice");
        anyhow::ensure!(held == Some(second), "R12: found the lease of epoch {held:?}, expected {second}");
        Ok(())
    }

    fn sets_given_up(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 6);
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let store = self.cluster().and_then(|state| Some(state.sets.values().next()?.store_url.clone()));
        let store = store.context("no set")?;
        for round in 0..6u128 {
            let at = self.leader_of(GroupId::CLUSTER).context("no leader of group 0")?;
            let door = AdminDoor::new(self.node(at).context("no node")?);
            let request = |nth: u128| v1::CreateSetRequest {
                name: format!("late{round}-{nth}"),
                store: store.clone(),
                request_id: holdfast_api::hex128(7000 + round * 2 + nth),
                policy: None,
            };
            let (given_up, next) = (request(0), request(1));
            let patience = std::time::Duration::from_micros(rng.below(20_000));
            let course = async move {
                drop(tokio::time::timeout(patience, door.create_set(tonic::Request::new(given_up))).await);
                door.create_set(tonic::Request::new(next)).await.map(|_| ())
            };
            let made = self.call(at, 60_000, course)?;
            self.note(format!("given up after {patience:?}; the next one: {made:?}"));
        }
        let all_run = |w: &mut World| {
            let leader = w.leader_of(GroupId::CLUSTER).and_then(|at| w.node(at));
            let state = w.cluster();
            state.zip(leader).is_some_and(|(state, node)| state.sets.values().all(|set| node.set(&set.name).is_some()))
        };
        self.until(60_000, "every set that was created runs", all_run)
    }
}
