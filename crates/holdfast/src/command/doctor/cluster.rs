//! The cluster, as one of its gateways tells it, and the network to its gateways.

use super::super::text::store_text;
use super::finding::{Finding, Verdict};
use holdfast_api::{different_places, expires_soon, v1};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Connections that are timed to each gateway.
const TRIES: usize = 3;

/// Time limit of each.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Fill of a journal, in percent, from which writers are slowed down.
const FILL_PERCENT: u64 = 60;

/// One finding for many things of a kind: all that is wrong, or `well`.
fn of_all(check: &'static str, wrong: Vec<String>, verdict: Verdict, next: &str, well: String) -> Finding {
    match wrong.is_empty() {
        true => Finding::ok(check, well),
        false => Finding { check, verdict, found: wrong.join("; "), next: next.to_owned() },
    }
}

/// The same where this caller may be told only a part (ACCESS-A7): what is wrong in it counts, but that nothing is
/// wrong in it says nothing. Each gateway that tells everything tells its list of allowed stores, also an empty one;
/// one of an older build does not. Where one tells it, this caller may be told all.
fn as_far_as_told(status: &v1::ClusterStatusReply, finding: Finding) -> Finding {
    let untold: Vec<&str> =
        nodes(status).filter(|(_, node)| node.allowed_stores.is_none()).map(|(name, _)| name).collect();
    if untold.is_empty() || finding.verdict != Verdict::Ok {
        return finding;
    }
    if untold.len() < nodes(status).count() {
        let found = format!("not told by an older build: {}", untold.join(", "));
        return Finding::unknown(finding.check, found, "complete the upgrade of all gateways");
    }
    Finding::unknown(
        finding.check,
        "not told to a certificate that is bound to sets, nor by an older build",
        "run this with a certificate that may use every set, after an upgrade of all gateways",
    )
}

/// All checks of a status. No I/O.
pub fn findings(status: &v1::ClusterStatusReply) -> Vec<Finding> {
    let mut found = vec![gateways(status), leaders(status), versions(status), journals(status), certificates(status)];
    found.extend(stores(status));
    found.push(as_far_as_told(status, policies(status)));
    found.push(as_far_as_told(status, places(status)));
    found
}

fn name(member: &v1::MemberStatus) -> &str {
    member.member.as_ref().map_or("?", |known| known.name.as_str())
}

fn nodes(status: &v1::ClusterStatusReply) -> impl Iterator<Item = (&str, &v1::Node)> {
    status.members.iter().filter_map(|member| Some((name(member), member.node.as_ref()?)))
}

fn gateways(status: &v1::ClusterStatusReply) -> Finding {
    let wrong = status.members.iter().filter_map(|member| match &member.node {
        None => Some(format!("{} does not answer: {}", name(member), member.error)),
        Some(node) if !node.not_ready.is_empty() => Some(format!("{}: {}", name(member), node.not_ready)),
        Some(_) => None,
    });
    let next = "look at the unit and the log of each of them: `journalctl -u holdfast-gateway`";
    let well = format!("{} are ready", status.members.len());
    of_all("gateways", wrong.collect(), Verdict::Bad, next, well)
}

fn leaders(status: &v1::ClusterStatusReply) -> Finding {
    let wrong = status.groups.iter().filter(|group| group.leader == 0);
    let wrong = wrong.map(|group| format!("group {} ({}) has none", group.group, group.set));
    let next = "more than half of the group's voters must run and reach one another";
    of_all("leaders", wrong.collect(), Verdict::Bad, next, format!("{} groups have one", status.groups.len()))
}

fn versions(status: &v1::ClusterStatusReply) -> Finding {
    let versions: BTreeSet<&str> = nodes(status).map(|(_, node)| node.version.as_str()).collect();
    let text = versions.iter().copied().collect::<Vec<_>>().join(", ");
    match versions.len() {
        0 | 1 => Finding::ok("versions", text),
        _ => Finding::warning("versions", format!("different ones: {text}"), "complete the upgrade of all gateways"),
    }
}

fn journals(status: &v1::ClusterStatusReply) -> Finding {
    let wrong = nodes(status).filter_map(|(name, node)| {
        let journal = node.journal.as_ref()?;
        let filled = u128::from(journal.used_bytes) * 100 / u128::from(journal.bound_bytes.max(1));
        match (journal.failed.as_str(), journal.waits.as_str()) {
            ("", "") if filled < u128::from(FILL_PERCENT) => None,
            ("", "") => Some(format!("{name}: {filled} % full, writers are slowed down")),
            ("", why) | (why, _) => Some(format!("{name}: {why}")),
        }
    });
    let next = "if the stores are well: free space on the disk, or replace it; otherwise the stores first";
    of_all("journals", wrong.collect(), Verdict::Bad, next, format!("all below {FILL_PERCENT} %"))
}

