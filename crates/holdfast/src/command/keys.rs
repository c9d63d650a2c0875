//! `holdfast key`: shows and rotates keys.

use super::connect::connect;
use super::console::tell;
use super::text::member_text;
use crate::cli::{Common, KeyCommand};
use crate::client::{Client, Effect};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_set::keyring::new_passphrase_kdf;
use list::list;
use std::time::Duration;
use tokio::time::{Instant, sleep};

mod data;
mod envelope;
mod list;

/// Poll interval for the heads in the stores.
const LOOK: Duration = Duration::from_millis(300);

/// Runs one of `holdfast key`'s commands.
pub async fn run(common: &Common, command: KeyCommand) -> Result<(), CliError> {
    match command {
        KeyCommand::List => {
            let keys = list(&mut connect(common)).await?;
            output::show(common.output, &keys, || describe(&keys))
        }
        KeyCommand::RotateCluster => rotate(common).await,
        KeyCommand::RotateData { set, yes } => data::rotate(common, set, yes).await,
        KeyCommand::Kdf => {
            let kdf = new_passphrase_kdf().to_string();
            output::show(common.output, &serde_json::json!({ "passphrase_kdf": kdf }), || kdf.clone())
        }
        KeyCommand::Envelope { config } => envelope::make(common, &config).await,
    }
}

async fn rotate(common: &Common) -> Result<(), CliError> {
    let mut api = connect(common).patient();
    let call = async |mut client: Client| client.rotate_cluster_key(v1::RotateClusterKeyRequest {}).await;
    let mut keys = api.call("rotate the cluster key", Effect::Changes, call).await.map_err(|error| {
        let next =
            "`holdfast key list` shows the keys of every gateway; `holdfast key rotate-cluster --help` explains what each one needs";
        if error.next.is_some() { error } else { error.next(next) }
    })?;
    let target = keys.current.clone();
    // The leaders replace the heads in the stores in the background.
    while !keys.left.is_empty() && Instant::now() + LOOK < api.deadline() {
        sleep(LOOK).await;
        keys = list(&mut api).await.map_err(|error| error.after_a_change("the change of the key has begun"))?;
    }
    if keys.current != target || !keys.left.is_empty() {
        return Err(CliError::failed(format!("not wrapped by {target} yet: {}", keys.left.join(", ")))
            .next("keep both keys until `holdfast key list` shows nothing left to do; the same command continues, and --timeout allows more time"));
    }
    output::show(common.output, &keys, || describe(&keys))?;
    if keys.gateways.iter().all(|gateway| gateway.keys.as_ref().is_some_and(|said| said.previous.is_empty())) {
        tell(
            common,
            "nothing to rotate: no gateway has [key_previous] in its settings; `holdfast key rotate-cluster --help` explains the steps",
        );
        return Ok(());
    }
    tell(
        common,
        "next: remove [key_previous] from the settings of every gateway, move the old key away, and restart the gateways one after the other; destroy the old key only when all of them have started without it, and keep a copy of the new one for a recovery",
    );
    Ok(())
}

fn describe(keys: &v1::ListKeysReply) -> String {
    let gateways = keys.gateways.iter().map(|gateway| {
        let said = gateway.keys.clone().unwrap_or_default();
        let current = if gateway.keys.is_some() { said.current } else { format!("unknown: {}", gateway.error) };
        [gateway.name.clone(), member_text(gateway.member), current, said.previous, said.node]
    });
    let sets = keys.sets.iter().map(|set| {
        let head = if set.head.is_empty() { "unknown".to_string() } else { set.head.clone() };
        [set.name.clone(), set.id.to_string(), set.wrapped_by.clone(), head]
    });
    let left = if keys.left.is_empty() {
        format!("everything is wrapped by {}; no other key is needed", keys.current)
    } else {
        let not = keys.objections.iter().map(|why| format!("\n  first: {why}")).collect::<String>();
        format!("not wrapped by {} yet: {}{not}", keys.current, keys.left.join(", "))
    };
    let several = Some(data::describe(keys)).filter(|text| !text.is_empty());
    let several = several.map(|text| format!("{text}\n\n")).unwrap_or_default();
    format!(
        "{}\n\n{}\n\n{several}{left}",
        output::table_with_messages(["GATEWAY", "MEMBER", "KEY", "PREVIOUS", "NODE KEY WRAPPED BY"], gateways, &[2], 1),
        output::table(["SET", "GROUP", "DATA KEY WRAPPED BY", "HEAD WRAPPED BY"], sets)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_parts_are_shown_with_their_reason() {
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
        assert!(describe(&keys).ends_with("wrapped by 00000000000000aa; no other key is needed"));
        keys.left = vec!["data key of set demo".into()];
        keys.objections = vec!["gateway g2 does not say which keys it has: no answer".into()];
        let text = describe(&keys);
        assert!(text.contains("g2       m2      unknown: no answer"), "{text}");
        assert!(text.contains("demo  1      00000000000000bb     unknown"), "{text}");
        assert!(
            text.ends_with("yet: data key of set demo\n  first: gateway g2 does not say which keys it has: no answer"),
            "{text}"
        );
    }
}
