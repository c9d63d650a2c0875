//! Protocol numbers, named as in the NBD specification, and the few types that both sides share.

use holdfast_types::limits;

pub(crate) const MAGIC_GREETING: u64 = 0x4e42_444d_4147_4943;
pub(crate) const MAGIC_OPTION: u64 = 0x4948_4156_454f_5054;
pub(crate) const MAGIC_OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
pub(crate) const MAGIC_REQUEST: u32 = 0x2560_9513;
pub(crate) const MAGIC_REQUEST_EXTENDED: u32 = 0x21e4_1c71;
pub(crate) const MAGIC_REPLY_SIMPLE: u32 = 0x6744_6698;
pub(crate) const MAGIC_REPLY_STRUCTURED: u32 = 0x668e_33ef;
pub(crate) const MAGIC_REPLY_EXTENDED: u32 = 0x6e8a_278c;

pub(crate) const FLAG_FIXED_NEWSTYLE: u16 = 1;
pub(crate) const FLAG_NO_ZEROES: u16 = 1 << 1;
/// Zero bytes after the answer to NBD_OPT_EXPORT_NAME, unless the client declined them.
pub(crate) const EXPORT_NAME_PADDING: usize = 124;

pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_ABORT: u32 = 2;
pub(crate) const OPT_LIST: u32 = 3;
pub(crate) const OPT_STARTTLS: u32 = 5;
pub(crate) const OPT_INFO: u32 = 6;
pub(crate) const OPT_GO: u32 = 7;
pub(crate) const OPT_STRUCTURED_REPLY: u32 = 8;
pub(crate) const OPT_LIST_META_CONTEXT: u32 = 9;
pub(crate) const OPT_SET_META_CONTEXT: u32 = 10;
pub(crate) const OPT_EXTENDED_HEADERS: u32 = 11;

pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_SERVER: u32 = 2;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const REP_META_CONTEXT: u32 = 4;
/// Set in every reply type that is an error.
pub(crate) const REP_ERROR: u32 = 1 << 31;
pub(crate) const REP_ERR_UNSUP: u32 = REP_ERROR + 1;
pub(crate) const REP_ERR_POLICY: u32 = REP_ERROR + 2;
pub(crate) const REP_ERR_INVALID: u32 = REP_ERROR + 3;
pub(crate) const REP_ERR_TLS_REQD: u32 = REP_ERROR + 5;
pub(crate) const REP_ERR_UNKNOWN: u32 = REP_ERROR + 6;
pub(crate) const REP_ERR_SHUTDOWN: u32 = REP_ERROR + 7;
pub(crate) const REP_ERR_TOO_BIG: u32 = REP_ERROR + 9;
pub(crate) const REP_ERR_EXT_HEADER_REQD: u32 = REP_ERROR + 10;

pub(crate) const INFO_EXPORT: u16 = 0;
pub(crate) const INFO_NAME: u16 = 1;
pub(crate) const INFO_DESCRIPTION: u16 = 2;
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

pub(crate) const CMD_READ: u16 = 0;
pub(crate) const CMD_WRITE: u16 = 1;
pub(crate) const CMD_DISC: u16 = 2;
pub(crate) const CMD_FLUSH: u16 = 3;
pub(crate) const CMD_TRIM: u16 = 4;
pub(crate) const CMD_CACHE: u16 = 5;
pub(crate) const CMD_WRITE_ZEROES: u16 = 6;
pub(crate) const CMD_BLOCK_STATUS: u16 = 7;

pub(crate) const CMD_FLAG_FUA: u16 = 1;
pub(crate) const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub(crate) const CMD_FLAG_DF: u16 = 1 << 2;
pub(crate) const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub(crate) const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;
pub(crate) const CMD_FLAG_PAYLOAD_LEN: u16 = 1 << 5;

pub(crate) const REPLY_FLAG_DONE: u16 = 1;
pub(crate) const REPLY_NONE: u16 = 0;
pub(crate) const REPLY_OFFSET_DATA: u16 = 1;
pub(crate) const REPLY_OFFSET_HOLE: u16 = 2;
pub(crate) const REPLY_BLOCK_STATUS: u16 = 5;
pub(crate) const REPLY_BLOCK_STATUS_EXT: u16 = 6;
pub(crate) const REPLY_ERROR_BIT: u16 = 1 << 15;
pub(crate) const REPLY_ERROR: u16 = REPLY_ERROR_BIT + 1;

pub(crate) const STATE_HOLE: u32 = 1;
pub(crate) const STATE_ZERO: u32 = 1 << 1;

