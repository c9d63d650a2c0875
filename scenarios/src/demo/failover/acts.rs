//! The five faults of a round. Each: load, the fault, PostgreSQL accepts writes again on some host, clients continue,
//! the ledger is compared.

use super::lab::{Lab, PROBE_AT};
use super::report::Act;
use super::timeline::{Kind, Line, Moment, granted, longest_pause, over_before, shown, way};
use crate::bridge::Bridge;
use crate::gateways;
use crate::hosts::Host;
use crate::ledger::{Writers, unix_ms};
use crate::nbd::{Client, NbdError, pattern, tag_of};
use crate::pg;
use crate::pgwire::Reach;
use crate::process::wait_until;
use crate::say::{line, note, step};
use crate::stage::{LIMIT, export, node};
use crate::stats;
use anyhow::{Context, Result};
use std::time::Instant;

/// Commits to wait for before and after a fault.
const COMMITS: u64 = 100;

/// Bytes of the probe's block.
const BLOCK: usize = 4096;

/// Report of a fault.
#[derive(Debug, Default)]
struct Story {
    /// When it was injected, Unix milliseconds.
    at: u64,
    moments: Vec<Moment>,
    stopped_ms: Option<u64>,
    /// When the gateways granted the set to the other host, Unix milliseconds.
    granted: Option<u64>,
}

impl Story {
    fn begins(&mut self, what: impl Into<String>) {
        self.at = unix_ms();
        self.moments.push(Moment::new(self.at, "", what));
    }

    fn tell(&mut self, who: &str, what: impl Into<String>) {
        self.moments.push(Moment::new(unix_ms(), who, what));
    }
}

/// Counts before and during a fault.
struct Counted {
    /// Lines of each history before it.
    before: [usize; 2],
    /// Connections of pgbench that broke since, and its restarts.
    broken: u64,
}

impl Lab {
    /// One fault, from load to ledger. Fails when clients do not continue within [`LIMIT`], or the cut-off host can
    /// still write.
    pub fn act(&mut self, round: u32, kind: Kind) -> Result<Act> {
        let from = self.stage.primary()?;
        step(format!("Round {round}: {} (primary is {})", kind.words(), self.stage.hosts[from].name));
        let writers = self.ledger.start_lasting(&Reach::Tcp(self.stage.proxy.at()))?;
        let mut story = Story::default();
        let done = self.under_load(kind, from, &writers, &mut story);
        let moments = writers.moments();
        self.ledger.join(writers)?;
        let counted = done?;

        let to = self.stage.primary()?;
        let verdict = self.ledger.check_through(&mut self.session()?)?;
        let lines = self.lines_since(counted.before);
        let way_up = lines.iter().rev().find(|line| line.host == self.stage.hosts[to].name && line.phases.is_some());
        let (last, first) = longest_pause(&moments, story.at).context("no commit was acknowledged after the fault")?;

        let mut told = story.moments;
        for line in &lines {
            match &line.phases {
                Some(_) => told.extend(way(line)),
                None => told.push(Moment::new(line.at_unix_ms, &line.host, format!("{}: {}", line.event, line.reason))),
            }
        }
        told.push(Moment::new(last, "", "the last commit acknowledged before the clients' longest pause"));
        told.push(Moment::new(first, "", "the first commit acknowledged after it, through HAProxy"));
        let gone = story.stopped_ms.map(|stopped| story.at + stopped);
        // The gateway's time of the grant is exact. A newer grant to attach meanwhile is later than the one that the
        // agent saw.
        let grant = way_up.map(|line| story.granted.unwrap_or(u64::MAX).min(granted(line)));
        let gone_before_grant_ms = gone.zip(grant).map(|(gone, grant)| over_before(grant, gone));
        if let Some((grant, ms)) = grant.zip(gone_before_grant_ms) {
            let name = self.stage.hosts[to].name;
            told.push(Moment::new(grant, "", format!("the set is granted to {name}, PostgreSQL gone {ms} ms before")));
        }
        let timeline = shown(story.at, told);
        timeline.iter().for_each(note);
        let machine = stats::machine();
        note(format!(
            "clients paused for {} ms; {} commits acknowledged so far, {} lost, {} in doubt found; {machine}",
            first - last,
            verdict.acknowledged,
            verdict.lost,
            verdict.in_doubt_found,
        ));
        let act = Act {
            round,
            kind,
            from: self.stage.hosts[from].name.into(),
            to: self.stage.hosts[to].name.into(),
            phases: way_up.and_then(|line| line.phases.clone()).unwrap_or_default(),
            primary_ms: way_up.map(|line| line.at_unix_ms.saturating_sub(story.at)),
            first_commit_ms: first.saturating_sub(story.at),
            pause_ms: first - last,
            stopped_ms: story.stopped_ms,
            gone_before_grant_ms,
            broken: counted.broken,
            commits_acknowledged: verdict.acknowledged,
            commits_lost: verdict.lost,
            in_doubt_found: verdict.in_doubt_found,
            rows_invented: verdict.invented,
            machine,
            timeline,
        };
        if let Some(outlived) = act.outlived() {
            line(outlived);
        }
        self.mend(kind, from)?;
        Ok(act)
    }

