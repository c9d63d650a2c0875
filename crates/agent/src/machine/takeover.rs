//! From standby to primary.

use super::parts::{Way, millis};
use super::state::{Machine, Rising, State};
use super::{Action, AttachPhase, AttachView, DatabaseView, Event, Guard, LeaseView, Phases, Refused, StateName, Stop};
use holdfast_types::MonoTime;
use std::time::Duration;

/// The window of `takeovers_per_hour_max`.
const HOUR: Duration = Duration::from_secs(3600);

/// Forgets entries older than `window`.
fn forget(times: &mut std::collections::VecDeque<MonoTime>, now: MonoTime, window: Duration) {
    while times.front().is_some_and(|at| now.saturating_since(*at) >= window) {
        times.pop_front();
    }
}

impl Machine {
    /// Ends a phase.
    pub(super) fn mark(&mut self, now: MonoTime, keep: impl FnOnce(&mut Phases, u64)) {
        if let Some(way) = &mut self.way {
            keep(&mut way.phases, millis(now.saturating_since(way.mark)));
            way.mark = now;
        }
    }

    /// Reason why this host could not take over the set at all, with the remedy; "" for none. Such a host takes no
    /// lease: it would only have to give it back.
    pub fn set_unable(&mut self, why: &str) {
        if self.obstacles.unable != why {
            why.clone_into(&mut self.obstacles.unable);
        }
    }

    pub(super) fn only_in(&self, wanted: StateName, next: &str) -> Refused {
        if wanted == StateName::Standby && self.state() == StateName::Standby {
            return Refused(format!("{} cannot take over: {}", self.policy.name, self.obstacles.unable));
        }
        Refused(format!("{} is in state {}, expected {wanted}: {next}", self.policy.name, self.state()))
    }

    /// Obstacle to taking a free lease. A host that was asked to take it (`claimed`) checks only whether it is able to.
    pub(super) fn against(&self, now: MonoTime, claimed: bool) -> Option<String> {
        if !self.obstacles.unable.is_empty() {
            return Some(self.obstacles.unable.clone());
        }
        if claimed {
            return None;
        }
        let recent = self.takeover.within_hour.iter().filter(|at| now.saturating_since(**at) < HOUR).count();
        if self.orders.paused {
            return Some("paused: `holdfast agent resume` ends that".into());
        }
        if !self.policy.takeover.automatic {
            return Some("mode is manual: `holdfast agent failover` on this host takes over".into());
        }
        if self.policy.takeover.nofailover {
            return Some("nofailover is set for this host".into());
        }
        if now < self.takeover.not_before {
            let left = millis(self.takeover.not_before.saturating_since(now));
            return Some(format!("waits {left} ms more: {}", self.takeover.not_before_why));
        }
        if recent >= self.policy.takeover.per_hour_max {
            return Some(format!(
                "{recent} takeovers within an hour, at most {}: `holdfast agent failover` still works",
                self.policy.takeover.per_hour_max
            ));
        }
        None
    }

