use super::super::*;
use super::*;
use crate::map::root::Root;
use crate::object::tests::{KEY_ID, OBJECT, SET, assert_golden, assert_kept, from_hex, key, object, opener, sealer};
use bytes::Bytes;
use holdfast_seal::{ObjectOpener, ObjectSealer};
use proptest::collection::vec;
use proptest::prelude::*;

mod partial;

const V: VolumeId = VolumeId(4);
const TINY: LeafShape = LeafShape { pages: 4, objects: 3, packs: 4, whole_bytes: 0 };

/// Packs of leaves, as a store has them.
#[derive(Clone, Default)]
struct Packs {
    bodies: BTreeMap<ObjectId, Bytes>,
    drawn: u128,
}

impl Packs {
    /// Writes the changed leaves of the root; returns their number and bytes.
    fn write(&mut self, root: &mut Root, shape: &LeafShape, key_id: u32) -> (usize, usize) {
        let packs = root.write_leaves(shape, || {
            self.drawn += 1;
            ObjectSealer::new(&key(), key_id, SET, object((1 << 100) + self.drawn))
        });
        let mut sums = (0, 0);
        for pack in packs {
            sums = (sums.0 + pack.parts.len(), sums.1 + pack.body.len());
            assert!(self.bodies.insert(pack.object, pack.body).is_none(), "R7");
        }
        sums
    }

    fn leaf(&self, leaf: &LeafRef, key_ids: &[u32]) -> Result<Leaf, MapError> {
        let range = leaf.at.range();
        let sealed = &self.bodies[&leaf.at.object][range.start as usize..range.end as usize];
        open_leaf(&ring(leaf.at.object, key_ids), leaf, sealed)
    }

    fn complete(&self, opened: Opened, key_ids: &[u32]) -> Result<Root, MapError> {
        let mut leaves = BTreeMap::new();
        for leaf in opened.leaves() {
            leaves.insert((leaf.at.object, leaf.at.number), self.leaf(&leaf, key_ids)?);
        }
        opened.complete(|leaf| leaves.get(&(leaf.at.object, leaf.at.number)).cloned())
    }
}

fn ring(of: ObjectId, key_ids: &[u32]) -> ObjectOpener {
    let first = ObjectOpener::new(&key(), key_ids[0], SET, of);
    key_ids[1..].iter().fold(first, |opener, id| opener.or(&key(), *id))
}

fn place(pack: u128, number: u32) -> PageRef {
    PageRef { object: object(pack), number, offset: 104 + 50 * number, sealed_len: 50, raw_len: 34 }
}

fn sample() -> Root {
    let mut root = Root::new(LogId::new(3, 1000));
    root.seal_under(KEY_ID);
    let live = |random, sectors| Live::from([(object(random), Sectors(sectors))]);
    for random in 1..=7 {
        root.add_segment(object(random), 1000 * random as u64, Sectors(100));
    }
    for (at, (volume, number)) in (0..).zip([(4, 0), (4, 3), (4, 4), (4, 17), (9, 5)]) {
        let after = live(u128::from(at) + 1, 10 * u64::from(at) + 60);
        root.replace_page(VolumeId(volume), number, Some(place(50 + u128::from(at % 2), at)), &Live::new(), &after)
            .unwrap();
    }
    root.add_pack(object(50), 400);
    root
}

