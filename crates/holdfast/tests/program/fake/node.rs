//! What a fake gateway reports about itself.

use super::{Set, World, find, refuse};
use holdfast_api::{RefusalCode, v1};
use holdfast_set::recovery::Stores;
use holdfast_types::{Placement, PlacementPhase};
use tonic::Status;

/// A gateway that leads nothing from now on.
pub fn stand_down(world: &mut World, member: u64) {
    let other = (0..world.gateways.len()).find(|at| ![0, member].contains(&world.gateways[*at].member));
    let at = world.gateways.iter().position(|gateway| gateway.member == member);
    if let (Some(at), Some(other)) = (at, other) {
        world.sets.values_mut().filter(|set| set.leader == at).for_each(|set| set.leader = other);
        if world.leader == at {
            world.leader = other;
        }
    }
}

/// A drained gateway leads nothing from then on.
pub fn drain(world: &mut World, request: &v1::DrainMemberRequest) -> Result<(), Status> {
    if !world.members.iter().any(|member| member.id == request.member) {
        return refuse(RefusalCode::NotFound, "no such member");
    }
    if request.drained {
        stand_down(world, request.member);
    }
    for member in world.members.iter_mut().filter(|member| member.id == request.member) {
        member.standing = if request.drained { "drained" } else { "active" }.into();
    }
    Ok(())
}

/// A gateway with another disk is another member.
pub fn update(world: &mut World, request: &v1::UpdateMemberRequest) -> Result<(), Status> {
    let now = request.gateway.clone().unwrap();
    for member in world.members.iter_mut().filter(|member| member.id == request.member) {
        if member.disk != now.disk {
            return refuse(RefusalCode::OtherDisk, "another disk");
        }
        member.addresses = now.addresses.clone();
    }
    Ok(())
}

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
        role: "gateway".into(),
        standing: world.members.iter().find(|m| m.id == gateway.member).map_or(String::new(), |m| m.standing.clone()),
        boot: 1,
        initialised: gateway.initialised,
        groups,
        journal: Some(v1::JournalUsage {
            used_bytes: 3 << 20,
            bound_bytes: 8 << 30,
            reserve_bytes: 1 << 20,
            failed: String::new(),
            waits: String::new(),
        }),
        ..Default::default()
    }
}

/// A new lease of the set.
pub fn grant(world: &mut World, set: &str, owner: &str, ttl_ms: u32) -> v1::GrantReply {
    let at = world.sets[set].leader;
    let (name, nbd, id) = (world.gateways[at].name.clone(), world.gateways[at].nbd.clone(), world.gateways[at].member);
    let entry = world.sets.get_mut(set).unwrap();
    entry.epoch += 10;
    let ttl_ms = if ttl_ms == 0 { 3000 } else { ttl_ms };
    let lease = v1::Lease {
        set: set.into(),
        owner: owner.into(),
        gateway: id,
        gateway_name: name,
        gateway_nbd: nbd,
        epoch: entry.epoch,
        ttl_ms,
        remaining_ms: ttl_ms,
        ..Default::default()
    };
    let token = format!("{:032x}", entry.epoch);
    entry.lease = Some((lease.clone(), token.clone()));
    v1::GrantReply { lease: Some(lease), token, volumes: entry.volumes.clone(), ..Default::default() }
}

/// The space of a set: nothing yet.
pub fn space(set: &Set) -> v1::GetSpaceReply {
    let volumes =
        set.volumes.iter().map(|volume| v1::VolumeSpace { volume: Some(volume.clone()), ..Default::default() });
    v1::GetSpaceReply {
        volumes: volumes.collect(),
        provisioned_bytes: set.volumes.iter().map(|volume| volume.size_bytes).sum(),
        ..Default::default()
    }
}

pub fn list_snapshots(world: &World, set: &str) -> Result<v1::ListSnapshotsReply, Status> {
    Ok(v1::ListSnapshotsReply { snapshots: find(world, set)?.snapshots.clone() })
}

/// Always the same token.
pub fn get_snapshot_token(
    world: &World,
    request: &v1::GetSnapshotTokenRequest,
) -> Result<v1::GetSnapshotTokenReply, Status> {
    let Some(found) = find(world, &request.set)?.snapshots.iter().find(|snapshot| snapshot.name == request.name) else {
        return refuse(RefusalCode::NotFound, "there is no such snapshot");
    };
    Ok(v1::GetSnapshotTokenReply { token: "0123456789abcdef".repeat(2), volumes: found.volumes.clone() })
}

