//! Makes the map of a large volume as its checkpoints would have left it, without writing the volume (`cargo xtask
//! bench map`). It is a program of its own, so that it needs nothing that `holdfast` does not. It is part of no
//! release.
//!
//! ```text
//!   head of a set that has one volume and one checkpoint ─▶ page packs, some segments, leaves and a root ─▶ the head names that root
//! ```
//! Pages, packs, root, seals and head are made by the code that gateways use. The volume looks as if it had been
//! written in random 8 KiB pieces, in checkpoints of 256 MiB with 16 segments each, ordered by place. So an extent may
//! belong to any checkpoint, and to the segment of its sixteenth of the volume. Pages are in packs of twenty ages, as
//! if each checkpoint had rewritten some. Garbage is a quarter of what is in use, too little for garbage collection to
//! begin. Segments are referenced but need not exist. Those of the blocks that are to be read do exist, with content
//! that shows its place.
//!
//! `large_map STORE_URL KEY_FILE SET EXTENTS READABLE SEED PLACES_FILE`; prints one line of JSON. No gateway of the set
//! may run.

#[path = "../../src/map/figures.rs"]
mod figures;

use bytes::Bytes;
use figures::Map;
use holdfast_control::set::{Restored, RootRef};
use holdfast_set::keyring::KeySource;
use holdfast_set::mapping::SetKey;
use holdfast_set::recovery::{self, Found};
use holdfast_store::{ObjectStore, keys};
use holdfast_types::limits::SEGMENT_BYTES_TARGET;
use holdfast_types::{GroupId, Lba, LogId, LogIndex, MemberId, ObjectId, SECTOR_BYTES, Sectors, Term, VolumeId};
use holdfast_volume::head::{Covered, Head, seal_head};
use holdfast_volume::map::{
    LeafShape, Live, MapExtent, Opened, PAGE_SECTORS, PackBuilder, Page, PageRef, Root, open_top, seal_root,
};
use holdfast_volume::object::OBJECT_HEADER_BYTES;
use holdfast_volume::segment::{Codec, ExtentPlace, SegmentBuilder};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;
use tokio::runtime::Runtime;

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// One extent, in bytes and sectors.
const BLOCK_BYTES: u64 = 8192;
const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;
const PAGE_BLOCKS: u64 = PAGE_SECTORS / BLOCK_SECTORS;
/// Sealed, not compressed.
const SEALED_BYTES: u64 = BLOCK_BYTES + holdfast_seal::TAG_BYTES as u64;
/// Blocks that a segment holds.
const SEGMENT_BLOCKS: u64 = SEGMENT_BYTES_TARGET as u64 / BLOCK_BYTES;
/// Segments of one checkpoint: 256 MiB, the default of `upload.bytes`.
const CHECKPOINT_SEGMENTS: u64 = (256 << 20) / SEGMENT_BYTES_TARGET as u64;
/// Number of checkpoints whose packs still have pages.
const AGES: u64 = 20;
/// How often the root is opened, to measure its memory.
const OPENED: u64 = 8;
/// Raw sectors of a segment for each four that are in use.
const RAW_OF_FOUR: u64 = 5;

