//! Which sets run here, and how one that is placed elsewhere leaves (VOTERS-V2, VOTERS-V3; ADR 0053).
//!
//! ```text
//!   not named in the set's record ─▶ the group's leader takes this member out ─▶ it says so ─▶ connections, tasks and group end here
//!        │ meanwhile the set runs on: it may have to vote, or to hand over          ─▶ it says so again ─▶ log and snapshot dropped (crate `raft`, `leave`)
//!        └── named again ─▶ it stays, or starts as a newcomer
//! ```

use super::ended::stop_set;
use super::starts::{Order, start};
use holdfast_control::cluster::{ClusterState, SetEntry, Standing};
use holdfast_raft::{Group, Part, RaftNode, boot_now};
use holdfast_types::sync::LockExt;
use holdfast_types::{MemberId, SetId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Pause after an answer that this member is still needed.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The sets without a place here. Remembered, because finding out reads files.
#[derive(Default)]
pub(super) struct Places {
    /// And whether it is certain that this disk has nothing of the group. It is not where the journal has lost records:
    /// the note that this member has left stays until it votes again, and what it had acknowledged by then may be among
    /// them.
    away: BTreeMap<SetId, bool>,
}

/// The sets that this gateway has no part in, by its own word: group 0 here does not name it, and it has nothing of
/// their groups on its disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Away {
    /// It knew that it leaves the cluster: then this is for good, because a leaving member is named nowhere any more.
    pub(crate) leaving: bool,
    pub(crate) sets: BTreeSet<SetId>,
}

impl Places {
    /// What this gateway says of itself, by the group 0 of its last look at all sets.
    pub(super) fn said(&self, state: &ClusterState, me: MemberId) -> Away {
        let leaving = state.members.get(&me).is_some_and(|member| member.standing == Standing::Leaving);
        let away = |id: &SetId| state.sets.get(id).is_some_and(|entry| !entry.has_place_for(me));
        let certain = self.away.iter().filter(|(_, certain)| **certain).map(|(id, _)| *id);
        Away { leaving, sets: certain.filter(away).collect() }
    }

    /// Forgets sets that are no more.
    pub(super) fn keep(&mut self, state: &ClusterState) {
        self.away.retain(|id, _| state.sets.contains_key(id));
    }

    /// The set runs here: it has something on this disk, however it came to that.
    pub(super) fn runs(&mut self, id: SetId) {
        self.away.remove(&id);
    }

    /// Whether a set that does not run here is to be started (VOTERS-V2). The caller MUST NOT be starting it already:
    /// then it may have something on this disk in a moment.
    pub(super) fn starts(&mut self, raft: &RaftNode, id: SetId, entry: &SetEntry) -> bool {
        let me = raft.member();
        if entry.has_place_for(me) {
            self.away.remove(&id);
            return true;
        }
        if self.away.contains_key(&id) {
            return false;
        }
        let starts = runs_without_place(raft.part_of(id), entry.initial_members.contains(&me));
        if !starts {
            self.away.insert(id, raft.log().group(id).state().damaged.is_none());
        }
        starts
    }
}

/// VOTERS-V2. What is on this disk may count: it takes part until it is out. One of the first members begins the group,
/// even if the set was placed elsewhere before anybody had begun it.
fn runs_without_place(part: Part, first: bool) -> bool {
    match part {
        Part::Something => true,
        Part::Nothing => first,
        Part::Left => false,
    }
}

/// Whether a set that runs here is to leave. A member that leaves the cluster keeps its sets until it is removed: the
/// leaders of their groups let it go (ADR 0019).
pub(super) fn departs(state: &ClusterState, entry: &SetEntry, me: MemberId) -> bool {
    let stays = state.members.get(&me).is_some_and(|member| member.standing != Standing::Leaving);
    stays && !entry.has_place_for(me)
}

/// Whether this gateway leads the group: then it hands over before it leaves. A leader that no quorum answers for
/// `patience` may be one of long ago, and all its followers may have left the group: nobody would tell it, so it asks.
pub(super) fn leads(group: &Group, patience: Duration) -> bool {
    let answered = group.quorum_acked().map(|(_, at)| boot_now().saturating_since(at));
    group.leading_term().is_some() && is_answered(answered, patience)
}

fn is_answered(ago: Option<Duration>, patience: Duration) -> bool {
    ago.is_some_and(|ago| ago <= patience)
}

/// Starts a set that has something on this disk. One that is placed elsewhere and cannot run here (its store does not
/// open, its key is missing) leaves without having run.
pub(super) async fn start_or_depart(order: Order, stop: CancellationToken) {
    start(order.clone(), stop.clone()).await;
    let Order { node, adopted, entry, state, .. } = &order;
    let runs = node.set(&entry.name).is_some();
    if !runs && !stop.is_cancelled() && departs(state, entry, adopted.member) {
        depart(order, stop).await;
    }
}

