//! Tracks acknowledged writes block by block, and checks that they are read back.
//!
//! Each writer owns a range of blocks. An answered write replaces the old content. A write without an answer may be
//! there or not (R12), but must not take effect after a later answered one (R6).

use crate::nbd::{Client, NbdError, Uri, pattern, tag_of};
use crate::process::{POLL, SetOnDrop};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Size of a block in bytes.
pub(super) const BLOCK: usize = 4096;

/// Blocks of one writer.
#[derive(Debug)]
struct Blocks {
    first: u64,
    count: u64,
    random: u64,
    tag: u64,
    acknowledged: BTreeMap<u64, u64>,
    in_doubt: BTreeMap<u64, BTreeSet<u64>>,
    /// After each write, one of the acknowledged blocks is read back.
    reads: bool,
}

/// Size of a read when all blocks are checked, and of a write when all are filled: whole sealed extents, so that each
/// is read once and not 32 times.
const CHECK_BYTES: u64 = 1 << 20;

impl Blocks {
    /// `count` blocks from block `first` on; none written yet.
    fn new(first: u64, count: u64) -> Self {
        let (acknowledged, in_doubt) = Default::default();
        let random = first.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        Self { first, count, random, tag: 0, acknowledged, in_doubt, reads: false }
    }

    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    /// Writes one block, picked at random, and flushes. After an error the content of the block is unknown.
    fn write_and_flush(&mut self, client: &mut Client) -> std::result::Result<(), NbdError> {
        let offset = (self.first + self.draw() % self.count) * BLOCK as u64;
        self.tag += 1;
        self.in_doubt.entry(offset).or_default().insert(self.tag);
        client.write(offset, &pattern(self.tag, offset, BLOCK))?;
        client.flush()?;
        self.acknowledged.insert(offset, self.tag);
        self.in_doubt.remove(&offset);
        Ok(())
    }

    /// Writes every block, [`CHECK_BYTES`] at a time, and flushes. After an error no block counts as acknowledged.
    fn fill(&mut self, client: &mut Client) -> std::result::Result<(), NbdError> {
        self.tag += 1;
        let offsets: Vec<u64> = (self.first..self.first + self.count).map(|block| block * BLOCK as u64).collect();
        for row in offsets.chunks(CHECK_BYTES as usize / BLOCK) {
            let bytes: Vec<u8> = row.iter().flat_map(|offset| pattern(self.tag, *offset, BLOCK)).collect();
            client.write(row[0], &bytes)?;
        }
        client.flush()?;
        self.acknowledged.extend(offsets.iter().map(|offset| (*offset, self.tag)));
        Ok(())
    }

    /// Reads a random acknowledged block and compares it. The inner result is an error if the block differs.
    fn read_one(&mut self, client: &mut Client) -> std::result::Result<Result<()>, NbdError> {
        let from = (self.first + self.draw() % self.count) * BLOCK as u64;
        let Some(offset) = self.acknowledged.range(from..).next().map(|(offset, _)| *offset) else { return Ok(Ok(())) };
        let bytes = client.read(offset, BLOCK as u32)?;
        Ok(self.judge(offset, &bytes).and_then(|wrong| wrong.map_or(Ok(()), |wrong| bail!("{wrong}"))))
    }

    /// What is wrong with a block. Nothing if it has the last acknowledged write, or a later one with unknown outcome.
    fn judge(&self, offset: u64, bytes: &[u8]) -> Result<Option<String>> {
        let found = tag_of(bytes, offset)?;
        let expected = self.acknowledged.get(&offset).copied().unwrap_or(0);
        let doubted = self.in_doubt.get(&offset).is_some_and(|tags| tags.contains(&found));
        let wrong = found != expected && !doubted;
        Ok(wrong.then(|| format!("block at {offset}: found write {found}, expected {expected}")))
    }

    /// Reads and compares all blocks: acknowledged writes are there, and blocks that were never written are zero. Fails
    /// when a block is lost, torn or misplaced, or cannot be read.
    fn check(&self, client: &mut Client) -> Result<()> {
        let mut wrong = Vec::new();
        let (begin, end) = (self.first * BLOCK as u64, (self.first + self.count) * BLOCK as u64);
        for at in (begin..end).step_by(CHECK_BYTES as usize) {
            let len = u32::try_from(CHECK_BYTES.min(end - at))?;
            let bytes = client.read(at, len).with_context(|| format!("read of {len} bytes at {at}"))?;
            for (offset, block) in (at..).step_by(BLOCK).zip(bytes.chunks(BLOCK)) {
                wrong.extend(self.judge(offset, block)?);
            }
        }
        if !wrong.is_empty() {
            bail!("{} of {} blocks wrong, first: {}", wrong.len(), self.acknowledged.len(), wrong[0]);
        }
        Ok(())
    }
}

/// Several writers, each with its own connection and blocks. A writer whose connection closes acts like an attached
/// host: it tries every gateway until one serves it, and continues.
#[derive(Debug)]
pub(super) struct Load {
    writers: Vec<Blocks>,
    progress: Progress,
}

/// What the writers have seen so far.
#[derive(Debug, Default)]
pub(super) struct Progress {
    answered: AtomicU64,
    reconnected: AtomicU64,
    /// Longest time of one write and flush in microseconds, including reconnects.
    slowest_us: AtomicU64,
}

