//! The real disk: O_DIRECT files in one directory. A thread fills new files with zeroes ahead of need; dropped files
//! are recycled.
//!
//! ```text
//!   fill-N  being zero-filled        ready-N  whole and synced, for the next create        journal-N, begin-N  in use
//! ```
//! A rename takes a file into use; a dropped file that nobody reads becomes `ready` again. So all blocks of a file are
//! written before it is used, and a sync has no metadata to commit: one call writes a batch and makes it durable
//! (RWF_DSYNC), where the file system is known to do so.
//!
//! A write by io_uring may outlive its process, which does not wait for it when it ends, and neither does the folder's
//! lock. So whoever opens a file waits for it ([`wait_for_begun`]).

use crate::choice::{Facts, wants_ring};
use crate::config::{JournalIo, OpenError};
use crate::dsync::write_dsync;
use crate::uring::Ring;
use holdfast_journal::{AlignedBuf, BLOCK_BYTES, Disk, DiskFile, Ended};
use holdfast_types::sync::LockExt;
use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate};
use rustix::io::{Errno, retry_on_intr};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

/// Files kept ready ahead of need: one for the journal's next file, and one for the time while another is being made.
const READY_WANTED: usize = 2;
/// So many files in a row may be removed by somebody while they are filled. Then something removes each one, and the
/// journal would wait for a file for ever.
const REMOVED_MAX: u32 = 8;
/// Zeroes written at a time, in bytes.
const FILL_BYTES: usize = 1 << 20;
const LOCK_NAME: &str = "lock";
/// Another user who could open the lock could hold it, and the gateway would not start.
const LOCK_MODE: u32 = 0o600;
/// File systems (`f_type` of statfs(2)) where a write with RWF_DSYNC is a write and an fdatasync of its range: ext2,
/// ext3 and ext4; XFS. Others take the flag too and need not act on it: FUSE with direct I/O only hands it on.
const DSYNC_KEPT: [u64; 2] = [EXT4, 0x5846_5342];
const EXT4: u64 = 0xef53;

#[derive(Default)]
struct Ready {
    names: Vec<String>,
    next_number: u64,
    /// Why the last fill failed; cleared by the next request.
    error: Option<io::Error>,
    /// A caller waits for a file.
    wanted: bool,
    closing: bool,
}

struct Folder {
    dir: PathBuf,
    /// Open as long as the folder is open: making names durable must not depend on a free file descriptor.
    handle: File,
    direct: bool,
    dsync: bool,
    file_bytes: u64,
    ready: Mutex<Ready>,
    changed: Condvar,
}

/// A directory of journal files. Holds the directory's lock while it lives.
pub struct RealDisk {
    folder: Arc<Folder>,
    /// Names in use and whether a handle is open.
    open: Mutex<BTreeMap<String, Weak<()>>>,
    ready_max: usize,
    filler: Option<JoinHandle<()>>,
    /// Takes the writes that are begun, if there are any.
    ring: Option<Arc<Ring>>,
    _lock: File,
}

/// A journal file.
pub struct RealFile {
    file: Arc<File>,
    direct: bool,
    dsync: bool,
    ring: Option<Arc<Ring>>,
    bytes: u64,
    _open: Arc<()>,
}

