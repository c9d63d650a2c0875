//! The sending side of append streams. openraft's own task for a follower polls the stream of answers, and with that
//! takes requests, writes them and reads the answers: no other task. Rules: `append_frames`.

use crate::append_frames::{self as frames, Body, Frame, Outgoing, PREFACE, Received};
use crate::config::TypeConfig;
use crate::rpc_error::{Rpc, broken, from_status, late};
use crate::wire::RaftLogId;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use holdfast_tls::Connection;
use holdfast_types::limits::APPEND_BYTES_MAX;
use openraft::errors::{NetworkError, RPCError};
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, Sleep};
use tonic::metadata::MetadataMap;

/// Requests without an answer, at most …
const REQUESTS_MAX: usize = 1024;
/// … and their bytes; the last one may exceed it.
const UNANSWERED_BYTES_MAX: usize = 4 * APPEND_BYTES_MAX;
/// No further request is taken while so many bytes are not written yet: entries that come meanwhile share the next one.
const OUTGOING_BYTES_MAX: usize = 1 << 20;
/// A silent stream asks after this long whether the receiver is there. The peer door closes what is silent for 60 s.
const PING_AFTER: Duration = Duration::from_secs(20);

type Request = AppendEntriesRequest<TypeConfig>;
type Answer = Result<StreamAppendResult<TypeConfig>, Rpc>;

/// The position up to which one append stream has carried the log. Drops requests that only carry a newer commit.
///
/// openraft sends such a request to every peer after each commit that is not followed by an entry at once: at depth 1
/// as many as there are appends. Nobody waits for them: a follower learns the commit with the next append or heartbeat,
/// and openraft needs no answer to each request (an answer acknowledges everything up to its position).
#[derive(Default)]
struct Carried {
    /// The last position of the requests so far; `None` before the first.
    last: Option<Option<RaftLogId>>,
}

impl Carried {
    /// Whether to send the request. False if it has no entries and an earlier one of this stream has carried its
    /// position: the answer to that one says the same. The first request of a stream is always sent: it may be a probe.
    fn note(&mut self, req: &Request) -> bool {
        if req.entries.is_empty() && self.last.as_ref().is_some_and(|last| *last >= req.prev_log_id) {
            return false;
        }
        self.last = Some(req.entries.last().map_or(req.prev_log_id, |entry| Some(entry.log_id)));
        true
    }
}

fn not_understood(why: String) -> Rpc {
    RPCError::Network(NetworkError::from_string(why))
}

/// A connection to a peer. It carries append streams of one group, one after the other.
pub(crate) struct Wire {
    connection: Connection,
    addr: String,
    received: Received,
    outgoing: Outgoing,
    /// Number of the present stream, from 1.
    stream: u32,
    /// The peer has closed it.
    closed: bool,
}

impl Wire {
    /// Over a connection that was made to `addr`.
    pub(crate) fn new(connection: Connection, addr: String) -> Self {
        let mut outgoing = Outgoing::default();
        outgoing.push(Bytes::from_static(PREFACE));
        Self { connection, addr, received: Received::from_receiver(), outgoing, stream: 0, closed: false }
    }

    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    /// Whether it is as the last stream has left it: between two streams nothing comes.
    pub(crate) async fn is_silent(&mut self) -> bool {
        poll_fn(|context| Poll::Ready(self.poll_frame(context).is_pending())).await
    }

    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Rpc>> {
        let Err(e) = ready!(self.outgoing.poll_write(&mut self.connection, context)) else {
            return Poll::Ready(Ok(()));
        };
        // The peer may have said why it ends the connection.
        while let Poll::Ready(Ok(Some(frame))) = self.poll_frame(context) {
            if let Body::Refused(status) = frame.body {
                return Poll::Ready(Err(from_status(&status)));
            }
        }
        Poll::Ready(Err(broken(&e)))
    }

    /// The next frame; `None` once the peer has closed the connection.
    fn poll_frame(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Frame>, Rpc>> {
        loop {
            match self.received.next() {
                Ok(None) => {}
                Ok(Some(frame)) => return Poll::Ready(Ok(Some(frame))),
                Err(e) => return Poll::Ready(Err(broken(&e))),
            }
            let read = std::pin::pin!(self.connection.read_buf(self.received.room()));
            match ready!(read.poll(context)) {
                Ok(0) => {
                    self.closed = true;
                    return Poll::Ready(Ok(None));
                }
                Ok(_) => {}
                Err(e) => return Poll::Ready(Err(broken(&e))),
            }
        }
    }

    /// Writes what is to be written, and waits for the next frame.
    async fn answered(&mut self) -> Result<Frame, Rpc> {
        let frame = poll_fn(|context| {
            if let Poll::Ready(Err(e)) = self.poll_write(context) {
                return Poll::Ready(Err(e));
            }
            self.poll_frame(context)
        });
        frame.await?.ok_or_else(|| not_understood("append connection: closed before an answer".to_string()))
    }
}

/// A stream that the peer has taken, with its first request.
pub(crate) struct Begun {
    wire: Wire,
    carried: Carried,
    bytes: usize,
}

impl Begun {
    /// Begins a stream with the metadata of a call, and returns those of its answer.
    ///
    /// # Errors
    /// The peer refuses the stream; the connection breaks.
    pub(crate) async fn on(mut wire: Wire, meta: &MetadataMap, first: &Request) -> Result<(Self, MetadataMap), Rpc> {
        wire.stream += 1;
        let stream = wire.stream;
        wire.outgoing.push(frames::open(stream, meta));
        let bytes = wire.outgoing.append(stream, 1, first).map_err(|e| broken(&e))?;
        let frame = wire.answered().await?;
        match frame.body {
            Body::Welcome(theirs) if frame.stream == stream => {
                let mut carried = Carried::default();
                carried.note(first);
                Ok((Self { wire, carried, bytes }, theirs))
            }
            Body::Refused(status) => Err(from_status(&status)),
            other => {
                let name = other.name();
                Err(not_understood(format!("append stream: found a frame {name}, expected welcome to {stream}")))
            }
        }
    }

