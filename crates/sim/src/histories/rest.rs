//! Checks the store's content: at every step it has everything that is named, and at rest nothing else.

use super::model::{WINDOW, WINDOWS};
use super::roots::roots_of;
use super::store::Weather;
use super::world::{PATIENCE, World};
use holdfast_cache::Demand;
use holdfast_control::set::{RootRef, StoredKind, StoredObject};
use holdfast_front::device::ReadPart;
use holdfast_set::head;
use holdfast_set::reader::Part;
use holdfast_store::keys;
use holdfast_types::{Lba, Name, ObjectId, SECTOR_BYTES, Sectors, SetId, VolumeId};
use holdfast_volume::head::{Head, Standing};
use holdfast_volume::map::{LeafRef, open_leaf, open_top};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::sleep;

/// Interval between two checks whether the set has come to rest.
const LOOK: Duration = Duration::from_millis(200);

fn key_of(set: SetId, stored: StoredObject) -> String {
    let kind = match stored.kind {
        StoredKind::Root => keys::Kind::Root,
        StoredKind::Pages => keys::Kind::MapPack,
        StoredKind::Segment => keys::Kind::Segment,
    };
    keys::object(set, kind, stored.object)
}

impl World {
    /// Everything that a root names, itself included.
    fn named_by(&mut self, root: RootRef) -> Result<Vec<String>, String> {
        if let Some(named) = self.roots.named.get(&root.object) {
            return Ok(named.clone());
        }
        let (mut named, mut next) = (Vec::new(), Some((self.common.key.clone(), root)));
        // For a clone also what its origin retains for it, and the origin's origin.
        while let Some((of, at)) = next.take() {
            let key = keys::root(of.set, at.object);
            let lost = || format!("R7: root {key} is named by set {}, and not there", self.common.set);
            let bytes = self.common.store.objects(&key).pop().ok_or_else(lost)?;
            let top = open_top(&of.opener(at.object), &bytes).map_err(|e| format!("R9: {key}: {e}"))?;
            let mut lost = String::new();
            let leaf = |leaf: &LeafRef| {
                let (place, pack) = (leaf.at.range(), keys::map_pack(of.set, leaf.at.object));
                let found = self.common.store.objects(&pack).pop();
                let sealed =
                    found.and_then(|bytes| bytes.get(place.start as usize..place.end as usize).map(<[u8]>::to_vec));
                let Some(sealed) = sealed else {
                    lost = format!("R7: {pack}, with leaves of root {key}, is not there");
                    return None;
                };
                open_leaf(&of.opener(leaf.at.object), leaf, &sealed).map_err(|e| lost = format!("R9: {pack}: {e}")).ok()
            };
            let opened = top.complete(leaf);
            let opened = opened.map_err(|e| if lost.is_empty() { format!("R9: {key}: {e}") } else { lost })?;
            self.stats.roots_in_leaves += u64::from(opened.is_in_leaves());
            named.extend(opened.names().map(|stored| key_of(of.set, stored)));
            named.push(key);
            if let Some(base) = opened.base() {
                let key = self.common.others.as_ref().and_then(|others| others.key(base.set));
                next = Some((key.ok_or_else(|| format!("no key of set {}", base.set))?, base.root));
            }
        }
        self.roots.named.insert(root.object, named.clone());
        Ok(named)
    }

    /// The heads that a recovery may find, newest last: one of several stores may have the newest alone.
    fn heads(&mut self) -> Result<Vec<Head>, String> {
        let mut heads = Vec::new();
        for bytes in self.common.store.objects(&keys::head(self.common.set)) {
            let known = self.roots.heads.iter().find(|(known, _)| *known == bytes);
            let head = match known {
                Some((_, head)) => head.clone(),
                None => head::open(&self.common.key, &bytes).map_err(|e| format!("R9: the head: {e}"))?,
            };
            if head.standing(self.common.life) != Standing::Ours {
                return Err(format!("the head is another life's: {:?}", head.life));
            }
            heads.push((bytes, head));
        }
        self.roots.heads = heads;
        Ok(self.roots.heads.iter().map(|(_, head)| head.clone()).collect())
    }

    pub fn head(&mut self) -> Result<Option<Head>, String> {
        Ok(self.heads()?.pop())
    }

    /// The keys of everything named by the state or by a head for a recovery.
    pub fn named(&mut self) -> Result<BTreeSet<String>, String> {
        let mut named = BTreeSet::new();
        for root in self.state().kept_roots() {
            named.extend(self.named_by(root)?);
        }
        // A recovery would retain the head's pins and snapshots, also those released since.
        for head in self.heads()? {
            for root in roots_of(&head) {
                named.extend(self.named_by(root)?);
            }
        }
        Ok(named)
    }

