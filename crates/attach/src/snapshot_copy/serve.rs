//! NBD server of a snapshot copy's volume, on its Unix socket.

use super::disk::Disk;
use crate::client::{self, BACKLOG_BYTES_MAX, CLIENTS_MAX, Client, HANDSHAKE_TIMEOUT, Unread, grow};
use crate::client_replies::ClientReplies;
use crate::machine::{Reply, Ticket};
use crate::outbox::Outbox;
use bytes::BytesMut;
use holdfast_nbd::server::{Command, Decoded, Negotiated, ReplyTo, Request};
use holdfast_nbd::{Errno, HeaderStyle};
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore};

/// Pause after a client could not be accepted (no more file descriptors).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Accepts clients for ever.
pub(super) async fn accept(listener: UnixListener, disk: Arc<Disk>) {
    let places = Arc::new(Semaphore::new(CLIENTS_MAX));
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                let Ok(place) = places.clone().try_acquire_owned() else {
                    tracing::warn!(volume = %disk.export.volume, "too many clients: one is closed");
                    continue;
                };
                let disk = disk.clone();
                tokio::spawn(async move {
                    serve(socket, &disk).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(volume = %disk.export.volume, %error, "cannot accept clients");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A client from its first byte to its end.
pub(super) async fn serve(socket: UnixStream, disk: &Arc<Disk>) {
    let (mut read, mut write) = socket.into_split();
    let facts = disk.facts();
    let shaking = client::shake_hands(&mut read, &mut write, &disk.export, &facts);
    let volume = &disk.export.volume;
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, shaking).await {
        Ok(Ok(Some((negotiated, input)))) => transmit((read, write), disk, negotiated, input).await,
        Ok(Ok(None)) => {}
        Ok(Err(error)) => tracing::info!(%volume, error, "a client's handshake failed"),
        Err(_) => tracing::info!(%volume, "a client's handshake took too long"),
    }
}

async fn transmit(
    (mut read, mut write): (impl Client, impl AsyncWrite + Unpin),
    disk: &Arc<Disk>,
    negotiated: Negotiated,
    input: BytesMut,
) {
    let replies = Arc::new(Outbox::new(ClientReplies::new(negotiated.style)));
    let flows = Arc::new(Notify::new());
    let reading = async {
        let ended = requests(&mut read, disk, &replies, &flows, negotiated, input).await;
        replies.with(ClientReplies::leave);
        match ended {
            // It sent NBD_CMD_DISC and waits for its answers.
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    };
    let writing = poll_fn(|cx| {
        let sent = replies.poll_send(cx, &mut write);
        // `look`, not `with`: while answers are left, `with` would wake this very task.
        if replies.look(|replies| replies.backlog() < BACKLOG_BYTES_MAX) {
            flows.notify_one();
        }
        sent
    });
    let why = tokio::select! {
        why = reading => why,
        sent = writing => sent.err().map_or("it left".to_string(), |error| error.to_string()),
    };
    tracing::debug!(volume = %disk.export.volume, why, "a client is gone");
}

/// Answers that need nothing from the disk: to a wrong request, and to one with nothing to do.
fn answer_at_once(request: &Request, size: u64, style: HeaderStyle) -> Option<Result<Reply, Errno>> {
    match request.check(size, false, style) {
        Err(errno) => Some(Err(errno)),
        // Every device can do nothing. A flush, too: nothing here outlives the process.
        Ok(()) if request.len == 0 => Some(Ok(Reply::Done)),
        Ok(()) => None,
    }
}

async fn requests(
    socket: &mut impl Client,
    disk: &Arc<Disk>,
    replies: &Arc<Outbox<ClientReplies>>,
    flows: &Notify,
    negotiated: Negotiated,
    input: BytesMut,
) -> Result<(), String> {
    let mut unread = Unread::new(negotiated, input);
    loop {
        let request = match unread.decoder.next(&mut unread.input).map_err(|error| error.to_string())? {
            Decoded::Request(request) if request.command == Command::Disconnect => return Ok(()),
            Decoded::Request(request) => request,
            Decoded::Need(more) => {
                grow(&mut unread.input, more);
                if socket.read_buf(&mut unread.input).await.map_err(|error| error.to_string())? == 0 {
                    return Err("it closed the connection".to_string());
                }
                continue;
            }
        };
        // CLIENT-F1: the answers that it does not take are bounded.
        while replies.with(|replies| replies.backlog() >= BACKLOG_BYTES_MAX) {
            flows.notified().await;
        }
        let to = ReplyTo { cookie: request.cookie, offset: request.offset, is_read: request.is_read };
        let narrow =
            matches!(request.command, Command::Read { unfragmented: true } | Command::BlockStatus { one: true });
        let ticket = Ticket { client: 0, to, narrow, len: request.len };
        replies.with(ClientReplies::take);
        if let Some(answer) = answer_at_once(&request, disk.size, negotiated.style) {
            replies.with(|replies| replies.answer(&ticket, answer));
            continue;
        }
        let carried = matches!(request.command, Command::Read { .. } | Command::Write { .. });
        let bytes = if carried { request.len } else { 0 };
        let room = disk.room(bytes).await;
        // CLIENT-F4, CLIENT-F5.
        unread.look_for_end(socket)?;
        let (disk, replies) = (disk.clone(), replies.clone());
        tokio::spawn(async move {
            let outcome = disk.carry_out(request.offset, request.len, request.command).await;
            replies.with(|replies| replies.answer(&ticket, outcome));
            drop(room);
        });
    }
}
