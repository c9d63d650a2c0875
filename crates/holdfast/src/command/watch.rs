//! `holdfast watch`: changes of sets, leases and gateways. On a terminal a table that is redrawn, otherwise a line for
//! each change.

use super::cluster;
use super::text::epoch_text;
use crate::cli::{Common, WatchArgs};
use crate::client::{Client, ClusterClient};
use crate::exit::CliError;
use crate::output;
use crate::serve;
use crate::timestamp;
use futures_util::future::join_all;
use holdfast_api::v1;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::time::Duration;

/// Time limit for one gateway's view of one set. After the first timeout this gateway is not asked for further sets.
const VIEWS_LIMIT: Duration = Duration::from_secs(1);

/// Clears the terminal and moves the cursor to the top left.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Result of one poll: only values whose changes are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct PollResult {
    /// Why the poll failed.
    error: Option<String>,
    gateways: BTreeMap<String, String>,
    sets: BTreeMap<String, SetPoll>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct SetPoll {
    /// A name can belong to different sets over time.
    #[serde(skip)]
    id: u64,
    gateway: String,
    owner: String,
    epoch: u64,
    #[serde(skip)]
    remaining_ms: u32,
    #[serde(skip)]
    ttl_ms: u32,
}

impl SetPoll {
    /// The text of a line, without the remaining time, which always changes.
    fn words(&self) -> String {
        let gateway = if self.gateway.is_empty() { "none" } else { &self.gateway };
        match self.owner.as_str() {
            "" => format!("gateway {gateway}, no owner"),
            owner => format!("gateway {gateway}, owner {owner}, epoch {}", epoch_text(self.epoch)),
        }
    }

    fn same(&self, other: &Self) -> bool {
        self.words() == other.words()
    }
}

