//! Single functions, for cases that a random history would hardly show.

mod history;

use super::*;
use crate::map::{Live, MapExtent, Page, PageRef, Root, pack_bytes_max};
use crate::object::tests::object;
use crate::segment::ExtentPlace;
use holdfast_control::set::SetState;
use holdfast_types::{Epoch, Lba, LogId, MonoTime, Reading, Sectors, Term, VolumeId};
use std::time::Duration;

const V: VolumeId = VolumeId(1);

fn place(number: u32, sectors: u32) -> ExtentPlace {
    ExtentPlace::uncompressed(number, 104, sectors * 512)
}

fn extent(random: u128, lba: u64, sectors: u32) -> MapExtent {
    MapExtent::whole(object(random), Lba(lba), place(0, sectors))
}

fn pieces(page: &Page) -> Vec<(u64, u64, u128, u64)> {
    page.extents().map(|e| (e.lba.0, e.sectors.0, e.object.random, e.skip.0)).collect()
}

#[test]
fn a_page_takes_a_move_only_where_it_names_what_was_copied() {
    let mut page = Page::new(V, 0);
    page.overlay(&extent(1, 8, 32));
    let copied: Vec<MapExtent> = page.extents().collect();
    // Meanwhile: a newer write in the middle, a hole, and another extent of the same segment.
    page.overlay(&extent(2, 16, 4));
    page.unmap(Lba(24), Sectors(4));
    page.overlay(&MapExtent { place: place(5, 4), ..extent(1, 30, 4) });
    let moved = page.redirect(&copied[0], &extent(9, 8, 32));
    assert_eq!(moved, Sectors(32 - 4 - 4 - 4));
    let expected = [(8, 8, 9, 0), (16, 4, 2, 0), (20, 4, 9, 12), (28, 2, 9, 20), (30, 4, 1, 0), (34, 6, 9, 26)];
    assert_eq!(pieces(&page), expected);
}

#[test]
fn runs_end_where_an_extent_must() {
    let piece = |lba, sectors| MapExtent { sectors: Sectors(sectors), ..extent(1, lba, 256) };
    let found = runs(V, vec![piece(250, 6), piece(256, 8), piece(264, 2), piece(270, 1)]);
    let ranges: Vec<_> = found.iter().map(|run| (run.lba().0, run.sectors().0, run.from.len())).collect();
    assert_eq!(ranges, [(250, 6, 1), (256, 10, 2), (270, 1, 1)]);
}

fn root_of(segments: &[(u128, u64, u64)]) -> Root {
    let mut root = Root::new(LogId::new(1, 1));
    let mut live = Live::new();
    for (random, raw, alive) in segments {
        root.add_segment(object(*random), raw * 512, Sectors(*raw));
        live.insert(object(*random), Sectors(*alive));
    }
    let page = PageRef { object: object(99), number: 0, offset: 104, sealed_len: 50, raw_len: 34 };
    root.replace_page(V, 0, Some(page), &Live::new(), &live).unwrap();
    root
}

#[test]
fn the_emptiest_segments_go_first_until_the_target_is_met() {
    let none = Spared::default();
    // 100 + 100 + 100 stored, 170 live: without the second, of which 10 are copied, 210 to 170.
    let root = root_of(&[(1, 100, 90), (2, 100, 10), (3, 100, 70)]);
    assert_eq!(segments_to_collect(&root, 130, u64::MAX, &none), [object(2)]);
    assert_eq!(segments_to_collect(&root, 180, u64::MAX, &none), []);
    assert_eq!(segments_to_collect(&root, 101, u64::MAX, &none), [object(2), object(3), object(1)]);
    // The budget limits the copied bytes; at least one segment is always chosen.
    assert_eq!(segments_to_collect(&root, 101, 80 * 512, &none), [object(2), object(3)]);
    assert_eq!(segments_to_collect(&root, 101, 0, &none), [object(2)]);
    assert_eq!(segments_to_collect(&root_of(&[(1, 100, 100)]), 101, u64::MAX, &none), []);
    assert_eq!(segments_to_collect(&Root::new(LogId::new(1, 1)), 101, u64::MAX, &none), []);
}

/// Data that the checkpoint itself overwrites is garbage at its end: space is made for it in advance.
#[test]
fn the_target_holds_when_the_checkpoint_ends() {
    let root = root_of(&[(1, 100, 90), (2, 100, 80), (3, 100, 75), (4, 100, 55)]);
    let sums = Amplification::of(&root);
    // 400 sectors' bytes to 300: above 1.3, and emptying one is enough. 24 more, 8 percent of the used bytes, are added
    // to 355.
    let bytes = |sectors: u64| sectors * sums.live_bytes / 300;
    assert_eq!(percent_before(sums, 130, 0), 130);
    assert_eq!(percent_before(sums, 130, bytes(24)), 122);
    assert_eq!(percent_before(sums, 130, bytes(24) + 1), 121, "rounded to what holds");
    assert_eq!(percent_before(sums, 130, bytes(600)), 115, "half of what may lie unused, and no more");
    assert_eq!(percent_before(sums, 100, bytes(24)), 100);
    assert_eq!(percent_before(Amplification::default(), 130, 1), 115, "nothing in use");
    let chosen = |percent| segments_to_collect(&root, percent, u64::MAX, &Spared::default());
    assert_eq!(chosen(130), [object(4)]);
    assert_eq!(chosen(percent_before(sums, 130, bytes(24))), [object(4)]);
    assert_eq!(chosen(percent_before(sums, 130, bytes(45))), [object(4), object(3)]);
}

