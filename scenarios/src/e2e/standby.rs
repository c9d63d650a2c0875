//! A standby on a local copy of a snapshot, beside a primary under pgbench.
//!
//! 1. A refresh: the copy answers, pgbench's sums match, writes are refused, and the primary continues.
//! 2. The gateway that the copy reads from is killed: the whole device stays readable, and queries continue.
//! 3. A refresh: newer rows, younger data; the old copy and its snapshot are gone, a manual snapshot stays.
//! 4. A refresh to a missing snapshot, and one whose PostgreSQL cannot start, fail: the old copy keeps serving.
//! 5. `standby run`: answers 200 to load balancers, and a real HAProxy uses that. Its PostgreSQL is killed: a new copy
//!    replaces it. Told to stop, it removes everything.
//!
//! The settings and HAProxy's listener are those of deploy/examples/standby, with local addresses and directories.

use super::{Lab, TAKEOVER_LIMIT};
use crate::binary::{public_dir, root};
use crate::cluster::{Cluster, SET, VOLUME, free_ports};
use crate::cmd::{cmd, tail_of};
use crate::hosts::{self, Proxy};
use crate::pg::Postgres;
use crate::process::{Proc, Signal, wait_until};
use crate::say::note;
use crate::setup;
use crate::undo::{Guard, Undo};
use anyhow::{Context, Result};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

const SETTINGS: &str = "shared_buffers = 64MB\nmax_connections = 30\n";
const PGBENCH: [&str; 4] = ["-c", "2", "-j", "1"];

/// Limit until `standby run` serves, or serves again.
const RUN_LIMIT: Duration = Duration::from_secs(300);

/// A person's own snapshot.
const MONDAY: &str = "monday";

struct Standby {
    bin: PathBuf,
    config: PathBuf,
    http: SocketAddr,
    pg: Postgres,
}

impl Drop for Standby {
    fn drop(&mut self) {
        // Where a check failed, nothing is to stay mounted.
        let _ = self.command("stop").into_command().output();
    }
}

impl Standby {
    /// From the example's settings.
    fn new(lab: &Lab, cluster: &Cluster, open: &Path) -> Result<Self> {
        let example = std::fs::read_to_string(root().join("deploy/examples/standby/standby.toml"))?;
        let sockets = open.join("standby-sockets");
        let pg = Postgres::new(Path::new("/nowhere"), &sockets, &lab.dir.join("unused.log"))?;
        let http: SocketAddr = format!("127.0.0.1:{}", free_ports(1)?).parse()?;
        let gateways: Vec<&str> = cluster.gateways.iter().map(|gateway| gateway.api.as_str()).collect();
        let quoted = |path: &Path| format!("{:?}", path.display().to_string());
        let here = [
            ("gateways", format!("{gateways:?}")),
            ("dir", quoted(&open.join("lib"))),
            ("run_dir", quoted(&open.join("run"))),
            ("mount", quoted(&open.join("copies"))),
            ("host", quoted(&sockets)),
            // Of the database; the file system's come first and stay.
            ("options", format!("{:?}", format!("-c unix_socket_directories={}", sockets.display()))),
            ("listen", format!("{:?}", http.to_string())),
        ];
        let mut settings = String::new();
        for line in example.lines() {
            let mine = here.iter().find(|(key, _)| line.split_once(" = ").is_some_and(|(found, _)| found == *key));
            let line = match mine {
                Some((key, value)) if *key != "options" || line.ends_with("\"\"") => format!("{key} = {value}"),
                _ => line.to_owned(),
            };
            settings += &(line + "\n");
        }
        let config = open.join("standby.toml");
        std::fs::write(&config, settings)?;
        Ok(Self { bin: lab.bin.clone(), config, http, pg })
    }

    fn command(&self, what: &str) -> crate::cmd::Cmd {
        cmd(&self.bin).args(["standby", what, "--config"]).arg(&self.config)
    }

    fn asked(&self, what: &str, args: &[&str]) -> Result<Value> {
        let said = self.command(what).args(args).args(["--output", "json"]).out()?;
        serde_json::from_str(&said).with_context(|| format!("standby {what}: no JSON: {said}"))
    }

    fn status(&self) -> Result<Value> {
        self.asked("status", &[])
    }

