//! Lets go of the pool: unmounts the file system, or exports the ZFS pool.
//!
//! In good order it stays while a process uses it, and the error names that process. An export of a ZFS pool that fails
//! may have unmounted some datasets. They are noted in [`Before`] and mounted again before PostgreSQL is started in its
//! place. By all means (`hard`), the device is dead or about to be.
//!
//! A file system that is mounted on a directory whose content PostgreSQL can lose (a tmpfs on `pg_stat_tmp`) is
//! unmounted first: the pool could not be unmounted below it. The agent does not mount it again; `hooks.before_start`
//! can.
//!
//! `umount` succeeds although an ext4 or XFS stays mounted at another place, or in a mount namespace that keeps a copy:
//! it lives on there, over a device that is removed. So in good order these are looked for right before, as a plan of a
//! switchover does: one may have come while PostgreSQL was being stopped. A pool of ZFS is not exported then.

use super::{ASK_LIMIT, is_there, may_be_mounted};
use crate::config::{AgentConfig, PoolKind};
use crate::drivers::openers::{keepers, named, openers, roots};
use crate::drivers::placement::{of_pool, scratch};
use crate::drivers::zfs::vdevs::{in_english, says_absent};
use crate::host::{NotDone, PoolUsers};
use crate::process::{Ran, ran, run, system};
use holdfast_host::mounts::{self, Mount, mount_at, mounts_of};
use holdfast_types::sync::LockExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::process::Command;

/// Time limit of an orderly unmount of a file system whose device may be dead.
const HARD_EXPORT_LIMIT: Duration = Duration::from_secs(5);

/// See [`System::busy`].
const BUSY_LIMIT: Duration = Duration::from_secs(5);

/// As much longer, if only processes have it open that end by themselves, such as an archiver with its last segments.
const LEAVING_LIMIT: Duration = Duration::from_secs(15);

/// Pause between two tries.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// Part of the output of `umount` and `zpool export` if somebody has it open.
const BUSY: &str = "busy";

/// The system's programs and its table of mounts, or those of a test.
#[derive(Clone, Debug)]
struct System {
    /// Directory with the programs, and with the table as the file `mounts`. The file `leaving` has names of processes
    /// that have the pool open and end by themselves, `staying` of others, `keepers` of those that keep it mounted.
    of_test: Option<PathBuf>,
    /// A pool that somebody has open is tried again for this long, while PostgreSQL is stopped.
    busy: Duration,
    /// See [`LEAVING_LIMIT`].
    leaving: Duration,
}

impl System {
    fn of_host() -> Self {
        Self { of_test: None, busy: BUSY_LIMIT, leaving: LEAVING_LIMIT }
    }

    fn program(&self, name: &str) -> Command {
        self.of_test.as_ref().map_or_else(|| system(name), |dir| Command::new(dir.join(name)))
    }

    fn table(&self) -> Result<Vec<u8>, String> {
        match &self.of_test {
            Some(dir) => std::fs::read(dir.join("mounts")).map_err(|error| error.to_string()),
            None => mounts::table(),
        }
    }

    async fn openers(&self, config: &AgentConfig) -> PoolUsers {
        match &self.of_test {
            Some(dir) => PoolUsers { staying: names(&dir.join("staying")), leaving: names(&dir.join("leaving")) },
            None => openers(config).await,
        }
    }

    async fn keepers(&self, config: &AgentConfig) -> PoolUsers {
        match &self.of_test {
            Some(dir) => PoolUsers { staying: names(&dir.join("keepers")), leaving: Vec::new() },
            None => keepers(config).await,
        }
    }
}

/// The names in a file of a test.
fn names(file: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    text.lines().map(str::to_string).collect()
}

/// The pool's datasets that were mounted when the agent began to let go of the pool, until it is gone or all of them
/// are mounted again.
#[derive(Debug, Default)]
pub struct Before(Mutex<Vec<Mount>>);

impl Before {
    /// Adds what is mounted now. What an earlier try has unmounted stays noted.
    fn note(&self, config: &AgentConfig, now: Vec<Mount>) {
        let mut noted = self.0.locked();
        let of_pool = |mount: &Mount| of_pool(config, mount) && !mount.source.contains('@');
        for mount in now.into_iter().filter(of_pool) {
            if !noted.iter().any(|known| is_same(known, &mount)) {
                noted.push(mount);
            }
        }
    }

    /// Those that are not mounted now, in the order in which they are mounted.
    fn missing(&self, now: &[Mount]) -> Vec<Mount> {
        let noted = self.0.locked();
        let is_there = |mount: &Mount| now.iter().any(|now| is_same(now, mount));
        let mut missing: Vec<Mount> = noted.iter().filter(|mount| !is_there(mount)).cloned().collect();
        missing.sort_by_key(|mount| mount.at.components().count());
        missing
    }

