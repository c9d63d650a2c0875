//! The NBD protocol as a state machine over bytes: export names, handshake, transmission; server and client.
//!
//! ```text
//!   bytes in ─▶ server::Handshake ─▶ Question ─▶ (outside) ─▶ answer ─▶ Negotiated
//!   bytes in ─▶ server::RequestDecoder ─▶ Request ─▶ (outside) ─▶ server::ReplyQueue ─▶ slices out
//! ```
//!
//! NBD-N1  All memory that a peer can make us hold is bounded: option data, names, queries, options per handshake,
//!     payloads.
//! NBD-N2  How the input is split into pieces does not change the result.
//! NBD-N3  No input of a peer reaches an assertion: it becomes requests, refusals, or errors.
//!
//! Owns: the meaning of each byte and the permitted answers, and the bounds on memory for a peer.
//! Does not own: sockets, tasks, the clock, the device behind an export, or who may open it. Depends on `types` only.
//!
//! Follows `doc/proto.md` of the NBD project, with the extended headers of its `extension-ext-header` branch.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod client;
mod name;
pub mod server;
mod wire;

pub use name::{EXPORT_NAME_BYTES_MAX, ExportName, ExportNameError, SLOTS_PER_VOLUME_MAX, Session, SnapshotExport};
pub use wire::{BlockSizes, Errno, Extent, HeaderStyle, STRING_BYTES_MAX, TransmissionFlags};

#[cfg(test)]
mod tests;