#[test]
fn bytes_are_pinned() {
    let (mut root, mut packs) = (sample(), Packs::default());
    packs.write(&mut root, &TINY, KEY_ID);
    let top = seal_root(&root, sealer(OBJECT));
    let kept = include_str!("../../../golden/root_leaves.hex");
    assert_golden("root_leaves", &top, kept);
    let opened = open_top(&opener(OBJECT), &from_hex(kept)).unwrap();
    let [pack] = packs.bodies.values().collect::<Vec<_>>()[..] else { panic!("several packs") };
    let kept = include_str!("../../../golden/leaves.hex");
    assert_golden("leaves", pack, kept);
    packs.bodies.values_mut().for_each(|body| *body = Bytes::from(from_hex(kept)));
    assert_eq!(packs.complete(opened, &[KEY_ID]), Ok(root.clone()));
    assert_kept("root_leaves", &top, &Ok(root.clone()), |bytes| {
        packs.complete(open_top(&opener(OBJECT), bytes)?, &[KEY_ID])
    });
    assert_kept("leaves", &from_hex(kept), &Ok(root), |bytes| {
        let mut packs = packs.clone();
        packs.bodies.values_mut().for_each(|body| *body = Bytes::copy_from_slice(bytes));
        packs.complete(open_top(&opener(OBJECT), &top)?, &[KEY_ID])
    });
}

#[test]
fn a_root_says_what_it_takes_to_have_all_of_it() {
    let (mut root, mut packs) = (sample(), Packs::default());
    assert!(!root.is_in_leaves());
    packs.write(&mut root, &TINY, KEY_ID);
    assert!(root.is_in_leaves());
    let top = seal_root(&root, sealer(OBJECT));
    let opened = open_top(&opener(OBJECT), &top).unwrap();
    // Pages 0 to 3, 4 to 7, 16 to 19 of one volume, 4 to 7 of the other; 5 segments, 2 packs.
    let of: Vec<u8> = opened.leaves().iter().map(|leaf| leaf.of.kind()).collect();
    assert_eq!(of, [1, 1, 1, 1, 2, 2, 3]);
    assert_eq!((opened.upto(), opened.key_id()), (root.upto, KEY_ID));
    // One leaf has a page's place, and no leaf is asked for where its whole range has no page.
    for (volume, number) in (0..24).flat_map(|number| [(4, number), (9, number), (5, number)]) {
        let volume = VolumeId(volume);
        let found = match opened.page(volume, number) {
            PageAt::Nowhere => None,
            PageAt::Page(page) => Some(page),
            PageAt::Leaf(leaf) => packs.leaf(&leaf, &[KEY_ID]).unwrap().page(number),
        };
        assert_eq!(found, root.page(volume, number), "page {number} of {volume}");
    }
    assert_eq!(opened.page(V, 8), PageAt::Nowhere);
    assert_eq!(opened.page(VolumeId(5), 0), PageAt::Nowhere);
    // Without them it is no root.
    let error = open_root(&opener(OBJECT), &top).unwrap_err().to_string();
    assert!(error.ends_with("found 0 leaves of pages, expected 1"), "{error}");
    // Whole again: it names no pack of leaves.
    root.make_whole();
    assert_eq!(open_root(&opener(OBJECT), &seal_root(&root, sealer(OBJECT))), Ok(root.clone()));
    assert_eq!(root.packs().into_keys().collect::<Vec<_>>(), [object(50), object(51)]);
    let empty = Root::new(LogId::new(1, 1));
    let mut root = empty.clone();
    assert!(packs.write(&mut root, &TINY, KEY_ID) == (0, 0) && !root.is_in_leaves() && root == empty);
}

#[test]
#[should_panic(expected = "MAP-M3: a leaf at None, expected it in one of the 1 packs of leaves")]
fn a_changed_leaf_that_was_not_written_is_a_mistake() {
    let (mut root, mut packs) = (sample(), Packs::default());
    packs.write(&mut root, &TINY, KEY_ID);
    root.replace_page(V, 1, Some(place(52, 0)), &Live::new(), &Live::new()).unwrap();
    seal_root(&root, sealer(OBJECT));
}

