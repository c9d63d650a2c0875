//! From any state back to standby.
//!
//! In good order (`demoting`): checkpoint, stop PostgreSQL, export the pool, give the lease back (AGENT-A2). By all
//! means (`fencing`): kill PostgreSQL, release a pool whose device may be dead, end attach; again until nothing is
//! left, since a host with remains of an old mount must not compete for the lease.
//!
//! If a step in good order fails, the lease is not lost for it: a PostgreSQL that does not stop is stopped at once. If
//! somebody has the pool open, a planned move ends where it began; otherwise the agent waits and keeps the lease, if
//! fencing could end in a reboot. Where the lease is given up for a fault of this host, other hosts wait for it: then
//! processes that have the pool open are ended after some rounds (AGENT-A9).

use super::parts::{Leaving, Step, Then, Way};
use super::state::{Machine, State};
use super::{Action, Event, Stop};
use holdfast_types::MonoTime;
use std::time::Duration;

/// Rounds of a forced end before the history reports "stuck", and the machine is rebooted if that is configured.
pub(super) const ROUNDS_BEFORE_STUCK: u32 = 5;

/// So many users of the pool are ended on one way to standby, at most. A service may start its own again and again.
const USERS_ENDED_MAX: usize = 64;

/// Pause between two rounds. Once it is stuck, the pause doubles after each.
const ROUND_PAUSE: Duration = Duration::from_secs(1);

/// Its maximum.
const ROUND_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Pause after this round.
fn pause_after(round: u32) -> Duration {
    let doubled = 1_u32.checked_shl(round.saturating_sub(ROUNDS_BEFORE_STUCK)).unwrap_or(u32::MAX);
    ROUND_PAUSE.saturating_mul(doubled).min(ROUND_PAUSE_MAX)
}

impl Machine {
    /// The agent ends: first it releases everything in good order, unless it is paused.
    pub(super) fn shutdown(&mut self, now: MonoTime, out: &mut Vec<Action>) -> String {
        self.orders.ended_by_shutdown = true;
        match &mut self.state {
            State::Standby => self.enter(now, State::Ended, "told to stop"),
            State::Starting(_) if self.orders.paused => {
                self.enter(now, State::Ended, "told to stop while paused: all stays as it is");
                return format!("ends; device and pool stay, and {} if it runs", self.policy.workload);
            }
            State::Primary | State::Following if self.orders.paused => {
                let it = self.policy.workload.clone();
                self.enter(now, State::Ended, &format!("told to stop while paused: {it} goes on"));
                return format!("ends; {it} and its device go on without an agent");
            }
            // Waits for the job that stops PostgreSQL.
            State::CutOff(_) if self.orders.paused => return "ends; device and pool stay as they are".into(),
            State::Demoting(leaving) | State::Fencing(leaving) => leaving.then = Then::End,
            State::Ended => {}
            State::Acquiring
            | State::Attaching
            | State::Importing(_)
            | State::Starting(_)
            | State::Primary
            | State::Following => {
                self.leave(now, false, false, "the agent was told to stop".into(), Then::End, out);
            }
            State::CutOff(_) => self.leave(now, true, false, "the agent was told to stop".into(), Then::End, out),
        }
        "lets go, then ends".into()
    }

    /// AGENT-A3.
    pub(super) fn cut_off(&mut self, now: MonoTime, age_ms: u128, out: &mut Vec<Action>) {
        let reason = format!("the lease was not renewed for {age_ms} ms of {}", self.lease.ttl.as_millis());
        self.record(Event::CutOff, &reason, out);
        let job = self.job();
        out.push(Action::StopDatabase { job, how: Stop::Immediate });
        self.way = None;
        self.enter(now, State::CutOff(Some(job)), &reason);
    }

    /// The takeover failed: releases everything, and waits longer each time.
    pub(super) fn give_up(&mut self, now: MonoTime, reason: String, out: &mut Vec<Action>) {
        self.record(Event::TakeoverFailed, &reason, out);
        let wait = self.next_backoff();
        self.leave(now, false, false, reason.clone(), Then::Standby { wait, why: reason }, out);
    }

