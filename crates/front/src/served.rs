//! One connection, from its handshake to its end.

use super::budget::Ledger;
use super::conn::{Connection, End};
use super::device::{ConnInfo, Peer};
use super::handshake::{Progress, Ready, shake_hands};
use super::line::{FrontTls, Line};
use super::measure::Measures;
use super::shared::Shared;
use std::future::Future;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;

/// Serves until the client or the front ends it. `tls`: what a client gets that asks for TLS.
pub(super) async fn serve<S>(shared: &Shared, line: Line<S>, peer: Peer, tls: Option<&FrontTls>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let info = ConnInfo { id: shared.next_id(), peer };
    let stop = shared.stop.child_token();
    // Declared before everything that a connection holds, so it is dropped last.
    let _listed = shared.admit(info.id, &stop);
    let progress = Progress::new(tls);
    let shaking = shake_hands(line, info, shared, &stop, &progress, tls);
    let shaking = progress.limit(&shared.limits, shaking);
    let ready = match until(&stop, shaking).await {
        Some(Some(Ok(ready))) => ready,
        Some(Some(Err(error))) if shared.may_say() => {
            return tracing::info!(connection = info.id, %peer, %error, "no transmission");
        }
        Some(None) if shared.may_say() => {
            return tracing::info!(connection = info.id, %peer, "the handshake took too long");
        }
        Some(Some(Err(_)) | None) | None => return,
    };
    let Ready { mut line, secure, served, input, name, place } = ready;
    tracing::info!(connection = info.id, %peer, export = %name, tls = secure, "connected");
    let measures = Measures::new();
    let ledger = Ledger::new(&shared.limits, shared.pool.clone());
    let connection = Connection::new(&mut line, input, served, &shared.limits, ledger, &measures);
    let end = connection.serve().await;
    // CONN-C4, SLOT-S1: all operations were dropped with the connection, so the slot may go to the next one.
    drop(place);
    if matches!(end, End::Left) {
        until(&stop, line.goodbye()).await;
    }
    // The socket closes now.
    drop(line);
    match end {
        End::Left | End::Gone => tracing::info!(connection = info.id, %peer, export = %name, %end, "disconnected"),
        end => tracing::info!(connection = info.id, %peer, export = %name, %end, "connection closed"),
    }
}

/// Runs `future` until it ends or `stop` is cancelled.
async fn until<T>(stop: &CancellationToken, future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        done = future => Some(done),
    }
}
