//! The replicated state of a set, as data. Commands change it in `apply` and in each rule's module.

use super::limits::Limits;
use super::schedule::Schedule;
use holdfast_types::{
    Epoch, Locality, LogId, LogIndex, MemberId, Name, ObjectId, Owner, RequestId, Sectors, SetId, Token, VolumeId,
    WriteSeq,
};
use imbl::{OrdMap, Vector};
use serde::{Deserialize, Serialize};

/// A volume, as clients see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Volume {
    /// Unique in the set.
    pub name: Name,
    /// Present size.
    pub size: Sectors,
}

/// Earlier tokens of a lease at most. Each is of a request that overtook another one, and all die with the next use.
/// When there is no room for another one, a continuation gets the present grant.
pub const EARLIER_TOKENS_MAX: usize = 16;

/// Who may write, where, under which epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The owner.
    pub owner: Owner,
    /// Served by this gateway only.
    pub gateway: MemberId,
    /// Fencing token of this grant (SET-S1).
    pub epoch: Epoch,
    /// Opens this grant.
    pub token: Token,
    /// Tokens that continue it too, until `token` is first used (SET-S3): what it was continued from, and those of
    /// later grants that were not used. Oldest first, at most [`EARLIER_TOKENS_MAX`].
    pub earlier_tokens: Vec<Token>,
    /// Time to live without a renewal, in milliseconds.
    pub ttl_ms: u32,
    /// The granted request.
    pub request: RequestId,
    /// The entry of the grant.
    pub granted: LogIndex,
    /// The last entry of a living owner: the grant, a renewal, or a write.
    pub renewed: LogIndex,
    /// A plain export's: never continued.
    pub plain: bool,
    /// Wall clock of the granting gateway in Unix milliseconds, for display only.
    pub since_unix_ms: u64,
}

impl Lease {
    /// Whether a token continues this lease, or gives it back (SET-S3).
    pub fn opens(&self, token: Token) -> bool {
        token == self.token || self.earlier_tokens.contains(&token)
    }

    /// The tokens that continue a grant which follows this one, for a caller that shows `token`. That token stays,
    /// since the answer to the new grant may be lost. Those of unused grants after it stay too: the request may be a
    /// late one of a process that is gone, and its successor may hold the newest token. Those before it die: its caller
    /// has a newer one.
    pub(super) fn tokens_after(&self, token: Token) -> Vec<Token> {
        let from = self.earlier_tokens.iter().position(|earlier| *earlier == token);
        let mut tokens: Vec<Token> = from.map_or(Vec::new(), |from| self.earlier_tokens[from..].to_vec());
        tokens.push(self.token);
        tokens
    }
}

/// A checkpoint under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Begin {
    /// The entry of the begin: the checkpoint covers everything up to it.
    pub at: LogId,
    /// The root of the then current checkpoint, which the new root replaces.
    pub base: Option<RootRef>,
}

/// The current checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Checkpoint {
    /// It contains every entry up to this one.
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
    /// Bytes before compression.
    pub raw_bytes: u64,
}

/// A map root in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RootRef {
    /// Its object.
    pub object: ObjectId,
    /// Length of that object in bytes.
    pub bytes: u64,
}

/// Identifies a snapshot, also among others of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SnapshotId {
    /// Its name.
    pub name: Name,
    /// The request that made it.
    pub made_by: RequestId,
}

/// Kind of a stored object, in the order of deletion: objects that name others go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StoredKind {
    /// Root of a map.
    Root,
    /// Pack of map pages.
    Pages,
    /// Segment.
    Segment,
}

/// An object of the set in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StoredObject {
    /// What it is.
    pub kind: StoredKind,
    /// Its id.
    pub object: ObjectId,
}

/// A set as of one entry of its log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Snapshot {
    /// It contains every entry up to this one, and none after (R4).
    pub upto: LogId,
    /// The map.
    pub root: RootRef,
    /// The volumes as they were.
    pub volumes: OrdMap<VolumeId, Volume>,
    /// The request that made it.
    pub request: RequestId,
    /// Wall clock of the requested gateway in Unix milliseconds: for display and for schedules.
    pub at_unix_ms: u64,
    /// Taken by the set's schedule, which also deletes it.
    pub scheduled: bool,
}

