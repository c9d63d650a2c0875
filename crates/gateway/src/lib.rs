//! A node: the NBD front, the admin door, the sets that run here, their uploaders and caches, metrics and health.
//!
//! Owns: everything that waits, the wiring between rooms, and [`run()`].
//! Does not own: decisions (control, volume), formats (nbd, volume, seal), consensus (raft), S3 (store), the command line.
//! Depends on all of these.

pub mod admin;
mod boots;
pub mod cache;
pub mod checks;
pub mod cluster;
pub mod config;
mod descriptors;
mod doors;
pub mod front;
pub mod heal;
pub mod http;
pub mod identity;
pub mod keyring;
mod lives;
mod metrics;
pub mod node;
pub mod node_key;
pub mod pair;
mod promised;
pub mod recovery;
mod room;
mod run;
pub mod set;
pub mod verify;

pub use descriptors::raise_descriptors;
pub use run::{RunError, run, run_until, serve_doors_over, serve_nbd_over};
