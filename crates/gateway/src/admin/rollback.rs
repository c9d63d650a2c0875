//! In-place rollback of a set to one of its snapshots: the steps before and after the entry that does it (SET-S12).

use super::AdminDoor;
use super::snapshot::{message, snapshot_id};
use holdfast_api::{Disposition, Refusal, RefusalCode, v1};
use holdfast_control::set::{SetAnswer, SetCommand, SnapshotId};
use holdfast_host::unix_ms;
use holdfast_set::server::{SetError, SetServer};
use holdfast_types::{Name, Owner, RequestId};
use std::sync::Arc;
use std::time::Duration;

/// Maximum duration of the safety snapshot; the caller may stop waiting earlier. The deadline of the call is longer.
pub(crate) const SAFETY_LIMIT: Duration = Duration::from_secs(600);

/// Derives the request id of the safety snapshot from that of the rollback: the same for each copy of the request, and
/// different from any other request.
const SAFETY_REQUEST: u128 = 0x5afe_5afe_5afe_5afe_5afe_5afe_5afe_5afe;

impl AdminDoor {
    pub(super) async fn rollback_snapshot(
        &self,
        request: v1::RollbackSnapshotRequest,
    ) -> Result<v1::RollbackSnapshotReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let to = SnapshotId { name: holdfast_api::name("name", &request.name)?, made_by: snapshot_id(&request.id)? };
        let id = holdfast_api::request_id(&request.request_id)?;
        let safety = RequestId(id.0 ^ SAFETY_REQUEST);
        self.confirm(&set).await?;
        // R12: an earlier copy of this request has done it, or is still waiting for the safety snapshot.
        if set.host.with(|m| m.state().space_requests.contains(&id)) {
            let safety = named(&set, safety).and_then(|name| message(&set, &name)).map(|(_, found)| found);
            return Ok(v1::RollbackSnapshotReply { safety, already: true });
        }
        let found = set.host.with(|m| m.state().finished(&to).map(|_| ()));
        found.map_err(|refusal| self.of_set(&set, &SetError::Refused(refusal)))?;
        // Nobody may take the set between the end of its lease and the rollback.
        let _held_off = set.hold_off().await;
        let ended = self.end_lease(&set, &to.name, request.force).await?;
        let done = self.roll_back(&set, to, id, safety).await;
        done.map_err(|refusal| match ended {
            Some(owner) => after_a_change(refusal, &format!("the lease of {owner} was ended before that")),
            None => refusal,
        })
    }

    /// Ends the lease, if there is one; returns its owner.
    async fn end_lease(&self, set: &Arc<SetServer>, to: &Name, force: bool) -> Result<Option<Owner>, Refusal> {
        let Some(lease) = set.lease() else { return Ok(None) };
        if !force {
            let text = format!(
                "set {} is held by {} (epoch {}): stop the programs that use it, or use --force, which ends the lease",
                set.name, lease.owner, lease.epoch
            );
            return Err(Refusal::new(RefusalCode::Held, text));
        }
        tracing::warn!(set = %set.name, snapshot = %to, owner = %lease.owner, epoch = %lease.epoch, "lease ended for a rollback");
        set.release(lease.epoch, None).await.map_err(|e| self.of_set(set, &e))?;
        Ok(Some(lease.owner))
    }

    /// Takes the safety snapshot, then rolls back.
    async fn roll_back(
        &self,
        set: &Arc<SetServer>,
        to: SnapshotId,
        id: RequestId,
        safety: RequestId,
    ) -> Result<v1::RollbackSnapshotReply, Refusal> {
        let name = self.safety_snapshot(set, &to.name, safety).await?;
        let way_back = SnapshotId { name: name.clone(), made_by: safety };
        let stays = |refusal| after_a_change(refusal, &format!("the safety snapshot {}@{name} stays", set.name));
        let shown = self.finished_snapshot(set, &name, safety, SAFETY_LIMIT).await.map_err(stays)?;
        let command = SetCommand::Rollback { to: to.clone(), safety: way_back.clone(), request: id };
        match set.command("a rollback", &command).await {
            Ok(SetAnswer::RolledBack { now }) => {
                tracing::warn!(set = %set.name, snapshot = %to.name, safety = %name, "rolled back");
                Ok(v1::RollbackSnapshotReply { safety: Some(shown), already: !now })
            }
            Ok(other) => Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
            Err(e) => {
                let refusal = self.of_set(set, &e);
                let gone = self.take_back(set, &way_back, &e).await;
                Err(if gone { refusal } else { stays(refusal) })
            }
        }
    }

    /// Deletes the safety snapshot of a refused rollback, if it needs space and cannot be used by a later attempt.
    /// Returns whether it is gone.
    async fn take_back(&self, set: &SetServer, way_back: &SnapshotId, error: &SetError) -> bool {
        let SetError::Refused(refusal) = error else { return false };
        if !set.host.with(|m| m.state().takes_up_space(way_back, refusal)) {
            return false;
        }
        // If this fails, the snapshot stays visible in the list.
        let gone = SetCommand::SnapshotDelete { name: way_back.name.clone(), made_by: way_back.made_by };
        let outcome = set.command("a safety snapshot's end", &gone).await;
        if let Err(e) = &outcome {
            tracing::warn!(set = %set.name, error = %e, "cannot delete the safety snapshot of a refused rollback");
        }
        outcome.is_ok()
    }

    /// The name of the safety snapshot that this request asks for or has asked for.
    async fn safety_snapshot(&self, set: &Arc<SetServer>, to: &Name, request: RequestId) -> Result<Name, Refusal> {
        if let Some(name) = named(set, request) {
            return Ok(name);
        }
        let at_unix_ms = unix_ms();
        let text = format!("before-rollback-{}", at_unix_ms / 1000);
        let name = Name::new(text).map_err(|e| Refusal::new(RefusalCode::Failed, e.to_string()))?;
        tracing::info!(set = %set.name, snapshot = %to, safety = %name, "a safety snapshot is taken for a rollback");
        let command = SetCommand::SnapshotCreate { name: name.clone(), request, at_unix_ms, scheduled: false };
        match set.command("a safety snapshot", &command).await {
            Ok(SetAnswer::SnapshotAsked) => Ok(name),
            Ok(other) => Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
            Err(e) => Err(self.of_set(set, &e)),
        }
    }
}

