//! What a member refuses of others, asked over a real socket: whoever is behind the entry at which it was taken out
//! (QUARANTINE-Q4), calls that are meant for others, and a leader that is wrong about its log.

use crate::admitted::Admitted;
use crate::append_frames::Body;
use crate::append_receiver::serve;
use crate::append_tests::Teller;
use crate::consensus::Consensus;
use crate::group_tests::{GROUP, Host, LIMIT, listeners, propose};
use crate::node::RaftNode;
use crate::proto::{self, peer_client::PeerClient};
use crate::quarantine::{self, Quarantine, Stage};
use crate::readmit::ReadmitError;
use crate::snapshot_pieces::{checksum, pieces};
use crate::wire::{META_CLUSTER, META_TO};
use bytes::BytesMut;
use holdfast_log::CorruptRecord;
use holdfast_types::{GroupId, LogId, MemberId, Term};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tonic::transport::Channel;

const ME: MemberId = MemberId(1);

/// Member 1, which learns its group anew if it was taken out at `since`; member 9, which asks; and the way there.
struct Asked {
    host: Host,
    addresses: BTreeMap<MemberId, String>,
    asking: RaftNode,
    peer: PeerClient<Channel>,
}

impl Asked {
    async fn start(dir: &Path, since: Option<LogId>) -> anyhow::Result<Self> {
        let (mut listeners, addresses) = listeners(1).await?;
        let node = Host::node_under(dir, 1, Duration::ZERO)?;
        if let Some(since) = since {
            let (expected, found) = ("checksum 1".to_string(), "checksum 2".to_string());
            let record = CorruptRecord { file: "journal-1".to_string(), offset: 4096, expected, found };
            quarantine::save(node.snapshots_dir(), GROUP, &Quarantine { record, stage: Stage::Rejoining { since } })?;
        }
        let host = Host::with(node, listeners.remove(0)).await?;
        let asking = Host::node(dir, 9)?;
        let peer = PeerClient::new(asking.channels().get(ME, &addresses[&ME], false)?);
        Ok(Self { host, addresses, asking, peer })
    }

    fn request<T>(&self, message: T) -> tonic::Request<T> {
        self.asking.channels().request(message, GROUP, ME)
    }

    async fn end(self) {
        self.host.end().await;
        self.asking.stop().await;
    }
}

/// Why a call was refused; empty if it was not.
fn refusal<T>(answer: Result<T, tonic::Status>) -> String {
    answer.err().map_or(String::new(), |status| status.message().to_string())
}

fn vote(last: Option<(u64, u64)>, pre: bool) -> proto::VoteRequest {
    let vote = Some(proto::Vote { term: 9, member: 9, committed: false });
    let last = last.map(|(term, index)| proto::LogId { term, index });
    proto::VoteRequest { vote, last, pre, ..Default::default() }
}

