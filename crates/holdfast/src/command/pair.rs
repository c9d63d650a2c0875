//! `holdfast pair`: who of a gateway pair has its seat in the etcd (ADR 0031). Asks the etcd, and the holder's admin door.

use crate::cli::{Common, with_codes};
use crate::door::{Client, Door, Effect};
use crate::exit::CliError;
use crate::output;
use clap::Subcommand;
use holdfast_api::v1;
use holdfast_gateway::config::GatewayConfig;
use holdfast_pair::{Seated, SeatedPair, seated};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// `holdfast pair`.
#[derive(Debug, Subcommand)]
pub enum PairCommand {
    /// Show who has the pair's seat, and whether that gateway answers
    #[command(after_long_help = with_codes(STATUS))]
    Status {
        /// Settings of either gateway of the pair
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

const STATUS: &str = "\
Examples:
  holdfast pair status --config g1.toml
  holdfast pair status --config g1.toml --output json | jq -r .holder.api

A pair is made by [pair] in the settings of its two gateways (holdfast gateway sample-config), and run by `holdfast gateway run` at each.
The seat is free for a moment while it changes hands, and as long as no gateway of the pair runs.
LEVEL is what may be written into the pair's stores: the least of BUILDS, which are the feature
levels that the gateways know, as each has said last; 1 before two have said so.
";

/// What a holder may take to answer.
const DOOR_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize)]
struct Status {
    pair: String,
    /// The key in the etcd.
    key: String,
    /// `null`: the seat is free.
    holder: Option<Holding>,
    /// The pair's feature level.
    level: u32,
    /// By name, the level that each gateway's build knows, as it said last.
    gateways: BTreeMap<String, u32>,
}

#[derive(Debug, Serialize)]
struct Holding {
    /// Empty where the key's text is not ours.
    gateway: String,
    api: String,
    nbd: String,
    since_unix_ms: u64,
    /// Grows with each holder.
    revision: u64,
    /// The id of the cluster that the sets live in under this holder.
    cluster_id: String,
    /// Its admin door answers, and says the same cluster.
    answers: bool,
    /// What it says of itself where it is not ready, or why it does not answer.
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
        CliError::usage(format!("{}: found no pair.name", path.display()))
            .next("name the settings of a gateway that is one of a pair")
    })?;
    let found = tokio::time::timeout(common.timeout(), seated(config)).await;
    let found =
        found.map_err(|_| CliError::unreachable(format!("the etcd: no answer within {:?}", common.timeout())))?;
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
        shown.trouble = "the key's text names no admin door".to_string();
        return shown;
    }
    let limit = common.timeout().min(DOOR_LIMIT);
    let call = async |mut client: Client| client.get_node(v1::GetNodeRequest {}).await;
    let mut door = Door::new(&common.dialer, std::slice::from_ref(&shown.api), limit);
    match door.call("ask the holder", Effect::Reads, call).await {
        Ok(node) if node.cluster_id == shown.cluster_id => {
            shown.answers = true;
            shown.trouble = node.not_ready;
        }
        Ok(node) => shown.trouble = format!("it is in cluster {:?}: its tenure begins, or is over", node.cluster_id),
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
        return format!("pair {pair}: nobody has its seat ({key}); level {level}, builds {}", builds(status));
    };
    let row = [
        status.pair.clone(),
        holder.gateway.clone(),
        holder.api.clone(),
        holder.nbd.clone(),
        super::history::time(holder.since_unix_ms),
        holder.revision.to_string(),
        status.level.to_string(),
        builds(status),
        if holder.answers { "yes".to_string() } else { "no".to_string() },
        holder.trouble.clone(),
    ];
    let header = ["PAIR", "HOLDER", "API", "NBD", "SINCE", "REVISION", "LEVEL", "BUILDS", "ANSWERS", "TROUBLE"];
    output::table(header, [row])
}
