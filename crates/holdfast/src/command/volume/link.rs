//! A volume over NBD, or one of a snapshot, for a copy of it: through the loss of any gateway, for as long as the command's time lasts.
//!
//! LINK-L1  A volume is written and read under a lease of its own, renewed while the copy runs: nobody else writes meanwhile.
//! LINK-L2  A lost connection is followed by a continued lease, which is a new epoch: what was on its way under the old one can do nothing any more
//!     (R6), so that asking again for what was not answered is always right.
//! LINK-L3  Every grant must name the volume with the id and the size of the beginning: under the same name there may be another one since.

use super::super::set::status;
use super::super::snapshot::{SnapshotArg, find as find_snapshot, token as snapshot_token};
use super::VolumePath;
use crate::cli::Common;
use crate::door::{Client, Door, Effect, request_id};
use crate::exit::{CliError, Exit};
use bytes::Bytes;
use holdfast_api::v1;
use holdfast_attach::requests::{Errno, ExportName, Extent, ReadPart, RequestError, Requests, Session, SnapshotExport};
use holdfast_types::sync::LockExt;
use holdfast_types::{Name, Owner, Token};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Time to live of a copy's lease: a copy that was killed holds up the next one for so long.
const TTL: Duration = Duration::from_secs(5);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// A request is asked again so often at least, however long each time took.
const LOSSES_MIN: u32 = 4;

/// How long one read may stay unanswered, at least: a store may be away for a while.
const READ_LIMIT: Duration = Duration::from_secs(300);

/// The lease of a copy.
#[derive(Clone, Debug)]
struct Held {
    token: String,
    epoch: u64,
}

/// An open volume.
pub struct Link {
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

impl Link {
    /// Takes the lease and connects. Waits for a lease that an earlier copy by this host left behind.
    pub async fn volume(common: &Common, volume: &VolumePath, (id, size): (u32, u64)) -> Result<Self, CliError> {
        let mut link = Self::new(common, volume, None)?;
        link.volume_as = Some((id, size));
        let deadline = Instant::now() + common.timeout();
        let grant = loop {
            let mut door = super::door(common);
            let request = v1::AcquireLeaseRequest {
                set: volume.set.to_string(),
                owner: link.owner.to_string(),
                ttl_ms: u32::try_from(TTL.as_millis()).unwrap_or(u32::MAX),
                request_id: request_id(),
                force: false,
            };
            let call = async |mut client: Client| client.acquire_lease(request.clone()).await;
            match door.call(&format!("acquire the lease of {}", volume.set), Effect::Changes, call).await {
                Ok(grant) => break grant,
                Err(error) if error.code == "held" && Instant::now() < deadline => {
                    let lease = status(&mut door, volume.set.as_str(), false).await?.lease;
                    if lease.is_some_and(|lease| lease.owner != link.owner.as_str()) {
                        return Err(error);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                Err(error) => return Err(error),
            }
        };
        let lease = grant.lease.clone().unwrap_or_default();
        link.note(&grant);
        let opened = match link.check(&grant) {
            Ok(()) => link.connect_leased(&lease.gateway_nbd, 1).await,
            Err(error) => Err(error),
        };
        let requests = match opened {
            Ok(requests) => requests,
            Err(error) => {
                link.close().await;
                return Err(error);
            }
        };
        link.size = requests.size();
        link.now = tokio::sync::Mutex::new((1, Some(Arc::new(requests))));
        Ok(link)
    }

    /// Connects to a volume as a snapshot has it: read-only, without a lease.
    pub async fn snapshot(common: &Common, volume: &VolumePath, snapshot: &Name) -> Result<Self, CliError> {
        let mut door = super::door(common);
        let arg = SnapshotArg { set: volume.set.clone(), name: snapshot.clone() };
        let Some(found) = find_snapshot(&mut door, &arg).await?.filter(|found| !found.pending) else {
            return Err(CliError::refused(format!("there is no finished snapshot {arg}"))
                .next(format!("`holdfast snapshot list {}` shows them", volume.set)));
        };
        let mut link = Self::new(common, volume, Some((snapshot.clone(), found.id)))?;
        let requests = link.connect_snapshot(&mut door).await?;
        link.size = requests.size();
        link.now = tokio::sync::Mutex::new((1, Some(Arc::new(requests))));
        Ok(link)
    }

    fn new(common: &Common, volume: &VolumePath, snapshot: Option<(Name, String)>) -> Result<Self, CliError> {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let owner = Owner::new(format!("copy/{}/{}", host.trim(), volume.name))
            .map_err(|error| CliError::usage("this host's name is no owner").because(&error))?;
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

    /// For good: what was copied so far may be written over by now.
    fn fenced(&self, why: &str) -> CliError {
        let set = &self.volume.set;
        CliError::fenced(format!("another owner took set {set}{why}")).next(format!(
            "`holdfast set show {set}` says who holds it; once it is free begin anew, without a state file of before"
        ))
    }

    /// LINK-L3.
    fn check(&self, grant: &v1::GrantReply) -> Result<(), CliError> {
        let Some((id, size)) = self.volume_as else { return Ok(()) };
        let found = grant.volumes.iter().find(|volume| volume.name == self.volume.name.as_str());
        let found = match found {
            Some(found) if (found.id, found.size_bytes) == (id, size) => return Ok(()),
            Some(found) => format!("volume number {} of {} bytes", found.id, found.size_bytes),
            None => "no such volume".to_string(),
        };
        let text = format!("{}: found {found}, expected number {id} of {size} bytes", self.volume);
        Err(CliError::refused(text).next("it was changed meanwhile: begin anew"))
    }

    async fn connect_leased(&self, nbd: &str, generation: u64) -> Result<Requests, CliError> {
        let token = self.held().and_then(|held| Token::from_text(&held.token));
        let Some(token) = token else { return Err(CliError::failed("the grant has no token")) };
        let session = Some(Session { token, slot: 0, incarnation: generation });
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
                "the gateway that serves {} has no TCP listener for NBD",
                self.volume.set
            ))
            .next("set nbd.listen in its settings"));
        }
        let name = ExportName { set: self.volume.set.clone(), volume: self.volume.name.clone(), snapshot, session };
        Requests::connect(nbd, &name)
            .await
            .map_err(|error| CliError::unreachable(format!("{}", self.volume)).because(&error))
    }

