//! Cost of sealing, opening and folding: `cargo run --release -p holdfast-volume --example seal_bench`.
#![allow(clippy::disallowed_methods, reason = "a bench measures time; the library itself has no clock")]

use holdfast_seal::{DataKey, ObjectOpener, ObjectSealer};
use holdfast_types::{GroupId, Lba, LogId, MemberId, ObjectId, Sectors, Term, VolumeId};
use holdfast_volume::map::{
    LeafShape, Live, MapExtent, PAGE_SECTORS, PackBuilder, Page, PageRef, Root, open_page, open_root, seal_root,
};
use holdfast_volume::segment::{Codec, SegmentBuilder, open_extent, open_range, read_table};
use holdfast_volume::space::{Amplification, Garbage, Spared, packs_to_collect, segments_to_collect};
use std::time::Instant;

const V: VolumeId = VolumeId(1);

fn object(random: u128) -> ObjectId {
    ObjectId { term: Term(3), member: MemberId(1), boot: 2, random }
}

/// Half noise, half repetition in pieces of 64 bytes: compresses to about a half, like database pages.
fn content(len: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252u64;
    let mut next = |at: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if (at / 64).is_multiple_of(2) { state as u8 } else { b'x' }
    };
    (0..len).map(&mut next).collect()
}

fn timed<T>(what: &str, bytes: usize, run: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let out = run();
    let took = start.elapsed();
    let rate = bytes as f64 / took.as_secs_f64() / f64::from(1 << 20);
    println!("{what:40} {:10.3} ms {rate:10.0} MiB/s", took.as_secs_f64() * 1e3);
    out
}

fn main() {
    let key = DataKey::from_bytes([7; 32]);
    let sealer = |random| ObjectSealer::new(&key, 1, GroupId(1), object(random));
    let opener = |random| ObjectOpener::new(&key, 1, GroupId(1), object(random));
    for raw_len in [128 << 10, 8 << 10] {
        let raw = content(raw_len);
        let count = (16 << 20) / raw_len;
        for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
            let name = format!("{codec}, extents of {} KiB", raw_len >> 10);
            let segment = timed(&format!("seal {name}"), count * raw_len, || {
                let mut builder = SegmentBuilder::new(sealer(1), codec);
                for at in 0..count {
                    builder.push(V, Lba((at * raw_len / 512) as u64), &raw);
                }
                builder.finish()
            });
            timed(&format!("open {name}, {} KiB stored", segment.len() >> 10), count * raw_len, || {
                for entry in read_table(&opener(1), &segment).unwrap() {
                    let range = entry.place.range();
                    let sealed = &segment[range.start as usize..range.end as usize];
                    open_extent(&opener(1), &entry.place, entry.volume, entry.lba, sealed).unwrap();
                }
            });
            timed(&format!("open 4 KiB of each, {name}"), count * 4096, || {
                for entry in read_table(&opener(1), &segment).unwrap() {
                    let range = entry.place.range();
                    let sealed = &segment[range.start as usize..range.end as usize];
                    open_range(&opener(1), &entry, sealed, raw_len / 2..raw_len / 2 + 4096).unwrap();
                }
            });
        }
    }
    let mut builder = SegmentBuilder::new(sealer(1), Codec::Lz4);
    let place = builder.push(V, Lba(0), &content(8 << 10));
    let mut page = Page::new(V, 0);
    timed("overlay 4096 extents", 0, || {
        for at in 0..PAGE_SECTORS / 16 {
            let extent = MapExtent::whole(object(u128::from(at % 100) << 60), Lba(at * 16), place);
            page.overlay(&extent);
        }
    });
    println!("a page of {} extents takes {} KiB of memory", page.len(), page.memory_bytes() >> 10);
    let mut pack = PackBuilder::new(sealer(2));
    let at = timed("encode and seal a page", 0, || pack.push(&page));
    let pack = pack.finish();
    let sealed = &pack[at.range().start as usize..at.range().end as usize];
    println!("a page of {} extents takes {} bytes sealed", page.len(), sealed.len());
    timed("open and decode a page", 0, || open_page(&opener(2), &at, V, 0, sealed).unwrap());
    let mut root = Root::new(LogId::new(1, 1));
    (0..65_536u128).for_each(|at| root.add_segment(object(at << 90 | at), 16 << 20, Sectors(1 << 15)));
    timed("32768 pages into a root", 0, || {
        for number in 0..32_768u32 {
            let segment = u128::from(number) * 2;
            let live = Live::from([(object(segment << 90 | segment), Sectors(1 << 15))]);
            root.replace_page(V, number, Some(at), &Live::new(), &live).unwrap();
        }
    });
    let sealed = timed("encode and seal a root of 1 TiB", 0, || seal_root(&root, sealer(3)));
    println!("a root of 1 TiB takes {} bytes sealed", sealed.len());
    timed("open and decode a root of 1 TiB", 0, || open_root(&opener(3), &sealed).unwrap());
    timed("stats of a root of 1 TiB", 0, || root.stats());
    passes_of_a_checkpoint(&sealer);
}

