//! Calls about a set's snapshots.

use super::AdminDoor;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::set::{Schedule, ScheduleError, SetAnswer, SetCommand, Volume};
use holdfast_host::unix_ms;
use holdfast_set::server::SetServer;
use holdfast_types::{Name, RequestId, VolumeId};
use std::time::Duration;

/// How long one call waits for the checkpoint; the caller asks again.
const WAIT: Duration = Duration::from_secs(5);

/// Pause between two checks, in case the notification came before the wait.
const LOOK: Duration = Duration::from_millis(200);

pub(super) fn volumes<'a>(volumes: impl Iterator<Item = (&'a VolumeId, &'a Volume)>) -> Vec<v1::Volume> {
    let message = |(id, v): (&VolumeId, &Volume)| v1::Volume {
        id: id.0,
        name: v.name.to_string(),
        size_bytes: v.size.to_bytes().unwrap_or(0),
    };
    volumes.map(message).collect()
}

/// The snapshot as applied here.
pub(super) fn message(set: &SetServer, name: &Name) -> Option<(RequestId, v1::Snapshot)> {
    set.host.with(|m| {
        let state = m.state();
        if let Some(found) = state.snapshots.get(name) {
            let message = v1::Snapshot {
                name: name.to_string(),
                pending: false,
                term: found.upto.term.0,
                index: found.upto.index.0,
                created_unix_ms: found.at_unix_ms,
                volumes: volumes(found.volumes.iter()),
                id: found.request.to_string(),
                scheduled: found.scheduled,
            };
            return Some((found.request, message));
        }
        state.pending.get(name).map(|found| {
            let message = v1::Snapshot {
                name: name.to_string(),
                pending: true,
                created_unix_ms: found.at_unix_ms,
                id: found.request.to_string(),
                scheduled: found.scheduled,
                ..v1::Snapshot::default()
            };
            (found.request, message)
        })
    })
}

/// All snapshots as applied here, the oldest first, those that wait for their checkpoint last.
pub(super) fn listed(set: &SetServer) -> Vec<v1::Snapshot> {
    let names: Vec<Name> = set.host.with(|m| {
        let state = m.state();
        state.snapshots.keys().chain(state.pending.keys()).cloned().collect()
    });
    let mut snapshots: Vec<v1::Snapshot> =
        names.iter().filter_map(|name| message(set, name)).map(|(_, snapshot)| snapshot).collect();
    // Snapshots of an earlier life have no position in this log; they are sorted by creation time.
    let earlier = |of: &v1::Snapshot| if of.index == 0 && !of.pending { of.created_unix_ms } else { 0 };
    let place = |of: &v1::Snapshot| (of.pending, of.index, earlier(of));
    snapshots.sort_by(|a, b| (place(a), &a.name).cmp(&(place(b), &b.name)));
    snapshots
}

/// The answer for a snapshot that exists but is not in the store yet. The request has taken effect: a caller that gives
/// up must not take it for one that changed nothing (R12).
fn unfinished(set: &Name, name: &Name) -> Refusal {
    let text = format!(
        "snapshot {set}@{name} is ordered and waits for its checkpoint: the journal is being uploaded; it will be finished \
         without another request, and `holdfast snapshot list {set}` shows when"
    );
    Refusal::new(RefusalCode::Unknown, text)
}

/// Whether the head in the store lists the set's current snapshots, and none that the set has dropped (SET-S15).
fn is_listed(set: &SetServer) -> bool {
    let Some(term) = set.leading_ready() else { return false };
    set.head.note_here(&set.group, &set.host, Some(term));
    let state = set.host.with(|m| m.state().clone());
    set.head.links_settled(&state, term)
}

/// The id under which a snapshot is listed.
pub(super) fn snapshot_id(text: &str) -> Result<RequestId, Refusal> {
    holdfast_api::request_id(text).map_err(|_| {
        let message =
            format!("id: found {text:?}, expected the snapshot's id, 32 hex digits: list the snapshots to learn it");
        Refusal::new(RefusalCode::Invalid, message)
    })
}

