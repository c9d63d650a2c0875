//! The NBD protocol as a state machine over bytes: export names, handshake, transmission; the server's side and the client's.
//!
//! Owns: what each byte means and what may be answered to it, and the bounds on everything that a peer can make us hold.
//! Does not own: sockets, tasks, the clock, the device behind an export, or who may open it. Depends on `types` only.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod name;

pub use name::{EXPORT_NAME_BYTES_MAX, ExportName, ExportNameError, SLOTS_PER_VOLUME_MAX, Session};
