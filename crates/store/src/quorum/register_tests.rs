//! The conclusions from the stores' answers, one case each, and the bytes of an entry.

use super::*;

fn entry(number: u64, value: Option<&'static [u8]>) -> RegisterEntry<Bytes> {
    let ballot = Ballot { number, token: 7 };
    let accepted = value.map(|value| (ballot, Bytes::from_static(value)));
    RegisterEntry { promised: ballot, accepted, ..RegisterEntry::default() }
}

#[test]
fn entries_are_laid_out_only_while_nobody_can_have_a_value() {
    let (empty, blank, full) = (Seen::Empty, Seen::Entry(entry(1, None)), Seen::Entry(entry(1, Some(b"x"))));
    assert!(may_lay_out(&[empty.clone(), empty.clone(), empty.clone()], 2));
    assert!(may_lay_out(&[blank.clone(), empty.clone(), empty.clone()], 2));
    assert!(may_lay_out(&[blank.clone(), empty.clone(), Seen::Marked(1)], 2));
    assert!(
        !may_lay_out(&[blank.clone(), blank.clone(), empty.clone()], 2),
        "the third may have had an entry, and lost it"
    );
    assert!(!may_lay_out(&[full.clone(), empty.clone(), empty.clone()], 2));
    assert!(!may_lay_out(&[Seen::Silent, empty.clone(), empty.clone()], 2), "the silent one may have a value");
    assert!(may_begin(&[blank.clone(), blank.clone(), blank.clone()], 2));
    assert!(!may_begin(&[blank.clone(), blank.clone(), empty.clone()], 2), "QUORUM-Q3: the first needs all");
    assert!(may_begin(&[full.clone(), blank.clone(), empty.clone()], 2));
    assert_eq!(judge_look(&[Seen::Silent, empty.clone(), empty.clone()], 2), Look::Nothing);
    assert_eq!(judge_look(&[Seen::Silent, blank.clone(), blank.clone()], 2), Look::Nothing);
    // One has lost its entry, one has not received the value: the silent one may have it.
    assert_eq!(judge_look(&[Seen::Silent, blank.clone(), empty.clone()], 2), Look::TooFew);
    assert_eq!(judge_look(&[blank.clone(), blank, empty.clone()], 2), Look::Nothing);
    assert_eq!(judge_look(&[full, empty.clone(), empty.clone()], 2), Look::TooFew);
    assert_eq!(judge_look(&[Seen::Silent, Seen::Silent, empty], 2), Look::<Bytes>::TooFew);
}

#[test]
fn a_mark_of_a_restart_that_has_been_is_replaced_and_no_other() {
    let known = RegisterEntry { restarts: [2, 0, 0, 0, 0], ..entry(5, Some(b"x")) };
    let at = |first: Seen<Bytes>| vec![first, Seen::Entry(known.clone()), Seen::Entry(entry(5, Some(b"x")))];
    assert_eq!(mark_for(&at(Seen::Empty), 0, 2), Some(3));
    assert_eq!(mark_for(&at(Seen::Marked(1)), 0, 2), Some(3), "it came late");
    assert_eq!(mark_for(&at(Seen::Marked(2)), 0, 2), Some(3), "and so did this, or its mender was cut short");
    assert_eq!(mark_for(&at(Seen::Marked(3)), 0, 2), None, "it is to begin this");
    assert_eq!(mark_for(&at(Seen::Silent), 0, 2), None);
    assert_eq!(begun_anew(&known.restarts, 0, 2), None);
    assert_eq!(begun_anew(&known.restarts, 0, 3), Some([3, 0, 0, 0, 0]));
}

#[test]
fn an_entry_comes_back_as_written_and_damage_is_found() {
    let seat = Seat { index: 1, n: 3, w: 2 };
    let restarted = RegisterEntry { restarts: [1, 0, u32::MAX, 0, 0], ..entry(3, Some(b"a head")) };
    for entry in [entry(3, Some(b"a head")), entry(u64::MAX, None), RegisterEntry::default(), restarted] {
        let object = encode(seat, &entry, 9);
        assert_eq!(decode(seat, &object), Ok(Stored::Entry(entry.clone())));
        assert_ne!(object, encode(seat, &entry, 10), "no two have the same bytes");
        for at in 0..object.len() {
            let mut bad = object.to_vec();
            bad[at] ^= 1;
            assert!(decode(seat, &Bytes::from(bad)).is_err(), "byte {at}");
            assert!(decode(seat, &object.slice(..at)).is_err(), "cut at {at}");
        }
    }
    let mark = encode_mark(seat, 7, 9);
    assert_eq!(decode(seat, &mark), Ok(Stored::Mark(7)));
    assert!((0..mark.len()).all(|at| decode(seat, &mark.slice(..at)).is_err()));
    let object = encode(seat, &entry(3, Some(b"x")), 9);
    assert_eq!(decode(Seat { index: 0, ..seat }, &object), Err(BadEntry::Seat(seat)));
    assert_eq!(decode(seat, &Bytes::from_static(b"HFOB what one store has")), Err(BadEntry::Foreign));
}

/// The bytes are fixed: existing objects must remain readable for ever.
#[test]
fn the_format_is_pinned() {
    let object = encode(Seat { index: 0, n: 3, w: 2 }, &entry(5, Some(b"head")), 1);
    let hex: String = object.iter().map(|byte| format!("{byte:02x}")).collect();
    let ballot = "050000000000000007000000000000000000000000000000";
    let expected = format!("4846520100030201{ballot}{ballot}010000000000000000000000000000000400000068656164");
    assert!(hex.starts_with(&expected), "{hex}");
    assert_eq!(object.len(), 4 + 4 + 48 + 16 + 4 + 4 + 16);
    // A store that has begun again notes that after the fixed part; without it, the object has the same form as before
    // restarts were counted.
    let restarted = RegisterEntry { restarts: [2, 0, 1, 0, 0], ..entry(5, Some(b"head")) };
    let object = encode(Seat { index: 0, n: 3, w: 2 }, &restarted, 1);
    let hex: String = object.iter().map(|byte| format!("{byte:02x}")).collect();
    let expected = format!(
        "4846520100030203{ballot}{ballot}0100000000000000000000000000000004000000020000000000000001000000{}",
        "68656164"
    );
    assert!(hex.starts_with(&expected), "{hex}");
    let mark = encode_mark(Seat { index: 1, n: 3, w: 2 }, 1, 1);
    assert_eq!(mark[7], 6);
    assert_eq!(mark.len(), 4 + 4 + 48 + 16 + 4 + 12 + 16);
}
