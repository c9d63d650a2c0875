//! The processes of a service, known by its control group (cgroup v2): that of its unit, or one that the agent makes.
//!
//! CGROUP-C1  A process is in the group of the process that started it. So nothing that a service starts is missed,
//!     whatever its name, user, environment or working directory is. Only root moves a process to another group.
//! CGROUP-C2  The kernel's `cgroup.events` decides whether a process is left. A file that cannot be read says nothing:
//!     then it is not known whether the service runs. Nothing is read from a device.
//! CGROUP-C3  A group belongs to one service of one set and host, whatever their names are. A group that holds the
//!     agent itself is never a service's: nothing in it is signalled.
//!
//! A service without processes, such as the kernel's NFS server, is in no group: its unit alone knows whether it runs.

use super::table::{ProcessSearch, signal};
use crate::config::{AgentConfig, ServiceConfig, ServiceKind};
use holdfast_host::mounts;
use rustix::io::Errno;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Pause between two looks at processes that are ending.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Pause between two SIGKILL to a whole group. A unit may have a last command (`ExecStopPost=`) that takes an address
/// from this host: it gets this time.
const STRIKE_PAUSE: Duration = Duration::from_millis(500);

/// How deep groups may lie in one another.
const DEPTH_MAX: usize = 32;

/// Number of slices of systemd that are searched for a unit.
const SLICES_MAX: usize = 4096;

/// Groups that users make: none of them is a unit of the system, whatever its name is.
const USERS: &str = "user.slice";

#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    /// A group at the root, made by the agent.
    Own(String),
    /// That of a unit, in whatever slice.
    Unit(String),
}

/// The control group of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    name: Name,
    /// Where control groups are mounted; `None`: the kernel's table of mounts says it.
    root: Option<PathBuf>,
}

/// Whether the file belongs to a group that was removed.
fn is_removed(error: &io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(Errno::NODEV.raw_os_error())
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Names of the groups in a group; none if it was removed.
fn groups_in(dir: &Path) -> io::Result<Vec<OsString>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_removed(&error) => return Ok(Vec::new()),
        Err(error) => return Err(named(dir, &error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| named(dir, &error))?;
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.push(entry.file_name()),
            Ok(_) => {}
            Err(error) if is_removed(&error) => {}
            Err(error) => return Err(named(dir, &error)),
        }
    }
    Ok(found)
}

/// The groups of this unit: systemd keeps them in slices. It puts a `_` ahead of a name that the kernel could take for
/// one of its own files, such as `io.service`.
fn groups_of_unit(root: &Path, unit: &str) -> io::Result<Vec<PathBuf>> {
    let (mut found, mut slices, mut searched) = (Vec::new(), vec![root.to_path_buf()], 0);
    while let Some(slice) = slices.pop() {
        searched += 1;
        if searched > SLICES_MAX {
            return Err(io::Error::other(format!("found more than {SLICES_MAX} slices at {}", root.display())));
        }
        for name in groups_in(&slice)? {
            let text = name.to_string_lossy();
            if text == unit || text.strip_prefix('_') == Some(unit) {
                found.push(slice.join(&name));
            } else if text.ends_with(".slice") && text != USERS {
                slices.push(slice.join(&name));
            }
        }
    }
    Ok(found)
}

/// Whether any process lives in this group, or in one below it. A group that does not exist has none (CGROUP-C2).
fn is_populated(dir: &Path) -> io::Result<bool> {
    let path = dir.join("cgroup.events");
    match std::fs::read_to_string(&path) {
        Ok(text) => match text.lines().find_map(|line| line.strip_prefix("populated ")) {
            Some(number) => Ok(number.trim() != "0"),
            None => Err(io::Error::other(format!("{}: found no line `populated`", path.display()))),
        },
        Err(error) if is_removed(&error) => match dir.symlink_metadata() {
            Err(gone) if is_removed(&gone) => Ok(false),
            // It exists, and is no control group.
            _ => Err(named(&path, &error)),
        },
        Err(error) => Err(named(&path, &error)),
    }
}

