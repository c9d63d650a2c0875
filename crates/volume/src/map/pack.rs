//! Packs of pages and of leaves, as objects in the frame of [`crate::object`].
//!
//! The content of a page pack is sealed pages, each range-read and opened by itself. Its main part is the table:
//!
//! ```text
//!   "HFQ" version(1)  count  then per page, in the order in which they stand in the pack:
//!   volume (step from the one before)   page number (step from the one before)   bytes before sealing
//! ```
//! A pack of leaves has leaves of a root as content. Its table:
//!
//! ```text
//!   "HFQ" version(2)  count  then per leaf, in the order in which they stand in the pack:
//!   kind   [volume  first page that it covers  how many it covers]   where it lists pages   bytes before sealing
//! ```

use super::leaf::{LeafOf, LeafRef};
use super::{MapError, PAGE_BYTES_MAX, PAGE_NUMBER_MAX, Page, PageRef};
use crate::object::{OBJECT_HEADER_BYTES, ObjectHeader, ObjectKind};
use crate::segment::{SEGMENT_BYTES_MAX, seal_frame};
use crate::wire::{self, Reader, WireError};
use bytes::Bytes;
use holdfast_seal::{ObjectOpener, ObjectSealer, Part, TAG_BYTES};
use holdfast_types::limits::SEGMENT_BYTES_TARGET;
use holdfast_types::{ObjectId, VolumeId};
use std::fmt;

const TABLE_MAGIC: &[u8] = b"HFQ\x01";
/// Of a pack of leaves.
const LEAVES_MAGIC: &[u8] = b"HFQ\x02";
/// Kind and length take a byte each at least.
const LEAVES_ENTRY_BYTES_MIN: usize = 2;
/// Volume, number and length take a byte each at least.
const TABLE_ENTRY_BYTES_MIN: usize = 3;

const _: () = assert!(SEGMENT_BYTES_TARGET + PAGE_BYTES_MAX + TAG_BYTES < SEGMENT_BYTES_MAX);

/// Most bytes of a pack besides its sealed pages: header, tags, magic and count of the table, and a table line per
/// page.
const PACK_FRAME_BYTES_MAX: u64 = OBJECT_HEADER_BYTES as u64 + 2 * TAG_BYTES as u64 + 16;
/// See [`PACK_FRAME_BYTES_MAX`]: steps of volume and page number, length.
const TABLE_ENTRY_BYTES_MAX: u64 = 16;

/// Upper bound of the length of a pack with `pages` pages of `sealed_bytes` in all.
pub fn pack_bytes_max(pages: u64, sealed_bytes: u64) -> u64 {
    PACK_FRAME_BYTES_MAX + pages * TABLE_ENTRY_BYTES_MAX + sealed_bytes
}

/// One line of a page pack's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackEntry {
    /// Volume that the page maps.
    pub volume: VolumeId,
    /// Number of the page in the volume.
    pub page: u32,
    /// Place of the page.
    pub place: PageRef,
}

/// Packs pages of one checkpoint into one object.
pub struct PackBuilder {
    sealer: ObjectSealer,
    content: Vec<u8>,
    table: Vec<PackEntry>,
}

impl fmt::Debug for PackBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackBuilder({}, {} pages, {} bytes)", self.object(), self.table.len(), self.content.len())
    }
}

impl PackBuilder {
    /// An empty pack for the object that the sealer was made for.
    pub fn new(sealer: ObjectSealer) -> Self {
        Self { sealer, content: vec![0; OBJECT_HEADER_BYTES], table: Vec::new() }
    }

    /// Id of the object under construction.
    pub fn object(&self) -> ObjectId {
        self.sealer.object()
    }

