//! Frame of every object in the store: a fixed plaintext header, content, and a sealed part at the end.
//!
//! ```text
//!   | header, 104 bytes | content: sealed extents or pages | sealed main part: the table of the content, the root, or the head |
//! ```
//! The table comes last, since the places are known only after the content was packed; the header has the table's
//! place. A reader of an unknown object needs two range reads. Header, version 2, little-endian:
//!
//! ```text
//!   0  magic "HOLDFAST"     20  zero, 4          72  length of the object
//!   8  version              24  set              80  main part: offset
//!  12  kind                 32  object id, 40    88  main part: sealed length
//!  16  data key id                               96  zero, 4;  100  CRC32C of 0..100
//! ```
//! The header is not trusted but compared: set, object and key id with the expected ones, lengths with the received
//! bytes. All fields are also bound into every sealed part (R10), so an object with a forged header does not open.

use holdfast_seal::{ObjectOpener, TAG_BYTES};
use holdfast_types::{MemberId, ObjectId, SetId, Term};
use std::fmt;
use std::ops::Range;

/// Bytes of the header.
pub const OBJECT_HEADER_BYTES: usize = 104;
/// Version of the header, and of the tables and tree nodes inside, that this build reads and writes.
pub const OBJECT_VERSION: u32 = 2;

const MAGIC: [u8; 8] = *b"HOLDFAST";
const CRC_AT: usize = 100;

/// What an object holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// Extents of volume data.
    Segment,
    /// Map pages of one checkpoint.
    Pages,
    /// A map root.
    Root,
    /// A set's head.
    Head,
}

impl ObjectKind {
    fn number(self) -> u32 {
        match self {
            ObjectKind::Segment => 1,
            ObjectKind::Pages => 2,
            ObjectKind::Root => 3,
            ObjectKind::Head => 4,
        }
    }

    fn from_number(number: u32) -> Option<Self> {
        let all = [ObjectKind::Segment, ObjectKind::Pages, ObjectKind::Root, ObjectKind::Head];
        all.into_iter().find(|kind| kind.number() == number)
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ObjectKind::Segment => "segment",
            ObjectKind::Pages => "page pack",
            ObjectKind::Root => "root",
            ObjectKind::Head => "head",
        })
    }
}

/// An object's header, read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectHeader {
    /// What it holds.
    pub kind: ObjectKind,
    /// The set's data key that it is sealed under.
    pub key_id: u32,
    /// The set that it belongs to.
    pub set: SetId,
    /// Its own id.
    pub object: ObjectId,
    /// Length of the whole object in bytes.
    pub bytes: u64,
    /// Where the sealed main part begins, in bytes.
    pub main_offset: u64,
}

