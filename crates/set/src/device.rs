//! A volume as an NBD device, and the exports of this node.

use crate::cluster::Cluster;
use crate::mapping::MapError;
use crate::reader::{Part, ReadError};
use crate::sequencer::{Op, WriteFailure};
use crate::server::{Connection, SetError, SetServer, VolumeUse};
use crate::snapshot::SnapshotDevice;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_control::pair::Durability;
use holdfast_control::serve::WhyNot;
use holdfast_control::set::SetRefusal;
use holdfast_front::device::{
    ConnInfo, Device, DeviceError, ExportInfo, Exports, Extent, OpenedExport, Peer, ReadPart, Refusal, RefusalKind,
};
use holdfast_front::{Slots, Throttles};
use holdfast_nbd::{ExportName, SnapshotExport};
use holdfast_raft::ProposeError;
use holdfast_types::limits::{ATOMIC_WRITE_BYTES_MAX, REQUEST_BYTES_MAX};
use holdfast_types::sync::RwLockExt;
use holdfast_types::{Epoch, Lba, MemberId, Name, Owner, SECTOR_BYTES, Sectors, VolumeId};
use holdfast_volume::entry::OpKind;
use holdfast_volume::index::Source;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Maximum bytes that one device read fetches at once. A larger request is fetched in several steps.
const READ_STEP_BYTES: u64 = 4 << 20;

/// How often a read that waits for the read lease checks again: a fraction of the shortest heartbeat interval.
const READ_LEASE_POLL: Duration = Duration::from_millis(2);

/// One volume, opened by one connection under one epoch.
pub struct VolumeDevice {
    connection: Connection,
    volume: VolumeId,
    _used: VolumeUse,
}

fn place(offset: u64, len: u64) -> Result<(Lba, Sectors), DeviceError> {
    // The front checks alignment. An unaligned request is a bug there, and the client's request is answered as invalid.
    let lba = Lba::from_bytes(offset).ok_or(DeviceError::Invalid)?;
    let sectors = Sectors::from_bytes(len).ok_or(DeviceError::Invalid)?;
    Ok((lba, sectors))
}

/// R3: read the data, then check, then answer. If the process was paused before the check, the check notices it; a
/// check before the read would not.
async fn checked<T>(
    data: impl Future<Output = Result<T, DeviceError>>,
    check: impl Future<Output = Result<(), DeviceError>>,
) -> Result<T, DeviceError> {
    let data = data.await?;
    check.await?;
    Ok(data)
}

/// How a failed read is reported. Bad store data is the same at every gateway: closing the connection would only repeat
/// the read elsewhere, together with all other reads of that host.
fn unanswered(error: &ReadError) -> (DeviceError, &'static str) {
    match error {
        ReadError::Map(MapError::Stopping)
        | ReadError::Journal(_)
        | ReadError::Operation { .. }
        | ReadError::Moving => (DeviceError::Disconnect, "connection closed"),
        ReadError::Map(MapError::Store(_) | MapError::Bad { .. }) => {
            (DeviceError::Unreadable, "the request waits and is retried")
        }
    }
}

impl VolumeDevice {
    fn server(&self) -> &SetServer {
        &self.connection.server
    }

    /// The answer to a request when this epoch is no longer served.
    fn gone(&self) -> DeviceError {
        if self.connection.serving.fenced.load(Ordering::Acquire) {
            DeviceError::Fenced
        } else {
            DeviceError::Disconnect
        }
    }

    /// The check before every answer to a read (R3) and before a write is accepted.
    fn check(&self, allowed: Result<holdfast_types::Epoch, WhyNot>) -> Result<(), DeviceError> {
        holdfast_reached::reached!(
            "device: a request of a connection of an earlier epoch",
            matches!(allowed, Ok(epoch) if epoch != self.connection.serving.epoch)
        );
        match allowed {
            Ok(epoch) if epoch == self.connection.serving.epoch => Ok(()),
            Ok(_) => Err(self.gone()),
            Err(why) => {
                tracing::debug!(%why, "not served here now");
                Err(self.gone())
            }
        }
    }

