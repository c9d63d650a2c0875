//! Steps of a history that change data keys, and the rules.

use super::super::roots::roots_of;
use super::super::units::GATEWAYS;
use super::super::world::World;
use super::{Ledger, WORDS, data_keys, keyring, set_key};
use crate::sync::lock;
use holdfast_control::keys::data::{Next, next_key};
use holdfast_seal::ring_ids;
use holdfast_store::keys;
use holdfast_types::MemberId;
use holdfast_volume::head::read_keyring;
use holdfast_volume::map::open_top;
use holdfast_volume::object::ObjectHeader;

impl World {
    /// A step of group 0, sometimes. Checks HISTKEY-K1 and HISTKEY-K2.
    pub fn turn_keys(&mut self) -> Result<(), String> {
        let ledger = self.common.ledger.clone();
        let mut ledger = lock(&ledger);
        if !ledger.changes {
            return Ok(());
        }
        if let Some(report) = self.gateway.key.report() {
            ledger.words.push(report.needs);
            let extra = ledger.words.len().saturating_sub(WORDS);
            ledger.words.drain(..extra);
        }
        // Running gateways that do not lead: their reports may be lost by the time they lead.
        for member in (1..=GATEWAYS).map(MemberId).filter(|member| *member != self.gateway.server.me()) {
            if ledger.rng.chance(400) {
                ledger.hears(member);
            }
        }
        match ledger.rng.below(12) {
            0 => {
                if let Ok(key) = next_key(&ledger.ring()) {
                    let mut ring = ledger.ring();
                    ring.keys.insert(key);
                    ledger.ever.insert(key);
                    ledger.all(&self.common.key);
                    self.say(|| format!("data key {key} in {ring:?}"));
                    self.stats.keys_made += 1;
                    ledger.rings.push(ring);
                }
            }
            1..=4 => self.leader_hears(&mut ledger),
            5 => {
                if let Some(ghost) = &self.ghost {
                    let ring = ledger.hears(ghost.server.me());
                    ghost.key.replace(data_keys(ledger.set, &ring.keys), ring.seals);
                    ghost.server.head.set_keyring(keyring(&ring));
                }
            }
            6..=10 => {
                let late = ledger.rng.chance(300);
                let at = if late { ledger.rng.below(WORDS as u64) as usize } else { WORDS };
                let word = ledger.words.get(at).or(ledger.words.last()).cloned();
                let done = ledger.act(word.as_ref());
                self.say(|| format!("keys: {done:?} by {word:?}"));
                self.stats.keys_dropped += u64::from(matches!(done, Some(Next::Drop(_))));
            }
            _ => {}
        }
        drop(ledger);
        self.check_keys()
    }

    fn leader_hears(&self, ledger: &mut Ledger) {
        let ring = ledger.hears(self.gateway.server.me());
        self.say(|| format!("the leader hears of {ring:?}"));
        self.gateway.key.replace(data_keys(ledger.set, &ring.keys), ring.seals);
        self.gateway.server.head.set_keyring(keyring(&ring));
    }

    /// All gateways get all news, and everything possible is done.
    pub fn settle_keys(&mut self) {
        let ledger = self.common.ledger.clone();
        let mut ledger = lock(&ledger);
        for member in 1..=GATEWAYS {
            ledger.hears(MemberId(member));
        }
        let word = self.gateway.key.report().map(|report| report.needs);
        let done = ledger.act(word.as_ref());
        self.stats.keys_dropped += u64::from(matches!(done, Some(Next::Drop(_))));
        if done.is_some() {
            self.say(|| format!("keys: {done:?} by {word:?}"));
        }
        self.leader_hears(&mut ledger);
    }

    /// HISTKEY-K3: whether keys still wait for something.
    pub fn keys_wait(&self) -> bool {
        let ring = lock(&self.common.ledger).ring();
        if !ring.is_changing() {
            return false;
        }
        let Some(report) = self.gateway.key.report() else { return true };
        let needed = |key: &u32| report.held.iter().any(|(held, _)| held == key);
        let old = || ring.keys.iter().filter(|key| **key < ring.newest());
        ring.seals < ring.newest() || !old().all(needed) || report.uses.keys().any(|key| *key < ring.newest())
    }

    /// Checks HISTKEY-K1 and HISTKEY-K2.
    pub fn check_keys(&mut self) -> Result<(), String> {
        let (changed, ring) = {
            let ledger = lock(&self.common.ledger);
            // A later life changes none, and may still drop old ones.
            (ledger.changes || ledger.ever.len() > 1, ledger.ring())
        };
        if !changed {
            return Ok(());
        }
        let set = self.common.set;
        let under = |bytes: &bytes::Bytes| ObjectHeader::decode(bytes).map(|header| header.key_id);
        for key in self.named()?.iter().filter(|key| keys::set_of(key) == Some(set)) {
            let Some(bytes) = self.common.store.objects(key).pop() else { continue };
            let id = under(&bytes).map_err(|e| format!("R9: {key}: {e}"))?;
            if !ring.keys.contains(&id) {
                return Err(format!("HISTKEY-K1: {key} is named and under data key {id}; there are {ring:?}"));
            }
        }
        for bytes in self.common.store.objects(&keys::head(set)) {
            let (header, found) = read_keyring(&bytes).map_err(|e| format!("R9: the head: {e}"))?;
            let ids = ring_ids(&found.wrapped_key);
            if !ids.contains(&header.key_id) {
                return Err(format!("HISTKEY-K2: the head is under data key {}, and has {ids:?}", header.key_id));
            }
            let alone = set_key(set, &ids, header.key_id);
            let head = holdfast_set::head::open(&alone, &bytes).map_err(|e| format!("HISTKEY-K2: the head: {e}"))?;
            for root in roots_of(&head) {
                let key = keys::root(set, root.object);
                let Some(bytes) = self.common.store.objects(&key).pop() else { continue };
                let opened =
                    open_top(&alone.opener(root.object), &bytes).map_err(|e| format!("HISTKEY-K2: {key}: {e}"))?;
                if !opened.keys_needed().is_subset(&ids) {
                    return Err(format!("HISTKEY-K2: {key} needs {:?}, the head has {ids:?}", opened.keys_needed()));
                }
            }
        }
        Ok(())
    }
}
