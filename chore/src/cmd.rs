//! Running other programs. Every error shows the command line and the end of the output.

use crate::ends;
use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// A command to run until it ends.
pub struct Cmd(Command);

/// Starts describing a command.
pub fn cmd(program: impl AsRef<OsStr>) -> Cmd {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    Cmd(command)
}

impl Cmd {
    /// From an existing command.
    pub fn of(mut command: Command) -> Self {
        command.stdin(Stdio::null());
        Self(command)
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.0.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(mut self, args: I) -> Self {
        self.0.args(args);
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.0.env(key, value);
        self
    }

    /// Sets the folder in which it runs.
    pub fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.0.current_dir(dir);
        self
    }

    /// The command itself, to spawn it in the background.
    pub fn into_command(self) -> Command {
        self.0
    }

    /// Runs it with its output captured. Fails when it cannot start or ends with a status other than 0; the message has
    /// the end of its output.
    pub fn out(mut self) -> Result<String> {
        let shown = show(&self.0);
        let output = self.0.output().with_context(|| format!("cannot start: {shown}"))?;
        ends::note_output(&shown, output.status, &String::from_utf8_lossy(&output.stderr));
        if !output.status.success() {
            let err = String::from_utf8_lossy(&output.stderr);
            let text = if err.trim().is_empty() { String::from_utf8_lossy(&output.stdout) } else { err };
            bail!("{shown}: {}: {}", output.status, tail(&text, 12));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Like [`Cmd::out`], without returning the output.
    pub fn run(self) -> Result<()> {
        self.out().map(drop)
    }

    /// Runs it with its output going to ours, for programs that show their own progress. Fails when it cannot start or
    /// ends with a status other than 0.
    pub fn show(mut self) -> Result<()> {
        let shown = show(&self.0);
        let status = self.0.status().with_context(|| format!("cannot start: {shown}"))?;
        anyhow::ensure!(status.success(), "{shown}: {status}");
        Ok(())
    }

    /// Whether it runs and ends with status 0. Its output is discarded.
    pub fn succeeds(mut self) -> bool {
        self.0.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
    }
}

/// A command line as a user would type it (without quoting).
pub fn show(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        text.push(' ');
        text.push_str(&arg.to_string_lossy());
    }
    if text.chars().count() > 300 {
        text = text.chars().take(300).chain("...".chars()).collect();
    }
    text
}

/// The last `lines` lines of `text`, joined with ` | `.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join(" | ")
}

/// The end of a log file, for an error message.
pub fn tail_of(path: &Path, lines: usize) -> String {
    match std::fs::read(path) {
        Ok(bytes) => tail(&String::from_utf8_lossy(&bytes), lines),
        Err(e) => format!("({}: {e})", path.display()),
    }
}

/// Whether a program of this name is on the PATH.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// The reason to skip a scenario, if one of its programs is missing.
pub fn missing(programs: &[&'static str]) -> Option<String> {
    let gone: Vec<&str> = programs.iter().copied().filter(|p| !on_path(p) && !Path::new(p).exists()).collect();
    (!gone.is_empty()).then(|| format!("not installed: {} (cargo xtask setup)", gone.join(", ")))
}