impl RealDisk {
    /// Opens or creates the directory for files of `file_bytes`; up to `ready_max` dropped files are recycled.
    ///
    /// # Errors
    /// [`OpenError::Locked`] if another process has it; the disk's error.
    pub fn open(dir: &Path, file_bytes: u64, ready_max: usize) -> Result<RealDisk, OpenError> {
        let failed = |source| OpenError::Io { dir: dir.to_path_buf(), source };
        // R1: nobody else syncs the directory's name, and without the name the journal is lost.
        holdfast_folder::make(dir).map_err(failed)?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).write(true).mode(LOCK_MODE);
        let lock_file = options.open(dir.join(LOCK_NAME)).map_err(failed)?;
        // That of an earlier version; another user's file is used as it is.
        let _ = lock_file.set_permissions(Permissions::from_mode(LOCK_MODE));
        match rustix::fs::flock(&lock_file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(OpenError::Locked { dir: dir.to_path_buf() }),
            Err(error) => return Err(failed(error.into())),
        }
        let direct = takes_direct(dir).map_err(failed)?;
        if !direct {
            tracing::warn!(dir = %dir.display(), "journal: the file system refuses O_DIRECT, writing through the page cache");
        }
        let mut ready = Ready::default();
        for name in names(dir).map_err(failed)? {
            if name.starts_with("fill-") {
                std::fs::remove_file(dir.join(&name)).map_err(failed)?;
            } else if let Some(number) = name.strip_prefix("ready-").and_then(|number| number.parse::<u64>().ok()) {
                if std::fs::metadata(dir.join(&name)).map_err(failed)?.len() == file_bytes
                    && ready.names.len() < ready_max
                {
                    ready.names.push(name);
                } else {
                    std::fs::remove_file(dir.join(&name)).map_err(failed)?;
                }
                ready.next_number = ready.next_number.max(number + 1);
            }
        }
        let (ready, changed, handle) = (Mutex::new(ready), Condvar::new(), File::open(dir).map_err(failed)?);
        let dsync = keeps_dsync(&handle) && takes_dsync(dir, direct).map_err(failed)?;
        let folder = Arc::new(Folder { dir: dir.to_path_buf(), handle, direct, dsync, file_bytes, ready, changed });
        let filled = folder.clone();
        let filler = std::thread::Builder::new().name("holdfast-jfill".to_string()).spawn(move || filled.fill_ahead());
        let filler = Some(filler.map_err(failed)?);
        Ok(RealDisk { folder, open: Mutex::default(), ready_max, filler, ring: None, _lock: lock_file })
    }

    /// From now on, files take writes to begin, by the returned ring: if `io` asks for it, and it works here.
    pub(crate) fn use_ring(&mut self, io: JournalIo) -> Option<Arc<Ring>> {
        let ring = self.new_ring(io);
        let dir = self.folder.dir.display();
        match &ring {
            Ok(Some(_)) => tracing::info!(%dir, "journal: written by io_uring"),
            Ok(None) => tracing::info!(%dir, "journal: written by its thread"),
            Err(why) if io == JournalIo::Uring => {
                tracing::warn!(%dir, why, "journal: written by its thread, not by io_uring");
            }
            Err(why) => tracing::info!(%dir, why, "journal: written by its thread, not by io_uring"),
        }
        self.ring = ring.unwrap_or_default();
        self.ring.clone()
    }

    /// A ring if `io` asks for it, tried out in this folder; or why there is none.
    fn new_ring(&self, io: JournalIo) -> Result<Option<Arc<Ring>>, String> {
        let folder = &self.folder;
        let ext4 = file_system(&folder.handle) == Some(EXT4);
        if !wants_ring(io, Facts { direct: folder.direct, dsync: folder.dsync, ext4 })? {
            return Ok(None);
        }
        let refused = |error: io::Error| format!("the system refuses it: {error}");
        let ring = Ring::open().map_err(refused)?;
        // The next start has to be able to wait for what this process has begun.
        let tried = |file: &File, _: &AlignedBuf| ring.try_out(file).and_then(|()| wait_for_begun(file));
        match tried_there(&folder.dir, folder.direct, tried).map_err(refused)? {
            true => Ok(Some(Arc::new(ring))),
            false => Err("the file system refuses it".to_string()),
        }
    }

    /// A handle of `file`, which has the name `name` now.
    fn handle(&self, name: &str, file: File, bytes: u64) -> RealFile {
        let mut open = self.open.locked();
        let token = open.get(name).and_then(Weak::upgrade).unwrap_or_default();
        open.insert(name.to_string(), Arc::downgrade(&token));
        let (direct, dsync, ring) = (self.folder.direct, self.folder.dsync, self.ring.clone());
        RealFile { file: Arc::new(file), direct, dsync, ring, bytes, _open: token }
    }
}

