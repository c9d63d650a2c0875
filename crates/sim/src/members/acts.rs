//! Requests of the administrator to a world, and the rules of membership.

use super::{Administrator, Asked, Wish};
use crate::rng::Rng;
use crate::sync::lock;
use crate::world::{CLUSTER, MS, World};
use anyhow::{Result, bail};
use holdfast_api::v1;
use holdfast_api::v1::admin_server::Admin as _;
use holdfast_api::{Refusal, RefusalCode};
use holdfast_control::cluster::{CLUSTER_VOTERS_LEVEL, ClusterState, FEATURE_LEVEL, Standing};
use holdfast_control::members::wanted as wanted_in;
use holdfast_control::placing::cluster_size;
use holdfast_gateway::admin::AdminDoor;
use holdfast_raft::{Group, GroupStatus};
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeSet;

/// Time until an unanswered request is repeated: the asked gateway may be gone.
const PATIENCE: u64 = 6_000 * MS;

/// Time between two tries after a temporary refusal.
const AGAIN: u64 = 300 * MS;

/// After this time of refusals the request is given up. Not for a join: the gateway may be a member already.
const GIVES_UP: u64 = 20_000 * MS;

/// Time until an empty machine replaces an ended gateway.
const PUT_UP_AFTER: u64 = 400 * MS;

fn members_of(status: &GroupStatus) -> BTreeSet<MemberId> {
    status.members.iter().map(|m| m.member).collect()
}

fn voters_of(status: &GroupStatus) -> BTreeSet<MemberId> {
    status.members.iter().filter(|m| m.voter).map(|m| m.member).collect()
}

impl Administrator {
    /// The next thing to ask for, if there is nothing yet.
    pub fn wish(&mut self, world: &mut World, rng: &mut Rng, wish: Wish) {
        if !self.is_idle() {
            return;
        }
        world.note(format!("wanted: {wish:?}"));
        let request = u128::from(rng.draw()) << 64 | u128::from(rng.draw()) | 1;
        self.current = Some(Asked { wish, request, attempt: 0, due: world.now, until: world.now + GIVES_UP });
    }

    fn tick(&mut self, world: &mut World) -> Result<()> {
        while let Some(at) = self.empty.iter().position(|(at, _)| *at <= world.now) {
            let (_, host) = self.empty.remove(at);
            if world.hosts[host].process.is_none() {
                let (now, rtt) = (world.now, world.rtt_ms);
                world.hosts[host].start(now, rtt)?;
            }
        }
        self.hear(world);
        self.adopt(world);
        if self.current.as_ref().is_some_and(|asked| asked.due <= world.now) {
            self.ask(world);
        }
        Ok(())
    }

    fn hear(&mut self, world: &mut World) {
        let answers = std::mem::take(&mut *lock(&self.answers));
        for (attempt, answer) in answers {
            let Some(asked) = self.current.as_mut().filter(|asked| asked.attempt == attempt) else { continue };
            let wish = asked.wish;
            match answer {
                Ok(member) => {
                    world.note(format!("granted: {wish:?} (m{member})"));
                    world.stats.changes += 1;
                    if let Wish::Join { host, .. } = wish {
                        world.places[host] = Some(member);
                        self.adopting = Some((host, member, world.now));
                    }
                    self.current = None;
                }
                Err(status) => {
                    let code = Refusal::from_status(&status).map(|refusal| refusal.code);
                    // Anything else may have happened (R12).
                    let never = [
                        RefusalCode::Precondition,
                        RefusalCode::Exists,
                        RefusalCode::NotFound,
                        RefusalCode::Invalid,
                        RefusalCode::OtherDisk,
                    ];
                    let later = code.is_none_or(|code| !never.contains(&code));
                    let joins = matches!(wish, Wish::Join { .. });
                    if later && (joins || world.now < asked.until) {
                        asked.due = world.now + AGAIN;
                    } else {
                        world.note(format!("refused: {wish:?}: {}", status.message()));
                        self.current = None;
                    }
                }
            }
        }
    }

    /// Tells the new member's gateway its identity, until it knows it.
    fn adopt(&mut self, world: &mut World) {
        let Some((host, member, due)) = self.adopting else { return };
        if world.now < due {
            return;
        }
        let (Some(node), Some(process)) = (world.node(host), &world.hosts[host].process) else { return };
        if node.adopted().is_some() {
            self.adopting = None;
            return;
        }
        self.adopting = Some((host, member, world.now + PATIENCE));
        process.spawn(async move {
            // If refused or failed, it is told again.
            drop(node.adopt(CLUSTER, MemberId(member)).await);
        });
    }

