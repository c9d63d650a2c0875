//! Why a set's server did not do what it was asked.

use holdfast_control::set::SetRefusal;
use holdfast_raft::ProposeError;

/// A command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The replicated state refused.
    #[error(transparent)]
    Refused(#[from] SetRefusal),
    /// The group did not take it, or its outcome is unknown.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// This gateway leads the group but does not serve it yet, or no more.
    #[error("this gateway is not ready to serve the set: {0}")]
    NotReady(String),
    /// Another life of the set has taken over; this gateway never serves it again.
    #[error("{0}")]
    Fenced(String),
    /// The answer was not one that fits the question.
    #[error("unexpected answer to {what}: {found}")]
    Answer {
        /// What was asked.
        what: &'static str,
        /// What came back.
        found: String,
    },
}
