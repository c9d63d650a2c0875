//! Swarm testing: each seed has a shape of its own. It turns some faults off and others far up, and changes rates,
//! sizes, clocks, the journal's bound and the number of sets. Random faults that are all alike rarely reach a state
//! that needs many of one kind and none of another.
//!
//! The seed alone decides the shape, by a stream of its own. A third of the seeds has the usual shape: its course is
//! the same as without this module.

use crate::rng::Rng;
use std::fmt;

/// Seeds in thousandths with the usual shape.
const USUAL: u64 = 333;
/// Probability in thousandths that a setting differs, in a seed of another shape.
const DIFFERS: u64 = 400;
/// The same for what is rare anywhere, too.
const RARE: u64 = 150;

/// The draws that decide a seed's shape. `None`: it has the usual one.
pub fn draws(seed: u64) -> Option<Rng> {
    let mut rng = Rng::new(seed, 40);
    (!rng.chance(USUAL)).then_some(rng)
}

/// One of `of` with this probability in thousandths; `None` where the setting is the usual one. It is drawn in any
/// case, so that a further setting changes no other one.
pub fn setting<T: Clone>(rng: &mut Rng, differs: u64, of: &[T]) -> Option<T> {
    let (differs, drawn) = (rng.chance(differs), rng.pick(of));
    differs.then_some(drawn)
}

/// The text of a shape with these differences from the usual one.
pub fn told(differs: &[String]) -> String {
    if differs.is_empty() { "usual".into() } else { differs.join(", ") }
}

/// How far the clocks of gateways drift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drift {
    /// Each as drawn.
    Usual,
    /// Not at all.
    Never,
    /// Each as far as the product allows for, forward or back.
    Far,
}

/// Most blocks of all writes under way. They may all become one entry, and an entry has to fit into a file of the
/// simulated journals (256 KiB), as the settings of a real gateway require.
const BLOCKS_UNDER_WAY: u64 = 48;

/// Most blocks of a write in the usual shape.
const BLOCKS: u64 = 4;

/// Requests of the set's owners, where they differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Most blocks of a write: the sizes of entries.
    pub blocks: Option<u64>,
    /// Most writes under way.
    pub writes: Option<usize>,
}

impl Load {
    /// Most blocks of a write.
    pub fn blocks(&self) -> u64 {
        self.blocks.unwrap_or(BLOCKS)
    }

    /// Most writes under way, where the usual shape has this number.
    pub fn writes(&self, usual: usize) -> usize {
        self.writes.unwrap_or(usual).min((BLOCKS_UNDER_WAY / self.blocks()) as usize)
    }
}

/// The settings of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Probability in thousandths of each fault to be in the mix, where it differs.
    pub kinds: Option<u64>,
    /// How many times more one fault of a mix is in it.
    pub favourite: usize,
    /// Pauses between faults, in percent of the usual ones.
    pub pauses: u64,
    /// Requests in thousandths that a failing store refuses, where it differs.
    pub store_rate: Option<u16>,
    pub drift: Drift,
    /// Bytes of a gateway's journal.
    pub journal: u64,
    /// Bytes after which a gateway uploads.
    pub upload: u64,
    /// Sets besides the one that has clients.
    pub sets: usize,
    pub load: Load,
    /// Boot clocks go back, as one more fault of the mix.
    pub clocks_back: bool,
}

impl Shape {
    /// Of runs that need their own mix of faults: scenes, and searches for a known bug.
    pub const USUAL: Self = Self {
        kinds: None,
        favourite: 0,
        pauses: 100,
        store_rate: None,
        drift: Drift::Usual,
        journal: 6 << 20,
        upload: 256 << 10,
        sets: 0,
        load: Load { blocks: None, writes: None },
        clocks_back: false,
    };

    /// The shape of a seed.
    pub fn of(seed: u64) -> Self {
        let Some(mut rng) = draws(seed) else { return Self::USUAL };
        let mut one = |of: &[u64]| setting(&mut rng, DIFFERS, of);
        let usual = Self::USUAL;
        Self {
            kinds: one(&[120, 250, 900]),
            favourite: one(&[2, 6, 15]).map_or(usual.favourite, |times| times as usize),
            pauses: one(&[30, 50, 300]).unwrap_or(usual.pauses),
            store_rate: one(&[5, 700, 900]).map(|rate| rate as u16),
            drift: match one(&[0, 1, 1]) {
                None => usual.drift,
                Some(0) => Drift::Never,
                Some(_) => Drift::Far,
            },
            journal: one(&[3 << 20, 4 << 20, 32 << 20]).unwrap_or(usual.journal),
            upload: one(&[32 << 10, 64 << 10, 1 << 20]).unwrap_or(usual.upload),
            sets: one(&[1, 1, 3]).map_or(usual.sets, |sets| sets as usize),
            load: Load { blocks: one(&[1, 12, 24]), writes: one(&[1, 3, 32]).map(|writes| writes as usize) },
            clocks_back: setting(&mut rng, RARE, &[true]).is_some(),
        }
    }

