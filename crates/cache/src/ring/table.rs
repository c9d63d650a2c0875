//! What is in the ring's file, in bytes. Pure.
//!
//! ```text
//!   file     region, region, …          all of the same length
//!   region   table, record, record, …   the table has a fixed place; it is written after the records
//!   table    head, name, name, …        head: magic, round, number of names, CRC32C of all of it
//!   name     key, offset, length        where a record is
//!   record   key, sealed bytes          as they came from the store: they have tags of their own (R9)
//! ```
//! Integers are little-endian. A table of another life of the region may name what is no longer there: so a record has
//! its key, and a reader compares it.

use crate::key::BlockKey;
use holdfast_types::{MemberId, ObjectId, Term, limits};

/// Length of a key in bytes.
pub(crate) const KEY_BYTES: usize = 48;
/// Length of a table's head in bytes.
const HEAD_BYTES: usize = 32;
const NAME_BYTES: usize = KEY_BYTES + 8;
const MAGIC: &[u8; 8] = b"HFCRING1";
// Where the head has the round, the number of names, and the CRC.
const ROUND_AT: usize = 8;
const COUNT_AT: usize = 16;
const CRC_AT: usize = 20;

/// A page of memory in bytes. Regions and tables take whole ones. A region has room for one record in each, so many
/// small records end a region early. This bounds the index in memory by the size of the disk.
pub(crate) const UNIT_BYTES: usize = 4096;
/// A smaller region would have room for few extents.
const REGION_BYTES_MIN: u64 = 1 << 20;
/// A larger one would evict much at once, and its index would be long to drop.
const REGION_BYTES_MAX: u64 = 16 << 20;
/// With fewer regions, each is too large a part of the disk.
const REGIONS_MIN: u64 = 16;
/// Rounds are counted from 1. No disk lives long enough for this one.
const ROUND_MAX: u64 = 1 << 62;

const _: () = assert!(REGION_BYTES_MIN as usize >= 4 * limits::EXTENT_BYTES_MAX);

/// Sizes of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of a region.
    pub(crate) region_bytes: u32,
    /// Number of regions.
    pub(crate) regions: u32,
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Number of the region.
    pub(crate) region: u32,
    /// Where the record begins in it, in bytes.
    pub(crate) offset: u32,
    /// Length of the sealed bytes.
    pub(crate) len: u32,
}

/// The records of a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table {
    /// Number of the region.
    pub(crate) region: u32,
    /// Counts the regions in the order in which they were filled.
    pub(crate) round: u64,
    /// The records, in the order of their places.
    pub(crate) names: Vec<(BlockKey, Place)>,
}

/// Bytes of a record with `len` sealed bytes.
pub(crate) fn record_bytes(len: usize) -> usize {
    KEY_BYTES + len
}

/// What a record costs of the disk, in bytes. A small one takes a place in the table. Counted by its own length,
/// thousands of them could be written again for one extent (CACHE-C7).
pub(crate) fn room(len: usize) -> u64 {
    record_bytes(len).max(UNIT_BYTES) as u64
}

impl Shape {
    /// Regions in a file of at most `bytes`. `None` if that is too small to be of use.
    pub(crate) fn of(bytes: u64) -> Option<Self> {
        let region = (bytes / 64).clamp(REGION_BYTES_MIN, REGION_BYTES_MAX);
        let region = region - region % UNIT_BYTES as u64;
        let regions = bytes / region;
        // As 32 bits: 64 PiB.
        let shape = Self { region_bytes: region as u32, regions: u32::try_from(regions).unwrap_or(u32::MAX) };
        (regions >= REGIONS_MIN).then_some(shape)
    }

    /// The smallest disk in bytes.
    pub(crate) fn bytes_min() -> u64 {
        REGIONS_MIN * REGION_BYTES_MIN
    }

