//! `holdfast cluster status`.

use super::{cluster, door, member_text, set};
use crate::cli::Common;
use crate::exit::CliError;
use crate::output;
use holdfast_api::{role_name, v1};

/// `holdfast cluster status`.
pub async fn run(common: &Common) -> Result<(), CliError> {
    let status = cluster::status(&mut door(common)).await?;
    output::show(common.output, &status, || describe(&status))
}

/// The cluster in words and tables.
pub fn describe(status: &v1::ClusterStatusReply) -> String {
    let head = format!("cluster {}, as {} sees it", status.cluster_id, status.answered_by);
    let members = status.members.iter().map(|member| member_row(status, member));
    let head_of = ["MEMBER", "GATEWAY", "REGION", "API", "NBD", "STATE", "BOOT", "LEADS", "JOURNAL"];
    let members = output::table_with_trouble(head_of, members, &[5, 8], 2);
    let groups = status.groups.iter().map(|group| group_row(status, group));
    let groups = output::table(["GROUP", "SET", "LEADER", "TERM", "LAST", "COMMITTED", "APPLIED (BEHIND)"], groups);
    let sets = status.sets.iter().map(|set| set_row(status, set));
    let sets = output::table_with_trouble(["SET", "GROUP", "STORE", "NOT STORED YET", "STORE ANSWERS"], sets, &[4], 1);
    let changes = set::changes(&status.sets, |set| leader_health(status, set));
    format!("{head}\n\n{members}\n\n{groups}\n\n{sets}{changes}")
}

fn group_name(group: u64, set: &str) -> String {
    match (group, set) {
        (0, _) => "cluster".to_string(),
        (group, "") => format!("g{group}"),
        (_, set) => set.to_string(),
    }
}

/// What the set's leader says of its stores.
fn leader_health<'a>(status: &'a v1::ClusterStatusReply, set: &v1::SetSummary) -> Option<&'a v1::StoreHealth> {
    let leader = status.groups.iter().find(|group| group.group == set.id).map_or(0, |group| group.leader);
    let of_leader = |member: &&v1::MemberStatus| member.member.as_ref().is_some_and(|m| m.id == leader && leader != 0);
    let node = status.members.iter().find(of_leader).and_then(|member| member.node.as_ref());
    node.and_then(|node| node.stores.iter().find(|health| health.set == set.name))
}

fn set_row(status: &v1::ClusterStatusReply, set: &v1::SetSummary) -> [String; 5] {
    let health = leader_health(status, set);
    let (backlog, answers) = health.map_or((String::new(), String::new()), |health| {
        (output::bytes(health.backlog_bytes), set::store_text(health))
    });
    [set.name.clone(), set.id.to_string(), set.store.clone(), backlog, answers]
}

fn member_row(status: &v1::ClusterStatusReply, member: &v1::MemberStatus) -> [String; 9] {
    let known = member.member.clone().unwrap_or_default();
    let addresses = known.addresses.clone().unwrap_or_default();
    let node = member.node.as_ref();
    let state = match node {
        None => format!("unreachable: {}", member.error),
        Some(node) if !node.not_ready.is_empty() => node.not_ready.clone(),
        Some(_) => "ready".to_string(),
    };
    let leads: Vec<String> = status
        .groups
        .iter()
        .filter(|group| group.leader == known.id && known.id != 0)
        .map(|group| group_name(group.group, &group.set))
        .collect();
    let journal =
        node.and_then(|node| node.journal.as_ref()).map_or(String::new(), |journal| match journal.failed.as_str() {
            "" => format!("{} of {}", output::bytes(journal.used_bytes), output::bytes(journal.bound_bytes)),
            why => format!("FAILED: {why}"),
        });
    let boot = node.map_or(String::new(), |node| node.boot.to_string());
    [
        member_text(known.id),
        known.name,
        known.region,
        addresses.api,
        addresses.nbd,
        state,
        boot,
        leads.join(","),
        journal,
    ]
}

fn group_row(status: &v1::ClusterStatusReply, group: &v1::GroupSummary) -> [String; 7] {
    let applied = status.members.iter().filter_map(|member| {
        let known = member.member.as_ref()?;
        let Some(seen) =
            member.node.as_ref().and_then(|node| node.groups.iter().find(|seen| seen.group == group.group))
        else {
            return Some(format!("{}:?", known.name));
        };
        let behind = member
            .lags
            .iter()
            .find(|lag| lag.group == group.group)
            .map(|lag| lag.entries)
            .filter(|&entries| entries > 0);
        let behind = behind.map_or(String::new(), |entries| format!("(-{entries})"));
        let role = match role_name(seen.role) {
            "leader" | "follower" => String::new(),
            other => format!("[{other}]"),
        };
        Some(format!("{}:{}{behind}{role}", known.name, seen.applied_index))
    });
    [
        group.group.to_string(),
        if group.group == 0 { String::new() } else { group.set.clone() },
        if group.leader == 0 { "none".to_string() } else { group.leader_name.clone() },
        group.term.to_string(),
        group.last_index.to_string(),
        group.committed_index.to_string(),
        applied.collect::<Vec<_>>().join(" "),
    ]
}
