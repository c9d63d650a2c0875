//! Scene: the set's stores are changed repeatedly, while gateways die, lose power, are stopped and are cut off, while
//! stores are down and PUTs arrive late. Checked at every moment: a recovery finds the last checkpoint, wherever the
//! set is by then. Checked after each change, with the left stores emptied: everything written.
//!
//! SIMMOVE-W1  Any w stores of a list lead to a checkpoint at least as new as the one that the group knows: in that
//!     list, or in the next one, which they name.
//! SIMMOVE-W2  Each object that a retained root names is in w stores of the list in force.

mod overtaken;
mod unheard;

use crate::client::SET;
use crate::rng::Rng;
use crate::store::{Late, place_of};
use crate::stores::{StoredEntry, entry_of};
use crate::world::{MS, World};
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use holdfast_api::v1::{self, admin_server::Admin as _};
use holdfast_gateway::admin::AdminDoor;
use holdfast_set::mapping::SetKey;
use holdfast_store::{Stores, keys};
use holdfast_types::{GroupId, Placement, PlacementPhase};

/// Number of stores; a list has one or three of them.
pub const PLACES: usize = 5;
/// Changes in one course.
const CHANGES: usize = 3;
/// Milliseconds of faults with each change.
const FAULTS: u64 = 20_000;
/// Time for a change to end, after everything has healed.
const ENDS: u64 = 240_000;
/// Largest delay of a PUT.
const LATE: u64 = 6_000 * MS;
/// Interval between two checks of the stores.
const LOOK_EVERY: u64 = 100 * MS;

/// Found in place of a list's head, at one store, or at w of several.
enum Found {
    Nothing,
    Head(Bytes),
    /// The next list, and its head's first value.
    Moved(String, Option<Bytes>),
}

/// Parsed as in docs/formats.md, without the product's code.
fn found(value: Bytes) -> Result<Found> {
    let Some(rest) = value.strip_prefix(b"HFM\x01") else { return Ok(Found::Head(value)) };
    let short = "SIMMOVE-W1: the last value of a list is cut short";
    let to_bytes = u32::from_le_bytes(rest.get(..4).context(short)?.try_into()?) as usize;
    let has = *rest.get(4).context(short)?;
    let to = String::from_utf8(rest.get(5..5 + to_bytes).context(short)?.to_vec())?;
    let head_end = value.len().checked_sub(32).context(short)?;
    Ok(Found::Moved(to, (has == 1).then(|| value.slice(9 + to_bytes..head_end))))
}

fn places(list: &Stores) -> Vec<usize> {
    list.urls().iter().map(|url| place_of(url)).collect()
}

/// Every choice of `w` among these.
fn choices(of: &[usize], w: usize) -> Vec<Vec<usize>> {
    (0..1_u32 << of.len())
        .filter(|bits| bits.count_ones() as usize == w)
        .map(|bits| (0..of.len()).filter(|at| bits >> at & 1 == 1).map(|at| of[at]).collect())
        .collect()
}

impl World {
    /// Adds further stores to the one or three of the set.
    pub fn more_stores(&mut self) {
        let mut rng = Rng::new(self.seed, 9);
        self.stores.grow(self.seed, PLACES, rng.pick(&[1, 3]));
        for host in &mut self.hosts {
            host.more_ways(self.seed, &self.stores.servers);
        }
    }

