//! A set moves from one S3 server to three others under load, while the serving gateway is killed and two of the new
//! servers are down for a while; an earlier change is cancelled. The first server is emptied. One of the three dies and
//! is replaced; then two are drained. At each stage every acknowledged write is there, and connections close only at
//! the kill. The old server says where the set went. Then the gateways and their disks are lost, and the set is
//! recovered from its only store and moved once more.

use super::blocks::Load;
use super::recover::{Hand, Known, REFUSED, holdfast, must};
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET};
use crate::process::wait_until;
use crate::s3::S3;
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

const WRITERS: u64 = 4;
/// 20 MiB in all, more than a segment holds: copied, and read back uncached, several times.
const BLOCKS_EACH: u64 = 1280;
const LIMIT: Duration = Duration::from_secs(180);
const WAIT: &str = "--wait=3m";
const PATIENCE: Duration = Duration::from_secs(30);
/// Time until a dead store is given up, instead of a minute, but longer than requests to it are retried.
const LET_GO: &str = "store.let_go_ms=15000";

pub(super) fn run(lab: &Lab) -> Result<()> {
    let servers = (1..=5).map(|at| S3::start(&lab.dir.join(format!("store{at}")))).collect::<Result<Vec<_>>>()?;
    let urls: Vec<String> = servers.iter().map(S3::url).collect();
    let cluster = lab.cluster_as("64MiB", Some(urls[0].clone()), &[LET_GO], servers[0].env())?;
    let known = Known::on(&cluster, urls[0].clone(), servers[0].env())?;
    let mut stage = Stage { lab, cluster, known, servers, urls, load: Load::new(WRITERS, BLOCKS_EACH).reading() };
    stage.filled()?;
    stage.abandoned()?;
    stage.one_becomes_three()?;
    stage.one_replaced()?;
    stage.back_to_one()?;
    stage.recovered()
}

struct Stage<'a> {
    lab: &'a Lab,
    cluster: Cluster,
    known: Known,
    /// The first has the set at first; the set moves to the next three, and one of those is replaced by the last.
    servers: Vec<S3>,
    urls: Vec<String>,
    load: Load,
}

/// A running cluster's report on the set's stores.
fn shown(cluster: &Cluster) -> Result<Value> {
    cluster.holdfast(&["set", "stores", "show", SET, "--timeout", "10s"])
}

fn checkpoint(cluster: &Cluster) -> Result<()> {
    let asked = cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"]).context("checkpoint")?;
    anyhow::ensure!(asked["checkpoint_index"].as_u64() >= asked["at_index"].as_u64(), "no checkpoint: {asked}");
    Ok(())
}

/// Waits until the set's stores are shown as `is` looks for.
fn until(cluster: &Cluster, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut last = Value::Null;
    let mut why = String::new();
    let seen = wait_until(LIMIT, || {
        match shown(cluster) {
            Ok(said) => last = said,
            Err(error) => why = format!("{error:#}"),
        }
        is(&last)
    });
    anyhow::ensure!(seen, "{what}: not after {LIMIT:?}: {last}; {why}");
    Ok(last)
}

/// Half filled: one of the new stores has everything, the two others that are needed are down.
fn half(said: &Value) -> bool {
    let new = &said["stores"][1]["health"];
    said["phase"] == "filling" && new["compared"] == true && new["missing_objects"] == 0
}

