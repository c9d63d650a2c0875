use super::*;
use crate::map::root::PackCounts;

impl Packs {
    fn take_in(&mut self, packs: Vec<LeafPack>) {
        for pack in packs {
            assert!(self.bodies.insert(pack.object, pack.body).is_none(), "R7");
        }
    }

    /// The root of a new leader: each leaf of pages was checked, and none is here.
    fn compare(&self, top: Top, key_ids: &[u32]) -> Result<PartialRoot, MapError> {
        let mut comparing = Arc::new(top).compare(|leaf| self.leaf(leaf, key_ids).ok())?;
        let left: Vec<LeafRef> = comparing.left().collect();
        for leaf in left {
            comparing.take(&leaf, self.leaf(&leaf, key_ids)?)?;
            // A repeated leaf is not counted again.
            comparing.take(&leaf, self.leaf(&leaf, key_ids)?)?;
        }
        comparing.finish()
    }
}

fn top_of(root: &Root) -> Top {
    match open_top(&opener(OBJECT), &seal_root(root, sealer(OBJECT))).unwrap() {
        Opened::Leaves(top) => top,
        Opened::Whole(_) => panic!("expected a root in leaves"),
    }
}

/// The root of [`sample`], with all leaves absent.
fn away() -> (PartialRoot, Packs) {
    let (mut root, mut packs) = (sample(), Packs::default());
    packs.write(&mut root, &TINY, KEY_ID);
    let partial = packs.compare(top_of(&root), &[KEY_ID]).unwrap();
    assert_eq!((partial.away().count(), partial.page_count(), partial.leaf_bytes()), (4, 5, 0));
    (partial, packs)
}

/// LEAF-L4: "not here" is not "nothing there".
#[test]
fn who_asks_for_a_page_that_is_away_is_told_its_leaf() {
    let (mut partial, packs) = away();
    let plain = sample();
    for (volume, number) in (0..24).flat_map(|number| [(4, number), (9, number), (5, number)]) {
        let volume = VolumeId(volume);
        let found = match partial.page(volume, number) {
            PageAt::Nowhere => None,
            PageAt::Page(page) => panic!("found {page:?}, expected its leaf"),
            PageAt::Leaf(leaf) => packs.leaf(&leaf, &[KEY_ID]).unwrap().page(number),
        };
        assert_eq!(found, plain.page(volume, number), "page {number} of {volume}");
    }
    assert!(partial.whole().is_none());
    let range = (Lba(0), Sectors(5 * PAGE_SECTORS));
    let leaves = partial.away_in(V, range.0, range.1);
    let of_leaf = |leaf| packs.leaf(leaf, &[KEY_ID]).unwrap().pages_in(range.0, range.1);
    let found: Vec<u32> = leaves.iter().flat_map(of_leaf).map(|(number, _)| number).collect();
    assert_eq!(found, [0, 3, 4]);
    assert!(partial.pages_here_in(V, range.0, range.1).next().is_none());
    let counts = |partial: &PartialRoot| [4, 5, 9].map(|volume| partial.pages_of(VolumeId(volume)));
    assert_eq!(counts(&partial), [4, 0, 1]);
    // Once the leaf is here it answers itself.
    partial.bring(&leaves[0], packs.leaf(&leaves[0], &[KEY_ID]).unwrap()).unwrap();
    assert_eq!(counts(&partial), [4, 0, 1]);
    assert_eq!(partial.page(V, 3), PageAt::Page(plain.page(V, 3).unwrap()));
    assert_eq!(partial.page(V, 1), PageAt::Nowhere);
    // Another leaf is not accepted for it.
    let other = packs.leaf(&leaves[0], &[KEY_ID]).unwrap();
    let error = partial.bring(&leaves[1], other).unwrap_err().to_string();
    assert!(error.ends_with("found 2 pages, expected 1"), "{error}");
    let gone = partial.let_go(0);
    assert_eq!(gone.iter().map(|(leaf, _)| *leaf).collect::<Vec<_>>(), [leaves[0]]);
    assert_eq!((partial.away().count(), partial.leaf_bytes()), (4, 0));
}