    /// Everything named is there, including that of unprocessed dropped roots. The error names the missing object.
    pub fn check_named(&mut self) -> Result<(), String> {
        self.state().self_check();
        let mut named = self.named()?;
        named.extend(self.state().dropped.keys().map(|root| keys::root(self.common.set, *root)));
        match named.iter().find(|key| !self.common.store.has(key)) {
            Some(lost) => Err(format!("R7: {lost} was deleted, and something names it")),
            None => Ok(()),
        }
    }

    /// R9: damages, for good, a dropped root that was not processed yet.
    pub fn spoil_a_dropped_root(&mut self) -> Result<(), String> {
        let heads = self.heads()?;
        let named: Vec<ObjectId> = heads.iter().flat_map(roots_of).map(|root| root.object).collect();
        let dropped = self.state().dropped;
        let Some(object) = dropped.keys().copied().find(|object| !named.contains(object)) else { return Ok(()) };
        let key = keys::root(self.common.set, object);
        if self.common.store.damage(&key) {
            self.say(|| format!("{key} is damaged"));
            self.stats.rotten += 1;
            self.roots.rotten_in = Some(self.term());
        }
        Ok(())
    }

    /// Sometimes restarts a checkpoint under way, by setting the set's store to the same value; requests already sent
    /// take effect.
    pub fn begin_anew(&mut self) {
        if self.rot.chance(30) && !self.common.store.several() {
            self.say(|| "a checkpoint that is under way is begun anew".to_string());
            let switch = &self.gateway.server.switch;
            switch.set(&switch.text(), switch.pinned());
        }
    }

    /// Unnamed objects in the store; `None` if something still waits.
    fn leaked(&mut self) -> Result<Option<Vec<String>>, String> {
        let state = self.state();
        // The leader's own checkpoint: it sweeps only after one, and only then nothing may remain.
        let waits = !self.gateway.server.head.committed_in(self.term())
            || state.begin.is_some()
            || state.rolled_back.is_some()
            || !state.pending.is_empty()
            || !state.dropped.is_empty()
            || !state.retired.is_empty()
            || self.keys_wait();
        if waits {
            return Ok(None);
        }
        let mut named = self.named()?;
        named.insert(keys::head(self.common.set));
        let mut there = self.common.store.present();
        if let Some(lost) = named.difference(&there).next() {
            return Err(format!("R7: {lost} is named, and not there"));
        }
        // HISTSTORE-D2: filled in time.
        if self.common.store.lacking(&named).is_some() {
            return Ok(None);
        }
        there.retain(|key| keys::set_of(key) == Some(self.common.set));
        Ok(Some(there.difference(&named).cloned().collect()))
    }

    async fn wait_for_rest(&mut self) -> Result<(), String> {
        let mut waited = Duration::ZERO;
        // Missing copies at one of several stores are compared, searched and copied at intervals of seconds.
        let patience = if self.common.store.several() { 10 * PATIENCE } else { PATIENCE };
        loop {
            self.check_named()?;
            self.settle_keys();
            self.check_keys()?;
            let leaked = self.leaked()?;
            match &leaked {
                Some(leaked) if leaked.is_empty() => return Ok(()),
                _ if waited < patience => {}
                Some(leaked) => return Err(format!("leaked: {leaked:?}")),
                None => return Err(format!("no rest in {patience:?}: {:?}", self.state())),
            }
            sleep(LOOK).await;
            waited += LOOK;
        }
    }

    /// Whether the present leader must find all unnamed objects, and all data under older keys, by itself. Exceptions:
    /// objects that only a damaged root named, and late copies at one of several stores, are found by the next term's
    /// sweep.
    fn rests_as_it_is(&self) -> bool {
        self.roots.rotten_in != Some(self.term()) && !self.common.store.several()
    }