impl AdminDoor {
    pub(super) async fn create_snapshot(
        &self,
        request: v1::CreateSnapshotRequest,
    ) -> Result<v1::CreateSnapshotReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let name = holdfast_api::name("name", &request.name)?;
        let id = holdfast_api::request_id(&request.request_id)?;
        let command =
            SetCommand::SnapshotCreate { name: name.clone(), request: id, at_unix_ms: unix_ms(), scheduled: false };
        match set.command("a snapshot", &command).await {
            Ok(SetAnswer::SnapshotAsked) => {}
            Ok(other) => return Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
            Err(e) => return Err(self.of_set(&set, &e)),
        }
        let snapshot = self.finished_snapshot(&set, &name, id, WAIT).await?;
        Ok(v1::CreateSnapshotReply { snapshot: Some(snapshot) })
    }

    /// Waits until the snapshot that request `id` made is in the store.
    pub(super) async fn finished_snapshot(
        &self,
        set: &SetServer,
        name: &Name,
        id: RequestId,
        limit: Duration,
    ) -> Result<v1::Snapshot, Refusal> {
        let deadline = tokio::time::Instant::now() + limit;
        loop {
            match message(set, name).filter(|(of, _)| *of == id) {
                Some((_, snapshot)) if !snapshot.pending => return Ok(snapshot),
                Some(_) => {}
                None => {
                    let text = format!("snapshot {}@{name} was deleted before it was finished", set.name);
                    return Err(Refusal::new(RefusalCode::NotFound, text));
                }
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(unfinished(&set.name, name));
            }
            let _ = tokio::time::timeout(LOOK, set.host.checkpoint().notified()).await;
        }
    }

    pub(super) async fn set_schedule(&self, request: v1::SetScheduleRequest) -> Result<v1::SetScheduleReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let id = holdfast_api::request_id(&request.request_id)?;
        let schedule: Schedule = request
            .schedule
            .parse()
            .map_err(|e: ScheduleError| Refusal::new(RefusalCode::Invalid, format!("schedule: {e}")))?;
        match set.command("a schedule", &SetCommand::SetSchedule { schedule, request: id }).await {
            Ok(SetAnswer::ScheduleSet) => {
                self.listed_in_pair(&set, "the schedule").await?;
                Ok(v1::SetScheduleReply { schedule: set.host.with(|m| m.state().schedule.to_string()) })
            }
            Ok(other) => Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
            Err(e) => Err(self.of_set(&set, &e)),
        }
    }

    /// In a gateway pair, the next holder gets only what the head lists (ADR 0035). So the answer that a snapshot is
    /// deleted or a schedule is set must wait until the head says so. A gateway that was replaced while it stood still
    /// has a Raft group of its own that accepts everything, but it cannot replace the head. In a cluster, the next
    /// leader has the entry.
    async fn listed_in_pair(&self, set: &SetServer, what: &str) -> Result<(), Refusal> {
        if self.node.pair().is_none() {
            return Ok(());
        }
        let unknown = |why: String| {
            let text = format!(
                "set {}: {what} is applied here, but may not be in the set's head in the store yet: a takeover may bring back the state before it. {why}",
                set.name
            );
            Refusal::new(RefusalCode::Unknown, text)
        };
        let deadline = tokio::time::Instant::now() + WAIT;
        while !is_listed(set) {
            if let Some(why) = set.head.fenced() {
                return Err(unknown(why));
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(unknown(format!("Waited {WAIT:?} for the store")));
            }
            set.head.wake();
            tokio::time::sleep(LOOK).await;
        }
        // PAIR-P1: this is the last check, with no wait after it.
        set.head.before_answer().await.map_err(unknown)
    }

    pub(super) async fn list_snapshots(
        &self,
        request: v1::ListSnapshotsRequest,
    ) -> Result<v1::ListSnapshotsReply, Refusal> {
        let set = self.led_set(&request.set)?;
        self.confirm(&set).await?;
        Ok(v1::ListSnapshotsReply { snapshots: listed(&set) })
    }

    pub(super) async fn get_snapshot_token(
        &self,
        request: v1::GetSnapshotTokenRequest,
    ) -> Result<v1::GetSnapshotTokenReply, Refusal> {
        let set = self.led_set(&request.set)?;
        self.confirm(&set).await?;
        let name = holdfast_api::name("name", &request.name)?;
        let found = set.host.with(|m| m.state().snapshots.get(&name).cloned());
        let Some(found) = found else {
            let text = format!("there is no snapshot {}@{name}, or it is still pending", set.name);
            return Err(Refusal::new(RefusalCode::NotFound, text));
        };
        let token = set.reader.mapping().key.snapshot_token(found.request);
        Ok(v1::GetSnapshotTokenReply { token: token.to_text(), volumes: volumes(found.volumes.iter()) })
    }

    pub(super) async fn delete_snapshot(
        &self,
        request: v1::DeleteSnapshotRequest,
    ) -> Result<v1::DeleteSnapshotReply, Refusal> {
        let set = self.led_set(&request.set)?;
        let name = holdfast_api::name("name", &request.name)?;
        holdfast_api::request_id(&request.request_id)?;
        // SET-S11: an id that no other snapshot ever has, so a late copy of this call finds nothing to delete.
        let made_by = snapshot_id(&request.id)?;
        match set.command("a snapshot's end", &SetCommand::SnapshotDelete { name, made_by }).await {
            Ok(SetAnswer::SnapshotDeleted { existed }) => {
                self.listed_in_pair(&set, "the snapshot's end").await?;
                Ok(v1::DeleteSnapshotReply { deleted: existed })
            }
            Ok(other) => Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
            Err(e) => Err(self.of_set(&set, &e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_api::Disposition;

    #[test]
    fn a_snapshot_that_comes_later_is_not_said_to_have_changed_nothing() -> Result<(), Box<dyn std::error::Error>> {
        let refusal = unfinished(&Name::new("demo")?, &Name::new("monday")?);
        assert_eq!(refusal.disposition(), Disposition::Unknown, "{}", refusal.message);
        assert!(refusal.message.contains("holdfast snapshot list demo"));
        Ok(())
    }
}
