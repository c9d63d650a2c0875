//! What the NBD front serves: a [`Device`] per opened export, found through [`Exports`].
//!
//! The front checks every request against [`Device::size`], the 512-byte alignment and the request's own flags before it calls
//! a device; a device may rely on that, and must not crash where it was not so.

use super::measure::Kind;
use bytes::Bytes;
use futures_util::future::BoxFuture;
pub use holdfast_nbd::Extent;
pub use holdfast_nbd::server::ReadPart;
use holdfast_nbd::{Errno, ExportName};
use holdfast_types::Epoch;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// One opened export of one connection. The front drops its `Arc` only after the connection's last request has ended, so
/// an implementation that makes one object per [`Exports::open`] may release what belongs to the connection in `Drop`.
///
/// All operations of one connection run at the same time and may finish in any order; the front begins them (calls the method and
/// polls the future for the first time) in the order of the wire.
///
/// **Cancellation.** The front drops a future unfinished when its connection ends. By then the operation MUST either have its place in
/// the set's one order already, or never get one: nothing may enter the queue of the sequencer after the drop. The front relies on it
/// to keep a request of an abandoned connection from being executed after its retry.
pub trait Device: Send + Sync + 'static {
    /// Size in bytes, a multiple of 512. May change while the device is open; 0 once the volume is deleted.
    fn size(&self) -> u64;

    /// Reads `len` bytes (1 to 32 MiB). The parts MUST add up to exactly `len`. R3: the read lease is checked after the data is there.
    fn read(self: Arc<Self>, offset: u64, len: u32) -> BoxFuture<'static, Result<Vec<ReadPart>, DeviceError>>;

    /// Writes `data` (1 byte to 32 MiB). R1: returns `Ok` only once durable; hence `fua` asks for nothing more.
    fn write(self: Arc<Self>, offset: u64, data: Bytes, fua: bool) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// Makes `len` bytes (1 to 4 GiB − 512) read as zeroes. `punch`: may give the space back. R1 as for a write.
    fn zero(
        self: Arc<Self>,
        offset: u64,
        len: u32,
        punch: bool,
        fua: bool,
    ) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// Whether [`Device::zero`] costs far less than writing as many zeroes. Where not, the front answers ENOTSUP to a request with
    /// the FAST_ZERO flag, without calling `zero`.
    fn zero_is_fast(&self, punch: bool) -> bool;

    /// Gives back the space of `len` bytes (1 to 4 GiB − 512). R1 as for a write.
    fn trim(self: Arc<Self>, offset: u64, len: u32, fua: bool) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// Returns once every write that was answered before the call is durable. R1: nothing is left to wait for.
    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// Returns once everything that was handed in before the call, by whatever connection of this epoch, has its outcome, and reads show it. The front calls
    /// it where a connection takes the place of an older one (S4 of the slots) and bounds the time.
    fn settled(self: Arc<Self>) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// Hint that the range will be read soon (1 byte to 4 GiB − 512). May do nothing.
    fn cache(self: Arc<Self>, offset: u64, len: u32) -> BoxFuture<'static, Result<(), DeviceError>>;

    /// What is allocated, from `offset` on. At least one extent, none empty; together at most `len` bytes (they may be less: the client
    /// asks again), at most `extents_max` of them. Neighbours of the same kind SHOULD be one.
    fn block_status(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> BoxFuture<'static, Result<Vec<Extent>, DeviceError>>;
}

