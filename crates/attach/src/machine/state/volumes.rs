//! ATTACH-M8: volumes that were deleted, shrunk or renamed under their devices.

use super::Machine;
use crate::machine::{Action, Phase};
use holdfast_nbd::Errno;
use std::collections::BTreeMap;

impl Machine {
    /// The gateway that serves named the set's volumes while it stays connected, and some, by their index, are not what their devices were made of any more: lost as at
    /// a grant. Their connections stay until the next one, with nothing on them.
    pub(crate) fn lose_volumes(&mut self, lost: BTreeMap<usize, String>, out: &mut Vec<Action>) {
        if self.releasing || matches!(self.phase, Phase::Fenced | Phase::Detached) {
            return;
        }
        for (volume, why) in lost {
            self.lose(volume, why, out);
        }
        if !self.none_left(self.volumes, out) {
            self.end_if_drained(out);
        }
    }

    /// Its requests of this generation and of those before go no further: what a gateway still answers to one of them is nobody's.
    pub(crate) fn lose(&mut self, volume: usize, why: String, out: &mut Vec<Action>) {
        if self.lost_volumes.contains_key(&volume) {
            return;
        }
        self.lost_volumes.insert(volume, why);
        self.table.set_volumes(volume + 1);
        for entry in self.table.drain_volume(volume) {
            out.push(Action::Answer { ticket: entry.intake.ticket, outcome: Err(Errno::Io) });
        }
        out.push(Action::Room { volume });
        out.push(Action::Show);
    }

    /// Over, where none of `volumes` is left. Nobody took the set: who holds the lease says nothing of it.
    pub(super) fn none_left(&mut self, volumes: usize, out: &mut Vec<Action>) -> bool {
        if volumes == 0 || self.lost_volumes.len() < volumes {
            return false;
        }
        let why = self.lost_volumes.values().next().map_or("", String::as_str);
        self.over(Some(format!("the loss of its last volume: {why}")), out);
        true
    }
}
