//! Checks that PostgreSQL's files lie on the set. A commit is safe only there: files on a disk of this host are lost
//! with the host, and no other host has them.
//!
//! ```text
//!   data directory ─▶ Places (reads the device) ─▶ on, off, or on a ZFS pool of somebody else's ─┐
//!   zpool list ─────▶ devices of these pools, and of the agent's own ───────────────────────────┴─▶ text, "" for nothing
//! ```
//!
//! ONSET-L1  PostgreSQL is started only if its data directory, its WAL, every tablespace and every link of the data
//!     directory lie on a file system over the set's devices, by the kernel's table of mounts; so does each database
//!     that a link in `base` or in a tablespace leads to. Each device of a Btrfs or XFS file system has to be the
//!     set's. `database.allow_off_set` names places for tablespaces that may be lost, and for files that PostgreSQL
//!     only reads. Of another service than PostgreSQL its directory, and what is mounted below, has to lie there.
//! ONSET-L2  While PostgreSQL runs this is checked again: a tablespace may come later. What is found then is reported
//!     in log, status, history and metrics. It ends nothing.
//! ONSET-L3  ONSET-L1 and ONSET-L2 hold also for each device of a ZFS pool that these files lie on (data, log, special,
//!     dedup), also for a side of a mirror. A cache device may be anywhere. Where ZFS does not answer, PostgreSQL is
//!     started, and the check is repeated while it runs.
//! ONSET-L4  PostgreSQL is not started while a dataset of the agent's pool is not mounted that holds its files, or
//!     would hide them: what is written in its place, in the dataset above, is out of sight once it is mounted. Where
//!     ZFS does not answer, PostgreSQL is started. While it runs this is checked too, as ONSET-L2: a stop for a move or
//!     a restart would be followed by no start, on any host.

mod checks;
mod disks;
mod error;
mod place;
pub mod scratch;
mod unmounted;
mod vdevs;

pub use checks::Checks;
pub use error::PlacementError;
pub use place::OffSet;

use super::ownership;
use super::zfs::datasets::{self, Unmounted};
use super::zfs::vdevs::{Vdev, of_pool as vdevs_of};
use crate::config::{AgentConfig, Device, PoolKind};
use crate::process::{NotRan, system};
use checks::CHECK_LIMIT;
use disks::Disks;
use holdfast_host::mounts::{self, Mount, mount_over, points_below};
use place::What;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirEntry;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use vdevs::OffDevice;

/// The kernel's directory of devices.
const SYS: &str = "/sys";

/// Endings of names of files that PostgreSQL only reads.
const READ_ONLY: [&str; 5] = [".conf", ".crt", ".key", ".pem", ".crl"];

/// Time limit of a question to `zpool`.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Whether a dataset of the agent's ZFS pool is mounted there.
pub(super) fn of_pool(config: &AgentConfig, mount: &Mount) -> bool {
    config.pool.kind == PoolKind::Zfs && pool_of(mount).is_some_and(|pool| config.pool.name.as_deref() == Some(pool))
}

/// Name of the ZFS pool that is mounted there.
fn pool_of(mount: &Mount) -> Option<&str> {
    if mount.kind == "zfs" { mount.source.split(['/', '@']).next() } else { None }
}

/// Where PostgreSQL's files lie.
#[derive(Debug, Default)]
struct FileLocations {
    /// Not on the set.
    off: Vec<OffSet>,
    /// On the set.
    on: Vec<OffSet>,
    /// On a ZFS pool that the agent did not import, by its name: its devices decide.
    on_pools: Vec<(String, OffSet)>,
}

impl FileLocations {
    fn has(&self, place: &Path) -> bool {
        self.off.iter().chain(self.on_pools.iter().map(|(_, off)| off)).any(|off| off.place() == place)
    }
}

/// Finds the places of PostgreSQL's files.
struct Places<'a> {
    config: &'a AgentConfig,
    table: &'a [u8],
    disks: Disks<'a>,
    /// Device of the pool's mount that this agent noted when it made it.
    noted: Option<String>,
}

