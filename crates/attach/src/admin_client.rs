//! Calls the gateways' admin API: all known gateways at once, until one carries the request out.
//!
//! During an election nobody knows who will lead, and a stopped gateway accepts connections but never answers. If the
//! gateways were asked one after the other, their timeouts would add up. So a request goes to all known gateways at the
//! same time, under one id (R12). Those that do not lead refuse at once, and at most one of them can have it applied.

use crate::machine::{Cut, Cuts, Grant, VolumeFacts};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use holdfast_api::v1::admin_client::AdminClient;
use holdfast_api::{ADMIN_MESSAGE_BYTES_MAX, Disposition, Refusal, RefusalCode, v1};
use holdfast_tls::Dialer;
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, Locality, Name, Owner, RequestId, Token};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{Instant, timeout};
use tonic::transport::Channel;
use tonic::{Response, Status};

/// A client of one gateway.
pub(crate) type Client = AdminClient<Channel>;

/// Maximum number of known gateways.
const KNOWN_MAX: usize = 64;
/// Time limit for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit of one attempt at one gateway; it grows from the first to the last. The first attempt may hang at a
/// leader without a quorum, while the same gateway is elected anew. So it is asked again soon, which has no effect if
/// the request was applied already (R12). A gateway gives up by itself after five seconds.
const ATTEMPT_MIN: Duration = Duration::from_millis(1500);
const ATTEMPT_MAX: Duration = Duration::from_secs(6);
/// Pauses between two attempts at the same gateway: short ones at first, since half a pause is lost at the end of an
/// election, which takes about a second.
const PAUSE_MIN: Duration = Duration::from_millis(40);
const PAUSE_MAX: Duration = Duration::from_millis(200);
/// Pauses are short for this long.
const EAGER: Duration = Duration::from_secs(3);
/// Keep-alive of the connections, so that a gateway that is cut off is noticed between calls, too.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// Answer of one gateway.
#[derive(Debug)]
pub(crate) enum Said<T> {
    Done(T),
    Refused(Refusal),
    /// Not reached, or no answer. The request may have been applied (R12).
    Nothing(String),
}

/// The gateways of a cluster, as far as known.
#[derive(Debug)]
pub(crate) struct AdminClients {
    dialer: Dialer,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    known: Vec<String>,
    channels: BTreeMap<String, Channel>,
}

impl AdminClients {
    pub(crate) fn new(dialer: Dialer, addresses: &[String]) -> Self {
        let doors = Self { dialer, inner: Mutex::default() };
        addresses.iter().for_each(|address| doors.learn(address));
        doors
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.locked()
    }

    pub(crate) fn known(&self) -> Vec<String> {
        self.lock().known.clone()
    }

    /// Remembers a gateway.
    pub(crate) fn learn(&self, address: &str) {
        let mut inner = self.lock();
        if inner.known.len() < KNOWN_MAX && !inner.known.iter().any(|known| known == address) {
            inner.known.push(address.to_string());
        }
    }

