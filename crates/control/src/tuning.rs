//! From which round trip a set's times are computed (ADR 0058). The set's leader asks this again and again, and
//! proposes the answer as an entry (SET-S19). Pure: the same looks give the same answers.
//!
//! TUNE-T1  The longest way between two voters counts: what the leader measures to each, and between two others at most
//!     the way over the leader. With half of it as reserve, rounded up to a step.
//! TUNE-T2  Longer times once the way has been longer than what the present ones are for, for [`RAISE_AFTER`]. Shorter
//!     ones once a lower step would have been enough for [`Bounds::calm`] without a break: then the highest of these.
//! TUNE-T3  Never shorter ones while a voter is not measured, or while the voters change. Never outside of the bounds.
//!
//! R3 does not depend on any of this: voters keep what they have promised, whatever the times are
//! (`holdfast_types::pledge`). Wrong times cost needless elections, or a slow one.

use holdfast_types::MonoTime;
use std::time::Duration;

/// A way that is too long must have been so for this long.
pub const RAISE_AFTER: Duration = Duration::from_secs(3);

/// The steps, in milliseconds: few, so that a set's times change seldom. Up to the first one all times are the same:
/// then scheduler and disk decide (`serve::Timing`).
pub const STEPS_MS: [u32; 8] = [25, 50, 80, 120, 200, 350, 600, 1000];

/// Limits, from the settings of the leader's gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Never less, in milliseconds.
    pub floor_ms: u32,
    /// Never more, in milliseconds: what every gateway's vote embargo covers. Also what a set has that nothing was
    /// measured for.
    pub ceiling_ms: u32,
    /// TUNE-T2.
    pub calm: Duration,
}

impl Bounds {
    /// Whether there is anything to choose.
    pub fn leave_a_choice(&self) -> bool {
        self.floor_ms < self.ceiling_ms
    }

    fn within(&self, ms: u32) -> u32 {
        ms.max(self.floor_ms).min(self.ceiling_ms)
    }

    /// The step for a way of this length (TUNE-T1).
    fn step(&self, way: Duration) -> u32 {
        let needed = way.saturating_mul(3) / 2;
        let enough = STEPS_MS.into_iter().find(|step| Duration::from_millis(u64::from(*step)) >= needed);
        self.within(enough.unwrap_or(self.ceiling_ms))
    }
}

/// A set as its leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// What its times are computed from, in milliseconds. `None`: the ceiling.
    pub present_ms: Option<u32>,
    /// The round trip to each other voter, as far as it was measured. Both sets of a joint membership.
    pub trips: Vec<Option<Duration>>,
    /// The voters are being changed.
    pub changing: bool,
}

impl View {
    /// The longest way between two voters, as far as measured (TUNE-T1).
    fn way(&self) -> Duration {
        let mut known: Vec<Duration> = self.trips.iter().flatten().copied().collect();
        known.sort_unstable_by(|a, b| b.cmp(a));
        known.iter().take(2).sum()
    }
}

/// What a leader remembers of one set, since it leads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuner {
    too_long_since: Option<MonoTime>,
    /// Since when a lower step would be enough, and the highest of these steps.
    lower: Option<(MonoTime, u32)>,
}

impl Tuner {
    /// Takes a look. Returns what the set's times should be computed from, in milliseconds; `None`: what they are now.
    pub fn look(&mut self, now: MonoTime, view: &View, bounds: &Bounds) -> Option<u32> {
        let present = view.present_ms.unwrap_or(bounds.ceiling_ms);
        let within = bounds.within(present);
        if within != present || !bounds.leave_a_choice() || view.trips.is_empty() {
            *self = Self::default();
            // It was chosen under other settings.
            return (within != present).then_some(within);
        }
        let (way, step) = (view.way(), bounds.step(view.way()));
        self.raise(now, way, step, present).or_else(|| self.lower(now, view, step, present, bounds))
    }

