//! The agent's decisions as a state machine, without I/O and clock. Inputs carry the time; the outputs are [`Action`]s.
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
//! Owns: every decision about lease, device, pool and database of one host. Does not own: how decisions are carried out
//! (drivers), the right to write (the gateways check the epoch, R2: a mistake here costs availability, never data).
//!
//! PostgreSQL stands for what runs on the set, which may be another service ([`Workload`], ADR 0076).
//!
//! Invariants, checked by property tests:
//! - AGENT-A1 PostgreSQL is started only while mounted, mounted only while attached, attached only by our own action.
//! - AGENT-A2 PostgreSQL is stopped before the pool is exported, the pool before the lease is given back: the next
//!   owner finds a clean pool.
//! - AGENT-A3 Without a renewal PostgreSQL is told to stop `stop_margin` before the lease could end, paused or not.
//! - AGENT-A4 In a pause no lease is taken, and PostgreSQL is not started, whatever stopped it; only AGENT-A3, fencing
//!   and operators' commands act.
//! - AGENT-A5 `Primary` is shown only after a write was durable here under the agent's own start of PostgreSQL; also if
//!   it followed another PostgreSQL before. Of another service: after its check succeeded under the agent's own start.
//! - AGENT-A6 At most one job counts. An answer to an older one has no effect.
//! - AGENT-A7 If the machine's watchdog is required, PostgreSQL is started only after it was seen to count down.
//! - AGENT-A8 A takeover counts for the limit per hour from the start of PostgreSQL on. One that ended before
//!   interrupted nobody; the next try waits longer each time.
//! - AGENT-A9 This host is fenced and rebooted only without a lease: it was lost, or is given up because PostgreSQL or
//!   its device does not work here. A planned move, or the end of the agent, that cannot let go keeps the lease; a new
//!   agent that finds device and pool starts PostgreSQL again under it. A host that gives up while somebody only has
//!   the pool open keeps the lease too. It says who, and after some rounds ends these processes where fencing would
//!   reset the machine, but not in a pause, of which no round counts; otherwise it waits until the pool is free or the
//!   lease is lost.
//! - AGENT-A10 A lease that is renewed here while its device does not serve is given away after the time limit of a
//!   device, but not in a pause: PostgreSQL does not work here, and may on another host.

mod commands;
mod health;
mod parts;
mod shown;
mod state;
mod step_down;
mod takeover;
mod types;

#[cfg(test)]
#[path = "machine/property_tests.rs"]
mod property_tests;
#[cfg(test)]
#[path = "machine/story_tests.rs"]
mod story_tests;

pub use state::Machine;
pub use types::{
    Action, AttachEnd, AttachPhase, AttachView, Command, DatabaseView, Event, Found, Guard, Input, Job, LeasePolicy,
    LeaseView, Phases, Policy, Record, Refused, RestartPolicy, Role, StateName, Stop, TakeoverPolicy, Timeouts,
    Workload,
};

use holdfast_types::MonoTime;
use parts::{Then, Way};
use state::{Rising, State};
use std::time::Duration;

/// The history waits for a disk, so no time-critical step waits for it (AGENT-A3), except for the end of the machine.
fn in_order(out: &mut [Action]) {
    out.sort_by_key(|action| match action {
        Action::Record(_) => 1,
        Action::Reboot(_) => 2,
        _ => 0,
    });
}

impl Machine {
    /// A pause outlives the agent: the shell passes the stored value.
    pub fn set_paused(&mut self, paused: bool) {
        self.orders.paused = paused;
    }

    /// Takes in one input.
    pub fn step(&mut self, now: MonoTime, input: Input, out: &mut Vec<Action>) {
        if self.lease.attach.as_ref().is_some_and(|attach| attach.phase != AttachPhase::Serving) {
            self.times.stalled += now.saturating_since(self.times.last_step);
        }
        self.times.last_step = now;
        match input {
            Input::Tick => {}
            Input::Found(found) => self.found(now, found, out),
            Input::Lease(view) => self.lease_seen(now, view),
            Input::Attach(view) => self.attach_seen(view, out),
            Input::AttachEnded(end) => self.attach_ended(now, end, out),
            Input::Database(view) => self.database_seen(now, view),
            Input::Done { job, result } => self.done(now, job, result, out),
            Input::Refused { job, why } => self.refused(now, job, why, out),
            Input::UsersEnded(ended) => self.users_ended(&ended, out),
        }
        self.settle(now, out);
        in_order(out);
    }

