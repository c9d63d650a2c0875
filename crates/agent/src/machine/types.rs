//! Inputs, actions and views of the machine.

use holdfast_types::MonoTime;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// What the machine is told once: settings that are durations and counts already.
#[derive(Clone, Debug)]
pub struct Policy {
    /// This host's name: the owner of its leases.
    pub name: String,
    /// `false`: only an operator's word makes this host take a lease.
    pub automatic: bool,
    /// Never takes over by itself, whatever happens.
    pub nofailover: bool,
    /// How long a host of this priority leaves a free lease to better ones.
    pub campaign_wait: Duration,
    /// After this host gave the lease away because of a fault here: no campaign for this long.
    pub flap_delay: Duration,
    /// Automatic takeovers at most within any hour.
    pub takeovers_per_hour_max: usize,
    /// Pause after a takeover that failed; doubled by each further one up to `backoff_max`.
    pub backoff_min: Duration,
    /// See `backoff_min`.
    pub backoff_max: Duration,
    /// From the start of attach until it has the lease.
    pub acquire_timeout: Duration,
    /// From the lease until the devices are there.
    pub attach_timeout: Duration,
    /// From the start of PostgreSQL until it accepts writes, recovery included.
    pub start_timeout: Duration,
    /// PostgreSQL is stopped this long before the lease could end.
    pub stop_margin: Duration,
    /// How long the lease lasts where the cluster has not said it yet.
    pub lease_ttl: Duration,
    /// PostgreSQL is taken as hung when it has not answered for this long while its device was well.
    pub health_timeout: Duration,
    /// Restarts in place at most within `restart_window`; then the lease is given away.
    pub restarts_max: usize,
    /// See `restarts_max`.
    pub restart_window: Duration,
    /// After a switchover away: how long the other host may take before this one stands again.
    pub switchover_hold: Duration,
    /// A device or pool that cannot be let go of is ended by a reboot.
    pub fence_reboot: bool,
    /// A PostgreSQL that is a standby is as it should be.
    pub follows: bool,
    /// The machine's watchdog.
    pub guard: Guard,
}

/// Whether the machine's watchdog has to count before PostgreSQL is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// It is left alone.
    Off,
    /// It counts where it can be had.
    Automatic,
    /// Without it PostgreSQL is not started here.
    Required,
}

/// What the cluster says about the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseView {
    /// No gateway could say.
    Unreachable,
    /// Nobody holds it.
    Free,
    /// Somebody does.
    Held {
        /// Who.
        owner: String,
        /// Its fencing token.
        epoch: u64,
        /// Until it may be judged expired; zero when that is possible now.
        remaining: Duration,
        /// How long it lasts from each renewal.
        ttl: Duration,
    },
}

/// Where the attach process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachPhase {
    /// It asks for the lease.
    Acquiring,
    /// It has the lease and makes the devices.
    Connecting,
    /// The devices are there and answer.
    Serving,
    /// The gateway went away; requests wait.
    Reconnecting,
    /// Another owner holds the set: every request fails, for good.
    Fenced,
    /// It let go of everything.
    Detached,
}

/// What the attach process says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachView {
    /// Where it is.
    pub phase: AttachPhase,
    /// Epoch of its grant, 0 before the first.
    pub epoch: u64,
    /// When it *sent* its last successful renewal, by this host's clock.
    pub renewed: Option<MonoTime>,
    /// How long its lease lasts from there, once it was granted.
    pub ttl: Option<Duration>,
    /// Who or what fenced it, for people.
    pub fenced_by: String,
    /// Volumes whose devices fail for good while the others go on, and why, for people.
    pub lost: Vec<String>,
}

/// How the attach process ended by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachEnd {
    /// Somebody else holds the lease: it never had it.
    Refused(String),
    /// It had the lease, and another owner has it now.
    Fenced(String),
    /// Anything else.
    Failed(String),
}

/// How PostgreSQL is, as a probe found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatabaseView {
    /// It answers queries and is no standby.
    Ready,
    /// It answers queries and is in recovery: a standby.
    Standby,
    /// It lives and takes no queries yet: starting, recovering.
    Busy,
    /// It lives, takes no queries any more, and is shutting down.
    Ending,
    /// It lives and gave no answer in time.
    Silent,
    /// There is no process.
    Gone,
}

/// What an operator, or another host's agent, asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Nothing by itself any more, except what safety asks.
    Pause,
    /// As before the pause.
    Resume,
    /// Give the lease to another host, in good order.
    Switchover {
        /// Which; told to claim it already.
        to: String,
    },
    /// The present primary is about to let go for us.
    Claim {
        /// Who says so.
        from: String,
        /// How long the promise is good.
        within: Duration,
    },
    /// Take the lease now, by force if it is held.
    Failover {
        /// Why, for the history.
        reason: String,
    },
    /// Start PostgreSQL anew, here.
    Restart,
    /// The agent ends: let go in good order, unless paused.
    Shutdown,
}

/// Number of something that was started; its end names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Job(pub u64);

