//! The voters of each set (ADR 0053).
//!
//! VOTERS-V1  A set's record names the voters that its group should have, or none: then all members that stay are
//!            meant,
//!     also those that join later. They are changed only from those that the proposer saw, to members that stay, with
//!     at least one gateway that may serve some day. A member that leaves keeps its place in the record until another
//!     one gets it; it counts as a voter no more. The last gateway of a set does not leave: without voters to follow,
//!     the group would shrink to its leader.
//! VOTERS-V2  A gateway runs a set's group if it is named, if it is one of the set's first members and has not left the
//!     group, or if it has something of the group on its disk. It stops it only by VOTERS-V3 (crate `raft`, `leave`).

use super::command::ClusterAnswer;
use super::refusal::ClusterRefusal;
use super::state::{ClusterState, MemberRole, SetEntry, Standing};
use crate::policy::Policy;
use crate::set::FIRST_GENERATION;
use holdfast_types::{Epoch, MemberId, Name, SetId};
use std::collections::{BTreeMap, BTreeSet};

/// The voters of the sets that name them.
pub type Places = BTreeMap<SetId, BTreeSet<MemberId>>;

impl SetEntry {
    /// An empty set, without placement and members.
    pub fn new(name: &Name, wrapped_key: &[u8], key_id: u32, created_by: MemberId) -> Self {
        Self {
            name: name.clone(),
            policy: Policy::default(),
            store_url: String::new(),
            wrapped_key: wrapped_key.to_vec(),
            key_id,
            created_by,
            initial_members: Vec::new(),
            base_epoch: Epoch(0),
            generation: FIRST_GENERATION,
            restored: None,
            voters: BTreeSet::new(),
        }
    }

    /// Whether the record names `member`, or names nobody and so means everybody.
    pub fn has_place_for(&self, member: MemberId) -> bool {
        self.voters.is_empty() || self.voters.contains(&member)
    }
}

impl ClusterState {
    /// The members of `set` that should vote: those of its record that do not leave (VOTERS-V1).
    pub fn voters_of(&self, set: &SetEntry) -> BTreeSet<MemberId> {
        self.staying().into_iter().filter(|id| set.has_place_for(*id)).collect()
    }

    /// The voters of the sets that name them. They stand behind the state in its image: in a state without them every
    /// member votes in each set.
    pub fn places(&self) -> Places {
        let named = self.sets.iter().filter(|(_, entry)| !entry.voters.is_empty());
        named.map(|(id, entry)| (*id, entry.voters.clone())).collect()
    }

    /// The state of an image, with the voters from behind it.
    #[must_use]
    pub fn with_places(mut self, mut places: Places) -> Self {
        for (id, entry) in &mut self.sets {
            entry.voters = places.remove(id).unwrap_or_default();
        }
        self
    }

    /// A set of which a gateway in `region` would get the votes of `old`, although its policy forbids that region.
    pub fn barred_from(&self, old: MemberId, region: &Name) -> Option<&SetEntry> {
        self.sets.values().find(|entry| entry.has_place_for(old) && entry.policy.forbidden.contains(region))
    }

