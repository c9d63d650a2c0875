//! The memtable against the simplest model: an array with one cell per sector.

use super::*;
use proptest::prelude::*;

const VOLUMES: u32 = 2;
const SECTORS: u64 = 160;

/// Content of one sector: a sector of an op in the journal, zeroes, or unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    Journal { index: u64, header_offset: u32, sector: u64 },
    Zero,
    Map,
}

#[derive(Clone)]
struct Flat(Vec<Vec<Cell>>);

impl Flat {
    fn new() -> Self {
        Self(vec![vec![Cell::Map; SECTORS as usize]; VOLUMES as usize])
    }

    fn insert(&mut self, volume: VolumeId, lba: Lba, sectors: Sectors, source: Source) {
        for n in 0..sectors.0 {
            self.0[volume.0 as usize][(lba.0 + n) as usize] = cell(source, n);
        }
    }

    fn merge_under(&mut self, older: &Flat) {
        for (cells, below) in self.0.iter_mut().zip(&older.0) {
            for (cell, below) in cells.iter_mut().zip(below) {
                if *cell == Cell::Map {
                    *cell = *below;
                }
            }
        }
    }

    fn data_bytes(&self) -> u64 {
        let data = |cell: &&Cell| matches!(cell, Cell::Journal { .. });
        self.0.iter().flatten().filter(data).count() as u64 * SECTOR_BYTES
    }
}

fn cell(source: Source, n: u64) -> Cell {
    match source {
        Source::Journal(at) => {
            Cell::Journal { index: at.index.0, header_offset: at.header_offset, sector: u64::from(at.skip) + n }
        }
        Source::Zero => Cell::Zero,
        Source::Map => Cell::Map,
    }
}

/// Pieces as cells; also checks that they cover the range exactly.
fn expand(pieces: &[Piece], lba: Lba, sectors: Sectors) -> Vec<Cell> {
    let mut cells = Vec::new();
    let mut at = lba;
    for piece in pieces {
        assert_eq!(piece.lba, at, "pieces tile");
        assert!(piece.sectors.0 > 0, "no empty piece");
        cells.extend((0..piece.sectors.0).map(|n| cell(piece.source, n)));
        at = piece.end();
    }
    assert_eq!(at.0, lba.0 + sectors.0, "pieces tile to the end");
    cells
}

#[derive(Clone, Debug)]
struct Insert {
    volume: VolumeId,
    lba: Lba,
    sectors: Sectors,
    source: Source,
}

/// Ops share few indexes and offsets, so that parts of one op are often adjacent, in order and out of order.
fn insert() -> impl Strategy<Value = Insert> {
    let kind = prop_oneof![4 => Just(0_u8), 4 => Just(1), 3 => Just(2), 1 => Just(3)];
    (kind, 0..VOLUMES, 0..SECTORS, 1_u64..24, 1_u64..4, 0_u32..3, 0_u32..8).prop_map(
        |(kind, volume, lba, len, index, offset, skip)| {
            let long = if kind == 2 { len * 7 } else { len };
            let sectors = long.min(SECTORS - lba);
            let at = |op_sectors: u64, skip: u32| {
                let (index, header_offset, op_sectors) = (LogIndex(index), 32 + 32 * offset, op_sectors as u32);
                Source::Journal(JournalRef { index, header_offset, op_sectors, skip })
            };
            let source = match kind {
                0 => at(sectors, 0),
                // A part whose place follows its skip: neighbours in the op are often neighbours on the volume.
                1 => at(200, (lba % 64) as u32 + skip / 7),
                2 => Source::Zero,
                _ => Source::Map,
            };
            Insert { volume: VolumeId(volume), lba: Lba(lba), sectors: Sectors(sectors), source }
        },
    )
}

fn build(inserts: &[Insert]) -> (Memtable, Flat) {
    let (mut memtable, mut flat) = (Memtable::new(), Flat::new());
    for Insert { volume, lba, sectors, source } in inserts {
        memtable.insert(*volume, *lba, *sectors, *source);
        flat.insert(*volume, *lba, *sectors, *source);
        memtable.self_check();
    }
    (memtable, flat)
}

fn assert_same(memtable: &Memtable, flat: &Flat) {
    memtable.self_check();
    for volume in 0..VOLUMES {
        let pieces = memtable.lookup(VolumeId(volume), Lba(0), Sectors(SECTORS));
        assert_eq!(expand(&pieces, Lba(0), Sectors(SECTORS)), flat.0[volume as usize]);
        let known: Vec<Piece> = pieces.into_iter().filter(|piece| piece.source != Source::Map).collect();
        let listed: Vec<Piece> = memtable.iter_volume(VolumeId(volume)).collect();
        assert_eq!(listed, known);
    }
    assert_eq!(memtable.iter().count(), memtable.extents());
    assert_eq!(memtable.data_bytes(), flat.data_bytes());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn reads_as_an_array_of_sectors(
        inserts in prop::collection::vec(insert(), 0..60),
        ranges in prop::collection::vec((0..VOLUMES, 0..SECTORS, 0_u64..=SECTORS), 8),
    ) {
        let (memtable, flat) = build(&inserts);
        assert_same(&memtable, &flat);
        for (volume, lba, len) in ranges {
            let len = len.min(SECTORS - lba);
            let pieces = memtable.lookup(VolumeId(volume), Lba(lba), Sectors(len));
            let cells = expand(&pieces, Lba(lba), Sectors(len));
            prop_assert_eq!(&cells[..], &flat.0[volume as usize][lba as usize..(lba + len) as usize]);
        }
    }

    #[test]
    fn merged_reads_as_one_array_over_the_other(
        newer in prop::collection::vec(insert(), 0..40),
        older in prop::collection::vec(insert(), 0..40),
    ) {
        let (mut memtable, mut flat) = build(&newer);
        let (below, below_flat) = build(&older);
        memtable.merge_under(&below);
        flat.merge_under(&below_flat);
        assert_same(&memtable, &flat);
    }
}

