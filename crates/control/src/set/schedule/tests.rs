//! A schedule over simulated time.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;
/// 2026-11-20T00:00:00Z.
const BEGIN: u64 = 1_795_132_800_000;

fn one(at_unix_ms: u64, finished: bool) -> Taken {
    Taken { name: name_at(at_unix_ms).unwrap(), made_by: RequestId(u128::from(at_unix_ms)), at_unix_ms, finished }
}

/// A leader's turn: lets go, then takes.
fn turn(schedule: &Schedule, all: &mut Vec<Taken>, now: u64) -> bool {
    let gone: Vec<Name> = schedule.expired(all, now).into_iter().map(|one| one.name.clone()).collect();
    all.retain(|one| !gone.contains(&one.name));
    let due = schedule.is_due(all, now);
    if due {
        all.push(one(now, true));
    }
    due
}

fn shown(all: &[Taken]) -> Vec<&str> {
    all.iter().map(|one| one.name.as_str()).collect()
}

#[test]
fn texts() {
    for (text, shown) in [
        ("15mx8,1hx24,1dx30", "15mx8,1hx24,1dx30"),
        ("1d×30, 15m×8,1h×24", "15mx8,1hx24,1dx30"),
        ("90sX2", "90sx2"),
        ("7dx4", "1wx4"),
        ("36hx1", "36hx1"),
        // The most that is allowed: rules, snapshots of one and of all, and both ends of an interval.
        ("1mx1,2mx1,3mx1,4mx1,5mx1,6mx1,7mx1,8mx1", "1mx1,2mx1,3mx1,4mx1,5mx1,6mx1,7mx1,8mx1"),
        ("15mx60,1hx40", "15mx60,1hx40"),
        ("60sx100", "1mx100"),
        ("366dx1", "366dx1"),
        ("off", "off"),
    ] {
        let schedule: Schedule = text.parse().unwrap();
        assert_eq!(schedule.to_string(), shown);
        assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
    }
    for bad in ["", "15m", "x8", "15mx", "15x8", "-15mx8", "15m x 8", "15mx8,,1hx2", "15mx+8", "1yx1"] {
        assert!(matches!(bad.parse::<Schedule>(), Err(ScheduleError::Rule { .. })), "{bad}");
    }
    for bad in ["59sx1", "15mx0", "367dx1", "15mx101", "99999999999mx1", "15mx99999999999"] {
        assert!(matches!(bad.parse::<Schedule>(), Err(ScheduleError::Bounds { .. })), "{bad}");
    }
    for bad in ["15mx60,1hx60", "15mx8,15mx9", "60mx1,1hx1", "1mx1,2mx1,3mx1,4mx1,5mx1,6mx1,7mx1,8mx1,9mx1"] {
        assert!(matches!(bad.parse::<Schedule>(), Err(ScheduleError::Sum { .. })), "{bad}");
    }
}

#[test]
fn names_say_when() {
    assert_eq!(name_at(BEGIN).unwrap().as_str(), "auto-20261120T000000Z");
}

#[test]
fn two_days_of_a_schedule() {
    let schedule: Schedule = "15mx3,1hx3,1dx2".parse().unwrap();
    let mut all = Vec::new();
    let mut count = 0;
    for minute in 0..=2 * 24 * 60 + 50 {
        count += u64::from(turn(&schedule, &mut all, BEGIN + minute * MINUTE));
    }
    assert_eq!(count, 2 * 24 * 4 + 4, "one in each quarter of an hour, for all rules together");
    let expected = [
        "auto-20261121T000000Z",
        "auto-20261121T220000Z",
        "auto-20261121T230000Z",
        "auto-20261122T000000Z",
        "auto-20261122T001500Z",
        "auto-20261122T003000Z",
        "auto-20261122T004500Z",
    ];
    assert_eq!(shown(&all), expected);
}

