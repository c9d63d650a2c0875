//! The audit log of an agent: a line for each command (HEALTH-H6).

use crate::clock;
use crate::listen::Asker;
use holdfast_host::audit::{Audit, Lost};
use holdfast_tls::{Caller, HttpClient};
use holdfast_types::sync::LockExt;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// In this time ...
const REFUSED_EVERY: Duration = Duration::from_secs(60);

/// ... commands that were not let in leave at most so many lines: strangers must not wash out the lines of others.
const REFUSED_MAX: u32 = 16;

/// Longest text of a line, in characters.
const TEXT_CHARS_MAX: usize = 256;

/// What a line tells of the body of a command.
const NAMED: &[&str] = &[
    "leader",
    "candidate",
    "from",
    "to",
    "set",
    "reason",
    "dry_run",
    "allow_data_loss",
    "scheduled_at_unix_ms",
    "within_ms",
];

static DROPPED: AtomicU64 = AtomicU64::new(0);
static UNWRITTEN: AtomicU64 = AtomicU64::new(0);

fn lost(why: Lost) {
    let count = match why {
        Lost::Dropped => &DROPPED,
        Lost::Unwritten => &UNWRITTEN,
    };
    count.fetch_add(1, Ordering::Relaxed);
}

/// Lost lines, for the metrics of an agent with these labels.
pub(super) fn metrics(labels: &str) -> String {
    let mut out = String::new();
    for (name, help, count) in [
        ("dropped", "Lines of the audit log that were dropped because too many waited to be written.", &DROPPED),
        ("errors", "Lines of the audit log that could not be written.", &UNWRITTEN),
    ] {
        let (name, count) = (format!("holdfast_agent_audit_{name}_total"), count.load(Ordering::Relaxed));
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name}{{{labels}}} {count}\n");
    }
    out
}

/// The log. Cheap to clone.
#[derive(Clone)]
pub(crate) struct AgentAudit {
    file: Audit,
    refused: Arc<Mutex<Refused>>,
}

impl AgentAudit {
    /// Opens the file at `path`, which is begun anew at `bytes_max` bytes.
    ///
    /// # Errors
    /// As [`Audit::start`].
    pub(crate) fn start(path: &Path, bytes_max: u64) -> io::Result<Self> {
        Ok(Self { file: Audit::start(path, bytes_max, lost)?, refused: Arc::default() })
    }

    /// As [`Audit::written`].
    pub(crate) async fn written(&self, limit: Duration) -> bool {
        self.file.written(limit).await
    }
}

/// Commands of late that were not let in.
#[derive(Default)]
struct Refused {
    since: Option<Instant>,
    lines: u32,
    /// Those that have left no line since the last that has.
    left_out: u64,
}

impl Refused {
    /// Whether this one leaves a line: `Some` with the number of those before it that left none.
    fn line(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.saturating_duration_since(since) >= REFUSED_EVERY) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines >= REFUSED_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// What the handler of a command tells its line.
#[derive(Clone, Default)]
pub(super) struct Noted(Arc<Mutex<Facts>>);

#[derive(Default)]
struct Facts {
    /// Why the command was let in: `socket`, `certificate` or `token`. `None`: it was not.
    by: Option<&'static str>,
    named: Map<String, Value>,
    answer: String,
}

impl Noted {
    /// The command is let in. Before it is carried out.
    pub(super) fn let_in(&self, by: &'static str, body: &[u8]) {
        let mut facts = self.0.locked();
        facts.by = Some(by);
        if let Ok(Value::Object(body)) = serde_json::from_slice(body) {
            facts.named = body.into_iter().filter(|(name, _)| NAMED.contains(&name.as_str())).map(shortened).collect();
        }
    }

