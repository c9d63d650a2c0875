//! The rules of the head over several stores: one register with compare-and-swap, built from n registers. No I/O, no
//! clock, no randomness.
//!
//! This is CASPaxos (Rystsov, "CASPaxos: Replicated State Machines without logs", arXiv 1802.07000) with objects as
//! acceptors. Each store has one [`RegisterEntry`], and each step of an acceptor is a conditional PUT of its entry on
//! the version that was read. So no step is lost or done twice, even with concurrent writers.
//!
//! ```text
//!   1  promise(b) at w stores, b above every ballot seen ──▶ the value of the highest accepted ballot among them is what the register holds
//!   2  it is what the caller expected: accept(b, new) ─▶ w stores did: done       else: refused, nothing was written
//!      it is `new` already (R12): accept(b, new) as well, so that it is decided
//!   a look: w stores with the same accepted ballot: that is the value, decided; nothing is written. Otherwise 1 and 2 with what was found
//! ```
//!
//! QUORUM-Q1  w > n / 2: any two sets of w stores share a store. So every later ballot that gets w promises sees what w
//!     stores accepted under one ballot.
//! QUORUM-Q2  A store whose entry is gone or damaged has forgotten its promises and votes. It takes part in no round,
//!     and *restarts* ([`RegisterEntry::restarts`]) in three steps:
//!     1. A mark with the number of that restart is put in place of the entry, as a conditional PUT on nothing (or on
//!        the damaged object). Everything forgotten was said before that.
//!     2. A round with a ballot of its own, begun after that, at *every* store that has an entry, w or more; the others
//!        must be marked too. All promise, then all accept the value of the highest accepted ballot among them, and
//!        note the restart.
//!     3. The new entry has that ballot and value, and replaces exactly the mark of step 1.
//!     A mark may arrive late, when its restart is past; two restarts of one number could not be told apart. So a mark
//!     whose restart is not above the one in the entries is replaced by a mark of the next one, as a conditional PUT on
//!     it ([`mark_for`]).
//!     Forgotten votes have a lower ballot: their proposer had promises at other stores before. So nothing that they
//!     helped to decide is unseen.
//!     A forgotten promise counts only beside others. Those made after step 2 carry the new restart, and then the
//!     forgotten one no longer counts ([`promised_value`]); those made before step 2 with a higher ballot make step 2
//!     fail, those with a lower ballot end in it.
//! QUORUM-Q3  Entries are created, without a value, only while all n stores have answered, none has a value, and fewer
//!     than w have an entry. The first round begins only when all n have one. So a store that lost its entry before
//!     there was a value is told from one that never had it; QUORUM-Q2 applies to the former.

use crate::several::STORES_MAX;
use bytes::{BufMut, Bytes, BytesMut};
use sha2::{Digest, Sha256};

/// Largest value in bytes. A head has at most 512 KiB.
pub(super) const VALUE_BYTES_MAX: usize = 1 << 20;

const MAGIC: &[u8; 4] = b"HFR\x01";
const HEAD_BYTES: usize = 4 + 4 + 24 + 24 + 16 + 4;
pub(super) const SUM_BYTES: usize = 16;

/// Number of a round, higher than every one seen; the token makes it unique to one writer. Zero is the lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ballot {
    /// Grows.
    pub number: u64,
    /// The writer's token, drawn for each round.
    pub token: u128,
}

impl Ballot {
    /// The first ballot of a writer above all of `seen`. `None` at the highest number: none of our stores shows such a
    /// ballot.
    pub fn above(seen: impl Iterator<Item = Ballot>, token: u128) -> Option<Self> {
        let number = seen.map(|ballot| ballot.number).max().unwrap_or(0).checked_add(1)?;
        Some(Self { number, token })
    }
}

/// The value of a register: bytes for stores, numbers for the model.
pub(super) trait Value: Clone + PartialEq {}
impl<T: Clone + PartialEq> Value for T {}

/// How often each store, by its index, has lost its entry and begun again.
pub(super) type Restarts = [u32; STORES_MAX];

/// The later of both known restarts, for each store.
fn latest(a: &Restarts, b: &Restarts) -> Restarts {
    std::array::from_fn(|at| a[at].max(b[at]))
}

