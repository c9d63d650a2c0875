//! A Debian in a folder, by mmdebstrap, and commands inside it.

use anyhow::{Context, Result};
use holdfast_chore::cmd::{Cmd, cmd};
use holdfast_chore::undo::{Guard, Undo};
use std::path::{Path, PathBuf};

/// The PATH inside, which does not depend on that of whoever runs this.
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Where the machine has its package sources.
const SOURCES: [&str; 2] = ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"];

/// Debian's keys.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The tree. Its /proc goes when this is dropped; the files stay until the next run.
pub struct Tree {
    root: PathBuf,
    _proc: Guard,
}

impl Tree {
    /// Makes one of the machine's own release: a program that was built here starts there. Fails when mmdebstrap fails,
    /// with the end of its output.
    pub fn make(root: &Path, packages: &str) -> Result<Self> {
        let beside = |ending: &str| root.with_extension(ending);
        let about = std::fs::read_to_string("/etc/os-release").context("/etc/os-release")?;
        let suite = about.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
        let suite = suite.context("/etc/os-release: found no VERSION_CODENAME, expected that of a Debian")?;
        let sources = beside("sources");
        std::fs::write(&sources, sources_of_this_machine()?)?;
        // How this machine reaches its packages.
        let options = cmd("apt-config").arg("dump").out()?;
        let wanted = ["Acquire::Check", "Acquire::http", "Acquire::https", "Acquire::Retries"];
        let options: Vec<&str> =
            options.lines().filter(|line| wanted.iter().any(|key| line.starts_with(key))).collect();
        std::fs::write(beside("apt"), options.join("\n") + "\n")?;
        cmd("mmdebstrap")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["--quiet", "--mode=root", "--variant=minbase", "--dpkgopt=force-unsafe-io"])
            .arg(format!("--aptopt={}", beside("apt").display()))
            .args(["--aptopt=APT::Install-Recommends \"false\"", &format!("--keyring={KEYS}")])
            .arg(format!("--include={packages}"))
            .arg(suite)
            .arg(root)
            .arg(&sources)
            .run()?;
        let proc = root.join("proc");
        let guard = Guard::new(Undo::Umount(proc.clone()))?;
        cmd("mount").args(["-t", "proc", "proc"]).arg(&proc).run()?;
        Ok(Self { root: root.to_path_buf(), _proc: guard })
    }

    /// The path of a file in it, from outside.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.root.join(inside)
    }

    /// A command inside, as root.
    pub fn run(&self, words: &[&str]) -> Cmd {
        self.chroot(&[]).args(words)
    }

    /// apt-get inside. The tree has no lists of packages, so nothing is downloaded: what the package needs is there, or
    /// the installation fails.
    pub fn apt(&self, words: &[&str]) -> Cmd {
        self.chroot(&[])
            .args(["apt-get", "-q", "-y", "-o", "Dpkg::Use-Pty=0", "-o", "Dpkg::Options::=--force-confold"])
            .args(words)
    }

    /// A command inside, as the gateway's user. Fails when the user does not exist.
    pub fn as_user(&self, words: &[&str]) -> Result<Cmd> {
        let users = std::fs::read_to_string(self.path("etc/passwd")).context("/etc/passwd")?;
        let user = users.lines().find_map(|line| line.strip_prefix("holdfast:"));
        let user = user.context("/etc/passwd: found no user holdfast, expected the one of the package")?;
        let numbers: Vec<&str> = user.split(':').skip(1).take(2).collect();
        Ok(self.chroot(&[&format!("--userspec={}", numbers.join(":"))]).args(words))
    }

    fn chroot(&self, options: &[&str]) -> Cmd {
        let command = cmd("chroot").args(options).arg(&self.root).args(["/usr/bin/env", "-i"]);
        command.arg(format!("PATH={PATH}")).args(["LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"])
    }
}

/// The machine's own sources of Debian's packages, in whichever form it has them.
fn sources_of_this_machine() -> Result<String> {
    for path in SOURCES {
        let Ok(text) = std::fs::read_to_string(path) else { continue };
        let text: String = if path.ends_with(".sources") {
            text
        } else {
            text.lines().filter(|line| line.starts_with("deb ")).map(|line| format!("{line}\n")).collect()
        };
        if !text.trim().is_empty() {
            return Ok(text);
        }
    }
    anyhow::bail!("found no package sources in {}, expected those of a Debian", SOURCES.join(" and "))
}
