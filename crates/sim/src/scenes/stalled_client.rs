//! Scene: an NBD client sends the head of a write, and its data never comes: its machine has lost its network for good,
//! or its kernel hangs. The gateway gives the connection up, so that a client cannot hold memory for ever, and nothing
//! of the write is there.

use crate::client::{SET, VOLUME_NAMES};
use crate::model;
use crate::net::Door;
use crate::world::World;
use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use holdfast_api::v1::{self, admin_server::Admin as _};
use holdfast_attach::Halves;
use holdfast_attach::requests::{ExportName, RequestError, Requests, Session};
use holdfast_control::set::TTL_MS_MAX;
use holdfast_gateway::admin::AdminDoor;
use holdfast_types::{Name, Token};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;

/// Of a request with extended headers.
const HEAD_BYTES: usize = 32;
const DATA_BYTES: usize = 4096;
/// Milliseconds within which the gateway gives the client up: it looks twice, 30 s apart.
const GIVEN_UP: u64 = 90_000;

/// Sends so many bytes more, and loses the rest.
struct Stalling {
    inner: Box<dyn AsyncWrite + Send + Unpin>,
    left: Arc<AtomicUsize>,
}

impl AsyncWrite for Stalling {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let left = self.left.load(Relaxed);
        if left == 0 {
            return Poll::Ready(Ok(data.len()));
        }
        let sent = ready!(Pin::new(&mut self.inner).poll_write(cx, &data[..data.len().min(left)]))?;
        self.left.store(left - sent, Relaxed);
        Poll::Ready(Ok(sent))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

fn export(token: Token, incarnation: u64) -> Result<ExportName> {
    let session = Some(Session { token, slot: 0, incarnation });
    Ok(ExportName { set: Name::new(SET)?, volume: Name::new(VOLUME_NAMES[0])?, snapshot: None, session })
}

impl World {
    /// The gateways have NBD doors, before they are started.
    pub(super) fn open_nbd_doors(&mut self) {
        self.hosts.iter_mut().for_each(|host| host.nbd = true);
    }

    /// See the module.
    pub(super) fn stalled_client(&mut self) -> Result<()> {
        // No client takes the set meanwhile.
        self.clients.clear();
        let free = |w: &mut World| w.leader().and_then(|at| w.set(at)).is_some_and(|set| set.lease().is_none());
        self.until(60_000, "a set that nobody holds", free)?;
        let at = self.leader().context("no leader")?;
        let door = AdminDoor::new(self.node(at).context("no node")?);
        let request = v1::AcquireLeaseRequest {
            set: SET.into(),
            owner: "stalled".into(),
            ttl_ms: TTL_MS_MAX,
            request_id: holdfast_api::hex128(7600),
            ..Default::default()
        };
        let granted =
            self.call(at, 30_000, async move { door.acquire_lease(tonic::Request::new(request)).await })??;
        let token = Token::from_text(&granted.into_inner().token).context("a grant without a token")?;
        let (first, second) = (export(token, 1)?, export(token, 2)?);
        let (net, from) = (self.net.clone(), self.hosts.len());
        let course = async move {
            let connect = async |export: &ExportName, left: Arc<AtomicUsize>| {
                let (read, write) = tokio::io::split(net.clone().connect(from, at, Door::Nbd).await?);
                let halves: Halves = (Box::new(read), Box::new(Stalling { inner: Box::new(write), left }));
                Ok::<_, anyhow::Error>(Requests::over(halves, export).await?)
            };
            let left = Arc::new(AtomicUsize::new(usize::MAX));
            let requests = connect(&first, left.clone()).await?;
            requests.write(0, Bytes::from(vec![1; DATA_BYTES])).await?;
            left.store(HEAD_BYTES, Relaxed);
            let stalled = requests.write(0, Bytes::from(vec![2; DATA_BYTES])).await;
            let again = connect(&second, Arc::new(AtomicUsize::new(usize::MAX))).await?;
            let seen = model::bytes_of(again.read(0, DATA_BYTES as u32).await?);
            Ok::<_, anyhow::Error>((stalled, seen))
        };
        let (stalled, seen) = self.call(at, GIVEN_UP, course)??;
        self.note(format!("the write without its data: {stalled:?}"));
        let lost = matches!(stalled, Err(RequestError::Lost(_)));
        ensure!(lost, "R1: a write of which the data never came was answered: {stalled:?}");
        ensure!(seen == vec![1; DATA_BYTES], "R5: a write of which the data never came is there in part");
        Ok(())
    }
}
