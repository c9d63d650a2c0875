//! The role that a certificate gives to its bearer.

use std::fmt;
use tokio_rustls::server::TlsStream;
use tonic::{Request, Status};

/// The role of a process in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A gateway: serves, votes, keeps the journal.
    Gateway,
    /// A host of PostgreSQL: its attach and its agent.
    Host,
    /// A person or a tool with the command line.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 3] = [Role::Gateway, Role::Host, Role::Admin];
    /// Those that may use NBD: hosts attach, administrators import and export.
    pub const NBD: [Role; 2] = [Role::Host, Role::Admin];

    /// The DNS name of the role in a certificate. `.internal` is reserved for private use and resolves nowhere.
    pub const fn dns_name(self) -> &'static str {
        match self {
            Role::Gateway => "gateway.holdfast.internal",
            Role::Host => "host.holdfast.internal",
            Role::Admin => "admin.holdfast.internal",
        }
    }

    /// The roles in a certificate. Does not check signature and validity: TLS has done that before.
    ///
    /// # Errors
    /// The error in the bytes.
    pub(crate) fn of(certificate_der: &[u8]) -> Result<Vec<Role>, String> {
        let der = rustls_pki_types::CertificateDer::from(certificate_der);
        let certificate = webpki::EndEntityCert::try_from(&der).map_err(|error| error.to_string())?;
        let names: Vec<&str> = certificate.valid_dns_names().collect();
        Ok(Role::ALL.into_iter().filter(|role| names.contains(&role.dns_name())).collect())
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Gateway => "gateway",
            Role::Host => "host",
            Role::Admin => "admin",
        })
    }
}

/// "gateway and host", or "nothing here".
pub(crate) fn roles_text(roles: &[Role]) -> String {
    let names: Vec<String> = roles.iter().map(ToString::to_string).collect();
    if names.is_empty() { "no role of this program".to_string() } else { names.join(" and ") }
}

/// A door's check of each call: the client's certificate must have one of the `allowed` roles (TLS-T3). `None`: a door
/// without TLS.
pub fn require(
    allowed: Option<&'static [Role]>,
) -> impl Fn(Request<()>) -> Result<Request<()>, Status> + Clone + Send + Sync + 'static {
    move |request| {
        let Some(allowed) = allowed else { return Ok(request) };
        let certificates = request.peer_certs();
        let own = certificates.as_ref().and_then(|all| all.first());
        judge(own.map(|own| own.as_ref()), allowed).map(|()| request)
    }
}

/// The same check of an accepted connection, for a door that is not only gRPC (TLS-T3).
///
/// # Errors
/// What was found and what was expected; for the peer.
pub fn admits<C>(connection: &TlsStream<C>, allowed: &[Role]) -> Result<(), String> {
    let own = connection.get_ref().1.peer_certificates().and_then(|all| all.first());
    judge(own.map(|own| own.as_ref()), allowed).map_err(|status| status.message().to_string())
}

fn judge(certificate_der: Option<&[u8]>, allowed: &[Role]) -> Result<(), Status> {
    let Some(own) = certificate_der else {
        return Err(Status::unauthenticated("found no certificate, expected one of this cluster's authority"));
    };
    let roles = Role::of(own).map_err(|error| Status::unauthenticated(format!("certificate: {error}")))?;
    if roles.iter().any(|role| allowed.contains(role)) {
        return Ok(());
    }
    let (found, expected) = (roles_text(&roles), roles_text(allowed));
    Err(Status::permission_denied(format!("found a certificate of {found}, expected one of {expected}")))
}
