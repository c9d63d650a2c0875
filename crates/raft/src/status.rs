//! What a group reports about itself.

use holdfast_types::{GroupId, LogId, LogIndex, MemberId, MonoTime, Term};
use std::collections::BTreeSet;
use std::time::Duration;

/// What a quorum has answered to a leader (R3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acked {
    /// When the heartbeats that it answered were sent, or later.
    pub sent: MonoTime,
    /// Until when it votes for nobody else, by the leader's clock: the leader may read for so long.
    pub until: MonoTime,
    /// The shortest time for which one of its answers lets the leader read. Only the drift margin of these times is
    /// between the end of that and a vote for another.
    pub shortest: Duration,
}

impl Acked {
    /// One answer, or several that promise the same.
    pub(crate) fn new(sent: MonoTime, until: MonoTime) -> Self {
        Self { sent, until, shortest: until.saturating_since(sent) }
    }

    pub(crate) fn earlier_of(self, other: Self) -> Self {
        Self {
            sent: self.sent.min(other.sent),
            until: self.until.min(other.until),
            shortest: self.shortest.min(other.shortest),
        }
    }
}

/// The leader of a group, as this member knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Current term.
    pub term: Term,
    /// The leader of that term, if known.
    pub leader: Option<MemberId>,
    /// Whether that leader is this member.
    pub mine: bool,
    /// Whether the group has stopped for good on this member (storage error, shutdown).
    pub stopped: bool,
}

/// Of a member that lacks more entries than so many, nobody counts the bytes.
pub const LACKS_COUNTED_MAX: u64 = 1024;

/// One member as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub member: MemberId,
    /// Whether it votes.
    pub voter: bool,
    /// Newest entry that it is known to hold; only the leader knows.
    pub matched: Option<LogIndex>,
    /// Bytes in the leader's journal of the entries after that one. `u64::MAX`: unknown, or more than
    /// [`LACKS_COUNTED_MAX`] entries, or some are purged there, so that it first needs a snapshot.
    pub lacks_bytes: u64,
    /// Time since its last answer; only the leader knows.
    pub silent: Option<Duration>,
    /// Its address in the membership entry.
    pub addr: String,
}

/// A group as this member sees it.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// The group.
    pub group: GroupId,
    /// The leader.
    pub leadership: Leadership,
    /// Term of this member's newest vote, on disk or still being written.
    pub voted: Term,
    /// Newest entry in the log here.
    pub last: Option<LogIndex>,
    /// Newest entry applied here.
    pub applied: Option<LogId>,
    /// Last entry that the newest snapshot covers.
    pub snapshot: Option<LogId>,
    /// Last entry that was purged from the log.
    pub purged: Option<LogId>,
    /// Bytes of the log that are live.
    pub live_bytes: u64,
    /// Every member.
    pub members: Vec<MemberStatus>,
    /// The membership entry is applied here. If false, it may still be truncated.
    pub settled: bool,
    /// The membership entry.
    pub membership: Option<LogId>,
    /// In a joint membership: the newer set of voters. Both sets must agree until the change is ended.
    pub next: Option<BTreeSet<MemberId>>,
}
