use super::*;
use crate::head::tests::{FIRST, SET, keeper_of, look_is_old, recovered_elsewhere};
use crate::host::SetHost;
use crate::mapping::{Mapping, SetKey};
use crate::pace::JournalPace;
use crate::reader::Reader;
use crate::server::SetParts;
use futures_util::future::BoxFuture;
use holdfast_cache::{Cache, MEMORY_BYTES_MIN};
use holdfast_control::cluster::{ClusterState, Member, MemberRole, SetEntry, Standing};
use holdfast_control::serve::Timing;
use holdfast_control::set::{Lease, Links, Restored, RootRef, SetAnswer, SetCommand, Volume};
use holdfast_front::tests::harness::{Broken, Client, pipe, soon};
use holdfast_front::{Front, FrontLimits};
use holdfast_log::{Identity, LogConfig, NodeLog};
use holdfast_nbd::HeaderStyle;
use holdfast_nbd::client::{Aim, ClientError};
use holdfast_raft::{
    Consensus, GroupError, GroupStatus, Leadership, MemberStatus, Proposed, ReadLogError, ReadPlace, Reply,
    StateMachine, boot_now,
};
use holdfast_seal::DataKey;
use holdfast_store::{Health, Memory, ObjectStore, Switch};
use holdfast_testkit::SimDisk;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId, LogIndex, MemberId, MonoTime, ObjectId, RequestId, Term, Token};
use std::sync::{Mutex, MutexGuard};
use std::task::Poll;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

mod ends;
mod journal;
mod kept_back;
mod serving;
mod taken;
mod traced;

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
        // A slow store, or a paused process.
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

/// A log that commits and applies each entry at once, in place of Raft's.
struct Seat {
    host: Arc<SetHost>,
    leadership: watch::Sender<Leadership>,
    at: Mutex<At>,
}

struct At {
    leads: bool,
    /// The term in which it leads, if it does.
    term: Term,
    /// When a quorum was last heard; `None`: at the moment of each query.
    heard: Option<MonoTime>,
    applied: LogId,
    /// Entries of its log that are not applied yet.
    behind: u64,
    /// Payloads by index, from 1 on; the first entry of a term has none, nor has one that was purged.
    entries: Vec<Bytes>,
    /// Runs once when an entry is read: the client's data has been read, and its answer has not been sent.
    between: Option<Box<dyn FnOnce() + Send>>,
    /// Runs once when an entry is proposed.
    proposed: Option<Box<dyn FnOnce() + Send>>,
    /// Number of reads of one entry, and of reads of several at once.
    reads: (u32, u32),
}

impl Seat {
    fn new(host: Arc<SetHost>, leads: bool) -> Arc<Self> {
        let leader = Some(if leads { ME } else { OTHER });
        let leadership = watch::Sender::new(Leadership { term: TERM, leader, mine: leads, stopped: false });
        let applied = LogId::new(TERM.0, 1);
        host.observe(applied);
        let (term, entries) = (TERM, vec![Bytes::new()]);
        let (behind, between, proposed, reads) = (0, None, None, (0, 0));
        let at = At { leads, term, heard: None, applied, behind, entries, between, proposed, reads };
        Arc::new(Self { host, leadership, at: Mutex::new(at) })
    }

    fn at(&self) -> MutexGuard<'_, At> {
        self.at.locked()
    }
}

impl Seat {
    fn take(&self, term: Option<Term>, payload: Bytes, reply: Reply) {
        let proposed = self.at().proposed.take();
        if let Some(proposed) = proposed {
            proposed();
        }
        let mut at = self.at();
        let outcome = if at.leads && term.is_none_or(|term| term == at.term) {
            at.entries.push(payload.clone());
            let id = LogId::new(at.term.0, at.entries.len() as u64);
            let answer = self.host.apply(id, payload);
            at.applied = id;
            Ok(Proposed { id, answer })
        } else {
            Err(ProposeError::NotLeader { leader: Some(OTHER) })
        };
        // What a reply calls must find no lock of ours.
        drop(at);
        reply.send(outcome);
    }

