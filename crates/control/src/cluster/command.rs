//! What can be asked of group 0, and what it answers. The wire rule of `set::command` holds here too.

use super::deletion::GroupVoters;
use super::state::{Member, Standing};
use crate::set::{CLONES_LEVEL, CloneOf, Links, Restored};
use holdfast_types::{Epoch, MemberId, Name, RequestId, SetId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Members at most: beyond a few voters, more gateways only slow the quorum down.
pub const MEMBERS_MAX: usize = 32;
/// Sets at most: each is a Raft group with heartbeats of its own.
pub const SETS_MAX: usize = 1024;
/// An address `host:port` in bytes at most: a DNS name has 253.
pub const ADDRESS_BYTES_MAX: usize = 300;
/// A store's URL in bytes at most.
pub const STORE_URL_BYTES_MAX: usize = 2048;
/// What every build knows.
pub const FIRST_LEVEL: u32 = 1;
/// The newest feature level that this build knows. Whoever adds an entry, or another meaning of one, raises it.
pub const FEATURE_LEVEL: u32 = 5;
/// The feature level from which on sets are deleted.
pub const DELETION_LEVEL: u32 = 3;
/// The feature level from which on a running gateway renews its life: its disk's counter goes ahead of that of its starts, which a build of before would begin with.
pub const LIVES_LEVEL: u32 = 4;
/// The feature level from which on a set may have several data keys (ADR 0023): a build of before opens neither such a ring of wrapped keys nor the roots.
pub const DATA_KEYS_LEVEL: u32 = 5;
/// A set's wrapped data keys in bytes at most: 108 bytes for each (`DATA_KEYS_MAX` of them), and room for a KMS's envelope.
pub const WRAPPED_KEY_BYTES_MAX: usize = 4096;

/// A decision asked of group 0. Whatever depends on time or chance was put in by the proposer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClusterCommand {
    /// The cluster's own name, drawn once by whoever created it; its first entry.
    Init {
        /// Random, not zero.
        cluster_id: u128,
    },
    /// A gateway joins.
    AddMember {
        /// Its id is 0 to be given the next one, or one that was never used (the first member knows its id before there is a
        /// group 0).
        member: Member,
        /// Whose place it takes: that member is leaving from this entry on, and gives its name free.
        replaces: Option<MemberId>,
        /// Sent again after an unknown outcome (R12): answered alike.
        request: RequestId,
    },
    /// A gateway is gone for good, and its disk with it (C2): out of every group before.
    RemoveMember {
        /// The member.
        id: MemberId,
    },
    /// A gateway's addresses have changed.
    UpdateMember {
        /// The member.
        id: MemberId,
        /// As in [`Member`].
        peer_addr: String,
        /// As in [`Member`].
        api_addr: String,
        /// As in [`Member`].
        nbd_addr: String,
    },
    /// A gateway has started, or renews its life (C3). Before this is applied it takes part in nothing.
    RegisterBoot {
        /// The member.
        member: MemberId,
        /// Its disk's uuid.
        disk: u128,
        /// The disk's boot counter, of starts and of renewals of its life; fsynced before this was sent.
        boot: u64,
        /// Drawn for this life.
        nonce: u64,
        /// The newest feature level that its build knows.
        level: u32,
    },
    /// A new volume set.
    CreateSet {
        /// Unique in the cluster.
        name: Name,
        /// URL of its store.
        store: String,
        /// Its data key, wrapped by the cluster key.
        wrapped_key: Vec<u8>,
        /// Which cluster key wrapped it.
        key_id: u32,
        /// Its first voters. Empty: all members.
        members: Vec<MemberId>,
        /// The proposer, which also starts the group.
        created_by: MemberId,
        /// Every epoch of the set is above it: 0, or more for a set that was recovered from its store.
        base_epoch: Epoch,
        /// Sent again after an unknown outcome (R12): answered alike.
        request: RequestId,
    },
    /// The same data key, wrapped by another cluster key, whatever it was before. Not proposed any more: see `SwapKeys`.
    RewrapKey {
        /// The set.
        set: SetId,
        /// The data key, wrapped anew.
        wrapped_key: Vec<u8>,
        /// Which cluster key wrapped it.
        key_id: u32,
    },
    /// A set that begins with what its former life left in the store. The same set of the same generation again is answered alike.
    RestoreSet {
        /// As in its former life: its objects are bound to it.
        set: SetId,
        /// As in its former life.
        name: Name,
        /// URL of the store that it was found in.
        store: String,
        /// Its data key, as its former life wrapped it.
        wrapped_key: Vec<u8>,
        /// Which data key.
        key_id: u32,
        /// The proposer, which also starts the group.
        created_by: MemberId,
        /// Raised in the store before: every older life is fenced. Its epochs lie above all of theirs.
        generation: u64,
        /// What it begins with.
        restored: Restored,
    },
    /// What a member may do from now on. Leaving is final.
    SetStanding {
        /// The member.
        id: MemberId,
        /// As in [`Member`].
        standing: Standing,
    },
    /// Entries of this level may be proposed from now on: every member's build knows them.
    RaiseLevel {
        /// Above the present one.
        level: u32,
    },
    /// A set's keys, wrapped anew; only while they are still what the proposer saw: a late copy cannot bring an old wrapping back.
    SwapKeys {
        /// The set.
        set: SetId,
        /// As the proposer saw them. Each wrapping has a nonce of its own, so equal bytes are the same wrapping.
        expected: Vec<u8>,
        /// What takes their place.
        wrapped_key: Vec<u8>,
        /// Which data key seals from now on.
        key_id: u32,
    },
    /// A set goes, for ever: it is started, granted and served nowhere from this entry on (D1).
    DeleteSet {
        /// The set.
        set: SetId,
        /// Its name, as whoever asks has seen it.
        name: Name,
        /// Sent again after an unknown outcome (R12): answered alike.
        request: RequestId,
    },
    /// A member has ended the group of a set that is being deleted, for ever: durable on its disk before this was proposed.
    SetEnded {
        /// The set.
        set: SetId,
        /// The member.
        member: MemberId,
        /// The group's voters as it had them in its log; `None` where it had none, or could not read them.
        voters: Option<GroupVoters>,
    },
    /// The wrapped key of a set that is being deleted is destroyed. Refused before the set is fenced (D2).
    ForgetSet {
        /// The set.
        set: SetId,
        /// Another cluster has taken the set over in its store: nothing is removed there.
        store_left: bool,
    },
    /// The store showed nothing more of a set whose key is forgotten: its name is free (D3).
    SetEmptied {
        /// The set.
        set: SetId,
        /// Who had ended the group before that look at the store (D4).
        ended: BTreeSet<MemberId>,
    },
    /// A new volume set that begins with what a snapshot of another one shows (ADR 0028). In its origin's store.
    CloneSet {
        /// The number that it gets: refused where that is not the next one (S14).
        set: SetId,
        /// Unique in the cluster.
        name: Name,
        /// What of; the origin has pinned it.
        clone_of: CloneOf,
        /// As in `CreateSet`.
        wrapped_key: Vec<u8>,
        /// As in `CreateSet`.
        key_id: u32,
        /// As in `CreateSet`.
        created_by: MemberId,
        /// The origin's volumes as of the snapshot, and a root of the clone's own that shows the origin's.
        restored: Restored,
    },
    /// `RestoreSet` of a set that hangs together with others.
    RestoreLinkedSet {
        /// As in `RestoreSet`.
        set: SetId,
        /// As in `RestoreSet`.
        name: Name,
        /// As in `RestoreSet`.
        store: String,
        /// As in `RestoreSet`.
        wrapped_key: Vec<u8>,
        /// As in `RestoreSet`.
        key_id: u32,
        /// As in `RestoreSet`.
        created_by: MemberId,
        /// As in `RestoreSet`.
        generation: u64,
        /// As in `RestoreSet`.
        restored: Restored,
        /// Its pins, and what it is a clone of: that is there already.
        links: Links,
    },
    /// Numbers up to this one are given to no set any more: something lies in their place in a store, such as the tombstone of a set that was deleted before a recovery.
    PassSets {
        /// The last of them.
        upto: SetId,
    },
}

