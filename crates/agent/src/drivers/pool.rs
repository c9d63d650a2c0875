//! The pool on the devices: a ZFS pool, or one file system.
//!
//! It is mounted so that an error of the device ends writing at once (`errors=remount-ro`; XFS does not retry for
//! ever): a fenced host must not keep data that it still hopes to write. ZFS is imported without its cache file: a host
//! that boots imports nothing by itself.

mod export;

use super::zfs::vdevs::{in_english, is_imported};
use super::zfs::{Warning, Zfs};
use crate::attach_process::Volume;
use crate::config::{AgentConfig, PoolConfig, PoolKind};
use crate::hostid;
use crate::process::{NotRan, Ran, ran, run, system};
use crate::seams::Dial;
pub use export::{Before, export, export_unless_used, mount_again};
use holdfast_host::mounts::{Mounted, mount_at};
use std::path::{Component, Path};
use std::time::Duration;

/// Time limit of a question to the system.
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

/// Whether the pool may be imported, from the result of `zpool list` for it. No answer counts as imported, since a
/// suspended pool gives none. So does an error that does not say that there is no such pool.
fn may_be_imported(listed: Result<Ran, NotRan>) -> bool {
    listed.map_err(String::from).and_then(|listed| is_imported(&listed)).unwrap_or(true)
}

