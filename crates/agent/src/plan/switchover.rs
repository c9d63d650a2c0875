//! The plan of a switchover, made by the primary's agent from its own view and its peers' views.

use super::{Finding, Move, Peer, Plan, SAME_SECTION, able, host_ids, in_state, no_gateway, other, runs_other, serves};
use crate::machine::{Role, StateName};
use crate::schedule::{self, Obstacle};
use crate::view::View;

/// At most so many processes that have the pool open are named.
const OPENERS_SHOWN: usize = 8;

/// The time of a scheduled switchover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// Its time, Unix milliseconds.
    pub at_unix_ms: u64,
    /// The present time, likewise.
    pub now_unix_ms: u64,
}

impl When {
    /// Time left until then.
    pub fn seconds(&self) -> u64 {
        self.at_unix_ms.saturating_sub(self.now_unix_ms) / 1000
    }
}

/// The plan of a switchover from the host that shows `own` to `candidate`, or to the only other host; now, or at a
/// time.
pub fn switchover(own: &View, candidate: Option<&str>, peers: &[Peer], when: Option<When>) -> Plan {
    let mut plan = Plan {
        kind: Move::Switchover,
        set: own.set.clone(),
        from: own.name.clone(),
        to: String::new(),
        checks: Vec::new(),
        steps: Vec::new(),
    };
    if let Some(when) = when {
        time(&mut plan, own, when);
    }
    primary(&mut plan, own, peers, when.is_some());
    if let Some((name, view)) = chosen(&mut plan, own, candidate, peers) {
        plan.to.clone_from(name);
        taker(&mut plan, own, name, view);
    }
    let to = plan.to.clone();
    for (name, view) in peers.iter().filter(|(name, _)| *name != to) {
        third(&mut plan, own, name, view);
    }
    host_ids(&mut plan, own, peers);
    if let Some(kept) = &own.added.scheduled {
        let whom = kept.to.as_deref().unwrap_or("the other host");
        let (found, next) = match when {
            Some(_) => (format!("a switchover to {whom} is scheduled already: this one takes its place"), ""),
            None => (
                format!(
                    "a switchover to {whom} is scheduled, and is dropped when it is due and {} is not primary",
                    own.name
                ),
                "`holdfast agent switchover --cancel` ends it",
            ),
        };
        plan.check(Finding::Note, found, next);
    }
    plan.steps = steps(&plan, own, when);
    plan
}

/// Obstacle to a scheduled switchover that this host's own state shows, before any other host is asked.
pub fn obstacle_here(own: &View) -> Option<Obstacle> {
    // AGENT-A4: it was requested before the pause.
    if own.paused {
        return Some(Obstacle::lasting("the host is paused: request it again"));
    }
    if own.state == StateName::Following || own.state == StateName::Primary && own.role == Role::Primary {
        return None;
    }
    let owner = own.lease.owner.as_str();
    if !owner.is_empty() && owner != own.name {
        let found = format!("{owner} holds the lease, and PostgreSQL does not run on {}", own.name);
        return Some(Obstacle::lasting(format!("{found}: ask the agent of {owner}")));
    }
    // It may be starting, or its agent may have been restarted and not have looked yet.
    let next = "`holdfast agent status` shows where PostgreSQL runs";
    Some(Obstacle::transient(format!("{}, expected a running PostgreSQL: {next}", in_state(own))))
}

fn time(plan: &mut Plan, own: &View, when: When) {
    match schedule::may_ask(when.at_unix_ms, when.now_unix_ms) {
        Ok(()) => plan.check(Finding::Good, format!("the time is {} s ahead", when.seconds()), ""),
        Err(refusal) => plan.check(Finding::Impossible, refusal.found, refusal.next),
    }
    if own.paused {
        let found = format!("{} is paused: a switchover that comes due in a pause is dropped", own.name);
        plan.check(Finding::Note, found, "`holdfast agent resume` before it is due");
    }
}

