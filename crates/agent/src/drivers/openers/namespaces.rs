//! Other mount namespaces that have file systems of the pool mounted: an unmount here does not reach all of them. Then
//! ZFS exports no pool, and an ext4 or XFS lives on over a device that is removed. Any user can make such a namespace
//! (`unshare -Um`); containers and services have some. One without a process is not found.

use super::family::{comes_from, named_process};
use crate::host::PoolUsers;
use holdfast_host::mounts::{Mount, Spread, table_of};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A process of each mount namespace but our own, with the table of its mounts: one that sees all of them, if there is
/// one. A process with another root sees only those below it.
fn others(proc: &Path, pids: impl Iterator<Item = i32>) -> Vec<(i32, Vec<u8>)> {
    let link = |of: &str, name: &str| proc.join(of).join(name).read_link().ok();
    let Some(own) = link("self", "ns/mnt") else { return Vec::new() };
    let mut found = BTreeMap::<PathBuf, (i32, bool)>::new();
    for pid in pids {
        let of = pid.to_string();
        let Some(space) = link(&of, "ns/mnt").filter(|space| *space != own) else { continue };
        let sees_all = link(&of, "root").is_some_and(|root| root == Path::new("/"));
        let known = found.entry(space).or_insert((pid, sees_all));
        if sees_all && !known.1 {
            *known = (pid, true);
        }
    }
    let table = |pid: i32| Some((pid, table_of(&proc.join(pid.to_string())).ok()?));
    found.into_values().filter_map(|(pid, _)| table(pid)).collect()
}

/// Adds a process of each namespace in which a mount for which `is` holds would stay. `ours`: the table of our own
/// namespace. The others as for [`super::openers_in`].
pub(super) fn add_keepers(
    proc: &Path,
    ours: &[u8],
    is: &dyn Fn(&Mount) -> bool,
    parents: &BTreeMap<i32, i32>,
    (but, leaving): (&BTreeSet<i32>, &BTreeSet<i32>),
    users: &mut PoolUsers,
) {
    // PostgreSQL's own namespace ends with it.
    let others = others(proc, parents.keys().copied().filter(|pid| !comes_from(*pid, but, parents)));
    let spread = Spread::of(ours, others.iter().map(|(_, table)| table.as_slice()));
    for (pid, theirs) in &others {
        let Some(mount) = spread.staying(theirs, is).into_iter().next() else { continue };
        let what = format!("keeps {} mounted, in a mount namespace of its own", mount.at.display());
        let list = if comes_from(*pid, leaving, parents) { &mut users.leaving } else { &mut users.staying };
        list.push(named_process(proc, *pid, &what));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::openers::family::parents;
    use std::os::unix::fs::symlink;

    const OURS: &str = "1 0 8:1 / / rw shared:1 - ext4 a rw\n2 1 0:50 / /tank/pg rw shared:2 - zfs tank/pg rw\n";
    const PRIVATE: &str = "1 0 8:1 / / rw - ext4 a rw\n2 1 0:50 / /tank/pg rw - zfs tank/pg rw\n";
    const FOLLOWS: &str =
        "1 0 8:1 / / rw shared:9 master:1 - ext4 a rw\n2 1 0:50 / /tank/pg rw shared:10 master:2 - zfs tank/pg rw\n";

    /// A process as the kernel shows it, in this mount namespace.
    fn shown(proc: &Path, pid: &str, space: &str, root: &str, table: &str) {
        let of = proc.join(pid);
        std::fs::create_dir_all(of.join("ns")).unwrap();
        std::fs::write(of.join("comm"), format!("p{pid}\n")).unwrap();
        std::fs::write(of.join("stat"), format!("{pid} (p) S 1 7 7 0 -1 4194304 0")).unwrap();
        symlink(format!("mnt:[{space}]"), of.join("ns/mnt")).unwrap();
        symlink(root, of.join("root")).unwrap();
        std::fs::write(of.join("mountinfo"), table).unwrap();
    }

    /// A user's `unshare -Um sleep inf`: nothing of it shows in cwd, root, exe, fd and maps, and each switchover would
    /// stop PostgreSQL in vain.
    #[test]
    fn a_namespace_that_keeps_the_pool_mounted_is_named_once() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path();
        shown(proc, "self", "1", "/", OURS);
        shown(proc, "10", "1", "/", OURS);
        // PostgreSQL in a namespace of its own.
        shown(proc, "20", "2", "/", PRIVATE);
        // The first one sees nothing but what is below its root.
        shown(proc, "30", "3", "/jail/user", "");
        shown(proc, "31", "3", "/", PRIVATE);
        shown(proc, "32", "3", "/", PRIVATE);
        // A service of systemd, whose mounts follow those of the host.
        shown(proc, "40", "4", "/", FOLLOWS);
        // A container without the pool, and one with a directory of it.
        shown(proc, "50", "5", "/", "1 0 0:80 / / rw - overlay o rw\n");
        shown(proc, "60", "6", "/", "1 0 0:81 / / rw - overlay o rw\n2 1 0:50 /x /data rw master:2 - zfs tank/pg rw\n");
        let (but, leaving) = (BTreeSet::from([20]), BTreeSet::from([60]));
        let is = |mount: &Mount| mount.device == "0:50";
        let mut users = PoolUsers::default();
        add_keepers(proc, OURS.as_bytes(), &is, &parents(proc), (&but, &leaving), &mut users);
        assert_eq!(users.staying, ["p31 (pid 31) keeps /tank/pg mounted, in a mount namespace of its own"]);
        assert_eq!(users.leaving, ["p60 (pid 60) keeps /data mounted, in a mount namespace of its own"]);
    }
}
