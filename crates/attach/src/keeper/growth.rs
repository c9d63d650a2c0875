//! Volumes that grow, or are lost, under an attached set: the answer to a renewal has their present sizes.
//!
//! ```text
//!   lease.json ─▶ requests of clients are taken ─▶ the kernel is told
//! ```
//! GROWTH-G1  In that order. The gateway that reported a size serves it, and checks each request against the volume's
//!     size at that time. So no request lies beyond the end here or there, and no device is larger than the next
//!     process knows (KERNEL-K3).
//! GROWTH-G2  The kernel is told only while requests of that volume are answered, and of one device at a time. From
//!     Linux 6.9 on it waits for all requests on their way to the device before it takes a size; new requests wait too,
//!     and no device gets a new socket.
//! GROWTH-G3  Nothing shrinks here. A volume that is smaller than its device is lost (ATTACH-M8) now, not at the next
//!     grant: it may have grown again by then, but the discarded data is gone. A shrink followed by growth between two
//!     renewals is reported as well, unless the gateway started since then and has forgotten it.
//! GROWTH-G4  Only valid answers count: the answer was valid when it came, and no connection was lost before it is
//!     followed.
//! GROWTH-G5  A shrink counts against a device only if it is later in the log than the place that came with the
//!     device's size. So an answer's place is noted before its sizes are followed, and a healthy device never fails,
//!     whatever another gateway remembers.

use super::growing::PAUSE;
use super::state::{Keeper, News};
use crate::device::{DeviceKind, DriverError, Growth};
use crate::machine::{Cuts, VolumeFacts};
use std::collections::BTreeMap;

/// Pure: our volumes that have grown, by their place, with the new size. Lost volumes stay as they are (ATTACH-M8).
fn grown(ours: &[VolumeFacts], lost: impl Fn(usize) -> bool, named: &[VolumeFacts]) -> Vec<(usize, u64)> {
    let sizes = ours.iter().enumerate().filter(|(volume, _)| !lost(*volume));
    sizes.filter_map(|(volume, facts)| Some((volume, facts.grown_in(named)?))).collect()
}

/// Pure: our volumes that were changed under their devices, by their place, with the reason (ATTACH-M8).
fn gone(ours: &[VolumeFacts], named: &[VolumeFacts]) -> BTreeMap<usize, String> {
    ours.iter().enumerate().filter_map(|(volume, facts)| Some((volume, facts.lost_in(named)?))).collect()
}

impl Keeper {
    /// GROWTH-G3, GROWTH-G5: handles the shrinks in a renewal's answer. Returns whether [`Self::follow`] may follow the
    /// same answer.
    pub(super) fn see_cuts(&self, incarnation: u64, told: &Cuts) -> bool {
        // GROWTH-G4.
        if !self.shared.look(|machine| machine.stands(incarnation)) {
            return false;
        }
        let ours = self.shared.all_facts();
        if let Some(since) = self.shared.cuts_seen() {
            let cut = |(volume, facts): (usize, &VolumeFacts)| Some((volume, facts.cut_in(&told.cuts, since)?));
            self.lose_of(ours.iter().enumerate().filter_map(cut).collect());
        }
        self.shared.saw_cuts(told.as_of);
        true
    }

    /// GROWTH-G1, except the kernel, which [`Self::tell_kernel`] tells. `named` came for the connections of
    /// `incarnation`.
    pub(super) fn follow(&mut self, incarnation: u64, named: &[VolumeFacts]) {
        // GROWTH-G4: the answer waited in a queue.
        if !self.shared.look(|machine| machine.stands(incarnation)) {
            return;
        }
        let ours = self.shared.all_facts();
        self.lose_of(gone(&ours, named));
        let now = self.shared.now();
        if self.growing.unkept.is_some_and(|until| now < until) {
            return;
        }
        let lost = self.shared.look(|machine| machine.lost_volumes().clone());
        let sizes = grown(&ours, |volume| lost.contains_key(&volume), named);
        if sizes.is_empty() {
            return;
        }
        let set = &self.options.set;
        if let Some(file) = &self.kept
            && let Err(error) = file.grew(&sizes)
        {
            tracing::error!(%set, %error, "cannot save the new sizes of volumes: their devices do not grow yet; retrying in {PAUSE:?}");
            self.growing.unkept = Some(now.plus(PAUSE));
            return;
        }
        for (volume, size) in sizes {
            self.shared.grow(volume, size);
            let (name, from) = (&ours[volume].name, ours[volume].size);
            if self.options.device == DeviceKind::Nbdfuse {
                tracing::warn!(%set, volume = %name, from, size, "the volume grew; its loop device keeps its size until it is detached and attached again");
            } else {
                tracing::info!(%set, volume = %name, from, size, "the volume grew");
            }
        }
    }

