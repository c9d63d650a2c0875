//! The real host: gateways, attach, pool, PostgreSQL, hooks and watchdog file of one configuration.

pub mod database;
mod hooks;
mod openers;
pub mod ownership;
mod placement;
pub mod pool;
pub mod zfs;

use crate::attach_process::Attach;
use crate::cluster::Gateways;
use crate::config::{AgentConfig, PoolKind, WatchdogMode};
use crate::host::{AttachLook, Host, NotDone, PoolLook};
use crate::hostid::{self, Told};
use crate::machine::{DatabaseView, Found, LeaseView, Role, Stop};
use crate::process;
use crate::watchdog::{self, Sign};
use database::Database;
use hooks::Hooks;
use ownership::NotOurs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// How often it is looked where PostgreSQL's files lie while it runs (ONSET-L2).
const PLACES_INTERVAL: Duration = Duration::from_secs(5);

/// For that look when an agent begins: its first sign of life waits for it, and the device may hang. Then the next look tells.
const PLACES_LIMIT: Duration = Duration::from_millis(500);

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
    of_places: Asking,
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

    /// It was looked where the files of a PostgreSQL that runs lie. What could not be looked at says nothing new.
    fn are_placed(&mut self, found: Result<String, String>) {
        self.of_places.goes_on = false;
        match found {
            Ok(off_set) if off_set != self.look.off_set => {
                if off_set.is_empty() {
                    tracing::info!("all of PostgreSQL lies on the set again");
                } else {
                    tracing::error!(
                        off_set,
                        "PostgreSQL runs, and not all of it lies on the set: it goes on, and what is not there is lost with this host"
                    );
                }
                self.look.off_set = off_set;
            }
            Ok(_) => {}
            Err(why) => tracing::warn!(why, "it could not be looked where PostgreSQL's files lie"),
        }
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
    /// PostgreSQL may run, as the last sign of life says.
    runs: AtomicBool,
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
            runs: AtomicBool::new(false),
            root: ROOT.into(),
        })
    }

    /// A PostgreSQL that runs already is gone on with wherever it lies (ONSET-L2): it is primary. It is not started again there.
    async fn places_adopted(&self) {
        let look = tokio::time::timeout(PLACES_LIMIT, placement::off_set(&self.config));
        let found = look.await.unwrap_or_else(|_| Err("the device does not answer".into()));
        self.looked().are_placed(found);
    }

    /// A running server of another user would not be found, and would be stopped for a start of our own. A device that
    /// does not answer is no reason: nothing is started on it.
    async fn owner_is_known(&self) -> Result<(), String> {
        let server = process::Server::of(&self.config.database);
        let looking = tokio::task::spawn_blocking(move || server.unknown_owner());
        let Ok(Ok(Some(owner))) = tokio::time::timeout(PLACES_LIMIT, looking).await else { return Ok(()) };
        let (data, user) = (self.config.database.data.display(), &self.config.database.user);
        Err(format!(
            "{data}: found that it belongs to the user with number {owner}, expected {user} (database.user): a PostgreSQL that runs there would not be found; \
             nothing was touched: correct database.user"
        ))
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
        if !self.runs.load(Ordering::Relaxed) {
            // What an agent finds when it begins is told before it has given a sign.
            if looked.of_places.asked.is_some() {
                looked.look.off_set.clear();
            }
        } else if looked.of_places.is_due(PLACES_INTERVAL) {
            let (config, there) = (self.config.clone(), self.pool_look.clone());
            tokio::spawn(async move {
                let found = placement::off_set(&config).await;
                there.lock().unwrap_or_else(PoisonError::into_inner).are_placed(found);
            });
        }
        looked.look.clone()
    }

    async fn openers(&self) -> Vec<String> {
        openers::openers(&self.config).await
    }

    async fn export(&self, hard: bool) -> Result<(), NotDone> {
        self.looked().look.warning.clear();
        let Some(there) = to_export(ownership::there(&self.config).await)? else { return Ok(()) };
        if there {
            placement::looks_end().await;
            match hard {
                true => pool::export(&self.config, true).await?,
                false => pool::export_unless_used(&self.config).await?,
            }
        }
        // OWN-P1: a later one of its name is somebody's at work by hand.
        ownership::forget(&self.config);
        Ok(())
    }

    async fn arm(&self) -> Result<(), String> {
        watchdog::armed(&self.config.run_dir).await
    }

    async fn start_database(&self) -> Result<(), NotDone> {
        // It may mount what is looked at.
        self.database.ask_first().await?;
        placement::may_start(&self.config).await?;
        Ok(self.database.start_unasked().await?)
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
        self.runs.store(may_run_until_ns != 0, Ordering::Relaxed);
        self.signs.give(Sign { at_ns: crate::clock::now().0, may_run_until_ns, ttl_ms, guarded });
    }

    fn left_alone(&self, may_run_until_ns: u64, ttl_ms: u64, guarded: bool) {
        self.signs.give(Sign { at_ns: watchdog::LEFT_ALONE, may_run_until_ns, ttl_ms, guarded });
    }
}

#[cfg(test)]
#[path = "drivers/tests.rs"]
mod tests;
