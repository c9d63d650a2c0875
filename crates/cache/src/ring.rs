//! Sealed bytes in a file, one region after the other, round and round: the shell around [`State`].
//!
//! ```text
//!   put ─▶ queue ─▶ a writer on a blocking thread, while there is something to write
//!            │         └▶ records behind one another; now and then the region's table, and a sync
//!   read ◀───┴── index ─▶ page cache, on the caller's thread
//!                            └ not there: a blocking thread, a bounded number at a time
//! ```
//!
//! RING-G1  A read returns what was put for its key, or nothing: it compares the key in the record, and the region's
//!     round after it has read. The sealed bytes behind the key may be damaged; whoever opens them finds that (R9).
//! RING-G2  An error of the disk is never an error of a read. A write that fails turns the ring off, and so do many
//!     reads in a row: it holds nothing from then on, and gives its space back.
//! RING-G3  Memory is bounded: what waits to be written, reads under way, and the index by the size of the disk.
//! RING-G4  After a restart, what is in a table may be found. What was written since the last table is lost.

mod file;
mod index;
mod state;
mod table;

use crate::key::BlockKey;
use bytes::{Buf, Bytes};
use file::RingFile;
use holdfast_types::sync::LockExt;
use index::Spot;
use state::{At, Job, State};
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use table::{KEY_BYTES, Table, UNIT_BYTES, key_bytes, record_bytes};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};

pub(crate) use state::QUEUE_BYTES;
pub(crate) use table::{Shape, room};

/// Maximum number of reads that wait for the disk at the same time, each on a thread of its own.
const READS_AT_ONCE: usize = 32;

/// After so many reads in a row that failed, the disk is not used any more.
const FAILED_READS_MAX: u32 = 32;

static ZEROES: [u8; UNIT_BYTES] = [0; UNIT_BYTES];

/// See the module.
#[derive(Debug)]
pub(crate) struct Ring {
    shape: Shape,
    file: RingFile,
    state: Mutex<State>,
    /// As [`State::done`], for those who wait. It never falls.
    done: watch::Sender<u64>,
    reads: Arc<Semaphore>,
    failed_reads: AtomicU32,
    runtime: Handle,
}

/// Data that was found.
#[derive(Debug)]
pub(crate) struct Found {
    /// As it was put.
    pub(crate) sealed: Bytes,
    /// It is in the older half of the disk.
    pub(crate) older: bool,
}

/// Why a read has no answer.
#[derive(Debug)]
pub(crate) enum ReadFault {
    /// The disk took too long.
    Late,
    /// The disk's error.
    Failed(io::Error),
}

impl Ring {
    /// Opens or creates the file.
    pub(crate) async fn open(path: PathBuf, shape: Shape) -> io::Result<Arc<Self>> {
        let opening = move || {
            let file = RingFile::open(&path, shape.bytes())?;
            let state = State::new(shape, tables_of(&file, shape));
            Ok::<_, io::Error>((file, state))
        };
        let (file, state) = tokio::task::spawn_blocking(opening).await.map_err(io::Error::other)??;
        Ok(Self::over(file, shape, state))
    }

    /// Over a file that has this. Called in a runtime.
    fn over(file: RingFile, shape: Shape, state: State) -> Arc<Self> {
        Arc::new(Self {
            shape,
            file,
            state: Mutex::new(state),
            done: watch::Sender::new(0),
            reads: Arc::new(Semaphore::new(READS_AT_ONCE)),
            failed_reads: AtomicU32::new(0),
            runtime: Handle::current(),
        })
    }

    /// An empty one, over a file that is opened twice.
    #[cfg(test)]
    pub(crate) fn on(reads: std::fs::File, writes: std::fs::File, shape: Shape) -> Arc<Self> {
        Self::over(RingFile::over(reads, writes), shape, State::new(shape, Vec::new()))
    }