fn certificates(status: &v1::ClusterStatusReply) -> Finding {
    let wrong = nodes(status).filter_map(|(name, node)| {
        let own = node.certificate.as_ref()?;
        let days = own.days_left?;
        expires_soon(own).then(|| format!("that of {name} has {days} days left"))
    });
    let next = "`holdfast certificate renew` makes new ones, which are used without a restart; if this stays, an authority that comes with them ends";
    of_all("certificates of gateways", wrong.collect(), Verdict::Warning, next, "none expires soon".to_string())
}

/// The worst of what the gateways say of each set's stores.
fn stores(status: &v1::ClusterStatusReply) -> Vec<Finding> {
    let all = nodes(status).flat_map(|(name, node)| node.stores.iter().map(move |health| (name, health)));
    let wrong: Vec<Finding> = all
        .filter_map(|(name, health)| {
            let now = health.now.as_ref()?;
            let found = format!("{}, seen by {name}: {}", health.set, store_text(health));
            let next = "docs/operating/stores.md has each kind of trouble";
            Some(match now.needs_operator {
                true => Finding::bad("stores", found, next),
                false => Finding::warning("stores", found, next),
            })
        })
        .collect();
    match wrong.is_empty() {
        true => vec![Finding::ok("stores", format!("those of {} sets work", status.sets.len()))],
        false => wrong,
    }
}

fn policies(status: &v1::ClusterStatusReply) -> Finding {
    let violated = nodes(status).flat_map(|(_, node)| &node.violated);
    let wrong = violated.flat_map(|of| of.violations.iter().map(move |told| format!("{}: {}", of.set, told.text)));
    let next = "`holdfast set show SET` says what is missing, usually a gateway";
    of_all("policies of sets", wrong.collect(), Verdict::Warning, next, "fulfilled".into())
}

/// ACCESS-A8.
fn places(status: &v1::ClusterStatusReply) -> Finding {
    let wrong = different_places(status).into_iter().map(|[names, places]| format!("{names}: {places}"));
    let next = "give all gateways the same list (`[store] allowed`): until then no set is put into a store";
    of_all("allowed stores", wrong.collect(), Verdict::Warning, next, "the same at all gateways".into())
}

/// The time until a connection to `address` (HOST:PORT) exists: a round trip. The shortest of several.
pub async fn round_trip(address: &str) -> Result<Duration, String> {
    let mut best: Option<Duration> = None;
    for _ in 0..TRIES {
        let begun = Instant::now();
        match timeout(CONNECT_LIMIT, TcpStream::connect(address)).await {
            Ok(Ok(_)) => best = Some(best.map_or(begun.elapsed(), |best| best.min(begun.elapsed()))),
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("no answer in {CONNECT_LIMIT:?}")),
        }
    }
    best.ok_or_else(|| "not tried".to_owned())
}

