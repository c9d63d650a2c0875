//! Processes of this program, some at a time: each run in one of its own, so that no run affects the next.

use anyhow::{Context, Result};
use std::io::{Read, Seek};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Starts processes, and waits for any of them to end.
pub struct Processes<T> {
    /// Real time after which a process hangs, which counts as a failure.
    limit: Duration,
    most: usize,
    running: Vec<Running<T>>,
}

struct Running<T> {
    what: T,
    child: Child,
    output: std::fs::File,
    began: Instant,
}

/// A process that has ended.
pub struct Ended<T> {
    /// Its work.
    pub what: T,
    /// Its number.
    pub number: u32,
    pub status: ExitStatus,
    /// It was killed, because it hung.
    pub hung: bool,
    /// Its output.
    pub text: String,
}

impl<T> Processes<T> {
    /// At most `most` at once, each for `limit`.
    pub fn new(most: usize, limit: Duration) -> Self {
        Self { limit, most: most.max(1), running: Vec::new() }
    }

    pub fn has_room(&self) -> bool {
        self.running.len() < self.most
    }

    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Runs `what`: this program with these arguments.
    pub fn start(&mut self, what: T, arguments: &[String]) -> Result<()> {
        // A file, not a pipe: nobody reads before the end.
        let output = tempfile::tempfile()?;
        let child = this_program(arguments)?.stdout(output.try_clone()?).spawn()?;
        self.running.push(Running { what, child, output, began: Instant::now() });
        Ok(())
    }

    /// Those that have ended since it was asked last. One that hangs is killed first.
    pub fn ended(&mut self) -> Result<Vec<Ended<T>>> {
        let mut ended = Vec::new();
        let mut at = 0;
        while at < self.running.len() {
            let hung = self.running[at].began.elapsed() > self.limit;
            if hung {
                self.running[at].child.kill()?;
            }
            let Some(status) = self.running[at].child.try_wait()? else {
                at += 1;
                continue;
            };
            let Running { what, child, mut output, .. } = self.running.remove(at);
            let mut text = String::new();
            output.rewind()?;
            output.read_to_string(&mut text)?;
            ended.push(Ended { what, number: child.id(), status, hung, text });
        }
        Ok(ended)
    }
}

/// This program with these arguments, without input and error output.
pub fn this_program(arguments: &[String]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("no path to this program")?);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}