    /// Load, the fault, and load again.
    fn under_load(&mut self, kind: Kind, from: usize, writers: &Writers, story: &mut Story) -> Result<Counted> {
        let begun = Instant::now();
        let busy = wait_until(LIMIT, || writers.acknowledged() >= COMMITS && begun.elapsed() >= self.load);
        anyhow::ensure!(busy, "only {} commits acknowledged within {LIMIT:?}", writers.acknowledged());
        let before = [0, 1].map(|host: usize| self.stage.hosts[host].history().len());
        let broken = self.broken_before()?;
        match kind {
            Kind::HostKilled => self.kill_host(from, story)?,
            Kind::Switchover => self.switch_over(from, story)?,
            Kind::GatewayKilled => self.kill_gateway(from, story)?,
            Kind::HostCutOff => self.cut_off(from, story)?,
            Kind::RegionLost => self.lose_region(from, story)?,
        }
        let so_far = writers.acknowledged();
        let on = wait_until(LIMIT, || writers.acknowledged() >= so_far + COMMITS);
        anyhow::ensure!(
            on,
            "clients do not get on: {} commits acknowledged within {LIMIT:?}; {}; {}",
            writers.acknowledged() - so_far,
            self.stage.hosts[0].said(),
            self.stage.hosts[1].said()
        );
        Ok(Counted { before, broken: self.broken() - broken })
    }

    /// Repairs what a fault broke, for the next one.
    fn mend(&mut self, kind: Kind, from: usize) -> Result<()> {
        match kind {
            Kind::HostKilled => self.stage.hosts[from].boot()?,
            Kind::GatewayKilled => self.stage.gateways.heal(&self.stage.net)?,
            Kind::RegionLost => {
                self.stage.gateways.heal(&self.stage.net)?;
                self.stage.hosts[from].boot()?;
            }
            Kind::Switchover | Kind::HostCutOff => {}
        }
        self.stage.caught_up()?;
        let primary = self.stage.primary()?;
        self.stage.hosts[1 - primary].stands_by(LIMIT)
    }

    /// A session where HAProxy leads to.
    fn session(&self) -> Result<crate::pgwire::Client> {
        let reach = Reach::Tcp(self.stage.proxy.at());
        let mut last = pg::client(&reach);
        wait_until(LIMIT, || {
            if last.is_err() {
                last = pg::client(&reach);
            }
            last.is_ok()
        });
        last.context("through HAProxy")
    }

    /// New lines of both agents' histories, in order.
    fn lines_since(&self, before: [usize; 2]) -> Vec<Line> {
        let new =
            self.stage.hosts.iter().zip(before).flat_map(|(host, before)| host.history().into_iter().skip(before));
        let mut lines: Vec<Line> = new.filter_map(|line| serde_json::from_value(line).ok()).collect();
        lines.sort_by_key(|line| line.at_unix_ms);
        lines
    }

    fn kill_host(&mut self, from: usize, story: &mut Story) -> Result<()> {
        let name = self.stage.hosts[from].name;
        story.begins(format!("kill -9 of every process of {name}"));
        let (killed, had) = self.stage.hosts[from].kill()?;
        story.tell("", format!("the last of its {had} processes is gone"));
        self.stage.hosts[1 - from].becomes_primary(killed, LIMIT).map(drop)
    }

    fn switch_over(&mut self, from: usize, story: &mut Story) -> Result<()> {
        let to = self.stage.hosts[1 - from].name;
        story.begins(format!("holdfast agent switchover --to {to}"));
        self.stage.hosts[from].holdfast(&["agent", "switchover", "--to", to, "--yes"])?;
        self.stage.hosts[1 - from].becomes_primary(Instant::now(), LIMIT).map(drop)
    }

