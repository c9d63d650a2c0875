//! The writer: takes jobs from the queue, makes them durable, calls back, and removes old payloads from memory. It
//! alone writes and syncs the journal (`write_durably`). A client's write waits for it at a majority of the set's
//! voters (R1); the leader need not be among them.
//!
//! A thread of its own runs it ([`Writer::run`]); or a task takes the steps that do not wait for the disk
//! ([`Writer::step`]), and calls the thread for the others ([`Writer::help`]).

use crate::queue::{Done, Evictable, Job, Queue, Work, stopped};
use holdfast_journal::{Disk, Journal, Op, WriteError, is_full};
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// After so long without work, the writer notes on disk that the last batch was synced.
const IDLE_MARK_AFTER: Duration = Duration::from_millis(100);
/// Interval between attempts on a full disk.
const STALL_RETRY: Duration = Duration::from_millis(200);

const PRUNE_AT_LEAST: usize = 4096;
/// Most bytes of a chunk that a task begins. Copying, checksums and sealing of more cost a worker more than a switch to
/// the thread, which does that beside it.
const BEGUN_BYTES_MAX: u64 = 64 << 10;

/// What a journal waits for that cannot begin a file, for people.
fn waits_for(error: &io::Error) -> String {
    let what = if is_full(error) { "room on its disk" } else { "what the system lacks" };
    format!("{what}: {error}")
}

/// Jobs of one batch, and those of their operations that are not durable yet.
struct Chunk {
    ops: VecDeque<Op>,
    jobs: Vec<(u64, Option<Evictable>, Done)>,
}

impl Chunk {
    /// Of each group the last job that speaks for its earlier ones, by its place among the jobs.
    fn speakers(&self) -> BTreeMap<GroupId, usize> {
        let speaks = |(at, (_, _, done)): (usize, &(u64, Option<Evictable>, Done))| Some((done.speaks_for()?, at));
        self.jobs.iter().enumerate().filter_map(speaks).collect()
    }
}

/// What follows a step that does not wait for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A batch is under way: the next step is due when the disk has ended it.
    UnderWay,
    /// What is due may wait for the disk: the thread's turn.
    Help,
    /// Nothing is due. After so long without a job it is the thread's turn; `None`: only a job ends the rest.
    Rest(Option<Duration>),
    /// The journal is to close: the thread's turn, for good.
    Close,
}

/// The part of one turn that is not durable yet: a batch of it is under way, or the disk is full.
struct Held {
    chunk: Chunk,
    jobs: VecDeque<Job>,
    lazy: BTreeMap<GroupId, LogId>,
}

impl Held {
    /// Whether a task may begin it.
    fn is_small(&self) -> bool {
        self.chunk.jobs.iter().map(|(bytes, ..)| bytes).sum::<u64>() <= BEGUN_BYTES_MAX
    }
}

pub(crate) struct Writer<D: Disk> {
    journal: Journal<D>,
    queue: Arc<Queue>,
    tail_bytes: Arc<AtomicU64>,
    tail_bytes_max: u64,
    /// Durable payloads still in memory, oldest first.
    evictable: VecDeque<Evictable>,
    /// Length at which removed entries are deleted from `evictable`: it doubles, so the cost per append is constant.
    prune_at: usize,
    /// Single-threaded mode: never blocks. If the disk has no space, the rest is kept for the next turn.
    turns: bool,
    held: Option<Held>,
    /// When the batch under way was begun.
    begun: Instant,
    /// The journal was tidied since the last chunk was called back: further tidying waits behind jobs.
    tidied: bool,
}

impl<D: Disk> Writer<D> {
    pub fn new(journal: Journal<D>, queue: Arc<Queue>, tail_bytes: Arc<AtomicU64>, tail_bytes_max: u64) -> Self {
        Self {
            journal,
            queue,
            tail_bytes,
            tail_bytes_max,
            evictable: VecDeque::new(),
            prune_at: PRUNE_AT_LEAST,
            turns: false,
            held: None,
            begun: Instant::now(),
            tidied: false,
        }
    }

    /// The thread's whole life, until the journal is closed. First ends what a task has left.
    pub fn run(&mut self) {
        self.land();
        self.write_held();
        loop {
            let patience = match self.queue.stalled() {
                _ if self.journal.wants_tidy() => Some(Duration::ZERO),
                Some(_) if self.queue.failed().is_none() => Some(STALL_RETRY),
                _ => self.journal.wants_idle().then_some(IDLE_MARK_AFTER),
            };
            match self.queue.take(patience) {
                Work::Jobs { jobs, committed } => self.write(jobs, committed),
                Work::Idle => self.idle(),
                Work::Close { committed } => {
                    self.finish(committed);
                    if self.queue.mark_closed() {
                        return;
                    }
                }
            }
        }
    }

