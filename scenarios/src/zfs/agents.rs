//! Two guests with agents: one is killed, one is paused and resumed. The other one takes over automatically each time.

use super::Args;
use super::guest::Guest;
use super::lab::{LIMIT, Lab, SET, TTL, go_on};
use super::pool::{DATA, sound};
use super::report::Report;
use crate::gateways::GATEWAYS;
use crate::ledger::unix_ms;
use crate::net::address;
use crate::pg;
use crate::process::wait_until;
use crate::say::{note, step};
use anyhow::{Context, Result};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const PART: &str = "agents";
const TOKEN: &str = "/etc/holdfast/agent.token";

/// Lines of a guest's settings that differ between parts.
#[derive(Clone, Copy, Debug)]
pub struct More<'a> {
    pub set: &'a str,
    /// Further ones of `[pool]`.
    pub pool: &'a str,
    /// Further ones of `[database]`.
    pub database: &'a str,
    /// All of `[watchdog]`.
    pub watchdog: &'a str,
    /// Further ones of `[takeover]`.
    pub takeover: &'a str,
    /// All of `[hooks]`.
    pub hooks: &'a str,
}

impl<'a> More<'a> {
    /// Of a guest without systemd.
    pub fn of_pool(pool: &'a str) -> Self {
        let watchdog = "mode = \"off\"\ntimeout_ms = 60000\n";
        Self { set: SET, pool, database: "", watchdog, takeover: "", hooks: "" }
    }
}

/// Settings of a guest's agent. Emulation is slow, so the limits are wide. `pool.fence_action` keeps its default, so
/// reboots are tested.
fn settings(guest: &Guest, index: usize, more: More<'_>) -> String {
    let More { set, pool, database, watchdog, takeover, hooks } = more;
    let apis: Vec<String> = Lab::apis().iter().map(|api| format!("{api:?}")).collect();
    let (peer, peer_at) = (["b", "a"][index], address(GATEWAYS + 1 - index));
    format!(
        "name = {:?}\nset = {set:?}\ngateways = [{}]\n[lease]\nstop_margin_ms = 1000\nttl_ms = 10000\n[takeover]\nper_hour_max = 1000\n{takeover}\
         [attach]\ndevice = \"kernel\"\nargs = [\"--ttl\", {TTL:?}]\nacquire_timeout_ms = 60000\ndevice_timeout_ms = 60000\ndetach_timeout_ms = 60000\n\
         [pool]\nkind = \"zfs\"\nname = \"tank\"\nimport_timeout_s = 120\nexport_timeout_s = 60\n{pool}\
         [database]\ndata = {DATA:?}\nhost = \"/run/postgresql\"\nhealth_timeout_s = 120\n{database}[watchdog]\n{watchdog}[hooks]\n{hooks}\
         [http]\nlisten = \"0.0.0.0:8008\"\ntoken_file = {TOKEN:?}\n[peers]\n{peer} = \"{peer_at}:8008\"\n",
        guest.name,
        apis.join(", ")
    )
}

/// Writes the settings, which an agent reads at its start, with these further lines for its pool.
pub fn configure(guest: &Guest, index: usize, pool: &str) -> Result<()> {
    configure_with(guest, index, More::of_pool(pool))
}

/// The same, with all lines that differ between parts.
pub fn configure_with(guest: &Guest, index: usize, more: More<'_>) -> Result<()> {
    guest.put(TOKEN, "a-token-for-two-agents\n")?;
    guest.run(&format!("chmod 600 {TOKEN}"), LIMIT).map(drop)?;
    guest.put("/etc/holdfast/agent.toml", &settings(guest, index, more))?;
    // Its reboot by sysrq writes nothing back.
    guest.run("sync", LIMIT).map(drop)
}

/// Starts the agent; after a reboot the guest starts it by itself.
pub fn begin(guest: &Guest, index: usize, pool: &str) -> Result<()> {
    begin_for(guest, index, SET, pool)
}

/// The same over another set.
pub fn begin_for(guest: &Guest, index: usize, set: &str, pool: &str) -> Result<()> {
    begin_with(guest, index, More { set, ..More::of_pool(pool) })
}

