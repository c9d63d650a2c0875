//! Requests of a client during transmission, read from a buffer; payloads are split off it without a copy.

use crate::wire::*;
use bytes::{Buf, Bytes, BytesMut};
use holdfast_types::SECTOR_BYTES;
use holdfast_types::limits::REQUEST_BYTES_MAX;

/// The peer broke the protocol, and nothing behind the error can be trusted: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The bytes are no request.
    #[error("request: found magic {found:#010x}, expected {expected:#010x}")]
    Magic {
        /// Value received.
        found: u32,
        /// Magic of the negotiated headers.
        expected: u32,
    },
    /// A payload above the limit.
    #[error("request: found a payload of {found} bytes, expected at most {REQUEST_BYTES_MAX}")]
    PayloadTooLong {
        /// Its announced length.
        found: u64,
    },
}

/// The operation of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read `len` bytes.
    Read {
        /// Answer in one piece.
        unfragmented: bool,
    },
    /// Write this payload, `len` bytes.
    Write {
        /// The data.
        data: Bytes,
        /// Durable before the answer. R1 makes every write so.
        fua: bool,
    },
    /// Make `len` bytes read as zeroes.
    Zero {
        /// The space may be given back.
        punch: bool,
        /// Answer ENOTSUP unless this is faster than a write.
        fast: bool,
        /// Durable before the answer.
        fua: bool,
    },
    /// Give back the space of `len` bytes.
    Trim {
        /// Durable before the answer.
        fua: bool,
    },
    /// Make all answered writes durable.
    Flush,
    /// Expect reads here.
    Cache,
    /// Report allocation.
    BlockStatus {
        /// One extent only.
        one: bool,
    },
    /// The client leaves: finish the requests in progress, then close. No answer.
    Disconnect,
    /// An invalid request: answer with this error. Its payload, if any, is consumed.
    Bad(Errno),
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's id of it; returned in the answer.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Length in bytes. Beyond 32 bits with extended headers only.
    pub len: u64,
    /// Whether it is a read, which is refused in its own way.
    pub is_read: bool,
    /// What to do.
    pub command: Command,
}

impl Request {
    /// Checks the request against a device of `size` bytes.
    ///
    /// # Errors
    /// The error to answer with: misaligned, out of range, a write to a read-only export, or too long to be answered.
    pub fn check(&self, size: u64, read_only: bool, style: HeaderStyle) -> Result<(), Errno> {
        let writes = match &self.command {
            Command::Bad(errno) => return Err(*errno),
            Command::Flush | Command::Disconnect => return Ok(()),
            Command::Write { .. } | Command::Zero { .. } | Command::Trim { .. } => true,
            Command::Read { .. } | Command::Cache | Command::BlockStatus { .. } => false,
        };
        if writes && read_only {
            return Err(Errno::NotPermitted);
        }
        if !self.offset.is_multiple_of(SECTOR_BYTES) || !self.len.is_multiple_of(SECTOR_BYTES) {
            return Err(Errno::Invalid);
        }
        if self.offset.checked_add(self.len).is_none_or(|end| end > size) {
            let full = matches!(self.command, Command::Write { .. } | Command::Zero { .. });
            return Err(if full { Errno::NoSpace } else { Errno::Invalid });
        }
        match self.command {
            // A chunked answer can refuse a long read as such; a simple one can only report an invalid request.
            Command::Read { .. } if self.len > u64::from(REQUEST_BYTES_MAX) => {
                Err(if style == HeaderStyle::Simple { Errno::Invalid } else { Errno::Overflow })
            }
            // An answer must have at least one extent, and an extent of length 0 does not exist.
            Command::BlockStatus { .. } if self.len == 0 => Err(Errno::Invalid),
            _ => Ok(()),
        }
    }
}

/// Result of [`RequestDecoder::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// The buffer must grow by at least this many bytes first.
    Need(usize),
    /// A whole request.
    Request(Request),
}

#[derive(Clone, Copy, Debug)]
struct Header {
    flags: u16,
    kind: u16,
    cookie: u64,
    offset: u64,
    len: u64,
}

#[derive(Clone, Debug)]
enum State {
    Header,
    /// The header was consumed, its payload belongs to a write.
    Payload(Header),
    /// The header was consumed and refused: skip its payload without storing it.
    Skip(Header, u64),
}

/// Reads requests from a stream of bytes.
#[derive(Clone, Debug)]
pub struct RequestDecoder {
    style: HeaderStyle,
    allocation: bool,
    state: State,
}

impl RequestDecoder {
    /// A decoder for the negotiated properties.
    pub fn new(style: HeaderStyle, allocation: bool) -> Self {
        Self { style, allocation, state: State::Header }
    }

    /// Length of the awaited payload. Its memory must be accounted for before the buffer grows.
    pub fn payload_awaited(&self) -> Option<usize> {
        match &self.state {
            State::Payload(header) => Some(header.len as usize),
            State::Header | State::Skip(..) => None,
        }
    }

    /// Whether a client whose last bytes are these, the read ones first, has sent NBD_CMD_DISC. Takes no request, and
    /// needs no memory: payloads are passed over.
    pub fn ends_with_disconnect(&self, read: &[u8], left: &[u8]) -> bool {
        let mut rest = read.chain(left);
        let (mut kind, mut payload) = match &self.state {
            State::Header => (None, 0),
            State::Payload(header) => (Some(header.kind), header.len),
            State::Skip(header, missing) => (Some(header.kind), *missing),
        };
        loop {
            if (rest.remaining() as u64) < payload {
                return false;
            }
            rest.advance(payload as usize);
            if kind == Some(CMD_DISC) {
                return true;
            }
            let mut raw = [0; REQUEST_EXTENDED_BYTES];
            let raw = &mut raw[..self.header_bytes()];
            if rest.remaining() < raw.len() {
                return false;
            }
            rest.copy_to_slice(raw);
            let Ok(header) = self.parse(raw) else { return false };
            let Ok(announced) = self.payload_of(header) else { return false };
            (kind, payload) = (Some(header.kind), announced.unwrap_or(0));
        }
    }

