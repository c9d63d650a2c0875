//! Hostile clients at every door of the gateways, beside a writer: thousands of connections, slow ones, handshakes,
//! headers and options without an end, bodies of 65 MiB, many streams. The writer sees no error, no leader is lost, the
//! gateways' memory stays bounded, and commands, a host with a token and a gateway that restarts get in. With
//! everything on, an agent is a target as well, and what a half-open connection costs is measured before.

mod agent;
mod flood;
mod half_open;
mod host;
mod ways;

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, Options, SET};
use crate::cmd::cmd;
use crate::nbd::{Client, pattern};
use crate::process::{self, SetOnDrop, wait_until};
use crate::say::note;
use agent::{Agent, Flooded};
use anyhow::{Context, Result};
use flood::{Flood, Target};
use half_open::{Door, Process};
use host::Host;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Of the long form: for the host and the agent with everything on.
pub(super) const NEEDS: &[&str] = &["nbdkit", "nbdsh", "nbdfuse", "/usr/lib/postgresql/15/bin/postgres"];

const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK: usize = 4096;
/// Of the volume, which the writer writes again and again.
const WRITTEN: u64 = 16 << 20;
/// Between two writes: what is measured is a write, not how busy two processors can be.
const PAUSE: Duration = Duration::from_millis(2);
/// Most bytes that a gateway may use more than before the flood. By the limits of its doors: 512 handshakes of NBD and
/// 576 newcomers at 64 KiB, some 1,300 known connections without TLS at twice that, and what the writer needs.
const GROWTH_MAX: u64 = 256 << 20;
/// Between two looks whether others get in.
const GETS_IN_PAUSE: Duration = Duration::from_millis(500);
/// How often somebody who gets no answer in the flood asks again.
const TRIES: u32 = 5;
/// Files of this process that are no hostile clients.
const OTHER_FILES: u64 = 512;

/// What a cluster demands of its clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Open,
    /// TLS between gateways and at the admin door; NBD takes clients without it as well.
    Tls,
    /// TLS at each door, and all else of `holdfast dev --secure`.
    Secure,
}

impl Access {
    fn name(self) -> &'static str {
        match self {
            Self::Open => "without TLS",
            Self::Tls => "with TLS",
            Self::Secure => "with everything on",
        }
    }
}

struct Form {
    access: Access,
    /// Hostile clients at each door of the serving gateway; a third of it at those of the others.
    each: usize,
    calm: Duration,
    /// Longer than a newcomer may take.
    flood: Duration,
    /// A gateway is killed and comes back in the flood.
    restart: bool,
}

/// All ways to run a cluster.
pub(super) fn run(lab: &Lab) -> Result<()> {
    let flood = Duration::from_secs(if lab.long { 120 } else { 25 });
    for access in [Access::Open, Access::Tls, Access::Secure] {
        let calm = Duration::from_secs(10);
        play(lab, &Form { access, each: 1500, calm, flood, restart: true })?;
    }
    Ok(())
}

/// A few hundred clients at each door of a cluster with TLS.
pub(super) fn run_short(lab: &Lab) -> Result<()> {
    let (calm, flood) = (Duration::from_secs(3), Duration::from_secs(12));
    play(lab, &Form { access: Access::Tls, each: 600, calm, flood, restart: false })
}

fn play(lab: &Lab, form: &Form) -> Result<()> {
    let what = form.access.name();
    let mut cluster = start(lab, form).with_context(|| format!("a cluster {what}"))?;
    cluster.serving(TAKEOVER_LIMIT)?;
    let host = Host::attach(&cluster)?;
    let serving = cluster.gateways.iter().position(|gateway| gateway.nbd.addr == host.address);
    let serving = serving.with_context(|| format!("no gateway has the NBD address {}", host.address))?;
    let agent = agent_of(form, &cluster, &lab.dir)?;
    let targets = targets(&cluster, serving)?;
    let (mut client, nbdkit) = host.connect(&lab.dir.join("nbdkit.log"))?;
    let (stop, flooded) = (AtomicBool::new(false), AtomicBool::new(false));
    let (seen, times) = std::thread::scope(|scope| {
        let _stops = SetOnDrop(&stop);
        let writer = scope.spawn(|| write(&mut client, &stop, &flooded));
        let seen = beside(&mut cluster, &host, serving, form, (targets, agent.as_ref()), &flooded);
        stop.store(true, Ordering::Relaxed);
        let times = writer.join().map_err(|_| anyhow::anyhow!("the writer's thread panicked"))?;
        // The writer's own error says more.
        let times = times.context("the writer beside the flood")?;
        anyhow::Ok((seen?, times))
    })?;
    let [calm, during] = times;
    note(format!("{what}, calm: {}", figures(&calm)));
    note(format!("{what}, in the flood: {}", figures(&during)));
    anyhow::ensure!(!calm.is_empty() && !during.is_empty(), "the writer got no write through");
    seen.check(&cluster)?;
    client.disconnect();
    if let Some(mut nbdkit) = nbdkit {
        nbdkit.stop(process::Signal::TERM, PATIENCE)?;
    }
    agent.map_or(Ok(()), Agent::stop)?;
    cluster.stop()?;
    Ok(())
}

