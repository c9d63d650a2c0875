//! Why a set's state refuses a command.
//!
//! Wire rule as in `command`: variants are numbered by their order, and new ones go to the end.

use super::limits::LimitError;
use super::schedule::ScheduleError;
use crate::text::{Utc, bytes};
use holdfast_types::{
    Epoch, LogId, LogIndex, MemberId, Name, ObjectId, Owner, RequestId, Sectors, Term, VolumeId, WriteSeq,
};
use serde::{Deserialize, Serialize};

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
    #[error("nobody holds the set: the last lease (epoch {last_epoch}) was released; acquire it again")]
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
    #[error("the lease (epoch {epoch}) belongs to a plain export, which never continues: acquire it again")]
    NotContinuable {
        /// Of the lease.
        epoch: Epoch,
    },
    /// The grant of this request is over: this is a late copy of it (SET-S10).
    #[error(
        "this request was granted before and its lease is over (the last epoch is {epoch}): repeat it with a new request id"
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
    #[error("this request was carried out before, and what it made is gone since: repeat it with a new request id")]
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
    /// A limit out of bounds.
    #[error("{error}")]
    BadLimit {
        /// The reason.
        error: LimitError,
    },
}