    /// Length of the file.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.regions) * u64::from(self.region_bytes)
    }

    /// Maximum number of records of a region.
    pub(crate) fn records_max(self) -> usize {
        self.region_bytes as usize / UNIT_BYTES
    }

    /// Where the first record of a region begins in it, in bytes.
    pub(crate) fn records_at(self) -> usize {
        (HEAD_BYTES + self.records_max() * NAME_BYTES).next_multiple_of(UNIT_BYTES)
    }

    /// Whether a record with `len` sealed bytes fits into an empty region.
    pub(crate) fn holds(self, len: usize) -> bool {
        self.records_at() + record_bytes(len) <= self.region_bytes as usize
    }

    /// Where a region begins in the file, in bytes.
    pub(crate) fn begin_of(self, region: u32) -> u64 {
        u64::from(region) * u64::from(self.region_bytes)
    }

    /// Where a record begins in the file, in bytes.
    pub(crate) fn byte_of(self, place: Place) -> u64 {
        self.begin_of(place.region) + u64::from(place.offset)
    }

    /// Whether a record could be there.
    fn has(self, place: Place) -> bool {
        let end = u64::from(place.offset) + record_bytes(place.len as usize) as u64;
        place.offset as usize >= self.records_at() && end <= u64::from(self.region_bytes)
    }
}

/// A key as bytes.
pub(crate) fn key_bytes(key: &BlockKey) -> [u8; KEY_BYTES] {
    let mut text = [0; KEY_BYTES];
    text[..8].copy_from_slice(&key.object.term.0.to_le_bytes());
    text[8..16].copy_from_slice(&key.object.member.0.to_le_bytes());
    text[16..24].copy_from_slice(&key.object.boot.to_le_bytes());
    text[24..40].copy_from_slice(&key.object.random.to_le_bytes());
    text[40..44].copy_from_slice(&key.number.to_le_bytes());
    text[44..].copy_from_slice(&key.block.to_le_bytes());
    text
}

/// The `N` bytes at `at`.
fn array<const N: usize>(text: &[u8], at: usize) -> Option<[u8; N]> {
    text.get(at..)?.first_chunk::<N>().copied()
}

fn key_at(text: &[u8], at: usize) -> Option<BlockKey> {
    let long = |offset| array(text, at + offset).map(u64::from_le_bytes);
    let word = |offset| array(text, at + offset).map(u32::from_le_bytes);
    let (term, member, boot) = (Term(long(0)?), MemberId(long(8)?), long(16)?);
    let random = u128::from_le_bytes(array(text, at + 24)?);
    Some(BlockKey { object: ObjectId { term, member, boot, random }, number: word(40)?, block: word(44)? })
}

/// CRC32C of a table, but for the CRC itself.
fn sum(text: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&text[..CRC_AT]), &text[CRC_AT + 4..])
}

/// A table as bytes, filled up to whole units.
pub(crate) fn encode(round: u64, names: &[(BlockKey, Place)]) -> Vec<u8> {
    let bytes = HEAD_BYTES + names.len() * NAME_BYTES;
    let mut text = Vec::with_capacity(bytes.next_multiple_of(UNIT_BYTES));
    text.extend_from_slice(MAGIC);
    text.extend_from_slice(&round.to_le_bytes());
    text.extend_from_slice(&(names.len() as u32).to_le_bytes());
    text.resize(HEAD_BYTES, 0);
    for (key, place) in names {
        text.extend_from_slice(&key_bytes(key));
        text.extend_from_slice(&place.offset.to_le_bytes());
        text.extend_from_slice(&place.len.to_le_bytes());
    }
    let sum = sum(&text);
    text[CRC_AT..CRC_AT + 4].copy_from_slice(&sum.to_le_bytes());
    text.resize(bytes.next_multiple_of(UNIT_BYTES), 0);
    text
}

/// Length of the table that begins with `head`. `None` if there is none.
pub(crate) fn bytes_of(shape: Shape, head: &[u8]) -> Option<usize> {
    let count = u32::from_le_bytes(array(head, COUNT_AT)?) as usize;
    (head.starts_with(MAGIC) && count <= shape.records_max()).then_some(HEAD_BYTES + count * NAME_BYTES)
}

/// The round of the table that begins with `head`. It may be damaged: [`decode`] tells.
pub(crate) fn round_of(head: &[u8]) -> Option<u64> {
    array(head, ROUND_AT).map(u64::from_le_bytes)
}

