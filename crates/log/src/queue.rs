//! Jobs that wait for the writer: its thread, or a task with the thread beside it.

use crate::memory::Group;
use holdfast_journal::Op;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

type Callback = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Whom to tell the result (LOG-L1).
pub(crate) enum Done {
    /// Called once.
    Each(Callback),
    /// Speaks for all earlier ones of its group: of those that a batch makes durable only the last is called.
    Last(GroupId, Callback),
}

impl Done {
    pub fn each(callback: impl FnOnce(io::Result<()>) + Send + 'static) -> Done {
        Done::Each(Box::new(callback))
    }

    /// The group for whose earlier jobs it speaks.
    pub fn speaks_for(&self) -> Option<GroupId> {
        match self {
            Done::Each(_) => None,
            Done::Last(group, _) => Some(*group),
        }
    }

    pub fn call(self, result: io::Result<()>) {
        let (Done::Each(callback) | Done::Last(_, callback)) = self;
        callback(result);
    }
}

/// Payloads of an append in memory: they may be evicted once the job is durable (LOG-L3).
pub(crate) struct Evictable {
    pub group: Arc<Group>,
    pub append: u64,
}

/// Changes of one group that become durable together, and the callback for the result.
pub(crate) struct Job {
    pub ops: Vec<Op>,
    pub bytes: u64,
    pub evictable: Option<Evictable>,
    pub done: Done,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Written lazily: only the last of each group, with the next write.
    committed: BTreeMap<GroupId, LogId>,
    /// The newest purge of each group, done or not: it may be done first on a full disk.
    purges: BTreeMap<GroupId, LogId>,
    closing: bool,
    closed: bool,
    /// A task handles the jobs, and the thread waits until it is called.
    by_task: bool,
    /// The task called the thread.
    called: bool,
}

impl State {
    /// All waiting jobs, and what is written with them.
    fn take_jobs(&mut self) -> Option<(VecDeque<Job>, BTreeMap<GroupId, LogId>)> {
        if self.jobs.is_empty() {
            return None;
        }
        let jobs = std::mem::take(&mut self.jobs);
        // Written with these jobs: if it were put back, it could be written after its group was dropped.
        let writes = jobs.iter().any(|job| !job.ops.is_empty());
        let committed = if writes { std::mem::take(&mut self.committed) } else { BTreeMap::new() };
        Some((jobs, committed))
    }
}

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    /// Wakes the task, if one handles the jobs.
    task: tokio::sync::Notify,
    /// The reason why nothing is acknowledged any more (LOG-L2).
    failed: OnceLock<String>,
    /// What the writer waits for before it can begin a file, if it does.
    stalled: Mutex<Option<String>>,
    /// The reason why old files cannot be freed, if it is a bad record in the oldest file.
    blocked: Mutex<Option<String>>,
    /// Bytes of records not written yet.
    pending_bytes: AtomicU64,
    /// Notified when `pending_bytes` drops.
    fewer: tokio::sync::Notify,
    /// Bytes that the journal's files take.
    written_bytes: AtomicU64,
}

/// The content of the queue when the writer looks.
pub(crate) enum Work {
    /// `committed` is empty if none of the jobs writes anything.
    Jobs {
        jobs: VecDeque<Job>,
        committed: BTreeMap<GroupId, LogId>,
    },
    Idle,
    Close {
        committed: BTreeMap<GroupId, LogId>,
    },
}

impl Queue {
    /// Queues a job. After [`Queue::mark_closed`] returns it; the caller must then fail it, outside its locks.
    #[must_use]
    pub fn push(&self, job: Job) -> Option<Job> {
        let mut state = self.state.locked();
        if state.closed {
            return Some(job);
        }
        self.pending_bytes.fetch_add(job.bytes, Ordering::Relaxed);
        for op in &job.ops {
            match op {
                Op::Purge { group, upto } => state.purges.insert(*group, *upto),
                Op::DropGroup { group } => state.purges.remove(group),
                _ => None,
            };
        }
        let (wake, by_task) = (state.jobs.is_empty(), state.by_task);
        state.jobs.push_back(job);
        drop(state);
        match by_task {
            _ if !wake => {}
            true => self.task.notify_one(),
            false => self.wake.notify_one(),
        }
        None
    }

