//! One volume set on this node: its replicated state, who serves it, the write path, the read path, the uploader.
//!
//! ```text
//!   exports ─▶ server ─▶ sequencer ─▶ group (raft) ─▶ host (apply)
//!                 │                                     ▲
//!                 └────▶ reader ─▶ journal | mapping ─▶ cache ─▶ store
//!                                               ▲                  ▲
//!                        uploader (leader only) ┴──────────────────┘
//! ```

mod ahead;
pub mod bases;
pub mod burial;
pub mod clones;
pub mod device;
pub mod diff;
pub mod gate;
pub mod head;
pub mod host;
pub mod kept;
mod leader_task;
pub mod mapping;
pub mod mover;
pub mod pace;
pub mod reader;
pub mod repair;
mod roots;
pub mod schedule;
pub mod scrub;
pub mod sequencer;
pub mod server;
pub mod set_key;
pub mod snapshot;
pub mod space;
pub mod suspects;
pub mod told;
pub mod uploader;
pub mod warm;
