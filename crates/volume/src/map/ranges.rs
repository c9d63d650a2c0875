//! Ranges of numbers: sorted, disjoint, never adjacent.
//!
//! Encoded: count, then each: gap since the end of the range before (at least 1, except for the first), length (at
//! least 1).

use crate::wire::{self, Reader, WireError};
use std::collections::BTreeMap;

/// A gap and a length: at least one byte each.
const RANGE_WIRE_BYTES_MIN: usize = 2;

/// First number of each range, and the first number behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u32, u32>);

impl Ranges {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// In order: first number, first number behind.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().map(|(from, to)| (*from, *to))
    }

    /// The ranges within `from..to`, in order.
    pub(super) fn within(&self, from: u32, to: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        // A range that begins before may reach into it.
        let first = self.0.range(..from).next_back().map_or(from, |(start, _)| *start);
        let found = self.0.range(first..to.max(first)).map(move |(a, b)| ((*a).max(from), (*b).min(to)));
        found.filter(|(a, b)| a < b)
    }

    pub(super) fn contains(&self, number: u32) -> bool {
        self.0.range(..=number).next_back().is_some_and(|(_, end)| number < *end)
    }

    /// Whether all of `from..to` is in.
    pub(super) fn covers(&self, from: u32, to: u32) -> bool {
        from >= to || self.0.range(..=from).next_back().is_some_and(|(_, end)| to <= *end)
    }

    pub(super) fn insert(&mut self, from: u32, to: u32) {
        if from >= to {
            return;
        }
        let (mut start, mut end) = (from, to);
        // Also ranges that only touch it: adjacent ranges become one.
        let first = self.0.range(..from).next_back().filter(|(_, end)| **end >= from).map_or(from, |(start, _)| *start);
        let joined: Vec<u32> = self.0.range(first..=to).map(|(start, _)| *start).collect();
        for at in joined {
            if let Some(until) = self.0.remove(&at) {
                (start, end) = (start.min(at), end.max(until));
            }
        }
        self.0.insert(start, end);
    }

    pub(super) fn remove(&mut self, from: u32, to: u32) {
        if from >= to {
            return;
        }
        let touched: Vec<(u32, u32)> = {
            let first = self.0.range(..from).next_back().map_or(from, |(start, _)| *start);
            self.0.range(first..to.max(first)).map(|(a, b)| (*a, *b)).filter(|(_, b)| *b > from).collect()
        };
        for (start, end) in touched {
            self.0.remove(&start);
            if start < from {
                self.0.insert(start, from);
            }
            if end > to {
                self.0.insert(to, end);
            }
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        wire::put(out, self.0.len() as u64);
        let mut before = 0;
        for (from, to) in self.iter() {
            wire::put(out, (from - before).into());
            wire::put(out, (to - from).into());
            before = to;
        }
    }

    /// Ranges of numbers below `end`.
    pub(super) fn read(reader: &mut Reader<'_>, end: u32) -> Result<Self, WireError> {
        let count = reader.count("count of ranges", RANGE_WIRE_BYTES_MIN, end.into())?;
        let (mut ranges, mut before) = (BTreeMap::new(), 0);
        for place in 0..count {
            let gap = reader.number("gap before a range", u64::from(place > 0), (end - before).into())? as u32;
            let from = before + gap;
            let length = reader.number("length of a range", 1, (end - from).into())? as u32;
            before = from + length;
            ranges.insert(from, before);
        }
        Ok(Self(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn bits(ranges: &Ranges) -> Vec<bool> {
        (0..64).map(|number| ranges.contains(number)).collect()
    }

    proptest! {
        #[test]
        fn ranges_are_an_array_of_bits(changes in vec((0_u32..64, 0_u32..20, any::<bool>()), 0..40), from in 0_u32..64, len in 0_u32..64) {
            let (mut ranges, mut flat) = (Ranges::default(), vec![false; 64]);
            for (from, len, insert) in changes {
                let to = (from + len).min(64);
                if insert { ranges.insert(from, to) } else { ranges.remove(from, to) }
                flat[from as usize..to as usize].fill(insert);
            }
            prop_assert_eq!(bits(&ranges), &flat[..]);
            let all: Vec<_> = ranges.iter().collect();
            prop_assert!(all.iter().all(|(a, b)| a < b) && all.windows(2).all(|w| w[0].1 < w[1].0), "{:?}", all);
            let to = (from + len).min(64);
            let mut seen = vec![false; 64];
            ranges.within(from, to).for_each(|(a, b)| seen[a as usize..b as usize].fill(true));
            let expected: Vec<bool> = (0..64).map(|n| flat[n as usize] && (from..to).contains(&n)).collect();
            prop_assert_eq!(seen, expected);
            prop_assert_eq!(ranges.covers(from, to), flat[from as usize..to.max(from) as usize].iter().all(|b| *b));
            let mut out = Vec::new();
            ranges.put(&mut out);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(Ranges::read(&mut reader, 64), Ok(ranges));
            prop_assert_eq!(reader.end(), Ok(()));
        }
    }
}
