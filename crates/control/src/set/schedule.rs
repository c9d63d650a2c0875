//! Schedule: decides which snapshots to take and delete, from the present snapshots and the clock. The set's leader
//! calls it.
//!
//! ```text
//!   every 1h, keep 3:   periods of the wall clock   | 09:00      | 10:00      | 11:00      | 12:00
//!                       snapshots                   a  b         c            (none)       d            kept: a? no (4th), c, d; of a, b: a
//! ```
//! A rule divides the wall clock into periods of its length, counted from 1970. It wants one snapshot in the present
//! period. It keeps the first snapshot of each of the newest `keep` periods that have any. One snapshot may serve
//! several rules.
//!
//! SCHED-C1  At most one snapshot is wanted at a time, however many periods were missed: it is taken once, late.
//! SCHED-C2  None is wanted while one is pending: if the store is away, one snapshot waits, not one for each period.
//! SCHED-C3  Only snapshots that the schedule took are deleted. Never one that waits for its checkpoint, one of the
//!     present period that a rule needs, or one of the future (the clock was wrong). So taking and deleting cannot
//!     follow each other in a loop.
//! SCHED-C4  No snapshot is deleted for its age alone: a set that could take none for a month keeps what it has.

use crate::text::Utc;
use holdfast_types::{Name, RequestId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Most rules of one schedule.
pub const RULES_MAX: usize = 8;
/// Most snapshots that all rules of a schedule may retain: users need room for theirs too.
pub const KEPT_MAX: u32 = 100;
/// Shortest time between two snapshots of a rule, in seconds: each costs a checkpoint.
pub const EVERY_S_MIN: u32 = 60;
/// Longest time between two snapshots of a rule, in seconds: a year and a day.
pub const EVERY_S_MAX: u32 = 366 * 86_400;

/// One snapshot in every period of `every_s` seconds; the newest `keep` of them stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rule {
    /// Length of a period in seconds.
    pub every_s: u32,
    /// Slots whose first snapshot stays.
    pub keep: u32,
}

impl Rule {
    fn period(&self, at_unix_ms: u64) -> u64 {
        at_unix_ms / (u64::from(self.every_s.max(1)) * 1000)
    }
}

/// A set's schedule; without rules no snapshot is taken or deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Schedule {
    /// By length of their periods, each length once.
    pub rules: Vec<Rule>,
}

/// A snapshot that the schedule took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Its name.
    pub name: Name,
    /// The request that made it.
    pub made_by: RequestId,
    /// Wall clock of its request.
    pub at_unix_ms: u64,
    /// It has its checkpoint.
    pub finished: bool,
}

impl Schedule {
    /// Whether a snapshot is to be taken now.
    pub fn is_due(&self, taken: &[Taken], now_unix_ms: u64) -> bool {
        // SCHED-C2.
        if taken.iter().any(|one| !one.finished) {
            return false;
        }
        let has = |rule: &Rule| taken.iter().any(|one| rule.period(one.at_unix_ms) == rule.period(now_unix_ms));
        self.rules.iter().any(|rule| !has(rule))
    }

    /// The snapshots that no rule retains any more, oldest first.
    pub fn expired<'a>(&self, taken: &'a [Taken], now_unix_ms: u64) -> Vec<&'a Taken> {
        if self.rules.is_empty() {
            return Vec::new();
        }
        // Two of one moment: the name decides, the same at every leader.
        let mut past: Vec<&Taken> = taken.iter().filter(|one| one.finished && one.at_unix_ms <= now_unix_ms).collect();
        past.sort_by(|a, b| (a.at_unix_ms, &a.name).cmp(&(b.at_unix_ms, &b.name)));
        let mut kept: BTreeSet<&Name> = BTreeSet::new();
        for rule in &self.rules {
            let mut firsts: BTreeMap<u64, &Name> = BTreeMap::new();
            for one in &past {
                firsts.entry(rule.period(one.at_unix_ms)).or_insert(&one.name);
            }
            kept.extend(firsts.into_iter().rev().take(rule.keep as usize).map(|(_, name)| name));
        }
        past.retain(|one| !kept.contains(&one.name));
        past
    }
}

