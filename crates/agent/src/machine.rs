//! The agent's decisions as a state machine, without I/O and clock. Inputs carry the time; the output is [`Action`]s.
//!
//! ```text
//!              lease free or expired, and our turn                      ┌▶ following   (PostgreSQL is a standby, and may be)
//!   standby ──────────▶ acquiring ─▶ attaching ─▶ importing ─▶ starting ─┴▶ primary
//!      ▲  ▲                 │            │            │         ▲   │  ▲      │ │ │
//!      │  │                 ▼            ▼            ▼         │   ▼  └──────┘ │ │  PostgreSQL ended: again, in place
//!      │  └─────────── demoting ◀── failed, given away ◀────────┼───┴───────────┘ │
//!      │                    │ a step failed                     │                 ▼
//!      └─────────────── fencing ◀── another owner, device gone ─┴───────────── cutoff   (lease about to end: PostgreSQL stopped)
//! ```
//! Owns: every decision about lease, device, pool and database of one host. Does not own: how they are carried out (drivers), the right
//! to write (the gateways decide that by the epoch, R2: a mistake here costs availability, never data).
//!
//! Invariants, checked by property tests:
//! - AGENT-A1 PostgreSQL is started only while mounted, mounted only while attached, attached only by our own action.
//! - AGENT-A2 PostgreSQL is stopped before the pool is exported, the pool before the lease is given back: the next owner finds a clean pool.
//! - AGENT-A3 Without a renewal PostgreSQL is told to stop `stop_margin` before the lease could end, paused or not.
//! - AGENT-A4 In pause nothing is taken, and PostgreSQL is not started, whatever stopped it; only AGENT-A3, fencing and operators' words act.
//! - AGENT-A5 `Primary` is shown only after a write was durable here under the agent's own start of PostgreSQL; also where it followed another one before.
//! - AGENT-A6 At most one job counts. An answer to an older one has no effect.
//! - AGENT-A7 Where the machine's watchdog is required PostgreSQL is started only after it was seen to count.
//! - AGENT-A8 A takeover counts for the hour's limit from the start of PostgreSQL on. One that ended before took nothing from anybody; its next try waits longer each time.
//! - AGENT-A9 This host is fenced and rebooted only without a lease: it was lost, or is given up because PostgreSQL or its device does not work here. A
//!   planned move, or the end of the agent, that cannot let go keeps the lease. A host that gives up waits for the pool's users, not for ever.

mod health;
mod parts;
mod step_down;
mod takeover;
mod types;

#[cfg(test)]
#[path = "machine/property_tests.rs"]
mod property_tests;
#[cfg(test)]
#[path = "machine/story_tests.rs"]
mod story_tests;

pub use types::{
    Action, AttachEnd, AttachPhase, AttachView, Command, DatabaseView, Event, Found, Guard, Input, Job, LeaseView,
    Phases, Policy, Record, Refused, Role, StateName, Stop,
};

use holdfast_types::MonoTime;
use parts::{ClusterSeen, Present, Probes, TakeoverLimits};
use std::collections::VecDeque;
use std::time::Duration;
use step_down::{Leaving, Then};
use takeover::Way;

/// Steps until PostgreSQL is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rising {
    /// Remains of the last PostgreSQL are cleared away, by this stop; whether a person asked for the restart.
    Clearing { job: Job, how: Stop, asked: bool },
    /// Waits until the machine's watchdog counts down; whether PostgreSQL is started even if a pause begins meanwhile.
    Arming { job: Job, sure: bool },
    /// PostgreSQL was started.
    Launching(Job),
    /// It recovers.
    Recovering,
    /// The first write is under way.
    Writing(Job),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
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

/// The present primary's promise to give the lease to us.
#[derive(Clone, Debug)]
struct Claim {
    from: String,
    at: MonoTime,
    until: MonoTime,
}

