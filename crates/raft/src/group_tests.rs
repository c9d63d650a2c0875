//! Three nodes in one process, over real sockets and real journals.

use crate::admitted::Admitted;
use crate::append_door::Sorted;
use crate::config::RaftTiming;
use crate::consensus::{Consensus, ProposeError, Reply};
use crate::group::RaftGroup;
use crate::lives::Life;
use crate::machine::{StateMachine, Unfit};
use crate::node::{NodeConfig, RaftNode};
use crate::server::PeerService;
use bytes::Bytes;
use holdfast_log::{LogConfig, NodeLog};
use holdfast_tls::{Dialer, Role, Tls};
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId, MemberId};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::{Connected, TcpIncoming};

pub(crate) const GROUP: GroupId = GroupId(3);
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The reasons for which processes would have ended.
pub(crate) static ABORTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// The first bytes of a [`List`] of another build.
const OTHER_BUILD: &[u8] = b"HFSETST4";

/// Keeps every payload in order; answers with its number.
#[derive(Default)]
pub(crate) struct List {
    inner: Mutex<(Vec<Bytes>, LogId)>,
}

impl List {
    fn inner(&self) -> std::sync::MutexGuard<'_, (Vec<Bytes>, LogId)> {
        self.inner.locked()
    }

    pub(crate) fn all(&self) -> Vec<Bytes> {
        self.inner().0.clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.inner().0.len()
    }
}

impl StateMachine for List {
    fn apply(&self, id: LogId, payload: Bytes) -> Bytes {
        let mut inner = self.inner();
        inner.0.push(payload);
        inner.1 = id;
        Bytes::from(inner.0.len().to_le_bytes().to_vec())
    }

    fn observe(&self, id: LogId) {
        self.inner().1 = id;
    }

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        let inner = self.inner();
        let image: Vec<Vec<u8>> = inner.0.iter().map(|b| b.to_vec()).collect();
        postcard::to_stdvec(&image).ok().map(|bytes| (inner.1, Bytes::from(bytes)))
    }

    fn check(&self, _: LogId, data: &[u8]) -> Result<(), Unfit> {
        if data.starts_with(OTHER_BUILD) {
            return Err(Unfit::OtherBuild("found HFSETST4, expected HFSETST3".to_string()));
        }
        postcard::from_bytes::<Vec<Vec<u8>>>(data).map(drop).map_err(|e| Unfit::Damaged(e.to_string()))
    }

    fn install(&self, last: LogId, data: &[u8]) -> Result<(), Unfit> {
        self.check(last, data)?;
        let image: Vec<Vec<u8>> = postcard::from_bytes(data).map_err(|e| Unfit::Damaged(e.to_string()))?;
        *self.inner() = (image.into_iter().map(Bytes::from).collect(), last);
        Ok(())
    }
}

pub(crate) struct Host {
    pub(crate) node: RaftNode,
    pub(crate) group: Arc<RaftGroup>,
    pub(crate) list: Arc<List>,
    stop: CancellationToken,
}

impl Host {
    pub(crate) async fn start(dir: &Path, member: u64, listener: TcpListener) -> anyhow::Result<Self> {
        Self::with(Self::node(dir, member)?, listener).await
    }

    /// A node without its group.
    pub(crate) fn node(dir: &Path, member: u64) -> anyhow::Result<RaftNode> {
        Self::node_under(dir, member, Duration::from_millis(660))
    }

    /// The same with another vote embargo after its start.
    pub(crate) fn node_under(dir: &Path, member: u64, embargo: Duration) -> anyhow::Result<RaftNode> {
        Self::node_as(dir, member, embargo, Life { disk: u128::from(member), boot: 1, nonce: 1 })
    }

    pub(crate) fn timing(embargo: Duration) -> RaftTiming {
        RaftTiming {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(300),
            election_max: Duration::from_millis(600),
            read_lease: Duration::from_millis(480),
            embargo,
        }
    }

