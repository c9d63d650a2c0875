//! The admin door: gRPC for people, the command line, agents and attach processes. Every gateway answers; what needs a
//! leader is refused elsewhere with the leader's address (crates/api, "refusal").

mod checks;
mod clone;
mod deletion;
mod diff;
mod drain;
mod keys;
mod lease;
mod member;
mod moves;
mod placement;
mod recovery;
mod rollback;
mod scrub;
mod snapshot;
mod space;
mod status;
mod stores;
mod volumes;

pub(crate) use keys::data::run as run_data_keys;

use crate::node::{Adopted, Node};
use holdfast_api::v1::{self, admin_server::Admin};
use holdfast_api::{Refusal, RefusalCode};
use holdfast_control::cluster::{ClusterRefusal, Member, MemberRole, Standing};
use holdfast_control::set::SetRefusal;
use holdfast_raft::{Group, ProposeError};
use holdfast_set::cluster::ClusterError;
use holdfast_set::server::{SetError, SetServer};
use holdfast_types::{MemberId, Term};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status};

/// How long a change of group 0 may wait for another one, and how long for what is in the log before it.
const TURN_LIMIT: Duration = Duration::from_secs(10);

/// Answers the admin door of one gateway.
#[derive(Clone)]
pub struct AdminDoor {
    node: Arc<Node>,
}

type Reply<T> = Result<Response<T>, Status>;

impl AdminDoor {
    /// The door of `node`.
    pub fn new(node: Arc<Node>) -> Self {
        Self { node }
    }

    /// Carries out a change of group 0 that follows from what is read of it: alone among those with the same `turn`, after everything that is in the log, and to its end
    /// also when the caller does not wait any more. Else what an abandoned call has in the log would be missed by the next one.
    async fn alone<T, F>(
        &self,
        turn: &Arc<tokio::sync::Mutex<()>>,
        change: impl FnOnce(Self, Adopted, Term) -> F + Send + 'static,
    ) -> Result<T, Refusal>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Refusal>> + Send + 'static,
    {
        let (door, turn) = (self.clone(), turn.clone());
        let whole = tokio::spawn(async move {
            let busy = |what: &str| Refusal::new(RefusalCode::Busy, format!("{what}; ask again"));
            let _one = tokio::time::timeout(TURN_LIMIT, turn.lock_owned())
                .await
                .map_err(|_| busy("another change of the cluster is under way"))?;
            let adopted = door.led_cluster()?;
            let term = door.node.cluster.settled(&adopted.group, TURN_LIMIT).await;
            match term {
                Some(term) => change(door, adopted, term).await,
                None => Err(busy("this gateway leads the cluster and has not applied all of its log yet")),
            }
        });
        let lost =
            |e| Refusal::new(RefusalCode::Unknown, format!("the change was abandoned while this gateway stops: {e}"));
        whole.await.unwrap_or_else(|e| Err(lost(e)))
    }

    fn adopted(&self) -> Result<Adopted, Refusal> {
        self.node.adopted().ok_or_else(|| {
            let healing = self.node.raft().and_then(|raft| raft.healing().into_iter().next());
            if let Some(healing) = healing {
                return Refusal::new(RefusalCode::Busy, crate::node::healing_text(&healing));
            }
            Refusal::new(RefusalCode::NotAdopted, "this gateway has no cluster yet: bootstrap one, or join it to one")
        })
    }

    fn set(&self, name: &str) -> Result<Arc<SetServer>, Refusal> {
        let name = holdfast_api::name("set", name)?;
        if let Some(set) = self.node.set(&name) {
            return Ok(set);
        }
        if self.node.cluster.set_named(&name).is_some() {
            let message = format!("set {name} is being started here; ask again, or look at cluster status");
            return Err(Refusal::new(RefusalCode::Busy, message));
        }
        if self.node.cluster.state().deletion_named(&name).is_some() {
            return Err(Refusal::new(RefusalCode::NotFound, format!("set {name} is being deleted")));
        }
        // A follower may not have heard of it yet; the leader of group 0 has.
        let adopted = self.adopted()?;
        match (adopted.group.leading_term(), self.leader_api(&adopted.group)) {
            // Only who leads, and has applied what was there when it was elected, knows that there is none.
            (Some(term), _) if adopted.group.applied().term == term => {
                Err(Refusal::new(RefusalCode::NotFound, format!("there is no set {name}")))
            }
            (None, leader @ Some(_)) => Err(Refusal::not_leader(format!("this gateway knows no set {name}"), leader)),
            _ => {
                let message = format!("this gateway knows no set {name}, and nobody to ask yet; ask again");
                Err(Refusal::new(RefusalCode::Busy, message))
            }
        }
    }

