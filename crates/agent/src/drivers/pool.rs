//! The pool on the devices: a ZFS pool, or one file system.
//!
//! Mounted so that an error of the device ends writing at once (`errors=remount-ro`; XFS told not to retry for ever): a fenced host must not keep
//! data that it believes it could still write. ZFS is imported without its cache file: a host that boots imports nothing by itself.

use super::openers::{named, openers};
use super::placement::of_pool;
use super::zfs::Zfs;
use crate::attach_process::Volume;
use crate::config::{AgentConfig, PoolKind};
use crate::host::NotDone;
use crate::hostid;
use crate::process::{Ran, ran, run, system};
use holdfast_host::mounts::{self, Mount, Mounted, mount_at, mounts_of};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::process::Command;

/// Where the file system's device may be dead: how long unmounting in good order may take.
const HARD_EXPORT_LIMIT: Duration = Duration::from_secs(5);

/// A pool that somebody has open is tried again for this long, while PostgreSQL is stopped; and the pause between two tries.
const BUSY_LIMIT: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(200);

/// In what `umount` and `zpool export` say where somebody has it open.
const BUSY: &str = "busy";

/// For a question to the system.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Time limit for the other agents' host ids: a lost host does not answer, and the import waits for it.
const HOST_ID_LIMIT: Duration = Duration::from_secs(1);

/// e2fsck's exit codes below this one mean a clean file system, at least afterwards.
const E2FSCK_BAD: i32 = 4;

/// Whether something may be mounted, from the result of a check. An unknown state counts as mounted: otherwise its
/// device would be removed while in use.
fn may_be_mounted(found: &Result<Option<Mounted>, String>) -> bool {
    !matches!(found, Ok(None))
}

fn zpool(name: &str, args: &[&str]) -> tokio::process::Command {
    let mut command = system("zpool");
    command.args(args).arg(name);
    command
}

/// Whether the pool is mounted or imported, or may be.
pub async fn is_there(config: &AgentConfig) -> bool {
    let pool = &config.pool;
    match (pool.kind, &pool.name) {
        (PoolKind::Ext4 | PoolKind::Xfs, _) => may_be_mounted(&mount_at(&pool.mount)),
        (PoolKind::Zfs, Some(name)) => {
            let listed = ran(zpool(name, &["list", "-H", "-o", "name"]), ASK_LIMIT).await;
            // No answer: a suspended pool is there.
            !matches!(listed, Ok(ran) if ran.code != Some(0))
        }
        (PoolKind::Zfs | PoolKind::None, _) => false,
    }
}

fn device<'a>(config: &AgentConfig, volumes: &'a [Volume]) -> Result<&'a str, String> {
    let names = || volumes.iter().map(|volume| volume.name.as_str()).collect::<Vec<_>>().join(", ");
    let volume = match (&config.pool.volume, volumes) {
        (Some(name), _) => volumes
            .iter()
            .find(|volume| volume.name == *name)
            .ok_or_else(|| format!("found volumes {}, expected {name} (pool.volume)", names()))?,
        (None, [only]) => only,
        (None, _) => return Err(format!("found volumes {}, expected one, or its name in pool.volume", names())),
    };
    let found = volume.device.as_deref();
    found.ok_or_else(|| format!("volume {} has no device: attach.device must not be \"none\"", volume.name))
}

