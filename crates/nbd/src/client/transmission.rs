//! Requests out, replies in. The decoder keeps the requests in flight: a simple reply does not say whether data follows
//! it.

use super::Connected;
use crate::wire::*;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::BTreeMap;

/// Most pieces of one read: it bounds the memory that a server can make us use.
const PIECES_MAX: usize = 64 << 10;
/// Longest payload of a status chunk, in bytes: 2^20 extents, as the specification advises servers.
const STATUS_BYTES_MAX: u64 = 8 + (16 << 20);

/// The operation. The caller sends a write's payload after the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOut {
    /// Read.
    Read {
        /// Answer in one piece.
        unfragmented: bool,
    },
    /// Write; the payload follows.
    Write {
        /// Durable before the answer.
        fua: bool,
    },
    /// Make read as zeroes.
    Zero {
        /// The space may be given back.
        punch: bool,
        /// Fail rather than be slow.
        fast: bool,
        /// Durable before the answer.
        fua: bool,
    },
    /// Give back the space.
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
    /// Leave. No answer.
    Disconnect,
}

/// One request to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestOut {
    /// Returned in the answer; distinct from those in flight.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Length in bytes; beyond 32 bits with extended headers only.
    pub len: u64,
    /// What to ask for.
    pub command: CommandOut,
}

/// A request does not fit the negotiated headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request: found a length of {found}, expected 32 bits without extended headers")]
pub struct RequestTooLong {
    /// Its length in bytes.
    pub found: u64,
}

/// Appends the header of `request` to `out`.
///
/// # Errors
/// Nothing is appended where the length does not fit the headers.
pub fn encode_request(out: &mut BytesMut, style: HeaderStyle, request: &RequestOut) -> Result<(), RequestTooLong> {
    let compact_len = u32::try_from(request.len);
    if compact_len.is_err() && style != HeaderStyle::Extended {
        return Err(RequestTooLong { found: request.len });
    }
    let flag = |set: bool, flag: u16| if set { flag } else { 0 };
    let (kind, flags) = match request.command {
        CommandOut::Read { unfragmented } => (CMD_READ, flag(unfragmented, CMD_FLAG_DF)),
        CommandOut::Write { fua } => {
            (CMD_WRITE, flag(fua, CMD_FLAG_FUA) | flag(style == HeaderStyle::Extended, CMD_FLAG_PAYLOAD_LEN))
        }
        CommandOut::Zero { punch, fast, fua } => (
            CMD_WRITE_ZEROES,
            flag(!punch, CMD_FLAG_NO_HOLE) | flag(fast, CMD_FLAG_FAST_ZERO) | flag(fua, CMD_FLAG_FUA),
        ),
        CommandOut::Trim { fua } => (CMD_TRIM, flag(fua, CMD_FLAG_FUA)),
        CommandOut::Flush => (CMD_FLUSH, 0),
        CommandOut::Cache => (CMD_CACHE, 0),
        CommandOut::BlockStatus { one } => (CMD_BLOCK_STATUS, flag(one, CMD_FLAG_REQ_ONE)),
        CommandOut::Disconnect => (CMD_DISC, 0),
    };
    let extended = style == HeaderStyle::Extended;
    out.put_u32(if extended { MAGIC_REQUEST_EXTENDED } else { MAGIC_REQUEST });
    out.put_u16(flags);
    out.put_u16(kind);
    out.put_u64(request.cookie);
    out.put_u64(request.offset);
    if extended {
        out.put_u64(request.len);
    } else {
        out.put_u32(compact_len.unwrap_or_default());
    }
    Ok(())
}

/// An event from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A piece of a read.
    Data {
        /// The request.
        cookie: u64,
        /// Where the piece begins on the device.
        offset: u64,
        /// The piece.
        data: Bytes,
    },
    /// A piece of a read that is all zeroes.
    Hole {
        /// The request.
        cookie: u64,
        /// Where the piece begins on the device.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Allocation, from the request's offset on.
    Status {
        /// The request.
        cookie: u64,
        /// The extents.
        extents: Vec<Extent>,
    },
    /// The request is answered; nothing more follows for its cookie. The pieces of a successful read cover it.
    Done {
        /// The request.
        cookie: u64,
        /// Its result.
        result: Result<(), Errno>,
    },
}

/// The server broke the protocol: close the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// The bytes are no reply.
    #[error("reply: found magic {found:#010x}, expected one that was negotiated")]
    Magic {
        /// Value received.
        found: u32,
    },
    /// A reply to no request in flight.
    #[error("reply: found cookie {found:#x}, expected one in flight")]
    Cookie {
        /// Value received.
        found: u64,
    },
    /// A chunk that does not fit its request.
    #[error("reply chunk: found type {kind} with {found} bytes, expected {expected}")]
    Chunk {
        /// Its type.
        kind: u16,
        /// Its length.
        found: u64,
        /// What was expected.
        expected: &'static str,
    },
}

