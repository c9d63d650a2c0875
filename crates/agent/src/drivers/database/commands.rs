//! PostgreSQL started and stopped by commands of the settings.
//!
//! A start command may leave processes behind that become PostgreSQL later. They are known by a mark in their
//! environment (DB-D4).

use crate::config::AgentConfig;
use crate::process::{self, Server, of_mark, postgres_runs, run, unlooked};
use holdfast_types::sync::LockExt;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::process::Command;
use tokio::task::JoinSet;

/// How long the end of a start command is waited for, whatever exists of PostgreSQL. After that it is enough that
/// PostgreSQL is there: a command that ends only once PostgreSQL is ready, such as `pg_ctl` without `-W`, waits for its
/// recovery, which may take longer. Readiness is waited for elsewhere.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// Pause between two searches for PostgreSQL after that.
const START_LOOK: Duration = Duration::from_millis(50);

/// After a start command ended and left no process that could become PostgreSQL: how long PostgreSQL may still appear.
const APPEAR_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two searches meanwhile.
const APPEAR_LOOK: Duration = Duration::from_millis(5);

/// Variable in the environment of a start command and its descendants: the mark of that start.
const MARK: &str = "HOLDFAST_START";

/// Start and stop by commands.
#[derive(Debug)]
pub struct Commands {
    start: String,
    stop: String,
    processes: Server,
    /// PostgreSQL's own output, for error messages.
    log: PathBuf,
    /// Mark of the last start, until PostgreSQL has shown itself.
    mark: Mutex<Option<String>>,
}

impl Commands {
    /// For these settings; nothing is started.
    pub fn new(config: &AgentConfig, log: &Path) -> Self {
        let settings = &config.database;
        Self {
            start: settings.start.clone().unwrap_or_default(),
            stop: settings.stop.clone().unwrap_or_default(),
            processes: Server::of(settings),
            log: log.into(),
            mark: Mutex::default(),
        }
    }

    fn runs(&self) -> Result<bool, String> {
        postgres_runs(&self.processes).map_err(|error| unlooked(&error))
    }

    /// Runs the start command, and waits until PostgreSQL has shown itself.
    ///
    /// # Errors
    /// The command failed, or nothing of PostgreSQL appeared in time.
    pub async fn start(&self, limit: Duration) -> Result<(), String> {
        self.start_within(limit, START_PATIENCE).await
    }

    pub(super) async fn start_within(&self, limit: Duration, patience: Duration) -> Result<(), String> {
        // By the machine's clock: it is compared with when processes began, which the kernel tells.
        let now = crate::clock::shown(crate::clock::now());
        let mark = format!("{} {now}", std::process::id());
        *self.mark.locked() = Some(mark.clone());
        let mut command = script(&self.start);
        command.env(MARK, &mark);
        // The command ends with this set, unless it is detached.
        let mut given = JoinSet::new();
        given.spawn(run(command, limit));
        self.shows_itself(&mut given, &mark, limit, patience).await?;
        // From here on its working directory identifies it; other processes that the command left are not our
        // business.
        *self.mark.locked() = None;
        given.detach_all();
        Ok(())
    }

    async fn shows_itself(
        &self,
        given: &mut JoinSet<Result<String, String>>,
        mark: &str,
        limit: Duration,
        patience: Duration,
    ) -> Result<(), String> {
        let begun = Instant::now();
        let ended = loop {
            let wait = patience.saturating_sub(begun.elapsed()).max(START_LOOK);
            match tokio::time::timeout(wait, given.join_next()).await {
                Ok(ended) => break ended,
                Err(_) if self.runs()? => return Ok(()),
                Err(_) => {}
            }
        };
        ended.ok_or("nothing was started")?.map_err(|error| error.to_string())??;
        let ended = Instant::now();
        while !self.runs()? {
            // A process that could not be inspected may become PostgreSQL.
            let comes = self.of_start(mark).any().unwrap_or(true);
            if begun.elapsed() >= limit || !comes && ended.elapsed() >= APPEAR_LIMIT {
                return Err(format!("PostgreSQL ended at once: {}", process::tail(&self.log, 3)));
            }
            tokio::time::sleep(APPEAR_LOOK).await;
        }
        Ok(())
    }

    /// Processes of the start with this mark.
    pub(super) fn of_start(&self, mark: &str) -> process::ProcessSearch {
        let since_ns = mark.rsplit(' ').next().and_then(|since| since.parse().ok()).unwrap_or(0);
        of_mark(&self.processes, MARK, mark, since_ns)
    }

    /// Mark of the last start, until PostgreSQL has shown itself.
    #[cfg(test)]
    pub(super) fn mark(&self) -> Option<String> {
        self.mark.locked().clone()
    }

    /// Kills what a start has left on its way to becoming PostgreSQL.
    ///
    /// # Errors
    /// Some of it may be left. The next stop looks for it again.
    pub fn end_start(&self) -> Result<(), String> {
        let Some(mark) = self.mark.locked().clone() else { return Ok(()) };
        let looked = self.of_start(&mark);
        looked.found.iter().for_each(|pid| process::signal(*pid, Signal::KILL));
        looked.whole().map_err(|error| unlooked(&error))?;
        *self.mark.locked() = None;
        Ok(())
    }

    /// Runs the stop command. `how`: `fast` or `immediate`, in its environment.
    ///
    /// # Errors
    /// It failed, or took too long.
    pub async fn stop(&self, how: &str, limit: Duration) -> Result<(), String> {
        self.stopping(how, limit).await
    }

    /// Like `stop`, for a task of its own.
    pub fn stopping(&self, how: &str, limit: Duration) -> impl Future<Output = Result<(), String>> + Send + use<> {
        let mut command = script(&self.stop);
        command.env("HOLDFAST_STOP", how);
        async move { run(command, limit).await.map(drop) }
    }
}

/// A script of the settings.
pub fn script(text: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(text);
    command
}