/// MAP-M3: a pack with a count that is too low would be deleted too early.
#[test]
fn a_count_that_is_not_what_the_pages_name_is_refused() {
    let tampered = [
        (2, 150, "found 3 pages in a pack, expected 2"),
        (3, 151, "found 150 bytes of pages in a pack, expected 151"),
        (7, 150, "found 3 pages in a pack, expected 7"),
    ];
    for (live_pages, live_bytes, words) in tampered {
        let (mut root, mut packs) = (sample(), Packs::default());
        let usage = root.packs.get(object(50)).unwrap();
        assert_eq!((usage.live_pages, usage.live_bytes), (3, 150));
        root.objects.packs.set(object(50), PackUse { live_pages, live_bytes, ..usage });
        packs.write(&mut root, &TINY, KEY_ID);
        let opened = open_top(&opener(OBJECT), &seal_root(&root, sealer(OBJECT))).unwrap();
        let error = packs.complete(opened, &[KEY_ID]).unwrap_err().to_string();
        assert!(error.ends_with(words), "{error}");
    }
}

#[test]
#[should_panic(expected = "MAP-M3: PackUse { stored_bytes: 400, live_bytes: 0, live_pages: 0 } is counted in pack")]
fn a_page_that_is_not_counted_is_a_mistake() {
    let mut root = sample();
    root.objects.packs.set(object(50), PackUse { stored_bytes: 400, ..PackUse::default() });
    root.set_page(VolumeId(4), 0, None);
}

#[test]
#[should_panic(expected = "R10: leaves for data key 7 are sealed under 8")]
fn leaves_under_another_key_are_a_mistake() {
    Packs::default().write(&mut sample(), &TINY, KEY_ID + 1);
}

