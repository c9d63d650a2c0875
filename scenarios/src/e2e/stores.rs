//! A set in three S3 servers, two of which must have an object. One is killed under load: clients see no error,
//! checkpoints continue, and it gets the missing objects when it is back. Another loses everything, its part of the
//! head too, under load: it is filled and counts again, which the loss of the first one then proves. The copies in each
//! store are read. Scenario `stores-lost`: all gateways and disks are lost three times, each time with another one of
//! the three servers missing.

use super::blocks::Load;
use super::recover::{BLOCKS, GONE, Hand, Known, Ledger, REFUSED, holdfast, must};
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::SET;
use crate::process::wait_until;
use crate::s3::S3;
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Duration;

const WRITERS: u64 = 4;
const BLOCKS_EACH: u64 = 1024;
/// Readers' grace period beyond the outage of a store: its death, three checkpoints, its start.
const GRACE_LONGER: Duration = Duration::from_secs(4);
/// No single answer may take longer than this while a store is away.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let (mut servers, stores) = three(lab)?;
    killed_and_emptied_under_load(lab, &mut servers, &stores)
}

/// Scenario `stores-lost`.
pub(super) fn run_lost(lab: &Lab) -> Result<()> {
    let (mut servers, stores) = three(lab)?;
    recovered_without_one(lab, &mut servers, &stores)
}

/// Three servers, and how a set in all of them is written.
fn three(lab: &Lab) -> Result<(Vec<S3>, String)> {
    let mut servers = Vec::new();
    for at in 1..=3 {
        servers.push(S3::start(&lab.dir.join(format!("store{at}")))?);
    }
    let urls: Vec<String> = servers.iter().map(S3::url).collect();
    let stores = format!("w=2 {}", urls.join(" "));
    Ok((servers, stores))
}

fn checkpoint(say: impl Fn(&[&str]) -> Result<Value>) -> Result<()> {
    let asked = say(&["set", "checkpoint", SET, "--timeout", "1m"]).context("checkpoint")?;
    anyhow::ensure!(asked["checkpoint_index"].as_u64() >= asked["at_index"].as_u64(), "no checkpoint: {asked}");
    Ok(())
}

/// Waits until the leader reports that no store lacks anything.
fn caught_up(say: impl Fn(&[&str]) -> Result<Value>) -> Result<()> {
    let mut last = Value::Null;
    let whole = |replica: &Value| {
        replica["missing_objects"] == 0 && replica["compared"] == true && replica["head_behind"] == false
    };
    let done = wait_until(LIMIT, || {
        last = say(&["set", "show", SET]).map_or(Value::Null, |said| said["store_health"].clone());
        last["replicas"].as_array().is_some_and(|all| all.len() == 3 && all.iter().all(whole))
    });
    anyhow::ensure!(done, "some store still lacks something after {LIMIT:?}: {last}");
    Ok(())
}

/// Waits until the leader's report on one store fulfils `is`, and returns that.
fn shows(say: impl Fn(&[&str]) -> Result<Value>, at: usize, what: &str, is: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut last = Value::Null;
    let seen = wait_until(LIMIT, || {
        last = say(&["set", "show", SET]).map_or(Value::Null, |said| said["store_health"]["replicas"][at].clone());
        is(&last)
    });
    anyhow::ensure!(seen, "store {} is not shown as {what} after {LIMIT:?}: {last}", at + 1);
    Ok(last)
}

fn killed_and_emptied_under_load(lab: &Lab, servers: &mut [S3], stores: &str) -> Result<()> {
    let env = servers[0].env();
    let outage = Duration::from_secs(if lab.long { 60 } else { 12 });
    // A store that was down lacks replaced objects until they are deleted everywhere: not before the store is back, and
    // soon after.
    let grace = format!("space.grace_ms={}", (outage + GRACE_LONGER).as_millis());
    let mut cluster = lab.cluster_as("256MiB", Some(stores.into()), &[grace.as_str()], env.clone())?;
    let known = Known::on(&cluster, stores.into(), env.clone())?;
    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    // Reads go to the first; the second is emptied, and has to replace the first afterwards.
    let (during, lacked) = load.run(&cluster.exports(), |progress| {
        wait_until(Duration::from_secs(3), || false);
        checkpoint(|args| cluster.holdfast(args))?;
        let before = progress.answered();
        servers[0].stop()?;
        for _ in 0..3 {
            wait_until(outage / 3, || false);
            checkpoint(|args| cluster.holdfast(args)).context("with one of three stores away")?;
        }
        let during = progress.answered() - before;
        let say = |args: &[&str]| cluster.holdfast(args);
        let away = |one: &Value| !one["now"].is_null() && one["missing_objects"].as_u64() > Some(0);
        let lacked = shows(say, 0, "away and lacking something", away)?["missing_objects"].as_u64().unwrap_or(0);
        servers[0].resume()?;
        caught_up(say)?;
        servers[1].stop()?;
        std::fs::remove_dir_all(servers[1].folder())?;
        servers[1].resume()?;
        // A check finds its head gone there. Once it has a head again, it is compared again; before, the leader may not
        // have noticed.
        let sets = servers[1].folder().join("sets");
        let mended = wait_until(LIMIT, || {
            std::fs::read_dir(&sets)
                .is_ok_and(|all| all.filter_map(Result::ok).any(|one| one.path().join("head").is_file()))
        });
        anyhow::ensure!(mended, "a store that was emptied has no head after {LIMIT:?}");
        caught_up(say).context("a store that was emptied is not filled")?;
        checkpoint(say)?;
        Ok((during, lacked))
    })?;
    let (slowest, again) = (load.progress().slowest(), load.progress().reconnected());
    note(format!(
        "{during} pairs while one of three was away, slowest {:.0} ms; it lacked {lacked} objects",
        slowest.as_secs_f64() * 1e3
    ));
    anyhow::ensure!(during > 0 && again == 0, "{during} pairs answered, {again} connections closed");
    anyhow::ensure!(slowest < ANSWER_LIMIT, "an answer took {slowest:?}");
    checkpoint(|args| cluster.holdfast(args))?;
    caught_up(|args| cluster.holdfast(args))?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client)?;
    client.disconnect();
    let key = known.key();
    let each = ["verify", "--store", stores, "--key-file", &key, "--each-store"];
    let clean = must(holdfast(lab, &known.env, &known.doors, &each)?, "verify --each-store")?;
    let read = clean["sets"].as_array().map_or(0, Vec::len);
    anyhow::ensure!(read == 3 && clean["clean"] == true, "each store's copies: {clean}");
    // The emptied one counts: without the first, every decision needs it.
    servers[0].stop()?;
    checkpoint(|args| cluster.holdfast(args)).context("with the one that was emptied, and without the first")?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client)?;
    client.disconnect();
    servers[0].resume()?;
    caught_up(|args| cluster.holdfast(args))?;
    // From the stores alone, any two of them.
    let mut cluster = cluster.kill_all()?;
    for (missing, server) in servers.iter_mut().enumerate() {
        server.stop()?;
        let mut started = cluster.start().with_context(|| format!("restart without store {}", missing + 1))?;
        let (_, mut client) = started.connect(TAKEOVER_LIMIT)?;
        load.check(&mut client).with_context(|| format!("without store {}", missing + 1))?;
        client.disconnect();
        cluster = started.kill_all()?;
        server.resume()?;
    }
    note("the set is whole, and readable without any one of the three");
    Ok(())
}

