//! The real host: gateways, attach, pool, PostgreSQL, hooks and watchdog file of one configuration.

pub mod attach;
pub mod database;
mod hooks;
pub mod ours;
pub mod pool;
pub mod zfs;

use crate::cluster::Gateways;
use crate::config::{AgentConfig, PoolKind};
use crate::host::{AttachLook, Host, PoolLook};
use crate::hostid::{self, Told};
use crate::machine::{DatabaseView, Found, LeaseView, Role, Stop};
use crate::watchdog::{self, Sign};
use attach::Attach;
use database::Database;
use hooks::Hooks;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a host id that was read is shown: a person may give the host another one.
const HOST_ID_INTERVAL: Duration = Duration::from_secs(1);

/// Before the host id was read for the first time. It is read beside the agent's task, so that this stays where the read never ends.
const NOT_READ: &str = "the host id of this host is not read yet: wait a moment; if this stays, look at the disk that /etc/hostid is on: it does not answer";

/// Before the other agents were asked for the first time: within [`PEERS_LIMIT`] whoever does not answer has told nothing.
const NOT_HEARD: &str = "the other hosts' agents were not asked for their host ids yet: wait a moment";

/// How often they are asked, which is for the host id of each.
const PEERS_INTERVAL: Duration = Duration::from_secs(2);

/// For all their answers: who is lost is silent.
const PEERS_LIMIT: Duration = Duration::from_secs(1);

/// What /sys, /etc and /proc of this host lie below. In tests that is nowhere, until they say where: none reads the id of the machine that it runs on, and none
/// reboots it.
const ROOT: &str = if cfg!(test) { "/nonexistent" } else { "/" };

/// A question that is asked again and again beside the agent's task.
#[derive(Debug, Default)]
struct Asking {
    asked: Option<Instant>,
    goes_on: bool,
}

impl Asking {
    /// Whether it is time to ask; if so it is taken as asked.
    fn is_due(&mut self, interval: Duration) -> bool {
        let due = !self.goes_on && self.asked.is_none_or(|at| at.elapsed() >= interval);
        if due {
            (self.asked, self.goes_on) = (Some(Instant::now()), true);
        }
        due
    }
}

/// What is known of the pool.
#[derive(Debug, Default)]
struct Looked {
    of_host: Asking,
    of_peers: Asking,
    /// The host id of this host as it was read last, or why it could not be; `None` before.
    id: Option<Result<String, String>>,
    /// Those of the others, `None` before they were asked.
    others: Option<Vec<Told>>,
    look: PoolLook,
}

impl Looked {
    /// Before anything is known: where it matters, that is no leave to take the lease.
    fn of(multihost: bool) -> Self {
        let mut looked = Self { look: PoolLook { multihost, ..PoolLook::default() }, ..Self::default() };
        looked.judge();
        looked
    }

    fn is_told(&mut self, id: Result<String, String>) {
        self.look.host_id = id.clone().unwrap_or_default();
        self.id = Some(id);
        self.of_host.goes_on = false;
        self.judge();
    }

    /// The other hosts' agents have told their ids, or nothing.
    fn hears(&mut self, others: Vec<Told>) {
        self.others = Some(others);
        self.of_peers.goes_on = false;
        self.judge();
    }

    /// H1, ahead of the import: a host that would be refused there leaves the lease to others.
    fn judge(&mut self) {
        let able = match (&self.id, &self.others) {
            _ if !self.look.multihost => Ok(()),
            (None, _) => Err(NOT_READ.to_string()),
            (Some(Err(why)), _) => Err(format!("the host id of this host is not known: {why}; it has to be readable")),
            // Whatever the others have.
            (Some(Ok(id)), None) => hostid::may_import(id, &[]).and_then(|()| Err(NOT_HEARD.to_string())),
            (Some(Ok(id)), Some(others)) => hostid::may_import(id, others),
        };
        self.look.unable = able.err().unwrap_or_default();
    }
}