/// Content of the volume at `offset`, in bytes from the start: each word contains its own place.
fn content(offset: u64) -> Vec<u8> {
    let words = (offset..offset + BLOCK_BYTES).step_by(8);
    words.flat_map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

/// splitmix64.
fn mixed(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Random numbers from a seed.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// Number of blocks to skip before the next one. Each block exists with a probability; `ln_miss` is the logarithm
    /// of its complement.
    fn gap(&mut self, ln_miss: f64) -> u64 {
        // In (0, 1].
        let unit = ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64;
        (unit.ln() / ln_miss) as u64
    }
}

/// The volume to make.
struct Shape {
    seed: u64,
    volume: VolumeId,
    pages: u32,
    checkpoints: u64,
    ln_miss: f64,
    /// Sectors in use of each segment, by its number.
    live: Vec<AtomicU32>,
    /// Blocks with content, by page.
    readable: BTreeMap<u32, Vec<MapExtent>>,
}

impl Shape {
    fn new(seed: u64, volume: VolumeId, sectors: Sectors, extents: u64) -> Outcome<Self> {
        let pages = u32::try_from(sectors.0 / PAGE_SECTORS)?;
        let share = extents as f64 / (f64::from(pages.max(1)) * PAGE_BLOCKS as f64);
        if pages == 0 || share <= 0.0 || share > 0.9 {
            return Err(format!("found {extents} extents over {pages} pages, expected 1 to 0.9 for each 8 KiB").into());
        }
        let checkpoints = (extents / (CHECKPOINT_SEGMENTS * SEGMENT_BLOCKS)).max(1);
        let live = (0..checkpoints * CHECKPOINT_SEGMENTS).map(|_| AtomicU32::new(0)).collect();
        Ok(Self { seed, volume, pages, checkpoints, ln_miss: (1.0 - share).ln(), live, readable: BTreeMap::new() })
    }

    fn object(&self, number: u64) -> ObjectId {
        let half = |salt: u64| u128::from(mixed(self.seed ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03) ^ salt));
        ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: half(1) << 64 | half(2) }
    }

    /// A segment that is only referenced.
    fn segment(&self, number: u64) -> ObjectId {
        self.object(number)
    }

    /// The page's age, which decides its packs.
    fn age(&self, number: u32) -> u64 {
        mixed(self.seed ^ 0xa6e ^ u64::from(number) << 8) % AGES
    }

    /// A page and its number of extents.
    fn page(&self, number: u32) -> Page {
        let mut page = Page::new(self.volume, number);
        let mut chance = Chance(mixed(self.seed) ^ mixed(u64::from(number)));
        let readable = self.readable.get(&number).map_or(&[][..], Vec::as_slice);
        let sixteenth = u64::from(number) * CHECKPOINT_SEGMENTS / u64::from(self.pages);
        let mut block = chance.gap(self.ln_miss);
        while block < PAGE_BLOCKS {
            let lba = Lba(page.lba().0 + block * BLOCK_SECTORS);
            let segment = chance.next() % self.checkpoints * CHECKPOINT_SEGMENTS + sixteenth;
            let at = chance.next() % SEGMENT_BLOCKS;
            block += 1 + chance.gap(self.ln_miss);
            if readable.iter().any(|extent| extent.lba == lba) {
                continue;
            }
            let place = ExtentPlace {
                number: at as u32,
                offset: (OBJECT_HEADER_BYTES as u64 + at * SEALED_BYTES) as u32,
                sealed_len: SEALED_BYTES as u32,
                raw_len: BLOCK_BYTES as u32,
                codec: Codec::None,
            };
            page.overlay(&MapExtent::whole(self.segment(segment), lba, place));
            if let Some(live) = self.live.get(segment as usize) {
                live.fetch_add(BLOCK_SECTORS as u32, Ordering::Relaxed);
            }
        }
        readable.iter().for_each(|extent| page.overlay(extent));
        page
    }
}

/// The set, and what is written to it.
struct Target {
    runtime: Runtime,
    store: std::sync::Arc<dyn ObjectStore>,
    found: Found,
    key: SetKey,
}

