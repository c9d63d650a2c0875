//! Read-ahead: predicts the next reads of a sequential or strided reader.
//!
//! AHEAD-A1  Nothing is prefetched before three reads have shown a pattern: random reads cause no extra requests.
//! AHEAD-A2  A reader is sequential if its reads lie close behind one another and skip little. Requests that are in
//!     flight together, on several connections, may arrive in any order. The prefetch window doubles up to a limit; it
//!     is requested in pieces of at least half of it.
//! AHEAD-A3  A reader is strided (forward or backward) if its last three reads lie the same distance apart. Some of its
//!     next reads are prefetched.
//! AHEAD-A4  A fixed number of readers is tracked, the most recent ones: memory is bounded.
//! AHEAD-A5  A sequential reader that has come far is a scan (a backup, a sequential scan of a large table), also where
//!     nothing is prefetched. It seldom reads the same place twice, so caches need not keep its data. A short
//!     sequential read is no scan, and neither is a range that is read again and again.

use holdfast_types::{Lba, Sectors, VolumeId};

/// Readers that are tracked.
const STREAMS: usize = 16;

/// Reads that establish a pattern.
const SHOWN: u32 = 3;

/// Largest distance in sectors between a request and the end of the one before (1 MiB): several are in flight at once.
const NEAR: u64 = 2048;

/// First prefetch window, in sectors (256 KiB).
const FIRST: u64 = 512;

/// Reads of a strided reader that are prefetched.
const STEPS: u32 = 8;

/// Distance in sectors after which a sequential reader is a scan (8 MiB). Shorter reads take little space in caches.
const SCAN: u64 = 16_384;

/// A reader has ended after this many reads behind its furthest one: reads of 4 KiB that fit into NEAR.
const BEHIND: u32 = 256;

// At least half of 64 times NEAR is kept of the way of a reader that has come further.
const _: () = assert!(SCAN <= 32 * NEAR);

/// Result of a read: prefetch hints, and whether its reader is a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadHints {
    /// Ranges to prefetch now, in the order in which they will be read; may lie beyond the end of the volume.
    pub next: Vec<(Lba, Sectors)>,
    /// The reader is a scan (AHEAD-A5).
    pub scans: bool,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    volume: VolumeId,
    /// Start of its first read, and sectors read since: they show how much it skips.
    from: u64,
    read: u64,
    /// Where its last read began.
    last: u64,
    /// Where its furthest read ended.
    end: u64,
    /// Reads that continued where an earlier one ended, and reads behind the furthest one since the last of these.
    in_order: u32,
    behind: u32,
    /// Distance between its last two reads, and how often in a row.
    step: i64,
    in_steps: u32,
    /// Prefetched up to this sector, or this many steps beyond the last read.
    asked: u64,
    asked_steps: u32,
    /// Sectors beyond the last read that are prefetched.
    window: u64,
    used: u64,
}

/// The readers of one set.
#[derive(Debug)]
pub struct Streams {
    streams: Vec<Stream>,
    window_max: u64,
    clock: u64,
}

impl Streams {
    /// Asks for at most `window` beyond a read.
    #[must_use]
    pub const fn new(window: Sectors) -> Self {
        Self { streams: Vec::new(), window_max: window.0, clock: 0 }
    }

