//! Which sets are younger than this process (QUARANTINE-Q5, docs/adr/0065-younger-groups.md). The journal may have
//! lost records before this process began, and cannot tell of which groups. Of a younger set's group nothing can be
//! among them.
//!
//! The proof is the order of group 0. The registration of a life that this process has drawn was proposed after this
//! process had begun. A set that is created behind it in group 0's log was created later still: whoever proposed the
//! creation had the registration in its log. Numbers of sets only grow and none is given twice (CLUSTER-C1), so all
//! sets from the next free number on are younger, once the registration is applied here.
//!
//! Numbers of starts alone would prove nothing: a copy of this disk counts like this one. So the nonce is compared.

use holdfast_control::cluster::ClusterState;
use holdfast_types::{GroupId, MemberId, SetId};

/// The sets that are younger than this process.
#[derive(Debug, Default)]
pub(super) struct Younger {
    /// The first of them; `None` while no registration of this process is applied here.
    from: Option<SetId>,
}

impl Younger {
    /// Looks at group 0's state as applied here. `is_own`: whether this process has drawn the life of this counter and
    /// nonce. A state that already has sets from behind the registration counts them as older.
    pub(super) fn follow(&mut self, state: &ClusterState, me: MemberId, is_own: impl FnOnce(u64, u64) -> bool) {
        if self.from.is_some() {
            return;
        }
        let registered = state.boots.get(&me).is_some_and(|last| is_own(last.boot, last.nonce));
        self.from = registered.then_some(GroupId(state.next_set));
    }

    /// Whether `set` was created after this process had begun. False also if that is not known.
    pub(super) fn has(&self, set: SetId) -> bool {
        self.from.is_some_and(|from| set >= from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::cluster::Boot;

    const ME: MemberId = MemberId(2);

    fn state(boots: &[(MemberId, u64, u64)], next_set: u64) -> ClusterState {
        let boot =
            |(member, boot, nonce): &(MemberId, u64, u64)| (*member, Boot { boot: *boot, nonce: *nonce, level: 1 });
        ClusterState { boots: boots.iter().map(boot).collect(), next_set, ..ClusterState::new() }
    }

    /// QUARANTINE-Q5: this process has drawn (7, 70) and (8, 80).
    fn is_own(boot: u64, nonce: u64) -> bool {
        [(7, 70), (8, 80)].contains(&(boot, nonce))
    }

    #[test]
    fn only_a_set_behind_a_registration_of_this_process_is_younger() {
        let younger = |boots: &[(MemberId, u64, u64)]| {
            let mut younger = Younger::default();
            younger.follow(&state(boots, 5), ME, is_own);
            [4, 5, 6].map(|set| younger.has(GroupId(set)))
        };
        assert_eq!(younger(&[]), [false; 3], "not registered");
        assert_eq!(younger(&[(ME, 6, 60)]), [false; 3], "its last start is");
        assert_eq!(younger(&[(ME, 7, 71)]), [false; 3], "a copy of the disk is");
        assert_eq!(younger(&[(MemberId(1), 7, 70)]), [false; 3], "another member is");
        assert_eq!(younger(&[(ME, 7, 70)]), [false, true, true]);
        assert_eq!(younger(&[(ME, 8, 80)]), [false, true, true], "renewed");
    }

    /// The first state that proves anything stays the proof: a later one has younger sets below its next number.
    #[test]
    fn what_was_younger_stays_so() {
        let mut younger = Younger::default();
        younger.follow(&state(&[(ME, 6, 60)], 3), ME, is_own);
        assert!(!younger.has(GroupId(3)));
        younger.follow(&state(&[(ME, 7, 70)], 5), ME, is_own);
        younger.follow(&state(&[(ME, 8, 80)], 9), ME, is_own);
        assert_eq!([3, 4, 5, 8, 9].map(|set| younger.has(GroupId(set))), [false, false, true, true, true]);
    }
}
