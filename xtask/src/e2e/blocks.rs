//! What has been acknowledged, block by block, and what must therefore be read back.
//!
//! One writer owns a row of blocks. A write that is answered replaces what was there; a write whose answer never came may be there
//! or not (R12), but must not land after a later one that was answered (R6).

use crate::nbd::{Client, NbdError, Uri, pattern, tag_of};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a block here.
pub(super) const BLOCK: usize = 4096;

/// One writer's blocks.
#[derive(Debug)]
pub(super) struct Blocks {
    first: u64,
    count: u64,
    random: u64,
    tag: u64,
    acknowledged: BTreeMap<u64, u64>,
    in_doubt: BTreeMap<u64, BTreeSet<u64>>,
    /// Write + FLUSH pairs answered.
    pub(super) pairs: u64,
}

impl Blocks {
    /// `count` blocks from block `first` on; none written yet.
    pub(super) fn new(first: u64, count: u64) -> Self {
        let (acknowledged, in_doubt) = Default::default();
        Self {
            first,
            count,
            random: first.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
            tag: 0,
            acknowledged,
            in_doubt,
            pairs: 0,
        }
    }

    /// Writes one block, picked at random, and flushes.
    ///
    /// # Errors
    /// The client's; the block is in doubt then.
    pub(super) fn write_and_flush(&mut self, client: &mut Client) -> std::result::Result<(), NbdError> {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let offset = (self.first + self.random % self.count) * BLOCK as u64;
        self.tag += 1;
        self.in_doubt.entry(offset).or_default().insert(self.tag);
        client.write(offset, &pattern(self.tag, offset, BLOCK))?;
        client.flush()?;
        self.acknowledged.insert(offset, self.tag);
        self.in_doubt.remove(&offset);
        self.pairs += 1;
        Ok(())
    }

    /// Reads every block that was touched and compares.
    ///
    /// # Errors
    /// When a block is lost, torn or misplaced, or cannot be read.
    pub(super) fn check(&self, client: &mut Client) -> Result<()> {
        let touched: BTreeSet<u64> = self.acknowledged.keys().chain(self.in_doubt.keys()).copied().collect();
        let mut wrong = Vec::new();
        for offset in touched {
            let bytes = client.read(offset, BLOCK as u32).with_context(|| format!("read at {offset}"))?;
            let found = tag_of(&bytes, offset)?;
            let expected = self.acknowledged.get(&offset).copied().unwrap_or(0);
            let doubted = self.in_doubt.get(&offset).is_some_and(|tags| tags.contains(&found));
            if found != expected && !doubted {
                wrong.push(format!("block at {offset}: found write {found}, expected {expected}"));
            }
        }
        if !wrong.is_empty() {
            bail!("{} of {} blocks wrong, first: {}", wrong.len(), self.acknowledged.len(), wrong[0]);
        }
        Ok(())
    }
}

/// Several writers, each with a connection and blocks of its own.
#[derive(Debug)]
pub(super) struct Load {
    pub(super) writers: Vec<Blocks>,
    /// Answered pairs so far, while writers run.
    pub(super) answered: AtomicU64,
    /// Longest wait for one pair so far.
    pub(super) slowest: Mutex<Duration>,
}

impl Load {
    /// `writers` writers side by side from the start of the volume.
    pub(super) fn new(writers: u64, blocks_each: u64) -> Self {
        let writers = (0..writers).map(|w| Blocks::new(w * blocks_each, blocks_each)).collect();
        Self { writers, answered: AtomicU64::new(0), slowest: Mutex::new(Duration::ZERO) }
    }

    /// Lets the writers write through `uri` until `stop` says so, or their connection breaks, while `meanwhile` runs here.
    /// Gives what ended each writer early, and what `meanwhile` gave.
    pub(super) fn run<T>(
        &mut self,
        uri: &Uri,
        patience: Duration,
        stop: &std::sync::atomic::AtomicBool,
        meanwhile: impl FnOnce(&AtomicU64) -> T,
    ) -> (Vec<NbdError>, T) {
        let (answered, slowest) = (&self.answered, &self.slowest);
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for blocks in &mut self.writers {
                threads.push(scope.spawn(move || {
                    let mut client = Client::connect(uri, patience)?;
                    while !stop.load(Ordering::Relaxed) {
                        let begun = Instant::now();
                        blocks.write_and_flush(&mut client)?;
                        answered.fetch_add(1, Ordering::Relaxed);
                        let took = begun.elapsed();
                        if let Ok(mut slowest) = slowest.lock() {
                            *slowest = (*slowest).max(took);
                        }
                    }
                    client.disconnect();
                    Ok(())
                }));
            }
            let made = meanwhile(answered);
            stop.store(true, Ordering::Relaxed);
            let ended = threads.into_iter().filter_map(|t| t.join().ok()?.err()).collect();
            (ended, made)
        })
    }

    /// Checks every writer's blocks.
    ///
    /// # Errors
    /// As [`Blocks::check`].
    pub(super) fn check(&self, client: &mut Client) -> Result<()> {
        self.writers.iter().try_for_each(|w| w.check(client))
    }

    /// Pairs answered, all writers together.
    pub(super) fn pairs(&self) -> u64 {
        self.writers.iter().map(|w| w.pairs).sum()
    }
}
