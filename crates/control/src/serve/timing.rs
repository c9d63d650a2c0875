//! All times of a group, derived from one number: the round trip between its voters.

use holdfast_types::pledge::Promise;
use std::time::Duration;

/// Largest error of a gateway's clock rate, in percent. Within it R3 holds; R2 holds for any clocks.
pub const DRIFT_PERCENT_MAX: u64 = 10;
/// Shortest round trip in use: below it the scheduler and the disk dominate.
pub const RTT_MIN: Duration = Duration::from_millis(1);
/// Longest round trip in use: beyond it a takeover would take most of a minute.
pub const RTT_MAX: Duration = Duration::from_secs(1);

/// Time of an append besides its round trip, in milliseconds: an fdatasync with others queued before it.
const APPEND_SYNC_MS: u64 = 5;
/// Floor of the shortest election timeout in milliseconds. Below it a delay of scheduler or disk causes elections, and
/// each election breaks the connections of clients that do not reconnect.
const ELECTION_MIN_MS_FLOOR: u64 = 300;

/// The derived times, in whole milliseconds. Members of a group may have different ones for a while (ADR 0058).
///
/// ```text
///   append        = rtt + 5 ms
///   election_min  = max(300 ms, 10 x append)      openraft: a timeout of ten appends is hardly ever a false alarm
///   election_max  = 2 x election_min              spread enough that two candidates rarely meet
///   heartbeat     = election_min / 3              two may be lost
///   leader_lease  = election_max                  openraft's: a follower refuses votes for so long after it heard a leader,
///                                                 and stands itself only after lease + an election timeout
///   drift_margin  = leader_lease / 5              with clocks 10 % off in opposite directions, (L - m) / 0.9 <= L / 1.1
///                                                 needs m >= 2/11 L; a fifth is a little more
///   embargo       = leader_lease x 1.1            after a start: (L - m) / 0.9 <= embargo / 1.1
///   clock_tick    = drift_margin / 4              between two looks at the clocks
///   gap_max       = clock_tick + drift_margin     a longer silence between two looks voids the read lease
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    rtt_ms: u64,
    election_min_ms: u64,
}

impl Timing {
    /// The times for gateways with round trip `rtt`: the longest between two voters under normal conditions. Rounded up
    /// to milliseconds and kept within [`RTT_MIN`] and [`RTT_MAX`].
    pub const fn from_rtt(rtt: Duration) -> Self {
        Self::with_floor(rtt, Duration::from_millis(ELECTION_MIN_MS_FLOOR))
    }

    /// Like `from_rtt`, with at least `floor` as shortest election timeout, for machines without delays of scheduler
    /// and disk.
    pub const fn with_floor(rtt: Duration, floor: Duration) -> Self {
        let up = rtt.as_nanos().div_ceil(1_000_000);
        let (low, high) = (RTT_MIN.as_millis(), RTT_MAX.as_millis());
        let rtt_ms = (if up < low {
            low
        } else if up > high {
            high
        } else {
            up
        }) as u64;
        let floor_ms = floor.as_millis() as u64;
        let election_ms = 10 * (rtt_ms + APPEND_SYNC_MS);
        let election_min_ms = if election_ms < floor_ms { floor_ms } else { election_ms };
        Self { rtt_ms, election_min_ms }
    }

    /// The times whose answers let a leader read for `read`; never shorter ones than all round trips have. For margins
    /// of which only the answers are known.
    pub fn of_read_lease(read: Duration) -> Self {
        let floor = Duration::from_millis(ELECTION_MIN_MS_FLOOR);
        // read = lease - lease / 5, and lease = 2 x election_min.
        Self::with_floor(RTT_MIN, (read.saturating_mul(5) / 8).max(floor))
    }

    /// The round trip that all others are derived from.
    pub const fn rtt(&self) -> Duration {
        Duration::from_millis(self.rtt_ms)
    }

