//! Changes the members of each group that this gateway leads, step by step, to those in group 0. Also what this gateway
//! itself may do in its current standing. `control::members` decides the next step.

mod group_0;
mod steps;

use super::near::lacks;
use super::{Adopted, Node};
use crate::config::GatewayRole;
use futures_util::{StreamExt, stream};
use holdfast_control::cluster::{ClusterCommand, ClusterState, Member, MemberRole, SetEntry, Standing};
use holdfast_control::members::{
    GroupView, Peer, Step, has_successor, kept, may_go, may_stand, named_by, perhaps_in, step_of, step_of_cluster,
    wanted,
};
use holdfast_raft::{Group, GroupError, GroupStatus, MembershipUnknown, RaftNode};
use holdfast_set::server::SetServer;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId, LogIndex, MemberId, SetId, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use steps::{Steps, Task};

/// How long one step may take before it is retried.
const STEP_LIMIT: Duration = Duration::from_secs(15);

/// A member that should not lead stands for election anyway after this many election timeouts without a leader. By
/// then, any other electable member would have been elected.
const LEADERLESS_ELECTIONS: u32 = 4;

/// Most leaders of sets that are asked at the same time whether members that leave are out.
const ASKED_AT_ONCE: usize = 8;

/// Pause between two attempts to hand over one leadership, in election timeouts. By then, the vote embargo of a
/// successor that has just started is over.
const HAND_OVER_ELECTIONS: u32 = 2;

/// How long a leaving voter of a set waits for the planner to give its place to another member, since the planner has
/// given away one of its places in any set. It looks as soon as a member leaves, and moves a few sets at a time. The
/// voter that a leaving newcomer was to replace waits for as long.
const PLANNER_LIMIT: Duration = Duration::from_secs(300);

/// How long it waits in all: by then the planner has moved a thousand idle sets.
const REMOVAL_LIMIT: Duration = Duration::from_secs(3600);

/// Follows group 0. Remembers its actions, so as not to repeat them.
#[derive(Default)]
pub(super) struct Follower {
    steps: Steps,
    /// The leaving members that are in no set's group any more. None comes back into one: see [`out_of_every_set`].
    out: BTreeSet<MemberId>,
    /// Asks the sets' leaders for more of them.
    asks: Option<Task<BTreeSet<MemberId>>>,
    handed_over: BTreeMap<GroupId, (Term, Instant)>,
    said: BTreeMap<GroupId, String>,
    /// For each leaving member: the index in group 0 at which this gateway learned of it.
    leaving: BTreeMap<MemberId, LogIndex>,
    /// How far each one's removal is.
    removals: BTreeMap<MemberId, Removal>,
}

/// Progress of a member's removal, as this gateway sees it.
struct Removal {
    begun: Instant,
    /// Sets that named it when they last became fewer.
    named: usize,
    /// When they did.
    last: Instant,
}

impl Removal {
    fn new(named: usize, now: Instant) -> Self {
        Self { begun: now, named, last: now }
    }

    fn see(&mut self, named: usize, now: Instant) {
        if named < self.named {
            (self.named, self.last) = (named, now);
        }
    }

    /// Whether the planner may still give away its places. A set for which it cannot delays nobody: the others are seen
    /// to become fewer, or the time ends.
    fn waits(&self, now: Instant) -> bool {
        let since = |then: Instant| now.saturating_duration_since(then);
        since(self.last) < PLANNER_LIMIT && since(self.begun) < REMOVAL_LIMIT
    }
}

/// Why a member should serve nothing, for people.
fn aside(member: Option<&Member>, role: GatewayRole) -> Option<&'static str> {
    match member.map_or((role.into(), Standing::Active), |m| (m.role, m.standing)) {
        (_, Standing::Leaving) => Some("is leaving the cluster"),
        (_, Standing::Drained) => Some("is drained"),
        (MemberRole::Witness, Standing::Active) => Some("is a witness"),
        (MemberRole::Gateway, Standing::Active) => None,
    }
}

