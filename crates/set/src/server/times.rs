//! The times of a set: from its replicated state to its group and its gate (ADR 0058).

use super::{SetError, SetServer};
use holdfast_control::serve::Timing;
use holdfast_control::set::SetCommand;
use holdfast_raft::RaftTiming;
use holdfast_types::Term;
use holdfast_types::sync::LockExt;
use std::time::Duration;

/// Raft's times from a set's. `embargo`: after a start of the process.
pub fn raft_timing(timing: Timing, embargo: Duration) -> RaftTiming {
    RaftTiming {
        heartbeat: timing.heartbeat(),
        election_min: timing.election_min(),
        election_max: timing.election_max(),
        read_lease: timing.read_lease(),
        embargo,
    }
}

/// The times for a round trip; never longer than those of the settings, which vote embargoes cover (PLEDGE-P4).
fn within(longest: Timing, rtt_ms: Option<u32>) -> Timing {
    let chosen = rtt_ms.map(|ms| Timing::from_rtt(Duration::from_millis(u64::from(ms))));
    chosen.filter(|timing| timing.election_max() < longest.election_max()).unwrap_or(longest)
}

/// The shorter ones: the times here, or those of an answer that lets this gateway read for so long.
fn shorter(present: Timing, promised: Option<Duration>) -> Timing {
    let promised = promised.map(Timing::of_read_lease);
    promised.filter(|timing| timing.election_max() < present.election_max()).unwrap_or(present)
}

impl SetServer {
    /// After a quorum acknowledged a heartbeat, no other gateway can have been elected for at most this long, counted
    /// from its sending. What it has promised may be less: see `Consensus::quorum_promised`.
    pub fn read_lease(&self) -> Duration {
        self.longest.read_lease()
    }

    /// The set's present times.
    pub fn timing(&self) -> Timing {
        within(self.longest, self.rtt_ms())
    }

    /// The round trip that was chosen for the set's times, in milliseconds; `None`: that of the settings.
    pub fn rtt_ms(&self) -> Option<u32> {
        self.host.with(|m| m.state().rtt_ms)
    }

    /// The shortest times by which this gateway reads: what its clocks must be exact enough for (R3). Voters may have
    /// shorter ones than this gateway: when they apply longer ones later, or shorter ones sooner, or by their settings.
    /// Their answers say so.
    pub fn shortest_timing(&self) -> Timing {
        let promised = self.group.quorum_promised(self.longest.read_lease()).map(|(_, acked)| acked.shortest);
        shorter(*self.timed.locked(), promised)
    }

    /// Tells group and gate the set's times, if they have changed. Repeating it does no harm.
    pub(super) fn follow_timing(&self) {
        // One call at a time: the one that read the newest state is the last one to tell it.
        let mut told = self.timed.locked();
        let timing = self.timing();
        if *told != timing {
            *told = timing;
            self.group.set_times(raft_timing(timing, timing.embargo()));
            self.gate.set_timing(timing);
        }
    }

    /// Chooses the set's times, as leader of `term`.
    ///
    /// # Errors
    /// [`SetError`]. After `Propose(Unknown)` it may have happened (R12).
    pub async fn retime(&self, term: Term, rtt_ms: u32) -> Result<(), SetError> {
        self.command("the set's times", &SetCommand::Retime(term, rtt_ms)).await?;
        // A leader must send heartbeats often enough before its followers wait for less.
        self.follow_timing();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PLEDGE-P4.
    #[test]
    fn no_set_has_longer_times_than_the_settings_allow() {
        let of = |ms| Timing::from_rtt(Duration::from_millis(ms));
        assert_eq!(within(of(80), None), of(80));
        assert_eq!(within(of(80), Some(5)), of(5));
        assert_eq!(within(of(80), Some(200)), of(80));
        assert_eq!(within(of(1), Some(1000)), of(1), "a gateway that was started with less");
        assert_eq!(within(of(20), Some(5)), of(20), "as long: the same");
    }

    /// R3: a leader applies longer times before its voters do, and voters may have other settings. A clock that loses
    /// as much as its own margin would let it read beyond their promise.
    #[test]
    fn clocks_are_watched_by_the_shortest_promise() {
        let of = |ms| Timing::from_rtt(Duration::from_millis(ms));
        let (near, far) = (of(1), of(200));
        assert_eq!(shorter(far, Some(near.read_lease())), near);
        assert_eq!(shorter(near, Some(far.read_lease())), near, "longer promises of before");
        assert_eq!((shorter(far, None), shorter(far, Some(far.read_lease()))), (far, far));
        assert_eq!(shorter(far, Some(Duration::ZERO)), near, "by such an answer nothing is read");
        for ms in 1..200 {
            let (times, found) = (of(ms), shorter(far, Some(of(ms).read_lease())));
            assert_eq!(found.election_max(), times.election_max(), "{ms}");
            assert_eq!((found.drift_margin(), found.gap_max()), (times.drift_margin(), times.gap_max()), "{ms}");
        }
    }
}
