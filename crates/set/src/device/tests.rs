use super::*;
use crate::head::tests::{FIRST, SET, keeper_of};
use crate::host::SetHost;
use crate::mapping::{Mapping, SetKey};
use crate::pace::JournalPace;
use crate::reader::Reader;
use crate::server::SetParts;
use futures_util::future::BoxFuture;
use holdfast_cache::{Cache, MEMORY_BYTES_MIN};
use holdfast_control::cluster::{ClusterState, Member, MemberRole, SetEntry, Standing};
use holdfast_control::serve::Timing;
use holdfast_control::set::{Links, Restored, RootRef, Volume};
use holdfast_front::tests::harness::{Broken, Client, pipe, soon};
use holdfast_front::{Front, FrontLimits};
use holdfast_log::{Identity, LogConfig, NodeLog};
use holdfast_nbd::HeaderStyle;
use holdfast_nbd::client::{Aim, ClientError};
use holdfast_raft::{
    Consensus, GroupError, GroupStatus, Leadership, MemberStatus, Outcome, Pending, Proposed, ReadLogError, ReadPlace,
    StateMachine, boot_now,
};
use holdfast_seal::DataKey;
use holdfast_store::{Health, Memory, Switch};
use holdfast_testkit::SimDisk;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId, LogIndex, MemberId, MonoTime, ObjectId, Term};
use std::future::poll_fn;
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

const ME: MemberId = MemberId(1);
const OTHER: MemberId = MemberId(2);
const TERM: Term = Term(1);

#[test]
fn r8_only_what_another_gateway_may_have_right_closes_the_connection() {
    let object = ObjectId { term: Term(3), member: MemberId(1), boot: 9, random: 7 };
    let bad = MapError::Bad { what: "extent", object, reason: "found another tag".into() };
    assert_eq!(unanswered(&bad.into()).0, DeviceError::Unreadable);
    assert_eq!(unanswered(&MapError::Stopping.into()).0, DeviceError::Disconnect);
    let journal = ReadError::Operation { index: LogIndex(7), reason: "of another volume".into() };
    assert_eq!(unanswered(&journal).0, DeviceError::Disconnect);
}

#[tokio::test]
async fn r3_a_read_is_checked_when_its_data_is_there_and_before_it_is_answered() {
    let told = Mutex::new(Vec::new());
    let tell = |what| told.lock().unwrap().push(what);
    let data = async {
        tell("data begun");
        // A store that takes its time, or a process that stands still.
        tokio::task::yield_now().await;
        tell("data there");
        Ok(7)
    };
    let check = async {
        tell("checked");
        Ok(())
    };
    assert_eq!(checked(data, check).await, Ok(7));
    assert_eq!(*told.lock().unwrap(), ["data begun", "data there", "checked"]);
    let refused = checked(async { Ok(7) }, async { Err(DeviceError::Disconnect) }).await;
    assert_eq!(refused, Err(DeviceError::Disconnect));
}

/// A log that is committed and applied as soon as something is handed in, in place of Raft's.
struct Seat {
    host: Arc<SetHost>,
    leadership: watch::Sender<Leadership>,
    at: Mutex<At>,
}

struct At {
    leads: bool,
    /// When a quorum was last heard; `None`: at every moment that is asked for.
    heard: Option<MonoTime>,
    applied: LogId,
    /// Payloads by index, from 1 on; the first entry of the term has none.
    entries: Vec<Bytes>,
    /// Done once, when an entry is read: what a client asked for is there, and its answer has not left.
    between: Option<Box<dyn FnOnce() + Send>>,
}

impl Seat {
    fn new(host: Arc<SetHost>, leads: bool) -> Arc<Self> {
        let leader = Some(if leads { ME } else { OTHER });
        let leadership = watch::Sender::new(Leadership { term: TERM, leader, mine: leads, stopped: false });
        let applied = LogId::new(TERM.0, 1);
        host.observe(applied);
        let at = At { leads, heard: None, applied, entries: vec![Bytes::new()], between: None };
        Arc::new(Self { host, leadership, at: Mutex::new(at) })
    }

    fn at(&self) -> MutexGuard<'_, At> {
        self.at.locked()
    }
}

impl Seat {
    fn take(&self, term: Option<Term>, payload: Bytes) -> oneshot::Receiver<Outcome> {
        let (tx, rx) = oneshot::channel();
        let mut at = self.at();
        let outcome = if at.leads && term.is_none_or(|term| term == TERM) {
            at.entries.push(payload.clone());
            let id = LogId::new(TERM.0, at.entries.len() as u64);
            let answer = self.host.apply(id, payload);
            at.applied = id;
            Ok(Proposed { id, answer })
        } else {
            Err(ProposeError::NotLeader { leader: Some(OTHER) })
        };
        // Who asked may have gone.
        let _ = tx.send(outcome);
        rx
    }