/// The restarts of all stores, as far as their answers tell.
pub(super) fn restarts_of<V>(seen: &[Seen<V>]) -> Restarts {
    seen.iter().enumerate().fold(Restarts::default(), |restarts, (at, seen)| match seen {
        Seen::Entry(entry) => latest(&restarts, &entry.restarts),
        Seen::Marked(restart) => std::array::from_fn(|n| if n == at { restarts[n].max(*restart) } else { restarts[n] }),
        Seen::Empty | Seen::Silent => restarts,
    })
}

/// One store's part of the register.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RegisterEntry<V> {
    /// Nothing with a lower ballot is accepted here any more.
    pub promised: Ballot,
    /// The last accepted ballot and value.
    pub accepted: Option<(Ballot, V)>,
    /// The store's own number is exact; those of the others are as last told (QUORUM-Q2).
    pub restarts: Restarts,
}

impl<V> Default for RegisterEntry<V> {
    fn default() -> Self {
        Self { promised: Ballot::default(), accepted: None, restarts: Restarts::default() }
    }
}

impl<V: Value> RegisterEntry<V> {
    /// The entry after the promise of `ballot`; the higher promise if it cannot promise.
    pub fn promise(&self, ballot: Ballot) -> Result<Self, Ballot> {
        if ballot < self.promised {
            return Err(self.promised);
        }
        Ok(Self { promised: ballot, accepted: self.accepted.clone(), restarts: self.restarts })
    }

    /// The entry after accepting; the higher promise if it cannot accept. `value`: none if an entry is mended before
    /// there is a value. `restarts`: noted here from now on.
    pub fn accept(&self, ballot: Ballot, value: Option<V>, restarts: &Restarts) -> Result<Self, Ballot> {
        if ballot < self.promised {
            return Err(self.promised);
        }
        let accepted = value.map(|value| (ballot, value)).or_else(|| self.accepted.clone());
        Ok(Self { promised: ballot, accepted, restarts: latest(&self.restarts, restarts) })
    }

    /// The highest ballot in the entry.
    pub fn highest(&self) -> Ballot {
        self.promised.max(self.accepted.as_ref().map_or(Ballot::default(), |(ballot, _)| *ballot))
    }
}

/// The answer of a store when asked for its entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Seen<V> {
    /// Its entry.
    Entry(RegisterEntry<V>),
    /// It has none.
    Empty,
    /// It has lost its entry and will begin with this restart (QUORUM-Q2).
    Marked(u32),
    /// No answer, or an unusable one.
    Silent,
}

/// The result of reading all stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Look<V> {
    /// Decided, and nothing higher was decided before the first of these answers was requested.
    Decided(V),
    /// There is no value: w stores report that, and none that answered has one.
    Nothing,
    /// A round must find it out, and decide it.
    Undecided,
    /// Too few stores have an entry.
    TooFew,
}

/// Judges the answers of the stores of a register with write quorum `w`.
pub(super) fn judge_look<V: Value>(seen: &[Seen<V>], w: usize) -> Look<V> {
    let entries = || seen.iter().filter_map(|seen| if let Seen::Entry(entry) = seen { Some(entry) } else { None });
    let accepted = || entries().filter_map(|entry| entry.accepted.as_ref());
    let Some((ballot, value)) = accepted().max_by_key(|(ballot, _)| *ballot) else {
        // A store that lost its entry tells nothing: if another one has only not received the value yet, the value may
        // be at a store that did not answer. But w stores without an entry are more than can be lost, and so are n
        // stores without a value.
        let empty = seen.iter().filter(|seen| matches!(seen, Seen::Empty)).count();
        let all = !seen.iter().any(|seen| matches!(seen, Seen::Silent));
        return if all || entries().count() >= w || empty >= w { Look::Nothing } else { Look::TooFew };
    };
    if accepted().filter(|(other, _)| other == ballot).count() >= w {
        return Look::Decided(value.clone());
    }
    if entries().count() >= w { Look::Undecided } else { Look::TooFew }
}

/// QUORUM-Q3: whether entries may be created at the stores without one.
pub(super) fn may_lay_out<V>(seen: &[Seen<V>], w: usize) -> bool {
    let blank = |seen: &Seen<V>| match seen {
        Seen::Entry(entry) => entry.accepted.is_none(),
        Seen::Empty | Seen::Marked(_) => true,
        Seen::Silent => false,
    };
    seen.iter().all(blank) && seen.iter().filter(|seen| matches!(seen, Seen::Entry(_))).count() < w
}

