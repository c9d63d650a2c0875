//! An NBD connection to a volume, or to a volume of a snapshot, for a copy. It survives the loss of gateways within the
//! time limit.
//!
//! LINK-L1  The copy of a volume holds the lease of the set and renews it, so that nobody else writes meanwhile.
//! LINK-L2  After a lost connection the lease is continued with a new epoch. Requests of the old epoch have no further
//!     effect (R6), so it is always safe to repeat unanswered requests.
//! LINK-L3  Every grant must list the volume with the original id and size: another volume may have its name by now.

use crate::cli::{Common, SnapshotArg, VolumePath};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::command::connect::connect;
use crate::command::set_calls::status;
use crate::command::snapshot_calls::{find as find_snapshot, token as snapshot_token};
use crate::exit::{CliError, Exit};
use bytes::Bytes;
use holdfast_api::v1;
use holdfast_attach::requests::{Errno, ExportName, Extent, ReadPart, RequestError, Requests, Session, SnapshotExport};
use holdfast_types::sync::LockExt;
use holdfast_types::{Name, Owner, Token};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Time to live of the lease: after a killed copy the next one waits for this time.
const TTL: Duration = Duration::from_secs(5);
/// Pause between attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Minimum number of attempts of one request, whatever their duration.
const LOSSES_MIN: u32 = 4;

/// Minimum time limit of a read: the store may be down for a while.
const READ_LIMIT: Duration = Duration::from_secs(300);

/// The lease of a copy.
#[derive(Clone, Debug)]
struct Held {
    token: String,
    epoch: u64,
}

/// An open volume.
pub struct Connection {
    common: Common,
    volume: VolumePath,
    snapshot: Option<(Name, String)>,
    owner: Owner,
    held: Mutex<Option<Held>>,
    now: tokio::sync::Mutex<(u64, Option<Arc<Requests>>)>,
    size: u64,
    /// LINK-L3: id and size. None for a snapshot.
    volume_as: Option<(u32, u64)>,
}

