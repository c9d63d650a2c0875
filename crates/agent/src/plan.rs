//! Checks a failover or switchover of PostgreSQL before anything is done. Decides from the views of the agents; no I/O.
//!
//! SWITCH-P1  An impossible move is always refused. A move that loses data is refused unless it is requested
//!     explicitly, with a reason.
//! SWITCH-P2  Every refusal says what would make the move possible.
//!
//! The gateways lose nothing in a takeover: acknowledged writes are there (R1). A PostgreSQL that is killed while it
//! works loses data: commits acknowledged under `synchronous_commit = off` that were not written yet, and the contents
//! of unlogged tables.

use crate::hostid;
use crate::machine::{Role, StateName};
use crate::view::View;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

mod switchover;

pub use switchover::{When, obstacle_here, switchover};

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Finding {
    /// In order.
    Good,
    /// No obstacle, but worth knowing.
    Note,
    /// Data would be lost.
    LosesData,
    /// The move is impossible.
    Impossible,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Its result.
    pub finding: Finding,
    /// The finding.
    pub found: String,
    /// The remedy; "" if none is needed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next: String,
    /// What was found may change by itself within a minute: a scheduled switchover is tried again (TIMED-T3).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transient: bool,
}

/// Kind of move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Move {
    /// A takeover by force.
    Failover,
    /// The primary releases everything in good order first.
    Switchover,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Move::Failover => "failover",
            Move::Switchover => "switchover",
        })
    }
}

/// A planned move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its kind.
    pub kind: Move,
    /// The set.
    pub set: String,
    /// Present owner of the lease; "" if there is none or it is not known. For a switchover: the host that was asked.
    pub from: String,
    /// Next owner; "" if that is not clear.
    pub to: String,
    /// The checks.
    pub checks: Vec<Check>,
    /// The steps, in order.
    pub steps: Vec<String>,
}

/// Another host's agent: its name, and its view or the reason why there is none.
pub type Peer = (String, Result<View, String>);

impl Plan {
    fn check(&mut self, finding: Finding, found: impl Into<String>, next: impl Into<String>) {
        self.checks.push(Check { finding, found: found.into(), next: next.into(), transient: false });
    }

    /// A move that is impossible now, and may be possible soon.
    fn not_yet(&mut self, found: impl Into<String>, next: impl Into<String>) {
        let (found, next) = (found.into(), next.into());
        self.checks.push(Check { finding: Finding::Impossible, found, next, transient: true });
    }

    /// Whether something stands against it now, and all of that may go away by itself.
    pub fn may_pass(&self) -> bool {
        let refuses = |check: &&Check| matches!(check.finding, Finding::LosesData | Finding::Impossible);
        let mut refusing = self.checks.iter().filter(refuses).peekable();
        refusing.peek().is_some() && refusing.all(|check| check.transient)
    }

    fn all(&self, finding: Finding) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(move |check| check.finding == finding)
    }

    /// Whether it may be carried out (SWITCH-P1).
    ///
    /// # Errors
    /// The reason, and the remedy (SWITCH-P2).
    pub fn may_go(&self, allow_data_loss: bool, reason: &str) -> Result<(), String> {
        let told = |check: &Check| {
            if check.next.is_empty() { check.found.clone() } else { format!("{}: {}", check.found, check.next) }
        };
        let impossible: Vec<String> = self.all(Finding::Impossible).map(told).collect();
        if !impossible.is_empty() {
            return Err(impossible.join("; "));
        }
        let losing: Vec<String> = self.all(Finding::LosesData).map(told).collect();
        match (losing.is_empty(), allow_data_loss) {
            (true, _) => Ok(()),
            (false, true) if !reason.trim().is_empty() => Ok(()),
            (false, true) => {
                let words = "data would be lost, and no reason is given: --reason \"...\" goes into the history";
                Err(format!("{words}; {}", losing.join("; ")))
            }
            (false, false) => Err(losing.join("; ")),
        }
    }
}

