//! The history of this host: what it did and why, as lines of JSON in `DIR/history.jsonl`. A line is shown at once. A
//! thread of its own writes it ([`History::beside`]), so that neither the agent's task nor anybody who asks waits for a
//! disk. What the disk does not take is written with the next line.

mod writer;

use crate::clock;
use crate::machine::{Event, Record};
use crate::traced;
use holdfast_traces::{Traces, Wall};
use holdfast_types::MonoTime;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use writer::appending;
pub use writer::{LINES_MAX, Writer};

/// Time for which a takeover counts against flapping.
const HOUR_MS: u64 = 3_600_000;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When it was over, Unix milliseconds.
    pub at_unix_ms: u64,
    /// On which host.
    pub host: String,
    /// The set.
    pub set: String,
    /// From the decision (a takeover: from the old holder's last sign of life) to its end, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_ms: Option<u64>,
    /// What happened.
    #[serde(flatten)]
    pub record: Record,
}

/// The history of one host.
#[derive(Debug)]
pub struct History {
    lines: VecDeque<Line>,
    writer: Arc<Writer>,
    /// Takes the spans of takeovers.
    traces: Option<Traces>,
}

/// The lines of this file, and whether it has other ones, which cannot be read.
fn read(path: &Path) -> io::Result<(VecDeque<Line>, bool)> {
    let text = match std::fs::read(path) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    let (mut lines, mut unread) = (VecDeque::new(), false);
    // An empty one stands behind a line that was not written whole.
    for line in text.lines().filter(|line| !line.is_empty()) {
        match serde_json::from_str(line) {
            Ok(line) => lines.push_back(line),
            Err(_) => unread = true,
        }
    }
    Ok((lines, unread))
}

impl History {
    /// Opens it in this directory. New lines are written at once.
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn open(dir: &Path) -> io::Result<Self> {
        Self::read_in(dir).map(Self::at_once)
    }

    /// Reads it in this directory, for [`History::beside`] or [`History::at_once`]. Lines that cannot be read are left
    /// out: the last one may be incomplete after a power cut. Then the file is written anew, as it is if it is long,
    /// but not here: an agent that begins has given no sign of life yet (TASK-N4).
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn read_in(dir: &Path) -> io::Result<Self> {
        let path = dir.join("history.jsonl");
        let (mut lines, unread) = read(&path)?;
        let long = lines.len() > LINES_MAX;
        lines.drain(..lines.len().saturating_sub(LINES_MAX));
        let whole = |line: &Line| serde_json::to_string(line).map(|line| line + "\n");
        let anew = if long || unread { Some(lines.iter().map(whole).collect::<Result<String, _>>()?) } else { None };
        let file = Some(appending(&path)?);
        Ok(Self { lines, writer: Arc::new(Writer::new(path, file, anew)), traces: None })
    }

    /// Without the file: what can be read of it, and new lines in memory. Each new line tries the file again.
    pub fn unwritable(dir: &Path) -> Self {
        let path = dir.join("history.jsonl");
        let mut lines = read(&path).map(|(lines, _)| lines).unwrap_or_default();
        lines.drain(..lines.len().saturating_sub(LINES_MAX));
        Self { lines, writer: Arc::new(Writer::new(path, None, None)), traces: None }
    }

    /// From now on a thread writes new lines. Called before anything was added.
    #[must_use]
    pub fn beside(self) -> Self {
        let writer = Arc::try_unwrap(self.writer).map(Writer::beside).map(Arc::new);
        Self { writer: writer.unwrap_or_else(|shared| shared), lines: self.lines, traces: self.traces }
    }

    /// Every line is written before [`History::add`] returns.
    #[must_use]
    pub fn at_once(self) -> Self {
        self.writer.write();
        self
    }

    /// From now on a takeover is told there, too.
    #[must_use]
    pub(crate) fn traced(self, traces: Option<Traces>) -> Self {
        Self { traces, ..self }
    }

    /// What writes the lines.
    pub fn writer(&self) -> Arc<Writer> {
        self.writer.clone()
    }

    /// Adds a line and returns it as JSON. After [`History::beside`] this waits for no disk.
    pub fn add(&mut self, host: &str, set: &str, record: Record) -> String {
        if let Some(traces) = &self.traces {
            traces.record(traced::spans(set, host, &record, Wall::now().unix_ns()));
        }
        let total_ms = record.phases.as_ref().map(crate::machine::Phases::total_ms);
        let line = Line { at_unix_ms: clock::unix_ms(), host: host.into(), set: set.into(), total_ms, record };
        let text = serde_json::to_string(&line).unwrap_or_default();
        self.lines.push_back(line);
        self.lines.drain(..self.lines.len().saturating_sub(LINES_MAX));
        self.writer.add(text.clone());
        text
    }

