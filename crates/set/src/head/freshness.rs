//! Decides when a set's head is read, and how long the result counts. Gets the time as an argument and does no I/O (ADR
//! 0013, "What a look is for"). One read of the head is called a look.
//!
//! ```text
//!   a look sent at t found the head ours ─── answers to clients may leave until t + FRESH_FOR
//!   a look sent at t got no answer ───────── the same until t + SILENT_FOR (R8); the next one is sent before
//!   the head is in stores not known here ─── no answer leaves, whatever the known ones do not say any more, until a
//!                                            look finds it ours, or group 0 has named other stores
//!   neither ──────────────────────────────── first a look, then the answer
//!   no client is served ──────────────────── no answers to protect: one look every few minutes, for operators
//! ```

use holdfast_types::{MonoTime, Reading};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time between two looks while a client is served or the store is silent, plus up to [`LOOK_JITTER`] at random.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// See [`LOOK_EVERY`].
const LOOK_JITTER: Duration = Duration::from_secs(2);
/// Time limit of one look.
pub(super) const LOOK_LIMIT: Duration = Duration::from_secs(3);
/// Time between two looks while no client is served, multiplied by the number of stores: 20 to 30 requests an hour,
/// however many stores the set has. No client is answered without a recent look, so a late look only delays what
/// operators see (ADR 0013).
const IDLE_EVERY: Duration = Duration::from_secs(120);
/// See [`IDLE_EVERY`].
const IDLE_JITTER: Duration = Duration::from_secs(60);
/// A client counts as served if one was answered within this time.
const USED_FOR: Duration = Duration::from_secs(10);
/// An answer may leave for this long after sending a look that found the head ours. Longer than the time between looks,
/// so that no client waits for one while the store answers within two seconds.
pub(super) const FRESH_FOR: Duration = Duration::from_secs(7);
/// After a look without an answer, answers may leave for this long: the next look is sent and times out before (R8).
const SILENT_FOR: Duration = Duration::from_secs(10);

/// A running gateway of an older life that reaches the store stops answering clients within this time.
pub const NOTICED_AFTER: Duration = Duration::from_secs(8);

const _: () = {
    assert!(FRESH_FOR.as_secs() < NOTICED_AFTER.as_secs());
    assert!(LOOK_EVERY.as_secs() + LOOK_JITTER.as_secs() + 1 < FRESH_FOR.as_secs());
    assert!(LOOK_EVERY.as_secs() + LOOK_JITTER.as_secs() + LOOK_LIMIT.as_secs() <= NOTICED_AFTER.as_secs());
    assert!(LOOK_EVERY.as_secs() + LOOK_JITTER.as_secs() + LOOK_LIMIT.as_secs() < SILENT_FOR.as_secs());
    assert!(3600 / IDLE_EVERY.as_secs() <= 30);
};

/// Result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The head is this life's.
    Ours,
    /// No answer, or one that proves nothing: no head, a stale one or a damaged one.
    None,
    /// The head moved to stores that are not known here. A new owner may have taken over the set there, so silence of
    /// the known ones no longer counts, earlier or later.
    Elsewhere,
}

/// See the module. Zero means never.
#[derive(Debug, Default)]
pub(super) struct Looks {
    ours: AtomicU64,
    silent: AtomicU64,
    /// See [`Word::Elsewhere`].
    elsewhere: AtomicU64,
    sent: AtomicU64,
    used: AtomicU64,
}

impl Looks {
    /// Whether an answer may leave at `now`. The call counts as use.
    ///
    /// No look from before the machine's clock went back counts: nobody knows how long ago it was sent.
    pub fn may_answer(&self, now: impl Into<Reading>) -> bool {
        let reading = now.into();
        self.used.fetch_max(reading.now.0, Ordering::Relaxed);
        let counts = |at: &AtomicU64| reading.counts(MonoTime(at.load(Ordering::Acquire)));
        holdfast_reached::reached!(
            "head: a look of before the clock went back",
            within(&self.ours, reading.now, FRESH_FOR) && !counts(&self.ours)
        );
        (counts(&self.ours) && within(&self.ours, reading.now, FRESH_FOR))
            || (self.elsewhere.load(Ordering::Acquire) == 0
                && counts(&self.silent)
                && within(&self.silent, reading.now, SILENT_FOR))
    }