/// The same ranges for every volume, in two parts; the first part ends within a range.
pub fn diff_snapshots(world: &World, request: &v1::DiffSnapshotsRequest) -> Result<v1::DiffSnapshotsReply, Status> {
    let snapshots = &find(world, &request.set)?.snapshots;
    let size = |id: &str| -> u64 {
        let found = snapshots.iter().find(|snapshot| snapshot.id == id);
        let volumes = found.into_iter().flat_map(|snapshot| &snapshot.volumes);
        volumes.filter(|volume| volume.id == request.volume).map(|volume| volume.size_bytes).sum()
    };
    if !request.compares_volumes {
        return refuse(RefusalCode::Precondition, "the volumes are not the same in both");
    }
    let range = |offset, length, zero| v1::ChangedRange { offset, length, zero };
    let (ranges, next_page) = match request.from_page {
        0 => (vec![range(0, 4096, false), range(8192, 4096, true)], 1),
        _ => (vec![range(12288, 512, true)], 0),
    };
    let size_before = size(&request.earlier_id) + u64::from(world.other_sizes);
    Ok(v1::DiffSnapshotsReply { ranges, next_page, size_before, size_after: size(&request.later_id) })
}

/// By its id: the name may belong to another snapshot by now.
pub fn delete_snapshot(
    world: &mut World,
    request: &v1::DeleteSnapshotRequest,
) -> Result<v1::DeleteSnapshotReply, Status> {
    find(world, &request.set)?;
    let Some(set) = world.sets.get_mut(&request.set) else { return Ok(v1::DeleteSnapshotReply { deleted: false }) };
    let before = set.snapshots.len();
    set.snapshots.retain(|snapshot| snapshot.id != request.id);
    Ok(v1::DeleteSnapshotReply { deleted: set.snapshots.len() < before })
}

/// The status of a set, as the gateway at `me` reports it.
pub fn set_status(world: &World, me: usize, request: &v1::GetSetRequest) -> v1::SetStatus {
    let set = &world.sets[&request.set];
    v1::SetStatus {
        set: Some(summary(set.id, &request.set, &set.store)),
        volumes: set.volumes.clone(),
        leader: Some(super::member(world, set.leader)),
        term: set.term,
        lease: set.lease.as_ref().map(|(lease, _)| lease.clone()),
        epoch: set.epoch,
        last_index: 40,
        applied_index: 40,
        checkpoint_index: 20,
        backlog_bytes: 3 << 20,
        snapshot_schedule: "off".to_string(),
        answered_by: world.gateways[me].member,
        confirmed: !request.any_view,
        voters: world.members.iter().map(|member| member.id).collect(),
        ..Default::default()
    }
}

/// A change of stores as group 0 starts and ends it. The caller has given the complete new list.
pub fn change_stores(world: &mut World, request: &v1::ChangeStoresRequest) -> Result<v1::ChangeStoresReply, Status> {
    find(world, &request.set)?;
    let Some(set) = world.sets.get_mut(&request.set) else { return refuse(RefusalCode::NotFound, "no set") };
    let (before, now) = (set.store.clone(), Placement::parse(&set.store));
    if before != request.expected {
        return refuse(RefusalCode::Precondition, "somebody else changed it meanwhile");
    }
    let placement = if request.abandon {
        now.stores
    } else {
        let current = Stores::parse(&now.stores).unwrap();
        let to = Stores::new(request.stores.clone(), Some(request.write_quorum as usize)).unwrap();
        let same = (to.urls(), to.write_quorum()) == (current.urls(), current.write_quorum());
        let to = to.after(&current).unwrap().to_string();
        match now.next {
            None if same => before.clone(),
            None => Placement { next: Some((PlacementPhase::Filling, to)), ..now }.to_string(),
            Some((_, other)) if other == to => before.clone(),
            Some(_) => return refuse(RefusalCode::Precondition, "one change at a time"),
        }
    };
    if !request.check_only {
        set.store.clone_from(&placement);
    }
    Ok(v1::ChangeStoresReply { changed: placement != before, before, placement })
}

/// Each poll of a set moves a change of its stores one step forward, unless the world holds changes.
pub fn stores_go_on(world: &mut World, set: &str) {
    let hold = world.hold_stores;
    let Some(set) = world.sets.get_mut(set).filter(|_| !hold) else { return };
    let now = Placement::parse(&set.store);
    set.store = match now.next {
        None => return,
        Some((PlacementPhase::Filling, to)) => {
            Placement { stores: now.stores, next: Some((PlacementPhase::Ending, to)) }.to_string()
        }
        Some((PlacementPhase::Ending, to)) => to,
    };
}

/// The answer to the creation of a set that exists.
pub fn created_before(world: &World, request: &v1::CreateSetRequest) -> Option<Result<v1::CreateSetReply, Status>> {
    let set = world.sets.get(&request.name)?;
    if set.store != request.store {
        return Some(refuse(RefusalCode::Exists, "another store"));
    }
    let set = Some(summary(set.id, &request.name, &request.store));
    Some(Ok(v1::CreateSetReply { set, created: false }))
}

/// A short description of a set.
pub fn summary(id: u64, name: &str, store: &str) -> v1::SetSummary {
    v1::SetSummary { id, name: name.to_string(), store: store.to_string(), ..Default::default() }
}