impl Drop for RealDisk {
    fn drop(&mut self) {
        self.folder.ready.locked().closing = true;
        self.folder.changed.notify_all();
        if let Some(filler) = self.filler.take()
            && filler.join().is_err()
        {
            tracing::error!("the journal's filling thread panicked");
        }
    }
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        if let Ok(name) = entry?.file_name().into_string() {
            names.push(name);
        }
    }
    Ok(names)
}

fn open_file(path: &Path, direct: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if direct {
        options.custom_flags(OFlags::DIRECT.bits() as i32);
    }
    options.open(path)
}

/// Whether O_DIRECT works here. Tries a write, because some file systems refuse only the write.
fn takes_direct(dir: &Path) -> io::Result<bool> {
    tried_there(dir, true, |file, block| file.write_all_at(block, 0))
}

/// The file system of `folder`: `f_type` of statfs(2).
fn file_system(folder: &File) -> Option<u64> {
    rustix::fs::fstatfs(folder).ok().map(|system| system.f_type as u64)
}

/// Whether the file system of `folder` is one of [`DSYNC_KEPT`].
fn keeps_dsync(folder: &File) -> bool {
    file_system(folder).is_some_and(|system| DSYNC_KEPT.contains(&system))
}

/// Whether the kernel takes RWF_DSYNC here. Asked once, at the start: from then on an error of such a write is one of
/// the sync, and final (JOURNAL-J2).
fn takes_dsync(dir: &Path, direct: bool) -> io::Result<bool> {
    let taken = tried_there(dir, direct, |file, block| write_dsync(file, block, 0))?;
    if !taken {
        tracing::info!(dir = %dir.display(), "journal: no RWF_DSYNC here, each write is followed by an fdatasync");
    }
    Ok(taken)
}

/// Whether `write` of one block works in a new file of `dir`.
fn tried_there(dir: &Path, direct: bool, write: impl FnOnce(&File, &AlignedBuf) -> io::Result<()>) -> io::Result<bool> {
    let path = dir.join("fill-probe");
    drop(File::create(&path)?);
    let block = AlignedBuf::zeroed(BLOCK_BYTES);
    let tried = open_file(&path, direct).and_then(|file| write(&file, &block));
    std::fs::remove_file(&path)?;
    is_taken(tried)
}

/// Whether writes of a kind work, by the result of one. Only a refusal means no. A full disk has accepted the request
/// and only lacks space now; that must not send all writes another way for the life of the process. Any other error
/// fails the start.
fn is_taken(tried: io::Result<()>) -> io::Result<bool> {
    let Err(error) = tried else { return Ok(true) };
    let refused = [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSYS].map(|errno| Some(errno.raw_os_error()));
    match error.kind() {
        _ if refused.contains(&error.raw_os_error()) => Ok(false),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Ok(true),
        _ => Err(error),
    }
}

/// Waits until the writes with O_DIRECT that the kernel has of `file` have ended, whoever has begun them.
///
/// A process that is killed may leave one to the kernel, if io_uring had it. Else it could end after the next process
/// has read the file: that one has cut the batch by then, the start after it would find it again in front of newer
/// ones, and the place could belong to another file (JOURNAL-J4).
///
/// No call does only that. ext4 and XFS wait for such writes before they allocate blocks of a file, also if it has
/// them already, as these: then nothing changes but the time of the last change.
fn wait_for_begun(file: &File) -> io::Result<()> {
    Ok(retry_on_intr(|| fallocate(file, FallocateFlags::KEEP_SIZE, 0, BLOCK_BYTES as u64))?)
}

