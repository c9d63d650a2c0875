//! A disk in memory that loses unsynced data, as a power cut would, and fails on command.
//!
//! Reads see written bytes at once; `sync_data` makes them durable, `write_synced_at` only its own, and `sync_dir`
//! makes names durable. A crash keeps any part of the unsynced changes. [`SimDisk::crashed`] returns the disk after a
//! crash and does not change the original, so that one history can be crashed in many ways. A write that was begun ends
//! when the test says so ([`SimDisk::end_write`]), or when somebody waits for it.

use holdfast_journal::{AlignedBuf, Disk, DiskFile, Ended};
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
    /// Files take writes to begin.
    takes_begun: bool,
    syncs: u64,
    writes: u64,
}

#[derive(Debug, Default)]
struct Inner {
    names: BTreeMap<String, Shared>,
    durable_names: BTreeMap<String, Shared>,
    switches: Switches,
    begun: Option<Begun>,
}

/// A write that was begun. Reads see it, and no sync has covered it, until it has ended.
#[derive(Debug)]
struct Begun {
    data: AlignedBuf,
    offset: u64,
    file: SimFile,
    /// How the write went; its sync comes with the end.
    written: io::Result<()>,
    ended: bool,
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

    /// From now on files take writes to begin.
    pub fn take_begun(&self) {
        self.inner().switches.takes_begun = true;
    }

    /// Whether a write was begun that has not ended.
    pub fn is_writing(&self) -> bool {
        self.inner().begun.as_ref().is_some_and(|begun| !begun.ended)
    }

    /// Ends the write that was begun, if there is one: makes it durable, or fails as the switches say.
    pub fn end_write(&self) {
        let Some(mut begun) = self.inner().begun.take() else { return };
        if !begun.ended {
            begun.ended = true;
            if begun.written.is_ok() {
                begun.written = begun.file.sync_own(begun.offset, begun.data.len());
            }
        }
        self.inner().begun = Some(begun);
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
        let (recycled, takes_begun) = (std::mem::take(&mut inner.switches.recycled), inner.switches.takes_begun);
        inner.switches = Switches { recycled, takes_begun, ..Switches::default() };
        inner.begun = None;
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
        let (recycled, takes_begun) = (inner.switches.recycled.clone(), inner.switches.takes_begun);
        let switches = Switches { recycled, takes_begun, ..Switches::default() };
        SimDisk { inner: Arc::new(Mutex::new(Inner { durable_names: names.clone(), names, switches, begun: None })) }
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

    fn ended(&self, wait: bool) -> Option<Ended> {
        if wait {
            self.end_write();
        }
        let mut inner = self.inner();
        let Begun { data, written, .. } = inner.begun.take_if(|begun| begun.ended)?;
        Some((data, written))
    }
}

impl SimFile {
    /// Makes the pending writes in these `len` bytes at `offset` durable, and no others.
    fn sync_own(&self, offset: u64, len: usize) -> io::Result<()> {
        let own = offset as usize..offset as usize + len;
        self.sync(|write| own.start <= write.offset && write.offset + write.bytes.len() <= own.end)
    }

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
        self.sync_own(offset, data.len())
    }

    fn begin_synced_at(&self, data: AlignedBuf, offset: u64) -> Result<(), AlignedBuf> {
        if !self.disk.locked().switches.takes_begun {
            return Err(data);
        }
        let written = self.write_at(&data, offset);
        let file = SimFile { disk: self.disk.clone(), contents: self.contents.clone() };
        let before = self.disk.locked().begun.replace(Begun { data, offset, file, written, ended: false });
        assert!(before.is_none(), "one write at a time");
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.sync(|_| true)
    }

    fn bytes(&self) -> u64 {
        self.contents.locked().seen.len() as u64
    }
}

#[cfg(test)]
#[path = "sim_disk_tests.rs"]
mod tests;