    fn read(&self, place: ReadPlace) -> Result<Bytes, ReadLogError> {
        let ReadPlace { index: LogIndex(index), offset, len } = place;
        let (payload, next, between) = {
            let mut at = self.at();
            let payload = at.entries.get(index as usize - 1).filter(|payload| !payload.is_empty()).cloned();
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
        let at = self.at();
        at.leads.then_some(at.term)
    }

    fn quorum_acked(&self) -> Option<(Term, MonoTime)> {
        let at = self.at();
        at.leads.then(|| (at.term, at.heard.unwrap_or_else(boot_now)))
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

    fn seals(&self) -> bool {
        true
    }

    fn submit(&self, term: Option<Term>, payload: Bytes, reply: Reply) -> BoxFuture<'_, Result<(), ProposeError>> {
        Box::pin(async move {
            self.take(term, payload, reply);
            Ok(())
        })
    }

    fn read_log(&self, index: LogIndex, offset: u32, len: usize) -> BoxFuture<'_, Result<Bytes, ReadLogError>> {
        self.at().reads.0 += 1;
        Box::pin(async move { self.read(ReadPlace { index, offset, len }) })
    }

    fn read_log_many(&self, places: Vec<ReadPlace>) -> BoxFuture<'_, Result<Vec<Bytes>, ReadLogError>> {
        self.at().reads.1 += 1;
        Box::pin(async move { places.into_iter().map(|place| self.read(place)).collect() })
    }

    fn trigger_snapshot(&self) -> BoxFuture<'_, Result<(), GroupError>> {
        Box::pin(async { Ok(()) })
    }

    fn status(&self) -> GroupStatus {
        let member = |number| MemberStatus {
            member: MemberId(number),
            voter: true,
            matched: None,
            lacks_bytes: u64::MAX,
            silent: None,
            addr: String::new(),
        };
        let At { applied, behind, .. } = *self.at();
        GroupStatus {
            group: SET,
            leadership: *self.leadership.borrow(),
            voted: TERM,
            last: Some(LogIndex(applied.index.0 + behind)),
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

/// The parts of one set at a gateway, with a `Seat` as its log.
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

fn other() -> Member {
    Member {
        id: OTHER,
        name: name("g2"),
        locality: "region=here".parse().unwrap(),
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

    /// The same with this root as that of the last checkpoint; it is in another store than the set's.
    pub async fn over(leads: bool, root: Option<RootRef>) -> Self {
        Self::under(leads, root, None).await
    }

    async fn under(leads: bool, root: Option<RootRef>, pair: Option<Arc<crate::authority::Authority>>) -> Self {
        let (dir, volume) = (tempfile::tempdir().unwrap(), Volume { name: name("vol1"), size: Sectors(2048) });
        let entry = SetEntry {
            name: name("demo"),
            policy: holdfast_control::policy::Policy::default(),
            store_url: "memory".into(),
            wrapped_key: Vec::new(),
            key_id: 1,
            created_by: ME,
            initial_members: vec![ME],
            base_epoch: Epoch(0),
            generation: 1,
            restored: Some(Restored { volumes: vec![(VolumeId(1), volume)], next_volume: 2, root }),
            voters: Default::default(),
        };
        let host = Arc::new(SetHost::new(SET, &entry, &Links::default()));
        let seat = Seat::new(host.clone(), leads);
        let (group, health, stop) = (seat.clone(), Health::new("demo"), CancellationToken::new());
        let (health, switch) = (Arc::new(health), Arc::new(Switch::new("memory", Arc::new(Memory::new()))));
        let head = keeper_of(switch.clone(), FIRST, dir.path(), pair);
        let cache = Cache::open(MEMORY_BYTES_MIN, None).await.unwrap();
        let key = SetKey::of(SET, 1, DataKey::from_bytes([6; 32]));
        let mapping =
            Mapping::new(key, switch.clone(), health.clone(), cache, MEMORY_BYTES_MIN, Sectors(0), stop.clone());
        let reader = Reader::new(group.clone(), host.clone(), Arc::new(mapping.unwrap()));
        // An empty log; the pace is computed from it.
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
            // Elections take at least ten seconds: no test depends on the speed of the machine.
            timing: Timing::from_rtt(Duration::from_secs(1)),
            traces: None,
            stop: stop.clone(),
        });
        let (group, host, switch) = (server.group.clone(), server.host.clone(), server.switch.clone());
        tokio::spawn(head.watch(group, host, switch, stop.clone()));
        let (cluster, mut state) = (Cluster::default(), ClusterState::new());
        state.members.insert(OTHER, other());
        cluster.adopt(state);
        let sets = BTreeMap::from([(entry.name, server.clone())]);
        let (cluster, sets) = (Arc::new(cluster), Arc::new(RwLock::new(sets)));
        let exports = NodeExports { cluster, sets, plain_exports: true, open_snapshots: true };
        Self { seat, server, exports: Arc::new(exports), stop, _dir: dir }
    }

    /// Opens the volume under its own lease.
    async fn open(&self) -> Arc<dyn Device> {
        let export = ExportName::plain(name("demo"), name("vol1"));
        self.exports.open(&export, ConnInfo { id: 1, peer: Peer::Unix }).await.expect("served here").device
    }

    /// Grants the lease to a holder of token 7.
    async fn acquire(&self, request: u128) {
        let owner = Owner::new("host").unwrap();
        let (ttl, request) = (Duration::from_secs(30), RequestId(request));
        self.server.acquire(owner, Token(7), ttl, request, false, false).await.expect("the lease is free");
    }

    /// The holder continues it.
    async fn continued(&self, token: u128, request: u128) -> Result<Lease, SetError> {
        let owner = Owner::new("host").unwrap();
        self.server.continue_lease(owner, Token(token), Token(token + 1), RequestId(request)).await
    }

    /// Runs `then` when the next read has its data.
    fn between(&self, then: impl FnOnce(&SetServer, &Seat) + Send + 'static) {
        let (server, seat) = (self.server.clone(), self.seat.clone());
        self.seat.at().between = Some(Box::new(move || then(&server, &seat)));
    }

    fn store(&self) -> Arc<dyn ObjectStore> {
        self.server.switch.clone()
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

/// A planned move waits for clients up to its limit, refuses new connections meanwhile, and leaves the lease as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_that_is_drained_waits_for_its_clients_and_takes_no_new_ones() {
    let world = World::new(true).await;
    let device = world.open().await;
    assert_eq!(world.server.drain(Duration::from_millis(1)).await, 1, "one is connected");
    assert_eq!(
        soon(device.clone().write(0, Bytes::from(vec![7; 512]), false)).await,
        Ok(()),
        "pending requests continue"
    );
    let export = ExportName::plain(name("demo"), name("vol1"));
    let joined = world.exports.open(&export, ConnInfo { id: 2, peer: Peer::Unix }).await;
    assert!(joined.is_err(), "no new connection during a drain");
    let server = world.server.clone();
    let drained = tokio::spawn(async move { server.drain(Duration::from_secs(60)).await });
    drop(device);
    assert_eq!(soon(drained).await.unwrap(), 0);
    let lease = world.server.lease().expect("a client disconnected by a move returns to its lease");
    assert_eq!(
        world.server.serving().map(|serving| serving.epoch),
        Some(lease.epoch),
        "the move ends it, not the drain"
    );
}

/// HEAD-H1: another life has taken over the set. What this gateway says of the lease is of the life before, and a host
/// that believes a refusal ends its devices for good.
#[tokio::test]
async fn a_continuation_is_answered_only_after_a_recent_look_at_the_head() {
    for token in [7, 9] {
        let world = World::new(true).await;
        world.acquire(1).await;
        let lease = world.server.lease();
        recovered_elsewhere(&world.server.head, &world.store()).await;
        look_is_old(&world.server.head);
        let said = world.continued(token, 2).await;
        assert!(matches!(&said, Err(SetError::Fenced(why)) if why.contains("recovered elsewhere")), "{said:?}");
        assert_eq!(world.server.lease(), lease, "nothing was granted");
    }
}

/// The same if the look is too old only when the proposal has ended: it may have taken seconds.
#[tokio::test]
async fn a_grant_or_its_refusal_is_kept_back_if_the_proposal_took_too_long() {
    for token in [7, 9] {
        let world = World::new(true).await;
        world.acquire(1).await;
        recovered_elsewhere(&world.server.head, &world.store()).await;
        let head = world.server.head.clone();
        world.seat.at().proposed = Some(Box::new(move || look_is_old(&head)));
        let said = world.continued(token, 2).await;
        assert!(matches!(said, Err(SetError::Fenced(_))), "{said:?}");
        assert!(world.seat.at().proposed.is_none(), "it was proposed");
    }
}

/// The data at the volume's begin, and what a client is told about it.
fn written() -> (Bytes, Vec<ReadPart>, Vec<Extent>) {
    let data = Bytes::from(vec![7; 4096]);
    let extents = vec![Extent { len: 4096, hole: false }, Extent { len: 4096, hole: true }];
    (data.clone(), vec![ReadPart::Data(data)], extents)
}

/// R3, R8: after the data was read, the set is given away, or another gateway turns out to lead. The client gets
/// neither data nor an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r3_what_was_read_is_not_handed_out_once_the_gate_has_closed() {
    let given_away: fn(&SetServer, &Seat) = |server, _| server.gate().transfer_started();
    let lost: fn(&SetServer, &Seat) = |server, seat| {
        seat.at().leads = false;
        server.follow();
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
        assert!(world.is_done(), "it closed after the data was read");
        // The same for a read that does not use the journal.
        assert_eq!(soon(device.clone().read(8192, 4096)).await, Err(DeviceError::Disconnect), "R3, {how}");
        assert_eq!(soon(device.clone().block_status(0, 8192, 8)).await, Err(DeviceError::Disconnect), "R3, {how}");
    }
}

/// R3: the process was paused between data and answer, for longer than its read lease. The answer waits until a quorum
/// is heard again.
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
    let polled = std::future::poll_fn(|cx| Poll::Ready(read.as_mut().poll(cx))).await;
    assert!(polled.is_pending(), "R3: {polled:?}");
    assert!(world.is_done(), "the data is there");
    let polled = std::future::poll_fn(|cx| Poll::Ready(status.as_mut().poll(cx))).await;
    assert!(polled.is_pending(), "R3: {polled:?}");
    world.seat.at().heard = None;
    assert_eq!(soon(read).await, Ok(parts), "no other gateway can have led meanwhile");
    assert_eq!(soon(status).await, Ok(extents));
}

