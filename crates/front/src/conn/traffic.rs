//! Bytes that a connection has moved. Decides whether its client stalls.

use crate::limits::STALL_BYTES_MIN;

/// Counts of one connection.
#[derive(Default)]
pub(super) struct Traffic {
    /// Bytes received.
    pub(super) received: u64,
    /// Payloads received whole.
    pub(super) payloads: u64,
    /// Bytes of replies sent.
    pub(super) sent: u64,
    last: Last,
}

/// The counts at the last look.
#[derive(Default)]
struct Last {
    received: u64,
    payloads: u64,
    /// A payload was being received.
    awaited: bool,
    sent: u64,
    /// Bytes of all replies up to then.
    queued: u64,
}

impl Traffic {
    /// Whether the client moved too few bytes since the last call, although it had to. Called once per stall timeout.
    /// `awaited`: a payload is being received; `queued`: bytes of all replies so far.
    pub(super) fn stalls(&mut self, awaited: bool, queued: u64) -> bool {
        let Self { received, payloads, sent, .. } = *self;
        let last = std::mem::replace(&mut self.last, Last { received, payloads, awaited, sent, queued });
        let same_payload = last.awaited && awaited && last.payloads == payloads;
        let sends_nothing = same_payload && received - last.received < STALL_BYTES_MIN;
        holdfast_reached::reached!("conn: a client sends no payload", sends_nothing);
        let takes_nothing = sent < last.queued && sent - last.sent < STALL_BYTES_MIN;
        holdfast_reached::reached!("conn: a client takes no answers", takes_nothing);
        sends_nothing || takes_nothing
    }
}
