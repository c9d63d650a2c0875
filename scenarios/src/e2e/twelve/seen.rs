//! What `cluster status` shows of gateways and sets. Gateways have the index that their name gives: `g1` is 0.

use super::places::Place;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// One set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SetSeen {
    /// The voters that its record names.
    pub(crate) named: BTreeSet<usize>,
    /// The voters of its group, by its leader. Empty while nobody leads.
    pub(crate) voters: BTreeSet<usize>,
    /// Those that its leader copies the group to.
    pub(crate) learners: BTreeSet<usize>,
    /// Its leader, if its own view is known.
    pub(crate) leader: Option<usize>,
    /// Bytes that the leader's journal still has to keep of it: about what a new voter gets.
    pub(crate) live_bytes: u64,
}

/// The cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// `active`, `drained` or `leaving`, by gateway.
    pub(crate) standing: BTreeMap<usize, String>,
    /// Those that answer.
    pub(crate) answering: BTreeSet<usize>,
    /// By name.
    pub(crate) sets: BTreeMap<String, SetSeen>,
    /// The group of the cluster itself.
    pub(crate) cluster: SetSeen,
    /// Sets whose policy is violated, and how, by the planner.
    pub(crate) violated: Vec<String>,
    /// Whether the planner has looked at the sets, and wants no further voters.
    pub(crate) planned: bool,
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// A group as its leader sees it. `named` is left empty.
fn group(status: &Value, index: &BTreeMap<u64, usize>, group: u64) -> SetSeen {
    let leader = array(&status["groups"]).iter().find(|found| found["group"] == group).map(|found| &found["leader"]);
    let member = leader.and_then(|id| array(&status["members"]).iter().find(|member| member["member"]["id"] == *id));
    let own = member.map(|member| array(&member["node"]["groups"])).unwrap_or_default();
    let Some(view) = own.iter().find(|found| found["group"] == group) else { return SetSeen::default() };
    let numbers = |what: &str| array(&view[what]).iter().filter_map(|id| index.get(&id.as_u64()?).copied()).collect();
    SetSeen {
        named: BTreeSet::new(),
        voters: numbers("voters"),
        learners: numbers("learners"),
        leader: leader.and_then(|id| index.get(&id.as_u64()?).copied()),
        live_bytes: view["journal_live_bytes"].as_u64().unwrap_or(0),
    }
}

impl Seen {
    /// Reads a status. Fails when it does not have what every status has.
    pub(crate) fn read(status: &Value) -> Result<Self> {
        let members = status["members"].as_array().with_context(|| format!("a status without members: {status}"))?;
        let mut seen = Self::default();
        let mut index = BTreeMap::new();
        for found in members {
            let member = &found["member"];
            let name = member["name"].as_str().context("a member without a name")?;
            let number: Option<usize> = name.strip_prefix('g').and_then(|number| number.parse().ok());
            let at =
                number.and_then(|number| number.checked_sub(1)).with_context(|| format!("a member called {name}"))?;
            index.insert(member["id"].as_u64().context("a member without an id")?, at);
            seen.standing.insert(at, member["standing"].as_str().unwrap_or_default().to_owned());
            if found["reachable"] == true {
                seen.answering.insert(at);
            }
            for set in array(&found["node"]["violated"]) {
                let texts: Vec<&str> = array(&set["violations"]).iter().filter_map(|v| v["text"].as_str()).collect();
                seen.violated.push(format!("{}: {}", set["set"].as_str().unwrap_or("?"), texts.join("; ")));
            }
            seen.planned |= found["node"]["plan"].is_object() && array(&found["node"]["plan"]["sets"]).is_empty();
        }
        seen.cluster = group(status, &index, 0);
        for set in array(&status["sets"]) {
            let (name, id) = (set["name"].as_str().context("a set without a name")?, set["id"].as_u64());
            let named = array(&set["voters"]).iter().filter_map(|id| index.get(&id.as_u64()?).copied()).collect();
            let found = SetSeen { named, ..group(status, &index, id.context("a set without an id")?) };
            seen.sets.insert(name.to_owned(), found);
        }
        Ok(seen)
    }

    /// Why not every set is as the planner wants it, if so: a move is under way or to come, or a policy is violated.
    pub(crate) fn unsettled(&self) -> Option<String> {
        if let Some(first) = self.violated.first() {
            return Some(format!("{} sets are violated, the first: {first}", self.violated.len()));
        }
        let moving = self.sets.iter().find(|(_, set)| {
            let as_named = set.named.is_empty() || set.voters == set.named;
            set.leader.is_none() || !as_named || !set.learners.is_empty()
        });
        match moving {
            Some((name, set)) => Some(format!("{name} moves: {set:?}")),
            None => (!self.planned).then(|| "the planner wants further voters, or has not looked yet".to_owned()),
        }
    }

