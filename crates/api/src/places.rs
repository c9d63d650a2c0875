//! Compares the places where sets may be put (`store.allowed`) at each gateway: whichever leads counts (ACCESS-A8).

use crate::v1;
use std::collections::{BTreeMap, BTreeSet};

/// Longest list of places for people, in characters.
const CHARS_MAX: usize = 256;

/// The different lists of places of the gateways that answer and say so, for people: names of gateways, and their
/// places. Empty if all have the same.
pub fn different_places(status: &v1::ClusterStatusReply) -> Vec<[String; 2]> {
    let nodes = status.members.iter();
    different_places_of(nodes.filter_map(|member| Some((member.member.as_ref()?.name.as_str(), member.node.as_ref()?))))
}

/// The same for gateways with these names, which need not have a cluster yet.
pub fn different_places_of<'a>(nodes: impl Iterator<Item = (&'a str, &'a v1::Node)>) -> Vec<[String; 2]> {
    let mut all: BTreeMap<BTreeSet<&str>, Vec<&str>> = BTreeMap::new();
    for (name, node) in nodes {
        if let Some(allowed) = &node.allowed_stores {
            all.entry(allowed.places.iter().map(String::as_str).collect()).or_default().push(name);
        }
    }
    if all.len() < 2 {
        return Vec::new();
    }
    all.into_iter().map(|(places, names)| [names.join(", "), text(&places)]).collect()
}

fn text(places: &BTreeSet<&str>) -> String {
    let all: Vec<&str> = places.iter().copied().collect();
    match all.join(", ") {
        none if none.is_empty() => "anywhere".to_string(),
        long if long.chars().count() > CHARS_MAX => long.chars().take(CHARS_MAX).collect::<String>() + " ...",
        all => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, allowed: Option<&[&str]>) -> v1::MemberStatus {
        let allowed_stores = allowed.map(|places| {
            let places = places.iter().map(ToString::to_string).collect();
            v1::AllowedStores { places }
        });
        v1::MemberStatus {
            member: Some(v1::Member { name: name.to_string(), ..v1::Member::default() }),
            node: Some(v1::Node { allowed_stores, ..v1::Node::default() }),
            ..v1::MemberStatus::default()
        }
    }

    fn told(members: Vec<v1::MemberStatus>) -> Vec<String> {
        let status = v1::ClusterStatusReply { members, ..v1::ClusterStatusReply::default() };
        different_places(&status).iter().map(|[names, places]| format!("{names}: {places}")).collect()
    }

    /// ACCESS-A8.
    #[test]
    fn gateways_with_other_places_are_found() {
        let (a, b) = ("s3://a/", "s3://b/");
        let same = vec![member("g1", Some(&[a, b])), member("g2", Some(&[b, a, a]))];
        assert!(told(same).is_empty(), "the order says nothing");
        assert!(told(vec![member("g1", Some(&[])), member("g2", Some(&[]))]).is_empty());
        let silent = v1::MemberStatus { node: None, ..member("g3", None) };
        let unsaid = vec![member("g1", Some(&[a])), member("g2", None), silent];
        assert!(told(unsaid).is_empty(), "an older build, and one that does not answer");
        let one_without = vec![member("g1", Some(&[a])), member("g2", Some(&[])), member("g3", Some(&[a]))];
        assert_eq!(told(one_without), ["g2: anywhere", "g1, g3: s3://a/"]);
        let long = "x".repeat(1000);
        let shown = told(vec![member("g1", Some(&[a])), member("g2", Some(&[a, long.as_str()]))]);
        assert_eq!((shown.len(), shown[1].len()), (2, 4 + CHARS_MAX + 4));
    }
}
