//! `[tls]` of a gateway.

use holdfast_settings::settings;
use holdfast_tls::{HttpTls, Role, Tls, TlsError, TlsFiles};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

settings! {
    /// Mutual TLS for NBD, the admin API and between gateways: set all three files, or none.
    pub struct TlsConfig {
        /// Certificate of the authority (PEM). Nothing else is trusted: no system authority and no authority of another
        /// cluster.
        ca: Option<PathBuf> = None, sample "/etc/holdfast/tls/ca.pem";
        /// This gateway's certificate (PEM), signed by that authority, with the DNS name gateway.holdfast.internal.
        certificate: Option<PathBuf> = None, sample "/etc/holdfast/tls/g1.pem";
        /// Its private key (PEM). A file that others can read is refused. New files are used without a restart.
        key: Option<PathBuf> = None, sample "/etc/holdfast/tls/g1.key";
        /// TLS on `nbd_listen`. `required`: only clients with a host's or an administrator's certificate are served.
        /// `optional`: clients in plain text as well. `off`: plain text only, and clients that want TLS refuse it. Left
        /// out: `required` with the three files, else `off`. `nbd_unix` never has TLS.
        nbd: Option<NbdTls> = None, sample "required";
        /// For a cluster that comes to TLS without an outage: api_listen and peer_listen take connections without TLS
        /// as well, and whoever makes one may do everything there. `accept`: this gateway itself connects without TLS.
        /// `use`: with TLS, once all gateways are at `accept`. Needs plaintext_network = true off loopback; `nbd` is
        /// `optional` if left out. Left out: only TLS.
        transition: Option<TlsTransition> = None, sample "accept";
        /// TLS on `http_listen`. `required`: nothing is answered without TLS, and metrics need the certificate of a
        /// viewer, an operator or an administrator. `checks`: the same, and health checks in plain text, too. `off`:
        /// plain text only. Left out: `off`.
        http: Option<HttpTls> = None, sample "checks";
    }
}

/// TLS of the NBD port (NBD_OPT_STARTTLS).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NbdTls {
    /// Plain text only.
    Off,
    /// The client decides.
    Optional,
    /// A client without a certificate is not served.
    Required,
}

impl NbdTls {
    /// The name in the settings, the log and the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            NbdTls::Off => "off",
            NbdTls::Optional => "optional",
            NbdTls::Required => "required",
        }
    }
}

/// A step of a cluster that comes to TLS (ADR 0049).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsTransition {
    /// Takes both, and connects without TLS.
    Accept,
    /// Takes both, and connects with TLS.
    Use,
}

impl TlsTransition {
    /// The name in the settings, the log and the admin API.
    pub fn as_str(self) -> &'static str {
        match self {
            TlsTransition::Accept => "accept",
            TlsTransition::Use => "use",
        }
    }
}

impl TlsConfig {
    fn files(&self) -> TlsFiles {
        TlsFiles { ca: self.ca.clone(), certificate: self.certificate.clone(), key: self.key.clone() }
    }

    /// Whether any file is configured.
    pub fn any(&self) -> bool {
        self.files().any()
    }

    /// TLS of the NBD port.
    pub fn nbd_mode(&self) -> NbdTls {
        let unless_said = if self.transition.is_some() { NbdTls::Optional } else { NbdTls::Required };
        if self.any() { self.nbd.unwrap_or(unless_said) } else { NbdTls::Off }
    }

    /// TLS of the HTTP port.
    pub fn http_mode(&self) -> HttpTls {
        self.http.unwrap_or(HttpTls::Off)
    }

    /// TLS of the admin door and of the door between gateways: the transition, `required` or `off`.
    pub fn doors(&self) -> &'static str {
        match self.transition {
            Some(transition) => transition.as_str(),
            None if self.any() => NbdTls::Required.as_str(),
            None => NbdTls::Off.as_str(),
        }
    }

    /// Reads the files; `None` if none is configured.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(&self, role: Role) -> Result<Option<Tls>, TlsError> {
        self.files().load(role)
    }
}
