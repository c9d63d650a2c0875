//! One of a standby's two slots: a snapshot copy, its file system, its PostgreSQL.
//!
//! STANDBY-U2  A slot is taken down in the opposite order of its start, whatever parts of it exist; no data of it is
//!     worth keeping. A part that does not end in good order does not stop the rest. The exception is a ZFS pool, which
//!     ZFS would keep for ever without its copy (STANDBY-U9).

use crate::config::{StandbyConfig, StandbySlot};
use crate::guard;
use crate::swap::Place;
use holdfast_agent::AttachLook;
use holdfast_agent::attach_process::{Attach, may_run, running};
use holdfast_agent::client::over_tcp;
use holdfast_agent::config::{AgentConfig, PoolKind};
use holdfast_agent::drivers::database::Database;
use holdfast_agent::drivers::ownership;
use holdfast_agent::drivers::pool;
use holdfast_agent::drivers::zfs::rules::{
    Imported, TakeDown, beside, is_suspended, of_one_pool, suspended, take_down,
};
use holdfast_agent::drivers::zfs::{IMPORT_LOCK, Zfs};
use holdfast_agent::machine::{AttachEnd, AttachPhase, DatabaseView, Stop};
use holdfast_agent::process::{Server, look_for_postgres, run, signal, system, tail, unlooked};
use holdfast_host::lock::is_locked;
use holdfast_host::mounts::{Mounted, mount_at};
use holdfast_host::rewritten;
use holdfast_types::sync::LockExt;
use rustix::process::Signal;
use serde::Deserialize;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Pause between two checks.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Time limit of a program that only makes a directory.
const DIR_LIMIT: Duration = Duration::from_secs(10);

/// Time limit from the end of a copy until the processes that waited for it are gone.
const FREED_LIMIT: Duration = Duration::from_secs(5);

/// Extra time for a copy, which keeps its own limit and has the better error message.
const GRACE: Duration = Duration::from_secs(5);

/// Fields read from the `status.json` of a snapshot copy.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Copy {
    /// Source of its reads.
    #[serde(default)]
    pub source: Source,
    /// Data written to it, in bytes.
    #[serde(default)]
    pub scratch_bytes: u64,
}

/// Source of a copy's reads.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Source {
    /// NBD address of the gateway.
    #[serde(default)]
    pub gateway: String,
    /// Number of connections made.
    #[serde(default)]
    pub connections: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Slot {
    standby: StandbyConfig,
    which: StandbySlot,
    config: AgentConfig,
    attach: Mutex<Arc<Attach>>,
    database: Database,
    /// The same data directory, with a PostgreSQL that clients cannot reach: it recovers there.
    private: Database,
    /// The mount table (the kernel's; another one in tests).
    mounted: fn(&Path) -> Result<Option<Mounted>, String>,
    zfs: Zfs,
    /// Guid of the ZFS pool of the last copy.
    pool: Mutex<Option<String>>,
}

impl Slot {
    /// A slot with these settings; starts nothing.
    pub fn new(standby: &StandbyConfig, which: StandbySlot) -> Self {
        let config = standby.slot(which, false);
        let attach = Attach::new(&config);
        // If this check fails, the next query of the state repeats it.
        let _ = attach.adopt();
        Self {
            which,
            attach: Mutex::new(Arc::new(attach)),
            database: Database::new(&config),
            private: Database::new(&standby.slot(which, true)),
            mounted: mount_at,
            zfs: Zfs::of_system(),
            pool: Mutex::default(),
            config,
            standby: standby.clone(),
        }
    }

    fn attach(&self) -> Arc<Attach> {
        self.attach.locked().clone()
    }

    fn of_zfs(&self) -> bool {
        self.config.pool.kind == PoolKind::Zfs
    }

    /// Whether the slot's own file system is mounted, or its own pool is imported (STANDBY-U5).
    async fn there(&self) -> Result<bool, String> {
        if self.of_zfs() {
            let Some(found) = self.imported().await? else { return Ok(false) };
            return self.own(&found).await;
        }
        let mount = &self.config.pool.mount;
        guard::there((self.mounted)(mount)?.as_ref(), mount, &self.config.run_dir, self.attach().dir())
    }

    /// The imported pool of its name, whoever owns it.
    async fn imported(&self) -> Result<Option<Imported>, String> {
        let Some(name) = self.config.pool.name.as_deref() else { return Ok(None) };
        let found = self.zfs.pools().await?.into_iter().find(|found| found.name == name);
        // The copy is ended if no pool is found, so this is asked twice.
        if found.is_none() && self.zfs.has(name).await? {
            return Err(format!("pool {name}: found it imported, and not in the list of pools: nothing is touched"));
        }
        Ok(found)
    }