/// QUORUM-Q3: whether a round that writes a new value may begin.
pub(super) fn may_begin<V>(seen: &[Seen<V>], w: usize) -> bool {
    let entries = || seen.iter().filter_map(|seen| if let Seen::Entry(entry) = seen { Some(entry) } else { None });
    entries().count() >= w && (entries().count() == seen.len() || entries().any(|entry| entry.accepted.is_some()))
}

/// The result of the promises for one ballot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Promised<V> {
    /// The register's value.
    pub value: Option<V>,
    /// The restarts of all stores, as far as these know.
    pub restarts: Restarts,
}

/// The register's value according to `promises` for one ballot: the entries of the promises, by store. `None` while
/// fewer than `needed` promises count (QUORUM-Q1). A promise does not count if another store knows that its store has
/// restarted since (QUORUM-Q2).
pub(super) fn promised_value<V: Value>(promises: &[Option<RegisterEntry<V>>], needed: usize) -> Option<Promised<V>> {
    let all = promises.iter().flatten();
    let restarts = all.fold(Restarts::default(), |restarts, entry| latest(&restarts, &entry.restarts));
    let counts = |(at, entry): (usize, &Option<RegisterEntry<V>>)| {
        entry.clone().filter(|entry| entry.restarts[at] == restarts[at])
    };
    let entries: Vec<RegisterEntry<V>> = promises.iter().enumerate().filter_map(counts).collect();
    if entries.len() < needed {
        return None;
    }
    let highest = entries.into_iter().filter_map(|entry| entry.accepted).max_by_key(|(ballot, _)| *ballot);
    Some(Promised { value: highest.map(|(_, value)| value), restarts })
}

/// QUORUM-Q2: the restart that a store without an entry must begin, according to the entries of the others. `None` if
/// some store does not answer, or fewer than w have an entry: it could not be mended.
pub(super) fn next_restart<V>(seen: &[Seen<V>], at: usize, w: usize) -> Option<u32> {
    let entries = seen.iter().filter_map(|seen| if let Seen::Entry(entry) = seen { Some(entry) } else { None });
    let others = seen.iter().enumerate().filter(|(other, _)| *other != at);
    if others.clone().any(|(_, seen)| matches!(seen, Seen::Silent)) || entries.clone().count() < w {
        return None;
    }
    entries.map(|entry| entry.restarts[at]).max()?.checked_add(1)
}

/// QUORUM-Q2: the restart in a mark to be put at store `at`. If there is a mark, it is replaced only if its restart has
/// begun already, according to the entries. Then a mender was interrupted between steps 2 and 3, or the mark arrived
/// late, after the store was mended and lost again: the mark is no longer valid.
pub(super) fn mark_for<V>(seen: &[Seen<V>], at: usize, w: usize) -> Option<u32> {
    let restart = next_restart(seen, at, w)?;
    match seen.get(at)? {
        Seen::Empty => Some(restart),
        Seen::Marked(marked) => Some(restart).filter(|restart| restart > marked),
        Seen::Entry(_) | Seen::Silent => None,
    }
}

/// QUORUM-Q2: whether store `at` shows an entry of an earlier restart than others know for it: it was set back to an
/// earlier state. Its promises no longer count ([`promised_value`]), and it is mended like one that lost its entry.
pub(super) fn outlived<V>(seen: &[Seen<V>], at: usize) -> bool {
    let restarts = |seen: &Seen<V>| if let Seen::Entry(entry) = seen { Some(entry.restarts[at]) } else { None };
    let Some(own) = seen.get(at).and_then(restarts) else { return false };
    seen.iter().filter_map(restarts).any(|known| known > own)
}

/// QUORUM-Q2: the store to mend, and its restart, if every store has an entry or is marked, and w have an entry.
pub(super) fn may_mend<V>(seen: &[Seen<V>], w: usize) -> Option<(usize, u32)> {
    let entries = seen.iter().filter(|seen| matches!(seen, Seen::Entry(_))).count();
    let known = seen.iter().all(|seen| matches!(seen, Seen::Entry(_) | Seen::Marked(_)));
    let mut marked = seen.iter().enumerate();
    let first =
        marked.find_map(|(at, seen)| if let Seen::Marked(restart) = seen { Some((at, *restart)) } else { None });
    first.filter(|_| known && entries >= w)
}

