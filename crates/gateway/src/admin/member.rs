//! Calls that form a cluster (adopt, initialise, join) and create sets.

use super::AdminDoor;
use super::stores::{OPEN_LIMIT, open_within};
use crate::identity::IdentityError;
use crate::node::{Adopted, NodeError};
use crate::store_options::store_options;
use futures_util::future::BoxFuture;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_control::cluster::{
    ClusterAnswer, ClusterCommand, ClusterState, MEMBERS_MAX, Member, MemberRole, Standing, was_changed,
};
use holdfast_control::members::{joining, may_replace_by_witness};
use holdfast_raft::Leadership;
use holdfast_seal::DataKey;
use holdfast_set::head::open;
use holdfast_store::{FIRST_CONFIGURATION, Stores};
use holdfast_types::{Epoch, GroupId, Locality, MemberId, RequestId, SetId, Term};
use holdfast_volume::head::{Head, read_keyring};
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::MutexGuard;

/// How long a new cluster may take to elect its first leader.
const FIRST_LEADER_LIMIT: Duration = Duration::from_secs(20);

/// How often to check whether an elected leader may act as leader already.
const LEADER_LOOK: Duration = Duration::from_millis(10);

/// How long the store may take to show whether an object with a set's number exists.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// Maximum time in which one call skips set numbers.
const PASS_LIMIT: Duration = Duration::from_secs(5);

/// The data key of a new set: its only one so far.
const FIRST_KEY_ID: u32 = 1;

pub(super) fn invalid(message: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::Invalid, message)
}

pub(super) fn precondition(message: impl Into<String>) -> Refusal {
    Refusal::new(RefusalCode::Precondition, message)
}

/// A member, from a request.
pub(super) fn member_from(message: &v1::Member, id: MemberId) -> Result<Member, Refusal> {
    let addresses = message.addresses.clone().unwrap_or_default();
    for (what, text) in [("addresses.peer", &addresses.peer), ("addresses.api", &addresses.api)] {
        if holdfast_api::host_port(text).is_none() {
            return Err(invalid(format!("{what}: found {text:?}, expected HOST:PORT")));
        }
    }
    Ok(Member {
        id,
        name: holdfast_api::name("member.name", &message.name)?,
        locality: locality_from(message)?,
        disk: holdfast_api::disk_from_text("member.disk", &message.disk)?,
        peer_addr: addresses.peer,
        api_addr: addresses.api,
        // Group 0 requires a text; a gateway without NBD over TCP has no address for clients.
        nbd_addr: if addresses.nbd.is_empty() { "none".to_string() } else { addresses.nbd },
        role: match message.role.as_str() {
            "" | "gateway" => MemberRole::Gateway,
            "witness" => MemberRole::Witness,
            other => return Err(invalid(format!("member.role: found {other:?}, expected gateway or witness"))),
        },
        standing: Standing::Active,
    })
}

/// Where a member stands. Its region alone is the short form.
fn locality_from(message: &v1::Member) -> Result<Locality, Refusal> {
    if message.locality.is_empty() {
        return Ok(Locality::of_region(holdfast_api::name("member.region", &message.region)?));
    }
    message.locality.parse::<Locality>().map_err(|e| invalid(format!("member.{e}")))
}

/// The members of a new cluster, from a request.
fn first_members(messages: &[v1::Member]) -> Result<Vec<Member>, Refusal> {
    let members: Vec<Member> = messages.iter().map(|m| member_from(m, MemberId(m.id))).collect::<Result<_, _>>()?;
    if members.is_empty() || members.len() > MEMBERS_MAX {
        return Err(invalid(format!("members: found {}, expected 1 to {MEMBERS_MAX}", members.len())));
    }
    Ok(members)
}

/// Each first member is registered or can still be: an id below a registered one is lost.
fn none_lost(known: &ClusterState, members: &[Member]) -> Result<(), Refusal> {
    let Some(lost) = members.iter().find(|m| m.id.0 < known.next_member && !known.members.contains_key(&m.id)) else {
        return Ok(());
    };
    let message = format!(
        "gateway {} was adopted as {}, and the cluster has given ids up to {} to others: give it an empty data directory and add it",
        lost.name,
        lost.id,
        known.next_member.saturating_sub(1)
    );
    Err(Refusal::new(RefusalCode::Precondition, message))
}

impl AdminDoor {
    /// PAIR-P1 allows one gateway with the seat: a second voter would make it two.
    fn not_in_a_pair(&self) -> Result<(), Refusal> {
        if self.node.pair().is_none() {
            return Ok(());
        }
        let message = "this gateway is one of a pair, which no other gateway can join: the other one waits for the pair's seat in the etcd by itself";
        Err(Refusal::new(RefusalCode::Precondition, message))
    }

