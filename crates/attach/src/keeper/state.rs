//! What the keeper of an attached set has, and the events that its tasks send it.

use super::growing::Growing;
use super::sockets::RemoveFile;
use super::types::Options;
use crate::admin_client::AdminClients;
use crate::device::{DeviceError, Devices, DriverError, Growth};
use crate::dir::RunDir;
use crate::lease_file::{Lease, LeaseFile};
use crate::machine::{Cuts, Phase, VolumeFacts};
use crate::seams::Seams;
use crate::shared::Shared;
use holdfast_api::Refusal;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Events from the keeper's own tasks.
pub(super) enum News {
    Refused(Refusal),
    Devices(Result<Devices, DeviceError>),
    DevicesStopped,
    DeviceEnded(String),
    /// The set's present volumes, as listed by the serving gateway, for the connections of this incarnation.
    Volumes {
        incarnation: u64,
        volumes: Vec<VolumeFacts>,
        cuts: Cuts,
    },
    /// The kernel's answer to a new size.
    Told(Growth, Result<(), DriverError>),
}

/// An attached set. One task owns it.
pub(super) struct Keeper {
    // Removed before the lock is released, since the next process makes its own.
    pub(super) sockets: Vec<RemoveFile>,
    pub(super) seams: Seams,
    pub(super) options: Options,
    pub(super) dir: RunDir,
    pub(super) shared: Arc<Shared>,
    pub(super) doors: Arc<AdminClients>,
    pub(super) news: mpsc::UnboundedSender<News>,
    /// Ends every task of this attach.
    pub(super) end: CancellationToken,
    pub(super) phase: Phase,
    pub(super) since: u64,
    pub(super) ready: bool,
    /// `status.json` could not be written, and that was logged.
    pub(super) unshown: bool,
    pub(super) devices: Option<Devices>,
    pub(super) growing: Growing,
    /// Stores the lease for the next process, if there are kernel devices.
    pub(super) kept: Option<Arc<LeaseFile>>,
    /// What an earlier process left, to go on with.
    pub(super) left: Option<Lease>,
}
