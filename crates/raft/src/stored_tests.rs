//! A follower answers when its disk has an append: not sooner, and not through openraft's core (ADR 0072).

use crate::append_tests::Teller;
use crate::appender::{Appender, Taken};
use crate::config::TypeConfig;
use crate::group::RaftGroup;
use crate::group_tests::{GROUP, Host, LIMIT, List, hold_journal};
use crate::log_store::LogStore;
use crate::node::RaftNode;
use crate::store_tests::in_turns;
use crate::stored::{self, Told};
use crate::wire::{RaftEntryOf, entry_from_parts, id_to_raft, ticket_of, vote_from_bytes};
use bytes::Bytes;
use futures_util::FutureExt;
use holdfast_types::{GroupId, LogId, MemberId};
use openraft::raft::StreamAppendError;
use openraft::storage::{IOFlushed, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use std::path::Path;
use std::sync::Arc;
use tokio::sync::oneshot::error::TryRecvError;

/// An entry of term 1 with a ticket.
fn carrying(index: u64) -> (RaftEntryOf, Told) {
    let entry = entry_from_parts(LogId::new(1, index), Bytes::from_static(b"entry"));
    let (mut entry, (ticket, told)) = (entry.expect("decodes"), stored::ticket());
    *ticket_of(&mut entry).expect("not a blank one") = Some(ticket);
    (entry, told)
}

/// STORED-T2.
#[tokio::test]
async fn r1_a_ticket_is_told_once_its_append_is_on_the_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let (log, mut turns) = in_turns(dir.path());
    let mut store = LogStore::new(log.group(GroupId(7)), Arc::default());
    let ((first, mut of_first), (second, mut of_second)) = (carrying(0), carrying(1));
    store.append([first], IOFlushed::noop()).await.expect("queued");
    store.append([second], IOFlushed::noop()).await.expect("queued");
    let waits: Result<(), _> = Err(TryRecvError::Empty);
    assert_eq!((of_first.try_recv(), of_second.try_recv()), (waits.clone(), waits), "before the disk has anything");
    // One batch: the journal calls back for the second append alone.
    turns.turn(false);
    assert_eq!((of_first.try_recv(), of_second.try_recv()), (Ok(()), Ok(())));
}

/// The journal calls back from its thread, or from a task on the worker (`journal.io`). Of the connection's task and
/// openraft's the first one runs first, else each answer waits for a pass of openraft's core.
#[test]
fn the_answer_to_the_leader_is_first_wherever_the_journal_calls_back() -> anyhow::Result<()> {
    for by_task in [false, true] {
        let dir = tempfile::tempdir()?;
        let (log, mut turns) = in_turns(dir.path());
        let mut store = LogStore::new(log.group(GroupId(7)), Arc::default());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (ran, mut order) = tokio::sync::mpsc::unbounded_channel();
        let (entry, told) = carrying(0);
        let (flushed, completed) = TypeConfig::oneshot::<std::io::Result<()>>();
        runtime.block_on(store.append([entry], IOFlushed::<TypeConfig>::signal(flushed)))?;
        let core_ran = ran.clone();
        runtime.spawn(async move {
            ran.send("waits").expect("the test waits");
            told.await.expect("told");
            ran.send("connection").expect("the test waits");
        });
        runtime.spawn(async move {
            core_ran.send("waits").expect("the test waits");
            completed.await.expect("called back").expect("durable");
            core_ran.send("core").expect("the test waits");
        });
        let mut next_two = || {
            let both = async { (order.recv().await, order.recv().await) };
            runtime.block_on(async { tokio::time::timeout(LIMIT, both).await })
        };
        assert_eq!(next_two()?, (Some("waits"), Some("waits")));
        if by_task {
            runtime.block_on(runtime.spawn(async move { turns.turn(false) }))?;
        } else {
            // The worker has something else to do meanwhile.
            let (entered, busy) = std::sync::mpsc::channel();
            let (release, held) = std::sync::mpsc::channel::<()>();
            let holding = runtime.spawn(async move {
                entered.send(()).expect("the test waits");
                // Until the other end is dropped.
                let _ = held.recv();
            });
            busy.recv()?;
            turns.turn(false);
            drop(release);
            runtime.block_on(holding)?;
        }
        assert_eq!(next_two()?, (Some("connection"), Some("core")), "called back by a task: {by_task}");
    }
    Ok(())
}

/// STORED-T2, R9.
#[tokio::test]
async fn r9_a_ticket_is_not_told_of_an_append_that_failed() {
    let dir = tempfile::tempdir().expect("a folder");
    let (log, mut turns) = in_turns(dir.path());
    let mut store = LogStore::new(log.group(GroupId(7)), Arc::default());
    let ((first, mut of_first), (gap, mut of_gap)) = (carrying(0), carrying(9));
    store.append([first], IOFlushed::noop()).await.expect("queued");
    turns.turn(false);
    assert_eq!(of_first.try_recv(), Ok(()));
    // The journal refuses what does not continue the log.
    store.append([gap], IOFlushed::noop()).await.expect("queued");
    turns.turn(false);
    assert_eq!(of_gap.try_recv(), Err(TryRecvError::Closed));
}

