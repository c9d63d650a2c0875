//! A clone's pages and root over its base's, against a flat record of each sector.

use super::super::{MapExtent, MapPiece, Page, PageRef, Root, changes, differing_pages, split_by_page};
use super::*;
use crate::index::{JournalRef, Memtable, Source};
use crate::object::tests::{assert_golden, assert_kept, from_hex, object};
use crate::segment::ExtentPlace;
use crate::space::fold_page;
use holdfast_types::SECTOR_BYTES;
use proptest::collection::vec;
use proptest::prelude::*;

const V: VolumeId = VolumeId(3);
/// Three pages and a piece of a fourth.
const SIZE: u64 = 3 * PAGE_SECTORS + 1000;

fn base(sectors: u64) -> Base {
    let root = RootRef { object: object(77), bytes: 500 };
    Base::new(GroupId(9), root, LogId::new(2, 40), [(V, Sectors(sectors)), (VolumeId(7), Sectors(8))].into_iter())
}

fn extent(lba: u64, sectors: u64, random: u128) -> MapExtent {
    let raw_len = (sectors * SECTOR_BYTES) as u32;
    let place = ExtentPlace::uncompressed(0, 104, raw_len);
    MapExtent::whole(object(random), Lba(lba), place)
}

#[test]
fn bytes_are_pinned() {
    let mut page = Page::new(V, 1);
    let start = page.lba().0;
    page.hide(Lba(start + 8), Sectors(100));
    page.overlay(&extent(start + 16, 8, 1));
    page.hide(Lba(start + PAGE_SECTORS - 1), Sectors(1));
    let kept = include_str!("../../../golden/page_hiding.hex");
    assert_golden("page_hiding", &page.encode(), kept);
    assert_eq!(Page::decode(&from_hex(kept)), Ok(page.clone()));
    assert_kept("page_hiding", &from_hex(kept), &Ok(page), Page::decode);

    let mut root = Root::over(LogId::new(1, 5), base(SIZE));
    root.hide(V, Lba(PAGE_SECTORS), Sectors(PAGE_SECTORS));
    root.hide(VolumeId(7), Lba(0), Sectors(8));
    let kept = include_str!("../../../golden/root_over.hex");
    assert_golden("root_over", &root.encode(), kept);
    assert_eq!(Root::decode(&from_hex(kept)), Ok(root.clone()));
    assert_kept("root_over", &from_hex(kept), &Ok(root), Root::decode);
}

#[test]
fn what_a_base_shows_ends_where_its_volume_did() {
    let base = base(SIZE);
    assert_eq!(base.shows(V, 0), Some(Lba(PAGE_SECTORS)));
    assert_eq!(base.shows(V, 3), Some(Lba(SIZE)));
    assert_eq!(base.shows(V, 4), None);
    assert_eq!(base.shows(VolumeId(4), 0), None, "made after the base");
    let root = Root::over(LogId::new(1, 1), base);
    let found = root.lookup(None, V, Lba(SIZE - 10), Sectors(30));
    let below = MapPiece::Below { lba: Lba(SIZE - 10), sectors: Sectors(10) };
    assert_eq!(found, [below, MapPiece::Zero { lba: Lba(SIZE), sectors: Sectors(20) }]);
}

/// A trim of a whole volume of the largest size is one range in the root.
#[test]
fn an_unmapping_of_everything_is_one_range() {
    let mut root = Root::over(LogId::new(1, 1), base(VOLUME_SECTORS_MAX));
    assert_eq!(root.hide(V, Lba(0), Sectors(VOLUME_SECTORS_MAX)), [0_u32; 0]);
    assert_eq!(root.base().unwrap().hidden(V).collect::<Vec<_>>(), [(0, PAGE_NUMBER_MAX + 1)]);
    assert!(root.encode().len() < 100);
    let mut root = Root::over(LogId::new(1, 1), base(SIZE));
    assert_eq!(root.hide(V, Lba(5), Sectors(VOLUME_SECTORS_MAX)), [0], "the last page is covered as far as it shows");
    assert_eq!(root.hide(V, Lba(0), Sectors(5)), [0], "a page that is covered in two steps says it itself");
    assert_eq!(root.hide(V, Lba(SIZE), Sectors(5)), [0_u32; 0]);
}