/// Runs `holdfast watch`.
pub async fn run(common: &Common, args: &WatchArgs) -> Result<(), CliError> {
    let live = std::io::stdout().is_terminal() && common.output == output::Format::Table;
    let mut before: Option<PollResult> = None;
    let mut left = args.count;
    let mut ticks = tokio::time::interval(args.every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // Registered once: a signal between two polls would be lost otherwise.
    let stop = serve::terminal_signal();
    tokio::pin!(stop);
    loop {
        if left == Some(0) {
            return Ok(());
        }
        left = left.map(|left| left - 1);
        tokio::select! {
            biased;
            signal = &mut stop => return signal.map(|_| ()),
            _ = ticks.tick() => {}
        }
        let seen = tokio::select! {
            biased;
            signal = &mut stop => return signal.map(|_| ()),
            seen = look(common) => seen,
        };
        let seen = not_older(before.as_ref(), seen);
        let now = timestamp::now();
        match (live, common.output) {
            (true, _) => output::say(&format!("{CLEAR}{now}\n\n{}", table(&seen))),
            (false, output::Format::Table) => {
                changes(before.as_ref(), &seen).iter().for_each(|line| output::say(&format!("{now}  {line}")));
            }
            (false, output::Format::Json)
                if before.as_ref().is_none_or(|before| !changes(Some(before), &seen).is_empty()) =>
            {
                output::show(common.output, &serde_json::json!({ "at": now.to_string(), "seen": seen }), String::new)?;
            }
            (false, output::Format::Json) => {}
        }
        before = Some(seen);
    }
}

async fn look(common: &Common) -> PollResult {
    let mut api = ClusterClient::new(&common.dialer, &common.api, common.timeout());
    let status = match cluster::status(&mut api).await {
        Ok(status) => status,
        Err(error) => return PollResult { error: Some(error.message), ..PollResult::default() },
    };
    let names: Vec<&str> = status.sets.iter().map(|summary| summary.name.as_str()).collect();
    let addresses = status.members.iter().filter_map(|status| status.member.as_ref()?.addresses.as_ref());
    let addresses: BTreeSet<&str> =
        addresses.map(|addresses| addresses.api.as_str()).chain(common.api.iter().map(String::as_str)).collect();
    let views: Vec<Views> = join_all(addresses.into_iter().map(|address| ask(common, address, &names))).await;
    let sets = names.iter().filter_map(|name| {
        let of_it: Vec<&v1::SetStatus> = views.iter().filter_map(|views| views.get(*name)).collect();
        Some(((*name).to_string(), newest(&of_it)?))
    });
    PollResult { error: None, gateways: gateways(&status), sets: sets.collect() }
}

/// One gateway's view of each set.
type Views = BTreeMap<String, v1::SetStatus>;

/// Asks one gateway for its own view, without confirmation by a majority: sets without a leader are shown too.
async fn ask(common: &Common, address: &str, names: &[&str]) -> Views {
    let mut api = ClusterClient::new(&common.dialer, &[], common.timeout());
    let mut views = Views::new();
    for name in names {
        let request = v1::GetSetRequest { set: (*name).to_string(), any_view: true };
        let call = async |mut client: Client| client.get_set(request.clone()).await;
        match tokio::time::timeout(VIEWS_LIMIT, api.once(address, call)).await {
            Ok(Some(view)) => drop(views.insert((*name).to_string(), view)),
            // It may not know this set yet.
            Ok(None) => {}
            Err(_) => break,
        }
    }
    views
}

/// Keeps the previous state of a set if this poll returned an older one (a lease with a lower epoch), because fewer
/// gateways answered.
fn not_older(before: Option<&PollResult>, mut now: PollResult) -> PollResult {
    let Some(before) = before else { return now };
    for (name, set) in &mut now.sets {
        if let Some(known) = before.sets.get(name).filter(|known| known.id == set.id && known.epoch > set.epoch) {
            *set = known.clone();
        }
    }
    now
}

/// Combines the views of several gateways. A partitioned or restarted gateway may have an old view: the lease is taken
/// from the view with the highest epoch, the leader from the view with the highest term.
fn newest(views: &[&v1::SetStatus]) -> Option<SetPoll> {
    let leads = |view: &v1::SetStatus| view.leader.as_ref().is_some_and(|leader| leader.id == view.answered_by);
    let of_lease = views.iter().max_by_key(|view| (view.epoch, view.applied_index, leads(view)))?;
    let of_leader = views.iter().max_by_key(|view| (view.term, view.leader.is_some()))?;
    let lease = of_lease.lease.clone().unwrap_or_default();
    Some(SetPoll {
        id: of_lease.set.as_ref().map_or(0, |summary| summary.id),
        gateway: of_leader.leader.as_ref().map(|leader| leader.name.clone()).unwrap_or_default(),
        owner: lease.owner,
        epoch: if of_lease.lease.is_some() { lease.epoch } else { of_lease.epoch },
        remaining_ms: lease.remaining_ms,
        ttl_ms: lease.ttl_ms,
    })
}

fn gateways(status: &v1::ClusterStatusReply) -> BTreeMap<String, String> {
    let of = status.members.iter().map(|member| {
        let name = member.member.as_ref().map(|known| known.name.clone()).unwrap_or_default();
        let state = match &member.node {
            None => "unreachable".to_string(),
            Some(node) if node.not_ready.is_empty() => "ready".into(),
            Some(node) => node.not_ready.clone(),
        };
        (name, state)
    });
    of.collect()
}

/// A line for each change, or for everything if there is no previous state.
fn changes(before: Option<&PollResult>, now: &PollResult) -> Vec<String> {
    if let Some(error) = &now.error {
        let known = before.is_some_and(|before| before.error.is_some());
        return if known { Vec::new() } else { vec![format!("no answer: {error}")] };
    }
    // After a failed poll everything is shown again.
    let before = before.filter(|before| before.error.is_none());
    let mut lines = Vec::new();
    for (name, state) in &now.gateways {
        if before.and_then(|before| before.gateways.get(name)) != Some(state) {
            lines.push(format!("gateway {name}: {state}"));
        }
    }
    for (name, set) in &now.sets {
        if !before.and_then(|before| before.sets.get(name)).is_some_and(|before| before.same(set)) {
            lines.push(format!("set {name}: {}", set.words()));
        }
    }
    let Some(before) = before else { return lines };
    let gone = before.gateways.keys().filter(|name| !now.gateways.contains_key(*name));
    lines.extend(gone.map(|name| format!("gateway {name}: removed")));
    let gone = before.sets.keys().filter(|name| !now.sets.contains_key(*name));
    lines.extend(gone.map(|name| format!("set {name}: no gateway reports it")));
    lines
}

fn table(seen: &PollResult) -> String {
    if let Some(error) = &seen.error {
        return format!("no answer: {error}");
    }
    let sets = seen.sets.iter().map(|(name, set)| {
        let owner = if set.owner.is_empty() { "none".to_string() } else { set.owner.clone() };
        let left =
            if set.owner.is_empty() { String::new() } else { format!("{} of {} ms", set.remaining_ms, set.ttl_ms) };
        [name.clone(), set.gateway.clone(), owner, epoch_text(set.epoch), left]
    });
    let gateways = seen.gateways.iter().map(|(name, state)| {
        let serves = seen.sets.iter().filter(|(_, set)| set.gateway == *name).map(|(set, _)| set.as_str());
        [name.clone(), state.clone(), serves.collect::<Vec<_>>().join(",")]
    });
    let sets = output::table(["SET", "GATEWAY", "OWNER", "EPOCH", "LEASE"], sets);
    format!("{sets}\n\n{}", output::table_with_messages(["GATEWAY", "STATE", "SERVES"], gateways, &[1], 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(gateway: &str, owner: &str, epoch: u64, g2: &str) -> PollResult {
        let (gateway, owner) = (gateway.to_string(), owner.to_string());
        let set = SetPoll { id: 1, gateway, owner, epoch, remaining_ms: 1700, ttl_ms: 3000 };
        PollResult {
            error: None,
            gateways: BTreeMap::from([("g1".into(), "ready".into()), ("g2".into(), g2.into())]),
            sets: BTreeMap::from([("demo".into(), set)]),
        }
    }

    #[test]
    fn a_line_for_each_change_and_none_for_the_time_that_is_left() {
        let first = seen("g1", "db1", 17, "ready");
        let all = ["gateway g1: ready", "gateway g2: ready", "set demo: gateway g1, owner db1, epoch e17"];
        assert_eq!(changes(None, &first), all);
        let mut later = first.clone();
        later.sets.get_mut("demo").unwrap().remaining_ms = 3;
        assert!(changes(Some(&first), &later).is_empty());
        let moved = seen("g2", "db1", 19, "ready");
        assert_eq!(changes(Some(&first), &moved), ["set demo: gateway g2, owner db1, epoch e19"]);
        let lost = seen("", "", 19, "unreachable");
        assert_eq!(changes(Some(&moved), &lost), ["gateway g2: unreachable", "set demo: gateway none, no owner"]);
        let mut fewer = moved.clone();
        fewer.gateways.remove("g2");
        fewer.sets.clear();
        assert_eq!(changes(Some(&moved), &fewer), ["gateway g2: removed", "set demo: no gateway reports it"]);
    }

    #[test]
    fn a_gateway_that_tells_of_the_past_is_not_believed() {
        let member = |id: u64| v1::Member { id, name: format!("g{id}"), ..v1::Member::default() };
        let lease = |owner: &str, epoch| Some(v1::Lease { owner: owner.into(), epoch, ..v1::Lease::default() });
        let old = v1::SetStatus {
            leader: Some(member(1)),
            term: 3,
            lease: lease("db1", 17),
            epoch: 17,
            applied_index: 40,
            answered_by: 1,
            ..v1::SetStatus::default()
        };
        let new = v1::SetStatus {
            leader: Some(member(2)),
            term: 4,
            lease: lease("db2", 45),
            epoch: 45,
            applied_index: 46,
            answered_by: 2,
            ..v1::SetStatus::default()
        };
        // This gateway started a moment ago: it has the term from its disk, and knows no leader yet.
        let fresh = v1::SetStatus { leader: None, term: 4, answered_by: 3, ..old.clone() };
        let seen = |views: &[&v1::SetStatus]| newest(views).map(|set| set.words());
        for views in [[&old, &new, &fresh], [&fresh, &new, &old]] {
            assert_eq!(seen(&views).as_deref(), Some("gateway g2, owner db2, epoch e45"));
        }
        assert_eq!(seen(&[&old]).as_deref(), Some("gateway g1, owner db1, epoch e17"));
        let released = v1::SetStatus { lease: None, applied_index: 50, ..new.clone() };
        assert_eq!(seen(&[&new, &released, &old]).as_deref(), Some("gateway g2, no owner"));
        assert_eq!(seen(&[]), None);
    }

    /// The gateways that know the set do not answer in time; one that is behind does.
    #[test]
    fn no_look_goes_back_behind_the_one_before() {
        let (past, present) = (seen("g1", "db1", 17, "ready"), seen("g2", "db2", 45, "ready"));
        assert_eq!(not_older(Some(&present), past.clone()), present);
        assert_eq!(not_older(Some(&past), present.clone()), present);
        assert_eq!(not_older(None, past.clone()), past);
        // The set was deleted, and created again with the same name.
        let mut anew = past;
        anew.sets.get_mut("demo").unwrap().id = 2;
        assert_eq!(not_older(Some(&present), anew.clone()), anew);
    }

    #[test]
    fn silence_is_told_once_and_everything_after_it() {
        let first = seen("g1", "db1", 17, "ready");
        let silent = PollResult { error: Some("nobody is there".into()), ..PollResult::default() };
        assert_eq!(changes(Some(&first), &silent), ["no answer: nobody is there"]);
        assert!(changes(Some(&silent), &silent).is_empty());
        assert_eq!(changes(Some(&silent), &first).len(), 3);
    }

    #[test]
    fn the_table_shows_owner_gateway_and_lease() {
        let text = table(&seen("g1", "db1", 17, "unreachable"));
        for words in ["demo", "g1", "db1", "e17", "1700 of 3000 ms", "unreachable"] {
            assert!(text.contains(words), "{text}");
        }
        assert!(table(&seen("g1", "", 17, "ready")).contains("none"));
    }
}
