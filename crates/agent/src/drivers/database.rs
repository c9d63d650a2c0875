//! PostgreSQL: started by the agent itself as pg_ctl does it, by a systemd unit or by a command; queried through psql
//! as its own system user; stopped by signals.
//!
//! DB-D1  What runs is what works in the data directory, or was told to ([`of_postgres`]), not what a pid file says: that file may be another host's. Where that cannot be
//!     looked at, nothing is known: a stop has failed then, and a probe says nothing. What was found all the same counts as there, and has its signals.
//! DB-D2  Before a start, in whatever way, a pid file is taken away: no process of ours is left, the device was attached by us alone, so whoever wrote it is fenced
//!     (R2) and its number means nothing here.
//! DB-D3  Looking at it reads nothing from the device: a device that waits for its gateway must not make the agent wait.
//! DB-D4  A start is given once: until it has shown itself, or has ended for certain, its process is known by what it was told (pg_ctl), by its unit ([`systemd`]) or by
//!     a mark in its environment (command). A second start beside it would take the first one's lock file away (DB-D2).

pub mod systemd;

use crate::config::{AgentConfig, DatabaseKind};
use crate::machine::{DatabaseView, Stop};
use crate::process::{
    self, NotRan, Ran, Server, log, of_mark, of_postgres, postgres_runs, postmaster, ran, run, system, unlooked,
};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use systemd::Systemd;
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

/// How long the end of a start command is waited for, whatever exists of PostgreSQL. After that it is enough that
/// PostgreSQL is there: a command that ends only once PostgreSQL is ready, such as `pg_ctl` without `-W`, waits for its
/// recovery, which may take longer. Readiness is waited for elsewhere.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// Pause between two searches for PostgreSQL after that.
const START_LOOK: Duration = Duration::from_millis(50);

/// After a start command ended and left no process that could become PostgreSQL: how long PostgreSQL may still appear.
const APPEAR_LIMIT: Duration = Duration::from_secs(5);

/// Variable in the environment of a start command and its descendants: the mark of that start (DB-D4).
const MARK: &str = "HOLDFAST_START";

/// PostgreSQL kills its own processes five seconds after an immediate stop began. Such a stop happens because its lease is about to end: it must be gone by then.
const IMMEDIATE_LIMIT: Duration = Duration::from_millis(150);

/// Time limit of a stop by command that is not a planned one; then its processes are killed.
const STOP_COMMAND_LIMIT: Duration = Duration::from_millis(1000);

/// Time limit from SIGKILL until the last process is gone. Only a device that does not answer takes longer.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Time limit of one health query.
const PROBE_LIMIT: Duration = Duration::from_secs(3);

/// psql's own limit for a connection exceeds the agent's by this much, so the agent kills psql first. With its own
/// limit psql would report "no connection", as for a server in recovery, which is waited for, instead of "no answer".
const CONNECT_LATER_S: u64 = 60;

/// For the first write.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// The server's own output is cut beyond this many bytes ([`log`]).
const LOG_BYTES_MAX: u64 = 16 << 20;

/// For a server that begins as a child of the agent's, whose unit has OOMScoreAdjust=-900: its first process keeps that, every other one gives itself this value. Else a
/// backend that takes all memory would be the last to be ended for it.
const OOM: [(&str, &str); 2] = [("PG_OOM_ADJUST_FILE", "/proc/self/oom_score_adj"), ("PG_OOM_ADJUST_VALUE", "0")];

/// psql's exit code if there was no connection.
const PSQL_NO_CONNECTION: i32 = 2;

/// The driver.
#[derive(Debug)]
pub struct Database {
    config: AgentConfig,
    /// Whose processes are looked for.
    processes: Server,
    log: PathBuf,
    /// A look at the length of that log is under way.
    bounding: Arc<AtomicBool>,
    ids: OnceCell<(u32, u32)>,
    unit: Systemd,
    /// Of the last start by command, until PostgreSQL has shown itself (DB-D4).
    mark: Mutex<Option<String>>,
    /// The refused login was logged.
    complained: AtomicBool,
}

impl Database {
    /// For these settings; nothing is started.
    pub fn new(config: &AgentConfig) -> Self {
        Self {
            processes: Server::of(&config.database),
            log: config.dir.join("postgresql.log"),
            bounding: Arc::default(),
            config: config.clone(),
            ids: OnceCell::new(),
            unit: Systemd::new(config),
            mark: Mutex::default(),
            complained: AtomicBool::new(false),
        }
    }

