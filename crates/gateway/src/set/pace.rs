//! How fast writers may go: a curve over the journal's fill (R8: a filling journal slows writers down, never fails them).

use crate::set::host::SetHost;
use crate::set::sequencer::{Admission, Pace};
use holdfast_log::NodeLog;
use std::sync::Arc;
use std::time::Duration;

/// Fill of the journal, in thousandths of what client data may use, from which on writers are slowed down.
const SLOW_FROM: u64 = 600;

/// The longest pause of one entry on the curve.
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// Between two looks at a full journal.
const FULL_RETRY: Duration = Duration::from_millis(20);

/// Extents of the journal index at which writers wait: bounds its memory (about 100 bytes each with the tree around them).
pub const INDEX_EXTENTS_MAX: u64 = 4_000_000;

const _: () = assert!(SLOW_FROM < 1000);

/// The pace for a fill of `used` out of `room`, in any unit.
pub fn pace_for(used: u64, room: u64) -> Pace {
    let fill = used.saturating_mul(1000) / room.max(1);
    if fill >= 1000 {
        return Pace::Full(FULL_RETRY);
    }
    if fill < SLOW_FROM {
        return Pace::Go;
    }
    // Quadratic: hardly felt at first, PAUSE_MAX just below full.
    let over = fill - SLOW_FROM;
    let span = 1000 - SLOW_FROM;
    let micros = u64::try_from(PAUSE_MAX.as_micros()).unwrap_or(u64::MAX) * over * over / (span * span);
    Pace::After(Duration::from_micros(micros))
}

/// The pace of one set: the node's journal, and the set's own index.
pub struct JournalPace {
    log: NodeLog,
    host: Arc<SetHost>,
}

impl JournalPace {
    /// The pace of `host`'s set on the node of `log`.
    pub fn new(log: NodeLog, host: Arc<SetHost>) -> Self {
        Self { log, host }
    }
}

impl JournalPace {
    /// A sixteenth of the journal: a set that holds less is not what fills it.
    pub fn share_bytes(&self) -> u64 {
        self.log.usage().bound_bytes / 16
    }
}

impl Admission for JournalPace {
    fn pace(&self) -> Pace {
        let usage = self.log.usage();
        let room = usage.bound_bytes.saturating_sub(usage.reserve_bytes);
        let extents = self.host.with(|m| m.extents()) as u64;
        let by_bytes = usage.used_bytes.saturating_mul(1000) / room.max(1);
        let by_extents = extents.saturating_mul(1000) / INDEX_EXTENTS_MAX;
        pace_for(by_bytes.max(by_extents), 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_curve_rises_from_nothing_to_the_longest_pause() {
        assert_eq!(pace_for(0, 100), Pace::Go);
        assert_eq!(pace_for(599, 1000), Pace::Go);
        let mut last = Duration::ZERO;
        for used in 600..1000 {
            let Pace::After(pause) = pace_for(used, 1000) else { panic!("{used}") };
            assert!(pause >= last && pause <= PAUSE_MAX);
            last = pause;
        }
        assert!(last > PAUSE_MAX * 9 / 10);
        assert_eq!(pace_for(1000, 1000), Pace::Full(FULL_RETRY));
        assert_eq!(pace_for(5, 0), Pace::Full(FULL_RETRY));
    }
}
