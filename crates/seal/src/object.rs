//! Sealing and opening the parts of one object.
//!
//! The nonce is two numbers of 32 bits, little-endian, and four zero bytes. The first is the part's number, so all
//! parts share one space of numbers (SEAL-S1):
//!
//! ```text
//!   0 ..= EXTENT_NUMBER_MAX             extents
//!   0x8000_0000 + n                     map page, or leaf of a root, n of a pack, n <= PAGE_NUMBER_MAX
//!   0xffff_fffe                         the root
//!   0xffff_ffff                         the header: the object's own table
//! ```
//! The second tells the parts of an extent apart: its blocks, 0 to 0xffff, and their lengths, 0xffff_ffff. It is 0 for
//! all other parts.

use crate::cipher::{Cipher, NONCE_BYTES};
use crate::error::{SealError, SealedKind, SealedPart, hex};
use crate::key::{DataKey, derive};
use crate::part::{ExtentAad, ExtentPart, Part, TAG_BYTES};
use holdfast_types::{ObjectId, SetId};
use std::collections::BTreeSet;
use std::fmt;

/// Version of the sealing: key derivation, nonces and bound data. Part of every associated data.
pub const SEAL_VERSION: u32 = 2;
/// Largest number of an extent in an object.
pub const EXTENT_NUMBER_MAX: u32 = 0x7fff_ffff;
/// Largest number of a page, or of a leaf, in a pack.
pub const PAGE_NUMBER_MAX: u32 = 0x3fff_ffff;

const PAGE_NONCE: u32 = 0x8000_0000;
const ROOT_NONCE: u32 = 0xffff_fffe;
const HEADER_NONCE: u32 = 0xffff_ffff;
/// In an extent, in the place of a block's number.
const LENGTHS_NONCE: u32 = 0xffff_ffff;
const _: () = assert!(EXTENT_NUMBER_MAX < PAGE_NONCE);
const _: () = assert!(PAGE_NONCE + PAGE_NUMBER_MAX < ROOT_NONCE);

/// The two numbers of a part's nonce: the part, and the block in an extent. `None` for numbers outside of the space.
/// They are a bug of ours: they would collide with another part's nonce.
fn nonce_numbers(kind: &SealedKind) -> Option<(u32, u32)> {
    match kind {
        SealedKind::Extent { number, part, .. } => {
            let within = match part {
                ExtentPart::Block(block) => u32::from(*block),
                ExtentPart::Lengths => LENGTHS_NONCE,
            };
            (*number <= EXTENT_NUMBER_MAX).then_some((*number, within))
        }
        SealedKind::Part(Part::Page { number, .. } | Part::Leaf { number, .. }) => {
            (*number <= PAGE_NUMBER_MAX).then(|| (PAGE_NONCE + number, 0))
        }
        SealedKind::Part(Part::Root) => Some((ROOT_NONCE, 0)),
        SealedKind::Part(Part::Header) => Some((HEADER_NONCE, 0)),
    }
}

fn nonce((number, within): (u32, u32)) -> [u8; NONCE_BYTES] {
    let mut bytes = [0u8; NONCE_BYTES];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes[4..8].copy_from_slice(&within.to_le_bytes());
    bytes
}

/// The associated data: little-endian and of fixed length, so that two parts never have the same.
fn associated(part: &SealedPart, (number, within): (u32, u32)) -> Vec<u8> {
    let (kind, volume, place, raw_len, codec) = match &part.part {
        SealedKind::Extent { part, aad, .. } => {
            let kind = if *part == ExtentPart::Lengths { 5u8 } else { 0 };
            (kind, aad.volume.0, aad.lba.0, u64::from(aad.raw_len), aad.codec)
        }
        SealedKind::Part(Part::Header) => (1, 0, 0, part.plain_len, 0),
        SealedKind::Part(Part::Root) => (2, 0, 0, part.plain_len, 0),
        SealedKind::Part(Part::Page { volume, page, .. }) => (3, volume.0, u64::from(*page), part.plain_len, 0),
        SealedKind::Part(Part::Leaf { kind, volume, page, .. }) => {
            (4, volume.0, u64::from(*page), part.plain_len, *kind)
        }
    };
    let mut out = Vec::with_capacity(100);
    out.extend_from_slice(b"HFSEAL");
    out.extend_from_slice(&[kind, codec]);
    out.extend_from_slice(&SEAL_VERSION.to_le_bytes());
    out.extend_from_slice(&part.key_id.to_le_bytes());
    out.extend_from_slice(&part.set.0.to_le_bytes());
    out.extend_from_slice(&part.object.term.0.to_le_bytes());
    out.extend_from_slice(&part.object.member.0.to_le_bytes());
    out.extend_from_slice(&part.object.boot.to_le_bytes());
    out.extend_from_slice(&part.object.random.to_le_bytes());
    out.extend_from_slice(&number.to_le_bytes());
    out.extend_from_slice(&within.to_le_bytes());
    out.extend_from_slice(&volume.to_le_bytes());
    out.extend_from_slice(&place.to_le_bytes());
    out.extend_from_slice(&raw_len.to_le_bytes());
    out.extend_from_slice(&(part.plain_len + TAG_BYTES as u64).to_le_bytes());
    out
}

