//! Random numbers from a seed.

/// Increment of the state at each draw.
pub const STEP: u64 = 0x9E37_79B9_7F4A_7C15;

/// Output function of SplitMix64: the same on every machine and in every version.
pub fn mix(state: u64) -> u64 {
    let z = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A separate stream of draws, so that one part's draws do not shift another's.
#[derive(Clone, Debug, Default)]
pub struct Rng(u64);

impl Rng {
    /// The stream `name` of `seed`.
    pub fn new(seed: u64, name: u64) -> Self {
        Self(mix(seed.wrapping_mul(STEP).wrapping_add(name)))
    }

    /// 64 bits.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// Below `n`, which is not 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n
    }

    /// From `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True with this probability in thousandths.
    pub fn chance(&mut self, thousandths: u64) -> bool {
        self.below(1000) < thousandths
    }

    /// One of `of`, which is not empty.
    pub fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    /// In another order.
    pub fn shuffle<T>(&mut self, of: &mut [T]) {
        for at in (1..of.len()).rev() {
            of.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}
