//! The machine, and the states that it can be in.

use super::parts::{ClusterSeen, Leaving, Obstacles, Orders, OwnLease, Present, Probes, TakeoverLimits, Times, Way};
use super::types::{Job, Policy, Role, Stop};
use holdfast_types::MonoTime;
use std::time::Duration;

/// Steps until PostgreSQL is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rising {
    /// Remains of the last PostgreSQL are stopped in this way. `asked`: an operator ordered the restart.
    Clearing { job: Job, how: Stop, asked: bool },
    /// Waits until the machine's watchdog counts down. `sure`: PostgreSQL is started even if a pause begins meanwhile.
    Arming { job: Job, sure: bool },
    /// PostgreSQL was started.
    Launching(Job),
    /// It recovers.
    Recovering,
    /// The first write is under way.
    Writing(Job),
}

/// Where the machine is on its way to primary and back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    Standby,
    Acquiring,
    Attaching,
    Importing(Job),
    Starting(Rising),
    Primary,
    Following,
    /// The job that stops PostgreSQL, until it is done.
    CutOff(Option<Job>),
    Demoting(Leaving),
    Fencing(Leaving),
    Ended,
}

/// The machine. One per agent; one task owns it.
#[derive(Debug)]
pub struct Machine {
    pub(super) policy: Policy,
    pub(super) state: State,
    pub(super) times: Times,
    /// Number of the last job.
    pub(super) jobs: u64,
    pub(super) orders: Orders,
    /// Reason for the state, or what it waits for.
    pub(super) why: String,
    pub(super) obstacles: Obstacles,
    pub(super) cluster: ClusterSeen,
    pub(super) takeover: TakeoverLimits,
    pub(super) lease: OwnLease,
    pub(super) probes: Probes,
    pub(super) way: Option<Way>,
    pub(super) present: Present,
    /// Role that the hooks were told last.
    pub(super) told_role: Role,
}

impl Machine {
    /// A machine that does nothing before [`Input::Found`](super::Input::Found). `takeovers`: the automatic ones of
    /// the last hour.
    pub fn new(policy: Policy, now: MonoTime, takeovers: Vec<MonoTime>) -> Self {
        Self {
            lease: OwnLease { attach: None, leased_at: now, granted: 0, ttl: policy.lease.ttl, unserved_since: None },
            policy,
            state: State::Standby,
            times: Times { since: now, last_step: now, stalled: Duration::ZERO },
            jobs: 0,
            orders: Orders::default(),
            why: "starting".into(),
            obstacles: Obstacles::default(),
            cluster: ClusterSeen::default(),
            takeover: TakeoverLimits::new(now, takeovers),
            probes: Probes::default(),
            way: None,
            present: Present::default(),
            told_role: Role::Standby,
        }
    }
}
