//! VOTERS-V3, VOTERS-V4 over real sockets and real journals: a member leaves a group, gives back what it has of it, and
//! comes back.

use crate::clock::promise_now;
use crate::consensus::Consensus;
use crate::group::RaftGroup;
use crate::group_tests::{
    GROUP, Host, LIMIT, List, hold_journal, leader, listeners, members_become, propose, three, wait_len,
};
use crate::leave::{LeaveError, Part};
use crate::left_note::{self, Left, Stage};
use crate::node::NodeError;
use crate::wire::{MEMBERSHIP_MARK, RaftMembership, entry_from_parts, id_to_raft, make_vote, membership_to_bytes};
use holdfast_log::Entry;
use holdfast_types::{LogId, MemberId, Term};
use openraft::impls::BasicNode;
use openraft::raft::AppendEntriesRequest;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Longer than any test, so that nothing here depends on the speed of the machine.
const LONG: Duration = Duration::from_secs(3600);

fn files_of(dir: &Path, member: MemberId) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir.join(format!("raft-{}", member.0)))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
    let all = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, all).await.map_err(|_| anyhow::anyhow!("{what}: not within {LIMIT:?}"))
}

/// The payload of an entry that makes `voters` the members.
fn membership(voters: &[u64]) -> Vec<u8> {
    let set: BTreeSet<u64> = voters.iter().copied().collect();
    let nodes: BTreeMap<u64, BasicNode> = voters.iter().map(|id| (*id, BasicNode::new("a"))).collect();
    let membership = RaftMembership::new(vec![set], nodes).expect("valid");
    [&[MEMBERSHIP_MARK][..], &membership_to_bytes(&membership)[..]].concat()
}

/// The leader 2 of term 3 appends these entries here, and says that those up to `commit` are committed.
async fn append(
    group: &RaftGroup,
    prev: Option<LogId>,
    entries: Vec<(LogId, Vec<u8>)>,
    commit: Option<LogId>,
) -> anyhow::Result<()> {
    let entries = entries.into_iter().map(|(id, payload)| entry_from_parts(id, payload.into()));
    let request = AppendEntriesRequest {
        vote: make_vote(3, 2, true),
        prev_log_id: prev.map(id_to_raft),
        entries: entries.collect::<Result<Vec<_>, _>>()?,
        leader_commit: commit.map(id_to_raft),
    };
    group.raft().append_entries(request).await.map_err(|e| anyhow::anyhow!("{e}"))?;
    Ok(())
}

/// The refusal of a vote for a candidate whose log ends before `since`.
async fn refused_vote(asks: &Host, member: MemberId, addr: &str, since: LogId) -> anyhow::Result<tonic::Status> {
    let asked = asks.node.channels().get(member, addr, false)?;
    let mut peer = crate::proto::peer_client::PeerClient::new(asked);
    let candidate = async {
        loop {
            let vote = Some(crate::proto::Vote { term: since.term.0 + 5, member: 9, committed: false });
            let last = Some(crate::proto::LogId { term: since.term.0, index: since.index.0 - 1 });
            let request = crate::proto::VoteRequest { vote, last, ..Default::default() };
            let status = peer.vote(asks.node.channels().request(request, GROUP, member)).await.unwrap_err();
            if !status.message().contains("embargo") {
                return status;
            }
        }
    };
    Ok(tokio::time::timeout(LIMIT, candidate).await?)
}