/// The emptiest could not be emptied: it is not tried again each time, and the others are not emptied instead.
#[test]
fn a_victim_that_gives_nothing_starves_no_other() {
    let root = root_of(&[(1, 100, 90), (2, 100, 10), (3, 100, 70)]);
    let (one, term) = (10 * 512, Term(3));
    let mut spared = Spared::default();
    spared.begin(term, &root);
    assert_eq!(segments_to_collect(&root, 110, one, &spared), [object(2)]);
    spared.note(&root, object(2));
    spared.begin(term, &root);
    assert_eq!(segments_to_collect(&root, 110, one, &spared), [object(3)], "the next gets its turn");
    assert_eq!(
        segments_to_collect(&root, 130, u64::MAX, &spared),
        [],
        "200 stored, 160 alive: without it the target is met"
    );
    let changed = root_of(&[(1, 100, 90), (2, 100, 9), (3, 100, 70)]);
    assert_eq!(segments_to_collect(&changed, 110, one, &spared), [object(2)], "something of it was found after all");
    spared.begin(term, &changed);
    spared.begin(term, &root);
    assert_eq!(segments_to_collect(&root, 110, one, &spared), [object(2)], "forgotten with the count that it had");
    spared.note(&root, object(2));
    spared.begin(Term(4), &root);
    assert_eq!(segments_to_collect(&root, 110, one, &spared), [object(2)], "another term looks for itself");
    spared.note(&root, object(2));
    spared.clear();
    assert_eq!(segments_to_collect(&root, 110, one, &spared), [object(2)]);
}

/// A dropped root with more objects than can be retired at once: each round continues behind the one before.
#[test]
fn a_dropped_root_larger_than_the_list_of_retired_objects_comes_to_its_end() {
    use holdfast_control::set::{RETIRE_OBJECTS_MAX, RETIRED_MAX, SetAnswer, SetCommand, SetRefusal};
    let many = RETIRED_MAX + RETIRED_MAX / 2;
    let (dropped, other) = (object(1 << 100), object(1 << 101));
    let mut root = Root::new(LogId::new(1, 1));
    (0..many as u128).for_each(|n| root.add_segment(object(n), 512, Sectors(1)));
    let mut keeps = Root::new(LogId::new(1, 2));
    keeps.add_segment(object(7), 512, Sectors(1));
    let mut state = SetState::new(Epoch(0));
    state.dropped.insert(dropped, 9);
    state.dropped.insert(other, 9);
    let (mut looked, mut retired, mut index, mut terms) = (RetireProgress::default(), 0, 0, Term(1));
    let mut rounds = 0;
    while state.dropped.contains_key(&dropped) {
        rounds += 1;
        assert!(rounds < 9, "it comes to no end: {retired} retired");
        if rounds == 2 {
            // Another leader remembers nothing, and begins again.
            terms = Term(2);
        }
        looked.begin(terms, state.dropped.keys());
        assert_eq!(looked.after(dropped).is_some(), rounds > 2, "round {rounds}");
        let mut garbage = Garbage::of(dropped, &root);
        garbage.keep(&keeps);
        for (of, objects) in garbage.entries(RETIRE_OBJECTS_MAX, looked.after(dropped)) {
            assert!(!objects.iter().any(|one| one.object == object(7)), "it is kept");
            index += 1;
            let (last, count) = (objects.last().copied(), objects.len());
            match state.apply(
                LogId { term: terms, index: holdfast_types::LogIndex(index) },
                &SetCommand::Retire { term: terms, of, objects },
            ) {
                SetAnswer::Retired => {
                    retired += count;
                    looked.retired(dropped, last);
                }
                SetAnswer::Refused(SetRefusal::TooManyRetired { .. }) => break,
                answer => panic!("{answer:?}"),
            }
        }
        // After the grace.
        let gone: Vec<_> = state.retired.keys().copied().collect();
        index += 1;
        let done = SetCommand::Deleted { term: terms, objects: gone };
        state.apply(LogId { term: terms, index: holdfast_types::LogIndex(index) }, &done);
    }
    assert!(retired >= many - 1, "{retired} of {many}");
    assert_eq!(state.dropped.keys().copied().collect::<Vec<_>>(), [other]);
    looked.begin(terms, state.dropped.keys());
    assert_eq!(looked.after(dropped), None, "nothing is remembered of what is done");
}

#[test]
fn packs_of_unknown_length_are_left_alone() {
    let mut root = root_of(&[(1, 100, 90)]);
    assert!(packs_to_collect(&root, 200).is_empty());
    root.add_pack(object(99), 400);
    assert_eq!(packs_to_collect(&root, 200).len(), 1);
    assert!(packs_to_collect(&root, 800).is_empty());
    let read = Root::decode(&root.encode()).unwrap();
    assert_eq!(read, root);
    assert_eq!(packs_to_collect(&read, 200).len(), 1);
}

