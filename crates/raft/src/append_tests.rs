//! Append streams over real sockets, and both of their sides against a script.

use crate::admitted::Admitted;
use crate::append_frames::{self as frames, Body, Frame, Outgoing, PREFACE, Received};
use crate::append_sender::{Begun, Wire};
use crate::config::{Payload, TypeConfig};
use crate::consensus::Consensus;
use crate::group_tests::{GROUP, Host, LIMIT, listeners, propose, three, wait_len};
use crate::lives::Life;
use crate::network::Network;
use crate::node::RaftNode;
use crate::rpc_error::Rpc;
use crate::wire::{META_CLUSTER, META_GROUP, META_TO, RaftEntryOf, RaftVote, id_to_raft};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use holdfast_log::Entry;
use holdfast_tls::make::{Wanted, certificates};
use holdfast_tls::{Connection, Dialer, Role, Tls, TlsFiles};
use holdfast_types::{GroupId, LogId, MemberId};
use openraft::EntryPayload;
use openraft::impls::BasicNode;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use std::future::poll_fn;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tonic::metadata::MetadataMap;

const ME: MemberId = MemberId(1);

type Request = AppendEntriesRequest<TypeConfig>;

/// A sender that says what it is told, frame by frame.
pub(crate) struct Teller {
    connection: Connection,
    received: Received,
    outgoing: Outgoing,
}

impl Teller {
    pub(crate) async fn at(addr: &str) -> anyhow::Result<Self> {
        Self::over(&Dialer::plaintext(), addr).await
    }

    async fn over(dialer: &Dialer, addr: &str) -> anyhow::Result<Self> {
        Ok(Self::on(dialer.stream(addr, LIMIT).await?))
    }

    pub(crate) fn on(connection: Connection) -> Self {
        let mut outgoing = Outgoing::default();
        outgoing.push(Bytes::from_static(PREFACE));
        Self { connection, received: Received::from_receiver(), outgoing }
    }

