//! `status.json` of a snapshot copy. Fields have the same names as those of an attached set where they mean the same.

use crate::machine::Phase;
use crate::status::VolumeStatus;
use serde::{Deserialize, Serialize};

/// Where a copy reads what was not written on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// NBD address of the gateway that it was connected to last.
    pub gateway: String,
    /// Connections that were made.
    pub connections: u64,
    /// Why one was lost, or could not be made, last.
    pub last_loss: Option<String>,
}

/// A snapshot copy as it shows itself. Written whole and renamed into place: a reader never sees half of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotCopyStatus {
    /// The set.
    pub set: String,
    /// The snapshot that it is a copy of.
    pub snapshot: String,
    /// When the snapshot was asked for, Unix milliseconds by the gateways' clock: the copy has everything that was answered before.
    pub snapshot_unix_ms: u64,
    /// Connecting, serving or detached.
    pub phase: Phase,
    /// The process.
    pub pid: u32,
    /// The devices can be used.
    pub ready: bool,
    /// Its volumes.
    pub volumes: Vec<VolumeStatus>,
    /// Where it reads.
    pub source: Source,
    /// What all its scratch files hold, in bytes.
    pub scratch_bytes: u64,
    /// What the scratch file of one volume may hold, in bytes.
    pub scratch_max_bytes: u64,
}
