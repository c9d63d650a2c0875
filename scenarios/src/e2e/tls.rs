//! A cluster whose gateways use only mutually authenticated TLS: it works, also after the loss of a gateway and for an
//! attached host, whose certificate does not do for an administrator's; a client without a certificate of its authority
//! gets no answer (R10), nor does one whose certificate is revoked, at any gateway, and its open connections end.

use super::blocks::Load;
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET, VOLUME};
use crate::cmd::{Cmd, cmd};
use crate::process::{Proc, Signal, wait_until};
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// Names one certificate to a command.
fn with(command: Cmd, dir: &Path, authority: &str, name: &str) -> Cmd {
    let at = |of: &str, end: &str| dir.join(of).join(format!("{name}.{end}"));
    command
        .env("HOLDFAST_TLS_CA", dir.join(authority).join("ca.pem"))
        .env("HOLDFAST_TLS_CERTIFICATE", at("tls", "pem"))
        .env("HOLDFAST_TLS_KEY", at("tls", "key"))
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    // Like an operator: the certificates first. `holdfast dev` adds the missing ones from the same authority.
    let dir = lab.dir.join("cluster");
    let make = |into: &Path, names: &[&str]| {
        cmd(&lab.bin).args(["cluster", "certificates", "--dir"]).arg(into).args(names).run().context("certificates")
    };
    make(
        &dir.join("tls"),
        &["--gateway", "g1", "--gateway", "g2", "--gateway", "g3", "--host", "db1", "--admin", "admin"],
    )?;
    make(&dir.join("other"), &["--admin", "mallory"])?;

    let admin = |end: &str| dir.join("tls").join(format!("admin.{end}")).display().to_string();
    let env = vec![
        ("HOLDFAST_TLS_CA".to_string(), dir.join("tls/ca.pem").display().to_string()),
        ("HOLDFAST_TLS_CERTIFICATE".to_string(), admin("pem")),
        ("HOLDFAST_TLS_KEY".to_string(), admin("key")),
    ];
    let mut cluster = lab.cluster_with("256MiB", None, env)?;
    strangers(lab, &cluster, &dir)?;

    let mut load = Load::new(4, 1024);
    let killed = cluster.serving(TAKEOVER_LIMIT)?;
    load.run(&cluster.exports(), |progress| {
        anyhow::ensure!(wait_until(PATIENCE, || progress.answered() > 500), "too little load before the kill");
        let begun = cluster.kill(killed)?;
        let others = cluster.others(killed);
        let (_, took) = cluster.first_to_serve(&others, begun, TAKEOVER_LIMIT)?;
        note(format!(
            "{} killed, first read at another gateway after {:.0} ms",
            cluster.name(killed),
            took.as_secs_f64() * 1e3
        ));
        let before = progress.answered();
        anyhow::ensure!(wait_until(PATIENCE, || progress.answered() > before + 100), "the load did not follow");
        Ok(())
    })?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client)?;
    client.disconnect();
    note(format!("{} pairs acknowledged, all there", load.progress().answered()));
    cluster.restart(killed)?;
    cluster.caught_up(PATIENCE)?;
    let attached = Attached::start(lab, &cluster, &dir)?;
    revoke(lab, &cluster, &dir, &attached)?;
    attached.goes_on()?;
    cluster.stop()?;
    Ok(())
}

