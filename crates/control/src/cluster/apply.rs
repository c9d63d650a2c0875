//! Dispatches each command of group 0 to its rule.

use super::command::{ClusterAnswer, ClusterCommand, ClusterCommand as Cmd};
use super::refusal::ClusterRefusal;
use super::revoked::REVOKED_MAX;
use super::state::{Boot, ClusterState, Member, SetEntry, Standing};
use crate::set::{CLONE_DEPTH_MAX, Restored, epoch_base};
use holdfast_types::{LogId, Name};
use std::collections::BTreeSet;

impl ClusterState {
    /// Applies the command of one entry. Reads only the command and the state, so every replica answers the same.
    /// (`_id` is unused; it makes both state machines look the same to their caller.)
    pub fn apply(&mut self, _id: LogId, cmd: &ClusterCommand) -> ClusterAnswer {
        if cmd.level() > self.level {
            let (needed, found) = (cmd.level(), self.level);
            return ClusterAnswer::Refused(ClusterRefusal::LevelNeeded { needed, found });
        }
        self.carry_out(cmd).unwrap_or_else(ClusterAnswer::Refused)
    }

    /// The rule of each command, for an entry whose level is allowed.
    fn carry_out(&mut self, cmd: &ClusterCommand) -> Result<ClusterAnswer, ClusterRefusal> {
        match cmd {
            // The cluster, its members and its certificates.
            Cmd::Init { cluster_id } => self.init(*cluster_id),
            Cmd::AddMember { member, replaces, request } => self.add_member(member, *replaces, *request),
            Cmd::RemoveMember { id } => self.remove_member(*id),
            Cmd::UpdateMember { id, peer_addr, api_addr, nbd_addr, locality } => {
                self.update_member(*id, peer_addr, api_addr, nbd_addr, locality)
            }
            Cmd::SetStanding { id, standing } => self.set_standing(*id, *standing),
            Cmd::RegisterBoot { member, disk, boot, nonce, level } => {
                self.register_boot(*member, *disk, Boot { boot: *boot, nonce: *nonce, level: *level })
            }
            Cmd::RaiseLevel { level } => self.raise_level(*level),
            Cmd::Revoke { what, by, at_unix_ms, reason } => self.revoke(what, by, *at_unix_ms, reason),
            Cmd::Unrevoke { what } => Ok(self.unrevoke(what)),
            // New sets.
            Cmd::CreateSet { name, policy, store, wrapped_key, key_id, members, created_by, base_epoch, request } => {
                let entry = SetEntry {
                    policy: policy.clone(),
                    store_url: store.clone(),
                    initial_members: members.clone(),
                    voters: members.iter().copied().collect(),
                    base_epoch: *base_epoch,
                    ..SetEntry::new(name, wrapped_key, *key_id, *created_by)
                };
                self.create_set(entry, *request)
            }
            Cmd::RestoreSet { set, name, store, wrapped_key, key_id, created_by, generation, restored, links } => {
                let entry = SetEntry {
                    store_url: store.clone(),
                    base_epoch: epoch_base(*generation),
                    generation: *generation,
                    ..self.filled_entry(SetEntry::new(name, wrapped_key, *key_id, *created_by), restored)
                };
                self.restore_set(*set, entry, links)
            }
            Cmd::CloneSet { set, name, clone_of, wrapped_key, key_id, created_by, restored } => {
                let entry = self.filled_entry(SetEntry::new(name, wrapped_key, *key_id, *created_by), restored);
                self.clone_set(*set, entry, clone_of)
            }
            Cmd::PassSets { upto } => Ok(self.pass_sets(*upto)),
            // A set's keys, stores, voters and policy.
            Cmd::SwapKeys { set, expected, wrapped_key, key_id } => {
                self.swap_keys(*set, expected, wrapped_key, *key_id)
            }
            Cmd::PlaceSet { set, expected, placement } => self.place_set(*set, expected, placement),
            Cmd::PlaceVoters { set, from, to } => self.place_voters(*set, from, to),
            Cmd::SetPolicy { set, expected, policy } => self.set_policy(*set, expected, policy),
            // A set's deletion.
            Cmd::DeleteSet { set, name, request } => self.delete_set(*set, name, *request),
            Cmd::SetEnded { set, member, voters } => self.set_ended(*set, *member, voters.as_ref()),
            Cmd::ForgetSet { set, store_left } => self.forget_set(*set, *store_left),
            Cmd::SetEmptied { set, ended } => self.set_emptied(*set, ended),
            #[cfg(test)]
            Cmd::OfLevel2 => Ok(ClusterAnswer::Initialized),
        }
    }

    /// A set that begins with content, at all members that stay.
    fn filled_entry(&self, entry: SetEntry, restored: &Restored) -> SetEntry {
        SetEntry { initial_members: self.staying(), restored: Some(restored.clone()), ..entry }
    }

    fn init(&mut self, cluster_id: u128) -> Result<ClusterAnswer, ClusterRefusal> {
        let fresh = self.cluster_id == 0 && cluster_id != 0;
        if !fresh && (self.cluster_id != cluster_id || cluster_id == 0) {
            return Err(ClusterRefusal::OtherCluster { found: cluster_id, expected: self.cluster_id });
        }
        self.cluster_id = cluster_id;
        Ok(ClusterAnswer::Initialized)
    }

    /// Checks what must hold at every index. For tests and debug builds.
    ///
    /// # Panics
    /// When a rule is broken.
    pub fn self_check(&self) {
        assert!(
            self.members.iter().all(|(id, member)| *id == member.id),
            "CLUSTER-C1: a member is stored under another id"
        );
        assert!(
            self.members.keys().all(|id| id.0 != 0 && id.0 < self.next_member),
            "CLUSTER-C1: next member {}",
            self.next_member
        );
        assert!(self.sets.keys().all(|id| id.0 != 0 && id.0 < self.next_set), "CLUSTER-C1: next set {}", self.next_set);
        let disks: BTreeSet<u128> = self.members.values().map(|member| member.disk).collect();
        assert_eq!(disks.len(), self.members.len(), "CLUSTER-C2: two members have one disk");
        assert!(disks.is_disjoint(&self.retired_disks), "CLUSTER-C2: a retired disk came back");
        assert!(self.boots.keys().all(|id| self.members.contains_key(id)), "CLUSTER-C3: a start of no member");
        let made = self.members.len() + self.sets_counted() + self.deletions.finished.len();
        assert!(self.requests.len() <= made, "R12: more requests are remembered than were carried out");
        let stay: Vec<&Member> = self.members.values().filter(|member| member.standing != Standing::Leaving).collect();
        let names: BTreeSet<&Name> = stay.iter().map(|member| &member.name).collect();
        assert_eq!(names.len(), stay.len(), "two members have one name");
        assert!(self.members.is_empty() || !stay.is_empty(), "every member is leaving");
        let names: BTreeSet<&Name> = self.sets.values().map(|set| &set.name).collect();
        assert_eq!(names.len(), self.sets.len(), "two sets have one name");
        self.check_deletions();
        assert!(self.revoked.len() <= REVOKED_MAX, "more is revoked than may be");
        self.check_places();
        for (set, of) in self.links.iter().filter_map(|(set, links)| Some((set, links.clone_of.as_ref()?))) {
            assert!(self.sets.contains_key(set) || self.is_going(*set), "found links of {set}, which is no set");
            assert!(of.origin < *set, "SET-S14: {set} is a clone of {}, which came after it", of.origin);
            assert!(self.clone_depth(*set) <= CLONE_DEPTH_MAX, "SET-S14: {set} has too many origins");
        }
    }
}
