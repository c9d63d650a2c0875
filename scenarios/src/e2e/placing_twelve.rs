//! Twelve gateways in four regions, and many sets with three policies: a gateway is killed for good, two are added, the
//! dead one is removed, a region is drained. At the end each set is as its policy asks, by what `set show` says and by
//! where its voters stand. Some sets are written all the time: no error, no closed connection, all that was
//! acknowledged is there. What moved stands beside the least that had to move.
//!
//! The least: each voter of the gateways that go needs one copy elsewhere. Nothing has to move for new gateways.

use super::Lab;
use super::attach::Attached;
use super::blocks::{Load, Progress};
use super::members::{PATIENCE, goes_on};
use super::twelve::places::{GATEWAYS, Place, REGIONS, within};
use super::twelve::seen::{Seen, survives};
use super::twelve::{LIMIT, Twelve, keep};
use crate::binary::{profile_of, public_dir};
use crate::bridge::Bridge;
use crate::cluster::VOLUME;
use crate::proof::{Run, Verdict};
use crate::say::{line, note, step};
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// What sets survive, in turn.
const LEVELS: [&str; 3] = ["host", "zone", "region"];
/// Sets that are written all the time: one of each policy.
const WRITTEN: usize = 3;
/// Gateways that are added later.
const FURTHER: usize = 2;
/// The region that is drained. No set is at home there.
const DRAINED: usize = 3;
/// The shortest that is allowed.
const SETTING: &str = "placing.replace_after_ms=60000";
const WRITERS: u64 = 2;
const BLOCKS_EACH: u64 = 256;

/// A set and its policy.
struct Wanted {
    name: String,
    survive: &'static str,
    home: Option<&'static str>,
}

/// Each policy with and without a home.
fn wanted(count: usize) -> Vec<Wanted> {
    let one = |number: usize| Wanted {
        name: format!("s{number:03}"),
        survive: LEVELS[number % LEVELS.len()],
        home: (number / LEVELS.len()).is_multiple_of(2).then(|| REGIONS[number / 6 % DRAINED]),
    };
    (0..count).map(one).collect()
}

impl Wanted {
    /// Options of `set create`.
    fn policy(&self) -> Vec<String> {
        let home = self.home.iter().flat_map(|home| ["--home", *home]);
        ["--survive", self.survive, "--voters", "3"].into_iter().chain(home).map(str::to_owned).collect()
    }

    /// What its voters lack of its policy, by where they stand.
    fn lacks(&self, seen: &Seen) -> Option<String> {
        let Some(set) = seen.sets.get(&self.name) else { return Some("it does not exist".into()) };
        let active = |voter: &usize| seen.standing.get(voter).is_some_and(|standing| standing == "active");
        let at_home = |home: &str| set.voters.iter().any(|voter| REGIONS[Place::of(*voter).region] == home);
        let lacks = [
            (set.voters.len() != 3, "three voters"),
            (!survives(self.survive, &set.voters), "to survive what it is to survive"),
            (!set.voters.iter().all(active), "a voter that stays"),
            (self.home.is_some_and(|home| !at_home(home)), "a voter at home"),
        ];
        let lacks: Vec<&str> = lacks.into_iter().filter(|(lacks, _)| *lacks).map(|(_, what)| what).collect();
        (!lacks.is_empty()).then(|| format!("{} lacks {}: {set:?}", self.name, lacks.join(", ")))
    }
}

/// A line of the table.
#[derive(Debug, Default, Serialize)]
struct Row {
    what: String,
    seconds: f64,
    /// Copies of a set that new voters got.
    copies: u64,
    least_copies: u64,
    /// The journal's bytes of the sets in these copies.
    copied_bytes: u64,
    least_bytes: u64,
    /// All that gateways sent each other meanwhile, with heartbeats and what the writers wrote.
    sent_bytes: u64,
    between_regions_bytes: u64,
    /// The longest time of one write and flush.
    slowest_ms: u64,
}

/// Counts copies from look to look.
struct Watch {
    members: BTreeMap<String, BTreeSet<usize>>,
    copies: u64,
    bytes: u64,
}

impl Watch {
    fn new(seen: &Seen) -> Self {
        let mut watch = Self { members: BTreeMap::new(), copies: 0, bytes: 0 };
        watch.look(seen);
        watch
    }

