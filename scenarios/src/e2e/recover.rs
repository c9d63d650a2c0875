//! All gateways and all their disks are lost. A new cluster is made from the S3 server's data, up to the printed index.
//! The old disks, found again, serve nothing; a recovery from a cluster that still runs takes its set away from it.
//! Snapshots and schedule are recovered each time. Also: a recovery that is killed halfway, and a flipped byte that
//! `verify` reports.

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET, VOLUME, free_ports};
use crate::cmd::{cmd, tail};
use crate::nbd::{Client, Uri, pattern, tag_of};
use crate::process::{POLL, Proc, Signal, wait_until};
use crate::s3::S3;
use crate::say::note;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const BLOCK: usize = 4096;
/// Number of blocks, which are overwritten in turn: more writes than blocks, so that a later state differs from an
/// earlier one in every block.
pub(super) const BLOCKS: u64 = 512;
const LIMIT: Duration = Duration::from_secs(90);
pub(super) const REFUSED: i32 = 3;
const DAMAGED: i32 = 8;
pub(super) const GONE: &str = "--i-know-the-old-cluster-is-gone";
/// A manual snapshot, and the schedule, which takes one at once and then no more.
const KEPT: &str = "kept";
const SCHEDULE: &str = "300dx3";

/// One writer's writes, numbered; write `n` goes to block `n % BLOCKS`.
pub(super) struct Ledger {
    pub(super) written: u64,
}

impl Ledger {
    pub(super) fn write(&mut self, client: &mut Client, count: u64) -> Result<()> {
        for _ in 0..count {
            let n = self.written + 1;
            let offset = n % BLOCKS * BLOCK as u64;
            client.write(offset, &pattern(n, offset, BLOCK)).with_context(|| format!("write {n}"))?;
            self.written = n;
        }
        client.flush()?;
        Ok(())
    }

    /// The number of the last write in the volume. Checks that all writes up to it are there, and none after it (R4).
    pub(super) fn prefix(client: &mut Client) -> Result<u64> {
        let mut tags = Vec::new();
        for block in 0..BLOCKS {
            let offset = block * BLOCK as u64;
            tags.push(tag_of(&client.read(offset, BLOCK as u32)?, offset)?);
        }
        let last = tags.iter().copied().max().unwrap_or(0);
        for (block, found) in (0..BLOCKS).zip(&tags) {
            let expected = last.saturating_sub((last + BLOCKS - block) % BLOCKS);
            anyhow::ensure!(*found == expected, "R4: block {block} shows write {found}, expected {expected} of {last}");
        }
        Ok(last)
    }
}

/// Limit until new gateways listen, on a busy machine.
const LISTENS: Duration = Duration::from_secs(120);

/// Gateways that this scenario starts itself, each with its own settings, data and ports.
pub(super) struct Hand<'a> {
    lab: &'a Lab,
    env: Vec<(String, String)>,
    doors: Vec<String>,
    exports: Vec<Uri>,
    procs: Vec<Proc>,
}

impl<'a> Hand<'a> {
    /// One process per command line.
    pub(super) fn start(lab: &'a Lab, cluster: &Known, name: &str, args: &[Vec<String>]) -> Result<Self> {
        let (env, doors, exports) = (cluster.env.clone(), cluster.doors.clone(), cluster.exports.clone());
        let mut hand = Self { lab, env, doors, exports, procs: Vec::new() };
        for (number, args) in args.iter().enumerate() {
            let mut command = cmd(&lab.bin).args(["gateway", "run"]).args(args);
            for (key, value) in &hand.env {
                command = command.env(key, value);
            }
            let log = lab.dir.join(format!("{name}{}.log", number + 1));
            hand.procs.push(Proc::spawn("holdfast gateway", command.into_command(), &log)?);
        }
        Ok(hand)
    }

