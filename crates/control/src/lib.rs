//! Decisions of consensus groups and leaders: who may write a set (R2, R6), who is a member, when a gateway may serve
//! (R3). Pure: command in, answer out.
//!
//! ```text
//!   set      state of one volume set: volumes, lease and epoch, checkpoint                 (the same at every replica)
//!   cluster  group 0: members and their disks, sets and their wrapped keys                 (the same at every replica)
//!   policy   what a set asks of its voters                                                  (kept in group 0)
//!   placing  which members a set's voters are to be                                         (decided by group 0's leader)
//!   following  which voter should lead a set                                                (decided by its leader)
//!   tuning   from which round trip a set's times are computed                               (decided by its leader)
//!   members  next voters of a group, possible leaders, allowed removals                    (decided by leaders)
//!   keys     next step of a change of the cluster key                                      (decided by group 0's leader)
//!   pair     two gateways with an etcd: which one may answer, and which one wrote a head   (one node only)
//!   serve    a leader's decisions by its own clock: read lease, expiry, cut-off            (one node only)
//! ```
//!
//! Owns: the replicated commands, their answers and refusals, and the time arithmetic behind serving. Does not own:
//! bytes of volumes and their places (`volume`), the Raft log (`raft`, `log`), any clock, any I/O. Depends on the
//! sibling `types` only.
//!
//! `set` and `cluster` read only the command, its place in the log, and the state: the same entries give the same bytes
//! everywhere. `serve` feeds nothing into them except through a command (`judged_expired`).
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod cluster;
pub mod following;
pub mod keys;
pub mod members;
pub mod pair;
pub mod placing;
pub mod policy;
pub mod serve;
pub mod set;
mod text;
pub mod tuning;

pub use text::Utc;
