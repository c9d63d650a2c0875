//! The state, and how each command changes it.

use super::command::{
    Admit, Judged, REQUESTS_REMEMBERED, RootRef, SEGMENT_NOTES_MAX, SetAnswer, SetCommand, SetRefusal, TTL_MS_MAX,
    TTL_MS_MIN,
};
use super::pins::Pin;
use super::schedule::Schedule;
use super::space::{PendingSnapshot, Snapshot, StoredKind};
use holdfast_types::limits::{VOLUME_SECTORS_MAX, VOLUMES_PER_SET_MAX};
use holdfast_types::{
    Epoch, LogId, LogIndex, MemberId, Name, ObjectId, Owner, RequestId, Sectors, Term, Token, VolumeId, WriteSeq,
};
use imbl::{OrdMap, Vector};
use serde::{Deserialize, Serialize};

/// A volume: what the client sees of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Volume {
    /// Unique in the set.
    pub name: Name,
    /// Present size.
    pub size: Sectors,
}

/// Who may write, where, under which epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// Who.
    pub owner: Owner,
    /// Served by this gateway only.
    pub gateway: MemberId,
    /// Fencing token of this grant (S1).
    pub epoch: Epoch,
    /// Opens this grant.
    pub token: Token,
    /// What it was continued from, until `token` is first used (S3).
    pub previous_token: Option<Token>,
    /// Time to live without a renewal, in milliseconds.
    pub ttl_ms: u32,
    /// The request that was granted.
    pub request: RequestId,
    /// The entry that granted.
    pub granted: LogIndex,
    /// The last entry that showed the owner alive: the grant itself, a renewal, or a write.
    pub renewed: LogIndex,
    /// A plain export's: never continued.
    pub plain: bool,
    /// Wall clock of the granting gateway in Unix milliseconds, shown to people only.
    pub since_unix_ms: u64,
}

/// A checkpoint under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Begin {
    /// The entry that sealed: the checkpoint covers everything up to it.
    pub at: LogId,
    /// The root of the checkpoint that was the current one then; the new root takes its place.
    pub base: Option<RootRef>,
}

/// The current checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Checkpoint {
    /// It holds every entry up to this one.
    pub upto: LogId,
    /// The map.
    pub root: RootRef,
}

/// A segment of the checkpoint under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SegmentNote {
    /// The object.
    pub object: ObjectId,
    /// Its length in the store, in bytes.
    pub stored_bytes: u64,
    /// What it holds, in bytes before compression.
    pub raw_bytes: u64,
}

/// The small replicated state of one set. A clone is cheap (persistent structures): `CheckpointBegin` keeps one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SetState {
    /// Every epoch is above this one: a recovered set starts above whatever its former life granted.
    pub base_epoch: Epoch,
    /// By id. Ids are never reused.
    pub volumes: OrdMap<VolumeId, Volume>,
    /// `None`: free.
    pub lease: Option<Lease>,
    /// The last epoch granted, whether or not it is still held; `base_epoch` before the first.
    pub epoch: Epoch,
    /// The last write applied under `epoch`.
    pub last_seq: WriteSeq,
    /// The checkpoint under way.
    pub begin: Option<Begin>,
    /// The current checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// Segments noted since `begin`.
    pub segments: Vector<SegmentNote>,
    /// The next volume's id.
    pub next_volume: u32,
    /// The requests that were granted last, oldest first, `REQUESTS_REMEMBERED` at most, with that of the present lease. A late
    /// copy of one of them must not take the set again, whoever held it since (S10).
    pub granted_requests: Vector<RequestId>,
    /// Kept checkpoints, by name.
    pub snapshots: OrdMap<Name, Snapshot>,
    /// Snapshots that were asked for and wait for their checkpoint.
    pub pending: OrdMap<Name, PendingSnapshot>,
    /// Roots that nothing keeps any more, with their bytes: their objects are yet to be looked through (S7).
    pub dropped: OrdMap<ObjectId, u64>,
    /// Objects that may be deleted from the store after the readers' grace.
    pub retired: OrdMap<ObjectId, StoredKind>,
    /// Requests on snapshots, schedules and volumes that were carried out last, oldest first, `SPACE_REQUESTS_REMEMBERED` at most (S11).
    pub space_requests: Vector<RequestId>,
    /// The last entry that changed what the volumes hold: a write, a trim, a rollback, a shrink, a deletion.
    pub last_change: LogIndex,
    /// The last rollback, until a checkpoint that began after it has ended: what the store's head names may be the state before it (S12).
    pub rolled_back: Option<LogId>,
    /// Which snapshots the leader takes by itself, and lets go.
    pub schedule: Schedule,
    /// Roots that clones show, by the request that made each (S13).
    pub pins: OrdMap<RequestId, Pin>,
    /// The entry that changed them last; default where none did in this life.
    pub pins_at: LogId,
}

