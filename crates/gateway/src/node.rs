//! One gateway: its identity, its Raft groups, its sets. Group 0 says which groups and sets run here.
//!
//! ```text
//!   data_dir ── identity ──▶ (adopted?) ──▶ journal ──▶ group 0 ──▶ reconcile: a group, a server, an uploader per set;
//!                                                                    members of each group as group 0 lists them
//! ```

mod cache_disk;
mod clock;
mod deletion;
mod depart;
mod ended;
mod following;
mod gauges;
mod group_trouble;
mod heal;
mod lives;
mod members;
mod near;
mod others;
mod peer_book;
mod planned;
mod reconcile;
mod registration;
mod retiming;
mod revoked;
mod running;
mod seams;
mod shown;
mod start;
mod start_set;
mod starts;
mod stopping;
mod store_migration;
mod traces;
mod turns;
mod younger;

use crate::config::live::Live;
use crate::config::{GatewayConfig, GatewayRole, JournalConfig, TlsTransition};
use crate::identity::{Identity, IdentityError};
use crate::node_key::NodeKeyError;
use futures_util::future::BoxFuture;
use holdfast_cache::Cache;
use holdfast_control::cluster::Member;
use holdfast_control::serve::Timing;
use holdfast_etcd::{EtcdError, Mirror};
use holdfast_log::LogUsage;
use holdfast_raft::{Group, RaftNode};
use holdfast_set::cluster::Cluster;
use holdfast_set::keyring::{ClusterKeys, KeyError};
use holdfast_set::server::SetServer;
use holdfast_set::warm::Warmth;
use holdfast_tls::{Dialer, Role, Tls, TlsError};
use holdfast_traces::{Exporter, TracesError};
use holdfast_types::sync::{LockExt, RwLockExt};
use holdfast_types::{Locality, MemberId, Name, SetId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

pub use deletion::Progress;
pub(crate) use depart::Away;
pub(crate) use near::lacks;
pub(crate) use others::{Others, answer_limit};
pub(crate) use planned::{GroupReport, Planned, Runs, ViolationChange, Wants};
pub(crate) use revoked::{bearer, list as revoked_list};
pub use seams::Seams;
pub use stopping::{HAND_OVER_LIMIT, Handed};

use running::Running;
use shown::Shown;
use traces::NodeTraces;
use turns::Turns;

/// The part of the cache's memory for opened map pages.
const PAGE_MEMORY_SHARE: u64 = 4;

/// The part of the cache's memory that one reader may fill by read-ahead. The cache evicts pages that nobody has read
/// once they fill a tenth of it.
const READ_AHEAD_SHARE: u64 = 32;

/// A gateway cannot start, or cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Identity on disk.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The key of this node's files.
    #[error(transparent)]
    NodeKey(#[from] NodeKeyError),
    /// The cluster key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Its certificate.
    #[error("[tls]: {0}")]
    Tls(#[from] TlsError),
    /// The etcd that receives grants.
    #[error("[etcd]: {0}")]
    Etcd(#[from] EtcdError),
    /// The collector of traces.
    #[error("[traces]: {0}")]
    Traces(#[from] TracesError),
    /// The journal.
    #[error("journal: {0}")]
    Journal(#[from] holdfast_log::OpenError),
    /// A Raft group.
    #[error(transparent)]
    Raft(#[from] holdfast_raft::NodeError),
    /// A directory or a socket.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The cache.
    #[error("cache: {0}")]
    Cache(String),
    /// Something was refused for a reason that no caller has to tell from others: group 0 refused this start, a set's
    /// key does not open, a task ended early. The text says what and why.
    #[error("{0}")]
    Refused(String),
}

/// A file that settings name cannot be read.
fn unread((what, source): (String, std::io::Error)) -> NodeError {
    NodeError::Io { what, source }
}

/// Opens the cluster keys that these settings name. Whoever keeps them may take half a minute for each.
pub async fn cluster_keys(config: &GatewayConfig) -> Result<ClusterKeys, KeyError> {
    let (key, previous) = (config.key.source(&config.store), config.key_previous.source(&config.store));
    ClusterKeys::load(&key, &previous).await
}

/// Available once the gateway is a member of a cluster.
#[derive(Clone)]
pub struct Adopted {
    /// Its Raft groups.
    pub raft: RaftNode,
    /// Group 0.
    pub group: Group,
    /// This member.
    pub member: MemberId,
}

/// One gateway.
pub struct Node {
    /// Its settings, as they were at the start.
    pub config: GatewayConfig,
    /// Settings that a reload changes.
    pub settings: Live,
    /// The longest times that a group may have: those of group 0, and of sets that nothing else was chosen for.
    pub timing: Timing,
    /// The cluster state as applied here.
    pub cluster: Arc<Cluster>,
    /// Its sets, by name.
    pub sets: Arc<RwLock<BTreeMap<Name, Arc<SetServer>>>>,
    /// When the process started.
    pub started: Instant,
    /// Stops everything.
    pub stop: CancellationToken,
    /// Its certificate, if it has one.
    pub tls: Option<Tls>,
    /// The etcd that receives grants.
    mirror: Option<Mirror>,
    traces: NodeTraces,
    seams: Seams,
    identity: Mutex<Identity>,
    keys: Arc<ClusterKeys>,
    cache: Cache,
    /// Limits what followers on this gateway may read into the cache.
    warmth: Arc<Warmth>,
    /// Why group 0 refused this start (CLUSTER-C3).
    refused: Mutex<Option<String>>,
    /// Set if the journal's disk had less room than the journal's bound when it was opened.
    lacks_room: OnceLock<String>,
    /// Set once the journal is open. Group 0 may still be waiting to be healed then.
    raft: RwLock<Option<RaftNode>>,
    adopted: RwLock<Option<Adopted>>,
    /// Serializes changes.
    pub(crate) turns: Turns,
    /// Why a set does not run here, and the set's name.
    troubles: Mutex<BTreeMap<SetId, (Name, String)>>,
    /// The tasks of each set, so that they can be stopped.
    running: Mutex<BTreeMap<SetId, Running>>,
    /// Progress of the deletions that this gateway carries out while it leads group 0.
    deletions: Mutex<BTreeMap<SetId, Progress>>,
    /// What the planner of sets' voters remembers while this gateway leads group 0.
    pub(crate) planned: Mutex<Planned>,
    /// Connections to the admin API of the other gateways.
    pub(crate) others: Others,
    /// The sets that have no place and nothing here.
    pub(crate) away: Mutex<Away>,
    /// Of what metrics were shown last.
    shown: Mutex<Shown>,
}

impl Node {
    /// Opens the data directory. Starts group 0 if the disk has been adopted.
    pub async fn open(config: GatewayConfig, stop: CancellationToken) -> Result<Arc<Self>, NodeError> {
        Self::open_over(config, stop, Seams::default()).await
    }

    /// Like `open`, with another disk, store and network.
    pub async fn open_over(
        config: GatewayConfig,
        stop: CancellationToken,
        seams: Seams,
    ) -> Result<Arc<Self>, NodeError> {
        let io = |what: String| move |source| NodeError::Io { what, source };
        holdfast_folder::make(&config.data_dir).map_err(io(format!("data_dir {}", config.data_dir.display())))?;
        let keys = match seams.keys.clone() {
            Some(keys) => keys,
            None => Arc::new(cluster_keys(&config).await?),
        };
        let tls = config.tls.load(Role::Gateway)?;
        let etcd = config.etcd.load().map_err(unread)?;
        let mirror = etcd.map(|options| Mirror::new(&options, &config.etcd.prefix)).transpose()?;
        let traces = NodeTraces::open(config.traces.load(config.name.as_str()).map_err(unread)?)?;
        let identity = Identity::open(&config.data_dir)?;
        let memory =
            usize::try_from(config.cache.memory.0 - config.cache.memory.0 / PAGE_MEMORY_SHARE).unwrap_or(usize::MAX);
        // Its disk comes later (`cache_disk`): nothing keeps another process off this data directory yet.
        let cache = Cache::open(memory, None).await.map_err(|e| NodeError::Cache(e.to_string()))?;
        let timing = Timing::from_rtt(Duration::from_millis(u64::from(config.rtt_ms)));
        // A witness never serves, so nobody reads from its cache.
        let warm = if config.role == GatewayRole::Gateway { config.cache.warm_bytes_per_second.0 } else { 0 };
        let warmth = Arc::new(Warmth::new(warm, config.cache.disk.0));
        let fixed = || Live::new(config.clone(), holdfast_host::unix_ms() / 1000);
        let settings = seams.live.clone().unwrap_or_else(fixed);
        let node = Arc::new(Self {
            config,
            settings,
            timing,
            cluster: Arc::new(Cluster::default()),
            sets: Arc::new(RwLock::new(BTreeMap::new())),
            started: Instant::now(),
            stop,
            tls,
            mirror,
            traces,
            seams,
            identity: Mutex::new(identity),
            keys,
            cache,
            warmth,
            refused: Mutex::new(None),
            lacks_room: OnceLock::new(),
            raft: RwLock::new(None),
            adopted: RwLock::new(None),
            turns: Turns::default(),
            troubles: Mutex::new(BTreeMap::new()),
            running: Mutex::new(BTreeMap::new()),
            deletions: Mutex::new(BTreeMap::new()),
            planned: Mutex::new(Planned::default()),
            others: Others::default(),
            away: Mutex::new(Away::default()),
            shown: Mutex::new(Shown::default()),
        });
        if node.identity().member != 0 {
            node.start().await?;
        }
        Ok(node)
    }

    /// The identity on disk.
    pub fn identity(&self) -> Identity {
        self.identity.locked().clone()
    }

    /// Settings as they are now. What needs a restart, and every path and address, is in `config`.
    pub fn live(&self) -> Arc<GatewayConfig> {
        self.settings.now()
    }

    /// Connects to other gateways (R10).
    pub fn dialer(&self) -> Dialer {
        let plain = self.config.tls.transition == Some(TlsTransition::Accept);
        let tls = self.tls.as_ref().filter(|_| !plain);
        self.seams.dialer.clone().unwrap_or_else(|| Dialer::from(tls))
    }

    /// What sends this gateway's traces, the first time; `None` without a collector.
    pub(crate) fn take_exporter(&self) -> Option<Exporter> {
        self.traces.take_exporter()
    }

    /// The cluster keys of this gateway.
    pub fn keys(&self) -> &ClusterKeys {
        &self.keys
    }

    /// The groups, once this gateway is adopted.
    pub fn adopted(&self) -> Option<Adopted> {
        self.adopted.reading().clone()
    }

    /// The Raft node, once the journal is open.
    pub fn raft(&self) -> Option<RaftNode> {
        self.raft.reading().clone()
    }

    /// A set that runs here.
    pub fn set(&self, name: &Name) -> Option<Arc<SetServer>> {
        self.sets.reading().get(name).cloned()
    }

    /// This gateway's progress on a deletion; `None` if there is none or if it does not lead group 0.
    pub fn deletion_progress(&self, set: SetId) -> Option<Progress> {
        self.deletions.locked().get(&set).cloned()
    }

    /// Makes this gateway a permanent member of a cluster and starts group 0. It runs to its end even if the caller
    /// stops waiting: opening the journal may take longer than the caller waits, and a half-open journal cannot be
    /// opened again. A repeated call does the rest.
    pub fn adopt(self: &Arc<Self>, cluster: u128, member: MemberId) -> BoxFuture<'_, Result<(), NodeError>> {
        Box::pin(async move {
            let node = self.clone();
            let whole = tokio::spawn(async move {
                let _one = node.turns.adoption.lock().await;
                node.identity.locked().adopt(&node.config.data_dir, cluster, member.0)?;
                match node.raft() {
                    None => node.start().await,
                    // The journal is open but group 0 did not start, and it does not wait to be healed.
                    Some(raft) if node.adopted().is_none() && raft.healing().is_empty() => {
                        node.start_cluster_group(&raft, member).await
                    }
                    Some(_) => Ok(()),
                }
            });
            whole.await.unwrap_or_else(|e| Err(NodeError::Refused(format!("adopting: {e}"))))
        })
    }

    /// Waits; returns false if the gateway stops first.
    pub(crate) async fn passes(&self, time: Duration) -> bool {
        tokio::select! {
            () = self.stop.cancelled() => false,
            () = tokio::time::sleep(time) => true,
        }
    }

    /// Group 0 refuses this gateway: it stops, for this reason.
    pub(crate) fn refuse(&self, why: String) {
        *self.refused.locked() = Some(why);
        self.stop.cancel();
    }

    /// Why this gateway stops by itself, if it does.
    pub fn refusal(&self) -> Option<NodeError> {
        self.refused.locked().clone().map(NodeError::Refused)
    }

    /// Why this gateway is not ready to serve; `None` if it is.
    pub fn not_ready(&self) -> Option<String> {
        let healing = self.raft().and_then(|raft| raft.healing().into_iter().next());
        if let Some(healing) = healing {
            return Some(healing_text(&healing));
        }
        let Some(adopted) = self.adopted() else { return Some("not adopted by a cluster yet".to_string()) };
        if let Some(why) = journal_trouble(&adopted.raft.log().usage()) {
            return Some(why);
        }
        // A group that this gateway is to leave may tell it nothing any more.
        let stays = |group: &&Group| self.cluster.has_place(group.id(), adopted.member);
        let patience = self.timing.election_max() * 2;
        for group in adopted.raft.groups().iter().filter(stays) {
            if let Some(why) = group_trouble::group_trouble(&**group, patience) {
                return Some(why);
            }
        }
        let set_trouble = |set: &Arc<SetServer>| set.head.trouble().or_else(|| set.reader.bad_places().trouble());
        let found = self.sets.reading().values().find_map(set_trouble);
        found.or_else(|| self.troubles.locked().values().next().map(|(set, why)| format!("set {set}: {why}")))
    }

    /// Problems of the journal that do not keep this gateway from serving.
    pub fn journal_warnings(&self) -> Vec<String> {
        let clear = self.raft().and_then(|raft| clear_warning(&self.config.journal, raft.log().clear_files()));
        self.lacks_room.get().cloned().into_iter().chain(clear).collect()
    }

    /// It stands elsewhere than the cluster knows: policies of sets are judged by what the cluster knows.
    pub fn locality_warning(&self) -> Option<String> {
        let known = self.cluster.member(self.adopted()?.member)?;
        elsewhere(&known, &self.config.locality(), &self.config.api_address())
    }

    /// Other gateways whose timing settings differ from ours.
    pub fn timing_warnings(&self) -> Vec<String> {
        self.raft().map(|raft| raft.unequal_times()).unwrap_or_default()
    }

    /// Files of the certificate that cannot be used, certificates that expire soon or are revoked, plain text beside
    /// TLS, at the doors and at HTTP.
    pub fn certificate_warnings(&self) -> Vec<String> {
        let warnings = self.tls.as_ref().map(Tls::warnings).unwrap_or_default();
        let transition = self.config.tls.transition.map(|step| {
            format!("[tls] transition = {:?}: whoever connects without TLS may do everything", step.as_str())
        });
        let names = self.config.names_in_plain().map(str::to_string);
        warnings.into_iter().chain(self.revoked_warning()).chain(transition).chain(names).collect()
    }

    /// That settings that were read again are not in use.
    pub fn settings_warning(&self) -> Option<String> {
        let why = self.settings.trouble()?;
        Some(format!("the settings were read again and cannot be used: {why}; those read before stay in use"))
    }

    /// All warnings, one line each: none of them keeps this gateway from serving.
    pub fn warnings(&self) -> Vec<String> {
        let warnings = self.journal_warnings().into_iter().chain(self.timing_warnings()).chain(self.store_warnings());
        let of_files = self.certificate_warnings().into_iter().chain(self.settings_warning());
        warnings.chain(of_files).chain(self.locality_warning()).collect()
    }
}

/// That a gateway's settings and the cluster do not agree on where it stands, for people.
fn elsewhere(known: &Member, here: &Locality, api: &str) -> Option<String> {
    (known.locality != *here).then(|| {
        let (name, there) = (&known.name, &known.locality);
        format!(
            "by its settings {name} stands at {here}, and the cluster places sets as if at {there}: tell it by \
             `holdfast gateway update {name} --address {api}`"
        )
    })
}

/// Journal files in clear that are believed where files are sealed (JOURNAL-J10), `files` of them; or the setting for
/// them, once there are none.
fn clear_warning(settings: &JournalConfig, files: usize) -> Option<String> {
    let both = settings.seal && settings.read_clear;
    let why = match files {
        0 => {
            "no file in clear is left, and whoever can write to this disk can put one there. Set journal.read_clear = \
             false, and restart"
                .to_string()
        }
        files => format!(
            "{files} journal files in clear are read beside sealed ones, whoever wrote them. They go as data is \
             written and uploaded, or with two restarts of an idle gateway"
        ),
    };
    both.then(|| format!("journal.read_clear is on: {why}"))
}

/// Why the journal does not work as it should, for people.
fn journal_trouble(usage: &LogUsage) -> Option<String> {
    let (failed, stalled, blocked) = (&usage.failed, &usage.stalled, &usage.blocked);
    let failed = failed.as_ref().map(|why| format!("journal failed: {why}"));
    let stalled = || stalled.as_ref().map(|why| format!("the journal takes no writes, it waits for {why}"));
    let blocked = || blocked.as_ref().map(|why| format!("the journal frees no files: {why}"));
    failed.or_else(stalled).or_else(blocked)
}

/// Describes a group that is being healed, for people.
pub(crate) fn healing_text(healing: &holdfast_raft::Healing) -> String {
    let (group, record) = (healing.group, &healing.record);
    match healing.since {
        None => format!("group {group} is damaged ({record}); waiting for its peers to remove this member from it"),
        Some(since) => format!(
            "group {group} was damaged ({record}); this member left it at {since} and copies it from the leader"
        ),
    }
}

impl Node {
    /// Closes in order: first the groups, then the cache's disk.
    pub fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(raft) = self.raft() {
                raft.stop().await;
            }
            self.cache.close().await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_that_stands_elsewhere_than_the_cluster_knows_says_so() {
        let member = Member {
            id: MemberId(2),
            name: Name::new("g2").unwrap(),
            locality: "eu".parse().unwrap(),
            disk: 7,
            peer_addr: "a:1".into(),
            api_addr: "a:2".into(),
            nbd_addr: "a:3".into(),
            role: holdfast_control::cluster::MemberRole::Gateway,
            standing: holdfast_control::cluster::Standing::Active,
        };
        assert_eq!(elsewhere(&member, &"region=eu".parse().unwrap(), "a:2"), None);
        let why = elsewhere(&member, &"region=eu,zone=b".parse().unwrap(), "a:2").unwrap();
        assert!(why.contains("region=eu,zone=b") && why.contains("gateway update g2 --address a:2"), "{why}");
    }

    /// JOURNAL-J10: for as long as files in clear are believed, each look at the gateway says so.
    #[test]
    fn files_in_clear_beside_sealed_ones_are_told() {
        let settings = |seal, read_clear| JournalConfig { seal, read_clear, ..JournalConfig::default() };
        let some = clear_warning(&settings(true, true), 3).unwrap();
        assert!(some.contains("3 journal files"), "{some}");
        let none = clear_warning(&settings(true, true), 0).unwrap();
        assert!(none.contains("no file in clear is left") && none.contains("read_clear = false"), "{none}");
        assert_eq!(clear_warning(&settings(true, false), 0), None);
        assert_eq!(clear_warning(&settings(false, true), 3), None, "nothing is sealed, as was asked for");
    }

    #[test]
    fn a_journal_that_waits_for_room_or_frees_nothing_is_not_ready() {
        let why = Some("No space left on device".to_string());
        let said = |usage: &LogUsage| journal_trouble(usage).unwrap_or_default();
        assert_eq!(said(&LogUsage::default()), "");
        let waits = Some("room on its disk: No space left on device".to_string());
        let stalled = LogUsage { stalled: waits, ..LogUsage::default() };
        assert!(said(&stalled).contains("waits for room on its disk: No space left"), "{}", said(&stalled));
        let blocked = LogUsage { blocked: why.clone(), ..LogUsage::default() };
        assert!(said(&blocked).contains("frees no file") && said(&blocked).contains("No space left"));
        let failed = LogUsage { failed: why, ..stalled };
        assert!(said(&failed).starts_with("journal failed"), "a permanent failure comes first");
    }
}
