//! Heads that the data keys of this gateway do not open.

use super::{HeadKeeper, KeepError};
use bytes::Bytes;
use holdfast_volume::head::{HeadError, is_tombstone, read_keyring};

impl HeadKeeper {
    /// Judges a head that the data keys of this gateway do not open. Another life may use its own key, and its head
    /// fences all the same (HEAD-H1).
    pub(super) fn unopened(&self, body: &Bytes, key: String, error: HeadError) -> KeepError {
        if let Some(head) = self.parts.by_own_keyring.as_ref().and_then(|open| open(body)) {
            let key_id = read_keyring(body).map_or(0, |(header, _)| header.key_id);
            return match self.judge(&head) {
                Ok(()) => KeepError::OtherKey { key_id, has: self.parts.key.ids() },
                Err(error) => error,
            };
        }
        if is_tombstone(body) { KeepError::Buried { key } } else { KeepError::Unreadable { key, error } }
    }
}