    /// Seals a page and returns its place.
    ///
    /// # Panics
    /// R9: when the page is longer than [`PAGE_BYTES_MAX`] or the pack exceeds [`SEGMENT_BYTES_MAX`]: it could not be
    /// read back.
    pub fn push(&mut self, page: &Page) -> PageRef {
        let plain = page.encode();
        assert!(
            plain.len() <= PAGE_BYTES_MAX,
            "R9: page {} of {}: {} bytes",
            page.number(),
            page.volume(),
            plain.len()
        );
        assert!(self.content.len() + plain.len() + TAG_BYTES <= SEGMENT_BYTES_MAX, "R9: {:?} outgrows itself", self);
        let place = PageRef {
            object: self.object(),
            number: self.table.len() as u32,
            offset: self.content.len() as u32,
            sealed_len: (plain.len() + TAG_BYTES) as u32,
            raw_len: plain.len() as u32,
        };
        let (volume, page) = (page.volume(), page.number());
        let part = Part::Page { number: place.number, volume, page };
        self.sealer.seal_part_into(part, &plain, &mut self.content);
        self.table.push(PackEntry { volume, page, place });
        place
    }

    /// Bytes so far, without the table.
    pub fn bytes(&self) -> usize {
        self.content.len()
    }

    /// Pages so far.
    pub fn pages(&self) -> usize {
        self.table.len()
    }

    /// Where each of them will be, by number.
    pub fn places(&self) -> impl Iterator<Item = (u32, std::ops::Range<u64>)> + '_ {
        self.table.iter().map(|entry| (entry.place.number, entry.place.range()))
    }

    /// Whether the pack has reached [`SEGMENT_BYTES_TARGET`] and should be closed.
    pub fn is_full(&self) -> bool {
        self.content.len() >= SEGMENT_BYTES_TARGET
    }

    /// The whole object.
    pub fn finish(self) -> Bytes {
        let Self { mut sealer, mut content, table } = self;
        seal_frame(ObjectKind::Pages, &mut sealer, Part::Header, &encode_table(&table), &mut content);
        Bytes::from(content)
    }
}

/// Opens one page that was range-read from its pack.
///
/// # Errors
/// [`MapError`] unless the bytes were sealed as this page at this place.
pub fn open_page(
    opener: &ObjectOpener,
    place: &PageRef,
    volume: VolumeId,
    number: u32,
    sealed: &[u8],
) -> Result<Page, MapError> {
    let length = |what, found, expected| MapError::Length {
        object: opener.object(),
        number: place.number,
        what,
        found,
        expected,
    };
    if sealed.len() != place.sealed_len as usize {
        return Err(length("sealed bytes", sealed.len(), place.sealed_len as usize));
    }
    let plain = opener.open_part(Part::Page { number: place.number, volume, page: number }, sealed)?;
    if plain.len() != place.raw_len as usize {
        return Err(length("bytes", plain.len(), place.raw_len as usize));
    }
    let page = Page::decode(&plain)?;
    if (page.volume(), page.number()) != (volume, number) {
        let (found_volume, found_number) = (page.volume(), page.number());
        return Err(MapError::WrongPage { found_volume, found_number, volume, number });
    }
    Ok(page)
}

/// The table of a whole page pack, for recovery and offline checks.
///
/// # Errors
/// [`MapError`] where the object is not this page pack.
pub fn read_pack(opener: &ObjectOpener, pack: &[u8]) -> Result<Vec<PackEntry>, MapError> {
    let (header, main) = ObjectHeader::of_whole(ObjectKind::Pages, opener, pack)?;
    open_pack(opener, &header, main)
}

/// The table from its sealed bytes, which are at [`ObjectHeader::main_range`].
///
/// # Errors
/// As [`read_pack`].
pub fn open_pack(opener: &ObjectOpener, header: &ObjectHeader, sealed: &[u8]) -> Result<Vec<PackEntry>, MapError> {
    header.check(ObjectKind::Pages, opener)?;
    let object = header.object;
    let plain = opener.open_part_by(header.key_id, Part::Header, sealed)?;
    let table = decode_table(object, &plain).map_err(|error| MapError::Wire { what: "table of a page pack", error })?;
    let end = table.last().map_or(OBJECT_HEADER_BYTES as u64, |last| last.place.range().end);
    if end != header.main_offset {
        return Err(MapError::Pages { object, found: end, expected: header.main_offset });
    }
    Ok(table)
}