/// Why a device did not do what was asked. R8: an error that a client gets to see may suspend its pool for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The request is wrong in itself: answered EINVAL.
    #[error("invalid request")]
    Invalid,
    /// Beyond the end of the device: answered ENOSPC (a read: EINVAL).
    #[error("beyond the end of the device")]
    OutOfRange,
    /// Not allowed on this export: answered EPERM.
    #[error("not permitted")]
    NotPermitted,
    /// This device cannot do that: answered ENOTSUP.
    #[error("not supported")]
    NotSupported,
    /// Another owner holds the set, for good: answered EIO. The one error that R8 allows for a request that is right in itself.
    #[error("another owner holds the set")]
    Fenced,
    /// What a read asks for cannot be read now, here or at any other gateway: an object is missing, or not what was written (R9). Neither answered nor closed
    /// (R8): the front gives back what the request holds and asks again, with growing pauses, for as long as the connection lasts. For reads only.
    #[error("found nothing that can be read there, at whichever gateway")]
    Unreadable,
    /// Everything else (shutdown, hand-over, lost leadership, no quorum, unknown outcome): the connection is closed unanswered (R8).
    #[error("the connection must be closed unanswered")]
    Disconnect,
}

impl DeviceError {
    /// The error that a client gets to see.
    pub(super) fn errno(self, kind: Kind) -> Errno {
        match self {
            DeviceError::Invalid => Errno::Invalid,
            DeviceError::OutOfRange if matches!(kind, Kind::Write | Kind::Zero) => Errno::NoSpace,
            DeviceError::OutOfRange => Errno::Invalid,
            DeviceError::NotPermitted => Errno::NotPermitted,
            DeviceError::NotSupported => Errno::NotSupported,
            // The last two never come here; were they to, an I/O error would be the truth.
            DeviceError::Fenced | DeviceError::Disconnect | DeviceError::Unreadable => Errno::Io,
        }
    }
}

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A TCP connection from there.
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

/// A connection, as [`Exports`] gets to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnInfo {
    /// Number of the connection, unique within this process.
    pub id: u64,
    /// Who is at the other end.
    pub peer: Peer,
}

/// An export that was opened for one connection.
pub struct OpenedExport {
    /// What to serve.
    pub device: Arc<dyn Device>,
    /// When cancelled, the front closes the connection at once, unanswered (R8), and begins no further request.
    pub closed: CancellationToken,
    /// When cancelled, the front begins no further request, answers what has begun, and closes the connection then.
    pub draining: CancellationToken,
    /// Epoch of the lease that the connection was opened under. Orders generations of a slot over leases: a connection of a later epoch
    /// replaces one of an earlier epoch, whatever their generations.
    pub epoch: Epoch,
    /// Writes are refused before they reach the device, as on a snapshot's export.
    pub read_only: bool,
}

/// An export as it is described without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Size in bytes.
    pub size: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// For people; may be empty.
    pub description: String,
}

/// Why an export was not opened. Only ever seen during the handshake, so it is no error in the sense of R8.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// What the client can make of it.
    pub kind: RefusalKind,
    /// For people: why, and where to go instead. At most 4096 bytes are sent. Must not repeat a token.
    pub message: String,
}

/// What a client can make of a [`Refusal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// There is no such set or volume: NBD_REP_ERR_UNKNOWN.
    Unknown,
    /// Not with this token, or not without one; held by another: NBD_REP_ERR_POLICY.
    NotPermitted,
    /// Served elsewhere, or not now; ask again or elsewhere: NBD_REP_ERR_SHUTDOWN.
    NotHere,
}

/// Where devices come from: the wiring between connections and sets.
pub trait Exports: Send + Sync + 'static {
    /// Names and descriptions for NBD_OPT_LIST: plain exports only, never a token. The front sends the first 1024.
    fn list(&self) -> Vec<(ExportName, String)>;

    /// Describes an export for NBD_OPT_INFO. MUST NOT take a lease or change anything.
    fn describe(&self, name: &ExportName, conn: ConnInfo) -> BoxFuture<'static, Result<ExportInfo, Refusal>>;

    /// Opens an export for a connection that is about to begin transmission. Dropping the future gives up. The front calls it before
    /// the slot's older generation is closed: a refused connection must not disturb the one that is there.
    fn open(&self, name: &ExportName, conn: ConnInfo) -> BoxFuture<'static, Result<OpenedExport, Refusal>>;
}