    /// The answers to its first request and to those of `input`. `judge` sees each answer first.
    ///
    /// `spare` gets the connection back if the stream ends in good order. `stall`: how long an answer may take while
    /// something is unanswered.
    pub(crate) fn session<S, J>(
        self,
        spare: &mut Option<Wire>,
        input: S,
        judge: J,
        stall: Duration,
    ) -> Session<'_, S, J> {
        let now = Instant::now();
        Session {
            spare,
            wire: Some(self.wire),
            input: Some(input),
            judge,
            carried: self.carried,
            sent: 1,
            answered: 0,
            unanswered: VecDeque::from([self.bytes]),
            unanswered_bytes: self.bytes,
            heard: now,
            pinged: false,
            stall,
            timer: Box::pin(tokio::time::sleep_until(now + stall)),
        }
    }
}

/// One append stream: yields the answers. Ends after the first error or refusal, as openraft asks.
pub(crate) struct Session<'s, S, J> {
    spare: &'s mut Option<Wire>,
    /// `None` once it has ended.
    wire: Option<Wire>,
    /// `None` once it has ended.
    input: Option<S>,
    judge: J,
    carried: Carried,
    /// Number of the last request.
    sent: u64,
    /// Number of the last request with an answer.
    answered: u64,
    /// Lengths of the requests after that.
    unanswered: VecDeque<usize>,
    unanswered_bytes: usize,
    /// When the peer was last heard; later, when the oldest unanswered request was sent.
    heard: Instant,
    /// A ping has no answer yet.
    pinged: bool,
    stall: Duration,
    /// When to look whether the peer is silent. Moved only when it fires, or would fire too late.
    timer: Pin<Box<Sleep>>,
}

