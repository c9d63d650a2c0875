//! Refusals of group 0's commands.

use holdfast_types::{MemberId, Name, RequestId, SetId};
use serde::{Deserialize, Serialize};

/// Why group 0 refused a command. The text is for the requester.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ClusterRefusal {
    /// The cluster has another id: the caller means another cluster.
    #[error("cluster id: found {found:032x}, expected {expected:032x}: this is another cluster")]
    OtherCluster {
        /// As asked for.
        found: u128,
        /// The cluster's id; zero is not an id.
        expected: u128,
    },
    /// The member id was used before (CLUSTER-C1).
    #[error("member id {id} was used before, the next one is {next}: ids are never reused")]
    MemberIdUsed {
        /// As asked for.
        id: MemberId,
        /// The lowest unused id.
        next: MemberId,
    },
    /// A member has this name.
    #[error("a gateway named {name} is a member already: {by}")]
    MemberNameTaken {
        /// As asked for.
        name: Name,
        /// The member with that name.
        by: MemberId,
    },
    /// A member has this disk (CLUSTER-C2).
    #[error("disk {disk:032x} is that of member {by} already; a copied disk cannot be a second member")]
    DiskInUse {
        /// As asked for.
        disk: u128,
        /// The member with that disk.
        by: MemberId,
    },
    /// The disk's member was removed (CLUSTER-C2).
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
    /// A cluster without members could never accept a command again.
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
        /// Disk in the request.
        found: u128,
        /// Disk with which it joined.
        expected: u128,
    },
    /// CLUSTER-C3: the disk is older than the last start that the cluster has seen of it.
    #[error(
        "member {member} starts with boot counter {found}, but {seen} was seen: its disk was restored from an older copy; \
         remove the member, wipe the disk, and join anew"
    )]
    BootReplayed {
        /// The member.
        member: MemberId,
        /// Counter in the request.
        found: u64,
        /// The last one registered.
        seen: u64,
    },
    /// CLUSTER-C3: two processes with one counter.
    #[error(
        "member {member} starts twice with boot counter {boot}: its disk was copied, or restored from an older copy; \
         stop all but one, remove the member, wipe the disk, and join anew"
    )]
    BootCopied {
        /// The member.
        member: MemberId,
        /// The counter of both.
        boot: u64,
    },
    /// A set has this name.
    #[error("a set named {name} exists already: {by}")]
    SetNameTaken {
        /// As asked for.
        name: Name,
        /// The set with that name.
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
    /// A set without voters, or with a voter listed twice.
    #[error("the first members of a set must be at least one, each once; found {found:?}")]
    BadMembers {
        /// As asked for.
        found: Vec<MemberId>,
    },
    /// A text or key is empty or too long.
    #[error("{what}: found {found} bytes, expected 1 to {max}")]
    BadLength {
        /// The text that is too long.
        what: String,
        /// Its length in bytes.
        found: u64,
        /// Its limit.
        max: u64,
    },
    /// The number belongs, or belonged, to another set.
    #[error("set {set} cannot be restored: that number was given to {}; recover into a new cluster", found_text(.found))]
    SetIdTaken {
        /// As asked for.
        set: SetId,
        /// The set that has it now, if any.
        found: Option<Name>,
    },
    /// A generation out of range.
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
    /// It was a member before (CLUSTER-C1).
    #[error(
        "{id} was removed from this cluster permanently; to use its machine again, give its gateway an empty data_dir and let it \
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
    /// The build does not know entries that the log may contain.
    #[error(
        "{member} runs a build that knows feature level {found}, and the cluster is at {expected}: start it with a newer build"
    )]
    TooOld {
        /// The member.
        member: MemberId,
        /// Level that the build knows.
        found: u32,
        /// The cluster's.
        expected: u32,
    },
    /// Not every member can.
    #[error("feature level {asked}: {member} {}", known_text(.known))]
    LevelNotKnown {
        /// As asked for.
        asked: u32,
        /// A member whose build does not know it.
        member: MemberId,
        /// Level that the member knows, if it has ever reported one.
        known: Option<u32>,
    },
    /// An entry above the cluster's level.
    #[error(
        "this needs feature level {needed}, and the cluster is at {found}: it is raised once every gateway runs a build that knows it"
    )]
    LevelNeeded {
        /// By the entry.
        needed: u32,
        /// The cluster's.
        found: u32,
    },
    /// A set's keys are not those that the proposer saw.
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
    #[error("set {set}: found the name {found}, expected {expected}: the number belongs to another set")]
    OtherSet {
        /// The set.
        set: SetId,
        /// As asked for.
        found: Name,
        /// Its name.
        expected: Name,
    },
    /// There is no request to delete the set.
    #[error("set {set} is not being deleted")]
    NotBeingDeleted {
        /// The set.
        set: SetId,
    },
    /// DELETE-D2.
    #[error("set {set} may still be served: {} have not ended its group", members_text(.waits))]
    SetNotFenced {
        /// The set.
        set: SetId,
        /// The members that have not.
        waits: Vec<MemberId>,
    },
    /// DELETE-D3.
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
    /// SET-S14: the number was given away meanwhile.
    #[error(
        "the clone was to be set {found}, and the next number is {next}: another set was made meanwhile; ask again"
    )]
    SetIdPassed {
        /// As asked for.
        found: SetId,
        /// The lowest unused number.
        next: SetId,
    },
    /// A clone needs this set's objects.
    #[error("set {clone} is a clone of set {set} and reads its objects: delete the clone first")]
    HasClone {
        /// The set to delete.
        set: SetId,
        /// One of its clones.
        clone: SetId,
    },
    /// A clone without its origin shows nothing.
    #[error(
        "it is a clone of set {origin}, which this cluster does not have in that store: recover {origin} with it, or before it"
    )]
    OriginMissing {
        /// Its origin.
        origin: SetId,
    },
    /// The origin's next sweep would delete the clone's objects.
    #[error(
        "it is a clone of set {origin}, which does not retain root {root} for it: objects of the clone would be deleted there"
    )]
    NotPinned {
        /// Its origin.
        origin: SetId,
        /// The object of the root.
        root: holdfast_types::ObjectId,
    },
    /// Too many clones of clones.
    #[error(
        "set {origin} is the last of a chain of {max} clones of clones, which is the limit; copy its volumes into a new set instead"
    )]
    TooDeep {
        /// The set to clone.
        origin: SetId,
        /// `CLONE_DEPTH_MAX`.
        max: u32,
    },
    /// The proposer judged by an older copy.
    #[error(
        "somebody else changes or changed the stores of set {set}: found {found:?}; look at them again, then repeat the request"
    )]
    PlacementChanged {
        /// The set.
        set: SetId,
        /// Its placement.
        found: String,
    },
    /// A policy that contradicts itself.
    #[error("policy: {why}")]
    BadPolicy {
        /// The contradiction.
        why: String,
    },
    /// The proposer judged by an older copy.
    #[error("the policy of set {set} was changed meanwhile to {found}: look at it again, then repeat the request")]
    PolicyChanged {
        /// The set.
        set: SetId,
        /// Its policy.
        found: String,
    },
    /// PLACE-P1.
    #[error("the stores of set {set} cannot go from {found:?} to {wished:?}: {why}")]
    NoSuchStep {
        /// The set.
        set: SetId,
        /// Its placement.
        found: String,
        /// As asked for.
        wished: String,
        /// The missing condition.
        why: String,
    },
    /// A clone reads its origin's objects, in its origin's stores.
    #[error(
        "set {set} shares what it has with set {other}, one being a clone of the other, and both lie in the same stores: these stay while there are both. \
         Delete the clone, or copy its volumes into a set of its own first"
    )]
    Linked {
        /// The set.
        set: SetId,
        /// Its clone, or its origin.
        other: SetId,
    },
    /// A set whose stores are being changed cannot be cloned.
    #[error(
        "the stores of set {origin} are being changed: clone it once that is done; `holdfast set stores show` says how far it is"
    )]
    OriginMoves {
        /// The set to clone.
        origin: SetId,
    },
    /// CLUSTER-C5: nobody can shut the last administrator out.
    #[error("{what} is your own certificate: let another administrator revoke it")]
    OwnCertificate {
        /// As asked for.
        what: String,
    },
    /// CLUSTER-C5.
    #[error("certificate {name} is revoked and may not revoke others")]
    RevokerRevoked {
        /// The certificate that asks.
        name: String,
    },
    /// Full.
    #[error(
        "{max} certificates and names are revoked already, which is the most: take some that have expired off the list"
    )]
    TooManyRevoked {
        /// `REVOKED_MAX`.
        max: u32,
    },
    /// VOTERS-V1: the proposer judged by an older copy.
    #[error(
        "somebody else changed the voters of set {set}: found {}; look at them again, then repeat the request", members_text(.found)
    )]
    VotersChanged {
        /// The set.
        set: SetId,
        /// The voters in its record.
        found: Vec<MemberId>,
    },
    /// VOTERS-V1: its group would have nobody to follow.
    #[error(
        "{id} is the last gateway of set {set}: without it nobody could serve the set. Place the set on another one first, or replace \
         {id} (holdfast gateway replace)"
    )]
    LastVoter {
        /// The member that is to leave.
        id: MemberId,
        /// The set.
        set: SetId,
    },
    /// VOTERS-V1: without a gateway that stays nobody could serve the set.
    #[error("voters of set {set}: found {}, expected at least one gateway: witnesses alone cannot serve it", members_text(.found))]
    NobodyServes {
        /// The set.
        set: SetId,
        /// As asked for.
        found: Vec<MemberId>,
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