    fn ask(&mut self, world: &mut World) {
        let Some(asked) = self.current.as_mut() else { return };
        self.attempts += 1;
        (asked.attempt, asked.due) = (self.attempts, world.now + PATIENCE);
        let (attempt, wish, request_id) = (self.attempts, asked.wish, holdfast_api::hex128(asked.request));
        let Some(at) = world.leader_of(GroupId::CLUSTER) else {
            asked.due = world.now + AGAIN;
            return;
        };
        let gateway = match wish {
            Wish::Join { host, .. } => match world.node(host) {
                Some(node) => {
                    let role = if world.hosts[host].witness { "witness" } else { "gateway" }.to_string();
                    let member = world.member(host, node.identity().disk());
                    // Its own report: 0 before it is adopted.
                    let id = node.identity().member;
                    Some(v1::Member { id, role, level: FEATURE_LEVEL, ..member })
                }
                None => {
                    asked.due = world.now + AGAIN;
                    return;
                }
            },
            _ => None,
        };
        // Before the request is sent: it may take effect even without an answer (R12).
        match wish {
            Wish::Join { replaces, .. } if replaces != 0 => drop(self.leaving.insert(replaces)),
            Wish::Leave { member, .. } => drop(self.leaving.insert(member)),
            _ => {}
        }
        let (Some(node), Some(process)) = (world.node(at), &world.hosts[at].process) else { return };
        let answers = self.answers.clone();
        process.spawn(async move {
            let door = AdminDoor::new(node);
            let answer = match wish {
                Wish::Join { replaces, .. } => {
                    let request = v1::JoinMemberRequest { gateway, replaces, request_id };
                    door.join_member(tonic::Request::new(request)).await.map(|reply| reply.into_inner().member)
                }
                Wish::Leave { member, force } => {
                    let request = v1::RemoveMemberRequest { member, request_id, force };
                    door.remove_member(tonic::Request::new(request)).await.map(|_| member)
                }
                Wish::Drain { member, drained } => {
                    let request = v1::DrainMemberRequest { member, drained, request_id, ..Default::default() };
                    door.drain_member(tonic::Request::new(request)).await.map(|_| member)
                }
            };
            lock(&answers).push((attempt, answer));
        });
    }
}

impl World {
    /// Runs the administrator up to now.
    pub fn tend_members(&mut self) -> Result<()> {
        let mut administrator = std::mem::take(&mut self.administrator);
        let outcome = administrator.tick(self);
        self.administrator = administrator;
        outcome
    }

    /// Asks the administrator for something.
    pub fn want(&mut self, rng: &mut Rng, wish: Wish) {
        let mut administrator = std::mem::take(&mut self.administrator);
        administrator.wish(self, rng, wish);
        self.administrator = administrator;
    }

    /// Group 0 of the gateway that has applied most of it.
    pub fn cluster(&self) -> Option<ClusterState> {
        let nodes = (0..self.hosts.len()).filter_map(|index| self.node(index));
        let adopted = nodes.filter_map(|node| Some((node.adopted()?.group.applied(), node)));
        adopted.max_by_key(|(applied, _)| *applied).map(|(_, node)| node.cluster.state())
    }

    /// A group at gateway `index`.
    pub fn group(&self, index: usize, id: GroupId) -> Option<Group> {
        self.node(index)?.adopted()?.raft.group(id)
    }

    /// The leader of a group: of those who claim it, the one of the latest term.
    pub fn leader_of(&self, id: GroupId) -> Option<usize> {
        let leads = |index: usize| Some((self.group(index, id)?.leading_term()?, index));
        (0..self.hosts.len()).filter_map(leads).max().map(|(_, index)| index)
    }

    /// Group 0 and the groups that it names. Sets are created in the beginning: once all exist, they are known.
    fn group_ids(&self) -> Vec<GroupId> {
        if let Some(known) = self.groups.get() {
            return known.clone();
        }
        let sets = self.cluster().map(|state| state.sets.into_keys().collect::<Vec<_>>()).unwrap_or_default();
        let all: Vec<_> = std::iter::once(GroupId::CLUSTER).chain(sets).collect();
        if all.len() > 1 + self.shape.sets { self.groups.get_or_init(|| all).clone() } else { all }
    }

    /// A gateway that leads a group between the two entries of a change of its voters.
    pub fn between_two_sets(&self) -> Option<usize> {
        let lead = |id: &GroupId| Some((*id, self.leader_of(*id)?));
        let half = |(id, at): (GroupId, usize)| self.group(at, id).filter(|g| g.status().next.is_some()).map(|_| at);
        self.group_ids().iter().filter_map(lead).find_map(half)
    }

