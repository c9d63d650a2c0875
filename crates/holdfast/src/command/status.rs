//! `holdfast cluster status`.

use super::connect::connect;
use super::text::{days_text, member_text, since, store_text};
use super::{cluster, set};
use crate::cli::Common;
use crate::exit::CliError;
use crate::output;
use holdfast_api::{different_places, role_name, v1};

/// `holdfast cluster status`.
pub async fn run(common: &Common) -> Result<(), CliError> {
    let status = cluster::status(&mut connect(common)).await?;
    output::show(common.output, &status, || describe(&status))
}

/// The cluster as text.
pub fn describe(status: &v1::ClusterStatusReply) -> String {
    let head = format!("cluster {}, view of {}", status.cluster_id, status.answered_by);
    let members = members(status);
    let groups = status.groups.iter().map(|group| group_row(status, group));
    let groups = output::table(["GROUP", "SET", "LEADER", "TERM", "LAST", "COMMITTED", "APPLIED (LAG)"], groups);
    let sets = status.sets.iter().map(|set| set_row(status, set));
    let sets = output::table_with_messages(["SET", "GROUP", "STORE", "NOT UPLOADED", "STORE HEALTH"], sets, &[4], 1);
    let changes = set::changes(&status.sets, |set| leader_health(status, set));
    let (owners, violated, reads) = (owners(status), violated(status), reads(status));
    let places = places(status);
    format!("{head}\n\n{members}\n\n{groups}\n\n{sets}{changes}{owners}{violated}{places}{reads}")
}

/// The table of members. Without TLS nobody has a certificate, and the column would only make it wide.
fn members(status: &v1::ClusterStatusReply) -> String {
    let rows: Vec<[String; 10]> = status.members.iter().map(|member| member_row(status, member)).collect();
    if rows.iter().any(|row| !matches!(row[8].as_str(), "" | "-")) {
        let head = ["MEMBER", "GATEWAY", "REGION", "API", "NBD", "STATE", "BOOT", "LEADS", "CERT DAYS", "JOURNAL"];
        return output::table_with_messages(head, rows, &[5, 9], 2);
    }
    let head = ["MEMBER", "GATEWAY", "REGION", "API", "NBD", "STATE", "BOOT", "LEADS", "JOURNAL"];
    let rows = rows.into_iter().map(|[member, name, region, api, nbd, state, boot, leads, _, journal]| {
        [member, name, region, api, nbd, state, boot, leads, journal]
    });
    output::table_with_messages(head, rows, &[5, 8], 2)
}

/// What the sets' policies ask for and is not so, as the cluster's leader tells it. Empty if all is well.
fn violated(status: &v1::ClusterStatusReply) -> String {
    let nodes = status.members.iter().filter_map(|member| member.node.as_ref());
    let rows = nodes.flat_map(|node| &node.violated).flat_map(|of| {
        let row = |told: &v1::PlacingViolation| [of.set.clone(), since(told.since_unix_ms), told.text.clone()];
        of.violations.iter().map(row).collect::<Vec<_>>()
    });
    let rows: Vec<[String; 3]> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    format!("\n\n{}", output::table(["SET", "SINCE", "VIOLATED"], rows))
}

/// The lists of allowed stores, if they are not the same at all gateways: then no set is put into one. Else empty.
fn places(status: &v1::ClusterStatusReply) -> String {
    let different = different_places(status);
    if different.is_empty() {
        return String::new();
    }
    format!("\n\n{}", output::table(["DIFFERENT store.allowed AT", "SETS MAY BE PUT"], different))
}

/// Where the owner of each set stands, beside where the set is served. Empty if no owner has said so.
fn owners(status: &v1::ClusterStatusReply) -> String {
    let mut rows = Vec::new();
    for member in &status.members {
        let (Some(known), Some(node)) = (&member.member, &member.node) else { continue };
        let led = node.groups.iter().filter(|group| group.role() == v1::Role::Leader);
        rows.extend(led.filter(|group| !group.owner_locality.is_empty()).map(|group| {
            [group.set.clone(), group.owner_locality.clone(), known.name.clone(), known.locality.clone()]
        }));
    }
    if rows.is_empty() {
        return String::new();
    }
    format!("\n\n{}", output::table(["SET", "OWNER'S REGION", "SERVED BY", "GATEWAY'S REGION"], rows))
}

