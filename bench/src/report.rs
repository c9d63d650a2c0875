//! Results: stored per round, printed as medians and ratios.

use super::rows::Row;
use super::target::Kind;
use crate::stats;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

/// One figure.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Value {
    /// In the row's unit; higher is better in every row.
    pub value: f64,
    /// 99th percentile of the requests' latency, in milliseconds.
    pub p99_ms: Option<f64>,
    /// 99th percentile of the syncs' latency, in milliseconds.
    pub sync_p99_ms: Option<f64>,
}

type Measured = BTreeMap<&'static str, Value>;

#[derive(Clone, Debug, Default, Serialize)]
struct Round {
    /// By letter of the target, then by key of the row.
    values: BTreeMap<char, Measured>,
    /// Load and pressure right after each target's turn.
    machine: BTreeMap<char, String>,
}

/// All rounds.
#[derive(Debug)]
pub struct Results {
    settings: Vec<(String, String)>,
    rows: Vec<Row>,
    kinds: Vec<Kind>,
    rounds: Vec<Round>,
}

/// A goal of the project: a lower bound for the median ratio of two targets in a row.
struct Aim {
    text: &'static str,
    rows: &'static str,
    of: char,
    to: char,
    at_least: f64,
}

const AIMS: [Aim; 8] = [
    Aim { text: "one gateway >= 0.9 of nbdkit file, each row", rows: "", of: 'c', to: 'b', at_least: 0.9 },
    Aim {
        text: "one gateway >= 0.9 of nbdkit with the same durability, each row",
        rows: "",
        of: 'c',
        to: 'e',
        at_least: 0.9,
    },
    Aim {
        text: "three gateways, TPC-B sync on >= 1.0 of nbdkit with the same durability",
        rows: "pgbench-sync-on",
        of: 'd',
        to: 'e',
        at_least: 1.0,
    },
    Aim {
        text: "three gateways, TPC-B sync on >= 1.0 of nbdkit file",
        rows: "pgbench-sync-on",
        of: 'd',
        to: 'b',
        at_least: 1.0,
    },
    Aim {
        text: "three gateways, write + flush QD 1 >= 1.5 of nbdkit file",
        rows: "write-flush-qd1",
        of: 'd',
        to: 'b',
        at_least: 1.5,
    },
    Aim { text: "the same through ext4", rows: "file-write-sync-qd1", of: 'd', to: 'b', at_least: 1.5 },
    Aim { text: "three gateways, hot reads >= 0.8 of nbdkit file", rows: "read-hot", of: 'd', to: 'b', at_least: 0.8 },
    Aim {
        text: "goal: three gateways, TPC-B sync on >= 0.8 of the local disk",
        rows: "pgbench-sync-on",
        of: 'd',
        to: 'a',
        at_least: 0.8,
    },
];

/// Ratios in the table.
const RATIOS: [(char, char); 8] =
    [('c', 'b'), ('d', 'b'), ('c', 'e'), ('d', 'e'), ('d', 'c'), ('d', 'a'), ('s', 'd'), ('s', 'z')];

impl Results {
    pub fn new(settings: Vec<(String, String)>, rows: &[Row], kinds: &[Kind]) -> Self {
        Self { settings, rows: rows.to_vec(), kinds: kinds.to_vec(), rounds: Vec::new() }
    }

    pub fn begin_round(&mut self) {
        self.rounds.push(Round::default());
    }

    pub fn add(&mut self, kind: Kind, measured: Measured, machine: String) {
        if let Some(round) = self.rounds.last_mut() {
            round.values.insert(kind.letter(), measured);
            round.machine.insert(kind.letter(), machine);
        }
    }

    fn value(&self, row: &str, letter: char) -> Option<f64> {
        let values: Vec<f64> =
            self.rounds.iter().filter_map(|r| Some(r.values.get(&letter)?.get(row)?.value)).collect();
        stats::median(&values)
    }

    /// Median of the rounds' ratios, not the ratio of medians: a slow machine affects both sides of a round.
    fn ratio(&self, row: &str, of: char, to: char) -> Option<f64> {
        let one = |r: &Round| Some(r.values.get(&of)?.get(row)?.value / r.values.get(&to)?.get(row)?.value);
        stats::median(&self.rounds.iter().filter_map(one).collect::<Vec<f64>>())
    }