    /// Admin address of whoever else leads `group`.
    fn leader_api(&self, group: &Group) -> Option<String> {
        let leader = group.leadership().borrow().leader.filter(|l| *l != group.me())?;
        self.node.cluster.member(leader).map(|m| m.api_addr)
    }

    fn not_leader(&self, group: &Group, what: &str) -> Refusal {
        if group.leadership().borrow().stopped {
            // What it knows of the leader is of before.
            return Refusal::not_leader(
                format!("{what} has stopped at this gateway (its log and /healthz say why): ask another one"),
                None,
            );
        }
        match self.leader_api(group) {
            Some(api) => Refusal::not_leader(format!("{what} is led by another gateway, at {api}"), Some(api)),
            None => Refusal::new(RefusalCode::Busy, format!("{what} has no leader at the moment")),
        }
    }

    /// The group, if this gateway leads it and has applied an entry of its term.
    fn led_set(&self, name: &str) -> Result<Arc<SetServer>, Refusal> {
        let set = self.set(name)?;
        match set.group.leading_term() {
            None => Err(self.not_leader(&set.group, &format!("set {name}"))),
            Some(_) => Ok(set),
        }
    }

    fn led_cluster(&self) -> Result<Adopted, Refusal> {
        let adopted = self.adopted()?;
        match adopted.group.leading_term() {
            None => Err(self.not_leader(&adopted.group, "the cluster")),
            Some(_) => Ok(adopted),
        }
    }

    fn of_propose(&self, group: &Group, error: &ProposeError) -> Refusal {
        match error {
            ProposeError::NotLeader { .. } => self.not_leader(group, &format!("group {}", group.id())),
            // It is this gateway that cannot, not the cluster. An earlier try of the same call may have come further (R12).
            ProposeError::Unknown { .. } | ProposeError::Stopped { .. } => {
                Refusal::new(RefusalCode::Unknown, error.to_string())
            }
            ProposeError::BadPayload { .. } => Refusal::new(RefusalCode::Failed, error.to_string()),
        }
    }

    fn of_set(&self, set: &SetServer, error: &SetError) -> Refusal {
        let code = match error {
            SetError::Propose(e) => return self.of_propose(&set.group, e),
            SetError::NotReady(_) => RefusalCode::Busy,
            SetError::Fenced(_) => RefusalCode::Precondition,
            SetError::Answer { .. } => RefusalCode::Unknown,
            SetError::Refused(refusal) => match refusal {
                SetRefusal::NameTaken { .. } | SetRefusal::SnapshotNameTaken { .. } => RefusalCode::Exists,
                SetRefusal::NoSuchVolume { .. } | SetRefusal::NoSuchSnapshot { .. } => RefusalCode::NotFound,
                SetRefusal::Held { .. } => RefusalCode::Held,
                SetRefusal::StaleToken { .. } => RefusalCode::StaleToken,
                SetRefusal::NotContinuable { .. } => RefusalCode::NotContinuable,
                SetRefusal::WrongEpoch { .. } => RefusalCode::WrongEpoch,
                SetRefusal::ShrinkRefused { .. }
                | SetRefusal::GrowRefused { .. }
                | SetRefusal::SizeRefused { .. }
                | SetRefusal::TtlRefused { .. }
                | SetRefusal::BadSchedule { .. } => RefusalCode::Invalid,
                _ => RefusalCode::Precondition,
            },
        };
        Refusal::new(code, error.to_string())
    }

    fn of_cluster(&self, group: &Group, error: &ClusterError) -> Refusal {
        let code = match error {
            ClusterError::Propose(e) => return self.of_propose(group, e),
            ClusterError::Wire(_) => RefusalCode::Failed,
            ClusterError::Refused(refusal) => match refusal {
                ClusterRefusal::OtherCluster { .. } => RefusalCode::OtherCluster,
                ClusterRefusal::MemberNameTaken { .. }
                | ClusterRefusal::DiskInUse { .. }
                | ClusterRefusal::SetBeingDeleted { .. }
                | ClusterRefusal::SetNameTaken { .. } => RefusalCode::Exists,
                ClusterRefusal::NoSuchMember { .. }
                | ClusterRefusal::MemberRemoved { .. }
                | ClusterRefusal::NoSuchSet { .. }
                | ClusterRefusal::OriginMissing { .. } => RefusalCode::NotFound,
                ClusterRefusal::BadLength { .. } => RefusalCode::Invalid,
                _ => RefusalCode::Precondition,
            },
        };
        Refusal::new(code, error.to_string())
    }