/// The machine. One per agent; one task owns it.
#[derive(Debug)]
pub struct Machine {
    policy: Policy,
    state: State,
    since: MonoTime,
    last_step: MonoTime,
    /// Time in this state without an answer from the device: it does not count against PostgreSQL.
    stalled: Duration,
    jobs: u64,
    looked: bool,
    paused: bool,
    ended_by_shutdown: bool,
    why: String,
    unable: String,
    /// What of a PostgreSQL that runs does not lie on the set.
    off_set: String,
    switchover_refused: String,
    cluster: ClusterSeen,
    claim: Option<Claim>,
    takeover: TakeoverLimits,
    restarts: VecDeque<MonoTime>,
    /// A pause has prevented a start of PostgreSQL: its next start is not counted as a restart.
    held: bool,
    attach: Option<AttachView>,
    leased_at: MonoTime,
    /// Epoch of our last grant, kept after its end for the history.
    granted: u64,
    ttl: Duration,
    probes: Probes,
    way: Option<Way>,
    present: Present,
    told_role: Role,
}

/// The history waits for a disk, so no time-critical step waits for it (AGENT-A3), except for the end of the machine.
fn in_order(out: &mut [Action]) {
    out.sort_by_key(|action| match action {
        Action::Record(_) => 1,
        Action::Reboot(_) => 2,
        _ => 0,
    });
}

impl Machine {
    /// A machine that does nothing before [`Input::Found`]. `takeovers`: the automatic ones of the last hour.
    pub fn new(policy: Policy, now: MonoTime, takeovers: Vec<MonoTime>) -> Self {
        let ttl = policy.lease_ttl;
        Self {
            policy,
            state: State::Standby,
            since: now,
            last_step: now,
            stalled: Duration::ZERO,
            jobs: 0,
            looked: false,
            paused: false,
            held: false,
            ended_by_shutdown: false,
            why: "starting".into(),
            unable: String::new(),
            off_set: String::new(),
            switchover_refused: String::new(),
            cluster: ClusterSeen::default(),
            claim: None,
            takeover: TakeoverLimits::new(now, takeovers),
            restarts: VecDeque::new(),
            attach: None,
            leased_at: now,
            granted: 0,
            ttl,
            probes: Probes::default(),
            way: None,
            present: Present::default(),
            told_role: Role::Standby,
        }
    }

    /// A pause outlives the agent: the shell passes the stored value.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Takes in one input.
    pub fn step(&mut self, now: MonoTime, input: Input, out: &mut Vec<Action>) {
        if self.attach.as_ref().is_some_and(|attach| attach.phase != AttachPhase::Serving) {
            self.stalled += now.saturating_since(self.last_step);
        }
        self.last_step = now;
        match input {
            Input::Tick => {}
            Input::Found(found) => self.found(now, found, out),
            Input::Lease(view) => self.lease_seen(now, view),
            Input::Attach(view) => self.attach_seen(view, out),
            Input::AttachEnded(end) => self.attach_ended(now, end, out),
            Input::Database(view) => self.database_seen(now, view),
            Input::Done { job, result } => self.done(now, job, result, out),
            Input::Refused { job, why } => self.refused(now, job, why, out),
        }
        self.settle(now, out);
        in_order(out);
    }