/// Those that may lead the group: the voters that it should have, and its members as known here.
fn peers(order: &Order) -> BTreeMap<MemberId, String> {
    let group = order.adopted.raft.group(order.id);
    let seen = group.map(|group| group.status().members).unwrap_or_default();
    let ids = order.state.voters_of(&order.entry).into_iter().chain(seen.into_iter().map(|m| m.member));
    let known = ids.filter_map(|id| order.state.members.get(&id));
    known.map(|member| (member.id, member.peer_addr.clone())).collect()
}

/// Leaves a set, if its group is without this member. Otherwise nothing happens; it is tried again.
pub(super) async fn depart(order: Order, stop: CancellationToken) {
    let peers = peers(&order);
    let (node, raft, id, name) = (&order.node, &order.adopted.raft, order.id, &order.entry.name);
    match stop.run_until_cancelled(raft.ask_whether_out(id, &peers)).await {
        None => return,
        Some(Ok(_)) => {}
        Some(Err(error)) => {
            tracing::debug!(set = %name, %error, "the set is placed elsewhere, and this gateway cannot leave it yet");
            stop.run_until_cancelled(tokio::time::sleep(ASK_AGAIN)).await;
            return;
        }
    }
    tracing::info!(set = %name, "the set is placed elsewhere, and this gateway is no longer a voter: stopping the set");
    while let Err(error) = stop_set(node, id).await {
        tracing::warn!(set = %name, %error, "cannot stop the set yet; trying again");
        if stop.run_until_cancelled(tokio::time::sleep(ASK_AGAIN)).await.is_none() {
            return;
        }
    }
    match raft.leave(id, &peers).await {
        Ok(since) => {
            tracing::info!(set = %name, %since, "left the set: its journal space is free");
            node.troubles.locked().remove(&id);
        }
        Err(error) => {
            tracing::warn!(set = %name, %error, "the set was stopped here, but this gateway has not left it");
            // It is started again. A disk without room would have it stopped at once, again and again.
            stop.run_until_cancelled(tokio::time::sleep(ASK_AGAIN)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::cluster::{Member, MemberRole};
    use holdfast_types::GroupId;

    /// A leader of long ago, whose followers have all left, would keep its part of the group for ever.
    #[test]
    fn a_leader_that_nobody_answers_hands_over_to_nobody() {
        let patience = Duration::from_secs(2);
        assert!(is_answered(Some(Duration::from_secs(1)), patience));
        assert!(!is_answered(Some(Duration::from_secs(3)), patience), "VOTERS-V2: it asks");
        assert!(!is_answered(None, patience));
    }

    /// What it says may let it be removed while the set has no leader, so it must not count a set that it may yet get.
    #[test]
    fn a_gateway_says_of_which_sets_it_has_no_part() {
        let mut state = ClusterState::new();
        let [peer_addr, api_addr, nbd_addr] = [1, 2, 3].map(|port| format!("a:{port}"));
        let (id, name, locality) = (MemberId(3), "g3".parse().unwrap(), "region=eu".parse().unwrap());
        let (role, standing) = (MemberRole::Gateway, Standing::Active);
        let member = Member { id, name, locality, disk: 3, peer_addr, api_addr, nbd_addr, role, standing };
        state.members.insert(id, member.clone());
        let set = |name: &str, voters: &[u64]| SetEntry {
            voters: voters.iter().copied().map(MemberId).collect(),
            ..SetEntry::new(&name.parse().unwrap(), &[1], 1, MemberId(1))
        };
        state.sets.insert(GroupId(4), set("there", &[1, 2]));
        state.sets.insert(GroupId(5), set("here", &[1, 3]));
        state.sets.insert(GroupId(7), set("lost", &[1, 2]));
        let known = [(4, true), (5, true), (6, true), (7, false)].map(|(id, certain)| (GroupId(id), certain));
        let mut places = Places { away: known.into() };
        let away = |leaving| Away { leaving, sets: BTreeSet::from([GroupId(4)]) };
        assert_eq!(places.said(&state, id), away(false), "5 is placed on it since, 6 is deleted, 7 may be lost here");
        state.members.insert(id, Member { standing: Standing::Leaving, ..member });
        assert_eq!(places.said(&state, id), away(true));
        places.runs(GroupId(4));
        assert_eq!(places.said(&state, id).sets, BTreeSet::new(), "its start had begun before, and has ended since");
    }

    #[test]
    fn a_set_without_a_place_runs_only_where_it_may_be_needed() {
        for first in [false, true] {
            assert!(runs_without_place(Part::Something, first), "VOTERS-V2: it may have voted");
            assert_eq!(runs_without_place(Part::Nothing, first), first, "VOTERS-V2: the group must begin somewhere");
            assert!(!runs_without_place(Part::Left, first), "VOTERS-V2: it would begin the group a second time");
        }
    }
}
