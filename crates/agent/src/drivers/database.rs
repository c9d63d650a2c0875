//! PostgreSQL: started by the agent itself as pg_ctl does it, by a systemd unit or by a command; queried through psql
//! as its own system user; stopped by signals.
//!
//! DB-D1  PostgreSQL's processes are those that work in the data directory, or were told to ([`of_postgres`]). A pid
//!     file is not asked: it may be another host's. If the processes cannot be inspected, nothing is known: a stop has
//!     failed then, and a probe has no result. What was found all the same counts as there, and has its signals.
//! DB-D2  Before a start, in whatever way, a pid file is removed: no process of ours is left, the device was attached
//!     by us alone, so the host that wrote it is fenced (R2) and its number means nothing here.
//! DB-D3  A look for processes reads nothing from the device: a device that waits for its gateway must not make the
//!     agent wait.
//! DB-D4  A start is given once: until it has shown itself, or has ended for certain, its process is known by its
//!     arguments (pg_ctl), by its unit (`systemd`) or by a mark in its environment (`commands`). A second start
//!     beside it would take the first one's lock file away (DB-D2).
//! DB-D5  What answers is this PostgreSQL only if it says that it works in `database.data`. Otherwise its answers count
//!     for nothing: another server has the port, or a `data_directory` in the configuration outranks `-D`.

mod commands;
mod own_server;
mod queries;
pub mod systemd;
pub(super) mod user;

use crate::config::{AgentConfig, DatabaseKind};
use crate::machine::{DatabaseView, Stop};
use crate::process::{self, Server, of_postgres, postgres_runs, postmaster, unlooked};
use crate::server::ServerView;
use commands::Commands;
use holdfast_tls::files;
use own_server::OwnServer;
use queries::Queries;
use rustix::process::Signal;
use std::sync::Arc;
use std::time::{Duration, Instant};
use systemd::Systemd;
use tokio::task::JoinSet;
use user::User;

/// PostgreSQL kills its own processes five seconds after an immediate stop began. Such a stop happens because its lease
/// is about to end: it must be gone by then.
const IMMEDIATE_LIMIT: Duration = Duration::from_millis(150);

/// Time limit of a stop by command that is not a planned one; then its processes are killed.
const STOP_COMMAND_LIMIT: Duration = Duration::from_millis(1000);

/// Time limit from SIGKILL until the last process is gone. Only a device that does not answer takes longer.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Maximum size of PG_VERSION, which PostgreSQL's user can replace; the agent that reads it is root.
const VERSION_BYTES_MAX: u64 = 1 << 10;

/// The driver.
#[derive(Debug)]
pub struct Database {
    config: AgentConfig,
    /// Which processes are looked for.
    processes: Server,
    user: Arc<User>,
    queries: Queries,
    server: OwnServer,
    unit: Systemd,
    commands: Commands,
}

impl Database {
    /// For these settings; nothing is started.
    pub fn new(config: &AgentConfig) -> Self {
        let user = Arc::new(User::new(&config.database));
        let log = config.dir.join("postgresql.log");
        Self {
            processes: Server::of(&config.database),
            queries: Queries::new(&config.database, user.clone()),
            server: OwnServer::new(config, user.clone(), &log),
            unit: Systemd::new(config),
            commands: Commands::new(config, &log),
            config: config.clone(),
            user,
        }
    }

    /// Whether any process of it is there.
    ///
    /// # Errors
    /// The processes could not be inspected.
    pub fn runs(&self) -> Result<bool, String> {
        postgres_runs(&self.processes).map_err(|error| unlooked(&error))
    }

    /// Whether any process of it is there, or a start of it is under way, when an agent begins. Checks also whether it
    /// can be started in the way that the settings say.
    ///
    /// # Errors
    /// The processes could not be inspected; or nothing is there, and the unit would come up by itself.
    pub async fn found(&self) -> Result<bool, String> {
        let runs = self.runs()?;
        match self.config.database.kind {
            DatabaseKind::Command => Ok(runs),
            DatabaseKind::PgCtl => {
                if let Err(why) = self.user.keeps_groups().await {
                    tracing::error!(why, "PostgreSQL will not be started on this host");
                }
                Ok(runs)
            }
            DatabaseKind::Systemd => {
                let unit = self.unit.look().await?;
                let there = runs || !unit.gone();
                match unit.fit() {
                    Err(why) if !there => Err(why),
                    Err(why) => {
                        // Not left without an agent for that. It is not started again before the unit is corrected.
                        tracing::error!(why, "PostgreSQL runs, but its unit has wrong settings");
                        Ok(true)
                    }
                    Ok(()) => Ok(there),
                }
            }
        }
    }

