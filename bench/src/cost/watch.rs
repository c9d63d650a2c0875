//! Counters of a running cluster, and what they are between two looks.

use crate::cluster::Cluster;
use crate::process::{processor_seconds, resident_bytes, wait_until};
use crate::web::page;
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

/// Voters of a set.
const VOTERS: usize = 3;

/// What was measured of one cluster with so many sets.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Figures {
    pub(super) gateways: usize,
    pub(super) sets: usize,
    /// Seconds for each set that was made before, several at a time.
    pub(super) created_s_each: Option<f64>,
    pub(super) seconds: f64,
    /// Of all gateways together, at the end.
    pub(super) resident_bytes: u64,
    /// Of one processor, all gateways together.
    pub(super) cpu_percent: f64,
    /// TCP segments that this machine has sent: answers and acknowledgements too, and what others send.
    pub(super) segments_per_s: f64,
    /// Calls that carry heartbeats of several groups. A gateway with few groups makes none.
    pub(super) heartbeat_calls_per_s: f64,
    pub(super) heartbeats_together_per_s: f64,
    pub(super) store_requests_per_minute: f64,
    /// By how much the terms of all groups have grown meanwhile.
    pub(super) elections: u64,
}

/// All counters at one moment.
struct Counters {
    moment: Instant,
    cpu_s: f64,
    segments: u64,
    calls: f64,
    beats: f64,
    requests: u64,
    terms: u64,
}

/// Counts for this time. Nobody asks the gateways for anything meanwhile. Fails when a gateway or a file does not
/// answer.
pub(super) fn measure(cluster: &Cluster, log: &Path, window: Duration) -> Result<Figures> {
    let count = cluster.gateways.len();
    let pages = (0..count).map(|index| cluster.metrics_address(index)).collect::<Result<Vec<String>>>()?;
    // What is asked by commands is asked before the first look, and after the last one.
    let asked = asked(cluster, &pages)?;
    let before = Counters { calls: asked.0, beats: asked.1, terms: asked.2, ..counters(cluster, log)? };
    wait_until(window, || false);
    let after = counters(cluster, log)?;
    let (calls, beats, terms) = self::asked(cluster, &pages)?;
    let after = Counters { calls, beats, terms, ..after };
    let seconds = after.moment.duration_since(before.moment).as_secs_f64();
    let resident = cluster.gateways.iter().map(|g| resident_bytes(g.pid).context("a gateway has ended"));
    Ok(Figures {
        gateways: count,
        seconds,
        resident_bytes: resident.sum::<Result<u64>>()?,
        cpu_percent: (after.cpu_s - before.cpu_s) / seconds * 100.0,
        segments_per_s: after.segments.saturating_sub(before.segments) as f64 / seconds,
        heartbeat_calls_per_s: (after.calls - before.calls) / seconds,
        heartbeats_together_per_s: (after.beats - before.beats) / seconds,
        store_requests_per_minute: after.requests.saturating_sub(before.requests) as f64 / seconds * 60.0,
        elections: after.terms.saturating_sub(before.terms),
        ..Figures::default()
    })
}

/// What this machine knows without asking a gateway.
fn counters(cluster: &Cluster, log: &Path) -> Result<Counters> {
    let cpu = cluster.gateways.iter().map(|g| processor_seconds(g.pid).context("a gateway has ended"));
    let cpu_s = cpu.sum::<Result<f64>>()?;
    let snmp = std::fs::read_to_string("/proc/net/snmp").context("/proc/net/snmp")?;
    let segments = sent_segments(&snmp).context("no OutSegs in /proc/net/snmp")?;
    // A line for each request; none yet: no file.
    let lines = std::fs::read(log).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count();
    let requests = u64::try_from(lines)?;
    Ok(Counters { moment: Instant::now(), cpu_s, segments, calls: 0.0, beats: 0.0, requests, terms: 0 })
}

