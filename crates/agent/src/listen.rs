//! Connections of a port that anybody can reach: limited in number and in idle time. A client that opens many of them,
//! or sends nothing, uses up neither the file descriptors of this process nor the places of others.
//!
//! LISTEN-L1  At most [`CONNECTIONS_MAX`] connections, and `NEWCOMERS_MAX` of them over which no request came yet. One
//!     more closes the oldest of these; if they have places and the door is full, the oldest that is not proven. A
//!     health check is over at once, so the oldest connections are those over which nothing is asked.
//! LISTEN-L2  A connection over which nothing came or went for [`IDLE_LIMIT`] is closed, also in the middle of a
//!     header.
//! LISTEN-L3  An agent that finds something of an earlier one goes on with it, also if it cannot listen. It tries to
//!     listen again and again, and says so. Only an agent that finds nothing ends. The same holds for the file of its
//!     history, and for its TLS files: until they can be used, no handshake succeeds. A token that cannot be read ends
//!     no agent, nor does a port that is taken: any user of the host can take it while no agent has it, and would
//!     switch the failover to this host off.
//! LISTEN-L4  A client sends no more than `UNANSWERED_BYTES_MAX` before an answer begins: no request here is longer.
//! LISTEN-L5  With TLS, handshakes go on beside each other, each in the place of its connection.
//! LISTEN-L6  The head of a first request has to be there within `HELLO_LIMIT`, with the TLS handshake before it. From
//!     the first byte of a request to the begin of its answer `REQUEST_LIMIT` passes at most, whatever comes meanwhile.
//! LISTEN-L7  Who has shown a certificate of the authority is proven, and makes room for nobody. At most `PROVEN_MAX`
//!     connections are, and `SHARE_MAX` of one certificate: some places are always left for others.

mod guest;

use crate::host::Host;
use crate::local;
use crate::machine::Found;
use crate::seams::{Incoming, Wire};
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use guest::{Asking, Guest, Limits, Places, Seat};
pub use guest::{CONNECTIONS_MAX, IDLE_LIMIT};
use holdfast_tls::{Acceptor, Handshakes, HttpClient, HttpConnection};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::{TcpListener, UnixListener};
use tokio::time::Instant;

/// Pause after a failure to accept (no more file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Pause between two tries to listen; and the interval in which a failure is logged again.
const LISTEN_PAUSE: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(1) };
const LISTEN_LOGGED: Duration = Duration::from_secs(60);

/// Source of connections.
#[derive(Debug)]
enum Source {
    Tcp(TcpListener),
    Local(UnixListener),
    Given(Incoming),
    /// Not listening yet.
    Later(Address),
}

/// Where to listen.
#[derive(Debug)]
enum Address {
    Tcp(SocketAddr),
    /// The Unix socket in this run directory.
    Local(PathBuf),
}

impl Address {
    async fn listen(&self) -> io::Result<Source> {
        match self {
            Self::Tcp(address) => TcpListener::bind(address).await.map(Source::Tcp),
            Self::Local(run_dir) => local::listen(run_dir).map(Source::Local),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Tcp(address) => format!("http.listen {address}"),
            Self::Local(run_dir) => run_dir.join(local::SOCKET).display().to_string(),
        }
    }

    /// Listens as soon as that is possible (LISTEN-L3).
    async fn listen_at_last(&self) -> Source {
        let mut logged: Option<Instant> = None;
        loop {
            match self.listen().await {
                Ok(source) => {
                    tracing::info!(address = self.shown(), "listening again");
                    return source;
                }
                Err(error) => {
                    if logged.is_none_or(|at| at.elapsed() >= LISTEN_LOGGED) {
                        logged = Some(Instant::now());
                        tracing::error!(
                            address = self.shown(),
                            %error,
                            "cannot listen for health checks and commands; all other duties go on, and this is tried again each \
                             second: end what has that address, or correct the settings"
                        );
                    }
                    tokio::time::sleep(LISTEN_PAUSE).await;
                }
            }
        }
    }
}

impl Source {
    async fn accept(&mut self) -> io::Result<(Box<dyn Wire>, Asker)> {
        if let Self::Later(address) = self {
            *self = address.listen_at_last().await;
        }
        match self {
            Self::Tcp(listener) => {
                // Not the trait's method, which returns no errors.
                let (socket, from) = TcpListener::accept(listener).await?;
                Ok((Box::new(socket), Asker::Remote(from)))
            }
            Self::Local(listener) => Ok((Box::new(local::accept(listener).await?), Asker::Local)),
            Self::Given(given) => match given.recv().await {
                Some((wire, from)) => Ok((wire, Asker::Remote(from))),
                // No connection can come any more.
                None => std::future::pending().await,
            },
            Self::Later(_) => Err(io::Error::from(io::ErrorKind::NotConnected)),
        }
    }
}

