//! Who votes in a group next, who may lead it, and what a person may ask to be taken away. Decided by leaders from what they see; nothing
//! here is replicated. Group 0 says who is a member and in which standing; each group follows, one safe step after the other.
//!
//! MEMBER-M1  Voters change only where a majority of those before and a majority of those after answer and have nearly all entries: a change
//!     that cannot be committed leaves the group without a quorum for good.
//! MEMBER-M2  Nobody goes while somebody who is to come still learns: a replacement is an addition first.
//! MEMBER-M3  Who is not to serve (a witness, a drained or a leaving member) gives leadership away to one that is, as soon as there is one.
//! MEMBER-M4  It also does not stand for election, unless the group has had no leader for long: its log may be the only one that has everything
//!     that was acknowledged, and then nobody else can be elected.
//! MEMBER-M5  Between two sets of voters nothing else is done: whoever leads ends that change first, towards the newer set. Until then two quorums
//!     are asked for everything.

mod requests;

pub use requests::{GroupHealth, Objection, may_drain, may_leave};

use crate::cluster::{ClusterState, Member, Standing};
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeSet;
use std::time::Duration;

/// Entries behind the leader with which a member has nearly all: it catches up in less than a heartbeat.
pub const CLOSE_ENTRIES: u64 = 1024;

/// One member of a group, as its leader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The member.
    pub id: MemberId,
    /// Whether it votes; else it learns.
    pub voter: bool,
    /// It answered a moment ago.
    pub answers: bool,
    /// Entries of the leader's log that it is not known to have.
    pub behind: u64,
}

impl Peer {
    fn close(&self) -> bool {
        self.answers && self.behind <= CLOSE_ENTRIES
    }
}

/// A group as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupView {
    /// The leader. It answers itself and lacks nothing.
    pub me: MemberId,
    /// Everybody in the group, the leader too.
    pub peers: Vec<Peer>,
    /// Between two sets of voters: the newer one. The leader that began the change did not end it.
    pub next: Option<BTreeSet<MemberId>>,
}

impl GroupView {
    /// Who votes; between two sets of voters, everybody of either.
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

/// What a leader does next for its group's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// All is as it should be.
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

/// Why nothing is done although something is to be done. The text is for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Waiting {
    /// The cluster's first members come with its initialisation; until all are registered nobody is taken for removed.
    #[error("{id} votes and is not registered yet")]
    NotRegistered {
        /// Who.
        id: MemberId,
    },
    /// MEMBER-M2.
    #[error("{learning:?} still learn")]
    Learning {
        /// Who.
        learning: BTreeSet<MemberId>,
    },
    /// MEMBER-M3: it leads, is to go, and nobody could lead instead.
    #[error("this leader is to leave, and no other voter answers and has nearly all entries")]
    NoHeir,
    /// MEMBER-M1.
    #[error("of the voters {voters:?} only {answering:?} answer and have nearly all entries; a change needs {needed}")]
    NoQuorum {
        /// Before the change, or after it.
        voters: BTreeSet<MemberId>,
        /// Of them.
        answering: BTreeSet<MemberId>,
        /// A majority.
        needed: usize,
    },
}

/// Who is to be in `group`. Group 0 keeps a leaving member until every set's group is without it (`out`): only then is there
/// nothing left that it could be needed for.
pub fn wanted(state: &ClusterState, group: GroupId, out: &BTreeSet<MemberId>) -> BTreeSet<MemberId> {
    let stays = |member: &&Member| match member.standing {
        Standing::Active | Standing::Drained => true,
        Standing::Leaving => group == GroupId::CLUSTER && !out.contains(&member.id),
    };
    state.members.values().filter(stays).map(|member| member.id).collect()
}

/// Of those `leaving`, who is in no set's group any more: `rolls` says who is in each, `None` where nobody could say. Only they may go: a vote that
/// still counts somewhere must not be lost.
pub fn may_go<'a>(
    leaving: &BTreeSet<MemberId>,
    rolls: impl IntoIterator<Item = Option<&'a BTreeSet<MemberId>>>,
) -> BTreeSet<MemberId> {
    let mut out = leaving.clone();
    for roll in rolls {
        match roll {
            Some(members) => out.retain(|id| !members.contains(id)),
            None => return BTreeSet::new(),
        }
    }
    out
}

/// The next step for a group whose members are to be `wanted`.
pub fn next_step(group: &GroupView, state: &ClusterState, wanted: &BTreeSet<MemberId>) -> Step {
    let voters = group.voters();
    if let Some(id) = voters.iter().find(|id| id.0 >= state.next_member) {
        return Step::Wait(Waiting::NotRegistered { id: *id });
    }
    if let Some(heir) = heir(group, state, wanted) {
        return Step::HandOver(heir);
    }
    if let Some(next) = &group.next {
        return end(group, next, &voters, wanted);
    }
    // Who leaves may stay for a while, and is never let in: out of group 0 before its removal is entered, it would go in and out for ever.
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
    // A learner that leaves may stay in group 0 until no set has it: nobody waits for it, and it votes no more.
    let (ready, learning): (BTreeSet<MemberId>, BTreeSet<MemberId>) = known
        .into_iter()
        .filter(|id| voters.contains(id) || !leaves(id))
        .partition(|id| voters.contains(id) || group.close(*id));
    let mut target = ready;
    if !learning.is_empty() {
        target.extend(voters.iter().copied());
    }
    // A leader does not vote itself out: it hands over first (MEMBER-M3), to one that votes by then.
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
            return Step::Wait(no_quorum(group, set));
        }
    }
    Step::Vote(target)
}

/// MEMBER-M5. A leader that the newer set does not have must not end the change: it would lead a group that it is not in. It hands over where it is
/// to leave (MEMBER-M3); where it is to stay, it votes for all of both sets, which takes nothing back that was decided, and goes on from there.
fn end(group: &GroupView, next: &BTreeSet<MemberId>, voters: &BTreeSet<MemberId>, wanted: &BTreeSet<MemberId>) -> Step {
    let (set, step) = match (next.contains(&group.me), wanted.contains(&group.me)) {
        (true, _) => (next, Step::End),
        (false, true) => (voters, Step::Vote(voters.clone())),
        (false, false) => return Step::Wait(Waiting::NoHeir),
    };
    if answering(group, set).len() < majority(set.len()) {
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

/// To whom leadership goes, if it is to go (MEMBER-M3): a voter that serves, answers, and has nearly everything; the one that has most. A leader that
/// leaves the group and finds none gives it to any that stays.
fn heir(group: &GroupView, state: &ClusterState, wanted: &BTreeSet<MemberId>) -> Option<MemberId> {
    let serves = |id: MemberId| state.members.get(&id).is_some_and(Member::serves);
    if serves(group.me) && wanted.contains(&group.me) {
        return None;
    }
    let able = |peer: &&Peer| peer.id != group.me && peer.voter && peer.close() && wanted.contains(&peer.id);
    let best = |fits: &dyn Fn(MemberId) -> bool| {
        group.peers.iter().filter(able).filter(|peer| fits(peer.id)).min_by_key(|peer| (peer.behind, peer.id))
    };
    let goes = !wanted.contains(&group.me);
    let found = best(&serves).or_else(|| if goes { best(&|_| true) } else { None });
    found.map(|peer| peer.id)
}

/// Whether a member stands for election (MEMBER-M4): one that `serves` always, another once it has `unheard` of a leader for `patience`.
pub fn may_stand(serves: bool, unheard: Duration, patience: Duration) -> bool {
    serves || unheard >= patience
}

#[cfg(test)]
mod tests;