    /// New gateways with the addresses of the lost ones, and empty disks. Their logs have this name.
    pub(super) fn anew(lab: &'a Lab, known: &Known, name: &str) -> Result<Self> {
        for lost in &known.names {
            std::fs::rename(known.dir.join(lost), lab.dir.join(format!("lost-before-{name}-{lost}")))?;
        }
        let new = Self::start(lab, known, name, &known.args(&known.dir))?;
        let up = wait_until(LISTENS, || known.doors.iter().all(|door| std::net::TcpStream::connect(door).is_ok()));
        anyhow::ensure!(up, "the new gateways do not listen");
        Ok(new)
    }

    /// Recovers all sets that are in a store, whose old gateways are gone.
    pub(super) fn recover(&self, known: &Known, store: &str, key_file: &str) -> Result<(i32, Value)> {
        let plan = known.plan(&self.lab.dir.join("new.toml"))?;
        let asked = ["cluster", "recover", "--from-store", store, "--config", &plan, "--key-file", key_file];
        self.holdfast(&[&asked[..], &["--timeout", "2m", GONE]].concat())
    }

    /// Runs `holdfast ARGS --output json`; returns exit code and output, or standard error if standard output is empty.
    pub(super) fn holdfast(&self, args: &[&str]) -> Result<(i32, Value)> {
        holdfast(self.lab, &self.env, &self.doors, args)
    }

    /// A connection to whichever serves the volume.
    pub(super) fn connect(&self) -> Result<Client> {
        self.connect_to(&self.exports)
    }

    /// The number of the last write in a snapshot.
    fn shown_by(&self, snapshot: &str) -> Result<u64> {
        let export = format!("{SET}/{VOLUME}@{snapshot}");
        let exports: Vec<Uri> = self.exports.iter().map(|uri| uri.with_export(&export)).collect();
        Ledger::prefix(&mut self.connect_to(&exports)?).with_context(|| format!("snapshot {snapshot}"))
    }

    fn connect_to(&self, exports: &[Uri]) -> Result<Client> {
        let begun = Instant::now();
        let mut last = String::new();
        while begun.elapsed() < TAKEOVER_LIMIT {
            for uri in exports {
                match Client::connect(uri, Duration::from_secs(30)) {
                    Ok(client) => return Ok(client),
                    Err(e) => last = e.to_string(),
                }
            }
            std::thread::sleep(POLL);
        }
        let asked = exports.first().map_or_else(String::new, Uri::to_string);
        bail!("no gateway serves {asked}, or the same elsewhere, within {TAKEOVER_LIMIT:?}: {last}")
    }

    pub(super) fn kill(mut self) -> Result<()> {
        self.procs.iter_mut().try_for_each(|p| p.stop(Signal::KILL, Duration::from_secs(10)))
    }
}

/// External data of a cluster's gateways.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) dir: PathBuf,
    pub(super) names: Vec<String>,
    regions: Vec<String>,
    pub(super) doors: Vec<String>,
    pub(super) exports: Vec<Uri>,
    pub(super) env: Vec<(String, String)>,
    pub(super) store: String,
}

impl Known {
    pub(super) fn of(cluster: &Cluster, s3: &S3) -> Result<Self> {
        Self::on(cluster, s3.url(), s3.env())
    }

    /// Whose sets lie at `store`.
    pub(super) fn on(cluster: &Cluster, store: String, env: Vec<(String, String)>) -> Result<Self> {
        let status = cluster.holdfast(&["cluster", "status"])?;
        let members = status["members"].as_array().context("status without members")?;
        let text = |v: &Value| v.as_str().map(str::to_owned).context("a member without name or region");
        let names: Vec<String> = (0..cluster.gateways.len()).map(|at| cluster.name(at)).collect();
        let regions = names
            .iter()
            .map(|n| text(&members.iter().find(|m| m["member"]["name"] == n.as_str()).context("a member is missing")?["member"]["region"]))
            .collect::<Result<_>>()?;
        let doors = cluster.apis();
        let (dir, exports) = (cluster.options.dir.clone(), cluster.exports());
        Ok(Self { dir, names, regions, doors, exports, env, store })
    }

    pub(super) fn key(&self) -> String {
        self.dir.join("cluster.key").display().to_string()
    }

