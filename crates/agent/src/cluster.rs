//! Asks all gateways at once for the owner of the lease; the first answer that knows it counts. Asks each of them,
//! again and again, which certificates are revoked (REVOKE-V3).

use crate::machine::LeaseView;
use holdfast_api::v1::admin_client::AdminClient;
use holdfast_api::v1::{GetLeaseReply, GetLeaseRequest, ListRevokedRequest};
use holdfast_api::{ADMIN_MESSAGE_BYTES_MAX, Refusal, RefusalCode};
use holdfast_tls::{Dialer, RevocationCache, RevocationReply, Revoked};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tonic::transport::Channel;

/// Time limit of one question.
const ASK_LIMIT: Duration = Duration::from_secs(1);
/// The list of revoked certificates, in a directory that outlives the process.
pub(crate) const REVOKED_FILE: &str = "revoked.json";
/// HTTP/2 pings: a gateway that is cut off is noticed because it does not answer them.
const PING_INTERVAL: Duration = Duration::from_secs(1);
const PING_TIMEOUT: Duration = Duration::from_secs(2);

/// The gateways of a set.
#[derive(Debug)]
pub struct Gateways {
    set: String,
    doors: Vec<(String, Channel)>,
}

impl Gateways {
    /// Connects when asked. Must be called on a runtime.
    ///
    /// # Errors
    /// An invalid address.
    pub fn new(set: &str, addresses: &[String], dialer: &Dialer) -> Result<Self, String> {
        let mut doors = Vec::new();
        for address in addresses {
            let endpoint = dialer.endpoint(address)?.connect_timeout(ASK_LIMIT);
            let endpoint = endpoint.http2_keep_alive_interval(PING_INTERVAL).keep_alive_timeout(PING_TIMEOUT);
            doors.push((address.clone(), dialer.channel(&endpoint.tcp_nodelay(true))));
        }
        Ok(Self { set: set.into(), doors })
    }

    /// The certificates that were revoked when this was last known, as `dir` has them, count no more in this process
    /// when this returns. From then on a task follows the gateways (REVOKE-V3). `None`: no TLS.
    pub fn follow_revoked(&self, dialer: &Dialer, dir: &Path) -> Option<JoinHandle<Infallible>> {
        let kept = RevocationCache::open(dialer, dir.join(REVOKED_FILE))?;
        let doors: BTreeMap<String, Channel> = self.doors.iter().cloned().collect();
        let addresses: Vec<String> = doors.keys().cloned().collect();
        let ask = move |address: String, known: String| revoked(doors.get(&address).cloned(), known);
        Some(tokio::spawn(kept.follow(move || addresses.clone(), ask)))
    }

    /// The owner of the lease.
    pub async fn lease(&self) -> LeaseView {
        let mut asked = JoinSet::new();
        for (address, door) in &self.doors {
            let request = GetLeaseRequest { set: self.set.clone() };
            let mut client = AdminClient::new(door.clone()).max_decoding_message_size(ADMIN_MESSAGE_BYTES_MAX);
            let address = address.clone();
            asked.spawn(async move {
                match tokio::time::timeout(ASK_LIMIT, client.get_lease(request)).await {
                    Ok(Ok(reply)) => Some(reply.into_inner()),
                    Ok(Err(status)) => {
                        let refusal = Refusal::from_status(&status);
                        if refusal.as_ref().is_some_and(|refusal| refusal.code == RefusalCode::NotFound) {
                            tracing::warn!(address, status = status.message(), "the cluster does not know the set");
                        } else {
                            tracing::trace!(address, status = status.message(), "asked for the lease");
                        }
                        None
                    }
                    Err(_) => None,
                }
            });
        }
        first_answer(asked).await
    }
}

/// What one gateway says about revoked certificates.
async fn revoked(door: Option<Channel>, known: String) -> Result<RevocationReply, String> {
    let door = door.ok_or_else(|| "an unknown address".to_string())?;
    let mut client = AdminClient::new(door).max_decoding_message_size(ADMIN_MESSAGE_BYTES_MAX);
    let told =
        client.list_revoked(ListRevokedRequest { known }).await.map_err(|status| status.message().to_string())?;
    let told = told.into_inner();
    let (serials, names) = (told.serials.into_iter().collect(), told.names.into_iter().collect());
    Ok(RevocationReply { digest: told.digest, list: Revoked { serials, names, ..Revoked::default() } })
}

/// `None`: a gateway that does not know.
async fn first_answer(mut asked: JoinSet<Option<GetLeaseReply>>) -> LeaseView {
    while let Some(answer) = asked.join_next().await {
        let reply = match answer {
            Ok(Some(reply)) => reply,
            Ok(None) => continue,
            // A panic is a broken invariant and must not be lost.
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => continue,
            },
        };
        return match reply.lease {
            None => LeaseView::Free,
            Some(lease) => LeaseView::Held {
                owner: lease.owner,
                epoch: lease.epoch,
                remaining: Duration::from_millis(u64::from(lease.remaining_ms)),
                ttl: Duration::from_millis(u64::from(lease.ttl_ms)),
            },
        };
    }
    LeaseView::Unreachable
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_was_ended_or_does_not_know_is_no_answer() {
        let mut asked = JoinSet::new();
        asked.spawn(std::future::ready(None));
        asked.spawn(std::future::pending()).abort();
        assert_eq!(first_answer(asked).await, LeaseView::Unreachable);
        let mut asked = JoinSet::new();
        asked.spawn(std::future::pending()).abort();
        asked.spawn(std::future::ready(Some(GetLeaseReply { lease: None })));
        assert_eq!(first_answer(asked).await, LeaseView::Free);
    }

    /// Else the agent would go on, and take the gateways for unreachable for ever.
    #[tokio::test]
    async fn a_panic_in_a_question_goes_on_to_the_agent() {
        let mut asked: JoinSet<Option<GetLeaseReply>> = JoinSet::new();
        asked.spawn(async { panic!("a broken invariant") });
        let ended = tokio::spawn(first_answer(asked)).await.unwrap_err();
        let panic = ended.into_panic();
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"a broken invariant"));
    }
}