/// A listener with bounds.
#[derive(Debug)]
pub struct Bounded {
    source: Source,
    places: Arc<Mutex<Places>>,
    limits: Limits,
    /// With TLS.
    handshakes: Option<Handshakes<(SocketAddr, Seat)>>,
}

impl Bounded {
    /// The same with TLS, if there is any. The Unix socket has none.
    #[must_use]
    pub fn secured(self, acceptor: Option<Acceptor>) -> Self {
        Self { handshakes: acceptor.map(Handshakes::new), ..self }
    }

    /// With the bounds of this module.
    pub fn new(listener: TcpListener) -> Self {
        Source::Tcp(listener).into()
    }

    /// Listens at this address as soon as that is possible (LISTEN-L3).
    pub fn later(address: SocketAddr) -> Self {
        Source::Later(Address::Tcp(address)).into()
    }
}

impl From<Source> for Bounded {
    fn from(source: Source) -> Self {
        Self { source, places: Arc::default(), limits: Limits::default(), handshakes: None }
    }
}

/// Listens at `http.listen` (LISTEN-L3).
///
/// # Errors
/// That is not possible for another reason than that the port is taken, and nothing of an earlier agent is there.
pub(crate) async fn tcp<H: Host>(address: SocketAddr, host: &H) -> io::Result<Bounded> {
    now_or_later(Address::Tcp(address), host).await
}

/// Listens at the Unix socket in this run directory (LISTEN-L3).
///
/// # Errors
/// As [`tcp`].
pub(crate) async fn local<H: Host>(run_dir: &Path, host: &H) -> io::Result<Bounded> {
    now_or_later(Address::Local(run_dir.into()), host).await
}

async fn now_or_later<H: Host>(address: Address, host: &H) -> io::Result<Bounded> {
    let error = match address.listen().await {
        Ok(source) => return Ok(source.into()),
        Err(error) => error,
    };
    if error.kind() != io::ErrorKind::AddrInUse && is_first(host).await {
        return Err(error);
    }
    Ok(Source::Later(address).into())
}

/// Whether nothing of an earlier agent is there. If that cannot be found out, the agent's own start tells why.
pub(crate) async fn is_first<H: Host>(host: &H) -> bool {
    host.found().await.is_ok_and(|found| found == Found::default())
}

impl From<TcpListener> for Bounded {
    fn from(listener: TcpListener) -> Self {
        Self::new(listener)
    }
}

impl From<UnixListener> for Bounded {
    fn from(listener: UnixListener) -> Self {
        Source::Local(listener).into()
    }
}

impl From<Incoming> for Bounded {
    fn from(given: Incoming) -> Self {
        Source::Given(given).into()
    }
}

impl Listener for Bounded {
    type Io = HttpConnection;
    type Addr = Asker;

    async fn accept(&mut self) -> (HttpConnection, Asker) {
        loop {
            let accepted = match &mut self.handshakes {
                None => self.source.accept().await,
                Some(handshakes) => tokio::select! {
                    biased;
                    (connection, client, (from, seat)) = handshakes.next() => {
                        if let HttpClient::Named(caller) = &client {
                            seat.proves(&caller.name);
                        }
                        let connection: HttpConnection = Box::new(Asking::new(connection, seat));
                        return (connection, Asker::Met(from, client));
                    }
                    accepted = self.source.accept() => accepted,
                },
            };
            match accepted {
                Ok((socket, from)) => {
                    let guest = Guest::new(socket, &self.places, self.limits);
                    let seat = guest.seat();
                    match (&mut self.handshakes, from) {
                        (Some(handshakes), Asker::Remote(at)) => handshakes.begin(guest, (at, seat)),
                        (_, from) => {
                            let connection: HttpConnection = Box::new(Asking::new(Box::new(guest), seat));
                            return (connection, from);
                        }
                    }
                }
                // An error of one connection, which was gone before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept HTTP connections");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Asker> {
        match &self.source {
            Source::Tcp(listener) => listener.local_addr().map(Asker::Remote),
            Source::Local(_) | Source::Later(Address::Local(_)) => Ok(Asker::Local),
            Source::Later(Address::Tcp(address)) => Ok(Asker::Remote(*address)),
            Source::Given(_) => Ok(Asker::Remote(SocketAddr::from(([0, 0, 0, 0], 0)))),
        }
    }
}

/// The process at the other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asker {
    /// One of root or of the agent's own user, on this host (LOCAL-L1).
    Local,
    /// Any process at this address, which may be on this host too. The door has no TLS.
    Remote(SocketAddr),
    /// Like `Remote`, at a door with TLS.
    Met(SocketAddr, HttpClient),
}

impl Connected<IncomingStream<'_, Bounded>> for Asker {
    fn connect_info(stream: IncomingStream<'_, Bounded>) -> Self {
        stream.remote_addr().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::guest::UNANSWERED_BYTES_MAX;
    use super::*;
    use holdfast_types::sync::LockExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    #[tokio::test]
    async fn an_idle_connection_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { hello: Duration::from_millis(50), ..Limits::default() };
        let mut bounded = Bounded { limits, ..Bounded::new(listener) };
        let _silent = TcpStream::connect(address).await.unwrap();
        let (mut guest, _) = bounded.accept().await;
        let mut bytes = [0; 16];
        let read = tokio::time::timeout(Duration::from_secs(20), guest.read(&mut bytes)).await.unwrap();
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
        drop(guest);
        assert_eq!(bounded.places.locked().taken(), 0, "its place is free");
    }

