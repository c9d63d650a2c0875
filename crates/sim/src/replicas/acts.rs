//! Compares the gateways of a world.

use super::Picture;
use crate::world::World;
use anyhow::{Result, bail};
use holdfast_types::Lba;

impl World {
    /// Checks one gateway after its slice: whether it may serve, and its state against the others' at the same index.
    pub fn check(&mut self, index: usize) -> Result<()> {
        self.check_votes(index)?;
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

    /// R3: a member that has voted in a later term leads in no earlier one. Its answer to the candidate leaves once the
    /// vote is on disk, and openraft tells of it later still. A write to disk takes more than one slice, so there is
    /// one in which the vote is neither on disk nor told of.
    fn check_votes(&self, index: usize) -> Result<()> {
        let adopted = self.node(index).and_then(|node| node.adopted());
        for group in adopted.map(|adopted| adopted.raft.groups()).unwrap_or_default() {
            let Some(term) = group.leading_term() else { continue };
            let voted = group.status().voted;
            if voted > term {
                bail!("R3: gateway {} leads group {} in {term}, and has voted in {voted}", index + 1, group.id());
            }
        }
        Ok(())
    }
}
