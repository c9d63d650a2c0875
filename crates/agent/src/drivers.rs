//! The real host: gateways, attach, pool, PostgreSQL or another service, hooks and watchdog file of one configuration.

pub mod database;
mod hooks;
mod leaving;
mod openers;
pub mod ownership;
mod placement;
pub mod pool;
mod service;
mod workload;
pub mod zfs;

use crate::attach_process::Attach;
use crate::client;
use crate::cluster::Gateways;
use crate::config::{AgentConfig, PoolKind, WatchdogMode};
use crate::host::{AttachLook, Ended, Host, NotDone, PoolLook, PoolUsers};
use crate::hostid::{self, PeerHostId};
use crate::machine::{DatabaseView, Found, LeaseView, Role, Stop};
use crate::process;
use crate::seams::Dial;
use crate::server::ServerView;
use crate::watchdog::{self, Sign};
use holdfast_tls::Tls;
use holdfast_types::MonoTime;
use holdfast_types::sync::LockExt;
use hooks::Hooks;
use ownership::NotOurs;
use placement::{Checks, PlacementError};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};
use workload::Driver;
use zfs::Warning;

/// Interval between two reads of the host id: a person may change it.
const HOST_ID_INTERVAL: Duration = Duration::from_secs(1);

/// Obstacle before the host id was read for the first time. It remains if the read never ends.
const NOT_READ: &str = "the host id of this host is not read yet: wait a moment; if this remains, the disk with /etc/hostid does not answer: check it";

/// Obstacle before the other agents were asked for the first time. An agent that does not answer within [`PEERS_LIMIT`]
/// is none.
const NOT_HEARD: &str = "the other hosts' agents were not asked for their host ids yet: wait a moment";

/// Interval between two checks of the machine's watchdog: a module may be loaded meanwhile.
const WATCHDOG_INTERVAL: Duration = Duration::from_secs(1);

/// Obstacle before the machine's watchdog was checked for the first time.
const NOT_LOOKED: &str = "the machine's watchdog is required (watchdog.mode) and was not checked yet: wait a moment";

/// Interval between two questions to the other agents for their host ids.
const PEERS_INTERVAL: Duration = Duration::from_secs(2);

/// Time limit for all their answers: a lost host does not answer.
const PEERS_LIMIT: Duration = Duration::from_secs(1);

/// Interval between two checks of the places of PostgreSQL's files while it runs (ONSET-L2).
const PLACES_INTERVAL: Duration = Duration::from_secs(5);

/// Time limit of that check when an agent begins: its first sign of life waits for it, and the device may hang. Then
/// the next check reports.
const PLACES_LIMIT: Duration = Duration::from_millis(500);

/// Directory with /sys, /etc and /proc of this host. In tests it does not exist, unless they set one: no test reads the
/// id of the machine that it runs on, and none reboots it.
const ROOT: &str = if cfg!(test) { "/nonexistent" } else { "/" };

/// A question that is asked again and again beside the agent's task.
#[derive(Debug, Default)]
struct Asking {
    asked: Option<Instant>,
    goes_on: bool,
}

impl Asking {
    /// Whether it is time to ask. If so, it counts as asked.
    fn is_due(&mut self, interval: Duration) -> bool {
        let due = !self.goes_on && self.asked.is_none_or(|at| at.elapsed() >= interval);
        if due {
            (self.asked, self.goes_on) = (Some(Instant::now()), true);
        }
        due
    }
}

/// What is known of the pool, and of other obstacles to a takeover.
#[derive(Debug, Default)]
struct PoolState {
    of_host: Asking,
    of_peers: Asking,
    /// The host id of this host, or why it could not be read; `None` before the first read.
    id: Option<Result<String, String>>,
    /// Host ids of the other hosts; `None` before they were asked.
    others: Option<Vec<PeerHostId>>,
    /// The machine's watchdog is required (AGENT-A7).
    watchdog_required: bool,
    of_watchdog: Asking,
    of_places: Asking,
    /// Result of the last check of the machine's watchdog; `None` before the first one.
    watchdog: Option<Result<(), String>>,
    /// A program of this pool that hangs in the kernel, "" for none.
    hangs: String,
    look: PoolLook,
}

impl PoolState {
    /// Before anything is known. What matters and is not known is an obstacle.
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

    /// The other hosts' agents have reported their ids, or did not answer.
    fn hears(&mut self, others: Vec<PeerHostId>) {
        self.others = Some(others);
        self.of_peers.goes_on = false;
        self.judge();
    }

    /// The machine's watchdog was checked.
    fn is_guarded(&mut self, found: Result<(), String>) {
        self.watchdog = Some(found);
        self.of_watchdog.goes_on = false;
        self.judge();
    }

