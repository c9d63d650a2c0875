//! Tells connections between gateways apart by their first bytes: append streams are served here, all others are gRPC.
//! So both need one port, and a certificate is checked in one place.

use crate::append_frames::PREFACE;
use crate::append_receiver::serve;
use crate::node::RaftNode;
use bytes::{Buf, BytesMut};
use futures_util::{Stream, StreamExt};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::server::Connected;

/// Bytes of the first read of a connection.
const FIRST_BYTES: usize = 64;

/// gRPC connections that wait for the server to take them.
const WAITING_MAX: usize = 16;

const _: () = assert!(FIRST_BYTES >= PREFACE.len());

/// A connection, and why its peer may send no appends.
pub type Admitted<C> = (C, Result<(), String>);

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
        let (calls, waiting) = mpsc::channel(WAITING_MAX);
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(self.clone(), incoming, open, calls));
        Sorted { waiting, _accepting: accepting }
    }
}

type Calls<O> = mpsc::Sender<io::Result<Opened<O>>>;

async fn accept<C, O, F>(
    node: RaftNode,
    incoming: impl Stream<Item = io::Result<C>> + Send + 'static,
    open: impl Fn(C) -> F + Send + 'static,
    calls: Calls<O>,
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
                    connections.spawn(sort(node.clone(), open(connection), calls.clone()));
                }
                // The server decides what an error of the listener means.
                Some(Err(error)) => drop(calls.send(Err(error)).await),
                None => break,
            },
        }
    }
    drop(calls);
    while connections.join_next().await.is_some() {}
}

async fn sort<O, F>(node: RaftNode, opening: F, calls: Calls<O>)
where
    O: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = io::Result<Admitted<O>>> + Send + 'static,
{
    let mut first = BytesMut::with_capacity(FIRST_BYTES);
    let opened = async {
        let (mut connection, may_append) = opening.await?;
        connection.read_buf(&mut first).await?;
        Ok::<_, io::Error>((connection, may_append))
    };
    let (connection, may_append) = match opened.await {
        Ok(opened) => opened,
        Err(error) => {
            tracing::debug!(%error, "a connection of a peer ended before its first bytes");
            return;
        }
    };
    match first.first().copied() {
        None => {}
        Some(byte) if byte == PREFACE[0] => serve(node, connection, first, may_append).await,
        // The server may have stopped.
        Some(_) => drop(calls.send(Ok(Opened { first, connection })).await),
    }
}

/// The gRPC connections of [`RaftNode::sorted`].
pub struct Sorted<O> {
    waiting: mpsc::Receiver<io::Result<Opened<O>>>,
    _accepting: JoinSet<()>,
}

impl<O> Stream for Sorted<O> {
    type Item = io::Result<Opened<O>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.waiting.poll_recv(context)
    }
}

/// A connection whose first bytes were looked at. It yields them again.
pub struct Opened<C> {
    first: BytesMut,
    connection: C,
}

impl<C: AsyncRead + Unpin> AsyncRead for Opened<C> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.connection).poll_read(context, buf);
        }
        let len = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first[..len]);
        self.first.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Opened<C> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.connection).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

impl<C: Connected> Connected for Opened<C> {
    type ConnectInfo = C::ConnectInfo;

    fn connect_info(&self) -> C::ConnectInfo {
        self.connection.connect_info()
    }
}
