//! The interface that the NBD front serves: a [`Device`] for each open export, found through [`Exports`].
//!
//! Before it calls a device, the front checks every request against [`Device::size`], the 512-byte alignment and the
//! request's own flags. A device may rely on that, but must not crash if it is violated.

use super::measure::Kind;
use super::slots::Slots;
use super::throttle::Throttles;
use bytes::Bytes;
use futures_util::future::BoxFuture;
pub use holdfast_nbd::Extent;
pub use holdfast_nbd::server::ReadPart;
use holdfast_nbd::{Errno, ExportName};
use holdfast_types::Epoch;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// One open export of one connection. The front drops its `Arc` only after the connection's last request has ended. So
/// an implementation that makes one object per [`Exports::open`] may release the connection's resources in `Drop`.
///
/// All operations of one connection run concurrently and may finish in any order. The front begins them (calls the
/// method and polls the future for the first time) in the order of the wire.
///
/// **Cancellation.** If a connection ends, the front drops its unfinished futures. By then the operation MUST either
/// have its position in the set's single order already, or never get one: nothing may enter the sequencer's queue after
/// the drop. The front relies on this so that a request of an abandoned connection is never executed after its retry.
pub trait Device: Send + Sync + 'static {
    /// Size in bytes, a multiple of 512. May change while the device is open; 0 once the volume is deleted.
    fn size(&self) -> u64;

    /// Reads `len` bytes (1 to 32 MiB). The parts MUST add up to exactly `len`. R3: the read lease is checked once the
    /// data has arrived.
    fn read(self: Arc<Self>, offset: u64, len: u32) -> BoxFuture<'static, Result<Vec<ReadPart>, DeviceError>>;

    /// Writes `data` (1 byte to 32 MiB). R1: returns `Ok` only once the data is durable, so `fua` adds nothing.
    fn write(self: Arc<Self>, offset: u64, data: Bytes, fua: bool) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// Makes `len` bytes (1 to 4 GiB − 512) read as zeroes. `punch`: may free the space. R1 as for a write.
    fn zero(
        self: Arc<Self>,
        offset: u64,
        len: u32,
        punch: bool,
        fua: bool,
    ) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// Whether [`Device::zero`] costs far less than writing the zeroes. If not, the front answers ENOTSUP to a request
    /// with the FAST_ZERO flag, without calling `zero`.
    fn zero_is_fast(&self, punch: bool) -> bool;

    /// Frees the space of `len` bytes (1 to 4 GiB − 512). R1 as for a write.
    fn trim(self: Arc<Self>, offset: u64, len: u32, fua: bool) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// The connection begins changes (writes, zeroes, trims) that it has received together, and calls
    /// [`Device::release`] in the same poll of its task. So a device may treat them as one.
    fn hold(&self) {}

    /// Ends a [`Device::hold`]: nothing more begins before the connection has received more.
    fn release(&self) {}

    /// Returns once every write that was answered before the call is durable. R1: nothing is left to wait for.
    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// Returns once every request that any connection of this epoch has passed in before the call has its outcome, and
    /// reads show it. The front calls it if a connection replaces an older one (SLOT-S4 of the slots), and limits the
    /// time.
    fn settled(self: Arc<Self>) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// Hint that the range will be read soon (1 byte to 4 GiB − 512). May do nothing.
    fn cache(self: Arc<Self>, offset: u64, len: u32) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// The allocation status from `offset` on: at least one extent, none empty, at most `extents_max` of them. Together
    /// they cover at most `len` bytes (if less, the client asks again). Adjacent extents of the same kind SHOULD be
    /// merged.
    fn block_status(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> BoxFuture<'static, Result<Vec<Extent>, DeviceError>>;
}

/// Why a device did not carry out a request. R8: an error that reaches a client may suspend its pool for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The request itself is wrong: answered with EINVAL.
    #[error("invalid request")]
    Invalid,
    /// Beyond the end of the device: answered with ENOSPC (a read: EINVAL).
    #[error("beyond the end of the device")]
    OutOfRange,
    /// Not allowed on this export: answered with EPERM.
    #[error("not permitted")]
    NotPermitted,
    /// This device cannot do that: answered with ENOTSUP.
    #[error("not supported")]
    NotSupported,
    /// Another owner holds the set, permanently: answered with EIO. It is the only error that R8 allows for a correct
    /// request.
    #[error("another owner holds the set")]
    Fenced,
    /// No gateway can read this data now: an object is missing or damaged (R9). The read gets no answer, and the
    /// connection is not closed (R8). The front releases the request's memory and retries with growing pauses, as long
    /// as the connection lasts. Only for reads.
    #[error("no gateway can read this data now")]
    Unreadable,
    /// Everything else (shutdown, hand-over, lost leadership, no quorum, unknown outcome): the connection is closed
    /// unanswered (R8).
    #[error("the connection must be closed unanswered")]
    Disconnect,
}

