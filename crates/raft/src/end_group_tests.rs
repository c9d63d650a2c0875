//! Groups that are ended for ever, over real sockets and real journals.

use crate::NodeError;
use crate::consensus::Consensus;
use crate::end_marker::{self, Ended, Stage};
use crate::group_tests::{GROUP, Host, List, leader, propose, three, wait_len};
use crate::quarantine;
use holdfast_types::{LogId, MemberId};
use std::collections::BTreeSet;
use std::sync::Arc;

fn files_of(dir: &std::path::Path, member: u64) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir.join(format!("raft-{member}")))? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    Ok(names)
}

/// END-E1, END-E2: two of three end the group. The third has not heard of the deletion, and can commit nothing any
/// more. Neither can an ended one that starts again on its old disk and is told to begin the group again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_group_is_gone_and_never_starts_again() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut hosts, addresses) = three(dir.path()).await?;
    let entries = propose(&hosts, "before").await?;
    for host in &hosts {
        wait_len(&host.list, entries).await?;
    }
    let at = leader(&hosts).await?;
    hosts[at].group.trigger_snapshot().await?;
    let last = hosts.remove(at);
    let me = last.node.member();
    for host in &hosts {
        let id = host.node.member();
        assert_eq!(last.node.ask_ended(GROUP, id, &addresses[&id]).await, Ok(None), "END-E2");
        host.node.end_group(GROUP).await?;
        host.node.end_group(GROUP).await?;
        let said = last.node.ask_ended(GROUP, id, &addresses[&id]).await.map_err(anyhow::Error::msg)?;
        let (_, sets) = said.and_then(|ended| ended.voters).expect("it knew who votes");
        assert_eq!(sets, [addresses.keys().copied().collect::<BTreeSet<_>>()], "END-E3");
        assert!(host.node.group(GROUP).is_none());
        assert_eq!(files_of(dir.path(), id.0)?, [format!("group-{}.ended", GROUP.0)]);
        let state = host.node.log().group(GROUP).state();
        assert_eq!((state.last, state.purged, state.vote), (None, None, None), "nothing is left in the journal");
    }
    let unheard = last.group.propose(None, "after".into(), std::time::Duration::from_millis(1500)).await;
    assert!(unheard.is_err(), "DELETE-D2: {unheard:?}");
    assert_eq!(last.node.ask_ended(GROUP, me, &addresses[&me]).await, Ok(None));
    // It starts on its old disk, and a group 0 that is behind tells it of the set.
    let gone = hosts.remove(0);
    let id = gone.node.member();
    gone.end().await;
    let node = Host::node(dir.path(), id.0)?;
    let refused = node.start_group(GROUP, Arc::new(List::default()), None).await.map(drop);
    assert!(matches!(refused, Err(NodeError::Ended(GROUP))), "END-E1: {refused:?}");
    node.end_group(GROUP).await?;
    assert!(node.ended(GROUP)?.is_some());
    node.stop().await;
    for host in hosts.into_iter().chain([last]) {
        host.end().await;
    }
    Ok(())
}

/// A gateway that comes back learns of the deletion before it has started the group: it ends the group on its disk, and
/// reports the voters that it finds there. After a crash in the middle it continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_does_not_run_is_ended_from_its_disk() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (hosts, addresses) = three(dir.path()).await?;
    let entries = propose(&hosts, "before").await?;
    for host in &hosts {
        wait_len(&host.list, entries).await?;
    }
    for host in hosts {
        host.end().await;
    }
    let all: BTreeSet<MemberId> = addresses.keys().copied().collect();
    for member in 1..=3 {
        let node = Host::node(dir.path(), member)?;
        assert!(node.log().group(GROUP).state().last.is_some());
        node.end_group(GROUP).await?;
        let said = node.ended(GROUP)?.expect("ended");
        assert_eq!(said.voters.map(|(_, sets)| sets), Some(vec![all.clone()]), "END-E3");
        assert!(node.log().group(GROUP).state().last.is_none());
        node.stop().await;
    }
    // The state that a crash between the note and the rest leaves: the note says that the end has begun, and has the
    // voters that were read.
    let note = dir.path().join("raft-1").join(format!("group-{}.ended", GROUP.0));
    std::fs::write(&note, b"cut short")?;
    let node = Host::node(dir.path(), 1)?;
    assert_eq!(node.ended(GROUP)?, None, "END-E2");
    let refused = node.start_group(GROUP, Arc::new(List::default()), None).await.map(drop);
    assert!(matches!(refused, Err(NodeError::Ended(GROUP))), "END-E1: {refused:?}");
    node.end_group(GROUP).await?;
    assert_eq!(node.ended(GROUP)?, Some(Ended::unknown()), "END-E3: the note had them");
    node.stop().await;
    Ok(())
}