    /// Runs a command that must fail; returns its message.
    fn fails(&self, args: &[&str]) -> Result<String> {
        let output = self.command("refresh").args(args).into_command().output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(!output.status.success(), "a refresh with {args:?} succeeded");
        Ok(said)
    }

    fn number(&self, sql: &str) -> Result<i64> {
        let rows = self.pg.client()?.query(sql)?;
        let cell = rows.first().and_then(|row| row.first()).cloned().flatten().context("no row")?;
        Ok(cell.parse()?)
    }

    fn commits(&self) -> Result<i64> {
        self.number("select count(*) from pgbench_history")
    }

    /// It answers, its sums match, and it refuses writes.
    fn is_good(&self) -> Result<()> {
        self.pg.pgbench_balances()?;
        let refused = self.pg.client()?.query("create table mine ()");
        let why = refused.err().context("a standby took a write")?.to_string();
        anyhow::ensure!(why.contains("read-only transaction"), "a write was refused otherwise: {why}");
        Ok(())
    }

    /// The code of a health check; 0 without an answer.
    fn asks(&self, path: &str) -> u16 {
        asks_at(self.http, path)
    }
}

/// The same at another address.
fn asks_at(at: SocketAddr, path: &str) -> u16 {
    let ask = || -> Result<u16> {
        let mut stream = TcpStream::connect_timeout(&at, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        write!(stream, "OPTIONS {path} HTTP/1.0\r\n\r\n")?;
        let mut head = [0; 12];
        stream.read_exact(&mut head)?;
        Ok(std::str::from_utf8(&head[9..])?.parse()?)
    };
    ask().unwrap_or(0)
}

fn text<'a>(value: &'a Value, pointer: &str) -> Result<&'a str> {
    value.pointer(pointer).and_then(Value::as_str).with_context(|| format!("no {pointer} in {value}"))
}

/// Names of the set's snapshots, sorted.
fn snapshots(cluster: &Cluster) -> Result<Vec<String>> {
    let listed = cluster.holdfast(&["snapshot", "list", SET])?;
    let names = listed["snapshots"].as_array().context("no snapshots")?.iter();
    let mut names: Vec<String> = names.filter_map(|found| Some(found["name"].as_str()?.to_owned())).collect();
    names.sort();
    Ok(names)
}

