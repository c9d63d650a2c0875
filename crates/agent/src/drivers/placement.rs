//! Where PostgreSQL's files lie. A commit is safe only on the set: what lies on a disk of this host is lost with the host, and no other host has it.
//!
//! ONSET-L1  PostgreSQL is started only if its data directory, its WAL, every tablespace and every link of the data directory lie on a file system over the
//!     set's devices, by the kernel's table of mounts. `database.allow_off_set` names folders for tablespaces that may be lost.
//! ONSET-L2  While PostgreSQL runs this is looked at again: a tablespace may come later. What is found then is told in log, status, history and metrics. It
//!     ends nothing.

use super::ownership::{self, Behind, NotOurs};
use super::zfs::datasets;
use crate::config::{AgentConfig, Device, PoolKind};
use crate::host::NotDone;
use holdfast_host::mounts::{self, Mount, mount_over, points_below};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Where the kernel shows its devices.
const SYS: &str = "/sys";

/// Levels of devices over devices (LVM over RAID over nbd), at most.
const LEVELS_MAX: usize = 8;

/// Ends of names of files that PostgreSQL only reads.
const READ_ONLY: [&str; 5] = [".conf", ".crt", ".key", ".pem", ".crl"];

/// What PostgreSQL can do without: its own log, and what it deletes at each start, statistics and temporary files (in `base`).
const MAY_BE_LOST: [&str; 4] = ["log", "pg_log", "pg_stat_tmp", "pgsql_tmp"];

/// A look that waits for a device is not waited for longer than this.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Between two looks at whether one is still going on.
const PAUSE: Duration = Duration::from_millis(10);

/// Looks that are going on: each has folders of the pool open, which keeps it from being unmounted.
static LOOKS: AtomicUsize = AtomicUsize::new(0);

/// One of [`LOOKS`].
struct Looking;

impl Looking {
    fn begin() -> Self {
        LOOKS.fetch_add(1, Ordering::SeqCst);
        Self
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        LOOKS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until no look has folders of the pool open, but not for one that hangs.
pub async fn looks_end() {
    let begun = Instant::now();
    while LOOKS.load(Ordering::SeqCst) > 0 && begun.elapsed() < LOOK_LIMIT {
        tokio::time::sleep(PAUSE).await;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Data,
    Wal,
    Tablespace,
    Other,
}

/// Something of PostgreSQL's that does not lie on the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffSet {
    what: What,
    /// As PostgreSQL names it.
    path: PathBuf,
    /// Where its link leads.
    link: Option<PathBuf>,
    /// Where it lies; `None` where it is not there.
    real: Option<(PathBuf, Option<Mount>)>,
}

impl OffSet {
    /// The place that it should have, without links as far as that is known.
    fn place(&self) -> &Path {
        match (&self.real, &self.link) {
            (Some((real, _)), _) => real,
            (None, Some(link)) => link,
            (None, None) => &self.path,
        }
    }

    fn told(&self, config: &AgentConfig, advice: &str) -> String {
        let link = self.link.as_ref().map_or_else(String::new, |to| format!(" (a link to {})", to.display()));
        let found = match &self.real {
            Some((real, Some(Mount { at, kind, source, .. }))) => {
                format!("{} on {} ({kind}, {source})", real.display(), at.display())
            }
            Some((real, None)) => format!("{} on an unknown file system", real.display()),
            None => "nothing there".to_string(),
        };
        let next = self.next(config, advice);
        format!(
            "{}{link}: found {found}, expected a file system over the devices of set {}: {next}",
            self.path.display(),
            config.set
        )
    }

    fn next(&self, config: &AgentConfig, advice: &str) -> String {
        if !advice.is_empty() {
            return advice.to_string();
        }
        match (self.what, config.pool.kind) {
            (What::Data, PoolKind::Zfs) => {
                let name = config.pool.name.as_deref().unwrap_or_default();
                format!("`zfs list -o name,mountpoint,canmount,mounted,keystatus -r {name}` shows the datasets; mount the one of the data directory, or correct database.data")
            }
            (What::Data, PoolKind::Ext4 | PoolKind::Xfs) => {
                "unmount what hides the set's file system, or correct database.data".into()
            }
            (What::Data, PoolKind::None) => {
                "mount the set's device there, for example in hooks.before_start, or correct database.data".into()
            }
            (What::Wal, _) if self.real.is_none() => {
                "it may be on the host where PostgreSQL ran before: copy it from there onto the set, and make the link lead to the copy".into()
            }
            (What::Wal, _) => {
                "commits there are lost with this host: in a pause (`holdfast agent pause`) stop PostgreSQL, move the folder onto the set, and make the link lead there".into()
            }
            (What::Tablespace, _) => format!(
                "move it onto the set; a tablespace that holds only temporary files may stay if database.allow_off_set names {}",
                self.place().display()
            ),
            (What::Other, _) => "move it onto the set, and make the link lead there".into(),
        }
    }
}

/// Whether a dataset of the agent's ZFS pool is mounted there.
pub(super) fn of_pool(config: &AgentConfig, mount: &Mount) -> bool {
    let name = config.pool.name.as_deref().filter(|_| config.pool.kind == PoolKind::Zfs && mount.kind == "zfs");
    let rest = name.and_then(|name| mount.source.strip_prefix(name));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
}

/// What makes a file system one of the set's.
struct Set<'a> {
    config: &'a AgentConfig,
    sys: &'a Path,
    table: &'a [u8],
    attach_dirs: Vec<PathBuf>,
    /// Device of the pool's mount that this agent noted when it made it.
    noted: Option<String>,
}

impl Set<'_> {
    fn has(&self, mount: &Mount) -> bool {
        self.noted.as_ref() == Some(&mount.device) || of_pool(self.config, mount) || self.is_over_devices(mount)
    }

