//! The call that deletes a set (ADR 0029): the set's leader checks that the set is not in use, then the leader of group
//! 0 commits.

use super::AdminDoor;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::deletion::{Anyway, Found, in_the_way};
use holdfast_control::cluster::{ClusterCommand, ClusterState, Deletion, DeletionStage};
use holdfast_set::server::SetServer;
use holdfast_types::{GroupId, Name, SetId};
use std::sync::Arc;
use std::time::Duration;

/// How long the leader of group 0 may take to commit an entry with a quorum.
const COMMIT_LIMIT: Duration = Duration::from_secs(12);

/// Pause after an answer that leaves open whether the set is deleted.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// How long the answer to an accepted deletion waits until this gateway itself has applied it.
const HEARD_LIMIT: Duration = Duration::from_secs(5);

fn stage_text(stage: DeletionStage) -> &'static str {
    match stage {
        DeletionStage::Ending => "ending",
        DeletionStage::Forgotten => "forgotten",
        DeletionStage::Emptied => "emptied",
    }
}

impl AdminDoor {
    fn deletion_message(&self, state: &ClusterState, id: SetId, deletion: &Deletion) -> v1::Deletion {
        let progress = self.node.deletion_progress(id).unwrap_or_default();
        let waits = deletion.waits_for(state.members.keys().copied());
        v1::Deletion {
            id: id.0,
            name: deletion.entry.name.to_string(),
            store: deletion.entry.store_url.clone(),
            stage: stage_text(deletion.stage).to_string(),
            ended: deletion.ended.iter().map(|id| id.0).collect(),
            waits_for: waits.iter().filter_map(|id| state.members.get(id)).map(|m| m.name.to_string()).collect(),
            objects_deleted: progress.objects_deleted,
            trouble: progress.trouble,
            store_left: deletion.store_left,
        }
    }

    /// Every deletion in progress, as applied here.
    pub(super) fn deletion_messages(&self, state: &ClusterState) -> Vec<v1::Deletion> {
        let all = state.deletions.under_way.iter();
        all.map(|(id, deletion)| self.deletion_message(state, *id, deletion)).collect()
    }

    /// The status of a set that is being deleted: from the leader of group 0, which deletes it, or with `any_view` from
    /// any gateway.
    pub(super) fn deleting_status(&self, name: &Name, any_view: bool) -> Option<Result<v1::SetStatus, Refusal>> {
        let state = self.node.cluster.state();
        let (id, deletion) = state.deletion_named(name)?;
        let led = match any_view {
            true => self.adopted(),
            false => self.led_cluster(),
        };
        Some(led.map(|adopted| v1::SetStatus {
            set: Some(v1::SetSummary {
                id: id.0,
                name: deletion.entry.name.to_string(),
                store: deletion.entry.store_url.clone(),
                clone_of: String::new(),
                voters: Vec::new(),
            }),
            answered_by: adopted.member.0,
            deletion: Some(self.deletion_message(&state, id, deletion)),
            ..v1::SetStatus::default()
        }))
    }

    fn deleted_reply(&self, id: SetId, already: bool) -> v1::DeleteSetReply {
        let state = self.node.cluster.state();
        let deletion = state.deletions.under_way.get(&id).map(|found| self.deletion_message(&state, id, found));
        v1::DeleteSetReply { deletion, already }
    }