#[test]
#[should_panic(expected = "LEAF-L4: page 1 of")]
fn a_page_whose_leaf_is_away_is_not_replaced() {
    let (mut partial, _) = away();
    let _ = partial.replace_page(V, 1, Some(place(52, 0)), &Live::new(), &Live::new());
}

/// A changed leaf stays until it is written: there is no other copy.
#[test]
fn what_changed_is_not_let_go() {
    let (mut partial, packs) = away();
    let PageAt::Leaf(leaf) = partial.page(V, 1) else { panic!("expected a leaf") };
    partial.bring(&leaf, packs.leaf(&leaf, &[KEY_ID]).unwrap()).unwrap();
    partial.replace_page(V, 1, Some(place(52, 0)), &Live::new(), &Live::new()).unwrap();
    assert!(partial.let_go(0).is_empty());
    assert_eq!(partial.page(V, 1), PageAt::Page(place(52, 0)));
    // An older copy of the same place does not replace it.
    partial.bring(&leaf, packs.leaf(&leaf, &[KEY_ID]).unwrap()).unwrap();
    assert_eq!(partial.page(V, 1), PageAt::Page(place(52, 0)));
}

#[test]
#[should_panic(expected = "LEAF-L5: found leaf")]
fn pages_are_replaced_in_order() {
    let (mut partial, _) = away();
    let mut writing = partial.begin_writing(&TINY, || sealer(object(9999)));
    partial.pass_to(V, 17, 0, &mut writing);
    partial.pass_to(V, 4, 0, &mut writing);
}

/// LEAF-L3 only saves space: an unreadable leaf does not end a checkpoint, and its pack stays named.
#[test]
fn a_leaf_that_cannot_be_moved_keeps_its_pack() {
    let (mut partial, mut packs) = away();
    let mut drawn = packs.drawn;
    let mut writing = partial.begin_writing(&LeafShape { packs: 1, ..TINY }, || {
        drawn += 1;
        sealer(object((1 << 100) + drawn))
    });
    partial.begin_rest(&mut writing);
    assert!(partial.to_move(&writing).is_empty());
    partial.write_rest(&mut writing);
    let left = partial.to_move(&writing);
    assert_eq!(left.len(), 4, "there is one pack too many");
    partial.move_leaf(&left[1], packs.leaf(&left[1], &[KEY_ID]).unwrap(), &mut writing).unwrap();
    partial.leave_in_place(&left[0], &mut writing);
    assert!(partial.to_move(&writing).is_empty());
    packs.take_in(partial.end_writing(writing));
    assert_eq!(partial.leaf_packs().len(), 2);
    let opened = open_top(&opener(OBJECT), &seal_partial(&partial, sealer(OBJECT))).unwrap();
    let mut plain = sample();
    plain.drop_dead_segments();
    assert_eq!(packs.complete(opened, &[KEY_ID]), Ok(plain));
}

/// UNDER-U3: that leaf has to be moved, or the root would give a wrong key for it.
#[test]
#[should_panic(expected = "UNDER-U3: found")]
fn a_leaf_under_an_older_data_key_is_not_left_in_place() {
    let (mut partial, _) = away();
    partial.begin(LogId::new(3, 1001), KEY_ID + 1);
    let mut writing = partial.begin_writing(&TINY, || ObjectSealer::new(&key(), KEY_ID + 1, SET, object(9999)));
    partial.begin_rest(&mut writing);
    let left = partial.to_move(&writing);
    partial.leave_in_place(&left[0], &mut writing);
}

