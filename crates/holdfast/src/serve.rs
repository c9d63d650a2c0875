//! `holdfast gateway run`: starts and stops a gateway.

use crate::exit::CliError;
use holdfast_gateway::config::GatewayConfig;
use holdfast_host::lock::lock;
use std::fs::File;
use std::path::Path;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Time limit for a clean stop of a gateway. Ending it earlier loses nothing: acknowledged writes are durable (R1).
const STOP_TIMEOUT: Duration = Duration::from_secs(8);

/// The lock file in a gateway's data directory.
const LOCK: &str = "gateway.lock";

/// Takes the data directory for this process. The journal has a lock of its own, but it is opened only once the gateway
/// belongs to a cluster.
fn take(data_dir: &Path) -> Result<File, CliError> {
    let made = holdfast_folder::make(data_dir);
    made.map_err(|error| CliError::failed(format!("data_dir {}", data_dir.display())).because(&error))?;
    lock(data_dir, LOCK).map_err(|why| {
        let next = "give each gateway a data_dir of its own, or stop the gateway that uses this one";
        CliError::failed(format!("{why}; expected no other gateway in data_dir {}", data_dir.display())).next(next)
    })
}

/// Runs a gateway until it fails, or SIGINT, SIGTERM or SIGHUP tells it to stop.
pub async fn gateway(config: GatewayConfig) -> Result<(), CliError> {
    let name = config.name.clone();
    // Nothing else runs yet, so the wait of up to a second for a held lock may block.
    let _taken = take(&config.data_dir)?;
    let stop = CancellationToken::new();
    let run = if config.pair.name.is_some() { holdfast_pair::run_until } else { holdfast_gateway::run_until };
    let mut running = run(config, stop.clone());
    let failed = |error: holdfast_gateway::RunError| CliError::failed(format!("gateway {name}")).because(&error);
    tokio::select! {
        ended = &mut running => return ended.map_err(failed),
        which = stop_signal() => tracing::info!(gateway = %name, signal = which?, "stopping"),
    }
    stop.cancel();
    match tokio::time::timeout(STOP_TIMEOUT, running).await {
        Ok(ended) => ended.map_err(failed),
        Err(_) => {
            tracing::warn!(gateway = %name, limit = ?STOP_TIMEOUT, "the gateway did not stop in time: exiting without a clean stop");
            Ok(())
        }
    }
}

/// Waits for SIGINT, SIGTERM or SIGHUP and names it.
pub async fn stop_signal() -> Result<&'static str, CliError> {
    let listen =
        |kind| signal(kind).map_err(|error| CliError::failed("cannot register signal handlers").because(&error));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
        _ = hangup.recv() => "SIGHUP",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_has_one_gateway_before_it_is_adopted_too() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("new");
        let first = take(&dir).unwrap();
        let refused = take(&dir).unwrap_err();
        assert!(refused.message.contains("gateway.lock: held by another process"), "{}", refused.message);
        assert!(refused.next.is_some());
        drop(first);
        take(&dir).unwrap();
    }
}