    /// Of the leader 9 in this term: the entries from index 0 on.
    pub(crate) fn request(term: u64, payloads: &[&'static str]) -> Request {
        Self::after(term, None, payloads)
    }

    /// The same from the entry after `prev` on, which is of this term too.
    pub(crate) fn after(term: u64, prev: Option<u64>, payloads: &[&'static str]) -> Request {
        let at = |index| id_to_raft(LogId::new(term, index));
        let entry = |(index, payload): (u64, &&'static str)| RaftEntryOf {
            log_id: at(index),
            payload: EntryPayload::Normal(Payload::new(Bytes::from_static(payload.as_bytes()))),
        };
        Request {
            vote: RaftVote::new_committed(term, 9),
            prev_log_id: prev.map(at),
            entries: (prev.map_or(0, |prev| prev + 1)..).zip(payloads).map(entry).collect(),
            leader_commit: None,
        }
    }

    /// Begins a stream; the answer to that.
    pub(crate) async fn opens(&mut self, stream: u32, call: &tonic::Request<()>) -> anyhow::Result<Option<Body>> {
        self.outgoing.push(frames::open(stream, call.metadata()));
        self.told().await
    }

    /// Sends a request; the answer to that.
    pub(crate) async fn appends(
        &mut self,
        stream: u32,
        number: u64,
        request: &Request,
    ) -> anyhow::Result<Option<Body>> {
        self.outgoing.append(stream, number, request)?;
        self.told().await
    }

    /// Writes what is to be written; the next frame, or `None` at the end of the connection.
    async fn told(&mut self) -> anyhow::Result<Option<Body>> {
        let told = async {
            poll_fn(|context| self.outgoing.poll_write(&mut self.connection, context)).await?;
            loop {
                if let Some(frame) = self.received.next()? {
                    return anyhow::Ok(Some(frame.body));
                }
                if self.connection.read_buf(self.received.room()).await? == 0 {
                    return Ok(None);
                }
            }
        };
        tokio::time::timeout(LIMIT, told).await?
    }
}

/// Member 1, and member 9, which asks it.
async fn asked(dir: &Path) -> anyhow::Result<(Host, RaftNode, String)> {
    let (mut listeners, addresses) = listeners(1).await?;
    let host = Host::with(Host::node_under(dir, 1, Duration::ZERO)?, listeners.remove(0)).await?;
    Ok((host, Host::node(dir, 9)?, addresses[&ME].clone()))
}

fn matched(told: Option<Body>) -> anyhow::Result<(u64, Option<LogId>)> {
    match told {
        Some(Body::Answer { number, result: Ok(id) }) => Ok((number, id.as_ref().map(crate::wire::id_from_raft))),
        other => anyhow::bail!("found {other:?}, expected an answer"),
    }
}

fn refused(told: Option<Body>) -> anyhow::Result<String> {
    match told {
        Some(Body::Refused(status)) => Ok(status.message().to_string()),
        other => anyhow::bail!("found {other:?}, expected a refusal"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_kept_and_answered_in_their_order() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (host, asking, addr) = asked(dir.path()).await?;
    let mut teller = Teller::at(&addr).await?;
    let call = asking.channels().request((), GROUP, ME);
    assert!(matches!(teller.opens(1, &call).await?, Some(Body::Welcome(_))));
    // Both at once.
    teller.outgoing.append(1, 1, &Teller::request(3, &["zero", "one"]))?;
    let second = teller.appends(1, 2, &Teller::after(3, Some(1), &["two"])).await?;
    assert_eq!(matched(second)?, (1, Some(LogId::new(3, 1))));
    assert_eq!(matched(teller.told().await?)?, (2, Some(LogId::new(3, 2))));
    let kept = host.group.parts.log.entries(0..9, usize::MAX).await?;
    let kept: Vec<&[u8]> = kept.iter().map(|entry| &entry.payload[..]).collect();
    assert_eq!(kept, [&b"zero"[..], b"one", b"two"]);

    // A conflict ends the stream, and nothing after it is answered. The connection carries another one.
    teller.outgoing.append(1, 3, &Teller::after(3, Some(7), &["eight"]))?;
    teller.outgoing.append(1, 4, &Teller::after(3, Some(2), &["three"]))?;
    let conflict = teller.told().await?;
    let Some(Body::Answer { number: 3, result: Err(StreamAppendError::Conflict(id)) }) = conflict else {
        anyhow::bail!("{conflict:?}");
    };
    assert_eq!(id, id_to_raft(LogId::new(3, 7)));
    assert!(matches!(teller.opens(2, &call).await?, Some(Body::Welcome(_))));
    assert_eq!(matched(teller.appends(2, 1, &Teller::after(3, Some(2), &["3"])).await?)?, (1, Some(LogId::new(3, 3))));
    let why = refused(teller.appends(2, 3, &Teller::after(3, Some(3), &[])).await?)?;
    assert_eq!(why, "append 3 of stream 2: expected the one after the last");
    assert!(teller.told().await?.is_none(), "the connection goes on");
    host.end().await;
    asking.stop().await;
    Ok(())
}

/// FRAME-F3.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_of_an_older_stream_comes_after_a_newer_one() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (host, asking, addr) = asked(dir.path()).await?;
    let call = asking.channels().request((), GROUP, ME);
    let (mut older, mut newer) = (Teller::at(&addr).await?, Teller::at(&addr).await?);
    assert!(matches!(older.opens(1, &call).await?, Some(Body::Welcome(_))));
    assert_eq!(matched(older.appends(1, 1, &Teller::request(3, &["zero"])).await?)?.0, 1);
    assert!(matches!(newer.opens(1, &call).await?, Some(Body::Welcome(_))));
    let why = refused(older.appends(1, 2, &Teller::after(3, Some(0), &["late"])).await?)?;
    assert_eq!(why, format!("a newer append stream of m9 has begun for {GROUP}"));
    assert_eq!(host.group.parts.log.state().last, Some(LogId::new(3, 0)), "it came late, and was taken");
    assert_eq!(matched(newer.appends(1, 1, &Teller::after(3, Some(0), &["one"])).await?)?.0, 1);
    host.end().await;
    asking.stop().await;
    Ok(())
}

/// FRAME-F3: streams that wait for the disk end too, and give their places back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_streams_that_wait_for_the_disk_the_newest_is_left() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (host, asking, addr) = asked(dir.path()).await?;
    let call = asking.channels().request((), GROUP, ME);
    let journal = host.node.log().group(GroupId(77));
    let entry = |index| Entry { id: LogId::new(1, index), payload: Bytes::from(vec![7; 1 << 20]) };
    let (stands, still) = tokio::sync::oneshot::channel();
    let (go_on, held) = std::sync::mpsc::channel::<()>();
    journal.append(vec![entry(0)], move |_| {
        let _ = stands.send(());
        // Until the other end is dropped.
        let _ = held.recv();
    });
    still.await?;
    journal.append((1..20).map(entry).collect(), |_| {});
    let mut tellers = Vec::new();
    for _ in 0..3 {
        let mut teller = Teller::at(&addr).await?;
        assert!(matches!(teller.opens(1, &call).await?, Some(Body::Welcome(_))));
        teller.outgoing.append(1, 1, &Teller::request(3, &["zero"]))?;
        poll_fn(|context| teller.outgoing.poll_write(&mut teller.connection, context)).await?;
        tellers.push(teller);
    }
    for older in &mut tellers[..2] {
        let why = refused(older.told().await?)?;
        assert_eq!(why, format!("a newer append stream of m9 has begun for {GROUP}"));
        assert!(older.told().await?.is_none(), "the connection goes on");
    }
    drop(go_on);
    assert_eq!(matched(tellers[2].told().await?)?, (1, Some(LogId::new(3, 0))));
    host.end().await;
    asking.stop().await;
    Ok(())
}

/// DOOR-D1: however many append connections there are, votes and heartbeats find a place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_connections_take_no_place_of_calls() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (host, asking, _) = asked(dir.path()).await?;
    let call = asking.channels().request((), GROUP, ME);
    let (door, accepted) = tokio::sync::mpsc::unbounded_channel::<DuplexStream>();
    let incoming = futures_util::stream::unfold(accepted, |mut accepted| async move {
        let connection = accepted.recv().await?;
        Some((Ok(connection), accepted))
    });
    let plain = |connection| std::future::ready(Ok(Admitted::new(connection, Ok(()))));
    let mut calls = host.node.sorted_with(incoming, plain, 1);
    let connect = || {
        let (near, far) = tokio::io::duplex(1 << 16);
        door.send(far).map(|()| near)
    };
    let mut first = Teller::on(Box::new(connect()?));
    assert!(matches!(first.opens(1, &call).await?, Some(Body::Welcome(_))));
    let more = Teller::on(Box::new(connect()?)).opens(1, &call).await;
    assert!(!matches!(more, Ok(Some(_))), "it has no place: {more:?}");
    let mut grpc = connect()?;
    grpc.write_all(b"PRI * HTTP/2.0\r\n\r\n").await?;
    let sorted = tokio::time::timeout(LIMIT, calls.next()).await?;
    assert!(matches!(sorted, Some(Ok(_))), "a call has no place");
    // A place comes back.
    drop(first);
    let again = async {
        while !matches!(Teller::on(Box::new(connect()?)).opens(1, &call).await, Ok(Some(Body::Welcome(_)))) {
            tokio::task::yield_now().await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(LIMIT, again).await??;
    drop(calls);
    host.end().await;
    asking.stop().await;
    Ok(())
}

/// FRAME-F4: a stream is checked as a call is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_meant_for_others_is_refused() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (host, asking, addr) = asked(dir.path()).await?;
    for (key, value, expected) in [
        (META_CLUSTER, "98", "cluster: found \"98\", expected"),
        (META_TO, "2", "receiver: found m2, expected m1"),
        (META_GROUP, "77", "group "),
        ("holdfast-protocol", "1-1", "peer protocol: the other gateway speaks versions 1-1"),
    ] {
        let mut call = asking.channels().request((), GROUP, ME);
        call.metadata_mut().insert(key, value.parse()?);
        let why = refused(Teller::at(&addr).await?.opens(1, &call).await?)?;
        assert!(why.starts_with(expected), "{key} {value:?}: {why:?}");
    }
    // A copy of a disk, or an earlier life.
    let known = crate::KnownLife { disk: 9, boot: Some((1, 7)) };
    host.node.set_lives([(MemberId(9), known)].into(), MemberId(10), 1);
    let why = refused(Teller::at(&addr).await?.opens(1, &asking.channels().request((), GROUP, ME)).await?)?;
    assert!(why.starts_with("m9 is not who it says"), "{why:?}");
    host.end().await;
    asking.stop().await;
    Ok(())
}

/// CLUSTER-C3: what answers is a life of the receiver's disk that the sender does not believe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_to_another_life_ends() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (host, asking, addr) = asked(dir.path()).await?;
    let parts = &host.group.parts;
    let mut network = Network {
        acks: parts.acks.clone(),
        log: asking.log().clone(),
        shared: parts.shared.clone(),
        group: GROUP,
        timing: asking.config().timing,
        pacing: parts.pacing.clone(),
        channels: asking.channels().clone(),
    };
    let mut client = network.new_client(ME.0, &BasicNode { addr }).await;
    for (nonce, believed) in [(7, false), (1, true)] {
        let known = crate::KnownLife { disk: 1, boot: Some((1, nonce)) };
        asking.set_lives([(ME, known)].into(), MemberId(10), 1);
        let input = futures_util::stream::iter(vec![Teller::request(3, &["zero"])]);
        match client.stream_append(input, RPCOption::new(LIMIT)).await {
            Ok(answers) => {
                let answers: Vec<_> = answers.collect().await;
                assert!(believed && matches!(&answers[..], [Ok(Ok(Some(_)))]), "{answers:?}");
            }
            Err(why) => assert!(!believed && why.to_string().contains("not who it says"), "{why}"),
        }
    }
    host.end().await;
    asking.stop().await;
    Ok(())
}

/// FRAME-F1: whoever sends something else is closed, and disturbs nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_ends_its_own_connection_only() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (hosts, addresses) = three(dir.path()).await?;
    assert_eq!(propose(&hosts, "before").await?, 1);
    let call = hosts[0].node.channels().request((), GROUP, ME);
    let open = frames::open(1, call.metadata());
    let huge = [&[2, 0, 0, 0][..], &u32::MAX.to_le_bytes(), &[1; 8]].concat();
    for garbage in [
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        b"HTTP".to_vec(),
        vec![0; 100],
        [&PREFACE[..], &[0xff; 200]].concat(),
        [&PREFACE[..], &open[..open.len() - 1], b"x"].concat(),
        [&PREFACE[..], &huge[..]].concat(),
        [&PREFACE[..], &open[..], &huge[..]].concat(),
        PREFACE[..7].to_vec(),
        [&PREFACE[..], &open[..20]].concat(),
    ] {
        for addr in addresses.values() {
            let mut connection = tokio::net::TcpStream::connect(addr).await?;
            connection.write_all(&garbage).await?;
            // Closed, or reset where it did not read everything.
            drop(connection.shutdown().await);
            let ended = tokio::time::timeout(LIMIT, connection.read_to_end(&mut Vec::new())).await;
            assert!(ended.is_ok(), "still open after {garbage:02x?}");
        }
    }
    for n in 2..=10 {
        assert_eq!(propose(&hosts, "after").await?, n);
    }
    for host in &hosts {
        wait_len(&host.list, 10).await?;
    }
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

fn tls(dir: &Path, name: &str, role: Role) -> anyhow::Result<Tls> {
    let at = |name: String| Some(dir.join(name));
    let files =
        TlsFiles { ca: at("ca.pem".into()), certificate: at(format!("{name}.pem")), key: at(format!("{name}.key")) };
    files.load(role)?.ok_or_else(|| anyhow::anyhow!("no files"))
}

/// R10, TLS-T3: the same certificates as for calls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_tls_only_gateways_of_the_cluster_append() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let keys = dir.path().join("keys");
    let wanted = [("g1", Role::Gateway), ("g2", Role::Gateway), ("db1", Role::Host)];
    certificates(&keys, &wanted.map(|(name, role)| Wanted::new(name, role)), 30)?;
    let (all, addresses) = listeners(2).await?;
    let mut hosts = Vec::new();
    for ((i, listener), name) in (1..).zip(all).zip(["g1", "g2"]) {
        let tls = tls(&keys, name, Role::Gateway)?;
        let (timing, life) = (Host::timing(Duration::ZERO), Life { disk: u128::from(i), boot: 1, nonce: 1 });
        let node = Host::node_dialling(dir.path(), i, timing, life, Dialer::from(&tls))?;
        hosts.push(Host::behind(node, listener, Some(tls)).await?);
    }
    for host in &hosts {
        host.group.initialize(&addresses).await?;
    }
    for n in 1..=20 {
        assert_eq!(propose(&hosts, &format!("entry {n}")).await?, n);
    }
    for host in &hosts {
        wait_len(&host.list, 20).await?;
    }
    let call = hosts[1].node.channels().request((), GROUP, ME);
    let of_a_host = Dialer::from(&tls(&keys, "db1", Role::Host)?);
    let why = refused(Teller::over(&of_a_host, &addresses[&ME]).await?.opens(1, &call).await?)?;
    assert_eq!(why, "found role host of certificate db1, expected one of gateway");
    let plain = Teller::at(&addresses[&ME]).await?.opens(1, &call).await;
    assert!(!matches!(plain, Ok(Some(_))), "plain text is answered: {plain:?}");
    let other = dir.path().join("other");
    certificates(&other, &[Wanted::new("g1", Role::Gateway)], 30)?;
    let stranger = Dialer::from(&tls(&other, "g1", Role::Gateway)?);
    assert!(stranger.stream(&addresses[&ME], LIMIT).await.is_err(), "another cluster's authority is trusted");
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// A receiver of appends that does as it is told.
struct Script {
    connection: DuplexStream,
    received: Received,
}

impl Script {
    /// It, and the sender's side of its connection.
    fn new() -> (Self, Wire) {
        let (near, far) = tokio::io::duplex(1 << 20);
        let wire = Wire::new(Box::new(near), "script".to_string());
        (Self { connection: far, received: Received::from_sender(BytesMut::new()) }, wire)
    }

