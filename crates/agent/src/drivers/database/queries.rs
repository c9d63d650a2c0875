//! PostgreSQL asked through psql: its health, a checkpoint, the first write.

use super::user::User;
use crate::config::DatabaseConfig;
use crate::machine::DatabaseView;
use crate::process::{NotRan, Ran, ran};
use crate::server::{self, ServerView};
use holdfast_types::sync::LockExt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Time limit of one health query.
const PROBE_LIMIT: Duration = Duration::from_secs(3);

/// psql's own limit for a connection exceeds the agent's by this much, so the agent kills psql first. With its own
/// limit psql would report "no connection", as for a server in recovery, which is waited for, instead of "no answer".
const CONNECT_LATER_S: u64 = 60;

/// Time limit of the first write.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// psql's exit code if there was no connection.
const PSQL_NO_CONNECTION: i32 = 2;

/// The health query: whether the server is in recovery, and its data directory (DB-D5). `current_setting` would fail
/// for a user who may not see that; this view leaves it out.
const HEALTH: &str = "select pg_is_in_recovery(), (select setting from pg_settings where name = 'data_directory')";

/// Time limit of a check whether two paths are the same directory: they may lie on a device that hangs.
const PATHS_LIMIT: Duration = Duration::from_secs(1);

/// Time limit of the questions for clients of Patroni's REST API. Such a client waits for two seconds, for all hosts.
const TOLD_LIMIT: Duration = Duration::from_secs(1);

/// The agent's own sessions.
#[derive(Debug)]
pub struct Queries {
    settings: DatabaseConfig,
    user: Arc<User>,
    /// The refused login was logged.
    complained: AtomicBool,
    /// It was logged that the data directory is hidden from the user.
    hidden: AtomicBool,
    /// Another path to `database.data`, which the server has for it.
    same: Mutex<String>,
    /// A look at such a path has not ended.
    looking: Arc<AtomicBool>,
    /// What was found in place of `database.data`, and the remedy; "" for nothing.
    elsewhere: Mutex<String>,
    /// The identifier of the database system, once it is known. It lies on the device (DB-D3), and never changes.
    system: Mutex<String>,
}

impl Queries {
    /// For these settings.
    pub fn new(settings: &DatabaseConfig, user: Arc<User>) -> Self {
        Self {
            settings: settings.clone(),
            user,
            complained: AtomicBool::new(false),
            hidden: AtomicBool::new(false),
            same: Mutex::default(),
            looking: Arc::default(),
            elsewhere: Mutex::default(),
            system: Mutex::default(),
        }
    }

    /// The other data directory of what answers, and the remedy; "" if it was not seen in another one.
    pub fn elsewhere(&self) -> String {
        self.elsewhere.locked().clone()
    }

    /// Another server will answer, or none.
    pub fn forget(&self) {
        self.elsewhere.locked().clear();
        self.system.locked().clear();
    }

    async fn psql(&self, statements: &[&str], limit: Duration) -> Result<Ran, NotRan> {
        let settings = &self.settings;
        let mut command = self.user.program("psql").await.map_err(NotRan::Unable)?;
        command.args(["-X", "-A", "-t", "-q", "-w", "-v", "ON_ERROR_STOP=1", "-h", &settings.host]);
        command.args(["-p", &settings.port.to_string(), "-d", &settings.dbname, "-U", &settings.user]);
        command.env("PGCONNECT_TIMEOUT", connect_timeout_s(limit).to_string()).env("PGAPPNAME", "holdfast agent");
        for statement in statements {
            command.args(["-c", statement]);
        }
        ran(command, limit).await
    }

    /// What the server says of itself; `None` if it does not answer soon.
    pub async fn told(&self) -> Option<ServerView> {
        let known = self.system.locked().clone();
        let identified = async { if known.is_empty() { self.said(server::IDENTIFIER).await } else { Some(known) } };
        let (told, system) = tokio::join!(self.said(server::TOLD), identified);
        let mut view = ServerView::parse(&told?)?;
        view.system_identifier = system.unwrap_or_default();
        view.system_identifier.clone_into(&mut self.system.locked());
        Some(view)
    }

    /// The answer to a question that nothing waits for.
    async fn said(&self, question: &str) -> Option<String> {
        // Else a user of this database could put a function of his own in the place of one of the system's.
        match self.psql(&["set search_path = pg_catalog", question], TOLD_LIMIT).await {
            Ok(Ran { code: Some(0), out, .. }) => Some(out.trim().to_owned()),
            Ok(Ran { err, .. }) => {
                tracing::debug!(err, "PostgreSQL says nothing of itself");
                None
            }
            Err(_) => None,
        }
    }

