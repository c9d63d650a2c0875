//! Fewer system calls below TLS: rustls asks a socket for 4 KiB at a time.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that one read asks the socket for, and that a connection holds: four records of TLS.
const AHEAD_BYTES: usize = 64 << 10;

/// Bytes that pass without a buffer. No handshake needs so many: a peer that has not shown its certificate yet costs no
/// memory here.
const PASSED_BYTES: usize = 32 << 10;

/// A connection below TLS that reads ahead.
pub struct ReadAhead<C> {
    inner: C,
    /// Bytes without a buffer so far.
    passed: usize,
    /// Empty before the first read ahead.
    buffer: Box<[u8]>,
    /// The part of the buffer that nobody has read.
    from: usize,
    to: usize,
}

impl<C> ReadAhead<C> {
    /// Reads ahead once the handshake is over.
    pub fn new(inner: C) -> Self {
        Self { inner, passed: 0, buffer: Box::default(), from: 0, to: 0 }
    }

    /// The connection below. What was read ahead is not in it any more.
    pub fn get_ref(&self) -> &C {
        &self.inner
    }
}

impl<C: AsyncRead + Unpin> ReadAhead<C> {
    /// Passes on what is there already. False: nothing is.
    fn give(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let len = buf.remaining().min(self.to - self.from);
        buf.put_slice(&self.buffer[self.from..self.from + len]);
        self.from += len;
        len > 0
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for ReadAhead<C> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if buf.remaining() == 0 || this.give(buf) {
            return Poll::Ready(Ok(()));
        }
        if this.passed < PASSED_BYTES || buf.remaining() >= AHEAD_BYTES {
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
            this.passed = this.passed.saturating_add(buf.filled().len() - before);
            return Poll::Ready(Ok(()));
        }
        if this.buffer.is_empty() {
            this.buffer = vec![0; AHEAD_BYTES].into_boxed_slice();
        }
        let mut ahead = ReadBuf::new(&mut this.buffer);
        ready!(Pin::new(&mut this.inner).poll_read(cx, &mut ahead))?;
        (this.from, this.to) = (0, ahead.filled().len());
        this.give(buf);
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for ReadAhead<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// All bytes come once and in order, whatever the sizes of the reads, and an end is an end.
    #[tokio::test]
    async fn nothing_is_lost_or_moved_by_reading_ahead() {
        let (mut near, far) = tokio::io::duplex(10_000);
        let data: Vec<u8> = (0..400_000_u32).map(|n| (n % 251) as u8).collect();
        let sent = data.clone();
        let sending = tokio::spawn(async move {
            near.write_all(&sent).await.expect("taken");
        });
        let mut far = ReadAhead::new(far);
        let mut read = Vec::new();
        for size in [1, 4096, 7, 70_000, 300].into_iter().cycle() {
            let mut piece = vec![0; size];
            let len = far.read(&mut piece).await.expect("a read");
            if len == 0 {
                break;
            }
            read.extend_from_slice(&piece[..len]);
        }
        assert!(read == data);
        assert_eq!(far.read(&mut [0; 8]).await.expect("a read"), 0);
        sending.await.expect("sent");
    }

    #[tokio::test]
    async fn a_connection_in_its_handshake_holds_no_buffer_and_later_reads_are_few() {
        let (mut near, far) = tokio::io::duplex(1 << 20);
        let mut far = ReadAhead::new(far);
        let mut piece = vec![0; 4096];
        near.write_all(&vec![1; PASSED_BYTES]).await.expect("taken");
        for _ in 0..PASSED_BYTES / 4096 {
            assert_eq!(far.read(&mut piece).await.expect("a read"), 4096);
        }
        assert!(far.buffer.is_empty());
        near.write_all(&vec![2; 2 * AHEAD_BYTES]).await.expect("taken");
        assert_eq!(far.read(&mut piece).await.expect("a read"), 4096);
        assert_eq!((far.to - far.from, far.buffer.len()), (AHEAD_BYTES - 4096, AHEAD_BYTES));
    }
}
