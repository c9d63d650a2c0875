//! TLS at a door.

use crate::live::Live;
use crate::stream::{HANDSHAKE_TIMEOUT, within};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_stream::{Stream, StreamExt};

pub use tokio_rustls::server::TlsStream;

/// Connections that wait for the server to take them.
const WAITING_MAX: usize = 16;

/// TLS at a door: demands a certificate of the authority (TLS-T3). Cheap to clone.
#[derive(Clone)]
pub struct Acceptor(Arc<Live>);

impl Acceptor {
    pub(crate) fn new(live: Arc<Live>) -> Self {
        Self(live)
    }

    /// The accepted `connection` after its handshake, with the files as they were read last (LIVE-C1). Ask
    /// [`crate::admits`] for the role of its peer.
    ///
    /// # Errors
    /// No handshake within five seconds, or none with a certificate of the authority.
    pub async fn accept<C>(&self, connection: C) -> io::Result<TlsStream<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let tls = TlsAcceptor::from(self.0.current().configs.server);
        within(HANDSHAKE_TIMEOUT, "TLS handshake", tls.accept(connection)).await
    }

    /// The same at an HTTP door: a client without a certificate is taken too (HTTP-D1).
    pub(crate) async fn accept_http<C>(&self, connection: C) -> io::Result<TlsStream<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let tls = TlsAcceptor::from(self.0.current().configs.http);
        within(HANDSHAKE_TIMEOUT, "TLS handshake", tls.accept(connection)).await
    }

    /// Those of the `incoming` connections whose handshake succeeds, for a gRPC server. Handshakes run beside each
    /// other, at most one for each connection that `incoming` yields: a listener bounds them. When what is returned is
    /// dropped, they all end.
    pub fn incoming<C>(&self, incoming: impl Stream<Item = io::Result<C>> + Send + 'static) -> Incoming<C>
    where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (done, waiting) = mpsc::channel(WAITING_MAX);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept_all(self.clone(), incoming, done));
        Incoming { waiting, _accepting: accepting }
    }
}

type Done<C> = mpsc::Sender<io::Result<TlsStream<C>>>;

async fn accept_all<C>(acceptor: Acceptor, incoming: impl Stream<Item = io::Result<C>> + Send + 'static, done: Done<C>)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut incoming = std::pin::pin!(incoming);
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = handshakes.join_next() => {}
            next = incoming.next() => match next {
                Some(Ok(connection)) => {
                    handshakes.spawn(shake_hands(acceptor.clone(), connection, done.clone()));
                }
                // The server decides what an error of the listener means.
                Some(Err(error)) => drop(done.send(Err(error)).await),
                None => break,
            },
        }
    }
    drop(done);
    while handshakes.join_next().await.is_some() {}
}

async fn shake_hands<C>(acceptor: Acceptor, connection: C, done: Done<C>)
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    match acceptor.accept(connection).await {
        // The server may have stopped.
        Ok(connection) => drop(done.send(Ok(connection)).await),
        Err(error) => tracing::debug!(%error, "a connection was refused in its handshake"),
    }
}

/// The connections of [`Acceptor::incoming`].
pub struct Incoming<C> {
    waiting: mpsc::Receiver<io::Result<TlsStream<C>>>,
    _accepting: JoinSet<()>,
}

impl<C> Stream for Incoming<C> {
    type Item = io::Result<TlsStream<C>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.waiting.poll_recv(context)
    }
}
