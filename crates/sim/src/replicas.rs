//! Rules between gateways at every moment: only one may read (R3, R6), and replicas at the same entry are equal (R4).

mod acts;

use holdfast_control::set::{RootRef, SetState};
use holdfast_volume::index::Piece;
use std::collections::BTreeMap;

/// Entries that are remembered: a replica that is further behind is not compared.
const REMEMBERED: usize = 4096;

/// A replica's whole state: cheap to clone, expensive to format.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Picture {
    state: SetState,
    content: Vec<Vec<Piece>>,
}

impl Picture {
    /// The root, since a replica that began with a snapshot knows it before the entry that names it (MACHINE-M4 holds
    /// from that entry on).
    fn root(&self) -> Option<RootRef> {
        self.state.checkpoint.as_ref().map(|checkpoint| checkpoint.root)
    }
}

/// States of replicas at each entry, from the first one to reach it, for each root.
#[derive(Default)]
pub struct Replicas {
    seen: BTreeMap<u64, Vec<(usize, Picture)>>,
    /// Last checked entry of each gateway.
    looked_at: BTreeMap<usize, u64>,
    healed: BTreeMap<(usize, u64), u64>,
    serving: Option<(usize, u64)>,
    /// Its owner.
    owner: Option<String>,
}

impl Replicas {
    /// This gateway begins anew, with nothing.
    pub fn forget(&mut self, index: usize) {
        self.looked_at.remove(&index);
    }

    /// The first gateway that differs from this one, and how; `Ok`: whether there was one to compare with.
    fn compare(
        &mut self,
        index: usize,
        applied: u64,
        picture: Picture,
    ) -> Result<bool, Box<(usize, Picture, Picture)>> {
        let seen = self.seen.entry(applied).or_default();
        match seen.iter().find(|(_, theirs)| theirs.root() == picture.root()) {
            Some((first, theirs)) if *theirs != picture => return Err(Box::new((*first, theirs.clone(), picture))),
            Some(_) => return Ok(true),
            None => seen.push((index, picture)),
        }
        while self.seen.len() > REMEMBERED {
            self.seen.pop_first();
        }
        Ok(false)
    }
}