    /// These programs of the pool were killed and still exist.
    fn are_left(&mut self, hanging: &[String]) {
        self.hangs = hanging.first().cloned().unwrap_or_default();
        self.judge();
    }

    /// The places of a PostgreSQL that runs were checked. A check that failed says nothing new.
    fn are_placed(&mut self, found: Result<String, PlacementError>) {
        self.of_places.goes_on = false;
        match found {
            Ok(off_set) if off_set != self.look.off_set => {
                if off_set.is_empty() {
                    tracing::info!("all files of PostgreSQL are on the set again");
                } else {
                    tracing::error!(off_set, "PostgreSQL runs, and no host would start it again where its files lie");
                }
                self.look.off_set = off_set;
            }
            Ok(_) => {}
            Err(error) => {
                let why = error.to_string();
                tracing::warn!(why, "cannot check where PostgreSQL's files are");
            }
        }
    }

    /// Finds obstacles before the lease is taken: a host that would have to give it back leaves it to others.
    fn judge(&mut self) {
        let able = self.is_free().and_then(|()| self.has_its_watchdog()).and_then(|()| self.has_its_id());
        self.look.unable = able.err().unwrap_or_default();
    }

    /// A program that hangs may still import the pool, and no other one of its kind is started beside it.
    fn is_free(&self) -> Result<(), String> {
        match self.hangs.as_str() {
            "" => Ok(()),
            hangs => Err(format!(
                "{hangs}: it was killed and hangs in the kernel, since a device does not answer; it may continue at any time: if it remains, reboot this host"
            )),
        }
    }

    /// AGENT-A7: without its watchdog PostgreSQL would not be started.
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
            (Some(Err(why)), _) => Err(format!("the host id of this host is not known: {why}; make it readable")),
            // An id that is none is an obstacle, whatever the others have.
            (Some(Ok(id)), None) => hostid::may_import(id, &[]).and_then(|()| Err(NOT_HEARD.to_string())),
            (Some(Ok(id)), Some(others)) => hostid::may_import(id, others),
        }
    }
}

/// Whether this command line imports a pool of this kind, looks for one, or releases one.
fn is_of_pool(kind: PoolKind, command: &str) -> bool {
    let program = command.split(' ').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    match kind {
        PoolKind::Zfs => matches!(program, "zpool" | "zfs" | "zdb"),
        PoolKind::Ext4 | PoolKind::Xfs => matches!(program, "e2fsck" | "mount" | "umount"),
        PoolKind::None => false,
    }
}

/// Whether a pool has to be released before its device goes. `None` if the pool belongs to somebody else and stays.
fn to_export(found: Result<bool, NotOurs>) -> Result<Option<bool>, String> {
    match found {
        Ok(there) => Ok(Some(there)),
        // Ours may be there, and would lose its device.
        Err(NotOurs::Unlooked(why)) => Err(why),
        // Ours is not there: this one kept it from being imported.
        Err(NotOurs::Foreign(why)) => {
            tracing::error!(why, "the pool does not belong to this agent: it is left unchanged");
            Ok(None)
        }
    }
}

/// Two findings as one text.
fn both(one: String, other: String) -> String {
    if one.is_empty() || other.is_empty() { one + &other } else { format!("{one}; {other}") }
}

/// See [`Host`].
#[derive(Debug)]
pub struct Real {
    config: AgentConfig,
    gateways: Gateways,
    attach: Attach,
    /// Of PostgreSQL, or of another service.
    driver: Driver,
    hooks: Hooks,
    /// The certificate of this host.
    tls: Option<Tls>,
    signs: crate::watchdog::Signs,
    pool_look: Arc<Mutex<PoolState>>,
    /// Checks of the places of PostgreSQL's files that are going on.
    checks: Arc<Checks>,
    /// Datasets to mount again if the pool is not let go of after all.
    mounted_before: pool::Before,
    /// PostgreSQL may run, as the last sign of life says.
    runs: AtomicBool,
    /// See [`ROOT`].
    root: PathBuf,
}

