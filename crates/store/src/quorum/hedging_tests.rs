use super::*;
use proptest::prelude::*;

const PART: ReadKind = ReadKind::Part;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// One read of stores that take so long each once they are asked, or never answer: how many were asked, and after how long it had its answer.
fn read(hedging: &mut Hedging, kind: ReadKind, times: &[Option<Duration>]) -> (usize, Duration) {
    let mut asking = Asking::begin(times.len(), kind, hedging);
    let mut answers: Vec<(Duration, usize)> = times[0].map(|time| (time, 0)).into_iter().collect();
    let mut asked = 1;
    loop {
        let until = asking.until();
        match answers.iter().min().copied() {
            Some((at, store)) if until.is_none_or(|until| at <= until) => {
                hedging.took(kind, asking.took(store, at));
                return (asked, at);
            }
            _ => {
                let now = until.expect("somebody answers");
                if let Some(next) = asking.waited(now, hedging).ask {
                    asked += 1;
                    answers.extend(times[next].map(|time| (now + time, next)));
                }
            }
        }
    }
}

/// Stores that have answered so many reads within 30 ms.
fn measured(reads: usize) -> Hedging {
    let mut hedging = Hedging::default();
    for _ in 0..reads {
        assert_eq!(read(&mut hedging, PART, &[Some(ms(30)), Some(ms(30))]), (1, ms(30)));
    }
    hedging
}

#[test]
fn e1_a_store_that_is_slow_once_is_hedged_after_the_p95() {
    let mut hedging = measured(64);
    assert_eq!(read(&mut hedging, PART, &[Some(ms(700)), Some(ms(10)), Some(ms(10))]), (2, ms(40)));
    // The p95 is that of its own kind.
    let mut asking = Asking::begin(2, ReadKind::Whole, &mut hedging);
    assert_eq!(asking.until(), Some(HEDGE_FIRST));
    assert_eq!(asking.waited(ms(249), &mut hedging), Waited::default(), "not yet");
    assert_eq!(asking.waited(HEDGE_FIRST, &mut hedging).ask, Some(1));
    // Fast stores are given their time.
    let mut fast = Hedging::default();
    (0..64).for_each(|_| fast.took(PART, Duration::from_micros(300)));
    assert_eq!(Asking::begin(2, PART, &mut fast).until(), Some(HEDGE_MIN));
}

#[test]
fn e1_the_budget_bounds_hedges() {
    // Nothing is saved up at first, and the first read is not hedged.
    let mut hedging = Hedging::default();
    let mut asking = Asking::begin(2, PART, &mut hedging);
    let refused = Waited { refused: true, ..Waited::default() };
    assert_eq!(asking.waited(HEDGE_FIRST, &mut hedging), refused);
    assert_eq!(asking.until(), Some(PATIENCE_MIN), "E2: it is waited for, but not for ever");
    assert_eq!(asking.waited(HEDGE_FIRST, &mut hedging), Waited::default(), "decided once");

    // Every read lasts beyond the p95.
    let (mut hedging, reads) = (measured(10_000), 2000);
    let hedged = (0..reads).filter(|_| {
        let mut asking = Asking::begin(2, PART, &mut hedging);
        asking.waited(ms(30), &mut hedging).ask.is_some()
    });
    let (hedges, earned) = (hedged.count() as u64, reads / READS_PER_HEDGE);
    assert!((earned..=earned + HEDGES_SAVED).contains(&hedges), "one for each twenty, and what was saved up: {hedges}");
}

#[test]
fn e2_stores_that_are_all_slow_are_not_asked_twice() {
    for slow in [ms(1600), ms(4900)] {
        let mut hedging = measured(1000);
        let times = [Some(slow); 3];
        // Until the p95 has followed: it is that of the last thousand, and is taken anew now and then.
        let until_known = TIMES / 20 + TIMES_STEP;
        let asked = |hedging: &mut Hedging, reads: usize| -> usize {
            (0..reads).map(|_| read(hedging, PART, &times).0).sum::<usize>()
        };
        assert!(asked(&mut hedging, until_known) <= 3 * until_known);
        let reads = 4000;
        let extra = asked(&mut hedging, reads) - reads;
        assert!(
            extra <= reads / READS_PER_HEDGE as usize + HEDGES_SAVED as usize,
            "{slow:?}: {extra} more than {reads}"
        );
    }
}

