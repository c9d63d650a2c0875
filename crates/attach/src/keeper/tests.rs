//! The keeper's task, with a gateway that accepts connections and says nothing.

use super::*;
use crate::device::{DeviceKind, KernelOptions};
use crate::dir::DirError;
use crate::lease_file::LeaseFile;
use crate::machine::{Bounds, Cut, Cuts, Grant, Intake, Lane, Lost, Ticket, VolumeFacts};
use holdfast_nbd::client::CommandOut;
use holdfast_nbd::server::ReplyTo;
use holdfast_tls::Dialer;
use holdfast_types::{Epoch, Owner, Token};

const LIMIT: Duration = Duration::from_secs(20);
/// Where no gateway is.
const NOBODY: &str = "127.0.0.1:1";

type Heard<T> = mpsc::UnboundedReceiver<T>;

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LIMIT, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn vol(id: u32, size: u64) -> VolumeFacts {
    VolumeFacts { id, name: Name::new(format!("vol{id}")).unwrap(), size }
}

fn vol1(size: u64) -> VolumeFacts {
    vol(1, size)
}

fn grant(epoch: u64, address: &str) -> Grant {
    Grant {
        epoch: Epoch(epoch),
        token: Token(u128::from(epoch)),
        ttl: Duration::from_secs(600),
        gateway: "g1".into(),
        api: address.into(),
        nbd: address.into(),
    }
}

/// The set is granted by its question of that number, and connected.
fn serves(shared: &Shared, question: u128, epoch: u64) {
    let volumes = shared.all_facts().len();
    shared.act(|machine, now, out| {
        if question == 101 {
            machine.begin(now, false, out);
        }
        machine.granted(now, RequestId(question), grant(epoch, NOBODY), volumes, out);
        let incarnation = machine.incarnation();
        (0..volumes).for_each(|volume| machine.connected(now, Lane { incarnation, volume, slot: 0 }, out));
    });
    assert_eq!(shared.look(Machine::phase), Phase::Serving);
}

/// Where the lease of `keeper` is kept from now on.
fn keep(keeper: &mut Keeper, dir: &std::path::Path) -> Arc<LeaseFile> {
    let file = Arc::new(LeaseFile::open(dir).unwrap());
    let volumes: Vec<_> = keeper.shared.all_facts().into_iter().map(|facts| (facts, false)).collect();
    file.granted(&keeper.options.set, &keeper.options.owner, Token(1), &volumes).unwrap();
    keeper.kept = Some(file.clone());
    file
}

/// Volumes, by their place, that are lost.
fn lost(keeper: &Keeper) -> Vec<usize> {
    keeper.shared.look(|machine| machine.lost_volumes().keys().copied().collect())
}

/// Shrinks, each as volume, place and size, that a gateway tells of as of a place.
fn cuts(as_of: u64, cuts: &[(u32, u64, u64)]) -> Cuts {
    let cut = |&(volume, at, size): &(u32, u64, u64)| Cut { volume, at: Epoch(at), size };
    Cuts { as_of: Epoch(as_of), cuts: cuts.iter().map(cut).collect() }
}

/// A keeper of a set of these volumes, and what it is told by.
fn keeper(dir: &std::path::Path, address: &str, volumes: &[VolumeFacts]) -> (Keeper, Heard<Action>, Heard<News>) {
    let options = Options {
        set: Name::new("demo").unwrap(),
        owner: Owner::new("db1").unwrap(),
        locality: None,
        api: vec![address.to_string()],
        dialer: Dialer::default(),
        dir: dir.join("run"),
        ttl: None,
        force: false,
        connections: 1,
        bounds: Bounds::default(),
        device: DeviceKind::None,
        kernel: KernelOptions { sockets: 1, dead_timeout: Duration::from_secs(60) },
        patience: Duration::from_secs(60),
    };
    let machine = Machine::new(RequestId(100), 1, options.bounds);
    let (shared, actions) = Shared::new(options.set.clone(), machine, holdfast_host::boot_ns);
    shared.set_volumes(volumes);
    let doors = Arc::new(AdminClients::new(options.dialer.clone(), &options.api));
    let (news, told) = mpsc::unbounded_channel();
    let keeper = Keeper {
        sockets: Vec::new(),
        seams: Seams::default(),
        dir: RunDir::take(&options.dir).unwrap(),
        options,
        shared,
        doors,
        news,
        end: CancellationToken::new(),
        phase: Phase::Acquiring,
        since: unix_ms(),
        ready: false,
        unshown: false,
        devices: None,
        growing: Growing::default(),
        kept: None,
        left: None,
    };
    (keeper, actions, told)
}