    /// Starts it, if `hooks.before_start` lets it.
    ///
    /// # Errors
    /// Why not.
    pub async fn start(&self) -> Result<(), String> {
        self.ask_first().await?;
        self.start_unasked().await
    }

    /// Starts it; the hook was asked.
    ///
    /// # Errors
    /// Why not.
    pub async fn start_unasked(&self) -> Result<(), String> {
        // Before anything is touched.
        match self.config.database.kind {
            // UNIT-U1
            DatabaseKind::Systemd => self.unit.look().await?.fit()?,
            DatabaseKind::PgCtl => self.user.keeps_groups().await?,
            DatabaseKind::Command => {}
        }
        let version = self.clear().await?;
        self.queries.forget();
        // Only after it was seen does "no process" mean that it ended.
        let limit = Duration::from_secs(self.config.database.start_timeout_s);
        match self.config.database.kind {
            DatabaseKind::PgCtl => self.server.start(&version, limit).await,
            DatabaseKind::Systemd => self.unit.start(limit).await,
            DatabaseKind::Command => self.commands.start(limit).await,
        }
    }

    /// Runs `hooks.before_start`, which may forbid the start.
    ///
    /// # Errors
    /// It does.
    pub async fn ask_first(&self) -> Result<(), String> {
        super::hooks::before_start(&self.config).await
    }

