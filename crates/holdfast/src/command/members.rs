//! Cluster membership: `holdfast gateway add`, `remove`, `replace`, `drain`, `undrain`, `update`. The gateways
//! do the work; this module requests it and shows the progress.

mod drain_plan;

use super::cluster::{admit, fit_key, node, status};
use super::connect::connect;
use super::console::{confirm, tell};
use super::text::member_text;
use crate::cli::{Common, MembersCommand, member};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::CliError;
use crate::output::{self, Format};
use holdfast_api::{member_of, v1};
use holdfast_types::MemberId;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Poll interval of a wait.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Default time limit of a wait: a new member copies the journals. The change continues after it.
const WAIT: Duration = Duration::from_secs(600);

/// Entries behind the leader with which a member counts as caught up: fewer than one apply round under load.
const CAUGHT_UP_ENTRIES: u64 = 64;

/// How long a newcomer that votes wherever it is named waits for the planner to look at it. It looks every 5 s.
const PLAN_LIMIT: Duration = Duration::from_secs(15);

/// Most sets that a sentence lists; `holdfast gateway list` shows all.
const SETS_NAMED_MAX: usize = 8;

/// Like `SETS_NAMED_MAX`, for a line of progress.
const WAITS_NAMED_MAX: usize = 3;

/// The state that a wait ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// It votes in every group in which it has a place, or learns group 0 and is to get no vote there; and it has
    /// caught up.
    In,
    /// It is in no group, and not a member.
    Out,
    /// It leads nothing, and knows that it is drained: it does not become leader if another leader fails.
    Idle,
}

/// Progress of a membership change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Progress {
    member: u64,
    groups: usize,
    groups_done: usize,
    /// Log entries that it does not have yet, over all groups.
    entries_behind: u64,
    /// The sets that are not done; "the cluster" for group 0.
    waits_for: Vec<String>,
    /// The planner has not looked at it yet, and may want more of it.
    unplanned: bool,
}

impl Progress {
    fn done(&self) -> bool {
        self.groups > 0 && self.groups_done == self.groups
    }

    fn text(&self, goal: Goal) -> String {
        const CELLS: usize = 20;
        let filled = (CELLS * self.groups_done).checked_div(self.groups).unwrap_or(0);
        let bar = format!("[{}{}]", "#".repeat(filled), ".".repeat(CELLS - filled));
        let (done, all, waits) = (self.groups_done, self.groups, self.waits());
        match goal {
            Goal::In => {
                format!("{bar} in {done} of {all} groups, {} log entries behind{waits}", self.entries_behind)
            }
            Goal::Out => format!("{bar} removed from {done} of {all} groups{waits}"),
            Goal::Idle => format!("{bar} not the leader in {done} of {all} groups{waits}"),
        }
    }

    /// The sets that it waits for, for people.
    fn waits(&self) -> String {
        let named: Vec<&str> = self.waits_for.iter().take(WAITS_NAMED_MAX).map(String::as_str).collect();
        let more = match self.waits_for.len() - named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        match (named.is_empty(), self.unplanned && self.done()) {
            (false, _) => format!(", waits for {}{more}", named.join(", ")),
            (true, true) => ", waits for the planner of sets' voters".to_string(),
            (true, false) => String::new(),
        }
    }
}

fn id_of(member: &v1::MemberStatus) -> u64 {
    member.member.as_ref().map_or(0, |member| member.id)
}

/// The plan for sets' voters, by the leader of group 0.
fn plan(status: &v1::ClusterStatusReply) -> Option<&v1::Plan> {
    status.members.iter().find_map(|member| member.node.as_ref()?.plan.as_ref())
}

/// Whether `member` is to vote in the set of `group`: its record says so, or the plan wants it there. A set whose
/// policy forbids it, or that has enough voters, is not waited for.
fn is_for(status: &v1::ClusterStatusReply, group: u64, member: MemberId) -> bool {
    let set = status.sets.iter().find(|set| set.id == group);
    let planned = || {
        let sets = plan(status).map(|plan| plan.sets.as_slice()).unwrap_or_default();
        sets.iter().any(|set| set.set == group && set.newcomers.contains(&member.0))
    };
    set.is_none_or(|set| set.voters.is_empty() || set.voters.contains(&member.0)) || planned()
}

