//! A copy of a ZFS pool beside the other pools of a host: what may be imported, mounted and released. Pure: the output
//! of ZFS's programs comes in as text.
//!
//! ```text
//!   zdb -l ────▶ Label ─▶ of_one_pool ─┐
//!   zpool list ─▶ Imported ─▶ beside ──┴─▶ import, a guid of its own ─▶ zfs list ─▶ to_mount ─▶ PostgreSQL ─▶ take_down
//! ```
//!
//! STANDBY-U8  A copy is imported only if no pool of its guid is imported, and only if each device in its labels
//!     belongs to the copy. ZFS opens the other devices at their last known paths, and on a host that has attached them
//!     these are the set's own.
//! STANDBY-U9  An export is requested only if the copy lives and accepts writes, and no copy is ended under a pool that
//!     could be exported. ZFS keeps data that it cannot write until a reboot, and an export that waits for it holds the
//!     lock that every import of the host needs, the agent's too.
//! STANDBY-U10  The copy is mounted only below the slot's own directory, with the datasets that `zpool import` would
//!     mount on the primary. A link of the copy to a path in the pool leads to that path in the copy.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

/// Names of copies of ZFS pools, on a standby's host, begin with this.
pub const COPY_POOL: &str = "holdfast-standby-";

/// Health of a pool that cannot write, as `zpool list` prints it. With `failmode=continue` some versions print the
/// devices' health instead.
const SUSPENDED: &str = "SUSPENDED";

/// Text of a program that is refused for that reason, in all versions.
const REFUSED: &str = "currently suspended";

/// Content of a device's label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The pool's name on the primary.
    pub pool: String,
    /// The pool's guid, decimal as all programs of ZFS print it.
    pub guid: String,
    /// The device's own guid.
    device: String,
    /// Guids of the devices of its part of the pool: itself, and the other sides of a mirror.
    devices: BTreeSet<String>,
}

impl Label {
    /// Parses the output of `zdb -l`; `None` if there is no label.
    pub fn read(text: &str) -> Option<Self> {
        let lines = || text.lines().map(str::trim);
        let value = |key: &str| lines().find_map(|line| Some(line.strip_prefix(key)?.to_string()));
        let (mut devices, mut guid) = (BTreeSet::new(), "");
        for line in lines() {
            if let Some(found) = line.strip_prefix("guid: ") {
                guid = found;
            } else if line.starts_with("path: ") {
                // Only a device has one, and it follows its guid.
                devices.insert(guid.to_string());
            }
        }
        Some(Self {
            pool: value("name: ")?.trim_matches('\'').to_string(),
            // It becomes an argument of a program.
            guid: value("pool_guid: ").filter(|guid| guid.parse::<u64>().is_ok())?,
            device: value("guid: ")?,
            devices,
        })
    }
}

/// The one complete pool that these labels belong to (STANDBY-U8).
///
/// # Errors
/// They belong to none, to several, or to one with further devices.
pub fn of_one_pool(labels: &[Label]) -> Result<&Label, String> {
    let first = labels.first().ok_or("found no volume, expected those of a ZFS pool")?;
    if let Some(other) = labels.iter().find(|label| label.guid != first.guid) {
        return Err(format!("found volumes of two ZFS pools, {} and {}, expected one", first.pool, other.pool));
    }
    let there: BTreeSet<&str> = labels.iter().map(|label| label.device.as_str()).collect();
    let mut named = labels.iter().flat_map(|label| &label.devices);
    match named.find(|device| !there.contains(device.as_str())) {
        None => Ok(first),
        Some(device) => Err(format!(
            "pool {}: found none of the set's volumes to be its device {device}, expected all of its devices on this set: there are no standbys of a mirror of two sets",
            first.pool
        )),
    }
}

/// A pool that is imported on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Imported {
    /// Its name here.
    pub name: String,
    /// Its guid.
    pub guid: String,
    health: String,
}

impl Imported {
    /// Parses the output of `zpool list -H -p -o name,guid,health`.
    ///
    /// # Errors
    /// Another format.
    pub fn list(text: &str) -> Result<Vec<Self>, String> {
        let read = |line: &str| {
            let mut words = line.split('\t').map(str::to_string);
            Some(Self { name: words.next()?, guid: words.next()?, health: words.next()? })
        };
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        lines
            .map(|line| read(line).ok_or_else(|| format!("zpool list: found {line:?}, expected name, guid and health")))
            .collect()
    }
}

/// Whether a copy of the pool of this guid may be imported beside the imported ones (STANDBY-U8).
///
/// # Errors
/// The reason, for people.
pub fn beside(guid: &str, imported: &[Imported]) -> Result<(), String> {
    let Some(Imported { name, .. }) = imported.iter().find(|pool| pool.guid == guid) else { return Ok(()) };
    Err(if name.starts_with(COPY_POOL) {
        format!(
            "pool {name}: found it imported here under the guid of the pool that it is a copy of ({guid}), expected one of its own: the refresh of another standby is \
             about to give it one, or was ended before it could: then `zpool export {name}`, but only while its copy runs; else that hangs, and it goes with a reboot of this host"
        )
    } else {
        format!(
            "pool {name}: found it imported on this host (guid {guid}), expected a host that does not have it: a copy of a ZFS pool cannot be imported beside the pool itself"
        )
    })
}