/// With everything on: an agent, after what a half-open connection costs at each door has been measured.
fn agent_of(form: &Form, cluster: &Cluster, dir: &Path) -> Result<Option<Agent>> {
    if form.access != Access::Secure {
        return Ok(None);
    }
    // Nothing else happens meanwhile. Each kind of door at a gateway of its own, so that each has a figure.
    wait_until(form.calm, || false);
    let all = [&[("api", 200), ("http", 50)][..], &[("peer", 200)], &[("nbd", 200)]];
    for (index, doors) in all.into_iter().enumerate() {
        let (addresses, name) = (addresses(cluster, index)?, cluster.name(index));
        let door = |(door, count): &(&str, usize)| {
            let address = addresses[*door].as_str().with_context(|| format!("no address {door} in {addresses}"))?;
            anyhow::Ok(Door { address: address.to_owned(), nbd: *door == "nbd", count: *count })
        };
        let names: Vec<&str> = doors.iter().map(|(door, _)| *door).collect();
        let doors = doors.iter().map(door).collect::<Result<_>>()?;
        let name = format!("{name}, {}", names.join(" and "));
        half_open::measure(&Process { name, pid: cluster.gateways[index].pid, doors })?;
    }
    let agent = Agent::start(cluster, dir)?;
    half_open::measure(&agent.as_process())?;
    Ok(Some(agent))
}

fn start(lab: &Lab, form: &Form) -> Result<Cluster> {
    let (dir, tls) = match form.access {
        Access::Open => (lab.dir.join("plain"), false),
        Access::Tls => (lab.dir.join("tls"), true),
        Access::Secure => (lab.dir.join("secure"), false),
    };
    let mut env = Vec::new();
    if tls {
        certificates(lab, &dir.join("tls"))?;
        let at = |file: &str| dir.join("tls").join(file).display().to_string();
        for (key, file) in [("CA", "ca.pem"), ("CERTIFICATE", "admin.pem"), ("KEY", "admin.key")] {
            env.push((format!("HOLDFAST_TLS_{key}"), at(file)));
        }
    }
    // Clients and gateways share two processors here: a flood must not look like a slow network.
    let settings = vec!["rtt_ms=100".to_string(), "rtt_floor_ms=100".to_string()];
    let (bin, size) = (lab.bin.clone(), "64MiB".to_string());
    let options = Options { bin, dir, gateways: 3, store: None, size, settings, env };
    if form.access == Access::Secure { Cluster::start_secure(options) } else { Cluster::start(options) }
}

fn certificates(lab: &Lab, into: &Path) -> Result<()> {
    let names = ["--gateway", "g1", "--gateway", "g2", "--gateway", "g3", "--host", "db1", "--admin", "admin"];
    cmd(&lab.bin).args(["cluster", "certificates", "--dir"]).arg(into).args(names).run().context("certificates")
}

/// Writes until `stop`. The times of all writes: before the flood, and from then on.
fn write(client: &mut Client, stop: &AtomicBool, flooded: &AtomicBool) -> Result<[Vec<Duration>; 2]> {
    let mut times = [Vec::new(), Vec::new()];
    for number in 1.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let at = number * BLOCK as u64 % WRITTEN;
        let begun = Instant::now();
        client.write(at, &pattern(number, at, BLOCK)).with_context(|| format!("write {number}"))?;
        times[usize::from(flooded.load(Ordering::Relaxed))].push(begun.elapsed());
        std::thread::sleep(PAUSE);
    }
    Ok(times)
}

/// p50, p99 and the longest, in milliseconds.
fn figures(times: &[Duration]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let at = |permille: usize| sorted.get(sorted.len() * permille / 1000).or(sorted.last());
    let ms = |time: Option<&Duration>| time.map_or(f64::NAN, |time| time.as_secs_f64() * 1e3);
    let (p50, p99, longest) = (ms(at(500)), ms(at(990)), ms(sorted.last()));
    format!("{} times, p50 {p50:.2} ms, p99 {p99:.2} ms, longest {longest:.1} ms", times.len())
}