    /// Like `check`, for a read. Waits for a read lease that has run out: late heartbeats are no reason to close a
    /// connection. Either the lease returns, or the gateway is cut off after an election timeout. Within one epoch,
    /// data read before the wait is still a valid answer (R3): no other gateway can have led in between, so the read
    /// took effect when its data was looked up.
    async fn check_read(&self) -> Result<(), DeviceError> {
        loop {
            // Both must hold at the same time, without a wait in between.
            self.still_ours().await?;
            match self.server().may_read() {
                Err(WhyNot::NoReadLease) => tokio::time::sleep(READ_LEASE_POLL).await,
                allowed => return self.check(allowed),
            }
        }
    }

    /// Checked right before any answer: once another life has taken over the set, nothing is answered (ADR 0013).
    async fn still_ours(&self) -> Result<(), DeviceError> {
        self.server().head.before_answer().await.map_err(|why| {
            holdfast_reached::reached!("device: an answer is kept back, the head is not confirmed");
            tracing::debug!(%why, "not served here any more");
            self.gone()
        })
    }

    /// In a gateway pair: waits until the store has everything answered before, if `waits` requires it (PAIR-P4).
    async fn in_store(&self, waits: impl FnOnce(Durability) -> bool) {
        let head = &self.server().head;
        if head.pair().is_some_and(|pair| waits(pair.durability)) {
            head.in_store(&self.server().host).await;
        }
    }

    /// Whether anything in the range may be missing in the store. Data that was read from the journal and is no longer
    /// in the index is in the store.
    fn shows_unsaved(&self, offset: u64, len: u64) -> Result<bool, DeviceError> {
        if !self.server().head.pair().is_some_and(|pair| pair.durability.read_waits()) {
            return Ok(false);
        }
        let (lba, sectors) = place(offset, len)?;
        let pieces = self.server().host.with(|m| m.lookup(self.volume, lba, sectors));
        Ok(pieces.iter().any(|piece| piece.source != Source::Map))
    }

    /// Appends operations to the set's order now, and waits for all of them.
    async fn write_ops(&self, mut ops: Vec<Op>, fua: bool) -> Result<(), DeviceError> {
        holdfast_reached::reached!(
            "device: a write while the head names another life",
            self.server().head.fenced().is_some()
        );
        self.check(self.server().may_write())?;
        let noted = self.server().traced.begin(&mut ops);
        let pending: Vec<_> = ops.into_iter().map(|op| self.connection.serving.sequencer.push(op)).collect();
        let mut outcome = Ok(());
        for answer in pending {
            match answer.await {
                Ok(Ok(())) => {}
                Ok(Err(WriteFailure::Fenced)) => outcome = Err(DeviceError::Fenced),
                // Failures that close the connection or concern every client take precedence over a failure of this
                // request only.
                Ok(Err(WriteFailure::Outside)) if outcome.is_ok() => outcome = Err(DeviceError::OutOfRange),
                Ok(Err(WriteFailure::Outside)) => {}
                Ok(Err(WriteFailure::Gone)) | Err(_) => outcome = Err(self.gone()),
            }
        }
        if matches!(outcome, Err(DeviceError::Fenced | DeviceError::Disconnect)) {
            return outcome;
        }
        self.in_store(|durability| durability.change_waits(fua)).await;
        holdfast_reached::reached!(
            "device: a write is done, and the head names another life",
            self.server().head.fenced().is_some()
        );
        self.still_ours().await?;
        self.server().traced.end(noted, self.connection.serving.epoch, || self.name());
        outcome
    }

    fn name(&self) -> Option<Name> {
        self.server().host.with(|m| m.state().volumes.get(&self.volume).map(|v| v.name.clone()))
    }

    /// The volume was shrunk or deleted since the request arrived: the data read is not a valid answer.
    fn still_inside(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let (lba, sectors) = place(offset, len)?;
        let inside = self.server().host.with(|m| m.check_range(self.volume, lba, sectors).is_ok());
        holdfast_reached::reached!("device: a volume shrank under a read", !inside);
        if inside { Ok(()) } else { Err(DeviceError::OutOfRange) }
    }

