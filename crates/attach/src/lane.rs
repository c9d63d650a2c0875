//! One connection to the gateway: handshake, then requests out and answers in.

use crate::machine::{Lane, Reply};
use crate::outbox::{Outbox, Outgoing, RequestQueue};
use crate::seams::{Connect, Halves};
use bytes::{Bytes, BytesMut};
use holdfast_nbd::client::{self, Aim, Event, Outcome, ReplyDecoder, RequestOut, encode_request};
use holdfast_nbd::server::ReadPart;
use holdfast_nbd::{Errno, ExportName, HeaderStyle};
use holdfast_tls::{Connector, ReadAhead};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Time limit from the first packet to the end of the handshake. A gateway that granted the lease is reachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Answers are read in pieces of this size.
const READ_BYTES: usize = 256 << 10;
/// With less room than this, a new piece is allocated.
const READ_ROOM_MIN: usize = 16 << 10;
/// Zeroes of a read are split into pieces whose length fits 32 bits.
const ZEROES_MAX: u64 = 1 << 30;

/// A connection could not be made, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LaneError {
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("{0}")]
    Handshake(#[from] client::ClientError),
    #[error("not connected within {CONNECT_TIMEOUT:?}")]
    Slow,
    #[error("the gateway closed it")]
    Closed,
    #[error("the gateway broke the NBD protocol: {0}")]
    Protocol(String),
}

/// State that a lane's writer and reader share.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) lane: Lane,
    decoder: ReplyDecoder,
    style: HeaderStyle,
    queue: RequestQueue,
    /// Received parts of answers that are not complete.
    parts: BTreeMap<u64, Vec<(u64, ReadPart)>>,
    status: BTreeMap<u64, Vec<holdfast_nbd::Extent>>,
    reads: BTreeSet<u64>,
}

impl Outgoing for Line {
    type Queue = RequestQueue;

    fn queue(&mut self) -> &mut RequestQueue {
        &mut self.queue
    }

    fn over(&self) -> bool {
        false
    }
}

/// A whole answer.
pub(crate) type Answered = (u64, Result<Reply, Errno>);

impl Line {
    /// Queues a request. Returns the answer if the request does not fit the negotiated headers.
    pub(crate) fn send(&mut self, out: &RequestOut, data: Bytes) -> Result<(), Errno> {
        if encode_request(&mut self.queue.open, self.style, out).is_err() {
            return Err(Errno::Invalid);
        }
        let fresh = self.decoder.sent(out);
        assert!(fresh, "ATTACH-M2: request {} is on this lane already", out.cookie);
        if matches!(out.command, client::CommandOut::Read { .. }) {
            self.reads.insert(out.cookie);
        }
        if !data.is_empty() {
            self.queue.payload(data);
        }
        Ok(())
    }

    /// Takes whole answers off `input`.
    fn receive(&mut self, input: &mut BytesMut, answers: &mut Vec<Answered>) -> Result<(), LaneError> {
        loop {
            let event = self.decoder.next(input).map_err(|error| LaneError::Protocol(error.to_string()))?;
            match event {
                None => return Ok(()),
                Some(Event::Data { cookie, offset, data }) => {
                    self.parts.entry(cookie).or_default().push((offset, ReadPart::Data(data)));
                }
                Some(Event::Hole { cookie, mut offset, mut len }) => {
                    let parts = self.parts.entry(cookie).or_default();
                    while len > 0 {
                        let piece = len.min(ZEROES_MAX);
                        parts.push((offset, ReadPart::Zeroes(piece as u32)));
                        offset += piece;
                        len -= piece;
                    }
                }
                Some(Event::Status { cookie, extents }) => {
                    self.status.insert(cookie, extents);
                }
                Some(Event::Done { cookie, result }) => {
                    let mut parts = self.parts.remove(&cookie).unwrap_or_default();
                    let status = self.status.remove(&cookie);
                    let read = self.reads.remove(&cookie);
                    let reply = result.map(|()| match status {
                        Some(extents) => Reply::Status(extents),
                        None if read => {
                            parts.sort_by_key(|(offset, _)| *offset);
                            Reply::Read(parts.into_iter().map(|(_, part)| part).collect())
                        }
                        None => Reply::Done,
                    });
                    answers.push((cookie, reply));
                }
            }
        }
    }
}

