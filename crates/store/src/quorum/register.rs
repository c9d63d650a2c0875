//! The rules of the head over several stores: one register that is swapped, made of n that are. No I/O, no clock, no chance.
//!
//! It is CASPaxos (Rystsov, "CASPaxos: Replicated State Machines without logs", arXiv 1802.07000) whose acceptors are objects: each store has one
//! [`Slot`], and each step of an acceptor is a conditional PUT of its slot on the version that was read. So no step is lost or done twice, whoever
//! else is at work there.
//!
//! ```text
//!   1  promise(b) at w stores, b above every ballot seen ──▶ the value of the highest accepted ballot among them is what the register holds
//!   2  it is what the caller expected: accept(b, new) ─▶ w stores did: done       else: refused, nothing was written
//!      it is `new` already (R12): accept(b, new) as well, so that it is decided
//!   a look: w stores with the same accepted ballot: that is the value, decided; nothing is written. Otherwise 1 and 2 with what was found
//! ```
//!
//! Q1  w > n / 2: any two sets of w stores share one. What w stores accepted under one ballot, every later ballot that gets w promises has seen.
//! Q2  A store whose slot is gone or spoilt has forgotten what it said: it takes part in no round. It gets a slot again only by [`mended`]: what all
//!     the others show to be decided, under a promise far above every one that it can have forgotten.
//! Q3  Slots are laid out, without a value, only while every one of the n stores has answered and none has a value.

use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};

/// Largest value in bytes. A head has at most 512 KiB.
pub(super) const VALUE_BYTES_MAX: usize = 1 << 20;

const MAGIC: &[u8; 4] = b"HFR\x01";
const HEAD_BYTES: usize = 4 + 4 + 24 + 24 + 16 + 4;
const SUM_BYTES: usize = 16;

/// A round's number, drawn above every one seen; the token makes it one writer's. Zero is below all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ballot {
    /// Grows.
    pub number: u64,
    /// Whose, drawn anew for each round.
    pub token: u128,
}

impl Ballot {
    /// The first ballot of a writer above all of `seen`. `None` at the end of the numbers: a store that shows such a one is no store of ours.
    pub fn above(seen: impl Iterator<Item = Ballot>, token: u128) -> Option<Self> {
        let number = seen.map(|ballot| ballot.number).max().unwrap_or(0).checked_add(1)?;
        Some(Self { number, token })
    }
}

/// What a register's value is to these rules: bytes for stores, numbers for the model.
pub(super) trait Value: Clone + PartialEq {}
impl<T: Clone + PartialEq> Value for T {}

/// What one store has of the register.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slot<V> {
    /// Nothing below is accepted here any more.
    pub promised: Ballot,
    /// The last that was.
    pub accepted: Option<(Ballot, V)>,
}

impl<V> Default for Slot<V> {
    fn default() -> Self {
        Self { promised: Ballot::default(), accepted: None }
    }
}

impl<V: Value> Slot<V> {
    /// The slot after promising `ballot`; the higher promise where it cannot.
    pub fn promise(&self, ballot: Ballot) -> Result<Self, Ballot> {
        if ballot < self.promised {
            return Err(self.promised);
        }
        Ok(Self { promised: ballot, accepted: self.accepted.clone() })
    }

    /// The slot after accepting; the higher promise where it cannot.
    pub fn accept(&self, ballot: Ballot, value: V) -> Result<Self, Ballot> {
        if ballot < self.promised {
            return Err(self.promised);
        }
        Ok(Self { promised: ballot, accepted: Some((ballot, value)) })
    }

    /// The highest ballot that it speaks of.
    pub fn highest(&self) -> Ballot {
        self.promised.max(self.accepted.as_ref().map_or(Ballot::default(), |(ballot, _)| *ballot))
    }
}

/// What a store answered when it was asked for its slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Seen<V> {
    /// Its slot.
    Slot(Slot<V>),
    /// It has none.
    Empty,
    /// No answer, or one that cannot be used.
    Silent,
}

