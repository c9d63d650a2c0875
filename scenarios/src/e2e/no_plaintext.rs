//! What somebody on the network reads of an open and of a secured cluster.

use super::{Lab, NAMESPACES};
use crate::plaintext;
use crate::setup;
use anyhow::Result;

pub(super) const NEEDS: &[&str] = &[
    "ip",
    "iptables",
    "unshare",
    "nsenter",
    "nbdfuse",
    "nbdinfo",
    "versitygw",
    "/usr/sbin/haproxy",
    "/usr/lib/postgresql/15/bin/postgres",
    NAMESPACES,
];

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    plaintext::run(&lab.bin, &lab.dir)
}