/// A file system of the copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// Its name.
    pub name: String,
    /// Where it is mounted.
    pub at: PathBuf,
}

/// The mounts of the copy, parents before children, from the output of `zfs list -H -p -o name,mountpoint,canmount` for
/// a pool imported below `root` (STANDBY-U10).
///
/// # Errors
/// There is none, or one is not below `root`; or another format.
pub fn to_mount(listed: &str, root: &Path) -> Result<Vec<Dataset>, String> {
    let mut found = Vec::new();
    for line in listed.lines().filter(|line| !line.trim().is_empty()) {
        let words: Vec<&str> = line.split('\t').collect();
        let [name, at, canmount] = words[..] else {
            return Err(format!("zfs list: found {line:?}, expected name, mountpoint and canmount"));
        };
        if !matches!(canmount, "on" | "off" | "noauto") {
            return Err(format!("{name}: found canmount {canmount:?}, expected on, off or noauto"));
        }
        // Not "none" and not "legacy".
        if canmount != "on" || !at.starts_with('/') {
            continue;
        }
        let at = PathBuf::from(at);
        if !at.starts_with(root) || at.components().any(|part| part == Component::ParentDir) {
            return Err(format!(
                "{name}: found its mountpoint {}, expected one below {}",
                at.display(),
                root.display()
            ));
        }
        found.push(Dataset { name: name.into(), at });
    }
    if found.is_empty() {
        return Err(
            "found no dataset with a mountpoint and canmount=on, expected the one with PostgreSQL's data".into()
        );
    }
    found.sort_by(|a, b| a.at.cmp(&b.at));
    Ok(found)
}

/// Target on a copy, mounted at `mounts` below `root`, of a link that names `target` on the primary; `None` if that is
/// no path in the pool (STANDBY-U10).
pub fn led(target: &Path, root: &Path, mounts: &[PathBuf]) -> Option<PathBuf> {
    let there = root.join(target.strip_prefix("/").ok()?);
    mounts.iter().any(|mount| there.starts_with(mount)).then_some(there)
}

/// The next step for the pool of a slot that is taken down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TakeDown {
    /// It is not imported: the copy can end.
    Gone,
    /// Export it; the copy ends only after that.
    Export,
    /// Nothing: ZFS keeps it. The reason, and the remedy.
    Lost(String),
}

/// STANDBY-U9.
pub fn take_down(pool: Option<&Imported>, copy_lives: bool) -> TakeDown {
    let Some(pool) = pool else { return TakeDown::Gone };
    match (copy_lives, pool.health.as_str()) {
        (true, SUSPENDED) => TakeDown::Lost(suspended(&pool.name)),
        (true, _) => TakeDown::Export,
        (false, _) => TakeDown::Lost(lost(&pool.name, "left behind by its copy, which has ended")),
    }
}

/// Whether a program of ZFS was refused because the pool is suspended.
pub fn is_suspended(said: &str) -> bool {
    said.contains(REFUSED)
}

/// Text about a pool that cannot be released while its copy lives.
pub fn suspended(name: &str) -> String {
    lost(name, "suspended, for its copy takes no more writes or cannot be read")
}