/// Clients without a certificate, with one of another authority, or with plain HTTP/2 get no answer.
fn strangers(lab: &Lab, cluster: &Cluster, dir: &Path) -> Result<()> {
    let api = &cluster.gateways[0].api;
    let ask = || cmd(&lab.bin).args(["cluster", "status", "--timeout", "3s", "--api", api]);
    let good = with(ask(), dir, "tls", "admin").out().context("with the administrator's certificate")?;
    anyhow::ensure!(good.contains("g1"), "cluster status with TLS: {good}");
    // A gateway's and a host's certificate are the cluster's as well.
    with(ask(), dir, "tls", "db1").out().context("with the host's certificate")?;
    // But a host makes no set, wherever it is asked for.
    let create = cmd(&lab.bin).args(["set", "create", "db1s", "--store", "file:///srv/db1s", "--volume", "data=64MiB"]);
    let refused = with(create.args(["--api", api, "--output", "json"]), dir, "tls", "db1").out();
    let why = format!("{:#}", refused.err().context("a host's certificate has created a set")?);
    anyhow::ensure!(why.contains("found role host of certificate db1"), "a host that creates a set: {why}");
    let certificate = |name: &str| dir.join("other").join(name);
    let mallory = ask()
        .env("HOLDFAST_TLS_CA", dir.join("tls/ca.pem"))
        .env("HOLDFAST_TLS_CERTIFICATE", certificate("mallory.pem"))
        .env("HOLDFAST_TLS_KEY", certificate("mallory.key"));
    for (who, command) in [
        ("in plain text", ask()),
        ("with another authority's certificate", mallory),
        ("that trusts another authority", with(ask(), dir, "other", "admin")),
    ] {
        anyhow::ensure!(command.out().is_err(), "R10: a command {who} was answered");
    }
    note("commands without a certificate of the cluster's authority: none of 3 was answered");
    Ok(())
}

/// A certificate that is revoked gets no answer at any gateway, and what is open with it ends; an administrator shuts
/// out neither itself nor a gateway by mistake.
fn revoke(lab: &Lab, cluster: &Cluster, dir: &Path, attached: &Attached) -> Result<()> {
    let doors = cluster.apis().join(",");
    let certificate = |args: &[&str]| {
        let command = cmd(&lab.bin).args(["certificate"]).args(args).args(["--api", &doors, "--output", "json"]);
        with(command, dir, "tls", "admin").out()
    };
    let ask = |api: &str, name: &str| {
        let command = cmd(&lab.bin).args(["cluster", "status", "--timeout", "3s", "--api", api]);
        with(command, dir, "tls", name).out()
    };
    let listed = certificate(&["list"])?;
    for part in ["\"days_left\"", "\"g1\"", "\"g2\"", "\"g3\""] {
        anyhow::ensure!(listed.contains(part), "{listed}");
    }
    for (name, why) in [("admin", "let another administrator revoke it"), ("g2", "in use at g2")] {
        let refused = certificate(&["revoke", "--name", name]).err().context("a revocation that shuts out too much")?;
        anyhow::ensure!(format!("{refused:#}").contains(why), "revoke --name {name}: {refused:#}");
    }
    let serves = wait_until(PATIENCE, || phase(&attached.run_dir) == "serving");
    anyhow::ensure!(serves, "the attach says {:?}, expected serving", phase(&attached.run_dir));
    let revoked = || certificate(&["revoke", "--name", "db1", "--reason", "lost"]);
    shut_out(&cluster.apis(), |api| ask(api, "db1"), &attached.run_dir, revoked)?;
    for gateway in &cluster.gateways {
        ask(&gateway.api, "admin").context("the administrator's certificate is not revoked")?;
    }
    certificate(&["unrevoke", "--name", "db1"])?;
    for gateway in &cluster.gateways {
        let let_in = || ask(&gateway.api, "db1").is_ok();
        anyhow::ensure!(wait_until(PATIENCE, let_in), "{} does not answer db1 again", gateway.api);
    }
    note("a revoked certificate got no answer at 3 gateways, and got one again");
    Ok(())
}