impl Stage<'_> {
    fn whole(&mut self, when: &str) -> Result<()> {
        let (_, mut client) = self.cluster.connect(TAKEOVER_LIMIT).with_context(|| when.to_owned())?;
        self.load.check(&mut client).with_context(|| format!("R1: {when}"))?;
        client.disconnect();
        Ok(())
    }

    fn ask(&self, args: &[&str]) -> Result<(i32, Value)> {
        holdfast(self.lab, &self.known.env, &self.known.doors, args)
    }

    fn empty(&self, at: usize) -> Result<()> {
        let folder = self.servers[at].folder();
        std::fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())
    }

    fn placed(&self, text: &str) -> Result<()> {
        let said = shown(&self.cluster)?;
        anyhow::ensure!(said["phase"] == "settled" && said["placement"] == text, "expected {text}, found {said}");
        Ok(())
    }

    /// Every block is written, and the first checkpoint exists.
    fn filled(&mut self) -> Result<()> {
        let (_, mut client) = self.cluster.connect(TAKEOVER_LIMIT)?;
        self.load.fill(&mut client)?;
        client.disconnect();
        checkpoint(&self.cluster)
    }

    /// Two of three new stores are down: no progress, users notice nothing, and the change is cancelled.
    fn abandoned(&mut self) -> Result<()> {
        let urls = self.urls.clone();
        let three = ["--store", &urls[1], "--store", &urls[2], "--store", &urls[3]];
        let begin = [&["set", "stores", "change", SET, "--yes"][..], &three].concat();
        let (cluster, servers) = (&self.cluster, &mut self.servers);
        let looked = cluster.holdfast(&[&begin[..], &["--dry-run"]].concat())?;
        let settled = shown(cluster)?["phase"] == "settled";
        anyhow::ensure!(looked["changed"] == true && settled, "--dry-run changed something: {looked}");
        self.load.run(&cluster.exports(), |progress| {
            let again = progress.reconnected();
            let said = cluster.holdfast(&begin)?;
            servers[2].stop()?;
            servers[3].stop()?;
            let filling = said["placement"].as_str().is_some_and(|text| text.contains(" | "));
            anyhow::ensure!(said["changed"] == true && said["done"] == false && filling, "not begun: {said}");
            let waits =
                |said: &Value| said["phase"] == "filling" && said["waits"].as_str().is_some_and(|why| !why.is_empty());
            let said = until(cluster, "what a change waits for is told", waits)?;
            let parts: Vec<&str> =
                said["stores"].as_array().into_iter().flatten().filter_map(|s| s["part"].as_str()).collect();
            anyhow::ensure!(parts == ["leaves", "joins", "joins", "joins"], "{said}");
            // So that some objects are left there by the cancelled change.
            until(cluster, "one of three new stores is filled", half)?;
            // Writes are answered, and wait in the journal.
            let answered = progress.answered();
            let on = wait_until(PATIENCE, || progress.answered() > answered + 200);
            anyhow::ensure!(on, "R8: writers do not get on while new stores are away");
            anyhow::ensure!(shown(cluster)?["phase"] == "filling", "decided with one of three new stores there");
            let back = cluster.holdfast(&["set", "stores", "abandon", SET])?;
            anyhow::ensure!(back["placement"] == urls[0].as_str() && back["changed"] == true, "{back}");
            checkpoint(cluster).context("after a change that was abandoned")?;
            anyhow::ensure!(progress.reconnected() == again, "R8: connections closed in a change that was abandoned");
            Ok(())
        })?;
        servers[2].resume()?;
        servers[3].resume()?;
        self.placed(&self.urls[0])?;
        self.whole("after a change that was abandoned")?;
        // A store that this cluster has not marked as its own counts as another's.
        let left = found_below(&self.servers[1].folder(), "joined").context("no note in a store that was to be")?;
        std::fs::remove_file(&left).with_context(|| left.display().to_string())?;
        let (code, said) = self.ask(&begin)?;
        let named = said.to_string().contains("expected nothing below");
        anyhow::ensure!(code == REFUSED && named, "a store that is not empty: exit code {code}, {said}");
        for at in 1..=3 {
            if self.servers[at].folder().exists() {
                self.empty(at)?;
            }
        }
        note("a change was abandoned while two new stores were away; all is as it was");
        Ok(())
    }

    /// One store becomes three others; the serving gateway is killed while they are half filled.
    fn one_becomes_three(&mut self) -> Result<()> {
        let three = ["--store", &self.urls[1], "--store", &self.urls[2], "--store", &self.urls[3]];
        let begin = [&["set", "stores", "change", SET, "--yes"][..], &three].concat();
        let text = format!("c=2 w=2 {}", self.urls[1..4].join(" "));
        let (cluster, servers) = (&mut self.cluster, &mut self.servers);
        let exports = cluster.exports();
        let closed = self.load.run(&exports, |progress| {
            let again = progress.reconnected();
            cluster.holdfast(&begin)?;
            servers[2].stop()?;
            servers[3].stop()?;
            until(cluster, "one of three new stores is filled", half)?;
            anyhow::ensure!(progress.reconnected() == again, "R8: connections closed before the kill");
            let leader = cluster.holdfast(&["set", "show", SET])?["leader"]["name"].as_str().map(str::to_owned);
            let serving = (0..3).find(|at| Some(cluster.name(*at)) == leader).context("the set has no leader")?;
            cluster.kill(serving)?;
            servers[2].resume()?;
            servers[3].resume()?;
            let answered = progress.answered();
            let on = wait_until(TAKEOVER_LIMIT, || progress.answered() > answered + 100);
            anyhow::ensure!(on, "no gateway took over from {leader:?}");
            let closed = progress.reconnected();
            until(cluster, "one store became three", |said| said["phase"] == "settled")?;
            checkpoint(cluster).context("in three stores")?;
            cluster.restart(serving)?;
            cluster.caught_up(LIMIT)?;
            anyhow::ensure!(progress.reconnected() == closed, "R8: connections closed after the kill");
            note(format!("{} killed in the middle of the filling; the set is in three stores", cluster.name(serving)));
            Ok(closed)
        })?;
        note(format!(
            "{} pairs answered so far, {closed} connections closed at the kill",
            self.load.progress().answered()
        ));
        self.placed(&text)?;
        // A query at the old store names the set's new stores.
        let key = self.known.key();
        let (code, said) = self.ask(&["verify", "--store", &self.urls[0], "--key-file", &key])?;
        anyhow::ensure!(
            code != 0 && said.to_string().contains(&text),
            "verify of the left store: exit code {code}, {said}"
        );
        self.servers[0].stop()?;
        self.empty(0)?;
        self.whole("in three stores, the first one emptied")?;
        self.each_store(&text)
    }

    /// Each store's own copies are read, and all are there.
    fn each_store(&self, text: &str) -> Result<()> {
        let key = self.known.key();
        let clean = self.ask(&["verify", "--store", text, "--key-file", &key, "--each-store"])?;
        let clean = must(clean, "verify --each-store")?;
        let stores = if text.contains(" w=") { 3 } else { 1 };
        let read = clean["sets"].as_array().map_or(0, Vec::len);
        anyhow::ensure!(read == stores && clean["clean"] == true, "each store's copies: {clean}");
        Ok(())
    }

    /// One of three is lost for good, and another one replaces it.
    fn one_replaced(&mut self) -> Result<()> {
        let text = format!("c=3 w=2 {} {} {}", self.urls[1], self.urls[4], self.urls[3]);
        let (cluster, servers, urls) = (&self.cluster, &mut self.servers, &self.urls);
        self.load.run(&cluster.exports(), |progress| {
            let again = progress.reconnected();
            servers[2].stop()?;
            checkpoint(cluster).context("with one of three stores dead")?;
            let asked = ["set", "stores", "replace", SET, &urls[2], &urls[4], WAIT];
            let (code, said) = holdfast(self.lab, &self.known.env, &self.known.doors, &asked)?;
            anyhow::ensure!(
                code == 6 && shown(cluster)?["phase"] == "settled",
                "without --yes: exit code {code}, {said}"
            );
            let said = cluster.holdfast(&[&asked[..], &["--yes"]].concat()).context("replace a dead store")?;
            anyhow::ensure!(said["done"] == true && said["placement"] == text, "{said}");
            checkpoint(cluster).context("after the replacement")?;
            anyhow::ensure!(progress.reconnected() == again, "R8: connections closed while a store was replaced");
            Ok(())
        })?;
        self.placed(&text)?;
        checkpoint(&self.cluster)?;
        let whole = |said: &Value| {
            let full = |one: &Value| one["health"]["compared"] == true && one["health"]["missing_objects"] == 0;
            said["stores"].as_array().is_some_and(|all| all.len() == 3 && all.iter().all(full))
        };
        until(&self.cluster, "each of the three has everything", whole)?;
        self.whole("one of three stores replaced")?;
        self.each_store(&text)?;
        note("a dead store was replaced; each store's copies are whole");
        Ok(())
    }

    fn back_to_one(&mut self) -> Result<()> {
        let text = format!("c=4 {}", self.urls[1]);
        let (cluster, urls) = (&self.cluster, &self.urls);
        self.load.run(&cluster.exports(), |progress| {
            let again = progress.reconnected();
            let said = cluster.holdfast(&["set", "stores", "drain", SET, &urls[4], &urls[3], "--yes", WAIT])?;
            anyhow::ensure!(said["done"] == true && said["placement"] == text, "{said}");
            checkpoint(cluster).context("in one store again")?;
            anyhow::ensure!(progress.reconnected() == again, "R8: connections closed while stores were drained");
            Ok(())
        })?;
        self.placed(&text)?;
        self.servers[3].stop()?;
        self.servers[4].stop()?;
        self.whole("in one store again, all others away")?;
        checkpoint(&self.cluster)?;
        self.each_store(&text)?;
        note(format!("in one store again; {} pairs answered in all", self.load.progress().answered()));
        Ok(())
    }

    /// All gateways and disks are lost; and again, during a decided change.
    fn recovered(mut self) -> Result<()> {
        let (lab, known, urls) = (self.lab, self.known.clone(), self.urls.clone());
        self.cluster.kill_all()?;
        for at in [0, 3, 4] {
            self.servers[at].resume()?;
        }
        let new = Hand::anew(lab, &known, "new")?;
        let text = format!("c=4 {}", urls[1]);
        // As noted before the drain: those stores exist, and name the set's new stores.
        let old = format!("c=3 w=2 {} {} {}", urls[1], urls[4], urls[3]);
        let (code, said) = new.recover(&known, &old, &known.key())?;
        let named = said.to_string().contains(&text);
        anyhow::ensure!(code == REFUSED && named, "recover from {old}: exit code {code}, {said}");
        let said = must(new.recover(&known, &text, &known.key())?, "recover")?;
        anyhow::ensure!(said["sets"][0]["generation"] == 2, "{said}");
        let mut client = new.connect()?;
        self.load.check(&mut client).context("R4: recovered from the store")?;
        note("recovered from the store that the set is in; the list before that was refused, and named it");
        // The new life changes its stores like the old one, and is lost when either list may be in force.
        self.load.write(&mut client, 50)?;
        client.disconnect();
        let checkpoint = ["set", "checkpoint", SET, "--timeout", "1m"];
        must(new.holdfast(&checkpoint)?, "checkpoint in the new life")?;
        let moved = ["set", "stores", "replace", SET, &urls[1], &urls[0], "--yes"];
        must(new.holdfast(&moved)?, "a change in the new life")?;
        let show = ["set", "stores", "show", SET, "--timeout", "10s"];
        let mut last = Value::Null;
        let ending = wait_until(LIMIT, || {
            last = new.holdfast(&show).map_or(Value::Null, |(_, said)| said);
            // The asked gateway may not know of the change yet.
            last["phase"] == "ending" || last["phase"] == "settled" && last["placement"] != text
        });
        self.servers[0].stop()?;
        let both = format!("{text} => c=5 {}", urls[0]);
        anyhow::ensure!(ending && last["from_store"] == both, "expected {both}, found {last}");
        new.kill()?;
        self.servers[0].resume()?;
        let third = Hand::anew(lab, &known, "third")?;
        let said = must(third.recover(&known, &both, &known.key())?, "recover in the middle of a change")?;
        anyhow::ensure!(said["sets"][0]["generation"] == 3, "{said}");
        let end = format!("c=5 {}", urls[0]);
        let settled = wait_until(LIMIT, || {
            last = third.holdfast(&show).map_or(Value::Null, |(_, said)| said);
            last["phase"] == "settled"
        });
        anyhow::ensure!(settled && last["placement"] == end, "the change did not continue after the recovery: {last}");
        self.servers[1].stop()?;
        let mut client = third.connect()?;
        self.load.check(&mut client).context("R4: recovered in the middle of a change")?;
        client.disconnect();
        must(third.holdfast(&checkpoint)?, "checkpoint in the third life")?;
        let clean = third.holdfast(&["verify", "--store", &end, "--key-file", &known.key(), "--each-store"])?;
        anyhow::ensure!(must(clean, "verify at the end")?["clean"] == true, "not clean at the end");
        note("recovered in the middle of a change, which went on from there");
        third.kill()
    }
}

/// The file of that name below a folder.
fn found_below(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).ok()?.flatten() {
            if entry.file_name() == name {
                return Some(entry.path());
            }
            if entry.path().is_dir() {
                folders.push(entry.path());
            }
        }
    }
    None
}
