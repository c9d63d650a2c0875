//! Reads a process's certificate, key and authority from their files.

use crate::error::TlsError;
use crate::expiry::Lives;
use crate::files::{PEM_BYTES_MAX, read_key, read_text};
use crate::revoked::Revocations;
use crate::role::{Caller, Role, roles_text};
use crate::shown::Shown;
use crate::stream::Configs;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The three files, and the role that the certificate must have.
pub(crate) struct Paths {
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) role: Role,
}

/// What the files hold.
#[derive(Clone)]
pub(crate) struct Loaded {
    pub(crate) configs: Configs,
    pub(crate) lives: Lives,
    pub(crate) shown: Shown,
}

/// Tells a file from what it was before: device, inode, size, and the times of the last change in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp([i128; 5]);

impl Stamp {
    fn of(path: &Path) -> Option<Self> {
        // Follows links: a directory of files is often swapped as a whole, by a link to it.
        let found = std::fs::metadata(path).ok()?;
        let nanos = |seconds: i64, part: i64| i128::from(seconds) * 1_000_000_000 + i128::from(part);
        let (modified, changed) = (nanos(found.mtime(), found.mtime_nsec()), nanos(found.ctime(), found.ctime_nsec()));
        Some(Self([found.dev().into(), found.ino().into(), found.size().into(), modified, changed]))
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    // A file that is too long is refused, not cut. Otherwise an authority at its end would be missing.
    let text = read_text(path, PEM_BYTES_MAX).map_err(|source| TlsError::File { path: path.into(), source })?;
    let bad = |found| TlsError::Content { path: path.into(), found, expected: "a certificate (PEM)" };
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let all = all.map_err(|error| bad(error.to_string()))?;
    if all.is_empty() {
        return Err(bad("none".to_string()));
    }
    Ok(all)
}

impl Paths {
    /// Each file as it is now; `None` for one that cannot be looked at.
    pub(crate) fn stamps(&self) -> [Option<Stamp>; 3] {
        [&self.ca, &self.certificate, &self.key].map(|path| Stamp::of(path))
    }

    /// Reads the three files and checks each by itself, so that a message names the one that is wrong.
    pub(crate) fn load(&self, revocations: &Revocations) -> Result<Loaded, TlsError> {
        let ca = certificates(&self.ca)?;
        let own = certificates(&self.certificate)?;
        let of = |der: &CertificateDer<'_>| Caller::of(der.as_ref()).map(|caller| caller.roles);
        let roles = own.first().map_or(Ok(Vec::new()), of).map_err(|found| TlsError::Content {
            path: self.certificate.clone(),
            found,
            expected: "a certificate (X.509) with valid names",
        })?;
        // Commands take a certificate of any role: the gateways say what it may do.
        if self.role != Role::Admin && !roles.contains(&self.role) || roles.is_empty() {
            let found = roles_text(&roles);
            return Err(TlsError::Role { path: self.certificate.clone(), found, expected: self.role });
        }
        let key_text = read_key(&self.key, PEM_BYTES_MAX).map_err(|error| TlsError::of_secret(&self.key, error))?;
        let key = PrivateKeyDer::from_pem_slice(key_text.as_bytes()).map_err(|error| TlsError::Content {
            path: self.key.clone(),
            found: error.to_string(),
            expected: "a private key (PEM)",
        })?;
        let lives = Lives::of(&own, &ca);
        let shown = Shown::of(&own, &ca);
        let configs = Configs::new(ca, own, key, revocations).map_err(|reason| TlsError::Unusable { reason })?;
        Ok(Loaded { configs, lives, shown })
    }
}
