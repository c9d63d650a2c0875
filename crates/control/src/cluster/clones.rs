//! Sets that hang together: clones are made under a number that was said before, and come back after what they are clones of (ADR 0028).

use super::command::{ClusterAnswer, SETS_MAX};
use super::refusal::ClusterRefusal;
use super::state::{ClusterState, Made, SetEntry};
use crate::set::{CLONE_DEPTH_MAX, CloneOf, Links, SnapshotList};
use holdfast_types::{GroupId, Placement, SetId};

impl ClusterState {
    /// How many origins there are below the set: 0 for one that is no clone.
    pub fn clone_depth(&self, set: SetId) -> u32 {
        let of = |set: &SetId| self.links.get(set).and_then(|links| links.clone_of.as_ref()).map(|of| of.origin);
        // An origin has a lower number than its clone; the bound is for a state that is not what it should be.
        let chain = std::iter::successors(of(&set), of).take(SETS_MAX);
        chain.count() as u32
    }

    /// S14: made only under the number that its pin names, so that a pin whose number is passed can be judged.
    pub(super) fn clone_set(
        &mut self,
        set: SetId,
        mut entry: SetEntry,
        clone_of: &CloneOf,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        let (origin, request) = (clone_of.origin, clone_of.request);
        if let Some(Made::Set(set)) = self.requests.get(&request).copied() {
            return Ok(ClusterAnswer::SetCreated { set });
        }
        if set.0 != self.next_set {
            return Err(ClusterRefusal::SetIdPassed { found: set, next: GroupId(self.next_set) });
        }
        entry.store_url = self.sets.get(&origin).ok_or(ClusterRefusal::OriginMissing { origin })?.store_url.clone();
        if Placement::parse(&entry.store_url).next.is_some() {
            return Err(ClusterRefusal::OriginMoves { origin });
        }
        if self.clone_depth(origin) >= CLONE_DEPTH_MAX {
            return Err(ClusterRefusal::TooDeep { origin, max: CLONE_DEPTH_MAX });
        }
        let answer = self.create_set(entry, request)?;
        let links = Links { clone_of: Some(clone_of.clone()), ..Links::default() };
        self.links.insert(set, links);
        Ok(answer)
    }

    /// What `links` has of snapshots does not get through the log: `snapshots` counts, at whoever proposed it as well.
    pub(super) fn restore_linked_set(
        &mut self,
        set: SetId,
        entry: SetEntry,
        links: &Links,
        snapshots: SnapshotList,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        let there = self.sets.contains_key(&set);
        if let Some(CloneOf { origin, root, request, .. }) = links.clone_of.as_ref().filter(|_| !there) {
            let (origin, root) = (*origin, *root);
            let found = self.sets.get(&origin).filter(|found| found.store_url == entry.store_url);
            if found.is_none() {
                return Err(ClusterRefusal::OriginMissing { origin });
            }
            let pin = self.links.get(&origin).and_then(|links| links.pins.get(request));
            if pin.is_none_or(|pin| pin.clone != set || pin.root != root) {
                return Err(ClusterRefusal::NotPinned { origin, root: root.object });
            }
        }
        let answer = self.restore_set(set, entry)?;
        if !there {
            self.links.insert(set, Links { snapshots, ..links.clone() }.inherited());
        }
        Ok(answer)
    }
}
