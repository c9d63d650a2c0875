//! A node: its settings, its identity, the sets that run here, the admin API, metrics and health, and [`run_until`].
//!
//! Owns: the wiring between crates, members and sets as group 0 says, listeners.
//! Does not own: what one set does (set), NBD connections (front), decisions (control, volume), the command line.

mod access;
pub mod admin;
mod audit;
pub mod checks;
pub mod config;
mod descriptors;
mod disk_space;
mod doors;
pub mod http;
pub mod identity;
mod identity_file;
mod lives;
mod metrics;
pub mod node;
pub mod node_key;
mod run;
pub mod store_options;
mod vote_embargo;

pub use descriptors::raise_descriptors;
pub use run::{Begin, RunError, Stop, run_life, run_until, serve_doors_over, serve_nbd_over};
