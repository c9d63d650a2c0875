//! Payload of a data group's log entry. A gateway's sequencer writes it into the log; apply reads it back.
//!
//! ```text
//!  writes:   | header 72 | op 24 | op 24 | .. | zeroes up to the grid of 32 | block | block | ..
//!             \______________________ front _______________________________/  of each write, in the same order
//!  block:    | fixed 16 | a tag of 16 for each unit of 16 KiB of data | zeroes up to the grid | data ..
//!  control:  | control header 8 | postcard of SetCommand |
//!
//!  header          0 tag=1  1 version=2  2 ops u16  4 bytes u32  8 epoch u64  16 seq u64  24 set u64
//!                 32 key of the data, 32 bytes; zeroes: data in clear  64 crc of the rest of the front  68 zero u32
//!  op              0 kind   1 zero 3  4 volume u32  8 lba u64  16 sectors u64
//!  fixed           0 magic u16  2 zero u16  4 crc of what is behind it  8 zero u64
//!  control header  0 tag=2  1 version=1  2 zero u16  4 crc of the rest
//! ```
//! All numbers are little-endian, all checksums CRC32C; every byte of an entry is under one of them (R9). The data is
//! sealed once, where the entry is made (ADR 0057). Apply reads the front and the checksums. A block in clear has, in
//! place of its first tag, volume u32, lba u64, sectors u32.
//!
//! ENTRY-E1  Header and block are all that a read of one op needs: the index knows the rest, and it is compared.
//! ENTRY-E2  Blocks begin at multiples of 32: the front and what is before a block's data are padded, data is whole
//!     sectors.
//! ENTRY-E3  [`decode`] accepts bounded entries only: at most `ENTRY_OPS_MAX` ops, each inside `VOLUME_SECTORS_MAX`, a
//!     write of at most `ATOMIC_WRITE_BYTES_MAX`. Sums of its places and lengths cannot overflow.
//! ENTRY-E4  An entry names its set. [`decode_of`], which apply uses, takes no other: it came by another group's way.
//! ENTRY-E5  Data opens only as what it was sealed as: unit and block of its entry, set, epoch, seq, volume, lba and
//!     sectors. The key is random and for one entry only, so no (key, nonce) is used twice, whatever Raft does (R12).
//! ENTRY-E6  The key is in the front. Whoever stores an entry seals the front ([`clear_bytes`]); a journal binds it to
//!     its place, and thereby the data.

mod block;
mod error;
mod layout;

pub use error::EntryError;
pub use layout::{CONTROL_HEADER_BYTES, ENTRY_GRID_BYTES, ENTRY_HEADER_BYTES, OP_BYTES, UNIT_BYTES, WRITE_SECTORS_MAX};

use block::BlockPlace;
use bytes::{Bytes, BytesMut};
use error::{check_crc, check_zero, header_at, part_at, u16_at, u32_at, u64_at};
use holdfast_control::set::SetCommand;
use holdfast_seal::{ENTRY_KEY_BYTES, EntryKey};
use holdfast_types::limits::{ENTRY_BYTES_MAX, ENTRY_OPS_MAX, VOLUME_SECTORS_MAX};
use holdfast_types::{Epoch, GroupId, Lba, LogIndex, SECTOR_BYTES, Sectors, SetId, VolumeId, WriteSeq};
use layout::{TAG_CONTROL, TAG_WRITES, VERSION_CONTROL, VERSION_WRITES, block_bytes, front_bytes};
use std::ops::Range;

/// What an op does to its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpKind {
    /// The op carries the range's new data.
    Write,
    /// The range reads as zeroes from now on; its space may be freed.
    Trim,
    /// The range reads as zeroes from now on. Write-zeroes that must stay allocated are treated the same.
    Zero,
}

impl OpKind {
    const fn to_byte(self) -> u8 {
        match self {
            OpKind::Write => 1,
            OpKind::Trim => 2,
            OpKind::Zero => 3,
        }
    }

    const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(OpKind::Write),
            2 => Some(OpKind::Trim),
            3 => Some(OpKind::Zero),
            _ => None,
        }
    }
}