/// A requested snapshot that waits for a checkpoint that begins after the request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PendingSnapshot {
    /// As in [`Snapshot`].
    pub request: RequestId,
    /// As in [`Snapshot`].
    pub at_unix_ms: u64,
    /// The last begin that sealed it, and the volumes then.
    pub sealed: Option<(LogId, OrdMap<VolumeId, Volume>)>,
    /// As in [`Snapshot`].
    pub scheduled: bool,
}

/// A root that a clone needs. Stored under the request that makes the clone: if two requests want one number, group 0
/// makes one clone, and the other pin is over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pin {
    /// The clone's present or future number.
    pub clone: SetId,
    /// The root.
    pub root: RootRef,
    /// It contains every entry up to this one.
    pub upto: LogId,
    /// The name of its snapshot, which may be deleted or replaced by another one of that name.
    pub snapshot: Name,
    /// The entry that made it in this life of the set; default if an earlier life made it and this one has not seen the
    /// clone.
    pub at: LogId,
}

impl Pin {
    /// Whether an earlier life made it; this cluster may not know its clone yet.
    pub fn is_inherited(&self) -> bool {
        self.at == LogId::default()
    }
}

impl Snapshot {
    /// Whether an earlier life of the set made it: then its log position is one of a former log.
    pub fn is_inherited(&self) -> bool {
        self.upto == LogId::default()
    }
}

impl PendingSnapshot {
    /// The snapshot after the checkpoint that began at `begin` has ended with `root`; `None` if it waits for another
    /// one.
    pub(super) fn finished(&self, begin: LogId, root: RootRef) -> Option<Snapshot> {
        let (upto, volumes) = self.sealed.clone().filter(|(at, _)| *at == begin)?;
        let PendingSnapshot { request, at_unix_ms, scheduled, .. } = *self;
        Some(Snapshot { upto, root, volumes, request, at_unix_ms, scheduled })
    }
}

/// The small replicated state of one set. A clone is cheap (persistent structures): `CheckpointBegin` keeps one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SetState {
    /// Lower bound of all epochs: a recovered set starts above every grant of its former life.
    pub base_epoch: Epoch,
    /// By id. Ids are never reused.
    pub volumes: OrdMap<VolumeId, Volume>,
    /// `None`: free.
    pub lease: Option<Lease>,
    /// The last granted epoch, still held or not; `base_epoch` before the first.
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
    /// The last granted requests, oldest first, at most `REQUESTS_REMEMBERED`, with that of the present lease. A late
    /// copy of one must not take the set again (SET-S10).
    pub granted_requests: Vector<RequestId>,
    /// Kept checkpoints, by name.
    pub snapshots: OrdMap<Name, Snapshot>,
    /// Snapshots that wait for their checkpoint.
    pub pending: OrdMap<Name, PendingSnapshot>,
    /// Roots that are no longer retained, with their bytes: their objects are still to be retired (SET-S7).
    pub dropped: OrdMap<ObjectId, u64>,
    /// Objects that may be deleted from the store after the readers' grace period.
    pub retired: OrdMap<ObjectId, StoredKind>,
    /// The last requests on snapshots, schedules and volumes that were carried out, oldest first, at most
    /// `SPACE_REQUESTS_REMEMBERED` (SET-S11).
    pub space_requests: Vector<RequestId>,
    /// The last entry that changed the content of volumes: a write, a trim, a rollback, a shrink, a deletion.
    pub last_change: LogIndex,
    /// The last rollback, until a checkpoint that began after it has ended: the store's head may name the state before
    /// it (SET-S12).
    pub rolled_back: Option<LogId>,
    /// The schedule of snapshots.
    pub schedule: Schedule,
    /// Roots that clones need, by the request that made each (SET-S13).
    pub pins: OrdMap<RequestId, Pin>,
    /// The entry that changed them last; default if none did in this life.
    pub pins_at: LogId,
    /// Where the owner of the lease stands, if it has said so (SET-S17). Not part of the state's bytes: a snapshot has
    /// it behind them, so that one without it reads as before.
    #[serde(skip)]
    pub owner_at: Option<Locality>,
    /// Limits of its clients (SET-S18). Not part of the state's bytes, like the place of the owner.
    #[serde(skip)]
    pub limits: Limits,
    /// The round trip that the times of the set's group are computed from, in milliseconds; `None`: that of the
    /// settings (SET-S19). Not part of the state's bytes, as `owner_at`.
    #[serde(skip)]
    pub rtt_ms: Option<u32>,
}

impl SetState {
    /// An empty, free set; all its epochs are above `base_epoch`.
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
            owner_at: None,
            limits: Limits::default(),
            rtt_ms: None,
        }
    }
}
