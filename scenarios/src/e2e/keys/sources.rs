//! The cluster key goes from each kind of source to another one, under a load that reads what it writes: from a file to
//! a passphrase with a salt of its own, to Vault's transit engine, to a command, and to a file again. After each change
//! one gateway starts with the new key alone, serves, and all blocks are read back from it; `verify` opens the store
//! with the new key, and not with the one before.

use super::{BLOCKS_EACH, LIMIT, WRITERS, again_up, put};
use crate::cluster::{Cluster, SET};
use crate::e2e::blocks::{Load, Progress};
use crate::e2e::recover::{Known, holdfast, must};
use crate::e2e::{Lab, TAKEOVER_LIMIT};
use crate::nbd::Client;
use crate::process::wait_until;
use crate::say::note;
use crate::vault::{TOKEN, Vault};
use anyhow::{Context, Result};
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Pairs that the load has to get answered after a change, so that one is not over before it had an effect.
const GOES_ON: u64 = 50;

/// Where a gateway has the key from.
struct Source {
    name: &'static str,
    /// The lines of its section in the settings.
    lines: String,
    /// Settings of a gateway that name this key alone.
    config: String,
}

impl Source {
    fn new(known: &Known, name: &'static str, lines: String) -> Result<Self> {
        let config = known.dir.join(format!("key-of-{}.toml", name.replace(' ', "-")));
        std::fs::copy(known.dir.join(format!("{}.toml", known.names[0])), &config)?;
        put(&config, &lines, None)?;
        Ok(Self { name, lines, config: config.display().to_string() })
    }
}

pub(in crate::e2e) fn run(lab: &Lab) -> Result<()> {
    let store = format!("file://{}", std::path::absolute(lab.dir.join("store"))?.display());
    let vault = Vault::start()?;
    let mut cluster = lab.cluster_with("64MiB", Some(store.clone()), Vec::new())?;
    let known = Known::on(&cluster, store, Vec::new())?;
    let all = sources(lab, &known, &vault)?;
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?;
    must(verify(lab, &known, &all[0])?, "verify with the first key")?;
    let mut load = Load::new(WRITERS, BLOCKS_EACH).reading();
    for (number, change) in all.windows(2).enumerate() {
        let [from, to] = change else { continue };
        // Each gateway is once the one that starts with the new key alone.
        let alone = number % known.names.len();
        let what = format!("{} to {}", from.name, to.name);
        changed(lab, &mut cluster, &known, [from, to], &mut load, alone).with_context(|| what.clone())?;
        note(format!("{what}: wrapped anew under load, read back at {} with the new key alone", known.names[alone]));
    }
    anyhow::ensure!(vault.opened() > 0, "Vault has opened no envelope");
    note(format!("Vault has opened {} envelopes, and is gone now", vault.opened()));
    drop(vault);
    let last = all.last().context("no source")?;
    for index in 0..known.names.len() {
        put(&settings_of(&known, index), &last.lines, None)?;
        again_up(&mut cluster, index)?;
    }
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client).context("with the last key alone everywhere")?;
    client.disconnect();
    note(format!("{} pairs answered, all there with the last key alone", load.progress().answered()));
    cluster.stop()?;
    Ok(())
}

