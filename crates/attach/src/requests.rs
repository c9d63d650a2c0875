//! One connection to one export, for a caller that waits for each answer: import and export of volumes. No replay:
//! after the end of a connection, the caller repeats unanswered requests.

use crate::lane::{self, Connected, Line, Wire};
use crate::machine::{Lane, Reply};
use crate::outbox::Outbox;
use crate::seams::{Halves, over_tcp};
use bytes::Bytes;
use holdfast_nbd::client::{CommandOut, RequestOut};
pub use holdfast_nbd::server::ReadPart;
pub use holdfast_nbd::{Errno, ExportName, Extent, Session, SnapshotExport};
use holdfast_tls::Connector;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// If requests are waiting and nothing is answered for this long, the gateway counts as stopped or cut off. Longer than
/// a takeover and than most waits for a store; a gateway that is only slow also answers on the next connection.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// Not one of an attached set's.
const ALONE: Lane = Lane { incarnation: 0, volume: 0, slot: 0 };

/// A request without an answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The gateway refused it as invalid, or another owner holds the set.
    #[error("the gateway answered {0:?}")]
    Refused(Errno),
    /// The connection could not be made, or ended first: the outcome of the request is unknown (R12).
    #[error("{0}")]
    Lost(String),
}

type Answer = Result<Reply, RequestError>;

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    answers: BTreeMap<u64, oneshot::Sender<Answer>>,
    /// Reason for the end of the connection.
    ended: Option<String>,
    heard: Option<Instant>,
}

/// An open connection. Dropping every handle closes it.
#[derive(Debug)]
pub struct Requests {
    line: Arc<Outbox<Line>>,
    waiting: Arc<Mutex<Waiting>>,
    size: u64,
    task: tokio::task::JoinHandle<()>,
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.locked()
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Requests {
    /// Connects to the export `name` at `nbd`, HOST:PORT; with `tls` through TLS or not at all.
    ///
    /// # Errors
    /// [`RequestError::Lost`] with the obstacle.
    pub async fn connect(nbd: &str, name: &ExportName, tls: Option<&Connector>) -> Result<Self, RequestError> {
        let connected = lane::connect(&over_tcp(), ALONE, nbd, name, tls).await;
        let connected = connected.map_err(|e| RequestError::Lost(format!("{nbd}: {e}")))?;
        Ok(Self::begin(connected, Some(SILENCE_MAX)))
    }

    /// Over an existing connection: to an attached set's device, whose silence is no loss, however long (R8).
    ///
    /// # Errors
    /// [`RequestError::Lost`] with the obstacle.
    pub async fn over(halves: Halves, name: &ExportName) -> Result<Self, RequestError> {
        let connected = lane::shake_hands(ALONE, halves, name, None).await;
        Ok(Self::begin(connected.map_err(|e| RequestError::Lost(e.to_string()))?, None))
    }

    fn begin(connected: Connected, patience: Option<Duration>) -> Self {
        let size = connected.size;
        let (line, wire) = connected.split();
        let (line, waiting) = (Arc::new(line), Arc::new(Mutex::new(Waiting::default())));
        let task = tokio::spawn(drive(line.clone(), wire, waiting.clone(), patience));
        Self { line, waiting, size, task }
    }

    /// The export's size in bytes when the connection was made.
    pub fn size(&self) -> u64 {
        self.size
    }

    async fn ask(&self, offset: u64, len: u64, command: CommandOut, data: Bytes) -> Answer {
        let (tx, rx) = oneshot::channel();
        {
            let mut waiting = lock(&self.waiting);
            if let Some(why) = &waiting.ended {
                return Err(RequestError::Lost(why.clone()));
            }
            waiting.next += 1;
            let cookie = waiting.next;
            if waiting.answers.is_empty() {
                waiting.heard = Some(Instant::now());
            }
            // Registered before it is sent, so that the answer finds its caller.
            waiting.answers.insert(cookie, tx);
            let request = RequestOut { cookie, offset, len, command };
            if let Err(errno) = self.line.with(|line| line.send(&request, data)) {
                waiting.answers.remove(&cookie);
                return Err(RequestError::Refused(errno));
            }
        }
        rx.await.unwrap_or_else(|_| Err(RequestError::Lost("the connection was closed".to_string())))
    }

    /// Reads `len` bytes: the parts in order, adding up to `len`.
    pub async fn read(&self, offset: u64, len: u32) -> Result<Vec<ReadPart>, RequestError> {
        match self.ask(offset, len.into(), CommandOut::Read { unfragmented: false }, Bytes::new()).await? {
            Reply::Read(parts) => Ok(parts),
            other => Err(RequestError::Lost(format!("an answer of another kind: {other:?}"))),
        }
    }

    /// Writes; answered once it is durable (R1).
    pub async fn write(&self, offset: u64, data: Bytes) -> Result<(), RequestError> {
        self.ask(offset, data.len() as u64, CommandOut::Write { fua: false }, data).await.map(|_| ())
    }

    /// Frees the space of `len` bytes; they read as zeroes afterwards. Durable as a write is (R1).
    pub async fn trim(&self, offset: u64, len: u32) -> Result<(), RequestError> {
        self.ask(offset, len.into(), CommandOut::Trim { fua: false }, Bytes::new()).await.map(|_| ())
    }

    /// Makes `len` bytes read as zeroes, and frees their space.
    pub async fn zero(&self, offset: u64, len: u32) -> Result<(), RequestError> {
        let command = CommandOut::Zero { punch: true, fast: false, fua: false };
        self.ask(offset, len.into(), command, Bytes::new()).await.map(|_| ())
    }

    /// Waits until all answered writes are durable.
    pub async fn flush(&self) -> Result<(), RequestError> {
        self.ask(0, 0, CommandOut::Flush, Bytes::new()).await.map(|_| ())
    }

    /// Allocated ranges, from `offset` on; may cover less than `len` bytes. Empty if the gateway does not report them.
    pub async fn block_status(&self, offset: u64, len: u32) -> Result<Vec<Extent>, RequestError> {
        match self.ask(offset, len.into(), CommandOut::BlockStatus { one: false }, Bytes::new()).await? {
            Reply::Status(extents) => Ok(extents),
            _ => Ok(Vec::new()),
        }
    }
}

async fn drive(line: Arc<Outbox<Line>>, wire: Wire, waiting: Arc<Mutex<Waiting>>, patience: Option<Duration>) {
    let heard = waiting.clone();
    let running = wire.run(&line, move |answers| {
        let mut waiting = lock(&heard);
        waiting.heard = Some(Instant::now());
        for (cookie, answer) in answers {
            if let Some(to) = waiting.answers.remove(&cookie) {
                // The caller may be gone.
                let _ = to.send(answer.map_err(RequestError::Refused));
            }
        }
    });
    let silent = async {
        let Some(patience) = patience else { return std::future::pending().await };
        loop {
            tokio::time::sleep(patience / 8).await;
            let waiting = lock(&waiting);
            let since = waiting.heard.filter(|_| !waiting.answers.is_empty());
            if since.is_some_and(|since| since.elapsed() > patience) {
                return;
            }
        }
    };
    let why = tokio::select! {
        error = running => error.to_string(),
        () = silent => format!("no answer within {SILENCE_MAX:?}"),
    };
    let mut waiting = lock(&waiting);
    waiting.ended = Some(why.clone());
    for (_, to) in std::mem::take(&mut waiting.answers) {
        let _ = to.send(Err(RequestError::Lost(why.clone())));
    }
}
