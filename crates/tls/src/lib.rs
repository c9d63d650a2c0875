//! Mutually authenticated TLS between gateways, hosts and people (R10): certificates and roles.
//!
//! Owns: a process's own certificate, read again when it changes ([`Tls`]), the [`Dialer`] of every client of a
//! gateway, the [`Connector`] of a client of NBD or of an agent, the [`Acceptor`] of a door, the [`Role`] and the name
//! of a client there, HTTP doors ([`Handshakes`]), certificates that count no more ([`Revocations`], and
//! [`RevocationCache`] where the process is no gateway), making certificates for a cluster ([`make`]), and reading
//! files that settings name ([`files`]). Does not own: the service behind a door, how a gateway is asked. Depends
//! on `types` alone.
//!
//! - **TLS-T1** A cluster has one authority of its own, and trusts no other: neither the system's roots nor another
//!   cluster's authority.
//! - **TLS-T2** A certificate names its owner's role by a DNS name (`gateway.holdfast.internal`, `host.…`, `admin.…`).
//!   A client of a gateway expects `gateway.…`, whatever the address. So addresses may change, and a host's certificate
//!   cannot be used for a gateway.
//! - **TLS-T3** A door with TLS serves only clients with a certificate of the authority; the door between gateways
//!   serves only gateways, the NBD door only hosts and administrators. Who may make which call of the admin API: crate
//!   `gateway`, `access/rules.rs`. HTTP doors are the exception (HTTP-D1).
//! - **TLS-T4** A host's certificate names the owners under which it may hold leases, and the sets that it may use, by
//!   URIs (`holdfast://owner/NAME`, `holdfast://set/NAME`). Without owners it is the common name; without sets, all.
//!   A certificate with another URI that begins with `holdfast:` is invalid. The admin API checks owners and sets, the
//!   NBD door sets.

mod accept;
mod ahead;
mod der;
mod dial;
mod either;
mod error;
mod expiry;
pub mod files;
mod http;
mod live;
mod load;
pub mod make;
mod own;
mod renew;
mod revocation_cache;
mod revoked;
mod role;
mod shown;
mod socket;
mod stream;
#[cfg(test)]
mod tests;

pub use accept::{Acceptor, Incoming, TlsStream, admits, certificate};
pub use ahead::ReadAhead;
pub use dial::{Connect, Connector, Dialer};
pub use either::{Either, EitherInfo, Peeked};
pub use error::TlsError;
pub use expiry::Expiry;
pub use http::{Handshakes, HttpClient, HttpConnection, HttpTls, Served};
pub use own::{Tls, TlsFiles};
pub use renew::{Renewed, renew};
pub use revocation_cache::{LIST_MAX, RevocationCache, RevocationReply};
pub use revoked::{Checked, Identity, Revocations, Revoked, serial_of};
pub use role::{ANY_OWNER, Caller, Role};
pub use shown::Shown;
pub use socket::KeepAlive;
pub use stream::{ClientStream, Connection, Dial, Dialling, Duplex};