    async fn clear(&self, kind: OpKind, offset: u64, len: u32, fua: bool) -> Result<(), DeviceError> {
        let (lba, sectors) = place(offset, u64::from(len))?;
        holdfast_reached::reached!(
            "device: a trim while the head names another life",
            self.server().head.fenced().is_some()
        );
        self.write_ops(vec![Op { kind, volume: self.volume, lba, sectors, data: Bytes::new(), moments: None }], fua)
            .await
    }

    async fn read_range(&self, offset: u64, len: u32) -> Result<Vec<ReadPart>, DeviceError> {
        let shown = async {
            let out = self.fetch(offset, len).await?;
            if self.shows_unsaved(offset, u64::from(len))? {
                self.in_store(Durability::read_waits).await;
            }
            Ok(out)
        };
        let out = checked(shown, self.check_read()).await?;
        self.still_inside(offset, u64::from(len))?;
        Ok(out)
    }

    fn allocated(&self, offset: u64, len: u64, extents_max: usize) -> Result<Vec<Extent>, DeviceError> {
        let (lba, sectors) = place(offset, len)?;
        let pieces = self.server().host.with(|m| m.lookup_prefix(self.volume, lba, sectors, extents_max));
        let mut out: Vec<Extent> = Vec::new();
        for piece in pieces {
            // Parts that only the map knows are reported as allocated. This is allowed even where it is not true, and
            // costs no I/O.
            let hole = piece.source == Source::Zero;
            let bytes = piece.sectors.0 * SECTOR_BYTES;
            match out.last_mut() {
                Some(last) if last.hole == hole => last.len += bytes,
                _ => out.push(Extent { len: bytes, hole }),
            }
        }
        Ok(out)
    }

    async fn fetch(&self, offset: u64, len: u32) -> Result<Vec<ReadPart>, DeviceError> {
        let mut out = Vec::new();
        let end = offset + u64::from(len);
        let (lba, sectors) = place(offset, u64::from(len))?;
        let demand = self.server().reader.client_reads(self.volume, lba, sectors);
        let mut at = offset;
        while at < end {
            let step = READ_STEP_BYTES.min(end - at);
            let (lba, sectors) = place(at, step)?;
            let parts = match self.server().reader.read(self.volume, lba, sectors, demand).await {
                Ok(parts) => parts,
                // R8, R9: never answer with bad data, and never answer with an error while another gateway may have
                // good data.
                Err(e) => {
                    let (failed, what) = unanswered(&e);
                    tracing::error!(set = %self.server().name, volume = %self.volume, %lba, error = %e, "read failed; {what}");
                    return Err(failed);
                }
            };
            for part in parts {
                out.push(match part {
                    Part::Data(data) => ReadPart::Data(data),
                    Part::Zeroes(sectors) => {
                        ReadPart::Zeroes(u32::try_from(sectors.0 * SECTOR_BYTES).map_err(|_| DeviceError::Invalid)?)
                    }
                });
            }
            at += step;
        }
        Ok(out)
    }
}

const _: () = assert!(READ_STEP_BYTES <= REQUEST_BYTES_MAX as u64);

impl Device for VolumeDevice {
    fn size(&self) -> u64 {
        let size = self.server().host.with(|m| m.state().volumes.get(&self.volume).map(|v| v.size));
        size.and_then(Sectors::to_bytes).unwrap_or(0)
    }

