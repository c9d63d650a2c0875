//! The snapshot behind a scratch copy: one volume's export, read from whichever gateway answers.
//!
//! W1  A snapshot never changes and every gateway can read it: a read whose connection ended is asked again at another gateway.
//! W2  A read waits while no gateway answers, for [`WAIT_MAX`] at most; then it fails, and whoever uses the device sees that.

use super::status::Source;
use crate::requests::{ReadPart, RequestError, Requests};
use holdfast_nbd::{Errno, ExportName};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a read is tried.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// Between two rounds over all gateways.
const PAUSE: Duration = Duration::from_millis(200);

/// Where the gateways serve NBD, and what all volumes of a copy found out about them.
#[derive(Debug, Default)]
pub(crate) struct Gateways {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// HOST:PORT each.
    nbd: Vec<String>,
    source: Source,
}

impl Gateways {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that there are now; an empty list changes nothing.
    pub(crate) fn set(&self, nbd: Vec<String>) {
        if !nbd.is_empty() {
            self.lock().nbd = nbd;
        }
    }

    fn list(&self) -> Vec<String> {
        self.lock().nbd.clone()
    }

    /// For the status.
    pub(crate) fn source(&self) -> Source {
        self.lock().source.clone()
    }
}

#[derive(Debug, Default)]
struct Current {
    /// Counts connections, so that the one that was lost is the one that is replaced.
    number: u64,
    at: String,
    requests: Option<Arc<Requests>>,
}

/// One volume of the snapshot.
#[derive(Debug)]
pub(crate) struct Base {
    name: ExportName,
    size: u64,
    gateways: Arc<Gateways>,
    current: tokio::sync::Mutex<Current>,
}

impl Base {
    pub(crate) fn new(name: ExportName, size: u64, gateways: Arc<Gateways>) -> Self {
        Self { name, size, gateways, current: tokio::sync::Mutex::default() }
    }

    /// The connection that there is, else a new one: to the gateways in turn, beginning behind the one that was lost.
    pub(crate) async fn connection(&self) -> Result<(u64, Arc<Requests>), String> {
        let mut current = self.current.lock().await;
        if let Some(requests) = &current.requests {
            return Ok((current.number, requests.clone()));
        }
        let mut list = self.gateways.list();
        if let Some(at) = list.iter().position(|nbd| *nbd == current.at) {
            list.rotate_left(at + 1);
        }
        let mut why = "no gateway serves NBD over TCP".to_string();
        for nbd in list {
            let refused = match Requests::connect(&nbd, &self.name).await {
                Ok(requests) if requests.size() == self.size => {
                    let requests = Arc::new(requests);
                    let number = current.number + 1;
                    *current = Current { number, at: nbd.clone(), requests: Some(requests.clone()) };
                    let mut inner = self.gateways.lock();
                    inner.source.connections += 1;
                    inner.source.gateway = nbd;
                    return Ok((number, requests));
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

    /// The connection of this number is of no use any more.
    async fn lost(&self, number: u64, why: &str) {
        let mut current = self.current.lock().await;
        if current.number == number && current.requests.take().is_some() {
            tracing::warn!(export = %self.name, gateway = current.at, why, "the gateway is lost; reads go on at another one");
            self.gateways.lock().source.last_loss = Some(format!("{}: {why}", current.at));
        }
    }

    /// Reads, at one gateway after the other (W1, W2).
    pub(crate) async fn read(&self, offset: u64, len: u32) -> Result<Vec<ReadPart>, Errno> {
        let begun = Instant::now();
        let mut refusals = 0;
        loop {
            match self.connection().await {
                Ok((number, requests)) => match requests.read(offset, len).await {
                    Ok(parts) => return Ok(parts),
                    Err(RequestError::Lost(why)) => self.lost(number, &why).await,
                    Err(RequestError::Refused(errno)) => {
                        refusals += 1;
                        self.lost(number, &format!("it answered {errno:?}")).await;
                        if refusals >= self.gateways.list().len().max(1) {
                            tracing::error!(export = %self.name, offset, len, ?errno, "no gateway reads this: the read fails");
                            return Err(errno);
                        }
                    }
                },
                Err(why) if begun.elapsed() >= WAIT_MAX => {
                    tracing::error!(export = %self.name, why, "no gateway for {WAIT_MAX:?}: the read fails");
                    return Err(Errno::Io);
                }
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}
