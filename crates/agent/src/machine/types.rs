//! Inputs, actions and views of the machine.

use holdfast_types::MonoTime;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Settings of the machine, already converted to durations and counts.
#[derive(Clone, Debug)]
pub struct Policy {
    /// This host's name: the owner of its leases.
    pub name: String,
    /// When this host takes over.
    pub takeover: TakeoverPolicy,
    /// How long each step may take.
    pub timeouts: Timeouts,
    /// How PostgreSQL depends on the lease.
    pub lease: LeasePolicy,
    /// Restarts of PostgreSQL in place.
    pub restarts: RestartPolicy,
    /// A device or pool that cannot be released is ended by a reboot.
    pub fence_reboot: bool,
    /// Processes that keep the pool open are ended when this host gives its lease up.
    pub ends_users: bool,
    /// What runs on the set.
    pub workload: Workload,
    /// A PostgreSQL that is a standby is accepted.
    pub follows: bool,
    /// The machine's watchdog.
    pub guard: Guard,
}

/// What runs on the set. Names in this module speak of PostgreSQL and of a database; all that is different for another
/// service is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// PostgreSQL.
    PostgreSql,
    /// Any other service, by its name. It has no checkpoint, and is nobody's standby. Its first successful check counts
    /// as its first write (AGENT-A5): what it writes, and when that is durable, is its own affair.
    Service(String),
}

impl Workload {
    /// Whether it makes a checkpoint before a stop, and a first write after a start.
    pub fn is_postgresql(&self) -> bool {
        *self == Workload::PostgreSql
    }

    /// What is missing for so long, as a reason for a restart.
    pub(super) fn silent(&self, time: Duration) -> String {
        let ms = time.as_millis();
        match self {
            Workload::PostgreSql => format!("PostgreSQL gave no answer for {ms} ms"),
            Workload::Service(_) => format!("{self} failed its check for {ms} ms"),
        }
    }

    /// What it did not do within the time of a start.
    pub(super) fn not_up(&self, limit_ms: u64) -> String {
        match self {
            Workload::PostgreSql => format!("PostgreSQL took no writes within {limit_ms} ms"),
            Workload::Service(_) => format!("{self} passed no check within {limit_ms} ms"),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workload::PostgreSql => f.write_str("PostgreSQL"),
            Workload::Service(name) => write!(f, "service {name}"),
        }
    }
}

/// When a host takes over.
#[derive(Clone, Debug)]
pub struct TakeoverPolicy {
    /// `false`: this host takes a lease only on an operator's command.
    pub automatic: bool,
    /// Never takes over by itself, whatever happens.
    pub nofailover: bool,
    /// How long a host of this priority leaves a free lease to better ones.
    pub campaign_wait: Duration,
    /// After this host gave the lease away because of a fault here: no campaign for this long.
    pub flap_delay: Duration,
    /// Automatic takeovers at most within any hour.
    pub per_hour_max: usize,
    /// Pause after a takeover that failed; doubled by each further one up to `backoff_max`.
    pub backoff_min: Duration,
    /// See `backoff_min`.
    pub backoff_max: Duration,
    /// Time for another host to take over after a switchover, before this one competes again.
    pub switchover_hold: Duration,
}

/// How long each step may take.
#[derive(Clone, Debug)]
pub struct Timeouts {
    /// From the start of attach until it has the lease.
    pub acquire: Duration,
    /// From the lease until the devices are there.
    pub attach: Duration,
    /// From the start of PostgreSQL until it accepts writes, recovery included.
    pub start: Duration,
    /// PostgreSQL counts as hung if it has not answered for this long while its device worked.
    pub health: Duration,
}

/// How PostgreSQL depends on the lease.
#[derive(Clone, Debug)]
pub struct LeasePolicy {
    /// PostgreSQL is stopped this long before the lease could end.
    pub stop_margin: Duration,
    /// How long the lease lasts while the cluster has not said it yet.
    pub ttl: Duration,
}

/// Restarts of PostgreSQL in place.
#[derive(Clone, Debug)]
pub struct RestartPolicy {
    /// At most this many within `window`; then the lease is given away.
    pub max: usize,
    /// See `max`.
    pub window: Duration,
}

/// Whether the machine's watchdog has to count down before PostgreSQL is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// It is not used.
    Off,
    /// It is used if it can be opened.
    Automatic,
    /// Without it PostgreSQL is not started here.
    Required,
}

/// The cluster's answer about the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseView {
    /// No gateway knew.
    Unreachable,
    /// The lease is free.
    Free,
    /// The lease is held.
    Held {
        /// Its owner.
        owner: String,
        /// Its fencing token.
        epoch: u64,
        /// Time until it may be judged expired; zero if that is possible now.
        remaining: Duration,
        /// How long it lasts from each renewal.
        ttl: Duration,
    },
}

/// State of the attach process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachPhase {
    /// It asks for the lease.
    Acquiring,
    /// It has the lease and makes the devices.
    Connecting,
    /// The devices exist and answer.
    Serving,
    /// The gateway is gone; requests wait.
    Reconnecting,
    /// Another owner holds the set: every request fails from now on.
    Fenced,
    /// It has released everything.
    Detached,
}

