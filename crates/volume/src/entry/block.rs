//! The block of a write: its data, sealed or in clear, and what is needed to check it.

use super::error::{EntryError, check_crc, check_zero, header_at, part_at, u16_at, u32_at};
use super::layout::{BLOCK_FIXED_BYTES, BLOCK_MAGIC, UNIT_BYTES, block_bytes, block_head_bytes};
use bytes::{BufMut, Bytes, BytesMut};
use holdfast_seal::{EntryKey, TAG_BYTES};
use holdfast_types::{Epoch, Lba, SECTOR_BYTES, Sectors, SetId, VolumeId, WriteSeq};
use std::ops::Range;

/// What a block belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockPlace {
    pub set: SetId,
    pub epoch: Epoch,
    pub seq: WriteSeq,
    pub volume: VolumeId,
    pub lba: Lba,
    pub sectors: Sectors,
    /// Where the block begins in its entry.
    pub at: usize,
}

impl BlockPlace {
    fn data_bytes(&self) -> usize {
        self.sectors.0 as usize * SECTOR_BYTES as usize
    }

    /// Each unit is bound to this; its nonce adds the block's offset and the unit's number (ENTRY-E5).
    fn associated(&self) -> [u8; 44] {
        let mut out = [0; 44];
        out[..8].copy_from_slice(&self.set.0.to_le_bytes());
        out[8..16].copy_from_slice(&self.epoch.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.seq.0.to_le_bytes());
        out[24..28].copy_from_slice(&self.volume.0.to_le_bytes());
        out[28..36].copy_from_slice(&self.lba.0.to_le_bytes());
        out[36..].copy_from_slice(&self.sectors.0.to_le_bytes());
        out
    }

    /// What a block in clear has instead of its first tag.
    fn in_clear(&self) -> [u8; TAG_BYTES] {
        let mut out = [0; TAG_BYTES];
        out[..4].copy_from_slice(&self.volume.0.to_le_bytes());
        out[4..12].copy_from_slice(&self.lba.0.to_le_bytes());
        out[12..].copy_from_slice(&(self.sectors.0 as u32).to_le_bytes());
        out
    }

    pub fn misplaced(&self) -> EntryError {
        EntryError::Misplaced { at: self.at, volume: self.volume, lba: self.lba, sectors: self.sectors }
    }
}

/// Appends the block of a write, which begins at the end of `out`. With a key the data is sealed; the caller MUST NOT
/// append two blocks at one place of an entry.
pub(super) fn append(out: &mut BytesMut, key: Option<&EntryKey>, place: &BlockPlace, data: &[u8]) {
    let (begin, head_bytes) = (out.len(), block_head_bytes(data.len()));
    out.resize(begin + head_bytes, 0);
    out.put_slice(data);
    let (head, stored) = out[begin..].split_at_mut(head_bytes);
    head[..2].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
    match key {
        Some(key) => {
            let (associated, tags) = (place.associated(), head[BLOCK_FIXED_BYTES..].chunks_exact_mut(TAG_BYTES));
            for (number, (unit, tag)) in (0u32..).zip(stored.chunks_mut(UNIT_BYTES).zip(tags)) {
                tag.copy_from_slice(&key.seal(place.at as u32, number, &associated, unit));
            }
        }
        None => head[BLOCK_FIXED_BYTES..BLOCK_FIXED_BYTES + TAG_BYTES].copy_from_slice(&place.in_clear()),
    }
    let crc = crc32c::crc32c_append(crc32c::crc32c(&head[8..]), stored);
    head[4..8].copy_from_slice(&crc.to_le_bytes());
}

/// Checks the block of an op with so many bytes of data, at the begin of `bytes`; not yet whose it is. `at` is where it
/// begins in its entry. Returns its length.
///
/// # Errors
/// The checksum does not match, or the bytes end before.
pub(super) fn check(bytes: &[u8], sealed: bool, at: usize, data: usize) -> Result<usize, EntryError> {
    let fixed: &[u8; BLOCK_FIXED_BYTES] = header_at(bytes, 0)?;
    let found = u16_at(fixed, 0);
    if found != BLOCK_MAGIC {
        return Err(EntryError::Magic { at, found });
    }
    let block = part_at(bytes, 0, block_bytes(data))?;
    check_crc("block", at, crc32c::crc32c(&block[8..]), u32_at(fixed, 4))?;
    check_zero(at + 2, &fixed[2..4])?;
    check_zero(at + 8, &fixed[8..])?;
    let tags = if sealed { data.div_ceil(UNIT_BYTES) } else { 1 };
    let used = BLOCK_FIXED_BYTES + TAG_BYTES * tags;
    check_zero(at + used, &block[used..block_head_bytes(data)])?;
    Ok(block.len())
}

