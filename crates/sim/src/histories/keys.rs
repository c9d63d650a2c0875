//! Changes of a set's data key (ADR 0023), in one of three histories. Group 0's ring of keys is a list of its states
//! after each entry. Gateways hear of it late; a starting one knows the state some entries ago. Leaders' reports of
//! their roots are acted upon at once or much later.
//!
//! HISTKEY-K1  After each step every named object in the store is under a key that the ring has now.
//! HISTKEY-K2  The head alone has the keys of everything that it names: a recovery has nothing else.
//! HISTKEY-K3  At rest only the newest key remains, and those that a snapshot or a clone needs.

use super::gateway::SET;
use super::journal::lock;
use super::rest::roots_of;
use super::world::World;
use crate::rng::Rng;
use holdfast_control::keys::data::{Needs, Next, Ring, Said, next, next_key};
use holdfast_seal::{DataKey, WRAPPED_KEY_BYTES, ring_ids};
use holdfast_set::mapping::SetKey;
use holdfast_store::keys;
use holdfast_types::{MemberId, Name, SetId};
use holdfast_volume::head::{Argon2id, Keyring, read_keyring};
use holdfast_volume::map::open_top;
use holdfast_volume::object::ObjectHeader;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// One in this many histories changes keys.
const ONE_IN: u64 = 3;
/// Leaders' reports that are remembered.
const WORDS: usize = 16;
/// Most entries that a starting gateway may be behind.
const BEHIND: u64 = 3;

/// Group 0's part for the keys of one set.
pub struct Ledger {
    set: SetId,
    changes: bool,
    rng: Rng,
    rings: Vec<Ring>,
    /// Keys that each gateway ever reported.
    said: BTreeMap<MemberId, BTreeSet<u32>>,
    words: Vec<Needs>,
    /// Every key that ever existed.
    ever: BTreeSet<u32>,
}

fn data_key(set: SetId, id: u32) -> DataKey {
    let mut bytes = [if set == SET { 6 } else { set.0 as u8 }; 32];
    if id > 1 {
        bytes[..4].copy_from_slice(&id.to_le_bytes());
    }
    DataKey::from_bytes(bytes)
}

fn data_keys(set: SetId, ids: &BTreeSet<u32>) -> BTreeMap<u32, DataKey> {
    ids.iter().map(|id| (*id, data_key(set, *id))).collect()
}

/// The keys of a gateway that opened this ring.
///
/// # Panics
/// If `seals` is not among them.
pub fn set_key(set: SetId, ids: &BTreeSet<u32>, seals: u32) -> SetKey {
    SetKey::of_ring(set, data_keys(set, ids), seals)
        .unwrap_or_else(|| panic!("DATAKEY-Z3: {seals} is not among {ids:?}"))
}

/// Fake wrapped keys with the right numbers.
pub fn wrapped(ids: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let one = |id: u32| {
        let mut bytes = vec![1; WRAPPED_KEY_BYTES];
        bytes[16..20].copy_from_slice(&id.to_le_bytes());
        bytes
    };
    ids.into_iter().flat_map(one).collect()
}

fn keyring(ring: &Ring) -> Keyring {
    Keyring { wrapped_key: wrapped(ring.keys.iter().copied()), passphrase: Argon2id::ours([0; 16]) }
}

impl Ledger {
    /// For a set, or a life of one, that begins with this ring.
    pub fn new(set: SetId, seed: u64, wrapped_key: &[u8], seals: u32) -> Arc<Mutex<Self>> {
        let ring = Ring { keys: ring_ids(wrapped_key), seals };
        let (said, words, ever) = (BTreeMap::new(), Vec::new(), ring.keys.clone());
        let changes = seed % ONE_IN == 1;
        Arc::new(Mutex::new(Self { set, changes, rng: Rng::new(seed, 13), rings: vec![ring], said, words, ever }))
    }

    fn ring(&self) -> Ring {
        self.rings.last().cloned().unwrap_or_default()
    }

    /// A starting gateway's knowledge: the present ring, or that of some entries ago.
    pub fn start(&mut self) -> (SetKey, Keyring) {
        let behind = if self.changes { self.rng.below(BEHIND + 1) as usize } else { 0 };
        let ring = &self.rings[self.rings.len().saturating_sub(1 + behind)];
        (set_key(self.set, &ring.keys, ring.seals), keyring(ring))
    }

    /// All of group 0 reaches this member.
    fn hears(&mut self, member: MemberId) -> Ring {
        let ring = self.ring();
        self.said.entry(member).or_default().extend(&ring.keys);
        ring
    }

    /// A holder of all keys that ever existed: the history itself.
    fn all(&self, key: &SetKey) {
        key.replace(data_keys(self.set, &self.ever), 1);
    }

    fn act(&mut self, word: Option<&Needs>) -> Option<Next> {
        let said = |at: u64| {
            let has = self.said.get(&MemberId(at)).cloned().unwrap_or_default();
            Said { name: Name::new(format!("g{at}")).unwrap_or_else(|e| panic!("a name: {e}")), has: Ok(has) }
        };
        let said: Vec<Said> = (1..=super::GATEWAYS).map(said).collect();
        let mut ring = self.ring();
        let next = next(&ring, &said, word);
        match &next {
            Next::Seal(key) => ring.seals = *key,
            Next::Drop(gone) => {
                ring.keys.retain(|key| !gone.contains(key));
            }
            Next::Nothing | Next::Waits(_) => return None,
        }
        self.rings.push(ring);
        Some(next)
    }
}

impl World {
    /// A step of group 0, sometimes.
    ///
    /// # Errors
    /// HISTKEY-K1, HISTKEY-K2.
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
        for member in (1..=super::GATEWAYS).map(MemberId).filter(|member| *member != self.gateway.server.me()) {
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
        for member in 1..=super::GATEWAYS {
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

    /// Whether this history changes data keys.
    pub fn changes_keys(&self) -> bool {
        lock(&self.common.ledger).changes
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

    /// # Errors
    /// HISTKEY-K1, HISTKEY-K2.
    pub fn check_keys(&mut self) -> Result<(), String> {
        let (changes, ring) = {
            let ledger = lock(&self.common.ledger);
            (ledger.changes, ledger.ring())
        };
        if !changes {
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
