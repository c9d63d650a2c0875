//! The role that a certificate gives to its bearer, and whose it is.

use crate::revoked::Identity;
use sha2::{Digest, Sha256};
use std::fmt;
use tonic::Status;

/// The role of a process in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// A gateway: serves, votes, keeps the journal.
    Gateway,
    /// A host of PostgreSQL: its attach and its agent.
    Host,
    /// A person or a tool that looks and changes nothing.
    Viewer,
    /// A person or a tool that runs what is there.
    Operator,
    /// A person or a tool that may do everything.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 5] = [Role::Gateway, Role::Host, Role::Viewer, Role::Operator, Role::Admin];
    /// Those that may use NBD: hosts attach, administrators import and export.
    pub const NBD: [Role; 2] = [Role::Host, Role::Admin];

    /// The DNS name of the role in a certificate. `.internal` is reserved for private use and resolves nowhere.
    pub const fn dns_name(self) -> &'static str {
        match self {
            Role::Gateway => "gateway.holdfast.internal",
            Role::Host => "host.holdfast.internal",
            Role::Viewer => "viewer.holdfast.internal",
            Role::Operator => "operator.holdfast.internal",
            Role::Admin => "admin.holdfast.internal",
        }
    }

    /// The name, as in messages and in the certificate's DNS name.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Gateway => "gateway",
            Role::Host => "host",
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// "gateway and host", or "nothing here".
pub(crate) fn roles_text(roles: &[Role]) -> String {
    let names: Vec<&str> = roles.iter().map(|role| role.name()).collect();
    if names.is_empty() { "no role of this program".to_string() } else { names.join(" and ") }
}

/// Before a name that the host may use as owner, in a URI name of its certificate (TLS-T4).
pub(crate) const OWNER_URI: &str = "holdfast://owner/";

/// Before the name of a set that the host may use.
pub(crate) const SET_URI: &str = "holdfast://set/";

/// In place of an owner's name: any. For a cluster on one machine.
pub const ANY_OWNER: &str = "*";

/// How all URIs begin that this program gives a meaning.
const URI_SCHEME: &str = "holdfast:";

/// Longest common name of a certificate, in characters.
const NAME_CHARS_MAX: usize = 127;

/// What a client's certificate says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The subject's common name; the serial number in hex if there is none.
    pub name: String,
    /// The serial number, as in [`Identity`].
    pub serial: String,
    /// SHA-256 of the certificate.
    pub fingerprint: [u8; 32],
    /// Its roles.
    pub roles: Vec<Role>,
    /// The owner names in it; none: its own name.
    owners: Vec<String>,
    /// The sets in it; none: all.
    sets: Vec<String>,
}

impl Caller {
    /// Reads a certificate. Does not check signature and validity: TLS has done that before.
    ///
    /// # Errors
    /// The error in the bytes, or a name in it that must not be misunderstood (TLS-T4).
    pub fn of(certificate_der: &[u8]) -> Result<Self, String> {
        let der = rustls_pki_types::CertificateDer::from(certificate_der);
        let certificate = webpki::EndEntityCert::try_from(&der).map_err(|error| error.to_string())?;
        let names: Vec<&str> = certificate.valid_dns_names().collect();
        let roles = Role::ALL.into_iter().filter(|role| names.contains(&role.dns_name())).collect();
        let uris: Vec<&str> = certificate.valid_uri_names().collect();
        // One that is mistyped would bind to nothing: without sets, a host may use all of them.
        if let Some(uri) = uris.iter().find(|uri| is_ours(uri) && !is_known(uri)) {
            return Err(format!("URI name {uri:?} (of this program are only {OWNER_URI}NAME and {SET_URI}NAME)"));
        }
        let after = |prefix: &str| -> Vec<String> {
            uris.iter().filter_map(|uri| uri.strip_prefix(prefix)).map(str::to_string).collect()
        };
        let Identity { name, serial } = Identity::read(&certificate);
        check_name(&name)?;
        let fingerprint = Sha256::digest(certificate_der).into();
        Ok(Self { name, serial, fingerprint, roles, owners: after(OWNER_URI), sets: after(SET_URI) })
    }