/// The attach process's own report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachView {
    /// Its state.
    pub phase: AttachPhase,
    /// Epoch of its grant, 0 before the first.
    pub epoch: u64,
    /// When it *sent* its last successful renewal, by this host's clock.
    pub renewed: Option<MonoTime>,
    /// How long its lease lasts from there, once it was granted.
    pub ttl: Option<Duration>,
    /// Reason for the fencing, for people.
    pub fenced_by: String,
    /// Volumes whose devices fail for good while the others work, with the reason, for people.
    pub lost: Vec<String>,
}

/// Reason why the attach process ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachEnd {
    /// Another owner holds the lease: this process never had it.
    Refused(String),
    /// It had the lease, and another owner has it now.
    Fenced(String),
    /// Anything else.
    Failed(String),
}

/// State of PostgreSQL as found by a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseView {
    /// It answers queries and is no standby. Of a service: its check succeeded.
    Ready,
    /// It answers queries and is in recovery: a standby.
    Standby,
    /// It lives and takes no queries yet: starting, recovering.
    Busy,
    /// It lives, takes no queries any more, and is shutting down.
    Ending,
    /// It lives and gave no answer in time. Of a service: its check failed.
    Silent,
    /// What answers works in another data directory than this PostgreSQL's.
    Elsewhere,
    /// There is no process.
    Gone,
}

/// A command of an operator, or of another host's agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Nothing happens by itself any more, except for safety.
    Pause,
    /// End of the pause.
    Resume,
    /// Give the lease to another host, in good order.
    Switchover {
        /// The target host, which already has a claim.
        to: String,
    },
    /// The present primary is about to give the lease to us.
    Claim {
        /// The promising host.
        from: String,
        /// How long the promise is valid.
        within: Duration,
    },
    /// Take the lease now, by force if it is held.
    Failover {
        /// The reason, for the history.
        reason: String,
    },
    /// Restart PostgreSQL on this host.
    Restart,
    /// The agent ends: release everything in good order, unless paused.
    Shutdown,
}

/// Number of a started job; its end carries the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Job(pub u64);

/// What already existed when the agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// An attach process of ours serves its devices.
    pub attach: bool,
    /// The pool is mounted.
    pub mounted: bool,
    /// PostgreSQL runs.
    pub database: bool,
}

/// An input of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The first input, once: what an earlier agent left.
    Found(Found),
    /// Time passed.
    Tick,
    /// The cluster's answer.
    Lease(LeaseView),
    /// A report of the attach process, or a look at it.
    Attach(AttachView),
    /// The attach process ended, without our order.
    AttachEnded(AttachEnd),
    /// A probe of PostgreSQL.
    Database(DatabaseView),
    /// A job ended. The shell promises one answer for each, in bounded time.
    Done {
        /// The job.
        job: Job,
        /// Why it failed.
        result: Result<(), String>,
    },
    /// A job ended with nothing done: it was refused, and another try here would be, too.
    Refused {
        /// The job.
        job: Job,
        /// The reason, and the remedy.
        why: String,
    },
    /// These processes were ended by [`Action::EndUsers`], which goes on or is answered next; for people.
    UsersEnded(Vec<String>),
}

/// How PostgreSQL is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// With a checkpoint; clients are disconnected.
    Fast,
    /// At once, as after a crash.
    Immediate,
    /// SIGKILL to each of its processes.
    Kill,
}

/// An output of the machine. Jobs are answered by [`Input::Done`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the attach process.
    Attach {
        /// Take the lease even if another owner holds it.
        force: bool,
    },
    /// End the attach process: in good order with the lease given back, or by force.
    Detach {
        /// Answered when it is gone.
        job: Job,
        /// Kill it if it does not end.
        hard: bool,
    },
    /// Check and mount the file system, or import the pool.
    Import {
        /// Answered when it is mounted.
        job: Job,
        /// The last owner could not export it; it is fenced now.
        force: bool,
    },
    /// Unmount or export.
    Export {
        /// Answered when it is.
        job: Job,
        /// Errors are expected: the device is dead.
        hard: bool,
    },
    /// End processes that have the pool open. [`Input::UsersEnded`] says which.
    EndUsers {
        /// Answered when they have ended, or have not although they were killed.
        job: Job,
        /// At most so many.
        most: usize,
    },
    /// Wait until the machine's watchdog counts down; [`super::Machine::guarded`] requested it before.
    Arm {
        /// Answered when it counts down, or with the reason why not.
        job: Job,
    },
    /// Start PostgreSQL; [`Input::Database`] reports when it is ready.
    StartDatabase {
        /// Answered when it was started.
        job: Job,
    },
    /// Stop PostgreSQL.
    StopDatabase {
        /// Answered when none of its processes is left.
        job: Job,
        /// How.
        how: Stop,
    },
    /// A checkpoint before a planned stop, so that the stop is short.
    Checkpoint {
        /// Answered when done or given up.
        job: Job,
    },
    /// A write that PostgreSQL answers only once it is durable.
    FirstWrite {
        /// Answered when it was.
        job: Job,
    },
    /// Run hooks.
    Hook(Role),
    /// Write it to the history.
    Record(Box<Record>),
    /// This machine cannot release the set: reboot it.
    Reboot(String),
}

