//! Each group's members as group 0 says, one step after the other, where this gateway leads the group; and what this gateway itself may do in
//! its present standing. What the next step is, `control::members` decides.

use super::{Adopted, Node};
use crate::config::GatewayRole;
use crate::set::server::SetServer;
use holdfast_control::cluster::{ClusterCommand, ClusterState, Member, MemberRole, Standing};
use holdfast_control::members::{GroupView, Peer, Step, may_stand, next_step, wanted};
use holdfast_raft::{Group, GroupError, GroupStatus};
use holdfast_types::{GroupId, MemberId, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one step may take before it is tried again.
const STEP_LIMIT: Duration = Duration::from_secs(15);

/// Without a leader for so many election timeouts, a member that is not to lead stands for election all the same. Another one that could be
/// elected would have been by then.
const LEADERLESS_ELECTIONS: u32 = 4;

/// Between two tries to give one leadership away, in election timeouts: the heir's vote embargo after a start is over by then.
const HAND_OVER_ELECTIONS: u32 = 2;

/// Follows group 0; remembers what it did, so as not to do it twice in a row.
#[derive(Default)]
pub(super) struct Follower {
    handed_over: BTreeMap<GroupId, (Term, Instant)>,
    said: BTreeMap<GroupId, String>,
}

/// Why a member is to serve nothing, for people.
fn aside(member: Option<&Member>, role: GatewayRole) -> Option<&'static str> {
    match member.map_or((role.into(), Standing::Active), |m| (m.role, m.standing)) {
        (_, Standing::Leaving) => Some("is leaving the cluster"),
        (_, Standing::Drained) => Some("is drained"),
        (MemberRole::Witness, Standing::Active) => Some("is a witness"),
        (MemberRole::Gateway, Standing::Active) => None,
    }
}

impl Follower {
    /// One round.
    pub(super) async fn follow(&mut self, node: &Arc<Node>, adopted: &Adopted, state: &ClusterState) {
        let me = state.members.get(&adopted.member);
        let why = aside(me, node.config.role);
        let patience = node.timing.election_max() * LEADERLESS_ELECTIONS;
        for group in adopted.raft.groups() {
            group.stand_aside(!may_stand(why.is_none(), group.unheard(), patience));
            if let Some(server) = server(node, state, group.id()) {
                server.stand_aside(why);
            }
        }
        if state.members.is_empty() || state.cluster_id == 0 {
            return;
        }
        let out = out_of_every_set(adopted, state);
        for group in adopted.raft.groups() {
            let Some(term) = group.leading_term() else { continue };
            if group.applied().term != term {
                continue;
            }
            let status = group.status();
            let wanted = wanted(state, group.id(), &out);
            let view = view(adopted.member, &status, node.timing.election_max());
            let step = next_step(&view, state, &wanted);
            self.carry_out(node, &group, term, step, state).await;
            if group.id() == GroupId::CLUSTER {
                remove_who_left(node, adopted, &status, &out).await;
                raise_level(node, adopted, state).await;
            }
        }
    }

    async fn carry_out(&mut self, node: &Node, group: &Group, term: Term, step: Step, state: &ClusterState) {
        let server = server(node, state, group.id());
        // While a change is under way nobody is the only voter (R3); what was proposed and not answered may still happen.
        let announce = |under_way: bool| {
            if let Some(server) = &server {
                server.gate().announce_members_change(under_way);
            }
        };
        let waits = if let Step::Wait(why) = &step { why.to_string() } else { String::new() };
        if self.said.insert(group.id(), waits.clone()).is_none_or(|said| said != waits) && !waits.is_empty() {
            tracing::info!(group = %group.id(), why = %waits, "its members are not those of the cluster yet");
        }
        let done = match step {
            Step::Done => {
                announce(false);
                return;
            }
            Step::Wait(_) => return,
            Step::HandOver(heir) => {
                self.hand_over(node, group, term, heir, server.as_ref()).await;
                return;
            }
            Step::Learn(newcomers) => {
                announce(true);
                tracing::info!(group = %group.id(), ?newcomers, "newcomers learn");
                group.add_learners(&addresses(state, &newcomers), STEP_LIMIT).await
            }
            Step::Forget(learners) => {
                announce(true);
                tracing::info!(group = %group.id(), ?learners, "learners are taken out");
                group.drop_learners(&learners, STEP_LIMIT).await
            }
            Step::Vote(voters) => {
                announce(true);
                tracing::info!(group = %group.id(), to = ?voters, "voters change");
                group.change_voters(&voters, STEP_LIMIT).await
            }
        };
        report(group, done);
    }