impl ClusterCommand {
    /// The feature level from which on it may be proposed: a build of a level before does not know it.
    pub fn level(&self) -> u32 {
        match self {
            ClusterCommand::Init { .. }
            | ClusterCommand::AddMember { .. }
            | ClusterCommand::RemoveMember { .. }
            | ClusterCommand::UpdateMember { .. }
            | ClusterCommand::RegisterBoot { .. }
            | ClusterCommand::CreateSet { .. }
            | ClusterCommand::RewrapKey { .. }
            | ClusterCommand::RestoreSet { .. }
            | ClusterCommand::SetStanding { .. }
            | ClusterCommand::RaiseLevel { .. } => FIRST_LEVEL,
            ClusterCommand::SwapKeys { .. } => 2,
            ClusterCommand::DeleteSet { .. }
            | ClusterCommand::SetEnded { .. }
            | ClusterCommand::ForgetSet { .. }
            | ClusterCommand::SetEmptied { .. }
            | ClusterCommand::PassSets { .. } => DELETION_LEVEL,
            ClusterCommand::CloneSet { .. } | ClusterCommand::RestoreLinkedSet { .. } => CLONES_LEVEL,
        }
    }
}

/// What apply answers to one entry of group 0's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClusterAnswer {
    /// The cluster has this id.
    Initialized,
    /// The member, new or, for a repeated request, as it was made.
    MemberAdded {
        /// Never used before.
        id: MemberId,
    },
    /// It is not a member, or no longer.
    MemberRemoved,
    /// The addresses are these.
    MemberUpdated,
    /// The process may take part.
    BootRegistered,
    /// The set, new or, for a repeated request, as it was made.
    SetCreated {
        /// Never used before.
        set: SetId,
    },
    /// The set's key is wrapped by that cluster key.
    KeyRewrapped,
    /// Nothing was done.
    Refused(ClusterRefusal),
    /// The member's standing is that.
    StandingSet,
    /// The cluster is at that level, or above it.
    LevelRaised,
    /// The set is being deleted, or was.
    SetDeleting {
        /// Which.
        set: SetId,
    },
    /// The step of a deletion is noted, or was before.
    DeletionNoted,
}

