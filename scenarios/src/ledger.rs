//! The commit ledger: records outside of PostgreSQL which commits PostgreSQL acknowledged.
//!
//! Each writer inserts (writer, n) for n = 1, 2, 3 …, each in its own transaction with `synchronous_commit = on`. When
//! a commit is acknowledged, it appends n and the times to a file on the local disk. After a crash every row of the
//! files must be in the table. A row whose connection was lost before the acknowledgement may be there or not (R12): it
//! is never tried again with the same n, and counts as neither acknowledged nor lost. Any other row in the table was
//! never written, and is reported.
//!
//! Lasting writers reconnect after a lost connection, like a program behind a load balancer, and continue with the next
//! n.
//!
//! A database that was restored to a point in time is checked by [`Restored`]: it may miss only commits that were
//! acknowledged later.

mod restored;

pub use restored::Restored;

use crate::pg::{self, Postgres};
use crate::pgwire::{Client, Reach};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The ledger's files and how far each writer got.
#[derive(Debug)]
pub struct Ledger {
    dir: PathBuf,
    /// The last n of each writer, over all rounds.
    tried: Vec<u64>,
    /// Commits without an acknowledgement, which may be in the table, with their start in microseconds.
    in_doubt: BTreeMap<Row, u64>,
    /// Start of the microsecond clock.
    clock: Instant,
}

/// Writer and n.
type Row = (usize, u64);

/// Times of an acknowledged commit. A line of a file has n and these, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Commit {
    /// Wall clock in Unix milliseconds, after the acknowledgement.
    unix_ms: u64,
    /// Monotonic clock in microseconds, before the commit was sent.
    begun_us: u64,
    /// The same clock, after the acknowledgement.
    ended_us: u64,
}

impl Commit {
    fn read(line: &str) -> Result<(u64, Self)> {
        let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [n, unix_ms, begun_us, ended_us] = numbers[..] else { bail!("found {line:?}, expected four numbers") };
        Ok((n, Self { unix_ms, begun_us, ended_us }))
    }
}

/// Running writers.
#[derive(Debug)]
pub struct Writers {
    threads: Vec<JoinHandle<Result<Outcome>>>,
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
}

#[derive(Debug, Default)]
struct Tally {
    acknowledged: AtomicU64,
    /// Lasting writers only: time of each acknowledged commit in Unix milliseconds, and its writer.
    moments: Mutex<Vec<(u64, usize)>>,
}

#[derive(Debug, Default)]
struct Outcome {
    tried: u64,
    in_doubt: Vec<(u64, u64)>,
}

/// Comparison of table and ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Rows in the files.
    pub acknowledged: u64,
    /// Acknowledged rows that are not in the table: lost.
    pub lost: u64,
    /// Rows in the table without an acknowledged commit; allowed.
    pub in_doubt_found: u64,
    /// Rows in the table that were never written.
    pub invented: u64,
}

impl Ledger {
    /// Creates the table and empty files for `writers` writers. Fails when either cannot be created.
    pub fn create(pg: &Postgres, dir: &Path, writers: usize) -> Result<Self> {
        Self::create_through(&mut pg.client()?, dir, writers)
    }

    /// The same through a given session.
    pub fn create_through(client: &mut Client, dir: &Path, writers: usize) -> Result<Self> {
        client.query(
            "create table ledger (writer int, n bigint, filler text default repeat('x', 100), primary key (writer, n))",
        )?;
        std::fs::create_dir_all(dir)?;
        let ledger =
            Self { dir: dir.into(), tried: vec![0; writers], in_doubt: BTreeMap::new(), clock: Instant::now() };
        for w in 0..writers {
            File::create(ledger.file(w))?;
        }
        Ok(ledger)
    }

    fn file(&self, writer: usize) -> PathBuf {
        self.dir.join(format!("writer-{writer}.ledger"))
    }