/// Whether a gateway that should not serve a set stops granting it. If it leads and nobody could take over, it goes on.
fn gives_way(node: &Node, me: MemberId, group: &Group, state: &ClusterState) -> bool {
    let wanted = wanted(state, group.id(), &BTreeSet::new());
    let successor = || has_successor(&view(me, &group.status(), node.timing.election_max()), state, &wanted);
    group.ready_term().is_none_or(|_| successor())
}

/// Why this gateway should not serve the set of `group`: for a reason of its own, or because the set is placed on
/// others (VOTERS-V1).
fn aside_in(own: Option<&'static str>, state: &ClusterState, group: GroupId, me: MemberId) -> Option<&'static str> {
    let elsewhere = || state.sets.get(&group).is_some_and(|set| !set.has_place_for(me));
    own.or_else(|| elsewhere().then_some("is not a gateway of this set any more"))
}

/// Whether the group is group 0 or that of a set. That of a deleted set may run for a moment longer: its members are
/// not changed, since its record names nobody any more.
fn exists(state: &ClusterState, group: GroupId) -> bool {
    group == GroupId::CLUSTER || state.sets.contains_key(&group)
}

impl Follower {
    /// One round.
    pub(super) async fn follow(&mut self, node: &Arc<Node>, adopted: &Adopted, state: &Arc<ClusterState>) {
        let me = state.members.get(&adopted.member);
        let own = aside(me, node.config.role);
        let witness = me.map_or(node.config.role.into(), |me| me.role) == MemberRole::Witness;
        let patience = node.timing.election_max() * LEADERLESS_ELECTIONS;
        for group in adopted.raft.groups() {
            let why = aside_in(own, state, group.id(), adopted.member);
            group.stand_aside(!may_stand(why.is_none(), group.unheard(), patience));
            if let Some(server) = server(node, state, group.id()) {
                server.stand_aside(why.filter(|_| witness || gives_way(node, adopted.member, &group, state)));
            }
        }
        if state.members.is_empty() || state.cluster_id == 0 {
            return;
        }
        self.keep(state, adopted.group.applied().index);
        self.find_out(node, adopted, state).await;
        let waiting = self.waiting(node.live().placing.enabled);
        self.steps.forget_done();
        for group in self.steps.in_turn(adopted.raft.groups()).into_iter().filter(|group| exists(state, group.id())) {
            let Some(term) = group.ready_term() else { continue };
            // One change at a time: a change that was begun here, or for a member that is being healed, must complete
            // before the members are compared again.
            if group.is_changing() {
                continue;
            }
            let status = group.status();
            if group.id() == GroupId::CLUSTER {
                remove_who_left(node, adopted, &status, &self.out).await;
                raise_level(node, adopted, state).await;
            }
            if !self.steps.may_begin(group.id()) {
                continue;
            }
            let mut wanted = wanted(state, group.id(), &self.out);
            wanted.extend(kept(state, group.id(), adopted.member, &waiting));
            let view = view(adopted.member, &status, node.timing.election_max());
            let step = if group.id() == GroupId::CLUSTER {
                let voting = group_0::voting(node, term, state, (&view, &status), &wanted, &self.out);
                step_of_cluster(&view, state, &wanted, &voting)
            } else {
                step_of(group.id(), &view, state, &wanted)
            };
            let (node, adopted, state) = (node.clone(), adopted.clone(), state.clone());
            self.begin(Due { node, adopted, group, term, state, seen: status.membership, step });
        }
    }

    /// Keeps what is known of the members that leave and of the groups that exist. `heard`: what is applied of group 0.
    fn keep(&mut self, state: &ClusterState, heard: LogIndex) {
        let leaves = |m: &&Member| m.standing == Standing::Leaving;
        let leaving: BTreeSet<MemberId> = state.members.values().filter(leaves).map(|m| m.id).collect();
        self.leaving.retain(|id, _| leaving.contains(id));
        self.out.retain(|id| leaving.contains(id));
        // Nothing is kept of the group of a deleted set.
        self.said.retain(|id, _| exists(state, *id));
        self.handed_over.retain(|id, _| exists(state, *id));
        self.removals.retain(|id, _| leaving.contains(id));
        let now = Instant::now();
        for id in &leaving {
            self.leaving.entry(*id).or_insert(heard);
            let named = named_by(state, *id);
            self.removals.entry(*id).or_insert_with(|| Removal::new(named, now)).see(named, now);
        }
    }

    /// At the leader of group 0: which leaving members are in no set's group any more. The sets' leaders are asked in a
    /// task: one that does not answer keeps nothing else waiting.
    async fn find_out(&mut self, node: &Node, adopted: &Adopted, state: &Arc<ClusterState>) {
        if adopted.group.ready_term().is_none() {
            (self.out, self.asks) = (BTreeSet::new(), None);
            return;
        }
        if let Some(mut asks) = self.asks.take_if(|asks| asks.is_done()) {
            let found = asks.done().await.unwrap_or_default();
            self.out.extend(found.into_iter().filter(|id| self.leaving.contains_key(id)));
        }
        let (heard, out) = (&self.leaving, &self.out);
        let heard: BTreeMap<MemberId, LogIndex> =
            heard.iter().filter(|(id, _)| !out.contains(id)).map(|(id, at)| (*id, *at)).collect();
        if self.asks.is_none() && !heard.is_empty() {
            let away = node.planned.locked().away().clone();
            let asks = out_of_every_set(adopted.raft.clone(), state.clone(), heard, away);
            self.asks = Some(Task::spawn(asks));
        }
    }

    /// The leaving members whose places the planner may still give to others. Without a planner nobody waits.
    fn waiting(&self, planner: bool) -> BTreeSet<MemberId> {
        let now = Instant::now();
        let waits = |removal: &Removal| planner && removal.waits(now);
        self.removals.iter().filter(|(_, removal)| waits(removal)).map(|(id, _)| *id).collect()
    }

    /// Takes a step, in a task if it has to wait for others.
    fn begin(&mut self, due: Due) {
        let id = due.group.id();
        let waits = if let Step::Wait(why) = &due.step { why.to_string() } else { String::new() };
        if self.said.insert(id, waits.clone()).is_none_or(|said| said != waits) && !waits.is_empty() {
            tracing::info!(group = %id, why = %waits, "the group's members do not match the cluster yet");
        }
        match due.step {
            Step::Done => return due.announce(false),
            Step::Wait(_) => return,
            Step::HandOver(_) => {
                let pause = due.node.timing.election_max() * HAND_OVER_ELECTIONS;
                let just_now = |(of, at): &(Term, Instant)| *of == due.term && at.elapsed() < pause;
                if self.handed_over.get(&id).is_some_and(just_now) {
                    return;
                }
                self.handed_over.insert(id, (due.term, Instant::now()));
            }
            Step::Learn(_) | Step::Forget(_) | Step::Vote(_) | Step::End => {}
        }
        let stop = due.node.stop.clone();
        // Longer than what it waits for: the newest group 0 and a change, or clients and a transfer.
        let limit = due.node.timing.election_max() + STEP_LIMIT * 2;
        self.steps.begin(id, limit, async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = due.take() => {}
            }
        });
    }
}