    /// Records the sending of a look.
    pub fn send(&self, now: MonoTime) {
        self.sent.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Records the result `word` of a look, or of a conditional PUT, that was sent at `sent`.
    pub fn told(&self, sent: MonoTime, word: Word) {
        self.sent.fetch_max(sent.0, Ordering::Relaxed);
        let forget_before = |at: &AtomicU64| {
            let _ = at.fetch_update(Ordering::AcqRel, Ordering::Acquire, |at| (at <= sent.0).then_some(0));
        };
        match word {
            Word::Ours => {
                self.ours.fetch_max(sent.0, Ordering::AcqRel);
                // An earlier silence no longer counts.
                forget_before(&self.silent);
                forget_before(&self.elsewhere);
            }
            Word::Elsewhere => {
                holdfast_reached::reached!("head: a look says that it is elsewhere");
                forget_before(&self.ours);
                // Unless a later look found it ours.
                if self.ours.load(Ordering::Acquire) == 0 {
                    self.elsewhere.fetch_max(sent.0, Ordering::AcqRel);
                }
                forget_before(&self.silent);
            }
            Word::None => {
                holdfast_reached::reached!("head: a look gets no answer");
                self.silent.fetch_max(sent.0, Ordering::AcqRel);
            }
        }
    }

    /// Group 0 has named other stores than those that were looked at. If the head was not in these, the silence of the
    /// named ones counts from now on (R8), and theirs no longer.
    pub fn other_stores(&self) {
        if self.elsewhere.load(Ordering::Acquire) != 0 {
            self.silent.store(0, Ordering::Release);
            self.elsewhere.store(0, Ordering::Release);
        }
    }

    /// As after a long time.
    #[cfg(any(test, feature = "testing"))]
    pub fn forget(&self) {
        for at in [&self.ours, &self.silent, &self.elsewhere] {
            at.store(0, Ordering::Release);
        }
    }

    /// Whether the next look is due at `now`, with this many stores; `chance` is a random number from 0 to 1.
    pub fn due(&self, now: MonoTime, chance: f64, stores: u32) -> bool {
        let sent = self.sent.load(Ordering::Relaxed);
        let quick = within(&self.used, now, USED_FOR) || self.silent.load(Ordering::Acquire) != 0;
        let (every, jitter) =
            if quick { (LOOK_EVERY, LOOK_JITTER) } else { (IDLE_EVERY * stores, IDLE_JITTER * stores) };
        sent == 0 || now >= MonoTime(sent).saturating_add(every + jitter.mul_f64(chance))
    }
}

fn within(at: &AtomicU64, now: MonoTime, limit: Duration) -> bool {
    let at = at.load(Ordering::Acquire);
    at != 0 && now.saturating_since(MonoTime(at)) <= limit
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> MonoTime {
        MonoTime((ms + 1) * 1_000_000)
    }

    #[test]
    fn a_head_that_went_elsewhere_ends_what_was_known_before() {
        let looks = Looks::default();
        looks.told(at(10), Word::Ours);
        looks.told(at(1_000), Word::None);
        assert!(looks.may_answer(at(1_100)));
        looks.told(at(1_200), Word::Elsewhere);
        assert!(!looks.may_answer(at(1_201)));
        looks.told(at(1_300), Word::Ours);
        assert!(looks.may_answer(at(1_301)), "a look found it ours");
    }

    /// HEAD-H1: the stores that were left are switched off sooner or later, or are slow for once.
    #[test]
    fn silence_of_stores_that_the_head_has_left_allows_nothing() {
        let looks = Looks::default();
        looks.told(at(10), Word::Elsewhere);
        looks.told(at(1_000), Word::None);
        assert!(!looks.may_answer(at(1_100)), "another life may be in the others");
        looks.other_stores();
        assert!(!looks.may_answer(at(1_200)), "they were not asked yet");
        looks.told(at(1_300), Word::None);
        assert!(looks.may_answer(at(1_400)), "R8");
        looks.told(at(1_500), Word::Elsewhere);
        looks.told(at(1_600), Word::Ours);
        looks.told(at(1_550), Word::Elsewhere);
        looks.told(at(9_000), Word::None);
        assert!(looks.may_answer(at(9_100)), "it was found ours after that");
    }

    #[test]
    fn an_answer_needs_a_look_of_the_last_seconds() {
        let looks = Looks::default();
        assert!(!looks.may_answer(at(0)), "never looked");
        looks.told(at(10), Word::Ours);
        assert!(looks.may_answer(at(7_010)));
        assert!(!looks.may_answer(at(7_011)));
        looks.told(at(7_020), Word::None);
        assert!(looks.may_answer(at(17_020)), "R8: asked, and no word");
        assert!(!looks.may_answer(at(17_021)));
        looks.told(at(18_000), Word::Ours);
        assert!(looks.may_answer(at(18_000)));
        looks.told(at(17_500), Word::None);
        assert!(!looks.may_answer(at(28_001)), "an old silence does not extend the time");
    }

    #[test]
    fn an_idle_set_is_looked_at_every_few_minutes_and_a_used_or_silent_one_every_few_seconds() {
        let looks = Looks::default();
        assert!(looks.due(at(0), 0.0, 1), "at the start");
        looks.told(at(0), Word::Ours);
        assert!(!looks.due(at(119_999), 0.0, 1) && looks.due(at(120_000), 0.0, 1));
        assert!(!looks.due(at(179_999), 1.0, 1) && looks.due(at(180_000), 1.0, 1));
        assert!(
            !looks.due(at(359_999), 0.0, 3) && looks.due(at(360_000), 0.0, 3),
            "three stores: a third of the looks"
        );
        assert!(!looks.due(at(539_999), 1.0, 3) && looks.due(at(540_000), 1.0, 3));
        looks.may_answer(at(5_000));
        assert!(looks.due(at(5_000), 1.0, 3) && !looks.due(at(4_999), 1.0, 3));
        assert!(!looks.due(at(15_001), 0.0, 1), "no longer in use");
        looks.told(at(20_000), Word::None);
        assert!(looks.due(at(25_000), 1.0, 3), "silent");
    }

    /// R3, HEAD-H1: nobody knows how long ago an earlier look was sent. A later look counts at once.
    #[test]
    fn a_clock_that_went_back_voids_what_was_looked_at_before() {
        let (looks, back) = (Looks::default(), at(2_000));
        let after = |ms| Reading { now: at(ms), went_back: Some(back) };
        looks.told(at(1_000), Word::Ours);
        looks.told(at(1_500), Word::None);
        assert!(looks.may_answer(at(2_000)));
        assert!(!looks.may_answer(after(2_001)), "it may have been long ago");
        looks.told(at(2_001), Word::Ours);
        assert!(looks.may_answer(after(2_100)));
    }

    proptest! {
        /// A recovery raises the head at some moment. For any sequence of looks that the store answers in order: from
        /// NOTICED_AFTER on, no answer leaves. (A look answered after the raise fences, so none is recorded as ours.)
        #[test]
        fn nothing_is_answered_long_after_a_raise(
            raised in 1_000_u64..50_000,
            looks_at in proptest::collection::vec(0_u64..80_000, 1..40),
            answers_at in proptest::collection::vec(0_u64..200_000, 1..100),
        ) {
            let looks = Looks::default();
            for sent in looks_at.into_iter().filter(|sent| *sent < raised) {
                looks.told(at(sent), Word::Ours);
            }
            let noticed = raised + NOTICED_AFTER.as_millis() as u64;
            for answer in answers_at.into_iter().filter(|answer| *answer >= noticed) {
                prop_assert!(!looks.may_answer(at(answer)), "raised at {raised}, answered at {answer}");
            }
        }
    }
}
