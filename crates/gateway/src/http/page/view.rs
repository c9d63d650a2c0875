//! The state of a cluster as HTML: a pure function of what was gathered.

use super::html::Html;
use super::texts::{ago, count, cut, days_text, duration, host_and_port, size};
use super::timeline::{Change, Takeover};
use crate::admin::{Gathered, SETS_MAX, SetHere};
use holdfast_api::{different_places, expires_soon, role_name, v1};
use std::collections::BTreeMap;

/// Problems that are shown. A store that fails is one of each set.
const PROBLEMS_MAX: usize = 100;

/// What the page shows.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The time of the look.
    pub at_unix_ms: u64,
    pub seen: Gathered,
    /// Newest first.
    pub takeovers: Vec<Takeover>,
}

/// What stands before the state, with the gateway's name. `acts`: with a way to the actions, for who may ask for them.
pub(super) fn head(name: &str, acts: bool) -> Html {
    let mut html = Html::default();
    html.markup(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n",
    );
    html.line("title", &format!("{name} - Holdfast"));
    html.markup(
        "\n<noscript><meta http-equiv=\"refresh\" content=\"5\"></noscript>\n\
         <link rel=\"icon\" href=\"page/icon.svg\">\n<link rel=\"stylesheet\" href=\"page/style.css\">\n\
         <script src=\"page/live.js\" defer></script>\n</head>\n<body>\n<header><h1>Holdfast</h1> <span>as seen by ",
    );
    html.line("b", name);
    html.markup("</span>");
    html.markup(if acts { " <a href=\"page/actions\">Actions</a>" } else { "" });
    html.markup("</header>\n<p id=\"old\" role=\"alert\" hidden></p>\n<main id=\"state\">\n");
    html
}

/// What stands behind it.
pub(super) const TAIL: &str = "</main>\n</body>\n</html>\n";

/// The state.
pub(super) fn state(view: &View) -> Html {
    let mut html = Html::default();
    let problems = problems(&view.seen);
    verdict(&mut html, view, &problems);
    gateways(&mut html, &view.seen);
    sets(&mut html, view);
    timeline(&mut html, view);
    commands(&mut html);
    html
}

fn known(status: &v1::MemberStatus) -> &str {
    status.member.as_ref().map_or("", |member| member.name.as_str())
}

/// A set's name, or that it is the group of the cluster.
fn group_name(group: u64, set: &str) -> String {
    match (group, set) {
        (0, _) => "the cluster".to_string(),
        (group, "") => format!("group {group}"),
        (_, set) => set.to_string(),
    }
}

/// What needs somebody's attention, one line each.
fn problems(seen: &Gathered) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    lines.extend(Some(seen.trouble.clone()).filter(|trouble| !trouble.is_empty()));
    for status in &seen.cluster.members {
        let name = known(status);
        match &status.node {
            None => lines.push(format!("{name} does not answer: {}", status.error)),
            Some(node) => lines.extend(of_node(node).into_iter().map(|line| format!("{name}: {line}"))),
        }
    }
    let without = seen.cluster.groups.iter().filter(|group| group.leader == 0);
    lines.extend(without.map(|group| format!("{} has no leader", group_name(group.group, &group.set))));
    for set in &seen.cluster.sets {
        if !seen.cluster.groups.iter().any(|group| group.group == set.id) {
            lines.push(format!("set {}: no gateway that answers has it", set.name));
        }
        // Troubles at this gateway are among its warnings.
        let elsewhere = leading(&seen.cluster, set).filter(|status| known(status) != seen.cluster.answered_by);
        let health = elsewhere.and_then(|status| health_at(status, set));
        if let Some(now) = health.and_then(|health| health.now.as_ref()) {
            lines.push(format!("set {}: store {}: {}", set.name, now.kind, now.error));
        }
    }
    let nodes = seen.cluster.members.iter().filter_map(|status| status.node.as_ref());
    for violated in nodes.flat_map(|node| &node.violated) {
        lines.extend(violated.violations.iter().map(|told| format!("set {}: {}", violated.set, told.text)));
    }
    let different = different_places(&seen.cluster);
    lines.extend(different.iter().map(|[names, places]| {
        format!("store.allowed is not the same at all gateways, so no set is put into a store: {names}: {places}")
    }));
    lines.extend(seen.warnings.iter().cloned());
    lines
}

