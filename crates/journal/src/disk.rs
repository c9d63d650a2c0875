//! Interface to the disk: the contract of the real one (crate `log`) and the simulated one.

use crate::AlignedBuf;
use std::io;

/// A folder of fixed-size files.
///
/// Names change durably only with [`Disk::sync_dir`]; contents only with [`DiskFile::sync_data`] and
/// [`DiskFile::write_synced_at`].
pub trait Disk {
    /// An open file.
    type File: DiskFile + 'static;

    /// Names of all files in the folder, in no particular order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates a file of `bytes` bytes, all allocated and written once, so that a later `sync_data` commits no
    /// metadata. The contents are zeroes, or those of a removed file; the journal relies on neither. MUST fail when the
    /// name exists. A failure leaves nothing behind. It is retried if it passes (disk full, no file descriptor, no
    /// memory, interrupted); any other one is final (JOURNAL-J2).
    fn create(&self, name: &str, bytes: u64) -> io::Result<Self::File>;

    /// Opens an existing file, once no write to it is under way any more: one that was begun
    /// ([`DiskFile::begin_synced_at`]) may outlive its process, and would change what is read.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Removes a name. The file MUST stay readable through open handles; a later `create` may reuse its space only when
    /// no handle is left.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Renames; open handles follow the file.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Makes all present names durable. An error is final (JOURNAL-J2), so it MUST NOT have a transient cause, such as
    /// a lack of file descriptors.
    fn sync_dir(&self) -> io::Result<()>;

    /// The end of the write that [`DiskFile::begin_synced_at`] began; told once. `None` while the write is under way,
    /// and if there is none. `wait`: waits until it has ended.
    fn ended(&self, wait: bool) -> Option<Ended> {
        let _ = wait;
        None
    }
}

/// The buffer of a write that was begun, and its result: that of a [`DiskFile::write_synced_at`].
pub type Ended = (AlignedBuf, io::Result<()>);

/// One open file of a [`Disk`].
pub trait DiskFile: Send + Sync {
    /// Fills `buf` from `offset`. Fails if the file ends before. Fastest with block-aligned buffer, length and offset.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes whole blocks at a block boundary. A crash before the next `sync_data` may tear it in any way.
    fn write_at(&self, data: &AlignedBuf, offset: u64) -> io::Result<()>;

    /// Like [`DiskFile::write_at`], and makes these blocks durable: only these, whatever else was written before. After
    /// an error the caller MUST NOT trust any later success for this file.
    fn write_synced_at(&self, data: &AlignedBuf, offset: u64) -> io::Result<()> {
        self.write_at(data, offset)?;
        self.sync_data()
    }

    /// Begins a [`DiskFile::write_synced_at`] and returns: no thread waits for it. The disk keeps the buffer until
    /// [`Disk::ended`] returns it. At most one such write at a time on a disk, and no other write to the file
    /// meanwhile.
    ///
    /// # Errors
    /// The buffer: this disk cannot do that, and has done nothing. It will not be able to later, either.
    fn begin_synced_at(&self, data: AlignedBuf, offset: u64) -> Result<(), AlignedBuf> {
        let _ = offset;
        Err(data)
    }

    /// Makes all writes so far durable. After an error the caller MUST NOT trust any later success for this file.
    fn sync_data(&self) -> io::Result<()>;

    /// Size in bytes.
    fn bytes(&self) -> u64;
}
