//! NBD front: listeners, connections, and connection slots.
//!
//! ```text
//!   listener ─▶ handshake ─▶ Exports::open ─▶ slot ─▶ connection ─▶ Device
//!               (10 s; too many: the oldest goes)     (one task)
//! ```
//!
//! Owns: sockets, the resources of one connection, and the order in which the connections of a slot follow one another.
//! Whether a client's certificate is for NBD and for the set (TLS-T3, TLS-T4) is checked here. Does not own: the
//! protocol (crate `nbd`), any other permission to open an export, and the effect of a request ([`device`]). May depend
//! on: host, nbd, tls, types.
//!
//! R8 in this crate: the front answers with an error only if the request itself is wrong or the device says that it is
//! fenced. In all other cases the connection ends: its socket is closed and its unanswered requests stay unanswered.

mod bucket;
mod budget;
mod conn;
pub mod device;
mod handshake;
mod input;
mod limits;
mod line;
mod listen;
mod measure;
#[cfg(any(test, feature = "testing"))]
pub mod memory;
mod parked;
mod served;
mod shared;
mod slots;
mod steps;
#[cfg(any(test, feature = "testing"))]
#[allow(missing_docs, dead_code, unused_imports)]
pub mod tests;
mod throttle;

pub use limits::{FrontLimits, HANDSHAKES, LimitsError, STALL_BYTES_MIN};
pub use line::FrontTls;
pub use slots::{SlotPlace, Slots, StaleIncarnation};
pub use throttle::{Rates, Throttle, Throttles, Waited};

use device::{Exports, Peer};
pub use holdfast_host::sockets::left_by_client;
use holdfast_types::sync::LockExt;
use line::Line;
pub use shared::ServedConnection;
use shared::Shared;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// The NBD server of a gateway.
pub struct Front {
    shared: Arc<Shared>,
    listeners: Mutex<JoinSet<()>>,
}

impl Front {
    /// A front without listeners.
    ///
    /// # Errors
    /// Contradictory limits.
    pub fn new(limits: FrontLimits, exports: Arc<dyn Exports>) -> Result<Self, LimitsError> {
        Ok(Self { shared: Arc::new(Shared::new(limits, exports)?), listeners: Mutex::default() })
    }

    fn listeners(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.listeners.locked()
    }

    /// Listens on `address` until closed. Returns the address with the actual port; the port in `address` may be 0.
    /// Without `tls` everything is plain text.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn listen_tcp(&self, address: SocketAddr, tls: Option<FrontTls>) -> io::Result<SocketAddr> {
        let listener = listen::Tcp::bind(address).await?;
        let address = listener.address()?;
        self.serve_tcp(listener, tls);
        Ok(address)
    }

    // Not in the `async fn`, whose code is generated in the crate that awaits it: the code of all connections belongs
    // to this crate, and is generated once.
    fn serve_tcp(&self, listener: listen::Tcp, tls: Option<FrontTls>) {
        self.listeners().spawn(listen::run(listener, self.shared.clone(), tls));
    }

    /// Listens on a Unix socket at `path` until closed, then removes the file. Replaces a socket file without a
    /// listener. Without TLS: what the file's owner says never leaves this machine.
    ///
    /// # Errors
    /// The path cannot be bound, or another process listens on it.
    pub async fn listen_unix(&self, path: &Path) -> io::Result<()> {
        let listener = listen::Unix::bind(path).await?;
        self.serve_unix(listener);
        Ok(())
    }

    fn serve_unix(&self, listener: listen::Unix) {
        self.listeners().spawn(listen::run(listener, self.shared.clone(), None));
    }

    /// Serves incoming connections until closed. They need not be sockets of this machine.
    pub fn listen_over<S>(&self, incoming: mpsc::UnboundedReceiver<io::Result<S>>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.listeners().spawn(listen::run(listen::Given::new(incoming), self.shared.clone(), None));
    }

    /// Serves one connection that was made elsewhere (an inherited socket, a test's pipe), until it or the front ends.
    /// `left`: [`left_by_client`], or always `None` for what is no socket.
    pub async fn serve<S>(&self, socket: S, peer: Peer, left: fn(&S) -> Option<Vec<u8>>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        served::serve(&self.shared, Line::plain(socket, left), peer, None).await;
    }

    /// Connections that are in transmission now.
    pub fn connections(&self) -> Vec<ServedConnection> {
        self.shared.serving()
    }

    /// Bytes that requests hold beyond the guaranteed shares (floors) of their connections.
    pub fn shared_bytes_held(&self) -> u64 {
        self.shared.pool.drawn_bytes()
    }

    /// R8: closes every listener and connection, unanswered, and returns when all have ended.
    pub async fn close(&self) {
        self.shared.stop.cancel();
        let mut listeners = std::mem::take(&mut *self.listeners());
        while listeners.join_next().await.is_some() {}
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}