    /// Notes a read of `sectors` sectors from `lba` on.
    pub fn read(&mut self, volume: VolumeId, lba: Lba, sectors: Sectors) -> ReadHints {
        if sectors.0 == 0 {
            return ReadHints::default();
        }
        self.clock += 1;
        let (clock, window_max) = (self.clock, self.window_max);
        let (from, end) = (lba.0, lba.0.saturating_add(sectors.0));
        let of_volume = |s: &&mut Stream| s.volume == volume;
        // AHEAD-A3 before AHEAD-A2: steps may be small.
        if let Some(stream) = self.streams.iter_mut().filter(of_volume).find(|s| s.goes_on_in_steps(from)) {
            stream.used = clock;
            return ReadHints { next: stream.step_on(from, sectors.0, window_max), scans: false };
        }
        if let Some(stream) = self.streams.iter_mut().filter(of_volume).find(|s| s.is_near(from)) {
            stream.used = clock;
            let next = stream.go_on(from, end, window_max);
            return ReadHints { next, scans: stream.scans() };
        }
        // Distance from the last read of the nearest reader.
        let before = self.streams.iter().filter(|s| s.volume == volume).max_by_key(|s| s.used).map(|s| s.last);
        let step = before.map_or(0, |before| from.wrapping_sub(before) as i64);
        let stream = Stream {
            volume,
            from,
            read: sectors.0,
            last: from,
            end,
            in_order: 1,
            behind: 0,
            step,
            in_steps: if step == 0 { 1 } else { 2 },
            asked: end,
            asked_steps: 0,
            window: FIRST / 2,
            used: clock,
        };
        if self.streams.len() < STREAMS {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|s| s.used) {
            *oldest = stream;
        }
        ReadHints::default()
    }
}

impl Stream {
    fn goes_on_in_steps(&self, from: u64) -> bool {
        self.step != 0 && self.in_order < SHOWN && self.last.checked_add_signed(self.step) == Some(from)
    }

    fn is_near(&self, from: u64) -> bool {
        from.abs_diff(self.end) <= NEAR
    }

    /// AHEAD-A5. Counts distance, not bytes: a reader of the same place again and again is no scan.
    fn scans(&self) -> bool {
        self.in_order >= SHOWN && self.behind < BEHIND && self.end.saturating_sub(self.from) >= SCAN
    }

    fn step_on(&mut self, from: u64, sectors: u64, window_max: u64) -> Vec<(Lba, Sectors)> {
        (self.last, self.end, self.from) = (from, from.saturating_add(sectors), self.from.min(from));
        self.in_steps = self.in_steps.saturating_add(1);
        self.asked_steps = self.asked_steps.saturating_sub(1);
        let most = u32::try_from(window_max / sectors).unwrap_or(u32::MAX).min(STEPS);
        if self.in_steps < SHOWN || self.asked_steps > most / 2 {
            return Vec::new();
        }
        let next = |n: u32| {
            let place = from.checked_add_signed(self.step.checked_mul(i64::from(n))?)?;
            Some((Lba(place), Sectors(sectors)))
        };
        let asked = (self.asked_steps + 1..=most).map_while(next).collect();
        self.asked_steps = self.asked_steps.max(most);
        asked
    }