    pub(super) async fn adopt(&self, request: v1::AdoptRequest) -> Result<v1::Node, Refusal> {
        let cluster = holdfast_api::disk_from_text("cluster_id", &request.cluster_id)?;
        let disk = holdfast_api::disk_from_text("disk", &request.disk)?;
        let ours = self.node.identity().disk();
        if disk != ours {
            let message = format!("disk: found {disk:032x}, expected {ours:032x}, which is this gateway's");
            return Err(Refusal::new(RefusalCode::OtherDisk, message));
        }
        if request.member == 0 {
            return Err(invalid("member: found 0, expected an id from 1"));
        }
        match self.node.adopt(cluster, MemberId(request.member)).await {
            Ok(()) => self.get_node(v1::GetNodeRequest {}).await,
            Err(NodeError::Identity(e @ IdentityError::Adopted { .. })) => {
                Err(Refusal::new(RefusalCode::Adopted, e.to_string()))
            }
            Err(e) => Err(Refusal::new(RefusalCode::Failed, e.to_string())),
        }
    }

    /// Makes this gateway the first member of a new cluster.
    ///
    /// # Errors
    /// The refusal that a remote caller would get.
    pub fn init_cluster(
        &self,
        request: v1::InitClusterRequest,
    ) -> BoxFuture<'_, Result<v1::InitClusterReply, Refusal>> {
        Box::pin(async move {
            let adopted = self.adopted()?;
            let cluster = holdfast_api::disk_from_text("cluster_id", &request.cluster_id)?;
            if cluster != adopted.raft.cluster() {
                let message = format!("cluster: found {cluster:032x}, expected {:032x}", adopted.raft.cluster());
                return Err(Refusal::new(RefusalCode::OtherCluster, message));
            }
            let request_id = holdfast_api::request_id(&request.request_id)?;
            let mut members = first_members(&request.members)?;
            let known = self.node.cluster.state();
            let done = known.cluster_id == cluster && members.iter().all(|m| known.members.contains_key(&m.id));
            if done {
                return Ok(v1::InitClusterReply { already: true });
            }
            // The leader completes what an earlier call has begun, in the order of the ids.
            none_lost(&known, &members)?;
            self.found_group(&adopted, &members).await?;
            self.cluster_command(&adopted, &ClusterCommand::Init { cluster_id: cluster }).await?;
            members.sort_by_key(|m| m.id);
            for (place, member) in members.into_iter().enumerate() {
                // The same request id for each member at every attempt (R12).
                let request = RequestId(request_id.0.wrapping_add(place as u128 + 1));
                if self.node.cluster.member(member.id).is_some_and(|known| known.disk == member.disk) {
                    continue;
                }
                self.cluster_command(&adopted, &ClusterCommand::AddMember { member, replaces: None, request }).await?;
            }
            Ok(v1::InitClusterReply { already: false })
        })
    }

    /// Starts group 0 with these voters, and waits until this member leads it.
    async fn found_group(&self, adopted: &Adopted, members: &[Member]) -> Result<(), Refusal> {
        let voters: BTreeMap<MemberId, String> = members.iter().map(|m| (m.id, m.peer_addr.clone())).collect();
        for m in members.iter().filter(|m| m.id != adopted.member) {
            adopted.raft.set_address(m.id, m.peer_addr.clone());
        }
        adopted.group.initialize(&voters).await.map_err(|e| Refusal::new(RefusalCode::Failed, e.to_string()))?;
        self.wait_for_leader(adopted).await?;
        if adopted.group.leading_term().is_some() {
            return Ok(());
        }
        // Another first member was elected. The same request to that one completes it.
        let leader = adopted.group.leadership().borrow().leader.filter(|leader| *leader != adopted.member);
        let api = members.iter().find(|m| Some(m.id) == leader).map(|m| m.api_addr.clone());
        Err(Refusal::not_leader("another member leads the new cluster", api))
    }

    pub(super) async fn cluster_command(
        &self,
        adopted: &Adopted,
        command: &ClusterCommand,
    ) -> Result<ClusterAnswer, Refusal> {
        self.node.cluster.command(&adopted.group, command).await.map_err(|e| self.of_cluster(&adopted.group, &e))
    }

    /// Like `cluster_command`, but only in this term: what was read from group 0 since it was settled is still valid
    /// (see `alone`).
    pub(super) async fn cluster_command_in(
        &self,
        adopted: &Adopted,
        term: Term,
        command: &ClusterCommand,
    ) -> Result<ClusterAnswer, Refusal> {
        let done = self.node.cluster.command_in(&adopted.group, Some(term), command).await;
        done.map_err(|e| self.of_cluster(&adopted.group, &e))
    }

    /// Waits until there is a leader. If it is this member, also waits until it may act as leader: openraft reports
    /// that slightly later.
    async fn wait_for_leader(&self, adopted: &Adopted) -> Result<(), Refusal> {
        let mut leadership = adopted.group.leadership();
        let settled = async {
            loop {
                let now = *leadership.borrow_and_update();
                if is_settled(&now, adopted.group.leading_term()) {
                    return true;
                }
                if let Ok(Err(_ended)) = tokio::time::timeout(LEADER_LOOK, leadership.changed()).await {
                    return false;
                }
            }
        };
        if !tokio::time::timeout(FIRST_LEADER_LIMIT, settled).await.unwrap_or(false) {
            let message =
                format!("no leader within {FIRST_LEADER_LIMIT:?}: are the other members running and reachable?");
            return Err(Refusal::new(RefusalCode::Busy, message));
        }
        // Wait until the first entry of the term is applied, before anything else is proposed.
        let deadline = tokio::time::Instant::now() + self.node.timing.election_max() * 4;
        let mut changes = self.node.cluster.changes();
        while let Some(term) = adopted.group.leading_term() {
            if adopted.group.applied().term == term
                || tokio::time::timeout_at(deadline, changes.changed()).await.is_err()
            {
                break;
            }
        }
        Ok(())
    }

    pub(super) async fn join_member(&self, request: v1::JoinMemberRequest) -> Result<v1::JoinMemberReply, Refusal> {
        self.not_in_a_pair()?;
        self.led_cluster()?;
        let join = move |door: Self, adopted, term| async move { door.join_alone(request, &adopted, term).await };
        self.alone(&self.node.turns.members, join).await
    }

    async fn join_alone(
        &self,
        request: v1::JoinMemberRequest,
        adopted: &Adopted,
        term: Term,
    ) -> Result<v1::JoinMemberReply, Refusal> {
        let request_id = holdfast_api::request_id(&request.request_id)?;
        let gateway = request.gateway.ok_or_else(|| invalid("gateway: found none, expected the new gateway"))?;
        let mut member = member_from(&gateway, MemberId(0))?;
        let state = self.node.cluster.state();
        let cluster_id = holdfast_api::hex128(state.cluster_id);
        if gateway.level < state.level {
            let (found, expected) = (gateway.level, state.level);
            let message = format!(
                "{} runs a build that knows feature level {found}, and the cluster is at {expected}: start it with a newer build",
                member.name
            );
            return Err(Refusal::new(RefusalCode::Precondition, message));
        }
        let replaces = (request.replaces != 0).then_some(MemberId(request.replaces));
        if let Some(known) = state.members.values().find(|m| m.disk == member.disk) {
            // A member that replaces another one does so by joining. A repeated call finds the old one leaving or gone.
            let stays = |old: &Member| old.id != known.id && old.standing != Standing::Leaving;
            if let Some(old) = replaces.and_then(|old| state.members.get(&old)).filter(|old| stays(old)) {
                let message = format!(
                    "{} is {} of this cluster already, beside {}: remove that one by itself (holdfast gateway remove)",
                    known.name, known.id, old.name
                );
                return Err(Refusal::new(RefusalCode::Precondition, message));
            }
            return Ok(v1::JoinMemberReply { member: known.id.0, cluster_id, already: true });
        }
        if gateway.id != 0 && !state.was_removed(MemberId(gateway.id)) {
            let message = format!(
                "{} was adopted as {} of this cluster, which does not know it: the bootstrap was interrupted. Run it again while all its gateways are running",
                member.name,
                MemberId(gateway.id)
            );
            return Err(Refusal::new(RefusalCode::Precondition, message));
        }
        if let Some(old) = replaces {
            let Some(replaced) = state.members.get(&old) else {
                return Err(Refusal::new(RefusalCode::NotFound, format!("{old} is not a member of this cluster")));
            };
            Self::may_take_votes(&state, replaced, &member)?;
            if member.role == MemberRole::Witness {
                may_replace_by_witness(&state, &self.health(&state).await?, replaced)
                    .map_err(|e| Refusal::new(RefusalCode::Precondition, e.to_string()))?;
            }
            tracing::info!(member = %old, name = %replaced.name, "to be replaced by a new member");
        }
        member.id = MemberId(0);
        let command = ClusterCommand::AddMember { member, replaces, request: request_id };
        let answer = self.cluster_command_in(adopted, term, &command).await?;
        match answer {
            ClusterAnswer::MemberAdded { id } => Ok(v1::JoinMemberReply { member: id.0, cluster_id, already: false }),
            other => Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
        }
    }

    pub(super) async fn create_set(&self, request: v1::CreateSetRequest) -> Result<v1::CreateSetReply, Refusal> {
        self.led_cluster()?;
        let create = move |door: Self, adopted, term| async move { door.create_alone(request, &adopted, term).await };
        self.alone(&self.node.turns.sets, create).await
    }

    /// Skips numbers whose place in the store is taken, for example by the tombstone of a set that was deleted before a
    /// recovery. A new set with such a number would never complete a checkpoint. If the store does not answer, the set
    /// is created all the same (R8).
    async fn number_free(
        &self,
        adopted: &Adopted,
        term: Term,
        stores: &str,
        mut state: ClusterState,
    ) -> Result<ClusterState, Refusal> {
        let opening = self.node.open_place(stores, GroupId(state.next_set));
        let Ok(Ok(store)) = tokio::time::timeout(LOOK_LIMIT, opening).await else { return Ok(state) };
        let begun = tokio::time::Instant::now();
        loop {
            let key = holdfast_store::keys::head(GroupId(state.next_set));
            match tokio::time::timeout(LOOK_LIMIT, store.get_object(&key)).await {
                Ok(Ok(object)) => self.not_to_come(&state, GroupId(state.next_set), &key, &object.body)?,
                _ => return Ok(state),
            }
            if begun.elapsed() > PASS_LIMIT {
                let message =
                    format!("many numbers of sets are taken in that store, up to {} so far; ask again", state.next_set);
                return Err(Refusal::new(RefusalCode::Busy, message));
            }
            tracing::info!(number = state.next_set, "a set number is skipped: its place in the store is taken");
            let command = ClusterCommand::PassSets { upto: GroupId(state.next_set) };
            self.cluster_command_in(adopted, term, &command).await?;
            state = self.node.cluster.state();
        }
    }

    /// Does not skip the number of a set that a recovery of this cluster has raised but not restored yet. After that,
    /// no set could have this number (CLUSTER-C1).
    fn not_to_come(&self, state: &ClusterState, set: GroupId, key: &str, head: &[u8]) -> Result<(), Refusal> {
        // If it does not open, it does not belong to this cluster.
        match self.open_head(set, head) {
            Some(found) if found.life.cluster == state.cluster_id && found.raised_for != 0 => {
                let message = format!(
                    "a recovery of that store is not finished: set {} (number {set}) was taken over for this cluster but is not restored yet, \
                     and a new set would take its number permanently. Run `holdfast cluster recover` again until it completes; \
                     to give that set up, delete {key} from the store first",
                    found.name
                );
                Err(Refusal::new(RefusalCode::Precondition, message))
            }
            _ => Ok(()),
        }
    }

    /// The head of a set, as read from a store, opened with the cluster's keys. `None`: it does not open.
    pub(super) fn open_head(&self, set: SetId, head: &[u8]) -> Option<Head> {
        let (header, keyring) = read_keyring(head).ok()?;
        let opened = self.node.keys().open_keyring(&keyring, set, header.key_id).ok()?;
        open(&opened, head).ok()
    }

    async fn create_alone(
        &self,
        request: v1::CreateSetRequest,
        adopted: &Adopted,
        term: Term,
    ) -> Result<v1::CreateSetReply, Refusal> {
        let name = holdfast_api::name("name", &request.name)?;
        let request_id = holdfast_api::request_id(&request.request_id)?;
        let summary = |id: u64| v1::SetSummary {
            id,
            name: name.to_string(),
            store: request.store.clone(),
            clone_of: String::new(),
            voters: Vec::new(),
        };
        let state = self.node.cluster.state();
        if let Some((id, entry)) = state.set_named(&name) {
            // If the stores of a set were changed since, its first stores cannot be those of another set.
            if entry.store_url != request.store && !was_changed(&entry.store_url) {
                let message =
                    format!("set {name} exists already: found store {}, expected {}", request.store, entry.store_url);
                return Err(Refusal::new(RefusalCode::Exists, message));
            }
            Self::same_policy(&name, entry, request.policy.as_ref())?;
            return Ok(v1::CreateSetReply { set: Some(summary(id.0)), created: false });
        }
        self.places_agree().await?;
        let state = self.node.cluster.state();
        let _none_joins = self.each_member_joined(adopted).await?;
        let (policy, members) = self.voters_of_new_set(adopted, term, &state, request.policy.as_ref())?;
        // A new cluster begins at the first level; the level rises by itself.
        let stores = self.stores_of_new_set(&request.store).await?;
        self.check_for_new_set(stores.urls(), GroupId(state.next_set)).await?;
        let state = self.number_free(adopted, term, &request.store, state).await?;
        // The wrapping names the set by the id that the entry will have: the next unused one. Nothing else is proposed
        // meanwhile, and in another term this proposal is void.
        let id = holdfast_types::GroupId(state.next_set);
        let wrapped_key = self.new_wrapped_key(&state, id)?;
        let command = ClusterCommand::CreateSet {
            name: name.clone(),
            policy,
            store: request.store.clone(),
            wrapped_key,
            key_id: FIRST_KEY_ID,
            members,
            created_by: adopted.member,
            base_epoch: Epoch(0),
            request: request_id,
        };
        let answer = self.cluster_command_in(adopted, term, &command).await?;
        match answer {
            ClusterAnswer::SetCreated { set } if set == id => {
                Ok(v1::CreateSetReply { set: Some(summary(set.0)), created: true })
            }
            other => Err(Refusal::new(RefusalCode::Unknown, format!("unexpected answer {other:?}"))),
        }
    }

    /// Refuses a new set while a member joins ([`joining`]). No member is added while the guard lives.
    pub(super) async fn each_member_joined(&self, adopted: &Adopted) -> Result<MutexGuard<'_, ()>, Refusal> {
        let none_joins = self.node.turns.members.lock().await;
        // A pair has no votes.
        if self.node.pair().is_some() {
            return Ok(none_joins);
        }
        let (state, status) = (self.node.cluster.state(), adopted.group.status());
        let voters: BTreeSet<MemberId> = status.members.iter().filter(|m| m.voter).map(|m| m.member).collect();
        match joining(&state, &voters) {
            None => Ok(none_joins),
            Some(member) => {
                let message = format!(
                    "{} has not joined the cluster completely: a new set may need its vote. Wait until it has, start \
                     it if it is down, or remove it (holdfast gateway remove {})",
                    member.name, member.name
                );
                Err(Refusal::new(RefusalCode::Busy, message))
            }
        }
    }

    /// The first stores of a new set, after each of them could be opened; `text` as in the request.
    async fn stores_of_new_set(&self, text: &str) -> Result<Stores, Refusal> {
        if let Some(pair) = self.node.pair() {
            pair.check_store(text).map_err(invalid)?;
        }
        let stores = Stores::parse(text).map_err(|e| invalid(format!("store: {e}")))?;
        stores.check_new().map_err(|e| invalid(format!("store: {e}")))?;
        if stores.configuration() != FIRST_CONFIGURATION {
            return Err(invalid(format!(
                "store: found {text:?}, expected the first stores of a new set, without `c=`"
            )));
        }
        open_within(text, store_options(&self.node.config), OPEN_LIMIT).await?;
        Ok(stores)
    }

    /// A new data key for set `id`, wrapped.
    fn new_wrapped_key(&self, state: &ClusterState, id: SetId) -> Result<Vec<u8>, Refusal> {
        let mut bytes = [0u8; 32];
        rand::rng().fill_bytes(&mut bytes);
        let mut nonce = [0u8; 24];
        rand::rng().fill_bytes(&mut nonce);
        let by = self.wrapping_key(state)?;
        Ok(by.wrap(&DataKey::from_bytes(bytes), id, FIRST_KEY_ID, nonce))
    }
}

/// Whether it is known which member leads. If openraft names this member as leader, it may act as such slightly later
/// (`leading`). Until then, callers would be redirected without an address.
fn is_settled(now: &Leadership, leading: Option<Term>) -> bool {
    now.leader.is_some() && (!now.mine || leading.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_elected_is_known_once_that_one_may_act() {
        let known = |leader: Option<u64>| {
            let leader = leader.map(MemberId);
            Leadership { term: Term(1), leader, mine: leader == Some(MemberId(1)), stopped: false }
        };
        for (leader, leading, settled) in
            [(None, None, false), (Some(2), None, true), (Some(1), None, false), (Some(1), Some(Term(1)), true)]
        {
            assert_eq!(is_settled(&known(leader), leading), settled, "{leader:?}, {leading:?}");
        }
    }
}
