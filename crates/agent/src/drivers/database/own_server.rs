//! PostgreSQL as a child of the agent, started as pg_ctl does it. It outlives the agent.

use super::user::User;
use crate::config::{AgentConfig, DatabaseConfig};
use crate::process::{self, Server, log, postgres_runs, unlooked};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// The server's own output is cut beyond this many bytes ([`log`]).
const LOG_BYTES_MAX: u64 = 16 << 20;

/// Pause between two looks at a server that starts.
const LOOK_PAUSE: Duration = Duration::from_millis(5);

/// Environment of the server. The agent's unit has OOMScoreAdjust=-900. The server's first process keeps that, every
/// other one gives itself this value: else a backend that takes all memory would be the last to be killed for it.
const OOM: [(&str, &str); 2] = [("PG_OOM_ADJUST_FILE", "/proc/self/oom_score_adj"), ("PG_OOM_ADJUST_VALUE", "0")];

/// The server of these settings.
#[derive(Debug)]
pub struct OwnServer {
    settings: DatabaseConfig,
    processes: Server,
    user: Arc<User>,
    /// Its own output.
    log: PathBuf,
    /// A look at the length of that log is under way.
    bounding: Arc<AtomicBool>,
}

impl OwnServer {
    /// For these settings; nothing is started.
    pub fn new(config: &AgentConfig, user: Arc<User>, log: &Path) -> Self {
        Self {
            settings: config.database.clone(),
            processes: Server::of(&config.database),
            user,
            log: log.into(),
            bounding: Arc::default(),
        }
    }

