use super::*;
use holdfast_types::LogIndex;

/// An error that a retry does not fix must not write the whole generation every few seconds.
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