    /// Whether a job waits.
    pub fn has_jobs(&self) -> bool {
        !self.state.locked().jobs.is_empty()
    }

    /// The newest purge of each group.
    pub fn purges(&self) -> BTreeMap<GroupId, LogId> {
        self.state.locked().purges.clone()
    }

    pub fn note_committed(&self, group: GroupId, id: LogId) {
        self.state.locked().committed.insert(group, id);
    }

    pub fn forget_committed(&self, group: GroupId) {
        self.state.locked().committed.remove(&group);
    }

    /// All waiting jobs. [`Work::Idle`] after `patience` without work; `None` waits for ever.
    pub fn take(&self, patience: Option<Duration>) -> Work {
        let mut state = self.state.locked();
        loop {
            if let Some((jobs, committed)) = state.take_jobs() {
                return Work::Jobs { jobs, committed };
            }
            if state.closing {
                return Work::Close { committed: std::mem::take(&mut state.committed) };
            }
            state = match patience {
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(patience) if patience.is_zero() => return Work::Idle,
                Some(patience) => {
                    let (state, timeout) =
                        self.wake.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner);
                    if timeout.timed_out() && state.jobs.is_empty() && !state.closing {
                        return Work::Idle;
                    }
                    state
                }
            };
        }
    }

    /// All waiting jobs, and what is written with them, without waiting.
    pub fn take_jobs(&self) -> Option<(VecDeque<Job>, BTreeMap<GroupId, LogId>)> {
        self.state.locked().take_jobs()
    }

    /// From now on a task handles the jobs ([`Queue::task_woken`]), and the thread waits ([`Queue::wait_for_call`]).
    pub fn hand_to_task(&self) {
        self.state.locked().by_task = true;
    }

    /// The task is no more: the thread takes over.
    pub fn task_gone(&self) {
        self.state.locked().by_task = false;
        self.wake.notify_all();
    }

    /// The task calls the thread.
    pub fn call_thread(&self) {
        self.state.locked().called = true;
        self.wake.notify_all();
    }

    /// For the thread beside a task: waits until it is called. False if it is to take over for good: the task is gone,
    /// or the journal is to close.
    pub fn wait_for_call(&self) -> bool {
        let state = self.state.locked();
        let rests = |state: &mut State| state.by_task && !state.closing && !state.called;
        let mut state = self.wake.wait_while(state, rests).unwrap_or_else(PoisonError::into_inner);
        state.called = false;
        if state.closing {
            state.by_task = false;
        }
        state.by_task
    }

    pub fn wake_task(&self) {
        self.task.notify_one();
    }

    /// For the task: waits until a job comes, the thread has ended its turn, or the journal is to close. A wake-up
    /// while nobody waits is kept.
    pub async fn task_woken(&self) {
        self.task.notified().await;
    }

    /// Waits for `patience`, or until the journal is to close; true in the second case.
    pub fn wait_for_close(&self, patience: Duration) -> bool {
        let state = self.state.locked();
        let waited = self.wake.wait_timeout_while(state, patience, |state| !state.closing);
        waited.unwrap_or_else(PoisonError::into_inner).0.closing
    }

    /// Whether the journal is to close.
    pub fn closing(&self) -> bool {
        self.state.locked().closing
    }

    /// No new wake-ups: the writer ends once the queue is empty.
    pub fn close(&self) {
        self.state.locked().closing = true;
        self.wake.notify_all();
        self.task.notify_one();
    }

    /// The writer has ended. False if jobs arrived meanwhile: they must be handled first.
    pub fn mark_closed(&self) -> bool {
        let mut state = self.state.locked();
        state.closed = state.jobs.is_empty();
        self.fewer.notify_waiters();
        state.closed
    }

    pub fn fail(&self, why: String) {
        // The first reason stays.
        let _ = self.failed.set(why);
        self.fewer.notify_waiters();
    }

    pub fn failed(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    pub fn set_stalled(&self, why: Option<String>) {
        *self.stalled.locked() = why;
    }

    pub fn stalled(&self) -> Option<String> {
        self.stalled.locked().clone()
    }

    /// True if that changed.
    pub fn set_blocked(&self, why: Option<String>) -> bool {
        let mut blocked = self.blocked.locked();
        let news = *blocked != why;
        *blocked = why;
        news
    }

    pub fn blocked(&self) -> Option<String> {
        self.blocked.locked().clone()
    }

    pub fn written(&self, job_bytes: u64, total: u64) {
        self.pending_bytes.fetch_sub(job_bytes, Ordering::Relaxed);
        self.written_bytes.store(total, Ordering::Relaxed);
        if job_bytes > 0 {
            self.fewer.notify_waiters();
        }
    }

    /// Waits until at most `bytes` of records wait to be written, or until none will ever be.
    pub async fn at_most(&self, bytes: u64) {
        loop {
            let mut fewer = std::pin::pin!(self.fewer.notified());
            // From here on no notification is missed.
            fewer.as_mut().enable();
            let closed = self.state.locked().closed;
            if closed || self.failed().is_some() || self.pending_bytes.load(Ordering::Relaxed) <= bytes {
                return;
            }
            fewer.await;
        }
    }

    pub fn used_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed) + self.pending_bytes.load(Ordering::Relaxed)
    }
}

