use super::*;
use crate::error::At;
use std::sync::Arc;

fn at(op: Op) -> Box<At> {
    At::new(&Arc::from("s3://bucket/"), op, "key")
}

fn answer(op: Op, status: u16, code: &str) -> StoreError {
    let cause = Box::new(Cause { status: Some(status), code: Some(code.to_owned()), ..Cause::default() });
    match status {
        403 => StoreError::Denied { at: at(op), cause, hint: "do something" },
        _ => StoreError::Unavailable { at: at(op), attempts: 1, cause },
    }
}

fn kind_now(health: &Health, now: u64) -> Option<(Kind, u64, u64)> {
    health.standing(now).now.map(|t| (t.kind, t.since_unix_ms, t.failures))
}

#[test]
fn since_is_the_first_failure_in_a_row_and_the_words_are_the_last_ones() {
    let health = Health::new("demo");
    assert_eq!(health.standing(1), Standing::default());
    health.attempt(10, Op::Put, Some(&answer(Op::Put, 503, "SlowDown")));
    health.attempt(20, Op::Put, Some(&answer(Op::Put, 507, "XMinioStorageFull")));
    assert_eq!(kind_now(&health, 25), Some((Kind::Full, 10, 2)));
    health.attempt(30, Op::Put, None);
    let after = health.standing(40);
    assert_eq!(after.now, None);
    let (last, ended) = after.last.expect("it was there");
    assert_eq!((last.kind, last.last_unix_ms, ended), (Kind::Full, 20, 30));
    health.attempt(50, Op::Put, Some(&answer(Op::Put, 503, "SlowDown")));
    assert_eq!(kind_now(&health, 50), Some((Kind::Throttled, 50, 1)), "a new row of failures");
}

#[test]
fn a_full_bucket_is_not_over_because_something_small_fits_or_reads_work() {
    let health = Health::new("demo");
    health.attempt(10, Op::Put, Some(&answer(Op::Put, 507, "")));
    for op in [Op::Swap, Op::Delete, Op::Get, Op::Range, Op::List] {
        health.attempt(20, op, None);
        assert_eq!(kind_now(&health, 20), Some((Kind::Full, 10, 1)), "{op:?}");
    }
    health.attempt(30, Op::Put, None);
    assert_eq!(kind_now(&health, 30), None);
}

#[test]
fn what_says_something_of_the_whole_store_ends_with_its_kin() {
    let health = Health::new("demo");
    health.attempt(10, Op::List, Some(&answer(Op::List, 503, "SlowDown")));
    health.attempt(11, Op::Put, None);
    assert!(kind_now(&health, 12).is_some(), "writes say nothing of reads");
    health.attempt(12, Op::Range, None);
    assert_eq!(kind_now(&health, 12), None);
}

#[test]
fn what_needs_somebody_is_shown_before_the_rest_and_of_that_what_was_met_last() {
    let health = Health::new("demo");
    health.attempt(10, Op::Range, Some(&answer(Op::Range, 503, "SlowDown")));
    health.attempt(20, Op::Put, Some(&answer(Op::Put, 403, "ExpiredToken")));
    assert_eq!(kind_now(&health, 21), Some((Kind::Credentials, 20, 1)));
    health.attempt(30, Op::Delete, Some(&answer(Op::Delete, 403, "AccessDenied")));
    assert_eq!(
        kind_now(&health, 31),
        Some((Kind::Denied, 30, 1)),
        "a request that is not tried again is not the last word"
    );
    health.attempt(40, Op::Delete, None);
    assert_eq!(kind_now(&health, 41), Some((Kind::Throttled, 10, 1)));
}

#[test]
fn what_waits_for_another_request_does_not_hide_what_that_one_meets() {
    let health = Health::new("demo");
    health.attempt(10, Op::Swap, Some(&answer(Op::Swap, 403, "ExpiredToken")));
    health.attempt(10 + LEADS_MS, Op::Get, Some(&answer(Op::Get, 503, "SlowDown")));
    assert_eq!(kind_now(&health, 10 + LEADS_MS), Some((Kind::Credentials, 10, 1)));
    health.attempt(11 + LEADS_MS, Op::Get, Some(&answer(Op::Get, 503, "SlowDown")));
    assert_eq!(kind_now(&health, 11 + LEADS_MS), Some((Kind::Throttled, 10 + LEADS_MS, 2)));
    health.attempt(12 + LEADS_MS, Op::Get, None);
    assert_eq!(kind_now(&health, 12 + LEADS_MS), Some((Kind::Credentials, 10, 1)), "not over, only not the last word");
}

#[test]
fn nothing_there_and_something_else_there_are_no_trouble() {
    let health = Health::new("demo");
    health.attempt(10, Op::Get, Some(&StoreError::NotFound { at: at(Op::Get) }));
    health.attempt(10, Op::Put, Some(&StoreError::Exists { at: at(Op::Put), found_bytes: 1, expected_bytes: 2 }));
    assert_eq!(health.standing(10), Standing::default());
}

#[test]
fn a_missing_object_stays_until_nobody_has_met_it_for_long() {
    let health = Health::new("demo");
    health.object(10, "sets/1/seg/a", Kind::Missing, &"not there");
    health.object(30, "sets/1/seg/a", Kind::Missing, &"not there");
    health.attempt(40, Op::Range, None);
    assert_eq!(kind_now(&health, 41), Some((Kind::Missing, 10, 2)));
    health.object(60, "sets/1/seg/a", Kind::Damaged, &"flipped");
    assert_eq!(kind_now(&health, 60 + OBJECT_TROUBLE_MS), Some((Kind::Damaged, 10, 3)));
    assert_eq!(kind_now(&health, 61 + OBJECT_TROUBLE_MS), None);
}

#[test]
fn each_answer_has_its_kind() {
    let denied = |code: &str| answer(Op::Get, 403, code).kind();
    assert_eq!(denied("AccessDenied"), Some(Kind::Denied));
    for code in ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"] {
        assert_eq!(denied(code), Some(Kind::Credentials), "{code}");
    }
    let skew = StoreError::ClockSkew { at: at(Op::Get), found: "a".into(), expected: "b".into() };
    assert_eq!(skew.kind(), Some(Kind::Clock));
    assert_eq!(answer(Op::Get, 500, "InternalError").kind(), Some(Kind::Failing));
    assert_eq!(answer(Op::Put, 400, "XAmzContentSHA256Mismatch").kind(), Some(Kind::Broken));
    let mut timed = Cause::text("no answer within 10 ms");
    timed.kind = Some(Kind::NoAnswer);
    let unknown = StoreError::Unknown { at: at(Op::Put), attempts: 3, cause: timed };
    assert_eq!(unknown.kind(), Some(Kind::NoAnswer));
    assert!(!Kind::NoAnswer.needs_operator() && Kind::Full.needs_operator());
}
