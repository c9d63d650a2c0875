//! Conversation with the agent of QEMU in a guest: how the host runs programs there.

use super::base64;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Limit of one command to the guest agent.
const TALK_LIMIT: Duration = Duration::from_secs(30);

/// Interval between two checks of a guest's processes.
pub const LOOK: Duration = Duration::from_millis(100);

/// Exit code, output and errors of a script.
pub type Said = (i64, String, String);

/// The agent of one guest.
#[derive(Debug)]
pub struct GuestAgent {
    pub name: &'static str,
    /// The guest's folder on the host.
    pub dir: PathBuf,
}

/// QEMU's socket for the agent.
pub fn socket_of(dir: &Path) -> PathBuf {
    dir.join("agent.sock")
}

impl GuestAgent {
    /// Whether the guest's machine runs, or is paused.
    pub fn has_machine(&self) -> bool {
        UnixStream::connect(socket_of(&self.dir)).is_ok()
    }

    /// One command of the agent's protocol, on a new connection.
    pub fn talk(&self, execute: &str, arguments: Option<Value>, limit: Duration) -> Result<Value> {
        let socket = UnixStream::connect(socket_of(&self.dir))?;
        socket.set_read_timeout(Some(limit))?;
        let mut input = BufReader::new(socket.try_clone()?);
        let mut output = socket;
        // Remains of an earlier exchange in the channel end with the answer to this number.
        static TALKS: AtomicU64 = AtomicU64::new(0);
        let number = u64::from(std::process::id()) << 20 | TALKS.fetch_add(1, Ordering::Relaxed);
        let hello = json!({"execute": "guest-sync-delimited", "arguments": {"id": number}});
        output.write_all(&[&[0xff], hello.to_string().as_bytes(), b"\n"].concat())?;
        loop {
            let said = hear(&mut input)?;
            if said["return"] == number {
                break;
            }
        }
        let mut ask = json!({"execute": execute});
        if let Some(arguments) = arguments {
            ask["arguments"] = arguments;
        }
        output.write_all(format!("{ask}\n").as_bytes())?;
        let mut said = hear(&mut input)?;
        match said["error"]["desc"].as_str() {
            Some(error) => bail!("{}: {execute}: {error}", self.name),
            None => Ok(said["return"].take()),
        }
    }

    /// Starts a script; returns its process there. `heard`: its output is kept until it is asked for.
    pub fn start(&self, script: &str, heard: bool) -> Result<u64> {
        let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin:/usr/lib/postgresql/15/bin";
        let said = self.talk(
            "guest-exec",
            Some(json!({"path": "/bin/bash", "arg": ["-s"], "capture-output": heard,
                "env": [path, "HOME=/root", "LANG=C.UTF-8"], "input-data": base64::encode(script.as_bytes())})),
            TALK_LIMIT,
        )?;
        said["pid"].as_u64().with_context(|| format!("{}: guest-exec: {said}", self.name))
    }

    /// Runs a script to its end. `None`: it still runs after `limit`.
    pub fn finished(&self, script: &str, limit: Duration) -> Result<Option<Said>> {
        let begun = Instant::now();
        let pid = self.start(script, true)?;
        loop {
            let state = self.talk("guest-exec-status", Some(json!({"pid": pid})), TALK_LIMIT)?;
            if state["exited"] == true {
                let text = |key: &str| {
                    let bytes = base64::decode(state[key].as_str().unwrap_or_default());
                    String::from_utf8_lossy(&bytes).into_owned()
                };
                return Ok(Some((state["exitcode"].as_i64().unwrap_or(-1), text("out-data"), text("err-data"))));
            }
            if begun.elapsed() > limit {
                return Ok(None);
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn hear(input: &mut impl BufRead) -> Result<Value> {
    loop {
        let mut line = Vec::new();
        anyhow::ensure!(input.read_until(b'\n', &mut line)? > 0, "the agent's channel closed");
        // Bytes before the mark belong to another exchange.
        let begin = line.iter().rposition(|byte| *byte == 0xff).map_or(0, |at| at + 1);
        if let Ok(said) = serde_json::from_slice(&line[begin..]) {
            return Ok(said);
        }
    }
}
