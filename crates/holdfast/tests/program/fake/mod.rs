//! Gateways that have only an admin door, for tests of the command line: several servers that share one small world.
//! They follow `proto/admin.proto`; a mood makes one of them misbehave as real ones do at bad times.
#![allow(dead_code, unused_imports, reason = "each test file uses a part")]

mod node;
mod world;

use holdfast_api::v1::admin_server::{Admin, AdminServer};
use holdfast_api::{Refusal, RefusalCode, v1};
use node::{grant, node};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
pub use world::{Gateway, Mood, Set, plan};

#[derive(Default)]
pub struct World {
    pub gateways: Vec<Gateway>,
    pub members: Vec<v1::Member>,
    pub sets: BTreeMap<String, Set>,
    /// Leader of group 0.
    pub leader: usize,
    pub next_member: u64,
    /// Calls such as `g1 create_set`, in order of arrival.
    pub calls: Vec<String>,
    /// How often something was changed, by request id.
    pub changes: BTreeMap<String, u32>,
    /// A change of stores makes no progress.
    pub hold_stores: bool,
    /// Ranges belong to volumes of other sizes than those that are listed.
    pub other_sizes: bool,
}

pub type Shared = Arc<Mutex<World>>;

/// One gateway's door.
struct Door {
    world: Shared,
    me: usize,
}

/// Starts `count` fresh gateways g1, g2, ... on ports of their own.
pub async fn start(count: usize) -> Shared {
    let world = Shared::default();
    for _ in 0..count {
        add(&world, "127.0.0.1:0").await;
    }
    world
}

/// Starts one more gateway.
pub async fn add(world: &Shared, listen: &str) -> String {
    let listener = tokio::net::TcpListener::bind(listen).await.unwrap();
    let api = listener.local_addr().unwrap().to_string();
    let me = {
        let mut world = world.lock().unwrap();
        let me = world.gateways.len();
        world.gateways.push(Gateway {
            name: format!("g{}", me + 1),
            api: api.clone(),
            nbd: format!("127.0.0.1:{}", 10_809 + me),
            disk: holdfast_api::hex128(0xd15c_0000 + me as u128),
            cluster_id: String::new(),
            member: 0,
            initialised: false,
            mood: Mood::Well,
        });
        me
    };
    let service = AdminServer::new(Door { world: world.clone(), me });
    tokio::spawn(
        tonic::transport::Server::builder().add_service(service).serve_with_incoming(TcpIncoming::from(listener)),
    );
    api
}

/// The admin addresses, as for `--api`.
pub fn api(world: &Shared) -> String {
    world.lock().unwrap().gateways.iter().map(|gateway| gateway.api.clone()).collect::<Vec<_>>().join(",")
}

fn refuse<T>(code: RefusalCode, message: &str) -> Result<T, Status> {
    Err(Refusal::new(code, message).into())
}

impl Door {
    /// Notes the call, and misbehaves according to the gateway's mood.
    async fn enter(&self, call: &str) -> Result<(), Status> {
        let mood = {
            let mut world = self.world.lock().unwrap();
            let gateway = &mut world.gateways[self.me];
            let name = gateway.name.clone();
            let mood = gateway.mood.clone();
            if let Mood::Busy(left) = &mut gateway.mood {
                *left -= 1;
                if *left == 0 {
                    gateway.mood = Mood::Well;
                }
            }
            world.calls.push(format!("{name} {call}"));
            mood
        };
        match mood {
            Mood::Silent => std::future::pending().await,
            Mood::Busy(_) => refuse(RefusalCode::Busy, "an election is under way"),
            _ => Ok(()),
        }
    }

    /// Refuses unless this gateway is the one at `leader`.
    fn lead(&self, world: &World, leader: usize) -> Result<(), Status> {
        let me = &world.gateways[self.me];
        if me.cluster_id.is_empty() {
            return refuse(RefusalCode::NotAdopted, "this gateway has no cluster");
        }
        if leader == self.me && !matches!(me.mood, Mood::Hint(_)) {
            return Ok(());
        }
        let hint = match &me.mood {
            Mood::NoHint => None,
            Mood::Hint(hint) => Some(hint.clone()),
            _ => Some(world.gateways[leader].api.clone()),
        };
        Err(Refusal::not_leader(format!("{} does not lead", me.name), hint).into())
    }

