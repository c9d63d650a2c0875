//! Why a device could not be made.

use super::driver::DriverError;

/// A device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A required program failed, or is not installed.
    #[error("{program}: {why}")]
    Program {
        /// Its name.
        program: &'static str,
        /// The problem.
        why: String,
    },
    /// The kernel's driver cannot be used.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// This host has no way to make a device.
    #[error(
        "found neither nbdfuse (package libnbd-bin), nor a way through the kernel: {0}. --device none makes sockets only"
    )]
    NoWay(DriverError),
}