    /// A fault of this host: other hosts get the first chance.
    pub(super) fn give_away(&mut self, now: MonoTime, reason: String, out: &mut Vec<Action>) {
        if self.way.is_some() {
            self.record(Event::TakeoverFailed, &reason, out);
        }
        let wait = self.next_backoff().max(self.policy.takeover.flap_delay);
        self.leave(now, false, false, reason.clone(), Then::Standby { wait, why: reason }, out);
    }

    fn next_backoff(&mut self) -> Duration {
        self.takeover.backoff =
            (self.takeover.backoff * 2).clamp(self.policy.takeover.backoff_min, self.policy.takeover.backoff_max);
        self.takeover.backoff
    }

    /// Another owner has the lease, or the device is dead.
    pub(super) fn fence(&mut self, now: MonoTime, reason: String, out: &mut Vec<Action>) {
        self.record(Event::Fenced, &reason, out);
        let wait = self.policy.takeover.backoff_min;
        let then = match &self.state {
            State::Demoting(leaving) | State::Fencing(leaving) => leaving.then.clone(),
            _ => Then::Standby { wait, why: reason.clone() },
        };
        self.leave(now, true, false, reason, then, out);
    }

    /// Begins the way to standby.
    pub(super) fn leave(
        &mut self,
        now: MonoTime,
        hard: bool,
        checkpoint: bool,
        reason: String,
        then: Then,
        out: &mut Vec<Action>,
    ) {
        let then = if self.orders.ended_by_shutdown { Then::End } else { then };
        let first = if checkpoint { Step::Checkpoint } else { Step::Stop };
        let why = reason.clone();
        // A clean stop writes a checkpoint, which a dead device would not take.
        let how = if self.device_is_gone() { Stop::Immediate } else { Stop::Fast };
        let (step, failed) = (first, String::new());
        let (round, paced_from, asked, ended) = (0, 0, 0, 0);
        let leaving = Leaving { step, job: None, hard, how, reason, then, round, paced_from, asked, failed, ended };
        self.enter(now, if hard { State::Fencing(leaving.clone()) } else { State::Demoting(leaving.clone()) }, &why);
        self.go_on(now, leaving, out);
    }

    /// Takes the next step that is needed.
    fn go_on(&mut self, now: MonoTime, mut leaving: Leaving, out: &mut Vec<Action>) {
        loop {
            let hard = leaving.hard;
            leaving.job = None;
            match leaving.step {
                Step::Checkpoint if self.present.running => {
                    let job = self.job();
                    out.push(Action::Checkpoint { job });
                    leaving.job = Some(job);
                }
                Step::Checkpoint => leaving.step = Step::Stop,
                Step::Stop if self.present.running => {
                    let job = self.job();
                    out.push(Action::StopDatabase { job, how: if hard { Stop::Kill } else { leaving.how } });
                    leaving.job = Some(job);
                }
                Step::Stop => leaving.step = Step::EndUsers,
                Step::EndUsers if leaving.asked + 1 >= ROUNDS_BEFORE_STUCK && self.may_end_users(&leaving) => {
                    let job = self.job();
                    out.push(Action::EndUsers { job, most: USERS_ENDED_MAX.saturating_sub(leaving.ended) });
                    leaving.job = Some(job);
                }
                Step::EndUsers => leaving.step = Step::Export,
                Step::Export if self.present.mounted => {
                    let job = self.job();
                    out.push(Action::Export { job, hard });
                    leaving.job = Some(job);
                }
                Step::Export => leaving.step = Step::Detach,
                Step::Detach if self.present.attached => {
                    let job = self.job();
                    out.push(Action::Detach { job, hard });
                    leaving.job = Some(job);
                }
                Step::Detach if self.present.running || self.present.mounted => {
                    self.next_round(now, &mut leaving, out);
                }
                Step::Detach => return self.gone(now, leaving, out),
                Step::Rest(_) => {}
            }
            if leaving.job.is_some() || matches!(leaving.step, Step::Rest(_)) {
                self.state = if hard { State::Fencing(leaving) } else { State::Demoting(leaving) };
                return;
            }
        }
    }

