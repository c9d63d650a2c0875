use super::*;
use holdfast_types::LogIndex;

/// An error that a retry does not fix must not write the whole memtable every few seconds.
#[test]
fn a_checkpoint_that_meets_damage_waits_for_minutes_and_one_that_meets_an_outage_does_not() {
    let bad = || UploadError::Read(ReadError::Operation { index: LogIndex(7), reason: "of another volume".into() });
    let after = |error: &UploadError| (0..20).fold(Duration::from_millis(100), |pause, _| next_pause(pause, error));
    assert_eq!(after(&bad()), LASTING_PAUSE_MAX);
    assert_eq!(after(&UploadError::Superseded), RETRY_PAUSE_MAX);
    assert_eq!(next_pause(LASTING_PAUSE_MAX, &UploadError::Superseded), RETRY_PAUSE_MAX, "the damage is gone");
    assert_eq!(
        next_pause(Duration::from_millis(100), &bad()),
        Duration::from_millis(200),
        "the first pause is the usual one"
    );
}

/// A checkpoint that is given up in the middle, because the set's stores were changed, is dropped where it waits.
#[test]
fn buffers_are_freed_when_a_checkpoint_is_dropped_in_the_middle() {
    let bodies = Mutex::new(Vec::new());
    let mut checkpoint = Box::pin(async {
        let _freed = FreedUnlessDone { bodies: &bodies, done: false };
        bodies.locked().push(vec![0; 4096]);
        std::future::pending::<()>().await;
    });
    assert!(futures_util::FutureExt::now_or_never(checkpoint.as_mut()).is_none());
    assert_eq!(bodies.locked().len(), 1, "it has a buffer: else nothing is tested");
    drop(checkpoint);
    assert!(bodies.locked().is_empty());
    bodies.locked().push(vec![0; 4096]);
    drop(FreedUnlessDone { bodies: &bodies, done: true });
    assert_eq!(bodies.locked().len(), 1, "the next checkpoint uses it");
}