/// QUORUM-Q2: the restarts after store `at` begins this one. `None` if it is known to have begun it or a later one:
/// no restart is begun twice, because statements of the first would count in the second. The mark is no longer valid.
pub(super) fn begun_anew(restarts: &Restarts, at: usize, restart: u32) -> Option<Restarts> {
    let mut anew = *restarts;
    anew[at] = restart;
    (restarts[at] < restart).then_some(anew)
}

/// QUORUM-Q2: the entry with which a store restarts, after every other store has accepted the same.
pub(super) fn mended<V: Value>(ballot: Ballot, value: Option<V>, restarts: Restarts) -> RegisterEntry<V> {
    RegisterEntry { promised: ballot, accepted: value.map(|value| (ballot, value)), restarts }
}

/// The purpose of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wish<E, V> {
    /// Replace the present value, if it is `expected`, by `value`.
    Swap {
        /// The value that the caller has seen.
        expected: E,
        /// The new value.
        value: V,
    },
    /// Decide the present value.
    Settle,
}

/// The next step after w stores have promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step<V> {
    /// Send this value to be accepted; once w stores have done so, the round has reached its purpose.
    Accept(V),
    /// There is no value, and none was requested.
    Nothing,
    /// There is another value. `sent`: an accept of this value was sent before, and may have been done and replaced
    /// since (R12).
    Refused {
        /// See above.
        sent: bool,
    },
}

impl<V> Step<V> {
    /// The same with the value converted by `to`.
    pub fn map<T>(self, to: impl FnOnce(V) -> T) -> Step<T> {
        match self {
            Step::Accept(value) => Step::Accept(to(value)),
            Step::Nothing => Step::Nothing,
            Step::Refused { sent } => Step::Refused { sent },
        }
    }
}

/// Decides step 2. `sent`: an accept for the same purpose was sent in an earlier round.
pub(super) fn next_step<E, V: Value>(
    wish: &Wish<E, V>,
    current: Option<V>,
    is: impl Fn(&E, Option<&V>) -> bool,
    sent: bool,
) -> Step<V> {
    match wish {
        Wish::Settle => current.map_or(Step::Nothing, Step::Accept),
        // R12: our own value, from a round with an unknown outcome, or from an earlier call with the same bytes.
        Wish::Swap { value, .. } if current.as_ref() == Some(value) => Step::Accept(value.clone()),
        Wish::Swap { expected, value } if is(expected, current.as_ref()) => Step::Accept(value.clone()),
        Wish::Swap { .. } => Step::Refused { sent },
    }
}

/// The store that an entry belongs to: detects two URLs of the same place, or another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seat {
    /// Index, from 0.
    pub index: u8,
    /// Number of stores.
    pub n: u8,
    /// Write quorum.
    pub w: u8,
}

/// An object is not an entry of this store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BadEntry {
    /// Another store's seat, or with another number of stores.
    Seat(Seat),
    /// Not an entry: perhaps the head of a set that has only this store.
    Foreign,
    /// A damaged entry (R9).
    Damaged,
}

/// An object in an entry's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Stored {
    /// An entry.
    Entry(RegisterEntry<Bytes>),
    /// The mark of an entry that was lost; the store will begin with this restart (QUORUM-Q2).
    Mark(u32),
}

/// Bits of the flags.
const HAS_VALUE: u8 = 1;
const HAS_RESTARTS: u8 = 2;
const IS_MARK: u8 = 4;

/// Encodes an entry as an object. `token` is drawn for each call: no two objects have the same bytes, as conditional
/// PUTs require.
pub(super) fn encode(seat: Seat, entry: &RegisterEntry<Bytes>, token: u128) -> Bytes {
    let restarts = &entry.restarts[..usize::from(seat.n).min(STORES_MAX)];
    // Without restarts, the form is the same as before restarts were counted.
    let restarts = if restarts.iter().all(|restart| *restart == 0) { &[][..] } else { restarts };
    let flags = (u8::from(entry.accepted.is_some()) * HAS_VALUE) | (u8::from(!restarts.is_empty()) * HAS_RESTARTS);
    let (accepted, value) = match &entry.accepted {
        Some((ballot, value)) => (*ballot, value.as_ref()),
        None => (Ballot::default(), &[][..]),
    };
    frame(seat, flags, [entry.promised, accepted], token, restarts, value)
}

