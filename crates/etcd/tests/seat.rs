//! What a pair relies on, against a real etcd on loopback: the seat belongs to one gateway at a time, its revision
//! grows, and a gateway that lost it is told so; if two gateways replace the roster at once, no entry is lost. Without
//! an `etcd` (Debian's etcd-server), the tests report that they were skipped.

use holdfast_etcd::{EtcdError, EtcdOptions, Holder, KeepAliveResult, RosterKey, RosterText, Seat, Tenancy};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

const TTL: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(30);

struct Etcd {
    dir: tempfile::TempDir,
    port: u16,
    child: Child,
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Two ports in a row on which nobody listens, and which no other test of this process takes.
fn free_ports() -> u16 {
    static TAKEN: Mutex<Option<u16>> = Mutex::new(None);
    let mut taken = TAKEN.lock().unwrap();
    let mut first = taken.unwrap_or(14_000 + u16::try_from(std::process::id() % 8_000).unwrap());
    loop {
        first += 2;
        let row: Vec<_> = (first..first + 2).filter_map(|port| TcpListener::bind(("127.0.0.1", port)).ok()).collect();
        if row.len() == 2 {
            *taken = Some(first);
            return first;
        }
    }
}

fn launch(dir: &Path, port: u16) -> std::io::Result<Child> {
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", port + 1));
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(dir.join("etcd")).args(["--name", "t", "--log-level", "error"]);
    command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("t={peer}")]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

impl Etcd {
    /// `None`: etcd is not installed; that was reported.
    async fn start() -> Option<Self> {
        let (dir, port) = (tempfile::tempdir().unwrap(), free_ports());
        let child = match launch(dir.path(), port) {
            Ok(child) => child,
            Err(error) => {
                holdfast_testkit::missing(&format!("etcd does not start: {error}"));
                return None;
            }
        };
        let etcd = Self { dir, port, child };
        etcd.ready().await;
        Some(etcd)
    }

    async fn ready(&self) {
        let mut seat = self.seat();
        until("it answers", async || seat.look().await.ok()).await;
    }