/// Name of the one supported metadata context.
pub(crate) const CONTEXT_ALLOCATION: &str = "base:allocation";
/// Its id on the wire, as our server assigns it.
pub(crate) const CONTEXT_ALLOCATION_ID: u32 = 1;

/// Bytes of a request header, compact and extended.
pub(crate) const REQUEST_BYTES: usize = 28;
pub(crate) const REQUEST_EXTENDED_BYTES: usize = 32;

/// Longest string of the protocol, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;

/// Capabilities of an export, as its 16 transmission flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransmissionFlags(pub u16);

impl TransmissionFlags {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// NBD_CMD_FLUSH.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag.
    pub const SEND_FUA: u16 = 1 << 3;
    /// NBD_CMD_TRIM.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// NBD_CMD_WRITE_ZEROES and its NO_HOLE flag.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag of a read.
    pub const SEND_DF: u16 = 1 << 7;
    /// Several connections see each other's writes.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// NBD_CMD_CACHE.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The FAST_ZERO flag of write-zeroes.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;

    /// Whether all of `flags` are set.
    pub fn has(self, flags: u16) -> bool {
        self.0 & flags == flags
    }

    /// Our server's flags. Several connections of one device are equivalent: with R1 there is no cache between them.
    pub(crate) fn of_server(style: HeaderStyle, read_only: bool) -> Self {
        let mut flags = Self::HAS_FLAGS
            | Self::SEND_FLUSH
            | Self::SEND_FUA
            | Self::SEND_TRIM
            | Self::SEND_WRITE_ZEROES
            | Self::CAN_MULTI_CONN
            | Self::SEND_CACHE
            | Self::SEND_FAST_ZERO;
        if style != HeaderStyle::Simple {
            flags |= Self::SEND_DF;
        }
        if read_only {
            flags |= Self::READ_ONLY;
        }
        Self(flags)
    }
}

/// The negotiated headers of the transmission phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    /// 28-byte requests, simple replies only.
    Simple,
    /// 28-byte requests, reads are answered in structured chunks.
    Structured,
    /// 32-byte requests with 64-bit lengths, every reply is an extended chunk.
    Extended,
}

/// Block sizes in bytes that an export asks its clients to respect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Smallest length and alignment.
    pub minimum: u32,
    /// Preferred alignment.
    pub preferred: u32,
    /// Largest payload of a read or write.
    pub payload_max: u32,
}

impl BlockSizes {
    /// Our server's block sizes.
    pub const OURS: BlockSizes = BlockSizes {
        minimum: holdfast_types::SECTOR_BYTES as u32,
        preferred: limits::BLOCK_PREFERRED_BYTES,
        payload_max: limits::REQUEST_BYTES_MAX,
    };
}

const _: () = assert!(holdfast_types::SECTOR_BYTES.is_power_of_two());
const _: () = assert!(holdfast_types::SECTOR_BYTES <= limits::BLOCK_PREFERRED_BYTES as u64);
// "Any payload not exceeding 2^25 bytes SHOULD NOT be considered a denial of service attack."
const _: () = assert!(limits::REQUEST_BYTES_MAX >= 1 << 25);

/// The errors that a reply can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Errno {
    /// EPERM.
    NotPermitted,
    /// EIO.
    Io,
    /// ENOMEM.
    NoMemory,
    /// EINVAL.
    Invalid,
    /// ENOSPC.
    NoSpace,
    /// EOVERFLOW.
    Overflow,
    /// ENOTSUP.
    NotSupported,
    /// ESHUTDOWN. R8: our server never sends it.
    Shutdown,
}

impl Errno {
    /// The number on the wire.
    pub fn to_wire(self) -> u32 {
        match self {
            Errno::NotPermitted => 1,
            Errno::Io => 5,
            Errno::NoMemory => 12,
            Errno::Invalid => 22,
            Errno::NoSpace => 28,
            Errno::Overflow => 75,
            Errno::NotSupported => 95,
            Errno::Shutdown => 108,
        }
    }

    /// The error of a number: an unknown one counts as EINVAL, as the specification requires of clients.
    pub fn from_wire(number: u32) -> Self {
        match number {
            1 => Errno::NotPermitted,
            5 => Errno::Io,
            12 => Errno::NoMemory,
            28 => Errno::NoSpace,
            75 => Errno::Overflow,
            95 => Errno::NotSupported,
            108 => Errno::Shutdown,
            _ => Errno::Invalid,
        }
    }
}

/// An allocated run of a volume, or a hole that reads as zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// Not allocated, reads as zeroes.
    pub hole: bool,
}