/// Mounts or imports it. Returns a warning, "" for none.
///
/// # Errors
/// The reason.
pub async fn import(config: &AgentConfig, volumes: &[Volume]) -> Result<String, String> {
    let limit = Duration::from_secs(config.pool.import_timeout_s);
    match config.pool.kind {
        PoolKind::None => {}
        PoolKind::Ext4 => {
            let device = device(config, volumes)?;
            if already(config, device)? {
                return Ok(String::new());
            }
            // Replays the journal, and checks further only if the journal left a reason to.
            let mut check = system("e2fsck");
            check.arg("-p").arg(device);
            let checked = ran(check, limit).await?;
            if checked.code.is_none_or(|code| code >= E2FSCK_BAD) {
                let words = format!("{} {}", checked.out, checked.err);
                return Err(format!(
                    "e2fsck -p {device}: {}: check it by hand before anything is mounted",
                    words.trim()
                ));
            }
            mount(config, device, "ext4", "errors=remount-ro", limit).await?;
        }
        PoolKind::Xfs => {
            let device = device(config, volumes)?;
            if already(config, device)? {
                return Ok(String::new());
            }
            // An older mount of the same file system, lazily unmounted and still in use, lies on another, dead device:
            // it must not prevent this mount. No other host can write to it (R2).
            mount(config, device, "xfs", "nouuid", limit).await?;
            // By default XFS retries metadata writes for ever on a device with errors, and cannot be unmounted
            // meanwhile.
            let name = device.trim_start_matches("/dev/");
            let _ = std::fs::write(format!("/sys/fs/xfs/{name}/error/metadata/EIO/max_retries"), "0");
        }
        PoolKind::Zfs => {
            // Checked before. Not again: if the check failed now it would count as imported, and it is not.
            let devices: Vec<&str> = volumes.iter().filter_map(|volume| volume.device.as_deref()).collect();
            let others = match config.pool.multihost {
                true => hostid::ask(&config.set, &config.peers.0, HOST_ID_LIMIT).await,
                false => Vec::new(),
            };
            return Zfs::of_system().import(&config.pool, &devices, &others).await;
        }
    }
    Ok(String::new())
}

/// The kernel reports mounts and working directories by paths without links. Under another path neither would be found:
/// a mount would count as unmounted, and PostgreSQL's processes as ended.
///
/// # Errors
/// The path has links or `..` in it, or cannot be checked.
pub(super) fn without_links(setting: &str, path: &Path) -> Result<(), String> {
    let real = path.canonicalize().map_err(|error| format!("{setting}: {}: {error}", path.display()))?;
    if real == path {
        return Ok(());
    }
    let (found, real) = (path.display(), real.display());
    Err(format!(
        "{setting}: found {found}, which is {real}, expected a path without symbolic links or \"..\": set it to {real}"
    ))
}

/// Whether it is mounted already. A mount from another device is an error, and so is an unknown state.
fn already(config: &AgentConfig, device: &str) -> Result<bool, String> {
    let at = config.pool.mount.as_path();
    match mount_at(at)? {
        None => Ok(false),
        Some(Mounted { source, .. }) if source == device => Ok(true),
        Some(Mounted { source, .. }) => {
            Err(format!("{}: found {source} mounted there, expected {device}", at.display()))
        }
    }
}

