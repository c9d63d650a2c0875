//! Mutexes of the simulation.

use holdfast_types::sync::LockExt;
use std::sync::{Mutex, MutexGuard};

/// Locks a mutex. A panic elsewhere is noted by itself, so that a poisoned mutex is used on.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.locked()
}
