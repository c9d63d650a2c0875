//! Sockets of both sides: clients of this host, lanes to the gateway.

use crate::client;
use crate::lane;
use crate::machine::{Lane, Lost};
use crate::seams::{Connect, GivenClient};
use crate::shared::Shared;
use holdfast_nbd::{ExportName, Session};
use holdfast_tls::Connector;
use holdfast_types::Token;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Pause after a client could not be accepted (no more file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Removes a socket when it is dropped.
pub(super) struct RemoveFile(pub PathBuf);

impl Drop for RemoveFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Source of one volume's clients.
pub(super) enum Listener {
    Unix(UnixListener),
    Given(mpsc::UnboundedReceiver<GivenClient>),
}

/// A new client.
enum Came {
    Unix(UnixStream),
    Given(GivenClient),
}

impl Listener {
    async fn next(&mut self) -> io::Result<Came> {
        match self {
            Self::Unix(listener) => Ok(Came::Unix(listener.accept().await?.0)),
            // The sender is gone, so no further client will come.
            Self::Given(given) => match given.recv().await {
                Some(client) => Ok(Came::Given(client)),
                None => std::future::pending().await,
            },
        }
    }
}

impl Came {
    async fn serve(self, volume: usize, shared: Arc<Shared>) {
        match self {
            Self::Unix(socket) => client::serve(socket.into_split(), volume, shared).await,
            Self::Given(GivenClient { halves: (read, write), ended }) => {
                client::serve((client::Given { read, ended }, write), volume, shared).await;
            }
        }
    }
}

/// Serves clients of one volume, until it is dropped.
pub(super) async fn accept(listener: &mut Listener, volume: usize, shared: &Arc<Shared>, end: &CancellationToken) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        match listener.next().await {
            Ok(came) => {
                if clients.fetch_add(1, Ordering::Relaxed) >= client::CLIENTS_MAX {
                    clients.fetch_sub(1, Ordering::Relaxed);
                    tracing::warn!(volume, "too many clients: one is closed");
                    continue;
                }
                let (shared, clients, end) = (shared.clone(), clients.clone(), end.clone());
                tokio::spawn(async move {
                    tokio::select! {
                        () = end.cancelled() => {}
                        () = came.serve(volume, shared) => {}
                    }
                    clients.fetch_sub(1, Ordering::Relaxed);
                });
            }
            Err(error) => {
                tracing::warn!(volume, %error, "cannot accept clients");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Runs one lane from connecting to its end, which comes with the end of its incarnation at the latest.
pub(super) async fn run_lane(
    shared: Arc<Shared>,
    (way, tls): (Connect, Option<Connector>),
    lane: Lane,
    nbd: String,
    token: Token,
    end: CancellationToken,
) {
    let Some(over) = shared.era(lane.incarnation) else { return };
    let life = async {
        let facts = shared.facts(lane.volume);
        let session = Some(Session { token, slot: lane.slot, incarnation: lane.incarnation });
        let name = ExportName { set: shared.set.clone(), volume: facts.name.clone(), snapshot: None, session };
        let connected = match lane::connect(&way, lane, &nbd, &name, tls.as_ref()).await {
            Ok(connected) if connected.size >= facts.size => connected,
            Ok(connected) => {
                let (found, expected) = (connected.size, facts.size);
                return format!("{name}: found {found} bytes, expected at least {expected} as before");
            }
            Err(error) => return format!("{name} at {nbd}: {error}"),
        };
        let (line, wire) = connected.split();
        let line = Arc::new(line);
        shared.connected(lane, line.clone());
        let error = wire
            .run(&line, |answers| {
                shared.act(|machine, now, out| {
                    for (number, outcome) in answers {
                        machine.answered(now, lane.incarnation, number, outcome, out);
                    }
                });
            })
            .await;
        format!("{name} at {nbd}: {error}")
    };
    let why = tokio::select! {
        biased;
        () = end.cancelled() => return,
        () = over.cancelled() => return,
        why = life => why,
    };
    shared.act(|machine, now, out| machine.lost(now, lane.incarnation, &Lost::Connection(why), out));
}
