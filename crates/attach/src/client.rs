//! The device's side: an NBD server on the volume's Unix socket.
//!
//! CLIENT-F1  Nothing is read from a client while its volume has no room (back-pressure), or while it does not take its
//!     answers.
//! CLIENT-F2  When a client leaves, its unanswered reads are dropped. Its unanswered writes are still carried out.
//! CLIENT-F3  A client is answered with an error only for a wrong request, or once the set is fenced (R8).
//! CLIENT-F4  Once a client has closed its connection, no request that changes data is taken in, whether or not it
//!     waited for room, nor any request behind it. The kernel's driver sends them again on another socket, and the
//!     retry may be answered by now. The driver closes the first socket before it sends again: the look at the socket
//!     is under the machine's lock, and so a retry is always behind what was taken in. A client that closes only its
//!     sending side counts as one that has closed: drivers do not do that.
//! CLIENT-F5  After NBD_CMD_DISC everything before it is answered, also if the client then closes its sending side, as
//!     libnbd does (CONN-C8 of the gateway's side).

use crate::client_replies::ClientReplies;
use crate::machine::{Action, Intake, Ticket};
use crate::outbox::Outbox;
use crate::shared::Shared;
use bytes::{Bytes, BytesMut};
use holdfast_host::sockets::left_by_client;
use holdfast_nbd::client::CommandOut;
use holdfast_nbd::server::{
    Command, Decoded, ExportFacts, Handshake, Negotiated, Question, RefusalReason, ReplyTo, Request, RequestDecoder,
    Step, TlsMode,
};
use holdfast_nbd::{ExportName, HeaderStyle};
use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Time limit for a client's handshake.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// A client with more unsent answers than this is not read from.
pub(crate) const BACKLOG_BYTES_MAX: usize = 32 << 20;
/// Requests are read in pieces of this size.
const READ_BYTES: usize = 256 << 10;
/// With less room than this, a new piece is allocated.
const READ_ROOM_MIN: usize = 16 << 10;
/// Shorter payloads are copied, so that they do not keep a whole piece alive.
const COPY_BYTES_MAX: usize = 32 << 10;
/// Maximum number of clients of one volume. Beyond the volume's bounds each holds the one request that it waits with:
/// at most REQUEST_BYTES_MAX, and what was read behind it.
pub(crate) const CLIENTS_MAX: usize = 64;

/// The reading side of a client's connection.
pub(crate) trait Client: AsyncRead + Unpin {
    /// [`left_by_client`].
    fn left(&self) -> Option<Vec<u8>>;

    /// Returns once the client sends nothing more, even if bytes are left to read.
    fn ended(&mut self) -> impl Future<Output = ()> + Send;
}

impl Client for OwnedReadHalf {
    fn left(&self) -> Option<Vec<u8>> {
        let socket: &UnixStream = self.as_ref();
        left_by_client(socket)
    }

    async fn ended(&mut self) {
        // No byte is ever sent with priority: this wakes at the end only, while bytes are left to read too.
        let _ = self.ready(Interest::PRIORITY).await;
    }
}

/// A client without a socket. It says itself when it has ended.
pub(crate) struct Given {
    pub(crate) read: Box<dyn AsyncRead + Send + Unpin>,
    pub(crate) ended: CancellationToken,
}

impl AsyncRead for Given {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.read).poll_read(cx, buf)
    }
}

impl Client for Given {
    /// What is left in a connection of this kind cannot be looked at.
    fn left(&self) -> Option<Vec<u8>> {
        self.ended.is_cancelled().then(Vec::new)
    }

    async fn ended(&mut self) {
        self.ended.cancelled().await;
    }
}

/// A client from its first byte to its end.
pub(crate) async fn serve(
    (mut read, mut write): (impl Client, impl AsyncWrite + Unpin),
    volume: usize,
    shared: Arc<Shared>,
) {
    let volume_facts = shared.facts(volume);
    let export = ExportName::plain(shared.set.clone(), volume_facts.name.clone());
    let facts = ExportFacts { size: volume_facts.size, read_only: false, description: format!("set {}", shared.set) };
    let shaking = shake_hands(&mut read, &mut write, &export, &facts);
    let ready = match tokio::time::timeout(HANDSHAKE_TIMEOUT, shaking).await {
        Ok(Ok(Some(ready))) => ready,
        Ok(Ok(None)) => return,
        Ok(Err(error)) => return tracing::info!(volume, error, "a client's handshake failed"),
        Err(_) => return tracing::info!(volume, "a client's handshake took too long"),
    };
    carry(read, write, volume, shared, ready.0, ready.1).await;
}

