//! When a read of the head, or a commit, counts as sent.

use super::super::freshness::FRESH_FOR;
use super::*;
use holdfast_types::MonoTime;

/// Notes when the store was asked last, and lets it answer only once that moment is over.
#[derive(Debug, Default)]
struct Asked(Mutex<MonoTime>);

impl Asked {
    async fn note(&self) {
        let now = boot_now();
        *self.0.locked() = now;
        while boot_now() <= now {
            tokio::task::yield_now().await;
        }
    }
}

impl Hook for Asked {
    async fn before_get(&self) {
        self.note().await;
    }

    async fn before_swap(&self) {
        self.note().await;
    }
}

/// HEAD-H1: what an answer says was so when it was asked for. Another life may have begun since, while the answer was
/// on its way.
#[tokio::test]
async fn a_look_and_a_commit_count_from_the_moment_in_which_they_are_sent() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Hooked { within: Arc::new(Memory::new()), hook: Asked::default() });
    let keeper = keeper(store.clone(), FIRST, dir.path());
    // The first moment in which what was asked for last counts no more.
    let over = || MonoTime(store.hook.0.locked().0 + 1).saturating_add(FRESH_FOR);
    commit(&keeper, 10).await.unwrap();
    assert!(!keeper.looks.may_answer(over()), "a commit counts from its answer");
    look_is_old(&keeper);
    assert!(matches!(keeper.look().await, Some(Ok(Some(_)))));
    assert!(keeper.looks.may_answer(boot_now()));
    assert!(!keeper.looks.may_answer(over()), "a look counts from its answer");
}