    /// Writes the jobs in chunks, each of which is one batch, so that the first job need not wait for the last.
    fn write(&mut self, mut jobs: VecDeque<Job>, committed: BTreeMap<GroupId, LogId>) {
        let mut lazy = committed;
        while !jobs.is_empty() {
            let mut chunk = self.chunk(&mut jobs, &mut lazy);
            if !self.write_durably(&mut chunk.ops) {
                self.held = Some(Held { chunk, jobs, lazy });
                return;
            }
            self.answer(chunk);
        }
        debug_assert!(lazy.is_empty(), "what was taken from the queue goes with the last job that writes");
    }

    /// What is due and does not wait for the disk: ends the batch under way, calls back, begins the next one.
    pub fn step(&mut self) -> Step {
        loop {
            if self.queue.closing() {
                return Step::Close;
            }
            if self.journal.in_flight() {
                match self.journal.ended(false) {
                    None => return Step::UnderWay,
                    Some(ended) => self.note_ended(ended),
                }
            }
            self.tell_ended();
            if self.due_tidying() {
                return Step::Help;
            }
            let Some(held) = self.held.take().or_else(|| self.taken()) else { return self.rest() };
            if self.queue.failed().is_some() || held.chunk.ops.is_empty() {
                self.tell(held.chunk);
                self.held = self.next_held(held.jobs, held.lazy);
                continue;
            }
            // While the disk is full, only the thread knows what to do.
            let begins = held.is_small() && self.queue.stalled().is_none();
            let begun = begins && self.journal.begin(&held.chunk.ops);
            self.held = Some(held);
            if !begun {
                return Step::Help;
            }
            self.begun = Instant::now();
            return Step::UnderWay;
        }
    }

    fn rest(&self) -> Step {
        if self.queue.failed().is_some() {
            return Step::Rest(None);
        }
        if self.queue.stalled().is_some() {
            return Step::Rest(Some(STALL_RETRY));
        }
        if self.journal.has_tidying() {
            return Step::Help;
        }
        Step::Rest(self.journal.wants_idle().then_some(IDLE_MARK_AFTER))
    }

    /// The thread's turn beside a task: what is due and may wait for the disk.
    pub fn help(&mut self) {
        self.land();
        let told = self.tell_ended();
        if self.due_tidying() {
            return self.tidy();
        }
        if self.held.is_some() {
            self.write_large();
        } else if told || self.queue.has_jobs() {
            // The task goes on: these jobs came after its call, or it will rest first.
        } else if self.journal.has_tidying() {
            self.tidy();
        } else {
            self.idle();
        }
    }

    /// Writes what is held, and goes on while what comes next is large: the disk need not wait for the task between.
    fn write_large(&mut self) {
        while let Some(Held { mut chunk, jobs, lazy }) = self.held.take() {
            if !self.write_durably(&mut chunk.ops) {
                self.held = Some(Held { chunk, jobs, lazy });
                return;
            }
            self.answer(chunk);
            self.held = self.next_held(jobs, lazy).or_else(|| self.taken());
            if self.held.as_ref().is_some_and(Held::is_small) {
                return;
            }
        }
    }

    /// Whether tidying goes before the next chunk.
    fn due_tidying(&self) -> bool {
        let goes_on = self.queue.failed().is_none() && self.queue.stalled().is_none();
        goes_on && !self.tidied && self.journal.has_tidying()
    }

    /// Waits for the batch under way, if there is one.
    fn land(&mut self) {
        if let Some(ended) = self.journal.ended(true) {
            self.note_ended(ended);
        }
    }

    fn note_ended(&mut self, ended: Result<usize, WriteError>) {
        let durable = match ended {
            Ok(durable) => durable,
            Err(error) => return self.fail(&error),
        };
        metrics::histogram!("holdfast_journal_write_seconds").record(self.begun.elapsed().as_secs_f64());
        debug_assert!(self.held.is_some(), "a batch is begun for what is held");
        if let Some(held) = &mut self.held {
            held.chunk.ops.drain(..durable);
        }
    }

    /// Calls back for what is held and durable. Tidying, which may wait for the disk, comes after that: whoever waits
    /// for the answer must not wait for it too. Returns whether there was anything.
    fn tell_ended(&mut self) -> bool {
        let mut any = false;
        while let Some(Held { chunk, jobs, lazy }) = self.held.take_if(|held| held.chunk.ops.is_empty()) {
            self.tell(chunk);
            self.held = self.next_held(jobs, lazy);
            any = true;
        }
        any
    }

    /// The first chunk of all jobs that wait, with the others.
    fn taken(&self) -> Option<Held> {
        let (jobs, committed) = self.queue.take_jobs()?;
        self.next_held(jobs, committed)
    }

