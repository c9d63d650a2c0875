//! An agent's view of itself: for load balancers, operators and the agents of other hosts.

use crate::clock;
use crate::config::{AgentConfig, Mode};
use crate::facts::{Difference, Facts};
use crate::host::PoolLook;
use crate::machine::{AttachPhase, DatabaseView, LeaseView, Machine, Role, StateName, Workload};
use crate::schedule::Scheduled;
use holdfast_types::MonoTime;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A view older than this is not used.
pub(crate) const STALE: Duration = Duration::from_secs(2);

/// An agent's view of itself; also the body of `/status`. In JSON all fields stand side by side.
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
    /// Name of the service that runs in place of PostgreSQL; "" for PostgreSQL.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub service: String,
    /// Reason for the state, or what it waits for.
    pub why: String,
    /// Paused: nothing happens by itself.
    pub paused: bool,
    /// ready, standby, busy, silent, elsewhere or gone.
    pub database: String,
    /// State of attach, if there is one.
    pub attach: Option<AttachPhase>,
    /// Obstacle to a takeover by this host; "" for none.
    pub obstacle: String,
    /// Reason why the last switchover was given up after PostgreSQL was stopped for it; "" if it was not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub switchover_refused: String,
    /// Version of the program.
    pub version: String,
    /// The lease.
    #[serde(flatten)]
    pub lease: LeaseShown,
    /// The pool.
    #[serde(flatten)]
    pub pool: PoolShown,
    /// Some settings.
    #[serde(flatten)]
    pub settings: SettingsShown,
    /// Fields that the HTTP server fills in.
    #[serde(flatten)]
    pub added: Added,
    /// End of the lease that this host holds, unless it is renewed; `None` if it holds none.
    #[serde(skip)]
    pub holds_until: Option<MonoTime>,
    /// Time of this view.
    #[serde(skip)]
    pub at: MonoTime,
}

/// The lease, as this host knows it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LeaseShown {
    /// Epoch of our grant, 0 without one.
    pub epoch: u64,
    /// Owner of the lease as far as known; "" if there is none or it is not known.
    #[serde(rename = "lease_owner")]
    pub owner: String,
    /// A gateway reported the lease when it was last asked.
    pub cluster_answers: bool,
    /// Time since the last renewal of our lease, in milliseconds.
    pub renewed_ms_ago: Option<u64>,
}

/// The pool of this host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PoolShown {
    /// Host id of ZFS, eight hexadecimal digits, zeroes for none; "" if the pool is no ZFS pool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host_id: String,
    /// The pool is imported only under a host id that no other host has.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub multihost: bool,
    /// Reason why this host could not take over at all, with the remedy; "" for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unable: String,
    /// A fault that keeps nothing from working; "" for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub warning: String,
    /// Files of a running PostgreSQL that do not lie on the set, and the remedy; "" for none. They are lost with this
    /// host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub off_set: String,
    /// Processes other than PostgreSQL that have the pool open. Looked for in the plan of a switchover only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub openers: Vec<String>,
    /// Like `openers`, of those that end by themselves once PostgreSQL is stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<String>,
}

/// Settings of this host that others need to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SettingsShown {
    /// `mode`.
    pub mode: Mode,
    /// `nofailover`.
    pub nofailover: bool,
    /// `priority`.
    pub priority: u32,
    /// `[peers]`: the other hosts' agents.
    #[serde(default)]
    pub peers: BTreeMap<String, String>,
}