/// The role as load balancers and hooks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// PostgreSQL here takes writes.
    Primary,
    /// It does not.
    Standby,
}

/// The machine's state by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateName {
    /// Holds nothing, waits.
    Standby,
    /// Asks for the lease.
    Acquiring,
    /// Has the lease; the devices are being made.
    Attaching,
    /// Mounts the file system or imports the pool.
    Importing,
    /// PostgreSQL recovers.
    Starting,
    /// PostgreSQL takes writes.
    Primary,
    /// PostgreSQL runs and is a standby of another one, elsewhere.
    Following,
    /// Stopped PostgreSQL in time, keeps the device, and waits to learn the owner of the lease.
    CutOff,
    /// Releases everything in good order.
    Demoting,
    /// Releases by force: the set is lost already.
    Fencing,
    /// The agent may end.
    Ended,
}

impl fmt::Display for StateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StateName::Standby => "standby",
            StateName::Acquiring => "acquiring",
            StateName::Attaching => "attaching",
            StateName::Importing => "importing",
            StateName::Starting => "starting",
            StateName::Primary => "primary",
            StateName::Following => "following",
            StateName::CutOff => "cutoff",
            StateName::Demoting => "demoting",
            StateName::Fencing => "fencing",
            StateName::Ended => "ended",
        })
    }
}

/// Kind of a history line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// This host became primary: the lease was free.
    Start,
    /// This host became primary after another one was lost.
    Failover,
    /// This host became primary as planned.
    Switchover,
    /// PostgreSQL was restarted on this host.
    Restart,
    /// An earlier agent process ended, and this one continued without a stop of PostgreSQL.
    Adopted,
    /// PostgreSQL was a standby of another one, and takes writes now.
    Promoted,
    /// PostgreSQL lives, but has taken no queries for long.
    Refusing,
    /// Trying to become primary failed.
    TakeoverFailed,
    /// A volume has changed under its device: the device fails, and PostgreSQL goes on as long as it can.
    VolumeLost,
    /// PostgreSQL runs, and not all of its files lie on the set.
    OffSet,
    /// PostgreSQL was stopped because the lease could not be renewed in time.
    CutOff,
    /// A planned move was given up: somebody has the pool open. PostgreSQL is started again here.
    SwitchoverRefused,
    /// The lease is to be given up, and somebody has the pool open. Who still has after some rounds is ended.
    InUse,
    /// A process that kept the pool open was ended.
    UserEnded,
    /// Given away in good order.
    Demoted,
    /// Another owner has the lease, or the device is gone.
    Fenced,
    /// The release did not succeed.
    Stuck,
    /// An operator paused the agent.
    Paused,
    /// An operator resumed it.
    Resumed,
    /// An event of a scheduled switchover.
    Scheduled,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Event::Start => "start",
            Event::Failover => "failover",
            Event::Switchover => "switchover",
            Event::Restart => "restart",
            Event::Adopted => "adopted",
            Event::Promoted => "promoted",
            Event::Refusing => "refusing",
            Event::TakeoverFailed => "takeover-failed",
            Event::VolumeLost => "volume-lost",
            Event::OffSet => "off-set",
            Event::CutOff => "cut-off",
            Event::SwitchoverRefused => "switchover-refused",
            Event::InUse => "in-use",
            Event::UserEnded => "user-ended",
            Event::Demoted => "demoted",
            Event::Fenced => "fenced",
            Event::Stuck => "stuck",
            Event::Paused => "paused",
            Event::Resumed => "resumed",
            Event::Scheduled => "scheduled",
        })
    }
}

/// Duration of each phase of a takeover, in milliseconds. Phases that were not reached are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Phases {
    /// From the last sign of life of the old holder (as the lease shows it) to the decision.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detect_ms: Option<u64>,
    /// To the grant.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub lease_ms: Option<u64>,
    /// To the devices.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attach_ms: Option<u64>,
    /// To the mounted file system or imported pool.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mount_ms: Option<u64>,
    /// To PostgreSQL's end of recovery.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub recover_ms: Option<u64>,
    /// To the first durable write.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub first_write_ms: Option<u64>,
}

impl Phases {
    /// All of them together.
    pub fn total_ms(&self) -> u64 {
        let all = [self.detect_ms, self.lease_ms, self.attach_ms, self.mount_ms, self.recover_ms, self.first_write_ms];
        all.iter().flatten().sum()
    }
}

/// One line of the history, before the shell adds host, set and time of day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its kind.
    pub event: Event,
    /// The reason.
    pub reason: String,
    /// Previous or present owner of the lease; "" if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub other: String,
    /// Epoch concerned, 0 for none.
    #[serde(default)]
    pub epoch: u64,
    /// Durations of the takeover, if it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<Phases>,
}

/// Reason why a command was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);
