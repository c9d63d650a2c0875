//! Which members are to vote in group 0, as its leader decides by what it sees (ADR 0075). `control::placing` decides.

use crate::node::Node;
use holdfast_control::cluster::{CLUSTER_VOTERS_LEVEL, ClusterState};
use holdfast_control::members::{GroupView, is_close};
use holdfast_control::placing::cluster_voters;
use holdfast_raft::GroupStatus;
use holdfast_types::sync::LockExt;
use holdfast_types::{MemberId, Term};
use std::collections::BTreeSet;
use std::time::Duration;

/// A member that is silent for less counts as answering, however short the election timeout is.
const PATIENCE_MIN: Duration = Duration::from_secs(3);

/// The members that follow group 0 and have nearly all of it: these may get a vote (CLUSTERVOTERS-V2).
fn close(view: &GroupView) -> BTreeSet<MemberId> {
    let near = view.peers.iter().filter(|peer| peer.answers && is_close(peer.behind, peer.behind_bytes));
    near.map(|peer| peer.id).collect()
}

/// The members that are to vote in group 0 after the next step. `view` and `status`: the group at this leader of
/// `term`. `wanted`: all that follow it. `out`: those that leave and are in no set's group any more.
pub(super) fn voting(
    node: &Node,
    term: Term,
    state: &ClusterState,
    (view, status): (&GroupView, &GroupStatus),
    wanted: &BTreeSet<MemberId>,
    out: &BTreeSet<MemberId>,
) -> BTreeSet<MemberId> {
    // A build that does not know this makes every member a voter while it leads. A pair has one.
    if state.level < CLUSTER_VOTERS_LEVEL || node.pair().is_some() {
        return wanted.clone();
    }
    let voters: BTreeSet<MemberId> = view.peers.iter().filter(|peer| peer.voter).map(|peer| peer.id).collect();
    // A change that is under way is ended first (MEMBER-M5).
    if view.next.is_some() {
        return voters.difference(out).copied().collect();
    }
    let close = close(view);
    let patience = (node.timing.election_max() * 2).max(PATIENCE_MIN);
    let mut planned = node.planned.locked();
    planned.enter(Some(term));
    let members = planned.cluster_members(state, view.me, status, &close, patience);
    let found = cluster_voters(&members, &voters, view.me, out, node.live().placing.rules().replace_after);
    let votes = |id: &MemberId| found.next.contains(id) || found.end.contains(id);
    planned.note_learners(close.into_iter().filter(|id| !votes(id)).collect());
    if let Some(why) = found.why {
        tracing::debug!(from = ?voters, to = ?found.next, %why, "other voters for group 0");
    }
    found.next
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::members::Peer;

    #[test]
    fn only_who_answers_and_has_nearly_everything_may_get_a_vote() {
        let peer = |id: u64, answers, behind, behind_bytes| Peer {
            id: MemberId(id),
            voter: id == 1,
            answers,
            behind,
            behind_bytes,
        };
        let peers =
            vec![peer(1, true, 0, 0), peer(2, true, 9, 900), peer(3, false, 0, 0), peer(4, true, u64::MAX, u64::MAX)];
        assert_eq!(close(&GroupView { me: MemberId(1), peers, next: None }), [1, 2].map(MemberId).into());
    }
}
