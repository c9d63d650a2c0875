//! The real host: gateways, attach, pool, PostgreSQL, hooks and watchdog file of one configuration.

pub mod database;
mod hooks;
pub mod ownership;
pub mod pool;
pub mod zfs;

use crate::attach_process::Attach;
use crate::cluster::Gateways;
use crate::config::{AgentConfig, PoolKind, WatchdogMode};
use crate::host::{AttachLook, Host, PoolLook};
use crate::hostid::{self, Told};
use crate::machine::{DatabaseView, Found, LeaseView, Role, Stop};
use crate::process;
use crate::watchdog::{self, Sign};
use database::Database;
use hooks::Hooks;
use ownership::NotOurs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a host id that was read is shown: a person may give the host another one.
const HOST_ID_INTERVAL: Duration = Duration::from_secs(1);

/// Before the host id was read for the first time. It is read beside the agent's task, so that this stays where the read never ends.
const NOT_READ: &str = "the host id of this host is not read yet: wait a moment; if this stays, look at the disk that /etc/hostid is on: it does not answer";

/// Before the other agents were asked for the first time: within [`PEERS_LIMIT`] whoever does not answer has told nothing.
const NOT_HEARD: &str = "the other hosts' agents were not asked for their host ids yet: wait a moment";

/// How long it is shown how the machine's watchdog looked: a module may be loaded.
const WATCHDOG_INTERVAL: Duration = Duration::from_secs(1);

/// Before the machine's watchdog was looked at for the first time.
const NOT_LOOKED: &str = "the machine's watchdog is required (watchdog.mode) and was not looked at yet: wait a moment";

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
    /// The machine's watchdog, where it is required (AGENT-A7), and how it looked last; `None` before.
    watchdog_required: bool,
    of_watchdog: Asking,
    watchdog: Option<Result<(), String>>,
    /// The program of this pool that hangs in the kernel, "" for none.
    hangs: String,
    look: PoolLook,
}

