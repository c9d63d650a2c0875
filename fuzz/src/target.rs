//! What a target is, and what holds of each: its memory has a bound.

use holdfast_testkit::heap;

/// Memory that a target may use at once, in bytes. Twice what is needed: a buffer that grows exists twice for a moment.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// For an empty input.
    pub base: usize,
    /// For each byte of input.
    pub each: usize,
}

/// A decoder, and what must hold of it.
#[derive(Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// What it decodes.
    pub about: &'static str,
    /// Longest input worth trying, in bytes.
    pub bytes_max: usize,
    pub(crate) bound: Bound,
    /// Whether something of the input was accepted.
    pub(crate) run: fn(&[u8]) -> bool,
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
}

impl Target {
    /// Runs it. Returns whether something of the input was accepted.
    ///
    /// # Panics
    /// When something does not hold: a finding.
    pub fn check(&self, input: &[u8]) -> bool {
        let (accepted, peak) = heap::peak(|| (self.run)(input));
        let most = self.bound.base + self.bound.each * input.len();
        assert!(
            peak <= most,
            "{}: found {peak} bytes of memory for an input of {}, expected at most {most}",
            self.name,
            input.len()
        );
        accepted
    }

    /// Valid inputs, made by the product's own encoders.
    pub fn seeds(&self) -> Vec<Vec<u8>> {
        (self.seeds)()
    }
}