/// The error of every callback after the journal failed or was closed.
pub(crate) fn stopped(failed: Option<&str>) -> io::Error {
    match failed {
        Some(why) => io::Error::other(format!("the journal stopped acknowledging: {why}")),
        None => io::Error::new(io::ErrorKind::NotConnected, "the journal is closed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(ops: Vec<Op>) -> Job {
        Job { ops, bytes: 0, evictable: None, done: Done::each(|_| ()) }
    }

    /// A purge that goes ahead on a full disk must be of the group's present life: its next one has the same numbers.
    #[test]
    fn a_purge_ends_with_its_group() {
        let (queue, group, other) = (Queue::default(), GroupId(1), GroupId(2));
        let purge = |group, index| Op::Purge { group, upto: LogId::new(1, index) };
        let push = |ops| assert!(queue.push(job(ops)).is_none(), "it is not closed");
        push(vec![purge(group, 5), purge(other, 6)]);
        push(vec![purge(group, 7), Op::Truncate { group: other, from: 9 }]);
        let of_other = (other, LogId::new(1, 6));
        assert_eq!(queue.purges(), BTreeMap::from([(group, LogId::new(1, 7)), of_other]), "the newest of each");
        push(vec![Op::DropGroup { group }]);
        assert_eq!(queue.purges(), BTreeMap::from([of_other]));
        push(vec![purge(group, 2)]);
        assert_eq!(queue.purges(), BTreeMap::from([(group, LogId::new(1, 2)), of_other]));
    }

    /// The thread of a journal whose runtime has ended must not wait for a call that nobody makes.
    #[test]
    fn the_thread_takes_over_from_a_task_that_is_gone_and_at_the_close() {
        let queue = Queue::default();
        queue.hand_to_task();
        queue.call_thread();
        assert!(queue.wait_for_call(), "called");
        queue.task_gone();
        assert!(!queue.wait_for_call() && !queue.wait_for_call(), "for good");
        assert!(queue.push(job(Vec::new())).is_none());
        assert!(matches!(queue.take(None), Work::Jobs { .. }), "as without a task");
        let queue = Queue::default();
        queue.hand_to_task();
        queue.call_thread();
        queue.close();
        assert!(!queue.wait_for_call(), "the close is more than a call");
    }

    /// Else its caller would wait for ever.
    #[test]
    fn what_comes_after_the_end_goes_back() {
        let queue = Queue::default();
        assert!(queue.push(job(Vec::new())).is_none());
        queue.close();
        assert!(!queue.mark_closed(), "a job waits");
        assert!(queue.push(job(Vec::new())).is_none(), "the writer looks once more");
        let Work::Jobs { jobs, .. } = queue.take(None) else { panic!("no jobs") };
        assert_eq!(jobs.len(), 2);
        assert!(matches!(queue.take(None), Work::Close { .. }));
        assert!(queue.mark_closed());
        assert!(queue.push(job(Vec::new())).is_some());
    }
}
