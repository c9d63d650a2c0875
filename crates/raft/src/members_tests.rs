//! Members that stand aside, and members that were removed, over real sockets.

use crate::group_tests::{Host, LIMIT, leader, members_become, propose, three, wait_len};
use crate::lives::{KnownLife, Life};
use holdfast_types::MemberId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::net::TcpListener;

/// A host as `Host::start` makes it.
fn life(member: u64) -> (MemberId, KnownLife) {
    (MemberId(member), KnownLife { disk: u128::from(member), boot: Some((1, 1)) })
}

/// MEMBER-M4: each time the leader dies, the one of the other two that stands aside does not become leader, although it
/// may be the first to notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_stands_aside_is_not_elected_while_another_can_be() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut hosts, addresses) = three(dir.path()).await?;
    for round in 0..4 {
        let entries = propose(&hosts, &format!("round {round}")).await?;
        // While all of them run, either could be elected.
        for host in &hosts {
            wait_len(&host.list, entries).await?;
        }
        let at = leader(&hosts).await?;
        let old = hosts.remove(at);
        let member = old.node.member();
        hosts[0].group.stand_aside(true);
        let aside = hosts[0].node.member();
        old.end().await;
        let next = leader(&hosts).await?;
        assert_ne!(hosts[next].node.member(), aside, "round {round}");
        propose(&hosts, "served on").await?;
        hosts[0].group.stand_aside(false);
        let listener = TcpListener::bind(&addresses[&member]).await?;
        hosts.push(Host::start(dir.path(), member.0, listener).await?);
    }
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// A removed member that does not know of its removal is refused with its name by each of the others, and they
/// continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_member_that_runs_on_disturbs_nobody() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut hosts, addresses) = three(dir.path()).await?;
    propose(&hosts, "before").await?;
    let at = leader(&hosts).await?;
    let gone = hosts.remove(if at == 0 { 1 } else { 0 });
    let removed = gone.node.member();
    let rest: BTreeMap<MemberId, String> =
        addresses.iter().filter(|(id, _)| **id != removed).map(|(id, addr)| (*id, addr.clone())).collect();
    let at = leader(&hosts).await?;
    members_become(&hosts[at].group, &rest).await?;
    let left: BTreeSet<MemberId> = rest.keys().copied().collect();
    for host in &hosts {
        let known = [1, 2, 3].map(life).into_iter().filter(|(id, _)| left.contains(id)).collect();
        host.node.set_lives(known, MemberId(4), 1);
    }
    // It hears from no leader any more and asks for votes.
    let silent = async {
        while gone.group.unheard() < Duration::from_millis(2500) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(LIMIT, silent).await?;
    propose(&hosts, "after").await?;
    for (to, addr) in &rest {
        let channel = gone.node.channels().get(*to, addr, false)?;
        let ask = gone.node.channels().request(Default::default(), gone.group.id(), *to);
        let status = crate::proto::peer_client::PeerClient::new(channel).vote(ask).await;
        let why = status.expect_err("a vote for a removed member").message().to_string();
        assert_eq!(why, format!("{removed} was removed from this cluster permanently"));
    }
    // It asks the members that it knows; none of them has to lead group 0.
    let told = gone.node.register(&rest, 1).await;
    assert_eq!(told, crate::Registered::Refused(format!("{removed} was removed from this cluster permanently")));
    assert!(gone.group.leading_term().is_none(), "nobody elects it");
    gone.end().await;
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// CLUSTER-C3: a second process on a copy of a member's disk finds the first process at the member's address, whether
/// that leads or not, and is refused before anybody counts it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_process_on_a_copied_disk_is_refused_by_the_first() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (hosts, addresses) = three(dir.path()).await?;
    propose(&hosts, "before").await?;
    let at = leader(&hosts).await?;
    for first in [at, (at + 1) % 3] {
        let member = hosts[first].node.member();
        let copy = tempfile::tempdir()?;
        let life = Life { disk: u128::from(member.0), boot: 2, nonce: 2 };
        let second = Host::node_as(copy.path(), member.0, Duration::from_millis(660), life)?;
        let told = second.register(&addresses, 1).await;
        let crate::Registered::Refused(why) = told else { anyhow::bail!("{told:?}") };
        let expected = format!(
            "another process of {member} answers at this member's address (boot counter: found 1, this one has 2)"
        );
        assert!(why.starts_with(&expected), "{why}");
        // There it finds itself.
        let told = hosts[first].node.register(&addresses, 1).await;
        assert!(!matches!(told, crate::Registered::Refused(_)), "{told:?}");
        second.stop().await;
    }
    // Nobody answers there: its next start is like any other.
    let mut hosts = hosts;
    let gone = hosts.remove(at);
    let member = gone.node.member();
    gone.end().await;
    let copy = tempfile::tempdir()?;
    let life = Life { disk: u128::from(member.0), boot: 2, nonce: 2 };
    let next = Host::node_as(copy.path(), member.0, Duration::from_millis(660), life)?;
    let told = next.register(&addresses, 1).await;
    assert!(matches!(told, crate::Registered::NotNow(_)), "{told:?}");
    next.stop().await;
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// A gateway whose build supports none of our protocol versions is told so, in both directions, before its messages are
/// interpreted by our rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_of_another_protocol_is_refused_by_name() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (hosts, addresses) = three(dir.path()).await?;
    propose(&hosts, "before").await?;
    let (from, to) = (&hosts[0], hosts[1].node.member());
    let channel = from.node.channels().get(to, &addresses[&to], false)?;
    for (says, expected) in [
        (Some("6-7"), Some("speaks versions 6-7, this one 5-5")),
        (Some("1-1"), Some("speaks versions 1-1, this one 5-5")),
        (None, Some("found \"\"")),
        (Some("1-7"), None),
    ] {
        let mut ask = from.node.channels().request(crate::proto::DeniedRequest::default(), from.group.id(), to);
        match says {
            Some(says) => drop(ask.metadata_mut().insert("holdfast-protocol", says.parse()?)),
            None => drop(ask.metadata_mut().remove("holdfast-protocol")),
        }
        let status = crate::proto::peer_client::PeerClient::new(channel.clone()).denied(ask).await;
        let why = status.expect_err("no entry was named").message().to_string();
        match expected {
            Some(expected) => assert!(why.contains(expected), "{says:?}: {why}"),
            None => assert_eq!(why, "denied: no entry", "{says:?}: understood"),
        }
    }
    for host in hosts {
        host.end().await;
    }
    Ok(())
}