    async fn says(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        Ok(self.connection.write_all(bytes).await?)
    }

    async fn answers(
        &mut self,
        stream: u32,
        number: u64,
        result: &StreamAppendResult<TypeConfig>,
    ) -> anyhow::Result<()> {
        let mut out = BytesMut::new();
        frames::answer(&mut out, stream, number, result);
        self.says(&out).await
    }

    async fn welcomes(&mut self, stream: u32) -> anyhow::Result<()> {
        self.says(&frames::welcome(stream, &MetadataMap::new())).await
    }

    /// The next frame.
    async fn hears(&mut self) -> anyhow::Result<Frame> {
        let heard = async {
            loop {
                if let Some(frame) = self.received.next()? {
                    return anyhow::Ok(frame);
                }
                anyhow::ensure!(self.connection.read_buf(self.received.room()).await? > 0, "closed by its sender");
            }
        };
        tokio::time::timeout(LIMIT, heard).await?
    }
}

/// All answers of a stream that sends `requests` after the first one.
async fn heard(
    begun: Begun,
    spare: &mut Option<Wire>,
    requests: Vec<Request>,
    stall: Duration,
) -> Vec<Result<String, String>> {
    let judge = |result: StreamAppendResult<TypeConfig>| -> Result<StreamAppendResult<TypeConfig>, Rpc> { Ok(result) };
    let session = begun.session(spare, futures_util::stream::iter(requests), judge, stall);
    let told = session.map(|answer| answer.map(|result| format!("{result:?}")).map_err(|e| e.to_string()));
    tokio::time::timeout(LIMIT, told.collect()).await.expect("it ends")
}

/// The script has taken a stream with one request.
async fn begun(script: &mut Script, wire: Wire, stream: u32) -> anyhow::Result<Begun> {
    script.welcomes(stream).await?;
    let begun = Begun::on(wire, &MetadataMap::new(), &Teller::request(3, &["zero"])).await;
    let (begun, _) = begun.map_err(|e| anyhow::anyhow!("{e}"))?;
    assert!(matches!(script.hears().await?, Frame { stream: of, body: Body::Open(_) } if of == stream));
    let first = script.hears().await?;
    assert!(matches!(first, Frame { stream: of, body: Body::Append { number: 1, .. } } if of == stream), "{first:?}");
    Ok(begun)
}

fn at(index: u64) -> StreamAppendResult<TypeConfig> {
    Ok(Some(id_to_raft(LogId::new(3, index))))
}

/// FRAME-F2: an answer of an earlier stream, to another request or to none acknowledges nothing.
#[tokio::test]
async fn an_answer_counts_for_the_request_that_it_answers() -> anyhow::Result<()> {
    for (stream, number) in [(2, 1), (0, 1), (1, 2), (1, 0)] {
        let ((mut script, wire), mut spare) = (Script::new(), None);
        let begun = begun(&mut script, wire, 1).await?;
        script.answers(stream, number, &at(0)).await?;
        let answers = heard(begun, &mut spare, vec![], LIMIT).await;
        let [Err(why)] = &answers[..] else { anyhow::bail!("{stream}, {number}: {answers:?}") };
        assert!(why.contains(&format!("an answer to request {number} of stream {stream}, expected one to 1")), "{why}");
        assert!(spare.is_none(), "the connection is used again");
    }
    Ok(())
}

/// A connection carries the next stream only if nothing is under way, and no answer passes from one to the next.
#[tokio::test]
async fn a_connection_is_used_again_after_a_stream_in_good_order() -> anyhow::Result<()> {
    let ((mut script, wire), mut spare) = (Script::new(), None);
    let first = begun(&mut script, wire, 1).await?;
    script.answers(1, 1, &at(0)).await?;
    script.answers(1, 2, &at(1)).await?;
    let answers = heard(first, &mut spare, vec![Teller::after(3, Some(0), &["one"])], LIMIT).await;
    assert!(answers.len() == 2 && answers.iter().all(Result::is_ok), "{answers:?}");
    assert!(matches!(script.hears().await?.body, Body::Append { number: 2, .. }));

    let second = begun(&mut script, spare.take().ok_or_else(|| anyhow::anyhow!("closed"))?, 2).await?;
    let conflict = Err(StreamAppendError::Conflict(id_to_raft(LogId::new(3, 0))));
    script.answers(2, 1, &conflict).await?;
    let answers = heard(second, &mut spare, vec![], LIMIT).await;
    assert!(answers.len() == 1 && answers[0].as_ref().is_ok_and(|text| text.contains("Conflict")), "{answers:?}");

    // A request is under way: its answer would come in the next stream.
    let kept = spare.take().ok_or_else(|| anyhow::anyhow!("closed"))?;
    let third = begun(&mut script, kept, 3).await?;
    script.answers(3, 1, &conflict).await?;
    let answers = heard(third, &mut spare, vec![Teller::after(3, Some(0), &["one"])], LIMIT).await;
    assert!(answers.len() == 1 && spare.is_none(), "{answers:?}");

    let ((mut script, wire), mut spare) = (Script::new(), None);
    let first = begun(&mut script, wire, 1).await?;
    script.answers(1, 1, &at(0)).await?;
    assert_eq!(heard(first, &mut spare, vec![], LIMIT).await.len(), 1);
    let mut kept = spare.take().ok_or_else(|| anyhow::anyhow!("closed"))?;
    assert!(kept.is_silent().await);
    script.answers(1, 2, &at(1)).await?;
    assert!(!kept.is_silent().await, "something came between two streams");
    Ok(())
}

/// R12: without an answer the outcome is not known, and that is no refusal.
#[tokio::test]
async fn a_broken_connection_leaves_requests_without_an_outcome() -> anyhow::Result<()> {
    let ((mut script, wire), mut spare) = (Script::new(), None);
    let first = begun(&mut script, wire, 1).await?;
    script.answers(1, 1, &at(0)).await?;
    let more = Vec::from([0, 1].map(|prev| Teller::after(3, Some(prev), &["more"])));
    let (answers, closed) = tokio::join!(heard(first, &mut spare, more, LIMIT), async {
        let (second, third) = (script.hears().await?, script.hears().await?);
        drop(script);
        anyhow::Ok((second, third))
    });
    closed?;
    assert!(answers.len() == 2 && answers[0].is_ok(), "{answers:?}");
    let why = answers[1].as_ref().expect_err("nobody answered");
    assert!(why.contains("closed by the peer with 2 requests without an answer"), "{why}");
    assert!(spare.is_none());

    // A peer that is there and does not answer.
    let (mut script, wire) = Script::new();
    let silent = begun(&mut script, wire, 1).await?;
    let answers = heard(silent, &mut spare, vec![], Duration::from_millis(20)).await;
    let [Err(why)] = &answers[..] else { anyhow::bail!("{answers:?}") };
    assert!(why.contains("append stream: no answer within 20ms"), "{why}");
    Ok(())
}

/// A refusal comes as what it is, before the stream has begun and later.
#[tokio::test]
async fn a_refusal_says_why() -> anyhow::Result<()> {
    let (mut script, wire) = Script::new();
    script.says(&frames::refused(0, &tonic::Status::not_found("group 3 is not here"))).await?;
    let refused = Begun::on(wire, &MetadataMap::new(), &Teller::request(3, &[])).await;
    let why = refused.err().ok_or_else(|| anyhow::anyhow!("it was welcome"))?;
    assert!(matches!(&why, openraft::errors::RPCError::Unreachable(_)), "openraft waits then: {why}");
    assert!(why.to_string().contains("group 3 is not here"), "{why}");
    // Also if the request cannot be written any more.
    let (mut script, wire) = Script::new();
    script.says(&frames::refused(0, &tonic::Status::not_found("group 3 is not here"))).await?;
    drop(script);
    let refused = Begun::on(wire, &MetadataMap::new(), &Teller::request(3, &[])).await;
    let why = refused.err().map(|why| why.to_string()).unwrap_or_default();
    assert!(why.contains("group 3 is not here"), "{why}");

    let ((mut script, wire), mut spare) = (Script::new(), None);
    let first = begun(&mut script, wire, 1).await?;
    script.says(&frames::refused(1, &tonic::Status::aborted("a newer stream"))).await?;
    let answers = heard(first, &mut spare, vec![], LIMIT).await;
    let [Err(why)] = &answers[..] else { anyhow::bail!("{answers:?}") };
    assert!(why.contains("a newer stream") && spare.is_none(), "{why}");
    Ok(())
}
