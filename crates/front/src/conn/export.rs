//! The device that a connection serves, and whether a request fits it.

use crate::device::Device;
use holdfast_nbd::server::{EXTENTS_PER_REPLY_MAX, Request};
use holdfast_nbd::{Errno, HeaderStyle};
use holdfast_types::SECTOR_BYTES;
use std::sync::Arc;

pub(super) struct Export {
    pub(super) device: Arc<dyn Device>,
    read_only: bool,
    style: HeaderStyle,
    /// Size of the device when it was last asked for.
    size: u64,
}

impl Export {
    pub(super) fn new(device: Arc<dyn Device>, read_only: bool, style: HeaderStyle) -> Self {
        Self { size: device.size(), device, read_only, style }
    }

    /// Whether the request may pass its check when it begins. Asks the device, which takes a lock, only if the last
    /// known size is too small.
    pub(super) fn may_fit(&mut self, request: &Request) -> bool {
        if request.check(self.size, false, self.style).is_ok() {
            return true;
        }
        self.size = self.device.size();
        request.check(self.size, false, self.style).is_ok()
    }

    /// Checks a request that begins now.
    ///
    /// # Errors
    /// The error to answer with.
    pub(super) fn check(&mut self, request: &Request) -> Result<(), Errno> {
        self.size = self.device.size();
        request.check(self.size, self.read_only, self.style)
    }
}

/// Maximum number of extents in an answer about `len` bytes: none is shorter than a sector.
pub(super) fn extents_most(len: u64, one: bool) -> usize {
    if one { 1 } else { (len / SECTOR_BYTES).min(EXTENTS_PER_REPLY_MAX as u64) as usize }
}
