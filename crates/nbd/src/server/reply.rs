//! Answers, as a queue of byte strings for vectored writes: headers share one buffer, data is passed on without a copy.

use crate::wire::*;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::collections::VecDeque;
use std::io::IoSlice;

/// Most extents in one answer to NBD_CMD_BLOCK_STATUS; the client asks again from its end.
pub const EXTENTS_PER_REPLY_MAX: usize = 16 << 10;

/// Data up to this length is copied behind its header: cheaper than a slice of its own.
const COPY_BYTES_MAX: usize = 4096;
/// Capacity that the header buffer keeps while the queue is empty.
const OPEN_BYTES_KEPT: usize = 64 << 10;
/// A run of zeroes below this length is sent as data: a separate chunk would cost the client more.
const HOLE_BYTES_MIN: u64 = 4096;

static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// A part of a read's data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadPart {
    /// Bytes as stored.
    Data(Bytes),
    /// This many zero bytes, never written or trimmed. Takes no memory; sent as a hole if the client supports that.
    Zeroes(u32),
}

impl ReadPart {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            ReadPart::Data(data) => data.len() as u64,
            ReadPart::Zeroes(len) => u64::from(*len),
        }
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The answered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyTo {
    /// The request's cookie.
    pub cookie: u64,
    /// The request's offset.
    pub offset: u64,
    /// Whether it was a read.
    pub is_read: bool,
}

/// Answers that wait to be sent, oldest first.
#[derive(Debug)]
pub struct ReplyQueue {
    style: HeaderStyle,
    sealed: VecDeque<Bytes>,
    /// Headers encoded since the last piece of data.
    open: BytesMut,
    len: usize,
}

impl ReplyQueue {
    /// An empty queue for the negotiated headers.
    pub fn new(style: HeaderStyle) -> Self {
        Self { style, sealed: VecDeque::new(), open: BytesMut::new(), len: 0 }
    }