/// Whether the planner may still want votes of `member` that its last plan does not name.
fn is_unplanned(status: &v1::ClusterStatusReply, member: MemberId) -> bool {
    let placed = status.sets.iter().any(|set| !set.voters.is_empty());
    placed && plan(status).is_none_or(|plan| !plan.takers.contains(&member.0))
}

fn progress(status: &v1::ClusterStatusReply, member: MemberId, goal: Goal) -> Progress {
    let own = status.members.iter().find(|m| id_of(m) == member.0);
    let behind = |group: u64| own.and_then(|own| own.lags.iter().find(|lag| lag.group == group)).map(|lag| lag.entries);
    let done = |group: &&v1::GroupSummary| {
        let leader = status.members.iter().find(|m| group.leader != 0 && id_of(m) == group.leader);
        let at_leader =
            leader.and_then(|m| m.node.as_ref()).and_then(|node| node.groups.iter().find(|g| g.group == group.group));
        let own_view = own.and_then(|m| m.node.as_ref()?.groups.iter().find(|seen| seen.group == group.group));
        match goal {
            Goal::In => {
                let votes = at_leader.is_some_and(|seen| seen.voters.contains(&member.0));
                // Of group 0 some vote, and its leader knows who does not (ADR 0075).
                let learns =
                    group.group == 0 && plan(status).is_some_and(|plan| plan.cluster_learners.contains(&member.0));
                let knows = own_view.is_some_and(|seen| match seen.role() {
                    v1::Role::Leader | v1::Role::Follower => true,
                    role => learns && role == v1::Role::Learner,
                });
                (votes || learns) && knows && behind(group.group).is_some_and(|entries| entries <= CAUGHT_UP_ENTRIES)
            }
            Goal::Out => {
                at_leader.is_some_and(|seen| !seen.voters.contains(&member.0) && !seen.learners.contains(&member.0))
            }
            Goal::Idle => {
                let unaware = own.and_then(|m| m.node.as_ref()).is_some_and(|node| node.standing != "drained");
                let leads = own_view.is_some_and(|seen| seen.role() == v1::Role::Leader);
                group.leader != 0 && group.leader != member.0 && !leads && !unaware
            }
        }
    };
    let concerned = |group: &&v1::GroupSummary| goal != Goal::In || is_for(status, group.group, member);
    let groups = || status.groups.iter().filter(concerned);
    let name = |group: &v1::GroupSummary| if group.group == 0 { "the cluster".to_string() } else { group.set.clone() };
    let waits_for = groups().filter(|group| !done(group)).map(name).filter(|name| !name.is_empty()).collect();
    // The last step: removal from the list of members.
    let listed = usize::from(goal == Goal::Out && own.is_some());
    Progress {
        member: member.0,
        groups: groups().count(),
        groups_done: groups().filter(done).count().saturating_sub(listed),
        entries_behind: groups().filter_map(|group| behind(group.group)).sum(),
        waits_for,
        unplanned: goal == Goal::In && is_unplanned(status, member),
    }
}

/// Shows progress on standard error: one line that is overwritten on a terminal, otherwise one line per change; JSON
/// for programs.
struct Shown {
    format: Format,
    terminal: bool,
    last: Option<Progress>,
}

impl Shown {
    fn new(common: &Common) -> Self {
        Self { format: common.output, terminal: std::io::stderr().is_terminal(), last: None }
    }

    fn show(&mut self, goal: Goal, now: &Progress) {
        if self.last.as_ref() == Some(now) {
            return;
        }
        let mut err = std::io::stderr().lock();
        let _ = match (self.format, self.terminal) {
            (Format::Json, _) => writeln!(err, "{}", serde_json::json!({ "progress": now })),
            (Format::Table, true) => write!(err, "\r{}\x1b[K", now.text(goal)),
            (Format::Table, false) => writeln!(err, "{}", now.text(goal)),
        };
        let _ = err.flush();
        self.last = Some(now.clone());
    }

