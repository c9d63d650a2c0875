//! The ledger compared with a restored database. All commits acknowledged before the restore time must be there. Later
//! ones may be there as a prefix: if a commit is there, no commit is missing that was acknowledged before that one was
//! sent.

use super::{Commit, Row};
use std::collections::{BTreeMap, BTreeSet};

/// Result of comparing the table with the ledger and a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Acknowledged before the moment, by the wall clock.
    pub before: u64,
    /// Those not in the table.
    pub lost: u64,
    /// Acknowledged in the millisecond of the moment, or later.
    pub after: u64,
    /// Those in the table.
    pub kept: u64,
    /// Not in the table, although acknowledged before a commit in the table was begun.
    pub gaps: u64,
    /// In the table without an acknowledgement; allowed.
    pub in_doubt_found: u64,
    /// In the table and never tried.
    pub invented: u64,
    /// Time of the acknowledgement of the first missing one, Unix milliseconds.
    pub first_missing_ms: Option<u64>,
}

impl Restored {
    pub(super) fn judge(
        moment_ms: u64,
        acknowledged: &BTreeMap<Row, Commit>,
        in_doubt: &BTreeMap<Row, u64>,
        table: &BTreeSet<Row>,
    ) -> Self {
        let begun = |row: &Row| acknowledged.get(row).map(|commit| commit.begun_us).or(in_doubt.get(row).copied());
        let last_begun = table.iter().filter_map(begun).max().unwrap_or(0);
        let mut found = Self {
            in_doubt_found: table.iter().filter(|row| in_doubt.contains_key(row)).count() as u64,
            invented: table.iter().filter(|row| begun(row).is_none()).count() as u64,
            ..Self::default()
        };
        for (row, commit) in acknowledged {
            let (before, missing) = (commit.unix_ms < moment_ms, !table.contains(row));
            found.before += u64::from(before);
            found.lost += u64::from(before && missing);
            found.after += u64::from(!before);
            found.kept += u64::from(!before && !missing);
            found.gaps += u64::from(missing && commit.ended_us < last_begun);
            if missing {
                found.first_missing_ms =
                    Some(found.first_missing_ms.map_or(commit.unix_ms, |first| first.min(commit.unix_ms)));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two writers in turn, ten milliseconds per commit: writer 0 is acknowledged at 10, 20, 30, writer 1 at 15, 25,
    /// 35.
    fn acknowledged() -> BTreeMap<Row, Commit> {
        let rows = (0..2).flat_map(|w| (1..=3).map(move |n| (w, n)));
        let commit = |(w, n): Row| {
            let at = 10 * n + 5 * w as u64;
            Commit { unix_ms: at, begun_us: (at - 9) * 1000, ended_us: at * 1000 }
        };
        rows.map(|row| (row, commit(row))).collect()
    }

    /// Two unfinished commits at the end.
    fn in_doubt() -> BTreeMap<Row, u64> {
        BTreeMap::from([((0, 4), 31_000), ((1, 4), 36_000)])
    }

    fn judged(moment_ms: u64, table: &[Row]) -> Restored {
        Restored::judge(moment_ms, &acknowledged(), &in_doubt(), &table.iter().copied().collect())
    }

    #[test]
    fn a_prefix_beyond_the_moment() {
        let found = judged(20, &[(0, 1), (1, 1), (0, 2), (1, 2)]);
        let expected = Restored { before: 2, after: 4, kept: 2, first_missing_ms: Some(30), ..Restored::default() };
        assert_eq!(found, expected);
    }

    #[test]
    fn what_was_acknowledged_before_the_moment_is_lost() {
        // Complete up to 20: at any later moment it is not.
        let table = [(0, 1), (1, 1), (0, 2)];
        assert_eq!((judged(21, &table).lost, judged(25, &table).lost), (0, 0));
        assert_eq!((judged(26, &table).lost, judged(31, &table).lost), (1, 2));
        assert_eq!(judged(26, &table).first_missing_ms, Some(25));
    }

    #[test]
    fn two_at_once_may_be_there_in_either_order() {
        // (1, 2) was begun at 16, before (0, 2) was acknowledged at 20; and (0, 3) at 21, before (1, 2) was
        // acknowledged at 25.
        assert_eq!(judged(10, &[(0, 1), (1, 1), (1, 2)]).gaps, 0);
        assert_eq!(judged(10, &[(0, 1), (1, 1), (0, 2), (0, 3)]).gaps, 0);
    }

    #[test]
    fn a_gap_is_found() {
        // (1, 3) was begun at 26: (0, 2) was acknowledged by then, and so was (1, 2).
        assert_eq!(judged(10, &[(0, 1), (1, 1), (1, 2), (1, 3)]).gaps, 1);
        assert_eq!(judged(10, &[(0, 1), (1, 1), (1, 3)]).gaps, 2);
        // Also before one that was never acknowledged: (1, 4) was begun at 36.
        let found = judged(10, &[(0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 4)]);
        assert_eq!((found.gaps, found.in_doubt_found), (1, 1));
    }

    #[test]
    fn what_was_never_tried_is_invented() {
        assert_eq!(judged(10, &[(0, 1), (0, 9)]).invented, 1);
    }
}