/// A refusal that comes after a change. The caller must not take it for one that changed nothing (R12).
fn after_a_change(refusal: Refusal, changed: &str) -> Refusal {
    let code = match refusal.disposition() {
        // Repeated under the same request id, the request continues where it stopped.
        Disposition::FollowLeader | Disposition::Retry | Disposition::Unknown => RefusalCode::Unknown,
        Disposition::Reject => RefusalCode::Failed,
    };
    Refusal { code, message: format!("{}; {changed}", refusal.message), ..refusal }
}

/// The snapshot, finished or not, that this request made.
fn named(set: &SetServer, request: RequestId) -> Option<Name> {
    set.host.with(|m| {
        let state = m.state();
        let finished = state.snapshots.iter().filter(|(_, found)| found.request == request).map(|(name, _)| name);
        let waiting = state.pending.iter().filter(|(_, found)| found.request == request).map(|(name, _)| name);
        finished.chain(waiting).next().cloned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Exit codes 3 and 4 of the command say that nothing was changed.
    #[test]
    fn a_refusal_after_a_change_is_not_taken_for_one_that_changed_nothing() {
        for &code in RefusalCode::ALL {
            let found = after_a_change(Refusal::new(code, "no leader"), "the lease of db1 was ended before that");
            let again = code.disposition() != Disposition::Reject;
            assert_eq!(found.code, if again { RefusalCode::Unknown } else { RefusalCode::Failed }, "{code:?}");
            assert_eq!(found.message, "no leader; the lease of db1 was ended before that");
        }
    }
}
