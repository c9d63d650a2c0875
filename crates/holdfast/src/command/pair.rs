//! `holdfast pair`: which gateway of a pair holds its seat in etcd (ADR 0031). Reads etcd, and asks the admin API of
//! the holder.

use super::text::time;
use crate::cli::{Common, PairCommand};
use crate::client::{Client, ClusterClient, Effect};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use holdfast_gateway::config::GatewayConfig;
use holdfast_pair::{Seated, SeatedPair, seated};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Time limit for the answer of the holder.
const DOOR_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize)]
struct Status {
    pair: String,
    /// The etcd key.
    key: String,
    /// `null`: the seat is free.
    holder: Option<Holding>,
    /// The pair's feature level.
    level: u32,
    /// The level that each gateway reported last, by name.
    gateways: BTreeMap<String, u32>,
}

#[derive(Debug, Serialize)]
struct Holding {
    /// Empty if the value of the key cannot be read.
    gateway: String,
    api: String,
    nbd: String,
    since_unix_ms: u64,
    /// Grows with each holder.
    revision: u64,
    /// The id of the cluster that the sets live in under this holder.
    cluster_id: String,
    /// Its admin API answers, and reports the same cluster.
    answers: bool,
    /// Why it is not ready, or why it does not answer.
    trouble: String,
}

/// Runs the command.
pub async fn run(common: &Common, command: PairCommand) -> Result<(), CliError> {
    let PairCommand::Status { config } = command;
    let status = status(common, &config).await?;
    output::show(common.output, &status, || table(&status))
}

async fn status(common: &Common, path: &Path) -> Result<Status, CliError> {
    let config = GatewayConfig::load(path).map_err(|error| CliError::usage("").because(&error))?;
    let name = config.pair.name.clone().ok_or_else(|| {
        CliError::usage(format!("{}: found no pair.name, expected a gateway of a pair", path.display()))
            .next("give --config the settings of a gateway with a [pair] section")
    })?;
    let found = tokio::time::timeout(common.timeout(), seated(config)).await;
    let found = found.map_err(|_| {
        CliError::unreachable(format!("etcd: no answer within {:?}", common.timeout()))
            .next("check pair.endpoints in the settings, and that etcd runs; --timeout allows more time")
    })?;
    let found = found.map_err(|error| CliError::unreachable("the pair's seat").because(&error))?;
    let SeatedPair { key, seated, roster } = found;
    let holder = match seated {
        None => None,
        Some(seated) => Some(holding(common, seated).await),
    };
    Ok(Status { pair: name.to_string(), key, holder, level: roster.level, gateways: roster.gateways })
}

async fn holding(common: &Common, seated: Seated) -> Holding {
    let mut shown = Holding {
        gateway: seated.gateway,
        api: seated.api,
        nbd: seated.nbd,
        since_unix_ms: seated.since_unix_ms,
        revision: seated.revision,
        cluster_id: holdfast_api::hex128(seated.cluster),
        answers: false,
        trouble: String::new(),
    };
    if holdfast_api::host_port(&shown.api).is_none() {
        shown.trouble = "the value of the etcd key has no admin address".to_string();
        return shown;
    }
    let limit = common.timeout().min(DOOR_LIMIT);
    let call = async |mut client: Client| client.get_node(v1::GetNodeRequest {}).await;
    let mut api = ClusterClient::new(&common.dialer, std::slice::from_ref(&shown.api), limit);
    match api.call("ask the holder", Effect::Reads, call).await {
        Ok(node) if node.cluster_id == shown.cluster_id => {
            shown.answers = true;
            shown.trouble = node.not_ready;
        }
        Ok(node) => shown.trouble = format!("it is in cluster {:?}: a takeover is in progress", node.cluster_id),
        Err(error) => shown.trouble = error.message,
    }
    shown
}

/// Each gateway's level.
fn builds(status: &Status) -> String {
    let each: Vec<String> = status.gateways.iter().map(|(gateway, level)| format!("{gateway}={level}")).collect();
    each.join(",")
}

fn table(status: &Status) -> String {
    let Some(holder) = &status.holder else {
        let (pair, key, level) = (&status.pair, &status.key, status.level);
        return format!("pair {pair}: no gateway holds its seat ({key}); level {level}, builds {}", builds(status));
    };
    let row = [
        status.pair.clone(),
        holder.gateway.clone(),
        holder.api.clone(),
        holder.nbd.clone(),
        time(holder.since_unix_ms),
        holder.revision.to_string(),
        status.level.to_string(),
        builds(status),
        if holder.answers { "yes".to_string() } else { "no".to_string() },
        holder.trouble.clone(),
    ];
    let header = ["PAIR", "HOLDER", "API", "NBD", "SINCE", "REVISION", "LEVEL", "BUILDS", "ANSWERS", "ERROR"];
    output::table(header, [row])
}
