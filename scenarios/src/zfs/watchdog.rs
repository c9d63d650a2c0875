//! Two guests under systemd, with the machine's watchdog (softdog, `watchdog.mode = "required"`) and PostgreSQL as a
//! unit: that of deploy/systemd on a, Debian's on b; the agent is the unit of deploy/systemd. SIGSTOP makes processes
//! hang. Each time the other guest takes over, and the first one comes back through its units.
//!
//! | fault or command | ends PostgreSQL |
//! | --- | --- |
//! | switchovers | the agent, through systemd |
//! | the agent hangs | the helper, without a reset of the machine |
//! | the agent hangs, and the helper is killed | softdog: attach keeps renewing, nothing else is left |
//! | everything of the agent's unit hangs | softdog, before another host can get the lease |
//! | `systemctl reboot`, `systemctl poweroff` | agent and unit, cleanly: the lease is released, without a wait |

use super::Args;
use super::agents::{More, becomes_primary, configure_with, last_way, phases, stands_by};
use super::guest::{First, Guest};
use super::lab::{LIMIT, Lab, SET, TTL, go_on};
use super::last_words;
use super::multihost::moved;
use super::pool::{DATA, sound};
use super::report::Report;
use crate::binary::root;
use crate::ledger::unix_ms;
use crate::process::wait_until;
use crate::say::{note, step};
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

const PART: &str = "watchdog";

/// The agent's unit.
const AGENT: &str = "holdfast-agent.service";

/// PostgreSQL's unit on each guest.
const POSTGRESQL: [&str; 2] = ["holdfast-postgresql.service", "postgresql@15-main.service"];

/// Logs that show how each of them started. Of the journal, this boot alone, and all that was said until now: otherwise
/// a start of before a reset might be taken for the last one.
const SAID: [&str; 2] = [
    "{ journalctl --sync; journalctl --no-pager -b -o cat -u holdfast-postgresql.service; }",
    "cat /var/log/postgresql/postgresql-15-main.log",
];

/// Lines of a machine's last words to print.
const LAST_LINES: usize = 60;

/// After this silence of the agent the helper ends PostgreSQL (WATCHDOG-W2): two leases.
const WATCHDOG: &str = "mode = \"required\"\ntimeout_ms = 20000\n";

/// The helper's status of an armed device (GUARD-G2): two thirds of [`TTL`].
const ARMED: &str = "armed 6";

/// Finds the helper, on the command line of `pgrep`.
const HELPER: &str = "-f '^(/usr/bin/)?holdfast agent watchdog '";

/// Stops the agent's process alone.
const STOP: &str = "kill -STOP $(systemctl show -p MainPID --value holdfast-agent.service)";

/// Debian's cluster, on a data directory with its own settings.
fn cluster() -> String {
    format!(
        "data_directory = '{DATA}'\nhba_file = '{DATA}/pg_hba.conf'\nident_file = '{DATA}/pg_ident.conf'\n\
         external_pid_file = '/run/postgresql/15-main.pid'\ninclude '{DATA}/postgresql.conf'\n"
    )
}

/// A unit file as shipped.
fn shipped(unit: &str) -> Result<String> {
    let path = root().join("deploy/systemd").join(unit);
    std::fs::read_to_string(&path).with_context(|| path.display().to_string())
}

/// Boots a guest under systemd and enables its agent's unit.
fn begin(lab: &Lab, report: &mut Report, index: usize) -> Result<Guest> {
    let (guest, seconds) = lab.boot_as(index, First::Systemd)?;
    let version = guest.run("systemctl --version | head -n 1", LIMIT)?;
    report.add(PART, &format!("{}: boot", guest.name), Some(seconds), version.trim());
    guest.put(&format!("/etc/systemd/system/{AGENT}"), &shipped(AGENT)?)?;
    // docs/operating/agent.md: longer than the limits of a stop, an export and a detach together, which are wide here.
    guest.put(&format!("/etc/systemd/system/{AGENT}.d/limits.conf"), "[Service]\nTimeoutStopSec=5min\n")?;
    let listens = last_words::unit_file(&[AGENT, POSTGRESQL[index]]);
    guest.put(&format!("/etc/systemd/system/{}", last_words::UNIT), &listens)?;
    if index == 0 {
        let sample = shipped(POSTGRESQL[0])?;
        let unit = sample.replace("/srv/pg/data", DATA);
        anyhow::ensure!(unit != sample, "{}: found no /srv/pg/data, expected one to replace", POSTGRESQL[0]);
        guest.put(&format!("/etc/systemd/system/{}", POSTGRESQL[0]), &unit)?;
    } else {
        guest.put("/etc/postgresql/15/main/postgresql.conf", &cluster())?;
    }
    guest.put("/etc/modules-load.d/softdog.conf", "softdog\n")?;
    // At a shutdown there is no earlier checkpoint: the stop makes it, under emulation.
    let database = format!("kind = \"systemd\"\nunit = {:?}\nstop_timeout_s = 120\n", POSTGRESQL[index]);
    configure_with(&guest, index, More { database: &database, watchdog: WATCHDOG, ..More::of_pool("") })?;
    let start = format!("set -e\nmodprobe softdog\nsystemctl daemon-reload\nsystemctl enable --now {AGENT}\nsync");
    guest.run(&start, LIMIT)?;
    Ok(guest)
}

