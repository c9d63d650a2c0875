//! A service other than PostgreSQL (ADR 0076): started and stopped by a systemd unit or by commands, and checked by a
//! command.
//!
//! SERVICE-S1  What runs is known by its control group (CGROUP-C1), and by its unit as long as that is not inactive. It
//!     is stopped only once neither has anything: a unit without processes, such as that of the kernel's NFS server,
//!     runs while it is active.
//! SERVICE-S2  A start command enters the control group before it becomes that command. A start that is given up
//!     earlier is killed, and has started nothing.
//! SERVICE-S3  It serves if its check ends with exit code 0 in time. Another end, or none in time, is no answer.
//!     A check that could not be run says nothing of the service.
//! SERVICE-S4  A stop that is not a planned one begins with SIGKILL: the lease is about to end (AGENT-A3). A script, or
//!     systemd, is waited for afterwards.

mod scripts;

use super::database::systemd::Systemd;
use crate::config::{AgentConfig, ServiceConfig, ServiceKind};
use crate::machine::{DatabaseView, Stop, Workload};
use crate::process::{self, Group, NotRan, Ran, log};
use holdfast_types::sync::LockExt;
use scripts::Scripts;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::process::Child;
use tokio::task::JoinSet;

/// Its output is cut beyond this many bytes ([`log`]).
const LOG_BYTES_MAX: u64 = 16 << 20;

/// How long the end of a start command is waited for, unless a check succeeds before. A command that stays is the
/// service, and its readiness is waited for elsewhere.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// Pause between two looks during a start.
const START_PAUSE: Duration = Duration::from_millis(100);

/// A start command enters its control group within this time: it is a shell's first line.
const ENTER_LIMIT: Duration = Duration::from_secs(10);

/// Time limit from SIGKILL until the last process is gone. Only a device that does not answer takes longer.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Time limit of a unit to end once its processes were killed: it may have a last command (`ExecStopPost=`).
const END_LIMIT: Duration = Duration::from_secs(5);

/// Time limit of a stop command that is not a planned stop.
const STOP_COMMAND_LIMIT: Duration = Duration::from_secs(1);

/// A start command that may not be in its control group yet: it ends with its start (SERVICE-S2).
struct Entering(Option<Child>);

impl Drop for Entering {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.start_kill();
        }
    }
}

/// The driver.
#[derive(Debug)]
pub struct Service {
    it: Workload,
    settings: ServiceConfig,
    group: Group,
    /// For kind "systemd".
    unit: Option<Systemd>,
    scripts: Arc<Scripts>,
    /// Output of the start command, and of what it starts.
    log: PathBuf,
    /// A look at the length of that log is under way.
    bounding: Arc<AtomicBool>,
    /// Why the last check failed; "" if it succeeded.
    failing: Mutex<String>,
}

impl Service {
    /// For these settings; nothing is started.
    pub fn new(config: &AgentConfig, settings: &ServiceConfig) -> Self {
        Self {
            it: config.workload(),
            group: Group::of(config, settings),
            unit: (settings.kind == ServiceKind::Systemd).then(|| Systemd::of_unit(&settings.unit)),
            scripts: Arc::new(Scripts::new(config, settings)),
            log: config.dir.join("service.log"),
            bounding: Arc::default(),
            failing: Mutex::default(),
            settings: settings.clone(),
        }
    }

    /// Whether anything of it runs (SERVICE-S1).
    async fn runs(&self) -> Result<bool, String> {
        if self.group.any()? {
            return Ok(true);
        }
        match &self.unit {
            Some(unit) => Ok(!unit.look().await?.gone()),
            None => Ok(false),
        }
    }

    /// Whether anything of it is there when an agent begins.
    ///
    /// # Errors
    /// That is not known; or nothing is there, and its unit would come up by itself.
    pub async fn found(&self) -> Result<bool, String> {
        let runs = self.group.any()?;
        let Some(unit) = &self.unit else { return Ok(runs) };
        let unit = unit.look().await?;
        let there = runs || !unit.gone();
        match unit.fit_as_service() {
            Err(why) if !there => Err(why),
            Err(why) => {
                // Not left without an agent for that. It is not started again before the unit is corrected.
                tracing::error!(why, "the service runs, but its unit has wrong settings");
                Ok(true)
            }
            Ok(()) => Ok(there),
        }
    }

