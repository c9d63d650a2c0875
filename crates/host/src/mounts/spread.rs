//! Whether an unmount in this mount namespace reaches the copies of other namespaces. A namespace begins with a copy of
//! each mount. The kernel passes an unmount on from the mount above it to that one's peers, and to those that follow
//! them. What it does not reach stays mounted there, and keeps its device.

use super::{Line, Mount, lines};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// Where the unmounts of this namespace go.
#[derive(Debug, Default)]
pub struct Spread {
    /// Device of each mount, its [`spot`], and the peer groups that see its unmount.
    reached: Vec<(String, PathBuf, BTreeSet<String>)>,
}

fn above<'a>(table: &'a [Line], line: &Line) -> Option<&'a Line> {
    table.iter().find(|other| other.id == line.parent)
}

/// Where it is mounted, as a path of the file system above it: that may be shown elsewhere in another namespace.
fn spot(above: &Line, line: &Line) -> Option<PathBuf> {
    Some(above.root.join(line.at.strip_prefix(&above.at).ok()?))
}

impl Spread {
    /// By the table of this namespace, `ours`, and those of the other ones.
    pub fn of<'a>(ours: &[u8], others: impl Iterator<Item = &'a [u8]>) -> Self {
        let own: Vec<Line> = lines(ours).collect();
        let links = |line: Line| Some((line.master?, line.shared?));
        let mut followers: Vec<(String, String)> = lines(ours).filter_map(links).collect();
        followers.extend(others.flat_map(lines).filter_map(links));
        let mut groups = BTreeMap::new();
        let mut reached = Vec::new();
        for line in &own {
            let Some(above) = above(&own, line) else { continue };
            let Some((group, spot)) = above.shared.clone().zip(spot(above, line)) else { continue };
            let seen = groups.entry(group.clone()).or_insert_with(|| reached_from(group, &followers));
            reached.push((line.device.clone(), spot, seen.clone()));
        }
        Self { reached }
    }

    /// An unmount in this namespace reaches this mount of another one, unless something is mounted on it.
    fn goes(&self, table: &[Line], line: &Line) -> bool {
        let Some(above) = above(table, line) else { return false };
        let Some(at) = spot(above, line) else { return false };
        let sees = |groups: &BTreeSet<String>| {
            [&above.shared, &above.master].into_iter().flatten().any(|group| groups.contains(group))
        };
        self.reached.iter().any(|(device, spot, groups)| *device == line.device && *spot == at && sees(groups))
    }

    /// The mounts of another namespace, by its table, for which `is` holds and which no unmount in this one takes away.
    pub fn staying(&self, theirs: &[u8], is: &dyn Fn(&Mount) -> bool) -> Vec<Mount> {
        let table: Vec<Line> = lines(theirs).collect();
        let mut stay: BTreeSet<&String> =
            table.iter().filter(|line| !self.goes(&table, line)).map(|line| &line.id).collect();
        // What stays holds what it is mounted on.
        loop {
            let known = stay.len();
            let below: Vec<&String> =
                table.iter().filter(|line| stay.contains(&line.id)).map(|line| &line.parent).collect();
            stay.extend(below);
            if stay.len() == known {
                break;
            }
        }
        table.iter().filter(|line| stay.contains(&line.id)).cloned().map(Mount::from).filter(is).collect()
    }
}

/// This group, those that follow it, and those that follow these.
fn reached_from(group: String, followers: &[(String, String)]) -> BTreeSet<String> {
    let mut reached = BTreeSet::from([group]);
    loop {
        let known = reached.len();
        for (master, follower) in followers {
            if reached.contains(master) {
                reached.insert(follower.clone());
            }
        }
        if reached.len() == known {
            return reached;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_stays_if_what_is_above_it_follows_nobody() {
        let ours = b"1 0 8:1 / / rw shared:1 - ext4 a rw\n2 1 7:0 / /srv/pg rw shared:2 - ext4 b rw\n";
        let is = |mount: &Mount| mount.device == "7:0";
        let service =
            b"11 10 8:1 / / rw shared:9 master:1 - ext4 a rw\n12 11 7:0 / /srv/pg rw shared:10 master:2 - ext4 b rw\n";
        let chained = b"21 20 8:1 / / rw master:9 - ext4 a rw\n22 21 7:0 / /srv/pg rw master:10 - ext4 b rw\n";
        let private = b"31 30 8:1 / / rw - ext4 a rw\n32 31 7:0 / /srv/pg rw - ext4 b rw\n";
        // The copy follows ours, and what it is mounted on does not.
        let container = b"41 40 0:80 / / rw - overlay o rw\n42 41 7:0 /x /data rw master:2 - ext4 b rw\n";
        // A directory of the copy is mounted over itself: only an unmount within the file system would reach it.
        let inside = [&service[..], b"13 12 7:0 /x /srv/pg/x rw shared:12 master:2 - ext4 b rw\n"].concat();
        // Bound at another place: there is nothing to unmount at the place of ours.
        let elsewhere = b"51 50 8:1 / / rw master:1 - ext4 a rw\n52 51 7:0 / /mnt rw master:2 - ext4 b rw\n";
        // Something of its own is mounted on the copy.
        let covered = [
            &b"61 60 8:1 / / rw master:1 - ext4 a rw\n62 61 7:0 / /srv/pg rw master:2 - ext4 b rw\n"[..],
            b"63 62 0:99 / /srv/pg/x rw - tmpfs x rw\n",
        ]
        .concat();
        // Its root is a directory of ours: the same place under another name.
        let narrow = b"71 70 8:1 /srv / rw master:1 - ext4 a rw\n72 71 7:0 / /pg rw master:2 - ext4 b rw\n";
        let others: [&[u8]; 8] = [service, chained, private, container, &inside, elsewhere, &covered, narrow];
        let spread = Spread::of(ours, others.into_iter());
        let staying = others.map(|table| {
            let staying = spread.staying(table, &is).into_iter();
            staying.map(|mount| mount.at.display().to_string()).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(staying, ["", "", "/srv/pg", "/data", "/srv/pg /srv/pg/x", "/mnt", "/srv/pg", ""]);
        // Without peers nothing is passed on.
        let alone = b"1 0 8:1 / / rw - ext4 a rw\n2 1 7:0 / /srv/pg rw - ext4 b rw\n";
        assert_eq!(Spread::of(alone, others.into_iter()).staying(service, &is).len(), 1);
    }
}
