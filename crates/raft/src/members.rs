//! Who is in a group, and who stands for election in it: single steps, carried out where somebody else decided them.

use crate::change::ChangeError;
use crate::clock::boot_now;
use crate::group::{Group, GroupError};
use holdfast_types::{LogId, MemberId, MonoTime};
use openraft::ChangeMembers;
use openraft::impls::BasicNode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Whether this member stands for election: not before the embargo after its start is over, and not while it stands aside.
#[derive(Debug)]
pub(crate) struct Candidacy {
    embargo_over: AtomicBool,
    aside: AtomicBool,
    /// When a leader was last heard, or this member was seen to lead.
    heard: AtomicU64,
}

impl Candidacy {
    pub(crate) fn new(now: MonoTime) -> Self {
        Self { embargo_over: AtomicBool::new(false), aside: AtomicBool::new(false), heard: AtomicU64::new(now.0) }
    }

    /// A leader spoke.
    pub(crate) fn heard(&self) {
        self.heard.fetch_max(boot_now().0, Ordering::AcqRel);
    }

    fn stands(&self) -> bool {
        self.embargo_over.load(Ordering::Acquire) && !self.aside.load(Ordering::Acquire)
    }
}

impl Group {
    /// The embargo after the start is over.
    pub(crate) fn embargo_over(&self) {
        self.candidacy().embargo_over.store(true, Ordering::Release);
        self.raft().runtime_config().elect(self.candidacy().stands());
    }

    /// This member stands for no election from now on, or does again. It votes as ever, and keeps a leadership that it has.
    pub fn stand_aside(&self, aside: bool) {
        if self.candidacy().aside.swap(aside, Ordering::AcqRel) != aside {
            tracing::debug!(group = %self.id(), aside, "stands aside in elections");
        }
        self.raft().runtime_config().elect(self.candidacy().stands());
    }

    /// How long no leader has been heard here; zero while this member leads.
    pub fn unheard(&self) -> Duration {
        if self.leading_term().is_some() {
            self.candidacy().heard();
        }
        boot_now().saturating_since(MonoTime(self.candidacy().heard.load(Ordering::Acquire)))
    }

    /// Lets these learn, at their addresses. Only at the leader, and only while the members are those of entry `seen`.
    ///
    /// # Errors
    /// `Refused` where this member does not lead, the members are others by now, or another change is under way; `Late` after `limit`,
    /// and then it goes on.
    pub async fn add_learners(
        &self,
        members: &BTreeMap<MemberId, String>,
        seen: Option<LogId>,
        limit: Duration,
    ) -> Result<(), GroupError> {
        let node = |addr: &String| BasicNode { addr: addr.clone() };
        let nodes = members.iter().map(|(id, addr)| (id.0, node(addr))).collect();
        self.change(ChangeMembers::AddNodes(nodes), seen, limit).await
    }

    /// Takes learners out. Only at the leader.
    ///
    /// # Errors
    /// As [`Group::add_learners`].
    pub async fn drop_learners(
        &self,
        members: &BTreeSet<MemberId>,
        seen: Option<LogId>,
        limit: Duration,
    ) -> Result<(), GroupError> {
        self.change(ChangeMembers::RemoveNodes(members.iter().map(|m| m.0).collect()), seen, limit).await
    }

    /// Makes these the voters, through a joint membership; who voted and is not among them is out. Only at the leader, who MUST know
    /// that a majority of the voters before and of those after answers: the change cannot be taken back.
    ///
    /// # Errors
    /// As [`Group::add_learners`].
    pub async fn change_voters(
        &self,
        voters: &BTreeSet<MemberId>,
        seen: Option<LogId>,
        limit: Duration,
    ) -> Result<(), GroupError> {
        self.change(ChangeMembers::ReplaceAllVoters(voters.iter().map(|m| m.0).collect()), seen, limit).await
    }

    /// Ends the change of voters that entry `seen` began and no leader ended: from here on the newer set alone decides, and who is not in it is
    /// out. It is the entry that the leader who began the change would have proposed next. Only at the leader.
    ///
    /// # Errors
    /// As [`Group::add_learners`].
    pub async fn end_change(&self, seen: Option<LogId>, limit: Duration) -> Result<(), GroupError> {
        // Nobody is added: openraft goes from between two sets to the newer one with any change of voters that wants just that.
        self.change(ChangeMembers::AddVoterIds(BTreeSet::new()), seen, limit).await
    }

    async fn change(
        &self,
        change: ChangeMembers<u64, BasicNode>,
        seen: Option<LogId>,
        limit: Duration,
    ) -> Result<(), GroupError> {
        match self.carry_through(change, seen, limit).await {
            Ok(_) => Ok(()),
            Err(ChangeError::Refused(why)) => Err(self.refused(why)),
            Err(ChangeError::Late) => Err(GroupError::Late { group: self.id(), what: "change of members", limit }),
        }
    }
}
