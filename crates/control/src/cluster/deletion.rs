//! Deletion of sets (ADR 0029): group 0 keeps a record of each deleted set until no gateway and no store has anything
//! of it.
//!
//! ```text
//!   DeleteSet ─▶ Ending ── SetEnded by each gateway ──▶ fenced (DELETE-D2) ── ForgetSet ─▶ Forgotten ── SetEmptied ─▶ Emptied ── SetEmptied ─▶ no record
//!    out of `sets`,          its group is ended there,                  no key         │          name is free,      every gateway has
//!    name still taken        for ever                                                  │          some gateways      ended it, and the
//!                                                                                      │          were away          store was looked at since
//!                                                                                      └── every gateway has ended it ──▶ no record
//! ```
//! DELETE-D1  From `DeleteSet` on the set is not in `sets`: no gateway that has applied the entry starts, grants or
//!     serves it. Its number is never used again (CLUSTER-C1).
//! DELETE-D2  The key is destroyed, and objects are deleted, only after the set is *fenced*: the voters that have not
//!     ended its group are not a majority of any set of voters that the group may have. Then the group can commit
//!     nothing and elect no leader.
//! DELETE-D3  The name is free after the key is destroyed and a check has found the store empty.
//! DELETE-D4  The record stays until every member has ended the group and the store was checked after that: a gateway
//!     that was down may have written there late. A gateway that comes back finds the record and ends the group too.

use super::command::ClusterAnswer;
use super::refusal::ClusterRefusal;
use super::state::{ClusterState, Deletion, DeletionStage, Deletions, GroupVoters, Made};
use crate::set::Links;
use holdfast_types::{MemberId, Name, RequestId, SetId};
use std::collections::BTreeSet;

/// Number of deleted sets whose creating request is remembered, so that a late copy of it creates nothing.
pub const FINISHED_MAX: usize = 64;

/// State of a set to be deleted, as found by the leader of its group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Owner of its lease.
    pub owner: Option<String>,
    /// Clients that are connected to its volumes there.
    pub connections: u32,
    /// Number of its snapshots, pending ones included.
    pub snapshots: u32,
    /// A clone that needs its objects but is no set of this cluster: no recovery has brought it back.
    pub lost_clone: Option<SetId>,
}

/// Overrides of a deletion request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Anyway {
    /// Delete it even with a lease or connected clients.
    pub force: bool,
    /// Delete its snapshots too.
    pub with_snapshots: bool,
}

/// Reason against deleting a set now, with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InTheWay {
    /// The set's lease is held.
    #[error(
        "it is held by {owner}: stop the programs that use it and release the lease, or use --force, which ends the lease"
    )]
    Held {
        /// The lease's owner.
        owner: String,
    },
    /// Clients.
    #[error("{count} clients are connected to it: disconnect them, or use --force, which closes their connections")]
    Connected {
        /// How many.
        count: u32,
    },
    /// A clone.
    #[error(
        "set number {clone} is a clone of it and needs its objects, but is not in this cluster: it is being created, or was not recovered. Without these objects \
         the clone can never be read again. Recover it (`holdfast cluster recover`), or delete both permanently (--force --with-snapshots)"
    )]
    LostClone {
        /// The clone's number.
        clone: u64,
    },
    /// Snapshots.
    #[error("it has {count} snapshots: delete them first, or delete them together with the set (--with-snapshots)")]
    Snapshots {
        /// How many.
        count: u32,
    },
}

/// Checks whether the leader's findings prevent the deletion of a set.
///
/// # Errors
/// The first reason against it.
pub fn in_the_way(found: &Found, anyway: Anyway) -> Result<(), InTheWay> {
    if let Some(owner) = found.owner.clone().filter(|_| !anyway.force) {
        return Err(InTheWay::Held { owner });
    }
    if found.connections > 0 && !anyway.force {
        return Err(InTheWay::Connected { count: found.connections });
    }
    if let Some(clone) = found.lost_clone {
        return Err(InTheWay::LostClone { clone: clone.0 });
    }
    if found.snapshots > 0 && !anyway.with_snapshots {
        return Err(InTheWay::Snapshots { count: found.snapshots });
    }
    Ok(())
}

