//! Commands of a set and their answers. They travel through the log or to clients.
//!
//! Wire rule: variants are numbered by their order. New ones go to the end; a test pins the numbers.

use super::limits::Limit;
use super::refusal::SetRefusal;
use super::schedule::Schedule;
use super::state::{Lease, RootRef, SnapshotId, StoredObject};
use holdfast_types::{
    Epoch, Lba, Locality, LogId, LogIndex, MemberId, Name, ObjectId, Owner, RequestId, Sectors, SetId, Term, Token,
    VolumeId,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time to live of a lease unless the owner asks for another. Renewed every third of it.
pub const TTL_DEFAULT: Duration = Duration::from_secs(3);
/// Shortest lease in milliseconds: below it, a single slow fdatasync would end leases.
pub const TTL_MS_MIN: u32 = 100;
/// Longest lease in milliseconds: a dead owner must not hold a set for hours.
pub const TTL_MS_MAX: u32 = 600_000;
/// Number of remembered granted requests, so that late copies are recognised (R12). A copy arrives seconds after its
/// request at most; only a faulty client gets so many grants in that time.
pub const REQUESTS_REMEMBERED: usize = 16;
/// Most segments noted between a begin and its end: 256 GiB at 16 MiB each, which only a faulty uploader exceeds.
pub const SEGMENT_NOTES_MAX: usize = 1 << 14;

const _: () = assert!((TTL_MS_MIN as u128) < TTL_DEFAULT.as_millis() && TTL_DEFAULT.as_millis() < TTL_MS_MAX as u128);

/// State that the proposer saw when it judged a lease expired. Apply grants only if it is unchanged (SET-S4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Judged {
    /// Epoch of the lease that was judged.
    pub epoch: Epoch,
    /// Its last renewal known to the judge.
    pub renewed: LogIndex,
}

/// A change of a volume. Wire rule as above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeChange {
    /// A new one, thin and all zeroes.
    Create {
        /// Unique in the set.
        name: Name,
        /// Size, at least one sector.
        size: Sectors,
    },
    /// A larger size; the present one is accepted too.
    Grow {
        /// Which.
        volume: VolumeId,
        /// The new size.
        size: Sectors,
    },
    /// A smaller size. Data beyond it is discarded.
    Shrink {
        /// Which.
        volume: VolumeId,
        /// Its size as seen (VOLUME-V3).
        from: Sectors,
        /// The new size.
        to: Sectors,
        /// The last epoch as seen (VOLUME-V3).
        epoch: Epoch,
    },
    /// Another name.
    Rename {
        /// Which.
        volume: VolumeId,
        /// Its name as seen (VOLUME-V3).
        from: Name,
        /// The new name.
        to: Name,
        /// The last epoch as seen (VOLUME-V3): the set was not taken since it was found unused.
        epoch: Epoch,
    },
    /// Deletes it and discards its data.
    Delete {
        /// Which.
        volume: VolumeId,
        /// Its name as seen by the requester (VOLUME-V3).
        name: Name,
        /// The last epoch as seen (VOLUME-V3).
        epoch: Epoch,
    },
}

/// Why objects are retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RetireOf {
    /// This dropped root named them, and no kept root does.
    Root {
        /// The dropped root.
        root: ObjectId,
        /// These are the last objects: the root itself is retired too.
        last: bool,
    },
    /// No root ever named them: uploads of earlier terms for checkpoints that did not end.
    Orphans,
    /// No retained root names them: uploads of this term, for checkpoints that began before this one.
    GivenUp {
        /// Begin of a checkpoint of this term that has ended since: no end of an earlier one is accepted any more
        /// (SET-S5).
        ended: LogId,
    },
}

