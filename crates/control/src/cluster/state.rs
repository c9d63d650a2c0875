//! The replicated state of group 0, as data. How commands change it: `apply`, `members`, `sets`, `deletion`, `clones`, `placement`.

use super::level::FIRST_LEVEL;
use crate::set::{Links, Restored};
use holdfast_types::{Epoch, LogId, MemberId, Name, RequestId, SetId};
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
    /// Votes and keeps the journal; leads nothing that another member can lead. For maintenance.
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
    /// Its region.
    pub region: Name,
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
    /// Its standing. A new member is active, whatever the request says.
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
    /// Drawn by that process.
    pub nonce: u64,
    /// The newest feature level that its build knows.
    pub level: u32,
}

/// A volume set, as the cluster knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetEntry {
    /// Unique in the cluster.
    pub name: Name,
    /// URL of its store.
    pub store_url: String,
    /// Its data key, wrapped by the cluster key.
    pub wrapped_key: Vec<u8>,
    /// Which cluster key wrapped it.
    pub key_id: u32,
    /// The gateway that made it and starts its group.
    pub created_by: MemberId,
    /// Voters at the start of its group, in order of id.
    pub initial_members: Vec<MemberId>,
    /// Every epoch of the set is above it; every replica's `SetState` starts from it.
    pub base_epoch: Epoch,
    /// The set's generation: grows with each recovery from the store. The head in the store has the latest.
    pub generation: u64,
    /// Initial content of every replica's `SetState`; `None` for a set that was created empty.
    pub restored: Option<Restored>,
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
    /// The gateways end its group. The key is still there: it seals the last head.
    Ending,
    /// The key is forgotten here; what lies in the store opens for nobody.
    Forgotten,
    /// The store showed nothing more, and the name is free. Some gateway has not ended the group yet.
    Emptied,
}

/// The voters of a set's group, as one of its members had them in its log when it ended the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupVoters {
    /// The entry that named them. Of two, the later one counts.
    pub at: LogId,
    /// One set of voters; two, while voters were being changed.
    pub sets: Vec<BTreeSet<MemberId>>,
}

/// A set that is being deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// What it was. Without its key from `Forgotten` on.
    pub entry: SetEntry,
    /// Who asked for it.
    pub request: RequestId,
    /// How far it is.
    pub stage: DeletionStage,
    /// Members that have ended its group, for ever.
    pub ended: BTreeSet<MemberId>,
    /// The newest voters that one of them knew of.
    pub voters: Option<GroupVoters>,
    /// Nothing is removed in the store: another cluster has taken the set over there.
    pub store_left: bool,
}

impl Deletion {
    /// Members that have not ended the group.
    pub fn waits_for(&self, members: impl IntoIterator<Item = MemberId>) -> BTreeSet<MemberId> {
        members.into_iter().filter(|id| !self.ended.contains(id)).collect()
    }

    /// DELETE-D2. With no word of any voters, only once every one of `members` has ended it.
    ///
    /// Why the newest voters that were told are enough: a later change of voters would have needed a majority of these, hence of somebody who has ended
    /// the group and would have told of it.
    pub fn fenced(&self, members: impl IntoIterator<Item = MemberId>) -> bool {
        let minority = |voters: &BTreeSet<MemberId>| {
            let left = voters.iter().filter(|id| !self.ended.contains(id)).count();
            left * 2 <= voters.len() && left < voters.len()
        };
        let known = self.voters.as_ref().is_some_and(|known| known.sets.iter().all(minority));
        known || self.waits_for(members).is_empty()
    }
}

/// What group 0 knows of sets that go or went.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletions {
    /// By number.
    pub under_way: BTreeMap<SetId, Deletion>,
    /// The last ones that came to their end, in that order.
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
    /// The lowest member id that was never used.
    pub next_member: u64,
    /// The lowest set id that was never used. 0 is this group's own.
    pub next_set: u64,
    /// The last start of each member.
    pub boots: BTreeMap<MemberId, Boot>,
    /// Disks of removed members (CLUSTER-C2): 16 bytes each, kept for ever.
    pub retired_disks: BTreeSet<u128>,
    /// What each request created; one for each member and set.
    pub requests: BTreeMap<RequestId, Made>,
    /// Entries up to this feature level may be proposed (CLUSTER-C4).
    pub level: u32,
    /// Sets that are being deleted, and the last ones that were.
    pub deletions: Deletions,
    /// Origins of clones, and the pins and snapshots that recovered sets began with.
    pub links: BTreeMap<SetId, Links>,
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
        }
    }

    /// The member of this name: of two, the one that stays.
    pub fn member_named(&self, name: &Name) -> Option<&Member> {
        let named = || self.members.values().filter(|member| member.name == *name);
        named().find(|member| member.standing != Standing::Leaving).or_else(|| named().next())
    }

    /// Whether the id was a member's and is no longer: it will never be one again (CLUSTER-C1).
    pub fn was_removed(&self, id: MemberId) -> bool {
        id.0 != 0 && id.0 < self.next_member && !self.members.contains_key(&id)
    }

    /// The set of this name.
    pub fn set_named(&self, name: &Name) -> Option<(SetId, &SetEntry)> {
        self.sets.iter().find(|(_, set)| set.name == *name).map(|(id, set)| (*id, set))
    }

    /// Those that go are work still.
    pub(super) fn sets_counted(&self) -> usize {
        self.sets.len() + self.deletions.under_way.len()
    }
}
