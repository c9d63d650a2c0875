//! A connection of an HTTP door: its place, and its times (LISTEN-L1, LISTEN-L2, LISTEN-L4, LISTEN-L6, LISTEN-L7).
//!
//! ```text
//!   socket ─▶ Guest: place, times, bytes ─▶ TLS, where the door has it ─▶ Asking: the head of the first request
//! ```

use crate::seams::Wire;
use holdfast_tls::HttpConnection;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

/// Maximum number of connections.
pub const CONNECTIONS_MAX: usize = 128;

/// Those among them over which no request came yet.
const NEWCOMERS_MAX: usize = 64;

/// Those that are proven.
const PROVEN_MAX: usize = 96;

/// Those that are proven by one certificate.
const SHARE_MAX: usize = 32;

/// Time until the head of the first request is there.
const HELLO_LIMIT: Duration = Duration::from_secs(10);

/// Time from the first byte of a request to the begin of its answer. Longer than any command takes.
const REQUEST_LIMIT: Duration = IDLE_LIMIT;

/// Maximum idle time of a connection. Longer than any command takes.
pub const IDLE_LIMIT: Duration = Duration::from_secs(30);

/// Bytes of a request with its headers, in one piece or many. The longest body has 16 KiB.
pub(super) const UNANSWERED_BYTES_MAX: usize = 48 << 10;

/// The times of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) hello: Duration,
    pub(super) request: Duration,
    pub(super) idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { hello: HELLO_LIMIT, request: REQUEST_LIMIT, idle: IDLE_LIMIT }
    }
}

/// What a connection has shown of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    /// Nothing yet.
    New,
    /// The head of a request.
    Asked,
    /// A certificate of the authority.
    Proven,
}

#[derive(Debug)]
struct Held {
    standing: Standing,
    /// The name in the certificate of one that is proven.
    by: Option<String>,
    evict: oneshot::Sender<()>,
}

/// The places of a door, by age.
#[derive(Debug, Default)]
pub(super) struct Places {
    next: u64,
    held: BTreeMap<u64, Held>,
}

impl Places {
    fn count(&self, standing: Standing) -> usize {
        self.held.values().filter(|one| one.standing == standing).count()
    }

    fn oldest(&self, standing: Standing) -> Option<u64> {
        self.held.iter().find(|(_, one)| one.standing == standing).map(|(id, _)| *id)
    }

    /// A place for a new connection, and what is ready once it has to go (LISTEN-L1).
    fn take(&mut self) -> (u64, oneshot::Receiver<()>) {
        let goes = if self.count(Standing::New) >= NEWCOMERS_MAX {
            self.oldest(Standing::New)
        } else if self.held.len() >= CONNECTIONS_MAX {
            // Newcomers of a full door do not close each other before they have shown who they are.
            self.oldest(Standing::Asked).or_else(|| self.oldest(Standing::New))
        } else {
            None
        };
        if let Some(Held { evict, .. }) = goes.and_then(|id| self.held.remove(&id)) {
            let _ = evict.send(());
        }
        let (evict, evicted) = oneshot::channel();
        self.next += 1;
        self.held.insert(self.next, Held { standing: Standing::New, by: None, evict });
        (self.next, evicted)
    }

    /// A standing never sinks. One too many that would be proven stays what it was (LISTEN-L7).
    fn show(&mut self, id: u64, standing: Standing, by: Option<&str>) {
        let of_it = self.held.values().filter(|one| by.is_some() && one.by.as_deref() == by).count();
        if standing == Standing::Proven && (self.count(Standing::Proven) >= PROVEN_MAX || of_it >= SHARE_MAX) {
            return;
        }
        // It may have lost its place meanwhile.
        if let Some(one) = self.held.get_mut(&id).filter(|one| one.standing < standing) {
            (one.standing, one.by) = (standing, by.map(str::to_string));
        }
    }

    /// Connections that have a place.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        self.held.len()
    }
}

/// The place of a connection, for those who learn something of its client.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    id: u64,
    asked: Arc<AtomicBool>,
    places: Arc<Mutex<Places>>,
}

