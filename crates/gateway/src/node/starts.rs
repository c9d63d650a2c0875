//! Starts of sets, each in a task of its own: a slow store, or a group that is being healed, delays no other set.

use super::start_set::start_set;
use super::{Adopted, Node, NodeError, heal, store_migration};
use holdfast_control::cluster::{ClusterState, SetEntry};
use holdfast_set::server::SetServer;
use holdfast_types::SetId;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{JoinError, JoinHandle};
use tokio_util::sync::CancellationToken;

/// How long one round waits for a start to end.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// At most one task for each set of the cluster.
#[derive(Default)]
pub(super) struct Starts(BTreeMap<SetId, Start>);

struct Start {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Starts {
    /// Begins `work` for a set, unless a task of this set is under way. Its token stops the work, and the set if it is
    /// running by then. Waits for nothing. If the last task of this set panicked, this call panics too (R11).
    pub(super) async fn begin<F>(
        &mut self,
        set: SetId,
        parent: &CancellationToken,
        work: impl FnOnce(CancellationToken) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(earlier) = self.0.get_mut(&set) {
            if !earlier.task.is_finished() {
                return;
            }
            pass_panic_on((&mut earlier.task).await);
        }
        let stop = parent.child_token();
        let task = tokio::spawn(work(stop.clone()));
        self.0.insert(set, Start { stop, task });
    }

    /// Whether a task of this set is under way.
    pub(super) fn is_busy(&self, set: SetId) -> bool {
        self.0.get(&set).is_some_and(|start| !start.task.is_finished())
    }

    /// Stops the task of a set and waits until it has ended. It is not aborted: a group that is half started could
    /// still write to its log while that is dropped.
    ///
    /// # Errors
    /// It has not ended in time. Call again.
    pub(super) async fn end(&mut self, set: SetId) -> Result<(), NodeError> {
        let Some(start) = self.0.get_mut(&set) else { return Ok(()) };
        start.stop.cancel();
        let Ok(ended) = tokio::time::timeout(ENDS_WITHIN, &mut start.task).await else {
            return Err(NodeError::Refused(format!("set {set}: it is still being started")));
        };
        self.0.remove(&set);
        pass_panic_on(ended);
        Ok(())
    }
}

/// R11: a broken invariant in a task must not be lost with the result of the task.
fn pass_panic_on(ended: Result<(), JoinError>) {
    if let Err(ended) = ended
        && let Ok(panic) = ended.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

/// What a start of a set needs.
#[derive(Clone)]
pub(super) struct Order {
    pub node: Arc<Node>,
    pub adopted: Adopted,
    pub id: SetId,
    pub entry: SetEntry,
    pub state: Arc<ClusterState>,
    /// It was created after this process had begun.
    pub younger: bool,
}

/// Starts a set here. If its group is damaged, waits until the other gateways let this one heal it; the next start
/// follows that.
pub(super) async fn start(order: Order, stop: CancellationToken) {
    let Order { node, adopted, id, entry, state, younger } = order;
    // QUARANTINE-Q5
    let prepared = if younger { adopted.raft.begin_younger(id).await } else { Ok(()) };
    let started = match prepared {
        Ok(()) => start_set(&node, &adopted, id, &entry, &state, stop.clone()).await,
        Err(error) => Err(error.into()),
    };
    let error = match started {
        Ok(()) => {
            node.troubles.locked().remove(&id);
            return;
        }
        Err(_) if stop.is_cancelled() => return,
        Err(error) => error,
    };
    tracing::error!(set = %entry.name, %error, "the set cannot run here");
    node.troubles.locked().insert(id, (entry.name.clone(), error.to_string()));
    if let Some(group) = heal::healable(&error) {
        stop.run_until_cancelled(heal::readmit(&node, &adopted.raft, group)).await;
    }
}

/// Opens the stores that a running set has by now, according to group 0.
pub(super) async fn follow_stores(node: Arc<Node>, set: Arc<SetServer>, stores: String, stop: CancellationToken) {
    stop.run_until_cancelled(store_migration::follow(&node, &set, &stores)).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::GroupId;
    use std::sync::atomic::{AtomicU32, Ordering};

    const SETS: [SetId; 2] = [GroupId(1), GroupId(2)];

    #[tokio::test]
    async fn a_start_that_hangs_delays_no_other_set_and_can_be_stopped() {
        let (mut starts, stop, begun) = (Starts::default(), CancellationToken::new(), Arc::new(AtomicU32::new(0)));
        for _ in 0..3 {
            let begun = begun.clone();
            starts
                .begin(SETS[0], &stop, |stop| async move {
                    begun.fetch_add(1, Ordering::AcqRel);
                    stop.cancelled().await;
                })
                .await;
            tokio::task::yield_now().await;
        }
        assert_eq!(begun.load(Ordering::Acquire), 1, "one task for each set at a time");
        let (done, told) = tokio::sync::oneshot::channel();
        starts
            .begin(SETS[1], &stop, |_| async move {
                let _ = done.send(());
            })
            .await;
        told.await.unwrap();
        assert!(starts.is_busy(SETS[0]) && !starts.is_busy(GroupId(9)));
        starts.end(SETS[0]).await.unwrap();
        assert!(!stop.is_cancelled() && starts.0.len() == 1 && !starts.is_busy(SETS[0]));
    }

    #[tokio::test]
    async fn a_start_that_does_not_stop_is_waited_for_again() {
        let (mut starts, stop, (finish, finished)) =
            (Starts::default(), CancellationToken::new(), tokio::sync::oneshot::channel::<()>());
        starts
            .begin(SETS[0], &stop, |_| async move {
                let _ = finished.await;
            })
            .await;
        assert!(matches!(starts.end(SETS[0]).await, Err(NodeError::Refused(_))));
        finish.send(()).unwrap();
        starts.end(SETS[0]).await.unwrap();
        assert!(starts.0.is_empty());
    }

    #[tokio::test]
    #[should_panic(expected = "a broken invariant")]
    async fn a_panic_of_a_start_reaches_the_task_that_begins_the_next_one() {
        let (mut starts, stop) = (Starts::default(), CancellationToken::new());
        starts.begin(SETS[0], &stop, |_| async { panic!("a broken invariant") }).await;
        while !starts.0[&SETS[0]].task.is_finished() {
            tokio::task::yield_now().await;
        }
        starts.begin(SETS[0], &stop, |_| async {}).await;
    }
}