    /// Whether all the devices that lie under a mount are those of this agent's attach.
    fn is_over_devices(&self, mount: &Mount) -> bool {
        let by_number = std::fs::canonicalize(self.sys.join("dev/block").join(&mount.device));
        // A file system over several devices (btrfs) has a number that is no device's.
        let device = by_number.or_else(|_| Path::new(&mount.source).canonicalize());
        let Some(name) = device.ok().and_then(|path| Some(path.file_name()?.to_str()?.to_string())) else {
            return false;
        };
        let mut leaves = Vec::new();
        self.leaves(&name, LEVELS_MAX, &mut leaves)
            && leaves.iter().all(|leaf| ownership::is_ours(behind(self.sys, leaf).as_ref(), &self.attach_dirs, false))
    }

    /// The devices at the bottom of this one; whether all were found.
    fn leaves(&self, name: &str, levels: usize, found: &mut Vec<String>) -> bool {
        let of = self.sys.join("class/block").join(name);
        let whole = of.join("partition").exists().then(|| of.canonicalize().ok()).flatten();
        let lower: Vec<String> = match whole.as_deref().and_then(Path::parent).and_then(Path::file_name) {
            Some(whole) => vec![whole.to_string_lossy().into_owned()],
            None => {
                let slaves = std::fs::read_dir(of.join("slaves")).into_iter().flatten();
                slaves.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
            }
        };
        if lower.is_empty() {
            found.push(name.to_string());
            return true;
        }
        levels > 0 && lower.iter().all(|name| self.leaves(name, levels - 1, found))
    }

    /// What lies at `path` and is not on the set; a file system that is mounted below it, too.
    fn judge(&self, what: What, path: &Path, off: &mut Vec<OffSet>) -> Result<(), String> {
        let link = std::fs::read_link(path).ok();
        let may_be_lost = |place: &Path| {
            let allowed = || self.config.database.allow_off_set.iter().any(|folder| place.starts_with(folder));
            matches!(what, What::Tablespace | What::Other) && allowed()
        };
        if link.as_deref().is_some_and(may_be_lost) {
            return Ok(());
        }
        let real = match path.canonicalize() {
            Ok(real) => real,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                off.push(OffSet { what, path: path.into(), link, real: None });
                return Ok(());
            }
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        if may_be_lost(&real) {
            return Ok(());
        }
        let mount = mount_over(self.table, &real);
        if !mount.as_ref().is_some_and(|mount| self.has(mount)) {
            off.push(OffSet { what, path: path.into(), link, real: Some((real, mount)) });
            return Ok(());
        }
        for point in points_below(self.table, &real) {
            let lost = MAY_BE_LOST.iter().any(|name| point.starts_with(real.join(name)));
            let mount = mount_over(self.table, &point);
            let known = off.iter().any(|other| other.place() == point);
            if lost || known || may_be_lost(&point) || mount.as_ref().is_some_and(|mount| self.has(mount)) {
                continue;
            }
            let what = if wal(&point) { What::Wal } else { What::Other };
            off.push(OffSet { what, path: point.clone(), link: None, real: Some((point, mount)) });
        }
        Ok(())
    }