/// A client of the wrong gateway is told where to connect, whichever name it uses.
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
        // It may be new, and a follower may not know it yet.
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

/// NBD_OPT_GO reports the same about an export as NBD_OPT_INFO.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_export_is_described_as_it_is_opened() {
    let world = World::new(true).await;
    let (request, object) = (RequestId(9), ObjectId { term: TERM, member: ME, boot: 1, random: 30 });
    let asked = SetCommand::SnapshotCreate { name: name("monday"), request, at_unix_ms: 0, scheduled: false };
    world.server.command("a snapshot", &asked).await.unwrap();
    let begun = world.server.command("a begin", &SetCommand::CheckpointBegin { term: TERM }).await.unwrap();
    let SetAnswer::CheckpointBegun { at: begin } = begun else { panic!("{begun:?}") };
    let end = SetCommand::CheckpointEnd { term: TERM, begin, root: RootRef { object, bytes: 9 } };
    world.server.command("an end", &end).await.unwrap();
    for (export, expected) in [("demo/vol1", "set demo"), ("demo/vol1@monday", "snapshot of set demo")] {
        let export_name: ExportName = export.parse().unwrap();
        let conn = || ConnInfo { id: 1, peer: Peer::Unix };
        let told = world.exports.describe(&export_name, conn()).await.expect(export);
        let opened = world.exports.open(&export_name, conn()).await.expect(export);
        assert_eq!((told.size, told.read_only), (opened.device.size(), opened.read_only), "{export}");
        assert_eq!((told.description.as_str(), opened.description.as_str()), (expected, expected));
    }
}