    pub(super) fn stand_by(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        forget(&mut self.takeover.within_hour, now, HOUR);
        if self.cluster.claim.as_ref().is_some_and(|claim| now >= claim.until) {
            self.cluster.claim = None;
        }
        if !self.present.looked {
            return;
        }
        // A view from before this state may show our own lease, or one that we gave up.
        let Some((at, view)) = self.cluster.lease.clone().filter(|(at, _)| *at >= self.times.since) else { return };
        let expired = match &view {
            LeaseView::Unreachable => {
                self.why = "no gateway answers".into();
                return;
            }
            LeaseView::Held { owner, epoch, remaining, .. } if !remaining.is_zero() => {
                self.cluster.free_since = None;
                self.why = format!("{owner} holds the lease under e{epoch}");
                return;
            }
            LeaseView::Held { owner, .. } => Some(owner.clone()),
            LeaseView::Free => None,
        };
        let free_since = *self.cluster.free_since.get_or_insert(at);
        if let Some(against) = self.against(now, self.cluster.claim.is_some()) {
            self.why = against;
            return;
        }
        if let Some(claim) = self.cluster.claim.take() {
            let reason = format!("{} let go", claim.from);
            let way = Way::new(Event::Switchover, reason, Some(claim.from), expired.is_some(), claim.at, now);
            return self.campaign(now, way, false, out);
        }
        let turn = free_since.saturating_add(self.policy.takeover.campaign_wait);
        if now < turn {
            self.why = format!("leaves the lease to better hosts for {} ms more", millis(turn.saturating_since(now)));
            return;
        }
        let way = match expired {
            Some(owner) => {
                let sign = self.cluster.other_alive.unwrap_or(free_since).min(free_since);
                let event = if owner == self.policy.name { Event::Start } else { Event::Failover };
                Way::new(event, format!("the lease of {owner} ran out"), Some(owner), true, sign, now)
            }
            None => {
                Way::new(Event::Start, "the lease was free".into(), self.cluster.other.clone(), false, free_since, now)
            }
        };
        self.campaign(now, way, false, out);
        self.takeover.counts = true;
    }

    pub(super) fn campaign(&mut self, now: MonoTime, way: Way, force: bool, out: &mut Vec<Action>) {
        let why = way.reason.clone();
        self.way = Some(way);
        self.takeover.counts = false;
        self.cluster.free_since = None;
        self.present.attached = true;
        self.lease.attach = None;
        out.push(Action::Attach { force });
        self.enter(now, State::Acquiring, &why);
    }

    pub(super) fn attach_seen(&mut self, view: AttachView, out: &mut Vec<Action>) {
        if view.epoch != 0 {
            self.lease.granted = view.epoch;
        }
        // The granted length counts from the first moment on, even with no gateway reachable: it may be shorter than
        // the configured one (AGENT-A3).
        if let Some(ttl) = view.ttl.filter(|_| self.present.attached) {
            self.lease.ttl = ttl;
        }
        let before = self.lease.attach.take().map(|before| before.lost).unwrap_or_default();
        self.lease.attach = self.present.attached.then_some(view);
        if let Some(lost) =
            self.lost_volumes().filter(|_| self.lease.attach.as_ref().is_some_and(|now| now.lost != before))
        {
            self.record(Event::VolumeLost, &lost, out);
            if self.state == State::Primary {
                self.why = lost;
            }
        }
    }

    /// Text about lost volumes, for users.
    pub(super) fn lost_volumes(&self) -> Option<String> {
        let lost = self.lease.attach.as_ref().map(|attach| &attach.lost).filter(|lost| !lost.is_empty())?;
        let rest = "its device fails until the set is attached again, as a switchover does; the others work";
        Some(format!("{}: {rest}", lost.join("; ")))
    }

    pub(super) fn acquire(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        match self.lease.attach.as_ref().map(|attach| attach.phase) {
            None | Some(AttachPhase::Acquiring | AttachPhase::Detached) => {
                if now.saturating_since(self.times.since) >= self.policy.timeouts.acquire {
                    let limit = millis(self.policy.timeouts.acquire);
                    self.give_up(now, format!("no lease within {limit} ms"), out);
                }
            }
            Some(AttachPhase::Fenced) => self.give_up(now, "fenced while taking the lease".into(), out),
            Some(AttachPhase::Connecting | AttachPhase::Serving | AttachPhase::Reconnecting) => {
                self.mark(now, |phases, took| phases.lease_ms = Some(took));
                self.lease.leased_at = now;
                self.enter(now, State::Attaching, "the devices are being made");
                self.devices(now, out);
            }
        }
    }

