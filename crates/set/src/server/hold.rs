//! Holds grants back: for a while, for an operation that needs a free set, or until the head was looked at.

use super::{SetError, SetServer};
use holdfast_control::set::{SetAnswer, SetCommand};
use holdfast_raft::ProposeError;
use std::sync::Arc;
use std::time::Duration;

/// How long a continuation waits for a look: longer than one takes as a rule, and a small part of a lease.
const CONTINUATION_WAITS: Duration = Duration::from_millis(300);

/// While this guard lives, this gateway grants the set to no owner, and clients are told to try again. A new leader
/// does not know of the guard; the operation then meets a held set and is refused.
pub struct HeldOff {
    server: Arc<SetServer>,
}

impl Drop for HeldOff {
    fn drop(&mut self) {
        self.server.grants.allow();
    }
}

impl SetServer {
    /// Grants nothing until the guard is dropped. Waits for a grant that is in progress.
    pub async fn hold_off(self: &Arc<Self>) -> HeldOff {
        self.grants.hold_off();
        let held = HeldOff { server: self.clone() };
        drop(self.grants.one.lock().await);
        // Reports a lease that just ended to the gate: nothing is answered under it any more.
        self.follow();
        held
    }

    /// HEAD-H1: a grant, and a refusal of one, leaves only after a recent look at the head (ADR 0013). Asked before the
    /// proposal, so that a gateway of an older life grants nothing, and after it ([`Self::before_telling`]), since a
    /// proposal may take seconds. A refused continuation needs it as much as a new lease: a host ends its devices for
    /// good on some refusals.
    pub(super) async fn before_answer(&self) -> Result<(), SetError> {
        // Not fenced means that no look finished in time, or that a pair's tenure is over here. Another attempt, or
        // another gateway, may answer.
        self.head.before_answer().await.map_err(|why| match self.head.fenced() {
            Some(fenced) => SetError::Fenced(fenced),
            None => SetError::NotReady(why),
        })
    }

    /// Like `before_answer`, for a continuation, which waits for the look only for a moment. While the store is away a
    /// look takes as long as a lease lives, and the host would stop a healthy database (R8). Without a look a granted
    /// continuation shows nothing to anybody: each answer of a device waits for one.
    pub(super) async fn before_continuing(&self) -> Result<(), SetError> {
        if self.head.pair().is_some() {
            return self.before_answer().await;
        }
        match tokio::time::timeout(CONTINUATION_WAITS, self.before_answer()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(fenced @ SetError::Fenced(_))) => Err(fenced),
            Ok(Err(_)) | Err(_) => {
                holdfast_reached::reached!("head: a lease is continued while the store does not answer");
                self.head.fenced().map_or(Ok(()), |why| Err(SetError::Fenced(why)))
            }
        }
    }

    /// Like `before_continuing`, once the proposal has ended. R12: it may have been granted, so without a look the
    /// outcome is unknown.
    pub(super) async fn before_telling(
        &self,
        command: &SetCommand,
        answered: &Result<SetAnswer, SetError>,
    ) -> Result<(), SetError> {
        let looked = match (answered, command) {
            (Ok(_), SetCommand::Continue { .. }) => self.before_continuing().await,
            (Ok(_) | Err(SetError::Refused(_)), _) => self.before_answer().await,
            (Err(_), _) => Ok(()),
        };
        looked.map_err(|error| match error {
            SetError::NotReady(reason) => SetError::Propose(ProposeError::Unknown { reason }),
            fenced => fenced,
        })
    }
}
