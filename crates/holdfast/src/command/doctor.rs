//! `holdfast doctor`: checks this host, its settings and its cluster, and says what to do.

mod cluster;
mod disk;
mod files;
mod finding;
mod host;

use super::cluster as calls;
use super::store::{Checked, check_all};
use super::store_access::KEYS_FROM;
use crate::cli::{Common, DEFAULT_API, DoctorArgs, StoreArgs};
use crate::client::ClusterClient;
use crate::exit::CliError;
use crate::{output, serve};
use finding::Verdict;
use futures_util::future::join_all;
use holdfast_agent::config::AgentConfig;
use holdfast_gateway::checks::CheckError;
use holdfast_gateway::config::GatewayConfig;
use serde::Serialize;
use std::path::{Path, PathBuf};

pub use finding::Finding;

/// Settings of a gateway that are checked if none are named and these exist.
pub const GATEWAY: &str = "/etc/holdfast/gateway.toml";

/// Like `GATEWAY`, for an agent.
pub const AGENT: &str = "/etc/holdfast/agent.toml";

/// What `--output json` prints.
#[derive(Debug, Serialize)]
struct Report<'a> {
    /// The worst of the checks.
    verdict: Verdict,
    checks: &'a [Finding],
}

/// Runs `holdfast doctor`.
pub async fn run(common: &Common, args: &DoctorArgs) -> Result<(), CliError> {
    serve::without_core_dumps();
    let found = examine(common, args).await?;
    let verdict = found.iter().map(|finding| finding.verdict).max().unwrap_or(Verdict::Ok);
    output::show(common.output, &Report { verdict, checks: &found }, || table(&found))?;
    judge(&found)
}

/// The settings to look at: the named ones, or the usual ones. A file that may exist counts.
pub fn settings(named: Option<&Path>, usual: &str) -> Option<PathBuf> {
    let usual = Path::new(usual);
    named.or_else(|| usual.try_exists().unwrap_or(true).then_some(usual)).map(Path::to_path_buf)
}

/// Makes all checks.
///
/// # Errors
/// A `--store` is no URL of a store.
pub async fn examine(common: &Common, args: &DoctorArgs) -> Result<Vec<Finding>, CliError> {
    let (mut found, mut gateway, mut agent) = (Vec::new(), None, None);
    let files = (settings(args.config.as_deref(), GATEWAY), settings(args.agent_config.as_deref(), AGENT));
    if let Some(path) = &files.1 {
        let (findings, config) = files::agent(path);
        (found, agent) = (findings, config);
    }
    let devices = match &agent {
        Some(config) => files::needs_nbd(config),
        None => files.0.is_none(),
    };
    let root = Path::new("/");
    found.extend(host::kernel(root, devices));
    found.extend([host::clock_source(root), host::time_of_day().await]);
    if let Some(path) = &files.0 {
        let (findings, config) = files::gateway(path).await;
        found.extend(findings);
        gateway = config;
    }
    found.extend(of_stores(common, args, gateway.as_ref()).await?);
    found.extend(of_cluster(common, gateway.as_ref(), agent.as_ref()).await);
    Ok(found)
}

/// The stores that `--store` names, with the credentials of the gateway unless others are named.
async fn of_stores(
    common: &Common,
    args: &DoctorArgs,
    gateway: Option<&GatewayConfig>,
) -> Result<Vec<Finding>, CliError> {
    let of_gateway = gateway.and_then(|config| config.store.credentials_file.clone());
    let access = StoreArgs { credentials_file: args.access.credentials_file.clone().or(of_gateway) };
    let checked = check_all(&args.stores, &access, true, common.timeout()).await?;
    Ok(checked.iter().map(of_store).collect())
}

fn of_store((url, outcome): &Checked) -> Finding {
    const CHECK: &str = "store";
    match outcome {
        Ok(report) => {
            let ms = |took: std::time::Duration| took.as_secs_f64() * 1e3;
            Finding::ok(CHECK, format!("{url}: fit, put {:.0} ms, get {:.0} ms", ms(report.put), ms(report.get)))
        }
        Err(error @ CheckError::Unfit { .. }) => {
            Finding::bad(CHECK, error.to_string(), "use another store: sets cannot be created there")
        }
        Err(error) if error.is_undecided() => {
            Finding::unknown(CHECK, format!("{url}: {error}"), "check the URL, the network and the store")
        }
        Err(error) => Finding::bad(CHECK, format!("{url}: {error}"), KEYS_FROM),
    }
}