/// Whether a checked block in clear belongs to this place. For a sealed block only its tags can tell.
///
/// # Errors
/// [`EntryError::Misplaced`].
pub(super) fn check_place(block: &[u8], place: &BlockPlace) -> Result<(), EntryError> {
    let found: &[u8; TAG_BYTES] = header_at(block, BLOCK_FIXED_BYTES)?;
    if *found == place.in_clear() { Ok(()) } else { Err(place.misplaced()) }
}

/// Bytes of the data of a checked block. The result keeps no more than twice its length in memory.
///
/// # Errors
/// [`EntryError::NotAuthentic`] for a unit that was not sealed as this one; [`EntryError::Misplaced`].
pub(super) fn data(
    block: &Bytes,
    key: Option<&EntryKey>,
    place: &BlockPlace,
    range: Range<usize>,
) -> Result<Bytes, EntryError> {
    let (len, head_bytes) = (place.data_bytes(), block_head_bytes(place.data_bytes()));
    let Some(key) = key else {
        check_place(block, place)?;
        let found = block.slice(head_bytes + range.start..head_bytes + range.end);
        return Ok(if found.len() * 2 < block.len() { Bytes::copy_from_slice(&found) } else { found });
    };
    let whole = whole_units(&range, len);
    let mut opened = block[head_bytes + whole.start..head_bytes + whole.end].to_vec();
    open_units(block, key, place, whole.start / UNIT_BYTES, &mut opened)?;
    let range = range.start - whole.start..range.end - whole.start;
    if range.len() * 2 < opened.len() {
        return Ok(Bytes::copy_from_slice(&opened[range]));
    }
    Ok(Bytes::from(opened).slice(range))
}

/// Appends bytes of the data of a checked block to `out`, which is of no use after an error.
///
/// # Errors
/// As [`data`].
pub(super) fn append_data(
    block: &[u8],
    key: Option<&EntryKey>,
    place: &BlockPlace,
    range: Range<usize>,
    out: &mut Vec<u8>,
) -> Result<(), EntryError> {
    let (len, head_bytes) = (place.data_bytes(), block_head_bytes(place.data_bytes()));
    let Some(key) = key else {
        check_place(block, place)?;
        out.extend_from_slice(&block[head_bytes + range.start..head_bytes + range.end]);
        return Ok(());
    };
    let (whole, begin) = (whole_units(&range, len), out.len());
    out.extend_from_slice(&block[head_bytes + whole.start..head_bytes + whole.end]);
    open_units(block, key, place, whole.start / UNIT_BYTES, &mut out[begin..])?;
    out.truncate(begin + (range.end - whole.start));
    out.drain(begin..begin + (range.start - whole.start));
    Ok(())
}

/// The bytes of all units that a part of `len` bytes of data touches.
fn whole_units(part: &Range<usize>, len: usize) -> Range<usize> {
    part.start / UNIT_BYTES * UNIT_BYTES..part.end.next_multiple_of(UNIT_BYTES).min(len)
}

/// Opens in place the sealed bytes of whole units of a checked block, from unit number `first` on.
///
/// # Errors
/// [`EntryError::NotAuthentic`].
fn open_units(
    block: &[u8],
    key: &EntryKey,
    place: &BlockPlace,
    first: usize,
    units: &mut [u8],
) -> Result<(), EntryError> {
    let associated = place.associated();
    for (number, unit) in (first..).zip(units.chunks_mut(UNIT_BYTES)) {
        let tag: &[u8; TAG_BYTES] = header_at(block, BLOCK_FIXED_BYTES + TAG_BYTES * number)?;
        if key.open(place.at as u32, number as u32, &associated, unit, tag).is_err() {
            let (volume, lba, sectors) = (place.volume, place.lba, place.sectors);
            return Err(EntryError::NotAuthentic { at: place.at, unit: number, volume, lba, sectors });
        }
    }
    Ok(())
}