    fn end(&self) {
        if self.terminal && self.format == Format::Table && self.last.is_some() {
            output::remark("");
        }
    }
}

/// What a wait that ends early has behind it.
const ORDERED: &str = "the change was ordered, and continues in the background";

/// Waits until `member` reaches `goal`. `false` if the time ends first.
async fn wait_for(
    common: &Common,
    seen: &v1::ClusterStatusReply,
    member: MemberId,
    goal: Goal,
) -> Result<bool, CliError> {
    // Without the removed gateway: it is the last to know, and exits.
    let doors =
        seen.members.iter().filter(|m| goal != Goal::Out || id_of(m) != member.0).filter_map(|m| m.member.as_ref());
    let mut addresses: Vec<String> = doors.filter_map(|m| m.addresses.as_ref()).map(|a| a.api.clone()).collect();
    if addresses.is_empty() {
        addresses.clone_from(&common.api);
    }
    let mut api = ClusterClient::new(&common.dialer, &addresses, common.timeout.unwrap_or(WAIT));
    let mut shown = Shown::new(common);
    let mut done_since: Option<Instant> = None;
    let outcome = loop {
        match status(&mut api).await {
            Ok(status) => {
                let now = progress(&status, member, goal);
                shown.show(goal, &now);
                done_since = now.done().then(|| done_since.unwrap_or_else(Instant::now));
                // A gateway without room gets no votes, and one that is not heard yet may get some.
                if done_since.is_some_and(|since| !now.unplanned || since.elapsed() >= PLAN_LIMIT) {
                    break Ok(true);
                }
            }
            Err(error) => break Err(error.after_a_change(ORDERED)),
        }
        if Instant::now() + LOOK_INTERVAL >= api.deadline() {
            break Ok(done_since.is_some());
        }
        sleep(LOOK_INTERVAL).await;
    };
    shown.end();
    outcome
}

fn late(common: &Common, what: &str) -> CliError {
    let limit = common.timeout.unwrap_or(WAIT);
    CliError::failed(format!("{what} within {limit:?}"))
        .next("it continues in the background: `holdfast gateway list` shows the progress")
}

/// Finds a member by name or id. Of two members with the same name, the one that is not leaving.
fn find(seen: &v1::ClusterStatusReply, wanted: &str) -> Result<v1::Member, CliError> {
    let all = || seen.members.iter().filter_map(|m| m.member.as_ref());
    let id = member(wanted).map_or(0, |id| id.0);
    let named = || all().filter(|m| m.name == wanted);
    let found = named().find(|m| m.standing != "leaving").or_else(|| named().next());
    found.or_else(|| all().find(|m| m.id == id)).cloned().ok_or_else(|| {
        let known: Vec<String> = all().map(|m| format!("{} ({})", m.name, member_text(m.id))).collect();
        CliError::refused(format!("there is no gateway {wanted}, expected one of {}", known.join(", ")))
            .next("`holdfast gateway list` shows all; a removed gateway that joins again has a new member id")
    })
}

/// Runs the command.
pub async fn run(common: &Common, command: MembersCommand) -> Result<(), CliError> {
    match command {
        MembersCommand::List => super::gateway_list::run(common).await,
        MembersCommand::Add { address, no_wait } => join(common, &address, None, true, !no_wait).await,
        MembersCommand::Replace { old, by, yes, no_wait } => join(common, &by, Some(&old), yes, !no_wait).await,
        MembersCommand::Remove { gateway, force, yes, no_wait } => remove(common, &gateway, force, yes, !no_wait).await,
        MembersCommand::Drain { gateway, force, no_wait, dry_run } => {
            drain(common, &gateway, force, !no_wait, dry_run).await
        }
        MembersCommand::Undrain { gateway } => undrain(common, &gateway).await,
        MembersCommand::Update { gateway, address } => update(common, &gateway, &address).await,
    }
}

/// A gateway cannot replace itself: the wait for its removal would never end.
fn expect_other(old: &v1::Member, new: &v1::Node, address: &str) -> Result<(), CliError> {
    if old.disk != new.disk {
        return Ok(());
    }
    let error = CliError::refused(format!(
        "{address} is {} ({}) itself, expected a new gateway",
        member_text(old.id),
        old.name
    ));
    Err(error
        .next("give --by the address of another gateway; to join again as a new member it needs an empty data_dir"))
}

