//! Calls to an etcd: one member after the other, until one answers.

use crate::proto::compare::{CompareResult, CompareTarget, TargetUnion};
use crate::proto::kv_client::KvClient;
use crate::proto::lease_client::LeaseClient;
use crate::proto::{
    Compare, DeleteRangeRequest, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest, request_op,
};
use std::future::Future;
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Response, Status};

/// How long one member may take over one call.
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);
/// A member that falls silent is noticed between calls.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// How to connect to an etcd.
#[derive(Clone, Debug, Default)]
pub struct EtcdOptions {
    /// Its members, `http://HOST:PORT` or `https://HOST:PORT`; the first that answers is used.
    pub endpoints: Vec<String>,
    /// The authority's certificate (PEM), for https.
    pub ca: Option<Vec<u8>>,
    /// Our certificate and its key (PEM), if the etcd asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// A call to the etcd failed. It may have taken effect all the same.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    /// An invalid address.
    #[error("{endpoint:?} is no address of an etcd member: {reason}; expected http://HOST:PORT or https://HOST:PORT")]
    Endpoint {
        /// As given.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No member answered; the last error.
    #[error("no etcd member answered: {last}")]
    Unreachable {
        /// The last error, with the member's address.
        last: String,
    },
    /// The key holds something else than a grant.
    #[error(
        "key {key:?} of the etcd holds {found}, expected a grant that Holdfast wrote there; delete it, or set another etcd.prefix"
    )]
    Foreign {
        /// The key.
        key: String,
        /// What was found.
        found: String,
    },
    /// The key holds something else than a pair's roster.
    #[error(
        "key {key:?} of the etcd holds {found}, expected the roster of a gateway pair, form 1. A newer build may have written it: then upgrade this gateway. If another program did, delete the key"
    )]
    NoRoster {
        /// The key.
        key: String,
        /// What was found.
        found: String,
    },
    /// Another writer changed the key each time.
    #[error("key {key:?} of the etcd was changed by others {times} times in a row")]
    Contended {
        /// The key.
        key: String,
        /// How often.
        times: u32,
    },
}

/// A key as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) value: Option<Vec<u8>>,
    /// 0: the key does not exist.
    pub(crate) revision: i64,
}

/// The members of one etcd.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    members: Vec<(String, Channel)>,
}

impl Client {
    pub(crate) fn new(options: &EtcdOptions) -> Result<Self, EtcdError> {
        let bad = |endpoint: &str, reason: String| EtcdError::Endpoint { endpoint: endpoint.into(), reason };
        let member = |address: &String| {
            let mut endpoint = Endpoint::from_shared(address.clone()).map_err(|e| bad(address, e.to_string()))?;
            endpoint = endpoint.connect_timeout(CONNECT_LIMIT).tcp_nodelay(true);
            endpoint = endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(CALL_LIMIT);
            if address.starts_with("https://") {
                let mut tls = ClientTlsConfig::new();
                if let Some(ca) = &options.ca {
                    tls = tls.ca_certificate(Certificate::from_pem(ca));
                }
                if let Some((certificate, key)) = &options.identity {
                    tls = tls.identity(Identity::from_pem(certificate, key));
                }
                endpoint = endpoint.tls_config(tls).map_err(|e| bad(address, e.to_string()))?;
            }
            Ok((address.clone(), endpoint.connect_lazy()))
        };
        Ok(Self { members: options.endpoints.iter().map(member).collect::<Result<_, _>>()? })
    }

    async fn ask<T, F, C>(&mut self, call: F) -> Result<T, EtcdError>
    where
        F: Fn(KvClient<Channel>) -> C,
        C: Future<Output = Result<Response<T>, Status>>,
    {
        self.ask_over(|channel| call(KvClient::new(channel))).await
    }

