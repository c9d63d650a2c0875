//! The doors that are not NBD (admin door, door between gateways, HTTP): what a connection may cost, and how long one that is dead may.
//!
//! ```text
//!   listener ─▶ Door::accept ─▶ Socket, holds one of the door's places ─▶ TLS (5 s, crate `tls`) ─▶ HTTP/2 with pings, or HTTP
//! ```
//! - **D1** A door has [`Limits::connections`] places. Who finds none is closed at once: it tries another gateway, instead of hanging in a queue.
//! - **D2** A connection that says nothing, at first for [`Limits::hello`] and later for [`Limits::idle`], ends. HTTP/2 pings are answered by whoever
//!   lives, so that only the dead are silent for so long there.
//! - **D3** A peer that vanished without a word is noticed: by HTTP/2 pings, by the kernel's keepalive, and by what it does not acknowledge. Each cut
//!   between gateways leaves some such connections behind.
//! - **D4** A failure to accept (no more file descriptors) is waited out, never tried again in a circle.

use futures_util::Stream;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::transport::Server;
use tonic::transport::server::{Connected, TcpConnectInfo};

/// After a failure to accept, before the next try.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How often the same trouble of a door is said again, at most.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// Without a word from the other side for so long, it is pinged …
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// … and has so long to answer. A process that was stopped for a while, or a line full of bulk data, is no dead peer.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// What a door allows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Open connections (D1).
    pub connections: usize,
    /// From the accepting to the first byte (D2).
    pub hello: Duration,
    /// Between two bytes (D2).
    pub idle: Duration,
}

/// Hosts' agents and attaches have one each, commands come and go.
pub(crate) const ADMIN: Limits =
    Limits { connections: 1024, hello: Duration::from_secs(10), idle: Duration::from_secs(60) };
/// Two for each other gateway, and those of cuts that nobody has noticed yet.
pub(crate) const PEERS: Limits = Limits { connections: 256, ..ADMIN };
/// Load balancers and a Prometheus, which may keep its connection from one minute's question to the next.
pub(crate) const HTTP: Limits = Limits { connections: 256, idle: Duration::from_secs(180), ..ADMIN };

/// What all doors together may have open.
pub(crate) const CONNECTIONS: usize = ADMIN.connections + PEERS.connections + HTTP.connections;

const _: () = assert!(ADMIN.idle.as_secs() > PING_INTERVAL.as_secs() + PING_TIMEOUT.as_secs());

/// D3: a gRPC server that pings whoever is connected.
pub(crate) fn server() -> Server {
    pinging(PING_INTERVAL, PING_TIMEOUT)
}

fn pinging(interval: Duration, timeout: Duration) -> Server {
    Server::builder().http2_keepalive_interval(Some(interval)).http2_keepalive_timeout(Some(timeout))
}

/// A listener with places.
pub(crate) struct Door {
    what: &'static str,
    listener: TcpListener,
    limits: Limits,
    places: Arc<Semaphore>,
    said: Option<Instant>,
}

impl Door {
    pub(crate) fn new(what: &'static str, listener: TcpListener, limits: Limits) -> Self {
        let places = Arc::new(Semaphore::new(limits.connections));
        Self { what, listener, limits, places, said: None }
    }

    /// The next connection. Does not fail: whatever is wrong with one connection is its own, and what is wrong with all of them passes (D4).
    pub(crate) async fn next(&mut self) -> (Socket, SocketAddr) {
        loop {
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                // Of a single connection, which was gone before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
                Err(error) => {
                    self.say(|door| tracing::warn!(door, %error, "cannot accept connections"));
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(place) = self.places.clone().try_acquire_owned() else {
                metrics::counter!("holdfast_door_refused_total", "door" => self.what).increment(1);
                let limit = self.limits.connections;
                self.say(
                    |door| tracing::warn!(door, limit, %peer, "all places are taken: connections are closed (D1)"),
                );
                continue;
            };
            if let Err(error) = holdfast_front::set_up(&stream) {
                tracing::debug!(door = self.what, %peer, %error, "a connection was gone before it was set up");
                continue;
            }
            return (Socket::new(stream, self.limits, place), peer);
        }
    }

    /// Once, and again if it lasts.
    fn say(&mut self, say: impl FnOnce(&'static str)) {
        if self.said.is_none_or(|at| at.elapsed() > SAY_AGAIN) {
            self.said = Some(Instant::now());
            say(self.what);
        }
    }

    /// All connections, for a gRPC server. Holds no error: tonic tries again at once after one.
    pub(crate) fn incoming(self) -> impl Stream<Item = io::Result<Socket>> + Send {
        futures_util::stream::unfold(self, |mut door| async move {
            let (socket, _) = door.next().await;
            Some((Ok(socket), door))
        })
    }
}

impl axum::serve::Listener for Door {
    type Io = Socket;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Socket, SocketAddr) {
        self.next().await
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// An accepted connection: holds its place at the door until it is dropped (D1), and ends itself when nothing comes (D2).
pub(crate) struct Socket {
    stream: TcpStream,
    /// When to look whether the other side was silent for too long. Not moved at each read: looked at when it has passed.
    look: Pin<Box<Sleep>>,
    /// The last moment at which it may have been silent no longer than it may.
    silent_until: Instant,
    idle: Duration,
    _place: OwnedSemaphorePermit,
}

impl Socket {
    fn new(stream: TcpStream, limits: Limits, place: OwnedSemaphorePermit) -> Self {
        let silent_until = Instant::now() + limits.hello;
        let look = Box::pin(sleep_until(silent_until));
        Self { stream, look, silent_until, idle: limits.idle, _place: place }
    }

    /// Nothing to read: pending until there is, or an error once that took too long.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.look.as_mut().poll(context));
            if Instant::now() >= self.silent_until {
                let why = "nothing was heard of the other side for too long (D2)";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
            }
            let until = self.silent_until;
            self.look.as_mut().reset(until);
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.stream).poll_read(context, buf) {
            Poll::Pending => self.poll_silence(context),
            done => {
                self.silent_until = Instant::now() + self.idle;
                done
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl Connected for Socket {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests;
