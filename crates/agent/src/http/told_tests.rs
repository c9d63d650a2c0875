//! What the log says of commands.

use super::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The lines that this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!("{}={value:?} ", field.name()));
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "holdfast_agent::http"
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.locked().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Nobody moves PostgreSQL without a line in the log: if the caller hangs up, its request ends, and the command goes
/// on.
#[tokio::test]
async fn a_command_is_in_the_log_before_it_is_carried_out() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let (door, mut asked, _dir) = door(None);
    let (who, uri) = (ConnectInfo(Asker::Local), "/pause".parse().unwrap());
    let asking = command(State(door), who, Extension(Noted::default()), HeaderMap::new(), uri, Bytes::new());
    tokio::select! {
        _ = asking => panic!("nobody has answered it"),
        taken = asked.recv() => assert!(matches!(taken, Some((Command::Pause, _)))),
    }
    let lines = log.0.locked().clone();
    let told = |line: &String| line.contains("path=\"/pause\"") && line.contains("the agent's socket");
    assert!(lines.iter().any(told), "{lines:?}");
}
