//! The ring's file: what is read at once, and what waits for a disk.

use rustix::fs::{Advice, FallocateFlags};
use rustix::io::{Errno, ReadWriteFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Only this user reads the file (R10): it is sealed, but tells which objects were read here.
const FILE_MODE: u32 = 0o600;

/// Pieces that the kernel takes in one call (IOV_MAX).
const PIECES_MAX: usize = 1024;

/// See the module.
#[derive(Debug)]
pub(crate) struct RingFile {
    reads: File,
    writes: File,
    /// The file system cannot say whether a read would wait.
    mute: AtomicBool,
}

impl RingFile {
    /// Opens or creates the file with this length.
    pub(crate) fn open(path: &Path, bytes: u64) -> io::Result<Self> {
        let writes = OpenOptions::new().create(true).truncate(false).write(true).mode(FILE_MODE).open(path)?;
        if writes.metadata()?.len() != bytes {
            writes.set_len(bytes)?;
        }
        Ok(Self::over(File::open(path)?, writes))
    }

    /// The file, opened twice: advice to the kernel holds for one opening.
    pub(crate) fn over(reads: File, writes: File) -> Self {
        // Records lie in the order in which they came: what is behind one is rarely read next. Only advice.
        let _ = rustix::fs::fadvise(&reads, 0, None, Advice::Random);
        Self { reads, writes, mute: AtomicBool::new(false) }
    }

    /// Reads, if that needs no disk. `None`: it may need one, or it fails; [`RingFile::read`] tells.
    pub(crate) fn read_now(&self, from: u64, bytes: usize) -> Option<Vec<u8>> {
        if self.mute.load(Relaxed) {
            return None;
        }
        let mut record = vec![0; bytes];
        let read = rustix::io::preadv2(&self.reads, &mut [IoSliceMut::new(&mut record)], from, ReadWriteFlags::NOWAIT);
        match read {
            Ok(read) if read == bytes => Some(record),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.mute.store(true, Relaxed);
                None
            }
            // Errno::AGAIN, or a part, is the usual case.
            _ => None,
        }
    }

    /// Whether the file system cannot say that a read would wait, as far as known.
    #[cfg(test)]
    pub(crate) fn is_mute(&self) -> bool {
        self.mute.load(Relaxed)
    }

    /// Reads, and waits for the disk.
    pub(crate) fn read(&self, from: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut record = vec![0; bytes];
        self.reads.read_exact_at(&mut record, from)?;
        Ok(record)
    }

    /// Writes the pieces, one behind the other, and may wait for the disk. None of them is empty.
    pub(crate) fn write(&self, mut pieces: &mut [IoSlice<'_>], mut from: u64) -> io::Result<()> {
        while !pieces.is_empty() {
            let some = pieces.len().min(PIECES_MAX);
            match rustix::io::pwritev(&self.writes, &pieces[..some], from) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    IoSlice::advance_slices(&mut pieces, written);
                    from += written as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes space for a range, so that a full disk is found here. Without it the kernel may find that after the write.
    pub(crate) fn reserve(&self, from: u64, bytes: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.writes, FallocateFlags::empty(), from, bytes) {
            Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => Err(error.into()),
            // Not every file system can; the write fails if there is no space.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Waits until all that was written is on the disk.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.writes.sync_data()
    }

    /// Gives the space back, as far as possible.
    pub(crate) fn give_back(&self) {
        let _ = self.writes.set_len(0);
    }
}
