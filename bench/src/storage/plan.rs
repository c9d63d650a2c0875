//! Sizes and durations of a measurement; its figures, and their goals.

use super::figures::shown;
use serde::Serialize;
use std::path::PathBuf;

/// NBD connections of the database's device.
pub(super) const CONNECTIONS: u32 = 4;

/// Sizes and durations.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Scale {
    pub(super) size_mib: u64,
    pub(super) write_s: u64,
    pub(super) latency_s: u64,
    pub(super) pg_s: u64,
    pub(super) pg_scale: u32,
    pub(super) pg_volume_mib: u64,
    pub(super) pg_warm_up_s: u64,
    pub(super) upload_rounds: u32,
    pub(super) upload_mib: u64,
    pub(super) idle_s: u64,
    pub(super) idle_mib: u64,
    pub(super) cold_mib: u64,
    pub(super) cold_reads: u64,
}

pub(super) const FULL: Scale = Scale {
    size_mib: 1024,
    write_s: 180,
    latency_s: 120,
    pg_s: 600,
    pg_scale: 50,
    pg_volume_mib: 4096,
    pg_warm_up_s: 300,
    upload_rounds: 5,
    upload_mib: 768,
    idle_s: 600,
    idle_mib: 256,
    cold_mib: 512,
    cold_reads: 64,
};

pub(super) const QUICK: Scale = Scale {
    size_mib: 128,
    write_s: 6,
    latency_s: 6,
    pg_s: 8,
    pg_scale: 2,
    pg_volume_mib: 1024,
    pg_warm_up_s: 30,
    upload_rounds: 2,
    upload_mib: 128,
    idle_s: 20,
    idle_mib: 16,
    cold_mib: 128,
    cold_reads: 16,
};

/// Inputs of a row.
pub(super) struct Plan {
    pub(super) bin: PathBuf,
    pub(super) bare: Option<PathBuf>,
    pub(super) dir: PathBuf,
    /// A folder that the database's user can reach.
    pub(super) public: PathBuf,
    pub(super) scale: Scale,
    pub(super) seconds: Option<u64>,
    pub(super) size_mib: u64,
    pub(super) rate_mib: u64,
    /// Settings of every gateway, besides those of the row.
    pub(super) settings: Vec<String>,
    pub(super) quick: bool,
}

/// The goal for a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    Below(f64),
}

impl Goal {
    pub(super) fn reached(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
            Self::Below(bound) => value < bound,
        }
    }

    pub(super) fn words(self) -> String {
        match self {
            Self::AtLeast(bound) => format!(">= {bound}"),
            Self::AtMost(bound) => format!("<= {bound}"),
            Self::Below(bound) => format!("< {bound}"),
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Figure {
    pub(super) of: &'static str,
    pub(super) what: &'static str,
    pub(super) value: Option<f64>,
    #[serde(skip)]
    pub(super) digits: usize,
    pub(super) goal: Option<Goal>,
    pub(super) reached: Option<bool>,
}

impl Figure {
    pub(super) fn new(of: &'static str, what: &'static str, value: Option<f64>, digits: usize) -> Self {
        Self { of, what, value, digits, goal: None, reached: None }
    }

    pub(super) fn with(self, goal: Goal) -> Self {
        Self { goal: Some(goal), reached: self.value.map(|value| goal.reached(value)), ..self }
    }

    /// `reached` or `not reached`, where there is a goal.
    pub(super) fn judged(&self) -> Option<String> {
        let goal = self.goal?.words();
        let word = match self.reached {
            Some(true) => "reached    ",
            Some(false) => "not reached",
            None => "not measured",
        };
        Some(format!("{word} {}: {} {goal}: {}", self.of, self.what, shown(self.value, self.digits)))
    }
}

/// The result of a row.
pub(super) struct Row {
    pub(super) key: &'static str,
    pub(super) figures: Vec<Figure>,
    /// All counts, for programs.
    pub(super) details: serde_json::Value,
}