impl Real {
    /// For these settings; nothing is started. Must be called on a runtime.
    ///
    /// # Errors
    /// A gateway's address is not valid, or not all files of TLS are named. The caller looks whether these can be used.
    pub fn new(config: &AgentConfig) -> Result<Self, String> {
        let files = config.tls.files();
        let tls = files.load_or_later(holdfast_tls::Role::Host).map_err(|error| format!("[tls]: {error}"))?;
        let dialer = holdfast_tls::Dialer::from(tls.as_ref());
        if let Some(tls) = tls.clone() {
            // Until the process ends: a new certificate needs no new agent.
            tokio::spawn(async move { tls.follow().await });
        }
        let gateways = Gateways::new(&config.set, &config.gateways, &dialer)?;
        // Before anything is asked, and before the doors open.
        gateways.follow_revoked(&dialer, &config.dir);
        Ok(Self {
            gateways,
            attach: Attach::new(config),
            driver: Driver::new(config),
            hooks: Hooks::new(config),
            tls,
            signs: crate::watchdog::Signs::new(&config.run_dir),
            config: config.clone(),
            pool_look: Arc::new(Mutex::new(PoolState::of(
                config.pool.kind == PoolKind::Zfs && config.pool.multihost,
                config.watchdog.mode == WatchdogMode::Required,
            ))),
            checks: Arc::default(),
            mounted_before: pool::Before::default(),
            runs: AtomicBool::new(false),
            root: ROOT.into(),
        })
    }

    /// The certificate of this host, which is read again when it changes.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// How the agents of the other hosts are reached.
    fn dial(&self) -> Dial {
        client::to_peers(&self.config, self.tls())
    }

    /// A PostgreSQL that runs already is kept running wherever its files lie (ONSET-L2): it is primary. It is not
    /// started again there.
    async fn places_adopted(&self) {
        let look = tokio::time::timeout(PLACES_LIMIT, placement::off_set(&self.config, &self.checks));
        let found = look.await.unwrap_or(Err(PlacementError::Silent));
        self.looked().are_placed(found);
    }

    /// Checks the owner of the data directory: a running server of another user would not be found, and would be
    /// stopped for a start of our own. A device that does not answer is no obstacle: nothing is started on it.
    async fn owner_is_known(&self) -> Result<(), String> {
        if self.config.service.is_some() {
            // Its control group shows its processes, whoever they belong to.
            return Ok(());
        }
        let server = process::Server::of(&self.config.database);
        let looking = tokio::task::spawn_blocking(move || server.unknown_owner());
        let Ok(Ok(Some(owner))) = tokio::time::timeout(PLACES_LIMIT, looking).await else { return Ok(()) };
        let (data, user) = (self.config.database.data.display(), &self.config.database.user);
        Err(format!(
            "{data}: found that it belongs to the user with number {owner}, expected {user} (database.user): a PostgreSQL that runs there would not be found; \
             nothing was touched: correct database.user"
        ))
    }

    fn looked(&self) -> MutexGuard<'_, PoolState> {
        self.pool_look.locked()
    }

    /// The kernel's file that reboots the machine when `b` is written to it.
    fn sysrq(&self) -> PathBuf {
        self.root.join("proc/sysrq-trigger")
    }
}

impl Host for Real {
    async fn found(&self) -> Result<Found, String> {
        let attach = self.attach.adopt()?;
        let mounted = match self.config.pool.kind {
            // The agent mounts nothing that could be missing.
            PoolKind::None => attach,
            _ => ownership::there(&self.config).await?,
        };
        let database = self.driver.found().await?;
        if database && !mounted && self.config.pool.kind != PoolKind::None {
            let (data, it) = (self.config.data().display(), self.config.workload());
            let setting = self.config.data_setting();
            return Err(format!(
                "found processes of {it} at {data} and no pool of this agent below them, expected no processes: stop them, or correct {setting}"
            ));
        }
        if database {
            self.places_adopted().await;
        } else if mounted {
            self.owner_is_known().await?;
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
            // Remains of an earlier attach, over devices that are gone.
            pool::export(&self.config, true).await?;
        }
        self.mounted_before.clear();
        let warning = pool::import(&self.config, &self.attach.devices(), &self.dial()).await?.map(|Warning(text)| text);
        if let Some(warning) = &warning {
            tracing::warn!(warning, "imported");
        }
        self.looked().look.warning = warning.unwrap_or_default();
        ownership::note(&self.config);
        Ok(())
    }