impl Looked {
    /// Before anything is known: where it matters, that is no leave to take the lease.
    fn of(multihost: bool, watchdog_required: bool) -> Self {
        let look = PoolLook { multihost, ..PoolLook::default() };
        let mut looked = Self { look, watchdog_required, ..Self::default() };
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

    /// The machine's watchdog was looked at.
    fn is_guarded(&mut self, found: Result<(), String>) {
        self.watchdog = Some(found);
        self.of_watchdog.goes_on = false;
        self.judge();
    }

    /// These programs of the pool were killed and are still there.
    fn are_left(&mut self, hanging: &[String]) {
        self.hangs = hanging.first().cloned().unwrap_or_default();
        self.judge();
    }

    /// Ahead of the lease: a host that would have to give it back leaves it to others.
    fn judge(&mut self) {
        let able = self.is_free().and_then(|()| self.has_its_watchdog()).and_then(|()| self.has_its_id());
        self.look.unable = able.err().unwrap_or_default();
    }

    /// What hangs may import the pool yet, and no other one of its kind is started beside it.
    fn is_free(&self) -> Result<(), String> {
        match self.hangs.as_str() {
            "" => Ok(()),
            hangs => Err(format!(
                "{hangs}: was killed and hangs in the kernel, where a device does not answer; it may go on any time: if it stays, reboot this host"
            )),
        }
    }

    /// AGENT-A7: without it PostgreSQL would not be started.
    fn has_its_watchdog(&self) -> Result<(), String> {
        match &self.watchdog {
            _ if !self.watchdog_required => Ok(()),
            None => Err(NOT_LOOKED.to_string()),
            Some(found) => {
                found.clone().map_err(|why| format!("the machine's watchdog is required (watchdog.mode): {why}"))
            }
        }
    }

    /// HOSTID-H1: the import would be refused.
    fn has_its_id(&self) -> Result<(), String> {
        match (&self.id, &self.others) {
            _ if !self.look.multihost => Ok(()),
            (None, _) => Err(NOT_READ.to_string()),
            (Some(Err(why)), _) => Err(format!("the host id of this host is not known: {why}; it has to be readable")),
            // Whatever the others have.
            (Some(Ok(id)), None) => hostid::may_import(id, &[]).and_then(|()| Err(NOT_HEARD.to_string())),
            (Some(Ok(id)), Some(others)) => hostid::may_import(id, others),
        }
    }
}

/// Whether this command line is one by which a pool of this kind is imported or looked for, or an earlier one is let go of.
fn is_of_pool(kind: PoolKind, command: &str) -> bool {
    let program = command.split(' ').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    match kind {
        PoolKind::Zfs => matches!(program, "zpool" | "zfs" | "zdb"),
        PoolKind::Ext4 | PoolKind::Xfs => matches!(program, "e2fsck" | "mount" | "umount"),
        PoolKind::None => false,
    }
}

/// Before the device goes, by what was found of the pool: whether there is one to be let go of; `None` where another's is there and is left where it is.
fn to_export(found: Result<bool, NotOurs>) -> Result<Option<bool>, String> {
    match found {
        Ok(there) => Ok(Some(there)),
        // Ours may be there, and then the device is not taken away from under it.
        Err(NotOurs::Unlooked(why)) => Err(why),
        // Ours is not there: it was not imported because of this one.
        Err(NotOurs::Foreign(why)) => {
            tracing::error!(why, "left where it is");
            Ok(None)
        }
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
            pool_look: Arc::new(Mutex::new(Looked::of(
                config.pool.kind == PoolKind::Zfs && config.pool.multihost,
                config.watchdog.mode == WatchdogMode::Required,
            ))),
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
            _ => ownership::there(&self.config).await?,
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
        if ownership::there(&self.config).await? {
            // Rests of an earlier attach: its devices are not today's.
            pool::export(&self.config, true).await?;
        }
        let warning = pool::import(&self.config, &self.attach.devices()).await?;
        if !warning.is_empty() {
            tracing::warn!(warning, "imported");
        }
        self.looked().look.warning = warning;
        ownership::note(&self.config);
        Ok(())
    }

    fn pool_look(&self) -> PoolLook {
        let mut looked = self.looked();
        looked.are_left(&process::hanging(|command| is_of_pool(self.config.pool.kind, command)));
        if looked.watchdog_required && looked.of_watchdog.is_due(WATCHDOG_INTERVAL) {
            let (device, there) = (self.config.watchdog.device.clone(), self.pool_look.clone());
            // As below.
            tokio::task::spawn_blocking(move || {
                let found = watchdog::device_looked_at(&device);
                there.lock().unwrap_or_else(PoisonError::into_inner).is_guarded(found);
            });
        }
        if self.config.pool.kind == PoolKind::Zfs && looked.of_host.is_due(HOST_ID_INTERVAL) {
            let (root, there) = (self.root.clone(), self.pool_look.clone());
            // The files lie on a disk that may hang, and the agent's task has a lease to watch (AGENT-A3).
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
        let Some(there) = to_export(ownership::there(&self.config).await)? else { return Ok(()) };
        if there {
            pool::export(&self.config, hard).await?;
        }
        // OWN-P1: a later one of its name is somebody's at work by hand.
        ownership::forget(&self.config);
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
            let mut looked = Looked::of(multihost, false);
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
        let mut looked = Looked::of(true, false);
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
        let mut careless = Looked::of(false, false);
        careless.is_told(Ok("00000007".into()));
        careless.hears(vec![told("00000007")]);
        assert_eq!(careless.look.unable, "", "without multihost any id does");
    }

    /// AGENT-A7 ahead of the lease: without its watchdog it would only be given back, over and over.
    #[test]
    fn a_host_without_the_watchdog_that_it_requires_is_unable() {
        let mut looked = Looked::of(false, true);
        assert_eq!(looked.look.unable, NOT_LOOKED);
        looked.is_guarded(Err("/dev/watchdog: not there".into()));
        assert_eq!(looked.look.unable, "the machine's watchdog is required (watchdog.mode): /dev/watchdog: not there");
        looked.is_guarded(Ok(()));
        assert_eq!(looked.look.unable, "");
        assert_eq!(Looked::of(false, false).look.unable, "", "where it is not required nobody waits for it");
    }

    #[tokio::test]
    async fn a_watchdog_that_is_required_is_looked_at_while_it_stands_by() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
        config.watchdog.mode = WatchdogMode::Required;
        config.watchdog.device = dir.path().join("watchdog-of-this-test");
        let real = Real::new(&config).unwrap();
        let becomes = async |is: fn(&str) -> bool| {
            let begun = Instant::now();
            while !is(&real.pool_look().unable) {
                assert!(begun.elapsed() < Duration::from_secs(30), "found {:?}", real.pool_look().unable);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        becomes(|why| why.contains("watchdog-of-this-test: No such file") && why.contains("modprobe softdog")).await;
        std::fs::write(&config.watchdog.device, "").unwrap();
        becomes(str::is_empty).await;
        std::fs::remove_file(&config.watchdog.device).unwrap();
        becomes(|why| why.contains("modprobe softdog")).await;
    }

    /// Its import was given up on, and may come to its end yet: a lease would only be taken to be given back.
    #[test]
    fn a_host_whose_import_hangs_is_unable() {
        let import = "/usr/sbin/zpool import -f -o cachefile=none -d /dev/nbd0 tank".to_string();
        assert!(is_of_pool(PoolKind::Zfs, &import) && is_of_pool(PoolKind::Ext4, "/sbin/e2fsck -p /dev/loop0"));
        assert!(!is_of_pool(PoolKind::Ext4, &import) && !is_of_pool(PoolKind::None, &import));
        assert!(!is_of_pool(PoolKind::Zfs, "/usr/bin/pg_ctl -D /tank/zpool"));
        let mut looked = Looked::of(false, false);
        looked.are_left(std::slice::from_ref(&import));
        let why = looked.look.unable.clone();
        assert!(why.starts_with(&import) && why.contains("hangs in the kernel") && why.contains("reboot"), "{why}");
        looked.are_left(&[]);
        assert_eq!(looked.look.unable, "");
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
        let _attach = holdfast_host::lock::lock(&dir.path().join("attach"), "attach.lock").unwrap();
        assert_eq!(real.found().await, Ok(Found { attach: true, mounted: true, database: false }));
    }

    /// The device goes once this has succeeded.
    #[test]
    fn a_pool_that_could_not_be_looked_for_is_not_let_go_of() {
        assert_eq!(to_export(Err(NotOurs::Unlooked("no".into()))), Err("no".into()));
        assert_eq!(to_export(Err(NotOurs::Foreign("theirs".into()))), Ok(None));
        assert_eq!((to_export(Ok(true)), to_export(Ok(false))), (Ok(Some(true)), Ok(Some(false))));
    }

    /// OWN-P1: what has its name later is a person's, at work by hand in a pause.
    #[tokio::test]
    async fn what_was_let_go_of_is_noted_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = AgentConfig { run_dir: dir.path().into(), ..AgentConfig::default() };
        config.pool.mount = dir.path().join("pool");
        let (real, noted) = (Real::new(&config).unwrap(), dir.path().join("pool.noted"));
        ownership::note(&config);
        assert!(noted.is_file());
        assert_eq!(real.export(false).await, Ok(()));
        assert!(!noted.exists());
    }
}