    /// Starts the server, of which no process is left. Its process is known from its beginning (DB-D4), while it is
    /// still the shell that reads `options`.
    ///
    /// # Errors
    /// It ended at once, or was not seen in time.
    pub async fn start(&self, version: &str, limit: Duration) -> Result<(), String> {
        let mut child = self.spawned(version).await?;
        let begun = Instant::now();
        while !postgres_runs(&self.processes).map_err(|error| unlooked(&error))? {
            if let Some(status) = child.try_wait().map_err(|error| error.to_string())? {
                return Err(format!("PostgreSQL ended at once: {status}: {}", process::tail(&self.log, 3)));
            }
            if begun.elapsed() >= limit {
                let _ = child.start_kill();
                return Err(format!("PostgreSQL was not seen within {} s of its start", limit.as_secs()));
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        Ok(())
    }

    /// Its first process, in a group of its own.
    async fn spawned(&self, version: &str) -> Result<Child, String> {
        let mut command = self.command(version).await?;
        // Opened by us and handed down: its user need not be allowed to write there. Where its disk hangs, this start
        // can be given up.
        let path = self.log.clone();
        let opened = tokio::task::spawn_blocking(move || log::open(&path, LOG_BYTES_MAX)).await;
        let opened = opened.map_err(|error| error.to_string())?;
        let log = opened.map_err(|error| format!("{}: {error}", self.log.display()))?;
        let copy = log.try_clone().map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(copy).stderr(log).process_group(0);
        let program = PathBuf::from(command.as_std().get_program());
        command.spawn().map_err(|error| format!("{}: {error}", program.display()))
    }

    async fn command(&self, version: &str) -> Result<Command, String> {
        let settings = &self.settings;
        let mut command = self.user.shell().await?;
        // The shell takes the options apart, as pg_ctl's does, and becomes the server. DB-D5: a `data_directory` of a
        // configuration file, or of the options, would outrank `-D`. $2 is the data directory.
        command.arg("-c").arg(format!("exec \"$0\" \"$@\" {} -c data_directory=\"$2\"", settings.options));
        command.arg(settings.bin_dir.join("postgres")).arg("-D").arg(&settings.data);
        // The server opens the socket and port that the agent queries.
        command.args(["-p", &settings.port.to_string()]).args(quick_sync(version));
        command.envs(oom(|name| std::env::var_os(name).is_some()));
        Ok(command)
    }

    /// Cuts the log if it is too long: the server writes to it for as long as it runs. Beside the caller: a disk that
    /// hangs must not make the agent wait.
    pub fn bound_log(&self) {
        if self.bounding.swap(true, Ordering::Relaxed) {
            return;
        }
        let (path, bounding) = (self.log.clone(), self.bounding.clone());
        tokio::task::spawn_blocking(move || {
            if let Err(error) = log::bound(&path, LOG_BYTES_MAX) {
                tracing::warn!(path = %path.display(), %error, "cannot truncate PostgreSQL's log: it may fill its disk");
            }
            bounding.store(false, Ordering::Relaxed);
        });
    }
}

/// Options for the sync before crash recovery. PostgreSQL syncs every file of its data directory, one after the other:
/// a thousand flushes through the set's gateways. From version 14 on it can ask the kernel for the whole file system at
/// once. `options` of the settings come after this and can undo it.
fn quick_sync(version: &str) -> &'static [&'static str] {
    let major: u32 = version.trim().split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    if major >= 14 { &["-c", "recovery_init_sync_method=syncfs"] } else { &[] }
}

/// The variables of [`OOM`] that are not set yet.
fn oom(is_set: impl Fn(&str) -> bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    OOM.into_iter().filter(move |(name, _)| !is_set(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_file_system_is_synced_if_postgresql_can() {
        assert_eq!(quick_sync("15\n"), ["-c", "recovery_init_sync_method=syncfs"]);
        for old in ["13\n", "9.6\n", "?"] {
            assert!(quick_sync(old).is_empty(), "{old}");
        }
    }

    /// DB-D5: a server of these options would work on a disk of the host.
    #[tokio::test]
    async fn the_data_directory_of_the_settings_has_the_last_word() {
        let dir = tempfile::tempdir().unwrap();
        // In place of the server: it says its arguments.
        std::os::unix::fs::symlink("/bin/echo", dir.path().join("postgres")).unwrap();
        let mut config = AgentConfig::default();
        config.database.user = "root".into();
        config.database.bin_dir = dir.path().into();
        config.database.data = "/srv/it's a pool/data".into();
        config.database.options = "-c config_file=/etc/pg.conf -c data_directory=/var/lib/pg".into();
        let server = OwnServer::new(&config, Arc::new(User::new(&config.database)), Path::new("/nonexistent/log"));
        let said = server.command("13\n").await.unwrap().output().await.unwrap();
        let said = String::from_utf8_lossy(&said.stdout).trim().to_string();
        let wanted = "-c data_directory=/var/lib/pg -c data_directory=/srv/it's a pool/data";
        assert!(said.starts_with("-D /srv/it's a pool/data -p ") && said.ends_with(wanted), "{said}");
    }

    /// The agent's unit has OOMScoreAdjust=-900, which is not for backends.
    #[tokio::test]
    async fn backends_are_not_kept_from_the_oom_killer() {
        let mut config = AgentConfig::default();
        config.database.user = "root".into();
        let server = OwnServer::new(&config, Arc::new(User::new(&config.database)), Path::new("/nonexistent/log"));
        let command = server.command("15\n").await.unwrap();
        let given = |name: &str| command.as_std().get_envs().find(|(key, _)| *key == name).and_then(|(_, value)| value);
        for (name, value) in OOM {
            let inherited = std::env::var_os(name).is_some();
            assert_eq!(given(name).is_some_and(|given| given == value), !inherited, "{name}");
        }
        let unset = |set: &[&str]| oom(|name| set.contains(&name)).map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(unset(&[]), ["PG_OOM_ADJUST_FILE", "PG_OOM_ADJUST_VALUE"]);
        assert_eq!(unset(&["PG_OOM_ADJUST_FILE"]), ["PG_OOM_ADJUST_VALUE"], "a person's own value stays");
    }
}