    fn channel(&self, address: &str) -> Result<Channel, String> {
        let mut inner = self.lock();
        if let Some(channel) = inner.channels.get(address) {
            return Ok(channel.clone());
        }
        let endpoint = self.dialer.endpoint(address)?;
        let endpoint = endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true);
        let endpoint = endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
        let channel = self.dialer.channel(&endpoint);
        inner.channels.insert(address.to_string(), channel.clone());
        Ok(channel)
    }

    /// Asks one gateway once. If nothing comes, the next question goes over another connection.
    pub(crate) async fn ask<T, F, C>(&self, address: &str, limit: Duration, call: &F) -> Said<T>
    where
        F: Fn(Client) -> C,
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let said = self.ask_beside(address, limit, call).await;
        if matches!(said, Said::Nothing(_)) {
            self.lock().channels.remove(address);
        }
        said
    }

    /// The same beside the calls that matter: whatever comes, these keep their connection. Through a slow network no
    /// other may be made in time, and the lease would end (ATTACH-M7).
    pub(crate) async fn ask_beside<T, F, C>(&self, address: &str, limit: Duration, call: &F) -> Said<T>
    where
        F: Fn(Client) -> C,
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let channel = match self.channel(address) {
            Ok(channel) => channel,
            Err(why) => return Said::Nothing(why),
        };
        let client = AdminClient::new(channel).max_decoding_message_size(ADMIN_MESSAGE_BYTES_MAX);
        let status = match timeout(limit, call(client)).await {
            Ok(Ok(reply)) => return Said::Done(reply.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => return Said::Nothing(format!("{address}: nothing within {limit:?}")),
        };
        if let Some(refusal) = Refusal::from_status(&status) {
            if let Some(leader) = &refusal.leader_api {
                self.learn(leader);
            }
            return Said::Refused(refusal);
        }
        Said::Nothing(format!("{address}: {}", innermost(&status)))
    }

    /// What one of all known gateways says, beside the calls that matter ([`Self::ask_beside`]): each is asked for
    /// `each`, again and again, for `limit` in all.
    pub(crate) async fn first_beside<T, F, C>(&self, each: Duration, limit: Duration, call: &F) -> Option<T>
    where
        F: Fn(Client) -> C,
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let asking = async {
            loop {
                let known = self.known();
                let mut asked = FuturesUnordered::new();
                for address in &known {
                    asked.push(self.ask_beside(address, each, call));
                }
                while let Some(said) = asked.next().await {
                    if let Said::Done(reply) = said {
                        return reply;
                    }
                }
                tokio::time::sleep(PAUSE_MAX).await;
            }
        };
        timeout(limit, asking).await.ok()
    }

    /// Whether calls to this gateway share a connection.
    #[cfg(test)]
    pub(crate) fn has_channel(&self, address: &str) -> bool {
        self.lock().channels.contains_key(address)
    }

    /// Asks one gateway again and again until it carries the request out, or refuses in a way that is final by `last`.
    async fn insist<T, F, C>(
        &self,
        address: String,
        call: &F,
        last: fn(&Refusal) -> bool,
    ) -> (String, Result<T, Refusal>)
    where
        F: Fn(Client) -> C,
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let (begun, mut limit) = (Instant::now(), ATTEMPT_MIN);
        loop {
            match self.ask(&address, limit, call).await {
                Said::Done(reply) => return (address, Ok(reply)),
                Said::Refused(refusal) if last(&refusal) => return (address, Err(refusal)),
                Said::Refused(refusal) => tracing::debug!(address, %refusal, "asked"),
                Said::Nothing(why) => {
                    tracing::debug!(address, why, "asked");
                    limit = (limit * 2).min(ATTEMPT_MAX);
                }
            }
            let pause = if begun.elapsed() < EAGER { PAUSE_MIN } else { PAUSE_MAX };
            tokio::time::sleep(pause).await;
        }
    }

    /// Asks all known gateways at the same time, including those that one of them names, until one carries the request
    /// out or refuses for good. Waits without a limit: the caller sets one.
    pub(crate) async fn ask_all<T, F, C>(&self, call: F, last: fn(&Refusal) -> bool) -> (String, Result<T, Refusal>)
    where
        F: Fn(Client) -> C,
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let mut asked = Vec::new();
        let mut asking = FuturesUnordered::new();
        loop {
            for address in self.known() {
                if !asked.contains(&address) {
                    asked.push(address.clone());
                    asking.push(self.insist(address, &call, last));
                }
            }
            // Woken now and then: a refusal may have named a gateway that was not known.
            if let Ok(Some(end)) = timeout(PAUSE_MAX, asking.next()).await {
                return end;
            }
        }
    }
}

/// A call that can be repeated with the same message.
macro_rules! call {
    ($method:ident, $message:expr) => {{
        let message = $message;
        move |mut client: $crate::admin_client::Client| {
            let message = message.clone();
            async move { client.$method(message).await }
        }
    }};
}
pub(crate) use call;

