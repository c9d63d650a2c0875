//! `holdfast lease`.

use super::connect::{connect, incomplete};
use super::text::{epoch_text, lease_text};
use crate::cli::{Common, LeaseCommand};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_types::{Name, Owner};
use std::time::Duration;

/// Runs one of `holdfast lease`'s commands.
pub async fn run(common: &Common, command: LeaseCommand) -> Result<(), CliError> {
    match command {
        LeaseCommand::Show { set } => show(common, &set).await,
        LeaseCommand::Acquire { set, owner, ttl, force } => acquire(common, &set, &owner, ttl, force).await,
        LeaseCommand::Continue { set, owner, token } => go_on(common, &set, &owner, checked(token)?).await,
        LeaseCommand::Renew { set, token, epoch } => renew(common, &set, checked(token)?, epoch).await,
        LeaseCommand::Release { set, token, epoch } => release(common, &set, checked(token)?, epoch).await,
    }
}

/// Milliseconds on the wire; 0 lets the gateway choose.
pub fn ttl_ms(ttl: Option<Duration>) -> u32 {
    ttl.map_or(0, |ttl| u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX))
}

/// NBD addresses of the volumes with the token. The `?` in the export name is escaped.
pub fn exports(common: &Common, grant: &v1::GrantReply) -> Vec<String> {
    let scheme = common.nbd_scheme();
    let lease = grant.lease.clone().unwrap_or_default();
    let name = |volume: &v1::Volume| format!("{}/{}%3Ftoken={}&conn=0&gen=1", lease.set, volume.name, grant.token);
    grant.volumes.iter().map(|volume| format!("{scheme}://{}/{}", lease.gateway_nbd, name(volume))).collect()
}

async fn show(common: &Common, set: &Name) -> Result<(), CliError> {
    let reply = current(&mut connect(common), set).await?;
    output::show(common.output, &reply, || {
        reply
            .lease
            .as_ref()
            .map_or(format!("set {set} has no owner"), |lease| format!("set {set} is held by {}", lease_text(lease)))
    })
}

async fn acquire(
    common: &Common,
    set: &Name,
    owner: &Owner,
    ttl: Option<Duration>,
    force: bool,
) -> Result<(), CliError> {
    let request = v1::AcquireLeaseRequest {
        set: set.to_string(),
        owner: owner.to_string(),
        ttl_ms: ttl_ms(ttl),
        request_id: request_id(),
        force,
        ..Default::default()
    };
    let call = async |mut client: Client| client.acquire_lease(request.clone()).await;
    let grant = connect(common).call(&format!("acquire the lease of {set}"), Effect::Changes, call).await?;
    show_grant(common, set, owner, &grant)
}

/// Checks a token before a gateway is asked. The error does not repeat it, as clap's would.
fn checked(token: String) -> Result<String, CliError> {
    let told = "give the token that `holdfast lease acquire` or `holdfast lease continue` printed";
    holdfast_api::token(&token).map_err(|error| CliError::usage("").because(&error).next(told))?;
    Ok(token)
}

async fn go_on(common: &Common, set: &Name, owner: &Owner, token: String) -> Result<(), CliError> {
    let request = v1::ContinueLeaseRequest {
        set: set.to_string(),
        owner: owner.to_string(),
        token,
        request_id: request_id(),
        ..Default::default()
    };
    let call = async |mut client: Client| client.continue_lease(request.clone()).await;
    let grant = connect(common).call(&format!("continue the lease of {set}"), Effect::Changes, call).await?;
    show_grant(common, set, owner, &grant)
}

/// A new grant: the lease, its token, and where to connect with it.
fn show_grant(common: &Common, set: &Name, owner: &Owner, grant: &v1::GrantReply) -> Result<(), CliError> {
    let lease = grant.lease.as_ref().ok_or_else(|| incomplete("the lease"))?;
    let exports = exports(common, grant);
    let json =
        serde_json::json!({ "lease": lease, "token": grant.token, "volumes": grant.volumes, "exports": exports });
    output::show(common.output, &json, || {
        let grant = format!(
            "{owner} holds set {set} at {}, epoch {}\ntoken  {}",
            lease.gateway_name,
            epoch_text(lease.epoch),
            grant.token
        );
        format!(
            "{grant}\nThe lease expires {} ms after the last renewal or write. Connect to:\n  {}\nIncrease gen with each reconnect \
             (see holdfast lease --help).",
            lease.ttl_ms,
            exports.join("\n  ")
        )
    })
}

async fn renew(common: &Common, set: &Name, token: String, epoch: Option<u64>) -> Result<(), CliError> {
    let mut api = connect(common);
    // Without an epoch the current grant is meant. A set without an owner has none: the gateway answers that the token
    // is stale.
    let epoch = match epoch {
        Some(epoch) => epoch,
        None => current(&mut api, set).await?.lease.map_or(0, |lease| lease.epoch),
    };
    let request = v1::RenewLeaseRequest { set: set.to_string(), epoch, token };
    let call = async |mut client: Client| client.renew_lease(request.clone()).await;
    let reply = api.call(&format!("renew the lease of {set}"), Effect::Changes, call).await?;
    let lease = reply.lease.as_ref().ok_or_else(|| incomplete("the lease"))?;
    output::show(common.output, &reply, || format!("set {set} is held by {}", lease_text(lease)))
}

async fn release(common: &Common, set: &Name, token: String, epoch: Option<u64>) -> Result<(), CliError> {
    let mut api = connect(common);
    // Without an epoch the current grant is meant. The gateway compares the token.
    let epoch = match epoch {
        Some(epoch) => Some(epoch),
        None => current(&mut api, set).await?.lease.map(|lease| lease.epoch),
    };
    let reply = match epoch {
        None => v1::ReleaseLeaseReply { released: false },
        Some(epoch) => {
            let request = v1::ReleaseLeaseRequest { set: set.to_string(), epoch, token };
            let call = async |mut client: Client| client.release_lease(request.clone()).await;
            api.call(&format!("release the lease of {set}"), Effect::Changes, call).await?
        }
    };
    output::show(common.output, &reply, || match reply.released {
        true => format!("the lease of {set} is released"),
        false => format!("the lease of {set} had ended already"),
    })
}

async fn current(api: &mut ClusterClient, set: &Name) -> Result<v1::GetLeaseReply, CliError> {
    let request = v1::GetLeaseRequest { set: set.to_string() };
    let call = async |mut client: Client| client.get_lease(request.clone()).await;
    api.call(&format!("get the lease of {set}"), Effect::Reads, call).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn a_wrong_token_is_refused_here_and_not_repeated() {
        let error = checked("secret".into()).unwrap_err();
        assert!(error.exit == Exit::Usage && !error.message.contains("secret"), "{error:?}");
        assert!(checked("0123456789abcdef".repeat(2)).is_ok());
    }
}