/// Adds the processes of this group, and of those below it.
fn add_processes(dir: &Path, depth: usize, found: &mut BTreeSet<i32>) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(io::Error::other(format!("{}: found more than {DEPTH_MAX} groups in one another", dir.display())));
    }
    let path = dir.join("cgroup.procs");
    match std::fs::read_to_string(&path) {
        // The kernel shows 0 for a process that this process cannot see.
        Ok(text) => found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0)),
        Err(error) if is_removed(&error) => return Ok(()),
        // A group of threads: the group above it has their processes.
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {}
        Err(error) => return Err(named(&path, &error)),
    }
    for name in groups_in(dir)? {
        add_processes(&dir.join(name), depth + 1, found)?;
    }
    Ok(())
}

/// Whether this process lives in this group (CGROUP-C3).
fn holds_this_process(dir: &Path) -> bool {
    let mut found = BTreeSet::new();
    // What cannot be read is an error of the search itself.
    let _ = add_processes(dir, 0, &mut found);
    found.contains(&std::process::id().cast_signed())
}

/// Removes this group and those below it, as far as no process is in them: the kernel refuses the others.
fn remove_empty(dir: &Path, depth: usize) {
    if depth <= DEPTH_MAX {
        for name in groups_in(dir).unwrap_or_default() {
            remove_empty(&dir.join(name), depth + 1);
        }
    }
    let _ = std::fs::remove_dir(dir);
}

/// Text for a search that was not complete.
fn unlooked(error: &io::Error) -> String {
    format!("could not look for processes of the service: {error}")
}

impl Group {
    /// Of these settings.
    pub fn of(config: &AgentConfig, service: &ServiceConfig) -> Self {
        let name = match service.kind {
            ServiceKind::Systemd => Name::Unit(service.unit.clone()),
            // Found again by the next agent, however that one is started. Different for each set and host: the name of
            // a set has no `:`, and neither name has a `%`. A slash would be another group.
            ServiceKind::Command => Name::Own(format!("holdfast-{}:{}", config.set, config.name.replace('/', "%2f"))),
        };
        Self { name, root: None }
    }

    /// With control groups in this directory.
    #[cfg(test)]
    pub fn at(mut self, root: &Path) -> Self {
        self.root = Some(root.into());
        self
    }

    fn root(&self) -> io::Result<PathBuf> {
        if let Some(root) = &self.root {
            return Ok(root.clone());
        }
        let table = mounts::table().map_err(io::Error::other)?;
        let found = mounts::mounts_of(&table).into_iter().find(|mount| mount.kind == "cgroup2");
        found.map(|mount| mount.at).ok_or_else(|| {
            io::Error::other("found no control groups of version 2 (cgroup2), expected them at /sys/fs/cgroup: the agent knows a service's processes by them")
        })
    }

    /// Its directories. One of the agent's own need not exist.
    fn dirs(&self) -> io::Result<Vec<PathBuf>> {
        let root = self.root()?;
        let dirs = match &self.name {
            Name::Own(name) => vec![root.join(name)],
            Name::Unit(unit) => groups_of_unit(&root, unit)?,
        };
        if let Some(dir) = dirs.iter().find(|dir| holds_this_process(dir)) {
            let found = dir.display();
            return Err(io::Error::other(format!(
                "{found}: found the agent itself in it, expected a unit of its own: see service.unit"
            )));
        }
        Ok(dirs)
    }

    fn search(&self, found: &mut BTreeSet<i32>) -> io::Result<()> {
        for dir in self.dirs()? {
            if !is_populated(&dir)? {
                continue;
            }
            let before = found.len();
            add_processes(&dir, 0, found)?;
            if found.len() == before && is_populated(&dir)? {
                return Err(io::Error::other(format!("{}: has processes, and shows none of them", dir.display())));
            }
        }
        Ok(())
    }

    /// All processes in it.
    pub fn look(&self) -> ProcessSearch {
        let mut found = BTreeSet::new();
        let missed = self.search(&mut found).err();
        ProcessSearch { found, missed }
    }

