//! Counts over histories.

use super::model::{Counts, Stats};

/// Counts over the histories of a run. Passed between processes as one line of numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums(pub [u64; 32]);

impl Sums {
    const NAMES: [&str; 32] = [
        "histories",
        "steps",
        "reads",
        "reads of snapshots",
        "unread",
        "takeovers",
        "of them from a leader that lives",
        "writes",
        "entries refused",
        "operations outside",
        "checkpoints",
        "snapshots",
        "rollbacks",
        "shrinks and deletions",
        "objects retired",
        "of them given up in their own term",
        "objects deleted",
        "requests refused by the store",
        "unanswered",
        "conflicts",
        "not found",
        "spoilt",
        "stale listings",
        "entries missing in listings",
        "dropped roots damaged",
        "clones",
        "recoveries",
        "data keys made",
        "data keys dropped",
        "roots in leaves",
        "pairs of snapshots compared",
        "snapshots that came back",
    ];

    /// Of one history.
    pub fn of(stats: Stats, counts: Counts, played: [u64; 8]) -> Self {
        let Stats { steps, reads, snapshot_reads, unread, takeovers, ghosts, rotten, clones, recoveries, .. } = stats;
        let Counts { writes, refused, outside, checkpoints, snapshots, rollbacks, discards, .. } = counts;
        let Counts { retired, given_up, deleted, .. } = counts;
        let [a, b, c, d, e, f, g, _] = played;
        Self([
            1,
            steps,
            reads,
            snapshot_reads,
            unread,
            takeovers,
            ghosts,
            writes,
            refused,
            outside,
            checkpoints,
            snapshots,
            rollbacks,
            discards,
            retired,
            given_up,
            deleted,
            a,
            b,
            c,
            d,
            e,
            f,
            g,
            rotten,
            clones,
            recoveries,
            stats.keys_made,
            stats.keys_dropped,
            stats.roots_in_leaves,
            stats.compared,
            stats.came_back,
        ])
    }

    /// As one line, for the process that started this one.
    pub fn line(&self) -> String {
        self.0.map(|sum| sum.to_string()).join(" ")
    }

    /// Reads such a line.
    pub fn read(line: &str) -> Self {
        let mut sums = Self::default();
        sums.0.iter_mut().zip(line.split(' ')).for_each(|(sum, word)| *sum = word.parse().unwrap_or(0));
        sums
    }

    /// Adds those of others.
    pub fn add(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}

impl std::fmt::Display for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<String> =
            Self::NAMES.iter().zip(self.0).map(|(name, count)| format!("{count} {name}")).collect();
        f.write_str(&words.join(", "))
    }
}