/// Share of reads that each tier of each gateway answered, since its start and over the last minutes. Empty if there
/// were no reads.
fn reads(status: &v1::ClusterStatusReply) -> String {
    let rows = status.members.iter().flat_map(|member| {
        let name = member.member.as_ref().map_or("", |known| known.name.as_str());
        let reads = member.node.as_ref().and_then(|node| node.reads);
        let whole = reads.and_then(|reads| reads.since_start).filter(|whole| parts(whole) > 0);
        let whole = whole.map(|whole| found_row(name, "start".to_string(), &whole));
        let recent = reads.filter(|_| whole.is_some()).and_then(|reads| {
            reads.recent.map(|recent| found_row(name, format!("{} s ago", reads.recent_ms / 1000), &recent))
        });
        whole.into_iter().chain(recent)
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        return String::new();
    }
    let head = ["GATEWAY", "SINCE", "PARTS", "JOURNAL", "MEMORY", "DISK", "STORE", "SHARED"];
    format!("\n\n{}", output::table(head, rows))
}

fn parts(found: &v1::FoundIn) -> u64 {
    [found.journal, found.memory, found.disk, found.store, found.shared].iter().sum()
}

fn found_row(name: &str, since: String, found: &v1::FoundIn) -> [String; 8] {
    let all = parts(found);
    let share = |of: u64| match all {
        0 => String::new(),
        all => format!("{:.1} %", of as f64 * 100.0 / all as f64),
    };
    [
        name.to_string(),
        since,
        all.to_string(),
        share(found.journal),
        share(found.memory),
        share(found.disk),
        share(found.store),
        share(found.shared),
    ]
}

/// The name of a group for people; its number if the name of its set is not told (ACCESS-A7).
pub fn group_name(group: u64, set: &str) -> String {
    match (group, set) {
        (0, _) => "cluster".to_string(),
        (group, "") => format!("g{group}"),
        (_, set) => set.to_string(),
    }
}

/// Health of the set's stores, as its leader reports it.
fn leader_health<'a>(status: &'a v1::ClusterStatusReply, set: &v1::SetSummary) -> Option<&'a v1::StoreHealth> {
    let leader = status.groups.iter().find(|group| group.group == set.id).map_or(0, |group| group.leader);
    let of_leader = |member: &&v1::MemberStatus| member.member.as_ref().is_some_and(|m| m.id == leader && leader != 0);
    let node = status.members.iter().find(of_leader).and_then(|member| member.node.as_ref());
    node.and_then(|node| node.stores.iter().find(|health| health.set == set.name))
}

fn set_row(status: &v1::ClusterStatusReply, set: &v1::SetSummary) -> [String; 5] {
    let health = leader_health(status, set);
    let (backlog, answers) = health
        .map_or((String::new(), String::new()), |health| (output::bytes(health.backlog_bytes), store_text(health)));
    [set.name.clone(), set.id.to_string(), set.store.clone(), backlog, answers]
}

/// An NBD address with what is asked of clients there. Loud: without tokens whoever reaches it reads and writes.
fn nbd_text(address: String, node: &v1::Node) -> String {
    let tls = Some(&node.nbd_tls).filter(|mode| !matches!(mode.as_str(), "" | "off"));
    let tls = tls.map(|mode| format!("TLS {mode}"));
    let plain = node.plain_exports.then(|| "NO TOKEN".to_string());
    let snapshots = node.open_snapshots.then(|| "SNAPSHOTS: NO TOKEN".to_string());
    let all: Vec<String> = tls.into_iter().chain(plain.or(snapshots)).collect();
    if address.is_empty() || all.is_empty() { address } else { format!("{address} ({})", all.join(", ")) }
}