    fn read(&self, place: ReadPlace) -> Result<Bytes, ReadLogError> {
        let ReadPlace { index: LogIndex(index), offset, len } = place;
        let (payload, next, between) = {
            let mut at = self.at();
            let payload = at.entries.get(index as usize - 1).cloned();
            (payload, at.entries.len() as u64 + 1, at.between.take())
        };
        if let Some(between) = between {
            between();
        }
        let payload = payload.ok_or(ReadLogError::Missing { index, next })?;
        Ok(payload.slice(offset as usize..offset as usize + len))
    }
}

impl Consensus for Seat {
    fn id(&self) -> GroupId {
        SET
    }

    fn me(&self) -> MemberId {
        ME
    }

    fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    fn leading_term(&self) -> Option<Term> {
        self.at().leads.then_some(TERM)
    }

    fn quorum_acked(&self) -> Option<(Term, MonoTime)> {
        let at = self.at();
        at.leads.then(|| (TERM, at.heard.unwrap_or_else(boot_now)))
    }

    fn applied(&self) -> LogId {
        self.at().applied
    }

    fn snapshot_last(&self) -> Option<LogId> {
        None
    }

    fn live_bytes(&self) -> u64 {
        0
    }

    fn submit(&self, term: Option<Term>, payload: Bytes) -> BoxFuture<'_, Result<Pending, ProposeError>> {
        Box::pin(async move { Ok(self.take(term, payload).into()) })
    }

    fn read_log(&self, index: LogIndex, offset: u32, len: usize) -> BoxFuture<'_, Result<Bytes, ReadLogError>> {
        Box::pin(async move { self.read(ReadPlace { index, offset, len }) })
    }

    fn trigger_snapshot(&self) -> BoxFuture<'_, Result<(), GroupError>> {
        Box::pin(async { Ok(()) })
    }

    fn status(&self) -> GroupStatus {
        let member = |number| MemberStatus {
            member: MemberId(number),
            voter: true,
            matched: None,
            silent: None,
            addr: String::new(),
        };
        let applied = self.at().applied;
        GroupStatus {
            group: SET,
            leadership: *self.leadership.borrow(),
            last: Some(applied.index),
            applied: Some(applied),
            snapshot: None,
            purged: None,
            live_bytes: 0,
            members: (1..=3).map(member).collect(),
            settled: true,
            membership: None,
            next: None,
        }
    }
}

/// What a gateway has of one set, over a [`Seat`].
pub struct World {
    seat: Arc<Seat>,
    pub server: Arc<SetServer>,
    exports: Arc<NodeExports>,
    stop: CancellationToken,
    _dir: tempfile::TempDir,
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// The gateway that leads where this one does not.
fn other() -> Member {
    Member {
        id: OTHER,
        name: name("g2"),
        region: name("here"),
        disk: 2,
        peer_addr: "192.0.2.2:7000".into(),
        api_addr: "192.0.2.2:7001".into(),
        nbd_addr: "192.0.2.2:10809".into(),
        role: MemberRole::Gateway,
        standing: Standing::Active,
    }
}

impl World {
    async fn new(leads: bool) -> Self {
        Self::over(leads, None).await
    }