    /// The command lines of its gateways, with the data in `data`.
    pub(super) fn args(&self, data: &Path) -> Vec<Vec<String>> {
        let line = |name: &String| {
            let config = self.dir.join(format!("{name}.toml")).display().to_string();
            vec!["--config".into(), config, "--data-dir".into(), data.join(name).display().to_string()]
        };
        self.names.iter().map(line).collect()
    }

    pub(super) fn plan(&self, path: &Path) -> Result<String> {
        let rows = self.names.iter().zip(&self.regions).zip(&self.doors);
        let text: String =
            rows.map(|((n, r), d)| format!("[[gateways]]\nname = {n:?}\nregion = {r:?}\napi = {d:?}\n")).collect();
        std::fs::write(path, text)?;
        Ok(path.display().to_string())
    }
}

pub(super) fn holdfast(lab: &Lab, env: &[(String, String)], doors: &[String], args: &[&str]) -> Result<(i32, Value)> {
    let mut command = cmd(&lab.bin).args(args).args(["--output", "json", "--api", &doors.join(",")]);
    for (key, value) in env {
        command = command.env(key, value);
    }
    let output = command.into_command().output().with_context(|| args.join(" "))?;
    let said = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
    let said = String::from_utf8_lossy(said);
    let line = said.lines().last().unwrap_or_default();
    let value =
        serde_json::from_str(line).with_context(|| format!("{}: no JSON: {}", args.join(" "), tail(&said, 5)))?;
    Ok((output.status.code().unwrap_or(-1), value))
}

/// The command must end with 0.
pub(super) fn must(said: (i32, Value), what: &str) -> Result<Value> {
    anyhow::ensure!(said.0 == 0, "{what}: exit code {}, {}", said.0, said.1);
    Ok(said.1)
}

