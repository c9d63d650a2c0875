//! The changes that a connection begins in one poll (CONN-C10).

use crate::device::Device;
use std::sync::Arc;

/// Between [`Device::hold`] and [`Device::release`].
pub(super) struct Burst(Arc<dyn Device>);

impl Burst {
    pub(super) fn begin(device: Arc<dyn Device>) -> Self {
        device.hold();
        Self(device)
    }
}

/// Also where the connection ends in the middle of a poll: what has begun must not wait for ever.
impl Drop for Burst {
    fn drop(&mut self) {
        self.0.release();
    }
}
