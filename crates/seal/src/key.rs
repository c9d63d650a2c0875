//! Cluster keys and data keys.
//!
//! A wrapped data key, version 1, little-endian, [`WRAPPED_KEY_BYTES`] long:
//!
//! ```text
//!   0  magic "HFWRAPKY"        20  set                      36  nonce, 24 bytes
//!   8  version                 28  fingerprint of the       60  data key, encrypted, 32 bytes
//!  12  length of all           .   cluster key              92  tag, 16 bytes, over 0..36 and 60..92
//!  16  key id
//! ```

use crate::error::{SealError, hex};
use crate::fingerprint::KeyFingerprint;
use crate::kdf::{Argon2id, argon2_parameters};
use crate::part::TAG_BYTES;
use crate::wrapped::{checked, field};
use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::inout::InOutBuf;
use chacha20poly1305::{AeadInOut, KeyInit, XChaCha20Poly1305};
use hkdf::Hkdf;
use holdfast_locked::LockedKey;
use holdfast_types::{RequestId, SetId, Token};
use sha2::Sha256;
use std::fmt;
use std::sync::Arc;
use zeroize::Zeroizing;

/// Bytes of a cluster key.
pub const CLUSTER_KEY_BYTES: usize = 32;
/// Bytes of a data key.
pub const DATA_KEY_BYTES: usize = 32;
/// Fewest bytes of a passphrase. Argon2id slows guessing down by a constant only; it cannot make up for a short one.
pub const PASSPHRASE_BYTES_MIN: usize = 8;
/// Bytes of a wrapped data key.
pub const WRAPPED_KEY_BYTES: usize = 108;
/// Version of the wrapped key that this build writes and reads.
pub const WRAPPED_VERSION: u32 = 1;

const WRAPPED_MAGIC: [u8; 8] = *b"HFWRAPKY";
const HEADER_BYTES: usize = 36;
const NONCE_BYTES: usize = 24;
const SEALED_AT: usize = HEADER_BYTES + NONCE_BYTES;
const TAG_AT: usize = SEALED_AT + DATA_KEY_BYTES;
const _: () = assert!(TAG_AT + TAG_BYTES == WRAPPED_KEY_BYTES);

/// HKDF-SHA256 to 32 bytes. The salt is the purpose, so that no two purposes share a key.
pub(crate) fn derive(purpose: &[u8], key: &[u8; 32], info: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut out = Zeroizing::new([0u8; 32]);
    // HKDF-SHA256 expands up to 255 × 32 bytes, so 32 cannot be refused.
    Hkdf::<Sha256>::new(Some(purpose), key).expand(info, out.as_mut()).expect("R10: HKDF-SHA256 refused 32 bytes");
    out
}

/// The key of a set's data. Kept in locked memory only, which clones share; stored wrapped by the [`ClusterKey`].
#[derive(Clone)]
pub struct DataKey(Arc<LockedKey>);

impl DataKey {
    /// A key from random bytes drawn by the caller.
    pub fn from_bytes(bytes: [u8; DATA_KEY_BYTES]) -> Self {
        Self::from_wiped(&Zeroizing::new(bytes))
    }

    /// Like `from_bytes`, from a copy that its owner wipes.
    fn from_wiped(bytes: &[u8; DATA_KEY_BYTES]) -> Self {
        Self(Arc::new(LockedKey::new(bytes)))
    }

    pub(crate) fn bytes(&self) -> &[u8; DATA_KEY_BYTES] {
        &self.0
    }

    /// The token that opens exports of one snapshot of `set`. Every gateway with the set's data key derives the same,
    /// so it is stored nowhere. `made_by` is the request that made the snapshot: a later snapshot of the same name has
    /// another token.
    pub fn snapshot_token(&self, set: SetId, made_by: RequestId) -> Token {
        let info = [&set.0.to_be_bytes()[..], &made_by.0.to_be_bytes()].concat();
        let derived = derive(b"holdfast snapshot token v1", &self.0, &info);
        let mut token = [0; 16];
        token.copy_from_slice(&derived[..16]);
        Token(u128::from_be_bytes(token))
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(***)")
    }
}

