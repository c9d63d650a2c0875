//! A writer and a reader of one volume, one request after the other, which note how long each took. The longest one of
//! a fault is the pause that it made.
//!
//! The writer keeps a ledger. Each block has the number of its write, so a read shows whether it is as new as what was
//! acknowledged before it, and no newer than what was sent (R1, R3).

use crate::e2e::blocks::BLOCK;
use crate::nbd::{Client, Uri, pattern, tag_of};
use crate::process::wait_until;
use anyhow::{Context, Result};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Blocks that are written in turn.
const BLOCKS: u64 = 512;
/// Between two requests of each of them: one that is answered at once leaves processors for the gateways.
const PACE: Duration = Duration::from_millis(5);
/// Limit of one request, and of a wait for answers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Times of requests.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Times {
    pub(crate) requests: usize,
    pub(crate) quickest_ms: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) longest_ms: f64,
}

impl Times {
    /// Of these microseconds, in any order.
    pub(crate) fn of(mut all: Vec<u64>) -> Self {
        all.sort_unstable();
        let at = |percent: usize| all.get(all.len().saturating_sub(1) * percent / 100).copied();
        let ms = |percent: usize| at(percent).unwrap_or(0) as f64 / 1e3;
        Self { requests: all.len(), quickest_ms: ms(0), p50_ms: ms(50), p99_ms: ms(99), longest_ms: ms(100) }
    }
}

/// One side: the writer or the reader.
#[derive(Debug, Default)]
struct Side {
    /// Microseconds of each request since the last look. A request takes some milliseconds with its pace, so a run of
    /// ten minutes has some hundred thousand.
    took: Mutex<Vec<u64>>,
    answered: AtomicU64,
}

impl Side {
    fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.took.lock().unwrap_or_else(PoisonError::into_inner).push(took);
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) -> Times {
        Times::of(std::mem::take(&mut *self.took.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }
}

/// What both know of a block.
#[derive(Debug, Default)]
struct Block {
    /// The number of the last write that was sent.
    sent: AtomicU64,
    /// That of the last one that was acknowledged.
    acknowledged: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    writes: Side,
    reads: Side,
    blocks: Vec<Block>,
    /// Why one of them has ended before it was stopped.
    wrong: Mutex<Option<String>>,
}

/// The running writer and reader.
pub(crate) struct Pulse {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Result<()>>>,
}

impl Pulse {
    /// Starts both, each with a connection of its own. Fails when they cannot connect.
    pub(crate) fn start(uri: &Uri) -> Result<Self> {
        let blocks = (0..BLOCKS).map(|_| Block::default()).collect();
        let (stop, writes, reads) = (AtomicBool::new(false), Side::default(), Side::default());
        let shared = Arc::new(Shared { stop, writes, reads, blocks, wrong: Mutex::default() });
        let mut threads = Vec::new();
        for work in [write as fn(&Shared, Client) -> Result<()>, read] {
            let (client, shared) = (Client::connect(uri, PATIENCE)?, shared.clone());
            threads.push(std::thread::spawn(move || {
                work(&shared, client).inspect_err(|error| {
                    let mut wrong = shared.wrong.lock().unwrap_or_else(PoisonError::into_inner);
                    *wrong = Some(format!("{error:#}"));
                })
            }));
        }
        Ok(Self { shared, threads })
    }

    /// Waits until so many further requests of each of them are answered. Fails when one of them has ended, or the
    /// answers do not come.
    pub(crate) fn goes_on(&self, more: u64) -> Result<()> {
        let Shared { writes, reads, .. } = &*self.shared;
        let (wrote, was_read) = (writes.answered(), reads.answered());
        let ended = || self.threads.iter().any(JoinHandle::is_finished);
        let grown = || (writes.answered() - wrote, reads.answered() - was_read);
        let enough = |(writes, reads): (u64, u64)| writes >= more && reads >= more;
        wait_until(PATIENCE * 2, || enough(grown()) || ended());
        if let Some(wrong) = &*self.shared.wrong.lock().unwrap_or_else(PoisonError::into_inner) {
            anyhow::bail!("{wrong}");
        }
        let (writes, reads) = grown();
        anyhow::ensure!(enough((writes, reads)), "{writes} writes and {reads} reads were answered, expected {more}");
        Ok(())
    }

    /// Times of the writer and of the reader since the last call of this.
    pub(crate) fn take(&self) -> [Times; 2] {
        [self.shared.writes.take(), self.shared.reads.take()]
    }

    /// Stops both, and reads all blocks. Returns how many writes were acknowledged. Fails when one of them had an
    /// error, read what it should not, or an acknowledged write is lost.
    pub(crate) fn end(self, uri: &Uri) -> Result<u64> {
        self.shared.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().map_err(|_| anyhow::anyhow!("the writer or the reader panicked"))??;
        }
        let mut client = Client::connect(uri, PATIENCE)?;
        let mut lost = Vec::new();
        for (number, block) in (0..).zip(&self.shared.blocks) {
            let found = found(&mut client, number)?;
            let (least, most) = (block.acknowledged.load(Ordering::Relaxed), block.sent.load(Ordering::Relaxed));
            if !(least..=most).contains(&found) {
                lost.push(format!("block {number}: found write {found}, expected {least}"));
            }
        }
        client.disconnect();
        anyhow::ensure!(lost.is_empty(), "R1: {} of {BLOCKS} blocks, first: {}", lost.len(), lost[0]);
        Ok(self.shared.writes.answered())
    }
}

