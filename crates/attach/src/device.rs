//! Block devices over the Unix sockets.

mod nbdfuse;

use crate::shared::Shared;
use holdfast_types::Name;
use std::path::Path;
use std::sync::Arc;

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

/// A device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A program that is needed failed, or is not there.
    #[error("{program}: {why}")]
    Program {
        /// Which.
        program: &'static str,
        /// What it said.
        why: String,
    },
    /// The kernel's driver was asked for.
    #[error(
        "the kernel's nbd driver is not supported yet: --device nbdfuse makes a loop device, --device none sockets only"
    )]
    NoKernel,
    /// None of the ways to make a device is there.
    #[error(
        "found neither the kernel's nbd driver (modprobe nbd) nor nbdfuse, expected one of them; --device none makes sockets only"
    )]
    NoWay,
}

/// The devices of a set.
#[derive(Debug)]
pub(crate) enum Devices {
    None,
    Nbdfuse(Vec<nbdfuse::Device>),
}

impl Devices {
    /// Makes one device per volume. `on_end` is called when one ends by itself.
    pub(crate) async fn make(
        kind: DeviceKind,
        set: &Name,
        dir: &Path,
        connections: u8,
        shared: &Arc<Shared>,
        on_end: impl Fn(String) + Clone + Send + 'static,
    ) -> Result<Self, DeviceError> {
        let kind = match kind {
            DeviceKind::Auto if nbdfuse::is_there() => DeviceKind::Nbdfuse,
            DeviceKind::Auto => return Err(DeviceError::NoWay),
            kind => kind,
        };
        match kind {
            DeviceKind::Kernel => Err(DeviceError::NoKernel),
            DeviceKind::None | DeviceKind::Auto => Ok(Self::None),
            DeviceKind::Nbdfuse => {
                let mut devices = Vec::new();
                for facts in shared.all_facts() {
                    match nbdfuse::Device::make(set, &facts.name, dir, connections, on_end.clone()).await {
                        Ok(device) => devices.push(device),
                        Err(error) => {
                            Self::Nbdfuse(devices).stop().await;
                            return Err(error);
                        }
                    }
                }
                Ok(Self::Nbdfuse(devices))
            }
        }
    }

    /// The block device of a volume.
    pub(crate) fn path(&self, volume: usize) -> Option<String> {
        match self {
            Self::None => None,
            Self::Nbdfuse(devices) => devices.get(volume).map(|device| device.path().to_string()),
        }
    }

    /// Takes them down, in the opposite order.
    pub(crate) async fn stop(self) {
        match self {
            Self::None => {}
            Self::Nbdfuse(devices) => {
                for device in devices.into_iter().rev() {
                    device.stop().await;
                }
            }
        }
    }
}