/// Only changes are written, however large the root is.
#[test]
fn a_checkpoint_writes_the_leaves_that_it_changed() {
    let mut found = Vec::new();
    for (pages, segments) in [(32_768_u32, 4_885_u128), (327_680, 48_821)] {
        // Like after random writes: pages in packs of twenty ages, each with extents of a few segments.
        let mut root = Root::new(LogId::new(9, 12_345));
        root.seal_under(KEY_ID);
        let id = |random: u128| object(random.wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        for segment in 0..segments {
            root.add_segment(id(segment), 16 << 20, Sectors(1 << 20));
        }
        let of = |page: u32| Live::from([(id(u128::from(page) % segments), Sectors(64))]);
        let at = |age: u128, number: u32| PageRef {
            object: id((1 << 64) + age),
            number,
            offset: 104 + number % 1000 * 9_200,
            sealed_len: 9_200,
            raw_len: 9_184,
        };
        for page in 0..pages {
            let age = u128::from(page.wrapping_mul(2_654_435_761) >> 8) % (u128::from(pages) / 1600);
            root.replace_page(V, page, Some(at(age, page)), &Live::new(), &of(page)).unwrap();
        }
        let whole = root.encode().len();
        let mut packs = Packs::default();
        let (leaves, bytes) = packs.write(&mut root, &LeafShape::DEFAULT, KEY_ID);
        // A checkpoint of 64 random writes, repeated, until packs were emptied.
        let (mut most, mut top, mut through) = (0, seal_root(&root, sealer(OBJECT)).len(), 0);
        for step in 0..20_u32 {
            for n in 0..64_u32 {
                let page = (step * 64 + n).wrapping_mul(2_654_435_761) % pages;
                let (before, place) = (of(page), root.page(V, page).unwrap());
                let place = PageRef { object: id((1 << 65) + u128::from(step)), number: n, ..place };
                root.replace_page(V, page, Some(place), &before, &before).unwrap();
                let segment = id(u128::from(page) % segments);
                let less = Live::from([(segment, Sectors(64))]);
                let more = Live::from([(segment, Sectors(65))]);
                root.replace_page(V, page, Some(place), &less, &more).unwrap();
                root.replace_page(V, page, Some(place), &more, &less).unwrap();
            }
            let (segments, packs_of_pages) = (root.segments.changed(), root.packs.changed());
            through = through.max(segments.0 + packs_of_pages.0);
            most = most.max(packs.write(&mut root, &LeafShape::DEFAULT, KEY_ID).1);
            top = seal_root(&root, sealer(OBJECT)).len();
        }
        println!(
            "{pages} pages: whole {whole} bytes; {leaves} leaves of {bytes} bytes; 64 writes: leaves {most}, top {top} bytes, leaves of objects gone through {through}; {} bytes in memory",
            root.memory_bytes()
        );
        assert_eq!(
            packs.complete(open_top(&opener(OBJECT), &seal_root(&root, sealer(OBJECT))).unwrap(), &[KEY_ID]),
            Ok(root)
        );
        assert!(through <= 2 * 64 + 2, "leaves of objects that 64 writes have gone through: {through}");
        found.push((most, top, whole));
    }
    let [(small, _, _), (large, top, whole)] = found[..] else { panic!("{found:?}") };
    assert!(large < 2 * small + (64 << 10), "leaves of 64 writes: {small} bytes at 1 TiB, {large} at 10");
    assert!(top < 80 << 10, "the top of 10 TiB: {top} bytes");
    assert!(large + top < whole / 4, "{large} and {top} bytes, whole {whole}");
}

/// R9: leaf by leaf, and that each belongs to this root.
#[test]
fn a_leaf_is_opened_as_itself_only() {
    let (mut root, mut packs) = (sample(), Packs::default());
    packs.write(&mut root, &TINY, KEY_ID);
    let opened = open_top(&opener(OBJECT), &seal_root(&root, sealer(OBJECT))).unwrap();
    let leaves = opened.leaves();
    for leaf in &leaves {
        assert!(packs.leaf(leaf, &[KEY_ID]).is_ok());
        assert!(packs.leaf(&LeafRef { key_id: KEY_ID + 1, ..*leaf }, &[KEY_ID + 1, KEY_ID + 2]).is_err());
        for other in leaves.iter().filter(|other| other.at != leaf.at) {
            assert!(packs.leaf(&LeafRef { of: other.of, ..*leaf }, &[KEY_ID]).is_err() || other.of == leaf.of);
            assert!(packs.leaf(&LeafRef { at: other.at, ..*leaf }, &[KEY_ID]).is_err() || other.of == leaf.of);
        }
    }
    // Two leaves of segments, exchanged.
    let [first, second] = leaves.iter().filter(|leaf| leaf.of == LeafOf::Segments).collect::<Vec<_>>()[..] else {
        panic!("{leaves:?}")
    };
    let swapped = |leaf: &LeafRef| {
        let at = if leaf.at == first.at {
            second
        } else if leaf.at == second.at {
            first
        } else {
            leaf
        };
        packs.leaf(at, &[KEY_ID]).ok()
    };
    let error = opened.clone().complete(swapped).unwrap_err().to_string();
    assert!(error.contains("its objects, expected") || error.contains("objects, expected"), "{error}");
    // Bytes and lengths.
    let (id, body) = packs.bodies.iter().next().map(|(id, body)| (*id, body.clone())).unwrap();
    let mut damaged = body.to_vec();
    for bit in 0..body.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        packs.bodies.insert(id, Bytes::from(damaged.clone()));
        let table = read_any_pack(&opener(id), &damaged);
        let leaf = leaves.iter().all(|leaf| packs.leaf(leaf, &[KEY_ID]).is_ok());
        assert!(table.is_err() || !leaf, "bit {bit} of {}", body.len() * 8);
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
    let PackTable::Leaves(table) = read_any_pack(&opener(id), &body).unwrap() else { panic!("no leaves") };
    assert_eq!(table, leaves);
    assert!(read_pack(&opener(id), &body).is_err(), "no pages are in it");
    let top = seal_root(&root, sealer(OBJECT));
    let mut damaged = top.to_vec();
    for bit in 0..top.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(open_top(&opener(OBJECT), &damaged).is_err(), "bit {bit}");
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

/// For the search for damage: whichever leaf does not open, the pages of the others are there, and it is no root.
#[test]
fn what_remains_of_a_root_has_the_pages_of_the_leaves_that_open() {
    let (mut root, mut packs) = (sample(), Packs::default());
    packs.write(&mut root, &TINY, KEY_ID);
    let opened = open_top(&opener(OBJECT), &seal_root(&root, sealer(OBJECT))).unwrap();
    assert_eq!(opened.page_count(), 5);
    let Opened::Leaves(top) = opened else { panic!("written whole") };
    let leaves: Vec<LeafRef> = top.leaves().collect();
    for gone in &leaves {
        let remains = top.remains(|leaf| packs.leaf(leaf, &[KEY_ID]).ok().filter(|_| leaf.at != gone.at));
        assert!(remains.whole().is_none() && remains.is_in_leaves());
        assert_eq!(remains.object_count(), 8, "five segments, two packs of pages, one of leaves");
        let here = |(volume, number, _): &(VolumeId, u32, PageRef)| match gone.of {
            LeafOf::Pages { volume: of, first, width } => *volume != of || !(first..first + width).contains(number),
            LeafOf::Segments | LeafOf::Packs => true,
        };
        assert!(remains.pages().eq(root.pages().filter(here)), "without {gone:?}");
        for (volume, number, place) in root.pages() {
            let expected = Some(place).filter(|place| here(&(volume, number, *place)));
            assert_eq!(remains.page(volume, number), expected, "page {number} of {volume} without {gone:?}");
        }
        assert!(remains.into_whole().is_none());
    }
    let whole = Remains::from(root.clone());
    assert_eq!((whole.object_count(), whole.whole()), (8, Some(&root)));
    assert_eq!(whole.into_whole(), Some(root));
}

/// One leaf after the other, in order; each is compared with the top's entry, even if its kind is right.
#[test]
fn leaves_are_found_in_order_and_compared_one_by_one() {
    let (mut root, mut packs) = (sample(), Packs::default());
    packs.write(&mut root, &TINY, KEY_ID);
    let Opened::Leaves(top) = open_top(&opener(OBJECT), &seal_root(&root, sealer(OBJECT))).unwrap() else {
        panic!("written whole")
    };
    let leaves: Vec<LeafRef> = top.leaves().collect();
    let (other, last) = (VolumeId(9), PAGE_NUMBER_MAX + 1);
    for ((volume, number), expected) in [
        ((VolumeId(0), 0), Some(0)),
        ((V, 3), Some(0)),
        ((V, 4), Some(1)),
        // The range behind it has none.
        ((V, 8), Some(2)),
        ((V, 20), Some(3)),
        ((V, last), Some(3)),
        ((other, 7), Some(3)),
        ((other, 8), None),
        ((other, last), None),
    ] {
        assert_eq!(top.leaf_from(volume, number), expected.map(|at: usize| leaves[at]), "page {number} of {volume}");
    }
    for (leaf, other) in leaves.iter().flat_map(|leaf| leaves.iter().map(move |other| (leaf, other))) {
        let found = packs.leaf(other, &[KEY_ID]).unwrap();
        let same_count = |leaf: &LeafRef| matches!(leaf.of, LeafOf::Pages { .. }) && leaf.at != leaves[0].at;
        // Leaves of one page each are distinguished by their seals only.
        let fits = leaf.at == other.at || (same_count(leaf) && same_count(other));
        assert_eq!(top.check_leaf(leaf, &found).is_ok(), fits, "{leaf:?} as {other:?}");
    }
    let elsewhere = LeafRef { at: place(70, 0), ..leaves[0] };
    let error = top.check_leaf(&elsewhere, &packs.leaf(&leaves[0], &[KEY_ID]).unwrap()).unwrap_err().to_string();
    assert!(error.ends_with("found 2 pages, expected 0"), "{error}");
}

/// The packs of a dropped root's leaves go with it, in its last entry: a new leader reads the root again.
#[test]
fn packs_of_leaves_are_retired_with_their_root() {
    use crate::space::Garbage;
    use holdfast_control::set::RetireOf;
    let (mut old, mut packs) = (sample(), Packs::default());
    packs.write(&mut old, &LeafShape { packs: 9, ..TINY }, KEY_ID);
    let mut new = old.clone();
    new.replace_page(VolumeId(9), 5, Some(place(60, 0)), &Live::new(), &Live::new()).unwrap();
    packs.write(&mut new, &LeafShape { packs: 9, ..TINY }, KEY_ID);
    assert_eq!(new.leaf_packs().len(), 2, "one is shared");
    let mut later = new.clone();
    later.make_whole();
    let entries = |dropped: &Root, kept: &Root| {
        let mut garbage = Garbage::of(OBJECT, dropped);
        garbage.keep(kept);
        garbage.entries(2, None)
    };
    assert!(entries(&old, &new).iter().all(|(_, objects)| objects.is_empty()), "all of it is shared");
    let entries = entries(&new, &later);
    let (of, last) = entries.last().unwrap();
    assert!(matches!(of, RetireOf::Root { last: true, .. }));
    let leaves: BTreeSet<ObjectId> = last.iter().map(|one| one.object).collect();
    assert_eq!(leaves, new.leaf_packs().keys().copied().collect());
    assert_eq!(entries.iter().filter(|(_, objects)| objects.iter().any(|one| leaves.contains(&one.object))).count(), 1);
}

/// One change of a root.
#[derive(Clone, Debug)]
enum Change {
    /// A page written again: in a segment of this checkpoint, with a part of its old content.
    Write { volume: u32, page: u32, sectors: u64, keeps: bool },
    /// A page that maps nothing any more.
    Clear { volume: u32, page: u32 },
}

fn any_change() -> impl Strategy<Value = Change> {
    let page = || prop_oneof![0_u32..12, 250_u32..270, Just(PAGE_NUMBER_MAX)];
    prop_oneof![
        4 => (1_u32..4, page(), 1_u64..9, any::<bool>())
            .prop_map(|(volume, page, sectors, keeps)| Change::Write { volume, page, sectors, keeps }),
        1 => (1_u32..4, page()).prop_map(|(volume, page)| Change::Clear { volume, page }),
    ]
}

fn any_shape() -> impl Strategy<Value = LeafShape> {
    let tiny = (1_u32..6, 1_usize..5, 1_usize..6);
    prop_oneof![
        4 => tiny.prop_map(|(pages, objects, packs)| LeafShape { pages, objects, packs, whole_bytes: 0 }),
        1 => Just(LeafShape::DEFAULT),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Many checkpoints, sometimes read back, under growing data keys, sometimes written whole: equals a root that was
    /// never written in leaves, needs no pack of leaves that it does not name, and its counts of packs match its pages.
    #[test]
    fn a_root_in_leaves_is_the_root(
        shape in any_shape(),
        steps in vec((vec(any_change(), 0..12), any::<bool>(), 0_u32..8, 0_u8..8), 1..14),
    ) {
        let (mut root, mut plain) = (Root::new(LogId::new(1, 1)), Root::new(LogId::new(1, 1)));
        let mut packs = Packs::default();
        let mut lives: BTreeMap<(VolumeId, u32), Live> = BTreeMap::new();
        let mut key_id = 1;
        for (step, (changes, reopen, key, whole)) in (1_u128..).zip(steps) {
            key_id += u32::from(key == 0);
            let (pack, segment) = (object(1000 + step * 7919 % 997), object(1 + step * 104_729 % 991));
            for root in [&mut root, &mut plain] {
                root.upto = LogId::new(1, step as u64);
                root.seal_under(key_id);
                root.add_segment(segment, 900, Sectors(1 << 20));
            }
            let mut done = BTreeSet::new();
            for (at, change) in (0_u32..).zip(changes) {
                let (volume, page) = match change {
                    Change::Write { volume, page, .. } | Change::Clear { volume, page } => (VolumeId(volume), page),
                };
                if !done.insert((volume, page)) {
                    continue;
                }
                let before = lives.remove(&(volume, page)).unwrap_or_default();
                let mut after = Live::new();
                let mut place = None;
                if let Change::Write { sectors, keeps, .. } = change {
                    after.extend(before.iter().filter(|_| keeps).map(|(object, live)| (*object, *live)));
                    after.insert(segment, Sectors(sectors));
                    place = Some(PageRef { object: pack, number: at, offset: 104 + 50 * at, sealed_len: 50, raw_len: 34 });
                    lives.insert((volume, page), after.clone());
                }
                for root in [&mut root, &mut plain] {
                    prop_assert!(root.replace_page(volume, page, place, &before, &after).is_ok());
                }
            }
            for root in [&mut root, &mut plain] {
                root.add_pack(pack, 4000);
                root.drop_dead_segments();
            }
            if whole == 0 {
                root.make_whole();
                prop_assert!(root.leaf_packs().is_empty());
            } else {
                packs.write(&mut root, &shape, key_id);
                let room = shape.packs.max(1);
                prop_assert!(root.leaf_packs().len() <= room, "{} packs of leaves", root.leaf_packs().len());
            }
            // No more than one line and one pack's id per page, however often it was replaced, also if written whole.
            for placed in root.leaves.values() {
                let most = size_of::<PageLeaf>() + placed.leaf.len() * (24 + size_of::<ObjectId>());
                let bytes = placed.leaf.memory_bytes();
                prop_assert!(bytes <= most, "{bytes} bytes, {most} are needed");
            }
            prop_assert_eq!(&root, &plain);
            let sealed = seal_root(&root, ObjectSealer::new(&super::super::super::object::tests::key(), key_id, SET, OBJECT));
            let ids: Vec<u32> = (1..=key_id).rev().collect();
            let opened = open_top(&ring(OBJECT, &ids), &sealed).unwrap();
            // All that it names is in the store; other objects need not be.
            let mut kept = packs.clone();
            kept.bodies.retain(|object, _| root.leaf_packs().contains_key(object));
            let read = kept.complete(opened.clone(), &ids).unwrap();
            prop_assert_eq!(&read, &plain);
            prop_assert_eq!(read.leaf_packs(), root.leaf_packs());
            let (names, leaves): (Vec<_>, Vec<_>) = read.names().partition(|one| !root.leaf_packs().contains_key(&one.object));
            prop_assert_eq!(names, plain.names().collect::<Vec<_>>());
            prop_assert_eq!(leaves.len(), root.leaf_packs().len());
            for at in opened.leaves() {
                prop_assert!(root.leaf_packs().contains_key(&at.at.object));
            }
            for (object, key) in plain.names().map(|named| (named.object, plain.key_of(named.object))) {
                prop_assert_eq!(read.key_of(object), key);
            }
            prop_assert_eq!(read.keys_needed(), plain.keys_needed());
            let mut uses: BTreeMap<ObjectId, (u64, u64)> = BTreeMap::new();
            for (_, _, page) in plain.pages() {
                let sum = uses.entry(page.object).or_default();
                *sum = (sum.0 + u64::from(page.sealed_len), sum.1 + 1);
            }
            let counted: BTreeMap<ObjectId, (u64, u64)> =
                read.pack_uses().into_iter().map(|(object, usage)| (object, (usage.live_bytes, usage.live_pages))).collect();
            prop_assert_eq!(counted, uses);
            if reopen {
                root = read;
            }
        }
    }

    #[test]
    fn anything_is_decoded_or_refused(which in 0_usize..4, bytes in vec(prop_oneof![0_u8..9, any::<u8>()], 0..200)) {
        let leaf = |kind: &[u8]| [&b"HFL\x01"[..], kind, &bytes].concat();
        let _ = match which {
            0 => Top::decode(&[MAGIC, &bytes].concat(), 3).is_ok(),
            1 => Leaf::decode(LeafOf::Pages { volume: V, first: 4, width: 4 }, &leaf(&[1, 4, 4, 4])).is_ok(),
            2 => Leaf::decode(LeafOf::Segments, &leaf(&[2])).is_ok(),
            _ => Leaf::decode(LeafOf::Packs, &leaf(&[3])).is_ok(),
        };
    }
}