/// A step of a group that this gateway leads, and what it was decided on.
struct Due {
    node: Arc<Node>,
    adopted: Adopted,
    group: Group,
    term: Term,
    state: Arc<ClusterState>,
    /// The membership.
    seen: Option<LogId>,
    step: Step,
}

impl Due {
    fn server(&self) -> Option<Arc<SetServer>> {
        server(&self.node, &self.state, self.group.id())
    }

    /// While a change is in progress, no member counts as the only voter (R3): a proposal without an answer may still
    /// be applied.
    fn announce(&self, under_way: bool) {
        if let Some(server) = self.server() {
            server.gate().announce_members_change(under_way);
        }
    }

    async fn take(self) {
        let (group, state, seen) = (&self.group, &self.state, self.seen);
        if let Err(why) = up_to_date(&self.node, &self.adopted, group, state, &self.step).await {
            tracing::debug!(group = %group.id(), %why, "a change of members waits");
            return;
        }
        let done = match &self.step {
            Step::Done | Step::Wait(_) => return,
            Step::HandOver(heir) => return self.hand_over(*heir).await,
            Step::Learn(newcomers) => {
                self.announce(true);
                tracing::info!(group = %group.id(), ?newcomers, "adding new members as learners");
                group.add_learners(&addresses(state, newcomers), seen, STEP_LIMIT).await
            }
            Step::Forget(learners) => {
                self.announce(true);
                tracing::info!(group = %group.id(), ?learners, "removing learners");
                group.drop_learners(learners, seen, STEP_LIMIT).await
            }
            Step::Vote(voters) => {
                self.announce(true);
                tracing::info!(group = %group.id(), to = ?voters, "changing the voters");
                group.change_voters(voters, seen, STEP_LIMIT).await
            }
            Step::End => {
                self.announce(true);
                tracing::info!(group = %group.id(), "completing a change of voters that an earlier leader left unfinished");
                group.end_change(seen, STEP_LIMIT).await
            }
        };
        report(group, done);
    }

