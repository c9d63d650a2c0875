//! `holdfast gateway run`: the one place that starts a gateway.

use crate::exit::CliError;
use holdfast_gateway::config::GatewayConfig;
use tokio::signal::unix::{SignalKind, signal};

/// Runs a gateway until it fails or SIGINT or SIGTERM ends the process.
///
/// Dropping the gateway's future is enough of a shutdown: whatever was acknowledged is durable (R1), connections end unanswered (R8).
pub async fn gateway(config: GatewayConfig) -> Result<(), CliError> {
    let name = config.name.clone();
    tokio::select! {
        ended = holdfast_gateway::run(config) => {
            ended.map_err(|error| CliError::failed(format!("gateway {name}")).because(&error))
        }
        which = stop_signal() => {
            tracing::info!(gateway = %name, signal = which?, "stopping");
            Ok(())
        }
    }
}

/// Waits for SIGINT, SIGTERM or SIGHUP and names it.
pub async fn stop_signal() -> Result<&'static str, CliError> {
    let listen =
        |kind| signal(kind).map_err(|error| CliError::failed("signals cannot be listened for").because(&error));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => "SIGINT",
        _ = terminate.recv() => "SIGTERM",
        _ = hangup.recv() => "SIGHUP",
    })
}