/// That a gateway is ready. Loud: whoever reaches it without TLS may do everything, or reads names of sets.
fn ready_text(node: &v1::Node) -> String {
    let both = matches!(node.tls.as_str(), "accept" | "use");
    let both = both.then(|| format!("TAKES PLAIN TEXT ([tls] transition = {:?})", node.tls));
    let names = node.names_in_plain.then(|| "TELLS NAMES IN PLAIN TEXT ([tls] http = \"off\")".to_string());
    let all: Vec<String> = std::iter::once("ready".to_string()).chain(both).chain(names).collect();
    all.join(", ")
}

fn member_row(status: &v1::ClusterStatusReply, member: &v1::MemberStatus) -> [String; 10] {
    let known = member.member.clone().unwrap_or_default();
    let addresses = known.addresses.clone().unwrap_or_default();
    let node = member.node.as_ref();
    let state = match node {
        None => format!("unreachable: {}", member.error),
        Some(node) if !node.not_ready.is_empty() => node.not_ready.clone(),
        Some(node) => ready_text(node),
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
    let nbd = match node {
        Some(node) => nbd_text(addresses.nbd, node),
        None => addresses.nbd,
    };
    let days = days_text(node.and_then(|node| node.certificate.as_ref()));
    [member_text(known.id), known.name, known.region, addresses.api, nbd, state, boot, leads.join(","), days, journal]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_nbd_port_that_asks_for_no_token_is_shown() {
        let shown = |address: &str, nbd_tls: &str, plain_exports| {
            let nbd_tls = nbd_tls.to_string();
            nbd_text(address.to_string(), &v1::Node { nbd_tls, plain_exports, ..v1::Node::default() })
        };
        assert_eq!(shown("h:1", "required", false), "h:1 (TLS required)");
        assert_eq!(shown("h:1", "optional", true), "h:1 (TLS optional, NO TOKEN)");
        assert_eq!([shown("h:1", "off", true), shown("h:1", "off", false)], ["h:1 (NO TOKEN)", "h:1"]);
        assert_eq!(shown("", "", true), "", "it has no NBD port");
    }

    #[test]
    fn snapshots_that_need_no_token_are_shown() {
        let shown = |plain_exports, open_snapshots| {
            nbd_text("h:1".to_string(), &v1::Node { plain_exports, open_snapshots, ..v1::Node::default() })
        };
        assert_eq!([shown(false, false), shown(false, true)], ["h:1", "h:1 (SNAPSHOTS: NO TOKEN)"]);
        assert_eq!(shown(true, true), "h:1 (NO TOKEN)", "nothing needs one");
    }

    #[test]
    fn plain_text_beside_tls_is_shown() {
        let shown = |tls: &str, names_in_plain| {
            ready_text(&v1::Node { tls: tls.into(), names_in_plain, ..v1::Node::default() })
        };
        assert_eq!([shown("required", false), shown("off", false)], ["ready", "ready"]);
        assert_eq!(shown("use", false), "ready, TAKES PLAIN TEXT ([tls] transition = \"use\")");
        assert_eq!(shown("required", true), "ready, TELLS NAMES IN PLAIN TEXT ([tls] http = \"off\")");
    }

    /// ACCESS-A8.
    #[test]
    fn gateways_that_allow_different_stores_are_shown() {
        let member = |name: &str, places: &[&str]| {
            let places = places.iter().map(ToString::to_string).collect();
            v1::MemberStatus {
                member: Some(v1::Member { name: name.into(), ..v1::Member::default() }),
                node: Some(v1::Node { allowed_stores: Some(v1::AllowedStores { places }), ..v1::Node::default() }),
                ..v1::MemberStatus::default()
            }
        };
        let of = |members: Vec<v1::MemberStatus>| v1::ClusterStatusReply { members, ..Default::default() };
        assert!(!describe(&of(vec![member("g1", &["s3://a/"]), member("g2", &["s3://a/"])])).contains("DIFFERENT"));
        let shown = describe(&of(vec![member("g1", &["s3://a/"]), member("g2", &[])]));
        let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
        assert!(rows.contains(&vec!["g2", "anywhere"]) && rows.contains(&vec!["g1", "s3://a/"]), "{shown}");
    }

    #[test]
    fn violations_are_shown_whichever_gateway_was_asked() {
        let node = |violated| Some(v1::Node { violated, ..v1::Node::default() });
        let member = |node| v1::MemberStatus { node, ..v1::MemberStatus::default() };
        let text = "g3 in region=ap does not answer".to_string();
        let told = vec![v1::PlacingViolation { text, since_unix_ms: 0 }];
        let leader = vec![v1::ViolatedSet { set: "demo".into(), violations: told }];
        let mut status = v1::ClusterStatusReply { members: vec![member(node(vec![]))], ..Default::default() };
        assert!(!describe(&status).contains("VIOLATED"));
        status.members.push(member(node(leader)));
        let shown = describe(&status);
        let row: Vec<&str> = shown.lines().last().unwrap_or_default().split_whitespace().collect();
        assert_eq!(row, ["demo", "unknown", "g3", "in", "region=ap", "does", "not", "answer"]);
    }

    #[test]
    fn the_place_of_an_owner_is_shown_beside_where_its_set_is_served() {
        let member = |id: u64, role: v1::Role, owner_locality: &str| {
            let group = v1::GroupStatus {
                set: "demo".into(),
                role: role.into(),
                owner_locality: owner_locality.into(),
                ..v1::GroupStatus::default()
            };
            let (name, locality) = (format!("g{id}"), format!("region=r{id}"));
            v1::MemberStatus {
                member: Some(v1::Member { id, name, locality, ..v1::Member::default() }),
                node: Some(v1::Node { groups: vec![group], ..v1::Node::default() }),
                ..v1::MemberStatus::default()
            }
        };
        let (leader, follower) = (v1::Role::Leader, v1::Role::Follower);
        let of = |members: Vec<v1::MemberStatus>| v1::ClusterStatusReply { members, ..Default::default() };
        assert_eq!(owners(&of(vec![member(1, leader, ""), member(2, follower, "region=r2")])), "");
        let text = owners(&of(vec![member(1, leader, "region=r2"), member(2, follower, "region=r2")]));
        let rows: Vec<Vec<&str>> = text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1..], [["demo", "region=r2", "g1", "region=r1"]]);
    }

    #[test]
    fn where_reads_were_answered_is_shown_for_gateways_that_have_read() {
        let member = |name: &str, reads| v1::MemberStatus {
            member: Some(v1::Member { name: name.into(), ..v1::Member::default() }),
            node: Some(v1::Node { reads, ..v1::Node::default() }),
            ..v1::MemberStatus::default()
        };
        let since_start = Some(v1::FoundIn { journal: 10, memory: 60, disk: 20, store: 9, shared: 1 });
        let recent = Some(v1::FoundIn { memory: 3, store: 1, ..v1::FoundIn::default() });
        let read = v1::ReadAnswers { since_start, recent, recent_ms: 290_400 };
        let idle = v1::ReadAnswers { recent: Some(v1::FoundIn::default()), ..read };
        let never = v1::ReadAnswers { since_start: Some(v1::FoundIn::default()), ..idle };
        let members = vec![member("g2", Some(never)), member("g3", None)];
        let mut status = v1::ClusterStatusReply { members, ..v1::ClusterStatusReply::default() };
        assert_eq!(reads(&status), "", "one has read nothing, one does not say");
        status.members.extend([member("g1", Some(read)), member("g4", Some(idle))]);
        let text = reads(&status);
        let rows: Vec<Vec<&str>> = text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        let cells = |row: &str| row.split('|').map(str::to_string).collect::<Vec<_>>();
        assert_eq!(rows[0], cells("GATEWAY|SINCE|PARTS|JOURNAL|MEMORY|DISK|STORE|SHARED"));
        assert_eq!(rows[1], cells("g1|start|100|10.0|%|60.0|%|20.0|%|9.0|%|1.0|%"));
        assert_eq!(rows[2], cells("g1|290|s|ago|4|0.0|%|75.0|%|0.0|%|25.0|%|0.0|%"));
        assert_eq!(rows[4], cells("g4|290|s|ago|0|-|-|-|-|-"), "no division by nothing");
        assert_eq!(rows.len(), 5);
    }
}