    /// Brings the set to rest: the store answers, there are no writes, and the leader has all the time it needs: first
    /// the present one (SPACE-G4), then a new one. Then everything is read, and the store must hold exactly what the
    /// state names.
    pub async fn come_to_rest(&mut self) -> Result<(), String> {
        self.set_weather(Weather::default());
        {
            let mut order = self.common.journal.order();
            (order.lost, order.late) = (0, 0);
        }
        if self.rests_as_it_is() {
            self.forget_ghost();
            self.gateway.server.head.want_checkpoint();
            self.wait_for_rest().await.map_err(|why| format!("SPACE-G4: without another leader: {why}"))?;
        }
        self.take_over().await?;
        self.forget_ghost();
        self.gateway.server.head.want_checkpoint();
        self.wait_for_rest().await?;
        self.compare_state()?;
        let volumes = self.common.journal.order().model.now.clone();
        for (id, volume) in &volumes {
            // The windows, and a piece between two of them.
            let between = [(WINDOW, 64), (WINDOWS[2] - 64, 64)];
            for (lba, sectors) in WINDOWS.map(|start| (start, WINDOW)).into_iter().chain(between) {
                let sectors = sectors.min(volume.size.saturating_sub(lba));
                if sectors > 0 && !self.read_range(*id, lba, sectors).await? {
                    return Err(format!("R8: {id} cannot be read though the store answers"));
                }
            }
        }
        let snapshots: Vec<Name> = self.state().snapshots.keys().cloned().collect();
        for name in &snapshots {
            if !self.read_whole_snapshot(name, true).await? {
                return Err(format!("SET-S6: snapshot {name} cannot be read though the store answers"));
            }
            // HISTORY-H4: from each snapshot to each other one, also to older ones.
            for other in &snapshots {
                if !self.compare_snapshots(name, other).await? {
                    return Err(format!("R8: {name} and {other} cannot be compared though the store answers"));
                }
            }
        }
        // Collection with a budget continues meanwhile: between a head and its checkpoint's end the head is ahead.
        self.wait_for_rest().await?;
        self.compare_recovery().await?;
        self.wait_for_rest().await
    }

    fn compare_state(&self) -> Result<(), String> {
        let state = self.state();
        let order = self.common.journal.order();
        let model = &order.model;
        let found: Vec<_> = state.volumes.iter().map(|(id, v)| (*id, v.name.clone(), v.size.0)).collect();
        let expected: Vec<_> = model.now.iter().map(|(id, v)| (*id, v.name.clone(), v.size)).collect();
        if found != expected {
            return Err(format!("volumes: found {found:?}, expected {expected:?}"));
        }
        let found: Vec<_> = state.snapshots.iter().map(|(n, s)| (n.clone(), s.request, Some(s.upto.index.0))).collect();
        let expected: Vec<_> = model.snapshots.iter().map(|(n, s)| (n.clone(), s.request, s.upto)).collect();
        if found != expected || !model.waiting.is_empty() {
            return Err(format!("SET-S6: snapshots: found {found:?}, expected {expected:?} and {:?}", model.waiting));
        }
        Ok(())
    }

    /// The state for a recovery equals the set at its last checkpoint.
    async fn compare_recovery(&mut self) -> Result<(), String> {
        let Some(head) = self.head()? else { return Err("the store has no head".to_string()) };
        let (Some(covered), Some(root)) = (head.covered, head.content.root) else {
            return Err(format!("the head names no checkpoint: {head:?}"));
        };
        let current = self.state().current_root();
        if current != Some(root) {
            let begun = self.state().begin.map(|begin| begin.at);
            return Err(format!("the head names {root:?}, expected {current:?}; under way: {begun:?}"));
        }
        let then = self.common.journal.order().model.at.get(&covered.upto.index.0).cloned().unwrap_or_default();
        let ids: Vec<VolumeId> = head.content.volumes.iter().map(|(id, _)| *id).collect();
        if !ids.iter().eq(then.keys()) {
            return Err(format!("the head has {ids:?}, expected {:?}", then.keys()));
        }
        for (id, volume) in &then {
            for start in WINDOWS {
                let sectors = WINDOW.min(volume.size.saturating_sub(start));
                if sectors == 0 {
                    continue;
                }
                let (reader, demand) = (&self.gateway.server.reader, Demand::Point);
                let read = reader.read_root(root, *id, Lba(start), Sectors(sectors), demand).await;
                let parts = read.map_err(|e| format!("R9: {id} as a recovery has it: {e}"))?;
                let parts: Vec<ReadPart> = parts
                    .into_iter()
                    .map(|part| match part {
                        Part::Data(data) => ReadPart::Data(data),
                        Part::Zeroes(sectors) => ReadPart::Zeroes((sectors.0 * SECTOR_BYTES) as u32),
                    })
                    .collect();
                volume.compare(start, sectors, &parts).map_err(|e| format!("R4: {id} as a recovery has it: {e}"))?;
            }
        }
        Ok(())
    }
}
