//! Opens an envelope by a program (ENVELOPE-V2).
//!
//! ```text
//!   standard input    the content of the envelope, or nothing
//!   standard output   the key: 32 bytes, or 64 hex digits and perhaps a newline
//!   standard error    its words if it fails
//!   status            0: what it printed is the key
//! ```

use crate::error::EnvelopeError;
use holdfast_store::service::shown;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::timeout;
use zeroize::Zeroizing;

/// Bytes that a program may print: a key in hex, and much more.
const OUTPUT_BYTES_MAX: usize = 1024;

/// Bytes of its words that are kept.
const WORDS_BYTES_MAX: usize = 4096;

/// How long its pipes are read after its end: a daemon that it has started may keep them open for ever.
const LEFT_OPEN: Duration = Duration::from_secs(1);

/// What a program has left.
struct Left {
    status: ExitStatus,
    printed: Zeroizing<Vec<u8>>,
    words: Zeroizing<Vec<u8>>,
}

/// Runs the program, and takes what it prints for the key. After `limit` it is killed.
///
/// # Errors
/// [`EnvelopeError::Command`].
pub(crate) async fn run(argv: &[String], input: &[u8], limit: Duration) -> Result<Zeroizing<Vec<u8>>, EnvelopeError> {
    let program = argv.first().cloned().unwrap_or_default();
    let failed = |why: String| EnvelopeError::Command { program: program.clone(), why };
    match timeout(limit, left_by(argv, input)).await {
        Ok(Ok(left)) => key_of(left).map_err(failed),
        Ok(Err(error)) => Err(failed(format!("{error}; expected a program that this user may run"))),
        Err(_) => Err(failed(format!("it has not ended within {limit:?}; run it by hand: does it ask for something?"))),
    }
}

/// The key, if it is one.
fn key_of(left: Left) -> Result<Zeroizing<Vec<u8>>, String> {
    if !left.status.success() {
        let words = shown(String::from_utf8_lossy(&left.words).trim());
        let words = if words.is_empty() { "without a word".to_string() } else { format!("and said: {words}") };
        return Err(format!("it ended with {} {words}", left.status));
    }
    match left.printed.len() {
        0 => Err("it printed nothing, expected the key: 32 bytes or 64 hex digits".into()),
        len if len > OUTPUT_BYTES_MAX => {
            Err(format!("it printed more than {OUTPUT_BYTES_MAX} bytes, expected the key: 32 bytes or 64 hex digits"))
        }
        _ => Ok(left.printed),
    }
}

async fn left_by(argv: &[String], input: &[u8]) -> io::Result<Left> {
    let (program, arguments) = argv.split_first().ok_or(io::ErrorKind::NotFound)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn()?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let give = async move {
        if let Some(mut stdin) = stdin {
            // A program may end without reading: its status says how it went.
            let _ = stdin.write_all(input).await;
        }
    };
    let (mut printed, mut words) = (Taken::new(OUTPUT_BYTES_MAX + 1), Taken::new(WORDS_BYTES_MAX));
    let status = {
        let piped = async { tokio::join!(give, printed.first(stdout), words.all(stderr)) };
        tokio::pin!(piped);
        tokio::select! {
            ((), first, all) = &mut piped => {
                first.and(all)?;
                child.wait().await?
            }
            status = child.wait() => {
                // All that it has printed is in the pipes. Their end comes only when nobody has them open any more.
                if let Ok(((), first, all)) = timeout(LEFT_OPEN, &mut piped).await {
                    first.and(all)?;
                }
                status?
            }
        }
    };
    Ok(Left { status, printed: printed.bytes(), words: words.bytes() })
}

/// The first bytes from a pipe.
struct Taken {
    /// As long as they may be: a buffer that grows leaves copies behind.
    bytes: Zeroizing<Vec<u8>>,
    len: usize,
}

impl Taken {
    fn new(bytes_max: usize) -> Self {
        Self { bytes: Zeroizing::new(vec![0; bytes_max]), len: 0 }
    }

