//! The whole page, of a cluster in which something is wrong.

use super::timeline::{Change, Held, Takeover};
use super::view::{self, View};
use crate::admin::{Gathered, SetHere};
use holdfast_api::v1;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/http/page/golden.html");

/// The time of the look.
const NOW: u64 = 1_800_000_000_000;

const MIB: u64 = 1 << 20;

/// A text that would be markup, if it were not escaped.
const EVIL: &str = "<img src=x onerror=\"alert('1')\">";

fn member(id: u64, region: &str) -> v1::Member {
    v1::Member {
        id,
        name: format!("g{id}"),
        region: region.to_string(),
        locality: format!("region={region},zone={region}-a"),
        role: "gateway".to_string(),
        standing: "active".to_string(),
        ..v1::Member::default()
    }
}

fn group(id: u64, set: &str, role: v1::Role, connections: u32) -> v1::GroupStatus {
    v1::GroupStatus {
        group: id,
        set: set.to_string(),
        role: role.into(),
        leader: 1,
        journal_live_bytes: 96 * MIB,
        serving_epoch: if role == v1::Role::Leader { 17 } else { 0 },
        connections,
        ..v1::GroupStatus::default()
    }
}

fn node(groups: Vec<v1::GroupStatus>, stores: Vec<v1::StoreHealth>, http: &str) -> v1::Node {
    v1::Node {
        version: "0.1.0".to_string(),
        boot: 3,
        uptime_ms: 7_300_000,
        addresses: Some(v1::Addresses { http: http.to_string(), ..v1::Addresses::default() }),
        journal: Some(v1::JournalUsage {
            used_bytes: 1536 * MIB,
            bound_bytes: 8192 * MIB,
            ..v1::JournalUsage::default()
        }),
        groups,
        stores,
        ..v1::Node::default()
    }
}

fn answered(member: v1::Member, node: v1::Node, behind: u64) -> v1::MemberStatus {
    let lags = vec![v1::GroupLag { group: 1, entries: behind }];
    let (error, node) = (String::new(), Some(node));
    v1::MemberStatus { member: Some(member), reachable: true, error, node, lags, late: false }
}

fn members() -> Vec<v1::MemberStatus> {
    let trouble = v1::StoreTrouble {
        kind: "throttled".to_string(),
        error: format!("503 {EVIL}"),
        since_unix_ms: NOW - 90_000,
        ..v1::StoreTrouble::default()
    };
    let health = v1::StoreHealth {
        set: "demo".to_string(),
        backlog_bytes: 12 * MIB,
        now: Some(trouble),
        placement: "s3://bucket/demo/".to_string(),
        ..v1::StoreHealth::default()
    };
    let leader = node(vec![group(1, "demo", v1::Role::Leader, 1)], vec![health], "g1.example:7402");
    let learner = node(vec![group(1, "demo", v1::Role::Learner, 0)], Vec::new(), "g2.example:7402");
    let silent = v1::MemberStatus {
        member: Some(v1::Member { role: "witness".to_string(), ..member(3, "us") }),
        error: format!("no answer {EVIL}"),
        ..v1::MemberStatus::default()
    };
    let drained = v1::Member { standing: "drained".to_string(), ..member(2, "eu") };
    vec![answered(member(1, "eu"), leader, 0), answered(drained, learner, 7), silent]
}

fn demo() -> SetHere {
    let snapshot = |name: &str, at: u64, pending: bool| v1::Snapshot {
        name: name.to_string(),
        created_unix_ms: at,
        pending,
        ..v1::Snapshot::default()
    };
    let lease = v1::Lease {
        owner: "db2".to_string(),
        since_unix_ms: NOW - 600_000,
        locality: "region=eu".to_string(),
        ..v1::Lease::default()
    };
    let set = v1::SetSummary { id: 1, name: "demo".to_string(), ..v1::SetSummary::default() };
    SetHere {
        status: v1::SetStatus { set: Some(set), epoch: 17, lease: Some(lease), ..v1::SetStatus::default() },
        snapshots: vec![snapshot("now", NOW - 5000, true), snapshot("monday", NOW - 259_200_000, false)],
        snapshots_total: 12,
    }
}

