//! Results: stored per round, printed as medians and ratios.

use super::rows::{Row, Value};
use super::target::Kind;
use crate::stats;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

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

const AIMS: [Aim; 11] = [
    Aim {
        text: "three gateways, write QD 1 >= 0.85 of the floor",
        rows: "raw-write-qd1",
        of: 'd',
        to: 'f',
        at_least: 0.85,
    },
    Aim {
        text: "three gateways, write QD 32 >= 0.6 of the floor",
        rows: "raw-write-qd32",
        of: 'd',
        to: 'f',
        at_least: 0.6,
    },
    Aim { text: "three gateways, 128 KiB >= 0.7 of the floor", rows: "raw-seq-write", of: 'd', to: 'f', at_least: 0.7 },
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
const RATIOS: [(char, char); 12] = [
    ('c', 'b'),
    ('d', 'b'),
    ('c', 'e'),
    ('d', 'e'),
    ('d', 'c'),
    ('d', 'a'),
    ('s', 'd'),
    ('s', 'z'),
    ('c', 'f'),
    ('d', 'f'),
    ('t', 'c'),
    ('u', 'd'),
];

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
        self.median(row, letter, |v| Some(v.value))
    }

    fn median(&self, row: &str, letter: char, figure: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
        let one = |r: &Round| figure(r.values.get(&letter)?.get(row)?);
        stats::median(&self.rounds.iter().filter_map(one).collect::<Vec<f64>>())
    }

    /// Median of the rounds' ratios, not the ratio of medians: a slow machine affects both sides of a round.
    fn ratio(&self, row: &str, of: char, to: char) -> Option<f64> {
        self.ratio_of(row, of, to, |v| Some(v.value))
    }

    fn ratio_of(&self, row: &str, of: char, to: char, figure: impl Fn(&Value) -> Option<f64>) -> Option<f64> {
        let one = |r: &Round| Some(figure(r.values.get(&of)?.get(row)?)? / figure(r.values.get(&to)?.get(row)?)?);
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

    /// Latency and processor time of fio's rows: medians, and the processor time's ratios.
    pub fn cost_table(&self) -> Option<String> {
        let has = |letter: char| self.kinds.iter().any(|k| k.letter() == letter);
        let ratios: Vec<(char, char)> = RATIOS.into_iter().filter(|(a, b)| has(*a) && has(*b)).collect();
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
        let mut header = vec!["p50 in us; processor time of all servers for one request in us".to_owned()];
        header.extend(self.kinds.iter().map(|k| format!("{} {}", k.letter(), k.title())));
        header.extend(ratios.iter().map(|(a, b)| format!("CPU {a}/{b}")));
        table.set_header(header);
        for row in &self.rows {
            let figure = |v: Option<f64>, digits: usize| v.map_or_else(|| "-".into(), |v| format!("{v:.digits$}"));
            let both = |k: &Kind| {
                let p50 = self.median(row.key, k.letter(), |v| v.p50_ms.map(|ms| ms * 1e3))?;
                Some(format!("{p50:.0}; {}", figure(self.median(row.key, k.letter(), |v| v.cpu_us), 0)))
            };
            if self.kinds.iter().all(|k| both(k).is_none()) {
                continue;
            }
            let mut cells = vec![row.title.to_owned()];
            cells.extend(self.kinds.iter().map(|k| both(k).unwrap_or_else(|| "-".into())));
            cells.extend(ratios.iter().map(|(a, b)| figure(self.ratio_of(row.key, *a, *b, |v| v.cpu_us), 2)));
            table.add_row(cells);
        }
        (table.row_count() > 0).then(|| table.to_string())
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

    /// Writes `results.json`. Fails when it cannot be written.
    pub fn write(&self, dir: &Path) -> Result<()> {
        let mut medians = BTreeMap::new();
        for row in &self.rows {
            let of = |k: &Kind| Some((k.letter(), self.value(row.key, k.letter())?));
            let values: BTreeMap<char, f64> = self.kinds.iter().filter_map(of).collect();
            let of = |(a, b): &(char, char)| Some((format!("{a}/{b}"), self.ratio(row.key, *a, *b)?));
            let ratios: BTreeMap<String, f64> = RATIOS.iter().filter_map(of).collect();
            let of = |(a, b): &(char, char)| Some((format!("{a}/{b}"), self.ratio_of(row.key, *a, *b, |v| v.cpu_us)?));
            let cpu: BTreeMap<String, f64> = RATIOS.iter().filter_map(of).collect();
            let figures = serde_json::json!({ "unit": row.unit, "medians": values, "ratios": ratios, "cpu": cpu });
            medians.insert(row.key, figures);
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
            let value = |value| BTreeMap::from([("pgbench-sync-on", Value::of(value))]);
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
