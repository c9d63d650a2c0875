//! File systems and mounts of staged volumes.

use super::program::{command, run, succeed};
use crate::capability::FileSystem;
use crate::refused::Refused;
use holdfast_host::mounts::{self, Mounted};
use holdfast_reached::reached;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

/// Time limit of a program that reads or writes the device.
const LIMIT: Duration = Duration::from_secs(60);

/// Where every file system, partition table and volume manager has its mark: the first bytes of a device.
const HEAD_BYTES: usize = 1 << 20;

/// Exit code of blkid for a device on which it knows nothing.
const NOTHING_KNOWN: i32 = 2;

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> Refused + '_ {
    |error| Refused::failed(format!("{}: {error}", path.display()))
}

/// The mount at a path. The mount table has paths without links. The last part is not followed: its file system may be
/// dead, and a link there is refused by [`no_link`].
fn mounted(path: &Path) -> Result<Option<Mounted>, Refused> {
    let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
        return mounts::mount_at(path).map_err(Refused::failed);
    };
    let above = match above.canonicalize() {
        Ok(above) => above,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at(above)(error)),
    };
    mounts::mount_at(&above.join(name)).map_err(Refused::failed)
}

/// Whether something is mounted at a path.
pub(super) fn is_mounted(path: &Path) -> Result<bool, Refused> {
    mounted(path).map(|found| found.is_some())
}

