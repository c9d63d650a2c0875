//! Changes of members that were left unfinished, and two changes at once, over real sockets.

use crate::GroupStatus;
use crate::change::NotLeading;
use crate::consensus::{Consensus, GroupError};
use crate::group::RaftGroup;
use crate::group_tests::{self, GROUP, Host, LIMIT, List, hold_journal, leader, propose};
use futures_util::FutureExt;
use holdfast_types::{GroupId, LogId, LogIndex, MemberId};
use openraft::ChangeMembers;
use openraft::impls::BasicNode;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

const LEARNER: MemberId = MemberId(2);

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

/// A host that is the only voter of the group, and where its learner would answer: it is silent.
async fn one_and_a_learner(dir: &std::path::Path) -> anyhow::Result<(Host, TcpListener)> {
    let (mut listeners, addresses) = group_tests::listeners(2).await?;
    let silent = listeners.remove(1);
    let host = Host::start(dir, 1, listeners.remove(0)).await?;
    let of = |member: MemberId| BTreeMap::from([(member, addresses[&member].clone())]);
    host.group.initialize(&of(MemberId(1))).await?;
    propose(std::slice::from_ref(&host), "first").await?;
    let seen = host.group.status().membership;
    host.group.add_learners(&of(LEARNER), seen, LIMIT).await?;
    until("a learner", &host.group, |s| s.settled && knows(s, LEARNER)).await?;
    Ok((host, silent))
}

fn knows(status: &GroupStatus, member: MemberId) -> bool {
    status.members.iter().any(|m| m.member == member)
}

