//! Keeps the logs of a guest's programs on the host when the guest goes. A check that fails ends its part, and with it
//! the part's guests. Their disks are gone then, and what agent, attach and PostgreSQL said was on these.
//!
//! ```text
//!   target/zfs/a/logs-01.txt    the last bytes of each log of the first guest a that answered at its end
//! ```

use super::guest_agent::GuestAgent;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The names of the guests, which are their folders in the folder of a run.
pub const GUESTS: [&str; 2] = ["a", "b"];

/// Whoever does not answer within this time has nothing to tell: it is being booted, or hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// How long the logs may take to be read. Guests are slow.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// The last bytes of each log that are kept, and of all together. The guest agent holds 16 MiB.
const LOG_BYTES: usize = 128 << 10;
const ALL_BYTES: usize = 2 << 20;

/// What is kept, on disks of the guest only: a pool may hang.
const FILES: [&str; 8] = [
    "/var/log/agent.log",
    "/var/lib/holdfast-agent/history.jsonl*",
    "/run/holdfast-agent/*.log",
    "/var/log/attach-*.log",
    "/var/lib/holdfast-agent/*.log",
    "/var/log/postgresql/*.log",
    "/var/lib/holdfast-standby/*/*.log",
    "/run/holdfast-standby/*/*.log",
];

/// The script that shows them, below this folder.
fn script(root: &str) -> String {
    let files: Vec<String> = FILES.iter().map(|file| format!("{root}{file}")).collect();
    format!(
        "shopt -s nullglob\n{{\nfor file in {}; do\n\
         \x20 [ -f \"$file\" ] || continue\n\
         \x20 echo \"=== $file: $(stat -c %s \"$file\") bytes\"\n\
         \x20 timeout 5 tail -c {LOG_BYTES} \"$file\"\n  echo\ndone\n\
         if [ -d {root}/run/systemd/system ]; then\n\x20 echo '=== journal of systemd'\n\
         \x20 timeout 20 journalctl --no-pager -o short-precise -n 4000 2>&1 | tail -c {}\nfi\n\
         echo '=== kernel'\ntimeout 5 dmesg 2>&1 | tail -c {LOG_BYTES}\n}} | head -c {ALL_BYTES}\n",
        files.join(" "),
        4 * LOG_BYTES
    )
}

/// Keeps the logs of a guest; returns the file. `None`: its machine has ended. `resume`: continues it if it is paused.
/// Fails when the guest does not answer in time.
pub fn keep(agent: &GuestAgent, resume: impl FnOnce()) -> Result<Option<PathBuf>> {
    if !agent.has_machine() {
        return Ok(None);
    }
    resume();
    agent.talk("guest-ping", None, ANSWER_LIMIT).context("it does not answer")?;
    let said = agent.finished(&script(""), READ_LIMIT)?;
    let (_, out, err) = said.with_context(|| format!("not read within {READ_LIMIT:?}"))?;
    let path = agent.dir.join(format!("logs-{:02}.txt", kept_in(&agent.dir).len() + 1));
    std::fs::write(&path, out + &err).with_context(|| path.display().to_string())?;
    Ok(Some(path))
}

/// The kept files of a guest, oldest first.
fn kept_in(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let is_kept = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("logs-") && name.ends_with(".txt")
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_kept).collect();
    files.sort();
    files
}

