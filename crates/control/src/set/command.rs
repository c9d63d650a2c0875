//! What can be asked of a set, and what it answers. All of it travels through the log or to a client.
//!
//! Wire rule: variants are numbered by their order. New ones go to the end; a test pins the numbers.

use super::schedule::{Schedule, ScheduleError};
use super::state::{Lease, RootRef, SnapshotId, StoredObject};
use crate::text::{Utc, bytes};
use holdfast_types::{
    Epoch, Lba, LogId, LogIndex, MemberId, Name, ObjectId, Owner, RequestId, Sectors, SetId, Term, Token, VolumeId,
    WriteSeq,
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How long a lease outlives its last renewal unless the owner asks for another time. Renewed every third of it.
pub const TTL_DEFAULT: Duration = Duration::from_secs(3);
/// Shortest lease in milliseconds: below it, a single slow fdatasync would end leases all the time.
pub const TTL_MS_MIN: u32 = 100;
/// Longest lease in milliseconds: a dead owner must not hold a set for hours.
pub const TTL_MS_MAX: u32 = 600_000;
/// How many granted requests are remembered, so that late copies of them are known (R12). A copy outlives its request by the
/// caller's patience, seconds; this many grants within that time is a client gone mad.
pub const REQUESTS_REMEMBERED: usize = 16;
/// Segments noted between a begin and its end at most: at 16 MiB each 256 GiB, far above any journal, so that only an
/// uploader gone mad meets it.
pub const SEGMENT_NOTES_MAX: usize = 1 << 14;

const _: () = assert!((TTL_MS_MIN as u128) < TTL_DEFAULT.as_millis() && TTL_DEFAULT.as_millis() < TTL_MS_MAX as u128);

/// What the proposer saw when it judged a lease expired. Apply grants only if it is still so (SET-S4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Judged {
    /// Epoch of the lease that was judged.
    pub epoch: Epoch,
    /// Its last renewal known to the judge.
    pub renewed: LogIndex,
}

/// What is to become of a volume. Wire rule as above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeChange {
    /// A new one, thin and all zeroes.
    Create {
        /// Unique in the set.
        name: Name,
        /// Size, at least one sector.
        size: Sectors,
    },
    /// A larger size; the present one again is fine.
    Grow {
        /// Which.
        volume: VolumeId,
        /// The new size.
        size: Sectors,
    },
    /// A smaller size. What lies beyond is discarded.
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
        /// The last epoch as seen (VOLUME-V3): nobody took the set since it was found unused.
        epoch: Epoch,
    },
    /// It is gone, and what it held is discarded.
    Delete {
        /// Which.
        volume: VolumeId,
        /// Its name as seen (VOLUME-V3): what the person who asked has read.
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
        /// They are the last of it: the root itself is retired too.
        last: bool,
    },
    /// No root ever named them: uploads of earlier terms that came to nothing.
    Orphans,
    /// No kept root names them: uploads of this term, for checkpoints that began before this one.
    GivenUp {
        /// Where a checkpoint of this term began that has ended since: no end of an earlier one counts any more (SET-S5).
        ended: LogId,
    },
}

