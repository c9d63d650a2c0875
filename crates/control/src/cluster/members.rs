//! Members: joining, leaving, starts, and the feature level that all of them know (CLUSTER-C1 to CLUSTER-C4).

use super::command::{ADDRESS_BYTES_MAX, ClusterAnswer, MEMBERS_MAX};
use super::refusal::ClusterRefusal;
use super::sets::check_length;
use super::state::{Boot, ClusterState, Made, Member, Standing};
use holdfast_types::{Locality, MemberId, RequestId};

impl ClusterState {
    pub(super) fn add_member(
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
        // The largest id is refused too, since there would be no next one.
        let Some(next) = wanted.0.checked_add(1).filter(|_| wanted.0 >= self.next_member) else {
            return Err(ClusterRefusal::MemberIdUsed { id: wanted, next: MemberId(self.next_member) });
        };
        if let Some(other) = self.members.values().find(|other| other.disk == member.disk) {
            holdfast_reached::reached!("members: a disk joins a second time");
            return Err(ClusterRefusal::DiskInUse { disk: member.disk, by: other.id });
        }
        if self.retired_disks.contains(&member.disk) {
            holdfast_reached::reached!("members: the disk of a removed member wants to join");
            return Err(ClusterRefusal::DiskRetired { disk: member.disk });
        }
        if let Some(old) = replaces.filter(|old| !self.members.contains_key(old)) {
            return Err(self.no_member(old));
        }
        // A leaving member frees its name: a gateway with a lost disk rejoins under the same name.
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
        if let Some(old) = replaces {
            self.pass_place_on(old, wanted);
        }
        self.members.insert(wanted, Member { id: wanted, standing: Standing::Active, ..member.clone() });
        Ok(ClusterAnswer::MemberAdded { id: wanted })
    }

    /// The refusal for an unknown member: it was removed, or never existed.
    pub(super) fn no_member(&self, id: MemberId) -> ClusterRefusal {
        match self.was_removed(id) {
            true => ClusterRefusal::MemberRemoved { id },
            false => ClusterRefusal::NoSuchMember { id },
        }
    }

    pub(super) fn set_standing(&mut self, id: MemberId, standing: Standing) -> Result<ClusterAnswer, ClusterRefusal> {
        let refusal = self.no_member(id);
        let others =
            self.members.values().filter(|other| other.id != id && other.standing != Standing::Leaving).count();
        let needs = self.left_without(id);
        let member = self.members.get_mut(&id).ok_or(refusal)?;
        match (member.standing, standing, needs) {
            (Standing::Leaving, Standing::Active | Standing::Drained, _) => Err(ClusterRefusal::MemberLeaving { id }),
            (_, Standing::Leaving, _) if others == 0 => Err(ClusterRefusal::LastMember { id }),
            (Standing::Active | Standing::Drained, Standing::Leaving, Some(set)) => {
                Err(ClusterRefusal::LastVoter { id, set })
            }
            _ => {
                member.standing = standing;
                Ok(ClusterAnswer::StandingSet)
            }
        }
    }

    pub(super) fn remove_member(&mut self, id: MemberId) -> Result<ClusterAnswer, ClusterRefusal> {
        if !self.members.contains_key(&id) {
            // An id below the next one was a member once: an earlier copy of this request (R12).
            let once = id.0 != 0 && id.0 < self.next_member;
            return if once { Ok(ClusterAnswer::MemberRemoved) } else { Err(ClusterRefusal::NoSuchMember { id }) };
        }
        if !self.members.values().any(|other| other.id != id && other.standing != Standing::Leaving) {
            return Err(ClusterRefusal::LastMember { id });
        }
        if let Some(set) = self.empty_without(id) {
            return Err(ClusterRefusal::LastVoter { id, set });
        }
        if let Some(member) = self.members.remove(&id) {
            self.retired_disks.insert(member.disk);
        }
        self.boots.remove(&id);
        // A late copy of its join is then refused by its disk.
        self.requests.retain(|_, made| *made != Made::Member(id));
        Ok(ClusterAnswer::MemberRemoved)
    }

    pub(super) fn update_member(
        &mut self,
        id: MemberId,
        peer: &str,
        api: &str,
        nbd: &str,
        locality: &Locality,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        let refusal = self.no_member(id);
        let member = self.members.get_mut(&id).ok_or(refusal)?;
        check_addresses(peer, api, nbd)?;
        member.peer_addr = peer.to_owned();
        member.api_addr = api.to_owned();
        member.nbd_addr = nbd.to_owned();
        member.locality = locality.clone();
        Ok(ClusterAnswer::MemberUpdated)
    }

    pub(super) fn register_boot(
        &mut self,
        id: MemberId,
        disk: u128,
        boot: Boot,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        let member = self.members.get(&id).ok_or_else(|| self.no_member(id))?;
        if member.disk != disk {
            return Err(ClusterRefusal::DiskMismatch { member: id, found: disk, expected: member.disk });
        }
        if boot.level < self.level {
            holdfast_reached::reached!("members: a build that is too old registers");
            return Err(ClusterRefusal::TooOld { member: id, found: boot.level, expected: self.level });
        }
        if let Some(seen) = self.boots.get(&id) {
            if boot.boot < seen.boot {
                holdfast_reached::reached!("members: a restored disk registers");
                return Err(ClusterRefusal::BootReplayed { member: id, found: boot.boot, seen: seen.boot });
            }
            if boot.boot == seen.boot && boot.nonce != seen.nonce {
                holdfast_reached::reached!("members: a copied disk registers");
                return Err(ClusterRefusal::BootCopied { member: id, boot: boot.boot });
            }
        }
        self.boots.insert(id, boot);
        Ok(ClusterAnswer::BootRegistered)
    }

    /// The level that all members know, if above the present one.
    pub fn raisable(&self) -> Option<u32> {
        let known = self.members.keys().map(|id| self.boots.get(id).map_or(0, |boot| boot.level));
        known.min().filter(|level| *level > self.level)
    }

    pub(super) fn raise_level(&mut self, level: u32) -> Result<ClusterAnswer, ClusterRefusal> {
        let unknown = |id: &MemberId| self.boots.get(id).is_none_or(|boot| boot.level < level);
        if let Some(member) = self.members.keys().copied().find(unknown).filter(|_| level > self.level) {
            let known = self.boots.get(&member).map(|boot| boot.level);
            return Err(ClusterRefusal::LevelNotKnown { asked: level, member, known });
        }
        self.level = self.level.max(level);
        Ok(ClusterAnswer::LevelRaised)
    }

    /// Members that do not leave.
    pub(super) fn staying(&self) -> Vec<MemberId> {
        self.members.values().filter(|member| member.standing != Standing::Leaving).map(|member| member.id).collect()
    }
}

fn check_addresses(peer: &str, api: &str, nbd: &str) -> Result<(), ClusterRefusal> {
    check_length("peer address", peer.len(), ADDRESS_BYTES_MAX)?;
    check_length("API address", api.len(), ADDRESS_BYTES_MAX)?;
    check_length("NBD address", nbd.len(), ADDRESS_BYTES_MAX)
}
