//! What the connections of a front share: limits, exports, memory for requests, and the lists of the connections.
//!
//! FRONT-H1  Strangers keep nobody out, and fill no log. At the limit of handshakes the oldest one makes room, first
//!     one whose client has shown no certificate; but clients with a certificate have at most half of the places for
//!     long, or the others would be closed before they can show theirs. Lines about clients that are not served are
//!     limited.

use super::budget::Pool;
use super::device::{ConnInfo, Exports, Refusal, RefusalKind};
use super::limits::{FrontLimits, LimitsError};
use holdfast_nbd::ExportName;
use holdfast_types::sync::LockExt;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Lines about clients that are not served, at most, in each [`LINES_FOR`]: a flood must not fill the log.
const LINES_MAX: u32 = 50;
const LINES_FOR: Duration = Duration::from_secs(10);

pub(super) struct Shared {
    pub(super) limits: FrontLimits,
    pub(super) exports: Arc<dyn Exports>,
    pub(super) pool: Pool,
    next_id: AtomicU64,
    pub(super) stop: CancellationToken,
    connections: Mutex<Connections>,
    /// Since when the lines of the present interval are counted, and how many there were.
    lines: Mutex<Option<(Instant, u32)>>,
}

#[derive(Default)]
struct Connections {
    /// By whether its client has a certificate for NBD, and by age.
    shaking: BTreeMap<(bool, u64), CancellationToken>,
    serving: BTreeMap<u64, ServedConnection>,
    /// Those that serve, or are about to, and whose client has a certificate for NBD: one of them that goes back to its
    /// handshake is no stranger.
    secure: BTreeSet<u64>,
}

/// A connection in transmission, for monitoring.
#[derive(Clone, Debug)]
pub struct ServedConnection {
    /// Its id and peer.
    pub info: ConnInfo,
    /// The export that it has open.
    pub name: ExportName,
    pub(super) stop: CancellationToken,
}

impl ServedConnection {
    /// Closes it, unanswered (R8).
    pub fn close(&self) {
        self.stop.cancel();
    }
}

/// Removes a connection from the lists when its task ends, for whatever reason.
pub(super) struct Listed<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        let mut connections = self.shared.connections();
        connections.forget_shaking(self.id);
        connections.serving.remove(&self.id);
        connections.secure.remove(&self.id);
    }
}

impl Connections {
    fn forget_shaking(&mut self, id: u64) -> Option<CancellationToken> {
        let secure = self.shaking.remove(&(true, id));
        secure.or_else(|| self.shaking.remove(&(false, id)))
    }

    /// FRONT-H1. The handshake that makes room for the next one.
    fn first_to_go(&mut self, limit: usize) -> Option<(u64, CancellationToken)> {
        let oldest_secure = self.shaking.range((true, 0_u64)..).next().map(|(key, _)| *key);
        let newcomers = self.shaking.range(..(true, 0_u64)).count();
        // Newcomers have half of the places: each needs some time to show its certificate.
        let key = oldest_secure.filter(|_| newcomers < limit / 2);
        let (key, stop) = match key {
            Some(key) => self.shaking.remove_entry(&key)?,
            None => self.shaking.pop_first()?,
        };
        Some((key.1, stop))
    }
}

impl Shared {
    /// # Errors
    /// Contradictory limits.
    pub(super) fn new(limits: FrontLimits, exports: Arc<dyn Exports>) -> Result<Self, LimitsError> {
        limits.validate()?;
        Ok(Self {
            pool: Pool::new(&limits),
            limits,
            exports,
            next_id: AtomicU64::new(1),
            stop: CancellationToken::new(),
            connections: Mutex::default(),
            lines: Mutex::default(),
        })
    }

    /// Whether a line about a client that is not served may be logged now.
    pub(super) fn may_say(&self) -> bool {
        let now = Instant::now();
        let mut lines = self.lines.locked();
        let (since, said) = lines.filter(|(since, _)| now.duration_since(*since) < LINES_FOR).unwrap_or((now, 0));
        *lines = Some((since, said.saturating_add(1)));
        said < LINES_MAX
    }

    /// An id for a new connection.
    pub(super) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Connections that are in transmission now.
    pub(super) fn serving(&self) -> Vec<ServedConnection> {
        self.connections().serving.values().cloned().collect()
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.locked()
    }

    /// Registers a new connection, until the answer is dropped. If there are too many handshakes, closes one
    /// (FRONT-H1).
    pub(super) fn admit(&self, id: u64, stop: &CancellationToken) -> Listed<'_> {
        let mut connections = self.connections();
        if connections.shaking.len() >= self.limits.handshakes
            && let Some((oldest, evicted)) = connections.first_to_go(self.limits.handshakes)
        {
            evicted.cancel();
            if self.may_say() {
                tracing::warn!(connection = oldest, "too many NBD handshakes at once: closing the oldest");
            }
        }
        connections.shaking.insert((false, id), stop.clone());
        Listed { shared: self, id }
    }

    /// The client of a handshake has shown a certificate for NBD: it makes room for others last.
    pub(super) fn secured(&self, id: u64) {
        let mut connections = self.connections();
        if let Some(stop) = connections.shaking.remove(&(false, id)) {
            connections.shaking.insert((true, id), stop);
        }
    }

    /// From handshake to transmission. At the connection limit, a connection with a session replaces one without. Those
    /// without need no token, so a client that holds many of them must not keep an attached host out. The oldest
    /// connection to a snapshot goes first, since any gateway can serve it.
    ///
    /// # Errors
    /// The connection limit is reached.
    pub(super) fn promote(&self, connection: ServedConnection) -> Result<(), Refusal> {
        let mut connections = self.connections();
        if connections.serving.len() >= self.limits.connections {
            let rank = |c: &ServedConnection| (c.name.snapshot.is_none(), c.info.id);
            let guests = connections.serving.values().filter(|c| c.name.session.is_none());
            let guest = guests.map(rank).min().filter(|_| connection.name.session.is_some());
            let Some((_, id)) = guest else {
                let found = connections.serving.len();
                let message = format!(
                    "this gateway has reached its limit of {found} NBD connections: close some, or try again later"
                );
                return Err(Refusal { kind: RefusalKind::NotHere, message });
            };
            if let Some(guest) = connections.serving.remove(&id) {
                tracing::info!(connection = id, export = %guest.name, "too many connections: closed in favour of one with a token");
                guest.close();
            }
        }
        if connections.shaking.contains_key(&(true, connection.info.id)) {
            connections.secure.insert(connection.info.id);
        }
        connections.forget_shaking(connection.info.id);
        connections.serving.insert(connection.info.id, connection);
        Ok(())
    }

    /// Back to the handshake: the connection was refused after all.
    pub(super) fn demote(&self, id: u64) {
        let mut connections = self.connections();
        if let Some(connection) = connections.serving.remove(&id) {
            let secure = connections.secure.remove(&id);
            connections.shaking.insert((secure, id), connection.stop);
        }
    }
}
