//! A group whose times get shorter and longer while it runs (ADR 0058), over real sockets.

use crate::config::{RaftTiming, TypeConfig};
use crate::consensus::Consensus;
use crate::group_tests::{Host, LIMIT, leader, listeners, propose, wait_len};
use crate::lives::Life;
use crate::wire::make_vote;
use openraft::network::{RPCOption, RaftNetworkV2};
use openraft::raft::VoteRequest;
use std::time::{Duration, Instant};

/// Times from a shortest election timeout.
fn times(election_min: Duration) -> RaftTiming {
    let election_max = election_min * 2;
    RaftTiming {
        heartbeat: election_min / 3,
        election_min,
        election_max,
        read_lease: election_max * 4 / 5,
        embargo: Duration::ZERO,
    }
}

/// openraft's: a lease of 5 s, and an election 7.5 to 10 s after the last heartbeat.
const LONG: Duration = Duration::from_millis(2500);
const SHORT: Duration = Duration::from_millis(300);

async fn three(dir: &std::path::Path) -> anyhow::Result<Vec<Host>> {
    let (listeners, addresses) = listeners(3).await?;
    let mut hosts = Vec::new();
    for (listener, member) in listeners.into_iter().zip(1..) {
        let life = Life { disk: u128::from(member), boot: 1, nonce: 1 };
        hosts.push(Host::with(Host::node_with(dir, member, times(LONG), life)?, listener).await?);
    }
    for host in &hosts {
        host.group.initialize(&addresses).await?;
    }
    hosts[0].group.stand_for_election().await?;
    propose(&hosts, "begun").await?;
    for host in &hosts {
        wait_len(&host.list, 1).await?;
    }
    Ok(hosts)
}

/// Waits until `what` holds.
async fn until(mut what: impl FnMut() -> bool) -> anyhow::Result<()> {
    let held = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    Ok(tokio::time::timeout(LIMIT, held).await?)
}

fn reads_for(host: &Host) -> Option<Duration> {
    let until = host.group.quorum_promised().map(|(_, acked)| acked.until)?;
    Some(until.saturating_since(crate::boot_now()))
}

fn promised_for(host: &Host) -> Duration {
    host.group.pacing().left(crate::clock::promise_now()).unwrap_or_default()
}

/// The candidate that everybody would elect, but for what they have promised.
fn candidate() -> VoteRequest<TypeConfig> {
    let last = crate::wire::id_to_raft(holdfast_types::LogId::new(50, 1000));
    VoteRequest { vote: make_vote(100, 3, false), last_log_id: Some(last), leadership_transfer: false }
}

/// PLEDGE-P1, PLEDGE-P3, PACER-E1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_with_shorter_times_elects_sooner_but_not_before_earlier_promises_end() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let mut hosts = three(dir.path()).await?;
    let at = leader(&hosts).await?;
    until(|| reads_for(&hosts[at]).is_some_and(|left| left > times(SHORT).read_lease * 2)).await?;

    for host in &hosts {
        host.group.set_times(times(SHORT));
    }
    // A quorum's promises under the longer times are in force, whatever the times are now.
    let bound: Vec<&Host> = hosts.iter().filter(|host| promised_for(host) > times(SHORT).election_max).collect();
    assert!(!bound.is_empty(), "nobody had promised anything");
    for host in bound {
        assert!(!host.group.pre_vote(candidate()).await?.vote_granted, "R3: bound for {:?}", promised_for(host));
        assert!(!host.group.vote(candidate()).await?.vote_granted, "R3: bound for {:?}", promised_for(host));
    }
    // From now on answers promise less, and heartbeats come often enough for that.
    until(|| reads_for(&hosts[at]).is_some_and(|left| !left.is_zero() && left <= times(SHORT).read_lease)).await?;
    until(|| hosts.iter().all(|host| promised_for(host) <= times(SHORT).election_max)).await?;

    hosts.remove(at).end().await;
    let begun = Instant::now();
    leader(&hosts).await?;
    let took = begun.elapsed();
    assert!(took < LONG * 2, "{took:?}: openraft alone needs {:?} and more", LONG * 3);
    assert_eq!(propose(&hosts, "elected").await?, 2);
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// PACER-E1: a vote that was kept back has ended openraft's own lease, so openraft would grant the next one although
/// the promise is in force.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_voter_that_kept_a_vote_back_is_bound_also_under_openrafts_times() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let hosts = three(dir.path()).await?;
    let voter = &hosts[(leader(&hosts).await? + 1) % hosts.len()];
    until(|| promised_for(voter) > LONG).await?;
    voter.group.set_times(times(SHORT));
    // What openraft does if a leader is heard between the two looks.
    let cast = VoteRequest { vote: make_vote(100, 9, false), leadership_transfer: true, ..candidate() };
    let was_cast = voter.group.raft().vote(cast).await.map_err(crate::appender::fatal)?.vote_granted;
    assert!(was_cast);
    voter.group.set_times(times(LONG));
    let next = || VoteRequest { vote: make_vote(101, 9, false), ..candidate() };
    let would = voter.group.pre_vote(next()).await?.vote_granted;
    let does = voter.group.vote(next()).await?.vote_granted;
    assert!(!would && !does, "R3: bound for {:?}: {would}, {does}", promised_for(voter));
    assert!(promised_for(voter) > SHORT, "the promise was over by itself");
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// Longer times again: a leader may read for longer only once its voters have answered under them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn longer_times_count_once_the_voters_answer_under_them() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let hosts = three(dir.path()).await?;
    let at = leader(&hosts).await?;
    hosts.iter().for_each(|host| host.group.set_times(times(SHORT)));
    until(|| reads_for(&hosts[at]).is_some_and(|left| !left.is_zero() && left <= times(SHORT).read_lease)).await?;
    hosts[at].group.set_times(times(LONG));
    for _ in 0..100 {
        let left = reads_for(&hosts[at]);
        assert!(
            left.is_some_and(|left| left <= times(SHORT).read_lease),
            "its voters have not promised that: {left:?}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    hosts.iter().for_each(|host| host.group.set_times(times(LONG)));
    until(|| reads_for(&hosts[at]).is_some_and(|left| left > times(SHORT).read_lease * 2)).await?;
    assert_eq!(leader(&hosts).await?, at, "nobody stood for election meanwhile");
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// PACER-E2: openraft came to its decision before a leader was heard, so its vote for itself must count for nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_candidate_that_has_promised_something_meanwhile_asks_nobody() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let hosts = three(dir.path()).await?;
    let at = leader(&hosts).await?;
    let stands = (at + 1) % hosts.len();
    let leads = hosts[at].node.member();
    let seen = hosts[stands].group.status().members.into_iter().find(|seen| seen.member == leads);
    let addr = seen.map(|seen| seen.addr).unwrap_or_default();
    let mut client = hosts[stands].group.parts.network.client(leads, addr);
    until(|| promised_for(&hosts[stands]) > LONG).await?;
    let answer = client.vote(candidate(), RPCOption::new(LIMIT)).await;
    assert!(answer.as_ref().is_err_and(|why| why.to_string().contains("a leader was heard")), "{answer:?}");
    for host in hosts {
        host.end().await;
    }
    Ok(())
}
