//! One life of a gateway for one set: everything that a real `start_set` starts, on a seat at the history's order of
//! entries.

use super::journal::{Journal, Seat};
use super::keys::{self, Ledger};
use super::model::Volumes;
use super::shape::Shape;
use super::stores::Stores;
use super::units::{GATEWAYS, SET};
use crate::rng::Rng;
use crate::sync::lock;
use bytes::Bytes;
use holdfast_cache::{Cache, MEMORY_BYTES_MIN};
use holdfast_control::cluster::{ClusterAnswer, ClusterCommand, ClusterState, SetEntry};
use holdfast_control::serve::Timing;
use holdfast_control::set::{FIRST_GENERATION, Links};
use holdfast_front::device::{ConnInfo, Exports, OpenedExport, Peer, Refusal};
use holdfast_log::NodeLog;
use holdfast_nbd::{ExportName, SnapshotExport};
use holdfast_raft::Group;
use holdfast_set::clones;
use holdfast_set::cluster::Cluster;
use holdfast_set::device::NodeExports;
use holdfast_set::head::{HeadKeeper, HeadParts};
use holdfast_set::mapping::{Mapping, SetKey};
use holdfast_set::pace::JournalPace;
use holdfast_set::reader::Reader;
use holdfast_set::repair::Repairer;
use holdfast_set::server::{SetParts, SetServer};
use holdfast_set::space::{SpaceKeeper, SpaceSettings};
use holdfast_set::uploader::{UploadSettings, Uploader};
use holdfast_store::{Health, ObjectStore, RetryPolicy, Switch};
use holdfast_types::sync::RwLockExt;
use holdfast_types::{LogId, MemberId, Name, Sectors, SetId};
use holdfast_volume::head::{Keyring, SetLife};
use holdfast_volume::map::LeafShape;
use holdfast_volume::segment::Codec;
use holdfast_volume::space::MoveLimits;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const LIFE: SetLife = SetLife { cluster: 7, generation: FIRST_GENERATION };

/// Gateways a millisecond apart without delays: elections of 150 ms, so that takeovers take little time.
pub const TIMING: Timing = Timing::with_floor(Duration::from_millis(1), Duration::from_millis(150));

/// Shared by all gateways of a set.
pub struct Common {
    pub set: SetId,
    pub life: SetLife,
    pub links: Links,
    /// Where the history has clones.
    pub others: Option<Arc<Others>>,
    pub journal: Arc<Journal>,
    pub store: Stores,
    /// With every key of this life, since the history reads everything. Each gateway has only those that it knows.
    pub key: SetKey,
    /// Group 0's keys.
    pub ledger: Arc<Mutex<Ledger>>,
    pub entry: SetEntry,
    /// Its steps, sizes of writes, and rates of faults.
    pub shape: Shape,
    upload: UploadSettings,
    /// Form of roots: whole, in the smallest possible leaves, or alternating.
    leaves: Leaves,
    /// See [`leaf_bytes`].
    leaf_room: u64,
    space: SpaceSettings,
    /// Empty; needed only for the pace, which is always full speed.
    log: NodeLog,
}

/// See [`Common::leaves`].
#[derive(Clone, Copy, Debug)]
enum Leaves {
    Never,
    Always(LeafShape),
    /// By the gateway's start.
    Now(LeafShape),
}

impl Leaves {
    /// From the seed itself: a draw would change all other draws.
    fn of(seed: u64) -> Self {
        let tiny = LeafShape { pages: 1, objects: 2, packs: 4, whole_bytes: 0 };
        // Five, so that neither the one in four with clones nor the one in three with key changes always has the same
        // form.
        match seed % 5 {
            0 | 1 => Self::Never,
            2 => Self::Now(LeafShape { pages: 2, objects: 3, ..tiny }),
            3 => Self::Always(LeafShape { pages: 3, objects: 1, packs: 2, ..tiny }),
            _ => Self::Always(tiny),
        }
    }

    /// Of a gateway's start.
    fn shape(self, boot: u64) -> Option<LeafShape> {
        match self {
            Self::Never => None,
            Self::Always(shape) => Some(shape),
            Self::Now(shape) => boot.is_multiple_of(2).then_some(shape),
        }
    }
}

