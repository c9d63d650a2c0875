//! A service other than PostgreSQL that moves between two hosts (ADR 0076).
//!
//! It appends numbers to a file on the set, syncs it, and only then acknowledges each. Its agent starts it by a command
//! and knows its processes by their control group. A client that knows both hosts writes all the time.
//!
//! 1. Host db1 is killed: the service runs on db2, and no acknowledged number is lost (R1), none is invented.
//! 2. db1 comes back as standby. A planned switchover moves the service back to it.
//! 3. The service is stopped there (SIGSTOP): its check fails, and it is restarted on the same host.
//! 4. db1's agent is stopped (SIGSTOP): the watchdog ends the service there before another host gets the lease (R2);
//!    db2 takes over; resumed, db1 becomes standby.

use super::Lab;
use super::agent::TAKEOVER;
use crate::cluster::{Cluster, SET, VOLUME};
use crate::hosts::{First, Host, Plan, Way, prepare};
use crate::process::{Signal, wait_until};
use crate::say::note;
use crate::setup;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A host of the scenarios also has the system user of PostgreSQL.
pub(super) const NEEDS: &[&str] = &["nbdfuse", "unshare", "python3", "/usr/lib/postgresql/15/bin/postgres"];

/// The service, and its client for the check: `PROGRAM serve ADDRESS` and `PROGRAM ask ADDRESS`.
const PROGRAM: &str = r#"
import os, socket, socketserver, sys

address = (sys.argv[2], 7070)
if sys.argv[1] == "ask":
    with socket.create_connection(address, timeout=5) as asked:
        asked.sendall(b"alive\n")
        sys.exit(0 if asked.makefile().readline() == "alive\n" else 1)