fn recovered_without_one(lab: &Lab, servers: &mut [S3], stores: &str) -> Result<()> {
    let env = servers[0].env();
    let mut cluster = lab.cluster_quiet("64MiB", stores.into(), env.clone())?;
    let known = Known::on(&cluster, stores.into(), env)?;
    let mut ledger = Ledger { written: 0 };
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    ledger.write(&mut client, BLOCKS + 100)?;
    checkpoint(|args| cluster.holdfast(args))?;
    caught_up(|args| cluster.holdfast(args))?;
    let mut covered = ledger.written;
    ledger.write(&mut client, 50)?;
    drop(client);
    cluster.kill_all()?;
    let key = known.key();
    let plan = known.plan(&lab.dir.join("new.toml"))?;
    for (missing, server) in servers.iter_mut().enumerate() {
        let aside = lab.dir.join(format!("aside{missing}"));
        std::fs::create_dir_all(&aside)?;
        for name in &known.names {
            std::fs::rename(known.dir.join(name), aside.join(name))?;
        }
        server.stop()?;
        let verify = ["verify", "--store", stores, "--key-file", &key];
        let new = Hand::start(lab, &known, &format!("new{missing}-"), &known.args(&known.dir))?;
        let recover = [
            "cluster",
            "recover",
            "--from-store",
            stores,
            "--config",
            &plan,
            "--key-file",
            &key,
            "--timeout",
            "2m",
            GONE,
        ];
        // A foreign place instead of the missing one: by its URL alone it would count as an emptied store.
        let lost = stores.split(' ').nth(missing + 1).context("a store")?;
        let there = stores.split(' ').nth((missing + 1) % 3 + 1).context("a store")?;
        let wrong = stores.replace(lost, &there.replace("/e2e?", "/elsewhere?"));
        // In parallel: both wait for the silent store, and change nothing.
        let (clean, refused) = std::thread::scope(|scope| {
            let clean = scope.spawn(|| holdfast(lab, &known.env, &known.doors, &verify));
            let refused = new.holdfast(&recover.map(|arg| if arg == stores { &wrong[..] } else { arg }));
            (clean.join(), refused)
        });
        let clean = clean.map_err(|_| anyhow::anyhow!("verify panicked"))??;
        must(clean, "verify with one of three stores missing")?;
        let (code, said) = refused?;
        let named = said.to_string().contains("found no objects of it");
        anyhow::ensure!(code == REFUSED && named, "recover from {wrong}: exit code {code}, {said}");
        let said = must(new.holdfast(&recover)?, "recover")?;
        let generation = said["sets"][0]["generation"].as_u64();
        anyhow::ensure!(generation == Some(missing as u64 + 2), "{said}");
        let mut client = new.connect()?;
        let found = Ledger::prefix(&mut client)?;
        anyhow::ensure!(
            found == covered,
            "R4: without store {}: writes up to {found}, expected {covered}",
            missing + 1
        );
        ledger.written = found;
        ledger.write(&mut client, 100)?;
        covered = ledger.written;
        drop(client);
        let say = |args: &[&str]| must(new.holdfast(args)?, "a look");
        checkpoint(say)?;
        server.resume()?;
        caught_up(say)?;
        new.kill()?;
        note(format!("recovered without store {}: generation {}, writes 1 to {found}", missing + 1, missing + 2));
    }
    // One of them alone is refused, with its name.
    let alone = stores.split(' ').nth(1).context("a store")?;
    let (code, said) = holdfast(lab, &known.env, &known.doors, &["verify", "--store", alone, "--key-file", &key])?;
    anyhow::ensure!(code != 0 && said.to_string().contains("store 1 of 3"), "exit code {code}: {said}");
    Ok(())
}