    fn look(&mut self, seen: &Seen) {
        // A set whose leader is not known now is counted at a later look.
        for (name, set) in seen.sets.iter().filter(|(_, set)| set.leader.is_some()) {
            let now: BTreeSet<usize> = set.voters.union(&set.learners).copied().collect();
            if let Some(before) = self.members.insert(name.clone(), now.clone()) {
                let new = now.difference(&before).count() as u64;
                self.copies += new;
                self.bytes += new * set.live_bytes;
            }
        }
    }
}

/// Copies and bytes that have to move if these gateways go.
fn least(seen: &Seen, gone: &[usize]) -> (u64, u64) {
    let of = |voters: &BTreeSet<usize>| gone.iter().filter(|gateway| voters.contains(gateway)).count() as u64;
    let each = seen.sets.values().map(|set| (of(&set.voters), of(&set.voters) * set.live_bytes));
    each.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// The laboratory under its writers.
struct Acts<'a> {
    twelve: &'a mut Twelve,
    progress: [&'a Progress; WRITTEN],
    limit: Duration,
    rows: Vec<Row>,
}

impl Acts<'_> {
    /// Does something, and waits until all sets are as they are to be and `lacks` finds nothing. `gone`: the gateways
    /// that get no votes any more.
    fn act(
        &mut self,
        what: &str,
        gone: &[usize],
        act: impl FnOnce(&mut Twelve) -> Result<()>,
        lacks: impl Fn(&Seen) -> Option<String>,
    ) -> Result<()> {
        step(what);
        let before = self.twelve.seen()?;
        let (least_copies, least_bytes) = least(&before, gone);
        let (mut watch, (sent, far), begun) = (Watch::new(&before), self.twelve.wires.bytes(), Instant::now());
        for progress in self.progress {
            progress.take_slowest();
        }
        act(self.twelve)?;
        self.twelve.wait(what, self.limit, |seen| {
            watch.look(seen);
            let has =
                |gateway: &usize| seen.sets.values().any(|s| s.named.contains(gateway) || s.voters.contains(gateway));
            let left = gone.iter().find(|gateway| has(gateway)).map(|gateway| format!("g{} has votes", gateway + 1));
            left.or_else(|| lacks(seen)).or_else(|| seen.unsettled())
        })?;
        let (seconds, (sent_after, far_after)) = (begun.elapsed().as_secs_f64(), self.twelve.wires.bytes());
        self.progress.iter().try_for_each(|progress| goes_on(progress))?;
        let slowest = self.progress.iter().map(|progress| progress.take_slowest()).max().unwrap_or_default();
        note(format!("{} copies, {least_copies} had to be; {seconds:.0} s", watch.copies));
        self.rows.push(Row {
            what: what.into(),
            seconds,
            copies: watch.copies,
            least_copies,
            copied_bytes: watch.bytes,
            least_bytes,
            sent_bytes: sent_after - sent,
            between_regions_bytes: far_after - far,
            slowest_ms: u64::try_from(slowest.as_millis())?,
        });
        Ok(())
    }

    fn all(&mut self) -> Result<()> {
        self.progress.iter().try_for_each(|progress| goes_on(progress))?;
        let seen = self.twelve.seen()?;
        // The busiest one that does not plan, and that stands where nothing is drained later.
        let stays = |gateway: &usize| Place::of(*gateway).region != DRAINED && seen.cluster.leader != Some(*gateway);
        let dead = (0..GATEWAYS).filter(stays).max_by_key(|gateway| seen.votes_of(*gateway)).context("no gateway")?;
        let name = self.twelve.cluster.name(dead);
        self.act(
            &format!("{name} is killed for good"),
            &[dead],
            |twelve| twelve.cluster.kill(dead).map(drop),
            |_| None,
        )?;
        let added = GATEWAYS..GATEWAYS + FURTHER;
        self.act(
            "two gateways are added",
            &[],
            |twelve| added.clone().try_for_each(|index| twelve.add(index)),
            |seen| {
                let votes = |index: usize| seen.cluster.voters.contains(&index) && seen.answering.contains(&index);
                (!added.clone().all(votes)).then(|| "one of them has no vote in the cluster's group".into())
            },
        )?;
        self.act(
            &format!("{name} is removed"),
            &[dead],
            |twelve| twelve.cluster.holdfast(&["gateway", "remove", &name, "--yes", "--timeout", "2m"]).map(drop),
            |seen| seen.standing.contains_key(&dead).then(|| format!("{name} is a member")),
        )?;
        let drained = within(DRAINED, GATEWAYS + FURTHER);
        self.act(
            &format!("{} is drained", REGIONS[DRAINED]),
            &drained,
            |twelve| {
                let drain = |index: &usize| {
                    let name = twelve.cluster.name(*index);
                    twelve.cluster.holdfast(&["gateway", "drain", &name, "--timeout", "2m"]).map(drop)
                };
                drained.iter().try_for_each(drain)
            },
            |_| None,
        )
    }
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    let begun = Instant::now();
    let mut twelve = Twelve::start(lab, FURTHER, &[SETTING])?;
    let wanted = wanted(lab.sets);
    let created = create(&twelve, &wanted)?;
    let (dir, _guard) = public_dir("placing-twelve")?;
    let (mut hosts, mut bridges) = (Vec::new(), Vec::new());
    for Wanted { name, .. } in &wanted[..WRITTEN] {
        let place = Place::of(0).locality();
        let attached = Attached::start_set(lab, &twelve.cluster, &dir.join(name), (name.as_str(), "host-a"), &place)?;
        bridges.push(Bridge::to(&attached.socket(), &format!("{name}/{VOLUME}"))?);
        hosts.push(attached);
    }
    let mut loads = [(); WRITTEN].map(|()| Load::new(WRITERS, BLOCKS_EACH));
    let [one, two, three] = &mut loads;
    let door = |host: usize| std::slice::from_ref(&bridges[host].uri);
    // A few moves at a time, each with a catching up over the longest way, and the minute before a voter is replaced.
    let limit = Duration::from_secs(300 + 6 * lab.sets as u64);
    let mut rows = one.run(door(0), |a| {
        two.run(door(1), |b| {
            three.run(door(2), |c| {
                let mut acts = Acts { twelve: &mut twelve, progress: [a, b, c], limit, rows: Vec::new() };
                acts.all().map(|()| acts.rows)
            })
        })
    })?;
    for (load, bridge) in loads.iter().zip(&bridges) {
        load.unbroken(&bridge.uri, PATIENCE)?;
    }
    rows.insert(0, created);
    satisfied(&twelve, &wanted)?;
    told(&rows);
    hosts.into_iter().try_for_each(Attached::detach)?;
    let pairs: u64 = loads.iter().map(|load| load.progress().answered()).sum();
    twelve.end()?;
    record(lab, begun.elapsed(), &rows, pairs)
}