    /// Starts it, of which nothing runs.
    ///
    /// # Errors
    /// Why not.
    pub async fn start(&self) -> Result<(), String> {
        let it = &self.it;
        if let Some(unit) = &self.unit {
            // UNIT-U1, before anything is touched.
            unit.look().await?.fit_as_service()?;
        }
        if self.runs().await? {
            return Err(format!("{it} runs already"));
        }
        let limit = Duration::from_secs(self.settings.start_timeout_s);
        match &self.unit {
            Some(unit) => self.start_unit(unit, limit).await,
            None => self.start_command(limit).await,
        }
    }

    async fn start_unit(&self, unit: &Systemd, limit: Duration) -> Result<(), String> {
        unit.order_start().await?;
        let begun = Instant::now();
        loop {
            let (it, name) = (&self.it, &self.settings.unit);
            let late = match unit.look().await {
                Ok(unit) if unit.is_active() => return Ok(()),
                Ok(unit) if unit.gone() => {
                    let state = unit.state();
                    return Err(format!("{it} ended at once: unit {name} is {state}: `journalctl -u {name}` says why"));
                }
                Ok(unit) => format!("unit {name} is {} after {} s", unit.state(), limit.as_secs()),
                // UNIT-U4: the start was ordered, and goes on.
                Err(why) => why,
            };
            if begun.elapsed() >= limit {
                return Err(late);
            }
            tokio::time::sleep(START_PAUSE).await;
        }
    }

