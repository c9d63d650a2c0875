//! Several stores of a set, if the seed gives it several (ADR 0018): faults of one of them, and rules for all.
//!
//! ```text
//!   down, slow, failing, lost answers ── on all ways to one store, or on one gateway's; until a little later
//!   late ─────────────────────────────── requests or answers of one store, by up to seconds: carried out all the same
//!   away ─────────────────────────────── down until everything heals; one store at most
//!   emptied ──────────────────────────── objects and slot gone. No other one is emptied, or away for long, before this one is whole again
//! ```
//! SIMSTORE-D1  Any w stores with their slot show a checkpoint at least as new as the one that the group knows: a
//!     recovery from them loses nothing that was purged from the journals.
//! SIMSTORE-D2  Each object that a retained root names is in w stores; in w − 1 while an emptied one is incomplete.
//! SIMSTORE-D3  After the healing each object is in all of them, with equal content, and every slot has the same value.

use crate::broken::Broken;
use crate::rng::Rng;
use crate::store::{Late, Server};
use crate::world::{MS, World};
use anyhow::{Context, Result, anyhow, bail};
use bytes::Bytes;
use holdfast_control::set::{RootRef, StoredKind};
use holdfast_seal::ClusterKey;
use holdfast_set::head;
use holdfast_set::mapping::SetKey;
use holdfast_set::references::key_kind;
use holdfast_store::{Backlog, Faults, keys};
use holdfast_types::{Name, ObjectId};
use holdfast_volume::map::{LeafRef, open_leaf, open_top};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

/// Seeds in thousandths with several stores by themselves: none, so that the course of seeds does not change.
const SEVERAL: u64 = 0;
const STORES: usize = 3;
const WRITE_QUORUM: usize = 2;
/// How often all copies are looked at.
const COUNT_EVERY: u64 = 250 * MS;
/// How often the slots are.
const SLOTS_EVERY: u64 = 50 * MS;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Down,
    Cut,
    Faults,
    Slow,
    Late,
    Away,
    Empty,
}

const ALL: &[Trouble] = &[
    Trouble::Down,
    Trouble::Cut,
    Trouble::Faults,
    Trouble::Slow,
    Trouble::Late,
    Trouble::Away,
    Trouble::Empty,
    // Twice: the main purpose of this module.
    Trouble::Empty,
];

/// Content of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    Gone,
    Mark,
    Blank,
    Value { ballot: (u64, u128), value: Bytes },
}

/// Parsed as in docs/formats.md, without the product's code.
pub fn slot_of(object: Option<&Bytes>) -> Option<Slot> {
    let Some(object) = object else { return Some(Slot::Gone) };
    let small = |at: usize| Some(u32::from_le_bytes(object.get(at..at + 4)?.try_into().ok()?));
    let number = |at: usize| Some(u64::from_le_bytes(object.get(at..at + 8)?.try_into().ok()?));
    let token = |at: usize| Some(u128::from_le_bytes(object.get(at..at + 16)?.try_into().ok()?));
    let (n, flags) = (*object.strip_prefix(b"HFR\x01")?.get(1)?, *object.get(7)?);
    if flags & 4 != 0 {
        return Some(Slot::Mark);
    }
    if flags & 1 == 0 {
        return Some(Slot::Blank);
    }
    let at = 76 + if flags & 2 != 0 { 4 * usize::from(n) } else { 0 };
    let value = object.get(at..at + small(72)? as usize)?;
    Some(Slot::Value { ballot: (number(32)?, token(40)?), value: object.slice_ref(value) })
}

/// See the module.
pub struct Depot {
    pub servers: Vec<Server>,
    rng: Rng,
    mix: Vec<Trouble>,
    /// When something goes wrong next; none: nothing is to.
    next_at: Option<u64>,
    pause: u64,
    later: Vec<(u64, usize)>,
    /// Down until everything heals.
    away: Option<usize>,
    /// Emptied, and not whole yet.
    emptied: Option<usize>,
    key: Option<SetKey>,
    /// Entry of the newest checked state, and the newest known checkpoint.
    applied: u64,
    checkpoint: u64,
    named: BTreeMap<ObjectId, BTreeSet<String>>,
    /// Up to where values of slots cover.
    covers: BTreeMap<Bytes, u64>,
    /// Number of servers in the set's first list; others come with a change of its stores, which has its own checks.
    listed: Option<usize>,
}