/// The number of the write that a block shows.
fn found(client: &mut Client, number: u64) -> Result<u64> {
    let offset = number * BLOCK as u64;
    tag_of(&client.read(offset, u32::try_from(BLOCK)?)?, offset)
}

fn write(shared: &Shared, mut client: Client) -> Result<()> {
    let mut number = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        number += 1;
        let (at, block) = (number % BLOCKS, &shared.blocks[usize::try_from(number % BLOCKS)?]);
        let offset = at * BLOCK as u64;
        let bytes = pattern(number, offset, BLOCK);
        block.sent.store(number, Ordering::SeqCst);
        let begun = Instant::now();
        client.write(offset, &bytes).context("R8: a write")?;
        shared.writes.note(begun.elapsed());
        block.acknowledged.store(number, Ordering::SeqCst);
        std::thread::sleep(PACE);
    }
    client.disconnect();
    Ok(())
}

fn read(shared: &Shared, mut client: Client) -> Result<()> {
    let mut number = 0;
    while !shared.stop.load(Ordering::Relaxed) {
        // Behind the writer or before it, in scattered order: the factor and the number of blocks have no common
        // divisor.
        number = (number + 1) % BLOCKS;
        let at = number * 389 % BLOCKS;
        let block = &shared.blocks[usize::try_from(at)?];
        let least = block.acknowledged.load(Ordering::SeqCst);
        let begun = Instant::now();
        let found = found(&mut client, at).context("R8: a read")?;
        shared.reads.note(begun.elapsed());
        let most = block.sent.load(Ordering::SeqCst);
        anyhow::ensure!(
            (least..=most).contains(&found),
            "R3: block {at} shows write {found}, acknowledged before it was {least}, sent until then {most}"
        );
        std::thread::sleep(PACE);
    }
    client.disconnect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_order_and_the_longest_is_among_them() {
        let times = Times::of((1..=200).rev().map(|ms| ms * 1000).collect());
        assert_eq!(times.requests, 200);
        let shown = [times.quickest_ms, times.p50_ms, times.p99_ms, times.longest_ms].map(|ms| ms.round() as u64);
        assert_eq!(shown, [1, 100, 198, 200]);
        assert_eq!(Times::of(Vec::new()).requests, 0);
    }
}