#[test]
fn a_page_that_only_hides_can_be_said_by_the_root() {
    let mut page = Page::new(V, 3);
    page.hide(Lba(3 * PAGE_SECTORS), Sectors(999));
    assert!(!page.only_hides(Lba(SIZE)) && !page.is_empty());
    page.hide(Lba(3 * PAGE_SECTORS + 999), Sectors(1));
    assert!(page.only_hides(Lba(SIZE)));
    page.overlay(&extent(3 * PAGE_SECTORS, 8, 1));
    assert!(!page.only_hides(Lba(SIZE)));
}

/// Content of a sector: nothing, the base, or an extent of the clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shows {
    Zero,
    Base,
    Own(u128, u64),
}

/// The root and the pages of a clone, written by checkpoints like the uploader's.
#[derive(Clone)]
struct Clone_ {
    root: Root,
    pages: BTreeMap<u32, Page>,
}

#[derive(Clone, Debug)]
enum Op {
    Write { at: u64, sectors: u64 },
    Zero { at: u64, sectors: u64 },
}

impl Clone_ {
    fn page_at(&self, number: u32) -> Option<&Page> {
        self.root.page(V, number).map(|_| &self.pages[&number])
    }

    /// One checkpoint with the effects of `ops`, in order.
    fn checkpoint(&mut self, ops: &[Op], step: u128) {
        let mut memtable = Memtable::default();
        for (n, op) in ops.iter().enumerate() {
            match *op {
                Op::Zero { at, sectors } => memtable.insert(V, Lba(at), Sectors(sectors), Source::Zero),
                Op::Write { at, sectors } => {
                    let place = JournalRef {
                        index: holdfast_types::LogIndex(n as u64 + 1),
                        header_offset: 0,
                        op_sectors: sectors as u32,
                        skip: 0,
                    };
                    memtable.insert(V, Lba(at), Sectors(sectors), Source::Journal(place));
                }
            }
        }
        let mut touched: BTreeMap<u32, Vec<MapExtent>> = BTreeMap::new();
        for (n, planned) in crate::plan::plan(&memtable).enumerate() {
            let extent = extent(planned.lba.0, planned.sectors().0, step * 1000 + n as u128);
            self.root.add_segment(extent.object, 1, extent.sectors);
            for (number, ..) in split_by_page(extent.lba, extent.sectors) {
                touched.entry(number).or_default().push(extent);
            }
        }
        for unmap in crate::plan::unmaps(&memtable) {
            let there: Vec<u32> = self.root.pages_in(V, unmap.lba, unmap.sectors).map(|(n, _)| n).collect();
            let parts = self.root.hide(V, unmap.lba, unmap.sectors);
            for number in there.into_iter().chain(parts) {
                touched.entry(number).or_default();
            }
        }
        for (number, extents) in touched {
            let old = self.page_at(number).cloned().unwrap_or_else(|| Page::new(V, number));
            let before = old.live();
            let below = self.root.below(V, number);
            let page = fold_page(old, &memtable, &extents, &[], below);
            page.self_check();
            assert_eq!(Page::decode(&page.encode()), Ok(page.clone()));
            let raw_len = page.encode().len() as u32;
            let place = PageRef { object: object(step), number, offset: 0, sealed_len: raw_len + 16, raw_len };
            let keep = !page.is_empty();
            self.root.replace_page(V, number, keep.then_some(place), &before, &page.live()).unwrap();
            self.pages.insert(number, page);
        }
        assert_eq!(Root::decode(&self.root.encode()), Ok(self.root.clone()));
    }

    fn shows(&self, at: u64, sectors: u64) -> Vec<Shows> {
        let mut all = Vec::new();
        for (number, lba, sectors) in split_by_page(Lba(at), Sectors(sectors)) {
            for piece in self.root.lookup(self.page_at(number), V, lba, sectors) {
                assert_eq!(piece.lba().0, at + all.len() as u64);
                for n in 0..piece.sectors().0 {
                    all.push(match piece {
                        MapPiece::Zero { .. } => Shows::Zero,
                        MapPiece::Below { .. } => Shows::Base,
                        MapPiece::Stored(e) => Shows::Own(e.object.random, e.skip.0 + n),
                    });
                }
            }
        }
        all
    }
}

/// Ends of pages, the base's end, and one place in an otherwise empty page.
fn any_at() -> impl Strategy<Value = u64> {
    prop_oneof![
        0_u64..20,
        PAGE_SECTORS - 20..PAGE_SECTORS + 20,
        2 * PAGE_SECTORS - 20..2 * PAGE_SECTORS + 20,
        3 * PAGE_SECTORS - 20..3 * PAGE_SECTORS + 20,
        SIZE - 20..SIZE + 20
    ]
}