/// The map of a small set: its only page is shorter than its pack's frame, and no checkpoint can improve that.
#[test]
fn a_pack_that_would_be_no_smaller_is_left_alone() {
    let mut root = root_of(&[(1, 100, 90)]);
    let usage = root.pack_uses()[&object(99)];
    assert_eq!(usage.live_pages, 1);
    root.add_pack(object(99), pack_bytes_max(1, usage.live_bytes));
    assert!(root.pack_uses()[&object(99)].stored_bytes > 2 * usage.live_bytes, "what is tested is not there");
    assert!(packs_to_collect(&root, 200).is_empty());
    root.add_pack(object(99), pack_bytes_max(1, usage.live_bytes) + 1);
    assert_eq!(packs_to_collect(&root, 200).len(), 1);
}

/// Two dropped roots may share a pack of leaves: it is deleted once both were processed.
#[test]
fn packs_wait_for_the_dropped_roots_that_are_not_looked_through() {
    use holdfast_control::set::{RETIRE_OBJECTS_MAX, RETIRED_MAX, StoredKind};
    let (grace, start) = (Duration::from_secs(60), MonoTime(1 << 40));
    let (late, term, mut state) = (start.saturating_add(grace), Term(8), SetState::new(Epoch(0)));
    let all = [(1, StoredKind::Root), (2, StoredKind::Pages), (3, StoredKind::Segment)];
    state.retired.extend(all.map(|(random, kind)| (object(random), kind)));
    let mut reaper = Reaper::new();
    let mut due = |state: &SetState, at| reaper.due(term, at, grace, state, 9).len();
    state.dropped.insert(object(9), 100);
    assert_eq!(due(&state, start), 0);
    assert_eq!(due(&state, late), 2);
    let mut none = state.clone();
    none.dropped.clear();
    assert_eq!(due(&none, late), 3);
    // A root that is dropped after the pack was seen does not name it: with constant drops, packs are deleted all the
    // same.
    none.dropped.insert(object(10), 100);
    assert_eq!(due(&none, late), 3);
    none.retired.insert(object(4), StoredKind::Pages);
    assert_eq!((due(&none, late), due(&none, late.saturating_add(grace))), (3, 3), "this one was seen after it");
    none.dropped.clear();
    assert_eq!(due(&none, late.saturating_add(grace)), 4);
    // They wait for room in the list.
    let packs = |state: &SetState| {
        let mut reaper = Reaper::new();
        let mut due = |at| reaper.due(term, at, grace, state, usize::MAX);
        due(start);
        due(late).iter().filter(|found| found.kind == StoredKind::Pages).count()
    };
    assert_eq!(packs(&state), 0);
    let more = (100..).take(RETIRED_MAX - RETIRE_OBJECTS_MAX).map(|random| (object(random), StoredKind::Segment));
    state.retired.extend(more);
    assert_eq!(packs(&state), 1);
}

#[test]
fn a_deletion_needs_its_entry_its_grace_its_term_and_a_fresh_confirmation() {
    let mut state = SetState::new(Epoch(0));
    let (second, grace) = (Duration::from_secs(1), Duration::from_secs(60));
    let start = MonoTime(1 << 40);
    let mut reaper = Reaper::new();
    let term = Term(8);
    let orphan = object(5);
    let confirmed = Confirmed { term, sent: start };
    let may = |state: &SetState, after: Duration, leading| {
        confirmed.may_delete(start.saturating_add(after), second, leading, state, orphan)
    };
    assert_eq!(may(&state, Duration::ZERO, Some(term)), Err(NoDeletion::NotRetired { object: orphan }));
    state.retired.insert(orphan, holdfast_control::set::StoredKind::Segment);
    assert_eq!(may(&state, second / 2, Some(term)), Ok(()));
    assert!(matches!(may(&state, second, Some(term)), Err(NoDeletion::Old { .. })));
    let back = |went_back| Reading { now: start.saturating_add(second / 2), went_back: Some(went_back) };
    let after = |went_back| confirmed.may_delete(back(went_back), second, Some(term), &state, orphan);
    assert_eq!(after(start), Err(NoDeletion::ClockBack), "its age is not known");
    assert_eq!(after(MonoTime(start.0 - 1)), Ok(()), "confirmed since");
    assert!(matches!(may(&state, Duration::ZERO, Some(Term(9))), Err(NoDeletion::Term { .. })));
    assert!(matches!(may(&state, Duration::ZERO, None), Err(NoDeletion::Term { .. })));
    let mut due = |term, after: Duration| reaper.due(term, start.saturating_add(after), grace, &state, 9).len();
    assert_eq!((due(term, Duration::ZERO), due(term, grace - second), due(term, grace)), (0, 0, 1));
    // Another term, another clock: the grace begins again.
    assert_eq!((due(Term(9), grace), due(Term(9), grace * 2 - second), due(Term(9), grace * 2)), (0, 0, 1));
}
