//! What can be asked of group 0, and what it answers. The wire rule of `set::command` holds here too.

use super::level::FIRST_LEVEL;
use super::refusal::ClusterRefusal;
use super::state::{GroupVoters, Member, Standing};
use crate::set::{CloneOf, Links, Restored};
use holdfast_types::{Epoch, MemberId, Name, RequestId, SetId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Members at most: beyond a few voters, more gateways only slow the quorum down.
pub const MEMBERS_MAX: usize = 32;
/// Sets at most: each is a Raft group with heartbeats of its own.
pub const SETS_MAX: usize = 1024;
/// An address `host:port` in bytes at most: a DNS name has 253.
pub const ADDRESS_BYTES_MAX: usize = 300;
/// A store's URL, or a list of them, in bytes at most.
pub const STORE_URL_BYTES_MAX: usize = 2048;
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
    /// A gateway is gone for good, and its disk with it (CLUSTER-C2): out of every group before.
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
    /// A gateway has started, or renews its life (CLUSTER-C3). Before this is applied it takes part in nothing.
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
        /// Its pins, its snapshots and schedule, and what it is a clone of: that set is there already.
        links: Links,
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
    /// A set goes, for ever: it is started, granted and served nowhere from this entry on (DELETE-D1).
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
    /// The wrapped key of a set that is being deleted is destroyed. Refused before the set is fenced (DELETE-D2).
    ForgetSet {
        /// The set.
        set: SetId,
        /// Another cluster has taken the set over in its store: nothing is removed there.
        store_left: bool,
    },
    /// The store showed nothing more of a set whose key is forgotten: its name is free (DELETE-D3).
    SetEmptied {
        /// The set.
        set: SetId,
        /// Who had ended the group before that look at the store (DELETE-D4).
        ended: BTreeSet<MemberId>,
    },
    /// A new volume set that begins with what a snapshot of another one shows (ADR 0028). In its origin's store.
    CloneSet {
        /// The number that it gets: refused where that is not the next one (SET-S14).
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
    /// Numbers up to this one are given to no set any more: something lies in their place in a store, such as the tombstone of a set that was deleted before a recovery.
    PassSets {
        /// The last of them.
        upto: SetId,
    },
    /// The next step of a change of a set's stores (ADR 0018): only from what the proposer saw, and only the ways of PLACE-P1 ([`holdfast_types::Placement`]).
    PlaceSet {
        /// The set.
        set: SetId,
        /// Where it is, as the proposer saw it.
        expected: String,
        /// Where it is from now on.
        placement: String,
    },
    /// An entry that only a newer build knows.
    #[cfg(test)]
    OfLevel2,
}

impl ClusterCommand {
    /// The feature level from which on it may be proposed: builds that know only lower levels cannot read it.
    pub fn level(&self) -> u32 {
        match self {
            #[cfg(test)]
            ClusterCommand::OfLevel2 => 2,
            _ => FIRST_LEVEL,
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
    /// The set's stores are what was asked for.
    Placed,
}
