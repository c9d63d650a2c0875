//! The disk of a data directory: what it is, its free space, and how long a sync takes.

use super::finding::Finding;
use crate::output::bytes;
use holdfast_host::mounts;
use holdfast_set::random::random_u128;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Syncs that are measured.
const SYNCS: u64 = 32;

/// Bytes that are written before each.
const BLOCK: usize = 4096;

/// Each commit waits for a sync on a majority of the gateways' disks: from here on, people notice.
const SLOW: Duration = Duration::from_millis(10);

/// From here on, elections and leases suffer.
const TOO_SLOW: Duration = Duration::from_millis(250);

/// File systems of another machine: they lie about syncs, or hang with that machine.
const REMOTE: [&str; 9] = ["nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs"];

/// File systems in memory.
const VOLATILE: [&str; 2] = ["tmpfs", "ramfs"];

/// All checks of the disk of `dir`, for `needed` bytes. Writes a small file there, and deletes it.
pub fn findings(dir: &Path, needed: u64) -> Vec<Finding> {
    let mut found = vec![place(mounts::table(), &without_links(dir))];
    let Some(there) = dir.ancestors().find(|dir| dir.is_dir()) else {
        found.push(Finding::unknown("free space", format!("{}: no such directory", dir.display()), ""));
        return found;
    };
    found.push(room(free(there).and_then(|free| Ok((free, held(dir)?))), dir, needed));
    found.push(match there == dir {
        true => syncs(dir, measure(dir)),
        false => Finding::unknown(
            "disk sync",
            format!("{} does not exist yet", dir.display()),
            "create it for the gateway's user, then run this again",
        ),
    });
    found
}

/// `dir` without links, as far as it exists: its disk is that of the place that they lead to.
fn without_links(dir: &Path) -> PathBuf {
    let dir = std::path::absolute(dir).unwrap_or_else(|_| dir.to_path_buf());
    let real = |above: &Path| Some(above.canonicalize().ok()?.join(dir.strip_prefix(above).ok()?));
    dir.ancestors().find_map(real).unwrap_or_else(|| dir.clone())
}

fn place(table: Result<Vec<u8>, String>, dir: &Path) -> Finding {
    const CHECK: &str = "data directory";
    let mount = match table.map(|table| mounts::mount_over(&table, dir)) {
        Ok(Some(mount)) => mount,
        Ok(None) => return Finding::unknown(CHECK, format!("{}: on no known mount", dir.display()), ""),
        Err(why) => return Finding::unknown(CHECK, why, ""),
    };
    let kind = mount.kind.as_str();
    let found = format!("{} on {kind} ({})", dir.display(), mount.source);
    if REMOTE.contains(&kind) {
        Finding::bad(CHECK, found, "use a local disk: the journal must survive alone, and its syncs must be true")
    } else if VOLATILE.contains(&kind) {
        Finding::bad(CHECK, found, "use a disk: after a restart the journal would be gone (R1)")
    } else if kind == "overlay" {
        Finding::warning(CHECK, found, "mount a volume there: the data of a container's own layer is lost with it")
    } else {
        Finding::ok(CHECK, found)
    }
}

fn free(dir: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(dir)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

/// Bytes of the files below `dir`: the journal and the cache that are there already.
fn held(dir: &Path) -> io::Result<u64> {
    let mut sum = 0_u64;
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let kind = entry.file_type()?;
        let more = match kind.is_dir() {
            true => held(&entry.path())?,
            // A gateway that runs may delete it just now.
            false => entry.metadata().map_or(0, |found| found.len()),
        };
        sum = sum.saturating_add(more);
    }
    Ok(sum)
}

fn room(known: io::Result<(u64, u64)>, dir: &Path, needed: u64) -> Finding {
    const CHECK: &str = "free space";
    match known {
        Err(error) => Finding::unknown(CHECK, format!("{}: {error}", dir.display()), "run this as root"),
        Ok((free, held)) => {
            let has = free.saturating_add(held);
            let found = format!("{} for journal and cache, which may need {}", bytes(has), bytes(needed));
            match has < needed {
                false => Finding::ok(CHECK, found),
                true => Finding::bad(
                    CHECK,
                    found,
                    "free some, or lower journal.bound or cache.disk: a full disk stops writers",
                ),
            }
        }
    }
}

