//! Tenures over one store, one after the other, without an etcd: the tests decide which gateway has the seat. Each
//! earlier holder still runs beside the next, like one that hangs.

use super::*;
use holdfast_api::v1::admin_server::Admin;
use holdfast_control::pair::{Durability, TenureId};
use holdfast_control::set::{SetState, Snapshot};
use holdfast_gateway::node::{Seams, cluster_keys};
use holdfast_raft::boot_now;
use holdfast_set::keyring::ClusterKeys;
use holdfast_types::{ByteSize, LogId, Name};
use holdfast_volume::head::Head;
use tokio_util::sync::CancellationToken;
use tonic::Request;

const PATIENCE: Duration = Duration::from_secs(60);
const SCHEDULE: &str = "300dx3";

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

/// A folder with the pair's store, its key, and the files of each tenure.
struct Lab(tempfile::TempDir);

impl Lab {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lab = Self(dir);
        lab.write_key(7);
        lab
    }

    fn write_key(&self, byte: u8) {
        let key = self.0.path().join("key");
        std::fs::write(&key, [byte; 32]).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    }

    fn url(&self) -> String {
        format!("file://{}", self.0.path().join("store").display())
    }

    fn config(&self, revision: u64) -> GatewayConfig {
        let data_dir = self.0.path().join(format!("tenure-{revision}"));
        let mut config = GatewayConfig { data_dir, ..GatewayConfig::default() };
        config.key.file = Some(self.0.path().join("key"));
        config.pair.stores = vec![self.url()];
        config.journal.bound = ByteSize(256 << 20);
        config.journal.reserve = ByteSize(64 << 20);
        config.journal.file = ByteSize(16 << 20);
        config.upload.bytes = ByteSize(16 << 20);
        config.cache.memory = ByteSize(32 << 20);
        config.cache.disk = ByteSize(0);
        config
    }

    /// A node that has won the seat with this revision, but has not taken over anything yet.
    async fn won(&self, revision: u64, keys: Option<Arc<ClusterKeys>>) -> (Arc<Node>, Arc<Authority>) {
        let id = TenureId::new(7, "/holdfast/pairs/db/seat", revision);
        let (stores, ttl) = (vec![self.url()], Duration::from_secs(3600));
        let authority = Arc::new(Authority::begin(id, Durability::Flush, stores, boot_now(), ttl));
        let seams = Seams { pair: Some(authority.clone()), keys, ..Seams::default() };
        let node = Node::open_over(self.config(revision), CancellationToken::new(), seams).await.unwrap();
        (node, authority)
    }

    async fn tenure(&self, revision: u64) -> Arc<Node> {
        let (node, authority) = self.won(revision, None).await;
        begin(self.config(revision), authority)(node.clone()).await.unwrap();
        node
    }

    /// The head of the set, as it is in the store.
    async fn head(&self, node: &Node) -> Option<Head> {
        let store = open_store(&self.config(0), &self.url(), Arc::new(Health::new("test"))).await.unwrap();
        let mut survey = recovery::survey(&self.url(), store, node.keys()).await.unwrap();
        assert!(survey.bad.is_empty(), "{:?}", survey.bad);
        survey.sets.pop().map(|found| found.head)
    }

    /// Creates the set, with one volume.
    async fn make_set(&self, node: &Arc<Node>) {
        let door = AdminDoor::new(node.clone());
        let store = self.url();
        let set = v1::CreateSetRequest { name: "demo".into(), store, request_id: hex128(random_u128()), policy: None };
        Admin::create_set(&door, Request::new(set)).await.unwrap();
        let request_id = hex128(random_u128());
        let volume =
            v1::CreateVolumeRequest { set: "demo".into(), name: "vol1".into(), size_bytes: 1 << 20, request_id };
        until("the set has a leader", async || Admin::create_volume(&door, Request::new(volume.clone())).await.ok())
            .await;
    }
}

fn state(node: &Node) -> SetState {
    node.set(&name("demo")).unwrap().host.with(|m| m.state().clone())
}

