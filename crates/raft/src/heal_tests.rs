//! R9 over real journals: a member that lost part of its synced log is kept out, its leader removes it, and it learns
//! the group again.

use crate::consensus::Consensus;
use crate::group_tests::{GROUP, Host, LIMIT, leader, listeners, members_become, propose, three, wait_len};
use crate::node::{NodeError, RaftNode};
use crate::quarantine;
use crate::readmit::ReadmitError;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId, MemberId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::TcpListener;

/// The journal file of `member` that holds `text`, and where.
fn find(dir: &Path, member: u64, text: &str) -> anyhow::Result<(PathBuf, usize)> {
    for file in std::fs::read_dir(dir.join(format!("journal-{member}")))? {
        let path = file?.path();
        let bytes = std::fs::read(&path)?;
        if let Some(at) = bytes.windows(text.len()).position(|w| w == text.as_bytes()) {
            return Ok((path, at));
        }
    }
    anyhow::bail!("{text:?} is in no journal file of m{member}")
}

fn flip(path: &Path, at: usize) -> anyhow::Result<()> {
    let mut bytes = std::fs::read(path)?;
    bytes[at] ^= 1;
    Ok(std::fs::write(path, bytes)?)
}

async fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> anyhow::Result<()> {
    let all = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(LIMIT, all).await.map_err(|_| anyhow::anyhow!("{what}: not within {LIMIT:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_member_is_kept_out_until_its_leader_took_it_out_and_then_learns_anew() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut hosts, addresses) = three(dir.path()).await?;
    for n in 1..=30 {
        propose(&hosts, &format!("entry {n:04}")).await?;
    }
    let at = leader(&hosts).await?;
    let hurt = hosts.remove(if at == 0 { 1 } else { 0 });
    wait_len(&hurt.list, 30).await?;
    let member = hurt.node.member();
    hurt.end().await;

    // The damage is found and reported, and still so when the record can be read again: by then the group is
    // quarantined (QUARANTINE-Q1, QUARANTINE-Q2).
    let (file, place) = find(dir.path(), member.0, "entry 0020")?;
    flip(&file, place)?;
    for round in ["damaged", "mended by hand"] {
        let node = Host::node(dir.path(), member.0)?;
        let list = std::sync::Arc::new(crate::group_tests::List::default());
        match node.start_group(GROUP, list, None).await {
            Err(NodeError::Damaged { group: GROUP, member: named, record }) => {
                assert_eq!(named, member);
                assert_eq!(Some(record.file.as_str()), file.file_name().and_then(|n| n.to_str()), "{round}");
            }
            Err(other) => anyhow::bail!("{round}: {other}"),
            Ok(_) => anyhow::bail!("{round}: the group starts, QUARANTINE-Q1"),
        }
        assert_eq!(node.healing().len(), 1, "{round}");
        node.stop().await;
        if round == "damaged" {
            flip(&file, place)?;
        }
    }

    // Only the leader can let it in, and only with a quorum of the others.
    let at = leader(&hosts).await?;
    let other = hosts.remove(1 - at);
    let (other_member, other_addr) = (other.node.member(), addresses[&other.node.member()].clone());
    let node = Host::node(dir.path(), member.0)?;
    let damaged = node.start_group(GROUP, std::sync::Arc::default() as std::sync::Arc<crate::group_tests::List>, None);
    assert!(matches!(damaged.await, Err(NodeError::Damaged { .. })));
    let only_other = [(other_member, other_addr.clone())].into();
    let refused = node.readmit(GROUP, &only_other).await;
    assert!(
        matches!(&refused, Err(ReadmitError::Nobody { answers, .. }) if answers[0].contains("does not lead")),
        "{refused:?}"
    );
    other.end().await;
    let told = async {
        loop {
            let refused = node.readmit(GROUP, &addresses).await;
            let Err(ReadmitError::Nobody { answers, .. }) = &refused else { anyhow::bail!("let in: {refused:?}") };
            if answers.iter().any(|a| a.contains("no quorum")) {
                return Ok(());
            }
        }
    };
    tokio::time::timeout(LIMIT, told).await??;
    hosts.push(Host::start(dir.path(), other_member.0, TcpListener::bind(&other_addr).await?).await?);
    propose(&hosts, "while it is out").await?;

    let since = loop {
        match node.readmit(GROUP, &addresses).await {
            Ok(since) => break since,
            Err(ReadmitError::Nobody { .. }) => tokio::time::sleep(Duration::from_millis(50)).await,
            Err(e) => return Err(e.into()),
        }
    };
    let at = leader(&hosts).await?;
    assert!(hosts[at].group.status().members.iter().all(|m| m.member != member), "taken out at {since}");
    assert_eq!(node.readmit(GROUP, &addresses).await?, since, "asked again, nothing more happens");

    // It grows from nothing to a voter, and a quorum can depend on it.
    let back = Host::with(node, TcpListener::bind(&addresses[&member]).await?).await?;
    assert!(back.node.is_healing(GROUP));
    // QUARANTINE-Q4: it is empty, and accepts nothing from a member that may have been left behind before the removal.
    let asked = hosts[at].node.channels().get(member, &addresses[&member], false)?;
    let mut peer = crate::proto::peer_client::PeerClient::new(asked);
    let vote = crate::proto::Vote { term: since.term.0 - 1, member: 9, committed: true };
    let append = crate::proto::AppendRequest { vote: Some(vote), prev: None, entries: Vec::new(), commit: None };
    let refused = peer.append(hosts[at].node.channels().request(append, GROUP, member)).await.unwrap_err();
    assert!(refused.message().contains("(QUARANTINE-Q4)"), "{refused}");
    let candidate = async {
        loop {
            let vote = Some(crate::proto::Vote { term: since.term.0 + 5, member: 9, committed: false });
            let last = Some(crate::proto::LogId { term: since.term.0, index: since.index.0 - 1 });
            let request = crate::proto::VoteRequest { vote, last, ..Default::default() };
            let status = peer.vote(hosts[at].node.channels().request(request, GROUP, member)).await.unwrap_err();
            if !status.message().contains("embargo") {
                return status;
            }
        }
    };
    let refused = tokio::time::timeout(LIMIT, candidate).await?;
    assert!(refused.message().contains("(QUARANTINE-Q4)"), "{refused}");
    members_become(&hosts[at].group, &addresses).await?;
    eventually("healed", || back.node.healing().is_empty()).await?;
    assert_eq!(back.node.healed(), 1);
    wait_len(&back.list, 31).await?;
    assert_eq!(back.list.all(), hosts[at].list.all());
    hosts.remove(1 - at).end().await;
    hosts.push(back);
    assert_eq!(propose(&hosts, "with the healed one").await?, 32);
    assert!(hosts.iter().all(|h| h.node.member() != MemberId(0)));
    for host in hosts {
        host.end().await;
    }
    // The next start finds nothing of it.
    let node = Host::node(dir.path(), member.0)?;
    let list = std::sync::Arc::new(crate::group_tests::List::default());
    node.start_group(GROUP, list, None).await?;
    assert!(node.healing().is_empty());
    node.stop().await;
    Ok(())
}

/// Whether the group does not start (QUARANTINE-Q1).
async fn is_out(node: &RaftNode) -> bool {
    is_damaged(node, GROUP).await
}

async fn is_damaged(node: &RaftNode, group: GroupId) -> bool {
    let list = std::sync::Arc::new(crate::group_tests::List::default());
    matches!(node.start_group(group, list, None).await, Err(NodeError::Damaged { .. }))
}

/// Damages the head of the record that holds `text`: whose the rest of its batch was is unknown then.
fn lose(dir: &Path, member: u64, text: &str) -> anyhow::Result<()> {
    let (file, place) = find(dir, member, text)?;
    let bytes = std::fs::read(&file)?;
    // At 40 a record's head has its own offset, at 8 its group (`journal/src/format.rs`).
    let own = |at: &usize| bytes[*at + 40..*at + 48] == (*at as u64).to_le_bytes();
    let head = (0..place - 48).step_by(8).rev().find(own).ok_or_else(|| anyhow::anyhow!("no head before {text:?}"))?;
    flip(&file, head + 8)
}

/// QUARANTINE-Q5: a group that is younger than its process begins, and the next start, which finds the same loss, knows
/// what is of it. Any other group that the journal does not know is healed first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q5_a_younger_group_begins_although_the_journal_has_lost_records() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut listeners, addresses) = listeners(1).await?;
    let hosts = [Host::start(dir.path(), 1, listeners.remove(0)).await?];
    hosts[0].group.initialize(&addresses).await?;
    for n in 1..=30 {
        propose(&hosts, &format!("entry {n:04}")).await?;
    }
    let [host] = hosts;
    host.end().await;
    lose(dir.path(), 1, "entry 0020")?;

    let (older, younger, third) = (GroupId(77), GroupId(88), GroupId(99));
    let list = || std::sync::Arc::new(crate::group_tests::List::default());
    let node = Host::node(dir.path(), 1)?;
    assert!(is_damaged(&node, older).await, "it may be among the lost");
    node.begin_younger(older).await?;
    assert!(is_damaged(&node, older).await, "QUARANTINE-Q1: there is a note");
    node.begin_younger(GROUP).await?;
    assert!(is_out(&node).await, "the journal knows it");
    node.begin_younger(younger).await?;
    let group = node.start_group(younger, list(), None).await?;
    group.initialize(&addresses).await?;
    eventually("it leads", || group.leading_term().is_some()).await?;
    let voted = node.log().group(younger).state().vote;
    assert!(voted.is_some());
    node.stop().await;

    let node = Host::node(dir.path(), 1)?;
    assert!(is_damaged(&node, third).await, "the loss is there still");
    node.begin_younger(younger).await?;
    assert_eq!(node.log().group(younger).state().vote, voted, "nothing is dropped a second time");
    node.start_group(younger, list(), None).await?;
    assert!(is_damaged(&node, older).await);
    node.stop().await;
    Ok(())
}

/// Asks until the leader has taken this member out.
async fn readmitted(node: &RaftNode, peers: &BTreeMap<MemberId, String>) -> anyhow::Result<LogId> {
    let asked = async {
        loop {
            match node.readmit(GROUP, peers).await {
                Err(ReadmitError::Nobody { .. }) => tokio::time::sleep(Duration::from_millis(50)).await,
                answer => return answer,
            }
        }
    };
    Ok(tokio::time::timeout(LIMIT, asked).await??)
}

/// Serves the group of a member that was taken out, until it is a voter again and has all `len` entries.
async fn healed(
    node: RaftNode,
    hosts: &[Host],
    addresses: &BTreeMap<MemberId, String>,
    len: usize,
) -> anyhow::Result<Host> {
    let listener = TcpListener::bind(&addresses[&node.member()]).await?;
    let back = Host::with(node, listener).await?;
    let leader = &hosts[leader(hosts).await?];
    members_become(&leader.group, addresses).await?;
    eventually("healed", || back.node.healing().is_empty()).await?;
    for list in [&back.list, &leader.list] {
        wait_len(list, len).await?;
    }
    assert_eq!(back.list.all(), leader.list.all());
    Ok(back)
}

/// QUARANTINE-Q2, QUARANTINE-Q3: a step that fails leaves the note as it is, and what comes behind it undone. Until all
/// steps are done the group stays out, also for the next process: an emptied log would pass for a healthy new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q3_a_readmission_of_which_a_step_fails_is_asked_for_again() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut hosts, addresses) = three(dir.path()).await?;
    for n in 1..=20 {
        propose(&hosts, &format!("entry {n:04}")).await?;
    }
    let at = leader(&hosts).await?;
    let hurt = hosts.remove(if at == 0 { 1 } else { 0 });
    wait_len(&hurt.list, 20).await?;
    hurt.group.trigger_snapshot().await?;
    eventually("purged", || hurt.group.status().purged.is_some()).await?;
    propose(&hosts, "entry 0021").await?;
    wait_len(&hurt.list, 21).await?;
    let member = hurt.node.member();
    hurt.end().await;
    let (file, place) = find(dir.path(), member.0, "entry 0021")?;
    flip(&file, place)?;

    let notes = dir.path().join(format!("raft-{}", member.0));
    let snapshot = notes.join(format!("group-{}.snapshot", GROUP.0));
    // Each step in its order, and whether snapshot and log are still there after it has failed.
    for (step, there) in [("snapshot", (true, true)), ("log", (false, true)), ("quarantine", (false, false))] {
        let node = Host::node(dir.path(), member.0)?;
        assert!(is_out(&node).await, "before {step}");
        // In place of the file that is written, or removed first.
        let blocked = notes.join(format!("group-{}.{step}.new", GROUP.0));
        match step {
            "log" => node.log().clone().close(),
            _ => std::fs::create_dir(&blocked)?,
        }
        let failed = readmitted(&node, &addresses).await;
        let failed = failed.expect_err("a step fails");
        assert!(matches!(failed.downcast_ref::<ReadmitError>(), Some(ReadmitError::Io { .. })), "{step}: {failed:#}");
        assert!(is_out(&node).await, "QUARANTINE-Q1, after {step}");
        node.stop().await;
        if step != "log" {
            std::fs::remove_dir(&blocked)?;
        }
        let note = quarantine::load(&notes, GROUP)?.map(|note| note.stage);
        assert_eq!(note, Some(quarantine::Stage::Out), "QUARANTINE-Q2, after {step}");
        let node = Host::node(dir.path(), member.0)?;
        let found = (snapshot.exists(), node.log().group(GROUP).state().last.is_some());
        assert_eq!(found, there, "QUARANTINE-Q3, after {step}");
        node.stop().await;
    }

    let node = Host::node(dir.path(), member.0)?;
    assert!(is_out(&node).await, "QUARANTINE-Q1: it has an empty log");
    readmitted(&node, &addresses).await?;
    healed(node, &hosts, &addresses, 21).await?.end().await;
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_that_is_bad_or_gone_is_damage() -> anyhow::Result<()> {
    for gone in [false, true] {
        let dir = tempfile::tempdir()?;
        let (mut listeners, addresses) = listeners(1).await?;
        let hosts = [Host::start(dir.path(), 1, listeners.remove(0)).await?];
        hosts[0].group.initialize(&addresses).await?;
        for n in 1..=20 {
            propose(&hosts, &format!("entry {n}")).await?;
        }
        hosts[0].group.trigger_snapshot().await?;
        eventually("purged", || hosts[0].group.status().purged.is_some()).await?;
        let [host] = hosts;
        host.end().await;
        let file = dir.path().join("raft-1").join(format!("group-{}.snapshot", GROUP.0));
        match gone {
            true => std::fs::remove_file(&file)?,
            false => flip(&file, 40)?,
        }
        let node = Host::node(dir.path(), 1)?;
        let list = std::sync::Arc::new(crate::group_tests::List::default());
        let started = node.start_group(GROUP, list, None).await;
        assert!(matches!(started, Err(NodeError::Damaged { .. })), "gone {gone}: {:?}", started.err());
        node.stop().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_lost_its_quorum_goes_on_when_one_comes_back() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut hosts, addresses) = three(dir.path()).await?;
    propose(&hosts, "first").await?;
    let at = leader(&hosts).await?;
    let lead = hosts.remove(at);
    let back = hosts[0].node.member();
    for host in hosts.drain(..) {
        host.end().await;
    }
    eventually("cut off", || {
        lead.group.quorum_acked().is_none_or(|(_, at)| crate::boot_now().saturating_since(at) > Duration::from_secs(3))
    })
    .await?;
    let hosts = [lead, Host::start(dir.path(), back.0, TcpListener::bind(&addresses[&back]).await?).await?];
    assert_eq!(propose(&hosts, "second").await?, 2);
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// Copies the journal and snapshots of a stopped member, or restores the copy, as a disk is restored from a backup.
fn copy(from: &Path, to: &Path, member: u64) -> anyhow::Result<()> {
    for folder in [format!("journal-{member}"), format!("raft-{member}")] {
        let (from, to) = (from.join(&folder), to.join(&folder));
        std::fs::remove_dir_all(&to).or_else(|e| if to.exists() { Err(e) } else { Ok(()) })?;
        std::fs::create_dir_all(&to)?;
        for file in std::fs::read_dir(from)? {
            let path = file?.path();
            std::fs::copy(&path, to.join(path.file_name().unwrap_or_default()))?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_log_went_backwards_is_told_ends_and_is_healed() -> anyhow::Result<()> {
    let (dir, backup) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let (mut hosts, addresses) = three(dir.path()).await?;
    for n in 1..=10 {
        propose(&hosts, &format!("entry {n}")).await?;
    }
    let at = leader(&hosts).await?;
    let old = hosts.remove(if at == 0 { 1 } else { 0 });
    let member = old.node.member();
    wait_len(&old.list, 10).await?;
    old.end().await;
    copy(dir.path(), backup.path(), member.0)?;
    let back = Host::start(dir.path(), member.0, TcpListener::bind(&addresses[&member]).await?).await?;
    for n in 11..=20 {
        propose(&hosts, &format!("entry {n}")).await?;
    }
    wait_len(&back.list, 20).await?;
    back.end().await;
    copy(backup.path(), dir.path(), member.0)?;
    let restored = Host::start(dir.path(), member.0, TcpListener::bind(&addresses[&member]).await?).await?;
    let named = format!("group {GROUP}: this member's log went backwards");
    let ended = || {
        let said = crate::group_tests::ABORTED.locked();
        said.iter().any(|why| why.starts_with(&named))
    };
    eventually("the restored member ends", ended).await?;
    assert_eq!(restored.list.len(), 10, "it got nothing on top of a log that denies what it acknowledged");
    restored.end().await;

    // Its next start takes no part until the member was removed.
    let node = Host::node(dir.path(), member.0)?;
    let damaged = node.start_group(GROUP, std::sync::Arc::<crate::group_tests::List>::default(), None).await;
    assert!(matches!(damaged, Err(NodeError::Damaged { .. })), "{:?}", damaged.err());
    eventually("a quorum", || hosts.iter().any(|h| h.group.leading_term().is_some())).await?;
    while node.readmit(GROUP, &addresses).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    healed(node, &hosts, &addresses, 20).await?.end().await;
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r9_a_leader_whose_record_rots_is_out_only_where_the_others_are_a_quorum() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (mut hosts, addresses) = three(dir.path()).await?;
    for n in 1..=5 {
        propose(&hosts, &format!("entry {n}")).await?;
    }
    let at = leader(&hosts).await?;
    let lead = hosts.remove(at);
    eventually("both others answer", || lead.group.may_do_without_me()).await?;
    assert!(!hosts[0].group.may_do_without_me(), "a follower does not know who answers");
    let other = hosts.remove(0);
    let other_member = other.node.member();
    other.end().await;
    eventually("two of three", || !lead.group.may_do_without_me()).await?;
    let addr = &addresses[&other_member];
    hosts.push(Host::start(dir.path(), other_member.0, TcpListener::bind(addr).await?).await?);
    eventually("all of them again", || lead.group.may_do_without_me()).await?;

    let member = lead.node.member();
    let (expected, found) = ("checksum 1".to_string(), "checksum 2".to_string());
    let record = holdfast_log::CorruptRecord { file: "journal-rot".into(), offset: 4096, expected, found };
    lead.node.rotten(lead.group.id(), record.clone());
    let said = crate::group_tests::ABORTED.locked().clone();
    assert!(said.iter().any(|why| why.contains("does not read back") && why.contains("journal-rot")), "{said:?}");
    lead.end().await;

    // The content of the disk at the next start does not matter: the group is quarantined by now, and the others let
    // the member in again as a newcomer.
    let node = Host::node(dir.path(), member.0)?;
    let damaged = node.start_group(GROUP, std::sync::Arc::<crate::group_tests::List>::default(), None).await;
    assert!(matches!(&damaged, Err(NodeError::Damaged { record: noted, .. }) if *noted == record));
    eventually("a leader", || hosts.iter().any(|h| h.group.leading_term().is_some())).await?;
    while node.readmit(GROUP, &addresses).await.is_err() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    healed(node, &hosts, &addresses, 5).await?.end().await;
    for host in hosts {
        host.end().await;
    }
    Ok(())
}

/// QUARANTINE-Q4: a peer that reaches a group that learns again also meets its floor, from the first moment on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn q4_a_group_that_is_learnt_anew_is_not_reached_before_its_floor() -> anyhow::Result<()> {
    use crate::quarantine::{Quarantine, Stage, save};
    let dir = tempfile::tempdir()?;
    let node = Host::node(dir.path(), 1)?;
    let since = LogId::new(3, 77);
    let record = holdfast_log::CorruptRecord {
        file: "journal-1".into(),
        offset: 4096,
        expected: "crc 1".into(),
        found: "crc 2".into(),
    };
    let ids: Vec<GroupId> = (100..160).map(GroupId).collect();
    for id in &ids {
        save(
            &dir.path().join("raft-1"),
            *id,
            &Quarantine { record: record.clone(), stage: Stage::Rejoining { since } },
        )?;
    }
    let (seen, asked) = (node.clone(), ids.clone());
    let peer = std::thread::spawn(move || {
        let meet = |id: &GroupId| {
            let begun = std::time::Instant::now();
            while seen.group(*id).is_none() {
                assert!(begun.elapsed() < LIMIT, "{id} is not there");
                std::hint::spin_loop();
            }
            seen.floor(*id)
        };
        asked.iter().map(meet).collect::<Vec<_>>()
    });
    for id in &ids {
        node.start_group(*id, std::sync::Arc::<crate::group_tests::List>::default(), None).await?;
    }
    let floors = peer.join().map_err(|_| anyhow::anyhow!("a group was not there"))?;
    assert_eq!(floors, vec![Some(since); ids.len()]);
    node.stop().await;
    Ok(())
}
