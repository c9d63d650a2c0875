//! The answer of one store when its part of the head is read.

use super::register::Seen;
use crate::Version;
use crate::error::{Disposition, StoreError};
use bytes::Bytes;

/// The answer of one store.
pub(super) struct Answer {
    pub seen: Seen<Bytes>,
    /// Version of the object, for a conditional PUT on it.
    pub version: Option<Version>,
    pub error: Option<StoreError>,
}

pub(super) fn has_entry(answer: &Answer) -> bool {
    matches!(answer.seen, Seen::Entry(_))
}

/// Whether the object in the entry's place was once an entry of this store, and can no longer be read (R9).
pub(super) fn is_spoilt(answer: &Answer) -> bool {
    let ours = answer.error.as_ref().is_none_or(|e| e.disposition() != Disposition::Denied);
    answer.seen == Seen::Silent && answer.version.is_some() && ours
}

pub(super) fn seen_of(answers: &[Answer]) -> Vec<Seen<Bytes>> {
    answers.iter().map(|answer| answer.seen.clone()).collect()
}
