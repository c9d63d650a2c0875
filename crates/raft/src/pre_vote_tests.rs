//! A member that was cut off comes back, over sockets that a test can cut.

use crate::config::RaftTiming;
use crate::consensus::Consensus;
use crate::group::RaftGroup;
use crate::group_tests::{Host, LIMIT, leader, listeners, propose, wait_len};
use crate::lives::Life;
use crate::proto;
use holdfast_types::MemberId;
use openraft::async_runtime::watch::WatchReceiver;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// After so many calls in vain of the member that is cut off: each one shows that one more of its election timeouts has
/// ended.
const CALLS: u32 = 4;

/// A connection to a member that a test can cut: open connections end, and new ones are refused and counted.
struct Way {
    addr: String,
    cut: watch::Sender<bool>,
    turned_away: watch::Receiver<u32>,
}

impl Way {
    async fn to(member: &str, cut: bool) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let (addr, member) = (listener.local_addr()?.to_string(), member.to_string());
        let (cut, state) = watch::channel(cut);
        let (count, turned_away) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let (mut state, member) = (state.clone(), member.clone());
                if *state.borrow_and_update() {
                    count.send_modify(|n| *n += 1);
                    continue;
                }
                tokio::spawn(async move {
                    let Ok(mut far) = TcpStream::connect(&member).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        // The same when the test is over.
                        _ = state.changed() => {}
                    }
                });
            }
        });
        Ok(Self { addr, cut, turned_away })
    }

    async fn turns_away(&self, calls: u32) -> anyhow::Result<()> {
        let mut turned_away = self.turned_away.clone();
        tokio::time::timeout(LIMIT, turned_away.wait_for(|n| *n >= calls)).await??;
        Ok(())
    }
}

/// The term of a member, and the leader that it follows.
fn vote(group: &RaftGroup) -> proto::Vote {
    proto::Vote::from(&group.raft().metrics().borrow_watched().vote)
}

/// Members 1 and 2 keep a leader for minutes, and stand for no election by themselves: only member 3 can depose a
/// leader here.
fn timing(member: u64) -> RaftTiming {
    let election_min = if member == 3 { Duration::from_millis(300) } else { Duration::from_secs(60) };
    let heartbeat = Duration::from_millis(100);
    let (election_max, read_lease) = (election_min * 2, election_min);
    RaftTiming { heartbeat, election_min, election_max, read_lease, embargo: Duration::ZERO }
}

/// R3: a setting is changed one gateway after the other, and the leader is the first to have the longer lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_reads_no_longer_than_its_followers_promise() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (listeners, addresses) = listeners(2).await?;
    // It votes, but does not stand for election itself.
    let short = RaftTiming { read_lease: Duration::from_millis(100), ..timing(1) };
    let long = RaftTiming { read_lease: Duration::from_secs(2), ..timing(3) };
    let mut hosts = Vec::new();
    for ((listener, times), member) in listeners.into_iter().zip([long, short]).zip(1..) {
        let life = Life { disk: u128::from(member), boot: 1, nonce: 1 };
        hosts.push(Host::with(Host::node_with(dir.path(), member, times, life)?, listener).await?);
    }
    hosts[0].group.initialize(&addresses).await?;
    assert_eq!(propose(&hosts, "one").await?, 1);
    assert_eq!(leader(&hosts).await?, 0);
    let counted = async {
        loop {
            if let Some((_, acked)) = hosts[0].group.quorum_promised() {
                return acked.until.saturating_since(acked.sent);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let reads_for = tokio::time::timeout(LIMIT, counted).await?;
    assert_eq!(reads_for, Duration::from_millis(100), "R3: its own settings would allow 2 s");
    for host in &hosts {
        let unequal = host.node.unequal_times();
        assert!(unequal.len() == 1 && unequal[0].contains("rtt_ms"), "{unequal:?}");
    }
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r8_a_member_that_was_cut_off_comes_back_and_deposes_nobody() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (listeners, real) = listeners(3).await?;
    let (mut hosts, mut ways, mut addresses) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for (listener, (member, addr)) in listeners.into_iter().zip(&real) {
        let way = Way::to(addr, false).await?;
        addresses.insert(*member, way.addr.clone());
        ways.insert(*member, way);
        let life = Life { disk: u128::from(member.0), boot: 1, nonce: 1 };
        let node = Host::node_with(dir.path(), member.0, timing(member.0), life)?;
        hosts.push(Host::with(node, listener).await?);
    }
    hosts[0].group.initialize(&addresses).await?;
    hosts[0].group.stand_for_election().await?;
    assert_eq!(propose(&hosts, "before").await?, 1);
    for host in &hosts {
        wait_len(&host.list, 1).await?;
    }
    assert_eq!(leader(&hosts).await?, 0);
    let led = vote(&hosts[0].group);

    // Cut off in both directions: its own calls use other connections than the calls of the others.
    let lost = hosts.remove(2);
    let mut out = Vec::new();
    for (member, addr) in real.iter().take(2) {
        let way = Way::to(addr, true).await?;
        lost.node.set_address(*member, &way.addr);
        out.push(way);
    }
    ways[&MemberId(3)].cut.send_replace(true);
    // Each call asks for a vote: a follower sends nothing else.
    out[0].turns_away(CALLS).await?;
    assert_eq!(vote(&lost.group), led, "it has heard nobody, and its term is another one");
    assert_eq!(propose(&hosts, "without it").await?, 2);

    for way in out.iter().chain([&ways[&MemberId(3)]]) {
        way.cut.send_replace(false);
    }
    wait_len(&lost.list, 2).await?;
    hosts.push(lost);
    assert_eq!(propose(&hosts, "with it").await?, 3);
    for host in &hosts {
        wait_len(&host.list, 3).await?;
        assert_eq!(vote(&host.group), led, "{}: the leader was deposed", host.node.member());
    }
    for host in hosts {
        host.end().await;
    }
    Ok(())
}
