//! R2 and R6 against a dumb model: a list of everything that ever happened, searched from its end for each question.

use super::{
    Admit, Judged, REQUESTS_REMEMBERED, RetireOf, RootRef, SetAnswer, SetCommand, SetRefusal, SetState, StoredKind,
    StoredObject,
};
use holdfast_types::{
    Epoch, LogId, LogIndex, MemberId, Name, ObjectId, Owner, RequestId, Sectors, Term, Token, WriteSeq,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;

const BASE: u64 = 5_000;

/// What is asked, in words that the model's history turns into numbers.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Acquire { owner: u8, gateway: u8, again: Option<Back>, how: How, plain: bool },
    Continue { owner: u8, gateway: u8, token: Back, again: Option<Back> },
    Renew { epoch: Back },
    Release { epoch: Back, token: Option<Back> },
    Write { epoch: Back, seq: Pick },
}

#[derive(Clone, Copy, Debug)]
enum How {
    Politely,
    Forced,
    JudgedNow,
    JudgedBefore(u8),
}

/// Of this many grants ago; 0 is the last.
type Back = u8;

#[derive(Clone, Copy, Debug)]
enum Pick {
    Next,
    Repeat(u8),
    Skip(u8),
    Zero,
}

fn back() -> impl Strategy<Value = Back> {
    prop_oneof![8 => Just(0u8), 3 => Just(1u8), 1 => 2u8..5]
}

/// Mostly one and the same, so that it gets far.
fn who_asks() -> impl Strategy<Value = u8> {
    prop_oneof![6 => Just(0u8), 1 => Just(1u8), 1 => Just(2u8)]
}

/// A copy of the request that was granted so many grants ago; mostly none, but a new request.
fn copy() -> impl Strategy<Value = Option<Back>> {
    prop_oneof![6 => Just(None), 1 => Just(Some(0u8)), 2 => (1u8..4).prop_map(Some), 1 => (4u8..20).prop_map(Some)]
}

fn asks() -> impl Strategy<Value = Ask> {
    let how = prop_oneof![
        3 => Just(How::Politely), 1 => Just(How::Forced), 1 => Just(How::JudgedNow), 1 => (1u8..4).prop_map(How::JudgedBefore)
    ];
    let seq = prop_oneof![
        8 => Just(Pick::Next), 2 => (0u8..4).prop_map(Pick::Repeat), 1 => (1u8..3).prop_map(Pick::Skip), 1 => Just(Pick::Zero)
    ];
    prop_oneof![
        3 => (who_asks(), 0u8..3, copy(), how, prop::bool::weighted(0.2))
            .prop_map(|(owner, gateway, again, how, plain)| Ask::Acquire { owner, gateway, again, how, plain }),
        4 => (who_asks(), 0u8..3, back(), copy())
            .prop_map(|(owner, gateway, token, again)| Ask::Continue { owner, gateway, token, again }),
        2 => back().prop_map(|epoch| Ask::Renew { epoch }),
        1 => (back(), prop::option::of(back())).prop_map(|(epoch, token)| Ask::Release { epoch, token }),
        8 => (back(), seq).prop_map(|(epoch, seq)| Ask::Write { epoch, seq }),
    ]
}

