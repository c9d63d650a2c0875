//! Random numbers from a seed: the same seed gives the same numbers on every machine (splitmix64).

use anyhow::{Context, Result};

/// Environment variable with the seed of a run. Without it each run has a new one.
const SEED: &str = "HOLDFAST_SEED";

/// The seed of this run: `HOLDFAST_SEED`, or the Unix time in seconds. Fails when the variable is not a number.
pub fn of_run() -> Result<u64> {
    match std::env::var(SEED) {
        Ok(text) => text.parse().with_context(|| format!("{SEED}: found {text:?}, expected a number")),
        Err(_) => Ok(std::time::UNIX_EPOCH.elapsed()?.as_secs()),
    }
}

/// A random number generator.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    /// A generator for `seed`; different `stream` values give independent numbers.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut seeded = Self(seed ^ stream.wrapping_mul(0xd1b5_4a32_d192_ed03));
        seeded.next();
        seeded
    }

    /// The next number.
    #[allow(clippy::should_implement_trait, reason = "it never ends: no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`, which is at least 1. (The bias is below 2^-40 for the small numbers that are asked for here.)
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// From `low` up to and including `high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True with a probability of `percent`.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// Shuffles the items.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = usize::try_from(self.below(i as u64 + 1)).unwrap_or(0);
            items.swap(i, j);
        }
    }
}
