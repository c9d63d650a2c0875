//! A client of a cluster's admin API: asks any gateway, follows its leader hint, retries, and has one total time limit.

use crate::exit::CliError;
use crate::route::{Outcome, Route, Step};
use holdfast_api::v1::admin_client::AdminClient;
use holdfast_api::{ADMIN_MESSAGE_BYTES_MAX, Refusal};
use holdfast_tls::Dialer;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::transport::Channel;
use tonic::{Response, Status};

/// A client of one gateway.
pub type Client = AdminClient<Channel>;

/// Time limit of one connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Time limit of one attempt at one gateway: the kernel accepts connections for a stopped process too.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// HTTP/2 pings detect a stopped or partitioned gateway during a long call.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_millis(1500);

/// Whether a call changes something, which decides what a lost answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The call changes nothing: another gateway can be asked.
    Reads,
    /// The call may have taken effect: it is repeated with the same request id, and its outcome may stay unknown (R12).
    Changes,
}

/// A client of one cluster, with the addresses to start from and the time limit of the whole command.
#[derive(Debug)]
pub struct ClusterClient {
    dialer: Dialer,
    addresses: Vec<String>,
    deadline: Instant,
    total: Duration,
    attempt: Duration,
    channels: BTreeMap<String, Channel>,
}

impl ClusterClient {
    /// `total` runs from now and limits all calls of this client together.
    pub fn new(dialer: &Dialer, addresses: &[String], total: Duration) -> Self {
        Self {
            dialer: dialer.clone(),
            addresses: addresses.to_vec(),
            deadline: Instant::now() + total,
            total,
            attempt: ATTEMPT_TIMEOUT,
            channels: BTreeMap::new(),
        }
    }

    /// A client of this gateway alone, with the remaining time: for calls that only it can answer.
    pub fn only(&self, address: &str) -> Self {
        let (dialer, addresses) = (self.dialer.clone(), vec![address.to_string()]);
        Self { dialer, addresses, channels: BTreeMap::new(), ..*self }
    }

    /// A copy for one slow call, with the remaining time: one attempt may use all of it.
    pub fn patiently(&self) -> Self {
        let (dialer, addresses) = (self.dialer.clone(), self.addresses.clone());
        Self { dialer, addresses, channels: BTreeMap::new(), attempt: self.total, ..*self }
    }

    /// The same client for slow calls, such as a switchover: one attempt may use all the remaining time.
    pub fn patient(mut self) -> Self {
        self.attempt = self.total;
        self
    }

    /// When the time limit ends.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Sends `call` until a gateway executes or refuses it.
    ///
    /// `call` may run several times at several gateways: its request must be the same each time, request id included.
    ///
    /// # Errors
    /// A final refusal; no gateway reached in time; for [`Effect::Changes`] also "unknown".
    pub async fn call<T, F>(&mut self, what: &str, effect: Effect, call: F) -> Result<T, CliError>
    where
        F: AsyncFn(Client) -> Result<Response<T>, Status>,
    {
        let mut route = Route::new(&self.addresses);
        while Instant::now() < self.deadline {
            let address = match route.step() {
                Step::Ask(address) => address,
                Step::Pause(pause) => {
                    tokio::time::sleep(pause.min(self.deadline - Instant::now())).await;
                    continue;
                }
            };
            let outcome = match self.ask(&address, &call).await {
                Ok(reply) => {
                    self.prefer(&address, route.known());
                    return Ok(reply);
                }
                Err(outcome) => outcome,
            };
            tracing::debug!(address, ?outcome, what, "asked");
            if let Some(refusal) = route.heard(&address, outcome) {
                let error = CliError::from_refusal(&refusal);
                // It is final for the last attempt alone: an earlier one may be what it is refused for.
                let unknown = effect == Effect::Changes && route.maybe_happened();
                return Err(if unknown { error.after_an_unanswered_attempt() } else { error });
            }
        }
        let limit = format!("{what}: timed out after {:?}; {}", self.total, route.last());
        if effect == Effect::Changes && route.maybe_happened() {
            return Err(CliError::unknown(limit));
        }
        Err(CliError::unreachable(limit).next(
            "check --api (or HOLDFAST_API), and that more than half of the gateways are running; --timeout allows more time",
        ))
    }

    /// Sends `call`, which changes nothing, once, to this gateway alone. `None` if it is unreachable, too slow, or
    /// refuses.
    pub async fn once<T, F>(&mut self, address: &str, call: F) -> Option<T>
    where
        F: AsyncFn(Client) -> Result<Response<T>, Status>,
    {
        self.ask(address, &call).await.ok()
    }

    async fn ask<T, F>(&mut self, address: &str, call: &F) -> Result<T, Outcome>
    where
        F: AsyncFn(Client) -> Result<Response<T>, Status>,
    {
        let channel = self.connect(address).await.map_err(Outcome::NotSent)?;
        let client = AdminClient::new(channel).max_decoding_message_size(ADMIN_MESSAGE_BYTES_MAX);
        let limit = self.deadline.min(Instant::now() + self.attempt);
        let status = match timeout_at(limit, call(client)).await {
            Ok(Ok(reply)) => return Ok(reply.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => {
                self.channels.remove(address);
                return Err(Outcome::NoAnswer(format!("no answer within {:?}", self.attempt.min(self.total))));
            }
        };
        if let Some(refusal) = Refusal::from_status(&status) {
            return Err(Outcome::Refused(refusal));
        }
        self.channels.remove(address);
        Err(Outcome::NoAnswer(format!("{}: {}", status.code(), status.message())))
    }

    async fn connect(&mut self, address: &str) -> Result<Channel, String> {
        if let Some(channel) = self.channels.get(address) {
            return Ok(channel.clone());
        }
        let endpoint = self.dialer.endpoint(address)?;
        let endpoint = endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
        let limit = CONNECT_TIMEOUT.min(self.deadline.saturating_duration_since(Instant::now()));
        let channel = match timeout(limit, self.dialer.connect(&endpoint)).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(innermost(&error)),
            Err(_) => return Err(format!("no connection within {limit:?}")),
        };
        self.channels.insert(address.to_string(), channel.clone());
        Ok(channel)
    }

    /// The next call starts at the gateway that answered this one.
    fn prefer(&mut self, address: &str, known: &[String]) {
        let others = known.iter().filter(|known| *known != address).cloned();
        self.addresses = std::iter::once(address.to_string()).chain(others).collect();
    }
}

/// "Connection refused" rather than "transport error".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

/// A new request id, which stays the same for all attempts of one request (R12).
pub fn request_id() -> String {
    holdfast_api::hex128(rand::random::<u128>().max(1))
}
