//! Ends processes that have the pool open, on a host that gives its lease up (AGENT-A9): other hosts wait for it.
//!
//! - A process is ended only if what it has open lies on the pool's own file systems, by their device numbers. The path
//!   alone may be another place: hidden below a mount, or in another mount namespace.
//! - The agent, whom it comes from, its attach, other processes of its program, and what they started go on. So does
//!   PostgreSQL, which is stopped in other ways.
//! - Numbers of processes are used again. Each is opened (a pidfd) before the look that decides about it, so the signal
//!   reaches the process that was looked at, or none.
//!
//! What keeps the pool mounted in another mount namespace, and what the kernel itself uses, stays.

use super::family::{comes_from, parents};
use super::{DELETED, LOOK_LIMIT, OpenPath, PROC, open_here, roots};
use crate::attach_process::pid_in;
use crate::config::AgentConfig;
use crate::drivers::leaving::user;
use crate::drivers::placement::{of_pool, scratch};
use crate::host::Ended;
use crate::process;
use holdfast_host::mounts::{self, mounts_of};
use holdfast_types::sync::LockExt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How a process is told to end, and for how long it is waited for then. An interactive shell ignores the first one.
const TELLS: [(Signal, &str, Duration); 2] =
    [(Signal::TERM, "SIGTERM", Duration::from_secs(5)), (Signal::KILL, "SIGKILL", Duration::from_secs(2))];

/// Pause between two looks at those that were told.
const END_PAUSE: Duration = Duration::from_millis(50);

/// The pool's file systems.
struct Pool {
    /// Where they are mounted.
    roots: Vec<PathBuf>,
    /// Their devices, `MAJOR:MINOR`.
    devices: BTreeSet<String>,
    /// File systems that the agent unmounts with the pool: where, and their devices. One may be a directory of the
    /// host's own disk (a bind mount): its device says something only below that place.
    scratch: Vec<(PathBuf, String)>,
}

impl Pool {
    fn of(config: &AgentConfig, table: &[u8]) -> Self {
        let roots = roots(config, table);
        let (mut devices, mut scratch) = (BTreeSet::new(), Vec::new());
        for mount in mounts_of(table) {
            if of_pool(config, &mount) {
                devices.insert(mount.device);
            } else if roots.iter().any(|root| mount.at != *root && mount.at.starts_with(root))
                && scratch::is_scratch(config, &mount.at)
            {
                scratch.push((mount.at, mount.device));
            }
        }
        Self { roots, devices, scratch }
    }

    /// Whether what is seen at this path lies on one of them.
    fn has(&self, path: &Path, seen: &OpenPath<'_>) -> bool {
        let device = match seen {
            OpenPath::Link(link) => std::fs::metadata(link).ok().map(|found| device(found.dev())),
            OpenPath::Map(line) => line.split_whitespace().nth(3).and_then(mapped),
        };
        let is_scratch = |device: &String| self.scratch.iter().any(|(at, of)| of == device && path.starts_with(at));
        device.is_some_and(|device| self.devices.contains(&device) || is_scratch(&device))
    }

    /// What this process has open there. Only what [`super::openers_in`] would name.
    fn open_of(&self, proc: &Path, pid: i32) -> Option<String> {
        open_here(proc, pid, &self.roots, false, &|path: &Path, seen: &OpenPath<'_>| self.has(path, seen))
    }
}

/// As a table of mounts shows it.
fn device(number: u64) -> String {
    format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number))
}

/// The same of the device in a memory map, which shows hexadecimal digits.
fn mapped(device: &str) -> Option<String> {
    let (major, minor) = device.split_once(':')?;
    Some(format!("{}:{}", u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?))
}

/// The file of a process's program, also if it was replaced meanwhile.
fn program(proc: &Path, of: &str) -> Option<PathBuf> {
    let path = std::fs::read_link(proc.join(of).join("exe")).ok()?;
    Some(PathBuf::from(path.to_str()?.trim_end_matches(DELETED)))
}

/// Processes that are never ended here.
struct Spared {
    /// Whom the agent comes from.
    above: BTreeSet<i32>,
    /// These, and what they started.
    families: BTreeSet<i32>,
    parents: BTreeMap<i32, i32>,
}

impl Spared {
    fn of(config: &AgentConfig, proc: &Path) -> Self {
        let attach = config.run_dir.join("attach");
        let mut known = process::Processes::of(config).look().found;
        known.extend(pid_in(&attach));
        known.extend(process::of_name("nbdfuse", &attach.display().to_string()));
        Self::around(proc, std::process::id().cast_signed(), known)
    }