    /// Starts the writers, each after its last n. A lost session ends a writer. Fails when a session cannot be opened.
    pub fn start(&self, pg: &Postgres) -> Result<Writers> {
        let stop = Arc::new(AtomicBool::new(false));
        let tally = Arc::new(Tally::default());
        let mut threads = Vec::new();
        for (w, tried) in self.tried.iter().enumerate() {
            let mut client = pg.client()?;
            client.query("set synchronous_commit = on")?;
            let file = File::options().append(true).open(self.file(w))?;
            let (stop, tally, clock) = (stop.clone(), tally.clone(), self.clock);
            let mut outcome = Outcome { tried: *tried, in_doubt: Vec::new() };
            threads.push(std::thread::spawn(move || {
                write_rows(w, &mut outcome, client, (&file, clock), &stop, |_| tally.count(None))?;
                Ok(outcome)
            }));
        }
        Ok(Writers { threads, stop, tally })
    }

    /// The same with writers that reconnect whenever their session is lost, until they are stopped. Fails when a file
    /// cannot be opened.
    pub fn start_lasting(&self, reach: &Reach) -> Result<Writers> {
        let stop = Arc::new(AtomicBool::new(false));
        let tally = Arc::new(Tally::default());
        let mut threads = Vec::new();
        for (w, tried) in self.tried.iter().enumerate() {
            let file = File::options().append(true).open(self.file(w))?;
            let (stop, tally, reach, clock) = (stop.clone(), tally.clone(), reach.clone(), self.clock);
            let mut outcome = Outcome { tried: *tried, in_doubt: Vec::new() };
            threads.push(std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let session = pg::client(&reach).and_then(|mut client| {
                        client.query("set synchronous_commit = on")?;
                        Ok(client)
                    });
                    match session {
                        Ok(client) => {
                            write_rows(w, &mut outcome, client, (&file, clock), &stop, |at| tally.count(Some((at, w))))?
                        }
                        Err(_) => std::thread::sleep(AGAIN),
                    }
                }
                Ok(outcome)
            }));
        }
        Ok(Writers { threads, stop, tally })
    }

    /// Collects the results of the writers after they ended. Fails when a writer failed for another reason than a lost
    /// server.
    pub fn join(&mut self, writers: Writers) -> Result<()> {
        writers.stop.store(true, Ordering::Relaxed);
        for (w, thread) in writers.threads.into_iter().enumerate() {
            let outcome = thread.join().map_err(|_| anyhow::anyhow!("writer {w} panicked"))??;
            self.tried[w] = outcome.tried;
            self.in_doubt.extend(outcome.in_doubt.into_iter().map(|(n, begun_us)| ((w, n), begun_us)));
        }
        Ok(())
    }

    /// Commits whose session was lost before the acknowledgement, of joined writers.
    pub fn in_doubt(&self) -> usize {
        self.in_doubt.len()
    }

    /// Compares the files with the table, row by row. Fails when either cannot be read.
    pub fn check(&self, pg: &Postgres) -> Result<Verdict> {
        self.check_through(&mut pg.client()?)
    }

    /// The same through a given session.
    pub fn check_through(&self, client: &mut Client) -> Result<Verdict> {
        Ok(compare(&self.acknowledged()?, &self.in_doubt, &table(client)?))
    }

    /// The same for a database that was restored to the time `moment_ms` (Unix milliseconds).
    pub fn check_restored(&self, pg: &Postgres, moment_ms: u64) -> Result<Restored> {
        Ok(Restored::judge(moment_ms, &self.acknowledged()?, &self.in_doubt, &table(&mut pg.client()?)?))
    }

    /// Content of the files.
    fn acknowledged(&self) -> Result<BTreeMap<Row, Commit>> {
        let mut acknowledged = BTreeMap::new();
        for w in 0..self.tried.len() {
            for line in std::fs::read_to_string(self.file(w))?.lines() {
                let (n, commit) = Commit::read(line)?;
                acknowledged.insert((w, n), commit);
            }
        }
        Ok(acknowledged)
    }
}