impl Folder {
    /// The filling thread: keeps [`READY_WANTED`] files ready.
    fn fill_ahead(&self) {
        let mut removed = 0;
        loop {
            let number = {
                let mut ready = self.ready.locked();
                // After an error only on demand, so that a full disk does not get repeated requests.
                while !ready.closing && !ready.wanted && (ready.names.len() >= READY_WANTED || ready.error.is_some()) {
                    ready = self.changed.wait(ready).unwrap_or_else(PoisonError::into_inner);
                }
                if ready.closing {
                    return;
                }
                ready.error = None;
                ready.next_number += 1;
                ready.next_number - 1
            };
            let filled = self.fill(number);
            let mut ready = self.ready.locked();
            match filled {
                Ok(Some(name)) => ready.names.push(name),
                Ok(None) if removed < REMOVED_MAX => {
                    removed += 1;
                    tracing::warn!(number, "journal: a file was removed while it was filled, making another one");
                    continue;
                }
                Ok(None) => ready.error = Some(self.all_removed(number)),
                Err(error) => ready.error = Some(error),
            }
            (ready.wanted, removed) = (false, 0);
            drop(ready);
            self.changed.notify_all();
        }
    }

    /// The name of a new file that is ready; see [`Folder::named`].
    fn fill(&self, number: u64) -> io::Result<Option<String>> {
        let (path, name) = (self.dir.join(format!("fill-{number}")), format!("ready-{number}"));
        // If the folder is gone, this fails.
        drop(File::create_new(&path)?);
        let filled = self.fill_file(&path);
        self.named(&path, name, filled)
    }

    /// Names a file ready once it was filled. `None`: somebody has removed it meanwhile, to free space. There was
    /// nothing in it, and that says nothing of the disk (LOG-L2).
    fn named(&self, path: &Path, name: String, filled: io::Result<()>) -> io::Result<Option<String>> {
        let Err(error) = filled.and_then(|()| std::fs::rename(path, self.dir.join(&name))) else {
            return Ok(Some(name));
        };
        if error.kind() == io::ErrorKind::NotFound && !path.try_exists().unwrap_or(true) {
            return Ok(None);
        }
        // The incomplete file would only take space; it does no harm if it cannot be removed.
        let _ = std::fs::remove_file(path);
        Err(error)
    }

    fn all_removed(&self, number: u64) -> io::Error {
        let (dir, last) = (self.dir.display(), format!("fill-{number}"));
        let what = format!("{last} and those before it were removed from {dir} while they were filled");
        io::Error::new(io::ErrorKind::NotFound, format!("{what}: stop what removes files there, then restart"))
    }