    /// Whether this is the slot's own pool: by its devices, or by the guid that the slot noted (STANDBY-U5).
    async fn own(&self, found: &Imported) -> Result<bool, String> {
        Ok(ownership::pool_there(&self.config, self.zfs.zpool(&[]), Some(&found.guid)).await?)
    }

    /// Guid of the ZFS pool of its last copy, as far as this process has seen one.
    pub fn pool(&self) -> Option<String> {
        self.pool.locked().clone()
    }

    /// Whether a copy of the ZFS pool with this guid may be imported here (STANDBY-U8). If no guid is given it is read
    /// from the copy.
    ///
    /// # Errors
    /// The reason.
    pub async fn may_copy(&self, pool: Option<&str>) -> Result<(), String> {
        match pool {
            Some(guid) if self.of_zfs() => beside(guid, &self.zfs.pools().await?),
            _ => Ok(()),
        }
    }

    /// State of its PostgreSQL.
    pub async fn probe(&self) -> Option<DatabaseView> {
        self.database.probe().await
    }

    /// Status of its copy.
    pub fn copy(&self) -> Option<Copy> {
        serde_json::from_slice(&rewritten::read(&self.attach().dir().join("status.json")).ok()?).ok()
    }

    /// Arguments of the program that runs the copy.
    fn args(&self, snapshot: &str, dir: &Path) -> Vec<String> {
        let standby = &self.standby;
        let scratch = standby.dir.join("scratch").join(self.which.as_str());
        let mut args = vec!["standby".to_string(), "copy".into(), format!("{}@{snapshot}", standby.set)];
        for (flag, value) in [
            ("--api", standby.gateways.join(",")),
            ("--dir", dir.display().to_string()),
            ("--scratch", scratch.display().to_string()),
            ("--scratch-max", standby.scratch_max.to_string()),
            ("--device", standby.device.as_str().to_string()),
            ("--timeout", format!("{}s", standby.device_timeout_s)),
        ] {
            args.extend([flag.to_string(), value]);
        }
        for (flag, path) in standby.tls.flags() {
            args.extend([flag.to_string(), path.display().to_string()]);
        }
        args
    }

