//! What one store answers when its part of the head is read.

use super::register::Seen;
use crate::Version;
use crate::error::{Disposition, StoreError};
use bytes::Bytes;

/// What one store answered.
pub(super) struct Answer {
    pub seen: Seen<Bytes>,
    /// Of the object, for a conditional PUT on it.
    pub version: Option<Version>,
    pub error: Option<StoreError>,
}

pub(super) fn has_slot(answer: &Answer) -> bool {
    matches!(answer.seen, Seen::Slot(_))
}

/// Whether a store has an object in the slot's place that was a slot of its own once, and does not read any more (R9).
pub(super) fn is_spoilt(answer: &Answer) -> bool {
    let ours = answer.error.as_ref().is_none_or(|e| e.disposition() != Disposition::Denied);
    answer.seen == Seen::Silent && answer.version.is_some() && ours
}

pub(super) fn seen_of(answers: &[Answer]) -> Vec<Seen<Bytes>> {
    answers.iter().map(|answer| answer.seen.clone()).collect()
}
