//! The limits of the set's clients (SET-S18), at the connections that this gateway serves. They follow the set's state
//! as it is applied here.

use super::SetServer;
use super::throttles::{Shared, rates};
use holdfast_front::{Throttle, Throttles};
use holdfast_types::VolumeId;
use holdfast_types::sync::LockExt;
use std::sync::Arc;
use std::time::Duration;

impl SetServer {
    /// The limits of a connection to this volume, as they are and as they will be. Those of deleted volumes are
    /// dropped. Others stay without connections: a client that comes again finds what it owes.
    pub fn throttles(&self, volume: VolumeId) -> Throttles {
        self.follow_limits();
        let mut shared = self.throttles.locked();
        let Shared { of_set, volumes, known } = &mut *shared;
        self.host.with(|m| volumes.retain(|id, _| m.state().volumes.contains_key(id)));
        let throttle = volumes.entry(volume).or_insert_with(|| {
            let throttle = Throttle::default();
            throttle.set(rates(known.of(volume)));
            Arc::new(throttle)
        });
        Throttles { volume: throttle.clone(), ..of_set.clone() }
    }

    /// Hands the limits of the state as applied here to the connections, if they have changed.
    pub(super) fn follow_limits(&self) {
        let mut shared = self.throttles.locked();
        let changed = self.host.with(|m| {
            let limits = &m.state().limits;
            (*limits != shared.known).then(|| limits.clone())
        });
        let Some(limits) = changed else { return };
        tracing::info!(set = %self.name, limit = %limits.set, volumes = limits.volumes.len(), "client limits changed");
        shared.of_set.set.set(rates(limits.set));
        for (volume, throttle) in &shared.volumes {
            throttle.set(rates(limits.of(*volume)));
        }
        shared.known = limits;
    }

    /// How many requests of clients have waited here for a limit of their volume or of the set, and for how long in
    /// total. Since the start of the process.
    pub fn throttled(&self) -> (u64, Duration) {
        let shared = self.throttles.locked();
        (shared.of_set.waited.requests(), shared.of_set.waited.time())
    }
}