/// The network from here to the others: names, and the time of a round trip. `rtt_ms`: the setting that says how long
/// it may take.
pub fn network(check: &'static str, seen: &[(String, Result<Duration, String>)], rtt_ms: Option<u32>) -> Finding {
    let gone: Vec<String> =
        seen.iter().filter_map(|(name, took)| Some(format!("{name}: {}", took.as_ref().err()?))).collect();
    if !gone.is_empty() {
        return Finding::bad(check, gone.join("; "), "does it run, and does a firewall let this host through?");
    }
    let Some(longest) = seen.iter().filter_map(|(_, took)| took.as_ref().ok()).max() else {
        return Finding::ok(check, "no others");
    };
    let found = format!("{} reached, the farthest in {:.2} ms", seen.len(), longest.as_secs_f64() * 1e3);
    match rtt_ms {
        Some(rtt_ms) if longest.as_millis() >= u128::from(rtt_ms) && longest.as_millis() > 1 => Finding::warning(
            check,
            format!("{found}, but rtt_ms = {rtt_ms}"),
            format!("set rtt_ms = {} at every gateway: too low means needless elections", longest.as_millis() + 1),
        ),
        _ => Finding::ok(check, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, node: Option<v1::Node>) -> v1::MemberStatus {
        let known = v1::Member { name: name.into(), ..v1::Member::default() };
        v1::MemberStatus { member: Some(known), error: "refused".into(), node, ..v1::MemberStatus::default() }
    }

    fn well() -> v1::ClusterStatusReply {
        let node = || {
            let journal = v1::JournalUsage { used_bytes: 1, bound_bytes: 100, ..Default::default() };
            let allowed_stores = Some(v1::AllowedStores::default());
            v1::Node { version: "1".into(), journal: Some(journal), allowed_stores, ..v1::Node::default() }
        };
        v1::ClusterStatusReply {
            members: vec![member("g1", Some(node())), member("g2", Some(node()))],
            groups: vec![v1::GroupSummary { group: 3, leader: 1, ..Default::default() }],
            ..Default::default()
        }
    }

    /// The findings that are not ok.
    fn told(change: impl FnOnce(&mut v1::ClusterStatusReply)) -> Vec<(&'static str, Verdict, String)> {
        let mut status = well();
        change(&mut status);
        let wrong = findings(&status).into_iter().filter(|finding| finding.verdict != Verdict::Ok);
        wrong.map(|finding| (finding.check, finding.verdict, finding.found)).collect()
    }

    #[test]
    fn each_fault_of_a_cluster_is_found_and_a_sound_one_has_none() {
        assert!(told(|_| ()).is_empty());
        let found = told(|status| status.members[1].node = None);
        assert_eq!(found, [("gateways", Verdict::Bad, String::from("g2 does not answer: refused"))]);
        let found = told(|status| status.groups[0].leader = 0);
        assert_eq!(found[0].0, "leaders");
        let found = told(|status| {
            for (member, places) in status.members.iter_mut().zip([vec!["s3://a/".to_string()], Vec::new()]) {
                member.node.as_mut().unwrap().allowed_stores = Some(v1::AllowedStores { places });
            }
        });
        assert_eq!(found, [("allowed stores", Verdict::Warning, String::from("g2: anywhere; g1: s3://a/"))]);
        type Change = fn(&mut v1::Node);
        let cases: [(Change, (&str, Verdict)); 5] = [
            (|node| node.version = "2".into(), ("versions", Verdict::Warning)),
            (|node| node.journal.as_mut().unwrap().used_bytes = 60, ("journals", Verdict::Bad)),
            (|node| node.journal.as_mut().unwrap().failed = "no space".into(), ("journals", Verdict::Bad)),
            (
                |node| {
                    let trouble = v1::StoreTrouble { needs_operator: true, ..Default::default() };
                    node.stores = vec![v1::StoreHealth { now: Some(trouble), ..Default::default() }];
                },
                ("stores", Verdict::Bad),
            ),
            (
                |node| {
                    let violations = vec![v1::PlacingViolation::default()];
                    node.violated = vec![v1::ViolatedSet { set: "demo".into(), violations }];
                },
                ("policies of sets", Verdict::Warning),
            ),
        ];
        for (change, expected) in cases {
            let found = told(|status| change(status.members[0].node.as_mut().unwrap()));
            assert_eq!(found.iter().map(|(check, verdict, _)| (*check, *verdict)).collect::<Vec<_>>(), [expected]);
        }
    }

    /// ACCESS-A7: a host that is bound to its sets is told no list of allowed stores, and nothing of other sets.
    #[test]
    fn what_is_not_told_is_not_well() {
        let bound = |node: &mut v1::Node| node.allowed_stores = None;
        let told_to_host = |change: fn(&mut v1::Node)| {
            told(|status| {
                status.members.iter_mut().filter_map(|member| member.node.as_mut()).for_each(bound);
                change(status.members[0].node.as_mut().unwrap());
            })
        };
        let verdicts = |found: Vec<(&'static str, Verdict, String)>| {
            found.into_iter().map(|(check, verdict, _)| (check, verdict)).collect::<Vec<_>>()
        };
        let found = verdicts(told_to_host(|_| ()));
        assert_eq!(found, [("policies of sets", Verdict::Unknown), ("allowed stores", Verdict::Unknown)]);
        let found = verdicts(told_to_host(|node| {
            let violations = vec![v1::PlacingViolation::default()];
            node.violated = vec![v1::ViolatedSet { set: "own".into(), violations }];
        }));
        assert_eq!(found, [("policies of sets", Verdict::Warning), ("allowed stores", Verdict::Unknown)]);
    }

    #[test]
    fn an_older_build_does_not_make_a_certificate_a_bound_one() {
        let found = told(|status| status.members[1].node.as_mut().unwrap().allowed_stores = None);
        let unknown = |check| (check, Verdict::Unknown, String::from("not told by an older build: g2"));
        assert_eq!(found, [unknown("policies of sets"), unknown("allowed stores")]);
    }

    #[test]
    fn a_network_slower_than_the_setting_is_told_with_the_value_to_set() {
        let ms = |ms: u64| ("g2".to_owned(), Ok(Duration::from_millis(ms)));
        assert_eq!(network("n", &[ms(1)], Some(1)).verdict, Verdict::Ok, "less than two");
        let found = network("n", &[ms(1), ms(40)], Some(10));
        assert!(found.verdict == Verdict::Warning && found.next.contains("rtt_ms = 41"), "{found:?}");
        assert_eq!(network("n", &[ms(40)], None).verdict, Verdict::Ok);
        let gone = ("g3".to_owned(), Err("refused".to_owned()));
        assert_eq!(network("n", &[ms(1), gone], None).verdict, Verdict::Bad);
        assert_eq!(network("n", &[], Some(1)).verdict, Verdict::Ok);
    }
}
