//! The receiving side of append streams: one task for each connection reads requests, hands them to the group, and
//! writes the answers. Rules: `append_frames`.

use crate::admitted::{Admitted, Known};
use crate::append_frames::{self as frames, Body, Frame, FrameError, Received};
use crate::appender::{Appender, Taken};
use crate::config::TypeConfig;
use crate::newest_stream::Turn;
use crate::node::RaftNode;
use crate::server::{Handler, bad};
use bytes::BytesMut;
use futures_util::future::BoxFuture;
use futures_util::{Stream, StreamExt};
use holdfast_log::NodeLog;
use holdfast_types::MemberId;
use holdfast_types::limits::APPEND_BYTES_MAX;
use openraft::raft::AppendEntriesRequest;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

/// Appends are accepted while at most this much waits for the disk, over all groups. This limits the memory of a
/// follower that catches up, in addition to one message of each stream. [`REQUESTS_MAX`] messages of up to
/// [`APPEND_BYTES_MAX`] would be accepted for each group otherwise.
const QUEUE_BYTES_MAX: u64 = 4 * APPEND_BYTES_MAX as u64;

/// Requests of a stream that were handed to its group and have no answer yet, at most. What more comes waits in the
/// socket.
const REQUESTS_MAX: usize = 64;

/// How long a refused sender may take to read why. Otherwise the kernel would drop the reason with what was not read.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes of one read of what is not looked at.
const DRAINED_BYTES: usize = 16 << 10;

/// `input`, of which what `is_append` says is slowed down to the speed of the journal's disk.
fn paced<S: Stream>(input: S, log: NodeLog, is_append: fn(&S::Item) -> bool) -> impl Stream<Item = S::Item> {
    input.then(move |item| {
        let log = log.clone();
        async move {
            if is_append(&item) {
                log.queue_at_most(QUEUE_BYTES_MAX).await;
            }
            item
        }
    })
}

fn is_append(frame: &Result<Frame, End>) -> bool {
    matches!(frame, Ok(Frame { body: Body::Append { .. }, .. }))
}

/// Why a connection ends.
enum End {
    /// The sender has closed it, or it broke.
    Gone(String),
    /// This side ends it, and says why.
    Refused(Status),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        End::Gone(error.to_string())
    }
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        End::Refused(status)
    }
}

/// Reads frames.
struct Reader<C> {
    connection: ReadHalf<C>,
    received: Received,
    /// This side ends the connection: no frame is expected of what still comes.
    refused: bool,
}

impl<C: AsyncRead> Reader<C> {
    /// The next frame; `None` if the connection ended before it began.
    async fn next(&mut self) -> Result<Option<Frame>, End> {
        let garbage = |error: FrameError| End::Refused(bad(error));
        loop {
            if let Some(frame) = self.received.next().map_err(garbage)? {
                return Ok(Some(frame));
            }
            let room = self.received.room();
            let before = room.len();
            if self.connection.read_buf(room).await? > 0 {
                continue;
            }
            if self.received.is_empty() {
                return Ok(None);
            }
            return Err(End::Gone(FrameError::Truncated { found: before }.to_string()));
        }
    }

    fn frames(self) -> impl Stream<Item = Result<Frame, End>> {
        futures_util::stream::unfold(Some(self), |reader| async move {
            let mut reader = reader?;
            if reader.refused {
                reader.drain().await;
                return None;
            }
            match reader.next().await {
                Ok(Some(frame)) => Some((Ok(frame), Some(reader))),
                Ok(None) => None,
                Err(end) => {
                    reader.refused = matches!(end, End::Refused(_));
                    Some((Err(end), Some(reader)))
                }
            }
        })
    }

    /// Reads until the sender ends the connection. What is not read would make the kernel drop the reason.
    async fn drain(&mut self) {
        let mut unused = vec![0; DRAINED_BYTES];
        while matches!(self.connection.read(&mut unused).await, Ok(1..)) {}
    }
}

