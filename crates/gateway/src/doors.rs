//! The listeners other than NBD (admin, peer, HTTP): limits on connections, and the detection of dead ones.
//!
//! ```text
//!   listener ─▶ Door::accept ─▶ Socket, holds one of the door's places ─▶ TLS (5 s, crate `tls`) ─▶ HTTP/2 with pings;
//!                                       HTTP; between gateways also append streams with pings (crate `raft`)
//! ```
//! - **DOOR-D1** A listener has [`Limits::connections`] places. A connection that finds none is closed at once, so the
//!   client tries another gateway instead of waiting in a queue.
//! - **DOOR-D2** A connection that sends nothing for [`Limits::idle`] is closed. Live peers answer HTTP/2 pings, and
//!   send pings in append streams, so only dead ones are silent that long there. A connection that waits for the next
//!   append stream may be: the sender makes another one.
//! - **DOOR-D3** A peer that vanished silently is detected: by HTTP/2 pings, by the kernel's keepalive, and by missing
//!   acknowledgements. Each network cut between gateways leaves some such connections behind.
//! - **DOOR-D4** After a failure to accept (no more file descriptors), the listener waits before it retries. It never
//!   retries in a busy loop.
//! - **DOOR-D5** A connection has to show who its client is within [`Limits::hello`], whatever it sends meanwhile. At
//!   most [`Limits::newcomers`] have not shown it yet: one more closes the oldest of them. At the limit of connections,
//!   those that have only asked make room for newcomers, the oldest first. Gateways of this cluster and hosts with a
//!   lease never do, so a flood takes none of their places ([`Standing`]). A few places are never theirs, and one
//!   host's certificate has a quarter of them at most.
//! - **DOOR-D6** Until then no more than [`NEWCOMER_BYTES`] of it are read, whatever its HTTP/2 windows allow.
//! - **DOOR-D7** An HTTP client sends no more than [`NEWCOMER_BYTES`] before an answer begins: no request is longer.

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
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::transport::Server;
use tonic::transport::server::Connected;

mod places;

pub(crate) use places::{Place, Standing};
use places::{Places, Taken};

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
    /// Those of clients that have not shown who they are (DOOR-D5).
    pub newcomers: usize,
    /// Time from accept until the client has shown who it is (DOOR-D5).
    pub hello: Duration,
    /// Maximum time between two bytes after that (DOOR-D2).
    pub idle: Duration,
    /// Whether each request is short and answered before the next one: HTTP/1 (DOOR-D7).
    pub answers: bool,
    /// Whether the first bytes that are sent show that the client may ask. With TLS they are those of its handshake.
    pub known_by_answer: bool,
}

/// Bytes that are read of a client that has not shown who it is (DOOR-D6), beside one more read. With TLS: of its
/// handshake, preface, and first headers, whose certificates take 2 to 8 KiB.
const NEWCOMER_BYTES: usize = 32 << 10;

/// Calls of one connection at a time. Clients queue what is more.
const STREAMS: u32 = 64;
/// The same between gateways: all groups' votes and heartbeats share a connection.
pub(crate) const PEER_STREAMS: u32 = 256;

/// Headers of one call at most, in bytes: 64 lives of a disk take 3 KiB.
const HEADERS_BYTES: u32 = 16 << 10;

/// HTTP/2 windows of the admin door: its requests are short.
const WINDOW_BYTES: u32 = (64 << 10) - 1;

/// Agents and attach processes have one connection each; commands come and go.
pub(crate) const ADMIN: Limits = Limits {
    connections: 1024,
    newcomers: 256,
    hello: Duration::from_secs(10),
    idle: Duration::from_secs(60),
    answers: false,
    known_by_answer: false,
};
/// Two for each other gateway and commands (gRPC), plus dead ones that are not detected yet; and append connections,
/// which are counted apart once they are known, so that they take none of the others' places.
pub(crate) const PEERS: Limits = Limits { connections: 1024 + APPEND_CONNECTIONS_MAX, ..ADMIN };
/// Load balancers, and a Prometheus that may keep its connection from one scrape to the next.
pub(crate) const HTTP: Limits = Limits {
    connections: 256,
    newcomers: 64,
    idle: Duration::from_secs(180),
    answers: true,
    known_by_answer: true,
    ..ADMIN
};
/// Like `HTTP`, with TLS.
pub(crate) const HTTPS: Limits = Limits { known_by_answer: false, ..HTTP };

impl Limits {
    /// Sockets, with those that were told to close and have not closed yet.
    const fn sockets(&self) -> usize {
        self.connections + self.newcomers
    }
}

/// Maximum number of connections of all these listeners together.
pub(crate) const CONNECTIONS: usize = ADMIN.sockets() + PEERS.sockets() + HTTP.sockets();

// Of each set that another gateway leads one, and two dead ones; of group 0 the same.
const _: () = assert!(APPEND_CONNECTIONS_MAX >= 3 * (SETS_MAX + 1));
const _: () = assert!(ADMIN.idle.as_secs() > PING_INTERVAL.as_secs() + PING_TIMEOUT.as_secs());

