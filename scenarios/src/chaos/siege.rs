//! Executes the schedule against the running cluster, heals after each step, and checks that writes succeed.

use super::access::Access;
use super::history::History;
use super::nemesis::{Fault, Step};
use crate::gateways::{GATEWAYS, Gateways, name};
use crate::net::{HUB, Net};
use crate::process::wait_until;
use crate::s3::S3;
use crate::say::note;
use crate::shape::Shape;
use anyhow::{Context, Result};
use std::time::Duration;

/// A write must succeed within this time if there is a majority. A takeover takes one to two seconds, and several on a
/// busy machine.
pub const PROGRESS_LIMIT: Duration = Duration::from_secs(20);

/// The result of one step.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub fault: Fault,
    /// The gateway that served when it began.
    pub serving: usize,
    /// Time until a write succeeded during the fault. `None`: not required.
    pub during: Option<Duration>,
    /// Time until a write succeeded after the healing.
    pub after: Duration,
}

/// Everything that faults can affect.
pub struct Siege<'a> {
    pub net: &'a Net,
    pub gateways: &'a mut Gateways,
    pub store: Option<S3>,
    pub access: &'a Access,
    pub history: &'a History,
    /// Number of owners so far, for their names.
    pub owners: u64,
}

impl Siege<'_> {
    /// Runs one step and heals. Fails when no write succeeds in time, a gateway exits by itself, or a fault cannot be
    /// injected.
    pub fn step(&mut self, step: &Step) -> Result<Outcome> {
        wait_until(Duration::from_millis(step.calm_ms), || false);
        self.gateways.must_run()?;
        let serving = self.history.serving();
        let injected = self.inject(step, serving);
        let begun = self.history.now();
        let during = match injected {
            Ok(()) if step.fault.leaves_majority() => self.progress("while it lasts", begun).map(Some),
            Ok(()) => Ok(None),
            Err(e) => Err(e.context("not injected")),
        };
        let left = Duration::from_millis(step.hold_ms).saturating_sub(self.since(begun));
        if !step.fault.is_moment() && during.is_ok() {
            wait_until(left, || false);
        }
        // Heals also after a failure: it must not affect the next step.
        self.heal()?;
        let after = self.progress("after the healing", self.history.now())?;
        Ok(Outcome { fault: step.fault, serving, during: during?, after })
    }

    fn since(&self, moment: u64) -> Duration {
        Duration::from_nanos(self.history.now().saturating_sub(moment))
    }

    fn progress(&mut self, when: &str, since: u64) -> Result<Duration> {
        if wait_until(PROGRESS_LIMIT, || self.history.progressed_since(since)) {
            return Ok(self.since(since));
        }
        let logs: Vec<String> = (0..GATEWAYS).map(|g| format!("{}: {}", name(g), self.gateways.log_tail(g))).collect();
        anyhow::bail!("no write succeeded for {PROGRESS_LIMIT:?} {when}; the logs end with: {}", logs.join("; "))
    }

    /// Heals all faults. Fails when something does not come up.
    pub fn heal(&mut self) -> Result<()> {
        self.net.heal()?;
        if let Some(store) = self.store.as_mut().filter(|s| !s.is_running()) {
            store.resume().context("the object store")?;
        }
        self.gateways.heal(self.net)
    }

    fn new_owner(&mut self) -> String {
        self.owners += 1;
        format!("host-{}", self.owners)
    }

    /// Commands of an administrator during a fault may fail. Their outcome is then unknown, which is no error.
    fn told(what: Result<()>) {
        if let Err(e) = what {
            let text = format!("{e:#}");
            note(format!("  refused or unknown: {}", text.chars().take(300).collect::<String>()));
        }
    }

    fn cut_from_peers(&self, gateway: usize) -> Result<()> {
        self.net.part(Shape::Alone(gateway))
    }

    fn inject(&mut self, step: &Step, serving: usize) -> Result<()> {
        let [one, two] = others(serving);
        let follower = if step.choice.is_multiple_of(2) { one } else { two };
        let rest = if follower == one { two } else { one };
        match step.fault {
            Fault::LeaderAlone => self.cut_from_peers(serving)?,
            Fault::FollowerAlone => self.cut_from_peers(follower)?,
            Fault::LeaderUnplugged => {
                self.cut_from_peers(serving)?;
                self.net.deafen(serving, HUB)?;
            }
            Fault::AllAlone => self.net.part(Shape::AllAlone)?,
            Fault::Bridge => self.net.part(match step.choice % 3 {
                0 => Shape::Cut(one, two),
                1 => Shape::Cut(serving, one),
                _ => Shape::Cut(serving, two),
            })?,
            Fault::Ring => self.net.part(Shape::Ring)?,
            Fault::LeaderDeaf => self.net.part(Shape::Deaf(serving))?,
            Fault::LeaderMute => self.net.part(Shape::Mute(serving))?,
            Fault::Flapping => {
                for _ in 0..5 {
                    self.cut_from_peers(serving)?;
                    wait_until(Duration::from_millis(step.hold_ms / 10), || false);
                    self.net.heal()?;
                    wait_until(Duration::from_millis(step.hold_ms / 20), || false);
                }
            }
            Fault::KillLeader => self.gateways.kill(serving)?,
            Fault::KillFollower => self.gateways.kill(follower)?,
            Fault::KillAll => (0..GATEWAYS).try_for_each(|g| self.gateways.kill(g))?,
            Fault::PauseLeader => self.gateways.pause(serving)?,
            Fault::PauseFollower => self.gateways.pause(follower)?,
            Fault::StoreStopped => self.stop_store()?,
            Fault::StoreStoppedKillLeader => {
                self.stop_store()?;
                self.gateways.kill(serving)?;
            }
            Fault::Switchover => Self::told(self.access.switch_over(follower)),
            Fault::FailoverFree => Self::told(self.access.free(self.history, Some(follower))),
            Fault::FailoverOwner => {
                let owner = self.new_owner();
                Self::told(self.access.fail_over(self.history, &owner, rest));
            }
            Fault::Usurp => {
                let owner = self.new_owner();
                Self::told(self.access.usurp(self.history, &owner));
            }
            Fault::LeaderAloneUsurp => {
                self.cut_from_peers(serving)?;
                let owner = self.new_owner();
                Self::told(self.access.usurp(self.history, &owner));
            }
            Fault::PauseLeaderUsurp => {
                self.gateways.pause(serving)?;
                let owner = self.new_owner();
                Self::told(self.access.usurp(self.history, &owner));
            }
            Fault::Release => Self::told(self.access.free(self.history, None)),
        }
        Ok(())
    }

    fn stop_store(&mut self) -> Result<()> {
        self.store.as_mut().map_or(Ok(()), S3::stop)
    }
}

/// The other gateways.
fn others(gateway: usize) -> [usize; 2] {
    [(gateway + 1) % GATEWAYS, (gateway + 2) % GATEWAYS]
}
