//! A client's connection: plain, or with TLS over it after NBD_OPT_STARTTLS. Plain costs one branch for each system
//! call; vectored writes stay vectored.

use super::device::{Refusal, RefusalKind};
use bytes::BytesMut;
use holdfast_nbd::server::TlsMode;
use holdfast_tls::{Acceptor, Caller, ReadAhead, Role, TlsStream, admits};
use holdfast_types::Name;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::task::coop::unconstrained;

/// Most bytes that are decrypted ahead to look for NBD_CMD_DISC (CONN-C8). They are held for each connection, unlike
/// those of a plain one, so there are fewer.
const AHEAD_BYTES_MAX: usize = 256 << 10;
/// Room for one read ahead: a TLS record.
const AHEAD_ROOM: usize = 16 << 10;
/// Time limit for TLS's goodbye, after the last answer.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// TLS of a listener: its certificate, and whether its clients need one (R10).
#[derive(Clone)]
pub struct FrontTls {
    acceptor: Acceptor,
    required: bool,
}

impl FrontTls {
    /// With `required`, a client without TLS is not served.
    pub fn new(acceptor: Acceptor, required: bool) -> Self {
        Self { acceptor, required }
    }

    pub(super) fn mode(&self) -> TlsMode {
        if self.required { TlsMode::Required } else { TlsMode::Optional }
    }
}

pub(super) struct Line<S> {
    layer: Layer<S>,
    /// [`left_by_client`](crate::left_by_client) of the socket.
    left: fn(&S) -> Option<Vec<u8>>,
}

enum Layer<S> {
    Plain(S),
    Tls(Box<Secured<S>>),
}

struct Secured<S> {
    stream: TlsStream<ReadAhead<S>>,
    /// Whose it is. `None`: its certificate is not for NBD, or cannot be read, and it is served nothing.
    caller: Option<Caller>,
    /// Decrypted, and not read yet.
    ahead: BytesMut,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Line<S> {
    pub(super) fn plain(socket: S, left: fn(&S) -> Option<Vec<u8>>) -> Self {
        Self { layer: Layer::Plain(socket), left }
    }

    /// The connection after the TLS handshake, and what its client is told if its certificate is not for NBD (TLS-T3).
    ///
    /// # Errors
    /// No handshake in time, or none with a certificate of the authority; TLS is there already.
    pub(super) async fn start_tls(self, tls: &FrontTls) -> io::Result<(Self, Option<String>)> {
        let Layer::Plain(socket) = self.layer else { return Err(io::Error::other("found TLS, expected plain text")) };
        let stream = tls.acceptor.accept(ReadAhead::new(socket)).await?;
        let (caller, refusal) = match admits(&stream, &Role::NBD) {
            Ok(caller) => (Some(caller), None),
            Err(why) => (None, Some(why)),
        };
        let layer = Layer::Tls(Box::new(Secured { stream, caller, ahead: BytesMut::new() }));
        Ok((Self { layer, left: self.left }, refusal))
    }

    /// TLS-T4: whether its certificate may use this set, if it has one. Asked before anything is looked up, so that the
    /// answer tells nothing about what there is.
    ///
    /// # Errors
    /// What was found and what was expected; for the client.
    pub(super) fn may_open(&self, set: &Name) -> Result<(), Refusal> {
        let Layer::Tls(secured) = &self.layer else { return Ok(()) };
        let judged = match &secured.caller {
            Some(caller) => caller.may_open(set.as_str()),
            None => Err("found a certificate that is not for NBD".to_string()),
        };
        judged.map_err(|message| Refusal { kind: RefusalKind::NotPermitted, message })
    }

    /// The bytes of a client that sends nothing more, decrypted; they stay readable. `None`: it may send more. Pending:
    /// it sends nothing more, and `cx` is woken when its bytes can be decrypted.
    pub(super) fn poll_left(&mut self, cx: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        match &mut self.layer {
            Layer::Plain(socket) => Poll::Ready((self.left)(socket)),
            Layer::Tls(secured) => match (self.left)(secured.stream.get_ref().0.get_ref()) {
                Some(_) => secured.poll_ahead(cx).map(Some),
                None => Poll::Ready(None),
            },
        }
    }

    /// Tells a client of TLS that this is the end, as gnutls wants it, and waits for the client's own goodbye. A socket
    /// that is closed with that unread would be reset, and the client would lose answers that are on their way.
    pub(super) async fn goodbye(&mut self) {
        if let Layer::Tls(secured) = &mut self.layer {
            let ended = async {
                secured.stream.shutdown().await?;
                let mut sink = [0; 512];
                while secured.stream.read(&mut sink).await? > 0 {}
                Ok::<_, io::Error>(())
            };
            match tokio::time::timeout(GOODBYE_LIMIT, ended).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!(%error, "no TLS goodbye"),
                Err(_) => tracing::debug!("no TLS goodbye in time"),
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Secured<S> {
    /// Pending although the socket has ended: the runtime has not noticed yet.
    fn poll_ahead(&mut self, cx: &mut Context<'_>) -> Poll<Vec<u8>> {
        while self.ahead.len() < AHEAD_BYTES_MAX {
            self.ahead.reserve(AHEAD_ROOM);
            // Unconstrained: a task that has used up its turn would take bytes that are there for none.
            let read = pin!(unconstrained(self.stream.read_buf(&mut self.ahead))).poll(cx);
            match read {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0) | Err(_)) => break,
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(self.ahead.to_vec())
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !self.ahead.is_empty() {
            let len = self.ahead.len().min(buf.remaining());
            buf.put_slice(&self.ahead.split_to(len));
            return Poll::Ready(Ok(()));
        }
        Poll::Ready(match ready!(Pin::new(&mut self.stream).poll_read(cx, buf)) {
            // It closed without TLS's goodbye. NBD has its own, so this is an end like that of a plain socket.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            done => done,
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Line<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.layer {
            Layer::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Layer::Tls(secured) => secured.poll_read(cx, buf),
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Line<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.layer {
            Layer::Plain(socket) => Pin::new(socket).poll_write(cx, bytes),
            Layer::Tls(secured) => Pin::new(&mut secured.stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.layer {
            Layer::Plain(socket) => Pin::new(socket).poll_write_vectored(cx, parts),
            Layer::Tls(secured) => Pin::new(&mut secured.stream).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.layer {
            Layer::Plain(socket) => socket.is_write_vectored(),
            Layer::Tls(secured) => secured.stream.is_write_vectored(),
        }
    }

    /// TLS holds records that the socket did not take; after a write that is pending, they go out here only.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.layer {
            Layer::Plain(socket) => Pin::new(socket).poll_flush(cx),
            Layer::Tls(secured) => Pin::new(&mut secured.stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.layer {
            Layer::Plain(socket) => Pin::new(socket).poll_shutdown(cx),
            Layer::Tls(secured) => Pin::new(&mut secured.stream).poll_shutdown(cx),
        }
    }
}
