//! Membership of a group: its next voters, its possible leaders, and permitted removals. Leaders decide this from what
//! they see; nothing here is replicated. Group 0 has the members and their standing; each group follows, one safe step
//! at a time.
//!
//! MEMBER-M1  Voters change only if a majority of the old ones and a majority of the new ones answer and have nearly
//!     all entries: a change that cannot be committed leaves the group without a quorum for good. Nor do fewer voters
//!     of a set take the place of more while one of them is away, and those that go answer and are needed.
//! MEMBER-M2  No voter is removed while a new one still learns: a replacement is an addition first. A leaving voter of
//!     a set keeps its vote until the planner has given its place to another member, if there is one, and not for long.
//!     A new one that leaves before it votes takes no voter with it for as long. Several new ones come together, if the
//!     set would not survive with some of them what it survives now.
//! MEMBER-M3  A member that should not serve (a witness, a drained or a leaving member) hands leadership to one that
//!     should, as soon as there is one.
//! MEMBER-M4  Such a member does not stand for election either, unless the group has had no leader for long: its log
//!     may be the only one with every acknowledged entry, and then no other member can be elected.
//! MEMBER-M5  While a group has two sets of voters, a leader only ends that change, towards the newer set. Until then
//!     every decision needs both quorums.
//! MEMBER-M6  Group 0 has all members, and only some of them vote (`placing::cluster_voters`). The others learn: nobody
//!     waits for their votes, and none of them is taken out for it.

mod forecast;
mod requests;

pub use forecast::{Forecast, Stays, forecast};
pub use requests::{GroupHealth, Objection, joining, may_drain, may_leave, may_replace_by_witness};

use crate::cluster::{ClusterState, Member, MemberRole, SetEntry, Standing};
use crate::placing::Domain;
use crate::policy::Survive;
use holdfast_types::{GroupId, MemberId, SetId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A member that lacks at most this many entries, and at most [`CLOSE_BYTES`], has "nearly all": see [`is_close`].
pub const CLOSE_ENTRIES: u64 = 1024;

/// Bytes of these entries in the leader's journal. A member whose acknowledgements are only on their way lacks less: a
/// leader sends at most 16 MiB ahead of them. It catches up in 0.3 s at 1 Gbit/s.
pub const CLOSE_BYTES: u64 = 32 << 20;

/// Whether a member has nearly all entries, so that a change or a move that needs it takes no longer than a few
/// heartbeats. Entries alone do not say so: each may have 1 MiB. Nothing safe rests on this: a commit waits for a
/// quorum whatever a leader takes for close (R1), and nobody is elected without every entry that is committed.
pub fn is_close(entries: u64, bytes: u64) -> bool {
    entries <= CLOSE_ENTRIES && bytes <= CLOSE_BYTES
}

/// One member of a group, as its leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The member.
    pub id: MemberId,
    /// A voter; otherwise a learner.
    pub voter: bool,
    /// It answered a moment ago.
    pub answers: bool,
    /// Entries of the leader's log that it may lack.
    pub behind: u64,
    /// Bytes of these; `u64::MAX` if unknown.
    pub behind_bytes: u64,
}

impl Peer {
    fn close(&self) -> bool {
        self.answers && is_close(self.behind, self.behind_bytes)
    }
}

/// A group as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// The leader. It counts as answering and up to date.
    pub me: MemberId,
    /// Everybody in the group, the leader too.
    pub peers: Vec<Peer>,
    /// During a change of voters: the newer set. The leader that began the change did not end it.
    pub next: Option<BTreeSet<MemberId>>,
}

impl GroupView {
    /// The voters; during a change those of both sets.
    fn voters(&self) -> BTreeSet<MemberId> {
        self.peers.iter().filter(|peer| peer.voter).map(|peer| peer.id).collect()
    }

    fn peer(&self, id: MemberId) -> Option<&Peer> {
        self.peers.iter().find(|peer| peer.id == id)
    }

    fn close(&self, id: MemberId) -> bool {
        id == self.me || self.peer(id).is_some_and(Peer::close)
    }
}

/// A leader's next step for its group's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do.
    Done,
    /// Give leadership away (MEMBER-M3).
    HandOver(MemberId),
    /// Let these learn.
    Learn(BTreeSet<MemberId>),
    /// Take these learners out: they are not wanted any more.
    Forget(BTreeSet<MemberId>),
    /// Make these the voters.
    Vote(BTreeSet<MemberId>),
    /// End a change of voters that an earlier leader began (MEMBER-M5).
    End,
    /// Nothing now.
    Wait(Waiting),
}