/// Memory limit for leaves of pages: unlimited, none, or two or three leaves. From the seed itself and the gateway's
/// start: a new leader may have another limit.
fn leaf_bytes(leaf_room: u64, boot: u64) -> u64 {
    match (leaf_room + boot) % 3 {
        0 => u64::MAX,
        1 => 0,
        _ => 400,
    }
}

/// A valid name.
///
/// # Panics
/// If it is invalid.
pub fn name(text: impl Into<String>) -> Name {
    Name::new(text).unwrap_or_else(|e| panic!("a name: {e}"))
}

impl Common {
    /// Settings from `rng`.
    pub fn new(seed: u64, rng: &mut Rng, log: NodeLog, several: bool, shape: Shape) -> Self {
        let key = keys::set_key(SET, &[1].into(), 1);
        let entry = SetEntry {
            initial_members: (1..=GATEWAYS).map(MemberId).collect(),
            ..SetEntry::new(&name("set"), &keys::wrapped([1]), 1, MemberId(1))
        };
        let bytes = rng.pick(&[1, 32 << 10, 1 << 20]);
        let upload = UploadSettings {
            bytes,
            large_bytes: bytes,
            interval: Duration::from_millis(rng.pick(&[300, 1000])),
            parallel: 2,
            codec: rng.pick(&[Codec::None, Codec::Lz4, Codec::Zstd]),
            target_percent: rng.pick(&[110, 130, 200]),
            // From the seed itself: a draw would change all other draws.
            moves: if seed.is_multiple_of(3) {
                MoveLimits { bytes_per_second: 256 << 10, requests_per_second: 4 }
            } else {
                MoveLimits::default()
            },
            keep_uploaded: true,
        };
        let space = SpaceSettings {
            grace: Duration::from_millis(rng.pick(&[100, 600])),
            deletes_per_second: 1000,
            sweep_interval: Duration::from_millis(rng.pick(&[300, 1200])),
        };
        let (journal, store) = (Journal::new(SET, seed, Volumes::new()), Stores::new(seed, several));
        let (set, life, links, others) = (SET, LIFE, Links::default(), None);
        let ledger = Ledger::new(set, seed, &entry.wrapped_key, entry.key_id);
        let (leaves, leaf_room) = (Leaves::of(seed), seed / 5 % 3);
        Self {
            set,
            life,
            links,
            others,
            journal,
            store,
            key,
            ledger,
            entry,
            shape,
            upload,
            leaves,
            leaf_room,
            space,
            log,
        }
    }

    /// The store, as one process sees it.
    pub fn open_store(&self, health: &Arc<Health>) -> Arc<dyn ObjectStore> {
        // Waits of a millisecond, whatever is drawn for them: more would make the course of a seed depend on them.
        let policy = RetryPolicy { attempts_max: 3, backoff_first_ms: 1, backoff_max_ms: 1, ..RetryPolicy::default() };
        self.store.open(&policy, health)
    }

    /// The same store and settings for another set, or for the next life of one as group 0 has it now, beginning with
    /// `volumes`.
    ///
    /// # Panics
    /// If group 0 has no such set.
    pub fn next(&self, seed: u64, others: &Arc<Others>, set: SetId, volumes: Volumes) -> Self {
        let (state, key) = (others.state(), others.key(set));
        let entry = state.sets.get(&set).cloned().unwrap_or_else(|| panic!("no set {set}"));
        Self {
            set,
            life: SetLife { generation: entry.generation, ..LIFE },
            links: state.links.get(&set).cloned().unwrap_or_default(),
            others: Some(others.clone()),
            journal: Journal::new(set, seed, volumes),
            store: self.store.clone(),
            key: key.unwrap_or_else(|| panic!("no key of set {set}")),
            ledger: Ledger::new(set, seed, &entry.wrapped_key, entry.key_id),
            entry,
            shape: self.shape,
            upload: self.upload,
            leaves: self.leaves,
            leaf_room: self.leaf_room,
            space: self.space,
            log: self.log.clone(),
        }
    }
}

