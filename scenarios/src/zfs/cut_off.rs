//! Two guests with agents: the primary is cut off from everything and keeps running, with a client inside of it. The
//! other one takes over; the first reboots itself, before or after it is connected again, and becomes standby. No
//! commit acknowledged to its client is missing.

use super::agents::{becomes_primary, phases, rebooted, stands_by};
use super::guest::Guest;
use super::lab::{LIMIT, Lab, go_on};
use super::pool::sound;
use super::report::Report;
use crate::gateways::GATEWAYS;
use crate::ledger::unix_ms;
use crate::process::wait_until;
use crate::say::step;
use anyhow::Result;
use std::collections::BTreeSet;
use std::time::Instant;

const PART: &str = "cut-off";

/// Rows acknowledged to its client, on the guest's own disk.
const TOLD: &str = "/var/tmp/told";

/// A client without a network in between: each acknowledged row is noted and synced.
fn client_inside() -> String {
    format!(
        "install -o postgres -m 644 /dev/null {TOLD} && sync
exec su postgres -c 'n=0; while :; do n=$((n+1)); \
         /usr/lib/postgresql/15/bin/psql -qc \"insert into cut_off values ($n)\" postgres > /dev/null 2>&1 && echo $n >> {TOLD} && sync {TOLD} || sleep 0.2; done'"
    )
}

fn told(guest: &Guest) -> Result<BTreeSet<u64>> {
    let text = guest.run(&format!("cat {TOLD}"), LIMIT)?;
    Ok(text.lines().map(str::parse).collect::<Result<_, _>>()?)
}

/// The fault: `a` (and its number among the guests) is primary, `b` is standby.
pub fn act(lab: &mut Lab, report: &mut Report, (a, index): (&Guest, usize), b: &Guest) -> Result<()> {
    step("Host a is cut off from everybody; b takes over; a is heard again");
    Lab::session(a)?.query("create table cut_off (n bigint primary key)")?;
    a.leave_running(&client_inside())?;
    anyhow::ensure!(
        wait_until(LIMIT, || told(a).is_ok_and(|told| told.len() >= 5)),
        "the client inside writes nothing"
    );
    let writers = lab.writers(a)?;
    go_on(&writers, 20)?;
    report.fault();
    let cut = Instant::now();
    lab.net.isolate(GATEWAYS + index)?;
    becomes_primary(b)?;
    report.add(PART, "a cut off: b primary", Some(cut.elapsed().as_secs_f64()), phases(b)?);
    lab.take_back(writers, unix_ms())?;
    let writers = lab.writers(b)?;
    go_on(&writers, 20)?;
    let before = told(a).map_or_else(|e| format!("{e:#}"), |told| format!("{} rows", told.len()));
    report.add(PART, "a, still cut off: its own client was told of", Some(cut.elapsed().as_secs_f64()), before);
    let heard = Instant::now();
    lab.net.heal()?;
    rebooted(a, cut)?;
    stands_by(a)?;
    report.add(
        PART,
        "a heard again: it has rebooted, and stands by",
        Some(heard.elapsed().as_secs_f64()),
        a.run("tail -n 1 /var/lib/holdfast-agent/history.jsonl | cut -c1-120", LIMIT)?.trim(),
    );
    go_on(&writers, 20)?;
    lab.take_back(writers, unix_ms())?;
    let mut there = BTreeSet::new();
    for row in Lab::session(b)?.query("select n from cut_off")? {
        there.extend(row.into_iter().flatten().map(|n| n.parse::<u64>()).collect::<Result<Vec<_>, _>>()?);
    }
    let (told, missing) = {
        let told = told(a)?;
        let missing = told.difference(&there).count();
        (told.len(), missing)
    };
    anyhow::ensure!(missing == 0, "R2: {missing} of {told} rows acknowledged to a's own client are missing on b");
    report.add(PART, "rows that a's own client was told of", None, format!("{told}, none lost"));
    sound(lab, report, PART, b)
}