    /// The same as another process.
    pub(crate) fn node_as(dir: &Path, member: u64, embargo: Duration, life: Life) -> anyhow::Result<RaftNode> {
        Self::node_with(dir, member, Self::timing(embargo), life)
    }

    /// The same with other times.
    pub(crate) fn node_with(dir: &Path, member: u64, timing: RaftTiming, life: Life) -> anyhow::Result<RaftNode> {
        Self::node_dialling(dir, member, timing, life, Dialer::plaintext())
    }

    /// The same with another way to its peers.
    pub(crate) fn node_dialling(
        dir: &Path,
        member: u64,
        timing: RaftTiming,
        life: Life,
        dialer: Dialer,
    ) -> anyhow::Result<RaftNode> {
        let config = LogConfig {
            file_bytes: 16 << 20,
            reserve_bytes: 64 << 20,
            bound_bytes: 256 << 20,
            ..LogConfig::new(dir.join(format!("journal-{member}")))
        };
        let (log, _) = NodeLog::open(config)?;
        let snapshots = dir.join(format!("raft-{member}"));
        let abort = |why: &str| ABORTED.locked().push(why.to_string());
        let config = NodeConfig {
            member: MemberId(member),
            cluster: 99,
            snapshots,
            sealing: None,
            timing,
            dialer,
            lineage: life.into(),
            protocol: crate::PROTOCOL,
            abort,
        };
        Ok(RaftNode::new(config, log)?)
    }

    /// Starts the group of `node` and serves it.
    pub(crate) async fn with(node: RaftNode, listener: TcpListener) -> anyhow::Result<Self> {
        Self::behind(node, listener, None).await
    }

    /// The same behind a door with TLS, for gateways.
    pub(crate) async fn behind(node: RaftNode, listener: TcpListener, tls: Option<Tls>) -> anyhow::Result<Self> {
        let list = Arc::new(List::default());
        let group = node.start_local(GROUP, list.clone(), None).await?;
        let stop = CancellationToken::new();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        match tls {
            None => {
                let plain = |connection| std::future::ready(Ok(Admitted::new(connection, Ok(()))));
                serve(node.service(), node.sorted(incoming, plain), stop.clone());
            }
            Some(tls) => {
                let acceptor = tls.acceptor();
                let open = move |connection: TcpStream| {
                    let acceptor = acceptor.clone();
                    async move {
                        let connection = acceptor.accept(connection).await?;
                        let may_append = holdfast_tls::admits(&connection, &[Role::Gateway]).map(drop);
                        Ok::<_, std::io::Error>(Admitted::new(connection, may_append))
                    }
                };
                serve(node.service(), node.sorted(incoming, open), stop.clone());
            }
        }
        Ok(Self { node, group, list, stop })
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.node.stop().await;
    }
}

fn serve<C>(service: PeerService, incoming: Sorted<C>, stop: CancellationToken)
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        let server = tonic::transport::Server::builder().add_service(service);
        // Open connections end too when it is stopped: peers must not continue to talk to a node that has stopped.
        let _ = server.serve_with_incoming_shutdown(incoming, stop.cancelled_owned()).await;
    });
}

pub(crate) async fn listeners(n: usize) -> anyhow::Result<(Vec<TcpListener>, BTreeMap<MemberId, String>)> {
    let mut all = Vec::new();
    let mut addresses = BTreeMap::new();
    for i in 0..n {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        addresses.insert(MemberId(i as u64 + 1), listener.local_addr()?.to_string());
        all.push(listener);
    }
    Ok((all, addresses))
}

/// Three hosts below `dir`, all of them voters of the group, and their addresses.
pub(crate) async fn three(dir: &Path) -> anyhow::Result<(Vec<Host>, BTreeMap<MemberId, String>)> {
    let (listeners, addresses) = listeners(3).await?;
    let mut hosts = Vec::new();
    for (i, listener) in listeners.into_iter().enumerate() {
        hosts.push(Host::start(dir, i as u64 + 1, listener).await?);
    }
    for host in &hosts {
        host.group.initialize(&addresses).await?;
    }
    Ok((hosts, addresses))
}