/// Makes all sets.
fn create(twelve: &Twelve, wanted: &[Wanted]) -> Result<Row> {
    step(format!("{} sets", wanted.len()));
    let (begun, (sent, far)) = (Instant::now(), twelve.wires.bytes());
    let sets: Vec<(String, Vec<String>)> = wanted.iter().map(|set| (set.name.clone(), set.policy())).collect();
    twelve.make(&sets)?;
    let made = begun.elapsed();
    twelve.wait("the new sets", LIMIT, |seen| {
        wanted.iter().find_map(|set| set.lacks(seen)).or_else(|| seen.unsettled())
    })?;
    let (sent_after, far_after) = twelve.wires.bytes();
    let each = made.as_secs_f64() / wanted.len() as f64;
    note(format!("made and written after {:.0} s, {each:.1} s for each", made.as_secs_f64()));
    Ok(Row {
        what: format!("{} sets are created", wanted.len()),
        seconds: begun.elapsed().as_secs_f64(),
        sent_bytes: sent_after - sent,
        between_regions_bytes: far_after - far,
        ..Row::default()
    })
}

/// Each policy is met, by where the voters stand and by what `set show` says.
fn satisfied(twelve: &Twelve, wanted: &[Wanted]) -> Result<()> {
    step("Policies");
    let seen = twelve.seen()?;
    for set in wanted {
        if let Some(lacks) = set.lacks(&seen) {
            anyhow::bail!("at the end: {lacks}");
        }
        let shown = twelve.cluster.holdfast(&["set", "show", &set.name])?;
        let placing = &shown["placing"];
        let violations = placing["violations"].as_array().with_context(|| format!("no violations in {shown}"))?;
        let told = placing["policy"]["survive"] == set.survive && placing["moving"] == false && violations.is_empty();
        anyhow::ensure!(told, "at the end, set show {}: {placing}", set.name);
    }
    let newer = (GATEWAYS..GATEWAYS + FURTHER).map(|index| seen.votes_of(index).to_string()).collect::<Vec<_>>();
    note(format!("{} sets have what they ask for; votes at the added gateways: {}", wanted.len(), newer.join(", ")));
    Ok(())
}