/// What a new lease is made of.
struct Grant<'a> {
    owner: &'a Owner,
    gateway: MemberId,
    token: Token,
    previous_token: Option<Token>,
    ttl_ms: u32,
    request: RequestId,
    plain: bool,
    since_unix_ms: u64,
}

impl SetState {
    /// An empty, free set whose epochs are all above `base_epoch`.
    pub fn new(base_epoch: Epoch) -> Self {
        Self {
            base_epoch,
            volumes: OrdMap::new(),
            lease: None,
            epoch: base_epoch,
            last_seq: WriteSeq(0),
            begin: None,
            checkpoint: None,
            segments: Vector::new(),
            next_volume: 1,
            granted_requests: Vector::new(),
            snapshots: OrdMap::new(),
            pending: OrdMap::new(),
            dropped: OrdMap::new(),
            retired: OrdMap::new(),
            space_requests: Vector::new(),
            last_change: LogIndex(0),
            rolled_back: None,
            schedule: Schedule::default(),
            pins: OrdMap::new(),
            pins_at: LogId::default(),
        }
    }

    /// Applies the command of entry `id`. Reads nothing but its arguments: every replica answers alike.
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
                    previous_token: None,
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
        };
        result.unwrap_or_else(SetAnswer::Refused)
    }

    /// R2 for the write entry `id`: decides, counts it, and renews the lease. The caller applies the data on
    /// [`Admit::Apply`] only.
    pub fn admit_write(&mut self, id: LogId, epoch: Epoch, seq: WriteSeq) -> Admit {
        // Decided before anything changes: a refused entry must leave no trace, not even a renewal.
        let current = self.lease.as_ref().map(|lease| lease.epoch);
        if current != Some(epoch) {
            return Admit::Refused(SetRefusal::WrongEpoch { found: epoch, current });
        }
        let expected = WriteSeq(self.last_seq.0.saturating_add(1));
        if seq.0 == 0 || seq > expected {
            return Admit::Refused(SetRefusal::SeqGap { found: seq, expected });
        }
        if let Err(refusal) = self.use_lease(id, epoch) {
            return Admit::Refused(refusal);
        }
        if seq < expected {
            return Admit::Duplicate;
        }
        self.last_seq = seq;
        self.last_change = id.index;
        Admit::Apply
    }

    /// F(copy, root): the state that the snapshot of a finished checkpoint holds, made from the copy that was kept at its
    /// begin. Replaying the entries after `begin` onto it gives, from the end's entry on, the same state as the straight run.
    ///
    /// # Panics
    /// When the copy is not the one of `begin` (R4): a root must never be joined to another moment's state.
    pub fn after_checkpoint(copy_at_begin: &SetState, root: RootRef, begin: LogId) -> SetState {
        assert_eq!(
            copy_at_begin.begin.map(|copied| copied.at),
            Some(begin),
            "R4: the copy is not the state at the begin {begin}"
        );
        // `begin` stays: the replayed end must find it, and then clears it as it did the first time.
        SetState { checkpoint: Some(Checkpoint { upto: begin, root }), ..copy_at_begin.clone() }
    }

    fn acquire(
        &mut self,
        id: LogId,
        grant: Grant<'_>,
        judged: Option<Judged>,
        force: bool,
    ) -> Result<SetAnswer, SetRefusal> {
        if !(TTL_MS_MIN..=TTL_MS_MAX).contains(&grant.ttl_ms) {
            return Err(SetRefusal::TtlRefused { found_ms: grant.ttl_ms, min_ms: TTL_MS_MIN, max_ms: TTL_MS_MAX });
        }
        if let Some(lease) = &self.lease {
            if lease.request == grant.request && lease.owner == *grant.owner {
                return Ok(SetAnswer::Granted(lease.clone()));
            }
            // S4: compared with what the judge saw. A renewal that came in between is worth more than the judgement.
            let expired = judged.is_some_and(|j| j.epoch == lease.epoch && j.renewed == lease.renewed);
            if !expired && !force {
                return Err(held(lease));
            }
            if grant.token == lease.token || Some(grant.token) == lease.previous_token {
                return Err(SetRefusal::TokenReused);
            }
        }
        self.check_not_granted_before(grant.request)?;
        Ok(self.grant(id, grant))
    }

    /// S10: nobody waits for the answer to a copy of a request whose grant is over. Granting it would take the set from whoever
    /// holds it now, or leave it with an owner that knows nothing of it.
    fn check_not_granted_before(&self, request: RequestId) -> Result<(), SetRefusal> {
        if self.granted_requests.contains(&request) {
            return Err(SetRefusal::RequestEnded { epoch: self.epoch });
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one command")]
    fn continue_lease(
        &mut self,
        id: LogId,
        owner: &Owner,
        gateway: MemberId,
        token: Token,
        new_token: Token,
        request: RequestId,
        at_unix_ms: u64,
    ) -> Result<SetAnswer, SetRefusal> {
        let Some(lease) = &self.lease else { return Err(SetRefusal::NotHeld { last_epoch: self.epoch }) };
        if lease.owner != *owner {
            return Err(held(lease));
        }
        if lease.plain {
            return Err(SetRefusal::NotContinuable { epoch: lease.epoch });
        }
        if lease.request == request {
            return Ok(SetAnswer::Granted(lease.clone()));
        }
        if token != lease.token && Some(token) != lease.previous_token {
            return Err(SetRefusal::StaleToken {
                epoch: lease.epoch,
                gateway: lease.gateway,
                since_unix_ms: lease.since_unix_ms,
            });
        }
        if new_token == lease.token || Some(new_token) == lease.previous_token {
            return Err(SetRefusal::TokenReused);
        }
        self.check_not_granted_before(request)?;
        // `token` is what the caller is known to have. Where that is the previous one, the current one never reached it.
        let ttl_ms = lease.ttl_ms;
        Ok(self.grant(
            id,
            Grant {
                owner,
                gateway,
                token: new_token,
                previous_token: Some(token),
                ttl_ms,
                request,
                plain: false,
                since_unix_ms: at_unix_ms,
            },
        ))
    }

    fn grant(&mut self, id: LogId, grant: Grant<'_>) -> SetAnswer {
        let epoch = Epoch(self.base_epoch.0.saturating_add(id.index.0));
        assert!(epoch > self.epoch, "R6: the epoch must grow, {epoch} was granted after {}", self.epoch);
        let lease = Lease {
            owner: grant.owner.clone(),
            gateway: grant.gateway,
            epoch,
            token: grant.token,
            previous_token: grant.previous_token,
            ttl_ms: grant.ttl_ms,
            request: grant.request,
            granted: id.index,
            renewed: id.index,
            plain: grant.plain,
            since_unix_ms: grant.since_unix_ms,
        };
        self.epoch = epoch;
        self.last_seq = WriteSeq(0);
        if self.granted_requests.len() >= REQUESTS_REMEMBERED {
            self.granted_requests.pop_front();
        }
        self.granted_requests.push_back(lease.request);
        self.lease = Some(lease.clone());
        SetAnswer::Granted(lease)
    }

    /// The owner showed itself under `epoch`: renews, and ends the life of the token before (S3).
    fn use_lease(&mut self, id: LogId, epoch: Epoch) -> Result<(), SetRefusal> {
        match &mut self.lease {
            Some(lease) if lease.epoch == epoch => {
                lease.renewed = id.index;
                lease.previous_token = None;
                Ok(())
            }
            other => Err(SetRefusal::WrongEpoch { found: epoch, current: other.as_ref().map(|lease| lease.epoch) }),
        }
    }

    fn release(&mut self, epoch: Epoch, token: Option<Token>) -> Result<SetAnswer, SetRefusal> {
        let Some(lease) = &self.lease else {
            // The last grant was released before: an earlier copy of this very request (R12).
            let again = epoch == self.epoch && epoch != self.base_epoch;
            let refusal = SetRefusal::WrongEpoch { found: epoch, current: None };
            return if again { Ok(SetAnswer::Released) } else { Err(refusal) };
        };
        if lease.epoch != epoch {
            return Err(SetRefusal::WrongEpoch { found: epoch, current: Some(lease.epoch) });
        }
        if token.is_some_and(|token| token != lease.token && Some(token) != lease.previous_token) {
            return Err(SetRefusal::StaleToken {
                epoch: lease.epoch,
                gateway: lease.gateway,
                since_unix_ms: lease.since_unix_ms,
            });
        }
        self.lease = None;
        Ok(SetAnswer::Released)
    }

    fn checkpoint_begin(&mut self, id: LogId, term: Term) -> Result<SetAnswer, SetRefusal> {
        check_term(id, term)?;
        // An unfinished one before it is given up: its segments are orphans, its generation goes into this one.
        self.begin = Some(Begin { at: id, base: self.current_root() });
        self.segments.clear();
        self.pin_pending(id);
        Ok(SetAnswer::CheckpointBegun { at: id })
    }

    fn segment_committed(&mut self, id: LogId, term: Term, note: SegmentNote) -> Result<SetAnswer, SetRefusal> {
        check_term(id, term)?;
        if self.begin.is_none() {
            return Err(SetRefusal::NoBegin);
        }
        if self.segments.iter().any(|present| present.object == note.object) {
            return Ok(SetAnswer::SegmentNoted);
        }
        if self.segments.len() >= SEGMENT_NOTES_MAX {
            return Err(SetRefusal::TooManySegments { max: SEGMENT_NOTES_MAX as u32 });
        }
        self.segments.push_back(note);
        Ok(SetAnswer::SegmentNoted)
    }

    fn checkpoint_end(&mut self, id: LogId, term: Term, begin: LogId, root: RootRef) -> Result<SetAnswer, SetRefusal> {
        check_term(id, term)?;
        // Also a second copy of an end that was applied is refused: it must not drop what a later begin has sealed. Its
        // proposer finds the outcome in `checkpoint`. And `checkpoint` is not asked here: on a replay from the snapshot it
        // names this end already, and yet the end must run as it did.
        let Some(Begin { base, .. }) = self.begin.filter(|latest| latest.at == begin) else {
            let latest = self.begin.map(|begin| begin.at);
            return Err(SetRefusal::NotLatestBegin { found: begin, latest });
        };
        self.checkpoint = Some(Checkpoint { upto: begin, root });
        self.begin = None;
        self.segments.clear();
        // A rollback clears `begin`: the one that ends here came after it.
        self.rolled_back = None;
        self.root_replaced(begin, base, root);
        Ok(SetAnswer::CheckpointEnded)
    }

    /// Checks what must hold at every index. For tests and debug builds.
    ///
    /// # Panics
    /// With the rule that does not hold.
    pub fn self_check(&self) {
        assert!(self.epoch >= self.base_epoch, "S1: {} below the base {}", self.epoch, self.base_epoch);
        if let Some(lease) = &self.lease {
            assert_eq!(lease.epoch, self.epoch, "S1: the lease has the last epoch granted");
            assert_eq!(lease.epoch.0, self.base_epoch.0 + lease.granted.0, "S1: epoch = base + index of the grant");
            assert!(lease.renewed >= lease.granted, "S4: renewed {} before granted {}", lease.renewed, lease.granted);
            assert_ne!(lease.previous_token, Some(lease.token), "S3: a token is never reused");
            assert!(self.last_seq.0 <= lease.renewed.0 - lease.granted.0, "S2: each number took an entry");
            assert!(self.last_seq.0 == 0 || lease.previous_token.is_none(), "S3: a write kills the token before");
            assert_eq!(self.granted_requests.last(), Some(&lease.request), "S10: the present request is remembered");
        }
        assert!(self.segments.is_empty() || self.begin.is_some(), "S5: segments without a begin");
        if let (Some(begin), Some(done)) = (self.begin, self.checkpoint) {
            assert!(begin.at >= done.upto, "S5: began at {} below {}", begin.at, done.upto);
        }
        self.self_check_space();
        assert!(self.granted_requests.len() <= REQUESTS_REMEMBERED, "S10: more requests than the limit");
        assert!(self.volumes.len() <= VOLUMES_PER_SET_MAX, "more volumes than the limit");
        assert!(self.volumes.keys().all(|id| id.0 < self.next_volume), "a volume id that was not handed out yet");
    }
}

pub(super) fn held(lease: &Lease) -> SetRefusal {
    SetRefusal::Held {
        owner: lease.owner.clone(),
        gateway: lease.gateway,
        epoch: lease.epoch,
        since_unix_ms: lease.since_unix_ms,
        plain: lease.plain,
    }
}

pub(super) fn check_size(size: Sectors) -> Result<(), SetRefusal> {
    if size.0 == 0 || size.0 > VOLUME_SECTORS_MAX {
        return Err(SetRefusal::SizeRefused { found: size, max: Sectors(VOLUME_SECTORS_MAX) });
    }
    Ok(())
}

/// A command of the leader's own work counts only in the term that it was proposed in: it is never forwarded, and a copy that
/// another term appended rests on what that term does not know.
pub(super) fn check_term(id: LogId, found: Term) -> Result<(), SetRefusal> {
    if id.term == found { Ok(()) } else { Err(SetRefusal::WrongTerm { found, expected: id.term }) }
}
