//! Adding, removing and restarting gateways while a cluster runs.

use super::{Cluster, Gateway, SET, VOLUME, free_ports};
use crate::cmd::tail_of;
use crate::ends;
use crate::nbd::Uri;
use crate::process::{self, Launch, Proc, Signal, wait_until};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

const UP_LIMIT: Duration = Duration::from_secs(60);

/// What the command says of a refusal that follows an attempt without an answer.
const AFTER_NO_ANSWER: &str = "an earlier attempt of this command had no answer";

impl Cluster {
    /// Starts one more gateway process with its own data folder, not yet in the cluster. Returns its index in
    /// `gateways`. Fails when it does not listen within a minute.
    pub fn start_another(&mut self, more: &[&str]) -> Result<usize> {
        self.start_behind(|_| Ok(more.iter().map(|arg| (*arg).to_owned()).collect()))
    }

    /// The same, with arguments that depend on the address at which it will listen for other gateways: for a relay in
    /// front of it. Fails as [`Cluster::start_another`] and `more` do.
    pub fn start_behind(&mut self, more: impl FnOnce(&str) -> Result<Vec<String>>) -> Result<usize> {
        let index = self.gateways.len();
        let name = self.name(index);
        let port = free_ports(4)?;
        let at = |n: u16| format!("127.0.0.1:{}", port + n);
        let more = more(&at(2))?;
        // With the command line of the first gateway; arguments override its settings.
        let mut command = self.gateways[0].launch.command();
        let disk = self.options.dir.join(&name);
        command.args(["--name", &name, "--data-dir"]).arg(&disk);
        command.args(["--nbd-listen", &at(0), "--api-listen", &at(1)]);
        command.args(["--peer-listen", &at(2), "--http-listen", &at(3)]).args(more);
        let own = Proc::spawn("holdfast gateway", command, &self.log(index))?;
        let pid = own.pid();
        let nbd = Uri { addr: at(0), export: format!("{SET}/{VOLUME}") };
        let up = wait_until(UP_LIMIT, || TcpStream::connect(at(1)).is_ok());
        anyhow::ensure!(up, "{name} does not listen after {UP_LIMIT:?}: {}", tail_of(&self.log(index), 8));
        let launch = Launch::of(pid)?;
        self.gateways.push(Gateway { nbd, api: at(1), pid, launch, own: Some(own), guard: None });
        Ok(index)
    }

    /// Gives a stopped gateway that we started other addresses, and starts it.
    pub fn restart_elsewhere(&mut self, index: usize) -> Result<()> {
        let port = free_ports(4)?;
        let at = |n: u16| format!("127.0.0.1:{}", port + n);
        let gateway = &mut self.gateways[index];
        for (n, flag) in (0..).zip(["--nbd-listen", "--api-listen", "--peer-listen", "--http-listen"]) {
            gateway.launch.set(flag, at(n))?;
        }
        (gateway.nbd.addr, gateway.api) = (at(0), at(1));
        self.restart(index)
    }

    /// Starts a stopped gateway with further arguments, which it keeps for later starts.
    pub fn restart_with(&mut self, index: usize, more: &[&str]) -> Result<()> {
        self.gateways[index].launch.add(more);
        self.restart(index)
    }

    /// The command line with which a stopped gateway is started next.
    pub fn replace_program(&mut self, index: usize, program: &Path) {
        self.gateways[index].launch.set_program(program);
    }

    /// Adds arguments for the next start of a stopped gateway, or removes them if they are there.
    pub fn set_arguments(&mut self, index: usize, args: &[&str], wanted: bool) {
        let launch = &mut self.gateways[index].launch;
        launch.take_back(args);
        if wanted {
            launch.add(args);
        }
    }

    /// HOST:PORT of a gateway's `/metrics`. Fails when the status is not available or does not show it.
    pub fn metrics_address(&self, index: usize) -> Result<String> {
        let status = self.holdfast(&["cluster", "status"])?;
        let members = status["members"].as_array().context("status without members")?;
        let of = members.iter().map(|m| &m["node"]).find(|node| node["name"] == self.name(index).as_str());
        let address =
            of.and_then(|node| node["addresses"]["http"].as_str()).context("a gateway without an HTTP address")?;
        Ok(address.to_owned())
    }

    /// Sends SIGTERM and waits for the end. Fails when it does not end.
    pub fn end(&mut self, index: usize) -> Result<()> {
        process::signal(self.gateways[index].pid, Signal::TERM);
        self.gateways[index].await_end()
    }

    /// Waits until a gateway has exited by itself. Returns the end of its log. A gateway that we started must have
    /// exited with an error. Fails when it still runs after `limit`, or exited with success.
    pub fn ends_by_itself(&mut self, index: usize, limit: Duration) -> Result<String> {
        let name = self.name(index);
        let (log, gateway) = (self.log(index), &mut self.gateways[index]);
        ends::expect_abort(gateway.pid);
        match gateway.own.take() {
            Some(mut own) => {
                let status: ExitStatus = own.wait(limit)?;
                anyhow::ensure!(!status.success(), "{name} ended with success");
            }
            None => {
                let ended = wait_until(limit, || !process::is_alive(gateway.pid));
                anyhow::ensure!(ended, "{name} still runs after {limit:?}");
            }
        }
        gateway.await_end()?;
        Ok(tail_of(&log, 12))
    }

