//! What sealing, opening and folding cost: `cargo run --release -p holdfast-volume --example seal_bench`.
#![allow(clippy::disallowed_methods, reason = "a bench measures time; the library itself has no clock")]

use holdfast_seal::{DataKey, ObjectOpener, ObjectSealer};
use holdfast_types::{GroupId, Lba, LogId, MemberId, ObjectId, Sectors, Term, VolumeId};
use holdfast_volume::map::{Live, MapExtent, PAGE_SECTORS, PackBuilder, Page, Root, open_page, open_root, seal_root};
use holdfast_volume::segment::{Codec, SegmentBuilder, open_extent, read_table};
use std::time::Instant;

const V: VolumeId = VolumeId(1);

fn object(random: u128) -> ObjectId {
    ObjectId { term: Term(3), member: MemberId(1), boot: 2, random }
}

/// Half noise, half repetition in pieces of 64 bytes: shrinks to about a half, as database pages do.
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
}