    /// A change was made: answers so, or that the outcome is unknown.
    fn changed<T>(&self, world: &mut World, request_id: &str, reply: T) -> Result<Response<T>, Status> {
        *world.changes.entry(request_id.to_string()).or_default() += 1;
        if world.gateways[self.me].mood == Mood::Last {
            world.gateways.iter_mut().for_each(|gateway| gateway.mood = Mood::Silent);
        }
        if let Mood::Forgets(left) = &mut world.gateways[self.me].mood {
            *left -= 1;
            if *left == 0 {
                world.gateways[self.me].mood = Mood::Well;
            }
            return refuse(RefusalCode::Unknown, "no answer from a quorum in time");
        }
        Ok(Response::new(reply))
    }

    fn node(&self, world: &World) -> v1::Node {
        node(world, self.me)
    }
}

fn find<'a>(world: &'a World, set: &str) -> Result<&'a Set, Status> {
    world.sets.get(set).map_or_else(|| refuse(RefusalCode::NotFound, &format!("there is no set {set}")), Ok)
}

fn member(world: &World, at: usize) -> v1::Member {
    holdfast_api::member_of(&node(world, at))
}

fn by_name(world: &World, name: &str) -> Result<usize, Status> {
    let found = world.gateways.iter().position(|gateway| gateway.name == name && gateway.member != 0);
    found.map_or_else(|| refuse(RefusalCode::NotFound, &format!("there is no gateway {name}")), Ok)
}

