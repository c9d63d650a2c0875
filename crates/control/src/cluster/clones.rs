//! Sets that hang together: clones are made under a number that was said before, and come back after what they are clones of (ADR 0028).

use super::command::{ClusterAnswer, SETS_MAX, STORE_URL_BYTES_MAX, WRAPPED_KEY_BYTES_MAX};
use super::placement::longest_list;
use super::refusal::ClusterRefusal;
use super::state::{ClusterState, Made, SetEntry, check_length};
use crate::set::{CLONE_DEPTH_MAX, CloneOf, FIRST_GENERATION, GENERATION_MAX, Links};
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
        // C1: a number below the next one was given away here.
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

    /// A clone comes back only after its origin, which has pinned what the clone shows.
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
}
