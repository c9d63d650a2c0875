//! How fast writers may go: a curve over the journal's fill (R8: a filling journal slows writers down, it never fails
//! them).

use crate::host::SetHost;
use crate::sequencer::{Admission, Pace};
use holdfast_log::NodeLog;
use std::sync::Arc;
use std::time::Duration;

/// The whole part of the journal that client data may use.
const FULL: u64 = 1_000_000;

/// Fill of the journal at which the slowdown begins.
const SLOW_FROM: u64 = 600_000;

/// The pause of one entry two thirds of the way from [`SLOW_FROM`] to full is 4/3 of this.
const PAUSE_UNIT: Duration = Duration::from_millis(25);

/// The longest pause of one entry on the curve. Clients wait tens of seconds before they consider a device dead.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// Time between two checks of a full journal.
const FULL_RETRY: Duration = Duration::from_millis(20);

/// Extents of the journal index at which writers wait: limits its memory (about 100 bytes each, including the tree).
pub const INDEX_EXTENTS_MAX: u64 = 4_000_000;

const _: () = assert!(SLOW_FROM < FULL);

/// The pace for a fill of `used` out of `room`, in any unit.
///
/// With x from 0 (at `SLOW_FROM`) to 1 (full), the pause is `PAUSE_UNIT · x² / (1 − x)`, at most `PAUSE_MAX`. The
/// slowdown is small at first and grows as space runs out, so that writers get slower over minutes instead of stopping
/// suddenly.
pub fn pace_for(used: u64, room: u64) -> Pace {
    let fill = u128::from(used) * u128::from(FULL) / u128::from(room.max(1));
    let fill = u64::try_from(fill).unwrap_or(u64::MAX);
    if fill >= FULL {
        return Pace::Full(FULL_RETRY);
    }
    if fill < SLOW_FROM {
        return Pace::Go;
    }
    let (over, left, span) = (u128::from(fill - SLOW_FROM), u128::from(FULL - fill), u128::from(FULL - SLOW_FROM));
    let micros = PAUSE_UNIT.as_micros() * over * over / (span * left);
    Pace::After(Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).min(PAUSE_MAX))
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
    /// A sixteenth of the journal: a set with less is not the one that fills it.
    pub fn share_bytes(&self) -> u64 {
        self.log.usage().bound_bytes / 16
    }
}