/// Prints the table.
fn told(rows: &[Row]) {
    let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    let copied = ["COPIES", "LEAST", "MiB COPIED", "LEAST MiB"];
    table.set_header([&["WHAT", "SECONDS"][..], &copied, &["MiB SENT", "BETWEEN REGIONS", "SLOWEST PAIR MS"]].concat());
    for row in rows {
        table.add_row([
            row.what.clone(),
            format!("{:.0}", row.seconds),
            row.copies.to_string(),
            row.least_copies.to_string(),
            mib(row.copied_bytes),
            mib(row.least_bytes),
            mib(row.sent_bytes),
            mib(row.between_regions_bytes),
            row.slowest_ms.to_string(),
        ]);
    }
    line(table.to_string());
}

fn record(lab: &Lab, took: Duration, rows: &[Row], pairs: u64) -> Result<()> {
    note(format!(
        "{pairs} pairs acknowledged and all there; no error, no connection closed; {:.0} s",
        took.as_secs_f64()
    ));
    keep(
        "placing-twelve",
        &json!({ "sets": lab.sets, "pairs": pairs, "lost": 0, "seconds": took.as_secs(), "rows": rows }),
    )?;
    let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
    let mut run = Run::now("laboratory: placing-twelve", took.as_secs(), Verdict::Held).built(profile_of(&lab.bin));
    (run.under, run.faults) = (format!("{} sets", lab.sets), 1);
    let run = run.did("sets", lab.sets as u64).did("pairs", pairs);
    let run = run.did("copies", sum(|row| row.copies)).did("copies that had to be", sum(|row| row.least_copies));
    let run = run.did("bytes copied", sum(|row| row.copied_bytes));
    run.did("bytes that had to be", sum(|row| row.least_bytes)).note();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::twelve::seen::SetSeen;
    use super::*;

    fn seen(sets: &[(&str, &[usize])]) -> Seen {
        let set = |voters: &[usize]| SetSeen {
            voters: voters.iter().copied().collect(),
            leader: voters.first().copied(),
            live_bytes: 100,
            ..SetSeen::default()
        };
        let sets = sets.iter().map(|(name, voters)| ((*name).to_owned(), set(voters))).collect();
        Seen { standing: (0..GATEWAYS).map(|index| (index, "active".to_owned())).collect(), sets, ..Seen::default() }
    }

    #[test]
    fn each_policy_is_asked_for_with_and_without_a_home() {
        let all = wanted(24);
        let kinds: BTreeSet<_> = all.iter().map(|set| (set.survive, set.home.is_some())).collect();
        assert_eq!(kinds.len(), 6);
        assert!(all.iter().all(|set| set.home != Some(REGIONS[DRAINED])), "the region that is drained");
        assert_eq!(all[0].policy(), ["--survive", "host", "--voters", "3", "--home", "eu-west"]);
        assert_eq!(all[3].policy(), ["--survive", "host", "--voters", "3"]);
    }

    #[test]
    fn a_policy_that_is_not_met_is_found() {
        let of = |survive, home| Wanted { name: "one".into(), survive, home };
        let lacks = |set: &Wanted, voters: &[usize]| set.lacks(&seen(&[("one", voters)])).unwrap_or_default();
        assert_eq!(lacks(&of("region", Some("eu-west")), &[0, 3, 6]), "");
        assert!(lacks(&of("region", None), &[0, 1, 6]).contains("to survive"));
        assert!(lacks(&of("zone", Some("us-east")), &[0, 1, 2]).contains("at home"));
        assert!(lacks(&of("host", None), &[0, 1]).contains("three voters"));
        // It is no member.
        assert!(lacks(&of("host", None), &[0, 1, 12]).contains("that stays"));
        assert!(of("host", None).lacks(&seen(&[])).is_some());
    }

    #[test]
    fn what_moves_stands_beside_what_has_to() {
        let before = seen(&[("one", &[0, 1, 2]), ("two", &[0, 3, 6])]);
        assert_eq!(least(&before, &[0]), (2, 200));
        assert_eq!(least(&before, &[2, 9]), (1, 100));
        let mut watch = Watch::new(&before);
        assert_eq!(watch.copies, 0);
        watch.look(&seen(&[("one", &[1, 2, 5]), ("two", &[0, 3, 6])]));
        // Back and forth counts twice.
        watch.look(&seen(&[("one", &[0, 1, 2]), ("two", &[3, 6, 9])]));
        assert_eq!((watch.copies, watch.bytes), (3, 300));
    }
}
