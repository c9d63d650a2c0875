//! What the keeper asks of the gateways about the lease, and what it tells the machine of the answers.

use super::{EXPIRY_MARGIN, LOOK_LIMIT, Options, RENEW_LIMIT};
use crate::doors::{self, Doors, Said, call};
use crate::lease_file::LeaseFile;
use crate::machine::{Grant, VolumeFacts};
use crate::shared::Shared;
use holdfast_api::{Refusal, RefusalCode, v1};
use holdfast_types::{Epoch, Name, RequestId, Token};
use std::collections::BTreeMap;
use std::time::Duration;

/// P1: before the machine learns of the grant, and so before anything is sent under it.
fn keep(kept: Option<&LeaseFile>, options: &Options, grant: &Grant, volumes: &[(VolumeFacts, bool)]) {
    let Some(file) = kept else { return };
    if let Err(error) = file.granted(&options.set, &options.owner, grant.token, volumes) {
        tracing::error!(set = %options.set, %error, "the lease could not be kept: after the death of this process its devices would be lost");
    }
}

/// Asks for the lease. A lease that our own owner's former process left behind is waited for: the lock says that it is gone.
pub(super) async fn acquire(
    shared: &Shared,
    doors: &Doors,
    options: &Options,
    kept: Option<&LeaseFile>,
    request: RequestId,
    force: bool,
) -> Result<(), Refusal> {
    loop {
        let message = doors::acquire(&options.set, &options.owner, options.ttl, request, force);
        let call = call!(acquire_lease, message);
        let (api, asked) = doors.ask_all(call, doors::is_final).await;
        let refusal = match asked {
            Ok(reply) => {
                let Some((grant, volumes)) = doors::grant_of(&api, &reply) else {
                    let message = format!("{api}: the grant lacks a lease, a token, or names of volumes");
                    return Err(Refusal::new(RefusalCode::Failed, message));
                };
                shared.set_volumes(&volumes);
                let count = volumes.len();
                let all: Vec<_> = volumes.into_iter().map(|facts| (facts, false)).collect();
                keep(kept, options, &grant, &all);
                shared.act(|machine, now, out| machine.granted(now, request, grant, count, out));
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        let lease = if refusal.code == RefusalCode::Held { lease(doors, &options.set).await } else { None };
        match lease {
            Some(lease) if lease.owner == options.owner.to_string() => {
                let left = Duration::from_millis(u64::from(lease.remaining_ms)) + EXPIRY_MARGIN;
                tracing::info!(set = %options.set, ?left, "an earlier lease of this owner has to expire first");
                tokio::time::sleep(left).await;
            }
            _ => return Err(refusal),
        }
    }
}

/// Continues the lease.
pub(super) async fn carry_on(
    shared: &Shared,
    doors: &Doors,
    options: &Options,
    kept: Option<&LeaseFile>,
    request: RequestId,
    token: Token,
) {
    let message = doors::continuation(&options.set, &options.owner, token, request);
    let call = call!(continue_lease, message);
    let (api, asked) = doors.ask_all(call, doors::is_ended).await;
    match asked {
        Ok(reply) => match doors::grant_of(&api, &reply) {
            Some((grant, volumes)) => {
                // The devices stay those of the beginning, in that order (M8).
                let ours = shared.all_facts();
                let lost: BTreeMap<usize, String> =
                    ours.iter().enumerate().filter_map(|(n, facts)| Some((n, facts.lost_in(&volumes)?))).collect();
                let before = shared.look(|machine| machine.lost_volumes().clone());
                for (_, why) in lost.iter().filter(|(n, _)| !before.contains_key(n)) {
                    tracing::error!(set = %options.set, "{why}: its device fails from now on, the others go on; detach, then attach anew");
                }
                let over = |n: usize| lost.contains_key(&n) || before.contains_key(&n);
                let count = ours.len();
                let all: Vec<_> = ours.into_iter().enumerate().map(|(n, facts)| (facts, over(n))).collect();
                keep(kept, options, &grant, &all);
                shared.act(|machine, now, out| machine.granted_without(now, request, grant, count, lost, out));
            }
            None => tracing::error!(api, "the grant lacks a lease, a token, or names of volumes"),
        },
        Err(refusal) => shared.act(|machine, _, out| machine.refused(request, &refusal.message, out)),
    }
}

/// Renews it once.
pub(super) async fn renew(
    shared: &Shared,
    doors: &Doors,
    set: &Name,
    number: u64,
    epoch: Epoch,
    token: Token,
    api: &str,
) {
    let request = v1::RenewLeaseRequest { set: set.to_string(), epoch: epoch.0, token: token.to_text() };
    let call = call!(renew_lease, request);
    let said = doors.ask(api, RENEW_LIMIT, &call).await;
    shared.act(|machine, now, out| match said {
        Said::Done(_) => machine.renewed(now, number, out),
        // Taken, but not known to have happened: the gateway is there, and the next one will show.
        Said::Refused(refusal) if refusal.code == RefusalCode::Unknown => machine.renew_failed(now, number, None, out),
        Said::Refused(refusal) => machine.renew_failed(now, number, Some(refusal.message), out),
        Said::Nothing(why) => {
            tracing::debug!(why, "not renewed");
            machine.renew_failed(now, number, None, out);
        }
    });
}

async fn lease(doors: &Doors, set: &Name) -> Option<v1::Lease> {
    let request = v1::GetLeaseRequest { set: set.to_string() };
    let call = call!(get_lease, request);
    let asked = tokio::time::timeout(LOOK_LIMIT, doors.ask_all(call, doors::is_final)).await;
    asked.ok().and_then(|(_, reply)| reply.ok()).and_then(|reply| reply.lease)
}

/// Who holds the set, in words.
pub(super) async fn holder(doors: &Doors, set: &Name) -> Option<String> {
    let lease = lease(doors, set).await?;
    Some(format!("{} at gateway {} under {}", lease.owner, lease.gateway_name, Epoch(lease.epoch)))
}