/// Median and maximum of the time of a small write with its sync.
fn measure(dir: &Path) -> io::Result<(Duration, Duration)> {
    let path = dir.join(format!(".doctor-{:032x}", random_u128()));
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let timed = || -> io::Result<Vec<Duration>> {
        let block = [0x5a; BLOCK];
        // Written before, as the journal's files are: a sync then writes no metadata.
        file.write_all_at(&vec![0; BLOCK * SYNCS as usize], 0)?;
        file.sync_all()?;
        (0..SYNCS)
            .map(|number| {
                let begun = Instant::now();
                file.write_all_at(&block, number * BLOCK as u64)?;
                file.sync_data()?;
                Ok(begun.elapsed())
            })
            .collect()
    };
    let timed = timed();
    std::fs::remove_file(&path)?;
    let mut times = timed?;
    times.sort_unstable();
    Ok((times[times.len() / 2], times[times.len() - 1]))
}

fn syncs(dir: &Path, measured: io::Result<(Duration, Duration)>) -> Finding {
    const CHECK: &str = "disk sync";
    let (median, worst) = match measured {
        Ok(times) => times,
        Err(error) => {
            let next = "run this as root, or as the gateway's user";
            return Finding::unknown(CHECK, format!("{}: cannot write: {error}", dir.display()), next);
        }
    };
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let found = format!("median {:.2} ms, worst {:.2} ms of {SYNCS}", ms(median), ms(worst));
    if median >= TOO_SLOW {
        Finding::bad(CHECK, found, "use another disk: leases and elections do not work with this one")
    } else if median >= SLOW {
        Finding::warning(
            CHECK,
            found,
            "each commit waits for this: an SSD with power-loss protection takes less than 1 ms",
        )
    } else {
        Finding::ok(CHECK, found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    #[test]
    fn a_journal_belongs_on_a_local_disk() {
        let dir = Path::new("/srv/holdfast");
        for (kind, verdict) in
            [("ext4", Verdict::Ok), ("nfs4", Verdict::Bad), ("tmpfs", Verdict::Bad), ("overlay", Verdict::Warning)]
        {
            let table = format!("25 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 25 8:2 / /srv rw - {kind} there rw\n");
            let finding = place(Ok(table.into_bytes()), dir);
            assert_eq!(finding.verdict, verdict, "{finding:?}");
        }
        assert_eq!(place(Err("no /proc".into()), dir).verdict, Verdict::Unknown);
    }

    #[test]
    fn the_disk_is_that_of_the_place_that_a_link_leads_to() {
        let dir = tempfile::tempdir().unwrap();
        let (there, link) = (dir.path().join("there"), dir.path().join("link"));
        std::fs::create_dir(&there).unwrap();
        std::os::unix::fs::symlink(&there, &link).unwrap();
        let there = there.canonicalize().unwrap();
        assert_eq!(without_links(&link), there);
        assert_eq!(without_links(&link.join("not/yet")), there.join("not/yet"));
    }

    #[test]
    fn room_is_what_is_free_and_what_is_used_already() {
        let dir = Path::new("/srv");
        assert_eq!(room(Ok((6, 4)), dir, 10).verdict, Verdict::Ok);
        assert_eq!(room(Ok((6, 3)), dir, 10).verdict, Verdict::Bad);
        assert_eq!(room(Err(io::Error::other("no")), dir, 10).verdict, Verdict::Unknown);
    }

    #[test]
    fn syncs_are_measured_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("journal")).unwrap();
        std::fs::write(dir.path().join("journal/1"), [0; 1000]).unwrap();
        assert_eq!(held(dir.path()).unwrap(), 1000);
        let (median, worst) = measure(dir.path()).unwrap();
        assert!(Duration::ZERO < median && median <= worst);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "its file is gone");
        for (ms, verdict) in [(1, Verdict::Ok), (10, Verdict::Warning), (250, Verdict::Bad)] {
            let time = Duration::from_millis(ms);
            assert_eq!(syncs(dir.path(), Ok((time, time))).verdict, verdict, "{ms} ms");
        }
        assert_eq!(syncs(dir.path(), measure(&dir.path().join("none"))).verdict, Verdict::Unknown);
    }

    #[test]
    fn a_directory_that_is_not_there_yet_is_no_fault() {
        let dir = tempfile::tempdir().unwrap();
        let found = findings(&dir.path().join("data"), 1);
        assert!(
            found.iter().all(|finding| finding.verdict < Verdict::Bad || finding.check == "data directory"),
            "{found:?}"
        );
        assert_eq!(found[2].verdict, Verdict::Unknown);
    }
}
