//! Steps of the keeper's loop: begin, news, stop, end.

use super::state::{Keeper, News};
use super::types::{AttachError, DRAIN_LIMIT, Ended};
use crate::machine::{Machine, Phase};
use std::time::Duration;
use tokio::time::Instant;

/// Interval of the questions for the list of gateways.
const LEARN_INTERVAL: Duration = Duration::from_secs(30);
/// Interval of status writes if only counters changed.
const SHOW_INTERVAL: Duration = Duration::from_secs(1);

/// How far an attached set has come.
pub(super) struct Progress {
    /// A gateway served it at least once.
    pub(super) served: bool,
    /// Sockets are open, and devices were asked for.
    pub(super) listening: bool,
    /// Told to detach, and no device is left: a fence that comes now needs no wait.
    pub(super) released: bool,
    /// Told to detach: when it is given up.
    pub(super) stop_by: Option<Instant>,
    /// Deadline for being ready.
    pub(super) ready_by: Option<Instant>,
    /// When `status.json` is written next.
    pub(super) show_at: Instant,
    /// When the gateways are asked for the list of gateways next, and the pause after that. First at once: the only
    /// gateway in the settings may hang a moment later. It may not have answered, so again a second later.
    pub(super) learn_at: Instant,
    pub(super) learn_pause: Duration,
}

impl Keeper {
    /// Asks for the lease, or goes on with the lease and devices of an earlier process.
    pub(super) fn begin(&mut self) -> Result<Progress, AttachError> {
        let force = self.options.force;
        let left = self.left.take().and_then(|lease| Some((lease.token()?, lease.volumes()?, lease)));
        let now = Instant::now();
        let mut progress = Progress {
            served: false,
            listening: false,
            released: false,
            stop_by: None,
            // Requests in the kernel wait for as long as it takes: no limit then.
            ready_by: left.is_none().then(|| now + self.options.patience),
            show_at: now,
            learn_at: now,
            learn_pause: SHOW_INTERVAL,
        };
        match left {
            None => self.shared.act(|machine, now, out| machine.begin(now, force, out)),
            Some((token, volumes, lease)) => {
                tracing::info!(set = %self.options.set, devices = ?lease.devices, "taking over the devices of an earlier process");
                self.shared.set_volumes(&volumes);
                self.shared.act(|machine, now, out| {
                    machine.resume(now, token, volumes.len(), out);
                    lease.lost().for_each(|(volume, why)| machine.lose(volume, why, out));
                });
                progress.listening = true;
                self.listen()?;
                self.make_devices(Some(lease));
            }
        }
        Ok(progress)
    }

    pub(super) fn handle(&mut self, news: News, progress: &mut Progress) -> Result<(), AttachError> {
        match news {
            News::Refused(refusal) => return Err(AttachError::Refused(refusal)),
            News::Devices(devices) => {
                let devices = devices?;
                self.keep_devices(&devices);
                self.devices = Some(devices);
                if progress.stop_by.is_some() {
                    self.stop_devices();
                }
            }
            News::DevicesStopped => {
                progress.released = true;
                self.shared.act(|machine, _, out| machine.detach(out));
            }
            News::DeviceEnded(which) => {
                self.ready = false;
                tracing::error!(set = %self.options.set, device = which, "a device ended unexpectedly: detach, then attach again");
            }
            News::Volumes { incarnation, volumes, cuts } => {
                if self.see_cuts(incarnation, &cuts) {
                    self.follow(incarnation, &volumes);
                }
            }
            News::Told(growth, said) => self.told(&growth, said),
        }
        Ok(())
    }

    /// Begins to detach.
    pub(super) fn stop(&mut self, progress: &mut Progress) {
        progress.stop_by = Some(Instant::now() + DRAIN_LIMIT);
        self.ready = false;
        // Devices that are being made are stopped once they are there.
        if self.devices.is_some() {
            self.stop_devices();
        } else if !progress.listening {
            progress.released = true;
            self.shared.act(|machine, _, out| machine.detach(out));
        }
    }

    /// How the attached set ended, if it did.
    pub(super) fn ended(&mut self, phase: Phase, progress: &Progress) -> Result<Option<Ended>, AttachError> {
        if progress.released && phase == Phase::Fenced {
            self.show()?;
            return Ok(Some(Ended::Fenced { by: self.shared.look(|machine| machine.view().fenced_by.clone()) }));
        }
        if phase == Phase::Detached {
            self.show()?;
            if self.shared.look(|machine| machine.view().lease_left) {
                return Err(AttachError::LeaseLeft);
            }
            return Ok(Some(Ended::Detached));
        }
        if progress.stop_by.is_some_and(|limit| Instant::now() >= limit) {
            return Err(AttachError::Undrained { count: self.shared.look(Machine::unanswered) });
        }
        Ok(None)
    }

    /// Updates `status.json` and the list of gateways when it is time.
    pub(super) fn keep_current(&mut self, progress: &mut Progress) -> Result<(), AttachError> {
        if Instant::now() >= progress.show_at {
            progress.show_at = Instant::now() + SHOW_INTERVAL;
            self.tell_kernel();
            self.show()?;
        }
        if Instant::now() >= progress.learn_at {
            progress.learn_at = Instant::now() + std::mem::replace(&mut progress.learn_pause, LEARN_INTERVAL);
            self.learn();
        }
        Ok(())
    }
}