fn encode_table(table: &[PackEntry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(TABLE_MAGIC.len() + 4 + table.len() * 6);
    out.extend_from_slice(TABLE_MAGIC);
    wire::put(&mut out, table.len() as u64);
    let (mut volume, mut page) = (0, 0);
    for entry in table {
        wire::put_step(&mut out, volume, entry.volume.0.into());
        wire::put_step(&mut out, page, entry.page.into());
        wire::put(&mut out, entry.place.raw_len.into());
        (volume, page) = (entry.volume.0.into(), entry.page.into());
    }
    out
}

fn decode_table(object: ObjectId, plain: &[u8]) -> Result<Vec<PackEntry>, WireError> {
    let mut reader = Reader::new(plain);
    reader.magic("magic and version of the table", TABLE_MAGIC)?;
    let most = (SEGMENT_BYTES_MAX / TAG_BYTES) as u64;
    let count = reader.count("count of pages", TABLE_ENTRY_BYTES_MIN, most)?;
    let mut table = Vec::with_capacity(count);
    let (mut volume, mut page, mut offset) = (0, 0, OBJECT_HEADER_BYTES as u64);
    for number in 0..count {
        volume = reader.step("volume", volume, 0, u32::MAX.into())?;
        page = reader.step("page number", page, 0, PAGE_NUMBER_MAX.into())?;
        let at = reader.at();
        let raw_len = reader.number("bytes before sealing", 1, PAGE_BYTES_MAX as u64)?;
        let sealed_len = raw_len + TAG_BYTES as u64;
        let place = PageRef {
            object,
            number: number as u32,
            offset: offset as u32,
            sealed_len: sealed_len as u32,
            raw_len: raw_len as u32,
        };
        table.push(PackEntry { volume: VolumeId(volume as u32), page: page as u32, place });
        offset += sealed_len;
        if offset > SEGMENT_BYTES_MAX as u64 {
            let most = SEGMENT_BYTES_MAX as u64;
            return Err(WireError::Range { field: "end of the page", at, found: offset, least: 0, most });
        }
    }
    reader.end()?;
    Ok(table)
}

/// Packs leaves of one root into one object.
pub(super) struct LeafPackBuilder {
    sealer: ObjectSealer,
    content: Vec<u8>,
    table: Vec<(LeafOf, PageRef)>,
}

impl LeafPackBuilder {
    /// An empty pack for the object that the sealer was made for.
    pub(super) fn new(sealer: ObjectSealer) -> Self {
        Self { sealer, content: vec![0; OBJECT_HEADER_BYTES], table: Vec::new() }
    }

    pub(super) fn object(&self) -> ObjectId {
        self.sealer.object()
    }

    /// Seals a leaf's bytes and returns their place.
    ///
    /// # Panics
    /// R9: when the leaf is longer than [`PAGE_BYTES_MAX`] or the pack exceeds [`SEGMENT_BYTES_MAX`]: it could not be
    /// read back.
    pub(super) fn push(&mut self, of: LeafOf, plain: &[u8]) -> PageRef {
        assert!(plain.len() <= PAGE_BYTES_MAX, "R9: leaf {of:?}: {} bytes", plain.len());
        let end = self.content.len() + plain.len() + TAG_BYTES;
        assert!(end <= SEGMENT_BYTES_MAX, "R9: a pack of leaves has {end} bytes, expected at most {SEGMENT_BYTES_MAX}");
        let at = PageRef {
            object: self.object(),
            number: self.table.len() as u32,
            offset: self.content.len() as u32,
            sealed_len: (plain.len() + TAG_BYTES) as u32,
            raw_len: plain.len() as u32,
        };
        self.sealer.seal_part_into(of.part(at.number), plain, &mut self.content);
        self.table.push((of, at));
        at
    }

    /// Where each of them will be, by number.
    pub(super) fn places(&self) -> impl Iterator<Item = (u32, std::ops::Range<u64>)> + '_ {
        self.table.iter().map(|(_, at)| (at.number, at.range()))
    }

    /// Bytes so far, without the table.
    pub(super) fn bytes(&self) -> usize {
        self.content.len()
    }

    /// The whole object.
    pub(super) fn finish(self) -> Bytes {
        let Self { mut sealer, mut content, table } = self;
        let mut out = LEAVES_MAGIC.to_vec();
        wire::put(&mut out, table.len() as u64);
        for (of, at) in table {
            out.push(of.kind());
            if let LeafOf::Pages { volume, first, width } = of {
                [volume.0, first, width].into_iter().for_each(|number| wire::put(&mut out, number.into()));
            }
            wire::put(&mut out, at.raw_len.into());
        }
        seal_frame(ObjectKind::Pages, &mut sealer, Part::Header, &out, &mut content);
        Bytes::from(content)
    }
}

