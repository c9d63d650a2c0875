//! A standby: a PostgreSQL for reading on a local copy of a snapshot that is renewed at intervals.
//!
//! ```text
//!   refresh:  snapshot ─▶ snapshot copy in the slot that is free ─▶ mount ─▶ PostgreSQL recovers, out of reach
//!                                                     └─ from here on: old PostgreSQL stops, new one starts on the same port
//!                                                                          └─ old slot taken down, own unused snapshots deleted
//! ```
//!
//! STANDBY-U3  Until the new PostgreSQL has recovered, the old one is not touched. If the new one then does not come up
//!     in its place, the old one is started again.
//!
//! Owns: slots, order, the stored state ([`State`]). Does not own: the copy (crate `attach`, in the process `holdfast
//! standby copy`), the drivers (crate `agent`), snapshots (the program's own commands). Depends on: agent, host,
//! settings, tls, types. docs/adr/0024-standbys.md has the reasons.

pub mod config;
mod guard;
mod http;
mod run;
mod slot;
mod state;
mod swap;

use crate::config::{StandbyConfig, StandbySlot};
use holdfast_agent::clock;
use holdfast_agent::machine::DatabaseView;
use holdfast_agent::process::ran;
use holdfast_host::lock::{is_locked, lock};
use serde::{Deserialize, Serialize};
use slot::Slot;
pub use state::{Current, Failure, State};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use swap::{Place, swap};

pub use run::run;

/// Time limit of a command that reads, or deletes a snapshot.
const ASK_LIMIT: Duration = Duration::from_secs(20);

/// Lock for changes.
const LOCK: &str = "standby.lock";

/// Lock for changes, in the directory of the mounts: two standbys that share the directory exclude each other.
const PLACE_LOCK: &str = ".holdfast-standby.lock";

/// Lock of `standby run`.
const RUN_LOCK: &str = "run.lock";

/// Choice of a refresh's snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Which {
    /// A new one, deleted when it is not needed any more.
    #[default]
    New,
    /// The youngest one; it is kept.
    Latest,
    /// This one; it is kept.
    Named(String),
}

/// Status of a standby.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StandbyView {
    /// Name.
    pub name: String,
    /// Set.
    pub set: String,
    /// PostgreSQL answers queries, on the current copy.
    pub serving: bool,
    /// ready, busy, silent, elsewhere or gone.
    pub database: String,
    /// The copy that serves, or served last.
    pub current: Option<Current>,
    /// Time since the snapshot, in milliseconds: every write answered before it is in the copy.
    pub age_ms: Option<u64>,
    /// Data written to the copy, in bytes.
    pub scratch_bytes: u64,
    /// Its bound, in bytes.
    pub scratch_max_bytes: u64,
    /// NBD address of the gateway that it reads from.
    pub gateway: String,
    /// Connections to gateways that the copy has made.
    pub connections: u64,
    /// PostgreSQL's port.
    pub port: u16,
    /// Snapshots of its own that are kept.
    pub own_snapshots: Vec<String>,
    /// The last refresh, if it failed.
    pub failure: Option<Failure>,
    /// `standby run` is running.
    pub running: bool,
}

/// A snapshot as the program's own commands show it.
#[derive(Clone, Debug, Deserialize)]
struct Shown {
    name: String,
    #[serde(default)]
    pending: bool,
    #[serde(default)]
    created_unix_ms: u64,
}

/// Output of `snapshot delete`.
#[derive(Debug, Deserialize)]
struct Deleted {
    #[serde(default)]
    deleted: bool,
}

#[derive(Debug, Deserialize)]
struct List {
    #[serde(default)]
    snapshots: Vec<Shown>,
}

/// See the module.
#[derive(Debug)]
pub struct Standby {
    config: StandbyConfig,
    program: PathBuf,
    slots: [Slot; 2],
}