ledger = os.open(os.path.join(os.environ["HOLDFAST_DATA"], "ledger"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            if line == b"all\n":
                with open("/proc/self/fd/%d" % ledger, "rb") as whole:
                    self.wfile.write(whole.read())
                return
            if not line.endswith(b"\n"):
                return
            if line != b"alive\n":
                os.write(ledger, line)
                os.fsync(ledger)
            self.wfile.write(line)

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

Server(address, Handler).serve_forever()
"#;

const PORT: u16 = 7070;

/// Both hosts, by name and address.
const HOSTS: [(&str, &str); 2] = [("db1", "127.0.0.2"), ("db2", "127.0.0.3")];

/// Minimum number of acknowledged numbers in every round.
const NUMBERS: u64 = 100;

/// Limit for one answer of the service.
const ANSWER: Duration = Duration::from_secs(5);

/// The old owner becomes a standby sooner, and the scenario waits for that.
const AGENT: &str = "[watchdog]\ntimeout_ms = 3000\n[takeover]\nswitchover_hold_s = 5\n";

fn address(host: &str) -> SocketAddr {
    SocketAddr::new(host.parse().expect("an address of the table"), PORT)
}

fn connected(host: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address(host), Duration::from_millis(500))?;
    stream.set_read_timeout(Some(ANSWER))?;
    Ok(stream)
}

/// A client that writes one number after the other, at whichever host serves.
struct Writer {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    thread: JoinHandle<Written>,
}

/// What was written.
#[derive(Default)]
struct Written {
    acknowledged: Vec<u64>,
    /// Sent without an answer: they may be there or not (R12).
    in_doubt: BTreeSet<u64>,
}

impl Writer {
    /// From the number after `last`.
    fn start(last: u64) -> Self {
        let (stop, acknowledged) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, count) = (stop.clone(), acknowledged.clone());
        let thread = std::thread::spawn(move || {
            let (mut written, mut number) = (Written::default(), last);
            for (_, host) in HOSTS.iter().cycle() {
                if told.load(Ordering::Relaxed) {
                    break;
                }
                let Ok(stream) = connected(host) else {
                    std::thread::sleep(Duration::from_millis(20));
                    continue;
                };
                while !told.load(Ordering::Relaxed) {
                    number += 1;
                    if !wrote(&stream, number) {
                        written.in_doubt.insert(number);
                        break;
                    }
                    written.acknowledged.push(number);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            written
        });
        Self { stop, acknowledged, thread }
    }

    fn count(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    fn end(self) -> Result<Written> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("the writer panicked"))
    }
}

/// Whether the number was acknowledged.
fn wrote(mut stream: &TcpStream, number: u64) -> bool {
    let line = format!("{number}\n");
    let mut answer = String::new();
    stream.write_all(line.as_bytes()).is_ok() && BufReader::new(stream).read_line(&mut answer).is_ok() && answer == line
}

/// What was written in all rounds so far.
#[derive(Default)]
struct Ledger {
    acknowledged: BTreeSet<u64>,
    in_doubt: BTreeSet<u64>,
}

impl Ledger {
    /// Runs a writer, does `what` meanwhile, and waits until the writer goes on.
    fn round(&mut self, what: impl FnOnce() -> Result<()>) -> Result<()> {
        let last = self.acknowledged.iter().chain(&self.in_doubt).copied().max().unwrap_or(0);
        let writer = Writer::start(last);
        let busy = wait_until(TAKEOVER, || writer.count() >= NUMBERS);
        let done = if busy { what() } else { Err(anyhow::anyhow!("only {} numbers before it began", writer.count())) };
        let before = writer.count();
        let again = done.is_err() || wait_until(TAKEOVER, || writer.count() >= before + NUMBERS);
        let written = writer.end()?;
        done?;
        anyhow::ensure!(again, "the writer did not go on: {before} numbers, then {}", written.acknowledged.len());
        note(format!("{} numbers acknowledged in this round", written.acknowledged.len()));
        self.acknowledged.extend(written.acknowledged);
        self.in_doubt.extend(written.in_doubt);
        Ok(())
    }

    /// R1: all acknowledged numbers are in the file that `host` serves, once each, and nothing else that was not sent.
    fn check(&self, host: &Host) -> Result<()> {
        let mut stream = connected(&host.address)?;
        stream.write_all(b"all\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let found: Vec<u64> =
            text.lines().map(str::parse::<u64>).collect::<Result<_, _>>().context("a line of the ledger")?;
        let once: BTreeSet<u64> = found.iter().copied().collect();
        let lost: Vec<&u64> = self.acknowledged.difference(&once).collect();
        let invented: Vec<&u64> = once
            .iter()
            .filter(|number| !self.acknowledged.contains(*number) && !self.in_doubt.contains(*number))
            .collect();
        anyhow::ensure!(lost.is_empty() && invented.is_empty(), "R1: {lost:?} lost, {invented:?} invented");
        anyhow::ensure!(once.len() == found.len(), "R2: a number is there twice");
        note(format!("{} acknowledged numbers, all there on {}", self.acknowledged.len(), host.name));
        Ok(())
    }
}

fn host(lab: &Lab, cluster: &Cluster, program: &Path, own: usize) -> Result<Host> {
    let ((name, address), (peer, other)) = (HOSTS[own], HOSTS[1 - own]);
    let program = program.display();
    let (start, check) =
        (format!("exec python3 {program} serve {address}"), format!("python3 {program} ask {address}"));
    let service = format!(
        "name = \"ledger\"\nkind = \"command\"\nstart = {start:?}\ncheck = {check:?}\ncheck_timeout_ms = 2000\n\
         probe_ms = 500\nhealth_timeout_s = 3\nstart_timeout_s = 30\nstop_timeout_s = 10\n"
    );
    let plan = Plan::plain((name, address), SET, cluster.apis(), lab.dir.join(name), &lab.bin);
    Host::new(Plan { peers: vec![(peer, other.into())], service: Some(service), settings: AGENT, ..plan })
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let cluster = lab.cluster("256MiB")?;
    let program = lab.dir.join("ledger.py");
    std::fs::write(&program, PROGRAM)?;
    let (mut db1, mut db2) = (host(lab, &cluster, &program, 0)?, host(lab, &cluster, &program, 1)?);
    let first = First {
        bin: &lab.bin,
        set: SET,
        volume: VOLUME,
        gateways: cluster.apis(),
        dir: lab.dir.join("first"),
        mount: db1.mount(),
        way: Way::Ext4,
        size: None,
        pg: &db1.pg,
        settings: "",
        network: None,
        env: &[],
    };
    prepare(&first, || Ok(()))?;
    let begun = Instant::now();
    db1.boot()?;
    note(format!("the service runs {} ms after its agent started", db1.becomes_primary(begun, TAKEOVER)?.as_millis()));
    db2.boot()?;
    db2.stands_by(TAKEOVER)?;
    let mut ledger = Ledger::default();

    ledger.round(|| {
        let (killed, _) = db1.kill()?;
        note(format!("host db1 killed: on db2 after {} ms", db2.becomes_primary(killed, TAKEOVER)?.as_millis()));
        Ok(())
    })?;
    ledger.check(&db2)?;
    told(&db2, "failover")?;

    db1.boot()?;
    db1.stands_by(TAKEOVER)?;
    ledger.round(|| {
        db2.holdfast(&["agent", "switchover", "--to", "db1", "--yes"])?;
        db1.becomes_primary(Instant::now(), TAKEOVER)?;
        Ok(())
    })?;
    ledger.check(&db1)?;
    told(&db1, "switchover")?;
    db2.stands_by(TAKEOVER)?;

    falls_ill(&mut ledger, &db1, &program)?;
    agent_hangs(&mut ledger, &db1, &db2)?;
    db1.kill()?;
    db2.kill()?;
    remove_groups();
    cluster.stop()?;
    Ok(())
}

/// It does not answer its check, and is restarted on the same host.
fn falls_ill(ledger: &mut Ledger, host: &Host, program: &Path) -> Result<()> {
    let restarts = || host.history().iter().filter(|line| line["event"] == "restart").cloned().collect::<Vec<_>>();
    let before = restarts().len();
    ledger.round(|| {
        crate::process::signal(serving(program, host)?, Signal::STOP);
        let restarted = wait_until(TAKEOVER, || restarts().len() > before);
        anyhow::ensure!(restarted, "it was not restarted: {}", host.said());
        Ok(())
    })?;
    let line = restarts().pop().context("no line")?;
    let reason = line["reason"].as_str().unwrap_or_default();
    anyhow::ensure!(reason.contains("service ledger failed its check"), "found {line}");
    note(format!("history: restart, {reason}"));
    ledger.check(host)
}

/// The watchdog ends the service of an agent that hangs. Nothing else can.
fn agent_hangs(ledger: &mut Ledger, db1: &Host, db2: &Host) -> Result<()> {
    let agent = db1.agent_pid()?;
    ledger.round(|| {
        let stopped = Instant::now();
        crate::process::signal(agent, Signal::STOP);
        let gone = wait_until(TAKEOVER, || connected(&db1.address).is_err());
        anyhow::ensure!(gone, "the service of an agent that hangs is still there after {TAKEOVER:?}");
        note(format!("agent of db1 stopped: the service ended after {} ms", stopped.elapsed().as_millis()));
        note(format!("on db2 after {} ms", db2.becomes_primary(stopped, TAKEOVER)?.as_millis()));
        Ok(())
    })?;
    crate::process::signal(agent, Signal::CONT);
    db1.stands_by(TAKEOVER)?;
    ledger.check(db2)
}

/// Waits until the last line of a host's history is of this kind: it is written beside. It has no phase that only
/// PostgreSQL has.
fn told(host: &Host, event: &str) -> Result<()> {
    let mut line = Value::Null;
    let is_told = wait_until(TAKEOVER, || {
        line = host.history().pop().unwrap_or_default();
        line["event"] == event
    });
    let phases = &line["phases"];
    let expected = is_told && phases["recover_ms"].is_u64() && phases["first_write_ms"].is_null();
    anyhow::ensure!(expected, "history: found {line}, expected {event}");
    note(format!("history: {event}, phases {phases}"));
    Ok(())
}

/// Removes the control groups of hosts that were killed. They are empty.
fn remove_groups() {
    for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
        for (name, _) in HOSTS {
            let _ = std::fs::remove_dir(format!("{root}/holdfast-{SET}:{name}"));
        }
    }
}

/// The process of the service on this host.
fn serving(program: &Path, host: &Host) -> Result<u32> {
    let words = [program.as_os_str().as_encoded_bytes(), b"serve".as_slice(), host.address.as_bytes()];
    let is_it = |pid: &u32| {
        let args = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let args: Vec<&[u8]> = args.split(|byte| *byte == 0).collect();
        args.len() > 3 && args[1..4] == words
    };
    let entries = std::fs::read_dir("/proc")?.flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_it).with_context(|| format!("{}: found no service", host.name))
}
