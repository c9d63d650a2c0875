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
//! NBD-S1  Where TLS is required, a server tells a client in plain text nothing but that: it answers every option but
//!     NBD_OPT_STARTTLS and NBD_OPT_ABORT with NBD_REP_ERR_TLS_REQD.
//! NBD-S2  Nothing that was sent in plain text counts after the upgrade to TLS. Bytes behind NBD_OPT_STARTTLS end the
//!     connection: anyone on the way may have put them there. What was negotiated is forgotten. Only the client's flags
//!     remain, since the protocol has them once: they decide about padding.
//! NBD-S3  A client that wants TLS asks for it before everything else, and goes on only through TLS. It leaves a server
//!     that refuses, or that sends more in plain text than its agreement.
//!
//! Owns: the meaning of each byte and the permitted answers, and the bounds on memory for a peer.
//! Does not own: sockets, TLS itself, tasks, the clock, the device behind an export, or who may open it. Depends on
//! `types` only.
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
