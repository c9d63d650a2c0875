//! Errors of the head over several stores, when it cannot be read or replaced.

use super::answer::{Answer, has_entry};
use super::register::{BadEntry, Seat, Seen};
use super::state::{Register, Replica};
use crate::error::{At, Cause, Disposition, Op, StoreError};
use crate::health::Kind;
use holdfast_host::unix_ms;
use std::sync::Arc;
use std::time::Duration;

impl Register {
    pub(super) fn at(&self, op: Op, key: &str) -> Box<At> {
        At::new(&self.place, op, key)
    }

    /// The object in the entry's place is not an entry of this store. Somebody must act, unless it is damaged.
    pub(super) fn bad_entry(&self, index: usize, key: &str, bad: &BadEntry) -> StoreError {
        let replica = &self.replicas[index];
        let at = At::new(&Arc::from(replica.store.place()), Op::Get, key);
        let seat = |s: Seat| format!("store {} of {} with write quorum {}", s.index + 1, s.n, s.w);
        let expected = seat(self.seat(index));
        let error = match bad {
            BadEntry::Seat(found) => StoreError::Denied {
                at,
                cause: Cause::text(format!("found the head of {}, expected that of {expected}", seat(*found))),
                hint: "name the stores in the order and with the write quorum that the set was created with, each with its own bucket or prefix",
            },
            BadEntry::Foreign => StoreError::Denied {
                at,
                cause: Cause::text(format!(
                    "found something else than the head of {expected}, perhaps the head of a set that has only this store"
                )),
                hint: "give each set that has several stores prefixes of its own",
            },
            BadEntry::Damaged => StoreError::Unavailable {
                at,
                attempts: 1,
                cause: Cause::of_kind(
                    Kind::Damaged,
                    "the head's frame is damaged; it is written again once all other stores answer",
                ),
            },
        };
        // By its own health, the store has answered well. A damaged entry is mended, and shown by that.
        if let (Some(health), true) = (&replica.health, *bad != BadEntry::Damaged) {
            health.object(unix_ms(), key, Kind::Denied, &error);
        }
        error
    }

    /// The call is dropped before it could report this itself.
    pub(super) fn took_too_long(&self, replica: &Replica, key: &str, limit: Duration) {
        replica.speed.failed();
        let at = At::new(&Arc::from(replica.store.place()), Op::Get, key);
        let text = format!("no answer within {} s", limit.as_secs());
        let error = StoreError::Unavailable { at, attempts: 1, cause: Cause::of_kind(Kind::NoAnswer, text) };
        if let Some(health) = &replica.health {
            health.attempt(unix_ms(), Op::Get, Some(&error));
        }
    }

    /// Too few stores have an entry that can be read.
    pub(super) fn no_quorum(&self, op: Op, key: &str, answers: &[Answer], sent: bool) -> StoreError {
        let errors: Vec<StoreError> = answers.iter().filter_map(|answer| answer.error.clone()).collect();
        if let Some(denied) = errors.iter().find(|e| e.disposition() == Disposition::Denied && e.kind().is_some()) {
            // A wrong seat, missing rights: somebody must act, and is told of that first.
            if !sent && !errors.iter().any(|e| matches!(e.disposition(), Disposition::Retry | Disposition::Unknown)) {
                return denied.clone();
            }
        }
        let empty = answers.iter().filter(|answer| !has_entry(answer) && answer.seen != Seen::Silent).count();
        let have = answers.iter().filter(|answer| matches!(answer.seen, Seen::Entry(_))).count();
        let mut text = format!("found {have} stores with a head, expected at least {}", self.w);
        let silent = answers.iter().filter(|answer| answer.seen == Seen::Silent).count();
        if empty > 0 && have + silent >= self.w {
            text.push_str(&format!("; {empty} have none, and get one when every other store answers"));
        } else if empty > 0 {
            text.push_str(&format!(
                "; {empty} have none: unless the set is new, too many have lost theirs to be repaired, and no checkpoint is made any more"
            ));
        }
        for error in &errors {
            text.push_str(&format!("; {error}"));
        }
        let kind = errors.iter().find_map(StoreError::kind);
        let (at, cause) = (self.at(op, key), Box::new(Cause { kind, ..*Cause::text(text) }));
        if sent {
            StoreError::Unknown { at, attempts: 1, cause }
        } else {
            StoreError::Unavailable { at, attempts: 1, cause }
        }
    }

    /// Rounds were repeated until the call's limit; `last`: the errors of the last ones.
    pub(super) fn again_and_again(
        &self,
        op: Op,
        key: &str,
        rounds: u32,
        sent: bool,
        last: Option<StoreError>,
    ) -> StoreError {
        let text = last.as_ref().map_or("other writers were faster again and again".to_owned(), ToString::to_string);
        let cause = Box::new(Cause { kind: last.and_then(|error| error.kind()), ..*Cause::text(text) });
        let at = self.at(op, key);
        match sent {
            true => StoreError::Unknown { at, attempts: rounds, cause },
            false => StoreError::Unavailable { at, attempts: rounds, cause },
        }
    }

    /// Enough stores have promised, but some of the promises do not count.
    pub(super) fn of_an_old_head(&self, key: &str) -> StoreError {
        let text = "a store has an old head: its head was lost and written again, and then an old copy was restored; it is repaired when every other store answers";
        StoreError::Unavailable { at: self.at(Op::Swap, key), attempts: 1, cause: Cause::text(text) }
    }
}