/// The end of `add` and `replace`. A newcomer votes in a set only where the set needs it.
fn joined(newcomer: &str, caught_up: bool, old: Option<&str>) -> String {
    match (caught_up, old) {
        (true, None) => format!(
            "{newcomer} has joined and votes in each group that needs it. Later sets may move to it: `holdfast gateway \
             list` counts its votes."
        ),
        (true, Some(old)) => format!("{newcomer} has the votes of {old}, which is removed."),
        (false, _) => format!("{newcomer} is registered. `holdfast gateway list` shows the progress."),
    }
}

async fn join(common: &Common, address: &str, old: Option<&str>, yes: bool, wait: bool) -> Result<(), CliError> {
    let mut api = connect(common);
    let seen = status(&mut api).await?;
    let old = old.map(|old| find(&seen, old)).transpose()?;
    let node = node(&mut api.only(address)).await?;
    if let Some(old) = &old {
        expect_other(old, &node, address)?;
    }
    fit_key(&node, seen.members.iter().filter_map(|member| member.node.as_ref()))?;
    if let Some(old) = old.as_ref().filter(|_| !yes) {
        let (member, name, by) = (member_text(old.id), &old.name, &node.name);
        confirm(&format!(
            "Replace {member} ({name}) by {by} at {address}? {member} is removed from the cluster permanently."
        ))?;
        // The time limit starts after the answer.
        api = connect(common);
    }
    let mut only = api.only(address);
    let member = admit(&mut api, &mut only, &node, old.as_ref().map(|old| MemberId(old.id))).await?;
    let role = if node.role == "witness" { "witness" } else { "gateway" };
    tell(common, &format!("{role} {} joined as {member} and is catching up", node.name));
    let mut caught_up = wait && wait_for(common, &seen, member, Goal::In).await?;
    if let Some(old) = old.as_ref().filter(|_| caught_up) {
        caught_up = wait_for(common, &seen, MemberId(old.id), Goal::Out).await?;
    }
    let replaced = old.as_ref().map(|old| old.id);
    let json = serde_json::json!({
        "gateway": node.name, "member": member.0, "role": role, "replaced": replaced, "caught_up": caught_up,
    });
    let old = old.as_ref().map(|old| member_text(old.id));
    output::show(common.output, &json, || joined(&format!("{member} ({})", node.name), caught_up, old.as_deref()))?;
    if wait && !caught_up {
        return Err(late(common, &format!("{member} is registered, but has not caught up")));
    }
    Ok(())
}

async fn remove(common: &Common, gateway: &str, force: bool, yes: bool, wait: bool) -> Result<(), CliError> {
    let mut api = connect(common);
    let seen = status(&mut api).await?;
    let found = find(&seen, gateway)?;
    let member = MemberId(found.id);
    if !yes {
        let left = seen.members.len() - 1;
        confirm(&format!("Remove {member} ({}) from the cluster permanently? {left} members remain.", found.name))?;
        api = connect(common);
    }
    let request = v1::RemoveMemberRequest { member: member.0, request_id: request_id(), force };
    let call = async |mut client: Client| client.remove_member(request.clone()).await;
    api.call("remove the gateway", Effect::Changes, call).await?;
    let gone = wait && wait_for(common, &seen, member, Goal::Out).await?;
    let json = serde_json::json!({ "member": member.0, "gateway": found.name, "gone": gone });
    output::show(common.output, &json, || match gone {
        true => format!("{member} ({}) is removed from the cluster; its process exits by itself.", found.name),
        false => format!("{member} ({}) is leaving. `holdfast gateway list` shows it until it is removed.", found.name),
    })?;
    if wait && !gone {
        return Err(late(common, &format!("{member} is leaving, but is not removed")));
    }
    Ok(())
}