/// A command for a set's replicated state. The proposer has put in all that depends on time or chance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetCommand {
    /// Acquires the lease: granted when free, judged expired, or forced.
    Acquire {
        /// The new owner.
        owner: Owner,
        /// The gateway that will serve: the proposer.
        gateway: MemberId,
        /// Drawn by the proposer.
        token: Token,
        /// Time to live without a renewal, in milliseconds.
        ttl_ms: u32,
        /// A retry after an unknown outcome gets the same grant (R12).
        request: RequestId,
        /// Set when the proposer judged the present lease expired.
        judged_expired: Option<Judged>,
        /// Take it from any holder. The old side is fenced from that entry on.
        force: bool,
        /// A plain export's lease: never continued.
        plain: bool,
        /// Wall clock of the proposer in Unix milliseconds, for display only.
        at_unix_ms: u64,
    },
    /// Continues a lease at another gateway (or in another term of the same one): new epoch, new token.
    ///
    /// The answer to a repeated request names the gateway of the grant. If that is not the answering one, the caller
    /// continues once more, with the granted token and a new request id. A caller keeps the older token until it has
    /// used the newer one.
    Continue {
        /// The owner.
        owner: Owner,
        /// The gateway that will serve: the proposer.
        gateway: MemberId,
        /// The current token, or an earlier one while the current one was never used (SET-S3).
        token: Token,
        /// Drawn by the proposer.
        new_token: Token,
        /// As in `Acquire`.
        request: RequestId,
        /// As in `Acquire`.
        at_unix_ms: u64,
    },
    /// The owner is alive. Proposed only while it is known to have the current token (a connection was opened with it,
    /// or it asked): this is a use of it, and ends the tokens before (SET-S3).
    Renew {
        /// Of the lease.
        epoch: Epoch,
    },
    /// The owner or its serving gateway releases the set.
    Release {
        /// Of the lease.
        epoch: Epoch,
        /// `None`: by the serving gateway; only that one can propose under this epoch.
        token: Option<Token>,
    },
    /// Seals the journal index at this entry; everything up to it will be uploaded.
    CheckpointBegin {
        /// Term of the proposer.
        term: Term,
    },
    /// A segment of the checkpoint under way is in the store.
    SegmentCommitted {
        /// Term of the proposer.
        term: Term,
        /// The object.
        object: ObjectId,
        /// Its length in the store, in bytes.
        stored_bytes: u64,
        /// Bytes before compression.
        raw_bytes: u64,
    },
    /// Everything up to `begin` is in the store under `root`.
    CheckpointEnd {
        /// Term of the proposer.
        term: Term,
        /// The entry of the begin.
        begin: LogId,
        /// The map at `begin`.
        root: RootRef,
    },
    /// Retains the next checkpoint that begins, under this name. A repeated request is accepted.
    SnapshotCreate {
        /// Unique in the set.
        name: Name,
        /// As in `Acquire`.
        request: RequestId,
        /// As in `Acquire`; schedules use it.
        at_unix_ms: u64,
        /// By the set's schedule.
        scheduled: bool,
    },
    /// Gives up the snapshot, finished or not: the one that this request made, never a later one of the same name
    /// (SET-S11).
    SnapshotDelete {
        /// Its name.
        name: Name,
        /// The request that made it.
        made_by: RequestId,
    },
    /// No retained root names these objects, and none ever will: they may be deleted after the readers' grace period.
    Retire {
        /// Term of the proposer.
        term: Term,
        /// Why.
        of: RetireOf,
        /// At most `RETIRE_OBJECTS_MAX`.
        objects: Vec<StoredObject>,
    },
    /// These retired objects are gone from the store.
    Deleted {
        /// Term of the proposer.
        term: Term,
        /// At most `RETIRE_OBJECTS_MAX`.
        objects: Vec<ObjectId>,
    },
    /// Makes the set equal to the snapshot, volumes and their sizes included (SET-S12). A repeated request has no
    /// effect.
    Rollback {
        /// The snapshot.
        to: SnapshotId,
        /// A snapshot of the set as it is now: the way back.
        safety: SnapshotId,
        /// As in `Acquire`.
        request: RequestId,
    },
    /// Sets the schedule of snapshots. A repeated request has no effect.
    SetSchedule {
        /// The new schedule.
        schedule: Schedule,
        /// As in `Acquire`.
        request: RequestId,
    },
    /// Makes, resizes, renames or deletes a volume. A repeated request has no effect.
    ChangeVolume {
        /// The change.
        change: VolumeChange,
        /// As in `Acquire`.
        request: RequestId,
    },
    /// Retains the snapshot's root for a clone, even if the snapshot is deleted. A repeated request gets the same
    /// answer (SET-S13).
    Pin {
        /// The clone's present or future number.
        clone: SetId,
        /// The snapshot.
        snapshot: SnapshotId,
        /// The request that makes the clone.
        request: RequestId,
    },
    /// No clone needs that root any more (SET-S13).
    Unpin {
        /// As in `Pin`: the judged number.
        clone: SetId,
        /// As in `Pin`: another request's pin stays.
        request: RequestId,
    },
    /// The owner of this grant stands there (SET-S17). Renews nothing: its gateway says it, not the owner.
    Locate(Epoch, Locality),
    /// Limits the clients of a volume, or of the whole set (SET-S18). A repeated request has no effect.
    SetLimit {
        /// `None`: all volumes of the set together.
        volume: Option<VolumeId>,
        /// The new limit; [`Limit::NONE`] removes it.
        limit: Limit,
        /// As in `Acquire`.
        request: RequestId,
    },
    /// The proposer's term; the set's times are computed from this round trip, in milliseconds (SET-S19).
    Retime(Term, u32),
}