/// Content of the table.
fn table(client: &mut Client) -> Result<BTreeSet<Row>> {
    let mut table = BTreeSet::new();
    for row in client.query("select writer, n from ledger")? {
        let [Some(w), Some(n)] = row.as_slice() else { bail!("row {row:?}") };
        table.insert((w.parse::<usize>()?, n.parse::<u64>()?));
    }
    Ok(table)
}

fn compare(acknowledged: &BTreeMap<Row, Commit>, in_doubt: &BTreeMap<Row, u64>, table: &BTreeSet<Row>) -> Verdict {
    Verdict {
        acknowledged: acknowledged.len() as u64,
        lost: acknowledged.keys().filter(|row| !table.contains(row)).count() as u64,
        in_doubt_found: table.iter().filter(|row| in_doubt.contains_key(row)).count() as u64,
        invented: table.iter().filter(|row| !acknowledged.contains_key(row) && !in_doubt.contains_key(row)).count()
            as u64,
    }
}

/// Between two tries to connect.
const AGAIN: Duration = Duration::from_millis(20);

/// Now.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Writes until told to stop, or until the session is lost.
fn write_rows(
    writer: usize,
    outcome: &mut Outcome,
    mut client: Client,
    (mut file, clock): (&File, Instant),
    stop: &AtomicBool,
    acknowledged: impl Fn(u64),
) -> Result<()> {
    let us = || u64::try_from(clock.elapsed().as_micros()).unwrap_or(u64::MAX);
    while !stop.load(Ordering::Relaxed) {
        outcome.tried += 1;
        let (n, begun_us) = (outcome.tried, us());
        match client.query(&format!("insert into ledger (writer, n) values ({writer}, {n})")) {
            Ok(_) => {
                let (at, ended_us) = (unix_ms(), us());
                // One write call per line, so that a line is there completely or not at all.
                file.write_all(format!("{n} {at} {begun_us} {ended_us}\n").as_bytes()).context("the ledger file")?;
                acknowledged(at);
            }
            // A dying server reports that in several ways; none shows whether the commit happened.
            Err(_) => {
                outcome.in_doubt.push((n, begun_us));
                return Ok(());
            }
        }
    }
    Ok(())
}

impl Tally {
    fn count(&self, moment: Option<(u64, usize)>) {
        if let Some(moment) = moment {
            self.moments.lock().unwrap_or_else(PoisonError::into_inner).push(moment);
        }
        self.acknowledged.fetch_add(1, Ordering::Relaxed);
    }
}

impl Writers {
    /// Rows acknowledged since these writers started.
    pub fn acknowledged(&self) -> u64 {
        self.tally.acknowledged.load(Ordering::Relaxed)
    }

    /// Times of the acknowledged commits of lasting writers in Unix milliseconds, in order, with their writers.
    pub fn moments(&self) -> Vec<(u64, usize)> {
        let mut moments = self.tally.moments.lock().unwrap_or_else(PoisonError::into_inner).clone();
        moments.sort_unstable();
        moments
    }

    /// Whether each of them still writes.
    pub fn all_writing(&self) -> bool {
        self.threads.iter().all(|t| !t.is_finished())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_in_doubt_and_invented_are_told_apart() {
        let commit = Commit { unix_ms: 5, begun_us: 1, ended_us: 2 };
        let acknowledged = BTreeMap::from([(0, 1), (0, 2), (1, 1)].map(|row| (row, commit)));
        let in_doubt = BTreeMap::from([(0, 3), (1, 2)].map(|row| (row, 3)));
        let table = BTreeSet::from([(0, 1), (0, 3), (1, 1), (1, 9)]);
        let found = compare(&acknowledged, &in_doubt, &table);
        assert_eq!(found, Verdict { acknowledged: 3, lost: 1, in_doubt_found: 1, invented: 1 });
    }

    #[test]
    fn lines_are_read() -> Result<()> {
        let commit = Commit { unix_ms: 1_790_000_000_123, begun_us: 40, ended_us: 900 };
        assert_eq!(Commit::read("17 1790000000123 40 900")?, (17, commit));
        assert!(Commit::read("17").is_err() && Commit::read("17 1 2 x").is_err());
        Ok(())
    }
}
