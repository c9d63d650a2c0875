//! The state of group 0, and how each command changes it.

use super::command::{
    ADDRESS_BYTES_MAX, ClusterAnswer, ClusterCommand, MEMBERS_MAX, SETS_MAX, STORE_URL_BYTES_MAX, WRAPPED_KEY_BYTES_MAX,
};
use super::deletion::Deletions;
use super::level::FIRST_LEVEL;
use super::refusal::ClusterRefusal;
use crate::set::{CLONE_DEPTH_MAX, FIRST_GENERATION, Links, Restored, epoch_base};
use holdfast_types::{Epoch, GroupId, LogId, MemberId, Name, RequestId, SetId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What a member is there for; fixed when it joins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemberRole {
    /// Votes, keeps the journal, serves.
    #[default]
    Gateway,
    /// Votes and keeps the journal, and serves nobody.
    Witness,
}

/// What a member may do at present.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Standing {
    /// All that its role allows.
    #[default]
    Active,
    /// Votes and keeps the journal; leads nothing that another could lead. For maintenance.
    Drained,
    /// On its way out, for ever: of each set's group, of group 0, of the cluster.
    Leaving,
}

/// A gateway that takes part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Never reused (C1).
    pub id: MemberId,
    /// What people call it; unique.
    pub name: Name,
    /// Where it is.
    pub region: Name,
    /// Random uuid of its disk (C2).
    pub disk: u128,
    /// `host:port` for other gateways.
    pub peer_addr: String,
    /// `host:port` for the admin API.
    pub api_addr: String,
    /// `host:port` for NBD.
    pub nbd_addr: String,
    /// What it is there for.
    pub role: MemberRole,
    /// What it may do at present. A new member is active, whatever was asked for.
    pub standing: Standing,
}

impl Member {
    /// Whether it is to lead, and so to serve.
    pub fn serves(&self) -> bool {
        self.role == MemberRole::Gateway && self.standing == Standing::Active
    }
}

/// The last start of a member (C3).
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
    /// Which life of the set this is: it grows with each recovery from the store, and the store knows the latest.
    pub generation: u64,
    /// What every replica's `SetState` begins with: `None` for a set that was created empty.
    pub restored: Option<Restored>,
}

