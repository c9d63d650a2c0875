//! What an attach is asked for, and how it ends.

use crate::device::{DeviceError, DeviceKind, KernelOptions, SYNC_LIMIT};
use crate::dir::DirError;
use crate::machine::Bounds;
use holdfast_api::Refusal;
use holdfast_tls::Dialer;
use holdfast_types::{Locality, Name, Owner};
use std::path::PathBuf;
use std::time::Duration;

/// Time limit for giving the lease back at the end; after that it expires by itself.
pub(super) const RELEASE_LIMIT: Duration = Duration::from_secs(3);
/// How long a clean end waits for unanswered requests.
pub(super) const DRAIN_LIMIT: Duration = Duration::from_secs(30);
// It begins before the devices go: their flush must not take all of it, or they would stay in the kernel.
const _: () = assert!(SYNC_LIMIT.as_secs() < DRAIN_LIMIT.as_secs());

/// Options of an attach.
#[derive(Clone, Debug)]
pub struct Options {
    /// The set.
    pub set: Name,
    /// Owner of the lease.
    pub owner: Owner,
    /// Where this host stands, so that the set is served near it.
    pub locality: Option<Locality>,
    /// Admin addresses of some gateways; the others are found.
    pub api: Vec<String>,
    /// Connection to the admin ports, and TLS of NBD (R10).
    pub dialer: Dialer,
    /// The run directory.
    pub dir: PathBuf,
    /// Time to live of the lease without a renewal; the gateway's default if none.
    pub ttl: Option<Duration>,
    /// Take the lease even if another owner holds it.
    pub force: bool,
    /// Connections per volume.
    pub connections: u8,
    /// Limit of unanswered requests per volume.
    pub bounds: Bounds,
    /// Kind of devices.
    pub device: DeviceKind,
    /// Options of kernel devices.
    pub kernel: KernelOptions,
    /// Time limit until the devices are ready.
    pub patience: Duration,
}

/// End of an attached set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// In good order: all requests answered, the lease given back.
    Detached,
    /// Another owner holds the set, or none of its volumes is left.
    Fenced {
        /// The owner or the reason, as far as known.
        by: Option<String>,
    },
}

/// A set could not be attached, or not be detached in good order.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The run directory.
    #[error(transparent)]
    Dir(#[from] DirError),
    /// A device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The TLS files cannot be used, and no devices of an earlier process wait.
    #[error("{0}")]
    Tls(String),
    /// A gateway's definite answer about the lease.
    #[error("{0}")]
    Refused(Refusal),
    /// No gateway granted or served the lease in time.
    #[error("set {set} is not attached within {limit:?}: {last}")]
    Unreachable {
        /// The set.
        set: Name,
        /// Duration of the attempt.
        limit: Duration,
        /// State reached.
        last: String,
    },
    /// Requests were still unanswered when it had to end.
    #[error("did not end cleanly within {DRAIN_LIMIT:?}: {count} requests are unanswered; the lease expires by itself")]
    Undrained {
        /// Their number.
        count: usize,
    },
    /// All requests are answered and the devices are gone, but no gateway took the lease back.
    #[error(
        "the lease was not released: no gateway answered within {RELEASE_LIMIT:?}; no request is unanswered, and the lease expires by itself"
    )]
    LeaseLeft,
    /// A socket.
    #[error("{}: {source}", path.display())]
    Listen {
        /// Its path.
        path: PathBuf,
        /// The error.
        #[source]
        source: std::io::Error,
    },
}