/// Fields that the HTTP server fills in.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Added {
    /// Its facts about its host (FACTS-F1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<Facts>,
    /// How the other hosts that answer differ from it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
    /// Its Unix socket, where commands need no token; "" for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub socket: String,
    /// The scheduled switchover, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduled: Option<Scheduled>,
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
            DatabaseView::Elsewhere => "elsewhere",
            DatabaseView::Gone => "gone",
        };
        Self {
            name: config.name.clone(),
            set: config.set.clone(),
            state: machine.state(),
            since_unix_ms: unix(machine.since()),
            role: machine.role(),
            service: config.service.as_ref().map_or_else(String::new, |service| service.name.clone()),
            why: machine.why().into(),
            paused: machine.paused(),
            database: database.into(),
            attach,
            obstacle: machine.may_take_over(now).err().unwrap_or_default(),
            switchover_refused: machine.switchover_refused().into(),
            version: env!("CARGO_PKG_VERSION").into(),
            lease: LeaseShown {
                epoch: machine.epoch(),
                owner: match machine.lease() {
                    Some(LeaseView::Held { owner, .. }) => owner.clone(),
                    _ => String::new(),
                },
                cluster_answers: !matches!(machine.lease(), None | Some(LeaseView::Unreachable)),
                renewed_ms_ago: machine.last_renewal().map(|at| millis(now.saturating_since(at))),
            },
            pool: PoolShown {
                host_id: pool.host_id,
                multihost: pool.multihost,
                unable: pool.unable,
                warning: pool.warning,
                off_set: pool.off_set,
                // The plan of a switchover fills in the rest.
                ..PoolShown::default()
            },
            settings: SettingsShown {
                mode: config.mode,
                nofailover: config.nofailover,
                priority: config.priority,
                peers: config.peers.0.clone(),
            },
            added: Added::default(),
            holds_until: machine.holds_until(),
            at: now,
        }
    }

    /// What runs on the set, by this host's settings.
    pub(crate) fn workload(&self) -> Workload {
        match self.service.as_str() {
            "" => Workload::PostgreSql,
            name => Workload::Service(name.into()),
        }
    }

    /// It is young enough to be believed at `now` (HEALTH-H1).
    pub(crate) fn is_fresh(&self, now: MonoTime) -> bool {
        now.saturating_since(self.at) < STALE
    }

    /// This host holds the lease at `now` (HEALTH-H4).
    pub(crate) fn holds_lease(&self, now: MonoTime) -> bool {
        self.holds_until.is_some_and(|end| now < end)
    }

    /// PostgreSQL here takes writes, under a lease that has not ended at `now` (HEALTH-H4).
    pub(crate) fn takes_writes(&self, now: MonoTime) -> bool {
        self.role == Role::Primary && self.holds_lease(now)
    }

    /// PostgreSQL here follows another one, under the lease of this set: in Patroni's words the leader of a standby
    /// cluster.
    pub(crate) fn leads_standbys(&self, now: MonoTime) -> bool {
        self.state == StateName::Following && self.database == "standby" && self.holds_lease(now)
    }

    /// PostgreSQL answers queries.
    pub(crate) fn database_runs(&self) -> bool {
        self.database == "ready" || self.database == "standby"
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
impl View {
    /// Of a host of the set demo that does nothing and has heard a gateway. A primary, and one that follows, holds the
    /// lease for a minute.
    pub(crate) fn for_test(name: &str, state: StateName, role: Role, database: &str) -> Self {
        Self {
            name: name.into(),
            set: "demo".into(),
            state,
            since_unix_ms: 0,
            role,
            service: String::new(),
            why: String::new(),
            paused: false,
            database: database.into(),
            attach: None,
            obstacle: String::new(),
            switchover_refused: String::new(),
            version: String::new(),
            lease: LeaseShown { cluster_answers: true, ..LeaseShown::default() },
            pool: PoolShown::default(),
            settings: SettingsShown { mode: Mode::Automatic, nofailover: false, priority: 100, peers: BTreeMap::new() },
            added: Added::default(),
            holds_until: matches!(state, StateName::Primary | StateName::Following)
                .then(|| clock::now().saturating_add(Duration::from_secs(60))),
            at: clock::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other agents, load balancers and scripts read one flat object, and an agent of another build may send fewer
    /// fields.
    #[test]
    fn all_fields_stand_side_by_side_in_json() {
        let mut view = View::for_test("db1", StateName::Primary, Role::Primary, "ready");
        (view.lease.owner, view.lease.epoch, view.pool.unable) = ("db1".into(), 7, "no id".into());
        view.added.scheduled = Some(Scheduled { at_unix_ms: 5, to: None });
        let value = serde_json::to_value(&view).unwrap();
        for (field, expected) in [
            ("lease_owner", serde_json::json!("db1")),
            ("epoch", 7.into()),
            ("unable", "no id".into()),
            ("mode", "automatic".into()),
            ("cluster_answers", true.into()),
            ("scheduled", serde_json::json!({ "at_unix_ms": 5 })),
        ] {
            assert_eq!(value[field], expected, "{field}");
        }
        for group in ["lease", "pool", "settings", "added"] {
            assert!(value.get(group).is_none(), "{group}");
        }
        let back: View = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&back).unwrap(), value);
        let mut fewer = value;
        for field in ["unable", "scheduled", "attach", "renewed_ms_ago", "peers"] {
            fewer.as_object_mut().unwrap().remove(field);
        }
        let back: View = serde_json::from_value(fewer).unwrap();
        assert!(back.pool.unable.is_empty() && back.added.scheduled.is_none() && back.settings.peers.is_empty());
    }
}