impl Standby {
    /// A standby with these settings; starts nothing.
    ///
    /// # Errors
    /// The directories cannot be made.
    pub fn new(config: &StandbyConfig) -> Result<Self, String> {
        for dir in [&config.dir, &config.run_dir] {
            std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        Ok(Self {
            program: std::env::current_exe().map_err(|error| format!("this program's file: {error}"))?,
            slots: StandbySlot::ALL.map(|which| Slot::new(config, which)),
            config: config.clone(),
        })
    }

    fn slot(&self, which: StandbySlot) -> &Slot {
        &self.slots[which as usize]
    }

    /// Both locks for changes.
    fn locks(&self) -> Result<[std::fs::File; 2], String> {
        let place = &self.config.pool.mount;
        std::fs::create_dir_all(place).map_err(|error| format!("{}: {error}", place.display()))?;
        Ok([lock(&self.config.run_dir, LOCK)?, lock(place, PLACE_LOCK)?])
    }

    fn state(&self) -> Result<State, String> {
        State::read(&self.config.dir)
    }

    /// One of the program's own commands, with its result.
    async fn command<T: for<'a> Deserialize<'a>>(&self, args: &[&str], limit: Duration) -> Result<T, String> {
        let mut command = tokio::process::Command::new(&self.program);
        command.args(args).args(["--output", "json", "--api", &self.config.gateways.join(",")]);
        command.args(["--timeout", &format!("{}ms", limit.as_millis())]);
        for (flag, path) in self.config.tls.flags() {
            command.arg(flag).arg(path);
        }
        // The command keeps the limit itself, and has the better error message.
        let ran = ran(command, limit + Duration::from_secs(5)).await?;
        if ran.code != Some(0) {
            let said = serde_json::from_str::<serde_json::Value>(ran.err.lines().last().unwrap_or_default());
            let words = said.ok().and_then(|said| Some(said["error"]["message"].as_str()?.to_string()));
            return Err(words.unwrap_or(ran.err));
        }
        serde_json::from_str(&ran.out).map_err(|error| format!("holdfast {}: {error}: {}", args.join(" "), ran.out))
    }

    /// The snapshot to copy.
    async fn snapshot(&self, which: &Which) -> Result<Shown, String> {
        let set = &self.config.set;
        if *which == Which::New {
            let mut state = self.state()?;
            let name = state.own_snapshot(&self.config.name, clock::unix_ms())?;
            // STANDBY-U1.
            state.write(&self.config.dir)?;
            let limit = Duration::from_secs(self.config.snapshot_timeout_s);
            return self.command(&["snapshot", "create", &format!("{set}@{name}")], limit).await;
        }
        let List { snapshots } = self.command(&["snapshot", "list", set], ASK_LIMIT).await?;
        let mut ready = snapshots.into_iter().filter(|snapshot| !snapshot.pending);
        let found = match which {
            Which::Named(name) => ready.find(|snapshot| snapshot.name == *name),
            _ => ready.max_by_key(|snapshot| snapshot.created_unix_ms),
        };
        found.ok_or_else(|| match which {
            Which::Named(name) => {
                format!(
                    "found no snapshot {set}@{name} that is in the store: `holdfast snapshot list {set}` shows them"
                )
            }
            _ => format!("found no snapshot of {set} that is in the store: without --latest a new one is taken"),
        })
    }

    /// Deletes own snapshots that are not needed any more (STANDBY-U1). A failed deletion is repeated the next time.
    async fn tidy(&self) {
        let Ok(state) = self.state() else { return };
        for name in state.unused() {
            let what = format!("{}@{name}", self.config.set);
            match self.command::<Deleted>(&["snapshot", "delete", &what, "--yes"], ASK_LIMIT).await {
                // It does not exist, and was requested a short while ago: it may still appear.
                Ok(Deleted { deleted }) if !state::is_over(&name, deleted, clock::unix_ms()) => {}
                Ok(_) => {
                    let noted = self.state().and_then(|mut state| {
                        state.deleted(&name);
                        state.write(&self.config.dir)
                    });
                    if let Err(why) = noted {
                        tracing::warn!(why, "the state of the standby cannot be read or written");
                    }
                }
                Err(why) => {
                    tracing::warn!(
                        snapshot = what,
                        why,
                        "a snapshot of this standby could not be deleted and stays until the next refresh"
                    );
                }
            }
        }
    }

    /// Renews the data (STANDBY-U3).
    ///
    /// # Errors
    /// The reason; the previous copy serves on.
    pub async fn refresh(&self, which: &Which) -> Result<Current, String> {
        let _locks = self.locks()?;
        let begun = Instant::now();
        let done = self.renew(which, begun).await;
        match &done {
            Ok(current) => tracing::info!(snapshot = current.snapshot, took_ms = current.took_ms, "refreshed"),
            Err(why) => {
                tracing::error!(why, "the refresh failed; the old copy stays in service");
                let failure = Some(Failure { unix_ms: clock::unix_ms(), why: why.clone() });
                let noted = self.state().and_then(|state| State { failure, ..state }.write(&self.config.dir));
                // If the state cannot be stored, nothing is deleted because of it.
                noted.map_err(|unkept| format!("{why}; and this failure could not be stored: {unkept}"))?;
            }
        }
        self.tidy().await;
        done
    }

    /// Stores the set's ZFS pool, for the next refresh.
    fn keep_pool(&self, pool: Option<String>) -> Result<(), String> {
        let state = self.state()?;
        if pool.is_none() || pool == state.pool {
            return Ok(());
        }
        State { pool, ..state }.write(&self.config.dir)
    }

    async fn renew(&self, which: &Which, begun: Instant) -> Result<Current, String> {
        let State { current: old, pool, .. } = self.state()?;
        let to = old.as_ref().map_or(StandbySlot::A, |old| old.slot.other());
        let slot = self.slot(to);
        // Left by a refresh that was killed.
        slot.down().await?;
        // STANDBY-U8. Checked here as well: even a useless snapshot costs a checkpoint of the primary's set.
        slot.may_copy(pool.as_deref()).await?;
        let snapshot = self.snapshot(which).await?;
        let prepared = slot.prepare(&snapshot.name).await;
        if let Err(why) = prepared.and(self.keep_pool(slot.pool())) {
            self.give_up(slot).await;
            return Err(why);
        }
        let note = || {
            let current = Current {
                slot: to,
                snapshot: snapshot.name,
                snapshot_unix_ms: snapshot.created_unix_ms,
                since_unix_ms: clock::unix_ms(),
                took_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            };
            let state = State { current: Some(current.clone()), failure: None, ..self.state()? };
            state.write(&self.config.dir).map(|()| current)
        };
        let old = old.map(|old| self.slot(old.slot));
        let current = match swap(old, slot, note).await {
            Ok(current) => current,
            Err(why) => {
                self.give_up(slot).await;
                return Err(why);
            }
        };
        if let Some(old) = old
            && let Err(why) = old.down().await
        {
            tracing::warn!(why, "cannot stop the old copy; retrying at the next refresh");
        }
        Ok(current)
    }

    async fn give_up(&self, slot: &Slot) {
        if let Err(why) = slot.down().await {
            tracing::warn!(why, "cannot stop the new copy; retrying at the next refresh");
        }
    }

    /// Takes everything down and deletes its own snapshots.
    ///
    /// # Errors
    /// Whatever remains.
    pub async fn stop(&self) -> Result<(), String> {
        let _locks = self.locks()?;
        let mut done = Ok(());
        for slot in &self.slots {
            done = done.and(slot.down().await);
        }
        done?;
        let state = State { current: None, ..self.state()? };
        state.write(&self.config.dir)?;
        self.tidy().await;
        Ok(())
    }

    /// Current status.
    ///
    /// # Errors
    /// Its state cannot be read.
    pub async fn view(&self) -> Result<StandbyView, String> {
        let state = self.state()?;
        let config = &self.config;
        let mut view = StandbyView {
            name: config.name.clone(),
            set: config.set.clone(),
            serving: false,
            database: "gone".into(),
            age_ms: None,
            scratch_bytes: 0,
            scratch_max_bytes: config.scratch_max.0,
            gateway: String::new(),
            connections: 0,
            port: config.database.port,
            own_snapshots: state.own,
            failure: state.failure,
            running: is_locked(&config.run_dir, RUN_LOCK).unwrap_or(true),
            current: state.current,
        };
        let Some(current) = &view.current else { return Ok(view) };
        view.age_ms = Some(clock::unix_ms().saturating_sub(current.snapshot_unix_ms));
        let slot = self.slot(current.slot);
        if !slot.is_up() {
            return Ok(view);
        }
        let database = slot.probe().await;
        view.database = match database {
            Some(DatabaseView::Ready) => "ready",
            Some(DatabaseView::Standby | DatabaseView::Busy | DatabaseView::Ending) => "busy",
            Some(DatabaseView::Silent) | None => "silent",
            Some(DatabaseView::Elsewhere) => "elsewhere",
            Some(DatabaseView::Gone) => "gone",
        }
        .into();
        view.serving = database == Some(DatabaseView::Ready);
        if let Some(copy) = slot.copy() {
            view.scratch_bytes = copy.scratch_bytes;
            view.gateway = copy.source.gateway;
            view.connections = copy.source.connections;
        }
        Ok(view)
    }
}