impl Seat {
    /// The head of its first request is there.
    fn has_asked(&self) {
        self.asked.store(true, Ordering::Release);
        self.places.locked().show(self.id, Standing::Asked, None);
    }

    /// It has shown a certificate of this name (LISTEN-L7).
    pub(super) fn proves(&self, name: &str) {
        self.places.locked().show(self.id, Standing::Proven, Some(name));
    }
}

/// A connection with its place.
pub(super) struct Guest {
    socket: Box<dyn Wire>,
    seat: Seat,
    /// Ready once a newer connection takes the place. `None` after that: a finished receiver must not be polled again.
    evicted: Option<oneshot::Receiver<()>>,
    limits: Limits,
    accepted: Instant,
    /// When something came or went.
    moved: Instant,
    /// When the first byte came since the last answer.
    begun: Option<Instant>,
    /// When to look at the times again.
    alarm: Pin<Box<Sleep>>,
    /// Bytes that came since the last answer.
    unanswered: usize,
}

impl Guest {
    pub(super) fn new(socket: Box<dyn Wire>, places: &Arc<Mutex<Places>>, limits: Limits) -> Self {
        let (id, evicted) = places.locked().take();
        let seat = Seat { id, asked: Arc::default(), places: places.clone() };
        let now = Instant::now();
        let alarm = Box::pin(tokio::time::sleep_until(now + limits.hello));
        let (evicted, accepted, moved) = (Some(evicted), now, now);
        Self { socket, seat, evicted, limits, accepted, moved, begun: None, alarm, unanswered: 0 }
    }

    pub(super) fn seat(&self) -> Seat {
        self.seat.clone()
    }

    /// When the connection ends if nothing changes, and why.
    fn end(&self) -> (Instant, &'static str) {
        if !self.seat.asked.load(Ordering::Acquire) {
            return (self.accepted + self.limits.hello, "no request came in time (LISTEN-L6)");
        }
        let idle = self.moved + self.limits.idle;
        match self.begun.map(|begun| begun + self.limits.request) {
            Some(end) if end < idle => (end, "a request took too long (LISTEN-L6)"),
            _ => (idle, "nothing came or went"),
        }
    }

    /// LISTEN-L1, LISTEN-L2, LISTEN-L6: whether the connection may continue. `cx` is woken when it may not.
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(evicted) = &mut self.evicted
            && Pin::new(evicted).poll(cx).is_ready()
        {
            self.evicted = None;
        }
        if self.evicted.is_none() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "a newer connection took its place"));
        }
        while self.alarm.as_mut().poll(cx).is_ready() {
            let (end, why) = self.end();
            if Instant::now() >= end {
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            self.alarm.as_mut().reset(end);
        }
        Ok(())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.seat.places.locked().held.remove(&self.seat.id);
    }
}

impl AsyncRead for Guest {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check(cx)?;
        if this.unanswered > UNANSWERED_BYTES_MAX {
            let why = "found a request without an end, expected a short one (LISTEN-L4)";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        let before = buf.filled().len();
        let done = Pin::new(&mut this.socket).poll_read(cx, buf);
        let came = buf.filled().len() - before;
        if came > 0 {
            this.moved = Instant::now();
            this.unanswered = this.unanswered.saturating_add(came);
            if this.begun.is_none() {
                this.begun = Some(this.moved);
                let (end, _) = this.end();
                this.alarm.as_mut().reset(end);
            }
        }
        done
    }
}