#[derive(Debug)]
struct InFlight {
    offset: u64,
    len: u64,
    is_read: bool,
    is_status: bool,
    /// Bytes of a read received so far.
    covered: u64,
    /// Pieces of a read received so far, by offset: in any order, but without overlap.
    pieces: BTreeMap<u64, u64>,
    failed: Option<Errno>,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    done: bool,
    kind: u16,
    cookie: u64,
    len: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Header,
    /// A simple reply's header was consumed, its data follows.
    SimpleData(u64),
    Chunk(Chunk),
}

/// Reads replies from a stream of bytes.
#[derive(Debug)]
pub struct ReplyDecoder {
    style: HeaderStyle,
    allocation: Option<u32>,
    in_flight: BTreeMap<u64, InFlight>,
    state: State,
    /// A further event from the same bytes.
    next: Option<Event>,
}

impl ReplyDecoder {
    /// A decoder for the negotiated properties.
    pub fn new(connected: &Connected) -> Self {
        Self {
            style: connected.style,
            allocation: connected.allocation,
            in_flight: BTreeMap::new(),
            state: State::Header,
            next: None,
        }
    }

    /// Notes that `request` is being sent. `false` if its cookie is in flight already: then it must not be sent.
    #[must_use]
    pub fn sent(&mut self, request: &RequestOut) -> bool {
        if request.command == CommandOut::Disconnect {
            return true;
        }
        if self.in_flight.contains_key(&request.cookie) {
            return false;
        }
        let entry = InFlight {
            offset: request.offset,
            len: request.len,
            is_read: matches!(request.command, CommandOut::Read { .. }),
            is_status: matches!(request.command, CommandOut::BlockStatus { .. }),
            covered: 0,
            pieces: BTreeMap::new(),
            failed: None,
        };
        self.in_flight.insert(request.cookie, entry);
        true
    }

    /// Cookies of unanswered requests, in cookie order: a replay must send these again.
    pub fn unanswered(&self) -> impl Iterator<Item = u64> + '_ {
        self.in_flight.keys().copied()
    }

    /// Takes the next event off `input`. `None`: more bytes are needed.
    ///
    /// # Errors
    /// Close the connection.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Event>, ReplyError> {
        loop {
            if let Some(event) = self.next.take() {
                return Ok(Some(event));
            }
            match self.state {
                State::Header => {
                    if !self.header(input)? {
                        return Ok(None);
                    }
                }
                State::SimpleData(cookie) => {
                    let request = self.in_flight.get(&cookie).ok_or(ReplyError::Cookie { found: cookie })?;
                    let (offset, len) = (request.offset, request.len as usize);
                    if input.len() < len {
                        return Ok(None);
                    }
                    let data = input.split_to(len).freeze();
                    self.state = State::Header;
                    self.in_flight.remove(&cookie);
                    self.next = Some(Event::Done { cookie, result: Ok(()) });
                    return Ok(Some(Event::Data { cookie, offset, data }));
                }
                State::Chunk(chunk) => {
                    if (input.len() as u64) < chunk.len {
                        return Ok(None);
                    }
                    let payload = input.split_to(chunk.len as usize).freeze();
                    self.state = State::Header;
                    if let Some(event) = self.chunk(chunk, payload)? {
                        return Ok(Some(event));
                    }
                }
            }
        }
    }

    fn header(&mut self, input: &mut BytesMut) -> Result<bool, ReplyError> {
        let Some(mut raw) = input.get(..4) else { return Ok(false) };
        let found = raw.get_u32();
        let bytes = match (found, self.style) {
            (MAGIC_REPLY_SIMPLE, HeaderStyle::Simple | HeaderStyle::Structured) => 16,
            (MAGIC_REPLY_STRUCTURED, HeaderStyle::Structured) => 20,
            (MAGIC_REPLY_EXTENDED, HeaderStyle::Extended) => 32,
            _ => return Err(ReplyError::Magic { found }),
        };
        let Some(mut raw) = input.get(4..bytes) else { return Ok(false) };
        if found == MAGIC_REPLY_SIMPLE {
            let (error, cookie) = (raw.get_u32(), raw.get_u64());
            input.advance(bytes);
            let request = self.in_flight.get(&cookie).ok_or(ReplyError::Cookie { found: cookie })?;
            if self.style == HeaderStyle::Structured && (request.is_read || request.is_status) {
                // Errors too: a read must be answered in chunks once those were negotiated.
                return Err(ReplyError::Magic { found });
            }
            if request.is_read && request.len > 0 && error == 0 {
                self.state = State::SimpleData(cookie);
                return Ok(true);
            }
            self.in_flight.remove(&cookie);
            let result = if error == 0 { Ok(()) } else { Err(Errno::from_wire(error)) };
            self.next = Some(Event::Done { cookie, result });
            return Ok(true);
        }
        let (flags, kind, cookie) = (raw.get_u16(), raw.get_u16(), raw.get_u64());
        let request = self.in_flight.get(&cookie).ok_or(ReplyError::Cookie { found: cookie })?;
        let len = if self.style == HeaderStyle::Extended {
            let offset = raw.get_u64();
            if offset != request.offset {
                return Err(ReplyError::Chunk { kind, found: offset, expected: "its request's offset" });
            }
            raw.get_u64()
        } else {
            u64::from(raw.get_u32())
        };
        let most = match kind {
            REPLY_OFFSET_DATA if request.is_read => request.len.saturating_add(8),
            REPLY_BLOCK_STATUS | REPLY_BLOCK_STATUS_EXT if request.is_status => STATUS_BYTES_MAX,
            // An error and its message, and room for additions of later versions.
            _ => 2 * STRING_BYTES_MAX as u64,
        };
        if len > most {
            return Err(ReplyError::Chunk { kind, found: len, expected: "a shorter one" });
        }
        input.advance(bytes);
        self.state = State::Chunk(Chunk { done: flags & REPLY_FLAG_DONE != 0, kind, cookie, len });
        Ok(true)
    }

    fn chunk(&mut self, chunk: Chunk, mut payload: Bytes) -> Result<Option<Event>, ReplyError> {
        let Chunk { done, kind, cookie, .. } = chunk;
        let bad = |expected| chunk.bad(expected);
        let request = self.in_flight.get_mut(&cookie).ok_or(ReplyError::Cookie { found: cookie })?;
        let event = match kind {
            REPLY_NONE if payload.is_empty() && done => None,
            REPLY_OFFSET_DATA if request.is_read && payload.len() > 8 => {
                let offset = payload.get_u64();
                request.cover(offset, payload.len() as u64).ok_or(bad("a piece of its read, once"))?;
                Some(Event::Data { cookie, offset, data: payload })
            }
            REPLY_OFFSET_HOLE if request.is_read && payload.len() == 12 => {
                let (offset, len) = (payload.get_u64(), u64::from(payload.get_u32()));
                request.cover(offset, len).ok_or(bad("a piece of its read, once"))?;
                Some(Event::Hole { cookie, offset, len })
            }
            REPLY_BLOCK_STATUS | REPLY_BLOCK_STATUS_EXT if request.is_status => {
                let extents = chunk.extents(self.style, self.allocation, payload)?;
                Some(Event::Status { cookie, extents })
            }
            _ if kind & REPLY_ERROR_BIT != 0 => {
                request.failed.get_or_insert(chunk.errno(payload)?);
                None
            }
            _ => return Err(bad("one that fits the request")),
        };
        if !done {
            return Ok(event);
        }
        let result = match request.failed {
            Some(errno) => Err(errno),
            None if request.is_read && request.covered != request.len => return Err(bad("the rest of the read")),
            None => Ok(()),
        };
        self.in_flight.remove(&cookie);
        let end = Event::Done { cookie, result };
        Ok(Some(match event {
            None => end,
            Some(event) => {
                self.next = Some(end);
                event
            }
        }))
    }
}