    /// Between two heartbeats of a leader.
    pub const fn heartbeat(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms())
    }

    /// Shortest election timeout.
    pub const fn election_min(&self) -> Duration {
        Duration::from_millis(self.election_min_ms)
    }

    /// Longest election timeout.
    pub const fn election_max(&self) -> Duration {
        Duration::from_millis(self.election_max_ms())
    }

    /// How long a follower refuses to vote for another member after hearing the leader.
    pub const fn leader_lease(&self) -> Duration {
        Duration::from_millis(self.election_max_ms())
    }

    /// The leader subtracts this, since its clock and a follower's may be off by [`DRIFT_PERCENT_MAX`] each.
    pub const fn drift_margin(&self) -> Duration {
        Duration::from_millis(self.drift_margin_ms())
    }

    /// How long the leader may serve reads after *sending* a heartbeat that a quorum acknowledged.
    pub const fn read_lease(&self) -> Duration {
        Duration::from_millis(self.election_max_ms() - self.drift_margin_ms())
    }

    /// What an answer to a leader promises under these times.
    pub const fn promise(&self) -> Promise {
        Promise { silence: self.leader_lease(), read: self.read_lease() }
    }

    /// How long after its start a member neither votes nor stands: it may have heard a leader before the restart.
    pub const fn embargo(&self) -> Duration {
        Duration::from_millis(self.embargo_ms())
    }

    /// Between two samples of [`super::ClockWatch`].
    pub const fn clock_tick(&self) -> Duration {
        Duration::from_millis(self.drift_margin_ms() / 4)
    }

    /// The longest gap between two samples without suspicion.
    pub const fn gap_max(&self) -> Duration {
        Duration::from_millis(self.drift_margin_ms() / 4 + self.drift_margin_ms())
    }

    /// A gateway without a read lease for longer than this sends its clients away.
    pub const fn cut_off_after(&self) -> Duration {
        self.election_max()
    }

    /// Upper bound from a leader's last heartbeat to the next leader's first entry: the lease expires, one election
    /// timeout passes on a slow clock, then two round trips (pre-vote and vote) and one append. Split votes and a
    /// candidate with a shorter log than others add to it.
    pub const fn takeover_max(&self) -> Duration {
        let waited_ms = (2 * self.election_max_ms() * 100).div_ceil(100 - DRIFT_PERCENT_MAX);
        Duration::from_millis(waited_ms + 3 * self.rtt_ms + APPEND_SYNC_MS)
    }

    const fn heartbeat_ms(&self) -> u64 {
        self.election_min_ms / 3
    }

    const fn election_max_ms(&self) -> u64 {
        2 * self.election_min_ms
    }

    const fn drift_margin_ms(&self) -> u64 {
        self.election_max_ms().div_ceil(5)
    }

    const fn embargo_ms(&self) -> u64 {
        (self.election_max_ms() * (100 + DRIFT_PERCENT_MAX)).div_ceil(100)
    }

    /// The relations that R3 and a stable cluster need. Asserted below for typical classes, and in a test for all.
    pub(super) const fn relations_hold(&self) -> bool {
        let (slow, fast) = (100 - DRIFT_PERCENT_MAX, 100 + DRIFT_PERCENT_MAX);
        let lease = self.election_max_ms();
        let read = lease - self.drift_margin_ms();
        let heartbeat = self.heartbeat_ms();
        // Leader's clock slow, follower's fast: the leader has stopped before a follower, also a restarted one, may
        // vote.
        let before_followers = read * fast <= lease * slow;
        let before_restarted = read * fast <= self.embargo_ms() * slow;
        // Two heartbeats in a row may be lost, for the followers and for the read lease.
        let quiet = 3 * heartbeat <= self.election_min_ms && 3 * heartbeat + self.rtt_ms < read;
        let spread = self.election_min_ms < self.election_max_ms();
        let ten_appends = self.election_min_ms >= 10 * (self.rtt_ms + APPEND_SYNC_MS);
        // Two samples fit between two heartbeats, and a sample that is late by the whole margin causes suspicion.
        let watched = self.drift_margin_ms() / 4 > 0 && 2 * (self.drift_margin_ms() / 4) <= heartbeat;
        before_followers && before_restarted && quiet && spread && ten_appends && watched
    }
}

const LAN: Timing = Timing::from_rtt(RTT_MIN);
const _: () = assert!(LAN.relations_hold());
const _: () = assert!(Timing::from_rtt(Duration::from_millis(10)).relations_hold());
const _: () = assert!(Timing::from_rtt(Duration::from_millis(80)).relations_hold());
const _: () = assert!(Timing::from_rtt(RTT_MAX).relations_hold());
// The bound for a LAN: takeover within 2 s, with time for one more election.
const _: () = assert!(LAN.takeover_max().as_millis() + LAN.leader_lease().as_millis() < 2000);
