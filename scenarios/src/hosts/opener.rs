//! A process on a host that has a file open, as a shell or a backup program of an administrator has.

use crate::cmd::{self, cmd};
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

/// Opens the file, says so, and stays until its input ends.
const SCRIPT: &str = "exec 3< \"$1\" && echo open && exec cat > /dev/null";

/// The name of the process from then on.
pub const OPENER: &str = "cat";

/// See the module.
#[derive(Debug)]
pub struct Opener(Child);

impl Opener {
    /// In the mount and pid namespaces that process `host` has made.
    pub(super) fn start(host: u32, file: &Path) -> Result<Self> {
        let mounts = format!("--mount=/proc/{host}/ns/mnt");
        let command = cmd("nsenter").arg(mounts).arg(format!("--pid=/proc/{host}/ns/pid_for_children"));
        let mut command = command.args(["--", "sh", "-c", SCRIPT, "sh"]).arg(file).into_command();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let child = command.spawn().with_context(|| cmd::show(&command))?;
        let mut opener = Self(child);
        let mut said = String::new();
        BufReader::new(opener.0.stdout.take().context("no stdout")?).read_line(&mut said)?;
        anyhow::ensure!(said == "open\n", "{}: found {said:?}, expected that it is opened", file.display());
        Ok(opener)
    }

    /// Lets go of the file. Fails when the process ends with another status than 0.
    pub fn end(mut self) -> Result<()> {
        drop(self.0.stdin.take());
        let status = self.0.wait()?;
        anyhow::ensure!(status.success(), "the process with an open file ended with {status}");
        Ok(())
    }
}

impl Drop for Opener {
    fn drop(&mut self) {
        // It ends with its input.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