    /// Something is left: again after a pause. AGENT-A9: only a host without a lease is rebooted.
    fn next_round(&mut self, now: MonoTime, leaving: &mut Leaving, out: &mut Vec<Action>) {
        leaving.round += 1;
        if leaving.round == ROUNDS_BEFORE_STUCK {
            self.record(Event::Stuck, &leaving.failed, out);
            if leaving.hard && self.policy.fence_reboot {
                out.push(Action::Reboot(leaving.failed.clone()));
            }
        }
        self.why = format!("{}; round {}: {}", leaving.reason, leaving.round, leaving.failed);
        let paced = leaving.round.saturating_sub(leaving.paced_from);
        leaving.step = Step::Rest(now.saturating_add(pause_after(paced)));
    }

    /// The pool was not released, since somebody uses it. It is as it was.
    pub(super) fn in_use(&mut self, now: MonoTime, why: String, out: &mut Vec<Action>) {
        let State::Demoting(leaving) = &self.state else { return };
        let leaving = leaving.clone();
        self.failed_in_good_order(now, leaving, true, why, out);
    }

    /// Whether users of the pool may be ended on this way: only where the lease is given up, other hosts wait for it,
    /// and nobody has ordered anything. In a pause nothing is ended: an operator may be at work in the pool.
    fn may_end_users(&self, leaving: &Leaving) -> bool {
        let given_up = !leaving.hard && matches!(leaving.then, Then::Standby { .. });
        let left = leaving.ended < USERS_ENDED_MAX;
        given_up && left && self.policy.ends_users && !self.orders.paused && !self.device_is_gone()
    }

    /// Processes were ended because they kept the pool open.
    pub(super) fn users_ended(&mut self, ended: &[String], out: &mut Vec<Action>) {
        if let State::Demoting(leaving) = &mut self.state {
            leaving.ended += ended.len();
        }
        for process in ended {
            self.record(Event::UserEnded, process, out);
        }
    }

    /// A step in good order failed (AGENT-A9). The lease is ours: another input would have reported its loss before.
    fn failed_in_good_order(
        &mut self,
        now: MonoTime,
        mut leaving: Leaving,
        in_use: bool,
        why: String,
        out: &mut Vec<Action>,
    ) {
        let planned = !matches!(leaving.then, Then::Standby { .. });
        let letting_go = matches!(leaving.step, Step::Stop | Step::Export);
        // No reset for a pool that is in use: who has it open is ended, or only a person can free it. Over a device
        // that does not serve, the lease is worth nothing here (AGENT-A10).
        let waits = planned || in_use && (leaving.round + 1 < ROUNDS_BEFORE_STUCK || !self.device_is_gone());
        match (&leaving.then, leaving.step) {
            // Its clients were too slow: nothing is wrong with this host.
            (_, Step::Stop) if leaving.how == Stop::Fast => {
                self.why = format!("{}; {} is stopped at once: {why}", leaving.reason, self.policy.workload);
                leaving.how = Stop::Immediate;
                self.go_on(now, leaving, out);
            }
            (Then::HandedOver { to, .. }, Step::Export) if in_use => {
                let to = to.clone();
                self.stay(now, &to, &why, out);
            }
            _ if letting_go && self.policy.fence_reboot && waits => {
                // Rounds of a pause do not count: nobody was told in them that users are ended.
                let may_end = in_use && self.may_end_users(&leaving);
                let asks = may_end && leaving.asked + 1 < ROUNDS_BEFORE_STUCK;
                leaving.failed = why;
                if asks {
                    let last = leaving.round + ROUNDS_BEFORE_STUCK - leaving.asked;
                    leaving.failed += &format!("; in round {last} the agent ends the processes that it finds");
                }
                if asks && leaving.asked == 0 {
                    self.record(Event::InUse, &leaving.failed, out);
                }
                leaving.asked += u32::from(may_end);
                self.next_round(now, &mut leaving, out);
                self.state = State::Demoting(leaving);
            }
            _ => {
                let reason = format!("{}; in good order it did not work: {why}", leaving.reason);
                self.fence(now, reason, out);
            }
        }
    }