/// LEAF-L6: the counts decide what is deleted.
#[test]
fn a_root_is_used_without_its_leaves_only_once_all_were_counted() {
    let (mut root, mut packs) = (sample(), Packs::default());
    let usage = root.packs.get(object(50)).unwrap();
    root.objects.packs.set(object(50), PackUse { live_pages: 2, ..usage });
    packs.write(&mut root, &TINY, KEY_ID);
    let error = packs.compare(top_of(&root), &[KEY_ID]).unwrap_err().to_string();
    assert!(error.ends_with("found 3 pages in a pack, expected 2"), "{error}");
    let comparing = Arc::new(top_of(&root)).compare(|leaf| packs.leaf(leaf, &[KEY_ID]).ok()).unwrap();
    let error = comparing.finish().unwrap_err().to_string();
    assert!(error.ends_with("found 0 leaves of pages, expected 1"), "{error}");
    assert!(PackCounts::default().compare(&root.packs).is_err());
}

/// Memory does not grow with the volume, also while a checkpoint changes a page in each leaf.
#[test]
fn a_checkpoint_holds_what_there_is_room_for() {
    const MOST: u64 = 64 << 10;
    // A leaf of the default shape takes some 10 KiB, and more while it grows.
    const LEAF: u64 = 32 << 10;
    let mut found = Vec::new();
    for pages in [8_192_u32, 32_768] {
        let (mut plain, mut packs) = (Root::new(LogId::new(1, 1)), Packs::default());
        plain.seal_under(KEY_ID);
        for number in 0..pages {
            plain.set_page(V, number, Some(place(50 + u128::from(number % 200), number % 1000)));
        }
        packs.write(&mut plain, &LeafShape::DEFAULT, KEY_ID);
        let mut root = packs.compare(top_of(&plain), &[KEY_ID]).unwrap();
        root.begin(LogId::new(1, 2), KEY_ID);
        let mut drawn = packs.drawn;
        let mut writing = root.begin_writing(&LeafShape::DEFAULT, || {
            drawn += 1;
            sealer(object((1 << 100) + drawn))
        });
        let mut largest = 0;
        for number in (0..pages).step_by(64) {
            root.pass_to(V, number, MOST, &mut writing);
            packs.take_in(writing.take_packs());
            if let PageAt::Leaf(leaf) = root.page(V, number) {
                root.bring(&leaf, packs.leaf(&leaf, &[KEY_ID]).unwrap()).unwrap();
            }
            root.replace_page(V, number, Some(place(300, number % 1000)), &Live::new(), &Live::new()).unwrap();
            largest = largest.max(root.leaf_bytes());
        }
        let all = PartialRoot::from(plain).leaf_bytes();
        assert!(all > 4 * (MOST + LEAF), "what is tested is not there: all leaves take {all} bytes");
        found.push(largest);
    }
    assert!(found.iter().all(|largest| *largest <= MOST + LEAF), "found {found:?} bytes in memory");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Many checkpoints with almost nothing in memory, under growing data keys, by new leaders: equals a root that was
    /// never written in leaves.
    #[test]
    fn a_root_that_is_mostly_away_is_the_root(
        pages in 1_u32..6,
        objects in 1_usize..5,
        packs_most in 1_usize..6,
        most in prop_oneof![Just(0_u64), Just(400), Just(1 << 30)],
        steps in vec((vec(any_change(), 0..12), any::<bool>(), 0_u32..8), 1..14),
    ) {
        let shape = LeafShape { pages, objects, packs: packs_most, whole_bytes: 0 };
        let (mut root, mut plain) = (PartialRoot::from(Root::new(LogId::new(1, 1))), Root::new(LogId::new(1, 1)));
        let mut packs = Packs::default();
        let mut lives: BTreeMap<(VolumeId, u32), Live> = BTreeMap::new();
        let mut key_id = 1;
        for (step, (changes, reopen, newer_key)) in (1_u128..).zip(steps) {
            key_id += u32::from(newer_key == 0);
            let ids: Vec<u32> = (1..=key_id).rev().collect();
            let (pack, segment) = (object(1000 + step * 7919 % 997), object(1 + step * 104_729 % 991));
            plain.upto = LogId::new(1, step as u64);
            plain.seal_under(key_id);
            root.begin(plain.upto, key_id);
            plain.add_segment(segment, 900, Sectors(1 << 20));
            root.add_segment(segment, 900, Sectors(1 << 20));
            // An older root without leaves has the default shape; none is absent.
            let mut drawn = packs.drawn;
            let mut writing = root.begin_writing(&shape, || {
                drawn += 1;
                ObjectSealer::new(&key(), key_id, SET, object((1 << 100) + drawn))
            });
            let mut changed = BTreeMap::new();
            for (at, change) in (0_u32..).zip(changes) {
                let (volume, page) = match change {
                    Change::Write { volume, page, .. } | Change::Clear { volume, page } => (VolumeId(volume), page),
                };
                changed.entry((volume, page)).or_insert((at, change));
            }
            for ((volume, page), (at, change)) in changed {
                let before = lives.remove(&(volume, page)).unwrap_or_default();
                let mut after = Live::new();
                let mut place = None;
                if let Change::Write { sectors, keeps, .. } = change {
                    after.extend(before.iter().filter(|_| keeps).map(|(object, live)| (*object, *live)));
                    after.insert(segment, Sectors(sectors));
                    let offset = 104 + 50 * at;
                    place = Some(PageRef { object: pack, number: at, offset, sealed_len: 50, raw_len: 34 });
                    lives.insert((volume, page), after.clone());
                }
                prop_assert!(plain.replace_page(volume, page, place, &before, &after).is_ok());
                root.pass_to(volume, page, most, &mut writing);
                packs.take_in(writing.take_packs());
                if let PageAt::Leaf(leaf) = root.page(volume, page) {
                    root.bring(&leaf, packs.leaf(&leaf, &ids).unwrap()).unwrap();
                }
                prop_assert!(root.replace_page(volume, page, place, &before, &after).is_ok());
            }
            root.add_pack(pack, 4000);
            plain.add_pack(pack, 4000);
            root.begin_rest(&mut writing);
            plain.drop_dead_segments();
            for leaf in root.to_move(&writing) {
                root.move_leaf(&leaf, packs.leaf(&leaf, &ids).unwrap(), &mut writing).unwrap();
            }
            root.write_rest(&mut writing);
            packs.take_in(writing.take_packs());
            for leaf in root.to_move(&writing) {
                root.move_leaf(&leaf, packs.leaf(&leaf, &ids).unwrap(), &mut writing).unwrap();
            }
            packs.take_in(root.end_writing(writing));
            packs.drawn = drawn;
            prop_assert!(root.leaf_packs().len() <= packs_most, "{} packs", root.leaf_packs().len());
            let sealed = seal_partial(&root, ObjectSealer::new(&key(), key_id, SET, OBJECT));
            let opened = open_top(&ring(OBJECT, &ids), &sealed).unwrap();
            let mut kept = packs.clone();
            kept.bodies.retain(|object, _| root.leaf_packs().contains_key(object));
            let read = kept.complete(opened.clone(), &ids).unwrap();
            prop_assert_eq!(&read, &plain);
            prop_assert_eq!(read.leaf_packs(), root.leaf_packs());
            prop_assert_eq!((root.page_count(), root.whole_bytes()), (plain.page_count(), plain.whole_bytes()));
            for (object, key) in plain.names().map(|named| (named.object, plain.key_of(named.object))) {
                prop_assert_eq!(root.key_of(object), key);
            }
            let counted: u64 = root.here.leaves.values().map(|placed| placed.leaf.memory_bytes() as u64).sum();
            prop_assert_eq!(root.leaf_bytes(), counted);
            root.let_go(most);
            prop_assert!(root.leaf_bytes() <= most);
            if reopen {
                root = match opened {
                    Opened::Leaves(top) => packs.compare(top, &ids).unwrap(),
                    Opened::Whole(root) => PartialRoot::from(root),
                };
            }
        }
    }
}