/// A decision asked of a set's replicated state. Whatever depends on time or chance was put in by the proposer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetCommand {
    /// Who may write: granted when free, judged expired, or forced.
    Acquire {
        /// Who asks.
        owner: Owner,
        /// The gateway that will serve, which is the proposer.
        gateway: MemberId,
        /// Drawn by the proposer.
        token: Token,
        /// Time to live without a renewal, in milliseconds.
        ttl_ms: u32,
        /// Sent again after an unknown outcome (R12): answered with the same grant.
        request: RequestId,
        /// Set when the proposer judged the present lease expired.
        judged_expired: Option<Judged>,
        /// Take it whoever holds it. The old side is fenced from that entry on.
        force: bool,
        /// A plain export's lease: never continued.
        plain: bool,
        /// Wall clock of the proposer in Unix milliseconds, shown to people only.
        at_unix_ms: u64,
    },
    /// The same owner goes on at another gateway (or in another term of the same one): new epoch, new token.
    ///
    /// The answer to a repeated request names the gateway that it was granted at. Where that is not the one that answers,
    /// the caller continues once more, with the granted token and a new request id. A caller keeps the older token until
    /// it has used the newer one.
    Continue {
        /// Who asks.
        owner: Owner,
        /// The gateway that will serve, which is the proposer.
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
    /// The owner is alive. Proposed only while it is known to have the current token (a connection was opened with it, or it
    /// asked): this is a use of it, and ends the tokens before (SET-S3).
    Renew {
        /// Of the lease.
        epoch: Epoch,
    },
    /// The owner gives the set back, or its serving gateway does.
    Release {
        /// Of the lease.
        epoch: Epoch,
        /// `None`: by the serving gateway itself, which only it can propose under this epoch.
        token: Option<Token>,
    },
    /// The journal index is sealed at this entry; everything up to it will be uploaded.
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
        /// What it holds, in bytes before compression.
        raw_bytes: u64,
    },
    /// Everything up to `begin` is in the store, and `root` names it.
    CheckpointEnd {
        /// Term of the proposer.
        term: Term,
        /// The entry that sealed.
        begin: LogId,
        /// The map at `begin`.
        root: RootRef,
    },
    /// The next checkpoint that begins is kept under this name. The same request again is fine.
    SnapshotCreate {
        /// Unique in the set.
        name: Name,
        /// As in `Acquire`.
        request: RequestId,
        /// As in `Acquire`; a schedule goes by it.
        at_unix_ms: u64,
        /// By the set's schedule.
        scheduled: bool,
    },
    /// The snapshot is given up, finished or not: the one that this request made, never a later one of the same name (SET-S11).
    SnapshotDelete {
        /// Its name.
        name: Name,
        /// The request that made it.
        made_by: RequestId,
    },
    /// These objects are named by nothing that is kept, and never will be: they may be deleted after the readers' grace.
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
    /// From this entry on the set is what the snapshot shows, volumes and their sizes included (SET-S12). The same request again has no effect.
    Rollback {
        /// The snapshot.
        to: SnapshotId,
        /// A snapshot that shows the set as it is now: the way back.
        safety: SnapshotId,
        /// As in `Acquire`.
        request: RequestId,
    },
    /// Which snapshots the leader takes by itself from now on. The same request again has no effect.
    SetSchedule {
        /// In place of the present one.
        schedule: Schedule,
        /// As in `Acquire`.
        request: RequestId,
    },
    /// A volume is made, resized, renamed or deleted. The same request again has no effect.
    ChangeVolume {
        /// What becomes of which.
        change: VolumeChange,
        /// As in `Acquire`.
        request: RequestId,
    },
    /// The snapshot's root stays for a clone, whatever becomes of the snapshot. The same request again is answered alike (SET-S13).
    Pin {
        /// The number that the clone has, or will have.
        clone: SetId,
        /// The snapshot.
        snapshot: SnapshotId,
        /// The request that makes the clone.
        request: RequestId,
    },
    /// No clone needs that root any more (SET-S13).
    Unpin {
        /// As in `Pin`: the number that was judged.
        clone: SetId,
        /// As in `Pin`: another one's pin stays.
        request: RequestId,
    },
}

/// What apply answers to one entry of the set's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetAnswer {
    /// The lease, new or, for a repeated request, as it stands.
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
    /// The snapshot is there, or will be once the next checkpoint has ended.
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
    /// The set is what the snapshot shows, or was so once by this request.
    RolledBack {
        /// By this very entry; `false` for a copy of a request that was carried out before.
        now: bool,
    },
    /// The schedule is the one that was asked for, or was so once by this request.
    ScheduleSet,
    /// The volume is as was asked, by this very entry.
    VolumeChanged {
        /// Which.
        volume: VolumeId,
        /// What it held from here on is gone.
        discarded: Option<Lba>,
    },
    /// A copy of a request on a volume that was carried out before: nothing was done.
    VolumeChangedBefore,
    /// A write entry was applied but for these operations, counted from 0, which fall outside of their volumes as they are now.
    WrittenExcept {
        /// Ascending, never empty.
        outside: Vec<u32>,
    },
    /// The root stays until it is unpinned.
    Pinned {
        /// Which.
        root: RootRef,
    },
    /// That request's pin is not there any more.
    Unpinned,
}