    fn read(self: Arc<Self>, offset: u64, len: u32) -> BoxFuture<'static, Result<Vec<ReadPart>, DeviceError>> {
        Box::pin(async move { self.read_range(offset, len).await })
    }

    fn write(self: Arc<Self>, offset: u64, data: Bytes, fua: bool) -> BoxFuture<'static, Result<(), DeviceError>> {
        Box::pin(async move {
            let mut ops = Vec::with_capacity(data.len().div_ceil(ATOMIC_WRITE_BYTES_MAX));
            let mut at = offset;
            let mut rest = data;
            while !rest.is_empty() {
                // R5: up to 1 MiB is one operation in one entry. Larger requests have no guarantee of atomicity.
                let piece = rest.split_to(rest.len().min(ATOMIC_WRITE_BYTES_MAX));
                let (lba, sectors) = place(at, piece.len() as u64)?;
                at += piece.len() as u64;
                ops.push(Op { kind: OpKind::Write, volume: self.volume, lba, sectors, data: piece, moments: None });
            }
            self.write_ops(ops, fua).await
        })
    }

    fn zero(
        self: Arc<Self>,
        offset: u64,
        len: u32,
        _punch: bool,
        fua: bool,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        Box::pin(async move { self.clear(OpKind::Zero, offset, len, fua).await })
    }

    fn zero_is_fast(&self, _punch: bool) -> bool {
        true
    }

    fn trim(self: Arc<Self>, offset: u64, len: u32, fua: bool) -> BoxFuture<'static, Result<(), DeviceError>> {
        Box::pin(async move { self.clear(OpKind::Trim, offset, len, fua).await })
    }

    fn hold(&self) {
        self.connection.serving.sequencer.hold();
    }

    fn release(&self) {
        self.connection.serving.sequencer.release();
    }

    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<(), DeviceError>> {
        // R1: every answered write is durable at a quorum and applied, so only the epoch must be checked. A gateway
        // pair is the exception: PAIR-P4.
        Box::pin(async move {
            self.in_store(|_| true).await;
            holdfast_reached::reached!(
                "device: a flush while the head names another life",
                self.server().head.fenced().is_some()
            );
            self.still_ours().await?;
            self.check(self.server().may_write())
        })
    }

    fn settled(self: Arc<Self>) -> BoxFuture<'static, Result<(), DeviceError>> {
        // Called now, awaited later: operations that arrive after the call are not waited for.
        let settled = self.connection.serving.sequencer.settled();
        Box::pin(async move { settled.await.map_err(|_| self.gone()) })
    }

    fn cache(self: Arc<Self>, offset: u64, len: u32) -> BoxFuture<'static, Result<(), DeviceError>> {
        Box::pin(async move {
            let (lba, sectors) = place(offset, u64::from(len))?;
            self.server().reader.client_will_read(self.volume, lba, sectors);
            Ok(())
        })
    }

    fn block_status(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> BoxFuture<'static, Result<Vec<Extent>, DeviceError>> {
        Box::pin(async move {
            let out = checked(async { self.allocated(offset, len, extents_max) }, self.check_read()).await?;
            self.still_inside(offset, len)?;
            Ok(out)
        })
    }
}

/// Every export of this node.
#[derive(Clone)]
pub struct NodeExports {
    /// The other gateways, for refusals that say where to connect.
    pub cluster: Arc<Cluster>,
    /// Sets that run here, by name.
    pub sets: Arc<RwLock<BTreeMap<Name, Arc<SetServer>>>>,
    /// Whether a connection without a token may take a free lease.
    pub plain_exports: bool,
    /// Whether a snapshot can be read without its token.
    pub open_snapshots: bool,
}

impl NodeExports {
    fn set(&self, name: &Name) -> Option<Arc<SetServer>> {
        self.sets.reading().get(name).cloned()
    }

    /// Refuses a plain export before any lookup of the set: the answer must not reveal which sets exist.
    fn admit(&self, name: &ExportName) -> Result<(), Refusal> {
        if self.plain_exports || name.session.is_some() {
            return Ok(());
        }
        let message =
            format!("{name}: this gateway serves no plain exports; acquire a lease and connect with its token");
        Err(Refusal { kind: RefusalKind::NotPermitted, message })
    }

    /// Refuses a token that belongs to no grant that is known here, before anything is said of the set. The answer must
    /// reveal neither which sets and volumes exist nor who has them: anybody can make up a token.
    fn admit_token(&self, name: &ExportName, set: Option<&SetServer>) -> Result<(), Refusal> {
        let Some(session) = name.session.filter(|_| !self.plain_exports) else { return Ok(()) };
        if set.and_then(SetServer::lease).is_some_and(|lease| lease.opens(session.token)) {
            return Ok(());
        }
        let message = format!(
            "{name}: no volume is open under this name and token at this gateway; acquire or continue a lease for its \
             token; if you have just done so, try again, or another gateway"
        );
        Err(Refusal { kind: RefusalKind::NotPermitted, message })
    }