    /// Whether there is any process in it.
    ///
    /// # Errors
    /// None was found, and not all processes could be inspected.
    pub fn any(&self) -> Result<bool, String> {
        self.look().any().map_err(|error| unlooked(&error))
    }

    /// Makes the group of the agent's own. Returns its directory.
    ///
    /// # Errors
    /// It could not be made.
    pub fn make(&self) -> Result<PathBuf, String> {
        let root = self.root().map_err(|error| error.to_string())?;
        let Name::Own(name) = &self.name else { return Err("systemd makes the group of a unit".into()) };
        let dir = root.join(name);
        match std::fs::create_dir(&dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                Err(format!("{}: {error}: the agent makes a control group there, as root", dir.display()))
            }
            _ => Ok(dir),
        }
    }

    /// Removes the group of the agent's own, which is empty, and those that the service has made in it: with these a
    /// later start could not enter it (`cgroup.subtree_control`). One that stays does no other harm.
    pub fn remove(&self) {
        if let (Ok(root), Name::Own(name)) = (self.root(), &self.name) {
            remove_empty(&root.join(name), 0);
        }
    }

    /// Sends SIGTERM to all processes in it.
    pub fn tell_to_end(&self) {
        self.look().found.into_iter().for_each(|pid| signal(pid, Signal::TERM));
    }

    /// Sends SIGKILL to these processes; to the whole group at once where the kernel can (5.14), so that none that is
    /// being started escapes. Returns whether it can.
    fn strike(&self, found: &BTreeSet<i32>) -> bool {
        let order = |dir: &Path| {
            let mut file = OpenOptions::new().write(true).open(dir.join("cgroup.kill"))?;
            file.write_all(b"1")
        };
        let dirs = self.dirs().unwrap_or_default();
        let whole = !dirs.is_empty()
            && dirs.iter().all(|dir| order(dir).map_or_else(|error| is_removed(&error) && !dir.exists(), |()| true));
        if !whole {
            found.iter().for_each(|pid| signal(*pid, Signal::KILL));
        }
        whole
    }

    /// One round: nothing is left, or it has SIGKILL. `struck`: when the whole group had it.
    fn round(&self, struck: &mut Option<Instant>) -> Result<(), String> {
        let ProcessSearch { found, missed } = self.look();
        if found.is_empty() && missed.is_none() {
            return Ok(());
        }
        if struck.is_none_or(|at| at.elapsed() >= STRIKE_PAUSE) {
            *struck = self.strike(&found).then(Instant::now);
        }
        let left = format!("{} processes of the service are left after SIGKILL", found.len());
        Err(match missed {
            None => left,
            Some(error) if found.is_empty() => unlooked(&error),
            Some(error) => format!("{left}; {}", unlooked(&error)),
        })
    }

    /// Sends SIGKILL to all processes in it until none is left. Blocks. `struck`: when the whole group of a unit had it
    /// last. Who calls this again and again for one end passes it on: otherwise each call would meet a last command of
    /// the unit, which has begun since, with another SIGKILL. A group of the agent's own has no such command.
    ///
    /// # Errors
    /// Some are left after `limit`, or it is not known whether any is.
    pub fn kill(&self, limit: Duration, struck: &mut Option<Instant>) -> Result<(), String> {
        let begun = Instant::now();
        if matches!(self.name, Name::Own(_)) {
            *struck = None;
        }
        loop {
            let round = self.round(struck);
            if round.is_ok() || begun.elapsed() >= limit {
                return round;
            }
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// As [`Group::kill`], without a thread of its own. Kills nothing any more once it is dropped.
    ///
    /// # Errors
    /// As there.
    pub async fn kill_here(&self, limit: Duration) -> Result<(), String> {
        let (begun, mut struck) = (Instant::now(), None);
        loop {
            let round = self.round(&mut struck);
            if round.is_ok() || begun.elapsed() >= limit {
                return round;
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    /// Waits until no process is left in it; returns whether that was seen.
    pub async fn gone(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        while !self.look().whole().is_ok_and(|left| left.is_empty()) {
            if begun.elapsed() >= limit {
                return false;
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        true
    }
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