impl Depot {
    /// For a seed. `several`: regardless of the seed.
    pub fn new(seed: u64, several: bool) -> Self {
        // A separate generator: the course of seeds with one store must not change.
        let mut rng = Rng::new(seed, 30);
        let drawn = rng.chance(SEVERAL);
        let count = if drawn || several { STORES } else { 1 };
        let servers: Vec<Server> = (0..count).map(|at| Server::new(seed, at)).collect();
        if count > 1 {
            for server in &servers {
                // Near, in the next country, on another continent.
                server.set_delay(rng.pick(&[(MS, 8 * MS), (15 * MS, 30 * MS), (80 * MS, 160 * MS)]));
            }
        }
        let (key, named, covers) = (None, BTreeMap::new(), BTreeMap::new());
        let (mix, later) = (Vec::new(), Vec::new());
        let (next_at, away, emptied) = (None, None, None);
        let (applied, checkpoint) = (0, 0);
        let listed = None;
        Self {
            servers,
            rng,
            mix,
            next_at,
            pause: 1,
            later,
            away,
            emptied,
            key,
            applied,
            checkpoint,
            named,
            covers,
            listed,
        }
    }

    /// Grows to `count` servers, the first `listed` of which are the set's first list.
    pub fn grow(&mut self, seed: u64, count: usize, listed: usize) {
        let more = self.servers.len()..count;
        self.servers.extend(more.map(|at| Server::new(seed, at)));
        self.listed = Some(listed);
    }

    /// The newest checkpoint known to any gateway.
    pub fn known_checkpoint(&self) -> u64 {
        self.checkpoint
    }

    /// Of store `at`, where there are several.
    pub fn url(&self, dir: &Path, at: usize) -> String {
        format!("file://{}/store{}", dir.display(), at + 1)
    }

    /// Whether the set has several stores.
    pub fn several(&self) -> bool {
        self.servers.len() > 1 && self.listed.is_none()
    }

    /// URLs for a new set. Checked and created, but not used: the gateways' ways to the stores are simulated.
    pub fn text(&self, dir: &Path) -> String {
        if let Some(listed) = self.listed {
            let urls: Vec<String> = (0..listed).map(|at| self.url(dir, at)).collect();
            return if listed == 1 { urls[0].clone() } else { format!("w={} {}", listed / 2 + 1, urls.join(" ")) };
        }
        if !self.several() {
            return format!("file://{}/store", dir.display());
        }
        let urls: Vec<String> =
            (1..=self.servers.len()).map(|at| format!("file://{}/store{at}", dir.display())).collect();
        format!("w={WRITE_QUORUM} {}", urls.join(" "))
    }

    /// Carries out everything that has arrived by `now`.
    pub fn advance(&self, now: u64) {
        self.servers.iter().for_each(|server| server.advance(now));
    }

    fn slots(&self, key: &SetKey) -> Result<Vec<Slot>> {
        let slot = |server: &Server| slot_of(server.object(&keys::head(key.set)).as_ref());
        self.servers
            .iter()
            .map(slot)
            .collect::<Option<Vec<_>>>()
            .context("SIMSTORE-D1: something else lies in a slot's place")
    }

    /// The entry up to which a head covers.
    pub fn covers(&mut self, key: &SetKey, value: &Bytes) -> Result<u64> {
        if let Some(known) = self.covers.get(value) {
            return Ok(*known);
        }
        let head = head::open(key, value).map_err(|e| anyhow!("R9: a slot's value: {e}"))?;
        let upto = head.covered.map_or(0, |covered| covered.upto.index.0);
        self.covers.insert(value.clone(), upto);
        while self.covers.len() > 64 {
            self.covers.pop_first();
        }
        Ok(upto)
    }