/// A change that knows nothing of those that are under way here, as another leader makes it.
async fn decided_elsewhere(group: &RaftGroup, change: ChangeMembers<u64, BasicNode>) -> anyhow::Result<()> {
    let done = tokio::time::timeout(LIMIT, group.raft().change_membership(change, false)).await?;
    done.map(drop).map_err(|e| anyhow::anyhow!("{e}"))
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

/// Starts group 0 at these hosts. Returns its part at each, and which of them leads.
async fn group_0(
    hosts: &[Host],
    addresses: &BTreeMap<MemberId, String>,
) -> anyhow::Result<(Vec<Arc<RaftGroup>>, usize)> {
    let mut groups = Vec::new();
    for host in hosts {
        groups.push(host.node.start_local(GroupId::CLUSTER, Arc::new(List::default()), None).await?);
    }
    for group in &groups {
        group.initialize(addresses).await?;
    }
    let leads = async {
        loop {
            if let Some(at) = groups.iter().position(|group| group.ready_term().is_some()) {
                return at;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let at = tokio::time::timeout(LIMIT, leads).await?;
    Ok((groups, at))
}

/// A member of group 0 asks for its removal while an earlier leader's change is unfinished, by which another one loses
/// its vote.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_a_member_that_heals_takes_nobody_else_out_of_group_0() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (hosts, addresses) = group_tests::three(dir.path()).await?;
    let (groups, leads) = group_0(&hosts, &addresses).await?;
    let group = &groups[leads];
    let others: Vec<MemberId> = ids(&[1, 2, 3]).into_iter().filter(|id| *id != group.me()).collect();
    let (heals, spared) = (others[0], others[1]);
    group.change_voters(&BTreeSet::from([group.me(), spared]), group.status().membership, LIMIT).await?;
    let change = ChangeMembers::RemoveVoters(BTreeSet::from([spared.0]));
    // Polled once, the future proposes the first entry; it is not polled again.
    let mut first = Box::pin(group.raft().change_membership(change, true));
    anyhow::ensure!((&mut first).now_or_never().is_none(), "the change was done at once");
    until("between two sets", group, |s| s.next.is_some() && s.settled).await?;
    let asked = async {
        while group.expel(heals, LIMIT).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, asked).await?;
    let status = group.status();
    assert_eq!((voters(&status), knows(&status, heals)), (BTreeSet::from([group.me()]), false), "{status:?}");
    assert!(knows(&status, spared), "CHANGE-B3: {status:?}");
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b3_who_loses_its_vote_in_group_0_goes_on_as_a_learner() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (hosts, addresses) = group_tests::three(dir.path()).await?;
    let (groups, leads) = group_0(&hosts, &addresses).await?;
    let group = &groups[leads];
    let me = group.me();
    let gone = ids(&[1, 2, 3]).into_iter().find(|id| *id != me).ok_or_else(|| anyhow::anyhow!("nobody else"))?;
    let rest: BTreeSet<MemberId> = ids(&[1, 2, 3]).into_iter().filter(|id| *id != gone).collect();
    group.change_voters(&rest, group.status().membership, LIMIT).await?;
    let status = group.status();
    assert_eq!((voters(&status), status.next.clone()), (rest, None));
    assert!(knows(&status, gone), "CHANGE-B3: {status:?}");
    // One that heals is back as soon as it learns: its vote may be another's by now.
    let at = hosts.iter().position(|host| host.node.member() == gone).ok_or_else(|| anyhow::anyhow!("no host"))?;
    let weak = hosts[at].node.downgrade();
    let back = async || weak.voter_again(&groups[at], LogId::new(1, 1)).await.is_some();
    assert!(tokio::time::timeout(LIMIT, back()).await?, "CHANGE-B3: {:?}", groups[at].status());
    // Not before its disk has said so: a start without the note could find a log that ends before the removal.
    let held = hold_journal(&hosts[at].node).await?;
    let early = tokio::time::timeout(Duration::from_millis(500), back()).await;
    assert!(early.is_err(), "QUARANTINE-Q4: what it has may be lost in a crash");
    drop(held);
    assert!(tokio::time::timeout(LIMIT, back()).await?, "QUARANTINE-Q4: its disk has answered");
    group.drop_learners(&BTreeSet::from([gone]), status.membership, LIMIT).await?;
    assert!(!knows(&group.status(), gone), "who leaves the cluster is taken out");
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

/// VOTERS-V3: a membership that is not committed may be taken back by the next leader. If the leader told it all the
/// same, a member that is out of it only for now would drop its log and its vote, and others count on them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v3_a_membership_that_is_not_committed_is_told_to_nobody() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (host, _silent) = one_and_a_learner(dir.path()).await?;
    let group = &host.group;
    let go_on = hold_journal(&host.node).await?;
    let out = BTreeSet::from([LEARNER]);
    let mut removal = group.drop_learners(&out, group.status().membership, LIMIT);
    assert!((&mut removal).now_or_never().is_none(), "the change was done at once");
    until("its entry is in the log", group, |s| !knows(s, LEARNER)).await?;
    assert!(!group.status().settled, "the journal is not held: nothing is tested");
    let not_yet = NotLeading::NotNow { reason: "a change of members is under way".to_string() };
    assert_eq!(group.without(LEARNER, LIMIT).await, Err(not_yet.clone()), "VOTERS-V3");
    assert_eq!(group.committed_members(LIMIT).await, Err(not_yet));
    drop(go_on);
    removal.await?;
    let (since, voters) = group.without(LEARNER, LIMIT).await?;
    assert_eq!((Some(since), voters), (group.status().membership, vec![ids(&[1])]));
    host.end().await;
    Ok(())
}

/// CHANGE-B2, of the removal of a member that asks for it. While the request is on its way, the member is taken out and
/// let in again by others. If the removal did not name the membership that it was decided on, it would undo that.
#[test]
fn b2_a_removal_that_was_decided_on_an_earlier_membership_is_refused() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let world = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    // What is begun on it goes on only when it is told to.
    let late = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (host, silent) = world.block_on(one_and_a_learner(dir.path()))?;
    let (group, addr) = (&host.group, silent.local_addr()?.to_string());
    let mut removal = Box::pin(group.expel(LEARNER, LIMIT));
    {
        let _on = late.enter();
        assert!((&mut removal).now_or_never().is_none(), "the change was done at once");
    }
    world.block_on(async {
        decided_elsewhere(group, ChangeMembers::RemoveNodes(BTreeSet::from([LEARNER.0]))).await?;
        let node = BTreeMap::from([(LEARNER.0, BasicNode::new(addr))]);
        decided_elsewhere(group, ChangeMembers::AddNodes(node)).await
    })?;
    let told = late.block_on(removal);
    assert!(matches!(told, Err(NotLeading::NotNow { .. })), "CHANGE-B2: {told:?}");
    assert!(knows(&group.status(), LEARNER), "CHANGE-B2: it was let in again");
    // Decided on the newest membership, it is made.
    let since = world.block_on(group.expel(LEARNER, LIMIT))?;
    let status = group.status();
    assert_eq!((status.membership, knows(&status, LEARNER)), (Some(since), false));
    world.block_on(host.end());
    Ok(())
}
