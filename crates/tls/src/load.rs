//! A process's own certificate, from its files.

use crate::dial::{ClientTls, Dialer};
use crate::error::TlsError;
use crate::files::{PEM_BYTES_MAX, text, whole};
use crate::role::{Caller, Role, roles_text};
use crate::stream::{Acceptor, Configs, HANDSHAKE_TIMEOUT};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

/// Paths of the three files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsFiles {
    /// The authority's certificate (PEM): the only one that is trusted.
    pub ca: Option<PathBuf>,
    /// This process's certificate (PEM), made by that authority.
    pub certificate: Option<PathBuf>,
    /// Its private key (PEM). Only its owner may read the file.
    pub key: Option<PathBuf>,
}

impl TlsFiles {
    /// Whether any of the files is named.
    pub fn any(&self) -> bool {
        self.ca.is_some() || self.certificate.is_some() || self.key.is_some()
    }

    /// Reads them; `None` if none is named.
    ///
    /// # Errors
    /// Some files are named and others not; a file cannot be read or holds something else; the certificate is not one
    /// of `role`.
    pub fn load(&self, role: Role) -> Result<Option<Tls>, TlsError> {
        match (&self.ca, &self.certificate, &self.key) {
            (Some(ca), Some(certificate), Some(key)) => Tls::load(ca, certificate, key, role).map(Some),
            (None, None, None) => Ok(None),
            _ => {
                let named = [("tls.ca", &self.ca), ("tls.certificate", &self.certificate), ("tls.key", &self.key)];
                let found: Vec<&str> = named.iter().filter(|(_, path)| path.is_some()).map(|(name, _)| *name).collect();
                Err(TlsError::Incomplete { found: format!("only {}", found.join(" and ")) })
            }
        }
    }
}

/// A process's identity, and the authority that it trusts.
#[derive(Clone)]
pub struct Tls {
    ca: Certificate,
    identity: Identity,
    configs: Configs,
}

impl fmt::Debug for Tls {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

fn read(path: &Path) -> Result<(String, u32), TlsError> {
    let failed = |source| TlsError::File { path: path.into(), source };
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
    // A file that is too long is refused, not cut. Otherwise an authority at its end would be missing.
    let text = whole(&file, PEM_BYTES_MAX).and_then(text).map_err(failed)?;
    Ok((text, mode))
}

fn certificates(path: &Path) -> Result<(String, Vec<CertificateDer<'static>>), TlsError> {
    let (text, _) = read(path)?;
    let bad = |found| TlsError::Content { path: path.into(), found, expected: "a certificate (PEM)" };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let all = all.map_err(|error| bad(error.to_string()))?;
    if all.is_empty() {
        return Err(bad("none".to_string()));
    }
    Ok((text, all))
}

impl Tls {
    /// Reads the three files and checks each by itself, so that a message names the one that is wrong.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(ca: &Path, certificate: &Path, key: &Path, role: Role) -> Result<Self, TlsError> {
        let (ca_text, ca) = certificates(ca)?;
        let (own_text, own) = certificates(certificate)?;
        let of = |der: &CertificateDer<'_>| Caller::of(der.as_ref()).map(|caller| caller.roles);
        let roles = own.first().map_or(Ok(Vec::new()), of).map_err(|found| TlsError::Content {
            path: certificate.into(),
            found,
            expected: "a certificate (X.509)",
        })?;
        // Commands take a certificate of any role: the gateways say what it may do.
        if role != Role::Admin && !roles.contains(&role) || roles.is_empty() {
            let found = roles_text(&roles);
            return Err(TlsError::Role { path: certificate.into(), found, expected: role });
        }
        let (key_text, mode) = read(key)?;
        if mode & 0o007 != 0 {
            return Err(TlsError::Exposed { path: key.into(), mode });
        }
        let key = PrivateKeyDer::from_pem_slice(key_text.as_bytes()).map_err(|error| TlsError::Content {
            path: key.into(),
            found: error.to_string(),
            expected: "a private key (PEM)",
        })?;
        let configs = Configs::new(ca, own, key).map_err(|reason| TlsError::Unusable { reason })?;
        let (ca, identity) = (Certificate::from_pem(ca_text), Identity::from_pem(own_text, key_text));
        let tls = Self { ca, identity, configs };
        // Finds a key of another certificate now, not at the first connection.
        Dialer::from(&tls).endpoint("127.0.0.1:1").map_err(|reason| TlsError::Unusable { reason })?;
        Ok(tls)
    }

    /// TLS settings for a gRPC server.
    pub fn server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new()
            .identity(self.identity.clone())
            .client_ca_root(self.ca.clone())
            .timeout(HANDSHAKE_TIMEOUT)
    }

    /// The same for a door that takes gRPC and other connections.
    pub fn acceptor(&self) -> Acceptor {
        self.configs.acceptor()
    }

    pub(crate) fn client(&self) -> ClientTls {
        let grpc = ClientTlsConfig::new()
            .ca_certificate(self.ca.clone())
            .identity(self.identity.clone())
            .domain_name(Role::Gateway.dns_name());
        ClientTls { grpc, plain: self.configs.client.clone() }
    }
}

impl From<&Tls> for Dialer {
    fn from(tls: &Tls) -> Self {
        Self::with(tls.client())
    }
}

impl From<Option<&Tls>> for Dialer {
    fn from(tls: Option<&Tls>) -> Self {
        tls.map_or_else(Self::default, Self::from)
    }
}
