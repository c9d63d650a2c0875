//! Processes: programs with a time limit, and finding and ending what belongs to one PostgreSQL, or to another service.

mod cgroup;
pub mod log;
mod output;
mod postgres;
mod processes;
mod server;
mod table;

pub use cgroup::Group;
pub use output::SAID_BYTES_MAX;
pub use postgres::{
    is_elsewhere, kill_postgres, kill_postgres_here, look_for_postgres, of_postgres, postgres_gone, postgres_runs,
    postmaster, unlooked,
};
pub use processes::Processes;
pub use server::Server;
pub use table::{ProcessSearch, of_mark, of_name, signal};

use holdfast_types::sync::LockExt;
use output::{AFTERWORDS, Said};
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use tokio::process::{Child, Command};

/// Killed programs that still exist, by their whole command line, with the time of the kill: they hang in the kernel
/// while a device does not answer.
static LEFT: Mutex<BTreeMap<String, (Child, Instant)>> = Mutex::new(BTreeMap::new());

/// A running program. However its run ends, also when the task that waits for it is aborted, it is killed, and noted in
/// [`LEFT`] until it is gone.
struct Running {
    name: String,
    child: Option<Child>,
    killed: Option<Instant>,
}

impl Running {
    fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.start_kill();
            self.killed.get_or_insert_with(Instant::now);
        }
    }

    async fn wait(&mut self) -> io::Result<ExitStatus> {
        let Some(child) = &mut self.child else { return Err(io::ErrorKind::NotFound.into()) };
        let status = child.wait().await;
        self.child = None;
        status
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        let Some(mut child) = self.child.take() else { return };
        if matches!(child.try_wait(), Ok(None)) {
            let killed = self.killed.unwrap_or_else(Instant::now);
            let mut left = LEFT.locked();
            left.insert(std::mem::take(&mut self.name), (child, killed));
        }
    }
}

/// The programs in [`LEFT`] that hang. A healthy program may exist for a moment after its kill, which means nothing.
fn left_since_long(left: &mut BTreeMap<String, (Child, Instant)>) -> impl Iterator<Item = (&String, Instant)> {
    left.retain(|_, (child, _)| matches!(child.try_wait(), Ok(None)));
    left.iter().filter(|(_, (_, since))| since.elapsed() >= AFTERWORDS).map(|(name, (_, since))| (name, *since))
}

/// Reason why there is no [`Ran`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotRan {
    /// It could not be started, or not be watched: its question has no answer.
    Unable(String),
    /// It did not end in time.
    Late(String),
}

impl fmt::Display for NotRan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (NotRan::Unable(why) | NotRan::Late(why)) = self;
        f.write_str(why)
    }
}

impl From<NotRan> for String {
    fn from(not: NotRan) -> Self {
        not.to_string()
    }
}

/// Result of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ran {
    /// Exit code, `None` after a signal.
    pub code: Option<i32>,
    /// Its output.
    pub out: String,
    /// Its standard error.
    pub err: String,
}

fn shown(command: &Command) -> String {
    let command = command.as_std();
    let mut text = command.get_program().to_string_lossy().into_owned();
    for arg in command.get_args() {
        let _ = write!(text, " {}", arg.to_string_lossy());
    }
    text
}

/// Time at which an earlier program of the same command line was killed, if it still exists.
fn left_since(name: &str) -> Option<Instant> {
    let mut left = LEFT.locked();
    left_since_long(&mut left).find(|(of, _)| *of == name).map(|(_, since)| since)
}

/// Command lines of killed programs that hang in the kernel and for which `is` holds. Waits for nothing.
pub fn hanging(is: impl Fn(&str) -> bool) -> Vec<String> {
    let mut left = LEFT.locked();
    left_since_long(&mut left).map(|(name, _)| name).filter(|name| is(name)).cloned().collect()
}

/// Keeps a program as if it had been killed and hung in the kernel.
#[cfg(test)]
pub(crate) fn leave(name: &str, child: Child) {
    LEFT.locked().insert(name.into(), (child, Instant::now() - AFTERWORDS));
}

/// Runs `command` for at most `limit`, then kills it; any exit code is accepted. While an earlier program of the same
/// command line hangs in the kernel, no other is started: it would hang as well, and each would stay.
///
/// # Errors
/// It could not be started, or took too long.
pub async fn ran(mut command: Command, limit: Duration) -> Result<Ran, NotRan> {
    let name = shown(&command);
    if let Some(since) = left_since(&name) {
        let since = since.elapsed().as_secs();
        return Err(NotRan::Late(format!(
            "{name}: not started: an earlier one hangs in the kernel, killed {since} s ago"
        )));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| NotRan::Unable(format!("{name}: {error}")))?;
    let (out, err) = (Said::of(child.stdout.take()), Said::of(child.stderr.take()));
    let mut running = Running { name: name.clone(), child: Some(child), killed: None };
    let waited = tokio::time::timeout(limit, running.wait()).await;
    let (out, err) = tokio::join!(out.whole(), err.whole());
    match waited {
        Ok(Ok(status)) => Ok(Ran { code: status.code(), out, err }),
        Ok(Err(error)) => Err(NotRan::Unable(format!("{name}: {error}"))),
        Err(_) => {
            let late = NotRan::Late(format!("{name}: not within {} ms; {err}", limit.as_millis()));
            running.kill();
            // Waits only briefly: a process in an uninterruptible wait on a dead device ends when the device is
            // released.
            let _ = tokio::time::timeout(AFTERWORDS, running.wait()).await;
            Err(late)
        }
    }
}