async fn drain(common: &Common, gateway: &str, force: bool, wait: bool, dry_run: bool) -> Result<(), CliError> {
    let mut api = connect(common);
    let seen = status(&mut api).await?;
    let found = find(&seen, gateway)?;
    if dry_run {
        return drain_plan::show(common, &mut api, &found, force).await;
    }
    let member = MemberId(found.id);
    let request = v1::DrainMemberRequest { member: member.0, drained: true, force, request_id: request_id() };
    let call = async |mut client: Client| client.drain_member(request.clone()).await;
    api.call("drain the gateway", Effect::Changes, call).await?;
    let idle = wait && wait_for(common, &seen, member, Goal::Idle).await?;
    let json = serde_json::json!({ "member": member.0, "gateway": found.name, "drained": true, "idle": idle });
    output::show(common.output, &json, || match (idle, force) {
        (true, false) => format!(
            "{} is drained: it leads nothing and may be stopped. `holdfast gateway undrain {}` allows it to lead again; sets return by \
             `holdfast switchover`, and by themselves only to be near their owner or their home.",
            found.name, found.name
        ),
        (true, true) => format!("{} is drained: it leads nothing. Do not stop it: others need it.", found.name),
        (false, _) => format!("{} is drained. `holdfast gateway list` shows what it still leads.", found.name),
    })?;
    if wait && !idle {
        return Err(late(common, &format!("{} is drained, but still leads", found.name)));
    }
    Ok(())
}

async fn undrain(common: &Common, gateway: &str) -> Result<(), CliError> {
    let mut api = connect(common);
    let seen = status(&mut api).await?;
    let found = find(&seen, gateway)?;
    let request = v1::DrainMemberRequest { member: found.id, drained: false, force: false, request_id: request_id() };
    let call = async |mut client: Client| client.drain_member(request.clone()).await;
    api.call("undrain the gateway", Effect::Changes, call).await?;
    let json = serde_json::json!({ "member": found.id, "gateway": found.name, "drained": false });
    output::show(common.output, &json, || may_lead_again(&seen, &found))
}

/// The result of `undrain`, with advice: sets move back by themselves only where they follow an owner or a home.
fn may_lead_again(seen: &v1::ClusterStatusReply, gateway: &v1::Member) -> String {
    let (name, id) = (&gateway.name, gateway.id);
    // A set moves to one of its voters only; while the gateway was drained, its votes may have gone.
    let votes = |group: &v1::GroupSummary| {
        let set = seen.sets.iter().find(|set| set.id == group.group);
        set.is_none_or(|set| set.voters.is_empty() || set.voters.contains(&id))
    };
    let other = |group: &&v1::GroupSummary| group.group != 0 && group.leader != id && votes(group);
    let elsewhere: Vec<&v1::GroupSummary> = seen.groups.iter().filter(other).collect();
    let Some(first) = elsewhere.first().filter(|_| gateway.role != "witness") else {
        return format!("{name} may lead again.");
    };
    let at = |group: &&v1::GroupSummary| match group.leader_name.as_str() {
        "" => format!("{} (no leader)", group.set),
        leader => format!("{} (at {leader})", group.set),
    };
    let sets: Vec<String> = elsewhere.iter().take(SETS_NAMED_MAX).map(at).collect();
    let more = match elsewhere.len() - sets.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "{name} may lead again. Sets move back by themselves only to be near their owner or their home. At other gateways: {}{more}. \
         To move one: `holdfast switchover {} --to {name}`.",
        sets.join(", "),
        first.set
    )
}

async fn update(common: &Common, gateway: &str, address: &str) -> Result<(), CliError> {
    let mut api = connect(common);
    let seen = status(&mut api).await?;
    let found = find(&seen, gateway)?;
    let node = node(&mut api.only(address)).await?;
    let request =
        v1::UpdateMemberRequest { member: found.id, gateway: Some(member_of(&node)), request_id: request_id() };
    let call = async |mut client: Client| client.update_member(request.clone()).await;
    api.call("update the gateway's addresses", Effect::Changes, call).await?;
    let json = serde_json::json!({ "member": found.id, "gateway": found.name, "addresses": node.addresses });
    output::show(common.output, &json, || format!("{} is now registered at {address}.", found.name))
}

#[cfg(test)]
mod tests;
