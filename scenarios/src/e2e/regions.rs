//! Twelve gateways in four regions, and a host in one of them.
//!
//! 1. Sets that survive the loss of a host, a zone or a region: no commit takes less than the round trip to the nearest
//!    majority, and about that much.
//! 2. The set that survives the loss of a region, under a writer and a reader: its home region is lost, then the region
//!    of the other voter that commits waited for; that one is slow; the line to it flaps. Each pause is measured.
//!    Nothing that was acknowledged is lost, no read is older than what was acknowledged before it, no request fails.
//!
//! A region is lost without a word: first its lines are down, then its gateways are killed. The host stands outside of
//! what is lost, and reaches gateways without a delay: the pauses are those of the gateways.

mod pulse;

use super::Lab;
use super::attach::Attached;
use super::blocks::BLOCK;
use super::twelve::places::{GATEWAYS, Place, REGIONS, commit_round_trip, round_trip, within};
use super::twelve::seen::{Seen, SetSeen};
use super::twelve::{LIMIT, Twelve, keep};
use crate::binary::{profile_of, public_dir};
use crate::bridge::Bridge;
use crate::cluster::VOLUME;
use crate::nbd::{Client, Uri, pattern};
use crate::proof::{Run, Verdict};
use crate::say::{line, note, step};
use anyhow::{Context, Result};
use pulse::{Pulse, Times};
use serde::Serialize;
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

/// What sets survive. Each set has this name.
const GOALS: [&str; 3] = ["host", "zone", "region"];
/// The set of the second part.
const SET: &str = GOALS[2];
/// The region of the host, and the home of all sets.
const HOME: usize = 0;
const OWNER: &str = "host-a";
/// Writes that are measured, after some that are not.
const WRITES: u64 = 200;
const WARM_UP: u64 = 20;
/// A block that neither writer nor reader uses.
const AT: u64 = 4 << 20;
/// Tries for writes without a move or an election: one may occur on a machine that stalls.
const TRIES: usize = 3;
/// Answers that each case waits for at least.
const ENOUGH: u64 = 60;
/// How much longer a round trip to a slow region takes: more than the setting `rtt_ms`.
const SLOWER: Duration = Duration::from_millis(400);
/// How often a flapping line is down and up again, and for how long each.
const FLAPS: u32 = 6;
const FLAP: Duration = Duration::from_millis(1500);

/// Commits of one set.
#[derive(Debug, Serialize)]
struct Commits {
    goal: &'static str,
    leader: String,
    voters: Vec<String>,
    /// That a commit has to contain.
    round_trip_ms: f64,
    writes: Times,
}

/// One fault, or its end.
#[derive(Debug, Serialize)]
struct Case {
    what: String,
    writes: Times,
    reads: Times,
}

/// A host in the home region that has attached a set.
struct Host {
    attached: Attached,
    bridge: Bridge,
}

impl Host {
    fn start(lab: &Lab, twelve: &Twelve, dir: &Path, set: &str) -> Result<Self> {
        let place = Place::of(HOME).locality();
        let attached = Attached::start_set(lab, &twelve.cluster, &dir.join(set), (set, OWNER), &place)?;
        let bridge = Bridge::to(&attached.socket(), &format!("{set}/{VOLUME}"))?;
        Ok(Self { attached, bridge })
    }
}

fn region_of(gateway: usize) -> usize {
    Place::of(gateway).region
}

/// Why a set is not led in its home region by a cluster that is well, if so.
fn away(seen: &Seen, name: &str) -> Option<String> {
    let Some(set) = seen.sets.get(name) else { return Some(format!("no set {name}")) };
    let there = set.leader.is_some_and(|leader| region_of(leader) == HOME);
    let whole = seen.answering.len() == GATEWAYS;
    (!there || !whole)
        .then(|| format!("{} gateways answer; {name}: {set:?}", seen.answering.len()))
        .or_else(|| seen.unsettled())
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    let begun = Instant::now();
    let mut twelve = Twelve::start(lab, 0, &[])?;
    let options =
        |goal: &str| ["--survive", goal, "--voters", "3", "--home", REGIONS[HOME]].map(str::to_owned).to_vec();
    twelve.make(&GOALS.map(|goal| (goal.to_owned(), options(goal))))?;
    let (dir, _guard) = public_dir("regions")?;
    let mut commits = Vec::new();
    for goal in GOALS {
        let host = Host::start(lab, &twelve, &dir, goal)?;
        commits.push(commit(&twelve, goal, &host.bridge.uri)?);
        host.attached.detach()?;
    }
    table_of_commits(&commits);

    let host = Host::start(lab, &twelve, &dir, SET)?;
    let pulse = Pulse::start(&host.bridge.uri)?;
    let mut cases = Cases { twelve: &mut twelve, pulse: &pulse, rows: Vec::new() };
    cases.all()?;
    let rows = cases.rows;
    let acknowledged = pulse.end(&host.bridge.uri)?;
    table_of_cases(&rows);
    host.attached.detach()?;
    twelve.end()?;
    record(lab, begun.elapsed(), &commits, &rows, acknowledged)
}