    /// Reads on until the connection ends.
    async fn ended(guest: &mut HttpConnection) -> io::Error {
        let reading = async {
            loop {
                if let Err(error) = guest.read(&mut [0; 16]).await {
                    return error;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), reading).await.expect("it ends")
    }

    /// Sends a byte now and then, as long as somebody takes it.
    async fn drip(client: &mut TcpStream) {
        while client.write_all(b"x").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        std::future::pending().await
    }

    /// LISTEN-L6: a byte now and then keeps no place.
    #[tokio::test]
    async fn a_request_that_never_ends_is_closed_in_time() {
        let short = Duration::from_millis(100);
        let hello = Limits { hello: short, ..Limits::default() };
        let request = Limits { request: short, ..Limits::default() };
        for (limits, first, says) in [(hello, "", "no request came"), (request, "GET / HTTP/1.1\r\n\r\n", "too long")] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let mut bounded = Bounded { limits, ..Bounded::new(listener) };
            let mut client = TcpStream::connect(address).await.unwrap();
            let (mut guest, _) = bounded.accept().await;
            if !first.is_empty() {
                client.write_all(first.as_bytes()).await.unwrap();
                guest.read_exact(&mut vec![0; first.len()]).await.unwrap();
                guest.write_all(b"HTTP/1.1 200").await.unwrap();
            }
            let error = tokio::select! {
                error = ended(&mut guest) => error,
                () = drip(&mut client) => unreachable!("it never ends"),
            };
            assert!(error.kind() == io::ErrorKind::TimedOut && error.to_string().contains(says), "{error}");
        }
    }

    /// Between two requests a client may be silent for longer than a newcomer.
    #[tokio::test]
    async fn who_has_asked_may_be_silent_for_a_while() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { hello: Duration::from_secs(1), ..Limits::default() };
        let mut bounded = Bounded { limits, ..Bounded::new(listener) };
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut guest, _) = bounded.accept().await;
        let head = b"GET / HTTP/1.1\r\n\r\n";
        client.write_all(head).await.unwrap();
        guest.read_exact(&mut [0; 18]).await.unwrap();
        let silent = tokio::time::timeout(Duration::from_millis(1500), guest.read(&mut [0; 16])).await;
        assert!(silent.is_err(), "{silent:?}");
    }

    #[tokio::test]
    async fn a_request_without_an_end_is_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = Bounded::new(listener);
        let mut client = TcpStream::connect(address).await.unwrap();
        let (mut guest, _) = bounded.accept().await;
        let mut buf = [0; 1024];
        // Answered: as many as it likes.
        for _ in 0..100 {
            client.write_all(&[7; 1024]).await.unwrap();
            guest.read_exact(&mut buf).await.unwrap();
            guest.write_all(b"HTTP/1.1 200").await.unwrap();
        }
        client.write_all(&[7; 2 * UNANSWERED_BYTES_MAX]).await.unwrap();
        let error = loop {
            if let Err(error) = guest.read(&mut buf).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
    }

    /// A read failure was once a panic, which any client could cause. Now the server still answers.
    #[tokio::test]
    async fn a_connection_that_lost_its_place_may_be_asked_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut bounded = Bounded::new(listener);
        let (mut clients, mut guests) = (Vec::new(), Vec::new());
        for _ in 0..=CONNECTIONS_MAX {
            clients.push(TcpStream::connect(address).await.unwrap());
            guests.push(bounded.accept().await.0);
        }
        let oldest = &mut guests[0];
        let read = oldest.read(&mut [0; 16]).await.unwrap_err();
        let write = oldest.write(b"HTTP/1.1 400").await.unwrap_err();
        assert_eq!((read.kind(), write.kind()), (io::ErrorKind::ConnectionAborted, io::ErrorKind::ConnectionAborted));
    }
}
