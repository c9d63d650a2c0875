//! The task with a host in memory: the calls that it makes, their order, and its answers over HTTP meanwhile.

use super::*;
use crate::config::WatchdogMode;
use crate::host::{NotDone, PoolUsers};
use crate::machine::{AttachEnd, AttachView, DatabaseView, Found, LeaseView, Role, Stop};
use holdfast_types::MonoTime;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

#[path = "disk_tests.rs"]
mod disk;
#[path = "switchover_tests.rs"]
mod switchovers;
#[path = "token_tests.rs"]
mod tokens;

#[derive(Debug, Default)]
struct World {
    /// Owner of the lease, and its epoch.
    lease: Option<(String, u64)>,
    /// No gateway answers.
    no_gateway: bool,
    /// What an earlier agent left.
    found: Found,
    attached: Option<AttachView>,
    ended: Option<AttachEnd>,
    mounted: bool,
    running: bool,
    refuse_import: bool,
    /// Why PostgreSQL is not started.
    refuse_start: Option<String>,
    /// Processes that have the pool open before a switchover.
    openers: Vec<String>,
    /// How often they were looked for: at each try of a switchover.
    looked: u32,
    /// Reason why the pool is not exported.
    in_use: Option<String>,
    /// Text about files that do not lie on the set.
    off_set: String,
    /// Something of another owner that already exists.
    foreign: Option<String>,
    /// PostgreSQL may run, by the last sign of life.
    may_run: bool,
    /// The machine's watchdog is asked to count.
    guarded: bool,
    /// Why it does not.
    no_watchdog: Option<String>,
    /// Why the pool could not be imported on this host.
    unable: String,
    left_alone: bool,
    /// The file of the history, whose lines are counted at a reboot.
    history: PathBuf,
    did: Vec<String>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<World>>);

impl Fake {
    fn world<T>(&self, see: impl FnOnce(&mut World) -> T) -> T {
        see(&mut self.0.lock().unwrap())
    }

    fn did(&self, what: impl Into<String>) {
        self.world(|world| world.did.push(what.into()));
    }
}

impl Host for Fake {
    async fn found(&self) -> Result<Found, String> {
        self.world(|world| world.foreign.clone().map_or(Ok(world.found), Err))
    }

    async fn lease(&self) -> LeaseView {
        self.world(|world| match &world.lease {
            _ if world.no_gateway => LeaseView::Unreachable,
            None => LeaseView::Free,
            Some((owner, epoch)) => {
                let (remaining, ttl) = (Duration::from_secs(3), Duration::from_secs(3));
                LeaseView::Held { owner: owner.clone(), epoch: *epoch, remaining, ttl }
            }
        })
    }

    async fn attach(&self, force: bool) -> Result<(), String> {
        self.did(format!("attach{}", if force { " by force" } else { "" }));
        self.world(|world| {
            let epoch = world.lease.as_ref().map_or(0, |lease| lease.1) + 1;
            world.lease = Some(("db1".into(), epoch));
            let renewed = Some(clock::now());
            world.attached = Some(AttachView {
                phase: AttachPhase::Serving,
                epoch,
                renewed,
                ttl: None,
                fenced_by: String::new(),
                lost: Vec::new(),
            });
            world.ended = None;
        });
        Ok(())
    }

    async fn attach_look(&self) -> AttachLook {
        self.world(|world| {
            if let Some(end) = &world.ended {
                return AttachLook::Ended(end.clone());
            }
            match &mut world.attached {
                Some(view) => {
                    if view.phase == AttachPhase::Serving {
                        view.renewed = Some(clock::now());
                    }
                    AttachLook::Runs(view.clone())
                }
                None => AttachLook::None,
            }
        })
    }

    async fn detach(&self, hard: bool) -> Result<(), String> {
        self.did(if hard { "detach hard" } else { "detach" });
        self.world(|world| {
            assert!(!world.mounted, "AGENT-A2: detached under a mounted pool");
            world.attached = None;
            if !hard {
                world.lease = None;
            }
        });
        Ok(())
    }

