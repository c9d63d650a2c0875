//! Runs one gateway, with the listeners around its node, until it is told to stop.

use crate::access::{ClusterCheck, Guard, Guarded, plaintext_came};
use crate::admin::{GuardedAdmin, guarded_admin, start_tasks};
use crate::audit::{self, Audit};
use crate::config::live::Live;
use crate::config::{AuditConfig, GatewayConfig, NbdTls, SnapshotExports};
use crate::doors::{self, Client, Door, Place, Standing};
use crate::http;
use crate::node::{HAND_OVER_LIMIT, Node, NodeError, Seams};
use futures_util::Stream;
use futures_util::future::BoxFuture;
use holdfast_front::{Front, FrontLimits, FrontTls, LimitsError};
use holdfast_raft::{Admitted, Known, RaftNode, Sorted};
use holdfast_set::device::NodeExports;
use holdfast_tls::{Either, HttpTls, Role, Tls, TlsStream, admits, certificate};
use holdfast_traces::Exporter;
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::HeaderMap;
use tonic::transport::server::Connected;

/// How long the last lines of the audit log may take.
const AUDIT_LIMIT: Duration = Duration::from_secs(2);

/// How long open gRPC calls may take once the gateway stops.
const GRACE: Duration = Duration::from_secs(2);

/// HTTP/2 windows of the peer listener, equal to those of the senders (measured there).
const WINDOW_BYTES: u32 = 4 << 20;

/// A gateway stopped without being told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It could not start.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// An address is in use, or does not belong to this machine.
    #[error(
        "{what} on {addr}: {source}; another gateway may be running, or the address may not belong to this machine"
    )]
    Listen {
        /// Which listener.
        what: &'static str,
        /// Its address.
        addr: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The work before its listeners open failed.
    #[error(transparent)]
    Begin(Box<dyn std::error::Error + Send + Sync>),
    /// The file of the audit log cannot be opened, or it has no thread.
    #[error("audit log: {0}")]
    Audit(#[source] std::io::Error),
    /// Contradictory limits.
    #[error("[in_flight]: {0}")]
    Limits(#[from] LimitsError),
    /// A listener stopped by itself.
    #[error("{what} ended: {reason}")]
    Ended {
        /// Which listener.
        what: &'static str,
        /// Why.
        reason: String,
    },
}

fn front(config: &GatewayConfig, exports: Arc<NodeExports>) -> Result<Front, RunError> {
    let number = |n: u32| usize::try_from(n).unwrap_or(usize::MAX);
    let limits = FrontLimits {
        connections: number(config.in_flight.connections),
        connection_requests: number(config.in_flight.connection_requests),
        gateway_requests: number(config.in_flight.gateway_requests),
        connection_bytes: config.in_flight.connection_bytes.0,
        gateway_bytes: config.in_flight.gateway_bytes.0,
        ..FrontLimits::default()
    };
    Ok(Front::new(limits, exports)?)
}

fn exports(config: &GatewayConfig, node: &Node) -> Arc<NodeExports> {
    let (cluster, sets) = (node.cluster.clone(), node.sets.clone());
    let open_snapshots = config.snapshot_exports == SnapshotExports::Open;
    Arc::new(NodeExports { cluster, sets, plain_exports: config.plain_exports, open_snapshots })
}

async fn start_front(config: &GatewayConfig, exports: Arc<NodeExports>, tls: Option<&Tls>) -> Result<Front, RunError> {
    let front = front(config, exports)?;
    if config.plain_exports {
        tracing::warn!("plain_exports is set: whoever may connect to NBD reads and writes volumes without a token");
    }
    if config.snapshot_exports == SnapshotExports::Open {
        tracing::warn!("snapshot_exports is \"open\": whoever may connect to NBD reads snapshots without a token");
    }
    if let Some(addr) = config.nbd_listen {
        let failed = |source| RunError::Listen { what: "nbd", addr: addr.to_string(), source };
        let mode = config.tls.nbd_mode();
        let tls = tls.filter(|_| mode != NbdTls::Off);
        let tls = tls.map(|tls| FrontTls::new(tls.acceptor(), mode == NbdTls::Required));
        front.listen_tcp(addr, tls).await.map_err(failed)?;
        tracing::info!(%addr, tls = mode.as_str(), "NBD listens");
    }
    if let Some(path) = &config.nbd_unix {
        let failed = |source| RunError::Listen { what: "nbd", addr: path.display().to_string(), source };
        front.listen_unix(path).await.map_err(failed)?;
    }
    Ok(front)
}

async fn listen(what: &'static str, addr: SocketAddr) -> Result<TcpListener, RunError> {
    TcpListener::bind(addr).await.map_err(|source| RunError::Listen { what, addr: addr.to_string(), source })
}

/// How a gateway is told to stop.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    /// Hand over what this gateway leads, then stop.
    pub asked: CancellationToken,
    /// Stop at once.
    pub now: CancellationToken,
}

impl Stop {
    /// A stop that hands nothing over.
    pub fn at_once(stop: CancellationToken) -> Self {
        Self { asked: stop.clone(), now: stop }
    }
}

/// Runs a gateway until `stop`; `live` has its settings as they change. The future is boxed: otherwise its machine code
/// would be generated again in each crate that calls this.
pub fn run_until(config: GatewayConfig, live: Live, stop: Stop) -> BoxFuture<'static, Result<(), RunError>> {
    Box::pin(run_life(config, stop, Seams { live: Some(live), ..Seams::default() }, None))
}

