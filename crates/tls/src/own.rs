//! A process's own certificate.

use crate::accept::Acceptor;
use crate::dial::Dialer;
use crate::error::TlsError;
use crate::expiry::Expiry;
use crate::live::Live;
use crate::load::Paths;
use crate::revoked::Revocations;
use crate::role::Role;
use crate::shown::Shown;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fmt::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;

/// Metrics and their explanations, as a gateway's.
const EXPIRES: (&str, &str) = (
    "holdfast_certificate_expires_timestamp_seconds",
    "Unix time when the TLS certificate expires, or an authority between that is warned of before (kind own), and the \
     last authority that is trusted (authority).",
);
const WARNED: (&str, &str) = (
    "holdfast_certificate_warned_timestamp_seconds",
    "Unix time from which that is warned of: 30 days ahead, or in the last third of its life if that is shorter.",
);
const UNUSABLE: (&str, &str) = (
    "holdfast_certificate_files_unusable",
    "1 while the changed TLS files cannot be used, so that those read before stay in use.",
);

/// Paths of the three files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TlsFiles {
    /// The authority's certificate (PEM): the only one that is trusted.
    pub ca: Option<PathBuf>,
    /// This process's certificate (PEM), made by that authority.
    pub certificate: Option<PathBuf>,
    /// Its private key (PEM), in a file that no other user can read (SECRET-F2).
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
        let load = |paths| Live::load(paths).map(|live| Tls { live });
        self.paths(role)?.map(load).transpose()
    }

    /// Like `load`, for a process that must not end for it: files that cannot be used now are taken by [`Tls::follow`]
    /// once they can. Until then [`Tls::trouble`] says why, and every handshake fails (LIVE-C4).
    ///
    /// # Errors
    /// Some files are named and others not.
    pub fn load_or_later(&self, role: Role) -> Result<Option<Tls>, TlsError> {
        Ok(self.paths(role)?.map(|paths| Tls { live: Live::load_or_later(paths) }))
    }

    fn paths(&self, role: Role) -> Result<Option<Paths>, TlsError> {
        match (&self.ca, &self.certificate, &self.key) {
            (Some(ca), Some(certificate), Some(key)) => {
                let (ca, certificate, key) = (ca.clone(), certificate.clone(), key.clone());
                Ok(Some(Paths { ca, certificate, key, role }))
            }
            (None, None, None) => Ok(None),
            _ => {
                let named = [("tls.ca", &self.ca), ("tls.certificate", &self.certificate), ("tls.key", &self.key)];
                let found: Vec<&str> = named.iter().filter(|(_, path)| path.is_some()).map(|(name, _)| *name).collect();
                Err(TlsError::Incomplete { found: format!("only {}", found.join(" and ")) })
            }
        }
    }
}

/// A process's identity, and the authority that it trusts. All clones, and what is made of them, use the files as
/// [`Self::follow`] has read them last (LIVE-C1). Cheap to clone.
#[derive(Clone)]
pub struct Tls {
    pub(crate) live: Arc<Live>,
}

impl fmt::Debug for Tls {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// TLS for a door.
    pub fn acceptor(&self) -> Acceptor {
        Acceptor::new(self.live.clone())
    }

    /// When the certificates in use expire.
    pub fn expiry(&self) -> Expiry {
        self.live.expiry()
    }

    /// The certificate in use, for people.
    pub fn shown(&self) -> Shown {
        self.live.current().map(|loaded| loaded.shown).unwrap_or_default()
    }

    /// The certificates that count no more, for this process.
    pub fn revocations(&self) -> &Revocations {
        self.live.revocations()
    }

    /// Why the files on the disk are not in use; `None` if they are (LIVE-C2).
    pub fn trouble(&self) -> Option<String> {
        self.live.trouble()
    }

    /// The metrics of the certificates in use, for Prometheus, each with these `labels`.
    pub fn metrics(&self, labels: &str) -> String {
        let (expiry, unusable) = (self.expiry(), u8::from(self.trouble().is_some()));
        let mut out = String::new();
        let ends = [("own", expiry.own), ("authority", expiry.authority)];
        let warned = [("own", expiry.own_warned), ("authority", expiry.authority_warned)];
        for ((name, help), all) in [(EXPIRES, ends), (WARNED, warned)] {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge");
            for (kind, at) in all.into_iter().filter_map(|(kind, at)| Some((kind, at?))) {
                let _ = writeln!(out, "{name}{{{labels},kind=\"{kind}\"}} {at}");
            }
        }
        let (name, help) = UNUSABLE;
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{{labels}}} {unusable}");
        out
    }

    /// What to tell a person: files that cannot be used, certificates that expire soon.
    pub fn warnings(&self) -> Vec<String> {
        self.live.warnings()
    }

    /// Reads the files again when they change, and on SIGHUP. Without it they stay as they were at the start. Once in
    /// a process.
    pub async fn follow(&self) -> Infallible {
        self.live.follow().await
    }
}

impl From<&Tls> for Dialer {
    fn from(tls: &Tls) -> Self {
        Self::with(tls.live.clone())
    }
}

impl From<Option<&Tls>> for Dialer {
    fn from(tls: Option<&Tls>) -> Self {
        tls.map_or_else(Self::default, Self::from)
    }
}
