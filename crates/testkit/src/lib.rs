//! Test tools shared by several crates.
//!
//! Owns: simulated devices that keep the contracts of the real ones; golden files of releases; how a test reports that
//! it was skipped; the count of a thread's memory. Used by tests only. Depends on `journal` (the disk's contract) and
//! `types`.

pub mod golden;
pub mod heap;
mod sim_disk;
mod skips;

pub use sim_disk::{SECTOR_BYTES, SimDisk, SimFile, Survives};
pub use skips::{missing, skipped};
