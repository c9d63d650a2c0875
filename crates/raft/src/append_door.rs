//! Tells connections between gateways apart by their first bytes: append streams are served here, all others are gRPC.
//! So both need one port, and a certificate is checked in one place. Append streams have places of their own: however
//! many come, votes and heartbeats find one.

use crate::admitted::Admitted;
use crate::append_frames::PREFACE;
use crate::append_receiver::{AnyConnection, serve_boxed};
use crate::node::RaftNode;
use bytes::BytesMut;
use futures_util::{Stream, StreamExt};
use holdfast_tls::Peeked;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// Bytes of the first read of a connection.
const FIRST_BYTES: usize = 64;

/// Append connections at one door: one for each of 1,024 sets and for group 0, twice as many dead ones that are not
/// detected yet (a leader that lost power and is there again), and a margin. One that finds no place is closed. A door
/// needs so many places beside those for gRPC (DOOR-D1).
pub const APPEND_CONNECTIONS_MAX: usize = 3 * 1024 + 64;

/// gRPC connections that wait for the server to take them.
const WAITING_MAX: usize = 16;

const _: () = assert!(FIRST_BYTES >= PREFACE.len());

impl RaftNode {
    /// Serves the append streams among the `incoming` connections, in tasks of their own. Yields the other connections:
    /// these are gRPC. When what is returned is dropped, all append streams end.
    ///
    /// `open` completes a connection (TLS) and tells whether its peer may send appends. Its error concerns that
    /// connection alone.
    pub fn sorted<C, O, F>(
        &self,
        incoming: impl Stream<Item = io::Result<C>> + Send + 'static,
        open: impl Fn(C) -> F + Send + 'static,
    ) -> Sorted<O>
    where
        C: Send + 'static,
        O: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = io::Result<Admitted<O>>> + Send + 'static,
    {
        self.sorted_with(incoming, open, APPEND_CONNECTIONS_MAX)
    }

    /// Like `sorted`, with so many places for append connections.
    pub(crate) fn sorted_with<C, O, F>(
        &self,
        incoming: impl Stream<Item = io::Result<C>> + Send + 'static,
        open: impl Fn(C) -> F + Send + 'static,
        append_places: usize,
    ) -> Sorted<O>
    where
        C: Send + 'static,
        O: AsyncRead + AsyncWrite + Unpin + Send + 'static,
        F: Future<Output = io::Result<Admitted<O>>> + Send + 'static,
    {
        let (calls, waiting) = mpsc::channel(WAITING_MAX);
        let sorter = Sorter { node: self.clone(), calls, places: Arc::new(Places::new(append_places)) };
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(sorter, incoming, open));
        Sorted { waiting, _accepting: accepting }
    }
}

/// Places of append connections, held once the first bytes are there.
struct Places {
    free: Semaphore,
    /// It was said that none is free.
    said: AtomicBool,
}

impl Places {
    fn new(most: usize) -> Self {
        Self { free: Semaphore::new(most), said: AtomicBool::new(false) }
    }
}

/// Where the connections of a door go.
struct Sorter<O> {
    node: RaftNode,
    calls: mpsc::Sender<io::Result<Peeked<O>>>,
    places: Arc<Places>,
}

impl<O> Clone for Sorter<O> {
    fn clone(&self) -> Self {
        Self { node: self.node.clone(), calls: self.calls.clone(), places: self.places.clone() }
    }
}

async fn accept<C, O, F>(
    sorter: Sorter<O>,
    incoming: impl Stream<Item = io::Result<C>> + Send + 'static,
    open: impl Fn(C) -> F + Send + 'static,
) where
    C: Send + 'static,
    O: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<Admitted<O>>> + Send + 'static,
{
    let mut incoming = std::pin::pin!(incoming);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            Some(_) = connections.join_next() => {}
            next = incoming.next() => match next {
                Some(Ok(connection)) => {
                    connections.spawn(sort(sorter.clone(), open(connection)));
                }
                // The server decides what an error of the listener means.
                Some(Err(error)) => drop(sorter.calls.send(Err(error)).await),
                None => break,
            },
        }
    }
    drop(sorter);
    while connections.join_next().await.is_some() {}
}

async fn sort<O, F>(sorter: Sorter<O>, opening: F)
where
    O: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<Admitted<O>>> + Send + 'static,
{
    let mut first = BytesMut::with_capacity(FIRST_BYTES);
    let opened = async {
        let mut admitted = opening.await?;
        admitted.connection.read_buf(&mut first).await?;
        Ok::<_, io::Error>(admitted)
    };
    let Admitted { connection, may_append, known, refused } = match opened.await {
        Ok(opened) => opened,
        Err(error) => {
            tracing::debug!(%error, "a connection of a peer ended before its first bytes");
            return;
        }
    };
    match first.first().copied() {
        None => {}
        Some(byte) if byte == PREFACE[0] => {
            let places = sorter.places;
            let Ok(_place) = places.free.try_acquire() else {
                if !places.said.swap(true, Ordering::Relaxed) {
                    tracing::warn!("the limit of append connections is reached: new ones are closed (DOOR-D1)");
                }
                return;
            };
            places.said.store(false, Ordering::Relaxed);
            let connection: Box<dyn AnyConnection> = Box::new(connection);
            serve_boxed(sorter.node, Admitted { connection, may_append, known, refused }, first).await;
        }
        // The server may have stopped.
        Some(_) => drop(sorter.calls.send(Ok(Peeked::new(first.to_vec(), connection))).await),
    }
}

/// The gRPC connections of [`RaftNode::sorted`].
pub struct Sorted<O> {
    waiting: mpsc::Receiver<io::Result<Peeked<O>>>,
    _accepting: JoinSet<()>,
}

impl<O> Stream for Sorted<O> {
    type Item = io::Result<Peeked<O>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.waiting.poll_recv(context)
    }
}
