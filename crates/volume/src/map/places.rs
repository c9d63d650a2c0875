//! Where pages are, and lists of such places as roots and leaves encode them.

use super::{PAGE_BYTES_MAX, PAGE_NUMBER_MAX, read_object};
use crate::wire::{self, Reader, WireError};
use holdfast_seal::{PAGE_NUMBER_MAX as PACK_NUMBER_MAX, TAG_BYTES};
use holdfast_types::ObjectId;

/// Gap and length of a page directly behind the one before.
const PAGE_WIRE_BYTES_MIN: usize = 2;

/// Place of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageRef {
    /// The page pack.
    pub object: ObjectId,
    /// The page's number in the pack: its nonce.
    pub number: u32,
    /// Where its sealed bytes begin in the pack, in bytes.
    pub offset: u32,
    /// How many sealed bytes there are.
    pub sealed_len: u32,
    /// Length when opened, in bytes.
    pub raw_len: u32,
}

impl PageRef {
    /// The bytes of the pack to read.
    pub fn range(&self) -> std::ops::Range<u64> {
        u64::from(self.offset)..u64::from(self.offset) + u64::from(self.sealed_len)
    }
}

/// Encodes the pages of a volume, or of a range of it that begins at page `first`. `packs` is sorted and made from
/// these pages.
///
/// # Panics
/// MAP-M3: when a page is in none of the packs: the root would name another one.
pub(super) fn put_pages(
    out: &mut Vec<u8>,
    packs: &[ObjectId],
    first: u32,
    count: usize,
    pages: impl Iterator<Item = (u32, PageRef)>,
) {
    wire::put(out, count as u64);
    let mut next_number = first;
    let mut last: Option<PageRef> = None;
    let mut pack_before = 0;
    for (number, page) in pages {
        let follows = last.is_some_and(|last| {
            last.object == page.object
                && last.number.checked_add(1) == Some(page.number)
                && last.offset.checked_add(last.sealed_len) == Some(page.offset)
        });
        wire::put(out, u64::from(number - next_number) << 1 | u64::from(follows));
        if !follows {
            let Ok(pack) = packs.binary_search(&page.object) else {
                panic!("MAP-M3: page {number} is at {page:?}, expected it in one of the {} packs", packs.len())
            };
            let pack = pack as u64;
            wire::put_step(out, pack_before, pack);
            wire::put(out, page.number.into());
            wire::put(out, page.offset.into());
            pack_before = pack;
        }
        wire::put(out, page.raw_len.into());
        next_number = number + 1;
        last = Some(page);
    }
}

/// Decodes the output of [`put_pages`], pages from `first` to `end` (inclusive), and passes each on, in order.
pub(super) fn read_pages(
    reader: &mut Reader<'_>,
    packs: &[ObjectId],
    first: u32,
    end: u32,
    mut found: impl FnMut(u32, PageRef),
) -> Result<(), WireError> {
    let all = u64::from(end) + 1 - u64::from(first.min(end));
    let count = reader.count("count of pages", PAGE_WIRE_BYTES_MIN, all)?;
    let mut next_number = u64::from(first);
    let mut last: Option<PageRef> = None;
    let mut pack = 0;
    for place in 0..count {
        let at = reader.at();
        let field = "pages left out";
        let head = reader.number(field, 0, 2 * u64::from(PAGE_NUMBER_MAX) + 1)?;
        let number = next_number + (head >> 1);
        if number > end.into() || (place == 0 && head & 1 == 1) {
            let most = 2 * u64::from(end).saturating_sub(next_number);
            return Err(WireError::Range { field, at, found: head, least: 0, most });
        }
        let (pack_number, offset) = match last.filter(|_| head & 1 == 1) {
            Some(last) => (u64::from(last.number) + 1, u64::from(last.offset) + u64::from(last.sealed_len)),
            None => {
                let Some(most) = packs.len().checked_sub(1) else {
                    return Err(WireError::Range { field: "page pack", at, found: 0, least: 1, most: 0 });
                };
                pack = reader.step("page pack", pack, 0, most as u64)?;
                let number = reader.number("number in the pack", 0, PACK_NUMBER_MAX.into())?;
                (number, reader.number("offset in the pack", 0, u32::MAX.into())?)
            }
        };
        let raw_len = reader.number("bytes before sealing", 1, PAGE_BYTES_MAX as u64)?;
        let sealed_len = raw_len + TAG_BYTES as u64;
        if pack_number > PACK_NUMBER_MAX.into() {
            let most = PACK_NUMBER_MAX.into();
            return Err(WireError::Range { field: "number in the pack", at, found: pack_number, least: 0, most });
        }
        if offset + sealed_len > u32::MAX.into() {
            let most = u64::from(u32::MAX) - sealed_len;
            return Err(WireError::Range { field: "offset in the pack", at, found: offset, least: 0, most });
        }
        let page = PageRef {
            object: packs[pack as usize],
            number: pack_number as u32,
            offset: offset as u32,
            sealed_len: sealed_len as u32,
            raw_len: raw_len as u32,
        };
        found(number as u32, page);
        next_number = number + 1;
        last = Some(page);
    }
    Ok(())
}

/// The next id of a sorted list without duplicates.
pub(super) fn read_next_object(reader: &mut Reader<'_>, before: ObjectId, place: usize) -> Result<ObjectId, WireError> {
    let at = reader.at();
    let object = read_object(reader, before)?;
    if place > 0 && object <= before {
        let found = place as u64;
        return Err(WireError::Range {
            field: "place in a sorted list of objects",
            at,
            found,
            least: 0,
            most: found - 1,
        });
    }
    Ok(object)
}