    // ---- inputs

    fn found(&mut self, now: MonoTime, found: Found, out: &mut Vec<Action>) {
        if self.present.looked {
            return;
        }
        self.present.looked = true;
        (self.present.attached, self.present.mounted, self.present.running) =
            (found.attach, found.mounted, found.database);
        match (found.attach, found.mounted, found.database) {
            (false, false, false) => self.why = "nothing known of the lease yet".into(),
            (true, true, runs) => self.adopt(now, runs),
            _ => {
                let reason = "an earlier agent left something behind".to_string();
                let then = Then::Standby { wait: Duration::ZERO, why: String::new() };
                self.leave(now, !found.attach, false, reason, then, out);
            }
        }
    }

    /// An earlier agent left device and pool. The lease may be ours still: PostgreSQL goes on, or is started again once
    /// that is known. It may have ended with that agent, which could not let go of the pool: to let go of it now would
    /// end in the same way, and then in fencing (AGENT-A9).
    fn adopt(&mut self, now: MonoTime, runs: bool) {
        self.lease.leased_at = now;
        // AGENT-A4: in a pause PostgreSQL may be stopped on purpose.
        let it = &self.policy.workload;
        let (event, reason) = if runs || self.orders.paused {
            (Event::Adopted, "an earlier agent had ended".to_string())
        } else {
            (Event::Restart, format!("an earlier agent had ended, and {it} did not run"))
        };
        let why = if runs { format!("{it} runs already") } else { "an earlier agent left device and pool".into() };
        self.way = Some(Way::new(event, reason, None, false, now, now));
        // Nothing has failed that would count as a restart.
        self.orders.held = !runs;
        self.hold(now, &why, runs);
    }

    fn lease_seen(&mut self, now: MonoTime, view: LeaseView) {
        if let LeaseView::Held { owner, remaining, ttl, .. } = &view {
            if *owner == self.policy.name {
                // Only our own lease's length counts: with a longer one of another owner, ours would end while
                // PostgreSQL runs (AGENT-A3).
                self.lease.ttl = if *ttl > Duration::ZERO { *ttl } else { self.policy.lease.ttl };
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
        self.lease.attach = None;
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
                Err(why) => {
                    let why = format!("{} did not start: {why}", self.policy.workload);
                    if self.orders.paused { self.hold(now, &why, true) } else { self.fell(now, &why, out) }
                }
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
                Err(why) => self.fence(now, format!("{} could not be stopped: {why}", self.policy.workload), out),
            },
            (State::Demoting(leaving) | State::Fencing(leaving), result) if leaving.job == Some(job) => {
                self.left(now, result, out);
            }
            _ => {}
        }
    }

    /// A step that was refused is not tried again: only a person can remove the cause.
    fn refused(&mut self, now: MonoTime, job: Job, why: String, out: &mut Vec<Action>) {
        match &self.state {
            State::Starting(Rising::Launching(expected)) if *expected == job => self.start_refused(now, &why, out),
            State::Demoting(leaving) if leaving.job == Some(job) => self.in_use(now, why, out),
            _ => self.done(now, job, Err(why), out),
        }
    }

    // ---- consequences

    /// Runs after each input: first safety, then the steps that are due.
    fn settle(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        self.device_seen(now);
        self.keep_safe(now, out);
        self.give_away_unserved(now, out);
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
        if let Some(attach) = self.lease.attach.as_ref().filter(|attach| attach.phase == AttachPhase::Fenced) {
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
                    let reason = format!("no renewal for {age} ms while {} was stopping", self.policy.workload);
                    self.fence(now, reason, out);
                }
                _ => {}
            }
        }
    }

    fn enter(&mut self, now: MonoTime, state: State, why: &str) {
        self.state = state;
        self.times.since = now;
        self.times.stalled = Duration::ZERO;
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
        out.push(Action::Record(Box::new(Record {
            event,
            reason: reason.into(),
            other,
            epoch: self.lease.granted,
            phases,
        })));
    }
}
