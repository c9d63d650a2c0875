//! The volumes of a set that have connections here, and those that are being changed.

use holdfast_front::Slots;
use holdfast_types::VolumeId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct Uses {
    open: BTreeMap<VolumeId, u32>,
    pub(super) changing: BTreeSet<VolumeId>,
    /// By id: a volume or a set that is created again under its name has slots of its own.
    pub(super) slots: BTreeMap<VolumeId, Slots>,
}

impl Uses {
    /// Number of connections to the volume.
    pub(super) fn of(&self, volume: VolumeId) -> u32 {
        self.open.get(&volume).copied().unwrap_or(0)
    }

    /// Counts one more connection to the volume.
    pub(super) fn begin(&mut self, volume: VolumeId) {
        *self.open.entry(volume).or_default() += 1;
    }

    /// Counts one connection less.
    pub(super) fn end(&mut self, volume: VolumeId) {
        if let Some(open) = self.open.get_mut(&volume) {
            *open -= 1;
            if *open == 0 {
                self.open.remove(&volume);
            }
        }
    }
}
