//! Processes other than PostgreSQL that have something of the pool open: while one does, no file system is unmounted
//! and no pool exported. They are found in /proc, without a read from the pool's device. So are mount namespaces that
//! keep a copy of its mounts.

mod ending;
mod family;
mod namespaces;

use super::leaving;
use super::placement::{of_pool, scratch};
use crate::config::{AgentConfig, PoolKind};
use crate::host::PoolUsers;
use crate::process;
pub use ending::end_users;
use family::{comes_from, named_process, parents};
use holdfast_host::mounts::{self, Mount, mounts_of, points_below};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel's directory of processes.
const PROC: &str = "/proc";

/// Time limit of a search. The kernel does not show a process's memory map while the map changes, and that may wait for
/// a device.
const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// Number of names in a list, at most.
const NAMED_MAX: usize = 8;

/// What the kernel appends to the path of a deleted file.
const DELETED: &str = " (deleted)";

/// Where the pool's file systems are mounted, by this table.
pub(super) fn roots(config: &AgentConfig, table: &[u8]) -> Vec<PathBuf> {
    match config.pool.kind {
        PoolKind::None => Vec::new(),
        PoolKind::Ext4 | PoolKind::Xfs => vec![config.pool.mount.clone()],
        PoolKind::Zfs => {
            mounts_of(table).into_iter().filter(|mount| of_pool(config, mount)).map(|mount| mount.at).collect()
        }
    }
}

/// File systems that are mounted below the pool's and are none of its own. Not those that the agent unmounts itself
/// ([`scratch`]).
fn mounted_below(config: &AgentConfig, table: &[u8], roots: &[PathBuf]) -> Vec<String> {
    let own: BTreeSet<PathBuf> = match config.pool.kind {
        PoolKind::Zfs => {
            mounts_of(table).into_iter().filter(|mount| of_pool(config, mount)).map(|mount| mount.at).collect()
        }
        _ => roots.iter().cloned().collect(),
    };
    let below: BTreeSet<PathBuf> = roots.iter().flat_map(|root| points_below(table, root)).collect();
    let in_the_way = below.difference(&own).filter(|at| !scratch::is_scratch(config, at));
    in_the_way.map(|at| format!("a file system is mounted at {}", at.display())).collect()
}

/// Other places where a file system of the pool is mounted, which is not ZFS: it is in use there when it is unmounted
/// at its own. `zpool export` unmounts all places of a pool.
fn mounted_beside(config: &AgentConfig, table: &[u8]) -> Vec<String> {
    if !matches!(config.pool.kind, PoolKind::Ext4 | PoolKind::Xfs) {
        return Vec::new();
    }
    let (mounts, at) = (mounts_of(table), config.pool.mount.as_path());
    let Some(own) = mounts.iter().rev().find(|mount| mount.at == at) else { return Vec::new() };
    let beside = mounts.iter().filter(|mount| mount.device == own.device && !mount.at.starts_with(at));
    beside.map(|mount| format!("the pool's file system is mounted at {} too", mount.at.display())).collect()
}

/// The devices of the pool's own mounts, by this table.
fn devices(roots: &[PathBuf], table: &[u8]) -> BTreeSet<String> {
    mounts_of(table).into_iter().filter(|mount| roots.contains(&mount.at)).map(|mount| mount.device).collect()
}