/// One operation, without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpHeader {
    /// What it does.
    pub kind: OpKind,
    /// To which volume.
    pub volume: VolumeId,
    /// From which sector on.
    pub lba: Lba,
    /// To how many sectors.
    pub sectors: Sectors,
}

impl OpHeader {
    /// Length of its data.
    pub fn data_len(&self) -> usize {
        // ENTRY-E3: a header exists only with a length that was checked.
        if self.kind == OpKind::Write { self.sectors.0 as usize * SECTOR_BYTES as usize } else { 0 }
    }

    fn encode(&self) -> [u8; OP_BYTES] {
        let mut op = [0_u8; OP_BYTES];
        op[0] = self.kind.to_byte();
        op[4..8].copy_from_slice(&self.volume.0.to_le_bytes());
        op[8..16].copy_from_slice(&self.lba.0.to_le_bytes());
        op[16..].copy_from_slice(&self.sectors.0.to_le_bytes());
        op
    }

    /// Op number `number` of a payload whose front was checked.
    fn read(payload: &[u8], number: usize) -> Result<Self, EntryError> {
        let at = ENTRY_HEADER_BYTES + OP_BYTES * number;
        let op: &[u8; OP_BYTES] = header_at(payload, at)?;
        let kind = OpKind::from_byte(op[0]).ok_or(EntryError::Kind { at, found: op[0] })?;
        check_zero(at + 1, &op[1..4])?;
        let (volume, lba, sectors) = (VolumeId(u32_at(op, 4)), Lba(u64_at(op, 8)), Sectors(u64_at(op, 16)));
        check_extent(kind, lba, sectors, at)?;
        Ok(Self { kind, volume, lba, sectors })
    }
}

/// ENTRY-E3 for one op.
fn check_extent(kind: OpKind, lba: Lba, sectors: Sectors, at: usize) -> Result<(), EntryError> {
    let limit = if kind == OpKind::Write { WRITE_SECTORS_MAX } else { VOLUME_SECTORS_MAX };
    let inside = lba.checked_add(sectors).is_some_and(|end| end.0 <= VOLUME_SECTORS_MAX);
    if sectors.0 == 0 || sectors.0 > limit || !inside {
        return Err(EntryError::Range { at, lba, sectors, limit });
    }
    Ok(())
}

fn check_version(found: u8, expected: u8) -> Result<(), EntryError> {
    if found == expected { Ok(()) } else { Err(EntryError::Version { found, expected }) }
}

/// The header of an entry of writes: what a read of one of its ops needs beside the op's block (ENTRY-E1).
#[derive(Debug)]
pub struct EntryHead {
    set: SetId,
    epoch: Epoch,
    seq: WriteSeq,
    /// `None`: the data is in clear.
    key: Option<EntryKey>,
}

impl EntryHead {
    /// Reads it from the first [`ENTRY_HEADER_BYTES`] of a payload. The checksum is that of the whole front: [`decode`]
    /// checks it. A header of another entry does not open the data.
    ///
    /// # Errors
    /// When an entry of writes does not begin so.
    pub fn read(payload: &[u8]) -> Result<Self, EntryError> {
        let header: &[u8; ENTRY_HEADER_BYTES] = header_at(payload, 0)?;
        if header[0] != TAG_WRITES {
            return Err(EntryError::Tag { found: header[0] });
        }
        check_version(header[1], VERSION_WRITES)?;
        let key: &[u8; ENTRY_KEY_BYTES] = header_at(header, 32)?;
        Ok(Self {
            set: GroupId(u64_at(header, 24)),
            epoch: Epoch(u64_at(header, 8)),
            seq: WriteSeq(u64_at(header, 16)),
            key: (*key != [0; ENTRY_KEY_BYTES]).then(|| EntryKey::new(*key)),
        })
    }

    /// The place of an op whose block begins at `at`.
    fn place(&self, op: &OpHeader, at: usize) -> BlockPlace {
        let Self { set, epoch, seq, .. } = *self;
        BlockPlace { set, epoch, seq, volume: op.volume, lba: op.lba, sectors: op.sectors, at }
    }
}

