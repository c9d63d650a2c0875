//! The handshake of one connection: passes the protocol's questions to `Exports`, and its answers back.

use super::conn::Served;
use super::device::{ConnInfo, OpenedExport, Refusal, RefusalKind};
use super::input::Input;
use super::slots::SlotPlace;
use super::{ServedConnection, Shared};
use bytes::BytesMut;
use holdfast_nbd::ExportName;
use holdfast_nbd::server::{ExportFacts, Handshake, HandshakeError, Question, RefusalReason, Step};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

/// Why a handshake did not lead to transmission.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unserved {
    #[error("the client left")]
    Left,
    #[error("{0}")]
    Protocol(#[from] HandshakeError),
    #[error("socket: {0}")]
    Socket(#[from] io::Error),
}

/// A handshake that led to transmission.
pub(super) struct Ready {
    pub(super) served: Served,
    pub(super) input: Input,
    pub(super) name: ExportName,
    pub(super) place: Option<SlotPlace>,
}

fn refused(refusal: &Refusal) -> (RefusalReason, &str) {
    let reason = match refusal.kind {
        RefusalKind::Unknown => RefusalReason::Unknown,
        RefusalKind::NotPermitted => RefusalReason::Policy,
        RefusalKind::NotHere => RefusalReason::Shutdown,
    };
    (reason, &refusal.message)
}

/// Opens the export and takes its slot. When this returns, all older connections of the slot have ended (SLOT-S1), and their
/// requests under this epoch have an outcome (SLOT-S4).
///
/// The connection counts towards the gateway's limit before that. A client that was told that it is served must not be
/// closed because of the limit, and a client that is refused because of the limit must not disturb the slot.
async fn open(
    name: &ExportName,
    info: ConnInfo,
    front: &Shared,
    stop: &CancellationToken,
) -> Result<(OpenedExport, Option<SlotPlace>), Refusal> {
    let opened = front.exports.open(name, info).await?;
    front.promote(ServedConnection { info, name: name.clone(), stop: stop.clone() })?;
    let place = take_slot(name, &opened, stop).await;
    if place.is_err() {
        front.demote(info.id);
    }
    Ok((opened, place?))
}

async fn take_slot(
    name: &ExportName,
    opened: &OpenedExport,
    stop: &CancellationToken,
) -> Result<Option<SlotPlace>, Refusal> {
    let place = opened
        .slots
        .take(name.session, opened.epoch, stop)
        .await
        .map_err(|stale| Refusal { kind: RefusalKind::NotPermitted, message: stale.to_string() })?;
    if place.as_ref().is_some_and(SlotPlace::follows) {
        opened.device.clone().settled().await.map_err(|why| Refusal {
            kind: RefusalKind::NotHere,
            message: format!("requests of an older connection of this slot have no outcome here: {why}; find the gateway that serves, and try again"),
        })?;
    }
    Ok(place)
}

/// Does the handshake. The caller limits the time, and drops the future when `stop` is cancelled.
pub(super) async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut S,
    info: ConnInfo,
    front: &Shared,
    stop: &CancellationToken,
) -> Result<Ready, Unserved> {
    let exports = front.exports.as_ref();
    let mut handshake = Handshake::new();
    let mut input = Input::default();
    let mut out = BytesMut::from(&Handshake::greeting()[..]);
    loop {
        let step = handshake.step(&mut input.bytes, &mut out)?;
        socket.write_all_buf(&mut out).await?;
        match step {
            Step::Aborted => return Err(Unserved::Left),
            Step::NeedBytes => {
                // One chunk holds the longest supported option, so the buffer never grows.
                input.make_room(1);
                if socket.read_buf(&mut input.bytes).await? == 0 {
                    return Err(Unserved::Left);
                }
            }
            Step::Ask(Question::List) => {
                let listed = exports.list();
                let listed: Vec<(String, String)> =
                    listed.into_iter().map(|(name, description)| (name.to_wire(), description)).collect();
                handshake.answer_list(listed.iter().map(|(name, text)| (name.as_str(), text.as_str())), &mut out);
            }
            Step::Ask(Question::Describe(name)) => {
                let described = exports.describe(&name, info).await;
                let facts = described.as_ref().map(|info| ExportFacts {
                    size: info.size,
                    read_only: info.read_only,
                    description: info.description.clone(),
                });
                handshake.answer_export(facts.as_ref().map_err(|refusal| refused(refusal)), &mut out)?;
            }
            Step::Ask(Question::Open(name)) => match open(&name, info, front, stop).await {
                Err(refusal) => {
                    tracing::info!(connection = info.id, peer = %info.peer, export = %name, %refusal, "export refused");
                    handshake.answer_export(Err(refused(&refusal)), &mut out)?;
                }
                Ok((opened, place)) => {
                    let OpenedExport { device, closed, draining, read_only, description, .. } = opened;
                    let facts = ExportFacts { size: device.size(), read_only, description };
                    if let Some(negotiated) = handshake.answer_export(Ok(&facts), &mut out)? {
                        socket.write_all_buf(&mut out).await?;
                        let closed = [closed, stop.clone()];
                        let served = Served { device, read_only, negotiated, closed, draining };
                        return Ok(Ready { served, input, name, place });
                    }
                    front.demote(info.id);
                }
            },
        }
    }
}
