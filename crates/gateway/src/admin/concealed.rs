//! What a host that is bound to its sets is told of others: numbers, and no name of a set, a snapshot or a store, and
//! no place of an owner (ACCESS-A7).

use holdfast_api::v1;
use holdfast_tls::Caller;

/// In place of a text that may name other sets.
const UNTOLD: &str = "it cannot serve everything (the reason is told to those who may use every set)";

/// In place of the origin of a clone, and of the name of a clone: empty would say that there is none.
const UNTOLD_SET: &str = "another set";

/// An answer with names of several sets.
pub(super) trait Conceal {
    /// Takes out the names of the sets that `caller` may not use.
    fn conceal(&mut self, caller: &Caller);

    /// The same for who asks; without a certificate that names sets everything is told.
    fn for_caller(mut self, caller: Option<&Caller>) -> Self
    where
        Self: Sized,
    {
        if let Some(bound) = caller.filter(|caller| !caller.sees_all()) {
            self.conceal(bound);
        }
        self
    }
}

impl Conceal for v1::Node {
    fn conceal(&mut self, caller: &Caller) {
        for group in self.groups.iter_mut().filter(|group| !caller.may_use(&group.set)) {
            group.set.clear();
            group.owner_locality.clear();
        }
        self.stores.retain(|health| caller.may_use(&health.set));
        self.violated.retain(|of| caller.may_use(&of.set));
        // What needs a key has names of snapshots. Hosts may not list keys.
        self.keys = None;
        self.allowed_stores = None;
        if !self.not_ready.is_empty() {
            self.not_ready = UNTOLD.to_string();
        }
    }
}

impl Conceal for v1::ClusterStatusReply {
    fn conceal(&mut self, caller: &Caller) {
        self.members.iter_mut().filter_map(|member| member.node.as_mut()).for_each(|node| node.conceal(caller));
        self.groups.iter_mut().filter(|group| !caller.may_use(&group.set)).for_each(|group| group.set.clear());
        self.sets.retain(|set| caller.may_use(&set.name));
        self.sets.iter_mut().for_each(|set| set.conceal(caller));
    }
}

impl Conceal for v1::SetSummary {
    fn conceal(&mut self, caller: &Caller) {
        let origin = self.clone_of.split_once('@').map(|(origin, _)| origin);
        if origin.is_some_and(|origin| !caller.may_use(origin)) {
            self.clone_of = UNTOLD_SET.to_string();
        }
    }
}

impl Conceal for v1::SetStatus {
    fn conceal(&mut self, caller: &Caller) {
        self.set.iter_mut().for_each(|set| set.conceal(caller));
        for clone in self.clones.iter_mut().filter(|clone| !clone.name.is_empty() && !caller.may_use(&clone.name)) {
            clone.name = UNTOLD_SET.to_string();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::asked;
    use holdfast_tls::Role;

    fn summary(name: &str, clone_of: &str) -> v1::SetSummary {
        let (name, store) = (name.to_string(), format!("s3://bucket/{name}"));
        v1::SetSummary { name, store, clone_of: clone_of.to_string(), ..v1::SetSummary::default() }
    }

    fn node() -> v1::Node {
        let group = |group: u64, set: &str| v1::GroupStatus {
            group,
            set: set.to_string(),
            last_index: 10 + group,
            owner_locality: format!("region={set}"),
            ..v1::GroupStatus::default()
        };
        let health = |set: &str| v1::StoreHealth {
            set: set.to_string(),
            placement: format!("s3://bucket/{set}"),
            ..v1::StoreHealth::default()
        };
        let violated = |set: &str| v1::ViolatedSet { set: set.to_string(), ..v1::ViolatedSet::default() };
        let held = vec![v1::DataKeyHeld { key: 1, what: "snapshot secret-1".to_string() }];
        let needs = Some(v1::DataKeyNeeds { held, ..v1::DataKeyNeeds::default() });
        let data_keys = vec![v1::DataKeys { set: 2, needs, ..v1::DataKeys::default() }];
        v1::Node {
            name: "g1".to_string(),
            groups: vec![group(0, ""), group(1, "demo"), group(2, "secret")],
            stores: vec![health("demo"), health("secret")],
            violated: vec![violated("demo"), violated("secret")],
            keys: Some(v1::NodeKeys { data_keys, ..v1::NodeKeys::default() }),
            allowed_stores: Some(v1::AllowedStores { places: vec!["s3://bucket/secret".to_string()] }),
            not_ready: "set secret: its store is away".to_string(),
            ..v1::Node::default()
        }
    }

    fn status() -> v1::ClusterStatusReply {
        let group = |group: u64, set: &str| v1::GroupSummary {
            group,
            set: set.to_string(),
            last_index: 10 + group,
            ..v1::GroupSummary::default()
        };
        v1::ClusterStatusReply {
            members: vec![v1::MemberStatus { node: Some(node()), ..v1::MemberStatus::default() }],
            sets: vec![summary("demo", "secret@monday"), summary("secret", "demo@sunday")],
            groups: vec![group(0, ""), group(1, "demo"), group(2, "secret")],
            ..v1::ClusterStatusReply::default()
        }
    }

    /// A set with a clone, which is a clone itself.
    fn set() -> v1::SetStatus {
        let clone = |name: &str| v1::Clone { id: 7, name: name.to_string(), ..v1::Clone::default() };
        let set = Some(summary("demo", "secret@monday"));
        let clones = vec![clone("secret"), clone("demo"), clone("")];
        v1::SetStatus { set, clones, ..v1::SetStatus::default() }
    }

    /// ACCESS-A7.
    #[tokio::test]
    async fn a_host_learns_no_name_of_a_set_that_it_may_not_use() {
        let dir = tempfile::tempdir().expect("a directory");
        let all = asked(dir.path()).await;
        for sees in [None, all[&Role::Viewer].caller(), all[&Role::Gateway].caller()] {
            assert_eq!(node().for_caller(sees), node());
            assert_eq!(status().for_caller(sees), status());
            assert_eq!(set().for_caller(sees), set());
        }
        let bound = all[&Role::Host].caller();
        let (node, status, set) = (node().for_caller(bound), status().for_caller(bound), set().for_caller(bound));
        for told in [format!("{node:?}"), format!("{status:?}"), format!("{set:?}")] {
            assert!(told.contains("demo"), "its own set: {told}");
            for name in ["secret", "monday"] {
                assert!(!told.contains(name), "{name}: {told}");
            }
        }
        // Numbers stay: what lags, and which gateways lead how much.
        let indices: Vec<u64> = node.groups.iter().map(|group| group.last_index).collect();
        assert_eq!((indices, status.groups.len()), (vec![10, 11, 12], 3));
        assert!(!node.not_ready.is_empty(), "it still says that something is wrong");
        assert_eq!(status.sets.iter().map(|set| set.name.as_str()).collect::<Vec<_>>(), ["demo"]);
        assert!(set.set.is_some_and(|set| !set.clone_of.is_empty()), "it still says that it is a clone");
        // An empty name says that the clone is being made, or that it is not in the cluster.
        let clones: Vec<&str> = set.clones.iter().map(|clone| clone.name.as_str()).collect();
        assert_eq!(clones, [UNTOLD_SET, "demo", ""]);
    }
}