/// The plan of a forced takeover by the host that shows `own`.
pub fn failover(own: &View, peers: &[Peer]) -> Plan {
    let (to, set) = (own.name.clone(), own.set.clone());
    let mut plan = Plan {
        kind: Move::Failover,
        set,
        from: own.lease.owner.clone(),
        to: to.clone(),
        checks: Vec::new(),
        steps: Vec::new(),
    };
    match own.state {
        StateName::Standby => plan.check(Finding::Good, format!("{to} stands by"), ""),
        StateName::Primary => plan.check(
            Finding::Impossible,
            format!("{to} is primary already"),
            "name another host with --candidate; otherwise there is nothing to do",
        ),
        _ => {
            let next = "wait until it stands by, `holdfast agent status` shows it";
            plan.check(Finding::Impossible, format!("{}, expected standby", in_state(own)), next);
        }
    }
    if own.lease.cluster_answers {
        plan.check(Finding::Good, format!("{to} reaches gateways"), "");
    } else {
        no_gateway(&mut plan, &to);
    }
    able(&mut plan, own);
    for (name, view) in peers {
        peer(&mut plan, own, name, view);
    }
    lease(&mut plan, own, peers);
    host_ids(&mut plan, own, peers);
    if own.paused {
        plan.check(
            Finding::Note,
            format!("{to} is paused: it takes over nevertheless, and does nothing automatically afterwards"),
            "",
        );
    }
    if own.settings.nofailover {
        plan.check(Finding::Note, format!("nofailover is set for {to}: it takes over in spite of that"), "");
    }
    let whose = if plan.from.is_empty() {
        "take the lease, which is free".into()
    } else {
        format!("take the lease from {} by force: each of its writes is refused from then on", plan.from)
    };
    plan.steps = vec![
        whose,
        format!("attach the devices of {}, check and mount the file system or import the pool", plan.set),
        format!("start {}, which recovers as after a crash", own.workload()),
        format!("{}; from then on load balancers are sent here", serves(own)),
    ];
    plan
}

/// A host with its state and the reason for that state.
fn in_state(view: &View) -> String {
    let why = if view.why.is_empty() { String::new() } else { format!(" ({})", view.why) };
    format!("{} is in state {}{why}", view.name, view.state)
}

/// By the host's last question for the lease: the gateway that it asked may be back by its next one.
fn no_gateway(plan: &mut Plan, host: &str) {
    plan.not_yet(
        format!("{host} reaches no gateway that could grant it the lease"),
        format!("start the gateways (`holdfast cluster status`), or mend the network between them and {host}"),
    );
}

/// The error for a view that comes from another agent than expected.
fn other(own: &View, name: &str, view: &View) -> Option<String> {
    let words = || format!("{name}: found {} of set {}, expected {name} of set {}", view.name, view.set, own.set);
    (view.set != own.set || view.name != name).then(words)
}

/// What a host waits for before it shows itself as primary (AGENT-A5).
fn serves(view: &View) -> &'static str {
    if view.workload().is_postgresql() { "make a first commit durable" } else { "wait until its check succeeds" }
}

/// The error for a host that would run something else on the set.
fn runs_other(own: &View, view: &View) -> Option<String> {
    let words = || format!("{} is set up for {}, and {} for {}", view.name, view.workload(), own.name, own.workload());
    (view.service != own.service).then(words)
}

/// What to do about [`runs_other`].
const SAME_SECTION: &str = "give all hosts of a set the same section, [database] or [service] with the same name";

/// Obstacles to a takeover, however it was requested. Some are there only until an agent that was just started has
/// looked at its host and asked the others.
fn able(plan: &mut Plan, taker: &View) {
    if !taker.pool.unable.is_empty() {
        plan.not_yet(format!("{} cannot take over: {}", taker.name, taker.pool.unable), "");
    }
}