    /// SIMSTORE-D1.
    fn check_slots(&mut self, key: &SetKey) -> Result<()> {
        let slots = self.slots(key)?;
        for one in 0..slots.len() {
            for other in one + 1..slots.len() {
                let of = |at: usize| match &slots[at] {
                    Slot::Gone | Slot::Mark => None,
                    Slot::Blank => Some(None),
                    Slot::Value { ballot, value } => Some(Some((*ballot, value.clone()))),
                };
                // A store without its slot does not count: a recovery from these two is refused.
                let (Some(a), Some(b)) = (of(one), of(other)) else { continue };
                let covered = match a.into_iter().chain(b).max_by_key(|(ballot, _)| *ballot) {
                    Some((_, value)) => self.covers(key, &value)?,
                    None => 0,
                };
                if covered < self.checkpoint {
                    bail!(
                        "SIMSTORE-D1: stores {} and {} lead a recovery to entry {covered}; the group has a checkpoint up to {}, and purged its journals",
                        one + 1,
                        other + 1,
                        self.checkpoint
                    );
                }
            }
        }
        Ok(())
    }

    /// The keys of everything that a root names, itself included; `None` if no store has it.
    fn named_by(&mut self, key: &SetKey, root: RootRef) -> Result<Option<BTreeSet<String>>> {
        if let Some(named) = self.named.get(&root.object) {
            return Ok(Some(named.clone()));
        }
        let name = keys::root(key.set, root.object);
        let Some(bytes) = self.servers.iter().find_map(|server| server.object(&name)) else { return Ok(None) };
        let top = open_top(&key.opener(root.object), &bytes).map_err(|e| anyhow!("R9: {name}: {e}"))?;
        let leaf = |leaf: &LeafRef| {
            let pack = keys::map_pack(key.set, leaf.at.object);
            let bytes = self.servers.iter().find_map(|server| server.object(&pack))?;
            let place = leaf.at.range();
            open_leaf(&key.opener(leaf.at.object), leaf, bytes.get(place.start as usize..place.end as usize)?).ok()
        };
        let opened = top.complete(leaf).map_err(|e| anyhow!("R9: {name}: {e}"))?;
        let key_of = |kind: StoredKind, object| keys::object(key.set, key_kind(kind), object);
        let mut named: BTreeSet<String> = opened.names().map(|stored| key_of(stored.kind, stored.object)).collect();
        named.insert(name);
        self.named.insert(root.object, named.clone());
        Ok(Some(named))
    }

    /// The stores with each object that these roots name.
    pub fn copies(&mut self, key: &SetKey, roots: &[RootRef]) -> Result<BTreeMap<String, Vec<usize>>> {
        let mut copies = BTreeMap::new();
        for root in roots {
            let Some(named) = self.named_by(key, *root)? else {
                bail!("SIMSTORE-D2: root {} is named, and in no store", keys::root(key.set, root.object))
            };
            for object in named {
                let has = (0..self.servers.len()).filter(|at| self.servers[*at].has(&object)).collect();
                copies.insert(object, has);
            }
        }
        self.named.retain(|object, _| roots.iter().any(|root| root.object == *object));
        Ok(copies)
    }
}

/// A gateway's state of the set.
pub struct Known {
    applied: u64,
    checkpoint: u64,
    pub kept: Vec<RootRef>,
    /// A checkpoint is under way.
    begun: bool,
}

impl World {
    pub fn set_key(&mut self) -> Option<SetKey> {
        if self.stores.key.is_none() {
            let name = Name::new(crate::client::SET).ok()?;
            let state = (0..self.hosts.len()).find_map(|at| self.node(at))?.cluster.state();
            let (id, entry) = state.set_named(&name)?;
            // As every machine is furnished.
            let cluster = ClusterKey::from_key_file(&[7; 32]).ok()?;
            let key = cluster.unwrap(&entry.wrapped_key, id, entry.key_id).ok()?;
            self.stores.key = Some(SetKey::of(id, entry.key_id, key));
        }
        self.stores.key.clone()
    }