/// The key that wraps the data keys of all sets of a cluster. Every gateway gets it from its configuration.
pub struct ClusterKey {
    wrapping: LockedKey,
    fingerprint: KeyFingerprint,
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterKey(***, fingerprint {})", self.fingerprint)
    }
}

impl ClusterKey {
    /// [`ClusterKey::from_passphrase_by`] with [`argon2_parameters`]. Takes about 20 ms.
    ///
    /// # Errors
    /// As [`ClusterKey::from_passphrase_by`].
    pub fn from_passphrase(
        passphrase: impl AsRef<[u8]>,
        salt: [u8; argon2_parameters::SALT_BYTES],
    ) -> Result<Self, SealError> {
        Self::from_passphrase_by(passphrase, &Argon2id::ours(salt))
    }

    /// Derives the key with Argon2id (version 0x13) from the passphrase's exact bytes. The parameters are not secret;
    /// they are kept beside the passphrase, and beside the keys that this key wraps.
    ///
    /// # Errors
    /// [`SealError::PassphraseShort`]; [`SealError::Kdf`] for parameters out of bounds; [`SealError::Argon2`] if the
    /// memory cannot be allocated.
    pub fn from_passphrase_by(passphrase: impl AsRef<[u8]>, by: &Argon2id) -> Result<Self, SealError> {
        by.check()?;
        let passphrase = passphrase.as_ref();
        if passphrase.len() < PASSPHRASE_BYTES_MIN {
            return Err(SealError::PassphraseShort { found: passphrase.len(), expected: PASSPHRASE_BYTES_MIN });
        }
        let failed = |source| SealError::Argon2 { memory_kib: by.memory_kib, source };
        let parameters = Params::new(by.memory_kib, by.passes, by.lanes, Some(CLUSTER_KEY_BYTES)).map_err(failed)?;
        let mut key = Zeroizing::new([0u8; CLUSTER_KEY_BYTES]);
        Argon2::new(Algorithm::Argon2id, Version::V0x13, parameters)
            .hash_password_into(passphrase, &by.salt, key.as_mut())
            .map_err(failed)?;
        Ok(Self::from_key(&key))
    }