fn sample() -> View {
    let of = |id: u64, name: &str, clone_of: &str| v1::SetSummary {
        id,
        name: name.to_string(),
        store: format!("s3://bucket/{name}/"),
        clone_of: clone_of.to_string(),
        voters: Vec::new(),
    };
    let led = |group: u64, set: &str, leader: u64| v1::GroupSummary {
        group,
        set: set.to_string(),
        leader,
        ..v1::GroupSummary::default()
    };
    let cluster = v1::ClusterStatusReply {
        cluster_id: "0123456789abcdef0123456789abcdef".to_string(),
        answered_by: "g1".to_string(),
        members: members(),
        sets: vec![of(1, "demo", ""), of(2, "copy", "demo@monday"), of(3, "away", "")],
        groups: vec![led(0, "", 1), led(1, "demo", 1), led(2, "copy", 0)],
        level: 4,
    };
    let warnings = vec![format!("set demo: store throttled for 90 s: 503 {EVIL}")];
    let held = |owner: &str, gateway: &str, epoch: u64| Held {
        owner: owner.to_string(),
        gateway: gateway.to_string(),
        epoch,
        since_unix_ms: 0,
    };
    let took = |ago_ms: u64, change: Change, held: Held| Takeover {
        at_unix_ms: NOW - ago_ms,
        set: "demo".to_string(),
        change,
        held,
    };
    View {
        at_unix_ms: NOW,
        seen: Gathered { cluster, trouble: String::new(), warnings, sets: vec![demo()] },
        takeovers: vec![
            took(600_000, Change::TakenFrom("db1".to_string()), held("db2", "g1", 17)),
            took(660_000, Change::MovedFrom("g2".to_string()), held("db1", "g1", 16)),
            took(900_000, Change::Found, held("db1", "g2", 15)),
        ],
    }
}

fn whole(view: &View) -> String {
    [view::head("g1", false).finish(), view::state(view).finish(), view::TAIL.to_string()].concat()
}

#[test]
fn golden_page() {
    let page = whole(&sample());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(GOLDEN, &page).expect("the page");
    }
    let found = std::fs::read_to_string(GOLDEN).unwrap_or_default();
    assert!(found == page, "{GOLDEN}: UPDATE_GOLDEN=1 writes it anew; found\n{page}");
}

#[test]
fn h1_what_others_say_is_no_markup() {
    let page = whole(&sample());
    assert!(!page.contains(EVIL) && page.contains("&lt;img src=x onerror=&quot;alert(&#39;1&#39;)&quot;&gt;"));
}

/// The policy would keep a browser from running and loading it; the page would look wrong.
#[test]
fn h3_nothing_is_inline_and_nothing_is_from_elsewhere() {
    let page = whole(&sample());
    for bad in [" style=", "<style", "javascript:", "http://", "https://", "<form", "<script>"] {
        assert!(!page.contains(bad), "{bad}");
    }
    let loaded: Vec<&str> = page.split("src=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(loaded, ["page/live.js"]);
    for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'"] {
        assert!(super::answer::POLICY.contains(part), "{part}");
    }
    assert!(!super::answer::POLICY.contains("unsafe"));
}

#[test]
fn all_is_well_only_if_nothing_is_wrong() {
    let mut view = sample();
    assert!(whole(&view).contains("things need attention"));
    view.seen.warnings.clear();
    view.seen.cluster.members.truncate(2);
    view.seen.cluster.sets.truncate(1);
    view.seen.cluster.groups.truncate(2);
    assert!(whole(&view).contains("All is well"), "{}", whole(&view));
    view.seen.trouble = "this gateway has no cluster yet".to_string();
    assert!(whole(&view).contains("1 thing needs attention"));
}

/// WEB-H4: the page stays small.
#[test]
fn of_many_problems_the_first_are_shown() {
    let seen =
        Gathered { warnings: (0..1000).map(|number| format!("problem {number}")).collect(), ..Gathered::default() };
    let page = whole(&View { seen, ..View::default() });
    assert!(
        page.contains("1000 things need attention") && page.contains("<li>and 900 more: holdfast cluster status</li>")
    );
    assert!(page.contains("<li>problem 99</li>") && !page.contains("<li>problem 100</li>"));
}

#[test]
fn a_set_of_other_gateways_is_shown_without_its_owner() {
    let mut view = sample();
    view.seen.sets.clear();
    let page = whole(&view);
    assert!(page.contains("not on this gateway"));
    assert!(page.contains("<td data-label=\"Epoch\">17</td>"), "its leader tells the epoch");
}
