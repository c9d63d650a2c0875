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
use crate::hostid;
use crate::machine::{DatabaseView, Found, LeaseView, Role, Stop};
use crate::watchdog::{self, Sign};
use attach::Attach;
use database::Database;
use hooks::Hooks;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a host id that was read is shown: a person may give the host another one.
const HOST_ID_INTERVAL: Duration = Duration::from_secs(1);

/// Before the host id was read for the first time. It is read beside the agent's task, so that this stays where the read never ends.
const NOT_READ: &str = "the host id of this host is not read yet: wait a moment; if this stays, look at the disk that /etc/hostid is on: it does not answer";

/// What is known of the pool.
#[derive(Debug, Default)]
struct Looked {
    /// When the host id was last asked for, and whether that still goes on.
    asked: Option<Instant>,
    asking: bool,
    look: PoolLook,
}

impl Looked {
    /// Before anything is known: where it matters, that is no leave to take the lease.
    fn of(multihost: bool) -> Self {
        let unable = if multihost { NOT_READ } else { "" };
        Self { look: PoolLook { multihost, unable: unable.into(), ..PoolLook::default() }, ..Self::default() }
    }

    fn is_told(&mut self, multihost: bool, id: Result<String, String>) {
        let id = id.map_err(|why| format!("the host id of this host is not known: {why}; it has to be readable"));
        let able = id.as_deref().map_err(Clone::clone).and_then(|id| hostid::may_import(id, &[]));
        self.look.unable = if multihost { able.err().unwrap_or_default() } else { String::new() };
        self.look.host_id = id.unwrap_or_default();
        self.asking = false;
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
        })
    }

    fn looked(&self) -> MutexGuard<'_, Looked> {
        self.pool_look.lock().unwrap_or_else(PoisonError::into_inner)
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
        let old = looked.asked.is_none_or(|at| at.elapsed() >= HOST_ID_INTERVAL);
        if self.config.pool.kind == PoolKind::Zfs && old && !looked.asking {
            (looked.asked, looked.asking) = (Some(Instant::now()), true);
            let (multihost, there) = (self.config.pool.multihost, self.pool_look.clone());
            // The files lie on a disk that may hang, and the agent's task has a lease to watch (A3).
            tokio::task::spawn_blocking(move || {
                let id = hostid::read();
                there.lock().unwrap_or_else(PoisonError::into_inner).is_told(multihost, id);
            });
        }
        looked.look.clone()
    }

    async fn export(&self, hard: bool) -> Result<(), String> {
        self.looked().look.warning.clear();
        match ours::there(&self.config).await {
            Ok(true) => pool::export(&self.config, hard).await,
            Ok(false) => Ok(()),
            // Ours is not there: it was not imported because of this one.
            Err(why) => {
                tracing::error!(why, "left where it is");
                Ok(())
            }
        }
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
        if let Err(error) = std::fs::write("/proc/sysrq-trigger", "b") {
            tracing::error!(%error, "/proc/sysrq-trigger");
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
            looked.is_told(multihost, id.map(Into::into).map_err(Into::into));
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
}
