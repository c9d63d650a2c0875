//! Background processes: each has its own process group, logs to a file, and ends when this process ends.

pub use crate::by_id::{
    Signal, is_alive, is_stopped, is_zombie, kill_group, parent_of, peak_resident_bytes, processor_seconds,
    resident_bytes, signal, start_of,
};
pub use crate::poll::{POLL, wait_until};
use crate::undo::{Guard, Undo};
use crate::{cmd, ends};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A background process that does not outlive this one.
#[derive(Debug)]
pub struct Proc {
    name: String,
    child: Child,
    log: PathBuf,
    guard: Option<Guard>,
}

impl Proc {
    /// Starts `command` with stdout and stderr appended to `log`. Fails when the log cannot be opened or the program
    /// cannot start.
    pub fn spawn(name: &str, command: Command, log: &Path) -> Result<Self> {
        Self::start(name, command, log, false).map(|(proc, _)| proc)
    }

    /// As [`Proc::spawn`], with stdout given to the caller.
    pub fn spawn_piped(name: &str, command: Command, log: &Path) -> Result<(Self, ChildStdout)> {
        let (proc, out) = Self::start(name, command, log, true)?;
        Ok((proc, out.context("no stdout")?))
    }

    fn start(name: &str, mut command: Command, log: &Path, piped: bool) -> Result<(Self, Option<ChildStdout>)> {
        let file = File::options().create(true).append(true).open(log).with_context(|| log.display().to_string())?;
        let stdout = if piped { Stdio::piped() } else { file.try_clone()?.into() };
        command.stdin(Stdio::null()).stdout(stdout).stderr(file).process_group(0);
        let shown = cmd::show(&command);
        let mut child = command.spawn().with_context(|| format!("cannot start: {shown}"))?;
        let out = child.stdout.take();
        let pid = child.id();
        let guard = start_of(pid).map(|start| Guard::new(Undo::KillGroup { pid, start })).transpose()?;
        Ok((Self { name: name.into(), child, log: log.into(), guard }, out))
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.end(true)
    }

    /// `judged`: the caller checks the status.
    fn end(&mut self, judged: bool) -> Option<ExitStatus> {
        let status = self.child.try_wait().ok().flatten()?;
        if self.guard.is_some() {
            ends::note(&self.name, self.child.id(), status, Some(&self.log), judged);
        }
        if let Some(guard) = self.guard.take() {
            // End the children that it left behind.
            kill_group(self.child.id());
            guard.forget();
        }
        Some(status)
    }

    /// Fails with the end of its log if it has ended.
    pub fn must_run(&mut self) -> Result<()> {
        match self.ended() {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}: {}", self.name, cmd::tail_of(&self.log, 8)),
        }
    }

    /// Waits until `ready` returns true. Fails when the process ends first, or `limit` passes.
    pub fn ready_when(&mut self, what: &str, limit: Duration, mut ready: impl FnMut() -> bool) -> Result<()> {
        let begun = Instant::now();
        while !ready() {
            self.must_run()?;
            if begun.elapsed() > limit {
                bail!("{}: not {what} after {limit:?}: {}", self.name, cmd::tail_of(&self.log, 8));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// Waits for its end. Fails when `limit` passes first; the process is left running then.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Ok(status);
            }
            if begun.elapsed() > limit {
                bail!("{}: still running after {limit:?}: {}", self.name, cmd::tail_of(&self.log, 8));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Sends a signal, if it still runs.
    pub fn signal(&mut self, what: Signal) {
        if self.ended().is_none() {
            signal(self.pid(), what);
        }
    }

    /// Sends SIGTERM, and SIGKILL after `limit`. Fails when even SIGKILL does not end it.
    pub fn stop(&mut self, how: Signal, limit: Duration) -> Result<()> {
        self.signal(how);
        if self.wait(limit).is_err() {
            self.signal(Signal::KILL);
            self.wait(Duration::from_secs(10))?;
        }
        Ok(())
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        if self.end(false).is_none() {
            self.signal(Signal::CONT);
            let _ = self.stop(Signal::TERM, Duration::from_secs(5));
        }
    }
}

/// Sets the flag when it is dropped. Create it first inside `thread::scope`: on a panic the scope joins its threads,
/// and threads that loop until the flag is set would otherwise run for ever.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// With this and its own pid, `holdfast dev` makes a gateway end together with it. A gateway that we start again has
/// another parent, so we remove both.
const PARENT_ARG: &str = "--die-with";

/// The command line, environment and folder of a process, to start it again in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    args: Vec<String>,
    env: Vec<(String, String)>,
    dir: PathBuf,
}

impl Launch {
    /// Reads it from a running process. Fails when the process is gone.
    pub fn of(pid: u32) -> Result<Self> {
        let list = |what: &str| -> Result<Vec<String>> {
            let bytes = std::fs::read(format!("/proc/{pid}/{what}")).with_context(|| format!("process {pid}"))?;
            Ok(bytes
                .split(|b| *b == 0)
                .filter(|p| !p.is_empty())
                .map(|p| String::from_utf8_lossy(p).into_owned())
                .collect())
        };
        let env =
            list("environ")?.iter().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect();
        let dir = std::fs::read_link(format!("/proc/{pid}/cwd"))?;
        let mut args = list("cmdline")?;
        if let Some(at) = args.iter().position(|a| a == PARENT_ARG) {
            args.drain(at..args.len().min(at + 2));
        }
        anyhow::ensure!(!args.is_empty(), "process {pid} has ended");
        Ok(Self { args, env, dir })
    }

    /// Changes the value of `flag`. Fails when the flag is not there.
    pub fn set(&mut self, flag: &str, value: String) -> Result<()> {
        let at =
            self.args.iter().position(|arg| arg == flag).with_context(|| format!("no {flag} in {:?}", self.args))?;
        let slot = self.args.get_mut(at + 1).with_context(|| format!("{flag} has no value"))?;
        *slot = value;
        Ok(())
    }

    /// Appends arguments.
    pub fn add(&mut self, args: &[&str]) {
        self.args.extend(args.iter().map(|arg| (*arg).to_owned()));
    }

    /// Removes these arguments from the end; does nothing if they are not there.
    pub fn take_back(&mut self, args: &[&str]) {
        let from = self.args.len().saturating_sub(args.len());
        if self.args[from..].iter().eq(args) {
            self.args.truncate(from);
        }
    }

    /// Changes the program and keeps the arguments.
    pub fn set_program(&mut self, program: &Path) {
        self.args[0] = program.display().to_string();
    }

    /// The command that starts the process again.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.args[0]);
        command.args(&self.args[1..]).env_clear().envs(self.env.iter().cloned()).current_dir(&self.dir);
        command
    }
}
