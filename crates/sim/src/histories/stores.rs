//! The store of a history: one, or three of which two must have an object before it counts (ADR 0018).
//!
//! HISTSTORE-D1  The head that any two of three stores show is valid for a recovery: everything that it names is there.
//! HISTSTORE-D2  A named object is in at least two stores. At rest it is in all three, and no other object is.
//! HISTSTORE-D3  Only one store at a time is down or refuses everything: that is what two of three tolerate. Other
//!     faults hit all of them.

use super::store::{Server, Weather};
use crate::stores::{StoredEntry, entry_of};
use bytes::Bytes;
use holdfast_store::{Health, ObjectStore, Quorum, RetryPolicy, Retrying, keys};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Number of stores, if several.
pub const STORES: u64 = 3;
/// Stores that must have an object.
const WRITE_QUORUM: usize = 2;

/// See the module. Clones are the same.
#[derive(Clone, Debug)]
pub struct Stores(Vec<Server>);

impl Stores {
    /// For a seed: one store, or `several`.
    pub fn new(seed: u64, several: bool) -> Self {
        let count = if several { STORES } else { 1 };
        Self((0..count).map(|at| Server::new(seed, at)).collect())
    }

    /// Whether an object lies in several.
    pub fn several(&self) -> bool {
        self.0.len() > 1
    }

    /// The store for a gateway: with its own way to each.
    pub fn open(&self, policy: &RetryPolicy, health: &Arc<Health>) -> Arc<dyn ObjectStore> {
        let one = |server: &Server, health: &Arc<Health>| -> Arc<dyn ObjectStore> {
            Arc::new(Retrying::new(server.clone(), policy.clone()).observed(health.clone()))
        };
        match &self.0[..] {
            [only] => one(only, health),
            all => {
                let own = |server| {
                    let own = Arc::new(Health::new(health.label()));
                    (one(server, &own), Some(own))
                };
                Arc::new(Quorum::new(all.iter().map(own).collect(), WRITE_QUORUM))
            }
        }
    }

    /// Sets the faults from now on; the worst ones hit only one of several stores (HISTSTORE-D3).
    pub fn set(&self, weather: Weather) {
        for (at, server) in self.0.iter().enumerate() {
            let spared = self.several() && at as u64 != weather.at;
            let fair = Weather { down: false, denied: false, ..weather };
            server.set(if spared { fair } else { weather });
        }
    }

    /// The keys of all objects in any store.
    pub fn present(&self) -> BTreeSet<String> {
        self.0.iter().flat_map(Server::present).collect()
    }

    /// A key of `named` that the current store lacks; if none, of the next store.
    pub fn lacking(&self, named: &BTreeSet<String>) -> Option<String> {
        self.0.iter().find_map(|server| named.difference(&server.present()).next().cloned())
    }

    /// Whether this object counts as being there.
    pub fn has(&self, key: &str) -> bool {
        let copies = self.0.iter().filter(|server| server.has(key)).count();
        copies >= if self.several() { WRITE_QUORUM } else { 1 }
    }

    /// An object as stored; for a register every value that some two of three show as the newest (HISTSTORE-D1), the
    /// newest of these last.
    pub fn objects(&self, key: &str) -> Vec<Bytes> {
        if !self.several() || keys::set_of(key).is_none_or(|set| keys::head(set) != key) {
            return self.0.iter().find_map(|server| server.object(key)).into_iter().collect();
        }
        // A store with a lost or marked entry takes part in no round (QUORUM-Q2), so it is none of the two.
        let entry = |server: &Server| match entry_of(server.object(key).as_ref()) {
            Some(StoredEntry::Value { ballot, value }) => Some(Some((ballot, value))),
            Some(StoredEntry::Blank) => Some(None),
            Some(StoredEntry::Gone | StoredEntry::Mark) | None => None,
        };
        let entries: Vec<_> = self.0.iter().filter_map(entry).collect();
        let mut found = BTreeMap::new();
        for (at, one) in entries.iter().enumerate() {
            for other in &entries[at + 1..] {
                found.extend(one.iter().chain(other).max_by_key(|(ballot, _)| *ballot).cloned());
            }
        }
        found.into_values().collect()
    }

    /// Some later reads of this object may show what it is now. Not in several stores: what a read of an entry shows is
    /// that store's vote, and a vote is never an old one.
    pub fn keep_for_stale_reads(&self, key: &str) {
        if let [only] = &self.0[..] {
            only.keep_for_stale_reads(key);
        }
    }

    /// Flips one bit of an object in every store; false if there is none.
    pub fn damage(&self, key: &str) -> bool {
        self.0.iter().filter(|server| server.damage(key)).count() > 0
    }

    /// How often each fault was played.
    pub fn played(&self) -> [u64; 8] {
        self.0.iter().map(Server::played).fold([0; 8], |sum, more| std::array::from_fn(|at| sum[at] + more[at]))
    }
}