impl Target {
    fn open(url: &str, key_file: &str, set: u64) -> Outcome<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let store = recovery::open_store(url, None)?;
        let source = KeySource { file: Some(key_file.into()), ..KeySource::default() };
        let keys = runtime.block_on(recovery::cluster_key(&source, &KeySource::default()))?;
        let found = runtime.block_on(recovery::read(url, store.clone(), &keys, GroupId(set)))?;
        let found = found.ok_or("the store has no such set")?;
        let key = found.key.clone();
        Ok(Self { runtime, store, found, key })
    }

    fn put(&self, key: &str, body: Bytes) -> Outcome<()> {
        Ok(self.runtime.handle().block_on(self.store.put_new(key, body))?)
    }

    /// Replaces the head by one that references `root`.
    fn name(&self, root: RootRef, upto: LogId, id: ObjectId) -> Outcome<()> {
        let old = &self.found.head;
        let covered = Covered { upto, ..old.covered.ok_or("the set has no checkpoint")? };
        let content = Restored { root: Some(root), ..old.content.clone() };
        let head = Head { covered: Some(covered), content, ..old.clone() };
        let body = seal_head(&head, &self.found.keyring, self.key.sealer(id));
        let at = keys::head(self.found.set);
        self.runtime.block_on(async {
            let version = self.store.get_object(&at).await?.version;
            self.store.swap(&at, Some(&version), body).await?;
            Ok(())
        })
    }
}

/// Segments with content, and their content.
fn readable(target: &Target, shape: &mut Shape, count: u64, places: &Path) -> Outcome<Vec<(ObjectId, u64, Sectors)>> {
    let (mut made, mut offsets, mut open) = (Vec::new(), String::new(), None::<SegmentBuilder>);
    let mut next = 1 << 40;
    let count = count.min(u64::from(shape.pages) * PAGE_BLOCKS / 2);
    for i in 0..count {
        let page = (u128::from(i) * u128::from(shape.pages) / u128::from(count)) as u32;
        // The factor is odd, so that the blocks of one page differ. The first block is the volume's first.
        let block = i * 811 % PAGE_BLOCKS;
        let lba = Lba(u64::from(page) * PAGE_SECTORS + block * BLOCK_SECTORS);
        let offset = lba.0 * SECTOR_BYTES;
        let segment = open.get_or_insert_with(|| {
            next += 1;
            SegmentBuilder::new(target.key.sealer(shape.object(next)), Codec::None)
        });
        let place = segment.push(shape.volume, lba, &content(offset));
        let extent = MapExtent::whole(segment.object(), lba, place);
        shape.readable.entry(page).or_default().push(extent);
        offsets.push_str(&format!("{offset}\n"));
        if segment.is_full() || i + 1 == count {
            let Some(full) = open.take() else { continue };
            let (object, raw) = (full.object(), Sectors(full.raw_bytes() / SECTOR_BYTES));
            let body = full.finish();
            made.push((object, body.len() as u64, raw));
            target.put(&keys::segment(target.found.set, object), body)?;
        }
    }
    std::fs::write(places, offsets)?;
    Ok(made)
}

/// The result of one thread.
#[derive(Default)]
struct Made {
    pages: Vec<(u32, PageRef)>,
    packs: Vec<(ObjectId, u64)>,
    extents: u64,
    /// In memory, as a cache counts it.
    memory_bytes: u64,
}

fn make_packs(target: &Target, shape: &Shape, age: u64, made: &mut Made) -> Outcome<()> {
    let mut packs = 0;
    let mut open: Option<PackBuilder> = None;
    let numbers: Vec<u32> = (0..shape.pages).filter(|number| shape.age(*number) == age).collect();
    for (at, number) in numbers.iter().enumerate() {
        let page = shape.page(*number);
        let pack = open.get_or_insert_with(|| {
            packs += 1;
            PackBuilder::new(target.key.sealer(shape.object(1 << 41 | age << 20 | packs)))
        });
        if !page.is_empty() {
            made.extents += page.len() as u64;
            made.memory_bytes += page.memory_bytes() as u64;
            made.pages.push((*number, pack.push(&page)));
        }
        if (pack.is_full() || at + 1 == numbers.len())
            && let Some(full) = open.take_if(|pack| pack.pages() > 0)
        {
            let object = full.object();
            let body = full.finish();
            made.packs.push((object, body.len() as u64));
            target.put(&keys::map_pack(target.found.set, object), body)?;
        }
    }
    Ok(())
}