/// A snapshot is all data of a set at one moment: without its token nobody can read it, and a refusal does not reveal
/// which sets, volumes and snapshots exist. A made-up token reveals no more.
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
    let [vol1, vol9, none] =
        ["demo/vol1", "demo/vol9", "none/vol1"].map(|export| format!("{export}{token}&conn=0&gen=1"));
    // The set exists and has the volume vol1; nothing else exists.
    for all in [
        ["demo/vol1", "demo/vol9", "none/vol1"],
        ["demo/vol1@monday", "demo/vol9@monday", "none/vol1@monday"],
        [vol1.as_str(), vol9.as_str(), none.as_str()],
    ] {
        let said = refused(all[0]).await;
        for other in &all[1..] {
            assert_eq!(refused(other).await, said, "{other}");
        }
        if all[0].contains('@') {
            assert_eq!(refused(&format!("{}{token}", all[0])).await, said, "with a wrong token");
        }
    }
}

/// A set that is created again under its name begins with epoch 1. Its clients are not refused because of the epochs
/// and incarnations of the deleted one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_that_is_created_again_under_its_name_has_slots_of_its_own() {
    let (first, second) = (World::new(true).await, World::new(true).await);
    let front = Arc::new(Front::new(FrontLimits::default(), first.exports.clone()).unwrap());
    let connect = async |incarnation: u64| {
        let export = format!("demo/vol1?token={}&conn=0&gen={incarnation}", Token(7).to_text());
        soon(Client::shake(pipe(&front), Aim::Go(export), HeaderStyle::Extended)).await
    };
    first.acquire(1).await;
    drop(connect(5).await.expect("the first set is served"));
    let stale = connect(4).await.err();
    assert!(matches!(stale, Some(Broken::Handshake(ClientError::Refused { .. }))), "{stale:?}");
    // The set is deleted here, and the next one of its name starts.
    second.acquire(2).await;
    first.exports.sets.writing().insert(name("demo"), second.server.clone());
    connect(1).await.expect("the second set begins at incarnation 1");
}