    /// This gateway is not to lead: another takes over. It serves nothing from here on in this term, whatever becomes of the transfer.
    async fn hand_over(
        &mut self,
        node: &Node,
        group: &Group,
        term: Term,
        heir: MemberId,
        server: Option<&Arc<SetServer>>,
    ) {
        let pause = node.timing.election_max() * HAND_OVER_ELECTIONS;
        let just_now = self.handed_over.get(&group.id()).is_some_and(|(of, at)| *of == term && at.elapsed() < pause);
        if just_now {
            return;
        }
        self.handed_over.insert(group.id(), (term, Instant::now()));
        if let Some(server) = server {
            server.stop_serving_for_transfer();
        }
        tracing::info!(group = %group.id(), to = %heir, "this gateway is not to lead: handing leadership over");
        report(group, group.transfer_leader(heir).await);
    }
}

fn report(group: &Group, done: Result<(), GroupError>) {
    if let Err(e) = done {
        tracing::warn!(group = %group.id(), error = %e, "members not changed; tried again");
    }
}

fn server(node: &Node, state: &ClusterState, group: GroupId) -> Option<Arc<SetServer>> {
    state.sets.get(&group).and_then(|entry| node.set(&entry.name))
}

fn addresses(state: &ClusterState, ids: &BTreeSet<MemberId>) -> BTreeMap<MemberId, String> {
    let known = ids.iter().filter_map(|id| state.members.get(id));
    known.map(|m| (m.id, m.peer_addr.clone())).collect()
}

/// A group as its leader sees it. Who has been silent for an election's time does not answer.
fn view(me: MemberId, status: &GroupStatus, patience: Duration) -> GroupView {
    let last = status.last.map_or(0, |l| l.0);
    let peer = |m: &holdfast_raft::MemberStatus| Peer {
        id: m.member,
        voter: m.voter,
        answers: m.member == me || m.silent.is_some_and(|silent| silent <= patience),
        behind: if m.member == me { 0 } else { m.matched.map_or(u64::MAX, |at| last.saturating_sub(at.0)) },
    };
    GroupView { me, peers: status.members.iter().map(peer).collect() }
}

/// Leaving members that no set's group has any more, by what is committed here.
fn out_of_every_set(adopted: &Adopted, state: &ClusterState) -> BTreeSet<MemberId> {
    let leaving = state.members.values().filter(|m| m.standing == Standing::Leaving).map(|m| m.id);
    let mut out: BTreeSet<MemberId> = leaving.collect();
    for set in state.sets.keys() {
        if out.is_empty() {
            break;
        }
        // A group that does not run here, or has no members yet: nobody can say.
        let Some(status) = adopted.raft.group(*set).map(|group| group.status()) else { return BTreeSet::new() };
        if !status.settled || status.members.is_empty() {
            return BTreeSet::new();
        }
        out.retain(|id| !status.members.iter().any(|m| m.member == *id));
    }
    out
}

/// The last step of a removal: out of every set's group and of group 0, a member is taken out of the cluster.
async fn remove_who_left(node: &Node, adopted: &Adopted, status: &GroupStatus, out: &BTreeSet<MemberId>) {
    let in_group = |id: &MemberId| status.members.iter().any(|m| m.member == *id);
    for id in out.iter().filter(|id| status.settled && !in_group(id)) {
        match node.cluster.command(&adopted.group, &ClusterCommand::RemoveMember { id: *id }).await {
            Ok(_) => tracing::info!(member = %id, "removed from the cluster"),
            Err(e) => tracing::warn!(member = %id, error = %e, "not removed yet; tried again"),
        }
    }
}

/// Once every member's build knows more than the cluster is at, that may be proposed (C4).
async fn raise_level(node: &Node, adopted: &Adopted, state: &ClusterState) {
    let Some(level) = state.raisable() else { return };
    match node.cluster.command(&adopted.group, &ClusterCommand::RaiseLevel { level }).await {
        Ok(_) => tracing::info!(level, "every gateway knows this feature level: the cluster is at it"),
        Err(e) => tracing::warn!(level, error = %e, "the feature level is not raised yet; tried again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_witness_serves_nothing_also_before_the_cluster_knows_it() {
        assert_eq!(aside(None, GatewayRole::Witness), Some("is a witness"));
        assert_eq!(aside(None, GatewayRole::Gateway), None);
    }
}