    pub(super) fn devices(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        if self.lease.attach.as_ref().is_some_and(|attach| attach.phase == AttachPhase::Serving) {
            self.mark(now, |phases, took| phases.attach_ms = Some(took));
            let force = self.way.as_ref().is_some_and(|way| way.force_import);
            let job = self.job();
            self.present.mounted = true;
            out.push(Action::Import { job, force });
            self.enter(now, State::Importing(job), "the pool is being imported");
        } else if now.saturating_since(self.times.since) >= self.policy.timeouts.attach {
            let limit = millis(self.policy.timeouts.attach);
            self.give_up(now, format!("no devices within {limit} ms"), out);
        }
    }

    /// Starts PostgreSQL, of which no process runs, with the machine's watchdog if that is wanted. `sure`: also if a
    /// pause begins before the start.
    pub(super) fn launch(&mut self, now: MonoTime, sure: bool, out: &mut Vec<Action>) {
        if self.policy.guard == Guard::Off {
            return self.start(now, out);
        }
        let job = self.job();
        self.present.running = false;
        out.push(Action::Arm { job });
        self.enter(now, State::Starting(Rising::Arming { job, sure }), "the machine's watchdog is armed");
    }

    /// The machine's watchdog counts down, or the reason why it does not.
    pub(super) fn armed(&mut self, now: MonoTime, sure: bool, result: Result<(), String>, out: &mut Vec<Action>) {
        match result {
            // AGENT-A7. Another host may have a watchdog.
            Err(why) if self.policy.guard == Guard::Required => {
                self.give_away(now, format!("the machine's watchdog is required: {why}"), out);
            }
            // AGENT-A4: the pause began after the watchdog was requested.
            _ if self.orders.paused && !sure => self.hold(now, "nothing was started", false),
            _ => self.start(now, out),
        }
    }

    fn start(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        if now >= self.stop_at() {
            self.way = None;
            self.present.running = false;
            let why = format!("the lease was not renewed in time: {} is not started", self.policy.workload);
            self.record(super::Event::CutOff, &why, out);
            return self.enter(now, State::CutOff(None), &why);
        }
        if std::mem::take(&mut self.takeover.counts) {
            self.takeover.within_hour.push_back(now);
        }
        let job = self.job();
        self.present.running = true;
        self.orders.held = false;
        self.probes.database = DatabaseView::Busy;
        out.push(Action::StartDatabase { job });
        let why = format!("{} starts", self.policy.workload);
        self.enter(now, State::Starting(Rising::Launching(job)), &why);
    }

    /// Nothing was started, and the next try here would end the same: other hosts come first, and this one again after
    /// a pause that grows.
    pub(super) fn start_refused(&mut self, now: MonoTime, why: &str, out: &mut Vec<Action>) {
        self.present.running = false;
        // AGENT-A8: nothing was started.
        if self.takeover.within_hour.back() == Some(&self.times.since) {
            self.takeover.within_hour.pop_back();
        }
        let why = format!("{} is not started here: {why}", self.policy.workload);
        if self.orders.paused {
            return self.hold(now, &why, false);
        }
        self.give_away(now, why, out);
    }

    /// Starts PostgreSQL anew in its place.
    pub(super) fn rise(&mut self, now: MonoTime, reason: &str, how: Stop, asked: bool, out: &mut Vec<Action>) {
        self.way = Some(Way::new(Event::Restart, reason.into(), None, false, now, now));
        self.clear(now, reason, how, asked, out);
    }

    fn clear(&mut self, now: MonoTime, why: &str, how: Stop, asked: bool, out: &mut Vec<Action>) {
        let job = self.job();
        self.probes.database = DatabaseView::Busy;
        out.push(Action::StopDatabase { job, how });
        self.enter(now, State::Starting(Rising::Clearing { job, how, asked }), why);
    }

