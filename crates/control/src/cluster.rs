//! Group 0: who is a member, on which disk and in which life of it; which sets there are, and their wrapped keys;
//! which sets are being deleted.
//!
//! CLUSTER-C1  Member ids and set ids are never reused, also not after a removal: a number in an old log or object key names the same
//!     thing for ever.
//! CLUSTER-C2  A disk (its random uuid) belongs to one member, once: a disk that was removed never comes back, since what it
//!     acknowledged was forgotten. It is wiped and joins as a new one.
//! CLUSTER-C3  A disk's boot counter only grows, and each counter belongs to one life of one process (its nonce): a restored or cloned disk is
//!     found at its first start and refused. Whether one that has counted on remembers what was registered is asked before (`raft::KnownLife`).
//! CLUSTER-C4  The feature level only grows, to what every member's build knows; an entry of a higher one changes nothing.

mod apply;
mod clones;
mod command;
pub mod deletion;
mod level;
mod members;
mod placement;
mod refusal;
mod sets;
mod state;

pub use command::{
    ADDRESS_BYTES_MAX, ClusterAnswer, ClusterCommand, MEMBERS_MAX, SETS_MAX, STORE_URL_BYTES_MAX, WRAPPED_KEY_BYTES_MAX,
};
pub use level::{FEATURE_LEVEL, FIRST_LEVEL};
pub use placement::was_changed;
pub use refusal::ClusterRefusal;
pub use state::{
    Boot, ClusterState, Deletion, DeletionStage, Deletions, GroupVoters, Made, Member, MemberRole, SetEntry, Standing,
};

#[cfg(test)]
mod tests;