    /// The first chunk of `jobs`, held with the others; `None` without jobs.
    fn next_held(&self, mut jobs: VecDeque<Job>, mut lazy: BTreeMap<GroupId, LogId>) -> Option<Held> {
        if jobs.is_empty() {
            debug_assert!(lazy.is_empty(), "what was taken from the queue goes with the last job that writes");
            return None;
        }
        let chunk = self.chunk(&mut jobs, &mut lazy);
        Some(Held { chunk, jobs, lazy })
    }

    /// Writes what is held. In turns, the rest is held again if the disk has no room for it.
    fn write_held(&mut self) {
        let Some(Held { mut chunk, jobs, lazy }) = self.held.take() else { return };
        if !self.write_durably(&mut chunk.ops) {
            self.held = Some(Held { chunk, jobs, lazy });
            return;
        }
        self.answer(chunk);
        self.write(jobs, lazy);
    }

    /// The next chunk of `jobs`, which must not be empty. Lazy writes go with the last job that writes.
    fn chunk(&self, jobs: &mut VecDeque<Job>, lazy: &mut BTreeMap<GroupId, LogId>) -> Chunk {
        let (mut chunk, mut bytes) = (Chunk { ops: VecDeque::new(), jobs: Vec::new() }, 0);
        while let Some(job) = jobs.pop_front() {
            bytes += job.bytes;
            let Job { ops, bytes: job_bytes, evictable, done } = job;
            chunk.ops.extend(ops);
            chunk.jobs.push((job_bytes, evictable, done));
            if jobs.front().is_some_and(|next| bytes + next.bytes > self.journal.batch_bytes_max()) {
                break;
            }
        }
        if !chunk.ops.is_empty() && jobs.iter().all(|job| job.ops.is_empty()) {
            chunk.ops.extend(std::mem::take(lazy).into_iter().map(|(group, id)| Op::Committed { group, id }));
        }
        chunk
    }

    /// Calls back, then tidies.
    fn answer(&mut self, chunk: Chunk) {
        self.tell(chunk);
        self.tidy();
    }

    /// Calls back (LOG-L1): the chunk is durable, or the journal has failed.
    fn tell(&mut self, chunk: Chunk) {
        let used = self.journal.used_bytes();
        let speakers = chunk.speakers();
        for (at, (job_bytes, evictable, done)) in chunk.jobs.into_iter().enumerate() {
            self.queue.written(job_bytes, used);
            match self.queue.failed() {
                None => {
                    let covered = done.speaks_for().is_some_and(|group| speakers.get(&group) > Some(&at));
                    if !covered {
                        done.call(Ok(()));
                    }
                    self.evictable.extend(evictable);
                }
                Some(why) => done.call(Err(stopped(Some(why)))),
            }
        }
        metrics::gauge!("holdfast_journal_used_bytes").set(used as f64);
        self.tidied = false;
        self.evict();
    }

    /// True if `ops` are durable or the journal failed (LOG-L2). False only in turns: the disk has no room for the
    /// rest.
    fn write_durably(&mut self, ops: &mut VecDeque<Op>) -> bool {
        while self.queue.failed().is_none() && !ops.is_empty() {
            let begun = Instant::now();
            match self.journal.write(ops) {
                Ok(()) => {
                    // Only `tidy` decides whether the journal is stalled: even if this batch fits into the last file,
                    // there may be no space for another file.
                    metrics::histogram!("holdfast_journal_write_seconds").record(begun.elapsed().as_secs_f64());
                }
                Err(WriteError::NoRoom(error)) => {
                    holdfast_reached::reached!("journal: the disk is full");
                    tracing::warn!(%error, "journal: cannot begin another file, trying again");
                    self.queue.set_stalled(Some(waits_for(&error)));
                    if self.purge_ahead() {
                        holdfast_reached::reached!("journal: a purge behind waiting jobs frees files");
                        continue;
                    }
                    let closing =
                        if self.turns { self.queue.closing() } else { self.queue.wait_for_close(STALL_RETRY) };
                    if closing {
                        holdfast_reached::reached!("journal: closed while the disk is full");
                        self.queue.fail(format!("closed while no file could be begun: {error}"));
                    } else if self.turns {
                        return false;
                    }
                }
                Err(error) => self.fail(&error),
            }
        }
        true
    }

    /// On a full disk, writes purges that wait behind jobs for which there is no space: purges free files. True if that
    /// changed something.
    fn purge_ahead(&mut self) -> bool {
        match self.journal.purge_ahead(self.queue.purges()) {
            Ok(false) => return false,
            Ok(true) => {}
            Err(error) => {
                self.fail(&error);
                return true;
            }
        }
        self.tidy();
        while self.journal.wants_tidy() {
            self.tidy();
        }
        self.queue.failed().is_some() || self.queue.stalled().is_none()
    }

