//! NBD front: listeners, connections, and connection slots.
//!
//! ```text
//!   listener ─▶ handshake ─▶ Exports::open ─▶ slot ─▶ connection ─▶ Device
//!               (10 s; too many: the oldest goes)     (one task)
//! ```
//!
//! Owns: sockets, the resources of one connection, and the order in which the connections of a slot follow one another.
//! Does not own: the protocol (crate `nbd`), permission to open an export, and the effect of a request ([`device`]).
//! May depend on: nbd, types.
//!
//! R8 in this crate: the front answers with an error only if the request itself is wrong or the device says that it is
//! fenced. In all other cases the connection ends: its socket is closed and its unanswered requests stay unanswered.

mod budget;
mod conn;
pub mod device;
mod handshake;
mod input;
mod limits;
mod listen;
mod measure;
pub mod memory;
mod parked;
mod slots;
mod steps;
#[cfg(any(test, feature = "testing"))]
#[allow(missing_docs, dead_code, unused_imports)]
pub mod tests;

pub use limits::{FrontLimits, LimitsError, STALL_BYTES_MIN};
pub use slots::{SlotPlace, Slots, StaleIncarnation};

use budget::{Ledger, Pool};
use conn::{Connection, End};
use device::{ConnInfo, Exports, Peer, Refusal, RefusalKind};
use handshake::{Progress, Ready, shake_hands};
use holdfast_nbd::ExportName;
use holdfast_types::sync::LockExt;
pub use listen::{left_by_client, set_up};
use measure::Measures;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// The NBD server of a gateway.
pub struct Front {
    shared: Arc<Shared>,
    listeners: Mutex<JoinSet<()>>,
}

struct Shared {
    limits: FrontLimits,
    exports: Arc<dyn Exports>,
    pool: Pool,
    next_id: AtomicU64,
    stop: CancellationToken,
    connections: Mutex<Connections>,
}

#[derive(Default)]
struct Connections {
    shaking: BTreeMap<u64, CancellationToken>,
    serving: BTreeMap<u64, ServedConnection>,
}

/// A connection in transmission, for monitoring.
#[derive(Clone, Debug)]
pub struct ServedConnection {
    /// Its id and peer.
    pub info: ConnInfo,
    /// The export that it has open.
    pub name: ExportName,
    stop: CancellationToken,
}

impl ServedConnection {
    /// Closes it, unanswered (R8).
    pub fn close(&self) {
        self.stop.cancel();
    }
}

/// Removes a connection from the lists when its task ends, for whatever reason.
struct Listed<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut connections = self.shared.connections();
        connections.shaking.remove(&self.id);
        connections.serving.remove(&self.id);
    }
}