/// Checks that the device is armed on the primary, and that one helper feeds it: otherwise the rest shows nothing.
fn counts(primary: &Guest) -> Result<()> {
    let found = primary.run("cat /run/holdfast-agent/watchdog.device", LIMIT)?;
    anyhow::ensure!(found.trim() == ARMED, "AGENT-A7: {}: found {:?}, expected {ARMED:?}", primary.name, found.trim());
    let helpers = primary.run(&format!("pgrep -c {HELPER}"), LIMIT)?;
    anyhow::ensure!(helpers.trim() == "1", "{}: found {} helpers, expected 1", primary.name, helpers.trim());
    Ok(())
}

/// Id of a guest's boot.
fn boot_of(guest: &Guest) -> Result<String> {
    Ok(guest.run("cat /proc/sys/kernel/random/boot_id", LIMIT)?.trim().to_string())
}

/// State in which PostgreSQL started last on a guest.
fn began(guest: &Guest, index: usize) -> Result<String> {
    let found = "grep -oE 'database system (was shut down|was interrupted|shutdown was interrupted)' | tail -n 1";
    Ok(guest.run(&format!("{} | {found}", SAID[index]), LIMIT)?.trim().to_string())
}

/// Checks that PostgreSQL, which started last on a guest, was shut down cleanly on the other one.
fn began_well(guest: &Guest, index: usize) -> Result<()> {
    let found = began(guest, index)?;
    anyhow::ensure!(
        found == "database system was shut down",
        "AGENT-A2: {}: found {found:?}, expected a PostgreSQL that was stopped in good order",
        guest.name
    );
    Ok(())
}

/// The agent's unit came up with a guest, and goes on.
fn by_its_unit(guest: &Guest) -> Result<String> {
    let shown = guest.run(&format!("systemctl show -p ActiveState -p UnitFileState -p NRestarts {AGENT}"), LIMIT)?;
    let words: Vec<&str> = shown.split_whitespace().collect();
    let well = words.contains(&"ActiveState=active") && words.contains(&"UnitFileState=enabled");
    anyhow::ensure!(well, "{}: found {words:?}, expected a unit that is enabled and active", guest.name);
    Ok(words.join(" "))
}

/// A switchover under writers; `index` is the number of the target guest.
fn switched(lab: &mut Lab, report: &mut Report, from: &Guest, to: &Guest, index: usize) -> Result<()> {
    step(format!("Switchover from {} to {}", from.name, to.name));
    let writers = lab.writers(from)?;
    go_on(&writers, 20)?;
    let since = unix_ms();
    let took = moved(from, to)?;
    lab.take_back(writers, since)?;
    began_well(to, index)?;
    let unit = from.run(&format!("systemctl show -p ActiveState --value {}", POSTGRESQL[1 - index]), LIMIT)?;
    anyhow::ensure!(unit.trim() == "inactive", "{}: found its unit {}, expected inactive", from.name, unit.trim());
    stands_by(from)?;
    let what = format!("switchover to {}, unit {}", to.name, POSTGRESQL[index]);
    report.add(PART, &what, Some(took), phases(to)?);
    report.add(PART, "ledger", None, lab.check_ledger(to)?);
    Ok(())
}