/// One object's key and identity, shared by sealer and opener.
struct ObjectKey {
    cipher: Cipher,
    key_id: u32,
    set: SetId,
    object: ObjectId,
}

impl ObjectKey {
    fn new(key: &DataKey, key_id: u32, set: SetId, object: ObjectId) -> Self {
        let object_key = derive(b"holdfast object key v1", key.bytes(), object.to_string().as_bytes());
        Self { cipher: Cipher::new(object_key), key_id, set, object }
    }

    fn part(&self, part: SealedKind, plain_len: usize) -> SealedPart {
        SealedPart { set: self.set, key_id: self.key_id, object: self.object, part, plain_len: plain_len as u64 }
    }
}

/// Seals the parts of one object, each under its nonce once (SEAL-S1). Therefore not cloneable.
pub struct ObjectSealer {
    key: ObjectKey,
    used: BTreeSet<(u32, u32)>,
}

impl fmt::Debug for ObjectSealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectSealer({} of {}, {} parts sealed)", self.key.object, self.key.set, self.used.len())
    }
}

impl ObjectSealer {
    /// A sealer for an object with a fresh id, never sealed under before (SEAL-S1).
    pub fn new(key: &DataKey, key_id: u32, set: SetId, object: ObjectId) -> Self {
        Self { key: ObjectKey::new(key, key_id, set, object), used: BTreeSet::new() }
    }

    /// The object.
    pub fn object(&self) -> ObjectId {
        self.key.object
    }

    /// Its set.
    pub fn set(&self) -> SetId {
        self.key.set
    }

    /// Its data key.
    pub fn key_id(&self) -> u32 {
        self.key.key_id
    }

    /// Seals a part of an extent. `plain` of a block is the codec's output. The result is [`TAG_BYTES`] longer.
    ///
    /// # Panics
    /// R10: when this part of `number` was sealed before, or `number` is above [`EXTENT_NUMBER_MAX`].
    pub fn seal_extent(&mut self, number: u32, part: ExtentPart, aad: ExtentAad, plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(plain.len() + TAG_BYTES);
        self.seal_extent_into(number, part, aad, plain, &mut out);
        out
    }

    /// Like [`ObjectSealer::seal_extent`]; appends to `out`.
    ///
    /// # Panics
    /// As [`ObjectSealer::seal_extent`].
    pub fn seal_extent_into(&mut self, number: u32, part: ExtentPart, aad: ExtentAad, plain: &[u8], out: &mut Vec<u8>) {
        self.seal(SealedKind::Extent { number, part, aad }, plain, out);
    }

    /// Seals a part that is not an extent. The result is [`TAG_BYTES`] longer.
    ///
    /// # Panics
    /// R10: when the part was sealed before, or a page number is above [`PAGE_NUMBER_MAX`].
    pub fn seal_part(&mut self, part: Part, plain: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(plain.len() + TAG_BYTES);
        self.seal_part_into(part, plain, &mut out);
        out
    }

    /// Like [`ObjectSealer::seal_part`]; appends to `out`.
    ///
    /// # Panics
    /// As [`ObjectSealer::seal_part`].
    pub fn seal_part_into(&mut self, part: Part, plain: &[u8], out: &mut Vec<u8>) {
        self.seal(SealedKind::Part(part), plain, out);
    }

    fn seal(&mut self, kind: SealedKind, plain: &[u8], out: &mut Vec<u8>) {
        let part = self.key.part(kind, plain.len());
        let Some(numbers) = nonce_numbers(&part.part) else { panic!("R10: no nonce is left for {part}") };
        assert!(self.used.insert(numbers), "R10: sealed twice under one nonce: {part}");
        let start = out.len();
        out.extend_from_slice(plain);
        let tag = self
            .key
            .cipher
            .seal(nonce(numbers), &associated(&part, numbers), &mut out[start..])
            .unwrap_or_else(|| panic!("R10: too long for the cipher: {part}"));
        out.extend_from_slice(&tag);
    }
}

/// Opens the parts of one object: with the most likely data key first, then with the set's other keys (ADR 0023). The
/// tag tells which one is right, since the key's number is bound in.
pub struct ObjectOpener {
    key: ObjectKey,
    others: Vec<ObjectKey>,
}

