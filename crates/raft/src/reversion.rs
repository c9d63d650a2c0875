//! Detects a follower whose log went backwards: an entry that it acknowledged is gone (a restored or a copied machine,
//! or a lost last journal file). openraft's check is a debug assertion; this one is always on. The leader remembers
//! what each follower has acknowledged in its term, and tells a follower that denies it. That follower quarantines the
//! group and ends its process (R11). Its next start is healed (`quarantine`).
//!
//! REVERSION-V1  Within one term of one leader no acknowledged entry goes away: only a leader of a later term
//!     truncates, and then the answer to this leader is a higher vote, not a conflict.

use holdfast_types::sync::LockExt;
use holdfast_types::{LogId, MemberId};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// The newest entry that each follower has acknowledged to this leader, and the term.
#[derive(Default)]
pub(crate) struct Acked(Mutex<BTreeMap<MemberId, (u64, LogId)>>);

impl Acked {
    pub(crate) fn note(&self, member: MemberId, term: u64, matched: LogId) {
        let mut all = self.0.locked();
        let known = all.entry(member).or_insert((term, matched));
        *known = (*known).max((term, matched));
    }

    /// Forgets members that were removed from the group: they may come back with an empty log.
    pub(crate) fn keep_only(&self, keep: impl Fn(MemberId) -> bool) {
        self.0.locked().retain(|member, _| keep(*member));
    }

    /// The entry that `member` had acknowledged in `term`, if its conflict at `conflict` denies it (REVERSION-V1).
    pub(crate) fn denied(&self, member: MemberId, term: u64, conflict: LogId) -> Option<LogId> {
        let all = self.0.locked();
        holdfast_reached::reached!(
            "reversion: a conflict in another term denies nothing",
            all.get(&member).is_some_and(|(t, acked)| *t != term && conflict.index <= acked.index)
        );
        all.get(&member).filter(|(t, acked)| *t == term && conflict.index <= acked.index).map(|(_, acked)| *acked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_acknowledged_in_this_term_can_be_denied() {
        let (acked, m) = (Acked::default(), MemberId(2));
        let id = |term, index| LogId::new(term, index);
        assert_eq!(acked.denied(m, 5, id(5, 10)), None, "a probe of a new follower");
        acked.note(m, 5, id(4, 10));
        acked.note(m, 5, id(4, 8));
        assert_eq!(acked.denied(m, 5, id(5, 11)), None, "beyond what it acknowledged");
        assert_eq!(acked.denied(m, 5, id(4, 10)), Some(id(4, 10)));
        assert_eq!(acked.denied(m, 5, id(4, 3)), Some(id(4, 10)), "never backwards");
        assert_eq!(acked.denied(m, 6, id(4, 3)), None, "another term's leader may have truncated it");
        assert_eq!(acked.denied(MemberId(3), 5, id(4, 3)), None);
        acked.note(m, 6, id(4, 2));
        assert_eq!(acked.denied(m, 6, id(4, 3)), None);
        assert_eq!(acked.denied(m, 6, id(4, 2)), Some(id(4, 2)));
        acked.keep_only(|_| true);
        assert_eq!(acked.denied(m, 6, id(4, 2)), Some(id(4, 2)));
        acked.keep_only(|other| other != m);
        assert_eq!(acked.denied(m, 6, id(4, 2)), None, "a newcomer");
    }
}
