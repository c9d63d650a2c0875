//! The rules of the register as a searchable model: every order of steps of several lives of a set, with lost answers,
//! a store that loses its entry and a process that mends it. Searches are limited by the number of states
//! (`STATES_MAX`), and the shortest histories come first. The results are printed.

use super::*;
use stateright::{Model, Property};
use std::collections::BTreeMap;

const N: usize = 3;
const W: usize = 2;
/// The first value, decided at two of the stores; the third has the value before.
const FIRST: u8 = 0;
const BEFORE: u8 = 9;

/// The result of one step at a store, as its caller sees it.
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
    /// A mender puts its mark, sees all the others, and writes the entry: step 1, the beginning of step 2, and step 3
    /// of QUORUM-Q2.
    Mark(usize),
    /// Like `Mark`, in two steps, for a mark that arrives late: it is sent, and later put where there is nothing.
    MakeMark(usize),
    PutMark,
    Ask(usize),
    Mend(usize),
    /// The rule before restarts were counted: the entry is written at once, from the entries of the others.
    MendAsItWas(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// A mender that has not begun its round.
    Idle,
    Promising,
    /// This value must be accepted by the stores that promised.
    Accepting(Option<u8>),
    /// A mender: all other stores have accepted.
    Accepted(RegisterEntry<u8>),
    Done(Option<u8>),
    Refused {
        sent: bool,
    },
}

/// The content of a store.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Has {
    Entry(RegisterEntry<u8>),
    Nothing,
    /// The number of the mark, and the restart that will begin.
    Mark(u8, u32),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Writer {
    wish: Wish<u8, u8>,
    /// The store that it mends, and the mark that it saw there.
    mends: Option<(usize, u8, u32)>,
    ballot: Ballot,
    rounds_left: u8,
    sent: bool,
    phase: Phase,
    /// Number of stores that must promise and vote.
    needed: usize,
    knows: Restarts,
    /// The entry before the promise that was heard, and after it.
    promises: [Option<(RegisterEntry<u8>, RegisterEntry<u8>)>; N],
    votes: [bool; N],
    seen: Ballot,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    has: [Has; N],
    writers: Vec<Writer>,
    /// Known to the model only: which store ever accepted which value under which ballot.
    votes: BTreeMap<(u64, u128), (u8, [bool; N])>,
    looked: [Option<Seen<u8>>; N],
    /// The highest decided ballot when the look began.
    look_from: Option<(u64, u128)>,
    wipes: u8,
    marks: u8,
    /// A mark that was sent and has not arrived: its store, its number and its restart.
    late: Option<(usize, u8, u32)>,
}

impl State {
    fn decided(&self) -> Vec<((u64, u128), u8)> {
        let enough = self.votes.iter().filter(|(_, (_, who))| who.iter().filter(|voted| **voted).count() >= W);
        enough.map(|(ballot, (value, _))| (*ballot, *value)).collect()
    }

    fn was_decided(&self, value: u8) -> bool {
        self.decided().iter().any(|(_, v)| *v == value)
    }

    fn seen(&self) -> Vec<Seen<u8>> {
        let seen = |has: &Has| match has {
            Has::Entry(entry) => Seen::Entry(entry.clone()),
            Has::Nothing => Seen::Empty,
            Has::Mark(_, restart) => Seen::Marked(*restart),
        };
        self.has.iter().map(seen).collect()
    }

    fn entry(&self, at: usize) -> Option<&RegisterEntry<u8>> {
        if let Has::Entry(entry) = &self.has[at] { Some(entry) } else { None }
    }
}

#[derive(Clone, Default)]
struct Story {
    wishes: Vec<Wish<u8, u8>>,
    /// So many of the writers, from the first on, mend a lost store instead.
    menders: usize,
    rounds: u8,
    /// Answers may be lost in transit.
    lossy: bool,
    looks: bool,
    wipes: u8,
    /// One mark arrives later than it was sent, at any moment.
    late_marks: bool,
    /// A store may be asked for a promise, and accept, after enough others have promised.
    all_asked: bool,
    /// Steps that were done before the search begins.
    before: Vec<Act>,
    /// A broken rule, to show that the model can fail.
    broken: Option<Broken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// The first version of ADR 0018: a read counts as the promise, and nothing is written.
    NoPromise,
    /// A store that forgot everything counts at once.
    ForgottenCounts,
    /// One store fewer.
    Quorum,
    /// A lost entry is written from the entries of the others, without a round.
    MendedFromALook,
    /// The round of QUORUM-Q2, but no store notes the restart.
    NoRestarts,
    /// The same, and the mark may be another mender's.
    AnyMark,
    /// The round of QUORUM-Q2, with one store fewer.
    MendedBySome,
    /// A mark is accepted although its restart has begun, and that restart is begun again.
    RestartTwice,
}

