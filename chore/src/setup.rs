//! Installing what is missing: Debian packages by apt, a real S3 server by the Go tool chain.

use crate::cmd::{Cmd, cmd, on_path};
use crate::say;
use anyhow::{Context, Result};
use std::path::Path;
use std::time::{Duration, Instant};

mod go;
pub use go::find as find_go;

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
    /// The demo.
    Demo,
    /// The demo of failovers.
    Failover,
    /// All tests, and the benchmark.
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

/// How long another apt may go on: a machine that has just started often updates itself.
const APT_LIMIT: Duration = Duration::from_secs(300);

/// How soon it is tried again meanwhile.
const APT_PAUSE: Duration = Duration::from_secs(2);

fn apt() -> Cmd {
    let wait = format!("DPkg::Lock::Timeout={}", APT_LIMIT.as_secs());
    // What it says of a lock is looked for below.
    let apt = cmd("apt-get").env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
    apt.args(["-q", "-y", "-o", "Dpkg::Use-Pty=0", "-o", &wait])
}

fn apt_update() -> Result<()> {
    once_unlocked(APT_LIMIT, APT_PAUSE, || apt().arg("update").run().context("apt-get update"))
}

/// Runs it again while another process holds the lock of apt's lists: for that one, unlike for dpkg's, apt has no option that waits.
fn once_unlocked(limit: Duration, pause: Duration, mut run: impl FnMut() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    let mut said = false;
    loop {
        match run() {
            Err(error) if format!("{error:#}").contains("Could not get lock") && begun.elapsed() < limit => {
                if !said {
                    say::note(format!("another apt is at work; waiting for it for {} s at most", limit.as_secs()));
                    said = true;
                }
                std::thread::sleep(pause);
            }
            result => return result,
        }
    }
}

fn apt_install(names: &[&str]) -> Result<()> {
    apt().args(["install", "--no-install-recommends", "--no-upgrade"]).args(names).run()
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
    apt_update()?;
    apt_install(&names).with_context(|| by_hand.clone())?;
    let still: Vec<&str> = missing.iter().filter(|p| !is_there(p)).map(|p| p.shown_by).collect();
    anyhow::ensure!(still.is_empty(), "apt-get ended well, but not found: {}", still.join(", "));
    say::note("installed");
    Ok(())
}

/// A missing S3 server makes its tests say `skipped`, not fail: it needs a Go tool chain, which neither every distribution nor every network has.
pub fn versitygw() {
    if on_path("versitygw") {
        return;
    }
    let go = match go::find_or_install() {
        Ok(go) => go,
        Err(why) => {
            say::note(format!("versitygw is not there, and nothing to build it with: {why:#}"));
            say::note("Tests against a real S3 server will say skipped.");
            say::note(format!("To have them: Go {} or later (go.dev/doc/install), then cargo xtask setup", go::LEAST));
            return;
        }
    };
    say::step(format!("go install {VERSITYGW} (some minutes; Go fetches a newer Go for it where it has to)"));
    // Next to the other programs, where it is found without a change of the PATH.
    let built = cmd(go).env("GOBIN", "/usr/local/bin").env("GOTOOLCHAIN", "auto").args(["install", VERSITYGW]).run();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_apt_is_waited_for_and_nothing_else_is() {
        let run = |limit: u64, answers: &[&'static str]| {
            let mut left = answers.iter();
            let answer = || match left.next() {
                Some(why) => Err(anyhow::anyhow!("E: {why}").context("apt-get update")),
                None => Ok(()),
            };
            let limit = Duration::from_secs(limit);
            let (result, said) = say::held(|| once_unlocked(limit, Duration::ZERO, answer));
            (result.map_err(|error| format!("{error:#}")), said.len())
        };
        const LOCKED: &str = "Could not get lock /var/lib/apt/lists/lock. It is held by process 7 (apt-get)";
        assert_eq!(run(60, &[LOCKED, LOCKED]), (Ok(()), 1), "said once");
        assert_eq!(run(60, &["no space left"]), (Err("apt-get update: E: no space left".into()), 0));
        assert_eq!(run(0, &[LOCKED]), (Err(format!("apt-get update: E: {LOCKED}")), 0));
    }
}