    /// The newest state, unless a newer one was seen before.
    pub fn known(&mut self) -> Option<Known> {
        let of = |at: usize| {
            Some(self.set(at)?.host.with(|m| Known {
                applied: m.applied().map_or(0, |at| at.index.0),
                checkpoint: m.state().checkpoint.map_or(0, |checkpoint| checkpoint.upto.index.0),
                kept: m.state().kept_roots(),
                begun: m.state().begin.is_some(),
            }))
        };
        let newest = (0..self.hosts.len()).filter_map(of).max_by_key(|known| known.applied)?;
        self.stores.checkpoint = self.stores.checkpoint.max(newest.checkpoint);
        if newest.applied < self.stores.applied {
            return None;
        }
        self.stores.applied = newest.applied;
        Some(newest)
    }

    /// Runs the stores' faults up to now, and checks their content.
    ///
    /// # Errors
    /// A broken rule.
    pub fn tend_stores(&mut self) -> Result<()> {
        if !self.stores.several() || self.set_goes {
            return Ok(());
        }
        while let Some(at) = self.stores.later.iter().position(|(at, _)| *at <= self.now) {
            let (_, store) = self.stores.later.remove(at);
            if self.stores.away != Some(store) {
                self.note(format!("store {} is calm again", store + 1));
                self.spoil(Some(store), &Faults::default());
            }
        }
        if self.stores.next_at.is_some_and(|at| at <= self.now) {
            let (low, high) = (self.stores.pause / 4, self.stores.pause * 2);
            self.stores.next_at = Some(self.now + self.stores.rng.range(low, high) * MS);
            self.trouble();
        }
        if !self.now.is_multiple_of(SLOTS_EVERY) {
            return Ok(());
        }
        let Some(key) = self.set_key() else { return Ok(()) };
        let known = self.known();
        self.stores.check_slots(&key)?;
        if let Some(known) = known.filter(|_| self.now.is_multiple_of(COUNT_EVERY)) {
            self.check_copies(&key, &known)?;
        }
        Ok(())
    }

    /// SIMSTORE-D2; and whether an emptied store is complete again.
    fn check_copies(&mut self, key: &SetKey, known: &Known) -> Result<()> {
        let copies = self.stores.copies(key, &known.kept)?;
        let least = WRITE_QUORUM - usize::from(self.stores.emptied.is_some());
        if let Some((object, has)) = copies.iter().find(|(_, has)| has.len() < least) {
            let has: Vec<usize> = has.iter().map(|at| at + 1).collect();
            bail!(
                "SIMSTORE-D2: {object} is named and in stores {has:?} only; emptied and not whole: {:?}",
                self.stores.emptied.map(|at| at + 1)
            );
        }
        self.stats.counted += 1;
        if let Some(at) = self.stores.emptied
            && !known.begun
            && self.lacking(key, &copies)?.is_none()
        {
            self.stores.emptied = None;
            self.stats.filled += u64::from(self.stores.next_at.is_some());
            self.note(format!("store {} is whole again", at + 1));
        }
        Ok(())
    }

    /// What is missing until every store is complete, by their content and the leader's report, as for an operator.
    fn lacking(&self, key: &SetKey, copies: &BTreeMap<String, Vec<usize>>) -> Result<Option<String>> {
        let all = self.stores.servers.len();
        let several = self.leader().and_then(|at| self.set(at));
        let several = several.as_ref().and_then(|set| set.head.store().several());
        let backlogs: Option<Vec<_>> =
            several.map(|several| several.standings(0).into_iter().map(|standing| standing.backlog).collect());
        let said = || format!("the leader says {backlogs:?}");
        if let Some((object, has)) = copies.iter().find(|(_, has)| has.len() < all) {
            let has: Vec<usize> = has.iter().map(|at| at + 1).collect();
            return Ok(Some(format!("{object} is in stores {has:?}; {}", said())));
        }
        let slots = self.stores.slots(key)?;
        if slots.iter().any(|slot| !matches!(slot, Slot::Value { .. }) || *slot != slots[0]) {
            let short = |slot: &Slot| match slot {
                Slot::Value { ballot, .. } => format!("{ballot:?}"),
                other => format!("{other:?}"),
            };
            let slots: Vec<String> = slots.iter().map(short).collect();
            return Ok(Some(format!("slots: {slots:?}; {}", said())));
        }
        // Not the number of objects: those of a failed checkpoint are noted for a quarter of an hour.
        let whole = |backlogs: &Vec<Backlog>| backlogs.iter().all(|b| b.compared && !b.head);
        Ok((!backlogs.as_ref().is_some_and(whole)).then(said))
    }

