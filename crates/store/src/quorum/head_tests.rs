//! Heads that are set back, marked late, or cannot be written: how they become valid again, and what is reported
//! meanwhile.

use super::*;

/// A mender was interrupted after all others had noted the restart, or its mark arrived late: the mark is no longer
/// valid.
#[tokio::test]
async fn a_mark_of_a_restart_that_has_been_is_replaced() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    let one = all.swap(HEAD, None, text("1")).await.expect("first");
    stores[1].delete(HEAD).await.expect("delete");
    head_is_whole(&all).await;
    stores[1].delete(HEAD).await.expect("delete");
    let mark = register::encode_mark(register::Seat { index: 1, n: 3, w: 2 }, 1, 7);
    stores[1].swap(HEAD, None, mark).await.expect("late");
    head_is_whole(&all).await;
    down(&stores[0], true);
    all.swap(HEAD, Some(&one), text("2")).await.expect("it counts again");
}

/// An earlier state of a bucket is restored, against the advice: nothing is lost by that, and the store becomes usable
/// again.
#[tokio::test]
async fn an_entry_of_an_earlier_restart_is_mended_like_a_lost_one() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    let one = all.swap(HEAD, None, text("1")).await.expect("first");
    head_is_whole(&all).await;
    let old = stores[1].get(HEAD).await.expect("entry");
    stores[1].delete(HEAD).await.expect("delete");
    head_is_whole(&all).await;
    let version = stores[1].get_object(HEAD).await.expect("entry").version;
    stores[1].swap(HEAD, Some(&version), old).await.expect("set back");
    down(&stores[0], true);
    let error = all.swap(HEAD, Some(&one), text("2")).await.expect_err("it counts for nothing");
    assert!(error.to_string().contains("has an old head"), "{error}");
    down(&stores[0], false);
    let _ = all.mend_heads(SET).await;
    let behind: Vec<bool> = all.standings(0).iter().map(|standing| standing.backlog.head).collect();
    assert_eq!(behind, [false, true, false], "and that is shown, of this one only");
    head_is_whole(&all).await;
    down(&stores[0], true);
    all.swap(HEAD, Some(&one), text("2")).await.expect("it counts again");
}

#[tokio::test]
async fn who_cannot_write_is_told_so_and_not_of_other_writers() {
    let stores = stores(3);
    let all = quorum(&stores, 2);
    let one = all.swap(HEAD, None, text("1")).await.expect("first");
    head_is_whole(&all).await;
    down(&stores[2], true);
    all.swap(HEAD, Some(&one), text("2")).await.expect("two of three");
    // The other majority shows it undecided, and it cannot be written.
    down(&stores[2], false);
    down(&stores[0], true);
    [1, 2].into_iter().for_each(|at: usize| stores[at].within().set(Faults { full: 1000, ..Faults::default() }));
    let error = all.get(HEAD).await.expect_err("it cannot be decided");
    assert_eq!(error.kind(), Some(crate::Kind::Full), "{error}");
    assert!(!error.to_string().contains("other writers"), "{error}");
    stores.iter().for_each(|store| store.within().set(Faults::default()));
    stores[0].delete(HEAD).await.expect("delete");
    stores[1].delete(HEAD).await.expect("delete");
    let error = all.swap(HEAD, Some(&one), text("3")).await.expect_err("two of three are empty");
    assert!(error.to_string().contains("too many have lost theirs to be repaired"), "{error}");
}

#[tokio::test]
async fn a_seat_that_is_taken_is_trouble_of_that_store() {
    let stores = stores(3);
    quorum(&stores, 2).swap(HEAD, None, text("1")).await.expect("first");
    let health: Vec<Arc<Health>> = (0..3).map(|at| Arc::new(Health::new(format!("{at}")))).collect();
    let observed = |at: usize| (stores[[1, 2, 0][at]].clone() as Arc<dyn ObjectStore>, Some(health[at].clone()));
    let turned = Quorum::new((0..3).map(observed).collect(), 2);
    turned.get(HEAD).await.expect_err("another order");
    let now = holdfast_host::unix_ms();
    for standing in turned.standings(now) {
        let trouble = standing.standing.now.expect("shown");
        assert!(trouble.kind.needs_operator() && trouble.error.contains("expected that of store"), "{trouble:?}");
    }
}