fn number(value: &Value, what: &str) -> Result<u64> {
    value.as_u64().with_context(|| format!("{what}: found {value}, expected a number"))
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    let s3 = S3::start(&lab.dir)?;
    let mut cluster = lab.cluster_quiet("64MiB", s3.url(), s3.env())?;
    let known = Known::of(&cluster, &s3)?;
    let mut ledger = Ledger { written: 0 };
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    ledger.write(&mut client, BLOCKS + 300)?;
    checkpoint(&cluster)?;
    let store = known.store.as_str();
    let key = known.key();
    let verify = ["verify", "--store", store, "--key-file", &key];
    let clean = must(holdfast(lab, &known.env, &known.doors, &verify)?, "verify")?;
    note(format!("verify: {} extents clean", clean["sets"][0]["extents"]));
    flipped_byte(lab, &known, &s3, &verify)?;
    let snapshots = take_snapshots(&cluster)?;
    let shown = ledger.written;
    ledger.write(&mut client, 200)?;
    let covered = ledger.written;
    let index = checkpoint(&cluster)?;
    // There is no checkpoint meanwhile (`cluster_quiet`), so nothing is replaced.
    let clean = must(holdfast(lab, &known.env, &known.doors, &verify)?, "verify with snapshots")?;
    let read = clean["sets"][0]["snapshots"].as_u64();
    anyhow::ensure!(read >= Some(snapshots.len() as u64), "verify read {read:?} snapshots, expected {snapshots:?}");
    note(format!(
        "checkpoint up to index {index}; snapshots {snapshots:?} show the first {shown} of its {covered} writes"
    ));
    ledger.write(&mut client, 700)?;
    drop(client);
    note(format!("{covered} writes in the checkpoint, {} after it; all gateways killed, all disks gone", 700));
    cluster.kill_all()?;
    let aside = lab.dir.join("aside");
    std::fs::create_dir_all(&aside)?;
    for name in &known.names {
        std::fs::rename(known.dir.join(name), aside.join(name))?;
    }

    // New gateways with empty disks.
    let new = Hand::start(lab, &known, "new", &known.args(&known.dir))?;
    let plan = known.plan(&lab.dir.join("new.toml"))?;
    let recover =
        ["cluster", "recover", "--from-store", store, "--config", &plan, "--key-file", &key, "--timeout", "2m"];
    refused_without_its_root(&new, &s3, &[&recover[..], &[GONE]].concat())?;
    recover_with_a_crash(lab, &new, &recover)?;
    let said = must(new.holdfast(&[&recover[..], &[GONE]].concat())?, "recover")?;
    let set = &said["sets"][0];
    anyhow::ensure!(
        set["index"] == index && set["generation"] == 2,
        "R4: restored {set}, expected index {index}, generation 2"
    );
    let back: Vec<&str> = set["snapshots"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let none_left_out = set["snapshots_left_out"].as_array().is_some_and(Vec::is_empty);
    anyhow::ensure!(
        back == snapshots && none_left_out && set["snapshot_schedule"] == SCHEDULE,
        "SET-S15: of the snapshots {snapshots:?} and the schedule {SCHEDULE} came back: {set}"
    );
    let again = must(new.holdfast(&recover)?, "recover once more")?;
    anyhow::ensure!(
        again["sets"][0]["generation"] == 2 && again["sets"][0]["raised"] == false,
        "not idempotent: {again}"
    );
    let mut client = new.connect()?;
    let found = Ledger::prefix(&mut client)?;
    anyhow::ensure!(found == covered, "R4: the volume shows writes up to {found}, the checkpoint had {covered}");
    for snapshot in &snapshots {
        let found = new.shown_by(snapshot)?;
        anyhow::ensure!(found == shown, "R4: snapshot {snapshot} shows writes up to {found}, it was taken at {shown}");
    }
    note(format!(
        "recovered: index {}, generation {}, writes 1 to {found}, none after",
        set["index"], set["generation"]
    ));
    ledger.written = found;
    ledger.write(&mut client, 200)?;
    drop(client);
    must(new.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?, "checkpoint of the new life")?;
    let second = ledger.written;
    must(new.holdfast(&verify)?, "verify of the new life")?;
    new.kill()?;

    old_disks_serve_nothing(lab, &known, &aside)?;

    // The new life again, and a recovery that takes the set away from it while it serves.
    let new = Hand::start(lab, &known, "again", &known.args(&known.dir))?;
    let mut client = new.connect()?;
    let found = Ledger::prefix(&mut client)?;
    anyhow::ensure!(found == second, "the second life shows writes up to {found}, expected {second}");
    // Checkpoints and a restart later, and in the third life.
    let found = new.shown_by(KEPT)?;
    anyhow::ensure!(
        found == shown,
        "R4: snapshot {KEPT} shows writes up to {found} in the second life, expected {shown}"
    );
    taken_while_it_serves(lab, &known, &mut client, second, shown)?;
    let (code, said) = new.holdfast(&["lease", "acquire", SET, "--owner", "db9", "--timeout", "30s"])?;
    anyhow::ensure!(code == REFUSED && said.to_string().contains("fenced in its store"), "exit code {code}: {said}");
    new.kill()
}

/// Index of a checkpoint that contains everything acknowledged before.
fn checkpoint(cluster: &Cluster) -> Result<u64> {
    let asked = cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?;
    let index = number(&asked["checkpoint_index"], "checkpoint_index")?;
    anyhow::ensure!(number(&asked["at_index"], "at_index")? <= index, "the checkpoint is older than the call: {asked}");
    Ok(index)
}

/// Takes one by hand and one by a schedule; returns the names.
fn take_snapshots(cluster: &Cluster) -> Result<Vec<String>> {
    cluster.holdfast(&["snapshot", "create", &format!("{SET}@{KEPT}"), "--timeout", "90s"])?;
    cluster.holdfast(&["set", "schedule", SET, SCHEDULE])?;
    let mut last = Value::Null;
    let taken = wait_until(LIMIT, || {
        last = cluster.holdfast(&["snapshot", "list", SET]).unwrap_or(Value::Null);
        let all = last["snapshots"].as_array().cloned().unwrap_or_default();
        all.len() > 1 && all.iter().all(|one| one["pending"] == false)
    });
    anyhow::ensure!(taken, "the schedule takes no snapshot: {last}");
    let names = last["snapshots"].as_array().into_iter().flatten().filter_map(|one| one["name"].as_str());
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

/// A byte of a segment is flipped: verify names it, and reports no fault when it is flipped back.
fn flipped_byte(lab: &Lab, known: &Known, s3: &S3, verify: &[&str]) -> Result<()> {
    let folder = s3.folder().join("sets/1/seg");
    let mut files: Vec<(u64, PathBuf)> = std::fs::read_dir(&folder)?
        .map(|entry| entry.and_then(|e| Ok((e.metadata()?.len(), e.path()))))
        .collect::<std::io::Result<_>>()?;
    files.sort();
    let (len, file) = files.pop().with_context(|| format!("no segment in {}", folder.display()))?;
    let name = file.file_name().and_then(|n| n.to_str()).context("a segment without a name")?.to_owned();
    let at = len / 2;
    flip(&file, at)?;
    let (code, said) = holdfast(lab, &known.env, &known.doors, verify)?;
    flip(&file, at)?;
    let damaged = said["sets"][0]["damaged"].as_array().context("no list of damage")?;
    anyhow::ensure!(code == DAMAGED && damaged.len() == 1, "R9: exit code {code}, {said}");
    let place = &damaged[0];
    let (lba, sectors) = (number(&place["lba"], "lba")?, number(&place["sectors"], "sectors")?);
    let inside = sectors > 0 && lba + sectors <= BLOCKS * BLOCK as u64 / 512;
    let there = place["object_bytes"].as_array().is_some_and(|b| (b[0].as_u64()..b[1].as_u64()).contains(&Some(at)));
    let named = place["key"].as_str().is_some_and(|k| k.ends_with(&name)) && place["volume"] == VOLUME;
    anyhow::ensure!(inside && there && named, "R9: byte {at} of {name} was flipped, verify names {place}");
    must(holdfast(lab, &known.env, &known.doors, verify)?, "verify after the byte was flipped back")?;
    note(format!("byte {at} of a segment flipped: verify names {SET}/{VOLUME} sectors {lba}+{sectors}"));
    Ok(())
}

pub(super) fn flip(path: &Path, at: u64) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ 0x10], at)?;
    Ok(())
}