    /// With this root as the one of the last checkpoint; it is in another store than this set's.
    pub async fn over(leads: bool, root: Option<RootRef>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let volume = Volume { name: name("vol1"), size: Sectors(2048) };
        let entry = SetEntry {
            name: name("demo"),
            store_url: "memory".into(),
            wrapped_key: Vec::new(),
            key_id: 1,
            created_by: ME,
            initial_members: vec![ME],
            base_epoch: Epoch(0),
            generation: 1,
            restored: Some(Restored { volumes: vec![(VolumeId(1), volume)], next_volume: 2, root }),
        };
        let host = Arc::new(SetHost::new(&entry, &Links::default()));
        let seat = Seat::new(host.clone(), leads);
        let (group, health, stop) = (seat.clone(), Health::new("demo"), CancellationToken::new());
        let (health, switch) = (Arc::new(health), Arc::new(Switch::new("memory", Arc::new(Memory::new()))));
        let head = keeper_of(switch.clone(), FIRST, dir.path(), None);
        let cache = Cache::open(MEMORY_BYTES_MIN, None).await.unwrap();
        let key = SetKey::of(SET, 1, DataKey::from_bytes([6; 32]));
        let mapping =
            Mapping::new(key, switch.clone(), health.clone(), cache, MEMORY_BYTES_MIN, Sectors(0), stop.clone());
        let reader = Reader::new(group.clone(), host.clone(), Arc::new(mapping.unwrap()));
        // Nothing is in it: the pace is asked of it.
        let config = LogConfig {
            file_bytes: 1 << 20,
            bound_bytes: 64 << 20,
            reserve_bytes: 2 << 20,
            ..LogConfig::new("simulated")
        };
        let (log, _) = NodeLog::open_on(SimDisk::new(), config, Identity::default()).unwrap();
        let server = SetServer::new(SetParts {
            id: SET,
            name: entry.name.clone(),
            group,
            host: host.clone(),
            reader,
            pace: Arc::new(JournalPace::new(log, host)),
            head: head.clone(),
            health,
            switch,
            // Elections of ten seconds and more: nothing here depends on how fast the machine is.
            timing: Timing::from_rtt(Duration::from_secs(1)),
            stop: stop.clone(),
        });
        tokio::spawn(head.watch(server.clone(), stop.clone()));
        let (cluster, mut state) = (Cluster::default(), ClusterState::new());
        state.members.insert(OTHER, other());
        cluster.adopt(state);
        let sets = BTreeMap::from([(entry.name, server.clone())]);
        let (cluster, sets) = (Arc::new(cluster), Arc::new(RwLock::new(sets)));
        let exports = NodeExports { cluster, sets, plain_exports: true, open_snapshots: true };
        Self { seat, server, exports: Arc::new(exports), stop, _dir: dir }
    }

    /// The volume, under a lease of its own.
    async fn open(&self) -> Arc<dyn Device> {
        let export = ExportName::plain(name("demo"), name("vol1"));
        self.exports.open(&export, ConnInfo { id: 1, peer: Peer::Unix }).await.expect("served here").device
    }

    /// Has `then` done when the next read has its data.
    fn between(&self, then: impl FnOnce(&SetServer, &Seat) + Send + 'static) {
        let (server, seat) = (self.server.clone(), self.seat.clone());
        self.seat.at().between = Some(Box::new(move || then(&server, &seat)));
    }