    async fn connect_snapshot(&self, door: &mut Door) -> Result<Requests, CliError> {
        let leader = status(door, self.volume.set.as_str(), false).await?.leader;
        let nbd = leader.and_then(|leader| leader.addresses).map(|addresses| addresses.nbd).unwrap_or_default();
        let Some((name, _)) = &self.snapshot else { return Err(CliError::failed("this is no export of a snapshot")) };
        let arg = SnapshotArg { set: self.volume.set.clone(), name: name.clone() };
        let token = Token::from_text(&snapshot_token(door, &arg).await?.token);
        self.open(&nbd, Some(SnapshotExport { name: name.clone(), token }), None).await
    }

    /// LINK-L2. One more connection, for whoever is left without.
    async fn again(&self, door: &mut Door, generation: u64) -> Result<Requests, CliError> {
        let Some((snapshot, id)) = &self.snapshot else {
            let held = self.held().ok_or_else(|| CliError::failed("there is no lease"))?;
            let request = v1::ContinueLeaseRequest {
                set: self.volume.set.to_string(),
                owner: self.owner.to_string(),
                token: held.token,
                request_id: request_id(),
            };
            let call = async |mut client: Client| client.continue_lease(request.clone()).await;
            let what = format!("continue the lease of {}", self.volume.set);
            let grant = door.call(&what, Effect::Changes, call).await?;
            self.note(&grant);
            self.check(&grant)?;
            return self.connect_leased(&grant.lease.unwrap_or_default().gateway_nbd, generation).await;
        };
        let arg = SnapshotArg { set: self.volume.set.clone(), name: snapshot.clone() };
        let found = find_snapshot(door, &arg).await?;
        if found.is_none_or(|found| found.id != *id) {
            let next = format!(
                "export another one, from the beginning: `holdfast snapshot list {}` shows them; a state file of this one is of no use any more",
                self.volume.set
            );
            return Err(CliError::refused(format!("snapshot {arg} was deleted while it was read")).next(next));
        }
        self.connect_snapshot(door).await
    }

