//! The disks below a file system or a device of a pool, as the kernel shows them in /sys. Reads nothing from the disks.

use crate::drivers::ownership::{Behind, behind_in, is_ours};
use holdfast_host::mounts::Mount;
use std::path::{Path, PathBuf};

/// Levels of devices over devices (LVM over RAID over nbd), at most.
const LEVELS_MAX: usize = 8;

/// Options with which the table of mounts names further devices of an XFS: for its log, and for its realtime files.
const FURTHER: [&str; 2] = ["logdev=", "rtdev="];

/// Where a device stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// On devices of this agent's attach only.
    OnSet,
    /// On a disk, or a file, of something else.
    Elsewhere,
    /// It is gone, or not connected at this moment.
    Unknown,
}

/// The devices of this host.
pub struct Disks<'a> {
    /// The kernel's directory of devices.
    pub sys: &'a Path,
    /// The run directory of this agent's attach, by its names.
    pub attach_dirs: Vec<PathBuf>,
}

impl Disks<'_> {
    /// Whether all the disks below a mounted file system are devices of this agent's attach.
    pub fn have(&self, mount: &Mount) -> bool {
        let Some(name) = self.named(mount) else { return false };
        let devices = if mount.kind == "btrfs" { self.of_btrfs(&name) } else { vec![name] };
        let mut leaves = Vec::new();
        !devices.is_empty()
            && devices.iter().all(|name| self.leaves(name, LEVELS_MAX, &mut leaves))
            && leaves.iter().all(|leaf| self.stands(leaf) == Stands::OnSet)
    }

    /// Like `have`, for devices that a file system has beside the one that is mounted ([`further`]).
    pub fn have_further(&self, mount: &Mount) -> bool {
        further(mount).all(|option| {
            option.split_once('=').is_some_and(|(_, device)| self.below(Path::new(device)) == Stands::OnSet)
        })
    }

    /// The device that the table of mounts names.
    fn named(&self, mount: &Mount) -> Option<String> {
        let by_number = std::fs::canonicalize(self.sys.join("dev/block").join(&mount.device));
        // A file system over several devices (btrfs) has a number that is no device's.
        let device = by_number.or_else(|_| Path::new(&mount.source).canonicalize());
        Some(device.ok()?.file_name()?.to_str()?.to_string())
    }

    /// All devices of the Btrfs file system that has this one; none if the kernel does not show it. Its data may lie on
    /// any of them, and the table of mounts names only one.
    fn of_btrfs(&self, one: &str) -> Vec<String> {
        let mounted = names_in(&self.sys.join("fs/btrfs"));
        let devices = mounted.iter().map(|system| names_in(&self.sys.join("fs/btrfs").join(system).join("devices")));
        devices.filter(|names| names.iter().any(|name| name == one)).flatten().collect()
    }

    /// Where a device of a pool stands, by its path.
    pub fn below(&self, device: &Path) -> Stands {
        let Ok(real) = device.canonicalize() else { return Stands::Unknown };
        let Some(name) = real.file_name().and_then(|name| name.to_str()) else { return Stands::Unknown };
        if !self.sys.join("class/block").join(name).exists() {
            // A pool can have a plain file as a device.
            return if real.starts_with("/dev") { Stands::Unknown } else { Stands::Elsewhere };
        }
        let mut leaves = Vec::new();
        if !self.leaves(name, LEVELS_MAX, &mut leaves) {
            return Stands::Elsewhere;
        }
        let stands: Vec<Stands> = leaves.iter().map(|leaf| self.stands(leaf)).collect();
        let first = |wanted| stands.iter().copied().find(|found| *found == wanted);
        first(Stands::Elsewhere).or_else(|| first(Stands::Unknown)).unwrap_or(Stands::OnSet)
    }

    /// Where a whole disk stands, by its name.
    fn stands(&self, name: &str) -> Stands {
        match behind_in(self.sys, name) {
            None if name.starts_with("nbd") || name.starts_with("loop") => Stands::Unknown,
            behind if is_ours(behind.as_ref(), &self.attach_dirs, false) => Stands::OnSet,
            None | Some(Behind::Nbd(_) | Behind::Loop(_)) => Stands::Elsewhere,
        }
    }

    /// Adds the disks at the bottom of this device. Returns whether all were found.
    fn leaves(&self, name: &str, levels: usize, found: &mut Vec<String>) -> bool {
        let of = self.sys.join("class/block").join(name);
        let whole = of.join("partition").exists().then(|| of.canonicalize().ok()).flatten();
        let lower: Vec<String> = match whole.as_deref().and_then(Path::parent).and_then(Path::file_name) {
            Some(whole) => vec![whole.to_string_lossy().into_owned()],
            None => names_in(&of.join("slaves")),
        };
        if lower.is_empty() {
            found.push(name.to_string());
            return true;
        }
        levels > 0 && lower.iter().all(|name| self.leaves(name, levels - 1, found))
    }
}

/// Options of a mounted file system that name further devices of it.
pub fn further(mount: &Mount) -> impl Iterator<Item = &str> {
    mount.options.split(',').filter(|option| FURTHER.iter().any(|name| option.starts_with(name)))
}

/// Names in a directory, none if it is not there.
fn names_in(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}
