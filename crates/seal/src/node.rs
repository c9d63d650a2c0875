//! Key of a node's own files: journal and state snapshots. They contain data before it is in the store.
//!
//! A wrapped node key, version 1, little-endian, [`WRAPPED_NODE_KEY_BYTES`] long:
//!
//! ```text
//!   0  magic "HFNODKEY"        16  disk uuid, 16 bytes      40  nonce, 24 bytes
//!   8  version                 32  fingerprint of the       64  node key, encrypted, 32 bytes
//!  12  length of all           .   cluster key              96  tag, 16 bytes, over 0..40 and 64..96
//! ```
//!
//! A file's key is HKDF(node key, the file's random uuid). A nonce is a place in the file: an offset, and a number
//! there. A file is written once, and each place once, so no nonce is used twice under one key. Recycled space gets a
//! new uuid.

use crate::cipher::{Cipher, NONCE_BYTES as CHUNK_NONCE_BYTES};
use crate::error::{SealError, hex};
use crate::fingerprint::KeyFingerprint;
use crate::key::{ClusterKey, derive};
use crate::part::TAG_BYTES;
use crate::wrapped::{checked, field};
use chacha20poly1305::AeadInOut;
use chacha20poly1305::aead::inout::InOutBuf;
use holdfast_locked::LockedKey;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Bytes of a node key.
pub const NODE_KEY_BYTES: usize = 32;
/// Bytes of a wrapped node key.
pub const WRAPPED_NODE_KEY_BYTES: usize = 112;
/// Version of the wrapped node key that this build writes and reads.
pub const WRAPPED_NODE_KEY_VERSION: u32 = 1;

const MAGIC: [u8; 8] = *b"HFNODKEY";
const HEADER_BYTES: usize = 40;
const NONCE_BYTES: usize = 24;
const SEALED_AT: usize = HEADER_BYTES + NONCE_BYTES;
const TAG_AT: usize = SEALED_AT + NODE_KEY_BYTES;
const _: () = assert!(TAG_AT + TAG_BYTES == WRAPPED_NODE_KEY_BYTES);

/// The key of a node's own files: random, stored beside them, wrapped by the [`ClusterKey`]. In locked memory, which
/// clones share.
#[derive(Clone)]
pub struct NodeKey {
    bytes: Arc<LockedKey>,
    fingerprint: KeyFingerprint,
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeKey(***, fingerprint {})", self.fingerprint)
    }
}

impl NodeKey {
    /// A key from random bytes drawn by the caller.
    pub fn from_bytes(bytes: [u8; NODE_KEY_BYTES]) -> Self {
        let bytes = Zeroizing::new(bytes);
        let print = derive(b"holdfast node key fingerprint v1", &bytes, b"");
        let mut first = [0u8; 8];
        first.copy_from_slice(&print[..8]);
        // 0 means "not sealed" in files, so the one key in 2^64 with that value gets 1.
        let fingerprint = KeyFingerprint(u64::from_be_bytes(first).max(1));
        Self { bytes: Arc::new(LockedKey::new(&bytes)), fingerprint }
    }

    /// Identifies the key in files, logs and errors. Never 0.
    pub fn fingerprint(&self) -> KeyFingerprint {
        self.fingerprint
    }

    /// The key of the file with this random uuid.
    pub fn file(&self, uuid: u128) -> FileKey {
        let key = derive(b"holdfast node file v1", &self.bytes, &uuid.to_le_bytes());
        FileKey { cipher: Cipher::new(key) }
    }
}

/// The bytes were not sealed at this place under this key with this associated data (R9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not authentic")]
pub struct NotAuthentic;

/// The key of one file, ready for use. Wiped when dropped.
#[derive(Clone)]
pub struct FileKey {
    cipher: Cipher,
}

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileKey(***)")
    }
}

fn nonce(offset: u64, number: u32) -> [u8; CHUNK_NONCE_BYTES] {
    let mut nonce = [0u8; CHUNK_NONCE_BYTES];
    nonce[..8].copy_from_slice(&offset.to_le_bytes());
    nonce[8..].copy_from_slice(&number.to_le_bytes());
    nonce
}

impl FileKey {
    /// Seals `bytes` in place, and returns their tag. The caller MUST NOT seal twice at one offset and number of a
    /// file.
    pub fn seal(&self, offset: u64, number: u32, associated: &[u8], bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        self.cipher.seal(nonce(offset, number), associated, bytes).expect("R10: too long for the cipher")
    }

    /// Opens `bytes` in place.
    ///
    /// # Errors
    /// [`NotAuthentic`]; then `bytes` are meaningless.
    pub fn open(
        &self,
        offset: u64,
        number: u32,
        associated: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), NotAuthentic> {
        self.cipher.open(nonce(offset, number), associated, bytes, tag).map_err(|_| NotAuthentic)
    }
}

