//! Clones in group 0: creation under a number announced before, and recovery after their origin (ADR 0028).

use super::command::{ClusterAnswer, SETS_MAX};
use super::refusal::ClusterRefusal;
use super::state::{ClusterState, Made, SetEntry};
use crate::set::{CLONE_DEPTH_MAX, CloneOf, Links, Pin, PinStanding, SetState};
use holdfast_types::{GroupId, Placement, RequestId, SetId};

impl ClusterState {
    /// Number of origins below the set: 0 if it is no clone.
    pub fn clone_depth(&self, set: SetId) -> u32 {
        let of = |set: &SetId| self.links.get(set).and_then(|links| links.clone_of.as_ref()).map(|of| of.origin);
        // An origin has a lower number than its clone; the bound guards against an invalid state.
        let chain = std::iter::successors(of(&set), of).take(SETS_MAX);
        chain.count() as u32
    }

    /// SET-S14: creates the clone only under the number in its pin, so that a pin can be judged once its number was
    /// passed.
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
        let of = self.sets.get(&origin).ok_or(ClusterRefusal::OriginMissing { origin })?;
        // A region that is forbidden to the origin is forbidden to what shares its data.
        (entry.store_url, entry.policy) = (of.store_url.clone(), of.policy.clone());
        // Until the planner has looked, only the origin's voters are known to be where it may be.
        if !of.voters.is_empty() {
            entry.voters = self.voters_of(of);
            entry.initial_members = entry.voters.iter().copied().collect();
        }
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
}

impl Pin {
    /// SET-S14. `cluster` may be stale: set numbers are given in order and once, so its answer for a passed number
    /// stays true.
    pub fn standing(&self, cluster: &ClusterState, origin: SetId, request: RequestId) -> PinStanding {
        let made = cluster.links.get(&self.clone).and_then(|links| links.clone_of.as_ref());
        // A set being deleted has a head until its store was emptied; a recovery before that would bring it back.
        let ours = (cluster.sets.contains_key(&self.clone) || cluster.is_going(self.clone))
            && made.is_some_and(|of| of.origin == origin && of.request == request);
        match (ours, self.is_inherited()) {
            (true, true) => PinStanding::Confirm,
            // A clone that a recovery has not brought back yet: its objects stay.
            (true, false) | (false, true) => PinStanding::Needed,
            (false, false) if cluster.next_set > self.clone.0 => PinStanding::Over,
            (false, false) => PinStanding::Needed,
        }
    }
}

impl SetState {
    /// A clone with a pinned root that the cluster does not know: no recovery has brought it back, and its objects
    /// would be deleted with this set's.
    pub fn lost_clone(&self, cluster: &ClusterState, origin: SetId) -> Option<SetId> {
        let lost = |request: RequestId, pin: &Pin| {
            !cluster.sets.contains_key(&pin.clone)
                && !cluster.is_going(pin.clone)
                && pin.standing(cluster, origin, request) == PinStanding::Needed
        };
        self.pins().find(|(request, pin)| lost(*request, pin)).map(|(_, pin)| pin.clone)
    }
}
