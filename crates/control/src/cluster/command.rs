//! Commands of group 0 and their answers. The wire rule of `set::command` applies here too.

use super::level::FIRST_LEVEL;
use super::refusal::ClusterRefusal;
use super::revocation::{Bearer, RevokedBy};
use super::state::{GroupVoters, Member, Standing};
use crate::policy::Policy;
use crate::set::{CloneOf, Links, Restored};
use holdfast_types::{Epoch, Locality, MemberId, Name, RequestId, SetId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Most members: beyond a few voters, more gateways only slow the quorum down.
pub const MEMBERS_MAX: usize = 32;
/// Most sets: each is a Raft group with its own heartbeats.
pub const SETS_MAX: usize = 1024;
/// Most bytes of an address `host:port`: a DNS name has 253.
pub const ADDRESS_BYTES_MAX: usize = 300;
/// A store's URL, or a list of them, in bytes at most.
pub const STORE_URL_BYTES_MAX: usize = 2048;
/// Most bytes of a set's wrapped data keys: 108 for each of `DATA_KEYS_MAX`, and room for a KMS's envelope.
pub const WRAPPED_KEY_BYTES_MAX: usize = 4096;

/// A command of group 0. The proposer has put in all that depends on time or chance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClusterCommand {
    /// The cluster's own id, drawn by its creator; the first entry.
    Init {
        /// Random, not zero.
        cluster_id: u128,
    },
    /// A gateway joins.
    AddMember {
        /// Its id is 0 to get the next one, or an id that was never used (the first member knows its id before there is
        /// a group 0).
        member: Member,
        /// The member that it replaces: that one is leaving from this entry on, and its name is free.
        replaces: Option<MemberId>,
        /// A retry after an unknown outcome gets the same answer (R12).
        request: RequestId,
    },
    /// A gateway is lost for good, with its disk (CLUSTER-C2). It must be out of every group before.
    RemoveMember {
        /// The member.
        id: MemberId,
    },
    /// A gateway's addresses have changed, or where it stands.
    UpdateMember {
        /// The member.
        id: MemberId,
        /// As in [`Member`].
        peer_addr: String,
        /// As in [`Member`].
        api_addr: String,
        /// As in [`Member`].
        nbd_addr: String,
        /// As in [`Member`].
        locality: Locality,
    },
    /// A gateway has started, or renews its life (CLUSTER-C3). It takes part in nothing before this is applied.
    RegisterBoot {
        /// The member.
        member: MemberId,
        /// Its disk's uuid.
        disk: u128,
        /// The disk's boot counter, of starts and life renewals; fsynced before this was sent.
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
        /// What it asks of its voters.
        policy: Policy,
        /// URL of its store.
        store: String,
        /// Its data key, wrapped by the cluster key.
        wrapped_key: Vec<u8>,
        /// The cluster key that wrapped it.
        key_id: u32,
        /// Its first voters. Empty: all members that stay, and later also those that join.
        members: Vec<MemberId>,
        /// The proposer, which also starts the group.
        created_by: MemberId,
        /// Lower bound of the set's epochs: 0, or more for a set that was recovered from its store.
        base_epoch: Epoch,
        /// A retry after an unknown outcome gets the same answer (R12).
        request: RequestId,
    },
    /// A set that begins with its former life's content in the store. A repeat with the same generation gets the same
    /// answer.
    RestoreSet {
        /// The same as in its former life: its objects are bound to it.
        set: SetId,
        /// As in its former life.
        name: Name,
        /// URL of its store.
        store: String,
        /// Its data key, as wrapped in its former life.
        wrapped_key: Vec<u8>,
        /// Number of the data key.
        key_id: u32,
        /// The proposer, which also starts the group.
        created_by: MemberId,
        /// Raised in the store before: every older life is fenced. The new epochs are above all of theirs.
        generation: u64,
        /// Initial content.
        restored: Restored,
        /// Its pins, snapshots and schedule, and its origin if it is a clone: the origin exists already.
        links: Links,
    },
    /// Changes what a member may do. Leaving is final.
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
    /// A set's data keys, wrapped again. Applied only if the keys are still those that the proposer saw, so a late copy
    /// cannot bring an old wrapping back.
    SwapKeys {
        /// The set.
        set: SetId,
        /// The keys that the proposer saw. Each wrapping has its own nonce, so equal bytes are the same wrapping.
        expected: Vec<u8>,
        /// The new keys.
        wrapped_key: Vec<u8>,
        /// The data key that seals from now on.
        key_id: u32,
    },
    /// Deletes a set, for ever: from this entry on no gateway starts, grants or serves it (DELETE-D1).
    DeleteSet {
        /// The set.
        set: SetId,
        /// Its name, as the requester saw it.
        name: Name,
        /// A retry after an unknown outcome gets the same answer (R12).
        request: RequestId,
    },
    /// A member has ended the group of a set that is being deleted; that was durable on its disk before this was
    /// proposed.
    SetEnded {
        /// The set.
        set: SetId,
        /// The member.
        member: MemberId,
        /// The group's voters from the member's log; `None` if it had none, or could not read them.
        voters: Option<GroupVoters>,
    },
    /// Destroys the wrapped key of a set that is being deleted. Refused before the set is fenced (DELETE-D2).
    ForgetSet {
        /// The set.
        set: SetId,
        /// Another cluster has taken the set over in its store: nothing is removed there.
        store_left: bool,
    },
    /// The store has nothing more of a set whose key is destroyed: its name is free (DELETE-D3).
    SetEmptied {
        /// The set.
        set: SetId,
        /// The members that had ended the group before that check of the store (DELETE-D4).
        ended: BTreeSet<MemberId>,
    },
    /// A new set with the content of another set's snapshot (ADR 0028), in the store of its origin.
    CloneSet {
        /// Its number: refused if it is not the next one (SET-S14).
        set: SetId,
        /// Unique in the cluster.
        name: Name,
        /// Its origin, which has pinned the root.
        clone_of: CloneOf,
        /// As in `CreateSet`.
        wrapped_key: Vec<u8>,
        /// As in `CreateSet`.
        key_id: u32,
        /// As in `CreateSet`.
        created_by: MemberId,
        /// The origin's volumes as of the snapshot, and a root of the clone that shows the origin's.
        restored: Restored,
    },
    /// Skips set numbers up to this one: objects in a store occupy them, such as the tombstone of a set that was
    /// deleted before a recovery.
    PassSets {
        /// The last of them.
        upto: SetId,
    },
    /// The next step of a change of a set's stores (ADR 0018): only from the placement that the proposer saw, and only
    /// as PLACE-P1 allows ([`holdfast_types::Placement`]).
    PlaceSet {
        /// The set.
        set: SetId,
        /// The placement that the proposer saw.
        expected: String,
        /// The new placement.
        placement: String,
    },
    /// Certificates count no more, at no gateway (CLUSTER-C5).
    Revoke {
        /// Which.
        what: RevokedBy,
        /// The administrator's certificate.
        by: Bearer,
        /// As in [`Revocation`](super::Revocation).
        at_unix_ms: u64,
        /// As in [`Revocation`](super::Revocation).
        reason: String,
    },
    /// They count again.
    Unrevoke {
        /// Which.
        what: RevokedBy,
    },
    /// Other voters for a set's group (VOTERS-V1), only in place of those that the proposer saw. Whoever leads the
    /// group changes it step by step.
    PlaceVoters {
        /// The set.
        set: SetId,
        /// The voters in the set's record. If it names none: none, or all members that stay.
        from: BTreeSet<MemberId>,
        /// Members that stay, at least one of them a gateway.
        to: BTreeSet<MemberId>,
    },
    /// Changes what a set asks of its voters. Applied only to the policy that the proposer saw and checked.
    SetPolicy {
        /// The set.
        set: SetId,
        /// The policy that the proposer saw.
        expected: Policy,
        /// The new policy.
        policy: Policy,
    },
    /// An entry that only a newer build knows.
    #[cfg(test)]
    OfLevel2,
}