    fn fail(&mut self, error: &WriteError) {
        tracing::error!(%error, "journal failed: this node acknowledges no more writes");
        holdfast_reached::reached!("journal: the disk failed");
        self.queue.fail(error.to_string());
    }

    fn idle(&mut self) {
        if self.queue.failed().is_some() {
            return;
        }
        if self.journal.wants_tidy() || self.queue.stalled().is_some() {
            return self.tidy();
        }
        if let Err(error) = self.journal.mark_idle() {
            self.fail(&error);
        }
    }

    /// Drops files that hold nothing live, carries little forward, begins the next file: after the callbacks.
    fn tidy(&mut self) {
        if self.queue.failed().is_some() {
            return;
        }
        self.tidied = true;
        match self.journal.tidy() {
            Ok(()) => self.queue.set_stalled(None),
            Err(WriteError::NoRoom(error)) => self.queue.set_stalled(Some(waits_for(&error))),
            Err(error) => self.fail(&error),
        }
        let blocked = self.journal.blocked().map(ToString::to_string);
        if self.queue.set_blocked(blocked.clone())
            && let Some(why) = blocked
        {
            holdfast_reached::reached!("journal: a bad record keeps its file");
            tracing::error!(why, "journal: a synced record is bad, old files cannot be freed");
        }
        let used = self.journal.used_bytes();
        metrics::gauge!("holdfast_journal_used_bytes").set(used as f64);
        self.queue.written(0, used);
    }

    fn evict(&mut self) {
        if self.evictable.len() >= self.prune_at {
            // Purged and truncated payloads have left memory already.
            self.evictable.retain(|Evictable { group, append }| group.memory.locked().holds(*append));
            self.prune_at = (2 * self.evictable.len()).max(PRUNE_AT_LEAST);
        }
        while self.tail_bytes.load(Ordering::Relaxed) > self.tail_bytes_max {
            let Some(Evictable { group, append }) = self.evictable.pop_front() else { return };
            let removed = group.memory.locked().evict(append);
            self.tail_bytes.fetch_sub(removed.bytes, Ordering::Relaxed);
        }
    }

    fn finish(&mut self, committed: BTreeMap<GroupId, LogId>) {
        if self.queue.failed().is_some() {
            return;
        }
        let mut ops = committed.into_iter().map(|(group, id)| Op::Committed { group, id }).collect();
        let written = self.write_durably(&mut ops);
        debug_assert!(written, "a journal that is closed waits for no room");
        if self.queue.failed().is_none()
            && let Err(error) = self.journal.finish()
        {
            self.fail(&error);
        }
    }
}

/// The writer without its thread, for a simulation: each call does one turn, on the caller's thread.
pub struct Turns(Box<dyn Turn + Send>);

trait Turn {
    fn waits(&self) -> bool;
    fn turn(&mut self, idle: bool);
    fn step(&mut self) -> Step;
    fn help(&mut self);
}

impl Turns {
    pub(crate) fn of<D: Disk + Send + 'static>(writer: Writer<D>) -> Self {
        Self(Box::new(Writer { turns: true, ..writer }))
    }

    /// Whether something waits to be written, or the journal needs tidying.
    pub fn waits(&self) -> bool {
        self.0.waits()
    }

    /// Writes what waits, syncs and calls back; if there is nothing to write, tidies. `idle`: nothing has waited for a
    /// while; then the thread would mark the last batch as synced. If the disk has no space, the rest is held, and the
    /// next turn tries again.
    pub fn turn(&mut self, idle: bool) {
        self.0.turn(idle);
    }

    /// What the task does that writes by io_uring: one step that does not wait for the disk. A batch that it begins
    /// goes on by itself, if the disk can do that.
    pub fn step(&mut self) -> Step {
        self.0.step()
    }

    /// What the thread beside that task does when it is called.
    pub fn help(&mut self) {
        self.0.help();
    }
}

impl<D: Disk> Turn for Writer<D> {
    fn waits(&self) -> bool {
        self.held.is_some() || self.queue.has_jobs() || self.journal.wants_tidy()
    }

    fn turn(&mut self, idle: bool) {
        self.land();
        if self.held.is_some() {
            return self.write_held();
        }
        let look = idle && (self.journal.wants_idle() || self.queue.stalled().is_some());
        match self.queue.take(Some(Duration::ZERO)) {
            Work::Jobs { jobs, committed } => self.write(jobs, committed),
            Work::Idle if self.journal.wants_tidy() || look => self.idle(),
            Work::Idle => {}
            Work::Close { committed } => {
                self.finish(committed);
                self.queue.mark_closed();
            }
        }
    }

    fn step(&mut self) -> Step {
        Writer::step(self)
    }

    fn help(&mut self) {
        Writer::help(self);
    }
}
