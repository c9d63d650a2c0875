//! Installs missing programs: Debian packages by apt, a real S3 server by the Go tool chain.

use crate::cmd::{Cmd, cmd, on_path};
use crate::say;
use anyhow::{Context, Result};
use std::path::Path;
use std::time::{Duration, Instant};

mod go;
pub use go::find as find_go;

/// A Debian package, and the program or file that shows that it is installed, by whichever means.
struct Package {
    name: &'static str,
    shown_by: &'static str,
    for_what: &'static str,
}

const fn package(name: &'static str, shown_by: &'static str, for_what: &'static str) -> Package {
    Package { name, shown_by, for_what }
}

/// Packages for the demo.
const DEMO: &[Package] = &[
    package("libnbd-bin", "nbdfuse", "shows a volume as a file where the kernel has no nbd"),
    package("mount", "losetup", "loop devices"),
    package("e2fsprogs", "mkfs.ext4", "the file system on the volume"),
    package("postgresql-15", "/usr/lib/postgresql/15/bin/postgres", "the database on the volume"),
];

/// Further packages for the demo of failovers.
const FAILOVER: &[Package] = &[
    package("iproute2", "ip", "network namespaces"),
    package("iptables", "iptables", "cuts a host off the network"),
    package("haproxy", "haproxy", "one address for two PostgreSQL hosts"),
];

/// Further packages for the tests and the benchmark.
const TESTS: &[Package] = &[
    package("nbdkit", "nbdkit", "an NBD server to compare with"),
    package("qemu-utils", "qemu-img", "a second NBD client"),
    package("xfsprogs", "mkfs.xfs", "another file system on the volume"),
    package("fio", "fio", "load, and verification of written data"),
    package("etcd-server", "etcd", "an etcd that receives lease grants"),
    package("etcd-client", "etcdctl", "reads the etcd's keys with its own tool"),
    package("pgbouncer", "pgbouncer", "a connection pool in front of HAProxy"),
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

/// Installs missing programs and prints which. Does nothing if none is missing.
///
/// # Errors
/// When something is missing and cannot be installed: not root, no apt, or apt failed.
pub fn setup(what: For) -> Result<()> {
    say::step("Checking for the programs that this chore needs");
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
    // A shell may not have /sbin on its PATH; mkfs and losetup are there.
    on_path(mark) || ["/usr/sbin", "/sbin"].iter().any(|dir| Path::new(dir).join(mark).is_file())
}

/// How long to wait for another apt: a machine that has just started often updates itself.
const APT_LIMIT: Duration = Duration::from_secs(300);

/// Pause between two attempts meanwhile.
const APT_PAUSE: Duration = Duration::from_secs(2);

fn apt() -> Cmd {
    let wait = format!("DPkg::Lock::Timeout={}", APT_LIMIT.as_secs());
    // The code below looks for apt's message about a lock.
    let apt = cmd("apt-get").env("DEBIAN_FRONTEND", "noninteractive").env("LC_ALL", "C.UTF-8");
    apt.args(["-q", "-y", "-o", "Dpkg::Use-Pty=0", "-o", &wait])
}

fn apt_update() -> Result<()> {
    once_unlocked(APT_LIMIT, APT_PAUSE, || apt().arg("update").run().context("apt-get update"))
}

/// Repeats the command while another process holds the lock of apt's lists: apt has an option that waits for dpkg's
/// lock, and none for this one.
fn once_unlocked(limit: Duration, pause: Duration, mut run: impl FnMut() -> Result<()>) -> Result<()> {
    let begun = Instant::now();
    let mut said = false;
    loop {
        match run() {
            Err(error) if format!("{error:#}").contains("Could not get lock") && begun.elapsed() < limit => {
                if !said {
                    say::note(format!("another apt is running; waiting at most {} s for it", limit.as_secs()));
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
    anyhow::ensure!(still.is_empty(), "apt-get succeeded, but these were not found: {}", still.join(", "));
    say::note("installed");
    Ok(())
}

/// Without an S3 server its tests are skipped and do not fail: building it needs a Go tool chain, which not every
/// distribution and network has.
pub fn versitygw() {
    if on_path("versitygw") {
        return;
    }
    let go = match go::find_or_install() {
        Ok(go) => go,
        Err(why) => {
            say::note(format!("versitygw is not installed, and cannot be built here: {why:#}"));
            say::note("Tests against a real S3 server will be skipped.");
            say::note(format!(
                "To run them, install Go {} or later (go.dev/doc/install), then run cargo xtask setup",
                go::LEAST
            ));
            return;
        }
    };
    say::step(format!("go install {VERSITYGW} (some minutes; Go downloads a newer Go for it if needed)"));
    // In a folder that is on the PATH already.
    let built = cmd(go).env("GOBIN", "/usr/local/bin").env("GOTOOLCHAIN", "auto").args(["install", VERSITYGW]).run();
    match built {
        Ok(()) => say::note("installed as /usr/local/bin/versitygw"),
        Err(e) => say::note(format!("not installed, so tests against a real S3 server will be skipped: {e:#}")),
    }
}

/// Whether we are root: only root can mount, make loop devices and become the user postgres.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Fails early, with the reason, if a chore needs root and we are not.
///
/// # Errors
/// When we are not root, or loop devices or FUSE are missing.
pub fn must_be_able_to_mount() -> Result<()> {
    anyhow::ensure!(
        is_root(),
        "this mounts file systems and makes loop devices: run it as root (sudo -E cargo xtask ...)"
    );
    for device in ["/dev/fuse", "/dev/loop-control"] {
        anyhow::ensure!(
            Path::new(device).exists(),
            "{device} does not exist (in a container: use --privileged, or pass the device in)"
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
