//! A process works in the pool of the primary: a planned switchover is refused before anything is stopped, and names
//! it. Neither PostgreSQL nor the machine ends. Another one opens the pool only once PostgreSQL has stopped for the
//! switchover, so that the export fails: PostgreSQL is started again in place, under the same lease. Once the process
//! has gone, the same switchover succeeds. At last PostgreSQL starts no more there: the agent ends a process that works
//! in the pool, gives the lease up, and the other guest takes over.

use super::agents::{asks, becomes_primary, last_reason, last_way, stands_by};
use super::guest::Guest;
use super::lab::{LIMIT, Lab};
use super::multihost::{REFUSED, moved, switchover};
use super::pool::DATA;
use super::report::Report;
use crate::process::wait_until;
use crate::say::step;
use anyhow::{Context, Result};
use std::time::Instant;

const PART: &str = "agents";

/// The process, as `pgrep -fx` finds it.
const HOLDS: &str = "sleep 7777";

/// PostgreSQL's program. Without its mode it starts on this guest no more.
const PROGRAM: &str = "/usr/lib/postgresql/15/bin/postgres";

/// The act; `primary` is primary before and after it. Fails when the switchover is not refused as it should be, or not
/// done afterwards.
pub fn act(lab: &Lab, report: &mut Report, primary: &Guest, standby: &Guest) -> Result<()> {
    step("A process works in the pool: a planned switchover");
    let mut session = Lab::session(primary)?;
    works(primary)?;
    report.fault();
    let (code, said) = switchover(primary, standby)?;
    anyhow::ensure!(code == REFUSED, "AGENT-A9: found exit code {code}, expected {REFUSED}: {said}");
    anyhow::ensure!(said.contains("sleep (pid ") && said.contains("/tank/pg"), "AGENT-A9: found {said:?}");
    // A stop of PostgreSQL, or of the machine, would have ended the session.
    session.query("select 1").context("AGENT-A9: after the refusal")?;
    let code = asks(primary, "/primary");
    anyhow::ensure!(code == 200, "AGENT-A9: found /primary {code} at {}, expected 200", primary.name);
    report.add(PART, "switchover while a process works in the pool", None, "refused, with its name and number");
    let_go(primary)?;
    late(lab, report, primary, standby)?;
    let_go(primary)?;
    let took = moved(primary, standby)?;
    stands_by(primary)?;
    moved(standby, primary)?;
    stands_by(standby)?;
    report.add(PART, "the same once it has gone: the other one primary", Some(took), "and back");
    given_up(lab, report, primary, standby)
}

/// Leaves a process in the pool.
fn works(guest: &Guest) -> Result<()> {
    guest.leave_running(&format!("cd /tank/pg && exec {HOLDS}"))?;
    anyhow::ensure!(wait_until(LIMIT, || is_there(guest)), "{}: found no process {HOLDS}", guest.name);
    Ok(())
}

fn is_there(guest: &Guest) -> bool {
    guest.run(&format!("pgrep -fx '{HOLDS}'"), LIMIT).is_ok()
}

/// Ends the process, and waits until it has gone.
fn let_go(guest: &Guest) -> Result<()> {
    let script = format!("pkill -fx '{HOLDS}' && while pgrep -fx '{HOLDS}' > /dev/null; do sleep 0.1; done");
    guest.run(&script, LIMIT).map(drop)
}

/// The id of the guest's boot, which a reset changes.
fn boot(guest: &Guest) -> Result<String> {
    Ok(guest.run("cat /proc/sys/kernel/random/boot_id", LIMIT)?.trim().to_string())
}

/// What a stop and a reset change: the id of the guest's boot, the number of PostgreSQL's first process.
fn marks(guest: &Guest) -> Result<(String, String)> {
    let first = guest.run(&format!("head -n 1 {DATA}/postmaster.pid"), LIMIT)?;
    Ok((boot(guest)?, first.trim().to_string()))
}

/// The process comes when PostgreSQL has stopped: no plan could name it, and the export finds the pool busy.
fn late(lab: &Lab, report: &mut Report, primary: &Guest, standby: &Guest) -> Result<()> {
    step("A process opens the pool once PostgreSQL has stopped: a planned switchover");
    let before = marks(primary)?;
    // PostgreSQL removes the file when it ends. Looking for a name opens nothing.
    let script = format!("while [ -e {DATA}/postmaster.pid ]; do sleep 0.02; done\ncd /tank/pg && exec {HOLDS}");
    primary.leave_running(&script)?;
    report.fault();
    let begun = Instant::now();
    let (code, said) = switchover(primary, standby)?;
    anyhow::ensure!(code == REFUSED, "AGENT-A9: found exit code {code}, expected {REFUSED}: {said}");
    for words in ["started again", "in use", "sleep (pid ", "/tank/pg"] {
        anyhow::ensure!(said.contains(words), "AGENT-A9: found {said:?}, expected {words:?}");
    }
    becomes_primary(primary)?;
    let took = begun.elapsed().as_secs_f64();
    let after = marks(primary)?;
    anyhow::ensure!(after.0 == before.0, "AGENT-A9: {} was reset", primary.name);
    anyhow::ensure!(after.1 != before.1, "PostgreSQL was not stopped: nothing was shown");
    // The epoch does not show it: attach continues the lease under a new one when a busy guest hears a gateway late.
    let way = last_way(primary)?;
    anyhow::ensure!(way["event"] == "restart", "AGENT-A9: found {way}, expected a restart under the lease of before");
    let code = asks(standby, "/primary");
    anyhow::ensure!(code != 200, "AGENT-A9: found /primary {code} at {}, expected a standby", standby.name);
    primary.run("mountpoint -q /tank/pg && mountpoint -q /tank/pg/wal", LIMIT).context("the datasets are mounted")?;
    report.add(PART, "busy export after the stop: primary again in place", Some(took), lab.check_ledger(primary)?);
    Ok(())
}

/// PostgreSQL ends, and starts no more on this host, while a forgotten process works in the pool.
fn given_up(lab: &Lab, report: &mut Report, primary: &Guest, standby: &Guest) -> Result<()> {
    step("PostgreSQL starts no more while a process works in the pool: the lease is given up");
    let before = boot(primary)?;
    works(primary)?;
    report.fault();
    let begun = Instant::now();
    primary.run(&format!("chmod a-x {PROGRAM} && kill -9 $(head -n 1 {DATA}/postmaster.pid)"), LIMIT)?;
    becomes_primary(standby)?;
    let took = begun.elapsed().as_secs_f64();
    primary.run(&format!("chmod a+x {PROGRAM}"), LIMIT)?;
    let after = boot(primary)?;
    anyhow::ensure!(after == before, "AGENT-A9: {} was reset", primary.name);
    anyhow::ensure!(!is_there(primary), "AGENT-A9: found {HOLDS} on {}, expected that it was ended", primary.name);
    let ended = last_reason(primary, "user-ended")?;
    for words in ["sleep (pid ", "uid 0", "/tank/pg", "SIGTERM"] {
        anyhow::ensure!(ended.contains(words), "AGENT-A9: found {ended:?}, expected {words:?}");
    }
    let verdict = lab.check_ledger(standby)?;
    let what = "PostgreSQL starts no more, a process in the pool is ended: the other one primary";
    report.add(PART, what, Some(took), verdict);
    stands_by(primary)?;
    moved(standby, primary)?;
    stands_by(standby)
}
