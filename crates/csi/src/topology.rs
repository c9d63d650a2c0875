//! Places: where a node stands, and the home of a new set.
//!
//! A volume can be used from every node, so no answer binds it to a place. The home is a wish: as many voters as the
//! policy allows, and the leader, are near the first node that uses the volume (ADR 0052, ADR 0055).

use crate::v1;
use holdfast_types::Locality;
use std::collections::HashMap;

/// Label of a node with its region.
pub const REGION: &str = "topology.csi.holdfast/region";

/// Label of a node with its zone.
pub const ZONE: &str = "topology.csi.holdfast/zone";

/// Where a node stands. `None` if it has not been told.
pub fn of_node(at: Option<&Locality>) -> Option<v1::Topology> {
    let at = at?;
    let mut segments = HashMap::from([(REGION.to_string(), at.region.to_string())]);
    if let Some(zone) = &at.zone {
        segments.insert(ZONE.to_string(), zone.to_string());
    }
    Some(v1::Topology { segments })
}

/// The home of a new set: the first region of the list that has gateways, those that are preferred before the others.
/// `None` where no region fits: then the set has no home.
pub fn home(wished: Option<&v1::TopologyRequirement>, regions: &[String]) -> Option<String> {
    let wished = wished?;
    let places = wished.preferred.iter().chain(&wished.requisite);
    let mut named = places.filter_map(|place| place.segments.get(REGION));
    named.find(|region| regions.contains(region)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(region: &str) -> v1::Topology {
        v1::Topology { segments: HashMap::from([(REGION.to_string(), region.to_string())]) }
    }

    #[test]
    fn the_home_is_the_first_wish_that_has_gateways() {
        let regions = ["eu".to_string(), "us".to_string()];
        let wished = |preferred: &[&str], requisite: &[&str]| {
            let places = |list: &[&str]| list.iter().map(|region| place(region)).collect::<Vec<_>>();
            let wish = v1::TopologyRequirement { preferred: places(preferred), requisite: places(requisite) };
            home(Some(&wish), &regions)
        };
        assert_eq!(wished(&["us", "eu"], &["eu"]).as_deref(), Some("us"));
        assert_eq!(wished(&["ap"], &["eu"]).as_deref(), Some("eu"));
        assert_eq!(wished(&["ap"], &[]), None);
        assert_eq!(home(None, &regions), None);
    }

    #[test]
    fn a_node_says_where_it_stands() {
        let at: Locality = "region=eu,zone=a".parse().unwrap();
        let segments = of_node(Some(&at)).unwrap().segments;
        assert_eq!((segments[REGION].as_str(), segments[ZONE].as_str()), ("eu", "a"));
        assert_eq!(of_node(None), None);
    }
}