    /// Reads to the end, or until it is full. The pipe is closed then: the kernel tells a program that prints more.
    async fn first(&mut self, from: Option<impl AsyncRead + Unpin>) -> io::Result<()> {
        let Some(mut from) = from else { return Ok(()) };
        self.fill(&mut from).await
    }

    /// Reads to the end, and drops what has no place: a program may have many words, and end well.
    async fn all(&mut self, from: Option<impl AsyncRead + Unpin>) -> io::Result<()> {
        let Some(mut from) = from else { return Ok(()) };
        self.fill(&mut from).await?;
        tokio::io::copy(&mut from, &mut tokio::io::sink()).await.map(drop)
    }

    async fn fill(&mut self, from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
        while self.len < self.bytes.len() {
            let read = from.read(&mut self.bytes[self.len..]).await?;
            if read == 0 {
                break;
            }
            self.len += read;
        }
        Ok(())
    }

    fn bytes(mut self) -> Zeroizing<Vec<u8>> {
        self.bytes.truncate(self.len);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer than any program here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn sh(script: &str, input: &[u8], limit: Duration) -> Result<Vec<u8>, String> {
        let argv = ["/bin/sh", "-c", script].map(String::from);
        run(&argv, input, limit).await.map(|key| key.to_vec()).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn what_a_program_prints_is_the_key() {
        assert_eq!(sh("cat", &[7; 32], PATIENCE).await, Ok(vec![7; 32]));
        // It need not read the envelope.
        let printed = sh("printf 5a5a", &[7; 60_000], PATIENCE).await;
        assert_eq!(printed, Ok(b"5a5a".to_vec()));
        // Many words are no fault.
        let printed = sh("i=0; while [ $i -lt 20000 ]; do echo words >&2; i=$((i+1)); done; printf 5a", b"", PATIENCE);
        assert_eq!(printed.await, Ok(b"5a".to_vec()));
        // Its arguments are passed on as they are: no shell is between.
        let argv = ["/bin/echo", "-n", "a  b $HOME"].map(String::from);
        let key = run(&argv, b"", PATIENCE).await.expect("printed");
        assert_eq!(key.as_slice(), b"a  b $HOME");
    }

    /// As `gpg` starts its agent.
    #[tokio::test]
    async fn a_daemon_that_a_program_leaves_behind_is_not_waited_for() {
        let dir = tempfile::tempdir().expect("a directory");
        let pipe = dir.path().join("pipe").display().to_string();
        let argv = ["/bin/sh", "-c", "mkfifo \"$0\"; cat \"$0\" & printf 5a5a", pipe.as_str()].map(String::from);
        let key = run(&argv, b"", Duration::from_secs(10)).await;
        // The daemon ends when somebody has opened its pipe and closed it.
        drop(std::fs::OpenOptions::new().write(true).open(&pipe).expect("the daemon reads"));
        assert_eq!(key.expect("printed").as_slice(), b"5a5a");
    }

    /// ENVELOPE-V2 and ENVELOPE-V3.
    #[tokio::test]
    async fn a_program_is_bounded_and_told_of_without_the_key() {
        for (script, expected) in [
            ("printf secret; echo locked >&2; exit 3", "exit status: 3 and said: locked"),
            ("printf secret; exit 1", "exit status: 1 without a word"),
            ("true", "it printed nothing"),
            ("head -c 1025 /dev/zero | tr '\\0' s", "it printed more than 1024 bytes"),
            ("while :; do echo secret; done", "it ended with signal"),
        ] {
            let told = sh(script, b"", PATIENCE).await.expect_err(script);
            assert!(told.starts_with("key.command /bin/sh: ") && told.contains(expected), "{script}: {told}");
            assert!(!told.contains("secret"), "{told}");
        }
        let told = sh("exec sleep 600", b"", Duration::from_millis(50)).await.expect_err("killed");
        assert!(told.contains("it has not ended within 50ms"), "{told}");
        let missing = run(&["/nonexistent/program".to_string()], b"", PATIENCE).await.expect_err("missing").to_string();
        assert!(missing.contains("No such file"), "{missing}");
    }
}