/// What to do with a write entry (R2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admit {
    /// The next number of the current epoch: apply it.
    Apply,
    /// Applied before: answer success, change nothing.
    Duplicate,
    /// Not under the current epoch, or not in order: it must have no effect.
    Refused(SetRefusal),
}

/// Why a set's state did not do what it was asked. The text is meant for the person who asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum SetRefusal {
    /// The volume name is in use.
    #[error("a volume of this name exists already: {volume}, size {}", bytes(*.size))]
    NameTaken {
        /// Its id.
        volume: VolumeId,
        /// Its size: equal to what was asked for, it may be the caller's own earlier attempt (R12).
        size: Sectors,
    },
    /// No such volume in this set.
    #[error("the set has no volume {volume}")]
    NoSuchVolume {
        /// As asked for.
        volume: VolumeId,
    },
    /// Growing makes no volume smaller; that is asked for by name.
    #[error("growing cannot make a volume smaller: found {}, expected at least its present {}; use shrink", bytes(*.found), bytes(*.current))]
    ShrinkRefused {
        /// As asked for.
        found: Sectors,
        /// As it is.
        current: Sectors,
    },
    /// A size outside of what a volume may have.
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
        /// Who.
        owner: Owner,
        /// Where.
        gateway: MemberId,
        /// Under which epoch.
        epoch: Epoch,
        /// Since when, in Unix milliseconds of the granting gateway's wall clock.
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
        /// Where it is served.
        gateway: MemberId,
        /// Since when, in Unix milliseconds of the granting gateway's wall clock.
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
    /// The set has as many snapshots as it may have.
    #[error("the set has {max} snapshots already, which is the most it may have; delete one first")]
    TooManySnapshots {
        /// `SNAPSHOTS_MAX`.
        max: u32,
    },
    /// More at once than an entry may retire, or than may wait for deletion.
    #[error("found {found} objects to retire, expected at most {max} at this time")]
    TooManyRetired {
        /// As proposed.
        found: u32,
        /// What fits now.
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
    /// No finished snapshot of that name, or another one than was meant.
    #[error("the set has no finished snapshot {name} of request {made_by}; list the snapshots and choose again")]
    NoSuchSnapshot {
        /// As asked for.
        name: Name,
        /// As asked for.
        made_by: RequestId,
    },
    /// SET-S12: the way back would not lead to what is there now.
    #[error(
        "the set was changed at index {changed} and its safety snapshot {name} shows it as of index {upto}, or its volumes are others \
         since: nothing was rolled back; stop whoever uses the set, and try again"
    )]
    ChangedSinceSnapshot {
        /// The safety snapshot.
        name: Name,
        /// What it shows.
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
    /// A schedule that cannot be kept.
    #[error("{error}")]
    BadSchedule {
        /// What is wrong with it.
        error: ScheduleError,
    },
    /// A volume grows by another request.
    #[error("a shrink to {} would grow the volume, which has {}: grow it instead", bytes(*.found), bytes(*.current))]
    GrowRefused {
        /// As asked for.
        found: Sectors,
        /// As it is.
        current: Sectors,
    },
    /// VOLUME-V3: it was changed since.
    #[error("volume {volume} was changed since it was looked at: it is {name} with {} now; look again", bytes(*.size))]
    VolumeNotAsSeen {
        /// Which.
        volume: VolumeId,
        /// Its name now.
        name: Name,
        /// Its size now.
        size: Sectors,
    },
    /// The set has as many clones as it may have.
    #[error("the set has {max} clones already, which is the most it may have; clone one of those, or copy the volumes")]
    TooManyPins {
        /// `PINS_MAX`.
        max: u32,
    },
    /// SET-S8: what was made before that checkpoint may be on its way into a root.
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
        /// `None`: none is under way, and the one that was named is of another term, or not behind the entry.
        under_way: Option<LogId>,
    },
}