/// Work of a node before its listeners open.
pub type Begin = Box<dyn FnOnce(Arc<Node>) -> BoxFuture<'static, Result<(), RunError>> + Send>;

/// Runs a node from its data directory. When this returns, no task or listener of it is left.
pub fn run_life(
    config: GatewayConfig,
    Stop { asked, now: stop }: Stop,
    seams: Seams,
    begin: Option<Begin>,
) -> BoxFuture<'static, Result<(), RunError>> {
    Box::pin(async move {
        let starting = Starting::begin(asked.clone(), stop.clone());
        // Bind the addresses first: an address that is in use must not cost a start that is noted on the disk.
        let api = listen("admin door", config.api_listen).await?;
        let peer = listen("peer door", config.peer_listen).await?;
        let http_listener = match config.http_listen {
            Some(addr) => Some(listen("http", addr).await?),
            None => None,
        };
        let audit = audit::start(&config.audit).map_err(RunError::Audit)?;
        let node = Node::open_over(config.clone(), stop.clone(), Seams { tasks: start_tasks, ..seams }).await?;
        if let Some(begin) = begin {
            let begun = tokio::select! {
                biased;
                () = stop.cancelled() => None,
                begun = begin(node.clone()) => Some(begun),
            };
            if !matches!(begun, Some(Ok(()))) {
                stop.cancel();
                node.close().await;
                return begun.unwrap_or(Ok(()));
            }
        }
        let exports = exports(&config, &node);
        let mut doors: JoinSet<DoorEnd> = JoinSet::new();
        // One guard for both: the page's calls are counted with the others.
        let admin = guarded_admin(node.clone(), audit.clone());
        doors.spawn(serve_api(api, node.clone(), admin.clone(), stop.clone()));
        doors.spawn(serve_peers(peer, node.clone(), audit.clone(), stop.clone()));
        follow(&mut doors, &node, audit.clone());
        if let Some(listener) = http_listener {
            doors.spawn(serve_http(listener, node.clone(), admin, config.tls.http_mode()));
        }
        let front = match start_front(&config, exports, node.tls.as_ref()).await {
            Ok(front) => front,
            Err(error) => {
                stop.cancel();
                node.close().await;
                doors.shutdown().await;
                return Err(error);
            }
        };
        tracing::info!(name = %config.name, api = %config.api_address(), "gateway runs");
        drop(starting);
        let failed = until_stopped(&node, &asked, &stop, doors.join_next()).await;
        stop.cancel();
        front.close().await;
        node.close().await;
        doors.shutdown().await;
        end_audit(audit).await;
        failed.map_or_else(|| node.refusal().map_or(Ok(()), |e| Err(e.into())), Err)
    })
}

/// Until a gateway runs it leads nothing that others wait for: told to stop then, it stops at once.
struct Starting(JoinHandle<()>);