/// Table of a pack, of either kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackTable {
    /// Pages.
    Pages(Vec<PackEntry>),
    /// Leaves of a root.
    Leaves(Vec<LeafRef>),
}

impl PackTable {
    /// Where its parts are, by number.
    pub fn places(&self) -> Vec<(u32, std::ops::Range<u64>)> {
        match self {
            PackTable::Pages(pages) => pages.iter().map(|entry| (entry.place.number, entry.place.range())).collect(),
            PackTable::Leaves(leaves) => leaves.iter().map(|leaf| (leaf.at.number, leaf.at.range())).collect(),
        }
    }
}

/// The table of a whole pack of either kind.
///
/// # Errors
/// [`MapError`] where the object is not this pack.
pub fn read_any_pack(opener: &ObjectOpener, pack: &[u8]) -> Result<PackTable, MapError> {
    let (header, main) = ObjectHeader::of_whole(ObjectKind::Pages, opener, pack)?;
    let plain = opener.open_part_by(header.key_id, Part::Header, main)?;
    if !plain.starts_with(LEAVES_MAGIC) {
        return open_pack(opener, &header, main).map(PackTable::Pages);
    }
    let wire = |error| MapError::Wire { what: "table of a pack of leaves", error };
    let leaves = decode_leaves(header.object, header.key_id, &plain).map_err(wire)?;
    let end = leaves.last().map_or(OBJECT_HEADER_BYTES as u64, |last| last.at.range().end);
    if end != header.main_offset {
        return Err(MapError::Pages { object: header.object, found: end, expected: header.main_offset });
    }
    Ok(PackTable::Leaves(leaves))
}

fn decode_leaves(object: ObjectId, key_id: u32, plain: &[u8]) -> Result<Vec<LeafRef>, WireError> {
    let mut reader = Reader::new(plain);
    reader.magic("magic and version of the table", LEAVES_MAGIC)?;
    let most = (SEGMENT_BYTES_MAX / TAG_BYTES) as u64;
    let count = reader.count("count of leaves", LEAVES_ENTRY_BYTES_MIN, most)?;
    let mut table = Vec::with_capacity(count);
    let mut offset = OBJECT_HEADER_BYTES as u64;
    for number in 0..count {
        let at = reader.at();
        let of = match reader.u8("kind of a leaf")? {
            1 => {
                let volume = VolumeId(reader.number("volume", 0, u32::MAX.into())? as u32);
                let first = reader.number("first page", 0, PAGE_NUMBER_MAX.into())? as u32;
                let width = reader.number("pages of a leaf", 1, u64::from(PAGE_NUMBER_MAX) + 1)? as u32;
                LeafOf::Pages { volume, first, width }
            }
            2 => LeafOf::Segments,
            3 => LeafOf::Packs,
            found => {
                let field = "kind of a leaf";
                return Err(WireError::Range { field, at, found: found.into(), least: 1, most: 3 });
            }
        };
        let raw_len = reader.number("bytes before sealing", 1, PAGE_BYTES_MAX as u64)?;
        let sealed_len = raw_len + TAG_BYTES as u64;
        let place = PageRef {
            object,
            number: number as u32,
            offset: offset as u32,
            sealed_len: sealed_len as u32,
            raw_len: raw_len as u32,
        };
        table.push(LeafRef { at: place, of, key_id });
        offset += sealed_len;
        if offset > SEGMENT_BYTES_MAX as u64 {
            let most = SEGMENT_BYTES_MAX as u64;
            return Err(WireError::Range { field: "end of the leaf", at, found: offset, least: 0, most });
        }
    }
    reader.end()?;
    Ok(table)
}
