//! The rules of the register, tried out: every order of steps of two lives of a set, with lost answers and a store that forgets. One round of each life is
//! walked to its end; what has more of anything, as far as `STATES_MAX` reaches, shortest histories first.

use super::*;
use stateright::{Checker, HasDiscoveries, Model, Property};
use std::collections::BTreeMap;

const N: usize = 3;
const W: usize = 2;
/// What is there at the begin, decided at two of the stores; the third has what was before.
const FIRST: u8 = 0;
const BEFORE: u8 = 9;

/// What one step at a store came to, as its caller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Reply {
    Heard,
    Lost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Act {
    Promise(usize, usize, Reply),
    Accept(usize, usize, Reply),
    Again(usize),
    LookAt(usize),
    Wipe(usize),
    Mend(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Promising,
    /// This value is to be accepted where the promise was heard.
    Accepting(u8),
    Done(Option<u8>),
    Refused {
        sent: bool,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Writer {
    wish: Wish<u8, u8>,
    ballot: Ballot,
    rounds_left: u8,
    sent: bool,
    phase: Phase,
    /// The slot before the promise that was heard, and after it.
    promises: [Option<(Slot<u8>, Slot<u8>)>; N],
    votes: [bool; N],
    seen: Ballot,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    slots: [Option<Slot<u8>>; N],
    writers: Vec<Writer>,
    /// Told by nobody: who ever accepted what under which ballot.
    votes: BTreeMap<(u64, u128), (u8, [bool; N])>,
    looked: [Option<Seen<u8>>; N],
    /// The highest decided ballot when the look began.
    look_from: Option<(u64, u128)>,
    wipes: u8,
}

impl State {
    fn decided(&self) -> Vec<((u64, u128), u8)> {
        let enough = self.votes.iter().filter(|(_, (_, who))| who.iter().filter(|voted| **voted).count() >= W);
        enough.map(|(ballot, (value, _))| (*ballot, *value)).collect()
    }

    fn was_decided(&self, value: u8) -> bool {
        self.decided().iter().any(|(_, v)| *v == value)
    }
}

struct Lives {
    wishes: Vec<Wish<u8, u8>>,
    rounds: u8,
    looks: bool,
    wipes: u8,
    /// For showing that the model can fail.
    broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// As ADR 0018 had it first: what was read stands for the promise, and nothing of it is written.
    NoPromise,
    /// A store that forgot everything counts at once.
    ForgottenCounts,
    /// One store fewer.
    Quorum,
}

fn ballot_key(ballot: Ballot) -> (u64, u128) {
    (ballot.number, ballot.token)
}

impl Lives {
    fn w(&self) -> usize {
        if self.broken == Some(Broken::Quorum) { W - 1 } else { W }
    }

    fn promise(&self, state: &mut State, who: usize, at: usize, reply: Reply) -> Option<()> {
        let writer = &state.writers[who];
        if writer.phase != Phase::Promising || writer.promises[at].is_some() {
            return None;
        }
        let slot = match &state.slots[at] {
            Some(slot) => slot.clone(),
            None if self.broken == Some(Broken::ForgottenCounts) => Slot::default(),
            None => return None,
        };
        let ballot = writer.ballot;
        match slot.promise(ballot) {
            Ok(promised) => {
                let after = if self.broken == Some(Broken::NoPromise) { slot.clone() } else { promised };
                if after == slot && self.broken.is_none() {
                    return None;
                }
                state.slots[at] = Some(after.clone());
                if reply == Reply::Heard {
                    state.writers[who].promises[at] = Some((slot, after));
                }
            }
            Err(higher) if reply == Reply::Heard => {
                let writer = &mut state.writers[who];
                if writer.seen >= higher {
                    return None;
                }
                writer.seen = higher;
            }
            Err(_) => return None,
        }
        let writer = &mut state.writers[who];
        let before = writer.promises.clone().map(|promise| promise.map(|(slot, _)| slot));
        if let Some(current) = promised_value(&before, self.w()) {
            writer.phase = match next_step(&writer.wish, current, |e, v| Some(e) == v, writer.sent) {
                Step::Accept(value) => {
                    writer.sent = true;
                    Phase::Accepting(value)
                }
                Step::Nothing => Phase::Done(None),
                Step::Refused { sent } => Phase::Refused { sent },
            };
        }
        Some(())
    }

    fn accept(&self, state: &mut State, who: usize, at: usize, reply: Reply) -> Option<()> {
        let writer = &state.writers[who];
        let Phase::Accepting(value) = writer.phase else { return None };
        let (_, promised) = writer.promises[at].clone()?;
        // The conditional PUT: only on the very slot that the promise left.
        if writer.votes[at] || state.slots[at].as_ref() != Some(&promised) {
            return None;
        }
        let slot = promised.accept(writer.ballot, value).ok()?;
        state.slots[at] = Some(slot);
        let vote = state.votes.entry(ballot_key(writer.ballot)).or_insert((value, [false; N]));
        vote.1[at] = true;
        let writer = &mut state.writers[who];
        if reply == Reply::Heard {
            writer.votes[at] = true;
        }
        if writer.votes.iter().filter(|voted| **voted).count() >= self.w() {
            writer.phase = Phase::Done(Some(value));
        }
        Some(())
    }
}

impl Model for Lives {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let (before, begin) = (Ballot { number: 1, token: 0 }, Ballot { number: 2, token: 0 });
        let slot = |ballot, value| Some(Slot { promised: ballot, accepted: Some((ballot, value)) });
        let writer = |(at, wish): (usize, &Wish<u8, u8>)| Writer {
            wish: wish.clone(),
            ballot: Ballot { number: 3, token: at as u128 + 1 },
            rounds_left: self.rounds - 1,
            sent: false,
            phase: Phase::Promising,
            promises: Default::default(),
            votes: [false; N],
            seen: Ballot::default(),
        };
        vec![State {
            slots: [slot(begin, FIRST), slot(begin, FIRST), slot(before, BEFORE)],
            writers: self.wishes.iter().enumerate().map(writer).collect(),
            votes: BTreeMap::from([
                (ballot_key(before), (BEFORE, [true; N])),
                (ballot_key(begin), (FIRST, [true, true, false])),
            ]),
            looked: Default::default(),
            look_from: None,
            wipes: 0,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Act>) {
        for who in 0..state.writers.len() {
            actions.push(Act::Again(who));
            for at in 0..N {
                for reply in [Reply::Heard, Reply::Lost] {
                    actions.push(Act::Promise(who, at, reply));
                    actions.push(Act::Accept(who, at, reply));
                }
            }
        }
        for at in 0..N {
            if self.looks {
                actions.push(Act::LookAt(at));
            }
            if self.wipes > 0 {
                actions.push(Act::Wipe(at));
                actions.push(Act::Mend(at));
            }
        }
    }

    fn next_state(&self, last: &State, action: Act) -> Option<State> {
        let mut state = last.clone();
        match action {
            Act::Promise(who, at, reply) => self.promise(&mut state, who, at, reply)?,
            Act::Accept(who, at, reply) => self.accept(&mut state, who, at, reply)?,
            Act::Again(who) => {
                let writer = &mut state.writers[who];
                if writer.rounds_left == 0 || !matches!(writer.phase, Phase::Promising | Phase::Accepting(_)) {
                    return None;
                }
                let seen = [writer.ballot, writer.seen].into_iter();
                writer.ballot = Ballot::above(seen, writer.ballot.token)?;
                writer.rounds_left -= 1;
                writer.phase = Phase::Promising;
                (writer.promises, writer.votes) = (Default::default(), [false; N]);
            }
            Act::LookAt(at) => {
                if state.looked[at].is_some() {
                    return None;
                }
                if state.looked.iter().all(Option::is_none) {
                    state.look_from = state.decided().last().map(|(ballot, _)| *ballot);
                }
                state.looked[at] = Some(state.slots[at].clone().map_or(Seen::Empty, Seen::Slot));
            }
            Act::Wipe(at) => {
                if state.wipes == self.wipes || state.slots[at].is_none() {
                    return None;
                }
                state.wipes += 1;
                state.slots[at] = None;
            }
            Act::Mend(at) => {
                if state.slots[at].is_some() {
                    return None;
                }
                let others: Vec<Seen<u8>> = (0..N)
                    .filter(|other| *other != at)
                    .map(|other| state.slots[other].clone().map_or(Seen::Empty, Seen::Slot))
                    .collect();
                state.slots[at] = Some(mended(&others, W)?);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("of two that replace the same, one is decided at most (H1)", |_, state: &State| {
                !(state.was_decided(1) && state.was_decided(2))
            }),
            Property::always("what was decided is replaced only by who saw it", |_, state: &State| {
                // Once something else than the first is decided, nothing goes back to it; nor to what was before it.
                let decided = state.decided();
                decided.windows(2).all(|pair| match (pair[0].1, pair[1].1) {
                    (BEFORE, next) => next == FIRST,
                    (FIRST, next) => next != BEFORE,
                    (value, next) => value == next,
                })
            }),
            Property::always("done means decided, and still decided", |_, state: &State| {
                state.writers.iter().all(|writer| match writer.phase {
                    Phase::Done(Some(value)) => state.was_decided(value),
                    _ => true,
                })
            }),
            Property::always("refused without having been sent means never", |_, state: &State| {
                state.writers.iter().all(|writer| match (&writer.phase, &writer.wish) {
                    (Phase::Refused { sent: false }, Wish::Swap { value, .. }) => !state.was_decided(*value),
                    _ => true,
                })
            }),
            Property::always("a look shows nothing older than what was decided before it", |_, state: &State| {
                let seen: Vec<Seen<u8>> =
                    state.looked.iter().map(|seen| seen.clone().unwrap_or(Seen::Silent)).collect();
                let Look::Decided(value) = judge_look(&seen, W) else { return true };
                let decided = state.decided();
                decided.iter().any(|(ballot, v)| *v == value && Some(*ballot) >= state.look_from)
            }),
            Property::sometimes("a writer is done", |_, state: &State| {
                state.writers.iter().any(|writer| matches!(writer.phase, Phase::Done(Some(_))))
            }),
            Property::sometimes("a writer finds out that it was replaced", |_, state: &State| {
                state.writers.iter().any(|writer| writer.phase == Phase::Refused { sent: false })
            }),
        ]
    }
}

fn commit_and_raise() -> Vec<Wish<u8, u8>> {
    vec![Wish::Swap { expected: FIRST, value: 1 }, Wish::Swap { expected: FIRST, value: 2 }]
}

/// States that one search visits at most: it ends there, in the order of the number of steps, and says so.
const STATES_MAX: usize = 1_000_000;

fn holds(model: Lives) {
    let checker = model.checker().target_state_count(STATES_MAX).spawn_bfs().join();
    eprintln!("{} states, up to {} steps", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
}

fn fails(model: Lives) {
    let search = model.checker().finish_when(HasDiscoveries::AnyFailures).target_state_count(STATES_MAX);
    let checker = search.spawn_bfs().join();
    let found: Vec<&str> = checker.discoveries().into_keys().filter(|name| !name.starts_with("a writer")).collect();
    assert!(!found.is_empty(), "the model did not notice");
}

#[test]
fn two_lives_never_both_commit_whatever_is_lost() {
    holds(Lives { wishes: commit_and_raise(), rounds: 1, looks: false, wipes: 0, broken: None });
    holds(Lives { wishes: commit_and_raise(), rounds: 2, looks: false, wipes: 0, broken: None });
}

#[test]
fn a_look_in_between_sees_nothing_old() {
    holds(Lives { wishes: commit_and_raise(), rounds: 1, looks: true, wipes: 0, broken: None });
}

#[test]
fn a_third_that_settles_what_was_cut_short_changes_nothing_of_that() {
    let mut wishes = commit_and_raise();
    wishes.push(Wish::Settle);
    holds(Lives { wishes, rounds: 1, looks: false, wipes: 0, broken: None });
}

#[test]
fn a_store_that_forgot_its_slot_takes_part_again_only_mended() {
    let mut wishes = commit_and_raise();
    wishes.push(Wish::Settle);
    holds(Lives { wishes, rounds: 1, looks: false, wipes: 1, broken: None });
}

#[test]
fn without_a_promise_both_lives_commit() {
    fails(Lives { wishes: commit_and_raise(), rounds: 2, looks: false, wipes: 0, broken: Some(Broken::NoPromise) });
}

#[test]
fn a_forgotten_slot_that_counts_loses_what_was_decided() {
    let broken = Some(Broken::ForgottenCounts);
    fails(Lives { wishes: vec![Wish::Settle], rounds: 1, looks: false, wipes: 1, broken });
}

#[test]
fn quorums_that_need_not_meet_let_both_commit() {
    fails(Lives { wishes: commit_and_raise(), rounds: 1, looks: false, wipes: 0, broken: Some(Broken::Quorum) });
}

fn slot(number: u64, value: Option<&'static [u8]>) -> Slot<Bytes> {
    let ballot = Ballot { number, token: 7 };
    Slot { promised: ballot, accepted: value.map(|value| (ballot, Bytes::from_static(value))) }
}

#[test]
fn slots_are_laid_out_only_while_nobody_can_have_a_value() {
    let (empty, blank, full) = (Seen::Empty, Seen::Slot(slot(1, None)), Seen::Slot(slot(1, Some(b"x"))));
    assert!(may_lay_out(&[empty.clone(), empty.clone(), empty.clone()]));
    assert!(may_lay_out(&[blank.clone(), empty.clone(), empty.clone()]));
    assert!(!may_lay_out(&[blank.clone(), blank.clone(), blank]), "there is nothing to lay out");
    assert!(!may_lay_out(&[full.clone(), empty.clone(), empty.clone()]));
    assert!(!may_lay_out(&[Seen::Silent, empty.clone(), empty.clone()]), "the silent one may have a value");
    assert_eq!(judge_look(&[Seen::Silent, empty.clone(), empty.clone()], 2), Look::Nothing);
    assert_eq!(judge_look(&[full, empty.clone(), empty.clone()], 2), Look::TooFew);
    assert_eq!(judge_look(&[Seen::Silent, Seen::Silent, empty], 2), Look::<Bytes>::TooFew);
}

#[test]
fn a_slot_comes_back_as_written_and_damage_is_found() {
    let seat = Seat { index: 1, n: 3, w: 2 };
    for slot in [slot(3, Some(b"a head")), slot(u64::MAX, None), Slot::default()] {
        let object = encode(seat, &slot, 9);
        assert_eq!(decode(seat, &object), Ok(slot.clone()));
        assert_ne!(object, encode(seat, &slot, 10), "no two have the same bytes");
        for at in 0..object.len() {
            let mut bad = object.to_vec();
            bad[at] ^= 1;
            assert!(decode(seat, &Bytes::from(bad)).is_err(), "byte {at}");
            assert!(decode(seat, &object.slice(..at)).is_err(), "cut at {at}");
        }
    }
    let object = encode(seat, &slot(3, Some(b"x")), 9);
    assert_eq!(decode(Seat { index: 0, ..seat }, &object), Err(BadSlot::Seat(seat)));
    assert_eq!(decode(seat, &Bytes::from_static(b"HFOB what one store has")), Err(BadSlot::Foreign));
}

/// The bytes are pinned: what is in a store is read for ever.
#[test]
fn the_format_is_pinned() {
    let object = encode(Seat { index: 0, n: 3, w: 2 }, &slot(5, Some(b"head")), 1);
    let hex: String = object.iter().map(|byte| format!("{byte:02x}")).collect();
    let ballot = "050000000000000007000000000000000000000000000000";
    let expected = format!("4846520100030201{ballot}{ballot}010000000000000000000000000000000400000068656164");
    assert!(hex.starts_with(&expected), "{hex}");
    assert_eq!(object.len(), 4 + 4 + 48 + 16 + 4 + 4 + 16);
}