    /// All lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter()
    }

    /// When this host took over by itself within the last hour.
    pub fn takeovers(&self, now: MonoTime) -> Vec<MonoTime> {
        let now_ms = clock::unix_ms();
        let own = self.lines.iter().filter(|line| matches!(line.record.event, Event::Start | Event::Failover));
        let ages = own.map(|line| now_ms.saturating_sub(line.at_unix_ms)).filter(|age| *age < HOUR_MS);
        let at = |age| now.0.saturating_sub(u64::try_from(Duration::from_millis(age).as_nanos()).unwrap_or(u64::MAX));
        ages.map(|age| MonoTime(at(age))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Phases;

    fn record(event: Event) -> Record {
        let phases = Some(Phases { detect_ms: Some(3000), first_write_ms: Some(7), ..Phases::default() });
        Record { event, reason: "because".into(), other: "db1".into(), epoch: 5, phases }
    }

    #[test]
    fn lines_survive_the_agent_and_a_torn_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut history = History::open(dir.path()).unwrap();
        let text = history.add("db2", "demo", record(Event::Failover));
        assert!(text.contains("\"event\":\"failover\"") && text.contains("\"total_ms\":3007"), "{text}");
        history.add("db2", "demo", record(Event::Restart));
        drop(history);
        let path = dir.path().join("history.jsonl");
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{whole}{{\"at_unix_ms\":1")).unwrap();
        let history = History::open(dir.path()).unwrap();
        assert_eq!(history.lines().count(), 2);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), whole);
        assert_eq!(history.takeovers(clock::now()).len(), 1, "a restart is no takeover");
    }

    /// A full disk leaves a line in part, and has no room to write the file anew: a host without its agent takes
    /// nothing over, for the sake of a log.
    #[test]
    fn a_history_that_cannot_be_written_anew_keeps_no_agent_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.jsonl");
        History::open(dir.path()).unwrap().add("db1", "demo", record(Event::Failover));
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{whole}torn")).unwrap();
        // No new file can be made.
        std::fs::create_dir(path.with_extension("new")).unwrap();
        History::open(dir.path()).unwrap().add("db1", "demo", record(Event::Restart));
        std::fs::remove_dir(path.with_extension("new")).unwrap();
        let events: Vec<Event> = History::open(dir.path()).unwrap().lines().map(|line| line.record.event).collect();
        assert_eq!(events, [Event::Failover, Event::Restart]);
    }

    /// TASK-N4: an agent that begins beside a running PostgreSQL has given no sign of life yet.
    #[test]
    fn nobody_waits_until_a_history_is_written_anew() {
        let limit = Duration::from_secs(20);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.jsonl");
        History::open(dir.path()).unwrap().add("db1", "demo", record(Event::Failover));
        let line = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{line}torn")).unwrap();
        // A pipe that nobody reads: whoever writes to it waits for a reader.
        let pipe = path.with_extension("new");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (opens, opened) = std::sync::mpsc::channel();
        let there = dir.path().to_path_buf();
        std::thread::spawn(move || {
            let mut history = History::read_in(&there).unwrap().beside();
            history.add("db1", "demo", record(Event::Restart));
            opens.send(history)
        });
        let history = opened.recv_timeout(limit).expect("the agent begins meanwhile");
        assert_eq!((history.lines().count(), history.writer().settled(Duration::ZERO)), (2, false));
        // Now there is a reader. A pipe cannot be synced, so the file stays as it is, and the new line follows.
        let _reads = std::fs::File::options().read(true).write(true).open(&pipe).unwrap();
        assert!(history.writer().settled(limit));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(&format!("{line}torn\n{{")) && text.ends_with("}\n"), "{text}");
    }

    #[test]
    fn a_long_history_is_written_anew_with_its_newest_lines() {
        let limit = Duration::from_secs(20);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.jsonl");
        History::open(dir.path()).unwrap().add("db1", "demo", record(Event::Failover));
        let line = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, line.repeat(LINES_MAX + 3)).unwrap();
        let mut history = History::read_in(dir.path()).unwrap().beside();
        assert!(history.writer().settled(limit));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), line.repeat(LINES_MAX));
        history.add("db1", "demo", record(Event::Restart));
        assert!(history.writer().settled(limit));
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().count(), LINES_MAX + 1);
        assert!(text.starts_with(&line) && text.contains("\"event\":\"restart\""));
    }

    /// What was read counts against flapping, and what is added is not lost.
    #[test]
    fn lines_that_the_disk_did_not_take_are_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.jsonl");
        History::open(dir.path()).unwrap().add("db1", "demo", record(Event::Failover));
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{whole}torn")).unwrap();
        // As on a file system that is read-only; root may write to any other.
        std::fs::create_dir(path.with_extension("new")).unwrap();
        let mut history = History::unwritable(dir.path());
        assert_eq!((history.lines().count(), history.takeovers(clock::now()).len()), (1, 1));
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(History::open(dir.path()).is_err());
        for event in [Event::Restart, Event::Failover] {
            history.add("db1", "demo", record(event));
        }
        assert_eq!(history.lines().count(), 3);
        for in_the_way in [&path, &path.with_extension("new")] {
            std::fs::remove_dir(in_the_way).unwrap();
        }
        history.add("db1", "demo", record(Event::Restart));
        let read = History::open(dir.path()).unwrap();
        let events: Vec<Event> = read.lines().map(|line| line.record.event).collect();
        assert_eq!(events, [Event::Restart, Event::Failover, Event::Restart], "each once");
    }
}
