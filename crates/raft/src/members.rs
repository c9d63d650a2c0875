//! Who is in a group, and who stands for election in it: single steps, carried out where somebody else decided them.

use crate::clock::boot_now;
use crate::group::{Group, GroupError};
use holdfast_types::{MemberId, MonoTime};
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

    /// Lets these learn, at their addresses. Only at the leader.
    ///
    /// # Errors
    /// `Refused` where this member does not lead or another change is under way; `Late` after `limit`, each.
    pub async fn add_learners(&self, members: &BTreeMap<MemberId, String>, limit: Duration) -> Result<(), GroupError> {
        for (id, addr) in members {
            let node = BasicNode { addr: addr.clone() };
            let add = self.raft().add_learner(id.0, node, false);
            self.within(limit, async { add.await.map(drop).map_err(|e| self.refused(e)) }).await?;
        }
        Ok(())
    }

    /// Takes learners out. Only at the leader.
    ///
    /// # Errors
    /// As [`Group::add_learners`].
    pub async fn drop_learners(&self, members: &BTreeSet<MemberId>, limit: Duration) -> Result<(), GroupError> {
        self.change(ChangeMembers::RemoveNodes(members.iter().map(|m| m.0).collect()), limit).await
    }

    /// Makes these the voters, through a joint membership; who voted and is not among them is out. Only at the leader, who MUST know
    /// that a majority of the voters before and of those after answers: the change cannot be taken back.
    ///
    /// # Errors
    /// As [`Group::add_learners`].
    pub async fn change_voters(&self, voters: &BTreeSet<MemberId>, limit: Duration) -> Result<(), GroupError> {
        self.change(ChangeMembers::ReplaceAllVoters(voters.iter().map(|m| m.0).collect()), limit).await
    }

    async fn change(&self, change: ChangeMembers<u64, BasicNode>, limit: Duration) -> Result<(), GroupError> {
        let work = async { self.raft().change_membership(change, false).await.map(drop).map_err(|e| self.refused(e)) };
        self.within(limit, work).await
    }

    async fn within(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<(), GroupError>>,
    ) -> Result<(), GroupError> {
        let late = GroupError::Late { group: self.id(), what: "change of members", limit };
        tokio::time::timeout(limit, work).await.unwrap_or(Err(late))
    }
}