    /// The table of medians and ratios.
    pub fn table(&self) -> String {
        let has = |letter: char| self.kinds.iter().any(|k| k.letter() == letter);
        let ratios: Vec<(char, char)> = RATIOS.into_iter().filter(|(a, b)| has(*a) && has(*b)).collect();
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
        let mut header = vec![format!("median of {}", self.rounds.len()), String::new()];
        header.extend(self.kinds.iter().map(|k| format!("{} {}", k.letter(), k.title())));
        header.extend(ratios.iter().map(|(a, b)| format!("{a}/{b}")));
        table.set_header(header);
        for row in &self.rows {
            let mut cells = vec![row.title.to_owned(), row.unit.to_owned()];
            let figure = |v: Option<f64>, digits: usize| v.map_or_else(|| "-".into(), |v| format!("{v:.digits$}"));
            cells.extend(self.kinds.iter().map(|k| figure(self.value(row.key, k.letter()), 0)));
            cells.extend(ratios.iter().map(|(a, b)| figure(self.ratio(row.key, *a, *b), 2)));
            table.add_row(cells);
        }
        table.to_string()
    }

    /// The project's goals, each `reached` or not, with the worst row.
    pub fn judge(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for aim in AIMS {
            let rows = self.rows.iter().filter(|r| r.key.contains(aim.rows));
            let found = rows.filter_map(|r| Some((self.ratio(r.key, aim.of, aim.to)?, r.key)));
            let Some((worst, key)) = found.min_by(|a, b| a.0.total_cmp(&b.0)) else { continue };
            let word = if worst >= aim.at_least { "reached    " } else { "not reached" };
            lines.push(format!("{word} {}: {worst:.2} ({key})", aim.text));
        }
        lines
    }

    /// Writes `results.json`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let mut medians = BTreeMap::new();
        for row in &self.rows {
            let of = |k: &Kind| Some((k.letter(), self.value(row.key, k.letter())?));
            let values: BTreeMap<char, f64> = self.kinds.iter().filter_map(of).collect();
            let of = |(a, b): &(char, char)| Some((format!("{a}/{b}"), self.ratio(row.key, *a, *b)?));
            let ratios: BTreeMap<String, f64> = RATIOS.iter().filter_map(of).collect();
            medians.insert(row.key, serde_json::json!({ "unit": row.unit, "medians": values, "ratios": ratios }));
        }
        let targets: BTreeMap<char, &str> = self.kinds.iter().map(|k| (k.letter(), k.title())).collect();
        let all = serde_json::json!({
            "settings": self.settings.iter().cloned().collect::<BTreeMap<String, String>>(),
            "targets": targets,
            "rows": medians,
            "judgement": self.judge(),
            "rounds": self.rounds,
        });
        std::fs::write(dir.join("results.json"), serde_json::to_vec_pretty(&all)?)?;
        Ok(())
    }
}

/// One target's turn, on one line.
pub fn short(rows: &[Row], measured: &Measured) -> String {
    let one = |r: &Row| measured.get(r.key).map(|v| format!("{} {:.0}", r.key, v.value));
    rows.iter().filter_map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::rows::rows;
    use super::super::target::KINDS;
    use super::*;

    #[test]
    fn ratios_are_taken_inside_a_round() {
        let mut results = Results::new(Vec::new(), &rows("pgbench-sync-on"), &KINDS);
        // Rounds on a slow, a fast and a medium machine: the ratio is 2, 2 and 1.
        for (b, d) in [(10.0, 20.0), (1000.0, 2000.0), (100.0, 100.0)] {
            results.begin_round();
            let value = |value| BTreeMap::from([("pgbench-sync-on", Value { value, p99_ms: None, sync_p99_ms: None })]);
            results.add(Kind::Nbdkit, value(b), String::new());
            results.add(Kind::ThreeGateways, value(d), String::new());
        }
        assert_eq!(results.ratio("pgbench-sync-on", 'd', 'b'), Some(2.0));
        assert_eq!(results.value("pgbench-sync-on", 'b'), Some(100.0));
        assert_eq!(results.value("pgbench-sync-on", 'a'), None);
        assert_eq!(
            results.judge(),
            ["reached     three gateways, TPC-B sync on >= 1.0 of nbdkit file: 2.00 (pgbench-sync-on)"]
        );
        assert!(results.table().contains("2.00"));
    }
}
