//! A device in memory, for tests of the front and of crates above it (feature `testing`). A gateway has none.

use super::device::{
    ConnInfo, Device, DeviceError, ExportInfo, Exports, Extent, OpenedExport, ReadPart, Refusal, RefusalKind,
};
use super::slots::Slots;
use super::throttle::Throttles;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use holdfast_nbd::ExportName;
use holdfast_types::Epoch;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio_util::sync::CancellationToken;

/// The description of each export.
const DESCRIPTION: &str = "in memory";

/// Allocation unit in bytes.
const BLOCK_BYTES: u64 = 4096;

/// A thin device in memory. Answers at once.
pub struct MemoryDevice {
    size: u64,
    blocks: Mutex<BTreeMap<u64, Box<[u8]>>>,
}

impl MemoryDevice {
    /// An empty device of `size` bytes.
    pub fn new(size: u64) -> Self {
        Self { size, blocks: Mutex::default() }
    }

    fn blocks(&self) -> MutexGuard<'_, BTreeMap<u64, Box<[u8]>>> {
        self.blocks.locked()
    }

    fn done<T: Send + 'static>(result: T) -> BoxFuture<'static, Result<T, DeviceError>> {
        ready(Ok(result)).boxed()
    }

    /// The blocks in `offset..offset + len`: (block, first byte in it, number of bytes).
    fn touched(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
        let end = offset + len;
        (offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES)).map(move |block| {
            let from = offset.max(block * BLOCK_BYTES);
            let to = end.min((block + 1) * BLOCK_BYTES);
            (block, (from - block * BLOCK_BYTES) as usize, (to - from) as usize)
        })
    }

    /// Writes at once.
    pub fn put(&self, offset: u64, data: &[u8]) {
        let mut blocks = self.blocks();
        let mut rest = data;
        for (block, from, bytes) in Self::touched(offset, data.len() as u64) {
            let (piece, after) = rest.split_at(bytes);
            rest = after;
            let block = blocks.entry(block).or_insert_with(|| vec![0; BLOCK_BYTES as usize].into());
            block[from..from + bytes].copy_from_slice(piece);
        }
    }

    /// Reads at once.
    pub fn get(&self, offset: u64, len: u32) -> Vec<ReadPart> {
        let blocks = self.blocks();
        let mut parts: Vec<ReadPart> = Vec::new();
        let mut data: Vec<u8> = Vec::new();
        for (block, from, bytes) in Self::touched(offset, u64::from(len)) {
            match (blocks.get(&block), parts.last_mut()) {
                (Some(block), _) => data.extend_from_slice(&block[from..from + bytes]),
                (None, Some(ReadPart::Zeroes(zeroes))) if data.is_empty() => *zeroes += bytes as u32,
                (None, _) => {
                    if !data.is_empty() {
                        parts.push(ReadPart::Data(std::mem::take(&mut data).into()));
                    }
                    parts.push(ReadPart::Zeroes(bytes as u32));
                }
            }
        }
        if !data.is_empty() {
            parts.push(ReadPart::Data(data.into()));
        }
        parts
    }

    fn clear(&self, offset: u64, len: u64) {
        let mut blocks = self.blocks();
        let touched: Vec<u64> =
            blocks.range(offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES)).map(|(b, _)| *b).collect();
        for block in touched {
            let (from, to) = (offset.max(block * BLOCK_BYTES), (offset + len).min((block + 1) * BLOCK_BYTES));
            if to - from == BLOCK_BYTES {
                blocks.remove(&block);
            } else if let Some(bytes) = blocks.get_mut(&block) {
                bytes[(from - block * BLOCK_BYTES) as usize..(to - block * BLOCK_BYTES) as usize].fill(0);
            }
        }
    }
}