    async fn restart(&mut self) {
        self.child = launch(self.dir.path(), self.port).unwrap();
        self.ready().await;
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn options(&self) -> EtcdOptions {
        EtcdOptions { endpoints: vec![format!("http://127.0.0.1:{}", self.port)], ..EtcdOptions::default() }
    }

    fn seat(&self) -> Seat {
        Seat::new(&self.options(), "/test/", "db", TTL).unwrap()
    }

    fn roster(&self) -> RosterKey {
        RosterKey::new(&self.options(), "/test/", "db").unwrap()
    }

    fn ctl(&self, args: &[&str]) -> String {
        let at = format!("http://127.0.0.1:{}", self.port);
        let output = Command::new("etcdctl").env("ETCDCTL_API", "3").args(["--endpoints", &at]).args(args).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }
}

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

fn holder(name: &str) -> Holder {
    Holder::new(name.into(), "127.0.0.1:1".into(), "127.0.0.1:2".into(), 7)
}

async fn take(seat: &mut Seat, name: &str) -> Tenancy {
    seat.take(&holder(name)).await.unwrap().expect("the seat is free")
}

#[tokio::test]
async fn the_seat_is_one_gateways_at_a_time() {
    let Some(etcd) = Etcd::start().await else { return };
    let (mut a, mut b) = (etcd.seat(), etcd.seat());
    assert_eq!(a.key(), "/test/pairs/db/seat");
    assert_eq!(a.look().await.unwrap(), None);
    let held = take(&mut a, "a").await;
    assert_eq!(held.ttl, TTL);
    let there = b.look().await.unwrap().unwrap();
    assert_eq!((there.holder, there.revision, there.etcd), (Some(holder("a")), held.revision, held.etcd));
    assert_eq!(b.take(&holder("b")).await.unwrap(), None, "it is a's");
    // The gateway that came too late leaves no lease behind.
    assert_eq!(etcd.ctl(&["lease", "list"]).lines().count(), 2, "one lease: {}", etcd.ctl(&["lease", "list"]));
    assert_eq!(a.keep(&held).await.unwrap(), KeepAliveResult::For(TTL));
    a.give_up(&held).await.unwrap();
    a.give_up(&held).await.unwrap();
    assert_eq!(b.look().await.unwrap(), None);
    assert_eq!(a.keep(&held).await.unwrap(), KeepAliveResult::Lost("there is no such lease".into()));
    let next = take(&mut b, "b").await;
    assert!(next.revision > held.revision, "{} after {}", next.revision, held.revision);
    assert_eq!(next.etcd, held.etcd);
    // A pair of another name has a seat of its own.
    let mut other = Seat::new(&etcd.options(), "/test", "web", TTL).unwrap();
    assert!(other.take(&holder("c")).await.unwrap().is_some());
}

/// All ask at once, repeatedly: there are never two holders.
#[tokio::test]
async fn of_many_who_ask_at_once_one_gets_it() {
    let Some(etcd) = Etcd::start().await else { return };
    let mut last = 0;
    for round in 0..10 {
        let mut asking = tokio::task::JoinSet::new();
        for n in 0..8 {
            let mut seat = etcd.seat();
            asking.spawn(async move { seat.take(&holder(&format!("g{n}"))).await.map(|held| (seat, held)) });
        }
        let mut won = Vec::new();
        while let Some(asked) = asking.join_next().await {
            if let (mut seat, Some(held)) = asked.unwrap().unwrap() {
                assert_eq!(seat.keep(&held).await.unwrap(), KeepAliveResult::For(TTL));
                won.push((seat, held));
            }
        }
        assert_eq!(won.len(), 1, "round {round}");
        let (mut seat, held) = won.remove(0);
        assert!(held.revision > last);
        last = held.revision;
        seat.give_up(&held).await.unwrap();
    }
}

#[tokio::test]
async fn who_falls_silent_loses_it_and_hears_so() {
    let Some(etcd) = Etcd::start().await else { return };
    let (mut a, mut b) = (etcd.seat(), etcd.seat());
    let begun = Instant::now();
    let held = take(&mut a, "a").await;
    let next = until("the lease expires", async || b.take(&holder("b")).await.unwrap()).await;
    assert!(begun.elapsed() >= TTL, "SEAT-F2: another one had the seat after {:?}", begun.elapsed());
    assert!(next.revision > held.revision);
    assert_eq!(a.keep(&held).await.unwrap(), KeepAliveResult::Lost("there is no such lease".into()));
    assert_eq!(b.keep(&next).await.unwrap(), KeepAliveResult::For(TTL));
}

/// The lease lives, but its key does not: a person took the seat away.
#[tokio::test]
async fn a_key_that_was_deleted_by_hand_is_noticed() {
    let Some(etcd) = Etcd::start().await else { return };
    let (mut a, mut b) = (etcd.seat(), etcd.seat());
    let held = take(&mut a, "a").await;
    etcd.ctl(&["del", "/test/pairs/db/seat"]);
    assert_eq!(a.keep(&held).await.unwrap(), KeepAliveResult::Lost("its key is gone".into()));
    let next = take(&mut b, "b").await;
    let KeepAliveResult::Lost(why) = a.keep(&held).await.unwrap() else { panic!("kept what is b's") };
    assert!(why.contains(&format!("revision {}", next.revision)), "{why}");
    // A foreign text under the key is not a seat of ours, and is not taken over.
    b.give_up(&next).await.unwrap();
    etcd.ctl(&["put", "/test/pairs/db/seat", "mine"]);
    assert_eq!(a.look().await.unwrap().unwrap().holder, None);
    assert_eq!(a.take(&holder("a")).await.unwrap(), None);
    assert_eq!(etcd.ctl(&["get", "--print-value-only", "/test/pairs/db/seat"]).trim(), "mine");
}

#[tokio::test]
async fn an_etcd_that_was_killed_keeps_the_seat_for_its_lease() {
    let Some(mut etcd) = Etcd::start().await else { return };
    let (mut a, mut b) = (etcd.seat(), etcd.seat());
    let held = take(&mut a, "a").await;
    etcd.kill();
    a.keep(&held).await.unwrap_err();
    b.look().await.unwrap_err();
    b.take(&holder("b")).await.unwrap_err();
    etcd.restart().await;
    let kept = until("it is reached again", async || a.keep(&held).await.ok()).await;
    assert_eq!(kept, KeepAliveResult::For(TTL));
    assert_eq!(b.look().await.unwrap().unwrap().revision, held.revision);
}

/// The roster with one more gateway.
fn and(gateway: String) -> impl Fn(Option<&RosterText>) -> Result<RosterText, Infallible> {
    move |found| {
        let mut gateways = found.map(|text| text.gateways.clone()).unwrap_or_default();
        gateways.insert(gateway.clone(), 8);
        Ok(RosterText::new(1, gateways))
    }
}

#[tokio::test]
async fn of_many_who_replace_the_roster_at_once_none_is_lost() {
    let Some(etcd) = Etcd::start().await else { return };
    let mut roster = etcd.roster();
    assert_eq!(roster.key(), "/test/pairs/db/roster");
    assert_eq!(roster.read().await.unwrap(), None);
    let mut asking = tokio::task::JoinSet::new();
    for n in 0..4 {
        let mut roster = etcd.roster();
        // The three others can come first three times at most, which is fewer than its tries.
        asking.spawn(async move { roster.change(and(format!("g{n}"))).await });
    }
    while let Some(asked) = asking.join_next().await {
        asked.unwrap().unwrap().unwrap();
    }
    let all: BTreeMap<String, u32> = (0..4).map(|n| (format!("g{n}"), 8)).collect();
    assert_eq!(roster.read().await.unwrap(), Some(RosterText::new(1, all.clone())));
    // If nothing changes, nothing is written.
    let revision = || etcd.ctl(&["get", "/test/pairs/db/roster", "--write-out", "fields"]);
    let before = revision();
    assert!(before.contains("\"ModRevision\""), "{before}");
    assert_eq!(roster.change(and("g0".into())).await.unwrap().unwrap(), RosterText::new(1, all));
    assert_eq!(revision(), before);
}

#[tokio::test]
async fn what_is_refused_or_is_no_roster_stays() {
    let Some(etcd) = Etcd::start().await else { return };
    let mut roster = etcd.roster();
    roster.change(and("g0".into())).await.unwrap().unwrap();
    let refused = roster.change(|found| Err::<RosterText, u32>(found.map_or(0, |text| text.gateways["g0"]))).await;
    assert_eq!(refused.unwrap(), Err(8));
    assert_eq!(roster.read().await.unwrap().unwrap().gateways.len(), 1);
    etcd.ctl(&["put", "/test/pairs/db/roster", "mine"]);
    let foreign = roster.change(and("g1".into())).await.unwrap_err();
    assert!(matches!(foreign, EtcdError::NoRoster { .. }), "{foreign}");
    assert_eq!(etcd.ctl(&["get", "--print-value-only", "/test/pairs/db/roster"]).trim(), "mine");
}
