//! Asks agents, and sends them commands.
//!
//! A command that needs the token goes over TCP only to an address that the user named with `--agent`, or that the
//! agent of this host has under `[peers]`. While no agent listens at the default address, any user of this host may
//! listen there: nobody gets the token itself, but an agent of another host could be passed the command.

use crate::cli::{Agents, Common};
use crate::exit::CliError;
use holdfast_agent::View;
use holdfast_agent::client::{self, Answer, ClientError};
use holdfast_agent::config::AgentConfig;
use holdfast_agent::local;
use holdfast_agent::seams::Dial;
use holdfast_tls::files::{self, SECRET_BYTES_MAX};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time limit for the answer of one agent.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// Time limit for commands on which an agent asks other agents, such as a switchover.
const MOVE_LIMIT: Duration = Duration::from_secs(15);

/// Most agents that are asked, including peers.
const AGENTS_MAX: usize = 64;

/// Advice if no agent answers.
pub const NO_AGENT: &str = "check --agent (or HOLDFAST_AGENT), and that `holdfast agent run` runs on that host";

impl Agents {
    /// With the certificate of the command, if it has one. Then all agents are asked with TLS, and must prove to be
    /// hosts of the cluster.
    #[must_use]
    pub fn with(&self, common: &Common) -> Self {
        Self { tls: common.dialer.connector(), ..self.clone() }
    }

    /// How agents are reached. Their names are not known here: the command says an address.
    pub fn dial(&self) -> Dial {
        match &self.tls {
            Some(connector) => client::over_tls(connector.clone(), BTreeMap::new()),
            None => client::over_tcp(),
        }
    }
}

/// Where the agent of this host listens for commands if its settings do not say otherwise.
pub fn usual_socket() -> String {
    AgentConfig::default().run_dir.join(local::SOCKET).display().to_string()
}

fn token(agents: &Agents) -> Result<Option<String>, CliError> {
    let Some(path) = &agents.token_file else { return Ok(None) };
    let text = files::read_secret_text(path, SECRET_BYTES_MAX)
        .map_err(|error| CliError::usage(format!("--token-file {}", path.display())).because(&error))?;
    Ok(Some(text.trim().to_string()))
}

/// Sends a command to one agent and returns its message.
pub async fn post(agents: &Agents, address: &str, path: &str, body: serde_json::Value) -> Result<String, CliError> {
    let answer = command(agents, address, path, body).await?;
    taken(&answer).map(|()| answer.words())
}

/// Sends a command to one agent and returns its answer, which may be a refusal. On the agent's own host it goes over
/// the agent's Unix socket, if this user may connect to it. A socket needs no token.
pub async fn command(agents: &Agents, address: &str, path: &str, body: serde_json::Value) -> Result<Answer, CliError> {
    let (token, dial) = (token(agents)?, agents.dial());
    let own = if address.starts_with('/') { Some(address.to_string()) } else { socket_of(agents, address).await };
    if let Some(socket) = own {
        match client::ask_over(&dial, &socket, path, Some(&body), None, MOVE_LIMIT).await {
            // The agent ended meanwhile.
            Err(ClientError::NotSent { .. }) if socket != address => {}
            asked => return asked.map_err(unanswered),
        }
    }
    if token.is_some() && !agents.named && !is_peer(agents, address).await {
        let found = format!(
            "the token is not used for {address}: found no --agent that names it, and no agent of this host that has it under [peers]"
        );
        return Err(CliError::refused(found).next(
            "name the agent with --agent, or run the command as root on the agent's host, where no token is needed",
        ));
    }
    client::ask_over(&dial, address, path, Some(&body), token.as_deref(), MOVE_LIMIT).await.map_err(unanswered)
}

