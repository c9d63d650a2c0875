//! One of the two places of a standby: a scratch copy, its file system, its PostgreSQL.
//!
//! U2  A slot is taken down whatever of it is there, in the opposite order of how it comes up; nothing of it is worth keeping.

use crate::config::{AgentConfig, StandbyConfig, StandbySlot};
use crate::drivers::attach::{Attach, running};
use crate::drivers::database::Database;
use crate::drivers::pool;
use crate::host::AttachLook;
use crate::machine::{AttachEnd, AttachPhase, DatabaseView, Stop};
use crate::process::{run, system, tail};
use serde::Deserialize;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// For a program that only makes a directory.
const DIR_LIMIT: Duration = Duration::from_secs(10);

/// A copy keeps its own limit and has better words: so much longer it is waited for.
const GRACE: Duration = Duration::from_secs(5);

/// What is read in the `status.json` of a scratch copy.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Copy {
    /// Where it reads.
    #[serde(default)]
    pub source: Source,
    /// What was written to it, in bytes.
    #[serde(default)]
    pub scratch_bytes: u64,
}

/// Where a copy reads.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Source {
    /// NBD address of the gateway.
    #[serde(default)]
    pub gateway: String,
    /// Connections that were made.
    #[serde(default)]
    pub connections: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Slot {
    standby: StandbyConfig,
    which: StandbySlot,
    config: AgentConfig,
    attach: Mutex<Arc<Attach>>,
    database: Database,
    /// The same data directory, out of everyone's reach: it recovers there.
    private: Database,
}

impl Slot {
    /// For these settings; nothing is started.
    pub fn new(standby: &StandbyConfig, which: StandbySlot) -> Self {
        let config = standby.slot(which, false);
        let attach = Attach::new(&config);
        attach.adopt();
        Self {
            which,
            attach: Mutex::new(Arc::new(attach)),
            database: Database::new(&config),
            private: Database::new(&standby.slot(which, true)),
            config,
            standby: standby.clone(),
        }
    }

    fn attach(&self) -> Arc<Attach> {
        self.attach.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether its copy and its PostgreSQL's processes are there. Asks neither.
    pub fn is_up(&self) -> bool {
        // A child that has ended is reaped by being looked at.
        let looked = self.attach().look();
        running(self.attach().dir()) && !matches!(looked, AttachLook::Ended(_)) && self.database.runs()
    }

    /// How its PostgreSQL is.
    pub async fn probe(&self) -> DatabaseView {
        self.database.probe().await
    }

    /// What its copy shows of itself.
    pub fn copy(&self) -> Option<Copy> {
        serde_json::from_slice(&std::fs::read(self.attach().dir().join("status.json")).ok()?).ok()
    }

    /// Arguments of the program that keeps the copy.
    fn args(&self, snapshot: &str, dir: &Path) -> Vec<String> {
        let standby = &self.standby;
        let scratch = standby.dir.join("scratch").join(self.which.as_str());
        let mut args = vec!["standby".to_string(), "copy".into(), format!("{}@{snapshot}", standby.set)];
        for (flag, value) in [
            ("--api", standby.gateways.join(",")),
            ("--dir", dir.display().to_string()),
            ("--scratch", scratch.display().to_string()),
            ("--scratch-max", standby.scratch_max.to_string()),
            ("--device", standby.device.as_str().to_string()),
            ("--timeout", format!("{}s", standby.device_timeout_s)),
        ] {
            args.extend([flag.to_string(), value]);
        }
        for (flag, path) in standby.tls.flags() {
            args.extend([flag.to_string(), path.display().to_string()]);
        }
        args
    }

    /// Brings a copy of `snapshot` up until its PostgreSQL has recovered, out of everyone's reach, and stops that again.
    ///
    /// # Errors
    /// Why not; what came up so far is there.
    pub async fn prepare(&self, snapshot: &str) -> Result<(), String> {
        for dir in [&self.config.dir, &self.config.run_dir] {
            std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        let args = self.args(snapshot, self.attach().dir());
        let attach = Arc::new(Attach::without_lease(&self.config, args));
        *self.attach.lock().unwrap_or_else(PoisonError::into_inner) = attach.clone();
        attach.start(false).await?;
        self.device(&attach).await?;
        pool::import(&self.config, &attach.devices()).await?;
        self.make_private_dir().await?;
        self.private.start().await?;
        self.ready(&self.private).await?;
        self.private.stop(Stop::Fast).await
    }

    /// PostgreSQL's own, and nobody else's: its socket is there while it recovers.
    async fn make_private_dir(&self) -> Result<(), String> {
        let mut command = system("install");
        command.args(["-d", "-m", "0700"]);
        if rustix::process::geteuid().is_root() {
            command.args(["-o", &self.config.database.user]);
        }
        command.arg(self.standby.private_dir(self.which));
        run(command, DIR_LIMIT).await.map(drop)
    }

    async fn device(&self, attach: &Attach) -> Result<(), String> {
        let limit = Duration::from_secs(self.standby.device_timeout_s);
        let begun = Instant::now();
        loop {
            match attach.look() {
                AttachLook::Runs(view) if view.phase == AttachPhase::Serving => return Ok(()),
                AttachLook::Runs(_) => {}
                AttachLook::None => return Err("the scratch copy is gone".into()),
                AttachLook::Ended(AttachEnd::Refused(why) | AttachEnd::Failed(why) | AttachEnd::Fenced(why)) => {
                    return Err(format!("the scratch copy: {why}"));
                }
            }
            if begun.elapsed() >= limit + GRACE {
                return Err(format!("the scratch copy has no device within {} s", limit.as_secs()));
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    async fn ready(&self, database: &Database) -> Result<(), String> {
        let limit = Duration::from_secs(self.config.database.start_timeout_s);
        let begun = Instant::now();
        loop {
            let view = database.probe().await;
            let log = || tail(&self.config.dir.join("postgresql.log"), 3);
            match view {
                DatabaseView::Ready => return Ok(()),
                DatabaseView::Gone => return Err(format!("PostgreSQL ended: {}", log())),
                _ if begun.elapsed() >= limit => {
                    let limit = limit.as_secs();
                    return Err(format!("PostgreSQL does not answer within {limit} s ({view:?}): {}", log()));
                }
                _ => tokio::time::sleep(LOOK_PAUSE).await,
            }
        }
    }

    /// Starts PostgreSQL where everyone reaches it.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn serve(&self) -> Result<(), String> {
        self.database.start().await?;
        self.ready(&self.database).await
    }

    /// Stops PostgreSQL; its copy stays.
    ///
    /// # Errors
    /// Processes are left.
    pub async fn quiet(&self) -> Result<(), String> {
        if !self.database.runs() {
            return Ok(());
        }
        if let Err(why) = self.database.stop(Stop::Fast).await {
            tracing::warn!(why, "PostgreSQL is stopped at once");
            self.database.stop(Stop::Kill).await?;
        }
        Ok(())
    }

    /// Takes everything of it down (U2).
    ///
    /// # Errors
    /// What is left.
    pub async fn down(&self) -> Result<(), String> {
        self.quiet().await?;
        if pool::is_there(&self.config).await
            && let Err(why) = pool::export(&self.config, false).await
        {
            tracing::warn!(why, "unmounted by force");
            pool::export(&self.config, true).await?;
        }
        let attach = self.attach();
        if let Err(why) = attach.detach(false).await {
            tracing::debug!(why, "the scratch copy");
            attach.detach(true).await?;
        }
        Ok(())
    }
}