fn of_node(node: &v1::Node) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(Some(node.not_ready.clone()).filter(|why| !why.is_empty()));
    if let Some(journal) = &node.journal {
        for why in [&journal.failed, &journal.waits].into_iter().filter(|why| !why.is_empty()) {
            lines.push(format!("journal: {why}"));
        }
    }
    if matches!(node.tls.as_str(), "accept" | "use") {
        lines.push(format!("it takes plain text ([tls] transition = {:?})", node.tls));
    }
    let soon = node.certificate.as_ref().filter(|own| expires_soon(own));
    if let Some(days) = soon.and_then(|own| own.days_left) {
        lines.push(format!("its certificate {}", days_text(days)));
    }
    lines
}

/// The leader of a set, if it is known.
fn leading<'a>(cluster: &'a v1::ClusterStatusReply, set: &v1::SetSummary) -> Option<&'a v1::MemberStatus> {
    let leader = cluster.groups.iter().find(|group| group.group == set.id).map(|group| group.leader)?;
    let is_leader = |member: &v1::Member| member.id == leader && leader != 0;
    cluster.members.iter().find(|status| status.member.as_ref().is_some_and(is_leader))
}

fn health_at<'a>(status: &'a v1::MemberStatus, set: &v1::SetSummary) -> Option<&'a v1::StoreHealth> {
    status.node.as_ref()?.stores.iter().find(|health| health.set == set.name)
}

fn group_at<'a>(status: &'a v1::MemberStatus, set: &v1::SetSummary) -> Option<&'a v1::GroupStatus> {
    status.node.as_ref()?.groups.iter().find(|group| group.group == set.id)
}

fn verdict(html: &mut Html, view: &View, problems: &[String]) {
    let class = if problems.is_empty() { "section class=\"verdict good\"" } else { "section class=\"verdict bad\"" };
    html.within(class, |html| {
        match problems.len() {
            0 => html.line("h2", "\u{2714} All is well"),
            1 => html.line("h2", "\u{26a0} 1 thing needs attention"),
            many => html.line("h2", &format!("\u{26a0} {many} things need attention")),
        }
        if !problems.is_empty() {
            html.within("ul", |html| {
                for problem in problems.iter().take(PROBLEMS_MAX) {
                    html.line("li", &cut(problem));
                }
                let left = problems.len().saturating_sub(PROBLEMS_MAX);
                if left > 0 {
                    html.line("li", &format!("and {left} more: holdfast cluster status"));
                }
            });
        }
        let cluster = &view.seen.cluster;
        let id: String = cluster.cluster_id.chars().take(8).collect();
        html.within("p class=\"quiet\"", |html| {
            let (members, sets) = (count(cluster.members.len(), "gateway"), count(cluster.sets.len(), "set"));
            let counts = format!("{members}, {sets}, feature level {}", cluster.level);
            html.text(&if id.is_empty() { counts } else { format!("Cluster {id}\u{2026}: {counts}") });
        });
    });
}

fn gateways(html: &mut Html, seen: &Gathered) {
    let mut regions: BTreeMap<&str, Vec<&v1::MemberStatus>> = BTreeMap::new();
    for status in &seen.cluster.members {
        let region = status.member.as_ref().map_or("", |member| member.region.as_str());
        regions.entry(region).or_default().push(status);
    }
    html.within("section", |html| {
        html.line("h2", "Gateways");
        html.within("div class=\"regions\"", |html| {
            for (region, members) in regions {
                html.within("section class=\"region\"", |html| {
                    html.line("h3", if region.is_empty() { "no region" } else { region });
                    for status in members {
                        gateway(html, seen, status);
                    }
                });
            }
        });
    });
}