    /// See the module.
    pub fn moved_stores(&mut self) -> Result<()> {
        let mut rng = Rng::new(self.seed, 8);
        self.busy = true;
        self.works("the first writes")?;
        self.until(60_000, "members settled", |w| w.members_missing().is_none())?;
        for round in 1..=CHANGES {
            let to = self.other_list(&mut rng)?;
            let most = rng.pick(&[LATE, LATE / 10]);
            let late = rng.pick(&[0, 60, 200]);
            self.stores.servers.iter().for_each(|server| server.set_late(Late { rate: late, most }));
            self.note(format!("change {round}: the set is to lie in stores {to:?}; {late} of 1000 are late"));
            let (until, mut next, mut asked) = (self.now + FAULTS * MS, self.now, self.now + rng.range(0, 2_000) * MS);
            while self.now < until {
                if self.now >= next {
                    next = self.now + rng.range(200, 2_500) * MS;
                    self.disturb_mover(&mut rng)?;
                }
                if self.now >= asked {
                    asked = self.now + rng.range(300, 3_000) * MS;
                    let abandon = rng.chance(150);
                    self.ask_to_move(&to, abandon);
                }
                self.tick()?;
                self.look_at_lists()?;
            }
            self.calm()?;
            let deadline = self.now + ENDS * MS;
            while !self.lies_in(&to) {
                ensure!(
                    self.now < deadline,
                    "no progress: {} s after every fault the set lies in {:?}, to be in {to:?}; its leader: {:?}",
                    ENDS / 1000,
                    self.placement(),
                    self.leader().and_then(|at| self.set(at)).map(|set| set.migration.said())
                );
                if self.now >= asked {
                    asked = self.now + 500 * MS;
                    self.ask_to_move(&to, false);
                }
                self.tick()?;
                self.look_at_lists()?;
            }
            self.note(format!("change {round}: the set lies in {:?}", self.placement()));
            self.works("writes after a change of stores")?;
            self.all_in_the_store()?;
            self.look_at_lists()?;
            for at in (0..PLACES).filter(|at| !to.contains(at)) {
                let objects = self.stores.servers[at].empty(false);
                self.note(format!("store {} is emptied of {objects} objects", at + 1));
            }
            self.power_and_read_back().context("with what was left emptied")?;
            self.works("writes and reads without what was left")?;
        }
        self.all_in_the_store()
    }

    fn placement(&self) -> Option<String> {
        self.cluster()?.sets.values().next().map(|entry| entry.store_url.clone())
    }

    /// Every gateway knows it too.
    fn lies_in(&self, to: &[usize]) -> bool {
        let Some(text) = self.placement() else { return false };
        let placement = Placement::parse(&text);
        let there = Stores::parse(&placement.stores).is_ok_and(|list| places(&list) == to) && placement.next.is_none();
        let members = (0..self.hosts.len()).filter(|host| self.places[*host].is_some());
        there && members.filter_map(|host| self.set(host)).all(|set| set.switch.text() == text)
    }

    fn other_list(&self, rng: &mut Rng) -> Result<Vec<usize>> {
        let now = self.placement().context("no set")?;
        let now = places(&Stores::parse(&Placement::parse(&now).stores)?);
        loop {
            let mut all: Vec<usize> = (0..PLACES).collect();
            let mut to = Vec::new();
            for _ in 0..rng.pick(&[1, 3, 3]) {
                to.push(all.remove(rng.below(all.len() as u64) as usize));
            }
            if to != now {
                return Ok(to);
            }
        }
    }

    /// Sent to the leader of group 0; the effect is seen in group 0.
    fn ask_to_move(&mut self, to: &[usize], abandon: bool) {
        if self.lies_in(to) {
            return;
        }
        let Some((node, process)) =
            self.leader_of(GroupId::CLUSTER).and_then(|at| Some((self.node(at)?, self.hosts[at].process.as_ref()?)))
        else {
            return;
        };
        let stores = if abandon { Vec::new() } else { to.iter().map(|at| self.stores.url(self.dir(), *at)).collect() };
        let request = v1::ChangeStoresRequest { set: SET.into(), stores, abandon, ..Default::default() };
        let door = AdminDoor::new(node);
        process.spawn(async move { drop(door.change_stores(tonic::Request::new(request)).await) });
    }

    fn disturb_mover(&mut self, rng: &mut Rng) -> Result<()> {
        let members: Vec<usize> = (0..self.hosts.len()).filter(|host| self.places[*host].is_some()).collect();
        let host = rng.pick(&members);
        if rng.chance(250) {
            self.calm_stores();
            if rng.chance(600) {
                let at = rng.below(PLACES as u64) as usize;
                self.lose_store(at);
                self.note(format!("store {} is away, the others are there", at + 1));
            } else {
                self.note("all stores are there");
            }
        }
        self.disturb_gateway(rng, host, 7)
    }