    /// Bytes in the queue.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `slices` from the front of the queue, and returns how many were filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let open: &[u8] = &self.open;
        let all = self.sealed.iter().map(|bytes| &bytes[..]).chain((!open.is_empty()).then_some(open));
        slices.iter_mut().zip(all).map(|(slot, bytes)| *slot = IoSlice::new(bytes)).count()
    }

    /// Takes the first `sent` bytes off.
    pub fn advance(&mut self, sent: usize) {
        let mut left = sent.min(self.len);
        self.len -= left;
        while let Some(first) = self.sealed.front_mut() {
            if first.len() > left {
                return first.advance(left);
            }
            left -= first.len();
            self.sealed.pop_front();
        }
        if left == self.open.len() && self.open.capacity() > OPEN_BYTES_KEPT {
            self.open = BytesMut::new();
        } else if left == self.open.len() {
            // Keeps the allocation: single requests then allocate nothing.
            self.open.clear();
        } else {
            self.open.advance(left);
        }
    }

    fn head(&mut self, bytes: usize) -> &mut BytesMut {
        self.len += bytes;
        self.open.reserve(bytes);
        &mut self.open
    }

    fn data(&mut self, data: Bytes) {
        if data.len() <= COPY_BYTES_MAX {
            self.head(data.len()).put_slice(&data);
            return;
        }
        if !self.open.is_empty() {
            self.sealed.push_back(self.open.split().freeze());
        }
        self.len += data.len();
        self.sealed.push_back(data);
    }

    fn zeroes(&mut self, mut len: u64) {
        while len > 0 {
            let piece = len.min(ZEROES.len() as u64);
            self.data(Bytes::from_static(&ZEROES[..piece as usize]));
            len -= piece;
        }
    }

    fn simple(&mut self, to: ReplyTo, error: u32) {
        let head = self.head(16);
        head.put_u32(MAGIC_REPLY_SIMPLE);
        head.put_u32(error);
        head.put_u64(to.cookie);
    }

    fn chunk(&mut self, to: ReplyTo, done: bool, kind: u16, payload: u64) {
        let extended = self.style == HeaderStyle::Extended;
        let head = self.head(if extended { 32 } else { 20 });
        head.put_u32(if extended { MAGIC_REPLY_EXTENDED } else { MAGIC_REPLY_STRUCTURED });
        head.put_u16(if done { REPLY_FLAG_DONE } else { 0 });
        head.put_u16(kind);
        head.put_u64(to.cookie);
        if extended {
            head.put_u64(to.offset);
            head.put_u64(payload);
        } else {
            head.put_u32(payload as u32);
        }
    }

    /// Answers anything but a read and a block status: done.
    pub fn ok(&mut self, to: ReplyTo) {
        match self.style {
            HeaderStyle::Extended => self.chunk(to, true, REPLY_NONE, 0),
            HeaderStyle::Structured if to.is_read => self.chunk(to, true, REPLY_NONE, 0),
            HeaderStyle::Simple | HeaderStyle::Structured => self.simple(to, 0),
        }
    }

    /// Answers with an error (R8 lists the allowed ones).
    pub fn error(&mut self, to: ReplyTo, errno: Errno) {
        if self.style == HeaderStyle::Simple {
            return self.simple(to, errno.to_wire());
        }
        self.chunk(to, true, REPLY_ERROR, 6);
        let head = self.head(6);
        head.put_u32(errno.to_wire());
        head.put_u16(0);
    }

    /// Answers a read with all of its parts.
    pub fn read(&mut self, to: ReplyTo, parts: Vec<ReadPart>, unfragmented: bool) {
        let total: u64 = parts.iter().map(ReadPart::len).sum();
        if total == 0 {
            return self.ok(to);
        }
        if self.style == HeaderStyle::Simple {
            self.simple(to, 0);
            return self.parts(parts);
        }
        if parts.iter().all(|part| matches!(part, ReadPart::Data(_))) {
            self.chunk(to, true, REPLY_OFFSET_DATA, 8 + total);
            self.head(8).put_u64(to.offset);
            return self.parts(parts);
        }
        let mut offset = to.offset;
        let whole = unfragmented && parts.iter().any(|part| matches!(part, ReadPart::Data(_)));
        let end = to.offset.saturating_add(total);
        for (hole, len, run) in runs(parts, whole) {
            let next = offset.saturating_add(len);
            if hole {
                self.chunk(to, next == end, REPLY_OFFSET_HOLE, 12);
                let head = self.head(12);
                head.put_u64(offset);
                head.put_u32(len as u32);
            } else {
                self.chunk(to, next == end, REPLY_OFFSET_DATA, 8 + len);
                self.head(8).put_u64(offset);
                self.parts(run);
            }
            offset = next;
        }
    }

    fn parts(&mut self, parts: Vec<ReadPart>) {
        for part in parts {
            match part {
                ReadPart::Data(data) => self.data(data),
                ReadPart::Zeroes(len) => self.zeroes(u64::from(len)),
            }
        }
    }

    /// Answers a block status request of `len` bytes: adjacent extents of one kind are joined, parts beyond `len` are
    /// cut off, and only the first extent is sent if `one`. An empty answer is a bug of ours and becomes "all
    /// allocated", which is always safe.
    pub fn block_status(&mut self, to: ReplyTo, len: u64, extents: &[Extent], one: bool) {
        let most = if one { 1 } else { EXTENTS_PER_REPLY_MAX };
        let mut joined: Vec<Extent> = Vec::with_capacity(extents.len().min(most));
        let mut left = len;
        for extent in extents {
            let len = extent.len.min(left);
            left -= len;
            let full = joined.len() == most;
            match joined.last_mut() {
                _ if len == 0 => {}
                Some(last) if last.hole == extent.hole => last.len += len,
                _ if full => break,
                _ => joined.push(Extent { len, hole: extent.hole }),
            }
        }
        if joined.is_empty() {
            joined.push(Extent { len, hole: false });
        }
        let extended = self.style == HeaderStyle::Extended;
        let (kind, prefix, each) = if extended { (REPLY_BLOCK_STATUS_EXT, 8, 16) } else { (REPLY_BLOCK_STATUS, 4, 8) };
        let payload = prefix + each * joined.len();
        self.chunk(to, true, kind, payload as u64);
        let head = self.head(payload);
        head.put_u32(CONTEXT_ALLOCATION_ID);
        if extended {
            head.put_u32(joined.len() as u32);
        }
        for extent in joined {
            let state = if extent.hole { STATE_HOLE | STATE_ZERO } else { 0 };
            if extended {
                head.put_u64(extent.len);
                head.put_u64(u64::from(state));
            } else {
                // A compact request is at most 32 bits long, and no extent is longer than the request.
                head.put_u32(u32::try_from(extent.len).unwrap_or(!511));
                head.put_u32(state);
            }
        }
    }
}

/// Parts of a read, joined into one chunk each: (is a hole, length, parts). All in one chunk if `whole`.
fn runs(parts: Vec<ReadPart>, whole: bool) -> Vec<(bool, u64, Vec<ReadPart>)> {
    let mut runs: Vec<(bool, u64, Vec<ReadPart>)> = Vec::new();
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        let hole = matches!(part, ReadPart::Zeroes(_));
        match runs.last_mut() {
            Some((kind, len, run)) if *kind == hole || whole => {
                *kind &= hole;
                *len += part.len();
                run.push(part);
            }
            _ => runs.push((hole, part.len(), vec![part])),
        }
    }
    let mut joined: Vec<(bool, u64, Vec<ReadPart>)> = Vec::with_capacity(runs.len());
    for (hole, len, run) in runs {
        let hole = hole && len >= HOLE_BYTES_MIN;
        match joined.last_mut() {
            Some((false, last_len, last_run)) if !hole => {
                *last_len += len;
                last_run.extend(run);
            }
            _ => joined.push((hole, len, run)),
        }
    }
    joined
}
