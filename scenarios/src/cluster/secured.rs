//! What the client of a cluster that `holdfast dev --secure` has started has to show: certificates, and the token of a
//! lease.

use crate::certificates::Certificates;
use anyhow::{Context, Result};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

/// The owner for whom `holdfast dev --secure` makes a certificate, which has the same name.
pub(super) const OWNER: &str = "db1";

/// How the scheme of an address says that TLS is required.
pub(super) const SCHEME: &str = "nbds://";

/// What the client has.
#[derive(Debug)]
pub(super) struct Secured {
    pub(super) certificates: Certificates,
    pub(super) lease: Option<Lease>,
}

/// A grant.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) token: String,
    /// NBD address of the gateway that gave it.
    pub(super) address: String,
    /// Of the last connection with it.
    generation: AtomicU32,
}

impl Lease {
    /// Of which no connection was made yet.
    pub(super) fn new(token: &str, address: &str) -> Self {
        Self { token: token.to_owned(), address: address.to_owned(), generation: AtomicU32::new(0) }
    }
}

impl Secured {
    /// With the certificates that `holdfast dev` has made in its folder.
    pub(super) fn of(dir: &Path) -> Self {
        Self { certificates: Certificates::of(&dir.join("tls")), lease: None }
    }

    /// Environment of commands: everything may be asked.
    pub(super) fn env(&self) -> Vec<(String, String)> {
        self.certificates.env("admin")
    }

    /// The export of a volume (SET/VOLUME) for a new connection, which closes the one before it. Fails when there is no
    /// lease.
    pub(super) fn export(&self, volume: &str) -> Result<String> {
        let lease = self.lease.as_ref().context("no lease")?;
        let generation = lease.generation.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(format!("{volume}?token={}&conn=0&gen={generation}", lease.token))
    }
}