/// See [`Host`].
#[derive(Debug)]
pub struct Real {
    config: AgentConfig,
    gateways: Gateways,
    attach: Attach,
    database: Database,
    hooks: Hooks,
    signs: crate::watchdog::Signs,
    pool_look: Arc<Mutex<Looked>>,
    /// See [`ROOT`].
    root: PathBuf,
}

impl Real {
    /// For these settings; nothing is started. Must be called on a runtime.
    ///
    /// # Errors
    /// An address of a gateway that is none; a certificate that cannot be used.
    pub fn new(config: &AgentConfig) -> Result<Self, String> {
        let tls = config.tls.load(holdfast_tls::Role::Host).map_err(|error| format!("[tls]: {error}"))?;
        let dialer = holdfast_tls::Dialer::from(tls.as_ref());
        Ok(Self {
            gateways: Gateways::new(&config.set, &config.gateways, &dialer)?,
            attach: Attach::new(config),
            database: Database::new(config),
            hooks: Hooks::new(config),
            signs: crate::watchdog::Signs::new(&config.run_dir),
            config: config.clone(),
            pool_look: Arc::new(Mutex::new(Looked::of(config.pool.kind == PoolKind::Zfs && config.pool.multihost))),
            root: ROOT.into(),
        })
    }

    fn looked(&self) -> MutexGuard<'_, Looked> {
        self.pool_look.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel's file in which a `b` is a reboot.
    fn sysrq(&self) -> PathBuf {
        self.root.join("proc/sysrq-trigger")
    }
}

impl Host for Real {
    async fn found(&self) -> Result<Found, String> {
        let attach = self.attach.adopt()?;
        let mounted = match self.config.pool.kind {
            // Nothing of ours that could be missing.
            PoolKind::None => attach,
            _ => ours::there(&self.config).await?,
        };
        let database = self.database.found().await?;
        if database && !mounted && self.config.pool.kind != PoolKind::None {
            let data = self.config.database.data.display();
            return Err(format!(
                "found processes of PostgreSQL at {data}, and no pool of this agent's that this could be on, expected none: stop them, or see database.data"
            ));
        }
        Ok(Found { attach, mounted, database })
    }

    async fn lease(&self) -> LeaseView {
        self.gateways.lease().await
    }

    async fn attach(&self, force: bool) -> Result<(), String> {
        self.attach.start(force).await
    }

    async fn attach_look(&self) -> AttachLook {
        self.attach.look()
    }

    async fn detach(&self, hard: bool) -> Result<(), String> {
        self.attach.detach(hard).await
    }

    async fn import(&self, _force: bool) -> Result<(), String> {
        if ours::there(&self.config).await? {
            // Rests of an earlier attach: its devices are not today's.
            pool::export(&self.config, true).await?;
        }
        let warning = pool::import(&self.config, &self.attach.devices()).await?;
        if !warning.is_empty() {
            tracing::warn!(warning, "imported");
        }
        self.looked().look.warning = warning;
        ours::note(&self.config);
        Ok(())
    }

    fn pool_look(&self) -> PoolLook {
        let mut looked = self.looked();
        if self.config.pool.kind == PoolKind::Zfs && looked.of_host.is_due(HOST_ID_INTERVAL) {
            let (root, there) = (self.root.clone(), self.pool_look.clone());
            // The files lie on a disk that may hang, and the agent's task has a lease to watch (A3).
            tokio::task::spawn_blocking(move || {
                let id = hostid::read_in(&root);
                there.lock().unwrap_or_else(PoisonError::into_inner).is_told(id);
            });
        }
        if looked.look.multihost && looked.of_peers.is_due(PEERS_INTERVAL) {
            let (set, peers, there) = (self.config.set.clone(), self.config.peers.0.clone(), self.pool_look.clone());
            tokio::spawn(async move {
                let others = hostid::ask(&set, &peers, PEERS_LIMIT).await;
                there.lock().unwrap_or_else(PoisonError::into_inner).hears(others);
            });
        }
        looked.look.clone()
    }