    fn find(&self, name: &ExportName) -> Result<(Arc<SetServer>, VolumeId, Sectors), Refusal> {
        self.admit(name)?;
        let unknown = |message: String| Refusal { kind: RefusalKind::Unknown, message };
        let set = self.set(&name.set);
        self.admit_token(name, set.as_deref())?;
        let set = set.ok_or_else(|| self.absent(&name.set))?;
        let found = set.host.with(|m| m.state().volume_named(&name.volume).map(|(id, v)| (id, v.size)));
        match found {
            Some((id, size)) => Ok((set, id, size)),
            // A follower that has just started may not know it yet; the leader does.
            None if set.group.leading_term().is_none() => Err(self.elsewhere(&set)),
            None => Err(unknown(format!("set {} has no volume {}", name.set, name.volume))),
        }
    }

    /// Finds a volume of a snapshot. Any gateway that has applied the snapshot serves it.
    fn find_snapshot(
        &self,
        name: &ExportName,
        snapshot: &SnapshotExport,
    ) -> Result<(Arc<SetServer>, SnapshotDevice), Refusal> {
        let set = self.set(&name.set);
        let found = set.as_ref().and_then(|set| SnapshotDevice::find(set, &snapshot.name, &name.volume));
        if !self.open_snapshots {
            let opened = set.zip(found.filter(|device| snapshot.token.is_some_and(|token| device.opens(token))));
            // The same answer in every case: a client without a token must not learn which sets and snapshots exist.
            return opened.ok_or_else(|| Refusal {
                kind: RefusalKind::NotPermitted,
                message: format!(
                    "{name}: no snapshot is open under this name and token at this gateway; `holdfast snapshot token {}@{}` prints both; if you have them from there, try again, or another gateway",
                    name.set, snapshot.name
                ),
            });
        }
        let unknown = |message: String| Refusal { kind: RefusalKind::Unknown, message };
        let set = set.ok_or_else(|| self.absent(&name.set))?;
        match found {
            Some(device) => Ok((set, device)),
            None if set.group.leading_term().is_none() => Err(self.elsewhere(&set)),
            None => Err(unknown(format!("there is no {name}: no such snapshot, or no such volume in it"))),
        }
    }

    /// The set does not run here: there is none, it is being started, or it has no place at this gateway (VOTERS-V2).
    fn absent(&self, name: &Name) -> Refusal {
        let Some((_, entry)) = self.cluster.set_named(name) else {
            return Refusal { kind: RefusalKind::Unknown, message: format!("there is no set {name}") };
        };
        let at = |id: &MemberId| self.cluster.member(*id).map(|m| format!("gateway {} at {}", m.name, m.nbd_addr));
        let voters: Vec<String> = entry.voters.iter().filter_map(at).collect();
        let message = match voters.as_slice() {
            [] => format!("set {name} does not run at this gateway yet; try again, or another gateway"),
            voters => format!("set {name} is not on this gateway; try {}", voters.join(", ")),
        };
        Refusal { kind: RefusalKind::NotHere, message }
    }

    fn elsewhere(&self, set: &SetServer) -> Refusal {
        let leader = set.group.leadership().borrow().leader;
        let member = leader.filter(|l| *l != set.me()).and_then(|l| self.cluster.member(l));
        let message = match member {
            Some(m) => format!("set {} is served by gateway {} at {}; connect there", set.name, m.name, m.nbd_addr),
            None => format!("set {} has no leader at the moment; try again, or another gateway", set.name),
        };
        Refusal { kind: RefusalKind::NotHere, message }
    }

    fn refusal(&self, set: &SetServer, error: &SetError) -> Refusal {
        match error {
            SetError::Propose(ProposeError::NotLeader { .. }) => self.elsewhere(set),
            SetError::Refused(gone @ SetRefusal::NoSuchVolume { .. }) => {
                Refusal { kind: RefusalKind::Unknown, message: gone.to_string() }
            }
            SetError::Refused(refusal) => Refusal { kind: RefusalKind::NotPermitted, message: refusal.to_string() },
            SetError::Fenced(why) => Refusal { kind: RefusalKind::NotPermitted, message: why.clone() },
            other => Refusal { kind: RefusalKind::NotHere, message: other.to_string() },
        }
    }
}