    /// The content of a key file: [`CLUSTER_KEY_BYTES`] raw bytes, or the same in hex, with or without a newline.
    ///
    /// # Errors
    /// [`SealError::KeyFile`] for anything else.
    pub fn from_key_file(content: &[u8]) -> Result<Self, SealError> {
        let mut key = Zeroizing::new([0u8; CLUSTER_KEY_BYTES]);
        if content.len() == CLUSTER_KEY_BYTES {
            key.copy_from_slice(content);
            return Ok(Self::from_key(&key));
        }
        let wrong = SealError::KeyFile { found: content.len(), expected: CLUSTER_KEY_BYTES };
        let digits = content.strip_suffix(b"\n").unwrap_or(content);
        let digits = digits.strip_suffix(b"\r").unwrap_or(digits);
        if digits.len() != 2 * CLUSTER_KEY_BYTES {
            return Err(wrong);
        }
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |at: usize| char::from(pair[at]).to_digit(16);
            let (Some(high), Some(low)) = (digit(0), digit(1)) else { return Err(wrong) };
            *byte = (high * 16 + low) as u8;
        }
        Ok(Self::from_key(&key))
    }

    fn from_key(key: &[u8; CLUSTER_KEY_BYTES]) -> Self {
        let print = derive(b"holdfast cluster key fingerprint v1", key, b"");
        let mut first = [0u8; 8];
        first.copy_from_slice(&print[..8]);
        Self {
            wrapping: LockedKey::new(&derive(b"holdfast cluster key wrapping v1", key, b"")),
            fingerprint: KeyFingerprint(u64::from_be_bytes(first)),
        }
    }

    /// Tells this key from others, in logs and errors.
    pub fn fingerprint(&self) -> KeyFingerprint {
        self.fingerprint
    }

    pub(crate) fn wrapping_cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new(&(*self.wrapping).into())
    }

    /// Wraps a set's data key for storage. The nonce must be random for each call; at 24 bytes, random nonces do not
    /// collide.
    pub fn wrap(&self, key: &DataKey, set: SetId, key_id: u32, nonce: [u8; NONCE_BYTES]) -> Vec<u8> {
        let mut out = Vec::with_capacity(WRAPPED_KEY_BYTES);
        out.extend_from_slice(&WRAPPED_MAGIC);
        out.extend_from_slice(&WRAPPED_VERSION.to_le_bytes());
        out.extend_from_slice(&(WRAPPED_KEY_BYTES as u32).to_le_bytes());
        out.extend_from_slice(&key_id.to_le_bytes());
        out.extend_from_slice(&set.0.to_le_bytes());
        out.extend_from_slice(&self.fingerprint.0.to_le_bytes());
        out.extend_from_slice(&nonce);
        out.extend_from_slice(key.bytes());
        let (head, sealed) = out.split_at_mut(SEALED_AT);
        let tag = self
            .wrapping_cipher()
            .encrypt_inout_detached(&nonce.into(), &head[..HEADER_BYTES], InOutBuf::from(sealed))
            .expect("R10: the cipher refused 32 bytes");
        out.extend_from_slice(&tag);
        out
    }

    /// Unwraps the output of [`ClusterKey::wrap`] for this set and key id.
    ///
    /// # Errors
    /// One for each kind of mismatch; see [`SealError`].
    pub fn unwrap(&self, wrapped: &[u8], set: SetId, key_id: u32) -> Result<DataKey, SealError> {
        let wrapped: &[u8; WRAPPED_KEY_BYTES] = checked(wrapped, WRAPPED_MAGIC, WRAPPED_VERSION)?;
        let found_set = holdfast_types::GroupId(u64::from_le_bytes(field(wrapped, 20)));
        if found_set != set {
            return Err(SealError::WrappedSet { found: found_set, expected: set });
        }
        let found_id = u32::from_le_bytes(field(wrapped, 16));
        if found_id != key_id {
            return Err(SealError::WrappedKeyId { found: found_id, expected: key_id });
        }
        let by = KeyFingerprint(u64::from_le_bytes(field(wrapped, 28)));
        if by != self.fingerprint {
            return Err(SealError::WrongClusterKey { found: by, expected: self.fingerprint });
        }
        let nonce: [u8; NONCE_BYTES] = field(wrapped, HEADER_BYTES);
        let tag: [u8; TAG_BYTES] = field(wrapped, TAG_AT);
        let mut key = Zeroizing::new(field::<DATA_KEY_BYTES>(wrapped, SEALED_AT));
        self.wrapping_cipher()
            .decrypt_inout_detached(
                &nonce.into(),
                &wrapped[..HEADER_BYTES],
                InOutBuf::from(key.as_mut_slice()),
                &tag.into(),
            )
            .map_err(|_| SealError::WrappedNotAuthentic { found_tag: hex(&tag), set, key_id, by })?;
        Ok(DataKey::from_wiped(&key))
    }
}

/// The cluster key named in a wrapped data key. Not authenticated before [`ClusterKey::unwrap`]; `None` if it is no
/// wrapped key.
pub fn wrapped_by(wrapped: &[u8]) -> Option<KeyFingerprint> {
    let wrapped: &[u8; WRAPPED_KEY_BYTES] = wrapped.try_into().ok()?;
    let magic: [u8; 8] = field(wrapped, 0);
    (magic == WRAPPED_MAGIC).then(|| KeyFingerprint(u64::from_le_bytes(field(wrapped, 28))))
}

#[cfg(test)]
mod tests;