impl ClusterState {
    /// Checks whether group 0 itself must keep a set; no override applies. Put any further kind of pin here.
    ///
    /// # Errors
    /// The reason.
    pub fn may_be_deleted(&self, set: SetId) -> Result<(), ClusterRefusal> {
        if !self.sets.contains_key(&set) {
            return Err(ClusterRefusal::NoSuchSet { set });
        }
        // A clone reads its origin's objects with its origin's key (ADR 0028). A clone being deleted counts until its
        // head is a tombstone.
        let of =
            |(clone, links): (&SetId, &Links)| links.clone_of.as_ref().filter(|of| of.origin == set).map(|_| *clone);
        match self.links.iter().filter_map(of).next() {
            Some(clone) => Err(ClusterRefusal::HasClone { set, clone }),
            None => Ok(()),
        }
    }

    /// A clone from the restored links of a set that is not a set of this cluster yet.
    pub fn lost_clone_of(&self, set: SetId) -> Option<SetId> {
        let known = |clone: &SetId| {
            let deletions = &self.deletions;
            self.sets.contains_key(clone)
                || deletions.under_way.contains_key(clone)
                || deletions.finished.contains(clone)
        };
        self.links.get(&set)?.pins.values().map(|pin| pin.clone).find(|clone| !known(clone))
    }

    /// The deletion that still occupies this name.
    pub fn deletion_named(&self, name: &Name) -> Option<(SetId, &Deletion)> {
        let named =
            |(_, found): &(&SetId, &Deletion)| found.entry.name == *name && found.stage < DeletionStage::Emptied;
        self.deletions.under_way.iter().find(named).map(|(id, found)| (*id, found))
    }

    /// Whether the set is being deleted, with objects possibly left in the store.
    pub fn is_going(&self, set: SetId) -> bool {
        self.deletions.under_way.get(&set).is_some_and(|found| found.stage < DeletionStage::Emptied)
    }

    /// Whether the number belonged to a deleted set (CLUSTER-C1).
    pub fn was_deleted(&self, set: SetId) -> bool {
        set.0 != 0 && set.0 < self.next_set && !self.sets.contains_key(&set)
    }

    /// DELETE-D3: no set and no unfinished deletion has the name.
    pub(super) fn name_is_free(&self, name: &Name) -> Result<(), ClusterRefusal> {
        if let Some((by, _)) = self.set_named(name) {
            return Err(ClusterRefusal::SetNameTaken { name: name.clone(), by });
        }
        match self.deletion_named(name) {
            Some((set, _)) => Err(ClusterRefusal::SetBeingDeleted { name: name.clone(), set }),
            None => Ok(()),
        }
    }

    pub(super) fn delete_set(
        &mut self,
        set: SetId,
        name: &Name,
        request: RequestId,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        if self.was_deleted(set) {
            holdfast_reached::reached!("deletion: asked for again");
            // Done by an earlier copy of this request, or by another one (R12).
            return Ok(ClusterAnswer::SetDeleting { set });
        }
        self.may_be_deleted(set)?;
        let mut entry = self.sets.remove(&set).ok_or(ClusterRefusal::NoSuchSet { set })?;
        if entry.name != *name {
            let (found, expected) = (name.clone(), entry.name.clone());
            self.sets.insert(set, entry);
            return Err(ClusterRefusal::OtherSet { set, found, expected });
        }
        // Every member ends the group, whether it had a part of it or not.
        entry.voters.clear();
        let deletion = Deletion {
            entry,
            request,
            stage: DeletionStage::Ending,
            ended: BTreeSet::new(),
            voters: None,
            store_left: false,
        };
        self.deletions.under_way.insert(set, deletion);
        Ok(ClusterAnswer::SetDeleting { set })
    }

