//! The promises of this disk to leaders, kept across restarts. After a restart, a member does not know which leader it
//! had heard. So it does not vote until all its earlier promises have expired (the vote embargo). The embargo's length
//! depends on the settings, which may have been different before the restart.

use crate::identity_file::{IdentityError, save};
use holdfast_control::serve::{RTT_MAX, Timing};
use holdfast_raft::RaftNode;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The file's name inside the data directory.
const FILE: &str = "promised.json";

/// The longest promise that may still be in force.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Promised {
    /// The round trip from which all times are computed, in milliseconds.
    rtt_ms: u64,
}

fn timing(rtt_ms: u64) -> Timing {
    Timing::from_rtt(Duration::from_millis(rtt_ms))
}

fn rtt_ms(timing: Timing) -> u64 {
    u64::try_from(timing.rtt().as_millis()).unwrap_or(u64::MAX)
}

/// The embargo of this start: the longest of what an earlier start may have promised and what this one will. It is on
/// disk before anything is promised.
///
/// # Errors
/// [`IdentityError::Io`].
pub(crate) fn embargo(dir: &Path, own: Timing) -> Result<Duration, IdentityError> {
    let path = dir.join(FILE);
    let before = match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_or_else(
            |error| {
                tracing::warn!(path = %path.display(), %error, "the earlier promises are unknown: using the longest possible vote embargo");
                u64::try_from(RTT_MAX.as_millis()).unwrap_or(u64::MAX)
            },
            |promised: Promised| promised.rtt_ms,
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
        Err(source) => return Err(IdentityError::Io { path, source }),
    };
    let longest = before.max(rtt_ms(own));
    if longest != before {
        save(dir, FILE, &Promised { rtt_ms: longest })?;
    }
    Ok(timing(longest).embargo())
}

/// After the embargo, only the promises of this start are in force.
pub(crate) async fn settle_later(raft: RaftNode, dir: PathBuf, own: Timing, stop: CancellationToken) {
    while let Some(left) = raft.embargo_left() {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(left) => {}
        }
    }
    let settled = holdfast_log::spawn_blocking(move || settle(&dir, own)).await;
    if let Ok(Err(error)) = settled {
        tracing::warn!(%error, "the next start will wait longer than necessary before it votes");
    }
}

/// # Errors
/// [`IdentityError::Io`].
fn settle(dir: &Path, own: Timing) -> Result<(), IdentityError> {
    save(dir, FILE, &Promised { rtt_ms: rtt_ms(own) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// R3: an embargo under a longer round trip stays in force after a restart, and after a second one.
    #[test]
    fn what_was_promised_before_a_restart_is_waited_out() {
        let dir = tempfile::tempdir().unwrap();
        let (near, far) = (timing(1), timing(100));
        assert_eq!(embargo(dir.path(), near).unwrap(), near.embargo(), "a new disk has only its own embargo");
        assert_eq!(embargo(dir.path(), far).unwrap(), far.embargo());
        for _ in 0..2 {
            assert_eq!(embargo(dir.path(), near).unwrap(), far.embargo(), "promised under the other setting");
        }
        settle(dir.path(), near).unwrap();
        assert_eq!(embargo(dir.path(), near).unwrap(), near.embargo());
        std::fs::write(dir.path().join(FILE), "{\"rtt_ms\": ").unwrap();
        assert_eq!(
            embargo(dir.path(), near).unwrap(),
            Timing::from_rtt(RTT_MAX).embargo(),
            "an unreadable file means the longest embargo"
        );
        settle(dir.path(), near).unwrap();
        assert_eq!(embargo(dir.path(), near).unwrap(), near.embargo());
    }
}