/// Waits until the set has exactly these snapshots: any gateway may answer with a slightly old list.
fn only(cluster: &Cluster, expected: &[&str]) -> Result<()> {
    let so = || snapshots(cluster).is_ok_and(|found| found == expected);
    anyhow::ensure!(wait_until(TAKEOVER_LIMIT, so), "found {:?}, expected {expected:?}", snapshots(cluster)?);
    Ok(())
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let mut cluster = lab.cluster("1GiB")?;
    let (open, _guard) = public_dir("standby")?;
    let (dir, mount) = (open.join("attach"), open.join("mnt"));
    let apis = cluster.apis();
    let (mut attach, device) = hosts::attach(&lab.bin, (SET, VOLUME), &apis, &dir, "db1")?;
    cmd("mkfs.ext4").arg("-q").arg(&device).run()?;
    std::fs::create_dir_all(&mount)?;
    let mounted = Guard::new(Undo::Umount(mount.clone()))?;
    cmd("mount").arg(&device).arg(&mount).run()?;
    let mut primary = Postgres::new(&mount.join("data"), &open.join("sockets"), &lab.dir.join("postgres.log"))?;
    primary.initdb(SETTINGS)?;
    primary.start()?;
    primary.pgbench_init(1)?;
    let pgbench_log = lab.dir.join("pgbench.log");
    let mut pgbench = primary.pgbench_forever(&PGBENCH, &pgbench_log)?;
    let commits = |pg: &Postgres| -> Result<i64> {
        let rows = pg.client()?.query("select count(*) from pgbench_history")?;
        Ok(rows[0][0].as_deref().context("null")?.parse()?)
    };
    let more = |than: i64| wait_until(TAKEOVER_LIMIT, || commits(&primary).is_ok_and(|count| count > than + 50));
    anyhow::ensure!(more(0), "pgbench does not commit");
    cluster.holdfast(&["snapshot", "create", &format!("{SET}@{MONDAY}")])?;

    let standby = Standby::new(lab, &cluster, &open)?;
    let before = commits(&primary)?;
    let first = standby.asked("refresh", &[])?;
    let (there, after) = (standby.commits()?, commits(&primary)?);
    anyhow::ensure!(before <= there && there < after, "found {there} commits, expected {before} to less than {after}");
    standby.is_good()?;
    // A copy shows itself once a second.
    let written = || standby.status().is_ok_and(|now| now["scratch_bytes"].as_u64() > Some(0));
    anyhow::ensure!(wait_until(TAKEOVER_LIMIT, written), "recovery wrote nothing: {}", standby.status()?);
    let status = standby.status()?;
    anyhow::ensure!(status["serving"] == true, "{status}");
    note(format!(
        "first refresh {} ms: {there} of now {after} commits; recovery wrote {} bytes, to the scratch file",
        first["took_ms"], status["scratch_bytes"]
    ));
    let own = text(&status, "/current/snapshot")?.to_owned();
    only(&cluster, &[MONDAY, &own])?;

    let at = text(&status, "/gateway")?;
    let read_from = cluster.gateways.iter().position(|gateway| gateway.nbd.to_string().contains(at));
    let read_from = read_from.with_context(|| format!("no gateway at {at}"))?;
    cluster.kill(read_from)?;
    let copy = hosts::status(&open.join("run/a/attach")).context("the copy shows no status")?;
    let device_of_copy = text(&copy, "/volumes/0/device")?;
    cmd("dd").args([&format!("if={device_of_copy}"), "of=/dev/null", "bs=1M", "iflag=direct", "status=none"]).run()?;
    anyhow::ensure!(standby.commits()? == there, "the data of a copy changed");
    standby.is_good()?;
    // Reported with its next status.
    let elsewhere = || standby.status().is_ok_and(|now| text(&now, "/gateway").is_ok_and(|now| now != at));
    let moved = wait_until(TAKEOVER_LIMIT, elsewhere);
    let status = standby.status()?;
    anyhow::ensure!(moved, "still reads from the gateway that is dead: {status}");
    note(format!("gateway {} killed: the whole device was read, from {}", cluster.name(read_from), status["gateway"]));
    cluster.restart(read_from)?;
    cluster.caught_up(TAKEOVER_LIMIT)?;

    anyhow::ensure!(more(after), "the primary does not continue");
    let old = standby.status()?;
    let second = standby.asked("refresh", &[])?;
    let new = standby.status()?;
    let newer = standby.commits()?;
    anyhow::ensure!(newer > after, "found {newer} commits, expected more than {after}");
    let taken = |status: &Value| status.pointer("/current/snapshot_unix_ms").and_then(Value::as_u64);
    anyhow::ensure!(taken(&new) > taken(&old), "{old} then {new}");
    standby.is_good()?;
    let own = text(&new, "/current/snapshot")?.to_owned();
    only(&cluster, &[MONDAY, &own])?;
    // A running copy holds its lock; how it ended does not matter here.
    let lock = open.join("run/a/attach/attach.lock");
    let gone = || cmd("flock").arg("--nonblock").arg(&lock).arg("true").succeeds();
    anyhow::ensure!(wait_until(TAKEOVER_LIMIT, gone), "the old copy is still there: {} is held", lock.display());
    note(format!("second refresh {} ms: {newer} commits", second["took_ms"]));

    let why = standby.fails(&["--snapshot", "tuesday"])?;
    anyhow::ensure!(why.contains("demo@tuesday"), "{why}");
    let settings = std::fs::read_to_string(&standby.config)?;
    // PostgreSQL does not know this setting, and does not start.
    std::fs::write(&standby.config, settings.replace("-c unix_socket", "-c nonsense=1 -c unix_socket"))?;
    let why = standby.fails(&[])?;
    std::fs::write(&standby.config, settings)?;
    anyhow::ensure!(why.contains("nonsense"), "{why}");
    let same = standby.status()?;
    anyhow::ensure!(same["serving"] == true && same["current"] == new["current"], "{new} then {same}");
    anyhow::ensure!(!same["failure"].is_null() && standby.commits()? == newer, "{same}");
    standby.is_good()?;
    only(&cluster, &[MONDAY, &own])?;
    standby.asked("refresh", &["--snapshot", MONDAY])?;
    anyhow::ensure!(standby.commits()? < there, "a manual snapshot shows later commits");
    only(&cluster, &[MONDAY])?;
    standby.command("stop").run()?;
    note("two refreshes that cannot succeed: the old data served on; one to a person's snapshot");

    runs(lab, &cluster, &standby)?;

    pgbench.must_run()?;
    anyhow::ensure!(!std::fs::read_to_string(&pgbench_log)?.contains("aborted"), "{}", tail_of(&pgbench_log, 4));
    pgbench.stop(Signal::INT, TAKEOVER_LIMIT)?;
    primary.pgbench_balances()?;
    primary.amcheck()?;
    primary.stop(Signal::INT)?;
    drop(standby);
    drop(mounted);
    cmd("e2fsck").args(["-f", "-n"]).arg(&device).run()?;
    attach.stop(Signal::TERM, TAKEOVER_LIMIT)?;
    cluster.stop().map(drop)
}