/// Why a needed step is not taken now. The text is for display.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Waiting {
    /// The cluster's first members come with its initialisation; until all are registered, none counts as removed.
    #[error("{id} votes and is not registered yet")]
    NotRegistered {
        /// The member.
        id: MemberId,
    },
    /// MEMBER-M2.
    #[error("{learning:?} are still catching up")]
    Learning {
        /// Members that have not caught up.
        learning: BTreeSet<MemberId>,
    },
    /// MEMBER-M1: with fewer voters fewer could be lost now.
    #[error("cannot remove voters: {away:?} do not answer or are behind")]
    Away {
        /// Voters that are to stay.
        away: BTreeSet<MemberId>,
    },
    /// MEMBER-M2: the voter that it was to replace may be needed.
    #[error("{leaving:?} leave before they vote: the planner gives their places to others first")]
    Planner {
        /// Newcomers that leave.
        leaving: BTreeSet<MemberId>,
    },
    /// MEMBER-M3: the leader is leaving, and no other member could lead.
    #[error("this leader is to leave, and no other voter answers and has nearly all entries")]
    NoHeir,
    /// MEMBER-M1.
    #[error("of the voters {voters:?} only {answering:?} answer and have nearly all entries; a change needs {needed}")]
    NoQuorum {
        /// The voters before or after the change.
        voters: BTreeSet<MemberId>,
        /// Of them.
        answering: BTreeSet<MemberId>,
        /// A majority.
        needed: usize,
    },
}

/// The members that `group` should have: of a set those that its record names and that stay (VOTERS-V1), of group 0
/// all. Group 0 keeps a leaving member until every set's group is without it (`out`): only then nothing can need it any
/// more.
pub fn wanted(state: &ClusterState, group: GroupId, out: &BTreeSet<MemberId>) -> BTreeSet<MemberId> {
    let named = |id: MemberId| state.sets.get(&group).is_none_or(|set| set.has_place_for(id));
    let stays = |member: &&Member| match member.standing {
        Standing::Active | Standing::Drained => named(member.id),
        Standing::Leaving => group == GroupId::CLUSTER && !out.contains(&member.id),
    };
    state.members.values().filter(stays).map(|member| member.id).collect()
}

/// Of the `leaving` members, those that keep their vote or their place in a set's `group` for a while (MEMBER-M2):
/// without them it would have fewer voters than its policy asks for, and there is a member to which the planner can
/// give their place. Otherwise a set of three voters would have two until the planner's turn, and could lose neither.
/// The caller limits the time: the planner may have reasons to give the place to nobody.
///
/// The leader `me` is not among them: it keeps its vote anyway while it leads. It hands over like any leader that is
/// not wanted: not to a witness while a voter that serves is behind or away (MEMBER-M3).
pub fn kept(state: &ClusterState, group: GroupId, me: MemberId, leaving: &BTreeSet<MemberId>) -> BTreeSet<MemberId> {
    let Some(set) = state.sets.get(&group) else { return BTreeSet::new() };
    let stays = |id: &&MemberId| state.members.get(id).is_some_and(|member| member.standing != Standing::Leaving);
    let takes = |member: &Member| {
        // Also a drained one, if there is no other: the planner prefers a voter that is drained to none.
        let allowed = member.standing != Standing::Leaving && !set.policy.forbidden.contains(&member.locality.region);
        allowed && !set.has_place_for(member.id)
    };
    let enough = set.voters.iter().filter(stays).count() >= usize::from(set.policy.voters);
    if enough || !state.members.values().any(takes) {
        return BTreeSet::new();
    }
    let kept: BTreeSet<MemberId> = set.voters.intersection(leaving).copied().filter(|id| *id != me).collect();
    holdfast_reached::reached!("members: a leaving voter stays until its place is given to another", !kept.is_empty());
    kept
}

/// The sets whose record names a member. While a removal makes these fewer, the planner is at work (MEMBER-M2).
pub fn named_by(state: &ClusterState, id: MemberId) -> usize {
    state.sets.values().filter(|set| set.voters.contains(&id)).count()
}

