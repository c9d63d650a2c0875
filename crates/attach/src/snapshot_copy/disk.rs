//! One volume of a snapshot copy: the snapshot, and over it the local writes.
//!
//! SCRATCH-W3  The scratch file has no name: when the process ends in any way, the host's file system frees it.
//! SCRATCH-W4  Only reads of a snapshot are sent to a gateway.

use super::base::Base;
use super::overlay::{BLOCK_BYTES, Full, Overlay, Place, Room, Run};
use crate::machine::Reply;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use holdfast_nbd::server::{Command, ExportFacts, ReadPart};
use holdfast_nbd::{Errno, ExportName, Extent};
use holdfast_types::Name;
use holdfast_types::sync::LockExt;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open};
use rustix::io::Errno as Reason;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Semaphore;

/// Maximum number of parts of one read that are fetched at the same time.
const PARTS_AT_ONCE: usize = 16;
/// Limit for the bytes of one volume's unanswered requests, in units of [`UNIT_BYTES`].
const UNITS: u32 = 1024;
/// See [`UNITS`]: 64 MiB in all, so that two of the longest requests fit.
const UNIT_BYTES: u64 = 64 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Disk {
    /// Its name for users.
    pub(crate) export: ExportName,
    pub(crate) size: u64,
    overlay: Mutex<Overlay>,
    scratch: Arc<File>,
    base: Base,
    room: Arc<Semaphore>,
    full: AtomicBool,
}

/// An empty file without a name in `dir`, as long as the volume. Others may write in `dir` as well (/var/tmp), so no
/// existing file is opened, and nobody else may read the new one.
fn nameless(dir: &Path, volume: &Name, size: u64) -> io::Result<File> {
    // EXCL: it cannot get a name later.
    let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let file = match open(dir, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => File::from(file),
        // The file system does not support this. A kernel that does not either takes the flag for that of a directory.
        Err(Reason::OPNOTSUPP | Reason::ISDIR | Reason::INVAL) => named(dir, volume)?,
        Err(error) => return Err(error.into()),
    };
    file.set_len(size)?;
    Ok(file)
}

