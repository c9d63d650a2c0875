//! How much the members of a group lack of its leader's log, by the leader's own view.

use holdfast_control::members::{CLOSE_ENTRIES, is_close};
use holdfast_raft::{GroupStatus, LACKS_COUNTED_MAX, MemberStatus};

// Otherwise a member that is close could have uncounted bytes, and would never count as close.
const _: () = assert!(LACKS_COUNTED_MAX >= CLOSE_ENTRIES);

/// What a member lacks: entries, and bytes of these. `u64::MAX`: unknown.
pub(crate) fn lacks(status: &GroupStatus, seen: &MemberStatus) -> (u64, u64) {
    let last = status.last.map_or(0, |last| last.0);
    let entries = seen.matched.map_or(u64::MAX, |at| last.saturating_sub(at.0));
    (entries, if entries == 0 { 0 } else { seen.lacks_bytes })
}

/// Whether it has nearly everything.
pub(crate) fn is_near(status: &GroupStatus, seen: &MemberStatus) -> bool {
    let (entries, bytes) = lacks(status, seen);
    is_close(entries, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::members::CLOSE_BYTES;
    use holdfast_raft::Leadership;
    use holdfast_types::{GroupId, LogIndex, MemberId, Term};
    use std::time::Duration;

    /// A voter that answers, and lacks so many of 5,000 entries.
    fn seen(id: u64, entries: u64, lacks_bytes: u64) -> MemberStatus {
        MemberStatus {
            member: MemberId(id),
            voter: true,
            matched: Some(LogIndex(5000 - entries)),
            lacks_bytes,
            silent: Some(Duration::ZERO),
            addr: String::new(),
        }
    }

    fn status(members: Vec<MemberStatus>) -> GroupStatus {
        GroupStatus {
            group: GroupId(4),
            leadership: Leadership::default(),
            voted: Term(1),
            last: Some(LogIndex(5000)),
            applied: None,
            snapshot: None,
            purged: None,
            live_bytes: 0,
            members,
            settled: true,
            membership: None,
            next: None,
        }
    }

    /// A gateway that lacked a gibibyte took over as if it had everything, and its clients waited for that.
    #[test]
    fn a_few_large_entries_are_not_nearly_nothing() {
        let of = |entries, bytes| is_near(&status(Vec::new()), &seen(2, entries, bytes));
        assert!(of(0, u64::MAX), "the last entry has come since the bytes were counted");
        assert!(of(1024, CLOSE_BYTES) && !of(1025, 1025 << 12));
        assert!(!of(1000, 1000 << 20) && !of(1, u64::MAX));
        let unknown = MemberStatus { matched: None, ..seen(2, 0, 0) };
        assert!(!is_near(&status(Vec::new()), &unknown));
    }
}
