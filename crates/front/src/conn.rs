//! One connection in transmission: one task that reads, runs and answers; no task per request.
//!
//! ```text
//!   socket ─▶ Input ─▶ RequestDecoder ─▶ begin ──ready──▶ ReplyQueue ─▶ socket
//!                                          └─pending─▶ running ──┘
//! ```
//!
//! Why no task per request: measured with a device that answers from another task, 5000 writes of 4 KiB, this way makes 3 system calls
//! per request at depth 1 (receive, send, wait) and 0.36 at depth 32; with a task per request it was 5.1 and 4.4, most of them to wake threads.
//!
//! C1  Operations begin in the order of the wire, end in any order, and are answered as they end.
//! C2  Nothing begins after the connection was declared closed, and nothing is answered then (R8).
//! C3  What is held is paid for: requests in number, bytes of requests and unsent replies through the ledger, before they are held. The place of a request
//!     comes last, when nothing but its beginning is left (P1 of the budget). Small replies, which nobody pays for, are bounded by what is left of them (P2).
//! C4  When the task ends, its operations are dropped before its place in the slot is given back (S1).
//! C5  A read that cannot be answered at any gateway holds nothing but its own place, beside the running ones, until it can be or the connection ends.
//! C6  A connection that is drained begins nothing more, and ends as if the client had said goodbye: what has begun is answered first.

use super::budget::{Charge, Ledger, Place};
use super::device::{Device, DeviceError, Extent, ReadPart};
use super::input::Input;
use super::limits::{FrontLimits, STALL_BYTES_MIN};
use super::measure::{Kind, Measures};
use super::parked::{AGAIN_MAX, PARKED_MAX, Parked};
use super::steps::in_steps;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use holdfast_nbd::server::{
    Command, Decoded, EXTENTS_PER_REPLY_MAX, Negotiated, ProtocolError, ReplyQueue, ReplyTo, Request, RequestDecoder,
};
use holdfast_nbd::{Errno, HeaderStyle};
use holdfast_types::SECTOR_BYTES;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::time::{Instant as At, Interval, MissedTickBehavior, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

/// Pieces of one vectored write at most.
const SLICES_MAX: usize = 64;
/// Replies are sent when so much waits, even if more requests stand in the buffer.
const FLUSH_BYTES: usize = 256 << 10;
/// Requests that are begun before other tasks get their turn: small ones that are answered at once could go on for long.
const TURN_REQUESTS: usize = 1024;
/// What an extent takes, in the device's answer as on the wire.
const EXTENT_BYTES: usize = size_of::<Extent>();

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// NBD_CMD_DISC, all done.
    #[error("the client left")]
    Left,
    /// End of file without a goodbye.
    #[error("the client is gone")]
    Gone,
    /// C2.
    #[error("declared closed")]
    Closed,
    /// C6.
    #[error("drained: what it had asked is answered")]
    Drained,
    /// [`DeviceError::Disconnect`].
    #[error("the device asked for it")]
    Device,
    /// Neither sends what it announced nor takes what it asked for.
    #[error("the client stalls")]
    Stalled,
    /// Not NBD any more.
    #[error("the client broke the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// The socket failed.
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
}

/// What a connection serves, and what may end it from outside.
pub(super) struct Served {
    pub(super) device: Arc<dyn Device>,
    pub(super) read_only: bool,
    pub(super) negotiated: Negotiated,
    /// The export's own, and the connection's (a newer generation, shutdown).
    pub(super) closed: [CancellationToken; 2],
    /// C6.
    pub(super) draining: CancellationToken,
}

/// What to remember of a request until it is answered.
#[derive(Clone, Copy)]
struct Asked {
    to: ReplyTo,
    len: u64,
    kind: Kind,
    /// DF of a read, REQ_ONE of a block status.
    narrow: bool,
    since: Instant,
}