/// All objects exist except the root: recovery fences nothing for a set that it cannot open.
fn refused_without_its_root(new: &Hand<'_>, s3: &S3, recover: &[&str]) -> Result<()> {
    let folder = s3.folder().join("sets/1/root");
    let aside = s3.folder().join("sets/1/aside");
    std::fs::rename(&folder, &aside).with_context(|| folder.display().to_string())?;
    let refused = new.holdfast(recover);
    std::fs::rename(&aside, &folder)?;
    let (code, said) = refused?;
    let words = said.to_string();
    let named = words.contains("cannot be read") && words.contains("nothing was changed");
    anyhow::ensure!(code == REFUSED && named, "recover without the root: exit code {code}, {said}");
    Ok(())
}

/// Recovery is refused without the flag; with it, it is killed after it has raised the generation.
fn recover_with_a_crash(lab: &Lab, new: &Hand<'_>, recover: &[&str]) -> Result<()> {
    let (code, said) = new.holdfast(recover)?;
    let told = said.to_string().contains(&format!("{SET}@{KEPT}"));
    anyhow::ensure!(code == REFUSED && told, "recover without {GONE}: exit code {code}, {said}");
    let mut command = cmd(&lab.bin).args(recover).args([GONE, "--api", &new.doors.join(",")]);
    for (key, value) in &new.env {
        command = command.env(key, value);
    }
    let log = lab.dir.join("recover.log");
    let mut killed = Proc::spawn("holdfast cluster recover", command.into_command(), &log)?;
    let raised = || std::fs::read_to_string(&log).unwrap_or_default().contains("generation 2 in the store");
    anyhow::ensure!(wait_until(LIMIT, raised), "recover raised nothing: {}", crate::cmd::tail_of(&log, 8));
    killed.stop(Signal::KILL, Duration::from_secs(10))
}

