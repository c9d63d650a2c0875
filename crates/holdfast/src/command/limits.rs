//! `holdfast set limit` and `holdfast volume limit`: how fast clients may go.

use super::connect::{connect, incomplete};
use super::set_calls::{no_volume, space, status};
use super::text::limit_text;
use crate::cli::{Common, LimitArgs, VolumePath};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_types::Name;

/// The limit of these options, over an earlier one. `None`: nothing is limited.
fn over(before: Option<&v1::Limit>, args: &LimitArgs) -> Result<Option<v1::Limit>, CliError> {
    if args.off {
        return Ok(None);
    }
    let (iops, bytes_per_second, burst_ms) =
        before.map_or((0, 0, 0), |limit| (limit.iops, limit.bytes_per_second, limit.burst_ms));
    let limit = v1::Limit {
        iops: args.iops.unwrap_or(iops),
        bytes_per_second: args.bytes.map_or(bytes_per_second, |size| size.0),
        burst_ms: args.burst.map_or(burst_ms, |burst| u32::try_from(burst.as_millis()).unwrap_or(u32::MAX)),
    };
    if limit.iops > 0 || limit.bytes_per_second > 0 {
        return Ok(Some(limit));
    }
    if args.burst.is_some() {
        return Err(CliError::usage("--burst: found no limit that it could be of").next("give --iops or --bytes too"));
    }
    Ok(None)
}

/// Changes the limit of the volume with this id, or of the set for 0, unless it is as asked for.
async fn change(
    api: &mut ClusterClient,
    what: &str,
    request: v1::ChangeLimitRequest,
    before: Option<v1::Limit>,
) -> Result<Option<v1::Limit>, CliError> {
    if request.limit == before {
        return Ok(before);
    }
    let call = async |mut client: Client| client.change_limit(request.clone()).await;
    Ok(api.call(&format!("limit {what}"), Effect::Changes, call).await?.limit)
}

fn show(common: &Common, what: &str, limit: Option<&v1::Limit>) -> Result<(), CliError> {
    output::show(common.output, &serde_json::json!({ "limit": limit }), || {
        format!("limit of {what}: {}", limit_text(limit))
    })
}

/// `holdfast set limit`.
pub async fn of_set(common: &Common, set: &Name, args: &LimitArgs) -> Result<(), CliError> {
    let mut api = connect(common);
    let before = status(&mut api, set.as_str(), false).await?.limit;
    let (what, limit) = (format!("set {set}"), over(before.as_ref(), args)?);
    let request = v1::ChangeLimitRequest { set: set.to_string(), request_id: request_id(), volume: 0, limit };
    let limit = change(&mut api, &what, request, before).await?;
    show(common, &what, limit.as_ref())
}

/// `holdfast volume limit`.
pub async fn of_volume(common: &Common, volume: &VolumePath, args: &LimitArgs) -> Result<(), CliError> {
    let mut api = connect(common);
    let reply = space(&mut api, volume.set.as_str()).await?;
    let named = |found: &v1::VolumeSpace| found.volume.as_ref().is_some_and(|v| v.name == volume.name.as_str());
    let found = reply.volumes.into_iter().find(named).ok_or_else(|| no_volume(volume))?;
    let id = found.volume.as_ref().map(|volume| volume.id).filter(|id| *id != 0);
    let (before, id) = (found.limit, id.ok_or_else(|| incomplete("the volume's id"))?);
    let (what, limit) = (format!("volume {volume}"), over(before.as_ref(), args)?);
    let request = v1::ChangeLimitRequest { set: volume.set.to_string(), request_id: request_id(), volume: id, limit };
    let limit = change(&mut api, &what, request, before).await?;
    show(common, &what, limit.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::ByteSize;
    use std::time::Duration;

    #[test]
    fn what_is_not_given_stays() {
        let limit = |iops, bytes_per_second, burst_ms| v1::Limit { iops, bytes_per_second, burst_ms };
        let before = limit(100, 5 << 20, 2000);
        let given = |iops, bytes: Option<u64>, burst_ms: Option<u64>| LimitArgs {
            iops,
            bytes: bytes.map(ByteSize),
            burst: burst_ms.map(Duration::from_millis),
            off: false,
        };
        let over = |before: Option<&v1::Limit>, args: LimitArgs| over(before, &args).ok();
        assert_eq!(over(Some(&before), given(None, None, None)), Some(Some(limit(100, 5 << 20, 2000))));
        assert_eq!(over(Some(&before), given(Some(7), None, None)), Some(Some(limit(7, 5 << 20, 2000))));
        assert_eq!(over(Some(&before), given(Some(0), None, Some(500))), Some(Some(limit(0, 5 << 20, 500))));
        assert_eq!(over(Some(&before), given(Some(0), Some(0), None)), Some(None));
        assert_eq!(over(None, given(None, Some(1 << 20), None)), Some(Some(limit(0, 1 << 20, 0))));
        assert_eq!(over(None, given(None, None, None)), Some(None));
        assert_eq!(over(None, given(None, None, Some(500))), None, "a burst alone is no limit");
        assert_eq!(over(Some(&before), LimitArgs { off: true, ..LimitArgs::default() }), Some(None));
    }
}