/// The stream that a connection carries at present.
struct Current {
    /// On this connection.
    number: u32,
    appender: Appender,
    turn: Turn,
    /// Number of its last request.
    last: u64,
    /// An answer other than `matched` was given: what comes after is not looked at.
    over: bool,
}

impl Current {
    fn superseded(&self) -> String {
        format!("a newer append stream of {} has begun for {}", self.appender.from, self.appender.group.id())
    }
}

/// Waits until a newer stream of the same sender has begun.
async fn over(turn: Option<Turn>) {
    match turn {
        Some(turn) => turn.over().await,
        None => std::future::pending().await,
    }
}

/// A request that was handed to the group.
struct Waiting {
    stream: u32,
    number: u64,
    answer: Taken,
}

/// One connection.
struct Connection {
    handler: Handler,
    /// Why its peer may send nothing.
    may_append: Result<(), String>,
    /// Until its first stream has begun.
    known: Option<Known>,
    current: Option<Current>,
    waiting: VecDeque<Waiting>,
    /// Bytes to be written.
    out: BytesMut,
}

/// A connection of any kind.
pub(crate) trait AnyConnection: AsyncRead + AsyncWrite + Unpin + Send {}

impl<C: AsyncRead + AsyncWrite + Unpin + Send> AnyConnection for C {}

/// Like [`serve`], for connections of every kind: its code, which is on the path of each write, is generated once, and
/// in this crate.
pub(crate) fn serve_boxed(
    node: RaftNode,
    admitted: Admitted<Box<dyn AnyConnection>>,
    first: BytesMut,
) -> BoxFuture<'static, ()> {
    Box::pin(serve(node, admitted, first))
}

/// Serves an accepted connection until it ends. `first`: what was read of it.
pub(crate) async fn serve<C>(node: RaftNode, admitted: Admitted<C>, first: BytesMut)
where
    C: AsyncRead + AsyncWrite + Send,
{
    let Admitted { connection, may_append, known, refused } = admitted;
    let log = node.log().clone();
    let (read, mut write) = tokio::io::split(connection);
    let reader = Reader { connection: read, received: Received::from_sender(first), refused: false };
    let mut requests = std::pin::pin!(paced(reader.frames(), log, is_append));
    let mut served = Connection {
        handler: Handler::new(node),
        may_append,
        known: Some(known),
        current: None,
        waiting: VecDeque::new(),
        out: BytesMut::new(),
    };
    let end = loop {
        if let Err(end) = served.step(requests.as_mut(), &mut write).await {
            break end;
        }
    };
    let from = served.current.as_ref().map(|current| current.appender.from);
    match end {
        End::Gone(why) => tracing::debug!(?from, %why, "append connection ended"),
        End::Refused(status) => {
            if status.code() == Code::PermissionDenied {
                refused();
            }
            let why = status.message();
            if is_told(from, status.code()) {
                tracing::warn!(?from, %why, "append connection closed: invalid frame");
            } else {
                tracing::debug!(?from, %why, "append connection closed: its sender is refused");
            }
            let stream = served.current.as_ref().map_or(0, |current| current.number);
            // The sender may be gone.
            let _ = tokio::time::timeout(LINGER, served.part(stream, &status, &mut write, requests)).await;
        }
    }
}

/// Whether people are told that a connection ends: a member sends what is not understood. Strangers may send anything
/// as often as they like, and would fill the log.
fn is_told(from: Option<MemberId>, code: Code) -> bool {
    from.is_some() && code == Code::InvalidArgument
}

impl Connection {
    /// Whatever comes next: answers, or a frame.
    async fn step<S, C>(&mut self, mut requests: Pin<&mut S>, write: &mut WriteHalf<C>) -> Result<(), End>
    where
        S: Stream<Item = Result<Frame, End>>,
        C: AsyncWrite,
    {
        let room = self.waiting.len() < REQUESTS_MAX;
        let answers = !self.waiting.is_empty();
        let turn = self.current.as_ref().map(|current| current.turn.clone());
        let frame = tokio::select! {
            biased;
            answered = poll_fn(|context| self.poll_answers(context)), if answers => {
                let written = self.write(write).await;
                return answered.and(written);
            }
            frame = requests.next(), if room => frame,
            // FRAME-F3: also while a request waits for the disk. Nothing else is read then, not even the connection's
            // end, and it would keep its place.
            () = over(turn) => {
                let why = self.current.as_ref().map_or_else(String::new, Current::superseded);
                return Err(Status::aborted(why).into());
            }
        };
        let Some(frame) = frame else { return Err(End::Gone("closed by its sender".to_string())) };
        self.take(frame?).await?;
        self.write(write).await
    }