    /// Starts a copy of `snapshot`, lets its PostgreSQL recover where no client reaches it, and stops PostgreSQL again.
    ///
    /// # Errors
    /// The reason; parts that were started stay.
    pub async fn prepare(&self, snapshot: &str) -> Result<(), String> {
        for dir in [&self.config.dir, &self.config.run_dir] {
            std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        let args = self.args(snapshot, self.attach().dir());
        let attach = Arc::new(Attach::without_lease(&self.config, args));
        *self.attach.locked() = attach.clone();
        attach.start(false).await?;
        self.device(&attach).await?;
        let mounts = if self.of_zfs() { self.import(&attach).await? } else { self.mount(&attach).await? };
        self.may_start(mounts).await?;
        self.make_private_dir().await?;
        self.private.start().await?;
        self.ready(&self.private).await?;
        self.private.stop(Stop::Fast).await
    }

    /// Mounts the file system on one volume of the copy; returns its mount.
    async fn mount(&self, attach: &Attach) -> Result<Vec<PathBuf>, String> {
        let mount = &self.config.pool.mount;
        // A copy's file system is on one volume: other agents are asked for pools of ZFS alone.
        pool::import(&self.config, &attach.devices(), &over_tcp()).await?;
        guard::note(&self.config.run_dir, mount)?;
        Ok(vec![mount.clone()])
    }

    /// Imports the ZFS pool on all volumes of the copy; returns the mounts of its datasets.
    async fn import(&self, attach: &Attach) -> Result<Vec<PathBuf>, String> {
        let (pool, volumes) = (&self.config.pool, attach.devices());
        let devices: Vec<&str> = volumes.iter().filter_map(|volume| volume.device.as_deref()).collect();
        let labels = self.zfs.labels(&devices).await?;
        let label = of_one_pool(&labels)?;
        *self.pool.locked() = Some(label.guid.clone());
        beside(&label.guid, &self.zfs.pools().await?)?;
        let (name, limit) = (pool.name.as_deref().unwrap_or_default(), Duration::from_secs(pool.import_timeout_s));
        let lock = self.config.run_dir.join(IMPORT_LOCK);
        let mounted = self.zfs.import_copy(label, &devices, name, &pool.mount, &lock, limit).await?;
        let found = self.imported().await?.ok_or_else(|| format!("pool {name}: not there after its import"))?;
        ownership::note_copy(&self.config, &found.guid);
        for dataset in &mounted {
            let found = (self.mounted)(&dataset.at)?.map(|mounted| mounted.source);
            if found.as_deref() != Some(dataset.name.as_str()) {
                let at = dataset.at.display();
                return Err(format!("{at}: found {found:?} mounted there, expected {}", dataset.name));
            }
        }
        Ok(mounted.into_iter().map(|dataset| dataset.at).collect())
    }

    /// See [`guard::may_start`]; before that, links of a pool are redirected to the copy.
    async fn may_start(&self, mounts: Vec<PathBuf>) -> Result<(), String> {
        let root = self.of_zfs().then(|| self.config.pool.mount.clone());
        let data = self.config.database.data.clone();
        // This waits for the device, so it does not run on the runtime's own threads.
        let looked = tokio::task::spawn_blocking(move || {
            if let Some(root) = root {
                guard::lead(&root, &mounts, &data)?;
            }
            guard::may_start(&mounts, &data)
        });
        let limit = Duration::from_secs(self.standby.device_timeout_s);
        let looked = tokio::time::timeout(limit, looked).await;
        let looked =
            looked.map_err(|_| format!("the files of the copy could not be checked within {} s", limit.as_secs()))?;
        looked.map_err(|error| error.to_string())?
    }

    /// Only PostgreSQL's user may enter: the server's socket is there while it recovers.
    async fn make_private_dir(&self) -> Result<(), String> {
        let mut command = system("install");
        command.args(["-d", "-m", "0700"]);
        if rustix::process::geteuid().is_root() {
            command.args(["-o", &self.config.database.user]);
        }
        command.arg(self.standby.private_dir(self.which));
        run(command, DIR_LIMIT).await.map(drop)
    }

    async fn device(&self, attach: &Attach) -> Result<(), String> {
        let limit = Duration::from_secs(self.standby.device_timeout_s);
        let begun = Instant::now();
        loop {
            match attach.look() {
                AttachLook::Runs(view) if view.phase == AttachPhase::Serving => return Ok(()),
                AttachLook::Runs(_) => {}
                AttachLook::None => return Err("the snapshot copy is gone".into()),
                AttachLook::Ended(AttachEnd::Refused(why) | AttachEnd::Failed(why) | AttachEnd::Fenced(why)) => {
                    return Err(format!("the snapshot copy: {why}"));
                }
            }
            if begun.elapsed() >= limit + GRACE {
                return Err(format!("the snapshot copy has no device within {} s", limit.as_secs()));
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    async fn ready(&self, database: &Database) -> Result<(), String> {
        let limit = Duration::from_secs(self.config.database.start_timeout_s);
        let begun = Instant::now();
        loop {
            let view = database.probe().await;
            let log = || tail(&self.config.dir.join("postgresql.log"), 3);
            match view {
                Some(DatabaseView::Ready) => return Ok(()),
                Some(DatabaseView::Gone) => return Err(format!("PostgreSQL ended: {}", log())),
                _ if begun.elapsed() >= limit => {
                    let limit = limit.as_secs();
                    return Err(format!("PostgreSQL does not answer within {limit} s ({view:?}): {}", log()));
                }
                _ => tokio::time::sleep(LOOK_PAUSE).await,
            }
        }
    }

    /// Takes all parts of it down (STANDBY-U2).
    ///
    /// # Errors
    /// The remaining parts; or a foreign mount or pool was found, and nothing was touched (STANDBY-U5).
    pub async fn down(&self) -> Result<(), String> {
        if self.of_zfs() {
            return self.pool_down().await;
        }
        self.there().await?;
        let soft = async {
            self.quiet().await?;
            pool::export(&self.config, false).await
        };
        if let Err(why) = soft.await {
            tracing::warn!(why, "could not be stopped cleanly: forced");
            return self.force_down().await;
        }
        self.end_copy().await
    }

    async fn end_copy(&self) -> Result<(), String> {
        let attach = self.attach();
        if let Err(why) = attach.detach(false).await {
            tracing::debug!(why, "the snapshot copy");
            attach.detach(true).await?;
        }
        Ok(())
    }

    /// Like `end_copy`, with a ZFS pool on the copy (STANDBY-U9): the copy stays as long as its pool.
    async fn pool_down(&self) -> Result<(), String> {
        // An abandoned import runs to its end.
        let _turn = self.zfs.turn().await;
        let (pool, run_dir) = (&self.config.pool, &self.config.run_dir);
        let (name, limit) = (pool.name.as_deref().unwrap_or_default(), Duration::from_secs(pool.export_timeout_s));
        // An import may be late, or a killed process may have started it: its pool may appear the next moment, with the
        // guid of the original pool.
        if is_locked(run_dir, IMPORT_LOCK).map_err(|error| format!("{}: {error}", run_dir.display()))? {
            return Err(format!("pool {name}: an import of it still runs; its copy stays until that has ended"));
        }
        let found = self.imported().await?;
        if let Some(found) = &found {
            // STANDBY-U5.
            self.own(found).await?;
        }
        let dir = self.attach().dir().to_path_buf();
        let lives = running(&dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        match take_down(found.as_ref(), lives) {
            TakeDown::Gone => {}
            TakeDown::Export => {
                let gone = async {
                    // This comes first: a process does not stop while a suspended pool holds it in the kernel.
                    self.zfs.sync(name, limit).await?;
                    self.quiet().await?;
                    self.zfs.export_copy(name, limit).await
                };
                match gone.await {
                    Err(why) if is_suspended(&why) => return self.lost(suspended(name)).await,
                    done => done?,
                }
            }
            TakeDown::Lost(why) => return self.lost(why).await,
        }
        ownership::forget(&self.config);
        self.end_copy().await
    }

    /// Ends the rest if ZFS keeps the pool (STANDBY-U9): PostgreSQL, and the copy, whose scratch files are of no use
    /// any more.
    async fn lost(&self, why: String) -> Result<(), String> {
        if let Err(left) = self.database.stop(Stop::Kill).await {
            tracing::warn!(left, "PostgreSQL on a pool that is lost");
        }
        self.attach().detach(true).await?;
        Err(why)
    }

    /// Detaches the file system and ends the copy, whoever still uses them. Processes that got SIGKILL but wait for the
    /// device end with the copy.
    async fn force_down(&self) -> Result<(), String> {
        // Processes are noted by number: once the file system is detached, they cannot be found by their working
        // directory. A failed search stops nothing (STANDBY-U2).
        let mut looked = look_for_postgres(&Server::of(&self.config.database));
        let mut servers = Vec::new();
        for pid in looked.found {
            match begun(pid) {
                Ok(Some(since)) => servers.push((pid, since)),
                Ok(None) => {}
                Err(error) => {
                    looked.missed.get_or_insert(error);
                }
            }
        }
        let seen = looked.missed.map_or(Ok(()), |error| Err(unlooked(&error)));
        let exported = pool::export(&self.config, true).await;
        let detached = self.attach().detach(true).await;
        let waited = Instant::now();
        let gone = loop {
            let left: Vec<(i32, bool)> = servers.iter().filter_map(|server| left_of(server, begun(server.0))).collect();
            if left.is_empty() {
                break Ok(());
            }
            left.iter().filter(|(_, known)| *known).for_each(|(pid, _)| signal(*pid, Signal::KILL));
            if waited.elapsed() >= FREED_LIMIT {
                break Err(format!("{} processes of PostgreSQL are left after the end of their copy", left.len()));
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        };
        let left: Vec<String> = [seen, exported, detached, gone].into_iter().filter_map(Result::err).collect();
        if left.is_empty() { Ok(()) } else { Err(left.join("; ")) }
    }
}

/// A noted process that may still run: its number, and whether it may get a signal. One that cannot be inspected may
/// still run, or its number may belong to another process by now: it gets none.
fn left_of((pid, since): &(i32, String), now: io::Result<Option<String>>) -> Option<(i32, bool)> {
    match now {
        Ok(now) => (now.as_ref() == Some(since)).then_some((*pid, true)),
        Err(_) => Some((*pid, false)),
    }
}

/// Start time of a process that is not a zombie, in the kernel's own unit; `None` if it has ended.
fn begun(pid: i32) -> io::Result<Option<String>> {
    let text = match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(began(&String::from_utf8_lossy(&text)))
}

fn began(stat: &str) -> Option<String> {
    // The second field is the program's name in brackets and may contain blanks: count the fields after it.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    fields.nth(18).filter(|_| state != "Z").map(str::to_string)
}

impl Place for Slot {
    fn is_up(&self) -> bool {
        // Checking a child that has ended reaps it.
        let looked = self.attach().look();
        may_run(self.attach().dir()) && !matches!(looked, AttachLook::Ended(_)) && self.database.runs().unwrap_or(true)
    }

    async fn quiet(&self) -> Result<(), String> {
        // Without a mount, a process that works below that path does not belong to this slot.
        if !self.there().await? || !self.database.runs()? {
            return Ok(());
        }
        if let Err(why) = self.database.stop(Stop::Fast).await {
            tracing::warn!(why, "PostgreSQL is stopped at once");
            self.database.stop(Stop::Kill).await?;
        }
        Ok(())
    }

    async fn serve(&self) -> Result<(), String> {
        self.database.start().await?;
        self.ready(&self.database).await
    }
}

#[cfg(test)]
#[path = "slot_tests.rs"]
mod tests;