    fn is_done(&self) -> bool {
        self.seat.at().between.is_none()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A planned move waits for clients as long as it may, lets nobody join meanwhile, and leaves the lease as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_that_is_drained_waits_for_its_clients_and_takes_no_new_ones() {
    let world = World::new(true).await;
    let device = world.open().await;
    assert_eq!(world.server.drain(Duration::from_millis(1)).await, 1, "one is connected");
    assert_eq!(soon(device.clone().write(0, Bytes::from(vec![7; 512]), false)).await, Ok(()), "what was begun goes on");
    let export = ExportName::plain(name("demo"), name("vol1"));
    let joined = world.exports.open(&export, ConnInfo { id: 2, peer: Peer::Unix }).await;
    assert!(joined.is_err(), "nobody joins what is drained");
    let server = world.server.clone();
    let drained = tokio::spawn(async move { server.drain(Duration::from_secs(60)).await });
    drop(device);
    assert_eq!(soon(drained).await.unwrap(), 0);
    let lease = world.server.lease().expect("who was let go for a move comes back to its lease");
    assert_eq!(
        world.server.serving().map(|serving| serving.epoch),
        Some(lease.epoch),
        "the move ends it, not the drain"
    );
}

/// What is written at the volume's begin, and what a client is told of it.
fn written() -> (Bytes, Vec<ReadPart>, Vec<Extent>) {
    let data = Bytes::from(vec![7; 4096]);
    let extents = vec![Extent { len: 4096, hole: false }, Extent { len: 4096, hole: true }];
    (data.clone(), vec![ReadPart::Data(data)], extents)
}

/// R3, R8: the data is there, and then the set is given away, or it turns out that another gateway leads. Nothing is handed out, and it is no
/// error either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_what_was_read_is_not_handed_out_once_the_gate_has_closed() {
    let given_away: fn(&SetServer, &Seat) = |server, _| server.gate().transfer_started();
    let lost: fn(&SetServer, &Seat) = |server, seat| {
        seat.at().leads = false;
        server.look();
    };
    for (how, close) in [("given away", given_away), ("lost", lost)] {
        let world = World::new(true).await;
        let device = world.open().await;
        let (data, parts, extents) = written();
        assert_eq!(soon(device.clone().write(0, data, false)).await, Ok(()));
        assert_eq!(soon(device.clone().read(0, 4096)).await, Ok(parts));
        assert_eq!(soon(device.clone().block_status(0, 8192, 8)).await, Ok(extents));
        world.between(close);
        assert_eq!(soon(device.clone().read(0, 4096)).await, Err(DeviceError::Disconnect), "R3, {how}");
        assert!(world.is_done(), "it closed when the data was there");
        // Nor what costs no look at the journal.
        assert_eq!(soon(device.clone().read(8192, 4096)).await, Err(DeviceError::Disconnect), "R3, {how}");
        assert_eq!(soon(device.clone().block_status(0, 8192, 8)).await, Err(DeviceError::Disconnect), "R3, {how}");
    }
}

/// R3: the process stood still between the data and the answer, for longer than its read lease. The answer waits until a quorum is heard again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_what_was_read_waits_while_there_is_no_read_lease() {
    let world = World::new(true).await;
    let device = world.open().await;
    let (data, parts, extents) = written();
    assert_eq!(soon(device.clone().write(0, data, false)).await, Ok(()));
    world.between(|server, seat| {
        seat.at().heard = Some(boot_now());
        server.gate().clock_suspected();
    });
    let (mut read, mut status) = (device.clone().read(0, 4096), device.clone().block_status(0, 8192, 8));
    let polled = poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await;
    assert!(polled.is_pending(), "R3: {polled:?}");
    assert!(world.is_done(), "the data is there");
    let polled = poll_fn(|cx| Poll::Ready(status.as_mut().poll(cx))).await;
    assert!(polled.is_pending(), "R3: {polled:?}");
    world.seat.at().heard = None;
    assert_eq!(soon(read).await, Ok(parts), "nobody else can have led meanwhile");
    assert_eq!(soon(status).await, Ok(extents));
}

/// Who comes to the wrong gateway is told where to go, by whatever name it asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_does_not_lead_names_the_one_that_does() {
    let world = World::new(false).await;
    let front = Arc::new(Front::new(FrontLimits::default(), world.exports.clone()).unwrap());
    let session = format!("demo/vol1?token={:032x}&conn=0&gen=1", 7);
    let go = |export: &str| Aim::Go(export.into());
    let aims = [
        go("demo/vol1"),
        go(&session),
        go("demo/vol1@monday"),
        // It may have been made a moment ago, and a follower not know of it yet.
        go("demo/vol9"),
        Aim::Info("demo/vol1".into()),
    ];
    let refusal = async |aim: &Aim| match soon(Client::shake(pipe(&front), aim.clone(), HeaderStyle::Extended)).await {
        Err(Broken::Handshake(ClientError::NotHere { message })) => message,
        other => panic!("{aim:?}: expected to be sent elsewhere, found {:?}", other.map(|(_, _, outcome)| outcome)),
    };
    for aim in &aims {
        let expected = "set demo is served by gateway g2 at 192.0.2.2:10809; connect there";
        assert_eq!(refusal(aim).await, expected, "{aim:?}");
    }
    world.seat.leadership.send_modify(|seen| seen.leader = None);
    for aim in &aims {
        let expected = "set demo has no leader at the moment; try again, or another gateway";
        assert_eq!(refusal(aim).await, expected, "{aim:?}");
    }
}

/// A snapshot is all data of a set at one moment: without its token it is read by nobody, and a refusal does not tell which sets and snapshots there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_exports_answer_alike_whatever_is_there() {
    let world = World::new(true).await;
    let exports = Arc::new(NodeExports { plain_exports: false, open_snapshots: false, ..(*world.exports).clone() });
    let refused = async |export: &str| {
        let name: ExportName = export.parse().unwrap();
        let said = exports.describe(&name, ConnInfo { id: 1, peer: Peer::Unix }).await.expect_err(export);
        let opened = exports.open(&name, ConnInfo { id: 1, peer: Peer::Unix }).await;
        let opened = opened.err().unwrap_or_else(|| panic!("{export} was opened"));
        assert_eq!((said.kind, &said.message), (opened.kind, &opened.message), "{export}");
        assert_eq!(said.kind, RefusalKind::NotPermitted, "{export}");
        let (set, snapshot) = (name.set.as_str(), name.snapshot.as_ref().map_or("-", |found| found.name.as_str()));
        let said = said.message.replace(&name.to_string(), "NAME").replace(&format!("{set}@{snapshot}"), "SNAPSHOT");
        assert!(!said.contains(set) && !said.contains("00000007"), "{said}");
        said
    };
    let token = format!("?token={:032x}", 7);
    // The set is there and has the volume vol1; all else is not there.
    for all in [["demo/vol1", "demo/vol9", "none/vol1"], ["demo/vol1@monday", "demo/vol9@monday", "none/vol1@monday"]] {
        let said = refused(all[0]).await;
        for other in &all[1..] {
            assert_eq!(refused(other).await, said, "{other}");
        }
        if all[0].contains('@') {
            assert_eq!(refused(&format!("{}{token}", all[0])).await, said, "with a wrong token");
        }
    }
}