/// Admin addresses: those of `--api`, or else of the settings.
pub fn apis(common: &Common, gateway: Option<&GatewayConfig>, agent: Option<&AgentConfig>) -> Vec<String> {
    match (agent, gateway) {
        _ if common.api != [DEFAULT_API] => common.api.clone(),
        (Some(agent), _) => agent.gateways.clone(),
        (None, Some(gateway)) => vec![gateway.api_address()],
        (None, None) => common.api.clone(),
    }
}

async fn of_cluster(common: &Common, gateway: Option<&GatewayConfig>, agent: Option<&AgentConfig>) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(agent) = agent {
        let gateways = agent.gateways.iter().map(|address| (address.clone(), address.clone()));
        found.push(reached("network to gateways", gateways.collect(), None).await);
        let peers = agent.peers.0.iter().map(|(name, address)| (name.clone(), address.clone()));
        found.push(reached("network to agents", peers.collect(), None).await);
    }
    let mut api = ClusterClient::new(&common.dialer, &apis(common, gateway, agent), common.timeout());
    let status = match calls::status(&mut api).await {
        Ok(status) => status,
        Err(error) => {
            let next =
                "give --api, and with TLS the three --tls options; before `cluster bootstrap` there is no cluster";
            found.push(Finding::unknown("cluster", error.message, next));
            return found;
        }
    };
    found.extend(cluster::findings(&status));
    if let Some(gateway) = gateway {
        let others = status.members.iter().filter_map(|member| {
            let known = member.member.as_ref().filter(|known| known.name != gateway.name.as_str())?;
            Some((known.name.clone(), known.addresses.as_ref()?.peer.clone()))
        });
        found.push(reached("network to gateways", others.collect(), Some(gateway.rtt_ms)).await);
    }
    found
}

/// Connects to each address at once.
async fn reached(check: &'static str, others: Vec<(String, String)>, rtt_ms: Option<u32>) -> Finding {
    let tries = others.into_iter().map(|(name, address)| async move {
        let took = cluster::round_trip(&address).await;
        (name, took)
    });
    cluster::network(check, &join_all(tries).await, rtt_ms)
}

fn table(found: &[Finding]) -> String {
    let rows = found.iter().map(|one| [one.check.to_owned(), one.verdict.word().to_owned(), one.found.clone()]);
    let mut text = output::table_with_messages(["CHECK", "RESULT", "FOUND"], rows, &[2], 1);
    for one in found.iter().filter(|one| one.verdict != Verdict::Ok && !one.next.is_empty()) {
        text.push_str(&format!("\n\n{}: {}\n  {}", one.verdict.word(), one.check, one.next));
    }
    text
}

/// The error of the command: what is bad. Warnings, and checks that could not be made, are none.
fn judge(found: &[Finding]) -> Result<(), CliError> {
    let bad: Vec<&str> = found.iter().filter(|one| one.verdict == Verdict::Bad).map(|one| one.check).collect();
    match bad.is_empty() {
        true => Ok(()),
        false => Err(CliError::failed(format!("bad: {}", bad.join(", "))).next("see the table for what to do")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn only_what_is_bad_fails_the_command_and_all_is_shown() {
        let mut found = vec![
            Finding::ok("kernel", "Linux 6.1"),
            Finding::warning("clock source", "hpet", "look at dmesg"),
            Finding::unknown("cluster", "no answer", "give --api"),
        ];
        assert_eq!(judge(&found), Ok(()));
        found.push(Finding::bad("free space", "1GiB", "free some"));
        let error = judge(&found).unwrap_err();
        assert_eq!((error.exit, error.message.as_str()), (Exit::Failed, "bad: free space"));
        let text = table(&found);
        for part in ["kernel", "WARNING", "unknown", "BAD: free space\n  free some", "look at dmesg"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let report = Report { verdict: Verdict::Bad, checks: &found };
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["verdict"], "bad");
        assert_eq!(json["checks"][1]["verdict"], "warning");
    }

    #[test]
    fn a_file_that_is_named_is_looked_at_whether_it_exists_or_not() {
        let named = Path::new("/nowhere/at/all.toml");
        assert_eq!(settings(Some(named), "/nowhere/else"), Some(named.to_path_buf()));
        assert_eq!(settings(None, "/nowhere/else"), None);
        assert_eq!(settings(None, "/proc/self/status"), Some("/proc/self/status".into()));
    }
}