    /// Voters of all sets at a gateway.
    pub(crate) fn votes_of(&self, gateway: usize) -> usize {
        self.sets.values().filter(|set| set.voters.contains(&gateway)).count()
    }
}

/// Whether the loss of any one `host`, `zone` or `region` leaves a majority of these voters. Each gateway is a host.
pub(crate) fn survives(level: &str, voters: &BTreeSet<usize>) -> bool {
    let domain = |gateway: &usize| {
        let place = Place::of(*gateway);
        match level {
            "region" => (place.region, None, None),
            "zone" => (place.region, Some(place.zone), None),
            _ => (place.region, Some(place.zone), Some(*gateway)),
        }
    };
    let mut lost: BTreeMap<_, usize> = BTreeMap::new();
    for gateway in voters {
        *lost.entry(domain(gateway)).or_insert(0) += 1;
    }
    let needed = voters.len() / 2 + 1;
    !voters.is_empty() && lost.values().all(|gone| voters.len() - gone >= needed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status() -> Value {
        let group = |group: u64, voters: &[u64], learners: &[u64]| {
            let bytes = json!(77);
            json!({ "group": group, "voters": voters, "learners": learners, "journal_live_bytes": bytes })
        };
        let member = |id: u64, node: Value| {
            let member = json!({ "id": id, "name": format!("g{id}"), "standing": "active" });
            json!({ "member": member, "reachable": node.is_object(), "node": node })
        };
        let plan = json!({ "takers": [1], "sets": [] });
        json!({
            "members": [
                member(1, json!({ "groups": [group(0, &[1, 2, 4], &[]), group(3, &[1], &[])], "plan": plan })),
                member(2, json!({ "groups": [group(3, &[1, 2, 4], &[])] })),
                member(4, Value::Null),
            ],
            "sets": [{ "name": "one", "id": 3, "voters": [1, 2, 4] }],
            "groups": [{ "group": 0, "leader": 1 }, { "group": 3, "leader": 2 }],
        })
    }

    #[test]
    fn a_set_is_seen_as_its_leader_sees_it() -> Result<()> {
        let seen = Seen::read(&status())?;
        let set = &seen.sets["one"];
        assert_eq!((set.leader, &set.voters, set.live_bytes), (Some(1), &BTreeSet::from([0, 1, 3]), 77));
        assert_eq!((seen.cluster.leader, &seen.cluster.voters), (Some(0), &BTreeSet::from([0, 1, 3])));
        assert_eq!(seen.answering, BTreeSet::from([0, 1]));
        assert_eq!((seen.votes_of(3), seen.votes_of(2)), (1, 0));
        assert_eq!(seen.unsettled(), None);
        Ok(())
    }

    #[test]
    fn what_moves_or_is_violated_is_not_settled() -> Result<()> {
        let unsettled = |change: &dyn Fn(&mut Value)| -> Result<String> {
            let mut status = status();
            change(&mut status);
            Ok(Seen::read(&status)?.unsettled().unwrap_or_default())
        };
        let moves = unsettled(&|status| status["sets"][0]["voters"] = json!([1, 2, 3]))?;
        assert!(moves.starts_with("one moves"), "{moves}");
        let leaderless = unsettled(&|status| status["groups"][1]["leader"] = json!(0))?;
        assert!(leaderless.starts_with("one moves"), "{leaderless}");
        let learns = unsettled(&|status| status["members"][1]["node"]["groups"][0]["learners"] = json!([4]))?;
        assert!(learns.starts_with("one moves"), "{learns}");
        let wants = unsettled(&|status| status["members"][0]["node"]["plan"]["sets"] = json!([{ "set": 3 }]))?;
        assert!(wants.contains("wants further voters"), "{wants}");
        let told = json!([{ "set": "one", "violations": [{ "text": "why" }] }]);
        let violated = unsettled(&|status| status["members"][0]["node"]["violated"] = told.clone())?;
        assert!(violated.contains("one: why"), "{violated}");
        Ok(())
    }

    #[test]
    fn what_voters_survive_follows_from_where_they_stand() {
        let survives = |level, voters: &[usize]| super::survives(level, &voters.iter().copied().collect());
        let all = |voters: &[usize]| ["host", "zone", "region"].map(|level| survives(level, voters));
        assert_eq!(all(&[0, 1, 2]), [true, true, false]);
        assert_eq!(all(&[0, 3, 6]), [true, true, true]);
        // Two in one zone: the further gateway stands where g4 does.
        assert_eq!(all(&[3, 12, 6]), [true, false, false]);
        assert_eq!(all(&[0]), [false, false, false]);
        assert_eq!(all(&[]), [false, false, false]);
    }
}
