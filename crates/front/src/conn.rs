//! One connection in transmission: one task that reads, runs requests and answers; no task per request.
//!
//! ```text
//!   socket ─▶ Input ─▶ RequestDecoder ─▶ begin ──ready──▶ ReplyQueue ─▶ socket
//!                                          └─pending─▶ running ──┘
//! ```
//!
//! No task per request, because it costs system calls: 3 per request at depth 1 and 0.36 at depth 32, instead of 5.1
//! and 4.4 (measured with 5000 writes of 4 KiB and a device that answers from another task).
//!
//! CONN-C1  Operations begin in the order of the wire, end in any order, and are answered as they end.
//! CONN-C2  After the connection is declared closed, nothing begins and nothing is answered (R8).
//! CONN-C3  Requests and the bytes of requests and unsent replies are charged to the ledger before they are held. A
//!     request takes its place last, just before it begins (BUDGET-P1 of the budget). Unpaid small replies are limited
//!     by their unsent bytes (BUDGET-P2).
//! CONN-C4  When the task ends, its operations are dropped before its place in the slot is returned (SLOT-S1).
//! CONN-C5  A read that no gateway can answer holds only a place outside the running requests until it can be answered.
//! CONN-C6  A drained connection begins nothing more, answers what has begun, and ends as if the client had
//!     disconnected.
//! CONN-C7  While a request waits for a limit, nothing is read, so the end of the client's stream is looked for each
//!     time that this task wakes. If the stream ends without NBD_CMD_DISC, nothing more begins: the client may have
//!     sent its requests again on another connection, and a retry may be answered by now.
//! CONN-C8  A client that closes its sending side without NBD_CMD_DISC gets no more answers, even if it could still
//!     receive them. On TCP this looks the same as a closed connection, and the specification calls it a hard
//!     disconnect. After NBD_CMD_DISC everything before it is answered, also if the client then closes its sending
//!     side, as libnbd does. The look for it reads ahead without a charge, so it is bounded (`LEFT_BYTES_MAX`). A
//!     client that leaves more behind than that, and NBD_CMD_DISC at the end of it, counts as gone. With TLS the bytes
//!     have to be decrypted for it, and the bound is `AHEAD_BYTES_MAX` of the line.
//! CONN-C9  A request that a limit of its volume or set holds back is the only one of its connection that waits for
//!     one. It has no place and no bytes of the gateway's, and while it waits its client's end is found as in CONN-C7.
//! CONN-C10  The changes that begin in one poll are between [`Device::hold`] and [`Device::release`], however the poll
//!     ends.

use super::budget::{Charge, Ledger, Place};
use super::device::{Device, DeviceError, ReadPart};
use super::input::Input;
use super::limits::FrontLimits;
use super::line::Line;
use super::measure::{Kind, Measures};
use super::parked::{AGAIN_MAX, PARKED_MAX, Parked};
use super::steps::in_steps;
use super::throttle::{Throttled, Throttles};
use burst::Burst;
use export::{Export, extents_most};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use holdfast_nbd::Errno;
use holdfast_nbd::server::{Command, Negotiated, ProtocolError, ReplyQueue, ReplyTo, Request};
use incoming::{Held, Incoming, Intake, Next, limited_bytes};
use running::{Asked, Finished, Outcome, Running, Work};
use signals::Signals;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant as At, Sleep};
use tokio_util::sync::CancellationToken;
use traffic::Traffic;

/// Maximum number of pieces of one vectored write.
const SLICES_MAX: usize = 128;
/// Replies are sent once this much waits, even if more requests are in the buffer.
const FLUSH_BYTES: usize = 256 << 10;
/// Requests that are begun before other tasks get their turn: small ones that complete at once could go on for long.
const TURN_REQUESTS: usize = 1024;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum End {
    /// NBD_CMD_DISC, and all is answered.
    #[error("the client left")]
    Left,
    /// End of file without NBD_CMD_DISC.
    #[error("the client is gone")]
    Gone,
    /// CONN-C2.
    #[error("declared closed")]
    Closed,
    /// CONN-C6.
    #[error("drained: all its requests are answered")]
    Drained,
    /// [`DeviceError::Disconnect`].
    #[error("closed by the device")]
    Device,
    /// It neither sends the announced payload nor takes its replies.
    #[error("the client stalls")]
    Stalled,
    /// No longer valid NBD.
    #[error("the client broke the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// The socket failed.
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
}

