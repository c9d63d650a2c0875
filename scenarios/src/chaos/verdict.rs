//! The checks of a run. The judge decides whether the registers were linearizable (R3); this module checks the rest.

use super::access::Hold;
use super::history::{Kind, Op, Outcome};
use super::siege;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// One check.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    pub name: String,
    /// Why it failed.
    pub failed: Option<String>,
}

impl Check {
    /// From a result.
    pub fn of(name: &str, result: Result<()>) -> Self {
        Self { name: name.into(), failed: result.err().map(|e| format!("{e:#}")) }
    }
}

/// R3: every register was linearizable. Returns the judge's last line. Fails with the judge's finding, if a register
/// was not linearizable or could not be judged.
pub fn linearizable(judge: &Path, history: &Path, pictures: &Path, limit: Duration) -> Result<String> {
    std::fs::create_dir_all(pictures)?;
    let output = Command::new(judge)
        .arg("-timeout")
        .arg(format!("{}s", limit.as_secs()))
        .arg("-visualize")
        .arg(pictures)
        .arg(history)
        .output()
        .with_context(|| judge.display().to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = said.lines().last().unwrap_or_default().to_owned();
    match output.status.code() {
        Some(0) => Ok(last),
        Some(1) => bail!("R3: not linearizable:\n{said}"),
        Some(2) => bail!("the judge came to no decision in {limit:?}: {last}"),
        _ => bail!("the judge cannot read the history: {}", String::from_utf8_lossy(&output.stderr)),
    }
}

/// R2: while a grant was certainly the only one, no client wrote under another grant. Fails with the first such write.
pub fn one_writer(ops: &[Op], holds: &[Hold]) -> Result<()> {
    let written = |op: &&Op| op.kind == Kind::Write && op.outcome == Outcome::Ok;
    for op in ops.iter().filter(written) {
        let Some(returned) = op.returned else { continue };
        let within = |h: &&Hold| op.grant != h.grant && op.call > h.from && h.until.is_none_or(|u| returned < u);
        if let Some(hold) = holds.iter().find(within) {
            bail!(
                "R2: client {} wrote {} to {} via {} under grant {} at {}, while {} held grant {} from {} to {:?}",
                op.client,
                op.value,
                op.key,
                op.via,
                op.grant,
                op.call,
                hold.owner,
                hold.grant,
                hold.from,
                hold.until
            );
        }
    }
    Ok(())
}

/// Counts of what happened.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Figures {
    pub seconds: u64,
    pub reads_ok: u64,
    pub writes_ok: u64,
    pub unknown: u64,
    pub refused: u64,
    /// Successful operations under a token rather than through a plain export.
    pub under_token: u64,
    /// Writes that overlapped in time with another operation on the same register.
    pub contended: u64,
    pub gateways: u64,
    pub registers: u64,
    pub faults: u64,
    pub kinds_of_faults: u64,
    pub grants: u64,
}

impl Figures {
    /// Counts.
    pub fn of(ops: &[Op], holds: &[Hold], steps: &[siege::Outcome], lasted: Duration) -> Self {
        let count = |f: &dyn Fn(&Op) -> bool| ops.iter().filter(|op| f(op)).count() as u64;
        let ok = |op: &Op| op.outcome == Outcome::Ok;
        let distinct = |of: Vec<String>| of.into_iter().collect::<std::collections::BTreeSet<_>>().len() as u64;
        Self {
            seconds: lasted.as_secs(),
            reads_ok: count(&|op| ok(op) && op.kind == Kind::Read),
            writes_ok: count(&|op| ok(op) && op.kind == Kind::Write),
            unknown: count(&|op| op.outcome == Outcome::Unknown),
            refused: count(&|op| op.outcome == Outcome::Fail),
            under_token: count(&|op| ok(op) && op.grant > 0),
            contended: contended(ops),
            gateways: distinct(ops.iter().filter(|op| ok(op)).map(|op| op.via.clone()).collect()),
            registers: distinct(ops.iter().map(|op| op.key.clone()).collect()),
            faults: steps.len() as u64,
            kinds_of_faults: distinct(steps.iter().map(|s| format!("{:?}", s.fault)).collect()),
            grants: holds.len() as u64,
        }
    }

