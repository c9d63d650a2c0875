//! Payload of a data group's log entry. A gateway's sequencer writes it into the log; apply reads it back.
//!
//! ```text
//!  writes:   | entry header 32 | op header 32 | data .. | op header 32 | data .. | ..      trims and zeroes carry no data
//!  control:  | control header 8 | postcard of SetCommand |
//!
//!  entry header    0 tag=1  1 version  2 ops u16  4 bytes u32  8 epoch u64  16 seq u64  24 zero u32  28 crc of 0..28
//!  op header       0 kind   1 zero     2 magic u16  4 volume u32  8 lba u64  16 sectors u64  24 data crc  28 crc of 0..28
//!  control header  0 tag=2  1 version  2 zero u16  4 crc of the rest
//! ```
//! All numbers are little-endian, all checksums CRC32C; every byte of an entry is under one of them (R9).
//!
//! ENTRY-E1  An op header lies directly before its data: a journal read finds and checks an op by its offset alone.
//! ENTRY-E2  Offsets of op headers are multiples of 32: headers are 32 bytes, data is whole sectors.
//! ENTRY-E3  [`decode`] accepts bounded entries only: at most `ENTRY_OPS_MAX` ops, each inside `VOLUME_SECTORS_MAX`, a
//!     write of at most `ATOMIC_WRITE_BYTES_MAX`. Sums of its places and lengths cannot overflow.

use bytes::{BufMut, Bytes, BytesMut};
use holdfast_control::set::SetCommand;
use holdfast_types::limits::{ATOMIC_WRITE_BYTES_MAX, ENTRY_BYTES_MAX, ENTRY_OPS_MAX, VOLUME_SECTORS_MAX};
use holdfast_types::{Epoch, Lba, LogIndex, SECTOR_BYTES, Sectors, VolumeId, WriteSeq};

/// First byte of an entry that carries writes.
const TAG_WRITES: u8 = 1;
/// First byte of an entry that carries a [`SetCommand`].
const TAG_CONTROL: u8 = 2;
/// The only version of both layouts that is read and written.
const VERSION: u8 = 1;
/// Marks an op header ("op"). It distinguishes a read at a wrong offset from a bad checksum.
const OP_MAGIC: u16 = u16::from_le_bytes(*b"op");

/// Bytes of the header of an entry of writes.
pub const ENTRY_HEADER_BYTES: usize = 32;
/// Bytes of the header before each op's data.
pub const OP_HEADER_BYTES: usize = 32;
/// Bytes of the header of a control entry.
pub const CONTROL_HEADER_BYTES: usize = 8;
/// Sectors that one write carries at most.
pub const WRITE_SECTORS_MAX: u64 = ATOMIC_WRITE_BYTES_MAX as u64 / SECTOR_BYTES;

// One atomic write always fits an empty entry (R5), and so do the headers of `ENTRY_OPS_MAX` ops.
const _: () = assert!(ENTRY_HEADER_BYTES + OP_HEADER_BYTES + ATOMIC_WRITE_BYTES_MAX <= ENTRY_BYTES_MAX);
const _: () = assert!(ENTRY_HEADER_BYTES + ENTRY_OPS_MAX * OP_HEADER_BYTES <= ENTRY_BYTES_MAX - ATOMIC_WRITE_BYTES_MAX);
const _: () = assert!(ENTRY_OPS_MAX <= u16::MAX as usize && ENTRY_BYTES_MAX <= u32::MAX as usize);

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