    /// Asks one member after the other, beginning with the one that answered last.
    async fn ask_over<T, F, C>(&mut self, call: F) -> Result<T, EtcdError>
    where
        F: Fn(Channel) -> C,
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let mut last = "it has no members".to_string();
        for at in 0..self.members.len() {
            let (address, channel) = &self.members[at];
            match timeout(CALL_LIMIT, call(channel.clone())).await {
                Ok(Ok(reply)) => {
                    self.members[..=at].rotate_right(1);
                    return Ok(reply.into_inner());
                }
                Ok(Err(status)) => last = format!("{address}: {}", innermost(&status)),
                Err(_) => last = format!("{address}: nothing within {CALL_LIMIT:?}"),
            }
        }
        Err(EtcdError::Unreachable { last })
    }

    /// Linearizable: the result is not older than any earlier write.
    pub(crate) async fn get(&mut self, key: &str) -> Result<Found, EtcdError> {
        let (_, found) = self.get_whole(key).await?;
        Ok(found.map_or(Found { value: None, revision: 0 }, |kv| Found {
            value: Some(kv.value),
            revision: kv.mod_revision,
        }))
    }

    /// Like `get`, with all data of the key, and the id of the etcd.
    pub(crate) async fn get_whole(&mut self, key: &str) -> Result<(u64, Option<KeyValue>), EtcdError> {
        let key = key.as_bytes().to_vec();
        let reply = self.ask(|mut client| {
            let request = RangeRequest { key: key.clone() };
            async move { client.range(request).await }
        });
        let reply = reply.await?;
        Ok((reply.header.map_or(0, |header| header.cluster_id), reply.kvs.into_iter().next()))
    }

    /// Creates the key under a lease if it does not exist; returns whether it did. After an error it may have been
    /// written.
    pub(crate) async fn put_new(&mut self, key: &str, value: &[u8], lease: i64) -> Result<bool, EtcdError> {
        let put = PutRequest { key: key.as_bytes().to_vec(), value: value.to_vec(), lease };
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: key.as_bytes().to_vec(),
            target_union: Some(TargetUnion::CreateRevision(0)),
        };
        self.change_where(compare, request_op::Request::RequestPut(put)).await
    }

    /// A new lease: its id, and its time to live in seconds.
    pub(crate) async fn grant(&mut self, ttl_s: i64) -> Result<(i64, i64), EtcdError> {
        let reply = self.ask_over(|channel| async move {
            let mut client = LeaseClient::new(channel);
            client.lease_grant(LeaseGrantRequest { ttl: ttl_s }).await
        });
        let reply = reply.await?;
        if reply.id == 0 || !reply.error.is_empty() {
            return Err(EtcdError::Unreachable { last: format!("no lease granted: {:?}", reply.error) });
        }
        Ok((reply.id, reply.ttl))
    }

    /// Renews a lease; returns its time to live in seconds, 0 if there is no lease of that id.
    pub(crate) async fn keep_alive(&mut self, lease: i64) -> Result<i64, EtcdError> {
        let reply = self.ask_over(|channel| async move {
            let mut client = LeaseClient::new(channel);
            let request = futures_util::stream::iter([LeaseKeepAliveRequest { id: lease }]);
            let mut replies = client.lease_keep_alive(request).await?.into_inner();
            let reply = replies.message().await?;
            reply.map(Response::new).ok_or_else(|| Status::unavailable("the stream ended without an answer"))
        });
        let reply = reply.await?;
        Ok(if reply.id == lease { reply.ttl } else { 0 })
    }

    /// Ends a lease and its keys. Succeeds if there is no lease of that id.
    pub(crate) async fn revoke(&mut self, lease: i64) -> Result<(), EtcdError> {
        let reply = self.ask_over(|channel| async move {
            let mut client = LeaseClient::new(channel);
            match client.lease_revoke(LeaseRevokeRequest { id: lease }).await {
                Err(status) if status.code() == Code::NotFound => Ok(Response::new(Default::default())),
                other => other,
            }
        });
        reply.await.map(drop)
    }

    /// Writes the key if it has not changed since it was read; returns whether it did. After an error it may have been
    /// written.
    pub(crate) async fn put_if(&mut self, key: &str, value: &[u8], revision: i64) -> Result<bool, EtcdError> {
        let put = PutRequest { key: key.as_bytes().to_vec(), value: value.to_vec(), lease: 0 };
        self.change_if(key, request_op::Request::RequestPut(put), revision).await
    }

    /// Deletes the key if it has not changed since it was read; returns whether it did. After an error it may be gone.
    pub(crate) async fn delete_if(&mut self, key: &str, revision: i64) -> Result<bool, EtcdError> {
        let delete = DeleteRangeRequest { key: key.as_bytes().to_vec() };
        self.change_if(key, request_op::Request::RequestDeleteRange(delete), revision).await
    }

    async fn change_if(&mut self, key: &str, change: request_op::Request, revision: i64) -> Result<bool, EtcdError> {
        let key = key.as_bytes().to_vec();
        let compare = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Mod.into(),
            key,
            target_union: Some(TargetUnion::ModRevision(revision)),
        };
        self.change_where(compare, change).await
    }

    async fn change_where(&mut self, compare: Compare, change: request_op::Request) -> Result<bool, EtcdError> {
        let success = RequestOp { request: Some(change) };
        let request = TxnRequest { compare: vec![compare], success: vec![success] };
        let reply = self.ask(|mut client| {
            let request = request.clone();
            async move { client.txn(request).await }
        });
        Ok(reply.await?.succeeded)
    }
}

fn innermost(status: &Status) -> String {
    let mut deepest: &dyn std::error::Error = status;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
