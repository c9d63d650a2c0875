//! A write as a connection of the front begins it: between a hold and its release.

use bytes::Bytes;
use holdfast_front::device::{Device, DeviceError};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

/// Writes `data` at `offset`, in bytes. With `held`, the device submits it itself if nothing is in flight; otherwise it
/// wakes a task for it.
pub(super) async fn write(device: Arc<dyn Device>, offset: u64, data: Bytes, held: bool) -> Result<(), DeviceError> {
    let mut write = device.clone().write(offset, data, false);
    if held {
        let begun = poll_fn(|context| {
            device.hold();
            let polled = write.as_mut().poll(context);
            device.release();
            Poll::Ready(polled)
        });
        if let Poll::Ready(done) = begun.await {
            return done;
        }
    }
    write.await
}