    async fn tell(&self, statements: &[&str], limit: Duration) -> Result<(), String> {
        match self.psql(statements, limit).await? {
            Ran { code: Some(0), .. } => Ok(()),
            Ran { err, .. } => Err(err),
        }
    }

    /// State of a PostgreSQL that has processes.
    ///
    /// # Errors
    /// psql could not be run, or the data directory not be checked: nothing is known of PostgreSQL.
    pub async fn health(&self) -> Result<DatabaseView, String> {
        Ok(match self.psql(&[HEALTH], PROBE_LIMIT).await {
            Ok(Ran { code: Some(0), out, .. }) => self.judged(&out).await?,
            Ok(Ran { code: Some(PSQL_NO_CONNECTION), err, .. }) => {
                let (view, refuses_login) = refused(&err);
                if refuses_login && !self.complained.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        err,
                        "PostgreSQL runs, but refuses the agent's login: its health is unknown; see database.user, database.dbname, pg_hba.conf"
                    );
                }
                view
            }
            Ok(Ran { err, .. }) => {
                tracing::debug!(err, "the health query failed");
                DatabaseView::Busy
            }
            Err(NotRan::Late(why)) => {
                tracing::debug!(why, "the health query had no answer");
                DatabaseView::Silent
            }
            Err(NotRan::Unable(why)) => return Err(why),
        })
    }

    /// The state by the answer to [`HEALTH`].
    async fn judged(&self, answer: &str) -> Result<DatabaseView, String> {
        let (in_recovery, place) = answer.split_once('|').unwrap_or((answer, ""));
        let found = match self.is_data(place).await? {
            true => String::new(),
            false => self.told_elsewhere(place),
        };
        let view = match in_recovery {
            _ if !found.is_empty() => DatabaseView::Elsewhere,
            "f" => DatabaseView::Ready,
            _ => DatabaseView::Standby,
        };
        let mut elsewhere = self.elsewhere.locked();
        if *elsewhere != found {
            if !found.is_empty() {
                tracing::error!(found, "what answers is not the PostgreSQL of this set");
            }
            *elsewhere = found;
        }
        Ok(view)
    }

    fn told_elsewhere(&self, place: &str) -> String {
        let (data, host, port) = (self.settings.data.display(), &self.settings.host, self.settings.port);
        format!(
            "the PostgreSQL at {host}, port {port}, works in {place}, expected {data} (database.data): \
             correct data_directory in its configuration, or database.host and database.port"
        )
    }

    /// Whether a server with this data directory is ours (DB-D5). One that hides it counts as ours.
    ///
    /// # Errors
    /// It could not be checked.
    async fn is_data(&self, place: &str) -> Result<bool, String> {
        let data = &self.settings.data;
        if place.is_empty() && !self.hidden.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                user = self.settings.user,
                "PostgreSQL hides its data directory from database.user: it is not checked; grant pg_read_all_settings"
            );
        }
        if place.is_empty() || Path::new(place) == data || *self.same.locked() == place {
            return Ok(true);
        }
        // A unit or a script may name the data directory by a link. The paths may lie on the device (DB-D3).
        let hangs = || format!("{place}: its disk does not answer");
        // Each look that hangs has a thread of the runtime, which has a fixed number of them.
        if self.looking.swap(true, Ordering::Relaxed) {
            return Err(hangs());
        }
        let (theirs, ours, ended) = (PathBuf::from(place), data.clone(), self.looking.clone());
        let looking = tokio::task::spawn_blocking(move || {
            let same = same_place(&theirs, &ours);
            ended.store(false, Ordering::Relaxed);
            same
        });
        let looked = tokio::time::timeout(PATHS_LIMIT, looking).await.map_err(|_| hangs())?;
        let same = looked.map_err(|error| error.to_string())?.map_err(|error| format!("{place}: {error}"))?;
        if same {
            place.clone_into(&mut self.same.locked());
        }
        Ok(same)
    }

    /// Makes a checkpoint, unless that is switched off.
    ///
    /// # Errors
    /// Not in time.
    pub async fn checkpoint(&self) -> Result<(), String> {
        match self.settings.checkpoint_timeout_s {
            0 => Ok(()),
            limit => self.tell(&["checkpoint"], Duration::from_secs(limit)).await,
        }
    }

    /// Makes a commit that is flushed: a message in the WAL that nothing reads, without a table.
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