    /// Takes in a command. The returned text is for the operator.
    ///
    /// # Errors
    /// The reason for a refusal, and the remedy.
    pub fn command(&mut self, now: MonoTime, command: Command, out: &mut Vec<Action>) -> Result<String, Refused> {
        self.last_step = now;
        let name = self.policy.name.clone();
        let said = match command {
            Command::Pause => {
                let changed = !std::mem::replace(&mut self.paused, true);
                if changed {
                    self.record(Event::Paused, "by command", out);
                }
                Ok(if changed { "paused".to_string() } else { "was paused already".to_string() })
            }
            Command::Resume => {
                let changed = std::mem::replace(&mut self.paused, false);
                if changed {
                    self.record(Event::Resumed, "by command", out);
                    if matches!(self.state, State::Starting(_)) {
                        // The time of the pause does not count against PostgreSQL.
                        (self.since, self.stalled) = (now, Duration::ZERO);
                    }
                }
                Ok(if changed { "resumed".to_string() } else { "was not paused".to_string() })
            }
            Command::Switchover { to } if to == name => {
                Err(Refused(format!("{name} is where it is already: name another host, or leave it")))
            }
            Command::Switchover { to } => match self.state {
                State::Primary | State::Following => {
                    let then = Then::HandedOver { to: to.clone(), wait: self.policy.switchover_hold };
                    self.switchover_refused.clear();
                    self.cluster.other = Some(to.clone());
                    self.leave(now, false, true, format!("switchover to {to}"), then, out);
                    Ok(format!("letting go for {to}"))
                }
                _ => Err(self.only_in(StateName::Primary, "ask the agent of the present primary")),
            },
            Command::Claim { from, within } => match self.state {
                State::Standby if self.unable.is_empty() => {
                    self.claim = Some(Claim { from: from.clone(), at: now, until: now.saturating_add(within) });
                    Ok(format!("{name} takes over once {from} has let go"))
                }
                _ => Err(self.only_in(StateName::Standby, "wait until it is, see `holdfast agent status`")),
            },
            Command::Failover { reason } => match self.state {
                State::Standby if self.unable.is_empty() => {
                    let held = matches!(&self.cluster.lease, Some((_, LeaseView::Held { .. })));
                    let way = Way::new(Event::Failover, reason, self.cluster.other.clone(), true, now, now);
                    self.campaign(now, way, held, out);
                    Ok(format!("{name} takes the lease{}", if held { " by force" } else { "" }))
                }
                _ => Err(self.only_in(StateName::Standby, "wait until it is, see `holdfast agent status`")),
            },
            Command::Restart if !self.off_set.is_empty() => {
                // ONSET-L1: it would only be stopped.
                Err(Refused(format!("{name}: PostgreSQL would not be started again: {}", self.off_set)))
            }
            Command::Restart => match self.state {
                State::Primary | State::Following => {
                    self.rise(now, "by command", Stop::Fast, true, out);
                    Ok("restarting PostgreSQL".to_string())
                }
                _ => Err(self.only_in(
                    StateName::Primary,
                    "ask the agent of the host where PostgreSQL runs, see `holdfast agent status`",
                )),
            },
            Command::Shutdown => Ok(self.shutdown(now, out)),
        };
        self.settle(now, out);
        in_order(out);
        said
    }

    // ---- what was seen

    fn found(&mut self, now: MonoTime, found: Found, out: &mut Vec<Action>) {
        if self.looked {
            return;
        }
        self.looked = true;
        (self.present.attached, self.present.mounted, self.present.running) =
            (found.attach, found.mounted, found.database);
        match (found.attach, found.mounted, found.database) {
            (false, false, false) => self.why = "nothing known of the lease yet".into(),
            // AGENT-A4: in a pause PostgreSQL may be stopped on purpose.
            (true, true, runs) if runs || self.paused => {
                self.leased_at = now;
                self.way = Some(Way::new(Event::Adopted, "an earlier agent had ended".into(), None, false, now, now));
                let why = if runs { "PostgreSQL runs already" } else { "an earlier agent left device and pool" };
                self.hold(now, why, runs);
            }
            _ => {
                let reason = "an earlier agent left something behind".to_string();
                let then = Then::Standby { wait: Duration::ZERO, why: String::new() };
                self.leave(now, !found.attach, false, reason, then, out);
            }
        }
    }

