//! Send queue of a socket. Any task fills it; the socket's own task empties it.
//!
//! OUTBOX-O1  Filling never waits: what may wait there is bounded by the table of unanswered requests, and for clients by the reader, which
//!     stops while too much stands here.

use bytes::{Buf, Bytes, BytesMut};
use holdfast_nbd::server::ReplyQueue;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::io::AsyncWrite;

/// Pieces of one vectored write at most.
const SLICES_MAX: usize = 64;
/// Payloads up to this length are copied beside their header: cheaper than a slice of its own.
const COPY_BYTES_MAX: usize = 4096;

/// A queue of bytes.
pub(crate) trait Queue {
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize;
    fn advance(&mut self, sent: usize);
    fn is_empty(&self) -> bool;
}

impl Queue for ReplyQueue {
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        ReplyQueue::slices(self, slices)
    }

    fn advance(&mut self, sent: usize) {
        ReplyQueue::advance(self, sent);
    }

    fn is_empty(&self) -> bool {
        ReplyQueue::is_empty(self)
    }
}

/// Requests on their way to a gateway: headers gather in one buffer, payloads are passed on as they came.
#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    sealed: VecDeque<Bytes>,
    pub(crate) open: BytesMut,
}

impl RequestQueue {
    pub(crate) fn payload(&mut self, data: Bytes) {
        if data.len() <= COPY_BYTES_MAX {
            return self.open.extend_from_slice(&data);
        }
        self.sealed.push_back(self.open.split().freeze());
        self.sealed.push_back(data);
    }
}

impl Queue for RequestQueue {
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let open: &[u8] = &self.open;
        let all = self.sealed.iter().map(|bytes| &bytes[..]).chain((!open.is_empty()).then_some(open));
        slices.iter_mut().zip(all).map(|(slot, bytes)| *slot = IoSlice::new(bytes)).count()
    }

    fn advance(&mut self, sent: usize) {
        let mut left = sent;
        while let Some(first) = self.sealed.front_mut() {
            if first.len() > left {
                return first.advance(left);
            }
            left -= first.len();
            self.sealed.pop_front();
        }
        self.open.advance(left);
    }

    fn is_empty(&self) -> bool {
        self.sealed.is_empty() && self.open.is_empty()
    }
}

/// State of a connection that others reach into: a queue, and who waits for it to fill.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    state: T,
    waker: Option<Waker>,
}

/// What a connection's state says to its writer.
pub(crate) trait Outgoing {
    type Queue: Queue;
    fn queue(&mut self) -> &mut Self::Queue;
    /// Nothing more will come: the writer ends once all is sent.
    fn over(&self) -> bool;
}

impl<T: Outgoing> Outbox<T> {
    pub(crate) fn new(state: T) -> Self {
        Self { inner: Mutex::new(Inner { state, waker: None }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state; the writer is woken if there is something for it to do.
    pub(crate) fn with<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut inner = self.lock();
        let result = change(&mut inner.state);
        let wake = !inner.state.queue().is_empty() || inner.state.over();
        let waker = if wake { inner.waker.take() } else { None };
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        result
    }

    /// Looks at the state, or changes in it what is nothing to the writer: it is never woken. For the writer itself.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut self.lock().state)
    }

    /// Sends as much as the socket takes. Ready with `Ok` once all is sent and nothing more will come.
    pub(crate) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        socket: &mut (impl AsyncWrite + Unpin),
    ) -> Poll<io::Result<()>> {
        let mut inner = self.lock();
        let Inner { state, waker } = &mut *inner;
        loop {
            if state.queue().is_empty() {
                if state.over() {
                    return Poll::Ready(Ok(()));
                }
                *waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let count = state.queue().slices(&mut slices);
            match Pin::new(&mut *socket).poll_write_vectored(cx, &slices[..count]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(sent)) => state.queue().advance(sent),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    *waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }
}
