//! `holdfast watch` in the background: one line for each change of sets, leases and gateways.

use crate::cluster::{Cluster, SET};
use crate::cmd::cmd;
use crate::process::{Proc, Signal, wait_until};
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::io::BufRead;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

/// Its polling interval.
const EVERY: &str = "200ms";

/// Limit until it shows an event. Long, since a busy machine is no fault here.
const LIMIT: Duration = Duration::from_secs(40);

/// From the signal to its end.
const END: Duration = Duration::from_secs(10);

/// A running `holdfast watch`.
pub(super) struct Watch {
    proc: Proc,
    told: Receiver<String>,
    /// Its output so far.
    lines: Vec<Value>,
}

/// Whether a line shows `owner` as holder of the set.
pub(super) fn held_by(seen: &Value, owner: &str) -> bool {
    seen["sets"][SET]["owner"] == owner
}

impl Watch {
    /// Starts it; `first` is the gateway that it asks first each time.
    pub(super) fn start(cluster: &Cluster, first: usize, log: &Path) -> Result<Self> {
        let order = std::iter::once(first).chain(cluster.others(first));
        let apis: Vec<&str> = order.map(|at| cluster.gateways[at].api.as_str()).collect();
        let command = cmd(&cluster.options.bin).args(["watch", "--every", EVERY, "--output", "json", "--api"]);
        let (proc, out) = Proc::spawn_piped("holdfast watch", command.arg(apis.join(",")).into_command(), log)?;
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = std::io::BufReader::new(out).lines().map_while(std::io::Result::ok);
            lines.take_while(|line| tell.send(line.clone()).is_ok()).for_each(drop);
        });
        Ok(Self { proc, told, lines: Vec::new() })
    }

    fn take_in(&mut self, line: &str) -> Result<()> {
        let value = serde_json::from_str(line).with_context(|| format!("holdfast watch: no JSON: {line}"))?;
        self.lines.push(value);
        Ok(())
    }

    /// Waits until its last line fulfils `so`.
    pub(super) fn shows(&mut self, what: &str, so: impl Fn(&Value) -> bool) -> Result<()> {
        let mut heard = Ok(());
        let shown = wait_until(LIMIT, || {
            while let (true, Ok(line)) = (heard.is_ok(), self.told.try_recv()) {
                heard = self.take_in(&line);
            }
            heard.is_err() || self.lines.last().is_some_and(|line| so(&line["seen"]))
        });
        heard?;
        self.proc.must_run()?;
        let last = self.lines.last().unwrap_or(&Value::Null);
        anyhow::ensure!(shown, "holdfast watch: found {last} after {LIMIT:?}, expected {what}");
        Ok(())
    }

    /// Ends it like Ctrl-C, and checks its whole output: it always had an answer, and showed these owners of the set in
    /// order.
    pub(super) fn end(mut self, owners: &[&str]) -> Result<()> {
        self.proc.must_run()?;
        self.proc.signal(Signal::INT);
        let status = self.proc.wait(END)?;
        anyhow::ensure!(status.code() == Some(0), "holdfast watch: found {status} after SIGINT, expected exit code 0");
        // The rest of its output, up to its end.
        while let Ok(line) = self.told.recv() {
            self.take_in(&line)?;
        }
        let grants = grants(&self.lines)?;
        let found: Vec<&str> = grants.iter().map(|(owner, _)| owner.as_str()).collect();
        anyhow::ensure!(found == owners, "holdfast watch: found the owners {found:?}, expected {owners:?}");
        let grants: Vec<String> = grants.iter().map(|(owner, epoch)| format!("{owner} e{epoch}")).collect();
        note(format!("holdfast watch: {} lines, owners {}; ended with 0", self.lines.len(), grants.join(", ")));
        Ok(())
    }
}

/// The owners in these lines, in order, each with its first epoch.
fn grants(lines: &[Value]) -> Result<Vec<(String, u64)>> {
    let (mut grants, mut before) = (Vec::<(String, u64)>::new(), 0);
    for line in lines {
        let seen = &line["seen"];
        anyhow::ensure!(seen["error"].is_null(), "holdfast watch: found no answer, expected one: {line}");
        let set = &seen["sets"][SET];
        let owner = set["owner"].as_str().unwrap_or_default();
        if owner.is_empty() {
            // Free for a moment, or no gateway knew the owner.
            continue;
        }
        let epoch = set["epoch"].as_u64().with_context(|| format!("holdfast watch: found no epoch: {line}"))?;
        let another = grants.last().is_none_or(|(last, _)| last != owner);
        let grown = if another { epoch > before } else { epoch >= before };
        anyhow::ensure!(grown, "R6: holdfast watch: found {owner} under e{epoch} after e{before}: {line}");
        before = epoch;
        if another {
            grants.push((owner.into(), epoch));
        }
    }
    Ok(grants)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn line(owner: &str, epoch: u64) -> Value {
        let set = json!({ "gateway": "g1", "owner": owner, "epoch": epoch });
        json!({ "at": "", "seen": { "error": null, "sets": { SET: set } } })
    }

    #[test]
    fn owners_are_told_one_after_the_other() -> Result<()> {
        let lines = [line("db1", 3), line("db1", 5), line("", 5), line("db2", 8), line("db1", 9)];
        let found = grants(&lines)?;
        let found: Vec<(&str, u64)> = found.iter().map(|(owner, epoch)| (owner.as_str(), *epoch)).collect();
        assert_eq!(found, [("db1", 3), ("db2", 8), ("db1", 9)]);
        Ok(())
    }

    #[test]
    fn an_epoch_that_does_not_grow_and_a_look_without_an_answer_are_found() {
        assert!(grants(&[line("db1", 3), line("db2", 3)]).is_err());
        assert!(grants(&[line("db1", 3), line("db1", 2)]).is_err());
        assert!(grants(&[json!({ "seen": { "error": "nobody" } })]).is_err());
    }
}
