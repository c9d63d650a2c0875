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

/// What is read back from the disk could have been uploaded from memory. But small pieces, and data that is
/// overwritten, are cheaper in large checkpoints.
#[test]
fn data_in_large_pieces_is_uploaded_while_it_is_in_memory() {
    const MIB: u64 = 1 << 20;
    let large = UploadSettings::large_bytes_for;
    assert_eq!((large(256 * MIB, 128 * MIB), large(32 * MIB, 128 * MIB)), (64 * MIB, 32 * MIB));
    assert_eq!(large(1024 * MIB, 128 * MIB), 1024 * MIB, "large checkpoints are wanted");
    let settings = UploadSettings {
        bytes: 256 * MIB,
        large_bytes: 64 * MIB,
        interval: Duration::from_secs(15),
        parallel: 4,
        codec: holdfast_volume::segment::Codec::Lz4,
        target_percent: 130,
        moves: holdfast_volume::space::MoveLimits::default(),
        keep_uploaded: true,
    };
    let enough = |bytes, live, extents| settings.is_enough(Written { bytes, live, extents });
    assert!(enough(64 * MIB, 64 * MIB, 512), "extents of 128 KiB");
    assert!(!enough(64 * MIB - 1, 64 * MIB - 1, 512), "too little");
    assert!(!enough(200 * MIB, 200 * MIB, 25_600), "extents of 8 KiB");
    assert!(!enough(200 * MIB, 16 * MIB, 128), "most of it is overwritten");
    assert!(!enough(0, 0, 0));
    assert!(enough(256 * MIB, 256 * MIB, 32_768) && enough(256 * MIB, MIB, 8));
}
