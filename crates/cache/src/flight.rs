//! One load per key at a time: later callers wait for the running one.

use crate::key::BlockKey;
use holdfast_types::sync::LockExt;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::OnceCell;

/// The running loads. A key is in the table only while a [`Flight`] for it exists.
#[derive(Debug)]
pub struct Flights<V> {
    under_way: Mutex<HashMap<BlockKey, Arc<OnceCell<V>>>>,
}

impl<V> Default for Flights<V> {
    fn default() -> Self {
        Self { under_way: Mutex::default() }
    }
}

/// A caller's part in a load.
pub struct Flight<'a, V> {
    flights: &'a Flights<V>,
    key: BlockKey,
    cell: Arc<OnceCell<V>>,
}

impl<V> Flights<V> {
    fn lock(&self) -> MutexGuard<'_, HashMap<BlockKey, Arc<OnceCell<V>>>> {
        self.under_way.locked()
    }

    /// Joins the load of `key`.
    pub fn join(&self, key: BlockKey) -> Flight<'_, V> {
        let cell = self.lock().entry(key).or_default().clone();
        Flight { flights: self, key, cell }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }
}

impl<V> Flight<'_, V> {
    /// The cell for the value. `get_or_try_init` lets one caller at a time try; the next one tries after a failure, or
    /// if the current one is dropped.
    pub fn cell(&self) -> &OnceCell<V> {
        &self.cell
    }

    /// Number of other participants.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        Arc::strong_count(&self.cell) - 2
    }
}

impl<V> Drop for Flight<'_, V> {
    /// The last participant removes the key.
    fn drop(&mut self) {
        let mut under_way = self.flights.lock();
        if let Entry::Occupied(entry) = under_way.entry(self.key) {
            // Two references: the table's and ours. Nobody joins meanwhile, since joining takes the lock.
            if Arc::ptr_eq(entry.get(), &self.cell) && Arc::strong_count(&self.cell) == 2 {
                entry.remove();
            }
        }
    }
}