fn make_pages(target: &Target, shape: &Shape) -> Outcome<Made> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    let next = AtomicU64::new(0);
    let work = || -> Outcome<Made> {
        let mut made = Made::default();
        loop {
            let age = next.fetch_add(1, Ordering::Relaxed);
            if age >= AGES {
                return Ok(made);
            }
            make_packs(target, shape, age, &mut made)?;
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Made::default();
        for worker in workers {
            let made = worker.join().map_err(|_| "a thread panicked")??;
            all.pages.extend(made.pages);
            all.packs.extend(made.packs);
            all.extents += made.extents;
            all.memory_bytes += made.memory_bytes;
        }
        Ok(all)
    })
}

fn make_root(
    target: &Target,
    shape: &Shape,
    upto: LogId,
    made: &Made,
    real: &[(ObjectId, u64, Sectors)],
) -> Outcome<Root> {
    let mut root = Root::new(upto);
    root.seal_under(target.key.sealing().key_id);
    let mut live = Live::new();
    for (number, sectors) in (0..).zip(&shape.live) {
        let (object, sectors) = (shape.segment(number), u64::from(sectors.load(Ordering::Relaxed)));
        if sectors > 0 {
            let raw = Sectors(sectors * RAW_OF_FOUR / 4);
            root.add_segment(object, raw.0 / BLOCK_SECTORS * SEALED_BYTES, raw);
            live.insert(object, Sectors(sectors));
        }
    }
    for (object, stored, raw) in real {
        root.add_segment(*object, *stored, *raw);
        live.insert(*object, *raw);
    }
    for (object, stored) in &made.packs {
        root.add_pack(*object, *stored);
    }
    let none = Live::new();
    for (at, (number, place)) in made.pages.iter().enumerate() {
        // The references of all pages are added with the last page: the sums are the same (MAP-M4), and it is done
        // once, not for each extent.
        let after = if at + 1 == made.pages.len() { &live } else { &none };
        root.replace_page(shape.volume, *number, Some(*place), &none, after)?;
    }
    let (found, expected) = (root.stats().live_bytes, made.extents * BLOCK_BYTES);
    if found != expected {
        return Err(format!("MAP-M4: the segments have {found} live bytes, the pages {expected}").into());
    }
    Ok(root)
}

/// Resident memory, in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Writes the leaves of a large root; returns the bytes of their packs.
fn put_leaves(target: &Target, shape: &Shape, root: &mut Root) -> Outcome<usize> {
    if root.whole_bytes() <= LeafShape::DEFAULT.whole_bytes {
        return Ok(0);
    }
    let mut packs = 1 << 44;
    let sealer = || {
        packs += 1;
        target.key.sealer(shape.object(packs))
    };
    let mut bytes = 0;
    for pack in root.write_leaves(&LeafShape::DEFAULT, sealer) {
        bytes += pack.body.len();
        target.put(&keys::map_pack(target.found.set, pack.object), pack.body)?;
    }
    Ok(bytes)
}