    /// All that does not lie on the set. Reads folders of the data directory.
    fn off(&self) -> Result<Vec<OffSet>, String> {
        let (data, mut off) = (self.config.database.data.as_path(), Vec::new());
        self.judge(What::Data, data, &mut off)?;
        if off.iter().any(|off| off.what == What::Data) {
            return Ok(off);
        }
        // In `base` each database has a folder, which a person may have moved away.
        for entry in entries(data)?.into_iter().chain(entries(&data.join("base"))?) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_link =
                entry.file_type().map_err(|error| format!("{}: {error}", entry.path().display()))?.is_symlink();
            if is_link && !MAY_BE_LOST.contains(&name.as_str()) && !READ_ONLY.iter().any(|end| name.ends_with(end)) {
                let what = if wal(&entry.path()) { What::Wal } else { What::Other };
                self.judge(what, &entry.path(), &mut off)?;
            }
        }
        for entry in entries(&data.join("pg_tblspc"))? {
            self.judge(What::Tablespace, &entry.path(), &mut off)?;
        }
        Ok(off)
    }
}

/// Whether this is the folder of the WAL, by its name of today or by that of before version 10.
fn wal(path: &Path) -> bool {
    path.ends_with("pg_wal") || path.ends_with("pg_xlog")
}

/// In the order of their names. None where the folder is not there.
fn entries(dir: &Path) -> Result<Vec<std::fs::DirEntry>, String> {
    let listed = std::fs::read_dir(dir).and_then(Iterator::collect);
    let mut listed: Vec<std::fs::DirEntry> = match listed {
        Ok(listed) => listed,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("{}: {error}", dir.display())),
    };
    listed.sort_by_key(std::fs::DirEntry::file_name);
    Ok(listed)
}

fn behind(sys: &Path, name: &str) -> Option<Behind> {
    ownership::behind_in(sys, name)
}

/// Whether nothing can be said: with neither a pool nor devices of the agent's there is no file system that it could know.
fn is_unknown(config: &AgentConfig) -> bool {
    config.pool.kind == PoolKind::None && config.attach.device == Device::None
}

/// Words for what does not lie on the set, "" for nothing.
///
/// # Errors
/// It could not be looked.
pub async fn off_set(config: &AgentConfig) -> Result<String, String> {
    if is_unknown(config) {
        return Ok(String::new());
    }
    let (asked, looking) = (config.clone(), Looking::begin());
    // On the device, which may hang: not on the runtime's own threads.
    let look = tokio::task::spawn_blocking(move || {
        let _looking = looking;
        let table = mounts::table()?;
        let (attach_dirs, noted) = (ownership::attach_dirs(&asked), ownership::noted_device(&asked));
        Set { config: &asked, sys: Path::new(SYS), table: &table, attach_dirs, noted }.off()
    });
    let off = look.await.map_err(|error| error.to_string())??;
    let mut told = Vec::new();
    for off in off {
        let advice = match (config.pool.kind, config.pool.name.as_deref()) {
            (PoolKind::Zfs, Some(name)) => datasets::advice(name, off.place()).await,
            _ => String::new(),
        };
        told.push(off.told(config, &advice));
    }
    Ok(told.join("; "))
}

/// ONSET-L1.
///
/// # Errors
/// What does not lie on the set, and what to do about it; or it could not be looked.
pub async fn may_start(config: &AgentConfig) -> Result<(), NotDone> {
    if config.pool.kind == PoolKind::Zfs {
        match ownership::there(config).await {
            Ok(true) => {}
            Ok(false) => {
                let (name, set) = (config.pool.name.as_deref().unwrap_or_default(), &config.set);
                return Err(NotDone::Refused(format!(
                    "found no pool {name}, expected it imported from the devices of set {set}: `holdfast agent restart` once it is"
                )));
            }
            Err(NotOurs::Foreign(why)) => return Err(NotDone::Refused(why)),
            Err(NotOurs::Unlooked(why)) => return Err(NotDone::Failed(why)),
        }
    }
    let look = tokio::time::timeout(LOOK_LIMIT.max(Duration::from_secs(config.pool.import_timeout_s)), off_set(config));
    let off = look
        .await
        .map_err(|_| "found no answer to where PostgreSQL's files lie: the device does not answer".to_string())?;
    match off?.as_str() {
        "" => Ok(()),
        off => Err(NotDone::Refused(off.to_string())),
    }
}

#[cfg(test)]
#[path = "placement/tests.rs"]
mod tests;
