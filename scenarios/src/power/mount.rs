//! Mounts a [`Disk`] by FUSE. The kernel caches nothing, because a simulated cut would not lose the kernel's cache.

use super::disk::{BLOCK, Disk, Facts, Losses, Refused};
use crate::chaos::seed::Seeded;
use crate::undo::{Guard, Undo};
use anyhow::{Context, Result};
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Answers are not cached.
const NOTHING: Duration = Duration::ZERO;

/// Maximum size of one write in bytes.
const WRITE_MAX: u32 = 1 << 20;

/// Number of blocks that it reports: 64 GiB.
const BLOCKS: u64 = 1 << 24;

/// Duration of a sync: as on a real disk, so that a cut happens during some.
const SYNC_TAKES: Duration = Duration::from_millis(2);

/// Number of requests that are answered in parallel.
const THREADS: usize = 4;

const O_SYNC: i32 = 0o4_010_000;
const O_DSYNC: i32 = 0o10_000;

fn lock(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A machine's disk, mounted.
#[derive(Debug)]
pub struct Mounted {
    disk: Arc<Mutex<Disk>>,
    at: PathBuf,
    session: Option<(BackgroundSession, Guard)>,
}

impl Mounted {
    /// Mounts an empty disk at `at`; creates the folder if needed. Fails when it cannot be mounted.
    pub fn new(at: &Path) -> Result<Self> {
        let mut mounted = Self { disk: Arc::new(Mutex::new(Disk::new())), at: at.into(), session: None };
        std::fs::create_dir_all(at)?;
        mounted.mount()?;
        Ok(mounted)
    }

    fn mount(&mut self) -> Result<()> {
        let mut config = Config::default();
        config.n_threads = Some(THREADS);
        config.mount_options = vec![MountOption::FSName("holdfast-power".into()), MountOption::NoAtime];
        // Registered before mounting, so that an interrupted start leaves nothing behind.
        let guard = Guard::new(Undo::Umount(self.at.clone()))?;
        let session = fuser::spawn_mount(Shell::new(self.disk.clone()), &self.at, &config);
        self.session = Some((session.with_context(|| format!("FUSE mount at {}", self.at.display()))?, guard));
        Ok(())
    }

    /// From now on it acknowledges syncs and mostly does not sync.
    pub fn lie(&self) {
        lock(&self.disk).lie();
    }

    /// Switches several disks off at the same moment.
    pub fn switch_off(all: &[Mounted]) {
        let mut disks: Vec<_> = all.iter().map(|mounted| lock(&mounted.disk)).collect();
        disks.iter_mut().for_each(|disk| disk.switch_off());
    }

    /// Switches it off as soon as it has unsynced data, or after `limit`: without unsynced data a cut loses nothing.
    pub fn switch_off_busy(&self, limit: Duration) {
        let begun = Instant::now();
        loop {
            let mut disk = lock(&self.disk);
            if disk.has_unsynced() || begun.elapsed() > limit {
                return disk.switch_off();
            }
            drop(disk);
            std::thread::sleep(SYNC_TAKES / 10);
        }
    }

    /// Unmounts, lets `chance` decide the effect of the cut, and mounts the result. Processes with open files must have
    /// ended. Fails when it cannot be unmounted or mounted.
    pub fn switch_on(&mut self, chance: &mut Seeded) -> Result<Losses> {
        if let Some((session, guard)) = self.session.take() {
            session.umount_and_join().with_context(|| format!("unmounting {}", self.at.display()))?;
            guard.forget();
        }
        let losses = lock(&self.disk).cut(chance);
        self.mount()?;
        Ok(losses)
    }
}

struct Shell {
    disk: Arc<Mutex<Disk>>,
    /// Open folder listings, as they were at the start: names removed meanwhile must not shift the others.
    listings: Mutex<BTreeMap<u64, Listing>>,
    next_listing: AtomicU64,
}

type Listing = Vec<(OsString, Facts)>;

impl Shell {
    fn new(disk: Arc<Mutex<Disk>>) -> Self {
        Self { disk, listings: Mutex::default(), next_listing: AtomicU64::new(1) }
    }

    fn listings(&self) -> MutexGuard<'_, BTreeMap<u64, Listing>> {
        self.listings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        lock(&self.disk)
    }

    fn entry(&self, reply: ReplyEntry, made: impl FnOnce(&mut Disk) -> Result<u64, Refused>) {
        let mut disk = self.disk();
        match made(&mut disk).and_then(|ino| disk.facts(ino)) {
            Ok(facts) => reply.entry(&NOTHING, &attr(facts), Generation(0)),
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn empty(&self, reply: ReplyEmpty, done: impl FnOnce(&mut Disk) -> Result<(), Refused>) {
        match done(&mut self.disk()) {
            Ok(()) => reply.ok(),
            Err(refused) => reply.error(errno(refused)),
        }
    }
}

fn errno(refused: Refused) -> Errno {
    match refused {
        Refused::Missing => Errno::ENOENT,
        Refused::Exists => Errno::EEXIST,
        Refused::NotFolder => Errno::ENOTDIR,
        Refused::IsFolder => Errno::EISDIR,
        Refused::NotEmpty => Errno::ENOTEMPTY,
        Refused::Full => Errno::ENOSPC,
        Refused::Off => Errno::EIO,
    }
}

fn kind(folder: bool) -> FileType {
    if folder { FileType::Directory } else { FileType::RegularFile }
}

fn attr(facts: Facts) -> FileAttr {
    // File times are not kept. The current time is returned, so that no file looks like an old one left by a crash.
    let now = SystemTime::now();
    FileAttr {
        ino: INodeNo(facts.ino),
        size: facts.len,
        blocks: facts.len.div_ceil(512),
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        kind: kind(facts.folder),
        perm: u16::try_from(facts.mode & 0o7777).unwrap_or(0o600),
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK as u32,
        flags: 0,
    }
}

impl Filesystem for Shell {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        // Less if the kernel asks for less.
        if let Err(most) = config.set_max_write(WRITE_MAX) {
            let _ = config.set_max_write(most);
        }
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.entry(reply, |disk| disk.lookup(parent.0, name));
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.disk().facts(ino.0) {
            Ok(facts) => reply.attr(&NOTHING, &attr(facts)),
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let mut disk = self.disk();
        let sized = size.map_or(Ok(()), |size| disk.truncate(ino.0, size));
        let done = sized.and_then(|()| mode.map_or(Ok(()), |mode| disk.set_mode(ino.0, mode)));
        match done.and_then(|()| disk.facts(ino.0)) {
            Ok(facts) => reply.attr(&NOTHING, &attr(facts)),
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, reply: ReplyEntry) {
        self.entry(reply, |disk| disk.create(parent.0, name, true, mode & !umask));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(reply, |disk| disk.remove(parent.0, name, false));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.empty(reply, |disk| disk.remove(parent.0, name, true));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !(flags - RenameFlags::RENAME_NOREPLACE).is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let keep = flags.contains(RenameFlags::RENAME_NOREPLACE);
        self.empty(reply, |disk| disk.rename((parent.0, name), (newparent.0, newname), keep));
    }

    fn link(&self, _: &Request, ino: INodeNo, newparent: INodeNo, newname: &OsStr, reply: ReplyEntry) {
        self.entry(reply, |disk| disk.link(ino.0, newparent.0, newname).map(|()| ino.0));
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.disk().open(ino.0) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn create(&self, _: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32, _: i32, reply: ReplyCreate) {
        let mut disk = self.disk();
        let made = disk.create(parent.0, name, false, mode & !umask);
        match made.and_then(|ino| disk.open(ino).and_then(|()| disk.facts(ino))) {
            Ok(facts) => {
                let direct = FopenFlags::FOPEN_DIRECT_IO;
                reply.created(&NOTHING, &attr(facts), Generation(0), FileHandle(0), direct);
            }
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        // Sends the answer without holding the lock.
        let read = self.disk().read(ino.0, offset, size.into());
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let sync = flags.0 & (O_SYNC | O_DSYNC) != 0;
        let written = self.disk().write(ino.0, offset, data, sync);
        match written {
            Ok(()) => reply.written(u32::try_from(data.len()).unwrap_or(0)),
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.empty(reply, |disk| {
            let end = offset.saturating_add(length);
            if disk.facts(ino.0)?.len < end { disk.truncate(ino.0, end) } else { Ok(()) }
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.disk().close(ino.0);
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        std::thread::sleep(SYNC_TAKES);
        self.empty(reply, |disk| disk.sync(ino.0));
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        std::thread::sleep(SYNC_TAKES);
        self.empty(reply, |disk| disk.sync_folder(ino.0));
    }

    fn opendir(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let listed = self.disk().list(ino.0);
        match listed {
            Ok(names) => {
                let handle = self.next_listing.fetch_add(1, Ordering::Relaxed);
                self.listings().insert(handle, names);
                reply.opened(FileHandle(handle), FopenFlags::empty());
            }
            Err(refused) => reply.error(errno(refused)),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let skip = usize::try_from(offset).unwrap_or(usize::MAX);
        let listings = self.listings();
        for (at, (name, facts)) in listings.get(&handle.0).into_iter().flatten().enumerate().skip(skip) {
            if reply.add(INodeNo(facts.ino), at as u64 + 1, kind(facts.folder), name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.listings().remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCK as u32, 255, BLOCK as u32);
    }
}
