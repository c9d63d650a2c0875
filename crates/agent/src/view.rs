//! An agent's view of itself: for load balancers, operators and the agents of other hosts.

use crate::clock;
use crate::config::{AgentConfig, Mode};
use crate::facts::{Difference, Facts};
use crate::host::PoolLook;
use crate::machine::{AttachPhase, DatabaseView, LeaseView, Machine, Role, StateName};
use crate::schedule::Scheduled;
use holdfast_types::MonoTime;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// An agent's view of itself; also the body of each health check.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct View {
    /// The host's name.
    pub name: String,
    /// The set's name.
    pub set: String,
    /// State of the machine.
    pub state: StateName,
    /// Begin of that state, Unix milliseconds.
    pub since_unix_ms: u64,
    /// Role as shown to load balancers.
    pub role: Role,
    /// Reason for the state, or what it waits for.
    pub why: String,
    /// Paused: nothing happens by itself.
    pub paused: bool,
    /// As configured.
    pub mode: Mode,
    /// As configured.
    pub nofailover: bool,
    /// As configured.
    pub priority: u32,
    /// Epoch of our grant, 0 without one.
    pub epoch: u64,
    /// Owner of the lease as far as known; "" if there is none or it is not known.
    pub lease_owner: String,
    /// A gateway reported the lease when it was last asked.
    pub cluster_answers: bool,
    /// ready, standby, busy, silent or gone.
    pub database: String,
    /// State of attach, if there is one.
    pub attach: Option<AttachPhase>,
    /// Time since the last renewal of our lease, in milliseconds.
    pub renewed_ms_ago: Option<u64>,
    /// Obstacle to a takeover by this host; "" for none.
    pub obstacle: String,
    /// Host id of ZFS, eight hexadecimal digits, zeroes for none; "" where the pool is no ZFS pool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host_id: String,
    /// Its pool is imported only under a host id that no other host has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multihost: bool,
    /// Reason why it could not take over at all, with the remedy; "" for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unable: String,
    /// What is not as it should be, and keeps nothing from working; "" for nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub warning: String,
    /// What of PostgreSQL's files does not lie on the set while it runs, and what to do about it; "" for nothing. It is lost with this host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub off_set: String,
    /// Why the last switchover was given up after PostgreSQL was stopped for it; "" where it was not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub switchover_refused: String,
    /// Processes other than PostgreSQL that have the pool open. Looked for in the plan of a switchover only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub openers: Vec<String>,
    /// The other hosts' agents, as configured.
    #[serde(default)]
    pub peers: std::collections::BTreeMap<String, String>,
    /// Version of the program.
    pub version: String,
    /// What it knows of its host (FACTS-F1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Facts>,
    /// How the other hosts that answer differ from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
    /// Where commands of its own host need no token; "" for nowhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub socket: String,
    /// The switchover that is to come, if one was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Scheduled>,
    /// Time of this view.
    #[serde(skip)]
    pub at: MonoTime,
}

impl View {
    /// The visible part of a machine's state.
    pub(crate) fn of(
        machine: &Machine,
        config: &AgentConfig,
        now: MonoTime,
        attach: Option<AttachPhase>,
        pool: PoolLook,
    ) -> Self {
        let unix = |at: MonoTime| clock::unix_ms().saturating_sub(millis(now.saturating_since(at)));
        let database = match machine.database() {
            _ if !machine.database_may_run() => "gone",
            DatabaseView::Ready => "ready",
            DatabaseView::Standby => "standby",
            DatabaseView::Busy | DatabaseView::Ending => "busy",
            DatabaseView::Silent => "silent",
            DatabaseView::Gone => "gone",
        };
        Self {
            name: config.name.clone(),
            set: config.set.clone(),
            state: machine.state(),
            since_unix_ms: unix(machine.since()),
            role: machine.role(),
            why: machine.why().into(),
            paused: machine.paused(),
            mode: config.mode,
            nofailover: config.nofailover,
            priority: config.priority,
            epoch: machine.epoch(),
            lease_owner: match machine.lease() {
                Some(LeaseView::Held { owner, .. }) => owner.clone(),
                _ => String::new(),
            },
            cluster_answers: !matches!(machine.lease(), None | Some(LeaseView::Unreachable)),
            database: database.into(),
            attach,
            renewed_ms_ago: machine.last_renewal().map(|at| millis(now.saturating_since(at))),
            obstacle: machine.may_take_over(now).err().unwrap_or_default(),
            host_id: pool.host_id,
            multihost: pool.multihost,
            unable: pool.unable,
            warning: pool.warning,
            off_set: pool.off_set,
            switchover_refused: machine.switchover_refused().into(),
            // The plan of a switchover adds them.
            openers: Vec::new(),
            peers: config.peers.0.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            // The HTTP server adds the rest.
            facts: None,
            differences: Vec::new(),
            socket: String::new(),
            scheduled: None,
            at: now,
        }
    }

    /// PostgreSQL answers queries.
    pub(crate) fn database_runs(&self) -> bool {
        self.database == "ready" || self.database == "standby"
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
