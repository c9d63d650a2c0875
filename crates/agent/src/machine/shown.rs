//! What the machine shows to others.

use super::parts::Step;
use super::state::{Machine, State};
use super::{AttachPhase, DatabaseView, Guard, LeaseView, Role, StateName};
use holdfast_types::MonoTime;
use std::time::Duration;

impl Machine {
    /// The state's name.
    pub fn state(&self) -> StateName {
        match self.state {
            State::Standby => StateName::Standby,
            State::Acquiring => StateName::Acquiring,
            State::Attaching => StateName::Attaching,
            State::Importing(_) => StateName::Importing,
            State::Starting(_) => StateName::Starting,
            State::Primary => StateName::Primary,
            State::Following => StateName::Following,
            State::CutOff(_) => StateName::CutOff,
            State::Demoting(_) => StateName::Demoting,
            State::Fencing(_) => StateName::Fencing,
            State::Ended => StateName::Ended,
        }
    }

    /// Begin of that state.
    pub fn since(&self) -> MonoTime {
        self.times.since
    }

    /// Role as shown to load balancers.
    pub fn role(&self) -> Role {
        let takes_writes = matches!(self.probes.database, DatabaseView::Ready | DatabaseView::Silent);
        let serves = match &self.state {
            State::Primary => true,
            State::Demoting(leaving) => leaving.before_stop(),
            _ => false,
        };
        if serves && takes_writes { Role::Primary } else { Role::Standby }
    }

    /// Reason for the state, or what it waits for.
    pub fn why(&self) -> &str {
        &self.why
    }

    /// Paused: nothing happens by itself.
    pub fn paused(&self) -> bool {
        self.orders.paused
    }

    /// The epoch of our grant, or 0.
    pub fn epoch(&self) -> u64 {
        self.lease.attach.as_ref().map_or(0, |attach| attach.epoch)
    }

    /// The last answer about the lease.
    pub fn lease(&self) -> Option<&LeaseView> {
        self.cluster.lease.as_ref().map(|(_, view)| view)
    }

    /// State of PostgreSQL at the last probe.
    pub fn database(&self) -> DatabaseView {
        self.probes.database
    }

    /// PostgreSQL may run, so it is probed and guarded.
    pub fn database_may_run(&self) -> bool {
        self.present.running
    }

    /// The machine's watchdog has to count down: this host is primary, or is about to be.
    pub fn guarded(&self) -> bool {
        let holds = !matches!(self.state, State::Standby | State::Acquiring | State::Ended);
        self.policy.guard != Guard::Off && (holds || self.present.running)
    }

    /// End of the lease unless it is renewed: until then PostgreSQL may run. `None` if it does not run.
    pub fn watchdog_deadline(&self) -> Option<MonoTime> {
        self.present.running.then(|| self.renewed().saturating_add(self.lease.ttl))
    }

    /// Time at which PostgreSQL is stopped unless the lease is renewed (AGENT-A3).
    pub fn stop_at(&self) -> MonoTime {
        self.renewed().saturating_add(self.lease.ttl.saturating_sub(self.stop_margin()))
    }

    /// Time between the stop of PostgreSQL and the end of the lease: as configured, at most half of a lease. The
    /// gateways may grant a shorter lease than the margin was chosen for, and with a margin as long as the lease
    /// PostgreSQL would never start.
    pub fn stop_margin(&self) -> Duration {
        self.policy.lease.stop_margin.min(self.lease.ttl / 2)
    }

    /// Time of the last renewal of our lease; `None` without one.
    pub fn last_renewal(&self) -> Option<MonoTime> {
        self.lease.attach.as_ref().and_then(|attach| attach.renewed)
    }

    /// How long the lease lasts from each renewal.
    pub fn ttl(&self) -> Duration {
        self.lease.ttl
    }

    pub(super) fn renewed(&self) -> MonoTime {
        self.lease.attach.as_ref().and_then(|attach| attach.renewed).unwrap_or(self.lease.leased_at)
    }

    /// End of the lease that this host holds, unless it is renewed; `None` if it holds none. A host that has lost its
    /// lease, that is being fenced, or that was cut off and does not know, holds none.
    pub fn holds_until(&self) -> Option<MonoTime> {
        let by_state = match &self.state {
            State::Standby | State::Acquiring | State::CutOff(_) | State::Fencing(_) | State::Ended => false,
            State::Attaching | State::Importing(_) | State::Starting(_) | State::Primary | State::Following => true,
            // The lease counts as given back once the step that gives it back has begun.
            State::Demoting(leaving) => {
                let before = matches!(leaving.step, Step::Checkpoint | Step::Stop | Step::EndUsers | Step::Export);
                self.lease.attach.is_some() && before
            }
        };
        let attach = self.lease.attach.as_ref();
        let lost = attach.is_some_and(|own| {
            let other = matches!(self.lease(), Some(LeaseView::Held { owner, epoch, .. })
                if *owner != self.policy.name && *epoch > own.epoch);
            other || own.epoch == 0 || matches!(own.phase, AttachPhase::Fenced | AttachPhase::Detached)
        });
        (by_state && !lost).then(|| self.renewed().saturating_add(self.lease.ttl))
    }

    /// Time of the next question to the cluster about the lease: soon if a change is near.
    pub fn poll_in(&self, calm: Duration, eager: Duration) -> Duration {
        if self.state != State::Standby {
            return calm;
        }
        if self.cluster.claim.is_some() {
            return eager;
        }
        match self.cluster.lease.as_ref().map(|(_, view)| view) {
            Some(LeaseView::Held { remaining, .. }) => (*remaining).clamp(eager, calm),
            Some(LeaseView::Free) => eager,
            Some(LeaseView::Unreachable) | None => calm,
        }
    }

    /// Whether this host could take over now if the lease were free.
    ///
    /// # Errors
    /// The obstacle.
    pub fn may_take_over(&self, now: MonoTime) -> Result<(), String> {
        match (&self.state, &self.cluster.lease) {
            (State::Primary | State::Following, _) => Ok(()),
            (State::Standby, None | Some((_, LeaseView::Unreachable))) => Err("no gateway answers".into()),
            (State::Standby, Some(_)) => self.against(now, false).map_or(Ok(()), Err),
            _ => Err(format!("in state {}", self.state())),
        }
    }
}
