//! Errors of a set's server.

use holdfast_control::set::SetRefusal;
use holdfast_raft::ProposeError;

/// A command was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The replicated state refused.
    #[error(transparent)]
    Refused(#[from] SetRefusal),
    /// The group did not accept it, or its outcome is unknown.
    #[error(transparent)]
    Propose(#[from] ProposeError),
    /// This gateway leads the group but does not serve it yet, or serves it no longer.
    #[error("this gateway is not ready to serve the set: {0}")]
    NotReady(String),
    /// Another life of the set has taken over; this gateway never serves it again.
    #[error("{0}")]
    Fenced(String),
    /// The answer does not match the request.
    #[error("unexpected answer to {what}: {found}")]
    Answer {
        /// The request.
        what: &'static str,
        /// The answer.
        found: String,
    },
}
