//! PostgreSQL asked through psql: its health, a checkpoint, the first write.

use super::user::User;
use crate::config::DatabaseConfig;
use crate::machine::DatabaseView;
use crate::process::{NotRan, Ran, ran};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// The agent's own sessions.
#[derive(Debug)]
pub struct Queries {
    settings: DatabaseConfig,
    user: Arc<User>,
    /// The refused login was logged.
    complained: AtomicBool,
}

impl Queries {
    /// For these settings.
    pub fn new(settings: &DatabaseConfig, user: Arc<User>) -> Self {
        Self { settings: settings.clone(), user, complained: AtomicBool::new(false) }
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

    async fn tell(&self, statements: &[&str], limit: Duration) -> Result<(), String> {
        match self.psql(statements, limit).await? {
            Ran { code: Some(0), .. } => Ok(()),
            Ran { err, .. } => Err(err),
        }
    }

    /// State of a PostgreSQL that has processes.
    ///
    /// # Errors
    /// psql could not be run: nothing is known of PostgreSQL.
    pub async fn health(&self) -> Result<DatabaseView, String> {
        Ok(match self.psql(&["select pg_is_in_recovery()"], PROBE_LIMIT).await {
            Ok(Ran { code: Some(0), out, .. }) if out == "f" => DatabaseView::Ready,
            Ok(Ran { code: Some(0), .. }) => DatabaseView::Standby,
            Ok(Ran { code: Some(PSQL_NO_CONNECTION), err, .. }) => {
                let (view, refuses_login) = refused(&err);
                if refuses_login && !self.complained.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        err,
                        "PostgreSQL runs and refuses the agent's login: its health is not known beyond that; see database.user, database.dbname, pg_hba.conf"
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

    /// A server that hangs is restarted, one that takes no connection is waited for. psql must not report the second
    /// for the first before the agent ends it.
    #[test]
    fn psql_gives_up_long_after_the_agent() {
        for limit in [PROBE_LIMIT, WRITE_LIMIT, Duration::from_secs(3600)] {
            assert!(Duration::from_secs(connect_timeout_s(limit)) >= limit + Duration::from_secs(30), "{limit:?}");
        }
    }
}
