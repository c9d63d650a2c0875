//! Group 0's state: members, their disks and starts; sets and their wrapped keys; sets that are being deleted.
//!
//! CLUSTER-C1  Member ids and set ids are never reused, not even after a removal: a number in an old log or object key
//!     names the same thing for ever.
//! CLUSTER-C2  A disk (its random uuid) belongs to one member, once. The disk of a removed member never comes back,
//!     since the entries that it acknowledged are forgotten. It is wiped and joins as a new one.
//! CLUSTER-C3  A disk's boot counter only grows, and each value belongs to one process (its nonce): a restored or
//!     copied disk is found at its first start and refused. `raft::KnownLife` checks before whether a disk with a
//!     higher counter still has what was registered.
//! CLUSTER-C4  The feature level only grows, up to the lowest that all members' builds know; an entry of a higher level
//!     changes nothing.
//! CLUSTER-C5  A certificate is revoked only by one that is not revoked and stays so: an administrator is always left,
//!     also of two who revoke each other at the same moment.

mod apply;
mod clones;
mod command;
pub mod deletion;
mod level;
mod members;
mod placement;
mod refusal;
mod revocation;
mod revoked;
mod sets;
mod state;
mod voters;

pub use command::{
    ADDRESS_BYTES_MAX, ClusterAnswer, ClusterCommand, MEMBERS_MAX, SETS_MAX, STORE_URL_BYTES_MAX, WRAPPED_KEY_BYTES_MAX,
};
pub use level::{CLUSTER_VOTERS_LEVEL, FEATURE_LEVEL, FIRST_LEVEL};
pub use placement::was_changed;
pub use refusal::ClusterRefusal;
pub use revocation::{Bearer, Revocation, RevokedBy};
pub use revoked::{REVOKED_MAX, REVOKED_TEXT_BYTES_MAX};
pub use state::{
    Boot, ClusterState, Deletion, DeletionStage, Deletions, GroupVoters, Made, Member, MemberRole, SetEntry, Standing,
};
pub use voters::Places;

#[cfg(test)]
mod tests;

/// An active gateway of the region "eu".
#[cfg(test)]
pub(crate) fn member(id: u64, name: &str, disk: u128) -> Member {
    Member {
        id: holdfast_types::MemberId(id),
        name: name.parse().expect("name"),
        locality: "region=eu".parse().expect("locality"),
        disk,
        peer_addr: "a:1".to_owned(),
        api_addr: "a:2".to_owned(),
        nbd_addr: "a:3".to_owned(),
        role: MemberRole::Gateway,
        standing: Standing::Active,
    }
}