/// The host that leads, once it is one of `hosts`: a follower may still name a dead leader for a while.
pub(crate) async fn leader(hosts: &[Host]) -> anyhow::Result<usize> {
    let place = |leader: Option<MemberId>| hosts.iter().position(|h| Some(h.node.member()) == leader);
    let mut leadership = hosts[0].group.leadership();
    let found = tokio::time::timeout(LIMIT, leadership.wait_for(|l| place(l.leader).is_some())).await??.leader;
    place(found).ok_or_else(|| anyhow::anyhow!("the leader {found:?} is not among the hosts"))
}

pub(crate) async fn propose(hosts: &[Host], text: &str) -> anyhow::Result<usize> {
    let begun = std::time::Instant::now();
    loop {
        let at = leader(hosts).await?;
        match hosts[at].group.propose(None, Bytes::from(text.to_string()), LIMIT).await {
            Ok(done) => return Ok(usize::from_le_bytes(done.answer.as_ref().try_into()?)),
            Err(ProposeError::NotLeader { .. }) if begun.elapsed() < LIMIT => {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(e) => {
                let views: Vec<_> = hosts.iter().map(|h| h.group.status()).collect();
                anyhow::bail!("proposal at {}: {e}; {views:#?}", hosts[at].node.member())
            }
        }
    }
}

pub(crate) async fn wait_len(list: &List, len: usize) -> anyhow::Result<()> {
    let all = async {
        while list.len() < len {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    Ok(tokio::time::timeout(LIMIT, all).await?)
}

/// Stops the writer of the journal: what is appended from now on is durable only after the returned sender was dropped.
pub(crate) async fn hold_journal(node: &RaftNode) -> anyhow::Result<std::sync::mpsc::Sender<()>> {
    let (stands, still) = tokio::sync::oneshot::channel();
    let (go_on, held) = std::sync::mpsc::channel::<()>();
    let entry = holdfast_log::Entry { id: LogId::new(1, 0), payload: Bytes::from_static(b"held") };
    node.log().group(GroupId(77)).append(vec![entry], move |_| {
        let _ = stands.send(());
        // Until the other end is dropped.
        let _ = held.recv();
    });
    tokio::time::timeout(LIMIT, still).await??;
    Ok(go_on)
}

/// Waits until `members` are the voters: newcomers learn first.
pub(crate) async fn members_become(group: &RaftGroup, members: &BTreeMap<MemberId, String>) -> anyhow::Result<()> {
    let seen = |id: &MemberId| group.status().members.into_iter().find(|m| m.member == *id);
    let newcomers: BTreeMap<MemberId, String> =
        members.iter().filter(|(id, _)| seen(id).is_none()).map(|(id, addr)| (*id, addr.clone())).collect();
    let now = || group.status().membership;
    if !newcomers.is_empty() {
        group.add_learners(&newcomers, now(), LIMIT).await?;
    }
    let close = || members.keys().all(|id| seen(id).is_some_and(|m| m.voter || m.matched.is_some()));
    let learnt = async {
        while !close() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, learnt).await?;
    Ok(group.change_voters(&members.keys().copied().collect(), now(), LIMIT).await?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_agree_survive_a_restart_and_refuse_bad_payloads() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut hosts, addresses) = three(dir.path()).await?;
    for n in 1..=50 {
        assert_eq!(propose(&hosts, &format!("entry {n}")).await?, n);
    }
    for host in &hosts {
        wait_len(&host.list, 50).await?;
        assert_eq!(host.list.all(), hosts[0].list.all());
    }
    let at = leader(&hosts).await?;
    let bad = hosts[at].group.submit(None, Bytes::from_static(&[0xF0]), Reply::new(drop)).await;
    assert!(matches!(bad, Err(ProposeError::BadPayload { .. })));
    let (term, acked) = hosts[at].group.quorum_acked().ok_or_else(|| anyhow::anyhow!("no quorum ack at the leader"))?;
    assert!(term.0 > 0 && acked <= crate::boot_now());
    // A conditional proposal in another term is refused before it is appended.
    let other = hosts[at].group.propose(Some(holdfast_types::Term(term.0 + 1)), Bytes::from_static(b"x"), LIMIT).await;
    assert!(matches!(other, Err(ProposeError::NotLeader { .. })), "{other:?}");
    assert_eq!(hosts[at].list.len(), 50);

    let member = hosts[at].node.member().0;
    let addr = addresses[&MemberId(member)].clone();
    hosts.remove(at).end().await;
    assert_eq!(propose(&hosts, "without the first leader").await?, 51);
    let listener = TcpListener::bind(&addr).await?;
    let back = Host::start(dir.path(), member, listener).await?;
    wait_len(&back.list, 51).await?;
    wait_len(&hosts[0].list, 51).await?;
    assert_eq!(back.list.all(), hosts[0].list.all());
    back.end().await;
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newcomer_gets_a_snapshot_of_what_was_purged() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut listeners, addresses) = listeners(2).await?;
    let second = listeners.remove(1);
    let first = Host::start(dir.path(), 1, listeners.remove(0)).await?;
    let alone: BTreeMap<_, _> = addresses.iter().take(1).map(|(k, v)| (*k, v.clone())).collect();
    first.group.initialize(&alone).await?;
    let hosts = [first];
    // More than one append between gateways can carry: a state comes in one message.
    let filler = "x".repeat(512 << 10);
    for n in 1..=20 {
        assert_eq!(propose(&hosts, &format!("entry {n} {filler}")).await?, n);
    }
    hosts[0].group.trigger_snapshot().await?;
    let purged = async {
        while hosts[0].group.status().purged.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, purged).await?;
    let newcomer = Host::start(dir.path(), 2, second).await?;
    members_become(&hosts[0].group, &addresses).await?;
    wait_len(&newcomer.list, 20).await?;
    assert_eq!(newcomer.list.all(), hosts[0].list.all());
    assert!(newcomer.group.status().snapshot.is_some(), "it came by snapshot");
    assert_eq!(propose(&hosts, "both").await?, 21);
    newcomer.end().await;
    let [first] = hosts;
    first.end().await;
    Ok(())
}

/// A crash right between a state snapshot and its purge: the next start purges, without a further snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_snapshot_covers_is_purged_at_the_next_start_where_a_crash_prevented_it() -> anyhow::Result<()> {
    use openraft::async_runtime::watch::WatchReceiver;
    let dir = tempfile::tempdir()?;
    let (mut listeners, addresses) = listeners(1).await?;
    let first = Host::start(dir.path(), 1, listeners.remove(0)).await?;
    first.group.initialize(&addresses).await?;
    let hosts = [first];
    for n in 1..=20 {
        assert_eq!(propose(&hosts, &format!("entry {n}")).await?, n);
    }
    let [first] = hosts;
    // The snapshot is durable, and nothing else has happened.
    let membership = first.group.raft().metrics().borrow_watched().membership_config.as_ref().clone();
    let (last, data) = first.list.snapshot().ok_or_else(|| anyhow::anyhow!("no snapshot"))?;
    let snapshot = crate::snapshot_file::StoredSnapshot::new(last, membership, data);
    assert_eq!(first.group.status().purged, None);
    first.end().await;
    crate::snapshot_file::save(&dir.path().join("raft-1"), GROUP, &snapshot, None)?;

    let listener = TcpListener::bind(&addresses[&MemberId(1)]).await?;
    let back = Host::start(dir.path(), 1, listener).await?;
    let purged = async {
        while back.group.status().purged != Some(last) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, purged).await?;
    let hosts = [back];
    assert_eq!(propose(&hosts, "after").await?, 21, "nothing is lost by it");
    let [back] = hosts;
    back.end().await;
    Ok(())
}

/// The same at a follower whose log ended below the leader's snapshot, with entries of a later term that were never
/// committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_above_a_tail_of_a_later_term_is_started_from() -> anyhow::Result<()> {
    use openraft::async_runtime::watch::WatchReceiver;
    let dir = tempfile::tempdir()?;
    let (mut listeners, addresses) = listeners(1).await?;
    let first = Host::start(dir.path(), 1, listeners.remove(0)).await?;
    first.group.initialize(&addresses).await?;
    let hosts = [first];
    assert_eq!(propose(&hosts, "before").await?, 1);
    let [first] = hosts;
    let membership = first.group.raft().metrics().borrow_watched().membership_config.as_ref().clone();
    let (last, data) = first.list.snapshot().ok_or_else(|| anyhow::anyhow!("no snapshot"))?;
    first.end().await;

    // Entries that a leader of a later term had sent here, and that were never committed.
    let node = Host::node(dir.path(), 1)?;
    let tail = LogId::new(last.term.0 + 1, last.index.0 + 1);
    let entry = holdfast_log::Entry { id: tail, payload: Bytes::from_static(b"tail") };
    let (tell, told) = tokio::sync::oneshot::channel();
    node.log().group(GROUP).append(vec![entry], move |done| drop(tell.send(done)));
    told.await??;
    node.stop().await;
    drop(node);
    let covered = LogId { term: last.term, index: holdfast_types::LogIndex(tail.index.0 + 20) };
    assert!(covered < tail, "{covered} {tail}");
    let snapshot = crate::snapshot_file::StoredSnapshot::new(covered, membership, data);
    crate::snapshot_file::save(&dir.path().join("raft-1"), GROUP, &snapshot, None)?;

    let listener = TcpListener::bind(&addresses[&MemberId(1)]).await?;
    let back = Host::start(dir.path(), 1, listener).await?;
    assert_eq!(back.group.status().purged, Some(covered));
    let hosts = [back];
    assert_eq!(propose(&hosts, "after").await?, 2, "behind what the snapshot has, not behind the tail");
    let [back] = hosts;
    back.end().await;
    Ok(())
}