/// Bytes are not a valid entry, or not the expected part of one. Always corruption or an unknown version: entries come
/// from gateways, never directly from a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the fields are what each message says: place in bytes, what was found, what was expected"
)]
pub enum EntryError {
    /// The payload ends inside something.
    #[error("entry cut short at {at}: found {found} bytes, expected {expected}")]
    Short { at: usize, found: usize, expected: usize },
    /// The payload goes on after its last op.
    #[error("entry of {expected} bytes has {found}")]
    Trailing { found: usize, expected: usize },
    /// The payload is larger than any entry may be.
    #[error("entry of {found} bytes, expected at most {ENTRY_BYTES_MAX}")]
    TooLarge { found: usize },
    /// The first byte names no kind of entry.
    #[error("entry kind: found {found}, expected {TAG_WRITES} or {TAG_CONTROL}")]
    Tag { found: u8 },
    /// Written by a version that this one cannot read.
    #[error("entry version: found {found}, expected {VERSION}")]
    Version { found: u8 },
    /// More ops than an entry may have.
    #[error("entry with {found} ops, expected at most {ENTRY_OPS_MAX}")]
    Ops { found: usize },
    /// Reserved bytes are not zero.
    #[error("reserved bytes at {at} are not zero")]
    Reserved { at: usize },
    /// No op header begins here.
    #[error("op at {at}: found magic {found:#06x}, expected {OP_MAGIC:#06x}")]
    Magic { at: usize, found: u16 },
    /// The op header names no kind of op.
    #[error("op at {at}: found kind {found}, expected 1, 2 or 3")]
    Kind { at: usize, found: u8 },
    /// The op's range is empty, or reaches beyond the largest volume, or is more than one write may carry.
    #[error("op at {at}: {sectors} sectors at {lba}, expected 1 to {limit} that end by {VOLUME_SECTORS_MAX}")]
    Range { at: usize, lba: Lba, sectors: Sectors, limit: u64 },
    /// A checksum does not match (R9).
    #[error("{part} at {at}: found checksum {found:#010x}, expected {expected:#010x}")]
    Checksum { part: &'static str, at: usize, found: u32, expected: u32 },
    /// A command could not be read although its checksum matched.
    #[error("control command could not be read")]
    Command(#[source] postcard::Error),
    /// A valid op, but not the one that the index refers to (R9: never served).
    #[error("op at {volume} {lba} with {sectors} sectors, expected {wanted_volume} {wanted_lba} with {wanted_sectors}")]
    Misplaced {
        volume: VolumeId,
        lba: Lba,
        sectors: Sectors,
        wanted_volume: VolumeId,
        wanted_lba: Lba,
        wanted_sectors: Sectors,
    },
}

/// One operation's header.
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
    data_crc: u32,
}

impl OpHeader {
    /// Length of the data behind the header.
    pub fn data_len(&self) -> usize {
        // ENTRY-E3: a header exists only with a length that was checked.
        if self.kind == OpKind::Write { self.sectors.0 as usize * SECTOR_BYTES as usize } else { 0 }
    }

    fn encode(&self, out: &mut BytesMut) {
        let mut header = [0_u8; OP_HEADER_BYTES];
        header[0] = self.kind.to_byte();
        header[2..4].copy_from_slice(&OP_MAGIC.to_le_bytes());
        header[4..8].copy_from_slice(&self.volume.0.to_le_bytes());
        header[8..16].copy_from_slice(&self.lba.0.to_le_bytes());
        header[16..24].copy_from_slice(&self.sectors.0.to_le_bytes());
        header[24..28].copy_from_slice(&self.data_crc.to_le_bytes());
        let crc = crc32c::crc32c(&header[..28]);
        header[28..].copy_from_slice(&crc.to_le_bytes());
        out.put_slice(&header);
    }