    /// The pool is gone, or another one is there.
    pub fn clear(&self) {
        self.0.locked().clear();
    }
}

/// The same dataset at the same place, also if it was mounted anew.
fn is_same(one: &Mount, other: &Mount) -> bool {
    one.at == other.at && one.source == other.source
}

/// Unmounts or exports it.
///
/// # Errors
/// It is still there.
pub async fn export(config: &AgentConfig, hard: bool) -> Result<(), String> {
    let mut limit = Duration::from_secs(config.pool.export_timeout_s);
    if hard {
        limit = limit.min(HARD_EXPORT_LIMIT);
    }
    if !is_there(config).await {
        return Ok(());
    }
    if hard {
        unmount_scratch_lazily(config).await;
    }
    match config.pool.kind {
        PoolKind::None => Ok(()),
        PoolKind::Ext4 | PoolKind::Xfs => unmount(config, hard, limit).await,
        PoolKind::Zfs => {
            let mut command = system("zpool");
            in_english(&mut command).arg("export").args(hard.then_some("-f"));
            command.arg(config.pool.name.as_deref().unwrap_or_default());
            match run(command, limit).await {
                Err(why) if !says_absent(&why) => Err(why),
                // Or it was not there, which ZFS did not say before.
                _ => Ok(()),
            }
        }
    }
}

/// Unmounts a file system, if `hard` in any case.
async fn unmount(config: &AgentConfig, hard: bool, limit: Duration) -> Result<(), String> {
    let mut command = system("umount");
    command.arg(&config.pool.mount);
    match run(command, limit).await {
        Ok(_) => Ok(()),
        Err(why) if !hard => Err(why),
        Err(why) if !may_be_mounted(&mount_at(&config.pool.mount)) => {
            tracing::debug!(why, "umount failed, but the file system is unmounted");
            Ok(())
        }
        Err(why) => {
            // A process still uses it. PostgreSQL is gone, and the device is dead or about to be: a lazy
            // unmount hides it, and the kernel drops it with its last user.
            tracing::warn!(why, "unmounted lazily");
            let mut command = system("umount");
            command.arg("-l").arg(&config.pool.mount);
            run(command, limit).await.map(drop)
        }
    }
}

/// Mount points in the pool of file systems that are not its own, on directories whose content PostgreSQL can lose; the
/// last one first.
fn scratch_mounts(config: &AgentConfig, table: &[u8]) -> Vec<PathBuf> {
    let roots = roots(config, table);
    let is_below = |mount: &Mount| roots.iter().any(|root| mount.at != *root && mount.at.starts_with(root));
    let is_scratch =
        |mount: &Mount| !of_pool(config, mount) && is_below(mount) && scratch::is_scratch(config, &mount.at);
    mounts_of(table).into_iter().rev().filter(is_scratch).map(|mount| mount.at).collect()
}

/// The pool itself may be dead, but not these file systems.
async fn unmount_scratch_lazily(config: &AgentConfig) {
    let table = mounts::table().unwrap_or_default();
    for at in scratch_mounts(config, &table) {
        let mut umount = system("umount");
        umount.arg("-l").arg(&at);
        if let Err(why) = run(umount, HARD_EXPORT_LIMIT).await {
            tracing::warn!(why, "cannot unmount a file system in the pool");
        }
    }
}

/// Unmounts or exports it in good order. A pool that is in use is tried again for some seconds. Then its own file
/// systems are mounted as they were, and the text says who uses it.
///
/// # Errors
/// It is still there.
pub async fn export_unless_used(config: &AgentConfig, before: &Before) -> Result<(), NotDone> {
    if !is_there(config).await {
        before.clear();
        return Ok(());
    }
    if config.pool.kind == PoolKind::None {
        return Ok(());
    }
    export_by(&System::of_host(), config, before).await
}

