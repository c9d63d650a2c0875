//! Requests of the clients and their answers, for the judge. docs/proof/chaos.md describes the file format.

use crate::gateways::{GATEWAYS, name};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Read,
    Write,
}

/// The outcome (R12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Answered with success.
    Ok,
    /// Answered with an error: it must have had no effect (R8: another owner holds the set).
    Fail,
    /// Not answered: a write may have happened, at any time after its call.
    Unknown,
}

/// One operation: one line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// The client; it gets a new number after each unknown outcome.
    pub client: u64,
    pub kind: Kind,
    /// The register: `OFFSET+LENGTH` in bytes.
    pub key: String,
    /// The value written or read: the number of the write that it came from.
    pub value: u64,
    /// When it was sent, in nanoseconds since the start.
    pub call: u64,
    /// When the answer arrived. `None`: never.
    #[serde(rename = "return", skip_serializing_if = "Option::is_none", default)]
    pub returned: Option<u64>,
    pub outcome: Outcome,
    /// The gateway.
    pub via: String,
    /// Number of the client's grant; 0: a plain export.
    pub grant: u64,
}

/// Collects the operations of all clients.
#[derive(Debug)]
pub struct History {
    begun: Instant,
    ops: Mutex<Vec<Op>>,
    /// When the latest successful write was sent: there was progress after that.
    written: AtomicU64,
    /// The gateway that answered last.
    serving: AtomicUsize,
    /// Observations that no register can explain, such as a torn block.
    broken: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for History {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            ops: Mutex::default(),
            written: AtomicU64::new(0),
            serving: AtomicUsize::new(0),
            broken: Mutex::default(),
        }
    }
}

impl History {
    /// Nanoseconds since the start.
    pub fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Adds one operation.
    pub fn push(&self, op: Op) {
        if op.kind == Kind::Write && op.outcome == Outcome::Ok {
            self.written.fetch_max(op.call, Ordering::Relaxed);
        }
        if op.outcome == Outcome::Ok
            && let Some(gateway) = (0..GATEWAYS).find(|g| name(*g) == op.via)
        {
            self.serving.store(gateway, Ordering::Relaxed);
        }
        lock(&self.ops).push(op);
    }

    /// The gateway that answered last.
    pub fn serving(&self) -> usize {
        self.serving.load(Ordering::Relaxed)
    }

    /// Whether a write that was sent at `since` or later has succeeded.
    pub fn progressed_since(&self, since: u64) -> bool {
        self.written.load(Ordering::Relaxed) >= since
    }

    /// Adds an observation that must never happen.
    pub fn broke(&self, what: String) {
        lock(&self.broken).push(what);
    }

    /// All operations, after the clients have ended.
    pub fn close(self) -> (Vec<Op>, Vec<String>) {
        let ops = self.ops.into_inner().unwrap_or_else(PoisonError::into_inner);
        (ops, self.broken.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Writes the file: a line for each operation, and one `note` at the top for people. Fails when it cannot be written.
pub fn save(ops: &[Op], note: &str, path: &Path) -> Result<()> {
    let file = std::fs::File::create(path).with_context(|| path.display().to_string())?;
    let mut file = std::io::BufWriter::new(file);
    writeln!(file, "{}", serde_json::json!({ "kind": "note", "text": note }))?;
    for op in ops {
        serde_json::to_writer(&mut file, op)?;
        file.write_all(b"\n")?;
    }
    file.flush()?;
    Ok(())
}
