//! The replicated state of group 0, as data. Commands change it in `apply`, `members`, `sets`, `deletion`, `clones`,
//! `placement`, `revoked`, `voters`.

use super::level::FIRST_LEVEL;
use super::revocation::{Revocation, RevokedBy};
use crate::policy::Policy;
use crate::set::{Links, Restored};
use holdfast_types::{Epoch, Locality, LogId, MemberId, Name, RequestId, SetId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Role of a member; fixed when it joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemberRole {
    /// Votes, keeps the journal, serves.
    #[default]
    Gateway,
    /// Votes and keeps the journal; serves no clients.
    Witness,
}

/// What a member may do at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Standing {
    /// All that its role allows.
    #[default]
    Active,
    /// Votes and keeps the journal, but leads only if no other member can. For maintenance.
    Drained,
    /// Being removed from each set's group, then from group 0 and the cluster. Final.
    Leaving,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Never reused (CLUSTER-C1).
    pub id: MemberId,
    /// Unique name, for people.
    pub name: Name,
    /// Where it stands.
    pub locality: Locality,
    /// Random uuid of its disk (CLUSTER-C2).
    pub disk: u128,
    /// `host:port` for other gateways.
    pub peer_addr: String,
    /// `host:port` for the admin API.
    pub api_addr: String,
    /// `host:port` for NBD.
    pub nbd_addr: String,
    /// Its role.
    pub role: MemberRole,
    /// Its standing. A new member is active, whatever the request contains.
    pub standing: Standing,
}

impl Member {
    /// Whether it may lead, and so serve.
    pub fn serves(&self) -> bool {
        self.role == MemberRole::Gateway && self.standing == Standing::Active
    }
}

/// The last start of a member (CLUSTER-C3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boot {
    /// The disk's boot counter.
    pub boot: u64,
    /// Random number drawn by that process.
    pub nonce: u64,
    /// The newest feature level that its build knows.
    pub level: u32,
}

/// A volume set, as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetEntry {
    /// Unique in the cluster.
    pub name: Name,
    /// What it asks of its voters.
    pub policy: Policy,
    /// URL of its store.
    pub store_url: String,
    /// Its data key, wrapped by the cluster key.
    pub wrapped_key: Vec<u8>,
    /// The cluster key that wrapped it.
    pub key_id: u32,
    /// The gateway that created it and starts its group.
    pub created_by: MemberId,
    /// Voters at the start of its group, in order of id.
    pub initial_members: Vec<MemberId>,
    /// Lower bound of the set's epochs; every replica's `SetState` starts from it.
    pub base_epoch: Epoch,
    /// The set's generation: grows with each recovery from the store. The head in the store has the latest.
    pub generation: u64,
    /// Initial content of every replica's `SetState`; `None` for a set that was created empty.
    pub restored: Option<Restored>,
    /// The voters that its group should have. Empty: all members that stay, also those that join later (VOTERS-V1). Not
    /// part of the entry's bytes: see [`ClusterState::places`].
    #[serde(skip)]
    pub voters: BTreeSet<MemberId>,
}

/// What a request created (R12): a repeated request gets the same answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Made {
    /// A member.
    Member(MemberId),
    /// A set.
    Set(SetId),
}

/// How far a deletion is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeletionStage {
    /// The gateways end its group. The key still exists: it seals the last head.
    Ending,
    /// The key is destroyed; nobody can open the objects in the store.
    Forgotten,
    /// The store is empty and the name is free, but some gateway has not ended the group yet.
    Emptied,
}

/// The voters of a set's group, from the log of a member when it ended the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupVoters {
    /// The entry that named them. The later one of two counts.
    pub at: LogId,
    /// One set of voters, or two during a change of voters. An empty set: that member has lost those up to `at`.
    pub sets: Vec<BTreeSet<MemberId>>,
}

impl GroupVoters {
    /// Whether these count, and not the `known` ones. One entry names the same voters to all members, so who knows them
    /// speaks for those who have lost them.
    pub(super) fn is_better_than(&self, known: &Self) -> bool {
        let lost = |voters: &Self| voters.sets.iter().any(BTreeSet::is_empty);
        (self.at, !lost(self)) > (known.at, !lost(known))
    }
}