/// The handshake of a socket that serves one export.
pub(crate) async fn shake_hands(
    read: &mut (impl AsyncRead + Unpin),
    write: &mut (impl AsyncWrite + Unpin),
    export: &ExportName,
    facts: &ExportFacts,
) -> Result<Option<(Negotiated, BytesMut)>, String> {
    let text = |error: io::Error| error.to_string();
    let mut handshake = Handshake::new(TlsMode::Off);
    let mut input = BytesMut::with_capacity(READ_BYTES);
    let mut out = BytesMut::from(&Handshake::greeting()[..]);
    loop {
        let step = handshake.step(&mut input, &mut out).map_err(|error| error.to_string())?;
        write.write_all_buf(&mut out).await.map_err(text)?;
        match step {
            // A socket without TLS never asks for it.
            Step::Aborted | Step::StartTls => return Ok(None),
            Step::NeedBytes => {
                if read.read_buf(&mut input).await.map_err(text)? == 0 {
                    return Ok(None);
                }
            }
            Step::Ask(Question::List) => handshake.answer_list([(export.to_wire().as_str(), "")], &mut out),
            Step::Ask(Question::Describe(name) | Question::Open(name)) => {
                let refusal = format!("this socket is for {export}");
                let known = name == *export;
                let answer = if known { Ok(facts) } else { Err((RefusalReason::Unknown, refusal.as_str())) };
                let negotiated = handshake.answer_export(answer, &mut out).map_err(|error| error.to_string())?;
                if let Some(negotiated) = negotiated {
                    write.write_all_buf(&mut out).await.map_err(text)?;
                    return Ok(Some((negotiated, input)));
                }
            }
        }
    }
}

/// The transmission phase, also for sockets of the kernel's driver, which skip the handshake.
pub(crate) async fn transmit(
    socket: UnixStream,
    volume: usize,
    shared: Arc<Shared>,
    negotiated: Negotiated,
    input: BytesMut,
) {
    let (read, write) = socket.into_split();
    carry(read, write, volume, shared, negotiated, input).await;
}