/// What reading all stores says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look<V> {
    /// Decided, and nothing higher was decided before the first of these answers was asked for.
    Decided(V),
    /// There is no value: w stores say so, and none that answered has one.
    Nothing,
    /// A round must find out, and decide it.
    Undecided,
    /// Too few have a slot to say.
    TooFew,
}

/// Judges what the stores of a register with write quorum `w` answered.
pub(super) fn judge_look<V: Value>(seen: &[Seen<V>], w: usize) -> Look<V> {
    let slots = || seen.iter().filter_map(|seen| if let Seen::Slot(slot) = seen { Some(slot) } else { None });
    let accepted = || slots().filter_map(|slot| slot.accepted.as_ref());
    let Some((ballot, value)) = accepted().max_by_key(|(ballot, _)| *ballot) else {
        let without = seen.iter().filter(|seen| !matches!(seen, Seen::Silent)).count();
        return if without >= w { Look::Nothing } else { Look::TooFew };
    };
    if accepted().filter(|(other, _)| other == ballot).count() >= w {
        return Look::Decided(value.clone());
    }
    if slots().count() >= w { Look::Undecided } else { Look::TooFew }
}

/// Q3: whether slots may be laid out where there are none.
pub(super) fn may_lay_out<V>(seen: &[Seen<V>]) -> bool {
    let blank = |seen: &Seen<V>| matches!(seen, Seen::Empty) || matches!(seen, Seen::Slot(Slot { accepted: None, .. }));
    seen.iter().all(blank) && seen.iter().any(|seen| matches!(seen, Seen::Empty))
}

/// What the register holds, as `promises` for one ballot say: the slots as they were promised in. `None` while they are too few (Q1, Q2).
pub(super) fn promised_value<V: Value>(promises: &[Option<Slot<V>>], w: usize) -> Option<Option<V>> {
    let slots = promises.iter().flatten();
    if slots.clone().count() < w {
        return None;
    }
    let highest = slots.filter_map(|slot| slot.accepted.as_ref()).max_by_key(|(ballot, _)| *ballot);
    Some(highest.map(|(_, value)| value.clone()))
}

/// How far above every ballot that is seen a mended slot promises: no round that is under way reaches it.
const MENDED_ABOVE: u64 = 1 << 20;

/// Q2: the slot to write where there is none or a spoilt one. `others`: what all the other stores answered, asked after it was found missing. `None`
/// where one of them did not answer, has none either, or they do not show what is decided.
pub(super) fn mended<V: Value>(others: &[Seen<V>], w: usize) -> Option<Slot<V>> {
    let slots: Option<Vec<&Slot<V>>> =
        others.iter().map(|seen| if let Seen::Slot(slot) = seen { Some(slot) } else { None }).collect();
    let slots = slots?;
    let Look::Decided(_) = judge_look(others, w) else { return None };
    let accepted = slots.iter().filter_map(|slot| slot.accepted.as_ref()).max_by_key(|(ballot, _)| *ballot)?;
    let highest = slots.iter().map(|slot| slot.highest().number).max()?;
    let promised = Ballot { number: highest.checked_add(MENDED_ABOVE)?, token: 0 };
    Some(Slot { promised, accepted: Some(accepted.clone()) })
}

/// What a round is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wish<E, V> {
    /// Replace what is there, if it is `expected`, by `value`.
    Swap {
        /// What the caller has seen.
        expected: E,
        /// What is to be there.
        value: V,
    },
    /// Let what is there be decided.
    Settle,
}

/// What to do once w stores have promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step<V> {
    /// Have this accepted; once w did, the wish is done.
    Accept(V),
    /// There is no value, and none is wished.
    Nothing,
    /// Something else is there. `sent`: an accept of this wish was sent before, and may have been done and replaced since (R12).
    Refused {
        /// See above.
        sent: bool,
    },
}

