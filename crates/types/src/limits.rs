//! Bounds that several rooms must agree on, each with its reason; their relations are asserted below.
//! What a person may turn is configuration, not a constant.

use crate::SECTOR_BYTES;

/// Preferred block size in bytes: what ZFS (ashift 12) and PostgreSQL write.
pub const BLOCK_PREFERRED_BYTES: u32 = 4096;

/// Largest payload of one NBD request in bytes; what the kernel and libnbd send at most.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// One NBD write up to this size is one entry and never torn (R5), in bytes.
pub const ATOMIC_WRITE_BYTES_MAX: usize = 1 << 20;

/// Operations in one entry at most: bounds what one apply does.
pub const ENTRY_OPS_MAX: usize = 1024;

/// Room for the entry's own header and that of each operation, in bytes.
pub const ENTRY_HEADER_BYTES_MAX: usize = 64 << 10;

/// One Raft entry's payload at most, in bytes: openraft bounds batches by number only, so the entry itself must be
/// bounded.
pub const ENTRY_BYTES_MAX: usize = ATOMIC_WRITE_BYTES_MAX + ENTRY_HEADER_BYTES_MAX;

/// Bytes of entries that one append to a peer carries at most, unless a single entry is larger.
pub const APPEND_BYTES_MAX: usize = 4 << 20;

/// gRPC message size between gateways, in bytes: an append plus its envelope.
pub const PEER_MESSAGE_BYTES_MAX: usize = 2 * APPEND_BYTES_MAX;

/// A group's whole state, in bytes, which is sent in pieces: the largest that a set's may be, and an envelope. That of
/// the cluster's own group grows with the snapshots that recovered sets list.
pub const PEER_SNAPSHOT_BYTES_MAX: usize = (64 << 20) + (1 << 20);

/// Raw bytes sealed together in one extent at most: the unit of a read from the store.
pub const EXTENT_BYTES_MAX: usize = 128 << 10;

/// Size at which a segment is closed, in bytes.
pub const SEGMENT_BYTES_TARGET: usize = 16 << 20;

/// Largest volume in sectors: 1 PiB. Keeps every byte offset far from the end of 63 bits.
pub const VOLUME_SECTORS_MAX: u64 = (1 << 50) / SECTOR_BYTES;

/// Volumes of one set at most.
pub const VOLUMES_PER_SET_MAX: usize = 256;

const _: () = assert!(ENTRY_BYTES_MAX <= APPEND_BYTES_MAX);
const _: () = assert!(APPEND_BYTES_MAX + ENTRY_BYTES_MAX < PEER_MESSAGE_BYTES_MAX);
const _: () = assert!(EXTENT_BYTES_MAX < SEGMENT_BYTES_TARGET);
const _: () = assert!(ATOMIC_WRITE_BYTES_MAX.is_multiple_of(SECTOR_BYTES as usize));
