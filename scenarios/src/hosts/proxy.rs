//! HAProxy with a sample configuration of deploy/.

use super::Host;
use crate::cmd::{cmd, on_path};
use crate::pg;
use crate::process::{Proc, wait_until};
use anyhow::Result;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

/// Path in Debian's package, which is on root's PATH only.
const PROGRAM: &str = "/usr/sbin/haproxy";

/// Below the project's root.
const SAMPLE: &str = "deploy/haproxy/haproxy.cfg";

/// In the sample: a server whose agent is asked.
const CHECKS: &str = "check port 8008";

/// What an agent's certificate is for.
const AGENT_NAME: &str = "host.holdfast.internal";

/// A running HAProxy.
#[derive(Debug)]
pub struct Proxy {
    proc: Proc,
    at: SocketAddr,
}

/// The sample's second port, at which clients wait while there is no primary: one above the first.
pub fn waiting(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip(), at.port() + 1)
}

impl Proxy {
    /// Starts it in front of the two hosts, at `at` and [`waiting`]; its files are in `dir`. Fails when it does not
    /// start.
    pub fn start(dir: &Path, at: SocketAddr, hosts: [&Host; 2]) -> Result<Self> {
        let [one, two] = hosts.map(|host| host.address.clone());
        let doors = [("*:5000", at.to_string()), ("*:5002", waiting(at).to_string())];
        // As the sample says for agents with TLS.
        let checks = hosts[0].authority().map(|ca| {
            let tls = format!("check-ssl verify required ca-file {} verifyhost {AGENT_NAME}", ca.display());
            (CHECKS, format!("{CHECKS} {tls}"))
        });
        let changes = doors.into_iter().chain([("10.0.0.1", one), ("10.0.0.2", two)]).chain(checks);
        let changes: Vec<_> = changes.collect();
        Self::with(dir, SAMPLE, at, &changes)
    }

    /// Starts it with `sample` after each of `changes`. Fails when it does not start, or the sample lacks a text that
    /// is to be changed.
    pub fn with(dir: &Path, sample: &str, at: SocketAddr, changes: &[(&str, String)]) -> Result<Self> {
        let mut config = std::fs::read_to_string(crate::binary::root().join(sample))?;
        for (from, to) in changes {
            anyhow::ensure!(config.contains(from), "{sample} names no {from}");
            config = config.replace(from, to);
        }
        let path = dir.join("haproxy.cfg");
        std::fs::write(&path, config)?;
        let program = if on_path("haproxy") { "haproxy" } else { PROGRAM };
        let command = cmd(program).args(["-db", "-f"]).arg(&path).into_command();
        let mut proc = Proc::spawn("haproxy", command, &dir.join("haproxy.log"))?;
        let listening = || std::net::TcpStream::connect(at).is_ok();
        proc.ready_when("listening", Duration::from_secs(30), listening)?;
        Ok(Self { proc, at })
    }

    /// Where clients connect.
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// Waits until a client that knows only the proxy reaches this host; returns the time. Fails when it does not
    /// within `limit`, or the proxy has ended.
    pub fn reaches(&mut self, host: &Host, limit: Duration) -> Result<Duration> {
        self.reaches_at(self.at, host, limit)
    }

    /// The same at another of its ports.
    pub fn reaches_at(&mut self, at: SocketAddr, host: &Host, limit: Duration) -> Result<Duration> {
        self.proc.must_run()?;
        let (address, port) = (at.ip().to_string(), at.port().to_string());
        let psql = || {
            let command = cmd(pg::bin().join("psql")).env("PGCONNECT_TIMEOUT", "2");
            let command = command.args(["-X", "-A", "-t", "-h", &address, "-p", &port, "-U", "postgres"]);
            command.args(["-c", "select host(inet_server_addr())"]).out()
        };
        let begun = Instant::now();
        let mut last = String::new();
        let there = wait_until(limit, || {
            last = psql().map_or_else(|error| format!("{error:#}"), |said| said.trim().to_owned());
            last == host.address
        });
        anyhow::ensure!(there, "through HAProxy: found {last}, expected {} at {}", host.name, host.address);
        Ok(begun.elapsed())
    }
}
