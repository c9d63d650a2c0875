//! Errors of keys, wrapped keys and sealed parts. Each names what was found and what was expected.

use crate::fingerprint::KeyFingerprint;
use crate::part::{ExtentAad, ExtentPart, Part, TAG_BYTES};
use holdfast_types::{ObjectId, SetId};
use std::fmt;

/// The identity of a sealed part: everything that its tag covers besides the bytes themselves (SEAL-S2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedPart {
    /// The set of its data key.
    pub set: SetId,
    /// Number of the data key.
    pub key_id: u32,
    /// The object that it belongs to.
    pub object: ObjectId,
    /// The part.
    pub part: SealedKind,
    /// Length before sealing, after compression, in bytes.
    pub plain_len: u64,
}

/// A part of an extent with its place, or one of the reserved parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SealedKind {
    /// A part of an extent of a segment.
    Extent {
        /// The extent's number in the object.
        number: u32,
        /// Which part.
        part: ExtentPart,
        /// Data that it is bound to.
        aad: ExtentAad,
    },
    /// A reserved part.
    Part(Part),
}

impl fmt::Display for SealedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.part {
            SealedKind::Extent { number, part, aad } => write!(
                f,
                "{part} of extent {number} ({} {}, {} raw bytes, codec {})",
                aad.volume, aad.lba, aad.raw_len, aad.codec
            )?,
            SealedKind::Part(part) => write!(f, "{part}")?,
        }
        write!(
            f,
            " of {} sealed bytes, in object {} of set {}, data key {}",
            self.plain_len + TAG_BYTES as u64,
            self.object,
            self.set,
            self.key_id
        )
    }
}

/// A key could not be created or unwrapped, or a sealed part could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// The bytes were not sealed as this part: damaged, moved, or of another object, set or key (R9).
    #[error("not authentic: found {found_bytes} bytes under tag {found_tag}, expected {expected}")]
    NotAuthentic {
        /// Number of bytes found.
        found_bytes: usize,
        /// The tag found, in hex.
        found_tag: String,
        /// The expected part.
        expected: Box<SealedPart>,
    },
    /// Too few bytes to hold even a tag.
    #[error("sealed part: found {found} bytes, expected at least {expected}")]
    TooShort {
        /// Number of bytes found.
        found: usize,
        /// Fewest bytes of a part.
        expected: usize,
    },
    /// A key file is neither 32 raw bytes nor 64 hex digits.
    #[error("key file: found {found} bytes, expected {expected} raw bytes, or twice as many hex digits and a newline")]
    KeyFile {
        /// Bytes in the file.
        found: usize,
        /// Raw bytes expected.
        expected: usize,
    },
    /// A passphrase is too short to protect anything.
    #[error("passphrase: found {found} bytes, expected at least {expected}")]
    PassphraseShort {
        /// Bytes of the passphrase.
        found: usize,
        /// Fewest bytes allowed.
        expected: usize,
    },
    /// Malformed parameters of a passphrase, or out of bounds.
    #[error("parameters of a passphrase: found {found}, expected {expected}")]
    Kdf {
        /// Parameters found.
        found: String,
        /// Allowed parameters.
        expected: &'static str,
    },
    /// Argon2id refused, in practice for want of memory.
    #[error("passphrase: Argon2id with {memory_kib} KiB failed")]
    Argon2 {
        /// Requested memory, in KiB.
        memory_kib: u32,
        /// Its own words.
        #[source]
        source: argon2::Error,
    },
    /// A wrapped key has a wrong length.
    #[error("wrapped key: found {found} bytes, expected {expected}")]
    WrappedLength {
        /// Bytes found, or the length written inside.
        found: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// The wrapped keys of a set are out of order, or one is listed twice.
    #[error("wrapped keys: found data key {found} behind data key {after}, expected a higher one")]
    RingOrder {
        /// Key id found.
        found: u32,
        /// Id of the key before it.
        after: u32,
    },
    /// A wrapped key without the magic.
    #[error("wrapped key: found magic {found:02x?}, expected {expected:02x?}")]
    WrappedMagic {
        /// First bytes found.
        found: [u8; 8],
        /// First bytes expected.
        expected: [u8; 8],
    },
    /// A version of wrapped keys that this build cannot read.
    #[error("wrapped key: found version {found}, expected {expected}")]
    WrappedVersion {
        /// Version found.
        found: u32,
        /// Version that this build reads.
        expected: u32,
    },
    /// A wrapped key belongs to another set.
    #[error("wrapped key: found one of set {found}, expected set {expected}")]
    WrappedSet {
        /// Set found.
        found: SetId,
        /// Set asked for.
        expected: SetId,
    },
    /// A wrapped key is another data key of the set.
    #[error("wrapped key: found data key {found}, expected {expected}")]
    WrappedKeyId {
        /// Key id found.
        found: u32,
        /// Key id asked for.
        expected: u32,
    },
    /// A wrapped node key belongs to another node's disk.
    #[error("wrapped node key: found that of disk {found:032x}, expected disk {expected:032x}")]
    WrappedDisk {
        /// Disk uuid found.
        found: u128,
        /// This node's.
        expected: u128,
    },
    /// The wrapped node key was altered: cluster key and disk are as expected, but the tag is not.
    #[error(
        "wrapped node key: not authentic: found tag {found_tag}, expected the key of disk {disk:032x} as wrapped by {by}"
    )]
    NodeKeyNotAuthentic {
        /// The tag found, in hex.
        found_tag: String,
        /// This node's disk.
        disk: u128,
        /// Cluster key at hand.
        by: KeyFingerprint,
    },
    /// The key is wrapped under another cluster key: a wrong passphrase or key file.
    #[error(
        "wrapped key: found it wrapped under cluster key {found}, expected {expected} (another passphrase or key file?)"
    )]
    WrongClusterKey {
        /// Fingerprint in the wrapped key.
        found: KeyFingerprint,
        /// Fingerprint of the cluster key at hand.
        expected: KeyFingerprint,
    },
    /// The wrapped key was altered: cluster key, set and key id are as expected, but the tag is not.
    #[error(
        "wrapped key: not authentic: found tag {found_tag}, expected data key {key_id} of set {set} as wrapped by {by}"
    )]
    WrappedNotAuthentic {
        /// The tag found, in hex.
        found_tag: String,
        /// Set asked for.
        set: SetId,
        /// Key id asked for.
        key_id: u32,
        /// Cluster key at hand.
        by: KeyFingerprint,
    },
}

/// Lower-case hex, for messages.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
