//! One volume set on this node: its replicated state, its lease, the write path, the read path and the uploader.
//!
//! ```text
//!   exports ─▶ server ─▶ sequencer ─▶ group (raft) ─▶ host (apply)
//!                 │                                     ▲
//!                 └────▶ reader ─▶ journal | mapping ─▶ cache ─▶ store
//!                                               ▲                  ▲
//!                        uploader (leader only) ┴──────────────────┘
//! ```
//!
//! Owns: the tasks of one set; upload, collection, repair, checking and recovery in its store; the keys that open it;
//! group 0 as applied on this node.
//! Does not own: decisions (control, volume), consensus (raft), the store's protocol (store), sockets (front), the
//! choice of sets that run here (gateway).

mod ahead;
pub mod authority;
mod bad_places;
pub mod bad_reads;
pub mod bases;
mod boards;
pub mod clones;
pub mod cluster;
pub mod device;
pub mod diff;
pub mod etcd_mirror;
mod found;
pub mod gate;
pub mod head;
pub mod host;
pub mod keyring;
mod leader_task;
pub mod live;
mod map_error;
pub mod mapping;
mod origins;
pub mod pace;
pub mod random;
pub mod reader;
pub mod recovery;
pub mod references;
pub mod repair;
mod roots;
pub mod schedule;
pub mod scrub;
pub mod sequencer;
pub mod server;
pub mod set_key;
pub mod snapshot;
pub mod space;
pub mod store_migration;
pub mod tombstone;
pub mod uploader;
pub mod verify;
pub mod warm;

/// For programs that check what a person asks for before they ask a gateway.
pub use holdfast_control::set::{BURST_MS_DEFAULT, IOPS_MIN, Limit, Schedule};
