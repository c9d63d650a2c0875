//! Waits for the seat, and keeps it.

use super::error::PairError;
use super::pair::Pair;
use super::said::Said;
use holdfast_control::pair::{Ended, renew_every};
use holdfast_etcd::{Holder, KeepAliveResult, Seat, Tenancy};
use holdfast_raft::boot_now;
use holdfast_set::authority::Authority;
use holdfast_types::MonoTime;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Pause between two checks of a taken seat: each is one read of the etcd.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Pause after a failed keep-alive; each also has its own timeouts.
const RETRY: Duration = Duration::from_millis(200);

/// The seat, won with a lease that was requested after this moment.
type Won = (Tenancy, MonoTime);

/// Waits until the seat is ours. Returns it with the moment before the request. `None`: told to stop.
///
/// # Errors
/// [`PairError::NotEnrolled`]: this build must not have the seat.
pub(super) async fn campaign(pair: &mut Pair, stop: &CancellationToken) -> Result<Option<Won>, PairError> {
    let mut said = Said::default();
    loop {
        let round = tokio::select! {
            () = stop.cancelled() => return Ok(None),
            round = one_round(pair, &mut said) => round?,
        };
        if round.is_some() {
            return Ok(round);
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
    }
}

/// PAIR-P6: whether the roster currently lists this gateway with its build.
async fn enrolled(pair: &mut Pair, said: &mut Said) -> Result<bool, PairError> {
    match pair.roster.enrol().await {
        Ok(()) => Ok(true),
        Err(refused @ PairError::NotEnrolled { .. }) => Err(refused),
        Err(error) => {
            if said.is_news("roster") {
                tracing::warn!(%error, "this gateway is not in the pair's roster yet: it does not ask for the seat");
            }
            Ok(false)
        }
    }
}

async fn one_round(pair: &mut Pair, said: &mut Said) -> Result<Option<Won>, PairError> {
    // The seat of our own ended tenure need not expire first: everything that was served with it has ended.
    if let Some(left) = pair.left {
        match pair.seat.give_up(&left).await {
            Ok(()) => pair.left = None,
            Err(error) => {
                if said.is_news("left") {
                    tracing::warn!(%error, "the etcd does not answer; nothing is served meanwhile");
                }
                return Ok(None);
            }
        }
    }
    // Also while the other gateway has the seat: that gateway waits for this one's entry in the roster.
    if pair.roster.is_due() && !enrolled(pair, said).await? {
        return Ok(None);
    }
    let won = match pair.seat.look().await {
        Ok(Some(occupant)) => {
            let namesake = occupant.holder.as_ref().is_some_and(|holder| is_namesake(&pair.holder, holder));
            let who = occupant.holder.map_or("somebody".to_string(), |holder| holder.gateway);
            if said.is_news(&format!("{who}/{}", occupant.revision)) {
                if namesake {
                    tracing::warn!(
                        name = who,
                        "the seat's holder has this gateway's name and another address: if both run, the roster lists only one of them, \
                         and the pair stays at its level"
                    );
                }
                tracing::info!(key = pair.seat.key(), holder = who, revision = occupant.revision, "standing by");
            }
            None
        }
        Ok(None) => {
            // The pair's level may have risen since the last check: this gateway must not take over heads that it
            // cannot read.
            if !enrolled(pair, said).await? {
                return Ok(None);
            }
            // PAIR-P1: the time before the request.
            let sent = boot_now();
            match pair.seat.take(&pair.holder()).await {
                Ok(taken) => taken.map(|tenancy| (tenancy, sent)),
                Err(error) => {
                    tracing::warn!(%error, "the pair's seat was free, but it is unknown whether this gateway won it");
                    None
                }
            }
        }
        Err(error) => {
            if said.is_news("look") {
                tracing::warn!(%error, "the etcd does not answer; nothing is served meanwhile");
            }
            None
        }
    };
    Ok(won)
}

/// Whether the holder is another gateway with our name: each would overwrite the other's entry in the roster.
fn is_namesake(ours: &Holder, holder: &Holder) -> bool {
    holder.gateway == ours.gateway && holder.api != ours.api
}

/// Keeps the seat until the tenure is over, or `ends` is cancelled.
pub(super) async fn keep(seat: &mut Seat, tenancy: Tenancy, authority: &Authority, ends: &CancellationToken) {
    let (mut pause, mut said) = (renew_every(tenancy.ttl), Said::default());
    loop {
        tokio::select! {
            () = ends.cancelled() => return,
            () = tokio::time::sleep(pause.min(left(authority))) => {}
        }
        let sent = boot_now();
        let kept = tokio::select! {
            () = ends.cancelled() => return,
            kept = seat.keep(&tenancy) => Some(kept),
            () = tokio::time::sleep(left(authority)) => None,
        };
        pause = match kept {
            Some(Ok(KeepAliveResult::For(ttl))) => {
                authority.renewed(sent, ttl);
                said = Said::default();
                renew_every(ttl)
            }
            Some(Ok(KeepAliveResult::Lost(why))) => {
                authority.end(Ended::Lost(why));
                RETRY
            }
            Some(Err(error)) => {
                if said.is_news("not confirmed") {
                    tracing::warn!(%error, left = ?left(authority), "the pair's seat is not confirmed; retrying until it is, or until the tenure is over");
                }
                metrics::counter!("holdfast_pair_keepalive_failures_total").increment(1);
                RETRY
            }
            None => RETRY,
        };
        metrics::gauge!("holdfast_pair_answers_for_seconds").set(left(authority).as_secs_f64());
        if let Err(why) = authority.may_answer() {
            tracing::error!(%why, "the tenure is over: closing all connections, and answering nothing");
            return;
        }
    }
}

fn left(authority: &Authority) -> Duration {
    authority.until().saturating_since(boot_now())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The default name is the same on every gateway.
    #[test]
    fn two_gateways_of_one_name_are_told_from_one_that_was_started_again() {
        let holder = |name: &str, api: &str, since| Holder::new(name.into(), api.into(), String::new(), since);
        let ours = holder("g1", "10.0.0.1:7400", 0);
        assert!(is_namesake(&ours, &holder("g1", "10.0.0.2:7400", 5)));
        assert!(!is_namesake(&ours, &holder("g2", "10.0.0.2:7400", 5)));
        assert!(!is_namesake(&ours, &holder("g1", "10.0.0.1:7400", 5)), "its own earlier seat");
    }
}