    /// Those that are not lost yet.
    fn lose_of(&self, mut lost: BTreeMap<usize, String>) {
        self.shared.look(|machine| lost.retain(|volume, _| !machine.lost_volumes().contains_key(volume)));
        self.lose(lost);
    }

    /// ATTACH-M8, as at a grant: stored for the next process, and only then given to the machine.
    fn lose(&self, lost: BTreeMap<usize, String>) {
        if lost.is_empty() {
            return;
        }
        let set = &self.options.set;
        for why in lost.values() {
            tracing::error!(%set, "{why}: its device fails from now on, the others work; detach, then attach again");
        }
        if let Some(file) = &self.kept
            && let Err(error) = file.lose(lost.keys().copied())
        {
            tracing::error!(%set, %error, "cannot save that a volume was lost: a restarted attach may not know it");
        }
        self.shared.act(|machine, _, out| machine.lose_volumes(lost, out));
    }

    /// Tells the kernel of the next device that is smaller than its volume (GROWTH-G2).
    pub(super) fn tell_kernel(&mut self) {
        let Some(devices) = &self.devices else { return };
        let (facts, now) = (self.shared.all_facts(), self.shared.now());
        let growths = facts.iter().enumerate().filter_map(|(volume, facts)| devices.growth(volume, facts.size));
        let mut growths: BTreeMap<usize, Growth> = growths.map(|growth| (growth.volume, growth)).collect();
        let flows = |volume| self.shared.look(|machine| machine.flows(now, volume));
        let turn = self.growing.turn(now, growths.keys().copied(), flows);
        let Some(growth) = turn.and_then(|volume| growths.remove(&volume)) else { return };
        self.growing.telling = true;
        let news = self.news.clone();
        self.spawn(async move {
            let said = growth.tell().await;
            let _ = news.send(News::Told(growth, said));
        });
    }

    /// The kernel's answer.
    pub(super) fn told(&mut self, growth: &Growth, said: Result<(), DriverError>) {
        self.growing.heard(self.shared.now(), growth.volume, said.is_ok());
        // The devices are being released, and the kernel may not know this one any more.
        let Some(devices) = &mut self.devices else { return };
        let device = devices.path(growth.volume).unwrap_or_default();
        match said {
            Ok(()) => {
                devices.grew(growth.volume, growth.size);
                tracing::info!(set = %self.options.set, device, size = growth.size, "the device grew");
            }
            Err(error) => {
                tracing::warn!(set = %self.options.set, device, %error, "the kernel does not take the new size; retrying in {PAUSE:?}");
            }
        }
        self.tell_kernel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Cut;
    use holdfast_types::{Epoch, Name};

    /// GROWTH-G3: whatever its present size.
    #[test]
    fn a_device_does_not_go_on_after_a_shrink_that_was_grown_over() {
        let ours = VolumeFacts { id: 1, name: Name::new("vol1").unwrap(), size: 100 };
        let cut = |volume, at, size| Cut { volume, at: Epoch(at), size };
        let lost = |cuts: &[Cut]| ours.cut_in(cuts, Epoch(7));
        assert_eq!(lost(&[]), None);
        let whole = [cut(1, 7, 10), cut(1, 6, 10), cut(1, 8, 100), cut(1, 9, 300), cut(2, 8, 10)];
        assert_eq!(lost(&whole), None, "of before, down to what we have, or another's");
        let text = lost(&[cut(1, 8, 60), cut(1, 9, 40), cut(1, 10, 90)]).unwrap();
        assert_eq!(text, "volume vol1: found it cut to 40 bytes meanwhile, expected 100 all the time");
    }
}
