//! A service other than PostgreSQL, in place of `[database]` (ADR 0076); and what is the same of both for the rest of
//! the agent.

use super::AgentConfig;
use crate::machine::Workload;
use holdfast_settings::settings;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// How a service is started and stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ServiceKind {
    /// By a systemd unit.
    Systemd,
    /// By commands.
    Command,
}

settings! {
    /// A service other than PostgreSQL, in place of `[database]`: a file has exactly one of the two sections.
    pub struct ServiceConfig {
        /// Its name, for people.
        name: String = "nfs".into();
        /// "systemd" or "command".
        kind: ServiceKind = ServiceKind::Systemd;
        /// Its directory on the pool, which has to lie on the set when it is started. Left out: pool.mount, for pools
        /// of kind "ext4" and "xfs".
        data: Option<PathBuf> = None, sample "/srv/nfs";
        /// Full name of its unit. For kind "systemd". The unit must be disabled, wanted by no other unit, and have
        /// Restart=no; this is checked before each start. The unit knows what runs: all processes in its control group,
        /// and the unit itself as long as it is active.
        unit: String = "holdfast-nfs.service".into();
        /// Command that starts it: it returns with exit code 0 and leaves processes behind, or it stays and is the
        /// service. What runs is known by a control group that the agent puts this command into (cgroup v2). For kind
        /// "command"; run by sh, with HOLDFAST_NAME, HOLDFAST_SET and HOLDFAST_DATA.
        start: Option<String> = None, sample "/usr/local/sbin/service-up";
        /// Command that stops it; $HOLDFAST_STOP is fast, or immediate: then its processes have SIGKILL already, and
        /// the command has a second for what is no process, such as an address. It may find nothing to stop. For
        /// kind "command". Left out: SIGTERM to its processes.
        stop: Option<String> = None, sample "/usr/local/sbin/service-down";
        /// Command that checks it, for both kinds: exit code 0 if it serves. Run by sh, outside of its control group.
        check: Option<String> = None, sample "rpcinfo -T tcp 127.0.0.1 nfs 4";
        /// System user of these commands.
        user: String = "root".into();
        /// Time limit of one check, in milliseconds, 100 to 60000.
        check_timeout_ms: u64 = 5000;
        /// Time limit from its start until a check succeeds, in seconds, 1 to 86400.
        start_timeout_s: u64 = 60;
        /// Time limit of a planned stop, in seconds, 1 to 3600; then its processes are killed.
        stop_timeout_s: u64 = 30;
        /// Interval of the checks, in milliseconds, 100 to 60000.
        probe_ms: u64 = 1000;
        /// It counts as ill when no check has succeeded for this long while its device worked, in seconds, 1 to 3600.
        /// Then it is restarted in place.
        health_timeout_s: u64 = 20;
        /// Maximum number of restarts in place within restart_window_s, 0 to 100; after that the lease is given away.
        restarts_max: u32 = 3;
        /// See restarts_max. In seconds, 10 to 86400.
        restart_window_s: u64 = 300;
    }
}

/// Limits of PostgreSQL, or of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// From its start until it serves, in seconds.
    pub start_s: u64,
    /// Of a planned stop, in seconds.
    pub stop_s: u64,
    /// Of the checkpoint before it, in seconds; 0 for a service, which has none.
    pub checkpoint_s: u64,
    /// Interval of the probes, in milliseconds.
    pub probe_ms: u64,
    /// After this time without an answer it counts as ill, in seconds.
    pub health_s: u64,
    /// Restarts in place within the window.
    pub restarts_max: u32,
    /// That window, in seconds.
    pub restart_window_s: u64,
}

impl AgentConfig {
    /// What runs on the set.
    pub fn workload(&self) -> Workload {
        match &self.service {
            None => Workload::PostgreSql,
            Some(service) => Workload::Service(service.name.clone()),
        }
    }

    /// Its directory on the pool.
    pub fn data(&self) -> &Path {
        match &self.service {
            None => &self.database.data,
            Some(service) => service.data.as_deref().unwrap_or(&self.pool.mount),
        }
    }

    /// The setting of that directory.
    pub(crate) fn data_setting(&self) -> &'static str {
        if self.service.is_some() { "service.data" } else { "database.data" }
    }

    /// Its limits.
    pub fn limits(&self) -> RunLimits {
        let database = &self.database;
        match &self.service {
            None => RunLimits {
                start_s: database.start_timeout_s,
                stop_s: database.stop_timeout_s,
                checkpoint_s: database.checkpoint_timeout_s,
                probe_ms: database.probe_ms,
                health_s: database.health_timeout_s,
                restarts_max: database.restarts_max,
                restart_window_s: database.restart_window_s,
            },
            Some(service) => RunLimits {
                start_s: service.start_timeout_s,
                stop_s: service.stop_timeout_s,
                checkpoint_s: 0,
                probe_ms: service.probe_ms,
                health_s: service.health_timeout_s,
                restarts_max: service.restarts_max,
                restart_window_s: service.restart_window_s,
            },
        }
    }
}
