//! Calls that only read.

use super::limits::limit_message;
use super::stores::store_health;
use super::{AdminDoor, member_message};
use crate::config::SnapshotExports;
use crate::node::{answer_limit, lacks};
use futures_util::future::BoxFuture;
use holdfast_api::v1::admin_client::AdminClient;
use holdfast_api::{Refusal, v1};
use holdfast_cache::Answers;
use holdfast_control::cluster::{ClusterState, FEATURE_LEVEL};
use holdfast_control::members::{CLOSE_ENTRIES, is_close};
use holdfast_control::set::Pin;
use holdfast_log::LogUsage;
use holdfast_raft::{GroupStatus, MemberStatus};
use holdfast_types::sync::LockExt;
use holdfast_types::{MemberId, Name, RequestId, SetId};
use std::time::Duration;
use tonic::transport::Channel;

/// People are not kept waiting for longer than this for gateways that do not answer: a command waits 3 s for its
/// answer.
const SHOWN_LIMIT: Duration = Duration::from_millis(2500);

/// Why another gateway has not told its state.
struct Silence {
    /// For people.
    why: String,
    /// It was too slow, or is cut off. Otherwise it could not be reached, or has refused.
    late: bool,
}

impl AdminDoor {
    fn set_name(&self, id: SetId) -> Option<Name> {
        self.node.cluster.read(|state| Some(state.sets.get(&id)?.name.clone()))
    }

    fn group_message(&self, status: &GroupStatus) -> v1::GroupStatus {
        // No copy of the state: this is called for each group, and the state has each set.
        let name = self.set_name(status.group);
        let server = name.as_ref().and_then(|n| self.node.set(n));
        let owner = server.as_ref().and_then(|s| s.place_of(&s.lease()?));
        let serving = server.and_then(|s| s.serving());
        let me = self.node.adopted().map(|a| a.member);
        let voter = status.members.iter().any(|m| Some(m.member) == me && m.voter);
        let role = match (status.leadership.stopped, status.leadership.mine, voter, status.leadership.leader) {
            (true, ..) => v1::Role::Stopped,
            (_, true, ..) => v1::Role::Leader,
            (_, _, false, _) => v1::Role::Learner,
            (_, _, true, None) => v1::Role::Candidate,
            (_, _, true, Some(_)) => v1::Role::Follower,
        };
        let ids = |voter: bool| status.members.iter().filter(|m| m.voter == voter).map(|m| m.member.0).collect();
        v1::GroupStatus {
            group: status.group.0,
            set: name.map(|n| n.to_string()).unwrap_or_default(),
            role: role.into(),
            leader: status.leadership.leader.map_or(0, |l| l.0),
            term: status.leadership.term.0,
            last_index: status.last.map_or(0, |i| i.0),
            committed_index: status.applied.map_or(0, |a| a.index.0),
            applied_index: status.applied.map_or(0, |a| a.index.0),
            snapshot_index: status.snapshot.map_or(0, |s| s.index.0),
            purged_index: status.purged.map_or(0, |p| p.index.0),
            voters: ids(true),
            learners: ids(false),
            journal_live_bytes: status.live_bytes,
            serving_epoch: serving.as_ref().map_or(0, |s| s.epoch.0),
            connections: serving.map_or(0, |s| u32::try_from(s.connected()).unwrap_or(u32::MAX)),
            owner_locality: owner.map(|at| at.to_string()).unwrap_or_default(),
            peers: if status.leadership.mine { peer_lags(status, me) } else { Vec::new() },
        }
    }