    /// Result of `w` stores of a list, by the rules of its head.
    fn shown(&self, key: &SetKey, list: &Stores, of: &[usize]) -> Result<Option<Found>> {
        let at = keys::head_of(key.set, list.configuration(), &list.to_string());
        let object = |place: &usize| self.stores.servers[*place].object(&at);
        if list.urls().len() == 1 {
            return object(&of[0]).map_or(Ok(Found::Nothing), found).map(Some);
        }
        let mut best: Option<((u64, u128), Bytes)> = None;
        for place in of {
            match entry_of(object(place).as_ref()).context("SIMMOVE-W1: something else lies in an entry's place")? {
                // Too few have one: a recovery from these is refused.
                StoredEntry::Gone | StoredEntry::Mark => return Ok(None),
                StoredEntry::Blank => {}
                StoredEntry::Value { ballot, value } => {
                    if best.as_ref().is_none_or(|(other, _)| ballot > *other) {
                        best = Some((ballot, value));
                    }
                }
            }
        }
        best.map_or(Ok(Found::Nothing), |(_, value)| found(value)).map(Some)
    }

    /// SIMMOVE-W1 for one list and the lists after it. Returns whether it was left.
    fn look_at_list(&mut self, key: &SetKey, list: &Stores) -> Result<bool> {
        let mut left = false;
        for of in choices(&places(list), list.write_quorum()) {
            let Some(found) = self.shown(key, list, &of)? else { continue };
            let covered = match found {
                Found::Nothing => 0,
                Found::Head(head) => self.stores.covers(key, &head)?,
                Found::Moved(to, head) => {
                    left = true;
                    let next = Stores::parse(&to)?;
                    let begun = choices(&places(&next), next.write_quorum());
                    let mut least = u64::MAX;
                    for of in begun {
                        // Not begun at these stores: a new leader begins it with the last value.
                        least = least.min(match (self.shown(key, &next, &of)?, head.clone()) {
                            (Some(Found::Head(next)), _) | (None | Some(Found::Nothing), Some(next)) => {
                                self.stores.covers(key, &next)?
                            }
                            // Left in its turn.
                            (Some(Found::Moved(..)), _) => u64::MAX,
                            // Released: w stores have it, these may lack one.
                            (None, None) => u64::MAX,
                            (Some(Found::Nothing), None) => {
                                bail!("SIMMOVE-W1: stores {of:?} of {to:?} have no head, and what was left has let go of it")
                            }
                        });
                    }
                    least
                }
            };
            if covered < self.stores.known_checkpoint() {
                bail!(
                    "SIMMOVE-W1: stores {of:?} of {list} lead a recovery to entry {covered}; the group has a checkpoint up to {}, and purged its journals",
                    self.stores.known_checkpoint()
                );
            }
        }
        Ok(left)
    }

    /// SIMMOVE-W1 and SIMMOVE-W2.
    fn look_at_lists(&mut self) -> Result<()> {
        if !self.now.is_multiple_of(LOOK_EVERY) {
            return Ok(());
        }
        let (Some(key), Some(text)) = (self.set_key(), self.placement()) else { return Ok(()) };
        let placement = Placement::parse(&text);
        let known = self.known();
        let list = Stores::parse(&placement.stores)?;
        let left = self.look_at_list(&key, &list)?;
        let counts = match &placement.next {
            Some((PlacementPhase::Ending, next)) if left => Stores::parse(next)?,
            // The newest known group 0 here may be behind that of a gateway.
            _ if left => return Ok(()),
            _ => list,
        };
        let Some(known) = known else { return Ok(()) };
        let of = places(&counts);
        for (object, has) in self.stores.copies(&key, &known.kept)? {
            let copies = has.iter().filter(|at| of.contains(at)).count();
            if copies < counts.write_quorum() {
                let has: Vec<usize> = has.iter().map(|at| at + 1).collect();
                bail!("SIMMOVE-W2: {object} is named, and in stores {has:?} only, while {counts} counts ({text})");
            }
        }
        self.stats.counted += 1;
        Ok(())
    }
}
