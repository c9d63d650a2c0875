//! One round of `cargo xtask demo failover` for each major of PostgreSQL that is in use, with the server that Maven
//! Central has of it, and a table of how long clients waited after each fault. It fails for what `failover` fails for.

use super::{Lab, NAMESPACES};
use crate::demo::failover::{FIGURES, Run, run as round};
use crate::say::{line, step};
use crate::setup::{self, POSTGRESQL_SERVERS};
use anyhow::{Context, Result};
use std::path::Path;

pub(super) const NEEDS: &[&str] = &[
    "ip",
    "iptables",
    "unshare",
    "nsenter",
    "nbdfuse",
    "/usr/sbin/haproxy",
    // Its clients are those of all.
    "/usr/lib/postgresql/15/bin/postgres",
    POSTGRESQL_SERVERS[0].1,
    POSTGRESQL_SERVERS[1].1,
    POSTGRESQL_SERVERS[2].1,
    POSTGRESQL_SERVERS[3].1,
    POSTGRESQL_SERVERS[4].1,
    NAMESPACES,
];

/// The faults of a round, in order.
const FAULTS: [&str; 5] = ["host-killed", "switchover", "gateway-killed", "host-cut-off", "region-lost"];

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header([&["PostgreSQL"][..], &FAULTS[..], &["commits", "lost"][..]].concat());
    for (major, server) in POSTGRESQL_SERVERS {
        step(format!("PostgreSQL {major}"));
        let dir = lab.dir.join(format!("postgresql-{major}"));
        std::fs::create_dir_all(&dir)?;
        let programs = Path::new(server).parent().context("a folder of programs")?;
        let postgresql = Some(programs);
        round(&Run { bin: &lab.bin, dir: &dir, rounds: 1, load: 1, scale: 1, secure: false, postgresql })
            .with_context(|| format!("PostgreSQL {major}"))?;
        table.add_row(figures(&dir, major)?);
    }
    line("Milliseconds from the fault to a client's first commit:");
    line(table.to_string());
    Ok(())
}

/// A row of the table.
fn figures(dir: &Path, major: &str) -> Result<Vec<String>> {
    let found: serde_json::Value = serde_json::from_slice(&std::fs::read(dir.join(FIGURES))?)?;
    let version = found["postgresql"].as_str().unwrap_or_default();
    let ran = version.strip_prefix("PostgreSQL ").unwrap_or_default();
    anyhow::ensure!(ran.split('.').next() == Some(major), "found {version:?}, expected PostgreSQL {major}");
    let acts = found["acts"].as_array().context("no faults")?;
    let kinds: Vec<&str> = acts.iter().filter_map(|act| act["kind"].as_str()).collect();
    anyhow::ensure!(kinds == FAULTS, "PostgreSQL {major}: found the faults {kinds:?}, expected {FAULTS:?}");
    let mut row = vec![ran.to_owned()];
    row.extend(acts.iter().map(|act| act["first_commit_ms"].to_string()));
    row.extend([found["commits_acknowledged"].to_string(), found["commits_lost"].to_string()]);
    Ok(row)
}