impl Starting {
    fn begin(asked: CancellationToken, stop: CancellationToken) -> Self {
        Self(tokio::spawn(async move {
            asked.cancelled().await;
            stop.cancel();
        }))
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits for the end of the gateway's work. Asked to stop, it hands over what it leads; everything still runs
/// meanwhile. What cannot be handed over does not keep it from its end, and neither does anything once `stop` comes.
async fn until_stopped(
    node: &Arc<Node>,
    asked: &CancellationToken,
    stop: &CancellationToken,
    ended: impl Future<Output = Option<Result<DoorEnd, JoinError>>>,
) -> Option<RunError> {
    tokio::select! {
        biased;
        failed = first_failure(stop, ended) => return failed,
        () = asked.cancelled() => {}
    }
    tokio::select! {
        biased;
        () = stop.cancelled() => {}
        _ = node.hand_over_all(HAND_OVER_LIMIT) => {}
    }
    None
}

async fn serve_http(listener: TcpListener, node: Arc<Node>, admin: GuardedAdmin, mode: HttpTls) -> DoorEnd {
    if let Some(why) = node.config.names_in_plain() {
        tracing::warn!("{why}");
    }
    ("http", http::serve(listener, node, admin, mode).await.map_err(|e| e.to_string()))
}

/// Waits for what the last calls have left. A disk that hangs keeps no gateway from its end.
async fn end_audit(audit: Option<Audit>) {
    let Some(audit) = audit else { return };
    if !audit.written(AUDIT_LIMIT).await {
        tracing::warn!("the last lines of the audit log are not written");
    }
}

/// Waits for `stop`, or for the first listener that ends (`ended`). Returns the error if a listener ended by itself.
async fn first_failure(
    stop: &CancellationToken,
    ended: impl Future<Output = Option<Result<DoorEnd, JoinError>>>,
) -> Option<RunError> {
    let ended = tokio::select! {
        biased;
        () = stop.cancelled() => None,
        ended = ended => ended,
    };
    match ended? {
        // Listeners also end because of the stop, and the stop may come between the two checks above. That is no
        // failure.
        Ok((_, Ok(()))) if stop.is_cancelled() => None,
        Ok((what, Ok(()))) => Some(RunError::Ended { what, reason: "exited unexpectedly".to_string() }),
        Ok((what, Err(reason))) => Some(RunError::Ended { what, reason }),
        Err(e) => Some(RunError::Ended { what: "a door", reason: e.to_string() }),
    }
}

/// The roles that may use the API between gateways.
const GATEWAYS: &[Role] = &[Role::Gateway];

pub(crate) type DoorEnd = (&'static str, Result<(), String>);

/// Serves the admin API until `stop` is cancelled.
pub(crate) async fn serve_api(
    listener: TcpListener,
    node: Arc<Node>,
    door: GuardedAdmin,
    stop: CancellationToken,
) -> DoorEnd {
    let incoming = Door::new("admin", listener, doors::ADMIN).incoming();
    let acceptor = node.tls.as_ref().map(Tls::acceptor);
    if acceptor.is_none() && !node.config.api_listen.ip().is_loopback() {
        tracing::warn!(api_listen = %node.config.api_listen, "the admin API has no TLS: whoever reaches it may do everything");
    }
    let both = takes_both(&node);
    // TLS already rejects certificates of another authority; the guard says what our own ones may do.
    let server = doors::server().add_service(door);
    let stopped = bounded(stop.clone());
    // R10: with a certificate, the admin door accepts only mutual TLS, once the cluster has come to it.
    let ended = match acceptor {
        Some(tls) if both => {
            let incoming = tls.clone().incoming_by(incoming, move |connection| {
                let tls = tls.clone();
                async move { tls.accept_either(connection).await }
            });
            finish(server.serve_with_incoming_shutdown(incoming, stopped), stop).await
        }
        Some(tls) => finish(server.serve_with_incoming_shutdown(tls.incoming(incoming), stopped), stop).await,
        None => finish(server.serve_with_incoming_shutdown(incoming, stopped), stop).await,
    };
    ("admin door", ended)
}

/// Whether the doors take plain text beside TLS, which is said loudly.
fn takes_both(node: &Node) -> bool {
    let Some(step) = node.config.tls.transition else { return false };
    tracing::warn!(
        transition = step.as_str(),
        "[tls] transition is set: whoever connects to the admin door or the door between gateways without TLS may do everything there"
    );
    true
}

/// Reads the certificate again when its files change (LIVE-C1).
async fn follow_certificate(tls: Tls) -> DoorEnd {
    match tls.follow().await {}
}

/// The audit log as the settings say, until aborted.
async fn follow_audit(audit: Audit, at: AuditConfig, live: Live) -> DoorEnd {
    match audit::follow(audit, at, live).await {}
}

/// Sends traces until aborted: what was recorded in the last seconds of a gateway is lost with it.
async fn send_traces(exporter: Exporter) -> DoorEnd {
    exporter.run().await;
    std::future::pending().await
}

/// What looks at files and settings beside the listeners, and what sends traces.
fn follow(doors: &mut JoinSet<DoorEnd>, node: &Node, audit: Option<Audit>) {
    if let Some(tls) = node.tls.clone() {
        doors.spawn(follow_certificate(tls));
    }
    if let Some(audit) = audit {
        let (at, live) = (node.config.audit.clone(), node.settings.clone());
        doors.spawn(follow_audit(audit, at, live));
    }
    if let Some(exporter) = node.take_exporter() {
        doors.spawn(send_traces(exporter));
    }
}

async fn serve_peers(listener: TcpListener, node: Arc<Node>, audit: Option<Audit>, stop: CancellationToken) -> DoorEnd {
    let incoming = Door::new("peer", listener, doors::PEERS).incoming();
    ("peer door", serve_peers_over(incoming, node, None, audit, stop).await)
}

/// Serves the peer API and the admin API on the same connections, without TLS: a simulation has a single listener.
///
/// # Errors
/// The listener.
pub async fn serve_doors_over<C>(
    incoming: impl Stream<Item = std::io::Result<C>> + Send + 'static,
    node: Arc<Node>,
    stop: CancellationToken,
) -> Result<(), String>
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let admin = guarded_admin(node.clone(), None);
    serve_peers_over(incoming, node, Some(admin), None, stop).await
}

/// Serves NBD on the incoming connections, as long as the front lives.
///
/// # Errors
/// Contradictory limits.
pub fn serve_nbd_over<C>(
    incoming: mpsc::UnboundedReceiver<std::io::Result<C>>,
    config: &GatewayConfig,
    node: &Node,
) -> Result<Front, RunError>
where
    C: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let front = front(config, exports(config, node))?;
    front.listen_over(incoming);
    Ok(front)
}

/// Serves the peer API and append streams on the incoming connections until `stop` is cancelled, and `admin` beside it.
async fn serve_peers_over<C>(
    incoming: impl Stream<Item = std::io::Result<C>> + Send + 'static,
    node: Arc<Node>,
    admin: Option<GuardedAdmin>,
    audit: Option<Audit>,
    stop: CancellationToken,
) -> Result<(), String>
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    // Before adoption, peers are not served: their connections are closed.
    let Some(raft) = adopted(&node, &stop).await else { return Ok(()) };
    let guard = peer_guard(&node, &raft, audit);
    let appends = guard.clone();
    // R10: with a certificate, a listener accepts only mutual TLS.
    let Some(acceptor) = node.tls.as_ref().map(Tls::acceptor) else {
        let plain = move |connection: C| {
            let client = client_of(&connection);
            let (known, refused) = (known(client.as_ref()), refused(&appends, client, None));
            std::future::ready(Ok(Admitted { connection, may_append: Ok(()), known, refused }))
        };
        return serve_calls(raft.sorted(incoming, plain), raft, guard, admin, stop).await;
    };
    if node.config.tls.transition.is_some() {
        let open = move |connection: C| {
            let (acceptor, appends) = (acceptor.clone(), appends.clone());
            async move {
                let client = client_of(&connection);
                let known = known(client.as_ref());
                let connection = acceptor.accept_either(connection).await?;
                let (may_append, own) = match &connection {
                    Either::Plain(_) => {
                        plaintext_came("peer connection");
                        (Ok(()), None)
                    }
                    Either::Tls(tls) => may_append(tls),
                };
                let refused = refused(&appends, client, own);
                Ok::<_, std::io::Error>(Admitted { connection, may_append, known, refused })
            }
        };
        return serve_calls(raft.sorted(incoming, open), raft, guard, admin, stop).await;
    }
    let open = move |connection: C| {
        let (acceptor, appends) = (acceptor.clone(), appends.clone());
        async move {
            let client = client_of(&connection);
            let known = known(client.as_ref());
            let connection = acceptor.accept(connection).await?;
            let (may_append, own) = may_append(&connection);
            let refused = refused(&appends, client, own);
            Ok::<_, std::io::Error>(Admitted { connection, may_append, known, refused })
        }
    };
    serve_calls(raft.sorted(incoming, open), raft, guard, admin, stop).await
}

