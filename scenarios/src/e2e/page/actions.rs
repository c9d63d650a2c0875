//! A snapshot by the page's form, of a cluster with everything on that keeps others out. curl is the browser: it shows
//! a client's certificate, and sends the fields of the form that it got.

use crate::cluster::{Cluster, Options, SET};
use crate::cmd::cmd;
use crate::e2e::Lab;
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Until a gateway leads the set, and until a checkpoint is in the store.
const PATIENCE: Duration = Duration::from_secs(60);

const NAME: &str = "by-form";

/// What a form of a snapshot begins with.
const FORM: &str = "name=\"action\" value=\"snapshot\"";

struct Browser {
    tls: PathBuf,
}

impl Browser {
    /// Head and body of the answer to whoever has this certificate.
    fn asks(&self, who: &str, door: &str, path: &str, more: &[&str]) -> Result<(String, String)> {
        let at = |file: &str| self.tls.join(file).display().to_string();
        let command =
            cmd("curl").args(["-sS", "--http1.1", "--include", "--max-time", "60", "--cacert", &at("ca.pem")]);
        let (certificate, key) = (at(&format!("{who}.pem")), at(&format!("{who}.key")));
        let command = command.args(["--cert", &certificate, "--key", &key]).args(more);
        let answer = command.arg(format!("https://{door}{path}")).out()?;
        let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("no body: {answer}"))?;
        Ok((head.to_owned(), body.to_owned()))
    }

    /// The same, with this status.
    fn gets(&self, who: &str, door: &str, path: &str, more: &[&str], status: u16) -> Result<(String, String)> {
        let (head, body) = self.asks(who, door, path, more)?;
        let found = head.starts_with(&format!("HTTP/1.1 {status} "));
        anyhow::ensure!(found, "{path} by {who}: found {head}, expected {status}: {body}");
        Ok((head, body))
    }
}

/// The value of a hidden field of the first form of a snapshot.
fn field<'a>(page: &'a str, name: &str) -> Result<&'a str> {
    let form = page.split_once(FORM).context("no form of a snapshot")?.1;
    let begin = format!("name=\"{name}\" value=\"");
    let value = form.split_once(&begin).and_then(|(_, rest)| rest.split_once('"'));
    Ok(value.with_context(|| format!("no field {name}: {form}"))?.0)
}

pub(super) fn by_form(lab: &Lab) -> Result<()> {
    let (bin, dir, size) = (lab.bin.clone(), lab.dir.join("secure"), "64MiB".to_string());
    let options = Options { bin, dir, gateways: 3, store: None, size, settings: Vec::new(), env: Vec::new() };
    let cluster = Cluster::start_secure(options)?;
    let browser = Browser { tls: cluster.options.dir.join("tls") };
    let doors: Vec<String> = (0..cluster.gateways.len()).map(|i| cluster.metrics_address(i)).collect::<Result<_>>()?;
    // At the gateway that leads the set.
    let mut found = None;
    let with_form = || {
        found = doors.iter().find_map(|door| {
            let (_, page) = browser.gets("operator", door, "/page/actions", &[], 200).ok()?;
            page.contains(FORM).then(|| (door.clone(), page))
        });
        found.is_some()
    };
    anyhow::ensure!(wait_until(PATIENCE, with_form), "no gateway shows the form of a snapshot to an operator");
    let (door, page) = found.context("no form")?;
    shown_to_who_may(&browser, &door)?;
    let (id, ticket) = (field(&page, "id")?, field(&page, "ticket")?);
    let sent = format!("action=snapshot&set={SET}&id={id}&ticket={ticket}&name={NAME}");
    let ours = format!("Origin: https://{door}");
    for (who, origin) in [("operator", "Origin: https://evil.example"), ("admin", ours.as_str())] {
        browser.gets(who, &door, "/page/act", &["--header", origin, "--data", &sent], 403)?;
    }
    anyhow::ensure!(!is_listed(&cluster)?, "a form from elsewhere made a snapshot");
    let (head, _) = browser.gets("operator", &door, "/page/act", &["--header", &ours, "--data", &sent], 303)?;
    let place = head.lines().find_map(|line| line.strip_prefix("location: ")).context("led nowhere")?;
    let mut last = String::new();
    let path = format!("/page/{place}");
    let done = wait_until(PATIENCE, || {
        last = browser.gets("operator", &door, &path, &[], 200).map_or_else(|e| format!("{e:#}"), |(_, body)| body);
        ["is in the store", "is ordered and waits"].iter().any(|words| last.contains(words))
    });
    anyhow::ensure!(done, "the form's outcome: {last}");
    anyhow::ensure!(wait_until(PATIENCE, || is_listed(&cluster).unwrap_or(false)), "snapshot {NAME} is not listed");
    audited(&cluster)?;
    note("a snapshot by the page's form, with an operator's certificate; not from another page, nor by another's form");
    cluster.stop()?;
    Ok(())
}

/// The way to the actions, and the actions, are for who may.
fn shown_to_who_may(browser: &Browser, door: &str) -> Result<()> {
    for (who, may) in [("viewer", false), ("operator", true), ("admin", true)] {
        let (_, page) = browser.gets(who, door, "/", &[], 200)?;
        anyhow::ensure!(page.contains("href=\"page/actions\"") == may, "the page of {who}: {page}");
        let (_, actions) = browser.gets(who, door, "/page/actions", &[], if may { 200 } else { 403 })?;
        anyhow::ensure!(actions.contains("<form") == may, "the actions of {who}: {actions}");
    }
    Ok(())
}

fn is_listed(cluster: &Cluster) -> Result<bool> {
    Ok(cluster.holdfast(&["snapshot", "list", SET])?.to_string().contains(NAME))
}

/// The audit logs have one snapshot, by the operator.
fn audited(cluster: &Cluster) -> Result<()> {
    let mut lines = Vec::new();
    for gateway in 0..cluster.gateways.len() {
        let log = cluster.options.dir.join(format!("{}.audit.log", cluster.name(gateway)));
        let text = std::fs::read_to_string(&log).with_context(|| log.display().to_string())?;
        let all: Vec<Value> =
            text.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("an audit log")?;
        lines.extend(all.into_iter().filter(|line| line["method"] == "CreateSnapshot"));
    }
    let ours = lines.len() == 1 && lines[0]["certificate"] == "operator" && lines[0]["snapshot"] == NAME;
    anyhow::ensure!(ours, "found {lines:?}, expected one CreateSnapshot by operator");
    Ok(())
}
