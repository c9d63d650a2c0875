//! What goes into a bundle, before secrets are taken out.

use super::super::doctor::{self, apis};
use super::super::{cluster, status};
use super::known;
use super::redact::without_arguments;
use crate::cli::{Common, SupportArgs};
use crate::client::ClusterClient;
use crate::exit::CliError;
use crate::timestamp;
use holdfast_agent::client;
use holdfast_agent::config::AgentConfig;
use holdfast_agent::local;
use holdfast_api::v1;
use holdfast_gateway::config::GatewayConfig;
use serde::Serialize;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes of the end of a log, and of any other file.
const LOG_BYTES_MAX: u64 = 16 << 20;

/// The end of a log's path that its name in the bundle has.
const NAME_BYTES_MAX: usize = 160;

/// Time limit of an answer over HTTP, and of journalctl.
const ASK_LIMIT: Duration = Duration::from_secs(5);
const JOURNAL_LIMIT: Duration = Duration::from_secs(60);

/// What the kernel and the distribution say of the host.
const HOST: [&str; 9] = [
    "/etc/os-release",
    "/proc/version",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/diskstats",
    "/proc/self/mountinfo",
    "/proc/pressure/io",
    "/proc/modules",
];

/// A file of the bundle.
pub struct Entry {
    /// A plain name, without folders.
    pub name: String,
    /// Its content, or why there is none.
    pub text: String,
}

fn entry(name: impl Into<String>, text: Result<String, String>) -> Entry {
    Entry { name: name.into(), text: text.unwrap_or_else(|why| format!("not included: {why}\n")) }
}

fn json(value: &impl Serialize) -> Result<String, String> {
    serde_json::to_string_pretty(value).map_err(|error| error.to_string())
}

/// Settings that this host has, if they can be used.
pub struct Settings {
    gateway: Option<(PathBuf, Option<GatewayConfig>)>,
    agent: Option<(PathBuf, Option<AgentConfig>)>,
}

impl Settings {
    pub fn of(args: &SupportArgs) -> Self {
        let gateway = doctor::settings(args.doctor.config.as_deref(), doctor::GATEWAY);
        let agent = doctor::settings(args.doctor.agent_config.as_deref(), doctor::AGENT);
        Self {
            gateway: gateway.map(|path| (path.clone(), GatewayConfig::load(&path).ok())),
            agent: agent.map(|path| (path.clone(), AgentConfig::load(&path).ok())),
        }
    }

    /// The settings as they are written, one after the other.
    pub fn texts(&self) -> String {
        let paths = self.gateway.iter().map(|(path, _)| path).chain(self.agent.iter().map(|(path, _)| path));
        paths.filter_map(|path| end_of(path).ok()).collect::<Vec<_>>().join("\n")
    }

    fn gateway(&self) -> Option<&GatewayConfig> {
        self.gateway.as_ref()?.1.as_ref()
    }

    fn agent(&self) -> Option<&AgentConfig> {
        self.agent.as_ref()?.1.as_ref()
    }
}

/// Gathers everything. What cannot be read is named in its place.
///
/// # Errors
/// A `--store` is no URL of a store.
pub async fn all(common: &Common, args: &SupportArgs, settings: &Settings) -> Result<Vec<Entry>, CliError> {
    let mut entries = vec![entry("about.txt", Ok(about()))];
    let mut findings = doctor::examine(common, &args.doctor).await?;
    for finding in &mut findings {
        // An error of the settings has their line.
        finding.found = without_arguments(&finding.found);
    }
    entries.push(entry("doctor.json", json(&findings)));
    if let Some((path, _)) = &settings.gateway {
        entries.push(entry("gateway.toml", end_of(path).map(|text| without_arguments(&text))));
    }
    if let Some((path, config)) = &settings.agent {
        entries.push(entry("agent.toml", end_of(path).map(|text| without_arguments(&text))));
        entries.extend(agent(config.as_ref()).await);
    }
    entries.extend(of_cluster(common, settings).await);
    for path in HOST {
        entries.push(entry(format!("host-{}.txt", flat(path)), end_of(Path::new(path))));
    }
    entries.push(entry("journal.txt", journal(&args.since).await));
    for path in &args.logs {
        entries.push(entry(log_name(path, &entries), end_of(path)));
    }
    Ok(entries)
}

fn about() -> String {
    let (version, now) = (env!("CARGO_PKG_VERSION"), timestamp::now());
    format!(
        "holdfast support-bundle, version {version}, {now}\n\n\
         Secrets were taken out: the content of files and variables that the settings name as secret, and all that\n\
         looks like a password, a token or a key. Names of hosts, sets and volumes, addresses and settings are in\n\
         it. Look through it before you send it to somebody.\n"
    )
}

