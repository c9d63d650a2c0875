//! Stops a set that is no longer in group 0, and removes it from this disk (ADR 0029).
//!
//! In this order: the set can no longer be found here and its connections are closed; its tasks end, so that no request
//! goes to its store; its Raft group is ended for ever, and its log and snapshots are dropped (`holdfast_raft`, END-E1
//! to END-E3); its notes are deleted. Only then does this gateway report that the set has ended here. Each step can be
//! repeated; after a crash, the rest is done.

use super::running::{Running, notes};
use super::starts::Starts;
use super::{Adopted, Node, NodeError};
use holdfast_control::cluster::ClusterState;
use holdfast_types::sync::{LockExt, RwLockExt};
use holdfast_types::{LogId, SetId};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::Instant;

/// How long one round waits for a set's tasks to end. A store request in progress is given up at once; work on blocking
/// threads is not.
const TASKS_END_WITHIN: Duration = Duration::from_secs(2);

/// State that is kept between rounds.
#[derive(Default)]
pub(super) struct Ender {
    ended: BTreeSet<SetId>,
    said: BTreeMap<SetId, String>,
    /// Deletions whose key is gone from group 0 on this disk.
    forgotten: BTreeSet<SetId>,
    /// Deletions whose key must go, and the log entry that a snapshot must cover for that.
    going: Option<(BTreeSet<SetId>, LogId)>,
}

impl Ender {
    /// One round: sets that run here or are on this disk, and no longer belong to the cluster.
    pub(super) async fn round(&mut self, node: &Node, adopted: &Adopted, state: &ClusterState, starts: &mut Starts) {
        let runs: Vec<SetId> = node.running.locked().keys().copied().collect();
        let gone = runs.into_iter().filter(|id| state.was_deleted(*id));
        let gone: BTreeSet<SetId> = gone.chain(state.deletions.under_way.keys().copied()).collect();
        self.ended.retain(|id| gone.contains(id));
        for id in gone {
            if self.ended.contains(&id) {
                continue;
            }
            let ended = match starts.end(id).await {
                Ok(()) => end_set(node, adopted, id).await,
                Err(error) => Err(error),
            };
            match ended {
                Ok(()) => {
                    self.said.remove(&id);
                    self.ended.insert(id);
                }
                Err(e) => {
                    let why = e.to_string();
                    if self.said.get(&id) != Some(&why) {
                        tracing::warn!(set = %id, error = %why, "cannot end a deleted set here yet; trying again");
                        self.said.insert(id, why);
                    }
                }
            }
        }
        self.purge_keys(adopted, state).await;
    }

    /// A deleted key is still in the log of group 0 and in its last snapshot here. The next snapshot is without it, and
    /// the log before that is purged.
    async fn purge_keys(&mut self, adopted: &Adopted, state: &ClusterState) {
        use holdfast_control::cluster::DeletionStage;
        let without = state.deletions.under_way.iter().filter(|(_, found)| found.stage > DeletionStage::Ending);
        let without: BTreeSet<SetId> =
            without.map(|(id, _)| *id).chain(state.deletions.finished.iter().copied()).collect();
        if without.is_subset(&self.forgotten) {
            return;
        }
        // A trigger is ignored while another snapshot is being built. So wait for a snapshot that covers everything
        // applied by now.
        let applied = adopted.group.applied();
        let (what, upto) = self.going.get_or_insert_with(|| (without.clone(), applied));
        if *what != without {
            (*what, *upto) = (without.clone(), applied);
        }
        if adopted.group.snapshot_last().is_some_and(|last| last.index >= upto.index) {
            self.forgotten = without;
            self.going = None;
        } else if let Err(error) = adopted.group.trigger_snapshot().await {
            tracing::debug!(%error, "no snapshot of group 0 yet");
        }
    }
}

async fn end_set(node: &Node, adopted: &Adopted, id: SetId) -> Result<(), NodeError> {
    node.troubles.locked().remove(&id);
    stop_set(node, id).await?;
    adopted.raft.end_group(id).await?;
    let dir = node.config.data_dir.clone();
    let io = |what: &str| {
        let what = format!("{what} of set {id}");
        move |source| NodeError::Io { what, source }
    };
    let remove = move || remove_notes(&dir, id);
    let removed = holdfast_log::spawn_blocking(remove).await.map_err(|e| io("notes")(std::io::Error::other(e)))?;
    removed.map_err(io("notes"))
}

/// Ends everything of a set that runs here, except its group. The set can no longer be found here.
///
/// # Errors
/// Some of its tasks have not ended in time. Call again.
pub(super) async fn stop_set(node: &Node, id: SetId) -> Result<(), NodeError> {
    let running = node.running.locked().remove(&id);
    if let Some(running) = running {
        {
            let mut sets = node.sets.writing();
            if sets.get(&running.name).is_some_and(|set| set.id == id) {
                sets.remove(&running.name);
            }
        }
        running.stop.cancel();
        if let Some(left) = wait_for(running).await {
            let tasks = left.tasks.len();
            node.running.locked().insert(id, left);
            return Err(NodeError::Refused(format!("set {id}: {tasks} of its tasks are still running")));
        }
        // The memory cache does not know which set its opened values belong to, so drop all. The other sets fetch
        // theirs again.
        node.cache.forget_opened();
    }
    Ok(())
}

/// The tasks that have not ended in time, if any.
async fn wait_for(mut running: Running) -> Option<Running> {
    let ends = Instant::now() + TASKS_END_WITHIN;
    let mut left = Vec::new();
    for mut task in running.tasks {
        if tokio::time::timeout_at(ends, &mut task).await.is_err() {
            // The tasks wait for something that will not come any more.
            task.abort();
            if tokio::time::timeout(TASKS_END_WITHIN, &mut task).await.is_err() {
                left.push(task);
            }
        }
    }
    running.tasks = left;
    (!running.tasks.is_empty()).then_some(running)
}

fn remove_notes(dir: &std::path::Path, id: SetId) -> std::io::Result<()> {
    for path in notes(dir, id) {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    std::fs::File::open(dir)?.sync_all()
}
