//! State shared by the handlers of the HTTP server, and their answers.

use super::answers::Answers;
use super::audit::AgentAudit;
use super::rules::{self, Pass};
use crate::clock;
use crate::config::AgentConfig;
use crate::facts::Known;
use crate::history::History;
use crate::host::PoolUsers;
use crate::listen::Asker;
use crate::machine::{Command, Event, Record, Refused};
use crate::plan::Plan;
use crate::proof::{self, Challenges, Proof};
use crate::schedule::Schedule;
use crate::seams::Dial;
use crate::view::View;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use holdfast_tls::{HttpTls, Tls};
use holdfast_types::sync::LockExt;
use serde::Serialize;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// How long the agent's task may take to answer a command.
const COMMAND_LIMIT: Duration = Duration::from_secs(5);

/// A command on its way to the agent's task.
pub(crate) type Asked = (Command, oneshot::Sender<Result<String, Refused>>);

/// State shared by the handlers.
#[derive(Clone)]
pub(crate) struct Door {
    pub config: Arc<AgentConfig>,
    pub token: Option<Arc<str>>,
    pub challenges: Arc<Challenges>,
    pub view: watch::Receiver<Arc<View>>,
    pub history: Arc<Mutex<History>>,
    pub commands: mpsc::Sender<Asked>,
    pub schedule: Arc<Schedule>,
    pub dial: Dial,
    /// The agent's Unix socket, where it has one.
    pub socket: Option<PathBuf>,
    pub known: Arc<Mutex<Known>>,
    pub openers: Openers,
    pub answers: Arc<Answers>,
    /// `None`: the settings name none.
    pub audit: Option<AgentAudit>,
    /// The agent's own certificate, for its metrics.
    pub tls: Option<Tls>,
}

/// Asks which processes other than PostgreSQL have the pool open.
pub(crate) type Openers = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = PoolUsers> + Send>> + Send + Sync>;

impl Door {
    /// Gives a command to the agent's task, and waits for its answer.
    pub(super) async fn command(&self, command: Command) -> Result<String, Reply> {
        let (answer, answered) = oneshot::channel();
        let until = tokio::time::Instant::now() + COMMAND_LIMIT;
        if !matches!(tokio::time::timeout_at(until, self.commands.send((command, answer))).await, Ok(Ok(()))) {
            let words = "the agent's task accepts no command, and nothing was done: look into its log for what it does, and ask again";
            return Err(Reply::no(StatusCode::SERVICE_UNAVAILABLE, words));
        }
        // R12: the outcome is unknown. The task drops the command when it finds no caller waiting, but it may be
        // carrying it out just now.
        match tokio::time::timeout_at(until, answered).await {
            Ok(Ok(Ok(said))) => Ok(said),
            Ok(Ok(Err(refused))) => Err(Reply::no(StatusCode::PRECONDITION_FAILED, refused.to_string())),
            Ok(Err(_)) | Err(_) => {
                let words = "the agent did not answer in time, and it is unknown whether the command was executed: look into its log and history";
                Err(Reply::no(StatusCode::GATEWAY_TIMEOUT, words))
            }
        }
    }

    /// The last state that the agent showed.
    pub(super) fn view(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    /// A line of the history that does not come from the machine.
    pub(super) fn note(&self, event: Event, reason: &str) {
        let record =
            Record { event, reason: reason.into(), other: String::new(), epoch: self.view().lease.epoch, phases: None };
        tracing::info!(%event, reason, "history");
        let mut history = self.history.locked();
        history.add(&self.config.name, &self.config.set, record);
    }

    /// The proof of a command's sender that it has the token; `None` if there is none.
    ///
    /// # Errors
    /// The refusal of a command that may be sent again.
    pub(super) fn proof(&self, path: &str, headers: &HeaderMap, body: &[u8]) -> Result<Option<Proof>, Reply> {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let Some((given, token)) = given.zip(self.token.as_deref()) else { return Ok(None) };
        self.challenges.check(token, given, (path, body), clock::now()).map_err(|stale| {
            let words = format!("{}, and nothing was done: ask again", stale.0);
            Reply::no(StatusCode::PRECONDITION_FAILED, words)
        })
    }

    /// HEALTH-H3: whether this caller gets what is behind a path.
    pub(super) fn pass(&self, who: &Asker, path: &str) -> Pass {
        rules::pass(who, path, self.config.http_tls() == HttpTls::Checks, &self.config.set)
    }

    /// The answer to a caller that does not get it.
    pub(super) fn refused(&self, who: &Asker, path: &str) -> Reply {
        Reply::no(StatusCode::FORBIDDEN, rules::refusal(who, path, &self.config.set))
    }

    /// HEALTH-H2, HEALTH-H3: whether this caller may give this command without such a proof.
    pub(super) fn may_command(&self, who: &Asker, path: &str, headers: &HeaderMap) -> bool {
        match self.pass(who, path) {
            Pass::Yes => true,
            Pass::WithToken => self.has_token(headers),
            Pass::No => false,
        }
    }

    /// Whether the token itself came with the request.
    pub(super) fn has_token(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given = given.and_then(|value| value.strip_prefix("Bearer "));
        match (given, &self.token) {
            (Some(given), Some(token)) => same(given.as_bytes(), token.as_bytes()),
            _ => false,
        }
    }
}

/// Compares in constant time, wherever they differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |all, (x, y)| all | (x ^ y)) == 0
}

/// The answer to a command.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(super) code: StatusCode,
    body: serde_json::Value,
}

impl Reply {
    /// Done, with the code 200.
    pub(super) fn yes(message: impl Into<String>) -> Self {
        Self { code: StatusCode::OK, body: serde_json::json!({ "message": message.into() }) }
    }

    /// The answer to a dry run of this plan, which would do what `words` say.
    pub(super) fn would(plan: &Plan, may_go: Result<(), String>, words: &str) -> Self {
        Self::yes(may_go.map_or_else(|why| format!("would be refused: {why}"), |()| words.to_string())).with(plan)
    }

    /// The answer with a plan.
    pub(super) fn with(mut self, plan: &Plan) -> Self {
        self.body["plan"] = serde_json::to_value(plan).unwrap_or_default();
        self
    }

    /// Not done.
    pub(super) fn no(code: StatusCode, message: impl Into<String>) -> Self {
        Self { code, body: serde_json::json!({ "message": message.into() }) }
    }

    /// The answer to a command with this proof, with its own one (PROOF-P3).
    pub(super) fn proven(self, proof: &Proof, token: &str) -> Response {
        let text = self.body.to_string();
        let own = proof.of_answer(token, self.code.as_u16(), &text);
        let headers = [("content-type", "application/json"), (proof::HEADER, own.as_str())];
        (self.code, headers, text).into_response()
    }

    /// Its text.
    pub(super) fn words(&self) -> String {
        self.body["message"].as_str().unwrap_or_default().into()
    }
}

/// An answer with this value as its body.
pub(super) fn json(code: StatusCode, value: &impl Serialize) -> Response {
    let text = serde_json::to_string(value).unwrap_or_default();
    (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        json(self.code, &self.body)
    }
}