/// The last answer is waited for, the devices are down: then another owner takes the set. Nothing is left to wait for.
#[tokio::test]
async fn a_set_that_is_fenced_while_it_detaches_says_so_at_once() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let (keeper, actions, told) = keeper(dir.path(), &address, &[vol1(1 << 20)]);
    let shared = keeper.shared.clone();
    let (stop, (ready, is_ready)) = (CancellationToken::new(), tokio::sync::oneshot::channel());
    let running = tokio::spawn(keeper.run(actions, told, stop.clone(), move |_| assert!(ready.send(()).is_ok())));
    let grant = grant(1, &address);
    until("asks for the lease", || {
        shared.act(|machine, now, out| machine.granted(now, RequestId(101), grant.clone(), 1, out));
        shared.look(Machine::phase) == Phase::Connecting
    })
    .await;
    shared.act(|machine, now, out| {
        machine.connected(now, Lane { incarnation: 1, volume: 0, slot: 0 }, out);
        let to = ReplyTo { cookie: 7, offset: 0, is_read: false };
        let ticket = Ticket { client: 0, to, narrow: false, len: 512 };
        let data = vec![1; 512].into();
        machine.request(now, 0, Intake { ticket, offset: 0, command: CommandOut::Write { fua: false }, data }, out);
    });
    tokio::time::timeout(LIMIT, is_ready).await.expect("ready in time").unwrap();
    stop.cancel();
    until("detaches", || shared.look(Machine::phase) == Phase::Detaching).await;
    // Whichever of its questions is on its way.
    (101..110).for_each(|id| shared.act(|machine, _, out| machine.refused(RequestId(id), "held by db2", out)));
    let ended = tokio::time::timeout(LIMIT, running).await.expect("ends at once").unwrap();
    assert_eq!(ended.unwrap(), Ended::Fenced { by: Some("held by db2".into()) });
}

/// GROWTH-G1: what the next process would not know of is not taken from clients, and so not told to the kernel.
#[tokio::test]
async fn a_size_that_cannot_be_kept_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("kept");
    std::fs::create_dir(&kept).unwrap();
    let (mut keeper, _actions, _told) = keeper(dir.path(), NOBODY, &[vol1(1 << 20)]);
    let file = keep(&mut keeper, &kept);
    serves(&keeper.shared, 101, 1);
    let volumes = |file: &LeaseFile| file.lease().and_then(|lease| lease.volumes());

    std::fs::rename(&kept, dir.path().join("away")).unwrap();
    keeper.follow(1, &[vol1(2 << 20)]);
    assert_eq!(keeper.shared.size(0), 1 << 20);
    assert_eq!(volumes(&file), Some(vec![vol1(1 << 20)]), "nor is it what a grant would keep");
    std::fs::rename(dir.path().join("away"), &kept).unwrap();
    keeper.follow(1, &[vol1(2 << 20)]);
    assert_eq!(keeper.shared.size(0), 1 << 20, "not asked for again at once");
    keeper.growing = Growing::default();
    keeper.follow(1, &[vol1(2 << 20)]);
    assert_eq!(keeper.shared.size(0), 2 << 20);
    assert_eq!(volumes(&LeaseFile::open(&kept).unwrap()), Some(vec![vol1(2 << 20)]));
}

