//! A device whose operations wait until the test releases them.

use crate::device::{Device, DeviceError, Extent, ReadPart};
use crate::memory::MemoryDevice;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// An operation that has begun and waits.
pub(super) struct Begun {
    pub(super) what: &'static str,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Whether it began between a hold and its release.
    pub(super) held: bool,
    release: oneshot::Sender<Result<(), DeviceError>>,
}

impl Begun {
    /// Lets it continue or fail. Returns `false` if the front has dropped it.
    pub(super) fn go(self, how: Result<(), DeviceError>) -> bool {
        self.release.send(how).is_ok()
    }

    /// Returns once the front has dropped it.
    pub(super) async fn dropped(mut self) {
        self.release.closed().await;
    }
}

pub(super) struct GateDevice {
    pub(super) memory: Arc<MemoryDevice>,
    begun: mpsc::UnboundedSender<Begun>,
    /// Cancelled by the first operation that begins, after those that are spared.
    pub(super) trap: CancellationToken,
    pub(super) spared: Arc<AtomicUsize>,
    /// By so many bytes its answers to reads are too short.
    pub(super) short: AtomicU32,
    /// Whether earlier requests have their outcome.
    pub(super) settled: watch::Sender<Result<bool, DeviceError>>,
    /// The size that it shows, and how often it was asked for it.
    pub(super) shown: AtomicU64,
    pub(super) asked: AtomicUsize,
    /// Holds without a release, and how many were released.
    held: Arc<AtomicUsize>,
    pub(super) released: AtomicUsize,
}

impl GateDevice {
    pub(super) fn new(size: u64) -> (Arc<Self>, mpsc::UnboundedReceiver<Begun>) {
        let (begun, receiver) = mpsc::unbounded_channel();
        let (memory, settled) = (Arc::new(MemoryDevice::new(size)), watch::Sender::new(Ok(true)));
        let (shown, asked) = (AtomicU64::new(size), AtomicUsize::new(0));
        let (trap, spared, short) = (CancellationToken::new(), Arc::default(), AtomicU32::new(0));
        let (held, released) = (Arc::default(), AtomicUsize::new(0));
        let device = Self { memory, begun, trap, spared, short, settled, shown, asked, held, released };
        (Arc::new(device), receiver)
    }

    /// Runs `operation` once the test allows it. As for any device, a dropped operation never takes effect.
    fn gated<T: Send + 'static>(
        &self,
        what: &'static str,
        offset: u64,
        len: u64,
        operation: impl FnOnce(Arc<MemoryDevice>) -> BoxFuture<'static, Result<T, DeviceError>> + Send + 'static,
    ) -> BoxFuture<'static, Result<T, DeviceError>> {
        let (begun, memory, trap) = (self.begun.clone(), self.memory.clone(), self.trap.clone());
        let (spared, held) = (self.spared.clone(), self.held.clone());
        async move {
            if spared.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
                trap.cancel();
            }
            let (release, released) = oneshot::channel();
            let held = held.load(Ordering::Relaxed) > 0;
            let _ = begun.send(Begun { what, offset, len, held, release });
            released.await.unwrap_or(Err(DeviceError::Disconnect))?;
            operation(memory).await
        }
        .boxed()
    }
}

impl Device for GateDevice {
    fn size(&self) -> u64 {
        self.asked.fetch_add(1, Ordering::Relaxed);
        self.shown.load(Ordering::Relaxed)
    }

    fn read(self: Arc<Self>, offset: u64, len: u32) -> BoxFuture<'static, Result<Vec<ReadPart>, DeviceError>> {
        let short = self.short.load(Ordering::Relaxed);
        self.gated("read", offset, len.into(), move |memory| memory.read(offset, len - short))
    }

    fn write(self: Arc<Self>, offset: u64, data: Bytes, fua: bool) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.gated("write", offset, data.len() as u64, move |memory| memory.write(offset, data, fua))
    }

    fn zero(
        self: Arc<Self>,
        offset: u64,
        len: u32,
        punch: bool,
        fua: bool,
    ) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.gated("zero", offset, len.into(), move |memory| memory.zero(offset, len, punch, fua))
    }

    fn zero_is_fast(&self, punch: bool) -> bool {
        punch
    }

    fn trim(self: Arc<Self>, offset: u64, len: u32, fua: bool) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.gated("trim", offset, len.into(), move |memory| memory.trim(offset, len, fua))
    }

    fn hold(&self) {
        self.held.fetch_add(1, Ordering::Relaxed);
    }

    fn release(&self) {
        assert!(self.held.fetch_sub(1, Ordering::Relaxed) > 0, "released without a hold");
        self.released.fetch_add(1, Ordering::Relaxed);
    }

    fn flush(self: Arc<Self>) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.gated("flush", 0, 0, |memory| memory.flush())
    }

    fn settled(self: Arc<Self>) -> BoxFuture<'static, Result<(), DeviceError>> {
        let mut settled = self.settled.subscribe();
        async move {
            let settled = settled.wait_for(|settled| *settled != Ok(false)).await;
            settled.map_err(|_| DeviceError::Disconnect)?.map(|_| ())
        }
        .boxed()
    }

    fn cache(self: Arc<Self>, offset: u64, len: u32) -> BoxFuture<'static, Result<(), DeviceError>> {
        self.gated("cache", offset, len.into(), move |memory| memory.cache(offset, len))
    }

    fn block_status(
        self: Arc<Self>,
        offset: u64,
        len: u64,
        extents_max: usize,
    ) -> BoxFuture<'static, Result<Vec<Extent>, DeviceError>> {
        self.gated("status", offset, len, move |memory| memory.block_status(offset, len, extents_max))
    }
}
