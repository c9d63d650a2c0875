//! Changes of a set's stores, step by step (ADR 0018). The set's leader fulfils each step's conditions at the stores;
//! group 0 orders the steps.

use super::command::{ClusterAnswer, STORE_URL_BYTES_MAX};
use super::refusal::ClusterRefusal;
use super::state::ClusterState;
use holdfast_types::{Placement, SetId};

/// Bytes of the longest single list of stores in a placement: a recovery takes each list by itself.
pub(super) fn longest_list(placement: &str) -> usize {
    let Placement { stores, next } = Placement::parse(placement);
    stores.len().max(next.map_or(0, |(_, to)| to.len()))
}

/// Whether a set with this placement needs builds that know changes of stores: one is or was made.
pub fn was_changed(placement: &str) -> bool {
    Placement::parse(placement).next.is_some() || placement.starts_with("c=")
}

impl ClusterState {
    /// PLACE-P1: one step, from the placement that its proposer saw. A repeat of the same step gets the same answer
    /// (R12).
    pub(super) fn place_set(
        &mut self,
        set: SetId,
        expected: &str,
        placement: &str,
    ) -> Result<ClusterAnswer, ClusterRefusal> {
        let found = self.sets.get(&set).ok_or(ClusterRefusal::NoSuchSet { set })?.store_url.clone();
        if found == placement {
            return Ok(ClusterAnswer::Placed);
        }
        if found != expected {
            return Err(ClusterRefusal::PlacementChanged { set, found });
        }
        let (from, to) = (Placement::parse(&found), Placement::parse(placement));
        let refused =
            |why: String| ClusterRefusal::NoSuchStep { set, found: found.clone(), wished: placement.to_owned(), why };
        let bytes = longest_list(placement);
        if bytes > STORE_URL_BYTES_MAX {
            return Err(refused(format!("{bytes} bytes, expected at most {STORE_URL_BYTES_MAX}")));
        }
        if !from.may_become(&to) {
            let why = "only one change at a time is possible; it can be abandoned while the stores are filled, and not after that";
            return Err(refused(why.to_owned()));
        }
        // A change under way has passed this check before: no clone is made meanwhile.
        if let (None, Some(other)) = (&from.next, self.linked_with(set)) {
            return Err(ClusterRefusal::Linked { set, other });
        }
        if let Some(entry) = self.sets.get_mut(&set) {
            placement.clone_into(&mut entry.store_url);
        }
        Ok(ClusterAnswer::Placed)
    }

