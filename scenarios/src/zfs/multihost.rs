//! Two guests with agents over a pool with `multihost=on`, ZFS's own guard behind the lease. The agents turn it on. An
//! exported pool is imported at once, that of a lost host only after ZFS's activity check, which is long by default and
//! short with the parameters in docs/zfs.md. A host with the other's id, or without one, is refused with advice.

use super::Args;
use super::agents::{asks, becomes_primary, begin, configure, phases, stands_by, view};
use super::guest::Guest;
use super::lab::{LIMIT, Lab, go_on};
use super::pool::{load, sound};
use super::report::Report;
use crate::ledger::unix_ms;
use crate::process::wait_until;
use crate::say::step;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

const PART: &str = "multihost";

/// Further settings of the pool in the agents' file.
const POOL: &str = "multihost = true\n";

/// Named in an agent's warning while ZFS has its defaults.
const DEFAULTS: &str = "zfs_multihost_fail_intervals";

/// Settings in docs/zfs.md, for a loaded module.
const ADVISED: &str = "set -e\ncd /sys/module/zfs/parameters\necho 0 > zfs_multihost_fail_intervals\necho 1 > zfs_multihost_import_intervals";

/// Exit code of a refused command.
pub const REFUSED: i64 = 3;

/// Restarts the agent of a standby, with `multihost` in its settings.
fn begin_anew(guest: &Guest, index: usize) -> Result<()> {
    configure(guest, index, POOL)?;
    guest.run("kill $(pgrep -f '^(/usr/bin/)?holdfast agent run ')", LIMIT)?;
    let anew = wait_until(LIMIT, || view(guest).is_ok_and(|view| view["multihost"] == true));
    anyhow::ensure!(anew, "{}: found {:?}, expected an agent with multihost", guest.name, view(guest));
    stands_by(guest)
}

/// Asks the agent of `from` for a switchover; returns exit code and text. Fails when the command could not be run.
pub fn switchover(from: &Guest, to: &Guest) -> Result<(i64, String)> {
    let (code, out, err) =
        from.ran(&format!("holdfast agent switchover --to {} --yes --timeout 4m", to.name), LIMIT)?;
    Ok((code, format!("{out}\n{err}")))
}