    pub(super) async fn delete_set(&self, request: v1::DeleteSetRequest) -> Result<v1::DeleteSetReply, Refusal> {
        self.adopted()?;
        let name = holdfast_api::name("set", &request.set)?;
        holdfast_api::request_id(&request.request_id)?;
        let id = GroupId(request.id);
        let state = self.node.cluster.state();
        if id.0 != 0 && state.was_deleted(id) {
            return Ok(self.deleted_reply(id, true));
        }
        match state.set_named(&name) {
            Some((found, _)) if found == id => {}
            Some((found, _)) => {
                // The state that is applied here may be old.
                self.led_cluster()?;
                let message =
                    format!("set {name}: found number {}, expected {}: look again, then ask again", found.0, id.0);
                return Err(Refusal::new(RefusalCode::Precondition, message));
            }
            // Another gateway may know a set that this one does not.
            None => {
                self.led_cluster()?;
                return Err(Refusal::new(RefusalCode::NotFound, format!("there is no set {name}")));
            }
        }
        state.may_be_deleted(id).map_err(|why| Refusal::new(RefusalCode::Precondition, why.to_string()))?;
        let anyway = Anyway { force: request.force, with_snapshots: request.with_snapshots };
        // The caller overrides any objection: a set without a leader, or one that runs nowhere, can be deleted too.
        if request.looked || (anyway.force && anyway.with_snapshots) {
            return self.commit_deletion(id, name, &request).await;
        }
        let set = self.led_set(name.as_str()).map_err(|refusal| match refusal.code {
            RefusalCode::Busy => {
                let message = format!(
                    "{}; cannot check whether the set is in use. To delete it in any case: --force --with-snapshots",
                    refusal.message
                );
                Refusal::new(RefusalCode::Busy, message)
            }
            _ => refusal,
        })?;
        self.confirm(&set).await?;
        // In a task of its own: it continues if the caller goes away, since the request may already be on its way to
        // group 0.
        let (tell, told) = tokio::sync::oneshot::channel();
        let door = self.clone();
        tokio::spawn(async move { door.look_and_delete(id, name, set, request, tell).await });
        let gone = || Refusal::new(RefusalCode::Unknown, "this gateway stops");
        told.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Checks whether the set is in use. From this check on, the set is granted to nobody until it is known not to be
    /// deleted, or until it has ended here. Otherwise new writes would be deleted with it.
    async fn look_and_delete(
        &self,
        id: SetId,
        name: Name,
        set: Arc<SetServer>,
        request: v1::DeleteSetRequest,
        tell: tokio::sync::oneshot::Sender<Result<v1::DeleteSetReply, Refusal>>,
    ) {
        let _held_off = set.hold_off().await;
        let anyway = Anyway { force: request.force, with_snapshots: request.with_snapshots };
        if let Err(why) = in_the_way(&found_of(&set, &self.node.cluster.state()), anyway) {
            let _ =
                tell.send(Err(Refusal::new(RefusalCode::Precondition, format!("set {name} is not deleted: {why}"))));
            return;
        }
        let reply = loop {
            match self.forward_deletion(id, name.clone(), request.clone()).await {
                // R12: the deletion may be in progress. The same request again has no second effect, and its answer
                // tells.
                Err(refusal) if refusal.code == RefusalCode::Unknown && set.group.leading_term().is_some() => {
                    tracing::warn!(set = %name, why = %refusal.message, "it is unknown whether the set is deleted; asking again");
                    tokio::select! {
                        () = tokio::time::sleep(ASK_AGAIN) => {}
                        () = self.node.stop.cancelled() => return,
                    }
                }
                reply => break reply,
            }
        };
        let accepted = reply.is_ok();
        if accepted {
            let _ = tokio::time::timeout(HEARD_LIMIT, self.heard(id)).await;
        }
        let _ = tell.send(reply);
        if accepted {
            tokio::select! {
                () = self.heard(id) => {}
                () = self.node.stop.cancelled() => {}
            }
        }
    }

    /// Waits until this gateway has applied the deletion. It checks the state, so a second call after the end of the
    /// first is correct too.
    async fn heard(&self, id: SetId) {
        let mut changes = self.node.cluster.changes();
        while self.node.cluster.state().sets.contains_key(&id) && changes.changed().await.is_ok() {}
    }

    /// Runs on the leader of group 0.
    async fn commit_deletion(
        &self,
        id: SetId,
        name: Name,
        request: &v1::DeleteSetRequest,
    ) -> Result<v1::DeleteSetReply, Refusal> {
        let adopted = self.led_cluster()?;
        let request_id = holdfast_api::request_id(&request.request_id)?;
        let (force, with_snapshots) = (request.force, request.with_snapshots);
        tracing::warn!(set = %name, %id, force, with_snapshots, "deleting a set");
        let command = ClusterCommand::DeleteSet { set: id, name, request: request_id };
        self.cluster_command(&adopted, &command).await?;
        Ok(self.deleted_reply(id, false))
    }

    /// The leader of group 0 commits, on this gateway or another.
    async fn forward_deletion(
        &self,
        id: SetId,
        name: Name,
        request: v1::DeleteSetRequest,
    ) -> Result<v1::DeleteSetReply, Refusal> {
        let adopted = self.adopted()?;
        let request = v1::DeleteSetRequest { looked: true, ..request };
        if adopted.group.leading_term().is_some() {
            return self.commit_deletion(id, name, &request).await;
        }
        let Some(leader) = self.leader_api(&adopted.group) else {
            let message = "the cluster has no leader at the moment".to_string();
            return Err(Refusal::new(RefusalCode::Busy, message));
        };
        let limit = self.answer_limit(adopted.group.leadership().borrow().leader);
        let client = tokio::time::timeout(limit, self.client(&leader, limit)).await;
        let mut client = match client {
            Ok(Ok(client)) => client,
            Ok(Err(why)) => return Err(Refusal::new(RefusalCode::Busy, why)),
            Err(_) => {
                return Err(Refusal::new(RefusalCode::Busy, format!("{leader}: no answer within {limit:?}")));
            }
        };
        match tokio::time::timeout(COMMIT_LIMIT, client.delete_set(request)).await {
            Ok(Ok(reply)) => Ok(reply.into_inner()),
            Ok(Err(status)) => match Refusal::from_status(&status) {
                // The caller must not follow this redirect: the check whether the set is in use is made here.
                Some(refusal) if refusal.code == RefusalCode::NotLeader => {
                    Err(Refusal::new(RefusalCode::Busy, refusal.message))
                }
                Some(refusal) => Err(refusal),
                None => Err(Refusal::new(RefusalCode::Unknown, format!("{leader}: {}", status.message()))),
            },
            Err(_) => Err(Refusal::new(RefusalCode::Unknown, format!("{leader}: no answer within {COMMIT_LIMIT:?}"))),
        }
    }
}

fn found_of(set: &Arc<SetServer>, cluster: &ClusterState) -> Found {
    let owner = set.lease().map(|lease| format!("{} (epoch {})", lease.owner, lease.epoch));
    let connections = set.serving().map_or(0, |serving| u32::try_from(serving.connected()).unwrap_or(u32::MAX));
    let snapshots = set.host.with(|m| m.state().snapshots.len() + m.state().pending.len());
    let lost_clone = set.host.with(|m| m.state().lost_clone(cluster, set.id));
    Found { owner, connections, snapshots: u32::try_from(snapshots).unwrap_or(u32::MAX), lost_clone }
}
