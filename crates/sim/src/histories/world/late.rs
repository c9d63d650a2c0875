//! Steps of a history with what comes too late: copies of requests and entries, requests that rest on an earlier state,
//! and checkpoints that are overtaken.

use super::super::model::content;
use super::{Done, PATIENCE, World};
use holdfast_control::serve::WhyNot;
use holdfast_control::set::{Begin, SetCommand, SnapshotId, VolumeChange};
use holdfast_front::device::DeviceError;
use holdfast_types::{Epoch, Sectors, Term};
use holdfast_volume::entry::encode_control;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// How long a step waits for the uploader to begin a checkpoint: it looks every quarter of a second.
const BEGINS_WITHIN: Duration = Duration::from_millis(400);
/// Time between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// Most milliseconds between two writes of a step that are not made at once.
const APART_MAX: u64 = 8;

/// The change as of a state that is no more: another size, or another epoch. `None`: it does not depend on any.
fn outdated(change: &VolumeChange) -> Option<VolumeChange> {
    let earlier = |epoch: Epoch| Epoch(epoch.0.checked_sub(1).unwrap_or(1));
    match change.clone() {
        VolumeChange::Create { .. } | VolumeChange::Grow { .. } => None,
        VolumeChange::Shrink { volume, from, to, epoch } => {
            Some(VolumeChange::Shrink { volume, from: Sectors(from.0 + 1), to, epoch })
        }
        VolumeChange::Rename { volume, from, to, epoch } => {
            Some(VolumeChange::Rename { volume, from, to, epoch: earlier(epoch) })
        }
        VolumeChange::Delete { volume, name, epoch } => {
            Some(VolumeChange::Delete { volume, name, epoch: earlier(epoch) })
        }
    }
}

impl World {
    /// Milliseconds between two writes of a step. At once they share an entry; apart, several entries are under way,
    /// and the first of them may come back without an answer (SEQ-S2).
    pub(super) fn apart(&mut self) -> u64 {
        if self.rot.chance(300) { self.rot.range(1, APART_MAX) } else { 0 }
    }

    /// The leader's group stops before anything has told the tasks of the gateway. A write that comes now is in no
    /// entry: it is not acknowledged (R1), and it gets no error (R8).
    pub(super) async fn group_stops(&mut self) -> Done {
        let Some(device) = self.some_device().await? else { return Ok(()) };
        self.tag += 1;
        let tag = self.tag;
        self.gateway.seat.stop_untold();
        let Ok(outcome) = timeout(PATIENCE, device.write(0, content(tag, 0, 1), false)).await else {
            return Err(format!("R8: write {tag} is neither answered nor closed after its group has stopped"));
        };
        self.say(|| format!("write {tag} after the group has stopped: {outcome:?}"));
        match outcome {
            Err(DeviceError::Disconnect) => Ok(()),
            Ok(()) => Err(format!("R1: write {tag} was acknowledged by a group that has stopped")),
            Err(error) => Err(format!("R8: write {tag} got an error from a group that has stopped: {error}")),
        }
    }

    /// `work`, begun after so many milliseconds.
    pub(super) async fn behind<T>(ms: u64, work: impl Future<Output = T>) -> T {
        if ms > 0 {
            sleep(Duration::from_millis(ms)).await;
        }
        work.await
    }

    /// Now and then a quorum elects the former leader again, and it hears of the entries in between, before anything
    /// has told its gate: what the gate knows is of before another gateway led. It answers no read (R3), and no
    /// connection waits for it (R8).
    pub(super) fn ghost_is_elected_untold(&mut self) -> Done {
        let Some(ghost) = self.ghost.as_ref().filter(|_| self.rot.chance(300)) else { return Ok(()) };
        let (server, later) = (&ghost.server, Term(self.term + 1));
        if let Ok(epoch) = ghost.seat.elected_untold(later, || server.may_read()) {
            return Err(format!(
                "R3: a former leader may read under epoch {epoch}, elected in a term that its gate was not told"
            ));
        }
        let newer = self.gateway.server.group.applied();
        let said = ghost.seat.applied_untold(newer, || {
            server.follow();
            server.may_write()
        });
        match said {
            Err(WhyNot::NotLeader) => Ok(()),
            other => Err(format!("R6: a former leader has applied {newer}, and says of a write: {other:?}")),
        }
    }