/// An object other than the expected one (R9).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectError {
    /// Too few bytes for a header.
    #[error("object header: found {found} bytes, expected {expected}")]
    Short {
        /// Bytes found.
        found: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// It does not begin with our magic.
    #[error("object header: found magic {found:02x?}, expected {expected:02x?}")]
    Magic {
        /// First bytes found.
        found: [u8; 8],
        /// First bytes expected.
        expected: [u8; 8],
    },
    /// A version that this build does not read.
    #[error("object header: found version {found}, expected {expected}")]
    Version {
        /// Version found.
        found: u32,
        /// Version read.
        expected: u32,
    },
    /// The header is damaged.
    #[error("object header: found checksum {found:08x}, expected {expected:08x}")]
    Checksum {
        /// Checksum in the header.
        found: u32,
        /// Checksum of the header.
        expected: u32,
    },
    /// An impossible field.
    #[error("object header: found {found} as {field}, expected {expected}")]
    Field {
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
        /// Allowed values.
        expected: &'static str,
    },
    /// Another kind of object.
    #[error("object {object}: found a {found}, expected a {expected}")]
    Kind {
        /// Whose header it is.
        object: ObjectId,
        /// Kind found.
        found: ObjectKind,
        /// Kind expected.
        expected: ObjectKind,
    },
    /// Another object.
    #[error("object: found {found}, expected {expected}")]
    Object {
        /// Id found.
        found: Box<ObjectId>,
        /// Id expected.
        expected: Box<ObjectId>,
    },
    /// An object of another set.
    #[error("object {object}: found one of set {found}, expected set {expected}")]
    Set {
        /// Whose header it is.
        object: ObjectId,
        /// Set found.
        found: SetId,
        /// Set expected.
        expected: SetId,
    },
    /// Sealed under another data key.
    #[error("object {object}: found it sealed under data key {found}, expected {expected}")]
    KeyId {
        /// Whose header it is.
        object: ObjectId,
        /// Key id found.
        found: u32,
        /// Key id expected.
        expected: u32,
    },
    /// Its length differs from the header's.
    #[error("object {object}: found {found} bytes, expected {expected}")]
    Length {
        /// Which object.
        object: ObjectId,
        /// Bytes found.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
}

impl ObjectHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; OBJECT_HEADER_BYTES] {
        let mut out = [0u8; OBJECT_HEADER_BYTES];
        let mut put = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(8, &OBJECT_VERSION.to_le_bytes());
        put(12, &self.kind.number().to_le_bytes());
        put(16, &self.key_id.to_le_bytes());
        put(24, &self.set.0.to_le_bytes());
        put(32, &self.object.term.0.to_le_bytes());
        put(40, &self.object.member.0.to_le_bytes());
        put(48, &self.object.boot.to_le_bytes());
        put(56, &self.object.random.to_le_bytes());
        put(72, &self.bytes.to_le_bytes());
        put(80, &self.main_offset.to_le_bytes());
        put(88, &self.bytes.saturating_sub(self.main_offset).to_le_bytes());
        let crc = crc32c::crc32c(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the header from the first bytes of an object; further bytes are ignored.
    ///
    /// # Errors
    /// [`ObjectError`] for anything that is no complete header of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, ObjectError> {
        let Some(header) = bytes.first_chunk::<OBJECT_HEADER_BYTES>() else {
            return Err(ObjectError::Short { found: bytes.len(), expected: OBJECT_HEADER_BYTES });
        };
        let magic: [u8; 8] = field(header, 0);
        if magic != MAGIC {
            return Err(ObjectError::Magic { found: magic, expected: MAGIC });
        }
        let version = u32::from_le_bytes(field(header, 8));
        if version != OBJECT_VERSION {
            return Err(ObjectError::Version { found: version, expected: OBJECT_VERSION });
        }
        let (found, expected) = (u32::from_le_bytes(field(header, CRC_AT)), crc32c::crc32c(&header[..CRC_AT]));
        if found != expected {
            return Err(ObjectError::Checksum { found, expected });
        }
        let wrong = |field, found, expected| Err(ObjectError::Field { field, found, expected });
        let kind = u32::from_le_bytes(field(header, 12));
        let Some(kind) = ObjectKind::from_number(kind) else { return wrong("kind", kind.into(), "1 to 4") };
        let zeroes = u32::from_le_bytes(field(header, 20)) | u32::from_le_bytes(field(header, 96));
        if zeroes != 0 {
            return wrong("reserved bytes", zeroes.into(), "0");
        }
        let bytes = u64::from_le_bytes(field(header, 72));
        let main_offset = u64::from_le_bytes(field(header, 80));
        let main_bytes = u64::from_le_bytes(field(header, 88));
        if main_offset < OBJECT_HEADER_BYTES as u64 {
            return wrong("offset of the main part", main_offset, "a place behind the header");
        }
        if main_bytes < TAG_BYTES as u64 || main_offset.checked_add(main_bytes) != Some(bytes) {
            return wrong("length of the main part", main_bytes, "a sealed part that ends with the object");
        }
        let object = ObjectId {
            term: Term(u64::from_le_bytes(field(header, 32))),
            member: MemberId(u64::from_le_bytes(field(header, 40))),
            boot: u64::from_le_bytes(field(header, 48)),
            random: u128::from_le_bytes(field(header, 56)),
        };
        let set = holdfast_types::GroupId(u64::from_le_bytes(field(header, 24)));
        Ok(Self { kind, key_id: u32::from_le_bytes(field(header, 16)), set, object, bytes, main_offset })
    }

    /// Compares with the expected kind, set, object and key.
    ///
    /// # Errors
    /// [`ObjectError::Object`], [`ObjectError::Set`], [`ObjectError::KeyId`] or [`ObjectError::Kind`].
    pub fn check(&self, kind: ObjectKind, opener: &ObjectOpener) -> Result<(), ObjectError> {
        let object = self.object;
        if object != opener.object() {
            return Err(ObjectError::Object { found: Box::new(object), expected: Box::new(opener.object()) });
        }
        if self.set != opener.set() {
            return Err(ObjectError::Set { object, found: self.set, expected: opener.set() });
        }
        if !opener.has(self.key_id) {
            return Err(ObjectError::KeyId { object, found: self.key_id, expected: opener.key_id() });
        }
        if self.kind != kind {
            return Err(ObjectError::Kind { object, found: self.kind, expected: kind });
        }
        Ok(())
    }

    /// Where the sealed main part is in the object, in bytes.
    pub fn main_range(&self) -> Range<u64> {
        self.main_offset..self.bytes
    }

    /// Header and main part of a whole object, compared with the expected ones.
    ///
    /// # Errors
    /// As [`ObjectHeader::decode`] and [`ObjectHeader::check`], and [`ObjectError::Length`] for a truncated or longer
    /// object.
    pub fn of_whole<'a>(
        kind: ObjectKind,
        opener: &ObjectOpener,
        whole: &'a [u8],
    ) -> Result<(Self, &'a [u8]), ObjectError> {
        let header = Self::decode(whole)?;
        header.check(kind, opener)?;
        let wrong = ObjectError::Length { object: header.object, found: whole.len() as u64, expected: header.bytes };
        if whole.len() as u64 != header.bytes {
            return Err(wrong);
        }
        let main = usize::try_from(header.main_offset).ok().and_then(|at| whole.get(at..)).ok_or(wrong)?;
        Ok((header, main))
    }
}

/// `N` bytes at `at`; all offsets are constants of the layout above.
fn field<const N: usize>(header: &[u8; OBJECT_HEADER_BYTES], at: usize) -> [u8; N] {
    let mut out = [0u8; N];
    out.copy_from_slice(&header[at..at + N]);
    out
}

#[cfg(test)]
pub(crate) mod tests;
