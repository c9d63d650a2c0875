//! Rules for a slot: which mounts it may unmount, which PostgreSQL it may stop, and which files of the primary its copy
//! must not reach.
//!
//! STANDBY-U5  Only a mount that is known to be this slot's own is unmounted, and only the PostgreSQL on it is stopped:
//!     a mount over a loop device of this slot's copy, or the very mount that this slot noted when it made it.
//! STANDBY-U6  PostgreSQL starts only if all files that it writes lie on the copy: a copy has links that lead to the
//!     primary's own files if it is mounted beside them. A copied ZFS pool has several file systems, and its links are
//!     redirected to the copy first (STANDBY-U10).
//! STANDBY-U7  A copy of a server that is itself a standby of another one is not started: it would connect to that one
//!     under the same name, and count as the original.

use holdfast_agent::attach_process::backing_file;
use holdfast_agent::drivers::zfs::rules::led;
use holdfast_host::mounts::{Mounted, mount_at};
use std::fs::{DirEntry, read_dir, read_link, read_to_string, remove_file};
use std::io::{self, ErrorKind};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// File below a slot's run directory with the noted mount.
const NOTE: &str = "mounted";

/// Files that make a server a standby, or let it recover from an archive.
const FOLLOWS: [&str; 3] = ["standby.signal", "recovery.signal", "recovery.conf"];

/// Suffixes of files that are only read: they may be links to any path.
const READ_ONLY: [&str; 5] = [".conf", ".crt", ".key", ".pem", ".crl"];

/// The text of a note about a mount. It names the boot, because a mount's number may come again after a boot.
///
/// # Errors
/// The boot id cannot be read: a note without it would be true after the next boot too.
fn noted(mounted: &Mounted) -> io::Result<String> {
    let boot = read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(format!("{} {} {}", boot.trim(), mounted.id, mounted.source))
}

/// Notes that the mount at `mount` is this slot's own.
///
/// # Errors
/// Nothing is mounted there, the mounts cannot be read, or the note cannot be written.
pub fn note(run_dir: &Path, mount: &Path) -> Result<(), String> {
    let mounted = mount_at(mount)?.ok_or_else(|| format!("{}: found nothing mounted", mount.display()))?;
    let path = run_dir.join(NOTE);
    let written = noted(&mounted).and_then(|words| std::fs::write(&path, words));
    written.map_err(|error| format!("{}: {error}", path.display()))
}

/// Pure (STANDBY-U5). `backing`: the file under a loop device; `noted`: this is the mount that was noted.
fn is_ours(backing: Option<&Path>, copy_dirs: &[&Path], noted: bool) -> bool {
    noted || backing.is_some_and(|backing| copy_dirs.iter().any(|dir| backing.starts_with(dir)))
}

/// Whether the mount is this slot's own; false if nothing is mounted (STANDBY-U5).
///
/// # Errors
/// It belongs to someone else.
pub fn there(mounted: Option<&Mounted>, mount: &Path, run_dir: &Path, copy_dir: &Path) -> Result<bool, String> {
    let Some(mounted) = mounted else { return Ok(false) };
    let backing = mounted.source.strip_prefix("/dev/").and_then(backing_file);
    // The kernel reports the path of a file without links.
    let real = copy_dir.canonicalize().unwrap_or_else(|_| copy_dir.into());
    let same = read_to_string(run_dir.join(NOTE)).is_ok_and(|note| noted(mounted).is_ok_and(|words| words == note));
    if is_ours(backing.as_deref(), &[copy_dir, &real], same) {
        return Ok(true);
    }
    let over = backing.map_or_else(String::new, |file| format!(" over {}", file.display()));
    Err(format!(
        "{}: found {}{over} mounted there, which is none of this standby's copies (they are in {}): nothing is touched; each standby needs a pool.mount of its own",
        mount.display(),
        mounted.source,
        copy_dir.display()
    ))
}

/// Redirects links of the data directory to paths of the primary's pool: they then lead to the same paths of the copy,
/// which is mounted at `mounts` below `root` (STANDBY-U10). Blocks.
///
/// # Errors
/// The data directory is not on the copy; or the file system's error.
pub fn lead(root: &Path, mounts: &[PathBuf], data: &Path) -> Result<(), String> {
    let places = real_of(mounts)?;
    lead_each(root, mounts, &places, data, written_in(data)?)?;
    // Only now: before its link was redirected, a tablespace was the primary's, whose device may hang.
    lead_each(root, mounts, &places, data, written_below(&places, data)?)
}