/// Group 0, and the keys that a gateway unwraps.
pub struct Others {
    state: Mutex<ClusterState>,
    keys: Mutex<BTreeMap<SetId, SetKey>>,
    /// Group 0 as the gateways see it.
    pub cluster: Arc<Cluster>,
}

impl Others {
    /// A group 0 that begins with `state`.
    pub fn new(state: ClusterState) -> Arc<Self> {
        let others = Self { state: Mutex::new(state), keys: Mutex::default(), cluster: Arc::default() };
        others.publish();
        Arc::new(others)
    }

    pub fn state(&self) -> ClusterState {
        lock(&self.state).clone()
    }

    pub fn key(&self, set: SetId) -> Option<SetKey> {
        lock(&self.keys).get(&set).cloned()
    }

    pub fn note_key(&self, key: SetKey) {
        lock(&self.keys).insert(key.set, key);
    }

    pub fn apply(&self, command: &ClusterCommand) -> ClusterAnswer {
        let answer = {
            let mut state = lock(&self.state);
            let answer = state.apply(LogId::default(), command);
            state.self_check();
            answer
        };
        self.publish();
        answer
    }

    fn publish(&self) {
        self.cluster.adopt(self.state());
    }
}

/// See the module. Dropping it kills the process.
pub struct Gateway {
    pub seat: Arc<Seat>,
    pub server: Arc<SetServer>,
    /// The data keys that it knows.
    pub key: SetKey,
    exports: NodeExports,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

fn head_keeper(
    common: &Common,
    (member, boot): (MemberId, u64),
    keyring: Keyring,
    key: SetKey,
    store: Arc<Switch>,
) -> Arc<HeadKeeper> {
    let parts = HeadParts {
        name: common.entry.name.clone(),
        life: common.life,
        keyring: keyring.into(),
        key,
        store,
        member,
        boot,
        // Never written: no gateway of a life starts after that life's end.
        note: PathBuf::from("/nonexistent/fenced"),
        clone_of: common.links.clone_of.clone(),
        by_own_keyring: None,
        pair: None,
        // All gateways of a history have one build.
    };
    HeadKeeper::new(parts).unwrap_or_else(|e| panic!("{e}"))
}

async fn mapping(
    common: &Common,
    boot: u64,
    key: SetKey,
    store: Arc<Switch>,
    health: Arc<Health>,
    stop: CancellationToken,
) -> Arc<Mapping> {
    let cache = Cache::open(MEMORY_BYTES_MIN, None).await.unwrap_or_else(|e| panic!("{e}"));
    let mapping = Mapping::new(key, store, health, cache, MEMORY_BYTES_MIN, Sectors(2048), stop);
    let mut mapping = mapping.unwrap_or_else(|e| panic!("{e}"));
    if let Some(others) = common.others.clone() {
        mapping = mapping.with_origins(Arc::new(move |set| others.key(set).ok_or_else(|| format!("no set {set}"))));
    }
    Arc::new(mapping.with_leaf_bytes(leaf_bytes(common.leaf_room, boot)))
}

impl Gateway {
    /// Start number `boot` of member `me`, from a saved state or from the first entry on.
    ///
    /// # Panics
    /// If the cache does not open.
    pub async fn start(common: &Common, me: MemberId, boot: u64, base: Option<(LogId, Bytes)>) -> Self {
        let stop = CancellationToken::new();
        let seat = Seat::new(me, common.journal.clone(), (&common.entry, &common.links), base);
        let group: Group = seat.clone();
        let health = Arc::new(Health::new("history"));
        let switch = Arc::new(Switch::new("memory", common.open_store(&health)));
        let store = switch.clone();
        let (key, keyring) = lock(&common.ledger).start();
        let head = head_keeper(common, (me, boot), keyring, key.clone(), store.clone());
        let mapping = mapping(common, boot, key.clone(), store, health.clone(), stop.clone()).await;
        let host = seat.host.clone();
        let server = SetServer::new(SetParts {
            id: common.set,
            name: common.entry.name.clone(),
            group: group.clone(),
            host: host.clone(),
            reader: Reader::new(group, host.clone(), mapping.clone()),
            pace: Arc::new(JournalPace::new(common.log.clone(), host)),
            head: head.clone(),
            health,
            switch,
            timing: TIMING,
            traces: None,
            stop: stop.clone(),
        });
        let space = SpaceKeeper::new(server.clone(), mapping.clone(), common.space, stop.clone());
        let repair = common.store.several().then(|| Repairer::new(server.clone(), mapping.clone(), stop.clone()));
        let shape = common.leaves.shape(boot);
        let uploader = Uploader::new(server.clone(), mapping, common.upload, boot, stop.clone());
        let uploader = uploader.in_leaves(Arc::new(move || shape));
        let mut tasks = vec![
            tokio::spawn(server.clone().run()),
            tokio::spawn(head.watch(server.group.clone(), server.host.clone(), server.switch.clone(), stop.clone())),
            tokio::spawn(space.run()),
            tokio::spawn(uploader.run()),
        ];
        tasks.extend(repair.map(|repair| tokio::spawn(repair.run())));
        if let Some(others) = &common.others {
            tasks.push(tokio::spawn(clones::run(server.clone(), others.cluster.clone(), stop.clone())));
        }
        let sets = BTreeMap::from([(common.entry.name.clone(), server.clone())]);
        let exports = NodeExports {
            cluster: Arc::new(Cluster::default()),
            sets: Arc::new(RwLock::new(sets)),
            plain_exports: true,
            open_snapshots: true,
        };
        Self { seat, server, key, exports, stop, tasks }
    }