/// Whether the pool is mounted or imported, or may be.
pub async fn is_there(config: &AgentConfig) -> bool {
    let pool = &config.pool;
    match (pool.kind, &pool.name) {
        (PoolKind::Ext4 | PoolKind::Xfs, _) => may_be_mounted(&mount_at(&pool.mount)),
        (PoolKind::Zfs, Some(name)) => {
            let mut list = system("zpool");
            in_english(&mut list).args(["list", "-H", "-o", "name"]).arg(name);
            may_be_imported(ran(list, ASK_LIMIT).await)
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

/// Mounts or imports it. `dial` reaches the agents of the other hosts.
///
/// # Errors
/// The reason.
pub async fn import(config: &AgentConfig, volumes: &[Volume], dial: &Dial) -> Result<Option<Warning>, String> {
    let limit = Duration::from_secs(config.pool.import_timeout_s);
    match config.pool.kind {
        PoolKind::None => {}
        PoolKind::Ext4 => {
            let device = device(config, volumes)?;
            if already(config, device)? {
                return Ok(None);
            }
            // Replays the journal, and checks more only if the journal gives a reason.
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
                return Ok(None);
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
                true => hostid::ask(dial, &config.set, &config.peers.0, HOST_ID_LIMIT).await,
                false => Vec::new(),
            };
            return Zfs::of_system().import(&config.pool, &devices, &others).await;
        }
    }
    Ok(None)
}

/// The kernel reports mounts and working directories by paths without links. Under another path neither would be found:
/// a mount would count as unmounted, and PostgreSQL's processes as ended.
///
/// # Errors
/// The path has links or `..` in it, or cannot be checked.
pub(super) fn without_links(setting: &str, path: &Path) -> Result<(), String> {
    let real = path.canonicalize().map_err(|error| format!("{setting}: {}: {error}", path.display()))?;
    must_be(setting, path, &real)
}

fn must_be(setting: &str, path: &Path, real: &Path) -> Result<(), String> {
    if real == path {
        return Ok(());
    }
    let (found, real) = (path.display(), real.display());
    Err(format!(
        "{setting}: found {found}, which is {real}, expected a path without symbolic links or \"..\": set it to {real}"
    ))
}

/// The same of `pool.mount`, before a device is attached for it. The directory may not exist yet. What cannot be looked
/// at is no fault here: the mount looks again.
///
/// # Errors
/// The path has links or `..` in it.
pub fn mount_without_links(pool: &PoolConfig) -> Result<(), String> {
    if !matches!(pool.kind, PoolKind::Ext4 | PoolKind::Xfs) {
        return Ok(());
    }
    let at = pool.mount.as_path();
    let Some(there) = at.ancestors().find(|above| above.symlink_metadata().is_ok()) else { return Ok(()) };
    let mut real = match there.canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let (found, link) = (at.display(), there.display());
            return Err(format!("pool.mount: found {found}, and {link} is a symbolic link to nothing: remove it"));
        }
        Err(_) => return Ok(()),
    };
    // Nothing below exists, so no link does either.
    for part in at.strip_prefix(there).unwrap_or(Path::new("")).components() {
        match part {
            Component::ParentDir => {
                real.pop();
            }
            part => real.push(part),
        }
    }
    must_be("pool.mount", at, &real)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// If the table of mounts cannot be read, the file system is unmounted before its device goes.
    #[test]
    fn what_cannot_be_looked_at_may_be_mounted() {
        let mounted = Mounted { id: "41 7:1".into(), source: "/dev/loop1".into() };
        assert!(may_be_mounted(&Ok(Some(mounted))) && may_be_mounted(&Err("too many open files".into())));
        assert!(!may_be_mounted(&Ok(None)));
    }

    /// The same for a pool of ZFS: only one text says that it is not there.
    #[test]
    fn a_pool_that_zpool_did_not_look_for_may_be_imported() {
        let listed = |code, err: &str| Ok(Ran { code, out: String::new(), err: err.into() });
        assert!(may_be_imported(listed(Some(0), "")));
        assert!(!may_be_imported(listed(Some(1), "cannot open 'tank': no such pool")));
        assert!(may_be_imported(listed(Some(1), "internal error: out of memory")));
        assert!(may_be_imported(listed(None, "")) && may_be_imported(Err(NotRan::Late("not within 5 s".into()))));
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

    /// The directory is made when it is mounted: what is above it has the link. Refused at the start and by `--check`,
    /// not at the first takeover, with the device attached.
    #[test]
    fn a_mount_over_a_link_is_refused_before_anything_is_attached() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("disk");
        let (link, broken) = (real.with_file_name("link"), real.with_file_name("broken"));
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        std::os::unix::fs::symlink(real.join("gone"), &broken).unwrap();
        let checked = |kind, mount: &Path| {
            let mut pool = AgentConfig::default().pool;
            (pool.kind, pool.mount) = (kind, mount.into());
            mount_without_links(&pool)
        };
        for kind in [PoolKind::Ext4, PoolKind::Xfs] {
            for good in [real.clone(), real.join("pg"), real.join("a/b")] {
                assert_eq!(checked(kind, &good), Ok(()));
            }
            for (found, expected) in [
                (link.clone(), real.clone()),
                (link.join("a/pg"), real.join("a/pg")),
                (real.join("../disk/pg"), real.join("pg")),
                (real.join("a/../pg"), real.join("pg")),
            ] {
                let why = checked(kind, &found).unwrap_err();
                let starts = format!("pool.mount: found {}, which is ", found.display());
                assert!(
                    why.starts_with(&starts) && why.ends_with(&format!("set it to {}", expected.display())),
                    "{why}"
                );
            }
            let why = checked(kind, &broken.join("pg")).unwrap_err();
            assert!(why.contains("broken is a symbolic link to nothing"), "{why}");
        }
        // ZFS mounts by its own properties.
        assert_eq!(checked(PoolKind::Zfs, &link), Ok(()));
    }

    /// Else the agent would take a file system of another device for the set's: PostgreSQL's commits there are lost
    /// with this host.
    #[test]
    fn a_mount_from_another_device_is_not_the_pool() {
        let mut config = AgentConfig::default();
        config.pool.mount = "/".into();
        let source = mount_at(Path::new("/")).unwrap().unwrap().source;
        assert_eq!(already(&config, &source), Ok(true));
        let why = already(&config, "/dev/holdfast-no-such-device").unwrap_err();
        let expected = format!("found {source} mounted there, expected /dev/holdfast-no-such-device");
        assert!(why.ends_with(&expected), "{why}");
        let dir = tempfile::tempdir().unwrap();
        config.pool.mount = dir.path().canonicalize().unwrap();
        assert_eq!(already(&config, &source), Ok(false), "nothing is mounted there");
    }

    /// The device of a fenced host fails. By default ext4 goes on after that, and so would what runs on it. A mount
    /// with an option that nobody knows fails, with root or without, and the error has the command.
    #[tokio::test]
    async fn ext4_is_told_to_end_writing_at_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let image = at.join("image").display().to_string();
        std::fs::File::create(&image).unwrap().set_len(32 << 20).unwrap();
        let mut mkfs = system("mkfs.ext4");
        mkfs.args(["-q", "-F"]).arg(&image);
        if let Err(why) = run(mkfs, Duration::from_secs(60)).await {
            return holdfast_testkit::missing(&why);
        }
        let mut config = AgentConfig::default();
        (config.pool.kind, config.pool.mount) = (PoolKind::Ext4, at.join("pool"));
        config.pool.options = "holdfast_no_such_option".into();
        let volume = Volume { name: "vol1".into(), device: Some(image.clone()), lost: None };
        let why = import(&config, &[volume], &crate::client::over_tcp()).await.unwrap_err();
        let command = format!("mount -t ext4 -o holdfast_no_such_option,errors=remount-ro {image} ");
        assert!(why.contains(&command), "{why}");
    }

    /// By default XFS tries to write its metadata for ever: the file system of a fenced host could not be unmounted.
    /// This is the kernel's own, over a loop device. Without root, loop devices or XFS nothing is tested, and that is
    /// said.
    #[tokio::test]
    async fn xfs_ends_writing_at_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let sh = |script: &str| {
            let said = std::process::Command::new("sh").arg("-c").arg(script).current_dir(&at).output().unwrap();
            said.status.success().then(|| String::from_utf8_lossy(&said.stdout).trim().to_string())
        };
        let image = "mkdir pool && truncate -s 320M image && mkfs.xfs -q image";
        let Some(device) = sh(&format!("{image} && losetup -f --show image")) else {
            return holdfast_testkit::skipped("no loop device with an XFS could be made here");
        };
        let mut config = AgentConfig::default();
        (config.pool.kind, config.pool.mount) = (PoolKind::Xfs, at.join("pool"));
        let volume = Volume { name: "vol1".into(), device: Some(device.clone()), lost: None };
        let can_mount = sh(&format!("mount {device} pool && umount pool")).is_some();
        let imported = match can_mount {
            true => import(&config, &[volume], &crate::client::over_tcp()).await,
            false => Ok(None),
        };
        let name = device.trim_start_matches("/dev/");
        let tries = format!("/sys/fs/xfs/{name}/error/metadata/EIO/max_retries");
        let found = std::fs::read_to_string(&tries);
        // In a container /sys may be for reading only.
        let can_set = std::fs::write(&tries, "0").is_ok();
        sh(&format!("umount pool; losetup -d {device}"));
        assert!(imported.is_ok(), "{imported:?}");
        if !can_mount || !can_set {
            return holdfast_testkit::skipped("no XFS can be mounted and set here");
        }
        assert_eq!(found.unwrap().trim(), "0", "{tries}");
    }

    /// If `zpool` is missing or does not answer, nothing was imported.
    #[tokio::test]
    async fn a_pool_that_cannot_be_looked_for_is_not_imported() {
        let mut config = AgentConfig::default();
        (config.pool.kind, config.pool.name) = (PoolKind::Zfs, Some("holdfast-no-such-pool".into()));
        let device = Volume { name: "vol1".into(), device: Some("/dev/holdfast-no-such-device".into()), lost: None };
        let why = import(&config, &[device], &crate::client::over_tcp()).await.unwrap_err();
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