#[tokio::test]
async fn a_lost_volume_does_not_grow() {
    let dir = tempfile::tempdir().unwrap();
    let (mut keeper, _actions, _told) = keeper(dir.path(), NOBODY, &[vol1(1 << 20)]);
    serves(&keeper.shared, 101, 1);
    keeper.shared.act(|machine, _, out| machine.lose(0, "volume vol1 was shrunk".to_string(), out));
    keeper.follow(1, &[vol1(2 << 20)]);
    assert_eq!(keeper.shared.size(0), 1 << 20, "ATTACH-M8");
}

/// GROWTH-G3: what was discarded is gone, whatever size the volume has by the next grant.
#[tokio::test]
async fn a_volume_that_shrinks_and_grows_while_it_is_connected_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("kept");
    std::fs::create_dir(&kept).unwrap();
    let (mut keeper, _actions, _told) = keeper(dir.path(), NOBODY, &[vol(1, 1 << 20), vol(2, 1 << 20)]);
    let file = keep(&mut keeper, &kept);
    serves(&keeper.shared, 101, 1);
    keeper.follow(1, &[vol(1, 1 << 19), vol(2, 1 << 20)]);
    keeper.follow(1, &[vol(1, 2 << 20), vol(2, 2 << 20)]);
    assert_eq!(lost(&keeper), [0]);
    assert_eq!((keeper.shared.size(0), keeper.shared.size(1)), (1 << 20, 2 << 20), "the other one grows");
    let next = || {
        let lease = LeaseFile::open(&kept).unwrap().lease().unwrap();
        let lost: Vec<_> = lease.lost().map(|(volume, _)| volume).collect();
        (lease.volumes().unwrap(), lost)
    };
    assert_eq!(next(), (vec![vol(1, 1 << 20), vol(2, 2 << 20)], vec![0]), "the next process knows of both");

    // One that cannot be noted is lost all the same: what is answered from then on must be right.
    std::fs::rename(&kept, dir.path().join("away")).unwrap();
    keeper.follow(1, &[vol(1, 2 << 20)]);
    assert_eq!((lost(&keeper), keeper.shared.look(Machine::phase)), (vec![0, 1], Phase::Fenced), "none is left");
    assert_eq!(file.lease().map(|lease| lease.lost().count()), Some(1));
}

/// GROWTH-G3: also between two renewals, of which neither says a smaller size.
#[tokio::test]
async fn a_volume_that_shrinks_and_grows_between_two_renewals_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, _actions, _told) = keeper(dir.path(), NOBODY, &[vol(1, 1 << 20), vol(2, 1 << 20)]);
    serves(&keeper.shared, 101, 10);
    keeper.shared.saw_cuts(Epoch(10));
    assert!(!keeper.see_cuts(2, &cuts(11, &[(1, 11, 0)])), "GROWTH-G4");
    assert!(keeper.see_cuts(1, &cuts(12, &[(1, 10, 0), (2, 12, 1 << 20)])));
    assert!(lost(&keeper).is_empty(), "of before, and nothing was taken from a device");
    assert!(keeper.see_cuts(1, &cuts(22, &[(1, 10, 0), (2, 12, 1 << 20), (1, 20, 1 << 19)])));
    assert_eq!(lost(&keeper), [0]);
}

/// GROWTH-G5: a gateway that has forgotten a shrink names what the volume grew to, and the next one remembers it.
#[tokio::test]
async fn a_shrink_of_before_a_device_grew_fails_no_device() {
    let dir = tempfile::tempdir().unwrap();
    let (mut keeper, _actions, _told) = keeper(dir.path(), NOBODY, &[vol1(1 << 20)]);
    serves(&keeper.shared, 101, 10);
    keeper.shared.saw_cuts(Epoch(10));
    assert!(keeper.see_cuts(1, &cuts(13, &[])));
    keeper.follow(1, &[vol1(4 << 20)]);
    assert!(keeper.see_cuts(1, &cuts(14, &[(1, 12, 2 << 20)])));
    assert_eq!((keeper.shared.size(0), lost(&keeper)), (4 << 20, vec![]));
    assert!(keeper.see_cuts(1, &cuts(22, &[(1, 12, 2 << 20), (1, 21, 2 << 20)])));
    assert_eq!(lost(&keeper), [0], "a later one counts");
}

