use super::*;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const DAY: Duration = Duration::from_secs(86_400);

fn name(at: u8) -> Name {
    Name::new(format!("s{at}")).unwrap()
}

fn place(lba: u64) -> Place {
    let (part, key, volume, reason) = ("extent".into(), "k".into(), "vol1".into(), "bad".into());
    Place { part, key, snapshot: None, clone: None, volume, lba, sectors: 8, reason, store: None }
}

#[test]
fn the_first_round_is_due_an_interval_after_the_start_and_an_old_one_begins_anew() {
    let mut book = Book::default();
    let day = |n: u64| 1_000 + n * 86_400_000;
    book.keep_time(day(0), DAY);
    assert_eq!(book.round, None);
    book.keep_time(day(1), DAY);
    assert_eq!(book.round.as_ref().unwrap().begun_unix_ms, day(1));
    book.page_done((VolumeId(1), 4), 2, 9, vec![]);
    book.keep_time(day(3), DAY);
    assert_eq!(book.round.as_ref().unwrap().pages, 1, "continues");
    book.keep_time(day(3) + 1, DAY);
    assert_eq!(book.round.as_ref().unwrap().pages, 0, "started again");
    book.target_done(None, None, day(4));
    book.keep_time(day(5) - 1, DAY);
    assert_eq!((book.complete_unix_ms, &book.round), (day(4), &None));
}

#[test]
fn damage_stays_known_until_a_whole_round_found_none() {
    let mut book = Book::default();
    book.begin(1);
    book.page_done((VolumeId(1), 0), 1, 1, vec![place(8), place(16)]);
    assert_eq!(book.known().total, 2, "at once");
    book.target_done(None, None, 2);
    book.begin(3);
    assert_eq!(book.known().total, 2, "SCRUB-B2");
    book.page_done((VolumeId(1), 0), 1, 1, vec![place(16), place(24)]);
    assert_eq!(book.known().total, 3, "8 and 16 and 24");
    book.target_done(None, None, 4);
    assert_eq!(book.known().places, [place(16), place(24)]);
    book.begin(5);
    (0..200).for_each(|lba| book.note(place(1000 + lba)));
    assert_eq!((book.known().total, book.known().places.len()), (202, DAMAGED_KEPT));
}

#[test]
fn a_leaf_that_is_passed_is_told_and_what_lies_behind_it_is_next() {
    let mut book = Book::default();
    book.begin(1);
    book.leaf_passed((VolumeId(1), 128), vec![place(0)]);
    let round = book.round.clone().unwrap();
    assert_eq!((round.next, round.pages, book.known().total), ((VolumeId(1), 128), 0, 1));
    // Something of the first store was read, but no page.
    book.read_copy(1);
    assert!(book.round.as_ref().unwrap().mixed);
    // A snapshot that also has it.
    book.leaf_passed((VolumeId(1), 256), vec![]);
    book.target_done(Some(target(0)), None, 2);
    assert_eq!(book.round.as_ref().map(|round| round.next), Some(BEGIN));
    book.target_done(None, None, 3);
    assert_eq!((book.known().total, &book.round), (1, &None));
}

/// A set of roots: pages by target.
type World = BTreeMap<Option<u8>, BTreeSet<(u32, u32)>>;

#[derive(Clone, Debug)]
enum Event {
    Page { of: Option<u8>, at: (u32, u32), there: bool },
    Snapshot(u8),
    Drop(u8),
    Restart,
    Read(u8),
}

fn event() -> impl Strategy<Value = Event> {
    let target = prop_oneof![Just(None), (0u8..4).prop_map(Some)];
    prop_oneof![
        3 => (target, (1u32..3, 0u32..6), any::<bool>()).prop_map(|(of, at, there)| Event::Page { of, at, there }),
        1 => (0u8..4).prop_map(Event::Snapshot),
        1 => (0u8..4).prop_map(Event::Drop),
        1 => Just(Event::Restart),
        4 => (1u8..4).prop_map(Event::Read),
    ]
}

/// The first two are snapshots, the others are clones.
fn target(at: u8) -> Target {
    if at < 2 { Target::Snapshot(name(at)) } else { Target::Clone(holdfast_types::GroupId(at.into())) }
}

fn there(world: &World) -> Vec<Target> {
    world.keys().flatten().map(|at| target(*at)).collect()
}

