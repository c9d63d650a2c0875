//! How sets' voters are chosen.

use holdfast_control::following;
use holdfast_control::placing::Rules;
use holdfast_settings::settings;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Most sets that get other voters at the same time: each copies a journal's part of one set, and a state.
const MOVES_AT_ONCE: usize = 2;
/// Like `MOVES_AT_ONCE`, where a lost or leaving voter is replaced, or a loss is survived again: the next loss could
/// stop the set.
const REPAIRS_AT_ONCE: usize = 8;

settings! {
    /// The choice of each set's voters, by the leader of the cluster.
    pub struct PlacingConfig {
        /// Change voters automatically. false: only a new set's voters are chosen; violations are still shown.
        enabled: bool = true;
        /// A voter is replaced when its gateway has not answered for this time, in milliseconds, 60000 to 86400000. 0:
        /// never. Shorter: sets are copied away sooner from a gateway that is down for maintenance.
        replace_after_ms: u64 = 900_000;
        /// Serve a set near its owner: leadership moves to a nearer voter, at most once in this time, in milliseconds,
        /// 5000 to 86400000. Each move is a short pause for the owner. 0: never, and voters do not follow owners
        /// either.
        follow_owner_ms: u64 = 60_000;
    }
}

impl PlacingConfig {
    /// The planner's limits.
    pub fn rules(&self) -> Rules {
        let replace_after = (self.replace_after_ms > 0).then(|| Duration::from_millis(self.replace_after_ms));
        let (at_once, repairs) = if self.enabled { (MOVES_AT_ONCE, REPAIRS_AT_ONCE) } else { (0, 0) };
        Rules { replace_after, at_once, repairs, balance: true }
    }

    /// When leadership follows an owner.
    pub fn following(&self) -> following::Rules {
        let calm = (self.follow_owner_ms > 0).then(|| Duration::from_millis(self.follow_owner_ms));
        following::Rules { calm }
    }
}