/// Asks until the leader has committed the change.
async fn leave(host: &Host, peers: &BTreeMap<MemberId, String>) -> anyhow::Result<LogId> {
    let left = async {
        loop {
            match host.node.leave(GROUP, peers).await {
                Ok(since) => return Ok(since),
                Err(LeaveError::Nobody { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
                Err(e) => return Err(e.into()),
            }
        }
    };
    tokio::time::timeout(LIMIT, left).await?
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_leaves_only_when_it_is_out_and_comes_back_as_a_newcomer() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut hosts, addresses) = three(dir.path()).await?;
    for n in 1..=30 {
        propose(&hosts, &format!("entry {n:04}")).await?;
    }
    let at = leader(&hosts).await?;
    let mut goes = hosts.remove(if at == 0 { 1 } else { 0 });
    wait_len(&goes.list, 30).await?;
    let member = goes.node.member();

    // A voter that was told to leave by an old group 0 keeps all that it has.
    let refused = goes.node.leave(GROUP, &addresses).await;
    let Err(LeaveError::Nobody { answers, .. }) = &refused else { anyhow::bail!("VOTERS-V3: {refused:?}") };
    assert!(answers.iter().any(|a| a.contains("is a member of the group")), "{answers:?}");
    assert_eq!(goes.node.part_of(GROUP), Part::Something);
    goes.list = Arc::new(List::default());
    goes.group = goes.node.start_local(GROUP, goes.list.clone(), None).await?;
    wait_len(&goes.list, 30).await?;

    let rest: BTreeMap<MemberId, String> =
        addresses.iter().filter(|(id, _)| **id != member).map(|(id, addr)| (*id, addr.clone())).collect();
    let at = leader(&hosts).await?;
    members_become(&hosts[at].group, &rest).await?;
    let asked = async {
        loop {
            match goes.node.ask_whether_out(GROUP, &addresses).await {
                Err(LeaveError::Nobody { .. }) => tokio::time::sleep(Duration::from_millis(20)).await,
                answer => return answer,
            }
        }
    };
    let out = tokio::time::timeout(LIMIT, asked).await??;
    assert_eq!(out.voters, [rest.keys().copied().collect::<BTreeSet<_>>()]);
    assert!(goes.node.group(GROUP).is_some(), "a question changes nothing");
    let since = leave(&goes, &addresses).await?;
    assert!(since >= out.since);
    assert_eq!(goes.node.part_of(GROUP), Part::Left);
    assert_eq!(files_of(dir.path(), member)?, [format!("group-{}.left", GROUP.0)]);
    let state = goes.node.log().group(GROUP).state();
    assert_eq!((state.last, state.purged, state.vote), (None, None, None), "nothing is left in the journal");
    assert!(goes.node.group(GROUP).is_none());
    propose(&hosts, "while it is away").await?;

    // It comes back to the same leader, which must not take its empty log for one that went backwards.
    goes.list = Arc::new(List::default());
    goes.group = goes.node.start_local(GROUP, goes.list.clone(), None).await?;
    assert!(goes.node.is_returning(GROUP) && !goes.node.is_healing(GROUP));
    assert!(goes.group.candidacy.is_learning(), "VOTERS-V4: it stands for no election with an empty log");
    let refused = refused_vote(&hosts[at], member, &addresses[&member], since).await?;
    assert!(refused.message().contains("which needs a leader that has"), "VOTERS-V4: {refused}");
    let at = leader(&hosts).await?;
    members_become(&hosts[at].group, &addresses).await?;
    eventually("returned", || !goes.node.is_returning(GROUP)).await?;
    eventually("a candidate as any other", || goes.group.candidacy.stands()).await?;
    wait_len(&goes.list, 31).await?;
    assert_eq!(goes.list.all(), hosts[at].list.all());
    assert!(goes.node.healing().is_empty(), "VOTERS-V3: its log did not go backwards");
    assert!(!files_of(dir.path(), member)?.contains(&format!("group-{}.left", GROUP.0)));
    hosts.remove(1 - at).end().await;
    hosts.push(goes);
    assert_eq!(propose(&hosts, "with the one that came back").await?, 32);
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// VOTERS-V4: a step that fails leaves the part a part, and the next attempt does all steps again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v4_a_departure_of_which_a_step_fails_is_done_again() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut hosts, addresses) = three(dir.path()).await?;
    let entries = propose(&hosts, "before").await?;
    let at = leader(&hosts).await?;
    let goes = hosts.remove(if at == 0 { 1 } else { 0 });
    wait_len(&goes.list, entries).await?;
    let member = goes.node.member();
    let rest: BTreeMap<MemberId, String> =
        addresses.iter().filter(|(id, _)| **id != member).map(|(id, addr)| (*id, addr.clone())).collect();
    let at = leader(&hosts).await?;
    members_become(&hosts[at].group, &rest).await?;
    for step in ["left", "snapshot"] {
        // A directory in place of the file that is written, or removed first.
        let blocked = dir.path().join(format!("raft-{}", member.0)).join(format!("group-{}.{step}.new", GROUP.0));
        std::fs::create_dir(&blocked)?;
        let failed = leave(&goes, &addresses).await.expect_err("a step fails");
        assert!(matches!(failed.downcast_ref::<LeaveError>(), Some(LeaveError::Io { .. })), "{step}: {failed:#}");
        assert_eq!(goes.node.part_of(GROUP), Part::Something, "{step}");
        assert!(goes.node.log().group(GROUP).state().last.is_some(), "the log goes last: {step}");
        std::fs::remove_dir(&blocked)?;
    }
    leave(&goes, &addresses).await?;
    assert_eq!(goes.node.part_of(GROUP), Part::Left);
    assert_eq!(files_of(dir.path(), member)?, [format!("group-{}.left", GROUP.0)]);
    goes.end().await;
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// VOTERS-V4: who learns a group again passes the memberships of long ago. One that names this member alone would make
/// a leader of it, without a vote of anybody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_membership_of_long_ago_makes_no_leader() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let node = Host::node(dir.path(), 1)?;
    let since = LogId::new(3, 9);
    let note = Left { group: GROUP, stage: Stage::Gone, since, voters: vec![BTreeSet::from([MemberId(2)])] };
    left_note::save(node.snapshots_dir(), &note)?;
    let group = node.start_local(GROUP, Arc::new(List::default()), None).await?;
    let begin = LogId::new(1, 0);
    append(&group, None, vec![(begin, membership(&[1]))], None).await?;
    eventually("a voter", || group.status().members.iter().any(|m| m.voter)).await?;
    group.embargo_over();
    node.look_at_floor(&group);
    assert!(!group.candidacy.stands(), "VOTERS-V4: it would be elected by itself");
    group.stand_for_election().await?;
    assert_eq!(group.status().voted, Term(3), "VOTERS-V4: nor when it is told to");
    let entries = (1..=9).map(|index| (LogId::new(3, index), Vec::new())).collect();
    append(&group, Some(begin), entries, None).await?;
    eventually("its log has the entry of the removal", || group.leading_term().is_some()).await?;
    node.stop().await;
    Ok(())
}

/// VOTERS-V4: after a crash between the note and the rest, what is left is dropped before the group starts, and a note
/// that does not read lets nothing start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_crash_leaves_is_dropped_before_a_start() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (hosts, _) = three(dir.path()).await?;
    propose(&hosts, "before").await?;
    for host in &hosts {
        wait_len(&host.list, 1).await?;
    }
    for host in hosts {
        host.end().await;
    }
    let node = Host::node(dir.path(), 1)?;
    let since = LogId::new(9, 99);
    let note = Left { group: GROUP, stage: Stage::Going, since, voters: vec![BTreeSet::from([MemberId(2)])] };
    left_note::save(node.snapshots_dir(), &note)?;
    assert_eq!(node.part_of(GROUP), Part::Something);
    let list = Arc::new(List::default());
    node.start_local(GROUP, list.clone(), None).await?;
    assert!(list.all().is_empty() && node.is_returning(GROUP));
    assert_eq!(node.floor(GROUP), Some(since));
    node.end_group(GROUP).await?;
    let voters = node.ended(GROUP)?.and_then(|ended| ended.voters);
    assert_eq!(voters, Some((since, note.voters.clone())), "END-E3: the voters of when it left");
    node.stop().await;

    let node = Host::node(dir.path(), 2)?;
    std::fs::write(node.snapshots_dir().join(format!("group-{}.left", GROUP.0)), b"cut short")?;
    assert_eq!(node.part_of(GROUP), Part::Something);
    let started = node.start_local(GROUP, Arc::new(List::default()), None).await.map(drop);
    assert!(matches!(started, Err(NodeError::Damaged { .. })), "{started:?}");
    assert!(node.is_healing(GROUP));
    node.stop().await;

    let node = Host::node_under(dir.path(), 4, LONG)?;
    assert_eq!(node.part_of(GROUP), Part::Nothing);
    // R3: a group that was stopped here has forgotten what it promised until then.
    node.note_stopped(GROUP);
    let stopped = node.embargo_of(GROUP);
    assert!(stopped > node.embargo_left(), "{stopped:?}");
    node.stop().await;
    Ok(())
}