    /// Restarts a gateway that is expected to exit by itself. Returns the end of its log.
    pub fn start_in_vain(&mut self, index: usize, limit: Duration) -> Result<String> {
        let log = self.options.dir.with_extension(format!("g{}.again.log", index + 1));
        let mut own = Proc::spawn("holdfast gateway", self.gateways[index].launch.command(), &log)?;
        let status = own.wait(limit)?;
        anyhow::ensure!(!status.success(), "{} ended with success", self.name(index));
        Ok(tail_of(&log, 12))
    }

    /// Waits until each set's group has exactly these gateways as voters and no learners, all of them are in group 0,
    /// of which three or five vote (ADR 0075), and all of them are up. Fails when `limit` passes first; the error shows
    /// the difference.
    pub fn voters_become(&self, expected: &[usize], limit: Duration) -> Result<()> {
        let mut found = String::from("nothing");
        let same = wait_until(limit, || {
            found = self.voters(expected).unwrap_or_else(|e| format!("{e:#}"));
            found.is_empty()
        });
        anyhow::ensure!(same, "after {limit:?}: {found}");
        Ok(())
    }

    /// The difference, as text; empty if there is none.
    fn voters(&self, expected: &[usize]) -> Result<String> {
        let status = self.holdfast(&["cluster", "status"])?;
        let members = status["members"].as_array().context("status without members")?;
        let names: BTreeSet<&str> = members.iter().filter_map(|m| m["member"]["name"].as_str()).collect();
        let wanted: BTreeSet<String> = expected.iter().map(|index| self.name(*index)).collect();
        if names != wanted.iter().map(String::as_str).collect() {
            return Ok(format!("the members are {names:?}, expected {wanted:?}"));
        }
        let ids: BTreeSet<u64> = members.iter().filter_map(|m| m["member"]["id"].as_u64()).collect();
        for group in status["groups"].as_array().context("status without groups")? {
            let leader = members.iter().find(|m| m["member"]["id"] == group["leader"]).context("no leader")?;
            let seen = leader["node"]["groups"].as_array().into_iter().flatten();
            let seen =
                seen.into_iter().find(|g| g["group"] == group["group"]).context("its leader does not have it")?;
            let numbers = |what: &str| {
                seen[what].as_array().into_iter().flatten().filter_map(|v| v.as_u64()).collect::<BTreeSet<_>>()
            };
            let (voters, learners) = (numbers("voters"), numbers("learners"));
            let some_vote = group["group"] == 0 && status["level"].as_u64().is_some_and(|level| level >= 2);
            let size = match ids.len() {
                0..=2 => ids.len(),
                3 | 4 => 3,
                _ => 5,
            };
            let all: BTreeSet<u64> = voters.union(&learners).copied().collect();
            let same = if some_vote { all == ids && voters.len() == size } else { all == ids && learners.is_empty() };
            if !same {
                let group = &group["group"];
                return Ok(format!("group {group}: voters {voters:?}, learners {learners:?}, expected {ids:?}"));
            }
        }
        Ok(String::new())
    }

    /// Names of the gateways that lead a group, according to any gateway. Fails when no gateway answers.
    pub fn leaders(&self) -> Result<BTreeSet<String>> {
        let listed = self.holdfast(&["gateway", "list"])?;
        let all = listed["gateways"].as_array().context("a list without gateways")?;
        let leads = all.iter().filter(|g| g["leads"].as_array().is_some_and(|leads| !leads.is_empty()));
        Ok(leads.filter_map(|g| g["name"].as_str().map(str::to_owned)).collect())
    }

    /// Runs `holdfast ARGS`, which a gateway must refuse. Returns the message. The command asks all gateways, some of
    /// which have just been killed or started: an attempt may get no answer, or one that the outcome is unknown, and
    /// then the refusal of a later one has exit code 5 and says so (R12). Fails when it ends in another way.
    pub fn refused(&self, args: &[&str]) -> Result<String> {
        let doors: Vec<&str> = self.gateways.iter().map(|g| g.api.as_str()).collect();
        let mut command = std::process::Command::new(&self.options.bin);
        command.args(args).args(["--output", "json", "--api", &doors.join(",")]);
        let output = command.envs(self.options.env.iter().cloned()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let refused = match output.status.code() {
            Some(3) => true,
            Some(5) => said.contains(AFTER_NO_ANSWER),
            _ => false,
        };
        anyhow::ensure!(refused, "holdfast {args:?}: {}: {said}", output.status);
        Ok(said)
    }

    /// The log of a gateway that was started on its own.
    pub fn log(&self, index: usize) -> PathBuf {
        self.options.dir.with_extension(format!("g{}.log", index + 1))
    }
}
