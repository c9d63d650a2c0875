//! Rules between gateways at every moment: only one may read (R3, R6), and replicas at the same entry are equal (R4).

use crate::world::World;
use anyhow::{Result, bail};
use holdfast_control::set::{RootRef, SetState};
use holdfast_types::Lba;
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

impl World {
    /// Checks one gateway after its slice: whether it may serve, and its state against the others' at the same index.
    ///
    /// # Errors
    /// A broken rule.
    pub fn check(&mut self, index: usize) -> Result<()> {
        let Some(set) = self.set(index) else { return Ok(()) };
        if let Ok(epoch) = set.may_read()
            && self.replicas.serving != Some((index, epoch.0))
        {
            for other in (0..self.hosts.len()).filter(|other| *other != index) {
                if !self.hosts[other].runs(self.now) {
                    continue;
                }
                self.hosts[other].enter(self.now);
                if let Some(Ok(theirs)) = self.set(other).map(|set| set.may_read()) {
                    let (this, other) = (index + 1, other + 1);
                    bail!("R3, R6: gateway {this} serves epoch {epoch} while gateway {other} serves epoch {theirs}");
                }
            }
            self.hosts[index].enter(self.now);
            let before = self.replicas.serving.replace((index, epoch.0));
            let owner = set.lease().map(|lease| lease.owner.to_string());
            let owner_before = std::mem::replace(&mut self.replicas.owner, owner);
            if let Some((gateway, _)) = before {
                self.stats.moved += u64::from(gateway != index);
                self.stats.handed += u64::from(owner_before != self.replicas.owner);
            }
            self.stats.leaders += 1;
            self.note(format!("{} serves epoch {epoch}", index + 1));
        }
        let applied = set.host.with(|m| m.applied()).map_or(0, |id| id.index.0);
        if self.replicas.looked_at.insert(index, applied).unwrap_or(0) == applied {
            return Ok(());
        }
        let healed = self.node(index).and_then(|node| node.raft()).map_or(0, |raft| raft.healed());
        let life = self.hosts[index].process.as_ref().map_or(0, |process| process.life);
        let known = self.replicas.healed.entry((index, life)).or_default();
        self.stats.healed += healed.saturating_sub(std::mem::replace(known, healed));
        let picture = set.host.with(|m| {
            let state = m.state().clone();
            let content = state.volumes.iter().map(|(id, volume)| m.lookup(*id, Lba(0), volume.size)).collect();
            Picture { state, content }
        });
        match self.replicas.compare(index, applied, picture) {
            Ok(compared) => self.stats.compared += u64::from(compared),
            Err(found) => {
                let (first, theirs, ours) = *found;
                let (first, this) = (first + 1, index + 1);
                bail!("R4: gateways {first} and {this} differ at entry {applied}:\n{theirs:?}\n{ours:?}")
            }
        }
        Ok(())
    }
}
