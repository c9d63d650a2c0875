//! Locking without the `Result` of `std::sync`.
//!
//! `std` poisons a lock when a thread panics while it holds it. A panic ends our processes (`panic = "abort"`), so no
//! one ever meets a poisoned lock outside tests. These methods return the guard and ignore poison.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// [`Mutex::lock`] without poison.
pub trait LockExt<T: ?Sized> {
    /// Locks, and waits for it where another thread holds it.
    fn locked(&self) -> MutexGuard<'_, T>;
}

/// [`RwLock::read`] and [`RwLock::write`] without poison.
pub trait RwLockExt<T: ?Sized> {
    /// Locks for reading.
    fn reading(&self) -> RwLockReadGuard<'_, T>;

    /// Locks for writing.
    fn writing(&self) -> RwLockWriteGuard<'_, T>;
}

impl<T: ?Sized> LockExt<T> for Mutex<T> {
    fn locked(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> RwLockExt<T> for RwLock<T> {
    fn reading(&self) -> RwLockReadGuard<'_, T> {
        self.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn writing(&self) -> RwLockWriteGuard<'_, T> {
        self.write().unwrap_or_else(PoisonError::into_inner)
    }
}