impl fmt::Debug for ObjectOpener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ObjectOpener({} of {})", self.key.object, self.key.set)
    }
}

impl ObjectOpener {
    /// An opener for the object. Takes about a microsecond; need not be cached.
    pub fn new(key: &DataKey, key_id: u32, set: SetId, object: ObjectId) -> Self {
        Self { key: ObjectKey::new(key, key_id, set, object), others: Vec::new() }
    }

    /// Adds a key of the set, to be tried after the others.
    #[must_use]
    pub fn or(mut self, key: &DataKey, key_id: u32) -> Self {
        self.others.push(ObjectKey::new(key, key_id, self.key.set, self.key.object));
        self
    }

    /// Whether it has this data key.
    pub fn has(&self, key_id: u32) -> bool {
        self.key.key_id == key_id || self.others.iter().any(|other| other.key_id == key_id)
    }

    /// The object.
    pub fn object(&self) -> ObjectId {
        self.key.object
    }

    /// Its set.
    pub fn set(&self) -> SetId {
        self.key.set
    }

    /// The data key that is tried first.
    pub fn key_id(&self) -> u32 {
        self.key.key_id
    }

    /// Opens a part of an extent. A block is still compressed by `aad.codec`.
    ///
    /// # Errors
    /// [`SealError::NotAuthentic`] unless `sealed` was sealed as this part of this number with this `aad`.
    pub fn open_extent(
        &self,
        number: u32,
        part: ExtentPart,
        aad: ExtentAad,
        sealed: &[u8],
    ) -> Result<Vec<u8>, SealError> {
        let mut plain = Vec::with_capacity(sealed.len());
        self.open_extent_into(number, part, aad, sealed, &mut plain)?;
        Ok(plain)
    }

    /// Like [`ObjectOpener::open_extent`]; appends to `out`, which is as before after an error.
    ///
    /// # Errors
    /// As [`ObjectOpener::open_extent`].
    pub fn open_extent_into(
        &self,
        number: u32,
        part: ExtentPart,
        aad: ExtentAad,
        sealed: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        self.open(&SealedKind::Extent { number, part, aad }, sealed, out)
    }

    /// Opens a part that is not an extent.
    ///
    /// # Errors
    /// As [`ObjectOpener::open_extent`].
    pub fn open_part(&self, part: Part, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut plain = Vec::with_capacity(sealed.len());
        self.open(&SealedKind::Part(part), sealed, &mut plain)?;
        Ok(plain)
    }

    /// Opens a part that is not an extent with this one of its keys, which the object's header names.
    ///
    /// # Errors
    /// As [`ObjectOpener::open_extent`]; also if it does not have that key.
    pub fn open_part_by(&self, key_id: u32, part: Part, sealed: &[u8]) -> Result<Vec<u8>, SealError> {
        let all = || std::iter::once(&self.key).chain(&self.others);
        let key = all().find(|key| key.key_id == key_id).unwrap_or(&self.key);
        let mut plain = Vec::with_capacity(sealed.len());
        key.open(&SealedKind::Part(part), sealed, &mut plain)?;
        Ok(plain)
    }

    fn open(&self, kind: &SealedKind, sealed: &[u8], out: &mut Vec<u8>) -> Result<(), SealError> {
        let first = self.key.open(kind, sealed, out);
        // If no key opens the part, the error is the one of the first key.
        if first.is_ok() {
            return first;
        }
        self.others.iter().find_map(|key| key.open(kind, sealed, out).ok()).map_or(first, Ok)
    }
}

impl ObjectKey {
    /// Appends to `out`, which is as before after an error.
    fn open(&self, kind: &SealedKind, sealed: &[u8], out: &mut Vec<u8>) -> Result<(), SealError> {
        let Some((body, tag)) = sealed.split_last_chunk::<TAG_BYTES>() else {
            return Err(SealError::TooShort { found: sealed.len(), expected: TAG_BYTES });
        };
        let part = self.part(kind.clone(), body.len());
        let refuse = |part: SealedPart| SealError::NotAuthentic {
            found_bytes: sealed.len(),
            found_tag: hex(tag),
            expected: Box::new(part),
        };
        // A number outside of the space was never sealed: the caller read it from damaged data.
        let Some(numbers) = nonce_numbers(&part.part) else { return Err(refuse(part)) };
        let start = out.len();
        out.extend_from_slice(body);
        match self.cipher.open(nonce(numbers), &associated(&part, numbers), &mut out[start..], tag) {
            Ok(()) => Ok(()),
            Err(_) => {
                out.truncate(start);
                Err(refuse(part))
            }
        }
    }
}

#[cfg(test)]
mod tests;