/// Class and word for the state of a gateway.
fn standing(status: &v1::MemberStatus) -> (&'static str, &'static str) {
    let member = status.member.as_ref();
    match &status.node {
        None => ("article class=\"gateway bad\"", "\u{2716} does not answer"),
        Some(node) if !node.not_ready.is_empty() => ("article class=\"gateway bad\"", "\u{2716} not ready"),
        Some(_) => match member.map_or("", |member| member.standing.as_str()) {
            "drained" => ("article class=\"gateway idle\"", "\u{25cb} drained"),
            "leaving" => ("article class=\"gateway idle\"", "\u{25cb} leaving"),
            _ => ("article class=\"gateway good\"", "\u{25cf} ready"),
        },
    }
}

fn gateway(html: &mut Html, seen: &Gathered, status: &v1::MemberStatus) {
    let (class, word) = standing(status);
    let name = known(status);
    html.within(class, |html| {
        html.within("p class=\"name\"", |html| {
            html.line("b", name);
            html.markup(" ");
            html.line("span class=\"word\"", word);
        });
        let role = status.member.as_ref().map_or("", |member| member.role.as_str());
        let locality = status.member.as_ref().map_or("", |member| member.locality.as_str());
        html.within("dl", |html| {
            if role == "witness" {
                entry(html, "Role", "witness: votes, and serves no client");
            }
            entry(html, "Place", locality);
            entry(html, "Leads", &leads(seen, status));
            if let Some(node) = &status.node {
                journal(html, node);
                let up = duration(node.uptime_ms);
                entry(html, "Program", &format!("{}, start {}, up {up}", node.version, node.boot));
            }
        });
        let door = status.node.as_ref().and_then(|node| node.addresses.as_ref()).map_or("", |at| at.http.as_str());
        if name == seen.cluster.answered_by {
            html.line("p class=\"quiet\"", "This gateway");
        } else if let Some(door) = host_and_port(door) {
            html.within("p", |html| {
                let href = format!("//{door}/");
                html.with("a", &[("href", href.as_str())], |html| html.text("Its page"));
            });
        }
    });
}

/// A term and what belongs to it.
fn entry(html: &mut Html, term: &'static str, text: &str) {
    if !text.is_empty() {
        html.line("dt", term);
        html.line("dd", &cut(text));
    }
}

fn leads(seen: &Gathered, status: &v1::MemberStatus) -> String {
    let id = status.member.as_ref().map_or(0, |member| member.id);
    let led = seen.cluster.groups.iter().filter(|group| group.leader == id && id != 0);
    let names: Vec<String> = led.map(|group| group_name(group.group, &group.set)).collect();
    if names.is_empty() { "nothing".to_string() } else { names.join(", ") }
}

fn journal(html: &mut Html, node: &v1::Node) {
    let Some(journal) = &node.journal else { return };
    html.line("dt", "Journal");
    html.within("dd", |html| {
        let bound = journal.bound_bytes;
        // Yellow from half on, red from three quarters on.
        let numbers = [bound, bound / 2, bound / 4 * 3, journal.used_bytes].map(|number| number.to_string());
        let [max, low, high, value] = numbers.each_ref().map(String::as_str);
        let attributes = [("max", max), ("low", low), ("high", high), ("value", value)];
        html.with("meter min=\"0\" optimum=\"0\" aria-hidden=\"true\"", &attributes, |_| {});
        html.text(&format!(" {} of {}", size(journal.used_bytes), size(journal.bound_bytes)));
    });
}

fn sets(html: &mut Html, view: &View) {
    let all = &view.seen.cluster.sets;
    html.within("section", |html| {
        html.line("h2", "Sets");
        if all.is_empty() {
            html.line("p class=\"quiet\"", "There is no set yet.");
            return;
        }
        html.within("table", |html| {
            html.within("thead", |html| {
                html.within("tr", |html| {
                    for head in ["Set", "Owner", "Epoch", "Served by", "Not in the store yet", "Store", "Snapshots"] {
                        html.line("th scope=\"col\"", head);
                    }
                });
            });
            html.within("tbody", |html| {
                for set in all.iter().take(SETS_MAX) {
                    html.within("tr", |html| row(html, view, set));
                }
            });
        });
        let left = all.len().saturating_sub(SETS_MAX);
        if left > 0 {
            html.line("p class=\"quiet\"", &format!("and {left} more: holdfast cluster status"));
        }
    });
}

