//! Follows the list of revoked certificates, so that no gateway is used whose certificate is on it (REVOKE-V3).

use crate::admin_client::{AdminClients, Said, call};
use holdfast_api::v1;
use holdfast_tls::{Dialer, RevocationCache, RevocationReply, Revoked};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// The list, in a run directory.
const FILE: &str = "revoked.json";

/// Time limit of one question.
const ASK_LIMIT: Duration = Duration::from_millis(1500);

/// What was revoked when `dir` was written last counts when this returns. From then on a task asks all known gateways.
/// `None`: no TLS.
pub(crate) fn follow(dialer: &Dialer, doors: &Arc<AdminClients>, dir: &Path) -> Option<JoinHandle<Infallible>> {
    let kept = RevocationCache::open(dialer, dir.join(FILE))?;
    let (known, asked) = (doors.clone(), doors.clone());
    let ask = move |address: String, digest: String| told(asked.clone(), address, digest);
    Some(tokio::spawn(kept.follow(move || known.known(), ask)))
}

/// What one gateway says.
async fn told(doors: Arc<AdminClients>, address: String, known: String) -> Result<RevocationReply, String> {
    let call = call!(list_revoked, v1::ListRevokedRequest { known });
    match doors.ask_beside(&address, ASK_LIMIT, &call).await {
        Said::Done(v1::ListRevokedReply { digest, serials, names }) => {
            let (serials, names) = (serials.into_iter().collect(), names.into_iter().collect());
            Ok(RevocationReply { digest, list: Revoked { serials, names, ..Revoked::default() } })
        }
        Said::Refused(refusal) => Err(refusal.to_string()),
        Said::Nothing(why) => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ATTACH-M7: renewals go over the same connection, and wait for longer.
    #[tokio::test]
    async fn a_gateway_that_is_slow_to_tell_keeps_its_connection() {
        // Takes connections, and never answers.
        let slow = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = slow.local_addr().unwrap().to_string();
        let doors = Arc::new(AdminClients::new(Dialer::default(), std::slice::from_ref(&address)));
        let why = told(doors.clone(), address.clone(), String::new()).await.unwrap_err();
        assert!(doors.has_channel(&address), "{why}");
    }
}
