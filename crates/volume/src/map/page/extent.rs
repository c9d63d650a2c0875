//! One extent of a page, in memory and encoded; the layout is in `page`.

use crate::map::PAGE_SECTORS;
use crate::segment::blocks::Blocks;
use crate::segment::{Codec, EXTENT_SECTORS_MAX, ExtentPlace};
use crate::wire::{self, Reader, WireError};
use holdfast_seal::EXTENT_NUMBER_MAX;
use holdfast_types::SECTOR_BYTES;

const SAME_OBJECT: u8 = 1 << 2;
const NEXT: u8 = 1 << 3;
const SAME_EXTENT: u8 = 1 << 4;
const ADJACENT: u8 = 1 << 5;
const WHOLE: u8 = 1 << 6;

/// Flags and sectors.
pub(super) const EXTENT_WIRE_BYTES_MIN: usize = 2;
/// Flags 1, gap 3, sectors 2, object 3, number 5, offset 5, length 3, raw sectors 2, skip 2.
pub(super) const EXTENT_WIRE_BYTES_MAX: usize = 26;

/// An extent as the page keeps it: the key is its first sector in the page, the object a place in the page's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) object: u32,
    pub(super) number: u32,
    pub(super) offset: u32,
    pub(super) sealed_len: u32,
    pub(super) raw_sectors: u16,
    pub(super) sectors: u16,
    pub(super) skip: u16,
    pub(super) codec: Codec,
}

const _: () = assert!(size_of::<Stored>() <= 24);
const _: () = assert!(EXTENT_SECTORS_MAX <= u16::MAX as u64);

impl Stored {
    pub(super) fn place(&self) -> ExtentPlace {
        ExtentPlace {
            number: self.number,
            offset: self.offset,
            sealed_len: self.sealed_len,
            raw_len: u32::from(self.raw_sectors) * SECTOR_BYTES as u32,
            codec: self.codec,
        }
    }

    /// The part of `count` sectors from sector `from` on. Both lie within the extent.
    pub(super) fn part(&self, from: u32, count: u32) -> Self {
        Self { skip: self.skip + from as u16, sectors: count as u16, ..*self }
    }

    fn is_whole(&self) -> bool {
        self.skip == 0 && self.sectors == self.raw_sectors
    }

    fn same_sealed_extent(&self, other: &Stored) -> bool {
        self.object == other.object && self.place() == other.place()
    }
}

pub(super) fn put_extent(out: &mut Vec<u8>, stored: &Stored, gap: u32, last: Option<&Stored>) {
    let mut flags = stored.codec.number();
    let same_extent = last.is_some_and(|last| last.same_sealed_extent(stored));
    let next = last.is_some_and(|last| {
        last.object == stored.object
            && last.number.checked_add(1) == Some(stored.number)
            && last.offset.checked_add(last.sealed_len) == Some(stored.offset)
    });
    let same_object = last.is_some_and(|last| last.object == stored.object);
    flags |= if same_extent {
        SAME_EXTENT
    } else if next {
        NEXT
    } else if same_object {
        SAME_OBJECT
    } else {
        0
    };
    if gap == 0 {
        flags |= ADJACENT;
    }
    if stored.is_whole() {
        flags |= WHOLE;
    }
    out.push(flags);
    if gap != 0 {
        wire::put(out, gap.into());
    }
    wire::put(out, stored.sectors.into());
    if flags & (SAME_OBJECT | NEXT | SAME_EXTENT) == 0 {
        wire::put(out, stored.object.into());
    }
    if flags & (NEXT | SAME_EXTENT) == 0 {
        wire::put_step(out, last.map_or(0, |last| last.number.into()), stored.number.into());
        wire::put(out, stored.offset.into());
    }
    if !same_extent {
        wire::put(out, u64::from(stored.sealed_len) - stored.place().blocks().overhead() as u64);
    }
    if flags & (WHOLE | SAME_EXTENT) == 0 {
        wire::put(out, stored.raw_sectors.into());
    }
    if flags & WHOLE == 0 {
        wire::put(out, stored.skip.into());
    }
}