/// The agent hangs: the helper ends PostgreSQL, and the machine's watchdog is still fed. No writes at that moment: a
/// process that waits for the device survives SIGKILL until the device fails, a suspended pool keeps it for ever, and
/// then the machine's watchdog would reset the guest.
fn hung(lab: &mut Lab, report: &mut Report, from: &Guest, to: &Guest) -> Result<()> {
    step(format!("The agent of {} is stopped: SIGSTOP", from.name));
    counts(from)?;
    let writers = lab.writers(from)?;
    go_on(&writers, 20)?;
    lab.take_back(writers, unix_ms())?;
    Lab::session(from)?.query("checkpoint")?;
    let boot = boot_of(from)?;
    report.fault();
    let begun = Instant::now();
    from.run(STOP, LIMIT)?;
    let gone = wait_until(LIMIT, || from.run("pgrep -c -x postgres || true", LIMIT).is_ok_and(|n| n.trim() == "0"));
    anyhow::ensure!(gone, "WATCHDOG-W2: {}: PostgreSQL of an agent that hangs is there after {LIMIT:?}", from.name);
    let took = begun.elapsed().as_secs_f64();
    let why = "grep -o 'the agent gave no sign of life for [0-9]* ms' /run/holdfast-agent/watchdog.log | tail -n 1";
    let said = from.run(why, LIMIT)?;
    anyhow::ensure!(!said.trim().is_empty(), "WATCHDOG-W2: {}: the helper did not end it", from.name);
    report.add(PART, "agent stopped: PostgreSQL ended by the helper", Some(took), said.trim());
    becomes_primary(to)?;
    report.add(PART, "the other primary", Some(begun.elapsed().as_secs_f64()), phases(to)?);
    anyhow::ensure!(
        boot_of(from)? == boot,
        "GUARD-G1: {} was reset, and nothing of PostgreSQL was left there",
        from.name
    );
    let again = Instant::now();
    from.run(&STOP.replace("-STOP", "-CONT"), LIMIT)?;
    stands_by(from)?;
    let found = if boot_of(from)? == boot { "without a reboot" } else { "rebooted by its agent (fence_action)" };
    report.add(PART, "agent goes on: it stands by", Some(again.elapsed().as_secs_f64()), found);
    report.add(PART, "ledger", None, lab.check_ledger(to)?);
    Ok(())
}

/// `what` hangs, by `script`, so that only the machine's watchdog is left: it resets the guest before the set is
/// granted to the other one.
fn reset(
    lab: &mut Lab,
    report: &mut Report,
    args: &Args,
    (what, script): (&str, &str),
    (from, to): (&Guest, &Guest),
) -> Result<()> {
    step(format!("{}: {what}", from.name));
    counts(from)?;
    let writers = lab.writers(from)?;
    go_on(&writers, 20)?;
    std::thread::sleep(Duration::from_secs(args.load));
    let mut events = from.events()?;
    report.fault();
    let (since, begun) = (unix_ms(), Instant::now());
    // Not waited for: the guest may be reset before it answers.
    from.leave_running(script)?;
    let reset = events.until("RESET", LIMIT).context("the machine's watchdog did not fire")?;
    becomes_primary(to)?;
    let took = begun.elapsed().as_secs_f64();
    lab.take_back(writers, since)?;
    let granted = lab.granted(to)?;
    anyhow::ensure!(
        reset < granted,
        "GUARD-G1: {} was reset {} ms after the set was granted to {}",
        from.name,
        reset - granted,
        to.name
    );
    let fired = reset.saturating_sub(since) as f64 / 1000.0;
    let ahead = format!("{} ms before the set was granted to {}", granted - reset, to.name);
    report.add(PART, &format!("{what}: reset by softdog"), Some(fired), ahead);
    report.add(PART, "the other primary", Some(took), phases(to)?);
    stands_by(from)?;
    let took = begun.elapsed().as_secs_f64();
    report.add(PART, "the one that was reset stands by", Some(took), by_its_unit(from)?);
    report.add(PART, "ledger", None, lab.check_ledger(to)?);
    Ok(())
}

/// As [`goes_down`]. If that fails, prints what both said.
fn shut_down(
    lab: &mut Lab,
    report: &mut Report,
    (verb, event): (&str, &str),
    from: &Guest,
    (to, index): (&Guest, usize),
) -> Result<()> {
    let gone = goes_down(lab, report, (verb, event), from, (to, index));
    if gone.is_err() {
        for line in from.last_words(LAST_LINES) {
            note(format!("{}: {line}", from.name));
        }
        let log = to.run(&format!("{} | tail -n 12", SAID[index]), LIMIT).unwrap_or_else(|error| format!("{error:#}"));
        for line in log.lines() {
            note(format!("{}: {line}", to.name));
        }
    }
    gone
}