/// A connection after its handshake.
pub(crate) struct Connected {
    pub(crate) line: Outbox<Line>,
    pub(crate) size: u64,
    halves: Halves,
    input: BytesMut,
}

/// Connects and shakes hands, through TLS where there is `tls` (NBD-S3).
pub(crate) async fn connect(
    way: &Connect,
    lane: Lane,
    nbd: &str,
    name: &ExportName,
    tls: Option<&Connector>,
) -> Result<Connected, LaneError> {
    let connecting = async { shake_hands(lane, way(lane, nbd.to_string()).await?, name, tls).await };
    tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| LaneError::Slow)?
}

/// TLS over a connection that is made.
async fn secured(tls: &Connector, (read, write): Halves) -> io::Result<Halves> {
    let below = ReadAhead::new(tokio::io::join(read, write));
    let (read, write) = tokio::io::split(tls.connect(below).await?);
    let halves: Halves = (Box::new(read), Box::new(write));
    Ok(halves)
}

/// Shakes hands on a connection that is made.
pub(crate) async fn shake_hands(
    lane: Lane,
    halves: Halves,
    name: &ExportName,
    tls: Option<&Connector>,
) -> Result<Connected, LaneError> {
    let (mut read, mut write) = halves;
    let handshake = client::Handshake::new(Aim::Go(name.to_wire()), HeaderStyle::Extended, true);
    let mut handshake = if tls.is_some() { handshake.over_tls() } else { handshake };
    let (mut input, mut out) = (BytesMut::with_capacity(READ_BYTES), BytesMut::new());
    loop {
        let step = handshake.step(&mut input, &mut out)?;
        write.write_all_buf(&mut out).await?;
        write.flush().await?;
        if let (Some(Outcome::StartTls), Some(tls)) = (&step, tls) {
            (read, write) = secured(tls, (read, write)).await?;
            handshake.tls_started(&mut out);
            continue;
        }
        if let Some(Outcome::Connected(connected)) = step {
            let line = Line {
                lane,
                decoder: ReplyDecoder::new(&connected),
                style: connected.style,
                queue: RequestQueue::default(),
                parts: BTreeMap::new(),
                status: BTreeMap::new(),
                reads: BTreeSet::new(),
            };
            return Ok(Connected { line: Outbox::new(line), size: connected.size, halves: (read, write), input });
        }
        if read.read_buf(&mut input).await? == 0 {
            return Err(LaneError::Closed);
        }
    }
}

/// The halves of a connection that its task drives.
pub(crate) struct Wire {
    halves: Halves,
    input: BytesMut,
}

impl Connected {
    /// The shared part, and the part for the connection's own task.
    pub(crate) fn split(self) -> (Outbox<Line>, Wire) {
        (self.line, Wire { halves: self.halves, input: self.input })
    }
}

impl Wire {
    /// Sends and receives until the connection ends; each batch of answers goes to `answer`.
    pub(crate) async fn run(self, line: &Outbox<Line>, mut answer: impl FnMut(Vec<Answered>)) -> LaneError {
        let Wire { halves: (mut read, mut write), mut input } = self;
        let sending = poll_fn(|cx| line.poll_send(cx, &mut write));
        let receiving = async {
            loop {
                let mut answers = Vec::new();
                let received = line.with(|line| line.receive(&mut input, &mut answers));
                if !answers.is_empty() {
                    answer(answers);
                }
                received?;
                if input.capacity() - input.len() < READ_ROOM_MIN {
                    // Doubled for a long answer, so that it is moved only a few times.
                    input.reserve(READ_BYTES.max(input.len()));
                }
                if read.read_buf(&mut input).await? == 0 {
                    return Err::<(), LaneError>(LaneError::Closed);
                }
            }
        };
        tokio::select! {
            sent = sending => sent.err().map_or(LaneError::Closed, LaneError::Socket),
            received = receiving => received.err().unwrap_or(LaneError::Closed),
        }
    }
}
