//! Heartbeats of several groups that travel together, over real sockets (ADR 0059).

use crate::config::RaftTiming;
use crate::consensus::Consensus;
use crate::group::RaftGroup;
use crate::group_tests::{GROUP, Host, LIMIT, List, listeners};
use crate::lives::Life;
use holdfast_types::GroupId;
use std::sync::Arc;
use std::time::Duration;

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