    async fn write<C: AsyncWrite>(&mut self, write: &mut WriteHalf<C>) -> Result<(), End> {
        if self.out.is_empty() {
            return Ok(());
        }
        write.write_all(&self.out).await?;
        write.flush().await?;
        self.out.clear();
        Ok(())
    }

    /// Adds the answers that are there, in the order of their requests. Pending if the oldest is not.
    fn poll_answers(&mut self, context: &mut Context<'_>) -> Poll<Result<(), End>> {
        let mut any = false;
        while let Some(oldest) = self.waiting.front_mut() {
            let Poll::Ready(result) = oldest.answer.as_mut().poll(context) else { break };
            let (stream, number) = (oldest.stream, oldest.number);
            self.waiting.pop_front();
            let result = match result {
                Ok(result) => result,
                Err(status) => return Poll::Ready(Err(End::Refused(status))),
            };
            frames::answer(&mut self.out, stream, number, &result);
            any = true;
            if result.is_err() {
                self.waiting.clear();
                if let Some(current) = &mut self.current {
                    current.over = true;
                }
            }
        }
        if any { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    async fn take(&mut self, frame: Frame) -> Result<(), End> {
        match frame.body {
            Body::Open(meta) => self.open(frame.stream, &meta),
            Body::Append { number, request } => self.append(frame.stream, number, request).await,
            Body::Ping => {
                self.out.extend_from_slice(&frames::pong(frame.stream));
                Ok(())
            }
            other => Err(bad(format!("found a frame {}, expected one of a sender", other.name())).into()),
        }
    }

    /// FRAME-F4: the same checks as of every call.
    fn open(&mut self, number: u32, meta: &MetadataMap) -> Result<(), End> {
        self.may_append.clone().map_err(Status::permission_denied)?;
        if !self.waiting.is_empty() || self.current.as_ref().is_some_and(|current| number <= current.number) {
            let why = format!("stream {number}: found requests of the stream before it, expected none");
            return Err(bad(why).into());
        }
        let (group, from) = self.handler.group(meta)?;
        if let Some(known) = self.known.take() {
            known();
        }
        let turn = group.newest_streams.begin(from);
        let appender = Appender { node: self.handler.node().clone(), group, from };
        self.current = Some(Current { number, appender, turn, last: 0, over: false });
        let mut ours = MetadataMap::new();
        self.handler.node().channels().stamp(&mut ours);
        self.out.extend_from_slice(&frames::welcome(number, &ours));
        Ok(())
    }

    async fn append(&mut self, stream: u32, number: u64, request: AppendEntriesRequest<TypeConfig>) -> Result<(), End> {
        let current = self.current.as_mut().filter(|current| current.number == stream && number == current.last + 1);
        let Some(current) = current else {
            let why = format!("append {number} of stream {stream}: expected the one after the last");
            return Err(bad(why).into());
        };
        current.last = number;
        if current.over {
            return Ok(());
        }
        let (from, group) = (current.appender.from, current.appender.group.id());
        let mut answer = current.appender.take(request).inspect_err(|_| {
            holdfast_reached::reached!("readmission: an append stream of a leader before the removal");
            tracing::warn!(%from, %group, "append of a term before this member was removed; stream closed (QUARANTINE-Q4)");
        })?;
        // The first poll puts it in the group's queue, so requests reach the group in their order. Not limited by the
        // budget of the task: that would put them there later, and in another order.
        let turn = &current.turn;
        let hand_over = poll_fn(|context| Poll::Ready(turn.unless_over(|| answer.as_mut().poll(context))));
        let handed_over = tokio::task::coop::unconstrained(hand_over).await;
        match handed_over {
            Some(Poll::Pending) => {}
            Some(Poll::Ready(result)) => answer = Box::pin(std::future::ready(result)),
            None => {
                return Err(Status::aborted(current.superseded()).into());
            }
        }
        self.waiting.push_back(Waiting { stream, number, answer });
        Ok(())
    }

    /// Says why the connection ends, and waits until the sender has read it: it ends the connection then.
    async fn part<S, C>(&mut self, stream: u32, status: &Status, write: &mut WriteHalf<C>, mut requests: Pin<&mut S>)
    where
        S: Stream<Item = Result<Frame, End>>,
        C: AsyncWrite,
    {
        self.out.extend_from_slice(&frames::refused(stream, status));
        if self.write(write).await.is_err() || write.shutdown().await.is_err() {
            return;
        }
        // After bytes that are no frame, the next call reads the rest.
        while let Some(Ok(_)) = requests.next().await {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::append_frames::PREFACE;
    use crate::group_tests::Host;
    use bytes::Bytes;
    use futures_util::FutureExt;
    use holdfast_log::{Entry, Identity, LogConfig, RealDisk};
    use holdfast_types::{GroupId, LogId};

    #[test]
    fn garbage_of_strangers_fills_no_log() {
        let member = Some(MemberId(2));
        assert!(is_told(member, Code::InvalidArgument));
        assert!(!is_told(None, Code::InvalidArgument));
        assert!(!is_told(member, Code::Aborted) && !is_told(None, Code::PermissionDenied));
    }

    /// A sender that goes on after its garbage learns what was wrong.
    #[tokio::test]
    async fn what_comes_after_garbage_is_read_and_its_sender_told_why() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let node = Host::node(dir.path(), 1)?;
        let (mut near, far) = tokio::io::duplex(4 << 10);
        let serving = tokio::spawn(serve(node.clone(), Admitted::new(far, Ok(())), BytesMut::new()));
        near.write_all(&[&PREFACE[..], &[0xff; 40 << 10]].concat()).await?;
        near.shutdown().await?;
        let mut received = Received::from_receiver();
        while near.read_buf(received.room()).await? > 0 {}
        let told = received.next()?;
        let Some(Frame { body: Body::Refused(why), .. }) = told else { anyhow::bail!("{told:?}") };
        assert_eq!(why.message(), "frame: found kind 255, expected 1 first");
        serving.await?;
        node.stop().await;
        Ok(())
    }

    /// While the disk does not respond, a follower that catches up accepts only a limited amount of appends.
    #[tokio::test]
    async fn appends_are_taken_in_no_faster_than_the_disk_takes_them() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file_bytes, bound_bytes, reserve_bytes) = (64 << 20, 512 << 20, 128 << 20);
        let config = LogConfig { file_bytes, bound_bytes, reserve_bytes, ..LogConfig::new(dir.path()) };
        let disk = RealDisk::open(dir.path(), file_bytes, 4).expect("opens");
        let (log, _, mut turns) = NodeLog::open_in_turns(disk, config, Identity::default(), None).expect("opens");
        let group = log.group(GroupId(7));
        let mut input = std::pin::pin!(paced(futures_util::stream::iter(0..60_u64), log.clone(), |_| true));
        let (mut index, mut waiting, message) = (0, 0, 1 << 20);
        while index < 60 {
            match input.next().now_or_never() {
                Some(item) => {
                    let id = LogId::new(1, item.expect("one of 60"));
                    group.append(vec![Entry { id, payload: Bytes::from(vec![7; message]) }], |done| {
                        done.expect("durable");
                    });
                    (index, waiting) = (index + 1, waiting + message as u64);
                }
                None => {
                    turns.turn(false);
                    waiting = 0;
                }
            }
            assert!(waiting <= QUEUE_BYTES_MAX + 2 * message as u64, "{waiting} bytes wait for the disk");
        }
    }
}