    fn data(&self) -> &Path {
        &self.config.database.data
    }

    /// Whether any process of it is there.
    ///
    /// # Errors
    /// It could not be looked.
    pub fn runs(&self) -> Result<bool, String> {
        postgres_runs(&self.processes).map_err(|error| unlooked(&error))
    }

    /// Whether any process of it is there, or a start of it is under way, when an agent begins; and whether the way in which it is to be started is fit for that.
    ///
    /// # Errors
    /// It could not be looked; or nothing is there, and the unit would come up by itself.
    pub async fn found(&self) -> Result<bool, String> {
        let runs = self.runs()?;
        if self.config.database.kind != DatabaseKind::Systemd {
            return Ok(runs);
        }
        let unit = self.unit.look().await?;
        let there = runs || !unit.gone();
        match unit.fit() {
            Err(why) if !there => Err(why),
            Err(why) => {
                // Not to be left without an agent for that. It is not started again before it is mended.
                tracing::error!(why, "PostgreSQL runs, and its unit is not as it has to be");
                Ok(true)
            }
            Ok(()) => Ok(there),
        }
    }

    /// A program run as PostgreSQL's own user.
    async fn program(&self, name: &str) -> Result<Command, String> {
        let settings = &self.config.database;
        let mut command = Command::new(settings.bin_dir.join(name));
        command.current_dir("/").env("LC_ALL", "C");
        if rustix::process::geteuid().is_root() {
            let (uid, gid) = *self.ids.get_or_try_init(|| ids(&settings.user)).await?;
            command.uid(uid).gid(gid);
        }
        Ok(command)
    }

    /// A shell as PostgreSQL's own user with all groups of it, such as the one that may read its private key (Debian's
    /// ssl-cert). It becomes what it runs at once: it has one process number throughout.
    async fn shell(&self) -> Result<Command, String> {
        if !rustix::process::geteuid().is_root() {
            return self.program("/bin/sh").await;
        }
        let (uid, gid) = *self.ids.get_or_try_init(|| ids(&self.config.database.user)).await?;
        if !self.processes.may_run_as(uid) {
            let user = &self.config.database.user;
            return Err(format!(
                "database.user {user}: found number {uid} by `id`, and another one in /etc/passwd, expected the same: its processes would not be found; correct either"
            ));
        }
        let mut command = system("setpriv");
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={gid}")).args(["--init-groups", "--", "/bin/sh"]);
        command.current_dir("/").env("LC_ALL", "C");
        Ok(command)
    }

    async fn psql(&self, statements: &[&str], limit: Duration) -> Result<Ran, NotRan> {
        let settings = &self.config.database;
        let mut command = self.program("psql").await.map_err(NotRan::Unable)?;
        command.args(["-X", "-A", "-t", "-q", "-w", "-v", "ON_ERROR_STOP=1", "-h", &settings.host]);
        command.args(["-p", &settings.port.to_string(), "-d", &settings.dbname, "-U", &settings.user]);
        command.env("PGCONNECT_TIMEOUT", connect_timeout_s(limit).to_string()).env("PGAPPNAME", "holdfast agent");
        for statement in statements {
            command.args(["-c", statement]);
        }
        ran(command, limit).await
    }

    async fn tell(&self, statements: &[&str], limit: Duration) -> Result<(), String> {
        match self.psql(statements, limit).await? {
            Ran { code: Some(0), .. } => Ok(()),
            Ran { err, .. } => Err(err),
        }
    }

    /// Gives it the start, if `hooks.before_start` lets it.
    ///
    /// # Errors
    /// Why not.
    pub async fn start(&self) -> Result<(), String> {
        self.ask_first().await?;
        self.start_unasked().await
    }

    /// Gives it the start; the hook was asked.
    ///
    /// # Errors
    /// Why not.
    pub async fn start_unasked(&self) -> Result<(), String> {
        if self.config.database.kind == DatabaseKind::Systemd {
            // Before anything is touched (UNIT-U1).
            self.unit.look().await?.fit()?;
        }
        let version = self.clear().await?;
        // Only after it was seen does "no process" mean that it ended.
        let limit = Duration::from_secs(self.config.database.start_timeout_s);
        match self.config.database.kind {
            DatabaseKind::PgCtl => self.server_start(&version, limit).await,
            DatabaseKind::Systemd => self.unit.start(limit).await,
            DatabaseKind::Command => self.command_start(limit, START_PATIENCE).await,
        }
    }