    /// This gateway should not lead, so another member takes over. From here on it serves nothing in this term, even if
    /// the transfer fails.
    async fn hand_over(&self, heir: MemberId) {
        let group = &self.group;
        if let Some(server) = self.server() {
            server.drain(self.node.timing.election_max()).await;
            // A later leadership must not be ended by this one.
            if group.leading_term() != Some(self.term) {
                return;
            }
            server.stop_serving_for_transfer();
        }
        tracing::info!(group = %group.id(), to = %heir, "this gateway should not lead: handing leadership over");
        report(group, group.transfer_leader(heir).await);
    }
}

fn report(group: &Group, done: Result<(), GroupError>) {
    if let Err(e) = done {
        tracing::warn!(group = %group.id(), error = %e, "members not changed; trying again");
    }
}

fn server(node: &Node, state: &ClusterState, group: GroupId) -> Option<Arc<SetServer>> {
    state.sets.get(&group).and_then(|entry| node.set(&entry.name))
}

fn addresses(state: &ClusterState, ids: &BTreeSet<MemberId>) -> BTreeMap<MemberId, String> {
    let known = ids.iter().filter_map(|id| state.members.get(id));
    known.map(|m| (m.id, m.peer_addr.clone())).collect()
}

/// A group as its leader sees it. A member that was silent for an election timeout counts as not answering.
pub(super) fn view(me: MemberId, status: &GroupStatus, patience: Duration) -> GroupView {
    let peer = |m: &holdfast_raft::MemberStatus| {
        let (behind, behind_bytes) = if m.member == me { (0, 0) } else { lacks(status, m) };
        let answers = m.member == me || m.silent.is_some_and(|silent| silent <= patience);
        Peer { id: m.member, voter: m.voter, answers, behind, behind_bytes }
    };
    GroupView { me, peers: status.members.iter().map(peer).collect(), next: status.next.clone() }
}

/// Whether a step may be taken only with the newest group 0 ([`up_to_date`]): one that adds members, and one that takes
/// out members of a set that names its voters. They may be named again by now (VOTERS-V1); that a member leaves is
/// final.
fn needs_newest(step: &Step, state: &ClusterState, group: GroupId) -> bool {
    let named = || state.sets.get(&group).is_some_and(|set| !set.voters.is_empty());
    matches!(step, Step::Learn(_)) || matches!(step, Step::Forget(_) | Step::Vote(_)) && named()
}

/// Before a member is added to a set's group, group 0 here must be as new as on its leader. Otherwise a leader that
/// does not know that a member is leaving could add it after it was told that it is in no group.
async fn up_to_date(
    node: &Node,
    adopted: &Adopted,
    group: &Group,
    state: &ClusterState,
    step: &Step,
) -> Result<(), String> {
    if group.id() == GroupId::CLUSTER || !needs_newest(step, state, group.id()) {
        return Ok(());
    }
    let newest =
        adopted.raft.committed_members(GroupId::CLUSTER, LogIndex(0)).await.map_err(|e| e.to_string())?.applied;
    let here = adopted.group.applied().index;
    if here < newest || node.cluster.state() != *state {
        return Err(format!("group 0 is applied up to {here} here, and up to {newest} on its leader; deciding again"));
    }
    Ok(())
}

