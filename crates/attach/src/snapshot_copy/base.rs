//! Reads the snapshot under a copy: one volume's export, from any gateway that answers.
//!
//! SCRATCH-W1  A snapshot never changes and every gateway can read it, so a read whose connection ended is sent to
//!     another gateway.
//! SCRATCH-W2  A read is tried for [`Patience::wait_max`] at most. Then it fails, and the device's user gets an error.
//! SCRATCH-W6  A read that gateways cannot answer must not end the connection of other reads again and again: after
//!     [`SHARED_LOSSES_MAX`] losses it gets a connection of its own.

use super::identity::{Identity, Presence};
use super::status::Source;
use crate::requests::{ReadPart, RequestError, Requests};
use holdfast_nbd::{Errno, ExportName, SnapshotExport};
use holdfast_tls::Connector;
use holdfast_types::Token;
use holdfast_types::sync::LockExt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Shared connections that one read may lose before it gets one of its own. A gateway closes the connection if a read
/// fails, and all other reads on it are lost, too.
const SHARED_LOSSES_MAX: u32 = 3;
/// Maximum number of a volume's connections for single reads.
const OWN_MAX: usize = 8;

/// How long and how often a read is tried.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Time limit in all.
    pub(crate) wait_max: Duration,
    /// Pause between two tries.
    pub(crate) pause: Duration,
}

impl Patience {
    /// The values outside of tests.
    pub(crate) const USUAL: Self = Self { wait_max: Duration::from_secs(300), pause: Duration::from_millis(200) };
}

/// The gateways' NBD addresses, and the state that all volumes of a copy share.
#[derive(Debug, Default)]
pub(crate) struct Gateways {
    inner: Mutex<Inner>,
    /// Set together with [`Inner::gone`].
    over: CancellationToken,
    /// How to speak to them; `None`: in plain text.
    tls: Option<Connector>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Addresses, HOST:PORT.
    nbd: Vec<String>,
    /// The token that opens the snapshot's exports.
    token: Option<Token>,
    source: Source,
    /// The finding that the snapshot is gone (SCRATCH-W5).
    gone: Option<String>,
}

impl Gateways {
    /// No gateways yet, spoken to through `tls`.
    pub(crate) fn over(tls: Option<Connector>) -> Self {
        Self { tls, ..Self::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.locked()
    }

    /// Sets the current gateways; an empty list changes nothing.
    pub(crate) fn set(&self, nbd: Vec<String>) {
        if !nbd.is_empty() {
            self.lock().nbd = nbd;
        }
    }

    /// Sets the present token; `None` changes nothing.
    pub(crate) fn set_token(&self, token: Option<Token>) {
        let mut inner = self.lock();
        inner.token = token.or(inner.token);
    }

    /// `name` with the token.
    fn open(&self, name: &ExportName) -> ExportName {
        let token = self.lock().token;
        let snapshot = name.snapshot.as_ref().map(|snapshot| SnapshotExport { name: snapshot.name.clone(), token });
        ExportName { snapshot, ..name.clone() }
    }

    fn list(&self) -> Vec<String> {
        self.lock().nbd.clone()
    }

    /// Notes that the snapshot is gone: every read of it fails from now on, and the copy ends.
    pub(crate) fn end(&self, why: String) {
        tracing::error!(why, "the snapshot is gone: reads of it fail, and the copy ends");
        self.lock().gone.get_or_insert(why);
        self.over.cancel();
    }

    pub(crate) fn gone(&self) -> Option<String> {
        self.lock().gone.clone()
    }

    /// Waits until it is gone.
    pub(crate) async fn ended(&self) -> String {
        self.over.cancelled().await;
        self.gone().unwrap_or_default()
    }

    /// For the status.
    pub(crate) fn source(&self) -> Source {
        self.lock().source.clone()
    }
}

#[derive(Debug, Default)]
struct Current {
    /// Number of the connection, so that only the lost one is replaced.
    number: u64,
    at: String,
    requests: Option<Arc<Requests>>,
    /// When the last try to make one ended, and why it failed.
    failed: Option<(Instant, String)>,
}

/// A connection for one read.
#[derive(Debug)]
struct Link {
    /// Number of the shared connection; `None`: of this read alone.
    number: Option<u64>,
    at: String,
    requests: Arc<Requests>,
}

/// One volume of the snapshot.
#[derive(Debug)]
pub(crate) struct Base {
    name: ExportName,
    size: u64,
    gateways: Arc<Gateways>,
    identity: Identity,
    patience: Patience,
    current: tokio::sync::Mutex<Current>,
    own: Semaphore,
}

impl Base {
    pub(crate) fn new(
        name: ExportName,
        size: u64,
        gateways: Arc<Gateways>,
        identity: Identity,
        patience: Patience,
    ) -> Self {
        let (current, own) = (tokio::sync::Mutex::default(), Semaphore::new(OWN_MAX));
        Self { name, size, gateways, identity, patience, current, own }
    }

    /// Connects if there is no connection.
    pub(crate) async fn reach(&self) -> Result<(), String> {
        self.shared().await.map(drop)
    }

