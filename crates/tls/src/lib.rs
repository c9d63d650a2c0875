//! Mutually authenticated TLS between gateways, hosts and administrators (R10): certificates and roles.
//!
//! Owns: loading a process's own certificate, the [`Dialer`] of every client of a gateway, the [`Connector`] of an NBD
//! client, the [`Acceptor`] of a door that takes more than gRPC, the check of the [`Role`] at a door, making
//! certificates for a cluster ([`make`]), and reading files that settings name ([`files`]). Does not own: the service
//! behind a door. Depends on `types` alone.
//!
//! - **TLS-T1** A cluster has one authority of its own, and trusts no other: neither the system's roots nor another
//!   cluster's authority.
//! - **TLS-T2** A certificate names its owner's role by a DNS name (`gateway.holdfast.internal`, `host.…`, `admin.…`).
//!   A client of a gateway expects `gateway.…`, whatever the address. So addresses may change, and a host's certificate
//!   cannot be used for a gateway.
//! - **TLS-T3** A door with TLS serves only clients with a certificate of the authority; the door between gateways
//!   serves only gateways, the NBD door only hosts and administrators.

mod dial;
mod error;
pub mod files;
mod load;
pub mod make;
mod role;
mod stream;
#[cfg(test)]
mod tests;

pub use dial::{Connect, Dialer};
pub use error::TlsError;
pub use load::{Tls, TlsFiles};
pub use role::{Role, admits, require};
pub use stream::{Acceptor, ClientStream, Connection, Connector, Dial, Dialling, Duplex, TlsStream};
