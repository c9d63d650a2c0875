//! Carries out the schedule against the running cluster, heals after each step, and asks for progress.

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

/// A majority must get a write through within this time. A takeover takes one to two seconds; a machine that builds something
/// else at the same time several of them.
pub const PROGRESS_LIMIT: Duration = Duration::from_secs(20);

/// What one step came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub fault: Fault,
    /// The gateway that served when it began.
    pub serving: usize,
    /// Until a write got through while it lasted. `None`: nothing was asked for.
    pub during: Option<Duration>,
    /// The same from the healing on.
    pub after: Duration,
}

/// Everything that can be broken.
pub struct Siege<'a> {
    pub net: &'a Net,
    pub gateways: &'a mut Gateways,
    pub store: Option<S3>,
    pub access: &'a Access,
    pub history: &'a History,
    /// Owners so far, for their names.
    pub owners: u64,
}

impl Siege<'_> {
    /// One step, with its healing.
    ///
    /// # Errors
    /// No progress in time, a gateway that ended by itself, or a fault that could not be injected.
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
        // Also after a failure: it must not spoil the next step.
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
        anyhow::bail!("no write got through for {PROGRESS_LIMIT:?} {when}; the logs end with: {}", logs.join("; "))
    }

    /// Everything that was broken works again.
    ///
    /// # Errors
    /// When something does not come up.
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

    /// The commands of a person, given in the middle of trouble, may well fail: what they did is then unknown, and that is all.
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