fn row(html: &mut Html, view: &View, set: &v1::SetSummary) {
    let cluster = &view.seen.cluster;
    let here = view.seen.sets.iter().find(|here| here.status.set.as_ref().is_some_and(|of| of.id == set.id));
    let leader = leading(cluster, set);
    let group = leader.and_then(|status| group_at(status, set));
    let health = leader.and_then(|status| health_at(status, set));
    html.within("th scope=\"row\"", |html| {
        html.text(&set.name);
        if !set.clone_of.is_empty() {
            html.line("small", &format!(" clone of {}", set.clone_of));
        }
    });
    html.within("td data-label=\"Owner\"", |html| owner(html, view.at_unix_ms, here));
    let epoch = here.map_or(0, |here| here.status.epoch).max(group.map_or(0, |group| group.serving_epoch));
    let epoch = if epoch == 0 { "\u{2013}".to_string() } else { epoch.to_string() };
    html.line("td data-label=\"Epoch\"", &epoch);
    html.within("td data-label=\"Served by\"", |html| served(html, cluster, leader, group));
    html.within("td data-label=\"Not in the store yet\"", |html| match (health, group) {
        (Some(health), Some(group)) => {
            html.text(&size(health.backlog_bytes));
            html.line("small", &format!(" of {} in the journal", size(group.journal_live_bytes)));
        }
        _ => html.line("span class=\"quiet\"", "not known"),
    });
    html.within("td data-label=\"Store\"", |html| store(html, view.at_unix_ms, set, health));
    html.within("td data-label=\"Snapshots\"", |html| snapshots(html, view.at_unix_ms, set, here));
}

fn owner(html: &mut Html, now: u64, here: Option<&SetHere>) {
    let Some(here) = here else {
        html.line("span class=\"quiet\"", "not on this gateway");
        return;
    };
    let Some(lease) = &here.status.lease else {
        html.line("span class=\"quiet\"", "free");
        return;
    };
    html.line("b", &lease.owner);
    html.markup(" ");
    html.within("small", |html| {
        html.text("since ");
        time(html, now, lease.since_unix_ms);
        if !lease.locality.is_empty() {
            html.text(&format!(", in {}", lease.locality));
        }
    });
}

/// How long ago something was; the script adds the local time of whoever reads it.
fn time(html: &mut Html, now: u64, unix_ms: u64) {
    let ms = unix_ms.to_string();
    html.with("span class=\"time\"", &[("data-ms", ms.as_str())], |html| html.text(&ago(now, unix_ms)));
}

fn served(
    html: &mut Html,
    cluster: &v1::ClusterStatusReply,
    leader: Option<&v1::MemberStatus>,
    group: Option<&v1::GroupStatus>,
) {
    let Some(leader) = leader else {
        html.line("span class=\"word bad\"", "\u{2716} no leader");
        return;
    };
    html.line("b", known(leader));
    html.markup(" ");
    html.within("small", |html| {
        let Some(group) = group else {
            html.text("does not answer");
            return;
        };
        html.text(&count(group.connections as usize, "connection"));
        let others: Vec<String> = cluster
            .members
            .iter()
            .filter(|status| status.member.as_ref().is_some_and(|of| of.id != group.leader))
            .filter_map(|status| replica(status, group.group))
            .collect();
        if !others.is_empty() {
            html.text(&format!("; followed by {}", others.join(", ")));
        }
    });
}

/// Another gateway that has the set, with what is unusual about it.
fn replica(status: &v1::MemberStatus, id: u64) -> Option<String> {
    let group = status.node.as_ref()?.groups.iter().find(|group| group.group == id)?;
    let behind = status.lags.iter().find(|lag| lag.group == id).map_or(0, |lag| lag.entries);
    let mut text = known(status).to_string();
    if behind > 0 {
        text.push_str(&format!(" ({behind} entries behind)"));
    }
    if group.role() != v1::Role::Follower {
        text.push_str(&format!(" ({})", role_name(group.role)));
    }
    Some(text)
}

