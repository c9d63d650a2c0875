//! What a fake gateway says of itself.

use super::World;
use holdfast_api::v1;

pub fn node(world: &World, at: usize) -> v1::Node {
    let gateway = &world.gateways[at];
    let group = |group: u64, set: &str, leader: usize| v1::GroupStatus {
        group,
        set: set.into(),
        role: if leader == at { v1::Role::Leader } else { v1::Role::Follower }.into(),
        leader: world.gateways[leader].member,
        term: 3,
        last_index: 40,
        committed_index: 40,
        applied_index: 40,
        voters: world.members.iter().map(|member| member.id).collect(),
        ..Default::default()
    };
    let mut groups = Vec::new();
    if gateway.initialised {
        groups.push(group(0, "", world.leader));
        groups.extend(world.sets.iter().map(|(name, set)| group(set.id, name, set.leader)));
    }
    v1::Node {
        name: gateway.name.clone(),
        region: "eu".into(),
        disk: gateway.disk.clone(),
        cluster_id: gateway.cluster_id.clone(),
        member: gateway.member,
        addresses: Some(v1::Addresses {
            api: gateway.api.clone(),
            nbd: gateway.nbd.clone(),
            peer: "127.0.0.1:1".into(),
            http: String::new(),
        }),
        version: "test".into(),
        boot: 1,
        initialised: gateway.initialised,
        groups,
        journal: Some(v1::JournalUsage {
            used_bytes: 3 << 20,
            bound_bytes: 8 << 30,
            reserve_bytes: 1 << 20,
            failed: String::new(),
        }),
        ..Default::default()
    }
}