/// The same, with all lines that differ between parts.
pub fn begin_with(guest: &Guest, index: usize, more: More<'_>) -> Result<()> {
    configure_with(guest, index, more)?;
    guest.leave_running(
        "(while :; do holdfast agent run --config /etc/holdfast/agent.toml >> /var/log/agent.log 2>&1; sleep 1; done) < /dev/null > /dev/null 2>&1 &",
    )
}

/// Sends a request to its agent; returns the stream with the answer.
fn asked(guest: &Guest, question: &str) -> Result<TcpStream> {
    let at = format!("{}:8008", guest.address).parse()?;
    let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(2))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "{question} HTTP/1.0\r\n\r\n")?;
    Ok(stream)
}

/// The status of a health check; 0 for no answer.
pub fn asks(guest: &Guest, path: &str) -> u16 {
    let ask = || -> Result<u16> {
        let mut head = [0; 12];
        asked(guest, &format!("OPTIONS {path}"))?.read_exact(&mut head)?;
        Ok(std::str::from_utf8(&head[9..])?.parse()?)
    };
    ask().unwrap_or(0)
}

/// Status of its agent. Fails when there is no status.
pub fn view(guest: &Guest) -> Result<Value> {
    let mut answer = String::new();
    asked(guest, "GET /status")?.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").with_context(|| format!("{}: found {answer:?}", guest.name))?;
    Ok(serde_json::from_str(body)?)
}

fn said(guest: &Guest) -> String {
    let last = "if [ -e /var/log/agent.log ]; then tail -n 6 /var/log/agent.log; else journalctl --no-pager -o cat -n 6 -u holdfast-agent.service; fi; tail -n 4 /run/holdfast-agent/watchdog.log 2> /dev/null; true";
    guest.run(last, Duration::from_secs(60)).unwrap_or_else(|_| guest.console())
}

pub fn becomes_primary(guest: &Guest) -> Result<()> {
    let there = wait_until(LIMIT, || asks(guest, "/primary") == 200);
    anyhow::ensure!(there, "{} is not primary after {LIMIT:?}: {}", guest.name, said(guest));
    Ok(())
}

pub fn stands_by(guest: &Guest) -> Result<()> {
    let there = wait_until(LIMIT, || asks(guest, "/readiness") == 200 && asks(guest, "/primary") != 200);
    anyhow::ensure!(there, "{} does not stand by after {LIMIT:?}: {}", guest.name, said(guest));
    Ok(())
}

/// Whether it was rebooted after `since`, by its own agent.
pub fn rebooted(guest: &Guest, since: Instant) -> Result<()> {
    let ask = || guest.run("cut -d. -f1 /proc/uptime", Duration::from_secs(30));
    let young = wait_until(LIMIT, || {
        let up = ask().ok().and_then(|up| up.trim().parse::<u64>().ok());
        up.is_some_and(|up| up < since.elapsed().as_secs() + 5)
    });
    anyhow::ensure!(young, "{} was not rebooted by its agent after {LIMIT:?}: {}", guest.name, said(guest));
    Ok(())
}

/// The last line of a guest's history that is meant.
fn last_line(guest: &Guest, is_meant: impl Fn(&Value) -> bool) -> Result<Option<Value>> {
    let text = guest.run("cat /var/lib/holdfast-agent/history.jsonl", LIMIT)?;
    let mut lines = text.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    Ok(lines.find(is_meant))
}

/// A guest's last takeover, from its history.
pub fn last_way(guest: &Guest) -> Result<Value> {
    last_line(guest, |line| line["phases"].is_object())?.context("a takeover in the history")
}

/// The reason of the last event of this name in a guest's history.
pub fn last_reason(guest: &Guest, event: &str) -> Result<String> {
    let last = last_line(guest, |line| line["event"] == event)?;
    let last = last.with_context(|| format!("found no {event} in the history of {}", guest.name))?;
    Ok(last["reason"].as_str().unwrap_or_default().to_string())
}

/// The reason of its last failed takeover.
pub fn failed(guest: &Guest) -> Result<String> {
    last_reason(guest, "takeover-failed")
}

