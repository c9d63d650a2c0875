//! Programs of the host, each with a time limit: mkfs, mount, blkid, modprobe.

use crate::refused::Refused;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use tonic::Code;

/// Pause between two looks at a running program.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// How long a killed program is waited for.
const KILLED_LIMIT: Duration = Duration::from_secs(5);

/// What is kept of a program's output, in bytes. These programs say little; a pipe holds this much.
const SAID_BYTES_MAX: u64 = 64 << 10;

/// Folders of programs that may not be on the PATH of a service.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// How a program ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// Its standard output.
    pub(super) out: String,
    /// Its standard error.
    pub(super) err: String,
}

impl Ended {
    /// The error of a program that did not succeed.
    pub(super) fn refused(&self, program: &str) -> Refused {
        let said = if self.err.trim().is_empty() { self.out.trim() } else { self.err.trim() };
        Refused::failed(format!("{program}: {}: {said}", self.status))
    }
}

/// A program, also where PATH lacks its folder.
pub(super) fn command(program: &str) -> Command {
    let found = FOLDERS.iter().map(|folder| Path::new(folder).join(program)).find(|path| path.is_file());
    found.map_or_else(|| Command::new(program), Command::new)
}

fn read(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let _ = pipe.take(SAID_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Kills a program. It ends at once, unless it hangs in the kernel.
fn kill(child: &mut Child) {
    let _ = child.kill();
    let begun = Instant::now();
    while matches!(child.try_wait(), Ok(None)) && begun.elapsed() < KILLED_LIMIT {
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// Runs a program to its end.
///
/// # Errors
/// It cannot be started, or does not end in time. Then it is killed; if it hangs in the kernel, it stays there until
/// its device answers.
pub(super) fn run(mut command: Command, limit: Duration) -> Result<Ended, Refused> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let failed = |error: std::io::Error| Refused::failed(format!("{name}: {error}"));
    let mut child = command.spawn().map_err(failed)?;
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(failed)? {
            return Ok(Ended { status, out: read(child.stdout.take()), err: read(child.stderr.take()) });
        }
        if begun.elapsed() >= limit {
            kill(&mut child);
            let late = format!("{name} did not end within {limit:?}: does a gateway serve the volume?");
            return Err(Refused::new(Code::DeadlineExceeded, late));
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// Runs a program that must succeed, and returns its output.
///
/// # Errors
/// As [`run`], or it failed.
pub(super) fn succeed(command: Command, limit: Duration) -> Result<String, Refused> {
    let name = command.get_program().to_string_lossy().into_owned();
    let ended = run(command, limit)?;
    if ended.status.success() { Ok(ended.out) } else { Err(ended.refused(&name)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_end_or_are_ended() {
        let mut echo = Command::new("sh");
        echo.args(["-c", "echo found; echo why >&2; exit 2"]);
        let ended = run(echo, Duration::from_secs(30)).unwrap();
        assert_eq!((ended.status.code(), ended.out.as_str(), ended.err.as_str()), (Some(2), "found\n", "why\n"));
        assert!(ended.refused("sh").text.contains("why"));
        let mut waits = Command::new("sleep");
        waits.arg("600");
        assert_eq!(run(waits, Duration::from_millis(50)).unwrap_err().code, Code::DeadlineExceeded);
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        kill(&mut child);
        let process = Path::new("/proc").join(child.id().to_string());
        assert!(!process.exists(), "an ended program is not left as a zombie");
        assert!(run(Command::new("/no/such/program"), Duration::from_secs(1)).is_err());
    }
}
