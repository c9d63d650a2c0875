//! Changes of members that were left unfinished, and two changes at once, over real sockets.

use crate::GroupStatus;
use crate::consensus::{Consensus, GroupError};
use crate::group::RaftGroup;
use crate::group_tests::{self, GROUP, Host, LIMIT, leader, propose};
use futures_util::FutureExt;
use holdfast_types::{LogIndex, MemberId};
use openraft::ChangeMembers;
use std::collections::BTreeSet;
use std::time::Duration;

fn ids(of: &[u64]) -> BTreeSet<MemberId> {
    of.iter().copied().map(MemberId).collect()
}

fn voters(status: &GroupStatus) -> BTreeSet<MemberId> {
    status.members.iter().filter(|m| m.voter).map(|m| m.member).collect()
}

async fn three(dir: &std::path::Path) -> anyhow::Result<Vec<Host>> {
    let (hosts, _) = group_tests::three(dir).await?;
    propose(&hosts, "first").await?;
    Ok(hosts)
}

async fn until(what: &str, group: &RaftGroup, holds: impl Fn(&GroupStatus) -> bool) -> anyhow::Result<()> {
    let all = async {
        while !holds(&group.status()) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let late = |_| anyhow::anyhow!("{what}: not within {LIMIT:?}: {:?}", group.status());
    tokio::time::timeout(LIMIT, all).await.map_err(late)
}

/// Only the first entry of the change that removes `gone`, as a leader leaves it that is killed at that moment.
/// Leadership goes to a member that stays.
async fn half_out(hosts: &[Host]) -> anyhow::Result<(usize, MemberId)> {
    let at = leader(hosts).await?;
    let others: Vec<MemberId> =
        hosts.iter().map(|h| h.node.member()).filter(|m| *m != hosts[at].node.member()).collect();
    let (gone, heir) = (others[0], others[1]);
    let change = ChangeMembers::RemoveVoters(BTreeSet::from([gone.0]));
    // Polled once, the future proposes the first entry; it is not polled again.
    let mut first = Box::pin(hosts[at].group.raft().change_membership(change, false));
    anyhow::ensure!((&mut first).now_or_never().is_none(), "the change was done at once");
    until("between two sets", &hosts[at].group, |s| s.next.is_some() && s.settled).await?;
    let old = hosts[at].group.leading_term();
    // Another member that stays leads; on a busy machine it may be the same one in a later term.
    let later = async {
        loop {
            for (next, host) in hosts.iter().enumerate() {
                let Some(term) = host.group.ready_term() else { continue };
                if Some(term) > old && host.node.member() != gone {
                    return anyhow::Ok(next);
                }
                host.group.transfer_leader(heir).await?;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    let next = tokio::time::timeout(LIMIT, later).await??;
    until("still between two sets", &hosts[next].group, |s| s.next.is_some() && s.settled).await?;
    Ok((next, gone))
}

/// On one thread: with another one, the change might be done before its caller is polled for the first time.
#[tokio::test]
async fn a_change_whose_caller_gives_up_comes_to_its_end() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let hosts = three(dir.path()).await?;
    let at = leader(&hosts).await?;
    let (me, group) = (hosts[at].node.member(), &hosts[at].group);
    let rest: BTreeSet<MemberId> = hosts.iter().map(|h| h.node.member()).filter(|m| *m == me || m.0 % 2 == 1).collect();
    let rest = if rest.len() == 2 { rest } else { ids(&[1, 2]) };
    // Polled once and then dropped: even a very short time limit might end only after the change is done.
    let given_up = group.change_voters(&rest, group.status().membership, LIMIT).now_or_never();
    assert!(given_up.is_none(), "the change was done at once: {given_up:?}");
    until("CHANGE-B1", group, |s| voters(s) == rest && s.next.is_none() && s.settled).await?;
    until("done", group, |_| !group.is_changing()).await?;
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_leader_ends_what_the_one_before_began() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let hosts = three(dir.path()).await?;
    let before = hosts[0].group.status().membership;
    let (at, gone) = half_out(&hosts).await?;
    let group = &hosts[at].group;
    let status = group.status();
    assert_eq!(voters(&status), ids(&[1, 2, 3]), "whoever looks at the voters only sees nothing");
    let stale = group.end_change(before, LIMIT).await;
    assert!(matches!(stale, Err(GroupError::Refused { .. })), "CHANGE-B2: {stale:?}");
    group.end_change(status.membership, LIMIT).await?;
    let rest: BTreeSet<MemberId> = ids(&[1, 2, 3]).into_iter().filter(|m| *m != gone).collect();
    let status = group.status();
    assert_eq!((voters(&status), status.next), (rest.clone(), None));
    assert!(status.members.iter().all(|m| m.member != gone), "out, not a learner");
    // A change that was decided on the earlier membership is refused: it would undo the end of the change.
    let stale = group.change_voters(&ids(&[1, 2, 3]), before, LIMIT).await;
    assert!(matches!(stale, Err(GroupError::Refused { .. })), "CHANGE-B2: {stale:?}");
    // The leader tells any other member who the members are; it refuses while it lags behind in group 0.
    let other = hosts.iter().find(|h| rest.contains(&h.node.member()) && h.node.member() != hosts[at].node.member());
    let other = other.ok_or_else(|| anyhow::anyhow!("nobody else"))?;
    let roll = other.node.committed_members(GROUP, LogIndex(0)).await?;
    assert_eq!(roll.members, rest);
    assert!(roll.applied >= status.membership.map_or(LogIndex(0), |id| id.index), "{roll:?}");
    let why = other.node.committed_members(GROUP, LogIndex(7)).await.expect_err("group 0 is not there").to_string();
    assert!(why.contains("group 0 is applied up to i0 here, and i7 is asked for"), "{why}");
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// The member that asks for its removal asks again at the next leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_member_is_taken_out_also_by_the_leader_after() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let hosts = three(dir.path()).await?;
    let (at, gone) = half_out(&hosts).await?;
    let group = &hosts[at].group;
    let since = group.expel(gone, LIMIT).await?;
    let status = group.status();
    assert_eq!((status.next, status.membership), (None, Some(since)));
    assert!(status.members.iter().all(|m| m.member != gone), "{:?}", status.members);
    assert_eq!(group.expel(gone, LIMIT).await?, since, "asked again");
    for host in hosts {
        host.end().await;
    }
    Ok(())
}