    async fn import(&self, force: bool) -> Result<(), String> {
        self.did(if force { "import -f" } else { "import" });
        self.world(|world| {
            if world.refuse_import {
                return Err("no such pool".to_string());
            }
            world.mounted = true;
            Ok(())
        })
    }

    fn pool_look(&self) -> crate::host::PoolLook {
        self.world(|world| crate::host::PoolLook {
            unable: world.unable.clone(),
            off_set: world.off_set.clone(),
            ..Default::default()
        })
    }

    async fn openers(&self) -> PoolUsers {
        self.world(|world| {
            world.looked += 1;
            PoolUsers { staying: world.openers.clone(), leaving: Vec::new() }
        })
    }

    async fn export(&self, hard: bool) -> Result<(), NotDone> {
        self.did(if hard { "export hard" } else { "export" });
        self.world(|world| {
            assert!(!world.running, "AGENT-A2: exported under a running PostgreSQL");
            if !hard && let Some(why) = world.in_use.clone() {
                return Err(NotDone::Refused(why));
            }
            world.mounted = false;
            Ok(())
        })
    }

    async fn arm(&self) -> Result<(), String> {
        self.did("arm");
        self.world(|world| {
            assert!(world.guarded, "it is waited for what nobody asked for");
            world.no_watchdog.clone().map_or(Ok(()), Err)
        })
    }

    async fn start_database(&self) -> Result<(), NotDone> {
        self.did("start");
        self.world(|world| {
            assert!(world.may_run, "TASK-N3: started before the watchdog was told");
            if let Some(why) = world.refuse_start.clone() {
                return Err(NotDone::Refused(why));
            }
            world.running = true;
            Ok(())
        })
    }

    async fn stop_database(&self, how: Stop) -> Result<(), String> {
        self.did(format!("stop {how:?}"));
        self.world(|world| world.running = false);
        Ok(())
    }

    async fn probe(&self) -> Option<DatabaseView> {
        self.world(|world| Some(if world.running { DatabaseView::Ready } else { DatabaseView::Gone }))
    }

    async fn checkpoint(&self) -> Result<(), String> {
        self.did("checkpoint");
        Ok(())
    }

    async fn first_write(&self) -> Result<(), String> {
        self.did("first write");
        Ok(())
    }

    fn hook_role(&self, role: Role, _epoch: u64) {
        self.did(format!("hook {role:?}"));
    }

    fn hook_event(&self, _line: &str, _role: Role, _epoch: u64) {}

    fn reboot(&self, _why: &str) {
        let file = self.world(|world| world.history.clone());
        self.did(format!("reboot after {} lines", std::fs::read_to_string(file).unwrap_or_default().lines().count()));
    }

    fn alive(&self, may_run_until: Option<MonoTime>, _ttl_ms: u64, guarded: bool) {
        self.world(|world| {
            (world.may_run, world.left_alone, world.guarded) = (may_run_until.is_some(), false, guarded);
        });
    }

    fn left_alone(&self, may_run_until: Option<MonoTime>, _ttl_ms: u64, guarded: bool) {
        self.world(|world| (world.may_run, world.left_alone, world.guarded) = (may_run_until.is_some(), true, guarded));
    }
}

struct Lab {
    fake: Fake,
    address: String,
    /// The agent's Unix socket.
    socket: String,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<(), RunError>>,
    dir: tempfile::TempDir,
}