/// The leaving members that are in no set's group any more, according to each group's leader. The state that is applied
/// here may be old: a member that it does not show may be a voter since. A group whose leader does not answer may have
/// any member that has not said that it has no part in it (`away`): so one set without a leader keeps only those that
/// it may need.
///
/// `heard`: the index of group 0 that such a leader must have applied, so that it adds none of them any more. It is not
/// the newest entry of group 0: a leader that follows group 0 is always a little behind.
async fn out_of_every_set(
    raft: RaftNode,
    state: Arc<ClusterState>,
    heard: BTreeMap<MemberId, LogIndex>,
    away: BTreeMap<MemberId, BTreeSet<SetId>>,
) -> BTreeSet<MemberId> {
    // Cheap check first: members that this gateway itself sees in a group need no question. For a group that has no
    // members yet, the answer is unknown. A group that does not run here is asked about below.
    let leaving = heard.keys().copied().collect();
    let here = state.sets.keys().filter_map(|set| raft.group(*set));
    let seen = here.map(|group| seen_here(&group).unwrap_or_else(|| perhaps_in(&leaving, group.id(), &away)));
    let seen: Vec<BTreeSet<MemberId>> = seen.collect();
    let mut left = may_go(&leaving, &seen);
    let known = left.iter().filter_map(|id| heard.get(id)).copied().max().unwrap_or_default();
    if left.is_empty() {
        return left;
    }
    let peers = |entry: &SetEntry| may_lead(&state, entry).map(|ids| addresses(&state, &ids));
    let sets: Vec<(SetId, [BTreeMap<MemberId, String>; 2])> =
        state.sets.iter().map(|(set, entry)| (*set, peers(entry))).collect();
    let asked = sets.into_iter().map(|(set, peers)| members_of(raft.clone(), set, known, peers));
    let mut answers = stream::iter(asked).buffer_unordered(ASKED_AT_ONCE);
    while let Some(answer) = answers.next().await {
        let roll = answer.unwrap_or_else(|why| {
            let perhaps = perhaps_in(&left, why.group, &away);
            if !perhaps.is_empty() {
                tracing::info!(%why, leaving = ?perhaps, "leaving members have to wait");
            }
            perhaps
        });
        left = may_go(&left, [&roll]);
        // Nobody may go: the other leaders, perhaps of a thousand sets in other regions, need not be asked.
        if left.is_empty() {
            break;
        }
    }
    left
}

/// The members of a set's group, by the word of its leader: one of the first of these, else one of the others.
async fn members_of(
    raft: RaftNode,
    set: SetId,
    known: LogIndex,
    [named, others]: [BTreeMap<MemberId, String>; 2],
) -> Result<BTreeSet<MemberId>, MembershipUnknown> {
    let mut roll = raft.committed_members_of(set, known, &named).await;
    if roll.is_err() && !others.is_empty() {
        roll = raft.committed_members_of(set, known, &others).await;
    }
    roll.map(|roll| roll.members)
}

/// Those that may lead a set's group: first those that its record names, also one that is leaving itself; then all
/// others, since a leader that is not named any more leads on until a voter that is named can follow it.
fn may_lead(state: &ClusterState, entry: &SetEntry) -> [BTreeSet<MemberId>; 2] {
    let (named, others) = state.members.keys().copied().partition(|id| entry.has_place_for(*id));
    [named, others]
}

fn seen_here(group: &Group) -> Option<BTreeSet<MemberId>> {
    let status = group.status();
    let known = status.settled && !status.members.is_empty();
    known.then(|| status.members.iter().map(|m| m.member).collect())
}

/// The last step of a removal: a member that is out of all sets' groups and of group 0 is removed from the cluster.
async fn remove_who_left(node: &Node, adopted: &Adopted, status: &GroupStatus, out: &BTreeSet<MemberId>) {
    let in_group = |id: &MemberId| status.members.iter().any(|m| m.member == *id);
    for id in out.iter().filter(|id| status.settled && !in_group(id)) {
        match node.cluster.command(&adopted.group, &ClusterCommand::RemoveMember { id: *id }).await {
            Ok(_) => tracing::info!(member = %id, "removed from the cluster"),
            Err(e) => tracing::warn!(member = %id, error = %e, "not removed yet; trying again"),
        }
    }
}

