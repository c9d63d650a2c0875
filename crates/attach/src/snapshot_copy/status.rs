//! `status.json` of a snapshot copy. Fields have the same names as those of an attached set where they mean the same.

use crate::machine::Phase;
use crate::status::VolumeStatus;
use serde::{Deserialize, Serialize};

/// The gateways from which a copy reads the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// NBD address of the last gateway.
    pub gateway: String,
    /// Number of connections made.
    pub connections: u64,
    /// Why the last connection was lost or could not be made.
    pub last_loss: Option<String>,
}

/// Status of a snapshot copy. Written to another file and renamed, so that a reader never sees half of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotCopyStatus {
    /// The set.
    pub set: String,
    /// The snapshot that it is a copy of.
    pub snapshot: String,
    /// When the snapshot was requested, Unix milliseconds by the gateways' clock. The copy has everything that was
    /// answered before.
    pub snapshot_unix_ms: u64,
    /// Connecting, serving or detached.
    pub phase: Phase,
    /// The process.
    pub pid: u32,
    /// The devices can be used.
    pub ready: bool,
    /// Its volumes.
    pub volumes: Vec<VolumeStatus>,
    /// The source of its data.
    pub source: Source,
    /// Bytes in all its scratch files.
    pub scratch_bytes: u64,
    /// Maximum bytes in the scratch file of one volume.
    pub scratch_max_bytes: u64,
}