    fn lease_seen(&mut self, now: MonoTime, view: LeaseView) {
        if let LeaseView::Held { owner, remaining, ttl, .. } = &view {
            if *owner == self.policy.name {
                // Only our own lease's length counts: with a longer one of another owner, ours would end while
                // PostgreSQL runs (AGENT-A3).
                self.ttl = if *ttl > Duration::ZERO { *ttl } else { self.policy.lease_ttl };
            } else {
                if !remaining.is_zero() {
                    let age = ttl.saturating_sub(*remaining);
                    let sign = MonoTime(now.0.saturating_sub(u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)));
                    self.cluster.other_alive = Some(sign.max(self.cluster.other_alive.unwrap_or_default()));
                }
                self.cluster.other = Some(owner.clone());
            }
        }
        self.cluster.lease = Some((now, view));
    }

    fn attach_ended(&mut self, now: MonoTime, end: AttachEnd, out: &mut Vec<Action>) {
        if !self.present.attached {
            return;
        }
        self.attach = None;
        let reason = match &end {
            AttachEnd::Refused(text) => format!("the lease was refused: {text}"),
            AttachEnd::Fenced(text) => format!("fenced: {text}"),
            AttachEnd::Failed(text) => format!("attach ended: {text}"),
        };
        match self.state {
            State::Acquiring | State::Attaching => {
                self.present.attached = false;
                self.give_up(now, reason, out);
            }
            // It was already being ended. That job still runs, and must not meet the attach process of a next campaign.
            State::Demoting(ref leaving) if leaving.gives_back() => self.present.attached = false,
            State::Standby | State::Ended => self.present.attached = false,
            // If it was killed, its devices are still in the kernel, and their requests wait: detaching, the last step,
            // removes them.
            State::Fencing(_) => {}
            _ => self.fence(now, reason, out),
        }
    }

    fn done(&mut self, now: MonoTime, job: Job, result: Result<(), String>, out: &mut Vec<Action>) {
        match (&mut self.state, result) {
            (State::Importing(expected), result) if *expected == job => match result {
                Ok(()) => {
                    self.mark(now, |phases, took| phases.mount_ms = Some(took));
                    self.launch(now, true, out);
                }
                Err(why) => self.give_up(now, format!("the pool: {why}"), out),
            },
            (State::Starting(Rising::Clearing { job: expected, how, asked }), result) if *expected == job => {
                let (how, asked) = (*how, *asked);
                self.cleared(now, how, asked, result, out);
            }
            (State::Starting(Rising::Arming { job: expected, sure }), result) if *expected == job => {
                let sure = *sure;
                self.armed(now, sure, result, out);
            }
            (State::Starting(Rising::Launching(expected)), result) if *expected == job => match result {
                Ok(()) => {
                    self.probes.database = DatabaseView::Busy;
                    self.state = State::Starting(Rising::Recovering);
                }
                Err(why) if self.paused => self.hold(now, &format!("PostgreSQL did not start: {why}"), true),
                Err(why) => self.fell(now, &format!("PostgreSQL did not start: {why}"), out),
            },
            (State::Starting(Rising::Writing(expected)), result) if *expected == job => match result {
                Ok(()) => self.arrived(now, out),
                // Repeated after the next probe that finds PostgreSQL ready, until the start takes too long.
                Err(why) => {
                    self.why = format!("the first write: {why}");
                    self.probes.database = DatabaseView::Busy;
                    self.state = State::Starting(Rising::Recovering);
                }
            },
            (State::CutOff(expected), result) if *expected == Some(job) => match result {
                Ok(()) => {
                    self.present.running = false;
                    self.state = State::CutOff(None);
                }
                Err(why) => self.fence(now, format!("PostgreSQL could not be stopped: {why}"), out),
            },
            (State::Demoting(leaving) | State::Fencing(leaving), result) if leaving.job == Some(job) => {
                self.left(now, result, out);
            }
            _ => {}
        }
    }

    /// What was refused is not tried again and again: only a person can mend it.
    fn refused(&mut self, now: MonoTime, job: Job, why: String, out: &mut Vec<Action>) {
        match &self.state {
            State::Starting(Rising::Launching(expected)) if *expected == job => self.start_refused(now, &why, out),
            State::Demoting(leaving) if leaving.job == Some(job) => self.in_use(now, why, out),
            _ => self.done(now, job, Err(why), out),
        }
    }

    // ---- what follows

    /// Runs after each input: first safety, then the steps that are due by time.
    fn settle(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        self.keep_safe(now, out);
        match self.state.clone() {
            State::Standby => self.stand_by(now, out),
            State::Acquiring => self.acquire(now, out),
            State::Attaching => self.devices(now, out),
            State::Starting(rising) => self.recover(now, rising, out),
            State::Primary => self.watch(now, out),
            State::Following => self.follow(now, out),
            State::CutOff(None) => self.resume_from_cut_off(now, out),
            State::Demoting(leaving) | State::Fencing(leaving) => self.rested(now, &leaving, out),
            State::Importing(_) | State::CutOff(Some(_)) | State::Ended => {}
        }
        let role = self.role();
        // An agent that leaves PostgreSQL running reports nothing.
        let left_alone = matches!(self.state, State::Ended) && self.present.running;
        if role != self.told_role && !left_alone {
            self.told_role = role;
            out.push(Action::Hook(role));
        }
    }

    fn keep_safe(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        let holds = !matches!(self.state, State::Standby | State::Acquiring | State::Fencing(_) | State::Ended);
        if !holds {
            return;
        }
        if let Some(attach) = self.attach.as_ref().filter(|attach| attach.phase == AttachPhase::Fenced) {
            let by = if attach.fenced_by.is_empty() { "another owner" } else { attach.fenced_by.as_str() };
            return self.fence(now, format!("fenced by {by}"), out);
        }
        let ours = self.epoch();
        if let Some((_, LeaseView::Held { owner, epoch, .. })) = &self.cluster.lease
            && *owner != self.policy.name
            && ours != 0
            && *epoch > ours
        {
            return self.fence(now, format!("{owner} holds the lease under e{epoch}, ours was e{ours}"), out);
        }
        // AGENT-A3
        if self.present.running && now >= self.stop_at() {
            let age = now.saturating_since(self.renewed()).as_millis();
            match self.state {
                State::Primary | State::Following | State::Starting(_) => self.cut_off(now, age, out),
                State::Demoting(_) => {
                    self.fence(now, format!("no renewal for {age} ms while PostgreSQL was stopping"), out);
                }
                _ => {}
            }
        }
    }

    fn enter(&mut self, now: MonoTime, state: State, why: &str) {
        self.state = state;
        self.since = now;
        self.stalled = Duration::ZERO;
        self.probes.silent_since = None;
        self.probes.busy_since = None;
        self.why = why.into();
    }

    fn job(&mut self) -> Job {
        self.jobs += 1;
        Job(self.jobs)
    }

    fn record(&self, event: Event, reason: &str, out: &mut Vec<Action>) {
        let phases = self.way.as_ref().map(|way| way.phases.clone()).filter(|phases| *phases != Phases::default());
        let other = self.way.as_ref().and_then(|way| way.other.clone()).unwrap_or_default();
        out.push(Action::Record(Box::new(Record { event, reason: reason.into(), other, epoch: self.granted, phases })));
    }

    // ---- what others may see

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
        self.since
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
        self.paused
    }

    /// The epoch of our grant, or 0.
    pub fn epoch(&self) -> u64 {
        self.attach.as_ref().map_or(0, |attach| attach.epoch)
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
        self.present.running.then(|| self.renewed().saturating_add(self.ttl))
    }

    /// Time at which PostgreSQL is stopped unless the lease is renewed (AGENT-A3).
    pub fn stop_at(&self) -> MonoTime {
        self.renewed().saturating_add(self.ttl.saturating_sub(self.stop_margin()))
    }

    /// Time between the stop of PostgreSQL and the end of the lease: as configured, at most half of a lease. The
    /// gateways may grant a shorter lease than the margin was chosen for, and with a margin as long as the lease
    /// PostgreSQL would never start.
    pub fn stop_margin(&self) -> Duration {
        self.policy.stop_margin.min(self.ttl / 2)
    }

    /// Time of the last renewal of our lease; `None` without one.
    pub fn last_renewal(&self) -> Option<MonoTime> {
        self.attach.as_ref().and_then(|attach| attach.renewed)
    }

    /// How long the lease lasts from each renewal.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    fn renewed(&self) -> MonoTime {
        self.attach.as_ref().and_then(|attach| attach.renewed).unwrap_or(self.leased_at)
    }

    /// Time of the next question to the cluster about the lease: soon if a change is near.
    pub fn poll_in(&self, calm: Duration, eager: Duration) -> Duration {
        if self.state != State::Standby {
            return calm;
        }
        if self.claim.is_some() {
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
