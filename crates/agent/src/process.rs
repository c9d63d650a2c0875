//! Processes: programs with a time limit, and finding and ending what belongs to one PostgreSQL.

use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// What is kept of what a program says, in bytes.
const SAID_BYTES_MAX: usize = 16 << 10;

/// How long a program's output is waited for after its end: what it left in the background may keep the pipe for ever.
const AFTERWORDS: Duration = Duration::from_millis(100);

/// Pause between two looks at processes that are ending.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Exit code, `None` after a signal.
    pub code: Option<i32>,
    /// Its output.
    pub out: String,
    /// Its words of error.
    pub err: String,
}

async fn read_some(pipe: Option<impl AsyncRead + Unpin>, into: Arc<Mutex<Vec<u8>>>) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = [0; 4096];
    while let Ok(count) = pipe.read(&mut buffer).await {
        if count == 0 {
            return;
        }
        let mut said = into.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() < SAID_BYTES_MAX {
            said.extend_from_slice(&buffer[..count]);
        }
    }
}

fn shown(command: &Command) -> String {
    let command = command.as_std();
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        let _ = write!(text, " {}", arg.to_string_lossy());
    }
    text
}

/// Runs `command` for at most `limit`, then kills it; whatever its exit code is.
///
/// # Errors
/// It could not be started, or took too long.
pub async fn ran(mut command: Command, limit: Duration) -> Result<Ran, String> {
    let name = shown(&command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    let (out, err) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let reading = tokio::spawn({
        let (stdout, stderr, out, err) = (child.stdout.take(), child.stderr.take(), out.clone(), err.clone());
        async move { tokio::join!(read_some(stdout, out), read_some(stderr, err)) }
    });
    let waited = tokio::time::timeout(limit, child.wait()).await;
    let _ = tokio::time::timeout(AFTERWORDS, reading).await;
    let text = |said: &Mutex<Vec<u8>>| {
        String::from_utf8_lossy(&said.lock().unwrap_or_else(PoisonError::into_inner)).trim().to_string()
    };
    match waited {
        Ok(Ok(status)) => Ok(Ran { code: status.code(), out: text(&out), err: text(&err) }),
        Ok(Err(error)) => Err(format!("{name}: {error}")),
        Err(_) => {
            // Not waited for: a process in an uninterruptible wait on a dead device ends when the device is let go of.
            let _ = child.start_kill();
            Err(format!("{name}: not within {} ms; {}", limit.as_millis(), text(&err)))
        }
    }
}

/// As [`ran`]; any exit code but 0 is an error.
///
/// # Errors
/// Those too.
pub async fn run(command: Command, limit: Duration) -> Result<String, String> {
    let name = shown(&command);
    let ran = ran(command, limit).await?;
    match ran.code {
        Some(0) => Ok(ran.out),
        code => {
            let ended = code.map_or_else(|| "was killed".to_string(), |code| format!("exit code {code}"));
            Err(format!("{name}: {ended}: {}", if ran.err.is_empty() { ran.out } else { ran.err }))
        }
    }
}

/// A program of the system's, found also where root's paths are left out of PATH.
pub fn system(program: &str) -> Command {
    let full = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(|dir| Path::new(dir).join(program));
    full.iter().find(|path| path.is_file()).map_or_else(|| Command::new(program), Command::new)
}

fn pids() -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn parent(pid: i32) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name in brackets and may hold blanks: count from behind it.
    text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The processes of the PostgreSQL whose data directory is `data`: each server process works there; and what it started itself there, such as
/// an archive command. Reads nothing from the device below `data`.
pub fn of_postgres(data: &Path) -> BTreeSet<i32> {
    let (mut found, mut others) = (BTreeSet::new(), Vec::new());
    for pid in pids() {
        if std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == data) {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if name.trim_end() == "postgres" {
                found.insert(pid);
            } else {
                others.push(pid);
            }
        }
    }
    while let Some(at) = others.iter().position(|pid| parent(*pid).is_some_and(|parent| found.contains(&parent))) {
        found.insert(others.swap_remove(at));
    }
    found
}