impl DeviceError {
    /// The error for the client.
    pub(super) fn errno(self, kind: Kind) -> Errno {
        match self {
            DeviceError::Invalid => Errno::Invalid,
            DeviceError::OutOfRange if matches!(kind, Kind::Write | Kind::Zero) => Errno::NoSpace,
            DeviceError::OutOfRange => Errno::Invalid,
            DeviceError::NotPermitted => Errno::NotPermitted,
            DeviceError::NotSupported => Errno::NotSupported,
            // The last two are never answered. If they were, an I/O error would be the correct answer.
            DeviceError::Fenced | DeviceError::Disconnect | DeviceError::Unreadable => Errno::Io,
        }
    }
}

/// The remote end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP connection from this address.
    Tcp(SocketAddr),
    /// A connection through a Unix socket.
    Unix,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Tcp(address) => write!(f, "{address}"),
            Peer::Unix => f.write_str("unix"),
        }
    }
}

/// A connection, as [`Exports`] sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnInfo {
    /// Number of the connection, unique within this process.
    pub id: u64,
    /// The remote end.
    pub peer: Peer,
}

/// An export that is open for one connection.
pub struct OpenedExport {
    /// The device to serve.
    pub device: Arc<dyn Device>,
    /// When cancelled, the front closes the connection at once, unanswered (R8), and begins no further request.
    pub closed: CancellationToken,
    /// When cancelled, the front begins no further request, answers those that have begun, and then closes the
    /// connection.
    pub draining: CancellationToken,
    /// Epoch of the lease under which the connection was opened. It orders the incarnations of a slot across leases: a
    /// connection of a later epoch replaces one of an earlier epoch, whatever their incarnations.
    pub epoch: Epoch,
    /// The same text as in [`ExportInfo::description`].
    pub description: String,
    /// The slots of this volume. They live as long as the volume, not as long as its name.
    pub slots: Slots,
    /// Writes are refused before they reach the device, as on a snapshot's export.
    pub read_only: bool,
    /// The limits that its requests are held to, together with those of the other connections that have them.
    pub throttles: Throttles,
}

/// The description of an export that is not open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Size in bytes.
    pub size: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// For people; may be empty.
    pub description: String,
}

/// Why an export was not opened. It is sent only during the handshake, so it is no error in the sense of R8.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// The kind, for the client.
    pub kind: RefusalKind,
    /// For people: the reason, and where to go instead. At most 4096 bytes are sent. Must not contain a token.
    pub message: String,
}

/// The kind of a [`Refusal`], from which a client decides what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// There is no such set or volume: NBD_REP_ERR_UNKNOWN.
    Unknown,
    /// Wrong token, or no token, or held by another owner: NBD_REP_ERR_POLICY.
    NotPermitted,
    /// Served elsewhere, or not available now; ask again or elsewhere: NBD_REP_ERR_SHUTDOWN.
    NotHere,
}

/// The source of devices: connects NBD connections with sets.
pub trait Exports: Send + Sync + 'static {
    /// Names and descriptions for NBD_OPT_LIST: plain exports only, never a token. The front sends the first 1024.
    fn list(&self) -> Vec<(ExportName, String)>;

    /// Describes an export for NBD_OPT_INFO. MUST NOT take a lease or change anything.
    fn describe(&self, name: &ExportName, conn: ConnInfo) -> BoxFuture<'static, Result<ExportInfo, Refusal>>;

    /// Opens an export for a connection that is about to begin transmission. Dropping the future cancels it. The front
    /// calls this before it closes the slot's older connection: a refused connection must not disturb the existing one.
    fn open(&self, name: &ExportName, conn: ConnInfo) -> BoxFuture<'static, Result<OpenedExport, Refusal>>;
}
