//! Why a device could not be made.

use super::driver::DriverError;

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
    /// The kernel's driver cannot be used.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// None of the ways to make a device is there.
    #[error(
        "found neither nbdfuse (package libnbd-bin), nor a way through the kernel: {0}. --device none makes sockets only"
    )]
    NoWay(DriverError),
}
