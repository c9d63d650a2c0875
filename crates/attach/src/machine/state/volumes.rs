//! ATTACH-M8: volumes that were deleted, shrunk or renamed under their devices.

use super::Machine;
use crate::machine::{Action, Phase};
use holdfast_nbd::Errno;
use std::collections::BTreeMap;

impl Machine {
    /// The serving gateway listed the set's volumes, and some, by their index, no longer fit their devices. They are
    /// lost, as at a grant. Their connections stay until the next grant and are not used.
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

    /// Its unanswered requests are answered with an error. A later answer of a gateway to one of them is ignored.
    pub(crate) fn lose(&mut self, volume: usize, why: String, out: &mut Vec<Action>) {
        if self.lost_volumes.contains_key(&volume) {
            return;
        }
        holdfast_reached::reached!("attach: a volume is lost under its device");
        self.lost_volumes.insert(volume, why);
        self.table.set_volumes(volume + 1);
        for entry in self.table.drain_volume(volume) {
            out.push(Action::Answer { ticket: entry.intake.ticket, outcome: Err(Errno::Io) });
        }
        out.push(Action::Room { volume });
        out.push(Action::Show);
    }

    /// Ends the set if none of `volumes` is left. Returns whether it did. Nobody took the set, so the holder of the
    /// lease is not looked up.
    pub(super) fn none_left(&mut self, volumes: usize, out: &mut Vec<Action>) -> bool {
        if volumes == 0 || self.lost_volumes.len() < volumes {
            return false;
        }
        let why = self.lost_volumes.values().next().map_or("", String::as_str);
        self.over(Some(format!("the loss of its last volume: {why}")), out);
        true
    }
}