/// Where in the journal a piece's data begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JournalRef {
    /// The log entry.
    pub index: LogIndex,
    /// The op's block in the entry's payload, in bytes.
    pub header_offset: u32,
    /// Sectors of the whole op: all of it has to be read to check it.
    pub op_sectors: u32,
    /// Sectors of the op before the piece.
    pub skip: u32,
}

impl JournalRef {
    /// The part of the entry's payload that holds the op's block: (offset, length) in bytes. [`read_piece`] checks it
    /// and cuts it to the piece.
    pub fn byte_range(&self) -> (u32, usize) {
        (self.header_offset, block_bytes(self.op_sectors as usize * SECTOR_BYTES as usize))
    }
}

/// Data of a piece that a lookup found in the journal. `head`: the first [`ENTRY_HEADER_BYTES`] of the entry's payload.
/// `bytes`: those at `at.byte_range()`. They are checked (R9) and compared with the op that the index refers to. `lba`
/// and `sectors` are those of the piece.
///
/// # Errors
/// As [`CheckedOp::new`] and [`CheckedOp::piece`].
pub fn read_piece(
    volume: VolumeId,
    lba: Lba,
    sectors: Sectors,
    at: &JournalRef,
    head: &[u8],
    bytes: &Bytes,
) -> Result<Bytes, EntryError> {
    CheckedOp::new(EntryHead::read(head)?, at, bytes.clone())?.piece(volume, lba, sectors, at)
}

/// One op of the journal with a checked checksum. Pieces are cut out of it, and opened, without another read or check.
#[derive(Debug)]
pub struct CheckedOp {
    head: EntryHead,
    block: Bytes,
}

impl CheckedOp {
    /// The op whose block is at the begin of `bytes`, in the entry with this header.
    ///
    /// # Errors
    /// When the block does not match its checksum, or is truncated (R9).
    pub fn new(head: EntryHead, at: &JournalRef, bytes: Bytes) -> Result<Self, EntryError> {
        let data = at.op_sectors as usize * SECTOR_BYTES as usize;
        block::check(&bytes, head.key.is_some(), at.header_offset as usize, data)?;
        Ok(Self { head, block: bytes })
    }

    /// Data of a piece of this op, as [`read_piece`] returns it. Keeps no more than twice its length in memory.
    ///
    /// # Errors
    /// When this is not the op that `at` refers to, or the piece is not inside it (R9).
    pub fn piece(&self, volume: VolumeId, lba: Lba, sectors: Sectors, at: &JournalRef) -> Result<Bytes, EntryError> {
        let (place, bytes) = self.find(volume, lba, sectors, at)?;
        block::data(&self.block, self.head.key.as_ref(), &place, bytes)
    }

    /// Appends the data of a piece to `out`, which is of no use after an error.
    ///
    /// # Errors
    /// As [`CheckedOp::piece`].
    pub fn append_piece(
        &self,
        volume: VolumeId,
        lba: Lba,
        sectors: Sectors,
        at: &JournalRef,
        out: &mut Vec<u8>,
    ) -> Result<(), EntryError> {
        let (place, bytes) = self.find(volume, lba, sectors, at)?;
        block::append_data(&self.block, self.head.key.as_ref(), &place, bytes, out)
    }

    /// Whether its data is sealed. Data in clear need not be copied.
    pub fn is_sealed(&self) -> bool {
        self.head.key.is_some()
    }

    /// The op's place by the index, and which bytes of its data are the piece.
    fn find(
        &self,
        volume: VolumeId,
        lba: Lba,
        sectors: Sectors,
        at: &JournalRef,
    ) -> Result<(BlockPlace, Range<usize>), EntryError> {
        let (skip, op_sectors) = (u64::from(at.skip), u64::from(at.op_sectors));
        let op =
            OpHeader { kind: OpKind::Write, volume, lba: Lba(lba.0.wrapping_sub(skip)), sectors: Sectors(op_sectors) };
        let place = self.head.place(&op, at.header_offset as usize);
        let inside =
            skip.checked_add(sectors.0).is_some_and(|end| end <= op_sectors) && self.block.len() >= at.byte_range().1;
        if !inside || check_extent(op.kind, op.lba, op.sectors, place.at).is_err() {
            return Err(place.misplaced());
        }
        // Whole sectors inside an op that was checked above: no overflow, never out of bounds.
        let from = (skip * SECTOR_BYTES) as usize;
        Ok((place, from..from + (sectors.0 * SECTOR_BYTES) as usize))
    }
}