/// Proposes a higher feature level once every member's build knows it (CLUSTER-C4).
async fn raise_level(node: &Node, adopted: &Adopted, state: &ClusterState) {
    let Some(level) = state.raisable() else { return };
    match node.cluster.command(&adopted.group, &ClusterCommand::RaiseLevel { level }).await {
        Ok(_) => tracing::info!(level, "every gateway knows this feature level: the cluster now uses it"),
        Err(e) => tracing::warn!(level, error = %e, "the feature level is not raised yet; trying again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::Name;

    #[test]
    fn a_witness_serves_nothing_also_before_the_cluster_knows_it() {
        assert_eq!(aside(None, GatewayRole::Witness), Some("is a witness"));
        assert_eq!(aside(None, GatewayRole::Gateway), None);
    }

    #[test]
    fn a_leader_that_is_not_named_any_more_is_asked_too() {
        let mut state = ClusterState::new();
        for id in [1, 2, 3].map(MemberId) {
            let (name, locality) = (Name::new(format!("g{}", id.0)).unwrap(), "region=eu".parse().unwrap());
            let [peer_addr, api_addr, nbd_addr] = [1, 2, 3].map(|port| format!("a:{port}"));
            let (role, standing) = (MemberRole::Gateway, Standing::Active);
            let disk = u128::from(id.0);
            let member = Member { id, name, locality, disk, peer_addr, api_addr, nbd_addr, role, standing };
            state.members.insert(id, member);
        }
        let mut entry = SetEntry::new(&Name::new("demo").unwrap(), &[1], 1, MemberId(1));
        let ids = |of: &[u64]| of.iter().copied().map(MemberId).collect::<BTreeSet<_>>();
        assert_eq!(may_lead(&state, &entry), [ids(&[1, 2, 3]), ids(&[])]);
        entry.voters = ids(&[2, 9]);
        assert_eq!(may_lead(&state, &entry), [ids(&[2]), ids(&[1, 3])]);
    }

    /// Of a gateway with votes in several hundred sets, the last ones went down to two voters after five minutes.
    #[test]
    fn a_removal_waits_for_the_planner_while_it_gets_on_and_not_for_ever() {
        let at = Instant::now();
        let mut removal = Removal::new(500, at);
        assert!(removal.waits(at) && !removal.waits(at + PLANNER_LIMIT), "the planner does nothing");
        removal.see(492, at + PLANNER_LIMIT / 2);
        assert!(removal.waits(at + PLANNER_LIMIT));
        removal.see(492, at + PLANNER_LIMIT);
        assert!(!removal.waits(at + PLANNER_LIMIT * 3 / 2), "it can do nothing for the others");
        removal.see(1, at + REMOVAL_LIMIT - Duration::from_secs(1));
        assert!(!removal.waits(at + REMOVAL_LIMIT), "the whole");
        let removals = BTreeMap::from([(MemberId(1), Removal::new(1, Instant::now()))]);
        let follower = Follower { removals, ..Follower::default() };
        assert_eq!(follower.waiting(true), BTreeSet::from([MemberId(1)]));
        assert_eq!(follower.waiting(false), BTreeSet::new(), "`placing.enabled` is false");
    }

    #[test]
    fn nobody_is_added_by_an_old_group_0() {
        let (state, ids) = (ClusterState::new(), BTreeSet::from([MemberId(2)]));
        assert!(needs_newest(&Step::Learn(ids.clone()), &state, GroupId(4)));
        for step in [Step::Vote(ids.clone()), Step::Forget(ids), Step::End, Step::HandOver(MemberId(2))] {
            assert!(!needs_newest(&step, &state, GroupId(4)), "{step:?}: only leaving members are taken out, for ever");
        }
    }

    #[test]
    fn group_0_and_unknown_sets_have_a_place_everywhere() {
        let (state, me) = (ClusterState::new(), MemberId(1));
        assert_eq!(aside_in(None, &state, GroupId::CLUSTER, me), None);
        assert_eq!(aside_in(None, &state, GroupId(4), me), None);
        assert!(exists(&state, GroupId::CLUSTER) && !exists(&state, GroupId(4)), "a deleted set gets no members");
        assert_eq!(aside_in(Some("is drained"), &state, GroupId(4), me), Some("is drained"));
    }
}