/// All doors of the gateways, the serving one first.
fn targets(cluster: &Cluster, serving: usize) -> Result<Vec<(usize, Vec<Target>)>> {
    let order = std::iter::once(serving).chain(cluster.others(serving));
    let doors = order.map(|index| {
        let addresses = addresses(cluster, index)?;
        let all = [
            ("api", ways::grpc("/holdfast.admin.v1.Admin/GetNode")),
            ("peer", ways::peer()),
            ("http", ways::http()),
            ("nbd", ways::nbd()),
        ];
        let targets = all.into_iter().map(|(door, ways)| {
            let address = addresses[door].as_str().with_context(|| format!("no address {door} in {addresses}"))?;
            anyhow::Ok(Target { address: address.to_owned(), ways })
        });
        anyhow::Ok((index, targets.collect::<Result<Vec<_>>>()?))
    });
    doors.collect()
}

/// The addresses of a gateway by the names of its doors.
fn addresses(cluster: &Cluster, index: usize) -> Result<Value> {
    let (status, name) = (cluster.holdfast(&["cluster", "status"])?, cluster.name(index));
    let members = status["members"].as_array().context("status without members")?;
    let node = members.iter().map(|member| &member["node"]).find(|node| node["name"] == name.as_str());
    Ok(node.with_context(|| format!("no {name} in the status"))?["addresses"].clone())
}

/// What was found beside the writer.
struct FloodOutcome {
    /// Leader and term of each group.
    led: [Vec<[u64; 3]>; 2],
    /// Bytes of each gateway: before, at most during, and after the flood. Not of one that was restarted.
    resident: Vec<(usize, [u64; 3])>,
}

/// Everything but the writer.
fn beside(
    cluster: &mut Cluster,
    host: &Host,
    serving: usize,
    form: &Form,
    (targets, agent): (Vec<(usize, Vec<Target>)>, Option<&Agent>),
    flooded: &AtomicBool,
) -> Result<FloodOutcome> {
    wait_until(form.calm, || false);
    let led = leaders(cluster)?;
    let restarted = if form.restart { Some(follower(cluster, serving, &led)?) } else { None };
    let watched: Vec<usize> = (0..cluster.gateways.len()).filter(|index| Some(*index) != restarted).collect();
    let before = resident(cluster, &watched)?;
    let begun = Instant::now();
    let (floods, mut at_agent) = begin(targets, serving, agent, form.each)?;
    flooded.store(true, Ordering::Relaxed);
    let mut most = before.clone();
    let mut in_time = Vec::new();
    while begun.elapsed() < form.flood {
        for (most, now) in most.iter_mut().zip(resident(cluster, &watched)?) {
            *most = now.max(*most);
        }
        in_time.push(gets_in(cluster, host, in_time.len())?);
        at_agent.iter_mut().try_for_each(Flooded::look)?;
        // Each command is a process.
        wait_until(GETS_IN_PAUSE, || false);
    }
    note(format!("in the flood, a command and a connection with a token: {}", figures(&in_time)));
    if let Some(index) = restarted {
        cluster.kill(index)?;
        cluster.restart(index)?;
        if form.access != Access::Open {
            comes_back(cluster, index, "in the flood")?;
        }
    }
    floods.iter().chain(at_agent.as_ref().map(Flooded::flood)).try_for_each(said)?;
    drop(floods);
    at_agent.map_or(Ok(()), Flooded::end)?;
    // Without TLS the flood may hold all calls of a method, the status among them (docs/operating/doors.md).
    if let Some(index) = restarted.filter(|_| form.access == Access::Open) {
        comes_back(cluster, index, "after the flood")?;
    }
    // A leader that was lost in the flood has left its term behind.
    let now_led = leaders(cluster)?;
    wait_until(form.calm, || false);
    let after = resident(cluster, &watched)?;
    let resident = watched.iter().enumerate().map(|(at, index)| (*index, [before[at], most[at], after[at]])).collect();
    Ok(FloodOutcome { led: [led, now_led], resident })
}

/// A gateway that was killed in the flood has what the others have.
fn comes_back(cluster: &Cluster, index: usize, when: &str) -> Result<()> {
    let name = cluster.name(index);
    cluster.caught_up(PATIENCE).with_context(|| format!("{name} comes back {when}"))?;
    note(format!("{name} was killed in the flood, and has caught up {when}"));
    Ok(())
}

/// Prints what a flood has done.
fn said(flood: &Flood) -> Result<()> {
    let counts = flood.counts();
    let [opened, closed, refused, bytes] =
        [&counts.opened, &counts.closed, &counts.refused, &counts.bytes].map(|count| count.load(Ordering::Relaxed));
    let mib = bytes >> 20;
    note(format!(
        "hostile: {opened} connections made, {closed} closed by the gateway, {refused} not taken, {mib} MiB sent"
    ));
    anyhow::ensure!(closed > 0, "the gateways closed no hostile connection: was there a flood?");
    Ok(())
}