    /// The gateway at `index` ended with `why`. Allowed if it was asked to leave and no group needs its vote any more;
    /// then its machine is replaced.
    pub fn ended(&mut self, index: usize, why: &str) -> Result<()> {
        let member = self.places[index].unwrap_or(0);
        let copy = ["is not who it says: boot counter", "is not who it says: disk", "answers at this member's address"];
        if self.restored == Some(index) && copy.iter().any(|said| why.contains(said)) {
            self.note(format!("{} (m{member}) {why}", index + 1));
            self.told += 1;
            let now = self.now;
            self.hosts[index].kill(now);
            return Ok(());
        }
        if self.waits_for_room(index, why) {
            return Ok(());
        }
        if !why.contains("was removed from this cluster permanently") || !self.administrator.leaving.contains(&member) {
            bail!("gateway {} (m{member}) {why}", index + 1);
        }
        for id in self.group_ids() {
            let Some(leader) = self.leader_of(id) else { continue };
            let Some(status) = self.group(leader, id).map(|group| group.status()) else { continue };
            if status.members.iter().any(|m| m.member.0 == member) {
                bail!(
                    "gateway {} (m{member}) was told that it may go, and is in group {id} at its leader, {}: {:?}",
                    index + 1,
                    leader + 1,
                    status.members
                );
            }
        }
        self.note(format!("{} (m{member}) was removed and ended; its machine is put up anew", index + 1));
        self.stats.left += 1;
        self.places[index] = None;
        self.replicas.forget(index);
        let now = self.now;
        self.hosts[index].wipe(now)?;
        self.administrator.empty.push((now + PUT_UP_AFTER, index));
        Ok(())
    }

    /// Whether one more member may lose its data: every member runs, nothing is being healed, and every group has at
    /// least three voters, which are all its members; in group 0 the others learn.
    pub fn is_whole(&self) -> bool {
        let runs = |host: usize| {
            self.node(host).and_then(|node| node.adopted()).is_some_and(|adopted| adopted.raft.healing().is_empty())
        };
        let members = || (0..self.hosts.len()).filter(|host| self.places[*host].is_some());
        let all: BTreeSet<MemberId> = members().filter_map(|host| self.places[host]).map(MemberId).collect();
        let full = |id: GroupId| {
            let group = self.leader_of(id).and_then(|at| self.group(at, id));
            group.is_some_and(|group| {
                let status = group.status();
                let voters = voters_of(&status);
                let some_vote = id == GroupId::CLUSTER && members_of(&status) == all && voters.len() >= 3;
                let complete = some_vote || voters == all;
                status.next.is_none() && status.settled && complete && members().all(|h| self.group(h, id).is_some())
            })
        };
        self.administrator.is_idle() && all.len() >= 3 && members().all(runs) && self.group_ids().into_iter().all(full)
    }

    /// What is still wrong after everything has healed: group 0 should have exactly its members, and as many voters as
    /// they ask for; each set's group those that its record names (VOTERS-V1), all voters; no change of voters should
    /// be under way, and removed members should be gone.
    pub fn members_missing(&self) -> Option<String> {
        if !self.administrator.is_idle() {
            return Some("something is asked for".to_string());
        }
        let Some(state) = self.cluster() else { return Some("no group 0".to_string()) };
        if let Some(member) = state.members.values().find(|m| m.standing != Standing::Active) {
            return Some(format!("{} is {:?}", member.id, member.standing));
        }
        let wanted: BTreeSet<MemberId> = state.members.keys().copied().collect();
        if let Some((host, member)) =
            self.places.iter().enumerate().find(|(_, m)| m.is_some_and(|m| !wanted.contains(&MemberId(m))))
        {
            return Some(format!("gateway {} (m{:?}) was removed and has not ended", host + 1, member));
        }
        for id in self.group_ids() {
            let wanted = wanted_in(&state, id, &BTreeSet::new());
            let status: Option<GroupStatus> = self.leader_of(id).and_then(|at| self.group(at, id)).map(|g| g.status());
            let Some(status) = status else { return Some(format!("group {id} has no leader")) };
            let some_vote = id == GroupId::CLUSTER && state.level >= CLUSTER_VOTERS_LEVEL;
            let votes = if some_vote {
                voters_of(&status).len() == cluster_size(wanted.len())
            } else {
                voters_of(&status) == wanted
            };
            if status.next.is_some() || !status.settled || !votes || members_of(&status) != wanted {
                return Some(format!("group {id}: {:?}, next {:?}, wanted {wanted:?}", status.members, status.next));
            }
        }
        None
    }

    /// Drained members are to serve again, once everything has healed.
    pub fn want_all_active(&mut self, rng: &mut Rng) {
        let Some(state) = self.cluster().filter(|_| self.administrator.is_idle()) else { return };
        if let Some(member) = state.members.values().find(|m| m.standing == Standing::Drained) {
            self.want(rng, Wish::Drain { member: member.id.0, drained: false });
        }
    }
}
