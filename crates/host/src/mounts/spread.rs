//! Whether an unmount in this mount namespace reaches the copies of other namespaces. A namespace begins with a copy of
//! each mount. The kernel passes an unmount on from the mount above it to that one's peers, and to those that follow
//! them. What it does not reach stays mounted there, and keeps its device.

use super::{Line, Mount, lines};
use std::collections::BTreeSet;

/// Where the unmounts of some file systems go.
#[derive(Debug, Default)]
pub struct Spread {
    /// Device of such a file system, and the peer groups that see an unmount of it.
    reached: Vec<(String, BTreeSet<String>)>,
}

fn above<'a>(table: &'a [Line], line: &Line) -> Option<&'a Line> {
    table.iter().find(|other| other.id == line.parent)
}

impl Spread {
    /// For the file systems of this table, `ours`, for which `is` holds. `others`: the tables of the other namespaces.
    pub fn of<'a>(ours: &[u8], others: impl Iterator<Item = &'a [u8]>, is: &dyn Fn(&Mount) -> bool) -> Self {
        let own: Vec<Line> = lines(ours).collect();
        let links = |line: Line| Some((line.master?, line.shared?));
        let mut followers: Vec<(String, String)> = lines(ours).filter_map(links).collect();
        followers.extend(others.flat_map(lines).filter_map(links));
        let mut reached = Vec::new();
        for line in own.iter().filter(|line| is(&Mount::from((*line).clone()))) {
            let Some(group) = above(&own, line).and_then(|above| above.shared.clone()) else { continue };
            reached.push((line.device.clone(), reached_from(group, &followers)));
        }
        Self { reached }
    }

    /// The mounts of another namespace, by its table, for which `is` holds and which no unmount in this one reaches.
    pub fn staying(&self, theirs: &[u8], is: &dyn Fn(&Mount) -> bool) -> Vec<Mount> {
        let table: Vec<Line> = lines(theirs).collect();
        let goes = |line: &Line| {
            let groups = above(&table, line).map(|above| [above.shared.as_ref(), above.master.as_ref()]);
            let groups: Vec<&String> = groups.into_iter().flatten().flatten().collect();
            let mut reached = self.reached.iter().filter(|(device, _)| *device == line.device);
            reached.any(|(_, reached)| groups.iter().any(|group| reached.contains(*group)))
        };
        let staying = table.iter().filter(|line| !goes(line)).cloned().map(Mount::from);
        staying.filter(is).collect()
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
        let others: [&[u8]; 5] = [service, chained, private, container, &inside];
        let spread = Spread::of(ours, others.into_iter(), &is);
        let staying = others.map(|table| {
            let staying = spread.staying(table, &is).into_iter();
            staying.map(|mount| mount.at.display().to_string()).collect::<Vec<_>>().join(" ")
        });
        assert_eq!(staying, ["", "", "/srv/pg", "/data", "/srv/pg/x"]);
        // Without peers nothing is passed on.
        let alone = b"1 0 8:1 / / rw - ext4 a rw\n2 1 7:0 / /srv/pg rw - ext4 b rw\n";
        assert_eq!(Spread::of(alone, others.into_iter(), &is).staying(service, &is).len(), 1);
    }
}