/// The name of a scheduled snapshot at this moment: `auto-20261120T083000Z`.
pub fn name_at(at_unix_ms: u64) -> Option<Name> {
    let text: String = Utc(at_unix_ms).to_string().chars().filter(|c| !matches!(c, '-' | ':')).collect();
    Name::new(format!("auto-{text}")).ok()
}

/// An invalid schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum ScheduleError {
    /// A rule does not read as `15mx8`.
    #[error("rule {found:?}: expected INTERVALxCOUNT, such as 15mx8 or 1dx30 (units s, m, h, d, w), or `off` alone")]
    Rule {
        /// As written.
        found: String,
    },
    /// A time out of bounds.
    #[error("rule {found}: expected an interval of {EVERY_S_MIN} s to 366 d, and a count of 1 to {KEPT_MAX}")]
    Bounds {
        /// As written.
        found: String,
    },
    /// Too many rules, two of one interval, or more snapshots than a set may have.
    #[error(
        "schedule {found}: expected at most {RULES_MAX} rules with different intervals, which keep at most {KEPT_MAX} snapshots in total"
    )]
    Sum {
        /// As written.
        found: String,
    },
}

impl Schedule {
    /// Checks what the proposer should have checked.
    pub fn check(&self) -> Result<(), ScheduleError> {
        for rule in &self.rules {
            if !(EVERY_S_MIN..=EVERY_S_MAX).contains(&rule.every_s) || !(1..=KEPT_MAX).contains(&rule.keep) {
                return Err(ScheduleError::Bounds { found: rule.to_string() });
            }
        }
        let kept: u64 = self.rules.iter().map(|rule| u64::from(rule.keep)).sum();
        let ascending = self.rules.windows(2).all(|pair| pair[0].every_s < pair[1].every_s);
        if self.rules.len() > RULES_MAX || kept > u64::from(KEPT_MAX) || !ascending {
            return Err(ScheduleError::Sum { found: self.to_string() });
        }
        Ok(())
    }
}

const UNITS: [(&str, u32); 5] = [("w", 604_800), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = UNITS.iter().find(|(_, seconds)| self.every_s.is_multiple_of(*seconds));
        let (unit, seconds) = exact.copied().unwrap_or(("s", 1));
        write!(f, "{}{unit}x{}", self.every_s / seconds, self.keep)
    }
}

impl FromStr for Rule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        let bad = || ScheduleError::Rule { found: text.to_string() };
        let (every, keep) = text.split_once(['x', 'X', '×']).ok_or_else(bad)?;
        let unit = UNITS.iter().find_map(|(unit, seconds)| Some((every.strip_suffix(unit)?, *seconds)));
        let (count, seconds) = unit.ok_or_else(bad)?;
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(count) || !digits(keep) {
            return Err(bad());
        }
        let every_s = count.parse::<u32>().ok().and_then(|count| count.checked_mul(seconds));
        match (every_s, keep.parse()) {
            (Some(every_s), Ok(keep)) => Ok(Self { every_s, keep }),
            _ => Err(ScheduleError::Bounds { found: text.to_string() }),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.rules.is_empty() {
            return f.write_str("off");
        }
        for (at, rule) in self.rules.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{rule}")?;
        }
        Ok(())
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    /// Reads `15mx8,1hx24,1dx30` (or with ×), or `off`.
    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        if text.trim() == "off" {
            return Ok(Self::default());
        }
        let rules: Result<Vec<Rule>, ScheduleError> = text.split(',').map(|rule| rule.trim().parse()).collect();
        let mut schedule = Self { rules: rules? };
        schedule.rules.sort();
        schedule.check()?;
        Ok(schedule)
    }
}

#[cfg(test)]
mod tests;
