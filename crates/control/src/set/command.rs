//! Commands of a set and their answers. They travel through the log or to clients.
//!
//! Wire rule: variants are numbered by their order. New ones go to the end; a test pins the numbers.

use super::schedule::{Schedule, ScheduleError};
use super::state::{Lease, RootRef, SnapshotId, StoredObject};
use crate::text::{Utc, bytes};
use holdfast_types::{
    Epoch, Lba, Locality, LogId, LogIndex, MemberId, Name, ObjectId, Owner, RequestId, Sectors, SetId, Term, Token,
    VolumeId, WriteSeq,
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
    /// The proposer's term; the set's times are computed from this round trip, in milliseconds (SET-S18).
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

/// Why a set's state refused a command. The text is for the requester.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum SetRefusal {
    /// The volume name is in use.
    #[error("a volume of this name exists already: id {}, size {}", .volume.0, bytes(*.size))]
    NameTaken {
        /// Its id.
        volume: VolumeId,
        /// Its size: if it is the requested one, the volume may be from the caller's own earlier attempt (R12).
        size: Sectors,
    },
    /// No such volume in this set.
    #[error("the set has no volume {volume}")]
    NoSuchVolume {
        /// As asked for.
        volume: VolumeId,
    },
    /// Growing never makes a volume smaller; use shrink for that.
    #[error("growing cannot make a volume smaller: found {}, expected at least its present {}; use shrink", bytes(*.found), bytes(*.current))]
    ShrinkRefused {
        /// As asked for.
        found: Sectors,
        /// Present size.
        current: Sectors,
    },
    /// A size out of range.
    #[error("volume size: found {}, expected 512B to {}", bytes(*.found), bytes(*.max))]
    SizeRefused {
        /// As asked for.
        found: Sectors,
        /// `VOLUME_SECTORS_MAX`.
        max: Sectors,
    },
    /// The set is full.
    #[error("the set has {max} volumes already, which is the most it may have")]
    TooManyVolumes {
        /// `VOLUMES_PER_SET_MAX`.
        max: u32,
    },
    /// Somebody holds the lease.
    #[error(
        "the set is held by {owner} at gateway {gateway} since {} (epoch {epoch}{}); wait until the lease is released or \
         expires, or take it by force",
        Utc(*.since_unix_ms), if *.plain { ", plain export" } else { "" }
    )]
    Held {
        /// The owner.
        owner: Owner,
        /// Where.
        gateway: MemberId,
        /// Its epoch.
        epoch: Epoch,
        /// Time of the grant, in Unix milliseconds of the granting gateway's wall clock.
        since_unix_ms: u64,
        /// A plain export's connection.
        plain: bool,
    },
    /// Nobody holds the lease: there is nothing to continue.
    #[error("nobody holds the set: the last lease (epoch {last_epoch}) was released; acquire it anew")]
    NotHeld {
        /// The last epoch that was granted.
        last_epoch: Epoch,
    },
    /// The token is not, or no longer, that of the current grant.
    #[error(
        "the token is not that of the current lease (epoch {epoch}, at gateway {gateway} since {}): a newer token was \
         used, or it never was this lease's",
        Utc(*.since_unix_ms)
    )]
    StaleToken {
        /// Of the current lease.
        epoch: Epoch,
        /// The serving gateway.
        gateway: MemberId,
        /// Time of the grant, in Unix milliseconds of the granting gateway's wall clock.
        since_unix_ms: u64,
    },
    /// A plain export's lease ends with its connection.
    #[error("the lease (epoch {epoch}) belongs to a plain export, which never continues: acquire it anew")]
    NotContinuable {
        /// Of the lease.
        epoch: Epoch,
    },
    /// The grant of this request is over: this is a late copy of it (SET-S10).
    #[error(
        "this request was granted before and its lease is over (the last epoch is {epoch}): ask anew, under another request id"
    )]
    RequestEnded {
        /// The last epoch that was granted.
        epoch: Epoch,
    },
    /// A token must never have been used before.
    #[error("the new token is one that this lease has used before")]
    TokenReused,
    /// A time to live out of bounds.
    #[error("lease time to live: found {found_ms} ms, expected {min_ms} to {max_ms} ms")]
    TtlRefused {
        /// As asked for.
        found_ms: u32,
        /// `TTL_MS_MIN`.
        min_ms: u32,
        /// `TTL_MS_MAX`.
        max_ms: u32,
    },
    /// R2, R6: the entry was made under another grant.
    #[error("fenced: found epoch {found}, {}", match .current {
        Some(epoch) => format!("the set is held under epoch {epoch}"),
        None => "nobody holds the set".to_string(),
    })]
    WrongEpoch {
        /// Of the entry.
        found: Epoch,
        /// Of the lease. `None`: the set is free.
        current: Option<Epoch>,
    },
    /// R2: an entry is missing before this one.
    #[error("write out of order: found number {found}, expected {expected}")]
    SeqGap {
        /// Of the entry.
        found: WriteSeq,
        /// The next in order.
        expected: WriteSeq,
    },
    /// The proposer's term is not that of the entry.
    #[error("proposed in term {found}, but appended in term {expected}")]
    WrongTerm {
        /// As written by the proposer.
        found: Term,
        /// Of the entry's log id.
        expected: Term,
    },
    /// Not the latest begin (SET-S5).
    #[error("the checkpoint to end began at {found}, {}", match .latest {
        Some(begin) => format!("the latest began at {begin}"),
        None => "and none is under way".to_string(),
    })]
    NotLatestBegin {
        /// As named by the proposer.
        found: LogId,
        /// `None`: none is under way.
        latest: Option<LogId>,
    },
    /// Segments belong to a checkpoint under way.
    #[error("no checkpoint is under way that a segment could belong to")]
    NoBegin,
    /// The checkpoint names more segments than any journal can hold.
    #[error("the checkpoint has {max} segments already, which is the most it may have")]
    TooManySegments {
        /// `SEGMENT_NOTES_MAX`.
        max: u32,
    },
    /// The snapshot's name is in use.
    #[error("snapshot {name} exists already, or is being created")]
    SnapshotNameTaken {
        /// As asked for.
        name: Name,
    },
    /// The set has the largest number of snapshots.
    #[error("the set has {max} snapshots already, which is the most it may have; delete one first")]
    TooManySnapshots {
        /// `SNAPSHOTS_MAX`.
        max: u32,
    },
    /// More than one entry may retire, or than may wait for deletion.
    #[error("found {found} objects to retire, expected at most {max} at this time")]
    TooManyRetired {
        /// As proposed.
        found: u32,
        /// Number that fits now.
        max: u32,
    },
    /// SET-S8: it must not be deleted.
    #[error("object {object} is in use, or may come into use: it is not retired")]
    StillInUse {
        /// The object.
        object: ObjectId,
    },
    /// SET-S11: a late copy of a request that was carried out.
    #[error("this request was carried out before, and what it made is gone since: ask anew, under another request id")]
    RequestDone,
    /// There is no finished snapshot of that name, or it is not the one of that request.
    #[error("the set has no finished snapshot {name} of request {made_by}; list the snapshots and choose again")]
    NoSuchSnapshot {
        /// As asked for.
        name: Name,
        /// As asked for.
        made_by: RequestId,
    },
    /// SET-S12: the safety snapshot does not show the present content.
    #[error(
        "the set was changed at index {changed} and its safety snapshot {name} shows it as of index {upto}, or its volumes are others \
         since: nothing was rolled back; stop whoever uses the set, and try again"
    )]
    ChangedSinceSnapshot {
        /// The safety snapshot.
        name: Name,
        /// The last entry that it contains.
        upto: LogIndex,
        /// The last entry that changed the set's content.
        changed: LogIndex,
    },
    /// SET-S12: nothing is retired between a rollback and the end of a checkpoint that began after it.
    #[error("the set was rolled back at {at} and has no checkpoint since: nothing is retired until then")]
    NotCheckpointed {
        /// The rollback.
        at: LogId,
    },
    /// An invalid schedule.
    #[error("{error}")]
    BadSchedule {
        /// The reason.
        error: ScheduleError,
    },
    /// A volume grows by another request.
    #[error("a shrink to {} would grow the volume, which has {}: grow it instead", bytes(*.found), bytes(*.current))]
    GrowRefused {
        /// As asked for.
        found: Sectors,
        /// Present size.
        current: Sectors,
    },
    /// VOLUME-V3: it was changed meanwhile.
    #[error("volume {volume} was changed since it was looked at: it is {name} with {} now; look again", bytes(*.size))]
    VolumeNotAsSeen {
        /// Which.
        volume: VolumeId,
        /// Its name now.
        name: Name,
        /// Its size now.
        size: Sectors,
    },
    /// The set has the largest number of clones.
    #[error("the set has {max} clones already, which is the most it may have; clone one of those, or copy the volumes")]
    TooManyPins {
        /// `PINS_MAX`.
        max: u32,
    },
    /// SET-S8: an object made before that checkpoint may still become part of a root.
    #[error(
        "found the checkpoint that began at {found}, expected one of this entry's term that has ended: {}",
        match .under_way {
            Some(at) => format!("the one that began at {at} is under way"),
            None => "none is under way".to_string(),
        }
    )]
    NotOver {
        /// As named by the proposer.
        found: LogId,
        /// `None`: none is under way, and the named one is of another term, or not before the entry.
        under_way: Option<LogId>,
    },
}