    /// The connection; a new one in place of the one of `lost`. Its number comes with it.
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
            let mut door = Door::new(&self.common.dialer, &self.common.api, left);
            match self.again(&mut door, number).await {
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
        // Of this one request: a gateway that closes whenever it is asked just this (R9: it cannot read what is there) would be asked for ever.
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
                    let text = format!("{} answered {errno:?}: it may have been shrunk or deleted", self.volume);
                    let next = format!(
                        "`holdfast volume list {}` shows what there is; begin anew with the volume as it is now",
                        self.volume.set
                    );
                    return Err(CliError::failed(text).next(next));
                }
                Err(RequestError::Lost(why)) => {
                    tracing::info!(volume = %self.volume, why, "connection lost; looking for the gateway that serves now");
                    lost = number;
                    losses += 1;
                    let deadline = *deadline.get_or_insert_with(|| Instant::now() + self.common.timeout());
                    if losses >= LOSSES_MIN && Instant::now() >= deadline {
                        let text = format!(
                            "{}: the connection was closed {losses} times on the same request: {why}",
                            self.volume
                        );
                        return Err(CliError::failed(text)
                            .next("the gateway's log says why; `holdfast verify` names what cannot be read"));
                    }
                    if losses > 1 {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
    }

    /// Writes; durable once this returns.
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<(), CliError> {
        self.until_answered(async |requests| requests.write(offset, data.clone()).await).await
    }

    /// Makes a range read as zeroes.
    pub async fn zero(&self, offset: u64, len: u32) -> Result<(), CliError> {
        self.until_answered(async |requests| requests.zero(offset, len).await).await
    }

    /// Reads a range, whole, in parts.
    pub async fn read(&self, offset: u64, len: u32) -> Result<Vec<ReadPart>, CliError> {
        let limit = READ_LIMIT.max(self.common.timeout());
        let read = self.until_answered(async |requests| requests.read(offset, len).await);
        // A gateway that cannot read what is there (R9) leaves the read unanswered and goes on with others.
        tokio::time::timeout(limit, read).await.unwrap_or_else(|_| {
            let text = format!("{}: {len} bytes at {offset} were not read within {limit:?}", self.volume);
            Err(CliError::failed(text)
                .next("the gateway's log and /healthz say why; `holdfast verify` names what cannot be read"))
        })
    }

    /// What is allocated from `offset` on.
    pub async fn block_status(&self, offset: u64, len: u32) -> Result<Vec<Extent>, CliError> {
        self.until_answered(async |requests| requests.block_status(offset, len).await).await
    }

    /// A last answer under the lease: the set was ours until now.
    pub async fn flush(&self) -> Result<(), CliError> {
        self.until_answered(async |requests| requests.flush().await).await
    }

    /// LINK-L1. Renews the lease until it is dropped: writes do so as well, but a slow source makes pauses.
    pub async fn keep(&self) {
        if self.snapshot.is_some() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(TTL / 3).await;
            let Some(Held { token, epoch }) = self.held() else { continue };
            let request = v1::RenewLeaseRequest { set: self.volume.set.to_string(), epoch, token };
            let call = async |mut client: Client| client.renew_lease(request.clone()).await;
            let mut door = Door::new(&self.common.dialer, &self.common.api, TTL / 3);
            if let Err(error) = door.call("renew the lease", Effect::Reads, call).await {
                // A lost lease shows itself at the next request.
                tracing::debug!(error = error.message, "lease not renewed");
            }
        }
    }

    /// Gives the lease back. One that cannot be given back ends by itself.
    pub async fn close(&self) {
        let Some(Held { token, epoch }) = self.held() else { return };
        self.now.lock().await.1 = None;
        let request = v1::ReleaseLeaseRequest { set: self.volume.set.to_string(), epoch, token };
        let call = async |mut client: Client| client.release_lease(request.clone()).await;
        let mut door = Door::new(&self.common.dialer, &self.common.api, TTL);
        if let Err(error) = door.call("release the lease", Effect::Reads, call).await {
            tracing::debug!(error = error.message, "lease not given back; it ends by itself");
        }
    }
}
