//! Scene: the set's voters are moved again and again, to any choice of the members, while gateways die, lose power,
//! stand still and are cut off, and an owner writes on. After each move exactly the chosen ones have the set, and all
//! others have given back what they had of it (VOTERS-V2, VOTERS-V3). At the end all have it again: those that had left
//! come back as newcomers (VOTERS-V4), and everything that was acknowledged is there.

use crate::rng::Rng;
use crate::world::{MS, World};
use anyhow::{Context, Result};
use holdfast_raft::Part;
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeSet;

/// Moves in one course. The last one is to all members.
const MOVES: usize = 4;
/// Milliseconds of faults with each move.
const FAULTS: u64 = 12_000;
/// Milliseconds for a move to end, after everything has healed.
const ENDS: u64 = 240_000;

impl World {
    /// See the module.
    pub(super) fn moved_voters(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 53);
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        let id = self.cluster().and_then(|state| state.sets.keys().next().copied()).context("no set")?;
        for round in 1..=MOVES {
            let to = self.choice(&mut rng, id, round == MOVES)?;
            self.note(format!("move {round}: the set is to be on {to:?}"));
            let (until, mut next, mut asked) = (self.now + FAULTS * MS, self.now, self.now + rng.range(0, 2_000) * MS);
            while self.now < until {
                if self.now >= next {
                    next = self.now + rng.range(200, 2_500) * MS;
                    let members: Vec<usize> = (0..self.hosts.len()).filter(|at| self.places[*at].is_some()).collect();
                    let host = rng.pick(&members);
                    self.disturb_gateway(&mut rng, host, 7)?;
                }
                if self.now >= asked {
                    asked = self.now + rng.range(300, 3_000) * MS;
                    self.ask_to_place(id, &to);
                }
                self.tick()?;
            }
            self.calm()?;
            self.until(ENDS, "the set is where it was moved to", |w| {
                if w.now >= asked {
                    asked = w.now + 500 * MS;
                    w.ask_to_place(id, &to);
                }
                w.is_on(id, &to)
            })?;
            self.note(format!("move {round}: the set is on {to:?}"));
            self.works("writes and reads after a move")?;
        }
        self.all_in_the_store()?;
        self.power_and_read_back()
    }

    /// Members that are to have the set: all, or some, other than now.
    fn choice(&self, rng: &mut Rng, id: GroupId, all: bool) -> Result<BTreeSet<MemberId>> {
        match all {
            true => Ok(self.cluster().context("no group 0")?.members.into_keys().collect()),
            false => self.some_members(rng, id).context("no other members"),
        }
    }

    /// Exactly these have the set; nothing of it is left on any other member.
    fn is_on(&self, id: GroupId, to: &BTreeSet<MemberId>) -> bool {
        let placed = self.cluster().and_then(|state| state.sets.get(&id).map(|entry| entry.voters == *to));
        let right = |host: usize, member: u64| {
            let Some(raft) = self.node(host).and_then(|node| node.raft()) else { return false };
            match to.contains(&MemberId(member)) {
                true => self.set(host).is_some() && !raft.is_returning(id),
                false => self.set(host).is_none() && raft.group(id).is_none() && raft.part_of(id) == Part::Left,
            }
        };
        let members = || self.places.iter().enumerate().filter_map(|(host, member)| Some((host, (*member)?)));
        placed == Some(true) && self.members_missing().is_none() && members().all(|(host, member)| right(host, member))
    }
}