impl Chunk {
    fn bad(&self, expected: &'static str) -> ReplyError {
        ReplyError::Chunk { kind: self.kind, found: self.len, expected }
    }

    /// The extents of a block status.
    fn extents(
        &self,
        style: HeaderStyle,
        allocation: Option<u32>,
        mut payload: Bytes,
    ) -> Result<Vec<Extent>, ReplyError> {
        let extended = self.kind == REPLY_BLOCK_STATUS_EXT;
        if extended != (style == HeaderStyle::Extended) {
            return Err(self.bad("the status chunk of the negotiated headers"));
        }
        let (prefix, each) = if extended { (8, 16) } else { (4, 8) };
        if payload.len() < prefix + each || !(payload.len() - prefix).is_multiple_of(each) {
            return Err(self.bad("a context's id and at least one extent"));
        }
        let id = payload.get_u32();
        if extended {
            payload.advance(4);
        }
        if Some(id) != allocation {
            return Err(self.bad("the context that was chosen"));
        }
        let mut extents = Vec::with_capacity(payload.len() / each);
        while payload.has_remaining() {
            let (len, state) = if extended {
                (payload.get_u64(), payload.get_u64())
            } else {
                (u64::from(payload.get_u32()), u64::from(payload.get_u32()))
            };
            let both = u64::from(STATE_HOLE | STATE_ZERO);
            extents.push(Extent { len, hole: state & both == both });
        }
        Ok(extents)
    }

    /// The error of a chunk that reports one.
    fn errno(&self, mut payload: Bytes) -> Result<Errno, ReplyError> {
        if payload.len() < 6 {
            return Err(self.bad("an error's number and message"));
        }
        let (errno, message) = (payload.get_u32(), usize::from(payload.get_u16()));
        if message > payload.len() {
            return Err(self.bad("a message within its chunk"));
        }
        Ok(Errno::from_wire(errno))
    }
}

impl InFlight {
    /// Notes a piece of a read. `None` if it is empty, outside the request, or overlaps an earlier one.
    fn cover(&mut self, offset: u64, len: u64) -> Option<()> {
        let (end, request_end) = (offset.checked_add(len)?, self.offset.checked_add(self.len)?);
        if len == 0 || offset < self.offset || end > request_end || self.pieces.len() == PIECES_MAX {
            return None;
        }
        let before = self.pieces.range(..end).next_back();
        if before.is_some_and(|(_, before_end)| *before_end > offset) {
            return None;
        }
        self.pieces.insert(offset, end);
        self.covered += len;
        Some(())
    }
}
