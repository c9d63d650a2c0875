//! The one seat of a gateway pair: a key that exists as long as its holder's lease (ADR 0031).
//!
//! ```text
//!   look ─▶ nobody's ─▶ a lease, then the key under it where there is none (one transaction) ─▶ held, of this create revision
//!                       keep: keep-alive, then a look whether the key is still that one ─▶ kept, or lost
//! ```
//! A lease is requested only after the seat was seen to be free, and its time to live counts from just before the
//! request. Keep-alives use connections of their own, so that other calls to a slow etcd do not delay them.
//!
//! Owns: the calls. Does not own: their times, the conclusions from their answers, any clock. The caller notes the time
//! before each call.

use crate::client::{Client, EtcdError, EtcdOptions};
use crate::proto::KeyValue;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The format version of [`Holder`] that this build writes.
const FORM: u32 = 1;

/// The holder of a seat, for people and tools; nothing depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    form: u32,
    /// Name of the gateway.
    pub gateway: String,
    /// Its admin door, `HOST:PORT`.
    pub api: String,
    /// Its NBD address, `HOST:PORT`; empty if it listens on a Unix socket only.
    pub nbd: String,
    /// When it asked for the seat, by its wall clock, in Unix milliseconds.
    pub since_unix_ms: u64,
}

impl Holder {
    /// The record of a gateway, as of now.
    pub fn new(gateway: String, api: String, nbd: String, since_unix_ms: u64) -> Self {
        Self { form: FORM, gateway, api, nbd, since_unix_ms }
    }
}

/// The seat, won.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenancy {
    /// The etcd's own id: revisions are compared within one etcd only.
    pub etcd: u64,
    /// The etcd's revision at which the key was made: grows with each holder.
    pub revision: u64,
    lease: i64,
    /// Time to live that the etcd gave; it counts from before the request.
    pub ttl: Duration,
}

/// The present occupant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupant {
    /// Its own record; `None` if the text has another format.
    pub holder: Option<Holder>,
    /// See [`Tenancy::revision`].
    pub revision: u64,
    /// See [`Tenancy::etcd`].
    pub etcd: u64,
    lease: i64,
}

/// Result of a keep-alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeepAliveResult {
    /// Still ours, for this long, counted from before the call.
    For(Duration),
    /// No longer ours, and why.
    Lost(String),
}

/// One pair's seat in an etcd.
#[derive(Debug)]
pub struct Seat {
    /// For all calls but keep-alives.
    asks: Client,
    /// For keep-alives, and the reads that go with them.
    keeps: Client,
    key: String,
    ttl_s: i64,
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or(0))
}

fn revision(kv: &KeyValue) -> u64 {
    u64::try_from(kv.create_revision).unwrap_or(0)
}

impl Seat {
    /// The seat of the pair `name` below `prefix`, with a lease of `ttl` (whole seconds count). Connects on first use.
    ///
    /// # Errors
    /// [`EtcdError::Endpoint`].
    pub fn new(options: &EtcdOptions, prefix: &str, name: &str, ttl: Duration) -> Result<Self, EtcdError> {
        let key = format!("{}/pairs/{name}/seat", prefix.trim_end_matches('/'));
        let ttl_s = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        Ok(Self { asks: Client::new(options)?, keeps: Client::new(options)?, key, ttl_s })
    }

    /// Its key.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Reads the present occupant (linearizable); `None` if there is none.
    pub async fn look(&mut self) -> Result<Option<Occupant>, EtcdError> {
        let (etcd, found) = self.asks.get_whole(&self.key).await?;
        Ok(found.map(|kv| Occupant {
            holder: serde_json::from_slice(&kv.value).ok().filter(|holder: &Holder| holder.form == FORM),
            revision: revision(&kv),
            etcd,
            lease: kv.lease,
        }))
    }

    /// Takes the seat if it is free. The time to live counts from before the call. `None`: another gateway was faster.
    ///
    /// # Errors
    /// [`EtcdError`]: it is unknown whether the seat is ours. If this call still makes it ours later, its lease expires
    /// by itself, or was ended here.
    pub async fn take(&mut self, holder: &Holder) -> Result<Option<Tenancy>, EtcdError> {
        let (lease, ttl) = self.asks.grant(self.ttl_s).await?;
        // A struct of numbers and texts with string keys can always be written as JSON.
        let value = serde_json::to_vec(holder).unwrap_or_default();
        let put = self.asks.put_new(&self.key, &value, lease).await;
        // R12: the key itself decides, whatever the transaction answered. Only this call uses this lease.
        let found = match put {
            Ok(false) => Ok(None),
            Ok(true) | Err(_) => self.asks.get_whole(&self.key).await.map(Some),
        };
        match found {
            Ok(Some((etcd, Some(kv)))) if kv.lease == lease => {
                Ok(Some(Tenancy { etcd, revision: revision(&kv), lease, ttl: seconds(ttl) }))
            }
            not => {
                // A transaction that is still on its way will find no lease.
                let revoked = self.asks.revoke(lease).await;
                not.and(revoked).map(|()| None)
            }
        }
    }

    /// Renews the lease, and checks that we still hold the seat. The time to live counts from before the call.
    ///
    /// # Errors
    /// [`EtcdError`]: nothing new is known; the last answer counts.
    pub async fn keep(&mut self, held: &Tenancy) -> Result<KeepAliveResult, EtcdError> {
        let ttl = self.keeps.keep_alive(held.lease).await?;
        if ttl <= 0 {
            return Ok(KeepAliveResult::Lost("there is no such lease".into()));
        }
        // The key may be gone although the lease is not: a person deleted it. And a member that was cut off may renew a
        // lease that the others have let expire; this read needs a majority of them.
        let (etcd, found) = self.keeps.get_whole(&self.key).await?;
        Ok(match found {
            Some(kv) if kv.lease == held.lease && revision(&kv) == held.revision && etcd == held.etcd => {
                KeepAliveResult::For(seconds(ttl))
            }
            Some(kv) => KeepAliveResult::Lost(format!(
                "found its key of revision {} in etcd {etcd:x}, expected revision {} in {:x}",
                revision(&kv),
                held.revision,
                held.etcd
            )),
            None => KeepAliveResult::Lost("its key is gone".into()),
        })
    }

    /// Gives the seat up, so that the next gateway need not wait until the lease expires. Can be repeated.
    ///
    /// # Errors
    /// [`EtcdError`]; the lease then expires by itself.
    pub async fn give_up(&mut self, held: &Tenancy) -> Result<(), EtcdError> {
        self.asks.revoke(held.lease).await
    }
}
