use super::*;
use holdfast_types::LogIndex;
use proptest::prelude::*;
use std::collections::BTreeMap;

const V: VolumeId = VolumeId(1);

fn at(index: u64, op_sectors: u32, skip: u32) -> JournalRef {
    JournalRef { index: LogIndex(index), header_offset: 32, op_sectors, skip }
}

/// The plan as text: one line per extent, one per unmapping.
fn story(memtable: &Memtable) -> String {
    let mut out = String::new();
    for extent in plan(memtable) {
        out += &format!("{} {}+{}:", extent.volume, extent.lba, extent.sectors());
        for (sectors, at) in &extent.parts {
            out += &format!(" {}[{}..{}]", at.index, at.skip, u64::from(at.skip) + sectors.0);
        }
        out += "\n";
    }
    for range in unmaps(memtable) {
        out += &format!("{} {}+{}: zero\n", range.volume, range.lba, range.sectors);
    }
    out
}

#[test]
fn a_memtable_is_cut_at_fixed_places() {
    let mut memtable = Memtable::new();
    // 1 MiB from sector 100 on: cut at multiples of 256. Then a neighbour, a gap, zeroes between two writes, another
    // volume.
    memtable.insert(V, Lba(100), Sectors(2048), Source::Journal(at(7, 2048, 0)));
    memtable.insert(V, Lba(2148), Sectors(8), Source::Journal(at(8, 8, 0)));
    memtable.insert(V, Lba(2160), Sectors(8), Source::Journal(at(9, 8, 0)));
    memtable.insert(V, Lba(2168), Sectors(8), Source::Zero);
    memtable.insert(V, Lba(2176), Sectors(8), Source::Journal(at(10, 8, 0)));
    memtable.insert(VolumeId(2), Lba(2184), Sectors(8), Source::Journal(at(11, 8, 0)));
    memtable.insert(VolumeId(2), Lba(1 << 30), Sectors(1 << 23), Source::Zero);
    assert_eq!(
        story(&memtable),
        "v1 lba100+156: i7[0..156]\n\
         v1 lba256+256: i7[156..412]\n\
         v1 lba512+256: i7[412..668]\n\
         v1 lba768+256: i7[668..924]\n\
         v1 lba1024+256: i7[924..1180]\n\
         v1 lba1280+256: i7[1180..1436]\n\
         v1 lba1536+256: i7[1436..1692]\n\
         v1 lba1792+256: i7[1692..1948]\n\
         v1 lba2048+108: i7[1948..2048] i8[0..8]\n\
         v1 lba2160+8: i9[0..8]\n\
         v1 lba2176+8: i10[0..8]\n\
         v2 lba2184+8: i11[0..8]\n\
         v1 lba2168+8: zero\n\
         v2 lba1073741824+8388608: zero\n"
    );
    assert_eq!(story(&Memtable::new()), "");
}

/// A write, or zeroes, of one of two volumes.
fn any_insert() -> impl Strategy<Value = (u32, u64, u64, bool)> {
    (0u32..2, 0u64..1500, 1u64..600, proptest::bool::weighted(0.3))
}

proptest! {
    /// PLAN-P1 to PLAN-P3 against one record per sector.
    #[test]
    fn every_sector_is_planned_once(inserts in proptest::collection::vec(any_insert(), 0..40)) {
        let mut memtable = Memtable::new();
        let mut sectors: BTreeMap<(u32, u64), Option<(u64, u64)>> = BTreeMap::new();
        for (index, (volume, lba, count, zero)) in inserts.into_iter().enumerate() {
            let index = index as u64 + 1;
            let source = if zero { Source::Zero } else { Source::Journal(at(index, count as u32, 0)) };
            memtable.insert(VolumeId(volume), Lba(lba), Sectors(count), source);
            for sector in 0..count {
                sectors.insert((volume, lba + sector), (!zero).then_some((index, sector)));
            }
        }
        let mut planned = BTreeMap::new();
        let mut last = (0, 0);
        for extent in plan(&memtable) {
            let start = extent.lba.0;
            let end = start + extent.sectors().0;
            prop_assert!(!extent.parts.is_empty());
            prop_assert!((extent.volume.0, start) >= last, "PLAN-P2: {extent:?}");
            prop_assert_eq!(start / EXTENT_SECTORS_MAX, (end - 1) / EXTENT_SECTORS_MAX, "PLAN-P3");
            last = (extent.volume.0, end);
            let mut lba = start;
            for (count, at) in extent.parts {
                prop_assert!(count.0 > 0);
                for sector in 0..count.0 {
                    let what = Some((at.index.0, u64::from(at.skip) + sector));
                    prop_assert_eq!(planned.insert((extent.volume.0, lba), what), None, "PLAN-P1");
                    lba += 1;
                }
            }
        }
        // PLAN-P3: adjacent pieces form one extent where possible.
        let all: Vec<PlannedExtent> = plan(&memtable).collect();
        for pair in all.windows(2) {
            let touching = pair[0].volume == pair[1].volume && pair[0].lba.0 + pair[0].sectors().0 == pair[1].lba.0;
            prop_assert!(!touching || pair[1].lba.0.is_multiple_of(EXTENT_SECTORS_MAX), "PLAN-P3: {pair:?}");
        }
        for range in unmaps(&memtable) {
            for sector in 0..range.sectors.0 {
                prop_assert_eq!(planned.insert((range.volume.0, range.lba.0 + sector), None), None, "PLAN-P1");
            }
        }
        prop_assert_eq!(planned, sectors, "PLAN-P1");
    }
}

#[test]
fn batches_are_the_plan_in_order_and_bounded() {
    let mut memtable = Memtable::new();
    for (number, sectors) in [(0_u64, 2048_u32), (1, 8), (2, 256), (3, 8), (4, 512)] {
        let (lba, len) = (Lba(number << 14), Sectors(u64::from(sectors)));
        memtable.insert(V, lba, len, Source::Journal(at(7 + number, sectors, 0)));
    }
    let whole: Vec<PlannedExtent> = plan(&memtable).collect();
    for bytes in [0, 1, 4096, 100 << 10, 256 << 10, u64::MAX] {
        let cut: Vec<Vec<PlannedExtent>> = batches(&memtable, bytes).collect();
        assert_eq!(cut.concat(), whole, "batches of {bytes}");
        for batch in &cut {
            let (_, before_last) = batch.split_last().expect("no batch is empty");
            let held: u64 = before_last.iter().map(|extent| extent.sectors().0 * SECTOR_BYTES).sum();
            assert!(held < bytes.max(1), "a batch of {bytes} went on at {held}");
        }
    }
}
