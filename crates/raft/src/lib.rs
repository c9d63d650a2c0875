//! Consensus: the only crate that names openraft.
//!
//! Owns: the groups of one node ([`RaftNode`], [`Group`]), the adapter between openraft and the node's journal, the
//! protocol between gateways, snapshots of the replicated state on disk, the vote embargo after a start, CLOCK_BOOTTIME
//! as openraft's clock.
//! Does not own: what entries mean. A payload is opaque bytes, a [`StateMachine`] gives them a meaning.
//! Depends on `log` and `types`.
//!
//! ```text
//!   Group::propose ─▶ openraft core ─▶ LogStore ─▶ journal (fdatasync) ─┐
//!                          │ └───────▶ PeerClient ─▶ other gateways ────┤ quorum
//!                          ▼                                            ▼
//!                    StateMachine::apply ◀──────────────────────── committed
//! ```

mod change;
mod clock;
mod config;
mod ended;
mod group;
mod lives;
mod log_store;
mod machine;
mod members;
mod network;
mod node;
mod placing;
mod promise;
mod protocol;
mod quarantine;
mod readmit;
mod register;
mod reversion;
mod roll;
mod script;
mod server;
mod snapshot_file;
mod wire;

#[cfg(test)]
mod change_tests;
#[cfg(test)]
mod ended_tests;
#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod heal_tests;
#[cfg(test)]
mod members_tests;
#[cfg(test)]
mod pre_vote_tests;
#[cfg(test)]
mod start_tests;
#[cfg(test)]
mod store_tests;

#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod proto {
    tonic::include_proto!("holdfast.peer.v1");
}

pub use change::Roll;
pub use clock::{Clocks, boot_now, monotonic_now, replace_clocks};
pub use config::{RaftTiming, TypeConfig};
pub use ended::Ended;
pub use group::{
    Group, GroupError, GroupStatus, Leadership, MemberStatus, Pending, ProposeError, Proposed, ReadLogError, ReadPlace,
};
pub use lives::{KnownLife, LIVES_MAX, Life, Lineage, not_who_it_says};
pub use machine::{StateMachine, Unfit};
pub use node::{NodeConfig, NodeError, RaftNode};
pub use placing::{Placer, Placing};
pub use protocol::{PROTOCOL, Protocol};
pub use readmit::{Healing, ReadmitError};
pub use register::{Registered, Registrar};
pub use roll::RollError;
pub use script::{Outcome, Script};
pub use server::PeerService;
