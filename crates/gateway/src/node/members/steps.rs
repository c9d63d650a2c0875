//! Steps of groups under way at a gateway: each in a task, so that one that hangs keeps no other group waiting.

use holdfast_raft::Group;
use holdfast_types::GroupId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::{JoinError, JoinHandle};

/// Most sets whose members are changed at the same time here.
const STEPS_AT_ONCE: usize = 16;

/// A task that ends with its owner.
pub(super) struct Task<T>(JoinHandle<T>);

impl<T: Send + 'static> Task<T> {
    pub(super) fn spawn(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }

    /// Its result.
    ///
    /// # Errors
    /// It panicked.
    pub(super) async fn done(&mut self) -> Result<T, JoinError> {
        (&mut self.0).await
    }
}

impl<T> Task<T> {
    pub(super) fn is_done(&self) -> bool {
        self.0.is_finished()
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Steps under way: one of each group, and of sets [`STEPS_AT_ONCE`].
#[derive(Default)]
pub(super) struct Steps {
    running: BTreeMap<GroupId, Task<()>>,
    /// The group whose step was begun last.
    last: Option<GroupId>,
}

impl Steps {
    pub(super) fn forget_done(&mut self) {
        self.running.retain(|_, step| !step.is_done());
    }

    /// The groups in the order in which they may begin a step: those behind the last one first, so that each has its
    /// turn however many hang.
    pub(super) fn in_turn(&self, mut groups: Vec<Group>) -> Vec<Group> {
        groups.sort_by_key(|group| self.turn_of(group.id()));
        groups
    }

    fn turn_of(&self, id: GroupId) -> (bool, GroupId) {
        (Some(id) <= self.last, id)
    }

    /// Group 0 waits for no set.
    pub(super) fn may_begin(&self, id: GroupId) -> bool {
        let of_sets = || self.running.keys().filter(|of| **of != GroupId::CLUSTER).count();
        !self.running.contains_key(&id) && (id == GroupId::CLUSTER || of_sets() < STEPS_AT_ONCE)
    }

    /// After `limit` the group may begin another step, whatever became of this one: a group whose disk hangs answers
    /// nothing, and its step would keep its place for ever.
    pub(super) fn begin(&mut self, id: GroupId, limit: Duration, step: impl Future<Output = ()> + Send + 'static) {
        if id != GroupId::CLUSTER {
            self.last = Some(id);
        }
        let step = async move {
            if tokio::time::timeout(limit, step).await.is_err() {
                tracing::warn!(group = %id, ?limit, "a step of the group's members takes too long; trying again");
            }
        };
        self.running.insert(id, Task::spawn(step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    /// A step that hung kept every other group of this gateway waiting, for 15 s each time.
    #[tokio::test]
    async fn a_step_that_hangs_keeps_no_other_group_waiting() {
        let mut steps = Steps::default();
        for id in 1..=STEPS_AT_ONCE as u64 {
            assert!(steps.may_begin(GroupId(id)));
            steps.begin(GroupId(id), LONG, std::future::pending());
        }
        assert!(!steps.may_begin(GroupId(99)), "the limit");
        assert!(steps.may_begin(GroupId::CLUSTER), "group 0 waits for no set");
        let mut steps = Steps::default();
        steps.begin(GroupId(1), LONG, std::future::pending());
        steps.begin(GroupId(2), LONG, std::future::ready(()));
        assert!(!steps.may_begin(GroupId(2)), "one step of a group");
        for _ in 0..100 {
            tokio::task::yield_now().await;
            steps.forget_done();
        }
        assert!(steps.may_begin(GroupId(2)) && !steps.may_begin(GroupId(1)));
        let mut groups = [3, 1, 0, 2].map(GroupId);
        groups.sort_by_key(|id| steps.turn_of(*id));
        assert_eq!(groups, [3, 0, 1, 2].map(GroupId), "each has its turn");
    }

    /// Sixteen groups whose disks hang would keep the members of all others from being changed.
    #[tokio::test]
    async fn a_step_that_never_ends_gives_its_place_back() {
        let mut steps = Steps::default();
        steps.begin(GroupId(1), Duration::from_millis(1), std::future::pending());
        for _ in 0..200 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            steps.forget_done();
            if steps.may_begin(GroupId(1)) {
                return;
            }
        }
        panic!("it has its place for ever");
    }
}
