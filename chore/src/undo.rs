//! Undoes a chore's changes to the machine: mounts, loop devices, processes, folders.
//!
//! ```text
//!  chore ── add 7 {"umount": …} ──▶ reaper   a copy of this program in a process group of its own,
//!    │   ── done 7 ───────────────▶   │      reading our pipe
//!    ╳  ends in any way: return, panic, Ctrl-C, SIGKILL
//!                                     └─▶ the pipe closes: undoes all that is still listed, newest first
//! ```
//! A signal handler cannot catch SIGKILL and needs `unsafe` or a runtime. A closing pipe needs neither.

use crate::by_id::{Signal, is_zombie, kill_group, signal, start_of};
use crate::cmd;
use crate::poll::wait_until;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// One action that undoes a change. Harmless if there is nothing left to undo.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Undo {
    /// End a process: SIGTERM, and SIGKILL five seconds later. `start` distinguishes it from a later process with the
    /// same pid.
    Kill {
        /// Its process id.
        pid: u32,
        /// When it started, in clock ticks since boot.
        start: u64,
    },
    /// Like `Kill`, for a process that leads its own process group, and for all processes in that group.
    KillGroup {
        /// Its process id.
        pid: u32,
        /// When it started, in clock ticks since boot.
        start: u64,
    },
    /// Unmount, lazily if it is busy.
    Umount(PathBuf),
    /// Detach a loop device.
    Loop(PathBuf),
    /// Remove a folder and what is in it.
    RemoveDir(PathBuf),
}

impl Undo {
    fn run(&self) {
        match self {
            Undo::Kill { pid, start } => {
                let same = || start_of(*pid) == Some(*start) && !is_zombie(*pid);
                if same() {
                    signal(*pid, Signal::TERM);
                    if !wait_until(Duration::from_secs(5), || !same()) && same() {
                        signal(*pid, Signal::KILL);
                    }
                }
            }
            Undo::KillGroup { pid, start } => {
                Undo::Kill { pid: *pid, start: *start }.run();
                // When all processes of a group have ended, another process may lead a new group with the same number.
                if start_of(*pid).is_none_or(|now| now == *start) {
                    kill_group(*pid);
                }
            }
            Undo::Umount(path) => {
                let mounted = || {
                    let table = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
                    table.lines().any(|l| l.split(' ').nth(1) == path.to_str())
                };
                if mounted() && !cmd::cmd("umount").arg(path).succeeds() {
                    cmd::cmd("umount").arg("-l").arg(path).succeeds();
                }
            }
            Undo::Loop(dev) => {
                // `--detach` of a device in use makes the kernel remove it when its last user closes it.
                if cmd::cmd("losetup").arg(dev).succeeds() {
                    cmd::cmd("losetup").arg("--detach").arg(dev).succeeds();
                }
            }
            Undo::RemoveDir(path) => {
                let _ = std::fs::remove_dir_all(path);
            }
        }
    }
}

#[derive(Serialize, Deserialize)]
enum Word {
    Add(u64, Undo),
    Done(u64),
}

fn tell(word: &Word) -> Result<()> {
    static PIPE: OnceLock<Mutex<Option<ChildStdin>>> = OnceLock::new();
    let pipe = PIPE.get_or_init(|| Mutex::new(start_reaper().ok()));
    let mut pipe = pipe.lock().unwrap_or_else(PoisonError::into_inner);
    let pipe = pipe.as_mut().context("the process that cleans up after this one did not start")?;
    let mut line = serde_json::to_vec(word)?;
    line.push(b'\n');
    pipe.write_all(&line).context("the process that cleans up after this one is gone")
}

/// Hidden argument that makes this program the reaper.
pub const REAPER_ARG: &str = "__reaper";

fn start_reaper() -> Result<ChildStdin> {
    // A group of its own, so that Ctrl-C in the terminal does not reach it.
    let mut child = Command::new(std::env::current_exe()?)
        .arg(REAPER_ARG)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()?;
    child.stdin.take().context("no pipe")
}

/// Runs the reaper.
pub fn reap() {
    let mut left = BTreeMap::new();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        match serde_json::from_str(&line) {
            Ok(Word::Add(id, undo)) => drop(left.insert(id, undo)),
            Ok(Word::Done(id)) => drop(left.remove(&id)),
            Err(_) => break,
        }
    }
    if !left.is_empty() {
        eprintln!("interrupted: undoing {} changes (processes, mounts, loop devices)", left.len());
    }
    for undo in left.values().rev() {
        undo.run();
    }
}

/// Runs its [`Undo`] when dropped, or when this process ends in any other way.
#[must_use = "dropping it undoes the change at once"]
#[derive(Debug)]
pub struct Guard {
    id: u64,
    undo: Option<Undo>,
}

impl Guard {
    /// Registers `undo`. Call it before the change if a half-done change must be undone too. Fails when the reaper
    /// cannot be reached.
    pub fn new(undo: Undo) -> Result<Self> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let id = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        tell(&Word::Add(id, undo.clone()))?;
        Ok(Self { id, undo: Some(undo) })
    }

    /// Forgets the action: there is nothing left to undo.
    pub fn forget(mut self) {
        self.undo = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(undo) = self.undo.take() {
            undo.run();
        }
        // If the reaper has ended, there is no one to notify.
        let _ = tell(&Word::Done(self.id));
    }
}

/// Guards that are dropped newest first.
#[derive(Debug, Default)]
pub struct Stack(Vec<Guard>);

impl Stack {
    /// Registers one more.
    pub fn push(&mut self, undo: Undo) -> Result<()> {
        self.0.push(Guard::new(undo)?);
        Ok(())
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}