async fn mount(config: &AgentConfig, device: &str, kind: &str, ours: &str, limit: Duration) -> Result<(), String> {
    let at = &config.pool.mount;
    std::fs::create_dir_all(at).map_err(|error| format!("{}: {error}", at.display()))?;
    without_links("pool.mount", at)?;
    let parts = [config.pool.options.as_str(), ours];
    let options = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(",");
    let mut command = system("mount");
    command.args(["-t", kind]);
    if !options.is_empty() {
        command.args(["-o", &options]);
    }
    command.arg(device).arg(at);
    run(command, limit).await.map(drop)
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
    match config.pool.kind {
        PoolKind::None => Ok(()),
        PoolKind::Ext4 | PoolKind::Xfs => {
            let mut command = system("umount");
            command.arg(&config.pool.mount);
            match run(command, limit).await {
                Ok(_) => Ok(()),
                Err(why) if !hard => Err(why),
                Err(why) if !may_be_mounted(&mount_at(&config.pool.mount)) => {
                    tracing::debug!(why, "unmounted after all");
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
        PoolKind::Zfs => {
            let name = config.pool.name.as_deref().unwrap_or_default();
            let args: &[&str] = if hard { &["export", "-f"] } else { &["export"] };
            run(zpool(name, args), limit).await.map(drop)
        }
    }
}

/// Unmounts or exports it in good order. One that is in use is tried again for some seconds; it stays as it was then, and is refused with who uses it.
///
/// # Errors
/// It is still there.
pub async fn export_unless_used(config: &AgentConfig) -> Result<(), NotDone> {
    if !is_there(config).await {
        return Ok(());
    }
    let limit = Duration::from_secs(config.pool.export_timeout_s);
    let (what, command): (String, Box<dyn Fn() -> Command + Send + Sync + '_>) = match config.pool.kind {
        PoolKind::None => return Ok(()),
        PoolKind::Ext4 | PoolKind::Xfs => {
            let umount = || {
                let mut command = system("umount");
                command.arg(&config.pool.mount);
                command
            };
            (config.pool.mount.display().to_string(), Box::new(umount))
        }
        PoolKind::Zfs => {
            let name = config.pool.name.as_deref().unwrap_or_default();
            (format!("pool {name}"), Box::new(move || zpool(name, &["export"])))
        }
    };
    let before = mounts_of(&mounts::table()?);
    match let_go(command, limit, BUSY_LIMIT).await {
        Err(NotDone::Refused(why)) => {
            // Of several datasets some are unmounted by then.
            remount(config, &before).await;
            let users = named(&openers(config).await);
            Err(NotDone::Refused(format!("{what} is in use: {users}: end these, then ask again ({why})")))
        }
        done => done,
    }
}

/// Runs the command until it succeeds; refused where it says that somebody uses what it is about, for `busy` at most.
async fn let_go(command: impl Fn() -> Command, limit: Duration, busy: Duration) -> Result<(), NotDone> {
    let begun = Instant::now();
    loop {
        let mut command = command();
        // By its words it is told whether somebody uses it.
        command.env("LC_ALL", "C");
        let why = match ran(command, limit.saturating_sub(begun.elapsed()).max(BUSY_PAUSE)).await {
            Ok(Ran { code: Some(0), .. }) => return Ok(()),
            Ok(Ran { out, err, .. }) => {
                if err.is_empty() {
                    out
                } else {
                    err
                }
            }
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

/// The pool's datasets that were mounted before and are no more, in the order in which they are mounted.
fn unmounted<'a>(config: &AgentConfig, before: &'a [Mount], now: &[Mount]) -> Vec<&'a Mount> {
    let gone = |mount: &&Mount| of_pool(config, mount) && !mount.source.contains('@') && !now.contains(mount);
    let is_there = |mount: &&Mount| now.iter().any(|now| now.at == mount.at && now.source == mount.source);
    let mut gone: Vec<&Mount> = before.iter().filter(gone).filter(|mount| !is_there(mount)).collect();
    gone.sort_by_key(|mount| mount.at.components().count());
    gone
}

/// Mounts again what an export that was refused had unmounted already.
async fn remount(config: &AgentConfig, before: &[Mount]) {
    let now = mounts::table().map(|table| mounts_of(&table)).unwrap_or_default();
    for Mount { at, source, .. } in unmounted(config, before, &now) {
        let mut zfs = system("zfs");
        zfs.args(["mount", source]);
        let mut done = run(zfs, ASK_LIMIT).await.map(drop);
        if done.is_err() {
            // One with the mountpoint legacy.
            let mut mount = system("mount");
            mount.args(["-t", "zfs", source]).arg(at);
            done = run(mount, ASK_LIMIT).await.map(drop);
        }
        if let Err(why) = done {
            tracing::error!(dataset = source, why, "not mounted again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        command
    }

    /// Who stands in the pool has some seconds to leave it; nobody is fenced for that.
    #[tokio::test]
    async fn what_is_in_use_is_tried_again_and_then_refused() {
        let dir = tempfile::tempdir().unwrap();
        let count = dir.path().join("count").display().to_string();
        let (limit, busy) = (Duration::from_secs(60), Duration::from_secs(30));
        let leaves =
            format!("echo >> {count}; [ $(wc -l < {count}) -ge 3 ] || {{ echo 'target is busy.' >&2; exit 32; }}");
        assert_eq!(let_go(|| says(&leaves), limit, busy).await, Ok(()));
        assert_eq!(std::fs::read_to_string(&count).unwrap().lines().count(), 3);
        let stays = let_go(|| says("echo 'cannot export tank: pool is busy'; exit 1"), limit, Duration::ZERO).await;
        assert_eq!(stays, Err(NotDone::Refused("cannot export tank: pool is busy".into())));
        let fails = let_go(|| says("echo 'pool I/O is currently suspended' >&2; exit 1"), limit, busy).await;
        assert_eq!(fails, Err(NotDone::Failed("pool I/O is currently suspended".into())));
        let hangs = let_go(|| says("echo busy; exec sleep 63"), Duration::from_millis(50), busy).await;
        assert!(matches!(&hangs, Err(NotDone::Failed(why)) if why.contains("not within")), "{hangs:?}");
    }

    /// An export that is refused has unmounted the datasets that nobody used, and PostgreSQL is started again over them.
    #[test]
    fn datasets_that_a_refused_export_unmounted_are_known() {
        let mut config = AgentConfig::default();
        (config.pool.kind, config.pool.name) = (PoolKind::Zfs, Some("tank".into()));
        let table = |lines: &[&str]| {
            mounts_of(format!("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n{}\n", lines.join("\n")).as_bytes())
        };
        let (pg, wal) = ("2 1 0:50 / /tank/pg rw - zfs tank/pg rw", "3 2 0:51 / /tank/pg/wal rw - zfs tank/pg/wal rw");
        let others =
            ["4 1 0:52 / /other rw - zfs other rw", "5 2 0:53 / /tank/pg/.zfs/snapshot/a rw - zfs tank/pg@a rw"];
        let before = table(&[wal, pg, others[0], others[1]]);
        let gone = |now: &[&str]| {
            unmounted(&config, &before, &table(now)).iter().map(|mount| mount.source.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(gone(&[]), ["tank/pg", "tank/pg/wal"]);
        assert_eq!(gone(&[pg]), ["tank/pg/wal"]);
        // Mounted anew meanwhile, as another mount.
        assert_eq!(gone(&[pg, "9 2 0:60 / /tank/pg/wal rw - zfs tank/pg/wal rw"]), Vec::<&str>::new());
    }

    /// Where the table of mounts cannot be read, what may be mounted is unmounted before its device goes.
    #[test]
    fn what_cannot_be_looked_at_may_be_mounted() {
        let mounted = Mounted { id: "41 7:1".into(), source: "/dev/loop1".into() };
        assert!(may_be_mounted(&Ok(Some(mounted))) && may_be_mounted(&Err("too many open files".into())));
        assert!(!may_be_mounted(&Ok(None)));
    }

    /// Only the path without links shows mounts and working directories.
    #[test]
    fn a_path_over_a_link_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("data");
        let link = real.with_file_name("link");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        without_links("database.data", &real).unwrap();
        without_links("database.data", &real.join("")).unwrap();
        for other in [link.clone(), link.join("."), real.join("../data")] {
            let why = without_links("database.data", &other).unwrap_err();
            assert!(why.ends_with(&format!("set it to {}", real.display())), "{why}");
        }
        let why = without_links("pool.mount", &real.join("nowhere")).unwrap_err();
        assert!(why.starts_with("pool.mount: "), "{why}");
    }

    /// If `zpool` is missing or does not answer, nothing was imported.
    #[tokio::test]
    async fn a_pool_that_cannot_be_looked_for_is_not_imported() {
        let mut config = AgentConfig::default();
        (config.pool.kind, config.pool.name) = (PoolKind::Zfs, Some("holdfast-no-such-pool".into()));
        let device = Volume { name: "vol1".into(), device: Some("/dev/holdfast-no-such-device".into()), lost: None };
        let why = import(&config, &[device]).await.unwrap_err();
        assert!(why.contains("zpool import -f"), "{why}");
    }

    #[test]
    fn the_volume_is_the_only_one_or_named() {
        let volume = |name: &str| Volume { name: name.into(), device: Some(format!("/dev/{name}")), lost: None };
        let mut config = AgentConfig::default();
        assert_eq!(device(&config, &[volume("a")]).unwrap(), "/dev/a");
        assert!(device(&config, &[volume("a"), volume("b")]).unwrap_err().contains("pool.volume"));
        config.pool.volume = Some("b".into());
        assert_eq!(device(&config, &[volume("a"), volume("b")]).unwrap(), "/dev/b");
        assert!(device(&config, &[volume("a")]).unwrap_err().contains("expected b"));
    }
}
