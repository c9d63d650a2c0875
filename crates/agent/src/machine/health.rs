//! Health of PostgreSQL while it runs, and the reactions to it.

use super::state::{Machine, State};
use super::{Action, AttachPhase, DatabaseView, Event};
use holdfast_types::MonoTime;
use std::time::Duration;

impl Machine {
    pub(super) fn database_seen(&mut self, now: MonoTime, view: DatabaseView) {
        self.probes.database = view;
        let device_is_well = self.lease.attach.as_ref().is_some_and(|attach| attach.phase == AttachPhase::Serving);
        match view {
            DatabaseView::Silent if device_is_well => {
                self.probes.silent_since.get_or_insert(now);
            }
            _ => self.probes.silent_since = None,
        }
        if matches!(view, DatabaseView::Busy | DatabaseView::Ending) {
            let told = self.probes.busy_since.is_some_and(|(_, _, told)| told);
            match self.probes.busy_since {
                Some((same, _, _)) if same == view && device_is_well => {}
                _ => self.probes.busy_since = Some((view, now, told)),
            }
        } else if self.probes.busy_since.take().is_some_and(|(_, _, told)| told) && self.state == State::Primary {
            self.why = self.lost_volumes().unwrap_or_default();
        }
    }

    /// Notes since when the lease is renewed in time without a device that serves. Time without renewals does not
    /// count: then the cluster is away, and AGENT-A3 acts.
    pub(super) fn device_seen(&mut self, now: MonoTime) {
        let serves = self.lease.attach.as_ref().is_none_or(|attach| attach.phase == AttachPhase::Serving);
        let counts = !serves && now < self.stop_at();
        self.lease.unserved_since = counts.then(|| self.lease.unserved_since.unwrap_or(now));
    }

    /// The device has not served for as long as a new one may take to appear, and the lease was renewed after that.
    /// Time alone does not count: a lease may be long, and the cluster away for less.
    pub(super) fn device_is_gone(&self) -> bool {
        let times = self.lease.unserved_since.zip(self.last_renewal());
        times.is_some_and(|(since, renewed)| renewed.saturating_since(since) >= self.policy.timeouts.attach)
    }

    /// AGENT-A10. In each state that would otherwise wait for the device, which is not watched elsewhere: while it does
    /// not serve, nothing counts against PostgreSQL.
    pub(super) fn give_away_unserved(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        let waits = matches!(self.state, State::Primary | State::Following | State::Starting(_) | State::CutOff(None));
        if !waits || self.orders.paused || !self.device_is_gone() {
            return;
        }
        let limit = self.policy.timeouts.attach.as_millis();
        let reason = format!("the lease is renewed, and the device has not served for {limit} ms");
        self.give_away(now, reason, out);
    }

    /// Takes in what of a PostgreSQL that runs does not lie on the set, and what to do about it; "" for nothing. It is
    /// reported and ends nothing: a primary that was stopped for it would not be started again on any host.
    pub fn set_off_set(&mut self, found: &str, out: &mut Vec<Action>) {
        if self.obstacles.off_set == found {
            return;
        }
        found.clone_into(&mut self.obstacles.off_set);
        if !found.is_empty() {
            self.record(Event::OffSet, found, out);
        }
    }

    /// Reacts to PostgreSQL's health.
    pub(super) fn watch(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        if self.orders.paused {
            return;
        }
        match self.probes.database {
            DatabaseView::Gone => {
                let why = format!("{} ended", self.policy.workload);
                self.fell(now, &why, out);
            }
            DatabaseView::Silent => {
                let silent = self.probes.silent_since.map_or(Duration::ZERO, |since| now.saturating_since(since));
                if silent >= self.policy.timeouts.health {
                    let why = self.policy.workload.silent(silent);
                    self.fell(now, &why, out);
                }
            }
            DatabaseView::Busy | DatabaseView::Ending => self.no_queries(now, out),
            // What works elsewhere is reported (ONSET-L2).
            DatabaseView::Ready | DatabaseView::Standby | DatabaseView::Elsewhere => {}
        }
    }

    /// PostgreSQL lives, but takes no queries. One in recovery is waited for, because a restart would begin the
    /// recovery again; the history reports it. One that shuts down for this long counts as ended.
    fn no_queries(&mut self, now: MonoTime, out: &mut Vec<Action>) {
        let Some((view, since, told)) = self.probes.busy_since else { return };
        let time = now.saturating_since(since);
        if time < self.policy.timeouts.health {
            return;
        }
        if view == DatabaseView::Ending {
            return self.fell(now, &format!("PostgreSQL has been shutting down for {} ms", time.as_millis()), out);
        }
        if !told {
            self.probes.busy_since = Some((view, since, true));
            let why = format!(
                "PostgreSQL lives and has taken no queries for {} ms: its log says why (crash recovery, or nothing that listens at database.host)",
                time.as_millis()
            );
            self.record(Event::Refusing, &why, out);
            if self.state == State::Primary {
                self.why = why;
            }
        }
    }
}