/// Encodes a mark as an object.
pub(super) fn encode_mark(seat: Seat, restart: u32, token: u128) -> Bytes {
    let mut restarts = Restarts::default();
    restarts[usize::from(seat.index)] = restart;
    let restarts = &restarts[..usize::from(seat.n).min(STORES_MAX)];
    frame(seat, IS_MARK | HAS_RESTARTS, [Ballot::default(); 2], token, restarts, &[])
}

fn frame(seat: Seat, flags: u8, ballots: [Ballot; 2], token: u128, restarts: &[u32], value: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD_BYTES + 4 * restarts.len() + value.len() + SUM_BYTES);
    out.put_slice(MAGIC);
    out.put_slice(&[seat.index, seat.n, seat.w, flags]);
    for ballot in ballots {
        out.put_u64_le(ballot.number);
        out.put_u128_le(ballot.token);
    }
    out.put_u128_le(token);
    out.put_u32_le(u32::try_from(value.len()).unwrap_or(u32::MAX));
    restarts.iter().for_each(|restart| out.put_u32_le(*restart));
    out.put_slice(value);
    let sum = Sha256::digest(&out);
    out.put_slice(&sum[..SUM_BYTES]);
    out.freeze()
}

/// The seat that an object names, unchecked. `None` for anything else.
pub(super) fn seat_of(object: &[u8]) -> Option<Seat> {
    let rest = object.strip_prefix(MAGIC)?;
    Some(Seat { index: *rest.first()?, n: *rest.get(1)?, w: *rest.get(2)? })
}

/// Parses the output of [`encode`] or [`encode_mark`] for `seat`.
pub(super) fn decode(seat: Seat, object: &Bytes) -> Result<Stored, BadEntry> {
    if !object.starts_with(MAGIC) {
        return Err(BadEntry::Foreign);
    }
    let body_bytes = object.len().checked_sub(SUM_BYTES).filter(|len| *len >= HEAD_BYTES).ok_or(BadEntry::Damaged)?;
    let (body, sum) = object.split_at(body_bytes);
    if Sha256::digest(body)[..SUM_BYTES] != *sum {
        return Err(BadEntry::Damaged);
    }
    let found = Seat { index: body[4], n: body[5], w: body[6] };
    if found != seat {
        return Err(BadEntry::Seat(found));
    }
    let number = |at: usize| body[at..at + 8].iter().rev().fold(0_u64, |n, byte| n << 8 | u64::from(*byte));
    let token = |at: usize| body[at..at + 16].iter().rev().fold(0_u128, |n, byte| n << 8 | u128::from(*byte));
    let ballot = |at: usize| Ballot { number: number(at), token: token(at + 8) };
    let small = |at: usize| body[at..at + 4].iter().rev().fold(0_u32, |n, byte| n << 8 | u32::from(*byte));
    let (flags, len) = (body[7], small(72) as usize);
    let restarts_len = if flags & HAS_RESTARTS != 0 { usize::from(seat.n).min(STORES_MAX) } else { 0 };
    let value_at = HEAD_BYTES + 4 * restarts_len;
    if value_at + len != body_bytes || len > VALUE_BYTES_MAX || (flags & HAS_VALUE == 0 && len != 0) {
        return Err(BadEntry::Damaged);
    }
    let mut restarts = Restarts::default();
    (0..restarts_len).for_each(|at| restarts[at] = small(HEAD_BYTES + 4 * at));
    if flags == IS_MARK | HAS_RESTARTS {
        return Ok(Stored::Mark(restarts.get(usize::from(seat.index)).copied().unwrap_or(0)));
    }
    if flags & !(HAS_VALUE | HAS_RESTARTS) != 0 {
        return Err(BadEntry::Damaged);
    }
    let value = || object.slice(value_at..body_bytes);
    let accepted = (flags & HAS_VALUE != 0).then(|| (ballot(32), value()));
    Ok(Stored::Entry(RegisterEntry { promised: ballot(8), accepted, restarts }))
}

#[cfg(test)]
#[path = "register_model.rs"]
mod model;
#[cfg(test)]
#[path = "register_tests.rs"]
mod tests;