impl<S, J> Session<'_, S, J>
where
    S: Stream<Item = Request> + Unpin,
    J: FnMut(StreamAppendResult<TypeConfig>) -> Answer,
{
    /// Takes what openraft has to send, as far as there is room.
    fn take_requests(&mut self, wire: &mut Wire, context: &mut Context<'_>) -> Result<(), Rpc> {
        while let Some(input) = &mut self.input {
            if self.unanswered.len() >= REQUESTS_MAX
                || self.unanswered_bytes >= UNANSWERED_BYTES_MAX
                || wire.outgoing.bytes() >= OUTGOING_BYTES_MAX
            {
                break;
            }
            match input.poll_next_unpin(context) {
                Poll::Pending => break,
                Poll::Ready(None) => self.input = None,
                Poll::Ready(Some(request)) => {
                    if self.carried.note(&request) {
                        self.send(wire, &request)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn send(&mut self, wire: &mut Wire, request: &Request) -> Result<(), Rpc> {
        let bytes = wire.outgoing.append(wire.stream, self.sent + 1, request).map_err(|e| broken(&e))?;
        self.sent += 1;
        if self.unanswered.is_empty() {
            self.heard = Instant::now();
            let late = self.heard + self.stall;
            if self.timer.deadline() > late {
                self.timer.as_mut().reset(late);
            }
        }
        self.unanswered.push_back(bytes);
        self.unanswered_bytes += bytes;
        Ok(())
    }

    /// Writes requests until there is none, or the connection takes no more.
    fn send_requests(&mut self, wire: &mut Wire, context: &mut Context<'_>) -> Result<(), Rpc> {
        loop {
            self.take_requests(wire, context)?;
            let full = wire.outgoing.bytes() >= OUTGOING_BYTES_MAX;
            match wire.poll_write(context) {
                Poll::Ready(Err(e)) => return Err(e),
                Poll::Ready(Ok(())) if full => {}
                Poll::Ready(Ok(())) | Poll::Pending => return Ok(()),
            }
        }
    }

    /// The answer in a frame, if it is one.
    fn hear(&mut self, wire: &Wire, frame: Frame) -> Result<Option<StreamAppendResult<TypeConfig>>, Rpc> {
        let (stream, expected) = (frame.stream, self.answered + 1);
        match frame.body {
            Body::Refused(status) => Err(from_status(&status)),
            // FRAME-F2.
            Body::Answer { number, result }
                if stream == wire.stream && number == expected && !self.unanswered.is_empty() =>
            {
                self.answered = number;
                self.unanswered_bytes -= self.unanswered.pop_front().unwrap_or(0);
                self.heard = Instant::now();
                Ok(Some(result))
            }
            Body::Pong if stream == wire.stream && self.pinged => {
                self.pinged = false;
                self.heard = Instant::now();
                Ok(None)
            }
            Body::Answer { number, .. } => Err(not_understood(format!(
                "append stream: found an answer to request {number} of stream {stream}, expected one to {expected} of {} at most, of stream {}",
                self.sent, wire.stream
            ))),
            other => Err(not_understood(format!("append stream: found a frame {}, expected an answer", other.name()))),
        }
    }

    /// Ends the stream of a peer that is silent for too long while something is unanswered. Whether a ping was added.
    fn look(&mut self, wire: &mut Wire, context: &mut Context<'_>) -> Result<bool, Rpc> {
        while self.timer.as_mut().poll(context).is_ready() {
            let now = Instant::now();
            let waits = self.pinged || !self.unanswered.is_empty();
            let until = self.heard + if waits { self.stall } else { PING_AFTER };
            if now < until {
                self.timer.as_mut().reset(until);
            } else if waits {
                return Err(late("append stream", self.stall));
            } else {
                wire.outgoing.push(frames::ping(wire.stream));
                self.pinged = true;
                self.heard = now;
                self.timer.as_mut().reset(now + self.stall);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn poll_step(&mut self, wire: &mut Wire, context: &mut Context<'_>) -> Poll<Result<Option<Answer>, Rpc>> {
        loop {
            self.send_requests(wire, context)?;
            match wire.poll_frame(context)? {
                Poll::Ready(Some(frame)) => {
                    if let Some(result) = self.hear(wire, frame)? {
                        return Poll::Ready(Ok(Some((self.judge)(result))));
                    }
                    continue;
                }
                Poll::Ready(None) if self.unanswered.is_empty() => return Poll::Ready(Ok(None)),
                Poll::Ready(None) => {
                    let count = self.unanswered.len();
                    let why = format!("append stream: closed by the peer with {count} requests without an answer");
                    return Poll::Ready(Err(not_understood(why)));
                }
                Poll::Pending => {}
            }
            if self.input.is_none() && self.unanswered.is_empty() {
                return Poll::Ready(Ok(None));
            }
            if !self.look(wire, context)? {
                return Poll::Pending;
            }
        }
    }

    /// Whether another stream may use the connection: nothing is under way in either direction.
    fn is_quiet(&self, wire: &Wire) -> bool {
        let idle = self.unanswered.is_empty() && !self.pinged && wire.outgoing.bytes() == 0;
        idle && wire.received.is_empty() && !wire.closed
    }
}

impl<S, J> Stream for Session<'_, S, J>
where
    S: Stream<Item = Request> + Unpin,
    J: FnMut(StreamAppendResult<TypeConfig>) -> Answer + Unpin,
{
    type Item = Answer;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let session = self.get_mut();
        let Some(mut wire) = session.wire.take() else { return Poll::Ready(None) };
        let Poll::Ready(step) = session.poll_step(&mut wire, context) else {
            session.wire = Some(wire);
            return Poll::Pending;
        };
        let answer = step.unwrap_or_else(|e| Some(Err(e)));
        match &answer {
            Some(Ok(Ok(_))) => session.wire = Some(wire),
            None | Some(Ok(Err(StreamAppendError::Conflict(_)))) if session.is_quiet(&wire) => {
                *session.spare = Some(wire);
            }
            _ => {}
        }
        Poll::Ready(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{RaftEntryOf, RaftVote, id_to_raft};
    use holdfast_types::LogId;

    /// A request of term 3 that follows `prev` and carries the entries `prev + 1 ..= last`.
    fn request(prev: u64, last: u64, commit: u64) -> Request {
        let at = |index: u64| id_to_raft(LogId::new(3, index));
        let entry = |index| RaftEntryOf { log_id: at(index), payload: openraft::EntryPayload::Blank };
        Request {
            vote: RaftVote::new_committed(3, 1),
            prev_log_id: Some(at(prev)),
            entries: (prev + 1..=last).map(entry).collect(),
            leader_commit: Some(at(commit)),
        }
    }

    #[test]
    fn a_request_that_only_carries_a_newer_commit_is_not_sent() {
        let mut carried = Carried::default();
        assert!(carried.note(&request(7, 7, 5)), "the first of a stream may be a probe");
        assert!(!carried.note(&request(7, 7, 6)), "only a commit");
        assert!(carried.note(&request(7, 9, 7)), "entries");
        assert!(!carried.note(&request(9, 9, 9)), "only a commit");
        assert!(!carried.note(&request(8, 8, 9)), "of a position before");
        assert!(carried.note(&request(12, 12, 9)), "a position that nothing of this stream has carried");
    }
}
