//! Send queue of a socket. Any task fills it; the socket's own task empties it.
//!
//! OUTBOX-O1  Filling never waits. The content is bounded by the table of unanswered requests; for clients also by
//!     their reader, which stops while there is too much.

use bytes::{Buf, Bytes, BytesMut};
use holdfast_nbd::server::ReplyQueue;
use holdfast_types::sync::LockExt;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use tokio::io::AsyncWrite;

/// Maximum number of pieces of one vectored write.
const SLICES_MAX: usize = 64;
/// Payloads up to this length are copied behind their header, which is cheaper than a slice of their own.
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

/// Requests on their way to a gateway. Headers are collected in one buffer; payloads are not copied.
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

/// Shared state of a connection, and the waker of its writer.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    state: T,
    waker: Option<Waker>,
}

/// A connection's state, as its writer sees it.
pub(crate) trait Outgoing {
    type Queue: Queue;
    fn queue(&mut self) -> &mut Self::Queue;
    /// Whether nothing more will come: then the writer ends once all is sent.
    fn over(&self) -> bool;
}

impl<T: Outgoing> Outbox<T> {
    pub(crate) fn new(state: T) -> Self {
        Self { inner: Mutex::new(Inner { state, waker: None }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.locked()
    }

    /// Changes the state, and wakes the writer if it has something to do.
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

    /// Reads the state, or changes a part of it that does not concern the writer. Never wakes the writer, and so is for
    /// the writer itself.
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
                // TLS keeps records that its socket did not take.
                let flushed = Pin::new(&mut *socket).poll_flush(cx)?.is_ready();
                if flushed && state.over() {
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
