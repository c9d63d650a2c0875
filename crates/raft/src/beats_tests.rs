//! Heartbeats of several groups that travel together, over real sockets (ADR 0059).

use crate::beat_carrier::Carrier;
use crate::clock::boot_now;
use crate::config::RaftTiming;
use crate::consensus::Consensus;
use crate::group::RaftGroup;
use crate::group_tests::{GROUP, Host, LIMIT, List, listeners};
use crate::lives::{KnownLife, Life};
use crate::node::RaftNode;
use crate::proto::{self, beat_reply::Result as Said, peer_client::PeerClient};
use bytes::Bytes;
use holdfast_log::Entry;
use holdfast_types::{GroupId, LogId, MemberId};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Request};

/// So many that some come up in the same moment, whatever their phases are: with one each 120 ms, and 10 ms to wait.
const MORE: u64 = 15;

/// Member 2 stands for no election by itself while this test runs.
fn times(member: u64) -> RaftTiming {
    let patient =
        RaftTiming { election_min: Duration::from_secs(60), election_max: Duration::from_secs(120), ..short() };
    RaftTiming { read_lease: Duration::from_secs(96), ..if member == 2 { patient } else { short() } }
}

fn short() -> RaftTiming {
    Host::timing(Duration::ZERO)
}

async fn until(mut what: impl FnMut() -> bool) -> anyhow::Result<()> {
    let held = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    Ok(tokio::time::timeout(LIMIT, held).await?)
}

fn reads_for(group: &RaftGroup) -> Option<Duration> {
    let (_, acked) = group.quorum_promised()?;
    Some(acked.until.saturating_since(acked.sent))
}

/// PLEDGE-P2: each group gets its own answer, with its own promise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_several_heartbeats_gets_the_answer_of_its_own_group() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (listeners, addresses) = listeners(2).await?;
    let (mut hosts, mut groups) = (Vec::new(), Vec::new());
    for (listener, member) in listeners.into_iter().zip(1..) {
        let life = Life { disk: u128::from(member), boot: 1, nonce: 1 };
        let host = Host::with(Host::node_with(dir.path(), member, times(member), life)?, listener).await?;
        let mut here = vec![host.group.clone()];
        for number in 1..=MORE {
            let id = GroupId(GROUP.0 + number);
            here.push(host.node.start_local(id, Arc::new(List::default()), None).await?);
        }
        hosts.push(host);
        groups.push(here);
    }
    for group in &groups[0] {
        group.initialize(&addresses).await?;
        group.stand_for_election().await?;
    }
    until(|| groups[0].iter().all(|group| reads_for(group).is_some())).await?;
    // Only the last group of the follower has shorter times.
    let (last, others) = groups[1].split_last().ok_or_else(|| anyhow::anyhow!("no groups"))?;
    last.set_times(short());
    let (last_led, others_led) = groups[0].split_last().ok_or_else(|| anyhow::anyhow!("no groups"))?;
    until(|| reads_for(last_led) == Some(short().read_lease)).await?;
    let (calls, beats) = hosts[0].node.beats();
    until(|| hosts[0].node.beats().0 >= calls + 20).await?;
    let (more_calls, more_beats) = hosts[0].node.beats();
    assert!(more_beats - beats > more_calls - calls, "{} in {} calls", more_beats - beats, more_calls - calls);
    assert_eq!(reads_for(last_led), Some(short().read_lease));
    for group in others_led {
        assert_eq!(reads_for(group), Some(times(2).read_lease), "{}", group.id());
    }
    assert_eq!(others.len(), others_led.len());
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

const ME: MemberId = MemberId(1);
const OTHER: GroupId = GroupId(GROUP.0 + 1);

/// Member 1 with two groups, and member 9, which asks it.
async fn asked(dir: &Path) -> anyhow::Result<(Host, RaftNode, String)> {
    let (mut listeners, addresses) = listeners(1).await?;
    let host = Host::with(Host::node_under(dir, 1, Duration::ZERO)?, listeners.remove(0)).await?;
    host.node.start_local(OTHER, Arc::new(List::default()), None).await?;
    Ok((host, Host::node(dir, 9)?, addresses[&ME].clone()))
}