fn primary(plan: &mut Plan, own: &View, peers: &[Peer], later: bool) {
    let from = own.name.as_str();
    match own.state {
        StateName::Primary if own.role == Role::Primary => {
            plan.check(Finding::Good, format!("{from} is primary"), "");
        }
        StateName::Primary => plan.check(Finding::Note, format!("{} and takes no connections now", in_state(own)), ""),
        StateName::Following => {
            plan.check(Finding::Good, format!("{from} runs PostgreSQL, which follows another one"), "");
        }
        _ => return not_primary(plan, own, peers),
    }
    if !matches!(own.database.as_str(), "ready" | "standby") {
        let it = own.workload();
        let section = if it.is_postgresql() { "database" } else { "service" };
        let found = format!(
            "{it} of {from} is {}: if it does not stop in good order within {section}.stop_timeout_s, it is stopped \
             at once, and recovers as after a crash",
            own.database
        );
        plan.check(Finding::Note, found, "");
    }
    if !own.pool.off_set.is_empty() {
        let found =
            format!("not all of PostgreSQL lies on the set, so no host would start it again: {}", own.pool.off_set);
        plan.check(
            Finding::Impossible,
            found,
            "do what is said there first; mount nothing over files of a PostgreSQL that runs",
        );
    }
    users(plan, own, later);
    if !own.lease.cluster_answers {
        let found = format!(
            "{from} reaches no gateway to which it could give the lease back: the other host waits until the lease has run out"
        );
        plan.check(Finding::Note, found, "`holdfast cluster status` shows the gateways");
    }
}

/// Users of the pool other than PostgreSQL. `later`: it is for a time to come, and they may have gone by then.
fn users(plan: &mut Plan, own: &View, later: bool) {
    let from = own.name.as_str();
    let shown = |users: &[String]| users.iter().take(OPENERS_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if !own.pool.openers.is_empty() {
        let (more, named) = (own.pool.openers.len(), shown(&own.pool.openers));
        let found = format!("found {more} users of the pool of {from} other than PostgreSQL, expected none: {named}");
        let next = "end them, or have them close it: a pool in use cannot be exported";
        if later {
            plan.check(Finding::Note, found, next);
        } else {
            plan.not_yet(found, next);
        }
    }
    if !own.pool.leaving.is_empty() {
        let (more, named) = (own.pool.leaving.len(), shown(&own.pool.leaving));
        let found = format!(
            "found {more} users of the pool of {from} that end by themselves: {named}; they are waited for once PostgreSQL is stopped"
        );
        plan.check(Finding::Note, found, "");
    }
}

/// SWITCH-P2: the host from which PostgreSQL could be moved, or an alternative to a switchover.
fn not_primary(plan: &mut Plan, own: &View, peers: &[Peer]) {
    let owner = if own.lease.owner.is_empty() { "nobody" } else { own.lease.owner.as_str() };
    let found = format!("{}, expected primary; {owner} holds the lease", in_state(own));
    let runs = |(_, view): &&Peer| {
        view.as_ref().is_ok_and(|view| matches!(view.state, StateName::Primary | StateName::Following))
    };
    let next = match peers.iter().find(runs) {
        Some((name, _)) => {
            let address =
                own.settings.peers.get(name).map(|address| format!(" (--agent {address})")).unwrap_or_default();
            format!("ask the agent of {name}{address}")
        }
        None if own.state == StateName::Standby => {
            "where PostgreSQL runs nowhere: `holdfast agent failover --candidate HOST`".to_string()
        }
        None => "wait until it is primary, `holdfast agent status` shows it".to_string(),
    };
    if obstacle_here(own).is_some_and(|obstacle| obstacle.transient) {
        plan.not_yet(found, next);
    } else {
        plan.check(Finding::Impossible, found, next);
    }
}

/// The target host.
fn chosen<'a>(plan: &mut Plan, own: &View, candidate: Option<&str>, peers: &'a [Peer]) -> Option<&'a Peer> {
    let known = peers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let from = own.name.as_str();
    let (found, next) = match (candidate, peers) {
        (None, [only]) => return Some(only),
        (_, []) => (
            format!("{from} knows of no other host"),
            format!("add the others under [peers] in the settings of {from}"),
        ),
        (None, _) => (
            format!("found {} peers of {from}, expected a candidate", peers.len()),
            format!("name one with --to: {known}"),
        ),
        (Some(name), _) if name == from => (
            format!("{from} is the host where PostgreSQL runs already"),
            format!("name another host with --to ({known}), or leave it"),
        ),
        (Some(name), _) => match peers.iter().find(|(peer, _)| peer == name) {
            Some(peer) => return Some(peer),
            None => (
                format!("{name} is none of the peers of {from} ({known})"),
                format!("add it under [peers] in the settings of {from}, or name one of those with --to"),
            ),
        },
    };
    plan.check(Finding::Impossible, found, next);
    None
}

