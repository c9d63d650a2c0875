//! Numbers and lengths of an entry of writes, as `entry.rs` draws it.

use holdfast_types::SECTOR_BYTES;
use holdfast_types::limits::{ATOMIC_WRITE_BYTES_MAX, ENTRY_BYTES_MAX, ENTRY_OPS_MAX};

/// First byte of an entry that carries writes.
pub(super) const TAG_WRITES: u8 = 1;
/// First byte of an entry that carries a command.
pub(super) const TAG_CONTROL: u8 = 2;
/// The only version of entries of writes that is read and written. Version 1 had no seal, and headers between the data.
pub(super) const VERSION_WRITES: u8 = 2;
/// The only version of control entries that is read and written.
pub(super) const VERSION_CONTROL: u8 = 1;
/// Begins a block ("op"). It distinguishes a read at a wrong offset from a bad checksum.
pub(super) const BLOCK_MAGIC: u16 = u16::from_le_bytes(*b"op");

/// Bytes of the header of an entry of writes.
pub const ENTRY_HEADER_BYTES: usize = 72;
/// Bytes of one op in the front.
pub const OP_BYTES: usize = 24;
/// Blocks begin at multiples of this (ENTRY-E2).
pub const ENTRY_GRID_BYTES: usize = 32;
/// Data bytes under one tag. A small read of a large op opens no more than the units that it touches.
pub const UNIT_BYTES: usize = 16 << 10;
/// Bytes of the header of a control entry.
pub const CONTROL_HEADER_BYTES: usize = 8;
/// Sectors that one write carries at most.
pub const WRITE_SECTORS_MAX: u64 = ATOMIC_WRITE_BYTES_MAX as u64 / SECTOR_BYTES;

/// Bytes of a block before its first tag.
pub(super) const BLOCK_FIXED_BYTES: usize = 16;

/// Bytes of the front of an entry with so many ops.
pub(super) const fn front_bytes(ops: usize) -> usize {
    (ENTRY_HEADER_BYTES + OP_BYTES * ops).next_multiple_of(ENTRY_GRID_BYTES)
}

/// Bytes of a block before its data.
pub(super) const fn block_head_bytes(data: usize) -> usize {
    (BLOCK_FIXED_BYTES + holdfast_seal::TAG_BYTES * data.div_ceil(UNIT_BYTES)).next_multiple_of(ENTRY_GRID_BYTES)
}

/// Bytes of the block of an op with so many bytes of data; an op without data has none.
pub(super) const fn block_bytes(data: usize) -> usize {
    if data == 0 { 0 } else { block_head_bytes(data) + data }
}

// One atomic write always fits an empty entry (R5), and so do the heads of `ENTRY_OPS_MAX` small writes.
const _: () = assert!(front_bytes(1) + block_bytes(ATOMIC_WRITE_BYTES_MAX) <= ENTRY_BYTES_MAX);
const _: () = assert!(
    front_bytes(ENTRY_OPS_MAX) + ENTRY_OPS_MAX * block_head_bytes(1) <= ENTRY_BYTES_MAX - ATOMIC_WRITE_BYTES_MAX
);
const _: () = assert!(ENTRY_OPS_MAX <= u16::MAX as usize && ENTRY_BYTES_MAX <= u32::MAX as usize);
const _: () = assert!((SECTOR_BYTES as usize).is_multiple_of(ENTRY_GRID_BYTES));
