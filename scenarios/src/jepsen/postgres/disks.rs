//! Disks of the gateways that lose what was not synced: each a process of its own (jepsen/disk.rs), spoken to by lines.

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

/// How long it may take to answer: a mount, or its end, is in that.
const ANSWERS: Duration = Duration::from_secs(30);

/// How long it may take to end once nobody speaks to it any more.
const ENDS: Duration = Duration::from_secs(10);

/// What a power cut left of what was not synced.
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
    /// Whether there was anything to lose: otherwise the cut was a kill.
    pub fn found(&self) -> bool {
        self.kept + self.lost + self.torn + self.names > 0
    }
}

/// One of them.
#[derive(Debug)]
pub struct Disk {
    at: PathBuf,
    child: Child,
    input: Option<ChildStdin>,
    said: Receiver<String>,
}

impl Disk {
    /// Mounts an empty one at `at`. Only those see it who have its mounts: a host of PostgreSQL copies all of ours when it boots, and a copy would
    /// keep a mount alive that a power cut takes away.
    ///
    /// # Errors
    /// When it cannot be mounted.
    pub fn mount(at: &Path, seed: u64, log: &Path) -> Result<Self> {
        let log = File::options().create(true).append(true).open(log).with_context(|| log.display().to_string())?;
        let command = cmd("unshare").args(["--mount", "--"]).arg(std::env::current_exe()?);
        let command = command.args(["jepsen", "--disk"]).arg(at).args(["--seed", &seed.to_string()]);
        let mut command = command.into_command();
        // A group of its own: Ctrl-C in the terminal reaches us, and it ends with its input.
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

    /// Its mounts, for who is to see it.
    pub fn mounts(&self) -> PathBuf {
        format!("/proc/{}/ns/mnt", self.child.id()).into()
    }

    /// Where we find what is on it.
    pub fn seen(&self) -> PathBuf {
        let at = self.at.strip_prefix("/").unwrap_or(&self.at);
        Path::new(&format!("/proc/{}/root", self.child.id())).join(at)
    }

    /// The power is gone at all of these, in one moment as far as that can be: as soon as the first has something to lose.
    ///
    /// # Errors
    /// When one does not say so.
    pub fn switch_off(mut disks: Vec<&mut Self>) -> Result<()> {
        if let Some(first) = disks.first_mut() {
            first.tell("busy")?;
            first.hears("off")?;
        }
        disks.iter_mut().skip(1).try_for_each(|disk| disk.tell("off"))?;
        disks.iter_mut().skip(1).try_for_each(|disk| disk.hears("off"))
    }

    /// The power is back. Whoever had files open must be dead.
    ///
    /// # Errors
    /// When it is not mounted anew.
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
        said.with_context(|| format!("the disk at {} says nothing, or has ended", self.at.display()))
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
