//! `holdfast gateway run`: starts and stops a gateway.

use crate::exit::CliError;
use holdfast_gateway::Stop;
use holdfast_gateway::config::GatewayConfig;
use holdfast_gateway::node::HAND_OVER_LIMIT;
use holdfast_host::lock::lock;
use holdfast_tls::Dialer;
use std::fs::File;
use std::path::Path;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time limit for a clean stop of a gateway, with the handover of what it leads. Ending it earlier loses nothing:
/// acknowledged writes are durable (R1).
pub const STOP_TIMEOUT: Duration = HAND_OVER_LIMIT.saturating_add(Duration::from_secs(8));

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

/// Keeps keys and clients' data out of core dumps of this process, and its memory from other processes of its user.
pub fn without_core_dumps() {
    if let Err(error) = holdfast_locked::no_core_dumps() {
        tracing::warn!(%error, "core dumps of this process could not be switched off: they would hold keys and data");
    }
}

/// The same for a process that starts PostgreSQL, whose own core dumps are its settings' matter.
pub fn without_own_core_dumps() {
    if let Err(error) = holdfast_locked::no_own_core_dumps() {
        tracing::warn!(%error, "core dumps of this process could not be switched off: they would hold its keys");
    }
}

/// This program was built without pairs: a gateway of one must not run as any other.
#[cfg(not(feature = "whole"))]
fn refuse_pair(config: &GatewayConfig) -> Result<(), CliError> {
    match config.pair.name {
        Some(_) => Err(CliError::usage("[pair]: found settings of a pair; this program was built without pairs")),
        None => Ok(()),
    }
}

/// Runs a gateway until it fails, or SIGINT or SIGTERM tells it to stop. It hands over what it leads first; a second
/// signal has it stop at once.
pub async fn gateway(config: GatewayConfig) -> Result<(), CliError> {
    ignore_hangup()?;
    #[cfg(not(feature = "whole"))]
    refuse_pair(&config)?;
    let name = config.name.clone();
    // Nothing else runs yet, so the wait of up to a second for a held lock may block.
    let _taken = take(&config.data_dir)?;
    let (stop, mut running) = match config.pair.name {
        // A pair has no votes to hand over: the other gateway takes the seat that this one gives up.
        #[cfg(feature = "whole")]
        Some(_) => {
            let now = tokio_util::sync::CancellationToken::new();
            (Stop::at_once(now.clone()), holdfast_pair::run_until(config, now))
        }
        _ => {
            let stop = Stop::default();
            (stop.clone(), holdfast_gateway::run_until(config, stop))
        }
    };
    let failed = |error: holdfast_gateway::RunError| CliError::failed(format!("gateway {name}")).because(&error);
    tokio::select! {
        ended = &mut running => return ended.map_err(failed),
        which = stop_signal() => tracing::info!(gateway = %name, signal = which?, "stopping"),
    }
    let impatient = stop_signal_from_now()?;
    stop.asked.cancel();
    let stopped = async {
        tokio::select! {
            ended = &mut running => return ended,
            signal = impatient => tracing::info!(gateway = %name, signal, "stopping at once"),
        }
        stop.now.cancel();
        running.await
    };
    match tokio::time::timeout(STOP_TIMEOUT, stopped).await {
        Ok(ended) => ended.map_err(failed),
        Err(_) => {
            tracing::warn!(gateway = %name, limit = ?STOP_TIMEOUT, "the gateway did not stop in time: exiting without a clean stop");
            Ok(())
        }
    }
}

fn listen(kind: SignalKind) -> Result<Signal, CliError> {
    signal(kind).map_err(|error| CliError::failed("cannot register signal handlers").because(&error))
}

/// Waits for a signal that ends a service (SIGINT or SIGTERM) and returns its name. SIGHUP is only logged here: it must
/// not end an agent that has a primary, nor the device below it. Without a handler, SIGHUP would end the process. A
/// certificate is read again then ([`Dialer::follow`]); settings are read only when a service starts.
pub async fn stop_signal() -> Result<&'static str, CliError> {
    Ok(stop_signal_from_now()?.await)
}

/// As [`stop_signal`], but a signal counts from now on, also if it comes before it is waited for. Without a handler it
/// would end the process at once.
pub fn stop_signal_from_now() -> Result<impl Future<Output = &'static str> + Send, CliError> {
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let mut hangup = listen(SignalKind::hangup())?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => return "SIGINT",
                _ = terminate.recv() => return "SIGTERM",
                _ = hangup.recv() => tracing::warn!("SIGHUP: TLS files are read again; settings are read at the start only: to use others, restart this process"),
            }
        }
    })
}

/// Waits for a signal that ends a command on a terminal and returns its name; the end of the terminal (SIGHUP) counts
/// too.
pub async fn terminal_signal() -> Result<&'static str, CliError> {
    let mut hangup = listen(SignalKind::hangup())?;
    // Registered first: the other handler would log what SIGHUP does in a service.
    tokio::select! {
        biased;
        _ = hangup.recv() => Ok("SIGHUP"),
        which = stop_signal() => which,
    }
}

/// Keeps SIGHUP from ending a process that does not handle it, or does not handle it yet.
pub fn ignore_hangup() -> Result<(), CliError> {
    // Once registered, the handler stays, even if nobody waits for the signal.
    listen(SignalKind::hangup()).map(drop)
}

/// Has a service use the files of its certificate as they change, until it ends. Must be called on a runtime.
pub fn follow_certificate(dialer: &Dialer) {
    let dialer = dialer.clone();
    tokio::spawn(async move { dialer.follow().await });
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal as Kind, getpid, kill_process};
    use std::future::poll_fn;
    use std::task::Poll;

    /// Signals reach the whole process, so only one test uses them.
    #[tokio::test]
    async fn a_hangup_ends_no_service() {
        let mut heard = listen(SignalKind::hangup()).unwrap();
        let (mut service, mut command) = (Box::pin(stop_signal()), Box::pin(terminal_signal()));
        // Both handlers are registered from here on.
        assert!(poll_fn(|cx| Poll::Ready(service.as_mut().poll(cx).is_pending())).await);
        assert!(poll_fn(|cx| Poll::Ready(command.as_mut().poll(cx).is_pending())).await);
        kill_process(getpid(), Kind::HUP).unwrap();
        heard.recv().await.unwrap();
        assert_eq!(command.await.unwrap(), "SIGHUP");
        assert!(poll_fn(|cx| Poll::Ready(service.as_mut().poll(cx).is_pending())).await, "a service goes on");
        // Nobody waits for it yet.
        let early = stop_signal_from_now().unwrap();
        kill_process(getpid(), Kind::TERM).unwrap();
        assert_eq!(service.await.unwrap(), "SIGTERM");
        assert_eq!(tokio::time::timeout(Duration::from_secs(10), early).await, Ok("SIGTERM"), "it came before");
    }

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