    fn spoil(&self, at: Option<usize>, faults: &Faults) {
        self.hosts.iter().for_each(|host| host.set_ways(at, faults));
    }

    /// Injects a fault at the store; of several, at one of them or at all.
    pub fn spoil_stores(&mut self, faults: &Faults) {
        let several = self.stores.several() && self.stores.rng.chance(600);
        let one = several.then(|| self.stores.rng.below(STORES as u64) as usize);
        if let Some(at) = one {
            self.note(format!("that is store {}", at + 1));
        }
        self.spoil(one, faults);
        self.keep_away();
    }

    /// Ends all faults except a long outage.
    pub fn calm_stores(&mut self) {
        self.spoil(None, &Faults::default());
        self.keep_away();
    }

    /// Store `at` answers no host.
    pub fn lose_store(&self, at: usize) {
        self.spoil(Some(at), &Faults { down: true, ..Faults::default() });
    }

    fn keep_away(&self) {
        if self.stores.away.is_some() {
            self.spoil(self.stores.away, &Faults { down: true, ..Faults::default() });
        }
    }

    /// From now on things go wrong.
    pub fn trouble_stores(&mut self, dense: bool) {
        if !self.stores.several() {
            return;
        }
        self.stats.several = 1;
        let rng = &mut self.stores.rng;
        let mut mix: Vec<Trouble> = ALL.iter().copied().filter(|_| rng.chance(600)).collect();
        if mix.is_empty() {
            mix.push(Trouble::Empty);
        }
        let pause = if dense { rng.pick(&[300, 800, 1_500]) } else { rng.pick(&[600, 1_500, 4_000]) };
        (self.stores.pause, self.stores.next_at) = (pause, Some(self.now));
        self.note(format!("stores: {mix:?}, one in about {pause} ms"));
        self.stores.mix = mix;
    }

    /// Every store is there, and answers.
    pub fn heal_stores(&mut self) {
        self.stores.next_at = None;
        self.stores.later.clear();
        self.stores.away = None;
        self.stores.servers.iter().for_each(|server| server.set_late(Late::default()));
        self.calm_stores();
    }

    fn calm_later(&mut self, at: usize, low: u64, high: u64) {
        let when = self.now + self.stores.rng.range(low, high) * MS;
        self.stores.later.push((when, at));
    }

