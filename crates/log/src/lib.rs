//! The node's journal on a real disk: O_DIRECT files, one writer, the newest entries in memory.
//!
//! Owns: threads, the queue, the order of callbacks, what is kept in memory, the folder of files and its lock. Does not
//! own: the file format, recovery, rotation and dropping of files (`journal`), nor what entries and votes mean. Depends
//! on `journal`, `folder` and `types`.
//!
//! ```text
//!  append, votes, purges ─▶ memory (readable at once) ─▶ queue ─▶ writer: one batch, one write that is durable
//!                                                                     └─▶ callbacks in order ─▶ old payloads leave memory
//! ```
//! The writer is a thread, or a task that writes by io_uring with the thread beside it (`beside`).
//!
//! - **LOG-L1** `done` is called after its batch was synced, in the order of the calls, never under a lock that a
//!   handle takes. Of several [`GroupLog::append_upto`] of one group in one batch the last one's is called; if they
//!   fail, each.
//! - **LOG-L2** After one failed write or sync every callback gets an error, for the life of the process. So it does
//!   after a file that could not be created, unless what lacks may come back: room, file descriptors, memory.
//! - **LOG-L3** A payload leaves memory only when it is durable and its place is known.
//! - **LOG-L4** Nothing is refused for lack of room: callers admit client data by [`NodeLog::usage`].

mod beside;
mod blocking;
mod choice;
mod config;
mod disk;
mod dsync;
mod group;
mod memory;
mod node;
mod queue;
mod shared;
mod uring;
mod writer;

pub use blocking::{run_blocking_inline, spawn_blocking};
pub use config::{Identity, JournalIo, LogConfig, OpenError};
pub use disk::RealDisk;
pub use group::{Entry, GroupLog, GroupLogState, ReadPlace};
pub use holdfast_journal::{CorruptRecord, NodeKey, ReadError, RecoveryReport, Sealing};
pub use node::{LogUsage, NodeLog};
pub use writer::{Step, Turns};