/// R3: a stopped group has forgotten what it promised to its leader. Without an embargo from the stop on, this member
/// could vote for another candidate at once after it has started the group again, while that leader still reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_a_group_that_was_stopped_to_leave_votes_no_earlier_than_after_a_start() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let node = Host::node_under(dir.path(), 1, LONG)?;
    let group = node.start_local(GROUP, Arc::new(List::default()), None).await?;
    append(&group, None, vec![(LogId::new(3, 0), membership(&[1, 2]))], None).await?;
    // The embargo of the process began long before that.
    let running = promise_now();
    let left = node.leave(GROUP, &BTreeMap::new()).await;
    assert!(matches!(left, Err(LeaveError::Nobody { .. })), "nobody was asked: {left:?}");
    node.start_local(GROUP, Arc::new(List::default()), None).await?;
    let embargo = node.embargo_of(GROUP);
    let passed = promise_now().saturating_since(running);
    assert!(embargo >= Some(LONG.saturating_sub(passed)), "R3: {embargo:?} left; it ran {passed:?} ago or later");
    node.stop().await;
    Ok(())
}

/// R1: a group that starts again takes all that its log has for durable, and acknowledges it to the leader at once.
/// Without the wait for the journal, a power cut could then take back what was acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_what_a_group_had_appended_is_durable_before_it_may_start_again() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let node = Host::node_under(dir.path(), 1, LONG)?;
    let group = node.start_local(GROUP, Arc::new(List::default()), None).await?;
    append(&group, None, vec![(LogId::new(3, 0), membership(&[1, 2]))], None).await?;
    let go_on = hold_journal(&node).await?;
    let durable = Arc::new(AtomicBool::new(false));
    let (last, tell) = (LogId::new(3, 1), durable.clone());
    let entry = Entry { id: last, payload: "on its way".into() };
    node.log().group(GROUP).append(vec![entry], move |done| tell.store(done.is_ok(), Ordering::SeqCst));
    let queued = node.log().usage().used_bytes;
    let nobody = BTreeMap::new();
    let mut leaving = node.leave(GROUP, &nobody);
    tokio::select! {
        biased;
        left = &mut leaving => anyhow::bail!("R1: it may start again, and its last entry is not durable: {left:?}"),
        waits = eventually("it waits for the journal", || node.log().usage().used_bytes > queued) => waits?,
    }
    assert!(!durable.load(Ordering::SeqCst), "the journal is not held: nothing is tested");
    drop(go_on);
    let left = tokio::time::timeout(LIMIT, leaving).await?;
    assert!(matches!(left, Err(LeaveError::Nobody { .. })), "nobody was asked: {left:?}");
    assert!(durable.load(Ordering::SeqCst), "R1: the group may start again, and its last entry is not durable");
    let group = node.start_local(GROUP, Arc::new(List::default()), None).await?;
    assert_eq!(group.last(), Some(last), "it would acknowledge this");
    node.stop().await;
    Ok(())
}

