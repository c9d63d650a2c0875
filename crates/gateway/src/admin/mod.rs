//! The admin API: gRPC for people, the command line, agents and attach processes. Every gateway serves it. A call that
//! needs a leader is refused on the other gateways, with the leader's address (crates/api, "refusal").

mod certificates;
mod checks;
mod clone;
mod codes;
mod concealed;
mod deletion;
mod diff;
mod drain;
mod drain_plan;
mod guarded;
mod keys;
mod lease;
mod limits;
mod member;
mod moves;
mod page;
mod placement;
mod placing;
mod recovery;
mod rollback;
mod scrub;
mod snapshot;
mod space;
mod status;
mod stores;
mod tasks;
#[cfg(test)]
mod traced_tests;
mod volumes;

pub(crate) use guarded::{GuardedAdmin, guarded_admin};
pub(crate) use page::{Gathered, SETS_MAX, SetHere, SetToAct, ToAct};
#[cfg(test)]
pub(crate) use rollback::SAFETY_LIMIT;
pub use tasks::start_tasks;

use crate::access::{Asked, Names};
use crate::node::{Adopted, Node};
use concealed::Conceal;
use holdfast_api::v1::{self, admin_server::Admin};
use holdfast_api::{Refusal, RefusalCode};
use holdfast_control::cluster::{ClusterRefusal, Member, MemberRole, SetEntry, Standing};
use holdfast_raft::{Group, ProposeError};
use holdfast_set::cluster::ClusterError;
use holdfast_set::server::{SetError, SetServer};
use holdfast_tls::Caller;
use holdfast_types::{MemberId, Name, Term};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status};

/// How long a change of group 0 may wait for another change, and how long it may wait for earlier entries of the log.
const TURN_LIMIT: Duration = Duration::from_secs(10);

/// How long the same voter of a set without a place here is named to callers, in milliseconds.
const HINT_MS: u128 = 300;

/// Serves the admin API of one gateway.
#[derive(Clone)]
pub struct AdminDoor {
    node: Arc<Node>,
}

type Reply<T> = Result<Response<T>, Status>;

impl AdminDoor {
    /// The admin API of `node`.
    pub fn new(node: Arc<Node>) -> Self {
        Self { node }
    }

    /// Carries out a change of group 0 that depends on the state of group 0. Changes with the same `turn` run one at a
    /// time, each after everything in the log is applied. Each runs to its end even if the caller stops waiting.
    /// Otherwise the next change could miss what an abandoned call has put into the log.
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
                .map_err(|_| busy("another change of the cluster is in progress"))?;
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
            Refusal::new(
                RefusalCode::NotAdopted,
                "this gateway has no cluster yet: bootstrap a cluster, or join this gateway to one",
            )
        })
    }

    fn set(&self, name: &str) -> Result<Arc<SetServer>, Refusal> {
        let name = holdfast_api::name("set", name)?;
        if let Some(set) = self.node.set(&name) {
            return Ok(set);
        }
        if let Some((_, entry)) = self.node.cluster.set_named(&name) {
            if let Some(refusal) = self.elsewhere(&name, &entry) {
                return Err(refusal);
            }
            let message = format!("set {name} is being started here; ask again, or look at cluster status");
            return Err(Refusal::new(RefusalCode::Busy, message));
        }
        if self.node.cluster.state().deletion_named(&name).is_some() {
            return Err(Refusal::new(RefusalCode::NotFound, format!("set {name} is being deleted")));
        }
        // A follower may not know the set yet; the leader of group 0 does.
        let adopted = self.adopted()?;
        match (adopted.group.leading_term(), self.leader_api(&adopted.group)) {
            // Only a leader that has applied the log up to its election knows that the set does not exist.
            (Some(term), _) if adopted.group.applied().term == term => {
                Err(Refusal::new(RefusalCode::NotFound, format!("there is no set {name}")))
            }
            (None, leader @ Some(_)) => Err(Refusal::not_leader(format!("this gateway knows no set {name}"), leader)),
            _ => {
                let message = format!("this gateway does not know set {name} and has no leader to ask yet; ask again");
                Err(Refusal::new(RefusalCode::Busy, message))
            }
        }
    }

    /// The refusal for a set that has no place here (VOTERS-V2). One of its voters knows which gateway serves it;
    /// another one is named after a while, since some may be down.
    fn elsewhere(&self, name: &Name, entry: &SetEntry) -> Option<Refusal> {
        if entry.has_place_for(self.node.adopted()?.member) {
            return None;
        }
        let state = self.node.cluster.state();
        let voters: Vec<&Member> = state.voters_of(entry).iter().filter_map(|id| state.members.get(id)).collect();
        let names: Vec<String> = voters.iter().map(|member| member.name.to_string()).collect();
        let turn = usize::try_from(self.node.started.elapsed().as_millis() / HINT_MS).unwrap_or(0);
        let named = voters.get(turn.checked_rem(voters.len())?).map(|member| member.api_addr.clone());
        Some(Refusal::not_leader(format!("set {name} is not on this gateway, but on {}", names.join(", ")), named))
    }

    /// Admin address of the leader of `group`, if it is another gateway.
    fn leader_api(&self, group: &Group) -> Option<String> {
        let leader = group.leadership().borrow().leader.filter(|l| *l != group.me())?;
        self.node.cluster.member(leader).map(|m| m.api_addr)
    }

    fn not_leader(&self, group: &Group, what: &str) -> Refusal {
        if group.leadership().borrow().stopped {
            // Its knowledge of the leader is outdated.
            return Refusal::not_leader(
                format!("{what} has stopped at this gateway (see its log and /healthz): ask another gateway"),
                None,
            );
        }
        match self.leader_api(group) {
            Some(api) => Refusal::not_leader(format!("{what} is led by another gateway, at {api}"), Some(api)),
            None => Refusal::new(RefusalCode::Busy, format!("{what} has no leader at the moment")),
        }
    }

    /// The set, if this gateway leads its group and has applied an entry of its term.
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
            // The problem is this gateway, not the cluster. An earlier attempt of the same call may have succeeded
            // (R12).
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
            // Final, and it ends a host's devices: the set was recovered elsewhere, or deleted.
            SetError::Fenced(_) => RefusalCode::Precondition,
            SetError::Answer { .. } => RefusalCode::Unknown,
            SetError::Refused(refusal) => codes::of_refusal(refusal),
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
                ClusterRefusal::BadLength { .. } | ClusterRefusal::BadPolicy { .. } => RefusalCode::Invalid,
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
        region: m.locality.region.to_string(),
        locality: m.locality.to_string(),
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