/// Everything that happened, in order of the log.
#[derive(Clone, Debug)]
enum Happened {
    Granted {
        index: u64,
        owner: u8,
        gateway: u8,
        token: u128,
        from: Option<u128>,
        request: u128,
        plain: bool,
    },
    /// A renewal or an admitted write.
    Used {
        index: u64,
        epoch: u64,
    },
    Wrote {
        epoch: u64,
    },
    Released {
        epoch: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Grant {
    index: u64,
    owner: u8,
    gateway: u8,
    token: u128,
    from: Option<u128>,
    request: u128,
    plain: bool,
}

impl Grant {
    fn epoch(&self) -> u64 {
        BASE + self.index
    }
}

/// What the model expects of an answer.
#[derive(Debug, PartialEq)]
enum Expect {
    NewGrant,
    OldGrant(u64),
    Renewed,
    Released,
    Applied,
    Duplicate,
    Held(u8, u8, u64),
    NotHeld,
    Stale,
    Plain,
    Ended,
    WrongEpoch(Option<u64>),
    Gap(u64),
}

#[derive(Default)]
struct Model {
    history: Vec<Happened>,
}

impl Model {
    fn grants(&self) -> Vec<Grant> {
        let grant = |happened: &Happened| match *happened {
            Happened::Granted { index, owner, gateway, token, from, request, plain } => {
                Some(Grant { index, owner, gateway, token, from, request, plain })
            }
            _ => None,
        };
        self.history.iter().filter_map(grant).collect()
    }

    fn last(&self, back: Back) -> Option<Grant> {
        self.grants().into_iter().rev().nth(usize::from(back))
    }

    fn held(&self) -> Option<Grant> {
        let last = self.last(0)?;
        let released = self.history.iter().any(|h| matches!(h, Happened::Released { epoch } if *epoch == last.epoch()));
        (!released).then_some(last)
    }

    fn renewals(&self, grant: Grant) -> Vec<u64> {
        let used = self.history.iter().filter_map(|h| match h {
            Happened::Used { index, epoch } if *epoch == grant.epoch() => Some(*index),
            _ => None,
        });
        std::iter::once(grant.index).chain(used).collect()
    }

    fn opens(&self, grant: Grant, token: u128) -> bool {
        let unused = self.renewals(grant).len() == 1;
        token == grant.token || (unused && Some(token) == grant.from)
    }

    /// R12: of the last granted requests, each was granted once and for all.
    fn ended(&self, request: u128) -> bool {
        self.grants().iter().rev().take(REQUESTS_REMEMBERED).any(|grant| grant.request == request)
    }

    fn written(&self, epoch: u64) -> u64 {
        self.history.iter().filter(|h| matches!(h, Happened::Wrote { epoch: e } if *e == epoch)).count() as u64
    }

    fn expect(&self, cmd: &SetCommand) -> Expect {
        let held = self.held();
        let current = held.map(|grant| grant.epoch());
        let refused = |grant: Grant| Expect::Held(grant.owner, grant.gateway, grant.epoch());
        match cmd {
            SetCommand::Acquire { owner, request, judged_expired, force, .. } => match held {
                Some(grant) if grant.request == request.0 && who(owner) == grant.owner => Expect::OldGrant(grant.index),
                Some(grant) => {
                    let last = *self.renewals(grant).last().unwrap();
                    let seen = Judged { epoch: Epoch(grant.epoch()), renewed: LogIndex(last) };
                    if !*force && *judged_expired != Some(seen) {
                        refused(grant)
                    } else if self.ended(request.0) {
                        Expect::Ended
                    } else {
                        Expect::NewGrant
                    }
                }
                None if self.ended(request.0) => Expect::Ended,
                None => Expect::NewGrant,
            },
            SetCommand::Continue { owner, token, request, .. } => match held {
                None => Expect::NotHeld,
                Some(grant) if grant.owner != who(owner) => refused(grant),
                Some(grant) if grant.plain => Expect::Plain,
                Some(grant) if grant.request == request.0 => Expect::OldGrant(grant.index),
                Some(grant) if !self.opens(grant, token.0) => Expect::Stale,
                Some(_) if self.ended(request.0) => Expect::Ended,
                Some(_) => Expect::NewGrant,
            },
            SetCommand::Renew { epoch } if current == Some(epoch.0) => Expect::Renewed,
            SetCommand::Release { epoch, token } => match held {
                None if self.last(0).is_some_and(|grant| grant.epoch() == epoch.0) => Expect::Released,
                Some(grant) if grant.epoch() == epoch.0 => {
                    if token.is_none_or(|token| self.opens(grant, token.0)) {
                        Expect::Released
                    } else {
                        Expect::Stale
                    }
                }
                _ => Expect::WrongEpoch(current),
            },
            _ => Expect::WrongEpoch(current),
        }
    }

    fn expect_write(&self, epoch: u64, seq: u64) -> Expect {
        let current = self.held().map(|grant| grant.epoch());
        let next = self.written(epoch) + 1;
        if current != Some(epoch) {
            Expect::WrongEpoch(current)
        } else if seq == next {
            Expect::Applied
        } else if seq != 0 && seq < next {
            Expect::Duplicate
        } else {
            Expect::Gap(next)
        }
    }
}

fn owner(number: u8) -> Owner {
    Owner::new(format!("host-{number}")).unwrap()
}

fn who(owner: &Owner) -> u8 {
    owner.as_str().trim_start_matches("host-").parse().unwrap()
}

fn found(answer: &SetAnswer, index: u64) -> Expect {
    match answer {
        SetAnswer::Granted(lease) if lease.granted.0 == index => Expect::NewGrant,
        SetAnswer::Granted(lease) => Expect::OldGrant(lease.granted.0),
        SetAnswer::Renewed => Expect::Renewed,
        SetAnswer::Released => Expect::Released,
        SetAnswer::Refused(refusal) => found_refusal(refusal),
        other => panic!("not an answer to a lease command: {other:?}"),
    }
}

fn found_refusal(refusal: &SetRefusal) -> Expect {
    match refusal {
        SetRefusal::Held { owner, gateway, epoch, .. } => Expect::Held(who(owner), gateway.0 as u8, epoch.0),
        SetRefusal::NotHeld { .. } => Expect::NotHeld,
        SetRefusal::StaleToken { .. } => Expect::Stale,
        SetRefusal::NotContinuable { .. } => Expect::Plain,
        SetRefusal::RequestEnded { .. } => Expect::Ended,
        SetRefusal::WrongEpoch { current, .. } => Expect::WrongEpoch(current.map(|epoch| epoch.0)),
        SetRefusal::SeqGap { expected, .. } => Expect::Gap(expected.0),
        other => panic!("not a refusal of a lease command: {other:?}"),
    }
}

/// Turns an ask into a command. Tokens and request ids are fresh (`index`) unless an old one is asked for.
fn command(model: &Model, ask: Ask, index: u64) -> Result<SetCommand, (u64, u64)> {
    let fresh = u128::from(index);
    let epoch_of = |back: Back| model.last(back).map_or(BASE, |grant| grant.epoch());
    let token_of = |back: Back| Token(model.last(back).map_or(0, |grant| grant.token));
    let request_of =
        |again: Option<Back>| RequestId(again.and_then(|back| model.last(back)).map_or(fresh, |grant| grant.request));
    Ok(match ask {
        Ask::Acquire { owner: o, gateway, again, how, plain } => {
            let last = model.last(0);
            let judged = |missed: usize| {
                last.map(|grant| {
                    let renewals = model.renewals(grant);
                    let renewed = renewals[renewals.len().saturating_sub(missed + 1)];
                    Judged { epoch: Epoch(grant.epoch()), renewed: LogIndex(renewed) }
                })
            };
            SetCommand::Acquire {
                owner: owner(o),
                gateway: MemberId(u64::from(gateway)),
                token: Token(fresh),
                ttl_ms: 3000,
                request: request_of(again),
                judged_expired: match how {
                    How::Politely | How::Forced => None,
                    How::JudgedNow => judged(0),
                    How::JudgedBefore(missed) => judged(usize::from(missed)),
                },
                force: matches!(how, How::Forced),
                plain,
                at_unix_ms: 0,
            }
        }
        Ask::Continue { owner: o, gateway, token, again } => SetCommand::Continue {
            owner: owner(o),
            gateway: MemberId(u64::from(gateway)),
            token: token_of(token),
            new_token: Token(fresh),
            request: request_of(again),
            at_unix_ms: 0,
        },
        Ask::Renew { epoch } => SetCommand::Renew { epoch: Epoch(epoch_of(epoch)) },
        Ask::Release { epoch, token } => {
            SetCommand::Release { epoch: Epoch(epoch_of(epoch)), token: token.map(token_of) }
        }
        Ask::Write { epoch, seq } => {
            let epoch = epoch_of(epoch);
            let done = model.written(epoch);
            let seq = match seq {
                Pick::Next => done + 1,
                Pick::Repeat(behind) => done.saturating_sub(u64::from(behind)),
                Pick::Skip(ahead) => done + 1 + u64::from(ahead),
                Pick::Zero => 0,
            };
            return Err((epoch, seq));
        }
    })
}

/// A write as it was applied, with who made it.
#[derive(Clone, Copy, Debug)]
struct AppliedWrite {
    grant: Grant,
    seq: u64,
}

fn record(model: &mut Model, index: u64, cmd: &SetCommand, outcome: &Expect) {
    match (cmd, outcome) {
        (SetCommand::Acquire { owner, gateway, token, request, plain, .. }, Expect::NewGrant) => {
            let (owner, gateway) = (who(owner), gateway.0 as u8);
            let granted = Happened::Granted {
                index,
                owner,
                gateway,
                token: token.0,
                from: None,
                request: request.0,
                plain: *plain,
            };
            model.history.push(granted);
        }
        (SetCommand::Continue { owner, gateway, token, new_token, request, .. }, Expect::NewGrant) => {
            model.history.push(Happened::Granted {
                index,
                owner: who(owner),
                gateway: gateway.0 as u8,
                token: new_token.0,
                from: Some(token.0),
                request: request.0,
                plain: false,
            });
        }
        (SetCommand::Renew { epoch }, Expect::Renewed) => {
            model.history.push(Happened::Used { index, epoch: epoch.0 });
        }
        (SetCommand::Release { epoch, .. }, Expect::Released) => {
            model.history.push(Happened::Released { epoch: epoch.0 });
        }
        _ => {}
    }
}

/// R2, R6 over the writes that were applied, whatever the model says about each answer.
fn check_writes(writes: &[AppliedWrite]) {
    for pair in writes.windows(2) {
        let (before, after) = (pair[0], pair[1]);
        if before.grant.epoch() == after.grant.epoch() {
            assert_eq!(after.seq, before.seq + 1, "R2: {after:?} after {before:?}");
            let same = (before.grant.owner, before.grant.gateway) == (after.grant.owner, after.grant.gateway);
            assert!(same, "R6: one epoch at two places: {after:?} after {before:?}");
        } else {
            assert!(before.grant.epoch() < after.grant.epoch(), "R6: {after:?} landed after {before:?}");
            assert_eq!(after.seq, 1, "R2: {after:?} begins an epoch");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn r2_r6_s3_like_a_list_of_what_happened(asks in vec(asks(), 1..120), reload_every in 1u64..20) {
        let mut model = Model::default();
        let mut state = SetState::new(Epoch(BASE));
        // A replica that was saved and loaded on the way, and answers the same bytes all along.
        let mut replica = state.clone();
        let mut writes = Vec::new();
        let mut dead_tokens = BTreeSet::new();
        for (index, ask) in (1u64..).zip(asks) {
            let id = LogId::new(1 + index / 40, index);
            match command(&model, ask, index) {
                Ok(cmd) => {
                    let expected = model.expect(&cmd);
                    let answer = state.apply(id, &cmd);
                    prop_assert_eq!(found(&answer, index), expected, "{:?} at {}", cmd, id);
                    prop_assert_eq!(&replica.apply(id, &cmd), &answer);
                    let outcome = found(&answer, index);
                    if let (SetCommand::Continue { token, .. }, Expect::NewGrant) = (&cmd, &outcome) {
                        prop_assert!(!dead_tokens.contains(&token.0), "S3: {:?} rose from the dead", token);
                    }
                    record(&mut model, index, &cmd, &outcome);
                    round_trip(&cmd);
                    round_trip(&answer);
                }
                Err((epoch, seq)) => {
                    let expected = model.expect_write(epoch, seq);
                    let admit = state.admit_write(id, Epoch(epoch), WriteSeq(seq));
                    prop_assert_eq!(&replica.admit_write(id, Epoch(epoch), WriteSeq(seq)), &admit);
                    let outcome = match &admit {
                        Admit::Apply => Expect::Applied,
                        Admit::Duplicate => Expect::Duplicate,
                        Admit::Refused(refusal) => found_refusal(refusal),
                    };
                    prop_assert_eq!(&outcome, &expected, "write {} of {} at {}", seq, epoch, id);
                    if outcome == Expect::Applied {
                        let grant = model.grants().into_iter().find(|grant| grant.epoch() == epoch).unwrap();
                        writes.push(AppliedWrite { grant, seq });
                        model.history.push(Happened::Wrote { epoch });
                    }
                    if matches!(outcome, Expect::Applied | Expect::Duplicate) {
                        model.history.push(Happened::Used { index, epoch });
                    }
                }
            }
            // Once a grant was used, no token handed out before it is good for anything, ever again.
            if let Some(last) = model.last(0).filter(|last| model.renewals(*last).len() > 1) {
                dead_tokens.extend(model.grants().iter().map(|grant| grant.token).filter(|token| *token != last.token));
            }
            state.self_check();
            if index % reload_every == 0 {
                replica = postcard::from_bytes(&postcard::to_stdvec(&replica).unwrap()).unwrap();
            }
        }
        prop_assert_eq!(postcard::to_stdvec(&state).unwrap(), postcard::to_stdvec(&replica).unwrap());
        check_writes(&writes);
    }
}

fn round_trip<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
    let bytes = postcard::to_stdvec(value).unwrap();
    assert_eq!(&postcard::from_bytes::<T>(&bytes).unwrap(), value);
}

/// Work on checkpoints, among other entries.
#[derive(Clone, Copy, Debug)]
enum Step {
    NewLeader,
    Begin { own_term: bool },
    Segment { object: u8 },
    End { begin: Back, own_term: bool },
    Volume { name: u8 },
    Snapshot { name: u8 },
    Unsnapshot { name: u8 },
    Retire { back: Back, last: bool },
    Deleted,
    Acquire { owner: u8, force: bool },
    Write,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::NewLeader),
        3 => prop::bool::weighted(0.9).prop_map(|own_term| Step::Begin { own_term }),
        4 => (0u8..6).prop_map(|object| Step::Segment { object }),
        4 => (back(), prop::bool::weighted(0.9)).prop_map(|(begin, own_term)| Step::End { begin, own_term }),
        1 => (0u8..20).prop_map(|name| Step::Volume { name }),
        2 => (0u8..3).prop_map(|name| Step::Snapshot { name }),
        2 => (0u8..3).prop_map(|name| Step::Unsnapshot { name }),
        2 => (back(), any::<bool>()).prop_map(|(back, last)| Step::Retire { back, last }),
        1 => Just(Step::Deleted),
        1 => (0u8..2, any::<bool>()).prop_map(|(owner, force)| Step::Acquire { owner, force }),
        4 => Just(Step::Write),
    ]
}

fn object(number: u8) -> ObjectId {
    ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: u128::from(number) }
}