/// Its phases.
pub fn phases(guest: &Guest) -> Result<String> {
    let last = last_way(guest)?;
    let phases = last["phases"].as_object().context("phases")?;
    let words: Vec<String> = ["detect_ms", "lease_ms", "attach_ms", "mount_ms", "recover_ms", "first_write_ms"]
        .iter()
        .filter_map(|key| Some(format!("{} {} ms", key.trim_end_matches("_ms"), phases.get(*key)?.as_u64()?)))
        .collect();
    Ok(words.join(", "))
}

/// Agents on guest a, which becomes primary, and on guest b, which is booted as standby. Fails when they do not become
/// that.
pub fn pair(lab: &Lab, report: &mut Report, a: Guest) -> Result<(Guest, Guest)> {
    step("Agents on two guests");
    begin(&a, 0, "")?;
    let begun = Instant::now();
    becomes_primary(&a)?;
    report.add(PART, "a: start to primary", Some(begun.elapsed().as_secs_f64()), phases(&a)?);
    let (b, seconds) = lab.boot(1)?;
    report.add(PART, "boot of a guest beside it", Some(seconds), "");
    begin(&b, 1, "")?;
    stands_by(&b)?;
    note("b stands by");
    Ok((a, b))
}

/// The acts; a is primary after them, and b stands by.
pub fn acts(lab: &mut Lab, report: &mut Report, args: &Args, (a, mut b): (Guest, Guest)) -> Result<(Guest, Guest)> {
    step("Host a is killed: its QEMU gets SIGKILL");
    let writers = lab.writers(&a)?;
    go_on(&writers, 20)?;
    std::thread::sleep(Duration::from_secs(args.load));
    report.fault();
    let killed = a.kill()?;
    let since = unix_ms();
    becomes_primary(&b)?;
    let primary = killed.elapsed().as_secs_f64();
    lab.take_back(writers, since)?;
    report.add(PART, "a killed: b primary", Some(primary), phases(&b)?);
    sound(lab, report, PART, &b)?;

    let (a, _) = lab.boot(0)?;
    begin(&a, 0, "")?;
    stands_by(&a)?;
    note("a stands by");

    step("Host b is paused: SIGSTOP to its QEMU; a takes over; b is resumed");
    let writers = lab.writers(&b)?;
    go_on(&writers, 20)?;
    let mut stale = Lab::session(&b)?;
    stale.query("create table if not exists stale (n int)").context("before the pause")?;
    report.fault();
    let paused = b.pause()?;
    becomes_primary(&a)?;
    report.add(PART, "b paused: a primary", Some(paused.elapsed().as_secs_f64()), phases(&a)?);
    let writers_a = {
        lab.take_back(writers, unix_ms())?;
        lab.writers(&a)?
    };
    go_on(&writers_a, 20)?;
    let resumed = Instant::now();
    b.resume();
    // A client of the old primary that waited for this: its commit must not be acknowledged.
    let commit = stale.query("insert into stale values (1)");
    anyhow::ensure!(commit.is_err(), "R2: b acknowledged a commit after a had taken the set");
    report.add(
        PART,
        "b resumed: a commit there",
        Some(resumed.elapsed().as_secs_f64()),
        format!("refused: {}", commit.err().context("an error")?),
    );
    rebooted(&b, resumed)?;
    stands_by(&b)?;
    report.add(
        PART,
        "b fenced, rebooted, stands by",
        Some(resumed.elapsed().as_secs_f64()),
        b.run("tail -n 1 /var/lib/holdfast-agent/history.jsonl | cut -c1-120", LIMIT)?.trim(),
    );
    go_on(&writers_a, 20)?;
    lab.take_back(writers_a, unix_ms())?;
    let mut session = pg::client(&Lab::reach(&a)?)?;
    let stale = session.query("select count(*) from stale")?;
    anyhow::ensure!(stale == vec![vec![Some("0".into())]], "R2: found {stale:?} rows of b's late commit");
    sound(lab, report, PART, &a)?;
    Ok((a, b))
}