    fn deletion(&mut self, set: SetId) -> Result<Option<&mut Deletion>, ClusterRefusal> {
        if !self.was_deleted(set) {
            return Err(ClusterRefusal::NotBeingDeleted { set });
        }
        // None: it was finished before; this is a late copy (R12).
        Ok(self.deletions.under_way.get_mut(&set))
    }

    pub(super) fn set_ended(
        &mut self,
        set: SetId,
        member: MemberId,
        voters: Option<&GroupVoters>,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        let is_member = self.members.contains_key(&member);
        if let Some(deletion) = self.deletion(set)? {
            if !is_member {
                return Err(ClusterRefusal::NoSuchMember { id: member });
            }
            deletion.ended.insert(member);
            let newer = voters.filter(|told| deletion.voters.as_ref().is_none_or(|known| told.is_better_than(known)));
            deletion.voters = newer.cloned().or(deletion.voters.take());
        }
        Ok(ClusterAnswer::DeletionNoted)
    }

    pub(super) fn forget_set(&mut self, set: SetId, store_left: bool) -> Result<ClusterAnswer, ClusterRefusal> {
        let members: Vec<MemberId> = self.members.keys().copied().collect();
        if let Some(deletion) = self.deletion(set)? {
            if !deletion.fenced(members.iter().copied()) {
                let waits = deletion.waits_for(members).into_iter().collect();
                holdfast_reached::reached!("deletion: the key must not be forgotten yet");
                return Err(ClusterRefusal::SetNotFenced { set, waits });
            }
            if deletion.stage == DeletionStage::Ending {
                deletion.stage = DeletionStage::Forgotten;
                deletion.entry.wrapped_key = Vec::new();
                deletion.store_left = store_left;
            }
        }
        Ok(ClusterAnswer::DeletionNoted)
    }

    /// `ended`: the members that had ended the group before the check that found the store empty.
    pub(super) fn set_emptied(
        &mut self,
        set: SetId,
        ended: &BTreeSet<MemberId>,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        let members: Vec<MemberId> = self.members.keys().copied().collect();
        if let Some(deletion) = self.deletion(set)? {
            if deletion.stage == DeletionStage::Ending {
                holdfast_reached::reached!("deletion: emptied before its key is forgotten");
                return Err(ClusterRefusal::KeyNotForgotten { set });
            }
            deletion.stage = DeletionStage::Emptied;
            // DELETE-D4: each of them has reported that here.
            if members.iter().all(|id| ended.contains(id) && deletion.ended.contains(id)) {
                self.deletions.under_way.remove(&set);
                self.finish(set);
            }
        }
        // Its origin can release its pin.
        self.links.remove(&set);
        Ok(ClusterAnswer::DeletionNoted)
    }

    fn finish(&mut self, set: SetId) {
        self.deletions.finished.push_back(set);
        while self.deletions.finished.len() > FINISHED_MAX {
            if let Some(old) = self.deletions.finished.pop_front() {
                self.requests.retain(|_, made| *made != Made::Set(old));
            }
        }
    }

    pub(super) fn check_deletions(&self) {
        let Deletions { under_way, finished } = &self.deletions;
        for (id, deletion) in under_way {
            assert!(self.was_deleted(*id), "DELETE-D1: set {id} is deleted and exists");
            let has_key = !deletion.entry.wrapped_key.is_empty();
            assert_eq!(
                has_key,
                deletion.stage == DeletionStage::Ending,
                "DELETE-D2: the key of {id} at {:?}",
                deletion.stage
            );
            let named = under_way.values().filter(|other| other.entry.name == deletion.entry.name);
            let taken = named.filter(|other| other.stage < DeletionStage::Emptied).count();
            let lives = usize::from(self.set_named(&deletion.entry.name).is_some());
            assert!(taken + lives <= 1, "DELETE-D3: two sets have the name {}", deletion.entry.name);
        }
        assert!(finished.len() <= FINISHED_MAX, "{} finished deletions", finished.len());
        assert!(
            finished.iter().all(|id| self.was_deleted(*id) && !under_way.contains_key(id)),
            "a deletion is in the list of finished ones and under way"
        );
    }
}

#[cfg(test)]
mod tests;
