//! Devices that an earlier process of the run directory left: resumed or removed.

use super::types::{AttachError, Options};
use crate::device::kernel::{self, Left};
use crate::device::{DeviceError, DeviceKind, DriverError};
use crate::dir::RunDir;
use crate::lease_file::{Lease, LeaseFile};
use holdfast_types::{Name, Owner};
use std::path::Path;
use std::sync::Arc;

/// Disconnects the devices that an earlier process of a run directory left in the kernel. Every request on them fails
/// for good. Returns their number.
///
/// # Errors
/// [`AttachError`]; a process that still runs must be detached instead.
pub async fn abandon(dir: &Path, set: &Name, owner: &Owner) -> Result<usize, AttachError> {
    let held = RunDir::take(dir)?;
    // The devices' names in the kernel show that they belong to this directory.
    let file = LeaseFile::unread(held.path());
    let Left::Orphans(orphans) = kernel::left(None, held.path(), (set, owner), false)? else { return Ok(0) };
    // First, so that no later process uses them again.
    file.remove();
    Ok(disconnect(orphans).await?)
}

async fn disconnect(orphans: Vec<u32>) -> Result<usize, DeviceError> {
    if orphans.is_empty() {
        return Ok(0);
    }
    let done = tokio::task::spawn_blocking(move || kernel::disconnect(&orphans)).await;
    Ok(done.unwrap_or_else(|error| Err(DriverError::Answer(error.to_string())))?)
}

/// The lease file, with the lease and devices of an earlier process.
pub(super) async fn earlier(
    options: &Options,
    dir: &Path,
) -> Result<(Option<Arc<LeaseFile>>, Option<Lease>), AttachError> {
    let wanted = options.device == DeviceKind::Kernel;
    let file = LeaseFile::open(dir)?;
    let left = match kernel::left(file.lease(), dir, (&options.set, &options.owner), wanted && !options.force)? {
        Left::Devices(lease) => Some(lease),
        Left::Orphans(orphans) => {
            file.remove();
            let count = disconnect(orphans).await?;
            if count > 0 {
                tracing::warn!(set = %options.set, count, "devices that an earlier process left were disconnected");
            }
            None
        }
    };
    Ok((wanted.then(|| Arc::new(file)), left))
}
