//! When keys that end are asked for again. Pure: the caller has the clock and the chance.
//!
//! ```text
//!   found ──────────── most of their life ──────────▶ renew ──────────▶ end
//!                        (sign with them)      (ask beside requests)    (requests wait for an answer)
//!   asked in vain: a pause of 1 s, doubled up to a minute, half of it by chance; requests use the keys that are known
//! ```

/// Keys are renewed so long before their end, or a quarter of their life before it, if that is shorter. AWS has new
/// ones of an instance's role five minutes before the end of the old ones.
const MARGIN_MAX_MS: u64 = 15 * 60 * 1000;

/// Pause after the first answer without new keys, and the longest one.
const PAUSE_FIRST_MS: u64 = 1_000;
const PAUSE_MAX_MS: u64 = 60_000;

/// What a request does about its keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// It uses those that are known.
    Nothing,
    /// It uses those that are known, and somebody asks for others meanwhile.
    Renew,
    /// It waits for an answer: there are none, or they have ended.
    Wait,
    /// As `Wait`, but somebody has asked in vain a moment ago: it uses what is known, if anything is.
    Rest,
}

/// The term of the keys that are known.
#[derive(Clone, Copy, Debug)]
struct Term {
    /// Unix milliseconds; none: they do not end.
    ends: Option<u64>,
    renew_at: u64,
}

/// See the module. All times are Unix milliseconds: the end of keys is told as such.
#[derive(Debug, Default)]
pub(crate) struct Renewal {
    term: Option<Term>,
    /// Answers in a row without new keys.
    vain: u32,
    /// Nobody asks before.
    rests_until: u64,
}

impl Renewal {
    /// What a request at `now` does.
    pub(crate) fn need(&self, now: u64) -> Need {
        let or_rest = |need| if self.rests(now) { Need::Rest } else { need };
        let Some(term) = self.term else { return or_rest(Need::Wait) };
        let Some(ends) = term.ends else { return Need::Nothing };
        if now >= ends {
            return or_rest(Need::Wait);
        }
        if now >= term.renew_at && !self.rests(now) { Need::Renew } else { Need::Nothing }
    }

    /// Whether somebody may ask because the known keys were refused.
    pub(crate) fn may_ask(&self, now: u64) -> bool {
        !self.rests(now)
    }

    /// A clock that was set back must not make a pause long.
    fn rests(&self, now: u64) -> bool {
        now < self.rests_until && self.rests_until - now <= PAUSE_MAX_MS
    }

    /// There was an answer with keys that end at `ends`. `news`: other keys than those that were known. `chance` is
    /// uniform.
    pub(crate) fn found(&mut self, now: u64, ends: Option<u64>, news: bool, chance: u32) {
        let left = ends.map(|ends| ends.saturating_sub(now));
        if news && left != Some(0) {
            // Many gateways begin at the same time; they do not ask again at the same time.
            let margin = MARGIN_MAX_MS.min(left.unwrap_or(0) / 4);
            let renew_at = ends.unwrap_or(u64::MAX).saturating_sub(margin - share(margin / 3, chance));
            self.term = Some(Term { ends, renew_at });
            (self.vain, self.rests_until) = (0, now);
            return;
        }
        let renew_at = self.term.map_or(now, |term| term.renew_at);
        self.term = Some(Term { ends, renew_at });
        self.vain = 0;
        self.rests_until = now.saturating_add(PAUSE_MAX_MS);
    }

    /// There was no answer, or one without keys. `chance` is uniform.
    pub(crate) fn failed(&mut self, now: u64, chance: u32) {
        let doubled = PAUSE_FIRST_MS.saturating_mul(1_u64.checked_shl(self.vain).unwrap_or(u64::MAX));
        let half = doubled.min(PAUSE_MAX_MS) / 2;
        self.vain = self.vain.saturating_add(1);
        self.rests_until = now.saturating_add(half + share(half, chance));
    }

    /// How often in a row there were no keys in the answer.
    pub(crate) fn vain(&self) -> u32 {
        self.vain
    }
}