fn append(term: u64) -> proto::AppendRequest {
    proto::AppendRequest { vote: Some(proto::Vote { term, member: 9, committed: true }), ..Default::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q4_who_is_behind_the_removal_gets_nothing_of_a_member_that_learns_anew() -> anyhow::Result<()> {
    let (dir, since) = (tempfile::tempdir()?, LogId::new(3, 77));
    let mut at = Asked::start(dir.path(), Some(since)).await?;
    for last in [None, Some((2, 500)), Some((3, 76))] {
        for pre in [true, false] {
            let request = at.request(vote(last, pre));
            let why = refusal(at.peer.vote(request).await);
            assert!(why.contains("QUARANTINE-Q4"), "a candidate that ends at {last:?}: {why:?}");
        }
    }
    let request = at.request(append(2));
    let why = refusal(at.peer.append(request).await);
    assert!(why.contains("QUARANTINE-Q4"), "{why:?}");
    let mut teller = Teller::at(&at.addresses[&ME]).await?;
    let welcome = teller.opens(1, &at.request(())).await?;
    assert!(matches!(welcome, Some(Body::Welcome(_))), "{welcome:?}");
    let told = teller.appends(1, 1, &Teller::request(2, &[])).await?;
    let Some(Body::Refused(status)) = told else { anyhow::bail!("QUARANTINE-Q4: it is answered: {told:?}") };
    assert!(status.message().contains("QUARANTINE-Q4"), "{status}");
    let snapshot = |term: u64, damage: u32| {
        let state = bytes::Bytes::from_static(b"state");
        let head = proto::SnapshotHead { vote: append(term).vote, length: state.len() as u64, ..Default::default() };
        let crc = checksum(&head, &state) ^ damage;
        pieces(proto::SnapshotHead { crc, ..head }, state)
    };
    let request = at.request(snapshot(2, 0));
    let why = refusal(at.peer.snapshot(request).await);
    assert!(why.contains("QUARANTINE-Q4"), "{why:?}");
    let status = at.host.group.status();
    assert_eq!((status.voted, status.last, at.host.list.len()), (Term(0), None, 0), "nothing was taken of them");

    // Whoever has the entry, or leads since, is not behind it.
    for last in [(3, 77), (4, 1)] {
        let request = at.request(vote(Some(last), true));
        assert_eq!(refusal(at.peer.vote(request).await), "", "a candidate that ends at {last:?}");
    }
    let request = at.request(snapshot(3, 1));
    let why = refusal(at.peer.snapshot(request).await);
    assert!(why.starts_with("snapshot: found checksum") && at.host.group.status().snapshot.is_none(), "{why:?}");
    let request = at.request(append(3));
    assert_eq!(refusal(at.peer.append(request).await), "");

    // It has been taken out: nothing more is asked of anybody, and nothing dropped.
    assert_eq!(at.host.node.readmit(GROUP, &at.addresses).await?, since);
    let other = at.host.node.readmit(GroupId(99), &at.addresses).await;
    assert!(matches!(other, Err(ReadmitError::NotDamaged { .. })), "{other:?}");
    at.end().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_is_meant_for_others_is_refused() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let mut at = Asked::start(dir.path(), None).await?;
    for (key, value, expected) in [
        (META_CLUSTER, "98", "cluster: found \"98\", expected"),
        (META_CLUSTER, "", "cluster: found \"\", expected"),
        (META_TO, "2", "receiver: found m2, expected m1"),
        (META_TO, "x", "metadata holdfast-to: found \"x\", expected a number"),
    ] {
        let mut request = at.request(vote(Some((9, 9)), false));
        request.metadata_mut().insert(key, value.parse()?);
        let why = refusal(at.peer.vote(request).await);
        assert!(why.starts_with(expected), "{key} {value:?}: {why:?}");
    }
    let request = at.asking.channels().request(vote(Some((9, 9)), false), GroupId(77), ME);
    let why = refusal(at.peer.vote(request).await);
    assert!(why.contains("is not here"), "{why:?}");
    assert_eq!(at.host.group.status().voted, Term(0), "it voted for a stranger");
    let request = at.request(vote(Some((9, 9)), true));
    assert_eq!(refusal(at.peer.vote(request).await), "", "the same, as it should be");
    at.end().await;
    Ok(())
}

/// R11 ends a process for ever where its log went backwards. A leader may be wrong about that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_has_what_it_acknowledged_goes_on() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let mut at = Asked::start(dir.path(), None).await?;
    at.host.group.initialize(&at.addresses).await?;
    for n in 1..=3 {
        assert_eq!(propose(std::slice::from_ref(&at.host), &format!("entry {n}")).await?, n);
    }
    let last = at.host.group.applied();
    assert_eq!(at.host.group.lacks(last), None);
    let lacks = |term: u64, index: u64| at.host.group.lacks(LogId::new(term, index)).unwrap_or_default();
    let found = lacks(last.term.0, last.index.0 + 1);
    assert_eq!(found, format!("{last} as the last"));
    let found = lacks(last.term.0 + 1, last.index.0);
    assert_eq!(found, format!("an entry of {} there", last.term));
    for index in [last.index.0 - 1, last.index.0] {
        let acknowledged = Some(proto::LogId { term: last.term.0, index });
        let request = at.request(proto::DeniedRequest { acknowledged });
        assert!(!at.peer.denied(request).await?.into_inner().gone, "entry {index} is there");
    }
    assert!(quarantine::load(at.host.node.snapshots_dir(), GROUP)?.is_none() && at.host.node.healing().is_empty());

    // What a snapshot covers is not lacking, whoever brought it.
    at.host.group.trigger_snapshot().await?;
    let purged = async {
        loop {
            if let Some(purged) = at.host.group.status().purged {
                return purged;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let purged = tokio::time::timeout(LIMIT, purged).await?;
    assert_eq!(at.host.group.lacks(LogId::new(purged.term.0 + 1, purged.index.0)), None);
    at.end().await;
    Ok(())
}

/// DOOR-D5: a door learns of a member once a stream of it has begun, and of nobody else; and who was refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_door_learns_who_is_a_member() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let at = Asked::start(dir.path(), None).await?;
    for (cluster, member) in [(Some("98"), false), (None, true)] {
        let mut call = at.request(());
        if let Some(cluster) = cluster {
            call.metadata_mut().insert(META_CLUSTER, cluster.parse()?);
        }
        let [known, refused] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let (tell, tell_refused) = (known.clone(), refused.clone());
        let (near, far) = tokio::io::duplex(1 << 16);
        let admitted = Admitted {
            connection: far,
            may_append: Ok(()),
            known: Box::new(move || tell.store(true, Ordering::SeqCst)),
            refused: Box::new(move || tell_refused.store(true, Ordering::SeqCst)),
        };
        let serving = tokio::spawn(serve(at.host.node.clone(), admitted, BytesMut::new()));
        let mut teller = Teller::on(Box::new(near));
        let welcome = matches!(teller.opens(1, &call).await?, Some(Body::Welcome(_)));
        assert_eq!((welcome, known.load(Ordering::SeqCst)), (member, member), "cluster {cluster:?}");
        drop(teller);
        serving.await?;
        assert_eq!(refused.load(Ordering::SeqCst), !member, "cluster {cluster:?}");
    }
    at.end().await;
    Ok(())
}