/// The `leaving` members that are in no set's group any more. `rolls`: the members of each, or those that are
/// [`perhaps_in`] it. Only they may go: a vote that still counts somewhere must not be lost.
pub fn may_go<'a>(
    leaving: &BTreeSet<MemberId>,
    rolls: impl IntoIterator<Item = &'a BTreeSet<MemberId>>,
) -> BTreeSet<MemberId> {
    let mut out = leaving.clone();
    for members in rolls {
        out.retain(|id| !members.contains(id));
    }
    out
}

/// The `leaving` members that may be in the group of `set` while its leader cannot be asked: all but those that have
/// said that they have no part in it (`away`). Each of these knew that it leaves, so nothing names it any more, and has
/// nothing of the group on its disk, so it has acknowledged nothing and voted for nobody there: no decision of the
/// group counts on it (R1). Only as a learner it may be in it, which needs nothing of it.
pub fn perhaps_in(
    leaving: &BTreeSet<MemberId>,
    set: SetId,
    away: &BTreeMap<MemberId, BTreeSet<SetId>>,
) -> BTreeSet<MemberId> {
    let is_away = |id: &MemberId| away.get(id).is_some_and(|sets| sets.contains(&set));
    leaving.iter().copied().filter(|id| !is_away(id)).collect()
}

/// The next step of the group `of` towards the members `wanted`; of a set also those that are [`kept`].
///
/// A newcomer that leaves before it votes has a place that the planner gives to another member. Until then it takes no
/// voter with it: that one was to go for it only.
///
/// What a set survives now it also survives on the way (MEMBER-M2, PLACING-P1): newcomers that have caught up wait for
/// the others, if with them alone it would not. With two of four voters in one region, the loss of that region stops a
/// set whose three voters survived it. Only for a set that names its voters: elsewhere a member that never comes up
/// would keep others waiting, and nobody would replace it.
pub fn step_of(of: GroupId, group: &GroupView, state: &ClusterState, wanted: &BTreeSet<MemberId>) -> Step {
    let step = next_step(group, state, wanted);
    let Step::Vote(to) = &step else { return step };
    let Some(set) = state.sets.get(&of).filter(|set| !set.voters.is_empty()) else { return step };
    let voters = group.voters();
    let leaves = |id: &&MemberId| state.members.get(id).is_none_or(|member| member.standing == Standing::Leaving);
    let leaving: BTreeSet<MemberId> = wanted.difference(&voters).filter(leaves).copied().collect();
    if !leaving.is_empty() && !voters.is_subset(to) {
        return Step::Wait(Waiting::Planner { leaving });
    }
    // That a member leaves is an order.
    let ordered = voters.difference(to).any(|id| leaves(&id));
    if to.is_subset(&voters) && !ordered && spares_less(group, &voters, to) {
        let away = to.difference(&answering(group, to)).copied().collect();
        return Step::Wait(Waiting::Away { away });
    }
    let stays = |id: &&MemberId| state.members.get(id).is_some_and(|member| member.standing != Standing::Leaving);
    let learning: BTreeSet<MemberId> = wanted.difference(to).filter(stays).copied().collect();
    if learning.is_empty() || !survives_less(state, set, &voters, to) {
        return step;
    }
    Step::Wait(Waiting::Learning { learning })
}

/// The next step of group 0, which all of `wanted` are to follow, and in which those of `voting` are to vote
/// (MEMBER-M6). For the number alone nobody loses its vote while one of those that keep theirs is away: it may be
/// needed.
pub fn step_of_cluster(
    group: &GroupView,
    state: &ClusterState,
    wanted: &BTreeSet<MemberId>,
    voting: &BTreeSet<MemberId>,
) -> Step {
    let step = step_towards(group, state, wanted, voting);
    let Step::Vote(to) = &step else { return step };
    let voters = group.voters();
    let leaves = |id: &MemberId| state.members.get(id).is_none_or(|member| member.standing == Standing::Leaving);
    let ordered = voters.difference(to).any(leaves);
    if group.next.is_some() || ordered || !to.is_subset(&voters) || !spares_less(group, &voters, to) {
        return step;
    }
    holdfast_reached::reached!("members: group 0 keeps its voters while one of those that stay is away");
    let away = to.difference(&answering(group, to)).copied().collect();
    Step::Wait(Waiting::Away { away })
}

/// Whether fewer of the voters `then` than of the voters `now` could be lost at this moment, since some of them are
/// away. Who asks for fewer voters may not see that (PLACING-P4): it hears others than this leader does.
fn spares_less(group: &GroupView, now: &BTreeSet<MemberId>, then: &BTreeSet<MemberId>) -> bool {
    let spare = |voters: &BTreeSet<MemberId>| answering(group, voters).len().saturating_sub(majority(voters.len()));
    answering(group, then).len() < then.len() && spare(then) < spare(now)
}

