//! The page of a real cluster, by plain HTTP as a browser without scripts gets it, and in a headless Chromium.
//!
//! 1. Each gateway's page names all gateways, the set, its owner and its snapshot.
//! 2. In Chromium its script runs and fetches the state again, although the page's policy allows no other one.
//! 3. A new owner by force, and a killed gateway, are on the page.
//! 4. In a cluster with TLS, an operator takes a snapshot by a form (`page/actions.rs`).

mod actions;

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET};
use crate::cmd::cmd;
use crate::process::wait_until;
use crate::say::note;
use crate::web::page;
use anyhow::{Context, Result};
use std::path::Path;
use std::time::Duration;

/// Debian's package of the same name has it.
const CHROMIUM: &str = "chromium-headless-shell";

pub(super) const NEEDS: &[&str] = &[CHROMIUM, "curl"];

/// A page is made at most every two seconds, and asks other gateways for up to 1.5 s.
const SHOWN_WITHIN: Duration = Duration::from_secs(30);

/// Time of the page's own clock: enough to fetch the state twice.
const BUDGET_MS: &str = "--virtual-time-budget=8000";

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster("64MiB")?;
    cluster.serving(TAKEOVER_LIMIT)?;
    cluster.holdfast(&["lease", "acquire", SET, "--owner", "db1", "--ttl", "10m", "--force"])?;
    cluster.holdfast(&["snapshot", "create", &format!("{SET}@first")])?;
    let doors: Vec<String> = (0..cluster.gateways.len()).map(|i| cluster.metrics_address(i)).collect::<Result<_>>()?;
    for door in &doors {
        shows(door, &["<b>g1</b>", "<b>g2</b>", "<b>g3</b>", ">demo</th>", "<b>db1</b>", "<b>first</b>"])?;
    }
    let (status, body) = asked(&doors[0])?;
    anyhow::ensure!(
        body.contains("<noscript><meta http-equiv=\"refresh\""),
        "it is not reloaded without scripts: {body}"
    );
    anyhow::ensure!(status.contains("content-security-policy: default-src 'none'"), "it has no policy: {status}");
    note("without scripts each gateway shows gateways, set, owner and snapshot");
    in_chromium(&lab.dir, &doors[0])?;
    takeover(&mut cluster, &lab.dir, &doors[0])?;
    cluster.stop()?;
    actions::by_form(lab)
}

/// Head and body of a gateway's page.
fn asked(door: &str) -> Result<(String, String)> {
    let answer = page(door, "/")?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an answer without a body")?;
    anyhow::ensure!(head.starts_with("HTTP/1.1 200"), "{door}: {answer}");
    Ok((head.to_owned(), body.to_owned()))
}

/// Waits until the page has all of `expected`.
fn shows(door: &str, expected: &[&str]) -> Result<()> {
    let (mut lacking, mut last) = (Vec::new(), String::new());
    wait_until(SHOWN_WITHIN, || {
        last = asked(door).map_or_else(|error| format!("{error:#}"), |(_, body)| body);
        lacking = expected.iter().filter(|text| !last.contains(**text)).collect();
        lacking.is_empty()
    });
    anyhow::ensure!(lacking.is_empty(), "{door}: the page lacks {lacking:?}: {last}");
    Ok(())
}

/// What Chromium makes of it.
fn chromium(dir: &Path, args: &[&str], door: &str) -> Result<String> {
    // Its sandbox needs user namespaces, which containers lack; the page is ours.
    let command = cmd(CHROMIUM).args(["--no-sandbox", "--disable-gpu", "--hide-scrollbars"]).args(args);
    let command = command.arg(format!("--user-data-dir={}", dir.join("chromium").display()));
    command.arg(format!("http://{door}/")).out()
}

fn in_chromium(dir: &Path, door: &str) -> Result<()> {
    let dom = chromium(dir, &[BUDGET_MS, "--dump-dom"], door)?;
    for expected in [">demo</th>", "<b>db1</b>", "data-looks=", "title=\""] {
        anyhow::ensure!(dom.contains(expected), "Chromium's page lacks {expected:?}: {dom}");
    }
    // 0 is dark.
    for (name, size, scheme) in [("wide", "1280,1000", "1"), ("phone", "390,1600", "0")] {
        let file = dir.join(format!("page-{name}.png"));
        let size = format!("--window-size={size}");
        let scheme = format!("--blink-settings=preferredColorScheme={scheme}");
        let shot = format!("--screenshot={}", file.display());
        chromium(dir, &[&size, &scheme, &shot], door)?;
        let bytes = std::fs::metadata(&file).with_context(|| file.display().to_string())?.len();
        anyhow::ensure!(bytes > 10_000, "{}: {bytes} bytes: an empty picture", file.display());
        note(format!("picture: {}", file.display()));
    }
    Ok(())
}

/// The first gateway's page after a change of owner and the loss of another gateway.
fn takeover(cluster: &mut Cluster, dir: &Path, door: &str) -> Result<()> {
    let to = cluster.name(0);
    cluster.holdfast(&["failover", SET, "--candidate", &to, "--owner", "db2", "--ttl", "10m", "--yes"])?;
    shows(door, &["<b>db2</b>", "db2 takes it"])?;
    cluster.kill(2)?;
    // That, and perhaps that sets miss a voter.
    shows(door, &["class=\"verdict bad\"", "g3 does not answer"])?;
    let dom = chromium(dir, &[BUDGET_MS, "--dump-dom"], door)?;
    anyhow::ensure!(dom.contains("g3 does not answer"), "Chromium's page lacks the killed gateway: {dom}");
    note("a new owner and a killed gateway are on the page");
    Ok(())
}
