//! Results of a run: a table for display, JSON for programs.

use super::timeline::{KINDS, Kind, Phases};
use crate::stats;
use anyhow::Result;
use serde::Serialize;
use std::path::Path;

/// Name of the JSON file.
pub const FILE: &str = "failover.json";

/// One fault and its result.
#[derive(Clone, Debug, Serialize)]
pub struct Act {
    pub round: u32,
    pub kind: Kind,
    /// Where PostgreSQL was.
    pub from: String,
    /// The primary afterwards.
    pub to: String,
    /// From the history of the agent that started PostgreSQL; none if PostgreSQL kept running.
    pub phases: Phases,
    /// From the fault to the agent's report that a commit was durable.
    pub primary_ms: Option<u64>,
    /// From the fault to the end of the clients' pause: the first commit acknowledged through HAProxy.
    pub first_commit_ms: u64,
    /// Longest time without an acknowledged commit of any ledger writer.
    pub pause_ms: u64,
    /// Cut off: from the cut until no PostgreSQL process was left on that host.
    pub stopped_ms: Option<u64>,
    /// The same: how long that was before the grant to the other host; negative if PostgreSQL outlived it. A killed
    /// process that waits for its device counts as present, although it can reach no client.
    pub gone_before_grant_ms: Option<i64>,
    /// Connections of pgbench that broke after the fault, and its restarts.
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
    /// The failure, if there is one.
    pub fn wrong(&self) -> Option<String> {
        let Self { round, kind, from, to, broken, .. } = self;
        let Self { commits_lost: lost, rows_invented: invented, commits_acknowledged: all, .. } = self;
        let mut wrong = Vec::new();
        if *lost > 0 || *invented > 0 {
            wrong.push(format!("R1: {lost} of {all} acknowledged commits lost, {invented} rows invented"));
        }
        if *kind == Kind::GatewayKilled && from != to {
            wrong.push(format!("R8: PostgreSQL moved from {from} to {to}, expected it to stay where it was"));
        }
        if *kind == Kind::GatewayKilled && *broken > 0 {
            wrong.push(format!("R8: pgbench lost connections, or began anew, {broken} times, expected a pause only"));
        }
        (!wrong.is_empty()).then(|| format!("{} (round {round}, {})", wrong.join("; "), kind.words()))
    }

    /// A warning that fails no run: a machine that stalls for a moment can cause it.
    pub fn outlived(&self) -> Option<String> {
        let Self { round, from, to, .. } = self;
        let late = self.gone_before_grant_ms.filter(|ms| *ms < 0)?.unsigned_abs();
        Some(format!(
            "!!!!!!!! PostgreSQL outlived its lease: found a process of it on {from} until {late} ms after the set was granted to {to}, expected none by then (round {round})"
        ))
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Figure {
    kind: Kind,
    what: &'static str,
    count: usize,
    min_ms: f64,
    median_ms: f64,
    max_ms: f64,
}

/// Everything about a run.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// Its version.
    pub postgresql: String,
    rounds: u32,
    pgbench_scale: u32,
    load_s: u64,
    machine_at_begin: String,
    commits_acknowledged: u64,
    commits_lost: u64,
    rows_invented: u64,
    /// Faults after which PostgreSQL outlived its host's lease.
    outlived_the_grant: usize,
    figures: Vec<Figure>,
    acts: Vec<Act>,
}

impl Summary {
    /// Nothing yet.
    pub fn begin(rounds: u32, scale: u32, load_s: u64) -> Self {
        Self {
            postgresql: String::new(),
            rounds,
            pgbench_scale: scale,
            load_s,
            machine_at_begin: stats::machine(),
            commits_acknowledged: 0,
            commits_lost: 0,
            rows_invented: 0,
            outlived_the_grant: 0,
            figures: Vec::new(),
            acts: Vec::new(),
        }
    }

    /// Adds a fault.
    pub fn add(&mut self, act: Act) {
        self.commits_acknowledged = act.commits_acknowledged;
        self.commits_lost = self.commits_lost.max(act.commits_lost);
        self.rows_invented = self.rows_invented.max(act.rows_invented);
        self.outlived_the_grant += usize::from(act.outlived().is_some());
        self.acts.push(act);
        self.figures = KINDS.into_iter().flat_map(|kind| figures(&self.acts, kind)).collect();
    }

    /// Writes it into `dir`. Fails when it cannot be written.
    pub fn save(&self, dir: &Path) -> Result<()> {
        Ok(std::fs::write(dir.join(FILE), serde_json::to_vec_pretty(self)?)?)
    }

