//! The map of a set in its store: pages, roots, leaves, packs.

use super::sealed::{self, KEY_ID, framed, joined, parted};
use holdfast_seal::Part;
use holdfast_types::{Lba, LogId, MemberId, ObjectId, Sectors, Term, VolumeId};
use holdfast_volume::map::{
    Leaf, LeafOf, LeafRef, LeafShape, MapExtent, Opened, PAGE_SECTORS, PackBuilder, Page, Root, Top, open_page,
    open_top, read_any_pack, read_pack, seal_root,
};
use holdfast_volume::object::ObjectKind;
use holdfast_volume::segment::{Codec, SegmentBuilder};

const VOLUME: VolumeId = VolumeId(1);
const SEGMENT: ObjectId = ObjectId { term: Term(6), member: MemberId(1), boot: 2, random: 4 };
/// Another than that of the leaves.
const PACK: ObjectId = ObjectId { random: 5, ..SEGMENT };

/// Pages of a pack that are opened.
const OPENED_MAX: usize = 4;

pub(super) fn pages(data: &[u8]) -> bool {
    let Ok(page) = Page::decode(data) else { return false };
    let bytes = page.encode();
    let again = Page::decode(&bytes).map(|page| page.encode());
    assert_eq!(again.as_ref(), Ok(&bytes), "encoded again, it is another");
    let pieces = page.lookup(page.lba(), Sectors(PAGE_SECTORS));
    let sectors: u64 = pieces.iter().map(|piece| piece.sectors().0).sum();
    assert_eq!(sectors, PAGE_SECTORS, "MAP-M1: the pieces of a page are not the page");
    true
}

/// A page with two extents of a segment, and the segment's length.
fn example_page() -> (Page, u64) {
    let mut segment = SegmentBuilder::new(sealed::sealer(), Codec::None);
    let mut page = Page::new(VOLUME, 0);
    for lba in [Lba(8), Lba(64)] {
        let place = segment.push(VOLUME, lba, &[7; 4096]);
        page.overlay(&MapExtent::whole(SEGMENT, lba, place));
    }
    (page, segment.finish().len() as u64)
}

pub(super) fn all_pages() -> Vec<Vec<u8>> {
    vec![example_page().0.encode()]
}

pub(super) fn roots(data: &[u8]) -> bool {
    let _ = Top::decode(data, KEY_ID);
    if let Ok(root) = Root::decode(data) {
        let again = Root::decode(&root.encode());
        assert_eq!(again.as_ref(), Ok(&root), "encoded again, it is another");
        let _ = (root.stats(), root.memory_bytes(), root.pages().count());
    }
    let object = framed(ObjectKind::Root, &[], Part::Root, data);
    open_top(&sealed::opener(), &object).is_ok()
}

/// A root of one page.
fn example_root() -> Root {
    let (page, segment_bytes) = example_page();
    let mut pack = PackBuilder::new(sealed::sealer_of(PACK));
    let place = pack.push(&page);
    let mut root = Root::new(LogId::new(1, 9));
    root.add_segment(SEGMENT, segment_bytes, Sectors(16));
    root.add_pack(PACK, pack.finish().len() as u64);
    let replaced = root.replace_page(VOLUME, 0, Some(place), &Page::new(VOLUME, 0).live(), &page.live());
    assert!(replaced.is_ok(), "MAP-M4: {:?}", replaced.err());
    root
}

/// The plain bytes of an example in leaves: its top, and each leaf with what it is.
fn example_in_leaves() -> (Vec<u8>, Vec<(LeafOf, Vec<u8>)>) {
    let mut root = example_root();
    let shape = LeafShape { whole_bytes: 0, ..LeafShape::DEFAULT };
    let packs = root.write_leaves(&shape, sealed::sealer);
    let object = seal_root(&root, sealed::sealer());
    let opener = sealed::opener();
    let leaves: Vec<LeafRef> = match open_top(&opener, &object) {
        Ok(Opened::Leaves(top)) => top.leaves().collect(),
        _ => Vec::new(),
    };
    let plain = |leaf: LeafRef| {
        let (kind, volume, page) = match leaf.of {
            LeafOf::Pages { volume, first, .. } => (1, volume, first),
            LeafOf::Segments => (2, VolumeId(0), 0),
            LeafOf::Packs => (3, VolumeId(0), 0),
        };
        let pack = packs.iter().find(|pack| pack.object == leaf.at.object)?;
        let range = leaf.at.range();
        let bytes = pack.body.get(range.start as usize..range.end as usize)?;
        let part = Part::Leaf { number: leaf.at.number, kind, volume, page };
        Some((leaf.of, opener.open_part(part, bytes).ok()?))
    };
    let leaves = leaves.into_iter().filter_map(plain).collect();
    // Behind the two bytes of an empty content.
    (joined(&object, Part::Root)[2..].to_vec(), leaves)
}

pub(super) fn all_roots() -> Vec<Vec<u8>> {
    vec![Root::new(LogId::new(1, 9)).encode(), example_root().encode(), example_in_leaves().0]
}

/// Of one page range, as the examples divide a volume.
const OF_PAGES: LeafOf = LeafOf::Pages { volume: VOLUME, first: 0, width: LeafShape::DEFAULT.pages };

/// The first byte chooses what the leaf lists.
pub(super) fn leaves(data: &[u8]) -> bool {
    let [selector, bytes @ ..] = data else { return false };
    let of = match selector % 3 {
        0 => OF_PAGES,
        1 => LeafOf::Segments,
        _ => LeafOf::Packs,
    };
    let Ok(leaf) = Leaf::decode(of, bytes) else { return false };
    assert_eq!(Leaf::decode(of, bytes).as_ref(), Ok(&leaf));
    for number in [0, 1, 127, 128, u32::MAX] {
        let _ = leaf.page(number);
    }
    true
}

pub(super) fn all_leaves() -> Vec<Vec<u8>> {
    let number = |of: LeafOf| match of {
        LeafOf::Pages { .. } => 0,
        LeafOf::Segments => 1,
        LeafOf::Packs => 2,
    };
    example_in_leaves().1.into_iter().map(|(of, plain)| [&[number(of)][..], &plain].concat()).collect()
}

pub(super) fn packs(data: &[u8]) -> bool {
    let Some((content, table)) = parted(data) else { return false };
    let object = framed(ObjectKind::Pages, content, Part::Header, table);
    let opener = sealed::opener();
    let any = read_any_pack(&opener, &object);
    let Ok(entries) = read_pack(&opener, &object) else { return any.is_ok() };
    for entry in entries.iter().take(OPENED_MAX) {
        let range = entry.place.range();
        let Some(page) = object.get(range.start as usize..range.end as usize) else {
            panic!("the table ends where the pages end, and one is outside: {entry:?}")
        };
        let _ = open_page(&opener, &entry.place, entry.volume, entry.page, page);
    }
    true
}

pub(super) fn all_packs() -> Vec<Vec<u8>> {
    let mut pack = PackBuilder::new(sealed::sealer());
    pack.push(&example_page().0);
    vec![joined(&pack.finish(), Part::Header)]
}