impl AdminDoor {
    /// The message of a call, if who asks may make it (ACCESS-A2) and the stores in it are allowed. Calls inside the
    /// process have not passed a door: nobody has asked.
    fn admitted<M: Names>(&self, request: Request<M>) -> Result<M, Refusal> {
        let asked = request.extensions().get::<Asked>().cloned();
        let message = request.into_inner();
        let named = message.named();
        if let Some(asked) = asked {
            asked.about(&named)?;
        }
        let settings = self.node.live();
        for store in &named.stores {
            holdfast_store::check_allowed(store, &settings.store.allowed)
                .map_err(|error| Refusal::new(RefusalCode::Denied, error.to_string()))?;
        }
        Ok(message)
    }
}

/// Who makes the call; `None` without a certificate.
fn caller_of<M>(request: &Request<M>) -> Option<Caller> {
    request.extensions().get::<Asked>().and_then(Asked::caller).cloned()
}

/// Wraps each call: unpacks the request, and turns a refusal into a status. With `@caller` it is told who asks. With
/// `@names` the answer may name several sets, and who asks is told the own ones (ACCESS-A7).
macro_rules! calls {
    (
        $($call:ident: $request:ident -> $reply:ident;)*
        $(@caller $of:ident: $asked:ident -> $answer:ident;)*
        $(@names $look:ident: $looked:ident -> $view:ident;)*
    ) => {
        #[tonic::async_trait]
        impl Admin for AdminDoor {
            $(async fn $call(&self, request: Request<v1::$request>) -> Reply<v1::$reply> {
                Ok(Response::new(self.$call(self.admitted(request)?).await?))
            })*
            $(async fn $of(&self, request: Request<v1::$asked>) -> Reply<v1::$answer> {
                let caller = caller_of(&request);
                Ok(Response::new(self.$of(self.admitted(request)?, caller).await?))
            })*
            $(async fn $look(&self, request: Request<v1::$looked>) -> Reply<v1::$view> {
                let caller = caller_of(&request);
                Ok(Response::new(self.$look(self.admitted(request)?).await?.for_caller(caller.as_ref())))
            })*
        }
    };
}

calls! {
    adopt: AdoptRequest -> Node;
    init_cluster: InitClusterRequest -> InitClusterReply;
    join_member: JoinMemberRequest -> JoinMemberReply;
    remove_member: RemoveMemberRequest -> RemoveMemberReply;
    drain_member: DrainMemberRequest -> DrainMemberReply;
    plan_drain: PlanDrainRequest -> DrainPlan;
    update_member: UpdateMemberRequest -> UpdateMemberReply;
    create_set: CreateSetRequest -> CreateSetReply;
    delete_set: DeleteSetRequest -> DeleteSetReply;
    create_volume: CreateVolumeRequest -> CreateVolumeReply;
    change_volume: ChangeVolumeRequest -> ChangeVolumeReply;
    change_limit: ChangeLimitRequest -> ChangeLimitReply;
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
    change_policy: ChangePolicyRequest -> Placing;
    get_placing: GetPlacingRequest -> Placing;
    change_stores: ChangeStoresRequest -> ChangeStoresReply;
    list_certificates: ListCertificatesRequest -> CertificatesReply;
    unrevoke_certificate: UnrevokeCertificateRequest -> RevokedReply;
    list_revoked: ListRevokedRequest -> ListRevokedReply;
    @caller revoke_certificate: RevokeCertificateRequest -> RevokedReply;
    @names get_node: GetNodeRequest -> Node;
    @names cluster_status: ClusterStatusRequest -> ClusterStatusReply;
    @names get_set: GetSetRequest -> SetStatus;
}
