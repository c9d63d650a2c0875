//! The disks of the hosts, and helpers of both tests for the pool on them.

use crate::zfs::guest::{Disk, Guest};
use crate::zfs::lab::LIMIT;
use anyhow::{Context, Result};

pub(super) const PART: &str = "second-device";

/// A separate set, so that its pool affects no other part.
pub(super) const SET: &str = "pg-second";

/// Disks of each host, by their serial numbers.
pub(super) const CACHE: &str = "cache";

pub(super) const SLOG: &str = "slog";

/// ZFS restores a cache device's content after an import only if it has at least 1 GiB.
pub(super) const DISKS: [Disk; 2] =
    [Disk { serial: CACHE, bytes: 2 << 30, kept: false }, Disk { serial: SLOG, bytes: 512 << 20, kept: false }];

/// The file to read: incompressible, in records of 16 KiB.
pub(super) const FILE: &str = "/tank/pg/read";

/// Adds a cache device with the disk's own sector size. ZFS 2.1 writes the header of a cache device by the pool's
/// `ashift` and reads it by the disk's: if these differ, its content is not restored after an import.
pub(super) const ADD_CACHE: &str = "zpool add -f -o ashift=9 tank cache";

/// The partition on an additional disk. Waits for it: the kernel may still be detecting it.
pub(super) fn partition(guest: &Guest, serial: &str) -> Result<String> {
    let script = format!(
        "for _ in $(seq 100); do
  disk=$(grep -lx {serial} /sys/block/vd*/serial | cut -d/ -f4)
  [ -n \"$disk\" ] && [ -b /dev/${{disk}}1 ] && echo /dev/${{disk}}1 && exit 0
  sleep 0.1
done
exit 1"
    );
    let said = guest.run(&script, LIMIT).with_context(|| format!("a disk {serial}"))?;
    Ok(said.trim().to_string())
}

/// The pool's device of a class (`cache`, `logs`): its name in `zpool`, and its state.
pub(super) fn vdev(guest: &Guest, class: &str) -> Result<(String, String)> {
    let script =
        format!("zpool status -P tank | awk '$1 == \"{class}\" {{found = 1; next}} found {{print $1, $2; exit}}'");
    let said = guest.run(&script, LIMIT)?;
    let (name, state) = said.trim().split_once(' ').with_context(|| format!("found no {class} in the pool"))?;
    Ok((name.to_string(), state.to_string()))
}

/// Checksum of the file.
pub(super) fn sum(guest: &Guest) -> Result<String> {
    Ok(guest.run(&format!("sha256sum < {FILE}"), LIMIT * 2)?.trim().to_string())
}

/// Ends an attach that was started by hand.
pub(super) fn detach(guest: &Guest) -> Result<()> {
    guest.run(&format!("holdfast attach {SET} --detach --timeout 60s"), LIMIT).map(drop)
}