    /// What the caller is told.
    pub(super) fn answered(&self, words: &str) {
        self.0.locked().answer = short(words);
    }
}

fn short(text: &str) -> String {
    text.chars().take(TEXT_CHARS_MAX).collect()
}

/// A body may have anything under such a name: a list or an object is not one of ours.
fn shortened((name, value): (String, Value)) -> (String, Value) {
    let value = match value {
        Value::String(text) => Value::String(short(&text)),
        Value::Bool(_) | Value::Number(_) => value,
        Value::Null | Value::Array(_) | Value::Object(_) => Value::Null,
    };
    (name, value)
}

/// The line of one command, written when it is dropped: also if the caller has gone.
pub(super) struct Line {
    audit: AgentAudit,
    path: &'static str,
    set: String,
    who: Asker,
    noted: Noted,
    begun: Instant,
    code: Option<u16>,
}

/// The same, as it is written.
#[derive(Serialize)]
struct Record<'a> {
    time_unix_ms: u64,
    path: &'a str,
    set: &'a str,
    by: Option<&'a str>,
    roles: Vec<&'static str>,
    certificate: Option<&'a str>,
    serial: Option<&'a str>,
    peer: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    request: &'a Map<String, Value>,
    outcome: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    answer: &'a str,
    /// Commands before it that were not let in and left no line.
    #[serde(skip_serializing_if = "Option::is_none")]
    repeated: Option<u64>,
    duration_ms: u64,
}

impl Line {
    /// Of a command that has come to an agent of `set`.
    pub(super) fn begin(audit: &AgentAudit, set: &str, who: &Asker, path: &'static str) -> Self {
        let (audit, set, who) = (audit.clone(), set.to_string(), who.clone());
        Self { audit, path, set, who, noted: Noted::default(), begun: Instant::now(), code: None }
    }

    /// For the handler.
    pub(super) fn noted(&self) -> Noted {
        self.noted.clone()
    }

    /// It is answered with this code.
    pub(super) fn ended(mut self, code: u16) {
        self.code = Some(code);
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let facts = self.noted.0.locked();
        let repeated = if facts.by.is_some() {
            None
        } else {
            let Some(repeated) = self.audit.refused.locked().line(Instant::now()) else { return };
            Some(repeated).filter(|&n| n > 0)
        };
        let (peer, caller): (Option<SocketAddr>, Option<&Caller>) = match &self.who {
            Asker::Local => (None, None),
            Asker::Met(from, HttpClient::Named(caller)) => (Some(*from), Some(&**caller)),
            Asker::Remote(from) | Asker::Met(from, HttpClient::Plain | HttpClient::Unnamed) => (Some(*from), None),
        };
        self.audit.file.write(&Record {
            time_unix_ms: clock::unix_ms(),
            path: self.path,
            set: &self.set,
            by: facts.by,
            roles: caller.map_or(Vec::new(), |caller| caller.roles.iter().map(|role| role.name()).collect()),
            certificate: caller.map(|caller| caller.name.as_str()),
            serial: caller.map(|caller| caller.serial.as_str()),
            peer,
            request: &facts.named,
            outcome: self.code.map_or("NotAwaited".to_string(), |code| code.to_string()),
            answer: &facts.answer,
            repeated,
            duration_ms: u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_do_not_wash_out_the_lines_of_others() {
        let (mut refused, now) = (Refused::default(), Instant::now());
        let soon = now + Duration::from_secs(59);
        let written = (0..1000).filter(|_| refused.line(now).is_some()).count();
        assert_eq!(written, REFUSED_MAX as usize);
        assert_eq!(refused.line(soon), None);
        assert_eq!(refused.line(now + REFUSED_EVERY), Some(1000 - u64::from(REFUSED_MAX) + 1));
        assert_eq!(refused.line(now + REFUSED_EVERY), Some(0));
    }

    #[test]
    fn a_line_has_what_a_body_names_and_is_bounded() {
        let noted = Noted::default();
        let long = "x".repeat(10_000);
        let body = serde_json::json!({ "to": "db2", "reason": long, "dry_run": true, "from": [1], "secret": "y" });
        noted.let_in("token", body.to_string().as_bytes());
        noted.answered(&long);
        let facts = noted.0.locked();
        let expected = serde_json::json!({ "to": "db2", "reason": "x".repeat(256), "dry_run": true, "from": null });
        assert_eq!(Value::Object(facts.named.clone()), expected);
        assert_eq!(facts.answer.len(), TEXT_CHARS_MAX);
    }
}
