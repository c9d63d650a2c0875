//! The listeners other than NBD (admin, peer, HTTP): limits on connections, and the detection of dead ones.
//!
//! ```text
//!   listener ─▶ Door::accept ─▶ Socket, holds one of the door's places ─▶ TLS (5 s, crate `tls`) ─▶ HTTP/2 with pings;
//!                                       HTTP; between gateways also append streams with pings (crate `raft`)
//! ```
//! - **DOOR-D1** A listener has [`Limits::connections`] places. A connection that finds none is closed at once, so the
//!   client tries another gateway instead of waiting in a queue.
//! - **DOOR-D2** A connection that sends nothing is closed: at first after [`Limits::hello`], later after
//!   [`Limits::idle`]. Live peers answer HTTP/2 pings, and send pings in append streams, so only dead ones are silent
//!   that long there. A connection that waits for the next append stream may be: the sender makes another one.
//! - **DOOR-D3** A peer that vanished silently is detected: by HTTP/2 pings, by the kernel's keepalive, and by missing
//!   acknowledgements. Each network cut between gateways leaves some such connections behind.
//! - **DOOR-D4** After a failure to accept (no more file descriptors), the listener waits before it retries. It never
//!   retries in a busy loop.

use futures_util::Stream;
use holdfast_control::cluster::SETS_MAX;
use holdfast_raft::APPEND_CONNECTIONS_MAX;
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

/// Pause after a failure to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Minimum time before a listener logs the same problem again.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// A peer that has been silent for this long gets a ping …
const PING_INTERVAL: Duration = Duration::from_secs(10);
/// … and must answer within this time. It may be a process that was stopped for a while, or a link full of bulk data.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Limits of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Open connections (DOOR-D1).
    pub connections: usize,
    /// Time from accept to the first byte (DOOR-D2).
    pub hello: Duration,
    /// Maximum time between two bytes (DOOR-D2).
    pub idle: Duration,
}

/// Agents and attach processes have one connection each; commands come and go.
pub(crate) const ADMIN: Limits =
    Limits { connections: 1024, hello: Duration::from_secs(10), idle: Duration::from_secs(60) };
/// Two for each other gateway and commands (gRPC), plus dead ones that are not detected yet; and append connections,
/// which are counted apart once they are known, so that they take none of the others' places.
pub(crate) const PEERS: Limits = Limits { connections: 1024 + APPEND_CONNECTIONS_MAX, ..ADMIN };
/// Load balancers, and a Prometheus that may keep its connection from one scrape to the next.
pub(crate) const HTTP: Limits = Limits { connections: 256, idle: Duration::from_secs(180), ..ADMIN };

/// Maximum number of connections of all these listeners together.
pub(crate) const CONNECTIONS: usize = ADMIN.connections + PEERS.connections + HTTP.connections;

// Of each set that another gateway leads one, and two dead ones; of group 0 the same.
const _: () = assert!(APPEND_CONNECTIONS_MAX >= 3 * (SETS_MAX + 1));
const _: () = assert!(ADMIN.idle.as_secs() > PING_INTERVAL.as_secs() + PING_TIMEOUT.as_secs());

/// DOOR-D3: a gRPC server that pings its clients.
pub(crate) fn server() -> Server {
    pinging(PING_INTERVAL, PING_TIMEOUT)
}

fn pinging(interval: Duration, timeout: Duration) -> Server {
    Server::builder().http2_keepalive_interval(Some(interval)).http2_keepalive_timeout(Some(timeout))
}

/// A listener with a limited number of places.
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

    /// The next connection. It never fails: an error of one connection concerns only that one, and an error of all of
    /// them passes (DOOR-D4).
    pub(crate) async fn next(&mut self) -> (Socket, SocketAddr) {
        loop {
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                // One connection was closed before it was accepted.
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
                    |door| tracing::warn!(door, limit, %peer, "the connection limit is reached: new connections are closed (DOOR-D1)"),
                );
                continue;
            };
            if let Err(error) = holdfast_tls::KeepAlive::GATEWAY.set_up(&stream) {
                tracing::debug!(door = self.what, %peer, %error, "a connection was closed before it was set up");
                continue;
            }
            return (Socket::new(stream, self.limits, place), peer);
        }
    }

    /// Logs a problem once, and again if it lasts.
    fn say(&mut self, say: impl FnOnce(&'static str)) {
        if self.said.is_none_or(|at| at.elapsed() > SAY_AGAIN) {
            self.said = Some(Instant::now());
            say(self.what);
        }
    }

    /// All connections, for a gRPC server. The stream has no errors: tonic would retry at once after one.
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

/// An accepted connection. It holds its place at the listener until it is dropped (DOOR-D1), and fails if no data
/// arrives (DOOR-D2).
pub(crate) struct Socket {
    stream: TcpStream,
    /// When to check whether the peer has been silent for too long. Reads do not move it; it is compared with
    /// `silent_until` when it fires.
    look: Pin<Box<Sleep>>,
    /// The peer may be silent until then.
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

    /// No data to read: pending until there is, or an error once that took too long.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.look.as_mut().poll(context));
            if Instant::now() >= self.silent_until {
                let why = "the peer was silent for too long (DOOR-D2)";
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