    fn go_on(&mut self, from: u64, end: u64, window_max: u64) -> Vec<(Lba, Sectors)> {
        self.read = self.read.saturating_add(end - from);
        let step = from.wrapping_sub(self.last) as i64;
        self.last = from;
        if end <= self.end {
            // Back in small steps, perhaps.
            (self.step, self.in_steps) = (step, 2);
            self.behind = self.behind.saturating_add(1);
            return Vec::new();
        }
        (self.end, self.behind) = (end, 0);
        self.in_order = self.in_order.saturating_add(1);
        // It skips more than it reads: not sequential. A new reader may begin here.
        if self.read.saturating_mul(2) < end - self.from.min(end) {
            (self.from, self.read, self.in_order) = (from, end - from, 1);
            return Vec::new();
        }
        // Far behind, the beginning says little.
        if self.read > 64 * NEAR {
            (self.from, self.read) = (self.from.min(end) + end.saturating_sub(self.from) / 2, self.read / 2);
        }
        if self.in_order < SHOWN {
            return Vec::new();
        }
        let asked = self.asked.max(end);
        // Half of the window is still ahead of it.
        if asked - end > self.window / 2 {
            return Vec::new();
        }
        self.window = (self.window * 2).min(window_max);
        let upto = end.saturating_add(self.window);
        if upto <= asked {
            return Vec::new();
        }
        self.asked = upto;
        vec![(Lba(asked), Sectors(upto - asked))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const V: VolumeId = VolumeId(1);
    const WINDOW: u64 = 8192;

    fn streams() -> Streams {
        Streams::new(Sectors(WINDOW))
    }

    fn read(streams: &mut Streams, from: u64, sectors: u64) -> Vec<(u64, u64)> {
        streams.read(V, Lba(from), Sectors(sectors)).next.into_iter().map(|(lba, n)| (lba.0, n.0)).collect()
    }

    fn scans(streams: &mut Streams, from: u64, sectors: u64) -> bool {
        streams.read(V, Lba(from), Sectors(sectors)).scans
    }

    #[test]
    fn a1_a2_a_reader_in_order_is_run_ahead_of_from_its_third_read_on() {
        let mut streams = streams();
        assert_eq!(read(&mut streams, 1000, 256), []);
        assert_eq!(read(&mut streams, 1256, 256), []);
        assert_eq!(read(&mut streams, 1512, 256), [(1768, 512)], "256 KiB first");
        assert_eq!(read(&mut streams, 1768, 256), [(2280, 768)], "the window doubles");
        let mut upto = 3048;
        for n in 4..400 {
            for (from, sectors) in read(&mut streams, 1000 + n * 256, 256) {
                assert_eq!(from, upto, "expected no gap and no overlap");
                upto = from + sectors;
            }
            let end = 1256 + n * 256;
            assert!(upto > end && upto <= end + WINDOW, "{n}: asked for up to {upto}, read up to {end}");
        }
        assert!(upto - (1000 + 400 * 256) >= WINDOW / 2);
    }

    #[test]
    fn a2_requests_under_way_at_once_may_come_in_any_order() {
        let mut streams = streams();
        let mut asked = 0;
        for base in (0..200).step_by(8) {
            for n in [1, 0, 3, 2, 7, 5, 6, 4] {
                asked += read(&mut streams, (base + n) * 256, 256).iter().map(|(_, n)| n).sum::<u64>();
            }
        }
        assert!(asked >= 190 * 256, "{asked}");
    }

    #[test]
    fn a3_equal_steps_forward_and_back() {
        for step in [4096_i64, -4096, -8, 100_000] {
            let mut streams = streams();
            let mut wanted = BTreeSet::new();
            let mut missed = 0;
            for n in 0..50_i64 {
                let place = 10_000_000_u64.checked_add_signed(n * step).unwrap();
                if !wanted.remove(&place) {
                    missed += 1;
                }
                for (from, sectors) in read(&mut streams, place, 8) {
                    assert_eq!(sectors, 8);
                    assert!(wanted.insert(from), "{step}: asked for {from} twice");
                }
            }
            assert!(missed <= 3, "{step}: {missed} of 50 reads were not prefetched, expected at most 3");
            assert!(wanted.len() <= STEPS as usize);
        }
        let mut at_the_start = streams();
        for place in [3000, 2000, 1000] {
            drop(read(&mut at_the_start, place * 8, 8));
        }
        assert_eq!(read(&mut at_the_start, 0, 8), [], "expected no prefetch before the volume's start");
    }

    #[test]
    fn a_reader_that_leaves_out_most_is_not_in_order() {
        let mut streams = streams();
        for n in 0..100 {
            // Unequal distances, so that this is no strided reader either.
            let asked = read(&mut streams, n * 1000 + (n * n) % 37 * 8, 8);
            assert_eq!(asked, [], "read {n}");
        }
    }

    #[test]
    fn back_and_on_again_after_much_was_read_at_one_place() {
        let mut streams = streams();
        for _ in 0..9000 {
            drop(read(&mut streams, 10_000, 16));
        }
        for from in [9000, 8000, 8016, 8032, 7000, 6000, 5000, 5016, 20_000] {
            drop(read(&mut streams, from, 16));
        }
    }

    #[test]
    fn off_is_off() {
        let mut streams = Streams::new(Sectors(0));
        for n in 0..10 {
            assert_eq!(read(&mut streams, n * 8, 8), []);
        }
    }

    #[test]
    fn a5_a_reader_in_order_that_has_come_far_is_a_scan() {
        for window in [WINDOW, 0] {
            let mut streams = Streams::new(Sectors(window));
            // Among random reads, and for as long as it continues: 512 MiB.
            for n in 0..4096 {
                let far = (n + 1) * 256 >= SCAN;
                assert_eq!(scans(&mut streams, n * 256, 256), far, "window {window}, read {n}");
                assert!(!scans(&mut streams, (1 << 30) + (n * n) % 1_000_003 * 8, 8), "a random read is no scan");
            }
        }
        // Several requests under way at once, in any order.
        let mut streams = streams();
        let mut found = 0;
        for base in (0..400).step_by(8) {
            for n in [1, 0, 3, 2, 7, 5, 6, 4] {
                found += u64::from(scans(&mut streams, (base + n) * 256, 256));
            }
        }
        assert!(found >= 400 - SCAN / 256 - 16, "{found}");
    }

    #[test]
    fn a5_what_is_read_where_a_scan_has_ended_is_none() {
        let mut streams = streams();
        for n in 0..1000 {
            drop(read(&mut streams, n * 256, 256));
        }
        let hot = (0..10_000_u64).filter(|n| scans(&mut streams, 255_000 + (n * n + n / 7) % 120 * 8, 8));
        let found = hot.count();
        assert!(found < BEHIND as usize, "{found} of 10,000");
        assert!(scans(&mut streams, 256_000, 256), "a scan that continues elsewhere is still a scan");
    }

    #[test]
    fn a5_what_is_no_scan() {
        let mut short = streams();
        for n in 0..SCAN / 256 - 1 {
            assert!(!scans(&mut short, n * 256, 256), "8 MiB in order are no scan yet");
        }
        let mut steps = streams();
        for n in 0..10_000 {
            assert!(!scans(&mut steps, n * 4096, 8), "a strided reader is no scan");
        }
        // A small hot table: gigabytes are read, always from the same place.
        let mut hot = streams();
        for n in 0..100_000_u64 {
            assert!(!scans(&mut hot, (n * n + n / 7) % 120 * 16, 16), "read {n}");
        }
    }

    proptest! {
        /// AHEAD-A1, AHEAD-A4: random reads cause almost no prefetch, and memory is bounded.
        #[test]
        fn scattered_reads_cost_little(places in prop::collection::vec(0_u64..1 << 31, 300)) {
            let mut streams = streams();
            let asked: usize = places.iter().map(|place| read(&mut streams, place * 8, 16).len()).sum();
            prop_assert!(asked <= 3, "{asked} of 300");
            prop_assert!(streams.streams.len() <= STREAMS);
        }

        /// A sequential reader is found among random readers, also of another volume.
        #[test]
        fn one_in_order_among_scattered_ones(places in prop::collection::vec(1_u64 << 24..1 << 31, 400), every in 1_usize..6) {
            let mut streams = streams();
            let (mut at, mut asked) = (0_u64, BTreeSet::new());
            let mut missed = 0;
            for (n, place) in places.iter().enumerate() {
                drop(read(&mut streams, place * 8, 8));
                drop(streams.read(VolumeId(2), Lba(at), Sectors(8)));
                if n % every == 0 {
                    missed += u32::from(!asked.remove(&at));
                    for (from, sectors) in read(&mut streams, at * 256, 256) {
                        asked.extend(from / 256..(from + sectors) / 256);
                    }
                    at += 1;
                }
            }
            prop_assert!(missed <= 4, "{missed} of {at}");
        }

        /// For any reads, prefetched ranges lie within the window and do not overflow.
        #[test]
        fn bounded_whatever_is_read(reads in prop::collection::vec((any::<u64>(), 1_u64..1 << 16, 0_u8..3), 1..200)) {
            let mut streams = streams();
            let mut last = 0_u64;
            for (anywhere, sectors, how) in reads {
                let from = match how { 0 => anywhere, 1 => last, _ => u64::MAX - anywhere % 4096 };
                last = from.saturating_add(sectors);
                let asked: u64 = read(&mut streams, from, sectors).iter().map(|(_, n)| n).fold(0, |sum, n| sum.saturating_add(*n));
                prop_assert!(asked <= WINDOW.max(sectors * u64::from(STEPS)));
            }
        }
    }
}