    /// The previous PostgreSQL was stopped, or could not be.
    pub(super) fn cleared(
        &mut self,
        now: MonoTime,
        how: Stop,
        asked: bool,
        result: Result<(), String>,
        out: &mut Vec<Action>,
    ) {
        match result {
            // AGENT-A4: the pause began after the stop. It does not count as a restart.
            Ok(()) if self.orders.paused && !asked => {
                if !self.orders.held {
                    self.takeover.restarts.pop_back();
                }
                let why = self.why.clone();
                self.hold(now, &why, false);
            }
            Ok(()) => self.launch(now, asked, out),
            // Its clients were too slow: nothing is wrong with this host.
            Err(why) if how == Stop::Fast => {
                let why = format!("{} is stopped at once: {why}", self.policy.workload);
                self.clear(now, &why, Stop::Immediate, asked, out);
            }
            Err(why) => self.fence(now, format!("{} could not be stopped: {why}", self.policy.workload), out),
        }
    }

    /// Waits for PostgreSQL as for one in recovery, without starting it. A PostgreSQL that is found missing is started,
    /// but not in a pause (AGENT-A4).
    pub(super) fn hold(&mut self, now: MonoTime, why: &str, runs: bool) {
        self.present.running = true;
        self.orders.held |= self.orders.paused;
        // The next probe shows whether it runs. If that is not certain, nothing has to wait for it.
        self.probes.database = if runs { DatabaseView::Busy } else { DatabaseView::Gone };
        let paused = if self.orders.paused { "; paused: nothing is started" } else { "" };
        self.enter(now, State::Starting(Rising::Recovering), &format!("{why}{paused}"));
    }

    /// The lease may still be ours.
    pub(super) fn resume_from_cut_off(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        if self.orders.ended_by_shutdown {
            // A person may start it by hand: the watchdog's helper covers that (WATCHDOG-W1).
            self.present.running = true;
            return self.enter(now, State::Ended, "told to stop while paused: device and pool stay");
        }
        let serving = self.lease.attach.as_ref().is_some_and(|attach| attach.phase == AttachPhase::Serving);
        // Still ours, and renewed early enough for a start.
        if serving && now < self.stop_at() {
            let why = "the lease is ours still, the cluster is back";
            self.way = Some(Way::new(Event::Restart, why.into(), None, false, now, now));
            if self.orders.paused {
                // AGENT-A4: a person may work on its files.
                return self.hold(now, why, false);
            }
            return self.launch(now, false, out);
        }
        // Ours, but renewed too seldom or too late for PostgreSQL to run under it. Another host may do better.
        let spent = now.saturating_since(self.times.since).saturating_sub(self.times.stalled);
        if serving && spent >= self.policy.timeouts.start && !self.orders.paused {
            let (ttl, margin) = (millis(self.lease.ttl), millis(self.stop_margin()));
            let reason = format!(
                "the lease of {ttl} ms is ours and was not renewed {margin} ms before its end for {} ms",
                millis(spent)
            );
            self.give_away(now, reason, out);
        }
    }

    /// PostgreSQL is gone or unusable: restarts it here, or gives the lease away.
    pub(super) fn fell(&mut self, now: MonoTime, reason: &str, out: &mut Vec<Action>) {
        forget(&mut self.takeover.restarts, now, self.policy.restarts.window);
        if self.takeover.restarts.len() < self.policy.restarts.max {
            self.takeover.restarts.push_back(now);
            // Before the first arrival the takeover continues: it needed two starts.
            let way = self.way.take();
            self.rise(now, reason, Stop::Kill, false, out);
            if way.is_some() {
                self.way = way;
            }
            return;
        }
        let reason = format!("{reason}; restarted {} times already", self.takeover.restarts.len());
        self.give_away(now, reason, out);
    }

