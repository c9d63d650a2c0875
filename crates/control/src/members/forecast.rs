//! What a drain would move: a forecast for people, by the rules that decide then (`step_of`, `placing::plan`), as if
//! nothing else changed.

use super::GroupHealth;
use crate::cluster::{ClusterState, Standing};
use crate::placing::{Candidate, Placed, Rules, View, ends};
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeSet;

/// Why something stays where it is. The text is for display.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stays {
    /// MEMBER-M3.
    #[error("no other voter that serves answers and has nearly all entries: it leads on until one does")]
    NoHeir,
    /// Nobody could be asked, and the planner moves nothing (PLACING-P3).
    #[error("there is no leader: nothing moves before there is one")]
    NoLeader,
    /// By the settings.
    #[error("`placing.enabled` is false in the settings of the cluster's leader")]
    Off,
    /// All others have a vote already, are drained, leave, or stand in a forbidden region.
    #[error("no other gateway may have its vote")]
    Nobody,
    /// Those that may have the vote do not get it now.
    #[error("not now: those that may have its vote do not answer, have no room, or were too slow before: {names}")]
    NotNow {
        /// These gateways.
        names: String,
    },
    /// PLACING-P1.
    #[error("with another gateway in its place it would survive less")]
    Survival,
}

/// What would become of one group of a gateway that is drained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// The group.
    pub group: GroupId,
    /// If it leads: one of these would lead next, and may pass leadership on to be near the owner.
    pub leader: Option<Result<BTreeSet<MemberId>, Stays>>,
    /// If it votes in a set: these get a vote. None of them: its vote is given up.
    pub vote: Option<Result<BTreeSet<MemberId>, Stays>>,
}

/// The groups that `id` leads, and the sets in which it votes or may vote. `view`: what the planner sees now.
pub fn forecast(
    state: &ClusterState,
    groups: &[GroupHealth],
    id: MemberId,
    view: &View,
    rules: &Rules,
) -> Vec<Forecast> {
    let mut view = view.clone();
    if let Some(member) = view.members.get_mut(&id).filter(|member| member.standing == Standing::Active) {
        member.standing = Standing::Drained;
    }
    for group in groups {
        if let Some(placed) = view.groups.get_mut(&group.group) {
            placed.leader = group.leader;
        }
    }
    let ends = ends(&view, rules);
    let of = |group: &GroupHealth| {
        let vote = match view.groups.get(&group.group) {
            Some(placed) if group.voters.contains(&id) => Some(match ends.get(&group.group) {
                None => Err(Stays::Off),
                Some(end) if end.contains(&id) => Err(why_it_stays(&view, placed, id)),
                Some(end) => Ok(end.difference(&group.voters).copied().collect()),
            }),
            _ if group.voters.is_empty() && group.perhaps.contains(&id) => Some(Err(Stays::NoLeader)),
            _ => None,
        };
        let leader = (group.leader == Some(id)).then(|| heirs(state, group, id));
        (leader.is_some() || vote.is_some()).then_some(Forecast { group: group.group, leader, vote })
    };
    groups.iter().filter_map(of).collect()
}

/// Those to which leadership may go (MEMBER-M3).
fn heirs(state: &ClusterState, group: &GroupHealth, id: MemberId) -> Result<BTreeSet<MemberId>, Stays> {
    let has_place = |other: MemberId| state.sets.get(&group.group).is_none_or(|set| set.has_place_for(other));
    let others = state.members.values().filter(|member| member.id != id && member.serves() && has_place(member.id));
    let able: BTreeSet<MemberId> =
        others.map(|member| member.id).filter(|other| group.answering.contains(other)).collect();
    if able.is_empty() { Err(Stays::NoHeir) } else { Ok(able) }
}

fn why_it_stays(view: &View, placed: &Placed, id: MemberId) -> Stays {
    let may = |other: &MemberId, member: &Candidate| {
        let barred = placed.policy.forbidden.contains(&member.locality.region);
        *other != id && !placed.voters.contains(other) && member.standing == Standing::Active && !barred
    };
    let free: Vec<&Candidate> =
        view.members.iter().filter(|(other, member)| may(other, member)).map(|(_, m)| m).collect();
    let now = |member: &&Candidate| member.takes_votes() && !member.slow;
    if free.is_empty() {
        Stays::Nobody
    } else if free.iter().any(now) {
        Stays::Survival
    } else {
        Stays::NotNow { names: free.iter().map(|member| member.name.to_string()).collect::<Vec<_>>().join(", ") }
    }
}
