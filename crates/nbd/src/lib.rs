//! The NBD protocol as a state machine over bytes: export names, handshake, transmission; the server's side and the client's.
//!
//! ```text
//!   bytes in ─▶ server::Handshake ─▶ Question ─▶ (outside) ─▶ answer ─▶ Negotiated
//!   bytes in ─▶ server::RequestDecoder ─▶ Request ─▶ (outside) ─▶ server::ReplyQueue ─▶ slices out
//! ```
//!
//! NBD-N1  Nothing that a peer sends makes us hold more than a bound: option data, names, queries, options per handshake, payloads.
//! NBD-N2  Where the input is cut makes no difference to what is found in it.
//! NBD-N3  No bytes of a peer reach an assertion: they are requests, refusals, or errors.
//!
//! Owns: what each byte means and what may be answered to it, and the bounds on everything that a peer can make us hold.
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