    /// Medians, the smallest and the largest.
    pub fn table(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
        table.set_header(["fault", "phase", "times", "smallest ms", "median ms", "largest ms"]);
        let mut last = None;
        for figure in &self.figures {
            let kind = if last == Some(figure.kind) { "" } else { figure.kind.words() };
            last = Some(figure.kind);
            let [min, median, max] = [figure.min_ms, figure.median_ms, figure.max_ms].map(|ms| format!("{ms:.0}"));
            table.add_row([kind, figure.what, &figure.count.to_string(), &min, &median, &max]);
        }
        let broken: u64 = self.acts.iter().filter(|act| act.kind == Kind::GatewayKilled).map(|act| act.broken).sum();
        let mut text = format!(
            "{table}\n{} commits acknowledged, {} lost, {} rows invented; {broken} connections broke when a gateway was killed",
            self.commits_acknowledged, self.commits_lost, self.rows_invented
        );
        for outlived in self.acts.iter().filter_map(Act::outlived) {
            text += &format!("\n{outlived}");
        }
        text
    }
}

fn figures(acts: &[Act], kind: Kind) -> Vec<Figure> {
    let mut all: Vec<(&'static str, Vec<f64>)> = Vec::new();
    let ms = |took: Option<u64>| took.map(|ms| ms as f64);
    for act in acts.iter().filter(|act| act.kind == kind) {
        let phases = act.phases.all().map(|(what, took)| (what, ms(took)));
        let own = [
            ("PostgreSQL stopped where it was cut off", ms(act.stopped_ms)),
            ("PostgreSQL gone before the grant", act.gone_before_grant_ms.map(|ms| ms as f64)),
            ("fault to first write", ms(act.primary_ms)),
            ("fault to a client's first commit", ms(Some(act.first_commit_ms))),
            ("clients' pause", ms(Some(act.pause_ms))),
        ];
        for (at, (what, took)) in phases.into_iter().chain(own).enumerate() {
            if all.len() <= at {
                all.push((what, Vec::new()));
            }
            all[at].1.extend(took);
        }
    }
    let figure = |(what, values): (&'static str, Vec<f64>)| {
        let median_ms = stats::median(&values)?;
        let min_ms = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max_ms = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Figure { kind, what, count: values.len(), min_ms, median_ms, max_ms })
    };
    all.into_iter().filter_map(figure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PostgreSQL is on the expected host afterwards.
    fn act(kind: Kind, detect: Option<u64>, pause: u64, lost: u64) -> Act {
        Act {
            round: 1,
            kind,
            from: "db1".into(),
            to: if kind == Kind::GatewayKilled { "db1" } else { "db2" }.into(),
            phases: Phases { detect_ms: detect, ..Phases::default() },
            primary_ms: None,
            first_commit_ms: pause,
            pause_ms: pause,
            stopped_ms: None,
            gone_before_grant_ms: None,
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
        assert_eq!((detect.count, detect.min_ms, detect.median_ms, detect.max_ms), (3, 2000.0, 3000.0, 3100.0));
        assert_eq!(of(Kind::HostKilled, "clients' pause").unwrap().max_ms, 9000.0);
        assert_eq!(of(Kind::GatewayKilled, "detect"), None);
        assert!(summary.table().contains("gateway killed"));
    }

    #[test]
    fn a_lost_commit_is_wrong() {
        assert_eq!(act(Kind::Switchover, None, 1, 0).wrong(), None);
        assert!(act(Kind::Switchover, None, 1, 2).wrong().unwrap().contains("2 of 10"));
    }

    #[test]
    fn a_killed_gateway_is_a_pause_and_nothing_else() {
        let well = act(Kind::GatewayKilled, None, 1, 0);
        assert_eq!(well.wrong(), None);
        let moved = Act { to: "db2".into(), ..well.clone() };
        assert!(moved.wrong().unwrap().contains("R8: PostgreSQL moved from db1 to db2"));
        let broke = Act { broken: 3, ..well };
        assert!(broke.wrong().unwrap().contains("R8: pgbench lost connections, or began anew, 3 times"));
        // Elsewhere both are part of the fault.
        assert_eq!(Act { broken: 9, ..act(Kind::RegionLost, None, 1, 0) }.wrong(), None);
        let both = Act { broken: 3, commits_lost: 1, ..moved }.wrong().unwrap();
        assert!(both.contains("R1: ") && both.contains("moved") && both.contains("pgbench"), "{both}");
    }

    #[test]
    fn who_outlives_a_grant_is_counted_and_named() {
        let gone = |ms| Act { gone_before_grant_ms: Some(ms), ..act(Kind::HostCutOff, None, 1, 0) };
        let mut summary = Summary::begin(1, 1, 1);
        [140, 0, 60].into_iter().for_each(|ms| summary.add(gone(ms)));
        assert!(summary.outlived_the_grant == 0 && !summary.table().contains("outlived"));
        summary.add(gone(-43));
        assert_eq!((summary.outlived_the_grant, gone(-43).wrong()), (1, None));
        assert!(summary.table().contains("on db1 until 43 ms after the set was granted to db2"), "{}", summary.table());
        let figure = summary.figures.iter().find(|f| f.what == "PostgreSQL gone before the grant").unwrap();
        assert_eq!((figure.count, figure.min_ms, figure.median_ms, figure.max_ms), (4, -43.0, 30.0, 140.0));
    }
}
