//! The figures of a run: a table for people, JSON for programs.

use super::timeline::{KINDS, Kind, Phases};
use crate::stats;
use anyhow::Result;
use serde::Serialize;
use std::path::Path;

/// Name of the JSON file.
pub const FILE: &str = "failover.json";

/// One fault and what it came to.
#[derive(Clone, Debug, Serialize)]
pub struct Act {
    pub round: u32,
    pub kind: Kind,
    /// Where PostgreSQL was.
    pub from: String,
    /// Where it was afterwards.
    pub to: String,
    /// Of the agent that started PostgreSQL, from its history; none where PostgreSQL went on running.
    pub phases: Phases,
    /// From the fault to the agent's word that a commit was durable.
    pub primary_ms: Option<u64>,
    /// From the fault to the end of the clients' pause: the first commit acknowledged through HAProxy.
    pub first_commit_ms: u64,
    /// Longest time without an acknowledged commit of any ledger writer.
    pub pause_ms: u64,
    /// Cut off: from the cut until no process of PostgreSQL was left on that host.
    pub stopped_ms: Option<u64>,
    /// Connections of pgbench that broke.
    pub broken: u64,
    /// Ledger rows so far, all rounds together.
    pub commits_acknowledged: u64,
    pub commits_lost: u64,
    pub in_doubt_found: u64,
    pub rows_invented: u64,
    pub machine: String,
    pub timeline: Vec<String>,
}

impl Act {
    /// What makes the run a failure, if anything.
    pub fn wrong(&self) -> Option<String> {
        let Self { commits_lost: lost, rows_invented: invented, commits_acknowledged: all, round, .. } = self;
        let words =
            || format!("R1: {lost} of {all} acknowledged commits lost, {invented} rows invented (round {round})");
        (*lost > 0 || *invented > 0).then(words)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Figure {
    kind: Kind,
    what: &'static str,
    count: usize,
    median_ms: f64,
    max_ms: f64,
}

/// Everything about a run.
#[derive(Debug, Serialize)]
pub struct Summary {
    rounds: u32,
    pgbench_scale: u32,
    load_s: u64,
    machine_at_begin: String,
    commits_acknowledged: u64,
    commits_lost: u64,
    rows_invented: u64,
    figures: Vec<Figure>,
    acts: Vec<Act>,
}

impl Summary {
    /// Nothing yet.
    pub fn begin(rounds: u32, scale: u32, load_s: u64) -> Self {
        Self {
            rounds,
            pgbench_scale: scale,
            load_s,
            machine_at_begin: stats::machine(),
            commits_acknowledged: 0,
            commits_lost: 0,
            rows_invented: 0,
            figures: Vec::new(),
            acts: Vec::new(),
        }
    }

    /// One more.
    pub fn add(&mut self, act: Act) {
        self.commits_acknowledged = act.commits_acknowledged;
        self.commits_lost = self.commits_lost.max(act.commits_lost);
        self.rows_invented = self.rows_invented.max(act.rows_invented);
        self.acts.push(act);
        self.figures = KINDS.into_iter().flat_map(|kind| figures(&self.acts, kind)).collect();
    }

    /// Writes it into `dir`.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn save(&self, dir: &Path) -> Result<()> {
        Ok(std::fs::write(dir.join(FILE), serde_json::to_vec_pretty(self)?)?)
    }

    /// Medians and maxima.
    pub fn table(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
        table.set_header(["fault", "phase", "times", "median ms", "largest ms"]);
        let mut last = None;
        for figure in &self.figures {
            let kind = if last == Some(figure.kind) { "" } else { figure.kind.words() };
            last = Some(figure.kind);
            let (median, max) = (format!("{:.0}", figure.median_ms), format!("{:.0}", figure.max_ms));
            table.add_row([kind, figure.what, &figure.count.to_string(), &median, &max]);
        }
        let broken: u64 = self.acts.iter().filter(|act| act.kind == Kind::GatewayKilled).map(|act| act.broken).sum();
        format!(
            "{table}\n{} commits acknowledged, {} lost, {} rows invented; {broken} connections broke when a gateway was killed",
            self.commits_acknowledged, self.commits_lost, self.rows_invented
        )
    }
}

fn figures(acts: &[Act], kind: Kind) -> Vec<Figure> {
    let mut all: Vec<(&'static str, Vec<f64>)> = Vec::new();
    for act in acts.iter().filter(|act| act.kind == kind) {
        let own = [
            ("PostgreSQL stopped where it was cut off", act.stopped_ms),
            ("fault to first write", act.primary_ms),
            ("fault to a client's first commit", Some(act.first_commit_ms)),
            ("clients' pause", Some(act.pause_ms)),
        ];
        for (at, (what, took)) in act.phases.all().into_iter().chain(own).enumerate() {
            if all.len() <= at {
                all.push((what, Vec::new()));
            }
            all[at].1.extend(took.map(|ms| ms as f64));
        }
    }
    let figure = |(what, values): (&'static str, Vec<f64>)| {
        let median_ms = stats::median(&values)?;
        Some(Figure { kind, what, count: values.len(), median_ms, max_ms: values.iter().copied().fold(0.0, f64::max) })
    };
    all.into_iter().filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn act(kind: Kind, detect: Option<u64>, pause: u64, lost: u64) -> Act {
        Act {
            round: 1,
            kind,
            from: "db1".into(),
            to: "db2".into(),
            phases: Phases { detect_ms: detect, ..Phases::default() },
            primary_ms: None,
            first_commit_ms: pause,
            pause_ms: pause,
            stopped_ms: None,
            broken: 0,
            commits_acknowledged: 10,
            commits_lost: lost,
            in_doubt_found: 0,
            rows_invented: 0,
            machine: String::new(),
            timeline: Vec::new(),
        }
    }

    #[test]
    fn medians_and_maxima_of_each_kind() {
        let mut summary = Summary::begin(1, 1, 1);
        summary.add(act(Kind::HostKilled, Some(3000), 4000, 0));
        summary.add(act(Kind::HostKilled, Some(2000), 3000, 0));
        summary.add(act(Kind::HostKilled, Some(3100), 9000, 0));
        summary.add(act(Kind::GatewayKilled, None, 700, 0));
        let of = |kind, what| summary.figures.iter().find(|f| f.kind == kind && f.what == what);
        let detect = of(Kind::HostKilled, "detect").unwrap();
        assert_eq!((detect.count, detect.median_ms, detect.max_ms), (3, 3000.0, 3100.0));
        assert_eq!(of(Kind::HostKilled, "clients' pause").unwrap().max_ms, 9000.0);
        assert_eq!(of(Kind::GatewayKilled, "detect"), None);
        assert!(summary.table().contains("gateway killed"));
    }

    #[test]
    fn a_lost_commit_is_wrong() {
        assert_eq!(act(Kind::Switchover, None, 1, 0).wrong(), None);
        assert!(act(Kind::Switchover, None, 1, 2).wrong().unwrap().contains("2 of 10"));
    }
}
