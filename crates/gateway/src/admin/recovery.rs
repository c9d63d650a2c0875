//! Calls for recovery when only the store is left, and for its preparation.

use super::AdminDoor;
use super::member::precondition;
use super::stores::not_opened;
use crate::node::Adopted;
use crate::store_options::open_store;
use futures_util::future::BoxFuture;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand};
use holdfast_control::set::SetState;
use holdfast_set::recovery::{Found, ReadError, read};
use holdfast_store::Health;
use holdfast_types::{GroupId, Placement, PlacementPhase, SetId, Term};
use std::sync::Arc;
use std::time::Duration;

/// How long the store may take to return a set's head.
const HEAD_LIMIT: Duration = Duration::from_secs(20);

impl AdminDoor {
    /// The set's placement from now on. A change of stores that was in progress continues; it can no longer be
    /// abandoned, because its first list of stores has ended.
    async fn placement_of(&self, found: &Found, text: &str) -> Result<String, Refusal> {
        let mut placement = Placement::parse(text);
        if let (Some((phase, _)), Some(several)) = (&mut placement.next, found.store.several()) {
            let ended = tokio::time::timeout(HEAD_LIMIT, several.list_ended(found.set)).await;
            let busy = |why: String| Refusal::new(RefusalCode::Busy, format!("store: {why}"));
            match ended {
                Ok(Ok(true)) => *phase = PlacementPhase::Ending,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => return Err(busy(error.to_string())),
                Err(_) => return Err(busy(format!("no answer within {HEAD_LIMIT:?}"))),
            }
        }
        Ok(placement.to_string())
    }

    /// Adds a set that a recovery or a takeover found in its store to this cluster.
    ///
    /// # Errors
    /// The refusal that a remote caller would get.
    pub fn restore_set(&self, request: v1::RestoreSetRequest) -> BoxFuture<'_, Result<v1::RestoreSetReply, Refusal>> {
        Box::pin(async move {
            self.led_cluster()?;
            let restore =
                move |door: Self, adopted, term| async move { door.restore_alone(request, &adopted, term).await };
            self.alone(&self.node.turns.sets, restore).await
        })
    }

    async fn restore_alone(
        &self,
        request: v1::RestoreSetRequest,
        adopted: &Adopted,
        term: Term,
    ) -> Result<v1::RestoreSetReply, Refusal> {
        let set = GroupId(request.set);
        if set == GroupId::CLUSTER {
            return Err(Refusal::new(RefusalCode::Invalid, "set: found 0, expected a set's number"));
        }
        let created = self.node.cluster.read(|state| !state.sets.contains_key(&set));
        if created {
            self.places_agree().await?;
        }
        let state = self.node.cluster.state();
        let _none_joins = if created { Some(self.each_member_joined(adopted).await?) } else { None };
        let found = self.found_in(&request.store, set).await?;
        let life = found.head.life;
        if (life.cluster, life.generation) != (state.cluster_id, request.generation) {
            return Err(precondition(format!(
                "set {}: found generation {} of cluster {:032x} in the store, expected generation {} of this cluster, {:032x}: \
                 another recovery is running, or this one has not raised the head",
                found.head.name, life.generation, life.cluster, request.generation, state.cluster_id
            )));
        }
        let placement = self.placement_of(&found, &request.store).await?;
        let name = found.head.name.clone();
        let links = found.head.links;
        let (store, wrapped_key, key_id) = (placement, found.keyring.wrapped_key, found.key.ring().seals);
        let (created_by, generation, restored) = (adopted.member, life.generation, found.head.content);
        let command = ClusterCommand::RestoreSet {
            set,
            name,
            store,
            wrapped_key,
            key_id,
            created_by,
            generation,
            restored,
            links,
        };
        match self.cluster_command_in(adopted, term, &command).await? {
            ClusterAnswer::SetCreated { set } => {
                let summary = super::status::summary(&self.node.cluster.state(), set);
                Ok(v1::RestoreSetReply { set: summary, created })
            }
            other => Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
        }
    }

    /// Reads and opens the set's head. It restores only what this gateway itself finds, not what the caller claims.
    async fn found_in(&self, text: &str, set: SetId) -> Result<Found, Refusal> {
        let health = Arc::new(Health::new(format!("group {set}")));
        let opened = open_store(&self.node.config, text, health).await;
        let store = opened.map_err(|e| not_opened(&e, format!("store: {e}")))?;
        match tokio::time::timeout(HEAD_LIMIT, read(text, store, self.node.keys(), set)).await {
            Ok(Ok(Some(found))) => Ok(found),
            Ok(Ok(None)) => Err(Refusal::new(RefusalCode::NotFound, format!("set {set}: {text} has no head of it"))),
            Ok(Err(ReadError::Bad(why))) => {
                Err(precondition(format!("{why}; the gateways need the cluster key that the set was made with")))
            }
            Ok(Err(deleted @ ReadError::Deleted)) => Err(precondition(format!("set {set}: {deleted}"))),
            Ok(Err(ReadError::Store(e))) => Err(Refusal::new(RefusalCode::Busy, format!("store: {e}"))),
            Err(_) => Err(Refusal::new(RefusalCode::Busy, format!("store: no answer within {HEAD_LIMIT:?}"))),
        }
    }

    pub(super) async fn checkpoint_set(
        &self,
        request: v1::CheckpointSetRequest,
    ) -> Result<v1::CheckpointSetReply, Refusal> {
        let set = self.led_set(&request.set)?;
        self.confirm(&set).await?;
        // Everything that was acknowledged before the call is applied here, at or below this index (R1).
        let asked = if request.at_index == 0 { set.group.applied().index.0 } else { request.at_index };
        // After a rollback, the current root covers the rollback's entry. But the head in the store says so only after
        // the next checkpoint.
        let current = |state: &SetState| state.checkpoint.filter(|_| state.rolled_back.is_none());
        let reached = |state: &SetState| current(state).map_or(0, |c| c.upto.index.0);
        let under_way = |state: &SetState| state.begin.map_or(0, |b| b.at.index.0);
        let (done, begun) = set.host.with(|m| (reached(m.state()), under_way(m.state())));
        if done < asked && begun < asked {
            set.head.want_checkpoint();
        }
        let covered =
            set.head.covered().filter(|c| c.upto.index.0 == done && c.generation == set.head.life().generation);
        Ok(v1::CheckpointSetReply {
            at_index: asked,
            checkpoint_index: done,
            checkpoint_unix_ms: covered.map_or(0, |c| c.at_unix_ms),
            generation: set.head.life().generation,
        })
    }
}