impl Device for MemoryDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(self: Arc<Self>, offset: u64, len: u32) -> BoxFuture<'static, Result<Vec<ReadPart>, DeviceError>> {
        Self::done(self.get(offset, len))
    }

    fn write(self: Arc<Self>, offset: u64, data: Bytes, _fua: bool) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.put(offset, &data);
        Self::done(())
    }

    fn zero(
        self: Arc<Self>,
        offset: u64,
        len: u32,
        punch: bool,
        _fua: bool,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        if punch {
            self.clear(offset, u64::from(len));
        } else {
            for (block, from, bytes) in Self::touched(offset, u64::from(len)) {
                self.put(block * BLOCK_BYTES + from as u64, &[0; BLOCK_BYTES as usize][..bytes]);
            }
        }
        Self::done(())
    }

    fn zero_is_fast(&self, punch: bool) -> bool {
        punch
    }

    fn trim(self: Arc<Self>, offset: u64, len: u32, _fua: bool) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.clear(offset, u64::from(len));
        Self::done(())
    }

    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<(), DeviceError>> {
        Self::done(())
    }

    fn settled(self: Arc<Self>) -> BoxFuture<'static, Result<(), DeviceError>> {
        Self::done(())
    }

    fn cache(self: Arc<Self>, _offset: u64, _len: u32) -> BoxFuture<'static, Result<(), DeviceError>> {
        Self::done(())
    }

    fn block_status(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> BoxFuture<'static, Result<Vec<Extent>, DeviceError>> {
        let blocks = self.blocks();
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        for block in blocks.range(offset / BLOCK_BYTES..(offset + len).div_ceil(BLOCK_BYTES)).map(|(block, _)| *block) {
            if extents.len() >= extents_max {
                return Self::done(extents);
            }
            let (from, to) = (offset.max(block * BLOCK_BYTES), (offset + len).min((block + 1) * BLOCK_BYTES));
            if from > at {
                extents.push(Extent { len: from - at, hole: true });
            }
            let full = extents.len() >= extents_max;
            match extents.last_mut() {
                Some(last) if !last.hole => last.len += to - from,
                _ if !full => extents.push(Extent { len: to - from, hole: false }),
                _ => return Self::done(extents),
            }
            at = to;
        }
        if at < offset + len && extents.len() < extents_max {
            extents.push(Extent { len: offset + len - at, hole: true });
        }
        Self::done(extents)
    }
}

/// Plain exports of devices by name, and any session of them: tokens are ignored.
#[derive(Default)]
pub struct MemoryExports {
    devices: Mutex<BTreeMap<String, Exported>>,
}

/// One export. Its slots and limits stay while its device is replaced.
struct Exported {
    slots: Slots,
    throttles: Throttles,
    device: Arc<dyn Device>,
    closed: CancellationToken,
    draining: CancellationToken,
    epoch: Epoch,
    read_only: bool,
}

impl MemoryExports {
    fn devices(&self) -> MutexGuard<'_, BTreeMap<String, Exported>> {
        self.devices.locked()
    }

    /// Adds or replaces an export, `SET/VOLUME`. Cancelling the returned token closes its connections.
    pub fn put(&self, name: &str, device: Arc<dyn Device>, epoch: Epoch, read_only: bool) -> CancellationToken {
        let closed = CancellationToken::new();
        self.insert(name, device, epoch, read_only, closed.clone());
        closed
    }

    fn insert(&self, name: &str, device: Arc<dyn Device>, epoch: Epoch, read_only: bool, closed: CancellationToken) {
        let mut devices = self.devices();
        let kept = devices.get(name).map(|before| (before.slots.clone(), before.throttles.clone()));
        let (slots, throttles) = kept.unwrap_or_default();
        let draining = CancellationToken::new();
        devices.insert(name.into(), Exported { slots, throttles, device, closed, draining, epoch, read_only });
    }

    /// The limits of an export.
    pub fn throttles(&self, name: &str) -> Throttles {
        self.devices().get(name).map(|exported| exported.throttles.clone()).unwrap_or_default()
    }

    /// Drains the export's connections: their requests are answered, then they are closed.
    pub fn drain(&self, name: &str) {
        if let Some(exported) = self.devices().get(name) {
            exported.draining.cancel();
        }
    }

    /// Like `put`, with an existing token that closes its connections.
    pub fn put_closed_by(&self, name: &str, device: Arc<dyn Device>, epoch: Epoch, closed: CancellationToken) {
        self.insert(name, device, epoch, false, closed);
    }

    fn find<T>(&self, name: &ExportName, found: impl FnOnce(&Exported) -> T) -> Result<T, Refusal> {
        let plain = format!("{}/{}", name.set, name.volume);
        let unknown = || Refusal { kind: RefusalKind::Unknown, message: format!("there is no export {plain}") };
        self.devices().get(&plain).map(found).ok_or_else(unknown)
    }
}

impl Exports for MemoryExports {
    fn list(&self) -> Vec<(ExportName, String)> {
        self.devices().keys().filter_map(|name| Some((name.parse().ok()?, String::new()))).collect()
    }

    fn describe(&self, name: &ExportName, _conn: ConnInfo) -> BoxFuture<'static, Result<ExportInfo, Refusal>> {
        ready(self.find(name, |exported| ExportInfo {
            size: exported.device.size(),
            read_only: exported.read_only,
            description: DESCRIPTION.into(),
        }))
        .boxed()
    }

    fn open(&self, name: &ExportName, _conn: ConnInfo) -> BoxFuture<'static, Result<OpenedExport, Refusal>> {
        ready(self.find(name, |exported| OpenedExport {
            device: exported.device.clone(),
            closed: exported.closed.clone(),
            draining: exported.draining.clone(),
            epoch: exported.epoch,
            slots: exported.slots.clone(),
            description: DESCRIPTION.into(),
            read_only: exported.read_only,
            throttles: exported.throttles.clone(),
        }))
        .boxed()
    }
}
