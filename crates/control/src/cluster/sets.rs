//! Sets in group 0: creation, recovery from a store, and keys.

use super::command::{ClusterAnswer, SETS_MAX, STORE_URL_BYTES_MAX, WRAPPED_KEY_BYTES_MAX};
use super::placement::longest_list;
use super::refusal::ClusterRefusal;
use super::state::{ClusterState, Made, SetEntry};
use crate::policy::Policy;
use crate::set::{CloneOf, FIRST_GENERATION, GENERATION_MAX, Links};
use holdfast_types::{GroupId, MemberId, RequestId, SetId};
use std::collections::BTreeSet;

impl ClusterState {
    pub(super) fn create_set(
        &mut self,
        mut entry: SetEntry,
        request: RequestId,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        match self.requests.get(&request).copied() {
            // A late copy: it must not create a deleted set again.
            Some(Made::Set(set)) if self.was_deleted(set) => return Err(ClusterRefusal::SetDeleted { set }),
            Some(Made::Set(set)) => return Ok(ClusterAnswer::SetCreated { set }),
            Some(Made::Member(_)) => return Err(ClusterRefusal::RequestReused { request }),
            None => {}
        }
        self.name_is_free(&entry.name)?;
        entry.policy.check().map_err(|why| ClusterRefusal::BadPolicy { why })?;
        check_length("store URL", entry.store_url.len(), STORE_URL_BYTES_MAX)?;
        check_length("wrapped key", entry.wrapped_key.len(), WRAPPED_KEY_BYTES_MAX)?;
        let voters: BTreeSet<MemberId> = if entry.initial_members.is_empty() {
            self.staying().into_iter().collect()
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
        if !entry.voters.is_empty() && !self.one_serves(&entry.voters) {
            return Err(ClusterRefusal::NobodyServes { set, found: entry.initial_members });
        }
        self.next_set = next;
        entry.initial_members = voters.into_iter().collect();
        self.sets.insert(set, entry);
        self.requests.insert(request, Made::Set(set));
        Ok(ClusterAnswer::SetCreated { set })
    }

    /// The numbers up to this one are taken in a store.
    pub(super) fn pass_sets(&mut self, upto: SetId) -> ClusterAnswer {
        self.next_set = self.next_set.max(upto.0.saturating_add(1));
        ClusterAnswer::SetsPassed
    }

    /// A set comes back from its store.
    pub(super) fn restore_set(
        &mut self,
        set: SetId,
        entry: SetEntry,
        links: &Links,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        if let Some(present) = self.sets.get(&set) {
            // An earlier copy of this request, or an earlier run of the same recovery (R12).
            let same = present.generation == entry.generation && present.name == entry.name;
            let taken = ClusterRefusal::SetIdTaken { set, found: Some(present.name.clone()) };
            return if same { Ok(ClusterAnswer::SetCreated { set }) } else { Err(taken) };
        }
        self.origin_is_there(set, &entry, links)?;
        // CLUSTER-C1: a number below the next one was given out here.
        let Some(next) = set.0.checked_add(1).filter(|_| set.0 >= self.next_set) else {
            return Err(ClusterRefusal::SetIdTaken { set, found: None });
        };
        self.name_is_free(&entry.name)?;
        // Of two lists each by itself.
        let longest = longest_list(&entry.store_url);
        check_length("store URL", longest, STORE_URL_BYTES_MAX)?;
        check_length("wrapped key", entry.wrapped_key.len(), WRAPPED_KEY_BYTES_MAX)?;
        if entry.generation <= FIRST_GENERATION || entry.generation > GENERATION_MAX {
            return Err(ClusterRefusal::BadGeneration { found: entry.generation, max: GENERATION_MAX });
        }
        if !self.members.contains_key(&entry.created_by) {
            return Err(ClusterRefusal::NoSuchMember { id: entry.created_by });
        }
        if self.sets_counted() >= SETS_MAX {
            return Err(ClusterRefusal::TooManySets { max: SETS_MAX as u32 });
        }
        self.next_set = next;
        self.sets.insert(set, entry);
        let links = links.inherited();
        if links != Links::default() {
            self.links.insert(set, links);
        }
        Ok(ClusterAnswer::SetCreated { set })
    }

    /// A clone can be restored only after its origin, with the pin for the clone.
    fn origin_is_there(&self, set: SetId, entry: &SetEntry, links: &Links) -> Result<(), ClusterRefusal> {
        let Some(CloneOf { origin, root, request, .. }) = &links.clone_of else { return Ok(()) };
        let (origin, root) = (*origin, *root);
        if self.sets.get(&origin).is_none_or(|found| found.store_url != entry.store_url) {
            return Err(ClusterRefusal::OriginMissing { origin });
        }
        let pin = self.links.get(&origin).and_then(|links| links.pins.get(request));
        if pin.is_none_or(|pin| pin.clone != set || pin.root != root) {
            return Err(ClusterRefusal::NotPinned { origin, root: root.object });
        }
        Ok(())
    }

    /// What a set asks of its voters. Whether the members can meet it depends on who is alive, and is the proposer's
    /// check.
    pub(super) fn set_policy(
        &mut self,
        set: SetId,
        expected: &Policy,
        policy: &Policy,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        policy.check().map_err(|why| ClusterRefusal::BadPolicy { why })?;
        let entry = self.sets.get_mut(&set).ok_or(ClusterRefusal::NoSuchSet { set })?;
        // An earlier copy of this request (R12) finds the policy changed.
        if entry.policy != *policy {
            if entry.policy != *expected {
                return Err(ClusterRefusal::PolicyChanged { set, found: entry.policy.to_string() });
            }
            entry.policy = policy.clone();
        }
        Ok(ClusterAnswer::PolicySet)
    }

    pub(super) fn swap_keys(
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
}

pub(super) fn check_length(what: &str, found: usize, max: usize) -> Result<(), ClusterRefusal> {
    if found == 0 || found > max {
        return Err(ClusterRefusal::BadLength { what: what.to_owned(), found: found as u64, max: max as u64 });
    }
    Ok(())
}
