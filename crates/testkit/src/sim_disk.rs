//! A disk in memory that loses unsynced data, as a power cut would, and fails on command.
//!
//! Reads see written bytes at once; `sync_data` makes them durable, `write_synced_at` only its own, and `sync_dir`
//! makes names durable. A crash keeps any part of the unsynced changes. [`SimDisk::crashed`] returns the disk after a
//! crash and does not change the original, so that one history can be crashed in many ways.

use holdfast_journal::{AlignedBuf, Disk, DiskFile};
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

/// The unit in which a disk tears a write, in bytes.
pub const SECTOR_BYTES: usize = 512;

/// A write that no sync has covered.
#[derive(Clone, Debug)]
struct Pending {
    offset: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, Default)]
struct Contents {
    durable: Vec<u8>,
    /// Content for reads: durable, pending, and lost by a failed sync.
    seen: Vec<u8>,
    pending: Vec<Pending>,
    /// Unreadable blocks, by offset.
    unreadable: Vec<u64>,
}

type Shared = Arc<Mutex<Contents>>;

/// Coming faults, and counts of operations.
#[derive(Clone, Debug, Default)]
struct Switches {
    /// `sync_data` succeeds without effect: a lying disk, or a journal that forgot to sync.
    ignore_syncs: bool,
    /// Syncs that still succeed; then one fails, and later ones lie (the kernel's pages are clean by then).
    syncs_left: Option<u64>,
    /// Writes that still succeed; then one fails.
    writes_left: Option<u64>,
    /// Reads that still succeed; then one fails.
    reads_left: Option<u64>,
    /// Files that may still be created.
    creates_left: Option<u64>,
    /// Number of the error of every creation of a file.
    create_fails: Option<i32>,
    /// Files that fit at once.
    files_max: Option<usize>,
    /// Operations until the power fails: then everything fails without effect.
    dies_after: Option<u64>,
    /// Initial bytes of a created file, instead of zeroes, like a recycled one.
    recycled: Vec<u8>,
    syncs: u64,
    writes: u64,
}

#[derive(Debug, Default)]
struct Inner {
    names: BTreeMap<String, Shared>,
    durable_names: BTreeMap<String, Shared>,
    switches: Switches,
}

/// Which unsynced sectors of a crashed disk survive.
pub enum Survives<'a> {
    /// None of them: the disk is as of the last syncs.
    Nothing,
    /// All of them, and durably.
    Everything,
    /// The first bytes in the order written; a torn sector is torn at the byte.
    Prefix(usize),
    /// Sectors for which the answer is true; asked once per sector, in the order written.
    Some(&'a mut dyn FnMut() -> bool),
    /// The same, asked only if the answer makes a difference: enumerating all answers gives every disk, and nearly each
    /// once.
    Each(&'a mut dyn FnMut() -> bool),
}

/// A disk in memory. Clones are the same disk.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    inner: Arc<Mutex<Inner>>,
}

/// A file of a [`SimDisk`].
#[derive(Debug)]
pub struct SimFile {
    disk: Arc<Mutex<Inner>>,
    contents: Shared,
}

fn error(kind: io::ErrorKind, what: &str) -> io::Error {
    io::Error::new(kind, format!("simulated: {what}"))
}

