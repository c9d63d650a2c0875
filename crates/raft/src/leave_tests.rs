//! VOTERS-V3, VOTERS-V4 over real sockets and real journals: a member leaves a group, gives back what it has of it, and
//! comes back.

use crate::consensus::Consensus;
use crate::group_tests::{GROUP, Host, LIMIT, List, leader, members_become, propose, three, wait_len};
use crate::leave::{LeaveError, Part};
use crate::left_note::{self, Left, Stage};
use crate::node::NodeError;
use crate::wire::{MEMBERSHIP_MARK, RaftMembership, entry_from_parts, id_to_raft, make_vote, membership_to_bytes};
use holdfast_types::{LogId, MemberId, Term};
use openraft::impls::BasicNode;
use openraft::raft::AppendEntriesRequest;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

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
    let alone =
        RaftMembership::new(vec![BTreeSet::from([1])], BTreeMap::from([(1, BasicNode::new("a"))])).expect("valid");
    let alone = [&[MEMBERSHIP_MARK][..], &membership_to_bytes(&alone)[..]].concat();
    let append = async |prev: Option<LogId>, entries: Vec<(LogId, Vec<u8>)>| {
        let entries = entries.into_iter().map(|(id, payload)| entry_from_parts(id, payload.into()));
        let request = AppendEntriesRequest {
            vote: make_vote(3, 2, true),
            prev_log_id: prev.map(id_to_raft),
            entries: entries.collect::<Result<Vec<_>, _>>()?,
            leader_commit: None,
        };
        group.raft().append_entries(request).await.map_err(|e| anyhow::anyhow!("{e}"))?;
        anyhow::Ok(())
    };
    let begin = LogId::new(1, 0);
    append(None, vec![(begin, alone)]).await?;
    eventually("a voter", || group.status().members.iter().any(|m| m.voter)).await?;
    group.embargo_over();
    node.look_at_floor(&group);
    assert!(!group.candidacy.stands(), "VOTERS-V4: it would be elected by itself");
    group.stand_for_election().await?;
    assert_eq!(group.status().voted, Term(3), "VOTERS-V4: nor when it is told to");
    append(Some(begin), (1..=9).map(|index| (LogId::new(3, index), Vec::new())).collect()).await?;
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

    let node = Host::node_under(dir.path(), 4, Duration::from_secs(3600))?;
    assert_eq!(node.part_of(GROUP), Part::Nothing);
    // R3: a group that was stopped here has forgotten what it promised until then.
    node.note_stopped(GROUP);
    let stopped = node.embargo_of(GROUP);
    assert!(stopped > node.embargo_left(), "{stopped:?}");
    node.stop().await;
    Ok(())
}
