//! What a client has sent and what has not begun yet, up to the end of its stream (CONN-C7, CONN-C8).

use super::export::{Export, extents_most};
use super::traffic::Traffic;
use crate::budget::{Charge, Ledger};
use crate::device::Extent;
use crate::input::Input;
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

    /// The next request. A payload is charged before there is room for it (CONN-C3).
    ///
    /// # Errors
    /// The client broke the protocol.
    pub(super) fn next(
        &mut self,
        cx: &mut Context<'_>,
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
                Ok(Next::Request(Held { request, cost, charge: self.awaited.take() }))
            }
            Decoded::Need(more) => {
                if self.awaited.is_none()
                    && let Some(payload) = self.decoder.payload_awaited()
                {
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
