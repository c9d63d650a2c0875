//! The keeper's task, with a gateway that accepts connections and says nothing.

use super::*;
use crate::machine::{Grant, Intake, Lane, Ticket};
use holdfast_nbd::client::CommandOut;
use holdfast_nbd::server::ReplyTo;
use holdfast_types::{Epoch, Token};

const LIMIT: Duration = Duration::from_secs(20);

type Heard<T> = mpsc::UnboundedReceiver<T>;

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < LIMIT, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn vol1(size: u64) -> VolumeFacts {
    VolumeFacts { id: 1, name: Name::new("vol1").unwrap(), size }
}

/// A keeper of a set of one volume, and what it is told by.
fn keeper(dir: &std::path::Path, address: &str) -> (Keeper, Heard<Action>, Heard<News>) {
    let options = Options {
        set: Name::new("demo").unwrap(),
        owner: Owner::new("db1").unwrap(),
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
    let (shared, actions) = Shared::new(options.set.clone(), machine, crate::seams::boot_ns);
    shared.set_volumes(&[vol1(1 << 20)]);
    let doors = Arc::new(Doors::new(options.dialer.clone(), &options.api));
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
    let (keeper, actions, told) = keeper(dir.path(), &address);
    let shared = keeper.shared.clone();
    let (stop, (ready, is_ready)) = (CancellationToken::new(), tokio::sync::oneshot::channel());
    let running = tokio::spawn(keeper.run(actions, told, stop.clone(), move |_| assert!(ready.send(()).is_ok())));
    let grant = Grant {
        epoch: Epoch(1),
        token: Token(1),
        ttl: Duration::from_secs(600),
        gateway: "g1".into(),
        api: address.clone(),
        nbd: address,
    };
    until("asks for the lease", || {
        shared.act(|machine, now, out| machine.granted(now, RequestId(101), grant.clone(), 1, out));
        shared.look(Machine::phase) == Phase::Connecting
    })
    .await;
    shared.act(|machine, now, out| {
        machine.connected(now, Lane { generation: 1, volume: 0, slot: 0 }, out);
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

/// G1: what the next process would not know of is not taken from clients, and so not told to the kernel.
#[tokio::test]
async fn a_size_that_cannot_be_kept_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let kept = dir.path().join("kept");
    std::fs::create_dir(&kept).unwrap();
    let (mut keeper, _actions, _told) = keeper(dir.path(), "127.0.0.1:1");
    let file = LeaseFile::open(&kept);
    file.granted(&keeper.options.set, &keeper.options.owner, Token(1), &[(vol1(1 << 20), false)]).unwrap();
    keeper.kept = Some(Arc::new(file));

    std::fs::rename(&kept, dir.path().join("away")).unwrap();
    keeper.follow(&[vol1(2 << 20)]);
    assert_eq!(keeper.shared.size(0), 1 << 20);
    std::fs::rename(dir.path().join("away"), &kept).unwrap();
    keeper.follow(&[vol1(2 << 20)]);
    assert_eq!(keeper.shared.size(0), 1 << 20, "not asked for again at once");
    keeper.growing = Growing::default();
    keeper.follow(&[vol1(2 << 20)]);
    keeper.follow(&[vol1(1 << 20)]);
    assert_eq!(keeper.shared.size(0), 2 << 20, "G3: it shrinks by nothing");
    let next = LeaseFile::open(&kept).lease().and_then(|lease| lease.volumes());
    assert_eq!(next, Some(vec![vol1(2 << 20)]));
}

#[tokio::test]
async fn a_lost_volume_does_not_grow() {
    let dir = tempfile::tempdir().unwrap();
    let (mut keeper, _actions, _told) = keeper(dir.path(), "127.0.0.1:1");
    keeper.shared.act(|machine, _, out| machine.lose(0, "volume vol1 was shrunk".to_string(), out));
    keeper.follow(&[vol1(2 << 20)]);
    assert_eq!(keeper.shared.size(0), 1 << 20, "M8");
}

#[test]
fn a_clock_that_was_set_to_its_beginning_breaks_nothing() {
    assert_eq!(before(10_000, Duration::from_millis(1)), 9_999);
    assert_eq!(before(500, Duration::from_secs(3)), 0);
}