    /// Its origin, or one of its clones.
    fn linked_with(&self, set: SetId) -> Option<SetId> {
        let origin_of = |set: SetId| self.links.get(&set).and_then(|links| links.clone_of.as_ref()).map(|of| of.origin);
        let clone = self.sets.keys().copied().find(|clone| origin_of(*clone) == Some(set));
        let origin = origin_of(set).filter(|origin| self.sets.contains_key(origin));
        origin.or(clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ClusterCommand;
    use holdfast_types::{Epoch, GroupId, LogId, LogIndex, MemberId, RequestId, Term};

    const SET: SetId = GroupId(1);

    fn apply(state: &mut ClusterState, command: ClusterCommand) -> ClusterAnswer {
        state.apply(LogId { term: Term(1), index: LogIndex(1) }, &command)
    }

    fn with_set() -> ClusterState {
        let mut state = ClusterState::new();
        let member = crate::cluster::Member {
            id: MemberId(0),
            name: "g1".parse().expect("name"),
            disk: 1,
            peer_addr: "h:1".into(),
            api_addr: "h:2".into(),
            nbd_addr: "h:3".into(),
            locality: "region=r".parse().expect("locality"),
            role: crate::cluster::MemberRole::Gateway,
            standing: crate::cluster::Standing::Active,
        };
        apply(&mut state, ClusterCommand::AddMember { member, replaces: None, request: RequestId(9) });
        let created = ClusterCommand::CreateSet {
            name: "demo".parse().expect("name"),
            policy: crate::policy::Policy::default(),
            store: "a".into(),
            wrapped_key: vec![1],
            key_id: 1,
            members: Vec::new(),
            created_by: MemberId(1),
            base_epoch: Epoch(0),
            request: RequestId(1),
        };
        assert_eq!(apply(&mut state, created), ClusterAnswer::SetCreated { set: SET });
        state
    }

    fn place(state: &mut ClusterState, expected: &str, placement: &str) -> ClusterAnswer {
        apply(state, ClusterCommand::PlaceSet { set: SET, expected: expected.into(), placement: placement.into() })
    }

    #[test]
    fn a_change_goes_step_by_step_and_each_step_once() {
        let mut state = with_set();
        for (expected, placement) in
            [("a", "a | b"), ("a", "a | b"), ("a | b", "a => b"), ("a => b", "b"), ("a => b", "b")]
        {
            assert_eq!(place(&mut state, expected, placement), ClusterAnswer::Placed, "{placement}");
            assert_eq!(state.sets[&SET].store_url, placement);
        }
        let late = place(&mut state, "a | b", "a");
        assert!(matches!(late, ClusterAnswer::Refused(ClusterRefusal::PlacementChanged { .. })), "{late:?}");
        let wrong = place(&mut state, "b", "b => c");
        assert!(matches!(wrong, ClusterAnswer::Refused(ClusterRefusal::NoSuchStep { .. })), "{wrong:?}");
        assert_eq!(state.sets[&SET].store_url, "b");
    }

    /// From then on a leader may end the change, whatever it has not heard of yet.
    #[test]
    fn what_is_decided_is_not_abandoned() {
        let mut state = with_set();
        place(&mut state, "a", "a | b");
        assert_eq!(place(&mut state, "a | b", "a"), ClusterAnswer::Placed, "before");
        place(&mut state, "a", "a | b");
        place(&mut state, "a | b", "a => b");
        let late = place(&mut state, "a => b", "a");
        assert!(matches!(late, ClusterAnswer::Refused(ClusterRefusal::NoSuchStep { .. })), "{late:?}");
    }

    #[test]
    fn sets_that_share_what_they_have_stay_where_they_are() {
        let mut state = with_set();
        let object = holdfast_types::ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: 7 };
        let root = crate::set::RootRef { object, bytes: 1 };
        let snapshot = "monday".parse().expect("name");
        let clone_of = crate::set::CloneOf { origin: SET, snapshot, root, request: RequestId(5) };
        let clone = ClusterCommand::CloneSet {
            set: GroupId(2),
            name: "clone".parse().expect("name"),
            clone_of,
            wrapped_key: vec![1],
            key_id: 1,
            created_by: MemberId(1),
            restored: crate::set::Restored::default(),
        };
        place(&mut state, "a", "a | b");
        let refused = apply(&mut state, clone.clone());
        assert_eq!(refused, ClusterAnswer::Refused(ClusterRefusal::OriginMoves { origin: SET }));
        place(&mut state, "a | b", "a");
        assert_eq!(apply(&mut state, clone), ClusterAnswer::SetCreated { set: GroupId(2) });
        for (set, other) in [(SET, GroupId(2)), (GroupId(2), SET)] {
            let step = ClusterCommand::PlaceSet { set, expected: "a".into(), placement: "a | b".into() };
            assert_eq!(apply(&mut state, step), ClusterAnswer::Refused(ClusterRefusal::Linked { set, other }));
        }
    }

    /// A recovery starts from the placement that an interrupted change left.
    #[test]
    fn no_list_is_longer_than_a_recovery_takes() {
        let mut state = with_set();
        let long = "b".repeat(STORE_URL_BYTES_MAX);
        assert_eq!(place(&mut state, "a", &format!("a | {long}")), ClusterAnswer::Placed);
        assert_eq!(place(&mut state, &format!("a | {long}"), "a"), ClusterAnswer::Placed);
        let refused = place(&mut state, "a", &format!("a | {long}b"));
        assert!(matches!(refused, ClusterAnswer::Refused(ClusterRefusal::NoSuchStep { .. })), "{refused:?}");
        let both = format!("{long} => {}", "c".repeat(STORE_URL_BYTES_MAX));
        assert_eq!(longest_list(&both), STORE_URL_BYTES_MAX);
        assert_eq!(longest_list(&format!("{both}c")), STORE_URL_BYTES_MAX + 1);
        assert!(was_changed(&both) && was_changed("c=2 file:///a") && !was_changed("file:///a"));
    }
}
