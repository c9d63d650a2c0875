//! What the answer to an entry of writes means for its clients.

use crate::host::{SetHost, decode_answer};
use crate::sequencer::{Verdict, WriteFailure};
use bytes::Bytes;
use holdfast_control::set::{SetAnswer, SetRefusal};
use holdfast_types::Owner;
use std::sync::Arc;

/// Meaning of a refused write for its client: an error only if another owner holds the set (R8).
pub(super) struct LeaseVerdict {
    pub(super) owner: Owner,
    pub(super) host: Arc<SetHost>,
}

impl Verdict for LeaseVerdict {
    fn judge(&self, answer: &Bytes) -> Result<Vec<u32>, WriteFailure> {
        match decode_answer(answer) {
            Some(SetAnswer::Written) => Ok(Vec::new()),
            Some(SetAnswer::WrittenExcept { outside }) => Ok(outside),
            Some(SetAnswer::Refused(refusal)) => {
                let (lease, _) = self.host.lease_and_grant();
                let another = lease.is_some_and(|l| l.owner != self.owner);
                let fenced = another && matches!(refusal, SetRefusal::WrongEpoch { .. });
                tracing::info!(%refusal, "a write was refused");
                Err(if fenced { WriteFailure::Fenced } else { WriteFailure::Gone })
            }
            other => {
                tracing::warn!(?other, "unexpected answer to a write");
                Err(WriteFailure::Gone)
            }
        }
    }
}
