//! The roots of the map that are kept in memory: the current one, the one before for reads under way, and some for exports of snapshots.
//!
//! A root of a large set is tens of megabytes. After a takeover every read wants it at once, so whoever comes while it is loaded waits for that load; and what
//! is used stays before what is not: exports of many snapshots must not push out the root that every read of the set needs.

use crate::cache::BlockKey;
use crate::cache::Flights;
use holdfast_control::set::RootRef;
use holdfast_volume::map::Root;
use std::collections::VecDeque;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Roots kept: those of the set, and of a clone's origins the ones that its reads go through.
const ROOTS_MAX: usize = 6 + holdfast_control::set::CLONE_DEPTH_MAX as usize;

#[derive(Default)]
pub(super) struct Roots {
    /// The one that was used last is the last one.
    kept: Mutex<VecDeque<(RootRef, Arc<Root>)>>,
    loads: Flights<Arc<Root>>,
}

impl Roots {
    fn kept(&self) -> MutexGuard<'_, VecDeque<(RootRef, Arc<Root>)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The root, if it is in memory.
    pub(super) fn get(&self, at: RootRef) -> Option<Arc<Root>> {
        used(&mut self.kept(), at)
    }

    /// Keeps a root; the one that was not used for longest goes.
    pub(super) fn keep(&self, at: RootRef, root: Arc<Root>) {
        let mut kept = self.kept();
        // Whoever waited for one load keeps the same root.
        if used(&mut kept, at).is_some() {
            return;
        }
        if kept.len() >= ROOTS_MAX {
            kept.pop_front();
        }
        kept.push_back((at, root));
    }

    /// Lets go of a root.
    pub(super) fn forget(&self, at: RootRef) {
        self.kept().retain(|(known, _)| *known != at);
    }

    /// The root from memory, from whoever loads it already, or by `load`. Not kept by this. A failure is not shared: the next who waits tries.
    pub(super) async fn get_or_load<E, F>(&self, at: RootRef, load: impl FnOnce() -> F) -> Result<Arc<Root>, E>
    where
        F: Future<Output = Result<Arc<Root>, E>>,
    {
        if let Some(root) = self.get(at) {
            return Ok(root);
        }
        let flight = self.loads.join(BlockKey { object: at.object, number: 0 });
        flight
            .cell()
            .get_or_try_init(|| async {
                // A load that ended between our look and our joining.
                match self.get(at) {
                    Some(root) => Ok(root),
                    None => load().await,
                }
            })
            .await
            .cloned()
    }
}

/// The root, which is the last one to go from now on.
fn used(kept: &mut VecDeque<(RootRef, Arc<Root>)>, at: RootRef) -> Option<Arc<Root>> {
    let place = kept.iter().position(|(known, _)| *known == at)?;
    let found = kept.remove(place)?;
    let root = found.1.clone();
    kept.push_back(found);
    Some(root)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::{MemberId, ObjectId, Term};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn at(random: u128) -> RootRef {
        RootRef { object: ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }, bytes: 1 }
    }

    fn root() -> Arc<Root> {
        Arc::new(Root::default())
    }

    #[test]
    fn what_is_used_stays() {
        let roots = Roots::default();
        for n in 0..100 {
            roots.keep(at(n), root());
            assert!(roots.get(at(0)).is_some(), "used all the time, and pushed out by {n}");
            assert!(roots.kept().len() <= ROOTS_MAX);
        }
        assert!(roots.get(at(50)).is_none() && roots.get(at(99)).is_some());
        roots.forget(at(99));
        assert!(roots.get(at(99)).is_none() && roots.get(at(0)).is_some());
    }

    #[tokio::test]
    async fn whoever_comes_while_a_root_is_loaded_waits_for_that_load() {
        let roots = Roots::default();
        let (loads, gate) = (AtomicUsize::new(0), tokio::sync::Semaphore::new(0));
        let one = || async {
            let load = || async {
                loads.fetch_add(1, Ordering::Relaxed);
                drop(gate.acquire().await);
                Ok::<_, ()>(root())
            };
            let root = roots.get_or_load(at(1), load).await.unwrap();
            roots.keep(at(1), root);
        };
        let open = async {
            tokio::task::yield_now().await;
            gate.add_permits(1);
        };
        tokio::join!(one(), one(), one(), open);
        assert_eq!(loads.load(Ordering::Relaxed), 1);
        let failed = roots.get_or_load(at(2), || async { Err::<Arc<Root>, _>("no") }).await;
        assert!(failed.is_err());
        assert!(roots.get_or_load(at(2), || async { Ok::<_, ()>(root()) }).await.is_ok(), "the next one tries");
    }
}