    /// Reads the fields of a header whose checksum matched. `at` is for the error's text only.
    fn parse(header: &[u8; OP_HEADER_BYTES], at: usize) -> Result<Self, EntryError> {
        let found = u16::from_le_bytes([header[2], header[3]]);
        if found != OP_MAGIC {
            return Err(EntryError::Magic { at, found });
        }
        let kind = OpKind::from_byte(header[0]).ok_or(EntryError::Kind { at, found: header[0] })?;
        if header[1] != 0 {
            return Err(EntryError::Reserved { at: at + 1 });
        }
        let volume = VolumeId(u32_at(header, 4));
        let lba = Lba(u64_at(header, 8));
        let sectors = Sectors(u64_at(header, 16));
        check_extent(kind, lba, sectors, at)?;
        Ok(Self { kind, volume, lba, sectors, data_crc: u32_at(header, 24) })
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

fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

fn header_at<const N: usize>(bytes: &[u8], at: usize) -> Result<&[u8; N], EntryError> {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()).ok_or(EntryError::Short {
        at,
        found: bytes.len().saturating_sub(at),
        expected: N,
    })
}

fn check_crc(part: &'static str, at: usize, bytes: &[u8], expected: u32) -> Result<(), EntryError> {
    let found = crc32c::crc32c(bytes);
    if found == expected { Ok(()) } else { Err(EntryError::Checksum { part, at, found, expected }) }
}

/// Reads and checks the op header at `at`; returns it and the bytes of data behind it. Does not check the data.
fn op_at(bytes: &[u8], at: usize) -> Result<(OpHeader, &[u8]), EntryError> {
    let header: &[u8; OP_HEADER_BYTES] = header_at(bytes, at)?;
    check_crc("op header", at, &header[..28], u32_at(header, 28))?;
    let op = OpHeader::parse(header, at)?;
    let start = at + OP_HEADER_BYTES;
    let data = bytes.get(start..start + op.data_len()).ok_or(EntryError::Short {
        at: start,
        found: bytes.len() - start,
        expected: op.data_len(),
    })?;
    Ok((op, data))
}

/// Checks one op in the journal: `bytes` begins with its header and holds at least its data (ENTRY-E1). Returns the
/// header and the op's data.
///
/// # Errors
/// When header or data do not match their checksums, or are truncated (R9).
pub fn check_op(bytes: &[u8]) -> Result<(OpHeader, &[u8]), EntryError> {
    let (op, data) = op_at(bytes, 0)?;
    check_crc("op data", OP_HEADER_BYTES, data, op.data_crc)?;
    Ok((op, data))
}

/// Where in the journal a piece's data begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JournalRef {
    /// The log entry.
    pub index: LogIndex,
    /// The op's header in the entry's payload, in bytes.
    pub header_offset: u32,
    /// Sectors of the whole op: all of it has to be read to check it.
    pub op_sectors: u32,
    /// Sectors of the op before the piece.
    pub skip: u32,
}

impl JournalRef {
    /// The part of the entry's payload that holds the op, header and data: (offset, length) in bytes.
    /// [`read_piece`] checks it and cuts it to the piece.
    pub fn byte_range(&self) -> (u32, usize) {
        (self.header_offset, OP_HEADER_BYTES + self.op_sectors as usize * SECTOR_BYTES as usize)
    }
}

/// Data of a piece that a lookup found in the journal. `bytes`: the journal's bytes at `at.byte_range()`. They are
/// checked (R9) and compared with the op that the index refers to. `lba` and `sectors` are those of the piece.
///
/// # Errors
/// As [`check_op`]; also where the op is not the one that `at` refers to.
pub fn read_piece(
    volume: VolumeId,
    lba: Lba,
    sectors: Sectors,
    at: &JournalRef,
    bytes: &Bytes,
) -> Result<Bytes, EntryError> {
    CheckedOp::new(bytes)?.piece(volume, lba, sectors, at)
}

/// One op of the journal with checked checksums. Pieces are cut out of it without another read or check.
#[derive(Clone, Debug)]
pub struct CheckedOp {
    header: OpHeader,
    data: Bytes,
}

impl CheckedOp {
    /// Checks the op at the beginning of `bytes`.
    ///
    /// # Errors
    /// As [`check_op`].
    pub fn new(bytes: &Bytes) -> Result<Self, EntryError> {
        let (header, data) = check_op(bytes)?;
        Ok(Self { header, data: bytes.slice_ref(data) })
    }