/// What serves peers, once the node is adopted; `None`: the gateway stops first.
async fn adopted(node: &Node, stop: &CancellationToken) -> Option<RaftNode> {
    loop {
        if let Some(raft) = node.raft() {
            return Some(raft);
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(Duration::from_millis(20)) => {}
        }
    }
}

/// TLS-T3: only a gateway may vote, append and ask for votes.
fn peer_guard(node: &Node, raft: &RaftNode, audit: Option<Audit>) -> Guard {
    let ours = raft.clone();
    let cluster: ClusterCheck = Arc::new(move |headers: &HeaderMap| ours.check_cluster(headers));
    Guard::peer(node.tls.as_ref().map(|tls| tls.revocations().clone()), Some(cluster), audit)
}

/// Whether the peer of a connection may append, and its certificate.
fn may_append<C>(connection: &TlsStream<C>) -> (Result<(), String>, Option<Vec<u8>>) {
    (admits(connection, GATEWAYS).map(drop), certificate(connection).map(<[u8]>::to_vec))
}

/// What the listener knows of a connection. A simulation has no such listener.
fn client_of<C: Connected>(connection: &C) -> Option<Client> {
    let info: Box<dyn Any> = Box::new(connection.connect_info());
    info.downcast::<Client>().ok().map(|client| *client)
}