impl SimDisk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.locked()
    }

    /// From now on syncs succeed without effect. Shows that a test notices a missing sync.
    pub fn ignore_syncs(&self) {
        self.inner().switches.ignore_syncs = true;
    }

    /// The sync after `count` more fails and loses its data; later ones lie.
    pub fn fail_sync_after(&self, count: u64) {
        self.inner().switches.syncs_left = Some(count);
    }

    /// The write after `count` more fails.
    pub fn fail_write_after(&self, count: u64) {
        self.inner().switches.writes_left = Some(count);
    }

    /// The read after `count` more fails.
    pub fn fail_read_after(&self, count: u64) {
        self.inner().switches.reads_left = Some(count);
    }

    /// Room for `count` more files, `None` for no limit.
    pub fn set_room(&self, count: Option<u64>) {
        self.inner().switches.creates_left = count;
    }

    /// No file can be created, for the reason with this number (errno). `None`: they can.
    pub fn fail_creates(&self, errno: Option<i32>) {
        self.inner().switches.create_fails = errno;
    }

    /// Limits the disk to `count` files; a removed file frees its place. `None`: no limit. A crash or a restart ends
    /// it.
    pub fn set_files_max(&self, count: Option<usize>) {
        self.inner().switches.files_max = count;
    }

    /// Created files begin with copies of `bytes`, like recycled files.
    pub fn recycle(&self, bytes: Vec<u8>) {
        self.inner().switches.recycled = bytes;
    }

    /// After `count` more changes (writes, syncs, changes of names) the power fails: then everything fails without
    /// effect.
    pub fn die_after(&self, count: u64) {
        self.inner().switches.dies_after = Some(count);
    }

    /// Whether the power is gone.
    pub fn is_dead(&self) -> bool {
        self.inner().switches.dies_after == Some(0)
    }

    /// The process died, the machine did not: nothing is lost yet, but unsynced data may be later.
    pub fn restart(&self) {
        let mut inner = self.inner();
        inner.switches = Switches { recycled: std::mem::take(&mut inner.switches.recycled), ..Switches::default() };
    }

    /// Syncs so far.
    pub fn syncs(&self) -> u64 {
        self.inner().switches.syncs
    }

    /// Writes so far.
    pub fn writes(&self) -> u64 {
        self.inner().switches.writes
    }

    /// Names as they are now, sorted.
    pub fn names(&self) -> Vec<String> {
        self.inner().names.keys().cloned().collect()
    }

    /// Unsynced bytes over all files: the range of [`Survives::Prefix`].
    pub fn unsynced_bytes(&self) -> usize {
        let inner = self.inner();
        inner
            .names
            .values()
            .map(|file| file.locked().pending.iter().map(|write| write.bytes.len()).sum::<usize>())
            .sum()
    }

    /// The unsynced writes with their files' names, in the order of [`Survives::Prefix`].
    pub fn unsynced(&self) -> Vec<(String, Vec<u8>)> {
        let inner = self.inner();
        let writes = |(name, file): (&String, &Shared)| {
            file.locked().pending.iter().map(|write| (name.clone(), write.bytes.clone())).collect::<Vec<_>>()
        };
        inner.names.iter().flat_map(writes).collect()
    }

    /// Contents of a file as reads see them.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let file = self.inner().names.get(name).cloned()?;
        let seen = file.locked().seen.clone();
        Some(seen)
    }

    /// Changes bytes of a file durably, unseen by the journal: bit rot.
    pub fn damage(&self, name: &str, change: impl FnOnce(&mut [u8])) {
        let Some(file) = self.inner().names.get(name).cloned() else { return };
        let mut contents = file.locked();
        change(&mut contents.seen);
        contents.durable = contents.seen.clone();
        contents.pending.clear();
    }

    /// Truncates a file at byte `bytes`, durably and unseen by the journal.
    pub fn shorten(&self, name: &str, bytes: usize) {
        let Some(file) = self.inner().names.get(name).cloned() else { return };
        let mut contents = file.locked();
        contents.seen.truncate(bytes);
        contents.durable = contents.seen.clone();
        contents.pending.clear();
    }

    /// Loses a file, durably and unseen by the journal.
    pub fn lose(&self, name: &str) {
        let mut inner = self.inner();
        inner.names.remove(name);
        inner.durable_names.remove(name);
    }

    /// Makes the block at `offset` of a file unreadable.
    pub fn make_unreadable(&self, name: &str, offset: u64) {
        let Some(file) = self.inner().names.get(name).cloned() else { return };
        file.locked().unreadable.push(offset);
    }

    /// The disk after a crash now. Unsynced names survive if any byte does, except with [`Survives::Some`] and
    /// [`Survives::Each`], which are asked about them too, in alphabetical order.
    pub fn crashed(&self, mut survives: Survives<'_>) -> SimDisk {
        let inner = self.inner();
        let mut names: BTreeMap<String, Contents> = BTreeMap::new();
        let all: Vec<&String> = inner.names.keys().chain(inner.durable_names.keys()).collect();
        let mut left = match survives {
            Survives::Prefix(bytes) => bytes,
            _ => 0,
        };
        for name in all {
            let (now, durable) = (inner.names.get(name), inner.durable_names.get(name));
            let same = match (now, durable) {
                (Some(now), Some(durable)) => Arc::ptr_eq(now, durable),
                _ => false,
            };
            let newer = same
                || match &mut survives {
                    Survives::Nothing => false,
                    Survives::Everything | Survives::Prefix(_) => true,
                    Survives::Some(choose) => choose(),
                    // A name with another durable file appears twice here, and was decided the first time.
                    Survives::Each(choose) => names.contains_key(name) || choose(),
                };
            if let Some(file) = if newer { now } else { durable } {
                names.entry(name.clone()).or_insert_with(|| file.locked().clone());
            }
        }
        for contents in names.values_mut() {
            let mut bytes = std::mem::take(&mut contents.durable);
            for write in std::mem::take(&mut contents.pending) {
                for (number, sector) in write.bytes.chunks(SECTOR_BYTES).enumerate() {
                    let at = write.offset + number * SECTOR_BYTES;
                    let keep = match &mut survives {
                        Survives::Nothing => 0,
                        Survives::Everything => sector.len(),
                        Survives::Prefix(_) => left.min(sector.len()),
                        Survives::Some(choose) => usize::from(choose()) * sector.len(),
                        Survives::Each(choose) => {
                            let differs = bytes[at..at + sector.len()] != *sector;
                            usize::from(differs && choose()) * sector.len()
                        }
                    };
                    left -= left.min(keep);
                    bytes[at..at + keep].copy_from_slice(&sector[..keep]);
                }
            }
            contents.seen = bytes.clone();
            contents.durable = bytes;
        }
        let names: BTreeMap<String, Shared> =
            names.into_iter().map(|(name, contents)| (name, Arc::new(Mutex::new(contents)))).collect();
        let switches = Switches { recycled: inner.switches.recycled.clone(), ..Switches::default() };
        SimDisk { inner: Arc::new(Mutex::new(Inner { durable_names: names.clone(), names, switches })) }
    }
}