    /// A run with too few operations does not pass. Fails with the counts that were too low.
    pub fn enough(&self) -> Result<()> {
        let s = self.seconds;
        let mut short = Vec::new();
        // A short run has few moves: it is likely, but not certain, that all three gateways serve.
        let served = match s {
            0..60 => 1,
            60..240 => 2,
            _ => 3,
        };
        for (what, found, least) in [
            ("successful reads", self.reads_ok, 10 * s),
            ("successful writes", self.writes_ok, 10 * s),
            ("contended writes", self.contended, s),
            ("faults", self.faults, (s / 15).max(1)),
            ("kinds of faults", self.kinds_of_faults, (s / 20).clamp(1, 15)),
            ("gateways that served", self.gateways, served),
            ("grants to an owner", self.grants, u64::from(s >= 60)),
            ("operations under a token", self.under_token, if s < 60 { 0 } else { s }),
            ("unknown outcomes", self.unknown, u64::from(s >= 60)),
        ] {
            if found < least {
                short.push(format!("{what}: {found}, expected at least {least}"));
            }
        }
        anyhow::ensure!(short.is_empty(), "too little happened in {s} s to prove anything: {}", short.join("; "));
        Ok(())
    }
}

fn contended(ops: &[Op]) -> u64 {
    let mut by_key: std::collections::BTreeMap<&str, Vec<&Op>> = std::collections::BTreeMap::new();
    for op in ops {
        by_key.entry(&op.key).or_default().push(op);
    }
    let mut found = 0;
    for ops in by_key.values_mut() {
        ops.sort_by_key(|op| op.call);
        for pair in ops.windows(2) {
            let overlap = pair[0].returned.is_none_or(|r| r > pair[1].call);
            found += u64::from(overlap && pair.iter().any(|op| op.kind == Kind::Write));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(grant: u64, call: u64, returned: u64) -> Op {
        let (key, via) = ("0+512".to_owned(), "g1".to_owned());
        let (kind, outcome) = (Kind::Write, Outcome::Ok);
        Op { client: 1, kind, key, value: call, call, returned: Some(returned), outcome, via, grant }
    }

    #[test]
    fn a_write_of_an_older_owner_is_found() {
        let hold = |grant, from, until| Hold { grant, owner: "b".into(), from, until };
        let holds = [hold(1, 10, Some(20)), hold(2, 30, None)];
        let good = [write(0, 1, 2), write(0, 5, 15), write(1, 12, 14), write(0, 18, 25), write(2, 40, 41)];
        assert!(one_writer(&good, &holds).is_ok());
        for bad in [write(0, 11, 12), write(2, 12, 13), write(1, 31, 32), write(0, 50, 60)] {
            assert!(one_writer(std::slice::from_ref(&bad), &holds).is_err(), "{bad:?}");
        }
        let refused = Op { outcome: Outcome::Fail, ..write(0, 11, 12) };
        assert!(one_writer(&[refused], &holds).is_ok());
    }

    #[test]
    fn too_little_is_not_a_pass() {
        let ops: Vec<Op> = (0..3000).map(|n| write(n % 2, n * 10, n * 10 + 15)).collect();
        let figures = Figures::of(&ops, &[], &[], Duration::from_secs(120));
        assert_eq!((figures.writes_ok, figures.reads_ok, figures.gateways), (3000, 0, 1));
        assert_eq!(figures.contended, 2999);
        let why = figures.enough().err().map(|e| e.to_string()).unwrap_or_default();
        for what in ["reads: 0", "faults: 0", "gateways that served: 1"] {
            assert!(why.contains(what), "{why}");
        }
    }
}