impl Connection {
    /// Acquires the lease and connects. Waits for the lease of an earlier copy by this host to expire.
    pub async fn volume(common: &Common, volume: &VolumePath, (id, size): (u32, u64)) -> Result<Self, CliError> {
        let mut connection = Self::new(common, volume, None)?;
        connection.volume_as = Some((id, size));
        let deadline = Instant::now() + common.timeout();
        let grant = loop {
            let mut api = connect(common);
            let request = v1::AcquireLeaseRequest {
                set: volume.set.to_string(),
                owner: connection.owner.to_string(),
                ttl_ms: u32::try_from(TTL.as_millis()).unwrap_or(u32::MAX),
                request_id: request_id(),
                ..Default::default()
            };
            let call = async |mut client: Client| client.acquire_lease(request.clone()).await;
            match api.call(&format!("acquire the lease of {}", volume.set), Effect::Changes, call).await {
                Ok(grant) => break grant,
                Err(error) if error.code == "held" && Instant::now() < deadline => {
                    let lease = status(&mut api, volume.set.as_str(), false).await?.lease;
                    if lease.is_some_and(|lease| lease.owner != connection.owner.as_str()) {
                        return Err(error);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        };
        let lease = grant.lease.clone().unwrap_or_default();
        connection.note(&grant);
        if let Err(error) = connection.first(&grant, &lease.gateway_nbd).await {
            connection.close().await;
            return Err(error);
        }
        Ok(connection)
    }

    /// Connects for the first time. The set may have moved to another gateway since the grant: then this is a lost
    /// connection as any other.
    async fn first(&mut self, grant: &v1::GrantReply, nbd: &str) -> Result<(), CliError> {
        self.check(grant)?;
        let requests = match self.connect_leased(nbd, 1).await {
            Ok(requests) => {
                let requests = Arc::new(requests);
                *self.now.get_mut() = (1, Some(requests.clone()));
                requests
            }
            Err(error) if error.exit == Exit::Unreachable => self.requests(0).await?.1,
            Err(error) => return Err(error),
        };
        self.size = requests.size();
        Ok(())
    }

    /// Connects to a volume of a snapshot: read-only, without a lease.
    pub async fn snapshot(common: &Common, volume: &VolumePath, snapshot: &Name) -> Result<Self, CliError> {
        let mut api = connect(common);
        let arg = SnapshotArg { set: volume.set.clone(), name: snapshot.clone() };
        let Some(found) = find_snapshot(&mut api, &arg).await?.filter(|found| !found.pending) else {
            return Err(CliError::refused(format!("there is no snapshot {arg}, or it is still pending"))
                .next(format!("`holdfast snapshot list {}` shows all", volume.set)));
        };
        let mut connection = Self::new(common, volume, Some((snapshot.clone(), found.id)))?;
        connection.size = connection.requests(0).await?.1.size();
        Ok(connection)
    }

    fn new(common: &Common, volume: &VolumePath, snapshot: Option<(Name, String)>) -> Result<Self, CliError> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let owner = Owner::new(format!("copy/{}/{}", host.trim(), volume.name))
            .map_err(|error| CliError::usage("this host's name cannot be used as owner").because(&error))?;
        let now = tokio::sync::Mutex::new((0, None));
        let (common, volume) = (common.clone(), volume.clone());
        Ok(Self { common, volume, snapshot, owner, held: Mutex::new(None), now, size: 0, volume_as: None })
    }

    /// Bytes, as of the first connection.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Of the lease; 0 for a snapshot.
    pub fn epoch(&self) -> u64 {
        self.held().map_or(0, |held| held.epoch)
    }

    /// The snapshot's id; "" for a volume.
    pub fn snapshot_id(&self) -> &str {
        self.snapshot.as_ref().map_or("", |(_, id)| id)
    }

    fn held(&self) -> Option<Held> {
        self.held.locked().clone()
    }

    fn note(&self, grant: &v1::GrantReply) {
        let epoch = grant.lease.as_ref().map_or(0, |lease| lease.epoch);
        *self.held.locked() = Some(Held { token: grant.token.clone(), epoch });
    }

    /// Final: another owner may have overwritten the copied data.
    fn fenced(&self, why: &str) -> CliError {
        let set = &self.volume.set;
        CliError::fenced(format!("another owner acquired set {set}{why}")).next(format!(
            "`holdfast set show {set}` shows the owner. When the lease is released, start again without the old state file"
        ))
    }

    /// LINK-L3.
    fn check(&self, grant: &v1::GrantReply) -> Result<(), CliError> {
        let Some((id, size)) = self.volume_as else { return Ok(()) };
        let found = grant.volumes.iter().find(|volume| volume.name == self.volume.name.as_str());
        let found = match found {
            Some(found) if (found.id, found.size_bytes) == (id, size) => return Ok(()),
            Some(found) => format!("id {} with {} bytes", found.id, found.size_bytes),
            None => "no such volume".to_string(),
        };
        let text = format!("volume {}: found {found}, expected id {id} with {size} bytes", self.volume);
        Err(CliError::refused(text).next("the volume was changed meanwhile: start again"))
    }

    async fn connect_leased(&self, nbd: &str, incarnation: u64) -> Result<Requests, CliError> {
        let token = self.held().and_then(|held| Token::from_text(&held.token));
        let Some(token) = token else { return Err(CliError::failed("the gateway's answer has no token")) };
        let session = Some(Session { token, slot: 0, incarnation });
        self.open(nbd, None, session).await
    }

    async fn open(
        &self,
        nbd: &str,
        snapshot: Option<SnapshotExport>,
        session: Option<Session>,
    ) -> Result<Requests, CliError> {
        if nbd.is_empty() {
            return Err(CliError::failed(format!(
                "the gateway that serves {} has no NBD address (TCP)",
                self.volume.set
            ))
            .next("set nbd_listen in its settings"));
        }
        let name = ExportName { set: self.volume.set.clone(), volume: self.volume.name.clone(), snapshot, session };
        Requests::connect(nbd, &name, self.common.dialer.connector().as_ref())
            .await
            .map_err(|error| CliError::unreachable(format!("{}", self.volume)).because(&error))
    }

    async fn connect_snapshot(&self, api: &mut ClusterClient) -> Result<Requests, CliError> {
        let leader = status(api, self.volume.set.as_str(), false).await?.leader;
        let nbd = leader.and_then(|leader| leader.addresses).map(|addresses| addresses.nbd).unwrap_or_default();
        let Some((name, _)) = &self.snapshot else {
            return Err(CliError::failed("this is not an export of a snapshot"));
        };
        let arg = SnapshotArg { set: self.volume.set.clone(), name: name.clone() };
        let token = Token::from_text(&snapshot_token(api, &arg).await?.token);
        self.open(&nbd, Some(SnapshotExport { name: name.clone(), token }), None).await
    }

    /// LINK-L2. Connects again.
    async fn again(&self, api: &mut ClusterClient, incarnation: u64) -> Result<Requests, CliError> {
        let Some((snapshot, id)) = &self.snapshot else {
            let held = self.held().ok_or_else(|| CliError::failed("there is no lease"))?;
            let request = v1::ContinueLeaseRequest {
                set: self.volume.set.to_string(),
                owner: self.owner.to_string(),
                token: held.token,
                request_id: request_id(),
                ..Default::default()
            };
            let call = async |mut client: Client| client.continue_lease(request.clone()).await;
            let what = format!("continue the lease of {}", self.volume.set);
            let grant = api.call(&what, Effect::Changes, call).await?;
            self.note(&grant);
            self.check(&grant)?;
            return self.connect_leased(&grant.lease.unwrap_or_default().gateway_nbd, incarnation).await;
        };
        let arg = SnapshotArg { set: self.volume.set.clone(), name: snapshot.clone() };
        let found = find_snapshot(api, &arg).await?;
        if found.is_none_or(|found| found.id != *id) {
            let next = format!(
                "export another snapshot from the beginning (`holdfast snapshot list {}` shows all), without the old state file",
                self.volume.set
            );
            return Err(CliError::refused(format!("snapshot {arg} was deleted during the export")).next(next));
        }
        self.connect_snapshot(api).await
    }

    /// The connection and its number. Connects again if connection `lost` is the present one.
    async fn requests(&self, lost: u64) -> Result<(u64, Arc<Requests>), CliError> {
        let mut now = self.now.lock().await;
        if let (number, Some(requests)) = &*now
            && *number > lost
        {
            return Ok((*number, requests.clone()));
        }
        now.1 = None;
        let deadline = Instant::now() + self.common.timeout();
        loop {
            now.0 += 1;
            let number = now.0;
            let left = deadline.saturating_duration_since(Instant::now()).max(PAUSE);
            let mut api = ClusterClient::new(&self.common.dialer, &self.common.api, left);
            match self.again(&mut api, number).await {
                Ok(requests) => {
                    let requests = Arc::new(requests);
                    now.1 = Some(requests.clone());
                    return Ok((number, requests));
                }
                Err(error) if matches!(error.code, "stale-token" | "not-continuable" | "held") => {
                    return Err(self.fenced(&format!(": {}", error.message)));
                }
                Err(error) if error.exit == Exit::Refused || Instant::now() >= deadline => return Err(error),
                Err(error) => {
                    tracing::debug!(volume = %self.volume, error = error.message, "not connected yet");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    async fn until_answered<T>(&self, ask: impl AsyncFn(&Requests) -> Result<T, RequestError>) -> Result<T, CliError> {
        let mut lost = 0;
        // Counted per request: a gateway that closes the connection on this request (R9: unreadable data) must not be
        // asked forever.
        let mut losses = 0;
        let mut deadline = None;
        loop {
            let (number, requests) = self.requests(lost).await?;
            match ask(&requests).await {
                Ok(answer) => return Ok(answer),
                Err(RequestError::Refused(Errno::Io)) => {
                    return Err(self.fenced(""));
                }
                Err(RequestError::Refused(errno)) => {
                    let text = format!("volume {} answered {errno:?}: it may have been shrunk or deleted", self.volume);
                    let next = format!("`holdfast volume list {}` shows all volumes; start again", self.volume.set);
                    return Err(CliError::failed(text).next(next));
                }
                Err(RequestError::Lost(why)) => {
                    tracing::info!(volume = %self.volume, why, "connection lost; looking for the gateway that serves the set now");
                    lost = number;
                    losses += 1;
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.common.timeout());
                    if losses >= LOSSES_MIN && Instant::now() >= deadline {
                        let text = format!(
                            "volume {}: the connection was closed {losses} times during the same request: {why}",
                            self.volume
                        );
                        return Err(CliError::failed(text)
                            .next("see the log of the gateway; `holdfast verify` lists unreadable ranges"));
                    }
                    if losses > 1 {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
    }

    /// Writes durably.
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<(), CliError> {
        self.until_answered(async |requests| requests.write(offset, data.clone()).await).await
    }

    /// Makes a range read as zeroes.
    pub async fn zero(&self, offset: u64, len: u32) -> Result<(), CliError> {
        self.until_answered(async |requests| requests.zero(offset, len).await).await
    }

    /// Reads a range completely, in parts.
    pub async fn read(&self, offset: u64, len: u32) -> Result<Vec<ReadPart>, CliError> {
        let limit = READ_LIMIT.max(self.common.timeout());
        let read = self.until_answered(async |requests| requests.read(offset, len).await);
        // A gateway does not answer a read of unreadable data (R9).
        tokio::time::timeout(limit, read).await.unwrap_or_else(|_| {
            let text = format!("volume {}: {len} bytes at {offset} were not read within {limit:?}", self.volume);
            Err(CliError::failed(text)
                .next("see the log and /healthz of the gateway; `holdfast verify` lists unreadable ranges"))
        })
    }

    /// Block status from `offset` on.
    pub async fn block_status(&self, offset: u64, len: u32) -> Result<Vec<Extent>, CliError> {
        self.until_answered(async |requests| requests.block_status(offset, len).await).await
    }

    /// Flushes; success proves that the lease was held until now.
    pub async fn flush(&self) -> Result<(), CliError> {
        self.until_answered(async |requests| requests.flush().await).await
    }

    /// LINK-L1. Renews the lease until dropped. Writes renew it too, but a slow source may pause.
    pub async fn keep(&self) {
        if self.snapshot.is_some() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(TTL / 3).await;
            let Some(Held { token, epoch }) = self.held() else { continue };
            let request = v1::RenewLeaseRequest { set: self.volume.set.to_string(), epoch, token };
            let call = async |mut client: Client| client.renew_lease(request.clone()).await;
            let mut api = ClusterClient::new(&self.common.dialer, &self.common.api, TTL / 3);
            if let Err(error) = api.call("renew the lease", Effect::Reads, call).await {
                // If the lease is lost, the next request fails.
                tracing::debug!(error = error.message, "lease not renewed");
            }
        }
    }

    /// Releases the lease. If that fails, the lease expires.
    pub async fn close(&self) {
        let Some(Held { token, epoch }) = self.held() else { return };
        self.now.lock().await.1 = None;
        let request = v1::ReleaseLeaseRequest { set: self.volume.set.to_string(), epoch, token };
        let call = async |mut client: Client| client.release_lease(request.clone()).await;
        let mut api = ClusterClient::new(&self.common.dialer, &self.common.api, TTL);
        if let Err(error) = api.call("release the lease", Effect::Reads, call).await {
            tracing::debug!(error = error.message, "lease not released; it will expire");
        }
    }
}
