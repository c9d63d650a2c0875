//! Disks under the journal that are full for a while: no file can be created, whatever the journal's limit, unless one
//! was dropped. Writers wait, nothing is lost, no gateway ends because of it; one that starts meanwhile is refused and
//! started again.

mod acts;

use crate::rng::Rng;
use crate::shape::Shape;
use std::collections::BTreeMap;

/// See the module.
pub struct Full {
    rng: Rng,
    pause: u64,
    next_at: u64,
    /// When there is room again.
    until: BTreeMap<usize, u64>,
    starts: BTreeMap<usize, u64>,
    /// Journals known to wait.
    waiting: Vec<usize>,
}

impl Full {
    pub fn new(seed: u64, shape: Shape) -> Self {
        let mut rng = Rng::new(seed, 8);
        let pause = shape.pause(rng.pick(&[700, 1_500, 4_000]));
        Self { rng, pause, next_at: 0, until: BTreeMap::new(), starts: BTreeMap::new(), waiting: Vec::new() }
    }
}