/// The part of `whole` that `chance` gives.
fn share(whole: u64, chance: u32) -> u64 {
    // Both factors are below 2^32: a margin or a pause is.
    whole.saturating_mul(u64::from(chance)) / u64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    const NOW: u64 = 1_900_000_000_000;

    #[test]
    fn keys_are_renewed_before_they_end_and_not_by_all_at_once() {
        for (life, earliest, latest) in [(HOUR, 15 * 60_000, 10 * 60_000), (60_000, 15_000, 10_000)] {
            for (chance, before) in [(0, earliest), (u32::MAX, latest)] {
                let mut renewal = Renewal::default();
                assert_eq!(renewal.need(NOW), Need::Wait);
                renewal.found(NOW, Some(NOW + life), true, chance);
                assert_eq!(renewal.need(NOW + life - before - 1), Need::Nothing, "{life} {chance}");
                assert_eq!(renewal.need(NOW + life - before), Need::Renew, "{life} {chance}");
                assert_eq!(renewal.need(NOW + life - 1), Need::Renew);
                assert_eq!(renewal.need(NOW + life), Need::Wait);
            }
        }
    }

    #[test]
    fn keys_without_an_end_are_asked_for_only_after_a_refusal() {
        let mut renewal = Renewal::default();
        renewal.found(NOW, None, true, 7);
        assert_eq!(renewal.need(NOW + 1000 * HOUR), Need::Nothing);
        assert!(renewal.may_ask(NOW));
        // The same ones again: whoever is refused next does not ask at once.
        renewal.found(NOW, None, false, 7);
        assert!(!renewal.may_ask(NOW) && renewal.may_ask(NOW + PAUSE_MAX_MS));
        assert_eq!(renewal.need(NOW), Need::Nothing);
    }

    #[test]
    fn a_failed_renewal_leaves_the_keys_that_hold_and_is_tried_again() {
        let mut renewal = Renewal::default();
        renewal.found(NOW, Some(NOW + HOUR), true, 0);
        let due = NOW + HOUR - 15 * 60_000;
        let mut now = due;
        for pause in [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000] {
            assert_eq!(renewal.need(now), Need::Renew, "{pause}");
            renewal.failed(now, u32::MAX);
            assert_eq!(renewal.need(now + pause - 1), Need::Nothing, "{pause}: signed with what is known");
            now += pause;
        }
        assert_eq!(renewal.vain(), 8);
        renewal.failed(NOW + HOUR, 0);
        assert_eq!(renewal.need(NOW + HOUR), Need::Rest);
        assert_eq!(renewal.need(NOW + HOUR + PAUSE_MAX_MS), Need::Wait);
        renewal.found(NOW + HOUR, Some(NOW + 2 * HOUR), true, 0);
        assert_eq!((renewal.need(NOW + HOUR), renewal.vain()), (Need::Nothing, 0));
    }

    /// As a metadata server may answer shortly before the end.
    #[test]
    fn the_same_keys_again_are_no_reason_to_ask_with_each_request() {
        let mut renewal = Renewal::default();
        renewal.found(NOW, Some(NOW + HOUR), true, 0);
        let due = NOW + HOUR - 15 * 60_000;
        renewal.found(due, Some(NOW + HOUR), false, 0);
        assert_eq!(renewal.need(due), Need::Nothing);
        assert_eq!(renewal.need(due + PAUSE_MAX_MS), Need::Renew);
        // Ended already when they came.
        let mut renewal = Renewal::default();
        renewal.found(NOW, Some(NOW), true, 0);
        assert_eq!(renewal.need(NOW), Need::Rest);
        assert_eq!(renewal.need(NOW + PAUSE_MAX_MS), Need::Wait);
    }

    #[test]
    fn a_clock_that_is_set_back_makes_no_pause_long() {
        let mut renewal = Renewal::default();
        renewal.failed(NOW, u32::MAX);
        assert_eq!(renewal.need(NOW), Need::Rest);
        assert_eq!(renewal.need(NOW - HOUR), Need::Wait);
    }
}