    /// The client of a connection with TLS.
    ///
    /// # Errors
    /// There is no certificate, or it cannot be read.
    pub fn at_door(certificate_der: Option<&[u8]>) -> Result<Self, Status> {
        let Some(own) = certificate_der else {
            return Err(Status::unauthenticated("found no certificate, expected one of this cluster's authority"));
        };
        Self::of(own).map_err(|error| Status::unauthenticated(format!("certificate: {error}")))
    }

    /// The check of a door: the certificate has one of the `allowed` roles (TLS-T3).
    ///
    /// # Errors
    /// What was found and what was expected; for the client.
    pub fn has_one_of(&self, allowed: &[Role]) -> Result<(), String> {
        let roles = &self.roles;
        if roles.iter().any(|role| allowed.contains(role)) {
            return Ok(());
        }
        let expected: Vec<&str> = allowed.iter().map(|role| role.name()).collect();
        let (found, expected) = (roles_text(roles), expected.join(", "));
        Err(format!("found role {found} of certificate {}, expected one of {expected}", self.name))
    }

    /// What it may be revoked by.
    pub fn identity(&self) -> Identity {
        Identity { name: self.name.clone(), serial: self.serial.clone() }
    }

    /// Its roles, for messages.
    pub fn roles_text(&self) -> String {
        roles_text(&self.roles)
    }

    /// The owner names that it may use, for messages.
    pub fn owners_text(&self) -> String {
        if self.owners.is_empty() { self.name.clone() } else { self.owners.join(", ") }
    }

    /// The sets that it may use, for messages.
    pub fn sets_text(&self) -> String {
        if self.sets.is_empty() { "any".to_string() } else { self.sets.join(", ") }
    }

    /// TLS-T4: whether it may hold a lease under this name.
    pub fn may_own(&self, owner: &str) -> bool {
        match self.owners.as_slice() {
            [] => self.name == owner,
            owners => owners.iter().any(|own| own == owner || own == ANY_OWNER),
        }
    }

    /// TLS-T4: whether it may use this set.
    pub fn may_use(&self, set: &str) -> bool {
        self.sets.is_empty() || self.sets.iter().any(|own| own == set)
    }

    /// Like `may_use`, at the NBD door, where only hosts are bound to sets. Says nothing about what there is.
    ///
    /// # Errors
    /// What was found and what was expected; for the client.
    pub fn may_open(&self, set: &str) -> Result<(), String> {
        if self.roles.contains(&Role::Admin) || self.may_use(set) {
            return Ok(());
        }
        let (whose, sets) = (&self.name, self.sets_text());
        Err(format!(
            "found set {set} in an export of host {whose}, expected one of {sets}: the sets in its certificate"
        ))
    }

    /// TLS-T4: whether it may know of all sets. Only hosts are bound to sets.
    pub fn sees_all(&self) -> bool {
        self.sets.is_empty() || self.roles.iter().any(|role| *role != Role::Host)
    }
}

/// Whether a URI name is meant for this program.
fn is_ours(uri: &str) -> bool {
    uri.get(..URI_SCHEME.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(URI_SCHEME))
}

/// Whether a URI name is one of an owner or a set.
pub(crate) fn is_known(uri: &str) -> bool {
    let name = uri.strip_prefix(OWNER_URI).or_else(|| uri.strip_prefix(SET_URI));
    name.is_some_and(|name| !name.is_empty() && !name.chars().any(char::is_control))
}

/// A common name is compared with owners and written into logs: one that would have to be cut is refused.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let chars = name.chars().count();
    if chars > NAME_CHARS_MAX {
        return Err(format!("a common name of {chars} characters (at most {NAME_CHARS_MAX})"));
    }
    if name.chars().any(char::is_control) {
        return Err(format!("common name {name:?} with control characters"));
    }
    Ok(())
}