enum Work {
    Plain(BoxFuture<'static, Result<(), DeviceError>>),
    Read(BoxFuture<'static, Result<Vec<ReadPart>, DeviceError>>),
    Status(BoxFuture<'static, Result<Vec<Extent>, DeviceError>>),
}

enum Outcome {
    Plain,
    Read(Vec<ReadPart>),
    Status(Vec<Extent>),
}

struct Running {
    asked: Asked,
    /// Number of the try, from 0.
    tries: u32,
    charge: Charge,
    /// Given back with the end of the operation, before its answer is sent.
    _place: Place,
    work: Work,
}

/// A request that is decoded and not begun yet.
struct Held {
    request: Request,
    cost: u64,
    /// Paid for: it waits for its place, else for its charge.
    charge: Option<Charge>,
}

struct Finished {
    asked: Asked,
    tries: u32,
    charge: Charge,
    outcome: Result<Outcome, DeviceError>,
}

impl Future for Running {
    type Output = Finished;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Finished> {
        let outcome = match &mut self.work {
            Work::Plain(work) => ready!(work.as_mut().poll(cx)).map(|()| Outcome::Plain),
            Work::Read(work) => ready!(work.as_mut().poll(cx)).map(Outcome::Read),
            Work::Status(work) => ready!(work.as_mut().poll(cx)).map(Outcome::Status),
        };
        let (asked, tries) = (self.asked, self.tries);
        Poll::Ready(Finished { asked, tries, charge: std::mem::take(&mut self.charge), outcome })
    }
}

/// What to do about the buffer.
enum Intake {
    /// More bytes are needed.
    Hungry,
    /// Something else must happen first: a request must end, or bytes must be given back.
    Blocked,
    /// The client said goodbye.
    Over,
}

/// What a peer had outstanding at the last tick, for finding out that it stalls.
#[derive(Default)]
struct Watch {
    received: u64,
    payloads: u64,
    awaited: bool,
    sent: u64,
    queued: u64,
}

pub(super) struct Connection<'a, S> {
    socket: &'a mut S,
    input: Input,
    decoder: RequestDecoder,
    held: Option<Held>,
    /// Paid for, for the payload that is being received.
    awaited: Option<Charge>,
    open: bool,
    running: FuturesUnordered<Running>,
    /// C5.
    parked: Parked<At, Asked>,
    /// Those of the running that are asked again.
    again: usize,
    /// For the next of the parked.
    alarm: Pin<Box<Sleep>>,
    replies: ReplyQueue,
    ledger: Ledger,
    served: Served,
    closing: [Pin<Box<WaitForCancellationFutureOwned>>; 2],
    /// Until the drain has begun.
    leaving: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    style: HeaderStyle,
    requests_max: usize,
    /// Requests that were begun in this turn.
    turn: usize,
    measures: &'a Measures,
    received: u64,
    payloads: u64,
    sent: u64,
    ticks: Interval,
    watch: Watch,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Connection<'a, S> {
    /// `input` holds what was read behind the handshake.
    pub(super) fn new(
        socket: &'a mut S,
        input: Input,
        served: Served,
        limits: &FrontLimits,
        ledger: Ledger,
        measures: &'a Measures,
    ) -> Self {
        let Negotiated { style, allocation } = served.negotiated;
        let mut ticks =
            tokio::time::interval_at(tokio::time::Instant::now() + limits.stall_timeout, limits.stall_timeout);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            socket,
            input,
            decoder: RequestDecoder::new(style, allocation),
            held: None,
            awaited: None,
            open: true,
            running: FuturesUnordered::new(),
            parked: Parked::new(limits.unreadable_pause),
            again: 0,
            alarm: Box::pin(tokio::time::sleep_until(At::now())),
            replies: ReplyQueue::new(style),
            ledger,
            closing: served.closed.clone().map(|token| Box::pin(token.cancelled_owned())),
            leaving: Some(Box::pin(served.draining.clone().cancelled_owned())),
            served,
            style,
            requests_max: limits.connection_requests,
            turn: 0,
            measures,
            received: 0,
            payloads: 0,
            sent: 0,
            ticks,
            watch: Watch::default(),
        }
    }

    /// Serves until the end. Dropping the future drops all that runs (C4).
    pub(super) async fn serve(mut self) -> End {
        poll_fn(|cx| match self.poll(cx) {
            Ok(()) => Poll::Pending,
            Err(end) => Poll::Ready(end),
        })
        .await
    }

    fn is_closed(&self) -> bool {
        self.served.closed.iter().any(CancellationToken::is_cancelled)
    }

    /// Does all that can be done now. `Ok`: `cx` is woken when there is more to do.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        if self.closing.iter_mut().any(|closing| closing.as_mut().poll(cx).is_ready()) {
            return Err(End::Closed);
        }
        if self.leaving.as_mut().is_some_and(|leaving| leaving.as_mut().poll(cx).is_ready()) {
            self.leaving = None;
            self.open = false;
        }
        while self.ticks.poll_tick(cx).is_ready() {
            self.check_stall()?;
        }
        self.turn = 0;
        loop {
            self.work(cx)?;
            if !self.ask_again(cx)? {
                return Ok(());
            }
        }
    }

    /// Begins a parked read whose time has come; whether it did. `cx` is woken for the next.
    fn ask_again(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        loop {
            // The end of one of them comes back here, and so does what the client takes.
            if self.again >= AGAIN_MAX || self.running.len() >= self.requests_max || !self.may_answer() {
                return Ok(false);
            }
            let Some(next) = self.parked.next() else { return Ok(false) };
            if self.alarm.deadline() != next {
                self.alarm.as_mut().reset(next);
            }
            if self.alarm.as_mut().poll(cx).is_pending() {
                return Ok(false);
            }
            let Some((asked, tries)) = self.parked.due(next) else { return Ok(false) };
            if self.is_closed() {
                return Err(End::Closed);
            }
            let Some(place) = self.ledger.try_place(self.running.len()) else {
                self.parked.keep(At::now(), asked, tries);
                continue;
            };
            let Some(charge) = self.ledger.try_charge(asked.len) else {
                self.parked.keep(At::now(), asked, tries);
                continue;
            };
            self.again += 1;
            let work = Work::Read(self.served.device.clone().read(asked.to.offset, asked.len as u32));
            self.run(Running { asked, tries, charge, _place: place, work }, cx)?;
            return Ok(true);
        }
    }

    fn work(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        loop {
            while let Poll::Ready(Some(finished)) = self.running.poll_next_unpin(cx) {
                self.finish(finished)?;
            }
            let intake = if self.open { self.take_in(cx)? } else { Intake::Over };
            let before = self.sent;
            self.flush(cx)?;
            match intake {
                Intake::Over if self.running.is_empty() && self.replies.is_empty() => {
                    return Err(if self.leaving.is_none() { End::Drained } else { End::Left });
                }
                // What was sent gave bytes back.
                Intake::Blocked if self.sent > before => {}
                Intake::Over | Intake::Blocked => return Ok(()),
                Intake::Hungry => match self.receive(cx) {
                    Poll::Ready(Ok(0)) => return Err(End::Gone),
                    Poll::Ready(Ok(more)) => self.received += more as u64,
                    Poll::Ready(Err(error)) => return Err(error.into()),
                    Poll::Pending => return Ok(()),
                },
            }
        }
    }

    fn receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        pin!(self.socket.read_buf(&mut self.input.bytes)).poll(cx)
    }

    /// Bytes of all replies that were encoded.
    fn queued(&self) -> u64 {
        self.sent + self.replies.len() as u64
    }

    fn may_answer(&self) -> bool {
        self.ledger.may_answer(self.sent, self.queued())
    }

    /// Begins what stands in the buffer, as far as C3 allows.
    fn take_in(&mut self, cx: &mut Context<'_>) -> Result<Intake, End> {
        loop {
            let beyond = self.parked.len().saturating_sub(PARKED_MAX);
            if self.running.len() + beyond >= self.requests_max || !self.may_answer() {
                self.ledger.want_no_place();
                return Ok(Intake::Blocked);
            }
            if self.turn == TURN_REQUESTS {
                cx.waker().wake_by_ref();
                return Ok(Intake::Blocked);
            }
            let Held { request, cost, charge } = match self.held.take() {
                Some(held) => held,
                None => match self.decoder.next(&mut self.input.bytes)? {
                    Decoded::Request(request) => {
                        let (request, cost) = self.price(request);
                        Held { request, cost, charge: self.awaited.take() }
                    }
                    Decoded::Need(more) => {
                        if self.awaited.is_none()
                            && let Some(payload) = self.decoder.payload_awaited()
                        {
                            match self.ledger.poll_charge(cx, Input::cost_of(payload)) {
                                Poll::Ready(charge) => self.awaited = Some(charge),
                                Poll::Pending => return Ok(Intake::Blocked),
                            }
                        }
                        self.input.make_room(more);
                        return Ok(Intake::Hungry);
                    }
                },
            };
            let charge = match charge {
                Some(charge) => charge,
                None if cost == 0 => Charge::default(),
                None => match self.ledger.poll_charge(cx, cost) {
                    Poll::Ready(charge) => charge,
                    Poll::Pending => {
                        self.held = Some(Held { request, cost, charge: None });
                        return Ok(Intake::Blocked);
                    }
                },
            };
            if matches!(request.command, Command::Disconnect) {
                self.open = false;
                return Ok(Intake::Over);
            }
            let Poll::Ready(place) = self.ledger.poll_place(cx, self.running.len()) else {
                self.held = Some(Held { request, cost, charge: Some(charge) });
                return Ok(Intake::Blocked);
            };
            self.begin(request, charge, place, cx)?;
            if self.replies.len() >= FLUSH_BYTES {
                self.flush(cx)?;
            }
        }
    }

    /// The bytes that a request holds from its beginning to the end of its answer.
    fn price(&mut self, mut request: Request) -> (Request, u64) {
        let fits = request.check(self.served.device.size(), false, self.style).is_ok();
        let cost = match &mut request.command {
            Command::Read { .. } if fits => request.len,
            Command::BlockStatus { one } if fits => (extents_most(request.len, *one) * EXTENT_BYTES) as u64,
            Command::Write { data, .. } => {
                self.payloads += 1;
                let (kept, cost) = self.input.keep(std::mem::take(data));
                *data = kept;
                cost
            }
            _ => 0,
        };
        (request, cost)
    }

    fn begin(&mut self, request: Request, charge: Charge, place: Place, cx: &mut Context<'_>) -> Result<(), End> {
        self.turn += 1;
        // C2: as late as can be.
        if self.is_closed() {
            return Err(End::Closed);
        }
        let to = ReplyTo { cookie: request.cookie, offset: request.offset, is_read: request.is_read };
        let from = self.queued();
        if let Err(errno) = request.check(self.served.device.size(), self.served.read_only, self.style) {
            self.measures.refused();
            self.replies.error(to, errno);
            self.settle_at_end(from, charge);
            return Ok(());
        }
        let Request { offset, len, command, .. } = request;
        let device = self.served.device.clone();
        let (kind, narrow, work) = match command {
            Command::Flush => (Kind::Flush, false, Work::Plain(device.flush())),
            // Nothing to do, which every device can do.
            _ if len == 0 => {
                self.replies.ok(to);
                self.settle_at_end(from, charge);
                return Ok(());
            }
            Command::Read { unfragmented } => (Kind::Read, unfragmented, Work::Read(device.read(offset, len as u32))),
            Command::Write { data, fua } => (Kind::Write, false, Work::Plain(device.write(offset, data, fua))),
            Command::Zero { punch, fast, .. } if fast && !device.zero_is_fast(punch) => {
                self.replies.error(to, Errno::NotSupported);
                self.settle_at_end(from, charge);
                return Ok(());
            }
            Command::Zero { punch, fua, .. } => {
                let work = in_steps(offset, len, move |at, len| device.clone().zero(at, len, punch, fua));
                (Kind::Zero, false, Work::Plain(work))
            }
            Command::Trim { fua } => {
                let work = in_steps(offset, len, move |at, len| device.clone().trim(at, len, fua));
                (Kind::Trim, false, Work::Plain(work))
            }
            Command::Cache => {
                // A hint: of one beyond 32 bits the first part is enough.
                let len = u32::try_from(len).unwrap_or(!511);
                (Kind::Cache, false, Work::Plain(device.cache(offset, len)))
            }
            Command::BlockStatus { one } => {
                (Kind::BlockStatus, one, Work::Status(device.block_status(offset, len, extents_most(len, one))))
            }
            // Neither comes here: the one ends the intake, the other never passes its check.
            Command::Disconnect | Command::Bad(_) => return Ok(()),
        };
        let asked = Asked { to, len, kind, narrow, since: Instant::now() };
        self.run(Running { asked, tries: 0, charge, _place: place, work }, cx)
    }

    fn run(&mut self, mut running: Running, cx: &mut Context<'_>) -> Result<(), End> {
        // C1: begun here and now. What ends at once costs no queue, what does not is polled again from there.
        match Pin::new(&mut running).poll(cx) {
            Poll::Ready(finished) => self.finish(finished),
            Poll::Pending => {
                self.running.push(running);
                Ok(())
            }
        }
    }

    fn finish(&mut self, finished: Finished) -> Result<(), End> {
        let Finished { asked, tries, charge, outcome } = finished;
        let Asked { to, len, kind, narrow, since } = asked;
        self.again -= usize::from(tries > 0);
        let from = self.queued();
        match outcome {
            Ok(Outcome::Plain) => self.replies.ok(to),
            Ok(Outcome::Read(parts)) => {
                let found: u64 = parts.iter().map(ReadPart::len).sum();
                if found != len {
                    // R9: too much or too little is not what was stored. Nothing else is known about it, so R8 closes.
                    tracing::error!(
                        offset = to.offset,
                        found,
                        expected = len,
                        "a device answered a read with a wrong length"
                    );
                    return Err(End::Device);
                }
                self.replies.read(to, parts, narrow);
            }
            Ok(Outcome::Status(extents)) => self.replies.block_status(to, len, &extents, narrow),
            Err(DeviceError::Unreadable) if kind == Kind::Read => {
                // C5: it holds no bytes while it waits, its own or the pool's.
                self.ledger.settle(charge);
                self.parked.keep(At::now(), asked, tries);
                return Ok(());
            }
            Err(DeviceError::Disconnect | DeviceError::Unreadable) => return Err(End::Device),
            Err(error) => {
                self.measures.refused();
                self.replies.error(to, error.errno(kind));
            }
        }
        self.measures.ended(kind, len, since);
        if matches!(kind, Kind::Read | Kind::BlockStatus) {
            self.settle_at_end(from, charge);
        } else {
            self.ledger.settle(charge);
        }
        Ok(())
    }

    /// What was charged is held until the reply that was encoded from there on has been sent.
    fn settle_at_end(&mut self, from: u64, charge: Charge) {
        let upto = self.queued();
        self.ledger.settle_at(from, upto, charge);
    }

    /// Sends as much as the socket takes. Many replies leave in one system call.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        while !self.replies.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = self.replies.slices(&mut slices);
            let written = match &slices[..count] {
                [single] => Pin::new(&mut *self.socket).poll_write(cx, single),
                several => Pin::new(&mut *self.socket).poll_write_vectored(cx, several),
            };
            match written {
                Poll::Ready(Ok(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Poll::Ready(Ok(written)) => {
                    self.replies.advance(written);
                    self.sent += written as u64;
                    self.ledger.sent(self.sent);
                }
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Once per stall timeout: whoever holds bytes must have moved some since the last time.
    fn check_stall(&mut self) -> Result<(), End> {
        let queued = self.queued();
        let last = std::mem::replace(
            &mut self.watch,
            Watch {
                received: self.received,
                payloads: self.payloads,
                awaited: self.awaited.is_some(),
                sent: self.sent,
                queued,
            },
        );
        let same_payload = last.awaited && self.awaited.is_some() && last.payloads == self.payloads;
        if same_payload && self.received - last.received < STALL_BYTES_MIN {
            return Err(End::Stalled);
        }
        if self.sent < last.queued && self.sent - last.sent < STALL_BYTES_MIN {
            return Err(End::Stalled);
        }
        Ok(())
    }
}

/// Extents that an answer about `len` bytes has at most: none is shorter than a sector.
fn extents_most(len: u64, one: bool) -> usize {
    if one { 1 } else { (len / SECTOR_BYTES).min(EXTENTS_PER_REPLY_MAX as u64) as usize }
}

#[cfg(test)]
mod tests;