    fn member_message(&self, id: MemberId) -> Option<v1::Member> {
        self.node.cluster.member(id).map(|m| member_message(&m))
    }
}

fn member_message(m: &Member) -> v1::Member {
    v1::Member {
        id: m.id.0,
        name: m.name.to_string(),
        region: m.region.to_string(),
        disk: holdfast_api::hex128(m.disk),
        addresses: Some(v1::Addresses {
            peer: m.peer_addr.clone(),
            api: m.api_addr.clone(),
            nbd: m.nbd_addr.clone(),
            http: String::new(),
        }),
        role: match m.role {
            MemberRole::Gateway => "gateway",
            MemberRole::Witness => "witness",
        }
        .to_string(),
        standing: standing_text(m.standing).to_string(),
        level: 0,
    }
}

fn standing_text(standing: Standing) -> &'static str {
    match standing {
        Standing::Active => "active",
        Standing::Drained => "drained",
        Standing::Leaving => "leaving",
    }
}

/// Wraps each call: the request's message in, a refusal out as a status.
macro_rules! calls {
    ($($call:ident: $request:ident -> $reply:ident;)*) => {
        #[tonic::async_trait]
        impl Admin for AdminDoor {
            $(async fn $call(&self, request: Request<v1::$request>) -> Reply<v1::$reply> {
                Ok(Response::new(self.$call(request.into_inner()).await?))
            })*
        }
    };
}

calls! {
    get_node: GetNodeRequest -> Node;
    adopt: AdoptRequest -> Node;
    init_cluster: InitClusterRequest -> InitClusterReply;
    join_member: JoinMemberRequest -> JoinMemberReply;
    remove_member: RemoveMemberRequest -> RemoveMemberReply;
    drain_member: DrainMemberRequest -> DrainMemberReply;
    update_member: UpdateMemberRequest -> UpdateMemberReply;
    cluster_status: ClusterStatusRequest -> ClusterStatusReply;
    create_set: CreateSetRequest -> CreateSetReply;
    delete_set: DeleteSetRequest -> DeleteSetReply;
    create_volume: CreateVolumeRequest -> CreateVolumeReply;
    change_volume: ChangeVolumeRequest -> ChangeVolumeReply;
    get_space: GetSpaceRequest -> GetSpaceReply;
    create_snapshot: CreateSnapshotRequest -> CreateSnapshotReply;
    list_snapshots: ListSnapshotsRequest -> ListSnapshotsReply;
    get_snapshot_token: GetSnapshotTokenRequest -> GetSnapshotTokenReply;
    delete_snapshot: DeleteSnapshotRequest -> DeleteSnapshotReply;
    rollback_snapshot: RollbackSnapshotRequest -> RollbackSnapshotReply;
    set_schedule: SetScheduleRequest -> SetScheduleReply;
    diff_snapshots: DiffSnapshotsRequest -> DiffSnapshotsReply;
    restore_set: RestoreSetRequest -> RestoreSetReply;
    checkpoint_set: CheckpointSetRequest -> CheckpointSetReply;
    list_sets: ListSetsRequest -> ListSetsReply;
    get_set: GetSetRequest -> SetStatus;
    acquire_lease: AcquireLeaseRequest -> GrantReply;
    continue_lease: ContinueLeaseRequest -> GrantReply;
    renew_lease: RenewLeaseRequest -> RenewLeaseReply;
    release_lease: ReleaseLeaseRequest -> ReleaseLeaseReply;
    get_lease: GetLeaseRequest -> GetLeaseReply;
    switchover: SwitchoverRequest -> MoveReply;
    failover: FailoverRequest -> MoveReply;
    list_keys: ListKeysRequest -> ListKeysReply;
    rotate_cluster_key: RotateClusterKeyRequest -> ListKeysReply;
    rotate_data_key: RotateDataKeyRequest -> ListKeysReply;
    rewrap_node_key: RewrapNodeKeyRequest -> RewrapNodeKeyReply;
    scrub_set: ScrubSetRequest -> Scrub;
    pin_snapshot: PinSnapshotRequest -> PinSnapshotReply;
    clone_set: CloneSetRequest -> CloneSetReply;
    change_stores: ChangeStoresRequest -> ChangeStoresReply;
}