impl Places<'_> {
    /// Notes a place that is not on the set for certain; says whether it is on the set.
    fn sort(&self, off: OffSet, seen: &mut FileLocations) -> bool {
        let mount = off.real.as_ref().and_then(|(_, mount)| mount.as_ref());
        let is_mounted = |mount: &Mount| {
            self.noted.as_ref() == Some(&mount.device) || of_pool(self.config, mount) || self.disks.have(mount)
        };
        let is_set = |mount: &Mount| is_mounted(mount) && self.disks.have_further(mount);
        match mount {
            Some(mount) if is_set(mount) => {
                seen.on.push(off);
                return true;
            }
            Some(mount) => match pool_of(mount) {
                Some(pool) => seen.on_pools.push((pool.into(), off)),
                None => seen.off.push(off),
            },
            None => seen.off.push(off),
        }
        false
    }

    /// Whether the settings let it lie off the set.
    fn is_allowed(&self, what: What, place: &Path) -> bool {
        // A link with `..` may lead out of the directory that its text begins with.
        let is_plain = place.components().all(|part| part != Component::ParentDir);
        let allowed = || self.config.database.allow_off_set.iter().any(|folder| place.starts_with(folder));
        matches!(what, What::Tablespace | What::Other) && is_plain && allowed()
    }

    /// Judges what lies at `path`, and the file systems that are mounted below it.
    fn judge(&self, what: What, path: &Path, seen: &mut FileLocations) -> Result<(), PlacementError> {
        let link = std::fs::read_link(path).ok();
        if link.as_deref().is_some_and(|link| self.is_allowed(what, link)) {
            return Ok(());
        }
        let real = match path.canonicalize() {
            Ok(real) => real,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                seen.off.push(OffSet { what, path: path.into(), link, real: None });
                return Ok(());
            }
            Err(source) => return Err(PlacementError::Unread { path: path.into(), source }),
        };
        if self.is_allowed(what, &real) {
            return Ok(());
        }
        let mount = mount_over(self.table, &real);
        let on_pool = mount.as_ref().is_some_and(|mount| pool_of(mount).is_some());
        let found = OffSet { what, path: path.into(), link, real: Some((real.clone(), mount)) };
        if !self.sort(found, seen) && !on_pool {
            return Ok(());
        }
        for point in points_below(self.table, &real) {
            let what = What::of(&real, &point);
            let is_scratch = self.config.service.is_none() && scratch::is_below(&real, &point);
            if is_scratch || seen.has(&point) || self.is_allowed(what, &point) {
                continue;
            }
            let mount = mount_over(self.table, &point);
            self.sort(OffSet { what, path: point.clone(), link: None, real: Some((point, mount)) }, seen);
        }
        Ok(())
    }

    /// Judges what an entry of a directory leads to, if it is a link to files that PostgreSQL writes and needs.
    fn judge_link(&self, what: What, entry: &DirEntry, seen: &mut FileLocations) -> Result<(), PlacementError> {
        let name = entry.file_name().to_string_lossy().into_owned();
        let unread = |source| PlacementError::Unread { path: entry.path(), source };
        let is_link = entry.file_type().map_err(unread)?.is_symlink();
        if is_link && !scratch::NAMES.contains(&name.as_str()) && !READ_ONLY.iter().any(|end| name.ends_with(end)) {
            self.judge(what, &entry.path(), seen)?;
        }
        Ok(())
    }

    /// Judges the links in a tablespace: below the directory of a version of PostgreSQL each database has one, which a
    /// person may have moved away.
    fn judge_databases_in(&self, space: &Path, seen: &mut FileLocations) -> Result<(), PlacementError> {
        let is_allowed = |place: std::io::Result<PathBuf>| place.is_ok_and(|at| self.is_allowed(What::Tablespace, &at));
        if is_allowed(std::fs::read_link(space)) || is_allowed(space.canonicalize()) {
            return Ok(());
        }
        for version in entries(space)? {
            self.judge_link(What::Tablespace, &version, seen)?;
            for database in entries(&version.path())? {
                self.judge_link(What::Tablespace, &database, seen)?;
            }
        }
        Ok(())
    }

    /// Judges all places. Reads directories of the data directory and of tablespaces.
    fn seen(&self) -> Result<FileLocations, PlacementError> {
        let (data, mut seen) = (self.config.data(), FileLocations::default());
        self.judge(What::Data, data, &mut seen)?;
        // What another service keeps in its directory, and where its links lead, is its own affair.
        if self.config.service.is_some() || seen.off.iter().any(|off| off.what == What::Data) {
            return Ok(seen);
        }
        // In `base` each database has a directory, which a person may have moved away.
        for entry in entries(data)?.into_iter().chain(entries(&data.join("base"))?) {
            self.judge_link(What::of(data, &entry.path()), &entry, &mut seen)?;
        }
        for entry in entries(&data.join("pg_tblspc"))? {
            self.judge(What::Tablespace, &entry.path(), &mut seen)?;
            self.judge_databases_in(&entry.path(), &mut seen)?;
        }
        Ok(seen)
    }
}