/// VOTERS-V3: an answer of before the stop is too old. The member may be let in again after that answer, and while its
/// group still runs it may acknowledge entries. It would drop them with its log, and others count on them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v3_the_leader_is_asked_after_the_group_has_stopped() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut listeners, addresses) = listeners(2).await?;
    let node = Host::node_under(dir.path(), 1, LONG)?;
    let group = node.start_local(GROUP, Arc::new(List::default()), None).await?;
    append(&group, None, vec![(LogId::new(3, 0), membership(&[1, 2]))], None).await?;
    let leader = listeners.remove(1);
    let asked = async {
        let (connection, _) = leader.accept().await?;
        let runs = node.group(GROUP).is_some();
        // It gets no answer.
        drop(connection);
        drop(leader);
        anyhow::Ok(runs)
    };
    let both = async { tokio::join!(node.leave(GROUP, &addresses), asked) };
    let (left, runs) = tokio::time::timeout(LIMIT, both).await?;
    assert!(!runs?, "VOTERS-V3: the group still runs when its leader is asked");
    assert!(matches!(left, Err(LeaveError::Nobody { .. })), "it has no answer: {left:?}");
    node.stop().await;
    Ok(())
}

/// VOTERS-V4: who learns a group again passes memberships of before it left, in which it is a voter. They end no
/// return. Otherwise it would lose its floor with an almost empty log and without its vote: it could help a candidate
/// that was left behind long ago to become leader, beside the present one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v4_an_old_membership_that_is_replayed_ends_no_return() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let node = Host::node_under(dir.path(), 1, LONG)?;
    let since = LogId::new(3, 9);
    let note = Left { group: GROUP, stage: Stage::Gone, since, voters: vec![BTreeSet::from([MemberId(2)])] };
    left_note::save(node.snapshots_dir(), &note)?;
    let group = node.start_local(GROUP, Arc::new(List::default()), None).await?;
    let begin = LogId::new(1, 0);
    append(&group, None, vec![(begin, membership(&[1, 2]))], Some(begin)).await?;
    eventually("a voter", || group.status().members.iter().any(|m| m.member == node.member() && m.voter)).await?;
    // Each look of the task that watches the return corrects the mark. The first of three may have begun before the
    // membership was there; a task that takes the second one for the end has no third.
    for look in 1..=3 {
        group.candidacy.set_learning(false);
        eventually("a look", || group.candidacy.is_learning() || !node.is_returning(GROUP)).await?;
        assert_eq!(node.floor(GROUP), Some(since), "VOTERS-V4: look {look}");
    }
    assert!(left_note::load(node.snapshots_dir(), GROUP)?.is_some(), "VOTERS-V4: its note is gone");

    // Let in again.
    let end = LogId::new(3, 10);
    let mut entries: Vec<_> = (1..=9).map(|index| (LogId::new(3, index), Vec::new())).collect();
    entries.push((end, membership(&[1, 2])));
    append(&group, Some(begin), entries, Some(end)).await?;
    eventually("returned", || !node.is_returning(GROUP)).await?;
    assert!(left_note::load(node.snapshots_dir(), GROUP)?.is_none(), "its note is still there");
    node.stop().await;
    Ok(())
}