#[test]
fn c1_a_missed_time_is_taken_once() {
    let schedule: Schedule = "15mx8".parse().unwrap();
    let mut all = vec![one(BEGIN, true)];
    let later = BEGIN + 7 * HOUR + 3 * MINUTE;
    assert!(turn(&schedule, &mut all, later));
    assert!(!turn(&schedule, &mut all, later + 1000));
    assert_eq!(
        shown(&all),
        ["auto-20261120T000000Z", "auto-20261120T070300Z"],
        "SCHED-C4: expected the old one to stay"
    );
    assert!(turn(&schedule, &mut all, BEGIN + 7 * HOUR + 15 * MINUTE), "then on time again");
}

#[test]
fn c2_none_is_taken_while_one_waits() {
    let schedule: Schedule = "15mx1".parse().unwrap();
    let waiting = [one(BEGIN, true), one(BEGIN + 15 * MINUTE, false)];
    for minute in [16, 31, 600] {
        assert!(!schedule.is_due(&waiting, BEGIN + minute * MINUTE));
        assert!(
            schedule.expired(&waiting, BEGIN + minute * MINUTE).is_empty(),
            "SCHED-C3: the last whole one stays until then"
        );
    }
}

#[test]
fn c3_a_clock_that_was_wrong_takes_nothing_away() {
    let schedule: Schedule = "15mx2".parse().unwrap();
    // Three of next year: the clock was ahead. Present ones are taken and retained as always.
    let mut all: Vec<Taken> = (0..3).map(|n| one(BEGIN + 365 * DAY + n * HOUR, true)).collect();
    for minute in 0..120 {
        turn(&schedule, &mut all, BEGIN + minute * MINUTE);
    }
    assert_eq!(all.len(), 5, "{:?}", shown(&all));
    // A step back by an hour: one more is taken there, and nothing is deleted in a loop.
    let mut count = 0;
    for minute in 60..=119 {
        count += u64::from(turn(&schedule, &mut all, BEGIN + minute * MINUTE));
    }
    assert!(count <= 4, "{count}");
    assert!(Schedule::default().expired(&all, u64::MAX).is_empty(), "without a schedule nothing is deleted");
    assert!(!Schedule::default().is_due(&[], BEGIN));
}

fn schedules() -> impl Strategy<Value = Schedule> {
    vec((1_u32..300, 1_u32..12), 1..5).prop_map(|rules| {
        let mut rules: Vec<Rule> = rules.into_iter().map(|(every, keep)| Rule { every_s: every * 60, keep }).collect();
        rules.sort();
        rules.dedup_by_key(|rule| rule.every_s);
        let schedule = Schedule { rules };
        schedule.check().unwrap();
        schedule
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// At arbitrary times, with clock steps: never more than the rules' sum; the newest is always there, and so is the
    /// first of each of the newest periods; a second call right after the first does nothing.
    #[test]
    fn what_is_kept_is_what_the_rules_say(schedule in schedules(), steps in vec(1_u64..200, 1..150)) {
        let mut all = Vec::new();
        let mut ever: Vec<Taken> = Vec::new();
        let mut now = BEGIN;
        for step in steps {
            now += step * MINUTE;
            if turn(&schedule, &mut all, now) {
                ever.push(one(now, true));
            }
            let gone: Vec<Name> = schedule.expired(&all, now).into_iter().map(|one| one.name.clone()).collect();
            all.retain(|one| !gone.contains(&one.name));
            prop_assert!(!turn(&schedule, &mut all, now), "a second call took another snapshot");
            let most: usize = schedule.rules.iter().map(|rule| rule.keep as usize).sum();
            prop_assert!(all.len() <= most, "{} kept, at most {most}", all.len());
            for rule in &schedule.rules {
                let mut firsts = BTreeMap::new();
                for one in &ever {
                    firsts.entry(rule.period(one.at_unix_ms)).or_insert(one);
                }
                for (_, first) in firsts.iter().rev().take(rule.keep as usize) {
                    prop_assert!(all.contains(first), "{rule} lacks {}", first.name);
                }
            }
        }
    }
}
