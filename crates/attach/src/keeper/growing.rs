//! Of the volumes that grow under an attached set: which one the kernel is told of next, and what rests (`growth`).

use crate::machine::Moment;
use std::collections::BTreeMap;
use std::time::Duration;

/// Pause after a size could not be stored, or the kernel refused it.
pub(super) const PAUSE: Duration = Duration::from_secs(30);

/// The keeper's state of volumes that grow.
#[derive(Debug, Default)]
pub(super) struct Growing {
    /// The kernel is being told of one.
    pub(super) telling: bool,
    /// The kernel refused these, by the volume's place: it is not told again before that time.
    refused: BTreeMap<usize, Moment>,
    /// A size could not be stored: no other is stored before that time.
    pub(super) unkept: Option<Moment>,
}

impl Growing {
    /// Pure: of the volumes that are larger than their devices, the next one to tell the kernel of. Never refused ones
    /// come first, then those that rested longest: a device that takes no size delays no other.
    pub(super) fn turn(
        &self,
        now: Moment,
        larger: impl Iterator<Item = usize>,
        flows: impl Fn(usize) -> bool,
    ) -> Option<usize> {
        if self.telling {
            return None;
        }
        let until = |volume: &usize| self.refused.get(volume).copied();
        let mut rested: Vec<_> = larger.filter(|volume| until(volume).is_none_or(|until| until <= now)).collect();
        rested.sort_by_key(until);
        rested.into_iter().find(|volume| flows(*volume))
    }

    /// The kernel's answer to a size.
    pub(super) fn heard(&mut self, now: Moment, volume: usize, taken: bool) {
        self.telling = false;
        if taken {
            self.refused.remove(&volume);
        } else {
            self.refused.insert(volume, now.plus(PAUSE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_takes_no_size_keeps_no_other_waiting() {
        let mut growing = Growing::default();
        let turn =
            |growing: &Growing, now, volumes: &[usize]| growing.turn(Moment(now), volumes.iter().copied(), |_| true);
        let pause = u64::try_from(PAUSE.as_millis()).unwrap();
        assert_eq!(turn(&growing, 0, &[0, 1, 2]), Some(0));
        growing.telling = true;
        assert_eq!(turn(&growing, 0, &[0, 1, 2]), None, "GROWTH-G2: one at a time");
        growing.heard(Moment(10), 0, false);
        assert_eq!(turn(&growing, 10, &[0, 1, 2]), Some(1));
        growing.heard(Moment(20), 1, false);
        growing.heard(Moment(30), 2, true);
        assert_eq!(turn(&growing, 9 + pause, &[0, 1]), None, "both rest");
        assert_eq!(turn(&growing, 10 + pause, &[0, 1]), Some(0));
        growing.heard(Moment(50 + pause), 0, false);
        // Each attempt may take as long as the others rest: a device that was never refused is next, then the one that
        // was refused longest ago.
        let late = 50 + 2 * pause;
        assert_eq!(turn(&growing, late, &[0, 1]), Some(1));
        assert_eq!(turn(&growing, late, &[0, 1, 2]), Some(2));
        growing.heard(Moment(late), 1, true);
        assert_eq!(turn(&growing, late, &[0, 1]), Some(1), "it grew again, and nothing speaks against it");
    }

    /// GROWTH-G2, ATTACH-M8: stuck or lost devices are skipped, and only these.
    #[test]
    fn a_volume_that_does_not_flow_is_passed_over() {
        let growing = Growing::default();
        assert_eq!(growing.turn(Moment(0), 0..3, |volume| volume > 0), Some(1));
        assert_eq!(growing.turn(Moment(0), 0..3, |_| false), None);
        assert_eq!(growing.turn(Moment(0), 0..3, |_| true), Some(0));
    }
}
