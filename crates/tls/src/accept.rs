//! TLS at a door.

use crate::live::Live;
use crate::revoked::{Checked, Revocations};
use crate::role::{Caller, Role};
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

/// An accepted connection. It ends when its peer's certificate is revoked (REVOKE-V2).
pub type TlsStream<C> = Checked<tokio_rustls::server::TlsStream<C>>;

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
    /// No handshake within five seconds, or none with a certificate of the authority that is not revoked.
    pub async fn accept<C>(&self, connection: C) -> io::Result<TlsStream<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let tls = TlsAcceptor::from(self.0.current()?.configs.server);
        let accepted = within(HANDSHAKE_TIMEOUT, "TLS handshake", tls.accept(connection)).await?;
        let own = accepted.get_ref().1.peer_certificates().and_then(|all| all.first());
        let own = own.map(|own| own.to_vec());
        self.0.revocations().follow(accepted, own)
    }

    /// Like `accept`, at an HTTP door: a client without a certificate is taken too (HTTP-D1).
    pub(crate) async fn accept_http<C>(&self, connection: C) -> io::Result<tokio_rustls::server::TlsStream<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let tls = TlsAcceptor::from(self.0.current()?.configs.http);
        within(HANDSHAKE_TIMEOUT, "TLS handshake", tls.accept(connection)).await
    }

    /// Certificates that count no more.
    pub(crate) fn revocations(&self) -> &Revocations {
        self.0.revocations()
    }

    /// Those of the `incoming` connections whose handshake succeeds, for a gRPC server. Handshakes run beside each
    /// other, at most one for each connection that `incoming` yields: a listener bounds them. When what is returned is
    /// dropped, they all end.
    pub fn incoming<C>(&self, incoming: impl Stream<Item = io::Result<C>> + Send + 'static) -> Incoming<TlsStream<C>>
    where
        C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let acceptor = self.clone();
        self.incoming_by(incoming, move |connection| {
            let acceptor = acceptor.clone();
            async move { acceptor.accept(connection).await }
        })
    }

    /// Like `incoming`, where `open` makes the handshake of a connection.
    pub fn incoming_by<C, O, F>(
        &self,
        incoming: impl Stream<Item = io::Result<C>> + Send + 'static,
        open: impl Fn(C) -> F + Send + 'static,
    ) -> Incoming<O>
    where
        C: Send + 'static,
        O: Send + 'static,
        F: Future<Output = io::Result<O>> + Send + 'static,
    {
        let (done, waiting) = mpsc::channel(WAITING_MAX);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept_all(open, incoming, done));
        Incoming { waiting, _accepting: accepting }
    }
}

/// The check of an accepted connection, for a door that is not only gRPC (TLS-T3), and its peer.
///
/// # Errors
/// What was found and what was expected; for the peer.
pub fn admits<C>(connection: &TlsStream<C>, allowed: &[Role]) -> Result<Caller, String> {
    let caller = Caller::at_door(certificate(connection)).map_err(|status| status.message().to_string())?;
    caller.has_one_of(allowed)?;
    Ok(caller)
}

/// The peer's own certificate, if it has shown one.
pub fn certificate<C>(connection: &TlsStream<C>) -> Option<&[u8]> {
    let all = connection.get_ref().1.peer_certificates()?;
    all.first().map(|own| own.as_ref())
}

type Done<O> = mpsc::Sender<io::Result<O>>;

async fn accept_all<C, O, F>(
    open: impl Fn(C) -> F + Send + 'static,
    incoming: impl Stream<Item = io::Result<C>> + Send + 'static,
    done: Done<O>,
) where
    C: Send + 'static,
    O: Send + 'static,
    F: Future<Output = io::Result<O>> + Send + 'static,
{
    let mut incoming = std::pin::pin!(incoming);
    let mut handshakes = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = handshakes.join_next() => {}
            next = incoming.next() => match next {
                Some(Ok(connection)) => {
                    handshakes.spawn(shake_hands(open(connection), done.clone()));
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

async fn shake_hands<O: Send + 'static>(opening: impl Future<Output = io::Result<O>> + Send, done: Done<O>) {
    match opening.await {
        // The server may have stopped.
        Ok(connection) => drop(done.send(Ok(connection)).await),
        Err(error) => tracing::debug!(%error, "a connection was refused in its handshake"),
    }
}

/// The connections of [`Acceptor::incoming`].
pub struct Incoming<O> {
    waiting: mpsc::Receiver<io::Result<O>>,
    _accepting: JoinSet<()>,
}

impl<O> Stream for Incoming<O> {
    type Item = io::Result<O>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.waiting.poll_recv(context)
    }
}