fn innermost(status: &Status) -> String {
    let mut deepest: &dyn std::error::Error = status;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

/// ATTACH-M6: whether a gateway's refusal to continue a lease means that the lease is no longer ours. The set's
/// replicated state says so: another owner holds the set (`Held`), a newer token was used (`StaleToken`, `WrongEpoch`),
/// the lease is a plain export's (`NotContinuable`), or nobody holds the set (`NotHeld`, as `Precondition`). Or the
/// head in the store says so: the set was recovered elsewhere or deleted (`SetError::Fenced`, as `Precondition`). Which
/// code each refusal has: gateway/src/admin/codes.rs.
pub(crate) fn is_ended(refusal: &Refusal) -> bool {
    refusal.code.ends_lease()
}

/// Whether a gateway's refusal to take a lease back means that there is no such lease.
pub(crate) fn is_gone(refusal: &Refusal) -> bool {
    is_ended(refusal) || refusal.code == RefusalCode::NotFound
}

/// Whether another request for a free lease would be refused as well.
pub(crate) fn is_final(refusal: &Refusal) -> bool {
    refusal.disposition() == Disposition::Reject && refusal.code != RefusalCode::NotAdopted
}

/// A grant from the gateway at `api`.
pub(crate) fn grant_of(api: &str, reply: &v1::GrantReply) -> Option<(Grant, Vec<VolumeFacts>)> {
    let lease = reply.lease.as_ref()?;
    let grant = Grant {
        epoch: Epoch(lease.epoch),
        token: Token::from_text(&reply.token)?,
        ttl: Duration::from_millis(u64::from(lease.ttl_ms.max(1))),
        gateway: lease.gateway_name.clone(),
        api: api.to_string(),
        nbd: lease.gateway_nbd.clone(),
    };
    Some((grant, volumes_of(&reply.volumes)?))
}

/// Volumes as a gateway lists them; `None` if a name is invalid.
pub(crate) fn volumes_of(volumes: &[v1::Volume]) -> Option<Vec<VolumeFacts>> {
    let facts =
        |v: &v1::Volume| Some(VolumeFacts { id: v.id, name: Name::new(v.name.clone()).ok()?, size: v.size_bytes });
    volumes.iter().map(facts).collect()
}

/// Shrinks of volumes as a gateway reports them.
pub(crate) fn cuts_of(cuts: &[v1::Cut], as_of: u64) -> Cuts {
    let cut = |cut: &v1::Cut| Cut { volume: cut.volume, at: Epoch(cut.at), size: cut.size_bytes };
    Cuts { as_of: Epoch(as_of), cuts: cuts.iter().map(cut).collect() }
}

/// Requests as messages.
pub(crate) fn acquire(
    set: &Name,
    owner: &Owner,
    ttl: Option<Duration>,
    request: RequestId,
    force: bool,
    at: Option<&Locality>,
) -> v1::AcquireLeaseRequest {
    v1::AcquireLeaseRequest {
        set: set.to_string(),
        owner: owner.to_string(),
        ttl_ms: ttl.map_or(0, |ttl| u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX)),
        request_id: request.to_string(),
        force,
        locality: at.map(Locality::to_string).unwrap_or_default(),
    }
}

pub(crate) fn continuation(
    set: &Name,
    owner: &Owner,
    token: Token,
    request: RequestId,
    at: Option<&Locality>,
) -> v1::ContinueLeaseRequest {
    v1::ContinueLeaseRequest {
        set: set.to_string(),
        owner: owner.to_string(),
        token: token.to_text(),
        request_id: request.to_string(),
        locality: at.map(Locality::to_string).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ATTACH-M7: while a gateway is silent the others tell late who there is, and one of them renews the lease.
    #[tokio::test]
    async fn a_question_beside_the_renewals_closes_no_connection() {
        // Takes connections, and never answers.
        let slow = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        slow.set_nonblocking(true).unwrap();
        let doors = AdminClients::new(Dialer::default(), &[slow.local_addr().unwrap().to_string()]);
        let call = |mut client: Client| async move { client.cluster_status(v1::ClusterStatusRequest {}).await };
        let (each, limit) = (Duration::from_millis(100), Duration::from_secs(2));
        assert!(doors.first_beside(each, limit, &call).await.is_none());
        assert_eq!(std::iter::from_fn(|| slow.accept().ok()).count(), 1, "asked again over the same one");
    }
}