    /// Whether one of `voters` stays, and may serve some day.
    pub(super) fn one_serves<'a>(&self, voters: impl IntoIterator<Item = &'a MemberId>) -> bool {
        let mut known = voters.into_iter().filter_map(|id| self.members.get(id));
        known.any(|member| member.role == MemberRole::Gateway && member.standing != Standing::Leaving)
    }

    /// A set that names voters of which none could serve without `id` (VOTERS-V1).
    pub(super) fn left_without(&self, id: MemberId) -> Option<SetId> {
        let others = |entry: &SetEntry| self.one_serves(entry.voters.iter().filter(|voter| **voter != id));
        let needs = |(_, entry): &(&SetId, &SetEntry)| entry.voters.contains(&id) && !others(entry);
        self.sets.iter().find(needs).map(|(set, _)| *set)
    }

    /// A set that names voters of which none would be left without `id`.
    pub(super) fn empty_without(&self, id: MemberId) -> Option<SetId> {
        let alone =
            |entry: &SetEntry| entry.voters.contains(&id) && self.voters_of(entry).iter().all(|left| *left == id);
        self.sets.iter().find(|(_, entry)| alone(entry)).map(|(set, _)| *set)
    }

    /// For each set that names voters, one of them stays: its group is never to have none.
    pub(super) fn check_places(&self) {
        for (set, entry) in self.sets.iter().filter(|(_, entry)| !entry.voters.is_empty()) {
            assert!(
                !self.voters_of(entry).is_empty(),
                "VOTERS-V1: none of the voters of {set} stays: {:?}",
                entry.voters
            );
        }
    }

    /// VOTERS-V1. A repeat of the same change gets the same answer (R12).
    pub(super) fn place_voters(
        &mut self,
        set: SetId,
        from: &BTreeSet<MemberId>,
        to: &BTreeSet<MemberId>,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        let entry = self.sets.get(&set).ok_or(ClusterRefusal::NoSuchSet { set })?;
        if to.is_empty() {
            return Err(ClusterRefusal::BadMembers { found: Vec::new() });
        }
        if entry.voters == *to {
            return Ok(ClusterAnswer::VotersPlaced);
        }
        let seen = entry.voters == *from || entry.voters.is_empty() && self.voters_of(entry) == *from;
        if !seen {
            return Err(ClusterRefusal::VotersChanged { set, found: entry.voters.iter().copied().collect() });
        }
        for id in to {
            let member = self.members.get(id).ok_or_else(|| self.no_member(*id))?;
            if member.standing == Standing::Leaving {
                return Err(ClusterRefusal::MemberLeaving { id: *id });
            }
        }
        if !self.one_serves(to) {
            return Err(ClusterRefusal::NobodyServes { set, found: to.iter().copied().collect() });
        }
        if let Some(entry) = self.sets.get_mut(&set) {
            entry.voters.clone_from(to);
        }
        Ok(ClusterAnswer::VotersPlaced)
    }

    /// `new` replaces `old`, and gets its place in each set that names voters.
    pub(super) fn pass_place_on(&mut self, old: MemberId, new: MemberId) {
        for entry in self.sets.values_mut() {
            if entry.voters.remove(&old) {
                entry.voters.insert(new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{ClusterCommand, Member, member};
    use holdfast_types::{GroupId, LogId, RequestId};

    const SET: SetId = GroupId(1);

    fn ids(of: &[u64]) -> BTreeSet<MemberId> {
        of.iter().copied().map(MemberId).collect()
    }

    fn apply(state: &mut ClusterState, command: ClusterCommand) -> ClusterAnswer {
        let answer = state.apply(LogId::new(1, 1), &command);
        state.self_check();
        answer
    }

    fn add(number: u64, role: MemberRole, replaces: Option<u64>) -> ClusterCommand {
        let member = Member { role, ..member(0, &format!("g{number}"), number.into()) };
        ClusterCommand::AddMember { member, replaces: replaces.map(MemberId), request: RequestId(number.into()) }
    }

    /// Four gateways, a witness, and a set on `on`.
    fn cluster(on: &[u64]) -> ClusterState {
        let mut state = ClusterState::new();
        for number in 1..=5 {
            let role = if number == 5 { MemberRole::Witness } else { MemberRole::Gateway };
            apply(&mut state, add(number, role, None));
        }
        let create = ClusterCommand::CreateSet {
            name: Name::new("demo").expect("name"),
            policy: crate::policy::Policy::default(),
            store: "file:///s".into(),
            wrapped_key: vec![1],
            key_id: 1,
            members: on.iter().copied().map(MemberId).collect(),
            created_by: MemberId(1),
            base_epoch: Epoch(0),
            request: RequestId(99),
        };
        assert_eq!(apply(&mut state, create), ClusterAnswer::SetCreated { set: SET });
        state
    }

    fn place(state: &mut ClusterState, from: &[u64], to: &[u64]) -> ClusterAnswer {
        apply(state, ClusterCommand::PlaceVoters { set: SET, from: ids(from), to: ids(to) })
    }

    #[test]
    fn voters_change_only_from_those_that_were_seen() {
        let mut state = cluster(&[1, 2, 3]);
        assert_eq!(state.voters_of(&state.sets[&SET]), ids(&[1, 2, 3]));
        assert_eq!(place(&mut state, &[1, 2, 3], &[2, 3, 4]), ClusterAnswer::VotersPlaced);
        assert_eq!(place(&mut state, &[1, 2, 3], &[2, 3, 4]), ClusterAnswer::VotersPlaced, "R12");
        let found = [2, 3, 4].map(MemberId).to_vec();
        let changed = ClusterAnswer::Refused(ClusterRefusal::VotersChanged { set: SET, found });
        assert_eq!(place(&mut state, &[1, 2, 3], &[1, 2]), changed, "VOTERS-V1: a late copy");
        assert_eq!(place(&mut state, &[], &[1, 2]), changed, "VOTERS-V1: it names voters");
        assert_eq!(state.sets[&SET].voters, ids(&[2, 3, 4]));
        let unknown = ClusterCommand::PlaceVoters { set: GroupId(7), from: ids(&[]), to: ids(&[1]) };
        let none = ClusterAnswer::Refused(ClusterRefusal::NoSuchSet { set: GroupId(7) });
        assert_eq!(apply(&mut state, unknown), none);
    }

    #[test]
    fn voters_are_members_that_stay_and_one_of_them_a_gateway() {
        let mut state = cluster(&[1, 2, 3]);
        let leaves = ClusterCommand::SetStanding { id: MemberId(4), standing: Standing::Leaving };
        apply(&mut state, leaves);
        let mut refused = |to: &[u64]| match place(&mut state, &[1, 2, 3], to) {
            ClusterAnswer::Refused(refusal) => refusal,
            other => panic!("{to:?}: {other:?}"),
        };
        assert_eq!(refused(&[]), ClusterRefusal::BadMembers { found: Vec::new() });
        assert_eq!(refused(&[1, 9]), ClusterRefusal::NoSuchMember { id: MemberId(9) });
        assert_eq!(refused(&[1, 4]), ClusterRefusal::MemberLeaving { id: MemberId(4) });
        assert_eq!(refused(&[5]), ClusterRefusal::NobodyServes { set: SET, found: vec![MemberId(5)] });
        assert_eq!(place(&mut state, &[1, 2, 3], &[1, 5]), ClusterAnswer::VotersPlaced);
    }

    /// A set that names nobody means all that stay, whoever they are by then.
    #[test]
    fn a_record_without_voters_means_all_that_stay() {
        let mut state = cluster(&[]);
        assert_eq!(state.voters_of(&state.sets[&SET]), ids(&[1, 2, 3, 4, 5]));
        assert_eq!(state.sets[&SET].initial_members.len(), 5);
        apply(&mut state, add(6, MemberRole::Gateway, None));
        apply(&mut state, ClusterCommand::SetStanding { id: MemberId(1), standing: Standing::Leaving });
        assert_eq!(state.voters_of(&state.sets[&SET]), ids(&[2, 3, 4, 5, 6]));
        assert!(state.sets[&SET].has_place_for(MemberId(1)), "it runs the group as long as it is a member");
        assert_eq!(place(&mut state, &[2, 3, 4, 5, 6], &[2, 3]), ClusterAnswer::VotersPlaced);
        let mut other = cluster(&[]);
        assert_eq!(place(&mut other, &[], &[2, 3]), ClusterAnswer::VotersPlaced);
    }

    /// ADR 0019: a replacement is an addition and a removal in one change of voters.
    #[test]
    fn who_replaces_a_voter_gets_its_place() {
        let mut state = cluster(&[1, 2, 3]);
        apply(&mut state, add(6, MemberRole::Gateway, Some(2)));
        assert_eq!(state.sets[&SET].voters, ids(&[1, 3, 6]));
        apply(&mut state, add(7, MemberRole::Gateway, Some(4)));
        assert_eq!(state.sets[&SET].voters, ids(&[1, 3, 6]), "4 was none of its voters");
        apply(&mut state, ClusterCommand::SetStanding { id: MemberId(3), standing: Standing::Leaving });
        assert_eq!(state.voters_of(&state.sets[&SET]), ids(&[1, 6]));
        assert_eq!(state.sets[&SET].voters, ids(&[1, 3, 6]), "its place is kept for another one");
    }

    #[test]
    fn a_place_in_a_forbidden_region_is_not_passed_on() {
        let region = |name: &str| Name::new(name).expect("name");
        for (on, old, barred) in [(&[1, 2, 3][..], 2, true), (&[1, 2, 3][..], 4, false), (&[][..], 4, true)] {
            let mut state = cluster(on);
            state.sets.get_mut(&SET).expect("the set").policy.forbidden.insert(region("us"));
            assert_eq!(state.barred_from(MemberId(old), &region("us")).is_some(), barred, "{on:?}, m{old}");
            assert!(state.barred_from(MemberId(old), &region("eu")).is_none());
        }
    }

    /// The group's leader would follow a record without voters, down to itself.
    #[test]
    fn the_last_gateway_of_a_set_does_not_leave() {
        let mut state = cluster(&[1, 2, 5]);
        let leaves = |id| ClusterCommand::SetStanding { id: MemberId(id), standing: Standing::Leaving };
        assert_eq!(apply(&mut state, leaves(1)), ClusterAnswer::StandingSet);
        let last = ClusterAnswer::Refused(ClusterRefusal::LastVoter { id: MemberId(2), set: SET });
        assert_eq!(apply(&mut state, leaves(2)), last, "m5 is a witness");
        assert_eq!(apply(&mut state, leaves(1)), ClusterAnswer::StandingSet, "R12");
        assert_eq!(place(&mut state, &[1, 2, 5], &[3]), ClusterAnswer::VotersPlaced);
        assert_eq!(apply(&mut state, leaves(2)), ClusterAnswer::StandingSet);
        assert_eq!(
            apply(&mut state, add(6, MemberRole::Gateway, Some(3))),
            ClusterAnswer::MemberAdded { id: MemberId(6) }
        );
        assert_eq!(state.voters_of(&state.sets[&SET]), ids(&[6]));
        let gone = |id| ClusterCommand::RemoveMember { id: MemberId(id) };
        let last = ClusterAnswer::Refused(ClusterRefusal::LastVoter { id: MemberId(6), set: SET });
        assert_eq!(apply(&mut state, gone(6)), last);
        assert_eq!(apply(&mut state, gone(2)), ClusterAnswer::MemberRemoved);
        let mut state = cluster(&[]);
        apply(&mut state, leaves(3));
        let create = ClusterCommand::CreateSet {
            name: Name::new("other").expect("name"),
            policy: crate::policy::Policy::default(),
            store: "file:///s".into(),
            wrapped_key: vec![1],
            key_id: 1,
            members: vec![MemberId(3), MemberId(5)],
            created_by: MemberId(1),
            base_epoch: Epoch(0),
            request: RequestId(98),
        };
        let found = vec![MemberId(3), MemberId(5)];
        let nobody = ClusterAnswer::Refused(ClusterRefusal::NobodyServes { set: GroupId(2), found });
        assert_eq!(apply(&mut state, create), nobody);
    }

    #[test]
    fn a_state_and_the_places_behind_it_are_the_whole_state() {
        let state = cluster(&[1, 2, 3]);
        let bytes = postcard::to_stdvec(&state).expect("encodes");
        let older: ClusterState = postcard::from_bytes(&bytes).expect("decodes");
        assert_eq!(older.voters_of(&older.sets[&SET]), ids(&[1, 2, 3, 4, 5]), "a state without places: all that stay");
        assert_eq!(older.with_places(state.places()), state);
        assert!(cluster(&[]).places().is_empty());
    }
}