/// Gathers ops into one entry. Data is looked at once, when the entry is finished: then it is copied, sealed, and its
/// checksums are calculated. Ops are added under the lock of the sequencer's queue, where all writers of a set wait.
#[derive(Debug)]
pub struct EntryBuilder {
    set: SetId,
    epoch: Epoch,
    seq: WriteSeq,
    ops: Vec<(OpHeader, Bytes)>,
    /// Bytes of all blocks.
    blocks: usize,
}

impl EntryBuilder {
    /// An entry with number `seq` of the sequencer of `epoch` (R2).
    pub fn new(epoch: Epoch, seq: WriteSeq) -> Self {
        Self { set: GroupId(0), epoch, seq, ops: Vec::new(), blocks: 0 }
    }

    /// The set whose log it is for (ENTRY-E4).
    #[must_use]
    pub fn of(self, set: SetId) -> Self {
        Self { set, ..self }
    }

    /// Adds an op. Returns false and changes nothing if the entry would exceed `ENTRY_BYTES_MAX` or `ENTRY_OPS_MAX`.
    /// Any valid op fits an empty entry.
    ///
    /// # Panics
    /// When the caller did not check its request: data of another length than the op's sectors, an empty range, a range
    /// beyond `VOLUME_SECTORS_MAX`, a write above `ATOMIC_WRITE_BYTES_MAX`. Every replica would refuse such an entry.
    pub fn try_push(&mut self, kind: OpKind, volume: VolumeId, lba: Lba, sectors: Sectors, data: Bytes) -> bool {
        let range = check_extent(kind, lba, sectors, self.bytes());
        assert!(range.is_ok(), "R5: op that no entry may carry: {range:?}");
        let op = OpHeader { kind, volume, lba, sectors };
        assert!(data.len() == op.data_len(), "R5: op of {} bytes with {}", op.data_len(), data.len());
        let block = block_bytes(data.len());
        let ops = self.ops.len() + 1;
        if ops > ENTRY_OPS_MAX || front_bytes(ops) + self.blocks + block > ENTRY_BYTES_MAX {
            return false;
        }
        self.blocks += block;
        self.ops.push((op, data));
        true
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Ops so far.
    pub fn ops(&self) -> usize {
        self.ops.len()
    }

    /// Bytes that the entry will have.
    pub fn bytes(&self) -> usize {
        front_bytes(self.ops.len()) + self.blocks
    }

    /// The entry's bytes, in one allocation, with the data in clear.
    pub fn finish(self) -> Bytes {
        self.build(None)
    }

    /// The entry's bytes, in one allocation, with the data sealed under a key that was drawn for this entry (SEAL-S4).
    ///
    /// # Panics
    /// With a key of zeroes, which in an entry says that its data is in clear: all replicas would refuse the entry, and
    /// stop. So this one stops alone.
    pub fn finish_sealed(self, key: EntryKey) -> Bytes {
        assert!(*key.bytes() != [0; ENTRY_KEY_BYTES], "R10: the key of an entry is zeroes, expected random bytes");
        self.build(Some(key))
    }

    fn build(self, key: Option<EntryKey>) -> Bytes {
        let (bytes, front) = (self.bytes(), front_bytes(self.ops.len()));
        let mut out = BytesMut::with_capacity(bytes);
        out.resize(front, 0);
        let head = EntryHead { set: self.set, epoch: self.epoch, seq: self.seq, key };
        for ((op, data), at) in self.ops.iter().zip((ENTRY_HEADER_BYTES..).step_by(OP_BYTES)) {
            out[at..at + OP_BYTES].copy_from_slice(&op.encode());
            if op.kind == OpKind::Write {
                let place = head.place(op, out.len());
                block::append(&mut out, head.key.as_ref(), &place, data);
            }
        }
        out[0] = TAG_WRITES;
        out[1] = VERSION_WRITES;
        // The casts are exact: both limits are asserted in `layout`, and `try_push` keeps to them.
        out[2..4].copy_from_slice(&(self.ops.len() as u16).to_le_bytes());
        out[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
        out[8..16].copy_from_slice(&self.epoch.0.to_le_bytes());
        out[16..24].copy_from_slice(&self.seq.0.to_le_bytes());
        out[24..32].copy_from_slice(&self.set.0.to_le_bytes());
        if let Some(key) = &head.key {
            out[32..64].copy_from_slice(key.bytes());
        }
        let crc = front_crc(&out[..front]);
        out[64..68].copy_from_slice(&crc.to_le_bytes());
        out.freeze()
    }
}

/// Of the whole front but the checksum itself.
fn front_crc(front: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&front[..64]), &front[68..])
}