    async fn export(&self, hard: bool) -> Result<(), String> {
        self.looked().look.warning.clear();
        match ours::there(&self.config).await {
            Ok(true) => pool::export(&self.config, hard).await?,
            Ok(false) => {}
            // Ours is not there: it was not imported because of this one.
            Err(why) => {
                tracing::error!(why, "left where it is");
                return Ok(());
            }
        }
        // P1: a later one of its name is somebody's at work by hand.
        ours::forget(&self.config);
        Ok(())
    }

    async fn arm(&self) -> Result<(), String> {
        watchdog::armed(&self.config.run_dir).await
    }

    async fn start_database(&self) -> Result<(), String> {
        self.database.start().await
    }

    async fn stop_database(&self, how: Stop) -> Result<(), String> {
        self.database.stop(how).await
    }

    async fn probe(&self) -> Option<DatabaseView> {
        self.database.probe().await
    }

    async fn checkpoint(&self) -> Result<(), String> {
        self.database.checkpoint().await
    }

    async fn first_write(&self) -> Result<(), String> {
        self.database.first_write().await
    }

    fn hook_role(&self, role: Role, epoch: u64) {
        self.hooks.role(role, epoch);
    }

    fn hook_event(&self, line: &str, role: Role, epoch: u64) {
        self.hooks.event(line, role, epoch);
    }

    fn reboot(&self, why: &str) {
        tracing::error!(why, "this machine cannot let go: it is rebooted now");
        // At once and without a sync: what is not on the set's journal is nobody's any more. The kernel takes it from root whatever
        // kernel.sysrq says.
        let sysrq = self.sysrq();
        if let Err(error) = std::fs::write(&sysrq, "b") {
            tracing::error!(%error, "{}", sysrq.display());
        }
    }

    fn alive(&self, may_run_until_ns: u64, ttl_ms: u64, guarded: bool) {
        self.signs.give(Sign { at_ns: crate::clock::now().0, may_run_until_ns, ttl_ms, guarded });
    }

