//! Objects of a store under a key of the targets' own: an engine cannot make seals, but a gateway with a bug can, and
//! whoever has the key.

use holdfast_seal::{DataKey, ObjectOpener, ObjectSealer, Part};
use holdfast_types::{GroupId, MemberId, ObjectId, SetId, Term};
use holdfast_volume::object::{OBJECT_HEADER_BYTES, ObjectHeader, ObjectKind};

pub(super) const SET: SetId = GroupId(5);
pub(super) const OBJECT: ObjectId = ObjectId { term: Term(7), member: MemberId(2), boot: 3, random: 9 };
pub(super) const KEY_ID: u32 = 1;

fn key() -> DataKey {
    DataKey::from_bytes([1; 32])
}

pub(super) fn opener() -> ObjectOpener {
    ObjectOpener::new(&key(), KEY_ID, SET, OBJECT)
}

pub(super) fn sealer() -> ObjectSealer {
    sealer_of(OBJECT)
}

pub(super) fn sealer_of(object: ObjectId) -> ObjectSealer {
    ObjectSealer::new(&key(), KEY_ID, SET, object)
}

/// A whole object: its header, `content`, and `plain` sealed as its main part.
pub(super) fn framed(kind: ObjectKind, content: &[u8], part: Part, plain: &[u8]) -> Vec<u8> {
    let main = sealer().seal_part(part, plain);
    let main_offset = (OBJECT_HEADER_BYTES + content.len()) as u64;
    let bytes = main_offset + main.len() as u64;
    let header = ObjectHeader { kind, key_id: KEY_ID, set: SET, object: OBJECT, bytes, main_offset };
    [&header.encode()[..], content, &main].concat()
}

/// The input that [`parted`] takes, of a whole object.
pub(super) fn joined(object: &[u8], part: Part) -> Vec<u8> {
    let Ok(header) = ObjectHeader::decode(object) else { return Vec::new() };
    let (before, main) = object.split_at(header.main_offset as usize);
    let content = &before[OBJECT_HEADER_BYTES..];
    let plain = opener().open_part(part, main).unwrap_or_default();
    let len = u16::try_from(content.len()).unwrap_or(u16::MAX);
    [&len.to_le_bytes()[..], content, &plain].concat()
}

/// Content and main part of an object: the length of the first as two bytes, then both.
pub(super) fn parted(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = data.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))
}