/// The bytes of a control entry.
///
/// # Errors
/// When the command is too large for an entry, or cannot be written at all.
pub fn encode_control(command: &SetCommand) -> Result<Bytes, EntryError> {
    let mut out = postcard::to_extend(command, vec![0_u8; CONTROL_HEADER_BYTES]).map_err(EntryError::Command)?;
    if out.len() > ENTRY_BYTES_MAX {
        return Err(EntryError::TooLarge { found: out.len() });
    }
    out[0] = TAG_CONTROL;
    out[1] = VERSION_CONTROL;
    let crc = crc32c::crc32c(&out[CONTROL_HEADER_BYTES..]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    Ok(Bytes::from(out))
}

/// What an entry carries.
#[derive(Clone, Debug)]
pub enum EntryPayload {
    /// Writes, trims and zeroes of one sequencer.
    Writes(WritesView),
    /// A decision about the set.
    Control(SetCommand),
}

/// An entry of writes that was checked as a whole. Its ops are read in place.
#[derive(Clone, Debug)]
pub struct WritesView {
    /// The set whose log it was made for (ENTRY-E4).
    pub set: SetId,
    /// The epoch that the writes were accepted under (R2).
    pub epoch: Epoch,
    /// The entry's number within the epoch (R2).
    pub seq: WriteSeq,
    payload: Bytes,
    ops: usize,
}

/// One op of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Where its block begins in the entry, in bytes; if it has none, where it would.
    pub header_offset: u32,
    /// What it does.
    pub kind: OpKind,
    /// To which volume.
    pub volume: VolumeId,
    /// From which sector on.
    pub lba: Lba,
    /// To how many sectors.
    pub sectors: Sectors,
    /// Its data, opened; empty unless it is a write.
    pub data: Bytes,
}

impl WritesView {
    /// How many ops there are.
    pub fn len(&self) -> usize {
        self.ops
    }

    /// Whether there is no op.
    pub fn is_empty(&self) -> bool {
        self.ops == 0
    }

    /// Bytes of the whole entry.
    pub fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// The ops in their order, with their data. Data in clear is not copied.
    ///
    /// # Errors
    /// When sealed data does not open.
    pub fn ops(&self) -> Result<Vec<Op>, EntryError> {
        let head = EntryHead::read(&self.payload)?;
        let open = |(header_offset, op): (u32, OpHeader)| -> Result<Op, EntryError> {
            let OpHeader { kind, volume, lba, sectors } = op;
            let at = header_offset as usize;
            let data = match op.data_len() {
                0 => Bytes::new(),
                len => {
                    let block = self.payload.slice(at..at + block_bytes(len));
                    block::data(&block, head.key.as_ref(), &head.place(&op, at), 0..len)?
                }
            };
            Ok(Op { header_offset, kind, volume, lba, sectors, data })
        };
        self.headers().map(open).collect()
    }

    /// The ops in order, without their data: each with the place of its block. Apply needs no more.
    pub fn headers(&self) -> impl Iterator<Item = (u32, OpHeader)> + '_ {
        let mut at = front_bytes(self.ops);
        (0..self.ops).map_while(move |number| {
            // `decode` has read this op before; `map_while` only avoids a panic.
            let op = OpHeader::read(&self.payload, number).ok()?;
            let offset = at as u32;
            at += block_bytes(op.data_len());
            Some((offset, op))
        })
    }
}