    /// Removes another host's pid file (DB-D2): its number may belong to a process of this host, and then neither
    /// pg_ctl nor a unit would start. Returns PG_VERSION.
    async fn clear(&self) -> Result<String, String> {
        let data = self.config.database.data.clone();
        let pid_file = data.join("postmaster.pid");
        let (processes, user) = (self.processes.clone(), self.config.database.user.clone());
        if self.runs()? {
            return Err(format!("processes of PostgreSQL work in {} already", data.display()));
        }
        // This waits for the device, so not on the runtime's own threads.
        let removed = tokio::task::spawn_blocking(move || {
            let version = files::read_text_of_user(&data.join("PG_VERSION"), VERSION_BYTES_MAX)
                .map_err(|error| format!("{}: expected a data directory, PG_VERSION: {error}", data.display()))?;
            // Over a link no process would be seen working there, and a running server would lose its pid file.
            super::pool::without_links("database.data", &data)?;
            processes.owns_its_data(&user)?;
            // Inspected once more: that read may have waited for the device, and a later start have been quicker.
            if postgres_runs(&processes).map_err(|error| unlooked(&error))? {
                return Err(format!("processes of PostgreSQL work in {} already", data.display()));
            }
            match std::fs::remove_file(&pid_file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(format!("{}: {error}", pid_file.display()))
                }
                _ => Ok(version),
            }
        });
        removed.await.map_err(|error| error.to_string())?
    }

    /// Sends a signal to its first process, also if other processes could not be inspected: whether all of them go is
    /// checked afterwards.
    ///
    /// # Errors
    /// The first process was not found, and not all processes could be inspected.
    fn signal(&self, what: Signal) -> Result<(), String> {
        let looked = process::look_for_postgres(&self.processes);
        if let Some(first) = postmaster(&looked.found) {
            process::signal(first, what);
            return Ok(());
        }
        looked.whole().map(drop).map_err(|error| unlooked(&error))
    }

    /// Stops it.
    ///
    /// # Errors
    /// Processes are left, or a start of it is.
    pub async fn stop(&self, how: Stop) -> Result<(), String> {
        let start_ended = self.commands.end_start();
        match how {
            Stop::Fast => self.stop_in_good_order(start_ended).await,
            Stop::Immediate => self.end(how, Signal::QUIT, IMMEDIATE_LIMIT, start_ended).await,
            Stop::Kill => self.end(how, Signal::KILL, Duration::ZERO, start_ended).await,
        }
    }

    async fn stop_in_good_order(&self, start_ended: Result<(), String>) -> Result<(), String> {
        let settings = &self.config.database;
        let (begun, limit) = (Instant::now(), Duration::from_secs(settings.stop_timeout_s));
        let left = || limit.saturating_sub(begun.elapsed());
        let ordered = self.order_stop(limit).await;
        // UNIT-U4. A person may also have started it without the unit.
        if settings.kind != DatabaseKind::Command || ordered.is_err() {
            self.signal(Signal::INT)?;
        }
        start_ended?;
        let unordered = ordered.err().map_or_else(String::new, |why| format!("; {why}"));
        if !process::postgres_gone(&self.processes, left()).await {
            let left = of_postgres(&self.processes).map_err(|error| unlooked(&error))?.len();
            let limit = limit.as_secs();
            return Err(format!("{left} processes of PostgreSQL are left after a fast stop of {limit} s{unordered}"));
        }
        if settings.kind == DatabaseKind::Systemd {
            self.unit.ended(left()).await.map_err(|why| format!("{why}{unordered}"))?;
        }
        Ok(())
    }

    /// Orders a fast stop from whatever has started it.
    ///
    /// # Errors
    /// The order failed, or took longer than `limit`, or for a unit than half of it.
    async fn order_stop(&self, limit: Duration) -> Result<(), String> {
        let ordered = match self.config.database.kind {
            // UNIT-U4: an order that hangs leaves PostgreSQL the other half of the time.
            DatabaseKind::Systemd => self.unit.stop(limit / 2).await,
            DatabaseKind::Command => self.commands.stop("fast", limit.max(STOP_COMMAND_LIMIT)).await,
            DatabaseKind::PgCtl => Ok(()),
        };
        if let Err(why) = &ordered {
            tracing::warn!(why, "the stop command failed; signalling the postmaster");
        }
        ordered
    }

    /// Ends it without waiting for clients; what is left after `limit` is killed.
    async fn end(
        &self,
        how: Stop,
        what: Signal,
        limit: Duration,
        start_ended: Result<(), String>,
    ) -> Result<(), String> {
        let kind = self.config.database.kind;
        // The first process killed alone would leave the others without it as their parent, and those that work in
        // another directory (DB-D5) are not found then.
        if how != Stop::Kill {
            // A failed look does not prevent the SIGKILL below, which tries for longer.
            drop(self.signal(what));
        }
        let ended = async {
            let gone = how != Stop::Kill && process::postgres_gone(&self.processes, limit).await;
            if gone { Ok(()) } else { self.kill().await }
        };
        // The lease is about to end (AGENT-A3), and a script may wait for something that does not answer any more, or
        // not even start on a disk that hangs: it is told in a task of its own, and the SIGKILL does not wait for it.
        let mut telling = JoinSet::new();
        if kind == DatabaseKind::Command {
            telling.spawn(self.commands.stopping("immediate", STOP_COMMAND_LIMIT));
        }
        let killed = ended.await;
        match tokio::time::timeout(STOP_COMMAND_LIMIT, telling.join_next()).await {
            Ok(Some(Ok(Err(why)))) => tracing::debug!(why, "database.stop"),
            Ok(_) => {}
            Err(_) => tracing::debug!("database.stop has not ended"),
        }
        start_ended?;
        if kind == DatabaseKind::Systemd {
            // Even if some are left: no further process may start.
            self.unit.end(how).await?;
        }
        killed?;
        match kind {
            DatabaseKind::PgCtl => Ok(()),
            // Processes that had not got as far as the data directory before, or were started by a service that the
            // script has ended since.
            DatabaseKind::Systemd | DatabaseKind::Command => self.kill().await,
        }
    }

    async fn kill(&self) -> Result<(), String> {
        process::kill_postgres_here(&self.processes, KILL_LIMIT).await
    }

    /// Its state; `None` if it could not be inspected or asked, which says nothing of it.
    pub async fn probe(&self) -> Option<DatabaseView> {
        if self.config.database.kind == DatabaseKind::PgCtl {
            self.server.bound_log();
        }
        let view = match self.runs() {
            Ok(true) => self.queries.health().await,
            Ok(false) => {
                self.queries.forget();
                Ok(DatabaseView::Gone)
            }
            Err(why) => Err(why),
        };
        if let Err(why) = &view {
            tracing::warn!(why, "cannot query PostgreSQL: its state is unknown");
        }
        view.ok()
    }

    /// What it says of itself; `None` if it does not answer soon.
    pub async fn told(&self) -> Option<ServerView> {
        self.queries.told().await
    }

    /// The other data directory of what answers, and the remedy; "" for none (DB-D5).
    pub fn elsewhere(&self) -> String {
        self.queries.elsewhere()
    }

    /// Makes a checkpoint, unless that is switched off.
    ///
    /// # Errors
    /// Not in time.
    pub async fn checkpoint(&self) -> Result<(), String> {
        self.queries.checkpoint().await
    }

    /// Makes a commit that is flushed: a message in the WAL that nothing reads, without a table.
    ///
    /// # Errors
    /// It may have happened or not.
    pub async fn first_write(&self) -> Result<(), String> {
        self.queries.first_write().await
    }
}

#[cfg(test)]
#[path = "database/contract_tests.rs"]
mod contract_tests;

#[cfg(test)]
#[path = "database/tests.rs"]
mod tests;
