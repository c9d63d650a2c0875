//! Signals from outside that end a connection: it is declared closed (CONN-C2), or drained (CONN-C6).

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

type Signal = Pin<Box<WaitForCancellationFutureOwned>>;

pub(super) struct Signals {
    closed: [CancellationToken; 2],
    closing: [Signal; 2],
    /// `None` once the drain has begun.
    draining: Option<Signal>,
}

impl Signals {
    pub(super) fn new(closed: [CancellationToken; 2], draining: CancellationToken) -> Self {
        Self {
            closing: closed.clone().map(|token| Box::pin(token.cancelled_owned())),
            closed,
            draining: Some(Box::pin(draining.cancelled_owned())),
        }
    }

    /// Whether the connection is declared closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.iter().any(CancellationToken::is_cancelled)
    }

    /// The same. If it is not, `cx` is woken when it is.
    pub(super) fn poll_closed(&mut self, cx: &mut Context<'_>) -> bool {
        self.closing.iter_mut().any(|closing| closing.as_mut().poll(cx).is_ready())
    }

    /// Whether the drain begins, which it does once. Before that, `cx` is woken when it does.
    pub(super) fn poll_drain(&mut self, cx: &mut Context<'_>) -> bool {
        let begins = self.draining.as_mut().is_some_and(|draining| draining.as_mut().poll(cx).is_ready());
        if begins {
            self.draining = None;
        }
        begins
    }

    /// Whether the drain has begun.
    pub(super) fn is_drained(&self) -> bool {
        self.draining.is_none()
    }
}