    fn pool_look(&self) -> PoolLook {
        let mut looked = self.looked();
        looked.are_left(&process::hanging(|command| is_of_pool(self.config.pool.kind, command)));
        if looked.watchdog_required && looked.of_watchdog.is_due(WATCHDOG_INTERVAL) {
            let (device, there) = (self.config.watchdog.device.clone(), self.pool_look.clone());
            // The device may hang, as the disk below.
            tokio::task::spawn_blocking(move || {
                let found = watchdog::device_looked_at(&device);
                there.locked().is_guarded(found);
            });
        }
        if self.config.pool.kind == PoolKind::Zfs && looked.of_host.is_due(HOST_ID_INTERVAL) {
            let (root, there) = (self.root.clone(), self.pool_look.clone());
            // The files lie on a disk that may hang, and the agent's task must watch the lease (AGENT-A3).
            tokio::task::spawn_blocking(move || {
                let id = hostid::read_in(&root);
                there.locked().is_told(id);
            });
        }
        if looked.look.multihost && looked.of_peers.is_due(PEERS_INTERVAL) {
            let (set, peers, there) = (self.config.set.clone(), self.config.peers.0.clone(), self.pool_look.clone());
            let dial = self.dial();
            tokio::spawn(async move {
                let others = hostid::ask(&dial, &set, &peers, PEERS_LIMIT).await;
                there.locked().hears(others);
            });
        }
        if !self.runs.load(Ordering::Relaxed) {
            // The first check, when an agent begins, comes before its first sign.
            if looked.of_places.asked.is_some() {
                looked.look.off_set.clear();
            }
        } else if looked.of_places.is_due(PLACES_INTERVAL) {
            let (config, checks, there) = (self.config.clone(), self.checks.clone(), self.pool_look.clone());
            tokio::spawn(async move {
                let found = placement::off_set(&config, &checks).await;
                there.locked().are_placed(found);
            });
        }
        let mut look = looked.look.clone();
        if self.runs.load(Ordering::Relaxed) {
            look.off_set = both(self.driver.elsewhere(), look.off_set);
        }
        look
    }

    async fn openers(&self) -> PoolUsers {
        openers::openers(&self.config).await
    }

    async fn end_users(&self, most: usize, ended: Ended) -> Result<(), String> {
        // OWN-P1: who uses somebody else's pool goes on.
        let ours = ownership::there(&self.config).await?;
        if ours && self.config.pool.kind == PoolKind::Zfs {
            openers::end_users(&self.config, most, &ended).await?;
        }
        Ok(())
    }

    async fn export(&self, hard: bool) -> Result<(), NotDone> {
        self.looked().look.warning.clear();
        let Some(there) = to_export(ownership::there(&self.config).await)? else { return Ok(()) };
        if there {
            self.checks.ended().await;
            match hard {
                true => pool::export(&self.config, true).await?,
                false => pool::export_unless_used(&self.config, &self.mounted_before).await?,
            }
        }
        self.mounted_before.clear();
        // OWN-P1: a later pool of this name belongs to a person who works by hand.
        ownership::forget(&self.config);
        Ok(())
    }

    async fn arm(&self) -> Result<(), String> {
        watchdog::armed(&self.config.run_dir).await
    }

    async fn start_database(&self) -> Result<(), NotDone> {
        // An export may have failed half way before PostgreSQL is started in its place.
        pool::mount_again(&self.mounted_before).await;
        // The hook may mount what is checked next.
        hooks::before_start(&self.config).await?;
        placement::may_start(&self.config, &self.checks).await?;
        Ok(self.driver.start().await?)
    }

    async fn stop_database(&self, how: Stop) -> Result<(), String> {
        self.driver.stop(how).await
    }

    async fn probe(&self) -> Option<DatabaseView> {
        self.driver.probe().await
    }

    async fn server(&self) -> Option<ServerView> {
        self.driver.told().await
    }

    async fn checkpoint(&self) -> Result<(), String> {
        self.driver.checkpoint().await
    }

    async fn first_write(&self) -> Result<(), String> {
        self.driver.first_write().await
    }

    fn hook_role(&self, role: Role, epoch: u64) {
        self.hooks.role(role, epoch);
    }

    fn hook_event(&self, line: &str, role: Role, epoch: u64) {
        self.hooks.event(line, role, epoch);
    }

    fn reboot(&self, why: &str) {
        tracing::error!(why, "this machine cannot release its device or pool: rebooting");
        // At once and without a sync: data that is not in the set's journal is lost in any case. The kernel accepts
        // this from root whatever kernel.sysrq says.
        let sysrq = self.sysrq();
        if let Err(error) = std::fs::write(&sysrq, "b") {
            tracing::error!(%error, "{}", sysrq.display());
        }
    }

    fn alive(&self, may_run_until: Option<MonoTime>, ttl_ms: u64, guarded: bool) {
        self.runs.store(may_run_until.is_some(), Ordering::Relaxed);
        self.signs.give(Sign { at: Some(crate::clock::now()), may_run_until, ttl_ms, guarded });
    }

    fn left_alone(&self, may_run_until: Option<MonoTime>, ttl_ms: u64, guarded: bool) {
        self.signs.give(Sign { at: None, may_run_until, ttl_ms, guarded });
    }
}

#[cfg(test)]
#[path = "drivers/tests.rs"]
mod tests;
