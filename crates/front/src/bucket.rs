//! A token bucket with reservations: when a request may begin under a rate (the generic cell rate algorithm). Plain
//! code: the caller has the clock.
//!
//! ```text
//!   owed     the moment at which everything that was taken is paid for, at the rate
//!   begins   now, or once no more than a burst is owed
//!   ──┬────────────┬──────────────┬─────▶ time
//!    now         begins          owed          owed grows by cost / rate
//!                  └─── burst ───┘
//! ```
//! LIMIT-L1  In any time `t`, requests that begin cost at most `rate * (burst + t)`, and one request more: one of any
//!     size begins if nothing is owed beyond the burst, and is paid for afterwards. Places behind one that is given
//!     back stay where they are: what did not begin in its time may begin later, beside others.
//! LIMIT-L2  Requests begin in the order in which they were taken, and none waits while nothing is owed beyond the
//!     burst: what is not used is saved up, as far as the burst goes.

use std::time::Duration;

const NANOS_PER_S: u128 = 1_000_000_000;

/// One rate. Moments are times since any fixed one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bucket {
    /// Units per second; 0: not limited.
    rate: u64,
    burst: Duration,
    owed: Duration,
}

impl Bucket {
    /// A bucket from which nothing was taken yet.
    pub(super) fn new(rate: u64, burst: Duration) -> Self {
        Self { rate, burst, owed: Duration::ZERO }
    }

    /// Takes `cost` units at `now`, for a request that begins at the returned moment or later.
    pub(super) fn take(&mut self, now: Duration, cost: u64) -> Duration {
        if self.rate == 0 || cost == 0 {
            return now;
        }
        let begins = now.max(self.owed.saturating_sub(self.burst));
        self.owed = self.owed.max(now).saturating_add(self.time_of(cost));
        begins
    }

    /// Gives `cost` units back that were taken for a request which has not begun.
    pub(super) fn give_back(&mut self, cost: u64) {
        if self.rate > 0 {
            self.owed = self.owed.saturating_sub(self.time_of(cost));
        }
    }

    /// How long the rate needs for `cost` units, rounded up.
    fn time_of(&self, cost: u64) -> Duration {
        let nanos = (u128::from(cost) * NANOS_PER_S).div_ceil(u128::from(self.rate.max(1)));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_burst_begins_at_once_and_the_rest_at_the_rate() {
        let mut bucket = Bucket::new(10, SECOND / 2);
        let begins: Vec<u64> = (0..9).map(|_| bucket.take(SECOND, 1).as_millis() as u64).collect();
        assert_eq!(begins, [1000, 1000, 1000, 1000, 1000, 1000, 1100, 1200, 1300]);
        // Nothing was asked for in two minutes: no more than a burst was saved up.
        let later = SECOND * 120;
        let begins: Vec<u64> = (0..7).map(|_| (bucket.take(later, 1) - later).as_millis() as u64).collect();
        assert_eq!(begins, [0, 0, 0, 0, 0, 0, 100]);
    }

    #[test]
    fn a_request_of_any_size_begins_and_is_paid_for_afterwards() {
        let mut bucket = Bucket::new(1 << 20, SECOND);
        assert_eq!(bucket.take(SECOND, 32 << 20), SECOND);
        assert_eq!(bucket.take(SECOND, 1), SECOND * 32);
        assert_eq!(bucket.take(SECOND, 0), SECOND, "what costs nothing waits for nothing");
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut bucket = Bucket::new(0, Duration::ZERO);
        assert!((0..1000).all(|_| bucket.take(SECOND, u64::MAX) == SECOND));
        let mut slow = Bucket::new(1, SECOND);
        slow.take(SECOND, u64::MAX);
        assert!(slow.take(SECOND, u64::MAX) > SECOND, "no overflow");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

        /// LIMIT-L1 and LIMIT-L2 over any history: pauses in milliseconds, costs, and whether a request that has to
        /// wait is given up at once.
        #[test]
        fn no_window_has_more_than_the_rate_and_a_burst(
            rate in 1_u64..5_000,
            burst_ms in 0_u64..3_000,
            asks in prop::collection::vec((0_u64..400, 1_u64..2_000, any::<bool>()), 1..120),
        ) {
            let burst = Duration::from_millis(burst_ms);
            let mut bucket = Bucket::new(rate, burst);
            let (mut now, mut begun): (Duration, Vec<(Duration, u64)>) = (SECOND, Vec::new());
            for (pause, cost, given_up) in asks {
                now += Duration::from_millis(pause);
                let before = bucket;
                let begins = bucket.take(now, cost);
                prop_assert!(begins >= now);
                if given_up && begins > now {
                    bucket.give_back(cost);
                    prop_assert_eq!(bucket, before, "what is given back was never taken");
                    continue;
                }
                prop_assert!(begun.last().is_none_or(|(before, _)| *before <= begins), "LIMIT-L2: order");
                begun.push((begins, cost));
            }
            let seconds = |time: Duration| time.as_secs_f64();
            for first in 0..begun.len() {
                let mut before = 0_u64;
                for (at, cost) in &begun[first..] {
                    let allowed = rate as f64 * (seconds(*at - begun[first].0) + seconds(burst));
                    prop_assert!(before as f64 <= allowed + 1e-3, "LIMIT-L1: {before} before {at:?}, allowed {allowed}");
                    before += cost;
                }
            }
        }

        /// LIMIT-L2: a client that always asks again gets all of the rate.
        #[test]
        fn nobody_waits_longer_than_the_rate_asks_for(
            rate in 1_u64..5_000,
            burst_ms in 0_u64..3_000,
            costs in prop::collection::vec(1_u64..2_000, 1..120),
        ) {
            let mut bucket = Bucket::new(rate, Duration::from_millis(burst_ms));
            let (mut now, mut spent) = (SECOND, 0_u64);
            for cost in costs {
                now = bucket.take(now, cost);
                let due = SECOND + Duration::from_secs_f64(spent as f64 / rate as f64);
                prop_assert!(now <= due + Duration::from_micros(1), "{now:?} with {spent} units at {rate}, due {due:?}");
                spent += cost;
            }
        }
    }
}