/// The primary's machine is shut down by `systemctl VERB`; QEMU reports its end by `event`.
fn goes_down(
    lab: &mut Lab,
    report: &mut Report,
    (verb, event): (&str, &str),
    from: &Guest,
    (to, index): (&Guest, usize),
) -> Result<()> {
    step(format!("{}: systemctl {verb}", from.name));
    counts(from)?;
    let writers = lab.writers(from)?;
    go_on(&writers, 20)?;
    from.run(&format!("systemctl start {}", last_words::UNIT), LIMIT)?;
    let mut events = from.events()?;
    let (since, begun) = (unix_ms(), Instant::now());
    from.leave_running(&format!("systemctl {verb}"))?;
    becomes_primary(to)?;
    let took = begun.elapsed().as_secs_f64();
    lab.take_back(writers, since)?;
    let way = last_way(to)?;
    let reason = way["reason"].as_str().unwrap_or_default();
    anyhow::ensure!(
        reason == "the lease was free",
        "AGENT-A2: found {way}, expected a lease that was given back, and not one that ran out"
    );
    began_well(to, index)?;
    let down = events.until(event, LIMIT)?.saturating_sub(since) as f64 / 1000.0;
    report.add(PART, &format!("systemctl {verb}: the machine is down"), Some(down), "PostgreSQL stopped in good order");
    report.add(PART, "the other primary", Some(took), format!("{reason}: {}", phases(to)?));
    report.add(PART, "ledger", None, lab.check_ledger(to)?);
    Ok(())
}

/// The unit of attach, on a standby: it attaches an unused set, and detaches it.
fn attach_unit(report: &mut Report, guest: &Guest) -> Result<()> {
    step("The unit of attach");
    guest.put("/etc/systemd/system/holdfast-attach@.service", &shipped("holdfast-attach@.service")?)?;
    let options = format!(
        "HOLDFAST_ATTACH_OPTIONS=--owner {} --api {} --device kernel --ttl {TTL} --timeout 2m\n",
        guest.name,
        Lab::apis().join(",")
    );
    guest.put("/etc/holdfast/attach-unused.env", &options)?;
    let begun = Instant::now();
    guest.run("systemctl daemon-reload && systemctl start holdfast-attach@unused.service", LIMIT)?;
    // Type=notify: the start ends once the devices can be used.
    let look = "holdfast attach unused --status --output json";
    let status: serde_json::Value = serde_json::from_str(&guest.run(look, LIMIT)?)?;
    anyhow::ensure!(status["ready"] == true, "found {status}, expected devices that can be used");
    report.add(PART, "holdfast-attach@.service: start", Some(begun.elapsed().as_secs_f64()), "ready");
    let begun = Instant::now();
    guest.run("systemctl stop holdfast-attach@unused.service && ! ls /sys/block/nbd*/pid", LIMIT)?;
    let result = guest.run("systemctl show -p Result --value holdfast-attach@unused.service", LIMIT)?;
    anyhow::ensure!(result.trim() == "success", "found the result {:?}, expected success", result.trim());
    report.add(PART, "its stop", Some(begun.elapsed().as_secs_f64()), "no nbd device is left connected");
    Ok(())
}

/// Settings of a gateway that is its own cluster, and the cluster's plan.
const GATEWAY: &str = "name = \"g1\"\ndata_dir = \"/var/lib/holdfast\"\napi_listen = \"127.0.0.1:7400\"\n\
    peer_listen = \"127.0.0.1:7401\"\nnbd_listen = \"127.0.0.1:10809\"\nplain_exports = true\n\
    [key]\nfile = \"/run/credentials/holdfast-gateway.service/cluster.key\"\n[journal]\nbound = \"1GiB\"\nreserve = \"128MiB\"\n\
    [cache]\nmemory = \"128MiB\"\ndisk = \"0B\"\n";
const PLAN: &str = "[[gateways]]\nname = \"g1\"\nregion = \"local\"\napi = \"127.0.0.1:7400\"\n\
    [[sets]]\nname = \"here\"\nstore = \"file:///var/lib/holdfast-store\"\nvolumes = { vol1 = \"64MiB\" }\n";

/// Asks that gateway once a second until it answers with success.
const ANSWERS: &str = "for _ in $(seq 200); do holdfast lease show here --api 127.0.0.1:7400 > /dev/null 2>&1 && exit 0; sleep 1; done; exit 1";

