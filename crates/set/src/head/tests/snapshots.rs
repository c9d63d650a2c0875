//! Tests of the snapshots that a head lists (ADR 0035).

use super::*;
use holdfast_control::set::{Begin, PendingSnapshot, Snapshot};

/// A snapshot of the checkpoint that began at `begin`, with the content of `commit`.
fn snapshot(begin: u64) -> Snapshot {
    let root = content(begin.into()).root.unwrap();
    let volumes = content(1).volumes.into_iter().collect();
    Snapshot { upto: LogId::new(2, begin), root, volumes, request: RequestId(7), at_unix_ms: 8, scheduled: false }
}

async fn listed(store: &Arc<dyn ObjectStore>) -> Vec<(String, Snapshot)> {
    let list = found(store).await.head.links.snapshots;
    list.snapshots.iter().map(|(name, snapshot)| (name.to_string(), snapshot.clone())).collect()
}

/// SET-S15, SET-S16: a snapshot is listed before anybody learns of it; its own objects stay until no head lists it; and
/// nobody restores it.
#[tokio::test]
async fn a_head_lists_snapshots_and_who_was_cut_off_brings_none_back() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    let lists = |life| {
        let name = Name::new("demo").unwrap();
        HeadKeeper::new(HeadParts { name, life, ..parts(&store, dir.path()) }).unwrap()
    };
    let at = |index| Some(LogId::new(2, index));
    let (old, new) = (lists(FIRST), lists(FIRST));
    let none = SetState::new(Epoch(0));
    assert!(!old.links_settled(&none, Term(2)), "nobody has looked yet");
    old.note(&none, at(9), Some(Term(2)));
    commit(&old, 10).await.unwrap();
    assert!(old.links_settled(&none, Term(2)) && !old.links_settled(&none, Term(3)), "of this leadership only");
    let monday = Name::new("monday").unwrap();
    let mut waits = none.clone();
    let Snapshot { upto, root, volumes, request, at_unix_ms, scheduled } = snapshot(12);
    let pending = PendingSnapshot { request, at_unix_ms, sealed: Some((upto, volumes)), scheduled };
    waits.pending.insert(monday.clone(), pending);
    waits.begin = Some(Begin { at: upto, base: None });
    old.note_root(upto, root);
    old.note(&waits, at(12), Some(Term(2)));
    commit(&old, 12).await.unwrap();
    let expected = [("monday".to_string(), snapshot(12))];
    assert_eq!(listed(&store).await, expected, "in its final form, before its checkpoint ends");
    let mut there = none.clone();
    there.snapshots.insert(monday, snapshot(12));
    old.note(&there, at(13), Some(Term(2)));
    assert!(!old.behind(), "the same list, as of an earlier entry, is no other head");
    // The next leader deletes the snapshot.
    new.read().await.unwrap();
    new.note(&there, at(14), Some(Term(3)));
    assert!(new.behind() && !new.links_settled(&there, Term(3)), "it has not noted what was deleted before it led");
    new.replace_around(Term(3)).await;
    assert!(!new.behind() && new.links_settled(&there, Term(3)));
    assert!(!new.links_settled(&none, Term(3)), "deleted, but not noted yet");
    new.note(&none, at(16), Some(Term(3)));
    assert!(!new.links_settled(&none, Term(3)), "noted, but still listed");
    new.replace_around(Term(3)).await;
    assert!(new.links_settled(&none, Term(3)));
    // The old leader has not applied that.
    commit(&old, 15).await.unwrap();
    old.replace_around(Term(2)).await;
    assert_eq!((listed(&store).await, old.behind()), (Vec::new(), false), "R7: its objects may be deleted");
    new.note(&there, at(20), Some(Term(3)));
    new.replace_around(Term(3)).await;
    // The next life begins with it, whatever its log says.
    let raised = recovery::raise(&found(&store).await, 8, 99).await.unwrap();
    let inherited = [("monday".to_string(), Snapshot { upto: LogId::default(), ..snapshot(12) })];
    assert_eq!(listed(&store).await, inherited);
    let third = lists(raised.head.life);
    let next = Covered { upto: LogId::new(1, 3), generation: 2, at_unix_ms: 1 };
    third.commit(third.store(), Term(1), next, Epoch(5), content(30)).await.unwrap();
    assert_eq!(listed(&store).await, inherited, "before anything is known of the state");
    third.note(&SetState::new(Epoch(0)).with_links(&raised.head.links), None, Some(Term(1)));
    assert!(!third.behind());
}

/// SET-S15 across a takeover: a paused gateway deletes a snapshot that the next life has restored. The head shows this,
///     and none of its objects are retired.
#[tokio::test]
async fn who_was_replaced_retires_nothing_of_what_came_back() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(Memory::new());
    let old = HeadKeeper::new(parts(&store, dir.path())).unwrap();
    let none = SetState::new(Epoch(0));
    let mut there = none.clone();
    there.snapshots.insert(Name::new("monday").unwrap(), snapshot(12));
    old.note(&there, Some(LogId::new(2, 13)), Some(Term(2)));
    commit(&old, 12).await.unwrap();
    assert!(old.links_settled(&there, Term(2)));
    recovery::raise(&found(&store).await, 8, 99).await.unwrap();
    old.note(&none, Some(LogId::new(2, 16)), Some(Term(2)));
    old.replace_around(Term(2)).await;
    assert!(!old.links_settled(&none, Term(2)), "its objects would be deleted");
    assert!(old.fenced().is_some(), "HEAD-H1");
    let inherited = [("monday".to_string(), Snapshot { upto: LogId::default(), ..snapshot(12) })];
    assert_eq!(listed(&store).await, inherited);
}

/// Of two swaps of the same head one is refused: during a commit, which writes everything, no other swap is made. A
/// read and a swap count as a look.
#[tokio::test]
async fn a_commit_replaces_the_head_alone() {
    let dir = tempfile::tempdir().unwrap();
    let faulty = Arc::new(Faulty::new(Memory::new(), 1, Faults::default()));
    let store: Arc<dyn ObjectStore> = faulty.clone();
    let (ours, next) = (keeper(store.clone(), FIRST, dir.path()), keeper(store.clone(), FIRST, dir.path()));
    commit(&ours, 10).await.unwrap();
    know(&ours, &[(5, LogId::new(2, 12))], 12);
    assert!(ours.to_replace());
    faulty.set(Faults { slow: 1000, slow_by: Duration::from_secs(3600), ..Faults::default() });
    tokio::select! {
        biased;
        done = commit(&ours, 15) => panic!("{done:?}"),
        () = async { assert!(ours.behind() && !ours.to_replace()) } => {}
    }
    assert!(ours.to_replace(), "it was given up");
    faulty.set(Faults::default());
    ours.committing.store(true, Ordering::Release);
    ours.replace_around(Term(2)).await;
    assert_eq!(pinned(&store).await, [0; 0]);
    assert!(commit(&ours, 9).await.is_err(), "HEAD-H2");
    assert!(ours.to_replace(), "it was refused");
    ours.replace_around(Term(2)).await;
    assert_eq!(pinned(&store).await, [5]);
    // The next leader, which has read the head and does not know of that.
    next.read().await.unwrap();
    know(&next, &[(5, LogId::new(2, 12)), (6, LogId::new(3, 20))], 20);
    assert!(!next.looks.may_answer(boot_now()));
    next.replace_around(Term(3)).await;
    assert_eq!(pinned(&store).await, [5, 6]);
    assert!(next.looks.may_answer(boot_now()), "the head was this life's, as of now");
}