/// STORED-T1.
#[test]
fn a_copy_of_an_entry_has_no_ticket() {
    let (mut entry, mut told) = carrying(0);
    let mut copy = entry.clone();
    assert_eq!(copy, entry);
    assert!(ticket_of(&mut copy).is_some_and(|place| place.is_none()), "two requests would have one ticket");
    assert!(ticket_of(&mut entry).is_some_and(|place| place.is_some()));
    drop(entry);
    assert_eq!(told.try_recv(), Err(TryRecvError::Closed), "the copy kept it");
}

/// Member 1, and member 9 as its leader of term 3, which has sent the entry of index 0. So the vote is on the disk.
async fn led(dir: &Path) -> anyhow::Result<(RaftNode, Arc<RaftGroup>, Appender)> {
    let node = Host::node(dir, 1)?;
    let group = node.start_local(GROUP, Arc::new(List::default()), None).await?;
    let appender = Appender { node: node.clone(), group: group.clone(), from: MemberId(9) };
    assert_eq!(last(appender.take(Teller::request(3, &["zero"]))?).await?, Some(LogId::new(3, 0)));
    Ok((node, group, appender))
}

/// The entry up to which a request is acknowledged.
async fn last(answer: Taken) -> anyhow::Result<Option<LogId>> {
    match tokio::time::timeout(LIMIT, answer).await?? {
        Ok(id) => Ok(id.as_ref().map(crate::wire::id_from_raft)),
        Err(other) => anyhow::bail!("found {other:?}, expected an acknowledgement"),
    }
}

async fn until(what: impl Fn() -> bool) -> anyhow::Result<()> {
    let comes = async {
        while !what() {
            tokio::task::yield_now().await;
        }
    };
    Ok(tokio::time::timeout(LIMIT, comes).await?)
}

/// The core is held while the disk is done: the answer does not need it.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_follower_answers_while_its_core_is_busy() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (node, group, appender) = led(dir.path()).await?;
    let go_on = hold_journal(&node).await?;
    let mut answer = appender.take(Teller::after(3, Some(0), &["one"]))?;
    assert!((&mut answer).now_or_never().is_none(), "the disk is held");
    let one = LogId::new(3, 1);
    until(|| group.parts.log.state().last == Some(one)).await?;
    // What the core refuses is told at once, as what it is, whatever is on the disk.
    let stale = tokio::time::timeout(LIMIT, appender.take(Teller::after(2, Some(0), &["other"]))?).await??;
    assert!(matches!(stale, Err(StreamAppendError::HigherVote(_))), "{stale:?}");
    assert!((&mut answer).now_or_never().is_none(), "it is not on the disk yet");

    let (entered, busy) = tokio::sync::oneshot::channel();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let core = group.clone();
    let holding = tokio::spawn(async move {
        let holds = core.raft().with_raft_state(move |_| {
            let _ = entered.send(());
            // Until the other end is dropped.
            let _ = held.recv();
        });
        holds.await.map_err(|e| e.to_string())
    });
    tokio::time::timeout(LIMIT, busy).await??;
    drop(go_on);
    let acknowledged = last(answer).await;
    drop(release);
    assert_eq!(acknowledged?, Some(one));
    holding.await?.map_err(anyhow::Error::msg)?;
    node.stop().await;
    Ok(())
}

/// The vote of a later term comes between acceptance and disk, and its leader takes the entry away. The answer is for
/// the leader of the request's term, and says what was true before that vote was on the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_append_before_a_later_vote_is_answered_for_its_own_term() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let (node, group, appender) = led(dir.path()).await?;
    let go_on = hold_journal(&node).await?;
    let mut answer = appender.take(Teller::after(3, Some(0), &["one"]))?;
    assert!((&mut answer).now_or_never().is_none(), "the disk is held");
    let (one, log) = (LogId::new(3, 1), group.parts.log.clone());
    until(|| log.state().last == Some(one)).await?;
    let mut overwrites = Teller::after(4, Some(0), &["other"]);
    overwrites.prev_log_id = Some(id_to_raft(LogId::new(3, 0)));
    let mut later = appender.take(overwrites)?;
    assert!((&mut later).now_or_never().is_none(), "its vote is not on the disk yet");
    let voted = || log.state().vote.as_deref().and_then(vote_from_bytes).map(|vote| vote.leader_id.term);
    until(|| voted() == Some(4)).await?;
    assert!((&mut answer).now_or_never().is_none() && (&mut later).now_or_never().is_none(), "nothing is on the disk");
    drop(go_on);
    assert_eq!(last(answer).await?, Some(one));
    assert_eq!(last(later).await?, Some(LogId::new(4, 1)));
    let kept: Vec<Bytes> = log.entries(0..9, usize::MAX).await?.into_iter().map(|entry| entry.payload).collect();
    assert_eq!(kept, ["zero", "other"]);
    node.stop().await;
    Ok(())
}
