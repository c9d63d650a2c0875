//! ONSET-L3 for a ZFS pool: which of its devices stand on something else than the set.

use super::disks::{Disks, Stands};
use crate::drivers::zfs::vdevs::{Class, Vdev};
use std::path::PathBuf;

/// A device of a pool that is not on the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffDevice {
    pool: String,
    class: Class,
    path: PathBuf,
}

impl OffDevice {
    /// Text with what to do.
    pub fn told(&self, set: &str) -> String {
        let Self { pool, class, path } = self;
        let path = path.display();
        let cost = match class {
            Class::Log => "the last commits may be on it and nowhere else: they are lost with this host",
            Class::Special | Class::Dedup => "the whole pool is lost with it",
            Class::Data | Class::Cache | Class::Spare => {
                "what is written to it is lost with this host; as a side of a mirror it goes on taking writes when the set ends its own devices"
            }
        };
        format!(
            "pool {pool}: found its {class} device {path} off the set, expected devices of set {set} (a cache device may be on any disk): {cost}: \
             `zpool remove {pool} {path}` while the pool is imported (a side of a mirror: `zpool detach`). If PostgreSQL is not started because of it: \
             `holdfast agent pause` on each host, `holdfast agent failover` on this one (in a pause that imports the pool, and this device still keeps PostgreSQL from its start), \
             then that command, then `holdfast agent resume` on each host"
        )
    }
}

/// Whether a pool that the agent did not import is the set's: it has devices of the set.
pub fn is_the_sets(disks: &Disks<'_>, vdevs: &[Vdev]) -> bool {
    needed(vdevs).any(|vdev| disks.below(&vdev.path) == Stands::OnSet)
}

/// The devices of a pool that stand elsewhere. A loss of a cache device or of a spare loses nothing.
pub fn off(disks: &Disks<'_>, pool: &str, vdevs: &[Vdev]) -> Vec<OffDevice> {
    let elsewhere = needed(vdevs).filter(|vdev| disks.below(&vdev.path) == Stands::Elsewhere);
    elsewhere.map(|vdev| OffDevice { pool: pool.into(), class: vdev.class, path: vdev.path.clone() }).collect()
}

fn needed(vdevs: &[Vdev]) -> impl Iterator<Item = &Vdev> {
    vdevs.iter().filter(|vdev| vdev.class.is_needed())
}