    /// A client's connection to a volume, or to one of a snapshot.
    pub async fn open(&self, volume: &Name, snapshot: Option<&Name>) -> Result<OpenedExport, Refusal> {
        let set = self.server.name.clone();
        let snapshot = snapshot.map(|name| SnapshotExport { name: name.clone(), token: None });
        let export = ExportName { set, volume: volume.clone(), snapshot, session: None };
        self.exports.open(&export, ConnInfo { id: 1, peer: Peer::Unix }).await
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.seat.depose();
        self.stop.cancel();
        let sets = &self.exports.sets;
        sets.writing().clear();
    }
}

/// A journal that is never written.
pub fn empty_log() -> anyhow::Result<NodeLog> {
    let config = holdfast_log::LogConfig::new("nowhere");
    let disk = holdfast_testkit::SimDisk::new();
    let small =
        holdfast_log::LogConfig { file_bytes: 256 << 10, bound_bytes: 6 << 20, reserve_bytes: 1 << 20, ..config };
    let (log, _, turns) = NodeLog::open_in_turns(disk, small, holdfast_log::Identity::default(), None)?;
    // Kept for the life of the process: it is the writer's side.
    *lock(&TURNS) = Some(turns);
    Ok(log)
}

static TURNS: std::sync::Mutex<Option<holdfast_log::Turns>> = std::sync::Mutex::new(None);

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_control::serve::WhyNot;
    use holdfast_types::Term;
    use std::sync::mpsc;
    use std::time::Duration;

    /// One task saw that there is no leader, then came the election, then another task looked, and only then did the
    /// first report.
    #[test]
    fn a_look_from_before_the_election_does_not_end_the_term() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let gateway = runtime.block_on(async {
            let common = Common::new(1, &mut Rng::new(1, 1), empty_log().unwrap(), false, Shape::USUAL);
            Gateway::start(&common, MemberId(1), 1, None).await
        });
        let (server, seat) = (&gateway.server, &gateway.seat);
        let (inside, entered) = mpsc::channel();
        let (looked, other) = mpsc::channel();
        *lock(&seat.asked) = Some(Box::new(move || {
            inside.send(()).unwrap();
            // Until the other one has looked, or has shown that it waits for this one.
            let _ = other.recv_timeout(Duration::from_millis(500));
        }));
        std::thread::scope(|scope| {
            scope.spawn(|| server.follow());
            entered.recv().unwrap();
            seat.lead(Term(1));
            scope.spawn(|| {
                server.follow();
                let _ = looked.send(());
            });
        });
        assert_eq!(server.may_write(), Err(WhyNot::NoGrant { term: Term(1) }), "the leader's gate waits for a grant");
    }
}
