//! The writer on a runtime: a task takes the steps that do not wait for the disk, and a thread beside it the others.
//!
//! ```text
//!   a job ─▶ task: begin ─▶ ring ─▶ task: end, callbacks, begin the next                 (no thread waits)
//!                └─ new file, tidying, idle mark, full disk, close ─▶ thread: help ─▶ task
//! ```
//! Both lock the writer. The task only tries to: while the thread has it, there is nothing for the task to do. When the
//! task is gone (its runtime has ended), or at the close, the thread takes over for good.

use crate::queue::Queue;
use crate::uring::{Ends, Ring};
use crate::writer::{Step, Writer};
use holdfast_journal::Disk;
use holdfast_types::sync::LockExt;
use std::sync::{Arc, Mutex};

/// A writer that a task and a thread share.
pub(crate) struct Beside<D: Disk> {
    /// `None` once the journal is closed.
    writer: Mutex<Option<Writer<D>>>,
    queue: Arc<Queue>,
}

/// Tells the thread that the task is no more, however it ends.
struct Gone(Arc<Queue>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.task_gone();
    }
}

impl<D: Disk> Beside<D> {
    pub fn new(writer: Writer<D>, queue: Arc<Queue>) -> Self {
        queue.hand_to_task();
        Self { writer: Mutex::new(Some(writer)), queue }
    }

    /// The thread's life: helps when it is called; writes everything once there is no task, until the journal is
    /// closed.
    pub fn stand_by(&self) {
        while self.queue.wait_for_call() {
            let mut writer = self.writer.locked();
            if let Some(writer) = &mut *writer {
                writer.help();
            }
            drop(writer);
            self.queue.wake_task();
        }
        let mut writer = self.writer.locked();
        if let Some(writer) = &mut *writer {
            writer.run();
        }
        // The disk is unlocked here, whoever else still holds this.
        *writer = None;
        drop(writer);
        self.queue.wake_task();
    }

    /// The task's next step; `None` while the thread has the writer: it wakes the task when it has ended its turn.
    fn step(&self) -> Option<Step> {
        let mut writer = self.writer.try_lock().ok()?;
        Some(writer.as_mut().map_or(Step::Close, Writer::step))
    }

    /// The task's life. `ring`: that of the writer's disk. The runtime has I/O and time. If it ends before it has begun
    /// the task, the thread takes over as well.
    pub fn drive(self: Arc<Self>, ring: Arc<Ring>) -> impl Future<Output = ()> {
        let gone = Gone(self.queue.clone());
        async move {
            let _gone = gone;
            self.take_steps(&ring).await;
        }
    }

    async fn take_steps(&self, ring: &Arc<Ring>) {
        let ends = match Ends::of(ring.clone()) {
            Ok(ends) => ends,
            Err(error) => return tracing::warn!(%error, "journal: the thread writes, for io_uring cannot be polled"),
        };
        loop {
            let woken = self.queue.task_woken();
            match self.step() {
                // Its end comes to nobody who does not wait for it.
                Some(Step::UnderWay) if ring.is_stuck() => {
                    self.queue.call_thread();
                    woken.await;
                }
                Some(Step::UnderWay) => tokio::select! {
                    ended = ends.next() => if ended.is_err() {
                        return;
                    },
                    () = woken => {}
                },
                Some(Step::Help) => {
                    self.queue.call_thread();
                    woken.await;
                }
                Some(Step::Rest(Some(patience))) => {
                    if tokio::time::timeout(patience, woken).await.is_err() {
                        self.queue.call_thread();
                    }
                }
                Some(Step::Rest(None)) | None => woken.await,
                Some(Step::Close) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_journal::{Journal, Params};
    use holdfast_testkit::SimDisk;

    /// Else the thread would wait for a call that nobody makes.
    #[test]
    fn a_task_that_was_never_begun_is_gone() {
        let Ok(ring) = Ring::open() else { return holdfast_testkit::skipped("no io_uring here") };
        let params = Params { file_bytes: 1 << 20, room_bytes: 8 << 20, disk_uuid: 0, boot: 0 };
        let journal = Journal::open(SimDisk::new(), params, Box::new(rand::random::<u128>));
        let queue = Arc::new(Queue::default());
        let writer = Writer::new(journal.expect("opens").0, queue.clone(), Arc::default(), 0);
        let beside = Arc::new(Beside::new(writer, queue.clone()));
        queue.call_thread();
        assert!(queue.wait_for_call(), "called by the task");
        queue.call_thread();
        drop(beside.drive(Arc::new(ring)));
        assert!(!queue.wait_for_call(), "the thread takes over");
    }
}
