//! `status.json` of the run directory.

use crate::machine::Phase;
use serde::{Deserialize, Serialize};

/// Status of an attached set. Written to another file and renamed, so that a reader never sees half of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The set.
    pub set: String,
    /// Its phase.
    pub phase: Phase,
    /// When the phase began, Unix milliseconds.
    pub since_unix_ms: u64,
    /// Owner of the lease.
    pub owner: String,
    /// Epoch of the lease, 0 before the first grant.
    pub epoch: u64,
    /// Name of the gateway that serves, "" before the first grant.
    pub gateway: String,
    /// The process that attaches.
    pub pid: u32,
    /// Its volumes. The devices exist once `ready`.
    pub volumes: Vec<VolumeStatus>,
    /// All devices can be used.
    pub ready: bool,
    /// All devices can be used, except those of volumes that are `lost`.
    pub others_ready: bool,
    /// Number of reconnects.
    pub reconnects: u64,
    /// How long requests waited at the last reconnect, milliseconds.
    pub last_outage_ms: Option<u64>,
    /// The longest such wait.
    pub longest_outage_ms: Option<u64>,
    /// Reason for the last reconnect.
    pub last_loss: Option<String>,
    /// Number of unanswered requests.
    pub unanswered: usize,
    /// When the last acknowledged renewal was sent, Unix milliseconds. For people: it moves if the clock is set.
    pub lease_renewed_at: Option<u64>,
    /// Like `lease_renewed_at`, in nanoseconds of this machine's CLOCK_BOOTTIME, which runs while the machine is
    /// suspended. For decisions.
    pub lease_renewed_boot_ns: Option<u64>,
    /// How long the lease lasts from then on, milliseconds; none before the first grant.
    pub lease_ttl_ms: Option<u64>,
    /// Once it is fenced: the owner that took the set, or another reason.
    pub fenced_by: Option<String>,
}

/// One volume of an attached set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The Unix socket that serves it; the export is named `SET/VOLUME`.
    pub socket: String,
    /// The block device, if there is one.
    pub device: Option<String>,
    /// Size of the device, if it differs from that of the volume, which grew. Kernel devices follow within seconds;
    /// others keep their size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<u64>,
    /// Why its device fails for good: the volume was deleted, shrunk or renamed. Devices of other volumes continue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}
