//! Appends that wait for the disk: Holdfast's journal beside raft-engine, in interleaved rounds on the same disk.
//!
//! Each writer has a group of its own and appends the next entry once the one before is durable, like a Raft leader
//! with one batch in flight. Printed per row: the median over the rounds of entries per second, the 99th percentile of
//! one append, CPU time per entry, and the ratio within a round.
//!
//! ```text
//! cargo run --release --manifest-path bench/raft-engine/Cargo.toml -- DIR [ROUNDS [SECONDS]]
//! ```

use bytes::Bytes;
use holdfast_log::{Entry, LogConfig, NodeLog};
use holdfast_types::{GroupId, LogId, LogIndex, Term};
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};
use raft_proto::eraftpb;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Payload bytes and writers of each row.
const ROWS: [(usize, u64); 6] = [(4 << 10, 1), (8 << 10, 1), (8 << 10, 4), (8 << 10, 16), (64 << 10, 4), (1 << 20, 4)];

/// Term of every entry.
const TERM: u64 = 1;

/// Result of one turn.
struct Turn {
    per_second: f64,
    p99_us: f64,
    cpu_us: f64,
}

/// Appends one entry to a group and returns once it is durable.
trait Append: Sync {
    fn append(&self, group: u64, index: u64, payload: &[u8]);
}

struct Ours(NodeLog);

impl Append for Ours {
    fn append(&self, group: u64, index: u64, payload: &[u8]) {
        let (tx, rx) = mpsc::sync_channel(1);
        let id = LogId { term: Term(TERM), index: LogIndex(index) };
        let entry = Entry { id, payload: Bytes::copy_from_slice(payload) };
        self.0.group(GroupId(group)).append(vec![entry], move |done| drop(tx.send(done)));
        rx.recv().expect("an answer").expect("durable");
    }
}

struct Theirs(Engine);

struct Of;

impl MessageExt for Of {
    type Entry = eraftpb::Entry;

    fn index(entry: &eraftpb::Entry) -> u64 {
        entry.index
    }
}

impl Append for Theirs {
    fn append(&self, group: u64, index: u64, payload: &[u8]) {
        let mut entry = eraftpb::Entry { index, term: TERM, ..Default::default() };
        entry.data = payload.to_vec().into();
        let mut batch = LogBatch::default();
        batch.add_entries::<Of>(group, &[entry]).expect("an entry");
        self.0.write(&mut batch, true).expect("durable");
    }
}

/// CPU time of this process so far, in microseconds.
fn cpu_us() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc");
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    // utime and stime in ticks of 10 ms (proc(5): fields 14 and 15, the third is the first after the name).
    let ticks: f64 = [11, 12].iter().filter_map(|i| fields.get(*i)?.parse::<f64>().ok()).sum();
    ticks * 10_000.0
}

fn turn(log: &dyn Append, payload: usize, writers: u64, limit: Duration) -> Turn {
    let data: Vec<u8> = (0..payload).map(|i| (i * 31 % 251) as u8).collect();
    let (begin, cpu) = (Instant::now(), cpu_us());
    let mut took: Vec<u64> = std::thread::scope(|scope| {
        let data = &data;
        let writer = |group: u64| {
            let mut took = Vec::new();
            for index in 1.. {
                let start = Instant::now();
                log.append(group, index, data);
                took.push(start.elapsed().as_micros() as u64);
                if begin.elapsed() >= limit {
                    break;
                }
            }
            took
        };
        let threads: Vec<_> = (1..=writers).map(|group| scope.spawn(move || writer(group))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a writer")).collect()
    });
    let (elapsed, cpu) = (begin.elapsed().as_secs_f64(), cpu_us() - cpu);
    took.sort_unstable();
    let count = took.len();
    Turn { per_second: count as f64 / elapsed, p99_us: took[count * 99 / 100] as f64, cpu_us: cpu / count as f64 }
}

fn ours(dir: &Path, payload: usize, writers: u64, limit: Duration) -> Turn {
    let dir = tempfile::tempdir_in(dir).expect("a folder");
    let (log, _) = NodeLog::open(LogConfig::new(dir.path())).expect("our journal");
    turn(&Ours(log), payload, writers, limit)
}

fn theirs(dir: &Path, payload: usize, writers: u64, limit: Duration) -> Turn {
    let dir = tempfile::tempdir_in(dir).expect("a folder");
    let config = Config {
        dir: dir.path().display().to_string(),
        // Like ours: no compression, files of 64 MiB, created ahead and recycled.
        batch_compression_threshold: ReadableSize(0),
        target_file_size: ReadableSize::mb(64),
        enable_log_recycle: true,
        prefill_for_recycle: true,
        // How much is made ahead follows from this.
        purge_threshold: ReadableSize::gb(1),
        ..Config::default()
    };
    turn(&Theirs(Engine::open(config).expect("raft-engine")), payload, writers, limit)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().expect("DIR: a folder on the disk to measure");
    let rounds: u32 = args.next().map_or(5, |text| text.parse().expect("ROUNDS: a number"));
    let limit = Duration::from_secs(args.next().map_or(3, |text| text.parse().expect("SECONDS: a number")));
    println!("median of {rounds} rounds of {limit:?}; a writer waits for each entry to be durable");
    println!("| payload, writers | ours /s | p99 us | CPU us | raft-engine /s | p99 us | CPU us | ratio |");
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    for (payload, writers) in ROWS {
        let mut turns = Vec::new();
        for round in 0..rounds {
            // Each round begins with the other.
            let pair = if round % 2 == 0 {
                let ours = ours(Path::new(&dir), payload, writers, limit);
                (ours, theirs(Path::new(&dir), payload, writers, limit))
            } else {
                let theirs = theirs(Path::new(&dir), payload, writers, limit);
                (ours(Path::new(&dir), payload, writers, limit), theirs)
            };
            turns.push(pair);
        }
        let of = |pick: fn(&(Turn, Turn)) -> f64| median(turns.iter().map(pick));
        println!(
            "| {} KiB, {writers} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} | {:.2} |",
            payload >> 10,
            of(|t| t.0.per_second),
            of(|t| t.0.p99_us),
            of(|t| t.0.cpu_us),
            of(|t| t.1.per_second),
            of(|t| t.1.p99_us),
            of(|t| t.1.cpu_us),
            of(|t| t.0.per_second / t.1.per_second),
        );
    }
}