async fn lab(fake: Fake, turn: impl FnOnce(&mut AgentConfig)) -> Lab {
    let dir = tempfile::tempdir().unwrap();
    let mut config = AgentConfig { name: "db1".into(), ..AgentConfig::default() };
    (config.dir, config.run_dir) = (dir.path().join("dir"), dir.path().join("run"));
    config.lease.eager_poll_ms = 20;
    config.database.probe_ms = 100;
    turn(&mut config);
    std::fs::create_dir_all(&config.dir).unwrap();
    let (traces, exporter) = traced::open(&config).unzip();
    if let Some(exporter) = exporter {
        tokio::spawn(exporter.run_every(Duration::from_millis(20)));
    }
    let history = History::open(&config.dir).unwrap().beside().traced(traces);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    run_dir::make(&config.run_dir, watchdog::AGENT_LOCK).unwrap();
    let socket = config.run_dir.join(local::SOCKET);
    let local = local::listen(&config.run_dir).unwrap();
    let local = Some((socket.clone(), local.into()));
    let doors = Doors { tcp: listener.into(), local, tls: None, compares: false, audit: None };
    // The same on all hosts: agents ask one another over TCP.
    let token = Some("secret".into());
    let agent = Agent::over(config, Arc::new(fake.clone()), history, doors, token, client::over_tcp());
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async move { drop(stopped.await) };
    let running = tokio::spawn(agent.run(stopped, || Ok(())));
    let socket = socket.display().to_string();
    Lab { fake, address, socket, stop: Some(stop), running, dir }
}

impl Lab {
    async fn get(&self, path: &str) -> (u16, String) {
        let answer = crate::client::ask(&self.address, path, None, None, Duration::from_secs(20)).await.unwrap();
        (answer.code, answer.body)
    }

    async fn post(&self, path: &str, body: serde_json::Value) -> (u16, String) {
        let answer = crate::client::ask(&self.socket, path, Some(&body), None, Duration::from_secs(20)).await.unwrap();
        (answer.code, answer.words())
    }