    fn kill_gateway(&mut self, from: usize, story: &mut Story) -> Result<()> {
        let index = self.stage.serving(from)?;
        let serving = gateways::name(index);
        story.begins(format!("kill -9 of the serving gateway {serving}"));
        self.stage.gateways.kill(index)?;
        let mut now = serde_json::Value::Null;
        let elsewhere = wait_until(LIMIT, || {
            let Some(primary) = self.stage.hosts.iter().position(Host::is_primary) else { return false };
            now = self.stage.hosts[primary].attach_status();
            now["phase"] == "serving" && now["gateway"] != serving.as_str()
        });
        anyhow::ensure!(elsewhere, "no other gateway serves after {LIMIT:?}: attach shows {now}");
        let outage = &now["last_outage_ms"];
        story.tell("", format!("seen: {} serves; requests waited {outage} ms at attach", now["gateway"]));
        Ok(())
    }

    /// The host's network is cut while its processes keep running. Its PostgreSQL must end by itself, and pending
    /// writes of its users must never be carried out, also after the network is back.
    fn cut_off(&mut self, from: usize, story: &mut Story) -> Result<()> {
        let name = self.stage.hosts[from].name;
        let mut probe = Probe::at(&self.stage.hosts[from], 1).context("before the cut")?;
        story.begins(format!("{name} is cut off from everything and goes on running"));
        self.stage.net.isolate(node(from))?;
        // Sent at once, into a connection that still seems to work.
        let late = std::thread::spawn(move || probe.write(2));
        let stopped = self.stage.hosts[from].postgres_ends(LIMIT);
        let said = || self.stage.hosts[from].said();
        anyhow::ensure!(stopped, "PostgreSQL still runs on {name} {LIMIT:?} after it was cut off; {}", said());
        story.stopped_ms = Some(unix_ms() - story.at);
        story.tell(name, "no process of PostgreSQL is left");
        self.stage.hosts[1 - from].becomes_primary(Instant::now(), LIMIT)?;
        story.granted = self.stage.granted(1 - from)?;
        let mut other = Probe::at(&self.stage.hosts[1 - from], 3).context("at the new primary")?;

        story.tell("", format!("{name} is connected again"));
        self.stage.net.heal()?;
        let outcome = late.join().map_err(|_| anyhow::anyhow!("the probe panicked"))?;
        anyhow::ensure!(
            matches!(outcome, Err(NbdError::Errno(_) | NbdError::Gone(_))),
            "R2: a write through the device of {name}, which was cut off, was answered with {outcome:?}"
        );
        self.stage.hosts[from].stands_by(LIMIT)?;
        story.tell(name, "stands by");
        let running = self.stage.hosts[from].postgres();
        anyhow::ensure!(running.is_empty(), "PostgreSQL runs on {name}, which stands by: {running:?}");
        let found = other.read()?;
        anyhow::ensure!(found == 3, "R2: found write {found} in the block of the probe, expected 3, the new primary's");
        Ok(())
    }

    /// The primary's host and its serving gateway are killed at the same time. The new host finds no leader at first,
    /// and then one that has not seen the old owner renew, and waits for a whole lease from the election on.
    fn lose_region(&mut self, from: usize, story: &mut Story) -> Result<()> {
        let index = self.stage.serving(from)?;
        let (name, serving) = (self.stage.hosts[from].name, gateways::name(index));
        story.begins(format!("kill -9 of every process of {name}, and of the gateway {serving}, which serves it"));
        self.stage.gateways.strike(index);
        let (killed, had) = self.stage.hosts[from].kill()?;
        self.stage.gateways.kill(index)?;
        story.tell("", format!("the last of the {had} processes of {name} is gone, and {serving}"));
        self.stage.hosts[1 - from].becomes_primary(killed, LIMIT)?;
        let (other, now) = (self.stage.hosts[1 - from].name, self.stage.serving(1 - from)?);
        anyhow::ensure!(now != index, "{other} is primary through {serving}, expected another: that one was killed");
        story.tell(other, format!("is seen as primary, through {}", gateways::name(now)));
        Ok(())
    }
}

/// A client that writes to the device directly, beside the file system.
struct Probe(Client);

impl Probe {
    /// Connects through a host's attach, and writes `tag` first to show that it can.
    fn at(host: &Host, tag: u64) -> Result<Self> {
        let bridge = Bridge::to(&host.socket(gateways::VOLUME), &export())?;
        let mut probe = Self(Client::connect(&bridge.uri, LIMIT)?);
        probe.write(tag).with_context(|| format!("a write through the device of {}", host.name))?;
        Ok(probe)
    }

    fn write(&mut self, tag: u64) -> Result<(), NbdError> {
        self.0.write(PROBE_AT, &pattern(tag, PROBE_AT, BLOCK))
    }

    fn read(&mut self) -> Result<u64> {
        tag_of(&self.0.read(PROBE_AT, u32::try_from(BLOCK)?)?, PROBE_AT)
    }
}