fn op(index: u64, op_sectors: u32) -> Source {
    Source::Journal(JournalRef { index: LogIndex(index), header_offset: 32, op_sectors, skip: 0 })
}

#[test]
fn an_overwritten_middle_leaves_both_ends_in_their_op() {
    let mut memtable = Memtable::new();
    memtable.insert(VolumeId(0), Lba(100), Sectors(16), op(1, 16));
    memtable.insert(VolumeId(0), Lba(104), Sectors(4), op(2, 4));
    let part = |lba, sectors, source, skip| {
        let Source::Journal(at) = source else { panic!("journal") };
        Piece { lba: Lba(lba), sectors: Sectors(sectors), source: Source::Journal(JournalRef { skip, ..at }) }
    };
    let expected = vec![part(100, 4, op(1, 16), 0), part(104, 4, op(2, 4), 0), part(108, 8, op(1, 16), 8)];
    assert_eq!(memtable.lookup(VolumeId(0), Lba(100), Sectors(16)), expected);
    assert_eq!(memtable.data_bytes(), 16 * SECTOR_BYTES);
    // A read from inside an extent skips as well.
    assert_eq!(memtable.lookup(VolumeId(0), Lba(110), Sectors(2)), vec![part(110, 2, op(1, 16), 10)]);
}

#[test]
fn neighbours_of_different_ops_stay_apart() {
    // Adjacent on the volume and written one after the other, but with the head of a block between their data.
    let mut memtable = Memtable::new();
    memtable.insert(VolumeId(0), Lba(0), Sectors(8), op(1, 8));
    memtable.insert(VolumeId(0), Lba(8), Sectors(8), op(2, 8));
    assert_eq!(memtable.extents(), 2);
}

#[test]
fn a_discarded_device_is_one_extent() {
    // 2 TiB in trims of 32 MiB, as mkfs sends them; then 1 PiB at once over data.
    let mut memtable = Memtable::new();
    let step = (32 << 20) / SECTOR_BYTES;
    for n in 0..(2 << 40) / (32 << 20) {
        memtable.insert(VolumeId(0), Lba(n * step), Sectors(step), Source::Zero);
        assert_eq!(memtable.extents(), 1);
    }
    for n in 0..1000 {
        memtable.insert(VolumeId(0), Lba(n * 1_000_003), Sectors(8), op(n, 8));
    }
    assert_eq!(memtable.data_bytes(), 1000 * 8 * SECTOR_BYTES);
    let all = Sectors(holdfast_types::limits::VOLUME_SECTORS_MAX);
    memtable.insert(VolumeId(0), Lba(0), all, Source::Zero);
    memtable.self_check();
    assert_eq!(
        memtable.lookup(VolumeId(0), Lba(0), all),
        vec![Piece { lba: Lba(0), sectors: all, source: Source::Zero }]
    );
    assert_eq!(memtable.data_bytes(), 0);
}

#[test]
fn the_lowest_index_is_remembered() {
    let mut memtable = Memtable::new();
    assert_eq!(memtable.first_index(), None);
    memtable.insert(VolumeId(0), Lba(0), Sectors(8), Source::Zero);
    assert_eq!(memtable.first_index(), None);
    memtable.insert(VolumeId(0), Lba(0), Sectors(8), op(7, 8));
    memtable.insert(VolumeId(0), Lba(0), Sectors(8), op(9, 8));
    let mut newer = Memtable::new();
    newer.insert(VolumeId(1), Lba(0), Sectors(8), op(12, 8));
    newer.merge_under(&memtable);
    assert_eq!(newer.first_index(), Some(LogIndex(7)));
}

/// The journal keeps what the memtable refers to, also if nothing but trims came after a checkpoint that was given up.
#[test]
fn the_lowest_index_of_an_older_one_is_kept_by_one_without_writes() {
    let mut older = Memtable::new();
    older.insert(VolumeId(0), Lba(0), Sectors(8), op(7, 8));
    let mut newer = Memtable::new();
    newer.insert(VolumeId(0), Lba(64), Sectors(8), Source::Zero);
    newer.merge_under(&older);
    assert_eq!(newer.first_index(), Some(LogIndex(7)));
    let mut newer = older;
    newer.merge_under(&Memtable::new());
    assert_eq!(newer.first_index(), Some(LogIndex(7)));
}

#[test]
#[should_panic(expected = "R9")]
fn a_ref_beyond_its_op_is_refused() {
    Memtable::new().insert(VolumeId(0), Lba(0), Sectors(9), op(1, 8));
}