/// What a request made (R12): asked again, it is answered alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Made {
    /// A member.
    Member(MemberId),
    /// A set.
    Set(SetId),
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
    /// Disks of removed members (C2): 16 bytes each, kept for ever.
    pub retired_disks: BTreeSet<u128>,
    /// What each request made; as many as there are members and sets.
    pub requests: BTreeMap<RequestId, Made>,
    /// Entries up to this feature level may be proposed (C4).
    pub level: u32,
    /// Sets that are being deleted, or were.
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
    /// A cluster of nobody.
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

    /// Applies the command of one entry. Reads nothing but the command and the state: every replica answers alike.
    /// (The entry's log id decides nothing here; it is taken so that the two machines look the same to their caller.)
    pub fn apply(&mut self, _id: LogId, cmd: &ClusterCommand) -> ClusterAnswer {
        if cmd.level() > self.level {
            let (needed, found) = (cmd.level(), self.level);
            return ClusterAnswer::Refused(ClusterRefusal::LevelNeeded { needed, found });
        }
        let result = match cmd {
            ClusterCommand::Init { cluster_id } => self.init(*cluster_id),
            ClusterCommand::AddMember { member, replaces, request } => self.add_member(member, *replaces, *request),
            ClusterCommand::RemoveMember { id } => self.remove_member(*id),
            ClusterCommand::UpdateMember { id, peer_addr, api_addr, nbd_addr } => {
                self.update_member(*id, peer_addr, api_addr, nbd_addr)
            }
            ClusterCommand::SetStanding { id, standing } => self.set_standing(*id, *standing),
            ClusterCommand::RegisterBoot { member, disk, boot, nonce, level } => {
                self.register_boot(*member, *disk, Boot { boot: *boot, nonce: *nonce, level: *level })
            }
            ClusterCommand::RaiseLevel { level } => self.raise_level(*level),
            ClusterCommand::CreateSet {
                name,
                store,
                wrapped_key,
                key_id,
                members,
                created_by,
                base_epoch,
                request,
            } => {
                let entry = SetEntry {
                    name: name.clone(),
                    store_url: store.clone(),
                    wrapped_key: wrapped_key.clone(),
                    key_id: *key_id,
                    created_by: *created_by,
                    initial_members: members.clone(),
                    base_epoch: *base_epoch,
                    generation: FIRST_GENERATION,
                    restored: None,
                };
                self.create_set(entry, *request)
            }
            ClusterCommand::SwapKeys { set, expected, wrapped_key, key_id } => {
                self.swap_keys(*set, expected, wrapped_key, *key_id)
            }
            ClusterCommand::DeleteSet { set, name, request } => self.delete_set(*set, name, *request),
            ClusterCommand::SetEnded { set, member, voters } => self.set_ended(*set, *member, voters.as_ref()),
            ClusterCommand::ForgetSet { set, store_left } => self.forget_set(*set, *store_left),
            ClusterCommand::SetEmptied { set, ended } => self.set_emptied(*set, ended),
            ClusterCommand::PassSets { upto } => {
                self.next_set = self.next_set.max(upto.0.saturating_add(1));
                Ok(ClusterAnswer::DeletionNoted)
            }
            ClusterCommand::PlaceSet { set, expected, placement } => self.place_set(*set, expected, placement),
            ClusterCommand::RestoreSet {
                set,
                name,
                store,
                wrapped_key,
                key_id,
                created_by,
                generation,
                restored,
                links,
            } => {
                let entry = SetEntry {
                    name: name.clone(),
                    store_url: store.clone(),
                    wrapped_key: wrapped_key.clone(),
                    key_id: *key_id,
                    created_by: *created_by,
                    initial_members: self.members.keys().copied().collect(),
                    base_epoch: epoch_base(*generation),
                    generation: *generation,
                    restored: Some(restored.clone()),
                };
                self.restore_set(*set, entry, links)
            }
            ClusterCommand::CloneSet { set, name, clone_of, wrapped_key, key_id, created_by, restored } => {
                let entry = SetEntry {
                    name: name.clone(),
                    store_url: String::new(),
                    wrapped_key: wrapped_key.clone(),
                    key_id: *key_id,
                    created_by: *created_by,
                    initial_members: self.staying(),
                    base_epoch: Epoch(0),
                    generation: FIRST_GENERATION,
                    restored: Some(restored.clone()),
                };
                self.clone_set(*set, entry, clone_of)
            }
            #[cfg(test)]
            ClusterCommand::OfLevel2 => Ok(ClusterAnswer::DeletionNoted),
        };
        result.unwrap_or_else(ClusterAnswer::Refused)
    }

    /// The member of this name: of two, the one that stays.
    pub fn member_named(&self, name: &Name) -> Option<&Member> {
        let named = || self.members.values().filter(|member| member.name == *name);
        named().find(|member| member.standing != Standing::Leaving).or_else(|| named().next())
    }

    /// Whether the id was a member's and is no longer: it will never be one again (C1).
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

    fn init(&mut self, cluster_id: u128) -> Result<ClusterAnswer, ClusterRefusal> {
        let fresh = self.cluster_id == 0 && cluster_id != 0;
        if !fresh && (self.cluster_id != cluster_id || cluster_id == 0) {
            return Err(ClusterRefusal::OtherCluster { found: cluster_id, expected: self.cluster_id });
        }
        self.cluster_id = cluster_id;
        Ok(ClusterAnswer::Initialized)
    }

    fn add_member(
        &mut self,
        member: &Member,
        replaces: Option<MemberId>,
        request: RequestId,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        match self.requests.get(&request).copied() {
            Some(Made::Member(id)) => return Ok(ClusterAnswer::MemberAdded { id }),
            Some(Made::Set(_)) => return Err(ClusterRefusal::RequestReused { request }),
            None => {}
        }
        let wanted = if member.id == MemberId(0) { MemberId(self.next_member) } else { member.id };
        // An id is refused at the very end of the numbers too, since there would be no next one.
        let Some(next) = wanted.0.checked_add(1).filter(|_| wanted.0 >= self.next_member) else {
            return Err(ClusterRefusal::MemberIdUsed { id: wanted, next: MemberId(self.next_member) });
        };
        if let Some(other) = self.members.values().find(|other| other.disk == member.disk) {
            return Err(ClusterRefusal::DiskInUse { disk: member.disk, by: other.id });
        }
        if self.retired_disks.contains(&member.disk) {
            return Err(ClusterRefusal::DiskRetired { disk: member.disk });
        }
        if let Some(old) = replaces.filter(|old| !self.members.contains_key(old)) {
            return Err(self.no_member(old));
        }
        // Who leaves gives its name free: a gateway whose disk was lost comes back under the same one.
        let stays = |other: &&Member| other.standing != Standing::Leaving && Some(other.id) != replaces;
        if let Some(other) = self.members.values().filter(stays).find(|other| other.name == member.name) {
            return Err(ClusterRefusal::MemberNameTaken { name: member.name.clone(), by: other.id });
        }
        check_addresses(&member.peer_addr, &member.api_addr, &member.nbd_addr)?;
        if self.members.len() >= MEMBERS_MAX {
            return Err(ClusterRefusal::TooManyMembers { max: MEMBERS_MAX as u32 });
        }
        self.next_member = next;
        self.requests.insert(request, Made::Member(wanted));
        if let Some(old) = replaces.and_then(|old| self.members.get_mut(&old)) {
            old.standing = Standing::Leaving;
        }
        self.members.insert(wanted, Member { id: wanted, standing: Standing::Active, ..member.clone() });
        Ok(ClusterAnswer::MemberAdded { id: wanted })
    }

    /// Why there is no such member.
    fn no_member(&self, id: MemberId) -> ClusterRefusal {
        match self.was_removed(id) {
            true => ClusterRefusal::MemberRemoved { id },
            false => ClusterRefusal::NoSuchMember { id },
        }
    }

    fn set_standing(&mut self, id: MemberId, standing: Standing) -> Result<ClusterAnswer, ClusterRefusal> {
        let refusal = self.no_member(id);
        let others =
            self.members.values().filter(|other| other.id != id && other.standing != Standing::Leaving).count();
        let member = self.members.get_mut(&id).ok_or(refusal)?;
        match (member.standing, standing) {
            (Standing::Leaving, Standing::Active | Standing::Drained) => Err(ClusterRefusal::MemberLeaving { id }),
            (_, Standing::Leaving) if others == 0 => Err(ClusterRefusal::LastMember { id }),
            _ => {
                member.standing = standing;
                Ok(ClusterAnswer::StandingSet)
            }
        }
    }

    fn remove_member(&mut self, id: MemberId) -> Result<ClusterAnswer, ClusterRefusal> {
        if !self.members.contains_key(&id) {
            // Below the next id it was a member once: an earlier copy of this request (R12).
            let once = id.0 != 0 && id.0 < self.next_member;
            return if once { Ok(ClusterAnswer::MemberRemoved) } else { Err(ClusterRefusal::NoSuchMember { id }) };
        }
        if !self.members.values().any(|other| other.id != id && other.standing != Standing::Leaving) {
            return Err(ClusterRefusal::LastMember { id });
        }
        if let Some(member) = self.members.remove(&id) {
            self.retired_disks.insert(member.disk);
        }
        self.boots.remove(&id);
        // A late copy of its join is then refused by its disk.
        self.requests.retain(|_, made| *made != Made::Member(id));
        Ok(ClusterAnswer::MemberRemoved)
    }

    fn update_member(
        &mut self,
        id: MemberId,
        peer: &str,
        api: &str,
        nbd: &str,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        let refusal = self.no_member(id);
        let member = self.members.get_mut(&id).ok_or(refusal)?;
        check_addresses(peer, api, nbd)?;
        member.peer_addr = peer.to_owned();
        member.api_addr = api.to_owned();
        member.nbd_addr = nbd.to_owned();
        Ok(ClusterAnswer::MemberUpdated)
    }

    fn register_boot(&mut self, id: MemberId, disk: u128, boot: Boot) -> Result<ClusterAnswer, ClusterRefusal> {
        let member = self.members.get(&id).ok_or_else(|| self.no_member(id))?;
        if member.disk != disk {
            return Err(ClusterRefusal::DiskMismatch { member: id, found: disk, expected: member.disk });
        }
        if boot.level < self.level {
            return Err(ClusterRefusal::TooOld { member: id, found: boot.level, expected: self.level });
        }
        if let Some(seen) = self.boots.get(&id) {
            if boot.boot < seen.boot {
                return Err(ClusterRefusal::BootReplayed { member: id, found: boot.boot, seen: seen.boot });
            }
            if boot.boot == seen.boot && boot.nonce != seen.nonce {
                return Err(ClusterRefusal::BootCloned { member: id, boot: boot.boot });
            }
        }
        self.boots.insert(id, boot);
        Ok(ClusterAnswer::BootRegistered)
    }

    /// The level that every member knows, where that is above the present one.
    pub fn raisable(&self) -> Option<u32> {
        let known = self.members.keys().map(|id| self.boots.get(id).map_or(0, |boot| boot.level));
        known.min().filter(|level| *level > self.level)
    }

    fn raise_level(&mut self, level: u32) -> Result<ClusterAnswer, ClusterRefusal> {
        let unknown = |id: &MemberId| self.boots.get(id).is_none_or(|boot| boot.level < level);
        if let Some(member) = self.members.keys().copied().find(unknown).filter(|_| level > self.level) {
            let known = self.boots.get(&member).map(|boot| boot.level);
            return Err(ClusterRefusal::LevelNotKnown { asked: level, member, known });
        }
        self.level = self.level.max(level);
        Ok(ClusterAnswer::LevelRaised)
    }

    pub(super) fn create_set(
        &mut self,
        mut entry: SetEntry,
        request: RequestId,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        match self.requests.get(&request).copied() {
            // A late copy: what is gone is not made anew by it.
            Some(Made::Set(set)) if self.was_deleted(set) => return Err(ClusterRefusal::SetDeleted { set }),
            Some(Made::Set(set)) => return Ok(ClusterAnswer::SetCreated { set }),
            Some(Made::Member(_)) => return Err(ClusterRefusal::RequestReused { request }),
            None => {}
        }
        self.name_is_free(&entry.name)?;
        check_length("store URL", entry.store_url.len(), STORE_URL_BYTES_MAX)?;
        check_length("wrapped key", entry.wrapped_key.len(), WRAPPED_KEY_BYTES_MAX)?;
        let voters: BTreeSet<MemberId> = if entry.initial_members.is_empty() {
            self.members.keys().copied().collect()
        } else {
            entry.initial_members.iter().copied().collect()
        };
        let twice = !entry.initial_members.is_empty() && voters.len() != entry.initial_members.len();
        if voters.is_empty() || twice {
            return Err(ClusterRefusal::BadMembers { found: entry.initial_members });
        }
        for id in voters.iter().chain([&entry.created_by]) {
            if !self.members.contains_key(id) {
                return Err(ClusterRefusal::NoSuchMember { id: *id });
            }
        }
        let Some(next) = self.next_set.checked_add(1).filter(|_| self.sets_counted() < SETS_MAX) else {
            return Err(ClusterRefusal::TooManySets { max: SETS_MAX as u32 });
        };
        let set = GroupId(self.next_set);
        self.next_set = next;
        entry.initial_members = voters.into_iter().collect();
        self.sets.insert(set, entry);
        self.requests.insert(request, Made::Set(set));
        Ok(ClusterAnswer::SetCreated { set })
    }

    /// Members that do not leave.
    fn staying(&self) -> Vec<MemberId> {
        self.members.values().filter(|member| member.standing != Standing::Leaving).map(|member| member.id).collect()
    }

    fn swap_keys(
        &mut self,
        set: SetId,
        expected: &[u8],
        wrapped_key: &[u8],
        key_id: u32,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        check_length("wrapped key", wrapped_key.len(), WRAPPED_KEY_BYTES_MAX)?;
        let entry = self.sets.get_mut(&set).ok_or(ClusterRefusal::NoSuchSet { set })?;
        if entry.wrapped_key == wrapped_key && entry.key_id == key_id {
            // An earlier copy of this request (R12).
            return Ok(ClusterAnswer::KeyRewrapped);
        }
        if entry.wrapped_key != expected {
            return Err(ClusterRefusal::KeysChanged { set });
        }
        entry.wrapped_key = wrapped_key.to_vec();
        entry.key_id = key_id;
        Ok(ClusterAnswer::KeyRewrapped)
    }

    /// Checks what must hold at every index. For tests and debug builds.
    ///
    /// # Panics
    /// With the rule that does not hold.
    pub fn self_check(&self) {
        assert!(self.members.iter().all(|(id, member)| *id == member.id), "a member filed under another id");
        assert!(
            self.members.keys().all(|id| id.0 != 0 && id.0 < self.next_member),
            "C1: next member {}",
            self.next_member
        );
        assert!(self.sets.keys().all(|id| id.0 != 0 && id.0 < self.next_set), "C1: next set {}", self.next_set);
        let disks: BTreeSet<u128> = self.members.values().map(|member| member.disk).collect();
        assert_eq!(disks.len(), self.members.len(), "C2: two members on one disk");
        assert!(disks.is_disjoint(&self.retired_disks), "C2: a retired disk came back");
        assert!(self.boots.keys().all(|id| self.members.contains_key(id)), "C3: a start of nobody");
        let made = self.members.len() + self.sets_counted() + self.deletions.finished.len();
        assert!(self.requests.len() <= made, "a request that made nothing");
        let stay: Vec<&Member> = self.members.values().filter(|member| member.standing != Standing::Leaving).collect();
        let names: BTreeSet<&Name> = stay.iter().map(|member| &member.name).collect();
        assert_eq!(names.len(), stay.len(), "two members of one name");
        assert!(self.members.is_empty() || !stay.is_empty(), "every member is leaving");
        let names: BTreeSet<&Name> = self.sets.values().map(|set| &set.name).collect();
        assert_eq!(names.len(), self.sets.len(), "two sets of one name");
        self.check_deletions();
        for (set, of) in self.links.iter().filter_map(|(set, links)| Some((set, links.clone_of.as_ref()?))) {
            assert!(self.sets.contains_key(set) || self.is_going(*set), "links of {set}, which is no set");
            assert!(of.origin < *set, "S14: {set} is a clone of {}, which came after it", of.origin);
            assert!(self.clone_depth(*set) <= CLONE_DEPTH_MAX, "S14: {set} has too many origins");
        }
    }
}

pub(super) fn check_length(what: &str, found: usize, max: usize) -> Result<(), ClusterRefusal> {
    if found == 0 || found > max {
        return Err(ClusterRefusal::BadLength { what: what.to_owned(), found: found as u64, max: max as u64 });
    }
    Ok(())
}

fn check_addresses(peer: &str, api: &str, nbd: &str) -> Result<(), ClusterRefusal> {
    check_length("peer address", peer.len(), ADDRESS_BYTES_MAX)?;
    check_length("API address", api.len(), ADDRESS_BYTES_MAX)?;
    check_length("NBD address", nbd.len(), ADDRESS_BYTES_MAX)
}