fn ballot_key(ballot: Ballot) -> (u64, u128) {
    (ballot.number, ballot.token)
}

impl Story {
    fn w(&self) -> usize {
        if self.broken == Some(Broken::Quorum) { W - 1 } else { W }
    }

    fn begun_anew(&self, restarts: &Restarts, at: usize, restart: u32) -> Option<Restarts> {
        let twice = self.broken == Some(Broken::RestartTwice) && restarts[at] == restart;
        if twice { Some(*restarts) } else { begun_anew(restarts, at, restart) }
    }

    fn promise(&self, state: &mut State, who: usize, at: usize, reply: Reply) -> Option<()> {
        let writer = &state.writers[who];
        let asked = writer.phase == Phase::Promising || (self.all_asked && matches!(writer.phase, Phase::Accepting(_)));
        if !asked || writer.promises[at].is_some() {
            return None;
        }
        let entry = match &state.has[at] {
            Has::Entry(entry) => entry.clone(),
            Has::Nothing if self.broken == Some(Broken::ForgottenCounts) => RegisterEntry::default(),
            Has::Nothing | Has::Mark(..) => return None,
        };
        let ballot = writer.ballot;
        match entry.promise(ballot) {
            Ok(promised) => {
                let after = if self.broken == Some(Broken::NoPromise) { entry.clone() } else { promised };
                if after == entry && self.broken.is_none() {
                    return None;
                }
                state.has[at] = Has::Entry(after.clone());
                if reply == Reply::Heard {
                    state.writers[who].promises[at] = Some((entry, after));
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
        if writer.phase != Phase::Promising {
            return Some(());
        }
        let before = writer.promises.clone().map(|promise| promise.map(|(entry, _)| entry));
        let Some(found) = promised_value(&before, writer.needed) else { return Some(()) };
        if let Some((lost, _, restart)) = writer.mends {
            writer.knows = self.begun_anew(&found.restarts, lost, restart)?;
            if matches!(self.broken, Some(Broken::NoRestarts | Broken::AnyMark)) {
                writer.knows = Restarts::default();
            }
            writer.phase = Phase::Accepting(found.value);
            return Some(());
        }
        writer.phase = match next_step(&writer.wish, found.value, |e, v| Some(e) == v, writer.sent) {
            Step::Accept(value) => {
                writer.sent = true;
                Phase::Accepting(Some(value))
            }
            Step::Nothing => Phase::Done(None),
            Step::Refused { sent } => Phase::Refused { sent },
        };
        Some(())
    }

    fn accept(&self, state: &mut State, who: usize, at: usize, reply: Reply) -> Option<()> {
        let writer = &state.writers[who];
        let Phase::Accepting(value) = writer.phase else { return None };
        let (_, promised) = writer.promises[at].clone()?;
        // The conditional PUT succeeds only on exactly the entry that the promise left.
        if writer.votes[at] || state.entry(at) != Some(&promised) {
            return None;
        }
        let entry = promised.accept(writer.ballot, value, &writer.knows).ok()?;
        state.has[at] = Has::Entry(entry);
        let value = value?;
        let vote = state.votes.entry(ballot_key(writer.ballot)).or_insert((value, [false; N]));
        vote.1[at] = true;
        let writer = &mut state.writers[who];
        if reply == Reply::Heard {
            writer.votes[at] = true;
        }
        if writer.votes.iter().filter(|voted| **voted).count() >= writer.needed {
            let entry = mended(writer.ballot, Some(value), writer.knows);
            writer.phase = if writer.mends.is_some() { Phase::Accepted(entry) } else { Phase::Done(Some(value)) };
        }
        Some(())
    }

    /// The lost store has a mark: the round begins, with a ballot above all that are visible now.
    fn ask(&self, state: &mut State, who: usize) -> Option<()> {
        if state.writers[who].phase != Phase::Idle {
            return None;
        }
        let seen = state.seen();
        let (at, restart) = may_mend(&seen, W)?;
        let Has::Mark(mark, _) = state.has[at] else { return None };
        let entries = seen.iter().filter_map(|seen| if let Seen::Entry(entry) = seen { Some(entry) } else { None });
        let writer = &mut state.writers[who];
        writer.ballot = Ballot::above(entries.clone().map(RegisterEntry::highest), writer.ballot.token)?;
        writer.needed = entries.count();
        if self.broken == Some(Broken::MendedBySome) {
            writer.needed -= 1;
        }
        writer.mends = Some((at, mark, restart));
        writer.phase = Phase::Promising;
        Some(())
    }

    fn mend(&self, state: &mut State, who: usize) -> Option<()> {
        let Phase::Accepted(entry) = state.writers[who].phase.clone() else { return None };
        let (at, mark, restart) = state.writers[who].mends?;
        let anything = self.broken == Some(Broken::AnyMark) && !matches!(state.has[at], Has::Entry(_));
        if state.has[at] != Has::Mark(mark, restart) && !anything {
            return None;
        }
        let ballot = ballot_key(entry.promised);
        state.votes.entry(ballot).and_modify(|(_, who)| who[at] = true);
        state.has[at] = Has::Entry(entry);
        state.writers[who].phase = Phase::Done(None);
        Some(())
    }

    fn begin(&self) -> State {
        let (before, begin) = (Ballot { number: 1, token: 0 }, Ballot { number: 2, token: 0 });
        let entry = |promised, value| {
            let accepted = Some((promised, value));
            Has::Entry(RegisterEntry { promised, accepted, ..RegisterEntry::default() })
        };
        let writer = |(at, wish): (usize, &Wish<u8, u8>)| Writer {
            wish: wish.clone(),
            mends: None,
            ballot: Ballot { number: 3, token: at as u128 + 1 },
            rounds_left: self.rounds - 1,
            sent: false,
            phase: if at < self.menders { Phase::Idle } else { Phase::Promising },
            needed: self.w(),
            knows: Restarts::default(),
            promises: Default::default(),
            votes: [false; N],
            seen: Ballot::default(),
        };
        State {
            has: [entry(begin, FIRST), entry(begin, FIRST), entry(before, BEFORE)],
            writers: self.wishes.iter().enumerate().map(writer).collect(),
            votes: BTreeMap::from([
                (ballot_key(before), (BEFORE, [true; N])),
                (ballot_key(begin), (FIRST, [true, true, false])),
            ]),
            looked: Default::default(),
            look_from: None,
            wipes: 0,
            marks: 0,
            late: None,
        }
    }
}

impl Model for Story {
    type State = State;
    type Action = Act;

    fn init_states(&self) -> Vec<State> {
        let step =
            |state: State, act: &Act| self.next_state(&state, *act).unwrap_or_else(|| panic!("{act:?}: {state:?}"));
        vec![self.before.iter().fold(self.begin(), step)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Act>) {
        let replies = if self.lossy { &[Reply::Heard, Reply::Lost][..] } else { &[Reply::Heard] };
        for who in 0..state.writers.len() {
            actions.extend([Act::Again(who), Act::Ask(who), Act::Mend(who)]);
            for at in 0..N {
                for reply in replies {
                    actions.push(Act::Promise(who, at, *reply));
                    actions.push(Act::Accept(who, at, *reply));
                }
            }
        }
        for at in 0..N {
            if self.looks {
                actions.push(Act::LookAt(at));
            }
            if self.wipes > 0 {
                actions.extend([Act::Wipe(at), Act::Mark(at), Act::MendAsItWas(at)]);
                actions.extend([Act::MakeMark(at), Act::PutMark].into_iter().filter(|_| self.late_marks));
            }
        }
    }

    fn next_state(&self, last: &State, action: Act) -> Option<State> {
        let mut state = last.clone();
        match action {
            Act::Promise(who, at, reply) => self.promise(&mut state, who, at, reply)?,
            Act::Accept(who, at, reply) => self.accept(&mut state, who, at, reply)?,
            Act::Ask(who) => self.ask(&mut state, who)?,
            Act::Mend(who) => self.mend(&mut state, who)?,
            Act::Again(who) => {
                let writer = &mut state.writers[who];
                if writer.rounds_left == 0 || !matches!(writer.phase, Phase::Promising | Phase::Accepting(_)) {
                    return None;
                }
                let seen = [writer.ballot, writer.seen].into_iter();
                writer.ballot = Ballot::above(seen, writer.ballot.token)?;
                writer.rounds_left -= 1;
                writer.phase = if writer.mends.is_some() { Phase::Idle } else { Phase::Promising };
                (writer.promises, writer.votes) = (Default::default(), [false; N]);
            }
            Act::LookAt(at) => {
                if state.looked[at].is_some() {
                    return None;
                }
                if state.looked.iter().all(Option::is_none) {
                    state.look_from = state.decided().last().map(|(ballot, _)| *ballot);
                }
                state.looked[at] = Some(state.seen()[at].clone());
            }
            Act::Wipe(at) => {
                if state.wipes == self.wipes || state.has[at] == Has::Nothing {
                    return None;
                }
                // More than n − w lost entries at once are more than any rule can handle.
                if (0..N).filter(|other| *other != at && state.entry(*other).is_none()).count() >= N - W {
                    return None;
                }
                state.wipes += 1;
                state.has[at] = Has::Nothing;
            }
            Act::Mark(at) => {
                let marks =
                    self.menders > 0 && (state.has[at] == Has::Nothing || self.broken != Some(Broken::RestartTwice));
                let restart = mark_for(&state.seen(), at, W).filter(|_| marks)?;
                state.has[at] = Has::Mark(state.marks, restart);
                state.marks += 1;
            }
            Act::MakeMark(at) => {
                if state.late.is_some() || state.has[at] != Has::Nothing {
                    return None;
                }
                state.late = Some((at, state.marks, mark_for(&state.seen(), at, W)?));
                state.marks += 1;
            }
            Act::PutMark => {
                let (at, mark, restart) = state.late?;
                if state.has[at] != Has::Nothing {
                    return None;
                }
                state.has[at] = Has::Mark(mark, restart);
                // The caller asks the store repeatedly; once is enough here.
                state.late = None;
            }
            Act::MendAsItWas(at) => {
                if self.broken != Some(Broken::MendedFromALook) || state.has[at] != Has::Nothing {
                    return None;
                }
                let others: Vec<RegisterEntry<u8>> = (0..N)
                    .filter(|other| *other != at)
                    .map(|other| state.entry(other).cloned())
                    .collect::<Option<_>>()?;
                let accepted = others.iter().filter_map(|entry| entry.accepted).max()?;
                if others.iter().filter(|entry| entry.accepted == Some(accepted)).count() < W {
                    return None;
                }
                let highest = others.iter().map(|entry| entry.highest().number).max()?;
                let (promised, accepted) = (Ballot { number: highest + (1 << 20), token: 0 }, Some(accepted));
                state.has[at] = Has::Entry(RegisterEntry { promised, accepted, ..RegisterEntry::default() });
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("of two that replace the same, one is decided at most (HEAD-H1)", |_, state: &State| {
                !(state.was_decided(1) && state.was_decided(2))
            }),
            Property::always(
                "what is voted for above a decided ballot is made from what that decided",
                |_, state: &State| {
                    let decided = state.decided();
                    decided.iter().all(|(ballot, value)| {
                        let above = state.votes.range((std::ops::Bound::Excluded(*ballot), std::ops::Bound::Unbounded));
                        above.into_iter().all(|(_, (later, _))| match *value {
                            BEFORE => true,
                            FIRST => *later != BEFORE,
                            value => *later == value,
                        })
                    })
                },
            ),
            Property::always("any w stores that have an entry show what is decided", |_, state: &State| {
                let Some((last, _)) = state.decided().last().copied() else { return true };
                let shows =
                    |entry: &RegisterEntry<u8>| entry.accepted.is_some_and(|(ballot, _)| ballot_key(ballot) >= last);
                (0..N).filter_map(|at| state.entry(at)).filter(|entry| !shows(entry)).count() < W
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
                state.writers.iter().any(|writer| matches!(writer.phase, Phase::Done(_)))
            }),
        ]
    }
}

#[path = "register_stories.rs"]
mod stories;