/// The first of them: the one whose parent is none of them.
pub fn postmaster(of: &BTreeSet<i32>) -> Option<i32> {
    of.iter().copied().find(|pid| parent(*pid).is_some_and(|parent| !of.contains(&parent)))
}

/// Processes with `word` at the beginning of one of their arguments, and this name.
pub fn of_name(name: &str, word: &str) -> Vec<i32> {
    let fits = |pid: &i32| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let args = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        comm.trim_end() == name && args.split(|byte| *byte == 0).any(|arg| arg.starts_with(word.as_bytes()))
    };
    pids().into_iter().filter(fits).collect()
}

/// Sends a signal. A process that is gone is no error.
pub fn signal(pid: i32, what: Signal) {
    if let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 1) {
        let _ = kill_process(pid, what);
    }
}

/// SIGKILL to all of that PostgreSQL, also to what comes up meanwhile, until none is left. Blocks.
///
/// # Errors
/// Some are left after `limit`: they wait on the device.
pub fn kill_postgres(data: &Path, limit: Duration) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let left = of_postgres(data);
        if left.is_empty() {
            return Ok(());
        }
        left.iter().for_each(|pid| signal(*pid, Signal::KILL));
        if begun.elapsed() >= limit {
            return Err(format!(
                "{} processes of PostgreSQL are left {} ms after SIGKILL",
                left.len(),
                limit.as_millis()
            ));
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// Waits until none of that PostgreSQL is left; says whether.
pub async fn postgres_gone(data: &Path, limit: Duration) -> bool {
    let begun = Instant::now();
    while !of_postgres(data).is_empty() {
        if begun.elapsed() >= limit {
            return false;
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    true
}

/// The last `lines` lines of a file, for an error's words.
pub fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(SAID_BYTES_MAX)..]).into_owned();
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg(script);
        command
    }

    #[tokio::test]
    async fn programs_end_in_time_and_say_why_they_failed() {
        assert_eq!(run(sh("echo hello"), Duration::from_secs(10)).await.unwrap(), "hello");
        let error = run(sh("echo no room >&2; exit 3"), Duration::from_secs(10)).await.unwrap_err();
        assert!(error.contains("exit code 3: no room"), "{error}");
        let begun = Instant::now();
        let error = run(sh("sleep 60"), Duration::from_millis(100)).await.unwrap_err();
        assert!(error.contains("not within 100 ms"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(30));
    }

    #[tokio::test]
    async fn what_a_program_leaves_in_the_background_is_not_waited_for() {
        let begun = Instant::now();
        assert_eq!(run(sh("sleep 60 & echo started"), Duration::from_secs(30)).await.unwrap(), "started");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    #[tokio::test]
    async fn a_server_is_found_by_where_it_works_and_ended_with_what_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().canonicalize().unwrap();
        // The name of a process is that of its file.
        let program = data.join("postgres");
        std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
        let mut command = Command::new(&program);
        command.arg("-c").arg("sleep 600 & wait").current_dir(&data);
        let mut server = command.spawn().unwrap();
        let mut bystander = Command::new("sleep").arg("600").current_dir(&data).spawn().unwrap();
        let begun = Instant::now();
        while of_postgres(&data).len() < 2 && begun.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        let found = of_postgres(&data);
        assert_eq!(found.len(), 2, "the server and what it started, not the bystander");
        assert_eq!(postmaster(&found), server.id().map(u32::cast_signed));
        let there = data.clone();
        let ended = tokio::task::spawn_blocking(move || kill_postgres(&there, Duration::from_secs(10))).await.unwrap();
        ended.unwrap();
        assert!(bystander.try_wait().unwrap().is_none());
        bystander.kill().await.unwrap();
        server.wait().await.unwrap();
    }
}
