//! Shapes of histories, as `crate::shape` has them for the simulation: steps that are left out, sizes of writes, rates
//! of faults. The seed alone decides, by a stream of its own. A third of the histories has the usual shape.

use crate::shape::{draws, setting, told};
use std::fmt;

/// Probability in thousandths that a setting differs, in a history of another shape.
const DIFFERS: u64 = 500;

/// A step of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Write,
    Clear,
    Read,
    ReadSnapshot,
    ChangeVolume,
    Snapshot,
    DeleteSnapshot,
    RollBack,
    Checkpoint,
    Weather,
    TakeOver,
    LateCopy,
    Release,
    Pause,
}

/// Each step with its share of a hundred.
const STEPS: [(Step, u64); 14] = [
    (Step::Write, 28),
    (Step::Clear, 6),
    (Step::Read, 11),
    (Step::ReadSnapshot, 5),
    (Step::ChangeVolume, 8),
    (Step::Snapshot, 7),
    (Step::DeleteSnapshot, 5),
    (Step::RollBack, 3),
    (Step::Checkpoint, 4),
    (Step::Weather, 6),
    (Step::TakeOver, 4),
    (Step::LateCopy, 2),
    (Step::Release, 1),
    (Step::Pause, 10),
];

impl Step {
    /// By a number below a hundred.
    fn usual(drawn: u64) -> Self {
        let mut upto = 0;
        let found = STEPS.iter().find(|(_, share)| {
            upto += share;
            drawn < upto
        });
        found.map_or(Step::Pause, |(step, _)| *step)
    }
}

/// The settings of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Steps that it does not make, as bits in the order of [`STEPS`], and the step in their place.
    off: u16,
    instead: Step,
    /// Sectors of a write at most, where they differ.
    sectors: Option<u64>,
    /// Faults of the store, in percent of the usual ones.
    pub weather: u64,
}

impl Shape {
    /// All steps, with their usual shares, sizes and faults.
    pub const USUAL: Self = Self { off: 0, instead: Step::Write, sectors: None, weather: 100 };

    /// The shape of a seed.
    pub fn of(seed: u64) -> Self {
        let Some(mut rng) = draws(seed) else { return Self::USUAL };
        let (some_off, chance) = (rng.chance(DIFFERS), rng.pick(&[150, 400, 700]));
        let off = (0..STEPS.len()).filter(|_| rng.chance(chance)).fold(0, |off, at| off | 1 << at);
        let instead = rng.pick(&STEPS).0;
        Self {
            off: if some_off { off } else { 0 },
            instead,
            sectors: setting(&mut rng, DIFFERS, &[1, 300]),
            weather: setting(&mut rng, DIFFERS, &[0, 30, 250]).unwrap_or(Self::USUAL.weather),
        }
    }

    /// The step of a number below a hundred.
    pub fn step(&self, drawn: u64) -> Step {
        let usual = Step::usual(drawn);
        if self.is_off(usual) { self.instead } else { usual }
    }

    fn is_off(&self, step: Step) -> bool {
        STEPS.iter().position(|(known, _)| *known == step).is_some_and(|at| self.off & 1 << at != 0)
    }

    /// Sectors of a write at most, where usually this many are.
    pub fn sectors(&self, usual: u64) -> u64 {
        self.sectors.unwrap_or(usual)
    }
}

impl fmt::Display for Shape {
    /// Lists the settings that differ from the usual shape.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut differs = Vec::new();
        let off: Vec<Step> = STEPS.iter().map(|(step, _)| *step).filter(|step| self.is_off(*step)).collect();
        if !off.is_empty() {
            differs.push(format!("{:?} in place of {off:?}", self.instead));
        }
        differs.extend(self.sectors.map(|sectors| format!("writes of up to {sectors} sectors")));
        if self.weather != 100 {
            differs.push(format!("{} % of the store's faults", self.weather));
        }
        f.write_str(&told(&differs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_shares_are_a_hundred() {
        assert_eq!(STEPS.iter().map(|(_, share)| share).sum::<u64>(), 100);
        let count = |step| (0..100).filter(|drawn| Shape::USUAL.step(*drawn) == step).count() as u64;
        for (step, share) in STEPS {
            assert_eq!(count(step), share, "{step:?}");
        }
    }

    #[test]
    fn a_step_that_is_off_is_not_made() {
        let shape = Shape { off: 0b11, instead: Step::TakeOver, ..Shape::USUAL };
        let made: Vec<Step> = (0..100).map(|drawn| shape.step(drawn)).collect();
        assert!(!made.contains(&Step::Write) && !made.contains(&Step::Clear));
        assert_eq!(made.iter().filter(|step| **step == Step::TakeOver).count(), 28 + 6 + 4);
    }

    #[test]
    fn a_third_of_the_histories_is_usual() {
        let usual = (0..3000).map(Shape::of).filter(|shape| shape.to_string() == "usual").count();
        // Some of another shape differ in nothing: half of a half of a half of two thirds.
        assert!((1000..1500).contains(&usual), "{usual} of 3000");
    }
}
