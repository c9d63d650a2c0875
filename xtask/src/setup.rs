//! Installing what is missing: Debian packages by apt, a real S3 server by the Go tool chain.

use crate::cmd::{cmd, on_path};
use crate::say;
use anyhow::{Context, Result};
use std::path::Path;

/// A Debian package and the program or file that shows that it is there, however it got there.
struct Package {
    name: &'static str,
    shown_by: &'static str,
    for_what: &'static str,
}

const fn package(name: &'static str, shown_by: &'static str, for_what: &'static str) -> Package {
    Package { name, shown_by, for_what }
}

/// What the demo needs.
const DEMO: &[Package] = &[
    package("libnbd-bin", "nbdfuse", "a volume as a file where the kernel has no nbd"),
    package("mount", "losetup", "loop devices"),
    package("e2fsprogs", "mkfs.ext4", "the file system on the volume"),
    package("postgresql-15", "/usr/lib/postgresql/15/bin/postgres", "the database on the volume"),
];

/// What the demo of failovers needs on top.
const FAILOVER: &[Package] = &[
    package("iproute2", "ip", "network namespaces"),
    package("iptables", "iptables", "a host that is cut off"),
    package("haproxy", "haproxy", "one address for two hosts of PostgreSQL"),
];

/// What the tests and the benchmark need on top.
const TESTS: &[Package] = &[
    package("nbdkit", "nbdkit", "the server to compare with"),
    package("qemu-utils", "qemu-img", "a second NBD client"),
    package("xfsprogs", "mkfs.xfs", "another file system on the volume"),
    package("fio", "fio", "load, and verification of what was written"),
    package("etcd-server", "etcd", "an etcd that is told of grants"),
    package("etcd-client", "etcdctl", "what it was told, read by its own tool"),
    package("pgbouncer", "pgbouncer", "a pool of connections in front of HAProxy"),
    package("python3-libnbd", "/usr/lib/python3/dist-packages/nbd.py", "nbdsh, a third NBD client"),
];

/// The S3 server that the tests talk to on loopback.
const VERSITYGW: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";

/// How much to install.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    Demo,
    Failover,
    Tests,
}

/// Installs what is missing and says so. Does nothing where nothing is missing.
///
/// # Errors
/// When something is missing and cannot be installed: not root, no apt, or apt failed.
pub fn setup(what: For) -> Result<()> {
    say::step("Looking for the programs that this needs");
    packages(what)?;
    if what == For::Tests {
        versitygw();
    }
    Ok(())
}

fn is_there(package: &Package) -> bool {
    let mark = package.shown_by;
    if mark.starts_with('/') {
        return Path::new(mark).exists();
    }
    // A shell without /sbin on its PATH still has mkfs and losetup there.
    on_path(mark) || ["/usr/sbin", "/sbin"].iter().any(|dir| Path::new(dir).join(mark).is_file())
}

fn packages(what: For) -> Result<()> {
    let failover = if what == For::Demo { &[] } else { FAILOVER };
    let wanted = DEMO.iter().chain(failover).chain(if what == For::Tests { TESTS } else { &[] });
    let missing: Vec<&Package> = wanted.filter(|p| !is_there(p)).collect();
    if missing.is_empty() {
        say::note("all there");
        return Ok(());
    }
    for package in &missing {
        say::note(format!("missing: {:16} {}", package.name, package.for_what));
    }
    let names: Vec<&str> = missing.iter().map(|p| p.name).collect();
    let by_hand = format!("install by hand: {}", names.join(" "));
    anyhow::ensure!(on_path("apt-get"), "this machine has no apt-get; {by_hand} (the names are Debian's)");
    anyhow::ensure!(is_root(), "only root can install packages; run this as root, or {by_hand}");
    say::step(format!("apt-get install {}", names.join(" ")));
    let apt = || cmd("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y", "-o", "Dpkg::Use-Pty=0"]);
    apt().arg("update").run().context("apt-get update")?;
    apt()
        .args(["install", "--no-install-recommends", "--no-upgrade"])
        .args(&names)
        .run()
        .with_context(|| by_hand.clone())?;
    let still: Vec<&str> = missing.iter().filter(|p| !is_there(p)).map(|p| p.shown_by).collect();
    anyhow::ensure!(still.is_empty(), "apt-get ended well, but not found: {}", still.join(", "));
    say::note("installed");
    Ok(())
}

/// A missing S3 server makes its tests say `skipped`, not fail: it needs a Go tool chain newer than some distributions have.
pub fn versitygw() {
    if on_path("versitygw") {
        return;
    }
    if !on_path("go") {
        say::note("versitygw is not there, and no Go to build it: tests against a real S3 server will say skipped.");
        say::note(format!("To have them: install Go 1.24 or later (go.dev/doc/install), then: go install {VERSITYGW}"));
        return;
    }
    say::step(format!("go install {VERSITYGW} (some minutes)"));
    // Next to the other programs, where it is found without a change of the PATH.
    let built = cmd("go").env("GOBIN", "/usr/local/bin").env("GOTOOLCHAIN", "auto").args(["install", VERSITYGW]).run();
    match built {
        Ok(()) => say::note("installed as /usr/local/bin/versitygw"),
        Err(e) => say::note(format!("not installed, tests against a real S3 server will say skipped: {e:#}")),
    }
}

/// Whether we may mount, make loop devices and become the user postgres.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Fails early, with the reason, where a chore needs root.
///
/// # Errors
/// When we are not root, or there are no loop devices or no FUSE.
pub fn must_be_able_to_mount() -> Result<()> {
    anyhow::ensure!(
        is_root(),
        "this mounts file systems and makes loop devices: run it as root (sudo -E cargo xtask ...)"
    );
    for device in ["/dev/fuse", "/dev/loop-control"] {
        anyhow::ensure!(
            Path::new(device).exists(),
            "{device} is not there (in a container: --privileged, or pass it in)"
        );
    }
    Ok(())
}