    /// Waits until the agent is in this state.
    async fn state(&self, wanted: &str) {
        let begun = std::time::Instant::now();
        loop {
            let (_, body) = self.get("/status").await;
            if body.contains(&format!("\"state\":\"{wanted}\"")) {
                return;
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "not {wanted}: {body}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn did(&self) -> Vec<String> {
        self.fake.world(|world| std::mem::take(&mut world.did))
    }

    async fn end(&mut self) {
        drop(self.stop.take());
        tokio::time::timeout(Duration::from_secs(30), &mut self.running).await.unwrap().unwrap().unwrap();
    }
}

const UP: [&str; 5] = ["attach", "import", "start", "first write", "hook Primary"];

#[tokio::test]
async fn a_free_lease_is_taken_and_given_back_in_order() {
    let mut lab = lab(Fake::default(), |_| {}).await;
    lab.state("primary").await;
    assert_eq!(lab.did(), UP);
    assert_eq!(lab.get("/primary").await.0, 200);
    assert!(lab.get("/history").await.1.contains("\"event\":\"start\""));
    lab.end().await;
    assert_eq!(lab.did(), ["hook Standby", "stop Fast", "export", "detach"]);
    assert!(!lab.fake.world(|world| world.may_run || world.left_alone));
}

/// In the trace that the gateway's grant has.
#[tokio::test]
async fn the_phases_of_a_takeover_reach_the_collector() {
    use holdfast_traces::{TraceId, receiver};
    let mut collector = receiver::Receiver::start().await;
    let endpoint = collector.endpoint.clone();
    let mut lab = lab(Fake::default(), |config| config.traces.endpoint = Some(endpoint)).await;
    let names = ["takeover", "takeover.lease", "takeover.device", "takeover.pool", "takeover.first_write"];
    let spans = tokio::time::timeout(Duration::from_secs(30), collector.spans(&names)).await.unwrap();
    let whole = &spans["takeover"];
    let [to, event, epoch] = ["to", "event", "epoch"].map(|key| receiver::attribute(whole, key));
    assert_eq!((to.as_str(), event.as_str()), ("db1", "start"));
    assert_eq!(whole.trace_id, TraceId::of_grant("demo", "db1", epoch.parse().unwrap()).bytes());
    lab.end().await;
}

#[tokio::test]
async fn a_standby_waits_until_it_is_told_to_take_over() {
    let fake = Fake::default();
    fake.world(|world| world.lease = Some(("db2".into(), 8)));
    let mut lab = lab(fake, |_| {}).await;
    lab.state("standby").await;
    assert_eq!(lab.get("/primary").await.0, 503);
    let begun = std::time::Instant::now();
    while lab.get("/readiness").await.0 != 200 {
        assert!(begun.elapsed() < Duration::from_secs(30), "the lease is never seen");
    }
    // db2 is no agent's host that could be asked how it does.
    let (code, why) = lab.post("/failover", serde_json::json!({ "reason": "test" })).await;
    assert!(code == 412 && why.contains("--allow-data-loss"), "{code}: {why}");
    assert!(lab.did().is_empty());
    let wanted = serde_json::json!({ "reason": "test", "allow_data_loss": true });
    assert_eq!(lab.post("/failover", wanted).await.0, 200);
    lab.state("primary").await;
    assert!(lab.get("/history").await.1.contains("data loss allowed"));
    assert_eq!(lab.did(), ["attach by force", "import -f", "start", "first write", "hook Primary"]);
    lab.end().await;
}

/// HEALTH-H2: any user of this host reaches loopback. Root finds the socket in what everybody may read.
#[tokio::test]
async fn commands_of_this_host_go_over_the_socket_alone() {
    let mut lab = lab(Fake::default(), |_| {}).await;
    lab.state("primary").await;
    let limit = Duration::from_secs(20);
    let pause = async |address: &str| {
        crate::client::ask(address, "/pause", Some(&serde_json::json!({})), None, limit).await.unwrap()
    };
    let refused = pause(&lab.address).await;
    assert_eq!(refused.code, 403, "{refused:?}");
    assert!(refused.words().contains("--token-file") && refused.words().contains("as root"), "{}", refused.words());
    let seen: View = serde_json::from_str(&lab.get("/status").await.1).unwrap();
    assert!(!seen.paused && seen.added.socket == lab.socket, "{seen:?}");
    assert_eq!(pause(&seen.added.socket).await.code, 200);
    assert!(serde_json::from_str::<View>(&lab.get("/status").await.1).unwrap().paused);
    assert_eq!(lab.post("/resume", serde_json::json!({})).await.0, 200);
    lab.end().await;
}

#[tokio::test]
async fn fenced_it_kills_and_lets_go_before_it_stands_by() {
    let mut lab = lab(Fake::default(), |config| config.takeover.backoff_min_ms = 60_000).await;
    lab.state("primary").await;
    lab.did();
    lab.fake.world(|world| {
        world.lease = Some(("db2".into(), 9));
        if let Some(view) = &mut world.attached {
            (view.phase, view.fenced_by) = (AttachPhase::Fenced, "db2".into());
        }
    });
    lab.state("standby").await;
    assert_eq!(lab.did(), ["hook Standby", "stop Kill", "export hard", "detach hard"]);
    assert!(lab.get("/history").await.1.contains("fenced by db2"));
    lab.end().await;
}

#[tokio::test]
async fn a_takeover_that_fails_lets_go_again() {
    let fake = Fake::default();
    fake.world(|world| world.refuse_import = true);
    let mut lab = lab(fake, |config| config.takeover.backoff_min_ms = 60_000).await;
    let begun = std::time::Instant::now();
    while !lab.get("/history").await.1.contains("takeover-failed") {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    lab.state("standby").await;
    assert_eq!(lab.did(), ["attach", "import", "export", "detach"]);
    lab.end().await;
}

#[tokio::test]
async fn a_pause_outlives_the_agent_and_leaves_postgresql_alone() {
    let mut lab = lab(Fake::default(), |_| {}).await;
    lab.state("primary").await;
    assert_eq!(lab.post("/pause", serde_json::json!({})).await.0, 200);
    assert!(lab.dir.path().join("dir/paused").exists());
    lab.did();
    lab.end().await;
    assert_eq!(lab.did(), Vec::<String>::new());
    assert!(lab.fake.world(|world| world.running && world.may_run && world.left_alone));
}

/// A file system that a person mounted there, or a pool that was there before: an agent that starts is no reason to
/// stop what stands on it.
#[tokio::test]
async fn what_is_not_ours_is_named_and_left_alone() {
    let fake = Fake::default();
    fake.world(|world| world.foreign = Some("/srv/pg: found /dev/sda1 mounted there".into()));
    let mut lab = lab(fake, |_| {}).await;
    let ended = tokio::time::timeout(Duration::from_secs(30), &mut lab.running).await.unwrap().unwrap();
    assert!(ended.unwrap_err().to_string().contains("nothing was changed: /srv/pg: found /dev/sda1"));
    assert_eq!(lab.did(), Vec::<String>::new());
    assert!(!lab.fake.world(|world| world.may_run || world.left_alone));
}

#[tokio::test]
async fn the_machines_watchdog_counts_before_postgresql_starts_and_until_all_is_let_go_of() {
    let mut lab = lab(Fake::default(), |config| config.watchdog.mode = WatchdogMode::Required).await;
    lab.state("primary").await;
    assert_eq!(lab.did(), ["attach", "import", "arm", "start", "first write", "hook Primary"]);
    assert!(lab.fake.world(|world| world.guarded));
    lab.end().await;
    assert!(!lab.fake.world(|world| world.guarded));
}

#[tokio::test]
async fn a_watchdog_that_is_required_and_not_there_gives_the_lease_back() {
    for (mode, starts) in [(WatchdogMode::Required, false), (WatchdogMode::Automatic, true)] {
        let fake = Fake::default();
        fake.world(|world| world.no_watchdog = Some("/dev/watchdog: busy".into()));
        let mut lab = lab(fake, |config| config.watchdog.mode = mode).await;
        if starts {
            lab.state("primary").await;
            assert_eq!(lab.did(), ["attach", "import", "arm", "start", "first write", "hook Primary"]);
        } else {
            let begun = std::time::Instant::now();
            while !lab.get("/history").await.1.contains("the machine's watchdog is required: /dev/watchdog: busy") {
                assert!(begun.elapsed() < Duration::from_secs(30));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            lab.state("standby").await;
            assert_eq!(lab.did(), ["attach", "import", "arm", "export", "detach"]);
            assert!(!lab.fake.world(|world| world.guarded));
        }
        lab.end().await;
    }
}

/// A host that could not import the pool leaves the lease to others, also if it is ordered to take over, and says so.
/// It takes over once it can.
#[tokio::test]
async fn a_host_that_cannot_take_over_takes_no_lease() {
    let fake = Fake::default();
    fake.world(|world| world.unable = "its host id is not set".into());
    let mut lab = lab(fake, |_| ()).await;
    let begun = std::time::Instant::now();
    while !lab.get("/status").await.1.contains("\"why\":\"its host id is not set\"") {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(lab.get("/readiness").await.0, 503);
    for (path, body) in [
        ("/claim", serde_json::json!({ "from": "db2", "to": "db1", "set": "demo", "within_ms": 1000 })),
        ("/failover", serde_json::json!({ "reason": "now" })),
    ] {
        let limit = Duration::from_secs(20);
        let answer = crate::client::ask(&lab.socket, path, Some(&body), None, limit).await.unwrap();
        assert_eq!(answer.code, 412, "{path}");
        assert!(answer.words().contains("db1 cannot take over: its host id is not set"), "{}", answer.words());
    }
    assert_eq!(lab.did(), Vec::<String>::new());
    lab.fake.world(|world| world.unable.clear());
    lab.state("primary").await;
    lab.end().await;
}

/// It would be refused at each try: others first, and then a pause that grows. Restarts in place would only be three
/// refusals more.
#[tokio::test]
async fn a_start_that_is_refused_is_not_tried_hot() {
    let fake = Fake::default();
    fake.world(|world| world.refuse_start = Some("/srv/pg/data/pg_wal: found /ssd/wal on /".into()));
    let mut lab = lab(fake, |config| config.takeover.flap_delay_s = 60).await;
    let begun = std::time::Instant::now();
    while !lab.get("/history").await.1.contains("takeover-failed") {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    lab.state("standby").await;
    assert_eq!(lab.did(), ["attach", "import", "start", "export", "detach"]);
    let begun = std::time::Instant::now();
    while !lab.get("/status").await.1.contains("ms more: PostgreSQL is not started here: /srv/pg/data/pg_wal: found") {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(lab.get("/readiness").await.0, 503);
    lab.end().await;
    assert_eq!(lab.did(), Vec::<String>::new());
}

/// ONSET-L2: PostgreSQL goes on, and it is reported.
#[tokio::test]
async fn a_primary_that_is_not_all_on_the_set_goes_on_and_is_told_about() {
    let mut lab = lab(Fake::default(), |_| {}).await;
    lab.state("primary").await;
    assert!(lab.get("/metrics").await.1.contains("holdfast_agent_off_set{name=\"db1\",set=\"demo\"} 0"));
    assert_eq!(lab.did(), UP);
    lab.fake.world(|world| world.off_set = "/srv/pg/data/pg_tblspc/16384: found /ssd/a on /".into());
    let begun = std::time::Instant::now();
    while lab.get("/readiness").await.0 == 200 {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(lab.get("/primary").await.0, 200);
    assert!(lab.get("/status").await.1.contains("\"off_set\":\"/srv/pg/data/pg_tblspc/16384: found /ssd/a on /\""));
    assert!(lab.get("/history").await.1.contains("\"event\":\"off-set\""));
    assert!(lab.get("/metrics").await.1.contains("holdfast_agent_off_set{name=\"db1\",set=\"demo\"} 1"));
    lab.fake.world(|world| world.off_set.clear());
    let begun = std::time::Instant::now();
    while lab.get("/readiness").await.0 != 200 {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(lab.did(), Vec::<String>::new(), "nothing is stopped for it");
    lab.end().await;
}

/// LISTEN-L3: any user can take the port while no agent has it. Failover to this host works without it.
#[tokio::test]
async fn a_port_that_is_taken_ends_no_agent() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let fake = Fake::default();
    let mut late = listen::tcp(address, &fake).await.unwrap();
    // Without an interface nobody can listen there: a first start is refused, and PostgreSQL is not left without its
    // agent.
    let nowhere = "[fe80::1]:8008".parse().unwrap();
    assert_ne!(listen::tcp(nowhere, &fake).await.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    fake.world(|world| world.found.attach = true);
    assert!(listen::tcp(nowhere, &fake).await.is_ok());
    // What is there and is somebody else's is told by the agent itself.
    fake.world(|world| (world.found.attach, world.foreign) = (false, Some("/srv/pg: found /dev/sda1".into())));
    assert!(listen::tcp(nowhere, &fake).await.is_ok());
    drop(taken);
    let asks = tokio::spawn(async move {
        loop {
            match tokio::net::TcpStream::connect(address).await {
                Ok(socket) => return socket,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, axum::serve::Listener::accept(&mut late)).await.expect("it listens once it can");
    asks.await.unwrap();
}

/// LISTEN-L3: a disk that takes no history is no reason to leave PostgreSQL without its agent.
#[tokio::test]
async fn an_agent_with_something_to_do_goes_on_without_its_history() {
    let (dir, fake) = (tempfile::tempdir().unwrap(), Fake::default());
    // A file in the place of a directory: it cannot be made, as on a file system that is read-only.
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    for place in [file.join("dir"), dir.path().join("dir")] {
        std::fs::create_dir_all(dir.path().join("dir/history.jsonl")).unwrap();
        fake.world(|world| world.found = Found::default());
        let refused = history_in(&place, &fake).await.unwrap_err().to_string();
        assert!(refused.starts_with(&place.display().to_string()), "{refused}");
        fake.world(|world| world.found.database = true);
        assert_eq!(history_in(&place, &fake).await.unwrap().lines().count(), 0);
    }
}
