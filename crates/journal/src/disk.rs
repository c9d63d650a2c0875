//! The disk as the journal sees it: the contract of the real one (crate `log`) and the simulated one.

use crate::AlignedBuf;
use std::io;

/// A folder of fixed-size files.
///
/// Names change durably only with [`Disk::sync_dir`]; contents only with [`DiskFile::sync_data`].
pub trait Disk {
    /// An open file.
    type File: DiskFile + 'static;

    /// Names of all files in the folder, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes a file of exactly `bytes` bytes, all of them allocated and written once, so that a later `sync_data` has
    /// no metadata to commit. The contents are zeroes, or those of a file that was removed earlier: the journal relies
    /// on neither. MUST fail when the name exists. A failure (disk full, no file descriptor) leaves nothing behind and
    /// may be retried.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Opens an existing file.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Removes a name. The file MUST stay readable through handles that are open; its room may serve a later `create`
    /// only when no handle is left.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Renames; open handles follow the file.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes all names durable as they are now. An error is final (JOURNAL-J2), so it MUST NOT have a transient cause, such as
    /// no free file descriptor.
    fn sync_dir(&self) -> io::Result<()>;
}

/// One open file of a [`Disk`].
pub trait DiskFile: Send + Sync {
    /// Fills `buf` from `offset`. An error when the file ends before. Best with block-aligned buffer, length and
    /// offset.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes whole blocks at a block boundary. May be torn by a crash before the next `sync_data`, in any way.
    fn write_at(&self, data: &AlignedBuf, offset: u64) -> io::Result<()>;

    /// Makes everything written so far durable. After an error the caller MUST NOT trust any later success of this
    /// file.
    fn sync_data(&self) -> io::Result<()>;

    /// Size in bytes.
    fn bytes(&self) -> u64;
}
