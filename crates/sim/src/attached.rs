//! Owners that attach the set: hosts beside the gateways, each with the code of `attach` and a user of its devices
//! ([`owner::Owner`]). They replace the tasks at the gateways' devices (`client`).
//!
//! Checked besides the rules of the [model](crate::model): a device answers with an error only if gateways know that
//! another owner took its set; after its first error it answers only with errors, and leaves nothing unanswered (R8);
//! no device ends by itself.

mod acts;
pub mod bugs;
pub mod kernel;
mod late_loss;
mod owner;
pub mod wires;

use crate::broken::Broken;
use crate::net::{Link, Net};
use crate::rng::Rng;
use crate::shape::Shape;
use bugs::Bug;
use owner::Owner;
use std::collections::BTreeMap;
use std::path::Path;

/// Faults of an attaching host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The process dies, with its devices.
    Kill,
    Power,
    Stop,
    Suspend,
    /// From all gateways, or from some.
    Cut,
    CutOneWay,
    Lossy,
}

const ALL: &[Fault] =
    &[Fault::Kill, Fault::Power, Fault::Stop, Fault::Suspend, Fault::Cut, Fault::CutOneWay, Fault::Lossy];

/// See the module.
pub struct Attached {
    owners: Vec<Owner>,
    /// Owner of each granted epoch, as far as gateways showed it.
    grants: BTreeMap<u64, String>,
    rng: Rng,
    mix: Vec<Fault>,
    pause: u64,
    next_at: u64,
    /// When the links of an owner are calm again.
    calm_at: BTreeMap<usize, u64>,
    gateways: usize,
}

impl Attached {
    pub fn new(
        seed: u64,
        count: usize,
        gateways: usize,
        net: &Net,
        dir: &Path,
        broken: Option<Broken>,
        shape: Shape,
    ) -> Self {
        let mut rng = Rng::new(seed, 7);
        let bug = match broken {
            Some(Broken::ReplaysAnswered) => Some(Bug::ReplaysAnswered),
            Some(Broken::AnsweredWhenSent) => Some(Bug::AnsweredWhenSent),
            Some(Broken::GoesOnFenced) => Some(Bug::GoesOnFenced),
            _ => None,
        };
        let ends_unseen = broken == Some(Broken::EndsUnseen);
        let owner = |index: usize| {
            let dir = dir.join(format!("attach-{index}"));
            let mut owner = Owner::new(index, seed, gateways + index, net, dir, bug, ends_unseen);
            owner.load = shape.load;
            owner
        };
        let mix = shape.mix(&mut rng, 400, ALL);
        let pause = shape.pause(rng.pick(&[400, 1_000, 2_500]));
        let owners = (0..count).map(owner).collect();
        Self { owners, grants: BTreeMap::new(), rng, mix, pause, next_at: 0, calm_at: BTreeMap::new(), gateways }
    }

    fn links(&self, owner: usize, link: impl Fn(usize, bool) -> Link, net: &Net) {
        net.set_around(self.owners[owner].at, self.gateways, link);
    }
}