/// END-E1: a step that fails leaves what comes behind it undone, and the group never starts again once the note is
/// there. Without the note nothing is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e1_an_end_of_which_a_step_fails_is_done_again() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut hosts, addresses) = three(dir.path()).await?;
    let entries = propose(&hosts, "before").await?;
    for host in &hosts {
        wait_len(&host.list, entries).await?;
    }
    let host = hosts.remove(0);
    let member = host.node.member();
    // A directory in place of the file that is written, or removed first.
    let blocked =
        |what: &str| dir.path().join(format!("raft-{}", member.0)).join(format!("group-{}.{what}.new", GROUP.0));
    std::fs::create_dir(blocked("ended"))?;
    let failed = host.node.end_group(GROUP).await;
    assert!(matches!(failed, Err(NodeError::Io { .. })), "{failed:?}");
    assert!(host.node.group(GROUP).is_some() && !host.node.is_over(GROUP), "nothing is done without the note");
    std::fs::remove_dir(blocked("ended"))?;

    std::fs::create_dir(blocked("snapshot"))?;
    let failed = host.node.end_group(GROUP).await;
    assert!(matches!(failed, Err(NodeError::Io { .. })), "{failed:?}");
    std::fs::remove_dir(blocked("snapshot"))?;
    assert_eq!(host.node.ended(GROUP)?, None, "END-E2: it has not ended");
    assert!(host.node.log().group(GROUP).state().last.is_some(), "END-E3: the log goes last");
    let refused = host.node.start_group(GROUP, Arc::new(List::default()), None).await.map(drop);
    assert!(matches!(refused, Err(NodeError::Ended(GROUP))), "END-E1: {refused:?}");
    host.end().await;

    let node = Host::node(dir.path(), member.0)?;
    let refused = node.start_group(GROUP, Arc::new(List::default()), None).await.map(drop);
    assert!(matches!(refused, Err(NodeError::Ended(GROUP))), "END-E1, after a restart: {refused:?}");
    node.log().clone().close();
    let failed = node.end_group(GROUP).await;
    assert!(matches!(failed, Err(NodeError::Io { .. })), "the log is not dropped: {failed:?}");
    assert_eq!(node.ended(GROUP)?, None, "END-E2: its log is there");
    node.stop().await;
    let node = Host::node(dir.path(), member.0)?;
    node.end_group(GROUP).await?;
    let said = node.ended(GROUP)?.expect("ended");
    let all: BTreeSet<MemberId> = addresses.keys().copied().collect();
    assert_eq!(said.voters.map(|(_, sets)| sets), Some(vec![all]), "END-E3");
    assert!(node.log().group(GROUP).state().last.is_none());
    node.stop().await;
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// A directory in place of a file: the read fails, but not because the file is missing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_is_not_taken_for_missing() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (hosts, _) = three(dir.path()).await?;
    propose(&hosts, "before").await?;
    for host in hosts {
        host.end().await;
    }
    let node = Host::node(dir.path(), 1)?;
    let notes = node.snapshots_dir().to_path_buf();
    // END-E1: the note may say that the group has ended.
    let note = notes.join(format!("group-{}.ended", GROUP.0));
    std::fs::create_dir(&note)?;
    let started = node.start_group(GROUP, Arc::new(List::default()), None).await.map(drop);
    assert!(matches!(started, Err(NodeError::Io { .. })), "{started:?}");
    std::fs::remove_dir(&note)?;
    // END-E3: the snapshot may name later voters than the log.
    let snapshot = notes.join(format!("group-{}.snapshot", GROUP.0));
    anyhow::ensure!(!snapshot.exists(), "it has one: nothing is tested");
    std::fs::create_dir(&snapshot)?;
    assert!(node.end_group(GROUP).await.is_err(), "the snapshot cannot be removed");
    let (stage, ended) = end_marker::load(&notes, GROUP)?.ok_or_else(|| anyhow::anyhow!("no note"))?;
    assert_eq!((stage, ended), (Stage::Ending, Ended::unknown()));
    std::fs::remove_dir(&snapshot)?;
    node.end_group(GROUP).await?;
    assert_eq!(node.ended(GROUP)?, Some(Ended::unknown()), "it cannot know any more what was there");
    node.stop().await;
    Ok(())
}

/// END-E3: a member whose log was dropped, or cannot be trusted, may be the only one of those that have ended the group
/// that had agreed to its last change of voters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e3_voters_that_were_lost_are_not_taken_for_none() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (hosts, addresses) = three(dir.path()).await?;
    let entries = propose(&hosts, "before").await?;
    for host in &hosts {
        wait_len(&host.list, entries).await?;
    }
    for host in hosts {
        host.end().await;
    }
    let all: BTreeSet<MemberId> = addresses.keys().copied().collect();
    let after = LogId::new(9, 9_000);
    let cases = [
        (1, quarantine::Stage::Rejoining { since: after }, Some(Ended::unknown_up_to(after))),
        (2, quarantine::Stage::Rejoining { since: LogId::new(0, 0) }, None),
        (3, quarantine::Stage::Out, Some(Ended::unknown())),
    ];
    for (member, stage, lost) in cases {
        let node = Host::node(dir.path(), member)?;
        let (expected, found) = ("checksum 1".to_string(), "checksum 2".to_string());
        let record = holdfast_log::CorruptRecord { file: "journal-1".into(), offset: 4096, expected, found };
        quarantine::save(node.snapshots_dir(), GROUP, &quarantine::Quarantine { record, stage })?;
        node.end_group(GROUP).await?;
        let said = node.ended(GROUP)?.expect("ended");
        if let Some(lost) = lost {
            assert_eq!(said, lost, "member {member}");
        } else {
            let sets = said.voters.map(|(_, sets)| sets);
            assert_eq!(sets, Some(vec![all.clone()]), "its log has later ones than those that are lost");
        }
        assert_eq!(quarantine::load(node.snapshots_dir(), GROUP)?, None);
        node.stop().await;
    }
    Ok(())
}
