//! Decisions: who may write a set (R2, R6), who is a member, when a gateway may serve (R3). Command in, answer out.
//!
//! ```text
//!   set      one volume set's small replicated state: volumes, lease and epoch, checkpoint      (every replica alike)
//!   cluster  group 0: members and their disks, sets and their wrapped keys                      (every replica alike)
//!   members  who is to vote in a group next, who may lead, what may be removed                  (decided at leaders)
//!   keys     what a change of the cluster key does next                                       (decided at group 0's leader)
//!   pair     who of two gateways with an etcd may answer, whose a head is, what may be written (one node only)
//!   serve    what one leader decides from its own clock: read lease, expiry, embargo, cut-off   (one node only)
//! ```
//!
//! Owns: the replicated commands, their answers and refusals, and the arithmetic of time behind serving.
//! Does not own: bytes of volumes and where they live (`volume`), the Raft log (`raft`, `log`), any clock, any I/O.
//! Depends on the sibling `types` only.
//!
//! `set` and `cluster` read nothing but the command, its place in the log, and the state: the same entries give the same
//! bytes everywhere. `serve` never feeds anything into them but what is written in a command (`judged_expired`).
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod cluster;
pub mod keys;
pub mod members;
pub mod pair;
pub mod serve;
pub mod set;
mod text;

pub use text::Utc;