impl ClusterCommand {
    /// The lowest feature level at which it may be proposed: builds that know only lower levels cannot read it.
    pub fn level(&self) -> u32 {
        match self {
            #[cfg(test)]
            ClusterCommand::OfLevel2 => 2,
            _ => FIRST_LEVEL,
        }
    }
}

/// Answer of apply to an entry of group 0's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClusterAnswer {
    /// The cluster has this id.
    Initialized,
    /// The member; for a repeated request, the one of the first.
    MemberAdded {
        /// Never used before.
        id: MemberId,
    },
    /// It is no member, or no longer.
    MemberRemoved,
    /// The addresses and the locality are these.
    MemberUpdated,
    /// The process may take part.
    BootRegistered,
    /// The set; for a repeated request, the one of the first.
    SetCreated {
        /// Never used before.
        set: SetId,
    },
    /// The set's key is wrapped by that cluster key.
    KeyRewrapped,
    /// Nothing was done.
    Refused(ClusterRefusal),
    /// The member has that standing.
    StandingSet,
    /// The cluster has that level, or a higher one.
    LevelRaised,
    /// The set is being deleted, or was.
    SetDeleting {
        /// Which.
        set: SetId,
    },
    /// The step of a deletion is noted, or was before.
    DeletionNoted,
    /// The set has the requested stores.
    Placed,
    /// No new set gets one of these numbers.
    SetsPassed,
    /// The list is as asked for.
    Revoked,
    /// The set's record has these voters. Its group follows.
    VotersPlaced,
    /// The set has the requested policy.
    PolicySet,
}