fn store(html: &mut Html, now: u64, set: &v1::SetSummary, health: Option<&v1::StoreHealth>) {
    match health.map(|health| &health.now) {
        Some(Some(trouble)) => {
            html.line("b class=\"word bad\"", &format!("\u{2716} {}", trouble.kind));
            html.text(" for ");
            html.text(&duration(now.saturating_sub(trouble.since_unix_ms)));
            if trouble.needs_operator {
                html.text(": somebody must act");
            }
        }
        Some(None) => html.line("span class=\"word good\"", "\u{25cf} answers"),
        None => html.line("span class=\"quiet\"", "not known"),
    }
    html.markup(" ");
    let placement = health.map_or("", |health| health.placement.as_str());
    html.line("small", &cut(if placement.is_empty() { set.store.as_str() } else { placement }));
}

fn snapshots(html: &mut Html, now: u64, set: &v1::SetSummary, here: Option<&SetHere>) {
    let Some(here) = here else {
        html.line("span class=\"quiet\"", "\u{2013}");
        return;
    };
    let Some(newest) = here.snapshots.first() else {
        html.line("span class=\"quiet\"", "none");
        return;
    };
    let id = format!("snapshots-{}", set.id);
    html.with("details", &[("id", id.as_str())], |html| {
        html.within("summary", |html| {
            html.text(&format!("{}, newest ", here.snapshots_total));
            time(html, now, newest.created_unix_ms);
        });
        html.within("ul", |html| {
            for snapshot in &here.snapshots {
                html.within("li", |html| {
                    html.line("b", &snapshot.name);
                    html.markup(" ");
                    time(html, now, snapshot.created_unix_ms);
                    html.text(if snapshot.pending { ", waits for its checkpoint" } else { "" });
                });
            }
        });
        let left = here.snapshots_total.saturating_sub(here.snapshots.len());
        if left > 0 {
            html.line("p class=\"quiet\"", &format!("and {left} older ones"));
        }
    });
}

fn timeline(html: &mut Html, view: &View) {
    html.within("section", |html| {
        html.line("h2", "Takeovers");
        html.line(
            "p class=\"quiet\"",
            "Changes of leases that this gateway has seen since it started, of the sets that it has.",
        );
        if view.takeovers.is_empty() {
            html.line("p", "None so far.");
            return;
        }
        html.within("ol class=\"timeline\"", |html| {
            for takeover in &view.takeovers {
                html.within("li", |html| {
                    time(html, view.at_unix_ms, takeover.at_unix_ms);
                    html.markup(" ");
                    html.line("b", &takeover.set);
                    html.text(&format!(": {}", told(takeover)));
                    html.line("small", &format!(" epoch {}", takeover.held.epoch));
                });
            }
        });
    });
}

fn told(takeover: &Takeover) -> String {
    let (owner, gateway) = (&takeover.held.owner, &takeover.held.gateway);
    match &takeover.change {
        Change::Found => format!("{owner} has it, served by {gateway}, when this gateway looks first"),
        Change::Granted => format!("{owner} takes it, served by {gateway}"),
        Change::TakenFrom(before) => format!("{owner} takes it over from {before}, served by {gateway}"),
        Change::MovedFrom(before) => format!("{gateway} serves it instead of {before}, for {owner}"),
        Change::Continued => format!("{owner} gets a new epoch at {gateway}"),
        Change::Released => format!("{owner} has released it"),
    }
}

/// This page changes nothing: the commands that do.
fn commands(html: &mut Html) {
    html.within("section", |html| {
        html.within("details id=\"commands\"", |html| {
            html.line("summary", "Commands for what is shown here");
            html.line("p class=\"quiet\"", "This page changes nothing. Commands need the certificate of an operator.");
            html.within("dl class=\"commands\"", |html| {
                for (what, command) in [
                    ("Serve a set from another gateway", "holdfast switchover SET --to GATEWAY"),
                    ("Move PostgreSQL to another host", "holdfast agent switchover --to HOST"),
                    ("Take a snapshot", "holdfast snapshot create SET@NAME"),
                    ("Before maintenance of a gateway", "holdfast gateway drain GATEWAY"),
                    ("After it", "holdfast gateway undrain GATEWAY"),
                    ("All of this page, and more, as text", "holdfast cluster status"),
                ] {
                    html.line("dt", what);
                    html.within("dd", |html| html.line("code", command));
                }
            });
        });
    });
}
