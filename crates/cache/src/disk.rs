//! The disk tier: sealed bytes in a ring. Every error here counts as a miss.
//!
//! ```text
//!   DIR/lock        held (flock) while the tier is open, and before anything else here is touched
//!   DIR/layout      sizes that the ring was made for; other sizes, or none: it is dropped
//!   DIR/ring        the ring
//! ```

use super::admission::{Admission, Demand};
use crate::key::BlockKey;
use crate::ring::{Found, QUEUE_BYTES, ReadFault, Ring, Shape, room};
use crate::several::Wanted;
use bytes::Bytes;
use holdfast_types::sync::LockExt;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Memory in bytes that the disk tier takes in addition to the cache's own: what waits to be written, and what is made
/// for a write. Data that arrives faster than the disk takes it is dropped. The index is not counted.
pub const DISK_BUFFER_BYTES: usize = QUEUE_BYTES + (1 << 20);

/// Data that was made here goes to disk in pieces of this size, one after the other. The queue has room for one piece
/// in addition to the data of reads.
const KEEP_BYTES: usize = 2 << 20;

/// How long the disk may take for data that was made here. Meanwhile the data stays in memory, and a checkpoint waits.
/// Tests wait longer, here and below, so that their results do not depend on the machine.
const KEEP_TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 2 });

/// How long the end of a process waits for the disk.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 5 });

/// If the disk takes longer, the store is asked instead: it is not much slower.
const LOAD_TIME_MAX: Duration = Duration::from_millis(if cfg!(test) { 600_000 } else { 500 });

/// Another user who could open the lock could hold it.
const LOCK_MODE: u32 = 0o600;

/// A folder that no other process uses for its tier (CACHE-C8).
#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    shape: Shape,
    lock: File,
}

impl Place {
    /// Takes the folder for at most `bytes` of files. Returns `None`, with a warning, if no tier can be there.
    ///
    /// # Errors
    /// The folder: another process has it. Only its lock was touched.
    pub(super) fn take(dir: PathBuf, bytes: u64) -> Result<Option<Self>, PathBuf> {
        let Some(shape) = Shape::of(bytes) else {
            tracing::warn!(bytes, expected = Shape::bytes_min(), "cache disk: too small; continuing without it");
            return Ok(None);
        };
        match lock(&dir) {
            Ok(Some(lock)) => Ok(Some(Self { dir, shape, lock })),
            Ok(None) => Err(dir),
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "cache disk: continuing without it");
                Ok(None)
            }
        }
    }
}

/// The lock of a folder, which is created if it is missing; `None` if another process holds it.
fn lock(dir: &Path) -> io::Result<Option<File>> {
    std::fs::create_dir_all(dir)?;
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true).mode(LOCK_MODE);
    let file = options.open(dir.join("lock"))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Disk {
    ring: Arc<Ring>,
    admission: Mutex<Admission>,
    errors: AtomicU64,
    /// Held by the caller whose pieces are being written ([`KEEP_BYTES`]).
    turn: tokio::sync::Mutex<()>,
    /// `None` over files of a test.
    _lock: Option<File>,
}

/// What `DIR/layout` says.
fn text(shape: Shape) -> String {
    format!("holdfast read cache, version 3: {} bytes in regions of {}\n", shape.bytes(), shape.region_bytes)
}

impl Disk {
    /// Opens the tier in a folder of this process. Returns `None`, with a warning, if that fails.
    pub(super) async fn open(place: Place) -> Option<Self> {
        let Place { dir, shape, lock } = place;
        let mut opened = Self::try_open(&dir, shape, false).await;
        if let Err(error) = &opened {
            tracing::warn!(dir = %dir.display(), %error, "cache disk: cannot be opened; dropping its files");
            opened = Self::try_open(&dir, shape, true).await;
        }
        opened
            .inspect_err(|error| tracing::warn!(dir = %dir.display(), %error, "cache disk: continuing without it"))
            .map(|disk| Self { _lock: Some(lock), ..disk })
            .ok()
    }

    async fn try_open(dir: &Path, shape: Shape, anew: bool) -> io::Result<Self> {
        let place = dir.to_owned();
        // On a thread of its own: large files take long to remove, and groups run here meanwhile. At the end of a
        // process it does not begin any more, and the files stay.
        let preparing = move || prepare(&place, shape, anew);
        tokio::task::spawn_blocking(preparing).await.map_err(io::Error::other)??;
        Ok(Self::on(Ring::open(dir.join("ring"), shape).await?))
    }

    /// The tier on this ring.
    pub(super) fn on(ring: Arc<Ring>) -> Self {
        let admission = Mutex::new(Admission::new(ring.bytes()));
        Self { ring, admission, errors: AtomicU64::new(0), turn: tokio::sync::Mutex::default(), _lock: None }
    }

    /// The sealed bytes, if they are here and arrive in time.
    pub(super) async fn load(&self, key: &BlockKey) -> Option<Found> {
        match self.ring.read(key, LOAD_TIME_MAX).await {
            Ok(found) => return found,
            Err(ReadFault::Failed(error)) => tracing::debug!(%error, "cache disk: read failed"),
            Err(ReadFault::Late) => self.admit(Admission::behind),
        }
        self.errors.fetch_add(1, Relaxed);
        None
    }

    fn admit<T>(&self, decide: impl FnOnce(&mut Admission) -> T) -> T {
        decide(&mut self.admission.locked())
    }