    /// Data of a piece of this op, as [`read_piece`] returns it.
    ///
    /// # Errors
    /// [`EntryError::Misplaced`] where this is not the op that `at` refers to, or the piece is not inside it (R9).
    pub fn piece(&self, volume: VolumeId, lba: Lba, sectors: Sectors, at: &JournalRef) -> Result<Bytes, EntryError> {
        let op = &self.header;
        let skip = u64::from(at.skip);
        let same = op.kind == OpKind::Write
            && op.volume == volume
            && op.lba.0.checked_add(skip) == Some(lba.0)
            && op.sectors.0 == u64::from(at.op_sectors)
            && skip.checked_add(sectors.0).is_some_and(|end| end <= op.sectors.0);
        if !same {
            return Err(EntryError::Misplaced {
                volume: op.volume,
                lba: op.lba,
                sectors: op.sectors,
                wanted_volume: volume,
                wanted_lba: Lba(lba.0.saturating_sub(skip)),
                wanted_sectors: Sectors(u64::from(at.op_sectors)),
            });
        }
        // Whole sectors inside an op that was checked above: no overflow, never out of bounds.
        let from = (skip * SECTOR_BYTES) as usize;
        Ok(self.data.slice(from..from + (sectors.0 * SECTOR_BYTES) as usize))
    }
}

/// Gathers ops into one entry. Data is looked at once, by [`EntryBuilder::finish`], which copies it and calculates its
/// checksums: ops are added under the lock of the sequencer's queue, where all writers of a set wait.
#[derive(Debug)]
pub struct EntryBuilder {
    epoch: Epoch,
    seq: WriteSeq,
    /// Without the checksums of their data.
    ops: Vec<(OpHeader, Bytes)>,
    bytes: usize,
}

impl EntryBuilder {
    /// An entry with number `seq` of the sequencer of `epoch` (R2).
    pub fn new(epoch: Epoch, seq: WriteSeq) -> Self {
        Self { epoch, seq, ops: Vec::new(), bytes: ENTRY_HEADER_BYTES }
    }

    /// Adds an op. Returns false and changes nothing if the entry would exceed `ENTRY_BYTES_MAX` or `ENTRY_OPS_MAX`.
    /// Any valid op fits an empty entry.
    ///
    /// # Panics
    /// When the caller did not check its request: data of another length than the op's sectors, an empty range, a range
    /// beyond `VOLUME_SECTORS_MAX`, a write above `ATOMIC_WRITE_BYTES_MAX`. Every replica would refuse such an entry.
    pub fn try_push(&mut self, kind: OpKind, volume: VolumeId, lba: Lba, sectors: Sectors, data: Bytes) -> bool {
        let range = check_extent(kind, lba, sectors, self.bytes);
        assert!(range.is_ok(), "R5: op that no entry may carry: {range:?}");
        let header = OpHeader { kind, volume, lba, sectors, data_crc: 0 };
        assert!(data.len() == header.data_len(), "R5: op of {} bytes with {}", header.data_len(), data.len());
        if self.ops.len() == ENTRY_OPS_MAX || self.bytes + OP_HEADER_BYTES + data.len() > ENTRY_BYTES_MAX {
            return false;
        }
        self.bytes += OP_HEADER_BYTES + data.len();
        self.ops.push((header, data));
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
        self.bytes
    }