    /// Length of the file in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.shape.bytes()
    }

    /// The key's bytes, if they are here (RING-G1). Waits for the disk at most as long as `patience`.
    pub(crate) async fn read(self: &Arc<Self>, key: &BlockKey, patience: Duration) -> Result<Option<Found>, ReadFault> {
        let at = self.state.locked().find(key);
        let spot = match at {
            None => return Ok(None),
            Some(At::Waiting(sealed)) => return Ok(Some(Found { sealed, older: false })),
            Some(At::Written(spot)) => spot,
        };
        let (from, bytes) = (self.shape.byte_of(spot.place), record_bytes(spot.place.len as usize));
        let record = match self.file.read_now(from, bytes) {
            Some(record) => record,
            None => self.read_from_disk(key, spot, patience).await?,
        };
        Ok(self.accept(key, spot, record))
    }

    /// What was read at `spot`, if it is the key's record.
    fn accept(&self, key: &BlockKey, spot: Spot, record: Vec<u8>) -> Option<Found> {
        let mut state = self.state.locked();
        // The region may have been written again while it was read.
        if !state.is_still(&spot) {
            return None;
        }
        // Damaged, or another key's: a table of the region's former life, or two keys with one mark.
        if !record.starts_with(&key_bytes(key)) {
            state.forget_at(key, &spot);
            return None;
        }
        drop(state);
        let mut sealed = Bytes::from(record);
        sealed.advance(KEY_BYTES);
        Some(Found { sealed, older: spot.older })
    }

    async fn read_from_disk(
        self: &Arc<Self>,
        key: &BlockKey,
        spot: Spot,
        patience: Duration,
    ) -> Result<Vec<u8>, ReadFault> {
        let reading = async {
            // Kept by the thread, also if nobody waits for it any more.
            let permit = self.reads.clone().acquire_owned().await.map_err(io::Error::other)?;
            let ring = self.clone();
            let read = move || {
                let _permit = permit;
                ring.file.read(ring.shape.byte_of(spot.place), record_bytes(spot.place.len as usize))
            };
            self.runtime.spawn_blocking(read).await.map_err(io::Error::other)?
        };
        match tokio::time::timeout(patience, reading).await {
            Ok(Ok(record)) => {
                self.failed_reads.store(0, Relaxed);
                Ok(record)
            }
            Ok(Err(error)) => {
                self.state.locked().forget_at(key, &spot);
                if self.failed_reads.fetch_add(1, Relaxed) + 1 >= FAILED_READS_MAX {
                    self.turn_off("reads", &error);
                }
                Err(ReadFault::Failed(error))
            }
            Err(_) => Err(ReadFault::Late),
        }
    }

    /// Lets data be written. If the disk is too slow, it is dropped.
    pub(crate) fn put(self: &Arc<Self>, key: BlockKey, sealed: Bytes) {
        let start = self.state.locked().put(key, sealed);
        if start {
            let ring = self.clone();
            self.runtime.spawn_blocking(move || ring.write_out());
        }
    }

    /// The writer: until nothing waits.
    fn write_out(self: &Arc<Self>) {
        while let Some(job) = self.next_job() {
            if let Err(error) = self.work(job) {
                self.turn_off("writes", &error);
                break;
            }
            self.tell();
        }
        // Reads may have turned it off during a write, which then took space again.
        if !self.is_on() {
            self.file.give_back();
        }
        self.tell();
    }

    /// Without the lock on return: a job waits for the disk.
    fn next_job(&self) -> Option<Job> {
        self.state.locked().next_job()
    }

    fn tell(&self) {
        let now = self.state.locked().done();
        self.done.send_modify(|done| *done = now.max(*done));
    }

    fn work(&self, job: Job) -> io::Result<()> {
        match job {
            Job::Save { region, table, sync } => {
                self.file.write(&mut [IoSlice::new(&table)], self.shape.begin_of(region))?;
                if sync { self.file.sync() } else { Ok(()) }
            }
            Job::Begin { region } => {
                let begin = self.shape.begin_of(region);
                self.file.reserve(begin, self.shape.region_bytes.into())?;
                // Otherwise a start would find names of records that are written over from now on.
                self.file.write(&mut [IoSlice::new(&ZEROES)], begin)
            }
            Job::Write(batch) => {
                let Some(first) = batch.first() else { return Ok(()) };
                let from = self.shape.byte_of(first.place);
                let keys: Vec<[u8; KEY_BYTES]> = batch.iter().map(|taken| key_bytes(&taken.key)).collect();
                let mut end = from as usize;
                let mut pieces = Vec::with_capacity(2 * batch.len() + 1);
                for (key, taken) in keys.iter().zip(&batch) {
                    pieces.extend([IoSlice::new(key), IoSlice::new(&taken.sealed)]);
                    end += record_bytes(taken.sealed.len());
                }
                // Up to the end of a page: of a page that is written in part, the kernel would read the rest first.
                pieces.push(IoSlice::new(&ZEROES[..end.next_multiple_of(UNIT_BYTES) - end]));
                pieces.retain(|piece| !piece.is_empty());
                self.file.write(&mut pieces, from)?;
                drop(pieces);
                self.state.locked().written(batch);
                Ok(())
            }
        }
    }

    /// RING-G2. Once for all.
    fn turn_off(self: &Arc<Self>, what: &str, error: &io::Error) {
        let was_on = self.state.locked().turn_off();
        if was_on {
            tracing::error!(
                %error,
                "cache disk: {what} fail; continuing without it until the next start. If it is full, lower cache.disk"
            );
            let ring = self.clone();
            self.runtime.spawn_blocking(move || ring.file.give_back());
        }
    }

    /// Waits until all that was put so far is in the file, or dropped.
    pub(crate) async fn settled(&self) {
        let goal = self.state.locked().last();
        let mut done = self.done.subscribe();
        // The sender lives as long as we do.
        drop(done.wait_for(|done| *done >= goal).await);
    }

    /// Writes the table of the region that is being filled, so that a restart finds all of it.
    pub(crate) async fn save(self: &Arc<Self>) {
        let ring = self.clone();
        let saving = move || {
            let job = ring.state.locked().save();
            if let Some(job) = job
                && let Err(error) = ring.work(job)
            {
                ring.turn_off("writes", &error);
            }
        };
        if let Err(error) = self.runtime.spawn_blocking(saving).await {
            tracing::debug!(%error, "cache disk: closing failed");
        }
    }

    /// Whether the key's bytes are probably here.
    pub(crate) fn has(&self, key: &BlockKey) -> bool {
        self.state.locked().has(key)
    }

    /// Drops the key's bytes.
    pub(crate) fn forget(&self, key: &BlockKey) {
        self.state.locked().forget(key);
    }

    /// Whether the disk is in use (RING-G2).
    pub(crate) fn is_on(&self) -> bool {
        self.state.locked().is_on()
    }
}

/// The tables in the file in the order of their rounds, each read when it is asked for. A region whose table cannot be
/// read is empty.
fn tables_of(file: &RingFile, shape: Shape) -> impl Iterator<Item = Table> {
    let head_of = |region| {
        let head = file.read(shape.begin_of(region), UNIT_BYTES).ok()?;
        Some((table::round_of(&head)?, region, table::bytes_of(shape, &head)?))
    };
    let mut heads: Vec<(u64, u32, usize)> = (0..shape.regions).filter_map(head_of).collect();
    heads.sort_unstable();
    heads.into_iter().filter_map(move |(_, region, bytes)| {
        let text = file.read(shape.begin_of(region), bytes).ok()?;
        table::decode(shape, region, &text)
    })
}

#[cfg(test)]
mod tests;