fn lost(name: &str, found: &str) -> String {
    format!(
        "pool {name}: found it {found}: ZFS lets go of it with a reboot of this host only. Other pools and their imports are not concerned, as long as nobody exports this one; but the pool that it is a copy \
         of is, where `zpool list -o name,guid` shows that one's guid"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `zdb -l` prints the label of one of three devices of a stripe.
    fn striped(pool: &str, guid: u32, device: u32) -> String {
        format!(
            "------------------------------------\nLABEL 0 \n------------------------------------\n    version: 5000\n    name: '{pool}'\n    state: 0\n    txg: 61\n    \
             pool_guid: {guid}\n    errata: 0\n    hostid: 4027502339\n    hostname: 'a'\n    top_guid: {device}\n    guid: {device}\n    vdev_children: 3\n    vdev_tree:\n        \
             type: 'disk'\n        id: 0\n        guid: {device}\n        path: '/dev/nbd0'\n        whole_disk: 0\n        ashift: 12\n    features_for_read:\n        \
             com.delphix:hole_birth\n    labels = 0 1 2 3 \n"
        )
    }

    fn mirrored() -> String {
        "    name: 'tank'\n    pool_guid: 11\n    top_guid: 100\n    guid: 101\n    vdev_tree:\n        type: 'mirror'\n        guid: 100\n        children[0]:\n            \
         type: 'disk'\n            guid: 101\n            path: '/dev/holdfast/pg-a'\n        children[1]:\n            type: 'disk'\n            guid: 102\n            \
         path: '/dev/holdfast/pg-b'\n"
            .into()
    }

    fn label(text: &str) -> Label {
        Label::read(text).unwrap()
    }

    #[test]
    fn labels_say_of_which_pool_a_device_is_and_which_others_it_has() {
        let one = label(&striped("tank", 11, 101));
        let devices = BTreeSet::from(["101".to_string()]);
        assert_eq!(one, Label { pool: "tank".into(), guid: "11".into(), device: "101".into(), devices });
        let side = label(&mirrored());
        assert_eq!((side.device.as_str(), side.devices.len()), ("101", 2));
        assert_eq!(Label::read("failed to unpack label 0\nfailed to unpack label 1\n"), None);
        assert_eq!(Label::read(&striped("tank", 11, 101).replace("pool_guid: 11", "pool_guid: -a")), None);
    }

    #[test]
    fn a_copy_is_of_one_pool_and_has_all_of_its_devices() {
        let three = [1, 2, 3].map(|device| label(&striped("tank", 11, device)));
        assert_eq!(of_one_pool(&three), Ok(&three[0]));
        for (labels, found) in [
            (vec![], "no volume"),
            (vec![label(&striped("tank", 11, 1)), label(&striped("logs", 12, 2))], "tank and logs"),
            (vec![label(&mirrored())], "its device 102"),
        ] {
            let why = of_one_pool(&labels).unwrap_err();
            assert!(why.contains(found) && why.contains("expected"), "{why}");
        }
    }

    #[test]
    fn no_copy_is_imported_beside_its_own_guid() {
        let pools =
            Imported::list("tank\t11\tONLINE\nholdfast-standby-r-a\t12\tONLINE\nlogs\t13\tSUSPENDED\n").unwrap();
        assert_eq!(beside("14", &pools), Ok(()));
        assert_eq!(beside("1", &pools), Ok(()), "guids are compared whole");
        let why = beside("11", &pools).unwrap_err();
        assert!(why.contains("pool tank: found it imported on this host"), "{why}");
        let why = beside("12", &pools).unwrap_err();
        assert!(why.contains("zpool export holdfast-standby-r-a"), "{why}");
        assert_eq!(Imported::list(""), Ok(vec![]));
        assert!(Imported::list("tank\t11").unwrap_err().contains("expected name, guid and health"));
    }

    #[test]
    fn what_an_import_would_mount_is_mounted_below_the_slot_parents_first() {
        let root = Path::new("/srv/standby/a");
        let listed = "c\tnone\ton\nc/wal\t/srv/standby/a/tank/pg/wal\ton\nc/pg\t/srv/standby/a/tank/pg\ton\n\
                      c/old\t/srv/standby/a/old\tnoauto\nc/off\t/srv/standby/a/off\toff\nc/legacy\tlegacy\ton\n";
        let found = to_mount(listed, root).unwrap();
        let dataset = |name: &str, at: &str| Dataset { name: name.into(), at: at.into() };
        assert_eq!(found, [dataset("c/pg", "/srv/standby/a/tank/pg"), dataset("c/wal", "/srv/standby/a/tank/pg/wal")]);
        for (listed, words) in [
            ("c\tnone\ton", "canmount=on"),
            ("c\t/tank\ton", "expected one below /srv/standby/a"),
            ("c\t/srv/standby/ab\ton", "expected one below"),
            ("c\t/srv/standby/a/../../pg\ton", "expected one below"),
            ("c\t/srv/standby/a", "expected name, mountpoint and canmount"),
            ("c\t/srv/standby/a\to", "expected on, off or noauto"),
        ] {
            let why = to_mount(listed, root).unwrap_err();
            assert!(why.contains(words), "{listed}: {why}");
        }
    }

    #[test]
    fn links_to_places_of_the_pool_are_led_to_the_copy_and_no_others() {
        let (root, mounts) = (Path::new("/srv/standby/a"), [PathBuf::from("/srv/standby/a/tank/pg")]);
        let led = |target: &str| led(Path::new(target), root, &mounts);
        assert_eq!(led("/tank/pg/wal/data"), Some("/srv/standby/a/tank/pg/wal/data".into()));
        for other in ["/tank/pgother", "/mnt/space", "../wal", "/"] {
            assert_eq!(led(other), None, "{other}");
        }
    }

    #[test]
    fn a_pool_is_exported_over_a_living_copy_only() {
        let pool = |health: &str| Imported { name: "c".into(), guid: "12".into(), health: health.into() };
        for lives in [true, false] {
            assert_eq!(take_down(None, lives), TakeDown::Gone);
        }
        for health in ["ONLINE", "DEGRADED"] {
            assert_eq!(take_down(Some(&pool(health)), true), TakeDown::Export);
        }
        for (health, lives, words) in
            [("SUSPENDED", true, "suspended"), ("SUSPENDED", false, "left behind"), ("ONLINE", false, "left behind")]
        {
            let TakeDown::Lost(why) = take_down(Some(&pool(health)), lives) else { panic!("{health} {lives}") };
            assert!(why.contains(words) && why.contains("reboot"), "{why}");
        }
        assert!(is_suspended("cannot sync 'c': pool I/O is currently suspended"));
        assert!(!is_suspended("cannot export 'holdfast-standby-suspended-a': pool is busy"));
    }
}