/// The connection's device, and what may end it from outside.
pub(super) struct Served {
    pub(super) device: Arc<dyn Device>,
    pub(super) read_only: bool,
    pub(super) negotiated: Negotiated,
    /// The export's token, and the connection's (a newer incarnation, shutdown).
    pub(super) closed: [CancellationToken; 2],
    /// CONN-C6.
    pub(super) draining: CancellationToken,
    /// CONN-C9.
    pub(super) throttles: Throttles,
}

/// Reads that no gateway could answer, and their retries (CONN-C5).
struct Retries {
    parked: Parked<At, Asked>,
    /// How many of the running reads are retries.
    running: usize,
    /// For the next parked read.
    alarm: Pin<Box<Sleep>>,
}

pub(super) struct Connection<'a, S> {
    socket: &'a mut Line<S>,
    incoming: Incoming,
    /// The client's stream has ended, and what lies before the end is not known yet: nothing begins (CONN-C7) and
    /// nothing is answered (CONN-C8).
    unclear: bool,
    /// Changes have begun in this poll (CONN-C10).
    burst: Option<Burst>,
    running: FuturesUnordered<Running>,
    retries: Retries,
    replies: ReplyQueue,
    throttled: Throttled,
    ledger: Ledger,
    export: Export,
    signals: Signals,
    requests_max: usize,
    /// Requests that were begun in this turn.
    turn: usize,
    measures: &'a Measures,
    traffic: Traffic,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Connection<'a, S> {
    /// `input` holds what was read after the handshake.
    pub(super) fn new(
        socket: &'a mut Line<S>,
        input: Input,
        served: Served,
        limits: &FrontLimits,
        ledger: Ledger,
        measures: &'a Measures,
    ) -> Self {
        let Served { device, read_only, negotiated, closed, draining, throttles } = served;
        Self {
            socket,
            incoming: Incoming::new(input, negotiated),
            unclear: false,
            burst: None,
            running: FuturesUnordered::new(),
            retries: Retries {
                parked: Parked::new(limits.unreadable_pause),
                running: 0,
                alarm: Box::pin(tokio::time::sleep_until(At::now())),
            },
            replies: ReplyQueue::new(negotiated.style),
            throttled: Throttled::new(throttles),
            ledger,
            export: Export::new(device, read_only, negotiated.style),
            signals: Signals::new(closed, draining),
            requests_max: limits.connection_requests,
            turn: 0,
            measures,
            traffic: Traffic::new(limits.stall_timeout),
        }
    }

    /// Serves until the end. Dropping the future drops all running operations (CONN-C4).
    pub(super) async fn serve(mut self) -> End {
        poll_fn(|cx| match self.poll(cx) {
            Ok(()) => Poll::Pending,
            Err(end) => Poll::Ready(end),
        })
        .await
    }

    /// Does all that can be done now. `Ok`: `cx` is woken when there is more to do.
    fn poll(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        if self.signals.poll_closed(cx) {
            return Err(End::Closed);
        }
        if self.signals.poll_drain(cx) {
            holdfast_reached::reached!("conn: the set moves while a client is connected");
            self.incoming.close();
        }
        // Each end of an operation, and each tick, leads here.
        self.look_for_end(cx)?;
        if self.unclear {
            return Ok(());
        }
        let queued = self.queued();
        if self.traffic.poll_stalls(cx, self.incoming.awaits_payload(), queued) {
            return Err(End::Stalled);
        }
        self.turn = 0;
        loop {
            self.work(cx)?;
            if !self.ask_again(cx)? {
                self.burst = None;
                return Ok(());
            }
        }
    }

    /// CONN-C7, CONN-C8. Costs a system call only while a request waits.
    fn look_for_end(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        self.unclear = false;
        if !self.incoming.may_end_unseen() {
            return Ok(());
        }
        let Poll::Ready(left) = self.socket.poll_left(cx) else {
            self.unclear = true;
            return Ok(());
        };
        let Some(left) = left else { return Ok(()) };
        let leaves = self.incoming.ends_behind(&left);
        holdfast_reached::reached!("conn: a client left while its request waits", !leaves);
        if leaves { Ok(()) } else { Err(End::Gone) }
    }

    /// Begins a parked read whose pause is over, and returns whether it did. `cx` is woken for the next.
    fn ask_again(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
        loop {
            // The end of a retry wakes this again, and so does progress of the client.
            if self.retries.running >= AGAIN_MAX || self.running.len() >= self.requests_max || !self.may_answer() {
                return Ok(false);
            }
            let Some(next) = self.retries.parked.next() else { return Ok(false) };
            if self.retries.alarm.deadline() != next {
                self.retries.alarm.as_mut().reset(next);
            }
            if self.retries.alarm.as_mut().poll(cx).is_pending() {
                return Ok(false);
            }
            let Some((asked, tries)) = self.retries.parked.due(next) else { return Ok(false) };
            if self.signals.is_closed() {
                return Err(End::Closed);
            }
            let Some(place) = self.ledger.try_place(self.running.len()) else {
                self.retries.parked.keep(At::now(), asked, tries);
                continue;
            };
            let Some(charge) = self.ledger.try_charge(asked.len) else {
                self.retries.parked.keep(At::now(), asked, tries);
                continue;
            };
            self.retries.running += 1;
            let work = Work::Read(self.export.device.clone().read(asked.to.offset, asked.len as u32));
            self.run(Running { asked, tries, charge, _place: place, work }, cx)?;
            return Ok(true);
        }
    }

    fn work(&mut self, cx: &mut Context<'_>) -> Result<(), End> {
        loop {
            while let Poll::Ready(Some(finished)) = self.running.poll_next_unpin(cx) {
                self.finish(finished)?;
            }
            let intake = if self.incoming.is_open() { self.take_in(cx)? } else { Intake::Over };
            self.incoming.waits = matches!(intake, Intake::Blocked);
            let before = self.traffic.sent;
            let all_sent = self.flush(cx)?;
            match intake {
                Intake::Over if self.running.is_empty() && all_sent => {
                    return Err(if self.signals.is_drained() { End::Drained } else { End::Left });
                }
                // Sending has returned bytes.
                Intake::Blocked if self.traffic.sent > before => {}
                Intake::Over | Intake::Blocked => return Ok(()),
                Intake::Hungry => match self.incoming.receive(self.socket, cx) {
                    Poll::Ready(Ok(0)) => return Err(End::Gone),
                    Poll::Ready(Ok(more)) => self.traffic.received += more as u64,
                    Poll::Ready(Err(error)) => return Err(error.into()),
                    Poll::Pending => return Ok(()),
                },
            }
        }
    }

    /// Bytes of all replies encoded so far.
    fn queued(&self) -> u64 {
        self.traffic.sent + self.replies.len() as u64
    }

    fn may_answer(&self) -> bool {
        self.ledger.may_answer(self.traffic.sent, self.queued())
    }

    /// Begins the requests in the buffer, as far as CONN-C3 allows.
    fn take_in(&mut self, cx: &mut Context<'_>) -> Result<Intake, End> {
        loop {
            let beyond = self.retries.parked.len().saturating_sub(PARKED_MAX);
            if self.running.len() + beyond >= self.requests_max || !self.may_answer() {
                self.ledger.want_no_place();
                return Ok(Intake::Blocked);
            }
            if self.turn == TURN_REQUESTS {
                cx.waker().wake_by_ref();
                return Ok(Intake::Blocked);
            }
            let (throttled, ledger) = (&mut self.throttled, &mut self.ledger);
            let next = self.incoming.next(cx, throttled, ledger, &mut self.export, &mut self.traffic)?;
            let Held { request, cost, charge, admitted } = match next {
                Next::Request(held) => held,
                Next::Wait(intake) => return Ok(intake),
            };
            if !admitted && self.throttled.poll(cx, limited_bytes(&request)).is_pending() {
                self.incoming.hold(Held { request, cost, charge, admitted: false });
                return Ok(Intake::Blocked);
            }
            let charge = match charge {
                Some(charge) => charge,
                None if cost == 0 => Charge::default(),
                None => match self.ledger.poll_charge(cx, cost) {
                    Poll::Ready(charge) => charge,
                    Poll::Pending => {
                        self.incoming.hold(Held { request, cost, charge: None, admitted: true });
                        return Ok(Intake::Blocked);
                    }
                },
            };
            if matches!(request.command, Command::Disconnect) {
                self.incoming.close();
                return Ok(Intake::Over);
            }
            let Poll::Ready(place) = self.ledger.poll_place(cx, self.running.len()) else {
                self.incoming.hold(Held { request, cost, charge: Some(charge), admitted: true });
                return Ok(Intake::Blocked);
            };
            self.begin(request, charge, place, cx)?;
            if self.replies.len() >= FLUSH_BYTES {
                self.flush(cx)?;
            }
        }
    }

    fn begin(&mut self, request: Request, charge: Charge, place: Place, cx: &mut Context<'_>) -> Result<(), End> {
        self.turn += 1;
        holdfast_reached::reached!("conn: a request comes when the set is no longer served", self.signals.is_closed());
        // CONN-C2: checked as late as possible.
        if self.signals.is_closed() {
            return Err(End::Closed);
        }
        let to = ReplyTo { cookie: request.cookie, offset: request.offset, is_read: request.is_read };
        let from = self.queued();
        if let Err(errno) = self.export.check(&request) {
            self.measures.refused();
            self.replies.error(to, errno);
            self.settle_at_end(from, charge);
            return Ok(());
        }
        let Request { offset, len, command, .. } = request;
        let device = self.export.device.clone();
        if matches!(command, Command::Write { .. } | Command::Zero { .. } | Command::Trim { .. }) {
            self.burst.get_or_insert_with(|| Burst::begin(device.clone()));
        }
        let (kind, narrow, work) = match command {
            Command::Flush => (Kind::Flush, false, Work::Plain(device.flush())),
            // Every device can do nothing, so this needs no device.
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
                // A hint: if it is longer than 32 bits, the first part is enough.
                let len = u32::try_from(len).unwrap_or(!511);
                (Kind::Cache, false, Work::Plain(device.cache(offset, len)))
            }
            Command::BlockStatus { one } => {
                (Kind::BlockStatus, one, Work::Status(device.block_status(offset, len, extents_most(len, one))))
            }
            // Neither reaches this point: one ends the intake, the other never passes its check.
            Command::Disconnect | Command::Bad(_) => return Ok(()),
        };
        let asked = Asked { to, len, kind, narrow, since: Instant::now() };
        self.run(Running { asked, tries: 0, charge, _place: place, work }, cx)
    }

    fn run(&mut self, mut running: Running, cx: &mut Context<'_>) -> Result<(), End> {
        // CONN-C1: begun here. An operation that completes at once needs no queue; any other is polled again from the
        // queue.
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
        self.retries.running -= usize::from(tries > 0);
        let from = self.queued();
        match outcome {
            Ok(Outcome::Plain) => self.replies.ok(to),
            Ok(Outcome::Read(parts)) => {
                let found: u64 = parts.iter().map(ReadPart::len).sum();
                if found != len {
                    // R9: data of a wrong length is not what was stored. Nothing else is known about it, so R8 closes.
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
                holdfast_reached::reached!("conn: a read waits for the store");
                // CONN-C5: it holds no bytes while it waits, neither its own nor the pool's.
                self.ledger.settle(charge);
                self.retries.parked.keep(At::now(), asked, tries);
                return Ok(());
            }
            Err(DeviceError::Disconnect | DeviceError::Unreadable) => return Err(End::Device),
            Err(error) => {
                self.measures.refused();
                holdfast_reached::reached!(
                    "conn: an owner that has lost the set gets an error",
                    matches!(error, DeviceError::Fenced)
                );
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

    /// Holds the charge until the reply that was encoded from there on has been sent.
    fn settle_at_end(&mut self, from: u64, charge: Charge) {
        let upto = self.queued();
        self.ledger.settle_at(from, upto, charge);
    }

    /// Sends as much as the socket takes, and returns whether that is all. Many replies go out in one system call.
    fn flush(&mut self, cx: &mut Context<'_>) -> Result<bool, End> {
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
                    self.traffic.sent += written as u64;
                    self.ledger.sent(self.traffic.sent);
                }
                Poll::Ready(Err(error)) => return Err(error.into()),
                Poll::Pending => return Ok(false),
            }
        }
        Ok(Pin::new(&mut *self.socket).poll_flush(cx)?.is_ready())
    }
}

mod burst;
mod export;
mod incoming;
mod running;
mod signals;
#[cfg(test)]
mod tests;
mod traffic;
