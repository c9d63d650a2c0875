use super::*;
use crate::{Faults, Faulty, Memory, RetryPolicy, Retrying, keys};
use futures_util::future::join_all;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

type Store = Retrying<Faulty<Memory>>;

fn store(seed: u64, faults: Faults) -> Store {
    let policy = RetryPolicy { attempts_max: 4, backoff_first_ms: 1, backoff_max_ms: 2, ..RetryPolicy::default() };
    Retrying::new(Faulty::new(Memory::new(), seed, faults), policy)
}

/// Number of the objects that are there.
fn left(store: &Store) -> usize {
    store.within().within().len()
}

#[tokio::test]
async fn a_store_that_does_as_it_should_passes_and_keeps_nothing() {
    // Every request is counted, because each is a slow one.
    let store = store(0, Faults { slow: 1000, ..Faults::default() });
    let report = check(&store, 1, PATIENCE).await.expect("fit");
    assert_eq!(report.place, store.place());
    assert_eq!(left(&store), 0);
    assert_eq!(
        store.within().counts().slowed,
        27,
        "as docs/operating/stores.md says, and a page more: memory has small ones"
    );
}

#[tokio::test]
async fn two_at_once_do_not_disturb_one_another() {
    let store = store(0, Faults { gives_way: true, ..Faults::default() });
    let (one, other) = tokio::join!(check(&store, 1, PATIENCE), check(&store, 2, PATIENCE));
    assert!(one.is_ok() && other.is_ok(), "{one:?}, {other:?}");
    assert_eq!(left(&store), 0);
    for name in [Names::of(0).once, Names::of(u128::MAX).swapped] {
        assert_eq!(keys::check(&name), Ok(()));
        assert_eq!(keys::set_of(&name), None, "no set's");
    }
}

/// The normal case. Also if every second request fails, with or without an effect.
#[tokio::test]
async fn a_store_that_ignores_conditions_is_found_and_keeps_nothing() {
    let lossy = Faults { fail_before: 300, fail_after: 300, ..Faults::default() };
    let weathers = (0..6).map(|seed| (seed, if seed == 0 { Faults::default() } else { lossy.clone() }));
    let found = weathers.map(|(seed, weather)| async move {
        for (faults, word) in [
            (Faults { ignores_if_none_match: true, ..weather.clone() }, "If-None-Match"),
            (Faults { ignores_if_match: true, ..weather.clone() }, "If-Match"),
        ] {
            let store = store(seed, faults);
            let error = check(&store, 1, PATIENCE).await.expect_err(word);
            assert!(matches!(error, CheckError::Unfit { .. }) && !error.is_undecided(), "seed {seed}: {error}");
            let text = error.to_string();
            for part in [word, "faulty memory", "found a PUT with", "expected 412", "use a store that honours"] {
                assert!(text.contains(part), "seed {seed}: {part:?} in {text}");
            }
            assert_eq!(left(&store), 0, "seed {seed}");
        }
    });
    join_all(found).await;
}

/// A proxy in front of the store refuses segments: the journal could not be uploaded, and would fill.
#[tokio::test]
async fn a_store_that_refuses_a_segment_is_found_and_keeps_nothing() {
    // `client_max_body_size 16m`: a segment is closed at 16 MiB or above.
    for most in [1 << 20, 16 << 20, 17 << 20] {
        let store = store(0, Faults { refuses_above: Some(most), ..Faults::default() });
        let error = check(&store, 1, PATIENCE).await.expect_err("too large");
        assert!(
            !error.is_undecided() && error.to_string().contains("-large\" at") && error.to_string().contains("413"),
            "{most}: {error}"
        );
        assert_eq!(left(&store), 0, "{most}");
    }
}

/// A loop over pages would never end, or would skip keys.
#[tokio::test]
async fn a_store_that_lists_in_another_order_is_found_and_keeps_nothing() {
    let lossy = Faults { fail_before: 300, fail_after: 300, stale_list: 300, ..Faults::default() };
    for (faults, word) in [
        (Faults { ignores_start_after: true, ..Faults::default() }, "ignores start-after"),
        (Faults { unsorted_list: true, ..Faults::default() }, "do not ascend"),
        (Faults { ignores_start_after: true, ..lossy.clone() }, "ignores start-after"),
        (Faults { unsorted_list: true, ..lossy.clone() }, "do not ascend"),
    ] {
        let store = store(3, faults);
        let error = check(&store, 1, PATIENCE).await.expect_err(word);
        assert!(matches!(error, CheckError::Unfit { .. }) && !error.is_undecided(), "{error}");
        assert!(error.to_string().contains(word), "{word:?} in {error}");
        assert_eq!(left(&store), 0, "{word}");
    }
}

/// CHECK-F1: a lost answer proves nothing, and neither does an outdated listing.
#[tokio::test]
async fn a_store_that_loses_answers_passes() {
    let lossy = Faults {
        fail_before: 300,
        fail_after: 300,
        own_conflict: 100,
        missing_once: 300,
        truncate: 100,
        stale_list: 300,
        flip_bit: 50,
        empty_first_page: true,
        ..Faults::default()
    };
    let checked = (0..12).map(|seed| {
        let store = store(seed, lossy.clone());
        async move {
            let checked = check(&store, 1, PATIENCE).await;
            assert!(checked.is_ok(), "seed {seed}: {checked:?}");
            assert_eq!(left(&store), 0, "seed {seed}");
        }
    });
    join_all(checked).await;
}

#[tokio::test]
async fn a_store_that_is_away_is_neither_fit_nor_unfit_and_is_waited_for_no_longer_than_asked() {
    let soon = Duration::from_millis(300);
    let hangs = Faults { slow: 1000, slow_by: Duration::from_secs(3600), ..Faults::default() };
    for (faults, says) in [
        (Faults { down: true, ..Faults::default() }, "not checked: put "),
        (Faults { fail_after: 1000, ..Faults::default() }, "outcome unknown"),
        (hangs, "no answer within 300 ms"),
    ] {
        let store = store(0, faults);
        let ended = timeout(PATIENCE, check(&store, 1, soon)).await.expect("CHECK-F3");
        let error = ended.expect_err(says);
        assert!(error.is_undecided() && error.to_string().contains(says), "{error}");
        assert_eq!(left(&store), 0, "{says}");
    }
}

#[tokio::test]
async fn a_store_that_refuses_is_told_in_its_own_words() {
    let store = store(0, Faults { deny: 1000, ..Faults::default() });
    let error = check(&store, 1, PATIENCE).await.expect_err("denied");
    assert!(!error.is_undecided() && error.to_string().contains("ExpiredToken"), "{error}");
}