impl ClusterKey {
    /// Wraps the key of the node with this disk uuid. Every call needs a fresh nonce.
    pub fn wrap_node(&self, key: &NodeKey, disk: u128, nonce: [u8; NONCE_BYTES]) -> Vec<u8> {
        let mut out = Vec::with_capacity(WRAPPED_NODE_KEY_BYTES);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&WRAPPED_NODE_KEY_VERSION.to_le_bytes());
        out.extend_from_slice(&(WRAPPED_NODE_KEY_BYTES as u32).to_le_bytes());
        out.extend_from_slice(&disk.to_le_bytes());
        out.extend_from_slice(&self.fingerprint().0.to_le_bytes());
        out.extend_from_slice(&nonce);
        out.extend_from_slice(key.bytes.as_slice());
        let (head, sealed) = out.split_at_mut(SEALED_AT);
        let tag = self
            .wrapping_cipher()
            .encrypt_inout_detached(&nonce.into(), &head[..HEADER_BYTES], InOutBuf::from(sealed))
            .expect("R10: the cipher refused 32 bytes");
        out.extend_from_slice(&tag);
        out
    }

    /// Unwraps the output of [`ClusterKey::wrap_node`] for this disk.
    ///
    /// # Errors
    /// One for each kind of mismatch; see [`SealError`].
    pub fn unwrap_node(&self, wrapped: &[u8], disk: u128) -> Result<NodeKey, SealError> {
        let wrapped: &[u8; WRAPPED_NODE_KEY_BYTES] = checked(wrapped, MAGIC, WRAPPED_NODE_KEY_VERSION)?;
        let found = u128::from_le_bytes(field(wrapped, 16));
        if found != disk {
            return Err(SealError::WrappedDisk { found, expected: disk });
        }
        let by = KeyFingerprint(u64::from_le_bytes(field(wrapped, 32)));
        if by != self.fingerprint() {
            return Err(SealError::WrongClusterKey { found: by, expected: self.fingerprint() });
        }
        let tag: [u8; TAG_BYTES] = field(wrapped, TAG_AT);
        let mut key = Zeroizing::new(field::<NODE_KEY_BYTES>(wrapped, SEALED_AT));
        self.wrapping_cipher()
            .decrypt_inout_detached(
                &field::<NONCE_BYTES>(wrapped, HEADER_BYTES).into(),
                &wrapped[..HEADER_BYTES],
                InOutBuf::from(key.as_mut_slice()),
                &tag.into(),
            )
            .map_err(|_| SealError::NodeKeyNotAuthentic { found_tag: hex(&tag), disk, by })?;
        Ok(NodeKey::from_bytes(*key))
    }
}

/// The cluster key named in a wrapped node key. Not authenticated before [`ClusterKey::unwrap_node`]; `None` if it is
/// no wrapped node key.
pub fn node_wrapped_by(wrapped: &[u8]) -> Option<KeyFingerprint> {
    let wrapped: &[u8; WRAPPED_NODE_KEY_BYTES] = wrapped.try_into().ok()?;
    let magic: [u8; 8] = field(wrapped, 0);
    (magic == MAGIC).then(|| KeyFingerprint(u64::from_le_bytes(field(wrapped, 32))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(byte: u8) -> ClusterKey {
        ClusterKey::from_key_file(&[byte; 32]).expect("32 bytes")
    }

    #[test]
    fn what_was_sealed_opens_at_its_place_only() {
        let key = NodeKey::from_bytes([7; 32]).file(5);
        let mut bytes = b"a payload".to_vec();
        let tag = key.seal(4096, 2, b"head", &mut bytes);
        assert_ne!(bytes, b"a payload");
        let open = |key: &FileKey, offset, number, associated: &[u8], tag: &[u8; TAG_BYTES]| {
            let mut copy = bytes.clone();
            key.open(offset, number, associated, &mut copy, tag).map(|()| copy)
        };
        assert_eq!(open(&key, 4096, 2, b"head", &tag), Ok(b"a payload".to_vec()));
        assert_eq!(open(&key, 4097, 2, b"head", &tag), Err(NotAuthentic));
        assert_eq!(open(&key, 4096, 3, b"head", &tag), Err(NotAuthentic));
        assert_eq!(open(&key, 4096, 2, b"heat", &tag), Err(NotAuthentic));
        assert_eq!(open(&NodeKey::from_bytes([7; 32]).file(6), 4096, 2, b"head", &tag), Err(NotAuthentic));
        assert_eq!(open(&NodeKey::from_bytes([8; 32]).file(5), 4096, 2, b"head", &tag), Err(NotAuthentic));
        let mut bad = tag;
        bad[15] ^= 1;
        assert_eq!(open(&key, 4096, 2, b"head", &bad), Err(NotAuthentic));
    }

    #[test]
    fn a_wrapped_key_comes_back_and_every_flipped_bit_is_found() {
        let key = NodeKey::from_bytes([9; 32]);
        let wrapped = cluster(1).wrap_node(&key, 77, [3; 24]);
        assert_eq!(wrapped.len(), WRAPPED_NODE_KEY_BYTES);
        let back = cluster(1).unwrap_node(&wrapped, 77).expect("whole");
        assert_eq!((back.fingerprint(), **back.bytes), (key.fingerprint(), [9; 32]));
        assert!(matches!(cluster(2).unwrap_node(&wrapped, 77), Err(SealError::WrongClusterKey { .. })));
        assert!(matches!(cluster(1).unwrap_node(&wrapped, 78), Err(SealError::WrappedDisk { .. })));
        assert!(matches!(cluster(1).unwrap_node(&wrapped[1..], 77), Err(SealError::WrappedLength { .. })));
        for bit in 0..wrapped.len() * 8 {
            let mut bad = wrapped.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(cluster(1).unwrap_node(&bad, 77).is_err(), "bit {bit}");
        }
    }

    /// Changing any of these needs a new version and a reader for the old one: files on disk are sealed with them.
    #[test]
    fn the_bytes_are_pinned() {
        let key = NodeKey::from_bytes([1; 32]);
        let mut bytes = [0u8; 8];
        let tag = key.file(2).seal(3, 4, b"5", &mut bytes);
        let found = [hex(&bytes), hex(&tag), key.fingerprint().to_string()];
        assert_eq!(found, ["ffb9809cf8db70b2", "5dc54664e10b53b82e02cc67cf405f08", "7ba49071f6ce0fc6"]);
    }
}