impl Progress {
    /// Pairs answered.
    pub(super) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Number of reconnects.
    pub(super) fn reconnected(&self) -> u64 {
        self.reconnected.load(Ordering::Relaxed)
    }

    /// Longest time of one write and flush, including reconnects.
    pub(super) fn slowest(&self) -> Duration {
        Duration::from_micros(self.slowest_us.load(Ordering::Relaxed))
    }

    /// The same since the last call of this.
    pub(super) fn take_slowest(&self) -> Duration {
        Duration::from_micros(self.slowest_us.swap(0, Ordering::Relaxed))
    }
}

/// A writer gives up if no gateway serves it for this time.
const UNSERVED_LIMIT: Duration = Duration::from_secs(60);

impl Load {
    /// `writers` writers side by side from the start of the volume.
    pub(super) fn new(writers: u64, blocks_each: u64) -> Self {
        let writers = (0..writers).map(|w| Blocks::new(w * blocks_each, blocks_each)).collect();
        Self { writers, progress: Progress::default() }
    }

    /// The same, and each writer reads as often as it writes.
    pub(super) fn reading(mut self) -> Self {
        self.writers.iter_mut().for_each(|writer| writer.reads = true);
        self
    }

    /// Runs the writers through the serving one of `gateways` while `meanwhile` runs in this thread, and stops them
    /// afterwards. Fails as `meanwhile` does, when a writer gets an error (R8), or when no gateway serves it for a
    /// minute.
    pub(super) fn run<T>(&mut self, gateways: &[Uri], meanwhile: impl FnOnce(&Progress) -> Result<T>) -> Result<T> {
        let (progress, stop) = (&self.progress, &AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _stops = SetOnDrop(stop);
            let mut threads = Vec::new();
            for blocks in &mut self.writers {
                threads.push(scope.spawn(move || write_until(stop, blocks, gateways, progress)));
            }
            let made = meanwhile(progress);
            stop.store(true, Ordering::Relaxed);
            for thread in threads {
                thread.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?.context("a writer")?;
            }
            made
        })
    }

    /// Writes `count` pairs of each writer through one connection.
    pub(super) fn write(&mut self, client: &mut Client, count: u32) -> Result<()> {
        for writer in &mut self.writers {
            for _ in 0..count {
                writer.write_and_flush(client)?;
            }
        }
        Ok(())
    }

    /// Writes every block of each writer once.
    pub(super) fn fill(&mut self, client: &mut Client) -> Result<()> {
        self.writers.iter_mut().try_for_each(|writer| writer.fill(client)).context("filling")
    }

    /// Checks every writer's blocks.
    pub(super) fn check(&self, client: &mut Client) -> Result<()> {
        self.writers.iter().try_for_each(|w| w.check(client))
    }

    /// Checks that no connection of the writers was closed, and every writer's blocks through a new one. Fails as
    /// [`Load::check`] does, and when a connection was closed.
    pub(super) fn unbroken(&self, uri: &Uri, patience: Duration) -> Result<()> {
        let closed = self.progress.reconnected();
        anyhow::ensure!(closed == 0, "{closed} connections of users were closed");
        let mut client = Client::connect(uri, patience)?;
        self.check(&mut client)?;
        client.disconnect();
        Ok(())
    }

    /// What the writers have seen so far.
    pub(super) fn progress(&self) -> &Progress {
        &self.progress
    }
}

fn write_until(stop: &AtomicBool, blocks: &mut Blocks, gateways: &[Uri], progress: &Progress) -> Result<()> {
    let mut served = Instant::now();
    for (attempt, gateway) in gateways.iter().cycle().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        anyhow::ensure!(served.elapsed() < UNSERVED_LIMIT, "no gateway served it for {UNSERVED_LIMIT:?}");
        if let Ok(mut client) = Client::connect(gateway, ANSWER_PATIENCE) {
            while !stop.load(Ordering::Relaxed) {
                let pair = blocks.write_and_flush(&mut client);
                let pair = match pair {
                    Ok(()) if blocks.reads => match blocks.read_one(&mut client) {
                        Ok(judged) => {
                            judged?;
                            Ok(())
                        }
                        Err(e) => Err(e),
                    },
                    other => other,
                };
                match pair {
                    Ok(()) => {
                        progress.answered.fetch_add(1, Ordering::Relaxed);
                        let took = u64::try_from(served.elapsed().as_micros()).unwrap_or(u64::MAX);
                        progress.slowest_us.fetch_max(took, Ordering::Relaxed);
                        served = Instant::now();
                    }
                    Err(NbdError::Gone(_)) => break,
                    // An error answer would suspend a ZFS pool: allowed only when another owner holds the set (R8).
                    Err(e) => return Err(e).context("R8"),
                }
            }
            if stop.load(Ordering::Relaxed) {
                client.disconnect();
                return Ok(());
            }
            progress.reconnected.fetch_add(1, Ordering::Relaxed);
        }
        if attempt % gateways.len() == gateways.len() - 1 {
            std::thread::sleep(POLL);
        }
    }
    Ok(())
}

/// Timeout for one answer; after that a writer treats the connection as dead.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