    /// Stores fetched sealed bytes if admission allows, and returns whether it does. If the disk is too slow, they are
    /// dropped.
    pub(super) fn fetched(&self, key: BlockKey, sealed: Bytes, demand: Demand) -> bool {
        let goes_in = self.admit(|admission| admission.fetched(&key, room(sealed.len()), demand));
        if goes_in {
            self.hand_over(key, sealed);
        }
        goes_in
    }

    /// As [`Disk::fetched`], for the entries of what was fetched as a whole: either all that are missing are stored, or
    /// none. Returns their bytes too.
    pub(super) fn fetched_apart(
        &self,
        wanted: &Wanted<'_>,
        mut entries: Vec<(BlockKey, [Bytes; 2])>,
        demand: Demand,
    ) -> (bool, u64) {
        let several = entries.len() > 1;
        let len_of = |sealed: &[Bytes; 2]| sealed.iter().map(Bytes::len).sum::<usize>();
        // The wanted entry is missing even if the disk has it: it could not be read, or not in time.
        entries.retain(|(key, _)| *key == wanted.entry || !self.has(key));
        let bytes: u64 = entries.iter().map(|(_, sealed)| len_of(sealed) as u64).sum();
        if entries.is_empty() {
            return (false, bytes);
        }
        let taken: u64 = entries.iter().map(|(_, sealed)| room(len_of(sealed))).sum();
        let goes_in = self.admit(|admission| admission.fetched(&wanted.whole, taken, demand));
        if goes_in {
            for (key, [head, rest]) in entries {
                // As a slice, the last of them would keep all that was fetched in memory.
                let copied = several || !head.is_empty();
                self.hand_over(key, if copied { [&head[..], &rest[..]].concat().into() } else { rest });
            }
        }
        (goes_in, bytes)
    }

    /// Data that was read from here has opened. Writes it again if it should stay longer, and returns whether it does.
    pub(super) fn keep_longer(&self, key: BlockKey, found: Found, demand: Demand) -> bool {
        let again = self.admit(|admission| admission.found(room(found.sealed.len()), found.older, demand));
        if again {
            self.hand_over(key, found.sealed);
        }
        again
    }

    fn hand_over(&self, key: BlockKey, sealed: Bytes) {
        // A slice of a larger buffer would keep all of it in memory while it waits to be written.
        let sealed = if sealed.is_unique() { sealed } else { Bytes::copy_from_slice(&sealed) };
        self.ring.put(key, sealed);
    }

    /// Stores all the pieces, at the disk's pace, and returns how many bytes. Pieces that are not written after
    /// [`KEEP_TIME_MAX`] are dropped. Otherwise none is in use here any more on return: the memory that they are slices
    /// of may be used again.
    pub(super) async fn keep(&self, pieces: impl IntoIterator<Item = (BlockKey, Bytes)>) -> u64 {
        let mut kept = 0;
        let mut pieces = pieces.into_iter().peekable();
        let whole = async {
            while pieces.peek().is_some() {
                let _turn = self.turn.lock().await;
                // Also for what an earlier caller has left, if the disk was too slow for it.
                self.ring.settled().await;
                let mut taken = 0;
                while let Some((key, sealed)) = pieces.next_if(|_| taken < KEEP_BYTES) {
                    let bytes = room(sealed.len());
                    taken += bytes as usize;
                    kept += sealed.len() as u64;
                    self.admit(|admission| admission.came_in(bytes));
                    // Not copied: parts of an object share its memory. If the time is over first, one such piece at
                    // most is left in the queue, and with it one object stays in memory until it is written.
                    self.ring.put(key, sealed);
                }
            }
            if kept > 0 {
                self.ring.settled().await;
            }
        };
        if tokio::time::timeout(KEEP_TIME_MAX, whole).await.is_err() {
            tracing::debug!("cache disk: too slow; some uploaded data is not kept");
        }
        kept
    }

    /// Whether the key's bytes are probably here.
    pub(super) fn has(&self, key: &BlockKey) -> bool {
        self.ring.has(key)
    }

    /// Drops the bytes.
    pub(super) fn forget(&self, key: &BlockKey) {
        self.ring.forget(key);
    }

    /// Reads that failed or took too long.
    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    /// Whether the disk works. Once it does not, it is out of use until the next start.
    pub(super) fn is_on(&self) -> bool {
        self.ring.is_on()
    }

    pub(super) async fn close(&self) {
        let whole = async {
            self.ring.settled().await;
            self.ring.save().await;
        };
        if tokio::time::timeout(CLOSE_TIME_MAX, whole).await.is_err() {
            tracing::debug!("cache disk: too slow; what came in last is lost");
        }
    }

    /// Waits until everything stored so far is on disk.
    #[cfg(test)]
    pub(super) async fn settle(&self) {
        self.ring.settled().await;
    }
}

/// Drops the cache's files below `dir` if they have other sizes; `anew`: in any case.
fn prepare(dir: &Path, shape: Shape, anew: bool) -> io::Result<()> {
    let note = dir.join("layout");
    if anew || std::fs::read_to_string(&note).ok() != Some(text(shape)) {
        drop_files(dir)?;
        std::fs::create_dir_all(dir)?;
        std::fs::write(&note, text(shape))?;
    }
    Ok(())
}

/// Removes the cache's files below `dir`, also those of earlier versions (`blocks`).
fn drop_files(dir: &Path) -> io::Result<()> {
    for gone in [
        std::fs::remove_file(dir.join("layout")),
        std::fs::remove_file(dir.join("ring")),
        std::fs::remove_dir_all(dir.join("blocks")),
    ] {
        match gone {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