/// Whether a loss that `now` survives, among those that the policy asks for, leaves no majority of `then`. A policy
/// that names none asks for all.
fn survives_less(state: &ClusterState, set: &SetEntry, now: &BTreeSet<MemberId>, then: &BTreeSet<MemberId>) -> bool {
    let survives = |level: Survive, voters: &BTreeSet<MemberId>| {
        let mut each: BTreeMap<Domain, usize> = BTreeMap::new();
        for member in voters.iter().filter_map(|id| state.members.get(id)) {
            *each.entry(Domain::at(level, member.id, &member.name, &member.locality)).or_default() += 1;
        }
        let worst = each.into_values().max().unwrap_or_default();
        voters.len().saturating_sub(worst) >= majority(voters.len())
    };
    let asked = |level: &Survive| set.policy.survive.is_none_or(|asked| asked == *level);
    Survive::ALL.into_iter().filter(asked).any(|level| survives(level, now) && !survives(level, then))
}

/// As [`step_of`], for any group in which all members vote.
fn next_step(group: &GroupView, state: &ClusterState, wanted: &BTreeSet<MemberId>) -> Step {
    step_towards(group, state, wanted, wanted)
}

/// The next step of a group that is to have the members `wanted`, of which those of `voting` vote.
fn step_towards(
    group: &GroupView,
    state: &ClusterState,
    wanted: &BTreeSet<MemberId>,
    voting: &BTreeSet<MemberId>,
) -> Step {
    let voters = group.voters();
    if let Some(id) = voters.iter().find(|id| id.0 >= state.next_member) {
        holdfast_reached::reached!("members: a voter is not registered yet");
        return Step::Wait(Waiting::NotRegistered { id: *id });
    }
    if let Some(heir) = heir(group, state, voting) {
        return Step::HandOver(heir);
    }
    if let Some(next) = &group.next {
        holdfast_reached::reached!("members: a leader finds a joint membership");
        return end(group, next, &voters, voting);
    }
    // A leaving member may stay for a while, but is never added: after its removal from group 0 and before that is
    // entered, it would be added and removed for ever.
    let leaves = |id: &MemberId| state.members.get(id).is_none_or(|member| member.standing == Standing::Leaving);
    let (known, newcomers): (BTreeSet<MemberId>, BTreeSet<MemberId>) =
        wanted.iter().filter(|id| group.peer(**id).is_some() || !leaves(id)).partition(|id| group.peer(**id).is_some());
    if !newcomers.is_empty() {
        return Step::Learn(newcomers);
    }
    let unwanted: BTreeSet<MemberId> =
        group.peers.iter().filter(|peer| !peer.voter && !wanted.contains(&peer.id)).map(|peer| peer.id).collect();
    if !unwanted.is_empty() {
        return Step::Forget(unwanted);
    }
    // A leaving learner may stay in group 0 until no set has it: it votes no more, and nothing waits for it.
    let (ready, learning): (BTreeSet<MemberId>, BTreeSet<MemberId>) = known
        .into_iter()
        .filter(|id| voting.contains(id) && (voters.contains(id) || !leaves(id)))
        .partition(|id| voters.contains(id) || group.close(*id));
    let mut target = ready;
    if !learning.is_empty() {
        target.extend(voters.iter().copied());
    }
    // A leader does not vote itself out: it first hands over (MEMBER-M3) to one of the new voters.
    let stays = !target.insert(group.me);
    if target == voters {
        return match (learning.is_empty(), stays) {
            (false, _) => Step::Wait(Waiting::Learning { learning }),
            (true, true) => Step::Done,
            (true, false) => Step::Wait(Waiting::NoHeir),
        };
    }
    for set in [&voters, &target] {
        if answering(group, set).len() < majority(set.len()) {
            holdfast_reached::reached!("members: one set of voters has no quorum for a change");
            return Step::Wait(no_quorum(group, set));
        }
    }
    Step::Vote(target)
}