    fn raise(&mut self, now: MonoTime, way: Duration, step: u32, present: u32) -> Option<u32> {
        if way <= Duration::from_millis(u64::from(present)) || step <= present {
            self.too_long_since = None;
            return None;
        }
        let since = *self.too_long_since.get_or_insert(now);
        if now.saturating_since(since) < RAISE_AFTER {
            return None;
        }
        holdfast_reached::reached!("tuning: longer times");
        *self = Self::default();
        Some(step)
    }

    fn lower(&mut self, now: MonoTime, view: &View, step: u32, present: u32, bounds: &Bounds) -> Option<u32> {
        let measured = view.trips.iter().all(Option::is_some);
        if step >= present || !measured || view.changing {
            self.lower = None;
            return None;
        }
        let (since, highest) = self.lower.map_or((now, step), |(since, highest)| (since, highest.max(step)));
        self.lower = Some((since, highest));
        if now.saturating_since(since) < bounds.calm {
            return None;
        }
        holdfast_reached::reached!("tuning: shorter times");
        *self = Self::default();
        Some(highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const BOUNDS: Bounds = Bounds { floor_ms: 1, ceiling_ms: 200, calm: Duration::from_secs(60) };

    fn at(s: u64) -> MonoTime {
        MonoTime(s * 1_000_000_000)
    }

    fn us(us: u64) -> Option<Duration> {
        Some(Duration::from_micros(us))
    }

    fn view(present_ms: Option<u32>, trips: &[Option<Duration>]) -> View {
        View { present_ms, trips: trips.to_vec(), changing: false }
    }

    /// What is chosen for voters at these distances from the leader, if that stays so.
    fn chosen(trips_us: &[u64]) -> u32 {
        let trips: Vec<_> = trips_us.iter().map(|trip| us(*trip)).collect();
        let mut tuner = Tuner::default();
        assert_eq!(tuner.look(at(100), &view(None, &trips), &BOUNDS), None);
        tuner.look(at(160), &view(None, &trips), &BOUNDS).unwrap_or(BOUNDS.ceiling_ms)
    }

    /// TUNE-T1.
    #[test]
    fn the_longest_way_between_two_voters_counts() {
        let cases: [(&[u64], u32); 9] = [
            (&[200, 200], 25),                 // one zone
            (&[200], 25),                      // two voters
            (&[0, 0], 25),                     // one machine
            (&[8000, 8000], 25),               // 24 ms with its reserve
            (&[8000, 9000], 50),               // 25.5 ms
            (&[20_000, 30_000], 80),           // regions of a continent
            (&[200, 80_000], 200),             // 120.3 ms
            (&[80_000, 80_000], 200),          // no more than the ceiling
            (&[300, 300, 20_000, 20_000], 80), // five voters
        ];
        for (trips, expected) in cases {
            assert_eq!(chosen(trips), expected, "{trips:?}");
        }
    }

    /// TUNE-T2.
    #[test]
    fn shorter_times_come_after_a_calm_and_longer_ones_soon() {
        let (near, far) = ([us(200), us(200)], [us(200), us(60_000)]);
        let mut tuner = Tuner::default();
        assert_eq!(tuner.look(at(0), &view(None, &near), &BOUNDS), None);
        assert_eq!(tuner.look(at(59), &view(None, &near), &BOUNDS), None);
        assert_eq!(tuner.look(at(60), &view(None, &near), &BOUNDS), Some(25));
        // It is not there yet: it is not asked for at each look.
        assert_eq!(tuner.look(at(61), &view(None, &near), &BOUNDS), None);
        assert_eq!(tuner.look(at(62), &view(Some(25), &near), &BOUNDS), None);
        assert_eq!(tuner.look(at(70), &view(Some(25), &far), &BOUNDS), None);
        assert_eq!(tuner.look(at(71), &view(Some(25), &near), &BOUNDS), None, "it was one look");
        assert_eq!(tuner.look(at(80), &view(Some(25), &far), &BOUNDS), None);
        assert_eq!(tuner.look(at(83), &view(Some(25), &far), &BOUNDS), Some(120));
        // A while of the other kind begins the calm anew, and the highest step of it counts.
        let between = [us(13_000), us(13_000)];
        assert_eq!(tuner.look(at(100), &view(Some(120), &near), &BOUNDS), None);
        assert_eq!(tuner.look(at(150), &view(Some(120), &far), &BOUNDS), None);
        assert_eq!(tuner.look(at(160), &view(Some(120), &near), &BOUNDS), None);
        assert_eq!(tuner.look(at(190), &view(Some(120), &between), &BOUNDS), None);
        assert_eq!(tuner.look(at(220), &view(Some(120), &near), &BOUNDS), Some(50));
    }

    /// TUNE-T3.
    #[test]
    fn nothing_gets_shorter_unless_all_voters_are_known() {
        let mut tuner = Tuner::default();
        let unknown = view(Some(120), &[us(200), None]);
        let changing = View { changing: true, ..view(Some(120), &[us(200), us(200)]) };
        // Each for longer than a calm.
        for s in 0..200 {
            assert_eq!(tuner.look(at(s), if s < 100 { &unknown } else { &changing }, &BOUNDS), None);
        }
        assert_eq!(tuner.look(at(300), &view(Some(1), &[us(60_000), None]), &BOUNDS), None);
        assert_eq!(tuner.look(at(303), &view(Some(1), &[us(60_000), None]), &BOUNDS), Some(120), "longer is safe");
        let alone = view(None, &[]);
        assert_eq!((tuner.look(at(400), &alone, &BOUNDS), tuner.look(at(900), &alone, &BOUNDS)), (None, None));
    }

    #[test]
    fn no_choice_means_no_change() {
        let fixed = Bounds { floor_ms: 200, ..BOUNDS };
        let (mut tuner, near) = (Tuner::default(), view(None, &[us(200), us(200)]));
        assert!((0..200).all(|s| tuner.look(at(s), &near, &fixed).is_none()));
        let lower = view(Some(25), &[us(200), us(200)]);
        assert_eq!(tuner.look(at(200), &lower, &fixed), Some(200), "what was chosen under other settings ends");
        let higher = view(Some(350), &[]);
        assert_eq!(tuner.look(at(201), &higher, &BOUNDS), Some(200));
    }

    proptest! {
        /// Whatever was measured: the answers are within the bounds, differ from what is there, and come at most once
        /// in three seconds; and what stays the same is answered at most once in a calm.
        #[test]
        fn answers_are_few_and_within_the_bounds(
            looks in vec((1u64..40, vec(prop::option::of(0u64..300_000), 1..5), any::<bool>()), 1..60),
            floor_ms in 1u32..20, ceiling_ms in 20u32..1000,
        ) {
            let bounds = Bounds { floor_ms, ceiling_ms, calm: Duration::from_secs(60) };
            let (mut tuner, mut present_ms, mut now) = (Tuner::default(), None, 0);
            let mut last = None;
            for (pause, trips, changing) in looks {
                now += pause;
                let trips = trips.into_iter().map(|trip| trip.map(Duration::from_micros)).collect();
                let view = View { present_ms, trips, changing };
                if let Some(ms) = tuner.look(at(now), &view, &bounds) {
                    prop_assert!((floor_ms..=ceiling_ms).contains(&ms), "{}", ms);
                    prop_assert_ne!(Some(ms), present_ms);
                    prop_assert!(last.is_none_or(|last| now - last >= 3), "{} after {:?}", now, last);
                    (present_ms, last) = (Some(ms), Some(now));
                }
            }
            let near = View { present_ms, trips: vec![us(100)], changing: false };
            let more = (0..300).filter_map(|s| tuner.look(at(now + 1000 + s), &near, &bounds)).count();
            prop_assert!(more <= 5, "{} answers to the same again", more);
        }
    }
}