/// Whether that host could take over.
fn taker(plan: &mut Plan, own: &View, to: &str, view: &Result<View, String>) {
    let from = own.name.as_str();
    let view = match view {
        Ok(view) => view,
        Err(why) => {
            let next = format!(
                "start `holdfast agent run` on {to}, mend the network between it and {from}, or correct [peers] in the settings of {from}"
            );
            return plan.not_yet(format!("the agent of {to} does not answer ({why})"), next);
        }
    };
    if let Some(found) = other(own, to, view) {
        return plan.check(Finding::Impossible, found, format!("correct [peers] in the settings of {from}"));
    }
    if let Some(found) = runs_other(own, view) {
        // It would find nothing that it can start, after everything was stopped here.
        return plan.check(Finding::Impossible, found, SAME_SECTION);
    }
    match view.state {
        StateName::Standby => plan.check(Finding::Good, format!("{to} stands by"), ""),
        StateName::Primary | StateName::Following => plan.not_yet(
            format!("{}, expected standby", in_state(view)),
            format!("it runs PostgreSQL already: `holdfast agent status` shows which of {from} and {to} holds the lease; the other one is fenced"),
        ),
        _ => plan.not_yet(
            format!("{}, expected standby", in_state(view)),
            "wait until it stands by, `holdfast agent status` shows it",
        ),
    }
    if view.lease.cluster_answers {
        plan.check(Finding::Good, format!("{to} reaches gateways"), "");
    } else {
        no_gateway(plan, to);
    }
    able(plan, view);
    let stands_by = view.state == StateName::Standby && view.lease.cluster_answers && view.pool.unable.is_empty();
    if stands_by && !view.obstacle.is_empty() {
        let found = format!("{to} would not take over automatically ({}); on command it does", view.obstacle);
        plan.check(Finding::Note, found, "");
    }
}

fn third(plan: &mut Plan, own: &View, name: &str, view: &Result<View, String>) {
    let (finding, found, next) = match view {
        Err(why) => (
            Finding::Note,
            format!("the agent of {name} does not answer ({why}); this switchover does not need it"),
            String::new(),
        ),
        Ok(view) => match other(own, name, view) {
            Some(found) => (Finding::Note, found, format!("correct [peers] in the settings of {}", own.name)),
            None if view.state == StateName::Standby => (Finding::Good, format!("{name} stands by"), String::new()),
            None => (Finding::Note, in_state(view), String::new()),
        },
    };
    plan.check(finding, found, next);
}

fn steps(plan: &Plan, own: &View, when: Option<When>) -> Vec<String> {
    let from = own.name.as_str();
    let to = if plan.to.is_empty() { "the other host" } else { plan.to.as_str() };
    let mut steps = Vec::new();
    if let Some(when) = when {
        let late = schedule::LATE_MAX.as_secs();
        steps.push(format!(
            "{from} waits for {} s, across restarts of its agent, and checks all of this once more; more than {late} s late it is dropped",
            when.seconds()
        ));
    }
    steps.push(format!("{to} is told to take the lease as soon as it is free"));
    let it = own.workload();
    let first = if it.is_postgresql() { "a checkpoint while clients continue, then " } else { "" };
    steps.push(format!("{from}: {first}{it} is stopped and its clients are disconnected"));
    steps.push(format!("{from}: unmount the file system or export the pool, detach the devices, give the lease back"));
    steps.push(format!("{to}: take the lease, attach the devices of {}, mount or import, start {it}", plan.set));
    steps.push(match own.state {
        StateName::Following => format!("{to}: PostgreSQL follows on; load balancers find it at /replica"),
        _ => format!("{to}: {}; from then on load balancers are sent there", serves(own)),
    });
    steps
}
