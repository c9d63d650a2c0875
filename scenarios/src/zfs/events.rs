//! QEMU's events of a guest's machine (protocol QMP): resets and power-offs, with times of this machine's clock.

use anyhow::{Context, Result};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Limit of QEMU's own answers.
const HURRY: Duration = Duration::from_secs(30);

/// A listener. Events wait until they are read.
#[derive(Debug)]
pub struct Events {
    name: &'static str,
    input: BufReader<UnixStream>,
}

impl Events {
    /// Begins to listen to the QEMU of guest `name`. Fails when it does not answer.
    pub fn listen(name: &'static str, socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket).with_context(|| format!("{name}: {}", socket.display()))?;
        stream.set_read_timeout(Some(HURRY))?;
        let mut output = stream.try_clone()?;
        let mut events = Self { name, input: BufReader::new(stream) };
        // Its greeting comes first; there are no events before this command is answered.
        events.hear()?;
        output.write_all(b"{\"execute\": \"qmp_capabilities\"}\n")?;
        while events.hear()?.get("return").is_none() {}
        Ok(events)
    }

    fn hear(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = self.input.read_line(&mut line).with_context(|| format!("{}: QEMU does not answer", self.name))?;
        anyhow::ensure!(read > 0, "{}: QEMU has closed its channel", self.name);
        serde_json::from_str(&line).with_context(|| format!("{}: found {line:?}, expected JSON", self.name))
    }

    /// Waits for an event, such as `RESET`; returns its time in Unix milliseconds. Fails when it does not come within
    /// `limit`.
    pub fn until(&mut self, event: &str, limit: Duration) -> Result<u64> {
        let begun = Instant::now();
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            anyhow::ensure!(!left.is_zero(), "{}: no {event} within {limit:?}", self.name);
            self.input.get_ref().set_read_timeout(Some(left))?;
            let said = self.hear().with_context(|| format!("{}: no {event} within {limit:?}", self.name))?;
            if said["event"] == event
                && let Some(ms) = moment(&said)
            {
                return Ok(ms);
            }
        }
    }
}

/// When an event was, in Unix milliseconds.
fn moment(said: &Value) -> Option<u64> {
    let at = &said["timestamp"];
    at["seconds"].as_u64()?.checked_mul(1000)?.checked_add(at["microseconds"].as_u64()? / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    const GREETING: &str = "{\"QMP\": {\"version\": {}}}\n";
    const ANSWER: &str = "{\"return\": {}}\n";
    const OTHER: &str = "{\"timestamp\": {\"seconds\": 9, \"microseconds\": 0}, \"event\": \"RTC_CHANGE\"}\n";
    const RESET: &str = "{\"timestamp\": {\"seconds\": 12, \"microseconds\": 345678}, \"event\": \"RESET\", \"data\": {\"guest\": true}}\n";

    #[test]
    fn an_event_is_found_among_others_and_dated() {
        let dir = std::env::temp_dir().join(format!("holdfast-events-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let socket = dir.join("events.sock");
        let _ = std::fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let qemu = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(GREETING.as_bytes()).unwrap();
            let mut line = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
            assert!(line.contains("qmp_capabilities"), "{line}");
            // An event from before the command may precede the answer.
            stream.write_all([OTHER, ANSWER, OTHER, RESET].concat().as_bytes()).unwrap();
        });
        let mut events = Events::listen("a", &socket).unwrap();
        assert_eq!(events.until("RESET", HURRY).unwrap(), 12_345);
        let end = events.until("RESET", HURRY).unwrap_err();
        assert!(format!("{end:#}").contains("QEMU has closed its channel"), "{end:#}");
        qemu.join().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
