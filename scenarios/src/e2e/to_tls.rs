//! A cluster without TLS comes to it under load, by the steps of docs/operating/tls.md: nobody but whoever stayed
//! without TLS is shut out (R10).
//!
//! ```text
//!   for accept, use, only TLS:  for g1, g2, g3:  SIGTERM ─▶ start with the next step ─▶ caught up
//! ```

use super::Lab;
use super::blocks::Load;
use crate::cluster::Cluster;
use crate::cmd::cmd;
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::path::Path;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(60);

/// What `cluster status` says of the doors after each step. NBD takes both to the end: the load has no TLS.
const STEPS: [(&str, &[&str]); 3] = [
    ("accept", &["--set", "tls.transition=accept"]),
    ("use", &["--set", "tls.transition=use"]),
    ("required", &["--set", "tls.nbd=optional"]),
];

pub(super) fn run(lab: &Lab) -> Result<()> {
    let dir = lab.dir.join("certificates");
    let names = ["--gateway", "g1", "--gateway", "g2", "--gateway", "g3", "--admin", "admin"];
    cmd(&lab.bin).args(["cluster", "certificates", "--dir"]).arg(&dir).args(names).run().context("certificates")?;
    let mut cluster = lab.cluster_with("256MiB", None, Vec::new())?;
    for index in 0..cluster.gateways.len() {
        let file = |end: &str| dir.join(format!("{}.{end}", cluster.name(index))).display().to_string();
        let ca = format!("tls.ca={}", dir.join("ca.pem").display());
        let (own, key) = (format!("tls.certificate={}", file("pem")), format!("tls.key={}", file("key")));
        cluster.set_arguments(index, &["--set", &ca, "--set", &own, "--set", &key], true);
    }
    let mut load = Load::new(4, 1024);
    load.run(&cluster.exports(), |progress| {
        let mut before: &[&str] = &[];
        for (step, arguments) in STEPS {
            for index in 0..cluster.gateways.len() {
                cluster.end(index)?;
                cluster.set_arguments(index, before, false);
                cluster.set_arguments(index, arguments, true);
                cluster.restart(index)?;
                cluster.caught_up(PATIENCE).with_context(|| format!("{} at {step}", cluster.name(index)))?;
                let answered = progress.answered();
                let goes_on = wait_until(PATIENCE, || progress.answered() > answered + 100);
                anyhow::ensure!(goes_on, "no writes with {} at {step}", cluster.name(index));
            }
            before = arguments;
            told(&cluster, step)?;
            // Every gateway takes TLS from the first step on.
            cluster.options.env = administrator(&dir);
            note(format!("all gateways are at {step}, writes go on"));
        }
        Ok(())
    })?;
    let (_, mut client) = cluster.connect(super::TAKEOVER_LIMIT)?;
    load.check(&mut client)?;
    client.disconnect();
    let plain = ["cluster", "status", "--timeout", "3s", "--api", &cluster.gateways[0].api];
    anyhow::ensure!(cmd(&lab.bin).args(plain).out().is_err(), "R10: a command in plain text was answered at the end");
    note(format!("{} pairs acknowledged, all there; plain text gets no answer", load.progress().answered()));
    cluster.stop().map(drop)
}

/// The settings of a command that has the administrator's certificate.
fn administrator(dir: &Path) -> Vec<(String, String)> {
    let at = |file: &str| dir.join(file).display().to_string();
    vec![
        ("HOLDFAST_TLS_CA".to_string(), at("ca.pem")),
        ("HOLDFAST_TLS_CERTIFICATE".to_string(), at("admin.pem")),
        ("HOLDFAST_TLS_KEY".to_string(), at("admin.key")),
    ]
}

/// The step is in the status of each gateway.
fn told(cluster: &Cluster, step: &str) -> Result<()> {
    let status = cluster.holdfast(&["cluster", "status"])?;
    let members = status["members"].as_array().context("status without members")?;
    for member in members {
        anyhow::ensure!(member["node"]["tls"] == step, "expected doors at {step}, found {}", member["node"]["tls"]);
    }
    Ok(())
}