    fn left_alone(&self, may_run_until_ns: u64, ttl_ms: u64, guarded: bool) {
        self.signs.give(Sign { at_ns: watchdog::LEFT_ALONE, may_run_until_ns, ttl_ms, guarded });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_multihost_a_host_without_an_id_of_its_own_is_unable() {
        let told = |multihost, id: Result<&str, &str>| {
            let mut looked = Looked::of(multihost);
            assert_eq!(looked.look.unable.contains("not read yet"), multihost);
            looked.hears(Vec::new());
            assert_eq!(looked.look.unable.contains("not read yet"), multihost);
            looked.is_told(id.map(Into::into).map_err(Into::into));
            looked.look
        };
        assert!(told(true, Ok(hostid::NONE)).unable.contains("zgenhostid"));
        let unread = told(true, Err("/etc/hostid: Is a directory"));
        assert!(unread.unable.contains("/etc/hostid: Is a directory") && unread.host_id.is_empty(), "{unread:?}");
        let own = PoolLook { host_id: "00000007".into(), multihost: true, ..PoolLook::default() };
        assert_eq!(told(true, Ok("00000007")), own);
        for id in [Ok(hostid::NONE), Err("no")] {
            assert_eq!(told(false, id).unable, "", "without multihost any id does");
        }
    }

    /// What the import would be refused for is no leave to take the lease either: it would only be given back, over and over.
    #[test]
    fn with_multihost_a_host_with_the_id_of_another_that_answers_is_unable() {
        let told = |id: &str| ("db2".to_string(), Ok(id.to_string()));
        let silent = ("db3".to_string(), Err("no route".to_string()));
        let mut looked = Looked::of(true);
        looked.is_told(Ok("00000007".into()));
        assert_eq!(looked.look.unable, NOT_HEARD, "it would take the lease before it knows");
        looked.hears(vec![told("00000007"), silent.clone()]);
        let why = looked.look.unable.clone();
        assert!(why.contains("00000007, is that of db2 too") && why.contains("zgenhostid"), "{why}");
        // The way out, on either of them.
        looked.hears(vec![told("00000008"), silent.clone()]);
        assert_eq!(looked.look.unable, "");
        looked.is_told(Ok("00000008".into()));
        assert!(looked.look.unable.contains("00000008, is that of db2 too"), "{}", looked.look.unable);
        // The other one is lost: its host may be what this one is there for.
        looked.hears(vec![("db2".into(), Err("no route".into())), silent]);
        assert_eq!(looked.look.unable, "");
        let mut careless = Looked::of(false);
        careless.is_told(Ok("00000007".into()));
        careless.hears(vec![told("00000007")]);
        assert_eq!(careless.look.unable, "", "without multihost any id does");
    }

    /// Answers every question as an agent of host db2 whose host id stands there.
    async fn db2(id: Arc<Mutex<&'static str>>) -> String {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut question = [0; 1024];
                let _ = stream.read(&mut question).await;
                let view = serde_json::json!({
                    "name": "db2", "set": "demo", "state": "standby", "since_unix_ms": 0, "role": "standby", "why": "", "paused": false,
                    "mode": "automatic", "nofailover": false, "priority": 100, "epoch": 0, "lease_owner": "", "cluster_answers": true,
                    "database": "gone", "attach": null, "renewed_ms_ago": null, "obstacle": "", "host_id": *id.lock().unwrap(),
                    "version": "",
                });
                let _ = stream.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{view}").as_bytes()).await;
            }
        });
        address
    }

    #[tokio::test]
    async fn the_others_are_asked_while_it_stands_by() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("etc")).unwrap();
        std::fs::write(dir.path().join("etc/hostid"), 7_u32.to_ne_bytes()).unwrap();
        let theirs = Arc::new(Mutex::new("00000007"));
        let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
        (config.pool.kind, config.pool.name, config.pool.multihost) = (PoolKind::Zfs, Some("tank".into()), true);
        config.peers.0.insert("db2".into(), db2(theirs.clone()).await);
        let mut real = Real::new(&config).unwrap();
        real.root = dir.path().into();
        let begun = Instant::now();
        while !real.pool_look().unable.contains("is that of db2 too") {
            assert!(
                begun.elapsed() < Duration::from_secs(30),
                "found {:?}, expected db2's id",
                real.pool_look().unable
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        *theirs.lock().unwrap() = "00000008";
        let begun = Instant::now();
        while !real.pool_look().unable.is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(30), "found {:?}, expected nothing", real.pool_look().unable);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// No test calls `reboot` of the real host at all: a mistake in it would end the machine. Should one do so, this is where it ends.
    #[tokio::test]
    async fn a_tests_host_is_not_the_machine_that_it_runs_on() {
        let dir = tempfile::tempdir().unwrap();
        let real = Real::new(&AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() }).unwrap();
        assert_eq!(real.sysrq(), PathBuf::from("/nonexistent/proc/sysrq-trigger"));
    }

    /// Without a pool there is nothing that could be missing beside a running attach.
    #[tokio::test]
    async fn without_a_pool_whatever_is_attached_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
        config.pool.kind = PoolKind::None;
        config.database.data = dir.path().join("data");
        std::fs::create_dir_all(dir.path().join("attach")).unwrap();
        let real = Real::new(&config).unwrap();
        assert_eq!(real.found().await, Ok(Found::default()));
        let _attach = crate::watchdog::lock(&dir.path().join("attach"), "attach.lock").unwrap();
        assert_eq!(real.found().await, Ok(Found { attach: true, mounted: true, database: false }));
    }

    /// P1: what has its name later is a person's, at work by hand in a pause.
    #[tokio::test]
    async fn what_was_let_go_of_is_noted_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
        config.pool.mount = dir.path().join("pool");
        let (real, noted) = (Real::new(&config).unwrap(), dir.path().join("pool.noted"));
        ours::note(&config);
        assert!(noted.is_file());
        assert_eq!(real.export(false).await, Ok(()));
        assert!(!noted.exists());
    }
}