#[derive(Clone, Debug)]
enum Entry {
    Command(SetCommand),
    Write(Epoch, WriteSeq),
}

fn apply(state: &mut SetState, id: LogId, entry: &Entry) -> Option<SetAnswer> {
    match entry {
        Entry::Command(cmd) => Some(state.apply(id, cmd)),
        Entry::Write(epoch, seq) => {
            state.admit_write(id, *epoch, *seq);
            None
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The snapshot F(copy, root) at X, and a replay of what follows: from the end's entry on, the same
    /// answer and the same state at every index.
    #[test]
    fn r4_replay_from_a_checkpoint_is_the_straight_run(steps in vec(steps(), 1..100)) {
        let mut state = SetState::new(Epoch(0));
        let (mut term, mut begins) = (1, Vec::new());
        let mut copy = None;
        let mut log: Vec<(LogId, Entry)> = Vec::new();
        let mut straight: Vec<(SetState, Option<SetAnswer>)> = Vec::new();
        let mut snapshots: Vec<(SetState, LogId, usize)> = Vec::new();
        for (index, step) in (1u64..).zip(steps) {
            let old_term = Term(term - 1);
            let in_term = |own: bool| if own { Term(term) } else { old_term };
            let cmd = match step {
                Step::NewLeader => {
                    term += 1;
                    Entry::Write(Epoch(0), WriteSeq(0))
                }
                Step::Begin { own_term } => Entry::Command(SetCommand::CheckpointBegin { term: in_term(own_term) }),
                Step::Segment { object: number } => Entry::Command(SetCommand::SegmentCommitted {
                    term: Term(term),
                    object: object(number),
                    stored_bytes: 1,
                    raw_bytes: 2,
                }),
                Step::End { begin, own_term } => Entry::Command(SetCommand::CheckpointEnd {
                    term: in_term(own_term),
                    begin: begins.iter().rev().nth(usize::from(begin)).copied().unwrap_or_default(),
                    root: RootRef { object: object(index as u8), bytes: index },
                }),
                Step::Volume { name } => Entry::Command(SetCommand::CreateVolume {
                    name: Name::new(format!("v{name}")).unwrap(),
                    size: Sectors(8),
                }),
                Step::Snapshot { name } => Entry::Command(SetCommand::SnapshotCreate {
                    name: Name::new(format!("s{name}")).unwrap(),
                    request: RequestId(u128::from(index)),
                    at_unix_ms: index,
                }),
                Step::Unsnapshot { name } => {
                    Entry::Command(SetCommand::SnapshotDelete { name: Name::new(format!("s{name}")).unwrap() })
                }
                // As a leader would: of a root that it sees dropped; some of its objects are in use.
                Step::Retire { back, last } => {
                    let root = state.dropped.keys().rev().nth(usize::from(back)).copied().unwrap_or(object(0));
                    let segment =
                        |random| StoredObject { kind: StoredKind::Segment, object: ObjectId { random, ..object(0) } };
                    let in_use = state.kept_roots().first().map(|kept| kept.object.random).filter(|_| back > 1);
                    let objects = in_use.into_iter().chain([1000 + u128::from(index)]).map(segment).collect();
                    Entry::Command(SetCommand::Retire { term: Term(term), of: RetireOf::Root { root, last }, objects })
                }
                Step::Deleted => Entry::Command(SetCommand::Deleted {
                    term: Term(term),
                    objects: state.retired.keys().take(2).copied().collect(),
                }),
                Step::Acquire { owner: number, force } => Entry::Command(SetCommand::Acquire {
                    owner: owner(number),
                    gateway: MemberId(1),
                    token: Token(u128::from(index)),
                    ttl_ms: 3000,
                    request: RequestId(u128::from(index)),
                    judged_expired: None,
                    force,
                    plain: false,
                    at_unix_ms: 0,
                }),
                Step::Write => Entry::Write(state.epoch, WriteSeq(state.last_seq.0 + 1)),
            };
            let id = LogId::new(term, index);
            let answer = apply(&mut state, id, &cmd);
            if let Step::Begin { own_term: false } | Step::End { own_term: false, .. } = step {
                let refusal = SetRefusal::WrongTerm { found: old_term, expected: Term(term) };
                prop_assert_eq!(answer.as_ref(), Some(&SetAnswer::Refused(refusal)));
            }
            match answer {
                Some(SetAnswer::CheckpointBegun { at }) => {
                    begins.push(at);
                    copy = Some(state.clone());
                }
                Some(SetAnswer::CheckpointEnded) => {
                    let done = state.checkpoint.unwrap();
                    let snapshot = SetState::after_checkpoint(copy.as_ref().unwrap(), done.root, done.upto);
                    snapshots.push((snapshot, done.upto, log.len()));
                }
                _ => {}
            }
            state.self_check();
            log.push((id, cmd));
            straight.push((state.clone(), answer));
        }
        for (snapshot, upto, end) in snapshots {
            let mut replayed = snapshot;
            for (place, (id, entry)) in log.iter().enumerate().filter(|(_, (id, _))| id.index > upto.index) {
                let answer = apply(&mut replayed, *id, entry);
                replayed.self_check();
                if place >= end {
                    prop_assert_eq!(&answer, &straight[place].1, "at {}", id);
                    prop_assert_eq!(&replayed, &straight[place].0, "at {} from the snapshot at {}", id, upto);
                }
            }
        }
    }
}