/// Answer of apply to an entry of the set's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetAnswer {
    /// The lease; for a repeated request, the present one.
    Granted(Lease),
    /// The lease lives on.
    Renewed,
    /// The set is free.
    Released,
    /// Sealed at this entry.
    CheckpointBegun {
        /// To be named by `CheckpointEnd`.
        at: LogId,
    },
    /// The segment is known.
    SegmentNoted,
    /// The checkpoint is the current one. Answered once per checkpoint.
    CheckpointEnded,
    /// A write entry was applied, or had been before.
    Written,
    /// Nothing was done.
    Refused(SetRefusal),
    /// The snapshot exists, or will once the next checkpoint has ended.
    SnapshotAsked,
    /// There is no snapshot of that name any more.
    SnapshotDeleted {
        /// Whether there was one, finished or not.
        existed: bool,
    },
    /// The objects may be deleted after the readers' grace.
    Retired,
    /// They are not waited for any more.
    DeletionNoted,
    /// The set equals the snapshot, or did once by this request.
    RolledBack {
        /// True if this entry did it; `false` for a copy of a request that was carried out before.
        now: bool,
    },
    /// The schedule is the requested one, or was once by this request.
    ScheduleSet,
    /// The volume is as was asked, by this very entry.
    VolumeChanged {
        /// Which.
        volume: VolumeId,
        /// Its data from here on was discarded.
        discarded: Option<Lba>,
    },
    /// A copy of a request that was carried out before: nothing was done.
    VolumeChangedBefore,
    /// A write entry was applied except these operations, counted from 0, which are outside of their volumes now.
    WrittenExcept {
        /// Ascending, never empty.
        outside: Vec<u32>,
    },
    /// The root is retained until it is unpinned.
    Pinned {
        /// Which.
        root: RootRef,
    },
    /// That request's pin does not exist any more.
    Unpinned,
    /// It is known where the owner stands.
    Located,
    /// The limit is the requested one, or was once by this request.
    LimitSet,
    /// The group has the times that were chosen.
    Retimed,
}

/// How to treat a write entry (R2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admit {
    /// The next number of the current epoch: apply it.
    Apply,
    /// Applied before: answer success, change nothing.
    Duplicate,
    /// Not under the current epoch, or out of order: it must have no effect.
    Refused(SetRefusal),
}