impl Switches {
    /// Counts one more change; fails without power.
    fn step(&mut self) -> io::Result<()> {
        match &mut self.dies_after {
            Some(0) => return Err(error(io::ErrorKind::Other, "no power")),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<SimFile> {
        let mut inner = self.inner();
        inner.switches.step()?;
        if inner.names.contains_key(name) {
            return Err(error(io::ErrorKind::AlreadyExists, name));
        }
        if let Some(errno) = inner.switches.create_fails {
            return Err(io::Error::from_raw_os_error(errno));
        }
        if inner.switches.files_max.is_some_and(|max| inner.names.len() >= max) {
            return Err(error(io::ErrorKind::StorageFull, "disk full"));
        }
        match &mut inner.switches.creates_left {
            Some(0) => return Err(error(io::ErrorKind::StorageFull, "disk full")),
            Some(left) => *left -= 1,
            None => {}
        }
        let mut seen = vec![0; bytes as usize];
        let recycled = &inner.switches.recycled;
        let old = recycled.len().min(seen.len());
        seen[..old].copy_from_slice(&recycled[..old]);
        let contents = Contents { durable: seen.clone(), seen, ..Contents::default() };
        let contents = Arc::new(Mutex::new(contents));
        inner.names.insert(name.to_string(), contents.clone());
        Ok(SimFile { disk: self.inner.clone(), contents })
    }

    fn open(&self, name: &str) -> io::Result<SimFile> {
        let contents = self.inner().names.get(name).cloned();
        let contents = contents.ok_or_else(|| error(io::ErrorKind::NotFound, name))?;
        Ok(SimFile { disk: self.inner.clone(), contents })
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.inner();
        inner.switches.step()?;
        let removed = inner.names.remove(name);
        removed.map(|_| ()).ok_or_else(|| error(io::ErrorKind::NotFound, name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.inner();
        inner.switches.step()?;
        let file = inner.names.remove(from).ok_or_else(|| error(io::ErrorKind::NotFound, from))?;
        inner.names.insert(to.to_string(), file);
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut inner = self.inner();
        inner.switches.step()?;
        inner.durable_names = inner.names.clone();
        Ok(())
    }
}

impl SimFile {
    /// Makes those pending writes durable that `covers` names.
    fn sync(&self, covers: impl Fn(&Pending) -> bool) -> io::Result<()> {
        let mut disk = self.disk.locked();
        disk.switches.step()?;
        disk.switches.syncs += 1;
        if disk.switches.ignore_syncs {
            return Ok(());
        }
        let failed = disk.switches.syncs_left == Some(0);
        disk.switches.syncs_left = match disk.switches.syncs_left {
            Some(0) => None,
            left => left.map(|left| left - 1),
        };
        drop(disk);
        let mut contents = self.contents.locked();
        let pending = std::mem::take(&mut contents.pending);
        let (covered, left): (Vec<_>, Vec<_>) = pending.into_iter().partition(|write| covers(write));
        contents.pending = left;
        if failed {
            // The pages are clean now, with data that never reached the disk: it is in `seen`, and never in `durable`.
            return Err(error(io::ErrorKind::Other, "sync failed"));
        }
        for write in covered {
            contents.durable[write.offset..write.offset + write.bytes.len()].copy_from_slice(&write.bytes);
        }
        Ok(())
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let left = &mut self.disk.locked().switches.reads_left;
        match left {
            Some(0) => {
                *left = None;
                return Err(error(io::ErrorKind::Other, "read failed"));
            }
            Some(count) => *count -= 1,
            None => {}
        }
        let contents = self.contents.locked();
        let range = offset as usize..offset as usize + buf.len();
        if contents.unreadable.iter().any(|block| range.contains(&(*block as usize))) {
            return Err(error(io::ErrorKind::Other, "unreadable block"));
        }
        let bytes = contents.seen.get(range).ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, data: &AlignedBuf, offset: u64) -> io::Result<()> {
        let mut disk = self.disk.locked();
        disk.switches.step()?;
        disk.switches.writes += 1;
        match &mut disk.switches.writes_left {
            Some(0) => {
                disk.switches.writes_left = None;
                return Err(error(io::ErrorKind::Other, "write failed"));
            }
            Some(left) => *left -= 1,
            None => {}
        }
        drop(disk);
        let mut contents = self.contents.locked();
        let offset = offset as usize;
        let Some(seen) = contents.seen.get_mut(offset..offset + data.len()) else {
            return Err(error(io::ErrorKind::InvalidInput, "write beyond the end of a file"));
        };
        seen.copy_from_slice(data);
        contents.pending.push(Pending { offset, bytes: data.to_vec() });
        Ok(())
    }

    /// A write, then a sync of what it wrote: for the switches two operations, so that the power may fail between them.
    fn write_synced_at(&self, data: &AlignedBuf, offset: u64) -> io::Result<()> {
        self.write_at(data, offset)?;
        let own = offset as usize..offset as usize + data.len();
        self.sync(|write| own.start <= write.offset && write.offset + write.bytes.len() <= own.end)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(|_| true)
    }

    fn bytes(&self) -> u64 {
        self.contents.locked().seen.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(byte: u8) -> AlignedBuf {
        let mut block = AlignedBuf::zeroed(4096);
        block.fill(byte);
        block
    }

    fn read(disk: &SimDisk, offset: u64) -> u8 {
        let mut byte = [0];
        disk.open("a").expect("there").read_at(&mut byte, offset).expect("reads");
        byte[0]
    }

    #[test]
    fn a_crash_keeps_the_synced_and_any_part_of_the_rest() {
        let disk = SimDisk::new();
        let file = disk.create("a", 12288).expect("room");
        disk.sync_dir().expect("syncs");
        file.write_at(&block(1), 0).expect("writes");
        file.sync_data().expect("syncs");
        file.write_at(&block(2), 4096).expect("writes");
        assert_eq!(disk.unsynced_bytes(), 4096);
        let lost = disk.crashed(Survives::Nothing);
        assert_eq!((read(&lost, 0), read(&lost, 4096)), (1, 0));
        let kept = disk.crashed(Survives::Everything);
        assert_eq!(read(&kept, 8191), 2);
        let torn = disk.crashed(Survives::Prefix(700));
        assert_eq!((read(&torn, 4096 + 699), read(&torn, 4096 + 700)), (2, 0));
        let mut number = 0;
        let odd = disk.crashed(Survives::Some(&mut || {
            number += 1;
            number % 2 == 0
        }));
        assert_eq!((read(&odd, 4096), read(&odd, 4096 + 512)), (0, 2));
    }

    #[test]
    fn a_synced_write_makes_nothing_else_durable() {
        let disk = SimDisk::new();
        let file = disk.create("a", 12288).expect("room");
        disk.sync_dir().expect("syncs");
        file.write_at(&block(1), 0).expect("writes");
        file.write_synced_at(&block(2), 4096).expect("writes");
        let lost = disk.crashed(Survives::Nothing);
        assert_eq!((read(&lost, 0), read(&lost, 4096)), (0, 2));
        assert_eq!((disk.unsynced_bytes(), disk.writes(), disk.syncs()), (4096, 2, 1));
        file.sync_data().expect("syncs");
        assert_eq!(read(&disk.crashed(Survives::Nothing), 0), 1);
        disk.fail_sync_after(0);
        file.write_synced_at(&block(3), 8192).expect_err("its sync fails");
        assert_eq!((read(&disk, 8192), read(&disk.crashed(Survives::Everything), 8192)), (3, 0));
    }

    #[test]
    fn each_is_asked_only_what_makes_a_difference() {
        let disk = SimDisk::new();
        let file = disk.create("a", 8192).expect("room");
        disk.sync_dir().expect("syncs");
        file.write_at(&block(1), 0).expect("writes");
        file.write_at(&block(0), 4096).expect("writes");
        disk.create("b", 4096).expect("room");
        let ask = |answer: bool| {
            let mut asked = 0;
            let left = disk.crashed(Survives::Each(&mut || {
                asked += 1;
                answer
            }));
            (asked, left)
        };
        let (asked, kept) = ask(true);
        assert_eq!(asked, 1 + 4096 / SECTOR_BYTES, "a name, and sectors that are not as they were");
        assert_eq!((kept.names().len(), read(&kept, 4095)), (2, 1));
        let (_, lost) = ask(false);
        assert_eq!((lost.names().len(), read(&lost, 0)), (1, 0));
        // Now another file than the durable one: that is one question.
        disk.remove("a").expect("there");
        disk.create("a", 8192).expect("room");
        assert_eq!(ask(true).0, 2);
    }

    #[test]
    fn names_need_their_own_sync() {
        let disk = SimDisk::new();
        disk.create("a", 4096).expect("room");
        assert!(disk.crashed(Survives::Nothing).names().is_empty());
        disk.sync_dir().expect("syncs");
        disk.rename("a", "b").expect("renames");
        assert_eq!(disk.crashed(Survives::Nothing).names(), ["a"]);
        assert_eq!(disk.crashed(Survives::Everything).names(), ["b"]);
    }

    #[test]
    fn a_full_disk_has_room_again_once_a_file_is_removed() {
        let disk = SimDisk::new();
        disk.create("a", 4096).expect("room");
        disk.set_files_max(Some(1));
        let refused = disk.create("b", 4096).map(drop).expect_err("full");
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        disk.remove("a").expect("there");
        disk.create("b", 4096).expect("room again");
        assert!(disk.create("c", 4096).is_err());
        disk.set_files_max(None);
        disk.create("c", 4096).expect("no limit");
    }

    #[test]
    fn a_failed_sync_loses_for_good_and_the_next_lies() {
        let disk = SimDisk::new();
        let file = disk.create("a", 4096).expect("room");
        disk.sync_dir().expect("syncs");
        disk.fail_sync_after(0);
        file.write_at(&block(1), 0).expect("writes");
        assert!(file.sync_data().is_err());
        assert!(file.sync_data().is_ok());
        assert_eq!(read(&disk, 0), 1, "a reader still sees it");
        assert_eq!(read(&disk.crashed(Survives::Everything), 0), 0);
    }
}