/// Whether both paths are the same directory.
fn same_place(theirs: &Path, ours: &Path) -> io::Result<bool> {
    let ours = ours.canonicalize()?;
    match theirs.canonicalize() {
        Ok(theirs) => Ok(theirs == ours),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// psql's own limit for a connection; see [`CONNECT_LATER_S`].
fn connect_timeout_s(limit: Duration) -> u64 {
    limit.as_secs().saturating_add(CONNECT_LATER_S)
}

/// No connection: the conclusion about the server, and whether the server itself refused the login.
fn refused(words: &str) -> (DatabaseView, bool) {
    let any = |texts: &[&str]| texts.iter().any(|text| words.contains(text));
    // By a limit that psql got elsewhere, such as from a service file.
    if any(&["timeout expired"]) {
        return (DatabaseView::Silent, false);
    }
    // All connections are in use: a server that says so works.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_server_works() {
        let full = "psql: error: connection to server failed: FATAL:  sorry, too many clients already";
        assert_eq!(refused(full), (DatabaseView::Ready, false));
        let socket = "psql: error: connection to server on socket \"/run/postgresql/.s.PGSQL.5432\" failed: ";
        let waits = (DatabaseView::Busy, false);
        for (words, view) in [
            ("FATAL:  the database system is starting up", waits),
            ("FATAL:  the database system is in recovery mode", waits),
            ("FATAL:  the database system is not yet accepting connections", waits),
            (
                "No such file or directory\n\tIs the server running locally and accepting connections on that socket?",
                waits,
            ),
            ("Connection refused", waits),
            ("timeout expired", (DatabaseView::Silent, false)),
            ("FATAL:  the database system is shutting down", (DatabaseView::Ending, false)),
            ("FATAL:  Peer authentication failed for user \"postgres\"", (DatabaseView::Ready, true)),
            ("FATAL:  no pg_hba.conf entry for host \"[local]\"", (DatabaseView::Ready, true)),
            ("FATAL:  database \"app\" does not exist", (DatabaseView::Ready, true)),
            ("fe_sendauth: no password supplied", (DatabaseView::Ready, true)),
        ] {
            assert_eq!(refused(&format!("{socket}{words}")), view, "{words}");
        }
    }

    /// DB-D5: another server of this host at the same port, or ours with a `data_directory` in its configuration.
    #[tokio::test]
    async fn a_server_with_another_data_directory_is_not_ours() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap();
        let (data, other, link) = (place.join("data"), place.join("other"), place.join("link"));
        for dir in [&data, &other] {
            std::fs::create_dir(dir).unwrap();
        }
        std::os::unix::fs::symlink(&data, &link).unwrap();
        let settings = DatabaseConfig { data: data.clone(), ..DatabaseConfig::default() };
        let queries = Queries::new(&settings, Arc::new(User::new(&settings)));
        let judged = async |word: &str, place: &Path| queries.judged(&format!("{word}|{}", place.display())).await;
        for elsewhere in [other.as_path(), Path::new("/nonexistent/data")] {
            for word in ["f", "t"] {
                assert_eq!(judged(word, elsewhere).await, Ok(DatabaseView::Elsewhere), "{word} {elsewhere:?}");
                let told = queries.elsewhere();
                let wanted = format!("works in {}, expected {}", elsewhere.display(), data.display());
                assert!(told.contains(&wanted), "{told}");
            }
        }
        // By a link, and hidden from a user who may not see it.
        for ours in [data.as_path(), link.as_path(), Path::new("")] {
            assert_eq!(judged("f", ours).await, Ok(DatabaseView::Ready), "{ours:?}");
            assert_eq!(judged("t", ours).await, Ok(DatabaseView::Standby), "{ours:?}");
            assert_eq!(queries.elsewhere(), "");
        }
        // A path that cannot be looked at says nothing.
        std::fs::remove_dir(&data).unwrap();
        assert!(judged("f", &other).await.is_err());
        assert!(!queries.looking.load(Ordering::Relaxed), "it has ended");
        // An earlier look hangs: there is no second one.
        queries.looking.store(true, Ordering::Relaxed);
        std::fs::create_dir(&data).unwrap();
        assert_eq!(judged("f", &other).await, Err(format!("{}: its disk does not answer", other.display())));
    }

    /// A server that hangs is restarted, one that takes no connection is waited for. psql must not report the second
    /// for the first before the agent ends it.
    #[test]
    fn psql_gives_up_long_after_the_agent() {
        for limit in [PROBE_LIMIT, WRITE_LIMIT, Duration::from_secs(3600)] {
            assert!(Duration::from_secs(connect_timeout_s(limit)) >= limit + Duration::from_secs(30), "{limit:?}");
        }
    }
}