/// After a rollback to an older build, this build finds the newer build's snapshot: it does not start the group, but it
/// does not report damage either. If two of three members reported damage, they would be down for ever, although
/// nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_another_build_is_no_damage() -> anyhow::Result<()> {
    use crate::node::NodeError;
    use crate::snapshot_file::{StoredSnapshot, save};
    let dir = tempfile::tempdir()?;
    let snapshots = dir.path().join("raft-1");
    const ROTTEN: &[u8] = &[0xff; 12];
    for (data, damaged) in [(OTHER_BUILD, false), (ROTTEN, true)] {
        let node = Host::node(dir.path(), 1)?;
        let membership = crate::wire::RaftStoredMembership::default();
        save(&snapshots, GROUP, &StoredSnapshot::new(LogId::new(2, 30), membership, Bytes::from_static(data)), None)?;
        let list = Arc::new(List::default());
        let refused = node.start_group(GROUP, list, None).await.err().ok_or_else(|| anyhow::anyhow!("it starts"))?;
        assert_eq!(matches!(refused, NodeError::Damaged { .. }), damaged, "{refused}");
        if !damaged {
            let text = refused.to_string();
            assert!(text.contains("another build wrote it") && text.contains("HFSETST4"), "{text}");
        }
        assert_eq!(snapshots.join(format!("group-{}.quarantine", GROUP.0)).exists(), damaged, "{refused}");
        assert_eq!(node.healing().len(), usize::from(damaged));
        node.stop().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_restarts_leads_only_in_a_new_term() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut listeners, addresses) = listeners(1).await?;
    let first = Host::start(dir.path(), 1, listeners.remove(0)).await?;
    first.group.initialize(&addresses).await?;
    let hosts = [first];
    assert_eq!(propose(&hosts, "before").await?, 1);
    let term = hosts[0].group.leading_term();
    let [first] = hosts;
    first.end().await;
    let listener = TcpListener::bind(&addresses[&MemberId(1)]).await?;
    let hosts = [Host::start(dir.path(), 1, listener).await?];
    assert_eq!(hosts[0].group.leading_term(), None, "it has forgotten what it served: the embargo, then an election");
    assert_eq!(propose(&hosts, "after").await?, 2);
    assert!(hosts[0].group.leading_term() > term, "R6: {:?} after {term:?}", hosts[0].group.leading_term());
    let [last] = hosts;
    last.end().await;
    Ok(())
}