/// Whether the agent of this host, by its Unix socket, has this address under `[peers]`.
async fn is_peer(agents: &Agents, address: &str) -> bool {
    let Some(default) = agents.agent.first() else { return false };
    let own = own_agent(agents, default).await;
    own.is_some_and(|(_, view)| view.settings.peers.values().any(|peer| peer == address))
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

/// The Unix socket of an agent that is reached by loopback.
async fn socket_of(agents: &Agents, address: &str) -> Option<String> {
    own_agent(agents, address).await.map(|(socket, _)| socket)
}

/// The agent of this host that this loopback address leads to: its Unix socket, and its status. The kernel tells that
/// root, or this user, listens at the socket. The address tells where the socket is; if nothing answers there and the
/// user did not name the address, the usual path is tried. Through a tunnel the address leads to an agent of another
/// host, and this host's own agent may listen at the same path: a command must not go to the wrong one.
async fn own_agent(agents: &Agents, address: &str) -> Option<(String, View)> {
    if !is_loopback(address) {
        return None;
    }
    let asked = look(agents, address).await.view;
    let socket = match &asked {
        Some(view) if view.added.socket.starts_with('/') => view.added.socket.clone(),
        _ if agents.named => return None,
        _ => usual_socket(),
    };
    let there = look(agents, &socket).await.view?;
    let is_same = asked.is_none_or(|asked| asked.name == there.name && asked.set == there.set);
    is_same.then_some((socket, there))
}

fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether the agent executed the command; otherwise its refusal.
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
pub struct AgentStatus {
    pub address: String,
    pub view: Option<View>,
    pub error: Option<String>,
}

/// Asks one agent for its status.
pub async fn look(agents: &Agents, address: &str) -> AgentStatus {
    let read = |answer: Answer| match answer.code {
        403 => Err(answer.words()),
        _ => serde_json::from_str(&answer.body).map_err(|error| format!("no agent: {error}")),
    };
    let asked = client::ask_over(&agents.dial(), address, "/status", None, None, ASK_LIMIT).await;
    match asked.map_err(|error| error.to_string()).and_then(read) {
        Ok(view) => AgentStatus { address: address.into(), view: Some(view), error: None },
        Err(error) => AgentStatus { address: address.into(), view: None, error: Some(error) },
    }
}

/// Asks the given agents and their peers. A host with two addresses is listed once.
pub async fn survey(agents: &Agents) -> Vec<AgentStatus> {
    let mut addresses = agents.agent.clone();
    // Another program may listen at the port of the agent of this host.
    if let (false, [default]) = (agents.named, &addresses[..])
        && look(agents, &usual_socket()).await.view.is_some()
        && look(agents, default).await.view.is_none()
    {
        addresses = vec![usual_socket()];
    }
    let (mut seen, mut names) = (Vec::<AgentStatus>::new(), Vec::new());
    let mut next = 0;
    while next < addresses.len().min(AGENTS_MAX) {
        // In parallel: several lost hosts take as long as one.
        let mut asked = tokio::task::JoinSet::new();
        for (at, address) in addresses.iter().take(AGENTS_MAX).cloned().enumerate().skip(next) {
            let agents = agents.clone();
            asked.spawn(async move { (at, look(&agents, &address).await) });
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
                for (name, address) in &view.settings.peers {
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
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use std::path::PathBuf;
    use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    use tokio::net::{TcpListener, UnixListener};

    /// Answers one request with the status of the agent `name`, and returns the head of the request.
    async fn tell(mut stream: impl AsyncRead + AsyncWrite + Unpin, name: &str, socket: &str) -> String {
        let view = serde_json::json!({
            "name": name, "set": "demo", "state": "standby", "since_unix_ms": 0, "role": "standby", "why": "", "paused": false,
            "mode": "automatic", "nofailover": false, "priority": 100, "epoch": 0, "lease_owner": "", "cluster_answers": true,
            "database": "gone", "attach": null, "renewed_ms_ago": null, "obstacle": "", "version": "x", "socket": socket,
            "peers": { "db2": "10.0.0.2:8008" },
        });
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(request).unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse().ok()).unwrap_or(0);
        // If a connection is closed with unread bytes, it is reset, and its answer may be lost.
        stream.read_exact(&mut vec![0; length]).await.unwrap();
        stream.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{view}").as_bytes()).await.unwrap();
        head
    }

    fn agents(address: &str, named: bool, token_file: Option<PathBuf>) -> Agents {
        Agents { agent: vec![address.into()], named, token_file, tls: None }
    }

    #[test]
    fn only_an_address_on_the_command_line_is_named() {
        for (line, named, address) in [
            ("holdfast agent status", false, "127.0.0.1:8008"),
            ("holdfast agent status --agent 127.0.0.1:8008", true, "127.0.0.1:8008"),
            ("holdfast agent --agent 10.0.0.1:8008 status", true, "10.0.0.1:8008"),
        ] {
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            let Command::Agent(args) = cli.command else { panic!("{line}: found another command") };
            assert_eq!((args.agents.named, args.agents.agent), (named, vec![address.to_string()]), "{line}");
        }
    }

    /// A tunnel leads to an agent of another host, which shows the path at which this host's own agent listens.
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
            let agents = agents(&address, false, None);
            let (told, ()) = tokio::join!(socket_of(&agents, &address), answers);
            assert_eq!(told, found, "{asked}");
        }
    }

    /// The requests that reach a listener that answers each as an agent without a socket.
    async fn heard(listener: TcpListener, wanted: usize) -> Vec<String> {
        let mut heard = Vec::new();
        while heard.len() < wanted {
            let (mut stream, _) = listener.accept().await.unwrap();
            heard.push(tell(&mut stream, "db1", "").await);
        }
        heard
    }

    /// While no agent listens at the default address, any user of the host may listen there. The token itself goes to
    /// nobody.
    #[tokio::test]
    async fn a_command_with_a_token_goes_only_to_an_address_that_was_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "secret\n").unwrap();
        let set = |mode| std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        set(0o644);
        let told = token(&agents("127.0.0.1:1", true, Some(file.clone()))).unwrap_err();
        assert!(format!("{told:?}").contains("found mode 0644"), "SECRET-F1: {told:?}");
        set(0o600);
        let has_command = |heard: &[String]| heard.iter().any(|request| request.starts_with("GET /challenge "));
        for named in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let agents = agents(&address, named, Some(file.clone()));
            // Expected: a request for its status; another one to find out whether it is a peer, if the user did not
            // name it; then one for a challenge, with which the command would be sent.
            let hearing = tokio::spawn(heard(listener, 2));
            let sent = command(&agents, &address, "/pause", serde_json::json!({})).await;
            let heard = hearing.await.unwrap();
            assert_eq!(has_command(&heard), named, "{heard:?}");
            assert!(heard.iter().all(|request| !request.contains("secret")), "{heard:?}");
            let words = if named { "no challenge of an agent" } else { "the token is not used for" };
            let error = sent.unwrap_err();
            assert!(error.message.contains(words), "{error:?}");
        }
    }

    /// The agent of this host names the other agents over its socket.
    #[tokio::test]
    async fn a_token_may_go_to_a_peer_of_this_hosts_agent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let socket = path.to_str().unwrap().to_string();
        let (tcp, own) = (TcpListener::bind("127.0.0.1:0").await.unwrap(), UnixListener::bind(&path).unwrap());
        let address = tcp.local_addr().unwrap().to_string();
        for (peer, is_one) in [("10.0.0.2:8008", true), ("10.0.0.9:8008", false)] {
            let answers = async {
                tell(tcp.accept().await.unwrap().0, "db1", &socket).await;
                tell(own.accept().await.unwrap().0, "db1", &socket).await;
            };
            let agents = agents(&address, false, None);
            let (told, ()) = tokio::join!(is_peer(&agents, peer), answers);
            assert_eq!(told, is_one, "{peer}");
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
