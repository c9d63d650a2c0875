//! Several stores as one: an object counts once `w` of `n` have it, and the head is one register over all of them (ADR
//! 0018).
//!
//! ```text
//!   put_new   to all at once; Ok once w have it. The others go on behind, a few at a time; what one did not take is noted for the repair
//!   get       from one, the next one when it fails, has it not, or takes long (`reads`)
//!   delete    at all: Ok once all have answered
//!   list      what any of them shows
//!   head      `head` and `round`: rules in `register`; while the stores are changed, `moves` says which list of them counts
//! ```
//! A 404 from one store means "not here" (R7). "Not found" is returned only if all n stores say so.

mod answer;
#[doc(hidden)]
pub mod fuzz;
mod head;
mod head_errors;
mod missing;
mod moves;
mod reads;
mod register;
mod repair;
mod round;
mod speed;
mod state;
mod store;

pub use missing::{Backlog, Wanted};
pub use moves::moved_to;
pub use repair::RepairError;
pub use state::{Observed, Part, Quorum};
pub use store::{ReplicaStanding, SeatSeen, head_of_several};

#[cfg(test)]
#[path = "quorum_tests.rs"]
mod tests;