/// Why group 0 did not do what it was asked. The text is meant for the person who asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ClusterRefusal {
    /// The cluster has another id: the caller means another cluster.
    #[error("cluster id: found {found:032x}, expected {expected:032x}: this is another cluster")]
    OtherCluster {
        /// As asked for.
        found: u128,
        /// As it is; zero is not an id.
        expected: u128,
    },
    /// The member id was used before (C1).
    #[error("member id {id} was used before, the next one is {next}: ids are never reused")]
    MemberIdUsed {
        /// As asked for.
        id: MemberId,
        /// The lowest that is free.
        next: MemberId,
    },
    /// A member has this name.
    #[error("a gateway named {name} is a member already: {by}")]
    MemberNameTaken {
        /// As asked for.
        name: Name,
        /// Who has it.
        by: MemberId,
    },
    /// A member has this disk (C2).
    #[error("disk {disk:032x} is that of member {by} already; a copied disk cannot be a second member")]
    DiskInUse {
        /// As asked for.
        disk: u128,
        /// Whose it is.
        by: MemberId,
    },
    /// The disk's member was removed (C2).
    #[error("disk {disk:032x} belonged to a member that was removed; wipe it, and it joins as a new one")]
    DiskRetired {
        /// As asked for.
        disk: u128,
    },
    /// Full.
    #[error("the cluster has {max} members already, which is the most it may have")]
    TooManyMembers {
        /// `MEMBERS_MAX`.
        max: u32,
    },
    /// No such member.
    #[error("{id} is not a member of this cluster")]
    NoSuchMember {
        /// As asked for.
        id: MemberId,
    },
    /// A cluster of nobody could never be asked anything again.
    #[error("{id} is the last member; it cannot be removed")]
    LastMember {
        /// As asked for.
        id: MemberId,
    },
    /// The member has another disk.
    #[error("member {member} starts on disk {found:032x}, expected {expected:032x}: this is not the disk that joined")]
    DiskMismatch {
        /// The member.
        member: MemberId,
        /// As it says.
        found: u128,
        /// As it joined.
        expected: u128,
    },
    /// C3: the disk is older than what the cluster has seen of it.
    #[error(
        "member {member} starts with boot counter {found}, but {seen} was seen: its disk was restored from an older copy; \
         remove the member, wipe the disk, and join anew"
    )]
    BootReplayed {
        /// The member.
        member: MemberId,
        /// As it says.
        found: u64,
        /// The last one registered.
        seen: u64,
    },
    /// C3: two processes with one counter.
    #[error(
        "member {member} starts twice with boot counter {boot}: its disk was cloned, or restored from an older copy; \
         stop all but one, remove the member, wipe the disk, and join anew"
    )]
    BootCloned {
        /// The member.
        member: MemberId,
        /// The counter that both have.
        boot: u64,
    },
    /// A set has this name.
    #[error("a set named {name} exists already: {by}")]
    SetNameTaken {
        /// As asked for.
        name: Name,
        /// Which.
        by: SetId,
    },
    /// Full.
    #[error("the cluster has {max} sets already, which is the most it may have")]
    TooManySets {
        /// `SETS_MAX`.
        max: u32,
    },
    /// No such set.
    #[error("the cluster has no set {set}")]
    NoSuchSet {
        /// As asked for.
        set: SetId,
    },
    /// A set without voters, or with one voter twice.
    #[error("the first members of a set must be at least one, each once; found {found:?}")]
    BadMembers {
        /// As asked for.
        found: Vec<MemberId>,
    },
    /// A text or key is empty or too long.
    #[error("{what}: found {found} bytes, expected 1 to {max}")]
    BadLength {
        /// Which one.
        what: String,
        /// Its length in bytes.
        found: u64,
        /// The most it may have.
        max: u64,
    },
    /// The number belongs to a set already, or to one that was.
    #[error("set {set} cannot be restored: that number was given to {}; recover into a new cluster", found_text(.found))]
    SetIdTaken {
        /// As asked for.
        set: SetId,
        /// Who has it now, if anyone.
        found: Option<Name>,
    },
    /// A generation that no set can have.
    #[error("generation: found {found}, expected 2 to {max}")]
    BadGeneration {
        /// As asked for.
        found: u64,
        /// `GENERATION_MAX`.
        max: u64,
    },
    /// The request id made something else before.
    #[error("request id {request} was used before, for something else: draw a new one")]
    RequestReused {
        /// As asked for.
        request: RequestId,
    },
    /// It was a member (C1).
    #[error(
        "{id} was removed from this cluster for ever; to use its machine again, give its gateway an empty data_dir and let it \
         in as a new member (holdfast gateway add)"
    )]
    MemberRemoved {
        /// As asked for.
        id: MemberId,
    },
    /// Leaving is final.
    #[error(
        "{id} is leaving the cluster, which is final; let its gateway in again with an empty data_dir (holdfast gateway add)"
    )]
    MemberLeaving {
        /// As asked for.
        id: MemberId,
    },
    /// A build that does not know entries which may be in the log.
    #[error(
        "{member} runs a build that knows feature level {found}, and the cluster is at {expected}: start it with a newer build"
    )]
    TooOld {
        /// The member.
        member: MemberId,
        /// What it knows.
        found: u32,
        /// The cluster's.
        expected: u32,
    },
    /// Not every member can.
    #[error("feature level {asked}: {member} {}", known_text(.known))]
    LevelNotKnown {
        /// As asked for.
        asked: u32,
        /// Who does not know it.
        member: MemberId,
        /// What it knows, if it has ever said so.
        known: Option<u32>,
    },
    /// An entry of a level that the cluster is not at.
    #[error(
        "this needs feature level {needed}, and the cluster is at {found}: it is raised once every gateway runs a build that knows it"
    )]
    LevelNeeded {
        /// By the entry.
        needed: u32,
        /// The cluster's.
        found: u32,
    },
    /// A set's keys are not what the proposer saw.
    #[error("the keys of set {set} were changed by somebody else meanwhile: look again, then ask again")]
    KeysChanged {
        /// The set.
        set: SetId,
    },
    /// The name is not free yet.
    #[error(
        "a set named {name} is being deleted ({set}): its name is free once `holdfast set list` does not show it any more"
    )]
    SetBeingDeleted {
        /// As asked for.
        name: Name,
        /// Which.
        set: SetId,
    },
    /// The number is another set's.
    #[error("set {set}: found the name {found}, expected {expected}: another set is meant")]
    OtherSet {
        /// The set.
        set: SetId,
        /// As asked for.
        found: Name,
        /// As it is.
        expected: Name,
    },
    /// Nobody asked for its deletion.
    #[error("set {set} is not being deleted")]
    NotBeingDeleted {
        /// The set.
        set: SetId,
    },
    /// D2.
    #[error("set {set} may still be served: {} have not ended its group", members_text(.waits))]
    SetNotFenced {
        /// The set.
        set: SetId,
        /// Who has not.
        waits: Vec<MemberId>,
    },
    /// D3.
    #[error("the key of set {set} is not forgotten yet")]
    KeyNotForgotten {
        /// The set.
        set: SetId,
    },
    /// A late copy of a creation (R12).
    #[error("this request made set {set}, which was deleted since: draw a new one")]
    SetDeleted {
        /// Which.
        set: SetId,
    },
    /// S14: the number was given away meanwhile.
    #[error(
        "the clone was to be set {found}, and the next number is {next}: another set was made meanwhile; ask again"
    )]
    SetIdPassed {
        /// As asked for.
        found: SetId,
        /// The lowest that is free.
        next: SetId,
    },
    /// A clone shows what it keeps.
    #[error("set {clone} is a clone of set {set}, and reads what that has: delete the clone first")]
    HasClone {
        /// What was to be deleted.
        set: SetId,
        /// One of its clones.
        clone: SetId,
    },
    /// A clone without its origin shows nothing.
    #[error(
        "it is a clone of set {origin}, which this cluster has not got in that store: recover that one with it, or before it"
    )]
    OriginMissing {
        /// What it is a clone of.
        origin: SetId,
    },
    /// The origin's next sweep would delete what the clone shows.
    #[error(
        "it is a clone of set {origin}, which does not keep root {root} for it: what the clone shows would be deleted there"
    )]
    NotPinned {
        /// What it is a clone of.
        origin: SetId,
        /// The object of the root.
        root: holdfast_types::ObjectId,
    },
    /// Too many clones of clones.
    #[error(
        "set {origin} is a clone of a clone … {max} deep, which is the most there may be; copy its volumes into a new set instead"
    )]
    TooDeep {
        /// What was to be cloned.
        origin: SetId,
        /// `CLONE_DEPTH_MAX`.
        max: u32,
    },
}

fn known_text(known: &Option<u32>) -> String {
    known.map_or("has not registered a start yet".to_owned(), |known| format!("knows {known} at most"))
}

fn members_text(members: &[MemberId]) -> String {
    members.iter().map(MemberId::to_string).collect::<Vec<_>>().join(" ")
}

fn found_text(found: &Option<Name>) -> String {
    found.as_ref().map_or("a set before".to_owned(), |name| format!("set {name}"))
}
