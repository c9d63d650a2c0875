//! Volumes that grow under an attached set: a renewal's answer says what they have by now.
//!
//! ```text
//!   lease.json ─▶ requests of clients are taken ─▶ the kernel is told
//! ```
//! G1  In that order. The gateway that named a size has it, and checks each request against what the volume has at that moment. So nothing that a device is asked for is
//!     beyond the end here or there, and no device is larger than what the next process knows of it (K3).
//! G2  The kernel is told only while requests of that volume are answered, and of one device at a time. From Linux 6.9 on it waits, before it takes a size, for all
//!     that is on its way to the device; what comes meanwhile waits too, and no device gets a new socket.
//! G3  Nothing shrinks here. A volume that is smaller than its device is lost at the next grant (M8).

use super::{Keeper, News};
use crate::device::{DeviceKind, DriverError, Growth};
use crate::machine::VolumeFacts;
use std::time::Duration;
use tokio::time::Instant;

/// After a size could not be kept, or the kernel refused it: until the next try.
const PAUSE: Duration = Duration::from_secs(30);

/// Where the keeper stands with volumes that grow.
#[derive(Debug, Default)]
pub(super) struct Growing {
    /// The kernel is being told of one.
    telling: bool,
    /// Something failed: nothing is tried before.
    rests_until: Option<Instant>,
}

impl Growing {
    fn rests(&self) -> bool {
        self.rests_until.is_some_and(|until| Instant::now() < until)
    }
}

/// Pure: which of our volumes, by their place, have grown, and to what. What is lost stays as it is (M8).
fn grown(ours: &[VolumeFacts], lost: impl Fn(usize) -> bool, named: &[VolumeFacts]) -> Vec<(usize, u64)> {
    let sizes = ours.iter().enumerate().filter(|(volume, _)| !lost(*volume));
    sizes.filter_map(|(volume, facts)| Some((volume, facts.grown_in(named)?))).collect()
}

impl Keeper {
    /// G1, up to the kernel, which [`Self::tell_kernel`] tells.
    pub(super) fn follow(&mut self, named: &[VolumeFacts]) {
        if self.growing.rests() {
            return;
        }
        let ours = self.shared.all_facts();
        let lost = self.shared.look(|machine| machine.lost_volumes().clone());
        let sizes = grown(&ours, |volume| lost.contains_key(&volume), named);
        if sizes.is_empty() {
            return;
        }
        let set = &self.options.set;
        if let Some(file) = &self.kept
            && let Err(error) = file.grew(&sizes)
        {
            tracing::error!(%set, %error, "volumes grew, and that could not be kept: their devices do not grow; tried again in {PAUSE:?}");
            self.growing.rests_until = Some(Instant::now() + PAUSE);
            return;
        }
        for (volume, size) in sizes {
            self.shared.grow(volume, size);
            let (name, from) = (&ours[volume].name, ours[volume].size);
            if self.options.device == DeviceKind::Nbdfuse {
                tracing::warn!(%set, volume = %name, from, size, "the volume grew; its loop device keeps its size until it is detached and attached anew");
            } else {
                tracing::info!(%set, volume = %name, from, size, "the volume grew");
            }
        }
    }

    /// Tells the kernel of the next device that is smaller than its volume (G2).
    pub(super) fn tell_kernel(&mut self) {
        if self.growing.telling || self.growing.rests() {
            return;
        }
        let Some(devices) = &self.devices else { return };
        let (facts, now) = (self.shared.all_facts(), self.shared.now());
        let mut growths = facts.iter().enumerate().filter_map(|(volume, facts)| devices.growth(volume, facts.size));
        let flows = |growth: &Growth| self.shared.look(|machine| machine.flows(now, growth.volume));
        let Some(growth) = growths.find(flows) else { return };
        self.growing.telling = true;
        let news = self.news.clone();
        self.spawn(async move {
            let said = growth.tell().await;
            let _ = news.send(News::Told(growth, said));
        });
    }

    /// What it said.
    pub(super) fn told(&mut self, growth: &Growth, said: Result<(), DriverError>) {
        self.growing.telling = false;
        // They are being let go of, and the kernel may have known no more of this one.
        let Some(devices) = &mut self.devices else { return };
        let device = devices.path(growth.volume).unwrap_or_default();
        match said {
            Ok(()) => {
                devices.grew(growth.volume, growth.size);
                tracing::info!(set = %self.options.set, device, size = growth.size, "the device grew");
                self.tell_kernel();
            }
            Err(error) => {
                tracing::warn!(set = %self.options.set, device, %error, "the kernel does not take the new size; told again in {PAUSE:?}");
                self.growing.rests_until = Some(Instant::now() + PAUSE);
            }
        }
    }
}
