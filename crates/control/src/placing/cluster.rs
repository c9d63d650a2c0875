//! Who votes in group 0 (ADR 0075): three or five of the members, by the steps of the planner of sets. All others are
//! its learners, so a step copies nothing, and no record says where the group is.
//!
//! CLUSTERVOTERS-V1  Nobody leaves group 0 by losing its vote: it goes on as a learner (`raft`, `change_voters`).
//! CLUSTERVOTERS-V2  Only a member that follows group 0 and has nearly all of it gets a vote. The caller names the
//!     others as [`Candidate::busy`].

use super::board::wanted;
use super::choose::{ends, first_voters, plan};
use super::{Candidate, Move, Placed, Rules, View, Why};
use crate::cluster::Standing;
use crate::policy::{Policy, VOTERS_DEFAULT};
use holdfast_types::{GroupId, MemberId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A voter of group 0 that is silent for longer gets a substitute: that one has everything already.
pub const CLUSTER_REPLACE_AFTER: Duration = Duration::from_secs(60);

/// Voters of group 0 in a cluster with at least as many members; 3 in a smaller one.
const CLUSTER_VOTERS: u8 = 5;

/// Voters with which group 0 needs none that leaves.
const ENOUGH: usize = 3;

/// The voters that group 0 should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterVoters {
    /// After the next step.
    pub next: BTreeSet<MemberId>,
    /// What the step improves. `None`: it only drops voters that leave, or there is no step.
    pub why: Option<Why>,
    /// After all steps, if nothing else changes.
    pub end: BTreeSet<MemberId>,
}

/// Voters of group 0 in a cluster of so many members that are all well. 4 would survive no more losses than 3.
pub fn cluster_size(members: usize) -> usize {
    wanted(cluster_policy(members).voters, members)
}

/// Group 0's policy in a cluster of so many members that stay.
pub fn cluster_policy(members: usize) -> Policy {
    let voters = if members >= CLUSTER_VOTERS.into() { CLUSTER_VOTERS } else { VOTERS_DEFAULT };
    Policy { voters, ..Policy::default() }
}

/// The next step of group 0, which has these `voters` and is led by `me`. `out`: members that leave and are in no set's
/// group any more. `replace_after`: as for sets, but at most [`CLUSTER_REPLACE_AFTER`].
///
/// Where there are more than five, one or two of them lose their votes at a time (PLACING-P1).
pub fn cluster_voters(
    members: &BTreeMap<MemberId, Candidate>,
    voters: &BTreeSet<MemberId>,
    me: MemberId,
    out: &BTreeSet<MemberId>,
    replace_after: Option<Duration>,
) -> ClusterVoters {
    let leaves = |id: &MemberId| members.get(id).is_some_and(|member| member.standing == Standing::Leaving);
    let stays = |id: &MemberId| members.get(id).is_some_and(|member| member.standing != Standing::Leaving);
    let replace_after = replace_after.map(|limit| limit.min(CLUSTER_REPLACE_AFTER));
    let rules = Rules { replace_after, at_once: 1, repairs: 1, balance: false };
    let policy = cluster_policy(members.keys().filter(|id| stays(id)).count());
    let mut view = View { members: members.clone(), groups: BTreeMap::new() };
    // Those that leave are on their way out: their places are free, as in a set's record.
    let staying: BTreeSet<MemberId> = voters.iter().copied().filter(stays).collect();
    let (mut next, why, end) = if staying.is_empty() {
        // All are being replaced at once.
        let first = first_voters(&view, &policy, &rules);
        (first.clone(), Some(Why::Unusable), first)
    } else {
        view.groups.insert(GroupId::CLUSTER, as_placed(policy, &staying, me));
        let end = ends(&view, &rules).remove(&GroupId::CLUSTER).unwrap_or_default();
        match plan(&view, &rules).pop() {
            Some(Move { to, why, .. }) => (to, Some(why), end),
            None => (staying, None, end),
        }
    };
    if next.len() < ENOUGH {
        // Its vote may be needed to let it go (ADR 0019).
        next.extend(voters.iter().copied().filter(leaves));
    }
    next.retain(|id| members.contains_key(id) && !out.contains(id));
    let why = why.filter(|_| next != *voters);
    ClusterVoters { next, why, end }
}

/// Group 0 as the planner of sets sees a group.
fn as_placed(policy: Policy, voters: &BTreeSet<MemberId>, leader: MemberId) -> Placed {
    Placed {
        policy,
        voters: voters.clone(),
        now: voters.clone(),
        late: BTreeSet::new(),
        absent: BTreeSet::new(),
        leader: Some(leader),
        bytes: 0,
        moving: false,
        overdue: false,
        stalled: false,
    }
}
