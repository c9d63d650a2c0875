//! ChaCha20-Poly1305 (RFC 8439) with keys of 32 bytes: the one cipher of parts and of chunks.

use crate::part::TAG_BYTES;
use ::ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

/// Bytes of a nonce.
pub(crate) const NONCE_BYTES: usize = 12;

/// The bytes do not have this tag under this key, nonce and associated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// A key, ready for use.
///
/// ring's own key type is not wiped when it is dropped (SEAL-S3), so it lives on the stack for one call only. To make
/// it takes some nanoseconds: ChaCha20 has no key schedule.
#[derive(Clone)]
pub(crate) struct Cipher {
    key: Zeroizing<[u8; 32]>,
}

impl Cipher {
    pub fn new(key: Zeroizing<[u8; 32]>) -> Self {
        Self { key }
    }

    /// The key itself, for where it is stored.
    pub fn key(&self) -> &[u8; 32] {
        &self.key
    }

    fn for_one_call(&self) -> LessSafeKey {
        LessSafeKey::new(UnboundKey::new(&CHACHA20_POLY1305, &*self.key).expect("R10: a key of 32 bytes"))
    }

    /// Seals `bytes` in place, and returns their tag. `None` if they are too many for the cipher (256 GiB). The caller
    /// MUST NOT use a nonce twice.
    pub fn seal(&self, nonce: [u8; NONCE_BYTES], associated: &[u8], bytes: &mut [u8]) -> Option<[u8; TAG_BYTES]> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.for_one_call().seal_in_place_separate_tag(nonce, Aad::from(associated), bytes).ok()?;
        tag.as_ref().try_into().ok()
    }

    /// Opens `bytes` in place.
    ///
    /// # Errors
    /// [`Refused`]; then `bytes` are meaningless.
    pub fn open(
        &self,
        nonce: [u8; NONCE_BYTES],
        associated: &[u8],
        bytes: &mut [u8],
        tag: &[u8; TAG_BYTES],
    ) -> Result<(), Refused> {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let opened =
            self.for_one_call().open_in_place_separate_tag(nonce, Aad::from(associated), (*tag).into(), bytes, 0..);
        opened.map(|_| ()).map_err(|_| Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chacha20poly1305::aead::inout::InOutBuf;
    use chacha20poly1305::{AeadInOut, ChaCha20Poly1305, KeyInit};

    /// Objects and journals outlive a build, so all builds must agree about the bytes.
    #[test]
    fn another_implementation_agrees() {
        for len in [0, 1, 15, 16, 17, 63, 64, 65, 255, 256, 257, 511, 512, 513, 4096, 16 * 1024 + 3, 128 * 1024] {
            let key = [len as u8 ^ 0x5a; 32];
            let nonce = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, len as u8];
            let plain: Vec<u8> = (0..len).map(|i: usize| (i * 7 + i / 251) as u8).collect();
            let associated = &plain[..len.min(77)];

            let mut theirs = plain.clone();
            let tag = ChaCha20Poly1305::new(&key.into())
                .encrypt_inout_detached(&nonce.into(), associated, InOutBuf::from(theirs.as_mut_slice()))
                .unwrap();
            let cipher = Cipher::new(Zeroizing::new(key));
            let mut ours = plain.clone();
            assert_eq!(cipher.seal(nonce, associated, &mut ours), Some(tag.into()), "{len} bytes");
            assert_eq!(ours, theirs, "{len} bytes");

            cipher.open(nonce, associated, &mut theirs, &tag.into()).unwrap();
            assert_eq!(theirs, plain, "{len} bytes");
            let mut wrong: [u8; TAG_BYTES] = tag.into();
            wrong[len % TAG_BYTES] ^= 1;
            assert_eq!(cipher.open(nonce, associated, &mut ours, &wrong), Err(Refused), "{len} bytes");
        }
    }
}
