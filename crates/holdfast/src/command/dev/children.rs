//! The gateways as child processes. They end with this process, even if it is killed: each one requests that from the
//! kernel (`--die-with`). The request depends on the thread that started the child, so all are started from the main
//! thread.

use super::layout::{DevGateway, Layout};
use crate::exit::CliError;
use crate::output;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::task::Poll;
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

/// Time limit for a clean stop of a gateway, a little more than its own.
const STOP_TIMEOUT: Duration = crate::serve::STOP_TIMEOUT.saturating_add(Duration::from_secs(2));

/// Pause before a restart, so that a gateway that exits at once does not fill the log.
const RESPAWN_PAUSE: Duration = Duration::from_secs(1);

/// Bytes from the end of a log that an error shows.
const LOG_TAIL_BYTES: u64 = 2000;

struct Running {
    gateway: DevGateway,
    /// `None` after its end was noticed.
    child: Option<Child>,
    /// Process id of the last child.
    pid: u32,
    /// Offset in the log at its start.
    log_from: u64,
}

/// All gateways.
pub struct Children {
    program: PathBuf,
    running: Vec<Running>,
    respawn: bool,
}

impl Children {
    /// Starts every gateway of the layout.
    pub fn start(layout: &Layout, respawn: bool) -> Result<Self, CliError> {
        let program = std::env::current_exe()
            .map_err(|error| CliError::failed("the path of this program is unknown").because(&error))?;
        let mut children = Self { program, running: Vec::new(), respawn };
        for gateway in &layout.gateways {
            let (child, pid, log_from) = children.spawn(gateway)?;
            children.running.push(Running { gateway: gateway.clone(), child: Some(child), pid, log_from });
        }
        Ok(children)
    }

    fn spawn(&self, gateway: &DevGateway) -> Result<(Child, u32, u64), CliError> {
        let about = |error: std::io::Error| {
            CliError::failed(format!("gateway {} could not be started", gateway.name())).because(&error)
        };
        let log = OpenOptions::new().create(true).append(true).open(&gateway.log).map_err(about)?;
        let log_from = log.metadata().map_err(about)?.len();
        let mut command = Command::new(&self.program);
        command
            .args(["gateway", "run", "--config"])
            .arg(&gateway.file)
            .args(["--die-with", &std::process::id().to_string()]);
        // Its own process group: Ctrl-C reaches this process only, which then stops the gateways.
        command.process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(log.try_clone().map_err(about)?).stderr(log);
        let child = command.spawn().map_err(about)?;
        let pid = child.id().unwrap_or(0);
        Ok((child, pid, log_from))
    }

    /// Process ids in the order of the gateways.
    pub fn pids(&self) -> Vec<u32> {
        self.running.iter().map(|running| running.pid).collect()
    }

    /// Waits until any gateway ends; returns its name and how it ended. Each end is reported once. Cancel-safe.
    pub async fn any_end(&mut self) -> (String, String) {
        std::future::poll_fn(|context| {
            for running in &mut self.running {
                let Some(child) = running.child.as_mut() else { continue };
                let status = match pin!(child.wait()).poll(context) {
                    Poll::Pending => continue,
                    Poll::Ready(status) => status,
                };
                running.child = None;
                let how = status.map_or_else(|error| format!("was lost: {error}"), ended);
                return Poll::Ready((running.gateway.name().to_string(), format!("(process {}) {how}", running.pid)));
            }
            Poll::Pending
        })
        .await
    }

    /// Restarts the gateway if `--respawn` was given; returns its new process id.
    pub async fn respawn(&mut self, name: &str) -> Result<Option<u32>, CliError> {
        if !self.respawn {
            return Ok(None);
        }
        sleep(RESPAWN_PAUSE).await;
        let Some(at) = self.running.iter().position(|running| running.gateway.name() == name) else { return Ok(None) };
        let (child, pid, log_from) = self.spawn(&self.running[at].gateway)?;
        let running = &mut self.running[at];
        (running.child, running.pid, running.log_from) = (Some(child), pid, log_from);
        Ok(Some(pid))
    }

    /// The error for a gateway that ended during the start, with the end of its log.
    pub fn failed_to_start(&self, (name, how): (String, String)) -> CliError {
        let error = CliError::failed(format!("gateway {name} {how}"));
        let Some(running) = self.running.iter().find(|running| running.gateway.name() == name) else { return error };
        let tail = tail(&running.gateway.log, running.log_from).unwrap_or_default();
        let next = format!("its log is {}", running.gateway.log.display());
        if tail.trim().is_empty() {
            return error.next(next);
        }
        CliError { message: format!("{}; the end of its log:\n{}", error.message, tail.trim_end()), ..error }.next(next)
    }

    /// Once no majority is left, nobody takes over what a gateway leads: a second signal has it stop at once.
    fn hurry(&self) {
        let left = self.running.iter().filter(|running| running.child.is_some());
        if left.clone().count() * 2 <= self.running.len() {
            left.for_each(|running| signal(running.pid, Signal::TERM));
        }
    }

    /// Stops all gateways: SIGTERM, then SIGKILL after the time limit. A second signal to this process shortens the
    /// wait.
    pub async fn stop(&mut self) {
        for running in &self.running {
            if running.child.is_some() {
                signal(running.pid, Signal::TERM);
            }
        }
        let deadline = Instant::now() + STOP_TIMEOUT;
        let impatient = crate::serve::terminal_signal();
        tokio::pin!(impatient);
        while self.running.iter().any(|running| running.child.is_some()) {
            tokio::select! {
                _ = self.any_end() => {
                    self.hurry();
                    continue;
                }
                _ = tokio::time::sleep_until(deadline) => {}
                _ = &mut impatient => {}
            }
            for running in &mut self.running {
                if let Some(mut child) = running.child.take() {
                    output::remark(&format!(
                        "gateway {} (process {}) did not stop in time: killed",
                        running.gateway.name(),
                        running.pid
                    ));
                    let _ = child.kill().await;
                }
            }
        }
    }
}

/// The child has not been waited for, so its process id cannot belong to another process.
fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

fn ended(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_string(),
    }
}

/// The end of the log since `from`.
fn tail(log: &Path, from: u64) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let start = file.metadata()?.len().saturating_sub(LOG_TAIL_BYTES).max(from);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    // Limited, since the log may not be a regular file.
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