    /// Runs the start command until it has ended, or a check succeeds beside it.
    async fn start_command(&self, limit: Duration) -> Result<(), String> {
        let mut child = self.entered().await?;
        let (it, begun) = (&self.it, Instant::now());
        loop {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                let said = || process::tail(&self.log, 3);
                if !status.success() {
                    return Err(format!("service.start: {status}: {}", said()));
                }
                if !self.group.any()? {
                    return Err(format!("{it} ended at once: service.start left no process behind: {}", said()));
                }
                return Ok(());
            }
            let serves = self.check().await == Some(DatabaseView::Ready);
            if serves || begun.elapsed() >= limit.min(START_PATIENCE) {
                return Ok(());
            }
            tokio::time::sleep(START_PAUSE).await;
        }
    }

    /// The start command, in its control group (SERVICE-S2).
    async fn entered(&self) -> Result<Child, String> {
        let group = self.group.make()?;
        let text = self.settings.start.as_deref().unwrap_or_default();
        let mut command = self.scripts.command(text, Some(&group)).await?;
        // Where its disk hangs, this start can be given up.
        let path = self.log.clone();
        let opened = tokio::task::spawn_blocking(move || log::open(&path, LOG_BYTES_MAX)).await;
        let opened = opened.map_err(|error| error.to_string())?;
        let log = opened.map_err(|error| format!("{}: {error}", self.log.display()))?;
        let copy = log.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(copy).stderr(log).process_group(0);
        let child = command.spawn().map_err(|error| format!("service.start: {error}"))?;
        let (begun, mut entering) = (Instant::now(), Entering(Some(child)));
        loop {
            let Some(child) = &mut entering.0 else { return Err("nothing was started".into()) };
            let ended = child.try_wait().map_err(|error| error.to_string())?.is_some();
            let is_in = |pid: u32| self.group.look().found.contains(&pid.cast_signed());
            if ended || child.id().is_some_and(is_in) {
                break;
            }
            if begun.elapsed() >= ENTER_LIMIT {
                let limit = ENTER_LIMIT.as_secs();
                return Err(format!("service.start: not seen in {} within {limit} s", group.display()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        entering.0.take().ok_or_else(|| "nothing was started".into())
    }

    /// Stops it.
    ///
    /// # Errors
    /// Something of it is left.
    pub async fn stop(&self, how: Stop) -> Result<(), String> {
        match how {
            Stop::Fast => self.stop_in_good_order().await?,
            Stop::Immediate | Stop::Kill => self.end().await?,
        }
        self.group.remove();
        Ok(())
    }

    async fn stop_in_good_order(&self) -> Result<(), String> {
        let (begun, limit) = (Instant::now(), Duration::from_secs(self.settings.stop_timeout_s));
        let left = || limit.saturating_sub(begun.elapsed());
        let ordered = match (&self.unit, &self.settings.stop) {
            // UNIT-U4: an order that hangs leaves the service the other half of the time.
            (Some(unit), _) => unit.stop(limit / 2).await,
            (None, Some(stop)) => self.scripts.stop(stop, "fast", limit).await,
            (None, None) => {
                self.group.tell_to_end();
                Ok(())
            }
        };
        if let Err(why) = &ordered {
            tracing::warn!(why, "the stop command failed; signalling the processes");
            self.group.tell_to_end();
        }
        let unordered = ordered.err().map_or_else(String::new, |why| format!("; {why}"));
        if !self.group.gone(left()).await {
            let (it, count, limit) = (&self.it, self.group.look().found.len(), limit.as_secs());
            return Err(format!("{count} processes of {it} are left after a stop of {limit} s{unordered}"));
        }
        match &self.unit {
            Some(unit) => unit.ended(left()).await.map_err(|why| format!("{why}{unordered}")),
            None => Ok(()),
        }
    }

    /// Ends it without waiting for anything that it does (SERVICE-S4).
    async fn end(&self) -> Result<(), String> {
        // In a task of its own: a script may not even start on a disk that hangs.
        let mut telling = JoinSet::new();
        if let (None, Some(stop)) = (&self.unit, self.settings.stop.clone()) {
            let scripts = self.scripts.clone();
            telling.spawn(async move { scripts.stop(&stop, "immediate", STOP_COMMAND_LIMIT).await });
        }
        let killed = self.group.kill_here(KILL_LIMIT).await;
        match tokio::time::timeout(STOP_COMMAND_LIMIT, telling.join_next()).await {
            Ok(Some(Ok(Err(why)))) => tracing::warn!(why, "service.stop"),
            Ok(_) => {}
            Err(_) => tracing::warn!("service.stop has not ended"),
        }
        if let Some(unit) = &self.unit {
            self.end_unit(unit).await?;
        }
        killed?;
        // What a unit had just begun to start.
        self.group.kill_here(KILL_LIMIT).await
    }

    /// UNIT-U2: also a start of it that waits.
    async fn end_unit(&self, unit: &Systemd) -> Result<(), String> {
        if unit.look().await?.gone() {
            return Ok(());
        }
        unit.order_end().await?;
        unit.ended(END_LIMIT).await
    }

    /// Its state; `None` if that is not known.
    pub async fn probe(&self) -> Option<DatabaseView> {
        self.bound_log();
        match self.runs().await {
            Ok(true) => self.check().await,
            Ok(false) => Some(DatabaseView::Gone),
            Err(why) => {
                tracing::warn!(why, "cannot look at the service: its state is unknown");
                None
            }
        }
    }

    /// SERVICE-S3
    async fn check(&self) -> Option<DatabaseView> {
        let limit = Duration::from_millis(self.settings.check_timeout_ms);
        let text = self.settings.check.as_deref().unwrap_or("exit 1");
        let ran = match self.scripts.command(text, None).await {
            Ok(command) => process::ran(command, limit).await,
            Err(why) => Err(NotRan::Unable(why)),
        };
        let failed = match ran {
            Ok(Ran { code: Some(0), .. }) => String::new(),
            Ok(Ran { code, out, err }) => {
                let ended = code.map_or_else(|| "was killed".to_string(), |code| format!("exit code {code}"));
                format!("{ended}: {}", if err.is_empty() { out } else { err })
            }
            Err(NotRan::Late(why)) => why,
            Err(NotRan::Unable(why)) => {
                tracing::warn!(why, "service.check could not be run: the state of the service is unknown");
                return None;
            }
        };
        let view = if failed.is_empty() { DatabaseView::Ready } else { DatabaseView::Silent };
        self.note(failed);
        Some(view)
    }

    /// Logs when the checks begin to fail, and when they succeed again.
    fn note(&self, failed: String) {
        let mut last = self.failing.locked();
        match (last.is_empty(), failed.is_empty()) {
            (true, false) => tracing::warn!(failed, "service.check failed"),
            (false, true) => tracing::info!("service.check succeeds"),
            _ => {}
        }
        *last = failed;
    }

    /// Cuts the log if it is too long. Beside the caller: a disk that hangs must not make the agent wait.
    fn bound_log(&self) {
        if self.unit.is_some() || self.bounding.swap(true, Ordering::Relaxed) {
            return;
        }
        let (path, bounding) = (self.log.clone(), self.bounding.clone());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = log::bound(&path, LOG_BYTES_MAX) {
                tracing::warn!(path = %path.display(), %error, "cannot truncate the log of the service: it may fill its disk");
            }
            bounding.store(false, Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
#[path = "service/tests.rs"]
mod tests;
