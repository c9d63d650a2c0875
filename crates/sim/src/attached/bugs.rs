//! Bugs between `attach` and the gateways: requests and beliefs of a wrong attach. They show that the checks work.
//!
//! All are in the stream of one lane: outgoing requests and incoming answers, parsed after the handshake.

use crate::sync::lock;
use holdfast_attach::Halves;
use holdfast_attach::machine::Lane as Of;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Extended headers, the only ones that attach uses: magic, flags (2), type (2), cookie (8), offset (8), length (8).
const HEADER_BYTES: usize = 32;
const REQUEST_MAGIC: [u8; 4] = 0x21e4_1c71_u32.to_be_bytes();
const REPLY_MAGIC: [u8; 4] = 0x6e8a_278c_u32.to_be_bytes();
const WRITE: u16 = 1;
/// Flags of a request's last reply, without content.
const DONE: u16 = 1;
/// Types of replies from here on are errors.
const ERROR: u16 = 1 << 15;
/// Cookie bit of requests that attach does not know.
const OURS: u64 = 1 << 63;
/// Bytes of each volume's latest writes that are remembered. With the writes under way they must fit into one entry,
/// and that into a file of the journal.
const REMEMBERED_BYTES: usize = 40 << 10;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Answered writes are sent again, the latest first.
    ReplaysAnswered,
    /// A write counts as answered once it is sent.
    AnsweredWhenSent,
    /// A write that is refused because another owner holds the set counts as done.
    GoesOnFenced,
}

/// A bug, and its knowledge of earlier lanes.
#[derive(Clone)]
pub struct Memory {
    bug: Bug,
    sent: Arc<Mutex<BTreeMap<usize, VecDeque<Vec<u8>>>>>,
}

/// Shared by both halves of a lane.
#[derive(Default)]
struct Lane {
    /// The handshake is over.
    transmits: bool,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
    /// For attach to read.
    readable: VecDeque<u8>,
    /// Writes without an answer.
    writes: BTreeSet<u64>,
    reader: Option<Waker>,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied().unwrap_or([0; N])
}

/// The first whole frame of `bytes`: a request, or an answer.
fn frame(bytes: &mut Vec<u8>, payload: impl Fn(&[u8]) -> bool) -> Option<Vec<u8>> {
    if bytes.len() < HEADER_BYTES {
        return None;
    }
    let more = if payload(bytes) { u64::from_be_bytes(number(bytes, 24)) as usize } else { 0 };
    (bytes.len() >= HEADER_BYTES + more).then(|| bytes.drain(..HEADER_BYTES + more).collect())
}

fn kind(frame: &[u8]) -> u16 {
    u16::from_be_bytes(number(frame, 6))
}

fn cookie(frame: &[u8]) -> u64 {
    u64::from_be_bytes(number(frame, 8))
}

/// An answer without content.
fn done(cookie: u64, offset: [u8; 8]) -> Vec<u8> {
    let mut frame = REPLY_MAGIC.to_vec();
    frame.extend(DONE.to_be_bytes());
    frame.extend([0; 2]);
    frame.extend(cookie.to_be_bytes());
    frame.extend(offset);
    frame.extend([0; 8]);
    frame
}

impl Memory {
    pub fn new(bug: Bug) -> Self {
        Self { bug, sent: Arc::default() }
    }

    /// Puts the bug into a lane of a volume.
    pub fn wrap(self, of: Of, (read, write): Halves) -> Halves {
        let lane: Arc<Mutex<Lane>> = Arc::default();
        let reader = Reader { inner: read, lane: lane.clone(), bug: self.bug };
        (Box::new(reader), Box::new(Writer { inner: write, lane, of, memory: self, waiting: VecDeque::new() }))
    }
}

struct Writer {
    inner: Box<dyn AsyncWrite + Send + Unpin>,
    lane: Arc<Mutex<Lane>>,
    of: Of,
    memory: Memory,
    /// Not sent yet.
    waiting: VecDeque<u8>,
}

impl Writer {
    fn push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.waiting.is_empty() {
            let sent = ready!(Pin::new(&mut self.inner).poll_write(cx, self.waiting.make_contiguous()))?;
            self.waiting.drain(..sent);
        }
        Poll::Ready(Ok(()))
    }

    fn take(&mut self, data: &[u8]) {
        let mut lane = lock(&self.lane);
        if !lane.transmits && data.starts_with(&REQUEST_MAGIC) {
            lane.transmits = true;
            if self.memory.bug == Bug::ReplaysAnswered && self.of.slot == 0 {
                for frame in lock(&self.memory.sent).get(&self.of.volume).into_iter().flatten().rev() {
                    let mut frame = frame.clone();
                    frame[8] |= 0x80;
                    self.waiting.extend(frame);
                }
            }
        }
        if !lane.transmits {
            return self.waiting.extend(data);
        }
        lane.outgoing.extend_from_slice(data);
        while let Some(frame) = frame(&mut lane.outgoing, |header| kind(header) == WRITE) {
            if kind(&frame) == WRITE {
                lane.writes.insert(cookie(&frame));
                match self.memory.bug {
                    Bug::ReplaysAnswered => {
                        let mut sent = lock(&self.memory.sent);
                        let sent = sent.entry(self.of.volume).or_default();
                        sent.push_back(frame.clone());
                        while sent.iter().map(Vec::len).sum::<usize>() > REMEMBERED_BYTES {
                            sent.pop_front();
                        }
                    }
                    Bug::AnsweredWhenSent => {
                        lane.readable.extend(done(cookie(&frame), number(&frame, 16)));
                        if let Some(reader) = lane.reader.take() {
                            reader.wake();
                        }
                    }
                    Bug::GoesOnFenced => {}
                }
            }
            self.waiting.extend(frame);
        }
    }
}

impl AsyncWrite for Writer {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.push(cx))?;
        self.take(data);
        // The rest goes with the next call.
        match self.push(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(data.len())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.push(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

struct Reader {
    inner: Box<dyn AsyncRead + Send + Unpin>,
    lane: Arc<Mutex<Lane>>,
    bug: Bug,
}

impl Reader {
    /// Changes an answer before attach sees it.
    fn judge(&self, lane: &mut Lane, frame: Vec<u8>) {
        let (cookie, of_write) = (cookie(&frame), lane.writes.remove(&cookie(&frame)));
        let shown = match self.bug {
            Bug::ReplaysAnswered if cookie & OURS != 0 => Vec::new(),
            Bug::AnsweredWhenSent if of_write => Vec::new(),
            Bug::GoesOnFenced if of_write && kind(&frame) & ERROR != 0 => done(cookie, number(&frame, 16)),
            _ => frame,
        };
        lane.readable.extend(shown);
    }
}

impl AsyncRead for Reader {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            {
                let mut lane = lock(&this.lane);
                let len = lane.readable.len().min(buf.remaining());
                if len > 0 {
                    let bytes: Vec<u8> = lane.readable.drain(..len).collect();
                    buf.put_slice(&bytes);
                    return Poll::Ready(Ok(()));
                }
                lane.reader = Some(cx.waker().clone());
            }
            let mut space = [0; 16 << 10];
            let mut more = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut more))?;
            if more.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let lane = this.lane.clone();
            let mut lane = lock(&lane);
            if !lane.transmits {
                lane.readable.extend(more.filled());
                continue;
            }
            lane.incoming.extend_from_slice(more.filled());
            while let Some(frame) = frame(&mut lane.incoming, |_| true) {
                this.judge(&mut lane, frame);
            }
        }
    }
}
