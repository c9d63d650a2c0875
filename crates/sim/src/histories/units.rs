//! Sizes of a history; and its present step, for messages.

use holdfast_types::{GroupId, SetId};
use std::sync::atomic::AtomicU64;

/// The set, in a history without clones.
pub const SET: SetId = GroupId(3);
/// Gateways that a set moves between.
pub const GATEWAYS: u64 = 3;
/// Steps of a history, from and to.
pub const STEPS: (u64, u64) = (30, 60);

/// The step of the running history, for panic messages.
pub static STEP: AtomicU64 = AtomicU64::new(0);