impl Front {
    /// A front without listeners.
    ///
    /// # Errors
    /// Contradictory limits.
    pub fn new(limits: FrontLimits, exports: Arc<dyn Exports>) -> Result<Self, LimitsError> {
        limits.validate()?;
        let shared = Shared {
            pool: Pool::new(&limits),
            limits,
            exports,
            next_id: AtomicU64::new(1),
            stop: CancellationToken::new(),
            connections: Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared), listeners: Mutex::default() })
    }

    fn listeners(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.listeners.locked()
    }

    /// Listens on `address` until closed. Returns the address with the actual port; the port in `address` may be 0.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn listen_tcp(&self, address: SocketAddr) -> io::Result<SocketAddr> {
        let listener = listen::Tcp::bind(address).await?;
        let address = listener.address()?;
        self.listeners().spawn(listen::run(listener, self.shared.clone()));
        Ok(address)
    }

    /// Listens on a Unix socket at `path` until closed, then removes the file. Replaces a socket file without a
    /// listener.
    ///
    /// # Errors
    /// The path cannot be bound, or another process listens on it.
    pub async fn listen_unix(&self, path: &Path) -> io::Result<()> {
        let listener = listen::Unix::bind(path).await?;
        self.listeners().spawn(listen::run(listener, self.shared.clone()));
        Ok(())
    }

    /// Serves incoming connections until closed. They need not be sockets of this machine.
    pub fn listen_over<S>(&self, incoming: mpsc::UnboundedReceiver<io::Result<S>>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.listeners().spawn(listen::run(listen::Given::new(incoming), self.shared.clone()));
    }

    /// Serves one connection that was made elsewhere (an inherited socket, a test's pipe), until it or the front ends.
    /// `left`: [`left_by_client`], or always `None` for what is no socket.
    pub async fn serve<S>(&self, socket: S, peer: Peer, left: fn(&S) -> Option<Vec<u8>>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        self.shared.connection(socket, peer, left).await;
    }

    /// Connections that are in transmission now.
    pub fn connections(&self) -> Vec<ServedConnection> {
        self.shared.connections().serving.values().cloned().collect()
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

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.locked()
    }

    /// Registers a new connection. If there are too many handshakes, closes the oldest of them.
    fn admit(&self, id: u64, stop: &CancellationToken) {
        let mut connections = self.connections();
        if connections.shaking.len() >= self.limits.handshakes
            && let Some((oldest, evicted)) = connections.shaking.pop_first()
        {
            tracing::info!(connection = oldest, "too many handshakes at once: closing the oldest");
            evicted.cancel();
        }
        connections.shaking.insert(id, stop.clone());
    }

    /// From handshake to transmission. At the connection limit, a connection with a session replaces one without. Those
    /// without need no token, so a client that holds many of them must not keep an attached host out. The oldest
    /// connection to a snapshot goes first, since any gateway can serve it.
    ///
    /// # Errors
    /// The connection limit is reached.
    fn promote(&self, connection: ServedConnection) -> Result<(), Refusal> {
        let mut connections = self.connections();
        if connections.serving.len() >= self.limits.connections {
            let rank = |c: &ServedConnection| (c.name.snapshot.is_none(), c.info.id);
            let guests = connections.serving.values().filter(|c| c.name.session.is_none());
            let guest = guests.map(rank).min().filter(|_| connection.name.session.is_some());
            let Some((_, id)) = guest else {
                let found = connections.serving.len();
                let message = format!(
                    "this gateway has reached its limit of {found} NBD connections: close some, or try again later"
                );
                return Err(Refusal { kind: RefusalKind::NotHere, message });
            };
            if let Some(guest) = connections.serving.remove(&id) {
                tracing::info!(connection = id, export = %guest.name, "too many connections: closed in favour of one with a token");
                guest.close();
            }
        }
        connections.shaking.remove(&connection.info.id);
        connections.serving.insert(connection.info.id, connection);
        Ok(())
    }

    /// Back to the handshake: the connection was refused after all.
    fn demote(&self, id: u64) {
        let mut connections = self.connections();
        if let Some(connection) = connections.serving.remove(&id) {
            connections.shaking.insert(id, connection.stop);
        }
    }

    async fn connection<S>(&self, mut socket: S, peer: Peer, left: fn(&S) -> Option<Vec<u8>>)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let info = ConnInfo { id: self.next_id.fetch_add(1, Ordering::Relaxed), peer };
        let stop = self.stop.child_token();
        self.admit(info.id, &stop);
        // Declared before everything that a connection holds, so it is dropped last.
        let _listed = Listed { shared: self, id: info.id };
        let progress = Progress::new();
        let shaking = shake_hands(&mut socket, info, self, &stop, &progress);
        let shaking = progress.limit(&self.limits, shaking);
        let ready = match until(&stop, shaking).await {
            Some(Some(Ok(ready))) => ready,
            Some(Some(Err(error))) => return tracing::info!(connection = info.id, %peer, %error, "no transmission"),
            Some(None) => return tracing::info!(connection = info.id, %peer, "the handshake took too long"),
            None => return,
        };
        let Ready { served, input, name, place } = ready;
        tracing::info!(connection = info.id, %peer, export = %name, "connected");
        let measures = Measures::new();
        let ledger = Ledger::new(&self.limits, self.pool.clone());
        let connection = Connection::new(&mut socket, input, served, &self.limits, ledger, &measures, left);
        let end = connection.serve().await;
        // CONN-C4, SLOT-S1: all operations were dropped with the connection, so the slot may go to the next one. The
        // socket closes now.
        drop(socket);
        drop(place);
        match end {
            End::Left | End::Gone => tracing::info!(connection = info.id, %peer, export = %name, %end, "disconnected"),
            end => tracing::info!(connection = info.id, %peer, export = %name, %end, "connection closed"),
        }
    }
}

/// Runs `future` until it ends or `stop` is cancelled.
async fn until<T>(stop: &CancellationToken, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        done = future => Some(done),
    }
}
