//! A group whose log is not Raft's, for a simulation of everything above the log (ADR 0017): thousands of short lives of a set in seconds.
//!
//! Whoever scripts a group answers for what Raft promises: one order of entries, each applied once and in that order, a term's entries only
//! by its one leader, and an acknowledgement time that no later leader can contradict.

use crate::group::{GroupStatus, Leadership, ProposeError, Proposed};
use bytes::Bytes;
use holdfast_log::{ReadError, ReadPlace};
use holdfast_types::{GroupId, LogId, MemberId, MonoTime, Term};
use tokio::sync::{oneshot, watch};

/// What is known of a scripted proposal later: applied, or not, or that nobody can tell.
pub type Outcome = Result<Proposed, ProposeError>;

/// What a [`crate::Group`] asks where it is scripted. Each method stands for the group's own of that name.
pub trait Script: Send + Sync + 'static {
    /// See [`crate::Group::id`].
    fn id(&self) -> GroupId;

    /// See [`crate::Group::me`].
    fn me(&self) -> MemberId;

    /// See [`crate::Group::leadership`].
    fn leadership(&self) -> watch::Receiver<Leadership>;

    /// See [`crate::Group::leading_term`].
    fn leading_term(&self) -> Option<Term>;

    /// See [`crate::Group::quorum_acked`].
    fn quorum_acked(&self) -> Option<(Term, MonoTime)>;

    /// See [`crate::Group::applied`].
    fn applied(&self) -> LogId;

    /// See [`crate::Group::snapshot_last`].
    fn snapshot_last(&self) -> Option<LogId>;

    /// See [`crate::Group::live_bytes`].
    fn live_bytes(&self) -> u64;

    /// See [`crate::Group::submit`]. A receiver whose sender is dropped stands for an outcome that nobody knows.
    fn submit(&self, term: Option<Term>, payload: Bytes) -> oneshot::Receiver<Outcome>;

    /// See [`crate::Group::read_log`].
    ///
    /// # Errors
    /// As there.
    fn read(&self, place: ReadPlace) -> Result<Bytes, ReadError>;

    /// See [`crate::Group::trigger_snapshot`].
    fn trigger_snapshot(&self);

    /// See [`crate::Group::status`].
    fn status(&self) -> GroupStatus;
}
