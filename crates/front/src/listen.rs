//! Listeners: accept connections, set the sockets up, pass them on.

use super::device::Peer;
use super::line::{FrontTls, Line};
use super::served::serve;
use super::shared::Shared;
use holdfast_host::sockets::left_by_client;
use holdfast_tls::KeepAlive;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// Pause after a failure to accept (no more file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(super) trait Listener: Send + 'static {
    type Socket: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    fn accept(&self) -> impl Future<Output = io::Result<(Self::Socket, Peer)>> + Send;
    /// See [`left_by_client`].
    fn left_by_client(socket: &Self::Socket) -> Option<Vec<u8>>;
}

pub(super) struct Tcp(TcpListener);

impl Tcp {
    pub(super) async fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(Self(socket.listen(BACKLOG)?))
    }

    pub(super) fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

impl Listener for Tcp {
    type Socket = TcpStream;

    async fn accept(&self) -> io::Result<(TcpStream, Peer)> {
        let (socket, address) = self.0.accept().await?;
        // The plain lease of a dead host must become free.
        KeepAlive::GATEWAY.set_up(&socket).map_err(|error| io::Error::new(io::ErrorKind::ConnectionAborted, error))?;
        Ok((socket, Peer::Tcp(address)))
    }

    fn left_by_client(socket: &TcpStream) -> Option<Vec<u8>> {
        left_by_client(socket)
    }
}

pub(super) struct Unix {
    listener: UnixListener,
    path: PathBuf,
}

impl Unix {
    pub(super) async fn bind(path: &Path) -> io::Result<Self> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let left_over = std::fs::symlink_metadata(path)?.file_type().is_socket()
                    && UnixStream::connect(path).await.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
                if !left_over {
                    return Err(error);
                }
                std::fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            other => other?,
        };
        // A user who may connect may read and write volumes.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, path: path.into() })
    }
}

impl Drop for Unix {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "the socket file was already removed");
        }
    }
}

impl Listener for Unix {
    type Socket = UnixStream;

    async fn accept(&self) -> io::Result<(UnixStream, Peer)> {
        let (socket, _) = self.listener.accept().await?;
        Ok((socket, Peer::Unix))
    }

    fn left_by_client(socket: &UnixStream) -> Option<Vec<u8>> {
        left_by_client(socket)
    }
}

/// Connections that were made elsewhere.
pub(super) struct Given<S>(Mutex<mpsc::UnboundedReceiver<io::Result<S>>>);

impl<S> Given<S> {
    pub(super) fn new(incoming: mpsc::UnboundedReceiver<io::Result<S>>) -> Self {
        Self(Mutex::new(incoming))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Listener for Given<S> {
    type Socket = S;

    async fn accept(&self) -> io::Result<(S, Peer)> {
        match self.0.lock().await.recv().await {
            Some(socket) => Ok((socket?, Peer::Unix)),
            // The sender is gone, so no further connection will come.
            None => std::future::pending().await,
        }
    }

    /// Not known of a stream that may be anything.
    fn left_by_client(_: &S) -> Option<Vec<u8>> {
        None
    }
}

/// Accepts until the front stops, then waits until every accepted connection has ended.
pub(super) async fn run<L: Listener>(listener: L, shared: Arc<Shared>, tls: Option<FrontTls>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => break,
            Some(ended) = connections.join_next(), if !connections.is_empty() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection's task failed");
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((socket, peer)) => {
                    let (shared, tls) = (shared.clone(), tls.clone());
                    let line = Line::plain(socket, L::left_by_client);
                    connections.spawn(async move { serve(&shared, line, peer, tls.as_ref()).await });
                }
                // An error of a single connection, which was closed before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot accept NBD connections");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}
