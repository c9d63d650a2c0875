//! A door that takes connections with and without TLS, while a cluster comes to TLS (ADR 0049).

use crate::accept::{Acceptor, TlsStream};
use crate::stream::{HANDSHAKE_TIMEOUT, within};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tonic::transport::server::{Connected, TlsConnectInfo};

/// The first byte of TLS (RFC 8446, 5.1: a handshake). HTTP and append streams begin with letters.
pub(crate) const HANDSHAKE: u8 = 0x16;

/// A connection whose first bytes were looked at. It yields them again.
pub struct Peeked<C> {
    first: Vec<u8>,
    inner: C,
}

impl<C> Peeked<C> {
    /// `first` were read from `inner`.
    pub fn new(first: Vec<u8>, inner: C) -> Self {
        Self { first, inner }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Peeked<C> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.inner).poll_read(cx, buf);
        }
        let len = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first[..len]);
        self.first.drain(..len);
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Peeked<C> {
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

impl<C: Connected> Connected for Peeked<C> {
    type ConnectInfo = C::ConnectInfo;

    fn connect_info(&self) -> C::ConnectInfo {
        self.inner.connect_info()
    }
}

/// A connection with or without TLS, as its client has begun it.
pub enum Either<C> {
    /// Without: nothing is known of the client.
    Plain(Peeked<C>),
    /// With a certificate of the authority.
    Tls(Box<TlsStream<Peeked<C>>>),
}

/// What a server knows of an [`Either`].
#[derive(Clone)]
pub enum EitherInfo<I> {
    /// Without TLS.
    Plain(I),
    /// With the client's certificate.
    Tls(TlsConnectInfo<I>),
}

impl<I> EitherInfo<I> {
    /// The connection below.
    pub fn below(&self) -> &I {
        match self {
            EitherInfo::Plain(info) => info,
            EitherInfo::Tls(info) => info.get_ref(),
        }
    }

    /// TLS of it; `None` without.
    pub fn tls(&self) -> Option<&TlsConnectInfo<I>> {
        match self {
            EitherInfo::Plain(_) => None,
            EitherInfo::Tls(info) => Some(info),
        }
    }
}

impl Acceptor {
    /// The accepted `connection` as its client begins it: with TLS as by [`Acceptor::accept`], or without.
    ///
    /// # Errors
    /// No first byte within five seconds; as [`Acceptor::accept`].
    pub async fn accept_either<C>(&self, mut connection: C) -> io::Result<Either<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let first = within(HANDSHAKE_TIMEOUT, "first byte", connection.read_u8()).await?;
        let peeked = Peeked::new(vec![first], connection);
        if first != HANDSHAKE {
            return Ok(Either::Plain(peeked));
        }
        Ok(Either::Tls(Box::new(self.accept(peeked).await?)))
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> AsyncRead for Either<C> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Either::Plain(plain) => Pin::new(plain).poll_read(cx, buf),
            Either::Tls(tls) => Pin::new(&mut **tls).poll_read(cx, buf),
        }
    }
}

impl<C: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Either<C> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut *self {
            Either::Plain(plain) => Pin::new(plain).poll_write(cx, bytes),
            Either::Tls(tls) => Pin::new(&mut **tls).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut *self {
            Either::Plain(plain) => Pin::new(plain).poll_write_vectored(cx, parts),
            Either::Tls(tls) => Pin::new(&mut **tls).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Either::Plain(plain) => plain.is_write_vectored(),
            Either::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Either::Plain(plain) => Pin::new(plain).poll_flush(cx),
            Either::Tls(tls) => Pin::new(&mut **tls).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Either::Plain(plain) => Pin::new(plain).poll_shutdown(cx),
            Either::Tls(tls) => Pin::new(&mut **tls).poll_shutdown(cx),
        }
    }
}

impl<C: Connected> Connected for Either<C> {
    type ConnectInfo = EitherInfo<C::ConnectInfo>;

    fn connect_info(&self) -> Self::ConnectInfo {
        match self {
            Either::Plain(plain) => EitherInfo::Plain(plain.connect_info()),
            Either::Tls(tls) => EitherInfo::Tls(tls.connect_info()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{cluster, load};
    use crate::{Dialer, Role, admits};
    use std::time::Duration;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// The client's first word arrives whole, and only who has TLS has a role.
    #[tokio::test]
    async fn a_door_takes_both_and_knows_who_is_who() {
        let dir = tempfile::tempdir().expect("a directory");
        cluster(dir.path());
        let (gateway, host) = (load(dir.path(), "g1", Role::Gateway), load(dir.path(), "db1", Role::Host));
        let acceptor = gateway.acceptor();
        for (dialer, secure) in [(Dialer::plaintext(), false), (Dialer::from(&host), true)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("an address").to_string();
            let accepts = async {
                let (socket, _) = listener.accept().await.expect("a client");
                acceptor.accept_either(socket).await.expect("accepted")
            };
            let calls = async {
                let mut called = dialer.stream(&address, PATIENCE).await.expect("connected");
                called.write_all(b"PRI *").await.expect("sent");
                called.flush().await.expect("sent");
                called
            };
            let (mut accepted, _called) = tokio::join!(accepts, calls);
            let mut word = [0; 5];
            tokio::time::timeout(PATIENCE, accepted.read_exact(&mut word)).await.expect("in time").expect("read");
            assert_eq!(&word, b"PRI *");
            assert_eq!(accepted.connect_info().tls().is_some(), secure);
            let host = matches!(&accepted, Either::Tls(tls) if admits(tls, &[Role::Host]).is_ok());
            assert_eq!(host, secure);
        }
    }
}