/// Where the logs of a failed run are, for its message: those of the gateways, and the last ones of each guest.
pub fn places(dir: &Path) -> String {
    let last = GUESTS.iter().filter_map(|guest| kept_in(&dir.join(guest)).pop());
    let files: Vec<String> = last.map(|file| file.display().to_string()).collect();
    let guests = if files.is_empty() { "none answered".to_owned() } else { files.join(", ") };
    format!("logs of the gateways: {}; of the guests: {guests}", dir.join("cluster").display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zfs::base64;
    use crate::zfs::guest_agent::socket_of;
    use serde_json::{Value, json};
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    fn folder(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("holdfast-zfs-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// A guest agent in whose guest every script says this.
    fn answer(listener: &UnixListener, says: &str) {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            for line in BufReader::new(stream.try_clone().unwrap()).split(b'\n') {
                let Ok(line) = line else { break };
                let begin = line.iter().rposition(|byte| *byte == 0xff).map_or(0, |at| at + 1);
                let asked: Value = serde_json::from_slice(&line[begin..]).unwrap();
                let answer = match asked["execute"].as_str() {
                    Some("guest-sync-delimited") => asked["arguments"]["id"].clone(),
                    Some("guest-exec") => json!({"pid": 7}),
                    Some("guest-exec-status") => {
                        json!({"exited": true, "exitcode": 0, "out-data": base64::encode(says.as_bytes())})
                    }
                    _ => json!({}),
                };
                if writeln!(stream, "{}", json!({"return": answer})).is_err() {
                    break;
                }
            }
        }
    }

    #[test]
    fn the_logs_of_a_guest_that_answers_are_kept_and_the_message_names_them() {
        let top = folder("kept-logs");
        let dir = top.join("a");
        std::fs::create_dir(&dir).unwrap();
        assert!(places(&top).ends_with("of the guests: none answered"), "{}", places(&top));
        let agent = GuestAgent { name: "a", dir: dir.clone() };
        let mut resumed = 0;
        assert_eq!(keep(&agent, || resumed += 1).unwrap(), None, "it has no machine");
        let listener = UnixListener::bind(socket_of(&dir)).unwrap();
        std::thread::spawn(move || answer(&listener, "the agent could not import\n"));
        for file in ["logs-01.txt", "logs-02.txt"] {
            let kept = keep(&agent, || resumed += 1).unwrap().unwrap();
            assert_eq!(kept, dir.join(file));
            assert_eq!(std::fs::read_to_string(kept).unwrap(), "the agent could not import\n");
        }
        assert_eq!(resumed, 2, "a paused guest is asked as well");
        let said = places(&top);
        let last = dir.join("logs-02.txt");
        assert!(said.contains(&last.display().to_string()) && said.contains("/cluster;"), "{said}");
        std::fs::remove_dir_all(&top).unwrap();
    }

    #[test]
    fn logs_and_histories_are_shown_from_their_ends() {
        let root = folder("guest-logs");
        for dir in ["var/log", "var/lib/holdfast-agent", "run/holdfast-agent"] {
            std::fs::create_dir_all(root.join(dir)).unwrap();
        }
        let long = format!("first words{}END", "x".repeat(LOG_BYTES));
        std::fs::write(root.join("var/log/agent.log"), long).unwrap();
        std::fs::write(root.join("var/lib/holdfast-agent/history.jsonl"), "{\"event\":\"fenced\"}\n").unwrap();
        std::fs::write(root.join("run/holdfast-agent/attach.log"), "the set is held by b\n").unwrap();
        let script = script(&root.display().to_string());
        let ran = Command::new("bash").args(["-c", &script]).output().unwrap();
        let out = String::from_utf8_lossy(&ran.stdout).into_owned();
        let from = |file: &str| format!("=== {}/{file}: ", root.display());
        for file in ["var/log/agent.log", "var/lib/holdfast-agent/history.jsonl", "run/holdfast-agent/attach.log"] {
            assert!(out.contains(&from(file)), "{file}: {out:.400}");
        }
        assert!(out.contains("xEND") && !out.contains("first words"), "the end is kept");
        assert!(out.contains("\"fenced\"") && out.contains("the set is held by b"));
        assert!(!out.contains("=== journal") && out.contains("=== kernel"));
        assert!(ran.stdout.len() <= ALL_BYTES, "{}", ran.stdout.len());
        std::fs::remove_dir_all(&root).unwrap();
    }
}