async fn snapshot(node: &Arc<Node>, of: &str) -> Snapshot {
    let door = AdminDoor::new(node.clone());
    let request_id = hex128(random_u128());
    let request = v1::CreateSnapshotRequest { set: "demo".into(), name: of.into(), request_id };
    until("the snapshot is there", async || Admin::create_snapshot(&door, Request::new(request.clone())).await.ok())
        .await;
    state(node).snapshots.get(&name(of)).unwrap().clone()
}

/// Whether the snapshot existed.
async fn delete(node: &Arc<Node>, of: &str, snapshot: &Snapshot) -> Result<bool, tonic::Status> {
    let (id, request_id) = (hex128(snapshot.request.0), hex128(random_u128()));
    let request = v1::DeleteSnapshotRequest { set: "demo".into(), name: of.into(), request_id, id };
    let door = AdminDoor::new(node.clone());
    Admin::delete_snapshot(&door, Request::new(request)).await.map(|reply| reply.into_inner().deleted)
}

async fn close(node: &Node) {
    node.stop.cancel();
    node.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshots_and_their_schedule_outlive_a_takeover() {
    let lab = Lab::new();
    let first = lab.tenure(40).await;
    lab.make_set(&first).await;
    let monday = snapshot(&first, "monday").await;
    let request_id = hex128(random_u128());
    let schedule = v1::SetScheduleRequest { set: "demo".into(), schedule: SCHEDULE.into(), request_id };
    let door = AdminDoor::new(first.clone());
    until("the schedule is set", async || Admin::set_schedule(&door, Request::new(schedule.clone())).await.ok()).await;
    let schedule = state(&first).schedule;
    let listed = lab.head(&first).await.unwrap();
    assert_eq!(listed.links.snapshots.schedule, schedule, "answered: a takeover brings it back");
    assert_eq!(listed.links.snapshots.snapshots.get(&name("monday")), Some(&monday), "SET-S15");

    let second = lab.tenure(41).await;
    let back = state(&second);
    let inherited = Snapshot { upto: LogId::default(), ..monday };
    assert_eq!(back.snapshots.get(&name("monday")), Some(&inherited));
    assert_eq!(back.schedule, schedule);
    assert!(back.kept_roots().iter().any(|root| root.object == inherited.root.object), "a sweep would delete it");

    // A replaced gateway has a Raft group of its own that accepts any deletion; it must not answer that it did.
    delete(&first, "monday", &inherited).await.unwrap_err();
    let lists = async || {
        let head = lab.head(&second).await.unwrap();
        head.links.snapshots.snapshots.contains_key(&name("monday"))
    };
    assert!(lists().await, "HEAD-H1");

    // An answered deletion is final: the snapshot does not come back in the next tenure.
    until("monday is deleted", async || delete(&second, "monday", &inherited).await.ok()).await;
    assert!(!lists().await, "answered, and a takeover would bring it back");
    let third = lab.tenure(42).await;
    assert_eq!(state(&third).snapshots.get(&name("monday")), None);
    assert_eq!(state(&third).schedule, schedule);
    for node in [&first, &second, &third] {
        close(node).await;
    }
}

/// Whoever keeps the key may be away when a takeover is due; and the other gateway may have the right key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_takeover_has_the_keys_from_before_and_gives_the_seat_up_if_they_are_wrong() {
    let lab = Lab::new();
    let first = lab.tenure(40).await;
    lab.make_set(&first).await;
    until("the set has a head", async || lab.head(&first).await).await;
    let right = Arc::new(cluster_keys(&lab.config(41)).await.unwrap());
    lab.write_key(8);
    let wrong = Arc::new(cluster_keys(&lab.config(41)).await.unwrap());
    std::fs::remove_file(lab.0.path().join("key")).unwrap();

    let (second, authority) = lab.won(41, Some(wrong)).await;
    let error = begin(lab.config(41), authority)(second.clone()).await.unwrap_err().to_string();
    assert!(error.contains("none of the 1 sets in pair.stores opens here"), "{error}");

    let (third, authority) = lab.won(42, Some(right)).await;
    begin(lab.config(42), authority)(third.clone()).await.unwrap();
    assert!(third.set(&name("demo")).is_some(), "served");
    for node in [&first, &second, &third] {
        close(node).await;
    }
}
