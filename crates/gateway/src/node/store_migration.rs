//! Changes of a set's stores (ADR 0018). Each gateway opens the stores in group 0. The leader of group 0 asks the set's
//! leader whether the next step is allowed, and proposes it (PLACE-P1).

use super::{Adopted, Node};
use holdfast_control::cluster::ClusterCommand;
use holdfast_host::unix_ms;
use holdfast_raft::MigrationReporter;
use holdfast_set::server::SetServer;
use holdfast_store::{Health, ObjectStore, Op, StoreError};
use holdfast_types::sync::LockExt;
use holdfast_types::{Placement, SetId};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Pause between two rounds.
const TURN: Duration = Duration::from_millis(500);

/// This gateway's answer about a set's change of stores, if it leads the set.
pub(super) fn reporter(node: Weak<Node>) -> MigrationReporter {
    Box::new(move |id| {
        let node = node.upgrade()?;
        let entry = node.cluster.state().sets.get(&id)?.name.clone();
        node.set(&entry).filter(|set| set.id == id)?.migration.said()
    })
}

/// Opens a set's new stores if they have changed. Requests in progress continue at the old ones.
pub(super) async fn follow(node: &Node, set: &SetServer, text: &str) {
    if set.switch.text() == text {
        return;
    }
    match (node.seams.store)(&node.config, text, set.health.clone()).await {
        Ok(store) => {
            tracing::info!(set = %set.name, from = %set.switch.text(), to = text, "changing the set's stores");
            set.switch.set(text, store);
            // With several stores, each has its own health; the errors of a former single store no longer count.
            set.health.attempt(unix_ms(), Op::Get, None);
            node.troubles.locked().remove(&set.id);
        }
        Err(error) => {
            let why = format!("its stores were changed to {text:?}, which this gateway cannot open: {error}");
            let trouble = (set.name.clone(), why.clone());
            if node.troubles.locked().insert(set.id, trouble).is_none_or(|(_, before)| before != why) {
                tracing::error!(set = %set.name, "{why}");
            }
        }
    }
}

impl Node {
    /// Opens one future store of a set with this gateway's settings.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) async fn open_place(&self, url: &str, set: SetId) -> Result<Arc<dyn ObjectStore>, StoreError> {
        (self.seams.store)(&self.config, url, Arc::new(Health::new(set.to_string()))).await
    }
}

/// Proposes the steps for which sets' leaders are ready, while this gateway leads group 0.
pub(super) async fn run(node: Arc<Node>, adopted: Adopted) {
    while node.passes(TURN).await {
        if adopted.group.ready_term().is_none() {
            continue;
        }
        let state = node.cluster.state();
        for (id, entry) in &state.sets {
            let from = Placement::parse(&entry.store_url);
            if from.next.is_none() {
                continue;
            }
            for member in state.members.values() {
                let asked = adopted.raft.ask_migration(*id, member.id, &member.peer_addr);
                let said = tokio::select! {
                    () = node.stop.cancelled() => return,
                    said = asked => said,
                };
                let step = match said {
                    Ok(Some(migration)) => migration.step,
                    Ok(None) => None,
                    Err(why) => {
                        tracing::debug!(set = %entry.name, member = %member.id, %why, "cannot ask how far a change of stores is");
                        None
                    }
                };
                // The step may have been done since.
                let Some((expected, placement)) = step
                    .filter(|(expected, to)| *expected == entry.store_url && from.may_become(&Placement::parse(to)))
                else {
                    continue;
                };
                let command = ClusterCommand::PlaceSet { set: *id, expected, placement: placement.clone() };
                match node.cluster.command(&adopted.group, &command).await {
                    Ok(answer) => {
                        tracing::info!(set = %entry.name, to = placement, ?answer, "a step of a change of stores")
                    }
                    Err(error) => {
                        tracing::debug!(set = %entry.name, %error, "a step of a change of stores is not done yet")
                    }
                }
                break;
            }
        }
    }
}