/// The set now.
fn set(twelve: &Twelve, name: &str) -> Result<SetSeen> {
    twelve.seen()?.sets.remove(name).with_context(|| format!("no set {name}"))
}

/// Writes one after the other. None is acknowledged sooner than another gateway of a majority can have it (R1).
fn commit(twelve: &Twelve, goal: &'static str, uri: &Uri) -> Result<Commits> {
    step(format!("Commits of a set that survives the loss of a {goal}"));
    for _ in 0..TRIES {
        twelve.wait("leadership beside the host", LIMIT, |seen| away(seen, goal))?;
        let before = set(twelve, goal)?;
        let leader = before.leader.context("no leader")?;
        let writes = writes(uri)?;
        let after = set(twelve, goal)?;
        if (after.leader, &after.voters) != (before.leader, &before.voters) {
            note("it moved meanwhile");
            continue;
        }
        let least = commit_round_trip(leader, before.voters.iter().copied());
        let round_trip_ms = least.as_secs_f64() * 1e3;
        anyhow::ensure!(
            writes.quickest_ms >= round_trip_ms,
            "R1: a write was acknowledged after {} ms, before another gateway can have had it: {before:?}",
            writes.quickest_ms
        );
        note(format!("round trip {round_trip_ms:.0} ms, p50 {:.1} ms, p99 {:.1} ms", writes.p50_ms, writes.p99_ms));
        let place = |gateway: &usize| Place::of(*gateway).locality();
        let voters = before.voters.iter().map(place).collect();
        return Ok(Commits { goal, leader: place(&leader), voters, round_trip_ms, writes });
    }
    anyhow::bail!("{goal}: leader or voters changed in each of {TRIES} tries")
}

fn writes(uri: &Uri) -> Result<Times> {
    let mut client = Client::connect(uri, LIMIT)?;
    let mut took = Vec::new();
    for tag in 1..=WARM_UP + WRITES {
        let begun = Instant::now();
        client.write(AT, &pattern(tag, AT, BLOCK))?;
        if tag > WARM_UP {
            took.push(u64::try_from(begun.elapsed().as_micros())?);
        }
    }
    client.disconnect();
    Ok(Times::of(took))
}

/// The laboratory under a writer and a reader.
struct Cases<'a> {
    twelve: &'a mut Twelve,
    pulse: &'a Pulse,
    rows: Vec<Case>,
}

impl Cases<'_> {
    /// Does something that ends once it has had its effect, and notes the times of all requests meanwhile.
    fn case(&mut self, what: &str, act: impl FnOnce(&mut Twelve) -> Result<()>) -> Result<()> {
        step(what);
        self.pulse.goes_on(ENOUGH / 4)?;
        self.pulse.take();
        act(self.twelve).with_context(|| what.to_owned())?;
        self.pulse.goes_on(ENOUGH).with_context(|| what.to_owned())?;
        let [writes, reads] = self.pulse.take();
        note(format!(
            "writers: p50 {:.0} ms, pause {:.0} ms; readers: pause {:.0} ms",
            writes.p50_ms, writes.longest_ms, reads.longest_ms
        ));
        self.rows.push(Case { what: what.into(), writes, reads });
        Ok(())
    }

    /// The region of the voter that commits wait for.
    fn other_region(&self) -> Result<usize> {
        let set = set(self.twelve, SET)?;
        let leader = set.leader.context("no leader")?;
        let others = set.voters.into_iter().filter(|voter| *voter != leader);
        others.min_by_key(|voter| round_trip(leader, *voter)).map(region_of).context("no other voter")
    }

    fn lost(&mut self, region: usize, which: &str) -> Result<()> {
        let gone = within(region, GATEWAYS);
        self.case(&format!("{which} is lost"), |twelve| {
            twelve.wires.set_region_down(region, true);
            gone.iter().try_for_each(|gateway| twelve.cluster.kill(*gateway).map(drop))?;
            let waited = twelve.wait("the loss", LIMIT, |seen| {
                let told = |text: &String| text.starts_with(&format!("{SET}: ")) && text.contains("does not answer");
                (!seen.violated.iter().any(told)).then(|| format!("the loss is not told: {:?}", seen.violated))
            })?;
            note(format!("told after {:.0} s", waited.as_secs_f64()));
            Ok(())
        })?;
        self.case(&format!("{which} is back"), |twelve| {
            twelve.wires.set_region_down(region, false);
            gone.iter().try_for_each(|gateway| twelve.cluster.restart(*gateway))?;
            twelve.wait("leadership at home", LIMIT, |seen| away(seen, SET)).map(drop)
        })
    }

    fn all(&mut self) -> Result<()> {
        self.twelve.wait("leadership beside the host", LIMIT, |seen| away(seen, SET))?;
        self.case("calm", |_| Ok(()))?;
        self.lost(HOME, &format!("home region {}", REGIONS[HOME]))?;
        let other = self.other_region()?;
        self.lost(other, &format!("other region {}", REGIONS[other]))?;
        let other = self.other_region()?;
        let pulse = self.pulse;
        self.case(&format!("{} is slow, {} ms more", REGIONS[other], SLOWER.as_millis()), |twelve| {
            twelve.wires.slow_region(other, SLOWER);
            pulse.goes_on(2 * ENOUGH)
        })?;
        self.twelve.wires.heal();
        self.twelve.wait("leadership at home", LIMIT, |seen| away(seen, SET))?;
        let other = self.other_region()?;
        self.case(&format!("the line to {} flaps {FLAPS} times", REGIONS[other]), |twelve| {
            for _ in 0..FLAPS {
                for down in [true, false] {
                    twelve.wires.set_between_down(HOME, other, down);
                    // What the line does, not a wait for anything.
                    std::thread::sleep(FLAP);
                }
            }
            Ok(())
        })?;
        self.twelve.wait("leadership at home", LIMIT, |seen| away(seen, SET)).map(drop)
    }
}

