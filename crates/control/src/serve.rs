//! What one gateway decides for itself, from its own clock: whether it may serve, whether a lease has expired, whether it may
//! vote. Nothing of it is replicated, and R2 never rests on it: apply refuses what a wrong answer here would let through. R3
//! does rest on it, within the drift bound of [`Timing`].
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
pub use expiry::{ExpiryJudge, VoteEmbargo};
pub use gate::{GateEvent, ServeGate, WhyNot};
pub use timing::{DRIFT_PERCENT_MAX, RTT_MAX, RTT_MIN, Timing};

#[cfg(test)]
mod tests;