    /// The move ends where it began: PostgreSQL is started again here, under the same lease. Also in a pause, since an
    /// operator ordered the move (AGENT-A4).
    fn stay(&mut self, now: MonoTime, to: &str, why: &str, out: &mut Vec<Action>) {
        let it = &self.policy.workload;
        let reason = format!("switchover to {to} refused, the lease is kept and {it} started again: {why}");
        self.record(Event::SwitchoverRefused, &reason, out);
        self.obstacles.switchover_refused.clone_from(&reason);
        self.way = Some(Way::new(Event::Restart, reason, None, false, now, now));
        self.launch(now, true, out);
    }

    /// Why the last planned move was given up after PostgreSQL was stopped for it; "" if it was not.
    pub fn switchover_refused(&self) -> &str {
        &self.obstacles.switchover_refused
    }

    /// A step's job ended.
    pub(super) fn left(&mut self, now: MonoTime, result: Result<(), String>, out: &mut Vec<Action>) {
        let (State::Demoting(leaving) | State::Fencing(leaving)) = &self.state else { return };
        let mut leaving = leaving.clone();
        let step = leaving.step;
        match (step, &result) {
            (Step::Stop, Ok(())) => self.present.running = false,
            (Step::Export, Ok(())) => self.present.mounted = false,
            (Step::Detach, Ok(())) => (self.present.attached, self.lease.attach) = (false, None),
            (Step::Checkpoint | Step::EndUsers | Step::Rest(_), _) | (_, Err(_)) => {}
        }
        if let Err(why) = result
            && !matches!(step, Step::Checkpoint | Step::EndUsers)
        {
            if !leaving.hard {
                return self.failed_in_good_order(now, leaving, false, why, out);
            }
            leaving.failed = why;
            if step == Step::Detach {
                // It was killed: the drivers clear what it left before its next start.
                (self.present.attached, self.lease.attach) = (false, None);
            }
        }
        leaving.step = match step {
            Step::Checkpoint => Step::Stop,
            Step::Stop => Step::EndUsers,
            Step::EndUsers => Step::Export,
            Step::Export => Step::Detach,
            Step::Detach | Step::Rest(_) => Step::Detach,
        };
        self.go_on(now, leaving, out);
    }

    /// The pause between two rounds may be over.
    pub(super) fn rested(&mut self, now: MonoTime, leaving: &Leaving, out: &mut Vec<Action>) {
        if leaving.step == Step::EndUsers && !self.may_end_users(leaving) {
            // A pause or an order to end came meanwhile: who was told to end is not killed. The next job ends this one.
            let mut leaving = leaving.clone();
            leaving.step = Step::Export;
            return self.go_on(now, leaving, out);
        }
        if let Step::Rest(until) = leaving.step
            && now >= until
        {
            let mut leaving = leaving.clone();
            leaving.step = Step::Stop;
            self.go_on(now, leaving, out);
        }
    }

    /// Nothing is left of it.
    fn gone(&mut self, now: MonoTime, leaving: Leaving, out: &mut Vec<Action>) {
        let never_had_it = self.way.is_some();
        if !leaving.hard && !never_had_it {
            self.record(Event::Demoted, &leaving.reason, out);
        }
        self.way = None;
        self.cluster.free_since = None;
        self.cluster.claim = None;
        let (wait, why) = match leaving.then {
            Then::End => return self.enter(now, State::Ended, &leaving.reason),
            Then::Standby { wait, why } => (wait, why),
            Then::HandedOver { to, wait } => (wait, format!("{to} is to take over")),
        };
        self.takeover.not_before = self.takeover.not_before.max(now.saturating_add(wait));
        self.takeover.not_before_why = why;
        self.enter(now, State::Standby, &leaving.reason);
    }
}