/// The example's listener, added to the file of deploy/haproxy as in its README, forwards to a standby only if its data
/// is young enough. It forwards to the standby's own health check, since this PostgreSQL has no TCP port.
fn behind_haproxy(lab: &Lab, standby: &Standby) -> Result<()> {
    let sample = |path: &str| std::fs::read_to_string(root().join(path));
    let both = sample("deploy/haproxy/haproxy.cfg")? + &sample("deploy/examples/standby/haproxy-reads.cfg")?;
    let file = lab.dir.join("haproxy-both.cfg");
    std::fs::write(&file, both)?;
    let file = file.to_str().context("a path that is text")?;
    for (age, code) in [(1800, 200), (0, 0)] {
        let first = free_ports(3)?;
        let door = |offset: u16| SocketAddr::from(([127, 0, 0, 1], first + offset));
        let reads = door(2);
        let changes = [
            ("*:5000", door(0).to_string()),
            ("*:5002", door(1).to_string()),
            ("*:5001", reads.to_string()),
            ("10.0.0.1", "127.0.0.2".to_owned()),
            ("10.0.0.2", "127.0.0.3".to_owned()),
            ("10.0.0.9:5432", standby.http.to_string()),
            ("port 8018", format!("port {}", standby.http.port())),
            ("max_age_s=1800", format!("max_age_s={age}")),
        ];
        let _proxy = Proxy::with(&lab.dir, file, reads, &changes)?;
        let found = || asks_at(reads, "/replica");
        let as_told = wait_until(TAKEOVER_LIMIT, || found() == code);
        anyhow::ensure!(as_told, "through HAProxy, data of {age} s at most: found {}, expected {code}", found());
    }
    note("HAProxy with the example's listener: to the standby while its data is young enough, otherwise refused");
    Ok(())
}

/// 5.
fn runs(lab: &Lab, cluster: &Cluster, standby: &Standby) -> Result<()> {
    let log = lab.dir.join("standby-run.log");
    let mut process = Proc::spawn("holdfast standby run", standby.command("run").into_command(), &log)?;
    process.ready_when("serving", RUN_LIMIT, || standby.asks("/replica") == 200)?;
    standby.is_good()?;
    anyhow::ensure!(standby.asks("/replica?max_age_s=3600") == 200, "an hour is long enough");
    anyhow::ensure!(standby.asks("/replica?max_age_s=0") == 503, "data of no age at all");
    anyhow::ensure!(standby.asks("/primary") == 503 && standby.asks("/replica?lag=1MB") == 400, "other checks");
    behind_haproxy(lab, standby)?;
    let why = standby.fails(&[])?;
    anyhow::ensure!(why.contains("standby run"), "a refresh beside `standby run`: {why}");
    let before = standby.status()?;
    let data = standby.config.with_file_name("copies").join(text(&before, "/current/slot")?).join("data");
    let pid = std::fs::read_to_string(data.join("postmaster.pid"))?;
    let pid: u32 = pid.lines().next().context("an empty pid file")?.parse()?;
    crate::process::signal(pid, Signal::KILL);
    let anew = || standby.status().is_ok_and(|now| now["serving"] == true && now["current"] != before["current"]);
    anyhow::ensure!(wait_until(RUN_LIMIT, anew), "no new copy: {}: {}", standby.status()?, tail_of(&log, 5));
    standby.is_good()?;
    process.stop(Signal::TERM, RUN_LIMIT)?;
    only(cluster, &[MONDAY])?;
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let place = standby.config.parent().context("a parent")?.join("copies");
    anyhow::ensure!(!table.contains(&place.display().to_string()), "a copy is still mounted");
    note("standby run: its PostgreSQL was killed, a new copy took its place; stopped, nothing is left");
    Ok(())
}
