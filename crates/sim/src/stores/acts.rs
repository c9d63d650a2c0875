//! Faults of the stores of a world, and the rules that hold for all of them.

use super::{ALL, STORES, StoredEntry, Trouble, WRITE_QUORUM};
use crate::broken::Broken;
use crate::store::Late;
use crate::world::{MS, World};
use anyhow::{Context, Result, bail};
use holdfast_control::set::RootRef;
use holdfast_seal::ClusterKey;
use holdfast_set::mapping::SetKey;
use holdfast_store::{Backlog, Faults};
use holdfast_types::Name;
use std::collections::BTreeMap;
use std::time::Duration;

/// How often all copies are looked at.
const COUNT_EVERY: u64 = 250 * MS;

/// How often the entries are.
const ENTRIES_EVERY: u64 = 50 * MS;

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
        if !self.now.is_multiple_of(ENTRIES_EVERY) {
            return Ok(());
        }
        let Some(key) = self.set_key() else { return Ok(()) };
        let known = self.known();
        self.stores.check_entries(&key)?;
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
        let entries = self.stores.entries(key)?;
        if entries.iter().any(|entry| !matches!(entry, StoredEntry::Value { .. }) || *entry != entries[0]) {
            let short = |entry: &StoredEntry| match entry {
                StoredEntry::Value { ballot, .. } => format!("{ballot:?}"),
                other => format!("{other:?}"),
            };
            let entries: Vec<String> = entries.iter().map(short).collect();
            return Ok(Some(format!("entries: {entries:?}; {}", said())));
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
        let (shape, rng) = (self.shape, &mut self.stores.rng);
        let mut mix = shape.mix(rng, 600, ALL);
        if mix.is_empty() {
            mix.push(Trouble::Empty);
        }
        let pause = if dense { rng.pick(&[300, 800, 1_500]) } else { rng.pick(&[600, 1_500, 4_000]) };
        let pause = shape.pause(pause);
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
            Trouble::Empty => self.empty_store(at),
            _ if self.stores.away == Some(at) => {}
            _ => self.spoil_one(trouble, at),
        }
    }

    fn empty_store(&mut self, at: usize) {
        let objects = self.stores.servers[at].empty(self.broken == Some(Broken::SlotForgotten));
        self.stores.emptied = Some(at);
        self.stats.emptied += 1;
        let back = self.stores.rng.chance(400);
        self.note(format!("store {} lost its {objects} objects (down: {back})", at + 1));
        if back {
            self.lose_store(at);
            self.calm_later(at, 100, 4_000);
        }
    }

    /// A fault of a store that works otherwise; it ends after some time.
    fn spoil_one(&mut self, trouble: Trouble, at: usize) {
        match trouble {
            Trouble::Cut => {
                let host = self.stores.rng.below(self.hosts.len() as u64) as usize;
                self.note(format!("{} does not reach store {}", host + 1, at + 1));
                self.hosts[host].set_ways(Some(at), &Faults { down: true, ..Faults::default() });
                self.calm_later(at, 200, 6_000);
            }
            Trouble::Faults => {
                let drawn = self.stores.rng.pick(&[20, 150, 400]);
                let rate = self.shape.store_rate.unwrap_or(drawn);
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
            _ => {
                self.note(format!("store {} is down", at + 1));
                self.lose_store(at);
                self.calm_later(at, 200, 8_000);
            }
        }
    }

    /// SIMSTORE-D3, after everything has healed and without writes.
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