/// Decides step 2. `sent`: an accept of this wish has been sent in an earlier round.
pub(super) fn next_step<E, V: Value>(
    wish: &Wish<E, V>,
    current: Option<V>,
    is: impl Fn(&E, Option<&V>) -> bool,
    sent: bool,
) -> Step<V> {
    match wish {
        Wish::Settle => current.map_or(Step::Nothing, Step::Accept),
        // R12: ours, of a round whose outcome was not known, or of an earlier call with the same bytes.
        Wish::Swap { value, .. } if current.as_ref() == Some(value) => Step::Accept(value.clone()),
        Wish::Swap { expected, value } if is(expected, current.as_ref()) => Step::Accept(value.clone()),
        Wish::Swap { .. } => Step::Refused { sent },
    }
}

/// Which store of how many a slot belongs to: two URLs that lead to the same place, or another order, are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// From 0.
    pub index: u8,
    /// Stores.
    pub n: u8,
    /// Write quorum.
    pub w: u8,
}

/// An object is no slot of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BadSlot {
    /// Another store's seat, or of another number of stores.
    Seat(Seat),
    /// No slot at all: perhaps the head of a set that has this one store.
    Foreign,
    /// A slot, damaged (R9).
    Damaged,
}

/// Writes a slot as an object. `token` is drawn anew for each: no two have the same bytes, as a conditional PUT wants it.
pub(super) fn encode(seat: Seat, slot: &Slot<Bytes>, token: u128) -> Bytes {
    let (accepted, value) = match &slot.accepted {
        Some((ballot, value)) => (*ballot, value.as_ref()),
        None => (Ballot::default(), &[][..]),
    };
    let mut out = BytesMut::with_capacity(HEAD_BYTES + value.len() + SUM_BYTES);
    out.put_slice(MAGIC);
    out.put_slice(&[seat.index, seat.n, seat.w, u8::from(slot.accepted.is_some())]);
    for ballot in [slot.promised, accepted] {
        out.put_u64_le(ballot.number);
        out.put_u128_le(ballot.token);
    }
    out.put_u128_le(token);
    out.put_u32_le(u32::try_from(value.len()).unwrap_or(u32::MAX));
    out.put_slice(value);
    let sum = Sha256::digest(&out);
    out.put_slice(&sum[..SUM_BYTES]);
    out.freeze()
}

/// Whose slot an object says that it is, without a check. `None` for anything else.
pub(super) fn seat_of(object: &[u8]) -> Option<Seat> {
    let rest = object.strip_prefix(MAGIC)?;
    Some(Seat { index: *rest.first()?, n: *rest.get(1)?, w: *rest.get(2)? })
}

/// Reads what [`encode`] wrote for `seat`.
pub(super) fn decode(seat: Seat, object: &Bytes) -> Result<Slot<Bytes>, BadSlot> {
    if !object.starts_with(MAGIC) {
        return Err(BadSlot::Foreign);
    }
    let body_bytes = object.len().checked_sub(SUM_BYTES).filter(|len| *len >= HEAD_BYTES).ok_or(BadSlot::Damaged)?;
    let (body, sum) = object.split_at(body_bytes);
    if Sha256::digest(body)[..SUM_BYTES] != *sum {
        return Err(BadSlot::Damaged);
    }
    let found = Seat { index: body[4], n: body[5], w: body[6] };
    if found != seat {
        return Err(BadSlot::Seat(found));
    }
    let number = |at: usize| body[at..at + 8].iter().rev().fold(0_u64, |n, byte| n << 8 | u64::from(*byte));
    let token = |at: usize| body[at..at + 16].iter().rev().fold(0_u128, |n, byte| n << 8 | u128::from(*byte));
    let ballot = |at: usize| Ballot { number: number(at), token: token(at + 8) };
    let len = body[72..76].iter().rev().fold(0_usize, |n, byte| n << 8 | usize::from(*byte));
    if HEAD_BYTES + len != body_bytes || len > VALUE_BYTES_MAX {
        return Err(BadSlot::Damaged);
    }
    let accepted = match body[7] {
        0 if len == 0 => None,
        1 => Some((ballot(32), object.slice(HEAD_BYTES..body_bytes))),
        _ => return Err(BadSlot::Damaged),
    };
    Ok(Slot { promised: ballot(8), accepted })
}

#[cfg(test)]
#[path = "register_tests.rs"]
mod tests;