/// A checkpoint's passes over a root of 10 TiB, besides its pages: once over everything, as after a takeover, and once
/// for 64 writes.
fn passes_of_a_checkpoint(sealer: &impl Fn(u128) -> ObjectSealer) {
    let (pages, segments) = (327_680_u32, 48_821_u128);
    let id = |random: u128| object(random.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    let of = |page: u32| id(u128::from(page) % segments);
    let at =
        |pack: u128, number: u32| PageRef { object: id(pack), number, offset: 104, sealed_len: 9216, raw_len: 9200 };
    let mut root = Root::new(LogId::new(1, 1));
    (0..segments).for_each(|segment| root.add_segment(id(segment), 8 << 20, Sectors(1 << 15)));
    for page in 0..pages {
        let pack = (1 << 64) + u128::from(page.wrapping_mul(2_654_435_761) >> 8) % 204;
        let live = Live::from([(of(page), Sectors(1 << 11))]);
        root.replace_page(V, page, Some(at(pack, page)), &Live::new(), &live).unwrap();
    }
    let mut drawn = 1_u128 << 70;
    let mut fresh = || {
        drawn += 1;
        sealer(drawn)
    };
    root.write_leaves(&LeafShape::DEFAULT, &mut fresh);
    println!("a root of 10 TiB takes {} KiB of memory", root.memory_bytes() >> 10);
    for round in 0..3_u128 {
        let name = if round == 0 { "all of it" } else { "64 writes" };
        let before = root.clone();
        let spared = Spared::default();
        timed(&format!("{name}: choose segments and packs"), 0, || {
            (segments_to_collect(&root, 150, 1 << 30, &spared), packs_to_collect(&root, 200))
        });
        for n in 0..64 {
            let page = (round as u32 * 64 + n).wrapping_mul(2_654_435_761) % pages;
            let live = |sectors| Live::from([(of(page), Sectors(sectors))]);
            let place = at((1 << 65) + round, n);
            root.replace_page(V, page, Some(place), &live(1 << 11), &live((1 << 11) - 1)).unwrap();
            root.replace_page(V, page, Some(place), &live((1 << 11) - 1), &live(1 << 11)).unwrap();
        }
        timed(&format!("{name}: write the leaves"), 0, || root.write_leaves(&LeafShape::DEFAULT, &mut fresh));
        let top = timed(&format!("{name}: encode and seal the top"), 0, || seal_root(&root, sealer(9 + round)));
        println!("the top of 10 TiB takes {} bytes sealed", top.len());
        timed(&format!("{name}: what the root before names alone"), 0, || {
            let mut garbage = Garbage::of(object(1), &before);
            garbage.keep(&root);
            garbage.entries(4096, None)
        });
        timed(&format!("{name}: sums"), 0, || (Amplification::of(&root), root.memory_bytes(), root.whole_bytes()));
    }
}