    fn trouble(&mut self) {
        let rng = &mut self.stores.rng;
        let (trouble, at) = (rng.pick(&self.stores.mix), rng.below(STORES as u64) as usize);
        let down = Faults { down: true, ..Faults::default() };
        self.stats.troubles += 1;
        match trouble {
            // One at a time, and none while one is incomplete (n − w).
            Trouble::Away | Trouble::Empty if self.stores.away.is_some() || self.stores.emptied.is_some() => {
                self.stats.troubles -= 1;
            }
            Trouble::Away => {
                self.note(format!("store {} is away from now on", at + 1));
                self.stats.away += 1;
                self.stores.away = Some(at);
                self.keep_away();
            }
            Trouble::Empty => {
                let objects = self.stores.servers[at].empty(self.broken == Some(Broken::SlotForgotten));
                self.stores.emptied = Some(at);
                self.stats.emptied += 1;
                let back = self.stores.rng.chance(400);
                self.note(format!("store {} lost its {objects} objects (down: {back})", at + 1));
                if back {
                    self.spoil(Some(at), &down);
                    self.calm_later(at, 100, 4_000);
                }
            }
            _ if self.stores.away == Some(at) => {}
            Trouble::Down => {
                self.note(format!("store {} is down", at + 1));
                self.spoil(Some(at), &down);
                self.calm_later(at, 200, 8_000);
            }
            Trouble::Cut => {
                let host = self.stores.rng.below(self.hosts.len() as u64) as usize;
                self.note(format!("{} does not reach store {}", host + 1, at + 1));
                self.hosts[host].set_ways(Some(at), &down);
                self.calm_later(at, 200, 6_000);
            }
            Trouble::Faults => {
                let rate = self.stores.rng.pick(&[20, 150, 400]);
                self.note(format!("store {}: {rate} of 1000 fail, and as many lose their answer", at + 1));
                let faults =
                    Faults { fail_before: rate, fail_after: rate, own_conflict: rate / 4, ..Faults::default() };
                let faults = Faults { missing_once: rate / 4, stale_list: rate, truncate: rate / 4, ..faults };
                self.spoil(Some(at), &faults);
                self.calm_later(at, 500, 8_000);
            }
            Trouble::Slow => {
                let ms = self.stores.rng.pick(&[100, 800, 3_000, 20_000]);
                self.note(format!("store {} answers after {ms} ms more", at + 1));
                let faults = Faults { slow: 1000, slow_by: Duration::from_millis(ms), ..Faults::default() };
                self.spoil(Some(at), &faults);
                self.calm_later(at, 500, 8_000);
            }
            Trouble::Late => {
                let rng = &mut self.stores.rng;
                let late = Late { rate: rng.pick(&[0, 30, 150]), most: rng.pick(&[300, 2_000, 6_000]) * MS };
                self.note(format!("store {}: {late:?}", at + 1));
                self.stores.servers[at].set_late(late);
            }
        }
    }

    /// SIMSTORE-D3, after everything has healed and without writes.
    ///
    /// # Errors
    /// The broken rule.
    pub fn settle_stores(&mut self) -> Result<()> {
        if !self.stores.several() {
            return Ok(());
        }
        let key = self.set_key().context("no key of the set")?;
        let begun = self.now;
        loop {
            let known = self.known();
            let lacking = match &known {
                Some(known) => {
                    let copies = self.stores.copies(&key, &known.kept)?;
                    self.lacking(&key, &copies)?
                }
                None => Some("no state".to_string()),
            };
            let Some(lacking) = lacking else { break };
            if self.now >= begun + 120_000 * MS {
                bail!("SIMSTORE-D3: 120 s after every fault a store is not whole: {lacking}");
            }
            for _ in 0..100 {
                self.tick()?;
            }
        }
        self.stores.emptied = None;
        let kept = self.known().map(|known| known.kept).unwrap_or_default();
        for object in self.stores.copies(&key, &kept)?.keys() {
            let mut copies = self.stores.servers.iter().map(|server| server.object(object));
            let first = copies.next().flatten();
            if first.is_none() || copies.any(|copy| copy != first) {
                bail!("SIMSTORE-D3: the copies of {object} differ");
            }
        }
        self.note("every store has everything");
        Ok(())
    }

    /// With each store down in turn, everything is read back after a power cut of all, and a checkpoint is made. In a
    /// short run only one store.
    ///
    /// # Errors
    /// The broken rule.
    pub fn without_each_store(&mut self) -> Result<()> {
        if !self.stores.several() {
            return Ok(());
        }
        let first = self.stores.rng.below(STORES as u64) as usize;
        let count = if self.short { 1 } else { STORES };
        for away in (0..count).map(|at| (first + at) % STORES) {
            self.all_in_the_store()?;
            self.settle_stores()?;
            self.note(format!("store {} is away", away + 1));
            self.stores.away = Some(away);
            self.keep_away();
            self.power_and_read_back().with_context(|| format!("without store {}", away + 1))?;
            self.works("writes and reads without a store")?;
            self.settle_snapshots()?;
            self.all_in_the_store().with_context(|| format!("without store {}", away + 1))?;
            self.stores.away = None;
            self.calm_stores();
        }
        Ok(())
    }
}