fn lead_each(
    root: &Path,
    mounts: &[PathBuf],
    places: &[PathBuf],
    data: &Path,
    written: Vec<PathBuf>,
) -> Result<(), String> {
    for link in written {
        let target = match read_link(&link) {
            Ok(target) => target,
            // It does not exist, or is no link.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidInput) => continue,
            Err(error) => return Err(format!("{}: {error}", link.display())),
        };
        let Some(to) = led(&target, root, mounts) else { continue };
        // Nothing outside the copy is written to.
        within(places, link.parent().unwrap_or(data))?;
        let done = remove_file(&link).and_then(|()| symlink(&to, &link));
        done.map_err(|error| format!("{}: {error}", link.display()))?;
    }
    Ok(())
}

/// Paths of a data directory that PostgreSQL writes to and that may be links: they must lie on the copy (STANDBY-U6). A
/// person may also have moved the directory of one database away ([`written_below`]).
fn written_in(data: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = vec![data.join("pg_wal")];
    found.extend(spaces(data)?);
    found.extend(links(data)?);
    Ok(found)
}

fn spaces(data: &Path) -> Result<Vec<PathBuf>, String> {
    Ok(entries(&data.join("pg_tblspc"))?.iter().map(DirEntry::path).collect())
}

/// Like `written_in`, in `base` and in the tablespaces, which are read for it. One that is not on the copy is the
/// primary's, whose device may hang: it is not read, and [`may_start`] refuses it by its own path.
fn written_below(places: &[PathBuf], data: &Path) -> Result<Vec<PathBuf>, String> {
    let ours = |dir: &PathBuf| within(places, dir).is_ok();
    let (mut found, base) = (Vec::new(), data.join("base"));
    if ours(&base) {
        found.extend(links(&base)?);
    }
    for space in spaces(data)?.into_iter().filter(ours) {
        found.extend(links(&space)?);
        for version in entries_if_any(&space)? {
            found.extend(links(&version.path())?);
        }
    }
    Ok(found)
}