    /// Runs `hooks.before_start`, which may forbid the start.
    ///
    /// # Errors
    /// It does.
    pub async fn ask_first(&self) -> Result<(), String> {
        let hooks = &self.config.hooks;
        let Some(script) = &hooks.before_start else { return Ok(()) };
        let mut command = shell(script);
        command.env("HOLDFAST_NAME", &self.config.name).env("HOLDFAST_SET", &self.config.set);
        command.env("HOLDFAST_DATA", self.data());
        let said = run(command, Duration::from_secs(hooks.timeout_s)).await;
        said.map(drop).map_err(|error| format!("hooks.before_start: {error}"))
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
            let version = std::fs::read_to_string(data.join("PG_VERSION"))
                .map_err(|error| format!("{}: expected a data directory, PG_VERSION: {error}", data.display()))?;
            // Else nobody is seen working there, and the pid file, which PostgreSQL itself would go by, is taken away from under those who do.
            super::pool::without_links("database.data", &data)?;
            processes.owns_its_data(&user)?;
            // Looked at once more: that read may have waited for the device, and a later start have been quicker.
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

    /// As pg_ctl does it, but as our own process: it is known from its beginning (DB-D4), while it is still the shell
    /// that reads `options`.
    async fn server_start(&self, version: &str, limit: Duration) -> Result<(), String> {
        let mut child = self.server(version).await?;
        let begun = Instant::now();
        while !self.runs()? {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("PostgreSQL ended at once: {status}: {}", process::tail(&self.log, 3)));
            }
            if begun.elapsed() >= limit {
                let _ = child.start_kill();
                return Err(format!("PostgreSQL was not seen within {} s of its start", limit.as_secs()));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Its first process, in a group of its own. It outlives the agent.
    async fn server(&self, version: &str) -> Result<Child, String> {
        let mut command = self.server_command(version).await?;
        // Opened by us and handed down: its user need not be allowed to write there.
        let log = log::open(&self.log, LOG_BYTES_MAX).map_err(|error| format!("{}: {error}", self.log.display()))?;
        let copy = log.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(copy).stderr(log).process_group(0);
        let program = PathBuf::from(command.as_std().get_program());
        command.spawn().map_err(|error| format!("{}: {error}", program.display()))
    }

    async fn server_command(&self, version: &str) -> Result<Command, String> {
        let settings = &self.config.database;
        let mut command = self.shell().await?;
        // The shell takes the options apart, as pg_ctl's does, and becomes the server.
        command.arg("-c").arg(format!("exec \"$0\" \"$@\" {}", settings.options));
        command.arg(settings.bin_dir.join("postgres")).arg("-D").arg(self.data());
        // The server opens the socket and port that the agent queries.
        command.args(["-p", &settings.port.to_string()]).args(quick_sync(version));
        command.envs(oom(|name| std::env::var_os(name).is_some()));
        Ok(command)
    }

    async fn command_start(&self, limit: Duration, patience: Duration) -> Result<(), String> {
        let mark = format!("{} {}", std::process::id(), crate::clock::now().0);
        *self.marked() = Some(mark.clone());
        let mut command = shell(self.config.database.start.as_deref().unwrap_or_default());
        command.env(MARK, &mark);
        let begun = Instant::now();
        // Ended with this set, unless it is let go on.
        let mut given = JoinSet::new();
        given.spawn(run(command, limit));
        let shown = async {
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
                // What cannot be looked at may be what comes.
                let comes = self.of_start(&mark).any().unwrap_or(true);
                if begun.elapsed() >= limit || !comes && ended.elapsed() >= APPEAR_LIMIT {
                    return Err(format!("PostgreSQL ended at once: {}", process::tail(&self.log, 3)));
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Ok(())
        };
        let shown = shown.await;
        if shown.is_ok() {
            // From here on its working directory identifies it; other processes that the command left are not our
            // business.
            *self.marked() = None;
            given.detach_all();
        }
        shown
    }

    /// What a start by command of this mark has left on its way.
    fn of_start(&self, mark: &str) -> process::Looked {
        let since_ns = mark.rsplit(' ').next().and_then(|since| since.parse().ok()).unwrap_or(0);
        of_mark(&self.processes, MARK, mark, since_ns)
    }

    fn marked(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.mark.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills what a start by command left on its way to becoming PostgreSQL (DB-D4).
    fn end_marked(&self) -> Result<(), String> {
        let Some(mark) = self.marked().clone() else { return Ok(()) };
        let looked = self.of_start(&mark);
        looked.found.iter().for_each(|pid| process::signal(*pid, Signal::KILL));
        // Where some of it may be left, it is looked for again at the next stop.
        looked.whole().map_err(|error| unlooked(&error))?;
        *self.marked() = None;
        Ok(())
    }

    /// The server writes to its log for as long as it runs. Beside the caller: a disk that hangs must not make the
    /// agent wait.
    fn bound_log(&self) {
        if self.config.database.kind != DatabaseKind::PgCtl || self.bounding.swap(true, Ordering::Relaxed) {
            return;
        }
        let (path, bounding) = (self.log.clone(), self.bounding.clone());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = log::bound(&path, LOG_BYTES_MAX) {
                tracing::warn!(path = %path.display(), %error, "PostgreSQL's log is not cut and may fill its disk");
            }
            bounding.store(false, Ordering::Relaxed);
        });
    }

    /// Tells its first process, whatever else could not be looked at: whether all of it goes is seen afterwards.
    ///
    /// # Errors
    /// It was not found, and not all could be looked at.
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
        let settings = &self.config.database;
        let (limit, what) = match how {
            Stop::Fast => (Duration::from_secs(settings.stop_timeout_s), Signal::INT),
            Stop::Immediate => (IMMEDIATE_LIMIT, Signal::QUIT),
            Stop::Kill => (Duration::ZERO, Signal::KILL),
        };
        let marked = self.end_marked();
        match (settings.kind, how) {
            (DatabaseKind::Systemd, Stop::Fast) => {
                self.unit.stop(limit).await?;
                // Started by a person without the unit.
                self.signal(what)?;
            }
            (DatabaseKind::Command, Stop::Fast) => self.stop_by_command("fast", limit.max(STOP_COMMAND_LIMIT)).await?,
            // A failed check does not prevent the SIGKILL below, which tries for longer.
            (_, Stop::Fast) => self.signal(what)?,
            _ => drop(self.signal(what)),
        }
        if how == Stop::Fast {
            marked.clone()?;
        }
        if how == Stop::Fast {
            if !process::postgres_gone(&self.processes, limit).await {
                let left = of_postgres(&self.processes).map_err(|error| unlooked(&error))?.len();
                let limit = limit.as_secs();
                return Err(format!("{left} processes of PostgreSQL are left after a fast stop of {limit} s"));
            }
            if settings.kind == DatabaseKind::Systemd {
                let unit = self.unit.look().await?;
                if !unit.gone() {
                    return Err(format!("unit {} is {} after a stop", settings.unit, unit.state()));
                }
            }
            return Ok(());
        }
        let ended = async {
            let gone = how != Stop::Kill && process::postgres_gone(&self.processes, limit).await;
            if gone { Ok(()) } else { self.kill().await }
        };
        // The lease is about to end (AGENT-A3), and a script may wait for what does not answer any more: it is told, and the SIGKILL
        // does not wait for it.
        let told = async {
            if settings.kind == DatabaseKind::Command
                && let Err(why) = self.stop_by_command("immediate", STOP_COMMAND_LIMIT).await
            {
                tracing::debug!(why, "database.stop");
            }
        };
        let (killed, ()) = tokio::join!(ended, told);
        marked?;
        if settings.kind == DatabaseKind::Systemd {
            // Even if some are left: no further process may start.
            self.unit.end(how).await?;
        }
        killed?;
        match settings.kind {
            DatabaseKind::PgCtl => Ok(()),
            // What had not got as far as the data directory before, or was started by a service that the script has ended since.
            DatabaseKind::Systemd | DatabaseKind::Command => self.kill().await,
        }
    }

    async fn stop_by_command(&self, how: &str, limit: Duration) -> Result<(), String> {
        let mut command = shell(self.config.database.stop.as_deref().unwrap_or_default());
        command.env("HOLDFAST_STOP", how);
        run(command, limit).await.map(drop)
    }

    async fn kill(&self) -> Result<(), String> {
        let processes = self.processes.clone();
        let killed = tokio::task::spawn_blocking(move || process::kill_postgres(&processes, KILL_LIMIT));
        killed.await.map_err(|error| error.to_string())?
    }

    /// How it is; `None` where it could not be looked or asked, which says nothing of it.
    pub async fn probe(&self) -> Option<DatabaseView> {
        self.bound_log();
        let not_asked = |why: &str| tracing::warn!(why, "PostgreSQL could not be asked: nothing is known of it");
        match self.runs() {
            Ok(true) => {}
            Ok(false) => return Some(DatabaseView::Gone),
            Err(why) => {
                not_asked(&why);
                return None;
            }
        }
        let view = match self.psql(&["select pg_is_in_recovery()"], PROBE_LIMIT).await {
            Ok(Ran { code: Some(0), out, .. }) if out == "f" => DatabaseView::Ready,
            Ok(Ran { code: Some(0), .. }) => DatabaseView::Standby,
            Ok(Ran { code: Some(PSQL_NO_CONNECTION), err, .. }) => {
                let (view, lets_nobody_in) = refused(&err);
                if lets_nobody_in && !self.complained.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        err,
                        "PostgreSQL is there and refuses the agent's login: its health is not known beyond that; see database.user, database.dbname, pg_hba.conf"
                    );
                }
                view
            }
            Ok(Ran { err, .. }) => {
                tracing::debug!(err, "PostgreSQL was asked");
                DatabaseView::Busy
            }
            Err(NotRan::Late(why)) => {
                tracing::debug!(why, "PostgreSQL was asked");
                DatabaseView::Silent
            }
            Err(NotRan::Unable(why)) => {
                not_asked(&why);
                return None;
            }
        };
        Some(view)
    }

    /// A checkpoint; none if that is switched off.
    ///
    /// # Errors
    /// Not in time.
    pub async fn checkpoint(&self) -> Result<(), String> {
        match self.config.database.checkpoint_timeout_s {
            0 => Ok(()),
            limit => self.tell(&["checkpoint"], Duration::from_secs(limit)).await,
        }
    }

    /// A commit that is flushed: a message in the WAL that nothing reads, without a table.
    ///
    /// # Errors
    /// It may have happened or not.
    pub async fn first_write(&self) -> Result<(), String> {
        let message = "select pg_logical_emit_message(true, 'holdfast', 'primary')";
        // Local: with synchronous replication, clients wait for standbys with their own transactions, not with this
        // one.
        self.tell(&["set synchronous_commit = local", message], WRITE_LIMIT).await
    }
}

