//! Writes in the cache of a device that is about to go.

use std::time::Duration;
use tokio::time::Instant;

/// Time limit for them, with the wait for a gateway that takes them.
pub(crate) const SYNC_LIMIT: Duration = Duration::from_secs(20);

/// Has the cached writes of the device at `path` taken, unless `until` is over.
pub(super) async fn flush(path: &str, until: Instant) {
    if Instant::now() >= until {
        return;
    }
    let Ok(device) = tokio::fs::File::open(path).await else { return };
    match tokio::time::timeout_at(until, device.sync_all()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(device = path, %error, "cannot flush the device's cache"),
        Err(_) => tracing::warn!(device = path, "the device's cache was not flushed in time"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The wait for a gateway may have taken all of the time. The devices must be gone before the end is given up.
    #[tokio::test]
    async fn nothing_is_flushed_once_its_time_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("device");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        // To open it takes until somebody writes to it.
        let flushed = flush(pipe.to_str().unwrap(), Instant::now());
        let at_once = tokio::time::timeout(Duration::from_secs(5), flushed).await;
        let _release = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
        assert!(at_once.is_ok());
    }
}