/// Nothing is mounted through a link: it would not be found again, and would lie somewhere else.
fn no_link(path: &Path) -> Result<(), Refused> {
    match path.symlink_metadata() {
        Ok(found) if found.is_symlink() => {
            let path = path.display();
            Err(Refused::precondition(format!("{path} is a symbolic link, expected a folder, a file or nothing")))
        }
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

/// Whether what is mounted is on this device. The mount of an earlier device, which is dead, is not.
fn is_of(device: &Path, mounted: &Mounted) -> Result<bool, Refused> {
    let found = device.metadata().map_err(at(device))?;
    if !found.file_type().is_block_device() {
        return Ok(true);
    }
    let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
    Ok(mounted.id.ends_with(&format!(" {major}:{minor}")))
}

/// STAGED-S3: whether a file system is made. `known` is what blkid says, `head` the beginning of the device.
fn must_make(kind: FileSystem, known: Option<&str>, head: &[u8]) -> Result<bool, Refused> {
    match known {
        Some(known) if known == kind.as_str() => Ok(false),
        Some(other) => Err(Refused::precondition(format!(
            "the volume has {other}, expected {} or an empty volume: set fsType of the StorageClass to what it has",
            kind.as_str()
        ))),
        // A device that is not connected ends at once, without an error.
        None if head.len() < HEAD_BYTES => Err(Refused::precondition(format!(
            "the device has {} bytes that can be read, expected {HEAD_BYTES} or more for a new file system",
            head.len()
        ))),
        None if head.iter().all(|byte| *byte == 0) => Ok(true),
        None => {
            reached!("csi: data that no program knows was not formatted");
            Err(Refused::precondition(format!(
                "the volume has data that blkid does not know, expected {} or an empty volume: nothing was changed",
                kind.as_str()
            )))
        }
    }
}

/// What blkid finds on a device.
fn known(device: &Path) -> Result<Option<String>, Refused> {
    let mut blkid = command("blkid");
    blkid.args(["--probe", "--match-tag", "TYPE", "--output", "value"]).arg(device);
    let ended = run(blkid, LIMIT)?;
    match ended.status.code() {
        Some(0) => Ok(Some(ended.out.trim().to_string()).filter(|found| !found.is_empty())),
        Some(NOTHING_KNOWN) => Ok(None),
        _ => Err(ended.refused("blkid")),
    }
}

fn head(device: &Path) -> Result<Vec<u8>, Refused> {
    let file = File::open(device).map_err(at(device))?;
    let mut head = Vec::with_capacity(HEAD_BYTES);
    file.take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(at(device))?;
    Ok(head)
}

/// Mounts a device at `path`, with a new file system if it is empty.
pub(super) fn mount(device: &Path, path: &Path, kind: FileSystem, options: &[String]) -> Result<(), Refused> {
    if let Some(found) = mounted(path)? {
        if is_of(device, &found)? {
            return Ok(());
        }
        let (path, source, device) = (path.display(), &found.source, device.display());
        return Err(Refused::precondition(format!(
            "{source} is mounted at {path}, expected {device} or nothing: unstage the volume, then stage it again"
        )));
    }
    no_link(path)?;
    std::fs::create_dir_all(path).map_err(at(path))?;
    if must_make(kind, known(device)?.as_deref(), &head(device)?)? {
        let mut mkfs = command(&format!("mkfs.{}", kind.as_str()));
        match kind {
            FileSystem::Ext4 => mkfs.args(["-q", "-F", "-m", "0"]),
            FileSystem::Xfs => mkfs.args(["-q"]),
        };
        mkfs.arg(device);
        succeed(mkfs, LIMIT)?;
    }
    let mut all = options.to_vec();
    if kind == FileSystem::Xfs {
        // A copy has the id of its source, which may be mounted on this node as well.
        all.push("nouuid".to_string());
    }
    let mut mount = command("mount");
    mount.args(["-t", kind.as_str()]);
    if !all.is_empty() {
        mount.arg("-o").arg(all.join(","));
    }
    mount.arg(device).arg(path);
    succeed(mount, LIMIT).map(drop)
}

/// Grows a mounted file system to its device's size.
pub(super) fn grow(device: &Path, path: &Path, kind: FileSystem) -> Result<(), Refused> {
    let mut grow = match kind {
        FileSystem::Ext4 => command("resize2fs"),
        FileSystem::Xfs => command("xfs_growfs"),
    };
    grow.arg(if kind == FileSystem::Ext4 { device } else { path });
    succeed(grow, LIMIT).map(drop)
}

/// Shows `from` at `to` as well: a folder of a file system, or a device on an empty file.
pub(super) fn bind(from: &Path, to: &Path, read_only: bool) -> Result<(), Refused> {
    if is_mounted(to)? {
        // An earlier call may have ended between the mount and this.
        return if read_only { make_read_only(to) } else { Ok(()) };
    }
    no_link(to)?;
    if from.metadata().map_err(at(from))?.is_dir() {
        std::fs::create_dir_all(to).map_err(at(to))?;
    } else {
        if let Some(above) = to.parent() {
            std::fs::create_dir_all(above).map_err(at(above))?;
        }
        OpenOptions::new().create(true).append(true).open(to).map_err(at(to))?;
    }
    let mut bind = command("mount");
    bind.arg("--bind").arg(from).arg(to);
    succeed(bind, LIMIT)?;
    if read_only && let Err(refused) = make_read_only(to) {
        // Not left writable.
        unmount(to)?;
        return Err(refused);
    }
    Ok(())
}

fn make_read_only(at: &Path) -> Result<(), Refused> {
    let mut again = command("mount");
    again.args(["-o", "remount,bind,ro"]).arg(at);
    succeed(again, LIMIT).map(drop)
}

/// Ends all mounts at a path.
pub(super) fn unmount(path: &Path) -> Result<(), Refused> {
    while is_mounted(path)? {
        let mut umount = command("umount");
        umount.arg(path);
        succeed(umount, LIMIT)?;
    }
    Ok(())
}

/// Removes a path at which nothing is mounted any more: an empty folder, or an empty file.
pub(super) fn remove(path: &Path) -> Result<(), Refused> {
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at(path)(error)),
    };
    if found.is_dir() {
        return std::fs::remove_dir(path).map_err(at(path));
    }
    if found.len() > 0 || !found.is_file() {
        let path = path.display();
        return Err(Refused::precondition(format!(
            "{path} is no path of this driver: expected an empty file or folder"
        )));
    }
    std::fs::remove_file(path).map_err(at(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// STAGED-S3.
    #[test]
    fn only_an_empty_volume_is_formatted() {
        let (empty, mut data) = (vec![0; HEAD_BYTES], vec![0; HEAD_BYTES]);
        data[HEAD_BYTES - 1] = 1;
        let (none, part) = (Vec::new(), vec![0; HEAD_BYTES - 512]);
        assert!(must_make(FileSystem::Ext4, None, &empty).unwrap());
        assert!(!must_make(FileSystem::Ext4, Some("ext4"), &data).unwrap());
        let refused_ones =
            [(Some("xfs"), &empty), (None, &data), (Some("crypto_LUKS"), &data), (None, &none), (None, &part)];
        for (known, head) in refused_ones {
            let refused = must_make(FileSystem::Ext4, known, head).unwrap_err();
            assert_eq!(refused.code, tonic::Code::FailedPrecondition, "{known:?}");
        }
    }

    /// Kubernetes' folder is often a link to a larger disk: what is mounted there would count as unmounted.
    #[test]
    fn a_mount_is_found_by_a_path_with_a_link_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(is_mounted(&link.join("proc")).unwrap());
        assert!(!is_mounted(&dir.path().join("none/below")).unwrap());
        assert!(is_mounted(Path::new("/")).unwrap());
        assert_eq!(bind(dir.path(), &link, false).unwrap_err().code, tonic::Code::FailedPrecondition);
        let mounted = mount(Path::new("/dev/null"), &link, FileSystem::Ext4, &[]);
        assert_eq!(mounted.unwrap_err().code, tonic::Code::FailedPrecondition);
    }

    #[test]
    fn only_empty_paths_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, empty, full) = (dir.path().join("folder"), dir.path().join("empty"), dir.path().join("full"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(&empty, "").unwrap();
        std::fs::write(&full, "data").unwrap();
        for path in [&folder, &empty] {
            remove(path).unwrap();
            assert!(!path.exists());
            remove(path).unwrap();
        }
        assert!(remove(&full).is_err() && full.exists());
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("file"), "data").unwrap();
        assert!(remove(&folder).is_err() && folder.join("file").exists());
    }
}