/// MEMBER-M5. A leader outside of the newer set must not end the change: it would lead a group that it is not in. If it
/// is leaving, it hands over (MEMBER-M3). If it is to stay, it proposes the union of both sets, which revokes no
/// decision, and continues from there.
fn end(group: &GroupView, next: &BTreeSet<MemberId>, voters: &BTreeSet<MemberId>, wanted: &BTreeSet<MemberId>) -> Step {
    holdfast_reached::reached!("members: the leader is outside of the newer voters", !next.contains(&group.me));
    let (set, step) = match (next.contains(&group.me), wanted.contains(&group.me)) {
        (true, _) => (next, Step::End),
        (false, true) => (voters, Step::Vote(voters.clone())),
        (false, false) => return Step::Wait(Waiting::NoHeir),
    };
    if answering(group, set).len() < majority(set.len()) {
        holdfast_reached::reached!("members: no quorum to end a joint membership");
        return Step::Wait(no_quorum(group, set));
    }
    step
}

fn majority(of: usize) -> usize {
    of / 2 + 1
}

fn answering(group: &GroupView, voters: &BTreeSet<MemberId>) -> BTreeSet<MemberId> {
    voters.iter().copied().filter(|id| group.close(*id)).collect()
}

fn no_quorum(group: &GroupView, voters: &BTreeSet<MemberId>) -> Waiting {
    let answering = answering(group, voters);
    Waiting::NoQuorum { voters: voters.clone(), answering, needed: majority(voters.len()) }
}

/// The successor, if leadership is to be handed over (MEMBER-M3): a serving voter that answers and has nearly
/// everything; the most up-to-date one. A leaving leader without such a voter hands over to any that stays: also in
/// group 0, which keeps it until it is out of all sets' groups. It may not see that itself, since a leader of a set
/// that takes it out sends it nothing more, and only the leader of group 0 asks the sets' leaders.
fn heir(group: &GroupView, state: &ClusterState, wanted: &BTreeSet<MemberId>) -> Option<MemberId> {
    let serves = |id: MemberId| state.members.get(&id).is_some_and(Member::serves);
    if serves(group.me) && wanted.contains(&group.me) {
        return None;
    }
    let leaves = |id: MemberId| state.members.get(&id).is_none_or(|member| member.standing == Standing::Leaving);
    let goes = leaves(group.me) || !wanted.contains(&group.me);
    // A set is not given to a witness while a member that may serve is still to vote: nobody would serve it meanwhile.
    let awaits = group.next.is_none() && !wanted.contains(&group.me) && wanted.iter().any(|id| serves(*id));
    let witness = |id: MemberId| state.members.get(&id).is_some_and(|member| member.role == MemberRole::Witness);
    // Two leaving members would pass it back and forth.
    let others = |id: MemberId| !(leaves(id) || awaits && witness(id));
    let able = |peer: &Peer| peer.id != group.me && peer.voter && peer.close() && wanted.contains(&peer.id);
    let any = || nearest(group, |peer| able(peer) && others(peer.id));
    successor(group, state, wanted).or_else(|| if goes { any() } else { None })
}

/// Of the members that fit, the one that lacks the fewest entries.
fn nearest(group: &GroupView, fits: impl Fn(&Peer) -> bool) -> Option<MemberId> {
    let fitting = group.peers.iter().filter(|peer| fits(peer));
    fitting.min_by_key(|peer| (peer.behind, peer.id)).map(|peer| peer.id)
}

/// The voter that takes a leadership over if its leader should serve no more (MEMBER-M3), or stops: one that is
/// `wanted`, serves, answers and has nearly everything; the most up-to-date one.
pub fn successor(group: &GroupView, state: &ClusterState, wanted: &BTreeSet<MemberId>) -> Option<MemberId> {
    let serves = |id: MemberId| wanted.contains(&id) && state.members.get(&id).is_some_and(Member::serves);
    nearest(group, |peer| peer.id != group.me && peer.voter && peer.close() && serves(peer.id))
}

/// Whether a leader that should serve no more has a voter that could serve in its place now (MEMBER-M3), and should:
/// it is `wanted`. Until then it goes on granting the set: nobody else could, and its clients would wait for a newcomer
/// that may never come up.
pub fn has_successor(group: &GroupView, state: &ClusterState, wanted: &BTreeSet<MemberId>) -> bool {
    successor(group, state, wanted).is_some()
}

/// Whether a member stands for election (MEMBER-M4): a serving one always, another only after `patience` without a
/// leader.
pub fn may_stand(serves: bool, unheard: Duration, patience: Duration) -> bool {
    serves || unheard >= patience
}

#[cfg(test)]
mod tests;
