//! Block devices over the Unix sockets.

mod driver;
mod error;
mod flush;
pub(crate) mod kernel;
mod nbdfuse;
mod netlink;

use crate::lease_file::Lease;
use crate::shared::Shared;
use holdfast_types::Name;
use std::path::Path;
use std::sync::Arc;
use tokio::time::Instant;

pub use driver::DriverError;
pub use error::DeviceError;
pub(crate) use flush::SYNC_LIMIT;
pub(crate) use kernel::Growth;
pub use kernel::KernelOptions;

/// Which devices to make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// The kernel's driver where there is one, else nbdfuse where it is installed.
    #[default]
    Auto,
    /// None: the Unix sockets only.
    None,
    /// nbdfuse shows the socket as a file, a loop device makes that a device.
    Nbdfuse,
    /// The kernel's nbd driver.
    Kernel,
}

/// How devices are made.
#[derive(Clone, Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) kind: DeviceKind,
    pub(crate) set: &'a Name,
    pub(crate) dir: &'a Path,
    /// Of nbdfuse to the volume's socket.
    pub(crate) connections: u8,
    pub(crate) kernel: KernelOptions,
}

/// The devices of a set.
#[derive(Debug)]
pub(crate) enum Devices {
    None,
    Nbdfuse(Vec<nbdfuse::Device>),
    Kernel(Vec<kernel::Device>),
}

/// The kind that will be used on this host. Loads the kernel's driver only if it was requested by name.
pub(crate) async fn choose(kind: DeviceKind) -> Result<DeviceKind, DeviceError> {
    match kind {
        DeviceKind::None | DeviceKind::Nbdfuse => Ok(kind),
        DeviceKind::Kernel => Ok(kernel::is_there(true).await.map(|()| kind)?),
        DeviceKind::Auto => match kernel::is_there(false).await {
            Ok(()) => Ok(DeviceKind::Kernel),
            Err(_) if nbdfuse::is_there() => Ok(DeviceKind::Nbdfuse),
            Err(error) => Err(DeviceError::NoWay(error)),
        },
    }
}

impl Devices {
    /// Makes one device per volume; `plan.kind` was chosen by [`choose`]. `on_end` is called when one ends by itself.
    pub(crate) async fn make(
        plan: Plan<'_>,
        shared: &Arc<Shared>,
        on_end: impl Fn(String) + Clone + Send + 'static,
    ) -> Result<Self, DeviceError> {
        let Plan { kind, set, dir, connections, kernel } = plan;
        let mut made = match kind {
            DeviceKind::None | DeviceKind::Auto => return Ok(Self::None),
            DeviceKind::Nbdfuse => Self::Nbdfuse(Vec::new()),
            DeviceKind::Kernel => Self::Kernel(Vec::new()),
        };
        for (volume, facts) in shared.all_facts().into_iter().enumerate() {
            let on_end = on_end.clone();
            let one = match &mut made {
                Self::None => Ok(()),
                Self::Nbdfuse(devices) => nbdfuse::Device::make(set, &facts.name, dir, connections, on_end)
                    .await
                    .map(|device| devices.push(device)),
                Self::Kernel(devices) => kernel::Device::make(shared, volume, &facts, dir, kernel, on_end)
                    .await
                    .map(|device| devices.push(device))
                    .map_err(DeviceError::from),
            };
            if let Err(error) = one {
                made.stop(Instant::now() + SYNC_LIMIT).await;
                return Err(error);
            }
        }
        Ok(made)
    }

    /// Like `make`, over sockets in `dir` that are served without a lease. `kind` is nbdfuse or none.
    pub(crate) async fn of_sockets(
        kind: DeviceKind,
        set: &Name,
        volumes: &[Name],
        dir: &Path,
        connections: u8,
        on_end: impl Fn(String) + Clone + Send + 'static,
    ) -> Result<Self, DeviceError> {
        if kind != DeviceKind::Nbdfuse {
            return Ok(Self::None);
        }
        let mut devices = Vec::new();
        for volume in volumes {
            match nbdfuse::Device::make(set, volume, dir, connections, on_end.clone()).await {
                Ok(device) => devices.push(device),
                Err(error) => {
                    Self::Nbdfuse(devices).stop(Instant::now() + SYNC_LIMIT).await;
                    return Err(error);
                }
            }
        }
        Ok(Self::Nbdfuse(devices))
    }

    /// Continues with the devices that an earlier process left in the kernel.
    pub(crate) async fn resume(
        lease: &Lease,
        dir: &Path,
        shared: &Arc<Shared>,
        on_end: impl Fn(String) + Clone + Send + 'static,
    ) -> Result<Self, DeviceError> {
        let mut devices = Vec::new();
        for (volume, facts) in shared.all_facts().into_iter().enumerate() {
            let Some(index) = lease.devices.get(volume) else { continue };
            let left = (*index, &facts);
            devices.push(kernel::Device::resume(shared, volume, left, dir, lease.sockets, on_end.clone()).await?);
        }
        Ok(Self::Kernel(devices))
    }

    /// N of each /dev/nbdN.
    pub(crate) fn numbers(&self) -> Option<Vec<u32>> {
        match self {
            Self::None | Self::Nbdfuse(_) => None,
            Self::Kernel(devices) => Some(devices.iter().map(kernel::Device::index).collect()),
        }
    }

    /// The block device of a volume.
    pub(crate) fn path(&self, volume: usize) -> Option<String> {
        match self {
            Self::None => None,
            Self::Nbdfuse(devices) => devices.get(volume).map(|device| device.path().to_string()),
            Self::Kernel(devices) => devices.get(volume).map(|device| device.path().to_string()),
        }
    }

    /// Size of a volume's block device in bytes.
    pub(crate) fn size(&self, volume: usize) -> Option<u64> {
        match self {
            Self::None => None,
            Self::Nbdfuse(devices) => devices.get(volume).map(nbdfuse::Device::size),
            Self::Kernel(devices) => devices.get(volume).map(kernel::Device::size),
        }
    }

    /// The new size for the kernel if a volume has `size`. `None` if its device has that size already, or cannot change
    /// it.
    pub(crate) fn growth(&self, volume: usize, size: u64) -> Option<Growth> {
        let Self::Kernel(devices) = self else { return None };
        devices.get(volume)?.growth(volume, size)
    }

    /// Notes that the kernel has taken a new size.
    pub(crate) fn grew(&mut self, volume: usize, size: u64) {
        let Self::Kernel(devices) = self else { return };
        if let Some(device) = devices.get_mut(volume) {
            device.grew(size);
        }
    }

    /// Whether they have writes of their users in a cache, which a flush takes to the gateways.
    pub(crate) fn has_cache(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Removes them, in the opposite order. Their cached writes are taken first, unless `flush_until` is over.
    pub(crate) async fn stop(self, flush_until: Instant) {
        match self {
            Self::None => {}
            Self::Nbdfuse(devices) => {
                for device in devices.into_iter().rev() {
                    device.stop(flush_until).await;
                }
            }
            // At the same time: each may wait for its cache.
            Self::Kernel(devices) => {
                futures_util::future::join_all(devices.into_iter().map(|device| device.stop(flush_until))).await;
            }
        }
    }
}