/// Hosts with the same ZFS host id. The lease still decides which host writes, so this is only a note. It is an
/// obstacle if the new host imports nothing under an id that another host has too.
fn host_ids(plan: &mut Plan, own: &View, peers: &[Peer]) {
    let right = |(name, view): &&Peer| view.as_ref().is_ok_and(|view| other(own, name, view).is_none());
    let hosts = || std::iter::once(own).chain(peers.iter().filter(right).filter_map(|(_, view)| view.as_ref().ok()));
    let careful = hosts().any(|view| view.name == plan.to && view.pool.multihost);
    let mut seen = BTreeMap::<&str, Vec<&str>>::new();
    for view in hosts().filter(|view| !view.pool.host_id.is_empty()) {
        seen.entry(view.pool.host_id.as_str()).or_default().push(&view.name);
    }
    for (id, names) in seen {
        if id == hostid::NONE {
            let found = format!("{}: the host id of ZFS is not set", names.join(", "));
            plan.check(Finding::Note, found, hostid::GENERATE);
        } else if names.len() > 1 {
            let found = format!("{} have the same host id of ZFS, {id}", names.join(" and "));
            let refused = careful && names.contains(&plan.to.as_str());
            plan.check(if refused { Finding::Impossible } else { Finding::Note }, found, hostid::GENERATE);
        }
    }
}

fn peer(plan: &mut Plan, own: &View, name: &str, view: &Result<View, String>) {
    let to = own.name.as_str();
    let view = match view {
        Ok(view) => view,
        Err(why) => {
            let found = format!(
                "the agent of {name} does not answer ({why}): a {} that still runs there is fenced by the grant",
                own.workload()
            );
            return plan.check(Finding::Note, found, "");
        }
    };
    if let Some(found) = other(own, name, view) {
        return plan.check(Finding::Note, found, format!("correct [peers] in the settings of {to}"));
    }
    if let Some(found) = runs_other(own, view) {
        plan.check(Finding::Note, found, SAME_SECTION);
    }
    match (view.role, view.state) {
        (Role::Primary, _) if view.database == "ready" && !view.workload().is_postgresql() => plan.check(
            Finding::LosesData,
            format!(
                "{name} is primary and healthy: this ends its {} as a crash would, and what it has not flushed is lost",
                view.workload()
            ),
            format!("`holdfast agent switchover --to {to}` loses nothing; or say --allow-data-loss --reason \"...\""),
        ),
        (Role::Primary, _) if view.database == "ready" => plan.check(
            Finding::LosesData,
            format!(
                "{name} is primary and healthy: this ends its PostgreSQL as a crash would. Commits acknowledged under synchronous_commit = off and the \
                 contents of unlogged tables are lost, transactions under way fail"
            ),
            format!("`holdfast agent switchover --to {to}` loses nothing; or say --allow-data-loss --reason \"...\""),
        ),
        (Role::Primary, _) | (_, StateName::Primary) => {
            let found = format!("{name} is primary, and its {} is {}", view.workload(), view.database);
            plan.check(Finding::Note, found, "");
        }
        (_, StateName::Standby) => plan.check(Finding::Good, format!("{name} stands by"), ""),
        (_, state) => plan.check(Finding::Note, format!("{name} is in state {state}: it is fenced by the grant"), ""),
    }
}

fn lease(plan: &mut Plan, own: &View, peers: &[Peer]) {
    let owner = own.lease.owner.as_str();
    if owner.is_empty() {
        let found =
            if own.lease.cluster_answers { "nobody holds the lease" } else { "the holder of the lease is not known" };
        plan.check(if own.lease.cluster_answers { Finding::Good } else { Finding::Note }, found, "");
    } else if owner == own.name || peers.iter().any(|(name, _)| name == owner) {
        plan.check(Finding::Note, format!("{owner} holds the lease"), "");
    } else {
        plan.check(
            Finding::LosesData,
            format!("{owner} holds the lease and is no host of an agent here: data that it has not written yet is lost"),
            format!(
                "release it with `holdfast attach {} --detach` on the host where it is attached; or say --allow-data-loss --reason \"...\"",
                own.set
            ),
        );
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
