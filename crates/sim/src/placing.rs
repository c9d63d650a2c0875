//! Moves of sets (`--placing`): now and then a set is to be on other members, beside all other faults. Gateways that it
//! leaves give back what they have of it, and come back as newcomers (VOTERS-V1 to VOTERS-V4). At the end every set is
//! everywhere again, so that all replicas can be compared.

mod acts;

use crate::rng::Rng;
use crate::shape::Shape;

/// See the module.
pub struct Placing {
    rng: Rng,
    pause: u64,
    next_at: u64,
}

impl Placing {
    pub fn new(seed: u64, shape: Shape) -> Self {
        let mut rng = Rng::new(seed, 54);
        let pause = shape.pause(rng.pick(&[500, 1_500, 4_000]));
        Self { rng, pause, next_at: 0 }
    }
}
