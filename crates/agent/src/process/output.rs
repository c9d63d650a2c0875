//! Output of a program on one pipe: read while it runs, and to the end once it has exited.

use holdfast_types::sync::LockExt;
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::oneshot;

/// Maximum number of bytes kept of a program's output.
pub const SAID_BYTES_MAX: usize = 16 << 10;

/// After a program's end, its output is read for this long: a program left in the background may keep the pipe open for
/// ever. Data that is in the pipe by then is read in any case.
pub(super) const AFTERWORDS: Duration = Duration::from_millis(100);

/// How long to wait for the reader of a program that has ended. It needs nothing but CPU time: only an overloaded
/// machine takes long.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// One pipe of a program, with the output so far.
pub(super) struct Said {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// Dropped when the program has ended.
    ended: oneshot::Sender<()>,
    /// Completes, or is dropped, once all of the program's output is in `bytes`.
    read: oneshot::Receiver<()>,
}

impl Said {
    /// Begins to read. Continues while any process has the other end open: a program left in the background must not be
    /// killed by a pipe without a reader.
    pub(super) fn of(pipe: Option<impl AsyncRead + AsFd + Unpin + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (ended, end) = oneshot::channel::<()>();
        let (done, read) = oneshot::channel();
        if let Some(pipe) = pipe {
            let over = async move {
                let _ = end.await;
                tokio::time::sleep(AFTERWORDS).await;
            };
            tokio::spawn(read_some(pipe, bytes.clone(), over, done));
        }
        Self { bytes, ended, read }
    }

    /// The whole output of a program that has ended or is not waited for any longer.
    pub(super) async fn whole(self) -> String {
        drop(self.ended);
        let _ = tokio::time::timeout(READ_WITHIN, self.read).await;
        let bytes = self.bytes.locked();
        String::from_utf8_lossy(&bytes).trim().to_string()
    }
}

/// Reads to the end of the pipe. Reports `done` at the end, or at `over` after it has read the data in the pipe.
async fn read_some(
    mut pipe: impl AsyncRead + AsFd + Unpin,
    into: Arc<Mutex<Vec<u8>>>,
    over: impl Future<Output = ()>,
    done: oneshot::Sender<()>,
) {
    let (mut over, mut done) = (pin!(over), Some(done));
    let mut buffer = [0_u8; 4096];
    loop {
        tokio::select! {
            // In this order, so that a background program that always writes does not delay the end.
            biased;
            () = &mut over, if done.is_some() => {
                drain(&pipe, &into);
                if let Some(done) = done.take() {
                    let _ = done.send(());
                }
            }
            read = pipe.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => keep(&into, &buffer[..count]),
            },
        }
    }
}

/// Reads the data that is in the pipe now, up to the limit. Asks the kernel, because the runtime's knowledge of the
/// pipe may be older. A program's output is in the pipe before it has ended, so nothing is missed. Does not block: the
/// runtime has made this end of the pipe non-blocking.
fn drain(pipe: &impl AsFd, into: &Mutex<Vec<u8>>) {
    let mut buffer = [0_u8; 4096];
    while into.locked().len() < SAID_BYTES_MAX {
        match rustix::io::retry_on_intr(|| rustix::io::read(pipe, &mut buffer[..])) {
            Ok(0) | Err(_) => return,
            Ok(count) => keep(into, &buffer[..count]),
        }
    }
}

fn keep(into: &Mutex<Vec<u8>>, bytes: &[u8]) {
    let mut said = into.locked();
    if said.len() < SAID_BYTES_MAX {
        said.extend_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::unix::pipe::pipe;

    /// The reader gets its first turn when the time for late output has passed, as on an overloaded machine. A
    /// background program has the pipe open, so that its end never comes.
    #[tokio::test]
    async fn last_words_are_read_however_late_their_reader_comes() {
        let (mut background, words) = pipe().unwrap();
        background.write_all(b"last words").await.unwrap();
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (done, read) = oneshot::channel();
        let reader = tokio::spawn(read_some(words, bytes.clone(), std::future::ready(()), done));
        read.await.unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes.lock().unwrap()), "last words");
        background.write_all(b" and more").await.unwrap();
        drop(background);
        reader.await.unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes.lock().unwrap()), "last words and more", "read on");
    }

    #[tokio::test]
    async fn no_more_is_taken_than_is_kept() {
        let (mut background, words) = pipe().unwrap();
        background.write_all(&vec![b'x'; SAID_BYTES_MAX + 4096]).await.unwrap();
        let bytes = Mutex::new(Vec::new());
        drain(&words, &bytes);
        assert_eq!(bytes.lock().unwrap().len(), SAID_BYTES_MAX);
        // There is nothing to read, and the program has not ended: it does not wait.
        let (_background, silent) = pipe().unwrap();
        let nothing = Mutex::new(Vec::new());
        drain(&silent, &nothing);
        assert!(nothing.lock().unwrap().is_empty());
    }
}