    pub(super) fn recover(&mut self, now: MonoTime, rising: Rising, out: &mut Vec<Action>) {
        if matches!(rising, Rising::Arming { .. }) {
            // This step has its own limit, and does not count against PostgreSQL.
            return;
        }
        if rising == Rising::Recovering {
            match self.probes.database {
                DatabaseView::Ready => {
                    self.mark(now, |phases, took| phases.recover_ms = Some(phases.recover_ms.unwrap_or(0) + took));
                    if !self.policy.workload.is_postgresql() {
                        // AGENT-A5: this check came after the start.
                        return self.arrived(now, out);
                    }
                    let job = self.job();
                    out.push(Action::FirstWrite { job });
                    self.state = State::Starting(Rising::Writing(job));
                    return;
                }
                DatabaseView::Gone if self.orders.paused => {}
                // AGENT-A3: an agent that begins does not know yet when the lease ends.
                DatabaseView::Gone if self.last_renewal().is_none() => {}
                // PostgreSQL has not failed: a pause is over, or an earlier agent had stopped it.
                DatabaseView::Gone if self.orders.held => {
                    let way = self.way.take();
                    let why = format!("{} was stopped, and is started again", self.policy.workload);
                    self.rise(now, &why, Stop::Kill, false, out);
                    self.way = way.or(self.way.take());
                    return;
                }
                DatabaseView::Gone => {
                    let why = format!("{} ended while it started", self.policy.workload);
                    return self.fell(now, &why, out);
                }
                DatabaseView::Busy | DatabaseView::Ending | DatabaseView::Silent => {}
                DatabaseView::Elsewhere => return self.answers_elsewhere(now, out),
                DatabaseView::Standby if self.policy.follows => {
                    self.mark(now, |phases, took| phases.recover_ms = Some(phases.recover_ms.unwrap_or(0) + took));
                    return self.settled(now, State::Following, "PostgreSQL is a standby: it follows another one", out);
                }
                DatabaseView::Standby => {
                    self.why = "PostgreSQL is a standby (standby.signal?), expected a primary".into()
                }
            }
        }
        let spent = now.saturating_since(self.times.since).saturating_sub(self.times.stalled);
        // AGENT-A4: a promotion may happen during a pause.
        if spent >= self.policy.timeouts.start && !self.orders.paused {
            let limit = millis(self.policy.timeouts.start);
            self.give_away(now, format!("{}; {}", self.policy.workload.not_up(limit), self.why), out);
        }
    }

    /// What answers works in another data directory (DB-D5). A write there proves nothing (AGENT-A5), and what was
    /// started so is off the set (ONSET-L1). One that ran before this agent is not stopped (ONSET-L2).
    fn answers_elsewhere(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        let why = format!("what answers is not the PostgreSQL of this set: {}", self.obstacles.off_set);
        if self.orders.paused || self.way.as_ref().is_some_and(|way| way.event == Event::Adopted) {
            self.why = why;
            return;
        }
        self.give_away(now, why, out);
    }

    /// The first write is durable (AGENT-A5), or the service has passed its check.
    pub(super) fn arrived(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        if self.policy.workload.is_postgresql() {
            self.mark(now, |phases, took| phases.first_write_ms = Some(took));
        }
        self.probes.database = DatabaseView::Ready;
        let why = self.lost_volumes().unwrap_or_default();
        self.settled(now, State::Primary, &why, out);
    }

    /// The takeover or restart has reached its end.
    fn settled(&mut self, now: MonoTime, state: State, why: &str, out: &mut Vec<Action>) {
        if let Some(way) = &self.way {
            let (event, reason) = (way.event, way.reason.clone());
            self.record(event, &reason, out);
        }
        self.way = None;
        self.orders.held = false;
        self.takeover.backoff = Duration::ZERO;
        self.enter(now, state, why);
    }

    /// PostgreSQL is a standby of another one. After its promotion this host is primary once a write was durable
    /// (AGENT-A5).
    pub(super) fn follow(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        if self.probes.database != DatabaseView::Ready {
            return self.watch(now, out);
        }
        let reason = "PostgreSQL was promoted".to_string();
        self.way = Some(Way::new(Event::Promoted, reason.clone(), None, false, now, now));
        self.enter(now, State::Starting(Rising::Recovering), &reason);
        self.recover(now, Rising::Recovering, out);
    }
}
