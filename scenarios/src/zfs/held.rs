//! A process works in the pool of the primary: a planned switchover is refused before anything is stopped, and names
//! it. Neither PostgreSQL nor the machine ends. Once the process has gone, the same switchover succeeds.

use super::agents::{asks, stands_by};
use super::guest::Guest;
use super::lab::{LIMIT, Lab};
use super::multihost::{REFUSED, moved, switchover};
use super::report::Report;
use crate::process::wait_until;
use crate::say::step;
use anyhow::{Context, Result};

const PART: &str = "agents";

/// The process, as `pgrep -fx` finds it.
const HOLDS: &str = "sleep 7777";

/// The act; `primary` is primary before and after it.
///
/// # Errors
/// When the switchover is not refused as it should be, or not done afterwards.
pub fn act(report: &mut Report, primary: &Guest, standby: &Guest) -> Result<()> {
    step("A process works in the pool: a planned switchover");
    let mut session = Lab::session(primary)?;
    primary.leave_running(&format!("cd /tank/pg && exec {HOLDS}"))?;
    let works = wait_until(LIMIT, || primary.run(&format!("pgrep -fx '{HOLDS}'"), LIMIT).is_ok());
    anyhow::ensure!(works, "{}: found no process {HOLDS}", primary.name);
    report.fault();
    let (code, said) = switchover(primary, standby)?;
    anyhow::ensure!(code == REFUSED, "AGENT-A9: found exit code {code}, expected {REFUSED}: {said}");
    anyhow::ensure!(said.contains("sleep (pid ") && said.contains("/tank/pg"), "AGENT-A9: found {said:?}");
    // A stop of PostgreSQL, or of the machine, would have ended the session.
    session.query("select 1").context("AGENT-A9: after the refusal")?;
    let code = asks(primary, "/primary");
    anyhow::ensure!(code == 200, "AGENT-A9: found /primary {code} at {}, expected 200", primary.name);
    report.add(PART, "switchover while a process works in the pool", None, "refused, with its name and number");
    primary.run(&format!("pkill -fx '{HOLDS}'"), LIMIT)?;
    let took = moved(primary, standby)?;
    stands_by(primary)?;
    moved(standby, primary)?;
    stands_by(standby)?;
    report.add(PART, "the same once it has gone: the other one primary", Some(took), "and back");
    Ok(())
}