type Answer<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Admin for Door {
    async fn get_node(&self, _: Request<v1::GetNodeRequest>) -> Answer<v1::Node> {
        self.enter("get_node").await?;
        Ok(Response::new(self.node(&self.world.lock().unwrap())))
    }

    async fn adopt(&self, request: Request<v1::AdoptRequest>) -> Answer<v1::Node> {
        self.enter("adopt").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        let is_member = world.members.iter().any(|member| member.id == request.member);
        let gateway = &mut world.gateways[self.me];
        if gateway.disk != request.disk {
            return refuse(RefusalCode::OtherDisk, "another disk");
        }
        if gateway.member != 0 && (gateway.member, &gateway.cluster_id) != (request.member, &request.cluster_id) {
            return refuse(RefusalCode::Adopted, "adopted already");
        }
        gateway.member = request.member;
        gateway.cluster_id = request.cluster_id;
        gateway.initialised = is_member;
        Ok(Response::new(self.node(&world)))
    }

    async fn init_cluster(&self, request: Request<v1::InitClusterRequest>) -> Answer<v1::InitClusterReply> {
        self.enter("init_cluster").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        if world.gateways[self.me].initialised {
            let same = world.members == request.members;
            return if same {
                Ok(Response::new(v1::InitClusterReply { already: true }))
            } else {
                refuse(RefusalCode::Exists, "another list")
            };
        }
        for member in &request.members {
            let gateway = world.gateways.iter_mut().find(|gateway| gateway.disk == member.disk).unwrap();
            assert_eq!((gateway.member, &gateway.cluster_id), (member.id, &request.cluster_id), "adopted before");
            gateway.initialised = true;
        }
        world.next_member = request.members.len() as u64 + 1;
        world.members = request.members;
        self.changed(&mut world, &request.request_id, v1::InitClusterReply { already: false })
    }

    async fn join_member(&self, request: Request<v1::JoinMemberRequest>) -> Answer<v1::JoinMemberReply> {
        self.enter("join_member").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        self.lead(&world, world.leader)?;
        let mut new = request.gateway.unwrap();
        let cluster_id = world.gateways[self.me].cluster_id.clone();
        if let Some(known) = world.members.iter().find(|member| member.disk == new.disk) {
            return Ok(Response::new(v1::JoinMemberReply { member: known.id, cluster_id, already: true }));
        }
        if world.members.iter().any(|member| member.name == new.name && member.id != request.replaces) {
            return refuse(RefusalCode::Exists, "there is a member of that name");
        }
        new.id = world.next_member;
        world.next_member += 1;
        let member = new.id;
        node::stand_down(&mut world, request.replaces);
        world.members.retain(|member| member.id != request.replaces);
        world.members.push(new);
        self.changed(&mut world, &request.request_id, v1::JoinMemberReply { member, cluster_id, already: false })
    }

    async fn remove_member(&self, request: Request<v1::RemoveMemberRequest>) -> Answer<v1::RemoveMemberReply> {
        self.enter("remove_member").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        self.lead(&world, world.leader)?;
        node::stand_down(&mut world, request.member);
        world.members.retain(|member| member.id != request.member);
        self.changed(&mut world, &request.request_id, v1::RemoveMemberReply {})
    }

    async fn drain_member(&self, request: Request<v1::DrainMemberRequest>) -> Answer<v1::DrainMemberReply> {
        self.enter("drain_member").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        self.lead(&world, world.leader)?;
        node::drain(&mut world, &request)?;
        self.changed(&mut world, &request.request_id, v1::DrainMemberReply {})
    }

    async fn plan_drain(&self, request: Request<v1::PlanDrainRequest>) -> Answer<v1::DrainPlan> {
        self.enter("plan_drain").await?;
        let world = self.world.lock().unwrap();
        self.lead(&world, world.leader)?;
        let (leaders, votes_on) = (vec!["g1".to_string()], "no other gateway may have its vote".to_string());
        let set = "demo".to_string();
        let step = v1::DrainStep { group: 1, set, leads: true, leaders, votes: true, votes_on, ..Default::default() };
        let member = request.into_inner().member;
        Ok(Response::new(v1::DrainPlan { member, refused: String::new(), steps: vec![step] }))
    }

    async fn update_member(&self, request: Request<v1::UpdateMemberRequest>) -> Answer<v1::UpdateMemberReply> {
        self.enter("update_member").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        self.lead(&world, world.leader)?;
        node::update(&mut world, &request)?;
        self.changed(&mut world, &request.request_id, v1::UpdateMemberReply {})
    }

    async fn cluster_status(&self, _: Request<v1::ClusterStatusRequest>) -> Answer<v1::ClusterStatusReply> {
        self.enter("cluster_status").await?;
        let world = self.world.lock().unwrap();
        if world.gateways[self.me].cluster_id.is_empty() {
            return refuse(RefusalCode::NotAdopted, "this gateway has no cluster");
        }
        let members = world.members.iter().map(|known| {
            let at =
                world.gateways.iter().position(|gateway| gateway.disk == known.disk && gateway.mood != Mood::Silent);
            let seen = at.map(|at| node(&world, at));
            let lags = seen
                .iter()
                .flat_map(|seen| seen.groups.iter().map(|group| v1::GroupLag { group: group.group, entries: 0 }))
                .collect();
            v1::MemberStatus {
                member: Some(known.clone()),
                reachable: at.is_some(),
                error: if at.is_none() { "no answer".into() } else { String::new() },
                node: seen,
                lags,
                late: false,
            }
        });
        let members = members.collect();
        let leads = |group: u64, set: &str, at: usize| v1::GroupSummary {
            group,
            set: set.into(),
            leader: world.gateways[at].member,
            leader_name: world.gateways[at].name.clone(),
            term: 3,
            last_index: 40,
            committed_index: 40,
        };
        let mut groups = vec![leads(0, "", world.leader)];
        groups.extend(world.sets.iter().map(|(name, set)| leads(set.id, name, set.leader)));
        let sets = world.sets.iter().map(|(name, set)| node::summary(set.id, name, &set.store)).collect();
        let me = &world.gateways[self.me];
        Ok(Response::new(v1::ClusterStatusReply {
            level: 1,
            cluster_id: me.cluster_id.clone(),
            answered_by: me.name.clone(),
            members,
            sets,
            groups,
        }))
    }

    async fn create_set(&self, request: Request<v1::CreateSetRequest>) -> Answer<v1::CreateSetReply> {
        self.enter("create_set").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        self.lead(&world, world.leader)?;
        if let Some(before) = node::created_before(&world, &request) {
            return before.map(Response::new);
        }
        let (id, leader) = (world.sets.len() as u64 + 1, world.gateways.len() - 1);
        world.sets.insert(
            request.name.clone(),
            Set { id, store: request.store.clone(), leader, term: 3, ..Default::default() },
        );
        let set = Some(node::summary(id, &request.name, &request.store));
        self.changed(&mut world, &request.request_id, v1::CreateSetReply { set, created: true })
    }

    async fn create_snapshot(&self, _: Request<v1::CreateSnapshotRequest>) -> Answer<v1::CreateSnapshotReply> {
        Err(Status::unimplemented("create_snapshot"))
    }
    async fn list_snapshots(&self, request: Request<v1::ListSnapshotsRequest>) -> Answer<v1::ListSnapshotsReply> {
        self.enter("list_snapshots").await?;
        node::list_snapshots(&self.world.lock().unwrap(), &request.into_inner().set).map(Response::new)
    }
    async fn get_snapshot_token(
        &self,
        request: Request<v1::GetSnapshotTokenRequest>,
    ) -> Answer<v1::GetSnapshotTokenReply> {
        self.enter("get_snapshot_token").await?;
        node::get_snapshot_token(&self.world.lock().unwrap(), &request.into_inner()).map(Response::new)
    }
    async fn delete_snapshot(&self, request: Request<v1::DeleteSnapshotRequest>) -> Answer<v1::DeleteSnapshotReply> {
        self.enter("delete_snapshot").await?;
        node::delete_snapshot(&mut self.world.lock().unwrap(), &request.into_inner()).map(Response::new)
    }
    async fn rollback_snapshot(&self, _: Request<v1::RollbackSnapshotRequest>) -> Answer<v1::RollbackSnapshotReply> {
        Err(Status::unimplemented("rollback_snapshot"))
    }
    async fn diff_snapshots(&self, request: Request<v1::DiffSnapshotsRequest>) -> Answer<v1::DiffSnapshotsReply> {
        self.enter("diff_snapshots").await?;
        node::diff_snapshots(&self.world.lock().unwrap(), &request.into_inner()).map(Response::new)
    }
    async fn set_schedule(&self, _: Request<v1::SetScheduleRequest>) -> Answer<v1::SetScheduleReply> {
        Err(Status::unimplemented("set_schedule"))
    }
    async fn change_limit(&self, _: Request<v1::ChangeLimitRequest>) -> Answer<v1::ChangeLimitReply> {
        Err(Status::unimplemented("change_limit"))
    }
    async fn list_keys(&self, _: Request<v1::ListKeysRequest>) -> Answer<v1::ListKeysReply> {
        Err(Status::unimplemented("list_keys"))
    }
    async fn rotate_data_key(&self, _: Request<v1::RotateDataKeyRequest>) -> Answer<v1::ListKeysReply> {
        Err(Status::unimplemented("rotate_data_key"))
    }
    async fn rotate_cluster_key(&self, _: Request<v1::RotateClusterKeyRequest>) -> Answer<v1::ListKeysReply> {
        Err(Status::unimplemented("rotate_cluster_key"))
    }
    async fn rewrap_node_key(&self, _: Request<v1::RewrapNodeKeyRequest>) -> Answer<v1::RewrapNodeKeyReply> {
        Err(Status::unimplemented("rewrap_node_key"))
    }
    async fn delete_set(&self, _: Request<v1::DeleteSetRequest>) -> Answer<v1::DeleteSetReply> {
        Err(Status::unimplemented("delete_set"))
    }
    async fn scrub_set(&self, _: Request<v1::ScrubSetRequest>) -> Answer<v1::Scrub> {
        Err(Status::unimplemented("scrub_set"))
    }
    async fn pin_snapshot(&self, _: Request<v1::PinSnapshotRequest>) -> Answer<v1::PinSnapshotReply> {
        Err(Status::unimplemented("pin_snapshot"))
    }
    async fn list_certificates(&self, _: Request<v1::ListCertificatesRequest>) -> Answer<v1::CertificatesReply> {
        Err(Status::unimplemented("list_certificates"))
    }
    async fn revoke_certificate(&self, _: Request<v1::RevokeCertificateRequest>) -> Answer<v1::RevokedReply> {
        Err(Status::unimplemented("revoke_certificate"))
    }
    async fn unrevoke_certificate(&self, _: Request<v1::UnrevokeCertificateRequest>) -> Answer<v1::RevokedReply> {
        Err(Status::unimplemented("unrevoke_certificate"))
    }
    async fn list_revoked(&self, _: Request<v1::ListRevokedRequest>) -> Answer<v1::ListRevokedReply> {
        Err(Status::unimplemented("list_revoked"))
    }
    async fn clone_set(&self, _: Request<v1::CloneSetRequest>) -> Answer<v1::CloneSetReply> {
        Err(Status::unimplemented("clone_set"))
    }
    async fn change_policy(&self, _: Request<v1::ChangePolicyRequest>) -> Answer<v1::Placing> {
        Err(Status::unimplemented("change_policy"))
    }
    async fn get_placing(&self, request: Request<v1::GetPlacingRequest>) -> Answer<v1::Placing> {
        Ok(Response::new(v1::Placing { set: request.into_inner().set, ..Default::default() }))
    }
    async fn change_volume(&self, _: Request<v1::ChangeVolumeRequest>) -> Answer<v1::ChangeVolumeReply> {
        Err(Status::unimplemented("change_volume"))
    }
    async fn get_space(&self, request: Request<v1::GetSpaceRequest>) -> Answer<v1::GetSpaceReply> {
        let world = self.world.lock().unwrap();
        Ok(Response::new(node::space(find(&world, &request.into_inner().set)?)))
    }
    async fn restore_set(&self, _: Request<v1::RestoreSetRequest>) -> Answer<v1::RestoreSetReply> {
        refuse(RefusalCode::Precondition, "there is no store here")
    }

    async fn checkpoint_set(&self, request: Request<v1::CheckpointSetRequest>) -> Answer<v1::CheckpointSetReply> {
        let (world, asked) = (self.world.lock().unwrap(), request.into_inner());
        self.lead(&world, find(&world, &asked.set)?.leader)?;
        let checkpoint_index = 42 * asked.at_index.min(1); // Done when it is asked again.
        Ok(Response::new(v1::CheckpointSetReply { at_index: 40, checkpoint_index, ..Default::default() }))
    }

    async fn create_volume(&self, request: Request<v1::CreateVolumeRequest>) -> Answer<v1::CreateVolumeReply> {
        self.enter("create_volume").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        self.lead(&world, find(&world, &request.set)?.leader)?;
        let set = world.sets.get_mut(&request.set).unwrap();
        if let Some(volume) = set.volumes.iter().find(|volume| volume.name == request.name) {
            let same = volume.size_bytes == request.size_bytes;
            return if same {
                Ok(Response::new(v1::CreateVolumeReply { volume: Some(volume.clone()), created: false }))
            } else {
                refuse(RefusalCode::Exists, "another size")
            };
        }
        let volume =
            v1::Volume { id: set.volumes.len() as u32 + 1, name: request.name, size_bytes: request.size_bytes };
        set.volumes.push(volume.clone());
        self.changed(&mut world, &request.request_id, v1::CreateVolumeReply { volume: Some(volume), created: true })
    }

    async fn list_sets(&self, _: Request<v1::ListSetsRequest>) -> Answer<v1::ListSetsReply> {
        self.enter("list_sets").await?;
        let world = self.world.lock().unwrap();
        let sets = world.sets.iter().map(|(name, set)| node::summary(set.id, name, &set.store)).collect();
        Ok(Response::new(v1::ListSetsReply { sets, deletions: Vec::new() }))
    }

    async fn get_set(&self, request: Request<v1::GetSetRequest>) -> Answer<v1::SetStatus> {
        self.enter("get_set").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        let set = find(&world, &request.set)?;
        if !request.any_view {
            self.lead(&world, set.leader)?;
        }
        let said = node::set_status(&world, self.me, &request);
        node::stores_go_on(&mut world, &request.set);
        Ok(Response::new(said))
    }

    async fn change_stores(&self, request: Request<v1::ChangeStoresRequest>) -> Answer<v1::ChangeStoresReply> {
        self.enter("change_stores").await?;
        let mut world = self.world.lock().unwrap();
        self.lead(&world, world.leader)?;
        node::change_stores(&mut world, &request.into_inner()).map(Response::new)
    }

    async fn acquire_lease(&self, request: Request<v1::AcquireLeaseRequest>) -> Answer<v1::GrantReply> {
        self.enter("acquire_lease").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        let set = find(&world, &request.set)?;
        self.lead(&world, set.leader)?;
        if let Some(answer) = set.done.get(&request.request_id) {
            return Ok(Response::new(answer.clone()));
        }
        if let Some((lease, _)) = set.lease.as_ref().filter(|_| !request.force) {
            return refuse(
                RefusalCode::Held,
                &format!("{} is held by {} at {}", request.set, lease.owner, lease.gateway_name),
            );
        }
        let reply = grant(&mut world, &request.set, &request.owner, request.ttl_ms);
        world.sets.get_mut(&request.set).unwrap().done.insert(request.request_id.clone(), reply.clone());
        self.changed(&mut world, &request.request_id, reply)
    }

    async fn continue_lease(&self, request: Request<v1::ContinueLeaseRequest>) -> Answer<v1::GrantReply> {
        self.enter("continue_lease").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        let set = find(&world, &request.set)?;
        self.lead(&world, set.leader)?;
        let held =
            set.lease.as_ref().is_some_and(|(lease, token)| (&lease.owner, token) == (&request.owner, &request.token));
        if !held {
            return refuse(RefusalCode::StaleToken, "the token is not that of the current grant");
        }
        let reply = grant(&mut world, &request.set, &request.owner, 0);
        self.changed(&mut world, &request.request_id, reply)
    }

    async fn renew_lease(&self, request: Request<v1::RenewLeaseRequest>) -> Answer<v1::RenewLeaseReply> {
        self.enter("renew_lease").await?;
        let request = request.into_inner();
        let world = self.world.lock().unwrap();
        let set = find(&world, &request.set)?;
        self.lead(&world, set.leader)?;
        match &set.lease {
            Some((lease, token)) if *token == request.token && lease.epoch == request.epoch => {
                let lease = v1::Lease { remaining_ms: lease.ttl_ms, ..lease.clone() };
                let volumes = set.volumes.clone();
                Ok(Response::new(v1::RenewLeaseReply { lease: Some(lease), volumes, ..Default::default() }))
            }
            _ => refuse(RefusalCode::StaleToken, "the token and epoch are not those of the current lease"),
        }
    }

    async fn release_lease(&self, request: Request<v1::ReleaseLeaseRequest>) -> Answer<v1::ReleaseLeaseReply> {
        self.enter("release_lease").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        self.lead(&world, find(&world, &request.set)?.leader)?;
        let set = world.sets.get_mut(&request.set).unwrap();
        match &set.lease {
            None => Ok(Response::new(v1::ReleaseLeaseReply { released: false })),
            Some((lease, token)) if *token == request.token && lease.epoch == request.epoch => {
                set.lease = None;
                Ok(Response::new(v1::ReleaseLeaseReply { released: true }))
            }
            Some(_) => refuse(RefusalCode::StaleToken, "the token is not that of the current grant"),
        }
    }

    async fn get_lease(&self, request: Request<v1::GetLeaseRequest>) -> Answer<v1::GetLeaseReply> {
        self.enter("get_lease").await?;
        let request = request.into_inner();
        let world = self.world.lock().unwrap();
        let set = find(&world, &request.set)?;
        self.lead(&world, set.leader)?;
        Ok(Response::new(v1::GetLeaseReply { lease: set.lease.as_ref().map(|(lease, _)| lease.clone()) }))
    }
    async fn switchover(&self, request: Request<v1::SwitchoverRequest>) -> Answer<v1::MoveReply> {
        self.enter("switchover").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        let to = by_name(&world, &request.to_gateway)?;
        let leader = find(&world, &request.set)?.leader;
        if leader == to {
            return Ok(Response::new(v1::MoveReply {
                leader: Some(member(&world, to)),
                already: true,
                ..Default::default()
            }));
        }
        self.lead(&world, leader)?;
        let set = world.sets.get_mut(&request.set).unwrap();
        set.leader = to;
        set.term += 1;
        let reply = v1::MoveReply { leader: Some(member(&world, to)), ..Default::default() };
        self.changed(&mut world, &request.request_id, reply)
    }

    async fn failover(&self, request: Request<v1::FailoverRequest>) -> Answer<v1::MoveReply> {
        self.enter("failover").await?;
        let request = request.into_inner();
        let mut world = self.world.lock().unwrap();
        let to = by_name(&world, &request.candidate)?;
        self.lead(&world, find(&world, &request.set)?.leader)?;
        let set = world.sets.get_mut(&request.set).unwrap();
        let already = set.leader == to;
        let ended = set.lease.take().map(|(lease, _)| lease);
        // It is granted at the old leader, and moved after that: the old owner is fenced before anything else happens.
        let granted =
            (!request.owner.is_empty()).then(|| grant(&mut world, &request.set, &request.owner, request.ttl_ms));
        let set = world.sets.get_mut(&request.set).unwrap();
        set.leader = to;
        set.term += u64::from(!already);
        let reply = v1::MoveReply { leader: Some(member(&world, to)), ended, granted, already };
        self.changed(&mut world, &request.request_id, reply)
    }
}
