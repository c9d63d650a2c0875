//! Space in the store: decides what to collect, what is garbage, and when it may be deleted. Pure; the reasons are in
//! ADR 0012.
//!
//! ```text
//!   root of the last checkpoint ─▶ choose: victims ─▶ read: what of them is still in use ─▶ new segments
//!   page of that root ─▶ fold_page: zeroes and extents of this checkpoint, then moves where the page still names the victim
//!   dropped root − kept roots ─▶ Garbage ─▶ `Retire` ─▶ Reaper: grace, term, confirmation ─▶ deleted ─▶ `Deleted`
//! ```
//! SPACE-G1  A root names objects of the root that it was built on, and objects made for it; no others. So an object
//!     that no retained root names, and that no checkpoint in progress has made, is never named again: garbage stays
//!     garbage.
//! SPACE-G2  A move changes no content: a page takes it only where it still names the copied extent (R3).
//! SPACE-G3  Only an object that a committed entry retired is deleted, after the readers' grace period, by a leader
//!     that a quorum confirmed in its present term.
//! SPACE-G4  An object that a leader made for an unfinished checkpoint is an orphan in the same term once a later
//!     checkpoint has ended and no retained root names the object (`given_up`). No other object of the leader's own
//!     term is.

mod budget;
mod choose;
mod fold;
mod garbage;
mod given_up;
mod reap;
mod reseal;

pub use budget::{MoveBudget, MoveLimits};
pub use choose::{Amplification, Spared, packs_to_collect, percent_before, segments_to_collect};
pub use fold::{Move, Run, fold_page, open_run, pages_of, pieces_to_move, runs};
pub use garbage::{Garbage, Orphans, RetireProgress};
pub use given_up::{GIVEN_UP_MAX, GivenUp, Lapsed};
pub use reap::{Confirmed, NoDeletion, Reaper};
pub use reseal::{packs_to_reseal, segments_to_reseal};

#[cfg(test)]
mod tests;