    /// A copy of a request that was carried out before, or of an entry. The model knows what it must not do.
    pub(super) async fn late_copy(&mut self) -> Done {
        if self.rot.chance(500) {
            self.repeat_an_entry();
            return Ok(());
        }
        if self.late.is_empty() {
            return Ok(());
        }
        let at = self.rng.below(self.late.len() as u64) as usize;
        let command = self.late[at].clone();
        let answer = self.command(&command).await?;
        self.say(|| format!("late copy of {command:?}: {answer:?}"));
        Ok(())
    }

    /// One of the last entries comes a second time (R12).
    fn repeat_an_entry(&mut self) {
        let recent = self.common.journal.order().repeatable();
        if recent.is_empty() {
            return;
        }
        let payload = self.rot.pick(&recent);
        self.say(|| format!("an entry of {} bytes comes again", payload.len()));
        self.gateway.seat.submit_unheard(payload);
    }

    /// A checkpoint is asked for. Sometimes another one begins right after it, as if the answer to the begin was lost.
    pub(super) async fn checkpoint(&mut self) -> Done {
        self.gateway.server.head.want_checkpoint();
        if !self.rot.chance(250) {
            return Ok(());
        }
        let before = self.state().begin;
        if self.begins(|now| now.is_some() && now != before).await {
            self.begin_another()?;
        }
        Ok(())
    }

    /// Waits, with a limit, for a checkpoint under way that `fits`.
    async fn begins(&self, fits: impl Fn(Option<Begin>) -> bool) -> bool {
        let mut waited = Duration::ZERO;
        while !fits(self.state().begin) {
            if waited >= BEGINS_WITHIN {
                return false;
            }
            sleep(LOOK).await;
            waited += LOOK;
        }
        true
    }

    fn begin_another(&mut self) -> Done {
        let payload = encode_control(&SetCommand::CheckpointBegin { term: self.term() }).map_err(|e| e.to_string())?;
        self.say(|| "another checkpoint begins".to_string());
        self.gateway.seat.submit_unheard(payload);
        Ok(())
    }

    /// Sometimes a checkpoint is under way when a rollback comes, which gives it up (SET-S12).
    pub(super) async fn checkpoint_before_a_rollback(&mut self) -> Done {
        if !self.rot.chance(300) {
            return Ok(());
        }
        self.gateway.server.head.want_checkpoint();
        // Mostly the store is so fast that the uploader's is over before it is seen.
        if !self.begins(|now| now.is_some()).await {
            self.begin_another()?;
        }
        Ok(())
    }

    /// Now and then the same change comes from a requester that saw an earlier state: it is refused (VOLUME-V3).
    pub(super) async fn outdated_change(&mut self, change: &VolumeChange) -> Done {
        let Some(change) = outdated(change).filter(|_| self.rot.chance(150)) else { return Ok(()) };
        let command = SetCommand::ChangeVolume { change, request: self.request() };
        match self.command(&command).await? {
            None => Ok(()),
            Some(answer) => Err(format!("VOLUME-V3: {command:?} was carried out: {answer:?}")),
        }
    }

    /// Now and then the way back from a rollback is to be a snapshot of an earlier life: it is refused, since this
    /// life may have begun with another state than the last one of that life (SET-S12).
    pub(super) async fn roll_back_with_a_former_life(&mut self, to: &SnapshotId) -> Done {
        if !self.rot.chance(300) {
            return Ok(());
        }
        let state = self.state();
        let Some((name, found)) = state.snapshots.iter().find(|(_, found)| found.is_inherited()) else {
            return Ok(());
        };
        let safety = SnapshotId { name: name.clone(), made_by: found.request };
        let command = SetCommand::Rollback { to: to.clone(), safety, request: self.request() };
        match self.command(&command).await? {
            None => Ok(()),
            Some(answer) => Err(format!("SET-S12: {command:?} was carried out: {answer:?}")),
        }
    }
}
