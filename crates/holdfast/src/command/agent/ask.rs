//! Asks agents, and sends them commands.

use crate::cli::address;
use crate::exit::CliError;
use clap::Args;
use holdfast_agent::View;
use holdfast_agent::client::{self, Answer, ClientError};
use holdfast_tls::files::{self, SECRET_BYTES_MAX};
use std::path::PathBuf;
use std::time::Duration;

/// Time limit for the answer of one agent.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// Time limit for commands on which an agent asks other agents, such as a switchover.
const MOVE_LIMIT: Duration = Duration::from_secs(15);

/// Most agents that are asked, including peers.
const AGENTS_MAX: usize = 64;

/// Advice if no agent answers.
pub const NO_AGENT: &str = "check --agent (or HOLDFAST_AGENT), and that `holdfast agent run` runs on that host";

/// Addresses of agents.
#[derive(Clone, Debug, Args)]
pub struct Agents {
    /// HTTP addresses of agents (http.listen in their settings)
    #[arg(long, global = true, env = "HOLDFAST_AGENT", hide_env_values = true, value_name = "HOST:PORT[,HOST:PORT]", value_delimiter = ',', value_parser = address,
          default_value = "127.0.0.1:8008")]
    pub agent: Vec<String>,
    /// File with the agents' token, needed for commands from another host
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

fn token(agents: &Agents) -> Result<Option<String>, CliError> {
    let Some(path) = &agents.token_file else { return Ok(None) };
    let text = files::read_text(path, SECRET_BYTES_MAX)
        .map_err(|error| CliError::usage(format!("--token-file {}", path.display())).because(&error))?;
    Ok(Some(text.trim().to_string()))
}

/// Sends a command to one agent and returns its message.
pub async fn post(agents: &Agents, address: &str, path: &str, body: serde_json::Value) -> Result<String, CliError> {
    let answer = command(agents, address, path, body).await?;
    taken(&answer).map(|()| answer.words())
}

/// Sends a command to one agent and returns its answer, which may be a refusal. On the agent's own host it goes over
/// the agent's Unix socket, if this user may connect to it.
pub async fn command(agents: &Agents, address: &str, path: &str, body: serde_json::Value) -> Result<Answer, CliError> {
    let token = token(agents)?;
    if let Some(socket) = socket_of(address).await {
        match client::ask(&socket, path, Some(&body), None, MOVE_LIMIT).await {
            // The agent ended meanwhile.
            Err(ClientError::NotSent { .. }) => {}
            asked => return asked.map_err(unanswered),
        }
    }
    client::ask(address, path, Some(&body), token.as_deref(), MOVE_LIMIT).await.map_err(unanswered)
}

fn unanswered(error: ClientError) -> CliError {
    let words = error.to_string();
    match error {
        ClientError::NotSent { .. } => CliError::unreachable(words).next(NO_AGENT),
        ClientError::NoAnswer { .. } => {
            CliError::unknown(words).next("check with `holdfast agent status` before repeating it")
        }
    }
}

/// The Unix socket of an agent that is reached by loopback, as it shows it. Through a tunnel that agent is on another
/// host, and this host's own agent may listen at the same path: a command must not go to the wrong one.
async fn socket_of(address: &str) -> Option<String> {
    if !is_loopback(address) {
        return None;
    }
    let asked = look(address).await.view.filter(|view| view.socket.starts_with('/'))?;
    let there = look(&asked.socket).await.view?;
    (there.name == asked.name && there.set == asked.set).then_some(asked.socket)
}

fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether the agent has done it; otherwise its refusal.
pub fn taken(answer: &Answer) -> Result<(), CliError> {
    match answer.code {
        200 => Ok(()),
        503 => Err(CliError::unreachable(answer.words())),
        504 => Err(CliError::unknown(answer.words())
            .next("check with `holdfast agent status` and `holdfast history` before repeating it")),
        _ => Err(CliError::refused(answer.words()).next("`holdfast agent status` shows all agents")),
    }
}

/// One agent as `status` shows it.
#[derive(Debug, serde::Serialize)]
pub struct Seen {
    pub address: String,
    pub view: Option<View>,
    pub error: Option<String>,
}

/// Asks one agent for its status.
pub async fn look(address: &str) -> Seen {
    let read = |answer: Answer| serde_json::from_str(&answer.body).map_err(|error| format!("no agent: {error}"));
    let asked = client::ask(address, "/status", None, None, ASK_LIMIT).await.map_err(|error| error.to_string());
    match asked.and_then(read) {
        Ok(view) => Seen { address: address.into(), view: Some(view), error: None },
        Err(error) => Seen { address: address.into(), view: None, error: Some(error) },
    }
}

/// Asks the given agents and their peers. A host with two addresses is listed once.
pub async fn survey(agents: &Agents) -> Vec<Seen> {
    let mut addresses = agents.agent.clone();
    let (mut seen, mut names) = (Vec::<Seen>::new(), Vec::new());
    let mut next = 0;
    while next < addresses.len().min(AGENTS_MAX) {
        // In parallel: several lost hosts take as long as one.
        let mut asked = tokio::task::JoinSet::new();
        for (at, address) in addresses.iter().take(AGENTS_MAX).cloned().enumerate().skip(next) {
            asked.spawn(async move { (at, look(&address).await) });
        }
        next = addresses.len();
        let mut found = asked.join_all().await;
        found.sort_by_key(|(at, _)| *at);
        for (_, found) in found {
            if let Some(view) = &found.view {
                if names.contains(&view.name) {
                    continue;
                }
                names.push(view.name.clone());
                for (name, address) in &view.peers {
                    if !names.contains(name) && !addresses.contains(address) {
                        addresses.push(address.clone());
                    }
                }
            }
            seen.push(found);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    use tokio::net::{TcpListener, UnixListener};

    /// Answers one request with the status of the agent `name`.
    async fn tell(mut stream: impl AsyncRead + AsyncWrite + Unpin, name: &str, socket: &str) {
        let view = serde_json::json!({
            "name": name, "set": "demo", "state": "standby", "since_unix_ms": 0, "role": "standby", "why": "", "paused": false,
            "mode": "automatic", "nofailover": false, "priority": 100, "epoch": 0, "lease_owner": "", "cluster_answers": true,
            "database": "gone", "attach": null, "renewed_ms_ago": null, "obstacle": "", "version": "x", "socket": socket,
        });
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{view}").as_bytes()).await.unwrap();
    }

    /// An agent of another host, through a tunnel, shows the path at which this host's own agent listens.
    #[tokio::test]
    async fn the_socket_is_that_of_the_agent_that_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let socket = path.to_str().unwrap().to_string();
        let (tunnel, own) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), UnixListener::bind(&path).unwrap());
        let address = tunnel.local_addr().unwrap().to_string();
        for (asked, found) in [("db1", Some(socket.clone())), ("db2", None)] {
            let answers = async {
                tell(tunnel.accept().await.unwrap().0, asked, &socket).await;
                tell(own.accept().await.unwrap().0, "db1", &socket).await;
            };
            let (told, ()) = tokio::join!(socket_of(&address), answers);
            assert_eq!(told, found, "{asked}");
        }
    }

    #[test]
    fn only_loopback_is_this_host_for_certain() {
        for (address, here) in [
            ("127.0.0.1:8008", true),
            ("127.0.0.7:8008", true),
            ("[::1]:8008", true),
            ("localhost:8008", true),
            ("10.0.0.1:8008", false),
            ("db1:8008", false),
        ] {
            assert_eq!(is_loopback(address), here, "{address}");
        }
    }
}
