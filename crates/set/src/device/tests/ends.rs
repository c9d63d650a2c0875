//! What is on its way while a volume changes.

use super::*;
use holdfast_control::set::VolumeChange;

/// MACHINE-M2, VOLUME-V4: the size that a client was told is over. It must not take what is discarded for data that
/// it may rely on, nor for holes of its device.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_the_new_end_of_a_volume_nothing_is_read_written_or_mapped() {
    let world = World::new(true).await;
    let device = world.open().await;
    let end = 1024 * SECTOR_BYTES;
    for offset in [end - 4096, end] {
        assert_eq!(soon(device.clone().write(offset, written().0, false)).await, Ok(()));
    }
    let epoch = world.server.host.with(|machine| machine.state().epoch);
    let change = VolumeChange::Shrink { volume: VolumeId(1), from: Sectors(2048), to: Sectors(1024), epoch };
    let shrink = SetCommand::ChangeVolume { change, request: RequestId(9) };
    let answer = world.server.command("a shrink", &shrink).await;
    assert!(matches!(answer, Ok(SetAnswer::VolumeChanged { .. })), "{answer:?}");
    assert_eq!(device.size(), end);
    for (offset, len, inside) in [(end - 4096, 4096_u32, true), (end - 4096, 8192, false), (end, 4096, false)] {
        let expected = (!inside).then_some(DeviceError::OutOfRange);
        let read = soon(device.clone().read(offset, len)).await;
        assert_eq!(read.err(), expected, "read of {len} bytes at {offset}");
        let status = soon(device.clone().block_status(offset, len.into(), 8)).await;
        assert_eq!(status.err(), expected, "status of {len} bytes at {offset}");
        let data = Bytes::from(vec![9; len as usize]);
        let write = soon(device.clone().write(offset, data, false)).await;
        assert_eq!(write.err(), expected, "write of {len} bytes at {offset}");
    }
}

/// RESIZE-U1: after a command without an outcome, a client that connects could lose the name it has come by.
#[tokio::test]
async fn a_volume_is_held_until_a_change_without_an_outcome_is_applied() {
    let world = World::new(true).await;
    let used = || world.server.use_volume(VolumeId(1), &name("vol1")).is_ok();
    let held = world.server.hold_volume(VolumeId(1), false).expect("nobody uses it");
    world.seat.at().behind = 1;
    let wait = tokio::spawn(held.settled());
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert!(!used(), "the change may be in the log");
    }
    world.seat.at().behind = 0;
    world.seat.at().applied.index.0 += 1;
    world.server.host.changed().notify_waiters();
    soon(wait).await.expect("it is applied");
    assert!(used());
    // Whoever leads no more lets it go.
    let held = world.server.hold_volume(VolumeId(1), false).expect("nobody uses it");
    world.seat.at().leads = false;
    soon(held.settled()).await;
    assert!(used());
}