    fn fill_file(&self, path: &Path) -> io::Result<()> {
        let file = open_file(path, self.direct)?;
        match fallocate(&file, FallocateFlags::empty(), 0, self.file_bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
        // Allocated blocks are not enough: the first write to such a block would convert it, and fdatasync would have
        // to commit that.
        let zeroes = AlignedBuf::zeroed(FILL_BYTES);
        let mut at = 0;
        while at < self.file_bytes {
            let len = (self.file_bytes - at).min(FILL_BYTES as u64);
            file.write_all_at(&zeroes[..len as usize], at)?;
            at += len;
            if self.ready.locked().closing {
                return Err(io::Error::from(io::ErrorKind::Interrupted));
            }
        }
        file.sync_all()
    }

    /// The name of a ready file; waits for the filling thread if there is none.
    fn take_ready(&self) -> io::Result<String> {
        let mut ready = self.ready.locked();
        ready.error = None;
        loop {
            if let Some(name) = ready.names.pop() {
                self.changed.notify_all();
                return Ok(name);
            }
            if let Some(error) = ready.error.take() {
                return Err(error);
            }
            ready.wanted = true;
            self.changed.notify_all();
            ready = self.changed.wait(ready).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Opens a ready file, then renames it. In this order, after a failure (usually no file descriptor) the file is
    /// still ready and the name is still free.
    fn begin(&self, ready: &str, path: &Path) -> io::Result<(File, u64)> {
        let from = self.dir.join(ready);
        let file = open_file(&from, self.direct)?;
        let bytes = file.metadata()?.len();
        std::fs::rename(from, path)?;
        Ok((file, bytes))
    }
}

impl Disk for RealDisk {
    type File = RealFile;

    fn list(&self) -> io::Result<Vec<String>> {
        let ours = |name: &String| name != LOCK_NAME && !name.starts_with("fill-") && !name.starts_with("ready-");
        Ok(names(&self.folder.dir)?.into_iter().filter(ours).collect())
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<RealFile> {
        if bytes != self.folder.file_bytes {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let path = self.folder.dir.join(name);
        // The rename below would replace it.
        if path.try_exists()? {
            return Err(io::Error::from(io::ErrorKind::AlreadyExists));
        }
        loop {
            let ready = self.folder.take_ready()?;
            let begun = self.folder.begin(&ready, &path);
            // Somebody may have removed it to free space. That says nothing of the disk.
            let gone = begun.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
                && !self.folder.dir.join(&ready).try_exists().unwrap_or(true);
            match begun {
                Ok((file, bytes)) => return Ok(self.handle(name, file, bytes)),
                Err(_) if gone => tracing::warn!(ready, "journal: a file that was ready is gone, taking another one"),
                Err(error) => {
                    self.folder.ready.locked().names.push(ready);
                    return Err(error);
                }
            }
        }
    }

    fn open(&self, name: &str) -> io::Result<RealFile> {
        let file = open_file(&self.folder.dir.join(name), self.folder.direct)?;
        // Nowhere else are writes begun. A full disk has waited first.
        if self.folder.dsync {
            is_taken(wait_for_begun(&file))?;
        }
        let bytes = file.metadata()?.len();
        Ok(self.handle(name, file, bytes))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let read = self.open.locked().remove(name).is_some_and(|token| token.strong_count() > 0);
        let path = self.folder.dir.join(name);
        let whole = std::fs::metadata(&path)?.len() == self.folder.file_bytes;
        let mut ready = self.folder.ready.locked();
        if read || !whole || ready.names.len() >= self.ready_max {
            drop(ready);
            return std::fs::remove_file(path);
        }
        let recycled = format!("ready-{}", ready.next_number);
        ready.next_number += 1;
        drop(ready);
        std::fs::rename(path, self.folder.dir.join(&recycled))?;
        self.folder.ready.locked().names.push(recycled);
        self.folder.changed.notify_all();
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.folder.dir.join(from), self.folder.dir.join(to))?;
        let mut open = self.open.locked();
        if let Some(token) = open.remove(from) {
            open.insert(to.to_string(), token);
        }
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.folder.handle.sync_all()
    }

    fn ended(&self, wait: bool) -> Option<Ended> {
        self.ring.as_ref()?.ended(wait)
    }
}

impl DiskFile for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let block = BLOCK_BYTES as u64;
        let aligned = offset.is_multiple_of(block)
            && buf.len().is_multiple_of(BLOCK_BYTES)
            && buf.as_ptr().align_offset(BLOCK_BYTES) == 0;
        if !self.direct || aligned {
            return self.file.read_exact_at(buf, offset);
        }
        let from = offset / block * block;
        let mut around = AlignedBuf::zeroed((offset + buf.len() as u64 - from).next_multiple_of(block) as usize);
        self.file.read_exact_at(&mut around, from)?;
        let skip = (offset - from) as usize;
        buf.copy_from_slice(&around[skip..skip + buf.len()]);
        Ok(())
    }

    fn write_at(&self, data: &AlignedBuf, offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn write_synced_at(&self, data: &AlignedBuf, offset: u64) -> io::Result<()> {
        if self.dsync {
            return write_dsync(&self.file, data, offset);
        }
        self.write_at(data, offset)?;
        self.sync_data()
    }

    fn begin_synced_at(&self, data: AlignedBuf, offset: u64) -> Result<(), AlignedBuf> {
        let Some(ring) = &self.ring else { return Err(data) };
        ring.begin(&self.file, data, offset);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