/// Heartbeat calls, heartbeats in them, and the sum of all terms.
fn asked(cluster: &Cluster, pages: &[String]) -> Result<(f64, f64, u64)> {
    let (mut calls, mut beats) = (0.0, 0.0);
    for address in pages {
        let text = page(address, "/metrics")?;
        calls += sum_of(&text, "holdfast_heartbeat_calls_total");
        beats += sum_of(&text, "holdfast_heartbeats_together_total");
    }
    let status = cluster.holdfast(&["cluster", "status", "--timeout", "60s"])?;
    Ok((calls, beats, array(&status["groups"]).iter().filter_map(|group| group["term"].as_u64()).sum()))
}

/// The sum of a metric over its labels.
fn sum_of(text: &str, name: &str) -> f64 {
    let value = |line: &str| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with([' ', '{']))?;
        rest.rsplit(' ').next()?.trim().parse::<f64>().ok()
    };
    text.lines().filter_map(value).sum()
}

/// `OutSegs` of the two lines `Tcp:`, the first of which has the names.
fn sent_segments(snmp: &str) -> Option<u64> {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|name| name == "OutSegs")?;
    values.split_whitespace().nth(at)?.parse().ok()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// What a `cluster status` lacks of so many gateways and sets that are all at rest.
pub(super) fn lacks(status: &Value, gateways: usize, sets: usize) -> Option<String> {
    let (members, groups) = (array(&status["members"]), array(&status["groups"]));
    let answer = members.iter().filter(|member| member["reachable"] == true).count();
    // The group of the cluster is one more.
    if answer != gateways || groups.len() != sets + 1 {
        let found = groups.len().saturating_sub(1);
        return Some(format!("{answer} gateways and {found} sets, expected {gateways} and {sets}"));
    }
    groups.iter().find_map(|group| {
        let leader = members.iter().find(|member| member["member"]["id"] == group["leader"]);
        let own = leader.map(|member| array(&member["node"]["groups"])).unwrap_or_default();
        let Some(view) = own.iter().find(|seen| seen["group"] == group["group"]) else {
            return Some(format!("group {} has no leader", group["group"]));
        };
        let (voters, learners) = (array(&view["voters"]).len(), array(&view["learners"]).len());
        let whole = match group["group"].as_u64() {
            // Three or five gateways vote in the cluster's own group, the others learn it (ADR 0075).
            Some(0) => voters == gateways.min(if gateways < 5 { 3 } else { 5 }) && voters + learners == gateways,
            _ => voters == VOTERS && learners == 0,
        };
        (!whole).then(|| format!("group {}: {voters} voters, {learners} learners", group["group"]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_metric_is_summed_over_its_labels() {
        let text = "# HELP a_total x\na_total 3\na_total{peer=\"2\"} 4.5\na_total_more 9\n";
        assert!((sum_of(text, "a_total") - 7.5).abs() < 1e-9);
        assert!(sum_of(text, "b_total").abs() < 1e-9);
    }

    #[test]
    fn sent_segments_are_found_by_their_name() {
        let text = "Ip: A B\nIp: 1 2\nTcp: InSegs OutSegs Retrans\nTcp: 5 77 1\n";
        assert_eq!(sent_segments(text), Some(77));
        assert_eq!(sent_segments("Tcp: InSegs\nTcp: 5\n"), None);
    }

    #[test]
    fn a_cluster_is_whole_once_every_group_has_its_voters() {
        let group = |group: u64, voters: &[u64]| json!({ "group": group, "voters": voters, "learners": [] });
        let member =
            |id: u64, groups: Value| json!({ "member": { "id": id }, "reachable": true, "node": { "groups": groups } });
        let status = |voters: &[u64]| {
            json!({
                "members": [member(1, json!([group(0, &[1, 2])])), member(2, json!([group(5, voters)]))],
                "groups": [{ "group": 0, "leader": 1 }, { "group": 5, "leader": 2 }],
            })
        };
        assert_eq!(lacks(&status(&[1, 2, 3]), 2, 1), None);
        assert!(lacks(&status(&[1, 2]), 2, 1).is_some_and(|why| why.contains("group 5: 2 voters")));
        assert!(lacks(&status(&[1, 2, 3]), 3, 1).is_some_and(|why| why.contains("expected 3 and 1")));
    }
}