fn any_op() -> impl Strategy<Value = Op> {
    let length = prop_oneof![6 => 1_u64..30, 1 => Just(PAGE_SECTORS), 1 => Just(2 * PAGE_SECTORS), 1 => Just(VOLUME_SECTORS_MAX / 2)];
    prop_oneof![
        3 => (any_at(), 1_u64..30).prop_map(|(at, sectors)| Op::Write { at, sectors }),
        2 => (any_at(), length).prop_map(|(at, sectors)| Op::Zero { at, sectors }),
    ]
}

const WINDOWS: [(u64, u64); 5] =
    [(0, 60), (PAGE_SECTORS - 60, 120), (2 * PAGE_SECTORS - 60, 120), (3 * PAGE_SECTORS - 60, 120), (SIZE - 60, 120)];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Sector by sector: written sectors are the clone's, unmapped ones are zero, all others are the base's (BASE-O1,
    /// BASE-O3).
    #[test]
    fn a_clone_is_its_base_under_what_was_done_since(checkpoints in vec(vec(any_op(), 0..6), 1..6)) {
        let mut clone = Clone_ { root: Root::over(LogId::new(1, 1), base(SIZE)), pages: BTreeMap::new() };
        let mut flat: BTreeMap<u64, bool> = BTreeMap::new();
        let flat_of = |at: u64, flat: &BTreeMap<u64, bool>| flat.get(&at).copied();
        for (step, ops) in checkpoints.iter().enumerate() {
            clone.checkpoint(ops, step as u128 + 1);
            for op in ops {
                let (at, sectors, own) = match *op {
                    Op::Write { at, sectors } => (at, sectors, true),
                    Op::Zero { at, sectors } => (at, sectors, false),
                };
                for (from, count) in WINDOWS {
                    flat.extend((from.max(at)..(from + count).min(at + sectors)).map(|lba| (lba, own)));
                }
            }
            for (from, count) in WINDOWS {
                for (n, found) in clone.shows(from, count).into_iter().enumerate() {
                    let at = from + n as u64;
                    let right = match flat_of(at, &flat) {
                        Some(true) => matches!(found, Shows::Own(..)),
                        Some(false) => found == Shows::Zero,
                        None => found == if at < SIZE { Shows::Base } else { Shows::Zero },
                    };
                    prop_assert!(right, "sector {}: {:?}, expected {:?} (true: own, false: zero)", at, found, flat_of(at, &flat));
                }
            }
        }
    }

    /// All differences of two roots of a clone are listed (and possibly more), page by page.
    #[test]
    fn differences_of_a_clone_are_found(first in vec(any_op(), 0..6), second in vec(any_op(), 0..6), from_nothing: bool) {
        let mut earlier = Clone_ { root: Root::over(LogId::new(1, 1), base(SIZE)), pages: BTreeMap::new() };
        earlier.checkpoint(&first, 1);
        let mut later = earlier.clone();
        later.checkpoint(&second, 2);
        if from_nothing {
            earlier = Clone_ { root: Root::new(LogId::new(1, 1)), pages: BTreeMap::new() };
        }
        let mut listed = Vec::new();
        let pages: Vec<_> = differing_pages(&earlier.root, &later.root, V, 0).collect();
        prop_assert!(pages.windows(2).all(|w| w[0].0 < w[1].0), "in order, each once");
        for (number, before, after) in pages {
            let (lba, sectors) = (Lba(u64::from(number) * PAGE_SECTORS), Sectors(PAGE_SECTORS));
            let (a, b) = (before.map(|_| &earlier.pages[&number]), after.map(|_| &later.pages[&number]));
            listed.extend(changes((&earlier.root, a), (&later.root, b), V, lba, sectors));
        }
        for (from, count) in WINDOWS {
            let (before, after) = (earlier.shows(from, count), later.shows(from, count));
            for n in 0..count as usize {
                let at = from + n as u64;
                let found = listed.iter().find(|c| c.lba.0 <= at && at < c.lba.0 + c.sectors.0);
                prop_assert_eq!(found.is_some(), before[n] != after[n], "sector {}", at);
                if let Some(found) = found {
                    prop_assert_eq!(found.zero, after[n] == Shows::Zero);
                }
            }
        }
    }
}