/// The candidate may be the leader as soon as it has the answer. openraft reports only a little later that this member
/// no longer leads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vote_in_a_later_term_ends_leading_before_it_is_on_disk() -> anyhow::Result<()> {
    use openraft::storage::RaftLogStorage;
    let dir = tempfile::tempdir()?;
    let (mut listeners, addresses) = listeners(1).await?;
    let host = Host::start(dir.path(), 1, listeners.remove(0)).await?;
    host.group.initialize(&addresses).await?;
    let hosts = [host];
    assert_eq!(propose(&hosts, "before").await?, 1);
    let [host] = hosts;
    let parts = &host.group.parts;
    let term = host.group.leading_term().ok_or_else(|| anyhow::anyhow!("leads in no term"))?;
    let mut store = crate::log_store::LogStore::new(parts.log.clone(), parts.votes.clone());
    store.save_vote(&crate::wire::make_vote(term.0, 1, true)).await?;
    assert_eq!(host.group.leading_term(), Some(term), "a vote in its own term changes nothing");
    let vote = crate::wire::make_vote(term.0 + 1, 2, false);
    let mut saving = std::pin::pin!(store.save_vote(&vote));
    let _ = futures_util::poll!(&mut saving);
    assert!(host.group.raft().as_leader().is_ok(), "openraft says so itself now: nothing is tested");
    assert_eq!(host.group.leading_term(), None);
    assert_eq!(host.group.quorum_acked(), None);
    saving.await?;
    host.end().await;
    Ok(())
}