impl Admission for JournalPace {
    fn pace(&self) -> Pace {
        let usage = self.log.usage();
        // The disk has no space for another file, whatever the limit says. The rest of the last file is reserved for
        // entries that free space. Client data there would block for ever, because the next checkpoint could not be
        // noted.
        if usage.stalled.is_some() {
            return Pace::Full(FULL_RETRY);
        }
        let room = usage.bound_bytes.saturating_sub(usage.reserve_bytes);
        let extents = self.host.with(|m| m.extents()) as u64;
        // The slower of the two; a full one is not compared but waits.
        match (pace_for(usage.used_bytes, room), pace_for(extents, INDEX_EXTENTS_MAX)) {
            (full @ Pace::Full(_), _) | (_, full @ Pace::Full(_)) => full,
            (Pace::After(a), Pace::After(b)) => Pace::After(a.max(b)),
            (Pace::Go, other) | (other, Pace::Go) => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use holdfast_control::cluster::SetEntry;
    use holdfast_log::{Entry, Identity, LogConfig};
    use holdfast_testkit::SimDisk;
    use holdfast_types::{Epoch, GroupId, LogId, MemberId, Name};
    use proptest::prelude::*;

    /// A disk with less space than the journal's limit: client data stops while there is still space for the entries of
    /// a checkpoint, which frees the covered part.
    #[test]
    fn a_disk_that_fills_below_the_bound_leaves_room_for_what_frees_room() -> Result<(), Box<dyn std::error::Error>> {
        const LIMIT: Duration = Duration::from_secs(20);
        let disk = SimDisk::new();
        let (file_bytes, bound_bytes, reserve_bytes) = (1 << 20, 64 << 20, 2 << 20);
        let config = LogConfig { file_bytes, bound_bytes, reserve_bytes, ..LogConfig::new("simulated") };
        let (log, _) = NodeLog::open_on(disk.clone(), config, Identity::default())?;
        let group = log.group(GroupId(1));
        let durable = |index: u64, bytes: usize| {
            let (sender, receiver) = std::sync::mpsc::channel();
            let entry = Entry { id: LogId::new(1, index), payload: Bytes::from(vec![7; bytes]) };
            group.append(vec![entry], move |result| {
                // The test may have ended.
                let _ = sender.send(result);
            });
            receiver.recv_timeout(LIMIT).map_err(|_| format!("entry {index} waits for room: {:?}", log.usage()))
        };
        let entry = SetEntry {
            name: Name::new("demo")?,
            policy: holdfast_control::policy::Policy::default(),
            store_url: "memory".into(),
            wrapped_key: Vec::new(),
            key_id: 1,
            created_by: MemberId(1),
            initial_members: vec![MemberId(1)],
            base_epoch: Epoch(0),
            generation: 1,
            restored: None,
            voters: Default::default(),
        };
        let host = SetHost::new(GroupId(1), &entry, &holdfast_control::set::Links::default());
        let pace = JournalPace::new(log.clone(), Arc::new(host));
        disk.set_room(Some(0));
        let mut index = 0;
        while !matches!(pace.pace(), Pace::Full(_)) {
            durable(index, 64 << 10)??;
            index += 1;
            assert!(index < 1000, "the disk is full: {:?}", log.usage());
        }
        assert!(log.usage().used_bytes < bound_bytes / 4, "far from the bound: {:?}", log.usage());
        // The checkpoint ends: its entries are committed, and the covered part is purged.
        for _ in 0..3 {
            durable(index, 4 << 10)??;
            index += 1;
        }
        let files = disk.names().len();
        group.purge_later(LogId::new(1, index - 1))?;
        let until = |what: &str, holds: &dyn Fn() -> bool| {
            let begun = std::time::Instant::now();
            while !holds() {
                assert!(begun.elapsed() < LIMIT, "{what}: {:?}", log.usage());
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        until("a file is freed", &|| disk.names().len() < files);
        disk.set_room(Some(1));
        until("and used again", &|| log.usage().stalled.is_none());
        assert_eq!(pace.pace(), Pace::Go);
        log.close();
        Ok(())
    }

    /// The pace as one number, for comparisons; waiting for space is slower than any pause.
    fn pause(pace: Pace) -> Duration {
        match pace {
            Pace::Go => Duration::ZERO,
            Pace::After(pause) => pause,
            Pace::Full(_) => Duration::MAX,
        }
    }

    #[test]
    fn the_curve_at_its_ends() {
        assert_eq!(pace_for(0, 100), Pace::Go);
        assert_eq!(pace_for(599, 1000), Pace::Go);
        assert!(pause(pace_for(601, 1000)) < Duration::from_millis(1), "hardly felt at first");
        assert_eq!(pause(pace_for(800, 1000)), PAUSE_UNIT / 2);
        // Slow long before it is full, without a sudden stop.
        assert!(pause(pace_for(990, 1000)) > PAUSE_MAX / 3);
        assert_eq!(pace_for(999, 1000), Pace::After(PAUSE_MAX));
        assert_eq!(pace_for(1000, 1000), Pace::Full(FULL_RETRY));
        assert_eq!(pace_for(5, 0), Pace::Full(FULL_RETRY));
        assert_eq!(pace_for(u64::MAX, u64::MAX), Pace::Full(FULL_RETRY));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// A smooth curve: it never falls, it never jumps, and one more thousandth of fill costs at most a quarter of
        /// the longest pause.
        #[test]
        fn more_fill_is_never_faster_and_never_much_slower(room in 1_u64 << 20..1 << 50, at in 0_u64..1_000_000, step in 0_u64..1000) {
            let used = |fill: u64| u64::try_from(u128::from(room) * u128::from(fill) / u128::from(FULL)).unwrap_or(u64::MAX);
            let (less, more) = (pause(pace_for(used(at), room)), pause(pace_for(used(at + step), room)));
            prop_assert!(less <= more, "{less:?} at {at}, {more:?} at {}", at + step);
            prop_assert!(less <= PAUSE_MAX);
            if at + step < FULL {
                prop_assert!(more - less <= PAUSE_MAX / 4, "{less:?} at {at}, {more:?} at {}", at + step);
            } else {
                // The last step before full: writers that wait for space from here on were already at the slowest pace.
                prop_assert!(at < FULL - 1000 || less == PAUSE_MAX, "{less:?} at {at}");
            }
        }

        /// The longer the store is unavailable, the more slowly the remaining space is used: each tenth of the slow
        /// part takes longer than the one before.
        #[test]
        fn each_tenth_of_what_is_left_lasts_longer(room in 1_u64 << 20..1 << 40, entries in 10_u64..1000) {
            let tenth = |n: u64| -> Duration {
                let part = (FULL - SLOW_FROM) / 10;
                let fill = |i: u64| SLOW_FROM + n * part + part * i / entries;
                (0..entries).map(|i| pause(pace_for(u64::try_from(u128::from(room) * u128::from(fill(i)) / u128::from(FULL)).unwrap_or(0), room))).sum()
            };
            for n in 1..10 {
                prop_assert!(tenth(n) > tenth(n - 1), "{n}: {:?} after {:?}", tenth(n), tenth(n - 1));
            }
        }
    }
}
