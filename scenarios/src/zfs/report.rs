//! Results of a run: a table for display, JSON for programs.

use crate::stats;
use anyhow::Result;
use serde::Serialize;
use std::path::Path;

/// File name in the run's folder.
pub const FILE: &str = "summary.json";

/// One step or check.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Row {
    part: &'static str,
    what: String,
    /// Seconds, where time was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds: Option<f64>,
    found: String,
}

/// Everything about a run.
#[derive(Debug, Serialize)]
pub struct Report {
    guest: String,
    pgbench_scale: u32,
    sockets: u8,
    machine_at_begin: String,
    pub took_s: u64,
    /// Number of injected faults.
    faults: u64,
    /// By the ledgers of the run.
    pub commits_acknowledged: u64,
    /// For an unfinished run: where it failed, and the first error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    rows: Vec<Row>,
}

impl Report {
    /// Nothing yet.
    pub fn begin(guest: &str, scale: u32, sockets: u8) -> Self {
        let machine_at_begin = stats::machine();
        Self {
            guest: guest.into(),
            pgbench_scale: scale,
            sockets,
            machine_at_begin,
            took_s: 0,
            faults: 0,
            commits_acknowledged: 0,
            failed: None,
            rows: Vec::new(),
        }
    }

    /// A fault is made now.
    pub fn fault(&mut self) {
        self.faults += 1;
    }

    /// Adds a row, and prints it.
    pub fn add(&mut self, part: &'static str, what: &str, seconds: Option<f64>, found: impl Into<String>) {
        let found = found.into();
        let time = seconds.map_or(String::new(), |s| format!("{s:.1} s  "));
        crate::say::note(format!("{what}: {time}{found}"));
        self.rows.push(Row { part, what: what.into(), seconds, found });
    }

    /// Writes `summary.json`.
    pub fn save(&self, dir: &Path) -> Result<()> {
        Ok(std::fs::write(dir.join(FILE), serde_json::to_vec_pretty(self)?)?)
    }

    /// The table for display.
    pub fn table(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(comfy_table::presets::NOTHING).set_header(["PART", "WHAT", "SECONDS", "FOUND"]);
        for row in &self.rows {
            let seconds = row.seconds.map_or(String::new(), |s| format!("{s:.1}"));
            table.add_row([row.part, &row.what, &seconds, &row.found]);
        }
        format!("{table}\n{}, {}, took {} s", self.guest, self.machine_at_begin, self.took_s)
    }
}
