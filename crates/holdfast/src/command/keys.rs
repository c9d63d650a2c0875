//! `holdfast key`: which cluster key wraps what, and its change.

use super::{door, member_text, tell};
use crate::cli::{Common, KeyCommand};
use crate::door::{Client, Door, Effect};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_set::keyring::new_passphrase_kdf;
use std::time::Duration;
use tokio::time::{Instant, sleep};

mod data;

/// Between two looks how far the heads in the stores are.
const LOOK: Duration = Duration::from_millis(300);

/// Runs one of `holdfast key`'s commands.
pub async fn run(common: &Common, command: KeyCommand) -> Result<(), CliError> {
    match command {
        KeyCommand::List => {
            let keys = list(&mut door(common)).await?;
            output::show(common.output, &keys, || describe(&keys))
        }
        KeyCommand::RotateCluster => rotate(common).await,
        KeyCommand::RotateData { set, yes } => data::rotate(common, set, yes).await,
        KeyCommand::Kdf => {
            let kdf = new_passphrase_kdf().to_string();
            output::show(common.output, &serde_json::json!({ "passphrase_kdf": kdf }), || kdf.clone())
        }
    }
}

async fn list(door: &mut Door) -> Result<v1::ListKeysReply, CliError> {
    let call = async |mut client: Client| client.list_keys(v1::ListKeysRequest {}).await;
    door.call("list the keys", Effect::Reads, call).await
}

async fn rotate(common: &Common) -> Result<(), CliError> {
    let mut door = door(common).patient();
    let call = async |mut client: Client| client.rotate_cluster_key(v1::RotateClusterKeyRequest {}).await;
    let mut keys = door.call("change the cluster key", Effect::Changes, call).await.map_err(|error| {
        let next =
            "`holdfast key list` shows every gateway's keys; `holdfast key rotate-cluster --help` says what each needs";
        if error.next.is_some() { error } else { error.next(next) }
    })?;
    let target = keys.current.clone();
    // Leaders replace the heads in the stores by themselves.
    while !keys.left.is_empty() && Instant::now() + LOOK < door.deadline() {
        sleep(LOOK).await;
        keys = list(&mut door).await?;
    }
    if keys.current != target || !keys.left.is_empty() {
        return Err(CliError::failed(format!("not wrapped by {target} yet: {}", keys.left.join(", ")))
            .next("both keys are needed until `holdfast key list` shows nothing to be done; the same command again goes on, --timeout waits longer"));
    }
    output::show(common.output, &keys, || describe(&keys))?;
    if keys.gateways.iter().all(|gateway| gateway.keys.as_ref().is_some_and(|said| said.previous.is_empty())) {
        tell(common, "nothing was to be changed: no gateway has a [key_previous], so there is no other key to go to");
        return Ok(());
    }
    tell(
        common,
        "next: take [key_previous] out of every gateway's settings, and keep the new key where a recovery finds it",
    );
    Ok(())
}

fn describe(keys: &v1::ListKeysReply) -> String {
    let gateways = keys.gateways.iter().map(|gateway| {
        let said = gateway.keys.clone().unwrap_or_default();
        let current = if gateway.keys.is_some() { said.current } else { format!("? {}", gateway.error) };
        [gateway.name.clone(), member_text(gateway.member), current, said.previous, said.node]
    });
    let sets = keys.sets.iter().map(|set| {
        let head = if set.head.is_empty() { "unknown".to_string() } else { set.head.clone() };
        [set.name.clone(), set.id.to_string(), set.wrapped_by.clone(), head]
    });
    let left = if keys.left.is_empty() {
        format!("{} alone opens everything", keys.current)
    } else {
        let not = keys.objections.iter().map(|why| format!("\n  first: {why}")).collect::<String>();
        format!("not wrapped by {} yet: {}{not}", keys.current, keys.left.join(", "))
    };
    let several = Some(data::describe(keys)).filter(|text| !text.is_empty());
    let several = several.map(|text| format!("{text}\n\n")).unwrap_or_default();
    format!(
        "{}\n\n{}\n\n{several}{left}",
        output::table_with_trouble(["GATEWAY", "MEMBER", "KEY", "PREVIOUS", "NODE KEY BY"], gateways, &[2], 1),
        output::table(["SET", "GROUP", "DATA KEY BY", "IN ITS STORE BY"], sets)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_done_and_why_is_told() {
        let mut keys = v1::ListKeysReply { current: "00000000000000aa".into(), ..Default::default() };
        keys.gateways.push(v1::GatewayKeys {
            member: 2,
            name: "g2".into(),
            error: "no answer".into(),
            ..Default::default()
        });
        keys.sets.push(v1::SetKeys {
            id: 1,
            name: "demo".into(),
            wrapped_by: "00000000000000bb".into(),
            head: String::new(),
            ..Default::default()
        });
        assert!(describe(&keys).ends_with("00000000000000aa alone opens everything"));
        keys.left = vec!["data key of set demo".into()];
        keys.objections = vec!["gateway g2 does not say which keys it has: no answer".into()];
        let text = describe(&keys);
        assert!(text.contains("g2       m2      ? no answer"), "{text}");
        assert!(text.contains("demo  1      00000000000000bb  unknown"), "{text}");
        assert!(
            text.ends_with("yet: data key of set demo\n  first: gateway g2 does not say which keys it has: no answer"),
            "{text}"
        );
    }
}
