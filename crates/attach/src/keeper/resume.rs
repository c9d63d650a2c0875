//! Devices that an earlier process of the run directory left: resumed or removed.

use super::types::{AttachError, Options};
use crate::device::kernel::{self, Left};
use crate::device::{DeviceError, DeviceKind, DriverError};
use crate::dir::RunDir;
use crate::lease_file::{Lease, LeaseFile};
use holdfast_tls::Dialer;
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

/// Nothing is begun with TLS files that cannot be used. Devices of an earlier process wait until they can (LIVE-C4):
/// nobody starts an attach again that has ended by itself, and their requests would fail in the end.
fn check_tls(left: &Left, dialer: &Dialer) -> Result<(), AttachError> {
    let Some(why) = dialer.unusable() else { return Ok(()) };
    let Left::Devices(lease) = left else { return Err(AttachError::Tls(why)) };
    tracing::error!(
        set = lease.set,
        devices = ?lease.devices,
        why,
        "the devices of an earlier process wait until a gateway can be reached over TLS; the files are read again \
         every few seconds"
    );
    Ok(())
}

/// The lease file, with the lease and devices of an earlier process.
pub(super) async fn earlier(
    options: &Options,
    dir: &Path,
) -> Result<(Option<Arc<LeaseFile>>, Option<Lease>), AttachError> {
    let wanted = options.device == DeviceKind::Kernel;
    let file = LeaseFile::open(dir)?;
    let left = kernel::left(file.lease(), dir, (&options.set, &options.owner), wanted && !options.force)?;
    // Before anything is touched.
    check_tls(&left, &options.dialer)?;
    let left = match left {
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

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_tls::make::{Wanted, certificates};
    use holdfast_tls::{Role, TlsFiles};
    use holdfast_types::Token;

    /// LIVE-C4: an attach that was killed goes on with its devices, also if a renewal of its certificate went wrong
    /// long before.
    #[test]
    fn devices_wait_for_tls_files_that_cannot_be_used() {
        let dir = tempfile::tempdir().unwrap();
        certificates(dir.path(), &[Wanted::new("db1", Role::Host)], 30).unwrap();
        let at = |name: &str| Some(dir.path().join(name));
        let files = TlsFiles { ca: at("ca.pem"), certificate: at("db1.pem"), key: at("db1.key") };
        let dialer = || Dialer::from(files.load_or_later(Role::Host).unwrap().as_ref());
        let (set, owner) = (Name::new("demo").unwrap(), Owner::new("db1").unwrap());
        let devices = Left::Devices(Lease::new(&set, &owner, Token(1), &[]));
        let none = Left::Orphans(Vec::new());
        for left in [&devices, &none] {
            check_tls(left, &dialer()).unwrap();
            check_tls(left, &Dialer::default()).unwrap();
        }
        std::fs::write(dir.path().join("db1.pem"), "").unwrap();
        let refused = check_tls(&none, &dialer()).unwrap_err().to_string();
        assert!(refused.contains("db1.pem"), "{refused}");
        check_tls(&devices, &dialer()).unwrap();
    }
}
