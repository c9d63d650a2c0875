//! R2 and R6 against a simple model: a list of all events, searched from its end for each question.

use super::{Admit, EARLIER_TOKENS_MAX, Judged, REQUESTS_REMEMBERED, SetAnswer, SetCommand, SetRefusal, SetState};
use holdfast_types::{Epoch, LogId, LogIndex, MemberId, Owner, RequestId, Token, WriteSeq};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;

const BASE: u64 = 5_000;

/// Requests, as words that the model's history turns into numbers.
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
pub(super) type Back = u8;

#[derive(Clone, Copy, Debug)]
enum Pick {
    Next,
    Repeat(u8),
    Skip(u8),
    Zero,
}

pub(super) fn back() -> impl Strategy<Value = Back> {
    prop_oneof![8 => Just(0u8), 3 => Just(1u8), 1 => 2u8..5]
}

/// Mostly the same one, so that histories get far.
fn who_asks() -> impl Strategy<Value = u8> {
    prop_oneof![6 => Just(0u8), 1 => Just(1u8), 1 => Just(2u8)]
}

/// A copy of the request that was granted this many grants ago; mostly none, but a new request.
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

/// All events, in log order.
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

/// The expected answer.
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
        token == grant.token || (unused && self.earlier(grant).contains(&token))
    }

    /// Tokens of grants before this one that were not overtaken: since the last that was used or shown, by history.
    fn earlier(&self, grant: Grant) -> Vec<u128> {
        let mut earlier = Vec::new();
        let mut before: Option<Grant> = None;
        for next in self.grants() {
            match (next.from, before) {
                (Some(token), Some(before)) => {
                    if self.renewals(before).len() > 1 {
                        earlier.clear();
                    }
                    earlier.push(before.token);
                    let shown = earlier.iter().position(|earlier| *earlier == token).unwrap();
                    earlier.drain(..shown);
                }
                _ => earlier.clear(),
            }
            if next.index == grant.index {
                break;
            }
            before = Some(next);
        }
        earlier
    }

    /// Whether a further grant would have more unused tokens before it than are remembered, for a caller with `token`.
    fn is_full(&self, grant: Grant, token: u128) -> bool {
        let unused = if self.renewals(grant).len() == 1 { self.earlier(grant) } else { Vec::new() };
        let kept = unused.iter().skip_while(|earlier| **earlier != token).count();
        kept + 1 > EARLIER_TOKENS_MAX
    }

    /// R12: each of the last granted requests was granted once and for all.
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
                Some(grant) if self.ended(request.0) || self.is_full(grant, token.0) => Expect::OldGrant(grant.index),
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

pub(super) fn owner(number: u8) -> Owner {
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

/// Turns a request into a command. Tokens and request ids are fresh (`index`) unless an old one is chosen.
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

/// An applied write and its author.
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

/// R2, R6 over the applied writes, independent of the model.
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
        // A replica that was saved and loaded on the way must give the same answers.
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
                        prop_assert!(!dead_tokens.contains(&token.0), "SET-S3: token {:?} is valid again", token);
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
            // After a grant was used, no earlier token is ever valid again.
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
