//! Key of the data of one log entry (ADR 0057).
//!
//! The gateway that makes an entry draws the key for it, seals the entry's data once, and puts the key into the entry's
//! front. The same bytes go to the journals of all members. Each journal seals the front itself, under its node's key:
//! whoever opens the front there can open the data, and nobody else can.
//!
//! No key is derived from a term, an index or an epoch. So no rule of Raft, no copy of a disk and no clone of a machine
//! is needed for a key to be new: it is only as likely to come again as 256 random bits are.

use crate::cipher::{Cipher, NONCE_BYTES};
use crate::node::NotAuthentic;
use crate::part::TAG_BYTES;
use std::fmt;
use zeroize::Zeroizing;

/// Bytes of an entry's key.
pub const ENTRY_KEY_BYTES: usize = 32;

/// The key of one entry's data (SEAL-S4). It cannot be copied: whoever seals an entry uses it up.
pub struct EntryKey {
    cipher: Cipher,
}

impl fmt::Debug for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EntryKey(***)")
    }
}

fn nonce(offset: u32, unit: u32) -> [u8; NONCE_BYTES] {
    let mut nonce = [0u8; NONCE_BYTES];
    nonce[..4].copy_from_slice(&offset.to_le_bytes());
    nonce[4..8].copy_from_slice(&unit.to_le_bytes());
    nonce
}

impl EntryKey {
    /// A key from random bytes that were drawn for this entry, or from the front of an entry.
    pub fn new(bytes: [u8; ENTRY_KEY_BYTES]) -> Self {
        Self { cipher: Cipher::new(Zeroizing::new(bytes)) }
    }

    /// For the front of the entry.
    pub fn bytes(&self) -> &[u8; ENTRY_KEY_BYTES] {
        self.cipher.key()
    }

    /// Seals in place unit number `unit` of the data at `offset` of the entry, and returns its tag. The caller MUST NOT
    /// seal twice at one offset and unit.
    pub fn seal(&self, offset: u32, unit: u32, associated: &[u8], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        self.cipher.seal(nonce(offset, unit), associated, bytes).expect("R10: too long for the cipher")
    }

    /// Opens in place what [`EntryKey::seal`] has sealed.
    ///
    /// # Errors
    /// [`NotAuthentic`]; then `bytes` are meaningless.
    pub fn open(
        &self,
        offset: u32,
        unit: u32,
        associated: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), NotAuthentic> {
        self.cipher.open(nonce(offset, unit), associated, bytes, tag).map_err(|_| NotAuthentic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_at_its_place_only() {
        let key = EntryKey::new([7; 32]);
        let mut bytes = b"a write".to_vec();
        let tag = key.seal(96, 2, b"place", &mut bytes);
        assert_ne!(bytes, b"a write");
        let open = |key: &EntryKey, offset, unit, associated: &[u8]| {
            let mut copy = bytes.clone();
            key.open(offset, unit, associated, &mut copy, &tag).map(|()| copy)
        };
        assert_eq!(open(&key, 96, 2, b"place"), Ok(b"a write".to_vec()));
        assert_eq!(open(&key, 128, 2, b"place"), Err(NotAuthentic));
        assert_eq!(open(&key, 96, 3, b"place"), Err(NotAuthentic));
        assert_eq!(open(&key, 96, 2, b"plate"), Err(NotAuthentic));
        assert_eq!(open(&EntryKey::new([8; 32]), 96, 2, b"place"), Err(NotAuthentic));
    }

    /// SEAL-S4: two units under one nonce would tell what their data differs by.
    #[test]
    fn each_unit_has_a_nonce_of_its_own() {
        let key = EntryKey::new([7; 32]);
        let sealed = |offset, unit| {
            let mut bytes = [0; 64];
            key.seal(offset, unit, b"", &mut bytes);
            bytes
        };
        let all: std::collections::BTreeSet<[u8; 64]> =
            [0, 32, 64].into_iter().flat_map(|offset| (0..3).map(move |unit| sealed(offset, unit))).collect();
        assert_eq!(all.len(), 9);
    }

    /// Computed with another implementation. A change needs a new version of entries: journals contain them.
    #[test]
    fn the_bytes_are_pinned() {
        let mut bytes = [0; 8];
        let tag = EntryKey::new([1; 32]).seal(96, 3, b"5", &mut bytes);
        assert_eq!(crate::error::hex(&bytes), "ebb55b2021f9d5db");
        assert_eq!(crate::error::hex(&tag), "1c5eecdef789a8fd4aaf6e1760af11bd");
    }
}