/// The links in a directory, without those to files that are only read. None if it is no directory, or not there.
fn links(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for entry in entries_if_any(dir)? {
        let name = entry.file_name().to_string_lossy().into_owned();
        let link = entry.file_type().map_err(|error| format!("{}: {error}", entry.path().display()))?.is_symlink();
        if link && !READ_ONLY.iter().any(|end| name.ends_with(end)) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Whether PostgreSQL may be started at all on the copy that is mounted at `mounts` (STANDBY-U6, STANDBY-U7). Blocks on
/// the copy's device.
///
/// # Errors
/// The obstacle.
pub fn may_start(mounts: &[PathBuf], data: &Path) -> Result<(), String> {
    for name in FOLLOWS {
        let path = data.join(name);
        let there = match path.symlink_metadata() {
            Ok(_) => true,
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        if there {
            return Err(format!(
                "{}: the snapshot is of a PostgreSQL that follows another one: its copy would follow too, under its name, and a primary might count it as the \
                 synchronous one; take standbys of the primary's set",
                path.display()
            ));
        }
    }
    let places = real_of(mounts)?;
    within(&places, data)?;
    // In this order: whatever is not on the copy is refused, and not passed over.
    written_in(data)?.iter().try_for_each(|path| within(&places, path))?;
    written_below(&places, data)?.iter().try_for_each(|path| within(&places, path))
}

fn real_of(mounts: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let real = |mount: &PathBuf| mount.canonicalize().map_err(|error| format!("{}: {error}", mount.display()));
    mounts.iter().map(real).collect()
}

fn entries(dir: &Path) -> Result<Vec<DirEntry>, String> {
    let listed = read_dir(dir).and_then(Iterator::collect);
    listed.map_err(|error: std::io::Error| format!("{}: {error}", dir.display()))
}

/// None if it is no directory, or not there: a link may lead nowhere, which [`within`] reports.
fn entries_if_any(dir: &Path) -> Result<Vec<DirEntry>, String> {
    match read_dir(dir) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(Vec::new()),
        _ => entries(dir),
    }
}

fn within(places: &[PathBuf], path: &Path) -> Result<(), String> {
    let leads = read_link(path).map_or_else(|_| String::new(), |to| format!(" (a link to {})", to.display()));
    let found = path.canonicalize().map_err(|error| format!("{}{leads}: {error}", path.display()))?;
    if places.iter().any(|place| found.starts_with(place)) {
        return Ok(());
    }
    let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
    Err(format!(
        "{}{leads}: found {}, expected a place on the copy, below {}: on the primary's host that is the primary's own; move it below the data directory's file \
         system and link to it with a relative path",
        path.display(),
        found.display(),
        places.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, rename, write};

    #[test]
    fn only_a_mount_over_its_own_copy_or_that_it_noted_is_a_slots_own() {
        let (mount, run) = (Path::new("/srv/standby/a"), tempfile::tempdir().unwrap());
        let ours = Path::new("/run/holdfast-standby/a/attach");
        let theirs = Path::new("/run/other/a/attach/vol1/device");
        assert!(is_ours(Some(&ours.join("vol1/device")), &[ours], false));
        assert!(!is_ours(Some(theirs), &[ours], false));
        // The path of a file on a mount that was unmounted lazily.
        assert!(!is_ours(Some(Path::new("/device")), &[ours], false));
        assert!(is_ours(Some(Path::new("/device")), &[ours], true));
        assert!(!is_ours(None, &[ours], false), "a disk");
        assert_eq!(there(None, mount, run.path(), ours), Ok(false));
        let disk = Mounted { id: "41 8:1".into(), source: "/dev/sda1".into() };
        let why = there(Some(&disk), mount, run.path(), ours).unwrap_err();
        assert!(why.contains("/dev/sda1") && why.contains("pool.mount"), "{why}");
        write(run.path().join(NOTE), noted(&disk).unwrap()).unwrap();
        assert_eq!(there(Some(&disk), mount, run.path(), ours), Ok(true));
        let later = Mounted { id: "42 8:1".into(), ..disk };
        assert!(there(Some(&later), mount, run.path(), ours).is_err(), "another mount than the noted one");
    }

    #[test]
    fn a_copy_with_links_to_the_primarys_own_files_is_not_started() {
        let dir = tempfile::tempdir().unwrap();
        let (live, mount) = (dir.path().join("live"), dir.path().join("copies/a"));
        let (data, mounts) = (mount.join("data"), [mount.clone()]);
        for made in
            [live.join("wal"), live.join("space"), data.join("pg_wal"), data.join("pg_tblspc"), mount.join("space")]
        {
            create_dir_all(made).unwrap();
        }
        write(live.join("postgresql.conf"), "").unwrap();
        symlink(live.join("postgresql.conf"), data.join("postgresql.conf")).unwrap();
        symlink("../../space", data.join("pg_tblspc/16384")).unwrap();
        assert_eq!(may_start(&mounts, &data), Ok(()), "what is only read may be elsewhere");
        for (link, to) in [
            ("pg_tblspc/16385", live.join("space")),
            // The file is in the copy too, but under the primary's path.
            ("pg_tblspc/16386", "/srv/pg/space".into()),
            ("pg_stat_tmp", live.join("space")),
            ("postmaster.opts", live.join("options")),
        ] {
            symlink(&to, data.join(link)).unwrap();
            let why = may_start(&mounts, &data).unwrap_err();
            assert!(why.contains(link) && why.contains(&to.display().to_string()), "{why}");
            remove_file(data.join(link)).unwrap();
        }
        // One database that a person has moved away: of the data directory, and of a tablespace.
        create_dir_all(data.join("base")).unwrap();
        create_dir_all(mount.join("space/PG_15_202209061")).unwrap();
        write(mount.join("space/a file of a person"), "").unwrap();
        for link in ["base/5", "pg_tblspc/16384/PG_15_202209061/5"] {
            symlink(live.join("space"), data.join(link)).unwrap();
            let why = may_start(&mounts, &data).unwrap_err();
            assert!(why.contains(link) && why.contains("live/space"), "{why}");
            remove_file(data.join(link)).unwrap();
        }
        rename(data.join("pg_wal"), mount.join("wal")).unwrap();
        symlink("../wal", data.join("pg_wal")).unwrap();
        assert_eq!(may_start(&mounts, &data), Ok(()));
        remove_file(data.join("pg_wal")).unwrap();
        symlink(live.join("wal"), data.join("pg_wal")).unwrap();
        let why = may_start(&mounts, &data).unwrap_err();
        assert!(why.contains("pg_wal") && why.contains("live/wal"), "{why}");
        // The data directory itself.
        symlink(&live, mount.join("linked")).unwrap();
        assert!(may_start(&mounts, &mount.join("linked")).unwrap_err().contains("linked"));
    }

    /// The layout of docs/zfs.md: data and WAL are datasets of their own, and initdb makes absolute links.
    #[test]
    fn links_of_a_copied_pool_lead_to_the_copy_before_it_is_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let (root, live) = (dir.path().join("copies/a"), dir.path().join("live"));
        let mounts = [root.join("tank/pg"), root.join("tank/pg/wal")];
        let data = root.join("tank/pg/data");
        for made in [&data.join("pg_tblspc"), &mounts[1].join("data"), &live, &root.join("tank/logs")] {
            create_dir_all(made).unwrap();
        }
        symlink("/tank/pg/wal/data", data.join("pg_wal")).unwrap();
        assert!(may_start(&mounts, &data).unwrap_err().contains("pg_wal"), "not led yet");
        lead(&root, &mounts, &data).unwrap();
        assert_eq!(read_link(data.join("pg_wal")).unwrap(), mounts[1].join("data"));
        assert_eq!(may_start(&mounts, &data), Ok(()));
        // A dataset that is not mounted is not on the copy, whatever the name of its directory; and a link to no path
        // of the pool stays as it is.
        for (link, to) in [("16384", PathBuf::from("/tank/logs")), ("16385", live.clone())] {
            let link = data.join("pg_tblspc").join(link);
            symlink(&to, &link).unwrap();
            lead(&root, &mounts, &data).unwrap();
            assert_eq!(read_link(&link).unwrap(), to);
            assert!(may_start(&mounts, &data).is_err());
            remove_file(link).unwrap();
        }
        // One database that was moved, of a tablespace whose link leads to the primary's until it is led.
        let space = root.join("tank/pg/space/PG_15_202209061");
        create_dir_all(&space).unwrap();
        symlink("/tank/pg/space", data.join("pg_tblspc/16387")).unwrap();
        symlink("/tank/pg/wal/data", space.join("5")).unwrap();
        lead(&root, &mounts, &data).unwrap();
        assert_eq!(read_link(space.join("5")).unwrap(), mounts[1].join("data"));
        assert_eq!(may_start(&mounts, &data), Ok(()));
        remove_file(data.join("pg_tblspc/16387")).unwrap();
        // The primary's tablespace, which is not read: a device that hangs, or as here a link to itself.
        let (loops, link) = (live.join("space"), data.join("pg_tblspc/16388"));
        symlink(&loops, &loops).unwrap();
        let copied = root.join(loops.strip_prefix("/").unwrap());
        create_dir_all(&copied).unwrap();
        symlink(&loops, &link).unwrap();
        lead(&root, &[mounts[0].clone(), copied.clone()], &data).unwrap();
        assert_eq!(read_link(&link).unwrap(), copied);
        remove_file(link).unwrap();
        // What was never in the pool is the primary's after all links were redirected, too.
        for name in ["pg_tblspc/16389", "base"] {
            let link = data.join(name);
            symlink(&loops, &link).unwrap();
            lead(&root, &mounts, &data).unwrap();
            assert_eq!(read_link(&link).unwrap(), loops);
            assert!(may_start(&mounts, &data).unwrap_err().contains(name));
            remove_file(link).unwrap();
        }
        remove_file(loops).unwrap();
        // A directory of the primary, in place of a link to the copy.
        std::fs::remove_dir(data.join("pg_tblspc")).unwrap();
        symlink(&live, data.join("pg_tblspc")).unwrap();
        symlink("/tank/pg/wal/data", live.join("16386")).unwrap();
        assert!(lead(&root, &mounts, &data).unwrap_err().contains("live"));
        assert_eq!(read_link(live.join("16386")).unwrap(), Path::new("/tank/pg/wal/data"), "the primary's was touched");
    }

    #[test]
    fn a_copy_of_a_server_that_follows_is_not_started() {
        let dir = tempfile::tempdir().unwrap();
        let mounts = [dir.path().to_path_buf()];
        create_dir_all(dir.path().join("pg_wal")).unwrap();
        create_dir_all(dir.path().join("pg_tblspc")).unwrap();
        assert_eq!(may_start(&mounts, dir.path()), Ok(()));
        for name in ["standby.signal", "recovery.signal"] {
            write(dir.path().join(name), "").unwrap();
            assert!(may_start(&mounts, dir.path()).unwrap_err().contains(name));
            remove_file(dir.path().join(name)).unwrap();
        }
    }
}