/// In the order of their names. None if it is no directory, or not there.
fn entries(dir: &Path) -> Result<Vec<DirEntry>, PlacementError> {
    let listed = std::fs::read_dir(dir).and_then(Iterator::collect);
    let mut listed: Vec<DirEntry> = match listed {
        Ok(listed) => listed,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(Vec::new()),
        Err(source) => return Err(PlacementError::Unread { path: dir.into(), source }),
    };
    listed.sort_by_key(DirEntry::file_name);
    Ok(listed)
}

/// Answers of `zpool`, by the names of the pools.
type Pools = BTreeMap<String, Result<Vec<Vdev>, NotRan>>;

/// What does not lie on the set.
#[derive(Debug)]
struct Found {
    files: Vec<OffSet>,
    /// Places that are on the set.
    on: Vec<OffSet>,
    /// Or why ZFS did not say it.
    devices: Result<Vec<OffDevice>, PlacementError>,
}

/// The devices of a pool, by the answer of `zpool`.
fn devices_of<'a>(pool: &str, answer: &'a Result<Vec<Vdev>, NotRan>) -> Result<&'a [Vdev], PlacementError> {
    match answer {
        Ok(vdevs) => Ok(vdevs.as_slice()),
        Err(why) => Err(PlacementError::Unasked { pool: pool.into(), why: why.clone() }),
    }
}

/// Judges with the devices of the pools. The agent's own pool, if it has one, is always judged (ONSET-L3).
///
/// # Errors
/// ZFS did not say which devices a pool has that files lie on: these files may be on the set or not.
fn decided(own: Option<&str>, seen: FileLocations, pools: &Pools, disks: &Disks<'_>) -> Result<Found, PlacementError> {
    let mut used: BTreeSet<&str> = own.into_iter().collect();
    let mut files = seen.off;
    for (name, off) in seen.on_pools {
        match pools.get_key_value(&name) {
            Some((pool, answer)) if vdevs::is_the_sets(disks, devices_of(pool, answer)?) => {
                used.insert(pool);
            }
            _ => files.push(off),
        }
    }
    Ok(Found { files, on: seen.on, devices: off_devices(&used, pools, disks) })
}

fn off_devices(used: &BTreeSet<&str>, pools: &Pools, disks: &Disks<'_>) -> Result<Vec<OffDevice>, PlacementError> {
    let mut off = Vec::new();
    for (pool, answer) in pools.iter().filter(|(pool, _)| used.contains(pool.as_str())) {
        off.extend(vdevs::off(disks, pool, devices_of(pool, answer)?));
    }
    Ok(off)
}

/// True if the check is impossible: the agent has no pool and no device, so it knows no file system.
fn is_unknown(config: &AgentConfig) -> bool {
    config.pool.kind == PoolKind::None && config.attach.device == Device::None
}

/// Name of the agent's own ZFS pool.
fn own_pool(config: &AgentConfig) -> Option<&str> {
    config.pool.name.as_deref().filter(|_| config.pool.kind == PoolKind::Zfs)
}

async fn asked(names: impl Iterator<Item = String>) -> Pools {
    let mut pools = Pools::new();
    for name in names {
        let answer = vdevs_of(system("zpool"), &name, ASK_LIMIT).await;
        pools.insert(name, answer.map(Option::unwrap_or_default));
    }
    pools
}

/// Looks at everything: files, then devices of pools.
async fn look(config: &AgentConfig, checks: &Arc<Checks>) -> Result<Found, PlacementError> {
    let (config_there, looking) = (config.clone(), checks.begin());
    // On the device, which may hang: not on the runtime's own threads.
    let look = tokio::task::spawn_blocking(move || {
        let _looking = looking;
        let table = mounts::table().map_err(PlacementError::Mounts)?;
        let disks = Disks { sys: Path::new(SYS), attach_dirs: ownership::attach_dirs(&config_there) };
        let noted = ownership::noted_device(&config_there);
        Places { config: &config_there, table: &table, disks, noted }.seen()
    });
    let seen = look.await??;
    let own = own_pool(config).map(str::to_string);
    let names: BTreeSet<String> = seen.on_pools.iter().map(|(pool, _)| pool.clone()).chain(own.clone()).collect();
    let pools = asked(names.into_iter()).await;
    let disks = Disks { sys: Path::new(SYS), attach_dirs: ownership::attach_dirs(config) };
    decided(own.as_deref(), seen, &pools, &disks)
}

