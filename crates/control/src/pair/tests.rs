//! PAIR-P1 against an etcd with another clock rate, and PAIR-P3 by name.

use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

fn at(ms: u64) -> MonoTime {
    MonoTime(ms * MS)
}

#[test]
fn a_tenure_answers_until_three_quarters_of_the_ttl_after_the_sending() {
    let ttl = Duration::from_secs(10);
    let mut tenure = Tenure::begin(at(1_000), ttl);
    assert_eq!(tenure.may_answer(at(8_499)), Ok(()));
    tenure.renewed(at(3_500), at(3_000), ttl);
    // An older keep-alive with a later answer shortens nothing.
    tenure.renewed(at(3_600), at(2_000), ttl);
    assert_eq!(tenure.until(), at(10_500));
    assert_eq!(tenure.may_answer(at(10_499)), Ok(()));
    assert_eq!(tenure.may_answer(at(10_500)), Err(Ended::Overdue));
    tenure.renewed(at(10_501), at(10_400), ttl);
    assert_eq!(tenure.may_answer(at(10_502)), Err(Ended::Overdue), "PAIR-P2");
}

#[test]
fn an_answer_that_comes_too_late_does_not_bring_a_tenure_back() {
    let ttl = Duration::from_secs(10);
    let mut tenure = Tenure::begin(at(0), ttl);
    // The process was paused; the answer to its keep-alive was in the socket. No caller had asked whether it may
    // answer.
    tenure.renewed(at(9_000), at(7_000), ttl);
    assert_eq!(tenure.may_answer(at(9_001)), Err(Ended::Overdue), "PAIR-P2");
    let mut tenure = Tenure::begin(at(0), ttl);
    tenure.end(Ended::Resigned("told to stop".into()));
    tenure.end(Ended::Lost("gone".into()));
    assert_eq!(tenure.may_answer(at(1)), Err(Ended::Resigned("told to stop".into())), "the first reason stays");
}

/// PAIR-P1, PAIR-P2: nobody knows how much of the time to live has passed.
#[test]
fn a_tenure_ends_when_the_clock_goes_back() {
    let ttl = Duration::from_secs(10);
    let after = |ms| Reading { now: at(ms), went_back: Some(at(2_000)) };
    let mut tenure = Tenure::begin(at(1_000), ttl);
    tenure.renewed(at(1_900), at(1_800), ttl);
    assert_eq!(tenure.may_answer(at(2_000)), Ok(()));
    assert_eq!(tenure.may_answer(after(2_001)), Err(Ended::ClockBack));
    tenure.renewed(after(2_200), at(2_100), ttl);
    assert_eq!(tenure.may_answer(after(2_201)), Err(Ended::ClockBack), "PAIR-P2");
    let mut later = Tenure::begin(at(2_100), ttl);
    assert_eq!(later.may_answer(after(2_201)), Ok(()), "won since");
}

#[test]
fn a_head_is_taken_from_earlier_tenures_and_from_what_a_person_gave_up() {
    let key = "/holdfast/pairs/db/seat";
    let ours = TenureId::new(7, key, 40);
    let of = |etcd, key, revision| ours.judge(TenureId::new(etcd, key, revision).cluster(), None);
    assert_eq!(of(7, key, 39), Whose::Earlier { revision: 39 });
    assert_eq!(of(7, key, 40), Whose::Ours);
    assert_eq!(of(7, key, 41), Whose::Later { revision: 41 });
    assert_eq!(of(8, key, 39), Whose::Foreign, "another etcd's revisions say nothing");
    assert_eq!(of(7, "/holdfast/pairs/web/seat", 39), Whose::Foreign, "another pair of the same etcd");
    assert_eq!(ours.judge(0xabc, None), Whose::Foreign);
    assert_eq!(ours.judge(0xabc, Some(0xabd)), Whose::Foreign);
    assert_eq!(ours.judge(0xabc, Some(0xabc)), Whose::GivenUp);
    assert_eq!(ours.judge(ours.cluster() + 1, Some(ours.cluster() + 1)), Whose::Later { revision: 41 });
}

/// A cluster id stands in heads for ever.
#[test]
fn the_text_of_a_tenure_is_pinned() {
    let id = TenureId::new(0x1122_3344_5566_7788, "/holdfast/pairs/db/seat", 5);
    assert_eq!(format!("{:032x}", id.cluster()), "206ae727f22d173a0000000000000005");
}

#[test]
fn what_waits_for_the_store() {
    use Durability::{Flush, Write};
    assert_eq!([Flush.change_waits(false), Flush.change_waits(true)], [false, true]);
    assert_eq!([Write.change_waits(false), Write.change_waits(true)], [true, true]);
    assert!(!Flush.read_waits() && Write.read_waits());
}

/// One keep-alive: sent how long after the one before, time to the etcd, time back. In real milliseconds.
type Step = (u64, u64, u64);

/// Real times at which the rule allows an answer although the etcd's lease has ended: PAIR-P1 says there are none.
/// `rates`: clock rates of the holder and of the etcd, in percent.
fn answered_too_late(ttl_ms: u64, rates: (u64, u64), steps: &[Step], asks: &[u64]) -> Option<u64> {
    let local = |real: u64| MonoTime(real * MS / 100 * rates.0);
    let ttl = Duration::from_millis(ttl_ms);
    // The etcd counts from the arrival, by its own clock.
    let lease_end = |arrived: u64| arrived + ttl_ms * 100 / rates.1;
    let (mut sent, mut lease) = (1_000, lease_end(1_000 + steps[0].1));
    let mut tenure = Tenure::begin(local(sent), ttl);
    let mut now = sent + steps[0].1 + steps[0].2;
    for (gap, there, back) in &steps[1..] {
        sent = now + gap;
        // Questions in between: the lease is as of the last arrival.
        for ask in asks.iter().map(|ask| now + ask).filter(|at| *at < sent + there) {
            if tenure.may_answer(local(ask)).is_ok() && ask > lease {
                return Some(ask);
            }
        }
        let arrived = sent + there;
        if arrived > lease {
            // The etcd has no such lease: it answers that, and the other gateway has the seat.
            break;
        }
        lease = lease_end(arrived);
        now = arrived + back;
        tenure.renewed(local(now), local(sent), ttl);
    }
    asks.iter().map(|ask| now + ask).find(|ask| tenure.may_answer(local(*ask)).is_ok() && *ask > lease)
}

proptest! {
    #[test]
    fn nothing_is_answered_after_the_lease_has_ended(
        ttl_ms in 3_000_u64..20_000,
        rates in (90_u64..=110, 90_u64..=110),
        steps in proptest::collection::vec((0_u64..15_000, 0_u64..3_000, 0_u64..3_000), 1..12),
        asks in proptest::collection::vec(0_u64..40_000, 1..60),
    ) {
        // If the first answer took longer than the lease lasts, this gateway never had the seat.
        prop_assume!(steps[0].1 + steps[0].2 < ttl_ms / 2);
        let mut asks = asks;
        asks.sort_unstable();
        prop_assert_eq!(answered_too_late(ttl_ms, rates, &steps, &asks), None);
    }
}
