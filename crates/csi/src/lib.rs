//! A driver of the Container Storage Interface (CSI): Kubernetes and others make and use volumes by it.
//!
//! ```text
//!   Kubernetes ── gRPC over a Unix socket ──▶ services ─▶ Controller ─▶ Cluster (admin API of the gateways)
//!                                                     └─▶ Node ───────▶ `holdfast attach`, mkfs, mount
//! ```
//! A volume of Kubernetes is a set with one volume: it has a lease, an owner, snapshots and a journal of its own, and
//! moves alone. The owner of the lease is the node where the volume is staged.
//!
//! Owns: the services of CSI, names of sets and snapshots ([`names`]), sizes ([`capacity`]), what of a capability is
//! possible ([`capability`]), places ([`topology`]), the codes of errors ([`refused`]), records of staged volumes. All
//! of that is plain synchronous code; a call runs on a thread of its own (`services`). Does not own: the connection
//! to the cluster ([`Cluster`] is given), devices and leases (crate `attach`, in processes of their own).
//! Depends on: api, attach, host, types. docs/adr/0063-csi.md has the reasons.

pub mod capability;
pub mod capacity;
mod cluster;
mod controller;
mod locks;
pub mod names;
mod node;
pub mod refused;
mod services;
pub mod topology;

pub use cluster::Cluster;
pub use controller::Controller;
pub use names::Prefix;
pub use node::{DeviceChoice, Node, NodeOptions};
pub use refused::Refused;
pub use services::{Driver, ServeError, serve};

/// Generated from `proto/csi.proto`: what the driver uses of CSI. The specification is the reference.
#[allow(missing_docs, clippy::all)]
pub mod v1 {
    tonic::include_proto!("csi.v1");
}

/// The driver's name: `provisioner` of a StorageClass, `driver` of a PersistentVolume.
pub const DRIVER: &str = "csi.holdfast";