#[test]
fn e2_a_dead_store_costs_the_patience_and_is_named() {
    let mut hedging = Hedging::default();
    assert_eq!(read(&mut hedging, PART, &[None, Some(ms(30))]), (2, PATIENCE_MIN + ms(30)));
    let mut asking = Asking::begin(3, PART, &mut hedging);
    assert_eq!(asking.until(), Some(HEDGE_FIRST));
    assert!(asking.waited(HEDGE_FIRST, &mut hedging).refused);
    assert_eq!(asking.waited(ms(1000), &mut hedging), Waited { ask: Some(1), dead: vec![0], refused: false });
    assert_eq!(asking.until(), Some(ms(2000)));
    assert_eq!(asking.waited(ms(2000), &mut hedging), Waited { ask: Some(2), dead: vec![0, 1], refused: false });
    assert_eq!(asking.until(), None, "E4: nobody is left");
    assert_eq!(asking.took(2, ms(2080)), ms(80), "what the others cost is not its time");
    // Reads that met a dead store say nothing of the living: the next ones are not more patient.
    for _ in 0..1000 {
        read(&mut hedging, PART, &[None, Some(ms(30))]);
    }
    assert_eq!(hedging.waits(PART), (ms(30), PATIENCE_MIN));
    (0..1000).for_each(|_| hedging.took(PART, Duration::from_secs(600)));
    assert_eq!(hedging.waits(PART).1, PATIENCE_MAX);
}

#[test]
fn e2_a_slow_spell_is_over_with_the_next_reads() {
    let mut hedging = Hedging::default();
    let slow = Duration::from_secs(4);
    (0..TIMES).for_each(|_| hedging.took(PART, slow));
    assert_eq!(hedging.waits(PART), (slow, 2 * slow));
    (0..2 * TIMES_STEP).for_each(|_| hedging.took(PART, ms(30)));
    assert_eq!(hedging.waits(PART), (slow, PATIENCE_MIN), "the p95 of the last thousand takes longer");
}

#[test]
fn e3_a_store_that_fails_is_followed_at_once_by_the_next() {
    let mut hedging = measured(64);
    let mut asking = Asking::begin(3, PART, &mut hedging);
    assert_eq!(asking.failed(0, ms(3)), Some(1));
    assert_eq!(asking.failed(1, ms(5)), Some(2));
    assert_eq!((asking.until(), asking.failed(2, ms(9))), (None, None), "all have failed");
    // One that has answered is not called silent, whatever it said.
    let mut asking = Asking::begin(3, PART, &mut hedging);
    assert_eq!(asking.failed(0, ms(3)), Some(1));
    assert_eq!(asking.waited(ms(1500), &mut hedging), Waited { ask: Some(2), dead: vec![1], refused: false });
}

proptest! {
    /// E4, and every read of which one store answers ends.
    #[test]
    fn no_store_is_asked_twice(
        n in 1_usize..6,
        events in prop::collection::vec((0_u64..3000, any::<bool>(), 0_usize..6), 0..40),
    ) {
        let mut hedging = measured(200);
        let mut asking = Asking::begin(n, PART, &mut hedging);
        let (mut now, mut asked) = (Duration::ZERO, vec![0]);
        for (later, fails, store) in events {
            now += ms(later);
            let next = match fails {
                true if store < asked.len() => asking.failed(asked[store], now),
                _ => asking.waited(now, &mut hedging).ask,
            };
            asked.extend(next);
            prop_assert_eq!(asking.until().is_none(), asked.len() == n);
        }
        let each_once: Vec<usize> = (0..asked.len()).collect();
        prop_assert_eq!(asked, each_once);
    }
}