    fn header_bytes(&self) -> usize {
        match self.style {
            HeaderStyle::Extended => REQUEST_EXTENDED_BYTES,
            HeaderStyle::Simple | HeaderStyle::Structured => REQUEST_BYTES,
        }
    }

    /// Length of the payload that a header announces. `None`: it announces none.
    fn payload_of(&self, header: Header) -> Result<Option<u64>, ProtocolError> {
        let announced = match self.style {
            HeaderStyle::Extended => header.flags & CMD_FLAG_PAYLOAD_LEN != 0,
            HeaderStyle::Simple | HeaderStyle::Structured => header.kind == CMD_WRITE,
        };
        if announced && header.len > u64::from(REQUEST_BYTES_MAX) {
            return Err(ProtocolError::PayloadTooLong { found: header.len });
        }
        Ok(announced.then_some(header.len))
    }

    /// Takes the next request off `input`.
    ///
    /// # Errors
    /// Close the connection.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Decoded, ProtocolError> {
        loop {
            match &mut self.state {
                State::Header => {
                    let bytes = self.header_bytes();
                    let Some(raw) = input.get(..bytes) else { return Ok(Decoded::Need(bytes - input.len())) };
                    let header = self.parse(raw)?;
                    input.advance(bytes);
                    if self.payload_of(header)?.is_none() {
                        return Ok(Decoded::Request(self.request(header, None)));
                    }
                    self.state = if header.kind == CMD_WRITE && self.flags_fit(header) {
                        State::Payload(header)
                    } else {
                        State::Skip(header, header.len)
                    };
                }
                State::Payload(header) => {
                    let header = *header;
                    let len = header.len as usize;
                    if input.len() < len {
                        return Ok(Decoded::Need(len - input.len()));
                    }
                    let data = input.split_to(len).freeze();
                    self.state = State::Header;
                    return Ok(Decoded::Request(self.request(header, Some(data))));
                }
                State::Skip(header, left) => {
                    let skipped = (input.len() as u64).min(*left);
                    input.advance(skipped as usize);
                    *left -= skipped;
                    if *left > 0 {
                        return Ok(Decoded::Need(1));
                    }
                    let header = *header;
                    self.state = State::Header;
                    return Ok(Decoded::Request(self.request(header, None)));
                }
            }
        }
    }

    fn parse(&self, mut raw: &[u8]) -> Result<Header, ProtocolError> {
        let (found, expected) = (
            raw.get_u32(),
            match self.style {
                HeaderStyle::Extended => MAGIC_REQUEST_EXTENDED,
                HeaderStyle::Simple | HeaderStyle::Structured => MAGIC_REQUEST,
            },
        );
        if found != expected {
            return Err(ProtocolError::Magic { found, expected });
        }
        let (flags, kind, cookie, offset) = (raw.get_u16(), raw.get_u16(), raw.get_u64(), raw.get_u64());
        let len = match self.style {
            HeaderStyle::Extended => raw.get_u64(),
            HeaderStyle::Simple | HeaderStyle::Structured => u64::from(raw.get_u32()),
        };
        Ok(Header { flags, kind, cookie, offset, len })
    }

    /// Whether the specification allows the flags with this command.
    fn flags_fit(&self, header: Header) -> bool {
        let own = match header.kind {
            CMD_READ if self.style != HeaderStyle::Simple => CMD_FLAG_DF,
            CMD_WRITE if self.style == HeaderStyle::Extended => CMD_FLAG_PAYLOAD_LEN,
            CMD_WRITE_ZEROES => CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
            CMD_BLOCK_STATUS => CMD_FLAG_REQ_ONE,
            _ => 0,
        };
        // "The server MUST accept all commands with [FUA] set (even by ignoring the bit)."
        header.flags & !(own | CMD_FLAG_FUA) == 0
    }

    fn request(&self, header: Header, data: Option<Bytes>) -> Request {
        let has = |flag| header.flags & flag != 0;
        let fua = has(CMD_FLAG_FUA);
        let command = match (header.kind, data) {
            (CMD_DISC, _) => Command::Disconnect,
            _ if !self.flags_fit(header) => Command::Bad(Errno::Invalid),
            (CMD_WRITE, Some(data)) => Command::Write { data, fua },
            (CMD_READ, _) => Command::Read { unfragmented: has(CMD_FLAG_DF) },
            (CMD_FLUSH, _) => Command::Flush,
            (CMD_TRIM, _) => Command::Trim { fua },
            (CMD_CACHE, _) => Command::Cache,
            (CMD_WRITE_ZEROES, _) => {
                Command::Zero { punch: !has(CMD_FLAG_NO_HOLE), fast: has(CMD_FLAG_FAST_ZERO), fua }
            }
            (CMD_BLOCK_STATUS, _) if self.allocation => Command::BlockStatus { one: has(CMD_FLAG_REQ_ONE) },
            _ => Command::Bad(Errno::Invalid),
        };
        let Header { cookie, offset, len, kind, .. } = header;
        Request { cookie, offset, len, is_read: kind == CMD_READ, command }
    }
}
