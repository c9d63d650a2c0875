//! Changes of a set's data key (ADR 0023), in one of three histories. Group 0's ring of keys is a list of its states
//! after each entry. Gateways hear of it late; a starting one knows the state some entries ago. Leaders' reports of
//! their roots are acted upon at once or much later.
//!
//! HISTKEY-K1  After each step every named object in the store is under a key that the ring has now.
//! HISTKEY-K2  The head alone has the keys of everything that it names: a recovery has nothing else.
//! HISTKEY-K3  At rest only the newest key remains, and those that a snapshot or a clone needs.

mod steps;

use super::units::{GATEWAYS, SET};
use crate::rng::Rng;
use holdfast_control::keys::data::{Needs, Next, Ring, Said, next};
use holdfast_seal::{DataKey, WRAPPED_KEY_BYTES, ring_ids};
use holdfast_set::mapping::SetKey;
use holdfast_types::{MemberId, Name, SetId};
use holdfast_volume::head::{Argon2id, Keyring};
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

    /// Whether the key changes in this history.
    pub fn changes(&self) -> bool {
        self.changes
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
        let said: Vec<Said> = (1..=GATEWAYS).map(said).collect();
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