/// Before crash recovery PostgreSQL syncs every file of its data directory, one after the other: a thousand flushes through the set's gateways.
/// From version 14 on it can ask the kernel for the whole file system at once. `options` of the settings come after this and can undo it.
fn quick_sync(version: &str) -> &'static [&'static str] {
    let major: u32 = version.trim().split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    if major >= 14 { &["-c", "recovery_init_sync_method=syncfs"] } else { &[] }
}

/// psql's own limit for a connection; see [`CONNECT_LATER_S`].
fn connect_timeout_s(limit: Duration) -> u64 {
    limit.as_secs().saturating_add(CONNECT_LATER_S)
}

/// The variables of [`OOM`] that are not set yet.
fn oom(is_set: impl Fn(&str) -> bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    OOM.into_iter().filter(move |(name, _)| !is_set(name))
}

/// No connection: the conclusion about the server, and whether the server itself refused the login.
fn refused(words: &str) -> (DatabaseView, bool) {
    let any = |texts: &[&str]| texts.iter().any(|text| words.contains(text));
    // By a limit that psql got elsewhere, such as from a service file.
    if any(&["timeout expired"]) {
        return (DatabaseView::Silent, false);
    }
    // All connections are in use: it is well enough to say so.
    if any(&["too many clients", "remaining connection slots", "too many connections for"]) {
        return (DatabaseView::Ready, false);
    }
    if any(&["is shutting down"]) {
        return (DatabaseView::Ending, false);
    }
    // It accepts connections, and refuses this login.
    let logins = [
        "authentication failed",
        "no pg_hba.conf entry",
        "pg_hba.conf rejects",
        "does not exist",
        "permission denied for database",
    ];
    let logins =
        words.contains("FATAL") && any(&logins) || any(&["no password supplied", "is not permitted to log in"]);
    if logins { (DatabaseView::Ready, true) } else { (DatabaseView::Busy, false) }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script);
    command
}

async fn ids(user: &str) -> Result<(u32, u32), String> {
    let ask = async |what: &str| {
        let mut command = system("id");
        command.arg(what).arg(user);
        let said = run(command, Duration::from_secs(10)).await?;
        said.parse::<u32>().map_err(|error| format!("id {what} {user}: found {said:?}: {error}"))
    };
    Ok((ask("-u").await?, ask("-g").await?))
}

#[cfg(test)]
#[path = "database/contract_tests.rs"]
mod contract_tests;

#[cfg(test)]
#[path = "database/tests.rs"]
mod tests;