/// Opens a root as a gateway does. Several times, because some of the memory for one was free before. Returns one of
/// them, the milliseconds for one, and the memory of one in bytes.
fn open_often(target: &Target, object: ObjectId, body: &[u8]) -> Outcome<(Opened, f64, u64)> {
    let (before, begun) = (resident(), Instant::now());
    let opener = target.key.opener(object);
    let mut opened: Vec<Opened> =
        (0..OPENED).map(|_| open_top(&opener, body).map_err(Box::new)).collect::<Result<_, _>>()?;
    let open_ms = begun.elapsed().as_secs_f64() * 1e3 / OPENED as f64;
    let memory = resident().saturating_sub(before) / OPENED;
    let one = opened.pop().ok_or("nothing was opened")?;
    Ok((one, open_ms, memory))
}

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, key_file, set, extents, count, seed, places] = args.as_slice() else {
        return Err("usage: large_map STORE_URL KEY_FILE SET EXTENTS READABLE SEED PLACES_FILE".into());
    };
    let begun = Instant::now();
    let target = Target::open(url, key_file, set.parse()?)?;
    let (volume, size) = {
        let content = &target.found.head.content;
        let (id, volume) = content.volumes.first().ok_or("the set has no volume")?;
        (*id, volume.size)
    };
    let mut shape = Shape::new(seed.parse()?, volume, size, extents.parse()?)?;
    let real = readable(&target, &mut shape, count.parse()?, Path::new(places))?;
    let made = make_pages(&target, &shape)?;
    let before = target.found.head.covered.ok_or("the set has no checkpoint")?.upto;
    let upto = LogId { term: before.term, index: LogIndex(before.index.0 + 1) };
    let mut root = make_root(&target, &shape, upto, &made, &real)?;
    let leaf_bytes = put_leaves(&target, &shape, &mut root)?;
    let written = root.written();
    let object = shape.object(1 << 42);
    let body = seal_root(&root, target.key.sealer(object));
    let root_ref = RootRef { object, bytes: body.len() as u64 };
    target.put(&keys::root(target.found.set, object), body.clone())?;
    target.name(root_ref, upto, shape.object(1 << 43))?;
    let (stats, seconds) = (root.stats(), begun.elapsed().as_secs_f64());

    let (opened, open_ms, memory) = open_often(&target, object, &body)?;
    let leaf = |at: &PageRef| written.get(&(at.object, at.number)).cloned();
    if opened.complete(|of| leaf(&of.at)).map_err(|e| e.to_string())? != root {
        return Err("R9: the root does not open as what was sealed".into());
    }
    let map = Map {
        volume_bytes: size.0 * SECTOR_BYTES,
        extents: made.extents,
        pages: stats.pages,
        page_bytes: stats.page_bytes,
        page_memory_bytes: made.memory_bytes,
        packs: stats.packs,
        segments: stats.segments,
        live_bytes: stats.live_bytes,
        root_bytes: root_ref.bytes,
        leaf_bytes: leaf_bytes as u64,
        root_open_ms: open_ms,
        root_memory_bytes: memory,
        readable: shape.readable.values().map(Vec::len).sum::<usize>() as u64,
        seconds,
    };
    println!("{}", serde_json::to_string(&map)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_its_share_of_extents_and_its_readable_blocks() {
        let sectors = Sectors(64 * PAGE_SECTORS);
        let mut shape = Shape::new(7, VolumeId(1), sectors, 64 * 300).expect("a shape");
        let place = ExtentPlace { number: 0, offset: 104, sealed_len: 8208, raw_len: 8192, codec: Codec::None };
        let lba = Lba(3 * PAGE_SECTORS + 5 * BLOCK_SECTORS);
        let real = MapExtent::whole(shape.object(1 << 40), lba, place);
        shape.readable.insert(3, vec![real]);
        let pages: Vec<Page> = (0..64).map(|number| shape.page(number)).collect();
        let extents: usize = pages.iter().map(Page::len).sum();
        assert!((64 * 280..64 * 320).contains(&extents), "{extents} extents");
        assert!(pages[3].extents().any(|extent| extent == real));
        // MAP-M4: the counters of each segment equal the sums over the pages.
        let mut live = Live::new();
        for (object, sectors) in pages.iter().flat_map(Page::live) {
            live.entry(object).or_default().0 += sectors.0;
        }
        assert_eq!(live.remove(&real.object), Some(Sectors(BLOCK_SECTORS)));
        for (number, counted) in (0..).zip(&shape.live) {
            let counted = u64::from(counted.load(Ordering::Relaxed));
            assert_eq!(live.get(&shape.segment(number)).map_or(0, |sectors| sectors.0), counted, "segment {number}");
        }
        assert_eq!(shape.page(3), pages[3], "the same seed makes the same page");
    }

    #[test]
    fn content_tells_its_place() {
        let block = content(8192);
        assert_eq!(block.len() as u64, BLOCK_BYTES);
        assert_ne!(block, content(16384));
        let word = u64::from_le_bytes(block[16..24].try_into().expect("eight bytes"));
        assert_eq!(word, (8192u64 + 16).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    }
}