/// A successful switchover; returns the time until the other guest was primary. Fails when it is refused, or the other
/// one is not primary after it.
pub fn moved(from: &Guest, to: &Guest) -> Result<f64> {
    let begun = Instant::now();
    let (code, said) = switchover(from, to)?;
    anyhow::ensure!(code == 0, "switchover from {} to {}: exit code {code}: {said}", from.name, to.name);
    becomes_primary(to)?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Planned duration of each activity check that ZFS made before an import since the guest's boot, in nanoseconds, as
/// ZFS records it.
fn watches(guest: &Guest) -> Result<Vec<u64>> {
    let said = guest.run("grep -ao 'import_delay=[0-9]*' /proc/spl/kstat/zfs/dbgmsg || true", LIMIT)?;
    let numbers = said.lines().filter_map(|line| line.trim().strip_prefix("import_delay="));
    numbers.map(|number| number.parse::<u64>().with_context(|| format!("import_delay={number}"))).collect()
}

fn is_on(guest: &Guest) -> Result<()> {
    let found = guest.run("zpool get -H -o value multihost tank", LIMIT)?;
    anyhow::ensure!(found.trim() == "on", "{}: found multihost={}, expected on", guest.name, found.trim());
    Ok(())
}

/// The agent's status under `key`; "" if missing.
fn shown(guest: &Guest, key: &str) -> Result<String> {
    Ok(view(guest)?[key].as_str().unwrap_or_default().to_string())
}

/// Sets a guest's host id to `id`, or removes it, and waits until its agent has seen that.
fn identify(guest: &Guest, id: Option<&str>) -> Result<()> {
    let script = id.map_or("rm /etc/hostid".to_string(), |id| format!("zgenhostid -f {id}"));
    guest.run(&script, LIMIT)?;
    let expected = id.unwrap_or("00000000");
    let seen = wait_until(LIMIT, || shown(guest, "host_id").is_ok_and(|found| found == expected));
    anyhow::ensure!(seen, "{}: found {:?}, expected the host id {expected}", guest.name, view(guest));
    Ok(())
}

/// The settings change on both, one after the other; the pool gets the property, and moves there and back. `primary` is
/// primary before and after.
fn turn_on(report: &mut Report, (primary, at): (&Guest, usize), (standby, beside): (&Guest, usize)) -> Result<()> {
    begin_anew(standby, beside)?;
    let took = moved(primary, standby)?;
    is_on(standby)?;
    report.add(PART, "switchover: the agent turns multihost on", Some(took), phases(standby)?);
    let warning = shown(standby, "warning")?;
    anyhow::ensure!(warning.contains(DEFAULTS), "found the warning {warning:?}, expected it to name {DEFAULTS}");
    report.add(PART, "what the agent says of ZFS's defaults", None, warning);

    stands_by(primary)?;
    begin_anew(primary, at)?;
    let before = watches(primary)?.len();
    let took = moved(standby, primary)?;
    is_on(primary)?;
    let watched = watches(primary)?.len() - before;
    anyhow::ensure!(watched == 0, "found an activity check of a cleanly exported pool, expected none");
    report.add(PART, "switchover back: imported at once", Some(took), phases(primary)?);
    stands_by(standby)
}

/// Switchovers to a host with a duplicate id, and to one without an id, are refused with advice.
fn refusals(report: &mut Report, primary: &Guest, standby: &Guest) -> Result<()> {
    step("A host with the other's host id, and one with none");
    let (own, other) = (shown(standby, "host_id")?, shown(primary, "host_id")?);
    anyhow::ensure!(own != other, "found the host id {own} on both, expected two");
    for (what, id, words) in [
        ("the other's host id: switchover", Some(other.as_str()), "same host id"),
        ("no host id: switchover", None, "host id of this host is not set"),
    ] {
        identify(standby, id)?;
        let (code, said) = switchover(primary, standby)?;
        anyhow::ensure!(code == REFUSED, "HOSTID-H1: {what}: found exit code {code}, expected {REFUSED}: {said}");
        anyhow::ensure!(said.contains(words) && said.contains("zgenhostid"), "HOSTID-H1: {what}: found {said:?}");
        // It would not take the lease by itself either. The ids of others are polled at intervals.
        let unable = wait_until(LIMIT, || shown(standby, "unable").is_ok_and(|unable| unable.contains("zgenhostid")));
        anyhow::ensure!(unable, "HOSTID-H1: {what}: able after {LIMIT:?}: {:?}", view(standby));
        let ready = asks(standby, "/readiness");
        anyhow::ensure!(ready == 503, "HOSTID-H1: {what}: found /readiness {ready}, expected 503");
        report.add(PART, what, None, format!("not ready; refused: {words}; zgenhostid"));
    }
    becomes_primary(primary)?;
    identify(standby, Some(&own))?;
    stands_by(standby)?;
    report.add(PART, "its own host id again", None, "ready");
    Ok(())
}

/// The primary is killed under pgbench and writers; the other one imports the unexported pool.
fn lost(
    lab: &mut Lab,
    report: &mut Report,
    args: &Args,
    primary: Guest,
    standby: &Guest,
    parameters: &str,
) -> Result<()> {
    step(format!("The primary's host is killed; parameters of ZFS: {parameters}"));
    // For longer than the test takes.
    load(&primary, args.load + 60)?;
    let writers = lab.writers(&primary)?;
    go_on(&writers, 20)?;
    std::thread::sleep(Duration::from_secs(args.load));
    let before = watches(standby)?.len();
    report.fault();
    let killed = primary.kill()?;
    let since = unix_ms();
    becomes_primary(standby)?;
    let took = killed.elapsed().as_secs_f64();
    lab.take_back(writers, since)?;
    let watched = watches(standby)?;
    let last = watched.last().filter(|_| watched.len() > before);
    let ms = last
        .context("the pool of a lost host was imported without an activity check: multihost guards nothing")?
        / 1_000_000;
    let found = format!("{}; of mount, the activity check took {ms} ms and up to a quarter more", phases(standby)?);
    report.add(PART, &format!("primary killed, {parameters}: the other primary"), Some(took), found);
    is_on(standby)?;
    sound(lab, report, PART, standby)
}

/// The tests, with each guest's number. The primary is killed and comes back, then the other one is killed. Fails when
/// anything is not as described above, or an acknowledged commit is lost.
pub fn acts(
    lab: &mut Lab,
    report: &mut Report,
    args: &Args,
    (primary, at): (Guest, usize),
    (standby, beside): (Guest, usize),
) -> Result<()> {
    step("Two guests with agents, pool.multihost");
    turn_on(report, (&primary, at), (&standby, beside))?;
    refusals(report, &primary, &standby)?;
    lost(lab, report, args, primary, &standby, "its defaults")?;

    let (back, _) = lab.boot(at)?;
    begin(&back, at, POOL)?;
    stands_by(&back)?;
    for guest in [&back, &standby] {
        guest.run(ADVISED, LIMIT)?;
    }
    lost(lab, report, args, standby, &back, "as docs/zfs.md advises")?;
    let warning = shown(&back, "warning")?;
    anyhow::ensure!(warning.is_empty(), "found the warning {warning:?}, expected none");
    Ok(())
}
