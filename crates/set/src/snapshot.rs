//! Snapshots as read-only exports: `SET/VOLUME@SNAPSHOT`, at any gateway that has applied the snapshot.
//!
//! It needs no lease: what a kept root shows never changes (R7), so a late answer is as right as an early one. It needs the snapshot's token
//! ([`SetKey::snapshot_token`](crate::set_key::SetKey::snapshot_token)), unless `snapshot_exports = "open"`. When the snapshot is deleted while it is read,
//! its objects may be gone: the connection is closed.

use crate::ahead::{Ahead, Of};
use crate::reader::Part;
use crate::server::SetServer;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_cache::Demand;
use holdfast_control::set::RootRef;
use holdfast_front::device::{Device, DeviceError, Extent, ReadPart};
use holdfast_types::{Lba, Name, RequestId, SECTOR_BYTES, Sectors, Token, VolumeId};
use std::sync::Arc;

/// Bytes that are fetched at once at most.
const STEP_BYTES: u64 = 4 << 20;

/// One volume of one snapshot.
pub struct SnapshotDevice {
    server: Arc<SetServer>,
    snapshot: Name,
    made_by: RequestId,
    root: RootRef,
    volume: VolumeId,
    size: Sectors,
    ahead: Ahead,
}

impl SnapshotDevice {
    /// The volume as the snapshot has it; `None` where there is no such snapshot, or no such volume in it, as far as applied here.
    pub fn find(server: &Arc<SetServer>, snapshot: &Name, volume: &Name) -> Option<Self> {
        let (root, made_by, id, size) = server.host.with(|m| {
            let found = m.state().snapshots.get(snapshot)?;
            let (id, volume) = found.volumes.iter().find(|(_, v)| v.name == *volume)?;
            Some((found.root, found.request, *id, volume.size))
        })?;
        let ahead = server.reader.ahead_of_root();
        Some(Self { server: server.clone(), snapshot: snapshot.clone(), made_by, root, volume: id, size, ahead })
    }

    /// Whether `token` opens it.
    pub fn opens(&self, token: Token) -> bool {
        self.server.reader.mapping().key.opens_snapshot(self.made_by, token)
    }

    /// Whether it is there still.
    fn check(&self) -> Result<(), DeviceError> {
        let root = self.server.host.with(|m| m.state().snapshots.get(&self.snapshot).map(|found| found.root));
        if root == Some(self.root) { Ok(()) } else { Err(DeviceError::Disconnect) }
    }

    async fn read_range(&self, offset: u64, len: u32) -> Result<Vec<ReadPart>, DeviceError> {
        let mut out = Vec::new();
        let end = offset.checked_add(u64::from(len)).ok_or(DeviceError::Invalid)?;
        if end > self.size() {
            return Err(DeviceError::Invalid);
        }
        let demand = match (Lba::from_bytes(offset), Sectors::from_bytes(u64::from(len))) {
            // Beyond the end of the volume its map has nothing.
            (Some(lba), Some(sectors)) => {
                self.ahead.reads(self.server.reader.mapping(), &Of::Root(self.root), self.volume, lba, sectors)
            }
            _ => Demand::Point,
        };
        let mut at = offset;
        while at < end {
            let step = STEP_BYTES.min(end - at);
            let lba = Lba::from_bytes(at).ok_or(DeviceError::Invalid)?;
            let sectors = Sectors::from_bytes(step).ok_or(DeviceError::Invalid)?;
            let parts = self.server.reader.read_root(self.root, self.volume, lba, sectors, demand).await;
            let parts = parts.map_err(|e| {
                tracing::warn!(set = %self.server.name, snapshot = %self.snapshot, %lba, error = %e, "read of a snapshot failed; connection closed");
                DeviceError::Disconnect
            })?;
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
        self.check()?;
        Ok(out)
    }
}

/// The front refuses what changes a read-only export before it gets here.
fn refused() -> BoxFuture<'static, Result<(), DeviceError>> {
    Box::pin(async { Err(DeviceError::Invalid) })
}

impl Device for SnapshotDevice {
    fn size(&self) -> u64 {
        self.size.to_bytes().unwrap_or(0)
    }

    fn read(self: Arc<Self>, offset: u64, len: u32) -> BoxFuture<'static, Result<Vec<ReadPart>, DeviceError>> {
        Box::pin(async move { self.read_range(offset, len).await })
    }

    fn write(self: Arc<Self>, _: u64, _: Bytes, _: bool) -> BoxFuture<'static, Result<(), DeviceError>> {
        refused()
    }

    fn zero(self: Arc<Self>, _: u64, _: u32, _: bool, _: bool) -> BoxFuture<'static, Result<(), DeviceError>> {
        refused()
    }

    fn zero_is_fast(&self, _punch: bool) -> bool {
        false
    }

    fn trim(self: Arc<Self>, _: u64, _: u32, _: bool) -> BoxFuture<'static, Result<(), DeviceError>> {
        refused()
    }

    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<(), DeviceError>> {
        Box::pin(async move { self.check() })
    }

    fn settled(self: Arc<Self>) -> BoxFuture<'static, Result<(), DeviceError>> {
        // Nothing is ever handed in.
        Box::pin(async { Ok(()) })
    }

    fn cache(self: Arc<Self>, offset: u64, len: u32) -> BoxFuture<'static, Result<(), DeviceError>> {
        Box::pin(async move {
            let (Some(lba), Some(sectors)) = (Lba::from_bytes(offset), Sectors::from_bytes(u64::from(len))) else {
                return Err(DeviceError::Invalid);
            };
            self.ahead.will_read(self.server.reader.mapping(), &Of::Root(self.root), self.volume, lba, sectors);
            Ok(())
        })
    }

    fn block_status(
        self: Arc<Self>,
        _offset: u64,
        len: u64,
        _extents_max: usize,
    ) -> BoxFuture<'static, Result<Vec<Extent>, DeviceError>> {
        // All of it is said to be allocated: allowed, and costs no I/O.
        Box::pin(async move { Ok(vec![Extent { len, hole: false }]) })
    }
}
