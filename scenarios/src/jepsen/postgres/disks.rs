//! Disks of the gateways that lose unsynced data: each is a process (jepsen/disk.rs) with a line protocol.

use crate::cmd::{cmd, show};
use crate::process::wait_until;
use anyhow::{Context, Result};
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

/// Limit of an answer, which may include a mount or an unmount.
const ANSWERS: Duration = Duration::from_secs(30);

/// Limit of its exit after its input ends.
const ENDS: Duration = Duration::from_secs(10);

/// Effect of a power cut on unsynced data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
pub struct Left {
    pub kept: u64,
    pub lost: u64,
    pub torn: u64,
    /// Names of files that were undone.
    pub names: u64,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kept, {} lost, {} torn, {} names undone", self.kept, self.lost, self.torn, self.names)
    }
}

impl Left {
    /// Whether there was anything to lose; otherwise the cut was only a kill.
    pub fn found(&self) -> bool {
        self.kept + self.lost + self.torn + self.names > 0
    }
}

/// One such disk.
#[derive(Debug)]
pub struct Disk {
    at: PathBuf,
    child: Child,
    input: Option<ChildStdin>,
    said: Receiver<String>,
}

impl Disk {
    /// Mounts an empty disk at `at`, visible only to processes with its mounts. A PostgreSQL host copies all of our
    /// mounts when it boots, and a copy would keep a mount alive that a power cut removes. Fails when it cannot be
    /// mounted.
    pub fn mount(at: &Path, seed: u64, log: &Path) -> Result<Self> {
        let log = File::options().create(true).append(true).open(log).with_context(|| log.display().to_string())?;
        let command = cmd("unshare").args(["--mount", "--"]).arg(std::env::current_exe()?);
        let command = command.args(["jepsen", "--disk"]).arg(at).args(["--seed", &seed.to_string()]);
        let mut command = command.into_command();
        // Its own process group: Ctrl-C in the terminal reaches us, and it ends with its input.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).process_group(0);
        let mut child = command.spawn().with_context(|| show(&command))?;
        let input = child.stdin.take();
        let out = child.stdout.take().context("no stdout")?;
        let (tell, said) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(std::io::Result::ok);
            lines.take_while(|line| tell.send(line.clone()).is_ok()).for_each(drop);
        });
        let mut disk = Self { at: at.into(), child, input, said };
        disk.hears("ready")?;
        Ok(disk)
    }

    /// Its mount namespace, for processes that use it.
    pub fn mounts(&self) -> PathBuf {
        format!("/proc/{}/ns/mnt", self.child.id()).into()
    }

    /// Path to its content for this process.
    pub fn seen(&self) -> PathBuf {
        let at = self.at.strip_prefix("/").unwrap_or(&self.at);
        Path::new(&format!("/proc/{}/root", self.child.id())).join(at)
    }

    /// Cuts the power of all these at about the same moment: as soon as the first has something to lose. Fails when one
    /// does not confirm it.
    pub fn switch_off(mut disks: Vec<&mut Self>) -> Result<()> {
        if let Some(first) = disks.first_mut() {
            first.tell("busy")?;
            first.hears("off")?;
        }
        disks.iter_mut().skip(1).try_for_each(|disk| disk.tell("off"))?;
        disks.iter_mut().skip(1).try_for_each(|disk| disk.hears("off"))
    }

    /// Restores the power. Processes with open files must have ended. Fails when it cannot be mounted again.
    pub fn switch_on(&mut self) -> Result<Left> {
        self.tell("on")?;
        let said = self.answer()?;
        serde_json::from_str(&said).with_context(|| format!("a disk that is switched on: found {said:?}"))
    }

    fn tell(&mut self, what: &str) -> Result<()> {
        let input = self.input.as_mut().context("the disk has no input")?;
        writeln!(input, "{what}").with_context(|| format!("the disk at {} has ended", self.at.display()))
    }

    fn answer(&mut self) -> Result<String> {
        let said = self.said.recv_timeout(ANSWERS);
        said.with_context(|| format!("the disk at {} does not answer, or has ended", self.at.display()))
    }

    fn hears(&mut self, expected: &str) -> Result<()> {
        let found = self.answer()?;
        anyhow::ensure!(found == expected, "the disk at {}: found {found:?}, expected {expected}", self.at.display());
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.input.take());
        if !wait_until(ENDS, || !matches!(self.child.try_wait(), Ok(None))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_that_found_nothing_unsynced_was_a_kill() -> Result<()> {
        let of = |text: &str| serde_json::from_str::<Left>(text);
        assert!(!of(r#"{"kept":0,"lost":0,"torn":0,"names":0}"#)?.found());
        assert_eq!(of(r#"{"kept":0,"lost":12,"torn":1,"names":0}"#)?, Left { lost: 12, torn: 1, ..Left::default() });
        assert!(of(r#"{"kept":0,"lost":0,"torn":0,"names":1}"#)?.found());
        assert!(of("lies").is_err());
        Ok(())
    }
}