    /// This gateway: its member id, disk, addresses.
    ///
    /// # Errors
    /// The refusal that a remote caller would get.
    pub fn get_node(&self, _: v1::GetNodeRequest) -> BoxFuture<'_, Result<v1::Node, Refusal>> {
        Box::pin(async move {
            let (node, config) = (&self.node, &self.node.config);
            let identity = node.identity();
            let mut message = v1::Node {
                name: config.name.to_string(),
                region: config.locality().region.to_string(),
                locality: config.locality().to_string(),
                disk: holdfast_api::hex128(identity.disk()),
                cluster_id: identity.cluster().map(holdfast_api::hex128).unwrap_or_default(),
                member: identity.member,
                addresses: Some(v1::Addresses {
                    peer: config.peer_address(),
                    api: config.api_address(),
                    nbd: config.nbd_address().unwrap_or_default(),
                    http: config.http_address().unwrap_or_default(),
                }),
                version: env!("CARGO_PKG_VERSION").to_string(),
                boot: identity.boot,
                uptime_ms: u64::try_from(node.started.elapsed().as_millis()).unwrap_or(u64::MAX),
                pid: std::process::id(),
                not_ready: node.not_ready().unwrap_or_default(),
                stores: node.store_healths(),
                role: config.role.as_str().to_string(),
                level: FEATURE_LEVEL,
                keys: Some(self.node_keys()),
                reads: Some(self.reads()),
                nbd_tls: config.nbd_listen.map_or("", |_| config.tls.nbd_mode().as_str()).to_string(),
                certificate: self.node_certificate(),
                tls: config.tls.doors().to_string(),
                violated: self.violated_sets(),
                plain_exports: config.plain_exports,
                open_snapshots: config.snapshot_exports == SnapshotExports::Open,
                names_in_plain: config.names_in_plain().is_some(),
                allowed_stores: Some(v1::AllowedStores { places: node.live().store.allowed.clone() }),
                plan: self.plan_message(),
                ..v1::Node::default()
            };
            if let Some(adopted) = node.adopted() {
                let own = node.cluster.member(adopted.member);
                message.standing = own.map(|m| super::standing_text(m.standing).to_string()).unwrap_or_default();
                message.away = Some(self.away_message());
                message.initialised = adopted.group.is_initialized().await.unwrap_or(false);
                message.groups = adopted.raft.groups().iter().map(|g| self.group_message(&g.status())).collect();
            }
            if let Some(raft) = node.raft() {
                let waiting = raft.healing().into_iter().filter(|h| raft.group(h.group).is_none());
                message.groups.extend(waiting.map(|h| v1::GroupStatus {
                    group: h.group.0,
                    set: self.set_name(h.group).map(|name| name.to_string()).unwrap_or_default(),
                    role: v1::Role::Healing.into(),
                    ..v1::GroupStatus::default()
                }));
                message.journal = Some(journal_message(raft.log().usage()));
            }
            Ok(message)
        })
    }

    fn away_message(&self) -> v1::SetsAway {
        let away = self.node.away.locked();
        v1::SetsAway { leaving: away.leaving, sets: away.sets.iter().map(|id| id.0).collect() }
    }

    fn reads(&self) -> v1::ReadAnswers {
        let found = |answers: Answers| {
            let Answers { journal, memory, disk, store, shared } = answers;
            v1::FoundIn { journal, memory, disk, store, shared }
        };
        let cache = self.node.cache();
        let (over, recent) = cache.recent(self.node.started.elapsed());
        v1::ReadAnswers {
            since_start: Some(found(cache.answers())),
            recent: Some(found(recent)),
            recent_ms: u64::try_from(over.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Asks over a connection that is kept. One that has failed may have ended long ago, with the process at its other
    /// end: then a new one is tried. One that brings no answer is given up: it may lead nowhere.
    async fn ask_node(&self, api: &str, limit: Duration) -> Result<v1::Node, Silence> {
        let asked = async {
            if let Ok(node) = self.ask_once(api).await {
                return Ok(node);
            }
            self.node.others.forget(api);
            self.ask_once(api).await
        };
        match tokio::time::timeout(limit, asked).await {
            Ok(answer) => answer.map_err(|why| Silence { why, late: false }),
            Err(_) => {
                self.node.others.forget(api);
                Err(Silence { why: format!("{api}: no answer within {limit:?}"), late: true })
            }
        }
    }

    async fn ask_once(&self, api: &str) -> Result<v1::Node, String> {
        let channel = self.node.others.channel(&self.node.dialer(), api)?;
        let mut client = AdminClient::new(channel).max_decoding_message_size(holdfast_api::ADMIN_MESSAGE_BYTES_MAX);
        let answer = client.get_node(v1::GetNodeRequest {}).await;
        answer.map(tonic::Response::into_inner).map_err(|status| format!("{api}: {}", innermost(&status)))
    }

    /// How long another gateway may take to answer: by the round trip that was measured to it, else by the longest of
    /// the settings (`rtt_ms`).
    pub(super) fn answer_limit(&self, member: Option<MemberId>) -> Duration {
        let adopted = self.node.adopted().zip(member);
        let measured = adopted.and_then(|(adopted, id)| adopted.raft.round_trips().get(&id).copied());
        answer_limit(measured.unwrap_or(self.node.timing.rtt()))
    }

    /// A new connection to another gateway's admin API, made within `limit`. A caller that must know whether its call
    /// was sent needs one: a kept one connects only when it is used.
    pub(super) async fn client(&self, api: &str, limit: Duration) -> Result<AdminClient<Channel>, String> {
        let dialer = self.node.dialer();
        let endpoint = dialer.endpoint(api)?.connect_timeout(limit);
        let channel = dialer.connect(&endpoint).await.map_err(|e| format!("{api}: {e}"))?;
        Ok(AdminClient::new(channel).max_decoding_message_size(holdfast_api::ADMIN_MESSAGE_BYTES_MAX))
    }

    /// For people, who are waiting.
    pub(super) async fn cluster_status(&self, _: v1::ClusterStatusRequest) -> Result<v1::ClusterStatusReply, Refusal> {
        self.status_within(SHOWN_LIMIT).await
    }

    /// The state of all gateways. Each may take as long as its round trips need, and no longer than `most`.
    pub(super) async fn status_within(&self, most: Duration) -> Result<v1::ClusterStatusReply, Refusal> {
        let adopted = self.adopted()?;
        let state = self.node.cluster.state();
        self.node.others.keep_only(&state.members.values().map(|m| m.api_addr.as_str()).collect());
        let asked = state.members.values().map(async |m| {
            if m.id == adopted.member {
                let own = self.get_node(v1::GetNodeRequest {}).await;
                return (m, own.map_err(|e| Silence { why: e.to_string(), late: false }));
            }
            (m, self.ask_node(&m.api_addr, self.answer_limit(Some(m.id)).min(most)).await)
        });
        let answers = futures_util::future::join_all(asked).await;
        let groups = summaries(answers.iter().filter_map(|(_, node)| node.as_ref().ok()), &state);
        let members = answers
            .into_iter()
            .map(|(m, answer)| {
                let (node, error, late) = match answer {
                    Ok(node) => (Some(node), String::new(), false),
                    Err(silence) => (None, silence.why, silence.late),
                };
                let lags = node.as_ref().map(|n| lags(n, &groups)).unwrap_or_default();
                let reachable = node.is_some();
                v1::MemberStatus { member: Some(member_message(m)), reachable, error, node, lags, late }
            })
            .collect();
        Ok(v1::ClusterStatusReply {
            cluster_id: holdfast_api::hex128(state.cluster_id),
            answered_by: self.node.config.name.to_string(),
            members,
            sets: set_summaries(&state),
            groups,
            level: state.level,
        })
    }

    pub(super) async fn list_sets(&self, _: v1::ListSetsRequest) -> Result<v1::ListSetsReply, Refusal> {
        self.adopted()?;
        let state = self.node.cluster.state();
        Ok(v1::ListSetsReply { sets: set_summaries(&state), deletions: self.deletion_messages(&state) })
    }

    pub(super) async fn get_set(&self, request: v1::GetSetRequest) -> Result<v1::SetStatus, Refusal> {
        let name = holdfast_api::name("set", &request.set)?;
        if let Some(deleting) = self.deleting_status(&name, request.any_view) {
            return deleting;
        }
        let set = if request.any_view { self.set(&request.set)? } else { self.led_set(&request.set)? };
        if !request.any_view {
            self.confirm(&set).await?;
        }
        let status = set.group.status();
        let cluster = self.node.cluster.state();
        let summary = summary(&cluster, set.id);
        let clones =
            set.host.with(|m| m.state().pins().map(|(request, pin)| clone_message(&cluster, request, pin)).collect());
        let (epoch, checkpoint, backlog, snapshot_schedule, limit) = set.host.with(|m| {
            let state = m.state();
            let upto = state.checkpoint.as_ref().map_or(0, |c| c.upto.index.0);
            (state.epoch.0, upto, m.backlog_bytes(), state.schedule.to_string(), state.limits.set)
        });
        let (message, timing) = (self.group_message(&status), set.timing());
        let mine = set.group.leading_term().map(|_| set.me());
        let leader = mine.or(status.leadership.leader);
        Ok(v1::SetStatus {
            set: summary,
            volumes: Self::volumes_message(&set),
            // If this gateway leads, it knows that before the leadership watcher does.
            leader: leader.and_then(|l| self.member_message(l)),
            term: status.leadership.term.0,
            lease: set.lease().map(|l| self.lease_message(&set, &l)),
            epoch,
            last_index: message.last_index,
            applied_index: message.applied_index,
            checkpoint_index: checkpoint,
            backlog_bytes: backlog,
            snapshot_schedule,
            answered_by: set.me().0,
            confirmed: !request.any_view,
            voters: message.voters,
            learners: message.learners,
            store_health: Some(store_health(&set)),
            scrub: Some(super::scrub::scrub_message(&set)),
            deletion: None,
            clones,
            limit: limit_message(limit),
            rtt_ms: millis(timing.rtt()),
            takeover_ms: millis(timing.takeover_max()),
        })
    }
}

/// What a member said of itself, and the member. `None`: it did not answer, or another gateway stands at its address by
/// now: another member, or one of another cluster. That one's word says nothing of it. A gateway that no cluster has
/// adopted has neither groups nor a part in sets to tell of.
pub(super) fn own_word<'a>(cluster: &str, said: &'a v1::MemberStatus) -> Option<(&'a v1::Node, &'a v1::Member)> {
    let (node, member) = said.node.as_ref().zip(said.member.as_ref())?;
    let is_itself = node.member == 0 || node.member == member.id && node.cluster_id == cluster;
    is_itself.then_some((node, member))
}

/// What each other member lacks, at the group's leader.
fn peer_lags(status: &GroupStatus, me: Option<MemberId>) -> Vec<v1::PeerLag> {
    let others = status.members.iter().filter(|seen| Some(seen.member) != me);
    let lag = |seen: &MemberStatus| {
        let (entries, bytes) = lacks(status, seen);
        v1::PeerLag { member: seen.member.0, entries, bytes }
    };
    others.map(lag).collect()
}

/// Whether a member of a group has nearly all that its leader has, which told `led`. By the leader's word, which knows
/// the bytes. A leader of an older build does not tell: then by the entries alone, of which the member has those up to
/// `index`.
pub(super) fn has_nearly_all(led: &v1::GroupStatus, member: u64, index: u64) -> bool {
    if led.peers.is_empty() {
        return led.last_index.saturating_sub(index) <= CLOSE_ENTRIES;
    }
    led.peers.iter().any(|peer| peer.member == member && is_close(peer.entries, peer.bytes))
}

fn journal_message(usage: LogUsage) -> v1::JournalUsage {
    v1::JournalUsage {
        used_bytes: usage.used_bytes,
        bound_bytes: usage.bound_bytes,
        reserve_bytes: usage.reserve_bytes,
        failed: usage.failed.unwrap_or_default(),
        waits: usage.stalled.map(|what| format!("waits for {what}")).or(usage.blocked).unwrap_or_default(),
    }
}

/// "Connection refused" rather than "transport error".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

fn millis(time: std::time::Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

fn set_summaries(state: &ClusterState) -> Vec<v1::SetSummary> {
    state.sets.keys().filter_map(|id| summary(state, *id)).collect()
}

/// Summary of a set.
pub(super) fn summary(state: &ClusterState, id: SetId) -> Option<v1::SetSummary> {
    let entry = state.sets.get(&id)?;
    let of = state.links.get(&id).and_then(|links| links.clone_of.as_ref());
    let clone_of = of.map(|of| {
        let origin = state.sets.get(&of.origin).map_or_else(|| of.origin.to_string(), |origin| origin.name.to_string());
        format!("{origin}@{}", of.snapshot)
    });
    let (name, store) = (entry.name.to_string(), entry.store_url.clone());
    let voters = entry.voters.iter().map(|id| id.0).collect();
    Some(v1::SetSummary { id: id.0, name, store, clone_of: clone_of.unwrap_or_default(), voters })
}

fn clone_message(state: &ClusterState, request: RequestId, pin: &Pin) -> v1::Clone {
    let id = pin.clone;
    let ours = state.links.get(&id).and_then(|links| links.clone_of.as_ref()).is_some_and(|of| of.request == request);
    let name = state.sets.get(&id).filter(|_| ours).map(|clone| clone.name.to_string()).unwrap_or_default();
    let (snapshot, index) = (pin.snapshot.to_string(), pin.upto.index.0);
    v1::Clone { id: id.0, name, snapshot, index, inherited: pin.is_inherited() }
}

/// For each group the newest view among the answers: the leader's own, if there is one.
fn summaries<'a>(nodes: impl Iterator<Item = &'a v1::Node>, state: &ClusterState) -> Vec<v1::GroupSummary> {
    let mut best: std::collections::BTreeMap<u64, (bool, &v1::GroupStatus)> = std::collections::BTreeMap::new();
    for group in nodes.flat_map(|n| n.groups.iter()) {
        let leads = group.role == i32::from(v1::Role::Leader);
        let key = |(leads, g): (bool, &v1::GroupStatus)| (g.term, leads, g.last_index);
        let known = best.get(&group.group).copied();
        if known.is_none_or(|known| key((leads, group)) > key(known)) {
            best.insert(group.group, (leads, group));
        }
    }
    best.into_values()
        .map(|(_, g)| v1::GroupSummary {
            group: g.group,
            set: g.set.clone(),
            leader: g.leader,
            leader_name: state.members.get(&MemberId(g.leader)).map(|m| m.name.to_string()).unwrap_or_default(),
            term: g.term,
            last_index: g.last_index,
            committed_index: g.committed_index,
        })
        .collect()
}

fn lags(node: &v1::Node, groups: &[v1::GroupSummary]) -> Vec<v1::GroupLag> {
    node.groups
        .iter()
        .filter_map(|g| {
            let newest = groups.iter().find(|s| s.group == g.group)?;
            Some(v1::GroupLag { group: g.group, entries: newest.last_index.saturating_sub(g.applied_index) })
        })
        .collect()
}