/// As [`ran`]; any exit code but 0 is an error.
///
/// # Errors
/// Also those of [`ran`].
pub async fn run(command: Command, limit: Duration) -> Result<String, String> {
    run_explained(command, limit, "", |_| String::new()).await
}

/// As [`run`]. `late`, if not empty, is a possible reason for a timeout; `failed` makes text of a failed program's
/// output. Either is added to the error.
///
/// # Errors
/// As [`run`].
pub async fn run_explained(
    command: Command,
    limit: Duration,
    late: &str,
    failed: fn(&Ran) -> String,
) -> Result<String, String> {
    let name = shown(&command);
    let ran = ran(command, limit).await.map_err(|not| match not {
        NotRan::Late(why) if !late.is_empty() => format!("{why} ({late})"),
        not => not.to_string(),
    })?;
    match ran.code {
        Some(0) => Ok(ran.out),
        code => {
            let ended = code.map_or_else(|| "was killed".to_string(), |code| format!("exit code {code}"));
            let more = Some(failed(&ran)).filter(|more| !more.is_empty());
            let more = more.map_or_else(String::new, |more| format!(" ({more})"));
            Err(format!("{name}: {ended}: {}{more}", if ran.err.is_empty() { ran.out } else { ran.err }))
        }
    }
}

/// A program of the system, found also if PATH lacks root's directories.
pub fn system(program: &str) -> Command {
    let full = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(|dir| Path::new(dir).join(program));
    full.iter().find(|path| path.is_file()).map_or_else(|| Command::new(program), Command::new)
}

/// The last `lines` lines of a file, for an error message.
pub fn tail(path: &Path, lines: usize) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text[text.len().saturating_sub(SAID_BYTES_MAX)..]).into_owned();
    let all: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    all[all.len().saturating_sub(lines)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::Signal;

    /// Between two looks.
    const LOOK_PAUSE: Duration = Duration::from_millis(10);

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
        let said = |ran: &Ran| format!("it said {:?}", ran.out);
        let late = run_explained(sh("sleep 61"), Duration::from_millis(100), "it sleeps", said).await.unwrap_err();
        assert!(late.contains("not within 100 ms") && late.ends_with("(it sleeps)"), "{late}");
        let failing = sh("echo no room >&2; echo why; exit 3");
        let failed = run_explained(failing, Duration::from_secs(10), "it sleeps", said).await.unwrap_err();
        assert!(failed.ends_with("3: no room (it said \"why\")") && !failed.contains("it sleeps"), "{failed}");
    }

    #[tokio::test]
    async fn a_background_process_of_a_program_is_not_waited_for() {
        let begun = Instant::now();
        assert_eq!(run(sh("sleep 60 & echo started"), Duration::from_secs(30)).await.unwrap(), "started");
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    /// The agent aborts the job of a step that it gives up. A program of that job that hangs in the kernel must still
    /// be known. Healthy programs are noted as well until they have ended; a few end before that.
    #[tokio::test]
    async fn a_program_whose_job_was_aborted_is_noted() {
        let noted = async |at: u32| {
            let command = || sh(&format!("exec sleep 62.{at:03}"));
            let job = tokio::spawn(ran(command(), Duration::from_secs(60)));
            let (seconds, begun) = (format!("62.{at:03}"), Instant::now());
            while of_name("sleep", &seconds).is_empty() && begun.elapsed() < Duration::from_secs(20) {
                tokio::time::sleep(LOOK_PAUSE).await;
            }
            job.abort();
            assert!(job.await.unwrap_err().is_cancelled());
            let noted = LEFT.lock().unwrap().contains_key(&shown(&command()));
            assert!(!hanging(|_| true).contains(&shown(&command())), "it was killed a moment ago");
            noted
        };
        let mut found = false;
        for at in 0..20 {
            found = found || noted(at).await;
        }
        assert!(found, "none of 20 aborted programs was noted");
    }

    /// A program that hangs in the kernel is imitated by one that was not killed: it is kept as if it had been killed,
    /// and does not end.
    #[tokio::test]
    async fn a_program_that_hangs_in_the_kernel_is_not_started_again() {
        let command = || sh("exec sleep 61.125");
        let mut hung = command();
        hung.kill_on_drop(true);
        let name = shown(&command());
        let child = hung.spawn().unwrap();
        let pid = child.id().unwrap().cast_signed();
        let begun = Instant::now();
        while of_name("sleep", "61.125").is_empty() && begun.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        leave(&name, child);
        for _ in 0..10 {
            let why = run(command(), Duration::from_millis(1)).await.unwrap_err();
            assert!(why.contains("an earlier one hangs"), "{why}");
        }
        assert_eq!(of_name("sleep", "61.125"), [pid], "one, not eleven");
        assert_eq!(hanging(|command| command == name), std::slice::from_ref(&name));
        signal(pid, Signal::KILL);
        let begun = Instant::now();
        while left_since(&name).is_some() && begun.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        let why = run(command(), Duration::from_millis(50)).await.unwrap_err();
        assert!(why.contains("not within 50 ms"), "started anew: {why}");
    }
}