    /// The entry's bytes, in one allocation.
    pub fn finish(self) -> Bytes {
        let mut out = BytesMut::with_capacity(self.bytes);
        let mut header = [0_u8; ENTRY_HEADER_BYTES];
        header[0] = TAG_WRITES;
        header[1] = VERSION;
        // The casts are exact: both limits are asserted above, and `try_push` keeps to them.
        header[2..4].copy_from_slice(&(self.ops.len() as u16).to_le_bytes());
        header[4..8].copy_from_slice(&(self.bytes as u32).to_le_bytes());
        header[8..16].copy_from_slice(&self.epoch.0.to_le_bytes());
        header[16..24].copy_from_slice(&self.seq.0.to_le_bytes());
        let crc = crc32c::crc32c(&header[..28]);
        header[28..].copy_from_slice(&crc.to_le_bytes());
        out.put_slice(&header);
        for (op, data) in &self.ops {
            let header = OpHeader { data_crc: crc32c::crc32c(data), ..*op };
            header.encode(&mut out);
            out.put_slice(data);
        }
        out.freeze()
    }
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
    out[1] = VERSION;
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
    /// Where its header lies in the entry, in bytes.
    pub header_offset: u32,
    /// What it does.
    pub kind: OpKind,
    /// To which volume.
    pub volume: VolumeId,
    /// From which sector on.
    pub lba: Lba,
    /// To how many sectors.
    pub sectors: Sectors,
    /// Its data, not copied; empty unless it is a write.
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

    /// The ops in their order, with their data.
    pub fn ops(&self) -> impl Iterator<Item = Op> + '_ {
        self.headers().map(|(header_offset, op)| {
            let start = header_offset as usize + OP_HEADER_BYTES;
            let data = self.payload.slice(start..start + op.data_len());
            Op { header_offset, kind: op.kind, volume: op.volume, lba: op.lba, sectors: op.sectors, data }
        })
    }

    /// The ops in order, without their data: each header with its offset. Apply needs no more.
    pub fn headers(&self) -> impl Iterator<Item = (u32, OpHeader)> + '_ {
        let mut at = ENTRY_HEADER_BYTES;
        (0..self.ops).map_while(move |_| {
            let header: &[u8; OP_HEADER_BYTES] = header_at(&self.payload, at).ok()?;
            // `decode` has read this header before, so it parses; `map_while` only avoids a panic.
            let op = OpHeader::parse(header, at).ok()?;
            let offset = at as u32;
            at += OP_HEADER_BYTES + op.data_len();
            Some((offset, op))
        })
    }
}

/// Reads an entry without copying its data, and checks all of it: lengths, counts, ranges, every checksum.
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

fn decode_writes(payload: &Bytes) -> Result<WritesView, EntryError> {
    let header: &[u8; ENTRY_HEADER_BYTES] = header_at(payload, 0)?;
    check_crc("entry header", 0, &header[..28], u32_at(header, 28))?;
    if header[1] != VERSION {
        return Err(EntryError::Version { found: header[1] });
    }
    if u32_at(header, 24) != 0 {
        return Err(EntryError::Reserved { at: 24 });
    }
    let ops = usize::from(u16::from_le_bytes([header[2], header[3]]));
    if ops > ENTRY_OPS_MAX {
        return Err(EntryError::Ops { found: ops });
    }
    let bytes = u32_at(header, 4) as usize;
    if payload.len() < bytes {
        return Err(EntryError::Short { at: 0, found: payload.len(), expected: bytes });
    }
    let mut at = ENTRY_HEADER_BYTES;
    for _ in 0..ops {
        let (op, data) = op_at(payload, at)?;
        check_crc("op data", at + OP_HEADER_BYTES, data, op.data_crc)?;
        at += OP_HEADER_BYTES + data.len();
    }
    if at != bytes || at != payload.len() {
        return Err(EntryError::Trailing { found: payload.len(), expected: at });
    }
    Ok(WritesView { epoch: Epoch(u64_at(header, 8)), seq: WriteSeq(u64_at(header, 16)), payload: payload.clone(), ops })
}

fn decode_control(payload: &Bytes) -> Result<SetCommand, EntryError> {
    let header: &[u8; CONTROL_HEADER_BYTES] = header_at(payload, 0)?;
    let body = &payload[CONTROL_HEADER_BYTES..];
    check_crc("control command", CONTROL_HEADER_BYTES, body, u32_at(header, 4))?;
    if header[1] != VERSION {
        return Err(EntryError::Version { found: header[1] });
    }
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