    /// A mix of these faults. `usual`: probability of each in thousandths in the usual shape.
    pub fn mix<T: Copy>(&self, rng: &mut Rng, usual: u64, all: &[T]) -> Vec<T> {
        let chance = self.kinds.unwrap_or(usual);
        let mut mix: Vec<T> = all.iter().copied().filter(|_| rng.chance(chance)).collect();
        if self.favourite > 0 && !mix.is_empty() {
            let one = rng.pick(&mix);
            mix.extend(std::iter::repeat_n(one, self.favourite));
        }
        mix
    }

    /// The mean time between two faults, where the usual shape has this one.
    pub fn pause(&self, usual: u64) -> u64 {
        usual * self.pauses / 100
    }

    /// The rate of a clock in millionths, where the usual shape has this one.
    pub fn drift_ppm(&self, usual: i64, farthest: i64, gateway: usize) -> i64 {
        match self.drift {
            Drift::Usual => usual,
            Drift::Never => 0,
            Drift::Far if gateway.is_multiple_of(2) => farthest,
            Drift::Far => -farthest,
        }
    }
}

impl fmt::Display for Shape {
    /// Lists the settings that differ from the usual shape.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Self::USUAL;
        let differs = [
            (self.kinds != usual.kinds, format!("each fault in {} of 1000 mixes", self.kinds.unwrap_or(0))),
            (self.favourite != usual.favourite, format!("one fault {} times more", self.favourite)),
            (self.pauses != usual.pauses, format!("{} % of the pauses", self.pauses)),
            (self.store_rate != usual.store_rate, format!("stores fail {} of 1000", self.store_rate.unwrap_or(0))),
            (self.drift != usual.drift, format!("clocks drift: {:?}", self.drift)),
            (self.journal != usual.journal, format!("journals of {} KiB", self.journal >> 10)),
            (self.upload != usual.upload, format!("uploads of {} KiB", self.upload >> 10)),
            (self.sets != usual.sets, format!("{} sets more", self.sets)),
            (
                self.load.blocks != usual.load.blocks,
                format!("writes of up to {} blocks", self.load.blocks.unwrap_or(0)),
            ),
            (self.load.writes != usual.load.writes, format!("up to {} writes at once", self.load.writes.unwrap_or(0))),
            (self.clocks_back, "boot clocks go back".to_string()),
        ];
        let differs: Vec<String> = differs.into_iter().filter(|(differs, _)| *differs).map(|(_, text)| text).collect();
        f.write_str(&told(&differs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_third_of_the_seeds_is_usual_and_each_setting_differs_in_some() {
        let shapes: Vec<Shape> = (0..3000).map(Shape::of).collect();
        let usual = shapes.iter().filter(|shape| **shape == Shape::USUAL).count();
        assert!((800..1200).contains(&usual), "{usual} of 3000 seeds have the usual shape");
        let said: BTreeSet<String> = shapes
            .iter()
            .flat_map(|shape| shape.to_string().split(", ").map(str::to_string).collect::<Vec<_>>())
            .collect();
        // Three values for each of eight settings, two of clocks, two of further sets, clocks that go back; and the
        // usual shape.
        assert_eq!(said.len(), 8 * 3 + 2 + 2 + 1 + 1, "{said:?}");
    }

    #[test]
    fn the_usual_shape_draws_nothing_more() {
        let (mut plain, mut shaped) = (Rng::new(7, 1), Rng::new(7, 1));
        let all: Vec<u32> = (0..20).collect();
        let expected: Vec<u32> = all.iter().copied().filter(|_| plain.chance(500)).collect();
        assert_eq!(Shape::USUAL.mix(&mut shaped, 500, &all), expected);
        assert_eq!(plain.draw(), shaped.draw());
    }

    #[test]
    fn a_favourite_is_in_the_mix_more_often() {
        let shape = Shape { kinds: Some(1000), favourite: 5, ..Shape::USUAL };
        let mix = shape.mix(&mut Rng::new(1, 1), 0, &[1, 2, 3]);
        assert_eq!(mix.len(), 8);
        let most = [1, 2, 3].map(|kind| mix.iter().filter(|found| **found == kind).count()).into_iter().max();
        assert_eq!(most, Some(6));
    }
}