async fn export_by(system: &System, config: &AgentConfig, before: &Before) -> Result<(), NotDone> {
    let limit = Duration::from_secs(config.pool.export_timeout_s);
    let table = system.table()?;
    before.note(config, mounts_of(&table));
    let name = config.pool.name.as_deref().unwrap_or_default();
    let is_zfs = config.pool.kind == PoolKind::Zfs;
    let what = if is_zfs { format!("pool {name}") } else { config.pool.mount.display().to_string() };
    let release = || {
        let mut command = system.program(if is_zfs { "zpool" } else { "umount" });
        match is_zfs {
            true => command.args(["export", name]),
            false => command.arg(&config.pool.mount),
        };
        command
    };
    let mut done = match unmount_scratch(system, config, &table, limit).await {
        Ok(()) => let_go_unless_kept(system, config, &release, limit, system.busy).await,
        not => not,
    };
    if is_zfs && matches!(&done, Err(NotDone::Failed(why)) if says_absent(why)) {
        // It may be asked for although ZFS did not say whether it is there.
        done = Ok(());
    }
    if matches!(done, Err(NotDone::Refused(_))) && system.openers(config).await.all_leave() {
        done = let_go_unless_kept(system, config, &release, limit, system.leaving).await;
    }
    match done {
        Ok(()) => {
            before.clear();
            Ok(())
        }
        Err(NotDone::Refused(why)) => {
            mount_again_by(system, before).await;
            let users = named(&system.openers(config).await.all());
            Err(NotDone::Refused(format!("{what} is in use: {users}: end these, then ask again ({why})")))
        }
        // What did not answer may go on not answering. The datasets stay noted.
        failed => failed,
    }
}

async fn unmount_scratch(system: &System, config: &AgentConfig, table: &[u8], limit: Duration) -> Result<(), NotDone> {
    for at in scratch_mounts(config, table) {
        let umount = || {
            let mut command = system.program("umount");
            command.arg(&at);
            command
        };
        let_go(umount, limit, system.busy).await?;
        tracing::info!(
            at = %at.display(),
            "unmounted a file system that PostgreSQL can do without: hooks.before_start can mount it at each start of PostgreSQL"
        );
    }
    Ok(())
}

/// The same as [`let_go`], and nothing is run while an ext4 or XFS would live on elsewhere.
async fn let_go_unless_kept(
    system: &System,
    config: &AgentConfig,
    release: impl Fn() -> Command,
    limit: Duration,
    busy: Duration,
) -> Result<(), NotDone> {
    let begun = Instant::now();
    while config.pool.kind != PoolKind::Zfs && !system.keepers(config).await.all().is_empty() {
        if begun.elapsed() >= busy.min(limit) {
            return Err(NotDone::Refused("it would stay mounted there".into()));
        }
        tokio::time::sleep(BUSY_PAUSE).await;
    }
    let_go(release, limit, busy).await
}

/// Runs the command until it succeeds. Refused if it reports for longer than `busy` that its target is in use.
async fn let_go(command: impl Fn() -> Command, limit: Duration, busy: Duration) -> Result<(), NotDone> {
    let begun = Instant::now();
    loop {
        let mut command = command();
        // Its output is parsed.
        command.env("LC_ALL", "C");
        let why = match ran(command, limit.saturating_sub(begun.elapsed()).max(BUSY_PAUSE)).await {
            Ok(Ran { code: Some(0), .. }) => return Ok(()),
            Ok(Ran { out, err, .. }) if err.is_empty() => out,
            Ok(Ran { err, .. }) => err,
            // What does not answer is not merely in use.
            Err(not) => return Err(NotDone::Failed(not.into())),
        };
        if !why.contains(BUSY) {
            return Err(NotDone::Failed(why));
        }
        if begun.elapsed() >= busy.min(limit) {
            return Err(NotDone::Refused(why));
        }
        tokio::time::sleep(BUSY_PAUSE).await;
    }
}

/// Mounts again what an export that did not succeed has unmounted. Called before PostgreSQL is started in its place.
pub async fn mount_again(before: &Before) {
    mount_again_by(&System::of_host(), before).await;
}

async fn mount_again_by(system: &System, before: &Before) {
    let missing = || system.table().map(|table| before.missing(&mounts_of(&table)));
    let to_mount = match missing() {
        Ok(missing) => missing,
        Err(why) => return tracing::error!(why, "cannot mount datasets again"),
    };
    for Mount { at, source, .. } in &to_mount {
        let mut zfs = system.program("zfs");
        zfs.args(["mount", source]);
        let mut done = run(zfs, ASK_LIMIT).await.map(drop);
        if done.is_err() {
            // One with the mountpoint legacy.
            let mut mount = system.program("mount");
            mount.args(["-t", "zfs", source]).arg(at);
            done = run(mount, ASK_LIMIT).await.map(drop);
        }
        match done {
            Ok(()) => tracing::info!(dataset = source, "mounted again"),
            Err(why) => tracing::error!(dataset = source, why, "not mounted again"),
        }
    }
    if missing().is_ok_and(|missing| missing.is_empty()) {
        before.clear();
    }
}

#[cfg(test)]
#[path = "export/tests.rs"]
mod tests;