/// The unit of a gateway, on a standby: started, killed and restarted automatically, stopped.
fn gateway_unit(report: &mut Report, guest: &Guest) -> Result<()> {
    const UNIT: &str = "holdfast-gateway.service";
    step("The unit of a gateway");
    guest.put(&format!("/etc/systemd/system/{UNIT}"), &shipped(UNIT)?)?;
    guest.put("/etc/sysusers.d/holdfast.conf", &shipped("holdfast.conf")?)?;
    // A store in a folder is for tests, and the unit may write nothing but its own directories.
    guest.put(
        &format!("/etc/systemd/system/{UNIT}.d/store.conf"),
        "[Service]\nReadWritePaths=/var/lib/holdfast-store\n",
    )?;
    guest.put("/etc/holdfast/gateway.toml", GATEWAY)?;
    guest.put("/etc/holdfast/cluster.toml", PLAN)?;
    guest.put("/etc/holdfast/cluster.key", &"5a".repeat(32))?;
    let begun = Instant::now();
    guest.run(
        &format!(
            "set -e\nsystemd-sysusers /etc/sysusers.d/holdfast.conf\nchmod 600 /etc/holdfast/cluster.key\nchmod 755 /etc/holdfast\n\
             chmod 644 /etc/holdfast/gateway.toml\ninstall -d -o holdfast /var/lib/holdfast-store\n\
             systemctl daemon-reload\nsystemctl start {UNIT}\n\
             for _ in $(seq 200); do (: < /dev/tcp/127.0.0.1/7400) 2> /dev/null && break; sleep 1; done\n\
             holdfast cluster bootstrap --config /etc/holdfast/cluster.toml --api 127.0.0.1:7400 --timeout 60s \\\n\
             || {{ journalctl -u {UNIT} -n 30 --no-pager -o cat >&2; exit 4; }}"
        ),
        LIMIT,
    )?;
    guest.run(ANSWERS, LIMIT)?;
    report.add(PART, &format!("{UNIT}: start, bootstrap"), Some(begun.elapsed().as_secs_f64()), "answers");
    let begun = Instant::now();
    report.fault();
    guest.run(&format!("kill -9 $(systemctl show -p MainPID --value {UNIT})"), LIMIT)?;
    let shown = || guest.run(&format!("systemctl show -p NRestarts --value {UNIT}"), LIMIT);
    let again = wait_until(LIMIT, || shown().is_ok_and(|n| n.trim() == "1"));
    anyhow::ensure!(again, "found {:?} restarts of {UNIT}, expected 1", shown());
    guest.run(ANSWERS, LIMIT)?;
    report.add(PART, "killed: it answers again", Some(begun.elapsed().as_secs_f64()), "restarted by systemd");
    let begun = Instant::now();
    guest.run(&format!("systemctl stop {UNIT}"), LIMIT)?;
    let result = guest.run(&format!("systemctl show -p Result --value {UNIT}"), LIMIT)?;
    anyhow::ensure!(result.trim() == "success", "{UNIT}: found the result {:?}, expected success", result.trim());
    report.add(PART, "its stop", Some(begun.elapsed().as_secs_f64()), "success");
    Ok(())
}

/// The tests. Nothing is attached before them; [`SET`] has its pool, and the ledger its table. Fails when anything is
/// not as described above, or an acknowledged commit is lost.
pub fn acts(lab: &mut Lab, report: &mut Report, args: &Args) -> Result<()> {
    step(format!("Two guests under systemd, softdog, {SET}"));
    let a = begin(lab, report, 0)?;
    let begun = Instant::now();
    becomes_primary(&a)?;
    report.add(PART, "a: start of its unit to primary", Some(begun.elapsed().as_secs_f64()), phases(&a)?);
    let b = begin(lab, report, 1)?;
    stands_by(&b)?;
    attach_unit(report, &b)?;
    gateway_unit(report, &b)?;
    switched(lab, report, &a, &b, 1)?;
    switched(lab, report, &b, &a, 0)?;
    hung(lab, report, &a, &b)?;
    let helper_too = format!("{STOP}\nkill -9 $(pgrep {HELPER})");
    reset(lab, report, args, ("the agent stopped, its helper killed", &helper_too), (&b, &a))?;
    let all = format!("systemctl kill --signal=SIGSTOP {AGENT}");
    reset(lab, report, args, ("everything of the agent's unit stopped", &all), (&a, &b))?;
    shut_down(lab, report, ("reboot", "RESET"), &b, (&a, 0))?;
    let begun = Instant::now();
    stands_by(&b)?;
    report.add(PART, "the one that was rebooted stands by", Some(begun.elapsed().as_secs_f64()), by_its_unit(&b)?);
    shut_down(lab, report, ("poweroff", "SHUTDOWN"), &a, (&b, 1))?;
    a.off(LIMIT)?;
    sound(lab, report, PART, &b)
}