/// DOOR-D3: a gRPC server that pings its clients, for short requests.
pub(crate) fn server() -> Server {
    pinging(PING_INTERVAL, PING_TIMEOUT)
        .max_concurrent_streams(STREAMS)
        .http2_max_header_list_size(HEADERS_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
}

fn pinging(interval: Duration, timeout: Duration) -> Server {
    Server::builder().http2_keepalive_interval(Some(interval)).http2_keepalive_timeout(Some(timeout))
}

/// A listener with a limited number of places.
pub(crate) struct Door {
    what: &'static str,
    listener: TcpListener,
    limits: Limits,
    places: Arc<Places>,
    said: Option<Instant>,
}

impl Door {
    pub(crate) fn new(what: &'static str, listener: TcpListener, limits: Limits) -> Self {
        let places = Arc::new(Places::new(limits.connections, limits.newcomers));
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
            let taken = self.places.take();
            if !matches!(taken, Some((_, false))) {
                metrics::counter!("holdfast_door_refused_total", "door" => self.what).increment(1);
                let limit = self.limits.connections;
                self.say(
                    |door| tracing::warn!(door, limit, %peer, "a connection limit is reached: the oldest connection that has shown nothing is closed, or the new one (DOOR-D1, DOOR-D5)"),
                );
            }
            let Some((place, _)) = taken else { continue };
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

/// An accepted connection. It holds its place at the listener until it is dropped (DOOR-D1), and fails if another one
/// takes it (DOOR-D5) or no data arrives (DOOR-D2).
pub(crate) struct Socket {
    stream: TcpStream,
    limits: Limits,
    /// When to check whether the peer has taken too long. Reads do not move it: what counts is looked at when it fires.
    look: Pin<Box<Sleep>>,
    accepted: Instant,
    heard: Instant,
    /// Bytes that were read: of a newcomer all, otherwise those since the last answer.
    unanswered: usize,
    taken: Taken,
}

impl Socket {
    fn new(stream: TcpStream, limits: Limits, taken: Taken) -> Self {
        let accepted = Instant::now();
        let look = Box::pin(sleep_until(accepted + limits.hello));
        Self { stream, limits, look, accepted, heard: accepted, unanswered: 0, taken }
    }

    fn standing(&self) -> Standing {
        self.taken.place().standing()
    }

    /// When the connection ends if no data arrives, and why.
    fn end(&self) -> (Instant, &'static str) {
        match self.standing() {
            Standing::New => (self.accepted + self.limits.hello, "the peer did not show in time who it is (DOOR-D5)"),
            _ => (self.heard + self.limits.idle, "the peer was silent for too long (DOOR-D2)"),
        }
    }

    /// No data to read: pending until there is, or an error once that took too long.
    fn poll_silence(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.look.as_mut().poll(context));
            let (until, why) = self.end();
            if Instant::now() >= until {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, why)));
            }
            self.look.as_mut().reset(until);
        }
    }

    /// Whether more may be read of a connection that is not proven. Its task is woken once that changes.
    ///
    /// # Errors
    /// It has to make room, or its client sends a request that no door has.
    fn may_read(&self, context: &Context<'_>) -> io::Result<bool> {
        // First: what changes after the look wakes the task.
        self.taken.wakes(context.waker());
        if self.taken.is_evicted() {
            return Err(evicted());
        }
        if self.unanswered < NEWCOMER_BYTES {
            return Ok(true);
        }
        if self.limits.answers {
            let why = "found a request without an end, expected a short one (DOOR-D7)";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        Ok(self.standing() > Standing::New)
    }

    /// Something was sent. A door that answers has taken a whole request, or a part of a handshake.
    fn answered(&mut self) {
        if self.limits.answers {
            self.unanswered = 0;
        }
        if self.limits.known_by_answer {
            self.taken.place().shows(Standing::Asked);
        }
    }

    /// Its place at the listener.
    pub(crate) fn place(&self) -> Place {
        self.taken.place().clone()
    }
}

fn evicted() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "another connection took its place (DOOR-D5)")
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.standing() < Standing::Proven && !self.may_read(context)? {
            // DOOR-D6.
            return self.poll_silence(context);
        }
        let before = buf.filled().len();
        match Pin::new(&mut self.stream).poll_read(context, buf) {
            Poll::Pending => self.poll_silence(context),
            done => {
                self.heard = Instant::now();
                self.unanswered = self.unanswered.saturating_add(buf.filled().len() - before);
                done
            }
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.taken.is_evicted() {
            return Poll::Ready(Err(evicted()));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.answered();
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.taken.is_evicted() {
            return Poll::Ready(Err(evicted()));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, parts))?;
        self.answered();
        Poll::Ready(Ok(written))
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

/// What calls know of their connection.
#[derive(Clone)]
pub(crate) struct Client {
    /// Its address.
    pub address: Option<SocketAddr>,
    /// Its place at the listener.
    pub place: Place,
}

impl Connected for Socket {
    type ConnectInfo = Client;

    fn connect_info(&self) -> Client {
        Client { address: self.stream.peer_addr().ok(), place: self.place() }
    }
}

#[cfg(test)]
mod tests;