    /// The existing connection, else a new one. Tries the gateways in turn, beginning with the one after the lost one.
    async fn shared(&self) -> Result<Link, String> {
        let since = Instant::now();
        let mut current = self.current.lock().await;
        if let Some(requests) = &current.requests {
            return Ok(Link { number: Some(current.number), at: current.at.clone(), requests: requests.clone() });
        }
        // Another read has just tried while this one waited. If each tried in turn, their times would add up.
        if let Some((ended, why)) = &current.failed
            && *ended > since
        {
            return Err(why.clone());
        }
        match self.dial(&current.at).await {
            Ok((at, requests)) => {
                let number = current.number + 1;
                *current = Current { number, at: at.clone(), requests: Some(requests.clone()), failed: None };
                Ok(Link { number: Some(number), at, requests })
            }
            Err(why) => {
                current.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    /// A new connection, to the first gateway after `behind` that accepts it.
    async fn dial(&self, behind: &str) -> Result<(String, Arc<Requests>), String> {
        let (mut list, name) = (self.gateways.list(), self.gateways.open(&self.name));
        if let Some(at) = list.iter().position(|nbd| nbd == behind) {
            list.rotate_left(at + 1);
        }
        let mut why = "no gateway serves NBD over TCP".to_string();
        for nbd in list {
            let refused = match Requests::connect(&nbd, &name, self.gateways.tls.as_ref()).await {
                Ok(requests) if requests.size() == self.size => {
                    self.look().await?;
                    let mut inner = self.gateways.lock();
                    inner.source.connections += 1;
                    inner.source.gateway.clone_from(&nbd);
                    return Ok((nbd, Arc::new(requests)));
                }
                Ok(requests) => {
                    format!("{nbd}: found {} bytes, expected {} as the snapshot lists it", requests.size(), self.size)
                }
                Err(error) => error.to_string(),
            };
            tracing::debug!(export = %self.name, refused, "a gateway was tried");
            why = refused;
        }
        self.gateways.lock().source.last_loss = Some(why.clone());
        Err(why)
    }

    /// Whether a new connection may be read (SCRATCH-W5). All gateways list the same, so if one look fails, no other
    /// gateway helps.
    async fn look(&self) -> Result<(), String> {
        let why = match self.identity.look().await {
            Presence::Same => return Ok(()),
            Presence::Gone(why) => {
                self.gateways.end(why.clone());
                why
            }
            Presence::Unknown(why) => why,
        };
        self.gateways.lock().source.last_loss = Some(why.clone());
        Err(why)
    }

    /// Drops a connection that failed.
    async fn lost(&self, link: &Link, why: &str) {
        self.gateways.lock().source.last_loss = Some(format!("{}: {why}", link.at));
        let Some(number) = link.number else { return };
        let mut current = self.current.lock().await;
        if current.number == number && current.requests.take().is_some() {
            tracing::warn!(export = %self.name, gateway = link.at, why, "the gateway is lost; reading from another one");
        }
    }

    /// Reads, from one gateway after the other (SCRATCH-W1, SCRATCH-W2).
    pub(crate) async fn read(&self, offset: u64, len: u32) -> Result<Vec<ReadPart>, Errno> {
        let mut last = String::new();
        match tokio::time::timeout(self.patience.wait_max, self.tries(offset, len, &mut last)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                let limit = self.patience.wait_max;
                tracing::error!(export = %self.name, offset, len, last, "no gateway for {limit:?}: the read fails");
                Err(Errno::Io)
            }
        }
    }

    /// Tries for ever. `last` is set to the last obstacle.
    async fn tries(&self, offset: u64, len: u32, last: &mut String) -> Result<Vec<ReadPart>, Errno> {
        let (mut losses, mut refusals) = (0, 0);
        let mut behind = String::new();
        loop {
            if self.gateways.gone().is_some() {
                return Err(Errno::Io);
            }
            let alone = losses >= SHARED_LOSSES_MAX;
            let link = self.link(alone, &behind);
            let (turn, link) = match link.await {
                Ok(link) => link,
                Err(why) => {
                    *last = why;
                    tokio::time::sleep(self.patience.pause).await;
                    continue;
                }
            };
            match link.requests.read(offset, len).await {
                Ok(parts) => return Ok(parts),
                Err(RequestError::Lost(why)) => {
                    losses += 1;
                    self.lost(&link, &why).await;
                    *last = format!("{}: {why}", link.at);
                }
                Err(RequestError::Refused(errno)) => {
                    refusals += 1;
                    self.lost(&link, &format!("it answered {errno:?}")).await;
                    if refusals >= self.gateways.list().len().max(1) {
                        tracing::error!(export = %self.name, offset, len, ?errno, "no gateway can read this: the read fails");
                        return Err(errno);
                    }
                }
            }
            behind = link.at;
            // After the first loss the next gateway is tried at once, after further losses with pauses.
            if losses > 1 {
                drop((turn, link.requests));
                tokio::time::sleep(self.patience.pause).await;
            }
        }
    }

    /// The shared connection, or one of its own (`alone`) with a permit.
    async fn link(&self, alone: bool, behind: &str) -> Result<(Option<SemaphorePermit<'_>>, Link), String> {
        if !alone {
            return Ok((None, self.shared().await?));
        }
        let turn = self.own.acquire().await.map_err(|error| error.to_string())?;
        let (at, requests) = self.dial(behind).await?;
        Ok((Some(turn), Link { number: None, at, requests }))
    }
}
