//! The disk tier: sealed bytes in foyer's block files. Anything that goes wrong here is a miss.
//!
//! ```text
//!   DIR/layout      sizes that the files were made for; other sizes, or none: the files are dropped
//!   DIR/blocks/     foyer's files
//! ```

use super::BlockKey;
use bytes::Bytes;
use foyer::{
    BlockEngineConfig, Code, DeviceBuilder, FsDeviceBuilder, HybridCache, HybridCacheBuilder, HybridCachePolicy, Load,
    PsyncIoEngineConfig, RecoverMode,
};
use holdfast_types::{MemberId, ObjectId, Term, limits};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Memory in bytes that the disk tier takes beside the cache's own: buffers being filled and written, and what waits for
/// them. What comes faster than the disk takes it is not kept.
pub const DISK_BUFFER_BYTES: usize = 2 * POOL_BYTES + QUEUE_BYTES;
const POOL_BYTES: usize = 8 << 20;
const QUEUE_BYTES: usize = 8 << 20;

/// What was made here goes to the disk in pieces of so many bytes, one after the other: with what reads store beside it the queue has room for it.
const KEEP_BYTES: usize = 2 << 20;

/// How long the disk may take for what was made here. It is kept in memory meanwhile, and a checkpoint waits.
const KEEP_TIME_MAX: Duration = Duration::from_secs(2);

/// Foyer's unit on disk in bytes: whatever is kept takes whole ones.
const UNIT_BYTES: usize = 4096;

/// A disk slower than this is not asked: the store is not much slower.
const LOAD_TIME_MAX: Duration = Duration::from_millis(500);

/// Files of the tier at most: each is held open.
const BLOCKS_MAX: u64 = 256;
/// Unit of eviction in bytes where the tier is small; many extents must fit.
const BLOCK_BYTES_MIN: u64 = 1 << 20;
/// Foyer needs some blocks to write to while others are evicted.
const BLOCKS_MIN: u64 = 16;

const _: () = assert!(BLOCK_BYTES_MIN as usize >= 4 * limits::EXTENT_BYTES_MAX);

/// See the module.
#[derive(Debug)]
pub(super) struct Disk {
    hybrid: HybridCache<BlockKey, Bytes>,
    errors: AtomicU64,
    /// Held by whose pieces are on their way ([`KEEP_BYTES`]).
    turn: tokio::sync::Mutex<()>,
}

impl Code for BlockKey {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        let mut text = [0; 44];
        text[..8].copy_from_slice(&self.object.term.0.to_le_bytes());
        text[8..16].copy_from_slice(&self.object.member.0.to_le_bytes());
        text[16..24].copy_from_slice(&self.object.boot.to_le_bytes());
        text[24..40].copy_from_slice(&self.object.random.to_le_bytes());
        text[40..].copy_from_slice(&self.number.to_le_bytes());
        writer.write_all(&text).map_err(foyer::Error::io_error)
    }

    fn decode(reader: &mut impl Read) -> foyer::Result<Self> {
        let mut word = || -> foyer::Result<u64> {
            let mut bytes = [0; 8];
            reader.read_exact(&mut bytes).map_err(foyer::Error::io_error)?;
            Ok(u64::from_le_bytes(bytes))
        };
        let (term, member, boot) = (Term(word()?), MemberId(word()?), word()?);
        let random = u128::from(word()?) | u128::from(word()?) << 64;
        let mut number = [0; 4];
        reader.read_exact(&mut number).map_err(foyer::Error::io_error)?;
        Ok(Self { object: ObjectId { term, member, boot, random }, number: u32::from_le_bytes(number) })
    }

    fn estimated_size(&self) -> usize {
        44
    }
}

/// Sizes of the files, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    block: u64,
    whole: u64,
}

impl Layout {
    /// `None` where `bytes` is too little to be of use.
    fn of(bytes: u64) -> Option<Self> {
        let block = (bytes / 64).clamp(BLOCK_BYTES_MIN, 256 << 20).max(bytes.div_ceil(BLOCKS_MAX));
        let block = block.next_multiple_of(4096);
        let whole = bytes - bytes % block;
        (whole / block >= BLOCKS_MIN).then_some(Self { block, whole })
    }

    fn text(self) -> String {
        format!("holdfast read cache, version 1: {} bytes in blocks of {}\n", self.whole, self.block)
    }
}

impl Disk {
    /// Opens the tier with at most `bytes` of files below `dir`. `None`, with a warning, when that cannot be done.
    pub(super) async fn open(dir: PathBuf, bytes: u64) -> Option<Self> {
        let Some(layout) = Layout::of(bytes) else {
            tracing::warn!(bytes, expected = BLOCKS_MIN * BLOCK_BYTES_MIN, "cache disk: too small, going without");
            return None;
        };
        match Self::try_open(&dir, layout).await {
            Ok(disk) => return Some(disk),
            Err(error) => tracing::warn!(dir = %dir.display(), %error, "cache disk: dropped, it could not be opened"),
        }
        let again = match drop_files(&dir) {
            Ok(()) => Self::try_open(&dir, layout).await,
            Err(error) => Err(error),
        };
        again.inspect_err(|error| tracing::warn!(dir = %dir.display(), %error, "cache disk: going without")).ok()
    }

