//! Decisions of one gateway by its own clock: whether it may serve, and whether a lease has expired. (Whether it may
//! vote is decided in `holdfast_types::pledge`, which `raft` calls.) None of them is replicated. R2 does not depend on
//! them: apply refuses what a wrong decision would let through. R3 does, within the drift bound of [`Timing`].
//!
//! ```text
//!   leader's clock    sent heartbeat            still serving reads       |margin|
//!                     |─────────────────────────────────────────────────▶|      |
//!   follower's clock     got it, refuses votes for the leader lease ────────────▶| may vote for another
//! ```

mod clock;
mod expiry;
mod gate;
mod timing;

pub use clock::{ClockSuspicion, ClockWatch};
pub use expiry::ExpiryJudge;
pub use gate::{GateEvent, ServeGate, WhyNot};
pub use timing::{DRIFT_PERCENT_MAX, RTT_MAX, RTT_MIN, Timing};

#[cfg(test)]
mod changing_tests;
#[cfg(test)]
mod tests;