/// A path as a plain name.
fn flat(path: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') { c } else { '-' };
    path.trim_start_matches('/').chars().map(plain).collect()
}

/// The name of a log in the bundle. Other paths may give the same one, and a path may be longer than a name.
fn log_name(path: &Path, entries: &[Entry]) -> String {
    let plain = flat(&path.display().to_string());
    let mut name = format!("log-{}", &plain[plain.len().saturating_sub(NAME_BYTES_MAX)..]);
    while entries.iter().any(|entry| entry.name == name) {
        name.push('+');
    }
    name
}

/// The end of a file, as text.
fn end_of(path: &Path) -> Result<String, String> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = known::opened(path)?;
        // Files of the kernel have no length, and begin where they begin.
        let from = file.metadata()?.len().saturating_sub(LOG_BYTES_MAX);
        file.seek(SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(if from > 0 { whole_lines(bytes) } else { bytes })
    };
    let bytes = read().map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Without the rest of a line at the beginning: the end of a secret does not look like one.
fn whole_lines(mut bytes: Vec<u8>) -> Vec<u8> {
    let begin = bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1);
    bytes.split_off(begin)
}

async fn asked(address: &str, path: &str) -> Result<String, String> {
    match client::ask(address, path, None, None, ASK_LIMIT).await {
        Ok(answer) if answer.code == 200 => Ok(answer.body),
        Ok(answer) => Err(format!("{address}{path}: HTTP {}: {}", answer.code, answer.words())),
        Err(error) => Err(error.to_string()),
    }
}

/// What the agent of this host says, over its socket.
async fn agent(config: Option<&AgentConfig>) -> Vec<Entry> {
    let Some(config) = config else { return Vec::new() };
    let socket = config.run_dir.join(local::SOCKET).display().to_string();
    let mut entries = Vec::new();
    for (name, path) in
        [("agent-status.json", "/status"), ("agent-history.json", "/history"), ("agent-metrics.txt", "/metrics")]
    {
        entries.push(entry(name, asked(&socket, path).await));
    }
    entries
}

/// The state of the cluster, and the metrics of each gateway.
async fn of_cluster(common: &Common, settings: &Settings) -> Vec<Entry> {
    let addresses = apis(common, settings.gateway(), settings.agent());
    let mut api = ClusterClient::new(&common.dialer, &addresses, common.timeout());
    let found: v1::ClusterStatusReply = match cluster::status(&mut api).await {
        Ok(found) => found,
        Err(error) => return vec![entry("cluster-status.json", Err(error.message))],
    };
    let mut entries =
        vec![entry("cluster-status.json", json(&found)), entry("cluster-status.txt", Ok(status::describe(&found)))];
    for known in found.members.iter().filter_map(|member| member.member.as_ref()) {
        let http = known.addresses.as_ref().map_or("", |addresses| addresses.http.as_str());
        let metrics = match http {
            "" => Err("the gateway has no http_listen".to_owned()),
            address => asked(address, "/metrics").await,
        };
        entries.push(entry(format!("metrics-{}.txt", flat(&known.name)), metrics));
    }
    entries
}

/// The journal of systemd's units of this program.
async fn journal(since: &str) -> Result<String, String> {
    let mut command = tokio::process::Command::new("journalctl");
    command.args(["--unit=holdfast*", "--no-pager", "--output=short-iso", "--lines=100000"]);
    command.arg(format!("--since={since}")).stdin(std::process::Stdio::null()).kill_on_drop(true);
    let said = tokio::time::timeout(JOURNAL_LIMIT, command.output()).await;
    let output = said.map_err(|_| format!("journalctl: no end in {JOURNAL_LIMIT:?}"))?;
    let output = output.map_err(|error| format!("journalctl: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("journalctl: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_begins_with_a_whole_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let line = "the last line\n";
        // The cut is within the first line.
        std::fs::write(&path, [&vec![b'k'; 16 << 20][..], b"\n", line.as_bytes()].concat()).unwrap();
        assert_eq!(end_of(&path).unwrap(), line);
        assert_eq!(whole_lines(b"no end".to_vec()), b"");
    }

    #[test]
    fn each_log_has_a_name_of_its_own() {
        let mut entries = Vec::new();
        for path in ["/a/b.log", "/a-b.log", &format!("/{}/b.log", "ä".repeat(200))] {
            let name = log_name(Path::new(path), &entries);
            entries.push(entry(name, Ok(String::new())));
        }
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names[..2], ["log-a-b.log", "log-a-b.log+"]);
        assert!(names[2].len() < 200 && names[2].ends_with("--b.log"), "{names:?}");
    }
}