    async fn try_open(dir: &Path, layout: Layout) -> io::Result<Self> {
        let (blocks, note) = (dir.join("blocks"), dir.join("layout"));
        if std::fs::read_to_string(&note).ok() != Some(layout.text()) {
            drop_files(dir)?;
            std::fs::create_dir_all(&blocks)?;
            std::fs::write(&note, layout.text())?;
        }
        std::fs::create_dir_all(&blocks)?;
        // Past the page cache, which would hold everything twice and write it back beside the journal's syncs; not every
        // file system can do that.
        let hybrid = match build(&blocks, layout, true).await {
            Ok(hybrid) => hybrid,
            Err(_) => build(&blocks, layout, false).await.map_err(|error| io::Error::other(error.to_string()))?,
        };
        Ok(Self { hybrid, errors: AtomicU64::new(0), turn: tokio::sync::Mutex::default() })
    }

    /// The sealed bytes, if they are here and come in time.
    pub(super) async fn load(&self, key: &BlockKey) -> Option<Bytes> {
        match tokio::time::timeout(LOAD_TIME_MAX, self.hybrid.storage().load(key)).await {
            Ok(Ok(Load::Entry { value, .. })) => Some(value),
            Ok(Ok(Load::Piece { piece, .. })) => Some(piece.value().clone()),
            Ok(Ok(Load::Miss | Load::Throttled)) => None,
            Ok(Err(error)) => {
                self.errors.fetch_add(1, Relaxed);
                tracing::debug!(%error, "cache disk: read failed");
                None
            }
            Err(_) => {
                self.errors.fetch_add(1, Relaxed);
                None
            }
        }
    }

    /// Keeps the sealed bytes, unless the disk is behind.
    pub(super) fn store(&self, key: BlockKey, sealed: Bytes) {
        // A part of a larger buffer would keep all of it in memory while it waits to be written.
        let sealed = if sealed.is_unique() { sealed } else { Bytes::copy_from_slice(&sealed) };
        self.hybrid.storage_writer(key).insert(sealed);
    }

    /// Keeps all the pieces, at the disk's pace; how many bytes of them. What the disk has not taken after [`KEEP_TIME_MAX`] is not kept.
    pub(super) async fn keep(&self, pieces: impl IntoIterator<Item = (BlockKey, Bytes)>) -> u64 {
        let mut kept = 0;
        let mut pieces = pieces.into_iter().peekable();
        let whole = async {
            while pieces.peek().is_some() {
                let _turn = self.turn.lock().await;
                // Before, not after: nobody waits for the last piece.
                self.hybrid.storage().wait().await;
                let mut taken = 0;
                while let Some((key, sealed)) = pieces.next_if(|_| taken < KEEP_BYTES) {
                    taken += sealed.len().next_multiple_of(UNIT_BYTES);
                    kept += sealed.len() as u64;
                    // Copied: the object's memory is used again, or given back, as soon as the store has it.
                    self.hybrid.storage_writer(key).insert(Bytes::copy_from_slice(&sealed));
                }
            }
        };
        if tokio::time::timeout(KEEP_TIME_MAX, whole).await.is_err() {
            tracing::debug!("cache disk: behind; some of what was uploaded is not kept");
        }
        kept
    }

    /// Whether the key's bytes are probably here.
    pub(super) fn has(&self, key: &BlockKey) -> bool {
        self.hybrid.storage().may_contains(key)
    }

    /// Drops the bytes.
    pub(super) fn forget(&self, key: &BlockKey) {
        self.hybrid.remove(key);
    }

    /// Reads that failed or took too long.
    pub(super) fn errors(&self) -> u64 {
        self.errors.load(Relaxed)
    }

    pub(super) async fn close(&self) {
        self.hybrid.storage().wait().await;
        if let Err(error) = self.hybrid.close().await {
            tracing::debug!(%error, "cache disk: closing failed");
        }
    }

    /// Until everything stored so far is on disk.
    #[cfg(test)]
    pub(super) async fn settle(&self) {
        self.hybrid.storage().wait().await;
    }
}

/// Removes what is ours below `dir`, and `dir` itself where it is not a directory.
fn drop_files(dir: &Path) -> io::Result<()> {
    for gone in [std::fs::remove_file(dir.join("layout")), std::fs::remove_dir_all(dir.join("blocks"))] {
        match gone {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

async fn build(dir: &Path, layout: Layout, direct: bool) -> foyer::Result<HybridCache<BlockKey, Bytes>> {
    let (block, whole) = (layout.block as usize, layout.whole as usize);
    let device = FsDeviceBuilder::new(dir).with_capacity(whole).with_direct(direct).build()?;
    HybridCacheBuilder::new()
        .with_name("holdfast-disk")
        .with_policy(HybridCachePolicy::WriteOnInsertion)
        .with_flush_on_close(false)
        // Nothing stays in this memory: what is stored goes to the disk only, what is loaded is opened and kept above.
        .memory(1 << 20)
        .with_shards(1)
        .with_weighter(|_: &BlockKey, sealed: &Bytes| sealed.len())
        .storage()
        .with_io_engine_config(PsyncIoEngineConfig::new())
        .with_engine_config(
            BlockEngineConfig::new(device)
                .with_block_size(block)
                .with_buffer_pool_size(POOL_BYTES)
                .with_submit_queue_size_threshold(QUEUE_BYTES),
        )
        // Objects never change (C1), so whatever is recovered and can be opened is right.
        .with_recover_mode(RecoverMode::Quiet)
        .build()
        .await
}
