//! Callbacks that the gateway gives to a [`crate::RaftNode`]. This crate does not know how they decide.

use crate::lives::Lineage;
use futures_util::future::BoxFuture;
use holdfast_types::{GroupId, MemberId};

/// Result of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registered {
    /// It is committed: every older life of the member is refused from now on.
    Done,
    /// It could not be decided now; ask again. The reason, for people.
    NotNow(String),
    /// This life cannot be the member's. The reason, for people.
    Refused(String),
}

/// Commits a registration at the leader of group 0.
pub type Registrar = Box<dyn Fn(MemberId, Lineage, u32) -> BoxFuture<'static, Registered> + Send + Sync>;

/// Progress of a change of a set's stores, as the set's leader reports it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MigrationStatus {
    /// The step that it is ready for: from these stores, to those.
    pub step: Option<(String, String)>,
    /// What it waits for, for people.
    pub waits: String,
}

/// Reports [`MigrationStatus`] if this member leads the set; else `None`.
pub type MigrationReporter = Box<dyn Fn(GroupId) -> Option<MigrationStatus> + Send + Sync>;

/// At the leader of group 0: whether leadership of this set may go to a nearer voter now. `None`: this member does not
/// lead it.
pub type TurnGiver = Box<dyn Fn(GroupId) -> Option<bool> + Send + Sync>;