/// Something that a process has open below one of the pool's places, by its path.
enum OpenPath<'a> {
    /// A link in the process's directory that leads there.
    Link(&'a Path),
    /// A line of its memory map.
    Map(&'a str),
}

/// The first thing found that a process has open below one of these places, and that counts. For the agent itself
/// (`own`) only its working directory does: it opens and closes files there.
fn open_of(
    proc: &Path,
    pid: i32,
    roots: &[PathBuf],
    own: bool,
    counts: &dyn Fn(&Path, &OpenPath<'_>) -> bool,
) -> Option<String> {
    let of = proc.join(pid.to_string());
    let below = |path: &Path| roots.iter().any(|root| path.starts_with(root));
    let leads = |at: &Path| std::fs::read_link(at).ok().filter(|path| below(path) && counts(path, &OpenPath::Link(at)));
    let link = |name: &str| leads(&of.join(name));
    if let Some(path) = link("cwd") {
        return Some(format!("works in {}", path.display()));
    }
    if own {
        return None;
    }
    if let Some(path) = link("root").or_else(|| link("exe")) {
        return Some(format!("runs from {}", path.display()));
    }
    let mut files = std::fs::read_dir(of.join("fd")).into_iter().flatten();
    if let Some(path) = files.find_map(|entry| leads(&entry.ok()?.path())) {
        return Some(format!("has {} open", path.display()));
    }
    let maps = std::fs::read(of.join("maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let mut paths =
        maps.lines().filter_map(|line| line.find('/').map(|at| (line, line[at..].trim_end_matches(DELETED))));
    let found = paths.find(|(line, path)| below(Path::new(path)) && counts(Path::new(path), &OpenPath::Map(line)));
    found.map(|(_, path)| format!("has {path} in its memory"))
}

/// Like [`open_of`], for those of the places that this process sees: in a container the same path may be another one.
/// Its table of mounts is read only if it seems to have something open there: a host may have hundreds of datasets, and
/// of processes in containers.
fn open_here(
    proc: &Path,
    pid: i32,
    roots: &[PathBuf],
    own: bool,
    counts: &dyn Fn(&Path, &OpenPath<'_>) -> bool,
) -> Option<String> {
    open_of(proc, pid, roots, own, counts)?;
    let here: Vec<PathBuf> = roots.iter().filter(|root| !process::is_elsewhere(proc, pid, root)).cloned().collect();
    open_of(proc, pid, &here, own, counts)
}

/// `but`: processes that do not count; `leaving`: those that end by themselves. Both with their descendants.
fn openers_in(proc: &Path, own: i32, roots: &[PathBuf], but: &BTreeSet<i32>, leaving: &BTreeSet<i32>) -> PoolUsers {
    let parents = parents(proc);
    let mut users = PoolUsers::default();
    for pid in parents.keys().filter(|pid| !comes_from(**pid, but, &parents)) {
        let Some(open) = open_here(proc, *pid, roots, *pid == own, &|_, _| true) else { continue };
        let leaves = comes_from(*pid, leaving, &parents);
        let list = if leaves { &mut users.leaving } else { &mut users.staying };
        list.push(named_process(proc, *pid, &open));
    }
    users
}

/// The processes that have something of the pool open, without PostgreSQL and its descendants; by name, number and
/// path. `only_keepers`: see [`keepers`]. Blocks, but not on the pool's device.
fn look(config: &AgentConfig, only_keepers: bool) -> Result<PoolUsers, String> {
    let table = mounts::table()?;
    let roots = roots(config, &table);
    if roots.is_empty() {
        return Ok(PoolUsers::default());
    }
    let processes = process::Processes::of(config);
    // One that begins after this counts as one that stays, until the next look.
    let leaving = match &processes {
        process::Processes::Postgres(server) => leaving::found(Path::new(PROC), server),
        process::Processes::Service(_) => BTreeSet::new(),
    };
    let but = processes.look().found;
    let own = i32::try_from(std::process::id()).unwrap_or_default();
    let proc = Path::new(PROC);
    let mut found = PoolUsers::default();
    if !only_keepers {
        found = openers_in(proc, own, &roots, &but, &leaving);
        found.staying.extend(mounted_below(config, &table, &roots));
    }
    found.staying.extend(mounted_beside(config, &table));
    let devices = devices(&roots, &table);
    let is_of_pool = |mount: &Mount| devices.contains(&mount.device) || of_pool(config, mount);
    namespaces::add_keepers(proc, &table, &is_of_pool, &parents(proc), (&but, &leaving), &mut found);
    Ok(found)
}

/// The same, beside the runtime's own threads. A search that fails names nobody: the export itself decides.
pub async fn openers(config: &AgentConfig) -> PoolUsers {
    search(config, false).await
}

/// Only what an unmount of an ext4 or XFS does not fail for: the file system at another place too, and mount namespaces
/// that keep a copy of it. A search that fails names nobody.
pub async fn keepers(config: &AgentConfig) -> PoolUsers {
    search(config, true).await
}

async fn search(config: &AgentConfig, only_keepers: bool) -> PoolUsers {
    let config = config.clone();
    let look = tokio::task::spawn_blocking(move || look(&config, only_keepers));
    let look = tokio::time::timeout(LOOK_LIMIT, look).await;
    let found = match look {
        Ok(Ok(found)) => found,
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("not within {} s", LOOK_LIMIT.as_secs())),
    };
    found.unwrap_or_else(|why| {
        tracing::warn!(why, "could not check which processes have the pool open");
        PoolUsers::default()
    })
}

/// A list of them for people.
pub fn named(openers: &[String]) -> String {
    if openers.is_empty() {
        return "found no process that has it open, expected one: look for an NFS export, a loop device or swap on it, or a container or a mount namespace (`lsns -t mnt`) that has it mounted".into();
    }
    let more = openers.len().saturating_sub(NAMED_MAX);
    let more = if more == 0 { String::new() } else { format!(", and {more} more") };
    format!("{}{more}", openers[..openers.len().min(NAMED_MAX)].join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A process as the kernel shows it.
    fn shown(proc: &Path, pid: i32, parent: i32, name: &str) -> PathBuf {
        let of = proc.join(pid.to_string());
        std::fs::create_dir_all(of.join("fd")).unwrap();
        std::fs::write(of.join("comm"), format!("{name}\n")).unwrap();
        std::fs::write(of.join("stat"), format!("{pid} ({name} )x) S {parent} 7 7 0 -1 4194304 0")).unwrap();
        symlink("/", of.join("root")).unwrap();
        of
    }

    #[test]
    fn processes_with_the_pool_open_are_named_and_postgresql_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (proc, roots) = (dir.path(), [PathBuf::from("/tank/pg")]);
        symlink("/tank/pg/data", shown(proc, 10, 1, "postgres").join("cwd")).unwrap();
        // PostgreSQL's descendants end with it, wherever they work.
        symlink("/tank/pg/wal/x", shown(proc, 11, 10, "rsync").join("fd/3")).unwrap();
        // An archiver that ends by itself, and what it started.
        symlink("/tank/pg/wal/y", shown(proc, 12, 1, "pgbackrest").join("fd/3")).unwrap();
        symlink("/tank/pg/wal/z", shown(proc, 13, 12, "pgbackrest").join("fd/3")).unwrap();
        symlink("/tank/pg", shown(proc, 20, 1, "bash").join("cwd")).unwrap();
        symlink("/tank/pg/log (deleted)", shown(proc, 21, 20, "tail").join("fd/4")).unwrap();
        let mapped = "7f00-7f01 r--s 00000000 07:00 12 /tank/pg/a b (deleted)\n7f02-7f03 rw-p 0 00:00 0\n";
        std::fs::write(shown(proc, 22, 1, "mapper").join("maps"), mapped).unwrap();
        symlink("/tank/pg/bin/tool", shown(proc, 23, 1, "tool").join("exe")).unwrap();
        symlink("/tank/pg2", shown(proc, 24, 1, "other").join("cwd")).unwrap();
        // The agent has files open there for moments.
        symlink("/tank/pg/data", shown(proc, 30, 1, "holdfast").join("fd/9")).unwrap();
        // Two of a container, which has a disk of its own at that path, or the pool itself.
        let table = |device: &str| format!("1 0 8:1 / / rw - ext4 a rw\n2 1 {device} / /tank/pg rw - zfs b rw\n");
        for (pid, space, device) in [("self", "pid:[1]", "0:50"), ("40", "pid:[2]", "8:7"), ("41", "pid:[3]", "0:50")] {
            let of = match pid.parse() {
                Ok(pid) => shown(proc, pid, 1, "inside"),
                Err(_) => proc.join(pid),
            };
            std::fs::create_dir_all(of.join("ns")).unwrap();
            symlink(space, of.join("ns/pid")).unwrap();
            symlink("/tank/pg/data", of.join("cwd")).unwrap();
            std::fs::write(of.join("mountinfo"), table(device)).unwrap();
        }
        let PoolUsers { staying: found, leaving } =
            openers_in(proc, 30, &roots, &BTreeSet::from([10]), &BTreeSet::from([12]));
        let pushes =
            ["12) has /tank/pg/wal/y", "13) has /tank/pg/wal/z"].map(|of| format!("pgbackrest (pid {of} open"));
        assert_eq!(leaving, pushes);
        assert_eq!(
            found,
            [
                "bash (pid 20) works in /tank/pg",
                "tail (pid 21) has /tank/pg/log (deleted) open",
                "mapper (pid 22) has /tank/pg/a b in its memory",
                "tool (pid 23) runs from /tank/pg/bin/tool",
                "inside (pid 41) works in /tank/pg/data",
            ]
        );
        assert!(named(&found).contains("bash (pid 20) works in /tank/pg, tail"));
        let many = vec!["a".to_string(); 11];
        assert!(named(&many).ends_with(", and 3 more") && named(&[]).contains("container"));
    }

    #[test]
    fn the_pools_places_are_those_of_its_mounts() {
        let mut config = AgentConfig::default();
        let table = b"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:50 / /tank/pg rw - zfs tank/pg rw\n3 2 0:51 / /tank/pg/wal rw - zfs tank/pg/wal rw\n\
            4 1 0:52 / /other rw - zfs other/a rw\n5 2 0:53 / /tank/pg/tmp rw - tmpfs tmpfs rw\n6 1 7:0 / /srv/pg rw - ext4 /dev/loop0 rw\n";
        (config.pool.kind, config.pool.name) = (PoolKind::Zfs, Some("tank".into()));
        let found = roots(&config, table);
        assert_eq!(found, ["/tank/pg", "/tank/pg/wal"].map(PathBuf::from));
        assert_eq!(mounted_below(&config, table, &found), ["a file system is mounted at /tank/pg/tmp"]);
        // A tmpfs for PostgreSQL's statistics is unmounted with the pool.
        config.database.data = "/tank/pg/data".into();
        let stats = [&table[..], b"7 2 0:54 / /tank/pg/data/pg_stat_tmp rw - tmpfs tmpfs rw\n"].concat();
        assert_eq!(mounted_below(&config, &stats, &found), ["a file system is mounted at /tank/pg/tmp"]);
        // Of another service it may have any worth.
        let data = Some(config.database.data.clone());
        config.service = Some(crate::config::ServiceConfig { data, ..crate::config::ServiceConfig::default() });
        assert_eq!(mounted_below(&config, &stats, &found).len(), 2);
        config.service = None;
        config.pool.kind = PoolKind::Ext4;
        let found = roots(&config, table);
        assert_eq!(found, [PathBuf::from("/srv/pg")]);
        assert_eq!(mounted_below(&config, table, &found), Vec::<String>::new());
        // Mounted at another place too, it would live on over a device that is removed.
        let twice = [&table[..], b"8 1 7:0 /data /var/lib/pg rw - ext4 /dev/loop0 rw\n"].concat();
        assert_eq!(mounted_beside(&config, &twice), ["the pool's file system is mounted at /var/lib/pg too"]);
        assert_eq!(mounted_beside(&config, table), Vec::<String>::new());
        assert_eq!(devices(&found, &twice), BTreeSet::from(["7:0".to_string()]));
        config.pool.kind = PoolKind::None;
        assert!(roots(&config, table).is_empty() && mounted_beside(&config, &twice).is_empty());
    }

    /// In the real /proc: a process that works there, and one that has a file open.
    #[test]
    fn real_processes_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let mut stands = std::process::Command::new("sleep").arg("600").current_dir(&at).spawn().unwrap();
        let file = std::fs::File::create(at.join("file")).unwrap();
        let mut reads = std::process::Command::new("sleep").arg("600").current_dir("/").stdin(file).spawn().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let begun = std::time::Instant::now();
        let found = loop {
            let none = BTreeSet::new();
            let found = openers_in(Path::new(PROC), own, std::slice::from_ref(&at), &none, &none).staying;
            // A child that has not run its program yet is named as this test.
            if found.iter().filter(|opener| opener.starts_with("sleep ")).count() == 2 || begun.elapsed().as_secs() > 20
            {
                break found;
            }
        };
        let ours = BTreeSet::from([own]);
        let without = openers_in(Path::new(PROC), own, std::slice::from_ref(&at), &ours, &ours);
        for child in [&mut stands, &mut reads] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let at = at.display();
        assert!(found.contains(&format!("sleep (pid {}) works in {at}", stands.id())), "{found:?}");
        assert!(found.contains(&format!("sleep (pid {}) has {at}/file open", reads.id())), "{found:?}");
        assert_eq!(without, PoolUsers::default());
    }
}
