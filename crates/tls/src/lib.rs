//! Mutually authenticated TLS between gateways, hosts and administrators (R10): certificates, and who may be what.
//!
//! Owns: loading a process's own certificate, the [`Dialer`] that every client of a gateway connects with, the check of
//! the [`Role`] at a door, making certificates for a cluster ([`make`]), and reading what settings name ([`files`]).
//! Does not own: what a door does. Depends on `types` alone.
//!
//! - **TLS-T1** A cluster has one authority of its own, and trusts nothing else: neither the system's roots nor another
//!   cluster's authority.
//! - **TLS-T2** A certificate says what its bearer is by a DNS name (`gateway.holdfast.internal`, `host.…`, `admin.…`). Who
//!   dials a gateway expects `gateway.…`, wherever it is: addresses may change, and a host's certificate can never
//!   stand for a gateway.
//! - **TLS-T3** A door with TLS serves nobody without a certificate of the authority; the door between gateways only
//!   gateways.

mod dial;
mod error;
pub mod files;
mod load;
pub mod make;
mod role;
#[cfg(test)]
mod tests;

pub use dial::{Connect, Dialer};
pub use error::TlsError;
pub use load::{Tls, TlsFiles};
pub use role::{Role, require};