impl AsyncWrite for Guest {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.check(cx)?;
        let done = Pin::new(&mut this.socket).poll_write(cx, bytes);
        if let Poll::Ready(Ok(1..)) = done {
            (this.moved, this.begun, this.unanswered) = (Instant::now(), None, 0);
        }
        done
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

/// How far the head of a request has come: it ends with an empty line, and does not begin with one.
#[derive(Debug, Default)]
struct Head {
    begun: bool,
    /// The line is empty as yet.
    empty: bool,
}

impl Head {
    /// Whether it ends within these bytes.
    fn ends(&mut self, bytes: &[u8]) -> bool {
        for byte in bytes {
            match byte {
                b'\r' => {}
                b'\n' if self.begun && self.empty => return true,
                b'\n' => self.empty = true,
                _ => (self.begun, self.empty) = (true, false),
            }
        }
        false
    }
}

/// A connection whose first request is waited for (LISTEN-L6).
pub(super) struct Asking {
    connection: HttpConnection,
    seat: Seat,
    /// `None` once it is whole.
    head: Option<Head>,
}

impl Asking {
    pub(super) fn new(connection: HttpConnection, seat: Seat) -> Self {
        Self { connection, seat, head: Some(Head::default()) }
    }
}

impl AsyncRead for Asking {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let done = Pin::new(&mut this.connection).poll_read(cx, buf);
        if let Some(head) = &mut this.head
            && head.ends(&buf.filled()[before..])
        {
            this.head = None;
            this.seat.has_asked();
        }
        done
    }
}

impl AsyncWrite for Asking {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().connection).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().connection).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().connection).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Places of which these many are taken, and the receivers of their ends.
    fn taken(places: &mut Places, count: usize, shows: Option<(Standing, &str)>) -> Vec<(u64, oneshot::Receiver<()>)> {
        let one = |_| {
            let (id, evicted) = places.take();
            if let Some((standing, name)) = shows {
                places.show(id, standing, Some(name).filter(|_| standing == Standing::Proven));
            }
            (id, evicted)
        };
        (0..count).map(one).collect()
    }

    fn left(all: &[(u64, oneshot::Receiver<()>)], places: &Places) -> usize {
        all.iter().filter(|(id, _)| places.held.contains_key(id)).count()
    }

    #[test]
    fn a_flood_takes_no_place_of_who_has_asked_or_is_proven() {
        let mut places = Places::default();
        let mut known = taken(&mut places, 20, Some((Standing::Asked, "")));
        known.extend(taken(&mut places, 20, Some((Standing::Proven, "db1"))));
        let flood = taken(&mut places, 1000, None);
        assert_eq!((left(&known, &places), left(&flood, &places)), (40, NEWCOMERS_MAX), "LISTEN-L1");
        // A flood that asks, too: it takes the places of those that are not proven.
        let asking = taken(&mut places, 1000, Some((Standing::Asked, "")));
        assert_eq!(left(&known[20..], &places), 20, "LISTEN-L7");
        assert!(left(&asking, &places) > 0 && places.taken() <= CONNECTIONS_MAX);
    }

    #[test]
    fn places_are_left_for_who_is_not_proven() {
        let mut places = Places::default();
        let one = taken(&mut places, CONNECTIONS_MAX, Some((Standing::Proven, "db1")));
        assert_eq!(places.count(Standing::Proven), SHARE_MAX, "LISTEN-L7: one certificate");
        for name in ["db2", "db3", "db4", "db5"] {
            taken(&mut places, SHARE_MAX, Some((Standing::Proven, name)));
        }
        assert_eq!((places.count(Standing::Proven), left(&one, &places) >= SHARE_MAX), (PROVEN_MAX, true));
        let late = taken(&mut places, 1, Some((Standing::Asked, "")));
        assert_eq!(left(&late, &places), 1);
    }

    #[test]
    fn a_head_ends_with_an_empty_line() {
        let ends = |parts: &[&str]| {
            let mut head = Head::default();
            parts.iter().any(|part| head.ends(part.as_bytes()))
        };
        assert!(ends(&["GET / HTTP/1.1\r\nhost: a\r\n\r\n"]) && ends(&["GET / HTTP/1.1\r", "\n\r", "\n"]));
        assert!(ends(&["GET / HTTP/1.0\n\n"]));
        for part in ["", "\r\n\r\n\r\n", "GET / HTTP/1.1\r\nhost: a\r\n", "\n\nGET / HTTP/1.1\r\n"] {
            assert!(!ends(&[part]), "{part:?}");
        }
    }
}