/// All sources, in the order in which the key goes through them.
fn sources(lab: &Lab, known: &Known, vault: &Vault) -> Result<Vec<Source>> {
    let at = |name: &str| lab.dir.join(name);
    let (phrase, token, last) = (at("passphrase"), at("vault-token"), at("last.key"));
    secret(&phrase, "correct horse battery staple of a scenario\n")?;
    secret(&token, TOKEN)?;
    secret(&last, &"5e".repeat(32))?;
    let ask = |args: &[&str]| holdfast(lab, &known.env, &known.doors, args);

    let kdf = must(ask(&["key", "kdf"])?, "key kdf")?;
    let kdf = kdf["passphrase_kdf"].as_str().with_context(|| format!("no passphrase_kdf: {kdf}"))?;
    let by_phrase = format!("passphrase_file = {phrase:?}\npassphrase_kdf = {kdf:?}\n");

    let wrapped = at("vault.envelope");
    let by_vault = format!("envelope = {wrapped:?}\nvault = {:?}\nvault_token_file = {token:?}\n", vault.key());
    let by_vault = Source::new(known, "Vault", by_vault)?;
    must(ask(&["key", "envelope", "--config", &by_vault.config])?, "key envelope")?;

    // A key that only the command can read: its digits are other letters.
    let shifted = at("command.envelope");
    std::fs::write(&shifted, "jp".repeat(32))?;
    let by_command = format!("envelope = {shifted:?}\ncommand = [\"/usr/bin/tr\", \"g-v\", \"0-9a-f\"]\n");

    Ok(vec![
        Source::new(known, "a file", format!("file = {:?}\n", known.key()))?,
        Source::new(known, "a passphrase", by_phrase)?,
        by_vault,
        Source::new(known, "a command", by_command)?,
        Source::new(known, "another file", format!("file = {last:?}\n"))?,
    ])
}

fn secret(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(())
}

fn settings_of(known: &Known, index: usize) -> PathBuf {
    known.dir.join(format!("{}.toml", known.names[index]))
}

fn verify(lab: &Lab, known: &Known, source: &Source) -> Result<(i32, Value)> {
    let asked = ["verify", "--store", &known.store, "--key-config", &source.config];
    holdfast(lab, &known.env, &known.doors, &asked)
}

/// A whole change of the key. At its end gateway `alone` has the new key only; the others have both.
fn changed(
    lab: &Lab,
    cluster: &mut Cluster,
    known: &Known,
    [from, to]: [&Source; 2],
    load: &mut Load,
    alone: usize,
) -> Result<()> {
    load.run(&cluster.exports(), |progress| {
        for index in 0..known.names.len() {
            put(&settings_of(known, index), &to.lines, Some(&from.lines))?;
            again_up(cluster, index)?;
        }
        rotated(lab, known)?;
        put(&settings_of(known, alone), &to.lines, None)?;
        again_up(cluster, alone)?;
        goes_on(progress)
    })?;
    cluster.holdfast(&["switchover", SET, "--to", &known.names[alone]])?;
    cluster.first_to_serve(&[alone], Instant::now(), TAKEOVER_LIMIT)?;
    let mut client = Client::connect(&cluster.gateways[alone].nbd, LIMIT)?;
    load.check(&mut client).context("read back with the new key alone")?;
    client.disconnect();
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?;
    must(verify(lab, known, to)?, "verify with the new key")?;
    let (code, said) = verify(lab, known, from)?;
    let named = said.to_string().contains("another passphrase or key file");
    anyhow::ensure!(code != 0 && named, "verify with the key before: exit code {code}, {said}");
    Ok(())
}

/// Wraps everything by the new key, and checks that it is another one and that nothing was left out.
fn rotated(lab: &Lab, known: &Known) -> Result<()> {
    let ask = |args: &[&str]| holdfast(lab, &known.env, &known.doors, args);
    let before = must(ask(&["key", "list"])?, "key list")?["sets"][0]["wrapped_by"].clone();
    let done = must(ask(&["key", "rotate-cluster", "--timeout", "1m"])?, "key rotate-cluster")?;
    let (after, set) = (&done["current"], &done["sets"][0]["wrapped_by"]);
    anyhow::ensure!(after.is_string() && set == after && *set != before, "still wrapped by {before}: {done}");
    let gateways = done["gateways"].as_array().context("no gateways")?;
    anyhow::ensure!(gateways.iter().all(|one| one["keys"]["node"] == *after), "node keys: {done}");
    Ok(())
}

fn goes_on(progress: &Progress) -> Result<()> {
    let before = progress.answered();
    anyhow::ensure!(wait_until(LIMIT, || progress.answered() > before + GOES_ON), "the load did not go on");
    Ok(())
}