/// Like `nameless`, but with a name for a moment. `create_new` follows no link.
fn named(dir: &Path, volume: &Name) -> io::Result<File> {
    let path = dir.join(format!("{volume}.{:032x}.scratch", rand::random::<u128>()));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

impl Disk {
    /// The scratch file is in `dir`, and may hold `max` bytes.
    pub(crate) fn new(export: ExportName, base: Base, size: u64, dir: &Path, max: u64) -> io::Result<Self> {
        Ok(Self {
            scratch: Arc::new(nameless(dir, &export.volume, size)?),
            overlay: Mutex::new(Overlay::new(max)),
            export,
            size,
            base,
            room: Arc::new(Semaphore::new(UNITS as usize)),
            full: AtomicBool::new(false),
        })
    }

    fn overlay(&self) -> MutexGuard<'_, Overlay> {
        self.overlay.locked()
    }

    /// Waits until there is room for a request of so many bytes. The room is free again when the permit is dropped.
    pub(crate) async fn room(&self, bytes: u64) -> tokio::sync::OwnedSemaphorePermit {
        let units = bytes.div_ceil(UNIT_BYTES).clamp(1, UNITS.into()) as u32;
        let room = self.room.clone().acquire_many_owned(units).await;
        room.unwrap_or_else(|_| unreachable!("the semaphore is never closed"))
    }

    pub(crate) fn facts(&self) -> ExportFacts {
        ExportFacts { size: self.size, read_only: false, description: "snapshot copy of a snapshot".to_string() }
    }

    /// Bytes that the scratch file holds.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.overlay().held_bytes()
    }

    /// Connects to a gateway.
    pub(crate) async fn reach(&self) -> Result<(), String> {
        self.base.reach().await
    }

    /// Carries out a request that was checked.
    pub(crate) async fn carry_out(&self, offset: u64, len: u64, command: Command) -> Result<Reply, Errno> {
        match command {
            Command::Read { .. } => self.read(offset, len).await.map(Reply::Read),
            Command::Write { data, .. } => self.write(offset, data).await.map(|()| Reply::Done),
            // Always fast, so `fast` makes no difference.
            Command::Zero { .. } | Command::Trim { .. } => {
                self.zero(offset, len).await;
                Ok(Reply::Done)
            }
            // Nothing here outlives the process, so nothing must be made durable.
            Command::Flush | Command::Cache => Ok(Reply::Done),
            Command::BlockStatus { .. } => Ok(Reply::Status(vec![Extent { len, hole: false }])),
            Command::Disconnect => Ok(Reply::Done),
            Command::Bad(errno) => Err(errno),
        }
    }

    async fn read(&self, offset: u64, len: u64) -> Result<Vec<ReadPart>, Errno> {
        let runs = self.overlay().runs(offset, len);
        let parts = futures_util::stream::iter(runs.into_iter().map(|run| self.read_run(run)));
        let parts: Vec<Vec<ReadPart>> = parts.buffered(PARTS_AT_ONCE).try_collect().await?;
        Ok(parts.into_iter().flatten().collect())
    }

    async fn read_run(&self, run: Run) -> Result<Vec<ReadPart>, Errno> {
        // The request was checked, so a read is never longer.
        let len = u32::try_from(run.len).map_err(|_| Errno::Overflow)?;
        match run.from {
            Place::Snapshot => self.base.read(run.offset, len).await,
            Place::Zeroes => Ok(vec![ReadPart::Zeroes(len)]),
            Place::Scratch => {
                let file = self.scratch.clone();
                let reading = tokio::task::spawn_blocking(move || {
                    let mut bytes = vec![0; len as usize];
                    file.read_exact_at(&mut bytes, run.offset).map(|()| bytes)
                });
                let bytes = self.done(reading.await)?;
                Ok(vec![ReadPart::Data(Bytes::from(bytes))])
            }
        }
    }

    async fn write(&self, offset: u64, data: Bytes) -> Result<(), Errno> {
        let len = data.len() as u64;
        let asked = self.overlay().ask(offset, len);
        let room: Room = asked.map_err(|full| self.say_full(full))?;
        let file = self.scratch.clone();
        let written = tokio::task::spawn_blocking(move || file.write_all_at(&data, offset)).await;
        let done = self.done(written);
        let mut overlay = self.overlay();
        match done {
            Ok(()) => overlay.wrote(offset, len, room),
            Err(_) => overlay.gave_up(room),
        }
        done
    }

    fn say_full(&self, full: Full) -> Errno {
        if !self.full.swap(true, Ordering::Relaxed) {
            let Full { held, max } = full;
            tracing::error!(
                volume = %self.export.volume, held, max,
                "the scratch file is full: writes fail; make a new copy, with a larger --scratch-max"
            );
        }
        Errno::NoSpace
    }

    fn done<T>(&self, outcome: Result<io::Result<T>, tokio::task::JoinError>) -> Result<T, Errno> {
        let outcome = outcome.unwrap_or_else(|error| Err(io::Error::other(error)));
        outcome.map_err(|error| {
            tracing::error!(volume = %self.export.volume, %error, "the scratch file");
            if error.kind() == io::ErrorKind::StorageFull { Errno::NoSpace } else { Errno::Io }
        })
    }

    async fn zero(&self, offset: u64, len: u64) {
        self.overlay().zero(offset, len);
        // Whole blocks only: in a block that is covered in part, another write may be on its way.
        let (first, end) = (offset.next_multiple_of(BLOCK_BYTES), (offset + len) / BLOCK_BYTES * BLOCK_BYTES);
        if end > first {
            let file = self.scratch.clone();
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let punched = tokio::task::spawn_blocking(move || fallocate(&*file, punch, first, end - first)).await;
            if let Ok(Err(error)) = punched {
                // Only space is not freed: nothing is read there any more.
                tracing::debug!(%error, "the scratch file keeps what was zeroed");
            }
        }
    }
}

#[cfg(test)]
#[path = "disk_tests.rs"]
mod tests;
