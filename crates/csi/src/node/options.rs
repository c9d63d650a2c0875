//! Settings of a node.

use holdfast_types::{Locality, Owner};
use std::path::PathBuf;

/// How volumes become devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The kernel's nbd driver. Its devices survive this program and `holdfast attach`.
    Kernel,
    /// nbdfuse and a loop device, for tests on kernels without nbd: the devices die with `holdfast attach`, and do not
    /// grow while they are attached.
    Nbdfuse,
}

/// Settings of a node.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Its name in Kubernetes, which owns the leases.
    pub node: Owner,
    /// Where it stands.
    pub locality: Option<Locality>,
    /// Records of staged volumes, and run directories of attach. On a file system of the node, not of the container.
    pub dir: PathBuf,
    /// How volumes become devices.
    pub device: DeviceChoice,
    /// The `holdfast` program.
    pub program: PathBuf,
    /// Arguments of `holdfast attach` with the gateways' addresses and the certificate's files.
    pub connection: Vec<String>,
    /// Most sets that are attached at once: each is a process.
    pub volumes_max: usize,
}