fn plain_owner(set: &SetServer, peer: &Peer) -> Result<Owner, Refusal> {
    // Owner by address, so that the connections of one device share a lease; with the port they would differ.
    let host = match peer {
        Peer::Tcp(addr) => addr.ip().to_string(),
        Peer::Unix => "unix".to_string(),
    };
    Owner::new(format!("plain/{}/{host}", set.me()))
        .map_err(|e| Refusal { kind: RefusalKind::NotPermitted, message: e.to_string() })
}

/// The description of an export, for NBD_OPT_INFO and NBD_OPT_GO alike.
fn described(set: &SetServer, snapshot: bool) -> String {
    format!("{}set {}", if snapshot { "snapshot of " } else { "" }, set.name)
}

impl Exports for NodeExports {
    fn list(&self) -> Vec<(ExportName, String)> {
        if !self.plain_exports {
            return Vec::new();
        }
        let sets = self.sets.reading();
        let mut out = Vec::new();
        for set in sets.values() {
            let volumes: Vec<Name> = set.host.with(|m| m.state().volumes.values().map(|v| v.name.clone()).collect());
            out.extend(volumes.into_iter().map(|v| (ExportName::plain(set.name.clone(), v), String::new())));
        }
        out
    }

    fn describe(&self, name: &ExportName, _conn: ConnInfo) -> BoxFuture<'static, Result<ExportInfo, Refusal>> {
        if let Some(snapshot) = &name.snapshot {
            let found = self.find_snapshot(name, snapshot).map(|(set, device)| ExportInfo {
                size: device.size(),
                description: described(&set, true),
                read_only: true,
            });
            return Box::pin(async move { found });
        }
        let found = self.find(name).and_then(|(set, _, size)| match set.group.leading_term() {
            None => Err(self.elsewhere(&set)),
            Some(_) => Ok(ExportInfo {
                size: size.to_bytes().unwrap_or(0),
                description: described(&set, false),
                read_only: false,
            }),
        });
        Box::pin(async move { found })
    }

    fn open(&self, name: &ExportName, conn: ConnInfo) -> BoxFuture<'static, Result<OpenedExport, Refusal>> {
        let this = self.clone();
        let name = name.clone();
        if let Some(snapshot) = &name.snapshot {
            let opened = self.find_snapshot(&name, snapshot).map(|(set, device)| OpenedExport {
                device: Arc::new(device),
                closed: set.stopping(),
                draining: CancellationToken::new(),
                epoch: Epoch(0),
                description: described(&set, true),
                slots: Slots::default(),
                read_only: true,
                throttles: Throttles::default(),
            });
            return Box::pin(async move { opened });
        }
        Box::pin(async move {
            let (set, volume, _) = this.find(&name)?;
            if set.group.leading_term().is_none() {
                return Err(this.elsewhere(&set));
            }
            let used = set.use_volume(volume, &name.volume).map_err(|e| this.refusal(&set, &e))?;
            let connection = match &name.session {
                Some(session) => set.open_session(session.token).await.map_err(|e| this.refusal(&set, &e))?,
                None => {
                    this.admit(&name)?;
                    let owner = plain_owner(&set, &conn.peer)?;
                    set.open_plain(owner).await.map_err(|e| this.refusal(&set, &e))?
                }
            };
            let (closed, draining) = (connection.serving.closed.clone(), connection.serving.draining.clone());
            let epoch = connection.serving.epoch;
            Ok(OpenedExport {
                device: Arc::new(VolumeDevice { connection, volume, _used: used }),
                closed,
                draining,
                epoch,
                description: described(&set, false),
                slots: set.slots(volume),
                read_only: false,
                throttles: set.throttles(volume),
            })
        })
    }
}

#[cfg(any(test, feature = "testing"))]
#[allow(missing_docs, dead_code, unused_imports)]
pub mod tests;