/// openraft keeps its last report, in which this member led: nobody must be sent to a member that cannot do anything
/// any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_has_stopped_leads_in_no_term() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut listeners, addresses) = listeners(1).await?;
    let host = Host::start(dir.path(), 1, listeners.remove(0)).await?;
    host.group.initialize(&addresses).await?;
    let hosts = [host];
    assert_eq!(propose(&hosts, "before").await?, 1);
    let [host] = hosts;
    assert!(host.group.leading_term().is_some());
    host.group.end().await;
    assert!(host.group.raft().as_leader().is_ok(), "openraft says so itself now: nothing is tested");
    assert_eq!(host.group.leading_term(), None);
    assert_eq!(host.group.quorum_acked(), None);
    let asked = host.group.propose(None, Bytes::from_static(b"after"), LIMIT).await;
    assert!(matches!(asked, Err(ProposeError::Stopped { .. })), "{asked:?}");
    host.end().await;
    Ok(())
}

/// R1: who is told may answer its client at once. R12: who is told nothing would wait for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_comes_once_the_entry_is_applied_and_also_from_a_group_that_has_stopped() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut listeners, addresses) = listeners(1).await?;
    let host = Host::start(dir.path(), 1, listeners.remove(0)).await?;
    host.group.initialize(&addresses).await?;
    let hosts = [host];
    assert_eq!(propose(&hosts, "before").await?, 1);
    let [host] = hosts;
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let reply = || {
        let (told, list) = (told.clone(), host.list.clone());
        Reply::new(move |outcome| drop(told.send((outcome, list.len()))))
    };
    host.group.submit(None, Bytes::from_static(b"one more"), reply()).await?;
    let first = tokio::time::timeout(LIMIT, heard.recv()).await?;
    assert!(matches!(first, Some((Ok(_), 2))), "{first:?}");
    host.group.end().await;
    let after = host.group.submit(None, Bytes::from_static(b"after"), reply()).await;
    assert!(matches!(after, Err(ProposeError::Stopped { .. })), "{after:?}");
    let second = tokio::time::timeout(LIMIT, heard.recv()).await?;
    assert!(matches!(second, Some((Err(ProposeError::Unknown { .. }), 2))), "{second:?}");
    host.end().await;
    Ok(())
}