/// GROWTH-G4: an answer waits in a queue, and the set may be lost and granted anew meanwhile.
#[tokio::test]
async fn what_was_named_before_a_loss_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (mut keeper, _actions, _told) = keeper(dir.path(), NOBODY, &[vol1(1 << 20)]);
    serves(&keeper.shared, 101, 1);
    let unmoved = |keeper: &mut Keeper, when: &str| {
        for size in [2 << 20, 1 << 19] {
            keeper.follow(1, &[vol1(size)]);
            assert_eq!((keeper.shared.size(0), lost(keeper)), (1 << 20, vec![]), "{when}: {size}");
        }
    };
    keeper.shared.act(|machine, now, out| machine.lost(now, 1, &Lost::Connection("reset".into()), out));
    unmoved(&mut keeper, "while the lease is being continued");
    serves(&keeper.shared, 102, 2);
    unmoved(&mut keeper, "granted anew");
    keeper.follow(2, &[vol1(2 << 20)]);
    assert_eq!(keeper.shared.size(0), 2 << 20);
}

/// A process that hangs in a flush cannot be killed. Until a gateway answers, the next process can go on with the
/// devices.
#[tokio::test]
async fn devices_are_flushed_once_a_gateway_answers() {
    let dir = tempfile::tempdir().unwrap();
    let (mut keeper, _actions, mut told) = keeper(dir.path(), NOBODY, &[vol1(1 << 20)]);
    let (shared, kept) = (keeper.shared.clone(), dir.path().join("kept"));
    std::fs::create_dir(&kept).unwrap();
    serves(&shared, 101, 1);
    let file = keep(&mut keeper, &kept);
    keeper.devices = Some(Devices::Kernel(Vec::new()));
    shared.act(|machine, now, out| machine.lost(now, 1, &Lost::Connection("reset".into()), out));
    assert!(!are_answered(&shared, Instant::now() + Duration::from_millis(50)).await);
    keeper.stop_devices();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(told.try_recv().is_err(), "they are flushed, and nobody answers");
    assert!(file.lease().is_some());
    serves(&shared, 102, 2);
    until("flushed", || matches!(told.try_recv(), Ok(News::DevicesStopped))).await;
    assert!(file.lease().is_none());
    // Sockets have no cache, and wait for nobody.
    keeper.devices = Some(Devices::None);
    shared.act(|machine, now, out| machine.lost(now, 2, &Lost::Connection("reset".into()), out));
    keeper.stop_devices();
    until("stopped", || matches!(told.try_recv(), Ok(News::DevicesStopped))).await;
}

#[test]
fn a_clock_that_was_set_to_its_beginning_breaks_nothing() {
    assert_eq!(before(10_000, Duration::from_millis(1)), 9_999);
    assert_eq!(before(500, Duration::from_secs(3)), 0);
}

/// KERNEL-K3: devices may wait for this process. A lease that cannot be read is no reason to disconnect them.
#[tokio::test]
async fn a_lease_that_cannot_be_read_ends_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, _actions, _told) = keeper(dir.path(), NOBODY, &[]);
    let lease = keeper.dir.path().join("lease.json");
    std::fs::create_dir(&lease).unwrap();
    for device in [DeviceKind::Kernel, DeviceKind::None] {
        let options = Options { device, ..keeper.options.clone() };
        let error = earlier(&options, keeper.dir.path()).await.unwrap_err();
        assert!(matches!(error, AttachError::Dir(DirError::Lease { .. })), "{error}");
        assert!(lease.exists());
    }
}