/// Text about files and devices that are not on the set, "" for none.
async fn words(config: &AgentConfig, files: Vec<OffSet>, devices: Vec<OffDevice>) -> String {
    let mut told = Vec::new();
    for off in files {
        let advice = match own_pool(config) {
            Some(name) => datasets::advice(name, off.place()).await,
            None => String::new(),
        };
        told.push(off.told(config, &advice));
    }
    told.extend(devices.iter().map(|device| device.told(&config.set)));
    told.join("; ")
}

/// Text about what would keep a PostgreSQL that runs from being started again where its files lie, "" for nothing
/// (ONSET-L2, ONSET-L3, ONSET-L4).
///
/// # Errors
/// It could not be checked.
pub async fn off_set(config: &AgentConfig, checks: &Arc<Checks>) -> Result<String, PlacementError> {
    if is_unknown(config) {
        return Ok(String::new());
    }
    // An export waits for all of this: `zfs list` may hold the pool, and would find what is unmounted for the export.
    let _looking = checks.begin();
    let found = look(config, checks).await?;
    while_it_runs(config, found, unmounted_of(config)).await
}

/// As [`off_set`]. `unmounted` is asked only if all files lie on the set. Without an answer nothing is known, and what
/// was found before stays.
async fn while_it_runs(
    config: &AgentConfig,
    found: Found,
    unmounted: impl Future<Output = Result<Vec<Unmounted>, String>>,
) -> Result<String, PlacementError> {
    let Found { files, on, devices } = found;
    let off = words(config, files, devices?).await;
    if !off.is_empty() {
        return Ok(off);
    }
    not_mounted(&on, &unmounted.await.map_err(PlacementError::Unlisted)?)
}

/// Checks ONSET-L1, ONSET-L3 and ONSET-L4 before a start.
///
/// # Errors
/// What does not lie on the set, and what to do about it; or it could not be checked.
pub async fn may_start(config: &AgentConfig, checks: &Arc<Checks>) -> Result<(), PlacementError> {
    if config.pool.kind == PoolKind::Zfs && !ownership::there(config).await.map_err(PlacementError::NotOurs)? {
        let pool = config.pool.name.clone().unwrap_or_default();
        return Err(PlacementError::NoPool { pool, set: config.set.clone() });
    }
    if is_unknown(config) {
        return Ok(());
    }
    let limit = CHECK_LIMIT.max(Duration::from_secs(config.pool.import_timeout_s));
    let found = tokio::time::timeout(limit, look(config, checks)).await;
    let Found { files, on, devices } = found.map_err(|_| PlacementError::Late)??;
    let devices = devices.unwrap_or_else(|why| {
        let why = why.to_string();
        tracing::warn!(why, "it is started; the devices of its pool are checked again while it runs");
        Vec::new()
    });
    let mut off = words(config, files, devices).await;
    if off.is_empty() {
        off = match unmounted_of(config).await {
            Ok(missing) => not_mounted(&on, &missing)?,
            Err(why) => {
                tracing::warn!(why, "it is started without a look at the datasets of its pool");
                String::new()
            }
        };
    }
    if off.is_empty() { Ok(()) } else { Err(PlacementError::OffSet(off)) }
}

/// The datasets of the agent's pool that are not mounted, or why ZFS did not say it.
async fn unmounted_of(config: &AgentConfig) -> Result<Vec<Unmounted>, String> {
    match own_pool(config) {
        Some(pool) => datasets::unmounted(pool).await,
        None => Ok(Vec::new()),
    }
}

/// Text about those datasets that have to be mounted for a start, "" for none (ONSET-L4).
fn not_mounted(on: &[OffSet], missing: &[Unmounted]) -> Result<String, PlacementError> {
    if missing.is_empty() {
        return Ok(String::new());
    }
    let table = mounts::table().map_err(PlacementError::Mounts)?;
    Ok(unmounted::told(on, missing, &mounts::mounts_of(&table)))
}

#[cfg(test)]
#[path = "placement/tests.rs"]
mod tests;