/// What was there when the agent started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// An attach process of ours serves its devices.
    pub attach: bool,
    /// The pool is mounted.
    pub mounted: bool,
    /// PostgreSQL runs.
    pub database: bool,
}

/// Something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// Once, first: what an earlier agent left.
    Found(Found),
    /// Time went by.
    Tick,
    /// The cluster was asked.
    Lease(LeaseView),
    /// The attach process said something, or was looked at.
    Attach(AttachView),
    /// The attach process ended, and we had not asked for it.
    AttachEnded(AttachEnd),
    /// PostgreSQL was looked at.
    Database(DatabaseView),
    /// A job ended. Each is answered once and in bounded time, by the shell's promise.
    Done {
        /// Which.
        job: Job,
        /// Why it failed.
        result: Result<(), String>,
    },
    /// A job ended with nothing done: it was refused, and another try here would be, too.
    Refused {
        /// Which.
        job: Job,
        /// Why, and what would make it possible.
        why: String,
    },
}

/// How PostgreSQL is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// With a checkpoint; clients are sent away.
    Fast,
    /// At once, as after a crash.
    Immediate,
    /// Without asking it: every one of its processes.
    Kill,
}

/// Something to do. Jobs are answered by [`Input::Done`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start the attach process.
    Attach {
        /// Take the lease even if another owner holds it.
        force: bool,
    },
    /// End the attach process: politely with the lease given back, or by all means.
    Detach {
        /// Answered when it is gone.
        job: Job,
        /// Kill it where it does not go.
        hard: bool,
    },
    /// Check and mount the file system, or import the pool.
    Import {
        /// Answered when it is mounted.
        job: Job,
        /// The last user had no chance to export it; it is fenced now.
        force: bool,
    },
    /// Unmount or export.
    Export {
        /// Answered when it is.
        job: Job,
        /// Errors on the way are expected: the device is dead.
        hard: bool,
    },
    /// See to it that the machine's watchdog counts; it was asked for before, by [`super::Machine::guarded`].
    Arm {
        /// Answered when it does, or why it does not.
        job: Job,
    },
    /// Start PostgreSQL; its readiness comes by [`Input::Database`].
    StartDatabase {
        /// Answered when the start was given.
        job: Job,
    },
    /// Stop PostgreSQL.
    StopDatabase {
        /// Answered when none of its processes is left.
        job: Job,
        /// How.
        how: Stop,
    },
    /// A checkpoint ahead of a planned stop, so that the stop is short.
    Checkpoint {
        /// Answered when done or given up.
        job: Job,
    },
    /// A write that PostgreSQL answers only once it is durable.
    FirstWrite {
        /// Answered when it was.
        job: Job,
    },
    /// Tell scripts.
    Hook(Role),
    /// Keep it in the history.
    Record(Box<Record>),
    /// This machine cannot let go: reboot it.
    Reboot(String),
}

/// What load balancers and hooks know of.
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
    /// Stopped PostgreSQL in time, keeps the device, and waits to learn whose the lease is.
    CutOff,
    /// Lets go in good order.
    Demoting,
    /// Lets go of what is lost already.
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

/// What a line of the history is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// This host became primary: the lease was free.
    Start,
    /// This host became primary after another one was lost.
    Failover,
    /// This host became primary as planned.
    Switchover,
    /// PostgreSQL was started anew in its place.
    Restart,
    /// Taken over from an earlier agent process without a stop.
    Adopted,
    /// PostgreSQL followed another one, and takes writes now.
    Promoted,
    /// PostgreSQL lives and has taken no queries for long.
    Refusing,
    /// Trying to become primary failed.
    TakeoverFailed,
    /// A volume is not what its device was made of any more: its device fails, PostgreSQL goes on as long as it can.
    VolumeLost,
    /// PostgreSQL runs, and not all of its files lie on the set.
    OffSet,
    /// PostgreSQL was stopped because the lease could not be renewed in time.
    CutOff,
    /// A planned move was given up: somebody has the pool open. PostgreSQL is started again here.
    SwitchoverRefused,
    /// Given away in good order.
    Demoted,
    /// Another owner has the lease, or the device is gone.
    Fenced,
    /// Could not let go.
    Stuck,
    /// An operator paused the agent.
    Paused,
    /// An operator resumed it.
    Resumed,
    /// About a switchover that was asked for at a time.
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
            Event::Demoted => "demoted",
            Event::Fenced => "fenced",
            Event::Stuck => "stuck",
            Event::Paused => "paused",
            Event::Resumed => "resumed",
            Event::Scheduled => "scheduled",
        })
    }
}

/// How long each phase of becoming primary took, in milliseconds. What was not reached is left out.
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
    /// What.
    pub event: Event,
    /// Why.
    pub reason: String,
    /// Who had the lease before, or who has it now; "" where that is nobody's.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub other: String,
    /// Epoch that it was about, 0 for none.
    #[serde(default)]
    pub epoch: u64,
    /// The way to primary, where it was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phases: Option<Phases>,
}

/// Why a command was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);
