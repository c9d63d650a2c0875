//! What a client has sent and what has not begun yet, up to the end of its stream (CONN-C7, CONN-C8).

use super::export::{Export, extents_most};
use super::traffic::Traffic;
use crate::budget::{Charge, Ledger};
use crate::device::Extent;
use crate::input::Input;
use crate::throttle::Throttled;
use holdfast_nbd::server::{Command, Decoded, Negotiated, ProtocolError, Request, RequestDecoder};
use std::future::Future;
use std::io;
use std::pin::pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Memory of an extent in the device's answer, and on the wire.
const EXTENT_BYTES: usize = size_of::<Extent>();

/// A request that is decoded but not begun yet.
pub(super) struct Held {
    pub(super) request: Request,
    pub(super) cost: u64,
    /// Charged: the request waits for its place. `None`: it waits for its charge.
    pub(super) charge: Option<Charge>,
    /// It does not wait for a limit any more (CONN-C9).
    pub(super) admitted: bool,
}

/// What a request reads and writes in bytes, as limits count it. `None`: they do not count it at all. A flush waits
/// only behind what waits before it on its connection, and the rest is answered here.
pub(super) fn limited_bytes(request: &Request) -> Option<u64> {
    match &request.command {
        // The device may read what the hint says.
        Command::Read { .. } | Command::Write { .. } | Command::Cache => Some(request.len),
        Command::Zero { .. } | Command::Trim { .. } | Command::BlockStatus { .. } => Some(0),
        Command::Flush | Command::Disconnect | Command::Bad(_) => None,
    }
}

/// What the reader of the buffer needs next.
pub(super) enum Intake {
    /// More bytes are needed.
    Hungry,
    /// Something else must happen first: a request must end, or bytes must be returned.
    Blocked,
    /// The client sent NBD_CMD_DISC.
    Over,
}

/// Result of [`Incoming::next`].
pub(super) enum Next {
    Request(Held),
    Wait(Intake),
}

pub(super) struct Incoming {
    input: Input,
    decoder: RequestDecoder,
    held: Option<Held>,
    /// The charge of the payload that is being received.
    awaited: Option<Charge>,
    /// The request of the awaited payload does not wait for a limit any more.
    admitted: bool,
    open: bool,
    /// Whether a request waits, so that nothing is read (CONN-C7).
    pub(super) waits: bool,
    /// NBD_CMD_DISC lies behind the requests that wait (CONN-C8).
    leaves: bool,
}

impl Incoming {
    /// `input` holds what was read after the handshake.
    pub(super) fn new(input: Input, negotiated: Negotiated) -> Self {
        let Negotiated { style, allocation } = negotiated;
        Self {
            input,
            decoder: RequestDecoder::new(style, allocation),
            held: None,
            awaited: None,
            admitted: false,
            open: true,
            waits: false,
            leaves: false,
        }
    }

    /// Whether further requests may begin.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Nothing more begins.
    pub(super) fn close(&mut self) {
        self.open = false;
    }

    /// Whether a payload is being received.
    pub(super) fn awaits_payload(&self) -> bool {
        self.awaited.is_some()
    }

    /// Whether to look for the end of the stream.
    pub(super) fn may_end_unseen(&self) -> bool {
        self.waits && !self.leaves
    }

    /// The stream ends behind these bytes. Returns whether NBD_CMD_DISC is among all that was not begun.
    pub(super) fn ends_behind(&mut self, left: &[u8]) -> bool {
        self.leaves = self.decoder.ends_with_disconnect(&self.input.bytes, left);
        self.leaves
    }

    pub(super) fn receive<S: AsyncRead + Unpin>(
        &mut self,
        socket: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        pin!(socket.read_buf(&mut self.input.bytes)).poll(cx)
    }

    /// Keeps a request until there is room for it.
    pub(super) fn hold(&mut self, held: Held) {
        self.held = Some(held);
    }

    /// The next request. A payload is charged before there is room for it (CONN-C3), and not before its request may
    /// begin (CONN-C9).
    ///
    /// # Errors
    /// The client broke the protocol.
    pub(super) fn next(
        &mut self,
        cx: &mut Context<'_>,
        throttled: &mut Throttled,
        ledger: &mut Ledger,
        export: &mut Export,
        traffic: &mut Traffic,
    ) -> Result<Next, ProtocolError> {
        if let Some(held) = self.held.take() {
            return Ok(Next::Request(held));
        }
        match self.decoder.next(&mut self.input.bytes)? {
            Decoded::Request(request) => {
                let (request, cost) = self.price(request, export, traffic);
                let (charge, admitted) = (self.awaited.take(), std::mem::take(&mut self.admitted));
                Ok(Next::Request(Held { request, cost, charge, admitted }))
            }
            Decoded::Need(more) => {
                if self.awaited.is_none()
                    && let Some(payload) = self.decoder.payload_awaited()
                {
                    if !self.admitted && throttled.poll(cx, Some(payload as u64)).is_pending() {
                        return Ok(Next::Wait(Intake::Blocked));
                    }
                    self.admitted = true;
                    match ledger.poll_charge(cx, Input::cost_of(payload)) {
                        Poll::Ready(charge) => self.awaited = Some(charge),
                        Poll::Pending => return Ok(Next::Wait(Intake::Blocked)),
                    }
                }
                self.input.make_room(more);
                Ok(Next::Wait(Intake::Hungry))
            }
        }
    }

    /// The bytes that a request holds from its beginning to the end of its answer.
    fn price(&mut self, mut request: Request, export: &mut Export, traffic: &mut Traffic) -> (Request, u64) {
        let fits = export.may_fit(&request);
        let cost = match &mut request.command {
            Command::Read { .. } if fits => request.len,
            Command::BlockStatus { one } if fits => (extents_most(request.len, *one) * EXTENT_BYTES) as u64,
            Command::Write { data, .. } => {
                traffic.payloads += 1;
                let (kept, cost) = self.input.keep(std::mem::take(data));
                *data = kept;
                cost
            }
            _ => 0,
        };
        (request, cost)
    }
}