/// A set that is being deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// Its last entry. Without the key from `Forgotten` on.
    pub entry: SetEntry,
    /// The request that deletes it.
    pub request: RequestId,
    /// The present stage.
    pub stage: DeletionStage,
    /// Members that have ended its group, for ever.
    pub ended: BTreeSet<MemberId>,
    /// The newest voters that one of them reported.
    pub voters: Option<GroupVoters>,
    /// Nothing is removed in the store: another cluster has taken the set over.
    pub store_left: bool,
}

impl Deletion {
    /// Members that have not ended the group.
    pub fn waits_for(&self, members: impl IntoIterator<Item = MemberId>) -> BTreeSet<MemberId> {
        members.into_iter().filter(|id| !self.ended.contains(id)).collect()
    }

    /// DELETE-D2. If no voters were reported, the set is fenced only once all of `members` have ended the group.
    ///
    /// Why the newest reported voters suffice: a later change of voters would have needed a majority of these, hence a
    /// member that has ended the group and would have reported the change.
    pub fn fenced(&self, members: impl IntoIterator<Item = MemberId>) -> bool {
        let minority = |voters: &BTreeSet<MemberId>| {
            let left = voters.iter().filter(|id| !self.ended.contains(id)).count();
            left * 2 <= voters.len() && left < voters.len()
        };
        let fenced = |known: &GroupVoters| !known.sets.is_empty() && known.sets.iter().all(minority);
        let known = self.voters.as_ref().is_some_and(fenced);
        known || self.waits_for(members).is_empty()
    }
}

/// Sets that are being deleted or were.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletions {
    /// By number.
    pub under_way: BTreeMap<SetId, Deletion>,
    /// The last finished ones, in that order.
    pub finished: VecDeque<SetId>,
}

/// Group 0's replicated state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterState {
    /// Drawn once; zero before `Init`.
    pub cluster_id: u128,
    /// By id.
    pub members: BTreeMap<MemberId, Member>,
    /// By id.
    pub sets: BTreeMap<SetId, SetEntry>,
    /// The lowest unused member id.
    pub next_member: u64,
    /// The lowest unused set id. 0 is this group's own.
    pub next_set: u64,
    /// The last start of each member.
    pub boots: BTreeMap<MemberId, Boot>,
    /// Disks of removed members (CLUSTER-C2): 16 bytes each, kept for ever.
    pub retired_disks: BTreeSet<u128>,
    /// Result of each request; one for each member and set.
    pub requests: BTreeMap<RequestId, Made>,
    /// Entries up to this feature level may be proposed (CLUSTER-C4).
    pub level: u32,
    /// Sets that are being deleted, and the last ones that were.
    pub deletions: Deletions,
    /// Origins of clones; pins and snapshots with which recovered sets began.
    pub links: BTreeMap<SetId, Links>,
    /// Certificates that count no more.
    pub revoked: BTreeMap<RevokedBy, Revocation>,
}

impl Default for ClusterState {
    fn default() -> Self {
        Self::new()
    }
}

impl ClusterState {
    /// A cluster without members.
    pub fn new() -> Self {
        Self {
            cluster_id: 0,
            members: BTreeMap::new(),
            sets: BTreeMap::new(),
            next_member: 1,
            next_set: 1,
            boots: BTreeMap::new(),
            retired_disks: BTreeSet::new(),
            requests: BTreeMap::new(),
            level: FIRST_LEVEL,
            deletions: Deletions::default(),
            links: BTreeMap::new(),
            revoked: BTreeMap::new(),
        }
    }

    /// The member of this name; of two, the one that is not leaving.
    pub fn member_named(&self, name: &Name) -> Option<&Member> {
        let named = || self.members.values().filter(|member| member.name == *name);
        named().find(|member| member.standing != Standing::Leaving).or_else(|| named().next())
    }

    /// Whether the id belonged to a removed member: it is never reused (CLUSTER-C1).
    pub fn was_removed(&self, id: MemberId) -> bool {
        id.0 != 0 && id.0 < self.next_member && !self.members.contains_key(&id)
    }

    /// The set of this name.
    pub fn set_named(&self, name: &Name) -> Option<(SetId, &SetEntry)> {
        self.sets.iter().find(|(_, set)| set.name == *name).map(|(id, set)| (*id, set))
    }

    /// Sets being deleted count: they still cause work.
    pub(super) fn sets_counted(&self) -> usize {
        self.sets.len() + self.deletions.under_way.len()
    }
}
