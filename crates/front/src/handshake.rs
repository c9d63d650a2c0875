//! The handshake of one connection: passes the protocol's questions to `Exports`, and its answers back.

use super::conn::Served;
use super::device::{ConnInfo, ExportInfo, OpenedExport, Refusal, RefusalKind};
use super::input::Input;
use super::limits::FrontLimits;
use super::line::{FrontTls, Line};
use super::shared::{ServedConnection, Shared};
use super::slots::SlotPlace;
use bytes::BytesMut;
use holdfast_nbd::ExportName;
use holdfast_nbd::server::{ExportFacts, Handshake, HandshakeError, Question, RefusalReason, Step, TlsMode};
use holdfast_types::sync::LockExt;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;
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
    #[error("TLS: {0}")]
    Tls(io::Error),
}

/// A handshake that led to transmission.
pub(super) struct Ready<S> {
    pub(super) line: Line<S>,
    /// Whether it has TLS.
    pub(super) secure: bool,
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

/// Opens the export and takes its slot. When this returns, all older connections of the slot have ended (SLOT-S1), and
/// their requests under this epoch have an outcome (SLOT-S4).
///
/// The connection counts towards the gateway's limit before that. A client that was told that it is served must not be
/// closed because of the limit, and a client that is refused because of the limit must not disturb the slot.
async fn open(
    allowed: Result<(), Refusal>,
    name: &ExportName,
    info: ConnInfo,
    front: &Shared,
    stop: &CancellationToken,
) -> Result<(OpenedExport, Option<SlotPlace>), Refusal> {
    allowed?;
    let opened = front.exports.open(name, info).await?;
    front.promote(ServedConnection { info, name: name.clone(), stop: stop.clone() })?;
    let place = take_slot(name, &opened, stop).await;
    if place.is_err() {
        front.demote(info.id);
    }
    Ok((opened, place?))
}

async fn describe(
    allowed: Result<(), Refusal>,
    name: &ExportName,
    info: ConnInfo,
    front: &Shared,
) -> Result<ExportInfo, Refusal> {
    allowed?;
    front.exports.describe(name, info).await
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

/// When the last option of a handshake arrived.
pub(super) struct Progress {
    begun: Instant,
    last: Mutex<Instant>,
    /// The client still has to show a certificate. Until then it is told nothing else, and gains no time by asking.
    is_stranger: AtomicBool,
    /// Options that arrived; of a stranger none counts.
    options: AtomicU32,
    /// A certificate was shown: its time is not that of the options.
    was_stranger: AtomicBool,
}

impl Progress {
    /// At a listener with this TLS.
    pub(super) fn new(tls: Option<&FrontTls>) -> Self {
        let begun = Instant::now();
        let is_stranger = tls.is_some_and(|tls| tls.mode() == TlsMode::Required);
        let (is_stranger, options, was_stranger) = (is_stranger.into(), AtomicU32::new(0), AtomicBool::new(false));
        Self { begun, last: Mutex::new(begun), is_stranger, options, was_stranger }
    }

    /// An option has arrived.
    fn asked(&self) {
        if !self.is_stranger.load(Ordering::Relaxed) {
            *self.last.locked() = Instant::now();
            self.options.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// When the handshake has to be done, by the options until now.
    fn end(&self, limits: &FrontLimits) -> Instant {
        let of_options = limits.handshake_option.saturating_mul(self.options.load(Ordering::Relaxed));
        let first = limits.handshake_timeout.saturating_mul(1 + u32::from(self.was_stranger.load(Ordering::Relaxed)));
        self.begun + limits.handshake_total.min(first.saturating_add(of_options))
    }

    /// A certificate that is for NBD was shown.
    fn introduced(&self) {
        self.was_stranger.store(self.is_stranger.swap(false, Ordering::Relaxed), Ordering::Relaxed);
        self.asked();
    }

    /// Runs a handshake that notes its progress here. `None`: an option, or the whole of it, took too long.
    pub(super) async fn limit<T>(&self, limits: &FrontLimits, shaking: impl Future<Output = T>) -> Option<T> {
        let mut shaking = pin!(shaking);
        let until = || self.end(limits).min(*self.last.locked() + limits.handshake_timeout);
        loop {
            let end = until();
            if let Ok(done) = tokio::time::timeout_at(end, shaking.as_mut()).await {
                return Some(done);
            }
            // No option has arrived meanwhile that would give it more.
            if until() <= end {
                return None;
            }
        }
    }
}

/// Does the handshake. The caller limits the time with `progress`, and drops the future when `stop` is cancelled.
pub(super) async fn shake_hands<S: AsyncRead + AsyncWrite + Unpin>(
    mut line: Line<S>,
    info: ConnInfo,
    front: &Shared,
    stop: &CancellationToken,
    progress: &Progress,
    tls: Option<&FrontTls>,
) -> Result<Ready<S>, Unserved> {
    let mut handshake = Handshake::new(tls.map_or(TlsMode::Off, FrontTls::mode));
    let mut secure = false;
    let mut input = Input::default();
    let mut out = BytesMut::from(&Handshake::greeting()[..]);
    let mut options = 0;
    loop {
        let step = handshake.step(&mut input.bytes, &mut out)?;
        if handshake.options() > options {
            options = handshake.options();
            progress.asked();
        }
        send(&mut line, &mut out).await?;
        match step {
            Step::Aborted => return Err(Unserved::Left),
            Step::StartTls => {
                // The handshake has ended a connection with plain bytes behind it (NBD-S2): `input` is empty.
                let Some(tls) = tls else { return Err(Unserved::Left) };
                let (secured, refusal) = line.start_tls(tls).await.map_err(Unserved::Tls)?;
                (line, secure) = (secured, true);
                note_tls(front, info, refusal.as_deref(), progress);
                handshake.tls_started(refusal);
            }
            Step::NeedBytes => {
                // One chunk holds the longest supported option, so the buffer never grows.
                input.make_room(1);
                if line.read_buf(&mut input.bytes).await? == 0 {
                    return Err(Unserved::Left);
                }
            }
            Step::Ask(Question::List) => answer_list(&mut handshake, front, &line, &mut out),
            Step::Ask(Question::Describe(name)) => {
                let described = describe(line.may_open(&name.set), &name, info, front).await;
                let facts = described.as_ref().map(|info| ExportFacts {
                    size: info.size,
                    read_only: info.read_only,
                    description: info.description.clone(),
                });
                handshake.answer_export(facts.as_ref().map_err(|refusal| refused(refusal)), &mut out)?;
            }
            Step::Ask(Question::Open(name)) => {
                let opened = open(line.may_open(&name.set), &name, info, front, stop).await;
                note_open(front, info, &name, opened.as_ref().err());
                if let Some((served, place)) = answer_open(&mut handshake, opened, stop, &mut out)? {
                    send(&mut line, &mut out).await?;
                    return Ok(Ready { line, secure, served, input, name, place });
                }
                front.demote(info.id);
            }
        }
    }
}

/// Who has a certificate for NBD is no stranger any more.
fn note_tls(front: &Shared, info: ConnInfo, refusal: Option<&str>, progress: &Progress) {
    match refusal {
        None => {
            progress.introduced();
            front.secured(info.id);
        }
        Some(why) if front.may_say() => {
            tracing::info!(connection = info.id, peer = %info.peer, why, "NBD refused");
        }
        Some(_) => {}
    }
}

fn note_open(front: &Shared, info: ConnInfo, name: &ExportName, refusal: Option<&Refusal>) {
    if let Some(refusal) = refusal
        && front.may_say()
    {
        tracing::info!(connection = info.id, peer = %info.peer, export = %name, %refusal, "export refused");
    }
}

async fn send<S: AsyncRead + AsyncWrite + Unpin>(line: &mut Line<S>, out: &mut BytesMut) -> io::Result<()> {
    line.write_all_buf(out).await?;
    line.flush().await
}

fn answer_list<S>(handshake: &mut Handshake, front: &Shared, line: &Line<S>, out: &mut BytesMut)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut listed = front.exports.list();
    listed.retain(|(name, _)| line.may_open(&name.set).is_ok());
    let listed: Vec<(String, String)> =
        listed.into_iter().map(|(name, description)| (name.to_wire(), description)).collect();
    handshake.answer_list(listed.iter().map(|(name, text)| (name.as_str(), text.as_str())), out);
}

/// Answers a client that wants to begin transmission. `None`: it was refused, or goes on with the handshake.
fn answer_open(
    handshake: &mut Handshake,
    opened: Result<(OpenedExport, Option<SlotPlace>), Refusal>,
    stop: &CancellationToken,
    out: &mut BytesMut,
) -> Result<Option<(Served, Option<SlotPlace>)>, HandshakeError> {
    let (opened, place) = match opened {
        Ok(opened) => opened,
        Err(refusal) => {
            handshake.answer_export(Err(refused(&refusal)), out)?;
            return Ok(None);
        }
    };
    let OpenedExport { device, closed, draining, read_only, description, throttles, .. } = opened;
    let facts = ExportFacts { size: device.size(), read_only, description };
    let negotiated = handshake.answer_export(Ok(&facts), out)?;
    let closed = [closed, stop.clone()];
    Ok(negotiated.map(|negotiated| (Served { device, read_only, negotiated, closed, draining, throttles }, place)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// A client that shows all exports asks about each of them, and may need long for all of them.
    #[tokio::test]
    async fn each_option_has_its_own_time_and_the_whole_is_limited() {
        let (short, long) = (Duration::from_millis(20), Duration::from_secs(3600));
        let limits = FrontLimits { handshake_timeout: short, handshake_total: long, ..FrontLimits::default() };
        let progress = Progress::new(None);
        let slow = async {
            // As if options continued to arrive.
            progress.asked();
            *progress.last.locked() = Instant::now() + long / 2;
            tokio::time::sleep(short * 3).await;
        };
        assert!(progress.limit(&limits, slow).await.is_some());
        assert!(Progress::new(None).limit(&limits, std::future::pending::<()>()).await.is_none(), "no option arrived");
        let limits = FrontLimits { handshake_timeout: long, handshake_total: short, ..limits };
        assert!(
            Progress::new(None).limit(&limits, std::future::pending::<()>()).await.is_none(),
            "the whole took too long"
        );
    }

    /// Whoever sends an option now and then would keep a place among the handshakes for ten minutes.
    #[tokio::test]
    async fn an_option_now_and_then_gains_no_time() {
        let [timeout, option] = [200, 1].map(Duration::from_millis);
        let limits = FrontLimits { handshake_timeout: timeout, handshake_option: option, ..FrontLimits::default() };
        let progress = Progress::new(None);
        let slow = async {
            for _ in 0..10_000 {
                progress.asked();
                tokio::time::sleep(timeout / 4).await;
            }
        };
        let limited = progress.limit(&limits, slow);
        assert!(tokio::time::timeout(Duration::from_secs(20), limited).await.expect("it is closed").is_none());
    }
}