    /// `own`: the agent; `known`: others like it.
    fn around(proc: &Path, own: i32, known: BTreeSet<i32>) -> Self {
        let (parents, mut families, mut above) = (parents(proc), known, BTreeSet::new());
        families.insert(own);
        let ours = program(proc, "self");
        let same = |pid: &i32| ours.is_some() && program(proc, &pid.to_string()) == ours;
        families.extend(parents.keys().copied().filter(same));
        let mut at = own;
        while let Some(parent) = parents.get(&at).copied()
            && above.insert(parent)
        {
            at = parent;
        }
        Self { above, families, parents }
    }

    fn has(&self, pid: i32) -> bool {
        pid <= 1 || self.above.contains(&pid) || comes_from(pid, &self.families, &self.parents)
    }
}

/// A process that has the pool open.
struct User {
    handle: OwnedFd,
    /// By name, number, user and path, for people.
    text: String,
}

impl User {
    /// Of an open handle: what is found now decides, since the number may have been another process's before.
    fn looked_at(proc: &Path, pid: i32, handle: OwnedFd, pool: &Pool, spared: &Spared) -> Option<Self> {
        if spared.has(pid) {
            return None;
        }
        let open = pool.open_of(proc, pid)?;
        let of = proc.join(pid.to_string());
        let name = std::fs::read(of.join("comm")).unwrap_or_default();
        let uid = user(&of).map_or_else(|| "unknown".to_string(), |uid| uid.to_string());
        let text = format!("{} (pid {pid}, uid {uid}) {open}", String::from_utf8_lossy(&name).trim_end());
        Some(Self { handle, text })
    }

    fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.handle, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::IN)
    }
}

/// Handles of the processes that have the pool open, `most` at most.
fn handles(proc: &Path, pool: &Pool, spared: &Spared, most: usize) -> Vec<(i32, OwnedFd)> {
    let pids = spared.parents.keys().copied();
    let users = pids.filter(|pid| !spared.has(*pid) && pool.open_of(proc, *pid).is_some());
    let handle = |pid: i32| match pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()) {
        Ok(handle) => Some((pid, handle)),
        Err(error) => {
            tracing::warn!(pid, %error, "a process that has the pool open has ended, or cannot be told to end");
            None
        }
    };
    users.filter_map(handle).take(most).collect()
}

/// Blocks, but not for long on the pool's device: what it asks there is in memory.
fn found(config: &AgentConfig, most: usize) -> Result<Vec<User>, String> {
    let pool = Pool::of(config, &mounts::table()?);
    if pool.roots.is_empty() {
        return Ok(Vec::new());
    }
    let proc = Path::new(PROC);
    let handles = handles(proc, &pool, &Spared::of(config, proc), most);
    let spared = Spared::of(config, proc);
    let look = |(pid, handle)| User::looked_at(proc, pid, handle, &pool, &spared);
    Ok(handles.into_iter().filter_map(look).collect())
}

/// Ends these in order: all are told, then waited for, then told by force. Those that have ended are added to `ended`.
async fn end(mut users: Vec<User>, tells: [(Signal, &str, Duration); 2], ended: &Ended) {
    // Those that went by themselves are not ours to tell of.
    users.retain(|user| !user.has_ended());
    for (signal, name, limit) in tells {
        for user in &users {
            let process = user.text.as_str();
            tracing::warn!(process, signal = name, "it has the pool open, which is given up here: it is told to end");
            if let Err(error) = pidfd_send_signal(&user.handle, signal) {
                tracing::warn!(process, %error, "could not be told to end");
            }
        }
        let begun = Instant::now();
        loop {
            users.retain(|user| {
                let gone = user.has_ended();
                if gone {
                    ended.locked().push(format!("{}, by {name}", user.text));
                }
                !gone
            });
            if users.is_empty() {
                return;
            }
            if begun.elapsed() >= limit {
                break;
            }
            tokio::time::sleep(END_PAUSE).await;
        }
    }
    for user in users {
        tracing::error!(process = user.text, "it has the pool open and cannot be ended");
    }
}

/// Ends the processes that have the pool open, `most` at most, within some seconds. See [`crate::host::Host`].
///
/// # Errors
/// They could not be found, or not in time.
pub async fn end_users(config: &AgentConfig, most: usize, ended: &Ended) -> Result<(), String> {
    let of = config.clone();
    let look = tokio::task::spawn_blocking(move || found(&of, most));
    let users = match tokio::time::timeout(LOOK_LIMIT, look).await {
        Ok(Ok(found)) => found?,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("users of the pool: not found within {} s", LOOK_LIMIT.as_secs())),
    };
    end(users, TELLS, ended).await;
    Ok(())
}

#[cfg(test)]
#[path = "ending/tests.rs"]
mod tests;
