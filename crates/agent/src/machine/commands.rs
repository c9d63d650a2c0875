//! Commands of operators, and of other hosts' agents.

use super::parts::{Claim, Step, Then, Way};
use super::state::{Machine, State};
use super::{Action, Command, Event, LeaseView, Refused, StateName, Stop, in_order};
use holdfast_types::MonoTime;
use std::time::Duration;

/// Advice if the host is not in the state that the command needs.
const WAIT: &str = "wait until it is, see `holdfast agent status`";

impl Machine {
    /// Takes in a command. The returned text is for the operator.
    ///
    /// # Errors
    /// The reason for a refusal, and the remedy.
    pub fn command(&mut self, now: MonoTime, command: Command, out: &mut Vec<Action>) -> Result<String, Refused> {
        self.times.last_step = now;
        let said = match command {
            Command::Pause => Ok(self.pause(out)),
            Command::Resume => Ok(self.resume(now, out)),
            Command::Switchover { to } => self.switch_over(now, to, out),
            Command::Claim { from, within } => self.claimed(now, from, within),
            Command::Failover { reason } => self.fail_over(now, reason, out),
            Command::Restart => self.restart(now, out),
            Command::Shutdown => Ok(self.shutdown(now, out)),
        };
        self.settle(now, out);
        in_order(out);
        said
    }

    fn pause(&mut self, out: &mut Vec<Action>) -> String {
        if std::mem::replace(&mut self.orders.paused, true) {
            return "was paused already".into();
        }
        self.record(Event::Paused, "by command", out);
        "paused".into()
    }

    fn resume(&mut self, now: MonoTime, out: &mut Vec<Action>) -> String {
        if !std::mem::replace(&mut self.orders.paused, false) {
            return "was not paused".into();
        }
        self.record(Event::Resumed, "by command", out);
        if matches!(self.state, State::Starting(_)) {
            // The time of the pause does not count against PostgreSQL.
            (self.times.since, self.times.stalled) = (now, Duration::ZERO);
        }
        // Nor does it count against the device (AGENT-A10).
        self.lease.unserved_since = None;
        if let State::Demoting(leaving) = &mut self.state {
            // AGENT-A9: whoever came in the pause is named first. The rounds begin now, and are as near to one another
            // as the first ones: all hosts wait for their end.
            (leaving.asked, leaving.paced_from) = (0, leaving.round);
            if matches!(leaving.step, Step::Rest(_)) {
                leaving.step = Step::Rest(now);
            }
        }
        "resumed".into()
    }

    fn switch_over(&mut self, now: MonoTime, to: String, out: &mut Vec<Action>) -> Result<String, Refused> {
        if to == self.policy.name {
            return Err(Refused(format!("{to} is where it is already: name another host, or leave it")));
        }
        if !matches!(self.state, State::Primary | State::Following) {
            return Err(self.only_in(StateName::Primary, "ask the agent of the present primary"));
        }
        let then = Then::HandedOver { to: to.clone(), wait: self.policy.takeover.switchover_hold };
        self.obstacles.switchover_refused.clear();
        self.cluster.other = Some(to.clone());
        let checkpoint = self.policy.workload.is_postgresql();
        self.leave(now, false, checkpoint, format!("switchover to {to}"), then, out);
        Ok(format!("letting go for {to}"))
    }

    /// Whether this host stands by and could take the lease.
    fn stands_ready(&self) -> Result<(), Refused> {
        if self.state == State::Standby && self.obstacles.unable.is_empty() {
            return Ok(());
        }
        Err(self.only_in(StateName::Standby, WAIT))
    }

    fn claimed(&mut self, now: MonoTime, from: String, within: Duration) -> Result<String, Refused> {
        self.stands_ready()?;
        let words = format!("{} takes over once {from} has let go", self.policy.name);
        self.cluster.claim = Some(Claim { from, at: now, until: now.saturating_add(within) });
        Ok(words)
    }

    fn fail_over(&mut self, now: MonoTime, reason: String, out: &mut Vec<Action>) -> Result<String, Refused> {
        self.stands_ready()?;
        let held = matches!(&self.cluster.lease, Some((_, LeaseView::Held { .. })));
        let way = Way::new(Event::Failover, reason, self.cluster.other.clone(), true, now, now);
        self.campaign(now, way, held, out);
        Ok(format!("{} takes the lease{}", self.policy.name, if held { " by force" } else { "" }))
    }

    fn restart(&mut self, now: MonoTime, out: &mut Vec<Action>) -> Result<String, Refused> {
        let (name, it, off_set) = (&self.policy.name, self.policy.workload.clone(), &self.obstacles.off_set);
        if !off_set.is_empty() {
            // ONSET-L1: it would only be stopped.
            return Err(Refused(format!("{name}: {it} would not be started again: {off_set}")));
        }
        if !matches!(self.state, State::Primary | State::Following) {
            let next = format!("ask the agent of the host where {it} runs, see `holdfast agent status`");
            return Err(self.only_in(StateName::Primary, &next));
        }
        self.rise(now, "by command", Stop::Fast, true, out);
        Ok(format!("restarting {it}"))
    }
}