/// DOOR-D5: who begins an append stream has proven to be a member.
fn known(client: Option<&Client>) -> Known {
    let place: Option<Place> = client.map(|client| client.place.clone());
    Box::new(move || {
        if let Some(place) = place {
            place.shows(Standing::Proven);
        }
    })
}

/// ACCESS-A3: who wants to append and may not leaves a line.
fn refused(guard: &Guard, client: Option<Client>, certificate_der: Option<Vec<u8>>) -> Known {
    let guard = guard.clone();
    Box::new(move || guard.appends_refused(certificate_der.as_deref(), client.as_ref()))
}

/// Serves the calls of peers: everything but append streams.
async fn serve_calls<C>(
    incoming: Sorted<C>,
    raft: RaftNode,
    guard: Guard,
    admin: Option<GuardedAdmin>,
    stop: CancellationToken,
) -> Result<(), String>
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let door = Guarded::new(raft.service(), guard);
    let served = doors::server()
        .max_concurrent_streams(doors::PEER_STREAMS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_frame_size(256 << 10)
        .add_service(door)
        .add_optional_service(admin)
        .serve_with_incoming_shutdown(incoming, bounded(stop.clone()));
    finish(served, stop).await
}

async fn bounded(stop: CancellationToken) {
    stop.cancelled().await;
}

/// A graceful stop waits for open calls, but streams between gateways never end by themselves. So the wait is limited.
async fn finish(
    served: impl Future<Output = Result<(), tonic::transport::Error>>,
    stop: CancellationToken,
) -> Result<(), String> {
    let late = async {
        stop.cancelled().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = served => served.map_err(|e| e.to_string()),
        () = late => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(end: DoorEnd) -> impl Future<Output = Option<Result<DoorEnd, JoinError>>> {
        std::future::ready(Some(Ok(end)))
    }

    /// On a busy machine, both the stop and the end of a listener because of it may happen between the two checks.
    #[tokio::test]
    async fn a_door_that_ends_by_the_stop_is_no_failure() {
        let stop = CancellationToken::new();
        let between = async {
            stop.cancel();
            Some(Ok(("admin door", Ok(()))))
        };
        let failed = first_failure(&stop, between).await;
        assert!(failed.is_none(), "{failed:?}");
        // The stop comes first.
        assert!(first_failure(&stop, ends(("admin door", Ok(())))).await.is_none());
        assert!(first_failure(&stop, std::future::pending()).await.is_none());
    }

    #[tokio::test]
    async fn a_door_that_ends_by_itself_is_told() {
        let stop = CancellationToken::new();
        let said = |failed: Option<RunError>| failed.map(|e| e.to_string()).unwrap_or_default();
        let failed = first_failure(&stop, ends(("admin door", Ok(())))).await;
        assert_eq!(said(failed), "admin door ended: exited unexpectedly");
        let failed = first_failure(&stop, ends(("peer door", Err("no descriptors".into())))).await;
        assert_eq!(said(failed), "peer door ended: no descriptors");
        let dies = tokio::spawn(async { panic!("on purpose") });
        let failed = first_failure(&stop, async { Some(dies.await) }).await;
        assert!(said(failed).starts_with("a door ended: "), "a panic is reported");
    }
}
