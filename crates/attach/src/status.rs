//! `status.json` of the run directory.

use crate::machine::Phase;
use serde::{Deserialize, Serialize};

/// An attached set as it shows itself. Written whole and renamed into place: a reader never sees half of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The set.
    pub set: String,
    /// Where it stands.
    pub phase: Phase,
    /// Since when, Unix milliseconds.
    pub since_unix_ms: u64,
    /// On whose behalf the lease is held.
    pub owner: String,
    /// Epoch of the lease, 0 before the first grant.
    pub epoch: u64,
    /// Name of the gateway that serves, "" before the first grant.
    pub gateway: String,
    /// The process that attaches.
    pub pid: u32,
    /// Its volumes; the devices are there once `ready`.
    pub volumes: Vec<VolumeStatus>,
    /// The devices can be used, all of them.
    pub ready: bool,
    /// The devices can be used, but for those of volumes that are `lost`.
    #[serde(default)]
    pub others_ready: bool,
    /// Times that it was reconnected.
    pub reconnects: u64,
    /// How long requests waited at the last reconnect.
    pub last_outage_ms: Option<u64>,
    /// The longest of them.
    pub longest_outage_ms: Option<u64>,
    /// Why it was reconnected last.
    pub last_loss: Option<String>,
    /// Requests without an answer now.
    pub unanswered: usize,
    /// When the last renewal that was acknowledged was sent, Unix milliseconds: for people. A clock that is set moves it.
    pub lease_renewed_at: Option<u64>,
    /// The same in nanoseconds of this machine's CLOCK_BOOTTIME, which goes on while it is suspended: for what decides by it.
    #[serde(default)]
    pub lease_renewed_boot_ns: Option<u64>,
    /// How long the lease lasts from there, milliseconds; none before the first grant.
    #[serde(default)]
    pub lease_ttl_ms: Option<u64>,
    /// Who took the set, or what else ended it, once it is fenced.
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
    /// The block device, where one was asked for.
    pub device: Option<String>,
    /// How large that is where it is not as large as the volume, which grew: the kernel's are told within seconds, others keep their size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_bytes: Option<u64>,
    /// Why its device fails for good, while those of other volumes go on: it was deleted, shrunk or renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}
