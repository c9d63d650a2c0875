//! Operations that are longer than a device takes at once.

use super::device::DeviceError;
use futures_util::future::BoxFuture;

/// A zeroing or trim beyond 32 bits (extended headers only) is carried out in steps of this length.
const STEP_BYTES: u64 = 2 << 30;

/// One operation for what fits 32 bits, else one after another.
pub(super) fn in_steps(
    offset: u64,
    len: u64,
    operation: impl Fn(u64, u32) -> BoxFuture<'static, Result<(), DeviceError>> + Send + 'static,
) -> BoxFuture<'static, Result<(), DeviceError>> {
    if let Ok(len) = u32::try_from(len) {
        return operation(offset, len);
    }
    Box::pin(async move {
        let mut done = 0;
        while done < len {
            let step = (len - done).min(STEP_BYTES);
            operation(offset + done, step as u32).await?;
            done += step;
        }
        Ok(())
    })
}