/// Of the leader 9.
fn heartbeat() -> proto::AppendRequest {
    let vote = proto::Vote { term: 3, member: 9, committed: true };
    proto::AppendRequest { vote: Some(vote), prev: None, entries: Vec::new(), commit: None }
}

fn beat(group: GroupId) -> proto::Beat {
    proto::Beat { group: group.0, append: Some(heartbeat()) }
}

fn both(asking: &RaftNode) -> Request<proto::BeatsRequest> {
    asking.channels().request(proto::BeatsRequest { beats: vec![beat(GROUP), beat(OTHER)] }, GROUP, ME)
}

/// The place and the result of the next answer.
async fn next(answers: &mut tonic::Streaming<proto::BeatReply>) -> anyhow::Result<Option<(u32, Option<Said>)>> {
    let reply = tokio::time::timeout(LIMIT, answers.message()).await??;
    Ok(reply.map(|reply| (reply.place, reply.result)))
}

/// R3: otherwise a group with much to sync takes the read leases of all others with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_waits_for_its_disk_holds_no_other_back() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (host, asking, addr) = asked(dir.path()).await?;
    let channel = asking.channels().get(ME, &addr, false).map_err(|e| anyhow::anyhow!("{e}"))?;
    let mut peer = PeerClient::new(channel);
    // Both have written the vote.
    let mut answers = tokio::time::timeout(LIMIT, peer.beats(both(&asking))).await??.into_inner();
    for _ in 0..2 {
        let answer = next(&mut answers).await?;
        assert!(matches!(answer, Some((_, Some(Said::Reply(_))))), "{answer:?}");
    }
    assert!(next(&mut answers).await?.is_none());
    // From here on nothing gets durable until the other end is dropped.
    let (stands, still) = tokio::sync::oneshot::channel();
    let (go_on, held) = std::sync::mpsc::channel::<()>();
    let slow = Entry { id: LogId::new(1, 0), payload: Bytes::from_static(b"slow") };
    host.node.log().group(GroupId(77)).append(vec![slow], move |_| {
        let _ = stands.send(());
        let _ = held.recv();
    });
    still.await?;
    let entry = proto::Entry { id: Some(proto::LogId { term: 3, index: 0 }), payload: Bytes::from_static(b"zero") };
    let append = proto::AppendRequest { entries: vec![entry], ..heartbeat() };
    let (mut appends, request) = (peer.clone(), asking.channels().request(append, GROUP, ME));
    let appending = tokio::spawn(async move { appends.append(request).await });
    until(|| host.group.parts.log.state().last == Some(LogId::new(3, 0))).await?;
    let mut answers = tokio::time::timeout(LIMIT, peer.beats(both(&asking))).await??.into_inner();
    let first = next(&mut answers).await?;
    assert!(matches!(first, Some((1, Some(Said::Reply(_))))), "{first:?}");
    drop(go_on);
    let second = next(&mut answers).await?;
    assert!(matches!(second, Some((0, Some(Said::Reply(_))))), "{second:?}");
    assert!(next(&mut answers).await?.is_none());
    appending.await??;
    host.end().await;
    asking.stop().await;
    Ok(())
}

/// CLUSTER-C3: what answers is a life of the receiver's disk that the sender does not believe.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_that_another_life_answers_count_for_no_group() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (host, asking, addr) = asked(dir.path()).await?;
    for (nonce, refused) in [(7, Some(Code::PermissionDenied)), (1, None)] {
        asking.set_lives([(ME, KnownLife { disk: 1, boot: Some((1, nonce)) })].into(), MemberId(10), 1);
        let channels = asking.channels().clone();
        let waiting = [GROUP, OTHER].map(|group| channels.beats.put(ME, beat(group), boot_now()));
        assert_eq!([waiting[0].1, waiting[1].1], [true, false], "one carrier");
        Carrier { channels, group: GROUP, target: ME, addr: addr.clone(), limit: LIMIT }.run().await;
        for (answer, _) in waiting {
            assert_eq!(answer.await?.err().map(|why| why.code()), refused);
        }
    }
    host.end().await;
    asking.stop().await;
    Ok(())
}