fn table_of_commits(all: &[Commits]) {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header(["SURVIVES", "LEADER", "VOTERS", "ROUND TRIP MS", "QUICKEST", "MEDIAN", "99 %"]);
    for one in all {
        let times = [one.round_trip_ms, one.writes.quickest_ms, one.writes.p50_ms, one.writes.p99_ms];
        let [trip, quickest, p50, p99] = times.map(|ms| format!("{ms:.1}"));
        table.add_row([one.goal.to_owned(), one.leader.clone(), one.voters.join("\n"), trip, quickest, p50, p99]);
    }
    line(table.to_string());
}

fn table_of_cases(all: &[Case]) {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header(["CASE", "WRITES", "MEDIAN MS", "99 %", "PAUSE", "READS", "MEDIAN MS", "PAUSE"]);
    for Case { what, writes, reads } in all {
        let times = [writes.p50_ms, writes.p99_ms, writes.longest_ms, reads.p50_ms, reads.longest_ms];
        let [p50, p99, pause, read, read_pause] = times.map(|ms| format!("{ms:.1}"));
        let (wrote, was_read) = (writes.requests.to_string(), reads.requests.to_string());
        table.add_row([what.clone(), wrote, p50, p99, pause, was_read, read, read_pause]);
    }
    line(table.to_string());
}

fn record(lab: &Lab, took: Duration, commits: &[Commits], cases: &[Case], acknowledged: u64) -> Result<()> {
    note(format!("{acknowledged} writes acknowledged, 0 lost; no request failed; {:.0} s", took.as_secs_f64()));
    let seconds = took.as_secs();
    let all =
        json!({ "commits": commits, "cases": cases, "acknowledged": acknowledged, "lost": 0, "seconds": seconds });
    keep("regions", &all)?;
    let mut run = Run::now("laboratory: regions", seconds, Verdict::Held).built(profile_of(&lab.bin));
    // Two regions lost, one slow, one line that flaps.
    run.faults = 3 + u64::from(FLAPS);
    let writes = commits.iter().map(|one| one.writes.requests as u64).sum::<u64>() + acknowledged;
    run.did("writes", writes).did("cases", cases.len() as u64).note();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_set_that_is_led_elsewhere_or_by_a_part_of_the_cluster_is_away() {
        let seen = |leader: usize, answering: usize| {
            let set = SetSeen { leader: Some(leader), voters: BTreeSet::from([0, 3, 6]), ..SetSeen::default() };
            let sets = [("region".to_owned(), set)].into();
            Seen { sets, answering: (0..answering).collect(), planned: true, ..Seen::default() }
        };
        assert_eq!(away(&seen(0, GATEWAYS), SET), None);
        assert!(away(&seen(3, GATEWAYS), SET).is_some(), "another region");
        assert!(away(&seen(0, GATEWAYS - 1), SET).is_some(), "one is away");
        assert!(away(&seen(0, GATEWAYS), "zone").is_some(), "no such set");
    }
}