/// The flood at the serving gateway, that at the others, and that at an agent.
fn begin(
    targets: Vec<(usize, Vec<Target>)>,
    serving: usize,
    agent: Option<&Agent>,
    each: usize,
) -> Result<(Vec<Flood>, Option<Flooded<'_>>)> {
    let doors = targets.iter().map(|(_, doors)| doors.len()).sum::<usize>() + agent.iter().count();
    let files = raise_files()?;
    let room = usize::try_from(files.saturating_sub(OTHER_FILES))? / doors.max(1);
    anyhow::ensure!(room >= 100, "the limit of open files is {files}: raise it (ulimit -Hn)");
    let each = each.min(room);
    for way in targets.first().into_iter().flat_map(|(_, doors)| doors).flat_map(|door| &door.ways) {
        note(format!("hostile: {}", way.name));
    }
    let (here, others): (Vec<_>, Vec<_>) = targets.into_iter().partition(|(index, _)| *index == serving);
    let all =
        |part: Vec<(usize, Vec<Target>)>| -> Vec<Target> { part.into_iter().flat_map(|(_, doors)| doors).collect() };
    note(format!("{each} hostile clients at each door of the serving gateway, {} at those of the others", each / 3));
    let floods = vec![Flood::start(all(here), each)?, Flood::start(all(others), each / 3)?];
    Ok((floods, agent.map(|agent| agent.flooded(each)).transpose()?))
}

/// Raises the limit of open files of this process as far as it may be. Returns it.
fn raise_files() -> Result<u64> {
    let before = getrlimit(Resource::Nofile);
    if before.current != before.maximum {
        setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum })?;
    }
    Ok(before.maximum.unwrap_or(1 << 20))
}

fn resident(cluster: &Cluster, of: &[usize]) -> Result<Vec<u64>> {
    let one = |index: &usize| {
        let bytes = process::resident_bytes(cluster.gateways[*index].pid);
        bytes.with_context(|| format!("no memory figure of {}", cluster.name(*index)))
    };
    of.iter().map(one).collect()
}

/// A gateway that leads no group: its end costs nobody a leader.
fn follower(cluster: &Cluster, serving: usize, led: &[[u64; 3]]) -> Result<usize> {
    for index in cluster.others(serving) {
        let member = cluster.member(index)?;
        if led.iter().all(|[_, leader, _]| *leader != member) {
            return Ok(index);
        }
    }
    anyhow::bail!("every gateway leads a group: {led:?} (group, leader, term)")
}

/// Group, leader and term of each group.
fn leaders(cluster: &Cluster) -> Result<Vec<[u64; 3]>> {
    let status = cluster.holdfast(&["cluster", "status"])?;
    let groups = status["groups"].as_array().context("status without groups")?;
    let number = |group: &serde_json::Value, field: &str| {
        group[field].as_u64().with_context(|| format!("no {field} in {group}"))
    };
    let of = |group| anyhow::Ok([number(group, "group")?, number(group, "leader")?, number(group, "term")?]);
    groups.iter().map(of).collect()
}

/// A command and a new connection of the host. Returns how long both took.
fn gets_in(cluster: &Cluster, host: &Host, number: usize) -> Result<Duration> {
    let begun = Instant::now();
    again("a command", || cluster.holdfast(&["lease", "show", SET]).map(drop))?;
    let generation = u32::try_from(number)? * TRIES + 1;
    let mut tries = 0;
    again("a host with a token", || {
        tries += 1;
        host.writes_once(generation + tries, WRITTEN, BLOCK)
    })?;
    Ok(begun.elapsed())
}

fn again(what: &str, mut ask: impl FnMut() -> Result<()>) -> Result<()> {
    let mut last = None;
    for _ in 0..TRIES {
        match ask() {
            Ok(()) => return Ok(()),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("never asked")?.context(format!("{what} does not get in beside the flood")))
}

impl FloodOutcome {
    fn check(&self, cluster: &Cluster) -> Result<()> {
        for (index, bytes) in &self.resident {
            let [before, most, after] = bytes.map(|bytes| bytes >> 20);
            let name = cluster.name(*index);
            note(format!(
                "{name}: {before} MiB resident before the flood, at most {most} MiB in it, {after} MiB after"
            ));
            let limit = before + (GROWTH_MAX >> 20);
            anyhow::ensure!(most <= limit, "{name}: {most} MiB resident in the flood, expected at most {limit}");
        }
        let [before, after] = &self.led;
        anyhow::ensure!(
            before == after,
            "a leader was lost: found {after:?} (group, leader, term), expected {before:?}"
        );
        Ok(())
    }
}