/// Number and offset of the extent that follows `last` in its segment; `None` if there can be none.
fn after(last: &Stored) -> Option<(u32, u32)> {
    let number = last.number.checked_add(1).filter(|number| *number <= EXTENT_NUMBER_MAX)?;
    Some((number, last.offset.checked_add(last.sealed_len)?))
}

/// The length after sealing, and the sectors before compression. `same`: the extent that the flags refer to.
fn lengths(
    reader: &mut Reader<'_>,
    flags: u8,
    codec: Codec,
    same: Option<&Stored>,
    sectors: u64,
) -> Result<(u32, u64), WireError> {
    if let Some(last) = same.filter(|_| flags & SAME_EXTENT != 0) {
        return Ok((last.sealed_len, u64::from(last.raw_sectors)));
    }
    let most = EXTENT_SECTORS_MAX * SECTOR_BYTES;
    let plain_len = reader.number("bytes before sealing", 1, most)? as usize;
    let whole = flags & WHOLE != 0;
    let raw_sectors = if whole { sectors } else { reader.number("raw sectors", sectors, EXTENT_SECTORS_MAX)? };
    let blocks = Blocks::new((raw_sectors * SECTOR_BYTES) as usize, codec);
    Ok(((plain_len + blocks.overhead()) as u32, raw_sectors))
}

/// One extent. `page_lba` is the page's first sector: an extent is sealed for a range that begins on the volume.
pub(super) fn read_extent(
    reader: &mut Reader<'_>,
    end: u32,
    last: Option<&Stored>,
    objects: usize,
    page_lba: u64,
) -> Result<(u32, Stored), WireError> {
    let at = reader.at();
    let flags = reader.u8("flags")?;
    let range = |found: u64, least, most| WireError::Range { field: "flags", at, found, least, most };
    if flags & 0x80 != 0 {
        return Err(range(flags.into(), 0, 0x7f));
    }
    let codec = Codec::from_number(flags & 3).ok_or(range((flags & 3).into(), 0, 2))?;
    let refers = flags & (SAME_OBJECT | NEXT | SAME_EXTENT);
    // At most one of the three flags; each refers to the extent before.
    if refers.count_ones() > 1 || (refers != 0 && last.is_none()) {
        return Err(range(flags.into(), 0, (ADJACENT | WHOLE | 3).into()));
    }
    let room = PAGE_SECTORS - u64::from(end);
    let gap = if flags & ADJACENT != 0 { 0 } else { reader.number("gap", 1, room)? };
    let sectors = reader.number("sectors", 1, EXTENT_SECTORS_MAX.min(room - gap))?;
    let start = end + gap as u32;
    let same = last.filter(|_| refers != 0);
    let object = match same {
        Some(last) => last.object,
        None => match objects.checked_sub(1) {
            Some(most) => reader.number("object", 0, most as u64)? as u32,
            None => return Err(WireError::Range { field: "object", at, found: 0, least: 1, most: 0 }),
        },
    };
    let (number, offset) = match same.filter(|_| flags & (NEXT | SAME_EXTENT) != 0) {
        Some(last) if flags & NEXT != 0 => after(last).ok_or(range(flags.into(), 0, (flags & !NEXT).into()))?,
        Some(last) => (last.number, last.offset),
        None => {
            let before = last.map_or(0, |last| last.number.into());
            let number = reader.step("number of the extent", before, 0, EXTENT_NUMBER_MAX.into())?;
            (number as u32, reader.number("offset", 0, u32::MAX.into())? as u32)
        }
    };
    let (sealed_len, raw_sectors) = lengths(reader, flags, codec, same, sectors)?;
    let too_many = WireError::Range { field: "sectors", at, found: sectors, least: 1, most: raw_sectors };
    let spare = raw_sectors.checked_sub(sectors).ok_or(too_many)?;
    let place = page_lba + u64::from(start);
    let skip = if flags & WHOLE != 0 { 0 } else { reader.number("skip", 0, spare.min(place))? };
    let stored = Stored {
        object,
        number,
        offset,
        sealed_len,
        raw_sectors: raw_sectors as u16,
        sectors: sectors as u16,
        skip: skip as u16,
        codec,
    };
    Ok((start, stored))
}