/// The table of a region. `None` if there is none, or a damaged one.
pub(crate) fn decode(shape: Shape, region: u32, text: &[u8]) -> Option<Table> {
    let text = text.get(..bytes_of(shape, text)?)?;
    let (round, found) = (round_of(text)?, u32::from_le_bytes(array(text, CRC_AT)?));
    if sum(text) != found || !(1..ROUND_MAX).contains(&round) {
        return None;
    }
    let name = |at: usize| {
        let word = |offset| array(text, at + offset).map(u32::from_le_bytes);
        let place = Place { region, offset: word(KEY_BYTES)?, len: word(KEY_BYTES + 4)? };
        shape.has(place).then_some((key_at(text, at)?, place))
    };
    let names: Option<Vec<_>> = (HEAD_BYTES..text.len()).step_by(NAME_BYTES).map(name).collect();
    Some(Table { region, round, names: names? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape { region_bytes: 64 << 10, regions: 4 };

    fn key(number: u32) -> BlockKey {
        let object = ObjectId { term: Term(1), member: MemberId(2), boot: 3, random: u128::MAX - 5 };
        BlockKey { object, number, block: u32::MAX - 7 }
    }

    fn names() -> Vec<(BlockKey, Place)> {
        let first = SHAPE.records_at() as u32;
        (0..5).map(|n| (key(n), Place { region: 3, offset: first + 1000 * n, len: 950 })).collect()
    }

    #[test]
    fn a_table_round_trips_and_each_bit_of_it_counts() {
        for count in [0, 1, 5] {
            let names = names()[..count].to_vec();
            let text = encode(7, &names);
            assert_eq!(text.len(), UNIT_BYTES);
            assert_eq!(decode(SHAPE, 3, &text), Some(Table { region: 3, round: 7, names }));
            let used = HEAD_BYTES + count * NAME_BYTES;
            for bit in 0..used * 8 {
                let mut spoilt = text.clone();
                spoilt[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(SHAPE, 3, &spoilt), None, "bit {bit}");
            }
            for len in 0..used {
                assert_eq!(decode(SHAPE, 3, &text[..len]), None, "cut to {len}");
            }
        }
        assert_eq!(decode(SHAPE, 3, &[0; UNIT_BYTES]), None);
        assert_eq!(decode(SHAPE, 3, &[]), None);
    }

    #[test]
    fn a_place_outside_of_the_records_is_refused() {
        let place = |offset, len| vec![(key(1), Place { region: 0, offset, len })];
        let (begin, end) = (SHAPE.records_at() as u32, SHAPE.region_bytes);
        let most = end - begin - KEY_BYTES as u32;
        assert!(decode(SHAPE, 0, &encode(1, &place(begin, most))).is_some());
        for (offset, len) in [(begin - 1, 10), (begin, most + 1), (end, 0), (u32::MAX, u32::MAX), (begin, u32::MAX)] {
            assert_eq!(decode(SHAPE, 0, &encode(1, &place(offset, len))), None, "{offset}, {len}");
        }
        for round in [0, ROUND_MAX, u64::MAX] {
            assert_eq!(decode(SHAPE, 0, &encode(round, &place(begin, 1))), None, "round {round}");
        }
    }

    #[test]
    fn a_file_stays_within_its_bytes_and_a_full_table_before_the_records() {
        for bytes in [Shape::bytes_min(), 64 << 20, (1 << 30) + 12345, 20 << 30, 10 << 40] {
            let shape = Shape::of(bytes).expect("large enough");
            assert!(shape.bytes() <= bytes && shape.bytes() > bytes - bytes / 16, "{bytes}: {shape:?}");
            assert_eq!(shape.region_bytes as usize % UNIT_BYTES, 0);
            assert!(HEAD_BYTES + shape.records_max() * NAME_BYTES <= shape.records_at());
            assert!(shape.records_at() < shape.region_bytes as usize / 32, "{shape:?}");
            assert!(shape.holds(limits::EXTENT_BYTES_MAX));
        }
        assert_eq!(Shape::of(Shape::bytes_min() - 1), None);
        assert_eq!(Shape::of(0), None);
    }
}
