//! Budget of collection, or of the repair of stores, in bytes and requests: a token bucket that may go into debt.

use std::time::Duration;

/// Most that can be saved up, as time. Usually longer than a checkpoint interval, so that the next checkpoint can use
/// what one left.
const REST: Duration = Duration::from_secs(60);

/// Limits of either; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MoveLimits {
    /// Bytes read and written per second: collection's segments and the parts of the map read for them, or the repair's
    /// copies.
    pub bytes_per_second: u64,
    /// Requests per second: segments read and written, and pages of the map read for them.
    pub requests_per_second: u32,
}

/// Usage, as the moments at which it is paid off.
#[derive(Clone, Debug)]
pub struct MoveBudget {
    limits: MoveLimits,
    bytes_paid: Duration,
    requests_paid: Duration,
}

fn paid(before: Duration, now: Duration, taken: u64, per_second: u64) -> Duration {
    // More than a rest's worth is not saved up.
    let from = before.max(now.saturating_sub(REST));
    let cost = u128::from(taken) * 1_000_000_000 / u128::from(per_second.max(1));
    from.saturating_add(Duration::from_nanos(u64::try_from(cost).unwrap_or(u64::MAX)))
}

impl MoveBudget {
    /// A budget with nothing saved up. Moments are durations since any fixed moment.
    #[must_use]
    pub const fn new(limits: MoveLimits) -> Self {
        Self { limits, bytes_paid: Duration::ZERO, requests_paid: Duration::ZERO }
    }

    /// Other limits from now on. Nobody waits for what was used under the earlier ones: with a low limit that may be
    /// days.
    pub fn limit(&mut self, limits: MoveLimits) {
        if self.limits != limits {
            *self = Self::new(limits);
        }
    }

    /// Whether more may be used at `now`: earlier use is paid off.
    #[must_use]
    pub fn allows(&self, now: Duration) -> bool {
        (self.limits.bytes_per_second == 0 || self.bytes_paid <= now)
            && (self.limits.requests_per_second == 0 || self.requests_paid <= now)
    }

    /// Records that `requests` requests read or wrote `bytes` at `now`. May exceed what was left: the next use waits
    /// for it.
    pub fn took(&mut self, now: Duration, bytes: u64, requests: u64) {
        let MoveLimits { bytes_per_second, requests_per_second } = self.limits;
        if bytes_per_second > 0 {
            self.bytes_paid = paid(self.bytes_paid, now, bytes, bytes_per_second);
        }
        if requests_per_second > 0 {
            self.requests_paid = paid(self.requests_paid, now, requests, requests_per_second.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn another_limit_counts_at_once() {
        let slow = MoveLimits { bytes_per_second: 1, requests_per_second: 0 };
        let mut budget = MoveBudget::new(slow);
        budget.took(at(100), MIB, 1);
        assert!(!budget.allows(at(200)), "a MiB takes days");
        budget.limit(slow);
        assert!(!budget.allows(at(200)), "the same limit");
        budget.limit(MoveLimits { bytes_per_second: MIB, ..slow });
        assert!(budget.allows(at(200)));
    }

    #[test]
    fn without_limits_everything_is_allowed() {
        let mut budget = MoveBudget::new(MoveLimits::default());
        budget.took(at(1), u64::MAX, u64::MAX);
        assert!(budget.allows(at(1)));
    }

    #[test]
    fn bytes_and_requests_count_each_for_themselves() {
        let mut bytes = MoveBudget::new(MoveLimits { bytes_per_second: MIB, requests_per_second: 0 });
        let mut requests = MoveBudget::new(MoveLimits { bytes_per_second: 0, requests_per_second: 2 });
        for budget in [&mut bytes, &mut requests] {
            budget.took(at(100), 90 * MIB, 200);
        }
        // A minute's worth was saved up; 30 MiB and 80 requests are owed.
        assert!(!bytes.allows(at(129)) && bytes.allows(at(130)));
        assert!(!requests.allows(at(139)) && requests.allows(at(140)));
        requests.took(at(140), 0, u64::MAX);
        assert!(!requests.allows(at(u32::MAX.into())), "expected saturation at the end of time, not wrapping");
    }

    #[test]
    fn over_a_long_time_it_is_what_the_limit_says() {
        for (every, per_second) in [(1, 3 * MIB), (15, MIB), (55, 40 * MIB)] {
            let mut budget = MoveBudget::new(MoveLimits { bytes_per_second: per_second, requests_per_second: 0 });
            let (mut taken, mut now) = (0, 0);
            while now < 100_000 {
                while budget.allows(at(now)) {
                    budget.took(at(now), 16 * MIB, 1);
                    taken += 16 * MIB;
                }
                now += every;
            }
            let (least, most) = (per_second * 99_900, per_second * 100_100 + 16 * MIB);
            assert!((least..=most).contains(&taken), "every {every} s: {taken}, expected {least} to {most}");
        }
    }
}
