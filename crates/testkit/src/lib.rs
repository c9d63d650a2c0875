//! Test tools that several rooms share.
//!
//! Owns: simulated outside things, each keeping the contract of the real one; how a test says that it was passed over. Used by tests only; nothing
//! depends on it.
//! Depends on `journal` (the disk's contract) and `types`.

mod sim_disk;
mod skips;

pub use sim_disk::{SECTOR_BYTES, SimDisk, SimFile, Survives};
pub use skips::{missing, skipped};