/// Reads an entry without copying or opening its data, and checks all of it: lengths, counts, ranges, every checksum.
///
/// # Errors
/// When anything is not as [`EntryBuilder`] or [`encode_control`] would have written it.
pub fn decode(payload: &Bytes) -> Result<EntryPayload, EntryError> {
    if payload.len() > ENTRY_BYTES_MAX {
        return Err(EntryError::TooLarge { found: payload.len() });
    }
    match payload.first() {
        Some(&TAG_WRITES) => decode_writes(payload).map(EntryPayload::Writes),
        Some(&TAG_CONTROL) => decode_control(payload).map(EntryPayload::Control),
        Some(&found) => Err(EntryError::Tag { found }),
        None => Err(EntryError::Short { at: 0, found: 0, expected: 1 }),
    }
}

/// [`decode`] for an entry in the log of `expected`.
///
/// # Errors
/// As [`decode`]; also when it was made for another set (ENTRY-E4).
pub fn decode_of(expected: SetId, payload: &Bytes) -> Result<EntryPayload, EntryError> {
    let entry = decode(payload)?;
    if let EntryPayload::Writes(writes) = &entry
        && writes.set != expected
    {
        return Err(EntryError::OtherSet { found: writes.set, expected });
    }
    Ok(entry)
}

/// How many of the first bytes of a payload are in clear. The rest was sealed where the entry was made (ENTRY-E6). If
/// that is not certain: all of them.
pub fn clear_bytes(payload: &[u8]) -> usize {
    match check_front(payload) {
        Ok((head, ops)) if head.key.is_some() => front_bytes(ops),
        _ => payload.len(),
    }
}

/// The header of an entry of writes with a good front, and its number of ops.
fn check_front(payload: &[u8]) -> Result<(EntryHead, usize), EntryError> {
    let head = EntryHead::read(payload)?;
    let header: &[u8; ENTRY_HEADER_BYTES] = header_at(payload, 0)?;
    let ops = usize::from(u16_at(header, 2));
    if ops > ENTRY_OPS_MAX {
        return Err(EntryError::Ops { found: ops });
    }
    let front = part_at(payload, 0, front_bytes(ops))?;
    check_crc("entry front", 0, front_crc(front), u32_at(header, 64))?;
    check_zero(68, &header[68..])?;
    let end = ENTRY_HEADER_BYTES + OP_BYTES * ops;
    check_zero(end, &front[end..])?;
    Ok((head, ops))
}

fn decode_writes(payload: &Bytes) -> Result<WritesView, EntryError> {
    let (head, ops) = check_front(payload)?;
    let header: &[u8; ENTRY_HEADER_BYTES] = header_at(payload, 0)?;
    let bytes = u32_at(header, 4) as usize;
    if payload.len() < bytes {
        return Err(EntryError::Short { at: 0, found: payload.len(), expected: bytes });
    }
    let mut at = front_bytes(ops);
    for number in 0..ops {
        let op = OpHeader::read(payload, number)?;
        if op.kind == OpKind::Write {
            let block = part_at(payload, at, payload.len().saturating_sub(at))?;
            let length = block::check(block, head.key.is_some(), at, op.data_len())?;
            if head.key.is_none() {
                block::check_place(block, &head.place(&op, at))?;
            }
            at += length;
        }
    }
    if at != bytes || at != payload.len() {
        return Err(EntryError::Trailing { found: payload.len(), expected: at });
    }
    Ok(WritesView { set: head.set, epoch: head.epoch, seq: head.seq, payload: payload.clone(), ops })
}

fn decode_control(payload: &Bytes) -> Result<SetCommand, EntryError> {
    let header: &[u8; CONTROL_HEADER_BYTES] = header_at(payload, 0)?;
    let body = &payload[CONTROL_HEADER_BYTES..];
    check_crc("control command", CONTROL_HEADER_BYTES, crc32c::crc32c(body), u32_at(header, 4))?;
    check_version(header[1], VERSION_CONTROL)?;
    if header[2..4] != [0, 0] {
        return Err(EntryError::Reserved { at: 2 });
    }
    let (command, rest) = postcard::take_from_bytes(body).map_err(EntryError::Command)?;
    if !rest.is_empty() {
        return Err(EntryError::Trailing { found: payload.len(), expected: payload.len() - rest.len() });
    }
    Ok(command)
}

#[cfg(test)]
mod tests;
