//! Dispatches each command of a set to its rule.

use super::command::{REQUESTS_REMEMBERED, SetAnswer, SetCommand};
use super::lease::Grant;
use super::state::{EARLIER_TOKENS_MAX, SegmentNote, SetState};
use holdfast_types::LogId;
use holdfast_types::limits::VOLUMES_PER_SET_MAX;

impl SetState {
    /// Applies the command of entry `id`. Reads only its arguments, so every replica answers the same.
    ///
    /// # Panics
    /// When `id` is not above the entry of the last grant (R6): the caller applies out of order.
    pub fn apply(&mut self, id: LogId, cmd: &SetCommand) -> SetAnswer {
        let result = match cmd {
            SetCommand::Acquire {
                owner,
                gateway,
                token,
                ttl_ms,
                request,
                judged_expired,
                force,
                plain,
                at_unix_ms,
            } => {
                let grant = Grant {
                    owner,
                    gateway: *gateway,
                    token: *token,
                    earlier_tokens: Vec::new(),
                    ttl_ms: *ttl_ms,
                    request: *request,
                    plain: *plain,
                    since_unix_ms: *at_unix_ms,
                };
                self.acquire(id, grant, *judged_expired, *force)
            }
            SetCommand::Continue { owner, gateway, token, new_token, request, at_unix_ms } => {
                self.continue_lease(id, owner, *gateway, *token, *new_token, *request, *at_unix_ms)
            }
            SetCommand::Renew { epoch } => self.use_lease(id, *epoch).map(|()| SetAnswer::Renewed),
            SetCommand::Release { epoch, token } => self.release(*epoch, *token),
            SetCommand::CheckpointBegin { term } => self.checkpoint_begin(id, *term),
            SetCommand::SegmentCommitted { term, object, stored_bytes, raw_bytes } => {
                let note = SegmentNote { object: *object, stored_bytes: *stored_bytes, raw_bytes: *raw_bytes };
                self.segment_committed(id, *term, note)
            }
            SetCommand::CheckpointEnd { term, begin, root } => self.checkpoint_end(id, *term, *begin, *root),
            SetCommand::SnapshotCreate { name, request, at_unix_ms, scheduled } => {
                self.snapshot_create(name, *request, *at_unix_ms, *scheduled)
            }
            SetCommand::SnapshotDelete { name, made_by } => Ok(self.snapshot_delete(name, *made_by)),
            SetCommand::Retire { term, of, objects } => self.retire(id, *term, *of, objects),
            SetCommand::Deleted { term, objects } => self.deleted(id, *term, objects),
            SetCommand::Rollback { to, safety, request } => self.rollback(id, to, safety, *request),
            SetCommand::SetSchedule { schedule, request } => self.set_schedule(schedule, *request),
            SetCommand::ChangeVolume { change, request } => self.change_volume(id, change, *request),
            SetCommand::Pin { clone, snapshot, request } => self.pin(id, *clone, snapshot, *request),
            SetCommand::Unpin { clone, request } => Ok(self.unpin(id, *clone, *request)),
            SetCommand::Locate(epoch, at) => self.locate(*epoch, at),
            SetCommand::SetLimit { volume, limit, request } => self.set_limit(*volume, *limit, *request),
            SetCommand::Retime(term, rtt_ms) => self.retime(id, *term, *rtt_ms),
        };
        result.unwrap_or_else(SetAnswer::Refused)
    }

    /// Checks what must hold at every index. For tests and debug builds.
    ///
    /// # Panics
    /// When a rule is broken.
    pub fn self_check(&self) {
        assert!(self.epoch >= self.base_epoch, "SET-S1: epoch {} is below the base {}", self.epoch, self.base_epoch);
        if let Some(lease) = &self.lease {
            assert_eq!(lease.epoch, self.epoch, "SET-S1: expected the last granted epoch in the lease");
            assert_eq!(
                lease.epoch.0,
                self.base_epoch.0 + lease.granted.0,
                "SET-S1: expected epoch = base + index of the grant"
            );
            assert!(
                lease.renewed >= lease.granted,
                "SET-S4: renewed {} before granted {}",
                lease.renewed,
                lease.granted
            );
            assert!(!lease.earlier_tokens.contains(&lease.token), "SET-S3: a token is never reused");
            assert!(lease.earlier_tokens.len() <= EARLIER_TOKENS_MAX, "SET-S3: tokens are bounded");
            assert!(self.last_seq.0 <= lease.renewed.0 - lease.granted.0, "SET-S2: each number took an entry");
            assert!(self.last_seq.0 == 0 || lease.earlier_tokens.is_empty(), "SET-S3: a write kills the tokens before");
            assert_eq!(
                self.granted_requests.last(),
                Some(&lease.request),
                "SET-S10: the present lease's request is not remembered"
            );
        }
        assert!(self.owner_at.is_none() || self.lease.is_some(), "SET-S17: found the place of no owner");
        assert!(
            self.limits.volumes.keys().all(|id| self.volumes.contains_key(id)),
            "SET-S18: found the limit of a volume that is gone"
        );
        assert!(self.segments.is_empty() || self.begin.is_some(), "SET-S5: found segments without a begin");
        if let (Some(begin), Some(done)) = (self.begin, self.checkpoint) {
            assert!(begin.at >= done.upto, "SET-S5: began at {} below {}", begin.at, done.upto);
        }
        self.self_check_space();
        assert!(self.granted_requests.len() <= REQUESTS_REMEMBERED, "SET-S10: more requests than the limit");
        assert!(self.volumes.len() <= VOLUMES_PER_SET_MAX, "more volumes than the limit");
        assert!(
            self.volumes.keys().all(|id| id.0 < self.next_volume),
            "VOLUME-V1: found a volume id that was not given out yet"
        );
    }
}