async fn carry(
    mut read: impl Client,
    mut write: impl AsyncWrite + Unpin,
    volume: usize,
    shared: Arc<Shared>,
    negotiated: Negotiated,
    input: BytesMut,
) {
    let room = shared.room(volume);
    let replies = Arc::new(Outbox::new(ClientReplies::new(negotiated.style)));
    let id = shared.join(replies.clone());
    let reader = Reader { id, volume, shared: &shared, replies: &replies, room, style: negotiated.style };
    let reading = async {
        let ended = reader.run(&mut read, negotiated, input).await;
        replies.with(|replies| replies.leaving = true);
        match ended {
            // It sent NBD_CMD_DISC and waits for its answers.
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    let writing = poll_fn(|cx| poll_writing(cx, &replies, &mut write, reader.room.as_ref()));
    let ended = tokio::select! {
        why = reading => why,
        sent = writing => sent.err().map_or("it left".to_string(), |error| error.to_string()),
    };
    shared.leave(id);
    tracing::debug!(client = id, volume, why = ended, "a client is gone");
}

/// Sends answers as fast as the client takes them, and resumes reading once it has taken enough.
fn poll_writing(
    cx: &mut Context<'_>,
    replies: &Outbox<ClientReplies>,
    socket: &mut (impl AsyncWrite + Unpin),
    room: &Notify,
) -> Poll<io::Result<()>> {
    let sent = replies.poll_send(cx, socket);
    // `look`, not `with`: while answers are left, `with` would wake this very task, again and again.
    if replies.look(|replies| replies.queue.len() < BACKLOG_BYTES_MAX && std::mem::take(&mut replies.clogged)) {
        room.notify_waiters();
    }
    sent
}

/// Makes room for at least `more` bytes, in pieces large enough for a read.
pub(crate) fn grow(input: &mut BytesMut, more: usize) {
    if input.capacity() - input.len() < more.clamp(1, READ_ROOM_MIN) {
        input.reserve(READ_BYTES.max(more));
    } else if more > input.capacity() - input.len() {
        input.reserve(more);
    }
}

/// Requests of a client that were read and not taken yet.
pub(crate) struct Unread {
    pub(crate) decoder: RequestDecoder,
    pub(crate) input: BytesMut,
    /// NBD_CMD_DISC lies behind the requests that wait (CLIENT-F5).
    leaves: bool,
}

impl Unread {
    /// `input` was read behind the handshake.
    pub(crate) fn new(negotiated: Negotiated, input: BytesMut) -> Self {
        Self { decoder: RequestDecoder::new(negotiated.style, negotiated.allocation), input, leaves: false }
    }

    /// An error if the client has closed its side of the connection, and did not disconnect before (CLIENT-F4).
    pub(crate) fn look_for_end(&mut self, socket: &impl Client) -> Result<(), String> {
        if self.leaves {
            return Ok(());
        }
        socket.left().map_or(Ok(()), |left| self.end(&left))
    }

    /// `left`: the last bytes of a client that sends nothing more.
    fn end(&mut self, left: &[u8]) -> Result<(), String> {
        self.leaves = self.decoder.ends_with_disconnect(&self.input, left);
        if self.leaves {
            return Ok(());
        }
        Err("it closed the connection, and what was not taken in is dropped".to_string())
    }
}

struct Reader<'a> {
    id: u64,
    volume: usize,
    shared: &'a Shared,
    replies: &'a Outbox<ClientReplies>,
    room: Arc<Notify>,
    style: HeaderStyle,
}

impl Reader<'_> {
    /// Reads requests until the client sends NBD_CMD_DISC.
    async fn run(&self, socket: &mut impl Client, negotiated: Negotiated, input: BytesMut) -> Result<(), String> {
        let mut unread = Unread::new(negotiated, input);
        loop {
            match unread.decoder.next(&mut unread.input).map_err(|error| error.to_string())? {
                Decoded::Request(request) if request.command == Command::Disconnect => return Ok(()),
                Decoded::Request(request) => {
                    self.wait_for_room(socket, &mut unread).await?;
                    self.take(request, || unread.look_for_end(socket))?;
                }
                Decoded::Need(more) => {
                    grow(&mut unread.input, more);
                    if socket.read_buf(&mut unread.input).await.map_err(|error| error.to_string())? == 0 {
                        return Err("it closed the connection".to_string());
                    }
                }
            }
        }
    }

    /// CLIENT-F1, CLIENT-F5. A client that is gone is not waited for.
    async fn wait_for_room(&self, socket: &mut impl Client, unread: &mut Unread) -> Result<(), String> {
        loop {
            let notified = self.room.notified();
            tokio::pin!(notified);
            // Registered before the check, so that room that becomes free in between is not missed.
            notified.as_mut().enable();
            let clogged = self.replies.with(|replies| {
                replies.clogged = replies.queue.len() >= BACKLOG_BYTES_MAX;
                replies.clogged
            });
            if !clogged && self.shared.has_room(self.volume) {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = socket.ended(), if !unread.leaves => unread.end(&socket.left().unwrap_or_default())?,
                () = notified => {}
            }
        }
    }

    /// `look_for_end`: whether the client still has its connection (CLIENT-F4).
    fn take(&self, request: Request, look_for_end: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let to = ReplyTo { cookie: request.cookie, offset: request.offset, is_read: request.is_read };
        // With the present size: the volume may have grown since the client connected (GROWTH-G1).
        if let Err(errno) = request.check(self.shared.size(self.volume), false, self.style) {
            self.replies.with(|replies| replies.queue.error(to, errno));
            return Ok(());
        }
        let Request { offset, len, command, .. } = request;
        let mut payload = Bytes::new();
        let mut narrow = false;
        let command = match command {
            Command::Flush => CommandOut::Flush,
            // Every device can do nothing.
            _ if len == 0 => {
                self.replies.with(|replies| replies.queue.ok(to));
                return Ok(());
            }
            Command::Read { unfragmented } => {
                narrow = unfragmented;
                CommandOut::Read { unfragmented: false }
            }
            Command::Write { data, fua } => {
                payload = if data.len() < COPY_BYTES_MAX { Bytes::copy_from_slice(&data) } else { data };
                CommandOut::Write { fua }
            }
            Command::Zero { punch, fast, fua } => CommandOut::Zero { punch, fast, fua },
            Command::Trim { fua } => CommandOut::Trim { fua },
            Command::Cache => CommandOut::Cache,
            Command::BlockStatus { one } => {
                narrow = one;
                CommandOut::BlockStatus { one }
            }
            // Neither arrives here: the first ends the reader, the second never passes its check.
            Command::Disconnect | Command::Bad(_) => return Ok(()),
        };
        self.replies.with(|replies| replies.open += 1);
        let ticket = Ticket { client: self.id, to, narrow, len };
        let intake = Intake { ticket, offset, command, data: payload };
        let mut client = Ok(());
        self.shared.act(|machine, now, out: &mut Vec<Action>| {
            if intake.changes() {
                client = look_for_end();
            }
            if client.is_ok() {
                machine.request(now, self.volume, intake, out);
            }
        });
        client
    }
}

#[cfg(test)]
#[path = "client_tests.rs"]
mod tests;
