//! Bytes that a connection has moved. Decides whether its client stalls.

use crate::limits::STALL_BYTES_MIN;
use std::task::Context;
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// Counts of one connection.
pub(super) struct Traffic {
    /// Bytes received.
    pub(super) received: u64,
    /// Payloads received whole.
    pub(super) payloads: u64,
    /// Bytes of replies sent.
    pub(super) sent: u64,
    last: Last,
    /// One for each stall timeout.
    ticks: Interval,
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
    /// Looks once in each `stall_timeout`.
    pub(super) fn new(stall_timeout: Duration) -> Self {
        let mut ticks = interval_at(Instant::now() + stall_timeout, stall_timeout);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { received: 0, payloads: 0, sent: 0, last: Last::default(), ticks }
    }

    /// Whether the client stalls. If it does not, `cx` is woken for the next look. `awaited`: a payload is being
    /// received; `queued`: bytes of all replies so far.
    pub(super) fn poll_stalls(&mut self, cx: &mut Context<'_>, awaited: bool, queued: u64) -> bool {
        while self.ticks.poll_tick(cx).is_ready() {
            if self.stalls(awaited, queued) {
                return true;
            }
        }
        false
    }

    /// Whether the client moved too few bytes since the last call, although it had to. Called once per stall timeout.
    fn stalls(&mut self, awaited: bool, queued: u64) -> bool {
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
