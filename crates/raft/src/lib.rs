//! Consensus: the only crate that names openraft.
//!
//! Owns: the groups of one node ([`RaftNode`], [`Group`]), the adapter between openraft and the node's journal, the
//! protocol between gateways, snapshots of the replicated state on disk, the vote embargo after a start, the clocks of
//! leases and of promises. What the crates above need of a group is [`Consensus`]; a simulation implements it too.
//! Does not own: what entries mean. A payload is opaque bytes; a [`StateMachine`] interprets them.
//! Depends on `log`, `folder`, `tls` and `types`.
//!
//! ```text
//!   Group::submit ──▶ openraft core ─▶ LogStore ─▶ journal (fdatasync) ───────────────────────────────┐
//!                          │ └───────▶ Session ─▶ Connection at a peer ─▶ its LogStore ─▶ its journal ─┤ quorum
//!                          ▼                                                                           ▼
//!                    StateMachine::apply ◀─────────────────────────────────────────────────────── committed
//! ```

mod acks;
mod admitted;
mod append_door;
mod append_frames;
mod append_receiver;
mod append_sender;
mod appender;
mod beat_carrier;
mod beats;
mod candidacy;
mod change;
mod channels;
mod clock;
mod config;
mod consensus;
mod dials;
mod end_group;
mod end_marker;
mod follow_turn;
#[doc(hidden)]
pub mod fuzz;
mod group;
mod hooks;
mod leadership;
mod leave;
mod left_note;
mod lives;
mod log_store;
mod machine;
mod membership_query;
mod network;
mod newest_stream;
mod node;
mod note_file;
mod pacer;
mod pacing;
mod peer_call;
mod placement_query;
mod promise;
mod protocol;
mod quarantine;
mod raft_consensus;
mod readmit;
mod register;
mod reversion;
mod round_trips;
mod rpc_error;
mod server;
mod snapshot_file;
mod snapshot_pieces;
mod start_group;
mod status;
mod stored;
mod wire;

#[cfg(test)]
mod append_frames_tests;
#[cfg(test)]
mod append_tests;
#[cfg(test)]
mod beats_tests;
#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod end_group_tests;
#[cfg(test)]
mod floor_tests;
#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod heal_tests;
#[cfg(test)]
mod leave_tests;
#[cfg(test)]
mod members_tests;
#[cfg(test)]
mod pacer_tests;
#[cfg(test)]
mod pre_vote_tests;
#[cfg(test)]
mod start_tests;
#[cfg(test)]
mod store_tests;
#[cfg(test)]
mod stored_tests;
#[cfg(test)]
mod vote_looks_tests;

#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod proto {
    tonic::include_proto!("holdfast.peer.v1");
}

/// All calls of the protocol between gateways, in the order of `proto/peer.proto`.
pub const PEER_METHODS: &[&str] = include!(concat!(env!("OUT_DIR"), "/methods.rs"));

pub use admitted::{Admitted, Known};
pub use append_door::{APPEND_CONNECTIONS_MAX, Sorted};
pub use change::CommittedMembers;
pub use clock::{Clocks, boot_now, boot_reading, monotonic_now, promise_now, replace_clocks};
pub use config::{RaftTiming, TypeConfig};
pub use consensus::{Consensus, Group, GroupError, Outcome, ProposeError, Proposed, Reply};
pub use end_marker::Ended;
/// A part of the log that could not be read.
pub use holdfast_log::{ReadError as ReadLogError, ReadPlace};
pub use hooks::{MigrationReporter, MigrationStatus, Registered, Registrar, TurnGiver};
pub use leave::{LeaveError, Out, Part};
pub use lives::{KnownLife, LIVES_MAX, Life, Lineage, not_who_it_says};
pub use machine::{StateMachine, Unfit};
pub use membership_query::MembershipUnknown;
pub use node::{NodeConfig, NodeError, RaftNode};
pub use protocol::{PROTOCOL, Protocol};
pub use quarantine::Healing;
pub use readmit::ReadmitError;
pub use server::PeerService;
pub use snapshot_pieces::snapshot_time;
pub use status::{Acked, GroupStatus, LACKS_COUNTED_MAX, Leadership, MemberStatus};