/// Does `revoke`, and watches until no gateway answers a command with the host's certificate, and until the host's open
/// connections have ended. Prints when that was: how long it takes depends on what else this machine does.
fn shut_out(
    apis: &[String],
    ask: impl Fn(&str) -> Result<String> + Sync,
    attached: &Path,
    revoke: impl FnOnce() -> Result<String>,
) -> Result<()> {
    let begun = Instant::now();
    // When the first command began that was not answered.
    let unanswered = |api: &String| {
        let mut asked = begun.elapsed();
        let seen = wait_until(PATIENCE, || {
            asked = begun.elapsed();
            // Twice: one may take too long where much else is done.
            ask(api).is_err() && ask(api).is_err()
        });
        seen.then_some(asked)
    };
    let (told, seen, ended) = std::thread::scope(|scope| {
        let unanswered = &unanswered;
        let doors: Vec<_> = apis.iter().map(|api| scope.spawn(move || unanswered(api))).collect();
        let open = scope.spawn(|| wait_until(PATIENCE, || phase(attached) != "serving").then(|| begun.elapsed()));
        let told = revoke().map(|_| begun.elapsed());
        let seen: Vec<_> = doors.into_iter().map(|door| door.join().ok().flatten()).collect();
        (told, seen, open.join().ok().flatten())
    });
    note(format!("revoked after {} ms", told?.as_millis()));
    for (api, seen) in apis.iter().zip(seen) {
        let seen = seen.with_context(|| format!("REVOKE-V1: {api} still answers db1 after {PATIENCE:?}"))?;
        note(format!("{api}: the first command without an answer began after {} ms", seen.as_millis()));
    }
    let ended = ended.with_context(|| format!("REVOKE-V2: db1 is still attached after {PATIENCE:?}"))?;
    note(format!("the open connections of db1's attach had ended after {} ms", ended.as_millis()));
    Ok(())
}

/// The phase of an attach; nothing if it says none.
fn phase(run_dir: &Path) -> String {
    let status = std::fs::read(run_dir.join("status.json")).unwrap_or_default();
    let status: Value = serde_json::from_slice(&status).unwrap_or_default();
    status["phase"].as_str().unwrap_or_default().to_owned()
}

/// `holdfast attach` with the host's certificate.
struct Attached {
    run_dir: PathBuf,
    process: Proc,
}

impl Attached {
    /// Attaches, writes and reads it back.
    fn start(lab: &Lab, cluster: &Cluster, dir: &Path) -> Result<Self> {
        let run_dir = lab.dir.join("attach");
        let command = cmd(&lab.bin).args(["attach", SET, "--owner", "db1", "--device", "none"]);
        let command = command.args(["--api", &cluster.apis().join(",")]).arg("--dir").arg(&run_dir);
        let command = with(command, dir, "tls", "db1").into_command();
        let process = Proc::spawn("holdfast attach", command, &lab.dir.join("attach.log"))?;
        let mut attached = Self { run_dir, process };
        let socket = attached.socket();
        attached.process.ready_when("its socket", PATIENCE, || socket.exists())?;
        attached.qemu_io(&["-c", "write -P 0x5a 0 64k", "-c", "flush", "-c", "read -P 0x5a 0 64k"])?;
        note("attached with the host's certificate, wrote and read");
        Ok(attached)
    }

    fn socket(&self) -> PathBuf {
        self.run_dir.join(format!("{VOLUME}.sock"))
    }

    fn qemu_io(&self, work: &[&str]) -> Result<()> {
        let uri = format!("nbd+unix:///{SET}/{VOLUME}?socket={}", self.socket().display());
        cmd("qemu-io").args(["-f", "raw"]).args(work).arg(&uri).run().context("qemu-io through attach")
    }

    /// Its certificate counts again: it goes on, and has lost nothing. Then a clean end.
    fn goes_on(mut self) -> Result<()> {
        let run_dir = self.run_dir.clone();
        self.process.ready_when("serving again", PATIENCE, || phase(&run_dir) == "serving")?;
        self.qemu_io(&["-c", "read -P 0x5a 0 64k"])?;
        self.process.stop(Signal::TERM, Duration::from_secs(30))?;
        note("the attach went on, read what it had written, and detached");
        Ok(())
    }
}