/// One step as in the task: the next page of the target, or the next target.
fn step(book: &mut Book, world: &World, read: &mut BTreeSet<(Option<u8>, (u32, u32))>) {
    let Some(round) = &book.round else { return };
    let of = match &round.target {
        Target::Now => None,
        other => (0..4).find(|at| target(*at) == *other),
    };
    let next = (round.next.0.0, round.next.1);
    match world.get(&of).and_then(|pages| pages.range(next..).next()) {
        Some(at) => {
            read.insert((of, *at));
            book.page_done((VolumeId(at.0), at.1), 1, 1, vec![]);
        }
        None => {
            let next = round.target.next(there(world));
            book.target_done(next, None, 9);
        }
    }
}

proptest! {
    /// SCRUB-B1, with any changes and any number of restarts.
    #[test]
    fn what_is_there_all_along_is_read(
        first in proptest::collection::btree_set((1u32..3, 0u32..6), 0..10),
        kept in proptest::collection::btree_set(0u8..4, 0..3),
        events in proptest::collection::vec(event(), 0..60),
    ) {
        let mut world: World = kept.iter().map(|at| (Some(*at), first.clone())).collect();
        world.insert(None, first);
        let mut always: BTreeSet<(Option<u8>, (u32, u32))> =
            world.iter().flat_map(|(of, pages)| pages.iter().map(|at| (*of, *at))).collect();
        let mut book = Book::default();
        book.begin(1);
        let mut read = BTreeSet::new();
        for event in events {
            match event {
                Event::Page { of, at, there } => {
                    let Some(pages) = world.get_mut(&of) else { continue };
                    if there { pages.insert(at); } else { pages.remove(&at); }
                }
                Event::Snapshot(at) => {
                    let now = world[&None].clone();
                    world.entry(Some(at)).or_insert(now);
                }
                Event::Drop(at) => { world.remove(&Some(at)); }
                Event::Restart => {
                    book = serde_json::from_str(&serde_json::to_string(&book).unwrap()).unwrap();
                }
                Event::Read(steps) => (0..steps).for_each(|_| step(&mut book, &world, &mut read)),
            }
            if book.round.is_some() {
                always.retain(|(of, at)| world.get(of).is_some_and(|pages| pages.contains(at)));
            }
        }
        for _ in 0..200 {
            step(&mut book, &world, &mut read);
        }
        prop_assert!(book.round.is_none(), "a round ends: {book:?}");
        prop_assert!(always.is_subset(&read), "SCRUB-B1: {:?} were not read", always.difference(&read).collect::<Vec<_>>());
    }
}

#[test]
fn copies_take_turns_and_what_one_store_has_damaged_another_round_does_not_clear() {
    let mut book = Book::default();
    let of = |store: &str, lba| Place { store: Some(store.into()), ..place(lba) };
    for (copy, store, damaged) in [(0, "a", vec![of("a", 8)]), (1, "b", vec![of("b", 8)]), (2, "c", vec![])] {
        book.begin(1);
        assert_eq!(book.round.as_ref().unwrap().copy, copy);
        book.page_done((VolumeId(1), 0), 1, 1, damaged);
        book.target_done(None, Some(store), 2);
    }
    // The later findings come first: those beyond the limit are the oldest.
    assert_eq!(book.known().places, [of("b", 8), of("a", 8)]);
    // The first store's turn again: it was repaired.
    book.begin(3);
    book.target_done(None, Some("a"), 4);
    assert_eq!((book.known().places, book.next_copy), (vec![of("b", 8)], 4));
    // The store in turn did not answer: another one was read, and the next round continues with the store after that.
    book.begin(5);
    book.read_copy(2);
    book.target_done(None, Some("c"), 6);
    assert_eq!((book.known().total, book.next_copy), (1, 3));
    // A store stopped answering in the middle: the rest was read from "b". This proves for no copy in "b" that it is
    // good, and reports nothing twice.
    book.begin(7);
    book.page_done((VolumeId(1), 0), 1, 1, vec![]);
    book.read_copy(1);
    book.page_done((VolumeId(1), 1), 1, 1, vec![of("b", 70_000)]);
    book.target_done(None, Some("b"), 8);
    assert_eq!(book.known().places, [of("b", 70_000), of("b", 8)]);
    // A whole round of "b" clears its findings.
    book.begin(9);
    book.read_copy(1);
    book.page_done((VolumeId(1), 0), 1, 1, vec![of("b", 70_000)]);
    book.target_done(None, Some("b"), 10);
    assert_eq!(book.known().places, [of("b", 70_000)]);
}
