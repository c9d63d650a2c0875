//! Each group's members as group 0 says, one step after the other, where this gateway leads the group; and what this gateway itself may do in
//! its present standing. What the next step is, `control::members` decides.

use super::{Adopted, Node};
use crate::config::GatewayRole;
use holdfast_control::cluster::{ClusterCommand, ClusterState, Member, MemberRole, Standing};
use holdfast_control::members::{GroupView, Peer, Step, may_go, may_stand, next_step, wanted};
use holdfast_raft::{Group, GroupError, GroupStatus};
use holdfast_set::server::SetServer;
use holdfast_types::{GroupId, LogId, LogIndex, MemberId, Term};
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
    /// Entry of group 0 by which this gateway had heard that each of these leaves.
    leaving: BTreeMap<MemberId, LogIndex>,
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
        let heard = adopted.group.applied().index;
        let leaves = |m: &&Member| m.standing == Standing::Leaving;
        let leaving: BTreeSet<MemberId> = state.members.values().filter(leaves).map(|m| m.id).collect();
        self.leaving.retain(|id, _| leaving.contains(id));
        for id in &leaving {
            self.leaving.entry(*id).or_insert(heard);
        }
        let out = match ready_term(&adopted.group) {
            Some(_) => out_of_every_set(adopted, state, &leaving, &self.leaving).await,
            None => BTreeSet::new(),
        };
        for group in adopted.raft.groups() {
            let Some(term) = ready_term(&group) else { continue };
            // One thing at a time: a change that was begun, here or for a member that is healed, is not judged before it has come to its end.
            if group.is_changing() {
                continue;
            }
            let status = group.status();
            let wanted = wanted(state, group.id(), &out);
            let view = view(adopted.member, &status, node.timing.election_max());
            let step = next_step(&view, state, &wanted);
            self.carry_out(node, adopted, &group, term, step, state, status.membership).await;
            if group.id() == GroupId::CLUSTER {
                remove_who_left(node, adopted, &status, &out).await;
                raise_level(node, adopted, state).await;
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "a step, and what it was decided on")]
    async fn carry_out(
        &mut self,
        node: &Node,
        adopted: &Adopted,
        group: &Group,
        term: Term,
        step: Step,
        state: &ClusterState,
        seen: Option<LogId>,
    ) {
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
                if let Err(why) = up_to_date(node, adopted, group, state).await {
                    tracing::debug!(group = %group.id(), %why, "newcomers wait");
                    return;
                }
                announce(true);
                tracing::info!(group = %group.id(), ?newcomers, "newcomers learn");
                group.add_learners(&addresses(state, &newcomers), seen, STEP_LIMIT).await
            }
            Step::Forget(learners) => {
                announce(true);
                tracing::info!(group = %group.id(), ?learners, "learners are taken out");
                group.drop_learners(&learners, seen, STEP_LIMIT).await
            }
            Step::Vote(voters) => {
                announce(true);
                tracing::info!(group = %group.id(), to = ?voters, "voters change");
                group.change_voters(&voters, seen, STEP_LIMIT).await
            }
            Step::End => {
                announce(true);
                tracing::info!(group = %group.id(), "a change of voters that no leader ended is ended");
                group.end_change(seen, STEP_LIMIT).await
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
            server.drain(node.timing.election_max()).await;
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
    GroupView { me, peers: status.members.iter().map(peer).collect(), next: status.next.clone() }
}

/// The term in which this member leads, once it has applied an entry of it: what it sees of the group is not older than that.
fn ready_term(group: &Group) -> Option<Term> {
    group.leading_term().filter(|term| group.applied().term == *term)
}

/// Before somebody is let into a set's group: group 0 here is as new as its leader's. A member that was told that it is in no group any more is
/// let in by nobody who has not heard that it leaves.
async fn up_to_date(node: &Node, adopted: &Adopted, group: &Group, state: &ClusterState) -> Result<(), String> {
    if group.id() == GroupId::CLUSTER {
        return Ok(());
    }
    let newest =
        adopted.raft.committed_members(GroupId::CLUSTER, LogIndex(0)).await.map_err(|e| e.to_string())?.applied;
    let here = adopted.group.applied().index;
    if here < newest || node.cluster.state() != *state {
        return Err(format!("group 0 is applied up to {here} here, and up to {newest} at its leader; decided anew"));
    }
    Ok(())
}

/// Leaving members that no set's group has any more, by the word of each group's leader. What is applied here may be old: a member that it
/// does not show may vote there since. Whose leader cannot be asked may have anybody.
///
/// `heard`: what such a leader has to have applied of group 0, so that it lets none of them in any more. Not group 0's newest entry: a leader that
/// follows group 0 is always a little behind it.
async fn out_of_every_set(
    adopted: &Adopted,
    state: &ClusterState,
    leaving: &BTreeSet<MemberId>,
    heard: &BTreeMap<MemberId, LogIndex>,
) -> BTreeSet<MemberId> {
    // Cheap first: whom this gateway sees in a group itself is not asked about. One that does not run here, or has no members yet: nobody can say.
    let seen: Vec<Option<BTreeSet<MemberId>>> = state.sets.keys().map(|set| seen_here(adopted, *set)).collect();
    let out = may_go(leaving, seen.iter().map(Option::as_ref));
    let known = out.iter().filter_map(|id| heard.get(id)).copied().max().unwrap_or_default();
    let mut rolls = Vec::new();
    for set in state.sets.keys().filter(|_| !out.is_empty()) {
        let roll = adopted.raft.committed_members(*set, known).await;
        if let Err(why) = &roll {
            tracing::info!(%why, leaving = ?out, "it waits before they are told that they may go");
        }
        let unknown = roll.is_err();
        rolls.push(roll.ok().map(|roll| roll.members));
        if unknown {
            break;
        }
    }
    may_go(&out, rolls.iter().map(Option::as_ref))
}

fn seen_here(adopted: &Adopted, set: GroupId) -> Option<BTreeSet<MemberId>> {
    let status = adopted.raft.group(set)?.status();
    let known = status.settled && !status.members.is_empty();
    known.then(|| status.members.iter().map(|m| m.member).collect())
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