/// The old cluster's disks are back: its gateways elect a leader and serve nothing.
fn old_disks_serve_nothing(lab: &Lab, known: &Known, aside: &Path) -> Result<()> {
    let old = Hand::start(lab, known, "old", &known.args(aside))?;
    let mut last = Value::Null;
    let led = wait_until(LIMIT, || {
        last = old.holdfast(&["cluster", "status"]).map_or(Value::Null, |(_, said)| said);
        let groups = last["groups"].as_array();
        groups.is_some_and(|groups| groups.len() == 2 && groups.iter().all(|g| g["leader"].as_u64().unwrap_or(0) > 0))
    });
    anyhow::ensure!(led, "the old gateways elect no leader, so this tests nothing: {last}");
    // Each gateway has read the store, however slow it was: at its start, before any request for the set.
    let noticed = wait_until(LIMIT, || {
        last = old.holdfast(&["cluster", "status"]).map_or(Value::Null, |(_, said)| said);
        let fenced = |m: &Value| m["node"]["not_ready"].as_str().is_some_and(|why| why.contains("fenced in its store"));
        last["members"].as_array().is_some_and(|members| members.iter().all(fenced))
    });
    anyhow::ensure!(noticed, "HEAD-H1: the old gateways have not noticed after {LIMIT:?}: {last}");
    let (code, said) = old.holdfast(&["lease", "acquire", SET, "--owner", "db1", "--timeout", "30s"])?;
    anyhow::ensure!(code == REFUSED && said.to_string().contains("fenced in its store"), "exit code {code}: {said}");
    for uri in &old.exports {
        if Client::connect(uri, Duration::from_secs(5)).is_ok() {
            bail!("HEAD-H1: an old gateway serves {uri}");
        }
    }
    note("the old disks, found again: a leader of the set, and nothing served");
    old.kill()
}

/// A third life begins at another gateway while the second one serves: its client is disconnected, and accepted by none
/// of its gateways again.
fn taken_while_it_serves(lab: &Lab, known: &Known, client: &mut Client, second: u64, shown: u64) -> Result<()> {
    let port = free_ports(4)?;
    let address = |at: u16| format!("127.0.0.1:{}", port + at);
    let third = Known {
        dir: lab.dir.join("third"),
        names: vec!["third".into()],
        doors: vec![address(0)],
        exports: vec![Uri::parse(&format!("nbd://{}/{SET}/{VOLUME}", address(2)))?],
        ..known.clone()
    };
    let data = third.dir.display().to_string();
    let key = known.key();
    let mut args: Vec<String> =
        ["--name", "third", "--region", &known.regions[0], "--data-dir", &data].map(String::from).into();
    args.extend(["--key-file", &key, "--plain-exports"].map(String::from));
    for (at, flag) in (0..).zip(["--api-listen", "--peer-listen", "--nbd-listen", "--http-listen"]) {
        args.extend([flag.to_string(), address(at)]);
    }
    let gateway = Hand::start(lab, &third, "third", &[args])?;
    let plan = third.plan(&lab.dir.join("third.toml"))?;
    let store = known.store.as_str();
    let recover =
        ["cluster", "recover", "--from-store", store, "--config", &plan, "--key-file", &key, "--timeout", "2m", GONE];
    let said = must(gateway.holdfast(&recover)?, "recover from a cluster that lives")?;
    anyhow::ensure!(said["sets"][0]["generation"] == 3, "{said}");
    // No further answer: `recover` has waited for that. The connection was idle, so no read of the head was due for it.
    let late = client.write(0, &pattern(1, 0, BLOCK));
    anyhow::ensure!(late.is_err(), "HEAD-H1: the second life acknowledged a write after `recover` had ended");
    let mut new = gateway.connect()?;
    let found = Ledger::prefix(&mut new)?;
    anyhow::ensure!(found == second, "the third life shows writes up to {found}, expected {second}");
    let found = gateway.shown_by(KEPT)?;
    anyhow::ensure!(
        found == shown,
        "R4: snapshot {KEPT} shows writes up to {found} in the third life, expected {shown}"
    );
    must(
        gateway.holdfast(&["snapshot", "delete", &format!("{SET}@{KEPT}"), "--yes"])?,
        "delete a snapshot of another life",
    )?;
    note(format!(
        "a third life took the set from a serving one, which answered not one write after that ({})",
        late.err().map_or_else(String::new, |e| e.to_string())
    ));
    drop(new);
    gateway.kill()
}
