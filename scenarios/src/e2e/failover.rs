//! One round of `cargo xtask demo failover`. It fails for a lost commit, a cut-off host that can still write, a killed
//! gateway that moves PostgreSQL or breaks a connection, or a PostgreSQL that does not accept writes again; never for
//! slowness.

use super::{Lab, NAMESPACES};
use crate::demo::failover::{Run, run as round};
use crate::setup;
use anyhow::Result;

pub(super) const NEEDS: &[&str] = &[
    "ip",
    "iptables",
    "unshare",
    "nsenter",
    "nbdfuse",
    "/usr/sbin/haproxy",
    "/usr/lib/postgresql/15/bin/postgres",
    NAMESPACES,
];

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let rounds = if lab.long { 5 } else { 1 };
    round(&Run { bin: &lab.bin, dir: &lab.dir, rounds, load: 1, scale: 1, secure: false, postgresql: None })
}

/// The same with everything on that keeps others out.
pub(super) fn run_secure(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    round(&Run { bin: &lab.bin, dir: &lab.dir, rounds: 1, load: 1, scale: 1, secure: true, postgresql: None })
}
